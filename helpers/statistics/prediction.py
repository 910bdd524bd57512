"""Prediction of the gap of held-out models by ridge regression.

From hyperparameters, training accuracy and loss; and the error that a measure saves.
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
DEALS = 30  # random divisions into folds, over which errors are averaged
FEWEST_FOLDS = 3
PENALTIES = np.logspace(-2, 4, 13)


def with_log_train_loss(models: pd.DataFrame) -> pd.DataFrame:
    """Add ``log_train_loss``, the natural logarithm of a loss of at least 1e-12.

    Args:
        models: with train_loss.
    """
    loss = models["train_loss"].astype(float).clip(lower=1e-12)
    return models.assign(log_train_loss=np.log(loss))


def held_out_errors(predictors: Array, gap: Array, folds: ArrayLike) -> Array:
    """Absolute errors of the gaps of held-out networks, by ridge regressions.

    Hoerl and Kennard 1970. Each fold is predicted by a regression on the others, which
    standardise the columns and choose the penalty, with the least leave-one-out error.

    Args:
        predictors: (n, k) columns, or (M, n, k) of M regressions.
        gap: (n,) fractions.
        folds: (n,) fold of each network, or (D, n) of D divisions, over which errors
            are averaged.

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
            new = predict_gaps(columns[:, ~outside], gap[~outside], columns[:, outside])
            errors[:, outside] += 100 * np.abs(gap[outside] - new) / len(folds)
    return errors if predictors.ndim == 3 else errors[0]


def predict_gaps(predictors: Array, gap: Array, new: Array) -> Array:
    """Gaps of new networks, predicted by ridge regressions with the best penalty.

    Args:
        predictors: (n, k) columns, or (M, n, k), of the networks that are fitted to.
        gap: (n,) their gaps, fractions.
        new: (m, k) or (M, m, k), the same columns of the new networks.

    Returns:
        (m,) or (M, m) in [-1, 1].
    """
    if predictors.ndim == 2:
        return predict_gaps(predictors[None], gap, new[None])[0]
    return np.clip(_ridge(predictors, gap, new), -1, 1)


def _ridge(x: Array, y: Array, new: Array) -> Array:
    """Predictions (M, m) at new (M, m, k) of regressions of y (n,) on x (M, n, k).

    One eigendecomposition serves all penalties. The slopes of a penalty are those of
    ``np.linalg.solve(x.T @ x + penalty * np.eye(k), x.T @ centred)``.
    """
    if not x.shape[2]:
        return np.full(new.shape[:2], y.mean())
    largest = np.abs(x).max(1, keepdims=True)
    scale = np.where(largest > 0, largest, 1)  # else squares of large norms overflow
    mean = (x / scale).mean(1, keepdims=True)
    spread = (x / scale).std(1, keepdims=True)
    spread = np.where(spread > 1e-12 * np.abs(mean), spread, 1)
    x = (x / scale - mean) / spread
    new = (new / scale - mean) / spread
    centred = y - y.mean()
    eigenvalues, vectors = np.linalg.eigh(x.mT @ x)
    scores = x @ vectors  # (M, n, k), principal components
    # (M, k, penalties)
    shrinkage = 1 / (np.maximum(eigenvalues, 0)[..., None] + PENALTIES)
    slopes = (scores.mT @ centred)[..., None] * shrinkage
    # A leave-one-out residual is that of the fit over 1 - leverage, the diagonal of the
    # fit's projection, to which the intercept adds 1/n.
    leverage = 1 / len(y) + scores**2 @ shrinkage
    residuals = (centred[:, None] - scores @ slopes) / (1 - leverage)
    best_penalty = (residuals**2).mean(1).argmin(1)  # (M,)
    best_slopes = np.take_along_axis(slopes, best_penalty[:, None, None], 2)
    coefficients = vectors @ best_slopes  # (M, k, 1), of the standardised columns
    return y.mean() + (new @ coefficients)[..., 0]


def random_folds(
    groups: ArrayLike, deals: int = DEALS, seed: int = 0
) -> NDArray[np.int64]:
    """Deal whole groups at random into ``FOLDS`` folds, or fewer if there are fewer.

    Args:
        groups: (n,) names.
        deals: number of random divisions.
        seed: of the divisions.

    Returns:
        (deals, n) fold of each model.
    """
    codes, names = pd.factorize(np.asarray(groups))
    folds = np.arange(len(names)) % min(FOLDS, max(1, len(names)))
    random = np.random.default_rng(seed)
    return np.stack([random.permutation(folds)[codes] for _ in range(deals)])


def folds_of(bootstrap: Bootstrap, left_out: str) -> NDArray[np.int64]:
    """Fold of each network, (D, n): D random divisions, or one with a fold per group.

    Args:
        bootstrap: the networks.
        left_out: ``CONFIGURATION``, whose values are dealt into folds at random
            ``DEALS`` times, or another column, whose values are the folds.
    """
    groups = bootstrap.models[left_out]
    if left_out == CONFIGURATION:
        return random_folds(groups, seed=bootstrap.seed)
    return pd.factorize(groups)[0][None]


@dataclass(frozen=True)
class Rivalry:
    """Comparison of predictions: with a measure, and by a rival without it."""

    predictors: Array  # (n, k) columns that the measure is added to
    rival: Array | None = None  # (n, j) columns of the rival; None is ``predictors``
    left_out: str = CONFIGURATION  # column whose groups are left out, see ``folds_of``
    # Column of the test of saved errors, whose groups change sign together; "" is
    # ``left_out``.
    alike: str = ""


def saved_errors(
    bootstrap: Bootstrap,
    measures: Sequence[str],
    rivalry: Rivalry,
    level: float = LEVEL,
) -> pd.DataFrame:
    """Reduction by each measure of the error of the gap of held-out networks.

    Args:
        bootstrap: n networks with measures and ``gap``.
        measures: columns.
        rivalry: columns that a measure is added to, and those it is compared with.
        level: of intervals.

    Returns:
        A row per measure: error_without (of the rival), error_with and
        saved_error_points, both with _low and _high, error_worst (of the group that
        is predicted worst) and saved_error_points_p, one-sided, see ``sign_flip_p``,
        not adjusted for the number of measures. In points; NaN where there are too few
        groups.
    """
    x = bootstrap.models[list(measures)].to_numpy(dtype=float)
    gap = bootstrap.models["gap"].to_numpy(dtype=float)
    errors_without = np.full(x.shape, np.nan)
    errors_with = np.full(x.shape, np.nan)
    folds = folds_of(bootstrap, rivalry.left_out)
    rival = rivalry.predictors if rivalry.rival is None else rivalry.rival
    for rows, columns in finite_groups(x, gap[None]):
        of_rival = held_out_errors(rival[rows], gap[rows], folds[:, rows])
        errors_without[np.ix_(rows, columns)] = of_rival[:, None]
        with_measure = np.stack(
            [
                np.column_stack([rivalry.predictors[rows], x[rows, column]])
                for column in columns
            ]
        )  # (measures, n, k + 1)
        of_measures = held_out_errors(with_measure, gap[rows], folds[:, rows])
        errors_with[np.ix_(rows, columns)] = of_measures.T
    saved = errors_without - errors_with
    with_mean, with_low, with_high = bootstrap.mean(errors_with, level)
    saved_mean, saved_low, saved_high = bootstrap.mean(saved, level)
    groups = bootstrap.models[rivalry.left_out].to_numpy()
    signs = bootstrap.models[rivalry.alike or rivalry.left_out]
    by_group = pd.DataFrame(errors_with).groupby(groups).mean()
    return pd.DataFrame(
        {
            "measure": list(measures),
            "error_without": finite_mean(errors_without),
            "error_with": with_mean,
            "error_with_low": with_low,
            "error_with_high": with_high,
            "saved_error_points": saved_mean,
            "saved_error_points_low": saved_low,
            "saved_error_points_high": saved_high,
            "error_worst": by_group.max().to_numpy(),
            "saved_error_points_p": sign_flip_p(saved, signs, seed=bootstrap.seed),
        }
    )


def columns_in_advance(models: pd.DataFrame, axes: Sequence[str]) -> dict[str, Array]:
    """Columns that predict the gap without any measure, for a ridge regression.

    Args:
        models: n networks with hyperparameters, training accuracy and loss.
        axes: the hyperparameters that vary among them.

    Returns:
        (n, k) by name: none for the mean gap alone, the fit (training accuracy and
        logarithm of the loss), hyperparameters (see ``design`` with all levels), and
        both.
    """
    hyperparameters = design(models, axes, all_levels=True)
    fit = design(with_log_train_loss(models), (), FIT)
    return {
        "mean": design(models),
        "fit": fit,
        "hyperparameters": hyperparameters,
        "hyperparameters and fit": np.hstack([hyperparameters, fit]),
    }


def known_in_advance(bootstrap: Bootstrap, axes: Sequence[str]) -> pd.DataFrame:
    """Error of the gap predicted without any measure, in points.

    Args:
        bootstrap: n networks.
        axes: hyperparameters that vary.

    Returns:
        A row each for the mean gap alone, the fit (training accuracy and loss),
        hyperparameters, and both: known, error_points with low and high, n and cells.
    """
    models = bootstrap.models
    predictors = columns_in_advance(models, axes)
    gap = models["gap"].to_numpy(dtype=float)
    folds = folds_of(bootstrap, CONFIGURATION)
    errors = np.column_stack(
        [held_out_errors(columns, gap, folds) for columns in predictors.values()]
    )
    mean, low, high = bootstrap.mean(errors)
    return pd.DataFrame(
        {
            "known": list(predictors),
            "error_points": mean,
            "low": low,
            "high": high,
            "n": len(models),
            "cells": models[CONFIGURATION].nunique(),
        }
    )
