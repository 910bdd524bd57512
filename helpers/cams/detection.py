"""Metrics of detection and segmentation: boxes of maps, precision, mask metrics."""

from collections.abc import Sequence

import numpy as np
import scipy.ndimage
import torch
from numpy.typing import NDArray
from torch import Tensor

from helpers.cams.localize import (
    FOUND,
    THRESHOLDS,
    best_box_iou,
    cut,
    is_box,
    upsample,
)
from helpers.networks.faults import Undefined

LEAST_IOUS = (0.3, 0.5, 0.7)  # of a box that is found; Choe et al. 2020
# Pixels that touch at a side or a corner, in one image of a stack.
_NEIGHBOURS = np.zeros((3, 3, 3), dtype=bool)
_NEIGHBOURS[1] = True


def box_accuracies(
    maps: Tensor, boxes: Tensor, size: int, thresholds: Sequence[float] = THRESHOLDS
) -> NDArray[np.float64]:
    """MaxBoxAcc v2 at each IoU; Choe et al. 2020, wsolevaluation.

    A map cut at a threshold finds a box of its image where the rectangle around one of
    its connected parts has the least IoU with it. The threshold of a network is the one
    at which most images are found. MaxBoxAcc v2 is the mean of the three.

    Args:
        maps: (N, h, w) normalised maps in [0, 1].
        boxes: (N, M, 4) x0, y0, x1, y1 in pixels, half-open, zeros for padding.
        size: side of the images in pixels.
        thresholds: of the map, in (0, 1]; wsolevaluation takes 1,000 from 0 on.

    Returns:
        (3,) in [0, 1], of ``LEAST_IOUS``: share of the images that have a box and a
        finite map. NaN without such an image.
    """
    is_defined = is_box(boxes).any(1) & maps.isfinite().flatten(1).all(1)
    boxes = boxes[is_defined]
    if not len(boxes):
        return np.full(len(LEAST_IOUS), np.nan)
    enlarged = upsample(maps[is_defined].float(), size)
    shares = []
    for threshold in thresholds:
        masks = cut(enlarged, threshold).numpy()
        parts, _ = scipy.ndimage.label(masks, _NEIGHBOURS)
        places = scipy.ndimage.find_objects(parts)
        images = torch.tensor([image.start for image, _, _ in places])
        rectangles = torch.tensor(
            [[x.start, y.start, x.stop, y.stop] for _, y, x in places]
        )
        best = torch.zeros(len(boxes), dtype=torch.float64)
        if places:
            ious = best_box_iou(rectangles, boxes[images])
            best.scatter_reduce_(0, images, ious, "amax")
        shares.append([(best >= least).double().mean() for least in LEAST_IOUS])
    return np.max(shares, axis=0)


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
