"""Parsers of annotation files: the labels and boxes of the objects in images.

Every parser takes the bytes of a file. A fault of one image stands in its
``Annotation``, so that only this image is left out; a fault of a whole table raises
ValueError.
"""

import codecs
import csv
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element, ParseError

import defusedxml.ElementTree
from defusedxml import DefusedXmlException

Box = tuple[float, float, float, float]
IN_SHARES = (1, 1)  # the stated size where boxes are shares of the image
# YOLO's shares are at most 1; rounding, and boxes beyond the edge, exceed it.
_LARGEST_SHARE = 2.0


class Annotation(NamedTuple):
    """Objects in one image, as an annotation states them; none where it is faulty."""

    # Label and box of each; a box is xmin, ymin, xmax, ymax in pixels of ``size``.
    objects: tuple[tuple[str, Box | None], ...] = ()
    # Stated width and height; None where there is none, IN_SHARES for shares.
    size: tuple[int, int] | None = None
    split: str = ""  # as its file calls it, such as "valid"; "" where not stated
    fault: str = ""  # why it cannot be used, in words

    @property
    def boxes(self) -> tuple[Box, ...]:
        """Boxes, usable or not."""
        return tuple(box for _, box in self.objects if box is not None)

    @property
    def labels(self) -> set[str]:
        """Labels of the objects."""
        return {label for label, _ in self.objects}


class _NoBoxError(ValueError):
    """Numbers are not a box."""


def _floats(numbers: Sequence[Any]) -> list[float]:
    """Numbers or texts as floats; empty if one is no number."""
    try:
        return [float(number) for number in numbers]
    except (TypeError, ValueError):
        return []


def _box(numbers: Sequence[Any]) -> Box:
    """Check that numbers are four and finite, and return them as a box."""
    values = _floats(numbers)
    if len(values) != 4 or not all(map(math.isfinite, values)):
        raise _NoBoxError(f"{numbers!r:.200} is not a box of 4 finite numbers")
    x0, y0, x1, y1 = values
    return x0, y0, x1, y1


def _box_of_corner(numbers: Sequence[Any]) -> Box:
    """Box from its upper left corner, width and height."""
    x, y, width, height = _box(numbers)
    return x, y, x + width, y + height


def _box_of_centre(numbers: Sequence[Any]) -> Box:
    """Box from its centre, width and height."""
    x, y, width, height = _box(numbers)
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _box_of_points(numbers: Sequence[Any]) -> Box:
    """Box around the points x, y, x, y, ... of an outline."""
    values = _floats(numbers)
    columns = values[0::2]
    rows = values[1::2]
    if len(columns) != len(rows) or len(rows) < 2:
        raise _NoBoxError(f"{numbers!r:.200} is not an outline of points x, y")
    return _box([min(columns), min(rows), max(columns), max(rows)])


def _size(width: Any, height: Any) -> tuple[int, int] | None:
    """Stated width and height; None where a tool wrote a word, nothing, or 0."""
    try:
        size = int(float(width)), int(float(height))
    except (TypeError, ValueError, OverflowError):
        return None
    return size if min(size) > 0 else None


def text_of(content: bytes) -> str:
    """Decode a file: UTF-8 with or without a byte order mark, or UTF-16 with one.

    Args:
        content: bytes of the file.

    Raises:
        ValueError: if it has another encoding.
    """
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return content.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError as fault:
        raise ValueError("its text is not UTF-8; save it as UTF-8") from fault


def _nonblank(text: str) -> list[str]:
    """Lines that are not blank, each once."""
    return list(dict.fromkeys(line for line in text.splitlines() if line.strip()))


def _lines(content: bytes) -> list[str]:
    """Lines of a file of numbers and plain words; undecodable bytes are replaced."""
    return _nonblank(content.decode("utf-8-sig", "replace"))


def _from_json(content: bytes) -> Any:
    """Values of a JSON file, with or without a byte order mark.

    Raises:
        ValueError: if it is not JSON, such as a truncated file.
    """
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as fault:
        raise ValueError(f"it is not JSON ({fault})") from fault


# --- Pascal VOC ---

# LookupError: the file names an unknown encoding.
_XML_FAULTS = (ParseError, DefusedXmlException, LookupError, ValueError)


def parse_voc(content: bytes) -> Annotation:
    """Read a Pascal VOC XML file, in any namespace; entity definitions are refused.

    Args:
        content: bytes of the file.

    Returns:
        Labels and boxes of its objects, or its fault.

    Example:
        >>> box = b"<xmin>1</xmin><ymin>2</ymin><xmax>3</xmax><ymax>4</ymax>"
        >>> item = b"<object><name>cat</name><bndbox>" + box + b"</bndbox></object>"
        >>> parse_voc(b"<annotation>" + item + b"</annotation>").objects
        (('cat', (1.0, 2.0, 3.0, 4.0)),)
    """
    try:
        root = defusedxml.ElementTree.fromstring(content)
    except _XML_FAULTS as fault:
        return Annotation(fault=f"{type(fault).__name__}: {fault}")
    try:
        objects = tuple(_voc_object(item) for item in root.iterfind(".//{*}object"))
    except _NoBoxError as fault:
        return Annotation(fault=str(fault))
    width = root.findtext("{*}size/{*}width")
    height = root.findtext("{*}size/{*}height")
    return Annotation(objects, _size(width, height))


def voc_image(content: bytes) -> str:
    """Name of the image that a Pascal VOC XML states; "" where it states none.

    Args:
        content: bytes of the file.
    """
    try:
        root = defusedxml.ElementTree.fromstring(content)
    except _XML_FAULTS:
        return ""
    return root.findtext("{*}filename", "").strip()


def _voc_object(item: Element) -> tuple[str, Box]:
    sides = ("xmin", "ymin", "xmax", "ymax")
    numbers = [item.findtext(f"{{*}}bndbox/{{*}}{side}") for side in sides]
    return item.findtext("{*}name", "").strip(), _box(numbers)


# --- tables of many images ---


class _Row(NamedTuple):
    """A line of a table: an image, and an object with the numbers of its box."""

    image: str
    label: str
    numbers: Sequence[Any]  # x0, y0, x1, y1; empty if the object has no box
    size: tuple[int, int] | None = None  # of the image; None if not stated
    split: str = ""  # of the image; "" if not stated


def _annotations(rows: Iterable[_Row]) -> dict[str, Annotation]:
    """Annotations by image; size and split are those of the last row that states them.

    An image with a faulty box has the fault in place of its objects.
    """
    annotations: dict[str, Annotation] = {}
    for row in rows:
        earlier = annotations.get(row.image, Annotation())
        if earlier.fault:
            continue
        try:
            box = _box(row.numbers) if row.numbers else None
        except _NoBoxError as fault:
            annotations[row.image] = Annotation(fault=str(fault))
        else:
            annotations[row.image] = Annotation(
                objects=(*earlier.objects, (row.label, box)),
                size=row.size or earlier.size,
                split=row.split or earlier.split,
            )
    return annotations


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
    rows = []
    for line in _lines(content):
        name, *rest = line.split("\t")
        label = "".join(rest[:-4])
        corners = rest[-4:] or ["no box"]  # which ``_box`` refuses in these words
        rows.append(_Row(name, label, corners))
    return _annotations(rows)


_CORNERS = ("x0", "y0", "x1", "y1")
_DELIMITERS = ",;\t"
# Names by which other tools call the columns of a table.
_COLUMNS = {
    "path": (
        "filename file_name image image_path filepath file image_name image_id id"
    ),
    "label": "class class_name category category_name",
    "split": "subset partition set dataset data_set",
    "x0": "xmin x_min",
    "y0": "ymin y_min",
    "x1": "xmax x_max",
    "y1": "ymax y_max",
    "x": "bbox_x left",
    "y": "bbox_y top",
    "w": "bbox_width bbox_w box_width",
    "h": "bbox_height bbox_h box_height",
    "width": "image_width img_width",
    "height": "image_height img_height",
}


def parse_csv(content: bytes) -> dict[str, Annotation]:
    """Read a table of objects: columns path and label, and a box or none.

    The first line names the columns, separated by commas, semicolons or tabs. The
    columns of a box are x0, y0, x1, y1; or x, y, w, h; or x, y, width, height. Except
    in the last form, width and height are those of the image. A column split says
    which images are for training and which for test.

    Args:
        content: bytes of the file, UTF-8, or UTF-16 with its mark.

    Returns:
        Annotations by path as the table has it.

    Raises:
        ValueError: if the first line lacks a column path or label, or if the text has
            another encoding.

    Example:
        >>> parse_csv(b"path;label\\na.png;cat")["a.png"].objects
        (('cat', None),)
    """
    lines = _nonblank(text_of(content)) or [","]  # no line: the columns are missing
    # the one that occurs most often in the first line
    delimiter = max(_DELIMITERS, key=lines[0].count)
    try:
        head, *rows = (next(csv.reader([line], delimiter=delimiter)) for line in lines)
    except csv.Error as fault:
        raise ValueError(str(fault)) from fault
    columns = _indices_of_columns([name.strip().lower() for name in head])
    if not {"path", "label"} <= set(columns):
        raise ValueError("its first line names no columns path and label")
    return _annotations(_csv_row(row, columns, delimiter) for row in rows)


def _indices_of_columns(head: Sequence[str]) -> dict[str, int]:
    """Index of each column, by the name that this module or other tools give it."""
    indices = {}
    for column, other_names in _COLUMNS.items():
        names = [name for name in (column, *other_names.split()) if name in head]
        if names:
            indices[column] = head.index(names[0])
    return indices


def _csv_row(row: Sequence[str], columns: Mapping[str, int], delimiter: str) -> _Row:
    cells = {
        column: row[index].strip() if index < len(row) else ""
        for column, index in columns.items()
    }
    path = cells.pop("path")
    label = cells.pop("label")
    split = cells.pop("split", "")
    if delimiter == ";":  # such tables may have decimal commas
        cells = {column: cell.replace(",", ".") for column, cell in cells.items()}
    numbers, size = _csv_box(cells)
    return _Row(path, label, numbers, size, split)


def _csv_box(
    cells: Mapping[str, str],
) -> tuple[Sequence[Any], tuple[int, int] | None]:
    """Corners of the box in a line of a table, and the stated size of the image.

    The corners are empty if the line has no box. Cells that are not a box are returned
    unchanged, and ``_annotations`` reports their fault.
    """
    size = _size(cells.get("width"), cells.get("height"))
    if "x0" in cells or "x" not in cells:
        return [cells[side] for side in _CORNERS if cells.get(side)], size
    extent = ("w", "h") if "w" in cells else ("width", "height")
    texts = [cells.get(name, "") for name in ("x", "y", *extent)]
    if not any(texts):
        return [], None
    try:
        return _box_of_corner(texts), size if "w" in cells else None
    except _NoBoxError:
        return texts, None


# --- COCO ---


def parse_coco(content: bytes) -> dict[str, Annotation]:
    """Read COCO's JSON by the names of its images.

    Groups of objects (iscrowd) are left out. The box of an object that states none is
    the one around its polygons.

    Args:
        content: bytes of the file.

    Returns:
        Annotations by ``file_name``.

    Raises:
        ValueError: if it is not such a file, if no object belongs to a listed image, or
            if an id is that of two images or of two categories.
    """
    table = _from_json(content)
    try:
        labels = {_key(item["id"]): str(item["name"]) for item in table["categories"]}
        objects_of_image = defaultdict(list)
        for item in table["annotations"]:
            if not item.get("iscrowd"):
                objects_of_image[_key(item["image_id"])].append(item)
        images = {_key(image["id"]): image for image in table["images"]}
        repeated = _repeated_id(table["categories"], "name")
        repeated = repeated or _repeated_id(table["images"], "file_name")
        annotations = {
            str(image["file_name"]): _coco_image(
                image, objects_of_image.get(key, []), labels
            )
            for key, image in images.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        raise ValueError(
            "it does not hold images, annotations and categories as COCO has them"
        ) from fault
    if repeated:
        raise ValueError(f"{repeated}: whose objects are whose is not known")
    if objects_of_image and objects_of_image.keys().isdisjoint(images):
        count = sum(map(len, objects_of_image.values()))
        raise ValueError(f"none of its {count} objects is of an image that it lists")
    return annotations


def _key(number: Any) -> str:
    """An id as text: tools write 1, 1.0 or "1"."""
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    return str(number)


def _repeated_id(items: Sequence[Mapping[str, Any]], name: str) -> str:
    """The first id that two items with different names have, in words; "" for none."""
    names: dict[str, str] = {}
    for item in items:
        key = _key(item["id"])
        text = str(item[name])
        other = names.setdefault(key, text)
        if other != text:
            return f"the id {key} stands for {other!r:.80} and for {text!r:.80}"
    return ""


def _coco_image(
    image: Mapping[str, Any],
    image_objects: Sequence[Mapping[str, Any]],
    labels: Mapping[str, str],
) -> Annotation:
    objects = []
    try:
        for item in image_objects:
            label = labels.get(_key(item["category_id"]), "")
            objects.append((label, _coco_box(item)))
    except _NoBoxError as fault:
        return Annotation(fault=str(fault))
    return Annotation(tuple(objects), _size(image.get("width"), image.get("height")))


def _coco_box(item: Mapping[str, Any]) -> Box | None:
    """The box of an object, or the one around its polygons; None if it has neither."""
    numbers = item.get("bbox")
    polygons = item.get("segmentation")
    if isinstance(polygons, Mapping) and not numbers:
        raise _NoBoxError(
            "an object has a mask of runs (RLE), which is not read, and no box"
        )
    has_box = numbers and any(numbers)  # some tools write zeros for no box
    if isinstance(polygons, list) and polygons and not has_box:
        outlines = polygons if isinstance(polygons[0], list) else [polygons]
        return _box_of_points([value for outline in outlines for value in outline])
    return _box_of_corner(numbers) if numbers else None


# --- YOLO ---


def parse_yolo(
    content: bytes, names: Mapping[str, str], keypoints: bool = False
) -> Annotation:
    """Read lines of "class x y width height", centre and size as shares of the image.

    Six or more numbers are the outline of the object, x, y, x, y, ..., or with
    ``keypoints`` a box and points, which are ignored. An odd number of numbers ends
    with a confidence, as Ultralytics' ``save_txt`` writes it.

    Args:
        content: bytes of the file of one image.
        names: of classes by number; a class without a name is called by its number.
        keypoints: whether points follow each box.

    Returns:
        Boxes in shares of the image, or the fault of the file.

    Example:
        >>> parse_yolo(b"0 0.5 0.5 1 0.5", {"0": "cat"}).objects
        (('cat', (0.0, 0.25, 1.0, 0.75)),)
    """
    objects = []
    try:
        for label, *numbers in map(str.split, _lines(content)):
            box = _yolo_box(numbers[:4] if keypoints else numbers)
            number = _class_number(label)
            if number.startswith("-"):
                raise ValueError(f"{number} is not the number of a class")
            objects.append((names.get(number, number), box))
    except ValueError as fault:
        return Annotation(fault=str(fault))
    return Annotation(tuple(objects), IN_SHARES)


def _class_number(label: str) -> str:
    """The number of a class as an integer; ``np.savetxt`` writes 1.000000e+00."""
    try:
        number = float(label)
    except ValueError:
        return label
    return str(int(number)) if number.is_integer() else label


def _yolo_box(numbers: Sequence[str]) -> Box:
    if len(numbers) > 4 and len(numbers) % 2:
        numbers = numbers[:-1]  # without the confidence
    is_outline = len(numbers) >= 6 and len(numbers) % 2 == 0
    box = _box_of_points(numbers) if is_outline else _box_of_centre(numbers)
    if max(map(abs, box)) > _LARGEST_SHARE:
        raise _NoBoxError(
            f"{' '.join(numbers)[:100]} are not shares of the image, as YOLO's boxes "
            "are; divide pixels by its width and height"
        )
    return box


# --- labelme ---


def parse_labelme(content: bytes) -> Annotation:
    """Read labelme's JSON of one image: a box around each shape that has an area.

    Args:
        content: bytes of the file.

    Raises:
        ValueError: if it is not a file of labelme.
    """
    table = _from_json(content)
    try:
        shapes = table["shapes"]
        size = _size(table.get("imageWidth"), table.get("imageHeight"))
        objects = [(str(shape["label"]), _labelme_box(shape)) for shape in shapes]
    except _NoBoxError as fault:
        return Annotation(fault=str(fault))
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        raise ValueError("it holds no shapes as labelme has them") from fault
    return Annotation(tuple(objects), size)


def labelme_image(content: bytes) -> str:
    """Path of the image that a labelme JSON states; "" where it states none.

    Args:
        content: bytes of a file that ``parse_labelme`` reads.
    """
    path = _from_json(content).get("imagePath")
    return path if isinstance(path, str) else ""


def _labelme_box(shape: Mapping[str, Any]) -> Box | None:
    """Box around a shape; None for a point or a line."""
    kind = shape.get("shape_type") or "polygon"
    points = shape["points"]
    if kind == "circle":  # points are its centre and one on its edge
        (x, y), (edge_x, edge_y) = points
        radius = math.hypot(edge_x - x, edge_y - y)
        return _box([x - radius, y - radius, x + radius, y + radius])
    if kind not in ("rectangle", "polygon"):
        return None
    return _box_of_points([value for point in points for value in point])


# --- names ---


def parse_names(content: bytes) -> dict[str, str]:
    """Read lines of "id name, synonym, ..."; the first name of each id.

    Args:
        content: bytes of a file such as ImageNet's words.txt.

    Example:
        >>> parse_names(b"n01 tench, Tinca tinca")
        {'n01': 'tench'}
    """
    names = parse_pairs(content)
    return {key: synonyms.split(",")[0].strip() for key, synonyms in names.items()}


def parse_lines(content: bytes) -> list[str]:
    """Read the lines of a file, stripped of blanks, each once.

    Args:
        content: bytes of the file.

    Example:
        >>> parse_lines(b"a.jpg\\n\\n b.jpg 1\\na.jpg")
        ['a.jpg', 'b.jpg 1']
    """
    return [line.strip() for line in _lines(content)]


def parse_pairs(content: bytes) -> dict[str, str]:
    """Read lines of "id value", such as CUB's tables.

    Args:
        content: bytes of the file.

    Example:
        >>> parse_pairs(b"1 001.Albatross/a.jpg")
        {'1': '001.Albatross/a.jpg'}
    """
    pairs = (line.split(None, 1) for line in _lines(content))
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def parse_corner_box(text: str, label: str) -> Annotation:
    """Read the box "x y width height" of the one object in an image.

    Args:
        text: four numbers in pixels.
        label: of the object.

    Example:
        >>> parse_corner_box("1 2 10 20", "owl").objects
        (('owl', (1.0, 2.0, 11.0, 22.0)),)
    """
    try:
        return Annotation(((label, _box_of_corner(text.split())),))
    except _NoBoxError as fault:
        return Annotation(fault=str(fault))
