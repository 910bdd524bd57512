"""The trade-off point of noise, unseen classes and weights.

Huang, Yu and Zhang 2025, equation (4): the setting that combines a low error with much
noise, many unseen classes and few weights.
"""

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
from numpy.polynomial import Polynomial
from scipy.interpolate import RegularGridInterpolator

from helpers.kappa.grid import along_axis
from helpers.kappa.statistics import AXES, CELL_STATISTICS, Array

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
_NEIGHBOURS = np.array(list(product((0, -1, 1), repeat=3)))


def bounds_at(
    levels: Sequence[Array], values: Array, place: Sequence[float]
) -> dict[str, float]:
    """Each of ``BOUNDS`` at a place: its readings along the axes, and their mean.

    A reading is of a polynomial in SSIM, unseen fraction or log weights, fitted to the
    marginal: of degree 1 for two and three levels, 2 for more.

    Args:
        levels: of each axis, see ``grid.grid_of``.
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
        levels: of each axis, see ``grid.grid_of``.
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
        objective: (..., 3) points -> (...).
        levels: of each axis.

    Returns:
        (3,).
    """
    ticks = []
    for of_axis in levels:
        numbers = np.arange(len(of_axis))
        places = np.linspace(0, numbers[-1], _SAMPLES * numbers[-1] + 1)
        ticks.append(np.interp(places, numbers, of_axis))
    samples = np.stack(np.meshgrid(*ticks, indexing="ij"), axis=-1).reshape(-1, 3)
    point = samples[objective(samples).argmin()]
    steps = np.array([np.diff(of_axis).max(initial=0) for of_axis in ticks])
    for _ in range(_STEPS):
        candidates = np.clip(point + steps * _NEIGHBOURS, samples[0], samples[-1])
        point = candidates[objective(candidates).argmin()]
        steps *= _SHRINKING
    return point
