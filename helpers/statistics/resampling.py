"""Intervals: whole hyperparameter cells, and the images of a measure, are drawn with replacement; percentiles of any statistic."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from helpers.statistics.correlations import Array, kendall, partial_correlation

DRAWS = 2_000
LEVEL = 0.95
FEWEST_CELLS = 8
_CELLS, SCORING_IMAGES, TEST_IMAGES = 0, 1, 2  # streams of random numbers that do not depend on each other


def cell_weights(cells: ArrayLike, draws: int = DRAWS, seed: int = 0) -> Array:
    """How often each model is in each draw of whole cells with replacement: (draws, n) whole numbers; multinomial over the cells.

    The snapshots and repeats of a cell are alike, so drawing single models would count them as independent.

    Args:
        cells: (n,) name of each model's hyperparameter cell, see ``resampled_mean`` for the images.
        draws: number of draws.
        seed: the same seed and cells give the same draws, so that any two statistics of a study are compared draw by draw.
    """
    codes, names = pd.factorize(np.asarray(cells))
    return _counts(np.random.default_rng([seed, _CELLS]), draws, len(names))[:, codes]


def _counts(random: np.random.Generator, draws: int, units: int) -> Array:
    drawn = random.integers(units, size=(draws, units)) if units else np.zeros((draws, 0), dtype=np.int64)
    drawn += np.arange(draws)[:, None] * units
    return np.bincount(drawn.ravel(), minlength=draws * units).reshape(draws, units).astype(float)


def resampled_mean(values: ArrayLike, draws: int = DRAWS, seed: int = 0, images: int = SCORING_IMAGES) -> Array:
    """Mean over drawn images of each model's per-image values: (n, images) -> (draws, n); all models share the images of a draw.

    Args:
        values: per-image values of a measure, or bits of correctness; NaN where an image has none, which leaves it out.
        draws: number of draws.
        seed: the same seed, stream and number of images give the same draws.
        images: the stream, ``SCORING_IMAGES`` or ``TEST_IMAGES``: draws of the one do not depend on those of the other.
    """
    table = np.asarray(values).astype(np.float32).T
    known = np.isfinite(table)
    complete = bool(known.all())
    table = table if complete else np.where(known, table, 0)
    random = np.random.default_rng([seed, images])
    means = np.empty((draws, table.shape[1]))
    for start in range(0, draws, 100):
        rows = slice(start, min(start + 100, draws))
        counts = _counts(random, rows.stop - start, len(table)).astype(np.float32)
        mass = np.float64(len(table)) if complete else counts @ known.astype(np.float32)
        means[rows] = (counts @ table) / np.where(mass > 0, mass, np.nan)
    return means


def percentile_interval(drawn: ArrayLike, cells: ArrayLike, level: float = LEVEL) -> tuple[Array, Array]:
    """Percentile interval of statistics from their draws (B, ...): low (...) and high (...); Efron and Tibshirani 1993, chapter 13.

    Differences are paired when both statistics come from the same weights: pass the draws of their difference.

    Args:
        drawn: values of the statistic; draws where it is undefined are left out.
        cells: how many cells it stands on, (...) or one number; below ``FEWEST_CELLS`` there is no interval, NaN.
        level: coverage, in (0, 1).

    Raises:
        ValueError: a level outside (0, 1).
    """
    if not 0 < level < 1:
        raise ValueError(f"level {level} must be between 0 and 1, both excluded")
    drawn = np.asarray(drawn, dtype=float)
    # Where fewer than half of the draws are defined, the rest are not a sample of the statistic.
    usable = (np.isfinite(drawn).mean(0) > 0.5) & (np.broadcast_to(cells, drawn.shape[1:]) >= FEWEST_CELLS)
    ends = np.full((2, *drawn.shape[1:]), np.nan)
    if usable.any():
        ends[:, usable] = np.nanquantile(drawn[:, usable], [(1 - level) / 2, (1 + level) / 2], axis=0)
    return ends[0], ends[1]


class Estimate(NamedTuple):
    """A statistic of the models, its interval, and its values in the draws for differences."""

    value: Array
    low: Array
    high: Array
    drawn: Array  # (B, ...)


def estimate(statistic: Callable[[Array], Array], cells: ArrayLike, draws: int = DRAWS, seed: int = 0, level: float = LEVEL) -> Estimate:
    """Value and interval of any function of weights: ``statistic`` takes (B, n) weights and returns (B, ...) values.

    ``estimate(lambda w: kendall(x, gap, w), cells)`` is tau with its interval, ``kendall(a, gap, w) - kendall(b, gap, w)`` their paired
    difference.
    """
    codes, names = pd.factorize(np.asarray(cells))
    if draws < 1 or not len(codes):
        value = statistic(np.ones((1, len(codes))))[0]
        return Estimate(value, *np.full((2, *np.shape(value)), np.nan), np.empty((0, *np.shape(value))))
    drawn = statistic(cell_weights(cells, draws, seed))
    return Estimate(statistic(np.ones((1, len(codes))))[0], *percentile_interval(drawn, len(names), level), drawn)


def correlated(
    models: pd.DataFrame,
    measures: Sequence[str],
    *,
    target: str = "gap",
    given: Array | None = None,
    tau: bool = False,
    draws: int = DRAWS,
    tau_draws: int | None = None,
    level: float = LEVEL,
    seed: int = 0,
) -> pd.DataFrame:
    """Correlation of measures with a target, in the sign of the raw measure, each with its interval over whole cells.

    Args:
        models: one row per model: the target, cell, and a column per measure.
        measures: the columns; what is not finite is left out for that measure alone.
        target: its column.
        given: (n, k) columns to hold fixed, see ``correlations.design``; Pearson's r is then partial.
        tau: add Kendall's tau-b.
        draws: of the intervals; 0 leaves them NaN.
        tau_draws: of tau's, which costs more; as many as ``draws`` when None.
        level: of the intervals.
        seed: of the draws.

    Returns:
        One row per measure: measure, n, dropped (not finite), cells, pearson_r, ci_low, ci_high, and with ``tau`` kendall_tau,
        kendall_low, kendall_high. NaN where undefined; under ``FEWEST_CELLS`` cells no interval.
    """
    x, y = models[list(measures)].to_numpy(dtype=float), models[target].to_numpy(dtype=float)
    known = np.isfinite(x) & np.isfinite(y)[:, None]
    cells = models["cell"].to_numpy()
    counts = np.array([len(np.unique(pd.factorize(cells)[0][column])) for column in known.T], dtype=int)
    table = pd.DataFrame({"measure": list(measures), "n": known.sum(0), "dropped": (~known).sum(0), "cells": counts})

    def add(names: tuple[str, str, str], value: Array, statistic: Callable[[Array], Array], number: int) -> None:
        low, high = estimate(statistic, cells, number, seed, level)[1:3]
        enough = counts >= FEWEST_CELLS
        for name, values in zip(names, (value, np.where(enough, low, np.nan), np.where(enough, high, np.nan)), strict=True):
            table[name] = values

    names = ("pearson_r", "ci_low", "ci_high")
    add(names, partial_correlation(x, y, given), lambda w: partial_correlation(x, y, given, w), draws)
    if tau:
        names = ("kendall_tau", "kendall_low", "kendall_high")
        add(names, kendall(x, y), lambda w: kendall(x, y, w), draws if tau_draws is None else tau_draws)
    return table


def smallest_detectable(drawn: ArrayLike, cells: ArrayLike, *, correlation: bool = True) -> Array:
    """Smallest size that these cells would have told from 0 with 80 % power: 2.8 standard errors of the draws (B, ...).

    For a correlation on Fisher's scale, ``tanh(2.8 sd(atanh r))``. 2.8 = 1.96 + 0.84. NaN under ``FEWEST_CELLS`` cells.
    """
    drawn = np.asarray(drawn, dtype=float)
    scale = np.arctanh(np.clip(drawn, -1 + 1e-12, 1 - 1e-12)) if correlation else drawn
    known = np.isfinite(scale)
    count = np.where(known.sum(0) > 1, known.sum(0), np.nan)
    centred = np.where(known, scale - np.where(known, scale, 0).sum(0) / count, 0)
    size = 2.8 * np.sqrt((centred**2).sum(0) / (count - 1))
    return np.where(np.broadcast_to(cells, drawn.shape[1:]) >= FEWEST_CELLS, np.tanh(size) if correlation else size, np.nan)
