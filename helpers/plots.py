"""Every figure of the reports that is drawn from a table: gaps, training curves, measures against the gap."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import scipy.stats
import seaborn
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

_MARKERS = ("o", "s", "^", "D", "v", "P")
_LINES = ("-", "--", "-.", ":")
_NAMES = {"iou": "IoU", "iou_b": "IoU-B", "gap": "generalization gap (points)"}


def style() -> None:
    """Set the one style of all figures: colour-blind palette, light grid, no box."""
    seaborn.set_theme(
        context="notebook", style="whitegrid", palette="colorblind", rc={"axes.spines.top": False, "axes.spines.right": False}
    )


def colours(names: Sequence[str]) -> dict[str, tuple]:
    """Give each name a colour; the same names in the same order always get the same."""
    return dict(zip(names, seaborn.color_palette("colorblind", len(names)), strict=True))


def _empty(message: str, size: tuple[float, float] = (7, 2)) -> Figure:
    """Say in words that there is nothing to draw."""
    figure, ax = plt.subplots(figsize=size)
    ax.text(0.5, 0.5, message, ha="center", va="center", wrap=True, transform=ax.transAxes)
    ax.set_axis_off()
    return figure


def class_counts(classes: pd.DataFrame) -> Figure:
    """Draw training and test images per class as bars, and the paper's count as a line where it has the class.

    Args:
        classes: class_name, train_images, test_images, published (NaN where the paper has no such class).
    """
    style()
    figure, ax = plt.subplots(figsize=(7.5, 0.8 + 0.28 * len(classes)), layout="constrained")
    rows = np.arange(len(classes))
    ax.barh(rows - 0.2, classes["train_images"], height=0.4, label="training")
    ax.barh(rows + 0.2, classes["test_images"], height=0.4, hatch="//", label="test")
    if "published" in classes and classes["published"].notna().any():
        ax.plot(classes["published"], rows - 0.2, "k|", markersize=10, label="training, Du et al. 2024")
    ax.set_yticks(rows, classes["class_name"])
    ax.invert_yaxis()
    ax.set_xlabel("images")
    ax.grid(axis="y", visible=False)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False)
    return figure


def gap_boxplot(catalogue: pd.DataFrame) -> Figure:
    """Draw the gap of the models by architecture (Du et al. 2024, Fig. 4): box with median and quartiles, every model a point."""
    if not len(catalogue):
        return _empty("No model is kept, so there is no gap to draw.")
    style()
    names = sorted(catalogue["architecture"].unique())
    figure, ax = plt.subplots(figsize=(2 + 1.5 * len(names), 4), layout="constrained")
    groups = [100 * catalogue.loc[catalogue["architecture"] == name, "gap"] for name in names]
    ax.boxplot(groups, widths=0.5, showfliers=False, medianprops={"color": "black"})
    generator = np.random.default_rng(0)  # sideways only, so that points do not hide each other
    for number, (name, values) in enumerate(zip(names, groups, strict=True), 1):
        ax.plot(
            number + generator.uniform(-0.12, 0.12, len(values)), values, _MARKERS[number % 6 - 1], alpha=0.6, color=colours(names)[name]
        )
    ax.set_xticks(range(1, len(names) + 1), [f"{name}\nn = {len(values)}" for name, values in zip(names, groups, strict=True)])
    ax.set_ylabel(_NAMES["gap"])
    return figure


def gap_histogram(catalogue: pd.DataFrame) -> Figure:
    """Draw how the gap spreads over all models (Du et al. 2024, Fig. 5)."""
    if not len(catalogue):
        return _empty("No model is kept, so there is no gap to draw.")
    style()
    figure, ax = plt.subplots(figsize=(6.5, 3.5), layout="constrained")
    ax.hist(100 * catalogue["gap"], bins=min(20, max(5, len(catalogue) // 3)), edgecolor="white")
    ax.set(xlabel=_NAMES["gap"], ylabel=f"models (n = {len(catalogue)})")
    return figure


def training_curves(histories: pd.DataFrame) -> Figure:
    """Draw one line per run: training loss, training accuracy, accuracy on the split that rule 3 watches.

    Args:
        histories: run_id, architecture, epoch, train_loss, train_accuracy, test_accuracy (fractions).
    """
    if not len(histories):
        return _empty("No run has a history.")
    style()
    names = sorted(histories["architecture"].unique())
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    panels = (("train_loss", "training loss (cross-entropy)"), ("train_accuracy", "training accuracy"), ("test_accuracy", "test accuracy"))
    for ax, (column, label) in zip(axes, panels, strict=True):
        for (name, _), run in histories.groupby(["architecture", "run_id"]):
            mark = {"color": colours(names)[name], "linestyle": _LINES[names.index(name) % 4], "marker": "." if len(run) == 1 else ""}
            ax.plot(run["epoch"], run[column], alpha=0.55, linewidth=1, **mark)
        ax.set(xlabel="epoch", ylabel=label)
        if column == "train_loss":
            ax.set_yscale("log")
        else:
            ax.set_ylim(0, 1)
            ax.yaxis.set_major_formatter(PercentFormatter(1))
    runs = histories.groupby("architecture")["run_id"].nunique()
    handles = [
        plt.Line2D([], [], color=colours(names)[name], linestyle=_LINES[n % 4], label=f"{name} ({runs[name]} runs)")
        for n, name in enumerate(names)
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(names), frameon=False)
    return figure


def late_changes(changes: pd.DataFrame) -> Figure:
    """Draw the relative change of loss and accuracy over the last epochs of the runs at the cap (Du et al. 2024, Fig. A1).

    Args:
        changes: run_id, epoch, relative_loss_change, relative_accuracy_change; see ``model_set.late_changes``.
    """
    if not len(changes):
        return _empty("No run ended at the epoch cap.")
    style()
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharex=True)
    for ax, name in zip(axes, ("loss", "accuracy"), strict=True):
        for _, run in changes.groupby("run_id"):
            ax.plot(run["epoch"], 100 * run[f"relative_{name}_change"], linewidth=1, alpha=0.6, color="C0", marker=".")
        ax.axhline(0, color="black", linewidth=0.8)
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.set(xlabel="epoch", ylabel=f"change of training {name}\nfrom the epoch before (%)")
    figure.suptitle(f"{changes['run_id'].nunique()} runs that ended at the epoch cap", fontsize="medium")
    return figure


def measure_against_gap(table: pd.DataFrame, measure: str, hue: str = "architecture") -> Figure:
    """Draw a measure against the gap, pooled and per level of ``hue``, with least-squares line and its 95 % band.

    Args:
        table: gap (fraction), ``measure`` and ``hue``; models where the measure is undefined are left out and counted.
        measure: the column on the horizontal axis.
        hue: the column whose levels get a panel, a colour and a marker each.
    """
    kept = table.dropna(subset=[measure, "gap"])
    if len(kept) < 3:
        return _empty(f"{len(kept)} models with a defined {_NAMES.get(measure, measure)}: too few to draw against the gap.")
    style()
    levels = sorted(kept[hue].unique())
    panels = [("pooled", kept), *((str(level), kept[kept[hue] == level]) for level in levels)]
    if len(levels) == 1:
        panels = panels[:1]
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(1 + 3.6 * columns, 3.7 * rows), layout="constrained", squeeze=False, sharex=True, sharey=True
    )
    for ax, (name, models) in zip(axes.flat, panels, strict=False):
        for number, level in enumerate(levels):
            points = models[models[hue] == level]
            ax.plot(points[measure], 100 * points["gap"], _MARKERS[number % 6], color=colours(levels)[level], alpha=0.75, label=str(level))
        fit_band(ax, models[measure].to_numpy(), 100 * models["gap"].to_numpy())
        defined = len(models) > 2 and models[measure].nunique() > 1 and models["gap"].nunique() > 1
        r = scipy.stats.pearsonr(models[measure], models["gap"]).statistic if defined else np.nan
        ax.set_title(
            f"{name}: r = {r:.2f}, n = {len(models)}" if np.isfinite(r) else f"{name}: r undefined, n = {len(models)}", fontsize="medium"
        )
        ax.set(xlabel=_NAMES.get(measure, measure), ylabel=_NAMES["gap"])
        ax.label_outer()
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    axes[0, 0].legend(fontsize="small")
    return figure


def fit_band(ax: Axes, x: np.ndarray, y: np.ndarray) -> None:
    """Draw the least-squares line and the 95 % band of its mean (normal errors, models taken as independent)."""
    if len(x) < 3 or np.ptp(x) == 0:
        return
    slope, intercept = np.polyfit(x, y, 1)
    grid = np.linspace(x.min(), x.max(), 50)
    error = np.sqrt(((y - slope * x - intercept) ** 2).sum() / (len(x) - 2))
    spread = error * np.sqrt(1 / len(x) + (grid - x.mean()) ** 2 / ((x - x.mean()) ** 2).sum())
    half = scipy.stats.t.ppf(0.975, len(x) - 2) * spread
    ax.plot(grid, slope * grid + intercept, color="black", linewidth=1.2)
    ax.fill_between(grid, slope * grid + intercept - half, slope * grid + intercept + half, color="black", alpha=0.12, linewidth=0)


def correlation_by_threshold(table: pd.DataFrame) -> Figure:
    """Draw Pearson's r with its interval by accuracy threshold, a panel per measure; the paper's values hollow beside ours.

    Args:
        table: architecture, threshold (fraction), measure, n, pearson_r, ci_low, ci_high, published_r.
    """
    if not table["pearson_r"].notna().any():
        return _empty("No architecture has enough models above any threshold for a correlation.")
    style()
    measures, names = list(table["measure"].unique()), list(table["architecture"].unique())
    figure, axes = plt.subplots(1, len(measures), figsize=(1 + 4.6 * len(measures), 4), layout="constrained", squeeze=False, sharey=True)
    for ax, measure in zip(axes[0], measures, strict=True):
        for number, name in enumerate(names):
            rows = table[(table["measure"] == measure) & (table["architecture"] == name)]
            x = 100 * rows["threshold"] + (number - (len(names) - 1) / 2) * 0.7
            mark = {"color": colours(names)[name], "marker": _MARKERS[number % 6], "linestyle": "none"}
            around = np.abs(rows[["ci_low", "ci_high"]].to_numpy().T - rows["pearson_r"].to_numpy())
            ax.errorbar(x, rows["pearson_r"], yerr=around, capsize=3, label=name, **mark)
            ax.plot(x + 0.25, rows["published_r"], fillstyle="none", alpha=0.8, **mark)
        ax.axhline(0, color="black", linewidth=0.8)
        ax.set_xticks(sorted(100 * table["threshold"].unique()))
        ax.set(xlabel="training accuracy above (%)", title=_NAMES.get(measure, measure), ylim=(-1.05, 1.05))
    axes[0, 0].set_ylabel("Pearson r with the gap")
    axes[0, -1].legend(title="filled: here\nhollow: Du et al. 2024", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure
