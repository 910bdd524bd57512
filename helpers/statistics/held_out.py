"""Errors of the gaps of held-out networks, as ridge regressions predict them."""

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from helpers.statistics.correlate import Array, Rows, same_models, scaled

PENALTIES = np.logspace(-2, 4, 13)
FEWEST_FOLDS = 3


def random_folds(
    groups: ArrayLike, folds: int = 10, deals: int = 30, seed: int = 0
) -> Rows:
    """Deal whole groups at random into folds.

    Args:
        groups: (n,) names.
        folds: number of folds, fewer if there are fewer groups.
        deals: number of random divisions.
        seed: of the divisions.

    Returns:
        (deals, n) fold of each model.
    """
    codes, names = pd.factorize(np.asarray(groups))
    numbers = np.arange(len(names)) % max(1, min(folds, len(names)))
    random = np.random.default_rng(seed)
    return np.stack([random.permutation(numbers)[codes] for _ in range(deals)])


def predict_gaps(predictors: Array, gap: Array, is_new: ArrayLike) -> Array:
    """Gaps of new networks by ridge regressions (Hoerl and Kennard 1970).

    Columns are standardised; the penalty is that with the least leave-one-out error.
    Equal to ``RidgeCV`` of scikit-learn, for many regressions at once.

    Args:
        predictors: (..., n, k) columns of all networks.
        gap: (n,) their gaps, fractions; those of new networks are not read.
        is_new: (n,) the networks whose gaps are predicted from the others.

    Returns:
        (..., m) in [-1, 1], of the m new networks.
    """
    columns = scaled(predictors)
    x = columns[..., ~is_new, :]
    centre = x.mean(-2, keepdims=True)
    spread = x.std(-2, keepdims=True)
    columns = (columns - centre) / np.where(spread > 1e-12, spread, 1)
    x = columns[..., ~is_new, :]
    mean = gap[~is_new].mean()
    centred = gap[~is_new] - mean
    left, sizes, right = np.linalg.svd(x, full_matrices=False)
    # One decomposition serves all penalties: (..., k, penalties)
    sizes = sizes[..., None]
    shrinkage = sizes / (sizes**2 + PENALTIES)
    slopes = (left.mT @ centred)[..., None] * shrinkage
    # A leave-one-out residual is that of the fit over 1 - leverage.
    leverage = 1 / len(centred) + left**2 @ (sizes * shrinkage)
    residuals = (centred[:, None] - left @ (sizes * slopes)) / (1 - leverage)
    best = (residuals**2).mean(-2).argmin(-1)[..., None, None]
    coefficients = right.mT @ np.take_along_axis(slopes, best, -1)
    new = columns[..., is_new, :] @ coefficients
    return (mean + new[..., 0]).clip(-1, 1)


def held_out_errors(predictors: Array, gap: Array, folds: ArrayLike) -> Array:
    """Absolute errors of the gaps of held-out networks, in points.

    Args:
        predictors: (..., n, k).
        gap: (n,) fractions.
        folds: (n,) fold of each network, or (D, n) of D divisions, over which errors
            are averaged.

    Returns:
        (..., n); NaN with fewer than ``FEWEST_FOLDS`` folds.
    """
    deals = np.atleast_2d(folds)
    errors = np.zeros(predictors.shape[:-1])
    for deal in deals:
        numbers = np.unique(deal)
        if len(numbers) < FEWEST_FOLDS:
            return np.full(errors.shape, np.nan)
        for number in numbers:
            out = deal == number
            predicted = predict_gaps(predictors, gap, out)
            errors[..., out] += 100 * np.abs(gap[out] - predicted) / len(deals)
    return errors


def errors_with(predictors: Array, x: Array, gap: Array, folds: Rows) -> Array:
    """Errors of held-out gaps by predictors and one measure, for each measure.

    Args:
        predictors: (n, k) columns that each measure is added to.
        x: (n, M) measures, NaN where a network has none: it is left out. A measure that
            is 0 adds nothing.
        gap: (n,) fractions.
        folds: (n,) or (D, n), see ``held_out_errors``.

    Returns:
        (n, M) in points.
    """
    errors = np.full(x.shape, np.nan)
    for rows, columns in same_models(np.isfinite(x)):
        measures = x[np.ix_(rows, columns)].T[..., None]  # (M, n, 1)
        shape = (len(columns), *predictors[rows].shape)
        known = np.broadcast_to(predictors[rows], shape)
        both = np.concatenate([known, measures], axis=-1)
        held_out = held_out_errors(both, gap[rows], folds[..., rows])
        errors[np.ix_(rows, columns)] = held_out.T
    return errors
