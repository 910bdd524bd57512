"""Which of the decoded images enter the study: usable, no duplicates, split, so many per class; all else is counted."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from helpers.decoding import Decoded
from helpers.sources import Fault, Listing


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
    """Choose the images of a study; see ``datasets.load_study_data`` for the arguments.

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
        kept.append(class_id)
        train += _choice(candidates, images_per_class or len(candidates), seed, class_id, "train")
        test += _choice(unseen, test_images_per_class, seed, class_id, "test")
    return Selected(kept, train, test, faults)


def _choice(images: list[Decoded], count: int, seed: int, class_id: str, purpose: str) -> list[Decoded]:
    """Take a seeded choice, in the order of names; a smaller count takes a subset of a larger one's."""
    words = np.frombuffer(blake2b(f"{class_id}\0{purpose}".encode(), digest_size=16).digest(), dtype=np.uint32)
    order = np.random.default_rng([seed, *words.tolist()]).permutation(len(images))
    return [images[index] for index in sorted(order[:count])]


def _without_duplicates(images: Sequence[Decoded], faults: list[Fault]) -> list[Decoded]:
    """Keep the first of the files with the same content: training before test, then by name."""
    seen: dict[str, str] = {}
    kept = []
    for image in sorted(images, key=lambda image: (image.record.split != "train", image.record.name)):
        if image.digest in seen:
            detail = f"same content as {seen[image.digest]}"
            faults.append(Fault(image.record.class_id, image.record.split, image.record.name, "duplicate_file", detail))
            continue
        seen[image.digest] = image.record.name
        kept.append(image)
    return kept
