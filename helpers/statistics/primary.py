"""The one primary analysis of a study.

It takes one network of each run, that at the stop, where the labels are right and the
training accuracy is above the paper's threshold.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from helpers.statistics.baselines import (
    START,
    TITLES,
    baselines_of,
    best_rival,
)
from helpers.statistics.bootstrap import (
    CONFIGURATION,
    DETECTABLE_Z,
    LEVEL,
    Bootstrap,
)
from helpers.statistics.claims import check_primary
from helpers.statistics.correlations import Array, design, finite_mean
from helpers.statistics.hyperparameters import varied_axes
from helpers.statistics.permutation import holm
from helpers.statistics.prediction import (
    FIT,
    Rivalry,
    folds_of,
    held_out_errors,
    saved_errors,
    with_log_train_loss,
)
from helpers.statistics.ranking import Question, answers

PAPER_ACCURACY = 0.8  # training accuracy above which Du et al. 2024 keep a model
SETTING = ["optimizer", "learning_rate", "weight_decay", "batch_size"]
KIND = [
    "pretrained",
    "augmentation",
    "architecture",
    "images_per_class",
    "looking",
    "strong_augmentation",
    "label_smoothing",
    "frozen_stages",
]
_START_AND_AUGMENTATION = ["pretrained", "augmentation"]
WITHIN_SETTINGS = "r_gap_within_settings"


def primary_rows(models: pd.DataFrame) -> np.ndarray:
    """Mask of the models of the primary analysis, (n,) bool.

    Args:
        models: a catalogue of n models.
    """
    at_stop = models["snapshot"].eq("stop")
    right_labels = models["label_noise"].eq(0)
    learnt = models["train_accuracy"] > PAPER_ACCURACY
    return (at_stop & right_labels & learnt & models["gap"].notna()).to_numpy()


def primary_table(
    bootstrap: Bootstrap, measures: Sequence[str], *, permutations: int, looks: int = 1
) -> pd.DataFrame:
    """The primary analysis: baselines first, then the stated measures.

    Every number is about the kinds of training of the study, not about others. A
    setting (optimizer, learning rate, weight decay, batch size) is shared by many kinds
    and shifts their gaps alike, so within kinds whole settings are drawn and permuted.

    Args:
        bootstrap: the n networks of ``primary_rows``, with measures, ``kind`` and
            hyperparameters.
        measures: columns, at most eight.
        permutations: number of random ones, where there are too many for all.
        looks: number of analyses of the study's data; verdicts use 0.05 / looks.

    Returns:
        A row per baseline (``baselines.TITLES``) and measure:

        - baseline: whether it is one; n: number of networks; level: of intervals;
        - kinds: number of kinds; twins: the same if architectures do not count, since
          twins are kinds that differ in architecture alone;
        - r_gap, r_test_accuracy and r_gap_given_start (whether pretrained), with
          interval and p, see ``ranking.answers``;
        - r_gap_within_kinds, given training accuracy and loss, with its interval, p
          and least_p, the smallest p that so few arrangements allow;
        - r_gap_within_settings, with settings held fixed too, for each start and
          augmentation; its p and the smallest r that it could tell;
        - error_with: error of the gaps of held-out kinds, by a baseline alone, or by a
          measure with training accuracy and loss;
        - error_without: the same by training accuracy and loss alone;
          saved_error_points is the difference, with its interval and p;
        - error_worst: error_with of the kind where it is largest;
        - error_with_twins: as error_with, but twins are held out together;
        - best_baseline: of ``baselines.RIVALS`` that with the least such error,
          error_best_twins; no measure is looked at to choose it. saved_from_best_points
          is the difference to error_with_twins, with its interval, p, and _p_adjusted
          by Holm for all measures.
    """
    check_primary(measures)
    # Sorted by kind, so that a permutation that gives one setting the values of another
    # gives each network those of a network of its own kind.
    bootstrap = bootstrap.subset(np.argsort(bootstrap.models["kind"], kind="stable"))
    bootstrap = bootstrap.assign(**_groups(bootstrap.models))
    level = 1 - (1 - LEVEL) / looks
    models = bootstrap.models
    axes = varied_axes(models, [name for name in KIND + SETTING if name in models])
    baselines = baselines_of(models, axes)
    table = pd.concat(
        [
            _baseline_rows(bootstrap, baselines, permutations, level),
            _measure_rows(bootstrap, list(measures), baselines, permutations, level),
        ],
        ignore_index=True,
    )
    table["baseline"] = table["measure"].isin(list(TITLES))
    table["kinds"] = models["kind"].nunique()
    table["twins"] = models["twins"].nunique()
    table["level"] = level
    first = ["measure", "baseline", "n", "kinds", "twins", "level"]
    return table[[*first, *table.columns.difference(first, sort=False)]]


def _groups(models: pd.DataFrame) -> dict[str, pd.Series]:
    """Columns that name groups of networks.

    Args:
        models: sorted by kind.

    Returns:
        setting: optimizer, rate, decay and batch, or the configuration where these do
        not vary; by_start: setting, start and augmentation; kinds: the kinds of all
        networks with this setting, joined (only settings with the same text are
        permuted); twins: the kind of training without its architecture.
    """
    text = models.astype(str)  # so that a sum joins columns
    setting = text.filter(items=SETTING).sum(axis=1)
    if setting.nunique() <= 1:
        setting = models[CONFIGURATION]
    twins = [
        kind.replace(architecture, "")
        for kind, architecture in zip(
            models["kind"], models["architecture"], strict=True
        )
    ]
    return {
        "setting": setting,
        "by_start": text.filter(items=[*_START_AND_AUGMENTATION, *SETTING]).sum(axis=1),
        "kinds": text["kind"].groupby(setting).transform("".join),
        "twins": pd.Series(twins, models.index, dtype=object),
    }


def _correlations(
    bootstrap: Bootstrap, names: list[str], permutations: int, level: float
) -> pd.DataFrame:
    """Correlations over all kinds, with gap and test accuracy, and given the start."""
    covariates = design(bootstrap.models, [START] if START in bootstrap.models else [])
    questions = [
        Question("r_gap"),
        Question("r_test_accuracy", target="test_accuracy"),
        Question("r_gap_given_start", covariates=covariates),
    ]
    rows = bootstrap.permutations(permutations)
    table = pd.DataFrame({"measure": names})
    table["n"] = np.isfinite(bootstrap.models[names].astype(float)).sum().to_numpy()
    for question in questions:
        columns, _ = answers(bootstrap, names, question, rows, level)
        table = table.assign(**columns)
    return table


def _baseline_rows(
    bootstrap: Bootstrap,
    baselines: Mapping[str, Array],
    permutations: int,
    level: float,
) -> pd.DataFrame:
    """Rows of the baselines: errors of each, and r of the start."""
    models = bootstrap.models
    gap = models["gap"].to_numpy(dtype=float)
    table = pd.DataFrame({"measure": list(baselines), "n": len(models)})
    start = [name for name in baselines if name == START]
    correlations = _correlations(bootstrap, start, permutations, level)
    table = table.merge(correlations.drop(columns="n"), how="left", on="measure")
    errors = _errors(baselines, gap, folds_of(bootstrap, "kind"))
    mean, low, high = bootstrap.mean(errors, level)
    table["error_with"] = mean
    table["error_with_low"] = low
    table["error_with_high"] = high
    table["error_worst"] = (
        pd.DataFrame(errors).groupby(models["kind"].to_numpy()).mean().max()
    )
    twins = _errors(baselines, gap, folds_of(bootstrap, "twins"))
    table["error_with_twins"] = finite_mean(twins)
    return table


def _errors(baselines: Mapping[str, Array], gap: Array, folds: Array) -> Array:
    """Errors of the gap by each baseline, (n, baselines), in points."""
    return np.column_stack(
        [held_out_errors(columns, gap, folds) for columns in baselines.values()]
    )


def _measure_rows(
    bootstrap: Bootstrap,
    names: list[str],
    baselines: Mapping[str, Array],
    permutations: int,
    level: float,
) -> pd.DataFrame:
    """Rows of the measures."""
    models = with_log_train_loss(bootstrap.models)
    gap = models["gap"].to_numpy(dtype=float)
    fit = design(models, (), FIT)  # training accuracy and log training loss, (n, 2)
    table = _correlations(bootstrap, names, permutations, level)
    table = table.assign(**_within_kinds(bootstrap, names, permutations, level))
    table = table.assign(**_within_settings(bootstrap, names, permutations))

    # Errors of twins are alike: the test of saved errors flips their signs together.
    with_fit = Rivalry(predictors=fit, left_out="kind", alike="twins")
    saved = saved_errors(bootstrap, names, with_fit, level)
    table = table.assign(**saved.drop(columns="measure"))

    best = best_rival(baselines, gap, folds_of(bootstrap, "twins"))
    with_best = Rivalry(predictors=fit, rival=baselines[best], left_out="twins")
    twins = saved_errors(bootstrap, names, with_best, level)
    table["best_baseline"] = best
    table["error_best_twins"] = twins["error_without"]
    table["error_with_twins"] = twins["error_with"]
    for end in ("", "_low", "_high", "_p"):
        table[f"saved_from_best_points{end}"] = twins[f"saved_error_points{end}"]
    table["saved_from_best_points_p_adjusted"] = holm(twins["saved_error_points_p"])
    return table


def _within_kinds(
    bootstrap: Bootstrap, names: list[str], permutations: int, level: float
) -> dict[str, Array]:
    """r within kinds given training accuracy and loss, and the smallest possible p."""
    by_setting = bootstrap.resampling("setting")
    rows = by_setting.permutations(permutations, "kinds")
    covariates = design(with_log_train_loss(bootstrap.models), ["kind"], FIT)
    question = Question("r_gap_within_kinds", covariates=covariates)
    columns, _ = answers(by_setting, names, question, rows, level)
    is_defined = np.isfinite(columns["r_gap_within_kinds"])
    columns["r_gap_within_kinds_least_p"] = np.where(
        is_defined, 1 / (1 + len(rows)), np.nan
    )
    return columns


def _within_settings(
    bootstrap: Bootstrap, names: list[str], permutations: int
) -> dict[str, Array]:
    """r within kinds with settings held fixed too, see ``by_start``; p, smallest r.

    There is no interval: a draw repeats configurations, so it has too few different
    ones for so many columns. The smallest r that has 80 % power is by Fisher's
    transformation, for the degrees of freedom that are left.
    """
    models = with_log_train_loss(bootstrap.models)
    covariates = design(models, ["kind", "by_start"], FIT)
    question = Question(WITHIN_SETTINGS, covariates=covariates)
    rows = bootstrap.permutations(permutations, "kind")
    columns, _ = answers(bootstrap, names, question, rows)
    with_intercept = np.column_stack([np.ones(len(models)), covariates])
    rank = np.linalg.matrix_rank(with_intercept)
    n = np.isfinite(models[names].astype(float)).sum().to_numpy()
    freedom = n - rank - 2  # n - 3 for a correlation without columns held fixed
    smallest = np.tanh(DETECTABLE_Z / np.sqrt(np.where(freedom > 0, freedom, np.nan)))
    is_defined = np.isfinite(columns[WITHIN_SETTINGS])
    return {
        WITHIN_SETTINGS: columns[WITHIN_SETTINGS],
        f"{WITHIN_SETTINGS}_p": columns[f"{WITHIN_SETTINGS}_p"],
        f"{WITHIN_SETTINGS}_smallest": np.where(is_defined, smallest, np.nan),
    }


def ended_by_a_rule(models: pd.DataFrame) -> pd.Series:
    """Mask of the models of runs that stopped by a rule, not at the cap of epochs.

    Args:
        models: a catalogue.
    """
    return models["stop_reason"].fillna("").str.startswith("rules")


def kinds_table(models: pd.DataFrame) -> pd.DataFrame:
    """The kinds of training of a study.

    Args:
        models: a row per model.

    Returns:
        A row per kind: its number of models, the share of them that ended by a rule,
        its least and largest gap, and medians. variance_between_kinds, the same in
        every row, is the share of the variance of the gap that lies between kinds,
        adjusted for degrees of freedom (epsilon squared, Kelley 1935), so that it is 0
        in the mean where kinds do not matter.
    """
    by_kind = models.assign(by_rule=ended_by_a_rule(models)).groupby("kind", sort=False)
    table = by_kind.agg(
        models=("gap", "size"),
        ended_by_a_rule=("by_rule", "mean"),
        gap_least=("gap", "min"),
        gap_most=("gap", "max"),
    )
    within_kinds = (models["gap"] - by_kind["gap"].transform("mean")).pow(2).sum()
    freedom = len(models) - len(by_kind)
    variance = models["gap"].var()
    share_within = np.nan
    if freedom > 0 and variance > 0:
        share_within = within_kinds / freedom / variance
    medians = by_kind[["train_accuracy", "test_accuracy", "gap"]].median()
    table = table.join(medians).assign(variance_between_kinds=1 - share_within)
    return table.reset_index()
