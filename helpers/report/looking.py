"""Figures and sentences of notebook 09, the experiment on where networks look."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from helpers.data.boxes import box_masks
from helpers.data.images import ImageSet
from helpers.report.cams import overlays
from helpers.report.figures import forest
from helpers.report.style import count
from helpers.statistics import pairs
from helpers.training import looking

TITLES = {
    "gap": "gap (points)",
    "gap_at_equal_training_accuracy": "gap at 95 %\ntraining accuracy (points)",
    "gap_given_training_accuracy": "gap, training accuracy\nheld fixed (points)",
    "test_accuracy": "test accuracy (points)",
    "accuracy_swapped": "accuracy on swapped\nbackgrounds (points)",
}
_IMAGES = 3  # number of images drawn


def arms_figure(train: ImageSet, levels: Sequence[str]) -> Figure | None:
    """Draw where each arm of training pulls the maps, on some training images.

    Args:
        train: training images with boxes.
        levels: of the hyperparameter ``looking``; swapped backgrounds are left out,
            since they change images and put no penalty on maps.

    Returns:
        A row per arm, a column per image, bright where the arm wants the map, with the
        overlap of that place and the boxes. None without pixels or arms.
    """
    arms = [looking.arm_and_strength(level)[0] for level in levels]
    arms = [arm for arm in dict.fromkeys(arms) if arm in looking.PENALTIES]
    if not (train.has_pixels and train.has_boxes and arms):
        return None
    others = looking.other_images(len(train), np.random.default_rng(0))
    boxed = np.flatnonzero(train.boxes.flatten(1).any(1))
    rows = boxed[np.linspace(0, len(boxed) - 1, _IMAGES).astype(int)]
    targets = []
    for arm in arms:
        # A control takes the boxes of another image.
        sources = others[rows] if arm in looking.CONTROLS.values() else rows
        masks = box_masks(train.boxes[sources], train.images.shape[-1])
        masks = ~masks if arm == "map_out_of_box" else masks
        targets.append(masks.float())
    names = [arm.replace("_", " ") for arm in arms]
    images = train.subset(rows)
    return overlays(torch.stack(targets), images, 0.5, names, [""] * _IMAGES, "maximum")


def differences_figure(differences: pd.DataFrame) -> Figure:
    """Draw paired differences with their intervals, a panel per outcome of ``TITLES``.

    Args:
        differences: of ``pairs.paired_table``; those over all starts are drawn.

    Returns:
        A row per contrast. The interval is drawn for at least ``pairs.FEWEST_PAIRS``
        pairs; that of two would be far wider than all others.
    """
    differences = differences[differences["start"] == "all"]
    enough = differences["pairs"] >= pairs.FEWEST_PAIRS
    contrasts = differences["arm"] + " less " + differences["control"]
    rows = differences.assign(
        contrast=contrasts.str.replace("_", " "),
        low=differences["low"].where(enough),
        high=differences["high"].where(enough),
    )
    outcomes = [name for name in TITLES if rows["outcome"].eq(name).any()]
    size = (3 + 2.4 * len(outcomes), 1.2 + 0.26 * rows["contrast"].nunique())
    figure, panels = plt.subplots(
        1, len(outcomes), figsize=size, sharey=True, squeeze=False
    )
    for outcome, ax in zip(outcomes, panels[0], strict=True):
        shown = rows[rows["outcome"] == outcome]
        ends = shown["low"], shown["high"]
        forest(ax, shown["contrast"], shown["difference"], *ends)
        ax.set_xlabel(TITLES[outcome])
    return figure


def contrast_sentence(differences: pd.DataFrame, arm: str, control: str) -> str:
    """The difference in the gap between two arms, in words.

    Args:
        differences: of ``pairs.paired_table``.
        arm: level of the hyperparameter ``looking``.
        control: the level that it is compared with.

    Returns:
        Two sentences: the difference at the stop and with training accuracy held fixed,
        and, where the interval holds 0, the smallest difference that could be told.
    """
    rows = differences[
        differences["arm"].eq(arm)
        & differences["control"].eq(control)
        & differences["start"].eq("all")
    ].set_index("outcome")
    gap = rows.loc["gap"]
    names = [level.replace("_", " ") for level in (arm, control)]
    text = (
        f"*{names[0]}* less *{names[1]}*: the gap differs by {_points(gap)} over "
        f"{count(int(gap['pairs']), 'pair')}"
    )
    fixed = rows.loc["gap_given_training_accuracy"]
    if np.isfinite(fixed["low"]):
        text += f", and by {_points(fixed)} with training accuracy held fixed"
    if np.isfinite(gap["low"]) and not pairs.excludes_zero(gap):
        text += (
            ". No difference is seen; one of "
            f"{gap['detectable']:.1f} points is detected in four of five experiments "
            f"of this size"
        )
    return f"{text}."


def _points(row: pd.Series) -> str:
    """A difference in points, with its interval where it has one."""
    if np.isnan(row["difference"]):
        return "an unknown amount"
    text = f"{row['difference']:+.1f} points"
    if np.isfinite(row["low"]):
        text += f" ({row['low']:.1f} to {row['high']:.1f})"
    return text


def named_differences(differences: pd.DataFrame) -> Iterator[tuple[str, Any]]:
    """Names of differences, as results of notebook 09.

    Args:
        differences: of ``pairs.paired_table``.

    Yields:
        A name such as "gap_map_in_box_1_less_plain", and its row: all outcomes over the
        pairs of all starts, and the gap of each start, "..._scratch".

    Example:
        >>> row = {"arm": "map_in_box 0.3", "control": "plain", "start": "scratch"}
        >>> table = pd.DataFrame([row | {"outcome": "gap"}])
        >>> next(named_differences(table))[0]
        'gap_map_in_box_0_3_less_plain_scratch'
    """
    for row in differences.itertuples():
        name = f"{row.outcome}_{row.arm}_less_{row.control}"
        if row.start != "all":
            name += f"_{row.start}"
        if row.start == "all" or row.outcome == "gap":
            yield re.sub(r"\W", "_", name), row


def verdicts(judged: pd.DataFrame) -> str:
    """The verdict on each primary claim, Markdown.

    Args:
        judged: of ``pairs.paired_claims``.
    """
    primary = judged[judged["primary"]]
    sentences = [
        f"*{row.claim}*: **{row.verdict}**; the difference is "
        f"{_points(pd.Series(row._asdict()))} over {count(row.pairs, 'pair')}."
        for row in primary.itertuples()
    ]
    return " ".join(sentences) or "This study states no claim on where networks look."
