"""Does a network need the object: its accuracy with the inside of the box greyed, another place greyed, or all but the box."""

from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from helpers.cams import chance
from helpers.measures.evidence import provides
from helpers.measures.registry import measure, measures
from helpers.networks.hooks import prepared

_SOURCE = "ours; intervention on the image"


@provides
@torch.inference_mode()
def greyed_hits(
    fused_network: nn.Module,
    images: Any,
    normalise: Any,
    device: Any,
    labels: Tensor,
    batch_size: int,
) -> pd.DataFrame:
    """Whether the class is right when a part of the image takes the image's mean colour, one row per training image, 0 or 1.

    box: the inside of the boxes (their union); control: the boxes of another image (``chance.derangements``), too small a change where they
    overlap the object; outside: everything else. NaN for an image without a box, or box from edge to edge; ValueError for fewer than two.
    """
    masks = chance.boxed(images.boxes, images.images.shape[-1]).view(
        len(images), 1, *images.images.shape[2:]
    )
    rows = (masks.flatten(1).any(1) & ~masks.flatten(1).all(1)).nonzero().squeeze(1)
    if len(rows) < 2:
        raise ValueError(
            f"{len(rows)} of {len(images)} images have a box that leaves room around it; two are needed"
        )
    others = rows[chance.derangements(len(rows), 1)[:, 0]]
    found = {
        name: np.full(len(images), np.nan) for name in ("box", "control", "outside")
    }
    for row, other in zip(
        rows.split(batch_size), others.split(batch_size), strict=True
    ):
        pixels = images.images[row]
        colour = pixels.float().mean((2, 3), keepdim=True).round().byte()
        for name, greyed in (
            ("box", masks[row]),
            ("control", masks[other]),
            ("outside", ~masks[row]),
        ):
            predicted = (
                fused_network(
                    prepared(torch.where(greyed, colour, pixels), normalise, device)
                )
                .argmax(1)
                .cpu()
            )
            found[name][row.numpy()] = predicted == labels[row]
    return pd.DataFrame(found)


@provides
def reliance_values(greyed_hits: pd.DataFrame) -> dict[str, NDArray[np.float16]]:
    """Values of single images, (N,), of which object_reliance is the mean; NaN without."""
    return {
        "object_reliance": (greyed_hits["control"] - greyed_hits["box"]).to_numpy(
            np.float16
        )
    }


@measure("reliance", 1, _SOURCE, title="reliance on the object")
def object_reliance(greyed_hits: pd.DataFrame) -> float:
    """Accuracy with another image's box greyed less that with the object's own box greyed, in [-1, 1]; 0 where the object is not needed."""
    return float((greyed_hits["control"] - greyed_hits["box"]).mean())


@measure("reliance", 1, _SOURCE, title="accuracy from the box alone")
def box_only_accuracy(
    greyed_hits: pd.DataFrame, rightly_classified: NDArray[np.bool_]
) -> float:
    """Accuracy with everything but the box greyed, over that on the same images as they are; at least 0, NaN for an accuracy of 0."""
    scored = greyed_hits["outside"].notna()
    accuracy = rightly_classified[scored].mean()
    return float(greyed_hits["outside"].mean() / accuracy) if accuracy else np.nan


_WITHOUT = "Count the images that have no box, or are nothing but box"
measures(
    "reliance",
    0,
    (
        "images_without_reliance",
        "",
        "count",
        _WITHOUT,
        lambda greyed_hits: float(greyed_hits["outside"].isna().sum()),
    ),
)
