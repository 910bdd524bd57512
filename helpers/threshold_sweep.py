"""The overlap of heat maps with boxes at many thresholds, for the price of one: counted from a histogram, not mask by mask."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from helpers import localization

_CELLS = 64  # of the interval from 0 to 1; a power of two, so that no rounding puts a value into another cell


class Annotation(NamedTuple):
    """Masks of images, counted once for any number of maps."""

    inside: Tensor  # (B, S, S) int32, 1 where a pixel is annotated, else 0
    before: Tensor  # (B, S + 1, S + 1) int32, annotated pixels in the first y rows and x columns

    def of(self, images: Tensor | slice) -> "Annotation":
        """Take some images."""
        return Annotation(self.inside[images], self.before[images])

    def pixels(self) -> Tensor:
        """Count the annotated pixels of each image: (B,) int32."""
        return self.before[:, -1, -1]


def annotated(masks: Tensor) -> Annotation:
    """Prepare masks of any shape, such as those of ``localization.box_masks`` or ``saliency``: (B, S, S) bool."""
    inside = masks.int()
    before = torch.nn.functional.pad(inside.cumsum(1, dtype=torch.int32).cumsum(2, dtype=torch.int32), (1, 0, 1, 0))
    return Annotation(inside, before)


def overlaps_at_thresholds(maps_normalised: Tensor, boxes: Tensor, size: int, thresholds: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Compute IoU and IoU-B of Du et al. 2024, equations (2) to (5), at every threshold, from maps that are enlarged once.

    Row t holds, bit for bit, what ``localization.iou_and_iou_b`` gives for threshold t.

    Args:
        maps_normalised: (B, h, w) in [0, 1), see ``cams.normalise``.
        boxes: (B, M, 4) integers, see ``localization.box_masks``.
        size: side S of the images, pixels.
        thresholds: T numbers in (0, 1), in any order.

    Returns:
        Two (T, B) tensors in [0, 1], larger promises better generalization. An empty mask scores 0; NaN where there is neither mask
        nor box, or the map is not finite.

    Raises:
        ValueError: no threshold, one that is not between 0 and 1, or another number of maps than of images with boxes.
    """
    return overlaps(maps_normalised, annotated(localization.box_masks(boxes, size)), thresholds)


def overlaps(maps_normalised: Tensor, annotation: Annotation, thresholds: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Compute the same with prepared masks, which several maps of the same images share.

    Args:
        maps_normalised: (B, h, w) in [0, 1), see ``cams.normalise``.
        annotation: of the same B images, see ``annotated``.
        thresholds: T numbers in (0, 1), in any order.

    Returns:
        Two (T, B) tensors as for ``overlaps_at_thresholds``.

    Raises:
        ValueError: no threshold, one that is not between 0 and 1, or another number of maps than of masks.
    """
    _check(maps_normalised, annotation.inside, thresholds)
    # In the type of the maps, as a comparison with a Python number would be made.
    levels, order = torch.tensor(list(thresholds), dtype=torch.float64).to(maps_normalised).sort()
    bins = _bins(levels)
    results = torch.empty(2, len(levels), len(maps_normalised), device=maps_normalised.device)
    # A processor's cache holds what is worked out for some images; a GPU takes all at once.
    step = 8 if maps_normalised.device.type == "cpu" else max(1, len(maps_normalised))
    for start in range(0, len(maps_normalised), step):
        part = slice(start, start + step)
        results[:, :, part] = _overlaps(maps_normalised[part], annotation.of(part), levels, bins)
    iou, iou_b = torch.empty_like(results).index_copy_(1, order, results)
    return iou, iou_b


def _check(maps: Tensor, annotations: Tensor, thresholds: Sequence[float]) -> None:
    if not len(thresholds):
        raise ValueError("thresholds is empty; give at least one, between 0 and 1 (the paper takes 0.1)")
    for threshold in thresholds:
        if not 0 < threshold < 1:
            raise ValueError(f"threshold {threshold} must be between 0 and 1, both excluded (the paper takes 0.1)")
    if len(maps) != len(annotations):
        raise ValueError(f"{len(maps)} maps do not fit the annotations of {len(annotations)} images; there must be one map for each image")


def _overlaps(maps: Tensor, annotation: Annotation, levels: Tensor, bins: tuple[Tensor, Tensor]) -> Tensor:
    """IoU and IoU-B of a few images: (2, T, B) for sorted levels and their ``_bins``."""
    values = localization.upsample(maps, annotation.inside.shape[-1])
    counted = (_pixel_overlaps(values, annotation.inside, *bins), _rectangle_overlaps(values, annotation.before, levels))
    found = torch.stack([shared / (marked + annotation.pixels() - shared) for shared, marked in counted])
    return found.masked_fill(~maps.isfinite().all(2).all(1), torch.nan)


def _pixel_overlaps(values: Tensor, inside: Tensor, places: Tensor, limits: Tensor) -> tuple[Tensor, Tensor]:
    """Count the pixels at or above each level, inside the boxes and in all: (T, B) int64 each; see ``_bins``."""
    count, bins = len(values), (_CELLS + 1) * (len(limits) + 1)
    # What is infinite or NaN falls anywhere; such maps are taken out at the end.
    cell = (values * _CELLS).int().clamp_(0, _CELLS)
    place = cell * (len(limits) + 1)
    for limit in limits:
        place += values >= limit.index_select(0, cell.flatten()).view_as(values)
    image = torch.arange(count, device=values.device, dtype=torch.int32).view(-1, 1, 1)
    place.add_(inside, alpha=bins).add_(image, alpha=2 * bins)
    pixels = torch.bincount(place.flatten(), minlength=count * 2 * bins).view(count, 2, bins)
    above = pixels.flip(2).cumsum(2).flip(2)[:, :, places]
    return above[:, 1].T, above.sum(1).T


def _bins(levels: Tensor) -> tuple[Tensor, Tensor]:
    """Divide the values so finely that no level lies amid a bin: by equal cells, and within a cell by its levels.

    Comparing a value with the levels of its own cell takes half the time of finding its place among all levels.

    Args:
        levels: (T,) in (0, 1), sorted.

    Returns:
        (T,) the first bin above each level, where a cell has one bin more than there are limits; (D, cells) limits of each cell, the
        levels in it, and infinity where there are fewer than D.
    """
    cells = (levels * _CELLS).long()
    rank = torch.arange(len(levels), device=levels.device) - torch.searchsorted(cells, cells)
    depth = int(rank.max()) + 1
    limits = levels.new_full((depth, _CELLS + 1), torch.inf)
    limits[rank, cells] = levels
    return cells * (depth + 1) + rank + 1, limits


def _rectangle_overlaps(values: Tensor, before: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
    """Count the pixels of the bounding rectangle of the mask at each level, inside the boxes and in all: (T, B) whole numbers each."""
    # A row is part of the mask when its largest value is.
    y0, y1 = _extent(values.amax(2), levels)
    x0, x1 = _extent(values.amax(1), levels)
    image = torch.arange(len(values), device=values.device)
    shared = before[image, y1, x1] - before[image, y0, x1] - before[image, y1, x0] + before[image, y0, x0]
    return shared, (y1 - y0) * (x1 - x0)


def _extent(largest: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
    """Find first and behind-the-last position that reach each level: (B, S) -> two (T, B) int64, equal where none does."""
    occupied = largest >= levels.view(-1, 1, 1)
    first, last = occupied.byte().argmax(2), largest.shape[1] - occupied.flip(2).byte().argmax(2)
    return first, torch.where(occupied.any(2), last, first)
