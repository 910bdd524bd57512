"""Information of a measure on the order of two gaps, given hyperparameters.

The score of the PGDL competition, a normalised conditional mutual information.
"""

from collections.abc import Sequence
from itertools import chain, combinations, product

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import rankdata

from helpers.statistics.correlations import (
    Array,
    Codes,
    finite_groups,
    level_codes,
    slices,
)
from helpers.statistics.hyperparameters import configuration_means, joint_codes


def conditional_information(
    models: pd.DataFrame,
    measures: Sequence[str],
    axes: Sequence[str],
    gaps: Array,
) -> Array:
    """Share of the entropy of the order of two models that a measure explains.

    The order is that of their gaps; Jiang et al. 2020, PGDL. The score is the least of
    ``information_by_set``. It is above 0 by chance alone, so compare scores of the same
    models only.

    Args:
        models: n networks with hyperparameters and measures.
        measures: M columns.
        axes: hyperparameters that may be known.
        gaps: (D, n) of the networks, such as permuted ones.

    Returns:
        (D, M) in [0, 1]; NaN where hyperparameters determine the order, or a measure is
        undefined.
    """
    x = models[list(measures)].to_numpy(dtype=float)
    codes = {name: level_codes(models[name]) for name in axes}
    varied = {
        name: levels for name, levels in codes.items() if levels.max(initial=0) > 0
    }
    scores = np.full((len(gaps), x.shape[1]), np.nan)
    # (1, n): NaN leaves out a model whose gap is not finite in any permutation
    is_usable = np.where(np.isfinite(gaps).all(0), 0, np.nan)[None]
    for rows, columns in finite_groups(x, is_usable):
        configurations = joint_codes(
            [levels[rows] for levels in varied.values()], int(rows.sum())
        )
        first_models = np.unique(configurations, return_index=True)[1]
        levels_by_axis = {
            name: levels[rows][first_models] for name, levels in varied.items()
        }
        measure_means = configuration_means(x[np.ix_(rows, columns)], configurations)
        gap_means = configuration_means(gaps[:, rows].T, configurations)
        by_set = information_by_set(measure_means, gap_means, levels_by_axis)
        scores[:, columns] = np.fmin.reduce(list(by_set.values()))
    return scores


def information_by_set(
    measures: Array, gaps: Array, levels: dict[str, Codes]
) -> dict[tuple[str, ...], Array]:
    """Share of the entropy of the order of two gaps that a measure explains.

    Ordered pairs (a, b) of configurations fall into cells u by the values that some
    hyperparameters have in both. With ``V_g = 1[gap_a > gap_b]`` and
    ``V_mu = 1[measure_a > measure_b]`` it is
    ``mean_u I(V_g; V_mu | u) / mean_u H(V_g | u)`` over cells of two pairs or more.

    Args:
        measures: (C, M) of the configurations.
        gaps: (C, D).
        levels: (C,) of each hyperparameter.

    Returns:
        (D, M) in [0, 1] for every set of at most two hyperparameters that are known;
        NaN where the order is certain in every cell.
    """
    # Ranks have the same order, and are compared faster.
    ranks = rankdata(measures, "dense", axis=0).astype(np.int16)
    gap_ranks = rankdata(gaps, "dense", axis=0).astype(np.int16)
    sets = chain.from_iterable(combinations(levels, size) for size in (0, 1, 2))
    shares = {}
    for names in sets:
        cells = joint_codes([levels[name] for name in names], len(gaps))
        information, entropy = _in_cells(ranks, gap_ranks, cells)
        share = information / np.where(entropy > 0, entropy, np.nan)
        # Rounded, so that a measure that is constant in every cell has exactly 0.
        shares[names] = np.round(np.clip(share, 0, 1), 12).T
    return shares


def _in_cells(
    ranks: NDArray[np.int16], gap_ranks: NDArray[np.int16], groups: Codes
) -> tuple[Array, Array]:
    """Information (M, D) and entropy (D,) summed over the cells of pairs of groups.

    In a cell, with H the entropy in bits, ``I = H(gap) + H(measure) - H(both)``. Counts
    n_i of N pairs have ``N H = N log2 N - sum of n_i log2 n_i``.
    """
    draws = gap_ranks.shape[1]
    members = [
        np.flatnonzero(groups == group) for group in range(groups.max(initial=-1) + 1)
    ]
    information = np.zeros((ranks.shape[1], draws))
    entropy = np.zeros(draws)
    n_log_n = _n_log_n(len(gap_ranks) ** 2)
    for (a, one), (b, other) in product(enumerate(members), repeat=2):
        # A configuration makes no pair with itself, and is not larger than itself.
        pairs = len(one) * (len(other) - (a == b))
        if pairs < 2:
            continue
        measure_larger = _larger(ranks, one, other).T  # (M, pairs)
        for columns in slices(draws, pairs):
            gap_larger = _larger(gap_ranks[:, columns], one, other)  # (pairs, D)
            # Single precision holds whole numbers exactly up to 16.7 million.
            both = (measure_larger @ gap_larger).astype(np.intp)  # (M, D)
            by_gap = gap_larger.sum(0).astype(np.intp)  # (D,)
            by_measure = measure_larger.sum(1)[:, None].astype(np.intp)  # (M, 1)
            neither = pairs - by_gap - by_measure + both
            outcomes = (both, by_gap - both, by_measure - both, neither)
            gap_entropy = n_log_n[pairs] - n_log_n[by_gap] - n_log_n[pairs - by_gap]
            measure_entropy = (
                n_log_n[pairs] - n_log_n[by_measure] - n_log_n[pairs - by_measure]
            )
            of_outcomes = sum(n_log_n.take(count) for count in outcomes)
            mutual = gap_entropy + measure_entropy - n_log_n[pairs] + of_outcomes
            entropy[columns] += gap_entropy / pairs
            information[:, columns] += mutual / pairs
    return information, entropy


def _n_log_n(most: int) -> Array:
    """Table of ``n log2 n`` for n from 0 to ``most``.

    Equal counts cancel exactly, so that a certain outcome has an entropy of exactly 0.
    """
    whole = np.arange(most + 1, dtype=float)
    return np.log2(np.maximum(whole, 1)) * whole


def _larger(ranks: NDArray[np.int16], one: Codes, other: Codes) -> NDArray[np.float32]:
    """1 where one configuration's value is the larger: (C, K) -> (pairs, K)."""
    is_larger = ranks[one][:, None] > ranks[other][None]
    return is_larger.reshape(len(one) * len(other), -1).astype(np.float32)
