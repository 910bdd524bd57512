"""The gap as a regression on a few measures of a study's models, shrunk as far as tens of models ask for."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
MOST = 3  # measures in a regression
_PENALTIES = np.array([0.03, 0.1, 0.3, 1, 3, 10, 100, 1e6])  # per model; the last is the mean of the gaps


class Fit(NamedTuple):
    """A regression of the gap on a few measures."""

    chosen: NDArray[np.int64]  # columns, the strongest first; empty where none can be fitted
    centre: Array  # of each chosen column
    scale: Array
    slopes: Array  # gap per standard deviation of the measure
    intercept: float  # mean gap
    penalty: float  # per model; larger shrinks more


def fit(values: ArrayLike, gap: ArrayLike, most: int = MOST) -> Fit:
    """Fit ``gap = mean + sum_j b_j z_j`` by ridge regression; Hoerl and Kennard 1970.

    The measures are standardised, and the ``most`` of largest |Pearson r| with the gap are taken. ``b`` minimises
    ``||g - Z b||² + n p ||b||²`` with the penalty p of least squared leave-one-out error, ``e_i / (1 - H_ii)`` with
    ``H = Z (Z'Z + n p)^-1 Z' + 1/n``; Golub, Heath and Wahba 1979. The sign of a slope is what the study shows, whatever the literature
    promises. Measures that tell nothing are shrunk to the mean of the gaps.

    Args:
        values: (n, M) finite, a column per measure.
        gap: (n,) fractions.
        most: measures to take.

    Returns:
        The fit; of no measure, the mean, where fewer than 3 models or no measure varies. The mean of no model is NaN.
    """
    x, g = np.asarray(values, dtype=float), np.asarray(gap, dtype=float)
    nothing = Fit(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0), np.zeros(0), float(g.mean()) if len(g) else np.nan, np.inf)
    if len(g) < 3 or not x.shape[1]:
        return nothing
    with np.errstate(over="ignore"):
        centre, scale = x.mean(0), x.std(0)
    varies = scale > 1e-12 * np.abs(x).max(0)
    z = (x - centre) / np.where(varies, scale, 1) * varies
    strength = np.abs(z.T @ (g - g.mean()))
    chosen = np.argsort(-strength, kind="stable")[:most]
    chosen = chosen[varies[chosen]]
    if not len(chosen):
        return nothing
    slopes, penalty = _ridge(z[:, chosen], g - g.mean())
    return Fit(chosen, centre[chosen], scale[chosen], slopes, float(g.mean()), penalty)


def _ridge(z: Array, g: Array) -> tuple[Array, float]:
    u, s, vt = np.linalg.svd(z, full_matrices=False)
    kept = s > 1e-10 * s[0]
    u, s, vt = u[:, kept], s[kept], vt[kept]
    shrink = s**2 / (s**2 + len(g) * _PENALTIES[:, None])
    projected = u.T @ g
    residuals = g - (shrink * projected) @ u.T
    leverage = shrink @ (u**2).T + 1 / len(g)
    errors = ((residuals / np.clip(1 - leverage, 1e-9, None)) ** 2).sum(1)
    best = int(np.argmin(errors))
    return vt.T @ (shrink[best] * projected / s), float(_PENALTIES[best])


def predict(fitted: Fit, values: ArrayLike) -> Array:
    """Predict the gap: (m, M) measures -> (m,) fractions; NaN where a measure that the fit uses is NaN."""
    x = np.asarray(values, dtype=float)
    z = (x[:, fitted.chosen] - fitted.centre) / fitted.scale
    return fitted.intercept + z @ fitted.slopes
