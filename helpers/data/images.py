"""The images of a study: chosen from a source, decoded once to squares, and kept."""

import io
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from helpers.data import layouts, sources, synthetic
from helpers.data.decode import Decoded, decode_all
from helpers.data.layouts import Listing, Record
from helpers.data.selection import NO_TEST_IMAGES, pixel_digest, select
from helpers.files import (
    LABELS,
    MANIFEST,
    complete_or_absent,
    from_root,
    read_arrays,
    read_json,
    read_tensors,
    records_of,
    write_json,
    write_tensors,
)

_FORMAT = 5  # raised when the meaning of what is kept changes: older files are then never used
SPLITS = ("train", "test")
_TENSORS = ("images", "labels", "boxes")
_TABLES = ("index", "faults", "classes")
_TEXTS = ("layout", "boxes_from")


@dataclass(frozen=True)
class ImageSet:
    """Images of one split, in memory."""

    images: Tensor  # (N, 3, S, S) uint8 RGB
    labels: Tensor  # (N,) int64
    boxes: Tensor  # (N, B, 4) int16, half-open x0, y0, x1, y1 in pixels of the square; zero rows are padding; B is 0 in a set without boxes
    names: tuple[str, ...]  # one per image, relative to the source

    def __len__(self) -> int:
        """Number of images."""
        return len(self.labels)

    @property
    def has_pixels(self) -> bool:
        """Whether the pixels are here; records of a study have all but them."""
        return self.images.device.type != "meta"

    @property
    def has_boxes(self) -> bool:
        """Whether any image has a box."""
        return bool(self.boxes.any())

    def subset(self, indices: Iterable[int]) -> "ImageSet":
        """Take some images, in the given order."""
        chosen = torch.as_tensor(np.asarray(indices), dtype=torch.int64)
        names = tuple(self.names[index] for index in chosen.tolist())
        return ImageSet(
            self.images[chosen], self.labels[chosen], self.boxes[chosen], names
        )


@dataclass(frozen=True)
class StudyData:
    """The images of a study."""

    train: ImageSet
    test: ImageSet
    index: pd.DataFrame  # one row per image, training first: name, class_id, label, split, digest (of the file, or rendered pixels)
    faults: pd.DataFrame  # one row per fault: class_id, split, name, fault, detail
    classes: pd.DataFrame  # label, class_id, class_name, train_images, test_images
    layout: str  # as which the source was read
    boxes_from: str = ""  # which files say where the boxes are

    @property
    def fingerprint(self) -> str:
        """16 hex digits over what the images are: contents of files, labels, splits, boxes and size; not names, not places."""
        digest = blake2b(f"{self.train.images.shape[-1]}".encode(), digest_size=8)
        for row in self.index[["digest", "class_id", "label", "split"]].itertuples(
            index=False
        ):
            digest.update("\0".join(map(str, row)).encode())
        for images in (self.train, self.test):
            digest.update(images.boxes.numpy().tobytes())
        return digest.hexdigest()


def load_study_data(
    *,
    data_source: str = layouts.RECOGNISED,
    data_path: str = "",
    class_ids: Sequence[str] = (),
    image_size: int = 64,
    images_per_class: int = 0,
    test_images_per_class: int = 50,
    minimum_images_per_class: int = 2,
    data_seed: int = 0,
    cache_dir: Path,
) -> StudyData:
    """Load the images of a study, from the cache when it was made from the same source with the same parameters (see notebook 01).

    Where a source has boxes, only images with a usable one enter the training split. The test split comes from the source's own validation
    images, or is held out of the training images where it has none; ``test_images_per_class`` of 0 takes all that training leaves, with the
    images that have no box. Of images with the same pixels the first is kept, training before test images. A smaller number of images per
    class takes a subset of a larger one's. ``class_ids`` stand in the order of their labels.

    Raises FileNotFoundError where nothing is at ``data_path``, ValueError for an argument out of range or a source without usable class.
    """
    given = {name: value for name, value in locals().items() if name != "cache_dir"} | {
        "class_ids": list(class_ids)
    }
    if data_source != "synthetic" and not data_path:
        raise ValueError(
            f"data_source {data_source!r} needs data_path: the folder or .zip that holds the images"
        )
    path, looked_into = (
        from_root(data_path),
        class_ids if data_source in layouts.BY_FOLDER else (),
    )
    rendered = data_source == "synthetic"  # anew when the renderer changes
    stamp = (
        blake2b(Path(synthetic.__file__).read_bytes()).hexdigest()
        if rendered
        else sources.stamp_of_source(path, looked_into)
    )
    key = json.dumps(
        given | {"stamp": stamp, "format": _FORMAT}, sort_keys=True
    ).encode()
    cache = cache_dir / f"images-{blake2b(key, digest_size=8).hexdigest()}.safetensors"
    if (kept := read_tensors(cache)) is not None:
        return _from_cache(kept)
    if rendered:
        listing, decoded = _render(given)
    else:
        source = sources.open_source(path, cache_dir / "unpacked", looked_into)
        listing = layouts.scan(source, data_source, class_ids)
        decoded = decode_all(source, listing.records, image_size)
    data = _study_data(listing, decoded, given)
    write_tensors(cache, _to_cache(data))
    return data


def _render(given: Mapping[str, Any]) -> tuple[Listing, list[Decoded]]:
    """Render the embedded scenes as if they had been decoded."""
    known, decoded, size = (
        [f"synthetic_{name}" for name in synthetic.CLASS_NAMES],
        [],
        given["image_size"],
    )
    if unknown := sorted(set(given["class_ids"]) - set(known)):
        raise ValueError(
            f"class_ids holds {', '.join(unknown)}; the synthetic classes are {', '.join(known)}"
        )
    names = dict(zip(known, synthetic.CLASS_NAMES, strict=True))
    listing = Listing("synthetic", given["class_ids"] or known, names, [], [])
    for split, count in (
        ("train", given["images_per_class"] or 60),
        ("test", given["test_images_per_class"]),
    ):
        pixels, labels, boxes = synthetic.scenes(
            len(known), count, size, given["data_seed"], split
        )
        for number, (image, label, box) in enumerate(
            zip(pixels, labels, boxes[:, 0].tolist(), strict=True)
        ):
            record = Record(
                f"{split}/{known[label]}/{number % count:05d}", known[label], split
            )
            decoded.append(
                Decoded(
                    record, image, [tuple(box)], size, size, pixel_digest(image), []
                )
            )
    return listing, decoded


def joined(first: StudyData, further: StudyData) -> StudyData:
    """Images of two sources as one, of other classes, the second's after the first's. Raises ValueError where both have an image."""
    if not (
        both := further.index[further.index["digest"].isin(first.index["digest"])]
    ).empty:
        told = f"{len(both)} images of the further source are the study's own, first {both['name'].iloc[0]}"
        raise ValueError(f"{told}; name other classes")
    sets = {}
    for split in SPLITS:
        parts = [getattr(data, split) for data in (first, further)]
        most = max(part.boxes.shape[1] for part in parts)
        boxes = torch.cat(
            [
                nn.functional.pad(part.boxes, (0, 0, 0, most - part.boxes.shape[1]))
                for part in parts
            ]
        )
        labels = torch.cat([parts[0].labels, parts[1].labels + len(first.classes)])
        sets[split] = ImageSet(
            torch.cat([part.images for part in parts]),
            labels,
            boxes,
            parts[0].names + parts[1].names,
        )
    index, faults, classes = (
        pd.concat([getattr(data, name) for data in (first, further)], ignore_index=True)
        for name in _TABLES
    )
    classes = classes.assign(label=range(len(classes)))
    classes["class_name"] = class_names(
        classes["class_id"], classes.set_index("class_id")["class_name"]
    )
    index["label"] = index["class_id"].map(classes.set_index("class_id")["label"])
    index = index.sort_values(
        "split", key=lambda split: split != "train", kind="stable", ignore_index=True
    )
    return StudyData(
        **sets, index=index, faults=faults, classes=classes, layout=first.layout
    )


def _study_data(
    listing: Listing, decoded: Sequence[Decoded], given: Mapping[str, Any]
) -> StudyData:
    """Choose images and put them together. Raises ValueError where none is left to choose."""
    boxed = listing.layout in layouts.WITH_BOXES or any(
        image.boxes for image in decoded if image.record.split == "train"
    )
    chosen = select(listing.classes, decoded, boxed, listing.faults, given)
    faults = pd.DataFrame(listing.faults, columns=list(sources.Fault._fields))[
        ["class_id", "split", "name", "fault", "detail"]
    ]
    for split in [split for split in SPLITS if not chosen[split]]:
        kind = f"{split} image{' with a box' * (boxed and split == 'train')}"
        limits = ", ".join(
            f"{name} {value}"
            for name, value in given.items()
            if name.endswith("per_class")
        )
        raise ValueError(
            f"no {kind} is left in {given['data_path'] or given['data_source']}, of {len(decoded)} listed; faults: {_counted(faults)}; "
            f"put usable images there, or change {limits}"
        )
    rows = [
        (image.record.name, image.record.class_id, split, image.digest)
        for split in SPLITS
        for image in chosen[split]
    ]
    index = pd.DataFrame(rows, columns=["name", "class_id", "split", "digest"])
    index["label"], class_ids = pd.factorize(index["class_id"])
    classes = pd.DataFrame(
        {
            "label": range(len(class_ids)),
            "class_id": class_ids,
            "class_name": class_names(class_ids, listing.names),
        }
    )
    counts = pd.crosstab(index["class_id"], index["split"])[list(SPLITS)].add_suffix(
        "_images"
    )
    labels = index.groupby("split")["label"]
    sets = {
        split: image_set(chosen[split], labels.get_group(split).to_numpy(), int(boxed))
        for split in SPLITS
    }
    return StudyData(
        **sets,
        index=index,
        faults=faults,
        classes=classes.join(counts, on="class_id"),
        layout=listing.layout,
        boxes_from=listing.boxes_from,
    )


# Faults that cost a class or whole files; notebook 01 and ``--new`` open with them.
_COSTLY = (
    "unknown_class",
    NO_TEST_IMAGES,
    "class_with_too_few_images",
    "boxes_in_shares",
    "class_without_name",
    "link_not_followed",
    "name_not_usable",
    layouts.NOT_UNDERSTOOD,
    layouts.NOT_READ,
    "missing_image",
)


_UNUSABLE_BOXES = ("box_without_area", "box_outside_dropped")
# Faults that many images have: their number and the first of them are told.
_COUNTED = {
    "unreadable_image": ("image cannot be read", "images cannot be read"),
    "unusable_box": ("box cannot be used", "boxes cannot be used"),
}


def left_out(faults: Iterable[sources.Fault], most: int = 8) -> list[str]:
    """Sentences on what a source holds and a study does not take.

    Args:
        faults: those of a listing, or the rows of ``StudyData.faults``.
        most: sentences at most; a last one counts the others.

    Returns:
        One sentence per kind of fault or file, classes first.
    """
    details = defaultdict(list)
    for fault in faults:
        kind = "unusable_box" if fault.fault in _UNUSABLE_BOXES else fault.fault
        details[kind].append(fault)
    sentences = []
    for kind, words in _COUNTED.items():
        if details[kind]:
            first = details[kind][0]
            noun = words[len(details[kind]) > 1]
            sentences.append(
                f"{len(details[kind]):,} {noun}, such as {first.name}: {first.detail}"
            )
    for kind in _COSTLY:
        sentences += _sentences(kind, details[kind])
    if len(sentences) > most:
        rest = len(sentences) - most + 1
        sentences[most - 1 :] = [f"{rest} further kinds of files are not read"]
    return sentences


def _sentences(kind: str, faults: Sequence[sources.Fault]) -> list[str]:
    """One sentence for all classes of a kind, or one for each file."""
    classes = [fault for fault in faults if fault.class_id]
    files = [fault for fault in faults if not fault.class_id]
    sentences = [f"{fault.name}: {fault.detail}".lstrip(": ") for fault in files]
    if classes:
        words = kind.replace("_", " ")
        names = ", ".join(f"{fault.class_id} ({fault.detail})" for fault in classes[:5])
        more = f" and {len(classes) - 5} more" if len(classes) > 5 else ""
        sentences.append(f"{words}, left out of training and test: {names}{more}")
    return sentences


def _counted(faults: pd.DataFrame) -> str:
    """How many faults there are of each kind, with the first of it; "none"."""
    parts = []
    for kind, rows in faults.groupby("fault"):
        first = rows.iloc[0]
        example = f"{first['name'] or first['class_id']}: {first['detail']}"
        parts.append(f"{len(rows)} {kind} (such as {example.rstrip(': ')[:200]})")
    return ", ".join(parts) or "none"


def image_set(
    images: Sequence[Decoded], labels: ArrayLike, least_boxes: int = 0
) -> ImageSet:
    """Decoded images with their labels, and with room for as many boxes as the image that has most."""
    boxes = np.zeros(
        (len(images), max([least_boxes, *(len(image.boxes) for image in images)]), 4),
        dtype=np.int16,
    )
    for row, image in zip(boxes, images, strict=True):
        row[: len(image.boxes)] = np.array(image.boxes, dtype=np.int16).reshape(-1, 4)
    pixels = torch.from_numpy(np.stack([image.pixels for image in images]))
    return ImageSet(
        pixels,
        torch.tensor(labels),
        torch.from_numpy(boxes),
        tuple(image.record.name for image in images),
    )


def class_names(class_ids: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Names by which classes are told apart: that of the source, with the id where several have it (ILSVRC has "crane" twice)."""
    told = [names.get(class_id) or class_id for class_id in class_ids]
    return [
        f"{name} ({class_id})" if told.count(name) > 1 else name
        for name, class_id in zip(told, class_ids, strict=True)
    ]


def _to_cache(data: StudyData) -> dict[str, Tensor]:
    """Everything as tensors: tables as the bytes of parquet files."""
    tensors = {
        f"{split}_{name}": getattr(getattr(data, split), name)
        for split in SPLITS
        for name in _TENSORS
    }
    texts = {name: getattr(data, name).to_parquet(index=False) for name in _TABLES} | {
        name: getattr(data, name).encode() for name in _TEXTS
    }
    return tensors | {
        name: torch.from_numpy(np.frombuffer(text, dtype=np.uint8).copy())
        for name, text in texts.items()
    }


def _from_cache(kept: Mapping[str, Tensor]) -> StudyData:
    tables = {
        name: pd.read_parquet(io.BytesIO(kept[name].numpy().tobytes()))
        for name in _TABLES
    }
    names = tables["index"].groupby("split")["name"].apply(tuple)
    sets = {
        split: ImageSet(*(kept[f"{split}_{name}"] for name in _TENSORS), names[split])
        for split in SPLITS
    }
    texts = {
        name: kept[name].numpy().tobytes().decode()
        for name in _TEXTS
        if name in kept  # records of earlier commits lack the last
    }
    return StudyData(**sets, **tables, **texts)


def choose_images(work: Path, **parameters: Any) -> StudyData:
    """Images of a study by the parameters of ``load_study_data``, decoded once into ``work/cache``; ``work/data.json`` says which they are.

    Raises ValueError where fewer than two classes are left, and as ``load_study_data``.
    """
    data = load_study_data(**parameters, cache_dir=work / "cache")
    if len(data.classes) < 2:
        left = data.classes["class_id"].item()
        raise ValueError(
            f"only the class {left} is left, and a classifier needs 2; faults: {_counted(data.faults)}"
        )
    counts = {
        "classes": len(data.classes),
        "train": len(data.train),
        "test": len(data.test),
    }
    record = {
        "fingerprint": data.fingerprint,
        "images": counts,
        "layout": data.layout,
        "has_boxes": data.train.has_boxes,
    }
    given = {
        name: value if isinstance(value, str | int) else list(value)
        for name, value in parameters.items()
    }
    write_labels(work / LABELS, data)
    write_json(work / MANIFEST, record | {"parameters": given})
    return data


def write_labels(path: Path, data: StudyData) -> None:
    """Write all that is known of a study's images but their pixels, a megabyte at most.

    Args:
        path: an ``.npz``: labels and boxes by split, the tables as parquet files, the
            layout, and the side of the images in pixels.
        data: the images.
    """
    arrays = {
        name: tensor.numpy()
        for name, tensor in _to_cache(data).items()
        if not name.endswith("_images")
    }
    arrays["size"] = np.array(data.train.images.shape[-1])
    with complete_or_absent(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


def without_pixels(path: Path) -> StudyData:
    """Images of a study as ``write_labels`` left them: their pixels cannot be read.

    Args:
        path: the file.

    Returns:
        The data, whose image tensors have a shape and no values.

    Raises:
        ValueError: where the file is damaged; the message says what to do.
    """
    try:
        tensors = {
            name: torch.from_numpy(array) for name, array in read_arrays(path).items()
        }
        size = int(tensors["size"])
        for split in SPLITS:
            shape = (len(tensors[f"{split}_labels"]), 3, size, size)
            tensors[f"{split}_images"] = torch.empty(
                shape, dtype=torch.uint8, device="meta"
            )
        return _from_cache(tensors)
    except (ValueError, KeyError, RuntimeError) as fault:
        raise ValueError(
            f"{path} is damaged ({fault}); take it from the repository again"
        ) from fault


def of_study(work: Path) -> StudyData:
    """Images that notebook 01 chose for a study, from the cache or decoded again.

    Where neither the cache nor the source is here, the study's records have all but the
    pixels.

    Args:
        work: the folder of work of the study.

    Returns:
        The images, without pixels where only records are here (``ImageSet.has_pixels``).

    Raises:
        FileNotFoundError: where 01 has not run and no records are here, or what 01 read
            is gone.
        ValueError: where the images are others than 01 chose.
    """
    labels = records_of(work) / LABELS
    record = _manifest(work)
    try:
        data = load_study_data(**record["parameters"], cache_dir=work / "cache")
    except FileNotFoundError:
        if not labels.is_file():
            raise
        data = without_pixels(labels)
    if data.fingerprint != record["fingerprint"]:
        raise ValueError(
            f"the images of {record['parameters'].get('data_path')} were changed since notebook 01 chose them (fingerprint "
            f"{data.fingerprint}, not {record['fingerprint']}). Put them back, or choose them anew: {_remedy(work)}"
        )
    return data


def with_classes(
    work: Path, class_ids: Sequence[str], further_path: str = ""
) -> StudyData:
    """Images of any classes of a study's source, or of a further folder or .zip of its layout that holds those that are not the study's.

    All else is chosen by the parameters of the study; with a further source its own classes stand first.
    """
    parameters, class_ids, cache = (
        image_parameters(work),
        list(class_ids),
        work / "cache",
    )
    if not further_path:
        return load_study_data(**parameters | {"class_ids": class_ids}, cache_dir=cache)
    own = of_study(work)
    further = [name for name in class_ids if name not in set(own.classes["class_id"])]
    elsewhere = parameters | {"data_path": further_path, "class_ids": further}
    return (
        joined(own, load_study_data(**elsewhere, cache_dir=cache)) if further else own
    )


def image_parameters(work: Path) -> dict[str, Any]:
    """Parameters by which notebook 01 chose the images of a study. Raises FileNotFoundError where it has not run."""
    return _manifest(work)["parameters"]


def _manifest(work: Path) -> dict[str, Any]:
    for folder in (work, records_of(work)):
        if (folder / MANIFEST).is_file():
            return read_json(folder / MANIFEST)
    raise FileNotFoundError(
        f"{work / MANIFEST} is not there: notebook 01 has not chosen the images of the study {work.name!r}: {_remedy(work)}"
    )


def _remedy(work: Path) -> str:
    return f"run notebooks/01_data_subset.ipynb for it, or `python -m helpers.sweep params/{work.name}.yaml -- --forcerun 01_data_subset`"
