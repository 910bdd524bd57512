"""Correlations as functions of values and weights: linear, partial and rank correlation of many measures in many draws at once.

A measure is a column of values (n, M), or has other values in every draw (B, n, M), as where its images are drawn. Weights (B, n) count how
often each model is in each draw; without weights every model counts once. NaN drops a model for that measure alone.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import scipy.stats
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Codes = NDArray[np.int64]

PAIR_LIMIT = 4_000  # models; above, the table of all pairs is not built
_ENTRIES = 4_000_000  # numbers in a temporary array


def level_codes(name: str, values: ArrayLike) -> Codes:
    """Number the levels of a hyperparameter: (n,) values -> (n,) codes from 0; floats are equal within 1e-9, relative.

    Raises:
        ValueError: values are missing.
    """
    column = pd.Series(values)
    if column.isna().any():
        raise ValueError(f"hyperparameter {name!r} has {int(column.isna().sum())} missing values; every model needs one")
    values = column.infer_objects().to_numpy()
    if values.dtype.kind != "f":
        return pd.factorize(values)[0].astype(np.int64)
    levels, codes = np.unique(values, return_inverse=True)
    # A learning rate that was computed in two ways is one level.
    return np.cumsum(np.diff(levels, prepend=levels[:1]) > 1e-9 * np.abs(levels))[codes]


def design(models: pd.DataFrame, categorical: Sequence[str] = (), linear: Sequence[str] = ()) -> Array:
    """Columns to hold fixed (n, k): one indicator per level of each categorical column but its first, and the linear ones standardised.

    Levels are those of ``level_codes``. The intercept is not among the columns; whoever fits adds it.

    Raises:
        ValueError: a column that is absent or has values that are missing or infinite.
    """
    columns = [np.empty((len(models), 0))]
    for name in (*categorical, *linear):
        if name not in models:
            raise ValueError(f"the models have no column {name!r} to hold fixed; they have {', '.join(map(str, models.columns))}")
    for name in categorical:
        codes = level_codes(name, models[name])
        columns.append(np.equal.outer(codes, np.arange(1, codes.max(initial=0) + 1)).astype(float))
    for name in linear:
        number = models[name].to_numpy(dtype=float)
        if missing := int((~np.isfinite(number)).sum()):
            raise ValueError(f"{missing} models have no finite {name!r}; every model needs one, so leave these models out before")
        columns.append(((number - number.mean()) / (number.std() or 1))[:, None])
    return np.hstack(columns)


def partial_correlation(x: ArrayLike, y: ArrayLike, given: Array | None = None, weights: Array | None = None) -> Array:
    """Correlation of each measure with a target, least squares on the ``given`` columns and an intercept taken out of both.

    Without ``given`` it is Pearson's r. With weights the regression is weighted too, so that a draw that holds a model twice gives what
    the repeated rows would give.

    Args:
        x: (n,) or (n, M) measures, or (B, n, M) where they differ between draws.
        y: (n,) target, or (B, n).
        given: (n, k), see ``design``.
        weights: (B, n), not negative; None counts every model once.

    Returns:
        (B, M) in [-1, 1], or (M,) without weights. NaN with no degree of freedom (n < rank + 2, the intercept in the rank), and where a
        residual vanishes to rounding, as for a constant.

    Raises:
        ValueError: shapes that do not agree.
    """
    x, y, w = checked(x, y, weights)
    result = np.full((len(w), x.shape[-1]), np.nan)
    for kept, columns in finite_groups(x, y):
        basis = orthonormal(given, kept)
        if kept.sum() < basis.shape[1] + 2:
            continue
        known, target = x[..., kept, :][..., columns], residuals(y[..., kept, None], basis)[..., 0]
        values = residuals(known, basis) if x.ndim == 2 else None
        step = max(1, _ENTRIES // (len(basis) * max(basis.shape[1], len(columns))))
        for start in range(0, len(w), step):
            rows = slice(start, start + step)
            own = residuals(known[rows], basis) if values is None else values
            result[rows, columns] = _weighted(own, target if len(target) == 1 else target[rows], basis, w[rows][:, kept])
    return result if weights is not None else result[0]


def pearson(x: ArrayLike, y: ArrayLike) -> float:
    """Linear correlation of one measure (n,) with one target (n,), NaN where undefined; Du et al. 2024, equation (7)."""
    return float(partial_correlation(x, y)[0])


def checked(x: ArrayLike, y: ArrayLike, weights: Array | None) -> tuple[Array, Array, Array]:
    """Measures as (n, M) or (B, n, M), target as (1, n) or (B, n), weights as (B, n); a ValueError where they do not agree."""
    x, y = np.asarray(x, dtype=float), np.atleast_2d(np.asarray(y, dtype=float))
    x = x[:, None] if x.ndim == 1 else x
    w = np.ones((1, y.shape[1])) if weights is None else np.asarray(weights)
    if x.ndim not in (2, 3) or w.ndim != 2 or not x.shape[-2] == y.shape[1] == w.shape[1]:
        raise ValueError(f"measures, target and weights need the same models, got shapes {x.shape}, {y.shape} and {w.shape}")
    if len(y) not in (1, len(w)) or (x.ndim == 3 and len(x) != len(w)):
        raise ValueError(f"values that differ between draws need {len(w)} draws as the weights, got shapes {x.shape} and {y.shape}")
    return x, y, w


def finite_groups(x: Array, y: Array) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.intp]]]:
    """Groups of measures that are known for the same models: the (n,) mask of these, and the numbers of the columns."""
    known = np.isfinite(x) if x.ndim == 2 else np.isfinite(x).any(0)
    known &= np.isfinite(y).any(0)[:, None]
    groups = pd.factorize(np.array([np.packbits(column).tobytes() for column in known.T], dtype=object))[0]
    for group in range(groups.max(initial=-1) + 1):
        columns = np.flatnonzero(groups == group)
        yield known[:, columns[0]], columns


def orthonormal(given: Array | None, kept: NDArray[np.bool_]) -> Array:
    """Orthonormal columns (models kept, rank) that span the given columns and the intercept."""
    count = int(kept.sum())
    columns = np.ones((count, 1)) if given is None else np.column_stack([np.ones(count), given[kept]])
    if not count:
        return columns
    basis, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    return basis[:, sizes > 1e-9 * sizes[0]]


def residuals(values: Array, basis: Array) -> Array:
    """What is left of each column (..., n, M) without its projection on the basis, to a mean square of 1; NaN where it is rounding."""
    values = values / np.where((largest := np.abs(values).max(-2, keepdims=True)) > 0, largest, 1)
    centred = values - values.mean(-2, keepdims=True)
    left = centred - basis @ (basis.T @ centred)
    left -= basis @ (basis.T @ left)  # once more, against the rounding of the first
    size, before = (np.sqrt((part**2).mean(-2, keepdims=True)) for part in (left, centred))
    return left / np.where((size > 1e-9 * before) & (before > 1e-12), size, np.nan)


def _weighted(x: Array, y: Array, basis: Array, w: Array) -> Array:
    """Partial correlation in each draw of residuals (n, M) or (b, n, M) with residuals (1 or b, n)."""
    left = w[:, None, :] * basis.T
    roots, vectors = np.linalg.eigh(left @ basis)
    # A level of which the draw holds no model has root 0.
    white = vectors * np.where(roots > 1e-9 * roots[:, -1:], 1 / np.sqrt(np.maximum(roots, 1e-300)), 0)[:, None, :]
    of_x, of_y = white.mT @ (left @ x), (white.mT @ (left @ y[..., None]))
    squares_x = (w @ x**2 if x.ndim == 2 else (w[:, None] @ x**2)[:, 0]) - (of_x**2).sum(1)
    squares_y = ((w * y**2).sum(1) - (of_y[..., 0] ** 2).sum(1))[:, None]
    products = ((w * y) @ x if x.ndim == 2 else ((w * y)[:, None] @ x)[:, 0]) - (of_x * of_y).sum(1)
    least = 1e-10 * w.sum(1)[:, None]  # the residuals' mean square is 1 in all models
    defined = (squares_x > least) & (squares_y > least)
    return np.clip(products / np.sqrt(np.where(defined, squares_x * squares_y, np.nan)), -1, 1)


def kendall(x: ArrayLike, y: ArrayLike, weights: Array | None = None) -> Array:
    """Rank correlation tau-b of each measure with a target, exact in every draw: ``(C - D) / sqrt(U_x U_y)``; Kendall 1945.

    C and D count concordant and discordant pairs of models, U those that differ in x, or in y. Two copies of one model tie.

    Args and result as for ``partial_correlation``, for whole weights; with weights NaN above ``PAIR_LIMIT`` models. NaN for fewer than 3
    models or a constant.
    """
    if weights is None:
        x, y, _ = checked(x, y, None)
        known = np.isfinite(x) & np.isfinite(y[0])[:, None]
        pairs = ((column[kept], y[0][kept]) for column, kept in zip(x.T, known.T, strict=True))
        return np.array([scipy.stats.kendalltau(*pair).statistic if len(pair[0]) > 2 else np.nan for pair in pairs])
    signed, differ_x, differ_y, _ = pair_sums(x, y, weights)
    return signed / np.sqrt(np.where((product := differ_x * differ_y) > 0, product, np.nan))


def gamma(x: ArrayLike, y: ArrayLike, weights: Array | None = None) -> Array:
    """Rank correlation over the pairs of models that tie in neither, ``(C - D) / (C + D)``, in every draw; Goodman and Kruskal 1954.

    Args and result as for ``kendall``. A measure picks the smaller gap of two in a fraction of ``(1 - gamma) / 2`` of the pairs when larger
    is better, and ``(1 + gamma) / 2`` when smaller is.
    """
    signed, _, _, differ = pair_sums(x, y, checked(x, y, weights)[2])
    found = signed / np.where(differ > 0, differ, np.nan)
    return found if weights is not None else found[0]


def pair_sums(x: ArrayLike, y: ArrayLike, weights: Array) -> tuple[Array, Array, Array, Array]:
    """Weighted counts over pairs of models in every draw: concordant minus discordant, unequal in x, in y, and in both; each (B, M).

    All NaN above ``PAIR_LIMIT`` models and below 3.
    """
    x, y, w = checked(x, y, weights)
    models, measures = x.shape[-2:]
    x = np.where(np.isfinite(y).all(0)[:, None], x, np.nan)
    sums = np.full((4, len(w), measures), np.nan)
    if x.ndim == 3 and 3 <= models <= PAIR_LIMIT:
        for draw in range(len(w)):
            sums[:, draw] = _pairs_of_draw(x[draw], y[0 if len(y) == 1 else draw], w[draw])
    elif 3 <= models <= PAIR_LIMIT:
        step = max(1, 25 * _ENTRIES // models**2)
        for start in range(0, measures, step):
            columns = slice(start, start + step)
            sums[..., columns] = _pairs_of_fixed(x[:, columns], y, w)
    # Products of whole weights are exact in single precision, and so are their sums, up to 16.7 million.
    return tuple(sums)


def _pairs_of_draw(x: Array, y: Array, w: Array) -> Array:
    """The four sums of one draw of measures (n, M), each unequal pair counted where its first model is the larger: (4, M)."""
    drawn = w > 0
    x, y, w = x[drawn].T, y[drawn], w[drawn].astype(np.float32)
    larger = (x[:, :, None] > x[:, None, :]).reshape(len(x), -1).astype(np.float32)
    pairs = np.multiply.outer(w, w)
    signs = np.subtract(y[:, None] > y, y[:, None] < y, dtype=np.float32)
    signed, differ_x, differ = (larger @ np.stack([pairs * signs, pairs, pairs * np.abs(signs)]).reshape(3, -1).T).T
    known = np.isfinite(x).astype(np.float32)
    differ_y = (known @ (pairs * (signs > 0)) * known).sum(1)
    return np.stack([signed, differ_x, differ_y, differ])


def _pairs_of_fixed(x: Array, y: Array, w: Array) -> Array:
    """The four sums of measures (n, M) that are the same in all draws, over the pairs of models, each once."""
    one, other = np.triu_indices(len(x), 1)
    known, signs = np.isfinite(x), _signs(x.T, one, other).T
    unequal = None if np.count_nonzero(signs) == signs.size else np.abs(signs)  # without a tie, which is the rule for measures
    both = None if known.all() else (known[one] & known[other]).astype(np.float32)
    sums, w, alone = np.empty((4, len(w), x.shape[1])), w.astype(np.float32), bool((w == 1).all())
    step = max(1, _ENTRIES // len(one))
    for start in range(0, len(w), step):
        rows = slice(start, start + step)
        order, own = _signs(y if len(y) == 1 else y[rows], one, other), w[rows]
        pairs = np.ones((1, 1), dtype=np.float32) if alone else own[:, one] * own[:, other]
        differ = pairs * np.abs(order)
        sums[0, rows] = (pairs * order) @ signs
        sums[2, rows] = differ.sum(1, dtype=float)[:, None] if both is None else differ @ both
        if unequal is None:
            sums[1, rows] = ((own.sum(1, dtype=float) ** 2 - (own**2).sum(1, dtype=float)) / 2)[:, None]
            sums[3, rows] = sums[2, rows]
        else:
            sums[1, rows], sums[3, rows] = unequal.sum(0, dtype=float) if alone else pairs @ unequal, differ @ unequal
    return sums


def _signs(values: Array, one: Codes, other: Codes) -> NDArray[np.float32]:
    """Sign of the difference of each pair, 0 where one is NaN: (K, n) -> (K, pairs)."""
    return np.subtract(values[:, one] > values[:, other], values[:, one] < values[:, other], dtype=np.float32)
