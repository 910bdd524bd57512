import re

import numpy as np
import pytest
import torch
from sklearn import metrics
from sklearn.metrics import average_precision_score

from helpers.cams import detection, overlap
from helpers.cams.detection import best_box_iou, localization_accuracy, rectangle_average_precision

NAMES = ["cat", "dog"]


def detector(seed=0, count=60, most=3, size=20):
    """Random rectangles, boxes, labels, predictions and distinct scores of two classes; some are empty, some images have no box."""
    rng = np.random.default_rng(seed)
    corners = np.sort(np.stack([rng.permuted(np.tile(np.arange(size + 1), (count * most, 1)), axis=1)[:, :2] for _ in "xy"], 2), axis=1)
    boxes = corners.reshape(count, most, 4)
    rectangles = np.clip(boxes[:, 0] + rng.integers(-2, 3, (count, 4)), 0, size)
    boxes[rng.random((count, most)) < 0.4] = 0
    rectangles[:5] = 0
    labels = rng.integers(0, 2, count)
    predicted = np.where(rng.random(count) < 0.8, labels, 1 - labels)
    return [torch.as_tensor(values) for values in (rectangles, boxes, labels, predicted, rng.permutation(count) / count)]


def pixels(box):
    return {(x, y) for x in range(box[0], box[2]) for y in range(box[1], box[3])}


def iou_by_pixels(rectangle, boxes):
    """The best ratio over the boxes of an image, by sets of pixels; None without a box."""
    a, there = pixels(rectangle), [pixels(box) for box in boxes if pixels(box)]
    return max((len(a & b) / len(a | b) for b in there), default=None)


def average_precision_by_loop(class_number, rectangles, boxes, labels, predicted, scores, threshold):
    """Detections from the surest on; precision at each hit, raised to the best that follows, over all boxes of the class."""
    ious = [iou_by_pixels(*pair) for pair in zip(rectangles.tolist(), boxes.tolist(), strict=True)]
    total = sum(bool(pixels(box)) for image, label in zip(boxes.tolist(), labels, strict=True) for box in image if label == class_number)
    hits, precisions = 0, []
    called = 0
    for image in scores.argsort(descending=True).tolist():
        if predicted[image] == class_number and ious[image] is not None and pixels(rectangles[image].tolist()):
            called += 1
            if labels[image] == class_number and ious[image] >= threshold:
                hits += 1
                precisions.append(hits / called)
    # Precision peaks at hits, so the best of what follows is the best among the hits that follow.
    return sum(max(precisions[rank:]) for rank in range(hits)) / total


def test_best_iou_by_hand():
    rectangles = torch.tensor([[0, 0, 4, 4], [0, 0, 4, 4], [0, 0, 0, 0], [1, 1, 3, 3]])
    boxes = torch.tensor(
        [
            [[2, 0, 6, 4], [0, 0, 4, 2]],  # 8 / 24 and 8 / 16
            [[4, 4, 8, 8], [0, 0, 0, 0]],  # they touch and share nothing
            [[0, 0, 4, 4], [0, 0, 0, 0]],
            [[0, 0, 0, 0], [0, 0, 0, 0]],
        ]
    )
    iou = best_box_iou(rectangles, boxes.short())
    assert iou[:3].tolist() == [0.5, 0, 0]
    assert iou[3].isnan()


def test_best_iou_equals_a_count_of_pixels():
    rectangles, boxes, *_ = detector()
    expected = [iou_by_pixels(*pair) for pair in zip(rectangles.tolist(), boxes.tolist(), strict=True)]
    assert None in expected
    np.testing.assert_allclose(best_box_iou(rectangles, boxes), [np.nan if iou is None else iou for iou in expected], rtol=1e-12)


def test_with_one_box_it_is_the_iou_of_the_masks():
    rectangles, boxes, *_ = detector(1, most=1)
    masks = overlap.box_masks(rectangles.unsqueeze(1), 20), overlap.box_masks(boxes, 20)
    annotated = masks[1].flatten(1).any(1)
    # One ratio is rounded to float32.
    expected = overlap.mask_iou(*masks)[annotated].numpy()
    np.testing.assert_allclose(best_box_iou(rectangles, boxes)[annotated], expected, rtol=1e-6)


def test_scale_shift_order_of_boxes_and_type_do_not_matter():
    rectangles, boxes, *_ = detector(2)
    before = best_box_iou(rectangles, boxes)
    shifted = [(17 * values + 1000).masked_fill((values == 0).all(-1, keepdim=True), 0) for values in (rectangles, boxes)]
    torch.testing.assert_close(best_box_iou(*shifted), before, equal_nan=True)
    torch.testing.assert_close(best_box_iou(rectangles, boxes.flip(1)), before, equal_nan=True, rtol=0, atol=0)
    # The areas of these do not fit into 16 bits.
    large = best_box_iou((rectangles * 1000).short(), (boxes * 1000).short())
    torch.testing.assert_close(large, before, equal_nan=True)


def test_localization_by_hand():
    rectangles = torch.tensor([[0, 0, 4, 4], [0, 0, 4, 4], [0, 0, 4, 4], [0, 0, 0, 0], [0, 0, 4, 4]])
    boxes = torch.tensor([[0, 0, 4, 4], [0, 0, 4, 2], [0, 0, 4, 1], [0, 0, 4, 4], [0, 0, 0, 0]]).unsqueeze(1)
    labels, predicted = torch.tensor([0, 0, 0, 0, 0]), torch.tensor([0, 1, 0, 0, 0])
    found = localization_accuracy(rectangles, boxes, labels, predicted)
    # Found: the first wholly, the second at just 1/2 and called wrongly; the third covers 1/4; the fourth is empty.
    expected = {"gt_known": 0.5, "top1_localization": 0.25, "mean_box_iou": 1.75 / 4, "n": 4, "without_box": 1, "empty": 1}
    assert found == pytest.approx(expected)


def test_localization_equals_a_plain_loop_and_top1_is_not_above_either_part():
    rectangles, boxes, labels, predicted, _ = detector(6)
    for threshold in (0.3, 0.5, 0.7):
        found = localization_accuracy(rectangles, boxes, labels, predicted, threshold)
        rows = [
            (iou_by_pixels(*pair), right) for *pair, right in zip(rectangles.tolist(), boxes.tolist(), labels == predicted, strict=True)
        ]
        rows = [(iou >= threshold, bool(right)) for iou, right in rows if iou is not None]
        assert found["gt_known"] == pytest.approx(np.mean([hit for hit, _ in rows]))
        assert found["top1_localization"] == pytest.approx(np.mean([hit and right for hit, right in rows]))
        assert found["n"] + found["without_box"] == 60
        assert threshold > 0.5 or found["top1_localization"] < found["gt_known"]  # some found objects are called wrongly
        assert found["top1_localization"] <= min(found["gt_known"], np.mean([right for _, right in rows]))


def test_the_true_box_is_found_always_and_an_empty_map_never():
    _, boxes, labels, predicted, _ = detector(4, most=1)
    perfect = localization_accuracy(boxes[:, 0], boxes, labels, labels, 1.0)
    nothing = localization_accuracy(torch.zeros(60, 4), boxes, labels, predicted, 0.01)
    assert (perfect["gt_known"], perfect["top1_localization"], perfect["mean_box_iou"], perfect["empty"]) == (1, 1, 1, 0)
    assert (nothing["gt_known"], nothing["top1_localization"], nothing["empty"]) == (0, 0, nothing["n"])


@pytest.mark.parametrize("most", [0, 2])
def test_without_any_box_everything_is_nan(most):
    arguments = torch.ones(3, 4), torch.zeros(3, most, 4), torch.zeros(3), torch.zeros(3)
    found = localization_accuracy(*arguments)
    assert np.isnan([found["gt_known"], found["top1_localization"], found["mean_box_iou"]]).all()
    assert (found["n"], found["without_box"], found["empty"]) == (0, 3, 0)
    detection = rectangle_average_precision(*arguments, torch.ones(3), NAMES)
    assert detection.per_class["average_precision"].isna().all()
    assert np.isnan(detection.mean_average_precision)


def test_average_precision_by_hand():
    here, away, none = [0, 0, 4, 4], [4, 4, 8, 8], [0, 0, 0, 0]
    rectangles = torch.tensor([here, here, here, here, none, here])
    boxes = torch.tensor([[here, away], [away, none], [here, none], [here, none], [here, none], [none, none]])
    labels, predicted = torch.tensor([0, 0, 0, 1, 0, 0]), torch.tensor([0, 0, 0, 0, 0, 0])
    scores = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
    detection = rectangle_average_precision(rectangles, boxes, labels, predicted, scores, NAMES)
    # Of cats: hit, beside the box, hit, a dog; an empty map is no detection, and no box no image. Precision 1 and 2/3 at two of 5 boxes.
    cat, dog = detection.per_class.to_dict("records")
    expected = {"class": "cat", "boxes": 5, "images": 4, "detections": 4, "hits": 2, "highest_recall": 4 / 5}
    assert cat == {**expected, "average_precision": pytest.approx((1 + 2 / 3) / 5)}
    assert dog == {"class": "dog", "boxes": 1, "images": 1, "detections": 0, "hits": 0, "highest_recall": 1, "average_precision": 0}
    assert detection.mean_average_precision == pytest.approx((1 + 2 / 3) / 10)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8])
def test_average_precision_equals_a_plain_loop(seed, threshold):
    scene = detector(seed, most=1 + seed)
    detection = rectangle_average_precision(*scene, NAMES, threshold)
    expected = [average_precision_by_loop(k, *scene, threshold) for k in (0, 1)]
    np.testing.assert_allclose(detection.per_class["average_precision"], expected, rtol=1e-12)
    assert detection.mean_average_precision == pytest.approx(np.mean(expected))
    assert (detection.per_class["average_precision"] <= detection.per_class["highest_recall"]).all()


def test_where_every_box_is_found_only_the_classes_are_ranked():
    """One box per image, found by every rectangle: what scikit-learn gives for the hits, when no hit follows a better precision."""
    boxes = torch.tensor([[0, 0, 4, 4]]).expand(5, 1, 4)
    labels, scores = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0])
    detection = rectangle_average_precision(boxes[:, 0], boxes, labels, torch.zeros(5), scores, NAMES)
    assert detection.per_class["average_precision"].tolist() == [average_precision_score(labels == 0, scores), 0]


def test_equal_scores_are_one_step_whatever_their_order():
    here, away = [0, 0, 4, 4], [4, 4, 8, 8]
    boxes, labels = torch.tensor([here]).expand(4, 1, 4), torch.zeros(4, dtype=torch.int64)
    for rectangles in ([here, away, here, away], [away, away, here, here]):
        detection = rectangle_average_precision(torch.tensor(rectangles), boxes, labels, labels, torch.ones(4), NAMES)
        assert detection.per_class.loc[0, "average_precision"] == pytest.approx(0.5 * 0.5)


def test_only_the_order_of_scores_and_not_that_of_images_counts():
    scene = detector(5)
    expected = rectangle_average_precision(*scene, NAMES).per_class
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    shuffled = [values[order] for values in scene]
    shuffled[4] = shuffled[4].exp() * 9
    found = rectangle_average_precision(*shuffled, NAMES).per_class
    assert found.equals(expected)


@pytest.mark.parametrize("threshold", [0, -0.5, 1.1])
def test_thresholds_outside_are_refused(threshold):
    scene = detector()
    message = f"^{re.escape(f'threshold {threshold} must be above 0 and at most 1 (the field takes 0.5)')}$"
    with pytest.raises(ValueError, match=message):
        localization_accuracy(*scene[:4], threshold)
    with pytest.raises(ValueError, match=message):
        rectangle_average_precision(*scene, NAMES, threshold)


def test_what_does_not_fit_is_refused():
    rectangles, boxes, labels, predicted, scores = detector()
    message = "rectangles must be (N, 4) and boxes (N, M, 4), got shapes (60, 4) and (59, 3, 4)"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        best_box_iou(rectangles, boxes[1:])
    message = "predicted must have one value for each of 60 images, got shape (60, 1)"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        localization_accuracy(rectangles, boxes, labels, predicted.unsqueeze(1))
    with pytest.raises(ValueError, match=r"^1 of 60 scores are not finite$"):
        rectangle_average_precision(rectangles, boxes, labels, predicted, scores.where(scores > 0, torch.nan), NAMES)
    with pytest.raises(ValueError, match=r"^predicted must be from 0 to 1, got 1 to 2$"):
        rectangle_average_precision(rectangles, boxes, labels, predicted + 1, scores, NAMES)


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
    matrix = detection.pixel_confusion(predicted, true)
    assert matrix.dtype == torch.int64
    assert matrix.tolist() == [[2, 1], [2, 1]]


def test_metrics_by_hand():
    # 10 pixels, 4 of them object: 3 found, 1 missed, 2 called wrongly.
    found = detection.mask_metrics(torch.tensor([[4, 2], [1, 3]]))
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
    matrix = detection.pixel_confusion(predicted, true)
    np.testing.assert_array_equal(matrix.numpy(), metrics.confusion_matrix(*flat))
    found = detection.mask_metrics(matrix)
    background, target = metrics.jaccard_score(*flat, average=None)
    assert found["pixel_accuracy"] == pytest.approx(metrics.accuracy_score(*flat))
    assert found["mean_pixel_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(*flat))
    assert (found["iou_background"], found["iou_object"]) == pytest.approx((background, target))
    assert found["mean_iou"] == pytest.approx(metrics.jaccard_score(*flat, average="macro"))
    assert found["frequency_weighted_iou"] == pytest.approx(metrics.jaccard_score(*flat, average="weighted"))
    assert [found["iou_background"], found["iou_object"]] == pytest.approx(by_loop(predicted, true))


def test_of_one_image_the_object_iou_is_that_of_the_masks():
    predicted, true = masks(0.5, 2, count=1), masks(0.4, 3, count=1)
    found = detection.mask_metrics(detection.pixel_confusion(predicted, true))
    # One ratio is rounded to float32.
    assert found["iou_object"] == pytest.approx(overlap.mask_iou(predicted, true).item(), rel=1e-6)


def test_batches_add_up_to_the_whole():
    predicted, true = masks(0.3, 4, 10), masks(0.3, 5, 10)
    parts = sum(detection.pixel_confusion(predicted[rows], true[rows]) for rows in (slice(0, 4), slice(4, 9), slice(9, 10)))
    assert torch.equal(parts, detection.pixel_confusion(predicted, true))
    assert detection.pixel_confusion(predicted[:0], true[:0]).tolist() == [[0, 0], [0, 0]]


def test_turning_prediction_and_truth_over_turns_the_matrix():
    predicted, true = masks(0.3, 6), masks(0.6, 7)
    matrix = detection.pixel_confusion(predicted, true)
    assert torch.equal(detection.pixel_confusion(true, predicted), matrix.T)
    assert torch.equal(detection.pixel_confusion(~predicted, ~true), matrix.flip(0, 1))


def test_the_number_of_pixels_does_not_matter_and_may_be_large():
    small = detection.mask_metrics(torch.tensor([[4, 2], [1, 3]]))
    large = detection.mask_metrics(torch.tensor([[4, 2], [1, 3]]) * 10**12)
    assert large.pop("pixels") == 10**12 * small.pop("pixels")
    assert large == pytest.approx(small)


def test_perfect_and_opposite_masks():
    true = masks(0.4, 8)
    perfect = detection.mask_metrics(detection.pixel_confusion(true, true))
    opposite = detection.mask_metrics(detection.pixel_confusion(~true, true))
    for name in set(perfect) - {"pixels", "object_fraction"}:
        assert (perfect[name], opposite[name]) == (1, 0)


def test_without_any_object_what_is_undefined_is_nan():
    nothing = torch.zeros(2, 3, 3, dtype=torch.bool)
    found = detection.mask_metrics(detection.pixel_confusion(nothing, nothing))
    undefined = {name for name, value in found.items() if np.isnan(value)}
    assert undefined == {"mean_pixel_accuracy", "iou_object", "mean_iou"}
    assert found["pixel_accuracy"] == found["frequency_weighted_iou"] == 1


def test_an_object_called_where_none_is_scores_0_but_has_no_recall():
    found = detection.mask_metrics(torch.tensor([[3, 1], [0, 0]]))
    assert found["iou_object"] == 0
    assert found["mean_iou"] == pytest.approx(3 / 8)
    assert np.isnan(found["mean_pixel_accuracy"])
    assert found["frequency_weighted_iou"] == 3 / 4


def test_no_pixels_give_nan():
    found = detection.mask_metrics(torch.zeros(2, 2, dtype=torch.int64))
    assert found.pop("pixels") == 0
    assert np.isnan(list(found.values())).all()


def test_masks_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=re.escape("the masks have shapes (1, 2, 2) and (1, 3, 3); they must be equal")):
        detection.pixel_confusion(torch.zeros(1, 2, 2, dtype=torch.bool), torch.zeros(1, 3, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"^the masks are of torch.float32 and torch.bool; they must be of torch.bool$"):
        detection.pixel_confusion(torch.zeros(1, 2, 2), torch.zeros(1, 2, 2, dtype=torch.bool))


@pytest.mark.parametrize(("matrix", "given"), [([1, 2], "(2,): [1, 2]"), ([[1, -2], [3, 4]], "(2, 2): [[1, -2], [3, 4]]")])
def test_a_matrix_that_counts_nothing_is_refused(matrix, given):
    message = f"the pixel confusion must be (2, 2) counts of at least 0, got shape {given}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        detection.mask_metrics(torch.tensor(matrix))
