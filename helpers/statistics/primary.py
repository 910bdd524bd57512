"""The one primary analysis of a study: one model a run at its stop, right labels, above the training accuracy of the paper."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from helpers.statistics.claims import check_primary
from helpers.statistics.correlations import design
from helpers.statistics.draws import LEVEL, Draws
from helpers.statistics.prediction import FIT, saved_errors, with_fit
from helpers.statistics.ranking import answers

PAPER_ACCURACY = 0.8  # training accuracy above which Du et al. 2024 keep a model


def primary_rows(models: pd.DataFrame) -> np.ndarray:
    """Which models of a catalogue the primary analysis takes, (n,) bool."""
    kept = models["snapshot"].eq("stop") & models["label_noise"].eq(0) & (models["train_accuracy"] > PAPER_ACCURACY)
    return (kept & models["gap"].notna()).to_numpy()


def primary_table(draws: Draws, measures: Sequence[str], *, permutations: int, looks: int = 1) -> pd.DataFrame:
    """For each measure: r with the gap, r within kinds of training given the fit, and what it saves in predicting a kind left out.

    Of the models of ``primary_rows``; kinds are named by ``training.config.kind_name``. Intervals and p are over configurations, so they
    speak of these kinds, not of others. Within kinds residuals change places within kinds alone, which differ in spread. error_with_twins
    leaves out a kind in all its architectures at once; ``twins`` is the number of such groups.
    """
    check_primary(measures)
    models, names, level = with_fit(draws.models), list(measures), 1 - (1 - LEVEL) / looks
    n = np.isfinite(models[names].astype(float)).sum().to_numpy()
    table = pd.DataFrame({"measure": names, "n": n, "kinds": models["kind"].nunique(), "level": level})
    for question, given, within in (("r_gap", None, None), ("r_gap_within_kinds", design(models, ["kind"], FIT), "kind")):
        table = table.assign(**answers(draws, names, question, draws.permutations(permutations, within), given, level)[0])
    saved = saved_errors(draws, names, design(models, (), FIT), "kind", level).drop(columns="measure")
    alike = [kind.replace(architecture, "") for kind, architecture in zip(models["kind"], models["architecture"], strict=True)]
    twins = Draws(models.assign(twins=alike), draws=0)
    beside = saved_errors(twins, names, design(models, (), FIT), "twins")[["error_without", "error_with"]]
    return pd.concat([table, saved, beside.add_suffix("_twins").assign(twins=twins.models["twins"].nunique())], axis=1)


def ended_by_a_rule(models: pd.DataFrame) -> pd.Series:
    """Which models come from runs that stopped by a rule, not at the cap of epochs."""
    return models["stop_reason"].fillna("").str.startswith("rules")


def kinds_table(models: pd.DataFrame) -> pd.DataFrame:
    """The kinds of training of a study, and the share of the variance of the gap that lies between them, the same in every row."""
    parts = models.assign(by_rule=ended_by_a_rule(models)).groupby("kind", sort=False)
    table = parts.agg(models=("gap", "size"), ended_by_a_rule=("by_rule", "mean"), gap_least=("gap", "min"), gap_most=("gap", "max"))
    within = (models["gap"] - parts["gap"].transform("mean")).var() / models["gap"].var()
    medians = parts[["train_accuracy", "test_accuracy", "gap"]].median()
    return table.join(medians).assign(variance_between_kinds=1 - within).reset_index()
