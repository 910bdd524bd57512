"""Overlap of class activation maps with annotated boxes, also above chance.

``evidence.score`` calls the functions of this module by their names. A function under
``@measure(family, direction, source)`` is a measure; direction 1 promises a smaller gap
for a larger value, and 0 is a count. A function under ``@provides`` computes a value
that measures share. In both an argument ``x`` is what the function ``x`` returns, or an
input of the name ``x``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import scipy.ndimage
import torch
from numpy.typing import NDArray
from torch import Tensor

from helpers.cams import localize
from helpers.cams.maps import from_integers, to_integers
from helpers.measures.evidence import INPUTS, MeasureSettings, score
from helpers.measures.registry import Value, measure, measures_of_families, provides
from helpers.networks import Undefined
from helpers.statistics.correlate import Array

LEAST_IOUS = (0.3, 0.5, 0.7)  # of a box that is found; Choe et al. 2020
# Pixels that touch at a side or a corner, in one image of a stack.
_NEIGHBOURS = np.zeros((3, 3, 3), dtype=bool)
_NEIGHBOURS[1] = True
MAPS = "maps_16"  # name of the maps in a record of a model
# Values of single images, by their names in a record.
_RECORDED = {"predicted_classes": "predicted", "confidence": "confidence"}
# Variants of ``mask_agreement``, by their name in ``localize.mask_metrics``.
_MASK_METRICS = {
    "mean_iou": "mean IoU",
    "iou_object": "IoU of the object",
    "pixel_accuracy": "pixel accuracy",
    "mean_pixel_accuracy": "mean pixel accuracy",
    "frequency_weighted_iou": "frequency-weighted IoU",
}


@provides
def kept_maps(maps: Tensor) -> NDArray[np.uint16]:
    """Maps as they are kept, (N, h, w) uint16: all overlaps are computed from them.

    Args:
        maps: (N, h, w) in [0, 1].
    """
    return to_integers(maps, 16)


@provides
def image_overlaps(
    kept_maps: NDArray[np.unsignedinteger],
    images: Any,
    cam_threshold: float,
    cam_cut: str,
    device: Any,
) -> pd.DataFrame:
    """Overlap of each map with the boxes, a row per image, see ``chance_scores``.

    Args:
        kept_maps: (N, h, w), see ``kept_maps``.
        images: N images with labels and boxes.
        cam_threshold: at which a map is cut, in [0, 1].
        cam_cut: rule by which the threshold cuts, see ``localize.CUTS``.
        device: "cpu" or "cuda".
    """
    maps = from_integers(kept_maps).to(device)
    size = images.images.shape[-1]
    return localize.chance_scores(maps, images.boxes, size, cam_threshold, cam_cut)


@provides
def predicted_classes(logits: Tensor) -> Tensor:
    """Predicted class of each training image, (N,) int64.

    Args:
        logits: (N, K) of the training images.
    """
    return logits.argmax(1)


@provides
def confidence(logits: Tensor) -> Tensor:
    """Probability of the predicted class, (N,) float64 in [0, 1].

    Args:
        logits: (N, K).
    """
    return logits.double().softmax(1).amax(1)


@provides
def rightly_classified(predicted_classes: Tensor, labels: Tensor) -> NDArray[np.bool_]:
    """Mask of the images that are classified as labelled, (N,).

    Args:
        predicted_classes: (N,) of the images.
        labels: (N,) of the images.
    """
    return (predicted_classes == labels).numpy()


# All measures use the map of the predicted class, so they need no labels. An empty map
# scores 0. A map that is the same for all images scores 0 in the measures of
# ``localize.CORRECTED``. Images whose score is undefined are left out of the mean.


def _enter_mean(name: str, source: str, title: str, summary: str) -> None:
    """Enter the mean over images of a column of ``image_overlaps`` as a measure."""

    def of_images(image_overlaps: pd.DataFrame) -> Array:
        return image_overlaps[name].to_numpy()

    of_images.__name__ = name
    of_images.__doc__ = summary
    measure("localization", 1, source, title=title)(of_images)


_enter_mean(
    "iou",
    "Du et al. 2024, equations 2 to 6",
    "IoU",
    "Overlap of the map's mask with the boxes, |A and B| / |A or B|, in [0, 1].",
)
_enter_mean(
    "iou_b",
    "Du et al. 2024, section 3.2",
    "IoU-B",
    "IoU of the smallest upright rectangle around the mask, in [0, 1].",
)
_enter_mean(
    "iou_above_shuffled",
    "Du et al. 2024, against boxes of other images",
    "IoU above shuffled boxes",
    "IoU less that with the boxes of 8 other images, in [-1, 1].",
)
_enter_mean(
    "energy_in_box",
    "Wang et al. 2020, energy-based pointing game",
    "energy in the box, above chance",
    "Share of the map in the box, less that in boxes of 8 other images, in [-1, 1].",
)
_enter_mean(
    "pointing_game",
    "Zhang et al. 2018, without tolerance",
    "pointing game, above chance",
    "Share of maps with the maximum in the box, less the same with 8 other boxes.",
)
_enter_mean(
    "area_matched_iou",
    "after Choe et al. 2020, on thresholds",
    "area-matched IoU, above chance",
    "IoU of masks as large as the box, less that with 8 other boxes, in [-1, 1].",
)
_enter_mean(
    "pixel_average_precision",
    "Choe et al. 2020, PxAP, of single images",
    "pixel average precision, above chance",
    "Average precision of pixels ranked by the map, less that with 8 other boxes.",
)


@measure("localization", 0, "count", title="whole-image floor")
def whole_image_floor(image_overlaps: pd.DataFrame) -> float:
    """Share of images that boxes cover: the IoU of a map of ones, in [0, 1].

    Args:
        image_overlaps: a row per image, see ``image_overlaps``.
    """
    return image_overlaps["box_area"].mean()


@measure("localization", 0, "count")
def mask_area(image_overlaps: pd.DataFrame) -> float:
    """Median share of an image that its mask covers, in [0, 1].

    Args:
        image_overlaps: a row per image, see ``image_overlaps``.
    """
    return image_overlaps["mask_area"].median()


@measure(
    "localization",
    1,
    "Russakovsky et al. 2015, section 4.2; Choe et al. 2020",
    title="box found (GT-known)",
    variants=("GT-known", "top-1", "box IoU"),
)
def box_found(
    image_overlaps: pd.DataFrame, rightly_classified: NDArray[np.bool_]
) -> Value:
    """Fraction of images whose box the rectangle around the map finds, in [0, 1].

    GT-known: at IoU >= 0.5, whatever class is predicted; top-1: the class must be right
    too; box IoU: mean of the IoU with the box that it matches best.

    Args:
        image_overlaps: a row per image, see ``image_overlaps``.
        rightly_classified: (N,) whether each image is classified as labelled.
    """
    found, box_iou = image_overlaps[["box_found", "box_iou"]].to_numpy().T
    return {"GT-known": found, "top-1": found * rightly_classified, "box IoU": box_iou}


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
    """Mean over classes of the average precision of boxes around maps, in [0, 1].

    An image with a box has one detection: the rectangle around its map, of the
    predicted class, ranked by confidence. It is correct if the class is the label and
    the rectangle finds a box. Recall is the share of all boxes of a class, of which an
    image may have several, so that its maximum is images / boxes. All points of the
    curve count, as in Pascal VOC since 2010.

    Args:
        image_overlaps: a row per image, see ``image_overlaps``.
        images: N images with labels and boxes.
        labels: (N,) of the images.
        predicted_classes: (N,) of the images.
        confidence: (N,) probability of the predicted class.
    """
    if not confidence.isfinite().all():
        raise Undefined("confidences are not finite")
    table = image_overlaps.assign(
        label=labels.numpy(),
        predicted=predicted_classes.numpy(),
        confidence=confidence.numpy(),
        boxes=localize.is_box(images.boxes).sum(1).numpy(),
    )
    table["hit"] = (table["box_found"] > 0) & (table["label"] == table["predicted"])
    detections = table[(table["boxes"] > 0) & (table["x1"] > 0)]
    ranked = detections.sort_values("confidence", ascending=False, kind="stable")
    precisions = []
    for label, count in table.groupby("label")["boxes"].sum().items():
        hits = ranked.loc[ranked["predicted"] == label, "hit"].to_numpy()
        precision = hits.cumsum() / np.arange(1, len(hits) + 1)
        # The precision at a recall is the highest at this recall or a larger one.
        highest = np.maximum.accumulate(precision[::-1])[::-1]
        precisions.append(highest[hits].sum() / count)
    return pd.Series(precisions).mean()  # of the classes that have a box


@measure(
    "localization",
    1,
    "Long, Shelhamer and Darrell 2015, section 5",
    title="mean IoU of the masks",
    variants=tuple(_MASK_METRICS.values()),
)
def mask_agreement(image_overlaps: pd.DataFrame) -> Value:
    """Segmentation metrics of the map's mask against the box's, each in [0, 1].

    Over the pixels of all images together.

    Args:
        image_overlaps: a row per image, see ``image_overlaps``.
    """
    areas = image_overlaps[["mask_area", "box_area", "common_area"]].dropna()
    metrics = localize.mask_metrics(*areas.sum(), len(areas))
    return {variant: metrics[name] for name, variant in _MASK_METRICS.items()}


def box_accuracies(
    maps: Tensor,
    boxes: Tensor,
    size: int,
    thresholds: Sequence[float] = localize.THRESHOLDS,
) -> NDArray[np.float64]:
    """MaxBoxAcc v2 at each IoU; Choe et al. 2020, wsolevaluation.

    A map cut at a threshold finds a box of its image where the rectangle around one of
    its connected parts has the least IoU with it. The threshold of a network is the one
    at which most images are found. MaxBoxAcc v2 is the mean of the three.

    Args:
        maps: (N, h, w) normalised maps in [0, 1].
        boxes: (N, M, 4) x0, y0, x1, y1 in pixels, half-open, zeros for padding.
        size: side of the images in pixels.
        thresholds: of the map, in (0, 1]; wsolevaluation takes 1,000 from 0 on.

    Returns:
        (3,) in [0, 1], of ``LEAST_IOUS``: share of the images that have a box and a
        finite map. NaN without such an image.
    """
    is_defined = localize.is_box(boxes).any(1) & maps.isfinite().flatten(1).all(1)
    boxes = boxes[is_defined]
    if not len(boxes):
        return np.full(len(LEAST_IOUS), np.nan)
    enlarged = localize.upsample(maps[is_defined].float(), size)
    shares = []
    for threshold in thresholds:
        masks = localize.cut(enlarged, threshold).numpy()
        parts, _ = scipy.ndimage.label(masks, _NEIGHBOURS)
        places = scipy.ndimage.find_objects(parts)
        images = torch.tensor([image.start for image, _, _ in places])
        rectangles = torch.tensor(
            [[x.start, y.start, x.stop, y.stop] for _, y, x in places]
        )
        best = torch.zeros(len(boxes), dtype=torch.float64)
        if places:
            ious = localize.best_box_iou(rectangles, boxes[images])
            best.scatter_reduce_(0, images, ious, "amax")
        shares.append([(best >= least).double().mean() for least in LEAST_IOUS])
    return np.max(shares, axis=0)


@provides
def recorded_maps(
    kept_maps: NDArray[np.unsignedinteger], rightly_classified: NDArray[np.bool_]
) -> dict[str, NDArray[Any]]:
    """The maps that all overlaps are computed from, and which images are right.

    Args:
        kept_maps: (N, h, w) uint16, or uint8 where they were published.
        rightly_classified: (N,).

    Returns:
        correct (N,); maps (N, h, w) uint8, which are published, and maps_16, where they
        are known to 16 bits.
    """
    maps = {
        "maps": to_integers(from_integers(kept_maps)),
        "correct": rightly_classified,
    }
    return maps | {MAPS: kept_maps} if kept_maps.dtype == np.uint16 else maps


@provides
def predictions_of_images(
    predicted_classes: Tensor, confidence: Tensor
) -> dict[str, NDArray[Any]]:
    """Predicted classes and confidences: with the maps, enough for other thresholds.

    Args:
        predicted_classes: (N,).
        confidence: (N,) in [0, 1].

    Returns:
        predicted (N,) uint16, and confidence (N,) float64.
    """
    return {
        "predicted": predicted_classes.numpy().astype(np.uint16),
        "confidence": confidence.numpy(),
    }


def inputs_from_record(record: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Inputs of localization measures of a model, from its record.

    Args:
        record: of ``IMAGE_VALUES`` of the family localization, or of a report: ``maps``
            (N, h, w), ``correct`` (N,), and where they are kept ``maps_16`` (N, h, w),
            ``predicted`` and ``confidence`` (N,).

    Returns:
        maps, kept_maps, predicted_classes and confidence by name, as ``evidence.score``
        takes them. In place of a value that the record lacks stands an error, which is
        the reason why measures that need the value are undefined.
    """
    kept_maps = record[MAPS] if MAPS in record else record["maps"]
    inputs: dict[str, Any] = {
        "device": "cpu",
        "kept_maps": kept_maps,
        "maps": from_integers(kept_maps),
        "rightly_classified": record["correct"] > 0,
    }
    for name, recorded in _RECORDED.items():
        inputs[name] = Undefined("the predictions of single images were not kept")
        if recorded in record:
            # Numbers of any type; torch has no operations on uint16.
            inputs[name] = torch.tensor(record[recorded].astype(np.float64))
    return inputs


def scores_of_fixed_map(
    boxes: Tensor, size: int, threshold: float = 0.1, rule: str = "maximum"
) -> dict[str, float]:
    """Localization measures of one central map for all images, ``central_map``.

    A baseline: the maps of a network should exceed it.

    Args:
        boxes: (N, K, 4) integers in pixels, half-open, zeros for padding.
        size: side of the images in pixels.
        threshold: of the map, in (0, 1].
        rule: by which the threshold cuts, see ``localize.cut``.

    Returns:
        The first variant of each measure that needs boxes and rightness alone; 0 for
        ``localize.CORRECTED``.
    """
    maps = localize.central_map().expand(len(boxes), -1, -1)
    inputs = dict.fromkeys(INPUTS, Undefined("one map for all images has no network"))
    inputs["image_overlaps"] = localize.chance_scores(
        maps, boxes, size, threshold, rule
    )
    inputs["rightly_classified"] = np.ones(len(boxes), dtype=bool)
    measures = measures_of_families(["localization"])
    scores = score(measures, inputs, MeasureSettings())[0].dropna(subset="value")
    return scores.groupby("measure")["value"].first().to_dict()
