"""Figures made of images: boxes, maps, masks and their overlap."""

from collections.abc import Sequence
from textwrap import fill

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from helpers.plots import empty, style
from helpers.scoring import Overlays, Steps

_BOX = {"edgecolor": "#ffd400", "facecolor": "none", "linewidth": 1.8}
_CAM_BOX = {"edgecolor": "#00d5ff", "facecolor": "none", "linewidth": 1.8, "linestyle": "--"}
_OVERLAP = "cividis"
_MAP = {"cmap": "viridis", "vmin": 0, "vmax": 1}


def _show(ax: Axes, image: Tensor | np.ndarray, **options: object) -> None:
    pixels = np.asarray(image)
    ax.imshow(pixels.transpose(1, 2, 0) if pixels.ndim == 3 else pixels, interpolation="nearest", **options)  # pixels as they are
    ax.set_axis_off()


def _boxes(ax: Axes, boxes: Tensor, **options: object) -> None:
    # Pixel centres lie at whole numbers, so the half-open box [x0, x1) is drawn from x0 - 1/2 to x1 - 1/2.
    for x0, y0, x1, y1 in np.asarray(boxes).reshape(-1, 4).tolist():
        if x1 > x0 and y1 > y0:
            ax.add_patch(Rectangle((x0 - 0.5, y0 - 0.5), x1 - x0, y1 - y0, **(options or _BOX)))


@style()
def images_with_boxes(images: Tensor, boxes: Tensor, titles: Sequence[str], columns: int = 5) -> Figure:
    """Draw images with the outline of their boxes.

    Args:
        images: (N, 3, S, S) uint8.
        boxes: (N, B, 4) half-open pixels; zero rows are padding.
        titles: one per image.
        columns: images per row.
    """
    if not len(images):
        return empty("There is no image to draw.")
    rows = -(-len(images) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(1.8 * columns, 2.05 * rows), layout="constrained", squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    for ax, image, box, title in zip(axes.flat, images, boxes, titles, strict=False):
        _show(ax, image)
        _boxes(ax, box)
        ax.set_title(fill(title, 22), fontsize="small")
    return figure


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
        return empty("There is no model or no image to look at.")
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
