"""Which images of a source a study takes, stacked: per class, seeded, no image twice."""

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
from helpers.data.layouts import WITH_BOXES, Listing
from helpers.data.sources import Fault

SPLITS = ("train", "test")


def assembled(listing: Listing, decoded: Sequence[Decoded], given: Mapping[str, Any]) -> dict[str, Any]:
    """Parts of ``images.StudyData``: of a split its images, labels and boxes. Raises ValueError where no image is left to choose."""
    boxed = listing.layout in WITH_BOXES or any(image.boxes for image in decoded if image.record.split == "train")
    chosen = select(listing.classes, decoded, boxed, listing.faults, given)
    table = pd.DataFrame(listing.faults, columns=list(Fault._fields))
    for split, images in chosen.items():
        if not images:
            told = [f"{len(of_kind)} {kind} (such as {of_kind['name'].iloc[0]})" for kind, of_kind in table.groupby("fault")]
            limits = ", ".join(f"{name} {value}" for name, value in given.items() if name.endswith("per_class"))
            raise ValueError(
                f"no {split} image{' with a box' * (boxed and split == 'train')} is left in {given['data_path'] or given['data_source']}, "
                f"of {len(decoded)} listed; faults: {', '.join(told) or 'none'}; put usable images there, or change {limits}"
            )
    rows = [(image.record.name, image.record.class_id, split, image.digest) for split in SPLITS for image in chosen[split]]
    index = pd.DataFrame(rows, columns=["name", "class_id", "split", "digest"])
    class_ids = list(index.loc[index["split"] == "train", "class_id"].unique())
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
    return [f"{name} ({class_id})" if told.count(name) > 1 else name for name, class_id in zip(told, class_ids, strict=True)]


def select(
    class_ids: Sequence[str], decoded: Sequence[Decoded], boxed: bool, faults: list[Fault], given: Mapping[str, Any]
) -> dict[str, list[Decoded]]:
    """Choose training and test images; per class and seeded by class, so that no other class makes a difference."""
    most, held, seed = given["images_per_class"], given["test_images_per_class"], given["data_seed"]
    pools: dict[tuple[str, str], list[Decoded]] = defaultdict(list)
    for image in _without_copies(decoded, boxed, faults):
        pools[image.record.class_id, image.record.split].append(image)
    own_test = any(image.record.split == "test" for image in decoded)
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
    return chosen


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


def _without_copies(decoded: Sequence[Decoded], boxed: bool, faults: list[Fault]) -> list[Decoded]:
    """Count what is wrong with images, and keep the first of those with the same pixels: training before test, then by name."""
    seen: dict[str, Decoded] = {}
    for image in sorted(decoded, key=lambda image: (image.record.split != "train", image.record.name)):
        faults += [_fault(image, *fault) for fault in image.faults]
        if boxed and image.record.split == "train" and isinstance(image.record.annotation, Annotation) and not image.record.boxes:
            faults.append(_fault(image, "no_object_in_annotation", ""))
        if image.pixels is None:
            continue
        if (first := seen.setdefault(pixel_digest(image.pixels), image)) is not image:
            kind = "duplicate_image" if first.record.class_id == image.record.class_id else "contradictory_labels"
            kind = kind if first.record.split == image.record.split else "test_image_in_training"
            faults.append(_fault(image, kind, f"same pixels as {first.record.name}, which is of the class {first.record.class_id}"))
    return list(seen.values())


def pixel_digest(pixels: np.ndarray) -> str:
    """Digest of an image's pixels, 16 hex digits."""
    return blake2b(pixels.tobytes(), digest_size=8).hexdigest()
