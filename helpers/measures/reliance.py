"""Accuracy with the object greyed, another place greyed, or all but the object."""

from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from helpers.cams import localize
from helpers.data.images import box_masks
from helpers.measures.passes import Classifier
from helpers.measures.registry import measure, provides
from helpers.networks import Undefined
from helpers.statistics.correlate import Array

_SOURCE = "ours; intervention on the image"


@provides
def greyed_hits(classifier: Classifier, images: Any, labels: Tensor) -> pd.DataFrame:
    """Correctness of predictions when a part of the image takes its mean colour.

    Args:
        classifier: the network, and how it takes images.
        images: N training images.
        labels: (N,).

    Returns:
        A row per image, 1 where the class is right, else 0, by the part that is grey.
        box: the image's boxes; control: the boxes of another image
        (``localize.derangements``), which may cover a part of the object too; outside:
        everything but the boxes. NaN for an image without a box, or with nothing
        around its boxes.

    Raises:
        Undefined: for fewer than two images with a box and room around it.
    """
    masks = box_masks(images.boxes, images.images.shape[-1]).unsqueeze(1)
    areas = masks.flatten(1).double().mean(1)
    (rows,) = ((areas > 0) & (areas < 1)).nonzero(as_tuple=True)
    if len(rows) < 2:
        raise Undefined(
            f"{len(rows)} of {len(images)} images have a box that leaves room around "
            "it; two are needed"
        )
    others = rows[localize.derangements(len(rows), 1)[:, 0]]
    greys = {"box": masks[rows], "control": masks[others], "outside": ~masks[rows]}
    pixels = images.images[rows]
    means = pixels.mean((2, 3), keepdim=True, dtype=torch.float32)
    colours = means.round().byte()
    hits = {}
    for name, is_grey in greys.items():
        logits = classifier.logits(torch.where(is_grey, colours, pixels)).cpu()
        hits[name] = (logits.argmax(1) == labels[rows]).double().numpy()
    return pd.DataFrame(hits, rows.numpy()).reindex(range(len(images)))


@measure("reliance", 1, _SOURCE, title="reliance on the object")
def object_reliance(greyed_hits: pd.DataFrame) -> Array:
    """Accuracy with another image's box greyed less that with the object's greyed.

    In [-1, 1]; 0 where the object is not needed.

    Args:
        greyed_hits: a row per image, see ``greyed_hits``.
    """
    return (greyed_hits["control"] - greyed_hits["box"]).to_numpy()


@measure("reliance", 1, _SOURCE, title="accuracy from the box alone")
def box_only_accuracy(
    greyed_hits: pd.DataFrame, rightly_classified: NDArray[np.bool_]
) -> float:
    """Accuracy with all but the box greyed, over that on the same images as they are.

    At least 0; NaN for an accuracy of 0.

    Args:
        greyed_hits: a row per image, see ``greyed_hits``.
        rightly_classified: (N,) whether each image is classified as labelled.
    """
    has_box = greyed_hits["outside"].notna()
    accuracy = rightly_classified[has_box].mean()
    return float(greyed_hits["outside"].mean() / accuracy) if accuracy else np.nan
