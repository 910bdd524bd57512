"""The trade-off point: how much noise, how many unseen classes and how few weights go with a low error (Huang et al. 2025, equation 4)."""

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
from numpy.polynomial import Polynomial
from scipy.interpolate import RegularGridInterpolator

from helpers.kappa.statistics import AXES, CELL_STATISTICS, Array, along_axis

BOUNDS = {
    "generalization_bound": "error_mean",
    "diversity_bound": "kappa_loss_mean",
}  # what each reads at the point
_SAMPLES = 16  # per axis, spread over the pieces between its levels
_STARTS, _STEPS, _SHRINKING = (
    8,
    36,
    0.6,
)  # samples that are improved, how often, and how fast the steps around them shrink
_AROUND = np.array(list(product((0, -1, 1), repeat=3)))


def marginal_fits(
    levels: Sequence[Array], values: Array
) -> dict[str, list[Callable[[Array], Array]]]:
    """What each of ``BOUNDS`` is read from: fits of its marginals as functions of SSIM, unseen fraction and log weights."""
    fits = {}
    for bound, statistic in BOUNDS.items():
        mean = values[..., CELL_STATISTICS.index(statistic)]
        fits[bound] = [
            _fit(
                levels[axis],
                along_axis(mean, axis),
                np.log if axis == 2 else np.asarray,
            )
            for axis in range(3)
        ]
    return fits


def _fit(
    levels: Array, values: Array, scale: Callable[[Array], Array]
) -> Callable[[Array], Array]:
    if len(levels) == 1:
        return Polynomial(values)
    fit = Polynomial.fit(
        scale(levels), values, min(2, len(levels) // 2)
    )  # so that a fit of few levels never interpolates
    return lambda at: fit(scale(at))


def trade_off_point(
    levels: Sequence[Array], values: Array, strength: float = 1.0
) -> dict[str, float]:
    """The point of least ``F + lambda (x² + y² + z²)``; Huang et al. 2025, equations (3) and (4).

    F is the sum of the six statistics, linear between neighbouring levels; x = SSIM, y = 1 - unseen fraction, z = (weights - smallest) /
    (largest - smallest), 0 for one size. The paper also varies the upper limits c of x, y, z; its optimum has c = (x, y, z). Strength is
    lambda, levels and values are of ``cell_array``, ValueError where one is missing; each bound is the mean of three readings beside it.
    """
    total = values.sum(axis=-1)
    if len(holes := np.argwhere(~np.isfinite(total))):
        named = [
            "/".join(f"{levels[axis][index]:g}" for axis, index in enumerate(hole))
            for hole in holes[:5]
        ]
        raise ValueError(
            f"{len(holes)} of {total.size} cells are missing or undefined ({'/'.join(AXES)}): {', '.join(named)}"
        )
    nodes = list(levels)
    for axis in range(
        3
    ):  # the interpolator wants two nodes; the second of a single one is never reached
        if len(nodes[axis]) == 1:
            nodes[axis], total = nodes[axis] + [0, 1], total.repeat(2, axis)
    surface, smallest, span = (
        RegularGridInterpolator(nodes, total),
        levels[2][0],
        np.ptp(levels[2]) or 1.0,
    )

    def demands(points: Array) -> Array:
        return np.stack(
            [points[..., 0], 1 - points[..., 1], (points[..., 2] - smallest) / span], -1
        )

    # Of equal points the most demanding, by a last term that is too small to move another.
    point = _lowest(
        lambda at: (
            surface(at)
            + strength * (demands(at) ** 2).sum(-1)
            + 1e-9 * demands(at).sum(-1)
        ),
        levels,
    )
    at = dict(zip(AXES, point.tolist(), strict=True))
    found = {}
    for bound, fits in marginal_fits(levels, values).items():
        read = {
            f"{bound}_by_{axis}": float(fit(at[axis]))
            for axis, fit in zip(AXES, fits, strict=True)
        }
        found |= {bound: float(np.mean(list(read.values())))} | read
    f, penalty = float(surface(point)[0]), float((demands(point) ** 2).sum())
    return (
        found | at | {"F": f, "penalty": penalty, "objective": f + strength * penalty}
    )


def _lowest(objective: Callable[[Array], Array], levels: Sequence[Array]) -> Array:
    """The lowest point between the levels: the best samples, improved by ever smaller steps."""
    pieces = [max(1, len(at) - 1) for at in levels]
    counts = [count * max(1, _SAMPLES // count) + 1 for count in pieces]
    ticks = [
        np.unique(np.interp(np.linspace(0, len(at) - 1, n), np.arange(len(at)), at))
        for at, n in zip(levels, counts, strict=True)
    ]
    samples = np.stack(np.meshgrid(*ticks, indexing="ij"), -1).reshape(-1, 3)
    best = samples[np.argsort(objective(samples), kind="stable")[:_STARTS]]
    steps = np.array([np.diff(at).max(initial=0) for at in ticks])
    for _ in range(_STEPS):
        tried = np.clip(best[:, None] + steps * _AROUND, samples[0], samples[-1])
        best = tried[np.arange(len(best)), objective(tried).argmin(1)]
        steps *= _SHRINKING
    return best[objective(best).argmin()]
