"""The one primary analysis of a study: one model a run at its stop, right labels, above the training accuracy of the paper."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from helpers.statistics.correlations import design
from helpers.statistics.draws import LEVEL, Draws
from helpers.statistics.permutation import PERMUTATIONS, null_partial_correlation, p_values
from helpers.statistics.prediction import FIT, dealt_folds, left_out_errors, saved_errors, with_fit

PAPER_ACCURACY = 0.8  # training accuracy above which Du et al. 2024 keep a model
FEWEST_KINDS = 3
QUESTIONS = ("r_gap", "r_gap_within_kinds", "saved_error_points")


def primary_rows(models: pd.DataFrame) -> np.ndarray:
    """Which models of a catalogue the primary analysis takes, (n,) bool."""
    kept = models["snapshot"].eq("stop") & models["label_noise"].eq(0) & (models["train_accuracy"] > PAPER_ACCURACY)
    return (kept & models["gap"].notna()).to_numpy()


def primary_table(draws: Draws, measures: Sequence[str], *, permutations: int = PERMUTATIONS, looks: int = 1) -> pd.DataFrame:
    """For each measure: r with the gap, r within kinds of training given the fit, and what it saves in predicting a kind left out.

    Intervals and p-values draw configurations, which vary within kinds; that there are only so many kinds they do not know.

    Args:
        draws: of the models of ``primary_rows``: gap, cell, kind, train_accuracy, train_loss, and the measures.
        measures: columns, eight at most.
        permutations: of gaps, or their residuals (Freedman and Lane 1983), among configurations, behind p.
        looks: how often the study has been looked at; intervals are of the level ``1 - 0.05 / looks``.

    Returns:
        One row per measure: n, kinds, then for each of ``QUESTIONS`` its value with _low, _high and _p; error_without (by the fit alone)
        and error_with, in points; saved_error_points_p_kind, the sign-flip test over whole kinds. Where there are fewer than
        ``FEWEST_KINDS`` kinds, configurations are left out in their place; ``left_out`` says which.
    """
    models, level = with_fit(draws.models), 1 - (1 - LEVEL) / looks
    kinds = models["kind"].nunique()
    table = pd.DataFrame(
        {"measure": list(measures), "n": np.isfinite(models[list(measures)].astype(float)).sum().to_numpy(), "kinds": kinds}
    )
    rows = draws.permutations(permutations)
    given = {"r_gap": None, "r_gap_within_kinds": design(models, ["kind"], FIT)}
    for question, held in given.items():
        found = draws.estimate(measures, given=held, level=level)
        x, gap = models[list(measures)].to_numpy(dtype=float), models["gap"].to_numpy(dtype=float)
        null = null_partial_correlation(x, gap, rows, held)
        p = p_values(np.abs(found.value), np.abs(null))
        table = table.assign(**{question: found.value, f"{question}_low": found.low, f"{question}_high": found.high, f"{question}_p": p})
    by_kind = kinds >= FEWEST_KINDS
    folds = pd.factorize(models["kind"])[0] if by_kind else dealt_folds(models["cell"], seed=draws.seed)
    known = design(models, (), FIT)
    saved = saved_errors(draws, measures, known, folds, level, units=("cell", "kind"))
    return table.merge(saved, on="measure").assign(left_out="kind" if by_kind else "configuration")


def kinds_table(models: pd.DataFrame) -> pd.DataFrame:
    """The kinds of training of a study: runs, how many ended by a rule, and the median accuracies and gap of each; fractions.

    With the share of the variance of the gap that lies between kinds, the same in every row.
    """
    gap = models["gap"].astype(float)
    left = gap - gap.groupby(models["kind"]).transform("mean")
    between = 1 - (left**2).sum() / ((gap - gap.mean()) ** 2).sum()
    by_rule = ~models["stop_reason"].fillna("").str.startswith("epoch cap")
    parts = models.assign(by_rule=by_rule).groupby("kind", sort=False)
    table = parts.agg(models=("gap", "size"), ended_by_a_rule=("by_rule", "mean"), gap_least=("gap", "min"), gap_most=("gap", "max"))
    medians = parts[["train_accuracy", "test_accuracy", "gap"]].median()
    return table.join(medians).assign(variance_between_kinds=between).reset_index()


def mean_of_kinds_error(models: pd.DataFrame) -> dict[str, float]:
    """Error in points of the gap of a kind left out, as predicted by the mean of the other kinds' models, and by the fit."""
    models = with_fit(models)
    folds, gap = pd.factorize(models["kind"])[0], models["gap"].to_numpy(dtype=float)
    parts = {"mean": np.empty((len(models), 0)), "fit": design(models, (), FIT)}
    return {name: float(left_out_errors(known, gap, folds).mean()) for name, known in parts.items()}
