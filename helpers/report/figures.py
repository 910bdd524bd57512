"""Figures that more than one notebook draws: a measure against the gap, and rows of estimates with their intervals."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from helpers.report.style import GAP, colours, in_order
from helpers.statistics.correlations import pearson


def against_gap(table: pd.DataFrame, measure: str, title: str, *, lines: dict[str, float] | None = None) -> Figure | None:
    """A measure against the gap, one point a model, coloured by kind of training; r is that of the points drawn. None for fewer than three.

    ``lines``: values of the measure that no network is needed for, such as that of a map over the whole image, by name.
    """
    drawn = table[np.isfinite(table[[measure, "gap"]].astype(float)).all(axis=1)]
    if len(drawn) < 3:
        return None
    kinds = in_order(drawn["kind"])
    figure, ax = plt.subplots(figsize=(8, 4.5))
    marks = {"hue": "kind", "hue_order": kinds, "style": "kind", "style_order": kinds, "palette": colours(kinds)}
    seaborn.scatterplot(drawn.assign(points=100 * drawn["gap"]), x=measure, y="points", ax=ax, **marks)
    for (name, value), dash in zip((lines or {}).items(), ("--", ":", "-."), strict=False):
        ax.axvline(value, color="black", linewidth=1, linestyle=dash, label=f"{name}: {value:.2f}")
    ax.set(xlabel=title, ylabel=GAP, title=f"r = {pearson(drawn[measure], drawn['gap']):.2f}, {len(drawn)} models")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")
    return figure


def forest(ax: Axes, table: pd.DataFrame, value: str, labels: Sequence[str], *, published: str = "") -> None:
    """Rows of estimates with their intervals, the first on top; a row without an interval is a grey point.

    The table has ``value`` with ``<value>_low`` and ``<value>_high``, and may have a column of published values, drawn as crosses.
    """
    rows = np.arange(len(table))
    ax.axvline(0, color="black", linewidth=0.8)
    ax.hlines(rows, table[f"{value}_low"], table[f"{value}_high"], color="C0", linewidth=2)
    ax.plot(table[value], rows, "o", color="C0")
    if (bare := table[value].notna() & table[f"{value}_low"].isna()).any():
        ax.plot(table[value].where(bare), rows, "o", color="0.6", label="too few configurations for an interval")
    if published and table[published].notna().any():
        ax.plot(table[published], rows, "x", color="C3", label="published")
    if ax.get_legend_handles_labels()[0] and not ax.figure.legends:  # of the figure, since a panel may be narrower than it
        ax.figure.legend(*ax.get_legend_handles_labels(), loc="outside lower right", fontsize="small")
    if table[value].isna().all():
        ax.text(0.5, 0.5, "undefined", ha="center", color="0.4", backgroundcolor="white", transform=ax.transAxes)
        ax.set_xticks([])
    ax.set_yticks(rows, labels)
    ax.set_ylim(len(table) - 0.4, -0.6)
    ax.grid(axis="y", visible=False)


def first_rows(table: pd.DataFrame, always: Sequence[str], most: int = 40) -> pd.DataFrame:
    """The first rows of a long table, those of ``always`` (values of its column measure) among them in any case; in their order."""
    claimed = table["measure"].isin(always)
    free = (~claimed).cumsum() <= most - claimed.sum()
    return table[claimed | free]
