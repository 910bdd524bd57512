"""Overlap of class activation maps with annotated boxes: heat map to mask to IoU and IoU-B (Du et al. 2024)."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.data.boxes import box_masks as box_masks


def upsample(maps: Tensor, size: int) -> Tensor:
    """Enlarge maps to the size of the images, bilinearly with aligned edges, not corners: (B, h, w) -> (B, S, S)."""
    return F.interpolate(
        maps.unsqueeze(1), size=(size, size), mode="bilinear", align_corners=False
    ).squeeze(1)


def bounding_rectangles(masks: Tensor) -> Tensor:
    """Smallest upright rectangle around each mask: (B, H, W) bool -> (B, 4) int64 x0, y0, x1, y1, half-open, zeros for an empty one."""
    edges = []
    for axis in (1, 2):
        occupied = masks.view(torch.uint8).amax(axis)  # any() is several times slower
        last = occupied.shape[1] - occupied.flip(1).argmax(1)
        edges += [occupied.argmax(1), torch.where(occupied.amax(1) > 0, last, 0)]
    return torch.stack([edges[0], edges[2], edges[1], edges[3]], 1)


def mask_iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of two masks (Du et al. 2024, equation 2): two (B, ...) bool -> (B,) in [0, 1], NaN where both are empty."""
    return (a & b).flatten(1).sum(1) / (a | b).flatten(1).sum(1)


def overlaps(
    maps_normalised: Tensor, annotated: Tensor, thresholds: Sequence[float]
) -> Tensor:
    """IoU of maps (B, h, w) in [0, 1], cut at thresholds in (0, 1), with masks (B, S, S) bool: (T, B), NaN for a map that is not finite.

    A network looks where the enlarged map is at least the threshold; Du et al. 2024, equations (3) and (4).
    """
    # Boxes are kept on the CPU, whatever the device of the network.
    annotated = annotated.to(maps_normalised.device)
    levels, order = torch.tensor(
        thresholds, dtype=maps_normalised.dtype, device=annotated.device
    ).sort()
    # A processor's cache holds what is worked out for some images; a GPU takes all at once.
    step = (
        max(4, 2**17 // annotated.shape[-1] ** 2)
        if maps_normalised.device.type == "cpu"
        else max(1, len(annotated))
    )
    parts, bins = [], len(levels) + 1
    for maps, inside in zip(
        maps_normalised.split(step), annotated.split(step), strict=True
    ):
        # One count for all thresholds: of the pixels of each image, outside and inside, by how many thresholds they reach.
        reached = torch.bucketize(
            upsample(maps, annotated.shape[-1]), levels, right=True, out_int32=True
        ).flatten(1)
        group = 2 * torch.arange(
            len(maps), device=annotated.device, dtype=torch.int32
        ).unsqueeze(1) + inside.flatten(1)
        pixels = torch.bincount(
            (reached + bins * group).flatten(), minlength=2 * bins * len(maps)
        ).view(len(maps), 2, bins)
        at_least = pixels.flip(2).cumsum(2).flip(2)
        common, marked = at_least[:, 1], at_least.sum(1)
        parts.append((common / (marked + common[:, :1] - common))[:, 1:])
    return torch.cat(parts)[:, order.argsort()].T.masked_fill(
        ~maps_normalised.isfinite().flatten(1).all(1), torch.nan
    )
