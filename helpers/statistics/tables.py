"""Tables of the papers: correlation and selection per architecture and training accuracy, information and sign errors task by task."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.stats import zscore

from helpers.statistics.correlations import Array, gamma, pair_sums, pearson
from helpers.statistics.draws import Draws
from helpers.statistics.hyperparameters import ALL, granulated_kendall, mean_where
from helpers.statistics.information import conditional_information
from helpers.statistics.permutation import PERMUTATIONS, adjusted_p_values, band
from helpers.statistics.sign_error import MINIMUM_SAMPLE, sign_errors, told_from

THRESHOLDS = (0.95, 0.90, 0.85, 0.80)
TOTAL = "Total"
_PAIRS_IN_ALL = 500_000_000  # pairs of configurations over all permutations; above 300 there are fewer of these, 670 for the paper's 864


def _subsets(models: pd.DataFrame, thresholds: Collection[float]) -> Iterator[tuple[dict[str, Any], pd.Series]]:
    """Models above each training accuracy, per architecture and then, where there are several, pooled."""
    architectures = list(models["architecture"].unique())
    for architecture in [*architectures, *([TOTAL] if len(architectures) > 1 else [])]:
        for threshold in thresholds:
            chosen = (architecture == TOTAL) | (models["architecture"] == architecture)
            yield {"architecture": architecture, "threshold": threshold}, chosen & (models["train_accuracy"] > threshold)


def correlation_table(draws: Draws, measures: Collection[str], thresholds: Collection[float] = THRESHOLDS) -> pd.DataFrame:
    """Correlate measures with the gap, per architecture and pooled, among the models above each training accuracy; Du et al., Table 3.

    Args:
        draws: of models: architecture, train_accuracy and gap (fractions), cell, and a column per measure.
        measures: the columns to correlate; the sign of the raw measure is kept.
        thresholds: a model is taken when its training accuracy is above, fractions.

    Returns:
        One row per architecture (last "Total", where there are several), threshold and measure, see ``Draws.correlations``.
    """
    parts = []
    for where, rows in _subsets(draws.models, thresholds):
        found = draws.of(rows).correlations(measures)
        parts.append(pd.DataFrame(where, index=found.index).join(found))
    return pd.concat(parts, ignore_index=True)


def selection_table(draws: Draws, measures: Mapping[str, int], thresholds: Collection[float] = THRESHOLDS) -> pd.DataFrame:
    """How often each measure picks the better of two models, per architecture and pooled; Du et al. 2024, Table 4.

    Args:
        draws: as for ``correlation_table``.
        measures: column to direction, +1 when a larger value promises a smaller gap, else -1.
        thresholds: see there.

    Returns:
        One row per architecture, threshold and measure: n, dropped, cells, accuracy (fraction), ci_low, ci_high, concordant, discordant,
        ties. What is undefined is NaN.
    """
    names, parts = list(measures), []
    sign = np.array([measures[name] for name in names], dtype=float)
    for where, rows in _subsets(draws.models, thresholds):
        part = draws.of(rows)
        found = part.estimate(names, statistic=gamma)
        picked = (1 - sign * np.stack(found[:3])) / 2
        x, y = part.models[names].to_numpy(dtype=float), part.models["gap"].to_numpy(dtype=float)
        n = (np.isfinite(x) & np.isfinite(y)[:, None]).sum(0)
        signed, _, _, differ = (sums[0] for sums in pair_sums(x * sign, y, np.ones((1, len(y)))))
        counts = {"concordant": (differ - signed) / 2, "discordant": (differ + signed) / 2, "ties": n * (n - 1) / 2 - differ}
        ends = {"ci_low": picked[1:].min(0), "ci_high": picked[1:].max(0)}
        facts = {"measure": names, "n": n, "dropped": len(y) - n, "cells": found.configurations, "accuracy": picked[0]}
        parts.append(pd.DataFrame(where | facts | counts | ends))
    return pd.concat(parts, ignore_index=True)


def varied_axes(models: pd.DataFrame, axes: Sequence[str]) -> list[str]:
    """The hyperparameters that have more than one level among these models."""
    return [name for name in axes if models[name].nunique() > 1]


def conditional_table(
    draws: Draws, measures: Mapping[str, int], axes: Sequence[str], *, test_images: int, permutations: int = PERMUTATIONS
) -> tuple[pd.DataFrame, str]:
    """Statistics of the literature that hold hyperparameters fixed, each beside what chance would give the best of these measures.

    Args:
        draws: of models: gap (fraction), cell, the axes and a column per measure.
        measures: column to direction, +1 when a larger value promises a smaller gap, else -1.
        axes: hyperparameters with more than one level, see ``varied_axes``; there may be none.
        test_images: images that each test accuracy was measured on, for the noise filter of the sign error.
        permutations: of the gap among configurations behind p, all measures on the same; fewer above 300 configurations.

    Returns:
        One row per measure: granulated_kendall (mean over the axes, in the sign of the raw measure); conditional_information in [0, 1],
        with ``_p_adjusted`` (maxT over the measures) and ``_band`` (95 % of the null's largest score); sign_error (of the worst
        environment; 0 is perfect, 0.5 a coin), with ``_p_adjusted`` for being so low, and ``_band`` (the null's lowest is above it in
        95 %); environments, pooled and permutations. And why the sign error is undefined for every measure, with its columns left out;
        "" where it is defined.
    """
    if not axes:
        return pd.DataFrame({"measure": list(measures)}), "no hyperparameter has two levels, so nothing can be held fixed"
    models = draws.models
    granulated = granulated_kendall(models, dict.fromkeys(measures, -1), axes)
    found = granulated.loc[granulated["hyperparameter"] == ALL, ["measure", "psi"]].rename(columns={"psi": "granulated_kendall"})
    gaps, reason = _permuted(draws, permutations), ""
    scores = conditional_information(models, list(measures), axes, gaps, seed=draws.seed)
    found = found.assign(**_against_chance("conditional_information", scores))
    errors = sign_errors(models, measures, axes, gaps, test_images=test_images, seed=draws.seed)
    if np.isfinite(errors.robust[0]).any():
        lowest = _against_chance("sign_error", -errors.robust)
        found = found.assign(**lowest | {"sign_error": errors.robust[0], "sign_error_band": -lowest["sign_error_band"]})
        found = found.assign(environments=errors.environments, pooled=errors.pooled)
    else:
        reason = (
            f"{errors.pairs} pairs of models differ in one hyperparameter alone, {errors.told} of them by more than the "
            f"{100 * told_from(test_images):.1f} points of the gap that {test_images:,} test images can tell, and no two levels have the "
            f"weight of {MINIMUM_SAMPLE:g} such pairs between them"
        )
    return found.assign(permutations=len(gaps) - 1).reset_index(drop=True), reason


def _permuted(draws: Draws, count: int) -> Array:
    """The gap, and below it the gap after each permutation among configurations: (1 + permutations, n)."""
    gap = draws.models["gap"].to_numpy(dtype=float)
    rows = draws.permutations(min(count, _PAIRS_IN_ALL // max(1, draws.models["cell"].nunique() ** 2)))
    return np.vstack([gap, gap[rows]])


def _against_chance(name: str, scores: Array) -> dict[str, ArrayLike]:
    """Scores (1 + permutations, M), the observed ones first, as the columns score, adjusted p and band; larger is more extreme."""
    return {name: scores[0], f"{name}_p_adjusted": adjusted_p_values(scores[0], scores[1:]), f"{name}_band": band(scores[1:])}


def task_table(draws: Draws, measures: Sequence[str], axes: Sequence[str], task: str, *, permutations: int = PERMUTATIONS) -> pd.DataFrame:
    """Scores of measures as of the PGDL competition, 100 times the conditional information, task by task; Schiff et al. 2021.

    Args:
        draws: of models: gap (fraction), cell, the task, the axes and a column per measure.
        task: the column that tells tasks apart, such as the architecture; it is no axis.

    Returns:
        One row per measure: a column per task, their average over the tasks where it is defined, and average_p_adjusted (maxT) with
        average_band, what chance gives the best of these measures. A task has no value when fewer than two hyperparameters vary in it, or
        when its models leave nothing to condition on.
    """
    scores = {}
    for number, (name, models) in enumerate(draws.models.groupby(task, sort=True)):
        varied = varied_axes(models, [axis for axis in axes if axis != task])
        own = Draws(models, draws=0, seed=draws.seed + number)  # so that what chance gives one task says nothing of another
        gaps = _permuted(own, permutations)
        scores[str(name)] = (
            100 * conditional_information(own.models, list(measures), varied, gaps, seed=draws.seed) if len(varied) > 1 else None
        )
    fewest = min((len(part) for part in scores.values() if part is not None), default=1)
    of_tasks = {name: np.full((fewest, len(measures)), np.nan) if part is None else part[:fewest] for name, part in scores.items()}
    stacked = np.stack(list(of_tasks.values())) if of_tasks else np.full((1, 1, len(measures)), np.nan)
    chance = _against_chance("average", mean_where(stacked, np.isfinite(stacked)))
    return pd.DataFrame({"measure": list(measures)} | {name: part[0] for name, part in of_tasks.items()} | chance)


def measure_correlations(models: pd.DataFrame, measures: Mapping[str, int]) -> pd.DataFrame:
    """Kendall's tau-b of every measure with every other, signed so that measures that promise alike are positive; NaN where undefined."""
    values = models[list(measures)].astype(float).replace([np.inf, -np.inf], np.nan)
    signs = pd.Series(measures, dtype=float).where(values.nunique() > 1)  # a constant has no rank correlation, not even with itself
    return (values * signs).corr("kendall", min_periods=3)


def pca_gi_mixup(gi: ArrayLike, mixup: ArrayLike) -> NDArray[np.float64]:
    """First principal component of the z-scores of Gi-score and mixup accuracy over models, growing with Gi; Schiff et al., PCA Gi&Mix.

    For (n,) values each, of correlation r: ``(z_gi + sign(r) z_mixup) / sqrt(2)``; 1 - mixup gives the same. Small is better. NaN where
    one of the two is not finite, and everywhere for fewer than 3 models, a constant, or r = 0.
    """
    x, y = np.asarray(gi, dtype=float), np.asarray(mixup, dtype=float)
    if x.shape != y.shape:
        raise ValueError(f"Gi-score and mixup accuracy need one value per model each, got shapes {x.shape} and {y.shape}")
    kept, component = np.isfinite(x) & np.isfinite(y), np.full(x.shape, np.nan)
    if abs(r := pearson(x, y)) > 1e-12:
        component[kept] = (zscore(x[kept]) + np.sign(r) * zscore(y[kept])) / 2**0.5
    return component


def beside_published(table: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """Add the paper's value and the difference to it, where the paper has the architecture, threshold and method.

    Args:
        table: rows of ``correlation_table`` or ``selection_table``.
        published: method, architecture, threshold, and either pearson_r or accuracy_percent.

    Returns:
        The table with published_r and difference, or published_accuracy (fraction) and difference; NaN where there is none.
    """
    theirs = published.rename(columns={"method": "measure"})
    if "pearson_r" in published:
        theirs, ours, name = theirs.rename(columns={"pearson_r": "published_r"}), "pearson_r", "published_r"
    else:
        theirs, ours, name = theirs.assign(published_accuracy=theirs["accuracy_percent"] / 100), "accuracy", "published_accuracy"
    joined = table.merge(theirs[["architecture", "threshold", "measure", name]], how="left", on=["architecture", "threshold", "measure"])
    return joined.assign(difference=joined[ours] - joined[name])
