"""Predictions of the gap without any measure or from another study; matched pairs."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helpers.statistics.bootstrap import LEVEL, Bootstrap
from helpers.statistics.correlations import Array, design, finite_mean
from helpers.statistics.prediction import (
    FIT,
    columns_in_advance,
    held_out_errors,
    predict_gaps,
    with_log_train_loss,
)

START = "pretrained"
HYPERPARAMETERS = "hyperparameters"
BOTH = "hyperparameters_and_training"
TRAINING = "training"
TITLES = {
    START: "pretrained or not, alone",
    HYPERPARAMETERS: "hyperparameters alone",
    BOTH: "hyperparameters, training accuracy and loss",
    TRAINING: "training accuracy and loss alone",
}
# A measure is compared with the best of these.
RIVALS = (HYPERPARAMETERS, BOTH, TRAINING)
# Columns of ``across_studies``.
_ACROSS = [
    "measure",
    "title",
    "baseline",
    "trained_on",
    "judged_on",
    "n",
    "error_points",
    "error_points_low",
    "error_points_high",
    "worst_points",
]


def baselines_of(models: pd.DataFrame, axes: Sequence[str]) -> dict[str, Array]:
    """Baselines from what is known of networks before a measure is computed.

    Args:
        models: n networks with hyperparameters, training accuracy and loss.
        axes: the hyperparameters that vary among them.

    Returns:
        (n, k) columns from which each of ``TITLES`` predicts the gap, without the start
        where all have the same.
    """
    known = columns_in_advance(models, axes)
    columns = {
        HYPERPARAMETERS: known["hyperparameters"],
        BOTH: known["hyperparameters and fit"],
        TRAINING: known["fit"],
    }
    if START in axes:
        columns[START] = design(models, [START])
    return {name: columns[name] for name in TITLES if name in columns}


def best_rival(
    baselines: Mapping[str, Array], gap: Array, folds: NDArray[np.int64]
) -> str:
    """The baseline of ``RIVALS`` with the least error, chosen before any measure.

    Args:
        baselines: of n networks, see ``baselines_of``.
        gap: (n,) fractions.
        folds: (D, n) fold of each network in D divisions, see ``held_out_errors``.

    Returns:
        The first one with the least mean error; the first of all where no error is
        defined.
    """
    rivals = [name for name in baselines if name in RIVALS]
    errors = [
        finite_mean(held_out_errors(baselines[name], gap, folds)) for name in rivals
    ]
    least = np.nan_to_num(errors, nan=np.inf).argmin()
    return rivals[int(least)]


def across_studies(
    studies: Mapping[str, pd.DataFrame],
    judged_on: str,
    axes: Sequence[str],
    measures: Mapping[str, str],
    *,
    draws: int = 2_000,
) -> pd.DataFrame:
    """Error of the gap in one study as predicted by ridge regressions on another.

    Each predictor is fitted to all networks of one study and judged on those of the
    other, whose images and classes it has not seen. A measure is used together with
    training accuracy and loss.

    Args:
        studies: networks of the primary analysis by study, with hyperparameters,
            training accuracy and loss, gap, configuration and measures.
        judged_on: the study whose gaps are predicted, from each of the others.
        axes: hyperparameters; those are used that vary over both studies together.
        measures: column and title of each measure.
        draws: number of bootstrap draws of configurations, for the intervals.

    Returns:
        A row per other study and predictor: measure (a column, or a key of
        ``TITLES``), title, baseline, trained_on, judged_on, n, error_points with
        error_points_low and _high, and worst_points. Errors are NaN where any network
        of either study has no value of the measure.
    """
    rows = []
    for trained_on in studies:
        if trained_on == judged_on:
            continue
        old = with_log_train_loss(studies[trained_on])
        new = with_log_train_loss(studies[judged_on])
        shared = [name for name in axes if name in old and name in new]
        models = pd.concat([old, new], ignore_index=True)
        is_new = np.arange(len(models)) >= len(old)
        bootstrap = Bootstrap(models[is_new], draws=draws)
        for name, title, columns in _predictors(models, shared, measures):
            errors = _errors_on_new(columns, models["gap"].to_numpy(float), is_new)
            mean, low, high = bootstrap.mean(errors[:, None], LEVEL)
            rows.append(
                {
                    "measure": name,
                    "title": title,
                    "baseline": name in TITLES,
                    "trained_on": trained_on,
                    "judged_on": judged_on,
                    "n": int(is_new.sum()),
                    "error_points": mean[0],
                    "error_points_low": low[0],
                    "error_points_high": high[0],
                    "worst_points": errors.max() if len(errors) else np.nan,
                }
            )
    return pd.DataFrame(rows, columns=_ACROSS)


def _predictors(
    models: pd.DataFrame, axes: Sequence[str], measures: Mapping[str, str]
) -> list[tuple[str, str, Array]]:
    """Name, title and columns (n, k) of each predictor: baselines, then measures."""
    varied = [name for name in axes if models[name].nunique() > 1]
    baselines = baselines_of(models, varied)
    rows = [(name, TITLES[name], columns) for name, columns in baselines.items()]
    for name, title in measures.items():
        if name in models:
            rows.append((name, title, design(models, (), [*FIT, name])))
    return rows


def _errors_on_new(columns: Array, gap: Array, is_new: NDArray[np.bool_]) -> Array:
    """Absolute errors of the new networks in points, NaN where a value is missing."""
    if not np.isfinite(columns).all() or is_new.all() or not is_new.any():
        return np.full(int(is_new.sum()), np.nan)
    new = predict_gaps(columns[~is_new], gap[~is_new], columns[is_new])
    return 100 * np.abs(gap[is_new] - new)


def matched_pairs(
    models: pd.DataFrame,
    axis: str,
    levels: tuple[str, str],
    alike: Sequence[str],
    outcomes: Sequence[str],
) -> pd.DataFrame:
    """Change of outcomes when one hyperparameter changes, for each kind of training.

    Pairs have the same kind and agree in ``alike``; repeats are paired each with each.
    Where a kind of training has no pair, the means over its networks at either level
    are compared.

    Args:
        models: networks with a column ``kind``.
        axis: the hyperparameter, such as "optimizer".
        levels: the level before the change, and the one after it.
        alike: the other columns in which the two of a pair agree.
        outcomes: columns whose change is reported, such as "gap".

    Returns:
        A row per kind that has both levels: kind, pairs (0 where means are compared)
        and the mean change of each outcome, in the outcome's own unit.
    """
    rows = []
    for kind, group in models.groupby("kind", sort=True):
        before, after = (group[group[axis] == level] for level in levels)
        if not len(before) or not len(after):
            continue
        both = before.merge(after, on=list(alike), suffixes=("_before", "_after"))
        change = {}
        for name in outcomes:
            if len(both):
                difference = both[f"{name}_after"] - both[f"{name}_before"]
                change[name] = difference.mean()
            else:
                change[name] = after[name].mean() - before[name].mean()
        rows.append({"kind": kind, "pairs": len(both), **change})
    return pd.DataFrame(rows, columns=["kind", "pairs", *outcomes])
