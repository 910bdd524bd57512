"""P-values: gaps, or their residuals, change places among configurations; one null for all measures, and the error of a family."""

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from helpers.statistics.correlations import (
    Array,
    orthonormal,
    partial_correlation,
    residuals,
)

Rows = NDArray[np.int32]
PERMUTATIONS = 4_999


def permuted_rows(
    configurations: ArrayLike,
    draws: int,
    seed: int = 0,
    within: ArrayLike | None = None,
) -> Rows:
    """Rows of the models after each permutation, (draws, n): ``gap[rows]`` is the gap under the null.

    Configurations change places with those of as many models, and of the same group ``within``.
    """
    codes, random = (
        pd.factorize(np.asarray(configurations))[0],
        np.random.default_rng(seed),
    )
    rows = np.tile(np.arange(len(codes), dtype=np.int32), (draws, 1))
    groups = (
        np.zeros(len(codes), dtype=np.int64)
        if within is None
        else pd.factorize(np.asarray(within))[0]
    )
    order, sizes = np.argsort(codes, kind="stable"), np.bincount(codes)
    starts = np.cumsum(sizes) - sizes
    alike = np.column_stack([groups[order[starts]], sizes])  # one row per configuration
    for group, size in np.unique(alike, axis=0):
        places = order[
            starts[(alike == (group, size)).all(1)][:, None] + np.arange(size)
        ]  # (configurations, size)
        drawn = random.permuted(np.tile(np.arange(len(places)), (draws, 1)), axis=1)
        rows[:, places.ravel()] = places[drawn].reshape(draws, places.size)
    return rows


def null_partial_correlation(
    x: ArrayLike, y: ArrayLike, rows: Rows, given: Array | None = None
) -> Array:
    """Partial correlation of each measure (n, M) with the target (n,) whose residuals are permuted: (draws, M); Freedman and Lane 1983."""
    y = np.asarray(y, dtype=float)
    if missing := int((~np.isfinite(y)).sum()):
        raise ValueError(
            f"{missing} models have no target; leave them out before permuting"
        )
    left = residuals(y[:, None], orthonormal(given, np.isfinite(y)))[:, 0]
    return partial_correlation(x, left[rows], given)


def p_values(observed: ArrayLike, null: Array) -> Array:
    """Share of the null (D, M) that is at least as large as what was observed (M,): ``(1 + count) / (1 + D)``; absolute: both sides."""
    observed = np.asarray(observed, dtype=float)
    # The observed arrangement is one of the permutations, and comes back from other sums with other rounding.
    count = (null >= observed - 1e-9 * np.abs(observed)).sum(0)
    return np.where(
        np.isfinite(observed), (1 + count) / (1 + np.isfinite(null).sum(0)), np.nan
    )


def adjusted_p_values(observed: ArrayLike, null: Array) -> Array:
    """P-value of each statistic for the family of all, by the null of their maximum: maxT, single step; Westfall and Young 1993."""
    observed = np.asarray(observed, dtype=float)
    largest = np.fmax.reduce(null[:, np.isfinite(observed)], axis=1, initial=np.nan)
    return p_values(observed, np.broadcast_to(largest[:, None], null.shape))


def band(null: Array) -> float:
    """Bound that the largest of all statistics stays within in 95 % of the null: beyond it the adjusted p is below 0.05."""
    largest = np.sort(np.fmax.reduce(null, axis=1, initial=np.nan))
    largest = largest[np.isfinite(largest)]
    rank = (
        int(0.95 * (len(largest) + 1) + 1e-9) + 1
    )  # so few draws are above that the adjusted p is less than 0.05
    return float(largest[rank - 1]) if 0 < rank <= len(largest) else np.nan


def holm(p: ArrayLike) -> Array:
    """P-values for the family of all by Holm 1979, whatever their dependence: (m,) -> (m,); NaN stays and is not in the family."""
    p = np.asarray(p, dtype=float)
    adjusted, known = np.full(p.shape, np.nan), np.flatnonzero(np.isfinite(p))
    order = known[np.argsort(p[known], kind="stable")]
    adjusted[order] = np.minimum(
        np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1
    )
    return adjusted


def sign_flip_p(
    values: Array, groups: ArrayLike, flips: int = PERMUTATIONS, seed: int = 0
) -> Array:
    """One-sided p of each column's sum (n, M) when whole groups change sign at random, in every way if few; Fisher 1935."""
    known = np.isfinite(values)
    sums = (
        pd.DataFrame(np.where(known, values, 0))
        .groupby(np.asarray(groups))
        .sum()
        .to_numpy()
    )
    if 2 ** len(sums) <= flips + 1:
        signs = 1 - 2 * (
            (np.arange(1, 2 ** len(sums))[:, None] >> np.arange(len(sums))) & 1
        )
    else:
        signs = np.random.default_rng(seed).choice([-1, 1], size=(flips, len(sums)))
    as_large = (signs @ sums >= sums.sum(0) - 1e-9 * np.abs(sums).sum(0)).sum(0)
    return np.where(known.any(0), (1 + as_large) / (1 + len(signs)), np.nan)
