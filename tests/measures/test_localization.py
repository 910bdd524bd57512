"""Measures of where a network looks: by hand, from maps alone, from maps kept as bytes, and for a map that looks at nothing."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist

from helpers.cams import localize
from helpers.data.images import box_masks
from helpers.measures import localization
from helpers.measures.evidence import MeasureSettings, score
from helpers.measures.registry import MEASURES, measures_of_families

LISTED = measures_of_families(["localization"])


def scored(name, **inputs):
    """Values by variant of a measure of what is given, and its values of images."""
    scores, arrays = score([MEASURES[name]], inputs, MeasureSettings())
    return scores.set_index("variant")["value"].to_dict(), arrays


def test_a_map_on_its_box_is_found_and_the_wrong_class_is_no_top_1():
    boxes = torch.tensor([[[2, 2, 6, 6]], [[0, 0, 4, 8]]])
    maps = box_masks(torch.tensor([[[2, 2, 6, 6]], [[0, 0, 4, 4]]]), 8).float()
    table = localize.chance_scores(maps, boxes, 8)
    right = np.array([True, False])
    found, _ = scored("box_found", image_overlaps=table, rightly_classified=right)
    assert found == pytest.approx({"GT-known": 1.0, "top-1": 0.5, "box IoU": 0.75})


def test_measures_are_means_of_the_images_where_they_are_defined():
    image = [0.5, 0.25, np.nan]
    names = ("iou", "iou_b", *localize.CORRECTED)
    table = pd.DataFrame({"box_area": [0.2, 0.3, 0.1], "mask_area": [0.9, 0.8, 0.1]})
    table = table.assign(**dict.fromkeys(names, image))
    means = {"whole_image_floor": 0.2, "mask_area": 0.8} | dict.fromkeys(names, 0.375)
    for name, mean in means.items():
        found, arrays = scored(name, image_overlaps=table)
        assert found[""] == pytest.approx(mean), name
        if name in names:
            np.testing.assert_array_equal(arrays[name][name], np.float16(image))


def test_a_network_and_its_kept_maps_have_the_same_localization(tiny_given):
    """Also at a threshold that it was never scored at, without network and pixels."""
    names = ["recorded_maps", "predictions_of_images"]
    _, single = score([], tiny_given, MeasureSettings(), names)
    record = single[names[0]] | single[names[1]]
    images = tiny_given["images"]
    without_pixels = replace(images, images=images.images.to("meta"))

    def of_record(record, settings):
        inputs = localization.inputs_from_record(record) | {"images": without_pixels}
        return score(LISTED, inputs, settings)[0]

    for threshold in (0.1, 0.35):
        settings = MeasureSettings(cam_threshold=threshold)
        expected, _ = score(LISTED, tiny_given, settings)
        pd.testing.assert_frame_equal(of_record(record, settings), expected)
    # Of maps in 8 bits, without classes and confidences.
    published = {name: record[name] for name in ("maps", "correct")}
    again = score([], localization.inputs_from_record(published), settings, names[:1])
    np.testing.assert_equal(again[1]["recorded_maps"], published)
    few = of_record(published, settings)
    iou = few["measure"] == "iou"
    assert few[iou]["value"].item() == pytest.approx(
        expected[iou]["value"].item(), abs=2e-3
    )
    lacking = few[few["value"].isna()]
    assert set(lacking["measure"]) == {"box_average_precision"}
    assert lacking["reason"].str.contains("of single images were not kept").all()


@torch.no_grad()
def test_values_of_single_images_are_of_each_by_itself(tiny_given):
    names = ["predictions_of_images", "recorded_maps"]
    measures = [MEASURES["prediction_entropy"], MEASURES["training_loss"]]
    _, arrays = score(measures, tiny_given, MeasureSettings(), names)
    images, network = tiny_given["images"], tiny_given["network"]
    pixels = tiny_given["normalise"](images.images)
    alone = torch.cat([network(pixels[[row]]) for row in range(len(images))]).double()
    p, labels = alone.softmax(1).numpy(), images.labels.numpy()
    predictions = arrays["predictions_of_images"]
    assert predictions["predicted"].tolist() == p.argmax(1).tolist()
    np.testing.assert_allclose(predictions["confidence"], p.max(1), rtol=1e-4)
    correct = arrays["recorded_maps"]["correct"]
    assert correct.tolist() == (p.argmax(1) == labels).tolist()
    entropies = arrays["prediction_entropy"]["prediction_entropy"]
    np.testing.assert_allclose(entropies, -(p * np.log(p)).sum(1), rtol=2e-3)
    losses = -np.log(p[np.arange(len(p)), labels])
    np.testing.assert_allclose(arrays["training_loss"]["training_loss"], losses, 2e-3)


def test_images_without_boxes_have_no_localization_and_say_so(tiny_given):
    images = replace(tiny_given["images"], boxes=torch.zeros(36, 1, 4))
    rows, _ = score(LISTED, tiny_given | {"images": images}, MeasureSettings())
    assert rows["value"].isna().all()
    assert set(rows["reason"]) == {"these images have no boxes"}


def test_a_fixed_map_has_nothing_above_chance_and_a_value_of_all_but_classes():
    corners = [[1, 1, 9, 9], [0, 4, 6, 12], [2, 2, 14, 14], [8, 0, 16, 8]]
    boxes = torch.tensor(corners).unsqueeze(1)
    fixed = localization.scores_of_fixed_map(boxes, 16)
    assert {*fixed} == {item.name for item in LISTED} - {"box_average_precision"}
    ranked = {item.name for item in LISTED if item.direction} & {*fixed}
    without = {name for name in ranked if abs(fixed[name]) < 1e-6}
    assert without == {*localize.CORRECTED}
    table = localize.chance_scores(localize.central_map().expand(4, -1, -1), boxes, 16)
    for name in ("iou_b", "box_found"):
        assert fixed[name] == pytest.approx(table[name].mean())


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


def average_precision_by_loop(label, rectangles, boxes, labels, predicted, scores):
    """Detections from the surest on; precision at each hit, raised to the best that follows, over all boxes of the class."""
    pairs = zip(rectangles.tolist(), boxes.tolist(), strict=True)
    ious = [iou_by_pixels(*pair) for pair in pairs]
    of_class = boxes[labels == label].flatten(0, 1).tolist()
    total = sum(bool(pixels(box)) for box in of_class)
    hits, called, precisions = 0, 0, []
    for image in scores.argsort(descending=True).tolist():
        is_detection = ious[image] is not None and pixels(rectangles[image].tolist())
        if predicted[image] == label and is_detection:
            called += 1
            if labels[image] == label and ious[image] >= 0.5:
                hits += 1
                precisions.append(hits / called)
    # Precision peaks at hits, so the best of what follows is the best among the hits that follow.
    return sum(max(precisions[rank:]) for rank in range(hits)) / total


@pytest.mark.parametrize("seed", range(8))
def test_average_precision_is_of_a_plain_loop_and_of_the_order_of_scores(seed):
    rectangles, boxes, labels, predicted, scores = detector(seed, most=1 + seed)
    rectangles[~localize.is_box(rectangles)] = 0
    table = pd.DataFrame(rectangles.numpy(), columns=["x0", "y0", "x1", "y1"])
    table["box_found"] = localize.best_box_iou(rectangles, boxes).ge(0.5).numpy()
    given = table, SimpleNamespace(boxes=boxes), labels, predicted
    found = localization.box_average_precision(*given, scores)
    scene = rectangles, boxes, labels, predicted, scores
    expected = [average_precision_by_loop(label, *scene) for label in (0, 1)]
    assert found == pytest.approx(np.mean(expected), rel=1e-12)
    again = localization.box_average_precision(*given, scores.exp() * 9)
    assert again == pytest.approx(found, rel=1e-12)
    with pytest.raises(ValueError, match="not finite"):
        undefined = scores.where(scores > 0, torch.nan)
        localization.box_average_precision(*given, undefined)


def best_iou_of_parts(mask, boxes):
    """Parts of a mask are those of the graph of neighbouring pixels."""
    places = mask.nonzero().flip(1).numpy()
    count, part = connected_components(cdist(places, places, "chebyshev") <= 1)
    groups = [places[part == number] for number in range(count)]
    rectangles = [[*group.min(0), *(group.max(0) + 1)] for group in groups]
    return max((iou_by_pixels(each, boxes.tolist()) for each in rectangles), default=0)


def test_max_box_accuracy_takes_the_best_part_of_a_map_and_the_best_threshold_of_all():
    random = torch.Generator().manual_seed(3)
    maps = torch.rand(12, 5, 5, generator=random) / 2
    maps[:6, 1:4, 1:3] += 0.5  # where the first box of each image lies
    _, boxes, *_ = detector(count=12, size=16)
    boxes[:, 0] = torch.tensor([2, 3, 9, 12])
    thresholds = [0.3, 0.6, 0.8]
    accuracies = localization.box_accuracies(maps, boxes, 16, thresholds)
    assert 0 < accuracies[2] < accuracies[1] <= accuracies[0] <= 1
    large = localize.upsample(maps, 16)
    best = [[*map(best_iou_of_parts, large >= cut, boxes)] for cut in thresholds]
    leasts = localization.LEAST_IOUS
    expected = [np.mean(np.array(best) >= least, 1).max() for least in leasts]
    assert accuracies == pytest.approx(expected, abs=1e-12)


def test_max_box_accuracy_by_hand_and_without_box_or_map():
    maps = torch.zeros(3, 4, 4)
    maps[:, 1:3, 1:3] = 1
    maps[1] = torch.nan
    boxes = torch.tensor([[[1, 1, 3, 3]], [[1, 1, 3, 3]], [[0, 0, 0, 0]]])
    assert localization.box_accuracies(maps, boxes, 4).tolist() == [1, 1, 1]
    assert np.isnan(localization.box_accuracies(maps[2:], boxes[2:], 4)).all()
    # Pixels that touch at a corner are joined, and an IoU of exactly a half counts.
    diagonal = torch.diag(torch.tensor([1.0, 1, 0, 0])).unsqueeze(0)
    boxes = torch.tensor([[[0, 0, 2, 4]]])
    for maps, expected in ((torch.zeros(1, 4, 4), [0, 0, 0]), (diagonal, [1, 1, 0])):
        assert localization.box_accuracies(maps, boxes, 4).tolist() == expected
