"""Is it the overlap that tells the gap, or the CAM: the same three scores of Captum's attributions, on the same images."""

import time
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from helpers.ablations.compute import AblationSettings, Stage, last_stage, sampled_images
from helpers.cams import attribution, chance
from helpers.cams.maps import closed_form_cam, normalise_maps
from helpers.data.images import ImageSet
from helpers.networks import hooks, resnet
from helpers.report.style import count, interval
from helpers.statistics.correlations import kendall, partial_correlation
from helpers.statistics.reliability import reliability
from helpers.statistics.resampling import drawn_with_images, estimate, percentile_interval

CAM = "grad_cam"

# Scores of a map that need no threshold, each less what chance gives, as the measures of these names.
LOCALIZATIONS = {"energy_in_box": "energy in the box", "pointing_game": "pointing game", "pixel_average_precision": "PxAP"}
COSTS = ["seconds", "forward_passes", "backward_passes"]
_BATCH = 16  # images at a time; occlusion and integrated gradients take several of each
ATTRIBUTION_COLUMNS = ["model_id", "method", "name", *LOCALIZATIONS, *COSTS, "reason"]


def attribution_scores(network: nn.Module, images: ImageSet, settings: AblationSettings, device: torch.device | str) -> pd.DataFrame:
    """How far Grad-CAM and each of Captum's attributions of the predicted class lie in the boxes, image by image.

    Args:
        network: on ``device``; it is left as it came.
        images: its training images, of which the first are taken.
        settings: see there.
        device: where the network is.

    Returns:
        ``ATTRIBUTION_COLUMNS`` but the model: energy_in_box, pointing_game and pixel_average_precision less the same with boxes of
        other images, all in [-1, 1]; seconds and passes per image, without the pass that tells the class;
        reason ("" or why all are NaN).
    """
    images, stage = sampled_images(images, settings), last_stage(network, images, device)
    batches = [hooks.prepared(part, resnet.normalise_images, device) for part in images.images.split(_BATCH)]
    started = time.perf_counter()
    maps, classes = zip(*(_predicted_cam(network, stage, pixels) for pixels in batches), strict=True)
    tables = [_scored(CAM, images, torch.cat(maps), [time.perf_counter() - started, 1, 0])]
    own = attribution.with_own_activations(network)
    for method in settings.attributions:
        started = time.perf_counter()
        try:
            found = [attribution.attribution_maps(method, own, *batch, settings.steps) for batch in zip(batches, classes, strict=True)]
        except ValueError as fault:
            tables.append(pd.DataFrame({"method": method, "name": images.names, "reason": str(fault)}))
            continue
        costs = [time.perf_counter() - started, found[0].forward_passes, found[0].backward_passes]
        tables.append(_scored(method, images, torch.cat([item.maps for item in found]), costs))
    return pd.concat(tables, ignore_index=True).reindex(columns=ATTRIBUTION_COLUMNS[1:])


@torch.inference_mode()
def _predicted_cam(network: nn.Module, stage: Stage, pixels: Tensor) -> tuple[Tensor, Tensor]:
    features, logits = hooks.features_and_logits(network, stage.layer, pixels)
    return closed_form_cam(CAM, features, stage.classifier.weight, logits.argmax(1)), logits.argmax(1)


def _scored(method: str, images: ImageSet, maps: Tensor, costs: Sequence[float]) -> pd.DataFrame:
    size = images.images.shape[-1]
    found = chance.chance_scores(normalise_maps(maps), images.boxes, size, device=maps.device)
    above = {name: chance.above_shuffled(found, name) for name in LOCALIZATIONS}
    seconds, *passes = costs
    costs = dict(zip(COSTS, [seconds / len(images), *passes], strict=True))
    return pd.DataFrame({"method": method, "name": images.names} | above | costs | {"reason": ""})


def attributions_compared(
    models: pd.DataFrame, scored: pd.DataFrame, *, resamples: int, seed: int, images: Mapping[str, ArrayLike] | None = None
) -> pd.DataFrame:
    """How each score of each attribution goes with the gap, beside that of Grad-CAM on the same images.

    Args:
        models: one row per model: model_id, gap, cell, and test_accuracy for ``images``.
        scored: rows of ``attribution_scores`` with their model_id.
        resamples: of hyperparameter cells and images behind the intervals, which are paired.
        seed: of the resampling.
        images: values of single images of the models, of which those of test_accuracy are drawn; those of the scores are in ``scored``.

    Returns:
        One row per score (measure) and method: images, n (models), mean, reliability (split half over the images), pearson_r, ci_low,
        ci_high, kendall_tau, minus_cam (r less that of Grad-CAM) with minus_cam_low and minus_cam_high, seconds, forward_passes and
        backward_passes per image, and reason where it is undefined.
    """
    rows, methods, kept = [], list(scored["method"].unique()), ["gap", "cell", *(["test_accuracy"] if images else [])]
    costs = scored.groupby("method", sort=False)[COSTS].median()
    reasons = scored.groupby("method")["reason"].max()
    for measure in LOCALIZATIONS:
        single = {method: part.pivot(index="model_id", columns="name", values=measure) for method, part in scored.groupby("method")}
        single = {method: single[method].reindex(models["model_id"]).to_numpy(dtype=float) for method in methods}
        table = models[kept].assign(**{method: pd.DataFrame(values).mean(axis=1).to_numpy() for method, values in single.items()})
        drawn = drawn_with_images(table, methods, single | dict(images or {}), resamples, seed)
        r = estimate(partial_correlation, table, methods, draws=resamples, seed=seed, drawn=drawn)
        less = (r.value - r.value[0], *percentile_interval(r.drawn - r.drawn[:, :1], r.cells))
        for place, (method, values) in enumerate(single.items()):
            known = table[method].notna().to_numpy()
            row = {"measure": measure, "method": method, "images": values.shape[1], "n": int(known.sum()), "mean": table[method].mean()}
            row |= {"reliability": reliability(values[known]) if values.shape[1] > 1 else np.nan}
            row |= dict(zip(("pearson_r", "ci_low", "ci_high"), (part[place] for part in r[:3]), strict=True))
            row |= {"kendall_tau": float(kendall(table[method], table["gap"])[0])}
            row |= dict(zip(("minus_cam", "minus_cam_low", "minus_cam_high"), (part[place] for part in less), strict=True))
            rows.append(row | costs.loc[method].to_dict() | {"reason": reasons[method]})
    return pd.DataFrame(rows)


def say_attributions(table: pd.DataFrame) -> str:
    """Sentence on whether attributions that are no CAM tell the gap by the same overlap, score by score; see ``attributions_compared``."""
    parts = []
    for measure, rows in table.set_index("method").groupby("measure", sort=False):
        cam, others = rows.loc[CAM], rows.drop(CAM).dropna(subset="ci_low")
        if not np.isfinite(cam["ci_low"]) or not len(others):
            parts.append(f"{LOCALIZATIONS[measure]}: there are too few models for an interval.")
            continue
        side = np.sign(cam["pearson_r"])
        alike = int(((others["ci_low"] > 0) & (side > 0) | (others["ci_high"] < 0) & (side < 0)).sum())
        apart = int(((others["minus_cam_low"] > 0) | (others["minus_cam_high"] < 0)).sum())
        verdict = "whether the overlap tells or the CAM is open"
        if cam["ci_low"] <= 0 <= cam["ci_high"]:
            verdict = "Grad-CAM's own r cannot be told from 0"
        elif 2 * alike > len(others):
            verdict = "the overlap tells, whatever makes the map"
        elif 2 * apart > len(others):
            verdict = "it is the CAM that tells"
        parts.append(
            f"{LOCALIZATIONS[measure]}: r of Grad-CAM {cam['pearson_r']:.2f} ({interval(cam['ci_low'], cam['ci_high'])}); of "
            f"{count(len(others), 'other attribution')} {alike} have its sign beyond doubt and {apart} differ from it: {verdict}."
        )
    least, undefined = table["reliability"].min(), table[table["reason"] != ""].drop_duplicates("method")
    parts += [f"Lowest reliability {least:.2f}."] if np.isfinite(least) else ["No reliability is defined: too few models."]
    parts += [f"{row.method.replace('_', ' ')} is undefined for some models: {row.reason}." for row in undefined.itertuples()]
    return " ".join(parts)
