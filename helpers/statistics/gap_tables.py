"""Tables on the gap: ranking, Du's Tables 3 and 4, confounders, kinds of training."""

from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from helpers.statistics.correlate import (
    FIT,
    Array,
    Bootstrap,
    Statistic,
    correlate,
    design,
    finite_mean,
    gamma,
    in_draws,
    kendall,
    pearson,
)
from helpers.statistics.permutation import Rows, permuted_rows

TOTAL = "Total"
SPLITS = 20  # in halves, behind a reliability
ALL = "all"
# Kinds of rows of ``confounders``.
POOLED = "pooled"
WITHIN = "within a level"
GIVEN_ALL = "given all"
GIVEN_ONE = "given one"


def answers(
    bootstrap: Bootstrap,
    measures: Sequence[str],
    questions: Mapping[str, Mapping[str, Any]],
    permutations: Rows,
) -> pd.DataFrame:
    """Correlations of each measure by question.

    Args:
        bootstrap: see ``correlate``, as the others.
        measures: columns.
        questions: options of ``correlate`` by the name of r, such as "r_gap".
        permutations: see ``permuted_rows``.

    Returns:
        A row per measure: measure, n, and for each question what ``correlate`` has, as
        r_gap, r_gap_low and so on.
    """
    tables = []
    for question, options in questions.items():
        answer = correlate(bootstrap, measures, permutations=permutations, **options)
        columns = answer.drop(columns=["measure", "n", "units"])
        columns = columns.add_prefix(f"{question}_")
        tables.append(columns.rename(columns={f"{question}_r": question}))
    return answer[["measure", "n"]].join(tables)


def ranking_table(
    bootstrap: Bootstrap,
    measures: Sequence[str],
    axes: Sequence[str],
    permutations: int,
) -> pd.DataFrame:
    """Correlations of every measure with gap and test accuracy, over all models.

    Args:
        bootstrap: n networks with measures.
        measures: columns.
        axes: hyperparameters that vary.
        permutations: number of random ones, where there are too many for all.

    Returns:
        A row per measure: for each of ``claims.QUESTIONS`` the correlation with its
        interval, smallest, null, p, p_adjusted and band, see ``correlate``; and its
        split-half reliability over images, where their values are recorded.
    """
    models = bootstrap.models
    questions: dict[str, dict[str, Any]] = {
        "r_gap": {},
        "tau_gap": {"statistic": kendall},
        "r_test_accuracy": {"target": "test_accuracy"},
        "r_gap_given_fit": {"given": design(models, (), FIT)},
        "r_gap_given_all": {"given": design(models, axes, FIT)},
    }
    rows = permuted_rows(bootstrap.units, permutations, bootstrap.seed)
    table = answers(bootstrap, measures, questions, rows)
    images = bootstrap.images
    of_images = {
        name: {
            "images": np.shape(images[name])[1],
            "reliability": reliability(images[name], bootstrap.seed),
        }
        for name in measures
        if name in images
    }
    facts = pd.DataFrame(of_images, ["images", "reliability"], dtype=float).T
    return table.join(facts, on="measure")


def reliability(values: ArrayLike, seed: int = 0) -> float:
    """Reliability of the mean over images, from random halves.

    Its square root bounds the correlation of a measure with anything.

    Median over ``SPLITS`` splits in two halves of ``2 r / (1 + r)``, which extrapolates
    from half to all images (Spearman 1910, Brown 1910); a negative r stays as it is.

    Args:
        values: (n, images), NaN where an image has none.
        seed: of the splits.

    Returns:
        At most 1; NaN where no split has a correlation.
    """
    table = np.asarray(values, dtype=float)
    images = table.shape[1]
    numbers = np.tile(np.arange(images), (SPLITS, 1))
    order = np.random.default_rng(seed).permuted(numbers, axis=1)
    first = (order < images // 2).astype(float)  # (splits, images)
    means = np.stack([finite_mean(table.T, half) for half in (first, 1 - first)])
    means = means[..., np.isfinite(means).all((0, 1))]  # (2, splits, n)
    r = in_draws(pearson, means[0][..., None], means[1])[:, 0]
    if not np.isfinite(r).any():
        return np.nan
    of_all_images = np.where(r > 0, 2 * r / (1 + np.abs(r)), r)
    return float(np.nanmedian(of_all_images))


def correlations(
    bootstrap: Bootstrap,
    measures: Collection[str],
    given: Array | None = None,
    statistic: Statistic = pearson,
) -> pd.DataFrame:
    """Correlation of measures with the gap, as published tables have it.

    Args:
        bootstrap: of the models.
        measures: columns.
        given: (n, k) columns to hold fixed.
        statistic: see ``correlate``.

    Returns:
        A row per measure: n, cells (configurations), and pearson_r with ci_low and
        ci_high.
    """
    table = correlate(bootstrap, list(measures), given=given, statistic=statistic)
    names = {"units": "cells", "r": "pearson_r", "low": "ci_low", "high": "ci_high"}
    return table.drop(columns="smallest").rename(columns=names)


def correlation_table(
    bootstrap: Bootstrap,
    measures: Collection[str],
    thresholds: Collection[float],
    statistic: Statistic = pearson,
) -> pd.DataFrame:
    """Correlate measures with the gap; Du et al. 2024, Table 3.

    Args:
        bootstrap: of the models.
        measures: columns.
        thresholds: training accuracies above which models are taken.
        statistic: see ``correlate``.

    Returns:
        A row per architecture (and ``TOTAL``), threshold and measure, see
        ``correlations``.
    """
    models = bootstrap.models
    architectures = list(models["architecture"].unique())
    if len(architectures) != 1:
        architectures.append(TOTAL)
    tables = {}
    for architecture, threshold in product(architectures, thresholds):
        chosen = models["train_accuracy"] > threshold
        if architecture != TOTAL:
            chosen &= models["architecture"] == architecture
        part = bootstrap.subset(chosen)
        table = correlations(part, measures, statistic=statistic)
        tables[architecture, threshold] = table
    return _stacked(tables, "architecture", "threshold")


def _stacked(tables: Mapping[Any, pd.DataFrame], *names: str) -> pd.DataFrame:
    """Tables under one another, their keys in the first columns."""
    table = pd.concat(tables, names=[*names, None]).reset_index([*names])
    return table.reset_index(drop=True)


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
        A row per architecture (and ``TOTAL``), threshold and measure: n, cells, and
        accuracy in [0, 1] with ci_low and ci_high.
    """
    table = correlation_table(bootstrap, directions, thresholds, gamma)
    direction = table["measure"].map(directions)
    columns = ["pearson_r", "ci_low", "ci_high"]
    table[columns] = (1 - table[columns].mul(direction, axis=0)) / 2
    table[columns[1:]] = np.sort(table[columns[1:]])
    return table.rename(columns={"pearson_r": "accuracy"})


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
    published = published.rename(columns={"method": "measure"}).set_index(keys)
    ours, name = "pearson_r", "published_r"
    if "accuracy" in table:
        published["accuracy"] = published["accuracy_percent"] / 100
        ours, name = "accuracy", "published_accuracy"
    joined = table.join(published[ours].rename(name), on=keys)
    return joined.assign(difference=joined[ours] - joined[name])


def confounders(
    bootstrap: Bootstrap, measures: Sequence[str], axes: Sequence[str]
) -> pd.DataFrame:
    """Each measure's r with the gap, pooled and with hyperparameters held fixed.

    Pooled models can show a correlation that exists within no level of a hyperparameter
    (Simpson's paradox).

    Args:
        bootstrap: of the models.
        measures: columns.
        axes: hyperparameters.

    Returns:
        A row per measure and kind: pooled, within a level, given one hyperparameter or
        all.
    """
    models = bootstrap.models
    names = list(measures)
    tables = {(POOLED, ALL, ""): correlations(bootstrap, names)}
    for axis in axes:
        for level, rows in models.groupby(axis).indices.items():
            of_level = correlations(bootstrap.subset(rows), names)
            tables[WITHIN, axis, str(level)] = of_level
    given = [(GIVEN_ONE, axis, [axis]) for axis in axes]
    if axes:
        given = [(GIVEN_ALL, ALL, axes), *given]
    for kind, axis, levels in given:
        tables[kind, axis, ""] = correlations(bootstrap, names, design(models, levels))
    table = _stacked(tables, "kind", "hyperparameter", "level")
    table = table.rename(columns={"pearson_r": "r"})
    columns = ["measure", "kind", "hyperparameter", "level"]
    columns += ["n", "r", "ci_low", "ci_high"]
    order = table["measure"].map(names.index).argsort(kind="stable")
    return table.iloc[order][columns].reset_index(drop=True)


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


def optimizer_pairs(models: pd.DataFrame, outcomes: Sequence[str]) -> pd.DataFrame:
    """Change of outcomes from SGD to Adam, for each kind of training.

    The networks of a pair agree in all else; repeats are paired each with each.

    Args:
        models: networks with hyperparameters and a column ``kind``.
        outcomes: columns whose change is reported, such as "gap".

    Returns:
        A row per kind that has a pair: kind, pairs and the mean change of each outcome,
        in the outcome's own unit.
    """
    sgd, adam = (models[models["optimizer"] == name] for name in ("sgd", "adam"))
    both = sgd.merge(adam, on=["kind", "learning_rate", "weight_decay", "batch_size"])
    changes = {name: both[f"{name}_y"] - both[f"{name}_x"] for name in outcomes}
    by_kind = pd.DataFrame(changes).groupby(both["kind"])
    return by_kind.mean().assign(pairs=by_kind.size()).reset_index()
