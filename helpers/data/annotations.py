"""Parsers of annotation files: the labels and boxes of the objects in images.

Each reads one documented form (docs/images.md) and raises ValueError for any other.
"""

import csv
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from defusedxml import ElementTree
from defusedxml.ElementTree import ParseError

from helpers.data.sources import UNUSABLE, Fault, to_nfc

Box = tuple[float, float, float, float]
IN_SHARES = (1, 1)  # the stated size where boxes are shares of the image
_MOST_ROUNDING = 0.01  # by which a share may lie outside of [0, 1]
_COLUMNS = {
    "path": ("path", "image", "image_name", "image_path", "filename", "file_name"),
    "label": ("label", "class", "class_name", "category"),
    "split": ("split", "subset"),
    "width": ("width", "image_width"),
    "height": ("height", "image_height"),
}
# Columns that may be numbers of a box.
_OF_BOX = re.compile(r"[xywh]|[xyc][\dxy_m].*|.*box.*|left|top|right|bottom")
_CORNERS = (
    ("x0", "y0", "x1", "y1"),
    ("xmin", "ymin", "xmax", "ymax"),
    ("x1", "y1", "x2", "y2"),
)


class Annotation(NamedTuple):
    """Objects in one image, as an annotation states them."""

    # Label and box of each; a box is xmin, ymin, xmax, ymax in pixels of ``size``.
    objects: tuple[tuple[str, Box | None], ...] = ()
    size: tuple[int, int] | None = None  # stated width and height, or IN_SHARES
    split: str = ""  # as its file calls it, such as "valid"; "" where not stated
    fault: str = ""  # why it cannot be used, in words

    @property
    def boxes(self) -> tuple[Box, ...]:
        """Boxes, usable or not."""
        return tuple(box for _, box in self.objects if box is not None)


class Record(NamedTuple):
    """An image that a source lists."""

    name: str  # path inside the source
    class_id: str  # "" if not known
    split: str  # "train" or "test"
    annotation: Annotation | None = None
    content: bytes = b""  # of an image that is part of a larger file

    @property
    def boxes(self) -> tuple[Box, ...]:
        """Annotated boxes, usable or not."""
        return self.annotation.boxes if self.annotation else ()

    def fault(self, kind: str, detail: str) -> Fault:
        """Make a fault of this image.

        Args:
            kind: name of the kind of fault, such as "missing_annotation".
            detail: the fault in words.
        """
        return Fault(self.name, kind, detail, self.class_id, self.split)


def of_largest(annotation: Annotation) -> tuple[str, Annotation]:
    """Class of the largest object, and the annotation with its objects alone.

    Args:
        annotation: of one image, with any number of objects.

    Returns:
        The label and the annotation; "" if it has no object.
    """
    if not annotation.objects:
        return "", annotation
    label, _ = max(annotation.objects, key=lambda item: _area(item[1]))
    objects = tuple(item for item in annotation.objects if item[0] == label)
    return label, annotation._replace(objects=objects)


def _area(box: Box | None) -> float:
    return (box[2] - box[0]) * (box[3] - box[1]) if box else 0.0


def _box(numbers: Sequence[Any]) -> Box:
    """Check that numbers are four and finite, and return them as a box."""
    try:
        x0, y0, x1, y1 = map(float, numbers)
    except (TypeError, ValueError):
        x0 = math.nan
    if not math.isfinite(x0) or not all(map(math.isfinite, (y0, x1, y1))):
        raise ValueError(f"{numbers!r:.100} is not a box of 4 finite numbers")
    return x0, y0, x1, y1


def _bounds(points: Iterable[Sequence[float]]) -> Box:
    """Box around points x, y."""
    columns, rows = zip(*points, strict=True)
    return _box([min(columns), min(rows), max(columns), max(rows)])


def _label(text: Any) -> str:
    """A label that can be the id of a class: it stands in tables and paths."""
    label = to_nfc(str(text).strip())
    if not label or "/" in label or UNUSABLE.search(label):
        raise ValueError(f"{label!r:.100} cannot be the name of a class")
    return label


def _size(width: Any, height: Any) -> tuple[int, int] | None:
    """Stated width and height; None where a tool wrote nothing, or 0."""
    size = int(float(width or 0)), int(float(height or 0))
    return size if min(size) > 0 else None


# --- a file an image ---


def parse_voc(content: bytes) -> Annotation:
    """Read a Pascal VOC XML file; entity definitions are refused.

    Args:
        content: bytes of the file.

    Raises:
        ValueError: if it is not XML, or an object has no ``bndbox``.

    Example:
        >>> box = b"<xmin>1</xmin><ymin>2</ymin><xmax>3</xmax><ymax>4</ymax>"
        >>> item = b"<object><name>cat</name><bndbox>" + box + b"</bndbox></object>"
        >>> parse_voc(b"<annotation>" + item + b"</annotation>").objects
        (('cat', (1.0, 2.0, 3.0, 4.0)),)
    """
    try:
        root = ElementTree.fromstring(content)
    except (ParseError, LookupError) as fault:  # of an unknown encoding
        raise ValueError(f"it is not XML ({fault})") from fault
    objects = []
    for item in root.iterfind("object"):
        box = item.find("bndbox")
        if box is None:
            tags = ", ".join(child.tag for child in item)
            raise ValueError(f"an object has {tags} and no bndbox")
        numbers = [box.findtext(side) for side in ("xmin", "ymin", "xmax", "ymax")]
        objects.append((_label(item.findtext("name", "")), _box(numbers)))
    size = _size(root.findtext("size/width"), root.findtext("size/height"))
    return Annotation(tuple(objects), size)


def parse_labelme(content: bytes) -> Annotation:
    """Read labelme's JSON of one image: the box around the points of each shape.

    Args:
        content: bytes of the file.

    Raises:
        ValueError: if a shape is no rectangle, turned or not, and no polygon.
    """
    table = json.loads(content)
    objects = []
    for shape in table["shapes"]:
        kind = shape.get("shape_type") or "polygon"
        if kind not in ("rectangle", "rotation", "polygon"):
            raise ValueError(f"a shape is a {kind}, no rectangle and no polygon")
        objects.append((_label(shape["label"]), _bounds(shape["points"])))
    size = _size(table.get("imageWidth"), table.get("imageHeight"))
    return Annotation(tuple(objects), size)


def parse_yolo(content: bytes, names: Mapping[int, str]) -> Annotation:
    """Read lines of "class x y width height", centre and size as shares of the image.

    Lines with further numbers are refused: they may be a confidence, a track, key
    points or an outline.

    Args:
        content: bytes of the file of one image.
        names: of classes by number.

    Raises:
        ValueError: for any other line.

    Example:
        >>> parse_yolo(b"0 0.5 0.5 1 0.5", {0: "cat"}).objects
        (('cat', (0.0, 0.25, 1.0, 0.75)),)
    """
    objects = []
    for line in content.decode().splitlines():
        if not line.strip():
            continue
        number, *numbers = line.split()
        if len(numbers) != 4:
            raise ValueError(
                f"a line has {len(numbers) + 1} numbers ({line[:60]}), not the 5 of "
                "class x y width height"
            )
        x, y, width, height = shares = _box(numbers)
        if min(shares) < -_MOST_ROUNDING or max(shares) > 1 + _MOST_ROUNDING:
            raise ValueError(
                f"{line[:60]} are no shares of the image: are they pixels?"
            )
        if not number.isdecimal() or int(number) not in names:
            raise ValueError(f"the class {number} has no name in data.yaml")
        box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        objects.append((_label(names[int(number)]), box))
    return Annotation(tuple(objects), IN_SHARES)


# --- a file of many images ---


def parse_tiny_boxes(content: bytes) -> dict[str, Annotation]:
    """Read Tiny ImageNet's boxes: name, [class,] xmin, ymin, xmax, ymax, tab-separated.

    Args:
        content: bytes of the table of a class, or of that of validation images.

    Returns:
        Annotations by the names of images; without a class labels are "".

    Example:
        >>> parse_tiny_boxes(b"a.JPEG\\tn01\\t0\\t1\\t2\\t3")["a.JPEG"].objects
        (('n01', (0.0, 1.0, 2.0, 3.0)),)
    """
    annotations = {}
    for line in content.decode().splitlines():
        name, *rest = line.split("\t")
        try:
            annotation = Annotation((("".join(rest[:-4]), _box(rest[-4:])),))
        except ValueError as fault:
            annotation = Annotation(fault=str(fault))
        annotations[name] = annotation
    return annotations


def parse_coco(content: bytes) -> dict[str, Annotation]:
    """Read COCO's JSON by the names of its images.

    Groups of objects (iscrowd) are left out. The box of an object that states none is
    the one around its polygons.

    Args:
        content: bytes of the file.

    Returns:
        Annotations by ``file_name``.

    Raises:
        ValueError: if an id is that of two items or of none.
    """
    table = json.loads(content)
    labels = _by_id(table["categories"], "name")
    names = _by_id(table["images"], "file_name")
    of_image = defaultdict(list)
    for item in table["annotations"]:
        key = str(item["image_id"])
        if key not in names:
            raise ValueError(f"an object is of the image {key}, which is not listed")
        if not item.get("iscrowd"):
            of_image[key].append(item)
    annotations = {}
    for image in table["images"]:
        objects = []
        fault = ""
        try:
            for item in of_image[str(image["id"])]:
                label = _label(labels[str(item["category_id"])])
                objects.append((label, _coco_box(item)))
        except ValueError as error:
            fault = str(error)
        size = _size(image.get("width"), image.get("height"))
        objects = [] if fault else objects
        annotations[image["file_name"]] = Annotation(tuple(objects), size, "", fault)
    return annotations


def _by_id(items: Sequence[Mapping[str, Any]], name: str) -> dict[str, str]:
    """Names by id, which must be of one item each."""
    names = {str(item["id"]): item[name] for item in items}
    if not len(items) == len(names) == len(set(names.values())):
        raise ValueError(f"two items of it have one id or one {name}")
    return names


def _coco_box(item: Mapping[str, Any]) -> Box:
    """The box of an object, or the one around its polygons."""
    numbers = item.get("bbox")
    polygons = item.get("segmentation")
    if numbers and any(numbers):  # some tools write zeros for no box
        x, y, width, height = _box(numbers)
        return x, y, x + width, y + height
    if not isinstance(polygons, list) or not polygons:
        raise ValueError("an object has no bbox and no polygon")
    points = [
        list(zip(outline[::2], outline[1::2], strict=True)) for outline in polygons
    ]
    return _bounds([point for outline in points for point in outline])


def parse_csv(content: bytes) -> dict[str, Annotation]:
    """Read a table of objects: columns path and label, and the corners of a box.

    Args:
        content: bytes of the file, UTF-8, by commas, semicolons or tabs.

    Returns:
        Annotations by path as the table has it.

    Raises:
        ValueError: if a column is missing or stands twice, or has numbers of a box
            other than corners.

    Example:
        >>> parse_csv(b"path;label\\na.png;cat")["a.png"].objects
        (('cat', None),)
    """
    lines = content.decode("utf-8-sig").splitlines()
    delimiter, head = _csv_head(lines[0])
    columns = csv_columns(lines[0])
    corners = [names for names in _CORNERS if set(names) <= set(head)]
    strange = [name for name in head if _OF_BOX.fullmatch(name)]
    if len(corners) > 1 or (strange and not corners):
        raise ValueError(
            f"its columns {', '.join(strange)} are not the corners x0, y0, x1, y1"
        )
    annotations: dict[str, Annotation] = {}
    for row in csv.DictReader(lines[1:], head, delimiter=delimiter, restval=""):
        cells = {column: row[name].strip() for column, name in columns.items()}
        numbers = [row[side].strip() for side in (corners or [()])[0]]
        earlier = annotations.get(cells["path"], Annotation())
        if not earlier.fault:
            annotations[cells["path"]] = _with_row(earlier, cells, numbers)
    return annotations


def csv_columns(line: str) -> dict[str, str]:
    """Names that the first line of a table has for path, label, split, width, height.

    Args:
        line: the first line of a CSV.

    Raises:
        ValueError: if two of its columns may be one of these.

    Example:
        >>> csv_columns("filename;class;xmin")
        {'path': 'filename', 'label': 'class'}
    """
    _, head = _csv_head(line)
    columns = {}
    for column, names in _COLUMNS.items():
        present = [name for name in names if name in head]
        if len(present) > 1:
            raise ValueError(f"its columns {' and '.join(present)} may be the {column}")
        if present:
            columns[column] = present[0]
    return columns


def _csv_head(line: str) -> tuple[str, list[str]]:
    """Delimiter of a table, the most frequent in its first line; names of columns."""
    delimiter = max(",;\t", key=line.count)
    return delimiter, [name.strip(' "').lower() for name in line.split(delimiter)]


def _with_row(
    earlier: Annotation, cells: Mapping[str, str], numbers: Sequence[str]
) -> Annotation:
    """The annotation of an image with the object of a further line."""
    try:
        box = _box(numbers) if any(numbers) else None
        objects = (*earlier.objects, (_label(cells["label"]), box))
        size = _size(cells.get("width"), cells.get("height"))
    except ValueError as fault:
        return Annotation(fault=str(fault))
    return Annotation(objects, size, cells.get("split", ""))
