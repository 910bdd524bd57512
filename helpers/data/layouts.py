"""The layouts in which data sets are published, and which of them a source has.

A source is read as the first layout that fits. Everything that lies there and is not
read is named, and two readings that are both possible are a ``Question``.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from helpers.data import class_folders, object_layouts, published_layouts
from helpers.data.annotations import parse_coco, parse_csv, parse_names
from helpers.data.class_folders import Question
from helpers.data.object_layouts import NOT_UNDERSTOOD
from helpers.data.records import Record
from helpers.data.sources import Fault, Source, composed
from helpers.data.split_lists import with_splits

__all__ = ["LAYOUTS", "Listing", "Question", "Record", "scan"]

RECOGNISED = "auto"  # the data source that is recognised
NOT_READ = "not_read"  # a fault: files that are no part of what was read
_NAMES = ("words.txt", "loc_synset_mapping.txt")  # tables of readable names
# Faults of images for which a source with annotations may not be read as such.
_OF_ANNOTATIONS = ("malformed_annotation", "no_object_in_annotation")
_FEW_IMAGES = 0.5  # of a source, below which annotations may be of something else


class Layout(NamedTuple):
    """How a source is listed, and what is looked for."""

    read: Callable[..., Iterator[Record | Fault]]
    looks_like: str
    by_folder: bool = False  # only the folders of classes asked for are looked into
    with_boxes: bool = False  # a training image without a box is one that lacks it
    takes_classes: bool = False  # the reader is told which classes are asked for


_COCO = partial(object_layouts.read_tables, ending=".json", parse=parse_coco)
_CSV = partial(object_layouts.read_tables, ending=".csv", parse=parse_csv)

# In the order in which they are tried.
LAYOUTS: dict[str, Layout] = {
    "ilsvrc": Layout(
        published_layouts.read_ilsvrc,
        "ILSVRC/Data/CLS-LOC/train/<wnid>/*.JPEG",
        by_folder=True,
        with_boxes=True,
    ),
    "tiny_imagenet": Layout(
        published_layouts.read_tiny_imagenet,
        "train/<wnid>/images/*.JPEG with train/<wnid>/<wnid>_boxes.txt",
        by_folder=True,
        with_boxes=True,
        takes_classes=True,
    ),
    "cub": Layout(
        published_layouts.read_cub,
        "images.txt with bounding_boxes.txt, as CUB-200 has them",
    ),
    "cifar": Layout(
        published_layouts.read_cifar, "data_batch_1.bin or train.bin of CIFAR"
    ),
    "coco": Layout(_COCO, "a .json with images, annotations and categories"),
    "csv": Layout(_CSV, "a .csv with the columns path, label, x0, y0, x1, y1"),
    "labelme": Layout(object_layouts.read_labelme, "*.jpg with a .json of labelme"),
    "yolo": Layout(object_layouts.read_yolo, "images/*.jpg with labels/*.txt"),
    "voc_folder": Layout(
        class_folders.read_annotated_folders,
        "[train/]<class>/*.jpg with an .xml of each",
        by_folder=True,
        with_boxes=True,
        takes_classes=True,
    ),
    "voc": Layout(
        object_layouts.read_voc,
        "Annotations/*.xml with JPEGImages/*.jpg, or beside each other",
    ),
    "class_folders": Layout(
        class_folders.read_class_folders,
        "[train/]<class>/*.jpg",
        by_folder=True,
        takes_classes=True,
    ),
    "top_folders": Layout(
        class_folders.read_top_folders,
        "<class>/*.jpg, whatever the folders are called",
        by_folder=True,
        takes_classes=True,
    ),
}
_ONLY_BY_NAME = ("top_folders",)  # never recognised
# Where files such as train.txt may say which images are for training.
_SPLIT_BY_LISTS = (
    "coco",
    "csv",
    "labelme",
    "yolo",
    "voc_folder",
    "voc",
    "class_folders",
)
WITH_BOXES = tuple(name for name, layout in LAYOUTS.items() if layout.with_boxes)
BY_FOLDER = tuple(name for name, layout in LAYOUTS.items() if layout.by_folder)


class Listing(NamedTuple):
    """What a source holds of the classes asked for."""

    layout: str
    classes: list[str]  # those that are there, in the order of their labels
    names: Mapping[str, str]  # class id to readable name
    records: list[Record]
    faults: list[Fault]
    boxes_from: str = ""  # which files say where the boxes are


def scan(source: Source, layout: str, classes: Sequence[str] = ()) -> Listing:
    """List the images of a source.

    Args:
        source: the files.
        layout: a name of ``LAYOUTS``, or ``RECOGNISED`` for the first that fits.
        classes: ids of the classes asked for; none are all.

    Returns:
        Images with their classes, splits and boxes; faults name what cannot be used and
        every kind of file that is not read.

    Raises:
        ValueError: where no image is of a class, with what was looked for and what lies
            there.
        Question: where two readings are possible; the message names both.
    """
    classes = [composed(name) for name in classes]
    recognised = layout == RECOGNISED
    names = [name for name in LAYOUTS if name not in _ONLY_BY_NAME]
    causes: dict[str, str] = {}  # by file, why another layout does not read it
    understood: set[str] = set()  # files that another layout can read
    problems: dict[str, list[Fault]] = {}  # by layout, images that it cannot read
    for name in names if recognised else [layout]:
        source.opened.clear()
        items = _items(source, name, classes)
        by_lists, lists = with_splits(source, items, name in _SPLIT_BY_LISTS)
        listing = _listing(name, source, classes, by_lists)
        if _fits(listing, classes) if recognised else listing.records:
            if recognised and not classes:
                _check_readings(source, listing)
            source.opened.update(lists)
            listing.faults.extend(source.faults)
            listing.faults.extend(_grouped(problems))
            listing.faults.extend(_unread(source, items, causes, bool(classes)))
            return listing
        for fault in listing.faults:
            if fault.fault == NOT_UNDERSTOOD and fault.name not in understood:
                causes.setdefault(fault.name, fault.detail)
            elif not recognised or fault.fault in _OF_ANNOTATIONS:
                problems.setdefault(name, []).append(fault)
        understood |= source.opened - causes.keys()
    source.opened.clear()
    there = [*source.faults, *_grouped(problems), *_unread(source, [], causes)]
    raise ValueError(_refusal(source, layout, names, there))


def _items(source: Source, name: str, classes: Sequence[str]) -> list[Record | Fault]:
    """What a layout reads, the classes in one form of their letters."""
    layout = LAYOUTS[name]
    items = (
        layout.read(source, classes) if layout.takes_classes else layout.read(source)
    )
    return [
        item._replace(class_id=composed(item.class_id))
        if isinstance(item, Record)
        else item
        for item in items
    ]


def _fits(listing: Listing, classes: Sequence[str]) -> bool:
    """Whether a source is of a layout.

    A folder of images with XML beside them is no class, and where nothing has a box,
    another layout may say more.
    """
    if listing.layout not in WITH_BOXES:
        return bool(listing.records)
    boxed = any(record.boxes for record in listing.records)
    return boxed and (bool(classes) or len(listing.classes) > 1)


def _check_readings(source: Source, listing: Listing) -> None:
    """Raise a Question where folders and annotations name different classes."""
    if listing.layout == "voc_folder":
        difference = class_folders.disagreement(listing.records)
        if difference:
            raise Question(
                f"{difference}: which are the classes? --layout voc_folder for the "
                "folders, --layout voc for the objects"
            )
    if listing.layout not in ("coco", "csv", "labelme", "yolo", "voc"):
        return
    count = len(listing.records)
    if count < _FEW_IMAGES * len(source.images):
        folders = _classes_of_folders(source)
        if len(folders) > 1:
            raise Question(
                f"annotations ({listing.layout}) are of {count} of "
                f"{len(source.images)} images, and folders may be the classes "
                f"({_few(folders)}): --layout {listing.layout} or "
                "--layout class_folders"
            )


def _classes_of_folders(source: Source) -> list[str]:
    try:
        records = list(class_folders.read_class_folders(source, ()))
    except Question:
        return []
    return sorted({record.class_id for record in records})


# --- what is there of the classes ---


def _listing(
    layout: str,
    source: Source,
    asked: Sequence[str],
    items: Sequence[Record | Fault],
) -> Listing:
    """The images of the classes asked for, or of all that have training images."""
    faults = [item for item in items if isinstance(item, Fault)]
    records = [item for item in items if isinstance(item, Record)]
    if not any(record.split == "train" for record in records):
        # The source itself is named as a split.
        records = [record._replace(split="train") for record in records]
    counts = Counter(
        (record.class_id, record.split) for record in records if record.class_id
    )
    candidates = asked or sorted({class_id for class_id, _ in counts})
    classes = [class_id for class_id in candidates if counts[class_id, "train"]]
    for class_id in candidates:
        if class_id not in classes:
            count = counts[class_id, "test"]
            detail = f"{count} images, and none for training"
            if not count:
                detail = "it is not in the source"
            detail += _spelt_otherwise(class_id, counts)
            faults.append(Fault("", "unknown_class", detail, class_id))
    wanted = {*classes, ""}
    records = [record for record in records if record.class_id in wanted]
    faults += _annotation_faults(layout, records)
    boxes_from = ""
    if any(record.boxes for record in records):
        boxes_from = _described(source.opened, source.names)
    return Listing(
        layout,
        classes,
        _readable_names(source),
        [record for record in records if record.class_id],
        faults,
        boxes_from,
    )


def _spelt_otherwise(class_id: str, counts: Mapping[tuple[str, str], int]) -> str:
    """Which class of the training images has the same letters, in words; or ""."""
    for other, split in counts:
        same = _letters(other) == _letters(class_id)
        if split == "train" and other != class_id and same:
            return f"; it differs from {other!r} in capitals, blanks or hyphens alone"
    return ""


def _letters(name: str) -> str:
    """A name in small letters, without blanks and hyphens."""
    return re.sub(r"[\s_-]", "", name).casefold()


def _annotation_faults(layout: str, records: Sequence[Record]) -> Iterator[Fault]:
    """Images that lack a box, in a split where images have boxes."""
    boxed = {
        record.split for record in records if record.boxes and record.split == "train"
    }
    if layout in WITH_BOXES:
        boxed = {"train", "test"}
    for record in records:
        if isinstance(record.annotation, str):
            yield record.fault("malformed_annotation", record.annotation)
        elif record.split in boxed and record.annotation is None:
            yield record.fault("missing_annotation", "no annotation for this image")
        elif record.split in boxed and not record.boxes:
            yield record.fault("no_object_in_annotation", "")


def _readable_names(source: Source) -> dict[str, str]:
    """Names of classes by id, of the tables that ImageNet's relatives have."""
    names: dict[str, str] = {}
    for path in source.names:
        if path.rpartition("/")[2].lower() in _NAMES:
            names |= parse_names(source.read(path))
    return names


# --- what is there and not read ---

# Documents, and tables that repeat what folders say.
_HARMLESS = re.compile(
    r"(.*/)?((read_?me|licen[cs]e|copying|citation|change_?log)[^/]*|wnids\.txt|"
    r"batches\.meta\.txt|(fine|coarse)_label_names\.txt|(desktop|thumbs)\.(ini|db)|"
    r"[^/]+\.(md|rst|pdf|html?|py|ipynb|sh|bib|log|cache))",
    re.IGNORECASE,
)
# Why files of an ending are never read.
_REASONS = {
    "archives, arrays and pickles are not opened": (
        "parquet tfrecord tfrecords tar tgz gz zip 7z rar pkl pickle npy npz mat h5 "
        "hdf5 mdb"
    ),
    "save them as JPEG or PNG": (
        "heic heif avif svg psd raw cr2 cr3 nef arw dng ico tga pcx eps ps exr hdr dcm "
        "nii"
    ),
}
_REASON_OF = {
    f".{ending}": reason
    for reason, endings in _REASONS.items()
    for ending in endings.split()
}
_MOST_GROUPS = 12
_FEW_GROUPS = 3


def _unread(
    source: Source,
    items: Iterable[Record | Fault],
    causes: Mapping[str, str],
    chosen: bool = False,
) -> list[Fault]:
    """A fault for the files of each folder and ending that are not read.

    Args:
        source: the files, of which those opened were read.
        items: what was listed.
        causes: by file, why another layout does not read it.
        chosen: whether some classes are asked for; annotations of others are not named.
    """
    used = {item.name for item in items} | source.opened
    masked = class_folders.masks(source.images)
    top = _shared_top(source.names)
    read = {_group_of(name, top) for name in source.opened} if chosen else set()
    groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for name in source.names:
        group = _group_of(name, top)
        if name in used or group in read or _HARMLESS.fullmatch(name):
            continue
        groups[*group, "masks of images" if name in masked else ""].append(name)
    faults = []
    for (folder, ending, reason), names in sorted(
        groups.items(), key=lambda item: -len(item[1])
    ):
        cause = next((causes[name] for name in names if name in causes), "")
        reason = reason or _REASON_OF.get(ending) or cause
        place = f"{top}{folder}".strip("/")
        detail = _of_files(len(names), ending, place, reason)
        faults.append(Fault(names[0], NOT_READ, detail))
    if len(faults) > _MOST_GROUPS:
        rest = faults[_MOST_GROUPS - 1 :]
        detail = f"{len(rest)} further kinds of files are not read"
        faults[_MOST_GROUPS - 1 :] = [Fault(rest[0].name, NOT_READ, detail)]
    return faults


def _of_files(count: int, ending: str, folder: str, reason: str) -> str:
    """What is said of files that are not read; of a single one the reason alone."""
    if count == 1:
        return reason or "is not read"
    what = ending or "without an ending"
    where = f" in {folder}" if folder else ""
    return f"{count} {what}{where} are not read{f': {reason}' if reason else ''}"


def _shared_top(names: Sequence[str]) -> str:
    """The leading folders that all files share, with a slash; "" for none."""
    if not names:
        return ""
    first = min(names).split("/")[:-1]
    last = max(names).split("/")[:-1]
    shared = []
    for one, other in zip(first, last, strict=False):
        if one != other:
            break
        shared.append(f"{one}/")
    return "".join(shared)


def _group_of(name: str, top: str) -> tuple[str, str]:
    """The first folder of a file below the leading ones, and its ending."""
    folder = name.removeprefix(top).rpartition("/")[0].partition("/")[0]
    return folder, _ending(name)


def _ending(name: str) -> str:
    """Ending of a file, in small letters with its dot; "" for none."""
    stem, dot, ending = name.rpartition("/")[2].rpartition(".")
    return f".{ending.lower()}" if dot and stem else ""


def _described(opened: Iterable[str], names: Sequence[str]) -> str:
    """Files that were read, in words: "24 .xml in Annotations"."""
    top = _shared_top(names)
    # In the order of names: of as many files the first folder stands first.
    groups = Counter(
        _group_of(name, top)
        for name in sorted(opened)
        if name.rpartition("/")[2] not in _NAMES
    )
    if len(groups) > _FEW_GROUPS:
        of_ending: Counter[tuple[str, str]] = Counter()
        for (_, ending), count in groups.items():
            of_ending["", ending] += count
        groups = of_ending
    return ", ".join(
        f"{count} {ending or 'files'}{f' in {folder}' if folder else ''}"
        for (folder, ending), count in groups.most_common(_FEW_GROUPS)
    )


def _grouped(problems: Mapping[str, Sequence[Fault]]) -> list[Fault]:
    """One fault for all of a kind that another layout met."""
    faults = []
    for layout, items in problems.items():
        for kind, count in Counter(fault.fault for fault in items).items():
            first = next(fault for fault in items if fault.fault == kind)
            detail = f"as {layout}, {count} {kind.replace('_', ' ')}: {first.detail}"
            detail = detail.rstrip(": ")
            name = first.name or first.class_id
            if not any(fault.name == name for fault in faults):
                faults.append(Fault(name, NOT_READ, detail))
    return faults


def _refusal(
    source: Source, layout: str, names: Sequence[str], there: Sequence[Fault]
) -> str:
    """Why a source cannot be read."""
    tried = names if layout == RECOGNISED else [layout]
    wanted = " or ".join(LAYOUTS[name].looks_like for name in tried)
    lines = [
        f"{fault.name or fault.class_id}: {fault.detail}".strip(": ")
        for fault in there[:8]
    ]
    held = f"found {'; '.join(lines)}" if lines else "nothing like it is there"
    return (
        f"no class was found in {source.root} for data_source {layout!r}: {held}; "
        f"looked for {wanted}; check data_path and data_source"
    )


def _few(names: Sequence[str]) -> str:
    """The first three of some names."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"
