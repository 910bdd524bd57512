"""Sentences that compare measures: which is first, by how much, and whether the interval allows saying so."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from helpers.readings import count, interval, listed, percent
from helpers.statistics import TOTAL


def not_computed(scores: pd.DataFrame) -> pd.DataFrame:
    """Group the values that are missing: measure, variant, reason, models."""
    missing = scores[scores["value"].isna()]
    return missing.groupby(["measure", "variant", "reason"], dropna=False)["model_id"].nunique().rename("models").reset_index()


def scores_computed(scores: pd.DataFrame, listing: pd.DataFrame) -> str:
    """Say how many values there are, of how many measures, and how many are undefined."""
    claims = scores[scores["measure"].isin(listing.loc[listing["direction"] != 0, "measure"])]
    return (
        f"**{count(claims['measure'].nunique(), 'measure')}** (with variants {len(claims[['measure', 'variant']].drop_duplicates())}) of "
        f"{count(claims['model_id'].nunique(), 'model')}: {len(claims):,} values, "
        f"of which {int(claims['value'].isna().sum()):,} are undefined."
    )


def costs(scores: pd.DataFrame) -> pd.Series:
    """Median seconds per model of each measure with all it needs; indexed by measure."""
    return scores.groupby("measure")["seconds"].median()


def costs_read(ranking: pd.DataFrame) -> str:
    """Name the cheapest and the dearest measure."""
    seconds = ranking.dropna(subset="seconds").set_index("title")["seconds"]
    if not len(seconds):
        return "No cost was recorded."
    return f"From {seconds.min():.2g} s a model ({seconds.idxmin()}) to {seconds.max():.2g} s ({seconds.idxmax()}), in the median."


def ranking_read(ranking: pd.DataFrame) -> str:
    """Name the measures whose rank correlation with the gap lies clear of 0, on either side."""
    defined = ranking.dropna(subset=["kendall", "kendall_low", "kendall_high"])
    if not len(defined):
        return "Too few models for a ranking with intervals."
    works, reversed_ = defined[defined["kendall_low"] > 0], defined[defined["kendall_high"] < 0]
    text = f"Of {count(len(defined), 'measure')}, {len(works)} have an interval above 0, so they tell the gap as they should"
    text += f" ({listed(works['title'].tolist(), 3)})" if len(works) else ""
    text += f"; {len(reversed_)} have one below 0, so they tell it the wrong way round"
    text += f" ({listed(reversed_.sort_values('kendall')['title'].tolist(), 3)})" if len(reversed_) else ""
    text += f"; {len(defined) - len(works) - len(reversed_)} cannot be told from chance"
    return text + f". Of so many intervals some {0.025 * len(defined):.0f} would lie above 0 by luck."


def winner(ranking: pd.DataFrame, differences: pd.DataFrame, titles: Mapping[str, str]) -> str:
    """Say which measure wins, by how much over the next of another family, and whether the paired interval allows saying so.

    Args:
        ranking: one row per measure in order, with measure, family, kendall, kendall_low and kendall_high.
        differences: ``comparison.difference_table`` against the first, by Kendall.
        titles: measure to its name.
    """
    defined = ranking.dropna(subset="kendall")
    if len(defined) < 2:
        return "Fewer than two measures have a defined rank correlation with the gap, so none can be said to win."
    first = defined.iloc[0]
    lead = (
        f"**{titles[first['measure']]}** is first with Kendall's tau {first['kendall']:.2f} "
        f"({_interval(first['kendall_low'], first['kendall_high'])})"
    )
    if not first["kendall_low"] > 0:
        return lead + ", but its interval does not lie above 0, so no measure can be said to tell the gap here."
    rivals = differences[differences["measure"] != first["measure"]].dropna(subset=["low", "high"])
    behind = rivals[rivals["high"] < 0]
    alike = rivals[rivals["high"] >= 0].sort_values("difference", ascending=False)
    if not len(rivals):
        return lead + "; with too few models for a paired interval its lead cannot be judged."
    text = f"{lead}. Drawn on the same resamples it is ahead of {len(behind)} of {count(len(rivals), 'rival')} beyond chance"
    if not len(alike):
        return text + "."
    next_ = alike.iloc[0]
    return text + (
        f"; from {len(alike)} it cannot be told apart, nearest {titles[next_['measure']]} "
        f"(difference {next_['difference']:.2f}, {_interval(next_['low'], next_['high'])}). Being chosen as the best flatters the lead."
    )


def _interval(low: float, high: float) -> str:
    return interval(low, high, absent="no interval: too few models")


def methods_read(table3: pd.DataFrame, titles: Mapping[str, str]) -> str:
    """Put the paper's five methods in our order and in the paper's, pooled over the architectures at the lowest threshold."""
    pooled = table3[table3["architecture"] == TOTAL]
    rows = pooled[pooled["threshold"] == pooled["threshold"].min()].dropna(subset="pearson_r").sort_values("pearson_r")
    if not len(rows):
        return "No method has a defined correlation."
    each = [f"{titles[row.measure]} {row.pearson_r:.2f} ({_interval(row.ci_low, row.ci_high)})" for row in rows.itertuples()]
    theirs = rows.dropna(subset="published_r").sort_values("published_r")
    order = ", ".join(f"{titles[row.measure]} {row.published_r:.2f}" for row in theirs.itertuples())
    return f"Pooled r, most negative first: {'; '.join(each)}. The paper: {order}." if len(theirs) else f"Pooled r: {'; '.join(each)}."


def curves_read(curves: pd.DataFrame, gaps: Mapping[str, float]) -> str:
    """Compare the two models' Gi-scores, perturbation by perturbation; two models illustrate and prove nothing."""
    wide = curves.drop_duplicates(["perturbation", "model"]).pivot(index="perturbation", columns="model", values="score")
    if wide.shape[1] < 2:
        return "There are not two models to compare."
    small, large = sorted(wide.columns, key=gaps.get)[:: len(wide.columns) - 1]
    lower = int((wide[small] < wide[large]).sum())
    return (
        f"The model with the smaller gap ({100 * gaps[small]:.1f} against {100 * gaps[large]:.1f} points) has the lower Gi-score, as it "
        f"should, under {lower} of {count(len(wide), 'perturbation')}. Two models illustrate and prove nothing."
    )


def _ahead(wide: pd.DataFrame) -> int:
    return int((wide["Gi-score"] > wide.drop(columns="Gi-score").max(axis=1)).sum())


def invariance_read(table: pd.DataFrame, published: pd.DataFrame) -> str:
    """Say under how many perturbations the Gi-score is ahead of the two plain predictors, here and in the paper."""
    wide = table.pivot(index="perturbation", columns="predictor", values="kendall").dropna()
    if not len(wide):
        return "No perturbation leaves enough models for a rank correlation."
    theirs = published.set_index(["perturbation", "predictor"]).stack().unstack("predictor")
    means = [f"{name} {value:.2f}" for name, value in wide.mean().items()]
    return (
        f"The Gi-score is ahead of both plain predictors under {_ahead(wide)} of {count(len(wide), 'perturbation')}; "
        f"mean tau: {listed(means)}. In the paper it is ahead in {_ahead(theirs)} of {len(theirs)} cases."
    )


def alike_read(table: pd.DataFrame, titles: Mapping[str, str]) -> str:
    """Say how much the measures are copies of each other: pairs whose order of the models is nearly the same or reversed."""
    values = table.to_numpy()
    rows, columns = np.tril_indices(len(table), -1)
    pairs = values[rows, columns]
    defined = np.isfinite(pairs)
    if not defined.any():
        return "No two measures can be compared."
    high, low = int((pairs[defined] > 0.8).sum()), int((pairs[defined] < -0.8).sum())
    worst = np.flatnonzero(defined)[np.argmin(pairs[defined])]
    one, other = titles[table.index[rows[worst]]], titles[table.columns[columns[worst]]]
    return (
        f"Of {count(int(defined.sum()), 'pair')} of measures, {percent(high / defined.sum())} order the models nearly alike "
        f"(tau above 0.8) and {percent(low / defined.sum())} nearly the other way round; the most opposed are {one} and {other} "
        f"({pairs[worst]:.2f}), although both are signed to promise a small gap."
    )


def tasks_read(table: pd.DataFrame, titles: Mapping[str, str]) -> str:
    """Name the measure with the highest average competition score here, and the one in the paper."""
    ours, theirs = table.dropna(subset="average"), table.dropna(subset="published_average")
    if not len(ours):
        return "No task leaves models to condition on, so there is no score."
    best, known = ours.loc[ours["average"].idxmax()], theirs.loc[theirs["published_average"].idxmax()]
    return (
        f"Highest average here: {titles[best['measure']]} with {best['average']:.1f} of 100; "
        f"in the paper {titles[known['measure']]} with {known['published_average']:.1f}."
    )
