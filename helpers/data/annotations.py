"""What annotations say of images: Pascal VOC XML, ILSVRC's solution files, Tiny ImageNet's tables, names of classes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, ParseError

import defusedxml.ElementTree
from defusedxml import DefusedXmlException

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Annotation:
    """What an annotation says of one image."""

    boxes: tuple[Box, ...]  # xmin, ymin, xmax, ymax in pixels of the stated size
    objects: tuple[str, ...]  # the class named at each box
    size: tuple[int, int] | None = None  # stated width and height; None where the format states none


def parse_voc(content: bytes) -> Annotation:
    """Read a Pascal VOC XML file, in any namespace; entity definitions are refused, not expanded.

    Raises:
        ValueError: not XML, an encoding that is unknown, or a box without four numbers.
    """
    try:
        root = defusedxml.ElementTree.fromstring(content)
        boxes, names = [], []
        for item in root.iterfind(".//{*}object"):
            corners = item.find("{*}bndbox")
            if corners is None:
                raise ValueError("an object without bndbox")
            boxes.append(tuple(_number(corners, side) for side in ("xmin", "ymin", "xmax", "ymax")))
            names.append((item.findtext("{*}name") or "").strip())
        size = root.find("{*}size")
        stated = (int(_number(size, "width")), int(_number(size, "height"))) if size is not None else None
    except (ParseError, DefusedXmlException, LookupError, ValueError, OverflowError) as fault:  # LookupError: of an unknown encoding
        raise ValueError(f"{type(fault).__name__}: {fault}") from fault
    # A size of zero is how some tools write "unknown".
    return Annotation(tuple(boxes), tuple(names), stated if stated and min(stated) > 0 else None)


def _number(parent: Element, name: str) -> float:
    value = float(parent.findtext(f"{{*}}{name}") or "nothing")
    if not math.isfinite(value):
        raise ValueError(f"{name} is {value}")
    return value


def parse_solution(content: bytes) -> tuple[dict[str, Annotation], dict[str, str]]:
    """Read ``LOC_train_solution.csv`` or ``LOC_val_solution.csv``: "wnid xmin ymin xmax ymax" repeated per image; rows of one image add up.

    Returns:
        Annotations by image id, and what is wrong by image id.
    """
    annotations, faults = {}, {}
    # By hand, because a csv.reader ends the whole file at one lone carriage return or long field; no field of this file holds a comma.
    for number, line in enumerate(content.decode("utf-8-sig", "replace").splitlines()[1:], 2):
        name, _, rest = line.partition(",")
        name, words = name.strip('" '), rest.strip('" ').split()
        try:
            if not words or len(words) % 5:
                raise ValueError(f"{len(words)} words, not a multiple of five")
            boxes = tuple(_finite(words[start + 1 : start + 5]) for start in range(0, len(words), 5))
            annotations[name] = _with_further(annotations.get(name), boxes, tuple(words[::5]))
        except ValueError as fault:
            if name:
                faults[name] = f"line {number}: {fault}"
    return annotations, faults


def _with_further(before: Annotation | None, boxes: tuple[Box, ...], objects: tuple[str, ...]) -> Annotation:
    """What a further line says of an image, beside what is known; a line that stands twice says nothing."""
    if before is None:
        return Annotation(boxes, objects)
    new = [pair for pair in zip(boxes, objects, strict=True) if not (pair[0] in before.boxes and pair[1] in before.objects)]
    return Annotation((*before.boxes, *(box for box, _ in new)), (*before.objects, *(label for _, label in new)))


def _finite(words: Sequence[str]) -> Box:
    corners = tuple(map(float, words))
    if len(corners) != 4 or not all(map(math.isfinite, corners)):
        raise ValueError(f"{len(corners)} finite numbers are needed: 4")
    return corners


def parse_tiny_boxes(content: bytes, with_class: bool) -> tuple[dict[str, Annotation], dict[str, str]]:
    """Read Tiny ImageNet's tab-separated boxes: name, [class,] xmin, ymin, xmax, ymax; a name may have several lines.

    Args:
        content: of ``<wnid>_boxes.txt``, or of ``val_annotations.txt``.
        with_class: whether the second column is the class.

    Returns:
        Annotations by file name, and what is wrong by file name.
    """
    annotations: dict[str, Annotation] = {}
    faults: dict[str, str] = {}
    for number, line in enumerate(content.decode("utf-8-sig", "replace").splitlines(), 1):
        if not line.strip():
            continue
        name, *rest = line.split("\t")
        label = rest.pop(0) if with_class and rest else ""
        try:
            corners = _finite(rest)
            annotations[name] = _with_further(annotations.get(name), (corners,), (label,))
        except ValueError as fault:
            faults[name] = f"line {number}: {fault}"
            if with_class and label:  # the class is still known, only the box is lost
                annotations.setdefault(name, Annotation((), (label,)))
    return annotations, faults


def parse_names(content: bytes, separator: str | None) -> dict[str, str]:
    """Read "id<separator>name, synonym, ..." lines (``LOC_synset_mapping.txt``, ``words.txt``); the first name, as a figure can show it."""
    pairs = (line.split(separator, 1) for line in content.decode("utf-8-sig", "replace").splitlines() if line.strip())
    return {pair[0].strip(): "".join(filter(str.isprintable, pair[1].split(",")[0].strip()))[:100] for pair in pairs if len(pair) == 2}
