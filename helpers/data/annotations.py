"""Parsers of annotation files: the labels and boxes of the objects in images.

Each reads one documented form (docs/images.md), raises an error for any other, and
gives a row an object: the name of its image, "" where it is the one that the file lies
beside; its label; its corners x0, y0, x1, y1 as they are written, or None; and the
width and height of the picture that they refer to, and its split, where stated. A row
without label and corners lists an image.
"""

import io
import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from defusedxml import ElementTree

IN_SHARES = (1, 1)  # the stated size where boxes are shares of the image
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


class Row(NamedTuple):
    """An object of an image, or an image that may have none, as a file states it."""

    image: str
    label: str = ""
    corners: Any = None
    size: tuple[Any, Any] = (0, 0)
    split: str = ""


Rows = Iterator[Row]


def _bounds(points: Any) -> list[float]:
    """Corners of the box around points x, y."""
    places = np.asarray(points, dtype=float)
    return [*places.min(0), *places.max(0)]


# --- a file an image ---


def read_voc(file: str, content: bytes, ending: str = "") -> Rows:
    """Read a Pascal VOC XML file; entity definitions are refused.

    Args:
        file: its path.
        content: its bytes.
        ending: of the image of the file's name; "" for the one beside it.

    Raises:
        ParseError: if it is not XML.

    Example:
        >>> box = b"<xmin>1</xmin><ymin>2</ymin><xmax>3</xmax><ymax>4</ymax>"
        >>> item = b"<object><name>cat</name><bndbox>" + box + b"</bndbox></object>"
        >>> _, row = read_voc("1.xml", b"<annotation>" + item + b"</annotation>")
        >>> row.label, row.corners
        ('cat', ['1', '2', '3', '4'])
    """
    root = ElementTree.fromstring(content)
    stem, _ = posixpath.splitext(posixpath.basename(file))
    image = ending and stem + ending
    size = (root.findtext("size/width"), root.findtext("size/height"))
    yield Row(image, size=size)
    for item in root.iterfind("object"):
        sides = ("bndbox/xmin", "bndbox/ymin", "bndbox/xmax", "bndbox/ymax")
        corners = [*map(item.findtext, sides)]
        yield Row(image, item.findtext("name", ""), corners, size)


def read_labelme(file: str, content: bytes) -> Rows:
    """Read labelme's JSON of one image: the box around the points of each shape.

    Args:
        file: its path.
        content: its bytes.

    Raises:
        ValueError: if a shape is no rectangle, turned or not, and no polygon.
    """
    table = json.loads(content)
    size = (table.get("imageWidth"), table.get("imageHeight"))
    yield Row("", size=size)
    for shape in table["shapes"]:
        kind = shape.get("shape_type") or "polygon"
        if kind not in ("rectangle", "rotation", "polygon"):
            raise ValueError(f"a shape is a {kind}, no rectangle and no polygon")
        yield Row("", shape["label"], _bounds(shape["points"]), size)


def read_yolo(file: str, content: bytes, names: Mapping[str, str]) -> Rows:
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
        >>> _, row = read_yolo("1.txt", b"0 0.5 0.5 1 0.5", {"0": "cat"})
        >>> row.label, [float(side) for side in row.corners]
        ('cat', [0.0, 0.25, 1.0, 0.75])
    """
    yield Row("", size=IN_SHARES)
    for line in filter(str.strip, content.decode("utf-8-sig").splitlines()):
        number, *numbers = line.split()
        if number not in names or len(numbers) != 4:
            raise ValueError(
                f"{line:.60} is not a class of {', '.join(names)} with 4 shares of the "
                "image"
            )
        centre, side = np.array(numbers, dtype=float).reshape(2, 2)
        corners = [*(centre - side / 2), *(centre + side / 2)]
        yield Row("", names[number], corners, IN_SHARES)


# --- a file of many images ---


def read_tiny(file: str, content: bytes) -> Rows:
    """Read Tiny ImageNet's table of boxes, or of validation images, by tabs.

    Args:
        file: path of the table, whose folder is the class where no cell is.
        content: its bytes.

    Example:
        >>> [row] = read_tiny("n01/n01_boxes.txt", b"a.JPEG\\t0\\t1\\t2\\t3")
        >>> row.image, row.label, row.corners
        ('a.JPEG', 'n01', ['0', '1', '2', '3'])
    """
    folder = posixpath.basename(posixpath.dirname(file))
    for line in content.decode("utf-8-sig").splitlines():
        image, *cells = line.split("\t")
        label, *corners = cells if len(cells) == 5 else [folder, *cells]
        yield Row(image, label, corners)


def read_coco(file: str, content: bytes) -> Rows:
    """Read COCO's JSON; groups of objects (iscrowd) are left out.

    Args:
        file: its path.
        content: its bytes.

    Raises:
        ValueError: if an id is that of two items or of none, or an object has no box.
    """
    table = json.loads(content)
    labels = {item["id"]: item["name"] for item in table["categories"]}
    images = {
        item["id"]: Row(item["file_name"], size=(item.get("width"), item.get("height")))
        for item in table["images"]
    }
    if len(labels) < len(table["categories"]) or len(images) < len(table["images"]):
        raise ValueError("two images or two categories have one id")
    yield from images.values()
    for item in table["annotations"]:
        image = images.get(item["image_id"])
        label = labels.get(item["category_id"])
        if not (image and label):
            raise ValueError(
                f"an object is of the image {item['image_id']} and the category "
                f"{item['category_id']}, which are not both listed"
            )
        if not item.get("iscrowd"):
            yield image._replace(label=label, corners=_corners_of_coco(item))


def _corners_of_coco(item: Mapping[str, Any]) -> Sequence[float]:
    """Corners of an object's ``bbox``, or of the box around its polygons."""
    outlines = item.get("segmentation")
    box = item.get("bbox") or ()
    if any(box) and len(box) == 4:  # some tools write zeros for no box
        corners = np.array(box, dtype=float)
        corners[2:] += corners[:2]
        return corners
    if outlines and isinstance(outlines, list):
        return _bounds(np.concatenate(outlines).reshape(-1, 2))
    raise ValueError("an object has no bbox of 4 numbers and no polygon")


def read_csv(file: str, content: bytes) -> Rows:
    """Read a table of objects, a line each, by commas.

    Args:
        file: its path.
        content: its bytes.

    Raises:
        ValueError: if a column stands twice or is another one, or if a line has more
            cells than there are columns.
    """
    table = pd.read_csv(
        io.BytesIO(content), header=None, dtype=str, keep_default_na=False
    ).fillna("")
    columns = table.iloc[0].str.strip().str.lower().tolist()
    if "x2" in columns:
        columns = [_COUNTED_FROM_ONE.get(name, name) for name in columns]
    names = {name: column for column, text in _COLUMNS.items() for name in text.split()}
    columns = [names.get(name, name) for name in columns]
    if not {"path", "label"} <= {*columns} <= {*_COLUMNS}:
        raise ValueError(
            f"its columns {', '.join(table.iloc[0])} are not path and label, and "
            "perhaps split, the corners x0, y0, x1, y1, width and height"
        )
    objects = table[1:].set_axis(columns, axis=1)
    table = objects.reindex(columns=[*_COLUMNS], fill_value="")  # each stands once
    for path, label, split, *numbers in table.itertuples(index=False):
        size, corners = numbers[:2], numbers[2:]
        yield Row(path.strip(), label, corners if any(corners) else None, size, split)
