"""Localization scores of Captum's attributions, on the same images as Grad-CAM's."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from helpers.cams import attribution, localize
from helpers.cams.maps import normalise_maps
from helpers.data.images import ImageSet

CAM = "grad_cam"
COSTS = ["seconds", "forward_passes", "backward_passes"]


class Attributed(NamedTuple):
    """Maps of a method and their costs per image, or the reason why there are none."""

    method: str
    maps: Tensor | None = None  # (N, S, S), not normalised
    seconds: float = np.nan
    forward_passes: float = np.nan
    backward_passes: float = np.nan
    reason: str = ""


def above_chance(
    maps_normalised: Tensor,
    images: ImageSet,
    threshold: float,
    device: torch.device | str,
) -> pd.DataFrame:
    """Localization of each map minus that with boxes of other images.

    Args:
        maps_normalised: (N, h, w) in [0, 1].
        images: N images with boxes.
        threshold: of the map.
        device: where it is computed.

    Returns:
        A row per image with ``localize.CORRECTED``, each in [-1, 1].
    """
    size = images.images.shape[-1]
    maps = maps_normalised.to(device)
    scores = localize.chance_scores(maps, images.boxes, size, threshold)
    return pd.DataFrame(
        {name: localize.above_shuffled(scores, name) for name in localize.CORRECTED}
    )


def attribution_scores(
    cam: Tensor,
    network: nn.Module,
    inputs: Sequence[Tensor],
    classes: Tensor,
    images: ImageSet,
    settings: Any,
) -> dict[str, Any]:
    """Localization of Grad-CAM and of each attribution, as a record of the store.

    Args:
        cam: (N, h, w) maps by Grad-CAM.
        network: in evaluation mode.
        inputs: the N images in batches, as the network takes them.
        classes: (N,) class of each image that is explained.
        images: N images with boxes.
        settings: attributions, steps and threshold, see ``compute.AblationSettings``.

    Returns:
        Arrays "<measure>, <method>" (N,), NaN where a network does not allow the
        method; a table "costs". Grad-CAM needs only the pass that predicts the class
        (closed form), counted here as 1; the others need theirs in addition to it.
    """
    # DeepLift and guided backpropagation need a module per call of a ReLU.
    copied = attribution.with_separate_relus(network)
    attributed = [Attributed(CAM, cam, forward_passes=1.0, backward_passes=0.0)]
    for method in settings.attributions:
        attributed.append(_attributed(method, copied, inputs, classes, settings.steps))
    record: dict[str, Any] = {}
    costs = []
    for item in attributed:
        scores = pd.DataFrame(
            np.nan, index=range(len(images)), columns=localize.LESS_CHANCE
        )
        if item.maps is not None:
            normalised = normalise_maps(item.maps)
            scores = above_chance(normalised, images, settings.threshold, cam.device)
        for measure in localize.LESS_CHANCE:
            record[f"{measure}, {item.method}"] = scores[measure].to_numpy()
        facts = item._asdict()
        del facts["maps"]
        costs.append(facts)
    record["costs"] = pd.DataFrame(costs)
    return record


def _attributed(
    method: str,
    network: nn.Module,
    inputs: Sequence[Tensor],
    classes: Tensor,
    steps: int,
) -> Attributed:
    """Maps of one attribution; the reason where the network does not allow it."""
    classes_of_batches = classes.split([len(batch) for batch in inputs])
    started = time.perf_counter()
    try:
        batches = [
            attribution.attribution_maps(method, network, images, of_batch, steps)
            for images, of_batch in zip(inputs, classes_of_batches, strict=True)
        ]
    except ValueError as fault:
        return Attributed(method, reason=str(fault))
    return Attributed(
        method,
        maps=torch.cat([batch.maps for batch in batches]),
        seconds=(time.perf_counter() - started) / len(classes),
        forward_passes=batches[0].forward_passes,
        backward_passes=batches[0].backward_passes,
    )
