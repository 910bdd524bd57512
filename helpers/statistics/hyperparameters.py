"""Correlations with the gap while hyperparameters are held fixed."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from helpers.statistics.bootstrap import Bootstrap
from helpers.statistics.correlations import (
    Array,
    Codes,
    design,
    finite_mean,
    level_codes,
)

ALL = "all"
# Kinds of rows of ``confounders``.
POOLED = "pooled"
WITHIN = "within a level"
GIVEN_ALL = "given all"
GIVEN_ONE = "given one"
GRANULATED = "granulated"
_CONFOUNDER_COLUMNS = [
    "measure",
    "kind",
    "hyperparameter",
    "level",
    "n",
    "r",
    "ci_low",
    "ci_high",
    "published",
]
_SUBSET_COLUMNS = [
    "measure",
    "column",
    "level",
    "n",
    "dropped",
    "cells",
    "mean",
    "mean_gap",
    "pearson_r",
    "ci_low",
    "ci_high",
]


def varied_axes(models: pd.DataFrame, axes: Sequence[str]) -> list[str]:
    """The hyperparameters that have more than one level.

    Args:
        models: a row per model.
        axes: hyperparameters.
    """
    return [name for name in axes if models[name].nunique() > 1]


def levels_of(models: pd.DataFrame, axes: Sequence[str]) -> Codes:
    """The level of each hyperparameter, see ``level_codes``.

    Args:
        models: n of them, a row each.
        axes: A hyperparameters.

    Returns:
        (n, A).
    """
    codes = np.array([level_codes(models[name]) for name in axes], dtype=np.int64)
    return codes.reshape(len(axes), len(models)).T


def joint_codes(columns: Sequence[Codes], models: int) -> Codes:
    """Number the combinations that occur.

    Args:
        columns: (n,) codes of each hyperparameter.
        models: n.

    Returns:
        (n,) from 0 in the order of appearance; all 0 without a column.
    """
    joint = np.zeros(models, dtype=np.int64)
    for codes in columns:
        pairs = joint * (codes.max(initial=0) + 1) + codes
        joint = pd.factorize(pairs)[0].astype(np.int64)
    return joint


def configuration_means(values: Array, configurations: Codes) -> Array:
    """Average the models of each configuration, without NaN.

    Args:
        values: (n, M).
        configurations: (n,) codes from 0 to C - 1.

    Returns:
        (C, M).
    """
    means = pd.DataFrame(values).groupby(configurations).mean().to_numpy()
    mantissa, exponent = np.frexp(means)
    # Rounded to 40 bits: else means of equal values would differ by their rounding, and
    # configurations that tie would get an order.
    return np.ldexp(np.rint(np.ldexp(mantissa, 40)), exponent - 40)


def granulated_kendall(
    models: pd.DataFrame, measures: Sequence[str], axes: Sequence[str]
) -> pd.DataFrame:
    """Rank correlation with the gap while only one hyperparameter changes.

    Granulated Kendall; Jiang et al. 2020, equations (6) and (7).

    Args:
        models: a row per model.
        measures: columns.
        axes: hyperparameters.

    Returns:
        measure, hyperparameter, psi and n. For ``psi`` of a hyperparameter, the
        configurations that agree in all others form a group, and tau-a is averaged over
        the groups; NaN where no group has two configurations. "all" is the mean over
        hyperparameters.
    """
    values = models[list(measures)].to_numpy(dtype=float)
    gap = models[["gap"]].to_numpy(dtype=float)
    levels = levels_of(models, axes)
    is_finite = np.isfinite(values) & np.isfinite(gap)
    configurations = joint_codes(levels.T, len(levels))
    x = configuration_means(np.where(is_finite, values, np.nan), configurations)
    # (C, M): the gap is averaged over the models where that measure is finite.
    y = configuration_means(np.where(is_finite, gap, np.nan), configurations)
    first_models = np.unique(configurations, return_index=True)[1]
    levels = levels[first_models]  # (C, A), one row per configuration
    psi = np.empty((len(axes), len(measures)))
    for axis in range(len(axes)):
        others = np.delete(levels, axis, axis=1)
        psi[axis] = _mean_tau(x, y, joint_codes(others.T, len(levels)))
    psi = np.vstack([psi, finite_mean(psi)])
    names = [*axes, ALL]
    return pd.DataFrame(
        {
            "measure": np.repeat(list(measures), len(names)),
            "hyperparameter": names * len(measures),
            "psi": psi.T.ravel(),
            "n": np.repeat(is_finite.sum(0), len(names)),
        }
    )


def _mean_tau(x: Array, y: Array, groups: Codes) -> Array:
    """Mean of tau-a over groups of configurations: (C, M) and (C, M) -> (M,)."""
    taus = [np.empty((0, x.shape[1]))]
    for rows in pd.Series(groups).groupby(groups).indices.values():
        first, second = np.triu_indices(len(rows), 1)
        order_x = np.sign(x[rows[first]] - x[rows[second]])
        order_y = np.sign(y[rows[first]] - y[rows[second]])
        taus.append(finite_mean(order_x * order_y)[None])
    return finite_mean(np.vstack(taus))


def confounders(
    bootstrap: Bootstrap,
    measures: Sequence[str],
    axes: Sequence[str],
    published: Mapping[str, float] | None = None,
) -> pd.DataFrame:
    """Each measure's r with the gap, pooled and with hyperparameters held fixed.

    Pooled models can show a correlation that exists within no level of a hyperparameter
    (Simpson's paradox).

    Args:
        bootstrap: of the models.
        measures: columns.
        axes: hyperparameters.
        published: the paper's r by measure.

    Returns:
        A row per measure and kind: pooled, within a level, given one hyperparameter or
        all, granulated (psi in place of r).
    """
    models = bootstrap.models
    names = list(measures)
    pooled = bootstrap.correlations(names, tau=False).assign(
        kind=POOLED, hyperparameter=ALL
    )
    pooled["published"] = pooled["measure"].map(published or {}).astype(float)
    tables = [pooled]
    for axis in axes:
        within = subsets(bootstrap, names, axis)
        tables.append(within.assign(kind=WITHIN, hyperparameter=axis))
    if axes:
        all_fixed = bootstrap.correlations(
            names, covariates=design(models, axes), tau=False
        )
        tables.append(all_fixed.assign(kind=GIVEN_ALL, hyperparameter=ALL))
    for axis in axes:
        columns = design(models, [axis])
        one_fixed = bootstrap.correlations(names, covariates=columns, tau=False)
        tables.append(one_fixed.assign(kind=GIVEN_ONE, hyperparameter=axis))
    if axes:
        granulated = granulated_kendall(models, names, axes).assign(kind=GRANULATED)
        tables.append(granulated.rename(columns={"psi": "pearson_r"}))
    tables = [table.rename(columns={"pearson_r": "r"}) for table in tables]
    tables = [table.reindex(columns=_CONFOUNDER_COLUMNS) for table in tables]
    table = pd.concat(tables, ignore_index=True)
    table["level"] = table["level"].astype(object).fillna("")
    return table.sort_values(
        "measure",
        key=lambda column: column.map(names.index),
        kind="stable",
        ignore_index=True,
    )


def subsets(bootstrap: Bootstrap, measures: Sequence[str], column: str) -> pd.DataFrame:
    """Correlate measures with the gap among the models of each level of a column.

    Args:
        bootstrap: of the models.
        measures: columns.
        column: such as snapshot, repeat or label_noise.

    Returns:
        A row per level and measure; no rows without models.
    """
    codes = level_codes(bootstrap.models[column])
    tables = []
    for number in range(codes.max(initial=-1) + 1):
        part = bootstrap.subset(codes == number)
        table = part.correlations(measures, tau=False)
        table["column"] = column
        table["level"] = str(part.models[column].iloc[0])
        table["mean"] = part.models[list(measures)].mean().to_numpy()
        table["mean_gap"] = part.models["gap"].mean()
        tables.append(table[_SUBSET_COLUMNS])
    if not tables:
        return pd.DataFrame(columns=_SUBSET_COLUMNS)
    return pd.concat(tables, ignore_index=True)
