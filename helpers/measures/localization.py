"""Measures of where a network looks: the overlap of its class activation maps with the annotated boxes, and what chance has of it."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from helpers.cams import chance, cuts, detection
from helpers.cams.maps import from_integers, to_integers
from helpers.measures.evidence import PROVIDERS, MeasureSettings, provides, score
from helpers.measures.registry import MEASURES, measure, measures, of_families

# Names of arrays in a record of a model.
MAPS, PREDICTED, CONFIDENCE = "maps_16", "predicted", "confidence"
BOX_FOUND = 0.5  # IoU at which a box is found

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
    # (N, h, w) uint16: all of the following is computed from maps as they are kept.
    "kept_maps": lambda maps: to_integers(maps, 16),
    # A row per training image, see ``chance.chance_scores``.
    "image_overlaps": lambda kept_maps, images, cam_threshold, device: (
        chance.chance_scores(
            from_integers(kept_maps),
            images.boxes,
            images.images.shape[-1],
            cam_threshold,
            device=device,
        )
    ),
    "predicted_classes": lambda logits: logits.argmax(1),  # (N,) int64
    # (N,) float64: probability of the predicted class
    "confidence": lambda logits: logits.double().softmax(1).amax(1),
    "rightly_classified": lambda predicted_classes, labels: (
        predicted_classes == labels
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
    image_overlaps: pd.DataFrame,
    images: Any,
    labels: Tensor,
    predicted_classes: Tensor,
    confidence: Tensor,
) -> float:
    """Mean over the classes of the average precision of the rectangle around the map as a detection, ranked by confidence; in [0, 1]."""
    precisions = detection.average_precisions(
        torch.from_numpy(image_overlaps[["x0", "y0", "x1", "y1"]].to_numpy()),
        images.boxes,
        labels,
        predicted_classes,
        confidence,
        int(labels.max()) + 1,
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
    image_overlaps: pd.DataFrame,
    rightly_classified: NDArray[np.bool_],
    kept_maps: NDArray[np.unsignedinteger],
) -> dict[str, NDArray[Any]]:
    """Values of single images, and the maps that all are computed from.

    Args:
        image_overlaps: a row per image, see ``chance.chance_scores``.
        rightly_classified: (N,).
        kept_maps: (N, h, w) uint16, or uint8 where they were published.

    Returns:
        (N,) float16 each, of which the measures are means; correct, bool; maps (N, h, w)
        uint8, which are published, and maps_16, where they are known to 16 bits.
    """
    values = {
        name: image_overlaps[name]
        for name in ("iou", "iou_b", "mask_area", "box_found")
    }
    values |= {
        name: chance.above_shuffled(image_overlaps, name) for name in chance.CORRECTED
    }
    single = {name: column.to_numpy(np.float16) for name, column in values.items()}
    single |= {
        "correct": rightly_classified,
        "maps": to_integers(from_integers(kept_maps)),
    }
    if kept_maps.dtype == np.uint16:
        single[MAPS] = kept_maps
    return single


@provides
def predictions_of_images(
    predicted_classes: Tensor, confidence: Tensor
) -> dict[str, NDArray[Any]]:
    """What localization at another threshold needs beside the maps.

    Args:
        predicted_classes: (N,).
        confidence: (N,) in [0, 1].

    Returns:
        predicted (N,) uint16, and confidence (N,) float64.
    """
    return {
        PREDICTED: predicted_classes.numpy().astype(np.uint16),
        CONFIDENCE: confidence.numpy(),
    }


def of_kept_maps(
    record: Mapping[str, NDArray[Any]],
    boxes: Tensor,
    labels: Tensor,
    size: int,
    threshold: float = cuts.PAPER,
) -> pd.DataFrame:
    """Every localization measure of a model at any threshold, from its kept maps.

    No network and no pixels are needed.

    Args:
        record: of ``localization_values``, or of a report: ``maps_16`` or ``maps``
            (N, h, w), and where they are kept ``predicted`` and ``confidence`` (N,).
        boxes: (N, K, 4) integers x0, y0, x1, y1 in pixels, half-open, zeros for padding.
        labels: (N,).
        size: side of the images in pixels.
        threshold: of the normalised map, in (0, 1].

    Returns:
        A row per measure and variant: measure, variant, value (NaN where undefined),
        reason. From 16 bits a value differs by 1e-6 from that of maps that were not
        rounded; from 8 bits by 1e-4, IoU-B by 3e-4.
    """
    images = SimpleNamespace(
        images=torch.empty(len(boxes), 3, size, size, device="meta"),
        boxes=torch.as_tensor(boxes).long(),
        labels=torch.as_tensor(labels).long(),
    )
    given = of_record(record) | {"images": images}
    settings = MeasureSettings(cam_threshold=threshold)
    scores, _ = score(of_families(["localization"]), given, settings)
    return scores.drop(columns="seconds")


def of_record(record: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """What measures of localization need of a network, from what was kept of it.

    Args:
        record: see ``of_kept_maps``.

    Returns:
        kept_maps, predicted_classes and confidence by name, as ``evidence.score`` takes
        them, in place of a network; for what was not kept the reason of the measures that
        need it.
    """
    given: dict[str, Any] = {
        "network": nn.Identity(),
        "device": "cpu",
        "kept_maps": record[MAPS if MAPS in record else "maps"],
    }
    for name, kept in (("predicted_classes", PREDICTED), ("confidence", CONFIDENCE)):
        words = name.replace("_", " ")
        given[name] = ValueError(f"the {words} of single images were not kept")
        if kept in record:
            given[name] = torch.from_numpy(np.asarray(record[kept]))
    if PREDICTED in record:
        given["predicted_classes"] = given["predicted_classes"].long()
    elif "correct" in record:
        given["rightly_classified"] = np.asarray(record["correct"]) > 0
    return given


def at_thresholds(
    maps: NDArray[np.unsignedinteger],
    boxes: Tensor | NDArray[np.integer],
    size: int,
    thresholds: Sequence[float] = cuts.THRESHOLDS,
    right: NDArray[np.bool_] | None = None,
    workers: int = 0,
) -> pd.DataFrame:
    """Localization of all models of a study at several thresholds, from kept maps.

    Args:
        maps: (M, N, h, w) uint8 or uint16, see ``maps.to_integers``.
        boxes: (N, K, 4) integers x0, y0, x1, y1 in pixels, half-open, zeros for padding.
        size: side of the images in pixels.
        thresholds: of the normalised map, in (0, 1].
        right: (M, N), whether the predicted class is right; without it the top-1 rate of
            boxes that are found is left out.
        workers: threads; 0 takes one per core.

    Returns:
        A row per model and threshold: model (its place among the maps), threshold, and the
        measures that depend on it by the name of their column, as ``of_kept_maps`` has them
        one model and threshold at a time. NaN where no image defines a value.

    Raises:
        ValueError: if a threshold is outside of (0, 1], or no image has a box.

    Example:
        >>> maps = np.array([[[[255, 0], [255, 0]]]], dtype=np.uint8)
        >>> boxes = np.array([[[0, 0, 2, 4]]])
        >>> at_thresholds(maps, boxes, 4, [0.5, 1.0])["iou"].round(2).tolist()
        [1.0, 0.5]
    """
    found = cuts.overlaps_at(maps, boxes, size, thresholds, workers)
    hits = np.where(np.isnan(found.box_iou), np.nan, found.box_iou >= BOX_FOUND)
    columns = {
        "iou": _mean_of_images(found.iou),
        "iou_b": _mean_of_images(found.iou_b),
        "iou_above_shuffled": _mean_of_images(found.iou - found.iou_shuffled),
        "mask_area": np.median(found.map_pixels / size**2, axis=1),
        "box_found": _mean_of_images(hits),
        "box_found (box IoU)": _mean_of_images(found.box_iou),
        "images_with_empty_map": (found.map_pixels == 0).sum(1),
    }
    if right is not None:
        of_right = np.where(np.isnan(hits), np.nan, hits * right[:, :, None])
        columns["box_found (top-1)"] = _mean_of_images(of_right)
    columns |= _agreement(found, len(boxes) * size**2)
    places = np.indices(columns["iou"].shape)
    table = {"model": places[0], "threshold": np.asarray(thresholds)[places[1]]}
    return pd.DataFrame(
        {name: values.ravel() for name, values in (table | columns).items()}
    )


def _mean_of_images(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """Mean of (M, N, T) over the images where it is defined, (M, T)."""
    defined = ~np.isnan(values)
    total = np.where(defined, values, 0).sum(1, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        return total / defined.sum(1)


def _agreement(found: cuts.Cuts, pixels: int) -> dict[str, NDArray[np.float64]]:
    """Columns of ``mask_agreement``, (M T,) each, of pixels of all images together."""
    marked = found.map_pixels.sum(1, dtype=np.int64)
    common = found.common_pixels.sum(1, dtype=np.int64)
    boxed = int(found.box_pixels.sum())
    metrics = [
        detection.mask_metrics(int(one), boxed, int(both), pixels)
        for one, both in zip(marked.ravel(), common.ravel(), strict=True)
    ]
    item = MEASURES["mask_agreement"]
    return {
        item.column(variant): np.array([one[key] for one in metrics])
        for variant, key in _MASKS.items()
    }


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
