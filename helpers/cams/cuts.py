"""Overlap of maps with boxes at many thresholds, for all models of a study.

The IoU of the primary table is the mean over images of ``chance.chance_scores``; that
of ``overlaps_at`` is the same value, computed at many thresholds at once.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from helpers.cams import chance, overlap
from helpers.cams.maps import from_integers

PAPER_THRESHOLD = 0.1  # the threshold of Du et al. 2024
THRESHOLDS = (0.05, PAPER_THRESHOLD, *(round(0.05 * step, 2) for step in range(3, 20)))


@dataclass(frozen=True)
class Cuts:
    """Overlaps of M models on N images at T thresholds, (M, N, T) in [0, 1].

    NaN for an undefined map.
    """

    iou: NDArray[np.float32]  # of the mask and the boxes
    iou_shuffled: NDArray[np.float32]  # mean with the boxes of other images
    iou_b: NDArray[np.float32]  # of the rectangle around the mask, and the boxes


def overlaps_at(
    maps: NDArray[np.integer] | Tensor,
    boxes: NDArray[np.integer] | Tensor,
    size: int,
    thresholds: Sequence[float],
    workers: int = 0,
) -> Cuts:
    """Overlap of masks with boxes at several thresholds; Du et al. 2024, (2) to (6).

    The mask of a map is where its bilinear enlargement is at least the threshold. The
    values are those of ``chance.chance_scores`` at each threshold.

    Args:
        maps: (M, N, h, w) integers of ``maps.to_integers``, or normalised maps in [0,
            1].
        boxes: (N, K, 4) integers x0, y0, x1, y1 in pixels, half-open, zeros for
            padding.
        size: side of the images in pixels.
        thresholds: T of them, in (0, 1].
        workers: threads that work on images side by side; 0 takes one per core.

    Returns:
        Overlaps by model, image and threshold.

    Raises:
        ValueError: if a threshold is outside of (0, 1], or no image has a box.

    Example:
        >>> maps = np.array([[[[255, 0], [255, 0]]]], dtype=np.uint8)
        >>> left_half = np.array([[[0, 0, 2, 4]]])
        >>> overlaps_at(maps, left_half, 4, [0.5, 1.0]).iou.round(2).tolist()
        [[[1.0, 0.5]]]
    """
    outside = [level for level in thresholds if not 0 < level <= 1]
    if outside:
        raise ValueError(f"thresholds must be in (0, 1], and {outside[0]} is not")
    boxes = torch.as_tensor(boxes)
    in_boxes = chance.pixels_in_boxes(boxes, size)
    images = torch.arange(len(boxes)).unsqueeze(1)
    # (N, 1 + D): each image, then D others, with whose boxes its map is compared too.
    itself_and_others = torch.cat([images, chance.derangements(len(boxes))], 1)
    levels, order = torch.tensor(thresholds, dtype=torch.float32).sort()

    def of_image(image: int) -> dict[str, Tensor]:
        values = maps[:, image]
        if not isinstance(values, Tensor):
            values = from_integers(values)
        targets = in_boxes[itself_and_others[image]]
        return _overlaps_of_image(values, targets, size, levels)

    with ThreadPoolExecutor(workers or len(os.sched_getaffinity(0))) as pool:
        overlaps_of_images = list(pool.map(of_image, range(len(boxes))))
    place = order.argsort()  # of each threshold, as asked for, among the sorted ones
    arrays = {}
    for name in overlaps_of_images[0]:
        values = torch.stack([overlaps[name] for overlaps in overlaps_of_images], 1)
        arrays[name] = values[:, :, place].float().numpy()
    return Cuts(**arrays)


def _overlaps_of_image(
    maps: Tensor, targets: Tensor, size: int, levels: Tensor
) -> dict[str, Tensor]:
    """Overlaps of all models on one image: fields of ``Cuts``, (M, T) each.

    Args:
        maps: (M, h, w) normalised, NaN where undefined.
        targets: (1 + D, P) bool, pixels in the boxes of the image, then of D others.
        size: side of the image in pixels, P = size^2.
        levels: (T,) thresholds, ascending.
    """
    values = overlap.upsample(maps.nan_to_num(0, 0, 0), size)
    columns = _mask_overlaps(values, targets, levels)
    rectangles = _rectangles(values, levels)  # (M, T, 4)
    columns["iou_b"] = _rectangle_iou(rectangles, targets[0].view(size, size))
    undefined = ~maps.isfinite().flatten(1).all(1)
    for overlaps in columns.values():
        overlaps[undefined] = torch.nan
    return columns


def _mask_overlaps(
    values: Tensor, targets: Tensor, levels: Tensor
) -> dict[str, Tensor]:
    """Overlaps of masks of all models with the boxes of an image and of others.

    The boxes of an image are a target. A region is the set of all pixels that lie in
    the same targets; an image has some dozens. Counting pixels by region and by the
    number of thresholds that they reach replaces

        [((values >= level) & target).sum() for level in levels for target in targets]

    Args:
        values: (M, S, S) maps at the size of the image.
        targets: (1 + D, P) bool, pixels in the boxes of the image, then of D others.
        levels: (T,) thresholds, ascending.

    Returns:
        (M, T) each: iou, iou_shuffled.
    """
    # A pixel's code has a bit for each target in which it lies: a region is one code.
    powers = 2 ** torch.arange(len(targets)).unsqueeze(1)
    code_of_pixel = (targets * powers).sum(0)  # (P,)
    codes, region = code_of_pixel.unique(return_inverse=True)  # (regions,) and (P,)
    is_in_target = (codes & powers) > 0  # (1 + D, regions)
    models = len(values)
    regions = len(codes)
    counts = len(levels) + 1  # a pixel reaches 0 to T thresholds
    # Sums of comparisons take a quarter of the time of torch.bucketize.
    flat = values.flatten(1).numpy()
    reached = np.zeros(flat.shape, dtype=np.min_scalar_type(counts))
    for level in levels.numpy():
        reached += (flat >= level).view(np.uint8)
    # Each pixel's bin, (M, P): (model * regions + region) * counts + reached.
    bins = torch.from_numpy(reached).int()
    bins += (counts * region).int()
    bins += (counts * regions * torch.arange(models)).int().unsqueeze(1)
    pixels = torch.bincount(bins.flatten(), minlength=models * regions * counts)
    pixels = pixels.view(models, regions, counts).double()
    # (M, regions, T): pixels that reach at least 1, 2, ... T of the thresholds, that
    # is, the first, the second, ... of the ascending thresholds.
    at_least = pixels.flip(2).cumsum(2).flip(2)[:, :, 1:]
    common = torch.einsum("mrt,dr->mdt", at_least, is_in_target.double())
    marked = at_least.sum(1, keepdim=True)
    area = targets.sum(1).view(1, -1, 1)
    iou = (common / (marked + area - common)).float()
    return {"iou": iou[:, 0], "iou_shuffled": iou[:, 1:].nanmean(1)}


def _rectangles(values: Tensor, levels: Tensor) -> Tensor:
    """Smallest rectangle around each mask: (M, S, S) and (T,) -> (M, T, 4), half-open.

    A row is in the rectangle where its largest value reaches the threshold.
    """
    columns = values.amax(1).unsqueeze(1) >= levels.view(1, -1, 1)  # (M, T, S)
    rows = values.amax(2).unsqueeze(1) >= levels.view(1, -1, 1)
    x0, x1 = overlap.ends(columns.view(torch.uint8))
    y0, y1 = overlap.ends(rows.view(torch.uint8))
    return torch.stack([x0, y0, x1, y1], 2)


def _rectangle_iou(rectangles: Tensor, mask: Tensor) -> Tensor:
    """IoU of rectangles (..., 4) with a mask (S, S), by its summed-area table."""
    # table[y, x] is the number of pixels of the mask above row y and left of column x.
    table = torch.nn.functional.pad(mask.int().cumsum(0).cumsum(1), (1, 0, 1, 0))
    x0, y0, x1, y1 = rectangles.unbind(-1)
    common = table[y1, x1] - table[y0, x1] - table[y1, x0] + table[y0, x0]
    area = (x1 - x0) * (y1 - y0)
    return common / (area + mask.sum() - common)
