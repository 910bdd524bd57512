"""The layouts in which data sets are published: which images a source holds, of which class and split, with which boxes."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np
import yaml

from helpers.data import annotations
from helpers.data.annotations import Annotation, Box, Said
from helpers.data.sources import Fault, Source

RECOGNISED = "auto"  # the data source that is recognised
NOT_UNDERSTOOD = (
    "not_understood"  # a fault: a file that looks like data of another kind
)
_SPLIT = re.compile(
    r"(?<![a-z])(train|val|test)(?:id|idation|ing)?(?![a-z])"
)  # in names of folders and tables: train2017, valid

_SPLITS = (
    "train",
    "training",
    "val",
    "test",
    "valid",
    "validation",
    "testing",
)  # folders; of those for testing the first is read
_WORD = re.compile(r"[^/_. -]+")  # of a path
_OTHER = re.compile(
    r".*\.(parquet|tfrecords?|tar|t?gz|zip|7z|rar|pkl|pickle|np[yz]|mat|h5|hdf5|mdb)",
    re.IGNORECASE,
)


class Record(NamedTuple):
    """One image that a source lists."""

    name: str  # path inside the source
    class_id: str  # "" where it is not known
    split: str  # "train" or "test"
    annotation: Said | None = None
    content: bytes = b""  # of the image, where it is no file of its own

    @property
    def boxes(self) -> tuple[Box, ...]:
        """Boxes that are annotated, usable or not."""
        return getattr(self.annotation, "boxes", ())

    def fault(self, kind: str, detail: str) -> Fault:
        """Something of it that cannot be used."""
        return Fault(self.name, kind, detail, self.class_id, self.split)


class Listing(NamedTuple):
    """What a source holds of the classes asked for."""

    layout: str
    classes: list[str]  # those that are there, in the order of their labels
    names: Mapping[str, str]  # class id to readable name
    records: list[Record]
    faults: list[Fault]


Found = Iterator[Record | Fault]


def _first_label(said: Said | None) -> str:
    return said.objects[0][0] if isinstance(said, Annotation) and said.objects else ""


def _said(
    source: Source,
    path: str,
    ending: str = ".xml",
    parse: Callable[[bytes], Said] = annotations.parse_voc,
) -> Said | None:
    """What the file says that has this path but for its ending; None where there is none."""
    path = str(PurePosixPath(path).with_suffix(ending))
    try:
        return parse(source.read(path)) if path in source.known else None
    except ValueError as fault:
        return str(fault)


def _tiny_imagenet(source: Source) -> Found:
    tables: dict[str, dict[str, Said]] = {}
    for name in source.images:
        if found := re.fullmatch(
            r"((?:.*/)?(?:train/([^/]+)|val)/)images/([^/]+)", name
        ):
            folder, class_id, file = found.groups("")
            path = (
                f"{folder}{f'{class_id}_boxes' if class_id else 'val_annotations'}.txt"
            )
            if path not in tables:
                tables[path] = (
                    annotations.parse_tiny_boxes(source.read(path))
                    if path in source.known
                    else {}
                )
            said = tables[path].pop(file, None)
            yield Record(
                name,
                class_id or _first_label(said),
                "train" if class_id else "test",
                said,
            )
    yield from (_absent(path, list(table)) for path, table in tables.items() if table)


def _ilsvrc(source: Source) -> Found:
    """Kaggle's folders, of which that for testing has no folders of classes: there the XML names the class."""
    for name in source.images:
        if found := re.fullmatch(
            r"((?:.*/)?ILSVRC)/Data/(CLS-LOC/(?:train/([^/]+)|val)/[^/]+)", name
        ):
            top, rest, class_id = found.groups()
            said = _said(source, f"{top}/Annotations/{rest}")
            yield Record(
                name,
                class_id or _first_label(said),
                "train" if class_id else "test",
                said,
            )


def _class_folders(
    source: Source, annotated: bool = False, asked: Sequence[str] = ()
) -> Found:
    """A folder per class, below train/ and val/ or at the top; those asked for anywhere. Annotated ones have an XML beside each image."""
    folders = {os.path.dirname(name) for name in source.images}
    if {os.path.basename(folder).lower() for folder in folders} <= set(
        _SPLITS
    ):  # images of each split in one folder
        return
    above = {part.lower() for folder in folders for part in folder.split("/")[:-1]}
    splits = [word for word in _SPLITS if word in above]
    if splits and splits[0].startswith("train"):
        before = rf"(?:.*?/)?((?i:{'|'.join(splits[:2])}))/"
    elif asked:
        before = "(?:.*?/)?()"
    else:  # below leading folders that stand alone, of which the last may be the only class
        shared = os.path.commonpath(folders)
        shared = os.path.dirname(shared) if shared in folders else shared
        before = f"{re.escape(shared)}{'/' if shared else ''}()"
    classes = "|".join(map(re.escape, asked)) or "[^/]+"
    pattern = re.compile(rf"{before}({classes})/{'' if annotated else '(?:.*/)?'}[^/]+")
    for name in source.images:
        if found := pattern.fullmatch(name):
            split = "test" if found[1].lower() in splits[1:2] else "train"
            yield Record(
                name, found[2], split, _said(source, name) if annotated else None
            )


def _cifar(source: Source) -> Found:
    """The binary version of CIFAR-10 and CIFAR-100: rows of one label, or a coarse and a fine one, and 3 x 32 x 32 bytes."""
    for path in source.names:
        if not (
            match := re.fullmatch(
                r"((?:.*/)?)(?:(data|test)_batch(?:_\d)?|(train|test))(\.bin)?", path
            )
        ):
            continue
        top, of_10, of_100, binary = match.groups()
        content, size = source.read(path), 3074 if of_100 else 3073
        if not binary or not content or len(content) % size:
            told = (
                f"{len(content):,} bytes, no rows of {size:,}"
                if binary
                else "a pickle of CIFAR, which is not opened"
            )
            yield Fault(
                path,
                NOT_UNDERSTOOD,
                f"{told}; give the binary version, such as cifar-10-binary.tar.gz unpacked",
            )
            continue
        table = f"{top}{'fine_label_names' if of_100 else 'batches.meta'}.txt"
        names = (
            source.read(table).decode("utf-8", "replace").split()
            if table in source.known
            else []
        )
        for number, row in enumerate(
            np.frombuffer(content, np.uint8).reshape(-1, size)
        ):
            label, planes = row[-3073], row[-3072:].reshape(3, 1024)
            class_id = names[label] if label < len(names) else str(label)
            split = "test" if "test" in (of_10, of_100) else "train"
            yield Record(
                f"{path}/{number:05d}",
                class_id,
                split,
                None,
                b"P6 32 32 255\n" + planes.T.tobytes(),
            )


def _of_tables(
    source: Source, ending: str, parse: Callable[[bytes], dict[str, Said]]
) -> Found:
    """Images that tables name; what is called "instances" is taken before COCO's keypoints and captions."""
    places = defaultdict(list)
    for name in source.names:
        places[os.path.basename(name)].append(name)
    paths = [name for name in source.names if name.lower().endswith(ending)]
    for path in [
        path for path in paths if os.path.basename(path).startswith("instances")
    ] or paths:
        try:
            table = parse(source.read(path))
        except ValueError as fault:
            yield Fault(path, NOT_UNDERSTOOD, str(fault))
        else:
            yield from _by_largest(
                path,
                {
                    name: (_place(path, places, name), said)
                    for name, said in table.items()
                },
                _split(path),
            )


def _voc(source: Source) -> Found:
    """Pascal VOC XML, each of the image of its name, which lies beside it or in the folder whose path is most like its own."""
    places, found = defaultdict(list), {}
    for name in source.images:
        places[PurePosixPath(name).stem].append(name)
    for path in map(PurePosixPath, source.names):
        if path.suffix.lower() == ".xml":
            found[f"{path}"] = (
                _nearest(f"{path}", places[path.stem]),
                _said(source, f"{path}", path.suffix),
            )
    return _by_largest("*.xml", found)


def _yolo(source: Source) -> Found:
    """Images below folders "images", and for each the lines of a text file below "labels"; names of classes in a YAML file."""
    found, names = {}, {}
    for path in [name for name in source.names if name.endswith((".yaml", ".yml"))]:
        try:
            given = yaml.safe_load(source.read(path))["names"]
            pairs = given.items() if isinstance(given, dict) else enumerate(given)
            names = {str(key): value for key, value in pairs if isinstance(value, str)}
        except (
            yaml.YAMLError,
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
        ) as fault:
            yield Fault(
                path,
                NOT_UNDERSTOOD,
                f"it has no names of classes ({type(fault).__name__})",
            )
    for name in source.images:
        before, folder, rest = f"/{name}".rpartition("/images/")
        said = (
            _said(
                source,
                f"{before}/labels/{rest}"[1:],
                ".txt",
                partial(annotations.parse_yolo, names=names),
            )
            if folder
            else None
        )
        if said is not None:
            found[name] = name, said
    yield from _by_largest("labels", found)


def _place(table: str, places: Mapping[str, Sequence[str]], name: str) -> str:
    """Where the image lies that a table names, of the paths that end so; "" for nowhere."""
    path = PurePosixPath(name.replace("\\", "/"))
    elsewhere = re.match(
        r"/|\.\./|\w:/", f"{path}"
    )  # what comes first is then of another machine
    for start in range(len(path.parts) if elsewhere else 1):
        end = f"/{'/'.join(path.parts[start:])}"
        if found := [
            place for place in places.get(path.name, ()) if f"/{place}".endswith(end)
        ]:
            return _nearest(table, found)
    return ""


def _nearest(path: str, places: Sequence[str]) -> str:
    """The one place that shares most words with a path, in the fewest folders; "" where there is none, or several are."""
    near = {
        place: (
            len({*_WORD.findall(place)} & {*_WORD.findall(path)}),
            -place.count("/"),
        )
        for place in places
    }
    best = [place for place, found in near.items() if found == max(near.values())]
    return best[0] if len(best) == 1 else ""


def _split(text: str) -> str:
    """The split that a path names last: "annotations/instances_val2017.json" -> "test"; "" where it names none."""
    words = _SPLIT.findall(text.lower())
    return "" if not words else "train" if words[-1] == "train" else "test"


def _absent(table: str, names: Sequence[str]) -> Fault:
    return Fault(
        table,
        "missing_image",
        f"{len(names)} named there have no file, such as {min(names)[:100]}",
    )


def _by_largest(
    table: str, listed: Mapping[str, tuple[str, Said]], split: str = ""
) -> Found:
    """Images by the place of each ("" for nowhere) and what is said of it: of the class of its largest box, with that class's boxes."""
    absent = [name for name, (place, _) in listed.items() if not place]
    here = list(
        {item[0]: item for item in listed.values() if item[0]}.values()
    )  # of two that are of one image, the last
    if absent:
        yield (
            _absent(table, absent)
            if here
            else Fault(
                table,
                NOT_UNDERSTOOD,
                f"its images do not lie here, such as {min(absent)[:100]}",
            )
        )
    for name, said in here:
        where = split or _split(os.path.dirname(name)) or "train"
        if isinstance(said, str) or not all(label for label, _ in said.objects):
            yield Fault(
                name,
                "malformed_annotation",
                said if isinstance(said, str) else "an object has no class",
                split=where,
            )
        elif said.objects:
            label, _ = max(said.objects, key=lambda item: _area(item[1]))
            yield Record(
                name,
                label,
                where,
                said._replace(
                    objects=tuple(item for item in said.objects if item[0] == label)
                ),
            )
    labels = [
        {label for label, _ in said.objects}
        for _, said in here
        if isinstance(said, Annotation)
    ]
    if empty := sum(not of_image for of_image in labels):
        yield Fault("", "no_object_in_annotation", f"{empty} images", split=split)
    if several := sum(len(of_image) > 1 for of_image in labels):
        told = f"{several} images hold objects of several classes; each counts as its largest box"
        yield Fault("", "several_classes", told, split=split)


def _area(box: Box | None) -> float:
    return (box[2] - box[0]) * (box[3] - box[1]) if box else 0.0


# How each source is listed, in the order in which they are tried, and what is looked for.
LAYOUTS: dict[str, tuple[Callable[[Source], Found], str]] = {
    "ilsvrc": (_ilsvrc, "ILSVRC/Data/CLS-LOC/train/<wnid>/*.JPEG"),
    "tiny_imagenet": (
        _tiny_imagenet,
        "train/<wnid>/images/*.JPEG with train/<wnid>/<wnid>_boxes.txt",
    ),
    "cifar": (_cifar, "data_batch_1.bin or train.bin of CIFAR"),
    "coco": (
        partial(_of_tables, ending=".json", parse=annotations.parse_coco),
        "a .json with images, annotations and categories",
    ),
    "csv": (
        partial(_of_tables, ending=".csv", parse=annotations.parse_csv),
        "a .csv with the columns path, label, x0, y0, x1, y1",
    ),
    "yolo": (_yolo, "images/*.jpg with labels/*.txt"),
    "voc_folder": (
        partial(_class_folders, annotated=True),
        "[train/]<class>/*.jpg with an .xml beside each",
    ),
    "voc": (_voc, "Annotations/*.xml with JPEGImages/*.jpg, or beside each other"),
    "class_folders": (_class_folders, "[train/]<class>/*.jpg"),
}
WITH_BOXES = (
    "ilsvrc",
    "tiny_imagenet",
    "voc_folder",
)  # where a training image without a box is one that lacks it
BY_FOLDER = (
    *WITH_BOXES,
    "class_folders",
)  # where only the folders of the classes asked for need be looked into


def _listing(
    layout: str, source: Source, asked: Sequence[str], found: Sequence[Record | Fault]
) -> Listing:
    """Keep the images of the classes asked for, or of all that have training images, and count what is wrong."""
    faults, records = (
        [item for item in found if isinstance(item, kind)] for kind in (Fault, Record)
    )
    if not any(
        record.split == "train" for record in records
    ):  # the source itself is named as a split
        records = [record._replace(split="train") for record in records]
    counts = Counter(
        (record.class_id, record.split) for record in records if record.class_id
    )
    known = asked or sorted({class_id for class_id, _ in counts})
    classes = [class_id for class_id in known if counts[class_id, "train"]]
    for class_id in [class_id for class_id in known if class_id not in classes]:
        tested = counts[class_id, "test"]
        told = (
            f"{tested} images, and none for training"
            if tested
            else "it is not in the source"
        )
        faults.append(Fault("", "unknown_class", told, class_id))
    taken = {*classes, ""}
    records = [record for record in records if record.class_id in taken]
    boxed = (
        {"train"}
        if any(record.boxes for record in records if record.split == "train")
        else set()
    )
    boxed = {"train", "test"} if layout in WITH_BOXES else boxed
    for record in records:
        if isinstance(record.annotation, str):
            faults.append(record.fault("malformed_annotation", record.annotation))
        elif record.split in boxed and record.annotation is None:
            faults.append(
                record.fault("missing_annotation", "nothing is said of this image")
            )
        elif record.split in boxed and not record.boxes:
            faults.append(record.fault("no_object_in_annotation", ""))
    tables = [
        name
        for name in source.names
        if os.path.basename(name) in ("words.txt", "LOC_synset_mapping.txt")
    ]
    names = {
        class_id: name
        for table in tables
        for class_id, name in annotations.parse_names(source.read(table)).items()
    }
    return Listing(
        layout,
        classes,
        names,
        [record for record in records if record.class_id],
        faults,
    )


def scan(source: Source, layout: str, asked: Sequence[str] = ()) -> Listing:
    """List the images of a source; with ``RECOGNISED`` by the first layout that finds any, and then what was not understood is a fault.

    Raises ValueError where no training image is there, with what was looked for and what was found.
    """
    tried, notes = LAYOUTS if layout == RECOGNISED else [layout], []
    if others := [
        name for name in source.names if layout == RECOGNISED and _OTHER.fullmatch(name)
    ]:
        notes.append(
            Fault(
                others[0],
                NOT_UNDERSTOOD,
                f"{len(others)} archives, arrays or pickles, which are not opened",
            )
        )
    for name in tried:
        given = {"asked": asked} if name in ("voc_folder", "class_folders") else {}
        listing = _listing(
            name, source, asked, found := list(LAYOUTS[name][0](source, **given))
        )
        # A folder of images with XML beside them is no class, and where nothing has a box, another layout may say more.
        likely = any(record.boxes for record in listing.records) and (
            asked or len(listing.classes) > 1
        )
        if listing.records and (
            likely or layout != RECOGNISED or name not in WITH_BOXES
        ):
            listing.faults.extend(notes)
            used = {
                item.name
                for item in [*found, *listing.faults]
                if isinstance(item, Fault) or item.class_id
            }
            if (
                layout == RECOGNISED
                and not asked
                and (unused := set(source.images) - used)
            ):
                told = f"{len(unused)} images have no class, or lie in a split that is not read"
                listing.faults.append(Fault(min(unused), NOT_UNDERSTOOD, told))
            return listing
        notes += [
            fault
            for fault in listing.faults
            if fault.fault == NOT_UNDERSTOOD or layout != RECOGNISED
        ][:5]
    told = [
        f"found {fault.name or fault.class_id}: {fault.detail}" for fault in notes
    ] or ["nothing like it is there"]
    raise ValueError(
        f"no class was found in {source.root} for data_source {layout!r}: looked for {' or '.join(LAYOUTS[name][1] for name in tried)}; "
        f"{'; '.join(told)}; check data_path and data_source"
    )
