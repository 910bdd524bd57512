"""Errors of a measure in the sign of a change of the gap.

One hyperparameter changes at a time; Dziugaite et al. 2020.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from helpers.statistics.correlations import Array, Codes, finite_groups, slices
from helpers.statistics.hyperparameters import joint_codes, levels_of

# Effective number of pairs, ``(sum of weights)^2 / sum of squared weights``, below
# which an environment is left out, as in the paper.
MINIMUM_SAMPLE = 12.0


class SignErrors(NamedTuple):
    """Robust sign errors of many measures, and the environments behind them."""

    # (D, M) in [0, 1] for D gaps: largest error of the environments that are large
    # enough. 0 is perfect, 0.5 a coin toss; NaN without such an environment.
    robust: Array
    environments: NDArray[np.int64]  # (M,) number of them with the first gap
    # (M,) whether pairs with different levels of the other hyperparameters are pooled.
    pooled: NDArray[np.bool_]


def noise_weights(gap_difference: ArrayLike, test_images: int) -> Array:
    """Weights of pairs of models by the certainty that their gaps differ.

    Hoeffding's bound; Dziugaite et al. 2020, section 4.

    Args:
        gap_difference: (...) differences of gaps, fractions.
        test_images: number of test images of each gap.

    Returns:
        (...) in [0, 0.5].
    """
    squares = np.asarray(gap_difference, dtype=float) ** 2
    certainty = np.maximum(1 - 2 * np.exp(-test_images / 2 * squares), 0)
    return np.maximum(certainty**2 - 0.5, 0)


def sign_errors(
    models: pd.DataFrame,
    measures: Mapping[str, int],
    axes: Sequence[str],
    gaps: Array,
    *,
    test_images: int,
) -> SignErrors:
    """Sign error of each measure in its worst environment.

    Dziugaite et al. 2020, equation (4), section 4 and Figure 1. An environment is two
    configurations that differ in one hyperparameter. Its error is the mean of
    ``1/2 (1 - sgn(C_a - C_b) sgn(G_a - G_b))`` by ``noise_weights``, with
    C = -direction * measure; it counts if its effective number of pairs is at least
    ``MINIMUM_SAMPLE``. If none counts, environments are pooled: all pairs that differ
    only in one hyperparameter, between the same two levels, make one environment.
    Pooled errors are not comparable with the paper's.

    Args:
        models: a row per model.
        measures: the direction of each column, +1 where a larger value promises a
            smaller gap, else -1.
        axes: hyperparameters.
        gaps: (D, n), such as permuted ones.
        test_images: number of test images of each gap.
    """
    direction = np.array(list(measures.values()), dtype=float)
    complexities = models[list(measures)].to_numpy(dtype=float) * -direction
    levels = levels_of(models, axes)
    pairs = _pairs(levels)
    weights = noise_weights(gaps[0][pairs.left] - gaps[0][pairs.right], test_images)
    errors = SignErrors(
        np.full((len(gaps), len(measures)), np.nan),
        np.zeros(len(measures), int),
        np.zeros(len(measures), bool),
    )
    # (1, n): NaN leaves out a model without a gap
    is_usable = np.where(np.isfinite(gaps).all(0), 0, np.nan)[None]
    for rows, columns in finite_groups(complexities, is_usable):
        has_both = rows[pairs.left] & rows[pairs.right]
        usable = Pairs(*(array[has_both] for array in pairs))
        environment = _environments(levels, usable, pool=False)
        pool = not _any_large_enough(environment, weights[has_both])
        if pool:
            environment = _environments(levels, usable, pool=True)
        left = complexities[usable.left][:, columns]
        right = complexities[usable.right][:, columns]
        robust, number = _robust(
            gaps, usable, np.sign(left - right), environment, test_images
        )
        errors.robust[:, columns] = robust
        errors.environments[columns] = number
        errors.pooled[columns] = pool
    return errors


class Pairs(NamedTuple):
    """Pairs of models that differ in one hyperparameter alone."""

    left: Codes  # (P,) number of one model
    right: Codes  # (P,) number of the other
    axis: Codes  # (P,) number of the hyperparameter


def _pairs(levels: Codes) -> Pairs:
    differences = np.zeros((len(levels), len(levels)), dtype=np.int8)
    for codes in levels.T:
        differences += codes[:, None] != codes
    left, right = np.nonzero(np.triu(differences == 1))
    axis = left
    if len(left):
        axis = (levels[left] != levels[right]).argmax(1)
    return Pairs(left, right, axis)


def _environments(levels: Codes, pairs: Pairs, *, pool: bool) -> Codes:
    """Number of each pair's environment, (P,).

    Pairs share it if they have the same two configurations or, pooled, the same
    hyperparameter and levels.
    """
    if pool:
        left = levels[pairs.left, pairs.axis]
        right = levels[pairs.right, pairs.axis]
    else:
        configurations = joint_codes(levels.T, len(levels))
        left = configurations[pairs.left]
        right = configurations[pairs.right]
    ends = [np.minimum(left, right), np.maximum(left, right)]
    return joint_codes([*ends, pairs.axis], len(pairs.left))


def _any_large_enough(environment: Codes, weights: Array) -> bool:
    total = np.bincount(environment, weights)
    squares = np.bincount(environment, weights**2)
    return bool(_large_enough(total, squares).any())


def _large_enough(total: Array, squares: Array) -> NDArray[np.bool_]:
    return (total > 0) & (total**2 >= MINIMUM_SAMPLE * squares)


def _robust(
    gaps: Array, pairs: Pairs, signs: Array, environment: Codes, test_images: int
) -> tuple[Array, int]:
    """Largest error of the environments that are large enough.

    Args:
        gaps: (D, n).
        pairs: P of models.
        signs: (P, M) of the difference of each measure.
        environment: (P,).
        test_images: number of test images of each gap.

    Returns:
        (D, M), NaN without an environment that is large enough; and the number of those
        that are for the first gap.
    """
    worst = np.full((len(gaps), signs.shape[1]), -np.inf)
    environments_of_first_gap = 0
    for number in range(environment.max(initial=-1) + 1):
        members = np.flatnonzero(environment == number)
        left = pairs.left[members]
        right = pairs.right[members]
        for rows in slices(len(gaps), len(members)):
            difference = gaps[rows][:, left] - gaps[rows][:, right]
            weights = noise_weights(difference, test_images)
            total = weights.sum(1)
            is_large = _large_enough(total, (weights**2).sum(1))
            agreement = (weights * np.sign(difference)) @ signs[members]
            agreement /= np.where(is_large, total, np.nan)[:, None]
            # Rounded, so that full agreement has an error of exactly 0.
            error = np.round(np.abs((1 - agreement) / 2), 12)
            worst[rows] = np.fmax(worst[rows], error)
            if rows.start == 0 and is_large[0]:
                environments_of_first_gap += 1
    return np.where(np.isfinite(worst), worst, np.nan), environments_of_first_gap
