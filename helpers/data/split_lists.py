"""Read lists of the images of a split, such as VOC's ImageSets/Main/train.txt."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from helpers.data.annotations import parse_lines
from helpers.data.places import Places
from helpers.data.records import Record
from helpers.data.sources import LIST_FOLDERS, Fault, Source, to_nfc

_LIST = re.compile(
    r"(trainval|train|val|test)(id|idation|ing)?"
    r"([_-]?(list|files?|images?|names|set|split|data))?"
    r"[_-]?(?P<number>\d*)\.(txt|lst)",
    re.IGNORECASE,
)
# Lists of training and test images are used if they name this share of all images,
# lists of test images alone if they name that one.
_LEAST_SHARE = 0.5
_LEAST_TEST_SHARE = 0.05


def with_splits(
    source: Source, items: Sequence[Record | Fault]
) -> tuple[list[Record | Fault], list[str]]:
    """Split the images of a source by its lists, unless it has test images already.

    Lists are files such as ``train.txt`` and ``test.txt`` with the path or the name of
    an image on each line; what follows on the line, such as a label, is ignored. Lists
    in one folder and with the same number (``train1.txt``, ``test1.txt``) form a set.
    If there are several sets (Pascal VOC, DTD), the one that names most images is
    used, and of equal ones the first.

    Args:
        source: the files.
        items: the records and faults that a layout reads.

    Returns:
        The items with their splits, and the paths of the lists that were used. If
        there is a list for training, images that are in no list are left out, with a
        fault.
    """
    records = [item for item in items if isinstance(item, Record)]
    if any(record.split == "test" for record in records):
        return list(items), []
    splits, lists = _best_set(source, records)
    if not lists:
        return list(items), []
    # Without a list for training, all images that are not for test are for training.
    split_if_unlisted = "" if "train" in splits.values() else "train"
    result: list[Record | Fault] = []
    unlisted = []
    for item in items:
        if isinstance(item, Fault):
            result.append(item)
            continue
        split = splits.get(item.name, split_if_unlisted)
        if split:
            result.append(item._replace(split=split))
        else:
            unlisted.append(item.name)
    if unlisted:
        detail = f"{len(unlisted)} images are in no list there, such as {unlisted[0]}"
        result.append(Fault(lists[0], "image_in_no_list", detail))
    return result, lists


def _best_set(
    source: Source, records: Sequence[Record]
) -> tuple[dict[str, str], list[str]]:
    """Choose the set of lists that names most images and has test images.

    Returns:
        Splits by image, and the paths of the lists; both empty if the set names too
        few of the images.
    """
    sets: dict[tuple[str, str], list[str]] = defaultdict(list)  # by folder and number
    class_parents = _parents_of_classes(records)
    for path in source.names:
        folder, _, file = path.rpartition("/")
        match = _LIST.fullmatch(file)
        if match and not _is_beside_classes(path, class_parents):
            sets[folder, match["number"]].append(path)
    if not sets:
        return {}, []
    images = Places(record.name for record in records)
    best: dict[str, str] = {}
    lists: list[str] = []
    for paths in sets.values():
        splits = _splits(source, paths, images)
        if len(splits) > len(best) and "test" in splits.values():
            best = splits
            lists = paths
    has_training = "train" in best.values()
    least_share = _LEAST_SHARE if has_training else _LEAST_TEST_SHARE
    if len(best) < least_share * len(records):
        return {}, []
    return best, lists


def _parents_of_classes(records: Sequence[Record]) -> set[str]:
    """Folders that hold folders of classes, each with a slash; "" for the top."""
    parents = set()
    for record in records:
        # data/cat/1.jpg of the class "cat" -> data/
        path = to_nfc(f"/{record.name}")
        parent, class_folder, _ = path.rpartition(f"/{record.class_id}/")
        if class_folder:
            parents.add(f"{parent}/"[1:])
    return parents


def _is_beside_classes(path: str, class_parents: Iterable[str]) -> bool:
    """Whether a file lies in a folder beside those of classes that is not for lists.

    Such a list is ignored: a source that is opened for some of its classes does not
    enter these folders, and splits must not depend on that.
    """
    path = to_nfc(path)
    for parent in class_parents:
        if not path.startswith(parent):
            continue
        folder, slash, _ = path.removeprefix(parent).partition("/")
        if slash and folder.lower() not in LIST_FOLDERS:
            return True
    return False


def _splits(source: Source, paths: Sequence[str], images: Places) -> dict[str, str]:
    """Split of each image that a set of lists names.

    An image in a list of test and one of training is for test. ``trainval`` lists the
    images of ``train`` and ``val`` together: those that are not in ``val`` are for
    training.
    """
    splits: dict[str, str] = {}
    for path in sorted(paths, key=_rank):
        split = "train" if _rank(path) else "test"
        was_opened = path in source.opened
        lines = parse_lines(source.read(path))
        if not was_opened:
            # The caller notes it as opened if its set of lists is used.
            source.opened.discard(path)
        for line in lines:
            image = images.named(path, line)
            image = image or images.named(path, line.split()[0])
            if image:
                splits.setdefault(image, split)
    return splits


def _rank(path: str) -> int:
    """Order of lists: 0 for validation or test, 1 for training, 2 for trainval."""
    name = path.rpartition("/")[2].lower()
    if name.startswith("trainval"):
        return 2
    return int(name.startswith("train"))
