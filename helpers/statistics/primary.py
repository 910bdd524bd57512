"""The primary analysis: what predicts the gaps of networks, and of held-out kinds.

Networks of one kind of training are no independent evidence: kinds explain most of the
variance of the gap. Where kinds repeat, whole kinds are drawn for intervals, and p is
that of the means of kinds; else units are configurations.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from helpers.statistics.correlate import (
    CONFIGURATION,
    FIT,
    Array,
    Bootstrap,
    design,
    scaled,
)
from helpers.statistics.gap_tables import answers
from helpers.statistics.permutation import holm, permuted_rows, sign_flip_p

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
START = "pretrained"
TRAINING = "training"
# What predicts the gap before any measure of the study is looked at.
TITLES = {
    START: "pretrained or not, alone",
    "train_accuracy": "training accuracy alone",
    "drop": "accuracy lost by shifts, alone",
    "drop_mixup": "accuracy lost by mixing, alone",
    "hyperparameters": "hyperparameters alone",
    "hyperparameters_and_training": "hyperparameters, training accuracy and loss",
    TRAINING: "training accuracy and loss alone",
}
ONE_COLUMN = tuple(TITLES)[:4]  # baselines that are a column of the models
MOST_MEASURES = 8  # of a primary analysis
FEWEST_FOLDS = 3
# Hoerl and Kennard 1970; the penalty is that with the least leave-one-out error.
_RIDGE = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2, 4, 13)))


def varied_axes(models: pd.DataFrame, axes: Sequence[str]) -> list[str]:
    """The hyperparameters that have more than one level.

    Args:
        models: a row per model.
        axes: hyperparameters.
    """
    return [name for name in axes if name in models and models[name].nunique() > 1]


def primary_rows(models: pd.DataFrame) -> NDArray[np.bool_]:
    """Mask of the models of the primary analysis, (n,).

    One network of each run, that at the stop, where the labels are right, training
    accuracy is above the paper's threshold and the training loss is finite.

    Args:
        models: a catalogue of n models.
    """
    at_stop = models["snapshot"].eq("stop")
    right_labels = models["label_noise"].eq(0)
    learnt = models["train_accuracy"] > PAPER_ACCURACY
    is_finite = np.isfinite(models[["gap", "train_loss"]].astype(float)).all(axis=1)
    return (at_stop & right_labels & learnt & is_finite).to_numpy()


def predictors_of(
    models: pd.DataFrame, axes: Sequence[str], measures: Collection[str]
) -> dict[str, Array]:
    """Columns from which each of ``TITLES``, and then each measure, predicts the gap.

    Args:
        models: n networks with hyperparameters, training accuracy and log loss.
        axes: the hyperparameters that vary among them.
        measures: columns, used together with training accuracy and loss; those of
            ``TITLES`` and those that the models lack are passed over.

    Returns:
        (n, k) by name; without a baseline that a network lacks, or in which all are
        alike.
    """
    columns = {
        name: design(models, (), [name])
        for name in varied_axes(models, ONE_COLUMN)
        if models[name].notna().all()
    }
    columns |= {
        # A column of 0, for networks that differ in no hyperparameter.
        "hyperparameters": np.insert(design(models, axes), 0, 0, axis=1),
        "hyperparameters_and_training": design(models, axes, FIT),
        TRAINING: design(models, (), FIT),
    }
    names = [name for name in measures if name in models and name not in TITLES]
    return columns | {name: design(models, (), [*FIT, name]) for name in names}


def primary_table(
    bootstrap: Bootstrap, measures: Sequence[str], *, permutations: int, looks: int = 1
) -> pd.DataFrame:
    """The primary analysis: baselines first, then the stated measures.

    Args:
        bootstrap: the n networks of ``primary_rows``, with measures, ``kind``,
            hyperparameters and log_train_loss.
        measures: columns, at most eight.
        permutations: number of random ones, where there are too many for all.
        looks: number of analyses of the study's data; intervals have the level
            1 - 0.05 / looks.

    Returns:
        A row per baseline (``TITLES``) and measure:

        - baseline: whether it is one; n networks; units, the number of kinds, or of
          configurations where kinds do not repeat; kinds; level of intervals;
        - r_gap, r_test_accuracy, r_gap_given_train_accuracy, r_gap_given_start,
          r_gap_given_start_and_training (accuracy and loss), with interval, smallest,
          p (see ``correlate``), and p_adjusted by Holm over the measures;
        - r_gap_within_kinds, given training accuracy and loss, whole settings drawn and
          permuted, and least_p, the smallest p that so few arrangements allow;
        - error_with: error of the gaps of held-out kinds, by a baseline alone, or by a
          measure with training accuracy and loss; error_with_twins: the same with twins
          held out together, kinds that differ in architecture alone;
        - saved_error_points: what a measure saves of the error of training accuracy and
          loss alone, with interval, smallest and p;
        - best_baseline: that with the least error_with_twins, error_best_twins, no
          measure looked at; saved_from_best_points is the difference, p by Holm.

    Raises:
        ValueError: for more than ``MOST_MEASURES``.
    """
    if len(measures) > MOST_MEASURES:
        raise ValueError(
            f"the primary analysis has {len(measures)} measures; name at most "
            f"{MOST_MEASURES} in primary_measures"
        )
    # Sorted by kind, so that a permutation that gives one setting the values of another
    # gives each network those of a network of its own kind.
    bootstrap = bootstrap.subset(np.argsort(bootstrap.models["kind"], kind="stable"))
    models = bootstrap.models.assign(**_groups(bootstrap.models))
    level = 1 - (1 - bootstrap.level) / looks
    bootstrap = replace(bootstrap, models=models, level=level)
    predictors = predictors_of(models, varied_axes(models, KIND + SETTING), measures)
    table = pd.DataFrame({"measure": [*predictors]})
    table["baseline"] = table["measure"].isin(TITLES)
    table["units"] = bootstrap.units.nunique()
    table["kinds"] = models["kind"].nunique()
    table["level"] = level
    names = [name for name in predictors if name in models]
    for answer in (
        _correlations(bootstrap, names, permutations),
        _within_kinds(bootstrap, table["measure"][~table["baseline"]], permutations),
        _errors(bootstrap, predictors),
    ):
        table = table.merge(answer, how="left", on="measure")
    table["n"] = table["n"].fillna(len(models)).astype(int)
    return table.drop(columns=table.filter(regex="_(null|band)$"))


def _groups(models: pd.DataFrame) -> dict[str, Any]:
    """Columns that name groups of networks, which are sorted by kind.

    Returns:
        setting: optimizer, rate, decay and batch, or the configuration where these do
        not vary; kinds: the kinds of all networks with this setting, joined (only
        settings with the same text are permuted); twins: the kind of training without
        its architecture.
    """
    text = models.astype(str)  # so that a sum joins columns
    setting = text.filter(items=SETTING).sum(axis=1)
    if setting.nunique() <= 1:
        setting = text[CONFIGURATION]
    pairs = zip(text["kind"], text["architecture"], strict=True)
    twins = [kind.replace(architecture, "") for kind, architecture in pairs]
    kinds = text["kind"].groupby(setting).transform("".join)
    return {"setting": setting, "kinds": kinds, "twins": twins}


def _correlations(
    bootstrap: Bootstrap, names: Sequence[str], permutations: int
) -> pd.DataFrame:
    """Correlations over all kinds by question, see ``primary_table``."""
    models = bootstrap.models
    start = [START] if START in names else []
    questions: dict[str, dict[str, Any]] = {
        "r_gap": {"given": design(models)},
        "r_test_accuracy": {"target": "test_accuracy", "given": design(models)},
        "r_gap_given_train_accuracy": {"given": design(models, (), FIT[:1])},
        "r_gap_given_start": {"given": design(models, start)},
        "r_gap_given_start_and_training": {"given": design(models, start, FIT)},
    }
    units = bootstrap.units.unique()
    rows = permuted_rows(units, permutations, bootstrap.seed)
    table = answers(bootstrap, names, questions, rows)
    is_baseline = np.isin(names, [*TITLES])
    for question in questions:
        of_family = table[f"{question}_p"].groupby(is_baseline)
        table[f"{question}_p_adjusted"] = of_family.transform(holm)
    return table


def _within_kinds(
    bootstrap: Bootstrap, names: Sequence[str], permutations: int
) -> pd.DataFrame:
    """r within kinds given training accuracy and loss, and the smallest possible p."""
    models = bootstrap.models
    bootstrap = replace(bootstrap, unit="setting")
    rows = permuted_rows(
        models["setting"], permutations, bootstrap.seed, models["kinds"]
    )
    questions = {"r_gap_within_kinds": {"given": design(models, ["kind"], FIT)}}
    table = answers(bootstrap, names, questions, rows).drop(columns="n")
    is_tested = table["r_gap_within_kinds"].notna()
    least = np.where(is_tested, 1 / (1 + len(rows)), np.nan)
    return table.assign(r_gap_within_kinds_least_p=least)


def held_out_errors(
    predictors: Array,
    gap: Array,
    folds: ArrayLike,
    fewest: int = FEWEST_FOLDS,
) -> Array:
    """Absolute errors of the gaps of held-out networks, as ridge regressions err.

    Args:
        predictors: (n, k), which are standardised; a network without one is left out.
        gap: (n,) fractions; predictions are clipped to [-1, 1].
        folds: (n,) group of each network; each group is held out in turn.
        fewest: groups.

    Returns:
        (n,) points; NaN with fewer than ``fewest`` groups.
    """
    errors = np.full(len(gap), np.nan)
    rows = np.isfinite(predictors).all(axis=1)
    folds = np.asarray(folds)[rows]
    if len(np.unique(folds)) >= fewest:
        columns = scaled(predictors[rows])
        each_in_turn = {"groups": folds, "cv": LeaveOneGroupOut()}
        predicted = cross_val_predict(_RIDGE, columns, gap[rows], **each_in_turn)
        errors[rows] = 100 * np.abs(gap[rows] - predicted.clip(-1, 1))
    return errors


def _errors(bootstrap: Bootstrap, predictors: Mapping[str, Array]) -> pd.DataFrame:
    """Errors of predictors on held-out kinds, see ``primary_table``."""
    models = bootstrap.models
    gap = models["gap"].to_numpy(float)

    def errors_of(predictors: Mapping[str, Array], folds: str) -> pd.DataFrame:
        """A column per predictor, each group of networks held out in turn."""
        errors = {
            name: held_out_errors(columns, gap, models[folds])
            for name, columns in predictors.items()
        }
        return pd.DataFrame(errors, models.index, dtype=float)

    of_kinds = errors_of(predictors, "kind")
    of_twins = errors_of(predictors, "twins")
    table = bootstrap.mean(of_kinds.to_numpy()).drop(columns="_smallest")
    table = table.add_prefix("error_with").set_axis([*predictors])
    table["error_with_twins"] = of_twins.mean()
    is_baseline = table.index.isin(TITLES)
    best = table["error_with_twins"][is_baseline].fillna(np.inf).idxmin()
    names = table.index[~is_baseline]
    table.loc[names, "best_baseline"] = best
    for question, folds, rival, errors in (
        ("saved_error_points", "kind", TRAINING, of_kinds),
        ("saved_from_best_points", "twins", best, of_twins),
    ):
        # A column of 0 adds nothing, but leaves out the networks without a value.
        rivals = {
            name: np.column_stack([predictors[rival], 0 * predictors[name][:, -1]])
            for name in names
        }
        without = errors_of(rivals, folds)
        points = (without - errors[names]).to_numpy()
        # Errors of twins are alike: their signs flip together.
        p = sign_flip_p(points, models["twins"], bootstrap.seed)
        saved = bootstrap.mean(points).assign(_p=p).add_prefix(question)
        table = table.join(saved.set_axis(names))
    table.loc[names, "saved_from_best_points_p_adjusted"] = holm(p)
    table["error_best_twins"] = without.mean()
    return table.rename_axis("measure").reset_index()
