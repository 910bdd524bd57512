"""A source of images with boxes to one index table and one in-memory ImageSet: selected, decoded once, cached."""

import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from helpers.data import layouts, synthetic
from helpers.data.decode import Decoded, decode_image
from helpers.data.layouts import Fault, Listing, Record, open_archive
from helpers.files import from_root, read_tensors, write_tensors

# Raise this when the meaning of the cached arrays changes: older caches are then never used.
_FORMAT = 2


def _cache_path(cache_dir: Path, parameters: Mapping[str, Any]) -> Path:
    """Place of a cache: named by a hash over every parameter, so that one made from others is never used by mistake."""
    canonical = json.dumps({**parameters, "format": _FORMAT}, sort_keys=True)
    return cache_dir / f"images-{blake2b(canonical.encode(), digest_size=8).hexdigest()}.safetensors"


@dataclass(frozen=True)
class Selected:
    """The images of a study, in the order of their classes and names."""

    class_ids: list[str]
    train: list[Decoded]
    test: list[Decoded]
    faults: list[Fault]


def select(
    listing: Listing,
    decoded: Sequence[Decoded],
    *,
    images_per_class: int,
    test_images_per_class: int,
    minimum_images_per_class: int,
    seed: int,
) -> Selected:
    """Choose the images of a study; see ``dataset.load_study_data`` for the arguments.

    Every choice is per class and seeded by class, so it does not depend on which other classes are asked for.
    """
    faults = list(listing.faults)
    for image in decoded:
        place = (image.record.class_id, image.record.split, image.record.name)
        faults += [Fault(*place, *fault) for fault in image.faults]
        annotation = image.record.annotation
        if place[1] == "train" and annotation is not None and not annotation.boxes:
            faults.append(Fault(*place, "no_object_in_annotation", ""))
    usable = _without_duplicates([image for image in decoded if image.pixels is not None], faults)
    pools = {split: [image for image in usable if image.record.split == split] for split in ("train", "test")}
    held_out = not pools["test"]
    kept, train, test = [], [], []
    for class_id in listing.classes:
        candidates = [image for image in pools["train"] if image.record.class_id == class_id and image.boxes]
        unseen = [image for image in pools["test"] if image.record.class_id == class_id]
        if held_out:
            # At most half of a class, so that a small class is not tested only.
            cut = min(test_images_per_class, len(candidates) // 2)
            chosen = _choice(candidates, cut, seed, class_id, "hold out")
            held = {image.record.name for image in chosen}
            candidates, unseen = [image for image in candidates if image.record.name not in held], chosen
        if len(candidates) < minimum_images_per_class:
            faults.append(Fault(class_id, "train", "", "class_with_too_few_images", f"{len(candidates)} with a box"))
            continue
        if len(unseen) < test_images_per_class:
            faults.append(Fault(class_id, "test", "", "fewer_test_images_than_asked", f"{len(unseen)} of {test_images_per_class}"))
        if len(candidates) < images_per_class:
            faults.append(Fault(class_id, "train", "", "fewer_training_images_than_asked", f"{len(candidates)} of {images_per_class}"))
        kept.append(class_id)
        chosen = _choice(candidates, images_per_class or len(candidates), seed, class_id, "train")
        if not test_images_per_class:
            fitted = {image.record.name for image in chosen}
            unseen += [image for image in pools["train"] if image.record.class_id == class_id and image.record.name not in fitted]
        train += chosen
        test += _choice(unseen, test_images_per_class or len(unseen), seed, class_id, "test")
    return Selected(kept, train, test, faults)


def _choice(images: list[Decoded], count: int, seed: int, class_id: str, purpose: str) -> list[Decoded]:
    """Take a seeded choice, in the order of names; a smaller count takes a subset of a larger one's."""
    words = np.frombuffer(blake2b(f"{class_id}\0{purpose}".encode(), digest_size=16).digest(), dtype=np.uint32)
    order = np.random.default_rng([seed, *words.tolist()]).permutation(len(images))
    return [images[index] for index in sorted(order[:count])]


def _without_duplicates(images: Sequence[Decoded], faults: list[Fault]) -> list[Decoded]:
    """Keep the first of the files with the same content: training before test, then by name."""
    seen: dict[str, Record] = {}
    kept = []
    for image in sorted(images, key=lambda image: (image.record.split != "train", image.record.name)):
        if image.digest in seen:
            first = seen[image.digest]
            kind = "duplicate_file" if first.class_id == image.record.class_id else "contradictory_labels"
            detail = f"same content as {first.name}" + (f", which is of the class {first.class_id}" if kind != "duplicate_file" else "")
            faults.append(Fault(image.record.class_id, image.record.split, image.record.name, kind, detail))
            continue
        seen[image.digest] = image.record
        kept.append(image)
    return kept


DATA_SOURCES = ("synthetic", *layouts.LAYOUTS)
_INDEX = ["name", "class_id", "label", "split", "boxes", "width", "height", "digest"]


@dataclass(frozen=True)
class ImageSet:
    """Images of one split, in memory."""

    images: Tensor  # (N, 3, S, S) uint8 RGB
    labels: Tensor  # (N,) int64
    boxes: Tensor  # (N, B, 4) int16, half-open x0, y0, x1, y1 in pixels of the S x S image; zero rows are padding
    names: tuple[str, ...]  # one per image, relative to the source

    def __len__(self) -> int:
        """Number of images."""
        return len(self.labels)

    def subset(self, indices: Iterable[int]) -> "ImageSet":
        """Take some images, in the given order."""
        chosen = torch.as_tensor(np.asarray(indices), dtype=torch.int64)
        names = tuple(self.names[index] for index in chosen.tolist())
        return ImageSet(self.images[chosen], self.labels[chosen], self.boxes[chosen], names)


@dataclass(frozen=True)
class StudyData:
    """The images of a study."""

    train: ImageSet
    test: ImageSet
    index: pd.DataFrame  # one row per image: name, class_id, label, split, boxes (their number), width, height (as stored), digest
    faults: pd.DataFrame  # one row per fault: class_id, split, name, fault, detail
    classes: pd.DataFrame  # label, class_id, class_name, train_images, test_images
    fingerprint: str  # 16 hex digits over what the images are, wherever they lie


def load_study_data(
    *,
    data_source: str,
    data_path: str = "",
    class_ids: Sequence[str] = (),
    image_size: int = 64,
    images_per_class: int = 0,
    test_images_per_class: int = 50,
    minimum_images_per_class: int = 2,
    data_seed: int = 0,
    cache_dir: Path,
) -> StudyData:
    """Load the images of a study, from the cache when it was made from the same source with the same parameters.

    Only images with a usable box enter the training split. The test split comes from the source's own validation images,
    or is held out of the training images where the source has none. Of two files with the same content the first is kept.

    Args:
        data_source: one of ``DATA_SOURCES``.
        data_path: folder or .zip, relative to the project's root; not for "synthetic".
        class_ids: classes to use, in the order of their labels; all of the source, sorted, when empty.
        image_size: side of the square images, pixels, at least 8.
        images_per_class: training images per class; 0 takes all. A smaller number takes a subset of a larger one's.
        test_images_per_class: test images per class; 0 takes all that training leaves: the validation images of the source, and the images
            of its training split that are beyond ``images_per_class`` or have no box.
        minimum_images_per_class: classes with fewer training images are dropped and counted.
        data_seed: seed of every choice of images.
        cache_dir: where decoded images are kept.

    Raises:
        FileNotFoundError: nothing is at ``data_path``.
        ValueError: an argument is out of range, or the source has no usable class.
    """
    arguments = {name: value for name, value in locals().items() if name != "cache_dir"} | {"class_ids": list(class_ids)}
    _check(arguments)
    if data_source == "synthetic":
        # Rendered anew when the renderer changes.
        stamp = blake2b(Path(synthetic.__file__).read_bytes()).hexdigest()
    else:
        archive = open_archive(from_root(data_path))
        root = layouts.find_root(archive, data_source)
        stamp = archive.stamp(layouts.inputs(archive, data_source, root, class_ids))
    path = _cache_path(cache_dir, arguments | {"stamp": stamp})
    if (cached := read_tensors(path)) is not None:
        return _from_cache(cached)
    if data_source == "synthetic":
        listing, decoded = _render(arguments)
    else:
        listing = layouts.with_names_in_utf8(layouts.LAYOUTS[data_source].scan(archive, root, class_ids))
        decoded = _decode_all(archive, listing.records, image_size)
    data = _assemble(listing, decoded, arguments)
    if not (data.faults["fault"] == layouts.UNREADABLE_NOW).any():
        write_tensors(path, _to_cache(data))
    return data


def _check(arguments: dict) -> None:
    if arguments["data_source"] not in DATA_SOURCES:
        raise ValueError(f"data_source {arguments['data_source']!r} is unknown; choose one of {', '.join(DATA_SOURCES)}")
    leasts = {"image_size": 8, "images_per_class": 0, "test_images_per_class": 0, "minimum_images_per_class": 1, "data_seed": 0}
    for name, least in leasts.items():
        if type(arguments[name]) is not int or arguments[name] < least:
            raise ValueError(f"{name} is {arguments[name]}; it must be a whole number of at least {least}")
    if len(set(arguments["class_ids"])) != len(arguments["class_ids"]):
        raise ValueError(f"class_ids names a class twice: {arguments['class_ids']}")
    if arguments["data_source"] != "synthetic" and not arguments["data_path"]:
        raise ValueError(f"data_source {arguments['data_source']!r} needs data_path: the folder or .zip that holds the images")
    if arguments["data_source"] == "synthetic" and not arguments["test_images_per_class"]:
        raise ValueError("test_images_per_class is 0, and of rendered scenes there is no end; give a number, such as 50")


def _decode_all(archive: layouts.Archive, records: Sequence[Record], size: int) -> list[Decoded]:
    # Decoding releases the interpreter's lock, so threads use all cores.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as executor:
        results = executor.map(lambda record: decode_image(archive, record, size), records)
        return list(tqdm(results, total=len(records), desc="decoding", unit="image", leave=False))


def _render(arguments: dict) -> tuple[Listing, list[Decoded]]:
    """Render the embedded scenes as if they had been decoded."""
    known = [f"synthetic_{name}" for name in synthetic.CLASS_NAMES]
    unknown = sorted(set(arguments["class_ids"]) - set(known))
    if unknown:
        raise ValueError(f"class_ids holds {', '.join(unknown)}; the synthetic classes are {', '.join(known)}")
    chosen = arguments["class_ids"] or known
    listing = Listing(names=dict(zip(known, synthetic.CLASS_NAMES, strict=True)), classes=chosen)
    counts = {"train": arguments["images_per_class"] or 60, "test": arguments["test_images_per_class"]}
    decoded = []
    for split, per_class in counts.items():
        pixels, labels, boxes = synthetic.scenes(len(known), per_class, arguments["image_size"], arguments["data_seed"], split)
        for number in np.flatnonzero(np.isin(labels, [known.index(name) for name in chosen])):
            class_id = known[labels[number]]
            record = Record(f"{split}/{class_id}/{number % per_class:05d}", class_id, split, None)
            digest = blake2b(pixels[number].tobytes(), digest_size=8).hexdigest()
            size = arguments["image_size"]
            decoded.append(Decoded(record, pixels[number], [tuple(boxes[number, 0].tolist())], size, size, digest, []))
    listing.records = [image.record for image in decoded]
    return listing, decoded


def _assemble(listing: Listing, decoded: Sequence[Decoded], arguments: dict) -> StudyData:
    """Choose what is used, and stack it."""
    selected = select(
        listing,
        decoded,
        images_per_class=arguments["images_per_class"],
        test_images_per_class=arguments["test_images_per_class"],
        minimum_images_per_class=arguments["minimum_images_per_class"],
        seed=arguments["data_seed"],
    )
    if not selected.class_ids:
        kinds, first = Counter(fault.fault for fault in selected.faults), {fault.fault: fault for fault in reversed(selected.faults)}
        told = [
            f"{count} {kind} (such as {first[kind].name or first[kind].class_id}: {first[kind].detail})"
            for kind, count in kinds.most_common()
        ]
        raise ValueError(
            f"no usable class in {arguments['data_path'] or arguments['data_source']}: of {len(listing.records)} images listed "
            f"none is left in a class of at least {arguments['minimum_images_per_class']} training images with a box; "
            f"faults: {', '.join(told) or 'none'}"
        )
    if not selected.test:
        raise ValueError(
            f"no test image is left in {arguments['data_path']}: it has no validation images, and images_per_class "
            f"{arguments['images_per_class']} takes every training image; set images_per_class or test_images_per_class above 0"
        )
    labels = {class_id: label for label, class_id in enumerate(selected.class_ids)}
    train, test = (_stack(images, labels, arguments["image_size"]) for images in (selected.train, selected.test))
    rows = [
        (i.record.name, i.record.class_id, labels[i.record.class_id], split, len(i.boxes), i.width, i.height, i.digest)
        for split, images in (("train", selected.train), ("test", selected.test))
        for i in images
    ]
    index = pd.DataFrame(rows, columns=_INDEX)
    numbers = pd.crosstab(index["class_id"], index["split"]).reindex(selected.class_ids)
    classes = pd.DataFrame({"label": range(len(labels)), "class_id": selected.class_ids})
    classes["class_name"] = _class_names(selected.class_ids, listing.names)
    for split in ("train", "test"):
        classes[f"{split}_images"] = numbers[split].to_numpy() if split in numbers else 0
    faults = pd.DataFrame(selected.faults, columns=list(Fault._fields))
    return StudyData(train, test, index, faults, classes, _fingerprint(index, train, test, arguments["image_size"]))


def _class_names(class_ids: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Names by which classes are told apart: that of the source, with the id where several have it (ILSVRC has "crane" twice)."""
    told = [names.get(class_id) or class_id for class_id in class_ids]
    while len(set(told)) < len(told):  # again where a name in a source looks like one that was told apart
        told = [f"{name} ({class_id})" if told.count(name) > 1 else name for name, class_id in zip(told, class_ids, strict=True)]
    return told


def _stack(images: Sequence[Decoded], labels: dict[str, int], size: int) -> ImageSet:
    most = max((len(image.boxes) for image in images), default=0)
    boxes = np.zeros((len(images), max(1, most), 4), dtype=np.int16)
    for row, image in zip(boxes, images, strict=True):
        row[: len(image.boxes)] = np.array(image.boxes, dtype=np.int16).reshape(-1, 4)
    pixels = np.stack([image.pixels for image in images]) if images else np.zeros((0, 3, size, size), dtype=np.uint8)
    label = torch.tensor([labels[image.record.class_id] for image in images], dtype=torch.int64)
    return ImageSet(torch.from_numpy(pixels), label, torch.from_numpy(boxes), tuple(image.record.name for image in images))


def joined(first: StudyData, further: StudyData) -> StudyData:
    """Images of two sources as one, the classes of the second after those of the first.

    Args:
        first: keeps its labels.
        further: of other classes and other images, of the same size.

    Raises:
        ValueError: both have a class or an image, or their sizes differ.
    """
    if both := sorted(set(first.classes["class_id"]) & set(further.classes["class_id"])):
        raise ValueError(f"{len(both)} classes are in both sources, first {both[0]}; name classes that the study does not have")
    twice = further.index[further.index["digest"].isin(first.index["digest"])]
    if len(twice):
        told = f"{len(twice)} images of the further classes are the study's own, first {twice['name'].iloc[0]}"
        raise ValueError(f"{told}; name classes of which it has no image")
    size, other = (data.train.images.shape[-1] for data in (first, further))
    if size != other:
        raise ValueError(f"images of {size} px and of {other} px do not go together")
    shift = len(first.classes)
    train, test = (_one_set(getattr(first, split), getattr(further, split), shift) for split in ("train", "test"))
    tables = [
        pd.concat([mine, theirs.assign(label=theirs["label"] + shift)], ignore_index=True)
        for mine, theirs in ((first.index, further.index), (first.classes, further.classes))
    ]
    index = tables[0].sort_values("split", key=lambda split: split != "train", kind="stable", ignore_index=True)
    names = _class_names(tables[1]["class_id"], dict(zip(tables[1]["class_id"], tables[1]["class_name"], strict=True)))
    faults = pd.concat([first.faults, further.faults], ignore_index=True)
    return StudyData(train, test, index, faults, tables[1].assign(class_name=names), _fingerprint(index, train, test, size))


def _one_set(first: ImageSet, further: ImageSet, shift: int) -> ImageSet:
    most = max(first.boxes.shape[1], further.boxes.shape[1])
    boxes = [nn.functional.pad(images.boxes, (0, 0, 0, most - images.boxes.shape[1])) for images in (first, further)]
    labels = torch.cat([first.labels, further.labels + shift])
    return ImageSet(torch.cat([first.images, further.images]), labels, torch.cat(boxes), (*first.names, *further.names))


def _fingerprint(index: pd.DataFrame, train: ImageSet, test: ImageSet, size: int) -> str:
    """Hash what the images are: contents of the files, labels, splits, boxes and size; not names, not places."""
    digest = blake2b(f"{size}".encode(), digest_size=8)
    for row in index[["digest", "class_id", "label", "split"]].itertuples(index=False):
        digest.update("\0".join(map(str, row)).encode())
    for images in (train, test):
        digest.update(images.boxes.numpy().tobytes())
    return digest.hexdigest()


def fault_counts(faults: pd.DataFrame) -> pd.DataFrame:
    """Count faults: one row per class, one column per kind, sorted; a fault of no known class stands under "(unknown)"."""
    table = pd.crosstab(faults["class_id"].where(faults["class_id"] != "", "(unknown)"), faults["fault"])
    return table.rename_axis(columns=None).reset_index() if len(faults) else pd.DataFrame({"class_id": []})


_TABLES = ("index", "faults", "classes")


def _to_cache(data: StudyData) -> dict[str, Tensor]:
    """Everything as tensors: tables as the bytes of parquet files."""
    tensors = {
        f"{split}_{name}": getattr(images, name)
        for split, images in (("train", data.train), ("test", data.test))
        for name in ("images", "labels", "boxes")
    }
    texts = {name: getattr(data, name).to_parquet(index=False) for name in _TABLES} | {"fingerprint": data.fingerprint.encode()}
    return tensors | {name: torch.from_numpy(np.frombuffer(text, dtype=np.uint8).copy()) for name, text in texts.items()}


def _from_cache(kept: Mapping[str, Tensor]) -> StudyData:
    tables = {name: pd.read_parquet(io.BytesIO(kept[name].numpy().tobytes())) for name in _TABLES}
    names = {split: tuple(tables["index"].loc[tables["index"]["split"] == split, "name"]) for split in ("train", "test")}
    sets = [ImageSet(*(kept[f"{split}_{name}"] for name in ("images", "labels", "boxes")), names[split]) for split in ("train", "test")]
    return StudyData(*sets, **tables, fingerprint=kept["fingerprint"].numpy().tobytes().decode())
