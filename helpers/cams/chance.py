"""How much better a map fits the box of its own image than chance: shuffled boxes, the whole image, and measures without a threshold."""

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from helpers.cams.overlap import MASK_COLUMNS, box_masks, masks_at, masks_compared, not_finite, overlap_table, pixels, upsample

SHUFFLES = 8  # boxes of other images that each map is compared with
LEVELS = 1000  # steps of the map that pixels are ranked by, as in the code of Choe et al. 2020

CHANCE_COLUMNS = [
    "mask_area",
    "box_area",
    "iou_shuffled",
    "energy",
    "pointing",
    "pointing_shuffled",
    "area_matched_iou",
    "average_precision",
]


def derangements(count: int, shuffles: int = SHUFFLES) -> Tensor:
    """Fixed derangements of images, whose boxes take the place of each image's own: (count, K) int64, K at most count - 1.

    One order drawn once, turned by 1 to K places: no image meets itself, and none meets another twice.
    """
    order = torch.from_numpy(np.random.default_rng(0).permutation(count))
    partners = torch.empty(count, min(shuffles, max(0, count - 1)), dtype=torch.int64)
    for column in range(partners.shape[1]):
        partners[order, column] = order.roll(-1 - column)
    return partners


def box_areas(boxes: Tensor, size: int, batch_size: int = 1024) -> Tensor:
    """Share of each image that its boxes cover, in [0, 1]: the IoU of a mask over the whole image; (N, M, 4) boxes -> (N,) float32."""
    return torch.cat([pixels(box_masks(part, size)) for part in boxes.split(batch_size)]).float() / size**2


def chance_scores(
    maps_normalised: Tensor,
    lowest: Tensor,
    boxes: Tensor,
    size: int,
    threshold: float = 0.1,
    *,
    partners: Tensor | None = None,
    device: torch.device | str = "cpu",
) -> pd.DataFrame:
    """Compare every map with the box of its image and with those of other images, also by ways that need no good threshold.

    Args:
        maps_normalised: (N, h, w) in [0, 1), see ``closed_form.normalise_maps``.
        lowest: (N,) what to add to each normalised map so that it is proportional to the map before, see ``closed_form.lowest_of``.
        boxes: (N, M, 4) integers, see ``overlap.box_masks``.
        size: side S of the images, pixels.
        threshold: of the map, in (0, 1).
        partners: (N', K) which images lend their boxes, counted among the N' that have a box; ``derangements`` when None.
        device: where to compute. Every box's mask lies in memory at once, S^2 bytes for an image.

    Returns:
        One row per image, in order: the columns of ``overlap.image_scores`` and, float64 and all NaN but the areas where an image has
        no box or its map is not finite:

        - mask_area, box_area: share of the image at or above the threshold, and in the boxes;
        - iou_shuffled: mean IoU of the mask with the boxes of the partners (permutation of images);
        - energy: share of the map's sum that lies in the boxes (Wang et al. 2020, energy-based pointing game), 0 for a map of zeros;
        - pointing, pointing_shuffled: 1 when the mean place of the map's maxima is in the boxes (Zhang et al. 2018, without a
          tolerance), and the same with the partners' boxes;
        - area_matched_iou: IoU at the highest level at which the mask is at least as large as the boxes;
        - average_precision: area under precision over recall of the pixels, ranked by the map (PxAP of Choe et al. 2020, for each
          image on its own).

    Raises:
        ValueError: the threshold is not between 0 and 1, or there are no images.
    """
    if not len(boxes):
        raise ValueError("there are no images to score; give at least one")
    annotation = box_masks(boxes.to(device), size)
    areas = pixels(annotation)
    boxed = areas > 0
    rows = boxed.nonzero().squeeze(1)
    partners = (derangements(len(rows)) if partners is None else partners).to(device)
    lenders = torch.zeros(len(boxes), partners.shape[1], dtype=torch.int64, device=device)
    lenders[rows] = rows[partners]
    # A processor's cache holds what is worked out for some images; a GPU takes more at once.
    found, batch_size = [], 128 if torch.device(device).type == "cuda" else max(4, 2**17 // size**2)
    for start in range(0, len(boxes), batch_size):
        part = slice(start, start + batch_size)
        given = maps_normalised[part].to(device).float(), lowest[part].to(device).float()
        found.append(_of_batch(*given, annotation, areas, torch.arange(len(boxes), device=device)[part], lenders[part], threshold))
    overlaps, beside = torch.cat(found, 1).split([len(MASK_COLUMNS), len(CHANCE_COLUMNS)])
    beside[2:, ~boxed] = torch.nan
    return overlap_table(overlaps).join(pd.DataFrame(beside.cpu().double().numpy().T, columns=CHANCE_COLUMNS))


def _of_batch(maps: Tensor, lowest: Tensor, annotation: Tensor, areas: Tensor, images: Tensor, lenders: Tensor, threshold: float) -> Tensor:
    """Work out ``MASK_COLUMNS`` and ``CHANCE_COLUMNS`` of some images: (19, B)."""
    size, own, area, undefined = annotation.shape[-1], annotation[images], areas[images], not_finite(maps)
    values = upsample(maps, size)
    mask = masks_at(values, threshold)
    overlaps = masks_compared(mask, own, undefined)
    if undefined.any():
        values = values.nan_to_num(0, 0, 0)
    marked, shared = pixels(mask), (mask.unsqueeze(1) & annotation[lenders]).flatten(2).sum(2, dtype=torch.int32)
    y, x = _places_of_maxima(maps, size)
    matched, precision = _by_levels(values, own, area)
    found = [
        marked / size**2,
        area / size**2,
        (shared / (marked.unsqueeze(1) + areas[lenders] - shared)).mean(1),
        _energies(values, lowest, own, area),
        annotation[images, y, x],
        annotation[lenders, y.unsqueeze(1), x.unsqueeze(1)].float().mean(1),
        matched,
        precision,
    ]
    undefined |= ~lowest.isfinite()
    return torch.cat([overlaps, torch.stack([column.float().masked_fill(undefined, torch.nan) for column in found])])


def _energies(values: Tensor, lowest: Tensor, own: Tensor, area: Tensor) -> Tensor:
    """Share of each map's sum in the boxes: (B,); 0 for a map of zeros."""
    inside, total = ((part.sum((1, 2)).double() + lowest * count) for part, count in ((values * own, area), (values, own[0].numel())))
    return (inside / total).nan_to_num(0)


def _places_of_maxima(maps: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Pixel of the enlarged map that holds the mean place of the maxima of each map: (B, h, w) -> two (B,) int64, y and x.

    A bilinear map is largest at the centres of its largest cells, so that the place is known without enlarging it.
    """
    largest = (maps == maps.amax((1, 2), keepdim=True)).double()
    count = largest.sum((1, 2))
    places = []
    for axis, length in ((2, maps.shape[1]), (1, maps.shape[2])):
        centres = (torch.arange(length, device=maps.device, dtype=torch.float64) + 0.5) * size / length
        mean = (largest.sum(axis) * centres).sum(1) / count
        places.append(mean.long().clamp_(0, size - 1))
    return places[0], places[1]


def _by_levels(values: Tensor, own: Tensor, area: Tensor) -> tuple[Tensor, Tensor]:
    """Area-matched IoU and average precision of each map, whose pixels are ranked in ``LEVELS`` steps: two (B,)."""
    count = len(values)
    level = (values * LEVELS).int().clamp_(0, LEVELS)
    image = torch.arange(count, device=values.device, dtype=torch.int32).view(-1, 1, 1)
    place = level.add_(own, alpha=LEVELS + 1).add_(image, alpha=2 * (LEVELS + 1))
    pixels_at = torch.bincount(place.flatten(), minlength=2 * count * (LEVELS + 1)).view(count, 2, LEVELS + 1)
    above = pixels_at.flip(2).cumsum(2)  # from the highest level down: outside, inside
    inside, marked = above[:, 1], above.sum(1)
    gained = pixels_at[:, 1].flip(1)
    # Levels above the largest value hold nothing: 0 / 0 times no gain.
    precision = (gained * inside / marked.clamp(min=1)).sum(1) / area
    first = (marked >= area.unsqueeze(1)).int().argmax(1, keepdim=True)
    shared, called = inside.gather(1, first).squeeze(1), marked.gather(1, first).squeeze(1)
    return shared / (called + area - shared), precision
