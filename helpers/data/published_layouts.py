"""Layouts of published data sets: ILSVRC, Tiny ImageNet, CIFAR, CUB-200."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

import numpy as np

from helpers.data.annotations import (
    Annotation,
    parse_corner_box,
    parse_pairs,
    parse_tiny_boxes,
    parse_voc,
)
from helpers.data.object_layouts import (
    NOT_UNDERSTOOD,
    RecordsOrFaults,
    missing_images,
)
from helpers.data.places import Places
from helpers.data.records import Record, first_label
from helpers.data.sources import Fault, Source, to_nfc

# train/<class>/images/<file> and val/images/<file>. Some copies have validation images
# sorted into classes: val/<class>/images/<file>, or val/<class>/<file>.
_TINY = re.compile(
    r"(?P<top>(?:.*/)?)"
    r"(?:train/(?P<train_class>[^/]+)/images|val/(?:(?P<val_class>[^/]+)/)?images"
    r"|val/(?P<sorted_class>[^/]+))/(?P<file>[^/]+)",
    re.IGNORECASE,
)
# Data/CLS-LOC/train/<class>/<file> and val/<file>, or sorted: val/<class>/<file>.
_ILSVRC = re.compile(
    r"(?P<top>(?:.*/)?ILSVRC)/Data/CLS-LOC/"
    r"(?:train/(?P<train_class>[^/]+)|val(?:/(?P<val_class>[^/]+))?)/(?P<file>[^/]+)",
    re.IGNORECASE,
)
# CIFAR-10: data_batch_1, test_batch; CIFAR-100: train, test; with .bin or without.
_CIFAR = re.compile(
    r"(?P<top>(?:.*/)?)"
    r"(?:(?P<of_10>data|test)_batch(?:_\d)?|(?P<of_100>train|test))(?P<binary>\.bin)?",
    re.IGNORECASE,
)


def read_tiny_imagenet(source: Source, classes: Sequence[str]) -> RecordsOrFaults:
    """Read Tiny ImageNet, which has a table of boxes per class and one for validation.

    Args:
        source: the files.
        classes: ids of the classes to read; empty for all.
    """
    tables: dict[str, dict[str, Annotation]] = {}
    for name in source.images:
        match = _TINY.fullmatch(name)
        if not match:
            continue
        top = match["top"]
        train_class = match["train_class"]
        path = f"{top}val/val_annotations.txt"
        if train_class:
            path = f"{top}train/{train_class}/{train_class}_boxes.txt"
        if path not in tables:
            tables[path] = parse_tiny_boxes(source.read_if_there(path))
        annotation = tables[path].pop(match["file"], None)
        val_class = match["val_class"] or match["sorted_class"]
        class_id = train_class or val_class or first_label(annotation)
        yield Record(name, class_id, "train" if train_class else "test", annotation)
    for path, rest in tables.items():
        # Images of classes that are not asked for may be absent on purpose.
        missing = [
            name
            for name, annotation in rest.items()
            if not classes or first_label(annotation) in ("", *classes)
        ]
        if missing:
            yield missing_images(path, missing)


def read_ilsvrc(source: Source, classes: Sequence[str]) -> RecordsOrFaults:
    """Read ILSVRC CLS-LOC in the layout of Kaggle.

    Validation images lie in one folder, and their XML names the class, or in a folder
    per class.

    Args:
        source: the files.
        classes: ignored; the readers of folders share one signature.
    """
    for name in source.images:
        match = _ILSVRC.fullmatch(name)
        if not match:
            continue
        top = match["top"]
        train_class = match["train_class"]
        val_class = match["val_class"]
        stem = PurePosixPath(match["file"]).stem
        folder = f"train/{train_class}" if train_class else "val"
        annotations = f"{top}/Annotations/CLS-LOC"
        path = source.find_ignoring_case(f"{annotations}/{folder}/{stem}.xml")
        if not path and val_class:
            path = source.find_ignoring_case(
                f"{annotations}/val/{val_class}/{stem}.xml"
            )
        annotation = parse_voc(source.read(path)) if path else None
        class_id = train_class or val_class or first_label(annotation)
        yield Record(name, class_id, "train" if train_class else "test", annotation)


def read_cifar(source: Source) -> RecordsOrFaults:
    """Read the binary version of CIFAR-10 and CIFAR-100.

    An image is a row of bytes: a label (in CIFAR-100 a coarse and a fine one), then
    3 x 32 x 32 pixels, channel by channel.

    Args:
        source: the files.
    """
    for path in source.names:
        match = _CIFAR.fullmatch(path)
        if not match:
            continue
        content = source.read(path)
        row_length = 3074 if match["of_100"] else 3073
        if not match["binary"] or not content or len(content) % row_length:
            detail = "a pickle of CIFAR, which is not opened"
            if match["binary"]:
                detail = f"{len(content):,} bytes, no rows of {row_length:,}"
            advice = "give the binary version, such as cifar-10-binary.tar.gz unpacked"
            yield Fault(path, NOT_UNDERSTOOD, f"{detail}; {advice}")
            continue
        table = "fine_label_names.txt" if match["of_100"] else "batches.meta.txt"
        content_of_table = source.read_if_there(f"{match['top']}{table}")
        names = content_of_table.decode("utf-8", "replace").split()
        word = match["of_10"] or match["of_100"]
        split = "test" if word.lower() == "test" else "train"
        rows = np.frombuffer(content, np.uint8).reshape(-1, row_length)
        for number, row in enumerate(rows):
            label = row[-3073]  # the fine one in CIFAR-100
            channels = row[-3072:].reshape(3, 1024)
            class_id = names[label] if label < len(names) else str(label)
            # As a PPM file, whose bytes are R, G, B pixel by pixel.
            image = b"P6 32 32 255\n" + channels.T.tobytes()
            yield Record(f"{path}/{number:05d}", class_id, split, None, image)


def read_cub(source: Source) -> RecordsOrFaults:
    """Read CUB-200: tables of paths, boxes and splits by the number of the image.

    The folder of an image names its class. ``train_test_split.txt`` has 1 for
    training and 0 for test.

    Args:
        source: the files.
    """
    for table in source.names:
        if table.rpartition("/")[2].lower() != "images.txt":
            continue
        top = table[: -len("images.txt")]
        boxes = parse_pairs(source.read_if_there(f"{top}bounding_boxes.txt"))
        splits = parse_pairs(source.read_if_there(f"{top}train_test_split.txt"))
        if not boxes and not splits:
            continue
        places = Places(name for name in source.images if name.startswith(top))
        missing = []
        for number, name in parse_pairs(source.read(table)).items():
            path = places.named(f"{top}images/{name}", name)
            class_id = PurePosixPath(name).parent.name
            if not path or not class_id:
                missing.append(name)
                continue
            split = "test" if splits.get(number) == "0" else "train"
            annotation = None
            if number in boxes:
                annotation = parse_corner_box(boxes[number], class_id)
            yield Record(path, to_nfc(class_id), split, annotation)
        if missing:
            yield missing_images(table, missing)
