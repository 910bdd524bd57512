"""What predicts the gap of models that were not seen.

Hyperparameters, training accuracy and loss, and what a measure saves beside them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from helpers.statistics.bootstrap import CONFIGURATION, LEVEL, Bootstrap
from helpers.statistics.correlations import Array, design, finite_groups, finite_mean
from helpers.statistics.permutation import sign_flip_p

# How well a network fits its training images; measures must add something to it.
FIT = ("train_accuracy", "log_train_loss")
FOLDS = 10
DEALS = 30
FEWEST_FOLDS = 3
PENALTIES = np.logspace(-2, 4, 13)


def with_fit(models: pd.DataFrame) -> pd.DataFrame:
    """Add ``log_train_loss``, natural, of a loss of 1e-12 at least.

    Args:
        models: with train_loss.
    """
    loss = models["train_loss"].astype(float).clip(lower=1e-12)
    return models.assign(log_train_loss=np.log(loss))


def left_out_errors(predictors: Array, gap: Array, folds: ArrayLike) -> Array:
    """Absolute errors of gaps predicted by ridge regressions that never saw them.

    Hoerl and Kennard 1970. Columns are standardised, and the penalty with the least
    leave-one-out error is chosen, on the networks that a regression is fitted to.

    Args:
        predictors: (n, k) columns, or (M, n, k) of M regressions.
        gap: (n,) fractions.
        folds: (n,) numbers, or (D, n) of D deals, over which errors are averaged.

    Returns:
        (n,) or (M, n) in points; NaN with fewer than ``FEWEST_FOLDS`` folds.
    """
    predictors = np.asarray(predictors, dtype=float)
    gap = np.asarray(gap, dtype=float)
    folds = np.atleast_2d(folds)
    columns = predictors if predictors.ndim == 3 else predictors[None]
    errors = np.zeros(columns.shape[:2])
    for deal in folds:
        numbers = np.unique(deal)
        if len(numbers) < FEWEST_FOLDS:
            return np.full(predictors.shape[:-1], np.nan)
        for number in numbers:
            outside = deal == number
            new = predicted(columns[:, ~outside], gap[~outside], columns[:, outside])
            errors[:, outside] += 100 * np.abs(gap[outside] - new) / len(folds)
    return errors if predictors.ndim == 3 else errors[0]


def predicted(predictors: Array, gap: Array, new: Array) -> Array:
    """Gaps of new networks, by ridge regressions of the best penalty.

    Args:
        predictors: (n, k) columns, or (M, n, k), of the networks that are fitted to.
        gap: (n,) their gaps, fractions.
        new: (m, k) or (M, m, k), the same columns of the new networks.

    Returns:
        (m,) or (M, m) in [-1, 1].
    """
    if predictors.ndim == 2:
        return predicted(predictors[None], gap, new[None])[0]
    return np.clip(_ridge(predictors, gap, new), -1, 1)


def _ridge(x: Array, y: Array, new: Array) -> Array:
    """Predictions (M, m) at new (M, m, k) of regressions of (n,) on (M, n, k)."""
    if not x.shape[2]:
        return np.full(new.shape[:2], y.mean())
    largest = np.abs(x).max(1, keepdims=True)
    scale = np.where(largest > 0, largest, 1)  # squares of products of norms overflow
    mean = (x / scale).mean(1, keepdims=True)
    spread = (x / scale).std(1, keepdims=True)
    spread = np.where(spread > 1e-12 * np.abs(mean), spread, 1)
    x = (x / scale - mean) / spread
    new = (new / scale - mean) / spread
    centred = y - y.mean()
    sizes, axes = np.linalg.eigh(x.mT @ x)
    along = x @ axes  # (M, n, k)
    # (M, k, penalties)
    shrinkage = 1 / (np.maximum(sizes, 0)[..., None] + PENALTIES)
    slopes = (along.mT @ centred)[..., None] * shrinkage
    # Leave-one-out residuals from those of the fit and the diagonal of its
    # projection, the intercept's share 1/n in it.
    leverage = 1 / len(y) + along**2 @ shrinkage
    residuals = (centred[:, None] - along @ slopes) / (1 - leverage)
    best = (residuals**2).mean(1).argmin(1)
    chosen = axes @ np.take_along_axis(slopes, best[:, None, None], 2)
    return y.mean() + (new @ chosen)[..., 0]


def dealt_folds(
    groups: ArrayLike, deals: int = DEALS, seed: int = 0
) -> NDArray[np.int64]:
    """Deal whole groups into ``FOLDS`` folds, or as many as there are groups.

    Args:
        groups: (n,) names.
        deals: how often.
        seed: of the deals.

    Returns:
        (deals, n) numbers of folds.
    """
    codes, names = pd.factorize(np.asarray(groups))
    folds = np.arange(len(names)) % min(FOLDS, max(1, len(names)))
    random = np.random.default_rng(seed)
    return np.stack([random.permutation(folds)[codes] for _ in range(deals)])


def folds_of(bootstrap: Bootstrap, left_out: str) -> NDArray[np.int64]:
    """Deals into folds, (D, n): configurations ``DEALS`` times, other groups once.

    Args:
        bootstrap: the networks.
        left_out: ``CONFIGURATION``, whose values are dealt into folds at random, or
            another column, each value of which is left out once.
    """
    groups = bootstrap.models[left_out]
    if left_out == CONFIGURATION:
        return dealt_folds(groups, seed=bootstrap.seed)
    return pd.factorize(groups)[0][None]


@dataclass(frozen=True)
class Rivalry:
    """What a measure is put beside, and what that is held against."""

    predictors: Array  # (n, k) columns that the measure is put beside
    rival: Array | None = None  # (n, j) columns to be beaten; None is ``predictors``
    left_out: str = CONFIGURATION  # column whose groups are left out, see ``folds_of``
    alike: str = ""  # column whose groups change sign together; "" is ``left_out``


def saved_errors(
    bootstrap: Bootstrap,
    measures: Sequence[str],
    rivalry: Rivalry,
    level: float = LEVEL,
) -> pd.DataFrame:
    """By how much each measure lowers the error of the gap of networks left out.

    Args:
        bootstrap: n networks with measures and ``gap``.
        measures: columns.
        rivalry: what a measure is put beside and held against.
        level: of intervals.

    Returns:
        A row per measure: error_without (of the rival), error_with and
        saved_error_points, both with _low and _high, error_worst (of the group that
        is predicted worst) and saved_error_points_p, one-sided, by changing the signs
        of whole groups, not adjusted for the number of measures. In points; NaN where
        there are too few groups.
    """
    x = bootstrap.models[list(measures)].to_numpy(dtype=float)
    gap = bootstrap.models["gap"].to_numpy(dtype=float)
    without = np.full(x.shape, np.nan)
    beside = np.full(x.shape, np.nan)
    folds = folds_of(bootstrap, rivalry.left_out)
    rival = rivalry.predictors if rivalry.rival is None else rivalry.rival
    for rows, columns in finite_groups(x, gap[None]):
        alone = left_out_errors(rival[rows], gap[rows], folds[:, rows])
        without[np.ix_(rows, columns)] = alone[:, None]
        with_measure = np.stack(
            [
                np.column_stack([rivalry.predictors[rows], x[rows, column]])
                for column in columns
            ]
        )
        errors = left_out_errors(with_measure, gap[rows], folds[:, rows])
        beside[np.ix_(rows, columns)] = errors.T
    saved = without - beside
    with_mean, with_low, with_high = bootstrap.mean(beside, level)
    saved_mean, saved_low, saved_high = bootstrap.mean(saved, level)
    groups = bootstrap.models[rivalry.left_out].to_numpy()
    signs = bootstrap.models[rivalry.alike or rivalry.left_out]
    return pd.DataFrame(
        {
            "measure": list(measures),
            "error_without": finite_mean(without),
            "error_with": with_mean,
            "error_with_low": with_low,
            "error_with_high": with_high,
            "saved_error_points": saved_mean,
            "saved_error_points_low": saved_low,
            "saved_error_points_high": saved_high,
            "error_worst": pd.DataFrame(beside).groupby(groups).mean().max().to_numpy(),
            "saved_error_points_p": sign_flip_p(saved, signs, seed=bootstrap.seed),
        }
    )


def known_in_advance(bootstrap: Bootstrap, axes: Sequence[str]) -> pd.DataFrame:
    """Error of the predicted gap before any measure, in points.

    Args:
        bootstrap: n networks.
        axes: hyperparameters that vary.

    Returns:
        A row each for the mean, the fit (training accuracy and loss), hyperparameters,
        and both, with the interval of the error.
    """
    models = with_fit(bootstrap.models)
    predictors = {
        "mean": design(models),
        "fit": design(models, (), FIT),
        "hyperparameters": design(models, axes),
        "hyperparameters and fit": design(models, axes, FIT),
    }
    gap = models["gap"].to_numpy(dtype=float)
    folds = folds_of(bootstrap, CONFIGURATION)
    errors = np.column_stack(
        [left_out_errors(columns, gap, folds) for columns in predictors.values()]
    )
    mean, low, high = bootstrap.mean(errors)
    table = pd.DataFrame({"known": list(predictors)})
    table["error_points"] = mean
    table["low"] = low
    table["high"] = high
    table["n"] = len(models)
    table["cells"] = models[CONFIGURATION].nunique()
    return table
