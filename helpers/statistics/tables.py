"""Tables of how well measures tell the gap: per architecture and training accuracy, with hyperparameters fixed, and task by task."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.stats import zscore

from helpers.statistics.correlations import Array, finite_pairs, kendall, pair_counts, pairwise_accuracy, pearson
from helpers.statistics.hyperparameters import ALL, granulated_kendall
from helpers.statistics.information import information_table
from helpers.statistics.permutation import adjusted_p_values, band, permuted_rows
from helpers.statistics.resampling import FEWEST_CELLS, correlated, estimate
from helpers.statistics.sign_error import ALL_ENVIRONMENTS, sign_error_table

THRESHOLDS = (0.95, 0.90, 0.85, 0.80)
TOTAL = "Total"
NULL_DRAWS = 99  # permutations of statistics that are counted anew each time; p is then 0.01 at least


def _subsets(catalogue: pd.DataFrame, thresholds: Collection[float]) -> Iterator[tuple[str, float, pd.DataFrame]]:
    """Models above each training accuracy, per architecture and then pooled."""
    for architecture in [*catalogue["architecture"].unique(), TOTAL]:
        models = catalogue if architecture == TOTAL else catalogue[catalogue["architecture"] == architecture]
        for threshold in thresholds:
            yield architecture, threshold, models[models["train_accuracy"] > threshold]


def correlation_table(
    catalogue: pd.DataFrame,
    measures: Collection[str],
    thresholds: Collection[float] = THRESHOLDS,
    *,
    resamples: int = 2000,
    kendall_resamples: int = 500,
    seed: int = 0,
) -> pd.DataFrame:
    """Correlate measures with the gap, per architecture and pooled, among the models above each training accuracy; Du et al., Table 3.

    Args:
        catalogue: one row per model: architecture, train_accuracy and gap (fractions), cell, and a column per measure.
        measures: the columns to correlate; the sign of the raw measure is kept.
        thresholds: a model is taken when its training accuracy is above, fractions.
        resamples: of Pearson's interval; 0 leaves it NaN.
        kendall_resamples: of Kendall's, which costs more.
        seed: of the resampling.

    Returns:
        One row per architecture (last "Total"), threshold and measure, see ``resampling.correlated``: n models used, dropped (not finite),
        cells, pearson_r, ci_low, ci_high, kendall_tau, kendall_low, kendall_high. What is undefined is NaN; no row is left out.
    """
    drawing = {"tau": True, "draws": resamples, "tau_draws": kendall_resamples, "seed": seed}
    parts = [
        correlated(models, list(measures), **drawing).assign(architecture=architecture, threshold=threshold)
        for architecture, threshold, models in _subsets(catalogue, thresholds)
    ]
    return _in_front(pd.concat(parts, ignore_index=True))


def _in_front(table: pd.DataFrame) -> pd.DataFrame:
    front = ["architecture", "threshold", "measure"]
    return table[[*front, *(name for name in table if name not in front)]]


def selection_table(
    catalogue: pd.DataFrame,
    measures: Mapping[str, int],
    thresholds: Collection[float] = THRESHOLDS,
    *,
    resamples: int = 500,
    seed: int = 0,
) -> pd.DataFrame:
    """How often each measure picks the better of two models, per architecture and pooled; Du et al. 2024, Table 4.

    Args:
        catalogue: as for ``correlation_table``.
        measures: column to direction, +1 when a larger value promises a smaller gap, else -1.
        thresholds: a model is taken when its training accuracy is above, fractions.
        resamples: of the interval, see ``resampling.estimate``; 500 leave its ends uncertain by a few percent of its width.
        seed: of the resampling.

    Returns:
        One row per architecture (last "Total"), threshold and measure: n, dropped, cells, accuracy (fraction), ci_low, ci_high,
        concordant, discordant, ties. What is undefined is NaN; no row is left out.
    """
    rows = []
    for architecture, threshold, models in _subsets(catalogue, thresholds):
        x = models[list(measures)].to_numpy(dtype=float) * np.array(list(measures.values()), dtype=float)
        y = models["gap"].to_numpy(dtype=float)
        _, low, high, _ = estimate(lambda w, x=x, y=y: pairwise_accuracy(x, y, w), models["cell"], resamples, seed)
        for number, name in enumerate(measures):
            kept = finite_pairs(x[:, number], y)[2]
            cells = models["cell"].to_numpy()[kept]
            enough = len(set(cells)) >= FEWEST_CELLS
            subset = {"architecture": architecture, "threshold": threshold, "measure": name, "n": int(kept.sum())}
            subset |= {"dropped": int((~kept).sum()), "cells": len(set(cells))} | pair_counts(x[:, number], y)._asdict()
            rows.append(subset | {"ci_low": low[number] if enough else np.nan, "ci_high": high[number] if enough else np.nan})
    return pd.DataFrame(rows)


def varied_axes(catalogue: pd.DataFrame, axes: Sequence[str]) -> list[str]:
    """List the hyperparameters that have more than one level among these models."""
    return [name for name in axes if catalogue[name].nunique() > 1]


def conditional_table(
    models: pd.DataFrame, measures: Mapping[str, int], axes: Sequence[str], *, test_images: int, draws: int = NULL_DRAWS, seed: int = 0
) -> pd.DataFrame:
    """Statistics of the literature that hold hyperparameters fixed, each beside what chance would give the best of these measures.

    Args:
        models: one row per model: gap (fraction), cell, the axes and a column per measure.
        measures: column to direction, +1 when a larger value promises a smaller gap, else -1.
        axes: hyperparameters with more than one level, see ``varied_axes``; there may be none.
        test_images: images that each test accuracy was measured on, for the noise filter of the sign error.
        draws: permutations of the gap among cells behind p.
        seed: of them.

    Returns:
        One row per measure: granulated_kendall (mean over the axes, in the sign of the raw measure), conditional_information in [0, 1]
        and sign_error (of the worst environment; 0 is perfect, 0.5 chance), both with ``_p_adjusted`` (maxT over the measures) and
        ``_band`` (95 % of the null's largest score; of the null's largest distance from 0.5), environment and environments.
    """
    wanted = ["granulated_kendall", "conditional_information", "sign_error", "environment", "environments"]
    if not axes:
        return pd.DataFrame({"measure": list(measures)}).reindex(columns=["measure", *wanted])
    granulated = granulated_kendall(models, dict.fromkeys(measures, -1), axes).query("hyperparameter == @ALL")

    def worst(table: pd.DataFrame) -> pd.DataFrame:
        errors = sign_error_table(table, measures, axes, test_images=test_images, seed=seed)
        return errors[errors["hyperparameter"] == ALL_ENVIRONMENTS].set_index("measure").loc[list(measures)]

    def scores(table: pd.DataFrame) -> Array:
        return information_table(table, measures, axes, seed=seed)["score"].to_numpy(dtype=float)

    errors = worst(models)
    found = pd.DataFrame(
        {
            "measure": list(measures),
            "granulated_kendall": granulated[granulated["hyperparameter"] == ALL]
            .set_index("measure")["psi"]
            .loc[list(measures)]
            .to_numpy(),
            "conditional_information": scores(models),
            "sign_error": errors["maximum"].to_numpy(),
            "environment": errors["environment"].to_numpy(),
            "environments": errors["environments"].to_numpy(),
        }
    )
    found = found.assign(**_against_chance("conditional_information", found["conditional_information"], scores, models, draws, seed))
    distance = (found["sign_error"] - 0.5).abs()
    return found.assign(
        **_against_chance("sign_error", distance, lambda t: (worst(t)["maximum"] - 0.5).abs().to_numpy(float), models, draws, seed)
    )


def _against_chance(
    name: str, observed: ArrayLike, statistic: Callable[[pd.DataFrame], Array], models: pd.DataFrame, draws: int, seed: int
) -> dict[str, ArrayLike]:
    """Adjusted p of each measure, and the band, where the statistic (M,) is counted anew with the gap permuted among cells."""
    gap = models["gap"].to_numpy(dtype=float)
    null = np.array([statistic(models.assign(gap=gap[rows])) for rows in permuted_rows(models["cell"], draws, seed)])
    null = null.reshape(draws, np.size(observed))
    return {f"{name}_p_adjusted": adjusted_p_values(observed, null), f"{name}_band": band(null)}


def measure_correlations(catalogue: pd.DataFrame, measures: Mapping[str, int]) -> pd.DataFrame:
    """Rank correlation of every measure with every other, signed so that measures that promise alike are positive.

    Returns:
        A square table (measures x measures) of Kendall's tau-b over the models where both are finite; NaN where undefined.
    """
    names = list(measures)
    signed = catalogue[names].to_numpy(dtype=float) * np.array(list(measures.values()), dtype=float)
    return pd.DataFrame([kendall(signed, column) for column in signed.T], index=names, columns=names)


def task_table(
    catalogue: pd.DataFrame, measures: Mapping[str, int], axes: Sequence[str], task: str, *, draws: int = NULL_DRAWS, seed: int = 0
) -> pd.DataFrame:
    """Score measures as the PGDL competition does, 100 times the conditional mutual information, task by task; Schiff et al. 2021.

    Args:
        catalogue: one row per model: gap (fraction), cell, the task, the axes and a column per measure.
        measures: column to direction.
        axes: hyperparameters; the task itself is no axis.
        task: the column that tells tasks apart, such as the architecture.
        draws: permutations of the gap among the cells of each task behind p.
        seed: of them, and of the sample of cells where there are very many.

    Returns:
        One row per measure: a column per task, their average over the tasks where it is defined, and average_p_adjusted (maxT) with
        average_band, what chance gives the best of these measures. A task has no value when fewer than two hyperparameters vary in it, or
        when its models leave nothing to condition on.
    """
    tasks = {str(name): models for name, models in catalogue.groupby(task, sort=True)}
    varied = {name: varied_axes(models, [axis for axis in axes if axis != task]) for name, models in tasks.items()}

    def scores(gaps: Mapping[str, Array]) -> pd.DataFrame:
        found = {}
        for name, models in tasks.items():
            if len(varied[name]) > 1:
                table = information_table(models.assign(gap=gaps[name]), measures, varied[name], seed=seed)
                found[name] = 100 * table["score"].to_numpy(dtype=float)
            else:
                found[name] = np.full(len(measures), np.nan)
        return pd.DataFrame(found, index=list(measures), dtype=float).rename_axis("measure")

    gaps = {name: models["gap"].to_numpy(dtype=float) for name, models in tasks.items()}
    rows = {name: permuted_rows(models["cell"], draws, seed) for name, models in tasks.items()}
    table = scores(gaps)
    average = table.mean(axis=1)
    null = [scores({name: gaps[name][rows[name][draw]] for name in tasks}).mean(axis=1).to_numpy() for draw in range(draws)]
    null = np.array(null).reshape(draws, len(measures))
    chance = {"average_p_adjusted": adjusted_p_values(average, null), "average_band": band(null)}
    return table.assign(average=average, **chance).reset_index()


def pca_gi_mixup(gi: ArrayLike, mixup: ArrayLike) -> NDArray[np.float64]:
    """First principal component of the z-scores of Gi-score and mixup accuracy over models, growing with Gi; Schiff et al., PCA Gi&Mix.

    For (n,) values each, one per model, of correlation r: ``(z_gi + sign(r) z_mixup) / sqrt(2)``; 1 - mixup gives the same. Small is
    better. Which Gi-score the paper takes is not known; intra-class at the input is recommended. NaN where one of the two is not finite,
    and everywhere for fewer than 3 models, a constant, or r = 0.

    Raises:
        ValueError: not one value of each per model.
    """
    x, y, kept = finite_pairs(gi, mixup)
    component = np.full(len(kept), np.nan)
    if abs(r := pearson(x, y)) > 1e-12:
        component[kept] = (zscore(x) + np.sign(r) * zscore(y)) / 2**0.5
    return component


def beside_published(table: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """Add the paper's value and the difference to it, where the paper has the architecture, threshold and method.

    Args:
        table: rows of ``tables.correlation_table`` or ``selection_table``.
        published: method, architecture, threshold, and either pearson_r or accuracy_percent.

    Returns:
        The table with published_r and difference, or published_accuracy (fraction) and difference; NaN where there is none.
    """
    theirs = published.rename(columns={"method": "measure"})
    if "pearson_r" in published:
        theirs, ours, name = theirs.rename(columns={"pearson_r": "published_r"}), "pearson_r", "published_r"
    else:
        theirs, ours, name = theirs.assign(published_accuracy=theirs["accuracy_percent"] / 100), "accuracy", "published_accuracy"
    joined = table.merge(theirs[["architecture", "threshold", "measure", name]], how="left", on=["architecture", "threshold", "measure"])
    return joined.assign(difference=joined[ours] - joined[name])
