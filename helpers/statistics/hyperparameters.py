"""What is left of a correlation with the gap when the hyperparameters that move both are held fixed."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import scipy.stats
from numpy.typing import NDArray

from helpers.statistics.agreement import Array, finite_pairs, pearson
from helpers.statistics.design import Codes, arrays_of, cell_means, finite_groups, joint_codes
from helpers.statistics.resampling import bootstrap_interval

ALL = "all"


def granulated_kendall(catalogue: pd.DataFrame, measures: Mapping[str, int], axes: Sequence[str]) -> pd.DataFrame:
    """Rank correlation with the gap while only one hyperparameter changes: granulated Kendall; Jiang et al. 2020, equations (6) and (7).

    For axis i, ``psi_i`` is the mean over the settings of the other axes of ``tau = 1 / (k (k - 1)) sum_{a != b} sgn(C_a - C_b)
    sgn(G_a - G_b)`` over the k cells of the setting, with C = -direction * measure and G the gap; ``Psi = mean_i psi_i``. A tie adds 0.
    The models of one cell are averaged first. A setting with one cell only is left out.

    Args:
        catalogue: one row per model: gap, the axes and a column per measure.
        measures: column to direction, +1 when a larger value promises a smaller gap, else -1.
        axes: the hyperparameters; floats are equal within 1e-9, relative.

    Returns:
        One row per measure and hyperparameter, with "all" for Psi last: psi in [-1, 1], positive for a measure that works; groups, the
        settings it averages; n models, dropped (not finite). An axis without a setting of two cells is NaN and not in Psi.

    Raises:
        ValueError: an absent column, no axis, a direction that is not +1 or -1, or a missing hyperparameter.
    """
    values, gap, levels = arrays_of(catalogue, measures, axes)
    finite = np.isfinite(values) & np.isfinite(gap)[:, None]
    cells = joint_codes(levels.T, len(levels))
    # The gap is averaged over the models where the measure is finite, hence once per measure.
    x, y = (cell_means(np.where(finite, table, np.nan), cells) for table in (values, gap[:, None]))
    levels = levels[np.unique(cells, return_index=True)[1]]
    psi, groups = np.empty((len(axes) + 1, len(measures))), np.zeros((len(axes) + 1, len(measures)), dtype=np.int64)
    for axis in range(len(axes)):
        rest = joint_codes(np.delete(levels, axis, axis=1).T, len(levels))
        psi[axis], groups[axis] = _mean_tau(x, y, rest, levels[:, axis])
    psi[-1], groups[-1] = _mean_where(psi[:-1], np.isfinite(psi[:-1])), groups[:-1].sum(0)
    rows = []
    for column, name in enumerate(measures):
        counts = {"n": int(finite[:, column].sum()), "dropped": int((~finite[:, column]).sum())}
        for number, axis in enumerate([*axes, ALL]):
            row = {"measure": name, "hyperparameter": axis, "psi": psi[number, column], "groups": groups[number, column]}
            rows.append(row | counts)
    return pd.DataFrame(rows)


def _mean_tau(x: Array, y: Array, rest: Codes, levels: Codes) -> tuple[Array, Codes]:
    """Mean of tau-a over the groups of cells with the same ``rest``, and how many groups have two: (C, M) -> (M,) each."""
    order = np.lexsort((levels, rest))
    x, y, rest = x[order], y[order], rest[order]
    agreement = np.zeros((rest.max(initial=-1) + 1, x.shape[1]))
    sizes = np.zeros_like(agreement)
    np.add.at(sizes, rest, np.isfinite(x))
    for step in range(1, np.bincount(rest).max(initial=0)):
        first = np.flatnonzero(rest[:-step] == rest[step:])
        signs = _signs(x[first], x[first + step]) * _signs(y[first], y[first + step])
        np.add.at(agreement, rest[first], signs)
    pairs = sizes * (sizes - 1) / 2
    return _mean_where(agreement / np.where(pairs > 0, pairs, np.nan), pairs > 0), (pairs > 0).sum(0)


def _mean_where(values: Array, chosen: NDArray[np.bool_]) -> Array:
    """Mean of the chosen values of each column, NaN where there is none."""
    counts = chosen.sum(0)
    return np.where(chosen, values, 0).sum(0) / np.where(counts > 0, counts, np.nan)


def _signs(a: Array, b: Array) -> NDArray[np.int8]:
    """Sign of the difference; 0 also where one is NaN."""
    return np.greater(a, b).astype(np.int8) - np.less(a, b)


def partial_correlation(catalogue: pd.DataFrame, measures: Mapping[str, int], axes: Sequence[str]) -> pd.DataFrame:
    """Correlation of measure and gap after the additive effects of all hyperparameters are taken out of both.

    Measure and gap are regressed by least squares on an intercept and one indicator per level of each hyperparameter (Z), and Pearson's r
    of the residuals is taken. ``t = r sqrt(dof / (1 - r^2))`` with ``dof = n - 2 - (rank(Z) - 1)``; Fisher 1924. The p-value takes the
    models as independent; repeats and snapshots of one cell share what Z does not hold, which makes it too small.

    Args:
        catalogue: one row per model: gap, the axes and a column per measure.
        measures: column to direction, +1 when a larger value promises a smaller gap, else -1.
        axes: the hyperparameters; floats are equal within 1e-9, relative.

    Returns:
        One row per measure: partial_r (-direction * r, in [-1, 1], positive for a measure that works), p_value of both tails,
        degrees_of_freedom, n, dropped (not finite). r and p are NaN with no degree of freedom, or where a residual vanishes, as for a
        constant measure or one that is a sum of effects of the hyperparameters.

    Raises:
        ValueError: an absent column, no axis, a direction that is not +1 or -1, or a missing hyperparameter.
    """
    values, gap, levels = arrays_of(catalogue, measures, axes)
    rows = {}
    for kept, columns in finite_groups(values, np.isfinite(gap)):
        r, dof = _residual_correlations(values[np.ix_(kept, columns)], gap[kept], levels[kept])
        with np.errstate(divide="ignore"):  # r = 1 has t = infinity and p = 0
            t = np.abs(r) * np.sqrt(max(dof, 0) / (1 - r**2))
        p = 2 * scipy.stats.t.sf(t, max(dof, 1))
        for position, column in enumerate(columns):
            row = {"measure": list(measures)[column], "partial_r": r[position], "p_value": p[position], "degrees_of_freedom": dof}
            rows[column] = row | {"n": int(kept.sum()), "dropped": int((~kept).sum())}
    return pd.DataFrame([rows[column] for column in range(len(measures))])


def _residual_correlations(values: Array, gap: Array, levels: Codes) -> tuple[Array, int]:
    models, undefined = len(gap), np.full(values.shape[1], np.nan)
    levels = np.stack([pd.factorize(codes)[0] for codes in levels.T], axis=1)
    # The rank is at least that of the longest axis; with a level per model the indicators would fill the memory for nothing.
    if (bound := models - 2 - levels.max(initial=0)) < 1:
        return undefined, int(bound)
    indicators = [np.equal.outer(codes, np.arange(1, codes.max() + 1)) for codes in levels.T]
    design = np.column_stack([np.ones(models), *indicators])
    table = np.column_stack([values, gap])
    table = table / np.where((largest := np.abs(table).max(0)) > 0, largest, 1)
    table = table - table.mean(0)
    solution, _, rank, _ = np.linalg.lstsq(design, table)
    dof = models - 2 - (int(rank) - 1)
    residuals = table - design @ solution
    lengths, before = np.linalg.norm(residuals, axis=0), np.linalg.norm(table, axis=0)
    # Below these bounds of the whole the residual is rounding, the second that of a constant.
    lengths = np.where((lengths > 1e-9 * before) & (before > 1e-12 * np.sqrt(models)), lengths, np.nan)
    if dof < 1:
        return undefined, dof
    return np.clip(residuals[:, :-1].T @ residuals[:, -1] / (lengths[:-1] * lengths[-1]), -1, 1), dof


def within_levels(
    catalogue: pd.DataFrame,
    measure: str,
    axes: Sequence[str],
    *,
    direction: int = -1,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Correlate a measure with the gap within each level of each hyperparameter, and in all models.

    A correlation that is strong in all models and weak or reversed within levels comes from the hyperparameter: Simpson's paradox.

    Args:
        catalogue: one row per model: gap, cell, the axes and the measure.
        measure: the column.
        axes: the hyperparameters; floats are equal within 1e-9, relative.
        direction: the sign is that of -direction * measure, positive for a measure that works; -1 keeps that of the raw measure.
        resamples: of the interval, see ``resampling.bootstrap_interval``: whole cells are drawn.
        level: coverage of the interval.
        seed: of the resampling.

    Returns:
        One row per level of each hyperparameter and a last row of all models ("all", None): n, dropped (not finite), cells, pearson_r,
        ci_low, ci_high. NaN for fewer than 3 models or a constant, the interval also for fewer than 3 cells.

    Raises:
        ValueError: an absent column, no axis, a direction that is not +1 or -1, or a missing hyperparameter.
    """
    (values,), gap, levels = (part.T if part.ndim == 2 else part for part in arrays_of(catalogue, {measure: direction}, axes, "cell"))
    subsets = [
        (name, catalogue[name].iloc[np.argmax(codes == number)], codes == number)
        for name, codes in zip(axes, levels, strict=True)
        for number in range(codes.max(initial=-1) + 1)
    ]
    rows = []
    for name, value, chosen in [*subsets, (ALL, None, np.ones(len(gap), dtype=bool))]:
        x, y, kept = finite_pairs(values[chosen], gap[chosen])
        cells = catalogue["cell"].to_numpy()[chosen][kept]
        low, high = bootstrap_interval(x, y, cells, "pearson", resamples, level, seed)
        row = {"hyperparameter": name, "level": value, "n": len(x), "dropped": int((~kept).sum()), "cells": len(set(cells))}
        rows.append(row | {"pearson_r": pearson(x, y), "ci_low": low, "ci_high": high})
    return pd.DataFrame(rows)


POOLED, WITHIN, GIVEN_ALL, GIVEN_ONE, GRANULATED = "pooled", "within a level", "given all", "given one", "granulated"


CONFOUNDER_COLUMNS = ["measure", "kind", "hyperparameter", "level", "n", "strength", "ci_low", "ci_high", "published"]


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
    table = pd.concat([part.reindex(columns=CONFOUNDER_COLUMNS) for part in tables if len(part)], ignore_index=True)
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
