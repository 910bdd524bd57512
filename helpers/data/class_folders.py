"""Layouts in which the folder of an image names its class.

Folders of classes lie at the top of a source or in folders of splits. Three kinds of
folders only look like classes: splits (``seg_train``), masks of images
(``segmentations``), and domains or views that all hold the same classes. Where names
and places leave two readings, a ``Question`` is raised.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

import pandas as pd

from helpers.data.annotations import parse_voc
from helpers.data.places import Places
from helpers.data.records import Record, first_label
from helpers.data.sources import Source, to_nfc

# A word in a name that stands for a split, such as "train" in "seg_train".
_SPLIT_WORD = re.compile(
    r"(?<![a-z])(train|val|test)(?:id|idation|ing)?(?:_?(?:set|data|dataset|images?))?"
    r"(?![a-z])"
)
_CAMEL_CASE_BOUNDARY = re.compile(
    r"(?<=[a-z])(?=[A-Z])"
)  # between the words of "TrainData"
# A name that is nothing but a split, such as "Training".
_SPLIT_NAME = re.compile(r"(train|val|test)(id|idation|ing)?", re.IGNORECASE)
_MASK_FOLDER = re.compile(
    r"(gt_?|object_?|image_?)?(masks?|segmentations?|seg|segmentation(class|object)|"
    r"trimaps?|ground_?truths?|gt|labels?|annotations?)",
    re.IGNORECASE,
)
_IMAGE_FOLDER = re.compile(
    r"(jpe?g_?|raw_?|original_?)?(images?|imgs?|photos?|pictures?|originals?)",
    re.IGNORECASE,
)
_MASK_FILE = re.compile(
    r"(.+?)[_\- ]+(mask|seg|segmentation|gt|trimap|depth|disparity|alpha|matte|edge|"
    r"normal|heatmap)s?([_\- ]?\d+)?",
    re.IGNORECASE,
)
_ANNOTATION_FOLDERS = {"annotation", "annotations", "xml", "xmls"}
# Two folders hold the same classes if they share this fraction of the subfolders of
# the one with fewer.
_SAME_CLASSES = 0.5
# Labels agree with folders if this fraction of the images has the most frequent label
# of its folder.
_ONE_LABEL = 0.8


class Question(ValueError):
    """A source can be read in two ways; the message names both."""


class ClassFolder(NamedTuple):
    """A folder that holds the images of a class in a split."""

    path: str
    class_id: str
    split: str  # "train" or "test"


@dataclass
class Folder:
    """A folder that holds images, directly or in its subfolders."""

    path: str = ""  # "" is the top of a source
    has_images: bool = False  # directly
    subfolders: "dict[str, Folder]" = field(default_factory=dict)  # by name, sorted


def folder_tree(images: Sequence[str]) -> Folder:
    """Collect the folders of some images.

    Args:
        images: their paths.

    Returns:
        The folder at the top of the source.
    """
    top = Folder()
    paths = {tuple(path.split("/")[:-1]) for path in images}
    for names in sorted(paths):
        folder = top
        for name in names:
            path = f"{folder.path}/{name}".removeprefix("/")
            folder = folder.subfolders.setdefault(name, Folder(path))
        folder.has_images = True
    return top


def split_of(name: str) -> str:
    """Find the split that a name stands for, by its last word that is a split.

    Args:
        name: name or path of a file or folder.

    Returns:
        "train", or "test" for both validation and test; "" if no word is a split.

    Example:
        >>> split_of("instances_val2017"), split_of("TrainData"), split_of("trainer")
        ('test', 'train', '')
    """
    words = _SPLIT_WORD.findall(_words(name))
    if not words:
        return ""
    return "train" if words[-1] == "train" else "test"


def _words(name: str) -> str:
    """A name in small letters with its words separated: "TrainData" -> "train_data"."""
    return _CAMEL_CASE_BOUNDARY.sub("_", name).lower()


# --- masks ---


def find_masks(images: Sequence[str]) -> set[str]:
    """Find the images that are masks of other images.

    A mask lies either in a folder of masks (``segmentations``) beside a folder of
    images or beside folders of the same classes, or beside its image under the name of
    the image and a further word (``a_mask.png`` beside ``a.jpg``).

    Args:
        images: paths of all images of a source.

    Returns:
        Paths of the masks.

    Example:
        >>> find_masks(["a.jpg", "a_mask.png", "mask.jpg"])
        {'a_mask.png'}
    """
    mask_folders = tuple(f"{path}/" for path in _mask_folders(folder_tree(images)))
    stems = {path.rpartition(".")[0] for path in images}
    return {
        path
        for path in images
        if path.startswith(mask_folders) or _is_mask_file(path, stems)
    }


def _mask_folders(folder: Folder) -> Iterator[str]:
    """Paths of the folders of masks below a folder, at any depth."""
    for name, subfolder in folder.subfolders.items():
        if _MASK_FOLDER.fullmatch(name) and _has_image_folder(folder, name):
            yield subfolder.path
        yield from _mask_folders(subfolder)


def _has_image_folder(folder: Folder, name: str) -> bool:
    """Whether a subfolder of masks lies beside the images that they mask.

    These are in a folder of images, or in folders with the names of its subfolders.
    """
    siblings = folder.subfolders.keys() - {name}
    if any(map(_IMAGE_FOLDER.fullmatch, siblings)):
        return True
    subfolders = folder.subfolders[name].subfolders.keys()
    return bool(subfolders) and subfolders <= siblings


def _is_mask_file(path: str, stems: set[str]) -> bool:
    """Whether a file such as ``a_mask.png`` lies beside an image ``a``.

    Args:
        path: path of the file.
        stems: paths of all images without their endings.
    """
    folder, slash, file = path.rpartition("/")
    match = _MASK_FILE.fullmatch(file.rpartition(".")[0])
    return bool(match) and f"{folder}{slash}{match[1]}" in stems


# --- splits and classes ---


def class_folders_of(top: Folder) -> list[ClassFolder]:
    """Find the folders of classes, with the split that a folder above them names.

    Args:
        top: the folder at the top of a source.

    Raises:
        Question: if folders may be classes or something else, such as domains.
    """
    folder, split = _below_single_folders(top, "train")
    split_folders = _splits_in(folder)
    if not split_folders:
        return _classes_in(folder, split)
    classes = []
    for name, split in split_folders.items():
        class_parent, _ = _below_single_folders(folder.subfolders[name], split)
        classes += _classes_in(class_parent, split)
    return classes


def top_class_folders(top: Folder) -> list[ClassFolder]:
    """Take every folder at the top as a class, whatever its name.

    Args:
        top: the folder at the top of a source.
    """
    folder, _ = _below_single_folders(top, "train")
    return _all_as_classes(folder, "train")


def _all_as_classes(folder: Folder, split: str) -> list[ClassFolder]:
    return [
        ClassFolder(subfolder.path, to_nfc(name), split)
        for name, subfolder in folder.subfolders.items()
    ]


def _below_single_folders(folder: Folder, split: str) -> tuple[Folder, str]:
    """Descend as long as a folder holds nothing but one subfolder.

    A subfolder that holds images is not entered: it may be the only class.

    Returns:
        The folder at which the descent ends, and the split that the last folder named
        as a split stands for, else ``split``.
    """
    while not folder.has_images and len(folder.subfolders) == 1:
        ((name, subfolder),) = folder.subfolders.items()
        if subfolder.has_images:
            break
        if _SPLIT_NAME.fullmatch(name):
            split = split_of(name)
        folder = subfolder
    return folder, split


def _splits_in(folder: Folder) -> dict[str, str]:
    """Subfolders that are splits and hold folders of classes, with their splits.

    A group of names (``_split_groups``) counts as splits if it has a training folder
    with subfolders, and

    - it has a test folder; or
    - it has a second training folder with subfolders; or
    - its training folder is called just "train" or "training", and no folder beside it
      has the same subfolders (``_with_same_subfolders``).

    The first such group counts alone. If there is none, all groups count together if
    a training folder and a test folder have a class in common.

    Folders beside the splits, such as ``seg_pred``, are not read.

    Returns:
        "train" or "test" by name; empty if no subfolder is a split.
    """
    groups = _split_groups(folder)
    if not groups:
        return {}
    with_same_classes = set(_with_same_subfolders(folder))
    for splits in groups:
        with_subfolders = {
            name for name in splits if folder.subfolders[name].subfolders
        }
        training = {name for name in with_subfolders if splits[name] == "train"}
        has_test = "test" in splits.values()
        has_second_training = len(training) > 1
        is_just_train = any(map(_SPLIT_NAME.fullmatch, training))
        is_unlike_others = training.isdisjoint(with_same_classes)
        if training and (
            has_test or has_second_training or (is_just_train and is_unlike_others)
        ):
            return {name: splits[name] for name in sorted(with_subfolders)}
    all_splits: dict[str, str] = {}
    for splits in groups:
        all_splits |= splits
    return all_splits if _share_classes(folder, all_splits) else {}


def _split_groups(folder: Folder) -> list[dict[str, str]]:
    """Group the subfolders named after splits by the other letters in their names.

    ``seg_train`` and ``seg_test`` are one group, as are ``train.X1`` and ``val.X``;
    ``bullet_train`` and ``test_tube`` are two.

    Returns:
        For each group "train" or "test" by name; first the group with the fewest other
        letters.
    """
    groups: dict[str, dict[str, str]] = defaultdict(dict)
    for name in folder.subfolders:
        split = split_of(name)
        if split:
            rest = _SPLIT_WORD.sub("", _words(name))
            other_letters = re.sub(r"[\W\d_]", "", rest)
            groups[other_letters][name] = split
    return [groups[letters] for letters in sorted(groups, key=len)]


def _share_classes(folder: Folder, splits: Mapping[str, str]) -> bool:
    """Whether the training folders and the test folders have a class in common."""
    classes: dict[str, set[str]] = {"train": set(), "test": set()}
    for name, split in splits.items():
        class_parent, _ = _below_single_folders(folder.subfolders[name], "")
        classes[split] |= set(map(to_nfc, class_parent.subfolders))
    return bool(classes["train"] & classes["test"])


def _classes_in(folder: Folder, split: str) -> list[ClassFolder]:
    """Subfolders as classes.

    Raises:
        Question: if they may be splits, domains or views instead.
    """
    names = list(folder.subfolders)
    # Some subfolders may be named as splits although ``_splits_in`` found none: they
    # hold no classes in common, or lie within a split, where it does not look.
    for splits in _split_groups(folder):
        if set(splits.values()) != {"train", "test"}:
            continue
        # Nothing but "train" and "test": images of all classes in one folder a split.
        if len(splits) == len(names) and all(map(_SPLIT_NAME.fullmatch, names)):
            return []
        raise Question(
            f"{first_three(sorted(splits))} name splits, and hold no folders of the "
            "same classes: their annotations are missing, or they are the classes "
            "(--layout top_folders)"
        )
    with_splits_inside = _splits_in_classes(folder)
    if with_splits_inside:
        return with_splits_inside
    for name in names:
        repeated = _repeats(folder, name)
        if repeated:
            raise Question(
                f"{name} holds folders with the names of those beside it, such as "
                f"{first_three(repeated)}: take {name} away where it repeats them, or "
                f"--layout top_folders where {name} is a class"
            )
    alike = _with_same_subfolders(folder)
    if alike:
        subfolders = list(folder.subfolders[alike[0]].subfolders)
        raise Question(
            f"{first_three(alike)} hold folders of the same names, such as "
            f"{first_three(subfolders)}: "
            "give one of them as the path where these names are the classes, or "
            f"--layout top_folders where {first_three(alike)} are"
        )
    if len(names) > 1 and all(map(_is_group, folder.subfolders.values())):
        subfolders = list(folder.subfolders[names[0]].subfolders)
        raise Question(
            f"{first_three(names)} hold no images but several folders each, such as "
            f"{first_three(subfolders)}: name these in class_ids where they are the "
            f"classes, or --layout top_folders where {first_three(names)} are"
        )
    return _all_as_classes(folder, split)


def _repeats(folder: Folder, name: str) -> list[str]:
    """Subfolders of ``name`` if each has the name of a folder beside ``name``."""
    subfolder = folder.subfolders[name]
    siblings = folder.subfolders.keys() - {name}
    if subfolder.has_images or not subfolder.subfolders.keys() <= siblings:
        return []
    return list(subfolder.subfolders)


def _is_group(folder: Folder) -> bool:
    """Whether a folder holds no images itself, and several folders that do."""
    subfolders = folder.subfolders.values()
    return (
        not folder.has_images
        and len(subfolders) > 1
        and all(subfolder.has_images for subfolder in subfolders)
    )


def _splits_in_classes(folder: Folder) -> list[ClassFolder]:
    """Folders of splits in folders of classes: cat/train, cat/test, dog/train, ...

    Empty unless every class has folders for both training and test.
    """
    classes = []
    for name, subfolder in folder.subfolders.items():
        split_folders = [
            ClassFolder(split_folder.path, to_nfc(name), split_of(split))
            for split, split_folder in subfolder.subfolders.items()
            if _SPLIT_NAME.fullmatch(split)
        ]
        splits = {split_folder.split for split_folder in split_folders}
        if splits != {"train", "test"} or subfolder.has_images:
            return []
        classes += split_folders
    return classes


def _with_same_subfolders(folder: Folder) -> list[str]:
    """Names of the subfolders that hold folders of the same names as another one.

    Two of them must share at least two names, and half of those in the one with fewer.
    """
    alike = set()
    for first, second in itertools.combinations(folder.subfolders, 2):
        first_names = folder.subfolders[first].subfolders.keys()
        second_names = folder.subfolders[second].subfolders.keys()
        fewer = min(len(first_names), len(second_names))
        if len(first_names & second_names) >= max(2, _SAME_CLASSES * fewer):
            alike |= {first, second}
    return sorted(alike)


def first_three(names: Sequence[str]) -> str:
    """The first three of some names, and the number of the others.

    Args:
        names: of folders, files or classes.

    Example:
        >>> first_three(["a", "b", "c", "d"])
        'a, b, c and 1 more'
    """
    text = ", ".join(names[:3])
    return f"{text} and {len(names) - 3} more" if len(names) > 3 else text


# --- readers ---


def read_class_folders(source: Source, classes: Sequence[str]) -> Iterator[Record]:
    """Read a folder per class, in folders of splits or at the top; without boxes.

    Args:
        source: the files.
        classes: ids of the classes to read; empty for all.

    Raises:
        Question: if two readings are possible.
    """
    images = _without_masks(source)
    yield from _records(images, _folders_of_classes(images, classes))


def read_top_folders(source: Source, classes: Sequence[str]) -> Iterator[Record]:
    """Read every folder at the top as a class, whatever its name; without boxes.

    Args:
        source: the files.
        classes: ignored; the readers of folders share one signature.
    """
    yield from _records(source.images, top_class_folders(folder_tree(source.images)))


def read_annotated_folders(source: Source, classes: Sequence[str]) -> Iterator[Record]:
    """Read a folder per class, and the Pascal VOC XML file of each image.

    The XML file lies beside the image, or in a tree of annotations, where it may have
    no ending.

    Args:
        source: the files.
        classes: ids of the classes to read; empty for all.

    Raises:
        Question: if two readings are possible.
    """
    images = _without_masks(source)
    voc_files = Places(path for path in source.names if is_voc(path))
    for record in _records(images, _folders_of_classes(images, classes)):
        stem = PurePosixPath(record.name).with_suffix("")
        path = source.find_ignoring_case(f"{stem}.xml")
        path = path or voc_files.nearest(record.name, stem.name)
        annotation = parse_voc(source.read(path)) if path else None
        yield record._replace(annotation=annotation)


def _without_masks(source: Source) -> list[str]:
    """Images of a source that are not masks of other images."""
    masks = find_masks(source.images)
    return [path for path in source.images if path not in masks]


def is_voc(name: str) -> bool:
    """Tell by its ending or its folder whether a file may be a Pascal VOC XML file.

    Args:
        name: path of the file.

    Example:
        >>> is_voc("a.XML"), is_voc("Annotation/dog/n02_1"), is_voc("dog/n02_1")
        (True, True, False)
    """
    path = PurePosixPath(name)
    if path.suffix:
        return path.suffix.lower() == ".xml"
    folders = {part.lower() for part in path.parts[:-1]}
    return not folders.isdisjoint(_ANNOTATION_FOLDERS)


def _folders_of_classes(
    images: Sequence[str], classes: Sequence[str]
) -> list[ClassFolder]:
    """Folders of the classes that are asked for, or of all classes.

    If none of the classes asked for is where classes usually are, folders with their
    names are taken at the top, and else anywhere.
    """
    top = folder_tree(images)
    if not classes:
        return class_folders_of(top)
    try:
        folders = class_folders_of(top)
    except Question:
        folders = []
    if set(classes) & {folder.class_id for folder in folders}:
        return folders
    at_top = top_class_folders(top)
    if set(classes) & {folder.class_id for folder in at_top}:
        return at_top
    return _named_as_classes(top, classes)


def _named_as_classes(folder: Folder, classes: Sequence[str]) -> list[ClassFolder]:
    """The outermost folders, at any depth, that are named as classes."""
    folders = []
    for name, subfolder in folder.subfolders.items():
        if to_nfc(name) in classes:
            folders.append(ClassFolder(subfolder.path, to_nfc(name), "train"))
        else:
            folders += _named_as_classes(subfolder, classes)
    return folders


def _records(images: Sequence[str], folders: Sequence[ClassFolder]) -> Iterator[Record]:
    """Images in folders of classes, at any depth."""
    by_path = {folder.path: folder for folder in folders}
    for image in images:
        for parent in PurePosixPath(image).parents:  # the nearest first
            folder = by_path.get(str(parent))
            if folder:
                yield Record(image, folder.class_id, folder.split)
                break


def disagreement(records: Sequence[Record]) -> str:
    """Say that folders and labels of objects are different classes; "" if they agree.

    They agree if most images of a folder have one label and no two folders have the
    same. They also agree if all images have one label, which then is not a class.

    Args:
        records: images in folders of classes, with annotations.
    """
    annotated = [
        (record.class_id, first_label(record.annotation))
        for record in records
        if record.annotation and record.annotation.objects
    ]
    table = pd.DataFrame(annotated, columns=["folder", "label"])
    counts = pd.crosstab(table["folder"], table["label"])  # of images
    if len(counts.columns) < 2:
        return ""
    usual_labels = counts.idxmax(axis=1)  # by folder
    with_usual_label = counts.max(axis=1).sum()
    if usual_labels.is_unique and with_usual_label >= _ONE_LABEL * len(table):
        return ""
    return (
        f"folders say {first_three(list(counts.index))}, and objects in their XML "
        f"{first_three(list(counts.columns))}"
    )
