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
from numpy.typing import NDArray

from helpers.statistics.correlate import (
    CONFIGURATION,
    FIT,
    Array,
    Bootstrap,
    correlate,
    design,
    finite_mean,
    tested,
    with_log_train_loss,
)
from helpers.statistics.held_out import errors_with, held_out_errors, predict_gaps
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


def by_kinds(bootstrap: Bootstrap) -> Bootstrap:
    """Draw whole kinds of training where kinds repeat, else configurations.

    Args:
        bootstrap: of networks with a column kind.
    """
    repeats = bootstrap.models["kind"].duplicated().any()
    return replace(bootstrap, unit="kind") if repeats else bootstrap


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


def baselines_of(models: pd.DataFrame, axes: Sequence[str]) -> dict[str, Array]:
    """Columns from which each of ``TITLES`` predicts the gap.

    Args:
        models: n networks with hyperparameters, training accuracy and log loss.
        axes: the hyperparameters that vary among them.

    Returns:
        (n, k) by name; without the start where all have the same, and without a column
        that a network lacks.
    """
    columns = {
        name: design(models, (), [name])
        for name in ONE_COLUMN[1:]
        if name in models and models[name].notna().all()
    }
    if START in axes:
        columns = {START: design(models, [START])} | columns
    return columns | {
        "hyperparameters": design(models, axes),
        "hyperparameters_and_training": design(models, axes, FIT),
        TRAINING: design(models, (), FIT),
    }


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
        ValueError: for more than ``MOST_MEASURES``, or a measure named twice.
    """
    if len(measures) > MOST_MEASURES or len(set(measures)) < len(measures):
        raise ValueError(
            f"the primary analysis has {len(measures)} measures, {len(set(measures))} "
            f"of them different; name at most {MOST_MEASURES} different ones in "
            "primary_measures"
        )
    names = [name for name in measures if name not in TITLES]
    # Sorted by kind, so that a permutation that gives one setting the values of another
    # gives each network those of a network of its own kind.
    bootstrap = bootstrap.subset(np.argsort(bootstrap.models["kind"], kind="stable"))
    models = bootstrap.models.assign(**_groups(bootstrap.models))
    level = 1 - (1 - bootstrap.level) / looks
    bootstrap = by_kinds(replace(bootstrap, models=models, level=level))
    baselines = baselines_of(models, varied_axes(models, KIND + SETTING))
    table = pd.DataFrame({"measure": [*baselines, *names]})
    for answer in (
        _correlations(bootstrap, names, baselines, permutations),
        _within_kinds(bootstrap, names, permutations),
        _errors(bootstrap, names, baselines),
    ):
        table = table.merge(answer, how="left", on="measure")
    facts = {
        "baseline": table["measure"].isin(baselines),
        "n": table.pop("n").fillna(len(models)).astype(int),
        "units": models[bootstrap.unit].nunique(),
        "kinds": models["kind"].nunique(),
        "level": level,
    }
    for place, (name, values) in enumerate(facts.items(), 1):
        table.insert(place, name, values)
    return table


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


def named(answer: pd.DataFrame, question: str) -> pd.DataFrame:
    """Columns of ``correlate`` under the name of a question.

    Args:
        answer: of ``correlate``.
        question: such as "r_gap", the name of its r.
    """
    answer = answer.drop(columns=["measure", "n", "units"], errors="ignore")
    return answer.rename(
        columns=lambda name: question if name == "r" else f"{question}_{name}"
    )


def _correlations(
    bootstrap: Bootstrap,
    measures: Sequence[str],
    baselines: Collection[str],
    permutations: int,
) -> pd.DataFrame:
    """Correlations over all kinds by question, see ``primary_table``."""
    models = bootstrap.models
    names = [*(name for name in baselines if name in ONE_COLUMN), *measures]
    start = [START] if START in baselines else []
    questions = {
        "r_gap": ("gap", design(models)),
        "r_test_accuracy": ("test_accuracy", design(models)),
        "r_gap_given_train_accuracy": ("gap", design(models, (), FIT[:1])),
        "r_gap_given_start": ("gap", design(models, start)),
        "r_gap_given_start_and_training": ("gap", design(models, start, FIT)),
    }
    codes, units = pd.factorize(models[bootstrap.unit])
    rows = permuted_rows(units, permutations, bootstrap.seed)
    is_baseline = np.isin(names, [*baselines])
    tables = []
    for question, (target, given) in questions.items():
        answer = correlate(bootstrap, names, target, given=given)
        x, y, held = (
            pd.DataFrame(values).astype(float).groupby(codes).mean().to_numpy()
            for values in (models[names], models[target], given)
        )
        p = tested(x, y.ravel(), rows, given=held)["p"]
        answer["p"] = np.where(answer["r"].notna(), p, np.nan)
        answer["p_adjusted"] = answer["p"].groupby(is_baseline).transform(holm)
        tables.append(named(answer, question))
    return answer[["measure", "n"]].join(tables)


def _within_kinds(
    bootstrap: Bootstrap, names: Sequence[str], permutations: int
) -> pd.DataFrame:
    """r within kinds given training accuracy and loss, and the smallest possible p."""
    models = bootstrap.models
    settings, kinds = models["setting"], models["kinds"]
    rows = permuted_rows(settings, permutations, bootstrap.seed, kinds)
    answer = correlate(
        replace(bootstrap, unit="setting"),
        names,
        given=design(models, ["kind"], FIT),
        permutations=rows,
    )
    answer["least_p"] = np.where(answer["r"].notna(), 1 / (1 + len(rows)), np.nan)
    columns = named(answer.drop(columns=["null", "band"]), "r_gap_within_kinds")
    return answer[["measure"]].join(columns)


def _errors(
    bootstrap: Bootstrap, names: Sequence[str], baselines: Mapping[str, Array]
) -> pd.DataFrame:
    """Errors of baselines and measures on held-out kinds, see ``primary_table``."""
    models = bootstrap.models
    gap = models["gap"].to_numpy(float)
    x = models[list(names)].to_numpy(float)
    fit = baselines[TRAINING]
    folds = {name: pd.factorize(models[name])[0] for name in ("kind", "twins")}
    of_baselines, of_measures = {}, {}
    for name, of_models in folds.items():
        errors = [held_out_errors(c, gap, of_models) for c in baselines.values()]
        of_baselines[name] = np.stack(errors, axis=1)
        of_measures[name] = errors_with(fit, x, gap, of_models)
    errors = {
        name: np.hstack([of_baselines[name], of_measures[name]]) for name in folds
    }
    table = pd.DataFrame({"measure": [*baselines, *names]})
    error = bootstrap.mean(errors["kind"]).drop(columns="_smallest")
    table = table.join(error.add_prefix("error_with"))
    table["error_with_twins"] = finite_mean(errors["twins"])
    mean_errors = finite_mean(of_baselines["twins"])
    best = [*baselines][np.nan_to_num(mean_errors, nan=np.inf).argmin()]
    saved = pd.DataFrame({"measure": names, "best_baseline": best})
    for name, held_out, rival in (
        ("saved_error_points", "kind", fit),
        ("saved_from_best_points", "twins", baselines[best]),
    ):
        without = errors_with(rival, 0 * x, gap, folds[held_out])
        points = without - of_measures[held_out]
        # Errors of twins are alike: their signs flip together.
        p = sign_flip_p(points, models["twins"], bootstrap.seed)
        saved = saved.join(bootstrap.mean(points).assign(_p=p).add_prefix(name))
    saved["saved_from_best_points_p_adjusted"] = holm(p)
    saved["error_best_twins"] = finite_mean(without)
    return table.merge(saved, how="left", on="measure")


def starts_table(bootstrap: Bootstrap, measures: Collection[str]) -> pd.DataFrame:
    """r with the gap among networks of one start alone.

    Args:
        bootstrap: networks of the primary analysis.
        measures: columns; others are passed over.

    Returns:
        A row per start ("pretrained", "scratch") and measure, see ``correlate``; whole
        kinds are drawn where they repeat.
    """
    models = bootstrap.models
    names = [name for name in measures if name in models and name != START]
    is_pretrained = models[START].astype(bool)
    starts = {"pretrained": is_pretrained, "scratch": ~is_pretrained}
    tables = {
        start: correlate(by_kinds(bootstrap.subset(rows)), names)
        for start, rows in starts.items()
        if rows.any()
    }
    return pd.concat(tables, names=["start", None]).reset_index("start")


def across_studies(
    studies: Mapping[str, pd.DataFrame],
    judged_on: str,
    measures: Mapping[str, str],
    *,
    draws: int = 2_000,
) -> pd.DataFrame:
    """Error of the gap in one study as predicted by ridge regressions on another.

    Args:
        studies: networks of the primary analysis by study, with hyperparameters,
            training accuracy and loss, gap, kind, configuration and measures.
        judged_on: the study whose gaps are predicted, from each of the others.
        measures: column and title of each measure, which is used together with training
            accuracy and loss.
        draws: number of bootstrap draws, for the intervals.

    Returns:
        A row per other study and predictor: measure (a column, or a key of
        ``TITLES``), title, baseline, trained_on, judged_on, n, and error_points with
        error_points_low and _high. Errors are NaN where any network of either study has
        no value of the measure.
    """
    new = with_log_train_loss(studies[judged_on])
    bootstrap = by_kinds(Bootstrap(new, draws=draws))
    columns = "measure title baseline trained_on judged_on n error_points"
    ends = "error_points_low error_points_high"
    tables = [pd.DataFrame(columns=[*columns.split(), *ends.split()])]
    for trained_on in [name for name in studies if name != judged_on]:
        old = with_log_train_loss(studies[trained_on])
        models = pd.concat([old, new], ignore_index=True)
        is_new = np.arange(len(models)) >= len(old)
        gap = models["gap"].to_numpy(float)
        shared = [name for name in KIND + SETTING if name in old and name in new]
        predictors = baselines_of(models, varied_axes(models, shared))
        for name in measures:
            if name in models and name not in TITLES:
                predictors[name] = design(models, (), [*FIT, name])
        errors = np.full((len(new), len(predictors)), np.nan)
        for number, columns in enumerate(predictors.values()):
            if np.isfinite(columns).all() and len(old) and len(new):
                predicted = predict_gaps(columns, gap, is_new)
                errors[:, number] = 100 * np.abs(gap[is_new] - predicted)
        titles = measures | TITLES
        facts = {
            "measure": [*predictors],
            "title": [titles[name] for name in predictors],
            "baseline": [name in TITLES for name in predictors],
            "trained_on": trained_on,
            "judged_on": judged_on,
            "n": len(new),
        }
        error = bootstrap.mean(errors).drop(columns="_smallest")
        tables.append(pd.DataFrame(facts).join(error.add_prefix("error_points")))
    return pd.concat(tables, ignore_index=True)
