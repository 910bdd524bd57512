"""Metrics of detection and segmentation: average precision and mask metrics."""

import numpy as np
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
    # Imported here, since this import takes a second, and most functions do without.
    from sklearn.metrics import precision_recall_curve

    if not scores.isfinite().all():
        raise Undefined("confidences are not finite")
    box_counts = is_box(boxes).sum(1)
    is_detection = (box_counts > 0) & is_box(rectangles)
    is_hit = (best_box_iou(rectangles, boxes) >= FOUND) & (predicted == labels)
    precisions = np.full(classes, np.nan)
    for label in range(classes):
        box_count = int(box_counts[labels == label].sum())
        if not box_count:
            continue
        of_class = is_detection & (predicted == label)
        hits = is_hit[of_class].cpu().numpy()
        precisions[label] = 0.0
        if hits.any():
            curve = precision_recall_curve(hits, scores[of_class].cpu().numpy())
            # The precision at a recall is the highest at this recall or a larger one.
            precision = np.maximum.accumulate(curve[0][:-1])
            precisions[label] = -np.diff(curve[1]) @ precision * hits.sum() / box_count
    return precisions


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
    # Background, and object, (2,) each.
    correct = np.array([total - marked - annotated + common, common], dtype=float)
    actual = np.array([total - annotated, annotated])
    called = np.array([total - marked, marked])
    with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0
        iou = correct / (actual + called - correct)
        return {
            "pixel_accuracy": correct.sum() / np.float64(total),
            "mean_pixel_accuracy": (correct / actual).mean(),
            "iou_background": iou[0],
            "iou_object": iou[1],
            "mean_iou": iou.mean(),
            "frequency_weighted_iou": np.where(actual > 0, actual * iou, 0).sum()
            / np.float64(total),
            "object_fraction": annotated / np.float64(total),
            "pixels": total,
        }
