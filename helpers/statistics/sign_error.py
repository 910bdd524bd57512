"""How often a measure gets the sign of a change of the gap wrong.

One hyperparameter changes at a time; Dziugaite et al. 2020.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from helpers.statistics.correlations import Array, Codes, finite_groups, slices
from helpers.statistics.hyperparameters import joint_codes, levels_of

# Pairs' worth of weight below which an environment is left out, as in the paper.
MINIMUM_SAMPLE = 12.0


class SignErrors(NamedTuple):
    """Robust sign errors of many measures, and what they rest on."""

    # (D, M) in [0, 1], a row per gap, the largest of the environments that are large
    # enough: 0 is perfect, 0.5 a coin; NaN where none is.
    robust: Array
    environments: NDArray[np.int64]  # (M,) that are large enough with the first gap
    # (M,) whether an environment holds all settings of the other hyperparameters.
    pooled: NDArray[np.bool_]


def noise_weights(gap_difference: ArrayLike, test_images: int) -> Array:
    """Weights of pairs of models by how surely their gaps differ.

    Hoeffding's bound; Dziugaite et al. 2020, section 4.

    Args:
        gap_difference: (...) differences of gaps, fractions.
        test_images: behind each gap.

    Returns:
        (...) in [0, 0.5].
    """
    squares = np.asarray(gap_difference, dtype=float) ** 2
    surely = np.maximum(1 - 2 * np.exp(-test_images / 2 * squares), 0)
    return np.maximum(surely**2 - 0.5, 0)


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
    C = -direction * measure; it counts when its effective sample is
    ``MINIMUM_SAMPLE``. Where none does, all pairs that differ only in this
    hyperparameter, between the same levels, are one, pooled, which does not compare
    with the paper.

    Args:
        models: a row per model.
        measures: the direction of each column, +1 where a larger value promises a
            smaller gap, else -1.
        axes: hyperparameters.
        gaps: (D, n), such as permuted ones.
        test_images: behind each gap.
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
    is_defined = np.where(np.isfinite(gaps).all(0), 0, np.nan)[None]
    for rows, columns in finite_groups(complexities, is_defined):
        both = rows[pairs.left] & rows[pairs.right]
        chosen = Pairs(*(part[both] for part in pairs))
        environment = _environments(levels, chosen, pool=False)
        pool = not _any_large_enough(environment, weights[both])
        if pool:
            environment = _environments(levels, chosen, pool=True)
        left = complexities[chosen.left][:, columns]
        right = complexities[chosen.right][:, columns]
        robust, number = _robust(
            gaps, chosen, np.sign(left - right), environment, test_images
        )
        errors.robust[:, columns] = robust
        errors.environments[columns] = number
        errors.pooled[columns] = pool
    return errors


class Pairs(NamedTuple):
    """Pairs of models that differ in one hyperparameter alone."""

    left: Codes  # (P,)
    right: Codes  # (P,)
    axis: Codes  # (P,) in which hyperparameter


def _pairs(levels: Codes) -> Pairs:
    differ = np.zeros((len(levels),) * 2, dtype=np.int8)
    for codes in levels.T:
        differ += codes[:, None] != codes
    left, right = np.nonzero(np.triu(differ == 1))
    axis = left
    if len(left):
        axis = (levels[left] != levels[right]).argmax(1)
    return Pairs(left, right, axis)


def _environments(levels: Codes, pairs: Pairs, *, pool: bool) -> Codes:
    """The environment of each pair.

    Its axis and two levels where pooled, else its two configurations.
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
        test_images: behind each gap.

    Returns:
        (D, M), NaN where no environment counts, and how many count in the first row.
    """
    worst = np.full((len(gaps), signs.shape[1]), -np.inf)
    first = 0
    for number in range(environment.max(initial=-1) + 1):
        members = np.flatnonzero(environment == number)
        left = pairs.left[members]
        right = pairs.right[members]
        for rows in slices(len(gaps), len(members)):
            difference = gaps[rows][:, left] - gaps[rows][:, right]
            weights = noise_weights(difference, test_images)
            total = weights.sum(1)
            counts = _large_enough(total, (weights**2).sum(1))
            agreement = (weights * np.sign(difference)) @ signs[members]
            agreement /= np.where(counts, total, np.nan)[:, None]
            # Rounded, so that no error is exactly 0.
            error = np.round(np.abs((1 - agreement) / 2), 12)
            worst[rows] = np.fmax(worst[rows], error)
            first += int(counts[0] and rows.start == 0)
    return np.where(np.isfinite(worst), worst, np.nan), first
