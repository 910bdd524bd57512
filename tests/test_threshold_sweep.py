import re

import numpy as np
import pytest
import torch

from helpers import localization, threshold_sweep

THRESHOLDS = [0.5, 0.1, 0.01, 0.9, 0.1, 1 / 3, 0.3, 0.7, 1e-9, 0.999999999]


def random_cases(size, dtype=torch.float32, count=24, seed=0):
    """Maps and boxes with every corner case: no object, no map, NaN, infinity, a map and boxes up to the edge, overlapping boxes."""
    rng = np.random.default_rng(seed)
    maps = torch.as_tensor(rng.random((count, 7, 5)) ** 3).to(dtype)
    corners = np.sort(rng.integers(0, size + 1, (count, 3, 2, 2)), axis=2).reshape(count, 3, 4)
    corners[rng.random((count, 3)) < 0.3] = 0
    boxes = torch.as_tensor(corners).to(torch.int16)
    maps[0], maps[1, 2, 2], maps[2, 0, 0], maps[3] = 0, torch.nan, torch.inf, 0.5
    boxes[0], boxes[4], boxes[5] = 0, 0, torch.tensor([0, 0, size, size])
    boxes[6, 0] = torch.tensor([-3, -3, size + 5, 2])
    return maps, boxes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [8, 33, 64])
def test_every_row_is_bit_for_bit_that_of_one_threshold(size, dtype):
    maps, boxes = random_cases(size, dtype)
    swept = threshold_sweep.overlaps_at_thresholds(maps, boxes, size, THRESHOLDS)
    for row, threshold in enumerate(THRESHOLDS):
        single = localization.iou_and_iou_b(maps, boxes, size, threshold)
        for many, one in zip(swept, single, strict=True):
            assert many.dtype == one.dtype
            assert torch.equal(many[row].view(torch.int32), one.view(torch.int32)), threshold
    assert swept[0].shape == swept[1].shape == (len(THRESHOLDS), 24)
    # There was something to compare, and the undefined is undefined at every threshold.
    assert len(swept[0][:, 7:].unique()) > 50
    assert swept[0][:, 1:3].isnan().all()
    assert swept[1][:, :3].isnan().all()


@pytest.mark.parametrize("spread", [1, 3])
def test_thresholds_as_dense_as_can_be_and_values_beyond_the_range_change_nothing(spread):
    """Many thresholds between two values, some equal; maps from -1 to 2 although only [0, 1) is promised."""
    maps, boxes = random_cases(16, seed=5)
    maps = maps * spread - spread // 3
    thresholds = np.random.default_rng(2).random(300).round(3).clip(0.001, 0.999).tolist()
    swept = threshold_sweep.overlaps_at_thresholds(maps, boxes, 16, thresholds)
    for row, threshold in enumerate(thresholds):
        for many, one in zip(swept, localization.iou_and_iou_b(maps, boxes, 16, threshold), strict=True):
            assert torch.equal(many[row].nan_to_num(-1), one.nan_to_num(-1)), threshold
    assert len(set(thresholds)) < 300


def test_a_value_that_equals_a_threshold_reaches_it():
    maps = torch.tensor([[[0.25, 0.5], [0.75, 0.1]]])
    boxes = torch.tensor([[[0, 0, 1, 1]]])
    iou, iou_b = threshold_sweep.overlaps_at_thresholds(maps, boxes, 2, [0.1, 0.25, 0.5, 0.75, 0.76])
    # Pixels at or above: 4, 3, 2, 1, 0; the box is the pixel with 0.25. Two pixels on a diagonal have a rectangle of four.
    assert iou[:, 0].tolist() == pytest.approx([1 / 4, 1 / 3, 0, 0, 0])
    assert iou_b[:, 0].tolist() == pytest.approx([1 / 4, 1 / 4, 1 / 4, 0, 0])


def test_the_order_of_thresholds_is_kept():
    maps, boxes = random_cases(16)
    forward = threshold_sweep.overlaps_at_thresholds(maps, boxes, 16, THRESHOLDS)
    backward = threshold_sweep.overlaps_at_thresholds(maps, boxes, 16, THRESHOLDS[::-1])
    for one, other in zip(forward, backward, strict=True):
        assert torch.equal(one.nan_to_num(-1), other.flip(0).nan_to_num(-1))


def test_a_map_equal_to_the_box_scores_one_at_every_threshold():
    # Maps of the images' own size are not changed by the enlargement.
    boxes = torch.tensor([[[2, 1, 6, 7], [0, 0, 0, 0]]])
    maps = localization.box_masks(boxes, 8).float() * 0.99
    for overlap in threshold_sweep.overlaps_at_thresholds(maps, boxes, 8, [0.01, 0.5, 0.98]):
        assert overlap.eq(1).all()


def test_counts_by_loop():
    """Pixel by pixel, without the helpers of localization but for the enlargement."""
    maps, boxes = random_cases(12, count=10, seed=3)
    iou, iou_b = threshold_sweep.overlaps_at_thresholds(maps, boxes, 12, [0.05, 0.4])
    values = localization.upsample(maps, 12).numpy()
    for image in range(7, 10):
        inside = {(y, x) for x0, y0, x1, y1 in boxes[image].tolist() for y in range(y0, y1) for x in range(x0, x1)}
        for row, threshold in enumerate([0.05, 0.4]):
            looked = {(y, x) for y in range(12) for x in range(12) if values[image, y, x] >= np.float32(threshold)}
            ys, xs = zip(*looked, strict=True)
            rectangle = {(y, x) for y in range(min(ys), max(ys) + 1) for x in range(min(xs), max(xs) + 1)}
            assert iou[row, image].item() == pytest.approx(len(looked & inside) / len(looked | inside))
            assert iou_b[row, image].item() == pytest.approx(len(rectangle & inside) / len(rectangle | inside))


def test_no_image_gives_no_column():
    iou, iou_b = threshold_sweep.overlaps_at_thresholds(torch.zeros(0, 2, 2), torch.zeros(0, 1, 4), 4, [0.1, 0.2])
    assert iou.shape == iou_b.shape == (2, 0)


@pytest.mark.parametrize("threshold", [0, 1, -0.1, float("nan")])
def test_thresholds_outside_are_refused_as_by_the_masks(threshold):
    message = f"threshold {threshold} must be between 0 and 1, both excluded (the paper takes 0.1)"
    for refuse in (lambda: localization.cam_masks(torch.zeros(1, 2, 2), 4, threshold), lambda: sweep_of([0.1, threshold])):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            refuse()


def sweep_of(thresholds, images=1):
    return threshold_sweep.overlaps_at_thresholds(torch.zeros(1, 2, 2), torch.zeros(images, 1, 4), 4, thresholds)


def test_no_threshold_and_unequal_counts_are_refused():
    with pytest.raises(ValueError, match=r"^thresholds is empty; give at least one, between 0 and 1 \(the paper takes 0.1\)$"):
        sweep_of([])
    with pytest.raises(ValueError, match=r"^1 maps do not fit the annotations of 3 images; there must be one map for each image$"):
        sweep_of([0.1], images=3)


def test_a_mask_of_any_shape_takes_the_place_of_boxes():
    maps, boxes = random_cases(16)
    masks = localization.box_masks(boxes, 16)
    by_boxes = threshold_sweep.overlaps_at_thresholds(maps, boxes, 16, THRESHOLDS)
    by_masks = threshold_sweep.overlaps(maps, threshold_sweep.annotated(masks), THRESHOLDS)
    for one, other in zip(by_boxes, by_masks, strict=True):
        assert torch.equal(one.nan_to_num(-1), other.nan_to_num(-1))
    ring = torch.zeros(1, 16, 16, dtype=torch.bool)
    ring[0, 2:14, 2:14], ring[0, 5:11, 5:11] = True, False  # no union of one box
    attention = localization.cam_masks(maps[10:11], 16, 0.3)
    iou, iou_b = threshold_sweep.overlaps(maps[10:11], threshold_sweep.annotated(ring), [0.3])
    assert iou[0].tolist() == pytest.approx(localization.mask_iou(attention, ring).tolist())
    assert iou_b[0].tolist() == pytest.approx(localization.mask_iou(localization.filled_rectangles(attention), ring).tolist())


def test_the_maps_are_enlarged_once_whatever_the_number_of_thresholds(monkeypatch):
    calls = []
    enlarge = localization.upsample
    monkeypatch.setattr(localization, "upsample", lambda *given: calls.append(len(given[0])) or enlarge(*given))
    maps, boxes = random_cases(16)
    threshold_sweep.overlaps_at_thresholds(maps, boxes, 16, [number / 100 for number in range(1, 91)])
    assert sum(calls) == len(maps)
