"""What the tables of a study can bear: what is left of IoU given training size and fit, and whether its masks could have missed."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from helpers.agreement import finite_pairs, pearson
from helpers.paper_claims import Sampling
from helpers.readings import count, interval, percent
from helpers.statistics import bootstrap_interval

LARGEST_FLOOR, MASK_AREAS = 0.40, (0.05, 0.60)  # outside of these a mask can hardly miss its box, or hardly meet it


def table_link(table: str) -> str:
    """Write a link of Markdown from a study's page to one of its tables."""
    return f"[{table}](tables/{table}.{'parquet' if table == 'scores' else 'csv'})"


def mask_areas(models: pd.DataFrame) -> pd.DataFrame:
    """Share of the pixels that boxes and masks cover, per model, solved from the four metrics of its masks.

    With the share f of the pixels in boxes, ``frequency-weighted IoU = f IoU_object + (1 - f) IoU_background`` gives f; pixel accuracy
    and the object's IoU then give false and true positives (Long et al. 2015 for the metrics). All images are of one size, so f is also
    what a map that covers the whole image scores in IoU, on the images that this model was scored on.

    Returns:
        box and mask, in [0, 1], NaN where the metrics are absent or both IoUs are equal.
    """
    names = ["mask_agreement", *(f"mask_agreement ({part})" for part in ("IoU of the object", "frequency-weighted IoU", "pixel accuracy"))]
    mean, item, weighted, accuracy = (models[name] if name in models else pd.Series(np.nan, models.index) for name in names)
    background = 2 * mean - item
    box = (weighted - background) / (item - background).where(item != background)
    extra = (item * box + 1 - box - accuracy) / (1 - item).where(item < 1)
    return pd.DataFrame({"box": box, "mask": item * (box + extra) + extra})


def testable(models: pd.DataFrame) -> bool:
    """Whether IoU could have been low: the median mask takes 5 to 60 % of the image and the boxes 40 % at most; True where unknown."""
    areas = mask_areas(models).median()
    low, high = MASK_AREAS
    return not (areas["box"] > LARGEST_FLOOR or areas["mask"] < low or areas["mask"] > high)


def _residuals(values: np.ndarray, design: np.ndarray) -> np.ndarray:
    return values - design @ np.linalg.lstsq(design, values, rcond=None)[0]


def held_fixed(models: pd.DataFrame, name: str, fit: Sequence[str], axes: Sequence[str], sampling: Sampling) -> tuple[float, float, float]:
    """Pearson's r of a measure with the gap, given columns: of the residuals of least squares, with its 95 % interval.

    Args:
        models: one row per model: gap, cell, the measure, fit and axes.
        name: the measure's column.
        fit: columns that enter linearly.
        axes: hyperparameters, an indicator for each level but one.
        sampling: of the interval, percentile; whole cells are drawn, and both regressions done again on each draw.

    Returns:
        (r, low, high) in [-1, 1], not signed by what the measure promises; NaN with fewer than two models more than columns, and for a
        constant. Fewer than 8 cells bear no interval.
    """
    kept = models[np.isfinite(models[name]) & np.isfinite(models["gap"])]
    levels = [pd.get_dummies(kept[axis].astype(str), drop_first=True).to_numpy(float) for axis in axes]
    design = np.column_stack([np.ones(len(kept)), kept[list(fit)].to_numpy(float), *levels])
    values = kept[[name, "gap"]].to_numpy(float)

    def r(rows: np.ndarray) -> float:
        if len(rows) < design.shape[1] + 2:
            return np.nan
        left = _residuals(values[rows], design[rows])
        spread = np.linalg.norm(left, axis=0)
        around = np.linalg.norm(values[rows] - values[rows].mean(0), axis=0)
        return float(left[:, 0] @ left[:, 1] / spread.prod()) if (spread > 1e-9 * around).all() and around.all() else np.nan

    members = list(kept.groupby("cell").indices.values())
    rng = np.random.default_rng(sampling.seed)
    number = sampling.resamples if len(members) >= 8 else 0
    draws = [r(np.concatenate([members[k] for k in rng.integers(len(members), size=len(members))])) for _ in range(number)]
    draws = [draw for draw in draws if np.isfinite(draw)]
    low, high = np.quantile(draws, [0.025, 0.975]) if draws else (np.nan, np.nan)
    return r(np.arange(len(kept))), float(low), float(high)


def bearing_section(models: pd.DataFrame, varied: Sequence[str], scores: str, sampling: Sampling) -> list[str]:
    """Say what is left of IoU when training size and fit are held fixed, and whether its masks could have missed.

    Args:
        models: that enter the analysis: gap, cell, train_accuracy, the hyperparameters and a column per measure.
        varied: hyperparameters with more than one level.
        scores: the table that the measures come from.
        sampling: of the intervals.
    """
    sized = "images_per_class" in varied
    known = ["images_per_class", "train_accuracy"] if sized else ["train_accuracy"]
    words = "training size and training accuracy" if sized else "training accuracy"
    steps = ({"given training size": (known[:1], [])} if sized else {}) | {f"given {words}": (known, [])}
    steps["given all other hyperparameters too"] = (known, [axis for axis in varied if axis != "images_per_class"])
    titles = {"iou": "IoU", "iou_b": "IoU-B", "effective_invariance": "Effective Invariance"}
    found = {name: [held_fixed(models, name, *step, sampling) for step in steps.values()] for name in titles if name in models}
    gap = models["gap"].to_numpy()
    table = [f"| r with the gap | pooled | {' | '.join(steps)} |", "|---|---|" + "---|" * len(steps)]
    for name, row in found.items():
        x, y, kept = finite_pairs(models[name], gap)
        ends = bootstrap_interval(x, y, models["cell"].to_numpy()[kept], "pearson", sampling.resamples, seed=sampling.seed)
        cells = [f"{r:.2f} ({interval(low, high)})" for r, low, high in [(pearson(x, y), *ends), *row]]
        table.append(f"| {titles[name]} | {' | '.join(cells)} |")
    explained = 1 - _residuals(gap, np.column_stack([np.ones(len(models)), models[known].to_numpy(float)])).var() / gap.var()
    share = (
        f"- {words.capitalize()} explain{'' if sized else 's'} {percent(explained)} of the variance of the gap ({table_link('catalogue')})."
    )
    facts = [share, *_whole_images(models, scores)]
    return [_bearing(found["iou"][-2:], words, testable(models)), "\n".join(table), "\n".join(facts)]


def _bearing(rows: Sequence[tuple[float, float, float]], words: str, able: bool) -> str:
    """State what is left of IoU given the fit, or else given the fit and all hyperparameters, and whether the study can test the claim."""
    (r, low, high), (full, full_low, full_high) = rows
    fit, everything = f"(r {r:.2f}, {interval(low, high)})", f"(r {full:.2f}, {interval(full_low, full_high)})"
    nothing = "In this regime IoU carries nothing that can be told from 0 beyond"
    if low <= 0 <= high:
        text = f"{nothing} {words} {fit}"
    elif full_low <= 0 <= full_high:
        text = f"{nothing} {words} and the other hyperparameters {everything}; given {words} alone something is left {fit}"
    else:
        text = f"Something is left of IoU given {words} {fit}, and given all other hyperparameters too {everything}"
    return f"**{text}{'' if able else '; the study cannot test the claim'}.**"


def _whole_images(models: pd.DataFrame, scores: str) -> list[str]:
    """List mean IoU by training size, beside what a map that covers the image scores on the same images."""
    areas = mask_areas(models)
    lines = []
    for size, part in models.groupby("images_per_class"):
        floor = areas.loc[part.index, "box"].median()
        beside = f"; a map that covers the whole image scores {floor:.4f} on the same images" if np.isfinite(floor) else ""
        each = f"{size:.0f} photographs a class" if size else "all photographs of a class"
        lines.append(f"- Fitted to {each}: {count(len(part), 'model')}, mean IoU {part['iou'].mean():.4f}{beside}.")
    if areas["box"].max() - areas["box"].min() > 1e-6:
        lines.append("- So models of different training size were scored on different images, which is no comparison.")
    spread = f"- Between all {count(len(models), 'model')} IoU has a standard deviation of {models['iou'].std():.4f}"
    if areas["box"].isna().all():
        return [*lines, f"{spread}; what a map that covers the whole image scores is not in the tables."]
    above = int((models["iou"] > areas["box"]).sum())
    lines.append(f"{spread}; {above} of them ({percent(above / len(models))}) score more than the map that covers the whole image.")
    chance = "such masks can miss" if testable(models) else "such masks can hardly miss, so IoU says little of where a network looks"
    covered, boxes = percent(areas["mask"].median()), percent(areas["box"].median())
    return [*lines, f"- In the median model the masks cover {covered} of the pixels, the boxes {boxes}: {chance} ({table_link(scores)})."]
