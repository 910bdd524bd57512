"""Sentences that read the data and the model set, computed from the tables; a number in them moved there by itself."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from helpers.datasets import ImageSet, StudyData
from helpers.grid import RunConfig, cell_name


def count(number: int, noun: str) -> str:
    """Write a number with its noun in the right number: "1 model", "1,200 models", "3 classes"."""
    plural = noun + "es" if noun.endswith("s") else noun + "s"
    return f"{number:,} {noun if number == 1 else plural}"


def listed(items: Sequence[str], most: int = 4) -> str:
    """List a few items and count the rest."""
    shown = ", ".join(items[:most])
    return f"{shown} and {len(items) - most} more" if len(items) > most else shown


def interval(low: float, high: float, absent: str = "no interval") -> str:
    """Write a 95 % interval, or that there is none."""
    return f"95 % interval {low:.2f} to {high:.2f}" if np.isfinite(low) and np.isfinite(high) else absent


def points(fraction: float) -> str:
    """Write a fraction as percentage points; an undefined one in words."""
    return f"{100 * fraction:.1f} points" if np.isfinite(fraction) else "undefined"


def percent(fraction: float) -> str:
    """Write a fraction in percent; an undefined one in words."""
    return f"{100 * fraction:.1f} %" if np.isfinite(fraction) else "undefined"


def categories(classes: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """Put the study's classes beside Du et al. 2024, Table 1: ``published`` is the paper's count, NaN for other classes.

    Args:
        classes: label, class_id, class_name, train_images, test_images.
        published: wnid and n of the paper.
    """
    counts = published.set_index("wnid")["n"]
    return classes.assign(published=classes["class_id"].map(counts).astype(float))


def data_found(data: StudyData, table1: pd.DataFrame) -> str:
    """Say how many images of how many classes there are, and how the counts stand to the paper's."""
    text = (
        f"**{count(len(data.train), 'training image')}** with a box and **{count(len(data.test), 'test image')}** "
        f"of {count(len(data.classes), 'class')}; fingerprint of the data: `{data.fingerprint}`."
    )
    theirs = table1.dropna(subset="published")
    if not len(theirs):
        return text + " None of these classes is one of the paper's 20 ImageNet classes, so its counts do not apply."
    equal = int((theirs["published"] == theirs["train_images"]).sum())
    return text + (
        f" {equal} of {count(len(theirs), 'class')} shared with the paper have its number of images "
        f"({theirs['train_images'].sum():,.0f} here, {theirs['published'].sum():,.0f} there)."
    )


def class_sizes(classes: pd.DataFrame) -> str:
    """Say how evenly the images are spread over the classes."""
    train = classes.set_index("class_name")["train_images"]
    if train.nunique() == 1:
        return f"Every class has {count(int(train.iloc[0]), 'training image')}."
    return (
        f"The smallest class is {train.idxmin()} with {count(int(train.min()), 'training image')}, the largest {train.idxmax()} "
        f"with {int(train.max()):,}: a factor of {train.max() / train.min():.1f}."
    )


def box_sizes(images: ImageSet) -> str:
    """Say how much of an image the boxes take, and what a network that looks everywhere would score."""
    x0, y0, x1, y1 = images.boxes.double().unbind(-1)
    side = images.images.shape[-1]
    share = ((x1 - x0) * (y1 - y0)).amax(1).numpy() / side**2
    several = int(((x1 > x0) & (y1 > y0)).sum(1).gt(1).sum())
    low, middle, high = np.percentile(share, [10, 50, 90])
    return (
        f"The largest box of an image takes {percent(middle)} of it in the median "
        f"(10th to 90th percentile: {percent(low)} to {percent(high)}); "
        f"{count(several, 'image')} of {len(images):,} have more than one. A map that covers the whole image has an IoU of "
        f"{share.mean():.3f} on average, the floor that a measure of where a network looks must be read against."
    )


def faults_found(faults: pd.DataFrame) -> str:
    """Say what is wrong in the data, most frequent first."""
    if not len(faults):
        return "Nothing was found wrong: every image could be read and every box lies inside its image."
    kinds = faults["fault"].value_counts()
    return f"{count(len(faults), 'fault')}: " + ", ".join(f"{number:,} × {kind.replace('_', ' ')}" for kind, number in kinds.items()) + "."


def pretraining_found(table: pd.DataFrame) -> str:
    """Say how well the networks of the pretraining do on its own classes."""
    last = table[table["snapshot"] == "stop"]
    each = [f"{row.architecture} {percent(row.test_accuracy)} after {count(int(row.epoch), 'epoch')}" for row in last.itertuples()]
    return f"Test accuracy on the classes of the pretraining: {listed(each, 8)}."


def axes_table(axes: Mapping[str, Sequence[Any]], published: pd.DataFrame) -> pd.DataFrame:
    """Put the study's levels beside Du et al. 2024, Table 2 (columns hyperparameter, levels)."""
    theirs = published.set_index("hyperparameter")["levels"].astype(str)
    rows = [
        {"hyperparameter": name, "levels": ", ".join(map(str, levels)), "published": theirs.get(name, "—")} for name, levels in axes.items()
    ]
    return pd.DataFrame(rows)


def runs_planned(every: Sequence[RunConfig], runs: Sequence[RunConfig], missing: Sequence[RunConfig]) -> str:
    """Say how large the grid is, what is taken of it, and what is there already."""
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
    """Say how many models there are, from how many runs, and what became of the runs."""
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
    """Say how the gap differs between architectures, against its spread within them."""
    if not len(kept):
        return "No model is kept, so there is no gap to compare."
    middle = kept.groupby("architecture")["gap"].agg(["median", "count"])
    each = [f"{name} {points(row['median'])} (n = {int(row['count'])})" for name, row in middle.iterrows()]
    within = kept.groupby("architecture")["gap"].agg(np.ptp).max()
    between = middle["median"].max() - middle["median"].min()
    return (
        f"Median gap: {listed(each, 8)}. The medians differ by {points(between)}, "
        f"the models of one architecture by up to {points(within)}: "
        + ("architecture is the smaller lever." if between < within else "architecture is the larger lever.")
    )


def gap_spread(kept: pd.DataFrame) -> str:
    """Say how far the gap spreads, beside the paper's three examples of 4.0, 25.0 and 47.1 points."""
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
    """Say how many of the runs that ended at the cap still moved: median |relative change| of the loss above ``settled``."""
    if not len(changes):
        return "No run ended at the epoch cap: every run was stopped by the rules 1 to 3, or diverged."
    moves = changes.groupby("run_id")["relative_loss_change"].agg(lambda values: values.abs().median())
    moving = int((moves > settled).sum())
    return (
        f"Of {count(len(moves), 'run')} at the cap, {moving} still changed their loss by more than {settled:.0%} an epoch in the median: "
        + ("they had not converged." if moving else "all had settled.")
    )
