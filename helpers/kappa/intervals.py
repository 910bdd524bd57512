"""Intervals of the trade-off: classes and test images are drawn with replacement, alike for all networks, and everything is read anew."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from helpers.kappa.statistics import AXES, CELL_STATISTICS, _Array, error_and_loss, six_statistics
from helpers.kappa.tradeoff import (
    UNBOUNDED,
    Bounds,
    Surface,
    TradeoffPoint,
    along_axis,
    fit_surface,
    fitted,
    surface_of,
    trade_off_point,
)
from helpers.statistics.resampling import cell_weights, percentile_interval

_FITTED = 60  # places along an axis at which the band of a fit is drawn
_CURVES = ("error_mean", "kappa_loss_mean")


class Units(NamedTuple):
    """What was drawn: the same for every network, step of classes and level of noise, so that all differences are paired."""

    labels: NDArray[np.int64]  # (N,) true class of each test image
    images: _Array  # (N, B) how often each image was drawn, within its class
    classes: dict[int, NDArray[np.int64]]  # by the number of classes of a step: (B, K) the classes that were drawn


def drawn_units(labels: ArrayLike, steps: Sequence[int], draws: int, seed: int = 0) -> Units:
    """Draw images within their class, and classes within those that one step adds to the next smaller one.

    So the share of unseen classes of a step stays what it is. A class without test images is never drawn.

    Args:
        labels: (N,) true class of each test image; classes are numbered so that a step of K has those below K.
        steps: how many classes each step has.
        draws: number of draws.
        seed: of them.
    """
    true = np.asarray(labels)
    images = np.zeros((len(true), draws), dtype=np.float32)
    for name in np.unique(true):
        own = np.flatnonzero(true == name)
        images[own] = cell_weights(np.arange(len(own)), draws, seed + 1 + int(name)).T
    classes, parts, low = {}, [], 0
    for high in sorted(set(steps)):
        block = np.intersect1d(np.unique(true), np.arange(low, high))
        counts = cell_weights(block, draws, seed + 1_000_000 + low).astype(np.int64)
        parts.append(np.repeat(np.tile(block, draws), counts.ravel()).reshape(draws, len(block)))
        classes[high], low = np.concatenate(parts, axis=1), high
    return Units(true, images, classes)


def drawn_statistics(predicted: NDArray[np.int16], steps: Sequence[int], units: Units) -> _Array:
    """The six statistics of each cell of a network in each draw: (steps, levels, B, 6).

    Error and Kappa of a class are taken from the drawn images of all classes of the step; mean, deviation and percentile from the drawn
    classes. The images of a class are a sample already, and drawing them adds their noise once more, which widens the spread between
    classes: the mean shift that this brings is taken out.

    Args:
        predicted: (steps, levels, N) class that each image was taken for, see ``probing.probe_member``.
        steps: how many classes each step has.
        units: see ``drawn_units``.
    """
    found = np.empty((*predicted.shape[:2], units.images.shape[1], len(CELL_STATISTICS)))
    for number, count in enumerate(steps):
        tested, drawn = np.flatnonzero(units.labels < count), units.classes[count]
        for level, labels in enumerate(predicted[number][:, tested]):
            shaken = six_statistics(*_of_classes(units.labels[tested], labels, units.images[tested], drawn))
            still = six_statistics(*_of_classes(units.labels[tested], labels, np.ones((len(tested), 1)), drawn))
            found[number, level] = shaken - (shaken.mean(0) - still.mean(0))
    return found


def _of_classes(true: NDArray, predicted: NDArray, weights: _Array, drawn: NDArray[np.int64]) -> tuple[_Array, _Array]:
    """Error and Kappa loss of the drawn classes (B, K), from images with weights (n, B), or (n, 1) where they are the same in all draws."""
    count, right = int(drawn.max()) + 1, np.flatnonzero(predicted == true)
    found = error_and_loss(_summed(true, weights, count, right), _summed(true, weights, count), _summed(predicted, weights, count))
    return tuple(np.take_along_axis(np.broadcast_to(values.T, (len(drawn), count)), drawn, axis=1) for values in found)


def _summed(classes: NDArray, weights: _Array, count: int, kept: NDArray[np.intp] | None = None) -> _Array:
    """Weights (n, B) summed by class: (count, B); of the images ``kept``, or of all."""
    kept = np.arange(len(classes)) if kept is None else kept
    of = csr_array((np.ones(len(kept), dtype=weights.dtype), (classes[kept], kept)), shape=(count, len(classes)))
    return (of @ weights).astype(float)


def drawn_grid(cells: pd.DataFrame, drawn: Mapping[str, _Array], steps: Sequence[int], levels: Sequence[float]) -> _Array:
    """Lay the draws of a family's networks out as ``statistics.cell_array`` does: (S, U, W, B, 6), ascending in each axis.

    Args:
        cells: one row per network, SSIM and unseen fraction, see ``probing.cells``; networks with equally many weights are averaged.
        drawn: by network, see ``drawn_statistics``.
        steps: how many classes each step has.
        levels: SSIM of each level.
    """
    networks = cells.drop_duplicates("model").sort_values("weights").groupby("weights")["model"]
    order = np.ix_(np.argsort(steps), np.argsort(levels))
    sizes = [np.mean([drawn[name] for name in names], axis=0)[order] for _, names in networks]
    return np.stack(sizes).transpose(2, 1, 0, 3, 4)


class Spread(NamedTuple):
    """What the draws say of one family."""

    points: pd.DataFrame  # a row per draw: ``AXES``, F, and ``readings``
    marginals: pd.DataFrame  # axis, level, and low and high of the mean error and of the mean Kappa loss
    fits: pd.DataFrame  # likewise of what the bounds are read from, at many levels of each axis, with the fits themselves


def readings(point: TradeoffPoint) -> dict[str, float]:
    """Both bounds of a point: the mean of its three readings, and each reading along an axis."""
    found = {}
    for name in ("generalization_bound", "diversity_bound"):
        bound = getattr(point, name)
        found |= {name: bound.mean} | {f"{name}_by_{axis}": getattr(bound, axis) for axis in AXES}
    return found


def spread(cells: pd.DataFrame, drawn: _Array, strength: float = 1.0, bounds: Bounds = UNBOUNDED) -> Spread:
    """Find the trade-off point in every draw, with the marginals and the fits that its bounds are read from.

    Args:
        cells: of one family, see ``tradeoff.fit_surface``; with fewer than ``resampling.FEWEST_CELLS`` classes there are no intervals.
        drawn: (S, U, W, B, 6), see ``drawn_grid``.
        strength: lambda.
        bounds: as of the point.
    """
    observed, classes = fit_surface(cells), int(cells["classes"].min())
    levels, rows, along = observed.levels, [], []
    places = [(np.geomspace if axis == "weights" else np.linspace)(*at[[0, -1]], _FITTED) for axis, at in zip(AXES, levels, strict=True)]
    for values in np.moveaxis(drawn, 3, 0):
        surface = surface_of(levels, values)
        point = trade_off_point(surface, strength, bounds)
        rows.append({**{axis: getattr(point, axis) for axis in AXES}, "F": point.F, **readings(point)})
        along.append(_fitted(surface, places))
    means = [[along_axis(drawn[..., place], axis) for axis in range(3)] for place in (0, 3)]
    marginals = pd.DataFrame({"axis": np.repeat(AXES, [len(at) for at in levels]), "level": np.concatenate(levels)})
    fits = pd.DataFrame({"axis": np.repeat(AXES, _FITTED), "level": np.concatenate(places)})
    for line, name in enumerate(_CURVES):
        ends = percentile_interval(np.concatenate(means[line]).T, classes)
        marginals[f"{name}_low"], marginals[f"{name}_high"] = ends
        fits[name] = _fitted(observed, places)[line]
        fits[f"{name}_low"], fits[f"{name}_high"] = percentile_interval(np.array(along)[:, line], classes)
    return Spread(pd.DataFrame(rows), marginals, fits)


def _fitted(surface: Surface, places: Sequence[_Array]) -> list[_Array]:
    """Fits of error and Kappa loss at places along the axes, one after the other."""
    each = (surface.error_fits, surface.kappa_fits)
    return [np.concatenate([fitted(*given) * np.ones(_FITTED) for given in zip(AXES, fits, places, strict=True)]) for fits in each]
