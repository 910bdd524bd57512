"""One file and its annotation to one square 8-bit image and its boxes.

Everything that had to be mended is counted.
"""

import io
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError
from tqdm.auto import tqdm

from helpers.data.annotations import IN_SHARES, Annotation, Box
from helpers.data.records import Record
from helpers.data.sources import Fault, Source

# By Pillow's names; of others, such as PostScript, some run programs when opened.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "JPEG2000", "PPM")
_OUTSIDE = 0.1  # of a box, from which its numbers may mean something else
_MANY_OUTSIDE = 0.2  # of the images with boxes
SquareBox = tuple[int, int, int, int]
Problem = tuple[str, str]  # kind and detail of a fault

# What a viewer does with each value of the EXIF tag; 1 is as stored.
_TO_SHOWN = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


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
    digest: str  # of the file's bytes, and of whether it was turned
    faults: list[Problem]
    reaches_out: bool = False  # whether a tenth of a box or more is outside


def decode_image(
    source: Source, record: Record, size: int | Crop, shown: bool = False
) -> Decoded:
    """Read one image, convert it to RGB and squash it, or cut it without its boxes.

    Boxes are drawn on the picture as a viewer shows it, so that one with boxes is
    turned by its EXIF tag, unless they state the size of the picture as stored.

    Args:
        source: the files.
        record: the image and its annotation.
        size: side of the square, pixels, or how it is cut.
        shown: whether an image without boxes is turned too.

    Returns:
        The image; what is wrong with a bad file is in its faults.

    Raises:
        OSError: where the disk cannot be read.
        MemoryError: where memory runs out.
    """
    digest = ""
    annotation = Annotation(())
    if isinstance(record.annotation, Annotation):
        annotation = record.annotation
    try:
        content = record.content or source.read(record.name)
        digest = _digest(content)
        image = Image.open(io.BytesIO(content), formats=FORMATS)
        image.load()
        _check_depth(image)
        upright, faults = _as_annotated(image, annotation, shown)
        turned_before = annotation.size == upright.size != image.size
        if upright is not image and not turned_before:
            # Earlier commits turned only where the stated size alone said so.
            digest = _digest(content + b"as shown")
        pixels = np.asarray(_square(_to_rgb(upright), size)).transpose(2, 0, 1)
    except Exception as fault:
        # Decoders of damaged files raise nearly every kind; one with a number is of the
        # disk.
        on_disk = isinstance(fault, OSError) and fault.errno
        if on_disk or isinstance(fault, MemoryError):
            raise
        problem = ("unreadable_image", _without_address(fault))
        return Decoded(record, None, [], 0, 0, digest, [problem])
    boxes: list[SquareBox] = []
    problems: list[Problem] = []
    reaches_out = False
    if not isinstance(size, Crop):
        boxes, problems = square_boxes(annotation, upright.size, size)
        reaches_out = _reaches_out(annotation, upright.size)
    faults += problems
    return Decoded(record, pixels, boxes, *image.size, digest, faults, reaches_out)


def decode_all(
    source: Source, records: Sequence[Record], size: int | Crop
) -> list[Decoded]:
    """Decode images, in their order, on all cores.

    Where some have boxes, all are turned as a viewer shows them.

    Args:
        source: the files.
        records: the images.
        size: side of the squares, pixels, or how they are cut.
    """
    shown = any(record.boxes for record in records)
    # Decoding releases the interpreter's lock.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as executor:
        results = executor.map(
            lambda record: decode_image(source, record, size, shown), records
        )
        progress = tqdm(
            results, total=len(records), desc="decoding", unit="image", leave=False
        )
        return list(progress)


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()


def _without_address(fault: Exception) -> str:
    """The words of a fault without an address in memory."""
    if isinstance(fault, UnidentifiedImageError):
        return f"it is no {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
    text = f"{type(fault).__name__}: {fault}"
    return re.sub(r"<[^<>]* at 0x[0-9a-f]+>", "the file", text)


def _check_depth(image: Image.Image) -> None:
    """Refuse grey values whose range is not known, which would come out blank."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        raise ValueError(
            f"grey values of mode {image.mode} are not of 8 bits; save them as an "
            "image of 8 bits"
        )


def _as_annotated(
    image: Image.Image, annotation: Annotation, shown: bool
) -> tuple[Image.Image, list[Problem]]:
    """The image as its boxes refer to it, and what contradicts them."""
    stated = annotation.size
    if not annotation.boxes and not shown:
        return image, []
    upright = _as_shown(image)
    if stated in (None, IN_SHARES, upright.size):
        return upright, []
    if stated == image.size:
        return image, []
    stored = f"stored {image.width}x{image.height}"
    detail = f"{stored}, annotated {stated[0]}x{stated[1]}"
    return upright, [("size_differs_from_annotation", detail)]


def _as_shown(image: Image.Image) -> Image.Image:
    """The image turned by its EXIF tag; as it is where that is absent or unreadable."""
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # of damaged tags nearly every kind
        return image
    if orientation not in _TO_SHOWN:
        return image
    return image.transpose(_TO_SHOWN[orientation])


def _square(image: Image.Image, size: int | Crop) -> Image.Image:
    """Squash an image to a square of ``size`` pixels, or cut one from its middle."""
    if not isinstance(size, Crop):
        return image.resize((size, size), Image.Resampling.BILINEAR)
    # Here: the import takes two seconds.
    from torchvision.transforms import functional

    resized = functional.resize(image, size.resize)
    return functional.center_crop(resized, size.side)


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to RGB; what is transparent is on white, as in a viewer."""
    if image.has_transparency_data:
        clear = image.convert("RGBA")
        return Image.alpha_composite(
            Image.new("RGBA", clear.size, "white"), clear
        ).convert("RGB")
    return image.convert("RGB")


def square_boxes(
    annotation: Annotation, image_size: tuple[int, int], size: int
) -> tuple[list[SquareBox], list[Problem]]:
    """Scale boxes to the square image: clip, scale, truncate; half-open.

    Args:
        annotation: the boxes, in pixels of the stated size, or of the image's.
        image_size: width and height of the image, pixels.
        size: side of the square, pixels.

    Returns:
        The usable boxes, and a problem for each that is clipped, outside, or without
        area before or after scaling.
    """
    width, height = annotation.size or image_size
    usable = []
    problems = []
    for box in annotation.boxes:
        clipped = _clipped(box, width, height)
        scaled = _scaled(clipped, width, height, size)
        if not _has_area(box):
            problems.append(("box_without_area", str(box)))
        elif not _has_area(clipped):
            problems.append(("box_outside_dropped", str(box)))
        else:
            if clipped != box:
                problems.append(("box_outside_clipped", str(box)))
            if _has_area(scaled):
                usable.append(scaled)
            else:
                detail = f"{box}, in the square {scaled}"
                problems.append(("box_without_area", detail))
    return usable, problems


def _reaches_out(annotation: Annotation, image_size: tuple[int, int]) -> bool:
    """Whether a tenth of the area of a box, or more, lies outside of the image."""
    width, height = annotation.size or image_size
    for box in filter(_has_area, annotation.boxes):
        clipped = _clipped(box, width, height)
        if _area(clipped) < (1 - _OUTSIDE) * _area(box):
            return True
    return False


def _area(box: Box) -> float:
    x0, y0, x1, y1 = box
    return (x1 - x0) * (y1 - y0)


def reaching_out(decoded: Sequence[Decoded]) -> list[Fault]:
    """A fault where boxes of many images reach out of them: numbers of another meaning.

    Corners that are read as width and height do so, and boxes of pictures that were
    made smaller since.

    Args:
        decoded: images, with boxes or without.
    """
    boxed = [image for image in decoded if image.record.boxes]
    outside = [image for image in boxed if image.reaches_out]
    if len(outside) < max(2, _MANY_OUTSIDE * len(boxed)):
        return []
    detail = (
        f"of {len(boxed):,} images with boxes {len(outside):,} have some that reach "
        f"out, such as {outside[0].record.name} {outside[0].record.boxes[0]}: are they "
        "of pictures of another size, or corners in place of width and height?"
    )
    return [Fault("", "boxes_reach_out", detail)]


def _clipped(box: Box, width: float, height: float) -> Box:
    x0, y0, x1, y1 = box
    columns = [min(max(x, 0), width) for x in (x0, x1)]
    rows = [min(max(y, 0), height) for y in (y0, y1)]
    return columns[0], rows[0], columns[1], rows[1]


def _scaled(box: Box, width: float, height: float, size: int) -> SquareBox:
    x0, y0, x1, y1 = box
    columns = [int(x * size / width) for x in (x0, x1)]
    rows = [int(y * size / height) for y in (y0, y1)]
    return columns[0], rows[0], columns[1], rows[1]


def _has_area(box: Box | SquareBox) -> bool:
    x0, y0, x1, y1 = box
    return x1 > x0 and y1 > y0
