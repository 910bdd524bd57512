"""Linear, partial and rank correlation of many measures with a target, in many draws of models at once.

A measure is a column of values (n, M), or (B, n, M) where they differ between draws. Weights (B, n) count how often each model is in each
draw; without weights each counts once. A value that is not finite leaves a model out for that measure alone.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Codes = NDArray[np.int64]

_ENTRIES = 4_000_000  # numbers in a temporary array


def slices(count: int, size: int, entries: int = _ENTRIES) -> Iterator[slice]:
    """Parts of ``count`` rows of ``size`` numbers each, so that a temporary array of a part has so many entries at most."""
    step = max(1, entries // max(1, size))
    return (slice(start, start + step) for start in range(0, count, step))


def finite_mean(values: Array) -> Array:
    """Mean over the first axis of what is finite, NaN where nothing is."""
    known = np.isfinite(values)
    counts = known.sum(0)
    return np.where(known, values, 0).sum(0) / np.where(counts > 0, counts, np.nan)


def level_codes(values: ArrayLike) -> Codes:
    """Number the levels of a hyperparameter from 0, those of floats by their size: (n,) -> (n,)."""
    column = pd.Series(values).infer_objects()
    return pd.factorize(column, sort=column.dtype.kind == "f")[0].astype(np.int64)


def design(
    models: pd.DataFrame, categorical: Sequence[str] = (), linear: Sequence[str] = ()
) -> Array:
    """Columns to hold fixed (n, k): an indicator of each level but the first, and linear columns standardised; no intercept."""
    columns = [np.empty((len(models), 0))]
    for name in categorical:
        codes = level_codes(models[name])
        columns.append(
            np.equal.outer(codes, np.arange(1, codes.max(initial=0) + 1)).astype(float)
        )
    for name in linear:
        number = models[name].to_numpy(dtype=float)
        columns.append(
            ((number - number.mean()) / (number.std() or 1))[:, None]
            if len(number)
            else number[:, None]
        )
    return np.hstack(columns)


def partial_correlation(
    x: ArrayLike, y: ArrayLike, given: Array | None = None, weights: Array | None = None
) -> Array:
    """Pearson's r of measures with a target (n,) or (B, n), least squares on ``given`` (n, k) and an intercept taken out of both.

    A weight counts as repeated rows. (B, M), or (M,) of one target without weights; NaN with no degree of freedom or no residual.
    """
    x, targets, w = checked(x, y, weights)
    result = np.full((max(len(w), len(targets)), x.shape[-1]), np.nan)
    for kept, columns in finite_groups(x, targets):
        basis = orthonormal(given, kept)
        if kept.sum() < basis.shape[1] + 2:
            continue
        known, target = (
            x[..., kept, :][..., columns],
            residuals(targets[..., kept, None], basis)[..., 0],
        )
        for rows in slices(len(result), len(basis) * max(basis.shape[1], len(columns))):
            own = residuals(known if x.ndim == 2 else known[rows], basis)
            result[rows, columns] = _weighted(
                own, _drawn(target, rows), basis, _drawn(w, rows)[:, kept]
            )
    return result[0] if weights is None and np.ndim(y) == 1 else result


def _drawn(values: Array, rows: slice) -> Array:
    return values if len(values) == 1 else values[rows]


def pearson(x: ArrayLike, y: ArrayLike) -> float:
    """Linear correlation of two columns (n,), NaN where undefined; Du et al. 2024, equation (7)."""
    return float(partial_correlation(x, y)[0])


def checked(
    x: ArrayLike, y: ArrayLike, weights: Array | None
) -> tuple[Array, Array, Array]:
    """Measures as (n, M) or (B, n, M), target as (1, n) or (B, n), weights as (B, n)."""
    x, y = np.asarray(x, dtype=float), np.atleast_2d(np.asarray(y, dtype=float))
    return (
        x[:, None] if x.ndim == 1 else x,
        y,
        np.ones((1, y.shape[1])) if weights is None else np.asarray(weights),
    )


def finite_groups(
    x: Array, y: Array
) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.intp]]]:
    """Measures known for the same models: the (n,) mask of these, and the numbers of the columns."""
    known = np.isfinite(x) if x.ndim == 2 else np.isfinite(x).any(0)
    known &= np.isfinite(y).any(0)[:, None]
    masks, groups = np.unique(known, axis=1, return_inverse=True)
    for group, mask in enumerate(masks.T):
        yield mask, np.flatnonzero(groups == group)


def orthonormal(given: Array | None, kept: NDArray[np.bool_]) -> Array:
    """Orthonormal columns (models kept, rank) that span the given columns and the intercept."""
    count = int(kept.sum())
    columns = (
        np.ones((count, 1))
        if given is None
        else np.column_stack([np.ones(count), given[kept]])
    )
    basis, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    return basis[:, sizes > 1e-9 * sizes[:1]]


def residuals(values: Array, basis: Array) -> Array:
    """What is left of each column (..., n, M) without its projection on the basis, to a mean square of 1; NaN where it is rounding."""
    if not values.size:
        return values
    values = values / np.where(
        (largest := np.abs(values).max(-2, keepdims=True)) > 0, largest, 1
    )
    centred = values - values.mean(-2, keepdims=True)
    left = centred - basis @ (basis.T @ centred)
    left -= basis @ (basis.T @ left)  # once more, against the rounding of the first
    size, before = (
        np.sqrt((part**2).mean(-2, keepdims=True)) for part in (left, centred)
    )
    return left / np.where((size > 1e-9 * before) & (before > 1e-12), size, np.nan)


def _weighted(x: Array, y: Array, basis: Array, w: Array) -> Array:
    """Partial correlation in each draw of residuals (n, M) or (b, n, M) and (1 or b, n)."""
    left = w[:, None, :] * basis.T
    roots, vectors = np.linalg.eigh(left @ basis)
    # A level of which the draw holds no model has root 0.
    white = (
        vectors
        * np.where(
            roots > 1e-9 * roots[:, -1:], 1 / np.sqrt(np.maximum(roots, 1e-300)), 0
        )[:, None, :]
    )
    of_x, of_y = white.mT @ (left @ x), (white.mT @ (left @ y[..., None]))
    squares_x = (w[:, None] @ x**2)[:, 0] - (of_x**2).sum(1)
    squares_y = ((w * y**2).sum(1) - (of_y[..., 0] ** 2).sum(1))[:, None]
    products = ((w * y)[:, None] @ x)[:, 0] - (of_x * of_y).sum(1)
    least = 1e-10 * w.sum(1)[:, None]  # the residuals' mean square is 1 in all models
    defined = (squares_x > least) & (squares_y > least)
    return np.clip(
        products / np.sqrt(np.where(defined, squares_x * squares_y, np.nan)), -1, 1
    )


def kendall(x: ArrayLike, y: ArrayLike, weights: Array | None = None) -> Array:
    """Rank correlation tau-b (Kendall 1945), exact in every draw of whole weights, two copies of a model tied; NaN below 3 models."""
    signed, differ_x, differ_y, _ = pair_counts(x, y, weights)
    return signed / np.sqrt(
        np.where((product := differ_x * differ_y) > 0, product, np.nan)
    )


def gamma(x: ArrayLike, y: ArrayLike, weights: Array | None = None) -> Array:
    """Rank correlation over the pairs of models that tie in neither, ``(C - D) / (C + D)`` (Goodman and Kruskal 1954); see ``kendall``."""
    signed, _, _, differ = pair_counts(x, y, weights)
    return signed / np.where(differ > 0, differ, np.nan)


def pair_counts(x: ArrayLike, y: ArrayLike, weights: Array | None = None) -> Array:
    """Weighted counts of pairs: concordant minus discordant, unequal in x, in y, and in both: (4, B, M); NaN below 3 models.

    (4, M) of one target without weights.
    """
    x, targets, w = checked(x, y, weights)
    x = np.where(np.isfinite(targets).all(0)[:, None], x, np.nan)
    counts = np.full((4, max(len(w), len(targets)), x.shape[-1]), np.nan)
    if x.ndim == 3:
        for draw, drawn in enumerate(w > 0):
            counts[:, [draw]] = _counted(
                x[draw, drawn],
                _drawn(targets, slice(draw, draw + 1))[:, drawn],
                w[[draw]][:, drawn],
            )
    elif len(x) > 2:
        for columns in slices(x.shape[1], len(x) ** 2, 25 * _ENTRIES):
            counts[:, :, columns] = _counted(x[:, columns], targets, w)
    return counts[:, 0] if weights is None and np.ndim(y) == 1 else counts


def _counted(x: Array, y: Array, w: Array) -> Array:
    """The four counts of measures (n, M), 0 below 3 models; sums of products of whole weights are exact in float32 up to 16.7 million."""
    found = np.zeros((4, max(len(y), len(w)), x.shape[1]))
    for kept, columns in finite_groups(x, y):
        if kept.sum() < 3:
            continue
        own, (one, other) = (
            x[np.ix_(kept, columns)],
            np.triu_indices(int(kept.sum()), 1),
        )
        signs = np.subtract(
            own[one] > own[other], own[one] < own[other], dtype=np.float32
        )
        unequal = np.abs(signs)
        for rows in slices(found.shape[1], len(one)):
            weight, target = (
                _drawn(part, rows)[:, kept] for part in (w.astype(np.float32), y)
            )
            pairs = weight[:, one] * weight[:, other]
            order = pairs * np.subtract(
                target[:, one] > target[:, other],
                target[:, one] < target[:, other],
                dtype=np.float32,
            )
            differ = np.abs(order)
            sums = (
                order @ signs,
                pairs @ unequal,
                differ.sum(1, keepdims=True),
                differ @ unequal,
            )
            for number, values in enumerate(sums):
                found[number][rows, columns] = values
    return found
