"""Intervals of the trade-off by a bootstrap of classes and of test images.

Both are drawn with replacement. All networks, steps and levels share the draws, so that
all differences are paired; everything is computed anew in each draw.
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
    along_axis,
    error_and_loss,
    six_statistics,
)
from helpers.statistics.correlate import percentile_interval


class Resample(NamedTuple):
    """Images and classes of each draw."""

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
        steps: number of classes of each step.
        draws: number of draws, B.
        seed: of the draws.

    Returns:
        The draws. A class without test images is never drawn.
    """
    labels = np.asarray(labels)
    random = np.random.default_rng(seed)
    images = np.zeros((len(labels), draws), dtype=np.float32)
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels == label)
        shares = np.full(len(of_class), 1 / len(of_class))
        images[of_class] = random.multinomial(len(of_class), shares, draws).T
    classes = {}
    drawn = np.empty((draws, 0), dtype=int)
    for low, high in pairwise([0, *sorted(steps)]):
        # Classes that this step adds and that have test images.
        added = np.intersect1d(labels, np.arange(low, high))
        block = random.choice(added, (draws, len(added)))
        drawn = np.concatenate([drawn, block], axis=1)
        classes[high] = drawn
    return Resample(labels, images, classes)


def bootstrap_statistics(
    predicted: NDArray[np.int16], steps: Sequence[int], draws: Resample
) -> Array:
    """The six statistics of each cell of a network in each draw.

    The errors of classes hold the noise of their images, and drawing images adds it a
    second time, which widens the spread between classes. The mean shift of the
    statistics that this causes is subtracted.

    Args:
        predicted: (steps, levels, N) predicted classes.
        steps: number of classes of each step.
        draws: of ``resample``.

    Returns:
        (steps, levels, B, 6), see ``CELL_STATISTICS``.
    """
    cells = predicted.shape[:2]
    statistics = np.empty((*cells, draws.images.shape[1], len(CELL_STATISTICS)))
    for step, count in enumerate(steps):
        is_tested = draws.labels < count
        labels = draws.labels[is_tested]
        weights = draws.images[is_tested]
        classes = draws.classes[count]
        for level, predictions in enumerate(predicted[step][:, is_tested]):
            drawn = error_and_loss(labels, predictions, count, weights)
            both_drawn = _of_drawn_classes(*drawn, classes)
            of_all_images = error_and_loss(labels, predictions, count)
            classes_drawn = _of_drawn_classes(*of_all_images, classes)
            shift = both_drawn.mean(0) - classes_drawn.mean(0)
            statistics[step, level] = both_drawn - shift
    return statistics


def _of_drawn_classes(error: Array, loss: Array, classes: NDArray[np.int64]) -> Array:
    """Six statistics over drawn classes (B, K): (K, B) or (K, 1) errors -> (B, 6)."""
    draws = np.arange(len(classes))[:, None] % error.shape[1]  # one column is of all
    return six_statistics(error[classes, draws], loss[classes, draws])


def bootstrap_grid(
    cells: pd.DataFrame,
    statistics: Mapping[str, Array],
    steps: Sequence[int],
    levels: Sequence[float],
) -> Array:
    """Draws of a family on the grid of ``statistics.cell_array``.

    Args:
        cells: of the family, with model and weights.
        statistics: of each network, see ``bootstrap_statistics``.
        steps: number of classes of each step, in the order of ``statistics``.
        levels: SSIM, in the order of ``statistics``.

    Returns:
        (S, U, W, B, 6), ascending; networks of equally many weights are averaged.
    """
    order = np.ix_(np.argsort(steps), np.argsort(levels))
    networks = cells.drop_duplicates("model").sort_values("weights")
    sizes = []
    for _, names in networks.groupby("weights")["model"]:
        mean = np.mean([statistics[name] for name in names], axis=0)
        sizes.append(mean[order])
    return np.stack(sizes).transpose(2, 1, 0, 3, 4)


def marginals_with_intervals(
    marginals: pd.DataFrame, grids: Array, classes: int
) -> pd.DataFrame:
    """Marginals with the ends of their 95 % intervals.

    Args:
        marginals: of a family, see ``statistics.marginals``.
        grids: (S, U, W, B, 6) of its draws, see ``bootstrap_grid``.
        classes: number of classes of the smallest step; no intervals below 8.

    Returns:
        ``<statistic>_low`` and ``<statistic>_high`` beside each statistic.
    """
    # (levels of all axes, B, 6)
    means = np.concatenate([along_axis(grids, axis) for axis in range(len(AXES))])
    columns = {}
    for number, name in enumerate(CELL_STATISTICS):
        ends = percentile_interval(means[..., number].T, classes)
        columns[f"{name}_low"], columns[f"{name}_high"] = ends
    return marginals.assign(**columns)
