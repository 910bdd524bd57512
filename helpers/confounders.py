"""What is left of a correlation with the gap when hyperparameters are held fixed: one table for many measures."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from helpers.agreement import finite_pairs, pearson
from helpers.confounding import granulated_kendall, partial_correlation, within_levels
from helpers.statistics import bootstrap_interval

POOLED, WITHIN, GIVEN_ALL, GIVEN_ONE, GRANULATED = "pooled", "within a level", "given all", "given one", "granulated"
ALL = "all"
COLUMNS = ["measure", "kind", "hyperparameter", "level", "n", "strength", "ci_low", "ci_high", "published"]


def confounders(
    models: pd.DataFrame,
    measures: Mapping[str, int],
    axes: Sequence[str],
    *,
    theirs: Mapping[str, float] | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Put the pooled correlation of each measure with the gap beside what is left of it with hyperparameters held fixed.

    Everything is signed so that a measure that works is positive: strength is ``-direction * r``.

    Args:
        models: one row per model: gap, cell, the axes and a column per measure.
        measures: column to direction, +1 when a larger value promises a smaller gap, else -1.
        axes: hyperparameters with more than one level; there may be none.
        theirs: the paper's pooled r by measure, not signed.
        resamples: of the intervals of pooled and within-level correlations, over whole cells.
        seed: of the resampling.

    Returns:
        ``COLUMNS``, per measure: "pooled"; "within a level" of each hyperparameter; "given all" and "given one", partial correlations,
        whose interval is Fisher's, with ``atanh(r) +- 1.96 / sqrt(degrees of freedom - 1)``, and takes the models as independent, so it
        is too narrow where they share cells; "granulated", Kendall while one hyperparameter changes, and its mean ("all"), without
        interval. What is undefined is NaN.
    """
    theirs = theirs or {}
    tables = []
    for name, direction in measures.items():
        tables.append(_pooled(models, name, direction, -direction * theirs.get(name, np.nan), resamples, seed))
        if axes:
            levels = within_levels(models, name, axes, direction=direction, resamples=resamples, seed=seed)
            levels = levels[levels["hyperparameter"] != ALL].rename(columns={"pearson_r": "strength"})
            tables.append(levels.assign(measure=name, kind=WITHIN, level=levels["level"].astype(str)))
    if axes:
        tables.append(_partial(models, measures, axes).assign(kind=GIVEN_ALL, hyperparameter=ALL))
        tables += [_partial(models, measures, [axis]).assign(kind=GIVEN_ONE, hyperparameter=axis) for axis in axes]
        granulated = granulated_kendall(models, measures, axes).rename(columns={"psi": "strength"})
        tables.append(granulated.assign(kind=GRANULATED))
    table = pd.concat([part.reindex(columns=COLUMNS) for part in tables if len(part)], ignore_index=True)
    order = table["measure"].map({name: number for number, name in enumerate(measures)})
    return table.assign(level=table["level"].fillna("")).iloc[np.argsort(order, kind="stable")].reset_index(drop=True)


def _pooled(models: pd.DataFrame, name: str, direction: int, theirs: float, resamples: int, seed: int) -> pd.DataFrame:
    x, y, kept = finite_pairs(-direction * models[name], models["gap"])
    low, high = bootstrap_interval(x, y, models["cell"].to_numpy()[kept], "pearson", resamples, seed=seed)
    row = {"measure": name, "kind": POOLED, "hyperparameter": ALL, "level": "", "n": len(x), "strength": pearson(x, y)}
    return pd.DataFrame([row | {"ci_low": low, "ci_high": high, "published": theirs}])


def _partial(models: pd.DataFrame, measures: Mapping[str, int], axes: Sequence[str]) -> pd.DataFrame:
    table = partial_correlation(models, measures, axes).rename(columns={"partial_r": "strength"})
    spread = 1 / np.sqrt(np.where(table["degrees_of_freedom"] > 1, table["degrees_of_freedom"] - 1, np.nan))
    # r = 1 has no finite transform; its interval is itself.
    middle = np.arctanh(table["strength"].clip(-1 + 1e-15, 1 - 1e-15))
    return table.assign(ci_low=np.tanh(middle - 1.96 * spread), ci_high=np.tanh(middle + 1.96 * spread))


def subsets(models: pd.DataFrame, measure: str, column: str, resamples: int, seed: int) -> pd.DataFrame:
    """Correlate a measure with the gap among the models of each level of a column, such as snapshot, repeat or label_noise.

    Returns:
        One row per level, sorted: column, level, n, dropped, cells, mean (of the measure), mean_gap, pearson_r, ci_low, ci_high.
    """
    rows = []
    for level, part in models.groupby(column, sort=True):
        x, y, kept = finite_pairs(part[measure], part["gap"])
        low, high = bootstrap_interval(x, y, part["cell"].to_numpy()[kept], "pearson", resamples, seed=seed)
        counts = {"n": len(x), "dropped": int((~kept).sum()), "cells": part["cell"][kept].nunique()}
        means = {"mean": part[measure].mean(), "mean_gap": part["gap"].mean()}
        rows.append({"column": column, "level": str(level)} | counts | means | {"pearson_r": pearson(x, y), "ci_low": low, "ci_high": high})
    names = ["column", "level", "n", "dropped", "cells", "mean", "mean_gap", "pearson_r", "ci_low", "ci_high"]
    return pd.DataFrame(rows, columns=names)


def changes(models: pd.DataFrame, measure: str, column: str, unit: Sequence[str], resamples: int, seed: int) -> pd.DataFrame:
    """Correlate the change of a measure with the change of the gap between two models that differ in one column only.

    Args:
        models: one row per model: gap, cell, the measure, the column and the unit.
        measure: its column.
        column: what differs, such as snapshot or repeat: each further level is compared with the first.
        unit: the columns that two models of a pair share, such as run_id, or cell and snapshot.
        resamples: of the interval.
        seed: of the resampling.

    Returns:
        One row like those of ``subsets``, level "change between levels", where n counts pairs, and mean and mean_gap are mean absolute
        changes; n is 0 where no pair is.
    """
    pairs = []
    for _, part in models.sort_values(column).groupby(list(unit), sort=True):
        if len(part) > 1:
            differences = part[[measure, "gap"]].iloc[1:] - part[[measure, "gap"]].iloc[0]
            pairs.append(differences.assign(cell=part["cell"].iloc[0]))
    found = pd.concat(pairs) if pairs else pd.DataFrame({name: pd.Series(dtype=float) for name in (measure, "gap", "cell")})
    row = subsets(found.assign(**{column: "change between levels"}), measure, column, resamples, seed)
    if not len(row):
        return pd.DataFrame([{"column": column, "level": "change between levels", "n": 0}]).reindex(columns=row.columns)
    return row.assign(mean=found[measure].abs().mean(), mean_gap=found["gap"].abs().mean())
