"""What each measure tells: of the gap, of test accuracy, of the gap given what is known in advance, and what it adds to a prediction."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from helpers.statistics.claims import ADDED, QUESTIONS
from helpers.statistics.correlations import Array, design, kendall, partial_correlation
from helpers.statistics.permutation import (
    PERMUTATIONS,
    adjusted_p_values,
    band,
    from_centre,
    null_kendall,
    null_partial_correlation,
    p_values,
    permuted_rows,
)
from helpers.statistics.reliability import reliability
from helpers.statistics.resampling import (
    DRAWS,
    cell_weights,
    drawn_with_images,
    estimate,
    mean_in_draws,
    percentile_interval,
    smallest_detectable,
)

FIT = ("train_accuracy", "log_train_loss")
BETWEEN_CELLS = "r_gap_between_cells"
FOLDS = 10
_PENALTIES = np.logspace(-2, 4, 13)


def with_fit(models: pd.DataFrame) -> pd.DataFrame:
    """The models with ``log_train_loss``, natural, of a loss of 1e-12 at least, beside their training accuracy."""
    return models.assign(log_train_loss=np.log(models["train_loss"].astype(float).clip(lower=1e-12)))


class Ranking(NamedTuple):
    """Answers to all questions, and how far chance takes the best of all these measures."""

    table: pd.DataFrame
    bands: dict[str, float]  # by question: how far the null's r or tau lies from its mean, 95 % of the largest of all measures


def ranking_table(
    models: pd.DataFrame,
    measures: Sequence[str],
    axes: Sequence[str],
    *,
    fit: Sequence[str] = FIT,
    images: Mapping[str, ArrayLike] | None = None,
    draws: int = DRAWS,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> Ranking:
    """Correlation of every measure with gap and test accuracy, alone and given what is known in advance, with intervals and p-values.

    All intervals come from the same draws of cells and images, all p-values from the same permutations, see ``resampling`` and
    ``permutation``. What is held fixed (hyperparameters and fit) is not drawn with the images.

    Args:
        models: one row per model: gap, test_accuracy (fractions), cell, the axes, the fit and a column per measure. Rows of a cell in an
            order that means the same in each.
        measures: columns; NaN drops a model for that measure.
        axes: hyperparameters that vary.
        fit: training accuracy and log training loss at the snapshot.
        images: values of single images, see ``resampling.drawn_with_images``.
        draws: of the intervals; 0 gives point values alone, without intervals, p-values and added error.
        permutations: of the null.
        seed: of all that is drawn.

    Returns:
        The table, one row per measure: measure, n, images, reliability, cells; for each of ``QUESTIONS`` its value, and with suffixes
        ``_low``, ``_high``, ``_smallest`` (the smallest |r| that could have been told from 0), ``_null`` (its mean where cells change
        places, which only snapshots of the same cell give), ``_p`` (of the distance from there), ``_p_adjusted`` (maxT over these
        measures); p_adjusted, that of r_gap; what ``between_cells`` gives; and ``added_error_points`` with ``_low``, ``_high``,
        ``_smallest`` and ``_p``, see ``added_error``; its ``_p`` is that of r_gap_given_all. All r have the sign of the raw measure.

    Raises:
        ValueError: absent or undefined columns, or images that are not those of the measure.
    """
    if absent := [name for name in ("gap", "test_accuracy", "cell", *measures) if name not in models]:
        raise ValueError(f"the models have no column {', '.join(absent)}; they have {', '.join(map(str, models.columns))}")
    targets = {name: models[name].to_numpy(dtype=float) for name in ("gap", "test_accuracy")}
    for name, values in targets.items():
        if missing := int((~np.isfinite(values)).sum()):
            raise ValueError(f"{missing} models have no finite {name}; leave them out before they are ranked")
    x, images = models[list(measures)].to_numpy(dtype=float), images or {}
    held = {"r_gap_given_fit": design(models, (), fit), "r_gap_given_all": design(models, axes, fit)}
    columns: dict[str, ArrayLike] = {"measure": list(measures), "n": np.isfinite(x).sum(0)}
    columns["images"] = [np.shape(images[name])[1] if name in images else np.nan for name in measures]
    columns["reliability"] = [reliability(images[name], seed=seed) if name in images else np.nan for name in measures]
    drawn = drawn_with_images(models, measures, images, draws, seed)
    weights, rows, bands = cell_weights(models["cell"], draws, seed), permuted_rows(models["cell"], permutations if draws else 0, seed), {}
    for question in QUESTIONS:
        target, given = "test_accuracy" if question.endswith("test_accuracy") else "gap", held.get(question)
        tau = question.startswith("tau")
        statistic = kendall if tau else partial(partial_correlation, given=given)
        found = estimate(statistic, models, measures, target, draws=draws, seed=seed, drawn=drawn)
        columns |= {"cells": found.cells, question: found.value}
        if draws:
            null = null_kendall(x, targets[target], rows) if tau else null_partial_correlation(x, targets[target], rows, given)
            columns |= _named(question, found.low, found.high, smallest_detectable(found.drawn, found.cells))
            tested, bands[question] = _tested(question, found.value, null)
            columns |= tested
    columns |= between_cells(models, measures, draws, seed)
    if draws:
        added = added_error(x, held["r_gap_given_all"], targets["gap"], models["cell"], weights, seed)
        columns |= {ADDED: added["gain"], **_named(ADDED, added["low"], added["high"], added["smallest"])}
        columns |= {f"{ADDED}_p": columns["r_gap_given_all_p"], "p_adjusted": columns["r_gap_p_adjusted"]}
    return Ranking(pd.DataFrame(columns), bands)


def between_cells(models: pd.DataFrame, measures: Sequence[str], draws: int = DRAWS, seed: int = 0) -> dict[str, Array]:
    """Correlation with the gap of each measure's mean in a cell: between networks trained differently, not snapshots of one run.

    Returns:
        ``r_gap_between_cells`` of each measure and, where there are draws, with ``_low`` and ``_high`` its interval over cells.
    """
    means = models.groupby("cell", sort=False)[["gap", *measures]].mean().reset_index()
    found = estimate(partial_correlation, means, measures, draws=draws, seed=seed)
    ends = {f"{BETWEEN_CELLS}_low": found.low, f"{BETWEEN_CELLS}_high": found.high} if draws else {}
    return {BETWEEN_CELLS: found.value} | ends


def _tested(question: str, observed: Array, null: Array) -> tuple[dict[str, ArrayLike], float]:
    size, away, centre = from_centre(observed, null)
    tested = {"null": centre, "p": p_values(size, away), "p_adjusted": adjusted_p_values(size, away)}
    return {f"{question}_{name}": values for name, values in tested.items()}, band(away)


def _named(question: str, low: ArrayLike, high: ArrayLike, smallest: ArrayLike) -> dict[str, ArrayLike]:
    return {f"{question}_low": low, f"{question}_high": high, f"{question}_smallest": smallest}


def left_out_errors(known: Array, gap: Array, cells: ArrayLike, seed: int = 0) -> Array:
    """Absolute error, in points, of each model's gap as predicted by a ridge regression that never saw its cell: (n, k) -> (n,).

    Whole cells are left out in ``FOLDS`` folds, or as many as there are cells, to which the cells are dealt at random; the penalty is the
    one of least leave-one-out error inside; Hoerl and Kennard 1970. No column predicts the mean. NaN for fewer than 3 cells.
    """
    codes, names = pd.factorize(np.asarray(cells))
    errors = np.full(len(gap), np.nan)
    if len(names) < 3:
        return errors
    # In the order of a grid every tenth cell may share a level.
    dealt = np.random.default_rng(seed).permutation(len(names))[codes]
    for inside, outside in GroupKFold(min(FOLDS, len(names))).split(gap, groups=dealt):
        if known.shape[1]:
            fitted = make_pipeline(StandardScaler(), RidgeCV(_PENALTIES)).fit(known[inside], gap[inside])
            predicted = fitted.predict(known[outside])
        else:
            predicted = gap[inside].mean()
        errors[outside] = 100 * np.abs(gap[outside] - predicted)
    return errors


def added_error(x: Array, known: Array, gap: Array, cells: ArrayLike, weights: Array, seed: int = 0) -> pd.DataFrame:
    """By how many points each measure lowers the mean absolute error of the predicted gap, beside what is known in advance.

    Both predictions leave out the same whole cells, see ``left_out_errors``; the interval is that of their paired difference over cells,
    with the predictions as they are.

    Args:
        x: (n, M) measures; NaN leaves a model out of both predictions.
        known: (n, k) hyperparameters and fit, see ``correlations.design``.
        gap: (n,) fractions.
        cells: (n,) names.
        weights: (B, n), see ``resampling.cell_weights``.
        seed: of the folds.

    Returns:
        One row per measure: without, with (errors in points), gain (their difference, positive for a measure that adds), low, high,
        smallest (gain that could have been told from 0).
    """
    codes, rows = pd.factorize(np.asarray(cells))[0], []
    baselines: dict[bytes, Array] = {}
    for column in x.T:
        kept = np.isfinite(column)
        if (key := kept.tobytes()) not in baselines:
            baselines[key] = left_out_errors(known[kept], gap[kept], codes[kept], seed)
        without = baselines[key]
        beside = left_out_errors(np.column_stack([known[kept], column[kept]]), gap[kept], codes[kept], seed)
        drawn, count = mean_in_draws(without - beside, weights[:, kept]), len(np.unique(codes[kept]))
        low, high = percentile_interval(drawn, count)
        errors = (without.mean(), beside.mean()) if kept.any() else (np.nan, np.nan)
        smallest = smallest_detectable(drawn, count, correlation=False)
        rows.append((*errors, errors[0] - errors[1], float(low), float(high), float(smallest)))
    return pd.DataFrame(rows, columns=["without", "with", "gain", "low", "high", "smallest"])


def known_in_advance(
    models: pd.DataFrame, axes: Sequence[str], *, fit: Sequence[str] = FIT, draws: int = DRAWS, seed: int = 0
) -> pd.DataFrame:
    """Error of the predicted gap before any measure: by the mean, by the fit, by hyperparameters, and by hyperparameters and fit.

    The fit holds training accuracy, of which the gap is made, so part of its merit is arithmetic.

    Returns:
        One row each: known ("mean", "fit", "hyperparameters", "hyperparameters and fit"), error_points, low, high (over cells), n, cells.
    """
    models = with_fit(models) if "log_train_loss" not in models else models
    weights, gap, rows = cell_weights(models["cell"], draws, seed), models["gap"].to_numpy(dtype=float), []
    parts = {"mean": ((), ()), "fit": ((), fit), "hyperparameters": (axes, ()), "hyperparameters and fit": (axes, fit)}
    for name, (categorical, linear) in parts.items():
        errors = left_out_errors(design(models, categorical, linear), gap, models["cell"], seed)
        low, high = percentile_interval(mean_in_draws(errors, weights), models["cell"].nunique())
        rows.append((name, errors.mean(), float(low), float(high), len(models), models["cell"].nunique()))
    return pd.DataFrame(rows, columns=["known", "error_points", "low", "high", "n", "cells"])
