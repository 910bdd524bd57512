"""The grid of a family of networks, as it is and in a bootstrap.

Classes and test images are drawn with replacement. All networks, steps and levels
share the draws, so that all differences are paired; everything is computed anew in each
draw.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from helpers.kappa.statistics import (
    AXES,
    CELL_STATISTICS,
    Array,
    error_and_loss,
    six_statistics,
)


class Resample(NamedTuple):
    """Draws of test images and of classes."""

    labels: NDArray[np.int64]  # (N,) true class of each test image
    images: Array  # (N, B) how often each image is in a draw
    classes: dict[int, NDArray[np.int64]]  # (B, K) by the number of classes of a step


def resample(
    labels: ArrayLike, steps: Sequence[int], draws: int, seed: int = 0
) -> Resample:
    """Draw images within their class, and classes within their step.

    A step draws the classes that it adds to the next smaller step, so that the share of
    unseen classes is that of the study in each draw.

    Args:
        labels: (N,) classes of the test images, from 0 on.
        steps: number of classes of each step, ascending.
        draws: number of draws, B.
        seed: of the draws.

    Returns:
        The draws. A class without test images is never drawn.
    """
    labels = np.asarray(labels)
    random = np.random.default_rng(seed)
    images = np.zeros((len(labels), draws))
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels == label)
        shares = np.full(len(of_class), 1 / len(of_class))
        images[of_class] = random.multinomial(len(of_class), shares, draws).T
    classes = {}
    drawn = np.empty((draws, 0), dtype=int)
    for low, high in pairwise([0, *steps]):
        # Classes that this step adds and that have test images.
        added = np.intersect1d(labels, np.arange(low, high))
        block = random.choice(added, (draws, len(added)))
        drawn = np.concatenate([drawn, block], axis=1)
        classes[high] = drawn
    return Resample(labels, images, classes)


def statistics_in_draws(
    predicted: NDArray[np.int16], steps: Sequence[int], draws: Resample
) -> Array:
    """The six statistics of each cell of a network, as they are and in each draw.

    The errors of classes hold the noise of their images, and drawing images adds it a
    second time, which widens the spread between classes. The mean shift of the
    statistics that this causes is subtracted.

    Args:
        predicted: (steps, levels, N) predicted classes.
        steps: number of classes of each step.
        draws: of ``resample``.

    Returns:
        (steps, levels, 1 + B, 6), see ``CELL_STATISTICS``; first those of all images
        and classes.
    """
    count_of_draws = draws.images.shape[1]
    shape = (*predicted.shape[:2], 1 + count_of_draws, len(CELL_STATISTICS))
    statistics = np.empty(shape)
    for step, count in enumerate(steps):
        is_tested = draws.labels < count
        labels = draws.labels[is_tested]
        weights = draws.images[is_tested]
        classes = draws.classes[count]
        for level, predictions in enumerate(predicted[step][:, is_tested]):
            of_all_images = error_and_loss(labels, predictions, count)
            observed = _of_classes(*of_all_images, np.unique(labels)[None])
            classes_drawn = _of_classes(*of_all_images, classes)
            in_draws = error_and_loss(labels, predictions, count, weights)
            both_drawn = _of_classes(*in_draws, classes)
            shift = both_drawn.mean(0) - classes_drawn.mean(0)
            statistics[step, level] = np.concatenate([observed, both_drawn - shift])
    return statistics


def _of_classes(error: Array, loss: Array, classes: NDArray[np.int64]) -> Array:
    """Six statistics over drawn classes (B, K): (K, B) or (K, 1) errors -> (B, 6)."""
    draws = np.arange(len(classes))[:, None] % error.shape[1]  # one column is of all
    return six_statistics(error[classes, draws], loss[classes, draws])


def grid_of(
    cells: pd.DataFrame, statistics: Mapping[str, Array]
) -> tuple[list[Array], Array]:
    """The statistics of a family on its grid, the paper's 3DA, in each draw.

    Args:
        cells: of the family, see ``statistics.cells_of``.
        statistics: of each network, see ``statistics_in_draws``; steps and levels
            ascend.

    Returns:
        Ascending levels of each of ``AXES``, and (S, U, W, 1 + B, 6); networks of
        equally many weights are averaged.
    """
    sizes = []
    for _, names in cells.groupby("weights")["model"]:
        of_size = [statistics[name] for name in names.unique()]
        sizes.append(np.mean(of_size, axis=0))
    levels = [np.unique(cells[axis]).astype(float) for axis in AXES]
    return levels, np.stack(sizes).transpose(2, 1, 0, 3, 4)


def along_axis(values: Array, axis: int) -> Array:
    """Mean over the two others of the first three axes.

    Equation (5), which is a sum in print and a mean in the authors' code.

    Args:
        values: (S, U, W, ...).
        axis: 0, 1 or 2.

    Returns:
        (levels of the axis, ...).
    """
    others = tuple(other for other in range(3) if other != axis)
    return values.mean(axis=others)
