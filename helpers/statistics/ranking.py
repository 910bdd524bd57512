"""Correlations of every measure with gap and test accuracy, over all models.

The appendix of a study ranks measures by them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from helpers.statistics import permutation
from helpers.statistics.bootstrap import LEVEL, Bootstrap, smallest_detectable
from helpers.statistics.claims import ADDED
from helpers.statistics.correlations import (
    Array,
    design,
    kendall,
    partial_correlation,
)
from helpers.statistics.prediction import (
    FIT,
    Rivalry,
    saved_errors,
    with_log_train_loss,
)
from helpers.statistics.reliability import reliability


@dataclass(frozen=True)
class Question:
    """One correlation that is asked of every measure."""

    name: str  # of the column that answers it
    target: str = "gap"
    rank: bool = False  # Kendall's tau-b in place of Pearson's r
    covariates: Array | None = None  # (n, k) columns to hold fixed


def answers(
    bootstrap: Bootstrap,
    measures: Sequence[str],
    question: Question,
    rows: permutation.Rows,
    level: float = LEVEL,
) -> tuple[dict[str, Array], float]:
    """Correlation of every measure for one question, with interval and p-values.

    Args:
        bootstrap: n networks with measures and target.
        measures: columns.
        question: what is correlated, and what held fixed.
        rows: (D, n) permutations, see ``Bootstrap.permutations``.
        level: of intervals.

    Returns:
        Columns by name, (M,) each, and the band, see ``permutation.band``. Beside the
        correlation stand its interval (_low, _high), _smallest, the smallest |r| that
        is distinguished from 0 with 80 % power, _null, the mean under the null, _p, and
        _p_adjusted for all measures (maxT). P-values and band are of the distance from
        _null.
    """
    names = list(measures)
    x = bootstrap.models[names].to_numpy(dtype=float)
    y = bootstrap.models[question.target].to_numpy(dtype=float)
    statistic = partial(partial_correlation, covariates=question.covariates)
    if question.rank:
        statistic = kendall
        null = kendall(x, y[rows]) if len(rows) else np.empty((0, len(names)))
    else:
        null = permutation.null_partial_correlation(x, y, rows, question.covariates)
    estimate = bootstrap.estimate(
        names, question.target, statistic=statistic, level=level
    )
    # Permuted configurations keep the order of their models. So a measure that changes
    # with the gap during training correlates with it under the null too.
    centre = permutation.null_centre(estimate.value, null)
    size = np.abs(estimate.value - centre)
    away = np.abs(null - centre)
    columns = {
        question.name: estimate.value,
        f"{question.name}_low": estimate.low,
        f"{question.name}_high": estimate.high,
        f"{question.name}_smallest": smallest_detectable(estimate),
        f"{question.name}_null": centre,
        f"{question.name}_p": permutation.p_values(size, away),
        f"{question.name}_p_adjusted": permutation.adjusted_p_values(size, away),
    }
    return columns, permutation.band(away)


def ranking_table(
    bootstrap: Bootstrap,
    measures: Sequence[str],
    axes: Sequence[str],
    *,
    permutations: int = permutation.PERMUTATIONS,
) -> tuple[pd.DataFrame, dict[str, float]]:
    """Correlations of every measure for ``claims.QUESTIONS``, over all models.

    Args:
        bootstrap: n networks with measures.
        measures: columns.
        axes: hyperparameters that vary.
        permutations: number of random ones, where there are too many for all.

    Returns:
        A row per measure, and the band of each question, see ``answers``. Further
        columns are the points of error that a measure saves when it is added to
        hyperparameters, training accuracy and loss, and its split-half reliability.
    """
    models = with_log_train_loss(bootstrap.models)
    names = list(measures)
    given_all = design(models, axes, FIT)
    questions = [
        Question("r_gap"),
        Question("tau_gap", rank=True),
        Question("r_test_accuracy", target="test_accuracy"),
        Question("r_gap_given_fit", covariates=design(models, (), FIT)),
        Question("r_gap_given_all", covariates=given_all),
    ]
    is_finite = np.isfinite(models[names].astype(float)).to_numpy()
    image_counts = {name: values.shape[1] for name, values in bootstrap.images.items()}
    reliabilities = {
        name: reliability(bootstrap.images[name], seed=bootstrap.seed)
        for name in names
        if name in bootstrap.images
    }
    table = pd.DataFrame({"measure": names, "n": is_finite.sum(0)})
    table["cells"] = bootstrap.configurations(is_finite)
    table["images"] = table["measure"].map(image_counts)
    table["reliability"] = table["measure"].map(reliabilities).astype(float)
    rows = bootstrap.permutations(permutations)
    bands = {}
    for question in questions:
        columns, bands[question.name] = answers(bootstrap, names, question, rows)
        table = table.assign(**columns)
    saved = saved_errors(bootstrap, names, Rivalry(given_all))
    for end in ("", "_low", "_high", "_p"):
        table[f"{ADDED}{end}"] = saved[f"saved_error_points{end}"]
    return table, bands
