"""Layouts in which annotations name the classes: COCO, CSV, YOLO, Pascal VOC, labelme.

An image is of the class of its largest box, and keeps the boxes of that class.
"""

import re
from collections import defaultdict
from collections.abc import (
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from pathlib import PurePosixPath
from typing import ClassVar, NamedTuple

import yaml

from helpers.data.annotations import (
    IN_SHARES,
    Annotation,
    AnnotationOrFault,
    Box,
    labelme_image,
    parse_labelme,
    parse_voc,
    parse_yolo,
    text_of,
    voc_image,
)
from helpers.data.class_folders import Question, is_voc, masks, split_of
from helpers.data.places import Places
from helpers.data.records import Record
from helpers.data.sources import Fault, Source

NOT_UNDERSTOOD = (
    "not_understood"  # a fault: a file that looks like data of another kind
)
_EXAMPLE = re.compile("submission", re.IGNORECASE)  # of an answer, no labels
# What the id of a class cannot hold: parts of a path, and what no table can.
_NOT_IN_IDS = re.compile(r"[/\\\x00-\x1f\x7f\ud800-\udfff]")
_LONGEST_ID = 200  # characters
Listed = Iterator[Record | Fault]


class Marked(NamedTuple):
    """An image that an annotation names, and what is said of it."""

    name: str  # as it is named
    place: str  # where it lies; "" for nowhere
    reading: AnnotationOrFault


def read_tables(
    source: Source, ending: str, parse: Callable[[bytes], dict[str, AnnotationOrFault]]
) -> Listed:
    """Images that tables name, such as COCO's JSON or a CSV.

    What is called "instances" is taken before COCO's keypoints and captions, and an
    example of an answer to a competition ("submission") is not.

    Args:
        source: the files.
        ending: of tables, in small letters.
        parse: turns the bytes of a table into annotations by the names of images.

    Raises:
        Question: where two tables say different things of an image.
    """
    places = Places(source.images, masks(source.images))
    tables = [name for name in source.names if name.lower().endswith(ending)]
    instances = [
        name
        for name in tables
        if name.rpartition("/")[2].lower().startswith("instances")
    ]
    by_table = {}
    for table in instances or tables:
        try:
            if _EXAMPLE.search(table.rpartition("/")[2]):
                raise ValueError("an example of an answer, whose labels are not true")
            readings = parse(source.read(table))
        except ValueError as fault:
            yield Fault(table, NOT_UNDERSTOOD, str(fault))
            continue
        by_table[table] = [
            Marked(name, places.named(table, name), reading)
            for name, reading in readings.items()
        ]
    for table, marked in _each_image_once(by_table).items():
        yield from by_largest_box(table, marked, split_of(table))


def _each_image_once(
    by_table: Mapping[str, Sequence[Marked]],
) -> dict[str, list[Marked]]:
    """The images of each table, without those that another table says more of.

    Raises:
        Question: where two tables say different things of an image.
    """
    readings: dict[str, dict[str, AnnotationOrFault]] = defaultdict(dict)
    for table, marked in by_table.items():
        for item in marked:
            readings[item.place][table] = item.reading
    tables_of = {
        place: _tables_of_image(place, of_tables)
        for place, of_tables in readings.items()
        if place
    }
    return {
        table: [item for item in marked if table in tables_of.get(item.place, [table])]
        for table, marked in by_table.items()
    }


def _tables_of_image(
    place: str, readings: Mapping[str, AnnotationOrFault]
) -> list[str]:
    """Which of the tables that name an image are taken for it.

    One whose name tells no split, such as "all.json", yields to one that does; of the
    others the first, since they say the same.

    Raises:
        Question: where they do not.
    """
    boxed = [table for table, reading in readings.items() if _objects(reading, True)]
    labelled = [table for table, reading in readings.items() if _objects(reading)]
    best = boxed or labelled or list(readings)
    for table in labelled:
        with_boxes = table in boxed
        first = _objects(readings[best[0]], with_boxes)
        if _objects(readings[table], with_boxes) != first:
            raise Question(
                f"{best[0]} and {table} disagree about {place}: leave one of them there"
            )
    of_split = {split_of(table): table for table in reversed(best)}
    no_split = of_split.pop("", "")
    return list(of_split.values()) or [no_split]


def _objects(reading: AnnotationOrFault, with_boxes: bool = False) -> set:
    """Objects that have a box, or the labels of all objects."""
    if not isinstance(reading, Annotation):
        return set()
    if not with_boxes:
        return reading.labels
    return {item for item in reading.objects if item[1] is not None}


def read_voc(source: Source) -> Listed:
    """Pascal VOC XML, each of the image of its name beside it, or nearest to it.

    Args:
        source: the files.
    """
    places = Places(source.images, masks(source.images))
    marked = []
    for name in filter(is_voc, source.names):
        place = places.nearest(name, PurePosixPath(name).stem)
        try:
            content = source.read(name)
            reading = parse_voc(content)
            place = place or places.named(name, voc_image(content))
        except ValueError as fault:
            reading = str(fault)
        marked.append(Marked(name, place, reading))
    yield from by_largest_box("*.xml", marked)


def read_labelme(source: Source) -> Listed:
    """labelme's JSON, each of the image of its name beside it, or nearest to it.

    Args:
        source: the files.
    """
    places = Places(source.images, masks(source.images))
    marked = []
    for name in [name for name in source.names if name.lower().endswith(".json")]:
        content = source.read(name)
        try:
            reading = parse_labelme(content)
        except ValueError as fault:
            yield Fault(name, NOT_UNDERSTOOD, str(fault))
            continue
        place = places.nearest(name, PurePosixPath(name).stem)
        place = place or places.named(name, labelme_image(content))
        marked.append(Marked(name, place, reading))
    yield from by_largest_box("*.json", marked)


# --- YOLO ---

_LINES_OF_NAMES = ("classes.txt", "obj.names", "names.txt", "_darknet.labels")


class _Names(NamedTuple):
    """Names of YOLO's classes by number, of a file."""

    path: str
    names: dict[str, str]
    keypoints: bool = False


def read_yolo(source: Source) -> Listed:
    """Images with a text file of lines "class x y width height", in shares.

    It lies below "labels" where the image lies below "images", or beside the image.

    Args:
        source: the files.

    Raises:
        Question: where several files name the classes differently.
    """
    readings = {}
    labels = _label_files(source)
    if not labels:
        return
    table = yield from _yolo_names(source)
    for name, path in labels.items():
        try:
            readings[name] = parse_yolo(source.read(path), table.names, table.keypoints)
        except ValueError as fault:
            readings[name] = str(fault)
    marked = [Marked(name, name, reading) for name, reading in readings.items()]
    numbers = {
        label
        for reading in readings.values()
        if isinstance(reading, Annotation)
        for label, _ in reading.objects
        if label.isdigit() and label not in table.names.values()
    }
    if numbers:
        subject = "1 class has" if len(numbers) == 1 else f"{len(numbers)} classes have"
        detail = (
            f"{subject} a number and no name, which data.yaml or classes.txt would give"
        )
        yield Fault(table.path, "class_without_name", detail)
    yield from by_largest_box("labels", marked)


def _label_files(source: Source) -> dict[str, str]:
    """The text file of each image that has one."""
    files = {}
    for name in source.images:
        stem = f"{PurePosixPath(name).with_suffix('.txt')}"
        before, folder, rest = f"/{stem.lower()}".rpartition("/images/")
        below_labels = source.spelt(f"{before}/labels/{rest}"[1:])
        beside = source.spelt(stem)
        if folder and below_labels:
            files[name] = below_labels
        elif beside and _is_yolo(source, beside):
            files[name] = beside
    return files


def _is_yolo(source: Source, path: str) -> bool:
    """Whether a text file beside an image holds lines of numbers, or nothing."""
    text = source.read(path)[:1000].decode("utf-8", "replace")
    first = text.partition("\n")[0].split()
    try:
        numbers = [float(word) for word in first]
    except ValueError:
        return False
    return not text or len(numbers) >= 5


class _Texts(yaml.SafeLoader):
    """YAML whose plain values are texts: a class may be called no, 7 or null."""

    yaml_implicit_resolvers: ClassVar[dict] = {}


def _yolo_names(source: Source) -> Generator[Fault, None, _Names]:
    """Names of classes: of a YAML file, else of one with a name a line.

    ``data.yaml`` is taken before others.

    Raises:
        Question: where other YAML files name the classes differently.
    """
    tables = []
    endings = (".yaml", ".yml")
    for path in [name for name in source.names if name.lower().endswith(endings)]:
        try:
            tables.append(_names_of_yaml(path, source.read(path)))
        except (
            yaml.YAMLError,
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
        ) as fault:
            detail = f"it has no names of classes ({type(fault).__name__})"
            yield Fault(path, NOT_UNDERSTOOD, detail)
    data = [
        table for table in tables if PurePosixPath(table.path.lower()).stem == "data"
    ]
    chosen = data or tables
    if not chosen:
        try:
            chosen = list(_names_of_lines(source))
        except ValueError as fault:
            yield Fault("classes.txt", NOT_UNDERSTOOD, str(fault))
    if not chosen:
        return _Names("", {})
    others = [table for table in chosen if table.names != chosen[0].names]
    if others:
        raise Question(
            f"{chosen[0].path} and {others[0].path} name the classes differently: "
            "leave one of them there"
        )
    for table in tables:
        if table.path != chosen[0].path and table.names != chosen[0].names:
            detail = f"{chosen[0].path} names the classes, and this file others"
            yield Fault(table.path, NOT_UNDERSTOOD, detail)
    return chosen[0]


def _names_of_yaml(path: str, content: bytes) -> _Names:
    """The block ``names`` of a YAML file, a list or by number."""
    values = yaml.load(content, _Texts)
    names = values["names"]
    if isinstance(names, str):
        raise ValueError("names is one text")
    pairs = names.items() if isinstance(names, dict) else enumerate(names)
    texts = {f"{number}": name for number, name in pairs if isinstance(name, str)}
    return _Names(path, texts, "kpt_shape" in values)


def _names_of_lines(source: Source) -> Iterator[_Names]:
    """Files with the name of a class on each line."""
    for path in source.names:
        if path.rpartition("/")[2].lower() in _LINES_OF_NAMES:
            lines = text_of(source.read(path)).split("\n")
            names = [line.strip() for line in lines]
            yield _Names(
                path, {f"{number}": name for number, name in enumerate(names) if name}
            )


# --- one class an image ---


def absent(table: str, names: Sequence[str], all_of_them: bool = False) -> Fault:
    """Images that a table names and the source does not have.

    Args:
        table: path of the table.
        names: that it has.
        all_of_them: whether the source has no other image of the table.
    """
    if all_of_them:
        detail = f"its images do not lie here, such as {min(names)[:100]}"
        return Fault(table, NOT_UNDERSTOOD, detail)
    detail = f"{len(names)} named there have no file, such as {min(names)[:100]}"
    return Fault(table, "missing_image", detail)


def by_largest_box(table: str, marked: Sequence[Marked], split: str = "") -> Listed:
    """Images with the boxes of one class each, and what is wrong with them.

    Args:
        table: what names the images.
        marked: the images; of two entries for one image the last counts.
        split: of all of them; "" where the path of each says it.
    """
    missing = [item.name for item in marked if not item.place]
    readings = {item.place: item.reading for item in marked if item.place}
    if missing:
        yield absent(table, missing, not readings)
    readings, in_shares = _shares_as_such(readings)
    if in_shares:
        detail = f"{in_shares} images: no number exceeds 1, so they are read as shares"
        yield Fault(table, "boxes_in_shares", detail, split=split)
    for name, reading in readings.items():
        where = split or split_of(name.rpartition("/")[0]) or "train"
        if isinstance(reading, Annotation):
            where = split_of(reading.split) or where
        yield from _of_one_class(name, reading, where)
    labels = [
        reading.labels
        for reading in readings.values()
        if isinstance(reading, Annotation)
    ]
    _check_distinct(set().union(*labels))
    yield from _alike_but_for_capitals(set().union(*labels), table)
    several = sum(len(names) > 1 for names in labels)
    if several:
        detail = (
            f"{several} images hold objects of several classes; each counts as its "
            "largest box"
        )
        yield Fault("", "several_classes", detail, split=split)


def _of_one_class(name: str, reading: AnnotationOrFault, split: str) -> Listed:
    """An image with the boxes of the class of its largest one."""
    if isinstance(reading, str):
        yield Fault(name, "malformed_annotation", reading, split=split)
    elif not all(label for label, _ in reading.objects):
        detail = "an object has no class"
        yield Fault(name, "malformed_annotation", detail, split=split)
    elif not reading.objects:
        yield Fault(name, "no_object_in_annotation", "", split=split)
    else:
        label, _ = max(reading.objects, key=lambda item: _area(item[1]))
        objects = tuple(item for item in reading.objects if item[0] == label)
        yield Record(name, class_of(label), split, reading._replace(objects=objects))


def class_of(label: str) -> str:
    """A label as the id of a class, which stands in one line and is no path.

    Args:
        label: as an annotation has it.

    Example:
        >>> class_of("bus/tram")
        'bus-tram'
    """
    return _NOT_IN_IDS.sub("-", " ".join(label.split()))[:_LONGEST_ID]


def _check_distinct(labels: Iterable[str]) -> None:
    """Raise a Question where two labels would be one class."""
    label_of: dict[str, str] = {}
    for label in sorted(set(labels)):
        other = label_of.setdefault(class_of(label), label)
        if other.split() != label.split():
            raise Question(
                f"the labels {other!r:.100} and {label!r:.100} would both be the class "
                f"{class_of(label)!r:.100}: rename one of them"
            )


def _alike_but_for_capitals(labels: Iterable[str], table: str) -> Iterator[Fault]:
    """Labels that are classes of their own and may be meant as one."""
    spellings: dict[str, str] = {}
    for label in sorted(set(labels)):
        other = spellings.setdefault(class_of(label).casefold(), label)
        if class_of(other) != class_of(label):
            detail = (
                f"the labels {other!r:.100} and {label!r:.100} differ in capitals "
                "alone, and are two classes"
            )
            yield Fault(table, "labels_alike", detail)


def _area(box: Box | None) -> float:
    return (box[2] - box[0]) * (box[3] - box[1]) if box else 0.0


def _shares_as_such(
    readings: Mapping[str, AnnotationOrFault],
) -> tuple[dict[str, AnnotationOrFault], int]:
    """Boxes that cannot be in pixels, since no number exceeds 1, as shares.

    Returns:
        The annotations, and the number of images whose boxes were so.
    """
    boxed = {
        name: reading
        for name, reading in readings.items()
        if isinstance(reading, Annotation) and reading.boxes
    }
    numbers = [
        number
        for reading in boxed.values()
        for box in reading.boxes
        for number in box
        if reading.size != IN_SHARES
    ]
    if not numbers or max(numbers) > 1 or max(numbers) <= 0:
        return dict(readings), 0
    changed = {
        name: reading._replace(size=IN_SHARES)
        for name, reading in boxed.items()
        if reading.size != IN_SHARES
    }
    return {**readings, **changed}, len(changed)
