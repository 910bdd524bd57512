"""Overlap of maps with objects at any threshold, less chance: objects of other images.

The one place where an IoU is computed. Scores of a map with the object of an image, the
pixels in its boxes or in a mask:

- iou: of the mask (Du et al. 2024);
- energy_in_box: share of the map's sum that lies in the object (Wang et al. 2020,
  energy-based pointing game), 0 for a map of zeros;
- pointing_game: 1 if the maximum of the map lies in the object, else 0 (Zhang et al.
  2018, without a tolerance); of several maxima their mean position counts;
- area_matched_iou: IoU of the mask at the highest threshold at which it is at least as
  large as the object;
- pixel_average_precision: area under the precision-recall curve of the pixels, ranked
  by the map (PxAP of Choe et al. 2020).

Scores with the object of the image itself only: iou_b, the IoU of the rectangle around
the mask (Du et al. 2024); box_iou, the IoU of that rectangle with the box that it
matches best; box_found, 1 if box_iou is at least 0.5 (Russakovsky et al. 2015).

An image without an object is undefined in all of them, and so is a map that is not
finite. Tensors stay on their device.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from helpers.cams.maps import from_integers, normalise_maps
from helpers.data.images import box_masks
from helpers.networks import Undefined

SHUFFLES = 8  # other images whose objects each map is compared with
LEVELS = 1000  # steps in [0, 1] to which maps are rounded, as Choe et al. 2020 (code)
FOUND = 0.5  # least IoU of a correct detection; Everingham et al. 2015
PAPER_THRESHOLD = 0.1  # of Du et al. 2024
THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(1, 20))
_CORNERS = ("x0", "y0", "x1", "y1")
CUTS = ("maximum", "quantile")  # rules by which a threshold cuts a map
# Scores whose measure is the score minus its chance level.
LESS_CHANCE = (
    "energy_in_box",
    "pointing_game",
    "area_matched_iou",
    "pixel_average_precision",
)
# All measures minus their chance level. The IoU alone has two measures: "iou" is the
# published one, as it is.
CORRECTED = ("iou_above_shuffled", *LESS_CHANCE)


def iou_of_counts(common: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Intersection over union from numbers of pixels; Du et al. 2024, equation (2).

    Args:
        common: pixels in both of two masks.
        one: pixels in the first.
        other: pixels in the second.

    Returns:
        In [0, 1]; NaN where both masks are empty.
    """
    return common / (one + other - common)


def mask_iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of two masks.

    Args:
        a: (B, ...) bool.
        b: (B, ...) bool.

    Returns:
        (B,) in [0, 1]; NaN where both are empty.

    Example:
        >>> mask_iou(torch.tensor([[True, True]]), torch.tensor([[True, False]]))
        tensor([0.5000])
    """
    counts = [mask.flatten(1).sum(1) for mask in (a & b, a, b)]
    return iou_of_counts(*counts)


def mask_metrics(
    marked: int, annotated: int, common: int, total: int
) -> dict[str, float]:
    """Segmentation metrics; Long, Shelhamer and Darrell 2015, section 5.

    Args:
        marked: pixels in the masks.
        annotated: pixels in the true masks.
        common: pixels in both.
        total: pixels of all images together.

    Returns:
        Metrics by name, in [0, 1], larger is better; and the number of pixels. 0 / 0 is
        NaN, and so is a mean with it; of background and object, one without pixels is
        left out of frequency_weighted_iou.
    """
    # Background, and object, (2,) each.
    correct = np.array([total - marked - annotated + common, common], dtype=float)
    actual = np.array([total - annotated, annotated])
    called = np.array([total - marked, marked])
    with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0
        iou = correct / (actual + called - correct)
        return {
            "pixel_accuracy": correct.sum() / np.float64(total),
            "mean_pixel_accuracy": (correct / actual).mean(),
            "iou_background": iou[0],
            "iou_object": iou[1],
            "mean_iou": iou.mean(),
            "frequency_weighted_iou": np.nansum(actual * iou) / np.float64(total),
            "object_fraction": annotated / np.float64(total),
            "pixels": total,
        }


def is_box(boxes: Tensor) -> Tensor:
    """Whether a row is a box with an area, not padding.

    Args:
        boxes: (..., 4) x0, y0, x1, y1 in pixels, zeros for padding.

    Returns:
        (...,) bool.
    """
    return (boxes[..., 2:] > boxes[..., :2]).all(-1)


def best_box_iou(rectangles: Tensor, boxes: Tensor) -> Tensor:
    """IoU of each rectangle with the box of its image that it matches best.

    Args:
        rectangles: (..., 4) x0, y0, x1, y1 in pixels, half-open, zeros for an empty
            map.
        boxes: (..., M, 4), zeros for padding; M is at least 1.

    Returns:
        (...,) float64 in [0, 1], 0 for an empty rectangle; NaN for an image without any
        box.

    Example:
        >>> best_box_iou(torch.tensor([0, 0, 2, 2]), torch.tensor([[0, 0, 2, 4]]))
        tensor(0.5000, dtype=torch.float64)
    """
    # In double precision, so that an IoU of exactly 0.5 is not rounded below it.
    one = rectangles.unsqueeze(-2).double()
    other = boxes.double()
    upper_left = torch.maximum(one, other)[..., :2]
    lower_right = torch.minimum(one, other)[..., 2:]
    common = (lower_right - upper_left).clamp(min=0).prod(-1)
    areas = [(each[..., 2:] - each[..., :2]).prod(-1) for each in (one, other)]
    best = iou_of_counts(common, *areas).nan_to_num(0).amax(-1)
    return best.where(is_box(boxes).any(-1), torch.nan)


def derangements(count: int, shuffles: int = SHUFFLES) -> Tensor:
    """Choose for each image K other images, with whose objects its map is compared.

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
        (8, 8) in [0, 1): a Gaussian with a standard deviation of 2.
    """
    distance = (torch.arange(8, dtype=torch.float64) - 3.5) / 2  # from the middle
    blob = torch.exp(-(distance[:, None] ** 2 + distance**2) / 2)
    return normalise_maps(blob[None])[0].float()


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
    # Weights of the rows and of the columns. Products of matrices are several times
    # faster than interpolation of single small maps.
    kind = {"dtype": maps.dtype, "device": maps.device}
    rows, columns = [
        F.interpolate(torch.eye(side, **kind)[None], size, mode="linear")[0]
        for side in maps.shape[1:]
    ]
    return rows.T @ maps @ columns


def cut(maps: Tensor, threshold: float, rule: str = "maximum") -> Tensor:
    """Cut maps to masks of the pixels at which a network looks.

    By the rule "maximum" the mask holds the pixels of at least ``threshold``, which is
    a fraction of the maximum in normalised maps; Du et al. 2024, equations (3) and (4).
    By "quantile" it holds the highest pixels, a share ``1 - threshold`` of the map, so
    that masks of all maps have one size. Pixels of 0 are never in it.

    Args:
        maps: (B, S, S) enlarged normalised maps, in [0, 1].
        threshold: in (0, 1].
        rule: one of ``CUTS``.

    Returns:
        (B, S, S) bool.

    Raises:
        ValueError: if the rule is not one of ``CUTS``, or the threshold is outside.

    Example:
        >>> maps = torch.tensor([[[1.0, 0.4], [0.3, 0.2]]])
        >>> cut(maps, 0.5).sum().item(), cut(maps, 0.5, "quantile").sum().item()
        (1, 2)
    """
    if rule not in CUTS:
        raise ValueError(f"the rule of cutting is {rule!r}, and must be one of {CUTS}")
    _check_threshold(threshold)
    if rule == "maximum":
        return maps >= threshold
    pixels = maps[0].numel()
    below = min(round(threshold * pixels), pixels - 1)
    level = maps.flatten(1).sort(1).values[:, below, None, None]
    return (maps >= level) & (maps > 0)


def _check_threshold(threshold: float) -> None:
    if not 0 < threshold <= 1:
        raise ValueError(f"thresholds must be in (0, 1], and {threshold} is not")


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
    ends = []
    for axis in (1, 2):
        # (B, L), 1 where a place of the side is in the rectangle. amax() is several
        # times faster than any().
        occupied = masks.view(torch.uint8).amax(axis)
        last = occupied.shape[1] - occupied.flip(1).argmax(1)
        ends.append((occupied.argmax(1), last * occupied.amax(1)))
    (x0, x1), (y0, y1) = ends
    return torch.stack([x0, y0, x1, y1], 1)


class _Batch(NamedTuple):
    """Maps of B images, with the objects of 1 + K images; the first is their own."""

    maps: Tensor  # (B, h, w)
    enlarged: Tensor  # (B, S, S), 0 where a map is not finite
    objects: Tensor  # (B, 1 + K, S * S) float32, 1 inside
    areas: Tensor  # (B, 1 + K) pixels of each object, NaN where scores are undefined


def _batches(maps: Tensor, masks: Tensor, shuffles: int) -> Iterator[_Batch]:
    """Batches of maps (N, h, w) with masks (N, S, S), and with K others for each."""
    size = masks.shape[-1]
    pixels = masks.to(maps.device).flatten(1)
    counts = pixels.sum(1).float()
    images = torch.arange(len(maps)).unsqueeze(1)
    rows = torch.cat([images, derangements(len(maps), shuffles)], 1).to(maps.device)
    # On a CPU a batch should fit into the cache.
    most_pixels = 2**17 if maps.device.type == "cpu" else 2**23
    for batch in rows.split(max(4, most_pixels // size**2)):
        small = maps[batch[:, 0]].float()
        objects = _zeros_and_ones(pixels[batch])
        areas = counts[batch]
        is_defined = small.isfinite().flatten(1).all(1) & (areas[:, 0] > 0)
        areas = areas.where(is_defined.unsqueeze(1) & (areas > 0), torch.nan)
        enlarged = upsample(small.nan_to_num(0, 0, 0), size)
        yield _Batch(small, enlarged, objects, areas)


def _zeros_and_ones(masks: Tensor) -> Tensor:
    """Make numbers of bools; on a CPU by bytes it takes a fifth of the time."""
    return masks.view(torch.uint8).float()


def _scores(batch: _Batch, threshold: float, rule: str) -> dict[str, Tensor]:
    """Columns of ``chance_scores``, (B,) each, but those of boxes alone."""
    mask = cut(batch.enlarged, threshold, rule)
    pixels = _zeros_and_ones(mask.flatten(1))
    common = (pixels.unsqueeze(1) @ batch.objects.mT).squeeze(1)  # (B, 1 + K)
    marked = pixels.sum(1, keepdim=True)
    iou = iou_of_counts(common, marked, batch.areas)
    rectangles = bounding_rectangles(mask)
    rectangle = box_masks(rectangles.unsqueeze(1), mask.shape[-1])
    filled = _zeros_and_ones(rectangle.flatten(1))
    in_both = (batch.objects[:, 0] * filled).sum(1)
    columns = {
        "iou": iou[:, 0],
        "iou_b": iou_of_counts(in_both, filled.sum(1), batch.areas[:, 0]),
        "mask_area": marked[:, 0].double() / pixels.shape[1],
        "common_area": common[:, 0].double() / pixels.shape[1],
    }
    for name, scores in ({"iou_above_shuffled": iou} | _ranked(batch)).items():
        columns[name] = _above_chance(scores.masked_fill(iou.isnan(), torch.nan))
    return columns | dict(zip(_CORNERS, rectangles.unbind(1), strict=True))


def _above_chance(scores: Tensor) -> Tensor:
    """Scores with the own object minus the mean of others: (..., 1 + K) -> (...)."""
    of_others = scores[..., 1:].nanmean(-1)
    return scores[..., 0].double() - of_others.double()


def _ranked(batch: _Batch) -> dict[str, Tensor]:
    """Scores that need no threshold, ``LESS_CHANCE``, with each object, (B, 1 + K)."""
    values = batch.enlarged.flatten(1)
    level = (values * LEVELS).long().clamp_(0, LEVELS)
    inside, anywhere = _pixels_of_levels(level, batch.objects, LEVELS + 1)
    # Pixels with the value of a level or a larger one: the mask cut at this level.
    common = inside.cumsum(2)
    marked = anywhere.cumsum(1)
    # Sum over levels of the gain in recall times the precision common / marked. A mask
    # without pixels, whose precision is 0 / 0, gains nothing.
    gain = inside.mul_(common).div_(marked.unsqueeze(1).clamp(min=1))
    # The first level, of the highest threshold, at which the mask is at least as large
    # as the target.
    matched = torch.searchsorted(marked, batch.areas.nan_to_num(0))  # (B, 1 + K)
    in_matched = common.gather(2, matched.unsqueeze(2)).squeeze(2)
    energy = (values.unsqueeze(1) @ batch.objects.mT).squeeze(1)
    return {
        "energy_in_box": (energy / values.sum(1, keepdim=True)).nan_to_num(0),
        "pointing_game": _points_into(batch),
        "area_matched_iou": iou_of_counts(
            in_matched, marked.gather(1, matched), batch.areas
        ),
        "pixel_average_precision": gain.sum(2) / batch.areas,
    }


def _pixels_of_levels(
    level: Tensor, objects: Tensor, levels: int
) -> tuple[Tensor, Tensor]:
    """Pixels of each level in each object, (B, 1 + K, levels), and in the image.

    The highest level comes first.
    """
    inside = objects.new_zeros(*objects.shape[:2], levels)
    inside.scatter_add_(2, level.unsqueeze(1).expand_as(objects), objects)
    anywhere = objects.new_zeros(len(level), levels)
    anywhere.scatter_add_(1, level, torch.ones_like(objects[:, 0]))
    return inside.flip(2), anywhere.flip(1)


def _points_into(batch: _Batch) -> Tensor:
    """Whether the mean position of a map's maxima is in each object, (B, 1 + K)."""
    # A map that is enlarged bilinearly is largest at the centres of its largest cells,
    # so that it need not be enlarged.
    is_largest = (batch.maps == batch.maps.amax((1, 2), keepdim=True)).double()
    size = batch.enlarged.shape[-1]
    pixel = torch.zeros_like(is_largest[:, 0, 0], dtype=torch.long)
    for axis in (2, 1):  # cells by row, then by column
        weights = is_largest.sum(axis)
        count = weights.shape[1]
        centres = (torch.arange(count).to(weights) + 0.5) * size / count  # in pixels
        mean = weights @ centres / weights.sum(1)
        pixel = pixel * size + mean.nan_to_num(0).long()
    return batch.objects.take_along_dim(pixel.view(-1, 1, 1), 2).squeeze(2)


def iou_at(
    maps: Tensor, masks: Tensor, thresholds: Sequence[float], shuffles: int = 0
) -> Tensor:
    """IoU of thresholded maps with masks; Du et al. 2024, equations (3) and (4).

    Args:
        maps: (N, h, w) normalised, in [0, 1].
        masks: (N, S, S) bool, of objects.
        thresholds: T of them, in (0, 1].
        shuffles: K other images, with whose objects each map is compared too.

    Returns:
        (T, N, 1 + K) in [0, 1], with the own object first; NaN where a mask of an
        object is empty or a map not finite.
    """
    for threshold in thresholds:
        _check_threshold(threshold)
    highest_first = sorted(thresholds, reverse=True)
    cuts = torch.tensor(highest_first[::-1], device=maps.device)
    batches = []
    for batch in _batches(maps, masks, shuffles):
        # The level of a pixel is the number of thresholds that it reaches.
        level = torch.bucketize(batch.enlarged.flatten(1), cuts, right=True)
        inside, anywhere = _pixels_of_levels(level, batch.objects, len(cuts) + 1)
        common = inside.cumsum(2)
        marked = anywhere.cumsum(1).unsqueeze(1)
        batches.append(iou_of_counts(common, marked, batch.areas.unsqueeze(2)))
    columns = [highest_first.index(threshold) for threshold in thresholds]
    return torch.cat(batches)[..., columns].permute(2, 0, 1)


def chance_scores(
    maps: Tensor,
    boxes: Tensor,
    size: int,
    threshold: float = PAPER_THRESHOLD,
    rule: str = "maximum",
) -> pd.DataFrame:
    """All scores of each map with the boxes of its image, less chance.

    The chance level of a score is its mean with the boxes of other images. If all
    images have the same map, the mean score less its chance level is exactly 0.

    Args:
        maps: (N, h, w) normalised, in [0, 1]; all is computed on their device.
        boxes: (N, M, 4) integers x0, y0, x1, y1 in pixels, half-open, zeros for
            padding.
        size: side S of the images in pixels.
        threshold: at which maps are cut to masks.
        rule: by which maps are cut, see ``cut``.

    Returns:
        A row per image with the columns: iou; ``CORRECTED``, in [-1, 1], positive where
        the score is higher than with the boxes of other images; iou_b, box_iou and
        box_found; as shares of the image mask_area, box_area, and common_area of both;
        the rectangle around the mask as x0, y0, x1, y1, half-open, zeros for an empty
        mask. Scores are NaN where undefined.

    Raises:
        ValueError: if no image has a box.
    """
    boxes = boxes.to(maps.device)
    masks = _masks_of_boxes(boxes, size)
    batches = [
        _scores(batch, threshold, rule) for batch in _batches(maps, masks, SHUFFLES)
    ]
    columns = {name: torch.cat([of[name] for of in batches]) for name in batches[0]}
    corners = torch.stack([columns[name] for name in _CORNERS], 1)
    columns["box_iou"] = best_box_iou(corners, boxes) + 0 * columns["iou"]
    columns["box_area"] = masks.flatten(1).double().mean(1)
    # One transfer from the device.
    values = torch.stack([column.double() for column in columns.values()], 1)
    table = pd.DataFrame(values.cpu().numpy(), columns=list(columns))
    return table.assign(
        box_found=(table["box_iou"] >= FOUND).where(table["box_iou"].notna()) * 1.0,
        box_area=table["box_area"].where(table["box_area"] > 0),
    )


def _masks_of_boxes(boxes: Tensor, size: int) -> Tensor:
    """Masks (N, S, S) of the pixels in any box of their image; one must have a box."""
    if not is_box(boxes).any():
        raise Undefined("these images have no boxes")
    return box_masks(boxes, size)


def at_thresholds(
    maps: NDArray[np.unsignedinteger],
    boxes: Tensor | NDArray[np.integer],
    size: int,
    thresholds: Sequence[float] = THRESHOLDS,
) -> pd.DataFrame:
    """Mean IoU of all models of a study at several thresholds, from kept maps.

    Args:
        maps: (M, N, h, w) uint8 or uint16, see ``maps.to_integers``.
        boxes: (N, K, 4) integers x0, y0, x1, y1 in pixels, half-open, zeros for
            padding.
        size: side of the images in pixels.
        thresholds: of the normalised map, in (0, 1].

    Returns:
        A row per model and threshold: model (its place among the maps), threshold, iou
        and iou_above_shuffled. NaN where no image defines a value.

    Raises:
        ValueError: if a threshold is outside of (0, 1], or no image has a box.

    Example:
        >>> maps = np.array([[[[255, 0], [255, 0]]]], dtype=np.uint8)
        >>> boxes = np.array([[[0, 0, 2, 4]]])
        >>> at_thresholds(maps, boxes, 4, [0.5, 1.0])["iou"].round(2).tolist()
        [1.0, 0.5]
    """
    masks = _masks_of_boxes(torch.as_tensor(boxes), size)
    tables = {}
    for model, of_model in enumerate(maps):
        ious = iou_at(from_integers(of_model), masks, thresholds, SHUFFLES)
        means = {
            "iou": ious[..., 0].double().nanmean(1),
            "iou_above_shuffled": _above_chance(ious).nanmean(1),
        }
        tables[model] = pd.DataFrame(means, thresholds)
    return pd.concat(tables, names=["model", "threshold"]).reset_index()
