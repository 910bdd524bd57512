"""The images of a source with class, split and boxes: one documented layout a format.

docs/images.md shows them. What differs from a layout is refused or counted.
"""

import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import pandas as pd
import yaml
from defusedxml.ElementTree import ParseError

from helpers.data import annotations
from helpers.data.annotations import Row, Rows
from helpers.data.sources import UNUSABLE, Source, split_of, to_nfc

RECOGNISED = "auto"  # in place of a layout: the one that the files have
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
# Folders between which images and their annotations are divided. These and masks are
# never classes.
_SIDES = r"(annotation|annot|image|img|jpegimage|json|label|xml)s?"
_NO_CLASS = re.compile(rf"{_SIDES}|(gt|ground_?truth|mask|segmentation\w*)s?", re.I)
_MASK = re.compile(r"[ _-]*(mask|seg|segmentation|gt)s?[ _-]?\d*$", re.I)
# Documents, and tables that are read or repeat the names of folders: not counted as
# unread.
_HARMLESS = re.compile(
    r"(.*/)?((read_?me|licen[cs]e|citation|change_?log)[^/]*|wnids\.txt|words\.txt|"
    r"LOC_synset_mapping\.txt|data\.yaml|classes\.txt|batches\.meta\.txt|"
    r"(fine|coarse)_label_names\.txt|(desktop|thumbs)\.(ini|db)|"
    r"[^/]+\.(md|rst|pdf|html?|py|ipynb|sh|bib|log|cache))",
    re.IGNORECASE,
)
# CIFAR-10: data_batch_1.bin, test_batch.bin; CIFAR-100: train.bin, test.bin.
_CIFAR = r"(.*/)?((data|test)_batch(_\d)?|train|test)\.bin"
Box = tuple[float, ...]  # x0, y0, x1, y1


class Record(NamedTuple):
    """An image that a source lists."""

    name: str  # path inside the source
    class_id: str  # "" if not known
    split: str  # "train" or "test"
    boxes: tuple[Box, ...] = ()  # usable or not
    size: tuple[int, int] | None = None  # width and height that boxes refer to
    content: bytes = b""  # of an image that is part of a larger file


class Listing(NamedTuple):
    """The images of a source that are of the classes asked for."""

    layout: str  # as which the source was read
    classes: list[str]  # ids of those asked for, in the order of labels
    names: Mapping[str, str]  # readable names by class id
    records: pd.DataFrame  # one row an image, with the fields of ``Record``
    faults: list[dict[str, str]]  # see ``Source.faults``


Records = Iterator[Record]


# --- a folder per class ---


def read_class_folders(source: Source, files: Sequence[str]) -> Records:
    """Read a folder per class, below the same folder or in folders of splits.

    Args:
        source: the files.
        files: not used.

    Raises:
        ValueError: if an image lies elsewhere, a folder is no class by its name, or
            masks or copies lie beside the images.
    """
    folders = {}  # of each image: those above its class, and the class
    for path in source.images:
        folder = posixpath.dirname(path).removesuffix("/images")
        if folder:  # images beside the folders are counted as unread
            folders[path] = posixpath.split(folder)
    parents = {parent for parent, _ in folders.values()}
    splits = {parent: split_of(posixpath.basename(parent)) for parent in parents}
    classes = {name for _, name in folders.values()}
    has_other_folders = len(parents) > 1 and not all(splits.values())
    are_splits = bool(classes) and all(map(split_of, classes))
    if has_other_folders or are_splits or any(map(_NO_CLASS.fullmatch, classes)):
        places = sorted({*map(posixpath.dirname, folders)})
        raise ValueError(
            f"images are in {', '.join(places[:5])}, and not in folders CLASS, or "
            "SPLIT/CLASS where all splits are called train, val or test; others are "
            f"{sorted({*source.names} - {*source.images})[:5]}"
        )
    stems = [posixpath.splitext(path)[0] for path in folders]
    masked = {_MASK.sub("", stem) for stem in stems if _MASK.search(stem)}
    if masked.intersection(stems) or len(stems) >= 2 * len({*stems}) > 0:
        raise ValueError(
            f"masks or copies are beside images, such as {' and '.join(stems[:2])}: "
            "move them away"
        )
    for path, (parent, name) in folders.items():
        yield Record(path, to_nfc(name), splits[parent] or "train")


# --- annotations that name the classes ---


class _Images:
    """Images of a source, by the names that annotations use."""

    def __init__(self, source: Source) -> None:
        # By their last names, and by their places.
        self.paths: dict[str, list[str]] = defaultdict(list)
        for path in source.images:
            for key in (posixpath.basename(to_nfc(path)), _place(path)):
                self.paths[key].append(path)

    def named(self, file: str, name: str) -> list[str]:
        """Images beside a file, or those in its split whose paths end in a name.

        Where some of these are below the file's folder, they are meant.
        """
        if not name:
            return self.paths.get(_place(file), [])
        end = f"/{to_nfc(name).removeprefix('./')}"
        split = split_of(file)
        paths = [
            path
            for path in self.paths.get(posixpath.basename(end), [])
            if f"/{to_nfc(path)}".endswith(end)
            and (not split or split_of(posixpath.dirname(path)) in ("", split))
        ]
        folder = posixpath.join(posixpath.dirname(file), "")
        return [path for path in paths if path.startswith(folder)] or paths


def _place(path: str) -> str:
    """Path without ending, and without folders that divide images and annotations."""
    stem, _ = posixpath.splitext(to_nfc(path))
    return "/" + re.sub(rf"(?<![^/]){_SIDES}/", "", stem, flags=re.IGNORECASE)


def record_of(path: str, file: str, rows: Sequence[Row]) -> Record | None:
    """Make the record of an image, whose class is that of its largest box.

    Args:
        path: of the image.
        file: of its annotation.
        rows: its objects.

    Returns:
        The record with the boxes of its class; None without an object.

    Raises:
        ValueError: if a label, box or split cannot be one, or objects of several
            classes have no box.
    """
    objects = [_object(row) for row in rows if row.label or row.corners is not None]
    if not objects:
        return None
    _, label, largest = max(objects, key=itemgetter(0))
    labels = {name for _, name, _ in objects}
    if len(labels) > 1 and not largest:
        raise ValueError(f"{path} has the labels {', '.join(labels)} and no box")
    stated = rows[0].split
    split = split_of(stated or posixpath.dirname(path)) or split_of(file)
    if stated and not split_of(stated):
        raise ValueError(f"its split {stated!r} is none of train, val and test")
    size = tuple(int(float(side or 0)) for side in rows[0].size)
    boxes = tuple(box for _, name, box in objects if name == label and box)
    return Record(path, label, split or "train", boxes, size if min(size) > 0 else None)


def _object(row: Row) -> tuple[float, str, Box]:
    """Area, label, which stands in tables and paths, and box of an object; or ()."""
    label = to_nfc(str(row.label or "").strip())
    if not label or "/" in label or UNUSABLE.search(label):
        raise ValueError(f"{label!r:.100} cannot be the name of a class")
    if row.corners is None:
        return 0.0, label, ()
    box = np.asarray(row.corners, dtype=float)
    if box.shape != (4,) or not np.isfinite(box).all():
        raise ValueError(f"{row.corners!r:.100} is not a box of 4 finite numbers")
    x0, y0, x1, y1 = box.tolist()
    return (x1 - x0) * (y1 - y0), label, (x0, y0, x1, y1)


def _read_annotated(
    source: Source, files: Sequence[str], read: Callable[[str, bytes], Rows]
) -> Records:
    """Read files of annotations, of one image each or of many."""
    images = _Images(source)
    for file in files:
        missing = []
        of_image = defaultdict(list)
        try:
            for row in read(file, source.read(file)):
                of_image[row.image].append(row)
            for name, rows in of_image.items():
                paths = images.named(file, name)
                if len(paths) != 1:
                    missing.append(name)
                    continue
                record = record_of(paths[0], file, rows)
                if record:
                    yield record
                else:
                    source.fault(paths[0], "no_object_in_annotation", file)
        except _FAULTS as fault:
            words = fault if isinstance(fault, ValueError) else repr(fault)
            raise ValueError(f"{file}: {words}") from fault
        if missing:
            detail = f"{len(missing)} have no image, or several, such as {missing[0]}"
            source.fault(file, "missing_image", detail)


def _read_yolo(source: Source, files: Sequence[str]) -> Records:
    """Read images with YOLO's labels; classes are in data.yaml or classes.txt."""
    tables = _matching(source, r"(.*/)?(data\.yaml|classes\.txt)")
    if len(tables) != 1:
        raise ValueError(
            f"names of classes are in {len(tables)} files data.yaml or classes.txt "
            f"{', '.join(tables[:3])}, not in one"
        )
    content = source.read(tables[0])
    names = content.decode("utf-8-sig").splitlines()
    if tables[0].endswith(".yaml"):
        # BaseLoader reads texts alone: a class called "no" is not False.
        names = yaml.load(content, yaml.BaseLoader)["names"]
    pairs = enumerate(names) if isinstance(names, list) else names.items()
    names = {str(number): name for number, name in pairs}
    return _read_annotated(source, files, partial(annotations.read_yolo, names=names))


def read_cifar(source: Source, files: Sequence[str]) -> Records:
    """Read the binary version of CIFAR-10 and CIFAR-100.

    An image is a row of bytes: a label (in CIFAR-100 a coarse and a fine one), then
    3 x 32 x 32 pixels, channel by channel.

    Args:
        source: the files.
        files: those of images.

    Raises:
        ValueError: if a file is cut.
    """
    for path in files:
        folder, name = posixpath.split(path)
        is_100 = "_batch" not in name
        content = np.frombuffer(source.read(path), np.uint8)
        if not content.size or content.size % (3073 + is_100):
            raise ValueError(f"{path} is cut: its {content.size:,} bytes are no rows")
        table = "fine_label_names.txt" if is_100 else "batches.meta.txt"
        classes = source.read(posixpath.join(folder, table)).decode("utf-8-sig").split()
        split = "test" if name.startswith("test") else "train"
        rows = content.reshape(-1, 3073 + is_100)
        if rows[:, -3073].max() >= len(classes):
            raise ValueError(
                f"{path} has labels to {rows[:, -3073].max()}, and {table} names "
                f"{len(classes)} classes"
            )
        for number, row in enumerate(rows):
            class_id = classes[row[-3073]]  # the fine one in CIFAR-100
            # As a PPM file, whose bytes are R, G, B pixel by pixel.
            image = b"P6 32 32 255\n" + row[-3072:].reshape(3, 1024).T.tobytes()
            yield Record(f"{path}/{number:05d}", class_id, split, content=image)


# --- the source as a whole ---


class Layout(NamedTuple):
    """A layout of files, and its reader."""

    looks_like: str  # its paths, for messages
    paths: str  # pattern of the files that tell that it is this layout
    content: bytes  # pattern of how they begin
    read: Callable[[Source, Sequence[str]], Records]


LAYOUTS: dict[str, Layout] = {
    "ilsvrc": Layout(
        "ILSVRC/Data/CLS-LOC/train/WNID/*.JPEG with ILSVRC/Annotations/CLS-LOC/*",
        r"(.*/)?ILSVRC/Annotations/CLS-LOC/.*\.xml",
        b"",
        partial(_read_annotated, read=partial(annotations.read_voc, ending=".JPEG")),
    ),
    "tiny_imagenet": Layout(
        "train/WNID/images/*.JPEG with train/WNID/WNID_boxes.txt",
        r"(.*/)?(val/val_annotations|train/.*_boxes)\.txt",
        b"",
        partial(_read_annotated, read=annotations.read_tiny),
    ),
    "cifar": Layout("data_batch_1.bin or train.bin of CIFAR", _CIFAR, b"", read_cifar),
    "coco": Layout(
        "a .json with images, annotations and categories",
        r".*\.json",
        rb'(?s)(?=.*"images")(?=.*"annotations").*"categories"',
        partial(_read_annotated, read=annotations.read_coco),
    ),
    "csv": Layout(
        "a .csv with the columns path,label,x0,y0,x1,y1",
        r".*(?<!submission)\.csv",  # empty answers
        rb"(?i)(?=.*\b(path|image|image_(name|path)|file_?name)\b)"
        rb".*\b(label|class|class_name|category)\b",
        partial(_read_annotated, read=annotations.read_csv),
    ),
    "labelme": Layout(
        "images with a .json of labelme beside each",
        r".*\.json",
        rb'(?s).*"shapes"',
        partial(_read_annotated, read=annotations.read_labelme),
    ),
    "yolo": Layout(
        "images/*.jpg with labels/*.txt of 5 numbers a line, and names in data.yaml",
        r"(.*/)?labels/(?!(.*/)?classes\.txt).*\.txt",
        rb"(\xef\xbb\xbf)?\s*(\d+\s|\Z)",
        _read_yolo,
    ),
    "voc": Layout(
        "JPEGImages/*.jpg with Annotations/*.xml, or beside",
        r".*\.xml",
        rb"(?s)(.*<annotation|[\s\0]*\Z)",  # those without content are refused
        partial(_read_annotated, read=annotations.read_voc),
    ),
    "class_folders": Layout(
        "CLASS/*.jpg, or train/CLASS and val/CLASS", r"", b"", read_class_folders
    ),
}
# Those of which only the folders of the classes asked for are entered.
BY_FOLDER = ("ilsvrc", "tiny_imagenet", "class_folders")
_PUBLISHED = ("ilsvrc", "tiny_imagenet", "cifar")


def _matching(source: Source, paths: str, content: bytes = b"") -> list[str]:
    """Names of files that match a pattern, and whose contents begin with another."""
    return [
        name
        for name in source.names
        if re.fullmatch(paths, name, re.IGNORECASE)
        and (not content or re.match(content, source.read(name)))
    ]


def recognise(source: Source) -> str:
    """Find the layout that the files have; class_folders without annotations.

    Args:
        source: the files.

    Raises:
        ValueError: if annotations of several layouts are there.
    """
    present = [
        name
        for name, layout in LAYOUTS.items()
        if _matching(source, layout.paths, layout.content)
    ]
    if len(present) > 1 and present[0] not in _PUBLISHED:
        raise ValueError(
            f"{source.root} has annotations of {' and '.join(present)}; name one as "
            "data_source, or move the others away"
        )
    return [*present, "class_folders"][0]


def scan(source: Source, layout: str, classes: Sequence[str] = ()) -> Listing:
    """List the images of the classes asked for, or of all.

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
    # Labels that begin otherwise are refused by their reader, not passed over.
    content = b"" if name == "yolo" else reader.content
    files = _matching(source, reader.paths, content)
    try:
        records = pd.DataFrame(reader.read(source, files), columns=Record._fields)
        _count_unread(source, {*files, *records["name"]})
        twice = records["name"][records["name"].duplicated()]
        if len(twice):
            raise ValueError(f"{twice.iloc[0]} is in two files; remove one")
        if records.empty:
            raise ValueError(
                "no image of a class is there: "
                f"{[(item['name'], item['detail']) for item in source.faults[:5]]}"
            )
        if name not in _PUBLISHED:  # whose inverted boxes are counted
            _check_corners(records)
    except _FAULTS as fault:
        raise ValueError(
            f"{source.root} is not read as {name}: "
            f"{fault if isinstance(fault, ValueError) else repr(fault)}; {name} is "
            f"{reader.looks_like}, see docs/images.md"
        ) from fault
    if "train" not in records["split"].unique():
        # Images are for test because the source itself has the name of a test split.
        records["split"] = "train"
    listed = [*map(to_nfc, classes)] or sorted({*records["class_id"]})
    records = records[records["class_id"].isin(listed)]
    return Listing(name, listed, _names(source), records, source.faults)


def _check_corners(records: pd.DataFrame) -> None:
    """Refuse a box whose second corner lies before the first."""
    boxes = records.set_index("name")["boxes"].explode().dropna()
    for image, (x0, y0, x1, y1) in boxes.items():
        if x1 < x0 or y1 < y0:
            raise ValueError(
                f"{image} has the box {x0:g}, {y0:g}, {x1:g}, {y1:g}, whose x1 or "
                "y1 is below x0 or y0: write corners, not width and height"
            )


def _names(source: Source) -> dict[str, str]:
    """Readable names of classes by id, from the tables that come with ImageNet."""
    names = {}
    for path in _matching(source, r"(.*/)?(words|LOC_synset_mapping)\.txt"):
        lines = source.read(path).decode("utf-8-sig")
        names |= re.findall(r"^(\S+)[ \t]+([^,\r\n]+)", lines, re.MULTILINE)
    return names


def _count_unread(source: Source, used: set[str]) -> None:
    """Count the files that were not read, by ending."""
    unread = {*source.names} - used - {item["name"] for item in source.faults}
    by_ending = defaultdict(list)
    for name in sorted(unread):
        if not _HARMLESS.fullmatch(name):
            by_ending[posixpath.splitext(name)[1].lower()].append(name)
    for ending, names in by_ending.items():
        detail = f"{len(names)} {ending or 'without an ending'} are not read"
        source.fault(names[0], "not_read", detail)
