"""Overlap of class activation maps with annotated boxes: heat map to mask to IoU and IoU-B (Du et al. 2024), at many thresholds at once."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


def box_masks(boxes: Tensor, size: int) -> Tensor:
    """Mark the pixels inside any box of an image: Du et al. 2024, equation (5), the union of all boxes.

    (B, M, 4) integers x0, y0, x1, y1 in pixels, half-open, zeros for padding, cut off at the edge -> (B, S, S) bool, rows (y) first.
    """
    parts, place = [], torch.arange(size, device=boxes.device)
    for part in boxes.long().unsqueeze(-1).split(1024):
        x0, y0, x1, y1 = part.unbind(-2)
        rows, columns = (place >= y0) & (place < y1), (place >= x0) & (place < x1)
        # As a product of matrices, because (B, M, S, S) would not fit in memory where one image has many boxes.
        parts.append(torch.einsum("bmy,bmx->byx", rows.float(), columns.float()) > 0)
    return torch.cat(parts)


def upsample(maps: Tensor, size: int) -> Tensor:
    """Enlarge maps to the size of the images, bilinearly with aligned edges, not corners: (B, h, w) -> (B, S, S)."""
    return F.interpolate(maps.unsqueeze(1), size=(size, size), mode="bilinear", align_corners=False).squeeze(1)


def cam_masks(maps_normalised: Tensor, size: int, threshold: float = 0.1) -> Tensor:
    """Where a network looks: ``A_L = 1[M >= threshold]`` of the enlarged map; Du et al. 2024, equations (3), (4); (B, S, S) bool."""
    check_threshold(threshold)
    return upsample(maps_normalised, size) >= threshold


def check_threshold(threshold: float) -> None:
    """Refuse a threshold at which even an empty map would cover the image, or none could."""
    if not 0 < threshold < 1:
        raise ValueError(f"threshold {threshold} must be between 0 and 1, both excluded (the paper takes 0.1)")


def bounding_rectangles(masks: Tensor) -> Tensor:
    """Find the smallest upright rectangle around all pixels of each mask: (B, H, W) bool -> (B, 4) int64 x0, y0, x1, y1, half-open.

    Zeros for an empty mask.
    """
    edges = []
    for axis in (1, 2):
        occupied = masks.view(torch.uint8).amax(axis)  # any() is several times slower
        last = occupied.shape[1] - occupied.flip(1).argmax(1)
        edges += [occupied.argmax(1), torch.where(occupied.amax(1) > 0, last, 0)]
    return torch.stack([edges[0], edges[2], edges[1], edges[3]], 1)


def mask_iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of two masks: ``|a and b| / |a or b|``; Du et al. 2024, equation (2).

    Two (B, H, W) bool -> (B,) in [0, 1]: 0 where one is empty, NaN where both are (a missing annotation is not rewarded).
    """
    return (a & b).flatten(1).sum(1) / (a | b).flatten(1).sum(1)


def iou_and_iou_b(maps_normalised: Tensor, boxes: Tensor, size: int, threshold: float = 0.1) -> tuple[Tensor, Tensor]:
    """Overlap of where the network looks with the boxes, by pixel (IoU) and by bounding rectangle (IoU-B), see ``overlaps``: two (B,)."""
    iou, iou_b = overlaps(maps_normalised, annotated(box_masks(boxes, size)), [threshold])
    return iou[0], iou_b[0]


class CountedBoxes(NamedTuple):
    """Masks of images, counted once for any number of maps."""

    inside: Tensor  # (B, S, S) bool
    before: Tensor  # (B, S + 1, S + 1) int32, annotated pixels in the first y rows and x columns

    def of(self, images: Tensor | slice) -> "CountedBoxes":
        """Take some images."""
        return CountedBoxes(self.inside[images], self.before[images])

    def pixels(self) -> Tensor:
        """Count the annotated pixels of each image: (B,) int32."""
        return self.before[:, -1, -1]


def annotated(masks: Tensor) -> CountedBoxes:
    """Prepare masks of any shape, of boxes or made by a machine: (B, S, S) bool."""
    return CountedBoxes(masks, F.pad(masks.cumsum(1, dtype=torch.int32).cumsum(2, dtype=torch.int32), (1, 0, 1, 0)))


def overlaps(maps_normalised: Tensor, annotation: CountedBoxes, thresholds: Sequence[float]) -> tuple[Tensor, Tensor]:
    """IoU and IoU-B of Du et al. 2024, equations (2) to (5), at every threshold, from maps that are enlarged once.

    (B, h, w) maps in [0, 1] and T thresholds give two (T, B) tensors in [0, 1]; larger promises better generalization. IoU-B takes the
    smallest rectangle around the mask, which can grow beyond the box. An empty mask scores 0; NaN where there is neither mask nor box,
    or the map is not finite.
    """
    for threshold in thresholds:
        check_threshold(threshold)
    if len(maps_normalised) != (images := len(annotation.inside)):
        raise ValueError(f"{len(maps_normalised)} maps do not fit the annotations of {images} images; there must be one map for each image")
    # In the type of the maps, as a comparison with a Python number would be made.
    levels, order = torch.tensor(list(thresholds), dtype=torch.float64).to(maps_normalised).sort()
    found = torch.empty(2, len(levels), len(maps_normalised), device=maps_normalised.device)
    # A processor's cache holds what is worked out for some images; a GPU takes all at once.
    step = max(4, 2**17 // annotation.inside.shape[-1] ** 2) if maps_normalised.device.type == "cpu" else max(1, len(maps_normalised))
    for start in range(0, len(maps_normalised), step):
        part = slice(start, start + step)
        boxes, values = annotation.of(part), upsample(maps_normalised[part], annotation.inside.shape[-1])
        counted = (_pixel_overlaps(values, boxes.inside, levels), _rectangle_overlaps(values, boxes.before, levels))
        found[:, :, part] = torch.stack([shared / (marked + boxes.pixels() - shared) for shared, marked in counted])
    found.masked_fill_(~maps_normalised.isfinite().flatten(1).all(1), torch.nan)
    iou, iou_b = torch.empty_like(found).index_copy_(1, order, found)
    return iou, iou_b


def _pixel_overlaps(values: Tensor, inside: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
    """Count the pixels at or above each of the sorted levels, inside the boxes and in all: (T, B) int64 each."""
    count, bins = len(values), len(levels) + 1
    image = torch.arange(count, device=values.device, dtype=torch.int32).view(-1, 1, 1)
    place = torch.bucketize(values, levels, right=True, out_int32=True).add_(inside, alpha=bins).add_(image, alpha=2 * bins)
    below = torch.bincount(place.flatten(), minlength=count * 2 * bins).view(count, 2, bins)
    above = below.flip(2).cumsum(2).flip(2)[:, :, 1:]
    return above[:, 1].T, above.sum(1).T


def _rectangle_overlaps(values: Tensor, before: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
    """Count the pixels of the bounding rectangle of the mask at each level, inside the boxes and in all: (T, B) whole numbers each."""
    # A row is part of the mask when its largest value is.
    y0, y1 = _extent(values.amax(2), levels)
    x0, x1 = _extent(values.amax(1), levels)
    image = torch.arange(len(values), device=values.device)
    shared = before[image, y1, x1] - before[image, y0, x1] - before[image, y1, x0] + before[image, y0, x0]
    return shared, (y1 - y0) * (x1 - x0)


def _extent(largest: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
    """First and behind-the-last position that reach each of the sorted levels: (B, S) -> two (T, B) int64, 0 where none does."""
    wanted = levels.expand(len(largest), -1).contiguous()
    # The running maximum is sorted, so that a level's place in it is found by halving.
    first = torch.searchsorted(largest.cummax(1).values, wanted)
    last = largest.shape[1] - torch.searchsorted(largest.flip(1).cummax(1).values, wanted)
    occupied = first < last
    return torch.where(occupied, first, 0).T, torch.where(occupied, last, 0).T
