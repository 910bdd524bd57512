"""P-values by permutation.

Gaps, or their residuals, are permuted among configurations. All measures share the
permutations, so that p-values can be adjusted for the family of all measures.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from helpers.statistics.correlations import (
    Array,
    finite_mean,
    orthonormal,
    partial_correlation,
    residuals,
)

Rows = NDArray[np.int32]
PERMUTATIONS = 4_999
EXACT_UP_TO = 50_000  # arrangements that are all enumerated, in place of random ones


def permuted_rows(
    configurations: ArrayLike,
    draws: int,
    seed: int = 0,
    within: ArrayLike | None = None,
    exact_up_to: int = EXACT_UP_TO,
) -> Rows:
    """Rows of the models after each permutation of configurations.

    Configurations change places with others of the same group and number of models. If
    there are few arrangements, each is listed once except the observed one; then
    ``(1 + count) / (1 + rows)`` of ``p_values`` is the exact share of all arrangements.

    Args:
        configurations: (n,) name of each model's configuration.
        draws: number of random permutations, where there are too many for all.
        seed: of the random permutations.
        within: (n,) group of each model; None is one group of all.
        exact_up_to: number of arrangements up to which all are enumerated.

    Returns:
        (permutations, n) row numbers: ``gap[rows]`` is the gap under the null.

    Example:
        >>> permuted_rows(["a", "b", "c"], 4999).tolist()
        [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]]
    """
    codes = pd.factorize(np.asarray(configurations))[0]
    groups = np.zeros(len(codes), dtype=np.int64)
    if within is not None:
        groups = pd.factorize(np.asarray(within))[0]
    blocks = _exchangeable(codes, groups)
    arrangements = math.prod(math.factorial(len(block)) for block in blocks)
    if draws and arrangements <= exact_up_to:
        return _all_arrangements(blocks, len(codes))[1:]
    random = np.random.default_rng(seed)
    rows = np.tile(np.arange(len(codes), dtype=np.int32), (draws, 1))
    for places in blocks:
        numbers = np.tile(np.arange(len(places)), (draws, 1))
        order = random.permuted(numbers, axis=1)
        rows[:, places.ravel()] = places[order].reshape(draws, places.size)
    return rows


def _exchangeable(
    codes: NDArray[np.int64], groups: NDArray[np.int64]
) -> list[NDArray[np.intp]]:
    """Row numbers of configurations that may change places with each other.

    Returns:
        One (configurations, models of each) array for each group and number of models.
    """
    configurations: dict[tuple[int, int], list[NDArray[np.intp]]] = {}
    for code in range(codes.max(initial=-1) + 1):
        models = np.flatnonzero(codes == code)
        group_and_size = (int(groups[models[0]]), len(models))
        configurations.setdefault(group_and_size, []).append(models)
    return [np.stack(configurations[key]) for key in sorted(configurations)]


def _all_arrangements(blocks: Sequence[NDArray[np.intp]], models: int) -> Rows:
    """Every arrangement of the blocks, (arrangements, n), the observed one first."""
    rows = np.arange(models, dtype=np.int32)[None]
    for places in blocks:
        orders = np.array(list(itertools.permutations(range(len(places)))))
        # (rows so far, orders of this block, models)
        combined = np.repeat(rows[:, None], len(orders), axis=1)
        combined[:, :, places.ravel()] = places[orders].reshape(len(orders), -1)
        rows = combined.reshape(-1, models)
    return rows


def null_partial_correlation(
    x: ArrayLike, y: ArrayLike, rows: Rows, covariates: Array | None = None
) -> Array:
    """Partial correlations after each permutation of the target's residuals.

    Freedman and Lane 1983.

    Args:
        x: (n, M) measures, or (n,) one.
        y: (n,) target.
        rows: (D, n) row numbers after each permutation, see ``permuted_rows``.
        covariates: (n, k) columns to hold fixed.

    Returns:
        (D, M) in [-1, 1]; NaN where a correlation is undefined.

    Raises:
        ValueError: if a model has no target.
    """
    y = np.asarray(y, dtype=float)
    missing = int((~np.isfinite(y)).sum())
    if missing:
        raise ValueError(
            f"{missing} models have no target; leave them out before permuting"
        )
    if not len(rows):
        measures = 1 if np.ndim(x) == 1 else np.shape(x)[1]
        return np.empty((0, measures))
    residual = residuals(y[:, None], orthonormal(covariates, np.isfinite(y)))[:, 0]
    return partial_correlation(x, residual[rows], covariates)


def null_centre(observed: ArrayLike, null: Array) -> Array:
    """Mean of statistics over the permutations and the observed arrangement.

    Args:
        observed: (M,) statistics of the data as they are.
        null: (D, M) the same after each permutation.

    Returns:
        (M,); NaN where no value is finite.
    """
    return finite_mean(np.vstack([np.asarray(observed, dtype=float), null]))


def p_values(observed: ArrayLike, null: Array) -> Array:
    """Share of all arrangements whose statistic is at least the observed one.

    ``(1 + count) / (1 + D)``: the 1 is the observed arrangement, which an enumerated
    null does not hold. Absolute statistics give a two-sided p.

    Args:
        observed: (M,) statistics.
        null: (D, M) the same under the null; NaN is left out.

    Returns:
        (M,) in (0, 1]; NaN where a statistic is undefined.

    Example:
        >>> p_values([0.9], np.array([[0.1], [0.2], [0.95]])).tolist()
        [0.5]
    """
    observed = np.asarray(observed, dtype=float)
    # The tolerance counts a drawn copy of the observed arrangement, whose sums round
    # differently.
    count = (null >= observed - 1e-9 * np.abs(observed)).sum(0)
    draws = np.isfinite(null).sum(0)
    return np.where(np.isfinite(observed), (1 + count) / (1 + draws), np.nan)


def adjusted_p_values(observed: ArrayLike, null: Array) -> Array:
    """P-values adjusted for the family of all statistics: single-step maxT.

    Each statistic is compared with the null of their maximum; Westfall and Young 1993.

    Args:
        observed: (M,) statistics, larger is more extreme.
        null: (D, M) the same under the null.

    Returns:
        (M,) in (0, 1]; NaN where a statistic is undefined, which is not in the family.
    """
    observed = np.asarray(observed, dtype=float)
    family = null[:, np.isfinite(observed)]
    largest = np.fmax.reduce(family, axis=1, initial=np.nan)
    return p_values(observed, np.broadcast_to(largest[:, None], null.shape))


def band(null: Array) -> float:
    """Critical value of the largest statistic: beyond it the adjusted p is below 0.05.

    Args:
        null: (D, M) statistics under the null, larger is more extreme.

    Returns:
        NaN where there are too few permutations.
    """
    largest = np.sort(np.fmax.reduce(null, axis=1, initial=np.nan))
    largest = largest[np.isfinite(largest)]
    # Smallest rank with (1 + draws above it) / (1 + draws) < 0.05.
    rank = int(0.95 * (len(largest) + 1) + 1e-9) + 1
    return float(largest[rank - 1]) if 0 < rank <= len(largest) else np.nan


def holm(p: ArrayLike) -> Array:
    """P-values adjusted for the family of all, whatever their dependence; Holm 1979.

    Args:
        p: (m,); NaN does not count in the family.

    Returns:
        (m,) in [0, 1], NaN where p is.

    Example:
        >>> holm([0.01, 0.04, np.nan]).tolist()
        [0.02, 0.04, nan]
    """
    p = np.asarray(p, dtype=float)
    family = np.flatnonzero(np.isfinite(p))
    order = family[np.argsort(p[family], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    adjusted = np.full(p.shape, np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * factors), 1)
    return adjusted


def sign_flip_p(
    values: Array, groups: ArrayLike, flips: int = PERMUTATIONS, seed: int = 0
) -> Array:
    """One-sided p of each column's sum when whole groups change sign; Fisher 1935.

    Args:
        values: (n, M), NaN is left out.
        groups: (n,) names; the values of a group change sign together.
        flips: number of random choices of signs, where there are too many to try all.
        seed: of the random choices.

    Returns:
        (M,) in (0, 1]; NaN where no value is finite.
    """
    is_finite = np.isfinite(values)
    table = pd.DataFrame(np.where(is_finite, values, 0))
    sums = table.groupby(np.asarray(groups)).sum().to_numpy()
    count = len(sums)
    if 2**count <= flips + 1:
        # All choices of signs, from the bits of a number; 0 would be the observed one.
        numbers = np.arange(1, 2**count)[:, None]
        bits = (numbers >> np.arange(count)) & 1
        signs = 1 - 2 * bits  # (choices, groups)
    else:
        signs = np.random.default_rng(seed).choice([-1, 1], size=(flips, count))
    least = sums.sum(0) - 1e-9 * np.abs(sums).sum(0)
    as_large = (signs @ sums >= least).sum(0)
    return np.where(is_finite.any(0), (1 + as_large) / (1 + len(signs)), np.nan)
