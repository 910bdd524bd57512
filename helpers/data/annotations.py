"""Parsers of annotation files: the labels and boxes of the objects in images.

Each reads one documented form (docs/images.md) and raises ValueError for any other.
"""

import csv
import json
import posixpath
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from defusedxml import ElementTree

from helpers.data.sources import UNUSABLE, Fault, to_nfc

Box = tuple[float, float, float, float]
IN_SHARES = (1, 1)  # the stated size where boxes are shares of the image
_MOST_ROUNDING = 0.01  # by which a share may lie outside of [0, 1]
_CORNERS = ("x0", "y0", "x1", "y1")
# Further names of the columns of a table of objects.
_COLUMNS = {
    "path": "image image_name image_path filename file_name",
    "label": "class class_name category",
    "split": "subset",
    "width": "image_width",
    "height": "image_height",
    "x0": "xmin",
    "y0": "ymin",
    "x1": "xmax",
    "y1": "ymax",
}
_COUNTED_FROM_ONE = {"x1": "x0", "y1": "y0", "x2": "x1", "y2": "y1"}


class OtherLayoutError(ValueError):
    """An annotation shows that the whole source is to be read in another way."""


class Annotation(NamedTuple):
    """Objects in one image, as an annotation states them."""

    # Label and box of each; a box is xmin, ymin, xmax, ymax in pixels of ``size``.
    objects: Sequence[tuple[str, Box | None]]
    size: tuple[int, int] | None = None  # stated width and height, or IN_SHARES
    split: str = ""  # as its file calls it, such as "valid"; "" where not stated


class Record(NamedTuple):
    """An image that a source lists."""

    name: str  # path inside the source
    class_id: str  # "" if not known
    split: str  # "train" or "test"
    boxes: tuple[Box, ...] = ()  # usable or not
    size: tuple[int, int] | None = None  # width and height that boxes refer to
    content: bytes = b""  # of an image that is part of a larger file

    def fault(self, kind: str, detail: str) -> Fault:
        """Make a fault of this image.

        Args:
            kind: name of the kind of fault, such as "missing_annotation".
            detail: the fault in words.
        """
        return Fault(self.name, kind, detail, self.class_id, self.split)


def of_largest(annotation: Annotation) -> tuple[str, tuple[Box, ...]]:
    """Class of the largest object of an image, and the boxes of this class.

    Args:
        annotation: with at least one object.

    Raises:
        ValueError: if objects of several classes have no box.
    """
    label, largest = max(annotation.objects, key=lambda item: _area(item[1]))
    labels = {name for name, _ in annotation.objects}
    if len(labels) > 1 and not largest:
        raise ValueError(f"it has the labels {', '.join(sorted(labels))} and no box")
    boxes = [box for name, box in annotation.objects if name == label and box]
    return label, tuple(boxes)


def _area(box: Box | None) -> float:
    return (box[2] - box[0]) * (box[3] - box[1]) if box else 0.0


def _box(numbers: Any) -> Box:
    """Check that numbers are four and finite, and return them as a box."""
    box = np.asarray(numbers, dtype=float)
    if box.shape != (4,) or not np.isfinite(box).all():
        raise ValueError(f"{numbers!r:.100} is not a box of 4 finite numbers")
    return tuple(box.tolist())


def _bounds(points: Any) -> Box:
    """Box around points x, y."""
    corners = np.asarray(points, dtype=float)
    return _box([*corners.min(0), *corners.max(0)])


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
        ValueError: if an object has no ``bndbox``, or entities are defined.
        ParseError: if it is not XML.

    Example:
        >>> box = b"<xmin>1</xmin><ymin>2</ymin><xmax>3</xmax><ymax>4</ymax>"
        >>> item = b"<object><name>cat</name><bndbox>" + box + b"</bndbox></object>"
        >>> parse_voc(b"<annotation>" + item + b"</annotation>").objects
        [('cat', (1.0, 2.0, 3.0, 4.0))]
    """
    root = ElementTree.fromstring(content)
    objects = []
    for item in root.iterfind("object"):
        sides = ("xmin", "ymin", "xmax", "ymax")
        box = _box([item.findtext(f"bndbox/{side}") for side in sides])
        objects.append((_label(item.findtext("name", "")), box))
    size = _size(root.findtext("size/width"), root.findtext("size/height"))
    return Annotation(objects, size)


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
    return Annotation(objects, _size(table.get("imageWidth"), table.get("imageHeight")))


def parse_yolo(content: bytes, names: Mapping[str, str]) -> Annotation:
    """Read lines of "class x y width height", centre and size as shares of the image.

    Lines with further numbers are refused: they may be a confidence, a track, key
    points or an outline.

    Args:
        content: bytes of the file of one image.
        names: of classes by number.

    Raises:
        OtherLayoutError: for a class without a name; others may have wrong ones then.
        ValueError: for any other line.

    Example:
        >>> parse_yolo(b"0 0.5 0.5 1 0.5", {"0": "cat"}).objects
        [('cat', (0.0, 0.25, 1.0, 0.75))]
    """
    objects = []
    for line in filter(str.strip, content.decode().splitlines()):
        number, *numbers = line.split()
        x, y, width, height = shares = _box(numbers)
        if min(shares) < -_MOST_ROUNDING or max(shares) > 1 + _MOST_ROUNDING:
            raise ValueError(f"{line:.60} are no shares of the image: are they pixels?")
        if number not in names:
            raise OtherLayoutError(
                f"the class {number} has no name: names are of {', '.join(names)}"
            )
        box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        objects.append((_label(names[number]), box))
    return Annotation(objects, IN_SHARES)


# --- a file of many images: the parts of each, which are then parsed ---


def parts_by_name(file: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """An annotation of the photograph (.JPEG) that its file is named after.

    Args:
        file: path of the file.
        content: its bytes.
    """
    stem, _ = posixpath.splitext(posixpath.basename(file))
    yield f"{stem}.JPEG", content


def parts_of_tiny(file: str, content: bytes) -> Iterator[tuple[str, list[str]]]:
    """Split Tiny ImageNet's table of boxes, or of validation images, by tabs.

    Args:
        file: path of the table, whose folder is the class where no cell is.
        content: its bytes.

    Returns:
        Name of each image, and class, xmin, ymin, xmax, ymax.
    """
    folder = posixpath.basename(posixpath.dirname(file))
    for line in content.decode().splitlines():
        name, *cells = line.split("\t")
        yield name, cells if len(cells) == 5 else [folder, *cells]


def parse_tiny(cells: Sequence[str]) -> Annotation:
    """Read the class and box of an image of Tiny ImageNet.

    Args:
        cells: see ``parts_of_tiny``.

    Example:
        >>> parse_tiny(["n01", "0", "1", "2", "3"]).objects
        [('n01', (0.0, 1.0, 2.0, 3.0))]
    """
    label, *numbers = cells
    return Annotation([(_label(label), _box(numbers))])


def parts_of_coco(
    file: str, content: bytes
) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Split COCO's JSON by images; groups of objects (iscrowd) are left out.

    Args:
        file: path of the file.
        content: its bytes.

    Returns:
        ``file_name`` of each image; the image and its annotations, with labels.

    Raises:
        ValueError: if an id is that of two items or of none.
    """
    table = json.loads(content)
    labels = _by_id(table["categories"], "name")
    names = _by_id(table["images"], "file_name")
    of_image = defaultdict(list)
    for item in table["annotations"]:
        key = str(item["image_id"])
        category = str(item["category_id"])
        if key not in names or category not in labels:
            raise ValueError(
                f"an object is of the image {key} and the category {category}, which "
                "are not both listed"
            )
        if not item.get("iscrowd"):
            of_image[key].append(item | {"label": labels[category]})
    for image in table["images"]:
        yield image["file_name"], [image, *of_image[str(image["id"])]]


def _by_id(items: Sequence[Mapping[str, Any]], name: str) -> dict[str, str]:
    """Names by id, which must be of one item each."""
    names = {str(item["id"]): item[name] for item in items}
    if len(names) < len(items):
        raise ValueError(f"two items of it with a {name} have one id")
    return names


def parse_coco(items: Sequence[Mapping[str, Any]]) -> Annotation:
    """Read the objects of an image of COCO.

    The box of an object that states none is the one around its polygons.

    Args:
        items: the image and its annotations, see ``parts_of_coco``.

    Raises:
        ValueError: if an object has neither.
    """
    image, *annotations = items
    objects = []
    for item in annotations:
        outlines = item.get("segmentation")
        if any(item.get("bbox") or ()):  # some tools write zeros for no box
            x, y, width, height = _box(item["bbox"])
            box = (x, y, x + width, y + height)
        elif outlines and isinstance(outlines, list):
            points = [np.reshape(outline, (-1, 2)) for outline in outlines]
            box = _bounds(np.concatenate(points))
        else:
            raise ValueError("an object has no bbox and no polygon")
        objects.append((_label(item["label"]), box))
    return Annotation(objects, _size(image.get("width"), image.get("height")))


def columns_of_csv(content: bytes) -> list[str]:
    """Columns of a table: path, label, split, width, height and x0, y0, x1, y1.

    Args:
        content: bytes of the file, UTF-8 with commas.

    Returns:
        The columns under these names, whatever the table calls them; others as they
        are.

    Example:
        >>> columns_of_csv(b"filename,class,x1,y1,x2,y2")
        ['path', 'label', 'x0', 'y0', 'x1', 'y1']
    """
    head = content.partition(b"\n")[0].decode("utf-8-sig")
    columns = [name.strip(' "\r').lower() for name in head.split(",")]
    if "x2" in columns:
        columns = [_COUNTED_FROM_ONE.get(name, name) for name in columns]
    names = {name: column for column, text in _COLUMNS.items() for name in text.split()}
    return [names.get(name, name) for name in columns]


def parts_of_csv(
    file: str, content: bytes
) -> Iterable[tuple[str, list[dict[str, str]]]]:
    """Split a table of objects, a line each, by images.

    Args:
        file: path of the table.
        content: its bytes.

    Returns:
        Path of each image as the table has it, and its lines.

    Raises:
        ValueError: if a column stands twice or is another one, or corners are missing.
    """
    columns = columns_of_csv(content)
    known = {*columns} & {*_COLUMNS}
    if len(known) < len(columns) or len(known & {*_CORNERS}) not in (0, 4):
        raise ValueError(
            f"its columns {', '.join(columns)} are not path and label, and perhaps "
            "split, the corners x0, y0, x1, y1, width and height, each once"
        )
    _, *lines = content.decode("utf-8-sig").splitlines(keepends=True)
    rows = defaultdict(list)
    for row in csv.DictReader(lines, columns, restkey="", restval=""):
        rows[row["path"].strip()].append(row)
    return rows.items()


def parse_csv(rows: Sequence[Mapping[str, str]]) -> Annotation:
    """Read the lines of an image of a table of objects.

    Args:
        rows: see ``parts_of_csv``.

    Raises:
        ValueError: if a line has more cells than there are columns.
    """
    objects = []
    for row in rows:
        if "" in row:
            raise ValueError(f"a line has the cells {row['']} beyond the columns")
        numbers = [row[side] for side in _CORNERS if row.get(side, "").strip()]
        box = _box(numbers) if numbers else None
        objects.append((_label(row["label"]), box))
    size = _size(row.get("width"), row.get("height"))
    return Annotation(objects, size, row.get("split", ""))
