"""Tables of how well measures tell the gap, by every statistic, with intervals by resampling whole hyperparameter cells."""

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.stats import zscore

from helpers.statistics.agreement import (
    PairwiseAccuracy,
    finite_pairs,
    kendall,
    no_correlation,
    pairwise_accuracy,
    pearson,
    spearman,
)
from helpers.statistics.hyperparameters import granulated_kendall, partial_correlation
from helpers.statistics.information import information_table
from helpers.statistics.resampling import (
    bootstrap_interval,
)
from helpers.statistics.sign_error import ALL_ENVIRONMENTS, sign_error_table

__all__ = [
    "PairwiseAccuracy",
    "bootstrap_interval",
    "correlation_table",
    "finite_pairs",
    "kendall",
    "pairwise_accuracy",
    "pearson",
    "selection_table",
]


THRESHOLDS = (0.95, 0.90, 0.85, 0.80)


TOTAL = "Total"


def _subsets(catalogue: pd.DataFrame, thresholds: Collection[float]) -> Iterator[tuple[str, float, pd.DataFrame]]:
    """Models above each training accuracy, per architecture and then pooled."""
    for architecture in [*catalogue["architecture"].unique(), TOTAL]:
        models = catalogue if architecture == TOTAL else catalogue[catalogue["architecture"] == architecture]
        for threshold in thresholds:
            yield architecture, threshold, models[models["train_accuracy"] > threshold]


def correlation_table(
    catalogue: pd.DataFrame,
    measures: Collection[str],
    thresholds: Collection[float] = THRESHOLDS,
    *,
    resamples: int = 2000,
    kendall_resamples: int = 500,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Correlate measures with the gap, per architecture and pooled, among the models above each training accuracy; Du et al., Table 3.

    Args:
        catalogue: one row per model: architecture, train_accuracy and gap (fractions), cell, and a column per measure.
        measures: the columns to correlate (a mapping of names to directions will do; the sign of the raw measure is kept).
        thresholds: a model is taken when its training accuracy is above, fractions.
        resamples: of Pearson's interval; 0 leaves it NaN.
        kendall_resamples: of Kendall's, which costs more.
        level: of both intervals.
        seed: of the resampling.

    Returns:
        One row per architecture (last "Total"), threshold and measure: n models used, dropped (not finite), cells, pearson_r,
        ci_low, ci_high, kendall_tau, kendall_low, kendall_high. What is undefined is NaN; no row is left out.
    """
    rows = []
    for architecture, threshold, models in _subsets(catalogue, thresholds):
        for name in measures:
            x, y, kept = finite_pairs(models[name], models["gap"])
            cells = models["cell"].to_numpy()[kept]
            sampling = {"level": level, "seed": seed}
            rows.append(
                {
                    "architecture": architecture,
                    "threshold": threshold,
                    "measure": name,
                    "n": len(x),
                    "dropped": int((~kept).sum()),
                    "cells": len(set(cells)),
                    "pearson_r": pearson(x, y),
                    **_named(("ci_low", "ci_high"), bootstrap_interval(x, y, cells, "pearson", resamples, **sampling)),
                    "kendall_tau": kendall(x, y),
                    **_named(("kendall_low", "kendall_high"), bootstrap_interval(x, y, cells, "kendall", kendall_resamples, **sampling)),
                }
            )
    return pd.DataFrame(rows)


def selection_table(
    catalogue: pd.DataFrame,
    measures: Mapping[str, int],
    thresholds: Collection[float] = THRESHOLDS,
    *,
    resamples: int = 500,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Say how often each measure picks the better of two models, per architecture and pooled; Du et al. 2024, Table 4.

    Args:
        catalogue: as for ``correlation_table``.
        measures: column to direction, +1 when a larger value promises a smaller gap, else -1.
        thresholds: a model is taken when its training accuracy is above, fractions.
        resamples: of the interval; 500 leave its ends uncertain by a few percent of its width.
        level: of the interval.
        seed: of the resampling.

    Returns:
        One row per architecture (last "Total"), threshold and measure: n, dropped, cells, accuracy (fraction), ci_low, ci_high,
        concordant, discordant, ties. What is undefined is NaN; no row is left out.
    """
    rows = []
    for architecture, threshold, models in _subsets(catalogue, thresholds):
        for name, direction in measures.items():
            x, y, kept = finite_pairs(models[name], models["gap"])
            cells = models["cell"].to_numpy()[kept]
            pairs = pairwise_accuracy(x, y, direction)
            interval = bootstrap_interval(direction * x, y, cells, "pairwise_accuracy", resamples, level, seed)
            subset = {"architecture": architecture, "threshold": threshold, "measure": name, "n": len(x), "dropped": int((~kept).sum())}
            rows.append(subset | {"cells": len(set(cells))} | pairs._asdict() | _named(("ci_low", "ci_high"), interval))
    return pd.DataFrame(rows)


def _named(names: Sequence[str], values: Sequence[float]) -> dict[str, float]:
    return dict(zip(names, values, strict=True))


def varied_axes(catalogue: pd.DataFrame, axes: Sequence[str]) -> list[str]:
    """List the hyperparameters that have more than one level among these models."""
    return [name for name in axes if catalogue[name].nunique() > 1]


def ranking_table(
    catalogue: pd.DataFrame,
    measures: Mapping[str, int],
    axes: Sequence[str],
    *,
    test_images: int,
    resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Rank measures by Kendall's tau with the gap, beside every other statistic of the literature.

    All but pearson_r are signed so that a measure that works is positive, whichever way it points; sign_error is 0 for a perfect
    measure and 0.5 for chance.

    Args:
        catalogue: one row per model: gap (fraction), cell, the axes and a column per measure.
        measures: column to direction, +1 when a larger value promises a smaller gap, else -1.
        axes: hyperparameters with more than one level, see ``varied_axes``.
        test_images: images that each test accuracy was measured on, for the noise filter of the sign error.
        resamples: of hyperparameter cells behind the intervals; 0 leaves them NaN.
        seed: of the resampling.

    Returns:
        One row per measure, the strongest first: n, dropped (not finite), pearson_r with ci_low and ci_high, spearman, kendall with
        kendall_low and kendall_high, granulated_kendall (mean over the axes), partial_r (given all axes) with partial_p,
        conditional_information in [0, 1], sign_error (of the worst environment), environment (single, or pooled where cells have too
        few repeats) and environments. What is undefined is NaN and stands last.
    """
    rows = [_own(catalogue, name, direction, resamples, seed) for name, direction in measures.items()]
    table = pd.DataFrame(rows).set_index("measure")
    if axes:
        table = table.join(_conditional(catalogue, measures, axes, test_images, seed))
    wanted = ["granulated_kendall", "partial_r", "partial_p", "conditional_information", "sign_error", "environment", "environments"]
    table = table.reindex(columns=[*table.columns, *(name for name in wanted if name not in table)])
    return table.sort_values("kendall", ascending=False, na_position="last", kind="stable").reset_index()


def _own(catalogue: pd.DataFrame, name: str, direction: int, resamples: int, seed: int) -> dict[str, float | str]:
    """Statistics that need the measure and the gap alone."""
    x, y, kept = finite_pairs(catalogue[name], catalogue["gap"])
    cells = catalogue["cell"].to_numpy()[kept]
    low, high = bootstrap_interval(x, y, cells, "pearson", resamples, seed=seed)
    kendall_low, kendall_high = bootstrap_interval(-direction * x, y, cells, "kendall", resamples, seed=seed)
    return {
        "measure": name,
        "n": len(x),
        "dropped": int((~kept).sum()),
        "pearson_r": pearson(x, y),
        "ci_low": low,
        "ci_high": high,
        "spearman": -direction * spearman(x, y),
        "kendall": -direction * kendall(x, y),
        "kendall_low": kendall_low,
        "kendall_high": kendall_high,
    }


def _conditional(catalogue: pd.DataFrame, measures: Mapping[str, int], axes: Sequence[str], test_images: int, seed: int) -> pd.DataFrame:
    """Statistics that hold hyperparameters fixed, indexed by measure."""
    granulated = granulated_kendall(catalogue, measures, axes)
    partial = partial_correlation(catalogue, measures, axes).set_index("measure")
    information = information_table(catalogue, measures, axes, seed=seed).set_index("measure")
    errors = sign_error_table(catalogue, measures, axes, test_images=test_images, seed=seed)
    worst = errors[errors["hyperparameter"] == ALL_ENVIRONMENTS].set_index("measure")
    return pd.DataFrame(
        {
            "granulated_kendall": granulated[granulated["hyperparameter"] == ALL_ENVIRONMENTS].set_index("measure")["psi"],
            "partial_r": partial["partial_r"],
            "partial_p": partial["p_value"],
            "conditional_information": information["score"],
            "sign_error": worst["maximum"],
            "environment": worst["environment"],
            "environments": worst["environments"],
        }
    )


def measure_correlations(catalogue: pd.DataFrame, measures: Mapping[str, int]) -> pd.DataFrame:
    """Rank correlation of every measure with every other, signed so that measures that promise alike are positive.

    Returns:
        A square table (measures x measures) of Kendall's tau-b over the models where both are finite; NaN where undefined.
    """
    signed = {name: direction * catalogue[name] for name, direction in measures.items()}
    names = list(signed)
    table = pd.DataFrame(np.nan, index=names, columns=names)
    for row, one in enumerate(names):
        for other in names[: row + 1]:
            table.loc[one, other] = table.loc[other, one] = kendall(signed[one], signed[other])
    return table


def task_table(catalogue: pd.DataFrame, measures: Mapping[str, int], axes: Sequence[str], task: str, *, seed: int = 0) -> pd.DataFrame:
    """Score measures as the PGDL competition does, 100 times the conditional mutual information, task by task; Schiff et al. 2021.

    Args:
        catalogue: as for ``ranking_table``.
        measures: column to direction.
        axes: hyperparameters; the task itself is no axis.
        task: the column that tells tasks apart, such as the architecture.
        seed: of the sample of cells where there are very many.

    Returns:
        One row per measure: a column per task and their average over the tasks where it is defined. A task has no value when fewer than
        two hyperparameters vary in it, or when its models leave nothing to condition on.
    """
    columns = {}
    for name, models in catalogue.groupby(task, sort=True):
        varied = varied_axes(models, [axis for axis in axes if axis != task])
        scores = information_table(models, measures, varied, seed=seed).set_index("measure")["score"] if len(varied) > 1 else np.nan
        columns[str(name)] = 100 * scores
    table = pd.DataFrame(columns, index=list(measures), dtype=float).rename_axis("measure")
    return table.assign(average=table.mean(axis=1)).reset_index()


def pca_gi_mixup(gi: ArrayLike, mixup: ArrayLike) -> NDArray[np.float64]:
    """First principal component of the z-scores of Gi-score and mixup accuracy over models, growing with Gi; Schiff et al., PCA Gi&Mix.

    For (n,) values each, one per model, of correlation r: ``(z_gi + sign(r) z_mixup) / sqrt(2)``; 1 - mixup gives the same. Small is
    better. Which Gi-score the paper takes is not known; intra-class at the input is recommended. NaN where one of the two is not finite,
    and everywhere for fewer than 3 models, a constant, or r = 0.

    Raises:
        ValueError: not one value of each per model.
    """
    x, y, kept = finite_pairs(gi, mixup)
    component = np.full(len(kept), np.nan)
    if not no_correlation(x, y) and abs(r := np.corrcoef(x, y)[0, 1]) > 1e-12:
        component[kept] = (zscore(x) + np.sign(r) * zscore(y)) / 2**0.5
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
