"""What notebook 05 shows: whether the correlation of the overlap with the gap survives another choice."""

from collections.abc import Mapping, Sequence
from textwrap import fill

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from helpers.report.style import count, interval, listed, nothing_to_draw, percent, style
from helpers.statistics import hyperparameters
from helpers.statistics.correlations import pearson
from helpers.statistics.tables import TOTAL
from helpers.statistics.verdicts import NEGLIGIBLE

_MARKERS = ("o", "s", "^", "D", "v", "P")
_R = "Pearson r with the gap"
_METHODS = {"grad_cam": "Grad-CAM", "grad_cam_plus_plus": "Grad-CAM++", "smooth_grad_cam_plus_plus": "Smooth Grad-CAM++"}
_METHODS |= {"layer_cam": "Layer-CAM", "eigen_cam": "Eigen-CAM", "score_cam": "Score-CAM", "guided_grad_cam": "guided Grad-CAM"}
_METHODS |= {"input_x_gradient": "input × gradient", "deep_lift": "DeepLift"}


@style()
def correlations_figure(table: pd.DataFrame, labels: Sequence[str]) -> Figure:
    """Draw one correlation per row with its interval and n; the paper's value hollow where there is one.

    Args:
        table: n, pearson_r, ci_low, ci_high, and published_r where the paper has values.
        labels: one per row.
    """
    if not table["pearson_r"].notna().any():
        return nothing_to_draw("No correlation is defined: too few models, or a constant.")
    figure, ax = plt.subplots(figsize=(8, 1.3 + 0.36 * len(table)), layout="constrained")
    at = np.arange(len(table))
    ax.axvline(0, color="black", linewidth=0.8)
    ax.hlines(at, table["ci_low"], table["ci_high"], color="C0", linewidth=2.5, alpha=0.5)
    ax.plot(table["pearson_r"], at, "o", color="C0", label="here, 95 % interval")
    if "published_r" in table and table["published_r"].notna().any():
        ax.plot(table["published_r"], at, "D", color="C1", fillstyle="none", label="Du et al. 2024")
    ax.set_yticks(at, [f"{label}  (n = {int(n)})" for label, n in zip(labels, table["n"], strict=True)], fontsize="small")
    ax.set(xlim=(-1.05, 1.05), xlabel=_R, ylim=(len(table) - 0.5, -0.5))
    ax.grid(axis="y", visible=False)
    figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    return figure


@style()
def threshold_figure(table: pd.DataFrame, paper: float) -> Figure:
    """Draw r by the threshold of the map, a line per way to compute it; the band is the interval of the first.

    Args:
        table: way (a label), threshold, pearson_r, ci_low, ci_high.
        paper: the threshold that the paper takes, marked.
    """
    if not table["pearson_r"].notna().any():
        return nothing_to_draw("No correlation is defined at any threshold: too few models, or a constant.")
    figure, ax = plt.subplots(figsize=(8, 4.2), layout="constrained")
    for number, (way, rows) in enumerate(table.groupby("way", sort=False)):
        rows = rows.sort_values("threshold")
        options = {"color": f"C{number % 10}", "marker": _MARKERS[number % 6], "markersize": 4, "linestyle": ("-", "--", ":")[number % 3]}
        ax.plot(rows["threshold"], rows["pearson_r"], label=fill(str(way), 34), **options)
        if not number:
            ax.fill_between(rows["threshold"], rows["ci_low"], rows["ci_high"], color="C0", alpha=0.15, linewidth=0)
    ax.axhline(0, color="black", linewidth=0.8)
    ax.axvline(paper, color="black", linewidth=0.8, linestyle=":")
    ax.annotate(f"paper: {paper:g}", (paper, 1.03), xytext=(3, 0), textcoords="offset points", fontsize="small", va="top")
    ax.set(xlabel="threshold of the normalised map", ylabel=_R, ylim=(-1.05, 1.05), xlim=(0, 1))
    ax.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, title="band: interval of the first")
    return figure


@style()
def masks(images: Tensor, made: Tensor, annotated: Tensor, titles: Sequence[str]) -> Figure:
    """Draw images, the masks that a machine made, and the annotated boxes below each other, a column per image (the paper's Figure 6).

    Args:
        images: (N, 3, S, S) uint8.
        made: (N, S, S) bool.
        annotated: (N, S, S) bool.
        titles: one per image.
    """
    if not len(images):
        return nothing_to_draw("There is no mask to draw.")
    figure, axes = plt.subplots(3, len(images), figsize=(1 + 1.7 * len(images), 5.4), layout="constrained", squeeze=False)
    for column, title in enumerate(titles):
        pictures = (images[column].permute(1, 2, 0), made[column], annotated[column])
        for ax, picture in zip(axes[:, column], pictures, strict=True):
            ax.imshow(picture.numpy(), cmap="gray", vmin=0, vmax=1 if picture.ndim == 2 else None, interpolation="nearest")
            ax.set(xticks=[], yticks=[])
            ax.grid(visible=False)
        axes[0, column].set_title(title, fontsize="small")
    for ax, label in zip(axes[:, 0], ("image", "mask of the machine", "annotated boxes"), strict=True):
        ax.set_ylabel(label, fontsize="small")
    return figure


@style()
def pooled_against_within(table: pd.DataFrame, titles: Mapping[str, str], measure: str = "iou", most: int = 25) -> Figure:
    """Draw the pooled correlation beside what is left with hyperparameters held fixed: of one measure by level, and of all measures.

    Args:
        table: see ``hyperparameters.confounders``.
        titles: measure to label.
        measure: the one that is shown level by level.
        most: measures on the right at most, the strongest when pooled.
    """
    own = table[table["measure"] == measure]
    within = own[own["kind"] == hyperparameters.WITHIN]
    pooled = table[table["kind"] == hyperparameters.POOLED].set_index("measure")["r"]
    if not len(within) or not np.isfinite(pooled.get(measure, np.nan)):
        return nothing_to_draw("The pooled correlation is undefined, or no hyperparameter has two levels: nothing to hold fixed.")
    given = own[own["kind"].isin([hyperparameters.GIVEN_ALL, hyperparameters.GIVEN_ONE])]
    rows = pd.concat(
        [own[own["kind"] == hyperparameters.POOLED], given[given["kind"] == hyperparameters.GIVEN_ALL], *_blocks(within, given)]
    )
    order = pooled.abs().nlargest(most).index
    shown = len(order)
    height = 1.6 + 0.27 * max(len(rows), len(order))
    figure, (left, right) = plt.subplots(1, 2, figsize=(12.5, height), layout="constrained")
    _each_kind(left, rows, titles.get(measure, measure))
    fixed = table[table["kind"] == hyperparameters.GIVEN_ALL].set_index("measure")["r"]
    at = np.arange(len(order))
    right.hlines(at, pooled.reindex(order), fixed.reindex(order), color="grey", linewidth=1)
    right.plot(pooled.reindex(order), at, "o", color="C0", label="pooled")
    right.plot(fixed.reindex(order), at, "D", color="C1", fillstyle="none", label="given all hyperparameters")
    right.set_yticks(at, [titles.get(name, name) for name in order], fontsize="x-small")
    right.set(
        ylim=(len(order) - 0.5, -0.5),
        title=f"{shown} of {len(pooled)} measures, the strongest when pooled" if shown < len(pooled) else "all measures",
    )
    figure.legend(*right.get_legend_handles_labels(), loc="outside upper right", ncols=2, fontsize="small", frameon=False)
    for ax in (left, right):
        ax.axvline(0, color="black", linewidth=0.8)
        ax.set(xlim=(-1.08, 1.08), xticks=(-1, -0.5, 0, 0.5, 1))
        ax.grid(axis="y", visible=False)
    figure.supxlabel(_R, fontsize="medium")
    return figure


def _blocks(within: pd.DataFrame, given: pd.DataFrame) -> list[pd.DataFrame]:
    """Put the partial correlation given one hyperparameter on top of its levels."""
    return [
        pd.concat([given[given["hyperparameter"] == axis], levels[levels["n"] > 0]])
        for axis, levels in within.groupby("hyperparameter", sort=False)
    ]


def _each_kind(ax: Axes, rows: pd.DataFrame, title: str) -> None:
    kinds = {hyperparameters.POOLED: ("o", "C0"), hyperparameters.GIVEN_ALL: ("D", "C1"), hyperparameters.GIVEN_ONE: ("D", "C2")}
    kinds[hyperparameters.WITHIN] = ("s", "C3")
    at = np.arange(len(rows))
    for kind, (marker, colour) in kinds.items():
        chosen = (rows["kind"] == kind).to_numpy()
        part = rows[chosen]
        ax.hlines(at[chosen], part["ci_low"], part["ci_high"], color=colour, linewidth=2.5, alpha=0.45)
        ax.plot(part["r"], at[chosen], marker, color=colour, fillstyle="none" if marker == "D" else "full", label=kind)
    labels = [_label(row) for _, row in rows.iterrows()]
    ax.set_yticks(at, [f"{label}  (n = {int(n)})" for label, n in zip(labels, rows["n"], strict=True)], fontsize="x-small")
    ax.set(ylim=(len(rows) - 0.5, -0.5), title=title)


def _label(row: pd.Series) -> str:
    if row["kind"] == hyperparameters.WITHIN:
        return f"{row['hyperparameter']} = {row['level']}"
    return {hyperparameters.POOLED: "pooled", hyperparameters.GIVEN_ALL: "given all hyperparameters"}.get(
        row["kind"], f"given {row['hyperparameter']}"
    )


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


def distinct(table: pd.DataFrame) -> pd.DataFrame:
    """Rows whose map is not, by theory, that of another row on the same images: only these are verdicts of their own."""
    return table[table["same_map_as"] == ""]


def pictured(table: pd.DataFrame) -> pd.DataFrame:
    """Rows that stand beside the paper's, and the distinct maps of all architectures together, at the lowest training accuracy."""
    lowest = table[table["threshold"] == table["threshold"].min()]
    beside = lowest[(lowest["architecture"] != TOTAL) & lowest["published_r"].notna()]
    return pd.concat([beside, distinct(lowest[lowest["architecture"] == TOTAL])])


def way(row: pd.Series) -> str:
    """Name of a way to compute a map, for a reader."""
    name = _METHODS.get(row["method"], str(row["method"]).replace("_", " "))
    return f"{name} as torchcam computes it" if row.get("formula") == "torchcam" else name


def ways(table: pd.DataFrame) -> list[str]:
    """Name of each row: architecture, way to compute a map, and on how many images per model."""
    places, labels = table["architecture"].replace(TOTAL, "all"), []
    for place, (_, row) in zip(places, table.iterrows(), strict=True):
        twin = f" (the map of {closed_form_name(row['same_map_as'])})" if row["same_map_as"] else ""
        labels.append(f"{place}, {way(row)}{twin}, {row['images']:,.0f} images")
    return labels


def say_cam_methods(table: pd.DataFrame) -> str:
    """Sentence on how far r depends on the CAM method, and which methods coincide here."""
    pooled = lowest_pooled(table)
    rows = distinct(pooled)
    defined = rows.dropna(subset="pearson_r")
    if not len(defined):
        return "No CAM method has a defined correlation with the gap: too few models."
    compared = defined[defined["images"] == defined["images"].min()]
    low, high = compared.loc[compared["pearson_r"].idxmin()], compared.loc[compared["pearson_r"].idxmax()]
    text = (
        f"On the same {low['images']:,.0f} images r runs from {low['pearson_r']:.2f} ({way(low)}) to {high['pearson_r']:.2f} "
        f"({way(high)}). {signs(compared, 'map')}."
    )
    twins = [f"{way(row)} and {closed_form_name(row['same_map_as'])}" for _, row in pooled[pooled["same_map_as"] != ""].iterrows()]
    why = "noise does not change the gradient of a head that averages and adds"
    text += f" {'; '.join(twins)} are one map, as theory has it ({why}), and one verdict; so are CAM and Grad-CAM." if twins else ""
    for _, row in defined[defined["images"] > low["images"]].iterrows():
        text += f" On all {row['images']:,.0f} images {way(row)} has {row['pearson_r']:.2f}."
    theirs = table[table["threshold"] == table["threshold"].min()].dropna(subset=["published_r", "pearson_r"])
    theirs = theirs.sort_values("images", kind="stable").drop_duplicates(["method", "formula"])
    each = [f"{way(row)} {row['pearson_r']:.2f} ({row['published_r']:.2f})" for _, row in theirs.iterrows()]
    return text + (f" On ResNet-18, here and in brackets in the paper: {', '.join(each)}." if each else "")


def closed_form_name(key: str) -> str:
    """Name of a closed form, "method (formula)", for a reader."""
    method, _, formula = key.rstrip(")").partition(" (")
    return way(pd.Series({"method": method, "formula": formula}))


def say_random(table: pd.DataFrame, networks: pd.DataFrame) -> str:
    """Sentence on whether the overlap of untrained networks tells anything of their gap, as it must not."""
    row = table[table["architecture"] == TOTAL].iloc[0]
    if not np.isfinite(row["pearson_r"]):
        return "The correlation of untrained networks is undefined: too few networks, or a constant."
    needed, around = int(np.ceil((1.96 / np.arctanh(NEGLIGIBLE)) ** 2 + 3)), f"within ±{NEGLIGIBLE:g}"
    verdict = {
        "nothing": f"the whole interval lies {around}: without learning the overlap tells nothing of the gap, as it must",
        "something": "the interval leaves 0 out: an overlap without learning tells the gap, which a valid measure must not",
        "cannot tell": f"the interval is neither {around} nor clear of 0, so nothing is shown; even an r of 0 takes {needed} networks",
    }[row["tells"]]
    each = table[table["architecture"] != TOTAL]
    alone = [f"{one.architecture} {one.published_r:.2f} ({one.published_tells})" for one in each.dropna(subset="published_r").itertuples()]
    theirs = f" By the same rule the paper's {row['published_r']:.2f} pooled tells {row['published_tells']}"
    return (
        f"{count(len(networks), 'untrained network')} on {count(int(row['images']), 'training image')}, training accuracy "
        f"{percent(networks['train_accuracy'].mean())} on average, IoU {networks['iou'].min():.3f} to {networks['iou'].max():.3f}: "
        f"r = {with_interval(row)}; {verdict}.{theirs}" + (f"; each architecture alone: {', '.join(alone)}." if alone else ".")
    )


def say_machine_masks(quality: pd.DataFrame) -> str:
    """Sentence on how each provider's masks stand to the boxes, beside a mask over the whole image; one that is worse is called that.

    Args:
        quality: provider and what ``masks.mask_quality`` gives, one row each.
    """
    parts = []
    for row in quality.itertuples():
        name = row.provider.replace("_", " ")
        if not np.isfinite(row.box_iou):
            parts.append(f"{name} cannot be compared, for no image has a box")
            continue
        word = "**below the floor**, so worse than marking every pixel" if row.box_iou < row.whole_image_floor else "above the floor"
        parts.append(f"{name} {row.box_iou:.3f}, {word}" + (f", {count(row.dropped, 'empty mask')} dropped" if row.dropped else ""))
    if not parts:
        return "No provider of masks is chosen."
    first = quality.iloc[0]
    return f"Mean IoU with the boxes, where marking the whole image gives {first['whole_image_floor']:.3f} (the floor): {'; '.join(parts)}."


def say_examples(ious: list[float]) -> str:
    """Sentence on what range the pictured masks cover."""
    if not ious:
        return "No mask can be compared with a box."
    return f"From the best mask to the worst, evenly spaced by rank: IoU with the boxes {', '.join(f'{value:.2f}' for value in ious)}."


def say_annotations(table: pd.DataFrame) -> str:
    """Sentence on what r is when a machine made the masks, beside the annotated boxes."""
    rows = lowest_pooled(table).set_index("method")
    if len(rows) < 2:
        return "There are no masks of a machine."
    each = [f"{name.replace('_', ' ')} {with_interval(row)}" for name, row in rows.iterrows()]
    theirs = table.dropna(subset="published_r")
    theirs = theirs[theirs["threshold"] == theirs["threshold"].min()]["published_r"].unique()
    paper = f"; the paper's ResNet-18: {theirs[0]:.2f} with boxes and {theirs[1]:.2f} with saliency masks" if len(theirs) == 2 else ""
    return f"Pooled r: {'; '.join(each)}{paper}."


def say_map_thresholds(table: pd.DataFrame, paper: float) -> str:
    """Sentence on the thresholds of the map over which r keeps its sign, and where it is strongest; the table of one way."""
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


def say_choices(table: pd.DataFrame, labels: list[str], noun: str) -> str:
    """Sentence with r of every choice, for a table of a few rows."""
    if not table["pearson_r"].notna().any():
        return f"No {noun} has a defined correlation with the gap: too few models."
    each = [f"{label}: {with_interval(row)}" for label, (_, row) in zip(labels, table.iterrows(), strict=True)]
    return f"r by {noun}: {'; '.join(each)}. {signs(table, 'row')}."


def say_repeats(table: pd.DataFrame) -> str:
    """Sentences on whether r depends on snapshot and repeat, and whether a change of IoU within a run goes with one of the gap."""
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


def say_moments(table: pd.DataFrame, titles: Mapping[str, str]) -> str:
    """Sentence with r of every measure at every moment, see ``tables.by_moment``."""
    if not table["pearson_r"].notna().any():
        return "No measure has a defined correlation with the gap at one moment: too few models."
    each = [
        f"{titles.get(measure, measure)} {' and '.join(f'{row.level} {with_interval(row._asdict())}' for row in rows.itertuples())}"
        for measure, rows in table.groupby("measure", sort=False)
    ]
    return f"r with the gap by the moment of the snapshot: {'; '.join(each)}."


def right_and_wrong(single: pd.DataFrame) -> str:
    """Sentence on whether an image that is classified right has the larger overlap."""
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
