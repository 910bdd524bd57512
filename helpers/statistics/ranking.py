"""Every measure by the same questions, over all models that are analysed: what the appendix of a study ranks."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from helpers.statistics.claims import ADDED
from helpers.statistics.correlations import Array, design, kendall
from helpers.statistics.draws import LEVEL, Draws, smallest_detectable
from helpers.statistics.permutation import (
    PERMUTATIONS,
    adjusted_p_values,
    band,
    from_centre,
    null_kendall,
    null_partial_correlation,
    p_values,
)
from helpers.statistics.prediction import FIT, dealt_folds, saved_errors, with_fit
from helpers.statistics.reliability import reliability

QUESTIONS = ("r_gap", "tau_gap", "r_test_accuracy", "r_gap_given_fit", "r_gap_given_all")


class Ranking(NamedTuple):
    """Answers to all questions, and how far chance takes the best of all these measures."""

    table: pd.DataFrame
    bands: dict[str, float]  # by question: how far the null's r or tau lies from its mean, 95 % of the largest of all measures


def ranking_table(
    draws: Draws,
    measures: Sequence[str],
    axes: Sequence[str],
    *,
    images: Mapping[str, ArrayLike] | None = None,
    permutations: int = PERMUTATIONS,
) -> Ranking:
    """Correlation of every measure with gap and test accuracy, alone and given what is known without it, with intervals and p-values.

    All intervals come from the same draws, all p-values from the same permutations. What is held fixed is not drawn with the images.

    Args:
        draws: of the models: gap, test_accuracy (fractions), cell, train_accuracy, train_loss, the axes and a column per measure. Rows
            of a configuration in an order that means the same in each.
        measures: columns; NaN drops a model for that measure.
        axes: hyperparameters that vary.
        images: (models, images) values of single images by measure, for the reliabilities.
        permutations: of the null.

    Returns:
        One row per measure: measure, n, images, reliability, cells; for each of ``QUESTIONS`` its value, with _low, _high, _smallest (|r|
        that could have been told from 0), _null (its mean where configurations change places, which only snapshots of one configuration
        give), _p (of the distance from there) and _p_adjusted (maxT over these measures); and ``added_error_points``, see
        ``prediction.saved_errors``, beside fit and hyperparameters with configurations left out. r has the sign of the raw measure.
    """
    models, names, images = with_fit(draws.models), list(measures), images or {}
    x = models[names].to_numpy(dtype=float)
    held = {"r_gap_given_fit": design(models, (), FIT), "r_gap_given_all": design(models, axes, FIT)}
    columns: dict[str, ArrayLike] = {"measure": names, "n": np.isfinite(x).sum(0)}
    columns["images"] = [np.shape(images[name])[1] if name in images else np.nan for name in names]
    columns["reliability"] = [reliability(images[name], seed=draws.seed) if name in images else np.nan for name in names]
    rows, bands = draws.permutations(permutations if draws.draws else 0), {}
    for question in QUESTIONS:
        target, given = "test_accuracy" if question.endswith("test_accuracy") else "gap", held.get(question)
        tau, y = question.startswith("tau"), models[target].to_numpy(dtype=float)
        found = draws.estimate(names, target, given=given, statistic=kendall if tau else None)
        columns |= {"cells": found.configurations, question: found.value}
        if draws.draws:
            null = null_kendall(x, y, rows) if tau else null_partial_correlation(x, y, rows, given)
            columns |= _named(question, low=found.low, high=found.high, smallest=smallest_detectable(found))
            size, away, centre = from_centre(found.value, null)
            columns |= _named(question, null=centre, p=p_values(size, away), p_adjusted=adjusted_p_values(size, away))
            bands[question] = band(away)
    table = pd.DataFrame(columns)
    if draws.draws:
        saved = saved_errors(draws, names, held["r_gap_given_all"], dealt_folds(models["cell"], seed=draws.seed), LEVEL)
        renamed = {f"saved_error_points{end}": f"{ADDED}{end}" for end in ("", "_low", "_high", "_p")}
        table = table.merge(saved.rename(columns=renamed)[["measure", *renamed.values()]], on="measure")
    return Ranking(table, bands)


def _named(question: str, **values: Array) -> dict[str, Array]:
    return {f"{question}_{name}": value for name, value in values.items()}
