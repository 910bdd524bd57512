"""The layouts in which data sets are published, in a folder or a ``.zip`` read in place: images, classes, splits, boxes."""

import os
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from helpers.data.annotations import Annotation, parse_names, parse_solution, parse_tiny_boxes, parse_voc
from helpers.files import inside

LARGEST_FILE = 256 * 2**20  # bytes of an image or a table, unpacked; the largest table of ILSVRC has 55 MB


_OF_MACOS = "__MACOSX"  # a folder that archives of macOS have beside what was packed


class Folder:
    """Files below a directory."""

    strays: tuple[str, ...] = ()  # files whose names lie outside; there are none

    def __init__(self, path: Path) -> None:
        """Take the directory; nothing is listed yet."""
        self.path = path

    def folders(self, name: str) -> list[str]:
        """List the names of the folders directly below a folder, sorted; none if it is not there."""
        names = [item for item in self._names(name, directories=True) if item != _OF_MACOS]
        return [item for item in names if not self._leaves(f"{name}/{item}".lstrip("/"))]

    def outside(self, name: str) -> list[str]:
        """List the folders directly below a folder that are links out of the source, or into themselves; they are not followed."""
        return [item for item in self._names(name, directories=True) if self._leaves(f"{name}/{item}".lstrip("/"))]

    def _leaves(self, name: str) -> bool:
        try:
            return not self._place(name)
        except ValueError:
            return True

    def files(self, name: str) -> list[str]:
        """List the names of the files directly below a folder, sorted; none if it is not there."""
        return self._names(name, directories=False)

    def _names(self, name: str, directories: bool) -> list[str]:
        if self._leaves(name) or not (place := self._place(name)).is_dir():
            return []
        return sorted(item.name for item in place.iterdir() if item.is_dir() == directories)

    def _place(self, name: str) -> Path:
        try:
            return inside(self.path, name) if name.strip("./") else self.path
        except RuntimeError as fault:
            raise ValueError(f"{name} is a link to itself") from fault

    def exists(self, name: str) -> bool:
        """Whether a regular file is there."""
        try:
            return self._place(name).is_file()
        except ValueError:
            return False

    def read(self, name: str) -> bytes:
        """Bytes of a file. Raises OSError when it cannot be read now, ValueError when it is no regular file of the folder, or too large."""
        place = self._place(name)
        if not place.is_file():
            raise ValueError(f"{name} is no regular file, or a link to nothing")
        _check_size(name, place.stat().st_size)
        return place.read_bytes()

    def stamp(self, names: Iterable[str]) -> str:
        """Digest of the sizes and times of change of some files: equal stamps mean that nothing was touched."""
        digest = blake2b(digest_size=8)
        for name in sorted(names):
            # Of links their own state where they lead nowhere; names as bytes, since not all are UTF-8.
            state = self._place(name).stat() if self.exists(name) else (self.path / name).lstat()
            digest.update(os.fsencode(f"{name}\0{state.st_size}\0{state.st_mtime_ns}\0"))
        return digest.hexdigest()


class Zip:
    """Files in a zip archive. Reading is safe from several threads: ``zipfile`` locks its one handle."""

    def __init__(self, path: Path) -> None:
        """Read the archive's directory. Raises ValueError when there is none."""
        self.path = path
        try:
            self._archive = zipfile.ZipFile(path)
        except zipfile.BadZipFile as fault:
            raise ValueError(f"data_path {path} is a .zip that was cut or damaged ({fault}); fetch it again") from fault
        self._files: dict[str, set[str]] = defaultdict(set)
        self._folders: dict[str, set[str]] = defaultdict(set)
        self._members: dict[str, list[zipfile.ZipInfo]] = defaultdict(list)  # by path; of several it cannot be known which is meant
        self.strays: list[str] = []  # files with an absolute name or one with "..", which are not part of the folder that the archive holds
        for member in self._archive.infolist():
            parts = PurePosixPath(name := member.filename).parts
            if outside := not parts or name.startswith("/") or ".." in parts:
                self.strays += [] if name.endswith("/") else [name]
            if outside or parts[0] == _OF_MACOS:
                continue
            for depth in range(1, len(parts)):
                self._folders["/".join(parts[: depth - 1])].add(parts[depth - 1])
            (self._folders if name.endswith("/") else self._files)["/".join(parts[:-1])].add(parts[-1])
            self._members["/".join(parts)].append(member)

    def folders(self, name: str) -> list[str]:
        """List the names of the folders directly below a folder, sorted; none if it is not there."""
        return sorted(self._folders.get(name.strip("/"), ()))

    def files(self, name: str) -> list[str]:
        """List the names of the files directly below a folder, sorted; none if it is not there."""
        return sorted(self._files.get(name.strip("/"), ()))

    def outside(self, name: str) -> list[str]:
        """None: an archive has no links that are followed."""
        return []

    def exists(self, name: str) -> bool:
        """Whether a file is there."""
        folder, _, file = name.rpartition("/")
        return file in self._files.get(folder, ())

    def read(self, name: str) -> bytes:
        """Bytes of a file. OSError when the archive cannot be read now, ValueError when the file is missing, damaged or too large."""
        members = self._members.get(name, [])
        try:
            if len({(member.CRC, member.file_size) for member in members}) != 1:
                raise ValueError(f"it stands there {len(members)} times{', with other contents' if members else ''}")
            _check_size(name, members[0].file_size)
            return self._archive.read(members[0])  # no more than the size that was checked, whatever is packed
        except Exception as fault:  # unpackers raise nearly every kind; one with a number is of the disk
            if isinstance(fault, OSError) and fault.errno:
                raise
            raise ValueError(f"{name} cannot be read from {self.path.name}: {fault}") from fault

    def stamp(self, names: Iterable[str]) -> str:
        """Size and time of change of the archive, in one word; ``names`` makes no difference."""
        state = self.path.stat()
        return f"{state.st_size}-{state.st_mtime_ns}"


def _check_size(name: str, size: int) -> None:
    if size > LARGEST_FILE:
        raise ValueError(f"{name} has {size} bytes; at most {LARGEST_FILE} are read")


def open_archive(path: Path) -> Folder | Zip:
    """Open a folder or a zip.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: it is neither, or a zip that was cut.
    """
    if path.is_dir():
        return Folder(path)
    if not path.exists():
        raise FileNotFoundError(
            f"data_path {path} does not exist; put the images there, or set data_path to the folder or .zip that holds them"
        )
    if not zipfile.is_zipfile(path) and not _begins_as_zip(path):
        raise ValueError(f"data_path {path} is neither a folder nor a .zip; set data_path to one of these")
    return Zip(path)


def _begins_as_zip(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


IMAGE_ENDINGS = {".jpeg", ".jpg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
Archive = Folder | Zip


class Fault(NamedTuple):
    """Something in the data that could not be used as it is."""

    class_id: str
    split: str
    name: str
    fault: str
    detail: str


# A fault that may be gone at the next start; what holds one is never kept.
UNREADABLE_NOW = "unreadable_now"


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
    path = path if archive.exists(path) else f"{path.removesuffix('.xml')}.XML"
    if not archive.exists(path):
        listing.note(class_id, split, name, "missing_annotation", f"no {path.removesuffix('.XML')}.xml")
        return None
    try:
        return parse_voc(archive.read(path))
    except ValueError as fault:
        listing.note(class_id, split, name, "malformed_annotation", str(fault))
    except OSError as fault:
        listing.note(class_id, split, path, UNREADABLE_NOW, str(fault))
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


def _content(archive: Archive, listing: Listing, path: str) -> bytes:
    """Bytes of a table of the source; none where it is missing or, which is counted, cannot be read."""
    try:
        return archive.read(path) if archive.exists(path) else b""
    except ValueError as fault:
        listing.note("", "", path, "unreadable_table", str(fault))
    except OSError as fault:
        listing.note("", "", path, UNREADABLE_NOW, str(fault))
    return b""


def _count_missing(listing: Listing, split: str, table: str, named: Mapping[str, str], there: Iterable[str]) -> None:
    """Count, class by class, the images that a table names and that are not there; ``named`` maps them to their class."""
    missing = defaultdict(list)
    for name in named.keys() - set(there):
        missing[named[name]].append(name)
    for class_id in listing.classes:
        if names := missing[class_id]:
            listing.note(class_id, split, table, "missing_image", f"{len(names)} named there have no file, such as {min(names)}")


def _label(listing: Listing, annotation: Annotation | None, name: str) -> str:
    """Class of a validation image, the first that is named; others beside it are counted."""
    labels = list(dict.fromkeys(annotation.objects)) if annotation else []
    if len(labels) > 1:
        listing.note(labels[0], "test", name, "contradictory_labels", f"{' and '.join(labels)}; the first is taken")
    return labels[0] if labels else ""


def _wanted(archive: Archive, listing: Listing, asked: Sequence[str], where: str) -> list[str]:
    present = archive.folders(where)
    for class_id in archive.outside(where):
        listing.note(
            class_id, "train", f"{where}/{class_id}".lstrip("/"), "link_out_of_source", "the folder is not followed; copy it there"
        )
    for name in archive.strays:
        listing.note("", "", name, "name_out_of_source", "the file is left out")
    for class_id in asked:
        if class_id not in present:
            listing.note(class_id, "train", "", "unknown_class", f"asked for, and not in {where or 'the source'}")
    listing.classes = [class_id for class_id in asked if class_id in present] if asked else present
    return listing.classes


def _tiny_imagenet(archive: Archive, root: str, asked: Sequence[str]) -> Listing:
    listing = Listing()
    listing.names = parse_names(_content(archive, listing, f"{root}words.txt"), "\t")
    classes = _wanted(archive, listing, asked, f"{root}train")
    for class_id in classes:
        folder = f"{root}train/{class_id}"
        boxes = f"{folder}/{class_id}_boxes.txt"
        table, faults = parse_tiny_boxes(_content(archive, listing, boxes), False)
        _count_missing(listing, "train", boxes, dict.fromkeys(table | faults, class_id), archive.files(f"{folder}/images"))
        for file in filter(is_image, archive.files(f"{folder}/images")):
            name = f"{folder}/images/{file}"
            listing.records.append(Record(name, class_id, "train", _from_table(listing, table, faults, file, class_id, "train", name)))
    table, faults = parse_tiny_boxes(_content(archive, listing, f"{root}val/val_annotations.txt"), True)
    labels = {name: annotation.objects[0] for name, annotation in table.items()}
    _count_missing(listing, "test", f"{root}val/val_annotations.txt", labels, archive.files(f"{root}val/images"))
    known = set(archive.folders(f"{root}train"))
    for file in filter(is_image, archive.files(f"{root}val/images")):
        name = f"{root}val/images/{file}"
        annotation = _from_table(listing, table, faults, file, "", "test", name)
        class_id = _label(listing, annotation, name)
        if class_id in classes:
            listing.records.append(Record(name, class_id, "test", annotation))
        elif class_id and class_id not in known:
            listing.note(class_id, "test", name, "unknown_class", "labelled with a class that has no training folder")
    return listing


def _ilsvrc(archive: Archive, root: str, asked: Sequence[str]) -> Listing:
    listing = Listing()
    data, xml = f"{root}ILSVRC/Data/CLS-LOC", f"{root}ILSVRC/Annotations/CLS-LOC"
    listing.names = parse_names(_content(archive, listing, f"{root}LOC_synset_mapping.txt"), None)
    classes = _wanted(archive, listing, asked, f"{data}/train")
    table, faults = parse_solution(_content(archive, listing, f"{root}LOC_train_solution.csv"))
    there = [PurePosixPath(file).stem for class_id in classes for file in archive.files(f"{data}/train/{class_id}")]
    _count_missing(listing, "train", f"{root}LOC_train_solution.csv", {name: found.objects[0] for name, found in table.items()}, there)
    for class_id in classes:
        has_xml = bool(archive.files(f"{xml}/train/{class_id}"))
        for file in filter(is_image, archive.files(f"{data}/train/{class_id}")):
            name, stem = f"{data}/train/{class_id}/{file}", PurePosixPath(file).stem
            if has_xml or stem not in table | faults:
                annotation = _lookup(archive, listing, class_id, "train", name, f"{xml}/train/{class_id}/{stem}.xml")
            else:
                annotation = _from_table(listing, table, faults, stem, class_id, "train", name)
            if annotation and annotation.objects and class_id not in annotation.objects:
                listing.note(
                    class_id, "train", name, "contradictory_labels", f"annotated as {annotation.objects[0]}; the folder's is taken"
                )
            listing.records.append(Record(name, class_id, "train", annotation))
    _ilsvrc_validation(archive, listing, root, classes, set(archive.folders(f"{data}/train")) | set(listing.names))
    return listing


def _ilsvrc_validation(archive: Archive, listing: Listing, root: str, classes: Sequence[str], known: set[str]) -> None:
    """Add the validation images: labelled by the CSV where it stands, by the first object of the XML otherwise."""
    data, xml = f"{root}ILSVRC/Data/CLS-LOC/val", f"{root}ILSVRC/Annotations/CLS-LOC/val"
    table, faults = parse_solution(_content(archive, listing, f"{root}LOC_val_solution.csv"))
    there = [PurePosixPath(file).stem for file in archive.files(data)]
    _count_missing(listing, "test", f"{root}LOC_val_solution.csv", {name: found.objects[0] for name, found in table.items()}, there)
    for file in filter(is_image, archive.files(data)):
        name, stem = f"{data}/{file}", PurePosixPath(file).stem
        annotation = table.get(stem)
        class_id = _label(listing, annotation, name)
        if stem in faults:
            listing.note("", "test", name, "malformed_annotation", faults[stem])
        if annotation is None:
            annotation = _lookup(archive, listing, "", "test", name, f"{xml}/{stem}.xml")
            class_id = _label(listing, annotation, name)
        elif class_id in classes and archive.exists(f"{xml}/{stem}.xml"):
            # The XML states the size that its boxes refer to, the CSV does not.
            annotation = _lookup(archive, listing, class_id, "test", name, f"{xml}/{stem}.xml") or annotation
            _label(listing, replace(annotation, objects=(class_id, *annotation.objects)), name)
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
    classes = _wanted(archive, listing, asked, split_folders["train"].rstrip("/"))
    for split, folder in split_folders.items():
        for class_id in classes if folder or split == "train" else ():
            for file in filter(is_image, archive.files(f"{folder}{class_id}")):
                name = f"{folder}{class_id}/{file}"
                annotation = _lookup(archive, listing, class_id, split, name, str(PurePosixPath(name).with_suffix(".xml")))
                listing.records.append(Record(name, class_id, split, annotation))
    return listing


def with_names_in_utf8(listing: Listing) -> Listing:
    """The listing without classes and images whose names are not UTF-8, which no table can hold; they are counted, by escaped names."""
    told = replace(listing, records=[], classes=[], faults=[Fault(*map(_escaped, fault)) for fault in listing.faults])
    for class_id in listing.classes:
        if _escaped(class_id) == class_id:
            told.classes.append(class_id)
        else:
            told.note(_escaped(class_id), "", "", "name_not_utf8", "the class is left out")
    for record in listing.records:
        if _escaped(record.name) == record.name:
            told.records.append(record)
        else:
            told.note(_escaped(record.class_id), record.split, _escaped(record.name), "name_not_utf8")
    return told


def _escaped(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


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
