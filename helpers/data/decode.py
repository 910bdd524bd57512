"""Decode the file of an image to a square of 8-bit RGB, and scale its boxes to it.

Files and boxes that cannot be used as they are become faults.
"""

import io
import os
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from tqdm.contrib.concurrent import thread_map

from helpers.data.annotations import IN_SHARES, Record
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

    record: Record
    pixels: np.ndarray | None  # (3, S, S) uint8 RGB; None when it cannot be used
    boxes: list[SquareBox]  # half-open x0, y0, x1, y1 in pixels of the square
    width: int  # as stored, pixels
    height: int
    digest: str  # of the file's bytes
    faults: list[Problem]
    is_strange: bool = False  # whether a box may have another unit or order


def decode_image(
    source: Source, record: Record, size: int, always_upright: bool = False
) -> Decoded:
    """Read one image, convert it to RGB, and squash it to a square.

    Boxes usually refer to the image as a viewer shows it. So an image with boxes is
    turned by its EXIF orientation, unless its annotation states the size of the image
    as stored and not that of the turned one.

    Args:
        source: the files.
        record: the image and its boxes.
        size: side of the square in pixels.
        always_upright: whether an image without boxes is turned as well.

    Returns:
        The image; if the file cannot be used, its faults say why.

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
        oriented = image
        if record.boxes or always_upright:
            oriented = _as_annotated(image, record.size)
        square = _to_rgb(oriented).resize((size, size), Image.Resampling.BILINEAR)
        pixels = np.asarray(square).transpose(2, 0, 1)
    except Exception as fault:
        # Damaged files raise exceptions of nearly every kind; an OSError with a number
        # is a fault of the disk.
        is_of_disk = isinstance(fault, OSError) and fault.errno
        if is_of_disk or isinstance(fault, MemoryError):
            raise
        problem = ("unreadable_image", _in_words(fault))
        return Decoded(record, None, [], 0, 0, digest, [problem])
    boxes, faults, is_strange = square_boxes(record, oriented.size, size)
    if record.size not in (None, IN_SHARES, image.size, oriented.size):
        detail = "stored {}x{}, annotated {}x{}".format(*image.size, *record.size)
        faults.append(("size_differs_from_annotation", detail))
    return Decoded(record, pixels, boxes, *image.size, digest, faults, is_strange)


def decode_all(source: Source, records: Sequence[Record], size: int) -> list[Decoded]:
    """Decode images on all cores, in the given order.

    If any of them has boxes, all are turned by their EXIF orientation.

    Args:
        source: the files.
        records: the images.
        size: side of the squares in pixels.
    """
    always_upright = any(record.boxes for record in records)
    # Threads suffice, since decoding releases the interpreter's lock.
    return thread_map(
        lambda record: decode_image(source, record, size, always_upright),
        records,
        max_workers=len(os.sched_getaffinity(0)),
        desc="decoding",
        unit="image",
        leave=False,
    )


def _in_words(fault: Exception) -> str:
    """The message of a fault, without the address in memory that Pillow writes."""
    if isinstance(fault, UnidentifiedImageError):
        return f"it is not {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
    return f"{type(fault).__name__}: {fault}"


def _as_annotated(image: Image.Image, stated: tuple[int, int] | None) -> Image.Image:
    """Turn an image upright, unless its boxes are stated to refer to it as stored."""
    try:
        upright = ImageOps.exif_transpose(image)
    except Exception:  # damaged tags raise exceptions of nearly every kind
        return image
    return image if stated == image.size != upright.size else upright


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image of any mode to RGB, with white behind what is transparent."""
    if not image.has_transparency_data:
        return image.convert("RGB")
    foreground = image.convert("RGBA")
    background = Image.new("RGBA", foreground.size, "white")
    return Image.alpha_composite(background, foreground).convert("RGB")


def square_boxes(
    record: Record, image_size: tuple[int, int], size: int
) -> tuple[list[SquareBox], list[Problem], bool]:
    """Clip boxes to the image, scale them to the square, and truncate to integers.

    Args:
        record: the boxes, in pixels of the size that it states, else of the image.
        image_size: width and height of the image, pixels.
        size: side of the square, pixels.

    Returns:
        The usable boxes, half-open; a problem for each box that is clipped, lies
        outside of the image, or has no area before or after scaling; and whether a
        tenth of the area of a box, or more, lies outside of the image, or all of it in
        the image's first pixel.
    """
    sides = np.array(record.size or image_size)  # width, height
    usable = []
    problems = []
    is_strange = False
    for box in record.boxes:
        corners = np.reshape(box, (2, 2))  # upper left and lower right, x and y each
        clipped = corners.clip(0, sides)
        square = (clipped * size / sides).astype(int)
        reaches_out = _area(clipped) < (1 - _LARGE_SHARE_OUTSIDE) * _area(corners)
        in_first_pixel = record.size != IN_SHARES and max(box) <= 1
        is_strange = is_strange or reaches_out or in_first_pixel
        if _area(corners) and not _area(clipped):
            problems.append(("box_outside_dropped", str(box)))
        elif not _area(square):
            problems.append(("box_without_area", str(box)))
        else:
            usable.append(tuple(square.ravel().tolist()))
            if (clipped != corners).any():
                problems.append(("box_outside_clipped", str(box)))
    return usable, problems, is_strange


def _area(corners: np.ndarray) -> float:
    """Area of a box; 0 where its lower right corner is not below and right."""
    return (corners[1] - corners[0]).clip(0).prod()


def check_boxes(decoded: Sequence[Decoded]) -> None:
    """Refuse boxes of which many lie outside of their images, or none has an area.

    That happens if corners are read as width and height, if boxes are shares of the
    image, or if they are of images that were made smaller since.

    Args:
        decoded: images, with boxes or without.

    Raises:
        ValueError: if boxes of a fifth of the images reach out or lie in their first
            pixel, or if no box can be used.
    """
    annotated = [image for image in decoded if image.record.boxes]
    strange = [image for image in annotated if image.is_strange]
    if not any(image.boxes for image in annotated):
        strange = annotated
    if len(strange) > _MANY_IMAGES * len(annotated):
        record = strange[0].record
        raise ValueError(
            f"of {len(annotated):,} images with boxes {len(strange):,} have some that "
            f"reach out, lie in one pixel or have no area, such as {record.name} "
            f"{record.boxes[0]}: are they shares, of pictures of another size, or "
            "corners in place of width and height? See docs/images.md"
        )
