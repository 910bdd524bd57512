"""What notebook 03 shows: maps beside boxes, and the overlap against the gap."""

from collections.abc import Mapping, Sequence
from textwrap import fill

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import scipy.stats
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from helpers.measures import registry
from helpers.report.style import (
    _CAM_BOX,
    _MARKERS,
    _NAMES,
    _boxes,
    _show,
    colours,
    count,
    fit_band,
    levels_in_order,
    listed,
    nothing_to_draw,
    percent,
    points,
    say_reliable,
    style,
)
from helpers.scoring.common_set import ScoringSet
from helpers.scoring.look import Overlays, Steps
from helpers.statistics.reliability import images_needed, reliability
from helpers.statistics.resampling import correlated, drawn_with_images
from helpers.statistics.tables import TOTAL, pools


@style()
def measure_against_gap(table: pd.DataFrame, measure: str, hue: str = "architecture") -> Figure:
    """Draw a measure against the gap, pooled and per level of ``hue``, with Pearson's r, least-squares line and its 95 % band.

    The band is the formula of ordinary least squares, see ``fit_band``; it is no bootstrap. Beside IoU and IoU-B stands the floor: what a
    map that covers the whole image would have.

    Args:
        table: gap (fraction), ``measure`` and ``hue``, and for IoU whole_image_floor where it is known; models where the measure is
            undefined are left out and counted.
        measure: the column on the horizontal axis.
        hue: the column whose levels get a panel, a colour and a marker each.
    """
    defined = np.isfinite(table[[measure, "gap"]].astype(float)).all(axis=1) & table[hue].notna()
    kept, left_out = table[defined], int((~defined).sum())
    if len(kept) < 3:
        return nothing_to_draw(f"{len(kept)} models with a defined {_NAMES.get(measure, measure)}: too few to draw against the gap.")
    levels = levels_in_order(kept[hue])
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
        _draw_floor(ax, kept, measure)
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


def _draw_floor(ax: Axes, table: pd.DataFrame, measure: str) -> None:
    """Draw the IoU of a map that covers the whole image as a line, where it is known."""
    if measure in _METHODS and "whole_image_floor" in table and table["whole_image_floor"].notna().any():
        floor = table["whole_image_floor"].mean()
        ax.axvline(floor, color="black", linewidth=1, linestyle="--", label=f"the whole image: {floor:.3f}")


def _pearson_in_words(x: pd.Series, y: pd.Series) -> str:
    if len(x) < 3 or x.nunique() < 2 or y.nunique() < 2:
        return "r undefined"
    return f"r = {scipy.stats.pearsonr(x, y).statistic:.2f}"


@style()
def correlation_by_threshold(table: pd.DataFrame) -> Figure:
    """Draw Pearson's r with its interval and n by accuracy threshold, a panel per measure; the paper's values hollow beside ours.

    Args:
        table: architecture, threshold (fraction), measure, n, pearson_r, ci_low, ci_high, published_r.
    """
    if not table["pearson_r"].notna().any():
        return nothing_to_draw("No architecture has enough models above any threshold for a correlation.")
    measures, names = list(table["measure"].unique()), pools(table)
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
            for place, models in zip(x, rows["n"], strict=True):
                turned = {"rotation": 90, "fontsize": "xx-small"} if len(names) > 1 else {"fontsize": "small"}
                ax.text(place, 1.1, f"n={models:.0f}", ha="center", va="bottom", **turned)
        ax.axhline(0, color="black", linewidth=0.8)
        ax.set_xticks(sorted(100 * table["threshold"].unique()))
        ax.grid(axis="x", visible=False)
        ax.set(xlabel="training accuracy above (%)", title=_NAMES.get(measure, measure), ylim=(-1.05, 1.55), yticks=np.linspace(-1, 1, 9))
    axes[0, 0].set_ylabel("Pearson r with the gap")
    axes[0, -1].legend(title="filled: here\nhollow: Du et al. 2024", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


_COUNTS = ["images_scored", "images_without_overlap", "images_with_empty_map"]

SHOWN_COLUMNS = [
    *("model_id", "architecture", "train_accuracy", "test_accuracy", "gap"),
    *("iou", "iou_b", "whole_image_floor", "iou_above_shuffled", "energy_in_box", "pointing_game", "area_matched_iou"),
    *("pixel_average_precision", "mask_area", *_COUNTS, "left_out"),
]

_METHODS = {"iou": "IoU", "iou_b": "IoU-B"}


def models_analysed(catalogue: pd.DataFrame) -> str:
    """Sentence on how many models are scored and how many of them enter the analysis."""
    scored = int((catalogue["snapshot"] != "none").sum())
    kept = int((catalogue["left_out"] == "").sum())
    cells = catalogue.loc[catalogue["left_out"] == "", "cell"].nunique()
    return f"{count(scored, 'model')} are scored; **{kept:,}** of them, from {count(cells, 'hyperparameter cell')}, enter the analysis."


def say_scoring_set(scored_on: ScoringSet) -> str:
    """Sentence on how many images every model is scored on, of how many that could have been taken."""
    chosen = len(scored_on.rows)
    taken = "all" if chosen == scored_on.shared else f"the first {chosen:,} of one order"
    return (
        f"Every model is scored on the same images: of {count(scored_on.shared, 'training image')} that all runs were fitted to, {taken}."
    )


def scores_found(table: pd.DataFrame) -> str:
    """Sentence on what range the scores take, and how many images could not be scored."""
    scored = table.dropna(subset="iou")
    if not len(scored):
        return "No model has a defined score."
    unseen = int(scored["images_without_overlap"].sum())
    empty = scored["images_with_empty_map"].sum() / max(1, scored["images_scored"].sum())
    floor, above = scored["whole_image_floor"].mean(), int((scored["iou"] > scored["whole_image_floor"]).sum())
    return (
        f"IoU from {scored['iou'].min():.3f} to {scored['iou'].max():.3f}, IoU-B from {scored['iou_b'].min():.3f} to "
        f"{scored['iou_b'].max():.3f} over {count(len(scored), 'model')}. A map that covers the whole image has {floor:.3f}; "
        f"{above} of the models lie above. The mask covers {percent(scored['mask_area'].median())} of an image (median). "
        f"{count(unseen, 'image score')} undefined and left out; "
        f"{percent(empty)} of the maps have no pixel above the threshold and count as 0."
    )


def model_title(model: pd.Series) -> str:
    """Name of a model by what a reader wants to know of it."""
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


def say_overlays(models: pd.DataFrame, overlays: Overlays) -> str:
    """Compare the mean IoU of the models on the pictured images; few images, so no claim is made."""
    means = np.nanmean(overlays.ious.numpy(), axis=1)
    each = [f"{points(gap)}: {mean:.3f}" for gap, mean in zip(models["gap"], means, strict=True)]
    return f"Mean IoU on these {count(overlays.ious.shape[1], 'image')} by gap: {listed(each)}. A few images illustrate and prove nothing."


def interval_says(low: float, high: float) -> str:
    """What a 95 % interval of a correlation allows: negative is what the paper expects of IoU."""
    if not (np.isfinite(low) and np.isfinite(high)):
        return "there are too few models for an interval, so nothing can be said"
    if high < 0:
        return "the interval lies below 0, as the paper expects: a larger IoU goes with a smaller gap"
    if low > 0:
        return "the interval lies above 0, against the paper: a larger IoU goes with a larger gap"
    return "the interval contains 0: whether IoU tells the gap here cannot be said"


def iou_against_gap(
    kept: pd.DataFrame, resamples: int, seed: int, reliable: float = np.nan, images: Mapping[str, ArrayLike] | None = None
) -> str:
    """Sentence on the pooled correlation of IoU with the gap, its interval, the reliability of IoU where known, and what that allows.

    Args:
        kept: models that enter the analysis.
        resamples: of the interval.
        seed: of the resampling.
        reliable: reliability of IoU; NaN where it is not known.
        images: values of single images of the models, see ``resampling.drawn_with_images``.
    """
    drawn = drawn_with_images(kept, ["iou"], images, resamples, seed)
    (row,) = correlated(kept, ["iou"], draws=resamples, seed=seed, drawn=drawn).to_dict("records")
    r, low, high = (row[name] for name in ("pearson_r", "ci_low", "ci_high"))
    if not np.isfinite(r):
        return f"With {count(len(kept), 'model')} the correlation is undefined."
    spread = f"95 % interval {low:.3f} to {high:.3f}" if np.isfinite(low) and np.isfinite(high) else "no interval"
    spread += f"; reliability of IoU {reliable:.2f}" if np.isfinite(reliable) else ""
    return f"Pooled over {count(len(kept), 'model')}: **r = {r:.3f}** ({spread}); {interval_says(low, high)}."


def _pooled(table: pd.DataFrame, measure: str) -> pd.DataFrame:
    return table[(table["architecture"] == TOTAL) & (table["measure"] == measure)].sort_values("threshold")


def say_correlations(table3: pd.DataFrame) -> str:
    """Sentence on how ours stands to the paper's at its lowest threshold, measure by measure, and how many cells agree in sign."""
    parts = []
    for measure, name in _METHODS.items():
        row = _pooled(table3, measure).iloc[0]
        if np.isfinite(row["pearson_r"]):
            theirs = (
                f"the paper's {row['published_r']:.3f}" if np.isfinite(row["published_r"]) else "the paper gives none at this threshold"
            )
            parts.append(
                f"{name}: r = {row['pearson_r']:.3f} ({row['ci_low']:.3f} to {row['ci_high']:.3f}, n = {int(row['n'])}"
                f"{say_reliable(row)}), {theirs}"
            )
    defined = table3.dropna(subset=["ci_low", "ci_high"])
    negative = int((defined["ci_high"] < 0).sum())
    positive = int((defined["ci_low"] > 0).sum())
    return (
        f"Pooled, above {percent(table3['threshold'].min())} training accuracy: {'; '.join(parts) or 'no correlation is defined'}. Of "
        f"{count(len(table3), 'cell')} of the table, {negative} have an interval below 0, {positive} above 0, "
        f"{len(defined) - negative - positive} contain 0, and {len(table3) - len(defined)} have no interval for want of models or cells. "
        "The images and networks are not the paper's unless the study is imagenet20, so a difference is no failed replication."
    )


def say_accuracy_thresholds(table3: pd.DataFrame) -> str:
    """Sentence on whether the pooled correlation of IoU changes its sign with the accuracy threshold."""
    rows = _pooled(table3, "iou").dropna(subset="pearson_r")
    if not len(rows):
        return "No threshold leaves enough models for a correlation."
    each = [f"{row.pearson_r:.3f} above {row.threshold:.0%} (n = {int(row.n)})" for row in rows.itertuples()]
    clear = (rows["ci_high"] < 0).all() or (rows["ci_low"] > 0).all()
    stable = "every interval lies on the same side of 0" if clear else "the intervals do not all lie on one side of 0"
    return f"Pooled r of IoU: {listed(each)}; {stable if len(rows) > 1 else 'only one threshold has enough models'}."


def say_selection(table4: pd.DataFrame) -> str:
    """Sentence on how often the larger IoU picks the better of two models, against a coin."""
    row = _pooled(table4, "iou").iloc[0]
    if not np.isfinite(row["accuracy"]):
        return "There is no pair of models to choose from."
    low, high = row["ci_low"], row["ci_high"]
    coin = "better than a coin" if low > 0.5 else "worse than a coin" if high < 0.5 else "not to be told from a coin"
    if not np.isfinite(low):
        coin = "with too few models for an interval"
    pairs, theirs = int(row["concordant"] + row["discordant"]), row["published_accuracy"]
    published = f"; the paper reports {percent(theirs)}" if np.isfinite(theirs) else ""
    return (
        f"Of {count(pairs, 'pair')} (and {count(int(row['ties']), 'tie')}), the larger IoU picks the smaller gap in "
        f"**{percent(row['accuracy'])}** (95 % interval {percent(low)} to {percent(high)}): {coin}{published}."
    )


_OVERLAP = "cividis"
_MAP = {"cmap": "viridis", "vmin": 0, "vmax": 1}


@style()
def cam_steps(steps: Steps, title: str) -> Figure:
    """Draw how a model comes to its IoU on one image, from left to right (Du et al. 2024, Figs 1 and 3)."""
    figure, axes = plt.subplots(1, 5, figsize=(12, 3), layout="constrained")
    names = ("image and box", "map of the last stage", "enlarged", "mask and its rectangle", "overlap with the box")
    for ax, name in zip(axes, names, strict=True):
        ax.set_title(name, fontsize="small")
    _show(axes[0], steps.image)
    _boxes(axes[0], steps.boxes)
    _show(axes[1], steps.heat_map, **_MAP)
    _show(axes[2], steps.image)
    _show(axes[2], steps.enlarged, alpha=0.55, **_MAP)
    _show(axes[3], steps.image)
    _show(axes[3], np.where(steps.mask, np.nan, 0.0), cmap="gray", vmin=0, vmax=1, alpha=0.75)
    _boxes(axes[3], steps.boxes)
    _boxes(axes[3], steps.cam_box, **_CAM_BOX)
    # 0 neither, 1 mask only, 2 box only, 3 both: shades from dark to light, which differ in print as well.
    _show(axes[4], steps.mask.int() + 2 * steps.box_mask.int(), cmap=_OVERLAP, vmin=0, vmax=3)
    axes[4].set_title(f"both / either: IoU {steps.iou:.2f}\nrectangle: IoU-B {steps.iou_b:.2f}", fontsize="small")
    shades = plt.get_cmap(_OVERLAP)
    patches = [Patch(color=shades(value / 3), label=label) for value, label in enumerate(("neither", "mask only", "box only", "both"))]
    figure.legend(handles=patches, loc="outside lower right", ncols=4, fontsize="small", frameon=False)
    figure.suptitle(title, fontsize="medium")
    return figure


@style()
def cam_overlays(overlays: Overlays, row_titles: Sequence[str], column_titles: Sequence[str]) -> Figure:
    """Draw where several models look on the same images: a row per model (Du et al. 2024, Fig. 2)."""
    rows, columns = overlays.ious.shape
    if not rows * columns:
        return nothing_to_draw("There is no model or no image to look at.")
    figure, axes = plt.subplots(rows, columns, figsize=(1.2 + 1.9 * columns, 2.1 * rows), layout="constrained", squeeze=False)
    for row in range(rows):
        for column in range(columns):
            ax = axes[row, column]
            _show(ax, overlays.images[row, column])
            _show(ax, overlays.heat[row, column], alpha=0.5, **_MAP)
            _boxes(ax, overlays.boxes[row, column])
            name = f"{fill(column_titles[column], 22)}\n" if row == 0 else ""
            ax.set_title(f"{name}IoU {overlays.ious[row, column]:.2f}", fontsize="small")
        title = fill(row_titles[row], 18)
        axes[row, 0].text(-0.08, 0.5, title, transform=axes[row, 0].transAxes, rotation=90, ha="right", va="center", fontsize="small")
    return figure


RELIABLE = 0.95  # reliability
ENOUGH_COLUMNS = ["measure", "title", "images", "reliability", "images_enough"]


def images_enough(values: Mapping[str, ArrayLike]) -> pd.DataFrame:
    """Ask of each measure that is a mean over images how many would have given a reliability of 0.95.

    The reliability on all images comes from random halves of them, see ``reliability.reliability``; the number from it by the formula of
    Spearman and Brown.

    Args:
        values: by measure, (models, images), see ``single_images.image_values``; what is no ranked measure is left out.

    Returns:
        ``ENOUGH_COLUMNS``, in the order of the list of measures; images_enough is NaN where the reliability is not between 0 and 1.
    """
    rows = []
    for name, item in registry.ranked().items():
        if name in values:
            table = np.asarray(values[name], dtype=float)
            found, images = reliability(table), table.shape[1]
            rows.append(dict(zip(ENOUGH_COLUMNS, [name, item.title, images, found, images_needed(found, images, RELIABLE)], strict=True)))
    return pd.DataFrame(rows, columns=ENOUGH_COLUMNS)


def say_images_enough(table: pd.DataFrame) -> str:
    """Sentence on the measures for which fewer images would have been enough, and those that need more than were scored."""
    known = table.dropna(subset="images_enough")
    if not len(known):
        return "No measure has a reliability by which a number of images could be told."
    images = int(known["images"].iloc[0])
    few, many = known[known["images_enough"] <= images], known[known["images_enough"] > images]
    parts = [f"{row.title} {row.images_enough:,.0f}" for row in few.itertuples()]
    text = f"For a reliability of {RELIABLE:g} these numbers of images would have been enough: {', '.join(parts)}. " if parts else ""
    more = [f"{row.title} (reliability {row.reliability:.2f})" for row in many.itertuples()]
    return text + (f"The {count(images, 'image')} scored are not enough for {', '.join(more)}." if more else "")
