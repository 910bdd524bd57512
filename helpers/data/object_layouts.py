"""Layouts in which annotations name the classes: COCO, CSV, YOLO, Pascal VOC, labelme.

An image is of the class of its largest box; its boxes of other classes are left out.
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
    Box,
    labelme_image,
    parse_labelme,
    parse_voc,
    parse_yolo,
    text_of,
    voc_image,
)
from helpers.data.class_folders import Question, find_masks, is_voc, split_of
from helpers.data.places import Places
from helpers.data.records import Record
from helpers.data.sources import Fault, Source

# The kind of a fault: a file that has the ending of annotations and holds none.
NOT_UNDERSTOOD = "not_understood"
# In the name of a competition's example of an answer, which does not hold true labels.
_EXAMPLE = re.compile("submission", re.IGNORECASE)
# Characters that the id of a class must not have: separators in paths, and characters
# that tables cannot hold.
_FORBIDDEN_IN_IDS = re.compile(r"[/\\\x00-\x1f\x7f\ud800-\udfff]")
_LONGEST_ID = 200  # characters
RecordsOrFaults = Iterator[Record | Fault]


class AnnotatedImage(NamedTuple):
    """An image that a file of annotations names."""

    name: str  # as the file of annotations names it
    path: str  # of the image in the source; "" if the source does not have it
    annotation: Annotation


def read_tables(
    source: Source, ending: str, parse: Callable[[bytes], dict[str, Annotation]]
) -> RecordsOrFaults:
    """Read images from tables that name them, such as COCO's JSON or a CSV.

    If there are tables called "instances", as COCO's are, all others (its keypoints
    and captions) are ignored. An example of a competition's answer ("submission") is
    not read.

    Args:
        source: the files.
        ending: of the tables' names, in small letters.
        parse: turns the bytes of a table into annotations by the names of images.

    Raises:
        Question: if two tables contradict each other about an image.
    """
    places = Places(source.images, find_masks(source.images))
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
            annotations = parse(source.read(table))
        except ValueError as fault:
            yield Fault(table, NOT_UNDERSTOOD, str(fault))
            continue
        by_table[table] = [
            AnnotatedImage(name, places.named(table, name), annotation)
            for name, annotation in annotations.items()
        ]
    for table, annotated_images in _each_image_once(by_table).items():
        yield from by_largest_box(table, annotated_images, split_of(table))


def _each_image_once(
    by_table: Mapping[str, Sequence[AnnotatedImage]],
) -> dict[str, list[AnnotatedImage]]:
    """Leave out an image from a table if another table says as much of it or more.

    Raises:
        Question: if two tables contradict each other about an image.
    """
    annotations: dict[str, dict[str, Annotation]] = defaultdict(dict)
    for table, annotated_images in by_table.items():
        for image in annotated_images:
            annotations[image.path][table] = image.annotation
    tables_of_path = {
        path: _tables_of_image(path, annotation_of_table)
        for path, annotation_of_table in annotations.items()
        if path
    }
    return {
        table: [
            image
            for image in annotated_images
            # An image without a path stays in all tables, so that it is reported.
            if table in tables_of_path.get(image.path, [table])
        ]
        for table, annotated_images in by_table.items()
    }


def _tables_of_image(path: str, annotations: Mapping[str, Annotation]) -> list[str]:
    """Choose which of the tables that name an image are read for it, one per split.

    Tables with boxes come before tables with labels alone. A table whose name does not
    tell a split, such as "all.json", is read only if no other does. Of several tables
    of one split the first is read, since they agree.

    Args:
        path: of the image.
        annotations: of the image, by table.

    Raises:
        Question: if two tables do not agree.
    """
    with_labels = [table for table in annotations if annotations[table].labels]
    with_boxes = [table for table in annotations if annotations[table].boxes]
    tables = with_boxes or with_labels or list(annotations)
    first = annotations[tables[0]]
    for table in with_labels:
        annotation = annotations[table]
        agrees = annotation.labels == first.labels
        if annotation.boxes:
            agrees = _boxes_of(annotation) == _boxes_of(first)
        if not agrees:
            raise Question(
                f"{tables[0]} and {table} disagree about {path}: leave one of them "
                "there"
            )
    # Reversed, so that the first table of each split stays.
    table_of_split = {split_of(table): table for table in reversed(tables)}
    without_split = table_of_split.pop("", "")
    return list(table_of_split.values()) or [without_split]


def _boxes_of(annotation: Annotation) -> set[tuple[str, Box]]:
    """Label and box of each object that has a box."""
    return {(label, box) for label, box in annotation.objects if box is not None}


def read_voc(source: Source) -> RecordsOrFaults:
    """Read Pascal VOC XML files, one per image.

    The image has the name of the XML file and the most similar path, or is the one
    that the XML file names.

    Args:
        source: the files.
    """
    places = Places(source.images, find_masks(source.images))
    annotated_images = []
    for name in filter(is_voc, source.names):
        content = source.read(name)
        path = places.nearest(name, PurePosixPath(name).stem)
        path = path or places.named(name, voc_image(content))
        annotated_images.append(AnnotatedImage(name, path, parse_voc(content)))
    yield from by_largest_box("*.xml", annotated_images)


def read_labelme(source: Source) -> RecordsOrFaults:
    """Read labelme's JSON files, one per image.

    The image has the name of the JSON file and the most similar path, or is the one
    that the JSON file names.

    Args:
        source: the files.
    """
    places = Places(source.images, find_masks(source.images))
    annotated_images = []
    for name in source.names:
        if not name.lower().endswith(".json"):
            continue
        content = source.read(name)
        try:
            annotation = parse_labelme(content)
        except ValueError as fault:
            yield Fault(name, NOT_UNDERSTOOD, str(fault))
            continue
        path = places.nearest(name, PurePosixPath(name).stem)
        path = path or places.named(name, labelme_image(content))
        annotated_images.append(AnnotatedImage(name, path, annotation))
    yield from by_largest_box("*.json", annotated_images)


# --- YOLO ---

# Files with the name of a class on each line.
_FILES_OF_CLASS_NAMES = ("classes.txt", "obj.names", "names.txt", "_darknet.labels")


class _ClassNames(NamedTuple):
    """Names of YOLO's classes, as one file gives them."""

    path: str
    names: dict[str, str]  # by the number of the class, as text
    keypoints: bool = False  # whether keypoints follow each box


def read_yolo(source: Source) -> RecordsOrFaults:
    """Read a text file per image with lines "class x y width height".

    Numbers are shares of the image's sides. The text file lies in "labels" as the
    image does in "images", or beside the image.

    Args:
        source: the files.

    Raises:
        Question: if several files name the classes differently.
    """
    label_files = _label_files(source)
    if not label_files:
        return
    class_names = yield from _yolo_names(source)
    annotated_images = []
    numbers_without_name = set()
    for image, path in label_files.items():
        annotation = parse_yolo(
            source.read(path), class_names.names, class_names.keypoints
        )
        annotated_images.append(AnnotatedImage(image, image, annotation))
        # The parser uses the number of a class without a name as its label.
        without_name = annotation.labels - set(class_names.names.values())
        numbers_without_name |= set(filter(str.isdigit, without_name))
    if numbers_without_name:
        count = len(numbers_without_name)
        subject = "1 class has" if count == 1 else f"{count} classes have"
        detail = (
            f"{subject} a number and no name, which data.yaml or classes.txt would give"
        )
        yield Fault(class_names.path, "class_without_name", detail)
    yield from by_largest_box("labels", annotated_images)


def _label_files(source: Source) -> dict[str, str]:
    """Path of the text file of each image that has one, by the path of the image."""
    files = {}
    for image in source.images:
        path = str(PurePosixPath(image).with_suffix(".txt"))
        # a/images/b/1.txt -> a/labels/b/1.txt
        before, images_folder, rest = f"/{path.lower()}".rpartition("/images/")
        in_labels = source.find_ignoring_case(f"{before}/labels/{rest}"[1:])
        beside = source.find_ignoring_case(path)
        if images_folder and in_labels:
            files[image] = in_labels
        elif beside and _is_yolo(source, beside):
            files[image] = beside
    return files


def _is_yolo(source: Source, path: str) -> bool:
    """Whether a text file beside an image is empty or begins with 5 or more numbers."""
    text = source.read(path)[:1000].decode("utf-8", "replace")
    first_line = text.partition("\n")[0].split()
    try:
        numbers = [float(word) for word in first_line]
    except ValueError:
        return False
    return not text or len(numbers) >= 5


class _TextLoader(yaml.SafeLoader):
    """A YAML loader that reads all values as text: a class may be named no or null."""

    yaml_implicit_resolvers: ClassVar[dict] = {}


def _yolo_names(source: Source) -> Generator[Fault, None, _ClassNames]:
    """Read the names of classes from a YAML file, else from a file with a name a line.

    ``data.yaml`` comes before other YAML files.

    Yields:
        A fault for each file that is not read.

    Raises:
        Question: if two files of equal rank name the classes differently.
    """
    of_yaml = []
    for path in source.names:
        if not path.lower().endswith((".yaml", ".yml")):
            continue
        try:
            of_yaml.append(_names_of_yaml(path, source.read(path)))
        except (
            yaml.YAMLError,
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
        ) as fault:
            detail = f"it has no names of classes ({type(fault).__name__})"
            yield Fault(path, NOT_UNDERSTOOD, detail)
    of_data_yaml = [
        file for file in of_yaml if PurePosixPath(file.path.lower()).stem == "data"
    ]
    candidates = of_data_yaml or of_yaml
    if not candidates:
        try:
            candidates = list(_names_of_lines(source))
        except ValueError as fault:
            yield Fault("classes.txt", NOT_UNDERSTOOD, str(fault))
    if not candidates:
        return _ClassNames("", {})
    first = candidates[0]
    differing = [file for file in candidates if file.names != first.names]
    if differing:
        raise Question(
            f"{first.path} and {differing[0].path} name the classes differently: "
            "leave one of them there"
        )
    for file in of_yaml:
        if file.names != first.names:
            detail = f"{first.path} names the classes, and this file others"
            yield Fault(file.path, NOT_UNDERSTOOD, detail)
    return first


def _names_of_yaml(path: str, content: bytes) -> _ClassNames:
    """Read the block ``names`` of a YAML file: a list, or names by number."""
    values = yaml.load(content, _TextLoader)
    names = values["names"]
    if isinstance(names, str):
        raise ValueError("names is one text")
    pairs = names.items() if isinstance(names, dict) else enumerate(names)
    texts = {f"{number}": name for number, name in pairs if isinstance(name, str)}
    return _ClassNames(path, texts, "kpt_shape" in values)


def _names_of_lines(source: Source) -> Iterator[_ClassNames]:
    """Read the files with the name of a class on each line."""
    for path in source.names:
        if path.rpartition("/")[2].lower() in _FILES_OF_CLASS_NAMES:
            lines = enumerate(text_of(source.read(path)).split("\n"))
            names = {
                f"{number}": line.strip() for number, line in lines if line.strip()
            }
            yield _ClassNames(path, names)


# --- one class an image ---


def missing_images(
    table: str, names: Sequence[str], all_of_them: bool = False
) -> Fault:
    """Make a fault for images that a table names and the source does not have.

    Args:
        table: path of the table.
        names: of the missing images, as the table has them.
        all_of_them: whether the source has no image of the table at all.
    """
    if all_of_them:
        detail = f"its images do not lie here, such as {min(names)[:100]}"
        return Fault(table, NOT_UNDERSTOOD, detail)
    detail = f"{len(names)} named there have no file, such as {min(names)[:100]}"
    return Fault(table, "missing_image", detail)


def by_largest_box(
    table: str, annotated_images: Sequence[AnnotatedImage], split: str = ""
) -> RecordsOrFaults:
    """Give each image the class of its largest box, and report what is wrong.

    Args:
        table: the file or files that name the images, for messages.
        annotated_images: the images; of two entries for one image the last counts.
        split: of all images, "train" or "test"; "" if the annotation or the path of
            each image tells it.
    """
    missing = []
    annotations = {}
    for image in annotated_images:
        if image.path:
            annotations[image.path] = image.annotation
        else:
            missing.append(image.name)
    if missing:
        yield missing_images(table, missing, all_of_them=not annotations)
    annotations, in_shares = _as_shares(annotations)
    if in_shares:
        detail = f"{in_shares} images: no number exceeds 1, so they are read as shares"
        yield Fault(table, "boxes_in_shares", detail, split=split)
    for path, annotation in annotations.items():
        split_of_folder = split or split_of(path.rpartition("/")[0]) or "train"
        split_of_image = split_of(annotation.split) or split_of_folder
        yield from _record_by_largest_box(path, annotation, split_of_image)
    labels_of_images = [annotation.labels for annotation in annotations.values()]
    yield from _check_labels(set().union(*labels_of_images), table)
    with_several = sum(len(labels) > 1 for labels in labels_of_images)
    if with_several:
        detail = (
            f"{with_several} images hold objects of several classes; each counts as "
            "its largest box"
        )
        yield Fault("", "several_classes", detail, split=split)


def _record_by_largest_box(
    path: str, annotation: Annotation, split: str
) -> RecordsOrFaults:
    """An image with the class of its largest box, and the boxes of that class."""
    if annotation.fault:
        yield Fault(path, "malformed_annotation", annotation.fault, split=split)
    elif not all(label for label, _ in annotation.objects):
        detail = "an object has no class"
        yield Fault(path, "malformed_annotation", detail, split=split)
    elif not annotation.objects:
        yield Fault(path, "no_object_in_annotation", "", split=split)
    else:
        largest, _ = max(annotation.objects, key=lambda item: _area(item[1]))
        objects = tuple(
            (label, box) for label, box in annotation.objects if label == largest
        )
        of_class = annotation._replace(objects=objects)
        yield Record(path, class_id_of(largest), split, of_class)


def class_id_of(label: str) -> str:
    """Turn a label into the id of a class, which has one line and is not a path.

    Args:
        label: as an annotation has it.

    Example:
        >>> class_id_of("bus/tram")
        'bus-tram'
    """
    return _FORBIDDEN_IN_IDS.sub("-", " ".join(label.split()))[:_LONGEST_ID]


def _check_labels(labels: Iterable[str], table: str) -> Iterator[Fault]:
    """Report labels that differ in capitals alone and may be meant as one class.

    Raises:
        Question: if two labels would have the same id of a class.
    """
    label_of_id: dict[str, str] = {}
    label_of_spelling: dict[str, str] = {}
    for label in sorted(labels):
        class_id = class_id_of(label)
        other = label_of_id.setdefault(class_id, label)
        if other.split() != label.split():
            raise Question(
                f"the labels {other!r:.100} and {label!r:.100} would both be the class "
                f"{class_id!r:.100}: rename one of them"
            )
        other = label_of_spelling.setdefault(class_id.casefold(), label)
        if class_id_of(other) != class_id:
            detail = (
                f"the labels {other!r:.100} and {label!r:.100} differ in capitals "
                "alone, and are two classes"
            )
            yield Fault(table, "labels_alike", detail)


def _area(box: Box | None) -> float:
    return (box[2] - box[0]) * (box[3] - box[1]) if box else 0.0


def _as_shares(
    annotations: Mapping[str, Annotation],
) -> tuple[dict[str, Annotation], int]:
    """Read boxes as shares of the image if they are too small to be in pixels.

    They are if no number in any box exceeds 1.

    Returns:
        The annotations, and the number of images whose boxes are now read as shares.
    """
    in_pixels = {
        path: annotation
        for path, annotation in annotations.items()
        if annotation.boxes and annotation.size != IN_SHARES
    }
    largest = max(
        (max(box) for annotation in in_pixels.values() for box in annotation.boxes),
        default=0.0,
    )
    if not 0 < largest <= 1:
        return dict(annotations), 0
    in_shares = {
        path: annotation._replace(size=IN_SHARES)
        for path, annotation in in_pixels.items()
    }
    return {**annotations, **in_shares}, len(in_shares)
