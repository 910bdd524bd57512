"""Linear, partial and rank correlation of many measures with a target, at once.

A measure is a column of values (n, M), or (B, n, M) where they differ between draws of
the bootstrap. Weights (B, n) count how often each model is in each draw; without
weights each counts once. A value that is not finite leaves a model out for that measure
alone.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Codes = NDArray[np.int64]

_ENTRIES = 4_000_000  # numbers in a temporary array


def slices(count: int, size: int, entries: int = _ENTRIES) -> Iterator[slice]:
    """Divide rows into slices whose temporary arrays are not too large.

    Args:
        count: number of rows.
        size: numbers in a row of the temporary array.
        entries: largest size of the array; a slice has at least one row.

    Example:
        >>> list(slices(5, 10, entries=20))
        [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]
    """
    step = max(1, entries // max(1, size))
    return (slice(start, start + step) for start in range(0, count, step))


def finite_mean(values: Array) -> Array:
    """Mean of the finite values over the first axis.

    Args:
        values: (n, ...).

    Returns:
        (...), NaN where nothing is finite.

    Example:
        >>> finite_mean(np.array([[1.0, np.nan], [3.0, np.nan]]))
        array([ 2., nan])
    """
    is_finite = np.isfinite(values)
    counts = is_finite.sum(0)
    sums = np.where(is_finite, values, 0).sum(0)
    return sums / np.where(counts > 0, counts, np.nan)


def level_codes(values: ArrayLike) -> Codes:
    """Number the levels of a hyperparameter.

    Args:
        values: (n,), one a model.

    Returns:
        (n,) from 0, in the order of appearance; levels of floats by their size.

    Example:
        >>> level_codes(["sgd", "adam", "sgd"])
        array([0, 1, 0])
    """
    column = pd.Series(values).infer_objects()
    is_float = column.dtype.kind == "f"
    return pd.factorize(column, sort=is_float)[0].astype(np.int64)


def design(
    models: pd.DataFrame,
    categorical: Sequence[str] = (),
    linear: Sequence[str] = (),
    *,
    all_levels: bool = False,
) -> Array:
    """Columns to hold fixed.

    Args:
        models: a row per model.
        categorical: hyperparameters, each an indicator of every level but the first.
        linear: numbers, which are standardised.
        all_levels: of a hyperparameter with more than two levels the first has an
            indicator, too. A ridge regression penalises slopes, so without it what is
            predicted would depend on which level comes first.

    Returns:
        (n, k) without an intercept.
    """
    columns = [np.empty((len(models), 0))]
    for name in categorical:
        codes = level_codes(models[name])
        highest = codes.max(initial=0)
        first = 0 if all_levels and highest > 1 else 1
        levels = np.arange(first, highest + 1)
        columns.append(np.equal.outer(codes, levels).astype(float))
    for name in linear:
        values = models[name].to_numpy(dtype=float)
        if len(values):
            values = (values - values.mean()) / (values.std() or 1)
        columns.append(values[:, None])
    return np.hstack(columns)


def partial_correlation(
    x: ArrayLike,
    y: ArrayLike,
    covariates: Array | None = None,
    weights: Array | None = None,
) -> Array:
    """Pearson's r of measures with a target, given other columns.

    Correlates the residuals of both after least squares on ``covariates`` and an
    intercept. Without ``covariates`` it is equation (7) of Du, Zhou and Dai 2024.

    Args:
        x: (n, M) measures, or (B, n, M).
        y: (n,) target, or (B, n).
        covariates: (n, k) columns to hold fixed, see ``design``.
        weights: (B, n) whole numbers; a weight counts as repeated rows.

    Returns:
        (B, M), or (M,) of one target without weights, in [-1, 1]; NaN without a degree
        of freedom or without a residual.
    """
    x, targets, weight = full_shapes(x, y, weights)
    result = np.full((max(len(weight), len(targets)), x.shape[-1]), np.nan)
    for is_finite, columns in finite_groups(x, targets):
        basis = orthonormal(covariates, is_finite)
        rank = basis.shape[1]
        if is_finite.sum() < rank + 2:
            continue
        # (models, measures of the group), or (B, models, measures of the group)
        measures = x[..., is_finite, :][..., columns]
        target_residuals = residuals(targets[..., is_finite, None], basis)[..., 0]
        numbers_per_draw = len(basis) * max(rank, len(columns))
        for draws in slices(len(result), numbers_per_draw):
            measures_of_draws = measures if x.ndim == 2 else measures[draws]
            result[draws, columns] = _weighted(
                residuals(measures_of_draws, basis),
                _select_draws(target_residuals, draws),
                basis,
                _select_draws(weight, draws)[:, is_finite],
            )
    return result[0] if weights is None and np.ndim(y) == 1 else result


def _select_draws(values: Array, draws: slice) -> Array:
    """Rows of some draws; a single row holds the values of all draws."""
    return values if len(values) == 1 else values[draws]


def pearson(x: ArrayLike, y: ArrayLike) -> float:
    """Linear correlation of two columns; Du et al. 2024, equation (7).

    Args:
        x: (n,).
        y: (n,).

    Returns:
        In [-1, 1], NaN where undefined.

    Example:
        >>> pearson([1, 2, 3], [2, 4, 6])
        1.0
    """
    return float(partial_correlation(x, y)[0])


def full_shapes(
    x: ArrayLike, y: ArrayLike, weights: Array | None
) -> tuple[Array, Array, Array]:
    """Measures, target and weights in their full shapes.

    Args:
        x: (n,) or (n, M) measures, or (B, n, M).
        y: (n,) target, or (B, n).
        weights: (B, n); None counts each model once.

    Returns:
        Measures (n, M) or (B, n, M), target (1, n) or (B, n), weights (1, n) or (B, n).
    """
    measures = np.asarray(x, dtype=float)
    if measures.ndim == 1:
        measures = measures[:, None]
    targets = np.atleast_2d(np.asarray(y, dtype=float))
    if weights is None:
        return measures, targets, np.ones((1, targets.shape[1]))
    return measures, targets, np.asarray(weights)


def finite_groups(
    x: Array, y: Array
) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.intp]]]:
    """Groups of measures that are finite for the same models.

    Args:
        x: (n, M) or (B, n, M).
        y: (B, n).

    Yields:
        The (n,) mask of the models that are finite in any draw, and the numbers of the
        columns. In a draw where one of these models is not finite, the correlation is
        undefined.
    """
    is_finite = np.isfinite(x) if x.ndim == 2 else np.isfinite(x).any(0)
    is_finite &= np.isfinite(y).any(0)[:, None]
    masks, groups = np.unique(is_finite, axis=1, return_inverse=True)
    for group, mask in enumerate(masks.T):
        yield mask, np.flatnonzero(groups == group)


def orthonormal(covariates: Array | None, rows: NDArray[np.bool_]) -> Array:
    """Orthonormal columns that span covariates and the intercept.

    Args:
        covariates: (n, k), or None for the intercept alone.
        rows: (n,) models that are taken.

    Returns:
        (models taken, rank).
    """
    columns = np.ones((int(rows.sum()), 1))
    if covariates is not None:
        columns = np.hstack([columns, covariates[rows]])
    basis, singular_values, _ = np.linalg.svd(columns, full_matrices=False)
    largest = singular_values.max(initial=0)
    return basis[:, singular_values > 1e-9 * largest]


def residuals(values: Array, basis: Array) -> Array:
    """Residuals of each column: what remains without its projection on a basis.

    Args:
        values: (..., n, M).
        basis: (n, k) orthonormal, with the intercept in its span.

    Returns:
        (..., n, M) with a mean square of 1; NaN where only rounding is left.
    """
    if not values.size:
        return values
    largest = np.abs(values).max(-2, keepdims=True)
    values = values / np.where(largest > 0, largest, 1)
    centred = values - values.mean(-2, keepdims=True)
    rest = centred - basis @ (basis.T @ centred)
    rest -= basis @ (basis.T @ rest)  # once more, against the rounding of the first
    size = np.sqrt((rest**2).mean(-2, keepdims=True))
    before = np.sqrt((centred**2).mean(-2, keepdims=True))
    is_defined = (size > 1e-9 * before) & (before > 1e-12)
    return rest / np.where(is_defined, size, np.nan)


def _weighted(x: Array, y: Array, basis: Array, weights: Array) -> Array:
    """Partial correlation in each draw.

    Args:
        x: (n, M) or (b, n, M) residuals in all models.
        y: (1 or b, n) residuals.
        basis: (n, k) orthonormal.
        weights: (1 or b, n).

    Returns:
        (b, M).
    """
    weighted_basis = weights[:, None, :] * basis.T  # (b, k, n)
    eigenvalues, vectors = np.linalg.eigh(weighted_basis @ basis)  # Gram matrix W
    # A level without a model in the draw has eigenvalue 0.
    is_positive = eigenvalues > 1e-9 * eigenvalues[:, -1:]
    scales = 1 / np.sqrt(np.maximum(eigenvalues, 1e-300))
    # whitening @ whitening.mT is the (pseudo)inverse of W.
    whitening = vectors * np.where(is_positive, scales, 0)[:, None, :]
    fitted_x = whitening.mT @ (weighted_basis @ x)  # (b, k, M)
    fitted_y = whitening.mT @ (weighted_basis @ y[..., None])  # (b, k, 1)
    # Sums of squares and products of the residuals of weighted least squares: the
    # weighted sums less those of the fitted values.
    sums_x = (weights[:, None] @ x**2)[:, 0]  # (b, M)
    sums_y = (weights * y**2).sum(1)  # (b,)
    sums_xy = ((weights * y)[:, None] @ x)[:, 0]  # (b, M)
    squares_x = sums_x - (fitted_x**2).sum(1)
    squares_y = sums_y - (fitted_y[..., 0] ** 2).sum(1)
    products = sums_xy - (fitted_x * fitted_y).sum(1)
    # The residuals' mean square is 1 in all models.
    least = 1e-10 * weights.sum(1)[:, None]
    squares_y = squares_y[:, None]
    is_defined = (squares_x > least) & (squares_y > least)
    scale = np.sqrt(np.where(is_defined, squares_x * squares_y, np.nan))
    return np.clip(products / scale, -1, 1)


def kendall(x: ArrayLike, y: ArrayLike, weights: Array | None = None) -> Array:
    """Rank correlation tau-b (Kendall 1945), exact in every draw of whole weights.

    Two copies of a model in a draw are tied.

    Args:
        x: (n, M) measures, or (B, n, M).
        y: (n,) target, or (B, n).
        weights: (B, n) whole numbers.

    Returns:
        (B, M), or (M,) of one target without weights, in [-1, 1]; NaN below 3 models
        and where all are tied.

    Example:
        >>> kendall([1, 2, 3, 4], [1, 2, 4, 3]).round(3)
        array([0.667])
    """
    signed, differ_x, differ_y, _ = pair_counts(x, y, weights)
    product = differ_x * differ_y
    return signed / np.sqrt(np.where(product > 0, product, np.nan))


def gamma(x: ArrayLike, y: ArrayLike, weights: Array | None = None) -> Array:
    """Rank correlation over the pairs that tie in neither column.

    ``(C - D) / (C + D)`` of concordant and discordant pairs (Goodman and Kruskal 1954).

    Args:
        x: see ``kendall``.
        y: see ``kendall``.
        weights: see ``kendall``.

    Returns:
        As ``kendall``; NaN where every pair ties.
    """
    signed, _, _, differ = pair_counts(x, y, weights)
    return signed / np.where(differ > 0, differ, np.nan)


def pair_counts(x: ArrayLike, y: ArrayLike, weights: Array | None = None) -> Array:
    """Weighted counts of pairs of models.

    Args:
        x: (n, M) measures, or (B, n, M).
        y: (n,) target, or (B, n).
        weights: (B, n) whole numbers.

    Returns:
        (4, B, M), or (4, M) of one target without weights: concordant minus discordant
        pairs, pairs unequal in x, in y, and in both. NaN where a measure is finite for
        fewer than three models.
    """
    x, targets, weight = full_shapes(x, y, weights)
    # A model whose target is undefined in any draw is left out of all draws.
    x = np.where(np.isfinite(targets).all(0)[:, None], x, np.nan)
    counts = np.full((4, max(len(weight), len(targets)), x.shape[-1]), np.nan)
    if x.ndim == 3:
        for draws in slices(len(x), x.shape[2] * x.shape[1] ** 2):
            target = _select_draws(targets, draws)
            counts[:, draws] = _count_pairs_in_draws(x[draws], target, weight[draws])
    elif len(x) > 2:
        # Wide slices, since each computes the pairs of all draws again.
        for columns in slices(x.shape[1], len(x) ** 2, 25 * _ENTRIES):
            counts[:, :, columns] = _count_pairs(x[:, columns], targets, weight)
    return counts[:, 0] if weights is None and np.ndim(y) == 1 else counts


def _count_pairs_in_draws(x: Array, y: Array, weights: Array) -> Array:
    """The four counts of measures that differ between draws, 0 below 3 models.

    Args:
        x: (B, n, M), NaN where a model has no value.
        y: (1 or B, n).
        weights: (B, n), how often each model is in each draw.

    Returns:
        (4, B, M).
    """
    first, second = np.triu_indices(x.shape[1], 1)
    pairs = weights[:, first] * weights[:, second]  # (B, pairs)
    order_y = _order(y.T, first, second).T
    counts = np.zeros((4, len(x), x.shape[2]))
    for column in range(x.shape[2]):
        values = x[:, :, column]
        is_finite = np.isfinite(values)
        both_finite = is_finite[:, first] & is_finite[:, second]
        weight = np.where(both_finite, pairs, 0).astype(np.float32)  # (B, pairs)
        order_x = _order(values.T, first, second).T
        signed = weight * order_y
        # Draws of two models or fewer have no rank correlation.
        enough = ((weights > 0) & is_finite).sum(1) >= 3
        counts[0, enough, column] = (signed * order_x).sum(1)[enough]
        counts[1, enough, column] = (weight * np.abs(order_x)).sum(1)[enough]
        counts[2, enough, column] = np.abs(signed).sum(1)[enough]
        counts[3, enough, column] = np.abs(signed * order_x).sum(1)[enough]
    return counts


def _count_pairs(x: Array, y: Array, weights: Array) -> Array:
    """The four counts of measures (n, M), 0 below 3 models.

    Sums of products of whole weights are exact in float32 up to 16.7 million.
    """
    counts = np.zeros((4, max(len(y), len(weights)), x.shape[1]))
    for is_finite, columns in finite_groups(x, y):
        n = int(is_finite.sum())
        if n < 3:
            continue
        first, second = np.triu_indices(n, 1)
        order_x = _order(x[np.ix_(is_finite, columns)], first, second)
        differ_x = np.abs(order_x)  # (pairs, M)
        for draws in slices(counts.shape[1], len(first)):
            weight = _select_draws(weights.astype(np.float32), draws)[:, is_finite]
            pairs = weight[:, first] * weight[:, second]  # (draws, pairs)
            target = _select_draws(y, draws)[:, is_finite]
            order_y = pairs * _order(target.T, first, second).T
            differ_y = np.abs(order_y)
            counts[0][draws, columns] = order_y @ order_x
            counts[1][draws, columns] = pairs @ differ_x
            counts[2][draws, columns] = differ_y.sum(1, keepdims=True)
            counts[3][draws, columns] = differ_y @ differ_x
    return counts


def _order(
    values: Array, first: NDArray[np.intp], second: NDArray[np.intp]
) -> NDArray[np.float32]:
    """Order in each pair of rows of (n, k) values: (pairs, k) of -1, 0 and 1."""
    is_larger = values[first] > values[second]
    is_smaller = values[first] < values[second]
    return np.subtract(is_larger, is_smaller, dtype=np.float32)
