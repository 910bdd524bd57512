"""Measures of where a network looks: the overlap of its class activation maps with the annotated boxes, and what chance has of it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from helpers.cams import chance, detection
from helpers.cams.maps import from_bytes, to_bytes
from helpers.measures.evidence import provides
from helpers.measures.registry import measure, of_families


@provides
def image_overlaps(maps: Tensor, images: Any, cam_threshold: float, device: Any) -> pd.DataFrame:
    """One row per training image: see ``chance.chance_scores``, also for the reason where no image has a box."""
    return chance.chance_scores(maps, images.boxes, images.images.shape[-1], cam_threshold, device=device)


@provides
def rightly_classified(logits: Tensor, labels: Tensor) -> NDArray[np.bool_]:
    """Whether the predicted class of each training image is its label: (N,)."""
    return (logits.argmax(1) == labels).numpy()


@measure("localization", 1, "Du et al. 2024, equations 2 to 6", title="IoU")
def iou(image_overlaps: pd.DataFrame) -> float:
    """Overlap of where the network looks with the object's box, by pixel: mean over the images of ``|A and B| / |A or B|``, in [0, 1].

    The map is that of the predicted class, so no label is used. An empty map scores 0; an image where the overlap is undefined (neither
    map nor box) is left out and counted. NaN when it is undefined everywhere.
    """
    return float(image_overlaps["iou"].mean())


@measure("localization", 1, "Du et al. 2024, section 3.2", title="IoU-B")
def iou_b(image_overlaps: pd.DataFrame) -> float:
    """Like IoU, for the smallest upright rectangle around the map's mask; in [0, 1]."""
    return float(image_overlaps["iou_b"].mean())


@measure("localization", 1, "Du et al. 2024, against boxes of other images", title="IoU above shuffled boxes")
def iou_above_shuffled(image_overlaps: pd.DataFrame) -> float:
    """IoU less that with the boxes of 8 other images, mean over the images, in [-1, 1].

    What is left when the area of maps and boxes and their place in general are taken away: 0 for a map that does not depend on the image.
    """
    return float(chance.above_shuffled(image_overlaps, "iou").mean())


@measure("localization", 1, "Wang et al. 2020, energy-based pointing game", title="energy in the box, above chance")
def energy_in_box(image_overlaps: pd.DataFrame) -> float:
    """Share of the normalised map's sum that lies in the box, less the same with the boxes of 8 other images; in [-1, 1], no threshold.

    A map of zeros has no share in any box.
    """
    return float(chance.above_shuffled(image_overlaps, "energy_in_box").mean())


@measure("localization", 1, "Zhang et al. 2018, without tolerance", title="pointing game, above chance")
def pointing_game(image_overlaps: pd.DataFrame) -> float:
    """Fraction of images whose map is largest in the box, less the same with the boxes of 8 other images; in [-1, 1].

    Where several places are largest, their mean counts.
    """
    return float(chance.above_shuffled(image_overlaps, "pointing_game").mean())


@measure("localization", 1, "after Choe et al. 2020, on thresholds", title="area-matched IoU, above chance")
def area_matched_iou(image_overlaps: pd.DataFrame) -> float:
    """IoU where each map is cut so that its mask is as large as the box, less the same with the boxes of 8 other images; in [-1, 1].

    Each of those with a mask of its own area; the larger mask where none has the same.
    """
    return float(chance.above_shuffled(image_overlaps, "area_matched_iou").mean())


@measure("localization", 1, "Choe et al. 2020, PxAP, of single images", title="pixel average precision, above chance")
def pixel_average_precision(image_overlaps: pd.DataFrame) -> float:
    """Average precision of the pixels ranked by the map, less the same with the boxes of 8 other images; in [-1, 1]."""
    return float(chance.above_shuffled(image_overlaps, "pixel_average_precision").mean())


@measure("localization", 0, "count", title="whole-image floor")
def whole_image_floor(image_overlaps: pd.DataFrame) -> float:
    """Mean share of the images that their boxes cover: the IoU of a map that covers the whole image, without looking."""
    return float(image_overlaps["box_area"].mean())


@measure("localization", 0, "count", title="mask area")
def mask_area(image_overlaps: pd.DataFrame) -> float:
    """Median share of an image that the map's mask covers at the threshold, over the images."""
    return float(image_overlaps["mask_area"].median())


@measure(
    "localization",
    1,
    "Russakovsky et al. 2015, section 4.2; Choe et al. 2020",
    title="box found (GT-known)",
    variants=("GT-known", "top-1", "box IoU"),
)
def box_found(image_overlaps: pd.DataFrame, rightly_classified: NDArray[np.bool_]) -> Mapping[str, float]:
    """Fraction of images whose box the rectangle around the map finds at IoU >= 0.5, in [0, 1].

    GT-known: whatever class is predicted (here the map is that of the predicted class); top-1: the class must be right too;
    box IoU: mean over the images of the IoU of the rectangle with the box that it matches best. Images without a box are left out.
    """
    found = image_overlaps["box_found"]
    right = found.where(rightly_classified, 0).where(found.notna())
    return {"GT-known": float(found.mean()), "top-1": float(right.mean()), "box IoU": float(image_overlaps["box_iou"].mean())}


@measure("localization", 1, "Everingham et al. 2015, all points", title="average precision of the box")
def box_average_precision(image_overlaps: pd.DataFrame, images: Any, labels: Tensor, logits: Tensor) -> float:
    """Mean over the classes of the average precision of the rectangle around the map as a detection, ranked by confidence; in [0, 1]."""
    confidence, predicted = logits.double().softmax(1).max(1)
    rectangles = torch.from_numpy(image_overlaps[["x0", "y0", "x1", "y1"]].to_numpy())
    precisions = detection.average_precisions(rectangles, images.boxes, labels, predicted, confidence, logits.shape[1])
    return float(np.nanmean(precisions)) if np.isfinite(precisions).any() else np.nan


_MASKS = {
    "mean IoU": "mean_iou",
    "IoU of the object": "iou_object",
    "pixel accuracy": "pixel_accuracy",
    "mean pixel accuracy": "mean_pixel_accuracy",
    "frequency-weighted IoU": "frequency_weighted_iou",
}


@measure("localization", 1, "Long, Shelhamer and Darrell 2015, section 5", title="mean IoU of the masks", variants=tuple(_MASKS))
def mask_agreement(image_overlaps: pd.DataFrame) -> Mapping[str, float]:
    """Segmentation metrics of the map's mask against the box's, over the pixels of all images together, each in [0, 1]."""
    values = detection.mask_metrics(*chance.pixels_together(image_overlaps))
    return {name: values[key] for name, key in _MASKS.items()}


@measure("localization", 0, "count")
def images_scored(image_overlaps: pd.DataFrame) -> float:
    """Count the images of the pass."""
    return float(len(image_overlaps))


@measure("localization", 0, "count")
def images_without_overlap(image_overlaps: pd.DataFrame) -> float:
    """Count the images that have neither map nor box, or a map that is not finite."""
    return float(np.isnan(image_overlaps["iou"]).sum())


@measure("localization", 0, "count")
def images_with_empty_map(image_overlaps: pd.DataFrame) -> float:
    """Count the images whose map has no pixel above the threshold; their IoU is 0."""
    return float(image_overlaps["empty_map"].sum())


@provides
def localization_values(
    image_overlaps: pd.DataFrame, rightly_classified: NDArray[np.bool_], maps: Tensor
) -> dict[str, NDArray[np.generic]]:
    """Values of single images, (N,) each: float16 of which the measures are means, and correct, bool; maps, (N, h, w) uint8.

    A measure that keeps its chance has beside them its values less those with shuffled boxes, under its name and ``chance.ABOVE``, for
    ``above_chance``: those of box_average_precision are of the hits that it ranks, the box found and the class right. Of the maps (see
    ``maps.to_bytes``) with the boxes all can be had anew, see ``scores_of_maps``.
    """
    values = {name: image_overlaps[name] for name in ("iou", "iou_b", "mask_area", "box_found")}
    for name in chance.SCORES:
        values[name if name in chance.LESS_CHANCE else name + chance.ABOVE] = chance.above_shuffled(image_overlaps, name)
    values["box_average_precision" + chance.ABOVE] = values["box_found" + chance.ABOVE] * rightly_classified
    single = {name: column.to_numpy(np.float16) for name, column in values.items()}
    return single | {"correct": rightly_classified, "maps": to_bytes(maps).numpy()}


def above_chance(values: Mapping[str, ArrayLike], name: str) -> ArrayLike | None:
    """Values of single images of a measure less its own chance, out of ``localization_values``; None where they were not kept."""
    return values.get(name + chance.ABOVE, values.get(name) if name in chance.CORRECTED else None)


def scores_of_maps(
    maps: Tensor, boxes: Tensor, size: int, threshold: float = 0.1, correct: NDArray[np.bool_] | None = None
) -> tuple[dict[str, float], pd.DataFrame]:
    """Every measure that maps and boxes alone give, by its column, and ``chance.chance_scores``, by the code that scores networks.

    Args:
        maps: (N, h, w) in [0, 1] as a network was scored with, or as they were kept, uint8.
        boxes: (N, M, 4), see ``overlap.box_masks``.
        size: side of the images that boxes are measured on, pixels.
        threshold: of the maps.
        correct: (N,) whether the class is right, which the top-1 variant asks; it is left out where that is None.
    """
    overlaps = chance.chance_scores(from_bytes(maps) if maps.dtype == torch.uint8 else maps, boxes, size, threshold)
    known, found = {"image_overlaps": overlaps, "rightly_classified": np.ones(len(maps), bool) if correct is None else correct}, {}
    for item in of_families(["localization"]):
        if set(item.needs) <= set(known):
            value = item.function(*(known[name] for name in item.needs))
            found |= {item.column(variant): number for variant, number in (value if item.variants else {"": value}).items()}
    if correct is None:
        del found["box_found (top-1)"]
    return found, overlaps
