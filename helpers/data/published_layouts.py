"""Layouts of published data sets: ILSVRC, Tiny ImageNet, CIFAR, CUB-200."""

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

import numpy as np

from helpers.data.annotations import (
    Annotation,
    AnnotationOrFault,
    parse_corner_box,
    parse_pairs,
    parse_tiny_boxes,
    parse_voc,
)
from helpers.data.object_layouts import NOT_UNDERSTOOD, absent
from helpers.data.places import Places
from helpers.data.records import Record, first_label
from helpers.data.sources import Fault, Source, composed

Listed = Iterator[Record | Fault]

# Validation images lie together, or sorted into folders of classes for torchvision.
_TINY = re.compile(
    r"(?P<top>(?:.*/)?)"
    r"(?:train/(?P<trained>[^/]+)/images|val/(?:(?P<tested>[^/]+)/)?images"
    r"|val/(?P<sorted>[^/]+))/(?P<file>[^/]+)",
    re.IGNORECASE,
)
_ILSVRC = re.compile(
    r"(?P<top>(?:.*/)?ILSVRC)/Data/CLS-LOC/"
    r"(?:train/(?P<trained>[^/]+)|val(?:/(?P<tested>[^/]+))?)/(?P<file>[^/]+)",
    re.IGNORECASE,
)
_CIFAR = re.compile(
    r"(?P<top>(?:.*/)?)"
    r"(?:(?P<of_10>data|test)_batch(?:_\d)?|(?P<of_100>train|test))(?P<binary>\.bin)?",
    re.IGNORECASE,
)


def read_tiny_imagenet(source: Source, classes: Sequence[str] = ()) -> Listed:
    """Tiny ImageNet, whose boxes stand in a table per class and one for validation.

    Args:
        source: the files.
        classes: ids asked for; none are all.
    """
    tables: dict[str, dict[str, AnnotationOrFault]] = {}
    for name in source.images:
        match = _TINY.fullmatch(name)
        if not match:
            continue
        top = match["top"]
        trained = match["trained"]
        file = match["file"]
        path = f"{top}val/val_annotations.txt"
        if trained:
            path = f"{top}train/{trained}/{trained}_boxes.txt"
        if path not in tables:
            there = source.spelt(path)
            tables[path] = parse_tiny_boxes(source.read(there)) if there else {}
        reading = tables[path].pop(file, None)
        class_id = trained or match["tested"] or match["sorted"] or first_label(reading)
        yield Record(name, class_id, "train" if trained else "test", reading)
    for path, table in tables.items():
        # Of validation images, those of classes not asked for may be elsewhere.
        names = [
            name
            for name, reading in table.items()
            if not classes or first_label(reading) in ("", *classes)
        ]
        if names:
            yield absent(path, names)


def read_ilsvrc(source: Source) -> Listed:
    """ILSVRC CLS-LOC as Kaggle ships it.

    Validation images lie together, where the XML names the class, or in folders.

    Args:
        source: the files.
    """
    for name in source.images:
        match = _ILSVRC.fullmatch(name)
        if not match:
            continue
        top = match["top"]
        trained = match["trained"]
        tested = match["tested"]
        stem = PurePosixPath(match["file"]).stem
        folder = f"train/{trained}" if trained else "val"
        reading = _voc(source, f"{top}/Annotations/CLS-LOC/{folder}/{stem}.xml")
        if reading is None and tested:
            path = f"{top}/Annotations/CLS-LOC/val/{tested}/{stem}.xml"
            reading = _voc(source, path)
        class_id = trained or tested or first_label(reading)
        yield Record(name, class_id, "train" if trained else "test", reading)


def _voc(source: Source, path: str) -> AnnotationOrFault | None:
    """What an XML file says; None where there is none."""
    place = source.spelt(path)
    if not place:
        return None
    try:
        return parse_voc(source.read(place))
    except ValueError as fault:
        return str(fault)


def read_cifar(source: Source) -> Listed:
    """The binary version of CIFAR-10 and CIFAR-100.

    Rows of one label, or a coarse and a fine one, and 3 x 32 x 32 bytes.

    Args:
        source: the files.
    """
    for path in source.names:
        match = _CIFAR.fullmatch(path)
        if not match:
            continue
        content = source.read(path)
        size = 3074 if match["of_100"] else 3073
        if not match["binary"] or not content or len(content) % size:
            detail = "a pickle of CIFAR, which is not opened"
            if match["binary"]:
                detail = f"{len(content):,} bytes, no rows of {size:,}"
            advice = "give the binary version, such as cifar-10-binary.tar.gz unpacked"
            yield Fault(path, NOT_UNDERSTOOD, f"{detail}; {advice}")
            continue
        table = "fine_label_names.txt" if match["of_100"] else "batches.meta.txt"
        names = _words(source, f"{match['top']}{table}")
        kind = (match["of_10"] or match["of_100"]).lower()
        split = "test" if kind == "test" else "train"
        rows = np.frombuffer(content, np.uint8).reshape(-1, size)
        for number, row in enumerate(rows):
            label = row[-3073]
            planes = row[-3072:].reshape(3, 1024)
            class_id = names[label] if label < len(names) else str(label)
            image = b"P6 32 32 255\n" + planes.T.tobytes()
            yield Record(f"{path}/{number:05d}", class_id, split, None, image)


def _words(source: Source, path: str) -> list[str]:
    """Words of a text file; none where it is not there."""
    place = source.spelt(path)
    return source.read(place).decode("utf-8", "replace").split() if place else []


def read_cub(source: Source) -> Listed:
    """CUB-200: images and boxes by number, and a table of which are for training.

    A class is the folder of its images; ``train_test_split.txt`` has 1 for training.

    Args:
        source: the files.
    """
    for table in source.names:
        if table.rpartition("/")[2].lower() != "images.txt":
            continue
        top = table[: -len("images.txt")]
        boxes = _pairs(source, f"{top}bounding_boxes.txt")
        splits = _pairs(source, f"{top}train_test_split.txt")
        if not boxes and not splits:
            continue
        places = Places(name for name in source.images if name.startswith(top))
        missing = []
        for number, name in _pairs(source, table).items():
            place = places.named(f"{top}images/{name}", name)
            class_id = PurePosixPath(name).parent.name
            if not place or not class_id:
                missing.append(name)
                continue
            split = "test" if splits.get(number) == "0" else "train"
            reading = _cub_box(boxes.get(number), class_id)
            yield Record(place, composed(class_id), split, reading)
        if missing:
            yield absent(table, missing)


def _pairs(source: Source, path: str) -> dict[str, str]:
    """Lines of "number value"; none where the file is not there."""
    place = source.spelt(path)
    return parse_pairs(source.read(place)) if place else {}


def _cub_box(text: str | None, class_id: str) -> AnnotationOrFault | None:
    """The box of an image; None where the table has none."""
    if text is None:
        return None
    box = parse_corner_box(text)
    return box if isinstance(box, str) else Annotation(((class_id, box),))
