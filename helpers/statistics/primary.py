"""The one primary analysis of a study: one model a run at its stop, right labels, above the training accuracy of the paper."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from helpers.statistics.claims import check_primary
from helpers.statistics.correlations import design
from helpers.statistics.draws import LEVEL, Draws
from helpers.statistics.hyperparameters import varied_axes
from helpers.statistics.prediction import FIT, known_in_advance, saved_errors, with_fit
from helpers.statistics.ranking import answers

PAPER_ACCURACY = 0.8  # training accuracy above which Du et al. 2024 keep a model
_START, SETTING = (
    ["pretrained", "augmentation"],
    ["optimizer", "learning_rate", "weight_decay", "batch_size"],
)
_KIND = [*_START, "architecture", "images_per_class"]
_LEFT = "r_gap_within_settings"


def primary_rows(models: pd.DataFrame) -> np.ndarray:
    """Which models of a catalogue the primary analysis takes, (n,) bool."""
    kept = (
        models["snapshot"].eq("stop")
        & models["label_noise"].eq(0)
        & (models["train_accuracy"] > PAPER_ACCURACY)
    )
    return (kept & models["gap"].notna()).to_numpy()


def primary_table(
    draws: Draws, measures: Sequence[str], *, permutations: int, looks: int = 1
) -> pd.DataFrame:
    """For each measure: r with the gap, r within kinds of training given the fit, and what it saves in predicting a kind left out.

    Of the models of ``primary_rows``; kinds are named by ``training.config.kind_name``. Every number speaks of these kinds, not of others.
    A setting (optimizer, rate, decay, batch size) is the same in many kinds and shifts them alike, so within kinds whole settings are drawn
    and change places. r_gap_within_settings holds them fixed too, for each start: what is left beside which of them suit which start.
    Ends _twins: a kind is left out in all its architectures at once, ``twins`` is how many these are, and p of what is saved turns them
    together. error_known is that of hyperparameters and fit, which every measure is to be held against.
    """
    check_primary(measures)
    draws = draws.of(
        np.argsort(draws.models["kind"], kind="stable")
    )  # so that settings of the same kinds have them in the same order
    models, names, level = (
        with_fit(draws.models),
        list(measures),
        1 - (1 - LEVEL) / looks,
    )
    text = models.astype(str)
    setting, by_start = (
        text.filter(items=columns).sum(axis=1)
        for columns in (SETTING, [*_START, *SETTING])
    )
    setting = setting if setting.nunique() > 1 else models["cell"]
    alike = [
        kind.replace(architecture, "")
        for kind, architecture in zip(
            models["kind"], models["architecture"], strict=True
        )
    ]
    draws = draws.assign(
        twins=alike,
        by_start=by_start,
        kinds=text["kind"].groupby(setting).transform("".join),
    )
    n = np.isfinite(models[names].astype(float)).sum().to_numpy()
    table = pd.DataFrame(
        {"measure": names, "n": n, "kinds": models["kind"].nunique(), "level": level}
    )
    asked = (
        ("r_gap", draws, None, None),
        ("r_gap_within_kinds", draws.assign(cell=setting), "kinds", ["kind"]),
    )
    for question, drawn, within, fixed in (
        *asked,
        (_LEFT, draws, "kind", ["kind", "by_start"]),
    ):
        given = design(with_fit(drawn.models), fixed, FIT) if fixed else None
        table = table.assign(
            **answers(
                drawn,
                names,
                question,
                drawn.permutations(permutations, within),
                given,
                level,
            )[0]
        )
    # A draw repeats configurations, so it has too few of them for so many columns: there is no interval.
    table = table.drop(
        columns=[
            f"{_LEFT}{end}"
            for end in ("_low", "_high", "_smallest", "_null", "_p_adjusted")
        ]
    )
    fit, axes = (
        design(models, (), FIT),
        varied_axes(models, [name for name in _KIND + SETTING if name in models]),
    )
    saved = saved_errors(draws, names, fit, "kind", level, "twins").drop(
        columns="measure"
    )
    beside = saved_errors(draws, names, fit, "twins")[["error_without", "error_with"]]
    for part, left_out in ((saved, "kind"), (beside, "twins")):
        part["error_known"] = known_in_advance(draws, axes, left_out)[
            "error_points"
        ].iloc[-1]
    return pd.concat(
        [
            table,
            saved,
            beside.add_suffix("_twins").assign(twins=draws.models["twins"].nunique()),
        ],
        axis=1,
    )


def ended_by_a_rule(models: pd.DataFrame) -> pd.Series:
    """Which models come from runs that stopped by a rule, not at the cap of epochs."""
    return models["stop_reason"].fillna("").str.startswith("rules")


def kinds_table(models: pd.DataFrame) -> pd.DataFrame:
    """The kinds of training of a study, and the share of the variance of the gap that lies between them, the same in every row.

    That share is adjusted for degrees of freedom (epsilon squared, Kelley 1935), so that it is 0 in the mean where kinds do not matter.
    """
    parts = models.assign(by_rule=ended_by_a_rule(models)).groupby("kind", sort=False)
    table = parts.agg(
        models=("gap", "size"),
        ended_by_a_rule=("by_rule", "mean"),
        gap_least=("gap", "min"),
        gap_most=("gap", "max"),
    )
    within_kinds = (models["gap"] - parts["gap"].transform("mean")).pow(2).sum()
    freedom = len(models) - len(parts)
    variance = models["gap"].var()
    share_within = np.nan
    if freedom > 0 and variance > 0:
        share_within = within_kinds / freedom / variance
    medians = parts[["train_accuracy", "test_accuracy", "gap"]].median()
    return (
        table.join(medians)
        .assign(variance_between_kinds=1 - share_within)
        .reset_index()
    )
