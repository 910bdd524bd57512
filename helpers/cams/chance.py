"""Overlap of maps with boxes, and with boxes of other images, which is chance level.

Scores of a map with the boxes of an image:

- iou: of the mask (Du et al. 2024);
- energy_in_box: share of the map's sum that lies in the boxes (Wang et al. 2020,
  energy-based pointing game), 0 for a map of zeros;
- pointing_game: 1 if the maximum of the map lies in the boxes, else 0 (Zhang et al.
  2018, without a tolerance); of several maxima their mean position counts;
- area_matched_iou: IoU of the mask at the highest threshold at which it is at least as
  large as the boxes;
- pixel_average_precision: area under the precision-recall curve of the pixels, ranked
  by the map (PxAP of Choe et al. 2020).

Scores with the boxes of the image itself only: iou_b, the IoU of the rectangle around
the mask with the boxes (Du et al. 2024); box_iou, the IoU of that rectangle with the
box that it matches best; box_found, 1 if box_iou is at least 0.5 (Russakovsky et al.
2015).
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from helpers.cams import detection, overlap

SHUFFLES = 8  # other images whose boxes each map is compared with
LEVELS = 1000  # steps in [0, 1] to which maps are rounded, as Choe et al. 2020 (code)
# Ending of the column of a score with the boxes of other images, its chance level.
SHUFFLED = "_shuffled"

# Scores whose measure is the score minus its chance level, under the score's name.
LESS_CHANCE = (
    "energy_in_box",
    "pointing_game",
    "area_matched_iou",
    "pixel_average_precision",
)
SCORES = ("iou", *LESS_CHANCE)
# The IoU alone has two measures: "iou" is the published one, as it is, and
# "iou_above_shuffled" that minus its chance level.
ABOVE = "_above_shuffled"
CORRECTED = ("iou" + ABOVE, *LESS_CHANCE)  # all measures minus their chance level


def derangements(count: int, shuffles: int = SHUFFLES) -> Tensor:
    """Choose for each image K other images, with whose boxes its map is compared.

    They are the next K in one fixed random order of the images.

    Args:
        count: number of images.
        shuffles: K; fewer if there are not as many other images.

    Returns:
        (count, K) int64, numbers of images.

    Example:
        >>> derangements(3, 1).flatten().tolist()
        [1, 2, 0]
    """
    order = torch.from_numpy(np.random.default_rng(0).permutation(count))
    positions = order.argsort().unsqueeze(1)  # (count, 1), of each image in the order
    steps = 1 + torch.arange(min(shuffles, max(0, count - 1)))  # (K,)
    return order[(positions + steps) % max(1, count)]


def central_map() -> Tensor:
    """Make a map with one blob in its middle, a baseline that ignores the image.

    Returns:
        (8, 8) in [0, 1]: a Gaussian with a standard deviation of 2.
    """
    distance = (torch.arange(8, dtype=torch.float64) - 3.5) / 2  # from the middle
    blob = torch.exp(-(distance[:, None] ** 2 + distance**2) / 2)
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

    The mean with the boxes of other images is the chance level of a score. If all
    images have the same map, the mean score less its chance level is exactly 0.

    Args:
        maps_normalised: (N, h, w) in [0, 1].
        boxes: (N, M, 4) integers, see ``overlap.box_masks``; each image has at least
            one box.
        size: side S of the images in pixels. Takes S^2 bytes of memory per image.
        threshold: at which maps are cut to masks.
        device: on which to compute.
        rule: by which maps are cut at the threshold, see ``overlap.cut``.

    Returns:
        A row per image with the columns: each of ``SCORES``; its chance level, under
        its name and ``SHUFFLED``; iou_b, box_iou and box_found; empty_map; map_pixels,
        box_pixels, common_pixels and image_pixels; mask_area and box_area, as shares of
        the image; the rectangle around the mask as x0, y0, x1, y1, half-open, zeros for
        an empty mask. Scores are NaN if a map is not finite.

    Raises:
        ValueError: if no image has a box.
    """
    device = torch.device(device)
    maps = maps_normalised.to(device).float()
    boxes = boxes.to(device)
    in_boxes = pixels_in_boxes(boxes, size)
    areas = in_boxes.sum(1)  # (N,) pixels in the boxes of each image
    images = torch.arange(len(boxes), device=device)
    lenders = derangements(len(boxes)).to(device)
    # On a CPU a batch should fit into the cache.
    batch_size = 128 if device.type == "cuda" else max(4, 2**17 // size**2)
    cut = partial(overlap.cut, threshold=threshold, rule=rule)
    scores_of_batches = []
    for batch in images.split(batch_size):
        itself_and_others = torch.cat([batch.unsqueeze(1), lenders[batch]], 1)
        targets = in_boxes[itself_and_others]  # (B, 1 + K, S * S)
        areas_of_targets = areas[itself_and_others]  # (B, 1 + K)
        scores = _scores(
            maps[batch], targets, areas_of_targets, boxes[batch], size, cut
        )
        scores_of_batches.append(scores)
    columns = {}
    for name in scores_of_batches[0]:
        values = torch.cat([scores[name] for scores in scores_of_batches])
        if values.dtype == torch.float32:
            values = values.double()  # pandas takes means in the type of the column
        columns[name] = values.cpu().numpy()
    return pd.DataFrame(columns)


def above_shuffled(scores: pd.DataFrame, measure: str) -> pd.Series:
    """Subtract from a score of each image its chance level.

    Args:
        scores: table of ``chance_scores``.
        measure: one of ``CORRECTED``.

    Returns:
        (N,); positive if the score is higher than with the boxes of other images.
    """
    name = measure.removesuffix(ABOVE)
    return scores[name] - scores[name + SHUFFLED]


def pixels_in_boxes(boxes: Tensor, size: int) -> Tensor:
    """Mark the pixels inside the boxes of each image.

    Args:
        boxes: (N, M, 4), see ``overlap.box_masks``.
        size: side S of the images in pixels.

    Returns:
        (N, S * S) bool.

    Raises:
        ValueError: if no image has a box.
    """
    masks = overlap.box_masks(boxes, size).flatten(1)
    if not masks.any():
        raise ValueError("these images have no boxes")
    return masks


def _scores(
    maps: Tensor,
    targets: Tensor,
    areas: Tensor,
    boxes: Tensor,
    size: int,
    cut: Callable[[Tensor], Tensor],
) -> dict[str, Tensor]:
    """Columns of ``chance_scores``, (B,) each.

    Args:
        maps: (B, h, w), NaN where undefined.
        targets: (B, 1 + K, S * S) bool, the pixels in the boxes of the image itself and
            of those that lend it theirs.
        areas: (B, 1 + K) pixels of each target.
        boxes: (B, M, 4) of the image itself.
        size: side S of the images.
        cut: turns maps (B, S, S) into masks (B, S, S).
    """
    undefined = ~maps.isfinite().flatten(1).all(1)
    values = overlap.upsample(maps.nan_to_num(0, 0, 0), size)
    masks = cut(values)
    values = values.flatten(1)  # (B, S * S)
    in_target = targets.float()
    # One product of matrices replaces, with masks and values as (B, 1, S * S),
    #     common = (masks * in_target).sum(2)
    #     energy = (values * in_target).sum(2)
    # Float32 counts pixels exactly up to 2^24.
    both = torch.stack([masks.flatten(1).float(), values], 1)  # (B, 2, S * S)
    common, energy = torch.bmm(both, in_target.mT).unbind(1)  # (B, 1 + K) each
    marked = masks.flatten(1).sum(1)  # (B,) pixels of the mask
    matched_iou, precision = _by_levels(values, in_target, areas)
    with_chance = {  # (B, 1 + K) each
        "iou": common / (marked.unsqueeze(1) + areas - common),
        "energy_in_box": (energy / values.sum(1, keepdim=True)).nan_to_num(0),
        "pointing_game": _points_into(maps, targets, size),
        "area_matched_iou": matched_iou,
        "pixel_average_precision": precision,
    }
    rectangles = overlap.bounding_rectangles(masks)
    scores = _rectangle_scores(rectangles, targets[:, 0], boxes, size)
    for name, score in with_chance.items():
        scores[name] = score[:, 0].float()
        # 0 / 0 is NaN: neither the mask nor the boxes of another image have a pixel.
        scores[name + SHUFFLED] = score[:, 1:].float().nanmean(1)
    pixels = {
        "empty_map": marked == 0,
        "map_pixels": marked,
        "box_pixels": areas[:, 0],
        "common_pixels": common[:, 0].int(),
        "image_pixels": torch.full_like(marked, size**2),
        "mask_area": marked / size**2,
        "box_area": areas[:, 0] / size**2,
    }
    corners = dict(zip(("x0", "y0", "x1", "y1"), rectangles.unbind(1), strict=True))
    columns = {
        name: score.masked_fill(undefined, torch.nan) for name, score in scores.items()
    }
    return pixels | corners | columns


def _rectangle_scores(
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
    """Whether the mean position of a map's maxima is in its targets, (B, 1 + K) bool.

    Args:
        maps: (B, h, w).
        targets: (B, 1 + K, S * S) bool.
        size: side S of the images.
    """
    # A map that is enlarged bilinearly is largest at the centres of its largest cells,
    # so that it need not be enlarged.
    is_largest = (maps == maps.amax((1, 2), keepdim=True)).double()
    count = is_largest.sum((1, 2))
    row = _mean_pixel(is_largest.sum(2), count, size)
    column = _mean_pixel(is_largest.sum(1), count, size)
    pixel = (row * size + column).view(-1, 1, 1).expand(-1, targets.shape[1], 1)
    return targets.gather(2, pixel).squeeze(2)


def _mean_pixel(weights: Tensor, count: Tensor, size: int) -> Tensor:
    """Mean position of a map's maxima along one side, in pixels of the image.

    Args:
        weights: (B, L) number of maxima in each of the L rows or columns of cells.
        count: (B,) number of maxima.
        size: side of the image in pixels.

    Returns:
        (B,) int64.
    """
    cells = weights.shape[1]
    cell = torch.arange(cells, device=weights.device, dtype=torch.float64)
    centres = (cell + 0.5) * size / cells  # in pixels
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
    # Level 0 holds the pixels with the largest values, level LEVELS those of 0.
    level = LEVELS - (values * LEVELS).long().clamp_(0, LEVELS)  # (B, P)
    # (B, 1 + K, LEVELS + 1): pixels of the target at each level; it replaces
    #     [targets[:, :, level == number].sum(2) for number in range(LEVELS + 1)]
    in_target = torch.zeros(*targets.shape[:2], LEVELS + 1, device=values.device)
    in_target.scatter_add_(2, level.unsqueeze(1).expand_as(targets), targets)
    in_image = torch.zeros(len(values), LEVELS + 1, device=values.device)
    in_image.scatter_add_(1, level, torch.ones_like(values))
    # Pixels with the value of a level or a larger one: the mask cut at this level.
    common = in_target.cumsum(2)  # (B, 1 + K, LEVELS + 1)
    marked = in_image.cumsum(1)  # (B, LEVELS + 1)
    # Sum over levels of the gain in recall times the precision common / marked. A mask
    # without pixels, whose precision is 0 / 0, gains nothing.
    gain = in_target * common / marked.unsqueeze(1).clamp(min=1)
    average_precision = gain.sum(2) / areas
    # The first level, of the highest threshold, at which the mask is at least as large
    # as the target.
    matched = torch.searchsorted(marked, areas.float())  # (B, 1 + K)
    common = common.gather(2, matched.unsqueeze(2)).squeeze(2)
    marked = marked.gather(1, matched)
    return common / (marked + areas - common), average_precision
