"""Figures of several notebooks: estimates with intervals, and maps over images.

Maps are those that models are scored by, of the predicted class.
"""

from collections.abc import Sequence
from textwrap import fill

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike
from torch import Tensor

from helpers.cams import localize
from helpers.data.images import ImageSet, box_masks

_BOX = {"edgecolor": "#ffd400", "facecolor": "none", "linewidth": 1.8}
_MAP = {"cmap": "viridis", "vmin": 0, "vmax": 1}
NO_PIXELS = (
    "Records have no pixels: to draw it anew, put the images where notebook 01 reads "
    "them (`data_path`) and run this notebook again."
)


def forest(
    ax: Axes, labels: Sequence[str], values: ArrayLike, low: ArrayLike, high: ArrayLike
) -> None:
    """Draw rows of estimates with their intervals, the first on top.

    Args:
        ax: to draw on.
        labels: of the N rows.
        values: (N,) estimates; NaN where undefined.
        low: (N,) lower ends of the intervals; NaN for a row without one.
        high: (N,) upper ends.
    """
    rows = np.arange(len(labels))
    ax.axvline(0, color="black", linewidth=0.8)
    ax.hlines(rows, low, high, color="C0", linewidth=2)
    ax.plot(values, rows, "o", color="C0")
    ax.set_yticks(rows, labels)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.grid(axis="y", visible=False)


def forest_of_correlations(
    table: pd.DataFrame, labels: Sequence[str], panels: Sequence[str] | str = ""
) -> Figure:
    """Draw correlations with the gap, and their intervals.

    Args:
        table: N rows with pearson_r, ci_low and ci_high, and possibly published_r,
            which is drawn as crosses.
        labels: of the N rows.
        panels: (N,) title of the panel that a row stands in; one text for one panel.
    """
    rows = table.assign(
        label=np.array(labels, object),
        panel=panels if isinstance(panels, str) else np.array(panels),
    )
    count = max(1, rows["panel"].nunique())  # an empty panel without rows
    size = (8, 1 + 0.4 * count + 0.32 * len(rows))
    figure, axes = plt.subplots(count, 1, figsize=size, sharex=True, squeeze=False)
    by_panel = rows.groupby("panel", sort=False)
    for ax, (title, shown) in zip(axes[:, 0], by_panel, strict=False):
        ends = shown["ci_low"], shown["ci_high"]
        forest(ax, shown["label"], shown["pearson_r"], *ends)
        if "published_r" in shown:
            ax.plot(shown["published_r"], range(len(shown)), "x", color="C3")
        ax.set_title(title, fontsize="medium", loc="left")
    axes[-1, 0].set(xlabel="r with the gap", xlim=(-1.05, 1.05))
    return figure


def first_rows(
    table: pd.DataFrame, always: Sequence[str], most: int = 40
) -> pd.DataFrame:
    """The first rows of a long table, in their order.

    Args:
        table: with a column measure.
        always: measures whose rows are always included.
        most: number of rows.
    """
    is_included = table["measure"].isin(always)
    fits = (~is_included).cumsum() <= most - is_included.sum()
    return table[is_included | fits]


def row_of_right_prediction(iou: Sequence[float], right: Sequence[bool]) -> int:
    """Number of a correctly classified image that serves as an example.

    Args:
        iou: of each image.
        right: whether it is classified correctly.

    Returns:
        The correct one with the middle IoU; 0 where none is correct.
    """
    by_iou = pd.Series(iou)[np.asarray(right, bool)].sort_values(kind="stable").index
    return int(by_iou[len(by_iou) // 2]) if len(by_iou) else 0


def draw_boxes(ax: Axes, boxes: Tensor, **options: object) -> None:
    """Draw boxes over an image.

    Args:
        ax: of the image.
        boxes: (M, 4) x0, y0, x1, y1 in pixels, half-open; rows of zeros are padding.
        options: of the rectangles.
    """
    # Pixel centres lie at whole numbers, so the half-open box [x0, x1) is drawn from
    # x0 - 1/2 to x1 - 1/2.
    for x0, y0, x1, y1 in boxes[localize.is_box(boxes)].tolist():
        corner = (x0 - 0.5, y0 - 0.5)
        ax.add_patch(Rectangle(corner, x1 - x0, y1 - y0, **(_BOX | options)))


def _draw(ax: Axes, image: Tensor, boxes: Tensor, title: str) -> None:
    """Draw an image (3, S, S) with its boxes."""
    ax.imshow(image.movedim(0, -1).numpy())
    draw_boxes(ax, boxes)
    ax.set_title(title, fontsize="small")
    ax.set_axis_off()


def step_by_step(
    maps: Tensor, images: ImageSet, row: int, threshold: float, rule: str
) -> Figure:
    """Draw the steps from a map to its IoU; Du et al. 2024, Figures 1 and 3.

    Args:
        maps: (N, h, w) of one model, normalised.
        images: the N images.
        row: number of the image.
        threshold: at which the map is cut.
        rule: of cutting, see ``localize.cut``.
    """
    image, boxes = images.images[row], images.boxes[[row]]
    size = image.shape[-1]
    enlarged = localize.upsample(maps[row : row + 1], size)
    mask = localize.cut(enlarged, threshold, rule)
    rectangle = localize.bounding_rectangles(mask)
    inside = box_masks(boxes, size)
    iou = localize.mask_iou(mask, inside)[0]
    iou_b = localize.mask_iou(box_masks(rectangle.unsqueeze(1), size), inside)[0]
    figure, axes = plt.subplots(1, 4, figsize=(10, 3.2))
    numbers = f"mask: IoU {iou:.2f}\nits rectangle: IoU-B {iou_b:.2f}"
    _draw(axes[0], image, boxes[0], "image and box")
    _draw(axes[2], image, boxes[0, :0], "enlarged")
    _draw(axes[3], image, boxes[0], numbers)
    axes[1].set_title("map of the last stage", fontsize="small")
    axes[1].imshow(maps[row].numpy(), **_MAP)
    axes[1].set_axis_off()
    axes[2].imshow(enlarged[0].numpy(), alpha=0.55, **_MAP)
    inside_mask = mask[0].numpy()
    axes[3].imshow(inside_mask, cmap="gray", alpha=0.75 * ~inside_mask)
    draw_boxes(axes[3], rectangle, edgecolor="#00d5ff", linestyle="--")
    return figure


def overlays(
    maps: Tensor,
    images: ImageSet,
    threshold: float,
    rows: Sequence[str],
    columns: Sequence[str],
    rule: str,
) -> Figure:
    """Draw the maps of several models on the same images; Du et al. 2024, Figure 2.

    Args:
        maps: (M, N, h, w), a row of the figure per model.
        images: the N images.
        threshold: at which maps are cut.
        rows: M titles.
        columns: N titles.
        rule: of cutting, see ``localize.cut``.
    """
    size = images.images.shape[-1]
    models, count = maps.shape[:2]
    figure, axes = plt.subplots(
        models, count, figsize=(1.2 + 1.9 * count, 2.1 * models), squeeze=False
    )
    names = [f"{fill(name, 22)}\n" for name in columns]
    for of_row, of_model, title in zip(axes, maps, rows, strict=True):
        heat = localize.upsample(of_model, size)
        masks = localize.cut(heat, threshold, rule)
        iou = localize.mask_iou(masks, box_masks(images.boxes, size))
        for column, ax in enumerate(of_row):
            words = f"{names[column]}IoU {iou[column]:.2f}"
            _draw(ax, images.images[column], images.boxes[column], words)
            ax.imshow(heat[column].numpy(), alpha=0.5, **_MAP)
        names = [""] * count  # the first row has them
        beside = {"rotation": 90, "ha": "right", "va": "center", "fontsize": "small"}
        first = of_row[0]
        first.text(-0.08, 0.5, fill(title, 18), transform=first.transAxes, **beside)
    return figure
