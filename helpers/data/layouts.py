"""The layouts in which data sets are published: which images there are, of which class and split, with which boxes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

from helpers.annotations import Annotation, parse_names, parse_solution, parse_tiny_boxes, parse_voc
from helpers.archive import Folder, Zip

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
    """Say whether a file is an image by its ending, in any case."""
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
