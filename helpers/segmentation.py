"""How well masks match masks, pixel by pixel over many images: pixel accuracies and intersections over union."""

import torch
from torch import Tensor


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
