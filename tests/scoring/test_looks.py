"""Looks of models at images: computed they are the report's, and what a report keeps of them is read back."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers.cams import closed_form, gradient
from helpers.data.images import load_study_data
from helpers.networks import resnet
from helpers.scoring import classification, common_set, looks
from helpers.scoring.look import steps
from helpers.training import catalogue
from helpers.training.config import RunConfig
from helpers.training.run import train_run
from tests.conftest import TINY_SCENES

SIZE = 32  # of the images; maps of the last stage have 4 x 4 pixels


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    work = tmp_path_factory.mktemp("work")
    data = load_study_data(**TINY_SCENES | {"image_size": SIZE, "images_per_class": 14}, cache_dir=work / "cache")
    base = RunConfig("resnet18", 8, 0.01, "adam", 0.0, False, False, data=data.fingerprint, stem="small", width=0.125, max_epochs=2)
    for run in (base, replace(base, batch_size=16)):
        train_run(run, data, catalogue.run_folder(work, run))
    table = catalogue.analysed(catalogue.read_catalogue(work), 0.0)
    list(classification.keep_test_logits(work, table, data, "cpu"))
    return work, data, table.sort_values("gap", ignore_index=True), common_set.scoring_set(table, data)


@pytest.fixture(scope="module")
def opened(study):
    work, data, table, scored_on = study
    return looks.open_looks(work, table, data, scored_on, method="grad_cam", threshold=0.1, images=12)


def test_images_are_the_first_scored_ones_and_test_images_with_classes_in_turn(study, opened):
    data, scored_on = study[1], study[3]
    named = opened.images.groupby("split", sort=False)["name"].apply(list)
    assert named["training"] == [data.train.names[row] for row in scored_on.rows[:12]]
    assert set(named["test"]) <= set(data.test.names) and len(named["test"]) == 12
    assert opened.images["label"].value_counts().tolist() == [8, 8, 8]
    assert opened.model_ids == tuple(study[2]["model_id"])


@pytest.mark.parametrize("method", ["grad_cam", "layer_cam"])
def test_maps_predictions_and_ious_are_the_reports(study, method):
    work, data, table, scored_on = study
    shown = looks.open_looks(work, table, data, scored_on, method=method, threshold=0.3, images=6)
    for model in catalogue.models_of(table)[:2]:
        found = shown.of_model(model.model_id)
        for place, row in enumerate(scored_on.rows[:6]):
            theirs = steps(work, model, data.train.subset([row]), 3, method=method, threshold=0.3, device="cpu")
            np.testing.assert_allclose(found.maps[place], theirs.heat_map, rtol=0, atol=1e-5)
            assert (found.predicted[place], found.iou[place]) == (theirs.predicted, pytest.approx(theirs.iou, abs=0.01))
        assert found.confusion.sum() == len(data.test)


def test_any_layer_and_class_is_that_of_the_layer_maps(study, opened):
    work, data, table, scored_on = study
    model = catalogue.models_of(table)[0]
    network = catalogue.load_model(work, model, 3)
    pixels = resnet.normalise_images(data.train.images[[scored_on.rows[1]]]).contiguous(memory_format=torch.channels_last)
    theirs = closed_form.normalise_maps(gradient.layer_maps("grad_cam", network, network.layer3, pixels, torch.tensor([2])))
    np.testing.assert_allclose(opened.map_by(model.model_id, 1, "grad_cam", "layer3", 2), theirs[0].detach(), rtol=0, atol=1e-6)
    last = opened.map_by(model.model_id, 1, "grad_cam", resnet.CAM_LAYER, looks.PREDICTED_CLASS)
    np.testing.assert_allclose(last, opened.of_model(model.model_id).maps[1], rtol=0, atol=1e-4)


def test_an_image_without_a_box_has_no_iou():
    maps, boxes = torch.rand(2, 4, 4), torch.tensor([[[0, 0, 8, 8]], [[0, 0, 0, 0]]])
    found = looks.ious_with_boxes(maps, boxes, 16, 0.1)
    assert found[0] > 0
    assert found[1].isnan()


def test_what_a_report_keeps_is_read_back(opened, tmp_path):
    path = looks.keep_looks(opened, tmp_path)
    assert path == tmp_path / "story/looks.npz"
    kept = looks.read_looks(tmp_path)
    assert kept.images.equals(opened.images)  # fewer than the file takes
    assert (kept.model_ids, kept.class_names, kept.size, kept.threshold) == (opened.model_ids, opened.class_names, SIZE, 0.1)
    assert (kept.pictures, kept.layers, kept.map_by) == (opened.pictures, (), None)
    assert torch.equal(kept.boxes, opened.boxes)
    for name in kept.model_ids:
        ours, theirs = opened.of_model(name), kept.of_model(name)
        np.testing.assert_allclose(theirs.maps, ours.maps, rtol=0, atol=0.5 / 250 + 1e-6)
        for field in ("probability", "iou", "energy"):
            np.testing.assert_allclose(getattr(theirs, field), getattr(ours, field), rtol=0, atol=5e-4)
        assert (theirs.predicted == ours.predicted).all() and (theirs.confusion == ours.confusion).all()


def test_an_undefined_map_stays_undefined(opened, tmp_path):
    def of_model(name):
        seen = opened.of_model(name)
        return seen._replace(maps=np.full_like(seen.maps, np.nan), iou=np.full_like(seen.iou, np.nan))

    looks.keep_looks(replace(opened, of_model=of_model), tmp_path)
    kept = looks.read_looks(tmp_path).of_model(opened.model_ids[0])
    assert np.isnan(kept.maps).all() and np.isnan(kept.iou).all()


def test_of_many_models_those_across_all_gaps_are_kept_and_the_file_stays_small(opened, tmp_path):
    rng = np.random.default_rng(0)
    seen = opened.of_model(opened.model_ids[0])
    noisy = seen._replace(maps=rng.random((len(seen.maps), 16, 16), dtype=np.float32))
    many = replace(opened, model_ids=tuple(f"m{number:04d}" for number in range(900)), of_model=lambda name: noisy)
    assert looks.keep_looks(many, tmp_path).stat().st_size < 500_000
    kept = looks.read_looks(tmp_path).model_ids
    assert (kept[0], kept[-1]) == ("m0000", "m0899")
    assert 40 < len(kept) < 900
    assert np.ptp(np.diff([int(name[1:]) for name in kept])) <= 1


def test_large_pictures_become_thumbnails(opened, tmp_path):
    large = looks._jpeg(torch.zeros(3, 300, 300, dtype=torch.uint8), 300)
    looks.keep_looks(replace(opened, pictures=(large,) * len(opened.pictures)), tmp_path)
    assert all(len(picture) < len(large) for picture in looks.read_looks(tmp_path).pictures)


def test_no_file_is_none_and_a_damaged_one_is_named(opened, tmp_path):
    assert looks.read_looks(tmp_path) is None
    path = looks.keep_looks(opened, tmp_path)
    whole = path.read_bytes()
    with np.load(path) as kept:
        arrays = dict(kept)
    facts = path.with_name("facts.npz")
    damaged = [b"", whole[:3000], *(whole[:at] + bytes(99) + whole[at + 99 :] for at in range(0, 4000, 99))]
    for other in (
        {"maps": arrays["maps"][:1]},
        {"iou": arrays["iou"][:, :2]},
        {"pictures": arrays["pictures"][:9]},
        {"facts": arrays["maps"]},
    ):
        np.savez(facts, **arrays | other)
        damaged.append(facts.read_bytes())
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"looks.npz is damaged .*; take it from the repository again, or run 03_cam_scoring for it$"):
            looks.read_looks(tmp_path)
