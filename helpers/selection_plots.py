"""Figures of a user's own checkpoints: their ranking with intervals, and where they lie among the models of the study."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from helpers.plots import empty, fit_band, style

_LONGEST = 38  # characters of a name


def label(name: str) -> str:
    """Write a checkpoint's name as plain text of a figure: nothing in it is read as mathematics, and its middle is cut when it is long."""
    text = " ".join("".join(sign if sign.isprintable() else " " for sign in name).split())
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2 - 1]}…{text[-_LONGEST // 2 :]}"
    return text.replace("$", r"\$")


@style()
def ranking(table: pd.DataFrame, level: float, truth: pd.Series | None = None, most: int = 30) -> Figure:
    """Draw each checkpoint's predicted gap with its interval, the smallest on top, and the probability that it truly is the best.

    Args:
        table: see ``own_ranking.COLUMNS``.
        level: of the intervals.
        truth: true gap by checkpoint, where it is known; drawn hollow.
        most: checkpoints that are drawn.
    """
    table = table.dropna(subset="predicted_gap").head(most).iloc[::-1]
    if not len(table):
        return empty("No checkpoint has a predicted gap, so there is no ranking to draw.")
    size = (9.5, 1.7 + 0.3 * len(table))
    figure, (ax, chance) = plt.subplots(1, 2, figsize=size, layout="constrained", sharey=True, width_ratios=[3, 1])
    rows, low, high = np.arange(len(table)), 100 * table["gap_low"], 100 * table["gap_high"]
    inside = (table["measures_outside"] == 0).to_numpy()
    ax.hlines(rows, low, high, color="C0", linewidth=2, alpha=0.5, label=f"{level:.0%} interval")
    for marker, chosen, words in (("o", inside, "predicted"), ("X", ~inside, "predicted, outside the study's range")):
        if chosen.any():
            ax.plot(100 * table["predicted_gap"][chosen], rows[chosen], marker, color="C0", label=words)
    if truth is not None:
        ax.plot(100 * table["checkpoint"].map(truth), rows, "D", color="C1", fillstyle="none", label="true")
    ax.set_yticks(rows, [label(name) for name in table["checkpoint"]], fontsize="small")
    ax.set(xlabel="generalization gap (percentage points)", ylim=(-0.7, len(table) - 0.3))
    ax.grid(axis="y", visible=False)
    chance.barh(rows, 100 * table["probability_best"], height=0.6, color="C2")
    chance.set(xlabel="probability of having\nthe smallest gap (%)", xlim=(0, max(5, 105 * table["probability_best"].max())))
    chance.grid(axis="y", visible=False)
    chance.tick_params(labelleft=False)
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    return figure


@style()
def among_the_study(
    models: pd.DataFrame, own: pd.DataFrame, ranking: pd.DataFrame, measures: Sequence[str], titles: dict[str, str]
) -> Figure:
    """Draw the study's models, measure against gap, and the user's checkpoints at their predicted gap, a panel per measure.

    Args:
        models: of the study: gap (fraction) and the measures.
        own: one row per checkpoint, a column per measure.
        ranking: see ``own_ranking.COLUMNS``.
        measures: columns to draw.
        titles: measure to what it is called.
    """
    if not len(measures) or not len(models):
        return empty("The study and the checkpoints share no defined measure, so they cannot be drawn together.")
    guess = ranking.set_index("checkpoint")["predicted_gap"].dropna()
    figure, axes = plt.subplots(
        1, len(measures), figsize=(1.4 + 3.7 * len(measures), 4.2), layout="constrained", sharey=True, squeeze=False
    )
    for ax, name in zip(axes[0], measures, strict=True):
        ax.plot(models[name], 100 * models["gap"], "o", color="C0", alpha=0.75, label=f"models of the study (n = {len(models)})")
        fit_band(ax, models[name].to_numpy(dtype=float), 100 * models["gap"].to_numpy())
        words = f"your checkpoints, at their predicted gap (n = {len(guess)})"
        ax.plot(own.loc[guess.index, name], 100 * guess, "X", color="C1", markersize=8, markeredgecolor="black", label=words)
        ax.axvspan(models[name].min(), models[name].max(), color="C0", alpha=0.06, linewidth=0, label="calibrated range")
        ax.xaxis.set_major_locator(MaxNLocator(4))
        ax.set_xlabel(titles.get(name, name))
    axes[0, 0].set_ylabel("generalization gap\n(percentage points)")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure
