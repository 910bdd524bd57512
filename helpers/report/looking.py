"""Figures and sentences of notebook 09, the experiment on where networks look."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from helpers.data.boxes import box_masks, box_shares
from helpers.data.images import ImageSet
from helpers.report.cams import draw_boxes
from helpers.report.style import count
from helpers.statistics import pairs
from helpers.training import looking

TITLES = {
    "gap": "gap (points)",
    "gap_at_equal_training_accuracy": "gap at equal\ntraining accuracy (points)",
    "test_accuracy": "test accuracy (points)",
    "accuracy_swapped": "accuracy on swapped\nbackgrounds (points)",
}
_MAP_SIDE = 8  # places along a side of the drawn map
_IMAGES = 3  # number of images drawn
_PANELS_PER_LINE = 2  # with more, text would be small on a page


def arms_figure(train: ImageSet, levels: Sequence[str]) -> Figure | None:
    """Draw where each arm of training pulls the maps, on some training images.

    Args:
        train: training images with boxes.
        levels: of the hyperparameter ``looking``; swapped backgrounds are left out,
            since they change images and put no penalty on maps.

    Returns:
        A row per image: the image with its boxes, then a panel per arm, bright where
        the arm wants the map. None without pixels or arms.
    """
    arms = [looking.arm_and_strength(level)[0] for level in levels]
    arms = [arm for arm in dict.fromkeys(arms) if arm in looking.PENALTIES]
    if not train.has_pixels or not train.has_boxes or not arms:
        return None
    size = train.images.shape[-1]
    boxed = train.boxes.flatten(1).any(1).numpy().nonzero()[0]
    others = looking.other_images(len(train), np.random.default_rng(0))
    rows = boxed[np.linspace(0, len(boxed) - 1, _IMAGES).astype(int)]
    figure, axes = plt.subplots(
        len(rows),
        1 + len(arms),
        figsize=(2.2 * (1 + len(arms)), 2.2 * len(rows)),
        squeeze=False,
    )
    for row, panels in zip(rows, axes, strict=True):
        panels[0].imshow(train.images[row].permute(1, 2, 0).numpy())
        draw_boxes(panels[0], train.boxes[row])
        for arm, panel in zip(arms, panels[1:], strict=True):
            # A control takes the boxes of another image.
            box_row = others[row] if arm in looking.CONTROLS.values() else row
            mask = box_masks(train.boxes[box_row : box_row + 1], size)
            if arm == "map_out_of_box":
                mask = ~mask
            target = box_shares(mask, _MAP_SIDE, _MAP_SIDE)[0]
            panel.imshow(target.numpy(), cmap="viridis", vmin=0, vmax=1)
            panel.set_title(arm.replace("_", " "), fontsize="small")
        panels[0].set_title("image and box", fontsize="small")
        for panel in panels:
            panel.set_axis_off()
    return figure


def differences_figure(
    differences: pd.DataFrame, outcomes: Sequence[str]
) -> Figure | None:
    """Draw paired differences with their intervals, a panel per outcome.

    Args:
        differences: of ``pairs.paired_table``.
        outcomes: of ``TITLES``.

    Returns:
        A row per contrast and start. The interval is drawn for at least
        ``pairs.FEWEST_PAIRS`` pairs; that of two would be far wider than all others.
        None without a pair.
    """
    present = differences[differences["pairs"] > 0]
    if present.empty:
        return None
    keys = present[["arm", "control", "start"]].drop_duplicates()
    contrasts = (keys["arm"] + " less " + keys["control"]).str.replace("_", " ")
    labels = contrasts.where(keys["start"] == "all", "    " + keys["start"])
    heights = np.arange(len(keys))
    lines = math.ceil(len(outcomes) / _PANELS_PER_LINE)
    figure, panels = plt.subplots(
        lines,
        _PANELS_PER_LINE,
        figsize=(9, lines * (1.2 + 0.26 * len(keys))),
        sharey=True,
        squeeze=False,
    )
    for ax in panels.flat[len(outcomes) :]:
        ax.set_axis_off()
    for outcome, ax in zip(outcomes, panels.flat, strict=False):
        rows = keys.merge(present[present["outcome"] == outcome], how="left")
        colours = np.where(rows["start"] == "all", "black", "0.55")
        ax.axvline(0, color="0.6", linewidth=1)
        ends = rows[["low", "high"]].where(rows["pairs"] >= pairs.FEWEST_PAIRS)
        ax.hlines(heights, ends["low"], ends["high"], color=colours, linewidth=1.8)
        ax.scatter(rows["difference"], heights, color=colours, s=24, zorder=3)
        ax.set_xlabel(TITLES[outcome])
        ax.grid(axis="y", visible=False)
    panels[0][0].set_yticks(heights, labels)
    panels[0][0].set_ylim(len(keys) - 0.4, -0.6)
    return figure


def draw_slope(ax: Axes, networks: pd.DataFrame, slope: float, study: str) -> None:
    """Draw the line on which networks would lie if overlap alone lowered the gap.

    Args:
        ax: with the networks; its limits stay, and the line may leave them.
        networks: one row each, with looking, train_area_matched_iou and gap (points).
        slope: points of gap per unit of overlap; NaN draws nothing.
        study: that the slope is of.
    """
    ax.set_ylim(ax.get_ylim())
    plain = networks[networks["looking"] == looking.PLAIN]
    if not np.isfinite(slope) or plain.empty:
        return
    overlap = networks["train_area_matched_iou"]
    ends = np.array([overlap.min(), overlap.max()])
    away = ends - plain["train_area_matched_iou"].mean()
    heights = plain["gap"].mean() + slope * away
    style = {"color": "0.4", "linestyle": "--", "label": f"slope of {study}"}
    ax.plot(ends, heights, **style)


def answer(judged: pd.DataFrame, networks: int) -> str:
    """The answer of the experiment in plain words, a sentence per primary claim.

    Args:
        judged: of ``pairs.paired_claims``.
        networks: their number.

    Returns:
        Markdown.
    """
    primary = judged[judged["primary"]]
    if primary.empty:
        return "This study states no claim on where networks are trained to look."
    sentences = [f"**{count(networks, 'network')}.**"]
    for row in primary.itertuples():
        where = f"*{row.claim}*: **{row.verdict}**"
        if row.pairs == 0:
            sentences.append(f"{where}; no pair of networks is trained yet.")
            continue
        if row.pairs == 1:
            sentences.append(f"{where}; one pair of networks has no interval.")
            continue
        sentences.append(
            f"{where}. The difference is {row.difference:+.1f} points "
            f"({row.low:.1f} to {row.high:.1f}) over {count(row.pairs, 'pair')}."
        )
        least_p = pairs.least_p(row.pairs)
        if least_p >= 1 - pairs.LEVEL:
            sentences.append(f"So few pairs allow no p below {least_p:.2g}.")
    if primary["verdict"].eq(pairs.NOT_CHANGED).any():
        sentences.append(
            "Where looking was not changed, the gap says nothing about looking."
        )
    return " ".join(sentences)
