"""What predicts the gap of models that were not seen: hyperparameters, fit, and what a measure saves beside them."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from helpers.statistics.correlations import Array, design, finite_groups, finite_mean
from helpers.statistics.draws import LEVEL, Draws
from helpers.statistics.permutation import sign_flip_p

FIT = (
    "train_accuracy",
    "log_train_loss",
)  # how well a network fits its training images; measures must add something to it
FOLDS, DEALS = 10, 30
FEWEST_FOLDS = 3
PENALTIES = np.logspace(-2, 4, 13)


def with_fit(models: pd.DataFrame) -> pd.DataFrame:
    """The models with ``log_train_loss``, natural, of a loss of 1e-12 at least."""
    return models.assign(
        log_train_loss=np.log(models["train_loss"].astype(float).clip(lower=1e-12))
    )


def left_out_errors(known: Array, gap: Array, folds: ArrayLike) -> Array:
    """Absolute error, in points, of each gap as predicted by ridge regressions that never saw its fold; Hoerl and Kennard 1970.

    Columns (n, k), or (M, n, k), are standardised, and the penalty of least leave-one-out error chosen, on the models fitted to. Folds are
    (n,), or (D, n), of which the mean is taken; NaN below ``FEWEST_FOLDS``.
    """
    known, gap, folds = (
        np.asarray(known, dtype=float),
        np.asarray(gap, dtype=float),
        np.atleast_2d(folds),
    )
    columns = known if known.ndim == 3 else known[None]
    errors = np.zeros(columns.shape[:2])
    for dealt in folds:
        numbers = np.unique(dealt)
        if len(numbers) < FEWEST_FOLDS:
            return np.full(known.shape[:-1], np.nan)
        for number in numbers:
            outside = dealt == number
            predicted = np.clip(
                _ridge(columns[:, ~outside], gap[~outside], columns[:, outside]), -1, 1
            )
            errors[:, outside] += 100 * np.abs(gap[outside] - predicted) / len(folds)
    return errors if known.ndim == 3 else errors[0]


def _ridge(x: Array, y: Array, new: Array) -> Array:
    """Predictions (M, m) at ``new`` (M, m, k) of regressions of (n,) on (M, n, k), each of the best penalty."""
    if not x.shape[2]:
        return np.full(new.shape[:2], y.mean())
    scale = np.where(
        (largest := np.abs(x).max(1, keepdims=True)) > 0, largest, 1
    )  # squares of a product of norms may overflow
    mean, spread = (x / scale).mean(1, keepdims=True), (x / scale).std(1, keepdims=True)
    spread = np.where(spread > 1e-12 * np.abs(mean), spread, 1)
    x, new, centred = (
        (x / scale - mean) / spread,
        (new / scale - mean) / spread,
        y - y.mean(),
    )
    sizes, axes = np.linalg.eigh(x.mT @ x)
    along = x @ axes  # (M, n, k)
    shrinkage = 1 / (np.maximum(sizes, 0)[..., None] + PENALTIES)  # (M, k, penalties)
    slopes = (along.mT @ centred)[..., None] * shrinkage
    # Leave-one-out residuals from those of the fit and the diagonal of its projection, the intercept's share 1/n in it.
    residuals = (centred[:, None] - along @ slopes) / (
        1 - 1 / len(y) - along**2 @ shrinkage
    )
    best = (residuals**2).mean(1).argmin(1)
    chosen = axes @ np.take_along_axis(slopes, best[:, None, None], 2)
    return y.mean() + (new @ chosen)[..., 0]


def dealt_folds(
    groups: ArrayLike, deals: int = DEALS, seed: int = 0
) -> NDArray[np.int64]:
    """Deals of whole groups into ``FOLDS`` folds, or as many as there are groups: (n,) names -> (deals, n)."""
    codes, names = pd.factorize(np.asarray(groups))
    random, count = np.random.default_rng(seed), min(FOLDS, max(1, len(names)))
    return np.stack(
        [random.permutation(np.arange(len(names)) % count)[codes] for _ in range(deals)]
    )


def folds_of(draws: Draws, left_out: str) -> NDArray[np.int64]:
    """Folds in which configurations (``left_out`` "cell") are dealt ``DEALS`` times, or each value of another column is left out once."""
    groups = draws.models[left_out]
    return (
        dealt_folds(groups, seed=draws.seed)
        if left_out == "cell"
        else pd.factorize(groups)[0][None]
    )


def saved_errors(
    draws: Draws,
    measures: Sequence[str],
    known: Array,
    left_out: str = "cell",
    level: float = LEVEL,
    alike: str = "",
) -> pd.DataFrame:
    """By how many points each measure lowers the error of the predicted gap of models left out, beside what is known (n, k).

    p is one-sided, by turning the signs of whole groups (``folds_of``), or of those ``alike``, a column, together; it is not adjusted for
    the number of measures. error_worst is that of the group that is predicted worst.
    """
    x, gap = (
        draws.models[list(measures)].to_numpy(dtype=float),
        draws.models["gap"].to_numpy(dtype=float),
    )
    without, beside = np.full((2, *x.shape), np.nan)
    groups, folds = draws.models[left_out], folds_of(draws, left_out)
    for kept, columns in finite_groups(x, gap[None]):
        without[np.ix_(kept, columns)] = left_out_errors(
            known[kept], gap[kept], folds[:, kept]
        )[:, None]
        own = np.stack(
            [np.column_stack([known[kept], x[kept, column]]) for column in columns]
        )
        beside[np.ix_(kept, columns)] = left_out_errors(
            own, gap[kept], folds[:, kept]
        ).T
    table = {"measure": list(measures), "error_without": finite_mean(without)}
    for name, part in (
        ("error_with", beside),
        ("saved_error_points", without - beside),
    ):
        table |= dict(
            zip(
                (name, f"{name}_low", f"{name}_high"),
                draws.mean(part, level),
                strict=True,
            )
        )
    table["error_worst"] = (
        pd.DataFrame(beside).groupby(groups.to_numpy()).mean().max().to_numpy()
    )
    return pd.DataFrame(
        table
        | {
            "saved_error_points_p": sign_flip_p(
                without - beside, draws.models[alike or left_out], seed=draws.seed
            )
        }
    )


def known_in_advance(
    draws: Draws, axes: Sequence[str], left_out: str = "cell"
) -> pd.DataFrame:
    """Error of the predicted gap, in points, before any measure: by mean, fit, hyperparameters, and both."""
    models = with_fit(draws.models)
    parts = {
        "mean": ((), ()),
        "fit": ((), FIT),
        "hyperparameters": (axes, ()),
        "hyperparameters and fit": (axes, FIT),
    }
    gap, folds = models["gap"].to_numpy(dtype=float), folds_of(draws, left_out)
    errors = np.column_stack(
        [
            left_out_errors(design(models, *columns), gap, folds)
            for columns in parts.values()
        ]
    )
    ends = dict(zip(("error_points", "low", "high"), draws.mean(errors), strict=True))
    return pd.DataFrame(
        {"known": list(parts)}
        | ends
        | {"n": len(models), "cells": models["cell"].nunique()}
    )
