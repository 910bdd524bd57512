"""One file and its annotation to one square 8-bit image and its boxes, with everything that had to be mended counted."""

import io
import re
import warnings
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from helpers.data.annotations import Annotation, Box
from helpers.data.layouts import UNREADABLE_NOW, Archive, Record

MOST_BOXES = 1000  # of an image; all images of a split have room for as many boxes as the one with the most

# What files with the endings of images hold, by Pillow's names; of others, such as PostScript, some run programs when they are opened.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "JPEG2000", "PPM")

# EXIF orientations that exchange width and height.
_TURNED = {5, 6, 7, 8}


class Decoded(NamedTuple):
    """One image as the study uses it."""

    record: Record
    pixels: np.ndarray | None  # (3, S, S) uint8 RGB; None when it cannot be used
    boxes: list[tuple[int, int, int, int]]  # half-open x0, y0, x1, y1 in pixels of the square
    width: int  # as stored, pixels
    height: int
    digest: str  # of the file's bytes
    faults: list[tuple[str, str]]  # kind and detail


def decode_image(archive: Archive, record: Record, size: int) -> Decoded:
    """Read, convert to RGB and squash one image; never raises for a bad file, whose fault is in the result."""
    try:
        content = archive.read(record.name)
    except ValueError as fault:
        return Decoded(record, None, [], 0, 0, "", [("unreadable_image", str(fault))])
    except OSError as fault:
        return Decoded(record, None, [], 0, 0, "", [(UNREADABLE_NOW, str(fault))])
    digest = blake2b(content, digest_size=8).hexdigest()
    stated = record.annotation.size if record.annotation else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(content), formats=_FORMATS)
            image.load()
        width, height = image.size
        rotated, faults = _turn(image, stated)
        if rotated.mode in ("I", "F") or rotated.mode.startswith("I;16"):
            rotated, note = _to_8_bits(rotated)
            faults.append(("rescaled_to_8_bits", note))
        pixels = np.asarray(_to_rgb(rotated).resize((size, size), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    except Exception as fault:  # decoders of damaged files raise nearly every kind, and the next image is to be read
        # Without addresses in memory, which are others each time.
        told = re.sub(r"<[^<>]* at 0x[0-9a-f]+>", "the file", f"{type(fault).__name__}: {fault}")
        return Decoded(record, None, [], 0, 0, digest, [("unreadable_image", told)])
    boxes, box_faults = square_boxes(record.annotation, rotated.size, size)
    return Decoded(record, pixels, boxes, width, height, digest, faults + box_faults)


def _turn(image: Image.Image, stated: tuple[int, int] | None) -> tuple[Image.Image, list[tuple[str, str]]]:
    """Apply the EXIF rotation only where the annotation's size says that its boxes refer to the turned image."""
    if stated is None or stated == image.size:
        return image, []
    if stated == image.size[::-1] and image.getexif().get(0x0112) in _TURNED:
        return ImageOps.exif_transpose(image), []
    return image, [("size_differs_from_annotation", f"stored {image.size[0]}x{image.size[1]}, annotated {stated[0]}x{stated[1]}")]


def _to_8_bits(image: Image.Image) -> tuple[Image.Image, str]:
    """Rescale grey values of 16 or 32 bits, or of floats, from the image's own range; ValueError where they have none."""
    values = np.asarray(image).astype(np.float64)
    low, high = values.min(), values.max()
    if not low < high < np.inf or low == -np.inf:
        raise ValueError(f"grey values of mode {image.mode} go from {low:g} to {high:g}, which is no range to rescale")
    return Image.fromarray(((values - low) * (255 / (high - low))).round().astype(np.uint8)), f"mode {image.mode}, {low:g} to {high:g}"


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to RGB; transparent pixels are shown on white, as a viewer shows them."""
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        clear = image.convert("RGBA")
        ground = Image.new("RGBA", clear.size, "white")
        return Image.alpha_composite(ground, clear).convert("RGB")
    return image.convert("RGB")


def square_boxes(
    annotation: Annotation | None, image_size: tuple[int, int], size: int
) -> tuple[list[tuple[int, int, int, int]], list[tuple[str, str]]]:
    """Scale boxes to the square image: clip, multiply by size / stated side, truncate; half-open.

    Args:
        annotation: boxes in pixels of the size that it states, or of the image where it states none.
        image_size: width and height of the image that the boxes refer to.
        size: side of the square.

    Returns:
        The usable boxes, and the faults: too many, clipped, outside, or without area, before or after scaling.
    """
    if annotation is None:
        return [], []
    if len(annotation.boxes) > MOST_BOXES:
        return [], [("too_many_boxes", f"{len(annotation.boxes)}; at most {MOST_BOXES} are taken")]
    width, height = annotation.size or image_size
    usable, faults = [], []
    for box in annotation.boxes:
        x0, y0, x1, y1 = clipped = _clip(box, width, height)
        if box[2] <= box[0] or box[3] <= box[1]:
            faults.append(("box_without_area", str(box)))
        elif x1 <= x0 or y1 <= y0:
            faults.append(("box_outside_dropped", str(box)))
        else:
            if clipped != box:
                faults.append(("box_outside_clipped", str(box)))
            scaled = tuple(int(value) for value in (x0 * size / width, y0 * size / height, x1 * size / width, y1 * size / height))
            if scaled[2] <= scaled[0] or scaled[3] <= scaled[1]:
                faults.append(("box_without_area", f"{box}, in the square {scaled}"))
            else:
                usable.append(scaled)
    return usable, faults


def _clip(box: Box, width: int, height: int) -> Box:
    return min(max(box[0], 0), width), min(max(box[1], 0), height), min(max(box[2], 0), width), min(max(box[3], 0), height)
