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
from helpers.scoring.store import Kept
from helpers.statistics.correlations import kendall
from helpers.statistics.draws import Draws, percentile_interval
from helpers.statistics.reliability import reliability

CAM = "grad_cam"
COSTS = ["seconds", "forward_passes", "backward_passes"]
_PART = "attributed"


def above_chance(maps_normalised: Tensor, images: Any, threshold: float, device: torch.device | str) -> pd.DataFrame:
    """Localization of each image's map less that with boxes of other images: columns ``chance.CORRECTED``, in [-1, 1]."""
    found = chance.chance_scores(maps_normalised, images.boxes, images.images.shape[-1], threshold, device=device)
    return pd.DataFrame({name: chance.above_shuffled(found, name.removesuffix(chance.ABOVE)) for name in chance.CORRECTED})


def maps_by_captum(network: nn.Module, batches: Iterable[Tensor], classes: Tensor, settings: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each attribution of the given classes (N,): its maps (N, S, S), what it costs per image (``COSTS``), or the reason why it has none.

    batches: (B, 3, S, S) each, as the network takes them; settings: attributions, and steps of integrated gradients.
    """
    own, batches = attribution.with_own_activations(network), list(batches)
    chosen = classes.split([len(batch) for batch in batches])
    for method in settings.attributions:
        started = time.perf_counter()
        try:
            found = [attribution.attribution_maps(method, own, *batch, settings.steps) for batch in zip(batches, chosen, strict=True)]
        except ValueError as fault:
            yield method, {"reason": str(fault)}
            continue
        costs = [(time.perf_counter() - started) / len(classes), found[0].forward_passes, found[0].backward_passes]
        yield method, {"maps": torch.cat([part.maps for part in found])} | dict(zip(COSTS, costs, strict=True))


def attribution_scores(
    cam: Tensor, found: Iterable[tuple[str, dict[str, Any]]], images: Any, threshold: float, device: torch.device | str
) -> dict[str, Any]:
    """How far Grad-CAM (N, h, w) and each of ``maps_by_captum`` lie in the boxes: a record of the store.

    Arrays "<measure>, <method>" (N,) of ``chance.LESS_CHANCE``, NaN where a network does not allow the method; and a table "costs": method,
    ``COSTS`` (without the pass that tells the class) and reason.
    """
    record, costs = {}, []
    for method, made in [(CAM, {"maps": cam} | dict(zip(COSTS, (np.nan, 1.0, 0.0), strict=True))), *found]:
        maps = made.pop("maps", None)
        if maps is not None:
            single = above_chance(normalise_maps(maps), images, threshold, device)
        else:
            single = pd.DataFrame(np.nan, index=range(len(images)), columns=chance.LESS_CHANCE)
        record |= {f"{measure}, {method}": single[measure].to_numpy() for measure in chance.LESS_CHANCE}
        costs.append({"method": method, **dict.fromkeys(COSTS, np.nan), "reason": ""} | made)
    return record | {"costs": pd.DataFrame(costs)}


def attributions_compared(draws: Draws, kept: Kept) -> pd.DataFrame:
    """How each score of each attribution goes with the gap, beside that of Grad-CAM on the same images.

    One row per score (measure) and method: images, n (models), mean, reliability (split half over the images), pearson_r, ci_low, ci_high,
    kendall_tau, minus_cam (r less that of Grad-CAM) with minus_cam_low and minus_cam_high, paired; seconds, forward_passes and
    backward_passes per image, and reason where it is undefined for some model. ``draws`` has the models of ``kept``, in its order.
    """
    rows, values, costs = [], kept.stacked(_PART), kept.table(_PART, "costs")
    means = {name: np.nanmean(single, axis=1, where=np.isfinite(single)) for name, single in values.items()}
    test = {name: single for name, single in draws.images.items() if name == "test_accuracy"}
    own = Draws(draws.models.assign(**means), test | values, draws=draws.draws, seed=draws.seed)
    methods = costs["method"].unique()
    for measure in chance.LESS_CHANCE:
        names = [f"{measure}, {method}" for method in methods]
        found, r = own.correlations(names, tau=False), own.estimate(names)
        less = percentile_interval(r.drawn - r.drawn[:, :1], r.configurations)
        found = found.assign(kendall_tau=kendall(own.models[names].to_numpy(dtype=float), own.models["gap"].to_numpy(dtype=float)))
        found = found.assign(minus_cam=r.value - r.value[0], minus_cam_low=less[0], minus_cam_high=less[1])
        known = [values[name][np.isfinite(means[name])] for name in names]
        halves = [reliability(part) if part.shape[1] > 1 else np.nan for part in known]
        images = [part.shape[1] for part in known]
        found = found.assign(measure=measure, method=methods, images=images, mean=own.models[names].mean().to_numpy(), reliability=halves)
        rows.append(found)
    per_method = costs.groupby("method")[COSTS].median().join(costs.groupby("method")["reason"].max())
    shown = ["measure", "method", "images", "n", "mean", "reliability", "pearson_r", "ci_low", "ci_high", "kendall_tau"]
    shown += ["minus_cam", "minus_cam_low", "minus_cam_high"]
    return pd.concat(rows, ignore_index=True)[shown].merge(per_method, left_on="method", right_index=True)
