"""How much better a map fits the boxes of its own image than those of other images: chance, centre bias and area taken away."""

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from helpers.cams import detection, overlap

SHUFFLES = 8  # boxes of other images that each map is compared with
LEVELS = 1000  # steps of the map that pixels are ranked by, as in the code of Choe et al. 2020
SHUFFLED = "_shuffled"  # ends the column of a score with the boxes of other images

# Scores of a map and the boxes of an image, see ``chance_scores``. From four of them their chance is taken off in the measure of that name.
LESS_CHANCE = (
    "energy_in_box",
    "pointing_game",
    "area_matched_iou",
    "pixel_average_precision",
)
SCORES = ("iou", *LESS_CHANCE)
ABOVE = "_above_shuffled"  # ends the name of values less their chance, where the measure keeps it
CORRECTED = ("iou" + ABOVE, *LESS_CHANCE)  # measures that are less their chance


def derangements(count: int, shuffles: int = SHUFFLES) -> Tensor:
    """For each image, the K images that lend it their boxes: the next K in one fixed random order; (count, K < count) int64."""
    order = torch.from_numpy(np.random.default_rng(0).permutation(count))
    turned = (
        order.argsort().unsqueeze(1)
        + 1
        + torch.arange(min(shuffles, max(0, count - 1)))
    )
    return order[turned % max(1, count)]


def central_map() -> Tensor:
    """A fixed blob in the middle, which looks at no image: a Gaussian of standard deviation 2, in [0, 1]; (8, 8)."""
    place = (torch.arange(8, dtype=torch.float64) - 3.5) / 2
    blob = torch.exp(-(place[:, None] ** 2 + place**2) / 2)
    return ((blob - blob.min()) / (blob.max() - blob.min())).float()


def chance_scores(
    maps_normalised: Tensor,
    boxes: Tensor,
    size: int,
    threshold: float = 0.1,
    device: torch.device | str = "cpu",
) -> pd.DataFrame:
    """Compare every map with the boxes of its image, and with those of other images: the second is its chance.

    One map for all images has a mean of exactly 0 once its chance is taken off. Maps are (N, h, w) in [0,
    1], boxes (N, M, 4) integers (see ``overlap.box_masks``; an image has at least one) on images of side S, whose masks lie in memory at
    once, S^2 bytes an image. One row per image: ``SCORES``, and the mean of each with the boxes of others under its name and ``SHUFFLED``,
    NaN where a map is not finite:

    - iou: of the mask (Du et al. 2024);
    - energy_in_box: share of the map's sum in the boxes (Wang et al. 2020, energy-based pointing game), 0 for a map of zeros;
    - pointing_game: 1 when the mean place of the map's maxima is in the boxes (Zhang et al. 2018, without a tolerance);
    - area_matched_iou: IoU at the highest level at which the mask is at least as large as the boxes;
    - pixel_average_precision: area under precision over recall of the pixels, ranked by the map (PxAP of Choe et al. 2020).

    With the own boxes alone: iou_b of the rectangle around the mask (Du et al. 2024), its box_iou with the box that fits best, and
    box_found, 1 where that reaches 0.5 (Russakovsky et al. 2015). Areas as pixels and shares; the rectangle is half-open, zeros for an
    empty mask.
    """
    maps, boxes = maps_normalised.to(device).float(), boxes.to(device)
    annotation, order = boxed(boxes, size), torch.arange(len(boxes), device=device)
    others = torch.cat(
        [order.unsqueeze(1), derangements(len(boxes)).to(device)], 1
    )  # the image itself, then its partners
    # A processor's cache holds what is worked out for some images; a GPU takes more at once.
    step = 128 if torch.device(device).type == "cuda" else max(4, 2**17 // size**2)
    parts = [
        _of_batch(maps[part], boxes, annotation, others[part], threshold)
        for part in order.split(step)
    ]
    table = pd.DataFrame(
        {
            name: torch.cat([part[name] for part in parts]).cpu().numpy()
            for name in parts[0]
        }
    )
    return table.astype(
        {name: float for name, kind in table.dtypes.items() if kind == "float32"}
    )


def above_shuffled(scores: pd.DataFrame, measure: str) -> pd.Series:
    """One of ``CORRECTED`` of each image: a score less its mean with the boxes of other images."""
    name = measure.removesuffix(ABOVE)
    return scores[name] - scores[name + SHUFFLED]


def boxed(boxes: Tensor, size: int) -> Tensor:
    """Pixels inside the boxes of each image: (N, S * S) bool. ValueError where no image has any, which is a measure's reason."""
    masks = overlap.box_masks(boxes, size).flatten(1)
    if not masks.any():
        raise ValueError("these images have no boxes")
    return masks


def _of_batch(
    maps: Tensor, boxes: Tensor, annotation: Tensor, others: Tensor, threshold: float
) -> dict[str, Tensor]:
    """Columns of ``chance_scores``, (B,) each; ``others`` (B, 1 + K): the image itself, and those that lend their boxes."""
    undefined, size = (
        ~maps.isfinite().flatten(1).all(1),
        int(annotation.shape[1] ** 0.5),
    )
    values = overlap.upsample(maps.nan_to_num(0, 0, 0), size)
    masks = values >= threshold
    rectangles = overlap.bounding_rectangles(masks)
    around = overlap.box_masks(rectangles.unsqueeze(1), size)
    places = annotation[others]
    targets = torch.cat(
        [places, torch.ones_like(places[:, :1])], 1
    )  # the last is the whole image, and counts what there is
    parts = [places.shape[1], 1]
    common, marked = (
        (masks.flatten(1).unsqueeze(1) & targets)
        .sum(2, dtype=torch.int32)
        .split(parts, 1)
    )
    inside, area = targets.float(), places.sum(2, dtype=torch.int32)
    energy, total = (values.flatten(1).unsqueeze(1) * inside).sum(2).split(parts, 1)
    matched, precision = _by_levels(values.flatten(1), inside, area)
    scores = {
        "iou": common / (marked + area - common),
        "energy_in_box": (energy / total).nan_to_num(0),
        "pointing_game": places.gather(
            2,
            _place_of_maxima(maps, size).view(-1, 1, 1).expand(-1, places.shape[1], 1),
        ).squeeze(2),
        "area_matched_iou": matched,
        "pixel_average_precision": precision,
    }
    marked, area, common = marked[:, 0], area[:, 0], common[:, 0]
    columns = {
        "empty_map": marked == 0,
        "map_pixels": marked,
        "box_pixels": area,
        "common_pixels": common,
    }
    columns |= {
        "image_pixels": torch.full_like(marked, size**2),
        "mask_area": marked / size**2,
        "box_area": area / size**2,
    }
    columns |= dict(zip(("x0", "y0", "x1", "y1"), rectangles.T, strict=True))
    box_iou = detection.best_box_iou(rectangles, boxes[others[:, 0]])
    alone = {
        "iou_b": overlap.mask_iou(around.flatten(1), places[:, 0]),
        "box_iou": box_iou.float(),
        "box_found": (box_iou >= 0.5).float(),
    }
    columns |= {
        name: score.masked_fill(undefined, torch.nan) for name, score in alone.items()
    }
    for name, score in scores.items():
        own, shuffled = score[:, 0].float(), score[:, 1:].float().nanmean(1)
        columns[name], columns[name + SHUFFLED] = (
            part.masked_fill(undefined, torch.nan) for part in (own, shuffled)
        )
    return columns


def _place_of_maxima(maps: Tensor, size: int) -> Tensor:
    """Pixel of the enlarged map, row by row, with the mean place of the maxima: (B, h, w) -> (B,) int64."""
    # A bilinear map is largest at the centres of its largest cells, so that the place is known without enlarging it.
    largest, places = (maps == maps.amax((1, 2), keepdim=True)).double(), []
    for axis, length in ((2, maps.shape[1]), (1, maps.shape[2])):
        centres = (
            (torch.arange(length, device=maps.device, dtype=torch.float64) + 0.5)
            * size
            / length
        )
        mean = (largest.sum(axis) * centres).sum(1) / largest.sum((1, 2))
        places.append(mean.nan_to_num(0).long().clamp_(0, size - 1))
    return places[0] * size + places[1]


def _by_levels(values: Tensor, inside: Tensor, area: Tensor) -> tuple[Tensor, Tensor]:
    """Area-matched IoU and average precision of maps (B, P) for each of their targets: two (B, 1 + K)."""
    level = LEVELS - (values * LEVELS).long().clamp_(0, LEVELS)  # 0 is the highest
    gained = torch.zeros(*inside.shape[:2], LEVELS + 1, device=values.device)
    gained.scatter_add_(2, level.unsqueeze(1).expand_as(inside), inside)
    shared, marked = gained.cumsum(2).split([inside.shape[1] - 1, 1], 1)
    # Levels above the largest value hold nothing: no gain.
    precision = (gained[:, :-1] * shared / marked.clamp(min=1)).sum(2) / area
    first = torch.searchsorted(marked.squeeze(1).contiguous(), area.float())
    shared, marked = (
        shared.gather(2, first.unsqueeze(2)).squeeze(2),
        marked.squeeze(1).gather(1, first),
    )
    return shared / (marked + area - shared), precision
