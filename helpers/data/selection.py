"""Which images of a source a study takes: per class, seeded, no image twice."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from helpers.data.decode import Decoded
from helpers.data.sources import Fault

NO_TEST_IMAGES = "class_without_test_images"


@dataclass(frozen=True)
class Choice:
    """Which images of which source a study takes: the parameters of notebook 01."""

    data_source: str = "auto"  # a layout, "auto" to recognise it, or "synthetic"
    data_path: str = ""  # folder or .zip, relative to the project's root
    class_ids: Sequence[str] = ()  # in the order of their labels; none are all
    image_size: int = 64  # side of the squares, pixels
    images_per_class: int = 0  # for training; 0 takes all
    test_images_per_class: int = 50  # 0 takes all that training leaves
    minimum_images_per_class: int = 2  # classes with fewer are left out
    data_seed: int = 0

    def __post_init__(self) -> None:
        """Hold the classes as a list, whatever sequence they came in."""
        object.__setattr__(self, "class_ids", list(self.class_ids))


Pools = Mapping[tuple[str, str], list[Decoded]]  # by class and split


def select(
    class_ids: Sequence[str],
    decoded: Sequence[Decoded],
    boxed: bool,
    faults: list[Fault],
    choice: Choice,
) -> dict[str, list[Decoded]]:
    """Choose training and test images of the same classes.

    Per class and seeded by class, so that no other class makes a difference. A
    class without a test image is left out of training too where other classes have
    some: a gap compares accuracies over the same classes.

    Args:
        class_ids: classes in the order of their labels.
        decoded: all images of these classes.
        boxed: whether a training image needs a usable box.
        faults: receives what is left out.
        choice: how many of each class, and the seed.

    Returns:
        Images of "train" and of "test", class by class.
    """
    pools: dict[tuple[str, str], list[Decoded]] = defaultdict(list)
    for image in _without_copies(decoded, faults):
        pools[image.record.class_id, image.record.split].append(image)
    hold_out = not any(image.record.split == "test" for image in decoded)
    chosen = {}
    for class_id in class_ids:
        training, test = _of_class(class_id, pools, boxed, hold_out, choice)
        if len(training) < choice.minimum_images_per_class:
            detail = f"{len(training)}{' with a box' if boxed else ''}"
            faults.append(
                Fault("", "class_with_too_few_images", detail, class_id, "train")
            )
            continue
        chosen[class_id] = _limited(class_id, training, test, pools, choice)
        faults += _shortages(class_id, training, test, choice)
    chosen = _tested(chosen, faults)
    return {
        "train": [image for training, _ in chosen.values() for image in training],
        "test": [image for _, test in chosen.values() for image in test],
    }


def _of_class(
    class_id: str, pools: Pools, boxed: bool, hold_out: bool, choice: Choice
) -> tuple[list[Decoded], list[Decoded]]:
    """Images of a class that may be trained on, and those that may be tested on."""
    usable = [image for image in pools[class_id, "train"] if image.boxes or not boxed]
    if not hold_out:
        return usable, pools[class_id, "test"]
    # At most half of a class, so that a small class keeps training images.
    count = min(choice.test_images_per_class, len(usable) // 2)
    test = _choice(usable, count, choice.data_seed, class_id, "hold out")
    return _without(usable, test), test


def _limited(
    class_id: str,
    training: list[Decoded],
    test: list[Decoded],
    pools: Pools,
    choice: Choice,
) -> tuple[list[Decoded], list[Decoded]]:
    """As many images of a class as are asked for; 0 test images are all the rest."""
    seed = choice.data_seed
    count = choice.images_per_class or len(training)
    fitted = _choice(training, count, seed, class_id, "train")
    if choice.test_images_per_class:
        count = choice.test_images_per_class
    else:
        test = test + _without(pools[class_id, "train"], fitted)
        count = len(test)
    return fitted, _choice(test, count, seed, class_id, "test")


def _shortages(
    class_id: str,
    training: Sequence[Decoded],
    test: Sequence[Decoded],
    choice: Choice,
) -> list[Fault]:
    """A fault for each split that has fewer images of a class than are asked for."""
    counts = (
        ("test", "test", len(test), choice.test_images_per_class),
        ("train", "training", len(training), choice.images_per_class),
    )
    return [
        Fault(
            "",
            f"fewer_{kind}_images_than_asked",
            f"{count} of {asked}",
            class_id,
            split,
        )
        for split, kind, count, asked in counts
        if count < asked
    ]


def _tested(
    chosen: dict[str, tuple[list[Decoded], list[Decoded]]], faults: list[Fault]
) -> dict[str, tuple[list[Decoded], list[Decoded]]]:
    """The classes that have test images; all where none has, which is refused later."""
    tested = {class_id: images for class_id, images in chosen.items() if images[1]}
    if not tested:
        return chosen
    for class_id, (training, test) in chosen.items():
        if test:
            continue
        count = len(training)
        detail = f"its {count} training images are left out too"
        faults.append(Fault("", NO_TEST_IMAGES, detail, class_id, "test"))
    return tested


def _without(images: Sequence[Decoded], others: Sequence[Decoded]) -> list[Decoded]:
    names = {image.record.name for image in others}
    return [image for image in images if image.record.name not in names]


def _choice(
    images: Sequence[Decoded], count: int, seed: int, class_id: str, purpose: str
) -> list[Decoded]:
    """Take a seeded choice, in the order of names; fewer are a subset of more."""
    key = blake2b(f"{class_id}\0{purpose}".encode(), digest_size=16).digest()
    words = np.frombuffer(key, dtype=np.uint32).tolist()
    order = np.random.default_rng([seed, *words]).permutation(len(images))
    return [images[index] for index in sorted(order[:count])]


def _without_copies(decoded: Sequence[Decoded], faults: list[Fault]) -> list[Decoded]:
    """Keep the first of images with the same pixels, and note what is wrong with all.

    Training images come before test images, then the name decides.
    """
    first_of: dict[str, Decoded] = {}
    for image in sorted(decoded, key=_order):
        faults += [image.record.fault(*problem) for problem in image.faults]
        if image.pixels is None:
            continue
        first = first_of.setdefault(pixel_digest(image.pixels), image)
        if first is not image:
            faults.append(_copy_fault(image, first))
    return list(first_of.values())


def _order(image: Decoded) -> tuple[bool, str]:
    return image.record.split != "train", image.record.name


def _copy_fault(image: Decoded, first: Decoded) -> Fault:
    if first.record.split != image.record.split:
        kind = "test_image_in_training"
    elif first.record.class_id != image.record.class_id:
        kind = "contradictory_labels"
    else:
        kind = "duplicate_image"
    detail = (
        f"same pixels as {first.record.name}, which is of the class "
        f"{first.record.class_id}"
    )
    return image.record.fault(kind, detail)


def pixel_digest(pixels: np.ndarray) -> str:
    """Digest of an image's pixels, 16 hex digits.

    Args:
        pixels: uint8, of any shape.

    Example:
        >>> pixel_digest(np.zeros((3, 2, 2), np.uint8))
        '24f29c3559b2b01f'
    """
    return blake2b(pixels.tobytes(), digest_size=8).hexdigest()
