"""Figures of several notebooks: rows of estimates with their intervals."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike


def forest(
    ax: Axes,
    labels: Sequence[str],
    values: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    published: ArrayLike | None = None,
) -> None:
    """Draw rows of estimates with their intervals, the first on top.

    Args:
        ax: to draw on.
        labels: of the N rows.
        values: (N,) estimates; NaN where undefined.
        low: (N,) lower ends of the intervals; NaN for a row without one.
        high: (N,) upper ends.
        published: (N,) published values, drawn as crosses.
    """
    rows = np.arange(len(labels))
    ax.axvline(0, color="black", linewidth=0.8)
    ax.hlines(rows, low, high, color="C0", linewidth=2)
    ax.plot(values, rows, "o", color="C0")
    if published is not None and pd.notna(published).any():
        ax.plot(published, rows, "x", color="C3", label="published")
        if not ax.figure.legends:
            # Of the figure, since a panel may be narrower than the legend.
            ax.figure.legend(loc="outside lower right", fontsize="small")
    if pd.isna(values).all():
        style = {"ha": "center", "color": "0.4", "backgroundcolor": "white"}
        ax.text(0.5, 0.5, "undefined", transform=ax.transAxes, **style)
        ax.set_xticks([])
    ax.set_yticks(rows, labels)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.grid(axis="y", visible=False)


def forest_of_correlations(
    table: pd.DataFrame, labels: Sequence[str], panels: Sequence[str] | None = None
) -> Figure:
    """Draw correlations with the gap, and their intervals.

    Args:
        table: N rows with pearson_r, ci_low and ci_high, and possibly published_r,
            which is drawn as crosses.
        labels: of the N rows.
        panels: (N,) title of the panel that a row stands in; None for one panel.
    """
    panel_of_row = np.array([""] * len(table) if panels is None else [*panels])
    titles = [*dict.fromkeys(panel_of_row)] or [""]  # an empty panel without rows
    height = 1 + 0.4 * len(titles) + 0.32 * len(table)
    figure, axes = plt.subplots(
        len(titles), 1, figsize=(8, height), sharex=True, squeeze=False
    )
    for ax, title in zip(axes[:, 0], titles, strict=True):
        is_here = panel_of_row == title
        rows = table[is_here]
        names = np.array([*labels])[is_here]
        ends = rows["ci_low"], rows["ci_high"]
        forest(ax, names, rows["pearson_r"], *ends, rows.get("published_r"))
        ax.set_title(title, fontsize="medium", loc="left")
    ax.set(xlabel="r with the gap", xlim=(-1.05, 1.05))
    return figure


def first_rows(
    table: pd.DataFrame, always: Sequence[str], most: int = 40
) -> pd.DataFrame:
    """The first rows of a long table, in their order.

    Args:
        table: with a column measure.
        always: measures whose rows are always included.
        most: number of rows.
    """
    is_included = table["measure"].isin(always)
    fits = (~is_included).cumsum() <= most - is_included.sum()
    return table[is_included | fits]
