"""What predicts the gap of models that were not seen: hyperparameters, fit, and what a measure saves beside them."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from helpers.statistics.correlations import Array, design, finite_groups
from helpers.statistics.draws import Draws

FIT = ("train_accuracy", "log_train_loss")
FOLDS, DEALS = 10, 30
SIGN_FLIPS = 4_999
PENALTIES = np.logspace(-2, 4, 13)


def with_fit(models: pd.DataFrame) -> pd.DataFrame:
    """The models with ``log_train_loss``, natural, of a loss of 1e-12 at least, beside their training accuracy."""
    return models.assign(log_train_loss=np.log(models["train_loss"].astype(float).clip(lower=1e-12)))


def left_out_errors(known: Array, gap: Array, folds: ArrayLike) -> Array:
    """Absolute error, in points, of each gap as predicted by ridge regressions that never saw its fold; Hoerl and Kennard 1970.

    Columns are standardised on the models fitted to; the penalty is the one of ``PENALTIES`` of least leave-one-out error there.

    Args:
        known: (n, k), or (M, n, k) for M predictions at once; no column predicts the mean.
        gap: (n,) fractions.
        folds: (n,) number of each model's fold, or (D, n) for D deals into folds, over which errors are averaged.

    Returns:
        (n,) or (M, n); NaN for fewer than 3 folds.
    """
    known, gap, folds = np.asarray(known, dtype=float), np.asarray(gap, dtype=float), np.atleast_2d(folds)
    columns = known if known.ndim == 3 else known[None]
    errors = np.zeros(columns.shape[:2])
    for dealt in folds:
        numbers = np.unique(dealt)
        if len(numbers) < 3:
            return np.full(known.shape[:-1], np.nan)
        for number in numbers:
            outside = dealt == number
            predicted = _ridge(columns[:, ~outside], gap[~outside], columns[:, outside])
            errors[:, outside] += 100 * np.abs(gap[outside] - predicted) / len(folds)
    return errors if known.ndim == 3 else errors[0]


def _ridge(x: Array, y: Array, new: Array) -> Array:
    """Predictions (M, m) at ``new`` (M, m, k) of ridge regressions of ``y`` (n,) on ``x`` (M, n, k), each of the best penalty."""
    if not x.shape[2]:
        return np.full(new.shape[:2], y.mean())
    mean, spread = x.mean(1, keepdims=True), x.std(1, keepdims=True)
    spread = np.where(spread > 1e-12 * np.abs(mean), spread, 1)
    left, sizes, right = np.linalg.svd((x - mean) / spread, full_matrices=False)
    centred = y - y.mean()
    coefficients = left.mT @ centred  # (M, k)
    shrunk = sizes[:, None] ** 2 / (sizes[:, None] ** 2 + PENALTIES[:, None])  # (M, P, k)
    # Leave-one-out residuals from those of the fit and the diagonal of its projection, the intercept's share 1/n in it.
    leverage = 1 / len(y) + shrunk @ (left**2).mT
    residuals = (centred - (shrunk * coefficients[:, None]) @ left.mT) / (1 - leverage)
    best = (residuals**2).mean(2).argmin(1)
    slopes = right.mT @ (sizes / (sizes**2 + PENALTIES[best][:, None]) * coefficients)[..., None]
    return y.mean() + (((new - mean) / spread) @ slopes)[..., 0]


def dealt_folds(groups: ArrayLike, deals: int = DEALS, seed: int = 0) -> NDArray[np.int64]:
    """Deals of whole groups into ``FOLDS`` folds, or as many as there are groups: (n,) names -> (deals, n) numbers of folds."""
    codes, names = pd.factorize(np.asarray(groups))
    random, count = np.random.default_rng(seed), min(FOLDS, max(1, len(names)))
    return np.stack([random.permutation(np.arange(len(names)) % count)[codes] for _ in range(deals)])


def errors_with(known: Array, x: Array, gap: Array, folds: ArrayLike) -> tuple[Array, Array]:
    """Errors in points without and with each measure beside what is known, for the models that have it: (M, n) each, NaN elsewhere."""
    without, beside = np.full((2, x.shape[1], len(gap)), np.nan)
    folds = np.atleast_2d(folds)
    for kept, columns in finite_groups(x, gap[None]):
        without[np.ix_(columns, kept)] = left_out_errors(known[kept], gap[kept], folds[:, kept])
        own = np.stack([np.column_stack([known[kept], x[kept, column]]) for column in columns])
        beside[np.ix_(columns, kept)] = left_out_errors(own, gap[kept], folds[:, kept])
    return without, beside


def sign_flip_p(saved: ArrayLike, groups: ArrayLike, flips: int = SIGN_FLIPS, seed: int = 0) -> float:
    """P-value, one side, that the saved error of whole groups is as large by luck: signs of the groups' sums are flipped; Fisher 1935.

    (n,) saved errors and names of groups; ``(1 + count) / (1 + flips)``, all flips where there are fewer. NaN without a value.
    """
    saved = np.asarray(saved, dtype=float)
    has = np.isfinite(saved)
    sums = pd.Series(saved[has]).groupby(np.asarray(groups)[has]).sum().to_numpy()
    if not len(sums):
        return np.nan
    if 2 ** len(sums) <= flips + 1:
        signs = 1 - 2 * ((np.arange(1, 2 ** len(sums))[:, None] >> np.arange(len(sums))) & 1)
    else:
        signs = np.random.default_rng(seed).choice([-1, 1], size=(flips, len(sums)))
    return float((1 + (signs @ sums >= sums.sum() - 1e-9 * np.abs(sums).sum()).sum()) / (1 + len(signs)))


def saved_errors(
    draws: Draws, measures: Sequence[str], known: Array, folds: ArrayLike, level: float, units: Sequence[str] = ("cell",)
) -> pd.DataFrame:
    """By how many points each measure lowers the error of the predicted gap of models left out, beside what is known.

    Args:
        draws: models with gap, cell and the measures.
        known: (n, k), see ``correlations.design``.
        folds: as for ``left_out_errors``: of configurations, or kinds of training.
        level: of the interval over configurations, with the predictions as they are.
        units: columns whose groups change sign in the test, configurations first; see ``sign_flip_p``.

    Returns:
        measure, error_without, error_with, saved_error_points, with _low, _high, _p (one side), and _p_<unit> for further units.
    """
    gap, rows = draws.models["gap"].to_numpy(dtype=float), []
    without, beside = errors_with(known, draws.models[list(measures)].to_numpy(dtype=float), gap, folds)
    for name, before, after in zip(measures, without, beside, strict=True):
        saved, low, high = draws.mean(before - after, level)
        p = [sign_flip_p(before - after, draws.models[unit], seed=draws.seed) for unit in units]
        rows.append((name, draws.mean(before)[0], draws.mean(after)[0], saved, low, high, *p))
    ends = ("", "_low", "_high", "_p", *(f"_p_{unit}" for unit in units[1:]))
    names = ["error_without", "error_with", *(f"saved_error_points{end}" for end in ends)]
    return pd.DataFrame(rows, columns=["measure", *names])


def known_in_advance(draws: Draws, axes: Sequence[str]) -> pd.DataFrame:
    """Error of the predicted gap before any measure: by the mean, the fit, the hyperparameters, and hyperparameters and fit.

    Configurations are left out, in the mean of ``DEALS`` deals. The fit holds training accuracy, a part of the gap: some of its merit is
    arithmetic.

    Returns:
        One row each: known, error_points, low, high (over configurations), n, cells.
    """
    models, rows = with_fit(draws.models), []
    folds = dealt_folds(models["cell"], seed=draws.seed)
    parts = {"mean": ((), ()), "fit": ((), FIT), "hyperparameters": (axes, ()), "hyperparameters and fit": (axes, FIT)}
    for name, (categorical, linear) in parts.items():
        errors = left_out_errors(design(models, categorical, linear), models["gap"].to_numpy(dtype=float), folds)
        rows.append((name, *draws.mean(errors), len(models), models["cell"].nunique()))
    return pd.DataFrame(rows, columns=["known", "error_points", "low", "high", "n", "cells"])
