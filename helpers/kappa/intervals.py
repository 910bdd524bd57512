"""Intervals of the trade-off by a bootstrap of classes and of test images.

Both are drawn with replacement. All networks, steps and levels share the draws, so that
all differences are paired; everything is computed anew in each draw.
"""

from collections.abc import Mapping, Sequence
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
from helpers.kappa.tradeoff import trade_off_point
from helpers.statistics.correlate import percentile_interval, unit_weights

# Added to the seed, so that draws of classes and of images are independent.
_OF_IMAGES = 1
_OF_CLASSES = 1_000_000


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
    images = np.zeros((len(labels), draws), dtype=np.float32)
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels == label)
        counts = unit_weights(of_class, draws, seed + _OF_IMAGES + int(label))
        images[of_class] = counts.T
    classes = {}
    blocks = []
    low = 0
    for high in sorted(set(steps)):
        # Classes that this step adds and that have test images.
        added = np.intersect1d(np.unique(labels), np.arange(low, high))
        counts = unit_weights(added, draws, seed + _OF_CLASSES + low)
        # Each class as often as it is drawn, draw by draw: (draws, len(added)).
        repeats = counts.astype(np.int64).ravel()
        block = np.repeat(np.tile(added, draws), repeats)
        blocks.append(block.reshape(draws, len(added)))
        classes[high] = np.concatenate(blocks, axis=1)
        low = high
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
            errors, losses = error_and_loss(labels, predictions, count, weights)
            both_drawn = _statistics_of_drawn_classes(errors, losses, classes)
            errors, losses = error_and_loss(labels, predictions, count)  # of all images
            classes_drawn = _statistics_of_drawn_classes(errors, losses, classes)
            shift = both_drawn.mean(0) - classes_drawn.mean(0)
            statistics[step, level] = both_drawn - shift
    return statistics


def _statistics_of_drawn_classes(
    error: Array, loss: Array, classes: NDArray[np.int64]
) -> Array:
    """Six statistics over drawn classes (B, K): (K, B) or (K, 1) errors -> (B, 6)."""
    shape = (len(classes), len(error))
    drawn_error = np.take_along_axis(np.broadcast_to(error.T, shape), classes, axis=1)
    drawn_loss = np.take_along_axis(np.broadcast_to(loss.T, shape), classes, axis=1)
    return six_statistics(drawn_error, drawn_loss)


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


class Spread(NamedTuple):
    """Trade-off of one family in all draws.

    Attributes:
        points: a row per draw, see ``tradeoff.trade_off_point``.
        marginals: axis, level, and ends of the 95 % interval of each statistic.
    """

    points: pd.DataFrame
    marginals: pd.DataFrame


def spread(
    levels: Sequence[Array], grids: Array, classes: int, strength: float
) -> Spread:
    """The trade-off point in each draw, and intervals of the marginals.

    Args:
        levels: of each axis, see ``statistics.cell_array``.
        grids: (S, U, W, B, 6) of the draws, see ``bootstrap_grid``.
        classes: number of classes of the smallest step; no intervals below 8.
        strength: lambda, see ``tradeoff.trade_off_point``.
    """
    draws = np.moveaxis(grids, 3, 0)
    points = [trade_off_point(levels, draw, strength) for draw in draws]
    axes = np.repeat(AXES, [len(of_axis) for of_axis in levels])
    marginals = pd.DataFrame({"axis": axes, "level": np.concatenate(levels)})
    # (levels of all axes, B, 6)
    means = np.concatenate([along_axis(grids, axis) for axis in range(len(AXES))])
    for number, name in enumerate(CELL_STATISTICS):
        low, high = percentile_interval(means[..., number].T, classes)
        marginals[f"{name}_low"] = low
        marginals[f"{name}_high"] = high
    return Spread(pd.DataFrame(points), marginals)
