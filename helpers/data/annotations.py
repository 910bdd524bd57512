"""What annotations say of images: Pascal VOC XML, Tiny ImageNet's boxes, COCO's JSON, a CSV, YOLO's lines."""

import csv
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from xml.etree.ElementTree import ParseError

import defusedxml.ElementTree
from defusedxml import DefusedXmlException

Box = tuple[float, float, float, float]
Object = tuple[
    str, Sequence[Any] | None
]  # label, and the numbers of a box as they are written, or None


class Annotation(NamedTuple):
    """What an annotation says of one image."""

    objects: tuple[
        tuple[str, Box | None], ...
    ]  # label, and xmin, ymin, xmax, ymax in pixels of the stated size
    size: tuple[int, int] | None = (
        None  # stated width and height; None where there is none, (1, 1) where boxes are shares of the image
    )

    @property
    def boxes(self) -> tuple[Box, ...]:
        """Boxes, usable or not."""
        return tuple(box for _, box in self.objects if box is not None)


Said = Annotation | str  # a text says what is wrong


def _corners(x0: float, y0: float, x1: float, y1: float) -> Box:
    return x0, y0, x1, y1


def _annotation(
    objects: Iterable[Object],
    sides: Sequence[Any] = (None, None),
    corners: Callable[..., Box] = _corners,
) -> Said:
    """What objects of one image say, their boxes turned into ``corners``; where one box is wrong, the text says so in place of them all."""
    found = []
    for label, numbers in objects:
        try:
            box = None if numbers is None else corners(*map(float, numbers))
        except (TypeError, ValueError):
            box = (math.nan,)
        if box and not all(map(math.isfinite, box)):
            return f"{numbers} is no box of 4 finite numbers"
        found.append((label, box))
    try:
        size = tuple(int(float(side)) for side in sides)
    except (TypeError, ValueError, OverflowError):
        size = (0, 0)  # which is how some tools write "unknown"
    return Annotation(tuple(found), size if min(size) > 0 else None)


def _by_image(
    rows: Iterable[tuple[str, str, Sequence[Any] | None]],
) -> dict[str, list[Object]]:
    """Objects of each image, of rows of image, label and box."""
    found = defaultdict(list)
    for name, *said in rows:
        found[name].append(said)
    return found


def _lines(content: bytes) -> list[str]:
    """Lines that are not blank; one that stands twice says nothing new."""
    return list(
        dict.fromkeys(
            line
            for line in content.decode("utf-8-sig", "replace").splitlines()
            if line.strip()
        )
    )


def parse_voc(content: bytes) -> Said:
    """Read a Pascal VOC XML file, in any namespace; entity definitions are refused."""
    try:
        root = defusedxml.ElementTree.fromstring(content)
    except (
        ParseError,
        DefusedXmlException,
        LookupError,
        ValueError,
    ) as fault:  # LookupError: of an unknown encoding
        return f"{type(fault).__name__}: {fault}"
    sides = [f"{{*}}bndbox/{{*}}{side}" for side in ("xmin", "ymin", "xmax", "ymax")]
    objects = [
        (item.findtext("{*}name", "").strip(), [item.findtext(side) for side in sides])
        for item in root.iterfind(".//{*}object")
    ]
    return _annotation(
        objects,
        [root.findtext(f"{{*}}size/{{*}}{side}") for side in ("width", "height")],
    )


def parse_tiny_boxes(content: bytes) -> dict[str, Said]:
    """Read Tiny ImageNet's tab-separated boxes: name, [class,] xmin, ymin, xmax, ymax."""
    rows = [line.split("\t") for line in _lines(content)]
    images = _by_image((name, "".join(rest[:-4]), rest[-4:]) for name, *rest in rows)
    return {name: _annotation(objects) for name, objects in images.items()}


def parse_csv(content: bytes) -> dict[str, Said]:
    """Read "path,label,x0,y0,x1,y1", named so in the first line, else ValueError; boxes in pixels, or none."""
    lines = _lines(content) or [","]
    try:
        columns, *rows = (
            next(csv.reader([line], delimiter=";" if ";" in lines[0] else ","))
            for line in lines
        )
    except csv.Error as fault:
        raise ValueError(str(fault)) from fault
    columns = [name.strip().lower() for name in columns]
    if not {"path", "label"} <= set(columns):
        raise ValueError("its first line names no columns path and label")
    found = [
        dict.fromkeys(columns, "")
        | dict(zip(columns, map(str.strip, row), strict=False))
        for row in rows
    ]
    sides = ("x0", "y0", "x1", "y1")
    images = _by_image(
        (
            row["path"],
            row["label"],
            [row[side] for side in sides if row.get(side)] or None,
        )
        for row in found
    )
    return {name: _annotation(objects) for name, objects in images.items()}


def parse_coco(content: bytes) -> dict[str, Said]:
    """Read COCO's JSON, else ValueError, by the names of its images; groups of objects (iscrowd) are left out."""
    try:
        given = json.loads(content)
        labels = {item["id"]: str(item["name"]) for item in given["categories"]}
        single = [item for item in given["annotations"] if not item.get("iscrowd")]
        objects = _by_image(
            (
                item["image_id"],
                labels.get(item["category_id"], ""),
                item.get("bbox") or (),
            )
            for item in single
        )
        return {
            str(image["file_name"]): _annotation(
                objects[image["id"]],
                (image.get("width"), image.get("height")),
                lambda x, y, width, height: (x, y, x + width, y + height),
            )
            for image in given["images"]
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        raise ValueError(
            "it does not hold images, annotations and categories as COCO has them"
        ) from fault


def parse_yolo(content: bytes, names: Mapping[str, str]) -> Said:
    """Read lines of "class x y width height", centre and size as shares of the image."""
    objects = [
        (names.get(label, label), numbers)
        for label, *numbers in map(str.split, _lines(content))
    ]
    return _annotation(
        objects,
        (1, 1),
        lambda x, y, width, height: (
            x - width / 2,
            y - height / 2,
            x + width / 2,
            y + height / 2,
        ),
    )


def parse_names(content: bytes) -> dict[str, str]:
    """Read lines of "id name, synonym, ..." (``LOC_synset_mapping.txt``, ``words.txt``); the first name of each."""
    pairs = (line.split(None, 1) for line in _lines(content))
    return {pair[0]: pair[1].split(",")[0].strip() for pair in pairs if len(pair) == 2}
