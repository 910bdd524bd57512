"""Where does it look: order, filters and contours of the gallery, and what it says of each image."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.path import Path

from helpers.cams import overlap
from helpers.report import explore
from helpers.report.explore.look import GRID_IMAGES, ORDERS, image_table, in_order, outlines
from helpers.scoring.looks import IMAGE_SPLITS, Looks, ModelLooks

SIZE, COUNT = 8, 30
RNG = np.random.default_rng(0)
MODELS = pd.DataFrame({"model_id": ["a@stop", "b@stop", "c@stop"], "architecture": "resnet18", "pretrained": True, "gap": [0.1, 0.2, 0.3]})
IMAGES = pd.DataFrame({"name": [f"n{(7 * place) % COUNT:02d}.jpeg" for place in range(COUNT)], "label": np.arange(COUNT) % 3})
IMAGES["split"] = np.repeat(IMAGE_SPLITS, [20, 10])


@pytest.fixture(autouse=True)
def a_reader(monkeypatch):
    monkeypatch.setenv(explore.SWITCH, "1")


def model_looks(seed):
    rng = np.random.default_rng(seed)
    maps, predicted = rng.random((COUNT, 4, 4), dtype=np.float32), rng.integers(0, 3, COUNT)
    iou, energy = (rng.random(COUNT).astype(np.float32) for _ in range(2))
    return ModelLooks(maps, predicted, rng.random(COUNT).astype(np.float32), iou, energy, np.eye(3, dtype=np.int64))


@pytest.fixture
def looks():
    seen = {name: model_looks(number) for number, name in enumerate(MODELS["model_id"])}
    boxes = torch.tensor([[[1, 1, 5, 6], [0, 0, 0, 0]]] * COUNT, dtype=torch.int16)
    names = ("cat", "dog", "<b>owl")
    return Looks(IMAGES, (b"jpeg",) * COUNT, boxes, SIZE, names, 0.3, tuple(seen), seen.__getitem__)


@pytest.fixture
def panel(looks):
    return explore.where_it_looks(MODELS, looks)


@pytest.mark.parametrize("size", [8, 32, 64])
def test_a_contour_runs_around_the_mask_that_is_scored(size):
    for threshold in (0.2, 0.5, 0.8):
        heat = RNG.random((4, 4), dtype=np.float32)
        mask = overlap.cam_masks(torch.from_numpy(heat)[None], size, threshold)[0].numpy()
        centres = np.stack(np.meshgrid(np.arange(size) + 0.5, np.arange(size) + 0.5), -1).reshape(-1, 2)
        inside = np.zeros(len(centres), dtype=bool)
        for part in filter(None, outlines(heat, size, threshold).split("M")):
            line = [tuple(map(float, point.split(","))) for point in part.strip().rstrip("Z").split(" ")]
            inside ^= Path(line).contains_points(centres)  # holes are paths within paths
        assert (inside.reshape(size, size) != mask).mean() < 0.04  # one decimal of a pixel; no more than a few lie on the line


def test_a_map_without_the_threshold_and_an_undefined_one_have_no_contour():
    assert outlines(np.full((2, 2), 0.1), 8, 0.5) == outlines(np.full((2, 2), np.nan), 8, 0.5) == ""


def test_the_table_of_images_by_hand(looks):
    found = image_table(looks, ["a@stop", "b@stop"], 0.3)
    a, b = looks.of_model("a@stop"), looks.of_model("b@stop")
    np.testing.assert_allclose(found["iou"], (a.iou + b.iou) / 2)
    np.testing.assert_allclose(found["energy"], (a.energy + b.energy) / 2)
    assert found["wrong"].tolist() == ((a.predicted != IMAGES["label"]) | (b.predicted != IMAGES["label"])).tolist()
    masks = [overlap.cam_masks(torch.from_numpy(seen.maps), SIZE, 0.3).numpy() for seen in (a, b)]
    expected = 1 - (masks[0] & masks[1]).sum((1, 2)) / (masks[0] | masks[1]).sum((1, 2))
    np.testing.assert_allclose(found["disagreement"], expected, rtol=1e-6)
    assert image_table(looks, ["a@stop"], 0.3)["disagreement"].isna().all()
    assert (image_table(looks, ["a@stop", "a@stop"], 0.3)["disagreement"] == 0).all()


def test_at_another_threshold_ious_are_computed_from_the_maps(looks):
    found, seen = image_table(looks, ["a@stop"], 0.6), looks.of_model("a@stop")
    expected, _ = overlap.iou_and_iou_b(torch.from_numpy(seen.maps), looks.boxes, SIZE, 0.6)
    np.testing.assert_allclose(found["iou"], expected)


@pytest.mark.parametrize("order", ORDERS)
def test_images_are_sorted_and_filtered(looks, order):
    found = image_table(looks, ["a@stop", "b@stop"], 0.3)
    rows = in_order(found, "training", [0, 2], True, order)
    kept = found[(found["split"] == "training") & found["label"].isin([0, 2]) & found["wrong"]]
    assert sorted(rows) == sorted(kept.index) and 0 < len(rows) < 20
    column, sign = ORDERS[order]
    values = found.loc[rows, column].tolist()
    assert values == sorted(values, reverse=sign < 0)
    assert len(in_order(found, "both", [], False, order)) == COUNT


def test_what_is_undefined_comes_last(looks):
    found = image_table(looks, ["a@stop"], 0.3)
    found.loc[3, "iou"] = np.nan
    for order in ("IoU, lowest first", "IoU, highest first"):
        assert in_order(found, "both", [], False, order)[-1] == 3


def gallery(panel):
    return panel.controls["at"]


def test_it_opens_with_the_models_of_smallest_and_largest_gap(panel):
    assert not panel.fault
    assert panel.numbers["chosen"] == ("a@stop", "c@stop")
    assert gallery(panel).count == 20
    assert gallery(panel).grid.count("<figure") == 20
    assert gallery(panel).detail.count("<figure") == 3  # the image, and a map of each


def test_the_right_key_shows_the_next_image(panel):
    for place in (1, 2, 1):
        gallery(panel).value = place
        image = panel.numbers["images"][place]
        assert f"<b>{IMAGES['name'][image]}</b>" in gallery(panel).detail
        assert f"{place + 1} of 20 images" in panel.reading.value


def test_the_grid_turns_its_page_with_the_image(panel):
    panel.controls["split"].value = "both"
    first = gallery(panel).grid
    gallery(panel).value = GRID_IMAGES
    assert gallery(panel).grid.count("<figure") == COUNT - GRID_IMAGES
    assert f"data-at='{GRID_IMAGES}'" in gallery(panel).grid and f"data-at='{GRID_IMAGES}'" not in first


CHANGES = {"split": "test", "classes": (1,), "order": "IoU, highest first", "wrong_only": True, "models": ("b@stop",)}


@pytest.mark.parametrize("name", CHANGES)
def test_another_order_or_filter_begins_with_its_first_image(panel, name):
    gallery(panel).value = 5
    before = gallery(panel).grid
    panel.controls[name].value = CHANGES[name]
    assert not panel.fault
    assert (gallery(panel).value, panel.numbers["at"]) == (0, 0)
    assert gallery(panel).grid != before


def test_the_threshold_moves_contours_and_keeps_the_image(panel):
    panel.controls["order"].value = "file name"
    gallery(panel).value = 5
    before = gallery(panel).detail
    panel.controls["threshold"].value = 0.7
    assert gallery(panel).value == 5
    assert gallery(panel).detail != before


def test_no_more_than_four_models_are_shown(looks):
    names = [f"m{number}" for number in range(6)]
    many = replace(looks, model_ids=tuple(names), of_model=lambda name: model_looks(int(name[1:])))
    models = pd.concat([MODELS.head(1)] * 6).assign(model_id=names)
    panel = explore.where_it_looks(models, many)
    panel.controls["models"].value = tuple(names)
    assert panel.numbers["chosen"] == tuple(names[:4])
    panel.controls["models"].value = ()
    assert panel.numbers["chosen"] == ("m0",)


def test_filters_that_leave_no_image_are_told(looks):
    right = looks.of_model("a@stop")._replace(predicted=IMAGES["label"].to_numpy())
    panel = explore.where_it_looks(MODELS, replace(looks, of_model=lambda name: right))
    panel.controls["wrong_only"].value = True
    assert not panel.fault
    assert "No image passes the filters." in panel.reading.value
    assert (gallery(panel).count, gallery(panel).grid, gallery(panel).detail) == (0, "", "")


def test_another_method_layer_and_class_move_the_large_maps_alone(looks):
    asked = []

    def map_by(*given):
        asked.append(given)
        return np.eye(4, dtype=np.float32)

    panel = explore.where_it_looks(MODELS, replace(looks, layers=("layer3", "layer4"), map_by=map_by))
    grid = gallery(panel).grid
    assert not asked  # as scored, nothing is computed anew
    image = panel.numbers["images"][0]
    for name, value in {"layer": "layer3", "label": 2, "method": "eigen_cam"}.items():
        panel.controls[name].value = value
    assert asked[-1] == ("c@stop", image, "eigen_cam", "layer3", 2)
    assert asked[0] == ("a@stop", image, "grad_cam", "layer3", -1)
    assert gallery(panel).grid == grid
    iou, _ = overlap.iou_and_iou_b(torch.eye(4)[None], looks.boxes[:1], SIZE, 0.3)
    assert f"IoU {float(iou):.3f}" in gallery(panel).detail


def test_a_report_without_networks_offers_no_other_maps(panel):
    assert not {"method", "layer", "label"} & set(panel.controls)


def test_a_model_that_cannot_be_read_says_so_and_the_others_go_on(looks):
    def of_model(name):
        if name == "b@stop":
            raise FileNotFoundError("gone.safetensors is missing")
        return looks.of_model(name)

    panel = explore.where_it_looks(MODELS, replace(looks, of_model=of_model))
    panel.controls["models"].value = ("b@stop",)
    assert "gone.safetensors is missing" in panel.reading.value
    panel.controls["models"].value = ("a@stop",)
    assert not panel.fault


def test_names_are_shown_as_text(looks):
    images = IMAGES.assign(name="<img src=x>")
    panel = explore.where_it_looks(MODELS, replace(looks, images=images))
    panel.controls["classes"].value = (2,)
    for html in (gallery(panel).grid, gallery(panel).detail):
        assert "<img" not in html and "<b>owl" not in html and "&lt;b&gt;owl" in html


def test_no_model_is_refused(looks):
    with pytest.raises(ValueError, match=r"^no model has a gap and a map, so there is none to look at"):
        explore.where_it_looks(MODELS.head(0), looks)
