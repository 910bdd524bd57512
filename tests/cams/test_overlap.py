"""IoU and IoU-B of maps with boxes: by hand, and against plain loops over pixels, at one threshold and at many."""

import numpy as np
import pytest
import torch

from helpers.cams.localize import chance_scores, cut, iou_at, upsample
from helpers.data.boxes import box_masks

THRESHOLDS = [0.5, 0.1, 0.01, 0.9, 0.1, 1 / 3, 0.3, 0.7, 1e-9, 0.999999999]


def random_cases(size, count=24, seed=0):
    """Maps and boxes with every corner case: no object, no map, NaN, infinity, a map and boxes up to the edge, overlapping boxes."""
    rng = np.random.default_rng(seed)
    maps = torch.as_tensor(rng.random((count, 7, 5)) ** 3).float()
    corners = np.sort(rng.integers(0, size + 1, (count, 3, 2, 2)), axis=2).reshape(
        count, 3, 4
    )
    corners[rng.random((count, 3)) < 0.3] = 0
    boxes = torch.as_tensor(corners).to(torch.int16)
    maps[0], maps[1, 2, 2], maps[2, 0, 0], maps[3] = 0, torch.nan, torch.inf, 0.5
    boxes[0], boxes[4], boxes[5] = 0, 0, torch.tensor([0, 0, size, size])
    boxes[6, 0] = torch.tensor([-3, -3, size + 5, 2])
    return maps, boxes


def by_loop(values, boxes, threshold):
    """IoU and IoU-B of one enlarged map by the definitions, pixel by pixel."""
    size, looked = len(values), values >= threshold
    inside, rectangle = np.zeros((size, size), bool), np.zeros((size, size), bool)
    for x0, y0, x1, y1 in np.clip(boxes, 0, size):
        inside[y0:y1, x0:x1] = True
    if looked.any():
        rows, columns = np.nonzero(looked)
        rectangle[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1] = True
    unions = [np.logical_or(mask, inside).sum() for mask in (looked, rectangle)]
    return [
        (mask & inside).sum() / union if union else np.nan
        for mask, union in zip((looked, rectangle), unions, strict=True)
    ]


def test_upsampling_has_half_pixel_centres():
    # From 2 to 4 pixels: the centres lie at -1/4, 1/4, 3/4 and 5/4 of the old pixels, the ends are held.
    assert upsample(torch.tensor([[[0.0, 1.0], [0.0, 1.0]]]), 4)[0, 0].tolist() == [
        0,
        0.25,
        0.75,
        1,
    ]


@pytest.mark.parametrize("size", [8, 33, 64])
def test_every_threshold_equals_a_plain_loop(size):
    maps, boxes = random_cases(size)
    values, found = (
        upsample(maps, size).numpy(),
        iou_at(maps, box_masks(boxes, size), THRESHOLDS),
    )
    for row, threshold in enumerate(THRESHOLDS):
        expected = np.array(
            [
                by_loop(one, box, np.float32(threshold))
                for one, box in zip(values, boxes.numpy(), strict=True)
            ]
        )
        expected[1:3] = np.nan  # maps that are not finite
        expected[~box_masks(boxes, size).flatten(1).any(1)] = np.nan  # without a box
        assert np.isnan(expected[:3]).all()
        # The ratio of two counts is rounded to float32.
        np.testing.assert_allclose(
            chance_scores(maps, boxes, size, threshold)[["iou", "iou_b"]],
            expected,
            rtol=1e-6,
        )
        np.testing.assert_allclose(found[row], expected[:, 0], rtol=1e-6)


def test_a_value_that_equals_a_threshold_reaches_it():
    maps = torch.tensor([[[0.25, 0.5], [0.75, 0.1]]])
    boxes = torch.tensor([[[0, 0, 1, 1]]])
    assert (upsample(maps, 2) >= 0.5).int().tolist() == [[[0, 1], [1, 0]]]
    # Pixels at or above: 4, 3, 2, 1, 0; the box is the pixel with 0.25.
    iou = iou_at(maps, box_masks(boxes, 2), [0.1, 0.25, 0.5, 0.75, 0.76])
    assert iou[:, 0].tolist() == pytest.approx([1 / 4, 1 / 3, 0, 0, 0])


@pytest.mark.parametrize("threshold", [0.05, 0.4, 0.999])
def test_by_the_quantile_each_mask_holds_the_same_share_of_the_highest_pixels(
    threshold,
):
    maps = torch.rand(3, 20, 20, generator=torch.Generator().manual_seed(0)) ** 4
    masks = cut(maps, threshold, "quantile")
    share = max(1, round((1 - threshold) * 400))
    for values, mask in zip(maps, masks, strict=True):
        highest = sorted(values.flatten().tolist())[-share:]
        assert sorted(values[mask].tolist()) == highest
    for scale in (0.5, 0.001):
        assert torch.equal(cut(scale * maps, threshold, "quantile"), masks)
    assert not torch.equal(cut(0.5 * maps, threshold), cut(maps, threshold))


def test_pixels_of_zero_are_in_no_mask_by_the_quantile_and_equal_pixels_all_are():
    maps = torch.tensor([[[0.0, 0.0], [0.0, 1.0]], [[0.5, 0.5], [0.5, 1.0]]])
    masks = cut(maps, 0.25, "quantile").int().tolist()
    assert masks == [[[0, 0], [0, 1]], [[1, 1], [1, 1]]]
    assert not cut(torch.zeros(1, 2, 2), 0.25, "quantile").any()
    with pytest.raises(ValueError, match=r"'area'.* one of .'maximum', 'quantile'"):
        cut(maps, 0.25, "area")
