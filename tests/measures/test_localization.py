"""Measures of where a network looks, from a table of overlaps made by hand."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, jaccard_score

from helpers.cams import overlap
from helpers.measures import localization
from helpers.measures.evidence import MeasureSettings, score
from helpers.measures.registry import MEASURES
from helpers.networks import resnet


@pytest.fixture
def case():
    """Random 6 x 6 maps on 24 x 24 images with one box each, and their masks."""
    rng = np.random.default_rng(3)
    maps = torch.as_tensor(rng.random((30, 6, 6)))
    corners = np.sort(rng.integers(0, 25, (30, 1, 2, 2)), axis=2).reshape(30, 1, 4)
    images = SimpleNamespace(
        images=torch.zeros(30, 3, 24, 24), boxes=torch.as_tensor(corners), labels=torch.as_tensor(rng.integers(0, 3, 30))
    )
    masks = overlap.cam_masks(maps, 24, 0.6), overlap.box_masks(images.boxes, 24)
    return overlap.image_scores(maps, images.boxes, 24, 0.6, batch_size=7), images, *masks


def test_the_mean_is_over_the_images_where_the_overlap_is_defined():
    table = pd.DataFrame({"iou": [0.5, np.nan, 0.1], "iou_b": [0.2, np.nan, 0.4], "empty_map": [False, True, True]})
    assert localization.iou(table) == pytest.approx(0.3)
    assert localization.iou_b(table) == pytest.approx(0.3)
    assert (localization.images_scored(table), localization.images_without_overlap(table), localization.images_with_empty_map(table)) == (
        3,
        1,
        2,
    )
    assert np.isnan(localization.iou(table.iloc[[1]]))


def test_the_metrics_of_the_masks_equal_scikit_learns_on_all_pixels(case):
    overlaps, images, attention, annotation = case
    found = localization.mask_agreement(overlaps, images)
    true, predicted = annotation.flatten().numpy(), attention.flatten().numpy()
    assert found["pixel accuracy"] == pytest.approx((true == predicted).mean())
    assert found["mean pixel accuracy"] == pytest.approx(balanced_accuracy_score(true, predicted))
    assert found["mean IoU"] == pytest.approx(jaccard_score(true, predicted, average="macro"))
    assert found["frequency-weighted IoU"] == pytest.approx(jaccard_score(true, predicted, average="weighted"))
    assert found["IoU of the object"] == pytest.approx(jaccard_score(true, predicted))


def test_a_map_on_its_box_is_found_and_the_wrong_class_is_no_top_1():
    overlaps = pd.DataFrame({"x0": [2, 0], "y0": [2, 0], "x1": [6, 4], "y1": [6, 4]})
    images = SimpleNamespace(boxes=torch.tensor([[[2, 2, 6, 6]], [[0, 0, 4, 8]]]), labels=torch.tensor([0, 1]))
    logits = torch.tensor([[2.0, 0.0], [3.0, 0.0]])
    assert localization.box_found(overlaps, images, logits) == pytest.approx({"GT-known": 1.0, "top-1": 0.5, "box IoU": 0.75})
    # Class 0: the wrong image is the more confident, so precision is 1/2 at full recall. Class 1: its box is never found.
    assert localization.box_average_precision(overlaps, images, logits) == pytest.approx((0.5 + 0) / 2)


def test_the_family_is_computed_from_one_pass(tiny_given):
    items = [item for item in MEASURES.values() if item.family == "localization"]
    network = resnet.build("resnet18", 3, stem="small", width=0.125, seed=0)  # maps of 2 x 2
    scores = score(items, tiny_given | {"network": network}, MeasureSettings(cam_threshold=0.3))
    assert np.isfinite(scores["value"]).all()
    values = scores.set_index("measure")["value"]
    assert 0 < values["iou"] < 1
    assert values["images_scored"] == 36


def test_what_chance_has_is_taken_off_each_image_before_the_mean():
    table = pd.DataFrame(
        {
            "iou": [0.5, 0.3, np.nan],
            "iou_b": [0.1, 0.3, np.nan],
            "iou_shuffled": [0.4, 0.1, np.nan],
            "energy": [0.6, 0.5, np.nan],
            "box_area": [0.2, 0.3, 0.1],
            "mask_area": [0.9, 0.8, 0.1],
            "pointing": [1.0, 0.0, np.nan],
            "pointing_shuffled": [0.5, 0.25, np.nan],
            "area_matched_iou": [0.2, 0.4, np.nan],
            "average_precision": [0.3, 0.5, np.nan],
        }
    )
    wanted = {"iou_above_shuffled": 0.15, "energy_in_box": 0.3, "pointing_game": 0.125, "area_matched_iou": 0.3}
    wanted |= {"pixel_average_precision": 0.15, "whole_image_floor": 0.2, "mask_area": 0.8}
    for name, value in wanted.items():
        assert getattr(localization, name)(table) == pytest.approx(value), name
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    boxes = torch.tensor([[[0, 0, 4, 4]], [[0, 0, 4, 4]], [[0, 0, 0, 0]]])  # the last image has none
    images = SimpleNamespace(boxes=boxes, labels=torch.tensor([0, 0, 0]))
    values = localization.localization_values(table.assign(x0=0, y0=0, x1=[4, 1, 4], y1=4), images, logits)
    assert values.pop("correct").tolist() == [True, False, True]
    assert values["box_found"].tolist() == pytest.approx([1, 0, np.nan], nan_ok=True)
    for name, value in wanted.items():
        if name not in ("whole_image_floor", "mask_area"):
            assert np.nanmean(values[name]) == pytest.approx(value, abs=1e-3), name
    assert {column.dtype.name for column in values.values()} == {"float16"}
