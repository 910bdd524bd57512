"""Localization scores of Captum's attributions, on the same images as Grad-CAM's."""

import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from helpers.cams import attribution, chance
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
        A row per image with ``chance.CORRECTED``, each in [-1, 1].
    """
    size = images.images.shape[-1]
    scores = chance.chance_scores(
        maps_normalised, images.boxes, size, threshold, device=device
    )
    return pd.DataFrame(
        {name: chance.above_shuffled(scores, name) for name in chance.CORRECTED}
    )


def maps_by_captum(
    network: nn.Module, inputs: Iterable[Tensor], classes: Tensor, settings: Any
) -> Iterator[Attributed]:
    """Compute the attributions that the settings name.

    Args:
        network: in evaluation mode.
        inputs: N images in batches, as the network takes them.
        classes: (N,) class of each image that is explained.
        settings: attributions and steps, see ``compute.AblationSettings``.

    Yields:
        The maps of each attribution; the reason where the network does not allow it.
    """
    # DeepLift and guided backpropagation need a module per call of a ReLU.
    copied = attribution.with_separate_relus(network)
    inputs = list(inputs)
    classes_of_batches = classes.split([len(batch) for batch in inputs])
    for method in settings.attributions:
        started = time.perf_counter()
        try:
            batches = [
                attribution.attribution_maps(
                    method, copied, batch, classes_of_batch, settings.steps
                )
                for batch, classes_of_batch in zip(
                    inputs, classes_of_batches, strict=True
                )
            ]
        except ValueError as fault:
            yield Attributed(method, reason=str(fault))
            continue
        yield Attributed(
            method,
            maps=torch.cat([batch.maps for batch in batches]),
            seconds=(time.perf_counter() - started) / len(classes),
            forward_passes=batches[0].forward_passes,
            backward_passes=batches[0].backward_passes,
        )


def attribution_scores(
    cam: Tensor,
    by_captum: Iterable[Attributed],
    images: ImageSet,
    threshold: float,
    device: torch.device | str,
) -> dict[str, Any]:
    """Localization of Grad-CAM and of each attribution, as a record of the store.

    Args:
        cam: (N, h, w) maps by Grad-CAM.
        by_captum: see ``maps_by_captum``.
        images: N images with boxes.
        threshold: of the map.
        device: where it is computed.

    Returns:
        Arrays "<measure>, <method>" (N,), NaN where a network does not allow the
        method; a table "costs". Grad-CAM needs only the pass that predicts the class
        (closed form), counted here as 1; the others need theirs in addition to it.
    """
    grad_cam = Attributed(CAM, cam, forward_passes=1.0, backward_passes=0.0)
    record: dict[str, Any] = {}
    costs = []
    for attributed in [grad_cam, *by_captum]:
        scores = pd.DataFrame(
            np.nan, index=range(len(images)), columns=chance.LESS_CHANCE
        )
        if attributed.maps is not None:
            maps = normalise_maps(attributed.maps)
            scores = above_chance(maps, images, threshold, device)
        for measure in chance.LESS_CHANCE:
            record[f"{measure}, {attributed.method}"] = scores[measure].to_numpy()
        facts = attributed._asdict()
        del facts["maps"]
        costs.append(facts)
    record["costs"] = pd.DataFrame(costs)
    return record
