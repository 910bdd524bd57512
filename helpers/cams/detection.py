"""Maps as detectors and as segmentations: localization accuracy, average precision, and how masks match masks by pixel."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor


class Detection(NamedTuple):
    """How well the rectangles detect the annotated boxes."""

    per_class: pd.DataFrame
    mean_average_precision: float  # over the classes that have a box, NaN when none has


def _exists(boxes: Tensor) -> Tensor:
    """Whether a row is a box and no padding, which has no area: (..., 4) -> (...,) bool."""
    return (boxes[..., 2] > boxes[..., 0]) & (boxes[..., 3] > boxes[..., 1])


def _check(rectangles: Tensor, boxes: Tensor, threshold: float = 0.5, **per_image: Tensor) -> None:
    images = len(rectangles)
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold {threshold} must be above 0 and at most 1 (the field takes 0.5)")
    if rectangles.shape != (images, 4) or boxes.ndim != 3 or boxes.shape[::2] != (images, 4):
        raise ValueError(f"rectangles must be (N, 4) and boxes (N, M, 4), got shapes {tuple(rectangles.shape)} and {tuple(boxes.shape)}")
    for name, values in per_image.items():
        if values.shape != (images,):
            raise ValueError(f"{name} must have one value for each of {images} images, got shape {tuple(values.shape)}")


def best_box_iou(rectangles: Tensor, boxes: Tensor) -> Tensor:
    """Intersection over union of each rectangle with the annotated box of its image that it matches best.

    Args:
        rectangles: (N, 4) x0, y0, x1, y1 in pixels, half-open; zeros for an empty map, see ``overlap.bounding_rectangles``.
        boxes: (N, M, 4) the same; a row of zeros is padding.

    Returns:
        (N,) float64 in [0, 1]; 0 for an empty rectangle, NaN for an image without any box.

    Raises:
        ValueError: the shapes are not those above.
    """
    from torchvision import ops  # here: its import takes two seconds, and most kernels never come here

    _check(rectangles, boxes)
    exists = _exists(boxes)
    # In double, where the areas of pixel boxes are exact, so that a ratio of just the threshold reaches it.
    iou = ops.box_iou(rectangles.double().unsqueeze(1), boxes.double()).squeeze(1)
    iou = iou.masked_fill(~exists | ~_exists(rectangles).unsqueeze(1), 0)
    padded = torch.cat([iou, iou.new_zeros(len(iou), 1)], 1)  # so that the maximum is defined where M = 0
    return padded.amax(1).masked_fill(~exists.any(1), torch.nan)


def localization_accuracy(rectangles: Tensor, boxes: Tensor, labels: Tensor, predicted: Tensor, threshold: float = 0.5) -> dict[str, float]:
    """Count the images whose object the rectangle finds; Russakovsky et al. 2015, section 4.2, and Choe et al. 2020.

    gt_known is the fraction of images with ``best_box_iou >= threshold``, whatever class is predicted; top1_localization also
    requires the predicted class to be the label. Both in [0, 1], larger is better. GT-known in the literature takes the map of the
    true class: pass the rectangles of those maps to compare with it, and of the predicted class for Top-1.

    Args:
        rectangles: (N, 4), see ``best_box_iou``.
        boxes: (N, M, 4), see there.
        labels: (N,) true class.
        predicted: (N,) predicted class.
        threshold: in (0, 1].

    Returns:
        gt_known, top1_localization and mean_box_iou over the n images with a box, all NaN when there is none; without_box images left
        out; empty rectangles among the n, which count as a miss.

    Raises:
        ValueError: shapes that do not fit, or a threshold outside (0, 1].
    """
    _check(rectangles, boxes, threshold, labels=labels, predicted=predicted)
    iou = best_box_iou(rectangles, boxes)
    annotated = ~iou.isnan()
    found = iou[annotated] >= threshold
    right = (labels == predicted)[annotated]
    return {
        "gt_known": float(found.double().mean()),
        "top1_localization": float((found & right).double().mean()),
        "mean_box_iou": float(iou[annotated].mean()),
        "n": int(annotated.sum()),
        "without_box": int((~annotated).sum()),
        "empty": int((annotated & ~_exists(rectangles)).sum()),
    }


def _all_point(hits: np.ndarray, scores: np.ndarray, boxes: int) -> float:
    """Area under the envelope of precision over recall = hits so far / boxes; what is never found adds nothing."""
    if not boxes or not hits.any():
        return 0.0 if boxes else np.nan
    from sklearn.metrics import precision_recall_curve  # here: its import takes a second, and most kernels never come here

    precision, share, _ = precision_recall_curve(hits, scores)
    recall = share * hits.sum() / boxes
    return float(-np.diff(recall) @ np.maximum.accumulate(precision[:-1]))


def rectangle_average_precision(
    rectangles: Tensor,
    boxes: Tensor,
    labels: Tensor,
    predicted: Tensor,
    scores: Tensor,
    names: Sequence[str],
    threshold: float = 0.5,
) -> Detection:
    """Average precision of the rectangles as detections, one per image; Everingham et al. 2015 (Pascal VOC, all points).

    Per class, the detections are the rectangles of the images predicted to be of it, by falling score. One is right when the label is
    the class too and ``best_box_iou >= threshold``. Recall divides by all annotated boxes of the images of the class, as in the
    detection literature, although a classifier has one guess per image: where an image has several boxes, recall ends at
    ``highest_recall = images / boxes`` and so does the average precision. No box is found twice, and every box is taken to show an
    object of its image's label. Images without a box are left out, because a detection there is neither right nor wrong.

    Args:
        rectangles: (N, 4) of the map of the predicted class, see ``best_box_iou``; an empty one is no detection.
        boxes: (N, M, 4), see there.
        labels: (N,) in 0 ... K - 1.
        predicted: (N,) in 0 ... K - 1.
        scores: (N,) finite confidence, such as the largest softmax probability; equal ones are one step of the curve.
        names: K class names.
        threshold: in (0, 1].

    Returns:
        One row per class: class, boxes, images (with a box), detections, hits, highest_recall, average_precision (in [0, 1], larger is
        better; NaN for a class without a box); and the mean of the last over the classes where it is defined.

    Raises:
        ValueError: shapes that do not fit, a threshold outside (0, 1], a score that is not finite or a class without a name.
    """
    _check(rectangles, boxes, threshold, labels=labels, predicted=predicted, scores=scores)
    if not scores.isfinite().all():
        raise ValueError(f"{(~scores.isfinite()).sum()} of {len(scores)} scores are not finite")
    for name, classes in (("labels", labels), ("predicted", predicted)):
        if ((classes < 0) | (classes >= len(names))).any():
            raise ValueError(f"{name} must be from 0 to {len(names) - 1}, got {classes.min()} to {classes.max()}")
    iou, counts = best_box_iou(rectangles, boxes), _exists(boxes).sum(1)
    annotated, detected = counts > 0, (counts > 0) & _exists(rectangles)
    hits = (iou >= threshold) & (labels == predicted)
    rows = []
    for number, name in enumerate(names):
        shown, called = annotated & (labels == number), detected & (predicted == number)
        there = int(counts[shown].sum())
        rows.append(
            {
                "class": name,
                "boxes": there,
                "images": int(shown.sum()),
                "detections": int(called.sum()),
                "hits": int(hits[called].sum()),
                "highest_recall": int(shown.sum()) / there if there else np.nan,
                "average_precision": _all_point(hits[called].cpu().numpy(), scores[called].cpu().numpy(), there),
            }
        )
    per_class = pd.DataFrame(rows)
    return Detection(per_class, float(per_class["average_precision"].mean()))


def pixel_confusion(predicted: Tensor, true: Tensor) -> Tensor:
    """Count the pixels of a batch by true (row) and predicted (column) kind: background 0, object 1.

    The matrices of all batches add up to that of the data set, so nothing larger than a batch is kept.

    Args:
        predicted: (B, H, W) bool.
        true: (B, H, W) bool.

    Returns:
        (2, 2) int64 on the device of the masks: ``[[TN, FP], [FN, TP]]``; zeros for an empty batch.

    Raises:
        ValueError: the shapes differ, or a mask is not of bool.
    """
    if predicted.shape != true.shape:
        raise ValueError(f"the masks have shapes {tuple(predicted.shape)} and {tuple(true.shape)}; they must be equal")
    if predicted.dtype != torch.bool or true.dtype != torch.bool:
        raise ValueError(f"the masks are of {predicted.dtype} and {true.dtype}; they must be of torch.bool")
    both, called, there = (mask.sum() for mask in (predicted & true, predicted, true))
    return torch.stack([true.numel() - called - there + both, called - both, there - both, both]).reshape(2, 2)


def mask_metrics(matrix: Tensor) -> dict[str, float]:
    """Score masks by their pixel confusion C; Long, Shelhamer and Darrell 2015, section 5, for background (0) and object (1).

    Pixels of all images are pooled: a large object weighs more than a small one, unlike in a mean over images of ``mask_iou``.

    - pixel_accuracy: ``trace(C) / sum(C)``;
    - mean_pixel_accuracy: mean over i of ``C_ii / (C_i0 + C_i1)``, the recalls of background and object;
    - iou_background and iou_object: ``C_ii / (C_i. + C_.i - C_ii)``; mean_iou: their mean;
    - frequency_weighted_iou: ``sum over i of C_i. IoU_i / sum(C)``.

    Args:
        matrix: (2, 2) counts, rows true, columns predicted, see ``pixel_confusion``.

    Returns:
        These in [0, 1], larger is better, then object_fraction, the share of pixels that are object, without which a pixel accuracy
        cannot be read, and pixels, their number. What divides 0 by 0 is NaN, and so is a mean that it would be part of: without any
        object pixel the mean over one kind would be another quantity. What weighs 0 in frequency_weighted_iou is left out.

    Raises:
        ValueError: the matrix is not (2, 2) or has a negative count.
    """
    if matrix.shape != (2, 2) or (matrix < 0).any():
        raise ValueError(f"the pixel confusion must be (2, 2) counts of at least 0, got shape {tuple(matrix.shape)}: {matrix.tolist()}")
    counts = matrix.cpu().double()
    right, there, total = counts.diag(), counts.sum(1), counts.sum()
    iou = right / (there + counts.sum(0) - right)
    values = {
        "pixel_accuracy": right.sum() / total,
        "mean_pixel_accuracy": (right / there).mean(),
        "iou_background": iou[0],
        "iou_object": iou[1],
        "mean_iou": iou.mean(),
        "frequency_weighted_iou": torch.where(there > 0, there * iou, 0).sum() / total,
        "object_fraction": there[1] / total,
    }
    return {name: float(value) for name, value in values.items()} | {"pixels": int(total)}
