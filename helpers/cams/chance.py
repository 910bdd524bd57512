"""Overlap of maps with boxes, and with boxes of other images: what chance has of it.

Scores of a map with the boxes of an image:

- iou: of the mask (Du et al. 2024);
- energy_in_box: share of the map's sum in the boxes (Wang et al. 2020, energy-based
  pointing game), 0 for a map of zeros;
- pointing_game: 1 when the mean place of the map's maxima is in the boxes (Zhang et al.
  2018, without a tolerance);
- area_matched_iou: IoU at the highest level at which the mask is at least as large as
  the boxes;
- pixel_average_precision: area under precision over recall of the pixels, ranked by the
  map (PxAP of Choe et al. 2020).

With the boxes of its own image alone: iou_b of the rectangle around the mask (Du et al.
2024), its box_iou with the box that fits best, and box_found, 1 where that reaches 0.5
(Russakovsky et al. 2015).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from helpers.cams import detection, overlap

SHUFFLES = 8  # other images whose boxes each map is compared with
LEVELS = 1000  # steps of a map that pixels are ranked by, as Choe et al. 2020 (code)
SHUFFLED = "_shuffled"  # ends the column of a score with the boxes of other images

# Scores of a map and the boxes of an image, see ``chance_scores``. The measures of four
# of them are less their chance.
LESS_CHANCE = (
    "energy_in_box",
    "pointing_game",
    "area_matched_iou",
    "pixel_average_precision",
)
SCORES = ("iou", *LESS_CHANCE)
ABOVE = "_above_shuffled"  # ends the name of a measure that is a score less its chance
CORRECTED = ("iou" + ABOVE, *LESS_CHANCE)  # measures that are less their chance


def derangements(count: int, shuffles: int = SHUFFLES) -> Tensor:
    """For each image, the other images that lend it their boxes.

    The next K in one fixed random order.

    Args:
        count: images.
        shuffles: K; fewer where there are not so many others.

    Returns:
        (count, K) int64.

    Example:
        >>> derangements(3, 1).flatten().tolist()
        [1, 2, 0]
    """
    order = torch.from_numpy(np.random.default_rng(0).permutation(count))
    places = order.argsort().unsqueeze(1)  # of each image in the order
    steps = 1 + torch.arange(min(shuffles, max(0, count - 1)))
    return order[(places + steps) % max(1, count)]


def central_map() -> Tensor:
    """A blob in the middle, the same for every image.

    Returns:
        (8, 8) in [0, 1]: a Gaussian with a standard deviation of 2.
    """
    place = (torch.arange(8, dtype=torch.float64) - 3.5) / 2
    blob = torch.exp(-(place[:, None] ** 2 + place**2) / 2)
    return ((blob - blob.min()) / (blob.max() - blob.min())).float()


def chance_scores(
    maps_normalised: Tensor,
    boxes: Tensor,
    size: int,
    threshold: float = 0.1,
    device: torch.device | str = "cpu",
    rule: str = "maximum",
) -> pd.DataFrame:
    """Compare every map with the boxes of its image, and with those of other images.

    The second is its chance: one map for all images has a mean of exactly 0 once its
    chance is taken off.

    Args:
        maps_normalised: (N, h, w) in [0, 1].
        boxes: (N, M, 4) integers, see ``overlap.box_masks``; an image has one at least.
        size: side S of the images in pixels; S^2 bytes of memory an image are taken.
        threshold: of the map.
        device: where it is computed.
        rule: by which the threshold cuts, see ``overlap.cut``.

    Returns:
        A row per image: ``SCORES``, and the mean of each with the boxes of other images
        under its name and ``SHUFFLED``; iou_b, box_iou and box_found; areas as pixels
        and shares; and the rectangle x0, y0, x1, y1, half-open, zeros for an empty
        mask. NaN where a map is not finite.

    Raises:
        ValueError: where no image has a box.
    """
    device = torch.device(device)
    maps = maps_normalised.to(device).float()
    boxes = boxes.to(device)
    in_boxes = boxed(boxes, size)
    images = torch.arange(len(boxes), device=device)
    lenders = derangements(len(boxes)).to(device)
    # A processor's cache holds what some images need; a GPU takes more at once.
    batch_size = 128 if device.type == "cuda" else max(4, 2**17 // size**2)
    cut = partial(overlap.cut, threshold=threshold, rule=rule)
    batches = []
    for batch in images.split(batch_size):
        others = torch.cat([batch.unsqueeze(1), lenders[batch]], 1)
        # (B, 1 + K, S * S): the boxes of the image itself, then of the others.
        targets = in_boxes[others]
        batches.append(_scores(maps[batch], targets, boxes[batch], size, cut))
    columns = {}
    for name in batches[0]:
        values = torch.cat([of_batch[name] for of_batch in batches])
        if values.dtype == torch.float32:
            values = values.double()
        columns[name] = values.cpu().numpy()
    return pd.DataFrame(columns)


def above_shuffled(scores: pd.DataFrame, measure: str) -> pd.Series:
    """A score of each image less its mean with the boxes of other images.

    Args:
        scores: see ``chance_scores``.
        measure: one of ``CORRECTED``.
    """
    name = measure.removesuffix(ABOVE)
    return scores[name] - scores[name + SHUFFLED]


def boxed(boxes: Tensor, size: int) -> Tensor:
    """Pixels inside the boxes of each image.

    Args:
        boxes: (N, M, 4), see ``overlap.box_masks``.
        size: side S of the images in pixels.

    Returns:
        (N, S * S) bool.

    Raises:
        ValueError: where no image has a box.
    """
    masks = overlap.box_masks(boxes, size).flatten(1)
    if not masks.any():
        raise ValueError("these images have no boxes")
    return masks


def _scores(
    maps: Tensor,
    targets: Tensor,
    boxes: Tensor,
    size: int,
    cut: Callable[[Tensor], Tensor],
) -> dict[str, Tensor]:
    """Columns of ``chance_scores``, (B,) each.

    Args:
        maps: (B, h, w), NaN where undefined.
        targets: (B, 1 + K, S * S) bool, the pixels in the boxes of the image itself and
            of those that lend it theirs.
        boxes: (B, M, 4) of the image itself.
        size: side S of the images.
        cut: gives the masks of maps (B, S, S).
    """
    undefined = ~maps.isfinite().flatten(1).all(1)
    values = overlap.upsample(maps.nan_to_num(0, 0, 0), size)
    masks = cut(values)
    values = values.flatten(1)
    shares = targets.float()
    counts = _counted(masks.flatten(1), values, shares)
    matched_iou, precision = _by_levels(values, shares, counts.areas)
    either = counts.marked.unsqueeze(1) + counts.areas - counts.common
    with_chance = {
        "iou": counts.common / either,
        "energy_in_box": (counts.energy / values.sum(1, keepdim=True)).nan_to_num(0),
        "pointing_game": _points_into(maps, targets, size),
        "area_matched_iou": matched_iou,
        "pixel_average_precision": precision,
    }
    rectangles = overlap.bounding_rectangles(masks)
    scores = _of_rectangles(rectangles, targets[:, 0], boxes, size)
    for name, score in with_chance.items():
        scores[name] = score[:, 0].float()
        scores[name + SHUFFLED] = score[:, 1:].float().nanmean(1)
    columns = {
        name: score.masked_fill(undefined, torch.nan) for name, score in scores.items()
    }
    corners = dict(zip(("x0", "y0", "x1", "y1"), rectangles.unbind(1), strict=True))
    return _areas(counts, size) | corners | columns


class _Counts(NamedTuple):
    """Pixels of B masks and of their targets, and what of the maps lies in these."""

    marked: Tensor  # (B,) pixels of the mask
    areas: Tensor  # (B, 1 + K) pixels of each target
    common: Tensor  # (B, 1 + K) pixels of the mask in each target
    energy: Tensor  # (B, 1 + K) sum of the map in each target


def _counted(masks: Tensor, values: Tensor, shares: Tensor) -> _Counts:
    """Count pixels of masks (B, P), and sum maps (B, P), in targets (B, 1 + K, P)."""
    # One product replaces (masks & targets).sum(2) and (values * targets).sum(2).
    # Float32 counts pixels exactly up to 2^24.
    both = torch.stack([masks.float(), values], 1)  # (B, 2, P)
    common, energy = torch.bmm(both, shares.mT).unbind(1)
    marked = masks.sum(1, dtype=torch.int32)
    return _Counts(marked, shares.sum(2).int(), common.int(), energy)


def _areas(counts: _Counts, size: int) -> dict[str, Tensor]:
    """Areas of masks and boxes in pixels and as shares of the image, (B,) each."""
    in_boxes = counts.areas[:, 0]
    return {
        "empty_map": counts.marked == 0,
        "map_pixels": counts.marked,
        "box_pixels": in_boxes,
        "common_pixels": counts.common[:, 0],
        "image_pixels": torch.full_like(counts.marked, size**2),
        "mask_area": counts.marked / size**2,
        "box_area": in_boxes / size**2,
    }


def _of_rectangles(
    rectangles: Tensor, in_boxes: Tensor, boxes: Tensor, size: int
) -> dict[str, Tensor]:
    """Scores of the rectangles around masks, (B,) each.

    Args:
        rectangles: (B, 4).
        in_boxes: (B, S * S) bool, pixels in the boxes of each image.
        boxes: (B, M, 4).
        size: side S of the images.
    """
    filled = overlap.box_masks(rectangles.unsqueeze(1), size).flatten(1)
    box_iou = detection.best_box_iou(rectangles, boxes)
    return {
        "iou_b": overlap.mask_iou(filled, in_boxes),
        "box_iou": box_iou.float(),
        "box_found": (box_iou >= detection.FOUND).float(),
    }


def _points_into(maps: Tensor, targets: Tensor, size: int) -> Tensor:
    """Whether the mean place of a map's maxima is in its targets, (B, 1 + K) bool."""
    # A bilinear map is largest at the centres of its largest cells, so that the place
    # is known without enlarging it.
    is_largest = (maps == maps.amax((1, 2), keepdim=True)).double()
    count = is_largest.sum((1, 2))
    row = _mean_pixel(is_largest.sum(2), count, size)
    column = _mean_pixel(is_largest.sum(1), count, size)
    pixel = (row * size + column).view(-1, 1, 1).expand(-1, targets.shape[1], 1)
    return targets.gather(2, pixel).squeeze(2)


def _mean_pixel(weights: Tensor, count: Tensor, size: int) -> Tensor:
    """Mean place of cells along one side, in pixels of the image.

    Args:
        weights: (B, L) maxima in each of the L cells along the side.
        count: (B,) maxima.
        size: side of the image in pixels.

    Returns:
        (B,) int64.
    """
    cells = weights.shape[1]
    cell = torch.arange(cells, device=weights.device, dtype=torch.float64)
    centres = (cell + 0.5) * size / cells
    mean = (weights * centres).sum(1) / count
    return mean.nan_to_num(0).long().clamp_(0, size - 1)


def _by_levels(values: Tensor, targets: Tensor, areas: Tensor) -> tuple[Tensor, Tensor]:
    """Area-matched IoU and average precision of maps, for each of their targets.

    Args:
        values: (B, P) in [0, 1].
        targets: (B, 1 + K, P), 1 in the target and 0 outside.
        areas: (B, 1 + K), pixels of each target.

    Returns:
        Two (B, 1 + K).
    """
    # Level 0 is the highest. Pixels of a target, and of the image, at each level, and
    # at this level or a higher one.
    level = LEVELS - (values * LEVELS).long().clamp_(0, LEVELS)  # (B, P)
    at_level = torch.zeros(*targets.shape[:2], LEVELS + 1, device=values.device)
    at_level.scatter_add_(2, level.unsqueeze(1).expand_as(targets), targets)
    common = at_level.cumsum(2)
    marked = torch.zeros(len(values), LEVELS + 1, device=values.device)
    marked.scatter_add_(1, level, torch.ones_like(values))
    marked = marked.cumsum(1)  # (B, LEVELS + 1)
    # Levels above the largest value hold nothing: no gain.
    gain = at_level * common / marked.unsqueeze(1).clamp(min=1)
    precision = gain.sum(2) / areas
    # The highest level at which the mask is as large as the target.
    matched = torch.searchsorted(marked, areas.float())
    common = common.gather(2, matched.unsqueeze(2)).squeeze(2)
    marked = marked.gather(1, matched)
    return common / (marked + areas - common), precision
