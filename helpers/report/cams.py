"""Maps drawn over images: how one model comes to its IoU on an image, and where several models look on the same images.

Maps are those that every model is scored by: (n, h, w), normalised, of the predicted class.
"""

from collections.abc import Sequence
from textwrap import fill

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from helpers.cams import overlap
from helpers.data.images import ImageSet

_BOX = {"edgecolor": "#ffd400", "facecolor": "none", "linewidth": 1.8}
_MASK_BOX = {
    "edgecolor": "#00d5ff",
    "facecolor": "none",
    "linewidth": 1.8,
    "linestyle": "--",
}
_MAP = {"cmap": "viridis", "vmin": 0, "vmax": 1}
NO_PIXELS = (
    "Records have no pixels: to draw it anew, put the images where notebook 01 reads them "
    "(`data_path`) and run this notebook again."
)


def a_right_prediction(iou: Sequence[float], right: Sequence[bool]) -> int:
    """Number of the image to teach by: rightly predicted, with the middle IoU of those; the first image where none is right."""
    rows = np.flatnonzero(right)
    return (
        int(rows[np.argsort(np.asarray(iou)[rows])[len(rows) // 2]]) if len(rows) else 0
    )


def _show(ax: Axes, image: Tensor | np.ndarray, **options: object) -> None:
    pixels = np.asarray(image)
    ax.imshow(
        pixels.transpose(1, 2, 0) if pixels.ndim == 3 else pixels,
        interpolation="nearest",
        **options,
    )
    ax.set_axis_off()


def draw_boxes(ax: Axes, boxes: Tensor, **options: object) -> None:
    """Draw (M, 4) half-open boxes over an image of whole pixels; rows of zeros are padding."""
    # Pixel centres lie at whole numbers, so the half-open box [x0, x1) is drawn from x0 - 1/2 to x1 - 1/2.
    for x0, y0, x1, y1 in np.asarray(boxes).reshape(-1, 4).tolist():
        if x1 > x0 and y1 > y0:
            ax.add_patch(
                Rectangle((x0 - 0.5, y0 - 0.5), x1 - x0, y1 - y0, **(options or _BOX))
            )


def step_by_step(
    maps: Tensor, images: ImageSet, row: int, threshold: float, rule: str = "maximum"
) -> Figure | None:
    """How a model comes to its IoU on one image, from left to right (Du et al. 2024, Figures 1 and 3).

    None where the images have no pixels; ``NO_PIXELS`` says so.
    """
    if not images.has_pixels:
        return None
    size, maps, boxes = (
        images.images.shape[-1],
        maps[row : row + 1],
        images.boxes[row : row + 1],
    )
    enlarged, box = overlap.upsample(maps, size), overlap.box_masks(boxes, size)
    mask = overlap.cut(enlarged, threshold, rule)
    rectangle = overlap.bounding_rectangles(mask)
    iou, iou_b = (
        float(overlap.mask_iou(part, box))
        for part in (mask, overlap.box_masks(rectangle.unsqueeze(1), size))
    )
    figure, axes = plt.subplots(1, 5, figsize=(12, 3))
    for ax in axes[[0, 2, 3]]:
        _show(ax, images.images[row])
    for ax in axes[[0, 3]]:
        draw_boxes(ax, boxes)
    _show(axes[1], maps[0], **_MAP)
    _show(axes[2], enlarged[0], alpha=0.55, **_MAP)
    _show(
        axes[3], np.where(mask[0], np.nan, 0.0), cmap="gray", vmin=0, vmax=1, alpha=0.75
    )
    draw_boxes(axes[3], rectangle[0], **_MASK_BOX)
    # 0 neither, 1 mask only, 2 box only, 3 both: shades from dark to light, which differ in print as well.
    _show(axes[4], mask[0].int() + 2 * box[0].int(), cmap="cividis", vmin=0, vmax=3)
    last = f"both / either: IoU {iou:.2f}\nrectangle: IoU-B {iou_b:.2f}"
    for ax, name in zip(
        axes,
        (
            "image and box",
            "map of the last stage",
            "enlarged",
            "mask and its rectangle",
            last,
        ),
        strict=True,
    ):
        ax.set_title(name, fontsize="small")
    shades = plt.get_cmap("cividis")
    patches = [
        Patch(color=shades(value / 3), label=label)
        for value, label in enumerate(("neither", "mask only", "box only", "both"))
    ]
    figure.legend(handles=patches, loc="outside lower right", ncols=4, fontsize="small")
    return figure


def overlays(
    maps: Tensor,
    images: ImageSet,
    threshold: float,
    rows: Sequence[str],
    columns: Sequence[str],
    rule: str = "maximum",
) -> Figure | None:
    """Where several models (M, n, h, w) look on the same images: a row per model, titles of rows and columns (Du et al. 2024, Figure 2).

    None where the images have no pixels; ``NO_PIXELS`` says so.
    """
    if not images.has_pixels:
        return None
    size, shape = images.images.shape[-1], maps.shape[:2]
    figure, axes = plt.subplots(
        *shape, figsize=(1.2 + 1.9 * shape[1], 2.1 * shape[0]), squeeze=False
    )
    for row, own in enumerate(maps):
        heat = overlap.upsample(own, size)
        masks = overlap.cut(heat, threshold, rule)
        iou = overlap.mask_iou(masks, overlap.box_masks(images.boxes, size))
        for column, ax in enumerate(axes[row]):
            _show(ax, images.images[column])
            _show(ax, heat[column], alpha=0.5, **_MAP)
            draw_boxes(ax, images.boxes[column])
            name = f"{fill(columns[column], 22)}\n" if row == 0 else ""
            ax.set_title(f"{name}IoU {iou[column]:.2f}", fontsize="small")
        axes[row, 0].text(
            -0.08,
            0.5,
            fill(rows[row], 18),
            transform=axes[row, 0].transAxes,
            rotation=90,
            ha="right",
            va="center",
            fontsize="small",
        )
    return figure
