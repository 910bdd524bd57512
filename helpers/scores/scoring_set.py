"""The images that every model is scored on: those that all runs were fitted to."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from helpers.data.images import ImageSet, StudyData
from helpers.training.config import RunConfig, config_from, rows_of_run

FEWEST_PER_CLASS = 10  # images of a class that all runs must share
# Fields of a run's configuration that decide which training images it is fitted to.
_DECISIVE = ["images_per_class", "seed", "rule3_split", "holdout_fraction"]


@dataclass(frozen=True)
class ScoringSet:
    """Training images that models are scored on; slow measures take the first ones.

    Attributes:
        rows: row numbers of the study's training images.
        name: number and digest of the images, part of the cache keys of scores.
        shared: number of images that all runs were fitted to, of which ``rows`` are the
            first ones in a random order.
    """

    rows: tuple[int, ...]
    name: str
    shared: int

    def images_of(self, data: StudyData) -> ImageSet:
        """The images, with the labels of the data set.

        Args:
            data: of the study.
        """
        return data.train.subset(self.rows)


def classes_in_turn(labels: ArrayLike) -> NDArray[np.int64]:
    """An order of images that takes one of each class in turn.

    Args:
        labels: (N,).

    Returns:
        (N,) indices. Of the first n, classes that have more images left differ in their
        number of images by at most one.

    Example:
        >>> classes_in_turn([0, 0, 0, 1, 1])
        array([0, 3, 1, 4, 2])
    """
    labels = pd.Series(np.asarray(labels))
    number_in_class = labels.groupby(labels).cumcount()
    return np.argsort(number_in_class.to_numpy(), kind="stable")


def shared_images(runs: Iterable[RunConfig], data: StudyData) -> NDArray[np.int64]:
    """Training images that all runs are fitted to.

    Args:
        runs: of one study, before or after they are trained.
        data: the study's images.

    Returns:
        Ascending rows of the training images; all of them for no runs.

    Raises:
        ValueError: for fewer than ``FEWEST_PER_CLASS`` such images of a class.
    """
    decisive = attrgetter(*_DECISIVE)
    distinct = {decisive(run): run for run in runs}
    shared = np.arange(len(data.train))
    for run in distinct.values():
        shared = np.intersect1d(shared, rows_of_run(data.train.labels, run)[0])
    labels = data.train.labels.numpy()[shared]
    counts = np.bincount(labels, minlength=len(data.classes))
    if counts.min(initial=len(data.train)) < FEWEST_PER_CLASS:
        fewest = data.classes["class_id"].iloc[int(counts.argmin())]
        raise ValueError(
            f"all runs of this study together are fitted to {counts.min()} images of "
            f"the class {fewest}; at least {FEWEST_PER_CLASS} of every class are "
            "needed. Give the runs more (images_per_class of 01, training_sizes of 02),"
            " or leave out such classes (minimum_images_per_class of 01)"
        )
    return shared


def scoring_set(
    catalogue: pd.DataFrame, data: StudyData, images: int = 0
) -> ScoringSet:
    """Random images that all runs of a catalogue were fitted to, classes in turn.

    Args:
        catalogue: all models of the study.
        data: the study's images, whose fingerprint is the seed of the order.
        images: number of images; 0 takes all.

    Returns:
        The images, see ``ScoringSet``.

    Raises:
        ValueError: for too few ``images``, and as ``shared_images`` does.
    """
    if 0 < images < len(data.classes):
        raise ValueError(
            f"scored_images is {images}, and the study has {len(data.classes)} "
            f"classes; take at least one image of each, or 0 for all that are shared"
        )
    rows = catalogue[catalogue["snapshot"] != "none"]
    shared = shared_images(map(config_from, rows.to_dict("records")), data)
    labels = data.train.labels.numpy()
    random = np.random.default_rng(int.from_bytes(_digest(data.fingerprint)))
    shuffled = random.permutation(len(data.train))
    shuffled = shuffled[np.isin(shuffled, shared)]
    in_turn = shuffled[classes_in_turn(labels[shuffled])]
    rows = tuple(in_turn[: images or None].tolist())
    name = _digest(data.fingerprint, *(data.train.names[row] for row in rows)).hex()
    return ScoringSet(rows, f"{len(rows)}-{name}", len(shared))


def _digest(*words: str) -> bytes:
    return hashlib.blake2b("\n".join(words).encode(), digest_size=4).digest()
