"""Does the network look at the object: heat map to mask to overlap with the boxes (Du et al. 2024), at many thresholds at once."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor


def spans(starts: Tensor, stops: Tensor, length: int) -> Tensor:
    """Mark start <= position < stop: (...,) and (...,) int -> (..., length) bool."""
    positions = torch.arange(length, device=starts.device)
    return (positions >= starts.unsqueeze(-1)) & (positions < stops.unsqueeze(-1))


def box_masks(boxes: Tensor, size: int) -> Tensor:
    """Mark the pixels inside any box of an image: Du et al. 2024, equation (5), the union of all boxes.

    Args:
        boxes: (B, M, 4) integers x0, y0, x1, y1 in pixels, half-open; a row of zeros is padding. What lies outside is cut off.
        size: side S of the square images, pixels.

    Returns:
        (B, S, S) bool, rows (y) first.
    """
    x0, y0, x1, y1 = boxes.long().unbind(-1)
    rows, columns = spans(y0, y1, size), spans(x0, x1, size)
    # As a product of matrices, because (B, M, S, S) would not fit in memory where one image has many boxes.
    return torch.einsum("bmy,bmx->byx", rows.float(), columns.float()) > 0


@torch.no_grad()
def upsample(maps: Tensor, size: int) -> Tensor:
    """Enlarge maps to the size of the images, bilinearly with aligned edges, not corners: (B, h, w) float -> (B, S, S).

    The values are those of ``torch.nn.functional.interpolate`` but for the last bit, in a quarter of its time on a processor, and like
    its they do not depend on which maps stand beside a map, as those of a product of matrices would.
    """
    columns, rows = (_neighbours(length, size, maps.device, maps.dtype) for length in (maps.shape[2], maps.shape[1]))
    wide = torch.lerp(maps.index_select(2, columns[0]), maps.index_select(2, columns[1]), columns[2])
    enlarged, share = maps.new_empty(len(maps), size, size), rows[2].unsqueeze(1)
    # A processor's cache holds some maps; beyond it, new memory for the parts costs more than the sums.
    step = max(1, 2**16 // size**2) if maps.device.type == "cpu" else max(1, len(maps))
    for part, given in zip(enlarged.split(step), wide.split(step), strict=True):
        torch.lerp(given.index_select(1, rows[0]), given.index_select(1, rows[1]), share, out=part)
    return enlarged


@lru_cache(maxsize=64)
def _neighbours(length: int, size: int, device: torch.device, kind: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The cells that each of S positions lies between, and the share of the second: three (S,), two int64 and one of the maps' type."""
    with torch.inference_mode(False):
        place = ((torch.arange(size, device=device, dtype=torch.float64) + 0.5) * length / size - 0.5).clamp_(min=0)
        first = place.long()
        return first, (first + 1).clamp_(max=length - 1), (place - first).to(kind)


def cam_masks(maps_normalised: Tensor, size: int, threshold: float = 0.1) -> Tensor:
    """Mark where a network looks: ``A_L = 1[M >= threshold]``; Du et al. 2024, equations (3) and (4).

    The order is that of the authors' code: normalised at low resolution, enlarged, then cut.

    Args:
        maps_normalised: (B, h, w) in [0, 1), see ``closed_form.normalise_maps``.
        size: side S of the images, pixels.
        threshold: in (0, 1); the paper takes 0.1.

    Returns:
        (B, S, S) bool; all False for a constant map.

    Raises:
        ValueError: the threshold is not between 0 and 1; at 0 even an empty map would cover the image.
    """
    return masks_at(upsample(maps_normalised, size), threshold)


def masks_at(enlarged: Tensor, threshold: float) -> Tensor:
    """Masks of maps that have the size of the images: (B, S, S) -> (B, S, S) bool; see ``cam_masks``."""
    if not 0 < threshold < 1:
        raise ValueError(f"threshold {threshold} must be between 0 and 1, both excluded (the paper takes 0.1)")
    return enlarged >= threshold


def bounding_rectangles(masks: Tensor) -> Tensor:
    """Find the smallest upright rectangle around all the pixels of a mask, over all its components.

    Args:
        masks: (B, H, W) bool.

    Returns:
        (B, 4) int64 x0, y0, x1, y1, half-open; zeros for an empty mask.
    """
    edges = []
    for axis in (1, 2):
        # The largest byte says the same as any(), several times faster.
        occupied = masks.view(torch.uint8).amax(axis)
        first, last = occupied.argmax(1), occupied.shape[1] - occupied.flip(1).argmax(1)
        edges.append((first, torch.where(occupied.any(1).bool(), last, 0)))
    (x0, x1), (y0, y1) = edges
    return torch.stack([x0, y0, x1, y1], 1)


def _filled(rectangles: Tensor, masks: Tensor) -> Tensor:
    x0, y0, x1, y1 = rectangles.unbind(1)
    return spans(y0, y1, masks.shape[1]).unsqueeze(2) & spans(x0, x1, masks.shape[2]).unsqueeze(1)


def mask_iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of two masks: ``|a and b| / |a or b|``; Du et al. 2024, equation (2).

    Args:
        a: (B, H, W) bool.
        b: (B, H, W) bool.

    Returns:
        (B,) in [0, 1]; 0 where one mask is empty, NaN where both are (a missing annotation is not rewarded).

    Raises:
        ValueError: the shapes differ.
    """
    if a.shape != b.shape:
        raise ValueError(f"the masks have shapes {tuple(a.shape)} and {tuple(b.shape)}; they must be equal")
    return pixels(a & b) / pixels(a | b)


def pixels(masks: Tensor) -> Tensor:
    """Count the marked pixels of each mask: (B, H, W) bool -> (B,) int32, which is summed several times faster than int64."""
    return masks.flatten(1).sum(1, dtype=torch.int32)


MASK_COLUMNS = ["iou", "iou_b", "empty_map", "empty_box", "map_pixels", "box_pixels", "common_pixels", "x0", "y0", "x1", "y1"]


def not_finite(maps: Tensor) -> Tensor:
    """Whether a map holds a NaN or an infinity, where an empty mask would pass for a network that looks nowhere: (B, h, w) -> (B,) bool."""
    return ~maps.isfinite().all(2).all(1)


def masks_compared(attention: Tensor, annotation: Tensor, undefined: Tensor) -> Tensor:
    """``MASK_COLUMNS`` of the masks of maps and boxes, see ``image_scores``: two (B, S, S) bool, (B,) bool -> (11, B) float32."""
    marked, boxed, common = (pixels(masks) for masks in (attention, annotation, attention & annotation))
    rectangles = bounding_rectangles(attention)
    x0, y0, x1, y1 = rectangles.unbind(1)
    around, shared = (y1 - y0) * (x1 - x0), pixels(_filled(rectangles, attention) & annotation)
    found = [both / (own + boxed - both) for both, own in ((common, marked), (shared, around))]
    columns = [*(iou.masked_fill(undefined, torch.nan) for iou in found), marked == 0, boxed == 0, marked, boxed, common, x0, y0, x1, y1]
    return torch.stack([column.float() for column in columns])


def overlap_table(columns: Tensor) -> pd.DataFrame:
    """One row per image: (11, N) of ``masks_compared`` as a table, see ``image_scores``."""
    kinds, values = ["float64"] * 2 + [bool] * 2 + ["int64"] * 7, columns.cpu().double().numpy()
    return pd.DataFrame({name: row.astype(kind) for name, row, kind in zip(MASK_COLUMNS, values, kinds, strict=True)})


def iou_and_iou_b(maps_normalised: Tensor, boxes: Tensor, size: int, threshold: float = 0.1) -> tuple[Tensor, Tensor]:
    """Overlap of where the network looks with the boxes: by pixel (IoU) and by bounding rectangle (IoU-B); Du et al. 2024.

    A larger value is expected to go with better generalization. IoU-B may be below IoU: the rectangle can grow beyond the box.

    Args:
        maps_normalised: (B, h, w) in [0, 1), see ``closed_form.normalise_maps``.
        boxes: (B, M, 4) integers, see ``box_masks``.
        size: side of the images, pixels.
        threshold: in (0, 1).

    Returns:
        Two (B,) tensors in [0, 1]. An empty map scores 0; NaN where there is neither map nor box, or the map is not finite.

    Raises:
        ValueError: the threshold is not between 0 and 1.
    """
    masks = cam_masks(maps_normalised, size, threshold), box_masks(boxes, size)
    iou, iou_b, *_ = masks_compared(*masks, not_finite(maps_normalised))
    return iou, iou_b


def image_scores(
    maps_normalised: Tensor, boxes: Tensor, size: int, threshold: float = 0.1, *, device: torch.device | str = "cpu", batch_size: int = 0
) -> pd.DataFrame:
    """Compare every map with the boxes of its image, a batch at a time so that masks of many images never lie in memory together.

    Args:
        maps_normalised: (N, h, w) in [0, 1), see ``closed_form.normalise_maps``.
        boxes: (N, M, 4) integers, see ``box_masks``.
        size: side of the images, pixels.
        threshold: of the map, in (0, 1).
        device: where to compute.
        batch_size: images at a time; 0 takes as many as suit the device. No value depends on it.

    Returns:
        One row per image, in order: iou and iou_b in [0, 1] or NaN, empty_map (no pixel of the map reaches the threshold), empty_box
        (no annotated pixel), map_pixels, box_pixels and common_pixels (in the mask, in the boxes, in both), and x0, y0, x1, y1 of the
        rectangle around the mask, pixels, half-open, zeros for an empty mask.

    Raises:
        ValueError: there are no images, or not one row of boxes per map.
    """
    if not len(maps_normalised) or len(maps_normalised) != len(boxes):
        raise ValueError(f"{len(maps_normalised)} maps and boxes of {len(boxes)} images cannot be scored; one of each per image is needed")
    # A processor's cache holds the masks of some ten images, and several passes go over them.
    parts, batch_size = [], batch_size or (1024 if torch.device(device).type == "cuda" else 32)
    for start in range(0, len(boxes), batch_size):
        maps = maps_normalised[start : start + batch_size].to(device)
        masks = cam_masks(maps, size, threshold), box_masks(boxes[start : start + batch_size].to(device), size)
        parts.append(masks_compared(*masks, not_finite(maps)))
    return overlap_table(torch.cat(parts, 1))


_CELLS = 64  # of the interval from 0 to 1; a power of two, so that no rounding puts a value into another cell


class CountedBoxes(NamedTuple):
    """Masks of images, counted once for any number of maps."""

    inside: Tensor  # (B, S, S) int32, 1 where a pixel is annotated, else 0
    before: Tensor  # (B, S + 1, S + 1) int32, annotated pixels in the first y rows and x columns

    def of(self, images: Tensor | slice) -> "CountedBoxes":
        """Take some images."""
        return CountedBoxes(self.inside[images], self.before[images])

    def pixels(self) -> Tensor:
        """Count the annotated pixels of each image: (B,) int32."""
        return self.before[:, -1, -1]


def annotated(masks: Tensor) -> CountedBoxes:
    """Prepare masks of any shape, such as those of ``overlap.box_masks`` or ``saliency``: (B, S, S) bool."""
    inside = masks.int()
    before = torch.nn.functional.pad(inside.cumsum(1, dtype=torch.int32).cumsum(2, dtype=torch.int32), (1, 0, 1, 0))
    return CountedBoxes(inside, before)


def overlaps(maps_normalised: Tensor, annotation: CountedBoxes, thresholds: Sequence[float]) -> tuple[Tensor, Tensor]:
    """IoU and IoU-B of Du et al. 2024, equations (2) to (5), at every threshold, from maps that are enlarged once.

    Row t holds, bit for bit, what ``overlap.iou_and_iou_b`` gives for threshold t.

    Args:
        maps_normalised: (B, h, w) in [0, 1), see ``closed_form.normalise_maps``.
        annotation: of the same B images, see ``annotated``; several maps of the same images share it.
        thresholds: T numbers in (0, 1), in any order.

    Returns:
        Two (T, B) tensors in [0, 1], larger promises better generalization. An empty mask scores 0; NaN where there is neither mask
        nor box, or the map is not finite.

    Raises:
        ValueError: no threshold, one that is not between 0 and 1, or another number of maps than of masks.
    """
    _check(maps_normalised, annotation.inside, thresholds)
    # In the type of the maps, as a comparison with a Python number would be made.
    levels, order = torch.tensor(list(thresholds), dtype=torch.float64).to(maps_normalised).sort()
    bins = _bins(levels)
    results = torch.empty(2, len(levels), len(maps_normalised), device=maps_normalised.device)
    # A processor's cache holds what is worked out for some images; a GPU takes all at once.
    step = max(4, 2**17 // annotation.inside.shape[-1] ** 2) if maps_normalised.device.type == "cpu" else max(1, len(maps_normalised))
    for start in range(0, len(maps_normalised), step):
        part = slice(start, start + step)
        results[:, :, part] = _overlaps_at_levels(maps_normalised[part], annotation.of(part), levels, bins)
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


def _overlaps_at_levels(maps: Tensor, annotation: CountedBoxes, levels: Tensor, bins: tuple[Tensor, Tensor]) -> Tensor:
    """IoU and IoU-B of a few images: (2, T, B) for sorted levels and their ``_bins``."""
    values = upsample(maps, annotation.inside.shape[-1])
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
    """First and behind-the-last position that reach each of the sorted levels: (B, S) -> two (T, B) int64, 0 where none does."""
    wanted = levels.expand(len(largest), -1).contiguous()
    # The running maximum is sorted, so that a level's place in it is found by halving.
    first = torch.searchsorted(largest.cummax(1).values, wanted)
    last = largest.shape[1] - torch.searchsorted(largest.flip(1).cummax(1).values, wanted)
    occupied = first < last
    return torch.where(occupied, first, 0).T, torch.where(occupied, last, 0).T
