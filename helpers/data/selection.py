"""Choose training and test images of a study: seeded, per class, no image twice."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, normalize

from helpers.data.decode import Decoded
from helpers.data.sources import Fault

SPLITS = ("train", "test")
SYNTHETIC = "synthetic"  # the data source that is rendered
_AT_A_TIME = 1024  # training images that are compared
_THUMBNAIL = 16  # side, pixels
# Correlation of the thumbnails of two images from which on they are one photograph; no
# pair of 5,000 training and 5,999 test images of Tiny ImageNet reaches it.
_SAME_PHOTOGRAPH = 0.98
Splits = dict[str, list[Decoded]]  # images of "train" and "test"


@dataclass(frozen=True)
class Choice:
    """The parameters of notebook 01, which choose the images of a study."""

    data_source: str = "auto"  # a layout, "auto" to recognise it, or "synthetic"
    data_path: str = ""  # folder or .zip, relative to the project's root
    class_ids: Sequence[str] = ()  # in the order of their labels; empty for all
    image_size: int = 64  # side of the squares, pixels
    images_per_class: int = 0  # for training; 0 takes all
    test_images_per_class: int = 50  # 0 takes all that are not for training
    minimum_images_per_class: int = 2  # classes with fewer for training are left out
    data_seed: int = 0


def select(
    class_ids: Sequence[str],
    decoded: Sequence[Decoded],
    faults: list[Fault],
    choice: Choice,
) -> Splits:
    """Choose training and test images of the same classes.

    Where a training image has a box, only those with one are trained on. Random numbers
    are seeded by class, so that the images of a class do not depend on other classes. A
    source without test images has some of its training images held out for the test. A
    class without a test image is left out of training as well, unless no class has one:
    a gap compares accuracies over the same classes. Training images that show the
    photograph of a held-out test image are left out.

    Args:
        class_ids: classes in the order of their labels.
        decoded: all images of these classes.
        faults: a list, to which the faults of what is left out are appended.
        choice: numbers of images per class, and the seed.

    Returns:
        Images of "train" and of "test", class by class.
    """
    pools = defaultdict(list)  # by class and split
    for image in _without_copies(decoded, faults):
        pools[image.record.class_id, image.record.split].append(image)
    needs_boxes = any(image.boxes for image in decoded if image.record.split == "train")
    hold_out = not any(image.record.split == "test" for image in decoded)
    chosen = {}  # by class, images of both splits
    for class_id in class_ids:
        fitting = pools[class_id, "train"]
        usable = [image for image in fitting if image.boxes or not needs_boxes]
        splits = _draw_class(class_id, usable, pools, hold_out, choice)
        count = len(splits["train"])
        if count < choice.minimum_images_per_class:
            detail = f"{count}{' with a box' if needs_boxes else ''}"
            kind = "class_with_too_few_images"
            faults.append(Fault("", kind, detail, class_id, "train"))
        else:
            chosen[class_id] = splits
    if choice.data_source != SYNTHETIC:
        copies = _copies_of_test(**_joined(chosen.values()))
        left_out = ", and is left out" if hold_out else ""
        for image, original in copies:
            detail = f"it shows the test image {original}{left_out}"
            faults.append(image.record.fault("copy_of_test_image", detail))
        # Where the source itself divides them, copies stay.
        for splits in chosen.values() if hold_out else ():
            splits["train"] = _without(splits["train"], [image for image, _ in copies])
    with_test = {name: splits for name, splits in chosen.items() if splits["test"]}
    for class_id, splits in chosen.items():
        if with_test and not splits["test"]:
            detail = f"its {len(splits['train'])} training images are left out too"
            kind = "class_without_test_images"
            faults.append(Fault("", kind, detail, class_id, "test"))
    return _joined((with_test or chosen).values())


def _joined(classes: Collection[Splits]) -> Splits:
    """Images of all classes, class by class."""
    return {
        split: [image for splits in classes for image in splits[split]]
        for split in SPLITS
    }


def _draw_class(
    class_id: str,
    usable: Sequence[Decoded],
    pools: Mapping[tuple[str, str], Sequence[Decoded]],
    hold_out: bool,
    choice: Choice,
) -> Splits:
    """Draw as many training and test images of a class as the choice asks for.

    Without images for test, they are held out of the usable ones for training. If the
    choice asks for 0 test images, all that are not drawn for training are for test.
    """
    draw = partial(_draw, class_id, choice.data_seed)
    asked = choice.test_images_per_class
    test = pools[class_id, "test"]
    if hold_out:
        # At most half of a class, so that a small class keeps training images.
        test = draw("hold out", usable, min(asked, len(usable) // 2))
        usable = _without(usable, test)
    training = draw("train", usable, choice.images_per_class or len(usable))
    if not asked:
        test = [*test, *_without(pools[class_id, "train"], training)]
    return {"train": training, "test": draw("test", test, asked or len(test))}


def _draw(
    class_id: str, seed: int, purpose: str, images: Sequence[Decoded], count: int
) -> list[Decoded]:
    """Draw images at random, and return them in their order.

    The draw depends on seed, class and purpose. A smaller count draws a subset of what
    a larger one draws.
    """
    digest = blake2b(f"{class_id}\0{purpose}".encode(), digest_size=16).digest()
    words = np.frombuffer(digest, dtype=np.uint32).tolist()
    order = np.random.default_rng([seed, *words]).permutation(len(images))
    return [images[index] for index in sorted(order[:count])]


def _without(images: Sequence[Decoded], others: Sequence[Decoded]) -> list[Decoded]:
    names = {image.record.name for image in others}
    return [image for image in images if image.record.name not in names]


def _copies_of_test(
    train: Sequence[Decoded], test: Sequence[Decoded]
) -> list[tuple[Decoded, str]]:
    """Find training images that show the photograph of a test image again.

    They do if their thumbnails, mirrored, turned by right angles or not, correlate by
    ``_SAME_PHOTOGRAPH``: whatever was saved anew, made lighter or smaller. Roboflow
    names its copies, also cut ones, after the photograph: ``NAME.rf.HASH.jpg``.

    Returns:
        Training images, with the name of the test image.
    """
    if not test:
        return []
    upright = _thumbnails(test)
    both = torch.cat([upright, upright.flip(-1)])
    turned = [both.rot90(turns, (1, 2)) for turns in range(4)]
    ways = normalize(torch.cat(turned).flatten(1))
    photographs = {_photograph(image): image.record.name for image in test}
    copies = []
    for start in range(0, len(train), _AT_A_TIME):
        images = train[start : start + _AT_A_TIME]
        thumbnails = normalize(_thumbnails(images).flatten(1))
        correlations, rows = (thumbnails @ ways.T).max(1)
        for image, correlation, row in zip(images, correlations, rows, strict=True):
            name = photographs.get(_photograph(image))
            if correlation >= _SAME_PHOTOGRAPH:
                name = test[int(row) % len(test)].record.name
            if name:
                copies.append((image, name))
    return copies


def _thumbnails(images: Sequence[Decoded]) -> Tensor:
    """(N, 16, 16) grey values less their mean."""
    small = []
    for image in images:
        grey = torch.from_numpy(image.pixels.mean(0, dtype=np.float32))
        small.append(adaptive_avg_pool2d(grey[None], _THUMBNAIL))
    thumbnails = torch.cat(small)
    return thumbnails - thumbnails.mean((1, 2), keepdim=True)


def _photograph(image: Decoded) -> tuple[str, str]:
    """Class and name of the photograph that Roboflow copied; else the image's own."""
    name, is_copy, _ = image.record.name.rpartition(".rf.")
    if not is_copy:
        return "", image.record.name
    return image.record.class_id, name.rpartition("/")[2]


def _without_copies(decoded: Sequence[Decoded], faults: list[Fault]) -> list[Decoded]:
    """Leave out copies and unreadable images, and add the faults of all images.

    Of images with the same pixels the first stays: training images come before test
    images, and images of one split are in the order of their names.
    """
    first_of: dict[str, Decoded] = {}
    for image in sorted(
        decoded, key=lambda image: (image.record.split != "train", image.record.name)
    ):
        faults += [image.record.fault(kind, detail) for kind, detail in image.faults]
        if image.pixels is None:
            continue
        first = first_of.setdefault(pixel_digest(image.pixels), image).record
        kind = "duplicate_image"
        if first.class_id != image.record.class_id:
            kind = "contradictory_labels"
        if first.split != image.record.split:
            kind = "test_image_in_training"
        detail = f"same pixels as {first.name}, which is of the class {first.class_id}"
        if first.name != image.record.name:
            faults.append(image.record.fault(kind, detail))
    return list(first_of.values())


def pixel_digest(pixels: np.ndarray) -> str:
    """Digest of an image's pixels, 16 hex digits.

    Args:
        pixels: uint8, of any shape.

    Example:
        >>> pixel_digest(np.zeros((3, 2, 2), np.uint8))
        '24f29c3559b2b01f'
    """
    return blake2b(pixels.tobytes(), digest_size=8).hexdigest()
