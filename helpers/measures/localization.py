"""Measures of where a network looks: the overlap of its class activation maps with the annotated boxes."""

from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from helpers import localization
from helpers.measures.evidence import provides
from helpers.measures.registry import measure


@provides
def image_overlaps(maps: Tensor, images: Any, cam_threshold: float, device: Any) -> pd.DataFrame:
    """One row per training image, see ``localization.image_scores``."""
    return localization.image_scores(maps, images.boxes, images.images.shape[-1], cam_threshold, device=device)


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
