"""The layouts in which data sets are published, in a folder or a ``.zip`` read in place: images, classes, splits, boxes."""

import csv
import io
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from xml.etree.ElementTree import Element, ParseError

import defusedxml.ElementTree
from defusedxml import DefusedXmlException

from helpers.files import inside

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Annotation:
    """What an annotation says of one image."""

    boxes: tuple[Box, ...]  # xmin, ymin, xmax, ymax in pixels of the stated size
    objects: tuple[str, ...]  # the class named at each box
    size: tuple[int, int] | None = None  # stated width and height; None where the format states none


def parse_voc(content: bytes) -> Annotation:
    """Read a Pascal VOC XML file; entity definitions are refused, not expanded.

    Raises:
        ValueError: not XML, or a box without four numbers.
    """
    try:
        root = defusedxml.ElementTree.fromstring(content)
        boxes, names = [], []
        for item in root.iter("object"):
            corners = item.find("bndbox")
            if corners is None:
                raise ValueError("an object without bndbox")
            boxes.append(tuple(_number(corners, side) for side in ("xmin", "ymin", "xmax", "ymax")))
            names.append((item.findtext("name") or "").strip())
        size = root.find("size")
        stated = (int(_number(size, "width")), int(_number(size, "height"))) if size is not None else None
    except (ParseError, DefusedXmlException, ValueError, OverflowError) as fault:
        raise ValueError(f"{type(fault).__name__}: {fault}") from fault
    # A size of zero is how some tools write "unknown".
    return Annotation(tuple(boxes), tuple(names), stated if stated and min(stated) > 0 else None)


def _number(parent: Element, name: str) -> float:
    value = float(parent.findtext(name) or "nothing")
    if value != value or abs(value) == float("inf"):
        raise ValueError(f"{name} is {value}")
    return value


def parse_solution(content: bytes) -> tuple[dict[str, Annotation], dict[str, str]]:
    """Read ``LOC_train_solution.csv`` or ``LOC_val_solution.csv``: "wnid xmin ymin xmax ymax" repeated per image.

    Returns:
        Annotations by image id, and what is wrong by image id.
    """
    annotations, faults = {}, {}
    for number, row in enumerate(csv.reader(io.StringIO(content.decode("utf-8", "replace")))):
        if number == 0 or not row:
            continue
        words = row[1].split() if len(row) > 1 else []
        try:
            if not words or len(words) % 5:
                raise ValueError(f"{len(words)} words, not a multiple of five")
            boxes = tuple(tuple(map(float, words[start + 1 : start + 5])) for start in range(0, len(words), 5))
            annotations[row[0]] = Annotation(boxes, tuple(words[::5]))
        except ValueError as fault:
            faults[row[0]] = f"line {number + 1}: {fault}"
    return annotations, faults


def parse_tiny_boxes(content: bytes, with_class: bool) -> tuple[dict[str, Annotation], dict[str, str]]:
    """Read Tiny ImageNet's tab-separated boxes: name, [class,] xmin, ymin, xmax, ymax; a name may have several lines.

    Args:
        content: of ``<wnid>_boxes.txt``, or of ``val_annotations.txt``.
        with_class: whether the second column is the class.

    Returns:
        Annotations by file name, and what is wrong by file name.
    """
    annotations: dict[str, Annotation] = {}
    faults: dict[str, str] = {}
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        if not line.strip():
            continue
        name, *rest = line.split("\t")
        label = rest.pop(0) if with_class and rest else ""
        try:
            corners = tuple(map(float, rest))
            if len(corners) != 4 or any(value != value or abs(value) == float("inf") for value in corners):
                raise ValueError(f"{len(corners)} finite numbers are needed: 4")
            before = annotations.get(name, Annotation((), ()))
            annotations[name] = Annotation((*before.boxes, corners), (*before.objects, label))
        except ValueError as fault:
            faults[name] = f"line {number}: {fault}"
            if with_class and label:  # the class is still known, only the box is lost
                annotations.setdefault(name, Annotation((), (label,)))
    return annotations, faults


def parse_names(content: bytes, separator: str | None) -> dict[str, str]:
    """Read "id<separator>name, synonym, ..." lines (``LOC_synset_mapping.txt``, ``words.txt``); the first name is kept."""
    pairs = (line.split(separator, 1) for line in content.decode("utf-8", "replace").splitlines() if line.strip())
    return {pair[0].strip(): pair[1].split(",")[0].strip() for pair in pairs if len(pair) == 2}


class Folder:
    """Files below a directory."""

    def __init__(self, path: Path) -> None:
        """Take the directory; nothing is listed yet."""
        self.path = path

    def folders(self, name: str) -> list[str]:
        """List the names of the folders directly below a folder, sorted; none if it is not there."""
        return self._names(name, directories=True)

    def files(self, name: str) -> list[str]:
        """List the names of the files directly below a folder, sorted; none if it is not there."""
        return self._names(name, directories=False)

    def _names(self, name: str, directories: bool) -> list[str]:
        place = self._place(name)
        return sorted(item.name for item in place.iterdir() if item.is_dir() == directories) if place.is_dir() else []

    def _place(self, name: str) -> Path:
        return inside(self.path, name) if name.strip("./") else self.path

    def exists(self, name: str) -> bool:
        """Whether a file is there."""
        return self._place(name).is_file()

    def read(self, name: str) -> bytes:
        """Read a file whole. Raises OSError when it cannot be read, ValueError when the name leaves the folder."""
        return self._place(name).read_bytes()

    def stamp(self, names: Iterable[str]) -> str:
        """Digest of the sizes and times of change of some files: equal stamps mean that nothing was touched."""
        digest = blake2b(digest_size=8)
        for name in sorted(names):
            state = self._place(name).stat()
            digest.update(f"{name}\0{state.st_size}\0{state.st_mtime_ns}\0".encode())
        return digest.hexdigest()


class Zip:
    """Files in a zip archive. Reading is safe from several threads: ``zipfile`` locks its one handle."""

    def __init__(self, path: Path) -> None:
        """Read the archive's directory. Raises zipfile.BadZipFile when it is none."""
        self.path = path
        self._archive = zipfile.ZipFile(path)
        self._files: dict[str, set[str]] = defaultdict(set)
        self._folders: dict[str, set[str]] = defaultdict(set)
        for name in self._archive.namelist():
            parts = PurePosixPath(name).parts
            # An absolute name or one with ".." is not part of the folder that the archive holds.
            if not parts or name.startswith("/") or ".." in parts:
                continue
            for depth in range(1, len(parts)):
                self._folders["/".join(parts[: depth - 1])].add(parts[depth - 1])
            (self._folders if name.endswith("/") else self._files)["/".join(parts[:-1])].add(parts[-1])

    def folders(self, name: str) -> list[str]:
        """List the names of the folders directly below a folder, sorted; none if it is not there."""
        return sorted(self._folders.get(name.strip("/"), ()))

    def files(self, name: str) -> list[str]:
        """List the names of the files directly below a folder, sorted; none if it is not there."""
        return sorted(self._files.get(name.strip("/"), ()))

    def exists(self, name: str) -> bool:
        """Whether a file is there."""
        folder, _, file = name.rpartition("/")
        return file in self._files.get(folder, ())

    def read(self, name: str) -> bytes:
        """Read a file whole. Raises OSError when it is missing or damaged inside the archive."""
        try:
            return self._archive.read(name)
        except (KeyError, zipfile.BadZipFile, EOFError, ValueError, RuntimeError) as fault:
            raise OSError(f"{name} cannot be read from {self.path.name}: {fault}") from fault

    def stamp(self, names: Iterable[str]) -> str:
        """Size and time of change of the archive, in one word; ``names`` makes no difference."""
        state = self.path.stat()
        return f"{state.st_size}-{state.st_mtime_ns}"


def open_archive(path: Path) -> Folder | Zip:
    """Open a folder or a zip.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: it is neither.
    """
    if path.is_dir():
        return Folder(path)
    if not path.exists():
        raise FileNotFoundError(
            f"data_path {path} does not exist; put the images there, or set data_path to the folder or .zip that holds them"
        )
    if not zipfile.is_zipfile(path):
        raise ValueError(f"data_path {path} is neither a folder nor a .zip; set data_path to one of these")
    return Zip(path)


IMAGE_ENDINGS = {".jpeg", ".jpg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
Archive = Folder | Zip


class Fault(NamedTuple):
    """Something in the data that could not be used as it is."""

    class_id: str
    split: str
    name: str
    fault: str
    detail: str


@dataclass(frozen=True)
class Record:
    """One image that a source lists."""

    name: str  # path inside the source
    class_id: str
    split: str  # "train" or "test"
    annotation: Annotation | None


@dataclass
class Listing:
    """What a source holds of the classes asked for."""

    records: list[Record] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # class id to readable name
    classes: list[str] = field(default_factory=list)  # the classes that are there, in the order of their labels

    def note(self, class_id: str, split: str, name: str, fault: str, detail: str = "") -> None:
        """Count a fault."""
        self.faults.append(Fault(class_id, split, name, fault, detail))


def is_image(name: str) -> bool:
    """Whether a file is an image by its ending, in any case."""
    return PurePosixPath(name).suffix.lower() in IMAGE_ENDINGS


def _lookup(archive: Archive, listing: Listing, class_id: str, split: str, name: str, path: str) -> Annotation | None:
    """Read the XML of one image, counting a missing or malformed one."""
    if not archive.exists(path):
        listing.note(class_id, split, name, "missing_annotation", f"no {path}")
        return None
    try:
        return parse_voc(archive.read(path))
    except (ValueError, OSError) as fault:
        listing.note(class_id, split, name, "malformed_annotation", str(fault))
        return None


def _from_table(
    listing: Listing, table: dict[str, Annotation], faults: dict[str, str], key: str, class_id: str, split: str, name: str
) -> Annotation | None:
    """Take one image's annotation from a table, counting a missing or malformed one."""
    if key in faults:
        listing.note(class_id, split, name, "malformed_annotation", faults[key])
    elif key not in table:
        listing.note(class_id, split, name, "missing_annotation", "no line for this image")
    return table.get(key)


def _tables(archive: Archive, path: str, parse: Callable[[bytes], tuple[dict, dict]]) -> tuple[dict, dict]:
    return parse(archive.read(path)) if archive.exists(path) else ({}, {})


def _wanted(listing: Listing, asked: Sequence[str], present: Iterable[str], where: str) -> list[str]:
    present = sorted(present)
    for class_id in asked:
        if class_id not in present:
            listing.note(class_id, "train", "", "unknown_class", f"asked for, and not in {where}")
    listing.classes = [class_id for class_id in asked if class_id in present] if asked else present
    return listing.classes


def _tiny_imagenet(archive: Archive, root: str, asked: Sequence[str]) -> Listing:
    listing = Listing()
    if archive.exists(f"{root}words.txt"):
        listing.names = parse_names(archive.read(f"{root}words.txt"), "\t")
    classes = _wanted(listing, asked, archive.folders(f"{root}train"), f"{root}train")
    for class_id in classes:
        folder = f"{root}train/{class_id}"
        table, faults = _tables(archive, f"{folder}/{class_id}_boxes.txt", lambda content: parse_tiny_boxes(content, False))
        for file in filter(is_image, archive.files(f"{folder}/images")):
            name = f"{folder}/images/{file}"
            listing.records.append(Record(name, class_id, "train", _from_table(listing, table, faults, file, class_id, "train", name)))
    table, faults = _tables(archive, f"{root}val/val_annotations.txt", lambda content: parse_tiny_boxes(content, True))
    known = set(archive.folders(f"{root}train"))
    for file in filter(is_image, archive.files(f"{root}val/images")):
        name = f"{root}val/images/{file}"
        annotation = _from_table(listing, table, faults, file, "", "test", name)
        class_id = annotation.objects[0] if annotation else ""
        if class_id in classes:
            listing.records.append(Record(name, class_id, "test", annotation))
        elif class_id and class_id not in known:
            listing.note(class_id, "test", name, "unknown_class", "labelled with a class that has no training folder")
    return listing


def _ilsvrc(archive: Archive, root: str, asked: Sequence[str]) -> Listing:
    listing = Listing()
    data, xml = f"{root}ILSVRC/Data/CLS-LOC", f"{root}ILSVRC/Annotations/CLS-LOC"
    if archive.exists(f"{root}LOC_synset_mapping.txt"):
        listing.names = parse_names(archive.read(f"{root}LOC_synset_mapping.txt"), None)
    classes = _wanted(listing, asked, archive.folders(f"{data}/train"), f"{data}/train")
    table, faults = _tables(archive, f"{root}LOC_train_solution.csv", parse_solution)
    for class_id in classes:
        has_xml = bool(archive.files(f"{xml}/train/{class_id}"))
        for file in filter(is_image, archive.files(f"{data}/train/{class_id}")):
            name, stem = f"{data}/train/{class_id}/{file}", PurePosixPath(file).stem
            if has_xml or stem not in table | faults:
                annotation = _lookup(archive, listing, class_id, "train", name, f"{xml}/train/{class_id}/{stem}.xml")
            else:
                annotation = _from_table(listing, table, faults, stem, class_id, "train", name)
            listing.records.append(Record(name, class_id, "train", annotation))
    _ilsvrc_validation(archive, listing, root, classes, set(archive.folders(f"{data}/train")) | set(listing.names))
    return listing


def _ilsvrc_validation(archive: Archive, listing: Listing, root: str, classes: Sequence[str], known: set[str]) -> None:
    """Add the validation images: labelled by the CSV where it stands, by the first object of the XML otherwise."""
    data, xml = f"{root}ILSVRC/Data/CLS-LOC/val", f"{root}ILSVRC/Annotations/CLS-LOC/val"
    table, faults = _tables(archive, f"{root}LOC_val_solution.csv", parse_solution)
    for file in filter(is_image, archive.files(data)):
        name, stem = f"{data}/{file}", PurePosixPath(file).stem
        annotation = table.get(stem)
        class_id = annotation.objects[0] if annotation else ""
        if stem in faults:
            listing.note("", "test", name, "malformed_annotation", faults[stem])
        if annotation is None:
            annotation = _lookup(archive, listing, "", "test", name, f"{xml}/{stem}.xml")
            class_id = next(iter(annotation.objects), "") if annotation else ""
        elif class_id in classes and archive.exists(f"{xml}/{stem}.xml"):
            # The XML states the size that its boxes refer to, the CSV does not.
            annotation = _lookup(archive, listing, class_id, "test", name, f"{xml}/{stem}.xml") or annotation
        if class_id in classes:
            listing.records.append(Record(name, class_id, "test", annotation))
        elif class_id and class_id not in known:
            listing.note(class_id, "test", name, "unknown_class", "labelled with a class that the source does not list")


def _voc_folder(archive: Archive, root: str, asked: Sequence[str]) -> Listing:
    listing = Listing()
    split_folders = {
        "train": f"{root}train/",
        "test": next((f"{root}{name}/" for name in ("val", "test") if name in archive.folders(root)), ""),
    }
    if "train" not in archive.folders(root):
        split_folders = {"train": root, "test": ""}
    classes = _wanted(listing, asked, archive.folders(split_folders["train"]), split_folders["train"] or "the source")
    for split, folder in split_folders.items():
        for class_id in classes if folder or split == "train" else ():
            for file in filter(is_image, archive.files(f"{folder}{class_id}")):
                name = f"{folder}{class_id}/{file}"
                annotation = _lookup(archive, listing, class_id, split, name, str(PurePosixPath(name).with_suffix(".xml")))
                listing.records.append(Record(name, class_id, split, annotation))
    return listing


class Layout(NamedTuple):
    """How a source is recognised and listed."""

    scan: Callable[[Archive, str, Sequence[str]], Listing]
    marker: str  # a folder that has folders of classes below it
    shape: str  # what is looked for, for the message


LAYOUTS = {
    "ilsvrc": Layout(_ilsvrc, "ILSVRC/Data/CLS-LOC/train", "ILSVRC/Data/CLS-LOC/train/<wnid>/*.JPEG"),
    "tiny_imagenet": Layout(_tiny_imagenet, "train", "train/<wnid>/images/*.JPEG with train/<wnid>/<wnid>_boxes.txt"),
    "voc_folder": Layout(_voc_folder, "", "[train/]<class>/*.jpg with an .xml beside each"),
}


def find_root(archive: Archive, source: str) -> str:
    """Find where a layout begins: at the top, or below one leading folder.

    Raises:
        ValueError: no class folder is there; the message says what was looked for and where.
    """
    layout = LAYOUTS[source]
    leading = archive.folders("")
    single = [f"{leading[0]}/"] if len(leading) == 1 else []
    # For a folder per class the leading folder wins, where there is just one and it holds folders itself.
    candidates = [*single, ""] if source == "voc_folder" else ["", *(f"{name}/" for name in leading)]
    for root in candidates:
        if archive.folders(f"{root}{layout.marker}") and not (
            source == "voc_folder" and root and root.strip("/") in ("train", "val", "test")
        ):
            return root
    raise ValueError(
        f"no class was found in {archive.path} for data_source {source!r}: looked for {layout.shape} at the top and below each of "
        f"its folders ({', '.join(leading[:5]) or 'none'}); check data_path and data_source"
    )


def inputs(archive: Archive, source: str, root: str, asked: Sequence[str]) -> list[str]:
    """List the files whose change would change the listing or the images, for the cache's stamp."""
    layout = LAYOUTS[source]
    top = f"{root}{layout.marker}".strip("/")
    if source == "voc_folder" and "train" in archive.folders(root):
        top = f"{root}train"
    places = [root.strip("/")]
    for class_id in asked or archive.folders(top):
        places += [f"{top}/{class_id}", f"{top}/{class_id}/images", f"{root}ILSVRC/Annotations/CLS-LOC/train/{class_id}"]
        places += [f"{root}val/{class_id}", f"{root}test/{class_id}"]
    places += [f"{root}{name}" for name in ("val", "val/images", "ILSVRC/Data/CLS-LOC/val", "ILSVRC/Annotations/CLS-LOC/val")]
    places = [place.lstrip("/") for place in dict.fromkeys(places)]
    return [f"{place}/{file}".lstrip("/") for place in places for file in archive.files(place)]
