"""How much a measure says of the order of two gaps once their hyperparameters are known: the score of the PGDL competition."""

from collections.abc import Sequence
from itertools import combinations, product

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
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
    values: ArrayLike | None = None,
    target: str = "gap",
) -> Array:
    """Share of the uncertainty about an order of two models that a measure removes.

    The order is that of their gaps, or of another target; Jiang et al. 2020, PGDL. The
    score is the least of ``information_by_set``. Chance explains a part of it, so
    scores compare on the same models alone.

    Args:
        models: n networks with hyperparameters and measures.
        measures: M columns.
        axes: hyperparameters that may be known.
        values: (D, n) values of the target, such as permuted ones; None takes the
            column ``target``.
        target: column whose order is asked.

    Returns:
        (M,) in [0, 1], or (D, M) where values are passed; NaN where the order is
        certain or a measure is undefined.
    """
    y = np.atleast_2d(np.asarray(models[target] if values is None else values, float))
    x = models[list(measures)].to_numpy(dtype=float)
    codes = {name: level_codes(models[name]) for name in axes}
    varied = {
        name: levels for name, levels in codes.items() if levels.max(initial=0) > 0
    }
    scores = np.full((len(y), x.shape[1]), np.nan)
    is_known = np.where(np.isfinite(y).all(0), 0, np.nan)[None]
    for rows, columns in finite_groups(x, is_known):
        configurations = joint_codes(
            [levels[rows] for levels in varied.values()], int(rows.sum())
        )
        first = np.unique(configurations, return_index=True)[1]
        levels_of_each = {name: levels[rows][first] for name, levels in varied.items()}
        measured = configuration_means(x[np.ix_(rows, columns)], configurations)
        asked = configuration_means(y[:, rows].T, configurations)
        by_set = information_by_set(measured, asked, levels_of_each)
        scores[:, columns] = np.fmin.reduce(list(by_set.values()))
    return scores if values is not None else scores[0]


def information_by_set(
    measures: Array, gaps: Array, levels: dict[str, Codes]
) -> dict[tuple[str, ...], Array]:
    """Share of the entropy of the order of two gaps that a measure explains, for every set of at most two hyperparameters that are known.

    Ordered pairs (a, b) of configurations fall into cells u by the values of the set in both. With ``V_g = 1[gap_a > gap_b]`` and
    ``V_mu = 1[measure_a > measure_b]`` it is ``mean_u I(V_g; V_mu | u) / mean_u H(V_g | u)`` over cells of two pairs or more. Measures
    (C, M), gaps (C, D), levels (C,) of each hyperparameter -> (D, M), NaN where every cell is certain.
    """
    count, draws, known = measures.shape[1], gaps.shape[1], {}
    # Ranks tell the same order, and are compared faster.
    ranks, gap_ranks = (
        rankdata(values, "dense", axis=0).astype(np.int16)
        for values in (measures, gaps)
    )
    # n log2 n by a table: all counts are whole numbers, so that a certain outcome has exactly no entropy.
    whole = np.arange(len(gaps) ** 2 + 1, dtype=float)
    log = np.log2(np.maximum(whole, 1)) * whole
    for names in (names for size in (0, 1, 2) for names in combinations(levels, size)):
        kinds = joint_codes([levels[name] for name in names], len(gaps))
        members = [
            np.flatnonzero(kinds == kind) for kind in range(kinds.max(initial=-1) + 1)
        ]
        information, entropy = np.zeros((count, draws)), np.zeros(draws)
        for (a, one), (b, other) in product(enumerate(members), repeat=2):
            pairs = len(one) * (len(other) - (a == b))
            if pairs < 2:
                continue
            of_measure = _larger(ranks, one, other).T
            for chosen in slices(draws, pairs):
                of_gap = _larger(gap_ranks[:, chosen], one, other)
                # Single precision holds whole numbers exactly up to 16.7 million.
                counts = (
                    of_measure @ of_gap,
                    of_gap.sum(0),
                    of_measure.sum(1)[:, None],
                )
                both, by_gap, by_measure = (part.astype(np.intp) for part in counts)
                outcomes = (
                    both,
                    by_gap - both,
                    by_measure - both,
                    pairs - by_gap - by_measure + both,
                )
                gap_alone, measure_alone = (
                    log[pairs] - log[part] - log[pairs - part]
                    for part in (by_gap, by_measure)
                )
                entropy[chosen] += gap_alone / pairs
                information[:, chosen] += (
                    gap_alone
                    + measure_alone
                    - log[pairs]
                    + sum(log.take(part) for part in outcomes)
                ) / pairs
        # Rounded, so that a measure that is constant in every cell has exactly nothing.
        known[names] = np.round(
            np.clip(information / np.where(entropy > 0, entropy, np.nan), 0, 1), 12
        ).T
    return known


def _larger(ranks: NDArray[np.int16], one: Codes, other: Codes) -> NDArray[np.float32]:
    """1 where one configuration's value is the larger, else 0: (C, K) -> (pairs, K)."""
    return (
        (ranks[one][:, None] > ranks[other][None])
        .reshape(len(one) * len(other), -1)
        .astype(np.float32)
    )
