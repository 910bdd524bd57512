"""Ablations of networks that are not here: from kept maps, published tables and masks."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from helpers.ablations import compute, recorded
from helpers.ablations.compute import AblationSettings
from helpers.cams import localize, masks
from helpers.cams.maps import from_integers
from helpers.data.boxes import box_masks
from helpers.networks import resnet
from helpers.scoring.models import Model
from helpers.scoring.scoring_set import ScoringSet
from helpers.scoring.store import Records, Store

SETTINGS = AblationSettings(thresholds=(0.3,), threshold=0.1)
CHANCE = {name: number / 10 for number, name in enumerate(localize.CORRECTED)}


@pytest.fixture
def images(tiny_module_given):
    return tiny_module_given["images"]


@pytest.fixture
def kept(images, tmp_path):
    """Records of two networks, as they are published."""
    kept = Records({"localization": tmp_path / "localization-0"}, ())
    kept.model_ids = ["a", "b"]
    rng = np.random.default_rng(0)
    for model_id in kept.model_ids:
        maps = rng.integers(0, 256, (len(images), 2, 2), dtype=np.uint8)
        scores = {"measure": [*CHANCE], "value": [*CHANCE.values()]}
        record = {
            "maps": maps,
            "correct": np.arange(len(images)) % 3 > 0,
            "scores": pd.DataFrame(scores),
        }
        kept.write("localization", model_id, record)
    return kept


def test_overlaps_of_kept_maps_equal_a_plain_loop_over_images(images, kept):
    size = images.images.shape[-1]
    machine = torch.rand(len(images), size, size) > 0.5
    found = recorded.scores_of_maps(kept, images, {"made": machine}, SETTINGS, "layer4")
    boxes = box_masks(images.boxes, size)
    record = kept.record("localization", "b")
    enlarged = localize.upsample(from_integers(record["maps"]), size).numpy()
    for annotation, annotated in (("boxes", boxes), ("made", machine)):
        of_model = found["scores"].query("model_id == 'b' and threshold == 0.3")
        rows = of_model[of_model["annotation"] == annotation]
        values = []
        for image, inside in zip(enlarged >= 0.3, annotated.numpy(), strict=True):
            values.append((image & inside).sum() / (image | inside).sum())
        iou = rows.set_index("subset")["iou"]
        assert iou["all"] == pytest.approx(np.mean(values), abs=1e-6)
        right = np.array(values)[record["correct"]]
        assert iou["correct"] == pytest.approx(right.mean(), abs=1e-6)
    corrected = found["corrected"].set_index("model_id")
    assert corrected.loc["a", [*CHANCE]].tolist() == [*CHANCE.values()]
    assert set(found["scores"]["layer"]) == {"layer4"}


def test_the_last_stage_is_named_as_the_networks_name_it():
    network = resnet.build("resnet18", 3, stem="small", width=0.125, seed=1).eval()
    assert recorded.stage_of(Model("a", lambda device: network), 16) == "layer4"


def test_rows_that_cannot_be_computed_stand_as_they_were_published(tmp_path):
    (tmp_path / "tables").mkdir()
    published = {"method": ["a", "b"], "formula": ["", ""], "r": [0.1, 0.2]}
    pd.DataFrame(published).to_csv(tmp_path / "tables/choices.csv", index=False)
    ours = pd.DataFrame({"method": ["b", "c"], "formula": ["", ""], "r": [0.3, 0.4]})
    keys = ["method", "formula"]
    table = recorded.fill_from_published(tmp_path, "choices", ours, keys)
    assert table["method"].tolist() == ["a", "b", "c"]
    assert table["r"].tolist() == [0.1, 0.3, 0.4]
    # By the same parameters the published row is the better one: of unrounded maps.
    stands = recorded.fill_from_published(tmp_path, "choices", ours, keys, stand=True)
    assert stands["r"].tolist() == [0.1, 0.2, 0.4]
    networks, maps = recorded.OF_NETWORKS, recorded.OF_MAPS
    assert table[recorded.SOURCE].tolist() == [networks, maps, maps]
    # Published again, what was computed from maps is computed anew, or goes.
    table.to_csv(tmp_path / "tables/choices.csv", index=False)
    again = recorded.fill_from_published(tmp_path, "choices", ours[:1], keys)
    assert again["method"].tolist() == ["a", "b"]
    alone = recorded.fill_from_published(tmp_path, "choices", pd.DataFrame())
    assert alone["method"].tolist() == ["a"]
    assert recorded.fill_from_published(None, "choices", ours, keys) is ours
    nothing = recorded.fill_from_published(tmp_path, "other", ours, keys)
    assert nothing["r"].tolist() == [0.3, 0.4]


def test_masks_are_made_once_and_read_where_no_pixels_are(images, tmp_path):
    rows = tuple(range(len(images)))
    scored_on = ScoringSet(rows, "some", len(rows))
    data = SimpleNamespace(train=images)
    store = Store(tmp_path / "work/study", lambda: data, jobs=1)
    providers = ["spectral_residual"]
    made = recorded.masks_of_images(store, scored_on, providers)
    expected = masks.make_masks("spectral_residual", images)
    assert made["spectral_residual"].equal(expected)
    data.train = replace(images, images=images.images.to("meta"))
    again = recorded.masks_of_images(store, scored_on, providers)
    assert again["spectral_residual"].equal(expected)
    other = Store(tmp_path / "work/other", lambda: data, jobs=1)
    assert recorded.masks_of_images(other, scored_on, providers) == {}


def test_values_of_single_images_have_the_mean_of_each_method(tiny_module_given):
    network = resnet.build("resnet18", 3, stem="small", width=0.125, seed=1).eval()
    given = compute.Subject(
        network, tiny_module_given["images"], resnet.normalise_images, "cpu"
    )
    record = compute.closed_form_scores(given, {}, SETTINGS)
    rows = record["scores"].query(
        "class_used == 'predicted' and subset == 'all' and threshold == 0.1"
    )
    assert len(rows) == len(compute.CLOSED_FORMS)
    for row in rows.itertuples():
        single = record[compute.name_of_images(row.method, row.formula)]
        assert single.mean(dtype=float) == pytest.approx(row.iou, abs=1e-3)  # 16 bits
