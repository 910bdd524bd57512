"""Lists of the images of a split, such as VOC's ImageSets/Main/train.txt."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from helpers.data.annotations import parse_lines
from helpers.data.places import Places
from helpers.data.records import Record
from helpers.data.sources import LIST_FOLDERS, Fault, Source, composed

_LIST = re.compile(
    r"(trainval|train|val|test)(id|idation|ing)?"
    r"([_-]?(list|files?|images?|names|set|split|data))?"
    r"[_-]?(?P<number>\d*)\.(txt|lst)",
    re.IGNORECASE,
)
_COVERED = 0.5  # of the images, from which lists of all are of this source
_TESTED = 0.05  # of the images, from which a list of test images alone is


def with_splits(
    source: Source, items: Sequence[Record | Fault], may_have_lists: bool
) -> tuple[list[Record | Fault], list[str]]:
    """Images by the lists of a source, where nothing else names test images.

    Lists are files such as ``train.txt`` and ``test.txt`` with a path, or the name of
    an image, on each line; what follows it, such as a label, is not looked at. Lists
    of one folder and number belong together; of several such sets (Pascal VOC, DTD)
    the first of those that name most images counts.

    Args:
        source: the files.
        items: what a layout reads.
        may_have_lists: whether lists are looked for.

    Returns:
        The items, of which those in no list are left out where there is one for
        training; and the paths of the lists that were read.
    """
    records = [item for item in items if isinstance(item, Record)]
    if not may_have_lists or any(record.split == "test" for record in records):
        return list(items), []
    splits, lists = _best_set(source, records)
    if not lists:
        return list(items), []
    rest = "train" if "train" not in splits.values() else ""
    result: list[Record | Fault] = []
    left_out = []
    for item in items:
        if isinstance(item, Fault):
            result.append(item)
            continue
        split = splits.get(item.name, rest)
        if split:
            result.append(item._replace(split=split))
        else:
            left_out.append(item.name)
    if left_out:
        detail = f"{len(left_out)} images are in no list there, such as {left_out[0]}"
        result.append(Fault(lists[0], "image_in_no_list", detail))
    return result, lists


def _best_set(
    source: Source, records: Sequence[Record]
) -> tuple[dict[str, str], list[str]]:
    """Splits by image, of the lists that name most; none for few images."""
    sets: dict[tuple[str, str], list[str]] = defaultdict(list)
    parents = _parents_of_classes(records)
    for path in source.names:
        folder, _, file = path.rpartition("/")
        match = _LIST.fullmatch(file)
        if match and not _is_beside(path, parents):
            sets[folder, match["number"]].append(path)
    images = Places(record.name for record in records)
    best: dict[str, str] = {}
    lists: list[str] = []
    for paths in sets.values():
        splits = _splits(source, paths, images)
        if len(splits) > len(best) and "test" in splits.values():
            best = splits
            lists = paths
    least = _COVERED if "train" in best.values() else _TESTED
    if len(best) < least * len(records):
        return {}, []
    return best, lists


def _parents_of_classes(records: Sequence[Record]) -> set[str]:
    """Folders in which folders of classes lie, with a slash; "" for the top."""
    parents = set()
    for record in records:
        before, folder, _ = composed(f"/{record.name}").rpartition(
            f"/{record.class_id}/"
        )
        if folder:
            parents.add(f"{before}/"[1:])
    return parents


def _is_beside(path: str, parents: Iterable[str]) -> bool:
    """Whether a file lies in a folder beside those of classes, of any other name.

    Where some classes are asked for, such a folder is not looked into.
    """
    path = composed(path)
    for parent in parents:
        folder, slash, _ = path.removeprefix(parent).partition("/")
        inside = path.startswith(parent) and slash
        if inside and folder.lower() not in LIST_FOLDERS:
            return True
    return False


def _splits(source: Source, paths: Sequence[str], images: Places) -> dict[str, str]:
    """Splits by image; one that is in a list of training and one of test is for test.

    ``trainval`` repeats ``train`` and ``val``, and stands for training without them.
    """
    splits: dict[str, str] = {}
    for path in sorted(paths, key=_rank):
        split = "train" if _rank(path) else "test"
        opened = path in source.opened
        lines = parse_lines(source.read(path))
        if not opened:
            source.opened.discard(path)  # it is none where it names no image
        for line in lines:
            place = images.named(path, line)
            place = place or images.named(path, line.split()[0])
            if place:
                splits.setdefault(place, split)
    return splits


def _rank(path: str) -> int:
    """0 for a list of validation or test, 1 for one of training, 2 for both."""
    name = path.rpartition("/")[2].lower()
    if name.startswith("trainval"):
        return 2
    return int(name.startswith("train"))
