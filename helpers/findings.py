"""Sentences that read the scores: does a measure predict the gap, and what does the interval allow to be said."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from helpers.readings import count, listed, percent, points
from helpers.scoring import Overlays, Steps
from helpers.statistics import TOTAL, bootstrap_interval, pearson

_COUNTS = ["images_scored", "images_without_overlap", "images_with_empty_map"]
SCORE_COLUMNS = ["model_id", "architecture", "train_accuracy", "test_accuracy", "gap", "iou", "iou_b", *_COUNTS, "left_out"]
_METHODS = {"iou": "IoU", "iou_b": "IoU-B"}


def models_analysed(catalogue: pd.DataFrame) -> str:
    """Say how many models are scored and how many of them enter the analysis."""
    scored = int((catalogue["snapshot"] != "none").sum())
    kept = int((catalogue["left_out"] == "").sum())
    cells = catalogue.loc[catalogue["left_out"] == "", "cell"].nunique()
    return f"{count(scored, 'model')} are scored; **{kept:,}** of them, from {count(cells, 'hyperparameter cell')}, enter the analysis."


def scores_found(table: pd.DataFrame) -> str:
    """Say what range the scores take, and how many images could not be scored."""
    scored = table.dropna(subset="iou")
    if not len(scored):
        return "No model has a defined score."
    unseen = int(scored["images_without_overlap"].sum())
    empty = scored["images_with_empty_map"].sum() / max(1, scored["images_scored"].sum())
    return (
        f"IoU from {scored['iou'].min():.3f} to {scored['iou'].max():.3f}, IoU-B from {scored['iou_b'].min():.3f} to "
        f"{scored['iou_b'].max():.3f} over {count(len(scored), 'model')}. {count(unseen, 'image score')} undefined and left out; "
        f"{percent(empty)} of the maps have no pixel above the threshold and count as 0."
    )


def model_title(model: pd.Series) -> str:
    """Name a model by what a reader wants to know of it."""
    start = "pretrained" if model["pretrained"] else "from scratch"
    return f"{model['architecture']}, {start}, gap {points(model['gap'])}"


def step_by_step(steps: Steps, names: Sequence[str]) -> str:
    """Read the figure of one image: what was predicted, how large map and box are, what the overlap is."""
    verdict = "correctly" if steps.label == steps.predicted else f"wrongly, it is {names[steps.label]}"
    return (
        f"Predicted: {names[steps.predicted]} ({verdict}). The map's mask covers {percent(float(steps.mask.float().mean()))} of the image, "
        f"the box {percent(float(steps.box_mask.float().mean()))}; "
        f"IoU {steps.iou:.3f}, and {steps.iou_b:.3f} for the rectangle around the mask."
    )


def overlays_read(models: pd.DataFrame, overlays: Overlays) -> str:
    """Compare the mean IoU of the models on the pictured images; few images, so no claim is made."""
    means = np.nanmean(overlays.ious.numpy(), axis=1)
    each = [f"{points(gap)}: {mean:.3f}" for gap, mean in zip(models["gap"], means, strict=True)]
    return f"Mean IoU on these {count(overlays.ious.shape[1], 'image')} by gap: {listed(each)}. A few images illustrate and prove nothing."


def verdict(low: float, high: float) -> str:
    """Say what a 95 % interval of a correlation allows: negative is what the paper expects of IoU."""
    if not (np.isfinite(low) and np.isfinite(high)):
        return "there are too few models for an interval, so nothing can be said"
    if high < 0:
        return "the interval lies below 0, as the paper expects: a larger IoU goes with a smaller gap"
    if low > 0:
        return "the interval lies above 0, against the paper: a larger IoU goes with a larger gap"
    return "the interval contains 0: whether IoU tells the gap here cannot be said"


def iou_against_gap(kept: pd.DataFrame, resamples: int, seed: int) -> str:
    """State the pooled correlation of IoU with the gap, its interval, and what that allows."""
    r = pearson(kept["iou"], kept["gap"])
    low, high = bootstrap_interval(kept["iou"], kept["gap"], kept["cell"], "pearson", resamples, seed=seed)
    if not np.isfinite(r):
        return f"With {count(len(kept), 'model')} the correlation is undefined."
    return f"Pooled over {count(len(kept), 'model')}: **r = {r:.3f}** (95 % interval {low:.3f} to {high:.3f}); {verdict(low, high)}."


def beside_published(table: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """Add the paper's value and the difference to it, where the paper has the architecture, threshold and method.

    Args:
        table: rows of ``statistics.correlation_table`` or ``selection_table``.
        published: method, architecture, threshold, and either pearson_r or accuracy_percent.

    Returns:
        The table with published_r and difference, or published_accuracy (fraction) and difference; NaN where there is none.
    """
    theirs = published.rename(columns={"method": "measure"})
    if "pearson_r" in published:
        theirs, ours, name = theirs.rename(columns={"pearson_r": "published_r"}), "pearson_r", "published_r"
    else:
        theirs, ours, name = theirs.assign(published_accuracy=theirs["accuracy_percent"] / 100), "accuracy", "published_accuracy"
    joined = table.merge(theirs[["architecture", "threshold", "measure", name]], how="left", on=["architecture", "threshold", "measure"])
    return joined.assign(difference=joined[ours] - joined[name])


def _pooled(table: pd.DataFrame, measure: str) -> pd.DataFrame:
    return table[(table["architecture"] == TOTAL) & (table["measure"] == measure)].sort_values("threshold")


def correlations_read(table3: pd.DataFrame) -> str:
    """Say how ours stands to the paper's at its lowest threshold, measure by measure, and how many cells agree in sign."""
    parts = []
    for measure, name in _METHODS.items():
        row = _pooled(table3, measure).iloc[0]
        if np.isfinite(row["pearson_r"]):
            parts.append(
                f"{name}: r = {row['pearson_r']:.3f} ({row['ci_low']:.3f} to {row['ci_high']:.3f}, n = {int(row['n'])}), "
                f"the paper's {row['published_r']:.3f}"
            )
    defined = table3.dropna(subset=["ci_low", "ci_high"])
    negative = int((defined["ci_high"] < 0).sum())
    positive = int((defined["ci_low"] > 0).sum())
    undefined = int(table3["pearson_r"].isna().sum())
    return (
        f"Pooled, above {percent(table3['threshold'].min())} training accuracy: {'; '.join(parts) or 'no correlation is defined'}. Of "
        f"{count(len(table3), 'cell')} of the table, {negative} have an interval below 0, {positive} above 0, "
        f"{len(defined) - negative - positive} contain 0, and {undefined} have no correlation for want of models. "
        "The images and networks are not the paper's unless the study is imagenet20, so a difference is no failed replication."
    )


def thresholds_read(table3: pd.DataFrame) -> str:
    """Say whether the pooled correlation of IoU changes its sign with the accuracy threshold."""
    rows = _pooled(table3, "iou").dropna(subset="pearson_r")
    if not len(rows):
        return "No threshold leaves enough models for a correlation."
    each = [f"{row.pearson_r:.3f} above {row.threshold:.0%} (n = {int(row.n)})" for row in rows.itertuples()]
    same = (np.sign(rows["pearson_r"]).nunique() == 1) and len(rows) > 1
    stable = "its sign does not depend on the threshold" if same else "its sign is not the same at all thresholds"
    return f"Pooled r of IoU: {listed(each)}; {stable if len(rows) > 1 else 'only one threshold has enough models'}."


def selection_read(table4: pd.DataFrame) -> str:
    """Say how often the larger IoU picks the better of two models, against a coin."""
    row = _pooled(table4, "iou").iloc[0]
    if not np.isfinite(row["accuracy"]):
        return "There is no pair of models to choose from."
    low, high = row["ci_low"], row["ci_high"]
    coin = "better than a coin" if low > 0.5 else "worse than a coin" if high < 0.5 else "not to be told from a coin"
    if not np.isfinite(low):
        coin = "with too few models for an interval"
    pairs = int(row["concordant"] + row["discordant"])
    return (
        f"Of {count(pairs, 'pair')} (and {count(int(row['ties']), 'tie')}), the larger IoU picks the smaller gap in "
        f"**{percent(row['accuracy'])}** (95 % interval {percent(low)} to {percent(high)}): {coin}; "
        f"the paper reports {percent(row['published_accuracy'])}."
    )
