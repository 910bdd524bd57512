"""Explorers: their values are those of the tables and maps, they are absent where nobody can touch them."""

import base64
import json

import numpy as np
import pandas as pd
import pytest
import torch

from helpers.cams import overlap
from helpers.files import STAGING
from helpers.report import explore, tables
from helpers.report.explore import content, cuts
from helpers.report.explore.widget import Explorer
from tests.report import made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return made.write_report(tmp_path_factory.mktemp("reports") / "made")


def test_somebody_can_touch_it_where_jupyter_started_the_kernel_and_no_sweep(
    monkeypatch,
):
    models = made.catalogue()
    for kernel, staging, shown in (
        ("", "", False),
        ("a.ipynb", "", True),
        ("a.ipynb", "x", False),
    ):
        monkeypatch.setenv("JPY_SESSION_NAME", kernel)
        monkeypatch.setenv(STAGING, staging)
        assert tables.interactive() is shown
        explorer = explore.show("measures", made.measures(models), made.TITLES)
        assert (
            isinstance(explorer, Explorer) if shown else "explore.html" in explorer.data
        )


def test_measures_are_those_of_the_scores_the_primary_ones_first(folder):
    measures, _, _ = content.of_report(folder)
    models = made.measures(made.catalogue())
    assert [item["title"] for item in measures["measures"]] == list(
        made.TITLES.values()
    )
    for item, name in zip(measures["measures"], made.TITLES, strict=True):
        np.testing.assert_allclose(item["values"], models[name], rtol=1e-4)
    np.testing.assert_allclose(
        [item["gap"] for item in measures["models"]], 100 * models["gap"], rtol=1e-4
    )
    assert [
        len({*item["card"]} & {"network", "kind", "model id"})
        for item in measures["models"]
    ] == [3] * len(models)
    assert {axis["title"] for axis in measures["axes"]} >= {
        "networks",
        "learning rate",
        "pretrained",
        "augmentation",
    }
    assert measures["axes"][0]["start"] in measures["axes"][0]["of"]
    assert (
        len(measures["kinds"]) == len({colour for _, colour in measures["kinds"]}) == 3
    )


def test_an_undefined_value_is_null_and_a_model_without_a_gap_is_left_out():
    models = made.measures(made.catalogue())
    models.loc[0, "iou"], models.loc[1, "gap"] = np.inf, np.nan
    shown = content.measures(models, {"iou": "IoU", "absent": "Absent"})
    assert len(shown["models"]) == len(models) - 1 and len(shown["measures"]) == 1
    assert shown["measures"][0]["values"][0] is None
    json.dumps(shown, allow_nan=False)


def test_curves_are_those_of_the_histories(folder):
    models = made.catalogue()
    histories = pd.DataFrame(
        {
            "run_id": models["run_id"][0],
            "epoch": [2, 1],
            "train_loss": [0.5, 1.5],
            "train_accuracy": [0.9, np.nan],
        }
    )
    shown = content.curves(
        pd.concat([models.assign(snapshot="first"), models]), histories
    )
    (run,) = shown["models"]
    assert run["epochs"] == [1, 2] and run["curves"] == {
        "train_loss": [1.5, 0.5],
        "train_accuracy": [None, 90],
    }
    assert dict(shown["metrics"]).keys() == {"train_loss", "train_accuracy"}


def test_maps_of_the_page_are_the_published_bytes_by_gap():
    kept, models = made.kept_maps(), made.catalogue()
    shown = content.maps(models.drop(3), kept | {"model_ids": kept["model_ids"][:-1]})
    assert len(shown["models"]) == len(models) - 2
    gaps = [model["gap"] for model in shown["models"]]
    assert gaps == sorted(gaps)
    row = kept["model_ids"].index(shown["models"][5]["card"]["model id"])
    assert base64.b64decode(shown["models"][5]["maps"]) == kept["maps"][row].tobytes()
    assert [image["boxes"] for image in shown["images"]] == [[[0, 0, 8, 8]]] * 6
    json.dumps(shown, allow_nan=False)


def test_overlaps_are_those_of_an_independent_count():
    """Against masks that are counted pixel by pixel, one network and image at a time."""
    random = np.random.default_rng(0)
    maps = random.integers(0, 256, (3, 5, 4, 4), dtype=np.uint8)
    boxes = np.array(
        [
            [[0, 0, 6, 9]],
            [[3, 4, 16, 16]],
            [[0, 0, 16, 16]],
            [[0, 0, 0, 0]],
            [[5, 5, 6, 6]],
        ]
    )
    found = cuts.mean_overlaps(maps, boxes, 16)
    assert set(found) == set(cuts.RULES)
    expected = {rule: np.zeros((3, 4)) for rule in cuts.RULES}
    for model in range(3):
        for place, image in enumerate((0, 1, 2, 4)):
            values = overlap.upsample(
                torch.tensor(maps[model, image] / np.float32(255))[None], 16
            )[0].numpy()
            box = np.zeros((16, 16), bool)
            x0, y0, x1, y1 = boxes[image, 0]
            box[y0:y1, x0:x1] = True
            for rule, level in cuts.RULES:
                if rule == "maximum":
                    expected[rule, level][model, place] = box[
                        np.unravel_index(values.argmax(), box.shape)
                    ]
                    continue
                mask = values >= (
                    level
                    if rule == "threshold"
                    else np.sort(values.ravel())[-box.sum()]
                )
                expected[rule, level][model, place] = (mask & box).sum() / (
                    mask | box
                ).sum()
    for rule in cuts.RULES:
        np.testing.assert_allclose(found[rule], expected[rule].mean(1), atol=1e-6)


def test_overlaps_at_the_limits():
    """A map that is the box has 1 by its area; one whose maximum lies opposite has none of its maxima there; no box, no number."""
    kept = made.kept_maps()
    found = cuts.mean_overlaps(kept["maps"], kept["boxes"], made.SIZE)
    np.testing.assert_array_equal(
        found["maximum", None], np.tile([1.0, 0.0], len(kept["model_ids"]) // 2)
    )
    whole = np.full((1, 1, 4, 4), 255, np.uint8)
    assert cuts.mean_overlaps(whole, np.array([[[0, 0, 8, 16]]]), 16)[
        "area", None
    ] == pytest.approx(0.5), "ties: the larger mask"
    assert np.isnan(
        cuts.mean_overlaps(whole, np.zeros((1, 1, 4), int), 16)["threshold", 0.1]
    ).all()
