"""The trade-off point: how much noise, how many unseen classes and how few weights go with a low error (Huang et al. 2025, equation 4)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.polynomial import Polynomial
from scipy.interpolate import RegularGridInterpolator
from scipy.optimize import minimize

from helpers.kappa.statistics import AXES, _Array, cell_array

_DEGREE = 2
_SAMPLES = 24  # per axis, spread over the cells of the grid
_REFINED = 8  # grid cells in which the search is refined


@dataclass(frozen=True)
class Bounds:
    """What is asked of the point; a bound beyond the measured levels is drawn in to them, since nothing is extrapolated."""

    ssim_at_least: float = -np.inf
    ssim_at_most: float = np.inf  # at least this much noise
    unseen_fraction_at_least: float = -np.inf
    weights_at_most: float = np.inf


class AxisReadings(NamedTuple):
    """The same bound read from the marginal along each axis; they need not agree."""

    ssim: float
    unseen_fraction: float
    weights: float
    mean: float


@dataclass(frozen=True)
class TradeoffPoint:
    """Where the demands and the errors balance."""

    ssim: float
    unseen_fraction: float
    weights: float
    F: float  # sum of the six statistics, lower is better
    objective: float  # F + lambda (a1 x² + a2 y² + a3 z²)
    generalization_bound: AxisReadings  # mean error at the point, lower is better
    diversity_bound: AxisReadings  # mean Kappa loss at the point, lower is better


@dataclass(frozen=True, eq=False)
class Surface:
    """F over the grid of a family, made once and asked often; see ``fit_surface``."""

    levels: tuple[_Array, _Array, _Array]  # ssim, unseen fraction, weights, ascending
    nodes: tuple[_Array, _Array, _Array]  # the same levels as coordinates x, y, z, ascending
    interpolator: RegularGridInterpolator  # F at (..., 3) coordinates, linear
    error_fits: tuple[Polynomial, Polynomial, Polynomial]  # marginal of the mean error along each axis, see ``fitted``
    kappa_fits: tuple[Polynomial, Polynomial, Polynomial]  # of the mean Kappa loss, likewise

    @property
    def degrees(self) -> tuple[int, int, int]:
        """Degrees of the fits along the three axes."""
        return tuple(fit.degree() for fit in self.error_fits)


UNBOUNDED = Bounds()
EQUAL = (1.0, 1.0, 1.0)


def _coordinates(levels: Sequence[_Array], values: Sequence[float] | Sequence[_Array]) -> list[_Array]:
    """SSIM, unseen fraction and weights as x, y and z: all three fall as more is asked of a network."""
    ssim, unseen_fraction, weights = map(np.asarray, values)
    span = levels[2][-1] - levels[2][0]
    return [ssim, 1 - unseen_fraction, (weights - levels[2][0]) / (span or 1.0)]


def _fit(axis: str, levels: _Array, values: _Array) -> Polynomial:
    """Least squares of degree 2 at most, and of half as many as there are levels at most, so that the fit smooths and never interpolates.

    Two levels have their straight line, one has its value.
    """
    if len(levels) == 1:
        return Polynomial(values[:1])
    return Polynomial.fit(np.log(levels) if axis == "weights" else levels, values, min(_DEGREE, len(levels) // 2))


def fitted(axis: str, fit: Polynomial, at: _Array | float) -> _Array | float:
    """A fit of a ``Surface`` at levels of its axis: SSIM, unseen fraction, or the number of weights."""
    return fit(np.log(at) if axis == "weights" else at)


def fit_surface(cells: pd.DataFrame) -> Surface:
    """Interpolate ``F = M_g + SD_g + 10P_g + M_k + SD_k + 10P_k`` between the cells; Huang et al. 2025, equation (3).

    Args:
        cells: the tidy array of one family, see ``kappa``, on a full grid.

    Raises:
        ValueError: a cell is missing or has an undefined statistic, weights are not positive, or see ``statistics.cell_array``.
    """
    levels, values = cell_array(cells)
    total = values.sum(axis=-1)
    holes = np.argwhere(~np.isfinite(total))
    if len(holes):
        named = ["/".join(f"{levels[axis][index]:g}" for axis, index in enumerate(hole)) for hole in holes]
        more = f" and {len(named) - 5} more" if len(named) > 5 else ""
        raise ValueError(f"{len(holes)} of {total.size} cells are missing or undefined ({'/'.join(AXES)}): {', '.join(named[:5])}{more}")
    if levels[2][0] <= 0:
        raise ValueError(f"weights {levels[2][0]:g} must be above 0, because their logarithm is taken")
    return surface_of(levels, values)


def surface_of(levels: Sequence[_Array], values: _Array) -> Surface:
    """Surface of the six statistics (S, U, W, 6) at the levels of the three axes.

    Coordinates are x = SSIM, y = 1 - unseen fraction and z = (weights - smallest) / (largest - smallest); F is linear in each between
    neighbouring levels. Along an axis with one level everything is constant, and z is 0 there.
    """
    x, y, z = _coordinates(levels, levels)
    nodes, total = [x, y[::-1], z], values.sum(axis=-1)[:, ::-1]
    for axis in range(3):  # the interpolator wants two nodes; the second is never reached
        if len(nodes[axis]) == 1:
            nodes[axis], total = nodes[axis] + [0, 1], total.repeat(2, axis)
    means = [[along_axis(values[..., place], axis) for axis in range(3)] for place in (0, 3)]  # of error and Kappa loss
    fits = [tuple(map(_fit, AXES, levels, marginals)) for marginals in means]
    return Surface(tuple(levels), tuple(nodes), RegularGridInterpolator(tuple(nodes), total), *fits)


def along_axis(values: _Array, axis: int) -> _Array:
    """Mean over the two other of the first three axes: (S, U, W, ...) -> (levels, ...); Huang et al. 2025, equation (5)."""
    return values.mean(axis=tuple({0, 1, 2} - {axis}))


def _ranges(surface: Surface, bounds: Bounds) -> list[tuple[float, float]]:
    """Lowest and highest SSIM, unseen fraction and weights allowed."""
    wanted = (
        (bounds.ssim_at_least, bounds.ssim_at_most),
        (bounds.unseen_fraction_at_least, np.inf),
        (-np.inf, bounds.weights_at_most),
    )
    ranges = []
    for axis, levels, (low, high) in zip(AXES, surface.levels, wanted, strict=True):
        first, last = max(low, levels[0]), min(high, levels[-1])
        if not first <= last:
            raise ValueError(f"{axis} from {low:g} to {high:g} holds nothing of what was measured, {levels[0]:g} to {levels[-1]:g}")
        ranges.append((float(first), float(last)))
    return ranges


def _edges(nodes: _Array, low: float, high: float) -> _Array:
    """Where the box cuts an axis into pieces on which F is smooth: its ends and the nodes between; two of them at least."""
    inner = nodes[(nodes > low) & (nodes < high)]
    return np.concatenate([[low], inner, [high]])


def _pieces(objective: Callable[[_Array], _Array], edges: Sequence[_Array]) -> Iterator[tuple[_Array, _Array, _Array]]:
    """Sample the whole box, and give the best sample of the most promising pieces, best first, with its piece's low and high corner."""
    pieces = [len(edge) - 1 for edge in edges]
    steps = [max(1, _SAMPLES // count) for count in pieces]
    positions = [np.arange(count * step + 1) for count, step in zip(pieces, steps, strict=True)]
    ticks = [np.interp(at / step, np.arange(len(edge)), edge) for at, step, edge in zip(positions, steps, edges, strict=True)]
    samples = np.stack(np.meshgrid(*ticks, indexing="ij"), -1).reshape(-1, 3)
    owners = [np.minimum(at // step, count - 1) for at, step, count in zip(positions, steps, pieces, strict=True)]
    owner = np.ravel_multi_index(np.meshgrid(*owners, indexing="ij"), pieces).ravel()
    order = np.argsort(objective(samples), kind="stable")
    _, first = np.unique(owner[order], return_index=True)
    for index in order[np.sort(first)[:_REFINED]]:
        piece = np.unravel_index(owner[index], pieces)
        low, high = np.transpose([(edge[at], edge[at + 1]) for edge, at in zip(edges, piece, strict=True)])
        yield samples[index], low, high


def _refined(interpolator: RegularGridInterpolator, factors: _Array, start: _Array, low: _Array, high: _Array) -> _Array:
    """Descend from a point within a piece, where F is linear along each axis: its slope is its change from end to end."""
    own, width = np.eye(3, dtype=bool), np.where(high > low, high - low, 1)

    def value_and_slope(point: _Array) -> tuple[float, _Array]:
        values = interpolator(np.concatenate([[point], np.where(own, low, point), np.where(own, high, point)]))
        return values[0] + point**2 @ factors, (values[4:] - values[1:4]) / width + 2 * factors * point

    options = {"ftol": 1e-15, "gtol": 1e-10}
    found = minimize(value_and_slope, start, jac=True, method="L-BFGS-B", bounds=list(zip(low, high, strict=True)), options=options)
    return np.clip(found.x, low, high)


def trade_off_point(
    surface: Surface, strength: float = 1.0, bounds: Bounds = UNBOUNDED, coefficients: tuple[float, float, float] = EQUAL
) -> TradeoffPoint:
    """Find the point of least ``F + lambda (a1 x² + a2 y² + a3 z²)`` in a box; Huang et al. 2025, equation (4).

    The paper also varies the upper limits c of x, y, z, and penalises c; its optimum has c = (x, y, z), which leaves this problem. The
    objective is smooth between neighbouring levels: the box is sampled, and the best pieces are searched on by L-BFGS-B, so the global
    minimum is found but for one that is narrower than the samples. The larger lambda is, the smaller is the penalty term of the point.

    Args:
        surface: see ``fit_surface``.
        strength: lambda, at least 0; 0 takes the lowest F, a large one the noisiest, least seen, smallest cell.
        bounds: the box; the point never lies outside, and nothing is extrapolated.
        coefficients: a1, a2, a3 of SSIM, seen fraction and size, at least 0; the authors set them by hand, 1 is their default.

    Returns:
        The point; both bounds are read from the fits, which are not held in [0, 1].

    Raises:
        ValueError: a bound that leaves nothing of the measured levels, or a negative lambda or coefficient.
    """
    given = np.array([strength, *coefficients], dtype=float)
    if given.shape != (4,) or not np.isfinite(given).all() or (given < 0).any():
        raise ValueError(f"lambda {strength} and the coefficients {coefficients} must be numbers from 0, the latter three")
    factors, ranges = given[0] * given[1:], _ranges(surface, bounds)
    corners = zip(*(_coordinates(surface.levels, ends) for ends in zip(*ranges, strict=True)), strict=True)
    edges = [_edges(nodes, *sorted(ends)) for nodes, ends in zip(surface.nodes, corners, strict=True)]

    def objective(points: _Array) -> _Array:
        # F is a sum of six numbers near 1; what differs by rounding only must not decide.
        return np.round(surface.interpolator(points) + points**2 @ factors, 12)

    starts = list(_pieces(objective, edges))
    found = np.array([start for start, _, _ in starts] + [_refined(surface.interpolator, factors, *piece) for piece in starts])
    best = np.lexsort((found**2 @ given[1:], objective(found)))[0]  # of equal ones the most demanding
    return _described(surface, found[best], ranges, factors)


def _described(surface: Surface, point: _Array, ranges: Sequence[tuple[float, float]], factors: _Array) -> TradeoffPoint:
    smallest, largest = surface.levels[2][[0, -1]]
    given = (point[0], 1 - point[1], smallest + point[2] * (largest - smallest))
    place = [float(np.clip(value, *ends)) for value, ends in zip(given, ranges, strict=True)]  # rounding must not lead outside
    readings = []
    for fits in (surface.error_fits, surface.kappa_fits):
        read = [float(fitted(axis, fit, at)) for axis, fit, at in zip(AXES, fits, place, strict=True)]
        readings.append(AxisReadings(*read, float(np.mean(read))))
    value = float(surface.interpolator(point[None])[0])
    return TradeoffPoint(*place, value, value + float(point**2 @ factors), *readings)


def sensitivity(
    surface: Surface, strengths: Iterable[float], bounds: Bounds = UNBOUNDED, coefficients: tuple[float, float, float] = EQUAL
) -> pd.DataFrame:
    """Follow the trade-off point as lambda changes.

    Returns:
        One row per lambda, in the order given: lambda, ssim, unseen_fraction, weights, F, objective, penalty (the sum of a x² without
        lambda, which never grows with lambda), generalization_bound and diversity_bound (means of the three readings).

    Raises:
        ValueError: see ``trade_off_point``.
    """
    rows = []
    for strength in strengths:
        point = trade_off_point(surface, strength, bounds, coefficients)
        place = {axis: getattr(point, axis) for axis in AXES}
        squares = np.square(_coordinates(surface.levels, list(place.values())))
        values = {"F": point.F, "objective": point.objective, "penalty": float(squares @ np.asarray(coefficients))}
        means = {"generalization_bound": point.generalization_bound.mean, "diversity_bound": point.diversity_bound.mean}
        rows.append({"lambda": strength} | place | values | means)
    return pd.DataFrame(rows)
