"""The gap predicted by a regression on a few measures, and how far that can be trusted."""

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

_Array = NDArray[np.float64]
MOST = 3  # measures in a regression
_PENALTIES = np.array([0.03, 0.1, 0.3, 1, 3, 10, 100, 1e6])  # per model; the last is the mean of the gaps


class Fit(NamedTuple):
    """A regression of the gap on a few measures."""

    chosen: NDArray[np.int64]  # columns, the strongest first; empty where none can be fitted
    centre: _Array  # of each chosen column
    scale: _Array
    slopes: _Array  # gap per standard deviation of the measure
    intercept: float  # mean gap
    penalty: float  # per model; larger shrinks more


def fit(values: ArrayLike, gap: ArrayLike, most: int = MOST) -> Fit:
    """Fit of ``gap = mean + sum_j b_j z_j`` by ridge regression; Hoerl and Kennard 1970.

    The measures are standardised, and the ``most`` of largest |Pearson r| with the gap are taken. ``b`` minimises
    ``||g - Z b||² + n p ||b||²`` with the penalty p of least squared leave-one-out error, ``e_i / (1 - H_ii)`` with
    ``H = Z (Z'Z + n p)^-1 Z' + 1/n``; Golub, Heath and Wahba 1979. The sign of a slope is what the study shows, whatever the literature
    promises. Measures that tell nothing are shrunk to the mean of the gaps.

    Args:
        values: (n, M) finite, a column per measure.
        gap: (n,) fractions.
        most: measures to take.

    Returns:
        The fit; of no measure, the mean, where fewer than 3 models or no measure varies. The mean of no model is NaN.
    """
    x, g = np.asarray(values, dtype=float), np.asarray(gap, dtype=float)
    nothing = Fit(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0), np.zeros(0), float(g.mean()) if len(g) else np.nan, np.inf)
    if len(g) < 3 or not x.shape[1]:
        return nothing
    with np.errstate(over="ignore"):
        centre, scale = x.mean(0), x.std(0)
    varies = scale > 1e-12 * np.abs(x).max(0)
    z = (x - centre) / np.where(varies, scale, 1) * varies
    strength = np.abs(z.T @ (g - g.mean()))
    chosen = np.argsort(-strength, kind="stable")[:most]
    chosen = chosen[varies[chosen]]
    if not len(chosen):
        return nothing
    slopes, penalty = _ridge(z[:, chosen], g - g.mean())
    return Fit(chosen, centre[chosen], scale[chosen], slopes, float(g.mean()), penalty)


def _ridge(z: _Array, g: _Array) -> tuple[_Array, float]:
    u, s, vt = np.linalg.svd(z, full_matrices=False)
    kept = s > 1e-10 * s[0]
    u, s, vt = u[:, kept], s[kept], vt[kept]
    shrink = s**2 / (s**2 + len(g) * _PENALTIES[:, None])
    projected = u.T @ g
    residuals = g - (shrink * projected) @ u.T
    leverage = shrink @ (u**2).T + 1 / len(g)
    errors = ((residuals / np.clip(1 - leverage, 1e-9, None)) ** 2).sum(1)
    best = int(np.argmin(errors))
    return vt.T @ (shrink[best] * projected / s), float(_PENALTIES[best])


def predict_gap(fitted: Fit, values: ArrayLike) -> _Array:
    """Predicted gap: (m, M) measures -> (m,) fractions; NaN where a measure that the fit uses is NaN."""
    x = np.asarray(values, dtype=float)
    z = (x[:, fitted.chosen] - fitted.centre) / fitted.scale
    return fitted.intercept + z @ fitted.slopes


FEWEST = 4  # cells


def left_out_predictions(
    values: ArrayLike, gap: ArrayLike, groups: ArrayLike, new: ArrayLike, most: int = MOST
) -> tuple[_Array, _Array, NDArray[np.int64]]:
    """Residuals and predictions by fits without each group in turn; arguments as ``intervals``.

    Returns:
        (n,) residuals gap minus prediction of the models by the fit that never saw their group, (G, m) predictions of the new ones by each
        of the G fits, and (n,) the number of each model's group.
    """
    x, g, fresh = np.asarray(values, dtype=float), np.asarray(gap, dtype=float), np.asarray(new, dtype=float)
    codes, names = pd.factorize(np.asarray(groups))
    residuals, predictions = np.full(len(g), np.nan), np.empty((len(names), len(fresh)))
    for group in range(len(names)):
        inside = codes == group
        fitted = fit(x[~inside], g[~inside], most)
        residuals[inside] = g[inside] - predict_gap(fitted, x[inside])
        predictions[group] = predict_gap(fitted, fresh)
    return residuals, predictions, codes


def intervals(values: ArrayLike, gap: ArrayLike, groups: ArrayLike, new: ArrayLike, level: float = 0.8, most: int = MOST) -> _Array:
    """Prediction interval of the gap of each new model: the jackknife+ of Barber et al. 2021, with whole cells left out.

    From residual ``r_i`` of model i by the fit without its cell, and that fit's prediction ``mu_i`` of the new model, the interval reaches
    from the (1 - level) quantile of ``mu_i - |r_i|`` to the level quantile of ``mu_i + |r_i|``. Two models of one cell are near copies,
    so a cell counts once, however many models it has: weights ``1 / ((G + 1) n_cell)`` and a mass of ``1 / (G + 1)`` at infinity, as Dunn,
    Wasserman and Ramdas 2023 pool groups. Proven is a coverage of at least ``2 level - 1`` with one model per cell and a new one that is
    a draw from the same population of cells (Barber et al. 2021, theorem 1); for the weights of several models per cell that is proven
    only as cells grow many. Nothing is assumed of the regression or of normal errors, and nothing is promised for a model of another
    kind; ``coverage`` measures what is achieved.

    Args:
        values: (n, M) finite measures of the study's models.
        gap: (n,) their gaps, fractions.
        groups: (n,) their hyperparameter cells.
        new: (m, M) measures of the checkpoints.
        level: aimed at, in (0, 1).
        most: measures to take, see ``fit``.

    Returns:
        (m, 2) low and high; NaN where a measure is, infinite where there are too few cells for the level (G < level / (1 - level)), and NaN
        for fewer than 4 cells.

    Raises:
        ValueError: a level outside (0, 1).
    """
    if not 0 < level < 1:
        raise ValueError(f"level {level} must be between 0 and 1, both excluded")
    fresh = np.asarray(new, dtype=float)
    if pd.Series(np.asarray(groups)).nunique() < FEWEST:
        return np.full((len(fresh), 2), np.nan)
    residuals, predictions, codes = left_out_predictions(values, gap, groups, fresh, most)
    weights = 1 / ((codes.max() + 1 + 1) * np.bincount(codes)[codes])
    size = np.abs(residuals)[:, None]
    high = _weighted_quantile(predictions[codes] + size, weights, level)
    return np.column_stack([-_weighted_quantile(size - predictions[codes], weights, level), high])


def _weighted_quantile(values: _Array, weights: _Array, level: float) -> _Array:
    """Smallest value of each column (n, m) with at least ``level`` of the mass at or below it; infinite where there is none."""
    order = np.argsort(values, axis=0)
    mass = np.cumsum(weights[order], axis=0)
    reached = mass >= level - 1e-9
    place = np.where(reached.any(0), reached.argmax(0), 0)
    found = np.take_along_axis(np.take_along_axis(values, order, 0), place[None], 0)[0]
    return np.where(np.isnan(values).any(0), np.nan, np.where(reached.any(0), found, np.inf))


def possible(low_high: _Array, train_accuracy: ArrayLike, images: float = np.inf) -> _Array:
    """Intervals (m, 2) cut to the gaps that can be: a gap is in [train - 1, train]; this loses no coverage.

    Args:
        low_high: intervals, or predictions as (m, 1).
        train_accuracy: (m,) fractions; NaN, where it is not known, leaves [-1, 1].
        images: that the accuracy is the mean of; a sample's is uncertain by two standard errors, and by 3 / images at least.
    """
    share = np.asarray(train_accuracy, dtype=float)
    margin = np.maximum(2 * np.sqrt(share * (1 - share) / images), 3 / images)[:, None]
    top = np.where(np.isnan(share), 1.0, share)[:, None]
    bottom = np.where(np.isnan(share), -1.0, share - 1)[:, None]
    margin = np.where(np.isnan(margin), 0, margin)
    # Only the outer side of each end has the margin, so that an interval beyond all that can be still holds its prediction.
    lowest, highest = np.hstack([np.maximum(bottom - margin, -1), bottom]), np.hstack([top, np.minimum(top + margin, 1)])
    ends = np.shape(low_high)[1]
    return np.clip(low_high, lowest[:, :ends], highest[:, :ends])


class Trial(NamedTuple):
    """How prediction did on models that it had not seen, whole groups left out in turn."""

    models: int
    groups: int
    coverage: float  # fraction of gaps inside their interval, each group counted once
    level: float  # that the intervals aim at
    error: float  # mean |gap - prediction|, fractions
    mean_error: float  # the same for the mean gap of the other groups as the prediction, which needs no measure
    width: float  # median width of the intervals


def coverage(
    values: ArrayLike,
    gap: ArrayLike,
    groups: ArrayLike,
    held_out: ArrayLike,
    train_accuracy: ArrayLike,
    level: float = 0.8,
    most: int = MOST,
) -> Trial:
    """Trial of the whole method, choice of measures and interval included, on each group of models with all of it left out.

    Args:
        values: (n, M) finite measures.
        gap: (n,) fractions.
        groups: (n,) cells, as for ``intervals``.
        held_out: (n,) what is left out together: the cells, or something coarser such as the architecture, to try the step to another kind.
        train_accuracy: (n,) fractions, see ``possible``.
        level: of the intervals.
        most: measures to take, see ``fit``.

    Returns:
        The trial; NaN where fewer than 2 groups are there, or the rest is too small for an interval.
    """
    x, g, cells, train = (np.asarray(item) for item in (values, gap, groups, train_accuracy))
    codes, names = pd.factorize(np.asarray(held_out))
    rows = []
    for group in range(len(names)) if len(names) > 1 else ():
        out = codes == group
        low_high = possible(intervals(x[~out], g[~out], cells[~out], x[out], level, most), train[out])
        guess = possible(predict_gap(fit(x[~out], g[~out], most), x[out])[:, None], train[out])[:, 0]
        hit = np.where(np.isnan(low_high).any(1), np.nan, (low_high[:, 0] <= g[out]) & (g[out] <= low_high[:, 1]))
        width = low_high[:, 1] - low_high[:, 0]
        rows += list(
            zip(hit, np.abs(g[out] - guess), np.abs(g[out] - g[~out].mean()), width, np.full(out.sum(), 1 / out.sum()), strict=True)
        )
    if not rows:
        return Trial(len(g), len(names), np.nan, level, np.nan, np.nan, np.nan)
    hit, error, mean_error, width, weight = np.array(rows, dtype=float).T
    return Trial(
        len(g), len(names), float(np.average(hit, weights=weight)), level, error.mean(), mean_error.mean(), float(np.median(width))
    )


def unaided_residuals(gap: ArrayLike, groups: ArrayLike) -> _Array:
    """Error of a prediction that needs no measure: each gap minus the mean gap of the other groups, (n,); NaN for a single group."""
    g, (codes, names) = np.asarray(gap, dtype=float), pd.factorize(np.asarray(groups))
    return g - np.array([g[codes != group].mean() if len(names) > 1 else np.nan for group in range(len(names))])[codes]


class Ranks(NamedTuple):
    """Where each checkpoint may stand among its like, 1 the smallest gap."""

    best: _Array  # (m,) probability that it has the smallest gap
    low: _Array  # (m,) 10 % quantile of its rank
    high: _Array  # (m,) 90 % quantile


def rank_probabilities(
    values: ArrayLike,
    gap: ArrayLike,
    groups: ArrayLike,
    new: ArrayLike,
    train_accuracy: ArrayLike,
    *,
    doubtful: ArrayLike | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> Ranks:
    """Probability that each checkpoint truly has the smallest gap, by the bootstrap of prediction; Davison and Hinkley 1997, section 6.3.3.

    Each draw resamples whole cells, chooses the measures and fits anew, predicts every checkpoint, and adds to each a residual of a model
    whose cell had been left out, drawn by cell. So both the uncertain regression and what it cannot explain are in the probability. The
    residuals of checkpoints are drawn independently: where they err together, as a shift of all, the order is surer than stated.

    Args:
        values: (n, M) finite measures of the study's models.
        gap: (n,) fractions.
        groups: (n,) cells.
        new: (m, M) measures of the checkpoints.
        train_accuracy: (m,) of the checkpoints, see ``possible``.
        doubtful: (m,) bool, which of the new ones are of another kind than the study's: the residuals drawn for them are no smaller than
            those of the mean gap, which needs no measure.
        draws: of the bootstrap.
        seed: of all that is drawn.

    Returns:
        Probabilities that sum to 1 over the m checkpoints and the quantiles of their ranks, ties shared; NaN for a checkpoint with an
        undefined measure, and for all where fewer than 4 cells or no draw are there.
    """
    x, g, fresh, train = (np.asarray(item, dtype=float) for item in (values, gap, new, train_accuracy))
    codes, names = pd.factorize(np.asarray(groups))
    defined = np.isfinite(fresh).all(1)
    best, low, high = (np.full(len(fresh), np.nan) for _ in range(3))
    if len(names) < FEWEST or draws < 1 or not defined.any():
        return Ranks(best, low, high)
    generator = np.random.default_rng(seed)
    own, unaided = left_out_predictions(x, g, codes, fresh[:0])[0], unaided_residuals(g, codes)
    larger = np.where(np.abs(unaided) > np.abs(own), unaided, own)
    chosen = np.zeros(len(fresh), dtype=bool) if doubtful is None else np.asarray(doubtful, dtype=bool)
    residuals = np.where(chosen, larger[:, None], own[:, None])[:, defined]
    columns = np.arange(residuals.shape[1])
    members = [np.flatnonzero(codes == group) for group in range(len(names))]
    drawn = np.empty((draws, int(defined.sum())))
    for row in drawn:
        rows = np.concatenate([members[group] for group in generator.integers(len(names), size=len(names))])
        noise = [generator.choice(members[group]) for group in generator.integers(len(names), size=len(row))]
        row[:] = possible((predict_gap(fit(x[rows], g[rows]), fresh[defined]) + residuals[noise, columns])[:, None], train[defined])[:, 0]
    smallest = drawn == drawn.min(1, keepdims=True)
    best[defined] = (smallest / smallest.sum(1, keepdims=True)).mean(0)
    ranks = pd.DataFrame(drawn).rank(axis=1).to_numpy()
    low[defined], high[defined] = np.quantile(ranks, [0.1, 0.9], axis=0)
    return Ranks(best, low, high)
