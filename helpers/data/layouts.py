"""The images of a source with class, split and boxes: one documented layout a format.

docs/images.md shows them. What differs from a layout is refused or counted.
"""

import json
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import numpy as np
import yaml

from helpers.data.annotations import (
    Annotation,
    Record,
    csv_columns,
    of_largest,
    parse_coco,
    parse_csv,
    parse_labelme,
    parse_tiny_boxes,
    parse_voc,
    parse_yolo,
)
from helpers.data.sources import Fault, Source, to_nfc

RECOGNISED = "auto"  # in place of a layout: the one that the files have
NOT_READ = "not_read"  # the kind of a fault: files that were not read
MALFORMED = "malformed_annotation"
_COCO = {"images", "annotations", "categories"}
# What damaged and other files raise.
_FAULTS = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)
# Words that make a folder a split; "seg_train" and "test2017" have one.
_SPLIT = re.compile(
    r"(?<![a-z])(train|training|trainval|val|valid|validation|test|testing)(?![a-z])",
    re.IGNORECASE,
)
# Folders between which images and their annotations are divided: never classes, and
# equal where an annotation is looked up by the path of its image.
_SIDES = re.compile(
    r"(annotation|annot|gt|groundtruth|image|img|jpegimage|json|label|mask|xml|"
    r"segmentation|segmentationclass|segmentationobject)(s|es)?",
    re.IGNORECASE,
)
_MASK = re.compile(r"(.+?)[ _-]*(mask|seg|segmentation|gt)s?[ _-]?\d*", re.IGNORECASE)
# Documents, and tables that repeat the names of folders: not counted as unread.
_HARMLESS = re.compile(
    r"(.*/)?((read_?me|licen[cs]e|citation|change_?log)[^/]*|wnids\.txt|batches\.meta"
    r"\.txt|(fine|coarse)_label_names\.txt|(desktop|thumbs)\.(ini|db)|"
    r"[^/]+\.(md|rst|pdf|html?|py|ipynb|sh|bib|log|cache))",
    re.IGNORECASE,
)
_REASONS = {
    ".txt": "no labels of an image; lists of splits are not read",
    ".zip": "unpack archives",
    ".tar": "unpack archives",
    ".gz": "unpack archives",
    ".heic": "save them as JPEG or PNG",
    ".avif": "save them as JPEG or PNG",
    ".dcm": "save them as JPEG or PNG",
}
_MOST_MALFORMED = 0.5  # share of annotations; a source with more is refused
_FEWEST_ANNOTATED = 0.5  # share of images; with fewer, folders may be the classes
# train/<class>/images/<file> and val/images/<file>. Some copies have validation images
# sorted into classes: val/<class>/images/<file>, or val/<class>/<file>.
_TINY = re.compile(
    r"(?P<top>(?:.*/)?)"
    r"(?:train/(?P<train>[^/]+)/images|val/images"
    r"|val/(?P<val>[^/]+)(?:/images)?)/(?P<file>[^/]+)"
)
_TINY_TABLE = re.compile(
    r"(.*/)?(val/val_annotations|train/(?P<class>[^/]+)/(?P=class)_boxes)\.txt"
)
# Data/CLS-LOC/train/<class>/<file> and val/<file>, or sorted: val/<class>/<file>.
_ILSVRC = re.compile(
    r"(?P<top>(?:.*/)?ILSVRC)/Data/CLS-LOC/"
    r"(?:train/(?P<train>[^/]+)|val(?:/(?P<val>[^/]+))?)/(?P<file>[^/]+)"
)
# CIFAR-10: data_batch_1, test_batch; CIFAR-100: train, test; as rows or as pickles.
_CIFAR = re.compile(
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
    boxes_from: str = ""  # the files of annotations in words; "" without boxes


Items = Iterator[Record | Fault]


def split_of(path: str) -> str:
    """Find the split that a path names: "train", "test" (also for val), or "".

    Args:
        path: of a folder or file.

    Example:
        >>> split_of("seg_train/valley"), split_of("images/val2017"), split_of("dev")
        ('train', 'test', '')
    """
    words = [word.lower() for word in _SPLIT.findall(path)]
    if not words:
        return ""
    return "train" if words[-1].startswith("train") else "test"


# --- a folder per class ---


def read_class_folders(source: Source) -> Items:
    """Read a folder per class, at the top or in folders of splits.

    Args:
        source: the files.

    Raises:
        ValueError: if folders are neither classes alone nor splits alone.
    """
    top, folders = _folders(source.images, "")
    splits = [name for name in folders if split_of(name)]
    if splits and len(splits) == len(folders):
        for name, images in folders.items():
            below, classes = _folders(images, f"{top}{name}/")
            if not classes:
                raise ValueError(
                    f"{below} holds images and no folder of a class, such as "
                    f"{images[0]}; sort images by their class into {below}CLASS/"
                )
            yield from _of_classes(below, classes, split_of(name))
        return
    is_class = len(splits) == 1 and _is_flat(top + splits[0], folders[splits[0]])
    if splits and not is_class:
        others = sorted(set(folders) - set(splits))
        raise ValueError(
            f"{', '.join(others[:3])} beside the splits {', '.join(splits[:3])}: call "
            "all splits train, val or test, and move other folders away"
        )
    yield from _of_classes(top, folders, "train")


def _folders(images: Iterable[str], top: str) -> tuple[str, dict[str, list[str]]]:
    """Go down to the first folder that holds several, and group images by these."""
    folders: dict[str, list[str]] = defaultdict(list)
    loose = False
    for path in images:
        folder, slash, _ = path.removeprefix(top).partition("/")
        if slash:
            folders[folder].append(path)
        loose = loose or not slash
    if len(folders) != 1 or loose:
        return top, folders
    ((name, below),) = folders.items()
    deeper, inner = _folders(below, f"{top}{name}/")
    # A single folder of images is a class, alone or in its split.
    return (deeper, inner) if inner else (top, folders)


def _is_flat(folder: str, images: Sequence[str]) -> bool:
    """Whether images lie in a folder itself, or all in its folder ``images``."""
    parents = {posixpath.dirname(path) for path in images}
    return parents in ({folder}, {f"{folder}/images"})


def _of_classes(top: str, folders: Mapping[str, Sequence[str]], split: str) -> Items:
    for name, images in folders.items():
        folder = f"{top}{name}"
        if len(folders) > 1 and _SIDES.fullmatch(name):
            raise ValueError(f"{folder} is no class by its name, and has no annotation")
        if not _is_flat(folder, images):
            deepest = max(images, key=lambda path: path.count("/"))
            raise ValueError(
                f"{folder} holds folders ({deepest}): images of a class lie in its "
                "folder itself; call folders of splits train, val or test, or give the "
                "folder of classes as the path"
            )
        stems = {posixpath.splitext(path)[0] for path in images}
        if len(images) > 1 and 2 * len(stems) <= len(images):
            raise ValueError(
                f"{folder} holds each image twice, such as {images[0]} and "
                f"{images[1]}: move masks or copies away"
            )
        for path in images:
            match = _MASK.fullmatch(posixpath.splitext(path)[0])
            if match and match[1] in stems:
                yield Fault(path, "mask_not_read", "a mask of another image", name)
            else:
                yield Record(path, name, split)


# --- annotations that name the classes ---


class _Images:
    """Images of a source, by the names that annotations use."""

    def __init__(self, source: Source) -> None:
        folders = {posixpath.dirname(name) for name in source.names}
        self.top = posixpath.commonpath(folders) if folders else ""
        self.names: dict[str, list[str]] = defaultdict(list)
        self.places: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for path in source.images:
            self.names[posixpath.basename(to_nfc(path))].append(path)
            self.places[_place(path)].append(path)

    def split(self, path: str) -> str:
        """The split that a path names below the folders that all files share."""
        return split_of(path.removeprefix(self.top))

    def beside(self, file: str) -> str:
        """The one image of an annotation's name, beside it or in ``images``; or ""."""
        paths = self.places.get(_place(file), [])
        return paths[0] if len(paths) == 1 else ""

    def named(self, table: str, name: str) -> str:
        """The one image, of the split of a table, whose path ends as it says; or ""."""
        name = to_nfc(name).removeprefix("./")
        paths = self.names.get(posixpath.basename(name), [])
        exact = posixpath.normpath(posixpath.join(posixpath.dirname(table), name))
        if exact in paths:
            return exact
        split = self.split(table)
        ends = [
            path
            for path in paths
            if f"/{to_nfc(path)}".endswith(f"/{name}")
            and (not split or self.split(posixpath.dirname(path)) in ("", split))
        ]
        return ends[0] if len(ends) == 1 else ""

    def record(self, path: str, annotation: Annotation, file: str) -> Record | Fault:
        """The image at a path, with the class of its largest box."""
        stated = annotation.split
        if stated and not split_of(stated):
            fault = f"its split {stated!r} is none of train, val and test"
            annotation = Annotation(fault=fault)
        if annotation.fault:
            return Fault(path, MALFORMED, f"{file}: {annotation.fault}")
        label, of_label = of_largest(annotation)
        if not label:
            return Fault(path, "no_object_in_annotation", file)
        split = split_of(stated) or self.split(posixpath.dirname(path))
        split = split or self.split(file) or "train"
        return Record(path, label, split, of_label)


def _place(path: str) -> tuple[str, ...]:
    """Folders and stem of a file without folders that divide images and annotations."""
    *folders, name = to_nfc(path).split("/")
    shared = [folder for folder in folders if not _SIDES.fullmatch(folder)]
    return (*shared, posixpath.splitext(name)[0])


def _with_ending(source: Source, ending: str) -> list[str]:
    return [name for name in source.names if name.lower().endswith(ending)]


def _read_singles(
    source: Source,
    files: Callable[[Source], list[str]],
    parse: Callable[[bytes], Annotation],
) -> Items:
    """Read annotations of one image each."""
    images = _Images(source)
    for file in files(source):
        path = images.beside(file)
        if path:
            yield images.record(path, _parsed(source, file, parse), file)
        else:
            yield Fault(file, "missing_image", "it has no image, or several")


def _parsed(
    source: Source, file: str, parse: Callable[[bytes], Annotation]
) -> Annotation:
    try:
        return parse(source.read(file))
    except _FAULTS as fault:
        return Annotation(fault=f"{type(fault).__name__}: {fault}")


def _read_tables(
    source: Source,
    files: Callable[[Source], list[str]],
    parse: Callable[[bytes], dict[str, Annotation]],
) -> Items:
    """Read annotations of many images each; an image is in one of them."""
    images = _Images(source)
    table_of: dict[str, str] = {}
    for file in files(source):
        missing = []
        for name, annotation in parse(source.read(file)).items():
            path = images.named(file, name)
            if not path:
                missing.append(name)
                continue
            other = table_of.setdefault(path, file)
            if other != file:
                raise ValueError(f"{path} is in {other} and in {file}; remove one")
            yield images.record(path, annotation, file)
        if missing:
            detail = f"{len(missing)} have no image, or several, such as {missing[0]}"
            yield Fault(file, "missing_image", detail)


def _coco_files(source: Source) -> list[str]:
    images = _Images(source)
    return [
        file
        for file in _with_ending(source, ".json")
        if not images.beside(file) and set(_json_keys(source, file)) >= _COCO
    ]


def _json_keys(source: Source, file: str) -> list[str]:
    try:
        table = json.loads(source.read(file))
    except (ValueError, RecursionError):
        table = None
    source.opened.discard(file)
    return list(table) if isinstance(table, dict) else []


def _csv_files(source: Source) -> list[str]:
    """Tables with columns path and label, without a competition's empty answers."""
    files = []
    for file in _with_ending(source, ".csv"):
        with suppress(ValueError):
            head = source.read(file).decode("utf-8-sig").partition("\n")[0]
            if {"path", "label"} <= set(csv_columns(head)) and (
                "submission" not in file.lower()
            ):
                files.append(file)
        source.opened.discard(file)
    return files


def read_yolo(source: Source) -> Items:
    """Read images with YOLO's labels, and the names in data.yaml or classes.txt.

    Args:
        source: the files.

    Raises:
        ValueError: if the names of classes are in no such file, or in several.
    """
    tables = defaultdict(list)
    for file in source.names:
        tables[posixpath.basename(file)].append(file)
    files = tables["data.yaml"] or tables["classes.txt"]
    if len(files) != 1:
        raise ValueError(
            f"names of classes are in {len(files)} files data.yaml or classes.txt "
            f"{', '.join(files[:3])}, not in one"
        )
    content = source.read(files[0])
    names = content.decode().splitlines()
    if files[0].endswith(".yaml"):
        names = yaml.safe_load(content)["names"]
    if isinstance(names, list):
        names = dict(enumerate(names))
    parse = partial(parse_yolo, names=dict(names))
    yield from _read_singles(source, _yolo_files, parse)


def _yolo_files(source: Source) -> list[str]:
    images = _Images(source)
    return [
        file
        for file in _with_ending(source, ".txt")
        if images.beside(file) or "labels" in file.split("/")
    ]


# --- published data sets ---


def read_tiny_imagenet(source: Source) -> Items:
    """Read Tiny ImageNet, which has a table of boxes per class and one for validation.

    Args:
        source: the files.
    """
    tables: dict[str, dict[str, Annotation]] = {}
    files = set(source.names)
    for name in source.images:
        match = _TINY.fullmatch(name)
        if not match:
            continue
        class_id = match["train"]
        path = f"{match['top']}val/val_annotations.txt"
        if class_id:
            path = f"{match['top']}train/{class_id}/{class_id}_boxes.txt"
        if path not in tables:
            content = source.read(path) if path in files else b""
            tables[path] = parse_tiny_boxes(content)
        annotation = tables[path].get(match["file"])
        yield _published(name, match, annotation)


def read_ilsvrc(source: Source) -> Items:
    """Read ILSVRC CLS-LOC in the layout of Kaggle.

    Validation images lie in one folder, and their XML names the class, or in a folder
    per class.

    Args:
        source: the files.
    """
    files = set(source.names)
    for name in source.images:
        match = _ILSVRC.fullmatch(name)
        if not match:
            continue
        stem = posixpath.splitext(match["file"])[0]
        folder = f"train/{match['train']}" if match["train"] else "val"
        path = f"{match['top']}/Annotations/CLS-LOC/{folder}/{stem}.xml"
        annotation = _parsed(source, path, parse_voc) if path in files else None
        yield _published(name, match, annotation)


def _published(
    name: str, match: re.Match[str], annotation: Annotation | None
) -> Record:
    """An image whose folder is its class, or else its first object."""
    class_id = match["train"] or match["val"]
    if not class_id and annotation and annotation.objects:
        class_id, _ = annotation.objects[0]
    split = "train" if match["train"] else "test"
    return Record(name, class_id or "", split, annotation)


def read_cifar(source: Source) -> Items:
    """Read the binary version of CIFAR-10 and CIFAR-100.

    An image is a row of bytes: a label (in CIFAR-100 a coarse and a fine one), then
    3 x 32 x 32 pixels, channel by channel.

    Args:
        source: the files.

    Raises:
        ValueError: if a file is a pickle, or cut.
    """
    for path in source.names:
        match = _CIFAR.fullmatch(path)
        if not match:
            continue
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
            yield Record(f"{path}/{number:05d}", class_id, split, None, image)


# --- the source as a whole ---


class Layout(NamedTuple):
    """A layout of files, and its reader."""

    read: Callable[[Source], Items]
    looks_like: str  # its paths, for messages
    by_folder: bool = False  # only folders of the classes asked for are entered


LAYOUTS: dict[str, Layout] = {
    "ilsvrc": Layout(
        read_ilsvrc, "ILSVRC/Data/CLS-LOC/train/WNID/*.JPEG", by_folder=True
    ),
    "tiny_imagenet": Layout(
        read_tiny_imagenet,
        "train/WNID/images/*.JPEG with train/WNID/WNID_boxes.txt",
        by_folder=True,
    ),
    "cifar": Layout(read_cifar, "data_batch_1.bin or train.bin of CIFAR"),
    "coco": Layout(
        partial(_read_tables, files=_coco_files, parse=parse_coco),
        "a .json with images, annotations and categories",
    ),
    "csv": Layout(
        partial(_read_tables, files=_csv_files, parse=parse_csv),
        "a .csv with the columns path,label,x0,y0,x1,y1",
    ),
    "labelme": Layout(
        partial(
            _read_singles,
            files=partial(_with_ending, ending=".json"),
            parse=parse_labelme,
        ),
        "images with a .json of labelme beside each",
    ),
    "yolo": Layout(
        read_yolo, "images/*.jpg with labels/*.txt of 5 numbers a line, and data.yaml"
    ),
    "voc": Layout(
        partial(
            _read_singles, files=partial(_with_ending, ending=".xml"), parse=parse_voc
        ),
        "JPEGImages/*.jpg with Annotations/*.xml, or beside",
    ),
    "class_folders": Layout(
        read_class_folders, "CLASS/*.jpg, or train/CLASS and val/CLASS", by_folder=True
    ),
}
BY_FOLDER = tuple(name for name, layout in LAYOUTS.items() if layout.by_folder)
_BY_OBJECTS = ("coco", "csv", "labelme", "yolo", "voc")


def recognise(source: Source) -> str:
    """Find the layout that the files have; class_folders without annotations.

    Args:
        source: the files.

    Raises:
        ValueError: if annotations of several layouts are there.
    """
    if any(_ILSVRC.fullmatch(name) for name in source.images):
        return "ilsvrc"
    if any(_TINY_TABLE.fullmatch(name) for name in source.names):
        return "tiny_imagenet"
    if any(_CIFAR.fullmatch(name) for name in source.names):
        return "cifar"
    images = _Images(source)
    endings = {".xml": "voc", ".txt": "yolo", ".json": "labelme"}
    layouts = {
        endings[ending]
        for ending in endings
        if any(map(images.beside, _with_ending(source, ending)))
    }
    if _coco_files(source):
        layouts.add("coco")
    if _csv_files(source):
        layouts.add("csv")
    if len(layouts) > 1:
        raise ValueError(
            f"annotations of {' and '.join(sorted(layouts))} are there; name one as "
            "data_source, or move the others away"
        )
    return layouts.pop() if layouts else "class_folders"


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
    if layout not in (RECOGNISED, *LAYOUTS):
        raise ValueError(f"data_source {layout!r} is none of {', '.join(LAYOUTS)}")
    source.opened.clear()
    name = "class_folders" if layout == RECOGNISED else layout
    try:
        if layout == RECOGNISED:
            name = recognise(source)
        items = list(LAYOUTS[name].read(source))
        records = _usable_records(items)
        if layout == RECOGNISED and name in _BY_OBJECTS:
            _check_folders(source, records)
        return _listing(name, source, items, records, [to_nfc(c) for c in classes])
    except (*_FAULTS, yaml.YAMLError) as fault:
        if isinstance(fault, OSError):
            raise
        unread = [*source.faults, *_unread_files(source, source.images)]
        words = [str(fault)] + [f"{item.name}: {item.detail}" for item in unread[:5]]
        raise ValueError(
            f"{source.root} is not read as {name}: {'; '.join(words)}; {name} is "
            f"{LAYOUTS[name].looks_like}, see docs/images.md"
        ) from fault


def _usable_records(items: Iterable[Record | Fault]) -> list[Record]:
    """Images with their class; those for training if all are for test.

    Raises:
        ValueError: if there is none, or most annotations are malformed.
    """
    records = [item for item in items if isinstance(item, Record)]
    malformed = [item.detail for item in items if MALFORMED in item[:2]]
    malformed += [
        f"of {record.name}: {record.annotation.fault}"
        for record in records
        if record.annotation and record.annotation.fault
    ]
    if malformed and len(malformed) >= _MOST_MALFORMED * len(records):
        raise ValueError(
            f"{len(malformed)} annotations cannot be read, first {malformed[0]}"
        )
    if not records:
        raise ValueError("no image of a class is there")
    if not any(record.split == "train" for record in records):
        # Images are for test because the source itself has the name of a test split.
        records = [record._replace(split="train") for record in records]
    return [record._replace(class_id=to_nfc(record.class_id)) for record in records]


def _check_folders(source: Source, records: Sequence[Record]) -> None:
    """Refuse objects and folders that name different classes.

    Raises:
        ValueError: if folders of classes hold images without an annotation, or images
            whose objects are of other classes than the folders.
    """
    try:
        folders = {item.name: item for item in read_class_folders(source)}
    except ValueError:
        return
    pairs = {
        (folders[record.name].class_id, record.class_id)
        for record in records
        if record.name in folders
    }
    names = sorted({folder for folder, _ in pairs})
    labels = sorted({label for _, label in pairs})
    is_same = len(names) == len(labels) == len(pairs)
    few = len(records) < _FEWEST_ANNOTATED * len(source.images)
    if len(names) > 1 and (few or not is_same):
        raise ValueError(
            f"objects of {len(records)} of {len(source.images)} images name the "
            f"classes {', '.join(labels[:3])}, and folders {', '.join(names[:3])}; "
            "name class_folders or the layout of the annotations as data_source"
        )


def _listing(
    layout: str,
    source: Source,
    items: Sequence[Record | Fault],
    records: Sequence[Record],
    asked: Sequence[str],
) -> Listing:
    """List the images of the classes asked for, or of all with training images."""
    counts = Counter((record.class_id, record.split) for record in records)
    candidates = asked or sorted({record.class_id for record in records} - {""})
    classes = [name for name in candidates if counts[name, "train"]]
    if not classes or (not asked and len(classes) < 2):
        raise ValueError(
            f"a classifier needs 2 classes, and it has {len(classes)} of "
            f"{len(records)} images: {', '.join(classes) or ', '.join(asked[:3])}"
        )
    faults = [item for item in items if isinstance(item, Fault)]
    for name in candidates:
        if name not in classes:
            detail = f"{counts[name, 'test']} images, and none for training"
            faults.append(Fault("", "unknown_class", detail, name))
    names = {item.name for item in items}
    # Images without a class ("") are not listed; faults of their annotations are.
    faults += _faults_of_annotations(
        [record for record in records if record.class_id in (*classes, "")]
    )
    listed = [record for record in records if record.class_id in classes]
    names = _names(source)
    unread = _unread_files(source, {item.name for item in items})
    faults += [*source.faults, *unread]
    boxes_from = ""
    if any(record.boxes for record in listed):
        endings = Counter(posixpath.splitext(name)[1] for name in sorted(source.opened))
        boxes_from = ", ".join(f"{n} {ending}" for ending, n in endings.most_common(2))
    return Listing(layout, classes, names, listed, faults, boxes_from)


def _faults_of_annotations(records: Sequence[Record]) -> Iterator[Fault]:
    """Report faulty annotations, and images that lack a box in a split with boxes."""
    with_boxes = {record.split for record in records if record.boxes}
    for record in records:
        annotation = record.annotation
        if annotation and annotation.fault:
            yield record.fault(MALFORMED, annotation.fault)
        elif record.split in with_boxes and annotation is None:
            yield record.fault("missing_annotation", "no annotation for this image")
        elif record.split in with_boxes and not record.boxes:
            yield record.fault("no_object_in_annotation", "")


def _names(source: Source) -> dict[str, str]:
    """Readable names of classes by id, from the tables that come with ImageNet."""
    names = {}
    for path in source.names:
        if posixpath.basename(path) in ("words.txt", "LOC_synset_mapping.txt"):
            for line in source.read(path).decode().splitlines():
                class_id, _, synonyms = line.replace("\t", " ", 1).partition(" ")
                names[class_id] = synonyms.split(",")[0].strip()
    return names


def _unread_files(source: Source, names: Iterable[str]) -> list[Fault]:
    """Count the files that were not read, by ending."""
    used = {*names, *source.opened}
    groups = defaultdict(list)
    for name in source.names:
        if name not in used and not _HARMLESS.fullmatch(name):
            groups[posixpath.splitext(name)[1].lower()].append(name)
    faults = []
    for ending, files in groups.items():
        reason = _REASONS.get(ending, "")
        if files[0] in source.images:
            reason = "without an annotation, or not in the folder of a class"
        detail = f"{len(files)} {ending or 'without an ending'} are not read: {reason}"
        faults.append(Fault(files[0], NOT_READ, detail.removesuffix(": ")))
    return faults
