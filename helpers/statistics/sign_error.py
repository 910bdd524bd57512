"""How often a measure gets the sign of a change of the gap wrong when one hyperparameter changes: Dziugaite et al. 2020."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from helpers.statistics.correlations import Array, Codes, finite_groups, slices
from helpers.statistics.hyperparameters import joint_codes, levels_of

MINIMUM_SAMPLE = 12.0  # pairs' worth of weight below which an environment is left out, as in the paper


class SignErrors(NamedTuple):
    """Robust sign errors of many measures, one row per gap that was given, and what they rest on."""

    robust: Array  # (D, M) in [0, 1], the largest of the environments kept: 0 is perfect, 0.5 a coin; NaN where none is kept
    environments: NDArray[np.int64]  # (M,) kept with the first gap
    pooled: NDArray[
        np.bool_
    ]  # (M,) whether an environment holds all settings of the other hyperparameters


def noise_weights(gap_difference: ArrayLike, test_images: int) -> Array:
    """Weights of pairs by Hoeffding's bound on how surely their gaps, fractions, differ; Dziugaite et al. 2020, section 4."""
    squares = np.asarray(gap_difference, dtype=float) ** 2
    return np.maximum(
        np.maximum(1 - 2 * np.exp(-test_images / 2 * squares), 0) ** 2 - 0.5, 0
    )


def sign_errors(
    models: pd.DataFrame,
    measures: Mapping[str, int],
    axes: Sequence[str],
    gaps: Array,
    *,
    test_images: int,
) -> SignErrors:
    """Sign error of each measure in its worst environment; Dziugaite et al. 2020, equation (4), section 4 and Figure 1. Gaps are (D, n).

    An environment is two configurations that differ in one hyperparameter. Its error is the mean of ``1/2 (1 - sgn(C_a - C_b) sgn(G_a -
    G_b))`` by ``noise_weights``, C = -direction * measure; it is kept when its effective sample is ``MINIMUM_SAMPLE``. Where none is kept,
    all that differ only in this hyperparameter, between the same levels, are one, pooled, which does not compare with the paper.
    """
    values = models[list(measures)].to_numpy(dtype=float) * -np.array(
        list(measures.values()), dtype=float
    )
    levels, count = levels_of(models, axes), len(measures)
    left, right, axis = _pairs(levels)
    weights = noise_weights(gaps[0][left] - gaps[0][right], test_images)
    found = SignErrors(
        np.full((len(gaps), count), np.nan), np.zeros(count, int), np.zeros(count, bool)
    )
    for kept, columns in finite_groups(
        values, np.where(np.isfinite(gaps).all(0), 0, np.nan)[None]
    ):
        own = kept[left] & kept[right]
        environment = _environments(
            levels, left[own], right[own], axis[own], pool=False
        )
        if pool := not _large_enough(
            *(np.bincount(environment, weights[own] ** power) for power in (1, 2))
        ).any():
            environment = _environments(levels, left[own], right[own], axis[own], pool)
        pairs, signs = (
            (left[own], right[own]),
            np.sign(values[left[own]][:, columns] - values[right[own]][:, columns]),
        )
        found.robust[:, columns], found.environments[columns] = _robust(
            gaps, pairs, signs, environment, test_images
        )
        found.pooled[columns] = pool
    return found


def _pairs(levels: Codes) -> tuple[Codes, Codes, Codes]:
    """The two models of each pair that differs in one hyperparameter alone, and which: (P,) each."""
    differ = np.zeros((len(levels),) * 2, dtype=np.int8)
    for codes in levels.T:
        differ += codes[:, None] != codes
    left, right = np.nonzero(np.triu(differ == 1))
    return left, right, (levels[left] != levels[right]).argmax(1) if len(left) else left


def _environments(
    levels: Codes, left: Codes, right: Codes, axis: Codes, pool: bool
) -> Codes:
    """The environment of each pair: its axis and two levels where pooled, else its two configurations."""
    names = (
        np.stack([levels[left, axis], levels[right, axis]])
        if pool
        else joint_codes(levels.T, len(levels))[np.stack([left, right])]
    )
    return joint_codes([names.min(0), names.max(0), axis], len(left))


def _large_enough(total: Array, squares: Array) -> NDArray[np.bool_]:
    return (total > 0) & (total**2 >= MINIMUM_SAMPLE * squares)


def _robust(
    y: Array, pairs: Sequence[Codes], signs: Array, environment: Codes, test_images: int
) -> tuple[Array, int]:
    """Largest error of the environments kept in every draw, (D, M), and their number in the first."""
    worst, first = np.full((len(y), signs.shape[1]), -np.inf), 0
    for number in range(environment.max(initial=-1) + 1):
        own = np.flatnonzero(environment == number)
        left, right = (side[own] for side in pairs)
        for rows in slices(len(y), len(own)):
            difference = y[rows][:, left] - y[rows][:, right]
            weights = noise_weights(difference, test_images)
            total = weights.sum(1)
            keep = _large_enough(total, (weights**2).sum(1))
            error = (
                1
                - (weights * np.sign(difference))
                @ signs[own]
                / np.where(keep, total, np.nan)[:, None]
            ) / 2
            worst[rows] = np.fmax(
                worst[rows], np.round(np.abs(error), 12)
            )  # no error is exactly 0
            first += int(keep[0] and rows.start == 0)
    return np.where(np.isfinite(worst), worst, np.nan), first
