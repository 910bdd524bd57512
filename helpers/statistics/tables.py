"""Tables of how well measures tell the gap: per architecture and training accuracy, with hyperparameters fixed, and task by task."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.stats import zscore

from helpers.statistics.correlations import Array, gamma, pair_sums, pearson
from helpers.statistics.hyperparameters import ALL, granulated_kendall, mean_where
from helpers.statistics.information import conditional_information
from helpers.statistics.permutation import PERMUTATIONS, adjusted_p_values, band, permuted_rows
from helpers.statistics.resampling import DRAWS, correlated, drawn_with_images, estimate, of_models
from helpers.statistics.sign_error import MINIMUM_SAMPLE, sign_errors, told_from

THRESHOLDS = (0.95, 0.90, 0.85, 0.80)
TOTAL = "Total"
_PAIRS_IN_ALL = 500_000_000  # pairs of cells over all permutations; above 300 cells there are fewer of these, 670 for the paper's 864


def pools(table: pd.DataFrame) -> list[str]:
    """Architectures of a table and their total, which is left out where it is that of one architecture alone."""
    names = list(table["architecture"].unique())
    return names if len(names) > 2 else [name for name in names if name != TOTAL] or names


def _subsets(catalogue: pd.DataFrame, thresholds: Collection[float]) -> Iterator[tuple[dict[str, Any], pd.Series]]:
    """Models above each training accuracy, per architecture and then pooled: what they are called, and which they are."""
    for architecture in [*catalogue["architecture"].unique(), TOTAL]:
        for threshold in thresholds:
            chosen = (architecture == TOTAL) | (catalogue["architecture"] == architecture)
            yield {"architecture": architecture, "threshold": threshold}, chosen & (catalogue["train_accuracy"] > threshold)


def correlation_table(
    catalogue: pd.DataFrame,
    measures: Collection[str],
    thresholds: Collection[float] = THRESHOLDS,
    *,
    images: Mapping[str, ArrayLike] | None = None,
    resamples: int = DRAWS,
    kendall_resamples: int | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Correlate measures with the gap, per architecture and pooled, among the models above each training accuracy; Du et al., Table 3.

    Args:
        catalogue: one row per model: architecture, train_accuracy and gap (fractions), cell, and a column per measure.
        measures: the columns to correlate; the sign of the raw measure is kept.
        thresholds: a model is taken when its training accuracy is above, fractions.
        images: values of single images of the models, see ``resampling.drawn_with_images``.
        resamples: of the intervals; 0 leaves them NaN.
        kendall_resamples: of Kendall's, which costs more; None takes as many.
        seed: of the resampling.

    Returns:
        One row per architecture (last "Total"), threshold and measure, see ``resampling.correlated``: n models used, dropped (not finite),
        cells, pearson_r, ci_low, ci_high, kendall_tau, kendall_low, kendall_high. What is undefined is NaN; no row is left out.
    """
    drawn = drawn_with_images(catalogue, measures, images, resamples, seed)
    drawing = {"draws": resamples, "tau_draws": resamples if kendall_resamples is None else kendall_resamples, "seed": seed}
    parts = []
    for where, rows in _subsets(catalogue, thresholds):
        found = correlated(catalogue[rows], list(measures), drawn=of_models(drawn, rows), **drawing)
        parts.append(pd.DataFrame(where, index=found.index).join(found))
    return pd.concat(parts, ignore_index=True)


def selection_table(
    catalogue: pd.DataFrame,
    measures: Mapping[str, int],
    thresholds: Collection[float] = THRESHOLDS,
    *,
    images: Mapping[str, ArrayLike] | None = None,
    resamples: int = DRAWS,
    seed: int = 0,
) -> pd.DataFrame:
    """How often each measure picks the better of two models, per architecture and pooled; Du et al. 2024, Table 4.

    Args:
        catalogue: as for ``correlation_table``.
        measures: column to direction, +1 when a larger value promises a smaller gap, else -1.
        thresholds: a model is taken when its training accuracy is above, fractions.
        images: values of single images of the models, see ``resampling.drawn_with_images``.
        resamples: of the interval.
        seed: of the resampling.

    Returns:
        One row per architecture (last "Total"), threshold and measure: n, dropped, cells, accuracy (fraction), ci_low, ci_high,
        concordant, discordant, ties. What is undefined is NaN; no row is left out.
    """
    drawn, names = drawn_with_images(catalogue, measures, images, resamples, seed), list(measures)
    sign, parts = np.array([measures[name] for name in names], dtype=float), []
    for where, rows in _subsets(catalogue, thresholds):
        models = catalogue[rows]
        found = estimate(gamma, models, names, draws=resamples, seed=seed, drawn=of_models(drawn, rows))
        picked = (1 - sign * np.stack(found[:3])) / 2
        x, y = models[names].to_numpy(dtype=float), models["gap"].to_numpy(dtype=float)
        n = (np.isfinite(x) & np.isfinite(y)[:, None]).sum(0)
        signed, _, _, differ = (part[0] for part in pair_sums(x * sign, y, np.ones((1, len(y)))))
        counts = {"concordant": (differ - signed) / 2, "discordant": (differ + signed) / 2, "ties": n * (n - 1) / 2 - differ}
        ends = {"ci_low": picked[1:].min(0), "ci_high": picked[1:].max(0)}
        facts = {"measure": names, "n": n, "dropped": len(y) - n, "cells": found.cells, "accuracy": picked[0]}
        parts.append(pd.DataFrame(where | facts | counts | ends))
    return pd.concat(parts, ignore_index=True)


def varied_axes(catalogue: pd.DataFrame, axes: Sequence[str]) -> list[str]:
    """List the hyperparameters that have more than one level among these models."""
    return [name for name in axes if catalogue[name].nunique() > 1]


def conditional_table(
    models: pd.DataFrame, measures: Mapping[str, int], axes: Sequence[str], *, test_images: int, draws: int = PERMUTATIONS, seed: int = 0
) -> tuple[pd.DataFrame, str]:
    """Statistics of the literature that hold hyperparameters fixed, each beside what chance would give the best of these measures.

    Args:
        models: one row per model: gap (fraction), cell, the axes and a column per measure.
        measures: column to direction, +1 when a larger value promises a smaller gap, else -1.
        axes: hyperparameters with more than one level, see ``varied_axes``; there may be none.
        test_images: images that each test accuracy was measured on, for the noise filter of the sign error.
        draws: permutations of the gap among cells behind p, all measures on the same; fewer above 300 cells.
        seed: of them.

    Returns:
        One row per measure: granulated_kendall (mean over the axes, in the sign of the raw measure); conditional_information in [0, 1],
        with ``_p_adjusted`` (maxT over the measures) and ``_band`` (95 % of the null's largest score); sign_error (of the worst
        environment; 0 is perfect, 0.5 a coin), with ``_p_adjusted`` for being so low, and ``_band`` (the null's lowest is above it in
        95 %); environments, pooled and permutations. And why the sign error is undefined for every measure; its columns are then left
        out, and the reason is "" where it is defined.
    """
    if not axes:
        return pd.DataFrame({"measure": list(measures)}), "no hyperparameter has two levels, so nothing can be held fixed"
    granulated = granulated_kendall(models, dict.fromkeys(measures, -1), axes)
    found = granulated.loc[granulated["hyperparameter"] == ALL, ["measure", "psi"]].rename(columns={"psi": "granulated_kendall"})
    gaps = _permuted(models, draws, seed)
    found = found.assign(
        **_against_chance("conditional_information", conditional_information(models, list(measures), axes, gaps, seed=seed))
    )
    errors = sign_errors(models, measures, axes, gaps, test_images=test_images, seed=seed)
    reason = ""
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


def _permuted(models: pd.DataFrame, draws: int, seed: int) -> Array:
    """The gap, and below it the gap after each permutation among cells: (1 + draws, n)."""
    gap, cells = models["gap"].to_numpy(dtype=float), models["cell"].nunique()
    rows = permuted_rows(models["cell"], min(draws, _PAIRS_IN_ALL // max(1, cells**2)), seed)
    return np.vstack([gap, gap[rows]])


def _against_chance(name: str, scores: Array) -> dict[str, ArrayLike]:
    """Scores (1 + draws, M), the observed ones first, as the columns score, adjusted p and band; larger is more extreme."""
    return {name: scores[0], f"{name}_p_adjusted": adjusted_p_values(scores[0], scores[1:]), f"{name}_band": band(scores[1:])}


def measure_correlations(catalogue: pd.DataFrame, measures: Mapping[str, int]) -> pd.DataFrame:
    """Rank correlation of every measure with every other, signed so that measures that promise alike are positive.

    Returns:
        A square table (measures x measures) of Kendall's tau-b over the models where both are finite; NaN where undefined.
    """
    values = catalogue[list(measures)].astype(float).replace([np.inf, -np.inf], np.nan)
    signs = pd.Series(measures, dtype=float).where(values.nunique() > 1)  # a constant has no rank correlation, not even with itself
    return (values * signs).corr("kendall", min_periods=3)


def task_table(
    catalogue: pd.DataFrame, measures: Sequence[str], axes: Sequence[str], task: str, *, draws: int = PERMUTATIONS, seed: int = 0
) -> pd.DataFrame:
    """Scores of measures as of the PGDL competition, 100 times the conditional information, task by task; Schiff et al. 2021.

    Args:
        catalogue: one row per model: gap (fraction), cell, the task, the axes and a column per measure.
        measures: columns.
        axes: hyperparameters; the task itself is no axis.
        task: the column that tells tasks apart, such as the architecture.
        draws: permutations of the gap among the cells of each task behind p; fewer above 300 cells.
        seed: of them, and of the sample of cells where there are very many.

    Returns:
        One row per measure: a column per task, their average over the tasks where it is defined, and average_p_adjusted (maxT) with
        average_band, what chance gives the best of these measures. A task has no value when fewer than two hyperparameters vary in it, or
        when its models leave nothing to condition on.
    """
    scores = {}
    for number, (name, models) in enumerate(catalogue.groupby(task, sort=True)):
        varied = varied_axes(models, [axis for axis in axes if axis != task])
        gaps = _permuted(models, draws, seed + number)  # of its own, so that what chance gives one task says nothing of another
        scores[str(name)] = 100 * conditional_information(models, list(measures), varied, gaps, seed=seed) if len(varied) > 1 else None
    fewest = min((len(part) for part in scores.values() if part is not None), default=1)
    of_tasks = {name: np.full((fewest, len(measures)), np.nan) if part is None else part[:fewest] for name, part in scores.items()}
    stacked = np.stack(list(of_tasks.values())) if of_tasks else np.full((1, 1, len(measures)), np.nan)
    chance = _against_chance("average", mean_where(stacked, np.isfinite(stacked)))
    return pd.DataFrame({"measure": list(measures)} | {name: part[0] for name, part in of_tasks.items()} | chance)


def pca_gi_mixup(gi: ArrayLike, mixup: ArrayLike) -> NDArray[np.float64]:
    """First principal component of the z-scores of Gi-score and mixup accuracy over models, growing with Gi; Schiff et al., PCA Gi&Mix.

    For (n,) values each, one per model, of correlation r: ``(z_gi + sign(r) z_mixup) / sqrt(2)``; 1 - mixup gives the same. Small is
    better. Which Gi-score the paper takes is not known; intra-class at the input is recommended. NaN where one of the two is not finite,
    and everywhere for fewer than 3 models, a constant, or r = 0.

    Raises:
        ValueError: not one value of each per model.
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
        table: rows of ``tables.correlation_table`` or ``selection_table``.
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
