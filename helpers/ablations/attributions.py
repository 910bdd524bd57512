"""Is it the overlap that goes with the gap, or the CAM: the same scores of Captum's attributions, on the same images."""

import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from helpers.cams import attribution, chance
from helpers.cams.maps import normalise_maps

CAM = "grad_cam"
COSTS = ["seconds", "forward_passes", "backward_passes"]


def above_chance(
    maps_normalised: Tensor, images: Any, threshold: float, device: torch.device | str
) -> pd.DataFrame:
    """Localization of each image's map less that with boxes of other images: columns ``chance.CORRECTED``, in [-1, 1]."""
    found = chance.chance_scores(
        maps_normalised, images.boxes, images.images.shape[-1], threshold, device=device
    )
    return pd.DataFrame(
        {name: chance.above_shuffled(found, name) for name in chance.CORRECTED}
    )


def maps_by_captum(
    network: nn.Module, batches: Iterable[Tensor], classes: Tensor, settings: Any
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each attribution of the given classes (N,): its maps (N, S, S), ``COSTS`` per image, or the reason why it has none."""
    own, batches = attribution.with_own_activations(network), list(batches)
    chosen = classes.split([len(batch) for batch in batches])
    for method in settings.attributions:
        started = time.perf_counter()
        try:
            found = [
                attribution.attribution_maps(method, own, *batch, settings.steps)
                for batch in zip(batches, chosen, strict=True)
            ]
        except ValueError as fault:
            yield method, {"reason": str(fault)}
            continue
        seconds = (time.perf_counter() - started) / len(classes)
        yield (
            method,
            found[0]._asdict()
            | {"maps": torch.cat([part.maps for part in found]), "seconds": seconds},
        )


def attribution_scores(
    cam: Tensor,
    found: Iterable[tuple[str, dict[str, Any]]],
    images: Any,
    threshold: float,
    device: torch.device | str,
) -> dict[str, Any]:
    """How far Grad-CAM (N, h, w) and each of ``maps_by_captum`` lie in the boxes: a record of the store.

    Arrays "<measure>, <method>" (N,), NaN where a network does not allow the method; a table "costs", without the pass that tells the
    class.
    """
    record, costs = {}, []
    for method, made in [
        (CAM, attribution.Attribution(cam, 1.0, 0.0)._asdict()),
        *found,
    ]:
        single = pd.DataFrame(
            np.nan, index=range(len(images)), columns=chance.LESS_CHANCE
        )
        if "maps" in made:
            single = above_chance(
                normalise_maps(made.pop("maps")), images, threshold, device
            )
        record |= {
            f"{measure}, {method}": single[measure].to_numpy()
            for measure in chance.LESS_CHANCE
        }
        costs.append(
            {"method": method, **dict.fromkeys(COSTS, np.nan), "reason": ""} | made
        )
    return record | {"costs": pd.DataFrame(costs)}
