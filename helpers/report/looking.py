"""Figures and sentences of notebook 09, the experiment on where networks look."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from helpers.data.images import ImageSet, box_masks
from helpers.report.figures import forest, overlays
from helpers.report.style import count
from helpers.statistics import pairs
from helpers.training import looking
from helpers.training.config import PLAIN

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
        levels: of the hyperparameter ``looking``.

    Returns:
        A row per arm, a column per image, bright where the arm wants the map, with the
        overlap of that place and the boxes. None without pixels or arms.
    """
    arms = dict.fromkeys(looking.arm_and_strength(level)[0] for level in levels)
    arms.pop(PLAIN, None)
    if not (train.has_pixels and train.has_boxes and arms):
        return None
    boxed = np.flatnonzero(train.boxes.flatten(1).any(1))
    rows = boxed[np.linspace(0, len(boxed) - 1, _IMAGES).astype(int)]
    others = looking.other_images(len(train), np.random.default_rng(0))[rows]
    targets = []
    for arm in arms:
        # A control takes the boxes of another image.
        boxes = train.boxes[others if arm == "map_in_shuffled_box" else rows]
        masks = box_masks(boxes, train.images.shape[-1])
        targets.append(masks ^ (arm == "map_out_of_box"))
    names = [arm.replace("_", " ") for arm in arms]
    maps = torch.stack(targets).float()
    return overlays(maps, train.subset(rows), 0.5, names, [""] * _IMAGES, "maximum")


def differences_figure(differences: pd.DataFrame) -> Figure:
    """Draw paired differences with their intervals, a panel per outcome of ``TITLES``.

    Args:
        differences: of ``pairs.paired_table``; those over all starts are drawn.

    Returns:
        A row per contrast. The interval is drawn for at least ``pairs.FEWEST_PAIRS``
        pairs; that of two would be far wider than all others.
    """
    rows = differences[differences["start"] == "all"]
    ends = rows[["low", "high"]].where(rows["pairs"] >= pairs.FEWEST_PAIRS)
    names = (rows["arm"] + " less " + rows["control"]).str.replace("_", " ")
    rows = rows.assign(contrast=names, **ends)
    outcomes = [name for name in TITLES if rows["outcome"].eq(name).any()]
    size = (3 + 2.4 * len(outcomes), 1.2 + 0.26 * names.nunique())
    figure, panels = plt.subplots(
        1, len(outcomes), figsize=size, sharey=True, squeeze=False
    )
    for outcome, ax in zip(outcomes, panels[0], strict=True):
        shown = rows[rows["outcome"] == outcome]
        columns = shown[["contrast", "difference", "low", "high"]]
        forest(ax, *columns.to_numpy().T)
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
    rows = differences.set_index(["arm", "control", "start"]).sort_index()
    rows = rows.loc[(arm, control, "all")].set_index("outcome")
    gap = rows.loc["gap"]
    fixed = rows.loc["gap_given_training_accuracy"]
    words = f"*{arm}* less *{control}*: the gap differs by ".replace("_", " ")
    text = f"{words}{_points(gap)} over {count(int(gap['pairs']), 'pair')}"
    if np.isfinite(fixed["low"]):
        text += f", and by {_points(fixed)} with training accuracy held fixed"
    if np.isfinite(gap["low"]) and not pairs.excludes_zero(gap):
        text += (
            ". No difference is seen; one of "
            f"{gap['detectable']:.1f} points is detected in four of five experiments "
            f"of this size"
        )
    return f"{text}."


def _points(row: Any) -> str:
    """A difference in points, with its interval where it has one."""
    if np.isnan(row.difference):
        return "an unknown amount"
    interval = f" ({row.low:.1f} to {row.high:.1f})" if np.isfinite(row.low) else ""
    return f"{row.difference:+.1f} points{interval}"


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
        name = f"{row.outcome}_{row.arm}_less_{row.control}_{row.start}"
        if row.start == "all" or row.outcome == "gap":
            yield re.sub(r"\W", "_", name.removesuffix("_all")), row


def verdicts(judged: pd.DataFrame) -> str:
    """The verdict on each primary claim, Markdown.

    Args:
        judged: of ``pairs.paired_claims``.
    """
    sentences = [
        f"*{row.claim}*: **{row.verdict}**; the difference is {_points(row)} over "
        f"{count(row.pairs, 'pair')}."
        for row in judged[judged["primary"]].itertuples()
    ]
    return " ".join(sentences) or "This study states no claim on where networks look."
