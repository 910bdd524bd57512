"""Folders that are named as classes, below folders of splits or at the top.

Three things look like folders of classes and are none: splits (``seg_train``), masks
beside images (``segmentations``), and domains or views that hold the same classes. What
names and places do not decide is a ``Question``.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from helpers.data.annotations import Annotation, AnnotationOrFault, parse_voc
from helpers.data.places import Places
from helpers.data.records import Record
from helpers.data.sources import Source, composed

_SPLIT = re.compile(
    r"(?<![a-z])(train|val|test)(?:id|idation|ing)?(?:_?(?:set|data|dataset|images?))?"
    r"(?![a-z])"
)
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")  # between the words of "TrainData"
_PLAIN = re.compile(r"(train|val|test)(id|idation|ing)?", re.IGNORECASE)
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
_SAME_CLASSES = 0.5  # of the smaller of two folders, from which both hold one thing
_ONE_LABEL = 0.8  # of the images of a folder, from which its label is that


class Question(ValueError):
    """Two readings of a source that are both possible; it names them."""


class ClassFolder(NamedTuple):
    """A folder that holds the images of a class in a split."""

    path: str
    class_id: str
    split: str  # "train" or "test"


class Tree:
    """The folders that hold images, themselves or below them."""

    def __init__(self, images: Sequence[str]) -> None:
        """Collect the folders of some images.

        Args:
            images: their paths.
        """
        self.with_images = {name.rpartition("/")[0] for name in images}
        inner: dict[str, set[str]] = defaultdict(set)
        for folder in self.with_images:
            while folder:
                parent, _, name = folder.rpartition("/")
                inner[parent].add(name)
                folder = parent
        self._inner = {folder: sorted(names) for folder, names in inner.items()}

    @property
    def folders(self) -> list[str]:
        """All folders that hold folders with images; "" is the top."""
        return sorted(self._inner)

    def inner(self, folder: str) -> list[str]:
        """Names of the folders in a folder that hold images.

        Args:
            folder: its path; "" for the top.
        """
        return self._inner.get(folder, [])


def join(folder: str, name: str) -> str:
    """Path of something in a folder.

    Args:
        folder: its path; "" for the top.
        name: of the file or folder in it.

    Example:
        >>> join("", "cat"), join("train", "cat")
        ('cat', 'train/cat')
    """
    return f"{folder}/{name}" if folder else name


def split_of(name: str) -> str:
    """The split that a path names last.

    Args:
        name: of a file or folder.

    Returns:
        "train", or "test" for validation and test; "" where it names none.

    Example:
        >>> split_of("instances_val2017"), split_of("TrainData"), split_of("trainer")
        ('test', 'train', '')
    """
    words = _SPLIT.findall(_words(name))
    if not words:
        return ""
    return "train" if words[-1] == "train" else "test"


def _words(name: str) -> str:
    """A name in small letters, its words apart: "TrainData" is "train_data"."""
    return _HUMP.sub("_", name).lower()


# --- masks ---


def masks(images: Sequence[str]) -> set[str]:
    """Images that are masks of others.

    They lie in a folder that is named so, beside one of images or of the same classes;
    or beside the image, with a word more in their name.

    Args:
        images: paths of all images of a source.

    Returns:
        Paths of those that are masks.

    Example:
        >>> masks(["a.jpg", "a_mask.png", "mask.jpg"])
        {'a_mask.png'}
    """
    tree = Tree(images)
    folders = {
        join(parent, name)
        for parent in tree.folders
        for name in tree.inner(parent)
        if _MASK_FOLDER.fullmatch(name) and _has_image_folder(tree, parent, name)
    }
    stems = {name.rpartition(".")[0] for name in images}
    below = {folder for folder in tree.with_images if folders & set(_lineage(folder))}
    return {
        name
        for name in images
        if name.rpartition("/")[0] in below or _is_mask_file(name, stems)
    }


def _lineage(folder: str) -> list[str]:
    """A folder and those above it, the nearest first."""
    names = folder.split("/")
    return ["/".join(names[:end]) for end in range(len(names), 0, -1)]


def _has_image_folder(tree: Tree, parent: str, name: str) -> bool:
    """Whether beside a folder of masks there is one of what they mask."""
    beside = [other for other in tree.inner(parent) if other != name]
    if any(_IMAGE_FOLDER.fullmatch(other) for other in beside):
        return True
    inner = set(tree.inner(join(parent, name)))
    return bool(inner) and inner <= set(beside)


def _is_mask_file(name: str, stems: set[str]) -> bool:
    """Whether beside ``a_mask.png`` there is an image ``a``."""
    folder, _, file = name.rpartition("/")
    match = _MASK_FILE.fullmatch(file.rpartition(".")[0])
    return bool(match) and join(folder, match[1]) in stems


# --- splits and classes ---


def class_folders_of(tree: Tree) -> list[ClassFolder]:
    """Folders of classes, of a split where folders name splits.

    Args:
        tree: the folders that hold images.

    Raises:
        Question: where folders may be classes, or hold the same ones.
    """
    folder, split = _below_single_folders(tree, "", "train")
    splits = _splits_in(tree, folder)
    if not splits:
        return _classes_in(tree, folder, split)
    classes = []
    for name, kind in splits.items():
        inner, _ = _below_single_folders(tree, join(folder, name), kind)
        classes += _classes_in(tree, inner, kind)
    return classes


def top_class_folders(tree: Tree) -> list[ClassFolder]:
    """Every folder at the top is a class, whatever its name.

    Args:
        tree: the folders that hold images.
    """
    folder, _ = _below_single_folders(tree, "", "train")
    return _all_in(tree, folder, "train")


def _all_in(tree: Tree, folder: str, split: str) -> list[ClassFolder]:
    return [
        ClassFolder(join(folder, name), composed(name), split)
        for name in tree.inner(folder)
    ]


def _below_single_folders(tree: Tree, folder: str, split: str) -> tuple[str, str]:
    """The folder below leading ones that stand alone, and the split they name.

    The last of them may be the only class, and is not entered.
    """
    while folder not in tree.with_images and len(tree.inner(folder)) == 1:
        (name,) = tree.inner(folder)
        inner = join(folder, name)
        if inner in tree.with_images:
            break
        if _PLAIN.fullmatch(name):
            split = split_of(name)
        folder = inner
    return folder, split


def _splits_in(tree: Tree, folder: str) -> dict[str, str]:
    """Folders that name splits and hold folders of classes; none where there are none.

    Folders beside them, such as ``seg_pred``, are then not read.
    """
    groups = _split_groups(tree, folder)
    for kinds in groups:
        deep = {name for name in kinds if tree.inner(join(folder, name))}
        training = {name for name in deep if kinds[name] == "train"}
        tested = "test" in kinds.values()
        plain = any(_PLAIN.fullmatch(name) for name in training)
        alone = plain and not training & set(_alike(tree, folder))
        if training and (tested or len(training) > 1 or alone):
            return {name: kinds[name] for name in sorted(deep)}
    splits = {name: kind for kinds in groups for name, kind in kinds.items()}
    return splits if _share_classes(tree, folder, splits) else {}


def _split_groups(tree: Tree, folder: str) -> list[dict[str, str]]:
    """Folders that name splits, by what else is in their names.

    ``seg_train`` and ``seg_test`` belong together, as do ``train.X1`` and ``val.X``,
    and ``bullet_train`` and ``test_tube`` do not. The shortest rest stands first.
    """
    groups: dict[str, dict[str, str]] = defaultdict(dict)
    for name in tree.inner(folder):
        kind = split_of(name)
        if kind:
            rest = re.sub(r"[\W\d_]", "", _SPLIT.sub("", _words(name)))
            groups[rest][name] = kind
    return [groups[rest] for rest in sorted(groups, key=len)]


def _share_classes(tree: Tree, folder: str, kinds: Mapping[str, str]) -> bool:
    """Whether folders that name training and test hold some of the same classes."""
    classes: dict[str, set[str]] = {"train": set(), "test": set()}
    for name, kind in kinds.items():
        place, _ = _below_single_folders(tree, join(folder, name), "")
        classes[kind] |= {composed(inner) for inner in tree.inner(place)}
    return bool(classes["train"] & classes["test"])


def _classes_in(tree: Tree, folder: str, split: str) -> list[ClassFolder]:
    """Folders of classes in a folder.

    Raises:
        Question: where they may be splits, domains or views.
    """
    names = tree.inner(folder)
    for kinds in _split_groups(tree, folder):
        if set(kinds.values()) != {"train", "test"}:
            continue
        if len(kinds) == len(names) and all(map(_PLAIN.fullmatch, names)):
            return []  # images of each split in one folder
        raise Question(
            f"{_few(sorted(kinds))} name splits, and hold no folders of the same "
            "classes: their annotations are missing, or they are the classes "
            "(--layout top_folders)"
        )
    by_split = _splits_in_classes(tree, folder)
    if by_split:
        return by_split
    for name in tree.inner(folder):
        repeated = _repeats(tree, folder, name)
        if repeated:
            raise Question(
                f"{name} holds folders with the names of those beside it, such as "
                f"{_few(repeated)}: take {name} away where it repeats them, or "
                f"--layout top_folders where {name} is a class"
            )
    alike = _alike(tree, folder)
    if alike:
        inner = tree.inner(join(folder, alike[0]))
        raise Question(
            f"{_few(alike)} hold folders of the same names, such as {_few(inner)}: "
            "give one of them as the path where these names are the classes, or "
            f"--layout top_folders where {_few(alike)} are"
        )
    groups = tree.inner(folder)
    if len(groups) > 1 and all(_is_group(tree, join(folder, name)) for name in groups):
        inner = tree.inner(join(folder, groups[0]))
        raise Question(
            f"{_few(groups)} hold no images but several folders each, such as "
            f"{_few(inner)}: name these in class_ids where they are the classes, or "
            f"--layout top_folders where {_few(groups)} are"
        )
    return _all_in(tree, folder, split)


def _repeats(tree: Tree, folder: str, name: str) -> list[str]:
    """Folders in a folder that are all called as folders beside it, else none."""
    place = join(folder, name)
    names = tree.inner(place)
    beside = [other for other in tree.inner(folder) if other != name]
    if place in tree.with_images or not set(names) <= set(beside):
        return []
    return names


def _is_group(tree: Tree, folder: str) -> bool:
    """Whether a folder holds no images and several folders that do."""
    names = tree.inner(folder)
    return (
        folder not in tree.with_images
        and len(names) > 1
        and all(join(folder, name) in tree.with_images for name in names)
    )


def _splits_in_classes(tree: Tree, folder: str) -> list[ClassFolder]:
    """Folders of splits in folders of classes: cat/train, cat/test, dog/train, ..."""
    classes = []
    for name in tree.inner(folder):
        place = join(folder, name)
        splits = tree.inner(place)
        kinds = {split_of(split) for split in splits if _PLAIN.fullmatch(split)}
        if not {"train", "test"} <= kinds or place in tree.with_images:
            return []
        classes += [
            ClassFolder(join(place, split), composed(name), split_of(split))
            for split in splits
            if _PLAIN.fullmatch(split)
        ]
    return classes


def _alike(tree: Tree, folder: str) -> list[str]:
    """Two folders or more that hold two folders or more of the same names."""
    inner = {name: set(tree.inner(join(folder, name))) for name in tree.inner(folder)}
    alike = set()
    for name, names in inner.items():
        for other, others in inner.items():
            shared = len(names & others)
            least = max(2, _SAME_CLASSES * min(len(names), len(others)))
            if name != other and shared >= least:
                alike |= {name, other}
    return sorted(alike)


def _few(names: Sequence[str]) -> str:
    """The first three of some names."""
    text = ", ".join(names[:3])
    return f"{text} and {len(names) - 3} more" if len(names) > 3 else text


# --- readers ---


def read_class_folders(source: Source, classes: Sequence[str]) -> Iterator[Record]:
    """A folder per class, below folders of splits or at the top; no boxes.

    Args:
        source: the files.
        classes: ids asked for; none are all.

    Raises:
        Question: where two readings are possible.
    """
    images = _unmasked(source)
    yield from _records(images, _folders(images, classes))


def read_top_folders(source: Source, classes: Sequence[str]) -> Iterator[Record]:
    """Every folder at the top is a class, whatever its name; no boxes.

    Args:
        source: the files.
        classes: not looked at; other readers take them.
    """
    yield from _records(source.images, top_class_folders(Tree(source.images)))


def read_annotated_folders(source: Source, classes: Sequence[str]) -> Iterator[Record]:
    """A folder per class, and a Pascal VOC XML of each image.

    It lies beside the image, or in a tree of annotations, where it may have no ending.

    Args:
        source: the files.
        classes: ids asked for; none are all.

    Raises:
        Question: where two readings are possible.
    """
    images = _unmasked(source)
    marks = Places(name for name in source.names if is_voc(name))
    for record in _records(images, _folders(images, classes)):
        yield record._replace(annotation=_voc_of(source, record.name, marks))


def _unmasked(source: Source) -> list[str]:
    """Images of a source that are no masks of others."""
    masked = masks(source.images)
    return [name for name in source.images if name not in masked]


def is_voc(name: str) -> bool:
    """Whether a file may be a Pascal VOC XML, by its ending or by its folder.

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


def _folders(images: Sequence[str], classes: Sequence[str]) -> list[ClassFolder]:
    """Folders of classes; where some are asked for, folders of these names anywhere."""
    tree = Tree(images)
    if not classes:
        return class_folders_of(tree)
    try:
        folders = class_folders_of(tree)
    except Question:
        folders = []
    if set(classes) & {folder.class_id for folder in folders}:
        return folders
    top = top_class_folders(tree)
    if set(classes) & {folder.class_id for folder in top}:
        return top
    return _anywhere(tree, "", classes)


def _anywhere(tree: Tree, folder: str, classes: Sequence[str]) -> list[ClassFolder]:
    """The outermost folders that are named as classes."""
    folders = []
    for name in tree.inner(folder):
        place = join(folder, name)
        if composed(name) in classes:
            folders.append(ClassFolder(place, composed(name), "train"))
        else:
            folders += _anywhere(tree, place, classes)
    return folders


def _records(images: Sequence[str], folders: Sequence[ClassFolder]) -> Iterator[Record]:
    """Images in folders of classes, however deep."""
    by_path = {folder.path: folder for folder in folders}
    for name in images:
        for parent in _lineage(name.rpartition("/")[0]):
            folder = by_path.get(parent)
            if folder:
                yield Record(name, folder.class_id, folder.split)
                break


def _voc_of(source: Source, image: str, marks: Places) -> AnnotationOrFault | None:
    """What the XML of an image says; None where there is none."""
    stem = PurePosixPath(image).with_suffix("")
    path = source.spelt(f"{stem}.xml") or marks.nearest(image, stem.name)
    if not path:
        return None
    try:
        return parse_voc(source.read(path))
    except ValueError as fault:
        return str(fault)


def disagreement(records: Sequence[Record]) -> str:
    """What folders and labels of objects say where they are different classes; else "".

    They agree where each folder has a label of its own, or all have one label, which
    then names no class.

    Args:
        records: images in folders of classes, with annotations.
    """
    labels: dict[str, list[str]] = defaultdict(list)
    for record in records:
        if isinstance(record.annotation, Annotation) and record.annotation.objects:
            labels[record.class_id].append(record.annotation.objects[0][0])
    usual = {
        name: Counter(items).most_common(1)[0][0] for name, items in labels.items()
    }
    distinct = {label for items in labels.values() for label in items}
    matches = [
        label == usual[name] for name, items in labels.items() for label in items
    ]
    all_differ = len(set(usual.values())) == len(usual)
    if len(distinct) < 2 or (all_differ and sum(matches) >= _ONE_LABEL * len(matches)):
        return ""
    return (
        f"folders say {_few(sorted(labels))}, and objects in their XML "
        f"{_few(sorted(distinct))}"
    )
