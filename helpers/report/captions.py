"""Sentences below figures and tables; their numbers come from the table that is drawn, and from nothing else."""

from typing import Any

import numpy as np
import pandas as pd

from helpers.report.style import count, listed, percent, with_interval
from helpers.scoring.scoring_set import ScoringSet


def models_and_images(catalogue: pd.DataFrame, scored_on: ScoringSet) -> str:
    """How many models are analysed, and on how many images all of them are scored."""
    kept = catalogue[catalogue["left_out"] == ""]
    return (
        f"Analysed: **{count(len(kept), 'model')}** from {count(kept['cell'].nunique(), 'configuration')} of "
        f"{count(kept['kind'].nunique(), 'kind')} of training, each scored on the same {count(len(scored_on.rows), 'image')}, of "
        f"{scored_on.shared:,} that every run was fitted to."
    )


def mask(threshold: float, rule: str) -> str:
    """Which pixels of a map its mask holds, by a rule of ``overlap.CUTS``."""
    if rule == "quantile":
        return f"The mask holds the {percent(1 - threshold)} highest pixels of the map."
    return f"The mask is where the map is at least {threshold:g}."


def correlation(row: Any, title: str) -> str:
    """r of a measure with the gap, with its interval and what that allows; ``row`` is one of ``Draws.correlations``."""
    if not np.isfinite(row.pearson_r):
        return (
            f"{title} has no correlation with the gap here: too few models have both."
        )
    r = with_interval(row.pearson_r, row.ci_low, row.ci_high)
    sentence = f"{title} and the gap: **r = {r}**, {count(int(row.n), 'model')}."
    if not np.isfinite(row.ci_low):
        return f"{sentence} There are too few configurations for an interval."
    if row.ci_low <= 0 <= row.ci_high:
        return f"{sentence} The interval contains 0, so its sign is uncertain."
    gaps = "smaller" if row.ci_high < 0 else "larger"
    return f"{sentence} Models with larger values have {gaps} gaps."


def central_map(table: pd.DataFrame) -> str:
    """The shares of models that beat a fixed central map, by the measures that most and fewest models beat it in."""
    if not len(table):
        return "These images have no boxes, so nothing can be said about where networks look."
    ordered = table.sort_values("models_above_the_blob")
    low, high = ordered.iloc[0], ordered.iloc[-1]
    return (
        f"A fixed central map is beaten by {percent(low['models_above_the_blob'])} of the models in {low['title']}, and by "
        f"{percent(high['models_above_the_blob'])} in {high['title']}."
    )


def primary(table: pd.DataFrame) -> str:
    """What predicts the gap of a kind of training held out; see ``primary_table``.

    The best measure, with training accuracy and loss, is held against the best
    baseline.
    """
    measures = table[~table["baseline"].astype(bool)].dropna(
        subset=["error_with_twins", "error_best_twins"]
    )
    if not len(measures):
        return "Too few models, kinds of training or configurations for the primary analysis."
    best = measures.sort_values("error_with_twins").iloc[0]
    titles = table.set_index("measure")["title"]
    return (
        f"For kinds of training that are held out in every architecture, "
        f"{titles[best['best_baseline']]} have a mean error of "
        f"{best['error_best_twins']:.1f} points; {best['title']} with training accuracy "
        f"and loss: {best['error_with_twins']:.1f}."
    )


def gates(table: pd.DataFrame) -> str:
    """Which conditions of a study do not hold, and for which measures."""
    failing = table[~table["passes"].astype(bool)]
    if not len(failing):
        return f"All {len(table)} conditions hold."
    each = [
        f"{gate} ({listed(rows['concerns'].tolist(), 3)})"
        for gate, rows in failing.groupby("gate", sort=False)
    ]
    holding = len(table) - len(failing)
    return f"{holding} of {len(table)} conditions hold. These fail: {listed(each, 8)}."


def claims(table: pd.DataFrame) -> str:
    """Each primary claim with its verdict and its number, a line each; see ``verdicts.judged``."""
    rows = table[table["primary"].astype(bool)]
    if not len(rows):
        return "Nothing was claimed before the first run, so every number here is exploration."
    return "\n".join(
        f"- {row.claim}: **{row.verdict}**, {with_interval(row.ours, row.ours_low, row.ours_high)}"
        + (f", published {row.published:g}" if np.isfinite(row.published) else "")
        + (f"; not met: {row.closed}" if row.closed else "")
        + "."
        for row in rows.itertuples()
    )


def strongest(table: pd.DataFrame, value: str, what: str) -> str:
    """The row with the largest absolute value of a column, in words; table has title, ``value`` and its _low and _high."""
    known = table.dropna(subset=value)
    if not len(known):
        return f"No {what} is defined here."
    row = known.loc[known[value].abs().idxmax()]
    low, high = row.get(f"{value}_low", np.nan), row.get(f"{value}_high", np.nan)
    return f"Largest {what}: {row['title']}, {with_interval(row[value], low, high)}."
