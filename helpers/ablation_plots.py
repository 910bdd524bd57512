"""Figures of the ablations: correlations side by side, by threshold and by number of images, masks, and pooled against within."""

from collections.abc import Mapping, Sequence
from textwrap import fill

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from helpers import confounders
from helpers.plots import empty, style

_MARKERS = ("o", "s", "^", "D", "v", "P")
_R = "Pearson r with the gap"
_LEFT = "strength: minus the correlation with the gap, positive: works"


@style()
def correlations(table: pd.DataFrame, labels: Sequence[str]) -> Figure:
    """Draw one correlation per row with its interval and n; the paper's value hollow where there is one.

    Args:
        table: n, pearson_r, ci_low, ci_high, and published_r where the paper has values.
        labels: one per row.
    """
    if not table["pearson_r"].notna().any():
        return empty("No correlation is defined: too few models, or a constant.")
    figure, ax = plt.subplots(figsize=(8, 1.3 + 0.36 * len(table)), layout="constrained")
    at = np.arange(len(table))
    ax.axvline(0, color="black", linewidth=0.8)
    ax.hlines(at, table["ci_low"], table["ci_high"], color="C0", linewidth=2.5, alpha=0.5)
    ax.plot(table["pearson_r"], at, "o", color="C0", label="here, 95 % interval")
    if "published_r" in table and table["published_r"].notna().any():
        ax.plot(table["published_r"], at, "D", color="C1", fillstyle="none", label="Du et al. 2024")
    ax.set_yticks(at, [f"{label}  (n = {int(n)})" for label, n in zip(labels, table["n"], strict=True)], fontsize="small")
    ax.set(xlim=(-1.05, 1.05), xlabel=_R, ylim=(len(table) - 0.5, -0.5))
    ax.grid(axis="y", visible=False)
    figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    return figure


@style()
def by_threshold(table: pd.DataFrame, paper: float) -> Figure:
    """Draw r by the threshold of the map, a line per way to compute it; the band is the interval of the first.

    Args:
        table: way (a label), threshold, pearson_r, ci_low, ci_high.
        paper: the threshold that the paper takes, marked.
    """
    if not table["pearson_r"].notna().any():
        return empty("No correlation is defined at any threshold: too few models, or a constant.")
    figure, ax = plt.subplots(figsize=(8, 4.2), layout="constrained")
    for number, (way, rows) in enumerate(table.groupby("way", sort=False)):
        rows = rows.sort_values("threshold")
        options = {"color": f"C{number % 10}", "marker": _MARKERS[number % 6], "markersize": 4, "linestyle": ("-", "--", ":")[number % 3]}
        ax.plot(rows["threshold"], rows["pearson_r"], label=fill(str(way), 34), **options)
        if not number:
            ax.fill_between(rows["threshold"], rows["ci_low"], rows["ci_high"], color="C0", alpha=0.15, linewidth=0)
    ax.axhline(0, color="black", linewidth=0.8)
    ax.axvline(paper, color="black", linewidth=0.8, linestyle=":")
    ax.annotate(f"paper: {paper:g}", (paper, 1.03), xytext=(3, 0), textcoords="offset points", fontsize="small", va="top")
    ax.set(xlabel="threshold of the normalised map", ylabel=_R, ylim=(-1.05, 1.05), xlim=(0, 1))
    ax.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, title="band: interval of the first")
    return figure


@style()
def by_images(table: pd.DataFrame, spread: float) -> Figure:
    """Draw what a number of training images buys: the interval of a model's IoU, and r with the interval over draws of images.

    Args:
        table: see ``sample_sizes.by_number_of_images``.
        spread: standard deviation of IoU between the models, to which an error must be small.
    """
    if not len(table):
        return empty("No image has a defined overlap.")
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained", sharex=True)
    left.plot(table["images"], table["half_width"], "o-", color="C0", label="half the 95 % interval of a model's IoU")
    if np.isfinite(spread):
        left.axhline(spread, color="C1", linestyle="--", label="spread of IoU between models (sd)")
    left.set(ylabel="IoU", xlabel="training images", ylim=(0, None), xscale="log")
    left.legend(fontsize="x-small", loc="upper right", frameon=True)
    right.fill_between(table["images"], table["ci_low"], table["ci_high"], color="C0", alpha=0.2, linewidth=0, label="95 % of the draws")
    right.plot(table["images"], table["pearson_r"], "o-", color="C0", label="median of the draws")
    right.axhline(0, color="black", linewidth=0.8)
    right.set(ylabel=_R, xlabel="training images", ylim=(-1.05, 1.05))
    right.legend(fontsize="x-small", loc="upper right", frameon=True)
    ticks = table["images"].to_numpy()
    # On a logarithmic axis neighbours closer than this would run into each other.
    shown = [size for size, after in zip(ticks, [*ticks[1:], np.inf], strict=True) if after / size > 1.3 or after == np.inf]
    left.set_xticks(shown, [f"{size:,}" for size in shown])
    left.minorticks_off()
    right.minorticks_off()
    return figure


@style()
def masks(images: Tensor, made: Tensor, annotated: Tensor, titles: Sequence[str]) -> Figure:
    """Draw images, the masks that a machine made, and the annotated boxes below each other, a column per image (the paper's Figure 6).

    Args:
        images: (N, 3, S, S) uint8.
        made: (N, S, S) bool.
        annotated: (N, S, S) bool.
        titles: one per image.
    """
    if not len(images):
        return empty("There is no mask to draw.")
    figure, axes = plt.subplots(3, len(images), figsize=(1 + 1.7 * len(images), 5.4), layout="constrained", squeeze=False)
    for column, title in enumerate(titles):
        pictures = (images[column].permute(1, 2, 0), made[column], annotated[column])
        for ax, picture in zip(axes[:, column], pictures, strict=True):
            ax.imshow(picture.numpy(), cmap="gray", vmin=0, vmax=1 if picture.ndim == 2 else None, interpolation="nearest")
            ax.set(xticks=[], yticks=[])
            ax.grid(visible=False)
        axes[0, column].set_title(title, fontsize="small")
    for ax, label in zip(axes[:, 0], ("image", "mask of the machine", "annotated boxes"), strict=True):
        ax.set_ylabel(label, fontsize="small")
    return figure


@style()
def pooled_against_within(table: pd.DataFrame, titles: Mapping[str, str], measure: str = "iou", most: int = 25) -> Figure:
    """Draw the pooled correlation beside what is left with hyperparameters held fixed: of one measure by level, and of all measures.

    Args:
        table: see ``confounders.confounders``.
        titles: measure to label.
        measure: the one that is shown level by level.
        most: measures on the right at most, the strongest when pooled.
    """
    own = table[table["measure"] == measure]
    within = own[own["kind"] == confounders.WITHIN]
    pooled = table[table["kind"] == confounders.POOLED].set_index("measure")["strength"]
    if not len(within) or not np.isfinite(pooled.get(measure, np.nan)):
        return empty("The pooled correlation is undefined, or no hyperparameter has two levels: nothing to hold fixed.")
    given = own[own["kind"].isin([confounders.GIVEN_ALL, confounders.GIVEN_ONE])]
    rows = pd.concat([own[own["kind"] == confounders.POOLED], given[given["kind"] == confounders.GIVEN_ALL], *_blocks(within, given)])
    order = pooled.abs().nlargest(most).index
    height = 1.6 + 0.27 * max(len(rows), len(order))
    figure, (left, right) = plt.subplots(1, 2, figsize=(12.5, height), layout="constrained")
    _strengths(left, rows, titles.get(measure, measure))
    fixed = table[table["kind"] == confounders.GIVEN_ALL].set_index("measure")["strength"]
    at = np.arange(len(order))
    right.hlines(at, pooled.reindex(order), fixed.reindex(order), color="grey", linewidth=1)
    right.plot(pooled.reindex(order), at, "o", color="C0", label="pooled")
    right.plot(fixed.reindex(order), at, "D", color="C1", fillstyle="none", label="given all hyperparameters")
    right.set_yticks(at, [titles.get(name, name) for name in order], fontsize="x-small")
    right.set(ylim=(len(order) - 0.5, -0.5), title="all measures")
    figure.legend(*right.get_legend_handles_labels(), loc="outside upper right", ncols=2, fontsize="small", frameon=False)
    for ax in (left, right):
        ax.axvline(0, color="black", linewidth=0.8)
        ax.set(xlim=(-1.08, 1.08), xticks=(-1, -0.5, 0, 0.5, 1))
        ax.grid(axis="y", visible=False)
    figure.supxlabel(_LEFT, fontsize="medium")
    return figure


def _blocks(within: pd.DataFrame, given: pd.DataFrame) -> list[pd.DataFrame]:
    """Put the partial correlation given one hyperparameter on top of its levels."""
    return [
        pd.concat([given[given["hyperparameter"] == axis], levels[levels["n"] > 0]])
        for axis, levels in within.groupby("hyperparameter", sort=False)
    ]


def _strengths(ax: Axes, rows: pd.DataFrame, title: str) -> None:
    kinds = {confounders.POOLED: ("o", "C0"), confounders.GIVEN_ALL: ("D", "C1"), confounders.GIVEN_ONE: ("D", "C2")}
    kinds[confounders.WITHIN] = ("s", "C3")
    at = np.arange(len(rows))
    for kind, (marker, colour) in kinds.items():
        chosen = (rows["kind"] == kind).to_numpy()
        part = rows[chosen]
        ax.hlines(at[chosen], part["ci_low"], part["ci_high"], color=colour, linewidth=2.5, alpha=0.45)
        ax.plot(part["strength"], at[chosen], marker, color=colour, fillstyle="none" if marker == "D" else "full", label=kind)
    labels = [_label(row) for _, row in rows.iterrows()]
    ax.set_yticks(at, [f"{label}  (n = {int(n)})" for label, n in zip(labels, rows["n"], strict=True)], fontsize="x-small")
    ax.set(ylim=(len(rows) - 0.5, -0.5), title=title)


def _label(row: pd.Series) -> str:
    if row["kind"] == confounders.WITHIN:
        return f"{row['hyperparameter']} = {row['level']}"
    return {confounders.POOLED: "pooled", confounders.GIVEN_ALL: "given all hyperparameters"}.get(
        row["kind"], f"given {row['hyperparameter']}"
    )
