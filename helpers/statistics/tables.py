"""Tables of the papers: correlation and selection per architecture and training accuracy, information and sign errors task by task."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.stats import zscore

from helpers.statistics.correlations import (
    Array,
    finite_mean,
    gamma,
    pair_counts,
    pearson,
)
from helpers.statistics.draws import Draws
from helpers.statistics.hyperparameters import ALL, granulated_kendall, varied_axes
from helpers.statistics.information import conditional_information
from helpers.statistics.permutation import PERMUTATIONS, adjusted_p_values, band
from helpers.statistics.sign_error import MINIMUM_SAMPLE, sign_errors

TOTAL = "Total"


def _subsets(
    models: pd.DataFrame, thresholds: Collection[float]
) -> Iterator[tuple[dict[str, Any], pd.Series]]:
    """Models above each training accuracy, per architecture and then, where there are several, pooled."""
    architectures = list(models["architecture"].unique())
    for architecture in [*architectures, *([TOTAL] if len(architectures) != 1 else [])]:
        for threshold in thresholds:
            chosen = (architecture == TOTAL) | (models["architecture"] == architecture)
            yield (
                {"architecture": architecture, "threshold": threshold},
                chosen & (models["train_accuracy"] > threshold),
            )


def correlation_table(
    draws: Draws,
    measures: Collection[str],
    thresholds: Collection[float],
    *,
    tau: bool = True,
) -> pd.DataFrame:
    """Correlate measures with the gap, per architecture and pooled, among the models above each training accuracy; Du et al., Table 3."""
    parts = []
    for where, rows in _subsets(draws.models, thresholds):
        found = draws.of(rows).correlations(measures, tau=tau)
        parts.append(pd.DataFrame(where, index=found.index).join(found))
    return pd.concat(parts, ignore_index=True)


def selection_table(
    draws: Draws, measures: Mapping[str, int], thresholds: Collection[float]
) -> pd.DataFrame:
    """How often each measure picks the better of two models, per architecture and pooled; Du et al. 2024, Table 4.

    Directions are +1 when a larger value promises a smaller gap, else -1; accuracy is ``(1 - direction gamma) / 2``.
    """
    names, sign, parts = (
        list(measures),
        np.array(list(measures.values()), dtype=float),
        [],
    )
    for where, rows in _subsets(draws.models, thresholds):
        part = draws.of(rows)
        found = part.estimate(names, statistic=gamma)
        picked = (1 - sign * np.stack(found[:3])) / 2
        x, y = (
            part.models[names].to_numpy(dtype=float),
            part.models["gap"].to_numpy(dtype=float),
        )
        signed, _, _, differ = pair_counts(x * sign, y)
        counts = {
            "concordant": (differ - signed) / 2,
            "discordant": (differ + signed) / 2,
            "ties": found.n * (found.n - 1) / 2 - differ,
        }
        ends = {"ci_low": picked[1:].min(0), "ci_high": picked[1:].max(0)}
        facts = {
            "measure": names,
            "n": found.n,
            "dropped": len(y) - found.n,
            "cells": found.configurations,
            "accuracy": picked[0],
        }
        parts.append(pd.DataFrame(where | facts | counts | ends))
    return pd.concat(parts, ignore_index=True)


def conditional_table(
    draws: Draws,
    measures: Mapping[str, int],
    axes: Sequence[str],
    *,
    test_images: int,
    permutations: int = PERMUTATIONS,
) -> tuple[pd.DataFrame, str]:
    """Statistics of the literature that hold hyperparameters fixed, each beside what chance would give the best of these measures.

    p are adjusted by maxT; a low sign error is the extreme one. The text says why no measure has a sign error, and is empty where one has.
    """
    models, gaps, reason = draws.models, _permuted(draws, permutations), ""
    granulated = granulated_kendall(models, list(measures), axes)
    found = granulated.loc[
        granulated["hyperparameter"] == ALL, ["measure", "psi"]
    ].rename(columns={"psi": "granulated_kendall"})
    found = found.assign(
        **_against_chance(
            "conditional_information",
            conditional_information(models, list(measures), axes, gaps),
        )
    )
    errors = sign_errors(models, measures, axes, gaps, test_images=test_images)
    if np.isfinite(errors.robust[0]).any():
        lowest = _against_chance("sign_error", -errors.robust)
        found = found.assign(
            **lowest
            | {
                "sign_error": errors.robust[0],
                "sign_error_band": -lowest["sign_error_band"],
            }
        )
        found = found.assign(environments=errors.environments, pooled=errors.pooled)
    else:
        reason = f"no two levels have the weight of {MINIMUM_SAMPLE:g} pairs of models between them that differ in this hyperparameter "
        reason += (
            f"alone and in the gap by more than {test_images:,} test images can tell"
        )
    return found.assign(permutations=len(gaps) - 1).reset_index(drop=True), reason


def _permuted(draws: Draws, count: int) -> Array:
    """The gap, and below it the gap after each permutation: (1 + permutations, n)."""
    gap = draws.models["gap"].to_numpy(dtype=float)
    # Random ones, as many for each task as for the others: scores are averaged.
    return np.vstack([gap, gap[draws.permutations(count, exact_up_to=0)]])


def _against_chance(name: str, scores: Array) -> dict[str, ArrayLike]:
    """Scores (1 + permutations, M) as columns, the observed ones first; larger is more extreme."""
    return {
        name: scores[0],
        f"{name}_p_adjusted": adjusted_p_values(scores[0], scores[1:]),
        f"{name}_band": band(scores[1:]),
    }


def task_table(
    draws: Draws,
    measures: Sequence[str],
    axes: Sequence[str],
    task: str,
    *,
    permutations: int,
) -> pd.DataFrame:
    """PGDL scores, 100 times the conditional information, by level of ``task`` and in the mean; Schiff et al. 2021."""
    scores = {}
    for number, (name, models) in enumerate(draws.models.groupby(task, sort=True)):
        varied = varied_axes(models, [axis for axis in axes if axis != task])
        own = Draws(
            models, draws=0, seed=draws.seed + number
        )  # so that what chance gives one task says nothing of another
        gaps = _permuted(own, permutations)
        found = 100 * conditional_information(own.models, list(measures), varied, gaps)
        scores[str(name)] = found if len(varied) > 1 else np.full(found.shape, np.nan)
    nothing = np.full((1, 1, len(measures)), np.nan)
    average = finite_mean(np.stack(list(scores.values())) if scores else nothing)
    chance = _against_chance("average", average)
    return pd.DataFrame(
        {"measure": list(measures)}
        | {name: part[0] for name, part in scores.items()}
        | chance
    )


def pca_gi_mixup(gi: ArrayLike, mixup: ArrayLike) -> NDArray[np.float64]:
    """First principal component of z-scores of Gi-score and mixup accuracy over models, growing with Gi; Schiff et al., PCA Gi&Mix."""
    x, y = np.asarray(gi, dtype=float), np.asarray(mixup, dtype=float)
    kept, component = np.isfinite(x) & np.isfinite(y), np.full(x.shape, np.nan)
    if abs(r := pearson(x, y)) > 1e-12:
        component[kept] = (zscore(x[kept]) + np.sign(r) * zscore(y[kept])) / 2**0.5
    return component


def beside_published(table: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """Add published_r (Du et al., Table 3) or published_accuracy (Table 4) and the difference to it, where the paper has such a row."""
    ours, name = (
        ("pearson_r", "published_r")
        if "pearson_r" in published
        else ("accuracy", "published_accuracy")
    )
    values = (
        published["pearson_r"]
        if ours == "pearson_r"
        else published["accuracy_percent"] / 100
    )
    keys = ["architecture", "threshold", "measure"]
    joined = table.merge(
        published.rename(columns={"method": "measure"})[keys].assign(**{name: values}),
        how="left",
        on=keys,
    )
    return joined.assign(difference=joined[ours] - joined[name])
