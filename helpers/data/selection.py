"""Choose training and test images of a study: seeded, per class, no image twice."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, normalize

from helpers.data.decode import Decoded
from helpers.data.sources import Fault

NO_TEST_IMAGES = "class_without_test_images"
SYNTHETIC = "synthetic"  # the data source that is rendered
_AT_A_TIME = 1024  # training images that are compared
_THUMBNAIL = 16  # side, pixels
# Correlation of the thumbnails of two images from which on they are one photograph. Of
# Tiny ImageNet's images no two distinct ones reach 0.97.
_SAME_PHOTOGRAPH = 0.98


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

    def __post_init__(self) -> None:
        """Turn the classes into a list, so that equal choices are equal."""
        object.__setattr__(self, "class_ids", list(self.class_ids))


Pools = Mapping[tuple[str, str], list[Decoded]]  # by class and split, empty if absent


def select(
    class_ids: Sequence[str],
    decoded: Sequence[Decoded],
    needs_boxes: bool,
    faults: list[Fault],
    choice: Choice,
) -> dict[str, list[Decoded]]:
    """Choose training and test images of the same classes.

    Random numbers are seeded by class, so that the images of a class do not depend on
    other classes. A source without test images has some of its training images held out
    for the test. A class without a test image is left out of training as well, unless
    no class has one: a gap compares accuracies over the same classes. Training images
    that show the photograph of a held-out test image are left out.

    Args:
        class_ids: classes in the order of their labels.
        decoded: all images of these classes.
        needs_boxes: whether a training image needs a usable box.
        faults: a list, to which the faults of what is left out are appended.
        choice: numbers of images per class, and the seed.

    Returns:
        Images of "train" and of "test", class by class.
    """
    pools: dict[tuple[str, str], list[Decoded]] = defaultdict(list)
    for image in _without_copies(decoded, faults):
        pools[image.record.class_id, image.record.split].append(image)
    hold_out = not any(image.record.split == "test" for image in decoded)
    chosen = {}  # class id: (training, test)
    for class_id in class_ids:
        training, test = _usable_images(class_id, pools, needs_boxes, hold_out, choice)
        if len(training) < choice.minimum_images_per_class:
            detail = f"{len(training)}{' with a box' if needs_boxes else ''}"
            faults.append(
                Fault("", "class_with_too_few_images", detail, class_id, "train")
            )
            continue
        chosen[class_id] = _requested_number(class_id, training, test, pools, choice)
        faults += _shortages(class_id, *chosen[class_id], choice)
    if choice.data_source != SYNTHETIC:
        _tell_copies_of_test(chosen, faults, hold_out)
    _leave_out_without_test(chosen, faults)
    return {
        "train": [image for training, _ in chosen.values() for image in training],
        "test": [image for _, test in chosen.values() for image in test],
    }


def _tell_copies_of_test(
    chosen: dict[str, tuple[list[Decoded], list[Decoded]]],
    faults: list[Fault],
    hold_out: bool,
) -> None:
    """Make a fault of each training image that shows a test image.

    With ``hold_out`` they are left out: the source itself does not divide them.
    """
    copies = copies_of_test(
        [image for training, _ in chosen.values() for image in training],
        [image for _, test in chosen.values() for image in test],
    )
    left_out = ", and is left out" if hold_out else ""
    for class_id, (training, test) in chosen.items():
        for image in training:
            name = copies.get(image.record.name)
            if name:
                detail = f"it shows the test image {name}{left_out}"
                faults.append(image.record.fault("copy_of_test_image", detail))
        if hold_out and copies:
            others = [image for image in training if image.record.name not in copies]
            chosen[class_id] = others, test


def copies_of_test(
    training: Sequence[Decoded], test: Sequence[Decoded]
) -> dict[str, str]:
    """Find training images that show the photograph of a test image again.

    They do if their thumbnails, mirrored or not, correlate by ``_SAME_PHOTOGRAPH``:
    whatever was saved anew, made lighter or smaller. Roboflow names its copies, also
    turned and cut ones, after the photograph: ``NAME.rf.HASH.jpg``.

    Args:
        training: images with pixels.
        test: images with pixels.

    Returns:
        Name of the test image by the name of the training image.
    """
    if not training or not test:
        return {}
    upright = _thumbnails(test)
    both_ways = normalize(torch.cat([upright, upright.flip(-1)]).flatten(1))
    photographs = {_photograph(image): image.record.name for image in test}
    photographs.pop("", None)
    copies = {}
    for start in range(0, len(training), _AT_A_TIME):
        images = training[start : start + _AT_A_TIME]
        thumbnails = normalize(_thumbnails(images).flatten(1))
        correlations, rows = (thumbnails @ both_ways.T).max(1)
        for image, correlation, row in zip(images, correlations, rows, strict=True):
            name = photographs.get(_photograph(image))
            if correlation >= _SAME_PHOTOGRAPH:
                name = test[int(row) % len(test)].record.name
            if name:
                copies[image.record.name] = name
    return copies


def _thumbnails(images: Sequence[Decoded]) -> Tensor:
    """(N, 16, 16) grey values less their mean."""
    grey = [image.pixels.mean(0, dtype=np.float32) for image in images]
    small = [
        adaptive_avg_pool2d(torch.from_numpy(pixels)[None], _THUMBNAIL)
        for pixels in grey
    ]
    thumbnails = torch.cat(small)
    return thumbnails - thumbnails.mean((1, 2), keepdim=True)


def _photograph(image: Decoded) -> str:
    """Class and name of the photograph that Roboflow copied; "" for no such copy."""
    name, is_copy, _ = image.record.name.rpartition(".rf.")
    return f"{image.record.class_id}/{name.rpartition('/')[2]}" if is_copy else ""


def _usable_images(
    class_id: str, pools: Pools, needs_boxes: bool, hold_out: bool, choice: Choice
) -> tuple[list[Decoded], list[Decoded]]:
    """Images of a class from which training and test images are drawn.

    With ``hold_out`` the test images are drawn here, from those for training.
    """
    usable = [
        image for image in pools[class_id, "train"] if image.boxes or not needs_boxes
    ]
    if not hold_out:
        return usable, pools[class_id, "test"]
    # At most half of a class, so that a small class keeps training images.
    count = min(choice.test_images_per_class, len(usable) // 2)
    test = _draw(usable, count, choice.data_seed, class_id, "hold out")
    return _without(usable, test), test


def _requested_number(
    class_id: str,
    training: list[Decoded],
    test: list[Decoded],
    pools: Pools,
    choice: Choice,
) -> tuple[list[Decoded], list[Decoded]]:
    """Draw as many training and test images of a class as the choice asks for.

    If it asks for 0 test images, all that are not drawn for training are for test.
    """
    seed = choice.data_seed
    train_count = choice.images_per_class or len(training)
    drawn_for_training = _draw(training, train_count, seed, class_id, "train")
    test_count = choice.test_images_per_class
    if not test_count:
        test = test + _without(pools[class_id, "train"], drawn_for_training)
        test_count = len(test)
    return drawn_for_training, _draw(test, test_count, seed, class_id, "test")


def _shortages(
    class_id: str,
    training: Sequence[Decoded],
    test: Sequence[Decoded],
    choice: Choice,
) -> list[Fault]:
    """Make a fault for each split with fewer images of a class than are asked for."""
    faults = []
    for split, word, images, asked in (
        ("test", "test", test, choice.test_images_per_class),
        ("train", "training", training, choice.images_per_class),
    ):
        if len(images) < asked:
            kind = f"fewer_{word}_images_than_asked"
            detail = f"{len(images)} of {asked}"
            faults.append(Fault("", kind, detail, class_id, split))
    return faults


def _leave_out_without_test(
    chosen: dict[str, tuple[list[Decoded], list[Decoded]]], faults: list[Fault]
) -> None:
    """Leave out classes without test images, unless no class has any.

    A source without any test image is refused by the caller.
    """
    without_test = [class_id for class_id, (_, test) in chosen.items() if not test]
    if len(without_test) == len(chosen):
        return
    for class_id in without_test:
        training, _ = chosen.pop(class_id)
        detail = f"its {len(training)} training images are left out too"
        faults.append(Fault("", NO_TEST_IMAGES, detail, class_id, "test"))


def _without(images: Sequence[Decoded], others: Sequence[Decoded]) -> list[Decoded]:
    names = {image.record.name for image in others}
    return [image for image in images if image.record.name not in names]


def _draw(
    images: Sequence[Decoded], count: int, seed: int, class_id: str, purpose: str
) -> list[Decoded]:
    """Draw images at random, and return them in their order.

    The draw depends on seed, class and purpose. A smaller count draws a subset of what
    a larger one draws.
    """
    digest = blake2b(f"{class_id}\0{purpose}".encode(), digest_size=16).digest()
    words = np.frombuffer(digest, dtype=np.uint32).tolist()
    order = np.random.default_rng([seed, *words]).permutation(len(images))
    return [images[index] for index in sorted(order[:count])]


def _without_copies(decoded: Sequence[Decoded], faults: list[Fault]) -> list[Decoded]:
    """Leave out copies and unreadable images, and add the faults of all images.

    Of images with the same pixels the first stays: training images come before test
    images, and images of one split are in the order of their names.
    """
    first_of: dict[str, Decoded] = {}
    for image in sorted(decoded, key=_training_first):
        faults += [image.record.fault(kind, detail) for kind, detail in image.faults]
        if image.pixels is None:
            continue
        first = first_of.setdefault(pixel_digest(image.pixels), image)
        if first is not image:
            faults.append(_copy_fault(image, first))
    return list(first_of.values())


def _training_first(image: Decoded) -> tuple[bool, str]:
    """Key that sorts training images before test images, then by name."""
    return image.record.split != "train", image.record.name


def _copy_fault(image: Decoded, first: Decoded) -> Fault:
    """Make a fault of an image that has the pixels of an earlier one."""
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
