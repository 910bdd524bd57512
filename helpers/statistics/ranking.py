"""Every measure by the same questions, over all models that are analysed: what the appendix of a study ranks."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd

from helpers.statistics import permutation
from helpers.statistics.claims import ADDED, QUESTIONS
from helpers.statistics.correlations import (
    Array,
    design,
    kendall,
    partial_correlation,
)
from helpers.statistics.draws import LEVEL, Draws, smallest_detectable
from helpers.statistics.prediction import FIT, saved_errors, with_fit
from helpers.statistics.reliability import reliability


def answers(
    draws: Draws,
    measures: Sequence[str],
    question: str,
    rows: permutation.Rows,
    given: Array | None = None,
    level: float = LEVEL,
) -> tuple[dict[str, Array], float]:
    """Columns that answer a question named r_<target> or tau_<target> of every measure, by permuted rows, and its band.

    _smallest is the smallest |r| that could have been told from 0; _null the mean under permutation, from which p and band measure.
    """
    names, target, tau = (
        list(measures),
        "test_accuracy" if "test_accuracy" in question else "gap",
        question.startswith("tau"),
    )
    x, y = (
        draws.models[names].to_numpy(dtype=float),
        draws.models[target].to_numpy(dtype=float),
    )
    found = draws.estimate(
        names,
        target,
        statistic=kendall if tau else partial(partial_correlation, given=given),
        level=level,
    )
    null = (
        kendall(x, y[rows])
        if tau
        else permutation.null_partial_correlation(x, y, rows, given)
    )
    # A measure that drifts as the gap grows within runs correlates with it under the null too; what it has beyond that is tested.
    centre = permutation.null_centre(found.value, null)
    size, away = np.abs(found.value - centre), np.abs(null - centre)
    columns = {
        "": found.value,
        "_low": found.low,
        "_high": found.high,
        "_smallest": smallest_detectable(found),
        "_null": centre,
    }
    columns |= {
        "_p": permutation.p_values(size, away),
        "_p_adjusted": permutation.adjusted_p_values(size, away),
    }
    return {
        f"{question}{end}": values for end, values in columns.items()
    }, permutation.band(away)


def ranking_table(
    draws: Draws,
    measures: Sequence[str],
    axes: Sequence[str],
    *,
    permutations: int = permutation.PERMUTATIONS,
) -> tuple[pd.DataFrame, dict[str, float]]:
    """Every measure by ``QUESTIONS``, with the points that it saves beside fit and hyperparameters; and by question its band."""
    models, names, bands = with_fit(draws.models), list(measures), {}
    held = {
        "r_gap_given_fit": design(models, (), FIT),
        "r_gap_given_all": design(models, axes, FIT),
    }
    known = np.isfinite(models[names].astype(float)).to_numpy()
    table = pd.DataFrame(
        {"measure": names, "n": known.sum(0), "cells": draws.configurations(known)}
    )
    table["images"] = table["measure"].map(
        {name: values.shape[1] for name, values in draws.images.items()}
    )
    halves = {
        name: reliability(draws.images[name], seed=draws.seed)
        for name in names
        if name in draws.images
    }
    table["reliability"] = table["measure"].map(halves).astype(float)
    rows = draws.permutations(permutations)
    for question in QUESTIONS:
        columns, bands[question] = answers(
            draws, names, question, rows, held.get(question)
        )
        table = table.assign(**columns)
    saved = saved_errors(draws, names, held["r_gap_given_all"])
    return table.assign(
        **{
            f"{ADDED}{end}": saved[f"saved_error_points{end}"]
            for end in ("", "_low", "_high", "_p")
        }
    ), bands
