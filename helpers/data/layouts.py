"""The layouts in which data sets are published, and which of them a source has.

A source is read as the first layout that fits. Files that are not read are reported as
faults. If two readings are possible, a ``Question`` is raised.
"""

import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from helpers.data import class_folders, object_layouts, published_layouts
from helpers.data.annotations import parse_coco, parse_csv, parse_names
from helpers.data.class_folders import Question, first_three
from helpers.data.object_layouts import NOT_UNDERSTOOD
from helpers.data.records import Record
from helpers.data.sources import Fault, Source, to_nfc
from helpers.data.split_lists import with_splits

__all__ = ["LAYOUTS", "Listing", "Question", "Record", "scan"]

RECOGNISED = "auto"  # in place of a layout: the first that fits
NOT_READ = "not_read"  # the kind of a fault: files that were not read
_TABLES_OF_NAMES = ("words.txt", "loc_synset_mapping.txt")  # readable class names
# Faults of images that explain why a source was not read by its annotations.
_FAULTS_OF_ANNOTATIONS = ("malformed_annotation", "no_object_in_annotation")
# Annotations of less than this share of the images may not name the classes.
_FEW_IMAGES = 0.5


class Layout(NamedTuple):
    """A layout of files, and its reader."""

    read: Callable[..., Iterator[Record | Fault]]
    looks_like: str  # pattern of the paths, for messages
    # Only the folders of the classes asked for are entered, and the reader is told
    # these classes.
    by_folder: bool = False
    with_boxes: bool = False  # every training image should have a box


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
    ),
    "voc": Layout(
        object_layouts.read_voc,
        "Annotations/*.xml with JPEGImages/*.jpg, or beside each other",
    ),
    "class_folders": Layout(
        class_folders.read_class_folders,
        "[train/]<class>/*.jpg",
        by_folder=True,
    ),
    "top_folders": Layout(
        class_folders.read_top_folders,
        "<class>/*.jpg, whatever the folders are called",
        by_folder=True,
    ),
}
_ONLY_BY_NAME = ("top_folders",)  # layouts that are never recognised by themselves
WITH_BOXES = tuple(name for name, layout in LAYOUTS.items() if layout.with_boxes)
BY_FOLDER = tuple(name for name, layout in LAYOUTS.items() if layout.by_folder)


class NoClassError(ValueError):
    """A source in which no class was found."""

    content = ""  # what is there, in words


class Listing(NamedTuple):
    """The images of a source that are of the classes asked for."""

    layout: str  # as which the source was read
    classes: list[str]  # ids of those with training images, in the order of labels
    names: Mapping[str, str]  # readable names by class id
    records: list[Record]
    faults: list[Fault]
    boxes_from: str = ""  # the files of annotations in words; "" without boxes


def scan(source: Source, layout: str, classes: Sequence[str] = ()) -> Listing:
    """List the images of a source.

    Args:
        source: the files.
        layout: a name of ``LAYOUTS``, or ``RECOGNISED`` for the first that fits.
        classes: ids of the classes asked for; empty for all.

    Returns:
        Images with their classes, splits and boxes. Its faults name images that cannot
        be used, and every kind of file that was not read.

    Raises:
        NoClassError: if the source has no image of a class; the message says what was
            expected and what is there.
        Question: if two readings are possible; the message names both.
    """
    classes = [to_nfc(name) for name in classes]
    is_auto = layout == RECOGNISED
    candidates = [layout]
    if is_auto:
        candidates = [name for name in LAYOUTS if name not in _ONLY_BY_NAME]
    causes: dict[str, str] = {}  # by file, why an earlier candidate did not read it
    readable: set[str] = set()  # files that an earlier candidate read
    problems: dict[str, list[Fault]] = {}  # by earlier candidate, faults of images
    for name in candidates:
        source.opened.clear()  # to it are added the files that this candidate reads
        items = _read(source, name, classes)
        split_items, lists = with_splits(source, items)
        listing = _listing(name, source, classes, split_items)
        fits = _fits(listing, classes) if is_auto else bool(listing.records)
        if fits:
            if is_auto and not classes:
                _check_readings(source, listing)
            source.opened.update(lists)
            listing.faults.extend(source.faults)
            listing.faults.extend(_faults_of_layouts(problems))
            listing.faults.extend(
                _faults_of_unread_files(source, items, causes, bool(classes))
            )
            return listing
        for fault in listing.faults:
            # A file that an earlier candidate read needs no mention: labelme does not
            # understand COCO's .json.
            if fault.fault == NOT_UNDERSTOOD and fault.name not in readable:
                causes.setdefault(fault.name, fault.detail)
            # A layout that was asked for should fit: all of its faults are reported.
            elif not is_auto or fault.fault in _FAULTS_OF_ANNOTATIONS:
                problems.setdefault(name, []).append(fault)
        readable |= source.opened - causes.keys()
    source.opened.clear()
    faults = [
        *source.faults,
        *_faults_of_layouts(problems),
        *_faults_of_unread_files(source, [], causes),
    ]
    raise _refusal(source, layout, candidates, faults)


def _read(source: Source, name: str, classes: Sequence[str]) -> list[Record | Fault]:
    """Records and faults of a layout, with class ids in Unicode's form NFC."""
    layout = LAYOUTS[name]
    arguments = [source, classes] if layout.by_folder else [source]
    items = []
    for item in layout.read(*arguments):
        if isinstance(item, Record):
            item = item._replace(class_id=to_nfc(item.class_id))
        items.append(item)
    return items


def _fits(listing: Listing, classes: Sequence[str]) -> bool:
    """Whether a source is of a layout.

    A layout in which images should have boxes does not fit if none has, since another
    layout may have more to read. Unless classes are asked for, it also needs two
    classes: a single folder of images with XML files is a data set, not a class.
    """
    if listing.layout not in WITH_BOXES:
        return bool(listing.records)
    has_boxes = any(record.boxes for record in listing.records)
    return has_boxes and (bool(classes) or len(listing.classes) > 1)


def _check_readings(source: Source, listing: Listing) -> None:
    """Raise a Question if folders and annotations name different classes."""
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
                f"({first_three(folders)}): --layout {listing.layout} or "
                "--layout class_folders"
            )


def _classes_of_folders(source: Source) -> list[str]:
    """Classes of a source read by its folders; empty if they leave a question."""
    try:
        records = list(class_folders.read_class_folders(source, ()))
    except Question:
        return []
    return sorted({record.class_id for record in records})


# --- images of the classes asked for ---


def _listing(
    layout: str,
    source: Source,
    asked: Sequence[str],
    items: Sequence[Record | Fault],
) -> Listing:
    """List the images of the classes asked for, or of all with training images."""
    faults = [item for item in items if isinstance(item, Fault)]
    records = [item for item in items if isinstance(item, Record)]
    if not any(record.split == "train" for record in records):
        # Images are for test because the source itself has the name of a test split.
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
            detail += _other_spelling(class_id, counts)
            faults.append(Fault("", "unknown_class", detail, class_id))
    # Images without a class ("") are not listed; faults of their annotations are.
    wanted = {*classes, ""}
    records = [record for record in records if record.class_id in wanted]
    faults += _annotation_faults(layout, records)
    boxes_from = ""
    if any(record.boxes for record in records):
        boxes_from = _files_in_words(source.opened, source.names)
    return Listing(
        layout,
        classes,
        _readable_names(source),
        [record for record in records if record.class_id],
        faults,
        boxes_from,
    )


def _other_spelling(class_id: str, counts: Mapping[tuple[str, str], int]) -> str:
    """Name the class with training images that is only spelt otherwise; "" for none."""
    for other, split in counts:
        is_same = _without_spelling(other) == _without_spelling(class_id)
        if split == "train" and other != class_id and is_same:
            return f"; it differs from {other!r} in capitals, blanks or hyphens alone"
    return ""


def _without_spelling(name: str) -> str:
    """A name in small letters, without blanks, hyphens and underscores."""
    return re.sub(r"[\s_-]", "", name).casefold()


def _annotation_faults(layout: str, records: Sequence[Record]) -> Iterator[Fault]:
    """Report faulty annotations, and images that should have a box and have none.

    Training images should have boxes if any of them has; in layouts with boxes all
    images should.
    """
    splits_with_boxes = set()
    if any(record.boxes for record in records if record.split == "train"):
        splits_with_boxes = {"train"}
    if layout in WITH_BOXES:
        splits_with_boxes = {"train", "test"}
    for record in records:
        needs_box = record.split in splits_with_boxes
        if record.annotation and record.annotation.fault:
            yield record.fault("malformed_annotation", record.annotation.fault)
        elif needs_box and record.annotation is None:
            yield record.fault("missing_annotation", "no annotation for this image")
        elif needs_box and not record.boxes:
            yield record.fault("no_object_in_annotation", "")


def _readable_names(source: Source) -> dict[str, str]:
    """Names of classes by id, from the tables that come with ImageNet."""
    names: dict[str, str] = {}
    for path in source.names:
        if path.rpartition("/")[2].lower() in _TABLES_OF_NAMES:
            names |= parse_names(source.read(path))
    return names


# --- files that are not read ---

# Documents, and tables that repeat the names of folders: not reported as unread.
_HARMLESS = re.compile(
    r"(.*/)?((read_?me|licen[cs]e|copying|citation|change_?log)[^/]*|wnids\.txt|"
    r"batches\.meta\.txt|(fine|coarse)_label_names\.txt|(desktop|thumbs)\.(ini|db)|"
    r"[^/]+\.(md|rst|pdf|html?|py|ipynb|sh|bib|log|cache))",
    re.IGNORECASE,
)
# Endings of files that are never read, by the reason.
_ENDINGS_NOT_READ = {
    "archives, arrays and pickles are not opened": (
        "parquet tfrecord tfrecords tar tgz gz zip 7z rar pkl pickle npy npz mat h5 "
        "hdf5 mdb"
    ),
    "save them as JPEG or PNG": (
        "heic heif avif svg psd raw cr2 cr3 nef arw dng ico tga pcx eps ps exr hdr dcm "
        "nii"
    ),
}
_REASON_OF_ENDING = {
    f".{ending}": reason
    for reason, endings in _ENDINGS_NOT_READ.items()
    for ending in endings.split()
}
_MOST_GROUPS_IN_WORDS = 3


def _faults_of_unread_files(
    source: Source,
    items: Iterable[Record | Fault],
    causes: Mapping[str, str],
    has_chosen_classes: bool = False,
) -> list[Fault]:
    """Make a fault for the unread files of each folder and ending.

    Args:
        source: the files.
        items: records and faults of the layout that was read.
        causes: by file, why another layout did not read it.
        has_chosen_classes: whether only some classes were asked for. Then files beside
            those that were opened are not reported: they annotate the other classes.
    """
    used = {item.name for item in items} | source.opened
    masks = class_folders.find_masks(source.images)
    prefix = _common_prefix(source.names)
    opened_groups = set()
    if has_chosen_classes:
        opened_groups = {_folder_and_ending(name, prefix) for name in source.opened}
    groups: dict[tuple[str, str, bool], list[str]] = defaultdict(list)
    for name in source.names:
        folder, ending = _folder_and_ending(name, prefix)
        is_expected = (folder, ending) in opened_groups or _HARMLESS.fullmatch(name)
        if name in used or is_expected:
            continue
        groups[folder, ending, name in masks].append(name)
    faults = []
    largest_first = sorted(groups.items(), key=lambda item: -len(item[1]))
    for (folder, ending, are_masks), names in largest_first:
        cause = next((causes[name] for name in names if name in causes), "")
        reason = _REASON_OF_ENDING.get(ending, cause)
        if are_masks:
            reason = "masks of images"
        path = f"{prefix}{folder}".strip("/")
        detail = _unread_in_words(len(names), ending, path, reason)
        faults.append(Fault(names[0], NOT_READ, detail))
    return faults


def _unread_in_words(count: int, ending: str, folder: str, reason: str) -> str:
    """Number, ending and folder of unread files; of a single file the reason alone."""
    if count == 1:
        return reason or "is not read"
    files = f"{count} {ending or 'without an ending'}"
    if folder:
        files += f" in {folder}"
    return f"{files} are not read: {reason}" if reason else f"{files} are not read"


def _common_prefix(names: Sequence[str]) -> str:
    """The folders at the top that all files share, with a slash; "" for none."""
    if not names:
        return ""
    # Names between the first and the last in order begin with all that these two share.
    folders = [posixpath.dirname(min(names)), posixpath.dirname(max(names))]
    return posixpath.join(posixpath.commonpath(folders), "")


def _folder_and_ending(name: str, prefix: str) -> tuple[str, str]:
    """The first folder of a file below the common prefix, and its ending with dot."""
    parent = name.removeprefix(prefix).rpartition("/")[0]
    _, ending = posixpath.splitext(name)
    return parent.partition("/")[0], ending.lower()


def _files_in_words(opened: Iterable[str], names: Sequence[str]) -> str:
    """Numbers of opened files by ending and folder: "24 .xml in Annotations".

    If there are many folders, by ending alone.
    """
    prefix = _common_prefix(names)
    # Sorted, since most_common keeps this order among groups of equal size.
    groups = Counter(
        _folder_and_ending(name, prefix)
        for name in sorted(opened)
        if name.rpartition("/")[2] not in _TABLES_OF_NAMES
    )
    if len(groups) > _MOST_GROUPS_IN_WORDS:
        groups = Counter(("", ending) for _, ending in groups.elements())
    words = []
    for (folder, ending), count in groups.most_common(_MOST_GROUPS_IN_WORDS):
        files = f"{count} {ending or 'files'}"
        words.append(f"{files} in {folder}" if folder else files)
    return ", ".join(words)


def _faults_of_layouts(problems: Mapping[str, Sequence[Fault]]) -> list[Fault]:
    """Make one fault of all faults of a kind that a rejected layout had.

    Faults that begin at the same file are reported once, as the first layout has them.
    """
    faults: dict[str, Fault] = {}  # by the file at which they begin
    for layout, items in problems.items():
        for kind, count in Counter(fault.fault for fault in items).items():
            first = next(fault for fault in items if fault.fault == kind)
            detail = f"as {layout}, {count} {kind.replace('_', ' ')}: {first.detail}"
            name = first.name or first.class_id
            faults.setdefault(name, Fault(name, NOT_READ, detail.rstrip(": ")))
    return list(faults.values())


def _refusal(
    source: Source, layout: str, candidates: Sequence[str], faults: Sequence[Fault]
) -> NoClassError:
    """Say why a source cannot be read: what was expected, and what is there."""
    expected = " or ".join(LAYOUTS[name].looks_like for name in candidates)
    lines = [
        f"{fault.name or fault.class_id}: {fault.detail}".strip(": ")
        for fault in faults[:8]
    ]
    content = f"found {'; '.join(lines)}" if lines else "nothing like it is there"
    message = (
        f"no class was found in {source.root} for data_source {layout!r}: {content}; "
        f"looked for {expected}; check data_path and data_source"
    )
    refusal = NoClassError(message)
    refusal.content = content
    return refusal
