"""Which images of a source a study takes: per class, seeded, no image twice."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from helpers.data.decode import Decoded
from helpers.data.sources import Fault


def select(
    class_ids: Sequence[str],
    decoded: Sequence[Decoded],
    boxed: bool,
    faults: list[Fault],
    given: Mapping[str, Any],
) -> dict[str, list[Decoded]]:
    """Choose training and test images; per class and seeded by class, so that no other class makes a difference."""
    most, held, seed = (
        given["images_per_class"],
        given["test_images_per_class"],
        given["data_seed"],
    )
    pools: dict[tuple[str, str], list[Decoded]] = defaultdict(list)
    for image in _without_copies(decoded, faults):
        pools[image.record.class_id, image.record.split].append(image)
    own_test = any(image.record.split == "test" for image in decoded)
    chosen: dict[str, list[Decoded]] = {"train": [], "test": []}
    for class_id in class_ids:
        spare, unseen = pools[class_id, "train"], pools[class_id, "test"]
        candidates = [image for image in spare if image.boxes or not boxed]
        if (
            not own_test
        ):  # at most half of a class, so that a small class keeps training images
            unseen = _choice(
                candidates, min(held, len(candidates) // 2), seed, class_id, "hold out"
            )
            candidates = _without(candidates, unseen)
        if len(candidates) < given["minimum_images_per_class"]:
            faults.append(
                Fault(
                    "",
                    "class_with_too_few_images",
                    f"{len(candidates)}{' with a box' if boxed else ''}",
                    class_id,
                    "train",
                )
            )
            continue
        for split, kind, found, asked in (
            ("test", "test", unseen, held),
            ("train", "training", candidates, most),
        ):
            if len(found) < asked:
                faults.append(
                    Fault(
                        "",
                        f"fewer_{kind}_images_than_asked",
                        f"{len(found)} of {asked}",
                        class_id,
                        split,
                    )
                )
        fitted = _choice(candidates, most or len(candidates), seed, class_id, "train")
        unseen = unseen + (_without(spare, fitted) if not held else [])
        chosen["train"] += fitted
        chosen["test"] += _choice(unseen, held or len(unseen), seed, class_id, "test")
    return chosen


def _without(images: Sequence[Decoded], others: Sequence[Decoded]) -> list[Decoded]:
    names = {image.record.name for image in others}
    return [image for image in images if image.record.name not in names]


def _choice(
    images: Sequence[Decoded], count: int, seed: int, class_id: str, purpose: str
) -> list[Decoded]:
    """Take a seeded choice, in the order of names; a smaller count takes a subset of a larger one's."""
    words = np.frombuffer(
        blake2b(f"{class_id}\0{purpose}".encode(), digest_size=16).digest(),
        dtype=np.uint32,
    )
    order = np.random.default_rng([seed, *words.tolist()]).permutation(len(images))
    return [images[index] for index in sorted(order[:count])]


def _without_copies(decoded: Sequence[Decoded], faults: list[Fault]) -> list[Decoded]:
    """Keep the first of images with the same pixels, training before test, then by name; note each copy, and what is wrong with images."""
    seen: dict[str, Decoded] = {}
    for image in sorted(
        decoded, key=lambda image: (image.record.split != "train", image.record.name)
    ):
        faults += [image.record.fault(*fault) for fault in image.faults]
        if image.pixels is None:
            continue
        if (first := seen.setdefault(pixel_digest(image.pixels), image)) is not image:
            kind = (
                "duplicate_image"
                if first.record.class_id == image.record.class_id
                else "contradictory_labels"
            )
            kind = (
                kind
                if first.record.split == image.record.split
                else "test_image_in_training"
            )
            faults.append(
                image.record.fault(
                    kind,
                    f"same pixels as {first.record.name}, which is of the class {first.record.class_id}",
                )
            )
    return list(seen.values())


def pixel_digest(pixels: np.ndarray) -> str:
    """Digest of an image's pixels, 16 hex digits."""
    return blake2b(pixels.tobytes(), digest_size=8).hexdigest()
