"""The layouts in which data sets are published: which images a source holds, of which class and split, with which boxes."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np
import yaml

from helpers.data import annotations
from helpers.data.annotations import Annotation, Table
from helpers.data.sources import TOLD_UNUSABLE, UNUSABLE, Fault, Source

RECOGNISED = "auto"  # the data source that is recognised
NOT_UNDERSTOOD = "not_understood"  # a fault: a file that looks like data of another kind
_SPLIT = re.compile(r"(?<![a-z])(train|val|test)(?:id|idation|ing)?(?![a-z])")  # in names of folders and tables: train2017, valid

_SPLITS = ("train", "training", "val", "test", "valid", "validation", "testing")  # folders; of those for testing the first is read
_WORD = re.compile(r"[^/_. -]+")  # of a path
_OTHER = re.compile(r".*\.(parquet|tfrecords?|tar|t?gz|zip|7z|rar|pkl|pickle|np[yz]|mat|h5|hdf5|mdb)", re.IGNORECASE)


class Record(NamedTuple):
    """One image that a source lists."""

    name: str  # path inside the source
    class_id: str  # "" where it is not known
    split: str  # "train" or "test"
    annotation: Annotation | str | None = None  # a text says what is wrong with it
    content: bytes = b""  # of the image, where it is no file of its own

    @property
    def boxes(self) -> tuple[annotations.Box, ...]:
        """Boxes that are annotated, usable or not."""
        return getattr(self.annotation, "boxes", ())


@dataclass
class Listing:
    """What a source holds of the classes asked for."""

    layout: str
    source: Source | None
    asked: Sequence[str]
    classes: list[str] = field(default_factory=list)  # those that are there, in the order of their labels
    names: dict[str, str] = field(default_factory=dict)  # class id to readable name
    records: list[Record] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    tables: dict[str, Table] = field(default_factory=dict)  # what they say of images that were not there yet

    def note(self, class_id: str, split: str, name: str, fault: str, detail: str) -> None:
        """Count a fault."""
        self.faults.append(Fault(class_id, split, name, fault, detail))

    def read(self, path: str) -> bytes:
        """Bytes of a table; none where it is missing."""
        return self.source.read(path) if path in self.source.known else b""

    def row(self, path: str, name: str, parse: Callable[[bytes], Table]) -> Annotation | str | None:
        """What a table, which is read once, says of an image."""
        if path not in self.tables:
            self.tables[path] = parse(self.read(path))
        return self.tables[path].pop(name, None)

    def xml(self, path: str) -> Annotation | str | None:
        """What an XML file says of an image."""
        try:
            return annotations.parse_voc(self.source.read(path)) if path in self.source.known else None
        except ValueError as fault:
            return str(fault)

    def take(self, records: Sequence[Record]) -> None:
        """Take the images of the classes asked for, or of all that have training images, and count what is wrong."""
        if wrong := sorted({record.class_id for record in records if UNUSABLE.search(record.class_id)}):
            self.note("", "", ascii(wrong[0]), "name_not_usable", f"{len(wrong)} {TOLD_UNUSABLE}")
            records = [record for record in records if record.class_id not in wrong]
        if not any(record.split == "train" for record in records):  # the source itself is named as a split
            records = [record._replace(split="train") for record in records]
        counts = Counter((record.class_id, record.split) for record in records if record.class_id)
        known = sorted({class_id for class_id, _ in counts})
        there = [class_id for class_id in known if counts[class_id, "train"]]
        for class_id in self.asked or known:
            if class_id not in there:
                found = counts[class_id, "test"]
                says = f"{found} images, and none for training" if found else "it is not in the source"
                self.note(class_id, "", "", "unknown_class", says)
        self.classes = [class_id for class_id in self.asked or there if class_id in there]
        classes = {*self.classes, ""}
        for record in records:
            if record.class_id in classes and isinstance(record.annotation, str):
                self.note(record.class_id, record.split, record.name, "malformed_annotation", record.annotation)
            elif record.class_id in classes and record.annotation is None and self.layout in WITH_BOXES:
                self.note(record.class_id, record.split, record.name, "missing_annotation", "nothing is said of this image")
        self.records = [record for record in records if record.class_id and record.class_id in classes]
        for path, table in self.tables.items():  # what is left of them
            if absent := [name for name, found in table.items() if not isinstance(found, str) and found.objects[0] in classes]:
                self.note("", "", path, "missing_image", f"{len(absent)} named there have no file, such as {min(absent)}")


def _tiny_imagenet(listing: Listing) -> Iterator[Record]:
    for name in listing.source.images:
        if found := re.fullmatch(r"((?:.*/)?)train/([^/]+)/images/([^/]+)", name):
            top, class_id, file = found.groups()
            listing.names = listing.names or annotations.parse_names(listing.read(f"{top}words.txt"), "\t")
            marked = listing.row(f"{top}train/{class_id}/{class_id}_boxes.txt", file, annotations.parse_tiny_boxes)
            yield Record(name, class_id, "train", marked)
        elif found := re.fullmatch(r"((?:.*/)?)val/images/([^/]+)", name):
            marked = listing.row(f"{found[1]}val/val_annotations.txt", found[2], annotations.parse_tiny_boxes)
            yield Record(name, marked.objects[0] if isinstance(marked, Annotation) else "", "test", marked)


def _ilsvrc(listing: Listing) -> Iterator[Record]:
    """Images labelled by their folder, or by CSV and XML; boxes by the XML, which states the size that they refer to, or the CSV."""
    for name in listing.source.images:
        if found := re.fullmatch(r"((?:.*/)?)ILSVRC/Data/CLS-LOC/(train/([^/]+)|val)/([^/]+)\.\w+", name):
            top, folder, class_id, stem = found.groups("")
            if not listing.names:
                listing.names = annotations.parse_names(listing.read(f"{top}LOC_synset_mapping.txt"), None)
            row = listing.row(f"{top}LOC_{folder.split('/')[0]}_solution.csv", stem, annotations.parse_solution)
            said = getattr(row, "objects", ())
            if not listing.asked or not said or said[0] in listing.asked:
                marked = listing.xml(f"{top}ILSVRC/Annotations/CLS-LOC/{folder}/{stem}.xml")
                labels = [label for label in (class_id, *said, *getattr(marked, "objects", ())) if label]
                yield Record(name, labels[0] if labels else "", "train" if class_id else "test", row if marked is None else marked)


def _class_folders(listing: Listing, annotated: bool = False) -> Iterator[Record]:
    """A folder per class, below train/ and val/ or at the top; annotated ones have an XML beside each image."""
    images = listing.source.images
    folders = {os.path.dirname(name) for name in images}
    if {os.path.basename(folder).lower() for folder in folders} <= set(_SPLITS):  # images of each split in one folder
        return
    above = {part.lower() for folder in folders for part in folder.split("/")[:-1]}
    splits = [word for word in _SPLITS if word in above]
    if splits and splits[0].startswith("train"):
        before = rf"(?:.*?/)?((?i:{'|'.join(splits[:2])}))/"
    elif listing.asked:
        before = "(?:.*?/)?()"
    else:  # below leading folders that stand alone, of which the last may be the only class
        shared = os.path.commonpath(folders)
        shared = os.path.dirname(shared) if shared in folders else shared
        before = f"{re.escape(shared)}{'/' if shared else ''}()"
    classes = "|".join(map(re.escape, listing.asked)) or "[^/]+"
    pattern = re.compile(rf"{before}({classes})/{'' if annotated else '(?:.*/)?'}[^/]+")
    for name in images:
        if found := pattern.fullmatch(name):
            marked = listing.xml(str(PurePosixPath(name).with_suffix(".xml"))) if annotated else None
            yield Record(name, found[2], "test" if found[1].lower() in splits[1:2] else "train", marked)


def _cifar(listing: Listing) -> Iterator[Record]:
    """The binary version of CIFAR-10 and CIFAR-100: rows of one label, or a coarse and a fine one, and 3 x 32 x 32 bytes."""
    for path in listing.source.names:
        if not (match := re.fullmatch(r"((?:.*/)?)(?:(data|test)_batch(?:_\d)?|(train|test))(\.bin)?", path)):
            continue
        top, of_10, of_100, binary = match.groups()
        content, size = listing.read(path), 3074 if of_100 else 3073
        if not binary or not content or len(content) % size:
            told = f"{len(content):,} bytes, no rows of {size:,}" if binary else "a pickle of CIFAR, which is not opened"
            listing.note("", "", path, NOT_UNDERSTOOD, f"{told}; give the binary version, such as cifar-10-binary.tar.gz unpacked")
            continue
        names = listing.read(f"{top}{'fine_label_names' if of_100 else 'batches.meta'}.txt").decode("utf-8", "replace").split()
        for number, row in enumerate(np.frombuffer(content, np.uint8).reshape(-1, size)):
            label, planes = row[-3073], row[-3072:].reshape(3, 1024)
            class_id = names[label] if label < len(names) else str(label)
            split = "test" if "test" in (of_10, of_100) else "train"
            yield Record(f"{path}/{number:05d}", class_id, split, None, b"P6 32 32 255\n" + planes.T.tobytes())


def _of_tables(listing: Listing, ending: str, parse: Callable[[bytes], Table]) -> Iterator[Record]:
    """Images that tables name; what is called "instances" is taken before COCO's keypoints and captions."""
    source, places = listing.source, defaultdict(list)
    for name in source.names:
        places[os.path.basename(name)].append(name)
    paths = [name for name in source.names if name.lower().endswith(ending)]
    for path in [path for path in paths if os.path.basename(path).startswith("instances")] or paths:
        try:
            table = parse(source.read(path))
        except ValueError as fault:
            listing.note("", "", path, NOT_UNDERSTOOD, str(fault))
            continue
        yield from _by_largest(listing, _lying_here(listing, path, table, partial(_place, path, places)), _split(path))


def _voc(listing: Listing) -> Iterator[Record]:
    """Pascal VOC XML, each of the image of its name, which lies beside it or in the folder whose path is most like its own."""
    places, paths = defaultdict(list), [name for name in listing.source.names if name.lower().endswith(".xml")]
    for name in listing.source.images:
        places[PurePosixPath(name).stem].append(name)
    table = {path: listing.xml(path) for path in paths}
    return _by_largest(listing, _lying_here(listing, "*.xml", table, lambda path: _nearest(path, places[PurePosixPath(path).stem])), "")


def _lying_here(listing: Listing, path: str, table: Table, place: Callable[[str], str]) -> Table:
    """What a table says, by the paths of the images that are there; those that are not are counted."""
    places = {name: place(name) for name in table}
    found = {places[name]: marked for name, marked in table.items() if places[name]}
    if absent := [name for name in table if not places[name]]:
        told = f"{len(absent)} named there have no file" if found else "its images do not lie here"
        listing.note("", "", path, "missing_image" if found else NOT_UNDERSTOOD, f"{told}, such as {min(absent)[:100]}")
    return found


def _place(table: str, places: Mapping[str, Sequence[str]], name: str) -> str:
    """Where the image lies that a table names, of the paths that end so; "" for nowhere."""
    path = PurePosixPath(name.replace("\\", "/"))
    elsewhere = re.match(r"/|\.\./|\w:/", f"{path}")  # what comes first is then of another machine
    for start in range(len(path.parts) if elsewhere else 1):
        end = f"/{'/'.join(path.parts[start:])}"
        if found := [place for place in places.get(path.name, ()) if f"/{place}".endswith(end)]:
            return _nearest(table, found)
    return ""


def _nearest(path: str, places: Sequence[str]) -> str:
    """The one place that shares most words with a path, in the fewest folders; "" where there is none, or several are."""
    near = {place: (len({*_WORD.findall(place)} & {*_WORD.findall(path)}), -place.count("/")) for place in places}
    best = [place for place, found in near.items() if found == max(near.values())]
    return best[0] if len(best) == 1 else ""


def _split(text: str) -> str:
    """The split that a path names last: "annotations/instances_val2017.json" -> "test"; "" where it names none."""
    words = _SPLIT.findall(text.lower())
    return "" if not words else "train" if words[-1] == "train" else "test"


def _by_largest(listing: Listing, found: Mapping[str, Annotation | str], split: str) -> Iterator[Record]:
    """Images by the objects in them: each is of the class of its largest box, and keeps the boxes of that class."""
    for name, marked in found.items():
        where = split or _split(os.path.dirname(name)) or "train"
        if isinstance(marked, str):
            listing.note("", where, name, "malformed_annotation", marked)
        elif marked.objects:
            boxes = marked.boxes if len(marked.boxes) == len(marked.objects) else ()
            largest = int(np.argmax([(x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in boxes] or [0]))
            label = marked.objects[largest]
            kept = tuple(box for box, other in zip(boxes, marked.objects, strict=False) if other == label)
            yield Record(name, label, where, Annotation(kept, (label,), marked.size) if kept else None)
    objects = [marked.objects for marked in found.values() if isinstance(marked, Annotation)]
    if empty := sum(not named for named in objects):
        listing.note("", split, "", "no_object_in_annotation", f"{empty} images")
    if several := sum(len(set(named)) > 1 for named in objects):
        listing.note("", split, "", "several_classes", f"{several} images hold objects of several classes; each counts as its largest box")


def _yolo(listing: Listing) -> Iterator[Record]:
    """Images below folders "images", and for each the lines of a text file below "labels"; names of classes in a YAML file."""
    found, names = {}, {}
    for path in [name for name in listing.source.names if name.endswith((".yaml", ".yml"))]:
        try:
            given = yaml.safe_load(listing.read(path))["names"]
            pairs = given.items() if isinstance(given, dict) else enumerate(given)
            names = {int(key): value for key, value in pairs if isinstance(value, str)}
        except (yaml.YAMLError, LookupError, TypeError, ValueError, RecursionError) as fault:
            listing.note("", "", path, NOT_UNDERSTOOD, f"it has no names of classes ({type(fault).__name__})")
    for name in listing.source.images:
        before, folder, rest = f"/{name}".rpartition("/images/")
        path = str(PurePosixPath(f"{before}/labels/{rest}").with_suffix(".txt"))[1:]
        if folder and path in listing.source.known:
            try:
                found[name] = annotations.parse_yolo(listing.read(path), names)
            except ValueError as fault:
                found[name] = f"{path}: {fault}"
    return _by_largest(listing, found, "")


# How each source is listed, in the order in which they are tried, and what is looked for.
LAYOUTS: dict[str, tuple[Callable[[Listing], Iterator[Record]], str]] = {
    "ilsvrc": (_ilsvrc, "ILSVRC/Data/CLS-LOC/train/<wnid>/*.JPEG"),
    "tiny_imagenet": (_tiny_imagenet, "train/<wnid>/images/*.JPEG with train/<wnid>/<wnid>_boxes.txt"),
    "cifar": (_cifar, "data_batch_1.bin or train.bin of CIFAR"),
    "coco": (partial(_of_tables, ending=".json", parse=annotations.parse_coco), "a .json with images, annotations and categories"),
    "csv": (partial(_of_tables, ending=".csv", parse=annotations.parse_csv), "a .csv with the columns path, label, x0, y0, x1, y1"),
    "yolo": (_yolo, "images/*.jpg with labels/*.txt"),
    "voc_folder": (partial(_class_folders, annotated=True), "[train/]<class>/*.jpg with an .xml beside each"),
    "voc": (_voc, "Annotations/*.xml with JPEGImages/*.jpg, or beside each other"),
    "class_folders": (_class_folders, "[train/]<class>/*.jpg"),
}
WITH_BOXES = ("ilsvrc", "tiny_imagenet", "voc_folder")  # where a training image without a box is one that lacks it
BY_FOLDER = (*WITH_BOXES, "class_folders")  # where only the folders of the classes asked for need be looked into


def scan(source: Source, layout: str, asked: Sequence[str] = ()) -> Listing:
    """List the images of a source; with ``RECOGNISED`` by the first layout that finds any, and then what was not understood is a fault.

    Raises ValueError where no training image is there, with what was looked for and what was found.
    """
    tried, notes = LAYOUTS if layout == RECOGNISED else [layout], []
    if others := [name for name in source.names if layout == RECOGNISED and _OTHER.fullmatch(name)]:
        notes.append(Fault("", "", others[0], NOT_UNDERSTOOD, f"{len(others)} archives, arrays or pickles, which are not opened"))
    for name in tried:
        listing = Listing(name, source, asked)
        listing.take(records := list(LAYOUTS[name][0](listing)))
        # A folder of images with XML beside them is no class, and where nothing has a box, another layout may say more.
        likely = any(record.boxes for record in listing.records) and (asked or len(listing.classes) > 1)
        if listing.records and (likely or layout != RECOGNISED or name not in WITH_BOXES):
            listing.faults += notes
            unused = set(source.images) - {record.name for record in records if record.class_id} - {fault.name for fault in listing.faults}
            if unused and layout == RECOGNISED and not asked:
                told = f"{len(unused)} images have no class, or lie in a split that is not read"
                listing.note("", "", min(unused), NOT_UNDERSTOOD, told)
            return listing
        notes += [fault for fault in listing.faults if fault.fault in (NOT_UNDERSTOOD, "name_not_usable") or layout != RECOGNISED][:5]
    told = [f"found {fault.name or fault.class_id}: {fault.detail}" for fault in notes] or ["nothing like it is there"]
    raise ValueError(
        f"no class was found in {source.root} for data_source {layout!r}: looked for {' or '.join(LAYOUTS[name][1] for name in tried)}; "
        f"{'; '.join(told)}; check data_path and data_source"
    )
