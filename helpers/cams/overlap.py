"""Overlap of class activation maps with annotated boxes; Du et al. 2024.

The IoU of the primary table is the mean over images of ``chance.chance_scores``, which
enlarges and cuts maps by ``upsample`` and ``cut``; ``overlaps`` is for notebook 05.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.data.boxes import box_masks as box_masks


def upsample(maps: Tensor, size: int) -> Tensor:
    """Enlarge maps to the size of the images, bilinearly.

    The corners of map and image coincide, not the centres of their corner pixels
    (``align_corners=False``).

    Args:
        maps: (B, h, w).
        size: side S of the images in pixels.

    Returns:
        (B, S, S).
    """
    return F.interpolate(
        maps.unsqueeze(1), size=(size, size), mode="bilinear", align_corners=False
    ).squeeze(1)


CUTS = ("maximum", "quantile")  # rules by which a threshold cuts a map


def cut(maps: Tensor, threshold: float, rule: str = "maximum") -> Tensor:
    """Cut maps to masks of the pixels at which a network looks.

    By the rule "maximum" the mask holds the pixels of at least ``threshold``, which is
    a fraction of the maximum in normalised maps; Du et al. 2024, equations (3) and (4).
    By "quantile" it holds the highest pixels, a share ``1 - threshold`` of the map, so
    that masks of all maps have one size. Pixels of 0 are never in it.

    Args:
        maps: (B, S, S) enlarged normalised maps, in [0, 1].
        threshold: in (0, 1).
        rule: one of ``CUTS``.

    Returns:
        (B, S, S) bool.

    Raises:
        ValueError: if the rule is not one of ``CUTS``.

    Example:
        >>> maps = torch.tensor([[[1.0, 0.4], [0.3, 0.2]]])
        >>> cut(maps, 0.5).sum().item(), cut(maps, 0.5, "quantile").sum().item()
        (1, 2)
    """
    if rule not in CUTS:
        raise ValueError(f"the rule of cutting is {rule!r}, and must be one of {CUTS}")
    if rule == "maximum":
        return maps >= threshold
    pixels = maps.flatten(1)
    count = pixels.shape[1]
    count_below = min(round(threshold * count), count - 1)
    level = pixels.kthvalue(count_below + 1, dim=1).values.view(-1, 1, 1)
    return (maps >= level) & (maps > 0)


def bounding_rectangles(masks: Tensor) -> Tensor:
    """Smallest upright rectangle around each mask.

    Args:
        masks: (B, H, W) bool.

    Returns:
        (B, 4) int64 x0, y0, x1, y1, half-open, zeros for an empty mask.

    Example:
        >>> bounding_rectangles(torch.tensor([[[False, True], [False, True]]]))
        tensor([[1, 0, 2, 2]])
    """
    occupied = masks.view(torch.uint8)  # any() is several times slower than amax()
    x0, x1 = ends(occupied.amax(1))
    y0, y1 = ends(occupied.amax(2))
    return torch.stack([x0, y0, x1, y1], 1)


def ends(occupied: Tensor) -> tuple[Tensor, Tensor]:
    """First occupied place of a line, and the one after the last.

    Args:
        occupied: (..., L) uint8, 1 where a place is occupied, else 0.

    Returns:
        Two (...), zeros where no place is occupied.
    """
    first = occupied.argmax(-1)
    end = occupied.shape[-1] - occupied.flip(-1).argmax(-1)
    return first, torch.where(occupied.amax(-1) > 0, end, 0)


def mask_iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of two masks; Du et al. 2024, equation (2).

    Args:
        a: (B, ...) bool.
        b: (B, ...) bool.

    Returns:
        (B,) in [0, 1]; NaN where both are empty.

    Example:
        >>> mask_iou(torch.tensor([[True, True]]), torch.tensor([[True, False]]))
        tensor([0.5000])
    """
    return (a & b).flatten(1).sum(1) / (a | b).flatten(1).sum(1)


def overlaps(
    maps_normalised: Tensor, annotated: Tensor, thresholds: Sequence[float]
) -> Tensor:
    """Compute the IoU of thresholded maps with masks; Du et al. 2024, (3) and (4).

    The mask of a map is where its enlargement is at least the threshold.

    Args:
        maps_normalised: (N, h, w) in [0, 1].
        annotated: (N, S, S) bool, masks of objects or boxes.
        thresholds: T of them, in (0, 1).

    Returns:
        (T, N) in [0, 1]; NaN for a map that is not finite.
    """
    device = maps_normalised.device
    annotated = annotated.to(device)
    levels = torch.tensor(thresholds, dtype=maps_normalised.dtype, device=device)
    # On a CPU a batch should fit into the cache; a GPU takes all images at once.
    batch_size = max(1, len(annotated))
    if device.type == "cpu":
        batch_size = max(4, 2**17 // annotated.shape[-1] ** 2)
    batches = []
    for maps, masks in zip(
        maps_normalised.split(batch_size), annotated.split(batch_size), strict=True
    ):
        values = upsample(maps, annotated.shape[-1])
        iou = [mask_iou(values >= level, masks) for level in levels]
        batches.append(torch.stack(iou))
    undefined = ~maps_normalised.isfinite().flatten(1).all(1)
    return torch.cat(batches, 1).masked_fill(undefined, torch.nan)
