"""Where models look as rows of tiles in one PNG: drawn by pixel, because a figure of ten axes takes half a second."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import matplotlib.colors
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

Pixels = NDArray[np.uint8]

BOX, CAM_BOX = "#ffd400", "#00d5ff"  # the annotated box, and the rectangle around the mask
OVERLAP = ("neither", "mask only", "box only", "both")
COLUMNS = ("image and box", "map of the layer", "enlarged", "mask and its rectangle", "overlap with the box")
_SIDE = 190  # least side of a tile, pixels
_GAP, _HEAD, _FONT = 8, 22, 13


class Look(NamedTuple):
    """One model on one image."""

    image: Tensor  # (3, S, S) uint8
    boxes: Tensor  # (M, 4) half-open pixels; zero rows are padding
    heat_map: Tensor  # (h, w) normalised map, NaN where it is undefined
    enlarged: Tensor  # (S, S)
    mask: Tensor  # (S, S) bool
    box_mask: Tensor  # (S, S) bool
    cam_box: Tensor  # (4,) rectangle around the mask, zeros for an empty one
    iou: float  # NaN where it is undefined
    iou_b: float
    predicted: int
    probability: float  # of the predicted class


def overlap_colours() -> list[str]:
    """Give the colours of ``OVERLAP`` as hex, from dark to light, so that they differ in print as well."""
    return [matplotlib.colors.to_hex(matplotlib.colormaps["cividis"](value / 3)) for value in range(4)]


def mosaic(looks: Sequence[Look], titles: Sequence[str]) -> Pixels:
    """Draw a row of five tiles per model: image, map, enlarged map, mask, overlap.

    Args:
        looks: at least one, all on images of one size.
        titles: a heading for each row.

    Returns:
        (H, W, 3) pixels.
    """
    rows = [_tiles(look) for look in looks]
    side = rows[0][0].width
    size = (len(COLUMNS) * (side + _GAP), _HEAD + len(rows) * (_HEAD + side + _GAP))
    sheet = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(sheet)
    font = ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts/ttf/DejaVuSans.ttf"), _FONT)  # that of the figures
    for column, name in enumerate(COLUMNS):
        pen.text((column * (side + _GAP), 2), name, "black", font)
    for number, (tiles, title) in enumerate(zip(rows, titles, strict=True)):
        top = _HEAD + number * (_HEAD + side + _GAP)
        pen.text((0, top + 2), title, "black", font)
        for column, tile in enumerate(tiles):
            sheet.paste(tile, (column * (side + _GAP), top + _HEAD))
    return np.asarray(sheet)


def _tiles(look: Look) -> list[Image.Image]:
    image = look.image.permute(1, 2, 0).numpy()
    factor = max(1, -(-_SIDE // len(image)))
    heat = _coloured(look.enlarged)
    dimmed = np.where(look.mask.numpy()[..., None], image, image // 4)
    overlap = _shades("cividis", (look.mask.int() + 2 * look.box_mask.int()).numpy() / 3)
    side = factor * len(image)
    tiles = [
        _enlarged(image, side),
        _enlarged(_coloured(look.heat_map), side),
        _enlarged((0.45 * image + 0.55 * heat).astype(np.uint8), side),
        _enlarged(dimmed, side),
        _enlarged(overlap, side),
    ]
    _outline(tiles[0], look.boxes, factor, BOX)
    _outline(tiles[3], look.boxes, factor, BOX)
    _outline(tiles[3], look.cam_box, factor, CAM_BOX)
    return tiles


def _coloured(heat: Tensor) -> Pixels:
    return _shades("viridis", heat.nan_to_num(0).numpy())


def _shades(name: str, values: NDArray) -> Pixels:
    return (255 * matplotlib.colormaps[name](values)[..., :3]).astype(np.uint8)


def _enlarged(pixels: Pixels, side: int) -> Image.Image:
    return Image.fromarray(pixels).resize((side, side), Image.Resampling.NEAREST)  # pixels as they are


def _outline(tile: Image.Image, boxes: Tensor, factor: int, colour: str) -> None:
    pen = ImageDraw.Draw(tile)
    for x0, y0, x1, y1 in boxes.reshape(-1, 4).tolist():
        if x1 > x0 and y1 > y0:
            pen.rectangle((factor * x0, factor * y0, factor * x1 - 1, factor * y1 - 1), outline=colour, width=2)
