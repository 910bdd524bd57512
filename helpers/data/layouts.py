"""The images of a source with class, split and boxes: one documented layout a format.

docs/images.md shows them. What differs from a layout is refused or counted.
"""

import json
import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import yaml
from defusedxml.ElementTree import ParseError

from helpers.data.annotations import (
    Annotation,
    Annotations,
    Record,
    columns_of_csv,
    of_largest,
    read_coco,
    read_csv,
    read_labelme,
    read_tiny,
    read_voc,
    read_yolo,
)
from helpers.data.sources import Fault, Source, split_of, to_nfc

RECOGNISED = "auto"  # in place of a layout: the one that the files have
_COCO = {"images", "annotations", "categories"}
_CSV = {"path", "label"}
# What damaged and other files raise.
_FAULTS = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
    ParseError,
    yaml.YAMLError,
)
# Folders between which images and their annotations are divided: equal where an
# annotation is looked up by the path of its image. These and masks are never classes.
_SIDES = re.compile(r"(annotation|annot|image|img|jpegimage|json|label|xml)s?", re.I)
_NO_CLASS = re.compile(
    rf"{_SIDES.pattern}|(gt|ground_?truth|mask|segmentation\w*)s?", re.I
)
_MASK = re.compile(r"(.+?)[ _-]*(mask|seg|segmentation|gt)s?[ _-]?\d*", re.IGNORECASE)
# Documents, and tables that repeat the names of folders: not counted as unread.
_HARMLESS = re.compile(
    r"(.*/)?((read_?me|licen[cs]e|citation|change_?log)[^/]*|wnids\.txt|batches\.meta"
    r"\.txt|(fine|coarse)_label_names\.txt|(desktop|thumbs)\.(ini|db)|"
    r"[^/]+\.(md|rst|pdf|html?|py|ipynb|sh|bib|log|cache))",
    re.IGNORECASE,
)
# CIFAR-10: data_batch_1, test_batch; CIFAR-100: train, test; as rows or as pickles.
_CIFAR = (
    r"(?P<top>(?:.*/)?)"
    r"(?:(?P<of_10>data|test)_batch(?:_\d)?|(?P<of_100>train|test))(?P<binary>\.bin)?"
)


class Listing(NamedTuple):
    """The images of a source that are of the classes asked for."""

    layout: str  # as which the source was read
    classes: list[str]  # ids of those with training images, in the order of labels
    names: Mapping[str, str]  # readable names by class id
    records: list[Record]
    faults: list[Fault]


Items = Iterator[Record | Fault]


# --- a folder per class ---


def read_class_folders(source: Source, files: Sequence[str]) -> Items:
    """Read a folder per class, below the same folder or in folders of splits.

    Args:
        source: the files.
        files: the images.

    Raises:
        ValueError: if an image lies deeper, in a split itself, in a folder that is no
            class by its name, or twice.
    """
    folders = {path: posixpath.dirname(path).removesuffix("/images") for path in files}
    parents = [posixpath.dirname(folder) for folder in folders.values()]
    top = posixpath.commonpath(parents or [""])
    below = {
        path: folder.removeprefix(top).strip("/").split("/")
        for path, folder in folders.items()
    }
    names = {first for first, *_ in below.values()} - {""}
    has_splits = all(map(split_of, names))
    stems = {posixpath.splitext(path)[0] for path in below}
    if len(below) > 1 and 2 * len(stems) <= len(below):
        raise ValueError(
            f"each image is there twice, such as {' and '.join(files[:2])}: "
            "move masks or copies away"
        )
    for path, (first, *deeper) in below.items():
        classes = deeper if has_splits else [first, *deeper]
        mask = _MASK.fullmatch(posixpath.splitext(path)[0])
        if len(classes) != 1 or _NO_CLASS.fullmatch(*classes):
            raise ValueError(
                f"{path} is not in the folder of a class, CLASS or SPLIT/CLASS, where "
                "all splits are called train, val or test; there are "
                f"{', '.join(sorted(names)[:5])}"
            )
        if mask and mask[1] in stems:
            yield Fault(path, "mask_not_read", "a mask of another image", *classes)
        elif first:
            label = to_nfc(*classes)
            yield Record(path, label, split_of(first) if has_splits else "train")


# --- annotations that name the classes ---


class _Images:
    """Images of a source, by the names that annotations use."""

    def __init__(self, source: Source) -> None:
        self.top = posixpath.commonpath([*map(posixpath.dirname, source.names)] or [""])
        # By the ends of their names, and by their places.
        self.paths: dict[Any, list[str]] = defaultdict(list)
        for path in source.images:
            self.paths[posixpath.basename(to_nfc(path))].append(path)
            self.paths[_place(path)].append(path)

    def split(self, path: str) -> str:
        """The split that a path names below the folders that all files share."""
        return split_of(path.removeprefix(self.top))

    def beside(self, file: str) -> str:
        """The one image of an annotation's name, beside it or in ``images``; or ""."""
        return _only(self.paths.get(_place(file), []))

    def named(self, table: str, name: str) -> str:
        """The one image, of the split of a table, whose path ends as it says; or "".

        Of several it is the one below the folder of the table.
        """
        name = to_nfc(name).removeprefix("./")
        split = self.split(table)
        paths = [
            path
            for path in self.paths.get(posixpath.basename(name), [])
            if f"/{to_nfc(path)}".endswith(f"/{name}")
            and (not split or self.split(posixpath.dirname(path)) in ("", split))
        ]
        folder = posixpath.join(posixpath.dirname(table), "")
        return _only([path for path in paths if path.startswith(folder)] or paths)

    def record(self, path: str, annotation: Annotation, file: str) -> Record | Fault:
        """The image at a path, with the class of its largest box."""
        if not annotation.objects:
            return Fault(path, "no_object_in_annotation", file)
        split = split_of(annotation.split)
        if annotation.split and not split:
            raise ValueError(
                f"its split {annotation.split!r} is none of train, val and test"
            )
        split = split or self.split(posixpath.dirname(path)) or self.split(file)
        label, boxes = of_largest(annotation)
        return Record(path, label, split or "train", boxes, annotation.size)


def _only(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else ""


def _place(path: str) -> tuple[str, ...]:
    """Folders and stem of a file without folders that divide images and annotations."""
    *folders, name = to_nfc(path).split("/")
    shared = [folder for folder in folders if not _SIDES.fullmatch(folder)]
    return (*shared, posixpath.splitext(name)[0])


def _read_annotated(
    source: Source,
    files: Sequence[str],
    read: Callable[[str, bytes], Annotations],
) -> Items:
    """Read files of annotations, of one image each or of many."""
    images = _Images(source)
    file_of: dict[str, str] = {}
    for file in files:
        content = source.read(file)
        missing = []
        try:
            for name, annotation in read(file, content):
                path = images.named(file, name) if name else images.beside(file)
                if not path:
                    missing.append(name)
                    continue
                if path in file_of:
                    raise ValueError(f"{path} is in {file_of[path]} too; remove one")
                file_of[path] = file
                yield images.record(path, annotation, file)
        except _FAULTS as fault:
            raise ValueError(f"{file}: {_in_words(fault)}") from fault
        if missing:
            detail = f"{len(missing)} have no image, or several, such as {missing[0]}"
            yield Fault(file, "missing_image", detail)


def _in_words(fault: Exception) -> str:
    is_known = type(fault) is ValueError
    return str(fault) if is_known else f"{type(fault).__name__}: {fault}".strip()


def _read_yolo(source: Source, files: Sequence[str]) -> Items:
    """Read images with YOLO's labels; classes are in data.yaml or classes.txt."""
    tables = _matching(source, r"(.*/)?data\.yaml")
    tables = tables or _matching(source, r"(.*/)?classes\.txt")
    if len(tables) != 1:
        raise ValueError(
            f"names of classes are in {len(tables)} files data.yaml or classes.txt "
            f"{', '.join(tables[:3])}, not in one"
        )
    content = source.read(tables[0])
    names = content.decode().splitlines()
    if tables[0].endswith(".yaml"):
        # BaseLoader reads texts alone: a class called "no" is not False.
        names = yaml.load(content, yaml.BaseLoader)["names"]
    pairs = enumerate(names) if isinstance(names, list) else names.items()
    names = {str(number): name for number, name in pairs}
    yield from _read_annotated(source, files, partial(read_yolo, names=names))


# --- files that tell a layout ---


def _matching(source: Source, pattern: str) -> list[str]:
    return [name for name in source.names if re.fullmatch(pattern, name, re.IGNORECASE)]


def _beside_images(source: Source, ending: str) -> list[str]:
    images = _Images(source)
    return list(filter(images.beside, _matching(source, rf".*\.{ending}")))


def _tables(
    source: Source,
    ending: str,
    columns: Callable[[bytes], Iterable[str]],
    needed: set[str],
) -> list[str]:
    """Files that have the columns, or keys, of a table of objects."""
    files = []
    for file in _matching(source, rf".*(?<!submission)\.{ending}"):  # empty answers
        with suppress(*_FAULTS):
            if needed <= {*columns(source.read(file))}:
                files.append(file)
    source.opened.clear()
    return files


def read_cifar(source: Source, files: Sequence[str]) -> Items:
    """Read the binary version of CIFAR-10 and CIFAR-100.

    An image is a row of bytes: a label (in CIFAR-100 a coarse and a fine one), then
    3 x 32 x 32 pixels, channel by channel.

    Args:
        source: the files.
        files: those of images.

    Raises:
        ValueError: if a file is a pickle, or cut.
    """
    for path in files:
        match = re.fullmatch(_CIFAR, path)
        content = source.read(path)
        length = 3074 if match["of_100"] else 3073
        if not match["binary"] or not content or len(content) % length:
            raise ValueError(
                f"{path} is a pickle or cut, with {len(content):,} bytes, no rows of "
                f"{length:,}; take the binary version, such as cifar-10-binary.tar.gz"
            )
        table = "fine_label_names.txt" if match["of_100"] else "batches.meta.txt"
        table = f"{match['top']}{table}"
        names = source.read(table).decode().split() if table in source.names else []
        split = "test" if "test" in posixpath.basename(path) else "train"
        rows = np.frombuffer(content, np.uint8).reshape(-1, length)
        for number, row in enumerate(rows):
            label = row[-3073]  # the fine one in CIFAR-100
            class_id = names[label] if label < len(names) else str(label)
            # As a PPM file, whose bytes are R, G, B pixel by pixel.
            image = b"P6 32 32 255\n" + row[-3072:].reshape(3, 1024).T.tobytes()
            yield Record(f"{path}/{number:05d}", class_id, split, content=image)


# --- the source as a whole ---


class Layout(NamedTuple):
    """A layout of files, and its reader."""

    looks_like: str  # its paths, for messages
    files: Callable[[Source], Sequence[str]]  # that tell that it is this layout
    read: Callable[[Source, Sequence[str]], Items]


LAYOUTS: dict[str, Layout] = {
    "ilsvrc": Layout(
        "ILSVRC/Data/CLS-LOC/train/WNID/*.JPEG with ILSVRC/Annotations/CLS-LOC/*",
        partial(_matching, pattern=r"(.*/)?ILSVRC/Annotations/CLS-LOC/.*\.xml"),
        partial(_read_annotated, read=partial(read_voc, ending=".JPEG")),
    ),
    "tiny_imagenet": Layout(
        "train/WNID/images/*.JPEG with train/WNID/WNID_boxes.txt",
        partial(_matching, pattern=r"(.*/)?(val/val_annotations|train/.*_boxes)\.txt"),
        partial(_read_annotated, read=read_tiny),
    ),
    "cifar": Layout(
        "data_batch_1.bin or train.bin of CIFAR",
        partial(_matching, pattern=_CIFAR),
        read_cifar,
    ),
    "coco": Layout(
        "a .json with images, annotations and categories",
        partial(_tables, ending="json", columns=json.loads, needed=_COCO),
        partial(_read_annotated, read=read_coco),
    ),
    "csv": Layout(
        "a .csv with the columns path,label,x0,y0,x1,y1",
        partial(_tables, ending="csv", columns=columns_of_csv, needed=_CSV),
        partial(_read_annotated, read=read_csv),
    ),
    "labelme": Layout(
        "images with a .json of labelme beside each",
        partial(_beside_images, ending="json"),
        partial(_read_annotated, read=read_labelme),
    ),
    "yolo": Layout(
        "images/*.jpg with labels/*.txt of 5 numbers a line, and data.yaml",
        partial(_beside_images, ending="txt"),
        _read_yolo,
    ),
    "voc": Layout(
        "JPEGImages/*.jpg with Annotations/*.xml, or beside",
        partial(_beside_images, ending="xml"),
        partial(_read_annotated, read=read_voc),
    ),
    "class_folders": Layout(
        "CLASS/*.jpg, or train/CLASS and val/CLASS",
        attrgetter("images"),
        read_class_folders,
    ),
}
# Those of which only the folders of the classes asked for are entered.
BY_FOLDER = ("ilsvrc", "tiny_imagenet", "class_folders")
_PUBLISHED = ("ilsvrc", "tiny_imagenet", "cifar")


def recognise(source: Source) -> str:
    """Find the layout that the files have; class_folders without annotations.

    Args:
        source: the files.

    Raises:
        ValueError: if annotations of several layouts are there.
    """
    present = [name for name, layout in LAYOUTS.items() if layout.files(source)]
    annotated = [name for name in present if name != "class_folders"]
    if len(annotated) > 1 and annotated[0] not in _PUBLISHED:
        raise ValueError(
            f"{source.root} has annotations of {' and '.join(annotated)}; name one as "
            "data_source, or move the others away"
        )
    return [*annotated, "class_folders"][0]


def scan(source: Source, layout: str, classes: Sequence[str] = ()) -> Listing:
    """List the images of a source.

    Args:
        source: the files.
        layout: a name of ``LAYOUTS``, or ``RECOGNISED`` for that of the files.
        classes: ids of the classes asked for; empty for all.

    Returns:
        Images with their classes, splits and boxes. Its faults name images that cannot
        be used, and count files that were not read.

    Raises:
        ValueError: if the source differs from the layout; the message names both.
    """
    name = recognise(source) if layout == RECOGNISED else layout
    reader = LAYOUTS[name]
    try:
        items = list(reader.read(source, reader.files(source)))
        records = [item for item in items if isinstance(item, Record)]
        if layout == RECOGNISED and name not in (*_PUBLISHED, "class_folders"):
            _check_folders(source, records)
        return _listing(name, source, items, records, [to_nfc(c) for c in classes])
    except _FAULTS as fault:
        raise ValueError(
            f"{source.root} is not read as {name}: {_in_words(fault)}; {name} is "
            f"{reader.looks_like}, see docs/images.md"
        ) from fault


def _check_folders(source: Source, records: Sequence[Record]) -> None:
    """Refuse objects and folders that name different classes.

    Raises:
        ValueError: if folders of classes hold images without an annotation, or images
            whose objects are of other classes than the folders.
    """
    folders = {}
    with suppress(ValueError):  # no folders of classes
        items = list(read_class_folders(source, source.images))
        folders = {item.name: item.class_id for item in items}
    objects = {item.name: item.class_id for item in records}
    names = sorted({*folders.values()})
    if len(names) > 1 and folders != objects:
        raise ValueError(
            f"folders name the classes {', '.join(names[:3])}, and objects of "
            f"{len(objects)} of {len(folders)} images name "
            f"{', '.join(sorted({*objects.values()})[:3])}; name class_folders or the "
            "layout of the annotations as data_source"
        )


def _listing(
    layout: str,
    source: Source,
    items: Sequence[Record | Fault],
    records: Sequence[Record],
    asked: Sequence[str],
) -> Listing:
    """List the images of the classes asked for, or of all with training images.

    Raises:
        ValueError: if there is no image of a class.
    """
    names = _names(source)
    faults = [item for item in items if isinstance(item, Fault)]
    unread = [*source.faults, *_unread_files(source, [item.name for item in items])]
    if not records:
        words = [f"{fault.name}: {fault.detail}" for fault in [*faults, *unread][:5]]
        raise ValueError("; ".join(["no image of a class is there", *words]))
    if not any(record.split == "train" for record in records):
        # Images are for test because the source itself has the name of a test split.
        records = [record._replace(split="train") for record in records]
    trained = {record.class_id for record in records if record.split == "train"}
    candidates = asked or sorted({record.class_id for record in records})
    classes = [name for name in candidates if name in trained]
    faults = [fault for fault in faults if fault.class_id in ("", *classes)]
    faults += [
        Fault("", "unknown_class", "no image of it is for training", name)
        for name in candidates
        if name not in trained
    ]
    listed = [record for record in records if record.class_id in classes]
    return Listing(layout, classes, names, listed, [*faults, *unread])


def _names(source: Source) -> dict[str, str]:
    """Readable names of classes by id, from the tables that come with ImageNet."""
    names = {}
    for path in _matching(source, r"(.*/)?(words|LOC_synset_mapping)\.txt"):
        lines = source.read(path).decode()
        names |= re.findall(r"^(\S+)[ \t]+([^,\r\n]+)", lines, re.MULTILINE)
    return names


def _unread_files(source: Source, names: Sequence[str]) -> list[Fault]:
    """Count the files that were not read, by ending."""
    unread = {*source.names} - source.opened.union(names)
    groups = defaultdict(list)
    for name in sorted(unread):
        if not _HARMLESS.fullmatch(name):
            groups[posixpath.splitext(name)[1].lower()].append(name)
    faults = []
    for ending, files in groups.items():
        detail = f"{len(files)} {ending or 'without an ending'} are not read"
        if files[0] in source.images:
            detail += ": without an annotation, or not in the folder of a class"
        faults.append(Fault(files[0], "not_read", detail))
    return faults
