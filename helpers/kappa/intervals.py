"""Intervals of the trade-off: classes and test images are drawn with replacement, alike for all networks, and everything is read anew."""

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
from helpers.kappa.tradeoff import BOUNDS, marginal_fits, trade_off_point
from helpers.statistics.draws import configuration_weights, percentile_interval

_FITTED = 60  # places along an axis at which the band of a fit is drawn


class Units(NamedTuple):
    """What was drawn: the same for every network, step of classes and level of noise, so that all differences are paired."""

    labels: NDArray[np.int64]  # (N,) true class of each test image
    images: Array  # (N, B) how often each image was drawn, within its class
    classes: dict[
        int, NDArray[np.int64]
    ]  # by the number of classes of a step: (B, K) the classes that were drawn


def drawn_units(
    labels: ArrayLike, steps: Sequence[int], draws: int, seed: int = 0
) -> Units:
    """Draw images within their class, and classes within those that one step adds to the next smaller one; none without test images."""
    true = np.asarray(labels)
    images = np.zeros((len(true), draws), dtype=np.float32)
    for name in np.unique(true):
        own = np.flatnonzero(true == name)
        images[own] = configuration_weights(
            np.arange(len(own)), draws, seed + 1 + int(name)
        ).T
    classes, parts, low = {}, [], 0
    for high in sorted(set(steps)):
        block = np.intersect1d(np.unique(true), np.arange(low, high))
        counts = configuration_weights(block, draws, seed + 1_000_000 + low).astype(
            np.int64
        )
        parts.append(
            np.repeat(np.tile(block, draws), counts.ravel()).reshape(draws, len(block))
        )
        classes[high], low = np.concatenate(parts, axis=1), high
    return Units(true, images, classes)


def drawn_statistics(
    predicted: NDArray[np.int16], steps: Sequence[int], units: Units
) -> Array:
    """The six statistics of each cell of a network in each draw: (steps, levels, N) predicted classes -> (steps, levels, B, 6).

    Drawing images adds their noise once more, which widens the spread between classes: the mean shift that this brings is taken out.
    """
    found = np.empty(
        (*predicted.shape[:2], units.images.shape[1], len(CELL_STATISTICS))
    )
    for step, count in enumerate(steps):
        tested, drawn = units.labels < count, units.classes[count]
        for level, labels in enumerate(predicted[step][:, tested]):
            shaken, still = (
                six_statistics(
                    *(
                        np.take_along_axis(
                            np.broadcast_to(values.T, (len(drawn), count)),
                            drawn,
                            axis=1,
                        )
                        for values in each
                    )
                )
                for each in (
                    error_and_loss(units.labels[tested], labels, count, weights)
                    for weights in (units.images[tested], ())
                )
            )
            found[step, level] = shaken - (shaken.mean(0) - still.mean(0))
    return found


def drawn_grid(
    cells: pd.DataFrame,
    drawn: Mapping[str, Array],
    steps: Sequence[int],
    levels: Sequence[float],
) -> Array:
    """The ``drawn_statistics`` of a family's networks on the grid of ``cell_array``: (S, U, W, B, 6); those of one size are averaged."""
    networks = (
        cells.drop_duplicates("model")
        .sort_values("weights")
        .groupby("weights")["model"]
    )
    order = np.ix_(np.argsort(steps), np.argsort(levels))
    sizes = [
        np.mean([drawn[name] for name in names], axis=0)[order] for _, names in networks
    ]
    return np.stack(sizes).transpose(2, 1, 0, 3, 4)


class Spread(NamedTuple):
    """What the draws say of one family."""

    points: pd.DataFrame  # a row per draw, see ``tradeoff.trade_off_point``
    marginals: (
        pd.DataFrame
    )  # axis, level, and low and high of the mean error and of the mean Kappa loss
    fits: pd.DataFrame  # the same for the fitted curves that give the bounds, at ``_FITTED`` places of each axis


def spread(
    levels: Sequence[Array], values: Array, drawn: Array, classes: int, strength: float
) -> Spread:
    """The trade-off point in every draw, with the marginals and the fits that its bounds are read from; no interval below 8 ``classes``."""
    places = [
        (np.geomspace if axis == "weights" else np.linspace)(*at[[0, -1]], _FITTED)
        for axis, at in zip(AXES, levels, strict=True)
    ]
    marginals = pd.DataFrame(
        {
            "axis": np.repeat(AXES, [len(at) for at in levels]),
            "level": np.concatenate(levels),
        }
    )
    fits = pd.DataFrame(
        {"axis": np.repeat(AXES, _FITTED), "level": np.concatenate(places)}
    )
    drawn = np.moveaxis(drawn, 3, 0)
    each = [marginal_fits(levels, draw) for draw in (values, *drawn)]
    for bound, name in BOUNDS.items():
        means = [
            np.concatenate(
                [
                    along_axis(draw[..., CELL_STATISTICS.index(name)], axis)
                    for axis in range(3)
                ]
            )
            for draw in drawn
        ]
        fits[name], *along = [
            np.concatenate([fit(at) for fit, at in zip(of[bound], places, strict=True)])
            for of in each
        ]
        for table, found in ((marginals, means), (fits, along)):
            table[f"{name}_low"], table[f"{name}_high"] = percentile_interval(
                found, classes
            )
    return Spread(
        pd.DataFrame([trade_off_point(levels, draw, strength) for draw in drawn]),
        marginals,
        fits,
    )
