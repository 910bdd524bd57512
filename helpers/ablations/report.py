"""Sentences that read the ablations: whether the correlation of the overlap with the gap survives another choice."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from helpers.agreement import pearson
from helpers.readings import count, interval, listed, percent
from helpers.statistics import TOTAL


def with_interval(row: pd.Series) -> str:
    """Write a correlation with its interval and n, or that it is undefined."""
    if not np.isfinite(row["pearson_r"]):
        return f"undefined (n = {int(row['n'])})"
    return f"{row['pearson_r']:.2f} ({interval(row['ci_low'], row['ci_high'])}, n = {int(row['n'])})"


def _number(value: float) -> str:
    return f"{value:.2f}" if np.isfinite(value) else "undefined"


def signs(table: pd.DataFrame, noun: str) -> str:
    """Count the intervals below 0, where the paper expects them, above 0 and around 0."""
    defined = table.dropna(subset=["ci_low", "ci_high"])
    below, above = int((defined["ci_high"] < 0).sum()), int((defined["ci_low"] > 0).sum())
    around, none = len(defined) - below - above, len(table) - len(defined)
    kinds = {"the interval lies below 0, as the paper expects": below, "the interval lies above 0, against the paper": above}
    kinds |= {"the interval contains 0": around, "there is no interval for want of models": none}
    return f"Of {count(len(table), noun)}: " + ", ".join(f"in {number} {kind}" for kind, number in kinds.items() if number)


def lowest_pooled(table: pd.DataFrame) -> pd.DataFrame:
    """Take the rows of all architectures together at the lowest training accuracy."""
    pooled = table[table["architecture"] == TOTAL]
    return pooled[pooled["threshold"] == pooled["threshold"].min()]


def pictured(table: pd.DataFrame) -> pd.DataFrame:
    """Take the rows of all architectures together, and those that stand beside the paper's, at the lowest training accuracy."""
    lowest = table[table["threshold"] == table["threshold"].min()]
    beside = lowest[(lowest["architecture"] != TOTAL) & lowest["published_r"].notna()]
    return pd.concat([beside, lowest[lowest["architecture"] == TOTAL]])


def way(row: pd.Series) -> str:
    """Name a way to compute a map for a reader."""
    name = str(row["method"]).replace("_plus_plus", "++").replace("_", "-")
    name = {"grad-cam": "Grad-CAM", "grad-cam++": "Grad-CAM++", "smooth-grad-cam++": "Smooth Grad-CAM++"}.get(name, name)
    name = {"layer-cam": "Layer-CAM", "eigen-cam": "Eigen-CAM", "score-cam": "Score-CAM"}.get(name, name)
    return f"{name} as torchcam computes it" if row.get("formula") == "torchcam" else name


def ways(table: pd.DataFrame) -> list[str]:
    """Name each row: architecture, way to compute a map, and on how many images per model."""
    places = table["architecture"].replace(TOTAL, "all")
    return [f"{place}, {way(row)}, {row['images']:,.0f} images" for place, (_, row) in zip(places, table.iterrows(), strict=True)]


def methods_read(table: pd.DataFrame) -> str:
    """Say how far r depends on the CAM method, and which methods coincide here."""
    rows = lowest_pooled(table)
    defined = rows.dropna(subset="pearson_r")
    if not len(defined):
        return "No CAM method has a defined correlation with the gap: too few models."
    low, high = defined.loc[defined["pearson_r"].idxmin()], defined.loc[defined["pearson_r"].idxmax()]
    text = (
        f"Pooled, r runs from {low['pearson_r']:.2f} ({way(low)}, {low['images']:,.0f} images per model) to {high['pearson_r']:.2f} "
        f"({way(high)}, {high['images']:,.0f} images). {signs(rows, 'way')}."
    )
    same = rows[(rows["coincides_with"] != "") & (rows["coincides_with"] != rows["method"] + " (" + rows["formula"] + ")")]
    twins = [f"{way(row)} and {closed_form_name(row['coincides_with'])}" for _, row in same.iterrows()]
    text += f" The maps of {'; '.join(twins)} are the same for every model, to rounding." if twins else " No two methods coincide."
    theirs = table[table["threshold"] == table["threshold"].min()].dropna(subset=["published_r", "pearson_r"])
    theirs = theirs.sort_values("images", ascending=False, kind="stable").drop_duplicates(["method", "formula"])
    each = [f"{way(row)} {row['pearson_r']:.2f} ({row['published_r']:.2f})" for _, row in theirs.iterrows()]
    return text + (f" On ResNet-18, here and in brackets in the paper: {', '.join(each)}." if each else "")


def closed_form_name(key: str) -> str:
    """Name a closed form, "method (formula)", for a reader."""
    method, _, formula = key.rstrip(")").partition(" (")
    return way(pd.Series({"method": method, "formula": formula}))


def random_read(table: pd.DataFrame, networks: pd.DataFrame) -> str:
    """Say whether the overlap of untrained networks tells anything of their gap, as it must not."""
    row = table[table["architecture"] == TOTAL].iloc[0]
    if not np.isfinite(row["pearson_r"]):
        return "The correlation of untrained networks is undefined: too few networks, or a constant."
    clear = row["ci_low"] > 0 or row["ci_high"] < 0
    verdict = "the interval does not contain 0, so an overlap without learning tells the gap, which a valid measure must not"
    verdict = verdict if clear else "the interval contains 0, as it must: without learning the overlap tells nothing"
    verdict = verdict if np.isfinite(row["ci_low"]) else "there are too few networks for an interval"
    return (
        f"{count(len(networks), 'untrained network')}, training accuracy {percent(networks['train_accuracy'].mean())} on average, IoU "
        f"{networks['iou'].min():.3f} to {networks['iou'].max():.3f}: r = {with_interval(row)}; {verdict}. The paper has "
        f"{row['published_r']:.2f}."
    )


def masks_read(quality: dict[str, float]) -> str:
    """Say how good the machine's masks are against the boxes, and how many were dropped."""
    if not np.isfinite(quality["mean_iou"]):
        return f"The masks cannot be compared with the boxes; {count(int(quality['dropped']), 'mask')} of {quality['images']:,} are empty."
    return (
        f"Against the annotated boxes: pixel accuracy {percent(quality['pixel_accuracy'])}, mean pixel accuracy "
        f"{percent(quality['mean_pixel_accuracy'])}, mean IoU {quality['mean_iou']:.3f}, frequency-weighted IoU "
        f"{quality['frequency_weighted_iou']:.3f}, IoU of the object {quality['iou_object']:.3f}. "
        f"{count(int(quality['dropped']), 'empty mask')} of {quality['images']:,} dropped."
    )


def examples_read(ious: list[float]) -> str:
    """Say what range the pictured masks cover."""
    if not ious:
        return "No mask can be compared with a box."
    return f"From the best mask to the worst, evenly spaced by rank: IoU with the boxes {', '.join(f'{value:.2f}' for value in ious)}."


def annotations_read(table: pd.DataFrame) -> str:
    """Say what r is when a machine made the masks, beside the annotated boxes."""
    rows = lowest_pooled(table).set_index("method")
    if "saliency_masks" not in rows.index:
        return "There are no masks of a machine."
    boxes, masks = rows.loc["annotated_boxes"], rows.loc["saliency_masks"]
    text = f"Pooled r with annotated boxes {with_interval(boxes)}, with the machine's masks {with_interval(masks)}"
    theirs = table.dropna(subset="published_r")
    theirs = theirs[theirs["threshold"] == theirs["threshold"].min()].set_index("method")["published_r"]
    return text + ("." if theirs.nunique() < 2 else f"; the paper's ResNet-18: {theirs.iloc[0]:.2f} and {theirs.iloc[1]:.2f}.")


def thresholds_read(table: pd.DataFrame, paper: float) -> str:
    """Say over which thresholds of the map r keeps its sign, and where it is strongest; the table of one way."""
    defined = table.dropna(subset="pearson_r").sort_values("threshold")
    if not len(defined):
        return "No threshold has a defined correlation: too few models."
    best = defined.loc[defined["pearson_r"].idxmin()]
    at = defined.loc[(defined["threshold"] - paper).abs().idxmin()]
    changes = np.flatnonzero(np.diff(np.sign(defined["pearson_r"])))
    places = [f"{defined['threshold'].iloc[place]:g} and {defined['threshold'].iloc[place + 1]:g}" for place in changes]
    sign = f"its sign changes between {listed(places, 3)}" if places else "its sign is the same at all of them"
    return (
        f"At the paper's threshold {at['threshold']:g} r is {with_interval(at)}; over {count(len(defined), 'threshold')} from "
        f"{defined['threshold'].min():g} to {defined['threshold'].max():g} {sign}. It is most negative at {best['threshold']:g} "
        f"({best['pearson_r']:.2f}). {signs(defined, 'threshold')}; a threshold chosen because it is best flatters the measure."
    )


def choices_read(table: pd.DataFrame, labels: list[str], noun: str) -> str:
    """State r of every choice, for a table of a few rows."""
    if not table["pearson_r"].notna().any():
        return f"No {noun} has a defined correlation with the gap: too few models."
    each = [f"{label}: {with_interval(row)}" for label, (_, row) in zip(labels, table.iterrows(), strict=True)]
    return f"r by {noun}: {'; '.join(each)}. {signs(table, 'row')}."


def images_read(table: pd.DataFrame, iou: pd.Series) -> str:
    """Say from how many images on the IoU of a model is known well enough, and r with it."""
    if not len(table):
        return "No image has a defined overlap."
    spread, last = iou.std(), table.iloc[-1]
    enough = table[(table["half_width"] <= spread / 4) & (table["images"] < last["images"])]
    text = (
        f"With all {count(int(last['images']), 'image')} r is {last['pearson_r']:.2f}"
        if np.isfinite(last["pearson_r"])
        else "r is undefined"
    )
    for row in table.iloc[:-1].head(1).itertuples():
        drawn = f", and r of 95 % of the draws lies between {row.ci_low:.2f} and {row.ci_high:.2f}" if np.isfinite(row.ci_low) else ""
        text += f"; with {row.images:,} the IoU of a model is known to ±{row.half_width:.3f}{drawn}"
    if not np.isfinite(spread):
        return text + "."
    sizes = f"{count(int(enough['images'].iloc[0]), 'image')} are enough" if len(enough) else "no smaller number that was tried is enough"
    return text + f". Between models the IoU has a standard deviation of {spread:.3f}; for an error of at most a quarter of it {sizes}."


def repeats_read(table: pd.DataFrame) -> str:
    """Say whether r depends on the snapshot and the repeat, and whether a change of IoU within a run goes with one of the gap."""
    parts = []
    for column, rows in table.groupby("column", sort=False):
        levels, change = rows[rows["level"] != "change between levels"], rows[rows["level"] == "change between levels"]
        if len(levels) < 2:
            parts.append(f"This study has one {column} only ({levels['level'].iloc[0]})." if len(levels) else f"There is no {column}.")
            continue
        each = "; ".join(f"{row['level']}: {with_interval(row)}" for _, row in levels.iterrows())
        text = f"r by {column}: {each}."
        for _, row in change[change["n"] > 0].iterrows():
            text += (
                f" Between the two models of a pair IoU differs by {row['mean']:.3f} on average and the gap by "
                f"{100 * row['mean_gap']:.1f} points; r of the two changes is {with_interval(row)}."
            )
        parts.append(text)
    return " ".join(parts)


def label_noise_read(table: pd.DataFrame) -> str:
    """Say how r stands at each level of label noise, or that there is none in the study."""
    levels = table["level"].astype(float)
    if not len(table) or not (levels > 0).any():
        return (
            "This study has no models trained on noisy labels, so the paper's claim that IoU holds under label noise is not tested here; "
            "set label_noises in 02_grid_training, for example to [0.0, 0.2]."
        )
    each = [f"{percent(level)} noise: {with_interval(row)}" for level, (_, row) in zip(levels, table.iterrows(), strict=True)]
    return f"r by label noise: {'; '.join(each)}. {signs(table, 'level')}."


def right_and_wrong(single: pd.DataFrame) -> str:
    """Say whether an image that is classified right has the larger overlap."""
    means = single.groupby("right")["iou"].mean()
    if len(means) < 2 or not np.isfinite(pearson(single["right"].astype(float), single["iou"])):
        return "All images are classified alike, so right and wrong cannot be compared."
    return f"Mean IoU is {means[True]:.3f} on images classified as labelled and {means[False]:.3f} on the others."


def survival(tables: Mapping[str, pd.DataFrame], baseline: float) -> str:
    """Count the other choices under which r keeps the sign that it has at the paper's setting.

    Args:
        tables: kind of choice to its table of correlations, without the paper's own setting where that is easy to leave out.
        baseline: r at the paper's setting.
    """
    defined = {name: table["pearson_r"].dropna() for name, table in tables.items()}
    if not np.isfinite(baseline) or not sum(len(values) for values in defined.values()):
        return "At the paper's setting, or at all others, the correlation is undefined, so it cannot be said to survive or not."
    each = [f"{name} {int((np.sign(r) == np.sign(baseline)).sum())} of {len(r)}" for name, r in defined.items() if len(r)]
    everything = pd.concat(defined.values())
    alike = int((np.sign(everything) == np.sign(baseline)).sum())
    return (
        f"At the paper's setting r is **{baseline:.2f}**; under {alike} of {count(len(everything), 'setting')} tried it has the same sign "
        f"({listed(each, 8)}), and it runs from {everything.min():.2f} to {everything.max():.2f}."
    )
