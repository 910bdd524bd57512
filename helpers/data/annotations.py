"""Parsers of annotation files: the labels and boxes of the objects in images.

Each reads one documented form (docs/images.md), raises an error for any other, and
gives the annotations in a file: the name of an image, "" where it is the one that the
file lies beside, and what is in it.
"""

import csv
import json
import posixpath
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
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


class Annotation(NamedTuple):
    """Objects in one image, as an annotation states them."""

    # Label and box of each; a box is xmin, ymin, xmax, ymax in pixels of ``size``.
    objects: Sequence[tuple[str, Box | None]]
    size: tuple[int, int] | None = None  # stated width and height, or IN_SHARES
    split: str = ""  # as its file calls it, such as "valid"; "" where not stated


Annotations = Iterator[tuple[str, Annotation]]  # names of images, what is in them


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


def _object(label: Any, corners: Any) -> tuple[str, Box | None]:
    """Check a label, which stands in tables and paths, and a box, or None."""
    name = to_nfc(str(label).strip())
    if not name or "/" in name or UNUSABLE.search(name):
        raise ValueError(f"{name!r:.100} cannot be the name of a class")
    if corners is None:
        return name, None
    box = np.asarray(corners, dtype=float)
    if box.shape != (4,) or not np.isfinite(box).all():
        raise ValueError(f"{corners!r:.100} is not a box of 4 finite numbers")
    return name, tuple(box.tolist())


def _bounds(points: Any) -> list[float]:
    """Corners of the box around points x, y."""
    places = np.asarray(points, dtype=float)
    return [*places.min(0), *places.max(0)]


def _size(width: Any, height: Any) -> tuple[int, int] | None:
    """Stated width and height; None where a tool wrote nothing, or 0."""
    size = int(float(width or 0)), int(float(height or 0))
    return size if min(size) > 0 else None


# --- a file an image ---


def read_voc(file: str, content: bytes, ending: str = "") -> Annotations:
    """Read a Pascal VOC XML file; entity definitions are refused.

    Args:
        file: its path.
        content: its bytes.
        ending: of the image of the file's name; "" for the one beside it.

    Raises:
        ValueError: if an object has no ``bndbox``, or entities are defined.
        ParseError: if it is not XML.

    Example:
        >>> box = b"<xmin>1</xmin><ymin>2</ymin><xmax>3</xmax><ymax>4</ymax>"
        >>> item = b"<object><name>cat</name><bndbox>" + box + b"</bndbox></object>"
        >>> [(_, found)] = read_voc("1.xml", b"<annotation>" + item + b"</annotation>")
        >>> found.objects
        [('cat', (1.0, 2.0, 3.0, 4.0))]
    """
    root = ElementTree.fromstring(content)
    sides = ("xmin", "ymin", "xmax", "ymax")
    objects = [
        _object(
            item.findtext("name", ""),
            [item.findtext(f"bndbox/{side}") for side in sides],
        )
        for item in root.iterfind("object")
    ]
    stem, _ = posixpath.splitext(posixpath.basename(file))
    size = _size(root.findtext("size/width"), root.findtext("size/height"))
    yield ending and stem + ending, Annotation(objects, size)


def read_labelme(file: str, content: bytes) -> Annotations:
    """Read labelme's JSON of one image: the box around the points of each shape.

    Args:
        file: its path.
        content: its bytes.

    Raises:
        ValueError: if a shape is no rectangle, turned or not, and no polygon.
    """
    table = json.loads(content)
    objects = []
    for shape in table["shapes"]:
        kind = shape.get("shape_type") or "polygon"
        if kind not in ("rectangle", "rotation", "polygon"):
            raise ValueError(f"a shape is a {kind}, no rectangle and no polygon")
        objects.append(_object(shape["label"], _bounds(shape["points"])))
    size = _size(table.get("imageWidth"), table.get("imageHeight"))
    yield "", Annotation(objects, size)


def read_yolo(file: str, content: bytes, names: Mapping[str, str]) -> Annotations:
    """Read lines of "class x y width height", centre and size as shares of the image.

    Lines with further numbers are refused: they may be a confidence, a track, key
    points or an outline.

    Args:
        file: its path.
        content: its bytes.
        names: of classes by number.

    Raises:
        ValueError: for any other line, or a class without a name.

    Example:
        >>> [(_, found)] = read_yolo("1.txt", b"0 0.5 0.5 1 0.5", {"0": "cat"})
        >>> found.objects
        [('cat', (0.0, 0.25, 1.0, 0.75))]
    """
    objects = []
    for line in filter(str.strip, content.decode().splitlines()):
        number, *numbers = line.split()
        if number not in names:
            raise ValueError(
                f"the class {number} has no name: names are of {', '.join(names)}"
            )
        label, shares = _object(names[number], numbers)
        if min(shares) < -_MOST_ROUNDING or max(shares) > 1 + _MOST_ROUNDING:
            raise ValueError(f"{line:.60} are no shares of the image: are they pixels?")
        x, y, width, height = shares
        box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        objects.append((label, box))
    yield "", Annotation(objects, IN_SHARES)


# --- a file of many images ---


def read_tiny(file: str, content: bytes) -> Annotations:
    """Read Tiny ImageNet's table of boxes, or of validation images, by tabs.

    Args:
        file: path of the table, whose folder is the class where no cell is.
        content: its bytes.

    Example:
        >>> [(name, found)] = read_tiny("n01/n01_boxes.txt", b"a.JPEG\\t0\\t1\\t2\\t3")
        >>> name, found.objects
        ('a.JPEG', [('n01', (0.0, 1.0, 2.0, 3.0))])
    """
    folder = posixpath.basename(posixpath.dirname(file))
    for line in content.decode().splitlines():
        name, *cells = line.split("\t")
        label, *corners = cells if len(cells) == 5 else [folder, *cells]
        yield name, Annotation([_object(label, corners)])


def read_coco(file: str, content: bytes) -> Annotations:
    """Read COCO's JSON; groups of objects (iscrowd) are left out.

    Args:
        file: its path.
        content: its bytes.

    Raises:
        ValueError: if an id is that of two items or of none, or an object has no box.
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
            of_image[key].append(_object(labels[category], _corners_of_coco(item)))
    for image in table["images"]:
        size = _size(image.get("width"), image.get("height"))
        yield image["file_name"], Annotation(of_image[str(image["id"])], size)


def _by_id(items: Sequence[Mapping[str, Any]], name: str) -> dict[str, str]:
    """Names by id, which must be of one item each."""
    names = {str(item["id"]): item[name] for item in items}
    if len(names) < len(items):
        raise ValueError(f"two items of it with a {name} have one id")
    return names


def _corners_of_coco(item: Mapping[str, Any]) -> Sequence[float]:
    """Corners of an object's ``bbox``, or of the box around its polygons."""
    outlines = item.get("segmentation")
    if any(item.get("bbox") or ()):  # some tools write zeros for no box
        corners = np.array(item["bbox"], dtype=float)
        corners[2:] += corners[:2]
        return corners
    if outlines and isinstance(outlines, list):
        points = [np.reshape(outline, (-1, 2)) for outline in outlines]
        return _bounds(np.concatenate(points))
    raise ValueError("an object has no bbox and no polygon")


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


def read_csv(file: str, content: bytes) -> Annotations:
    """Read a table of objects, a line each.

    Args:
        file: its path.
        content: its bytes.

    Raises:
        ValueError: if a column stands twice or is another one, if corners are missing,
            or if a line has more cells than there are columns.
    """
    columns = columns_of_csv(content)
    known = {*columns} & {*_COLUMNS}
    if len(known) < len(columns) or len(known & {*_CORNERS}) not in (0, 4):
        raise ValueError(
            f"its columns {', '.join(columns)} are not path and label, and perhaps "
            "split, the corners x0, y0, x1, y1, width and height, each once"
        )
    _, *lines = content.decode("utf-8-sig").splitlines(keepends=True)
    of_image: dict[str, Annotation] = {}
    for row in csv.DictReader(lines, columns, restkey="", restval=""):
        if "" in row:
            raise ValueError(f"a line has the cells {row['']} beyond the columns")
        size = _size(row.get("width"), row.get("height"))
        image = Annotation([], size, row.get("split", ""))
        image = of_image.setdefault(row["path"].strip(), image)
        corners = [row[side] for side in _CORNERS if row.get(side, "").strip()]
        image.objects.append(_object(row["label"], corners or None))
    yield from of_image.items()
