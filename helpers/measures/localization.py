"""Measures of where a network looks: the overlap of its class activation maps with the annotated boxes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from helpers.cams import chance, detection
from helpers.measures.evidence import provides
from helpers.measures.registry import measure


@provides
def image_overlaps(maps: Tensor, lowest: Tensor, images: Any, cam_threshold: float, device: Any) -> pd.DataFrame:
    """One row per training image: see ``chance.chance_scores``."""
    return chance.chance_scores(maps, lowest, images.boxes, images.images.shape[-1], cam_threshold, device=device)


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


# What chance gives is taken off, where there is something.
_VALUES = {
    "iou": ("iou", None),
    "iou_b": ("iou_b", None),
    "iou_above_shuffled": ("iou", "iou_shuffled"),
    "energy_in_box": ("energy", "box_area"),
    "pointing_game": ("pointing", "pointing_shuffled"),
    "area_matched_iou": ("area_matched_iou", None),
    "pixel_average_precision": ("average_precision", "box_area"),
    "mask_area": ("mask_area", None),
}


def _above_chance(image_overlaps: pd.DataFrame, name: str) -> pd.Series:
    """Values of single images, less what chance gives, by the name of the measure whose mean they have."""
    value, by_chance = _VALUES[name]
    return image_overlaps[value] if by_chance is None else image_overlaps[value] - image_overlaps[by_chance]


@provides
def localization_values(image_overlaps: pd.DataFrame, images: Any, logits: Tensor) -> dict[str, NDArray[np.generic]]:
    """Values of single images, (N,) each: float16 of which the measures are means, and bool, whether the class is right.

    ``box_found`` is 1 where the rectangle around the map finds a box, whatever class is predicted, else 0; NaN without a box.
    """
    values = {name: _above_chance(image_overlaps, name).to_numpy(np.float16) for name in _VALUES}
    best = detection.best_box_iou(rectangles_of(image_overlaps), images.boxes)
    values["box_found"] = (best >= 0.5).half().masked_fill(best.isnan(), torch.nan).numpy()
    return values | {"correct": (logits.argmax(1) == images.labels.cpu()).numpy()}


@measure("localization", 1, "Du et al. 2024, against boxes of other images", title="IoU above shuffled boxes")
def iou_above_shuffled(image_overlaps: pd.DataFrame) -> float:
    """IoU less that with the boxes of 8 other images, mean over the images, in [-1, 1].

    What is left when the area of maps and boxes and their place in general are taken away: 0 for a map that does not depend on the image.
    """
    return float(_above_chance(image_overlaps, "iou_above_shuffled").mean())


@measure("localization", 1, "Wang et al. 2020, energy-based pointing game", title="energy in the box")
def energy_in_box(image_overlaps: pd.DataFrame) -> float:
    """Share of the map's sum that lies in the box, less the box's share of the image: mean over the images, in [-1, 1]; no threshold.

    A map of zeros has no share in the box; a constant one has the box's share of the image, which leaves 0.
    """
    return float(_above_chance(image_overlaps, "energy_in_box").mean())


@measure("localization", 1, "Zhang et al. 2018, without tolerance", title="pointing game")
def pointing_game(image_overlaps: pd.DataFrame) -> float:
    """Fraction of images whose map is largest in the box, less the same with the boxes of 8 other images; in [-1, 1].

    Where several places are largest, their mean counts.
    """
    return float(_above_chance(image_overlaps, "pointing_game").mean())


@measure("localization", 1, "after Choe et al. 2020, on thresholds", title="area-matched IoU")
def area_matched_iou(image_overlaps: pd.DataFrame) -> float:
    """IoU where each map is cut so that its mask is as large as the box, in [0, 1]: how well the map ranks the pixels.

    The larger mask where none has the same area.
    """
    return float(image_overlaps["area_matched_iou"].mean())


@measure("localization", 1, "Choe et al. 2020, PxAP, of single images", title="pixel average precision")
def pixel_average_precision(image_overlaps: pd.DataFrame) -> float:
    """Average precision of the pixels ranked by the map, less the box's share of the image, which any order by chance has; in [-1, 1]."""
    return float(_above_chance(image_overlaps, "pixel_average_precision").mean())


@measure("localization", 0, "count", title="whole-image floor")
def whole_image_floor(image_overlaps: pd.DataFrame) -> float:
    """Mean share of the images that their boxes cover: the IoU of a map that covers the whole image, without looking."""
    return float(image_overlaps["box_area"].mean())


@measure("localization", 0, "count", title="mask area")
def mask_area(image_overlaps: pd.DataFrame) -> float:
    """Median share of an image that the map's mask covers at the threshold, over the images."""
    return float(image_overlaps["mask_area"].median())


def rectangles_of(overlaps: pd.DataFrame) -> Tensor:
    """(N, 4) int64 x0, y0, x1, y1 of the rectangle around each map's mask."""
    return torch.tensor(np.stack([overlaps[name].to_numpy() for name in ("x0", "y0", "x1", "y1")], axis=1))


@measure(
    "localization",
    1,
    "Russakovsky et al. 2015, section 4.2; Choe et al. 2020",
    title="box found (GT-known)",
    variants=("GT-known", "top-1", "box IoU"),
)
def box_found(image_overlaps: pd.DataFrame, images: Any, logits: Tensor) -> Mapping[str, float]:
    """Fraction of images whose box the rectangle around the map finds at IoU >= 0.5, in [0, 1].

    GT-known: whatever class is predicted (here the map is that of the predicted class); top-1: the class must be right too;
    box IoU: mean over the images of the IoU of the rectangle with the box that it matches best. Images without a box are left out.
    """
    found = detection.localization_accuracy(rectangles_of(image_overlaps), images.boxes, images.labels, logits.argmax(1))
    return {"GT-known": found["gt_known"], "top-1": found["top1_localization"], "box IoU": found["mean_box_iou"]}


@measure("localization", 1, "Everingham et al. 2015, all points", title="average precision of the box")
def box_average_precision(image_overlaps: pd.DataFrame, images: Any, logits: Tensor) -> float:
    """Mean over the classes of the average precision of the rectangle around the map as a detection, ranked by confidence; in [0, 1]."""
    confidence, predicted = logits.double().softmax(1).max(1)
    names = [str(number) for number in range(logits.shape[1])]
    given = (rectangles_of(image_overlaps), images.boxes, images.labels, predicted, confidence, names)
    return detection.rectangle_average_precision(*given).mean_average_precision


_MASKS = {
    "mean IoU": "mean_iou",
    "IoU of the object": "iou_object",
    "pixel accuracy": "pixel_accuracy",
    "mean pixel accuracy": "mean_pixel_accuracy",
    "frequency-weighted IoU": "frequency_weighted_iou",
}


@measure("localization", 1, "Long, Shelhamer and Darrell 2015, section 5", title="mean IoU of the masks", variants=tuple(_MASKS))
def mask_agreement(image_overlaps: pd.DataFrame, images: Any) -> Mapping[str, float]:
    """Segmentation metrics of the map's mask against the box's, over the pixels of all images together, each in [0, 1]."""
    called, there, both = (int(image_overlaps[f"{name}_pixels"].sum()) for name in ("map", "box", "common"))
    total = len(image_overlaps) * images.images.shape[-1] ** 2
    values = detection.mask_metrics(torch.tensor([[total - called - there + both, called - both], [there - both, both]]))
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
