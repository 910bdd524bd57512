"""Explorers: their values are those of tables and maps, and somebody can touch them."""

import base64
import json
from dataclasses import replace

import numpy as np
import pytest

from helpers.cams import localize
from helpers.cams.maps import from_integers
from helpers.files import STAGING
from helpers.report import explore
from helpers.report.widget import Explorer
from tests.report import made


@pytest.mark.parametrize(
    ("kernel", "staging", "shown"),
    [("", "", False), ("a.ipynb", "", True), ("a.ipynb", "x", False)],
)
def test_somebody_can_touch_it_where_jupyter_started_the_kernel_and_no_sweep(
    tmp_path, monkeypatch, kernel, staging, shown
):
    monkeypatch.setenv("JPY_SESSION_NAME", kernel)
    monkeypatch.setenv(STAGING, staging)
    content = explore.measures(made.measures(made.catalogue()), made.TITLES)
    explorer = explore.show(tmp_path, content)
    assert isinstance(explorer, Explorer) if shown else "make pages" in explorer.data
    written = json.loads((tmp_path / "explorers/measures.json").read_text())
    assert written == json.loads(json.dumps(content))


def test_measures_are_those_of_the_scores():
    models = made.measures(made.catalogue())
    measures = explore.measures(models, made.TITLES)
    assert [item["title"] for item in measures["measures"]] == [*made.TITLES.values()]
    for item, name in zip(measures["measures"], made.TITLES, strict=True):
        np.testing.assert_allclose(item["values"], models[name], rtol=1e-4)
    listed = measures["models"]
    gap, equal, test = measures["targets"]
    assert gap["values"] == equal["values"] == [item["gap"] for item in listed]
    np.testing.assert_allclose(gap["values"], 100 * models["gap"], rtol=1e-4)
    np.testing.assert_allclose(test["values"], 100 * models["test_accuracy"], rtol=1e-4)
    np.testing.assert_allclose(equal["given"], 100 * models["train_accuracy"], 1e-4)
    assert all({"network", "kind", "model"} <= {*item["card"]} for item in listed)
    axes = {axis["title"] for axis in measures["axes"]}
    assert axes >= {"networks", "learning rate", "pretrained", "augmentation"}
    assert measures["axes"][0]["start"] in measures["axes"][0]["of"]
    kinds = dict(measures["kinds"])  # with colours
    assert len(kinds) == len({*kinds.values()}) == 3
    assert {item["kind"] for item in listed} == kinds.keys()
    assert {item["architecture"] for item in listed} == {*measures["architectures"]}


def test_an_undefined_value_is_null_and_a_model_without_a_gap_is_left_out():
    models = made.measures(made.catalogue())
    models.loc[0, "iou"], models.loc[1, "gap"] = np.inf, np.nan
    shown = explore.measures(models, {"iou": "IoU", "absent": "Absent"})
    assert len(shown["models"]) == len(models) - 1 and len(shown["measures"]) == 1
    assert shown["measures"][0]["values"][0] is None
    json.dumps(shown, allow_nan=False)


def test_maps_of_the_page_are_the_recorded_bytes_by_gap():
    (kept, *others), models = made.maps_of_networks(), made.catalogue()
    without_last = replace(kept, model_ids=kept.model_ids[:-1])
    shown = explore.maps(models.drop(3), without_last, *others)
    assert len(shown["models"]) == len(models) - 2
    gaps = [model["gap"] for model in shown["models"]]
    assert gaps == sorted(gaps)
    row = kept.model_ids.index(shown["models"][5]["card"]["model"])
    assert base64.b64decode(shown["models"][5]["maps"]) == kept.maps[row].tobytes()
    assert [image["boxes"] for image in shown["images"]] == [[[0, 0, 8, 8]]] * 6
    json.dumps(shown, allow_nan=False)


def test_quantities_of_maps_are_the_measures_of_the_text():
    kept, images, *others = made.maps_of_networks()
    models = made.catalogue().sort_values("gap")
    shown = explore.maps(models, kept, images, *others)
    above, iou = shown["quantities"]
    place = shown["thresholds"].index(0.2)
    for row, name in enumerate(models["model_id"]):
        maps = from_integers(kept.maps[kept.model_ids.index(name)])
        table = localize.chance_scores(maps, images.boxes, made.SIZE, 0.2)
        less_chance = table["iou_above_shuffled"].mean()
        assert above["values"][place][row] == pytest.approx(less_chance, abs=1e-5)
        assert iou["values"][place][row] == pytest.approx(table["iou"].mean(), abs=1e-5)
