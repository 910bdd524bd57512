"""What annotations say of images: Pascal VOC XML, the tables of ILSVRC and Tiny ImageNet, COCO's JSON, a CSV, YOLO's lines."""

import csv
import json
import math
import pickletools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple
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


def _box(corners: Iterable[str | float]) -> Box:
    box = tuple(map(float, corners))
    if len(box) != 4 or not all(map(math.isfinite, box)):
        raise ValueError(f"{len(box)} numbers, where 4 finite ones are needed")
    return box


def _lines(content: bytes) -> list[str]:
    return content.decode("utf-8-sig", "replace").splitlines()


def parse_voc(content: bytes) -> Annotation:
    """Read a Pascal VOC XML file, in any namespace; entity definitions are refused, not expanded.

    Raises:
        ValueError: not XML, an encoding that is unknown, or a box without four numbers.
    """
    sides = ("xmin", "ymin", "xmax", "ymax")
    try:
        root = defusedxml.ElementTree.fromstring(content)
        objects = [
            (item.findtext("{*}name", "").strip(), _box(item.findtext(f"{{*}}bndbox/{{*}}{side}", "") for side in sides))
            for item in root.iterfind(".//{*}object")
        ]
        width, height = (int(float(root.findtext(f"{{*}}size/{{*}}{side}", "0"))) for side in ("width", "height"))
    except (ParseError, DefusedXmlException, LookupError, ValueError, OverflowError) as fault:  # LookupError: of an unknown encoding
        raise ValueError(f"{type(fault).__name__}: {fault}") from fault
    # A size of zero is how some tools write "unknown".
    return _annotation(objects, (width, height) if min(width, height) > 0 else None)


def _annotation(objects: Sequence[tuple[str, Box]], size: tuple[int, int] | None = None) -> Annotation:
    return Annotation(tuple(box for _, box in objects), tuple(label for label, _ in objects), size)


def _table(lines: Sequence[str], objects_of: Callable[[str], tuple[str, list[tuple[str, Sequence[str]]]]], first: int = 1) -> Table:
    """Gather what lines say of images: labels with the words of a box, or with none; a line that stands twice says nothing new."""
    found: Table = {}
    seen: set[str] = set()
    for number, line in enumerate(lines, 1):
        if number < first or not line.strip() or line in seen:
            continue
        seen.add(line)
        name, objects = objects_of(line)
        before = found.get(name, Annotation((), ()))
        try:
            boxes = tuple(_box(words) for _, words in objects if words)
        except ValueError as fault:
            found[name] = f"line {number}: {fault}"
        else:
            if isinstance(before, Annotation):
                found[name] = Annotation(before.boxes + boxes, before.objects + tuple(label for label, _ in objects))
    return found


def parse_solution(content: bytes) -> Table:
    """Read ILSVRC's ``LOC_train_solution.csv`` or ``LOC_val_solution.csv``: "wnid xmin ymin xmax ymax" repeated per image."""

    def objects_of(line: str) -> tuple[str, list[tuple[str, Sequence[str]]]]:
        # By hand, because a csv.reader ends the whole file at one lone carriage return or long field; no field of this file holds a comma.
        name, _, rest = line.partition(",")
        words = rest.strip('" ').split() or ["", "nothing"]
        return name.strip('" '), [(words[start], words[start + 1 : start + 5] or ["nothing"]) for start in range(0, len(words), 5)]

    return _table(_lines(content), objects_of, first=2)


def parse_tiny_boxes(content: bytes, with_class: bool) -> Table:
    """Read Tiny ImageNet's tab-separated boxes: name, [class,] xmin, ymin, xmax, ymax."""

    def objects_of(line: str) -> tuple[str, list[tuple[str, Sequence[str]]]]:
        name, *rest = line.split("\t")
        label = rest.pop(0) if with_class and rest else ""
        return name, [(label, rest or ["nothing"])]

    return _table(_lines(content), objects_of)


def parse_csv(content: bytes) -> Table:
    """Read "path,label,x0,y0,x1,y1", named so in the first line; boxes in pixels, or none.

    Raises:
        ValueError: the first line names no path and label.
    """
    lines = _lines(content)
    columns = [name.strip().lower() for name in next(csv.reader(lines[:1]), [])]
    if not {"path", "label"} <= set(columns):
        raise ValueError("its first line names no columns path and label")

    def objects_of(line: str) -> tuple[str, list[tuple[str, Sequence[str]]]]:
        try:
            row = dict(zip(columns, map(str.strip, next(csv.reader([line]))), strict=False))
        except csv.Error:
            row = {}
        corners = [row[side] for side in ("x0", "y0", "x1", "y1") if row.get(side)]
        return row.get("path", ""), [(row["label"], corners)] if row.get("label") else [("", ["no label"])]

    return _table(lines, objects_of, first=2)


def parse_coco(content: bytes) -> Table:
    """Read COCO's JSON, by the names of its images; groups of objects (iscrowd) are left out.

    Raises:
        ValueError: it is no such JSON.
    """
    try:
        given = json.loads(content)
        categories = {item["id"]: str(item["name"]) for item in given["categories"]}
        images = {item["id"]: (str(item["file_name"]), int(item.get("width", 0)), int(item.get("height", 0))) for item in given["images"]}
        objects, wrong = defaultdict(list), {}
        for item in given["annotations"]:
            try:
                x, y, width, height = _box(item["bbox"])
                if not item.get("iscrowd"):
                    objects[item["image_id"]].append((categories[item["category_id"]], (x, y, x + width, y + height)))
            except (KeyError, TypeError, ValueError) as fault:
                wrong[item["image_id"]] = f"annotation {item.get('id')}: {type(fault).__name__} {fault}"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        raise ValueError("it does not hold images, annotations and categories as COCO has them") from fault
    return {
        name: wrong.get(key) or _annotation(objects[key], (width, height) if min(width, height) > 0 else None)
        for key, (name, width, height) in images.items()
    }


def parse_yolo(content: bytes, names: Mapping[int, str]) -> Annotation:
    """Read lines of "class x y width height", centre and size as shares of the image. Raises ValueError where a line is another."""
    objects = []
    for words in filter(None, map(str.split, _lines(content))):
        x, y, width, height = _box(words[1:])
        objects.append((names.get(int(words[0]), words[0]), (x - width / 2, y - height / 2, x + width / 2, y + height / 2)))
    return _annotation(objects, (1, 1))


def parse_names(content: bytes, separator: str | None) -> dict[str, str]:
    """Read "id<separator>name, synonym, ..." lines (``LOC_synset_mapping.txt``, ``words.txt``); the first name, as a figure can show it."""
    pairs = (line.split(separator, 1) for line in _lines(content) if line.strip())
    return {pair[0].strip(): "".join(filter(str.isprintable, pair[1].split(",")[0].strip()))[:100] for pair in pairs if len(pair) == 2}


_OF_CIFAR = ("data", "labels", "fine_labels", "coarse_labels", "label_names", "fine_label_names", "coarse_label_names", "filenames")


def parse_cifar(content: bytes) -> dict[str, list[int | str]]:
    """Read the numbers and texts of a pickled dict of CIFAR's, by its keys, off the pickle's opcodes: nothing is built, nothing called.

    Raises:
        ValueError: it is no pickle, or is cut.
    """
    found, key = defaultdict(list), ""
    try:
        codes = list(pickletools.genops(content))
    except ValueError as fault:
        raise ValueError(f"it is no file of CIFAR ({fault})") from fault
    for opcode, value, _ in codes:
        value = value.decode("latin-1") if isinstance(value, bytes | bytearray) else value
        if isinstance(value, str) and value in _OF_CIFAR:
            key = value
        elif isinstance(value, str) or opcode.name.startswith("BININT"):  # other numbers are places in the pickle's memory
            found[key].append(value)
    return found


def cifar_rows(content: bytes, of_100: bool, pickled: bool) -> tuple[list[int], bytes]:
    """Labels, fine ones of CIFAR-100, and the bytes of as many images, 3 x 32 x 32 each, of a file of CIFAR's. Raises ValueError."""
    if pickled:
        found = parse_cifar(content)
        labels = found["fine_labels" if of_100 else "labels"]
        pixels = max((text for text in found["data"] if isinstance(text, str)), key=len, default="").encode("latin-1")
    else:
        size, first = 3073 + of_100, 1 + of_100
        labels = list(content[of_100::size])
        pixels = b"".join(content[start + first : start + size] for start in range(0, len(content), size))
    if not labels or len(pixels) != 3072 * len(labels):
        raise ValueError(f"it holds {len(labels):,} labels of CIFAR and {len(pixels):,} bytes of pixels, where each image has 3,072")
    return labels, pixels
