import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from helpers.cams import closed_form, overlap
from helpers.cams import overlap as cams_overlap
from helpers.cams.overlap import (
    annotated,
    box_masks,
    cam_masks,
    iou_and_iou_b,
    mask_iou,
    overlaps,
    upsample,
)
from helpers.measures.passes import forward_pass


class Looker(nn.Module):
    """Shows the image itself as its maps: bright red speaks for class 0, bright green for class 1."""

    def __init__(self):
        super().__init__()
        self.maps = nn.ReLU()
        self.fc = nn.Linear(3, 2, bias=False)
        self.fc.weight.data = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])

    def forward(self, images):
        return self.fc(self.maps(images).mean((2, 3)))


def filled_rectangles(masks):
    return overlap._filled(overlap.bounding_rectangles(masks), masks)


def scale_pixels(images):
    return images.float() / 255


def image_set(images, labels, boxes):
    labels = torch.tensor(labels)
    return type("Images", (SimpleNamespace,), {"__len__": lambda self: len(self.labels)})(images=images, labels=labels, boxes=boxes)


@pytest.fixture
def seen():
    """Four 8 x 8 images: red on its box, green beside its box, red without a box, and black with a box."""
    images = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
    images[0, 0, 2:6, 2:6] = 255
    images[1, 1, 0:4, 0:4] = 255
    images[2, 0, 0:2, 0:2] = 255
    boxes = torch.zeros(4, 2, 4, dtype=torch.int16)
    boxes[0, 0] = torch.tensor([2, 2, 6, 6])
    boxes[1, 0] = torch.tensor([4, 4, 8, 8])
    boxes[3, 0] = torch.tensor([0, 0, 8, 8])
    return image_set(images, [0, 0, 0, 1], boxes)


def random_boxes(rng, count, most, size):
    corners = np.sort(rng.integers(0, size + 1, (count, most, 2, 2)), axis=2)
    boxes = corners.reshape(count, most, 4)
    boxes[rng.random((count, most)) < 0.3] = 0
    return boxes


def bilinear(grid, size):
    """Half-pixel centres, clamped at the edges, in plain NumPy."""
    side = grid.shape[0]
    at = np.clip((np.arange(size) + 0.5) * side / size - 0.5, 0, None)
    low = np.minimum(at.astype(int), side - 1)
    high, share = np.minimum(low + 1, side - 1), at - low
    rows = grid[low] * (1 - share)[:, None] + grid[high] * share[:, None]
    return rows[:, low] * (1 - share) + rows[:, high] * share


def by_loop(grid, boxes, size, threshold):
    """IoU and IoU-B of one image by the definitions, pixel by pixel."""
    looked = bilinear(grid, size) >= threshold
    annotated = np.zeros((size, size), bool)
    for x0, y0, x1, y1 in boxes:
        annotated[y0:y1, x0:x1] = True
    rectangle = np.zeros_like(looked)
    if looked.any():
        rows, columns = np.nonzero(looked)
        rectangle[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1] = True
    values = []
    for mask in (looked, rectangle):
        union = np.logical_or(mask, annotated).sum()
        values.append(np.logical_and(mask, annotated).sum() / union if union else np.nan)
    return values


def test_box_mask_by_hand():
    masks = overlap.box_masks(torch.tensor([[[1, 0, 3, 2], [0, 0, 0, 0], [2, 1, 4, 2]]], dtype=torch.int16), 4)
    assert masks.int().tolist() == [[[0, 1, 1, 0], [0, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]]]


def test_boxes_are_cut_at_the_edge_and_all_padding_is_empty():
    assert overlap.box_masks(torch.tensor([[[-5, -5, 99, 99]]]), 3).all()
    assert not overlap.box_masks(torch.zeros(2, 3, 4, dtype=torch.int16), 3).any()
    assert overlap.box_masks(torch.zeros(2, 0, 4, dtype=torch.int16), 3).shape == (2, 3, 3)


def test_the_order_of_boxes_does_not_matter():
    boxes = torch.as_tensor(random_boxes(np.random.default_rng(0), 20, 5, 16))
    assert torch.equal(overlap.box_masks(boxes, 16), overlap.box_masks(boxes.flip(1), 16))


def test_upsampling_by_hand():
    # From 2 to 4 pixels: the centres lie at -1/4, 1/4, 3/4 and 5/4 of the old pixels, the ends are held.
    row = overlap.upsample(torch.tensor([[[0.0, 1.0], [0.0, 1.0]]]), 4)[0, 0]
    assert row.tolist() == [0, 0.25, 0.75, 1]


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [8, 64, 96, 224])
@pytest.mark.parametrize("cells", [(1, 1), (4, 4), (7, 7), (3, 8), (16, 16)])
def test_upsampling_is_that_of_torch_and_keeps_to_what_it_was_given(cells, size, kind):
    maps = torch.rand(3, *cells, dtype=kind, generator=torch.Generator().manual_seed(0))
    enlarged = overlap.upsample(maps, size)
    expected = nn.functional.interpolate(maps.double().unsqueeze(1), size=(size, size), mode="bilinear").squeeze(1)
    assert enlarged.dtype == kind
    last = torch.finfo(kind).eps + 2 * max(cells) * torch.finfo(torch.float64).eps  # of a value, and of a place among the cells, twice
    torch.testing.assert_close(enlarged.double(), expected, rtol=0, atol=2 * last)
    assert enlarged.min() >= maps.min() and enlarged.max() <= maps.max()
    assert torch.equal(overlap.upsample(torch.full_like(maps, 0.1), size).unique(), maps.new_tensor([0.1]))
    assert len(overlap.upsample(maps[:0], size)) == 0


@pytest.mark.parametrize("size", [30, 64, 224])
def test_an_enlarged_map_does_not_depend_on_the_maps_beside_it(size):
    maps = torch.rand(70, 7, 8, generator=torch.Generator().manual_seed(0))
    single = torch.cat([overlap.upsample(each, size) for each in maps.split(1)])
    order = torch.randperm(70, generator=torch.Generator().manual_seed(1))
    for count in (2, 3, 5, 16, 33, 70):
        assert torch.equal(overlap.upsample(maps[order[:count]], size), single[order[:count]])


def test_the_threshold_is_reached_by_equality():
    maps = torch.tensor([[[0.0, 0.5], [0.25, 0.75]]])
    assert overlap.cam_masks(maps, 2, 0.5).int().tolist() == [[[0, 1], [0, 1]]]


@pytest.mark.parametrize("threshold", [0, 1, -0.1])
def test_thresholds_outside_are_refused(threshold):
    message = f"threshold {threshold} must be between 0 and 1, both excluded (the paper takes 0.1)"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        overlap.cam_masks(torch.zeros(1, 2, 2), 4, threshold)


def test_rectangle_by_hand_spans_all_components():
    masks = torch.zeros(3, 5, 6, dtype=torch.bool)
    masks[0, 1, 4] = masks[0, 3, 2] = True
    masks[2] = True
    assert overlap.bounding_rectangles(masks).tolist() == [[2, 1, 5, 4], [0, 0, 0, 0], [0, 0, 6, 5]]
    filled = filled_rectangles(masks)
    assert filled.sum((1, 2)).tolist() == [9, 0, 30]
    assert filled[0, 1:4, 2:5].all()


def test_filling_keeps_a_rectangle_and_contains_the_mask():
    rng = np.random.default_rng(0)
    boxes = torch.as_tensor(random_boxes(rng, 30, 1, 12))
    masks = overlap.box_masks(boxes, 12)
    assert torch.equal(filled_rectangles(masks), masks)
    noise = torch.as_tensor(rng.random((30, 12, 12)) < 0.03)
    assert not (noise & ~filled_rectangles(noise)).any()


def test_iou_by_hand():
    a = overlap.box_masks(torch.tensor([[[0, 0, 2, 2]]]), 4)
    b = overlap.box_masks(torch.tensor([[[1, 0, 3, 2]]]), 4)
    empty, full = torch.zeros_like(a), torch.ones_like(a)
    assert overlap.mask_iou(a, b).item() == pytest.approx(2 / 6)
    assert overlap.mask_iou(a, a).item() == 1
    assert overlap.mask_iou(a, full).item() == 4 / 16
    assert overlap.mask_iou(empty, a).item() == 0
    assert overlap.mask_iou(empty, empty).isnan().item()


def test_iou_is_symmetric():
    a, b = torch.rand(2, 9, 6, 6, generator=torch.Generator().manual_seed(0)) < 0.4
    assert torch.equal(overlap.mask_iou(a, b), overlap.mask_iou(b, a))


def test_masks_of_two_shapes_are_refused():
    with pytest.raises(ValueError, match=re.escape("the masks have shapes (1, 2, 2) and (1, 3, 3); they must be equal")):
        overlap.mask_iou(torch.zeros(1, 2, 2, dtype=torch.bool), torch.zeros(1, 3, 3, dtype=torch.bool))


@pytest.mark.parametrize(("side", "size", "threshold"), [(7, 56, 0.1), (4, 30, 0.5), (2, 64, 0.3), (8, 8, 0.2)])
def test_iou_and_iou_b_equal_a_plain_loop(side, size, threshold):
    rng = np.random.default_rng(side)
    grids = rng.random((40, side, side)) ** 4
    grids[:3] = 0
    boxes = random_boxes(rng, 40, 3, size)
    boxes[2:4] = 0
    expected = np.array([by_loop(grid, box, size, threshold) for grid, box in zip(grids, boxes, strict=True)])
    found = overlap.iou_and_iou_b(torch.as_tensor(grids), torch.as_tensor(boxes), size, threshold)
    assert np.isnan(expected[2]).all()
    # The ratio of two counts is rounded to float32.
    np.testing.assert_allclose(torch.stack(found, 1).numpy(), expected, rtol=1e-6)
    assert (found[0] > found[1]).any()  # no order between the two is promised
    assert (found[0] < found[1]).any()


def test_a_box_over_the_whole_image_gives_the_area_of_the_map():
    maps = torch.rand(6, 5, 5, generator=torch.Generator().manual_seed(0))
    iou, _ = overlap.iou_and_iou_b(maps, torch.tensor([[[0, 0, 20, 20]]]).expand(6, 1, 4), 20, 0.6)
    torch.testing.assert_close(iou, overlap.cam_masks(maps, 20, 0.6).float().mean((1, 2)))


def test_turning_image_and_boxes_over_changes_nothing():
    rng = np.random.default_rng(3)
    maps, boxes = torch.as_tensor(rng.random((10, 4, 4))), torch.as_tensor(random_boxes(rng, 10, 2, 16))
    x0, y0, x1, y1 = boxes.unbind(-1)
    turned = torch.stack([16 - x1, y0, 16 - x0, y1], -1)
    turned[(boxes == 0).all(-1)] = 0
    for before, after in zip(overlap.iou_and_iou_b(maps, boxes, 16), overlap.iou_and_iou_b(maps.flip(2), turned, 16), strict=True):
        assert torch.equal(before.nan_to_num(-1), after.nan_to_num(-1))


def test_an_empty_map_scores_0_and_one_that_is_not_finite_nothing():
    maps = torch.zeros(2, 3, 3)
    maps[1, 0, 0] = torch.nan
    iou, iou_b = overlap.iou_and_iou_b(maps, torch.tensor([[[0, 0, 4, 4]]]).expand(2, 1, 4), 9)
    assert iou[0] == iou_b[0] == 0
    assert iou[1].isnan()
    assert iou_b[1].isnan()


def look(model, given, threshold=0.1, method="grad_cam", batch_size=256):
    """One pass, and the overlap of its maps with the boxes."""
    example = scale_pixels(given.images[:1])
    seen = forward_pass(model, given, scale_pixels, "cpu", example, method, batch_size)
    overlaps = overlap.image_scores(seen.maps, given.boxes, given.images.shape[-1], threshold, batch_size=batch_size)
    return seen, overlaps


def test_images_are_scored_by_hand(seen):
    # A black image has equal logits, and the first class is taken.
    outputs, table = look(Looker().eval(), seen)
    assert outputs.logits.argmax(1).tolist() == [0, 1, 0, 0]
    expected = pd.DataFrame(
        {
            "iou": [1.0, 0.0, 0.0, 0.0],
            "iou_b": [1.0, 0.0, 0.0, 0.0],
            "empty_map": [False, False, False, True],
            "empty_box": [False, False, True, False],
            "map_pixels": [16, 16, 4, 0],
            "box_pixels": [16, 16, 0, 64],
            "common_pixels": [16, 0, 0, 0],
            "x0": [2, 0, 0, 0],
            "y0": [2, 0, 0, 0],
            "x1": [6, 4, 2, 0],
            "y1": [6, 4, 2, 0],
        }
    )
    pd.testing.assert_frame_equal(table, expected)


def test_where_neither_looks_nor_box_the_overlap_is_undefined(seen):
    seen.boxes[3] = 0
    assert look(Looker().eval(), seen)[1]["iou"].isna().tolist() == [False, False, False, True]


@pytest.mark.parametrize("method", closed_form.CLOSED_FORM_METHODS)
def test_the_size_of_the_batch_does_not_matter_and_the_parts_agree(method):
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)).eval()
    pixels = torch.as_tensor(rng.integers(0, 256, (23, 3, 32, 32), dtype=np.uint8))
    boxes = torch.as_tensor(random_boxes(rng, 23, 2, 32).astype(np.int16))
    given = image_set(pixels, rng.integers(0, 3, 23).tolist(), boxes)
    outputs, whole = look(model, given, 0.4, method)
    _, parts = look(model, given, 0.4, method, batch_size=5)
    with torch.no_grad():
        maps = model[1](model[0](scale_pixels(pixels)))
        predicted = model(scale_pixels(pixels)).argmax(1)
        heat = closed_form.normalise_maps(closed_form.closed_form_cam(method, maps, model[4].weight, predicted))
    iou, _ = overlap.iou_and_iou_b(heat, boxes, 32, 0.4)
    assert outputs.logits.argmax(1).tolist() == predicted.tolist()
    # Another batch or memory order rounds differently: a pixel on the very threshold may flip, one of some hundred.
    pd.testing.assert_frame_equal(whole[["iou", "iou_b"]], parts[["iou", "iou_b"]], rtol=0, atol=0.01)
    np.testing.assert_allclose(whole["iou"], iou.numpy(), rtol=0, atol=0.01)


def test_no_maps_or_another_number_of_boxes_are_refused(seen):
    with pytest.raises(ValueError, match=r"^0 maps and boxes of 0 images cannot be scored"):
        overlap.image_scores(torch.zeros(0, 2, 2), seen.boxes[:0], 8)
    with pytest.raises(ValueError, match=r"^3 maps and boxes of 4 images cannot be scored"):
        overlap.image_scores(torch.zeros(3, 2, 2), seen.boxes, 8)


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


def overlaps_at_thresholds(maps, boxes, size, thresholds):
    return overlaps(maps, annotated(box_masks(boxes, size)), thresholds)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [8, 33, 64])
def test_every_row_is_bit_for_bit_that_of_one_threshold(size, dtype):
    maps, boxes = random_cases(size, dtype)
    swept = overlaps_at_thresholds(maps, boxes, size, THRESHOLDS)
    for row, threshold in enumerate(THRESHOLDS):
        single = iou_and_iou_b(maps, boxes, size, threshold)
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
    swept = overlaps_at_thresholds(maps, boxes, 16, thresholds)
    for row, threshold in enumerate(thresholds):
        for many, one in zip(swept, iou_and_iou_b(maps, boxes, 16, threshold), strict=True):
            assert torch.equal(many[row].nan_to_num(-1), one.nan_to_num(-1)), threshold
    assert len(set(thresholds)) < 300


def test_a_value_that_equals_a_threshold_reaches_it():
    maps = torch.tensor([[[0.25, 0.5], [0.75, 0.1]]])
    boxes = torch.tensor([[[0, 0, 1, 1]]])
    iou, iou_b = overlaps_at_thresholds(maps, boxes, 2, [0.1, 0.25, 0.5, 0.75, 0.76])
    # Pixels at or above: 4, 3, 2, 1, 0; the box is the pixel with 0.25. Two pixels on a diagonal have a rectangle of four.
    assert iou[:, 0].tolist() == pytest.approx([1 / 4, 1 / 3, 0, 0, 0])
    assert iou_b[:, 0].tolist() == pytest.approx([1 / 4, 1 / 4, 1 / 4, 0, 0])


def test_the_order_of_thresholds_is_kept():
    maps, boxes = random_cases(16)
    forward = overlaps_at_thresholds(maps, boxes, 16, THRESHOLDS)
    backward = overlaps_at_thresholds(maps, boxes, 16, THRESHOLDS[::-1])
    for one, other in zip(forward, backward, strict=True):
        assert torch.equal(one.nan_to_num(-1), other.flip(0).nan_to_num(-1))


def test_a_map_equal_to_the_box_scores_one_at_every_threshold():
    # Maps of the images' own size are not changed by the enlargement.
    boxes = torch.tensor([[[2, 1, 6, 7], [0, 0, 0, 0]]])
    maps = box_masks(boxes, 8).float() * 0.99
    for shares in overlaps_at_thresholds(maps, boxes, 8, [0.01, 0.5, 0.98]):
        assert shares.eq(1).all()


def test_counts_by_loop():
    """Pixel by pixel, without the helpers of localization but for the enlargement."""
    maps, boxes = random_cases(12, count=10, seed=3)
    iou, iou_b = overlaps_at_thresholds(maps, boxes, 12, [0.05, 0.4])
    values = upsample(maps, 12).numpy()
    for image in range(7, 10):
        inside = {(y, x) for x0, y0, x1, y1 in boxes[image].tolist() for y in range(y0, y1) for x in range(x0, x1)}
        for row, threshold in enumerate([0.05, 0.4]):
            looked = {(y, x) for y in range(12) for x in range(12) if values[image, y, x] >= np.float32(threshold)}
            ys, xs = zip(*looked, strict=True)
            rectangle = {(y, x) for y in range(min(ys), max(ys) + 1) for x in range(min(xs), max(xs) + 1)}
            assert iou[row, image].item() == pytest.approx(len(looked & inside) / len(looked | inside))
            assert iou_b[row, image].item() == pytest.approx(len(rectangle & inside) / len(rectangle | inside))


def test_no_image_gives_no_column():
    iou, iou_b = overlaps_at_thresholds(torch.zeros(0, 2, 2), torch.zeros(0, 1, 4), 4, [0.1, 0.2])
    assert iou.shape == iou_b.shape == (2, 0)


@pytest.mark.parametrize("threshold", [0, 1, -0.1, float("nan")])
def test_thresholds_outside_are_refused_as_by_the_masks(threshold):
    message = f"threshold {threshold} must be between 0 and 1, both excluded (the paper takes 0.1)"
    for refuse in (lambda: cam_masks(torch.zeros(1, 2, 2), 4, threshold), lambda: sweep_of([0.1, threshold])):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            refuse()


def sweep_of(thresholds, images=1):
    return overlaps_at_thresholds(torch.zeros(1, 2, 2), torch.zeros(images, 1, 4), 4, thresholds)


def test_no_threshold_and_unequal_counts_are_refused():
    with pytest.raises(ValueError, match=r"^thresholds is empty; give at least one, between 0 and 1 \(the paper takes 0.1\)$"):
        sweep_of([])
    with pytest.raises(ValueError, match=r"^1 maps do not fit the annotations of 3 images; there must be one map for each image$"):
        sweep_of([0.1], images=3)


def test_a_mask_of_any_shape_takes_the_place_of_boxes():
    maps, boxes = random_cases(16)
    masks = box_masks(boxes, 16)
    by_boxes = overlaps_at_thresholds(maps, boxes, 16, THRESHOLDS)
    by_masks = overlaps(maps, annotated(masks), THRESHOLDS)
    for one, other in zip(by_boxes, by_masks, strict=True):
        assert torch.equal(one.nan_to_num(-1), other.nan_to_num(-1))
    ring = torch.zeros(1, 16, 16, dtype=torch.bool)
    ring[0, 2:14, 2:14], ring[0, 5:11, 5:11] = True, False  # no union of one box
    attention = cam_masks(maps[10:11], 16, 0.3)
    iou, iou_b = overlaps(maps[10:11], annotated(ring), [0.3])
    assert iou[0].tolist() == pytest.approx(mask_iou(attention, ring).tolist())
    assert iou_b[0].tolist() == pytest.approx(mask_iou(filled_rectangles(attention), ring).tolist())


def test_the_maps_are_enlarged_once_whatever_the_number_of_thresholds(monkeypatch):
    calls = []
    enlarge = upsample
    monkeypatch.setattr(cams_overlap, "upsample", lambda *given: calls.append(len(given[0])) or enlarge(*given))
    maps, boxes = random_cases(16)
    overlaps_at_thresholds(maps, boxes, 16, [number / 100 for number in range(1, 91)])
    assert sum(calls) == len(maps)
