"""Choose training and test images of a study: seeded, per class, no image twice."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, normalize

SPLITS = ("train", "test")
SYNTHETIC = "synthetic"  # the data source that is rendered
_AT_A_TIME = 1024  # training images that are compared
_THUMBNAIL = 16  # side, pixels
# Correlation of the thumbnails of two images from which on they are one photograph; no
# pair of 5,000 training and 5,999 test images of Tiny ImageNet reaches it.
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


def select(
    images: pd.DataFrame,
    class_ids: Sequence[str],
    choice: Choice,
    faults: list[pd.DataFrame],
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Choose training and test images of the same classes.

    Where a training image has a box, those without one are not trained on, nor held out
    for the test. Random numbers are seeded by class, so that the images of a class do
    not depend on other classes. A source without test images has some of its training
    images held out for the test. A class without a test image is left out of training
    as well, unless no class has one: a gap compares accuracies over the same classes.
    Training images that show the photograph of a held-out test image are left out.

    Args:
        images: all images of these classes, with the columns name, class_id, split,
            pixels, square_boxes and problems of ``decode_all``.
        class_ids: classes in the order of their labels.
        choice: numbers of images per class, and the seed.
        faults: a list, to which tables of what is left out are appended.

    Returns:
        Images with their splits, training before test, class by class; and how many
        training and test images the classes have.
    """
    hold_out = "test" not in {*images["split"]}
    images = _without_copies(images, faults)
    training = images.query("split == 'train'")
    test = images.drop(training.index)
    boxed = training[training["square_boxes"].astype(bool)]
    fitting = boxed if len(boxed) else training
    why = {"fault": "no_usable_box", "detail": "others have one: it is not trained on"}
    faults.append(training.drop(fitting.index).assign(**why))
    asked = choice.test_images_per_class
    draw = partial(_draw, seed=choice.data_seed)
    if hold_out:  # training and test images are of one kind, with boxes or without
        training = fitting
    if hold_out and asked:
        # At most half of a class, so that a small class keeps training images.
        test = draw(fitting, "hold out", asked, 0.5)
        fitting = fitting.drop(test.index)
    train = draw(fitting, "train", choice.images_per_class)
    if not asked:
        test = pd.concat([test, training.drop(train.index)])
    test = draw(test, "test", asked).assign(split="test")
    if choice.data_source != SYNTHETIC:
        shown = _copies_of_test(train, test)
        copies = train.loc[shown.index]
        if hold_out:  # where the source itself divides them, copies stay
            train = train.drop(copies.index)
            shown += ", and is left out"
        detail = "it shows the test image " + shown
        faults.append(copies.assign(fault="copy_of_test_image", detail=detail))
    return _of_enough(pd.concat([train, test]), class_ids, choice, faults)


def _of_enough(
    chosen: pd.DataFrame,
    class_ids: Sequence[str],
    choice: Choice,
    faults: list[pd.DataFrame],
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Images of the classes that have enough of them, and how many these have."""
    counts = pd.crosstab(chosen["class_id"], chosen["split"])
    counts = counts.reindex(index=class_ids, columns=SPLITS, fill_value=0)
    is_short = counts["train"] < choice.minimum_images_per_class
    is_short |= (counts["test"] == 0) & counts["test"].any()
    left_out = counts[is_short].reset_index()
    pairs = zip(left_out["train"], left_out["test"], strict=True)
    detail = [f"{train} images for training, {test} for test" for train, test in pairs]
    faults.append(left_out.assign(fault="class_left_out", detail=detail))
    counts = counts[~is_short]
    in_order = chosen.set_index("class_id").loc[counts.index].reset_index()
    in_order = in_order.sort_values("split", ascending=False, kind="stable")
    return in_order.reset_index(drop=True), counts


def _draw(
    images: pd.DataFrame, purpose: str, count: int, share: float = 1, *, seed: int
) -> pd.DataFrame:
    """Draw images of each class at random, and return them in their order.

    The draw depends on seed, class and purpose. A smaller count draws a subset of what
    a larger one draws; 0 draws all, and no class gives more than the share.
    """
    drawn = [images[:0]]
    for class_id, of_class in images.groupby("class_id"):
        digest = blake2b(f"{class_id}\0{purpose}".encode(), digest_size=16).digest()
        words = np.frombuffer(digest, dtype=np.uint32).tolist()
        order = np.random.default_rng([seed, *words]).permutation(len(of_class))
        most = int(share * len(order))
        drawn.append(of_class.iloc[np.sort(order[: min(count or most, most)])])
    return pd.concat(drawn)


def _without_copies(images: pd.DataFrame, faults: list[pd.DataFrame]) -> pd.DataFrame:
    """Leave out copies and unreadable images, and add the faults of all images.

    Of images with the same pixels the first stays: training images come before test
    images, and images of one split are in the order of their names.
    """
    images = images.sort_values(["split", "name"], ascending=[False, True])
    problems = images.explode("problems").dropna(subset="problems")
    words = problems["problems"].str
    faults.append(problems.assign(fault=words[0], detail=words[1]))
    images = images.dropna(subset="pixels")
    digests = images["pixels"].map(pixel_digest)
    is_copy = digests.duplicated()
    first = images.groupby(digests)[["name", "class_id"]].transform("first")
    is_of_class = first["class_id"] == images["class_id"]
    kinds = np.where(is_of_class, "duplicate_image", "contradictory_labels")
    detail = "same pixels as " + first["name"] + ", which is of the class "
    detail += first["class_id"]
    faults.append(images.assign(fault=kinds, detail=detail)[is_copy])
    return images[~is_copy]


def _copies_of_test(train: pd.DataFrame, test: pd.DataFrame) -> pd.Series:
    """Find training images that show the photograph of a test image again.

    They do if their thumbnails, mirrored, turned by right angles or not, correlate by
    ``_SAME_PHOTOGRAPH``: whatever was saved anew, made lighter or smaller. Roboflow
    names its copies, also cut ones, after the photograph: ``NAME.rf.HASH.jpg``.

    Returns:
        The name of the test image, by the index of training images.
    """
    if test.empty or train.empty:
        return test["name"][:0]
    upright = _thumbnails(test)
    both = torch.cat([upright, upright.flip(-1)])
    turned = torch.cat([both.rot90(turns, (1, 2)) for turns in range(4)])
    ways = normalize(turned.flatten(1)).T
    thumbnails = normalize(_thumbnails(train).flatten(1))
    best = [(part @ ways).max(1) for part in thumbnails.split(_AT_A_TIME)]
    correlations, rows = map(torch.cat, zip(*best, strict=True))
    nearest = test["name"].to_numpy()[rows % len(test)]
    is_copy = (correlations >= _SAME_PHOTOGRAPH).numpy()
    by_name = dict(zip(_photographs(test), test["name"], strict=True))
    shown = _photographs(train).fillna("").map(by_name)
    return shown.mask(is_copy, nearest).dropna()


def _photographs(images: pd.DataFrame) -> pd.Series:
    """Class and name of the photograph that Roboflow copied; NaN where it did not."""
    names = images["name"].str.extract(r"([^/]+)\.rf\.", expand=False)
    return images["class_id"] + "/" + names


def _thumbnails(images: pd.DataFrame) -> Tensor:
    """(N, 16, 16) grey values less their mean."""
    grey = [
        image.mean(0, keepdims=True, dtype=np.float32) for image in images["pixels"]
    ]
    small = [adaptive_avg_pool2d(torch.from_numpy(one), _THUMBNAIL) for one in grey]
    thumbnails = torch.cat(small)
    return thumbnails - thumbnails.mean((1, 2), keepdim=True)


def pixel_digest(pixels: np.ndarray) -> str:
    """Digest of an image's pixels, 16 hex digits.

    Args:
        pixels: uint8, of any shape.

    Example:
        >>> pixel_digest(np.zeros((3, 2, 2), np.uint8))
        '24f29c3559b2b01f'
    """
    return blake2b(pixels.tobytes(), digest_size=8).hexdigest()
