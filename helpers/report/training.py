"""What notebook 02 shows: the model set, its gaps, its training curves, and the ordinary metrics of classification."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from helpers.report.style import (
    _LABELLED_CLASSES,
    _LINES,
    _MARKERS,
    _NAMES,
    colours,
    count,
    ends,
    levels_in_order,
    listed,
    nothing_to_draw,
    percent,
    points,
    style,
)
from helpers.scoring.classification import MICRO_AVERAGE, break_even_point
from helpers.training.config import RunConfig, cell_name


@style()
def gap_boxplot(catalogue: pd.DataFrame) -> Figure:
    """Draw the gap of the models by architecture (Du et al. 2024, Fig. 4): box with median and quartiles, every model a point.

    A run that diverged before it left a model has no gap, and is not in n.
    """
    catalogue = catalogue.dropna(subset="gap")
    if not len(catalogue):
        return nothing_to_draw("No model with a gap is kept, so there is nothing to draw.")
    names = levels_in_order(catalogue["architecture"])
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
        return nothing_to_draw("No model with a gap is kept, so there is nothing to draw.")
    figure, ax = plt.subplots(figsize=(6.5, 3.5), layout="constrained")
    ax.hist(100 * catalogue["gap"], bins=min(20, max(5, len(catalogue) // 3)), edgecolor="white")
    ax.set(xlabel=_NAMES["gap"].replace("\n", " "), ylabel=f"models (n = {len(catalogue)})")
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


@style()
def training_curves(histories: pd.DataFrame, rule3_split: str = "holdout") -> Figure:
    """Draw one line per run: training cross-entropy (log scale), training accuracy, accuracy on the split that rule 3 watches.

    Args:
        histories: run_id, architecture, epoch, train_loss, train_accuracy, monitor_accuracy (fractions).
        rule3_split: what that split is, "holdout" of the training images or "test".
    """
    if not len(histories):
        return nothing_to_draw("No run has a history.")
    names = levels_in_order(histories["architecture"])
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    runs = histories.groupby("architecture")["run_id"].nunique()
    pixels = {"rasterized": runs.sum() > 40}  # in vector pictures: paths of more runs than one can follow take more room than a picture
    watched = "test accuracy" if rule3_split == "test" else "accuracy on training images held out"
    panels = (("train_loss", "training loss (nats)"), ("train_accuracy", "training accuracy"), ("monitor_accuracy", watched))
    for ax, (column, label) in zip(axes, panels, strict=True):
        for (name, _), run in histories.groupby(["architecture", "run_id"]):
            mark = {"color": colours(names)[name], "linestyle": _LINES[names.index(name) % 4], "marker": "." if len(run) == 1 else ""}
            ax.plot(run["epoch"], run[column], alpha=0.55, linewidth=1, **mark, **pixels)
        ax.set(xlabel="epoch", ylabel=label)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        if column == "train_loss":
            ax.set_yscale("log")
        else:
            ax.set_ylim(0, 1)
            ax.yaxis.set_major_formatter(PercentFormatter(1))
    handles = [
        plt.Line2D([], [], color=colours(names)[name], linestyle=_LINES[n % 4], label=f"{name} ({runs[name]} runs)")
        for n, name in enumerate(names)
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(names), frameon=False)
    return figure


@style()
def late_changes_figure(changes: pd.DataFrame) -> Figure:
    """Draw the change of loss and accuracy over the last epochs of the runs at the cap (Du et al. 2024, Fig. A1): of the whole run, as
    printed, and of the epoch before.

    Args:
        changes: see ``catalogue.late_changes``.
    """
    if not len(changes):
        return nothing_to_draw("No run ended at the epoch cap.")
    figure, axes = plt.subplots(2, 2, figsize=(9, 6), layout="constrained", sharex=True)
    forms = (("{}_change_of_run", "% of the run's range"), ("relative_{}_change", "% of the epoch before"))
    for row, (form, unit) in zip(axes, forms, strict=True):
        for ax, name in zip(row, ("loss", "accuracy"), strict=True):
            for _, run in changes.groupby("run_id"):
                ax.plot(run["epoch"], 100 * run[form.format(name)], linewidth=1, alpha=0.6, color="C0", marker=".")
            ax.axhline(0, color="black", linewidth=0.8)
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
            ax.set(ylabel=f"change of training {name}\n({unit})")
    for ax in axes[1]:
        ax.set_xlabel("epoch")
    figure.suptitle(f"runs that ended at the epoch cap (n = {changes['run_id'].nunique()})", fontsize="medium")
    return figure


_ANNOTATED_CLASSES = 12
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
        return nothing_to_draw("There is no classified image.")
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
        return nothing_to_draw("There is no point of a precision-recall curve.")
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
        return nothing_to_draw("There is no point of a ROC curve.")
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
        return nothing_to_draw("There is no class to score.")
    table = per_class.sort_values("f1", ascending=False, kind="stable", na_position="last")
    half = _LABELLED_CLASSES // 2
    shown = ends(table)
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


def axes_table(axes: Mapping[str, Sequence[Any]], runs: Sequence[RunConfig], published: pd.DataFrame) -> pd.DataFrame:
    """Levels of each hyperparameter that the runs of a study have, beside Du et al. 2024, Table 2.

    Args:
        axes: levels asked for, by hyperparameter, in the order in which they are shown; blocks may ask for others, and a choice of runs
            may leave some out.
        runs: that the study takes.
        published: columns hyperparameter, levels.

    Returns:
        columns hyperparameter, levels, published; 0 images per class is "all".
    """
    theirs = published.set_index("hyperparameter")["levels"].astype(str)
    rows = []
    for name, asked in axes.items():
        taken = [getattr(run, name) for run in runs]
        levels = [level for level in dict.fromkeys([*asked, *taken]) if level in taken]
        words = ["all" if name == "images_per_class" and not level else str(level) for level in levels]
        rows.append({"hyperparameter": name, "levels": ", ".join(words), "published": theirs.get(name, "—")})
    return pd.DataFrame(rows)


def runs_planned(every: Sequence[RunConfig], runs: Sequence[RunConfig], missing: Sequence[RunConfig]) -> str:
    """Sentence on how large the grid is, what is taken of it, and what is there already."""
    cells = len({cell_name(run) for run in every})
    return (
        f"The grid has {count(cells, 'configuration')} and {count(len(every), 'run')}; this study takes **{count(len(runs), 'run')}**, "
        f"of which {len(runs) - len(missing):,} were complete and {len(missing):,} were to be trained."
    )


def run_line(result: Mapping[str, Any]) -> str:
    """Describe a finished run in one line of text."""
    last = result["snapshots"][-1] if result["snapshots"] else None
    outcome = f"train {percent(last['train_accuracy'])}, gap {points(last['gap'])}" if last else "no model"
    return (
        f"{result['run_id']}: {result['status']}, {result['stop_reason']}, {result['epochs']} epochs, {result['seconds']:.0f} s, {outcome}"
    )


def model_set_found(catalogue: pd.DataFrame, runs: Sequence[RunConfig]) -> str:
    """Sentence on how many models there are, from how many runs, and what became of the runs."""
    ended = catalogue.drop_duplicates("run_id")
    diverged = int((ended["status"] == "diverged").sum())
    models = int((catalogue["snapshot"] != "none").sum())
    return (
        f"**{count(models, 'model')}** from {count(len(runs), 'run')}, of which {diverged} diverged; "
        f"{ended['seconds'].sum() / 3600:.2f} hours of training in all, {ended['seconds'].median():.0f} s a run in the median."
    )


def models_left_out(catalogue: pd.DataFrame) -> str:
    """Count the models that do not enter the analysis, by reason."""
    reasons = catalogue.loc[catalogue["left_out"] != "", "left_out"].value_counts()
    kept = int((catalogue["left_out"] == "").sum())
    if not len(reasons):
        return f"All {count(kept, 'model')} enter the analysis."
    return f"{count(kept, 'model')} enter the analysis; left out: " + ", ".join(f"{n} × {reason}" for reason, n in reasons.items()) + "."


def gap_by_architecture(kept: pd.DataFrame) -> str:
    """Sentence on how the gap differs between architectures, against its spread within them."""
    if not len(kept):
        return "No model is kept, so there is no gap to compare."
    middle = kept.groupby("architecture")["gap"].agg(["median", "count"])
    each = [f"{name} {points(row['median'])} (n = {int(row['count'])})" for name, row in middle.iterrows()]
    within = kept.groupby("architecture")["gap"].agg(np.ptp).max()
    between = middle["median"].max() - middle["median"].min()
    return (
        f"Median gap: {listed(each, 8)}. The medians differ by {points(between)}, "
        f"the models of one architecture by up to {points(within)}; architectures may differ in their other hyperparameters too."
    )


def gap_spread(kept: pd.DataFrame) -> str:
    """Sentence on how far the gap spreads, beside the paper's three examples of 4.0, 25.0 and 47.1 points."""
    if not len(kept):
        return "No model is kept."
    return (
        f"The gap of {count(len(kept), 'model')} runs from {points(kept['gap'].min())} to {points(kept['gap'].max())}, "
        f"median {points(kept['gap'].median())}; the examples that the paper shows have 4.0, 25.0 and 47.1 points."
    )


def how_runs_ended(catalogue: pd.DataFrame) -> str:
    """Count the reasons for which runs stopped."""
    ended = catalogue.drop_duplicates("run_id")
    kinds = ended["stop_reason"].where(ended["status"] != "diverged", "diverged").value_counts()
    return (
        "Runs ended by "
        + ", ".join(f"{reason} ({n})" for reason, n in kinds.items())
        + f"; {ended['epochs'].median():.0f} epochs in the median."
    )


def late_convergence(changes: pd.DataFrame, settled: float = 0.05) -> str:
    """Sentence on how many of the runs that ended at the cap still moved, median |relative change| of the loss an epoch above ``settled``,
    and by how much the loss changed over all these epochs.
    """
    if not len(changes):
        return "No run ended at the epoch cap: every run was stopped by the rules 1 to 3, or diverged."
    names = ["relative_loss_change", "loss_change_of_run"]
    moves = changes[names].abs().groupby(changes["run_id"]).median()
    moving, of_run = (int((moves[name] > settled).sum()) for name in names)
    whole = (1 + changes["relative_loss_change"]).groupby(changes["run_id"]).prod() - 1
    epochs = int(changes.groupby("run_id").size().max())
    return (
        f"Of {count(len(moves), 'run')} at the cap, {moving} still changed their loss by more than {settled:.0%} an epoch in the median"
        + (": they had not converged." if moving else ".")
        + f" Over the last {count(epochs, 'epoch')} the loss changed by {whole.median():+.0%} in the median of the runs, "
        f"by {whole.min():+.0%} to {whole.max():+.0%}. Against the range of the loss in the whole run, as the article has it, {of_run} did."
    )


def models_classify(metrics: pd.DataFrame) -> str:
    """Sentence on how many models never predict some class, on the test images."""
    never = int((metrics["classes_never_predicted"] > 0).sum())
    return f"{never:,} of {count(len(metrics), 'model')} never predict some class, whose precision is undefined and in no mean."


def most_confused(matrix: np.ndarray, names: list[str]) -> str:
    """Sentence on the pair of classes that is taken for one another most often."""
    off = matrix - np.diag(np.diag(matrix))
    if not off.sum():
        return "No image is classified wrongly."
    true, called = np.unravel_index(off.argmax(), off.shape)
    share = off[true, called] / matrix[true].sum()
    return (
        f"{percent(np.trace(matrix) / matrix.sum())} of {count(int(matrix.sum()), 'image')} are on the diagonal; the most frequent "
        f"confusion takes {names[true]} for {names[called]} ({count(int(off[true, called]), 'image')}, {percent(share)} of that class)."
    )


def classes_compared(per_class: pd.DataFrame) -> str:
    """Sentence on the classes with the best and the worst F1."""
    defined = per_class.dropna(subset="f1").sort_values("f1")
    if not len(defined):
        return "No class has a defined F1."
    worst, best = defined.iloc[0], defined.iloc[-1]
    return f"F1 runs from {worst['f1']:.2f} ({worst['class']}) to {best['f1']:.2f} ({best['class']}), median {defined['f1'].median():.2f}."


def say_precision_recall(points: pd.DataFrame) -> str:
    """Sentence on the break-even point of all decisions together."""
    return f"Precision equals recall at {percent(break_even_point(points[points['class'] == MICRO_AVERAGE]))}."


def say_roc(per_class: pd.DataFrame) -> str:
    """Sentence on the range of the areas under the ROC curves."""
    auc = per_class.set_index("class")["auc"].dropna()
    if not len(auc):
        return "No class has a defined ROC curve."
    return f"Area under the curve: mean {auc.mean():.3f}, from {auc.min():.3f} ({auc.idxmin()}) to {auc.max():.3f} ({auc.idxmax()})."
