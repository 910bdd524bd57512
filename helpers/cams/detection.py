"""Metrics of detection and segmentation: average precision and mask metrics."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from helpers.cams.localize import FOUND, best_box_iou, is_box
from helpers.networks.faults import Undefined


def average_precisions(
    rectangles: Tensor,
    boxes: Tensor,
    labels: Tensor,
    predicted: Tensor,
    scores: Tensor,
    classes: int,
) -> NDArray[np.float64]:
    """Average precision of rectangles as detections; Everingham et al. 2015.

    All points of the curve count, as in Pascal VOC since 2010. An image has one
    detection, of its predicted class. It is correct if the class is the label and
    ``best_box_iou >= FOUND``. Recall is the share of all boxes of a class, of which an
    image may have several, so that its maximum is images / boxes.

    Args:
        rectangles: (N, 4) x0, y0, x1, y1 in pixels, half-open.
        boxes: (N, M, 4), zeros for padding.
        labels: (N,) true classes.
        predicted: (N,) predicted classes.
        scores: (N,) confidences of the predictions.
        classes: number of classes.

    Returns:
        (classes,) in [0, 1]; NaN for a class without a box.

    Raises:
        ValueError: if a score is not finite.
    """
    if not scores.isfinite().all():
        raise Undefined(
            f"{(~scores.isfinite()).sum()} of {len(scores)} scores are not finite"
        )
    box_counts = is_box(boxes).sum(1)
    is_detection = (box_counts > 0) & is_box(rectangles)
    is_hit = (best_box_iou(rectangles, boxes) >= FOUND) & (predicted == labels)
    precisions = np.full(classes, np.nan)
    for label in range(classes):
        box_count = int(box_counts[labels == label].sum())
        if box_count:
            of_class = is_detection & (predicted == label)
            precisions[label] = _average_precision(
                is_hit[of_class].cpu().numpy(),
                scores[of_class].cpu().numpy(),
                box_count,
            )
    return precisions


def _average_precision(
    hits: NDArray[np.bool_], scores: NDArray[np.floating], box_count: int
) -> float:
    """Area under the precision-recall curve of detections.

    The precision at a recall is the highest at this recall or a larger one.

    Args:
        hits: (n,) whether each detection is correct.
        scores: (n,) confidences.
        box_count: number of boxes to detect.
    """
    # Imported here, since this import takes a second, and most functions do without.
    from sklearn.metrics import precision_recall_curve

    if not hits.any():
        return 0.0
    precision, share_of_hits, _ = precision_recall_curve(hits, scores)
    recall = share_of_hits * hits.sum() / box_count
    return float(-np.diff(recall) @ np.maximum.accumulate(precision[:-1]))


def mask_metrics(
    marked: int, annotated: int, common: int, total: int
) -> dict[str, float]:
    """Segmentation metrics; Long, Shelhamer and Darrell 2015, section 5.

    Args:
        marked: pixels in the masks.
        annotated: pixels in the true masks.
        common: pixels in both.
        total: pixels of all images together.

    Returns:
        Metrics by name, in [0, 1], larger is better; and the number of pixels. 0 / 0 is
        NaN, and so is a mean with it; of background and object, one without pixels is
        left out of frequency_weighted_iou.
    """
    in_neither = total - marked - annotated + common
    # Confusion matrix. Rows: annotated as background, as object; columns: marked as
    # background, as object.
    counts = torch.tensor(
        [[in_neither, marked - common], [annotated - common, common]],
        dtype=torch.float64,
    )
    # (2,) each: for background and object.
    correct = counts.diag()
    actual = counts.sum(1)
    iou = correct / (actual + counts.sum(0) - correct)
    weighted_iou = torch.where(actual > 0, actual * iou, 0)
    metrics = {
        "pixel_accuracy": correct.sum() / total,
        "mean_pixel_accuracy": (correct / actual).mean(),
        "iou_background": iou[0],
        "iou_object": iou[1],
        "mean_iou": iou.mean(),
        "frequency_weighted_iou": weighted_iou.sum() / total,
        "object_fraction": actual[1] / total,
    }
    values = {name: float(value) for name, value in metrics.items()}
    return values | {"pixels": total}
