import re

import numpy as np
import pytest
import torch
from sklearn import metrics

from helpers import localization, segmentation


def masks(share, seed, count=6):
    return torch.rand(count, 9, 7, generator=torch.Generator().manual_seed(seed)) < share


def by_loop(predicted, true):
    """Intersection over union per kind, by sets of pixels."""
    ious = []
    for kind in (False, True):
        a, b = (set(map(tuple, np.argwhere(mask.numpy() == kind))) for mask in (predicted, true))
        ious.append(len(a & b) / len(a | b))
    return ious


def test_confusion_by_hand():
    predicted = torch.tensor([[[1, 1, 0], [0, 0, 0]]], dtype=torch.bool)
    true = torch.tensor([[[1, 0, 1], [1, 0, 0]]], dtype=torch.bool)
    matrix = segmentation.pixel_confusion(predicted, true)
    assert matrix.dtype == torch.int64
    assert matrix.tolist() == [[2, 1], [2, 1]]


def test_metrics_by_hand():
    # 10 pixels, 4 of them object: 3 found, 1 missed, 2 called wrongly.
    found = segmentation.mask_metrics(torch.tensor([[4, 2], [1, 3]]))
    expected = {
        "pixel_accuracy": 7 / 10,
        "mean_pixel_accuracy": (4 / 6 + 3 / 4) / 2,
        "iou_background": 4 / 7,
        "iou_object": 3 / 6,
        "mean_iou": (4 / 7 + 3 / 6) / 2,
        "frequency_weighted_iou": (6 * 4 / 7 + 4 * 3 / 6) / 10,
        "object_fraction": 0.4,
        "pixels": 10,
    }
    assert found == pytest.approx(expected)
    assert list(found) == list(expected)


@pytest.mark.parametrize(("called", "there"), [(0.3, 0.4), (0.9, 0.1), (0.05, 0.6)])
def test_metrics_equal_scikit_learn_on_flattened_pixels(called, there):
    predicted, true = masks(called, 0), masks(there, 1)
    flat = true.flatten().numpy(), predicted.flatten().numpy()
    matrix = segmentation.pixel_confusion(predicted, true)
    np.testing.assert_array_equal(matrix.numpy(), metrics.confusion_matrix(*flat))
    found = segmentation.mask_metrics(matrix)
    background, target = metrics.jaccard_score(*flat, average=None)
    assert found["pixel_accuracy"] == pytest.approx(metrics.accuracy_score(*flat))
    assert found["mean_pixel_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(*flat))
    assert (found["iou_background"], found["iou_object"]) == pytest.approx((background, target))
    assert found["mean_iou"] == pytest.approx(metrics.jaccard_score(*flat, average="macro"))
    assert found["frequency_weighted_iou"] == pytest.approx(metrics.jaccard_score(*flat, average="weighted"))
    assert [found["iou_background"], found["iou_object"]] == pytest.approx(by_loop(predicted, true))


def test_of_one_image_the_object_iou_is_that_of_the_masks():
    predicted, true = masks(0.5, 2, count=1), masks(0.4, 3, count=1)
    found = segmentation.mask_metrics(segmentation.pixel_confusion(predicted, true))
    # One ratio is rounded to float32.
    assert found["iou_object"] == pytest.approx(localization.mask_iou(predicted, true).item(), rel=1e-6)


def test_batches_add_up_to_the_whole():
    predicted, true = masks(0.3, 4, 10), masks(0.3, 5, 10)
    parts = sum(segmentation.pixel_confusion(predicted[rows], true[rows]) for rows in (slice(0, 4), slice(4, 9), slice(9, 10)))
    assert torch.equal(parts, segmentation.pixel_confusion(predicted, true))
    assert segmentation.pixel_confusion(predicted[:0], true[:0]).tolist() == [[0, 0], [0, 0]]


def test_turning_prediction_and_truth_over_turns_the_matrix():
    predicted, true = masks(0.3, 6), masks(0.6, 7)
    matrix = segmentation.pixel_confusion(predicted, true)
    assert torch.equal(segmentation.pixel_confusion(true, predicted), matrix.T)
    assert torch.equal(segmentation.pixel_confusion(~predicted, ~true), matrix.flip(0, 1))


def test_the_number_of_pixels_does_not_matter_and_may_be_large():
    small = segmentation.mask_metrics(torch.tensor([[4, 2], [1, 3]]))
    large = segmentation.mask_metrics(torch.tensor([[4, 2], [1, 3]]) * 10**12)
    assert large.pop("pixels") == 10**12 * small.pop("pixels")
    assert large == pytest.approx(small)


def test_perfect_and_opposite_masks():
    true = masks(0.4, 8)
    perfect = segmentation.mask_metrics(segmentation.pixel_confusion(true, true))
    opposite = segmentation.mask_metrics(segmentation.pixel_confusion(~true, true))
    for name in set(perfect) - {"pixels", "object_fraction"}:
        assert (perfect[name], opposite[name]) == (1, 0)


def test_without_any_object_what_is_undefined_is_nan():
    nothing = torch.zeros(2, 3, 3, dtype=torch.bool)
    found = segmentation.mask_metrics(segmentation.pixel_confusion(nothing, nothing))
    undefined = {name for name, value in found.items() if np.isnan(value)}
    assert undefined == {"mean_pixel_accuracy", "iou_object", "mean_iou"}
    assert found["pixel_accuracy"] == found["frequency_weighted_iou"] == 1


def test_an_object_called_where_none_is_scores_0_but_has_no_recall():
    found = segmentation.mask_metrics(torch.tensor([[3, 1], [0, 0]]))
    assert found["iou_object"] == 0
    assert found["mean_iou"] == pytest.approx(3 / 8)
    assert np.isnan(found["mean_pixel_accuracy"])
    assert found["frequency_weighted_iou"] == 3 / 4


def test_no_pixels_give_nan():
    found = segmentation.mask_metrics(torch.zeros(2, 2, dtype=torch.int64))
    assert found.pop("pixels") == 0
    assert np.isnan(list(found.values())).all()


def test_masks_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=re.escape("the masks have shapes (1, 2, 2) and (1, 3, 3); they must be equal")):
        segmentation.pixel_confusion(torch.zeros(1, 2, 2, dtype=torch.bool), torch.zeros(1, 3, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"^the masks are of torch.float32 and torch.bool; they must be of torch.bool$"):
        segmentation.pixel_confusion(torch.zeros(1, 2, 2), torch.zeros(1, 2, 2, dtype=torch.bool))


@pytest.mark.parametrize(("matrix", "given"), [([1, 2], "(2,): [1, 2]"), ([[1, -2], [3, 4]], "(2, 2): [[1, -2], [3, 4]]")])
def test_a_matrix_that_counts_nothing_is_refused(matrix, given):
    message = f"the pixel confusion must be (2, 2) counts of at least 0, got shape {given}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        segmentation.mask_metrics(torch.tensor(matrix))
