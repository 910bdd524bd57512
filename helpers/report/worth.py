"""What notebook 04 shows of images without labels: what they add to training images on each target, and what labels would do."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from helpers.data.shifts import at
from helpers.report.style import count, nothing_to_draw, style
from helpers.scoring.worth import BASELINE, HOLDOUT, KNOWN, SOURCES, TRAINING, UNLABELLED

_SHOWN = 5  # measures of training images in the figure
_POINTS = (0.5, 1, 2, 5, 10, 20, 50)  # ticks


def target_columns(models: pd.DataFrame, shifts: Sequence[str]) -> pd.DataFrame:
    """What is to be predicted of each model: model_id, cell, train_accuracy, and test accuracy on every target, fractions."""
    return models[["model_id", "cell", "train_accuracy", *(at("test_accuracy", shift) for shift in ("", *shifts))]]


@style()
def worth_figure(table: pd.DataFrame, titles: Mapping[str, str]) -> Figure:
    """Draw the error of the predicted accuracy that each measure leaves, a panel per target.

    Filled: hyperparameters, fit and the measure, fitted to other cells; hollow: the predicted accuracy as it is, which needs no study.
    Vertical lines: hyperparameters and fit alone, and 50 labelled images. The best measures of training images stand beside all of those of
    unlabelled images.

    Args:
        table: see ``worth.worth_table``, of all targets.
        titles: measure to its name.
    """
    if not table["with_error"].notna().any():
        return nothing_to_draw("There are too few cells to predict the accuracy of one from others.")
    means = table[table["with_error"].notna() & (table["measure"] != KNOWN)].groupby("measure")["with_error"].mean().sort_values()
    source = table.drop_duplicates("measure").set_index("measure")["source"]
    training = [name for name in means.index if source[name] == TRAINING][:_SHOWN]
    shown = [name for name in means.index if source[name] in (BASELINE, UNLABELLED)] + training
    shown = sorted(shown, key=lambda name: (SOURCES.index(source[name]), means[name]), reverse=True)
    targets = list(table["target"].unique())
    columns = min(4, len(targets))
    rows = -(-len(targets) // columns)
    size = (3.2 + 2.1 * columns, rows * (1.2 + 0.24 * len(shown)) + 0.5)
    figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False, sharey=True)
    for ax, target in zip(axes.flat, targets, strict=False):
        own = table[table["target"] == target].set_index("measure")
        for place, name in enumerate(shown):
            marker, colour = dict(zip(SOURCES, (("D", "black"), ("o", "C0"), ("s", "C1")), strict=True))[source[name]]
            ax.plot(own["with_error"].get(name, np.nan), place, marker, color=colour)
            ax.plot(own["error"].get(name, np.nan), place, marker, color=colour, fillstyle="none")
        ax.axvline(own["with_error"].get(KNOWN, np.nan), color="black", linewidth=1, label=KNOWN)
        labels = own[own.index.str.endswith("labelled images")]
        ax.axvline(labels["error"].iloc[0], color="C2", linewidth=1, linestyle="--", label=labels.index[0])
        ax.set(title=target, xscale="log")  # errors of 1 and of 30 points stand side by side
        ax.set_xticks(_POINTS, [f"{value:g}" for value in _POINTS])
        ax.minorticks_off()
        ax.set_yticks(range(len(shown)), [titles.get(name, name) for name in shown], fontsize="small")
    for ax in axes.flat[len(targets) :]:
        ax.set_axis_off()
    for name, marker, colour in zip(SOURCES, "Dos", ("black", "C0", "C1"), strict=True):
        axes.flat[0].plot([], [], marker, color=colour, label=name)
    words = "mean absolute error of the predicted accuracy, points\n(hollow: as it is; filled: with hyperparameters and fit)"
    figure.supxlabel(words, fontsize="medium")
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False, fontsize="small")
    return figure


def say_worth(table: pd.DataFrame, titles: Mapping[str, str]) -> str:
    """Answer in points whether unlabelled images are worth collecting, target by target, the labelled holdout beside it."""
    said = [_on_target(part.set_index("measure"), name, titles) for name, part in table.groupby("target", sort=False)]
    chosen = " Each best is chosen as the best, which flatters it." if any(" err by " in text for text in said) else ""
    return " ".join(said) + chosen


def _on_target(rows: pd.DataFrame, target: str, titles: Mapping[str, str]) -> str:
    known = rows["with_error"].get(KNOWN, np.nan)
    rivals = rows[rows["with_error"].notna()]
    training, unlabelled = (rivals[rivals["source"] == source] for source in (TRAINING, UNLABELLED))
    if not np.isfinite(known) or not len(unlabelled):
        return f"On {target}: too few cells, or no unlabelled measure has a value, so nothing can be said."
    second = unlabelled["with_error"].idxmin()
    text = f"On {target} hyperparameters and fit err by {known:.1f} points"
    if len(training):
        first = training["with_error"].idxmin()
        text += f", with the best measure of training images ({titles.get(first, first)}) by {training.loc[first, 'with_error']:.1f}"
    best = unlabelled.loc[second]
    text += f", with the best of unlabelled images ({titles.get(second, second)}) by {best['with_error']:.1f}"
    low, high = best["over_training_low"], best["over_training_high"]
    if len(training) and np.isfinite(best["over_training"]):
        text += f": **collecting them is worth {best['over_training']:.1f} points**"
        text += f" (95 % interval {low:.1f} to {high:.1f})" if np.isfinite(low) else " (no interval: too few cells)"
    if HOLDOUT in rows.index and np.isfinite(rows.loc[HOLDOUT, "error"]):
        held = rows.loc[HOLDOUT]
        text += f"; the labelled holdout itself errs by {held['error']:.1f} points, as {held['labelled_images']:.0f} labelled images would"
    return text + "."


def say_labelling(table: pd.DataFrame, titles: Mapping[str, str]) -> str:
    """Answer, target by target, when a measure is worth more than the labelled images that stand first in its rows; see ``worth_table``."""
    labels = table.loc[table["measure"].str.endswith("labelled images"), "measure"].iloc[0]
    said = [_worth_labels(part, name, titles) for name, part in table.groupby("target", sort=False)]
    return f"When is a measure by itself worth more than {labels}? {' '.join(said)}"


def _worth_labels(rows: pd.DataFrame, target: str, titles: Mapping[str, str]) -> str:
    own = rows["error"].fillna(rows["fitted_error"])
    known = rows.assign(own=own)[own.notna() & rows["source"].ne(BASELINE)].sort_values("own", kind="stable")
    if not len(known):
        return f"On {target} no measure tells an accuracy."
    known = known[known["n"] == known["n"].max()]  # a measure that few models have would be compared on few
    best = known.iloc[0]
    equal = (
        f"as {best['labelled_images']:,.0f} labelled images would"
        if np.isfinite(best["labelled_images"])
        else "as no number of labelled images would"
    )
    return (
        f"On {target}: {int(known['worth_more'].astype(bool).sum())} of {count(len(known), 'measure')}; the best, "
        f"{titles.get(best['measure'], best['measure'])}, errs by {best['own']:.1f} points, {equal}."
    )
