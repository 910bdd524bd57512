"""Figures that compare measures: who is first, beside the published values, response curves, and how measures go together."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn
from matplotlib.figure import Figure

from helpers.plots import colours, empty, style

_MARKERS = {"localization": "o", "prediction": "s", "norms": "^", "flatness": "D", "perturbation": "v"}


@style()
def ranking(table: pd.DataFrame) -> Figure:
    """Draw Kendall's tau of every measure with its interval, the strongest on top, beside what it costs per model.

    Args:
        table: title, family, kendall, kendall_low, kendall_high (positive for a measure that works), seconds (median per model).
    """
    table = table.dropna(subset="kendall").iloc[::-1]
    if not len(table):
        return empty("No measure has a defined rank correlation with the gap.")
    figure, (ax, cost) = plt.subplots(1, 2, figsize=(9.5, 1.4 + 0.27 * len(table)), layout="constrained", sharey=True, width_ratios=[3, 1])
    palette, rows = colours(list(_MARKERS)), np.arange(len(table))
    ax.axvline(0, color="black", linewidth=0.8)
    for family, marker in _MARKERS.items():
        chosen = (table["family"] == family).to_numpy()
        if chosen.any():
            part, at = table[chosen], rows[chosen]
            ax.hlines(at, part["kendall_low"], part["kendall_high"], color=palette[family], linewidth=2, alpha=0.6)
            ax.plot(part["kendall"], at, marker, color=palette[family], label=family)
            cost.plot(part["seconds"], at, marker, color=palette[family])
    ax.set_yticks(rows, table["title"], fontsize="small")
    ax.set(xlim=(-1.05, 1.05), xticks=[-1, -0.5, 0, 0.5, 1], ylim=(-0.7, len(table) - 0.3))
    ax.set_xlabel("Kendall's tau with the gap\n(positive: the measure works)")
    cost.set(xscale="log", xlabel="seconds\nper model")
    cost.tick_params(labelleft=False)
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return figure


@style()
def beside_published(table: pd.DataFrame, titles: Mapping[str, str]) -> Figure:
    """Draw Pearson's r of several methods per architecture, ours with its interval and the paper's hollow, a panel per method.

    Args:
        table: rows of one threshold: architecture, measure, n, pearson_r, ci_low, ci_high, published_r.
        titles: measure to what the panel is called.
    """
    if not table["pearson_r"].notna().any():
        return empty("No architecture has enough models above this threshold for a correlation.")
    names, chosen = list(table["architecture"].unique()), [name for name in titles if name in set(table["measure"])]
    figure, axes = plt.subplots(
        1, len(chosen), figsize=(1.5 + 2.1 * len(chosen), 1.6 + 0.4 * len(names)), layout="constrained", sharey=True
    )
    for ax, measure in zip(np.atleast_1d(axes), chosen, strict=True):
        rows = table[table["measure"] == measure].set_index("architecture").reindex(names)
        at = np.arange(len(names))
        ax.hlines(at - 0.12, rows["ci_low"], rows["ci_high"], color="C0", linewidth=2, alpha=0.6)
        ax.plot(rows["pearson_r"], at - 0.12, "o", color="C0", label="here, 95 % interval")
        ax.plot(rows["published_r"], at + 0.12, "D", color="C1", fillstyle="none", label="Du et al. 2024")
        ax.axvline(0, color="black", linewidth=0.8)
        ax.set(title=titles[measure], xlim=(-1.1, 1.1), xticks=[-1, 0, 1], ylim=(-0.5, len(names) - 0.5))
        ax.set_yticks(at, [f"{name}\nn = {int(n)}" for name, n in zip(names, rows["n"].fillna(0), strict=True)])
    np.atleast_1d(axes)[0].invert_yaxis()
    figure.supxlabel("Pearson r with the gap", fontsize="medium")
    handles, labels = np.atleast_1d(axes)[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    return figure


@style()
def response_curves(curves: pd.DataFrame) -> Figure:
    """Draw accuracy under growing perturbation, a panel per perturbation and a line per model (Schiff et al. 2021, Figure 2).

    Args:
        curves: perturbation, model (a label), alpha in [0, 1], accuracy (fraction), and score (Gi of the curve).
    """
    if not len(curves):
        return empty("No model has a response curve.")
    perturbations, models = list(curves["perturbation"].unique()), list(curves["model"].unique())
    columns = min(4, len(perturbations))
    rows = -(-len(perturbations) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(0.8 + 2.9 * columns, 0.9 + 2.6 * rows), layout="constrained", squeeze=False, sharex=True, sharey=True
    )
    for ax, perturbation in zip(axes.flat, perturbations, strict=False):
        for number, model in enumerate(models):
            curve = curves[(curves["perturbation"] == perturbation) & (curves["model"] == model)]
            label = f"Gi {curve['score'].iloc[0]:.2f}" if len(curve) else "none"
            ax.plot(curve["alpha"], curve["accuracy"], "os^D"[number % 4] + "-", markersize=4, color=f"C{number}", label=label)
        ax.set_title(perturbation, fontsize="medium")
        ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.05))
        ax.legend(fontsize="x-small", loc="best", frameon=True)
    for ax in axes.flat[len(perturbations) :]:
        ax.set_axis_off()
    figure.supxlabel("magnitude of the perturbation, rescaled", fontsize="medium")
    figure.supylabel("accuracy", fontsize="medium")
    handles = [plt.Line2D([], [], color=f"C{number}", marker="os^D"[number % 4], label=model) for number, model in enumerate(models)]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(2, len(models)), frameon=False)
    return figure


@style()
def measure_heatmap(table: pd.DataFrame, titles: Mapping[str, str]) -> Figure:
    """Draw how the measures order the models relative to each other: Kendall's tau, red alike, blue opposed, blank undefined.

    Args:
        table: square, see ``ranking.measure_correlations``.
        titles: column to label.
    """
    defined = [name for name in table.columns if table[name].notna().any()]
    if len(defined) < 2:
        return empty("Fewer than two measures are defined, so there is nothing to compare.")
    shown = table.loc[defined, defined].rename(index=titles, columns=titles)
    side = 2.5 + 0.2 * len(defined)
    figure, ax = plt.subplots(figsize=(side + 0.8, side), layout="constrained")
    seaborn.heatmap(
        shown,
        ax=ax,
        cmap="vlag",
        center=0,
        vmin=-1,
        vmax=1,
        square=True,
        cbar_kws={"label": "Kendall's tau", "shrink": 0.6},
    )
    ax.set_xticks(np.arange(len(defined)) + 0.5, shown.columns, rotation=90, fontsize="x-small")
    ax.set_yticks(np.arange(len(defined)) + 0.5, shown.index, rotation=0, fontsize="x-small")
    ax.set(xlabel="", ylabel="")
    return figure


@style()
def invariance(table: pd.DataFrame, predictors: Sequence[str]) -> Figure:
    """Draw how well each predictor tells the test accuracy under a perturbation: Kendall's tau with its interval, grouped.

    Args:
        table: perturbation, predictor, kendall, low, high (positive: the predictor works).
        predictors: their order.
    """
    if not table["kendall"].notna().any():
        return empty("No perturbation leaves enough models for a rank correlation.")
    perturbations = list(table["perturbation"].unique())
    figure, ax = plt.subplots(figsize=(2 + 1.9 * len(perturbations), 3.8), layout="constrained")
    for number, name in enumerate(predictors):
        rows = table[table["predictor"] == name].set_index("perturbation").reindex(perturbations)
        at = np.arange(len(perturbations)) + (number - (len(predictors) - 1) / 2) * 0.2
        ax.vlines(at, rows["low"], rows["high"], color=f"C{number}", linewidth=2, alpha=0.6)
        ax.plot(at, rows["kendall"], "os^D"[number % 4], color=f"C{number}", label=name)
    ax.axhline(0, color="black", linewidth=0.8)
    ax.set_xticks(range(len(perturbations)), perturbations)
    ax.grid(axis="x", visible=False)
    ax.set(ylabel="Kendall's tau with test accuracy\nunder the perturbation", ylim=(-1.05, 1.05))
    figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=len(predictors), frameon=False)
    return figure
