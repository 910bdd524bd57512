"""Which images of a source a study takes, stacked: per class, seeded, no file twice, no test image with the pixels of a training image."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from helpers.data.annotations import Annotation
from helpers.data.decode import Decoded
from helpers.data.layouts import WITH_BOXES, Listing, Record
from helpers.data.sources import Fault

SPLITS = ("train", "test")


def assembled(listing: Listing, decoded: Sequence[Decoded], faults: list[Fault], given: Mapping[str, Any]) -> dict[str, Any]:
    """Parts of ``images.StudyData``: of a split its images, labels and boxes. Raises ValueError where no image is left to choose."""
    boxed = listing.layout in WITH_BOXES or any(image.boxes for image in decoded if image.record.split == "train")
    chosen = select(listing.classes, decoded, boxed, faults, given)
    place, class_ids = given["data_path"] or given["data_source"], list(dict.fromkeys(image.record.class_id for image in chosen["train"]))
    table = pd.DataFrame(faults, columns=list(Fault._fields))
    if not class_ids:
        counts, first = table["fault"].value_counts(), table.drop_duplicates("fault").set_index("fault")
        told = [f"{counts[row.Index]} {row.Index} (such as {row.name or row.class_id}: {row.detail})" for row in first.itertuples()]
        raise ValueError(
            f"no usable class in {place}: of {len(decoded)} images listed none is left in a class of at least "
            f"{given['minimum_images_per_class']} training images{' with a box' if boxed else ''}; faults: {', '.join(told) or 'none'}"
        )
    if not chosen["test"]:
        copies = int((table["fault"] == "test_image_in_training").sum())
        why = f"it has no validation images of its own, and images_per_class {given['images_per_class']} takes every training image"
        why = f"all {copies} have the pixels of training images" if copies else why
        raise ValueError(f"no test image is left in {place}: {why}; set images_per_class or test_images_per_class above 0")
    rows = [(image.record.name, image.record.class_id, split, image.digest) for split in SPLITS for image in chosen[split]]
    index = pd.DataFrame(rows, columns=["name", "class_id", "split", "digest"])
    index["label"] = index["class_id"].map({class_id: label for label, class_id in enumerate(class_ids)})
    classes = pd.DataFrame({"label": range(len(class_ids)), "class_id": class_ids, "class_name": class_names(class_ids, listing.names)})
    for split in SPLITS:
        counts = index.loc[index["split"] == split, "class_id"].value_counts()
        classes[f"{split}_images"] = classes["class_id"].map(counts).fillna(0).astype(int)
    stacks = {split: _stack(chosen[split], index.loc[index["split"] == split, "label"], int(boxed)) for split in SPLITS}
    return stacks | {"index": index, "faults": table, "classes": classes, "layout": listing.layout}


def _stack(images: Sequence[Decoded], labels: pd.Series, least_boxes: int) -> tuple[Tensor, Tensor, Tensor]:
    boxes = np.zeros((len(images), max([least_boxes, *(len(image.boxes) for image in images)]), 4), dtype=np.int16)
    for row, image in zip(boxes, images, strict=True):
        row[: len(image.boxes)] = np.array(image.boxes, dtype=np.int16).reshape(-1, 4)
    pixels = torch.from_numpy(np.stack([image.pixels for image in images]))
    return pixels, torch.tensor(labels.to_numpy()), torch.from_numpy(boxes)


def class_names(class_ids: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Names by which classes are told apart: that of the source, with the id where several have it (ILSVRC has "crane" twice)."""
    told = [names.get(class_id) or class_id for class_id in class_ids]
    while len(set(told)) < len(told):  # again where a name in a source looks like one that was told apart
        told = [f"{name} ({class_id})" if told.count(name) > 1 else name for name, class_id in zip(told, class_ids, strict=True)]
    return told


def select(
    class_ids: Sequence[str], decoded: Sequence[Decoded], boxed: bool, faults: list[Fault], given: Mapping[str, Any]
) -> dict[str, list[Decoded]]:
    """Choose training and test images; per class and seeded by class, so that no other class makes a difference."""
    most, held, seed = given["images_per_class"], given["test_images_per_class"], given["data_seed"]
    pools: dict[tuple[str, str], list[Decoded]] = defaultdict(list)
    for image in _without_duplicates(decoded, boxed, faults):
        pools[image.record.class_id, image.record.split].append(image)
    own_test = any(split == "test" for _, split in pools)
    chosen: dict[str, list[Decoded]] = {"train": [], "test": []}
    for class_id in class_ids:
        spare, unseen = pools[class_id, "train"], pools[class_id, "test"]
        candidates = [image for image in spare if image.boxes or not boxed]
        if not own_test:  # at most half of a class, so that a small class is not tested only
            unseen = _choice(candidates, min(held, len(candidates) // 2), seed, class_id, "hold out")
            candidates = _without(candidates, unseen)
        if len(candidates) < given["minimum_images_per_class"]:
            faults.append(Fault(class_id, "train", "", "class_with_too_few_images", f"{len(candidates)}{' with a box' if boxed else ''}"))
            continue
        for split, kind, found, asked in (("test", "test", unseen, held), ("train", "training", candidates, most)):
            if len(found) < asked:
                faults.append(Fault(class_id, split, "", f"fewer_{kind}_images_than_asked", f"{len(found)} of {asked}"))
        fitted = _choice(candidates, most or len(candidates), seed, class_id, "train")
        unseen = unseen + (_without(spare, fitted) if not held else [])
        chosen["train"] += fitted
        chosen["test"] += _choice(unseen, held or len(unseen), seed, class_id, "test")
    seen = {pixel_digest(image.pixels): image.record.name for image in chosen["train"]}
    copies = [image for image in chosen["test"] if pixel_digest(image.pixels) in seen]
    faults += [_fault(image, "test_image_in_training", f"same pixels as {seen[pixel_digest(image.pixels)]}") for image in copies]
    return chosen | {"test": _without(chosen["test"], copies)}


def _fault(image: Decoded, kind: str, detail: str) -> Fault:
    return Fault(image.record.class_id, image.record.split, image.record.name, kind, detail)


def _without(images: Sequence[Decoded], others: Sequence[Decoded]) -> list[Decoded]:
    names = {image.record.name for image in others}
    return [image for image in images if image.record.name not in names]


def _choice(images: Sequence[Decoded], count: int, seed: int, class_id: str, purpose: str) -> list[Decoded]:
    """Take a seeded choice, in the order of names; a smaller count takes a subset of a larger one's."""
    words = np.frombuffer(blake2b(f"{class_id}\0{purpose}".encode(), digest_size=16).digest(), dtype=np.uint32)
    order = np.random.default_rng([seed, *words.tolist()]).permutation(len(images))
    return [images[index] for index in sorted(order[:count])]


def _without_duplicates(decoded: Sequence[Decoded], boxed: bool, faults: list[Fault]) -> list[Decoded]:
    """Count what is wrong with images, and keep the first of the files with the same content: training before test, then by name."""
    seen: dict[str, Record] = {}
    kept = []
    for image in sorted(decoded, key=lambda image: (image.record.split != "train", image.record.name)):
        faults += [_fault(image, *fault) for fault in image.faults]
        if boxed and image.record.split == "train" and isinstance(image.record.annotation, Annotation) and not image.record.boxes:
            faults.append(_fault(image, "no_object_in_annotation", ""))
        if image.pixels is None:
            continue
        first = seen.setdefault(image.digest, image.record)
        if first is image.record:
            kept.append(image)
        else:
            kind = "duplicate_file" if first.class_id == image.record.class_id else "contradictory_labels"
            faults.append(_fault(image, kind, f"same content as {first.name}, which is of the class {first.class_id}"))
    return kept


def pixel_digest(pixels: np.ndarray) -> str:
    """Digest of an image's pixels, 16 hex digits."""
    return blake2b(pixels.tobytes(), digest_size=8).hexdigest()
