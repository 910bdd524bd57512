"""Measures of where a network looks: the overlap of its class activation maps with the annotated boxes, and what chance has of it."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from helpers.cams import chance, detection
from helpers.cams.maps import to_bytes
from helpers.measures.evidence import PROVIDERS, provides
from helpers.measures.registry import measure, measures, of_families

_FOUND, _SOURCE = (
    ("GT-known", "top-1", "box IoU"),
    "Russakovsky et al. 2015, section 4.2; Choe et al. 2020",
)
_MASKS = {
    "mean IoU": "mean_iou",
    "IoU of the object": "iou_object",
    "pixel accuracy": "pixel_accuracy",
}
_MASKS |= {
    "mean pixel accuracy": "mean_pixel_accuracy",
    "frequency-weighted IoU": "frequency_weighted_iou",
}

PROVIDERS |= {
    "image_overlaps": lambda maps, images, cam_threshold, device: (
        chance.chance_scores(  # a row per training image
            maps, images.boxes, images.images.shape[-1], cam_threshold, device=device
        )
    ),
    "rightly_classified": lambda logits, labels: (
        logits.argmax(1) == labels
    ).numpy(),  # (N,) bool
}

# Means over the images of a column of ``chance.chance_scores``, where it is defined: name, title, source, summary. All are of the map
# of the predicted class, so that no label is used; an empty map scores 0, and by those in ``chance.CORRECTED`` one map for all images does.
_MEANS = (
    (
        "iou",
        "IoU",
        "Du et al. 2024, equations 2 to 6",
        "Overlap of the map's mask with the boxes by pixel, |A and B| / |A or B|",
    ),
    (
        "iou_b",
        "IoU-B",
        "Du et al. 2024, section 3.2",
        "IoU of the smallest upright rectangle around the mask",
    ),
    (
        "iou_above_shuffled",
        "IoU above shuffled boxes",
        "Du et al. 2024, against boxes of other images",
        "IoU",
    ),
    (
        "energy_in_box",
        "energy in the box, above chance",
        "Wang et al. 2020, energy-based pointing game",
        "Share of the map in the box",
    ),
    (
        "pointing_game",
        "pointing game, above chance",
        "Zhang et al. 2018, without tolerance",
        "Share of maps whose maximum is in the box",
    ),
    (
        "area_matched_iou",
        "area-matched IoU, above chance",
        "after Choe et al. 2020, on thresholds",
        "IoU of masks as large as the box",
    ),
    (
        "pixel_average_precision",
        "pixel average precision, above chance",
        "Choe et al. 2020, PxAP, of single images",
        "Pixels by the map",
    ),
)


def _mean(name: str) -> Callable[[pd.DataFrame], float]:
    if name in chance.CORRECTED:
        return lambda image_overlaps: chance.above_shuffled(image_overlaps, name).mean()
    return lambda image_overlaps: image_overlaps[name].mean()


for _name, *_texts, _summary in _MEANS:
    _summary += (
        ", less the same with the boxes of 8 other images; in [-1, 1]"
        if _name in chance.CORRECTED
        else "; in [0, 1]"
    )
    measures("localization", 1, (_name, *_texts, _summary, _mean(_name)))
_FLOOR, _AREA = (
    "Share of images that boxes cover: the IoU of a map of ones",
    "Median share of an image that its mask covers",
)
measures(
    "localization",
    0,
    (
        "whole_image_floor",
        "whole-image floor",
        "count",
        _FLOOR,
        lambda image_overlaps: image_overlaps["box_area"].mean(),
    ),
    (
        "mask_area",
        "",
        "count",
        _AREA,
        lambda image_overlaps: image_overlaps["mask_area"].median(),
    ),
)


@measure("localization", 1, _SOURCE, title="box found (GT-known)", variants=_FOUND)
def box_found(
    image_overlaps: pd.DataFrame, rightly_classified: NDArray[np.bool_]
) -> Mapping[str, float]:
    """Fraction of images whose box the rectangle around the map finds at IoU >= 0.5, in [0, 1].

    GT-known: whatever class is predicted; top-1: the class must be right too; box IoU: mean of the IoU with the box that it matches best.
    """
    found = image_overlaps["box_found"]
    right = found.where(rightly_classified, 0).where(found.notna())
    return {
        name: float(part.mean())
        for name, part in zip(
            _FOUND, (found, right, image_overlaps["box_iou"]), strict=True
        )
    }


@measure(
    "localization",
    1,
    "Everingham et al. 2015, all points",
    title="average precision of the box",
)
def box_average_precision(
    image_overlaps: pd.DataFrame, images: Any, labels: Tensor, logits: Tensor
) -> float:
    """Mean over the classes of the average precision of the rectangle around the map as a detection, ranked by confidence; in [0, 1]."""
    confidence, predicted = logits.double().softmax(1).max(1)
    rectangles = torch.from_numpy(image_overlaps[["x0", "y0", "x1", "y1"]].to_numpy())
    precisions = detection.average_precisions(
        rectangles, images.boxes, labels, predicted, confidence, logits.shape[1]
    )
    return float(np.nanmean(precisions)) if np.isfinite(precisions).any() else np.nan


@measure(
    "localization",
    1,
    "Long, Shelhamer and Darrell 2015, section 5",
    title="mean IoU of the masks",
    variants=tuple(_MASKS),
)
def mask_agreement(image_overlaps: pd.DataFrame) -> Mapping[str, float]:
    """Segmentation metrics of the map's mask against the box's, over the pixels of all images together, each in [0, 1]."""
    values = detection.mask_metrics(
        *(
            int(image_overlaps[f"{name}_pixels"].sum())
            for name in ("map", "box", "common", "image")
        )
    )
    return {name: values[key] for name, key in _MASKS.items()}


_NEITHER, _EMPTY = (
    "Images with neither map nor box, or a map that is not finite",
    "Images whose mask is empty; their IoU is 0",
)
measures(
    "localization",
    0,
    (
        "images_scored",
        "",
        "count",
        "Images of the pass",
        lambda image_overlaps: len(image_overlaps),
    ),
    (
        "images_without_overlap",
        "",
        "count",
        _NEITHER,
        lambda image_overlaps: image_overlaps["iou"].isna().sum(),
    ),
    (
        "images_with_empty_map",
        "",
        "count",
        _EMPTY,
        lambda image_overlaps: image_overlaps["empty_map"].sum(),
    ),
)


@provides
def localization_values(
    image_overlaps: pd.DataFrame, rightly_classified: NDArray[np.bool_], maps: Tensor
) -> dict[str, NDArray[Any]]:
    """Values of single images, (N,) each: float16 of which the measures are means, and correct, bool; maps, (N, h, w) uint8."""
    values = {
        name: image_overlaps[name]
        for name in ("iou", "iou_b", "mask_area", "box_found")
    }
    values |= {
        name: chance.above_shuffled(image_overlaps, name) for name in chance.CORRECTED
    }
    single = {name: column.to_numpy(np.float16) for name, column in values.items()}
    return single | {"correct": rightly_classified, "maps": to_bytes(maps).numpy()}


def of_fixed_map(boxes: Tensor, size: int, threshold: float = 0.1) -> dict[str, float]:
    """Score of one fixed ``chance.central_map`` by each measure, which a network's maps should exceed; 0 for ``chance.CORRECTED``."""
    images = chance.chance_scores(
        chance.central_map().expand(len(boxes), -1, -1), boxes, size, threshold
    )
    known = {
        "image_overlaps": images,
        "rightly_classified": np.ones(len(images), dtype=bool),
    }
    items = [
        item
        for item in of_families(["localization"])
        if item.direction and set(item.needs) <= set(known)
    ]
    values = {
        item.name: item.function(**{need: known[need] for need in item.needs})
        for item in items
    }
    return {
        name: float(next(iter(value.values())) if isinstance(value, Mapping) else value)
        for name, value in values.items()
    }
