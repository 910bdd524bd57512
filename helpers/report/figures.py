"""What more than one notebook draws: rows of estimates, and names beside their data."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes


def forest(
    ax: Axes,
    table: pd.DataFrame,
    value: str,
    labels: Sequence[str],
    *,
    published: str = "",
) -> None:
    """Rows of estimates with their intervals, the first on top; a row without an interval is a grey point.

    The table has ``value`` with ``<value>_low`` and ``<value>_high``, and may have a column of published values, drawn as crosses.
    """
    rows = np.arange(len(table))
    ax.axvline(0, color="black", linewidth=0.8)
    ax.hlines(
        rows, table[f"{value}_low"], table[f"{value}_high"], color="C0", linewidth=2
    )
    ax.plot(table[value], rows, "o", color="C0")
    if (bare := table[value].notna() & table[f"{value}_low"].isna()).any():
        ax.plot(
            table[value].where(bare),
            rows,
            "o",
            color="0.6",
            label="too few configurations for an interval",
        )
    if published and table[published].notna().any():
        ax.plot(table[published], rows, "x", color="C3", label="published")
    if (
        ax.get_legend_handles_labels()[0] and not ax.figure.legends
    ):  # of the figure, since a panel may be narrower than it
        ax.figure.legend(
            *ax.get_legend_handles_labels(), loc="outside lower right", fontsize="small"
        )
    if table[value].isna().all():
        ax.text(
            0.5,
            0.5,
            "undefined",
            ha="center",
            color="0.4",
            backgroundcolor="white",
            transform=ax.transAxes,
        )
        ax.set_xticks([])
    ax.set_yticks(rows, labels)
    ax.set_ylim(len(table) - 0.4, -0.6)
    ax.grid(axis="y", visible=False)


def first_rows(
    table: pd.DataFrame, always: Sequence[str], most: int = 40
) -> pd.DataFrame:
    """The first rows of a long table, those of ``always`` (values of its column measure) among them in any case; in their order."""
    claimed = table["measure"].isin(always)
    free = (~claimed).cumsum() <= most - claimed.sum()
    return table[claimed | free]


def label_at_right(ax: Axes, heights: pd.Series, colours: Mapping[str, Any]) -> None:
    """Write names right of a plot, at the heights of what they name, in its colour.

    Names that would overlap are moved apart. Call it once the axis has its limits.

    Args:
        ax: with the data.
        heights: where each name belongs, by name, in units of the y axis.
        colours: by name.
    """
    heights = heights.dropna().sort_values()
    points = np.column_stack([np.zeros(len(heights)), heights])
    pixels = ax.transData.transform(points)
    places = ax.transAxes.inverted().transform(pixels)[:, 1]
    line = 14 / 72 * ax.figure.dpi / ax.get_window_extent().height
    for _ in range(100):
        lacking = np.clip(line - np.diff(places), 0, None) / 2
        places -= np.append(lacking, 0)
        places += np.append(0, lacking)
    for name, place in zip(heights.index, places, strict=True):
        ax.text(
            1.02,
            place,
            name,
            color=colours[name],
            fontsize="small",
            va="center",
            transform=ax.transAxes,
        )
