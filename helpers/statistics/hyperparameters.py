"""What is left of a correlation with the gap when the hyperparameters that move both are held fixed."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from helpers.statistics.correlations import (
    Array,
    Codes,
    design,
    finite_mean,
    level_codes,
)
from helpers.statistics.draws import Draws

ALL = "all"
POOLED, WITHIN, GIVEN_ALL, GIVEN_ONE, GRANULATED = (
    "pooled",
    "within a level",
    "given all",
    "given one",
    "granulated",
)
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


def varied_axes(models: pd.DataFrame, axes: Sequence[str]) -> list[str]:
    """The hyperparameters that have more than one level among these models."""
    return [name for name in axes if models[name].nunique() > 1]


def levels_of(models: pd.DataFrame, axes: Sequence[str]) -> Codes:
    """The level of each hyperparameter, see ``level_codes``: (n, A)."""
    return (
        np.array([level_codes(models[name]) for name in axes], dtype=np.int64)
        .reshape(len(axes), len(models))
        .T
    )


def joint_codes(columns: Sequence[Codes], models: int) -> Codes:
    """Number the combinations that occur: several (n,) codes -> one, in order of first appearance; all 0 for no column."""
    joint = np.zeros(models, dtype=np.int64)
    for codes in columns:
        joint = pd.factorize(joint * (codes.max(initial=0) + 1) + codes)[0].astype(
            np.int64
        )
    return joint


def configuration_means(values: Array, configurations: Codes) -> Array:
    """Average the models of each configuration, leaving out NaN: (n, M) -> (C, M)."""
    mantissa, exponent = np.frexp(
        pd.DataFrame(values).groupby(configurations).mean().to_numpy()
    )
    # Rounded to 40 bits: repeats that are equal would else differ by the rounding of their mean, and ties would get an order.
    return np.ldexp(np.rint(np.ldexp(mantissa, 40)), exponent - 40)


def granulated_kendall(
    models: pd.DataFrame, measures: Sequence[str], axes: Sequence[str]
) -> pd.DataFrame:
    """Rank correlation with the gap while only one hyperparameter changes: granulated Kendall; Jiang et al. 2020, equations (6) and (7).

    ``psi`` of an axis is the mean over the settings of the others of tau-a over the setting's configurations; NaN without a setting of two.
    "all" is the mean over axes.
    """
    values, gap, levels = (
        models[list(measures)].to_numpy(dtype=float),
        models[["gap"]].to_numpy(dtype=float),
        levels_of(models, axes),
    )
    finite = np.isfinite(values) & np.isfinite(gap)
    configurations = joint_codes(levels.T, len(levels))
    # The gap is averaged over the models where the measure is finite, hence once per measure.
    x, y = (
        configuration_means(np.where(finite, table, np.nan), configurations)
        for table in (values, gap)
    )
    levels = levels[np.unique(configurations, return_index=True)[1]]
    psi = [
        _mean_tau(x, y, joint_codes(np.delete(levels, axis, axis=1).T, len(levels)))
        for axis in range(len(axes))
    ]
    psi = np.array(psi).reshape(len(axes), len(measures))
    psi, names = np.vstack([psi, finite_mean(psi)]), [*axes, ALL]
    table = {
        "measure": np.repeat(list(measures), len(names)),
        "hyperparameter": names * len(measures),
        "psi": psi.T.ravel(),
    }
    return pd.DataFrame(table | {"n": np.repeat(finite.sum(0), len(names))})


def _mean_tau(x: Array, y: Array, rest: Codes) -> Array:
    """Mean of tau-a over the groups of configurations with the same ``rest``: (C, M) -> (M,)."""
    taus = [np.empty((0, x.shape[1]))]
    for rows in pd.Series(rest).groupby(rest).indices.values():
        one, other = (rows[places] for places in np.triu_indices(len(rows), 1))
        taus.append(
            finite_mean(np.sign(x[one] - x[other]) * np.sign(y[one] - y[other]))[None]
        )
    return finite_mean(np.vstack(taus))


def confounders(
    draws: Draws,
    measures: Sequence[str],
    axes: Sequence[str],
    theirs: Mapping[str, float] | None = None,
) -> pd.DataFrame:
    """Each measure's r with the gap, pooled beside that with hyperparameters held fixed: Simpson's paradox; ``theirs`` is the paper's r."""
    models, names = draws.models, list(measures)
    pooled = draws.correlations(names, tau=False)
    parts = [
        pooled.assign(
            kind=POOLED,
            hyperparameter=ALL,
            published=pooled["measure"].map(theirs or {}).astype(float),
        )
    ]
    for axis in axes:
        parts.append(
            subsets(draws, names, axis).assign(kind=WITHIN, hyperparameter=axis)
        )
    for kind, held in [
        *([(GIVEN_ALL, list(axes))] if axes else []),
        *((GIVEN_ONE, [axis]) for axis in axes),
    ]:
        left = draws.correlations(names, given=design(models, held), tau=False)
        parts.append(
            left.assign(kind=kind, hyperparameter=ALL if kind == GIVEN_ALL else held[0])
        )
    if axes:
        parts.append(
            granulated_kendall(models, names, axes)
            .rename(columns={"psi": "pearson_r"})
            .assign(kind=GRANULATED)
        )
    table = pd.concat(
        [
            part.rename(columns={"pearson_r": "r"}).reindex(columns=_CONFOUNDER_COLUMNS)
            for part in parts
        ],
        ignore_index=True,
    )
    table["level"] = table["level"].astype(object).fillna("")
    return table.sort_values(
        "measure",
        key=lambda column: column.map(names.index),
        kind="stable",
        ignore_index=True,
    )


def subsets(draws: Draws, measures: Sequence[str], column: str) -> pd.DataFrame:
    """Correlate measures with the gap among the models of each level of a column, such as snapshot, repeat or label_noise."""
    names = [
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
    codes, parts = level_codes(draws.models[column]), [pd.DataFrame(columns=names)]
    for number in range(codes.max(initial=-1) + 1):
        part = draws.of(codes == number)
        means = {
            "mean": part.models[list(measures)].mean().to_numpy(),
            "mean_gap": part.models["gap"].mean(),
        }
        found = part.correlations(measures, tau=False).assign(
            column=column, level=str(part.models[column].iloc[0]), **means
        )
        parts.append(found[names])
    return pd.concat(parts[1:] or parts, ignore_index=True)
