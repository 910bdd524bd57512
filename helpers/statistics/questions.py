"""What each measure tells: of the gap, of test accuracy, of the gap given what is known in advance, and what it adds to a prediction."""

import warnings
from collections.abc import Callable, Mapping, Sequence
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
    null_kendall,
    null_partial_correlation,
    p_values,
    permuted_rows,
)
from helpers.statistics.reliability import reliability
from helpers.statistics.resampling import (
    DRAWS,
    SCORING_IMAGES,
    TEST_IMAGES,
    cell_weights,
    percentile_interval,
    resampled_mean,
    smallest_detectable,
)

FIT = ("train_accuracy", "log_train_loss")
FOLDS = 10
_PENALTIES = np.logspace(-2, 4, 13)


def with_fit(models: pd.DataFrame) -> pd.DataFrame:
    """The models with ``log_train_loss``, natural, of a loss of 1e-12 at least, beside their training accuracy."""
    return models.assign(log_train_loss=np.log(models["train_loss"].astype(float).clip(lower=1e-12)))


class ImageValues(NamedTuple):
    """Values per image of the models, in the order of their table; what is given is drawn anew with the images, what is not is fixed."""

    measures: Mapping[str, Array] = {}  # (n, S) each, whose means are the measure
    train_correct: Array | None = None  # (n, S) bits, only where training accuracy is that on the scoring images
    test_correct: Array | None = None  # (n, T) bits, whose means are test accuracy


class Ranking(NamedTuple):
    """Answers to all questions, and how far chance takes the best of all these measures."""

    table: pd.DataFrame
    bands: dict[str, float]  # by question: 95 % of the null's largest |r| or |tau|


def ranking_table(
    models: pd.DataFrame,
    measures: Sequence[str],
    axes: Sequence[str],
    *,
    fit: Sequence[str] = FIT,
    images: ImageValues | None = None,
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
        images: values per image.
        draws: of the intervals; 0 gives point values alone, without intervals, p-values and added error.
        permutations: of the null.
        seed: of all that is drawn.

    Returns:
        The table, one row per measure: measure, n, cells, images, reliability; for each of ``QUESTIONS`` its value, and with suffixes
        ``_low``, ``_high``, ``_smallest`` (the smallest |r| that could have been told from 0), ``_p``, ``_p_adjusted`` (maxT over these
        measures); p_adjusted, that of r_gap; and ``added_error_points`` with ``_low``, ``_high``, ``_smallest`` and ``_p``, see
        ``added_error``; its ``_p`` is that of r_gap_given_all. All r have the sign of the raw measure.

    Raises:
        ValueError: absent or undefined columns, or images that are not those of the measure.
    """
    images = images or ImageValues()
    _check(models, measures, images)
    x, cells = models[list(measures)].to_numpy(dtype=float), pd.factorize(models["cell"])[0]
    targets = {name: models[name].to_numpy(dtype=float) for name in ("gap", "test_accuracy")}
    held = {"r_gap_given_fit": design(models, (), fit), "r_gap_given_all": design(models, axes, fit)}
    count = np.array([len(np.unique(cells[column])) for column in np.isfinite(x).T])
    columns: dict[str, ArrayLike] = {"measure": list(measures), "n": np.isfinite(x).sum(0), "cells": count}
    columns["images"] = [images.measures[name].shape[1] if name in images.measures else np.nan for name in measures]
    columns["reliability"] = [reliability(images.measures[name], seed=seed) if name in images.measures else np.nan for name in measures]
    weights, rows, bands = cell_weights(cells, draws, seed), permuted_rows(cells, permutations if draws else 0, seed), {}
    drawn_targets, own = drawn_with_images(targets, measures, images, draws, seed)
    for question in QUESTIONS:
        target, given = "test_accuracy" if question.endswith("test_accuracy") else "gap", held.get(question)
        tau = question.startswith("tau")
        statistic = kendall if tau else partial(partial_correlation, given=given)
        columns[question] = value = statistic(x, targets[target])
        if draws:
            drawn = in_draws(statistic, x, targets[target], weights, own, drawn_targets[target])
            null = np.abs(null_kendall(x, targets[target], rows) if tau else null_partial_correlation(x, targets[target], rows, given))
            columns |= _named(question, *percentile_interval(drawn, count), smallest_detectable(drawn, count))
            columns |= {f"{question}_p": p_values(np.abs(value), null), f"{question}_p_adjusted": adjusted_p_values(np.abs(value), null)}
            bands[question] = band(null)
    if draws:
        added = added_error(x, held["r_gap_given_all"], targets["gap"], cells, weights, seed)
        columns |= {ADDED: added["gain"], **_named(ADDED, added["low"], added["high"], added["smallest"])}
        columns |= {f"{ADDED}_p": columns["r_gap_given_all_p"], "p_adjusted": columns["r_gap_p_adjusted"]}
    return Ranking(pd.DataFrame(columns), bands)


def _named(question: str, low: ArrayLike, high: ArrayLike, smallest: ArrayLike) -> dict[str, ArrayLike]:
    return {f"{question}_low": low, f"{question}_high": high, f"{question}_smallest": smallest}


def _check(models: pd.DataFrame, measures: Sequence[str], images: ImageValues) -> None:
    if absent := [name for name in ("gap", "test_accuracy", "cell", *measures) if name not in models]:
        raise ValueError(f"the models have no column {', '.join(absent)}; they have {', '.join(map(str, models.columns))}")
    for name in ("gap", "test_accuracy"):
        if missing := int((~np.isfinite(models[name].astype(float))).sum()):
            raise ValueError(f"{missing} models have no finite {name}; leave them out before they are ranked")
    per_image = dict(images.measures) | ({"test_accuracy": images.test_correct} if images.test_correct is not None else {})
    if unknown := [name for name in images.measures if name not in measures]:
        raise ValueError(f"there are values per image of {', '.join(unknown)}, which is not among the measures to rank")
    for name, values in per_image.items():
        if np.ndim(values) != 2 or len(values) != len(models):
            raise ValueError(f"{name} per image has shape {np.shape(values)}; it must be (models, images) with {len(models)} models")
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # a model without any value
            mean = np.nanmean(np.asarray(values, dtype=np.float32), axis=1)
        column = models[name].to_numpy(dtype=float)
        if not np.allclose(mean, column, rtol=2e-3, atol=2e-3, equal_nan=True):
            worst = int(np.nanargmax(np.where(np.isnan(mean) != np.isnan(column), np.inf, np.abs(mean - column))))
            raise ValueError(
                f"{name} per image has mean {mean[worst]:.4g} for model {models.index[worst]}, its column says {column[worst]:.4g}; "
                "give both in the same order of models and from the same images"
            )


def drawn_with_images(
    targets: Mapping[str, Array], measures: Sequence[str], images: ImageValues, draws: int, seed: int
) -> tuple[dict[str, Array], dict[int, Array]]:
    """Targets in every draw, (draws, n), or (n,) where no image moves them; and measures that are drawn with their images, by column."""
    redrawn = dict(targets)
    for correct, stream, signs in (
        (images.train_correct, SCORING_IMAGES, {"gap": 1}),
        (images.test_correct, TEST_IMAGES, {"gap": -1, "test_accuracy": 1}),
    ):
        if correct is not None and draws:
            moved = resampled_mean(correct, draws, seed, stream) - np.asarray(correct, dtype=float).mean(1)
            redrawn |= {name: redrawn[name] + sign * moved for name, sign in signs.items()}
    own = {number: resampled_mean(images.measures[name], draws, seed) for number, name in enumerate(measures) if name in images.measures}
    return redrawn, own


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
    bring, on Fisher's scale, is taken out, and their spread stays. What is covered is the correlation of the measure as read on so many
    images. (Reliability 0.74, r = -0.75: the plain interval holds the truth in 58 % of catalogues, this one in 97 %.)

    Args:
        statistic: such as ``correlations.kendall``, called with measures, target and weights.
        x: (n, M) measures.
        y: (n,) target.
        weights: (B, n).
        redrawn: measures drawn with their images, (B, n) by column of x.
        redrawn_y: (B, n) target drawn with its images, or y.
    """
    fixed, redrawn = statistic(x, y, weights=weights), redrawn or {}
    if not redrawn and (redrawn_y is None or redrawn_y is y):
        return fixed
    y = y if redrawn_y is None else redrawn_y
    drawn = statistic(x, y, weights=weights)
    if redrawn:
        drawn[:, list(redrawn)] = statistic(np.stack(list(redrawn.values()), axis=-1), y, weights=weights)
    drawn, fixed = (np.arctanh(np.clip(values, -1 + 1e-12, 1 - 1e-12)) for values in (drawn, fixed))
    known = np.isfinite(shift := drawn - fixed)
    return np.tanh(drawn - np.where(known, shift, 0).sum(0) / np.maximum(known.sum(0), 1))


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
        mass, count = weights[:, kept].sum(1), len(np.unique(codes[kept]))
        drawn = weights[:, kept] @ (without - beside) / np.where(mass > 0, mass, np.nan)
        low, high = percentile_interval(drawn, count)
        errors = (without.mean(), beside.mean()) if kept.any() else (np.nan, np.nan)
        smallest = smallest_detectable(drawn, count, correlation=False)
        rows.append((*errors, errors[0] - errors[1], float(low), float(high), float(smallest)))
    return pd.DataFrame(rows, columns=["without", "with", "gain", "low", "high", "smallest"])


def known_in_advance(
    models: pd.DataFrame, axes: Sequence[str], *, fit: Sequence[str] = FIT, draws: int = DRAWS, seed: int = 0
) -> pd.DataFrame:
    """Error of the predicted gap before any measure: by the mean, by hyperparameters, and by hyperparameters and fit.

    Returns:
        One row each: known ("mean", "hyperparameters", "hyperparameters and fit"), error_points, low, high (over cells), n, cells.
    """
    models = with_fit(models) if "log_train_loss" not in models else models
    weights, gap, rows = cell_weights(models["cell"], draws, seed), models["gap"].to_numpy(dtype=float), []
    parts = {"mean": ((), ()), "hyperparameters": (axes, ()), "hyperparameters and fit": (axes, fit)}
    for name, (categorical, linear) in parts.items():
        errors = left_out_errors(design(models, categorical, linear), gap, models["cell"], seed)
        low, high = percentile_interval(weights @ errors / weights.sum(1), models["cell"].nunique())
        rows.append((name, errors.mean(), float(low), float(high), len(models), models["cell"].nunique()))
    return pd.DataFrame(rows, columns=["known", "error_points", "low", "high", "n", "cells"])
