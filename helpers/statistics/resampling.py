"""Intervals: whole hyperparameter cells, and images where there are values of them, are drawn with replacement; percentiles of draws."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from helpers.statistics.correlations import Array, kendall, partial_correlation

DRAWS = 2_000
LEVEL = 0.95
FEWEST_CELLS = 8
_CELLS, SCORING_IMAGES, TEST_IMAGES = 0, 1, 2  # streams of random numbers that do not depend on each other
_TEST_ACCURACY = "test_accuracy"  # of the test images, and test_accuracy@shift of shifted copies of them
_BOUND = 1 - 1e-12  # of what Fisher's transformation takes


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


def drawn_with_images(
    models: pd.DataFrame, names: Iterable[str], images: Mapping[str, ArrayLike] | None, draws: int = DRAWS, seed: int = 0
) -> dict[str, Array]:
    """Columns of the models in every draw of their images, (draws, n) each; the gap too, where the test accuracy is drawn.

    Training accuracy and what else is given is not drawn with images.

    Args:
        models: one row per model.
        names: columns to draw, beside test_accuracy, as far as there are values of images.
        images: by column, (n, images) values of which the column is the mean, in the order of the models. Those of test accuracies are of
            the test images, all others of the scoring images. A model that the column leaves out, NaN, stays out.
        draws: number of draws.
        seed: of them.

    Raises:
        ValueError: values that are not those of the models.
    """
    drawn, images = {}, images or {}
    for name in {*names, _TEST_ACCURACY} & {*images} & {*models}:
        values, column = np.asarray(images[name], dtype=np.float32), models[name].to_numpy(dtype=float)
        if values.ndim != 2 or len(values) != len(models):
            raise ValueError(f"{name} per image has shape {values.shape}; it must be (models, images) with {len(models)} models")
        known = np.isfinite(values)
        mean = np.where(known, values, 0).sum(1, dtype=float) / np.where(known.any(1), known.sum(1), np.nan)
        error = np.where(np.isfinite(column), np.nan_to_num(np.abs(mean - column), nan=np.inf), 0)
        if (error > 2e-3 * (1 + np.abs(column))).any():
            worst = int(error.argmax())
            raise ValueError(
                f"{name} per image has mean {mean[worst]:.4g} for model {models.index[worst]}, its column says {column[worst]:.4g}; "
                "give both in the same order of models and from the same images"
            )
        stream = TEST_IMAGES if name.partition("@")[0] == _TEST_ACCURACY else SCORING_IMAGES
        # The values are kept in half precision; only how far they move is taken from them.
        drawn[name] = column + resampled_mean(values, draws, seed, stream) - mean
    if _TEST_ACCURACY in drawn:
        drawn["gap"] = (models["gap"] + models[_TEST_ACCURACY]).to_numpy(dtype=float) - drawn[_TEST_ACCURACY]
    return drawn


def of_models(drawn: Mapping[str, Array] | None, rows: NDArray[np.bool_]) -> dict[str, Array]:
    """What was drawn with images of some of the models, as what was drawn of all; for ``rows``, (n,) bool."""
    return {name: values[:, np.asarray(rows)] for name, values in (drawn or {}).items()}


def in_draws(
    statistic: Callable[..., Array],
    x: Array,
    y: Array,
    weights: Array,
    redrawn: Mapping[int, Array] | None = None,
    redrawn_y: Array | None = None,
) -> Array:
    """A correlation of every measure with a target in every draw of cells, and of images where there are values of them: (B, M).

    The values of a model are uncertain by their images already, and drawing these adds the same noise once more: every draw is weaker
    than what was observed, and a plain percentile interval of a strong correlation may lie below it. So the mean shift that the images
    bring, on Fisher's scale, is taken out, and their spread stays; draws of 1 or -1, which no noise weakens measurably, tell no shift.
    What is covered is the correlation of the measure as read on so many images. (Reliability 0.74, r = -0.75: the plain interval holds
    the truth in 58 % of catalogues, this one in 97 %.)

    Args:
        statistic: in [-1, 1], such as ``correlations.kendall``, called with measures, target and weights.
        x: (n, M) measures.
        y: (n,) target.
        weights: (B, n).
        redrawn: measures drawn with their images, (B, n) by column of x.
        redrawn_y: (B, n) target drawn with its images; None where it is fixed.
    """
    fixed = statistic(x, y, weights=weights)
    if not redrawn and redrawn_y is None:
        return fixed
    y, drawn, others = y if redrawn_y is None else redrawn_y, fixed.copy(), np.delete(np.arange(x.shape[1]), list(redrawn or ()))
    if redrawn_y is not None and len(others):
        drawn[:, others] = statistic(x[:, others], y, weights=weights)
    if redrawn:
        drawn[:, list(redrawn)] = statistic(np.stack(list(redrawn.values()), axis=-1), y, weights=weights)
    inside = (np.abs(drawn) < _BOUND) & (np.abs(fixed) < _BOUND)
    drawn, fixed = (np.arctanh(np.clip(values, -_BOUND, _BOUND)) for values in (drawn, fixed))
    return np.tanh(drawn - np.where(inside, drawn - fixed, 0).sum(0) / np.maximum(inside.sum(0), 1))


def mean_in_draws(values: Array, weights: Array) -> Array:
    """Mean over the models of each draw, those without a finite value left out: (n,) and (B, n) -> (B,)."""
    has = np.isfinite(values)
    mass = weights[:, has].sum(1)
    return weights[:, has] @ values[has] / np.where(mass > 0, mass, np.nan)


def percentile_interval(drawn: ArrayLike, cells: ArrayLike) -> tuple[Array, Array]:
    """Percentile interval, 95 %, of statistics from their draws (B, ...): low (...) and high (...); Efron and Tibshirani 1993, chapter 13.

    Differences are paired when both statistics come from the same draws: pass the draws of their difference.

    Args:
        drawn: values of the statistic; draws where it is undefined are left out.
        cells: how many cells it stands on, (...) or one number; below ``FEWEST_CELLS`` there is no interval, NaN.
    """
    drawn = np.asarray(drawn, dtype=float)
    # Where fewer than half of the draws are defined, the rest are not a sample of the statistic.
    usable = (2 * np.isfinite(drawn).sum(0) > len(drawn)) & (np.broadcast_to(cells, drawn.shape[1:]) >= FEWEST_CELLS)
    ends = np.full((2, *drawn.shape[1:]), np.nan)
    if usable.any():
        ends[:, usable] = np.nanquantile(drawn[:, usable], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return ends[0], ends[1]


def smallest_detectable(drawn: ArrayLike, cells: ArrayLike, *, correlation: bool = True) -> Array:
    """Smallest size that these cells would have told from 0 with 80 % power: 2.8 standard errors of the draws (B, ...).

    For a correlation on Fisher's scale, ``tanh(2.8 sd(atanh r))``. 2.8 = 1.96 + 0.84. NaN under ``FEWEST_CELLS`` cells.
    """
    drawn = np.asarray(drawn, dtype=float)
    scale = np.arctanh(np.clip(drawn, -_BOUND, _BOUND)) if correlation else drawn
    size = 2.8 * pd.DataFrame(scale.reshape(len(scale), -1)).std().to_numpy().reshape(drawn.shape[1:])  # NaN is left out
    return np.where(np.broadcast_to(cells, drawn.shape[1:]) >= FEWEST_CELLS, np.tanh(size) if correlation else size, np.nan)


class Estimate(NamedTuple):
    """A statistic of every measure, its interval, and what this rests on."""

    value: Array  # (M,)
    low: Array  # (M,)
    high: Array  # (M,)
    cells: NDArray[np.int64]  # (M,) that models with the measure come from
    drawn: Array  # (B, M), for differences


def estimate(
    statistic: Callable[..., Array],
    models: pd.DataFrame,
    measures: Sequence[str],
    target: str = "gap",
    *,
    draws: int = DRAWS,
    seed: int = 0,
    drawn: Mapping[str, Array] | None = None,
) -> Estimate:
    """A correlation of each measure with a target, and its interval over cells, and over images where there are values of them.

    Args:
        statistic: see ``in_draws``; without weights it gives the value.
        models: one row per model: the target, cell, and a column per measure.
        measures: the columns; what is not finite is left out for that measure alone.
        target: its column.
        draws: of the interval; 0 leaves it NaN.
        seed: of the draws.
        drawn: columns that are drawn with their images too, see ``drawn_with_images``; as many draws at least, of the same seed.
    """
    drawn, names = drawn or {}, list(measures)
    x, y = models[names].to_numpy(dtype=float), models[target].to_numpy(dtype=float)
    codes = pd.factorize(models["cell"])[0]
    cells = np.array([len(np.unique(codes[column])) for column in (np.isfinite(x) & np.isfinite(y)[:, None]).T], dtype=int)
    own = {place: drawn[name][:draws] for place, name in enumerate(names) if name in drawn}
    found, moved = np.empty((0, len(names))), drawn[target][:draws] if target in drawn else None
    if draws:
        found = in_draws(statistic, x, y, cell_weights(codes, draws, seed), own, moved)
    return Estimate(statistic(x, y), *percentile_interval(found, cells), cells, found)


def correlated(
    models: pd.DataFrame,
    measures: Sequence[str],
    *,
    target: str = "gap",
    given: Array | None = None,
    draws: int = DRAWS,
    tau_draws: int = 0,
    seed: int = 0,
    drawn: Mapping[str, Array] | None = None,
) -> pd.DataFrame:
    """Correlation of measures with a target, in the sign of the raw measure, each with its interval; arguments as for ``estimate``.

    Args:
        models: see there.
        measures: see there.
        target: see there.
        given: (n, k) columns to hold fixed, see ``correlations.design``; Pearson's r is then partial.
        draws: of the intervals of r; 0 leaves them NaN.
        tau_draws: of those of Kendall's tau-b, which costs more.
        seed: of the draws.
        drawn: see there.

    Returns:
        One row per measure: measure, n, dropped (not finite), cells, pearson_r, ci_low, ci_high, kendall_tau, kendall_low, kendall_high.
        NaN where undefined; under ``FEWEST_CELLS`` cells no interval.
    """
    known = np.isfinite(models[[*measures, target]].astype(float)).to_numpy()
    known = known[:, :-1] & known[:, -1:]
    options = {"seed": seed, "drawn": drawn}
    r = estimate(partial(partial_correlation, given=given), models, measures, target, draws=draws, **options)
    tau = estimate(kendall, models, measures, target, draws=tau_draws, **options)
    table = {"measure": list(measures), "n": known.sum(0), "dropped": (~known).sum(0), "cells": r.cells}
    for names, found in ((("pearson_r", "ci_low", "ci_high"), r), (("kendall_tau", "kendall_low", "kendall_high"), tau)):
        table |= dict(zip(names, found[:3], strict=True))
    return pd.DataFrame(table)
