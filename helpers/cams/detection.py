"""Maps as detectors and as segmentations: the box that a rectangle finds, average precision, and masks against masks by pixel."""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor


def _exists(boxes: Tensor) -> Tensor:
    """Whether a row is a box and no padding, which has no area: (..., 4) -> (...,) bool."""
    return (boxes[..., 2] > boxes[..., 0]) & (boxes[..., 3] > boxes[..., 1])


def best_box_iou(rectangles: Tensor, boxes: Tensor) -> Tensor:
    """Intersection over union of each rectangle with the box of its image that it matches best.

    (..., 4) and (..., M, 4) x0, y0, x1, y1 in pixels, half-open, zeros for an empty map or padding -> (...,) float64 in [0, 1], 0 for an
    empty rectangle, NaN for an image without any box.
    """
    # In double, where the areas of pixel boxes are exact, so that a ratio of just the threshold reaches it.
    one, other = rectangles.unsqueeze(-2).double(), boxes.double()
    shared = (
        (
            torch.minimum(one[..., 2:], other[..., 2:])
            - torch.maximum(one[..., :2], other[..., :2])
        )
        .clamp(min=0)
        .prod(-1)
    )
    both = sum((part[..., 2:] - part[..., :2]).prod(-1) for part in (one, other))
    exists = _exists(boxes).expand(shared.shape)
    iou = (shared / (both - shared)).masked_fill(~exists, 0)
    return (
        F.pad(iou, (0, 1)).amax(-1).masked_fill(~exists.any(-1), torch.nan)
    )  # padded, so that the maximum is defined where M = 0


def average_precisions(
    rectangles: Tensor,
    boxes: Tensor,
    labels: Tensor,
    predicted: Tensor,
    scores: Tensor,
    classes: int,
    threshold: float = 0.5,
) -> NDArray[np.float64]:
    """Average precision of the rectangles as detections, one per image; Everingham et al. 2015 (Pascal VOC, all points).

    A detection is of the predicted class, and right when the label is that too and ``best_box_iou >= threshold``. Recall divides by all
    boxes of the images of the class, so that it ends at images / boxes. (N, 4), (N, M, 4), labels, predicted classes and confidences (N,)
    -> (classes,) in [0, 1], NaN for a class without a box.
    """
    if not scores.isfinite().all():
        raise ValueError(
            f"{(~scores.isfinite()).sum()} of {len(scores)} scores are not finite"
        )
    from sklearn.metrics import (
        precision_recall_curve,
    )  # here: its import takes a second, and most kernels never come here

    iou, counts = best_box_iou(rectangles, boxes), _exists(boxes).sum(1)
    detected = (counts > 0) & _exists(rectangles)
    found = np.full(classes, np.nan)
    for number in range(classes):
        called, there = (
            detected & (predicted == number),
            int(counts[labels == number].sum()),
        )
        hits = ((iou >= threshold)[called] & (labels[called] == number)).cpu().numpy()
        if there:
            found[number] = 0
        if hits.any():
            precision, share, _ = precision_recall_curve(
                hits, scores[called].cpu().numpy()
            )
            recall = share * hits.sum() / there
            found[number] = -np.diff(recall) @ np.maximum.accumulate(precision[:-1])
    return found


def mask_metrics(called: int, there: int, both: int, total: int) -> dict[str, float]:
    """Score masks by pixel, background and object; Long, Shelhamer and Darrell 2015, section 5. In [0, 1], larger is better.

    Of the numbers of pixels in the masks, in the true ones, in both, and in all images together. What divides 0 by 0 is NaN, and so is a
    mean with it; a kind without pixels is left out of frequency_weighted_iou.
    """
    counts = torch.tensor(
        [[total - called - there + both, called - both], [there - both, both]],
        dtype=torch.float64,
    )
    right, true = counts.diag(), counts.sum(1)
    iou = right / (true + counts.sum(0) - right)
    values = {
        "pixel_accuracy": right.sum() / total,
        "mean_pixel_accuracy": (right / true).mean(),
        "iou_background": iou[0],
        "iou_object": iou[1],
        "mean_iou": iou.mean(),
        "frequency_weighted_iou": torch.where(true > 0, true * iou, 0).sum() / total,
        "object_fraction": true[1] / total,
    }
    return {name: float(value) for name, value in values.items()} | {"pixels": total}
