"""Every figure of the reports that is drawn from a table: gaps, training curves, measures against the gap."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import scipy.stats
import seaborn
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

_MARKERS = ("o", "s", "^", "D", "v", "P")
_LINES = ("-", "--", "-.", ":")
_NAMES = {"iou": "IoU", "iou_b": "IoU-B", "gap": "generalization gap\n(percentage points)"}


@contextmanager
def style() -> Iterator[None]:
    """Draw in the one style of all figures: colour-blind palette, light grid, no box; what was set before is set again after."""
    no_box = {"axes.spines.top": False, "axes.spines.right": False}
    with plt.rc_context():
        seaborn.set_theme(context="notebook", style="whitegrid", palette="colorblind", color_codes=False, rc=no_box)
        yield


def colours(names: Sequence[str]) -> dict[str, tuple]:
    """Give each name a colour; the same names in the same order always get the same."""
    return dict(zip(names, seaborn.color_palette("colorblind", len(names)), strict=True))


def in_order(names: pd.Series) -> list:
    """List the distinct values, numbers inside names by their size: resnet18 before resnet101."""
    return sorted(
        names.unique(), key=lambda name: [(len(part), part) if part.isdigit() else (0, part) for part in re.split(r"(\d+)", str(name))]
    )


def empty(message: str) -> Figure:
    """Say in words that there is nothing to draw."""
    figure, ax = plt.subplots(figsize=(7, 2))
    ax.text(0.5, 0.5, message, ha="center", va="center", wrap=True, transform=ax.transAxes)
    ax.set_axis_off()
    return figure


@style()
def class_counts(classes: pd.DataFrame) -> Figure:
    """Draw training and test images per class as bars, and the paper's count as a line where it has the class.

    Args:
        classes: class_name, train_images, test_images, published (NaN where the paper has no such class).
    """
    if not len(classes):
        return empty("There is no class to count images of.")
    figure, ax = plt.subplots(figsize=(7.5, 0.8 + 0.28 * len(classes)), layout="constrained")
    rows = np.arange(len(classes))
    ax.barh(rows - 0.2, classes["train_images"], height=0.4, label=f"training (n = {classes['train_images'].sum():,})")
    ax.barh(rows + 0.2, classes["test_images"], height=0.4, hatch="//", label=f"test (n = {classes['test_images'].sum():,})")
    if "published" in classes and classes["published"].notna().any():
        ax.plot(classes["published"], rows - 0.2, "k|", markersize=10, label="training, Du et al. 2024")
    ax.set_yticks(rows, classes["class_name"])
    ax.invert_yaxis()
    ax.set_xlabel("images")
    ax.grid(axis="y", visible=False)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False)
    return figure


@style()
def gap_boxplot(catalogue: pd.DataFrame) -> Figure:
    """Draw the gap of the models by architecture (Du et al. 2024, Fig. 4): box with median and quartiles, every model a point.

    A run that diverged before it left a model has no gap, and is not in n.
    """
    catalogue = catalogue.dropna(subset="gap")
    if not len(catalogue):
        return empty("No model with a gap is kept, so there is nothing to draw.")
    names = in_order(catalogue["architecture"])
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


@style()
def gap_histogram(catalogue: pd.DataFrame) -> Figure:
    """Draw how the gap spreads over all models that have one (Du et al. 2024, Fig. 5)."""
    catalogue = catalogue.dropna(subset="gap")
    if not len(catalogue):
        return empty("No model with a gap is kept, so there is nothing to draw.")
    figure, ax = plt.subplots(figsize=(6.5, 3.5), layout="constrained")
    ax.hist(100 * catalogue["gap"], bins=min(20, max(5, len(catalogue) // 3)), edgecolor="white")
    ax.set(xlabel=_NAMES["gap"].replace("\n", " "), ylabel=f"models (n = {len(catalogue)})")
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


@style()
def training_curves(histories: pd.DataFrame) -> Figure:
    """Draw one line per run: training cross-entropy (log scale), training accuracy, accuracy on the split that rule 3 watches.

    Args:
        histories: run_id, architecture, epoch, train_loss, train_accuracy, test_accuracy (fractions).
    """
    if not len(histories):
        return empty("No run has a history.")
    names = in_order(histories["architecture"])
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    panels = (("train_loss", "training loss (nats)"), ("train_accuracy", "training accuracy"), ("test_accuracy", "test accuracy"))
    for ax, (column, label) in zip(axes, panels, strict=True):
        for (name, _), run in histories.groupby(["architecture", "run_id"]):
            mark = {"color": colours(names)[name], "linestyle": _LINES[names.index(name) % 4], "marker": "." if len(run) == 1 else ""}
            ax.plot(run["epoch"], run[column], alpha=0.55, linewidth=1, **mark)
        ax.set(xlabel="epoch", ylabel=label)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
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


@style()
def late_changes(changes: pd.DataFrame) -> Figure:
    """Draw the relative change of loss and accuracy over the last epochs of the runs at the cap (Du et al. 2024, Fig. A1).

    Args:
        changes: run_id, epoch, relative_loss_change, relative_accuracy_change; see ``model_set.late_changes``.
    """
    if not len(changes):
        return empty("No run ended at the epoch cap.")
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharex=True)
    for ax, name in zip(axes, ("loss", "accuracy"), strict=True):
        for _, run in changes.groupby("run_id"):
            ax.plot(run["epoch"], 100 * run[f"relative_{name}_change"], linewidth=1, alpha=0.6, color="C0", marker=".")
        ax.axhline(0, color="black", linewidth=0.8)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set(xlabel="epoch", ylabel=f"change of training {name}\nfrom the epoch before (%)")
    figure.suptitle(f"runs that ended at the epoch cap (n = {changes['run_id'].nunique()})", fontsize="medium")
    return figure


@style()
def measure_against_gap(table: pd.DataFrame, measure: str, hue: str = "architecture") -> Figure:
    """Draw a measure against the gap, pooled and per level of ``hue``, with Pearson's r, least-squares line and its 95 % band.

    The band is the formula of ordinary least squares, see ``fit_band``; it is no bootstrap.

    Args:
        table: gap (fraction), ``measure`` and ``hue``; models where the measure is undefined are left out and counted.
        measure: the column on the horizontal axis.
        hue: the column whose levels get a panel, a colour and a marker each.
    """
    defined = np.isfinite(table[[measure, "gap"]].astype(float)).all(axis=1) & table[hue].notna()
    kept, left_out = table[defined], int((~defined).sum())
    if len(kept) < 3:
        return empty(f"{len(kept)} models with a defined {_NAMES.get(measure, measure)}: too few to draw against the gap.")
    levels = in_order(kept[hue])
    panels = [("pooled", kept), *((str(level), kept[kept[hue] == level]) for level in levels if len(levels) > 1)]
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
        ax.set_title(f"{name}: {_pearson_in_words(models[measure], models['gap'])}, n = {len(models)}", fontsize="medium")
    for number, ax in enumerate(axes.flat[: len(panels)]):  # a panel with none below it shows the axis, in a ragged last row too
        ax.tick_params(labelbottom=number + columns >= len(panels))
        ax.set_xlabel(_NAMES.get(measure, measure) if number + columns >= len(panels) else "")
        ax.xaxis.set_major_locator(MaxNLocator(4))  # a narrow range has long labels
        ax.set_ylabel(_NAMES["gap"] if number % columns == 0 else "")
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    handles, labels = axes[0, 0].get_legend_handles_labels()
    note = f"{left_out} without a value left out" if left_out else None
    figure.legend(handles, labels, title=note, loc="outside lower center", ncols=min(4, len(labels)), frameon=False)
    return figure


def _pearson_in_words(x: pd.Series, y: pd.Series) -> str:
    if len(x) < 3 or x.nunique() < 2 or y.nunique() < 2:
        return "r undefined"
    return f"r = {scipy.stats.pearsonr(x, y).statistic:.2f}"


def fit_band(ax: Axes, x: np.ndarray, y: np.ndarray) -> None:
    """Draw the least-squares line and the 95 % band of its mean (normal errors, models taken as independent)."""
    if len(x) < 3 or np.ptp(x) == 0:
        return
    slope, intercept = np.polyfit(x, y, 1)
    grid = np.linspace(x.min(), x.max(), 50)
    error = np.sqrt(((y - slope * x - intercept) ** 2).sum() / (len(x) - 2))
    spread = error * np.sqrt(1 / len(x) + (grid - x.mean()) ** 2 / ((x - x.mean()) ** 2).sum())
    half = scipy.stats.t.ppf(0.975, len(x) - 2) * spread
    line = slope * grid + intercept
    ax.plot(grid, line, color="black", linewidth=1.2, label="least squares")
    ax.fill_between(grid, line - half, line + half, color="black", alpha=0.12, linewidth=0, label="95 % band of its mean")


@style()
def correlation_by_threshold(table: pd.DataFrame) -> Figure:
    """Draw Pearson's r with its interval and n by accuracy threshold, a panel per measure; the paper's values hollow beside ours.

    Args:
        table: architecture, threshold (fraction), measure, n, pearson_r, ci_low, ci_high, published_r.
    """
    if not table["pearson_r"].notna().any():
        return empty("No architecture has enough models above any threshold for a correlation.")
    measures, names = list(table["measure"].unique()), list(table["architecture"].unique())
    figure, axes = plt.subplots(1, len(measures), figsize=(1 + 5.2 * len(measures), 4), layout="constrained", squeeze=False, sharey=True)
    for ax, measure in zip(axes[0], measures, strict=True):
        for number, name in enumerate(names):
            rows = table[(table["measure"] == measure) & (table["architecture"] == name)]
            x = 100 * rows["threshold"] + (number - (len(names) - 1) / 2) * 0.85
            mark = {"color": colours(names)[name], "marker": _MARKERS[number % 6], "linestyle": "none"}
            middle, half = (rows["ci_high"] + rows["ci_low"]) / 2, (rows["ci_high"] - rows["ci_low"]) / 2
            ax.errorbar(x, middle, yerr=half, fmt="none", capsize=3, color=mark["color"])  # an interval need not hold r in its middle
            ax.plot(x, rows["pearson_r"], label=name, **mark)
            ax.plot(x + 0.35, rows["published_r"], fillstyle="none", alpha=0.8, **mark)
            for place, count in zip(x, rows["n"], strict=True):
                ax.text(place, 1.1, f"n={count:.0f}", rotation=90, ha="center", va="bottom", fontsize="xx-small")
        ax.axhline(0, color="black", linewidth=0.8)
        ax.set_xticks(sorted(100 * table["threshold"].unique()))
        ax.grid(axis="x", visible=False)
        ax.set(xlabel="training accuracy above (%)", title=_NAMES.get(measure, measure), ylim=(-1.05, 1.55), yticks=np.linspace(-1, 1, 9))
    axes[0, 0].set_ylabel("Pearson r with the gap")
    axes[0, -1].legend(title="filled: here\nhollow: Du et al. 2024", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure
