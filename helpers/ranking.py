"""All measures in one table: how well each tells the gap by every statistic, with intervals, and which is first."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from helpers.agreement import finite_pairs, kendall, pearson, spearman
from helpers.conditional_information import information_table
from helpers.confounding import granulated_kendall, partial_correlation
from helpers.sign_error import ALL, sign_error_table
from helpers.statistics import bootstrap_interval


def varied_axes(catalogue: pd.DataFrame, axes: Sequence[str]) -> list[str]:
    """List the hyperparameters that have more than one level among these models."""
    return [name for name in axes if catalogue[name].nunique() > 1]


def ranking_table(
    catalogue: pd.DataFrame,
    measures: Mapping[str, int],
    axes: Sequence[str],
    *,
    test_images: int,
    resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Rank measures by Kendall's tau with the gap, beside every other statistic of the literature.

    All but pearson_r are signed so that a measure that works is positive, whichever way it points; sign_error is 0 for a perfect
    measure and 0.5 for chance.

    Args:
        catalogue: one row per model: gap (fraction), cell, the axes and a column per measure.
        measures: column to direction, +1 when a larger value promises a smaller gap, else -1.
        axes: hyperparameters with more than one level, see ``varied_axes``.
        test_images: images that each test accuracy was measured on, for the noise filter of the sign error.
        resamples: of hyperparameter cells behind the intervals; 0 leaves them NaN.
        seed: of the resampling.

    Returns:
        One row per measure, the strongest first: n, dropped (not finite), pearson_r with ci_low and ci_high, spearman, kendall with
        kendall_low and kendall_high, granulated_kendall (mean over the axes), partial_r (given all axes) with partial_p,
        conditional_information in [0, 1], sign_error (of the worst environment), environment (single, or pooled where cells have too
        few repeats) and environments. What is undefined is NaN and stands last.
    """
    rows = [_own(catalogue, name, direction, resamples, seed) for name, direction in measures.items()]
    table = pd.DataFrame(rows).set_index("measure")
    if axes:
        table = table.join(_conditional(catalogue, measures, axes, test_images, seed))
    wanted = ["granulated_kendall", "partial_r", "partial_p", "conditional_information", "sign_error", "environment", "environments"]
    table = table.reindex(columns=[*table.columns, *(name for name in wanted if name not in table)])
    return table.sort_values("kendall", ascending=False, na_position="last", kind="stable").reset_index()


def _own(catalogue: pd.DataFrame, name: str, direction: int, resamples: int, seed: int) -> dict[str, float | str]:
    """Statistics that need the measure and the gap alone."""
    x, y, kept = finite_pairs(catalogue[name], catalogue["gap"])
    cells = catalogue["cell"].to_numpy()[kept]
    low, high = bootstrap_interval(x, y, cells, "pearson", resamples, seed=seed)
    kendall_low, kendall_high = bootstrap_interval(-direction * x, y, cells, "kendall", resamples, seed=seed)
    return {
        "measure": name,
        "n": len(x),
        "dropped": int((~kept).sum()),
        "pearson_r": pearson(x, y),
        "ci_low": low,
        "ci_high": high,
        "spearman": -direction * spearman(x, y),
        "kendall": -direction * kendall(x, y),
        "kendall_low": kendall_low,
        "kendall_high": kendall_high,
    }


def _conditional(catalogue: pd.DataFrame, measures: Mapping[str, int], axes: Sequence[str], test_images: int, seed: int) -> pd.DataFrame:
    """Statistics that hold hyperparameters fixed, indexed by measure."""
    granulated = granulated_kendall(catalogue, measures, axes)
    partial = partial_correlation(catalogue, measures, axes).set_index("measure")
    information = information_table(catalogue, measures, axes, seed=seed).set_index("measure")
    errors = sign_error_table(catalogue, measures, axes, test_images=test_images, seed=seed)
    worst = errors[errors["hyperparameter"] == ALL].set_index("measure")
    return pd.DataFrame(
        {
            "granulated_kendall": granulated[granulated["hyperparameter"] == ALL].set_index("measure")["psi"],
            "partial_r": partial["partial_r"],
            "partial_p": partial["p_value"],
            "conditional_information": information["score"],
            "sign_error": worst["maximum"],
            "environment": worst["environment"],
            "environments": worst["environments"],
        }
    )


def measure_correlations(catalogue: pd.DataFrame, measures: Mapping[str, int]) -> pd.DataFrame:
    """Rank correlation of every measure with every other, signed so that measures that promise alike are positive.

    Returns:
        A square table (measures x measures) of Kendall's tau-b over the models where both are finite; NaN where undefined.
    """
    signed = {name: direction * catalogue[name] for name, direction in measures.items()}
    names = list(signed)
    table = pd.DataFrame(np.nan, index=names, columns=names)
    for row, one in enumerate(names):
        for other in names[: row + 1]:
            table.loc[one, other] = table.loc[other, one] = kendall(signed[one], signed[other])
    return table


def task_table(catalogue: pd.DataFrame, measures: Mapping[str, int], axes: Sequence[str], task: str, *, seed: int = 0) -> pd.DataFrame:
    """Score measures as the PGDL competition does, 100 times the conditional mutual information, task by task; Schiff et al. 2021.

    Args:
        catalogue: as for ``ranking_table``.
        measures: column to direction.
        axes: hyperparameters; the task itself is no axis.
        task: the column that tells tasks apart, such as the architecture.
        seed: of the sample of cells where there are very many.

    Returns:
        One row per measure: a column per task and their average over the tasks where it is defined. A task has no value when fewer than
        two hyperparameters vary in it, or when its models leave nothing to condition on.
    """
    columns = {}
    for name, models in catalogue.groupby(task, sort=True):
        varied = varied_axes(models, [axis for axis in axes if axis != task])
        scores = information_table(models, measures, varied, seed=seed).set_index("measure")["score"] if len(varied) > 1 else np.nan
        columns[str(name)] = 100 * scores
    table = pd.DataFrame(columns, index=list(measures), dtype=float).rename_axis("measure")
    return table.assign(average=table.mean(axis=1)).reset_index()
