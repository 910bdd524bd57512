"""The overlap of heat maps with boxes at many thresholds, for the price of one: counted from a histogram, not mask by mask."""

from collections.abc import Sequence

import torch
from torch import Tensor

from helpers import localization


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
    return overlaps_with_masks(maps_normalised, localization.box_masks(boxes, size), thresholds)


def overlaps_with_masks(maps_normalised: Tensor, masks: Tensor, thresholds: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Compute the same with masks of any shape in place of boxes, such as those of ``saliency``.

    Args:
        maps_normalised: (B, h, w) in [0, 1), see ``cams.normalise``.
        masks: (B, S, S) bool.
        thresholds: T numbers in (0, 1), in any order.

    Returns:
        Two (T, B) tensors as for ``overlaps_at_thresholds``.

    Raises:
        ValueError: no threshold, one that is not between 0 and 1, or another number of maps than of masks.
    """
    _check(maps_normalised, masks, thresholds)
    values = localization.upsample(maps_normalised, masks.shape[-1])
    # In the type of the maps, as a comparison with a Python number would be made.
    levels, order = torch.tensor(list(thresholds), dtype=torch.float64).to(values).sort()
    undefined = ~maps_normalised.isfinite().all(2).all(1)
    results, annotated = [], localization.pixels(masks)
    for shared, marked in (_pixel_overlaps(values, masks, levels), _rectangle_overlaps(values, masks, levels)):
        overlap = shared / (marked + annotated - shared)
        results.append(torch.empty_like(overlap).index_copy_(0, order, overlap).masked_fill(undefined, torch.nan))
    return results[0], results[1]


def _check(maps: Tensor, annotations: Tensor, thresholds: Sequence[float]) -> None:
    if not len(thresholds):
        raise ValueError("thresholds is empty; give at least one, between 0 and 1 (the paper takes 0.1)")
    for threshold in thresholds:
        if not 0 < threshold < 1:
            raise ValueError(f"threshold {threshold} must be between 0 and 1, both excluded (the paper takes 0.1)")
    if len(maps) != len(annotations):
        raise ValueError(f"{len(maps)} maps do not fit the annotations of {len(annotations)} images; there must be one map for each image")


def _pixel_overlaps(values: Tensor, annotation: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
    """Count the pixels at or above each level, inside the boxes and in all: (T, B) int64 each."""
    count, bins = len(values), len(levels) + 1
    # A pixel in bin t reaches the first t levels. NaN falls anywhere; such maps are taken out at the end.
    reached = torch.bucketize(values, levels, right=True, out_int32=True)
    image = torch.arange(count, device=values.device, dtype=torch.int32).view(-1, 1, 1)
    place = reached.add_(annotation, alpha=bins).add_(image, alpha=2 * bins)  # in place: at 224 px memory is what this waits for
    pixels = torch.bincount(place.flatten(), minlength=count * 2 * bins).view(count, 2, bins)
    # Bin 0 reaches no level; from the highest bin down, the sum up to bin t is what reaches level t.
    above = pixels.flip(2).cumsum(2).flip(2)[:, :, 1:]
    return above[:, 1].T, above.sum(1).T


def _rectangle_overlaps(values: Tensor, annotation: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
    """Count the pixels of the bounding rectangle of the mask at each level, inside the boxes and in all: (T, B) whole numbers each."""
    # A row is part of the mask when its largest value is.
    y0, y1 = _extent(values.amax(2), levels)
    x0, x1 = _extent(values.amax(1), levels)
    rows, columns = (localization.spans(*ends, values.shape[1]).float().transpose(0, 1) for ends in ((y0, y1), (x0, x1)))
    # How many annotated pixels of each column lie in the rows of the rectangle; as a product of matrices, exact below 2^24.
    shared = (torch.bmm(rows, annotation.float()) * columns).sum(2).T
    return shared, (y1 - y0) * (x1 - x0)


def _extent(largest: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
    """Find first and behind-the-last position that reach each level: (B, S) -> two (T, B) int64, equal where none does."""
    occupied = largest >= levels.view(-1, 1, 1)
    first, last = occupied.byte().argmax(2), largest.shape[1] - occupied.flip(2).byte().argmax(2)
    return first, torch.where(occupied.any(2), last, first)
