"""The box that a rectangle finds, average precision and mask metrics: by hand, by sets of pixels, and by scikit-learn."""

import numpy as np
import pytest
import torch

from helpers.cams import detection
from helpers.cams.detection import average_precisions
from helpers.cams.localize import best_box_iou, upsample


def detector(seed=0, count=60, most=3, size=20):
    """Random rectangles, boxes, labels, predictions and distinct scores of two classes; some are empty, some images have no box."""
    rng = np.random.default_rng(seed)
    places = np.tile(np.arange(size + 1), (count * most, 1))
    sides = [np.sort(rng.permuted(places, axis=1)[:, :2]) for _ in "xy"]
    boxes = np.stack(sides, 2).reshape(count, most, 4)
    rectangles = np.clip(boxes[:, 0] + rng.integers(-2, 3, (count, 4)), 0, size)
    boxes[rng.random((count, most)) < 0.4] = 0
    rectangles[:5] = 0
    labels = rng.integers(0, 2, count)
    predicted = np.where(rng.random(count) < 0.8, labels, 1 - labels)
    scores = rng.permutation(count) / count
    return [*map(torch.as_tensor, (rectangles, boxes, labels, predicted, scores))]


def pixels(box):
    return {(x, y) for x in range(box[0], box[2]) for y in range(box[1], box[3])}


def iou_by_pixels(rectangle, boxes):
    """The best ratio over the boxes of an image, by sets of pixels; None without a box."""
    a, there = pixels(rectangle), [pixels(box) for box in boxes if pixels(box)]
    return max((len(a & b) / len(a | b) for b in there), default=None)


def average_precision_by_loop(
    class_number, rectangles, boxes, labels, predicted, scores, threshold
):
    """Detections from the surest on; precision at each hit, raised to the best that follows, over all boxes of the class."""
    pairs = zip(rectangles.tolist(), boxes.tolist(), strict=True)
    ious = [iou_by_pixels(*pair) for pair in pairs]
    of_class = boxes[labels == class_number].flatten(0, 1).tolist()
    total = sum(bool(pixels(box)) for box in of_class)
    hits, called, precisions = 0, 0, []
    for image in scores.argsort(descending=True).tolist():
        is_detection = ious[image] is not None and pixels(rectangles[image].tolist())
        if predicted[image] == class_number and is_detection:
            called += 1
            if labels[image] == class_number and ious[image] >= threshold:
                hits += 1
                precisions.append(hits / called)
    # Precision peaks at hits, so the best of what follows is the best among the hits that follow.
    return sum(max(precisions[rank:]) for rank in range(hits)) / total


def test_best_iou_is_that_of_sets_of_pixels():
    rectangles, boxes, *_ = detector()
    pairs = zip(rectangles.tolist(), boxes.tolist(), strict=True)
    expected = [iou_by_pixels(*pair) for pair in pairs]
    assert None in expected
    found = best_box_iou(rectangles, boxes)
    np.testing.assert_allclose(found, np.array(expected, float), rtol=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_average_precision_equals_a_plain_loop_and_only_the_order_of_scores_counts(
    seed,
):
    scene = detector(seed, most=1 + seed)
    found = average_precisions(*scene, 2)
    expected = [average_precision_by_loop(k, *scene, 0.5) for k in (0, 1)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    shuffled = [values[order] for values in scene]
    shuffled[4] = shuffled[4].exp() * 9
    again = average_precisions(*shuffled, 3)  # of the third there is no box
    np.testing.assert_allclose(again, [*found, np.nan], rtol=1e-12)
    with pytest.raises(ValueError, match="not finite"):
        average_precisions(*scene[:4], scene[4].where(scene[4] > 0, torch.nan), 2)


def test_mask_metrics_by_hand():
    # 10 pixels, 4 of them object: 3 found, 1 missed, 2 called wrongly.
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
    found = detection.mask_metrics(marked=5, annotated=4, common=3, total=10)
    assert found == pytest.approx(expected)
    assert list(found) == list(expected)


def test_without_any_object_what_is_undefined_is_nan():
    # Nowhere called, or called where none is: an IoU of 0 then, but no recall.
    for called, undefined in (
        (0, {"mean_pixel_accuracy", "iou_object", "mean_iou"}),
        (1, {"mean_pixel_accuracy"}),
    ):
        found = detection.mask_metrics(called, 0, 0, 4)
        assert {name for name, value in found.items() if np.isnan(value)} == undefined
        for name in ("frequency_weighted_iou", "pixel_accuracy", "iou_background"):
            assert found[name] == 1 - called / 4
    nothing = detection.mask_metrics(0, 0, 0, 0)
    assert nothing.pop("pixels") == 0
    assert np.isnan(list(nothing.values())).all()


def found_by_loop(maps, boxes, size, thresholds, least):
    """Flood fill of each mask, and the best threshold of all images together."""
    shares = []
    for threshold in thresholds:
        masks = upsample(maps, size) >= threshold
        found = []
        for mask, of_image in zip(masks, boxes, strict=True):
            left = {(x, y) for y, x in mask.nonzero().tolist()}
            best = 0
            while left:
                part, edge = set(), [left.pop()]
                while edge:
                    x, y = edge.pop()
                    part.add((x, y))
                    around = {
                        (x + a - 1, y + b - 1) for a, b in np.ndindex(3, 3)
                    } & left
                    left -= around
                    edge += around
                xs, ys = zip(*part, strict=True)
                rectangle = [min(xs), min(ys), max(xs) + 1, max(ys) + 1]
                best = max(best, iou_by_pixels(rectangle, of_image.tolist()))
            found.append(best >= least)
        shares.append(np.mean(found))
    return max(shares)


def test_max_box_accuracy_takes_the_best_part_of_a_map_and_the_best_threshold_of_all():
    random = torch.Generator().manual_seed(3)
    maps = torch.rand(12, 5, 5, generator=random) / 2
    maps[:6, 1:4, 1:3] += 0.5  # where the first box of each image lies
    _, boxes, *_ = detector(count=12, size=16)
    boxes[:, 0] = torch.tensor([2, 3, 9, 12])
    thresholds = [0.3, 0.6, 0.8]
    accuracies = detection.box_accuracies(maps, boxes, 16, thresholds)
    assert 0 < accuracies[2] < accuracies[1] <= accuracies[0] <= 1
    for least, accuracy in zip(detection.LEAST_IOUS, accuracies, strict=True):
        expected = found_by_loop(maps, boxes, 16, thresholds, least)
        assert accuracy == pytest.approx(expected, abs=1e-12)


def test_max_box_accuracy_leaves_out_images_without_box_or_map():
    maps = torch.zeros(3, 4, 4)
    maps[:, 1:3, 1:3] = 1
    maps[1] = torch.nan
    boxes = torch.tensor([[[1, 1, 3, 3]], [[1, 1, 3, 3]], [[0, 0, 0, 0]]])
    assert detection.box_accuracies(maps, boxes, 4).tolist() == [1, 1, 1]
    assert np.isnan(detection.box_accuracies(maps[2:], boxes[2:], 4)).all()
    empty = detection.box_accuracies(torch.zeros(1, 4, 4), boxes[:1], 4)
    assert empty.tolist() == [0, 0, 0]


def test_max_box_accuracy_joins_pixels_at_a_corner_and_counts_an_iou_of_exactly_a_half():
    maps = torch.diag(torch.tensor([1.0, 1, 0, 0])).unsqueeze(0)
    boxes = torch.tensor([[[0, 0, 2, 4]]])
    assert detection.box_accuracies(maps, boxes, 4).tolist() == [1, 1, 0]
