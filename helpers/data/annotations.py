"""What annotations say of images: Pascal VOC XML, the tables of ILSVRC and Tiny ImageNet, COCO's JSON, a CSV, YOLO's lines."""

import csv
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from xml.etree.ElementTree import ParseError

import defusedxml.ElementTree
from defusedxml import DefusedXmlException

Box = tuple[float, float, float, float]


class Annotation(NamedTuple):
    """What an annotation says of one image."""

    boxes: tuple[Box, ...]  # xmin, ymin, xmax, ymax in pixels of the stated size
    objects: tuple[str, ...]  # the class named at each box; of an image without boxes its class
    size: tuple[int, int] | None = None  # stated width and height; None where there is none, (1, 1) where boxes are shares of the image


Table = dict[str, Annotation | str]  # by the image's name; a text says what is wrong
Row = tuple[int, str, list[tuple[str, Sequence[str] | None]]]  # number of the line, image, and labels with the words of a box, or with none


def _annotation(objects: Sequence[tuple[str, Box]], *sides: Any) -> Annotation:
    try:
        size = tuple(int(float(side)) for side in sides)
    except (TypeError, ValueError, OverflowError):
        size = (0, 0)  # which is how some tools write "unknown"
    return Annotation(tuple(box for _, box in objects), tuple(label for label, _ in objects), size if min(size) > 0 else None)


def _box(corners: Iterable[str | float]) -> Box:
    box = tuple(map(float, corners))
    if len(box) != 4 or not all(map(math.isfinite, box)):
        raise ValueError(f"{box} is no box of 4 finite numbers")
    return box


def _lines(content: bytes, first: int = 1) -> list[tuple[int, str]]:
    """Numbered lines, without blank ones; one that stands twice says nothing new."""
    found: dict[str, int] = {}
    for number, line in enumerate(content.decode("utf-8-sig", "replace").splitlines(), 1):
        if number >= first and line.strip():
            found.setdefault(line, number)
    return [(number, line) for line, number in found.items()]


def _table(rows: Iterable[Row]) -> Table:
    """Gather what rows say of images; a wrong row costs its image."""
    found: Table = {}
    for number, name, objects in rows:
        before = found.get(name, Annotation((), ()))
        try:
            boxes = tuple(_box(words) for _, words in objects if words is not None)
        except ValueError as fault:
            found[name] = f"line {number}: {fault}"
        else:
            if isinstance(before, Annotation):
                found[name] = Annotation(before.boxes + boxes, before.objects + tuple(label for label, _ in objects))
    return found


def parse_voc(content: bytes) -> Annotation:
    """Read a Pascal VOC XML file, in any namespace; entity definitions are refused. Raises ValueError for what is no such file."""
    sides = ("xmin", "ymin", "xmax", "ymax")
    try:
        root = defusedxml.ElementTree.fromstring(content)
        objects = [
            (item.findtext("{*}name", "").strip(), _box(item.findtext(f"{{*}}bndbox/{{*}}{side}", "") for side in sides))
            for item in root.iterfind(".//{*}object")
        ]
        return _annotation(objects, *(root.findtext(f"{{*}}size/{{*}}{side}") for side in ("width", "height")))
    except (ParseError, DefusedXmlException, LookupError, ValueError) as fault:  # LookupError: of an unknown encoding
        raise ValueError(f"{type(fault).__name__}: {fault}") from fault


def parse_solution(content: bytes) -> Table:
    """Read ILSVRC's ``LOC_train_solution.csv`` or ``LOC_val_solution.csv``: "wnid xmin ymin xmax ymax" repeated per image."""
    rows = []
    for number, line in _lines(content, first=2):
        name, _, rest = line.partition(",")
        words = rest.strip('" ').split() or [""]
        rows.append((number, name.strip('" '), [(words[start], words[start + 1 : start + 5]) for start in range(0, len(words), 5)]))
    return _table(rows)


def parse_tiny_boxes(content: bytes) -> Table:
    """Read Tiny ImageNet's tab-separated boxes: name, [class,] xmin, ymin, xmax, ymax."""
    rows = [(number, *line.split("\t")) for number, line in _lines(content)]
    return _table((number, name, [("".join(rest[:-4]), rest[-4:])]) for number, name, *rest in rows)


def parse_csv(content: bytes) -> Table:
    """Read "path,label,x0,y0,x1,y1", named so in the first line, else ValueError; boxes in pixels, or none."""
    (_, first), *lines = _lines(content) or [(1, "")]
    separator, rows = ";" if ";" in first else ",", []
    try:
        columns = [name.strip().lower() for name in next(csv.reader([first], delimiter=separator))]
        if not {"path", "label"} <= set(columns):
            raise ValueError("its first line names no columns path and label")
        for number, line in lines:
            row = dict(zip(columns, map(str.strip, next(csv.reader([line], delimiter=separator))), strict=False))
            corners = [row[side] for side in ("x0", "y0", "x1", "y1") if row.get(side)]
            rows.append((number, row.get("path", ""), [(row.get("label", ""), corners or None)]))
    except csv.Error as fault:
        raise ValueError(str(fault)) from fault
    return {name: "a line names no class" if "" in getattr(said, "objects", ()) else said for name, said in _table(rows).items()}


def parse_coco(content: bytes) -> Table:
    """Read COCO's JSON, else ValueError, by the names of its images; groups of objects (iscrowd) are left out."""
    try:
        given = json.loads(content)
        categories = {item["id"]: str(item["name"]) for item in given["categories"]}
        objects, wrong = defaultdict(list), {}
        for item in given["annotations"]:
            try:
                x, y, width, height = _box(item["bbox"])
                if not item.get("iscrowd"):
                    objects[item["image_id"]].append((categories[item["category_id"]], (x, y, x + width, y + height)))
            except (KeyError, TypeError, ValueError) as fault:
                wrong[item["image_id"]] = f"annotation {item.get('id')}: {type(fault).__name__} {fault}"
        return {
            str(image["file_name"]): wrong.get(image["id"]) or _annotation(objects[image["id"]], image.get("width"), image.get("height"))
            for image in given["images"]
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        raise ValueError("it does not hold images, annotations and categories as COCO has them") from fault


def parse_yolo(content: bytes, names: Mapping[int, str]) -> Annotation:
    """Read lines of "class x y width height", centre and size as shares of the image. Raises ValueError where a line is another."""
    objects = []
    for _, line in _lines(content):
        label, *numbers = line.split()
        x, y, width, height = _box(numbers)
        objects.append((names.get(int(label), label), (x - width / 2, y - height / 2, x + width / 2, y + height / 2)))
    return _annotation(objects, 1, 1)


def parse_names(content: bytes, separator: str | None) -> dict[str, str]:
    """Read "id<separator>name, synonym, ..." lines (``LOC_synset_mapping.txt``, ``words.txt``); the first name of each."""
    pairs = (line.split(separator, 1) for _, line in _lines(content))
    return {pair[0].strip(): pair[1].split(",")[0].strip() for pair in pairs if len(pair) == 2}
