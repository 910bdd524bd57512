"""Tables of the papers.

Correlation and selection by architecture and training accuracy; conditional
information and sign errors; scores of tasks.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.stats import zscore

from helpers.statistics.bootstrap import Bootstrap
from helpers.statistics.correlations import (
    Array,
    finite_mean,
    gamma,
    pair_counts,
    pearson,
)
from helpers.statistics.hyperparameters import ALL, granulated_kendall, varied_axes
from helpers.statistics.information import conditional_information
from helpers.statistics.permutation import PERMUTATIONS, adjusted_p_values, band
from helpers.statistics.sign_error import MINIMUM_SAMPLE, sign_errors

TOTAL = "Total"


def _subsets(
    models: pd.DataFrame, thresholds: Collection[float]
) -> Iterator[tuple[dict[str, Any], pd.Series]]:
    """Masks of the models above each training accuracy, by architecture.

    If there are several architectures, all models together come last.
    """
    architectures = list(models["architecture"].unique())
    if len(architectures) != 1:
        architectures.append(TOTAL)
    for architecture in architectures:
        for threshold in thresholds:
            is_chosen = models["train_accuracy"] > threshold
            if architecture != TOTAL:
                is_chosen &= models["architecture"] == architecture
            yield {"architecture": architecture, "threshold": threshold}, is_chosen


def correlation_table(
    bootstrap: Bootstrap,
    measures: Collection[str],
    thresholds: Collection[float],
    *,
    tau: bool = True,
) -> pd.DataFrame:
    """Correlate measures with the gap; Du et al. 2024, Table 3.

    Args:
        bootstrap: of the models.
        measures: columns.
        thresholds: training accuracies above which models are taken.
        tau: whether Kendall's tau has an interval.

    Returns:
        A row per architecture (and ``TOTAL``), threshold and measure, see
        ``Bootstrap.correlations``.
    """
    tables = []
    for where, rows in _subsets(bootstrap.models, thresholds):
        table = bootstrap.subset(rows).correlations(measures, tau=tau)
        tables.append(pd.DataFrame(where, index=table.index).join(table))
    return pd.concat(tables, ignore_index=True)


def selection_table(
    bootstrap: Bootstrap, measures: Mapping[str, int], thresholds: Collection[float]
) -> pd.DataFrame:
    """Accuracy of each measure in picking the better of two models; Du et al. 2024.

    Table 4. ``accuracy = (1 - direction gamma) / 2``; gamma leaves out pairs that tie.

    Args:
        bootstrap: of the models.
        measures: the direction of each column, +1 where a larger value promises a
            smaller gap, else -1.
        thresholds: training accuracies above which models are taken.

    Returns:
        A row per architecture (and ``TOTAL``), threshold and measure: accuracy in
        [0, 1] with its interval, and the number of concordant, discordant and tied
        pairs.
    """
    names = list(measures)
    direction = np.array(list(measures.values()), dtype=float)
    tables = []
    for where, rows in _subsets(bootstrap.models, thresholds):
        part = bootstrap.subset(rows)
        estimate = part.estimate(names, statistic=gamma)
        accuracy = (1 - direction * estimate.value) / 2
        ends = np.stack([estimate.low, estimate.high])
        ends = (1 - direction * ends) / 2
        x = part.models[names].to_numpy(dtype=float)
        y = part.models["gap"].to_numpy(dtype=float)
        signed, _, _, differ = pair_counts(x * direction, y)
        columns = {
            "measure": names,
            "n": estimate.n,
            "dropped": len(y) - estimate.n,
            "cells": estimate.configurations,
            "accuracy": accuracy,
            "concordant": (differ - signed) / 2,
            "discordant": (differ + signed) / 2,
            "ties": estimate.n * (estimate.n - 1) / 2 - differ,
            "ci_low": ends.min(0),
            "ci_high": ends.max(0),
        }
        tables.append(pd.DataFrame(where | columns))
    return pd.concat(tables, ignore_index=True)


def conditional_table(
    bootstrap: Bootstrap,
    measures: Mapping[str, int],
    axes: Sequence[str],
    *,
    test_images: int,
    permutations: int = PERMUTATIONS,
) -> tuple[pd.DataFrame, str]:
    """Granulated Kendall, conditional information and sign error of each measure.

    Statistics of the literature that hold hyperparameters fixed. The last two come with
    an adjusted p and the critical value for the best of all measures.

    Args:
        bootstrap: of the models.
        measures: the direction of each column.
        axes: hyperparameters that vary.
        test_images: number of test images of each gap.
        permutations: number of random ones.

    Returns:
        A row per measure, with p adjusted by maxT (a low sign error is extreme); and
        the reason why no measure has a sign error, "" if one has.
    """
    models = bootstrap.models
    names = list(measures)
    gaps = _permuted_gaps(bootstrap, permutations)
    granulated = granulated_kendall(models, names, axes)
    of_all = granulated["hyperparameter"] == ALL
    table = granulated.loc[of_all, ["measure", "psi"]]
    table = table.rename(columns={"psi": "granulated_kendall"})
    information = conditional_information(models, names, axes, gaps)
    table = table.assign(**_against_chance("conditional_information", information))
    errors = sign_errors(models, measures, axes, gaps, test_images=test_images)
    reason = ""
    if np.isfinite(errors.robust[0]).any():
        table = table.assign(**_against_chance("sign_error", -errors.robust))
        table["sign_error"] = errors.robust[0]
        table["sign_error_band"] = -table["sign_error_band"]
        table["environments"] = errors.environments
        table["pooled"] = errors.pooled
    else:
        reason = (
            "between no two levels are there enough pairs of models "
            f"({MINIMUM_SAMPLE:g} by weight) that differ in this hyperparameter alone "
            f"and in the gap by more than the noise of {test_images:,} test images"
        )
    table["permutations"] = len(gaps) - 1
    return table.reset_index(drop=True), reason


def _permuted_gaps(bootstrap: Bootstrap, count: int) -> Array:
    """The gap, and below it the gap after each permutation: (1 + permutations, n)."""
    gap = bootstrap.models["gap"].to_numpy(dtype=float)
    # Always random ones: their number must be the same in all tasks that are averaged.
    return np.vstack([gap, gap[bootstrap.permutations(count, exact_up_to=0)]])


def _against_chance(name: str, scores: Array) -> dict[str, ArrayLike]:
    """Observed scores and those of permutations, (1 + D, M), larger is more extreme."""
    return {
        name: scores[0],
        f"{name}_p_adjusted": adjusted_p_values(scores[0], scores[1:]),
        f"{name}_band": band(scores[1:]),
    }


def task_table(
    bootstrap: Bootstrap,
    measures: Sequence[str],
    axes: Sequence[str],
    task: str,
    *,
    permutations: int,
) -> pd.DataFrame:
    """PGDL scores, 100 times the conditional information; Schiff et al. 2021.

    Args:
        bootstrap: of the models.
        measures: columns.
        axes: hyperparameters that vary.
        task: column whose levels are the tasks.
        permutations: number of random ones.

    Returns:
        A row per measure: a column per task, NaN where at most one hyperparameter
        varies, and the average with its adjusted p and critical value.
    """
    names = list(measures)
    scores = {}
    for number, (name, models) in enumerate(bootstrap.models.groupby(task, sort=True)):
        varied = varied_axes(models, [axis for axis in axes if axis != task])
        # Another seed, so that the permutations of tasks are independent.
        of_task = Bootstrap(models, draws=0, seed=bootstrap.seed + number)
        gaps = _permuted_gaps(of_task, permutations)
        information = conditional_information(of_task.models, names, varied, gaps)
        if len(varied) <= 1:
            information = np.full(information.shape, np.nan)
        scores[str(name)] = 100 * information
    average = np.full((1, len(names)), np.nan)
    if scores:
        average = finite_mean(np.stack(list(scores.values())))
    table = pd.DataFrame({"measure": names})
    for name, values in scores.items():
        table[name] = values[0]
    return table.assign(**_against_chance("average", average))


def pca_gi_mixup(gi: ArrayLike, mixup: ArrayLike) -> NDArray[np.float64]:
    """First principal component of Gi-score and mixup accuracy; Schiff et al. 2021.

    Args:
        gi: (n,) Gi-scores of models.
        mixup: (n,) accuracies on mixed images.

    Returns:
        (n,) of z-scores, growing with Gi; NaN where either is undefined or the two do
        not correlate.
    """
    x = np.asarray(gi, dtype=float)
    y = np.asarray(mixup, dtype=float)
    is_finite = np.isfinite(x) & np.isfinite(y)
    component = np.full(x.shape, np.nan)
    r = pearson(x, y)
    if abs(r) > 1e-12:
        # Of two z-scores with correlation r it is (z_x + sign(r) z_y) / sqrt(2).
        turned_y = np.sign(r) * zscore(y[is_finite])
        component[is_finite] = (zscore(x[is_finite]) + turned_y) / 2**0.5
    return component


def beside_published(table: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """Add the paper's value to each row, and the difference to it.

    Args:
        table: of ``correlation_table`` or ``selection_table``.
        published: Du et al. 2024, Table 3 or Table 4.

    Returns:
        The table with published_r or published_accuracy, and difference; NaN where the
        paper has no such row.
    """
    if "pearson_r" in published:
        column = "pearson_r"
        name = "published_r"
        values = published["pearson_r"]
    else:
        column = "accuracy"
        name = "published_accuracy"
        values = published["accuracy_percent"] / 100
    keys = ["architecture", "threshold", "measure"]
    published = published.rename(columns={"method": "measure"})[keys]
    joined = table.merge(published.assign(**{name: values}), how="left", on=keys)
    return joined.assign(difference=joined[column] - joined[name])
