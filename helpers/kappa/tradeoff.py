"""The grid of a family of networks, in draws too, and its trade-off point.

Classes and test images are drawn with replacement. All networks, steps and levels
share the draws, so that all differences are paired; everything is computed anew in each
draw. The trade-off point is the setting that combines a low error with much noise, many
unseen classes and few weights; Huang, Yu and Zhang 2025, equation (4).
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.polynomial import Polynomial
from numpy.typing import ArrayLike, NDArray
from scipy.interpolate import RegularGridInterpolator

from helpers.kappa.statistics import (
    AXES,
    CELL_STATISTICS,
    Array,
    error_and_loss,
    six_statistics,
)
from helpers.statistics.correlate import percentile_interval
from helpers.statistics.published import published_table

# Each bound is the value at the point of curves fitted to the marginals of a statistic.
BOUNDS = {
    "generalization_bound": "error_mean",
    "diversity_bound": "kappa_loss_mean",
}
_WEIGHTS = AXES.index("weights")
_TIE = 1e-9  # too small to move a point, large enough to choose among equal ones
# The search for the lowest point: samples between neighbouring levels; from the best of
# them it descends in steps that shrink by a factor.
_SAMPLES = 4
_STEPS = 36
_SHRINKING = 0.6
_NEIGHBOURS = np.array([*product((0, -1, 1), repeat=3)])


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
        cells: of the family, see ``cells_of``.
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


def marginals(levels: Sequence[Array], grid: Array, classes: int) -> pd.DataFrame:
    """Each statistic averaged over the two other axes; equation (5).

    Args:
        levels: of each axis, see ``grid_of``.
        grid: (S, U, W, 1 + B, 6), the first as it is and then in draws.
        classes: number of classes of the smallest step; no intervals below 8.

    Returns:
        A row per axis and level with ``CELL_STATISTICS``, and the ends of their 95 %
        intervals in ``<statistic>_low`` and ``<statistic>_high``.
    """
    rows = []
    for number, axis in enumerate(AXES):
        means = along_axis(grid, number)  # (levels, 1 + B, 6)
        for level, values in zip(levels[number], means, strict=True):
            low, high = percentile_interval(values[1:], classes)
            row = {"axis": axis, "level": level}
            for ending, ends in {"": values[0], "_low": low, "_high": high}.items():
                row |= pd.Series(ends, CELL_STATISTICS).add_suffix(ending)
            rows.append(row)
    return pd.DataFrame(rows)


def bounds_at(
    levels: Sequence[Array], values: Array, place: Sequence[float]
) -> dict[str, float]:
    """Each of ``BOUNDS`` at a place: its readings along the axes, and their mean.

    A reading is of a polynomial in SSIM, unseen fraction or log weights, fitted to the
    marginal: of degree 1 for two and three levels, 2 for more.

    Args:
        levels: of each axis, see ``grid_of``.
        values: (S, U, W, 6).
        place: a value of each axis.
    """
    bounds = {}
    for bound, name in BOUNDS.items():
        statistic = values[..., CELL_STATISTICS.index(name)]
        readings = {}
        for number, (axis, of_axis) in enumerate(zip(AXES, levels, strict=True)):
            scale = np.log if number == _WEIGHTS else np.asarray
            degree = min(2, len(of_axis) // 2)
            fit = Polynomial.fit(scale(of_axis), along_axis(statistic, number), degree)
            readings[f"{bound}_by_{axis}"] = float(fit(scale(place[number])))
        bounds[bound] = float(np.mean(list(readings.values())))
        bounds |= readings
    return bounds


def trade_off_point(
    levels: Sequence[Array], values: Array, strength: float = 1.0
) -> dict[str, float]:
    """The point of least ``F + lambda (x² + y² + z²)``.

    Huang et al. 2025, equations (3) and (4). F is the sum of the six statistics, linear
    between neighbouring levels; x = SSIM, y = 1 - unseen fraction, z = (weights -
    smallest) / (largest - smallest), 0 for one size. The paper also varies upper limits
    c of x, y and z; its optimum has c = (x, y, z).

    Args:
        levels: of each axis, see ``grid_of``.
        values: (S, U, W, 6).
        strength: lambda.

    Returns:
        The point by ``AXES``, ``F`` there, and each of ``BOUNDS``, the mean of its
        readings ``<bound>_by_<axis>`` from the three axes.

    Raises:
        ValueError: where a cell is missing or undefined.
    """
    total = values.sum(axis=-1)
    if not np.isfinite(total).all():
        raise ValueError(
            f"{np.isnan(total).sum()} of {total.size} cells of a family are missing or "
            "undefined; give each class test images, and each network all cells"
        )
    surface = RegularGridInterpolator(levels, total)
    smallest = levels[_WEIGHTS][0]
    span = np.ptp(levels[_WEIGHTS]) or 1.0

    def objective(points: Array) -> Array:
        ssim, unseen, weights = np.moveaxis(points, -1, 0)
        xyz = np.stack([ssim, 1 - unseen, (weights - smallest) / span])
        # Of equal points that of most noise, most unseen classes and fewest weights.
        return surface(points) + strength * (xyz**2).sum(0) + _TIE * xyz.sum(0)

    point = _lowest(objective, levels)
    return {
        **bounds_at(levels, values, point),
        **dict(zip(AXES, point.tolist(), strict=True)),
        "F": surface(point).item(),
    }


def _lowest(objective: Callable[[Array], Array], levels: Sequence[Array]) -> Array:
    """The lowest point between the levels: the best sample, improved step by step.

    The objective has kinks at levels and a minimum in many of the pieces between them,
    so that samples come first, all at once. ``scipy.optimize.minimize`` (Nelder-Mead)
    finds the same points from them in six times the time.

    Args:
        objective: (N, 3) points -> (N,).
        levels: of each axis.

    Returns:
        (3,).
    """
    ticks = []
    for of_axis in levels:
        numbers = np.arange(len(of_axis))
        places = np.linspace(0, numbers[-1], _SAMPLES * numbers[-1] + 1)
        ticks.append(np.interp(places, numbers, of_axis))
    points = samples = np.array([*product(*ticks)])
    steps = np.array([np.diff(of_axis).max(initial=0) for of_axis in ticks])
    for _ in range(_STEPS):
        best = points[objective(points).argmin()]
        points = np.clip(best + steps * _NEIGHBOURS, samples[0], samples[-1])
        steps *= _SHRINKING
    return points[objective(points).argmin()]


def table2(points: Mapping[str, pd.DataFrame], classes: int) -> pd.DataFrame:
    """Trade-off points beside the published ones; Huang et al. 2025, Table 2.

    Args:
        points: of each family, see ``trade_off_point``: first the point
            itself, then a row per draw.
        classes: number of classes of the smallest step.

    Returns:
        A row per family and quantity. ``low`` and ``high`` are the ends of the 95 %
        interval, NaN below 8 classes; published columns are NaN where the paper has
        no such quantity.
    """
    table = published_table("huang2025_table2")
    names = "published_" + table["dataset"] + "_" + table["family"]
    printed = table.drop(columns=["dataset", "family"]).set_axis(names, axis=0).T
    families = []
    for family, rows in points.items():
        rows = rows.assign(weights=rows["weights"] / 1e6)
        rows = rows.rename(columns={"weights": "weights_millions"})
        low, high = percentile_interval(rows.iloc[1:], classes)
        of_family = {"family": family, "value": rows.iloc[0], "low": low, "high": high}
        families.append(pd.DataFrame(of_family).join(printed))
    return pd.concat(families).rename_axis("quantity").reset_index()
