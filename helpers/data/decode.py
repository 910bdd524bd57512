"""One file and its annotation to one square 8-bit image and its boxes, with everything that had to be mended counted."""

import io
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps
from tqdm.auto import tqdm

from helpers.data.annotations import Annotation
from helpers.data.records import Record
from helpers.data.sources import Source

# By Pillow's names; of others, such as PostScript, some run programs when they are opened.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "JPEG2000", "PPM")
SquareBox = tuple[int, int, int, int]
Problem = tuple[str, str]  # kind and detail of a fault


class Crop(NamedTuple):
    """A square cut from the middle, as torchvision's Resize and CenterCrop do it."""

    resize: int  # the shorter side before the cut, pixels
    side: int  # of the square, pixels


class Decoded(NamedTuple):
    """One image as the study uses it."""

    record: Record
    pixels: np.ndarray | None  # (3, S, S) uint8 RGB; None when it cannot be used
    boxes: list[SquareBox]  # half-open x0, y0, x1, y1 in pixels of the square
    width: int  # as stored, pixels
    height: int
    digest: str  # of the file's bytes
    faults: list[Problem]


def decode_image(source: Source, record: Record, size: int | Crop) -> Decoded:
    """Read one image, convert it to RGB and squash it, or cut it without its boxes.

    The fault of a bad file is in the result, and of a disk raised.
    """
    digest, annotation = (
        "",
        record.annotation if isinstance(record.annotation, Annotation) else None,
    )
    try:
        content = record.content or source.read(record.name)
        digest = blake2b(content, digest_size=8).hexdigest()
        image = Image.open(io.BytesIO(content), formats=_FORMATS)
        image.load()
        turned, faults = _turned(image, annotation.size if annotation else None)
        if turned.mode in ("I", "F") or turned.mode.startswith("I;16"):
            raise ValueError(
                f"grey values of mode {turned.mode} are not of 8 bits; save them as an image of 8 bits"
            )
        pixels = np.asarray(_square(_to_rgb(turned), size)).transpose(2, 0, 1)
    except Exception as fault:  # decoders of damaged files raise nearly every kind; one with a number is of the disk
        if isinstance(fault, MemoryError) or (
            isinstance(fault, OSError) and fault.errno
        ):
            raise
        told = re.sub(
            r"<[^<>]* at 0x[0-9a-f]+>", "the file", f"{type(fault).__name__}: {fault}"
        )  # without an address in memory
        return Decoded(record, None, [], 0, 0, digest, [("unreadable_image", told)])
    boxes, problems = [], []
    if annotation and not isinstance(size, Crop):
        boxes, problems = square_boxes(annotation, turned.size, size)
    return Decoded(record, pixels, boxes, *image.size, digest, faults + problems)


def decode_all(
    source: Source, records: Sequence[Record], size: int | Crop
) -> list[Decoded]:
    """Decode images, in their order, on all cores."""
    with ThreadPoolExecutor(
        len(os.sched_getaffinity(0))
    ) as executor:  # decoding releases the interpreter's lock
        results = executor.map(
            lambda record: decode_image(source, record, size), records
        )
        return list(
            tqdm(
                results, total=len(records), desc="decoding", unit="image", leave=False
            )
        )


def _square(image: Image.Image, size: int | Crop) -> Image.Image:
    """Squash an image to a square of ``size`` pixels, or cut one from its middle."""
    if not isinstance(size, Crop):
        return image.resize((size, size), Image.Resampling.BILINEAR)
    # Here: the import takes two seconds.
    from torchvision.transforms import functional

    resized = functional.resize(image, size.resize)
    return functional.center_crop(resized, size.side)


def _turned(
    image: Image.Image, stated: tuple[int, int] | None
) -> tuple[Image.Image, list[Problem]]:
    """Apply the EXIF rotation only where the annotation's size says that its boxes refer to the turned image."""
    if stated in (None, (1, 1), image.size):
        return image, []
    if (upright := ImageOps.exif_transpose(image)).size == stated:
        return upright, []
    return image, [
        (
            "size_differs_from_annotation",
            "stored {}x{}, annotated {}x{}".format(*image.size, *stated),
        )
    ]


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to RGB; transparent pixels are shown on white, as a viewer shows them."""
    if image.has_transparency_data:
        clear = image.convert("RGBA")
        return Image.alpha_composite(
            Image.new("RGBA", clear.size, "white"), clear
        ).convert("RGB")
    return image.convert("RGB")


def square_boxes(
    annotation: Annotation, image_size: tuple[int, int], size: int
) -> tuple[list[SquareBox], list[Problem]]:
    """Scale boxes to the square image: clip, multiply by size / stated side (of the image where none is stated), truncate; half-open.

    Returns the usable boxes, and a problem for each that is clipped, outside, or without area before or after scaling.
    """
    sides = (annotation.size or image_size) * 2
    usable, problems = [], []
    for box in annotation.boxes:
        clipped = tuple(
            min(max(value, 0), side) for value, side in zip(box, sides, strict=True)
        )
        scaled = tuple(
            int(value * size / side) for value, side in zip(clipped, sides, strict=True)
        )
        if box[2] <= box[0] or box[3] <= box[1]:
            problems.append(("box_without_area", str(box)))
        elif clipped[2] <= clipped[0] or clipped[3] <= clipped[1]:
            problems.append(("box_outside_dropped", str(box)))
        else:
            problems += [("box_outside_clipped", str(box))] if clipped != box else []
            if scaled[2] <= scaled[0] or scaled[3] <= scaled[1]:
                problems.append(("box_without_area", f"{box}, in the square {scaled}"))
            else:
                usable.append(scaled)
    return usable, problems
