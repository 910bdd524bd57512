"""Figures of classification: confusion of the classes, precision-recall and ROC curves, scores per class."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from helpers.classification import MICRO_AVERAGE, break_even_point
from helpers.plots import empty, style

_ANNOTATED_CLASSES = 12
_LABELLED_CLASSES = 40
_SCORES = {"precision": "precision", "recall": "recall", "f1": "F1"}


@style()
def confusion_heatmap(matrix: np.ndarray, names: Sequence[str]) -> Figure:
    """Draw where the images of each class end up, each row in percent of its class; counts are written in up to 12 classes.

    Args:
        matrix: (K, K) counts, rows true, columns predicted, see ``classification.confusion``; a row without images stays grey.
        names: K class names.

    Raises:
        ValueError: the matrix is not square or has not as many rows as there are names.
    """
    matrix = np.asarray(matrix)
    if matrix.shape != (len(names), len(names)):
        raise ValueError(f"{len(names)} classes need a ({len(names)}, {len(names)}) matrix, got shape {matrix.shape}")
    if not matrix.sum():
        return empty("There is no classified image.")
    images = matrix.sum(1, keepdims=True)
    percent = 100 * np.divide(matrix, images, out=np.full(matrix.shape, np.nan), where=images > 0)
    side = float(np.clip(3 + 0.3 * len(names), 4.5, 10))
    figure, ax = plt.subplots(figsize=(side + 1.5, side + 0.3), layout="constrained")
    ax.set_facecolor("lightgrey")
    # By the square root, so that a confusion of a few percent still shows beside a diagonal near 100.
    drawn = ax.imshow(percent, cmap="Blues", norm=PowerNorm(0.5, vmin=0, vmax=100))
    places = np.arange(0, len(names), -(-len(names) // _LABELLED_CLASSES))
    small = {"fontsize": "x-small" if len(names) > _ANNOTATED_CLASSES else "small"}
    ax.set_xticks(places, [names[k] for k in places], rotation=90, **small)
    ax.set_yticks(places, [f"{names[k]} (n = {images[k, 0]:,})" for k in places], **small)
    ax.grid(visible=False)
    ax.set(xlabel="predicted class", ylabel="true class (n images)")
    if len(names) <= _ANNOTATED_CLASSES:
        for (row, column), count in np.ndenumerate(matrix):
            colour = "white" if percent[row, column] > 40 else "black"
            ax.text(column, row, f"{count:,}", ha="center", va="center", color=colour, fontsize="small")
    figure.colorbar(drawn, ax=ax, shrink=0.8, label="share of the true class (%)", ticks=[0, 1, 5, 10, 20, 40, 60, 80, 100])
    return figure


def _draw_curves(ax: Axes, points: pd.DataFrame, x: str, y: str) -> None:
    """Draw every class in grey, the classes of smallest and largest area in colour, the micro average in black."""
    curves = dict(iter(points.groupby("class", sort=False)))
    pooled = curves.pop(MICRO_AVERAGE, None)
    areas = {name: abs(np.trapezoid(curve[y], curve[x])) for name, curve in curves.items()}
    counts = [curve["n"].iloc[0] for curve in curves.values()]
    for number, curve in enumerate(curves.values()):
        label = f"each of {len(curves)} classes (n = {min(counts):,} to {max(counts):,})" if not number else None
        ax.plot(curve[x], curve[y], color="grey", alpha=0.45, linewidth=0.8, label=label)
    if len(curves) > 2:
        for word, name, colour in (("largest", max(areas, key=areas.get), "C0"), ("smallest", min(areas, key=areas.get), "C1")):
            label = f"{word} area: {name} (n = {curves[name]['n'].iloc[0]:,})"
            ax.plot(curves[name][x], curves[name][y], color=colour, linewidth=1.3, label=label)
    if pooled is not None:
        ax.plot(pooled[x], pooled[y], color="black", linewidth=2.5, label=f"{MICRO_AVERAGE} (n = {pooled['n'].iloc[0]:,})")


def _curve_figure(points: pd.DataFrame, x: str, y: str) -> tuple[Figure, Axes]:
    figure, ax = plt.subplots(figsize=(6, 6.8), layout="constrained")
    _draw_curves(ax, points, x, y)
    ax.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_ticks(np.linspace(0, 1, 6))
        axis.set_major_formatter(PercentFormatter(1))
    return figure, ax


@style()
def precision_recall_curves(points: pd.DataFrame) -> Figure:
    """Draw precision against recall per class and pooled; up and right is better. Where the pooled curve meets P = R is marked.

    Args:
        points: see ``classification.precision_recall_points``; n counts the images of the class, or all for the micro average.
    """
    if not len(points):
        return empty("There is no point of a precision-recall curve.")
    figure, ax = _curve_figure(points, "recall", "precision")
    ax.plot([0, 1], [0, 1], ":", color="black", linewidth=0.8, zorder=1)
    pooled = points[points["class"] == MICRO_AVERAGE]
    if len(pooled):
        value = break_even_point(pooled)
        ax.plot(value, value, "D", color="C3", markersize=8, zorder=5, label=f"break-even point: {100 * value:.1f} %")
    ax.set(xlabel="recall (% of the images of the class)", ylabel="precision (% of the images called the class)")
    figure.legend(loc="outside lower center", frameon=False, fontsize="small")
    return figure


@style()
def roc_curves(points: pd.DataFrame) -> Figure:
    """Draw the true against the false positive rate per class and pooled; up and left is better, the diagonal is chance.

    Args:
        points: see ``classification.roc_points``; n counts the images of the class, or all for the micro average.
    """
    if not len(points):
        return empty("There is no point of a ROC curve.")
    figure, ax = _curve_figure(points, "false_positive_rate", "true_positive_rate")
    ax.plot([0, 1], [0, 1], ":", color="black", linewidth=0.8, zorder=1, label="chance")
    ax.set(xlabel="false positive rate (% of the other images)", ylabel="true positive rate (% of the images of the class)")
    figure.legend(loc="outside lower center", frameon=False, fontsize="small")
    return figure


@style()
def per_class_bars(per_class: pd.DataFrame) -> Figure:
    """Draw precision, recall and F1 of each class as bars, the best F1 on top; what is undefined has no bar and says so.

    Args:
        per_class: class, n, precision, recall, f1 (fractions), see ``classification.per_class_metrics``. Of more than 40 classes the
            20 of highest and the 20 of lowest F1 are drawn.
    """
    if not len(per_class):
        return empty("There is no class to score.")
    table = per_class.sort_values("f1", ascending=False, kind="stable", na_position="last")
    half = _LABELLED_CLASSES // 2
    shown = table if len(table) <= _LABELLED_CLASSES else pd.concat([table.head(half), table.tail(half)])
    figure, ax = plt.subplots(figsize=(7.5, 1.2 + 0.42 * len(shown)), layout="constrained")
    rows = np.arange(len(shown))
    for number, (column, label) in enumerate(_SCORES.items()):
        places = rows + 0.26 * (number - 1)
        ax.barh(places, 100 * shown[column], height=0.25, label=label, hatch=("", "//", "..")[number], edgecolor="white", linewidth=0)
        for place in places[shown[column].isna()]:
            ax.text(0.5, place, f"{label} undefined", va="center", fontsize="xx-small")
    ax.set_yticks(rows, [f"{name} (n = {n:,})" for name, n in zip(shown["class"], shown["n"], strict=True)])
    ax.set(ylim=(len(shown) - 0.5, -0.5), xlim=(0, 100), xlabel="precision, recall, F1 (%)", ylabel="class (n images)")
    ax.grid(axis="y", visible=False)
    title = f"{half} highest and {half} lowest F1 of {len(table)} classes" if len(shown) < len(table) else None
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False, title=title)
    return figure
