"""Decode the file of an image to a square of 8-bit RGB, and scale its boxes to it.

Files and boxes that cannot be used as they are become faults.
"""

import io
import os
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import pandas as pd
from PIL import Image, ImageOps
from tqdm.contrib.concurrent import thread_map

from helpers.data.annotations import IN_SHARES
from helpers.data.layouts import Record
from helpers.data.sources import Source

# Pillow's names of the formats that are opened; to open some others, such as
# PostScript, Pillow would run programs.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "JPEG2000", "PPM")
# If this share of a box, in this share of the images with boxes, lies outside of the
# image, the numbers of boxes probably have another meaning.
_LARGE_SHARE_OUTSIDE = 0.1
_MANY_IMAGES = 0.2
SquareBox = tuple[int, int, int, int]  # x0, y0, x1, y1 in pixels of the square
Problem = tuple[str, str]  # kind and detail of a fault


class Decoded(NamedTuple):
    """One image as the study uses it."""

    pixels: np.ndarray | None  # (3, S, S) uint8 RGB; None if it cannot be used
    square_boxes: list[SquareBox]  # half-open
    width: int  # as stored, pixels
    height: int
    digest: str  # of the file's bytes
    problems: list[Problem]
    is_strange: bool  # whether a box may have another unit or order


def decode_image(source: Source, size: int, upright: bool, record: Record) -> Decoded:
    """Read one image, convert it to RGB, and squash it to a square.

    Boxes usually refer to the image as a viewer shows it. So images with boxes are
    turned by their EXIF orientation, unless an annotation states the size of the image
    as stored and not that of the turned one.

    Args:
        source: the files.
        size: side of the square in pixels.
        upright: whether images are turned.
        record: the image and its boxes.

    Returns:
        The image; if the file cannot be used, its problems say why.

    Raises:
        OSError: if the disk cannot be read.
        MemoryError: if memory runs out.
    """
    digest = ""
    try:
        content = record.content or source.read(record.name)
        digest = blake2b(content, digest_size=8).hexdigest()
        image = Image.open(io.BytesIO(content), formats=FORMATS)
        image.load()
        # Grey values of unknown range: converted to 8 bits they would be white.
        if image.mode in ("I", "F") or image.mode.startswith("I;16"):
            raise ValueError(
                f"grey values of mode {image.mode} are not of 8 bits; save them as an "
                "image of 8 bits"
            )
        shown = _upright(image, record.size) if upright else image
        square = shown.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    except Exception as fault:
        # Damaged files raise exceptions of nearly every kind; an OSError with a number
        # is a fault of the disk.
        if isinstance(fault, MemoryError) or getattr(fault, "errno", None):
            raise
        words = f"{type(fault).__name__}: {fault}"
        words = words.partition(" <")[0]  # else with an address in memory
        return Decoded(None, [], 0, 0, digest, [("unreadable_image", words)], False)
    boxes, problems, is_strange = square_boxes(record, shown.size, size)
    if record.size not in (None, IN_SHARES, image.size, shown.size):
        detail = "stored {}x{}, annotated {}x{}".format(*image.size, *record.size)
        problems.append(("size_differs_from_annotation", detail))
    pixels = np.asarray(square).transpose(2, 0, 1)
    return Decoded(pixels, boxes, *image.size, digest, problems, is_strange)


def decode_all(source: Source, records: pd.DataFrame, size: int) -> pd.DataFrame:
    """Decode images on all cores, in the given order.

    If any of them has boxes, all are turned by their EXIF orientation.

    Args:
        source: the files.
        records: the images, with the fields of ``Record``.
        size: side of the squares in pixels.

    Returns:
        The records, with the fields of ``Decoded``.
    """
    upright = bool(records["boxes"].astype(bool).any())
    # Threads suffice, since decoding releases the interpreter's lock.
    decoded = thread_map(
        partial(decode_image, source, size, upright),
        list(records.itertuples(index=False)),
        max_workers=len(os.sched_getaffinity(0)),
        desc="decoding",
        unit="image",
        leave=False,
    )
    columns = pd.DataFrame(decoded, columns=Decoded._fields, index=records.index)
    return records.join(columns)


def _upright(image: Image.Image, stated: tuple[int, int] | None) -> Image.Image:
    """Turn an image upright, unless its boxes are stated to refer to it as stored."""
    try:
        upright = ImageOps.exif_transpose(image)
    except Exception:  # damaged tags raise exceptions of nearly every kind
        return image
    return image if stated == image.size != upright.size else upright


def square_boxes(
    record: Record, image_size: tuple[int, int], size: int
) -> tuple[list[SquareBox], list[Problem], bool]:
    """Clip boxes to the image, scale them to the square, and truncate to integers.

    Args:
        record: the boxes, in pixels of the size that it states, else of the image.
        image_size: width and height of the image, pixels.
        size: side of the square, pixels.

    Returns:
        The usable boxes, half-open; a problem for each box that is clipped or has no
        area in the square; and whether a tenth of the area of a box, or more, lies
        outside of the image, or it is at most one pixel of it.
    """
    # (boxes, 2, 2): upper left and lower right, x and y each
    corners = np.reshape(record.boxes, (-1, 2, 2))
    sides = np.array(record.size or image_size)  # width, height
    clipped = corners.clip(0, sides)
    square = (clipped * size / sides).astype(int)
    inside = _areas(clipped)
    is_usable = _areas(square) > 0
    kinds = np.select(
        [~is_usable, (clipped != corners).any((1, 2))],
        ["box_without_area", "box_outside_clipped"],
        "",
    )
    pairs = zip(kinds.tolist(), record.boxes, strict=True)
    problems = [(kind, str(box)) for kind, box in pairs if kind]
    is_strange = inside < (1 - _LARGE_SHARE_OUTSIDE) * _areas(corners)
    if record.size != IN_SHARES:
        is_strange |= inside <= 1
    usable = [*map(tuple, square[is_usable].reshape(-1, 4).tolist())]
    return usable, problems, bool(is_strange.any())


def _areas(corners: np.ndarray) -> np.ndarray:
    """Areas of boxes; 0 where a lower right corner is not below and right."""
    return (corners[:, 1] - corners[:, 0]).clip(0).prod(1)


def check_boxes(images: pd.DataFrame) -> None:
    """Refuse boxes of which many lie outside of their images or in one pixel.

    That happens if corners are read as width and height, if boxes are shares of the
    image, or if they are of images that were made smaller since.

    Args:
        images: the result of ``decode_all``.

    Raises:
        ValueError: if boxes of a fifth of the images do.
    """
    annotated = images[images["boxes"].astype(bool)]
    strange = annotated[annotated["is_strange"]]
    if len(strange) > _MANY_IMAGES * len(annotated):
        example = strange.iloc[0]
        raise ValueError(
            f"of {len(annotated):,} images with boxes {len(strange):,} have some that "
            f"reach out or lie in one pixel, such as {example['name']} "
            f"{example['boxes'][0]}: are they shares, of pictures of another size, or "
            "corners in place of width and height? See docs/images.md"
        )
