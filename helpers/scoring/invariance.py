"""The invariance experiment: what tells best how accurate a network stays when unseen images are turned, moved or recoloured."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from helpers.data.images import StudyData
from helpers.measures.registry import MEASURES
from helpers.measures.transforms import TRANSFORMS, invariance_targets, transforms_of
from helpers.networks import resnet
from helpers.scoring.side_by_side import each_model
from helpers.statistics.information import conditional_information
from helpers.statistics.resampling import correlated
from helpers.statistics.tables import varied_axes
from helpers.training.catalogue import lacks_weights, load_model, models_of, read_scores, save_scores, scored_measures

# Predictor to its measure and direction: +1 when a larger value promises a higher accuracy under the perturbation.
PREDICTORS = {
    "accuracy under augmentation": ("accuracy_under_augmentation", 1),
    "mean of the curve": ("curve_mean", 1),
    "Gi-score": ("gi_score", -1),
}

_TARGET = "test accuracy under perturbation"


def keep_targets(
    work: Path, catalogue: pd.DataFrame, data: StudyData, seed: int, device: torch.device | str, ranges: str = "cifar10", jobs: int = 1
) -> Iterator[str]:
    """Measure what is to be predicted, for the models that lack it: accuracy on perturbed test images; yield each model's id.

    ``jobs`` models are worked on side by side, see ``side_by_side.each_model``.
    """
    folder = _folder(seed, ranges)
    lacking = [model for model in models_of(catalogue) if not scored_measures(work, folder, model.model_id)]
    todo = [model.model_id for model in lacking if not lacks_weights(work, model)]
    yield from each_model(_keep_targets_of, work, catalogue, data, todo, (seed, device, ranges), device=device, jobs=jobs)


def _keep_targets_of(work: Path, row: pd.DataFrame, data: StudyData, seed: int, device: torch.device | str, ranges: str) -> None:
    for model in models_of(row):
        network = load_model(work, model, len(data.classes), device)
        accuracies = invariance_targets(network, data.test, resnet.normalise_images, seed, device, transforms_of(ranges))
        rows = pd.DataFrame({"measure": _TARGET, "variant": list(accuracies), "value": list(accuracies.values())})
        save_scores(work, _folder(seed, ranges), model.model_id, rows.assign(seconds=0.0, reason=""))


def with_targets(work: Path, table: pd.DataFrame, seed: int, ranges: str = "cifar10") -> pd.DataFrame:
    """Join the targets to a table of models: one column per transform, named "test accuracy under <transform>"."""
    wide = read_scores(work, [_folder(seed, ranges)], table["model_id"]).pivot(index="model_id", columns="variant", values="value")
    named = wide.reindex(columns=list(TRANSFORMS)).rename(columns=target_column)
    return table.merge(named, how="left", left_on="model_id", right_index=True)


def _folder(seed: int, ranges: str) -> str:
    return f"invariance-{seed}" + (f"-{ranges}" if ranges != "cifar10" else "")


def target_column(transform: str) -> str:
    """Column that holds the accuracy of the test images under a transform."""
    return f"test accuracy under {transform}"


def invariance_table(table: pd.DataFrame, axes: list[str], *, resamples: int, seed: int) -> pd.DataFrame:
    """How well each predictor, from the training images alone, tells the accuracy on perturbed test images.

    Source: Schiff et al. 2021, Table 2, whose target and score are not stated; here the target is the test accuracy under a random
    magnitude per image, and the scores are Kendall's tau and 100 times the conditional mutual information.

    Args:
        table: one row per model, with targets, the predictors' columns, cell and the axes.
        axes: hyperparameters.
        resamples: of cells behind the interval of tau; no images are drawn.
        seed: of the resampling.

    Returns:
        perturbation, predictor, direction (the sign that it promises), n, kendall with low and high in the sign of the raw predictor,
        information (of 100).
    """
    rows = []
    varied = varied_axes(table, axes)
    for transform in TRANSFORMS:
        for predictor, (measure, direction) in PREDICTORS.items():
            # Information is about a loss to be predicted: the accuracy with its sign turned stands where the gap does.
            values = table[MEASURES[measure].column(transform)].astype(float)
            known = table.assign(predictor=values, target=table[target_column(transform)].astype(float))
            known = known.assign(gap=-known["target"])[np.isfinite(known[["predictor", "target"]]).all(axis=1)]
            (found,) = correlated(known, ["predictor"], target="target", draws=0, tau_draws=resamples, seed=seed).itertuples()
            score = conditional_information(known, ["predictor"], varied, seed=seed)[0] if varied and found.n else float("nan")
            row = {"perturbation": transform, "predictor": predictor, "direction": direction, "n": found.n}
            row |= {"kendall": found.kendall_tau, "low": found.kendall_low, "high": found.kendall_high}
            rows.append(row | {"information": 100 * score})
    return pd.DataFrame(rows)
