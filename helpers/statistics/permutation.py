"""P-values: gaps, or their residuals, change places among hyperparameter cells; one null for all measures, and the error of a family."""

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from helpers.statistics.correlations import Array, checked, finite_groups, kendall, orthonormal, residuals

PERMUTATIONS = 4_999


def permuted_rows(cells: ArrayLike, draws: int = PERMUTATIONS, seed: int = 0) -> NDArray[np.int32]:
    """Rows of the models after each permutation, (draws, n): ``gap[rows]`` is the gap under the null.

    Cells change places as a whole, and only with cells of as many models, which keep their order: two snapshots of a cell stay a cell.
    A cell that no other has as many models as stays where it is, which makes the test careful rather than wrong.

    Args:
        cells: (n,) name of each model's cell; rows of a cell in an order that means the same in each, such as by snapshot.
        draws: number of permutations.
        seed: of them; statistics that share it share every permutation.
    """
    codes, names = pd.factorize(np.asarray(cells))
    random = np.random.default_rng(seed)
    rows = np.tile(np.arange(len(codes), dtype=np.int32), (draws, 1))
    if not draws:
        return rows
    sizes = np.bincount(codes, minlength=len(names))
    order = np.argsort(codes, kind="stable")
    starts = np.cumsum(sizes) - sizes
    for size in np.unique(sizes):
        places = order[starts[sizes == size][:, None] + np.arange(size)]  # (cells of this size, size)
        drawn = random.permuted(np.tile(np.arange(len(places)), (draws, 1)), axis=1)
        rows[:, places.ravel()] = places[drawn].reshape(draws, -1)
    return rows


def null_partial_correlation(x: ArrayLike, y: ArrayLike, rows: NDArray[np.int32], given: Array | None = None) -> Array:
    """Correlation of each measure with the permuted target, (draws, M): under the null, and with ``given`` by Freedman and Lane 1983.

    The residuals of the target given the columns are permuted, put back on the fitted values, and the partial correlation is taken anew;
    the fitted values drop out of it. Without ``given`` the target itself is permuted.

    Args:
        x: (n, M) measures; NaN leaves a model out for that measure, after the permutation of all.
        y: (n,) finite target.
        rows: (draws, n), see ``permuted_rows``.
        given: (n, k), see ``correlations.design``.

    Raises:
        ValueError: a target that is not finite, or shapes that do not agree.
    """
    x, y, _ = checked(x, y, None)
    if not np.isfinite(y).all():
        raise ValueError(f"{int((~np.isfinite(y)).sum())} models have no target; leave them out before permuting")
    left = residuals(y[0][:, None], orthonormal(given, np.ones(y.shape[1], dtype=bool)))[:, 0]
    null = np.full((len(rows), x.shape[1]), np.nan)
    for kept, columns in finite_groups(x, y):
        basis = orthonormal(given, kept)
        if kept.sum() < basis.shape[1] + 2:
            continue
        values = residuals(x[np.ix_(kept, columns)], basis)
        permuted = left[rows[:, kept]]
        squares = (permuted**2).sum(1) - ((permuted @ basis) ** 2).sum(1)
        size = np.sqrt(np.where(squares > 1e-10 * len(values), squares * len(values), np.nan))
        null[:, columns] = np.clip((permuted @ values) / size[:, None], -1, 1)
    return null


def null_kendall(x: ArrayLike, y: ArrayLike, rows: NDArray[np.int32]) -> Array:
    """Kendall's tau-b of each measure (n, M) with the permuted target: (draws, M), exact; NaN above ``correlations.PAIR_LIMIT`` models."""
    return kendall(x, np.asarray(y, dtype=float)[rows], np.ones(rows.shape))


def from_centre(observed: ArrayLike, null: Array) -> tuple[Array, Array, Array]:
    """Distances of each statistic, and of its null, from the mean of that null: (M,) and (D, M) -> (M,), (D, M), and the means (M,).

    Cells change places with their snapshots in order, so a measure that drifts as the gap grows within runs correlates with it under the
    null too. What it has beyond that is tested, on both sides alike; else the measures that drift most set the bar for all.
    """
    known = np.isfinite(null)
    centre = np.where(known, null, 0).sum(0) / np.where(known.any(0), known.sum(0), np.nan)
    return np.abs(np.asarray(observed, dtype=float) - centre), np.abs(null - centre), centre


def p_values(observed: ArrayLike, null: Array) -> Array:
    """Share of the null that is at least as large as what was observed, ``(1 + count) / (1 + draws)``, never 0: (M,) and (D, M) -> (M,).

    Larger is more extreme: pass absolute values for a test of both sides. NaN where the observed value is; draws where the statistic is
    undefined are left out.
    """
    observed = np.asarray(observed, dtype=float)
    # The observed arrangement is one of the permutations, and comes back from other sums with other rounding.
    count = (null >= observed - 1e-9 * np.abs(observed)).sum(0)
    return np.where(np.isfinite(observed), (1 + count) / (1 + np.isfinite(null).sum(0)), np.nan)


def adjusted_p_values(observed: ArrayLike, null: Array) -> Array:
    """P-value of each statistic for the family of all, by the null of their maximum: maxT, single step; Westfall and Young 1993.

    If none of them tells anything, the chance that the least is below 0.05 is 5 %, however alike they are. Args as for ``p_values``.
    """
    observed = np.asarray(observed, dtype=float)
    return p_values(observed, np.broadcast_to(_maximum(null[:, np.isfinite(observed)])[:, None], null.shape))


def band(null: Array, level: float = 0.95) -> float:
    """Bound that the largest of all statistics stays within in ``level`` of the null: beyond it the adjusted p is below 1 - level."""
    largest = np.sort(_maximum(null))
    largest = largest[np.isfinite(largest)]
    rank = int(level * (len(largest) + 1) + 1e-9) + 1  # so few draws are above that the adjusted p is less than 1 - level
    return float(largest[rank - 1]) if 0 < rank <= len(largest) else np.nan


def _maximum(null: Array) -> Array:
    """Largest statistic of each draw, NaN where none is defined: (D, M) -> (D,)."""
    largest = np.where(np.isfinite(null), null, -np.inf).max(1, initial=-np.inf)
    return np.where(np.isfinite(largest), largest, np.nan)


def holm(p: ArrayLike) -> Array:
    """P-values for the family of all by Holm 1979, whatever their dependence: (m,) -> (m,); NaN stays and is not in the family."""
    p = np.asarray(p, dtype=float)
    adjusted, known = np.full(p.shape, np.nan), np.flatnonzero(np.isfinite(p))
    order = known[np.argsort(p[known], kind="stable")]
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1)
    return adjusted
