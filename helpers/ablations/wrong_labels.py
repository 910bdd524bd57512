"""What notebook 05 shows of wrong labels: how r stands at each level, and how far measures move where labels alone change."""

from collections.abc import Collection, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from helpers.ablations.report import signs, with_interval
from helpers.report.style import count, interval, listed, nothing_to_draw, percent, style
from helpers.statistics.questions import ADDED, ranking_table, with_fit
from helpers.statistics.resampling import DRAWS, FEWEST_CELLS

_GAP, _FIT, _TEST = "gap", "train_accuracy", "test_accuracy"
_RIGHT_ACCURACY, _RIGHT_GAP = "training_accuracy", "gap_right_labels"
AS_PROMISED, REVERSED, NOT_TOLD = "same direction", "opposite direction", "not told"
_COLOURS = {AS_PROMISED: "C0", REVERSED: "C1", NOT_TOLD: "grey"}
ASKED = ("r_gap", "r_gap_given_fit", "r_gap_given_all", ADDED)
_NONE = (
    "This study has no models trained on noisy labels, so the paper's claim that IoU holds under label noise is not tested here; "
    "set label_noises in 02_grid_training, for example to [0.0, 0.2]."
)


def say_label_noise(table: pd.DataFrame) -> str:
    """Sentence on how r stands at each level of label noise, or that there is none in the study."""
    levels = table["level"].astype(float)
    if not len(table) or not (levels > 0).any():
        return _NONE
    each = [f"{percent(level)} noise: {with_interval(row)}" for level, (_, row) in zip(levels, table.iterrows(), strict=True)]
    return f"r by label noise: {'; '.join(each)}. {signs(table, 'level')}."


def with_gap_on_right_labels(models: pd.DataFrame) -> pd.DataFrame:
    """Add gap_right_labels: training accuracy on the scored images, against the right labels, minus test accuracy; NaN where not scored.

    The gap holds training accuracy against the labels that a network was given, measures hold outputs against the right ones.
    """
    accuracy = models.get(_RIGHT_ACCURACY, np.nan)
    return models.assign(**{_RIGHT_GAP: accuracy - models[_TEST]})


def with_promises(moved: pd.DataFrame) -> pd.DataFrame:
    """Add what r and the shift of the gap promise of each measure's shift, and whether the measure keeps it.

    Args:
        moved: see ``hyperparameters.shifts``, with a row of the gap for each level.

    Returns:
        The rows with promised, r times the gap's shift in standard deviations, which a measure has that follows the gap as it does among
        models of right labels, and kept, the direction alone: ``AS_PROMISED`` or ``REVERSED`` where the intervals of r and shift both leave
        out 0, ``NOT_TOLD`` where one of them does not, or the gap's own does not.
    """
    of_gap = moved[moved["measure"] == _GAP].set_index("level")
    gap_shift, low, high = (moved["level"].map(of_gap[name]).astype(float) for name in ("shift", "ci_low", "ci_high"))
    promised = moved["r"].astype(float) * gap_shift
    told = (low * high > 0) & (moved["ci_low"] * moved["ci_high"] > 0) & (moved["r_low"] * moved["r_high"] > 0)
    kept = np.where(np.sign(moved["shift"].astype(float)) == np.sign(promised), AS_PROMISED, REVERSED)
    return moved.assign(promised=promised, kept=np.where(told, kept, NOT_TOLD))


def say_pairs(promised: pd.DataFrame) -> str:
    """Sentences on what wrong labels do to gap, fit and test accuracy in pairs of models that differ in nothing else."""
    if not promised["n"].gt(0).any():
        return _NONE
    names = {_GAP: "the gap", _FIT: "training accuracy", _TEST: "test accuracy"}
    parts = []
    for level, rows in promised.groupby("level", sort=False):
        own = rows[rows["n"] > 0].set_index("measure")
        moves = [f"{title} by {100 * own.at[name, 'change']:+.1f} points" for name, title in names.items() if name in own.index]
        if moves:
            pairs = f"{count(int(own['n'].max()), 'pair')} of models from {count(int(own['cells'].max()), 'cell')}"
            parts.append(f"In {pairs} that differ in labels alone, {percent(float(level))} of them wrong moves {listed(moves, 3)}.")
        if _RIGHT_GAP in own.index and np.isfinite(own.at[_RIGHT_GAP, "change"]):
            right = f"{100 * own.at[_RIGHT_GAP, 'change']:+.1f} points"
            parts.append(
                f"Held against the right labels, as the measures are, the gap moves by {right}: these pairs tell what wrong labels do to "
                "a measure, not whether it follows the gap."
            )
    few = f" Under {FEWEST_CELLS} cells there is no interval." if promised["ci_low"].isna().all() else ""
    return f"{' '.join(parts)}{few}"


def say_promises(promised: pd.DataFrame, titles: Mapping[str, str], named: Collection[str]) -> str:
    """Sentences on how many measures move as their r with the gap promises, and how those that are named do."""
    own = promised[promised["measure"].isin(titles) & (promised["n"] > 0)]
    if not len(own):
        return _NONE
    numbers = own["kept"].value_counts()
    each = [
        f"{titles[row.measure]} {row.shift:+.2f} ({interval(row.ci_low, row.ci_high)}; promised {row.promised:+.2f})"
        for row in own[own["measure"].isin(named) & own["shift"].notna()].itertuples()
    ]
    said = f" In standard deviations between models of right labels: {'; '.join(each)}." if each else ""
    return (
        f"Of {count(len(own), 'measure')} {numbers.get(AS_PROMISED, 0)} move in the direction that their r with the gap among models of "
        f"right labels promises, {numbers.get(REVERSED, 0)} in the opposite one; of the others r or shift, or the gap's own, is not told "
        f"from 0.{said}"
    )


def without_wrong_labels(
    models: pd.DataFrame,
    measures: Sequence[str],
    axes: Sequence[str],
    images: Mapping[str, ArrayLike],
    resamples: int = DRAWS,
    seed: int = 0,
) -> pd.DataFrame:
    """What is asked of measures, asked again of the models of right labels alone.

    Wrong labels widen the gaps and bend what fit tells of them; what a measure adds may be no more than that it sees this.

    Args:
        models: one row per model: gap, test_accuracy, train_accuracy, train_loss, cell, label_noise, the axes and the measures.
        measures: their columns; those that are absent are left out.
        axes: hyperparameters with more than one level.
        images: values of single images by measure, and of test_accuracy, (models, images).
        resamples: draws of the intervals.
        seed: of the draws.

    Returns:
        One row per measure: measure, n, cells, and each of ``ASKED`` with ``_low`` and ``_high``; none where all labels are right.
    """
    names = ["measure", "n", "cells", *(f"{question}{end}" for question in ASKED for end in ("", "_low", "_high"))]
    right = (models["label_noise"] == 0).to_numpy()
    if right.all() or not right.any():
        return pd.DataFrame(columns=names)
    own = with_fit(models[right].reset_index(drop=True))
    varied = [axis for axis in axes if own[axis].nunique() > 1]
    known = [name for name in measures if name in own]
    values = {name: np.asarray(images[name])[right] for name in (*known, _TEST) if name in images}
    return ranking_table(own, known, varied, images=values, draws=resamples, permutations=1, seed=seed).table[names]


def say_without(again: pd.DataFrame, titles: Mapping[str, str]) -> str:
    """Sentences on r and what is saved of the error among models of right labels."""
    if not len(again):
        return _NONE
    each = [
        f"{titles[row.measure]} r {row.r_gap:.2f} ({interval(row.r_gap_low, row.r_gap_high)}), saved "
        f"{getattr(row, ADDED):.2f} points ({interval(getattr(row, f'{ADDED}_low'), getattr(row, f'{ADDED}_high'))})"
        for row in again.itertuples()
        if np.isfinite(row.r_gap)
    ]
    models = count(int(again["n"].max()), "model")
    return f"Among the {models} of right labels alone, beside what 04 has of all: {'; '.join(each) or 'no correlation is defined'}."


@style()
def shifts_figure(promised: pd.DataFrame, titles: Mapping[str, str], named: Collection[str], most: int = 25) -> Figure:
    """Draw how far measures move where labels alone turn wrong, beside what their r with the gap promises; the highest level.

    Args:
        promised: see ``with_promises``.
        titles: measure to label.
        named: measures that are drawn in any case.
        most: others at most, those with the largest promise.
    """
    own = promised[promised["measure"].isin(titles) & promised["shift"].notna()]
    if not len(own):
        return nothing_to_draw("No measure moves: there are no pairs of models that differ in their labels alone.")
    own = own[own["level"] == own["level"].iloc[-1]]
    strongest = own["promised"].abs().nlargest(most).index
    known, own = len(own), own[own.index.isin(strongest) | own["measure"].isin(named)].sort_values("promised", ascending=False)
    figure, ax = plt.subplots(figsize=(9, 1.4 + 0.27 * len(own)), layout="constrained")
    at = np.arange(len(own))
    ax.axvline(0, color="black", linewidth=0.8)
    for kept, colour in _COLOURS.items():
        rows = (own["kept"] == kept).to_numpy()
        ax.hlines(at[rows], own["ci_low"][rows], own["ci_high"][rows], color=colour, linewidth=2.5, alpha=0.5)
        ax.plot(own["shift"][rows], at[rows], "o", color=colour, label=f"{kept} ({rows.sum()})")
    ax.plot(own["promised"], at, "D", color="black", fillstyle="none", markersize=5, label="promised")
    ax.set_yticks(at, [titles[name] for name in own["measure"]], fontsize="x-small")
    ax.set(ylim=(len(own) - 0.5, -0.5), xlabel="shift, in standard deviations (95 % interval)")
    ax.set_title(f"{len(own)} of {known} measures: the largest promises, and those of claims" if len(own) < known else "all measures")
    ax.grid(axis="y", visible=False)
    figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize="small", frameon=False)
    return figure
