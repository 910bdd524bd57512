"""Tables on the gap: primary analysis, ranking, Du's Tables 3 and 4, confounders."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from helpers.statistics import beyond
from helpers.statistics.claims import ADDED
from helpers.statistics.correlate import (
    CONFIGURATION,
    FIT,
    PERMUTATIONS,
    Array,
    Bootstrap,
    Rows,
    correlate,
    design,
    finite_mean,
    gamma,
    held_out_errors,
    holm,
    kendall,
    of_table,
    pair_counts,
    permuted_rows,
    predict_gaps,
    random_folds,
    same_models,
    sign_flip_p,
    tested,
    with_log_train_loss,
)
from helpers.statistics.reliability import reliability

PAPER_ACCURACY = 0.8  # training accuracy above which Du et al. 2024 keep a model
TOTAL = "Total"
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
# Kinds of rows of ``confounders``.
POOLED = "pooled"
WITHIN = "within a level"
GIVEN_ALL = "given all"
GIVEN_ONE = "given one"
GRANULATED = "granulated"
# Names of the columns of ``correlate`` in published tables.
_PUBLISHED = {"units": "cells", "r": "pearson_r", "low": "ci_low", "high": "ci_high"}


def by_kinds(bootstrap: Bootstrap) -> Bootstrap:
    """Draw whole kinds of training where kinds repeat, else configurations.

    Args:
        bootstrap: of networks with a column kind.
    """
    if not bootstrap.models["kind"].duplicated().any():
        return bootstrap
    return replace(bootstrap, unit="kind")


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
    fit = design(models, (), FIT)
    hyperparameters = design(models, axes)
    columns = {
        name: design(models, (), [name])
        for name in ONE_COLUMN[1:]
        if name in models and models[name].notna().all()
    }
    if START in axes:
        columns[START] = design(models, [START])
    columns |= {
        "hyperparameters": hyperparameters,
        "hyperparameters_and_training": np.hstack([hyperparameters, fit]),
        TRAINING: fit,
    }
    return {name: columns[name] for name in TITLES if name in columns}


def primary_table(
    bootstrap: Bootstrap, measures: Sequence[str], *, permutations: int, looks: int = 1
) -> pd.DataFrame:
    """The primary analysis: baselines first, then the stated measures.

    Networks of one kind of training are no independent evidence: kinds explain most of
    the variance of the gap. Where kinds repeat, whole kinds are drawn for intervals,
    and p is that of the means of kinds; else units are configurations.

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
          configurations where kinds do not repeat; level of intervals; kinds; twins,
          the number of kinds if architectures do not count;
        - r_gap, r_test_accuracy, r_gap_given_train_accuracy, r_gap_given_start,
          r_gap_given_start_and_training (accuracy and loss), with interval, smallest,
          null, p (see ``correlate``), and p_adjusted by Holm over the measures;
        - r_gap_within_kinds, given training accuracy and loss, whole settings drawn and
          permuted, and least_p, the smallest p that so few arrangements allow;
        - error_with: error of the gaps of held-out kinds, by a baseline alone, or by a
          measure with training accuracy and loss; error_worst: of the worst kind;
          error_with_twins: the same with twins held out together;
        - error_without: by training accuracy and loss alone; saved_error_points is the
          difference, with interval, smallest and p;
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
    table = _errors(bootstrap, names, baselines)
    for answer in (
        _correlations(bootstrap, names, baselines, permutations),
        _within_kinds(bootstrap, names, permutations),
    ):
        table = table.merge(answer, how="left", on="measure")
    table["n"] = table["n"].fillna(len(models)).astype(int)
    table["units"] = models[bootstrap.unit].nunique()
    table["kinds"] = models["kind"].nunique()
    table["twins"] = models["twins"].nunique()
    table["baseline"] = table["measure"].isin(list(TITLES))
    table["level"] = level
    first = ["measure", "baseline", "n", "units", "kinds", "twins", "level"]
    of_r = [name for name in table if name.startswith("r_")]
    rest = table.columns.difference([*first, *of_r], sort=False)
    return table[[*first, *of_r, *rest]]


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
    bootstrap: Bootstrap,
    measures: Sequence[str],
    baselines: Collection[str],
    permutations: int,
) -> pd.DataFrame:
    """Correlations over all kinds by question, see ``primary_table``."""
    models = bootstrap.models
    names = [*(name for name in baselines if name in ONE_COLUMN), *measures]
    start = [START] if START in baselines else []
    questions: dict[str, tuple[str, Array | None]] = {
        "r_gap": ("gap", None),
        "r_test_accuracy": ("test_accuracy", None),
        "r_gap_given_train_accuracy": ("gap", design(models, (), FIT[:1])),
        "r_gap_given_start": ("gap", design(models, start)),
        "r_gap_given_start_and_training": ("gap", design(models, start, FIT)),
    }
    table = pd.DataFrame({"measure": names})
    table["n"] = models[names].notna().sum().to_numpy()
    codes, units = pd.factorize(models[bootstrap.unit])
    rows = permuted_rows(units, permutations, bootstrap.seed)
    x = _means(models[names].astype(float), codes)
    is_baseline = np.isin(names, [*baselines])
    for question, (target, given) in questions.items():
        answer = correlate(bootstrap, names, target, given=given)
        held = None if given is None else _means(given, codes)
        test = tested(x, _means(models[target], codes)[:, 0], rows, given=held)
        of_means = pd.DataFrame(test)[["null", "p"]]
        answer = answer.join(of_means[answer["r"].notna()])
        answer["p_adjusted"] = answer["p"].groupby(is_baseline).transform(holm)
        table = table.join(_named(answer, question))
    return table


def _means(values: Any, codes: Rows) -> Array:
    """Means of the models of each unit: (n, k) -> (units, k)."""
    return pd.DataFrame(values).groupby(codes).mean().to_numpy()


def _named(answer: pd.DataFrame, question: str) -> pd.DataFrame:
    """Columns of ``correlate`` under the name of a question."""
    answer = answer.drop(columns=["measure", "n", "units", "band"], errors="ignore")
    return answer.rename(
        columns=lambda name: question if name == "r" else f"{question}_{name}"
    )


def _within_kinds(
    bootstrap: Bootstrap, names: Sequence[str], permutations: int
) -> pd.DataFrame:
    """r within kinds given training accuracy and loss, and the smallest possible p."""
    question = "r_gap_within_kinds"
    models = bootstrap.models
    by_setting = replace(bootstrap, unit="setting")
    settings, kinds = models["setting"], models["kinds"]
    rows = permuted_rows(settings, permutations, bootstrap.seed, kinds)
    given = design(models, ["kind"], FIT)
    answer = correlate(by_setting, names, given=given, permutations=rows)
    table = answer[["measure"]].join(_named(answer, question))
    least = np.where(answer["r"].notna(), 1 / (1 + len(rows)), np.nan)
    return table.assign(**{f"{question}_least_p": least})


def _errors(
    bootstrap: Bootstrap, names: Sequence[str], baselines: Mapping[str, Array]
) -> pd.DataFrame:
    """Errors of baselines and measures on held-out kinds, see ``primary_table``."""
    models = bootstrap.models
    gap = models["gap"].to_numpy(float)
    x = models[list(names)].to_numpy(float)
    fit = baselines[TRAINING]
    folds = {name: pd.factorize(models[name])[0] for name in ("kind", "twins")}
    errors = {}
    for name, of_models in folds.items():
        of_baselines = [held_out_errors(c, gap, of_models) for c in baselines.values()]
        of_measures = errors_with(fit, x, gap, of_models)
        errors[name] = np.column_stack([*of_baselines, of_measures])
    table = pd.DataFrame({"measure": [*baselines, *names]})
    error = bootstrap.mean(errors["kind"]).drop(columns="_smallest")
    table = table.join(error.add_prefix("error_with"))
    by_kind = pd.DataFrame(errors["kind"]).groupby(folds["kind"])
    table["error_worst"] = by_kind.mean().max()
    table["error_with_twins"] = finite_mean(errors["twins"])
    count = len(baselines)
    best = int(np.nan_to_num(table["error_with_twins"][:count], nan=np.inf).argmin())
    of_measures = pd.DataFrame({"measure": names, "best_baseline": [*baselines][best]})
    best_columns = [*baselines.values()][best]
    for name, of_rival, held_out, rival in (
        ("saved_error_points", "error_without", "kind", fit),
        ("saved_from_best_points", "error_best_twins", "twins", best_columns),
    ):
        without = errors_with(rival, x, gap, folds[held_out], alone=True)
        saved = without - errors[held_out][:, count:]
        # Errors of twins are alike: their signs flip together.
        p = sign_flip_p(saved, models["twins"], seed=bootstrap.seed)
        of_measures[of_rival] = finite_mean(without)
        answer = bootstrap.mean(saved).assign(_p=p).add_prefix(name)
        of_measures = of_measures.join(answer)
    p = of_measures["saved_from_best_points_p"]
    of_measures["saved_from_best_points_p_adjusted"] = holm(p)
    return table.merge(of_measures, how="left", on="measure")


def errors_with(
    predictors: Array, x: Array, gap: Array, folds: Rows, *, alone: bool = False
) -> Array:
    """Errors of held-out gaps by predictors and one measure, for each measure.

    Args:
        predictors: (n, k) columns that each measure is added to.
        x: (n, M) measures, NaN where a network has none: it is left out.
        gap: (n,) fractions.
        folds: (n,) or (D, n), see ``held_out_errors``.
        alone: without the measure, over the same networks.

    Returns:
        (n, M) in points.
    """
    errors = np.full(x.shape, np.nan)
    for rows, columns in same_models(np.isfinite(x)):
        known = predictors[rows][None]
        if not alone:
            known = np.stack([np.column_stack([*known, x[rows, at]]) for at in columns])
        of_measures = held_out_errors(known, gap[rows], folds[..., rows])
        errors[np.ix_(rows, columns)] = of_measures.T
    return errors


def starts_table(bootstrap: Bootstrap, measures: Collection[str]) -> pd.DataFrame:
    """r with the gap among networks of one start alone.

    Args:
        bootstrap: networks of the primary analysis.
        measures: columns; others are passed over.

    Returns:
        A row per start ("pretrained", "scratch") and measure, see ``correlate``; whole
        kinds are drawn where they repeat. No row where all have the same start.
    """
    models = bootstrap.models
    names = [name for name in measures if name in models and name != START]
    tables = [pd.DataFrame(columns=["measure", "start", "n", "units", "r"])]
    if models[START].nunique() > 1:
        for start, name in ((True, "pretrained"), (False, "scratch")):
            part = by_kinds(bootstrap.subset(models[START].astype(bool) == start))
            tables.append(correlate(part, names).assign(start=name))
        tables = tables[1:]
    return pd.concat(tables, ignore_index=True)


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
        train_accuracy=("train_accuracy", "median"),
        test_accuracy=("test_accuracy", "median"),
        gap=("gap", "median"),
    )
    within = (models["gap"] - by_kind["gap"].transform("mean")).pow(2).sum()
    freedom = (len(models) - len(by_kind)) or np.nan
    variance = models["gap"].var() or np.nan
    table["variance_between_kinds"] = 1 - within / freedom / variance
    return table.reset_index()


def class_table(
    names: Sequence[str],
    labels: ArrayLike,
    values: Mapping[str, NDArray],
    test_labels: ArrayLike,
    test_correct: NDArray,
) -> pd.DataFrame:
    """Overlap, accuracies and gap of each class, as means over networks.

    Args:
        names: of the classes, in the order of their labels.
        labels: (N,) of the scored training images.
        values: (models, N) by name: "train_accuracy" of 0 and 1, and any measure of
            single images, such as "iou". NaN where an image has none.
        test_labels: (T,) of the test images.
        test_correct: (models, T) of 0 and 1; rows of NaN for networks whose predictions
            are not recorded, which are left out of the test accuracy and of the gap.

    Returns:
        A row per class, the largest gap first: class, images, a column per name of
        ``values``, test_images, test_accuracy, networks_tested, and gap, which is
        training minus test accuracy of the networks that were tested. NaN without.
    """
    is_tested = np.isfinite(test_correct).all(axis=1)  # (models,)
    table = pd.DataFrame({"class": list(names)})
    table["images"] = np.bincount(labels, minlength=len(table))
    for key, array in values.items():
        table[key] = _means_of_classes(array, labels)
    table["test_images"] = np.bincount(test_labels, minlength=len(table))
    table["test_accuracy"] = _means_of_classes(test_correct[is_tested], test_labels)
    table["networks_tested"] = is_tested.sum()
    training = _means_of_classes(values["train_accuracy"][is_tested], labels)
    table["gap"] = training - table["test_accuracy"]
    return table.sort_values("gap", ascending=False, kind="stable", ignore_index=True)


def _means_of_classes(values: NDArray, labels: ArrayLike) -> pd.Series:
    """Mean of the finite values of each label, (models, images) -> (labels,)."""
    by_class = pd.DataFrame(values.T.astype(float)).groupby(np.asarray(labels))
    return by_class.sum().sum(axis=1) / by_class.count().sum(axis=1)


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
        ``TITLES``), title, baseline, trained_on, judged_on, n, error_points with
        error_points_low and _high, and worst_points. Errors are NaN where any network
        of either study has no value of the measure.
    """
    rows = []
    new = with_log_train_loss(studies[judged_on])
    bootstrap = by_kinds(Bootstrap(new, draws=draws))
    for trained_on in [name for name in studies if name != judged_on]:
        old = with_log_train_loss(studies[trained_on])
        models = pd.concat([old, new], ignore_index=True)
        gap = models["gap"].to_numpy(float)
        shared = [name for name in KIND + SETTING if name in old and name in new]
        predictors = baselines_of(models, varied_axes(models, shared))
        for name in measures:
            if name in models and name not in TITLES:
                predictors[name] = design(models, (), [*FIT, name])
        for name, columns in predictors.items():
            errors = np.full(len(new), np.nan)
            if np.isfinite(columns).all() and len(old) and len(new):
                is_new = np.arange(len(gap)) >= len(old)
                predicted = predict_gaps(columns, gap, is_new)
                errors = 100 * np.abs(gap[is_new] - predicted)
            error = bootstrap.mean(errors[:, None]).add_prefix("error_points")
            row = {
                "measure": name,
                "title": (measures | TITLES)[name],
                "baseline": name in TITLES,
                "trained_on": trained_on,
                "judged_on": judged_on,
                "n": len(new),
                "worst_points": errors.max(initial=-np.inf),
            }
            rows.append(row | error.iloc[0].to_dict())
    columns = "measure title baseline trained_on judged_on n error_points"
    ends = "error_points_low error_points_high worst_points"
    return pd.DataFrame(rows, columns=[*columns.split(), *ends.split()])


def matched_pairs(
    models: pd.DataFrame,
    axis: str,
    levels: tuple[str, str],
    alike: Sequence[str],
    outcomes: Sequence[str],
) -> pd.DataFrame:
    """Change of outcomes when one hyperparameter changes, for each kind of training.

    Args:
        models: networks with a column ``kind``.
        axis: the hyperparameter, such as "optimizer".
        levels: the level before the change, and the one after it.
        alike: the other columns in which the two of a pair agree, beside the kind;
            repeats are paired each with each.
        outcomes: columns whose change is reported, such as "gap".

    Returns:
        A row per kind that has a pair: kind, pairs and the mean change of each outcome,
        in the outcome's own unit.
    """
    before, after = (models[models[axis] == level] for level in levels)
    both = before.merge(after, on=["kind", *alike])
    changes = {name: both[f"{name}_y"] - both[f"{name}_x"] for name in outcomes}
    by_kind = pd.DataFrame(changes).groupby(both["kind"])
    table = by_kind.mean()
    table.insert(0, "pairs", by_kind.size())
    return table.reset_index()


def known_in_advance(bootstrap: Bootstrap, axes: Sequence[str]) -> pd.DataFrame:
    """Error of the gap of held-out configurations without any measure, in points.

    Args:
        bootstrap: n networks.
        axes: hyperparameters that vary.

    Returns:
        A row each for the mean gap alone, the fit (training accuracy and loss),
        hyperparameters, and both: known, error_points with low and high, n and cells.
    """
    models = bootstrap.models
    baselines = baselines_of(models, axes)
    predictors = {
        "mean": design(models),
        "fit": baselines[TRAINING],
        "hyperparameters": baselines["hyperparameters"],
        "hyperparameters and fit": baselines["hyperparameters_and_training"],
    }
    gap = models["gap"].to_numpy(float)
    folds = random_folds(models[CONFIGURATION], seed=bootstrap.seed)
    errors = [held_out_errors(columns, gap, folds) for columns in predictors.values()]
    means = bootstrap.mean(np.column_stack(errors))[["", "_low", "_high"]]
    table = means.set_axis(["error_points", "low", "high"], axis=1)
    table.insert(0, "known", [*predictors])
    return table.assign(n=len(models), cells=models[CONFIGURATION].nunique())


def ranking_table(
    bootstrap: Bootstrap,
    measures: Sequence[str],
    axes: Sequence[str],
    *,
    permutations: int = PERMUTATIONS,
) -> pd.DataFrame:
    """Correlations of every measure with gap and test accuracy, over all models.

    Args:
        bootstrap: n networks with measures.
        measures: columns.
        axes: hyperparameters that vary.
        permutations: number of random ones, where there are too many for all.

    Returns:
        A row per measure: for each of ``claims.QUESTIONS`` the correlation with its
        interval, smallest, null, p, p_adjusted and band, see ``correlate``; the points
        of error that a measure saves when it is added to hyperparameters, training
        accuracy and loss; and its split-half reliability.
    """
    models = bootstrap.models
    names = list(measures)
    fit = design(models, (), FIT)
    everything = np.hstack([design(models, axes), fit])
    questions: dict[str, dict[str, Any]] = {
        "r_gap": {},
        "tau_gap": {"statistic": kendall},
        "r_test_accuracy": {"target": "test_accuracy"},
        "r_gap_given_fit": {"given": fit},
        "r_gap_given_all": {"given": everything},
    }
    x = models[names].to_numpy(float)
    is_finite = np.isfinite(x)
    table = pd.DataFrame({"measure": names, "n": is_finite.sum(0)})
    table["cells"] = bootstrap.units(is_finite)
    images = bootstrap.images
    counts = {name: images[name].shape[1] for name in names if name in images}
    of_halves = {name: reliability(images[name], bootstrap.seed) for name in counts}
    table["images"] = table["measure"].map(counts)
    table["reliability"] = table["measure"].map(of_halves).astype(float)
    units = models[bootstrap.unit]
    rows = permuted_rows(units, permutations, bootstrap.seed)
    for question, options in questions.items():
        answer = correlate(bootstrap, names, permutations=rows, **options)
        table = table.join(_named(answer, question))
        table[f"{question}_band"] = answer["band"]
    gap = models["gap"].to_numpy(float)
    folds = random_folds(models[CONFIGURATION], seed=bootstrap.seed)
    without = errors_with(everything, x, gap, folds, alone=True)
    saved = without - errors_with(everything, x, gap, folds)
    means = bootstrap.mean(saved).drop(columns="_smallest")
    table = table.join(means.add_prefix(ADDED))
    table[f"{ADDED}_p"] = sign_flip_p(saved, models[CONFIGURATION], seed=bootstrap.seed)
    return table


def correlations(
    bootstrap: Bootstrap,
    measures: Collection[str],
    *,
    given: Array | None = None,
    tau: bool = False,
) -> pd.DataFrame:
    """Correlation of measures with the gap, as published tables have it.

    Args:
        bootstrap: of the models.
        measures: columns.
        given: (n, k) columns to hold fixed.
        tau: whether Kendall's tau has an interval.

    Returns:
        A row per measure: n, dropped, cells (configurations), pearson_r with ci_low and
        ci_high, and kendall_tau, with an interval if asked.
    """
    names = list(measures)
    models = bootstrap.models
    table = correlate(bootstrap, names, given=given).rename(columns=_PUBLISHED)
    table["dropped"] = len(models) - table["n"]
    ranks = of_table(kendall, models[names], models["gap"])
    table["kendall_tau"] = np.where(table["pearson_r"].notna(), ranks, np.nan)
    columns = "measure n dropped cells pearson_r ci_low ci_high kendall_tau"
    table = table.reindex(columns=[*columns.split(), "kendall_low", "kendall_high"])
    if tau:
        ranked = correlate(bootstrap, names, statistic=kendall)
        table[["kendall_low", "kendall_high"]] = ranked[["low", "high"]]
    return table


def _by_architecture(
    bootstrap: Bootstrap,
    thresholds: Collection[float],
    table_of: Callable[[Bootstrap], pd.DataFrame],
) -> pd.DataFrame:
    """A table of the models above each training accuracy, by architecture, then all."""
    models = bootstrap.models
    architectures = list(models["architecture"].unique())
    if len(architectures) != 1:
        architectures.append(TOTAL)
    tables = []
    for architecture, threshold in product(architectures, thresholds):
        chosen = models["train_accuracy"] > threshold
        if architecture != TOTAL:
            chosen &= models["architecture"] == architecture
        table = table_of(bootstrap.subset(chosen))
        table.insert(0, "architecture", architecture)
        table.insert(1, "threshold", threshold)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def correlation_table(
    bootstrap: Bootstrap,
    measures: Collection[str],
    thresholds: Collection[float],
    *,
    tau: bool = True,
) -> pd.DataFrame:
    """Correlate measures with the gap; Du et al. 2024, Table 3.

    Args:
        bootstrap: of the models.
        measures: columns.
        thresholds: training accuracies above which models are taken.
        tau: whether Kendall's tau has an interval.

    Returns:
        A row per architecture (and ``TOTAL``), threshold and measure, see
        ``correlations``.
    """
    table_of = partial(correlations, measures=measures, tau=tau)
    return _by_architecture(bootstrap, thresholds, table_of)


def selection_table(
    bootstrap: Bootstrap, directions: Mapping[str, int], thresholds: Collection[float]
) -> pd.DataFrame:
    """Accuracy of each measure in picking the better of two models; Du et al. 2024.

    Table 4. ``accuracy = (1 - direction gamma) / 2``; gamma leaves out pairs that tie.

    Args:
        bootstrap: of the models.
        directions: by measure +1 where a larger value promises a smaller gap, else -1.
        thresholds: training accuracies above which models are taken.

    Returns:
        A row per architecture (and ``TOTAL``), threshold and measure: accuracy in
        [0, 1] with its interval, and the number of concordant, discordant and tied
        pairs.
    """
    table_of = partial(_selection, directions=directions)
    return _by_architecture(bootstrap, thresholds, table_of)


def _selection(bootstrap: Bootstrap, directions: Mapping[str, int]) -> pd.DataFrame:
    """Rows of ``selection_table`` on all models of a bootstrap."""
    models = bootstrap.models
    names = list(directions)
    direction = np.array([*directions.values()], float)
    table = correlate(bootstrap, names, statistic=gamma)
    shares = (1 - table[["r", "low", "high"]].mul(direction, axis=0)) / 2
    x = models[names].to_numpy(float) * direction
    signed, differ = np.zeros((2, len(names)))  # differ: pairs that tie in neither
    for rows, columns in same_models(np.isfinite(x)):
        gap = models["gap"].to_numpy(float)[rows]
        ones = np.ones((1, len(rows)))
        counts = pair_counts(x[np.ix_(rows, columns)][None], gap[None], ones)
        signed[columns] = counts[0][0]
        differ[columns] = counts[3][0]
    selected = {
        "measure": names,
        "n": table["n"],
        "dropped": len(models) - table["n"],
        "cells": table["units"],
        "accuracy": shares["r"],
        "concordant": (differ - signed) / 2,
        "discordant": (differ + signed) / 2,
        "ties": table["n"] * (table["n"] - 1) / 2 - differ,
        "ci_low": shares[["low", "high"]].min(axis=1),
        "ci_high": shares[["low", "high"]].max(axis=1),
    }
    return pd.DataFrame(selected)


def beside_published(table: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """Add the paper's value to each row, and the difference to it.

    Args:
        table: of ``correlation_table`` or ``selection_table``.
        published: Du et al. 2024, Table 3 or Table 4.

    Returns:
        The table with published_r or published_accuracy, and difference; NaN where the
        paper has no such row.
    """
    keys = ["architecture", "threshold", "measure"]
    published = published.rename(columns={"method": "measure"})
    column, name = "pearson_r", "published_r"
    if column not in published:
        column, name = "accuracy", "published_accuracy"
        published[column] = published["accuracy_percent"] / 100
    published = published[[*keys, column]].rename(columns={column: name})
    joined = table.merge(published, how="left", on=keys)
    return joined.assign(difference=joined[column] - joined[name])


def confounders(
    bootstrap: Bootstrap,
    measures: Sequence[str],
    axes: Sequence[str],
    published: Mapping[str, float] | None = None,
) -> pd.DataFrame:
    """Each measure's r with the gap, pooled and with hyperparameters held fixed.

    Pooled models can show a correlation that exists within no level of a hyperparameter
    (Simpson's paradox).

    Args:
        bootstrap: of the models.
        measures: columns.
        axes: hyperparameters.
        published: the paper's r by measure.

    Returns:
        A row per measure and kind: pooled, within a level, given one hyperparameter or
        all, granulated (psi in place of r).
    """
    models = bootstrap.models
    names = list(measures)
    ask = partial(correlations, bootstrap, names)
    pooled = ask()
    pooled["published"] = pooled["measure"].map(published or {}).astype(float)
    parts = [(POOLED, beyond.ALL, pooled)]
    parts += [(WITHIN, axis, subsets(bootstrap, names, axis)) for axis in axes]
    if axes:
        parts.append((GIVEN_ALL, beyond.ALL, ask(given=design(models, axes))))
    parts += [(GIVEN_ONE, axis, ask(given=design(models, [axis]))) for axis in axes]
    tables = [part.assign(kind=kind, hyperparameter=of) for kind, of, part in parts]
    if axes:
        granulated = beyond.granulated_kendall(models, names, axes)
        granulated = granulated.rename(columns={"psi": "pearson_r"})
        tables.append(granulated.assign(kind=GRANULATED))
    table = pd.concat(tables, ignore_index=True).rename(columns={"pearson_r": "r"})
    columns = "measure kind hyperparameter level n r ci_low ci_high published"
    table = table.reindex(columns=columns.split())
    table["level"] = table["level"].astype(object).fillna("")
    order = table["measure"].map(names.index).sort_values(kind="stable").index
    return table.loc[order].reset_index(drop=True)


def subsets(bootstrap: Bootstrap, measures: Sequence[str], column: str) -> pd.DataFrame:
    """Correlate measures with the gap among the models of each level of a column.

    Args:
        bootstrap: of the models.
        measures: columns.
        column: such as snapshot, repeat or label_noise.

    Returns:
        A row per level and measure; no rows without models.
    """
    models = bootstrap.models
    names = list(measures)
    tables = [pd.DataFrame()]
    for level in beyond.levels_in_order(models[column]):
        part = bootstrap.subset(models[column] == level)
        table = correlations(part, names)
        table["mean"] = part.models[names].mean().to_numpy()
        table["mean_gap"] = part.models["gap"].mean()
        tables.append(table.assign(column=column, level=str(level)))
    columns = "measure column level n dropped cells mean mean_gap pearson_r ci_low"
    return pd.concat(tables, ignore_index=True).reindex(
        columns=[*columns.split(), "ci_high"]
    )
