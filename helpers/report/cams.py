"""Figures of maps drawn over images.

The steps from a map to its IoU, and maps of several models on the same images. Maps are
those that models are scored by, of the predicted class.
"""

from collections.abc import Sequence
from textwrap import fill

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from helpers.cams import localize
from helpers.data.boxes import box_masks
from helpers.data.images import ImageSet

_BOX = {"edgecolor": "#ffd400", "facecolor": "none", "linewidth": 1.8}
_MAP = {"cmap": "viridis", "vmin": 0, "vmax": 1}
NO_PIXELS = (
    "Records have no pixels: to draw it anew, put the images where notebook 01 reads "
    "them (`data_path`) and run this notebook again."
)


def row_of_right_prediction(iou: Sequence[float], right: Sequence[bool]) -> int:
    """Number of a correctly classified image that serves as an example.

    Args:
        iou: of each image.
        right: whether it is classified correctly.

    Returns:
        The correct one with the middle IoU; 0 where none is correct.
    """
    rows = np.flatnonzero(right)
    if not len(rows):
        return 0
    by_iou = rows[np.argsort(np.asarray(iou)[rows])]
    return int(by_iou[len(rows) // 2])


def _show(ax: Axes, image: Tensor, **options: object) -> None:
    """Draw an image (3, S, S), or a map (h, w) over it."""
    pixels = np.asarray(image.movedim(0, -1) if image.ndim == 3 else image)
    ax.imshow(pixels, interpolation="nearest", **options)
    ax.set_axis_off()


def draw_boxes(ax: Axes, boxes: Tensor, **options: object) -> None:
    """Draw boxes over an image.

    Args:
        ax: of the image.
        boxes: (M, 4) x0, y0, x1, y1 in pixels, half-open; rows of zeros are padding.
        options: of the rectangles.
    """
    # Pixel centres lie at whole numbers, so the half-open box [x0, x1) is drawn from
    # x0 - 1/2 to x1 - 1/2.
    for x0, y0, x1, y1 in boxes.reshape(-1, 4).tolist():
        if x1 > x0 and y1 > y0:
            corner = (x0 - 0.5, y0 - 0.5)
            ax.add_patch(Rectangle(corner, x1 - x0, y1 - y0, **(_BOX | options)))


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
    size = images.images.shape[-1]
    boxes = images.boxes[row : row + 1]
    enlarged = localize.upsample(maps[row : row + 1], size)
    mask = localize.cut(enlarged, threshold, rule)
    rectangle = localize.bounding_rectangles(mask)
    iou, iou_b = (
        float(localize.mask_iou(one, box_masks(boxes, size)))
        for one in (mask, box_masks(rectangle.unsqueeze(1), size))
    )
    titles = (
        "image and box",
        "map of the last stage",
        "enlarged",
        f"mask: IoU {iou:.2f}\nits rectangle: IoU-B {iou_b:.2f}",
    )
    figure, axes = plt.subplots(1, 4, figsize=(10, 3.2))
    for ax, title in zip(axes, titles, strict=True):
        ax.set_title(title, fontsize="small")
    for ax in axes[[0, 2, 3]]:
        _show(ax, images.images[row])
    for ax in axes[[0, 3]]:
        draw_boxes(ax, boxes)
    _show(axes[1], maps[row], **_MAP)
    _show(axes[2], enlarged[0], alpha=0.55, **_MAP)
    dark = torch.zeros(size, size).masked_fill(mask[0], torch.nan)
    _show(axes[3], dark, cmap="gray", vmin=0, vmax=1, alpha=0.75)
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
    for row, of_model in enumerate(maps):
        heat = localize.upsample(of_model, size)
        masks = localize.cut(heat, threshold, rule)
        iou = localize.mask_iou(masks, box_masks(images.boxes, size))
        for column, ax in enumerate(axes[row]):
            _show(ax, images.images[column])
            _show(ax, heat[column], alpha=0.5, **_MAP)
            draw_boxes(ax, images.boxes[column])
            name = f"{fill(columns[column], 22)}\n" if row == 0 else ""
            ax.set_title(f"{name}IoU {iou[column]:.2f}", fontsize="small")
        axes[row, 0].annotate(
            fill(rows[row], 18),
            (-0.08, 0.5),
            xycoords="axes fraction",
            rotation=90,
            ha="right",
            va="center",
            fontsize="small",
        )
    return figure
