"""How well a measure's order of the models agrees with the order of their gaps: correlation, rank correlation, pairwise selection."""

from typing import NamedTuple

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


class PairwiseAccuracy(NamedTuple):
    """How often the better of two models by the measure is the better by the gap."""

    accuracy: float  # concordant / (concordant + discordant), NaN when every pair is tied
    concordant: int
    discordant: int
    ties: int  # pairs tied in the measure, the gap or both


def finite_pairs(measure: ArrayLike, gap: ArrayLike) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Keep the models whose measure and gap are both finite.

    Returns:
        The two (n,) arrays, and the (N,) bool mask of the models kept; ``(~mask).sum()`` were dropped.

    Raises:
        ValueError: the arrays are not flat or not of one length.
    """
    measure, gap = np.asarray(measure, dtype=float), np.asarray(gap, dtype=float)
    if measure.ndim != 1 or measure.shape != gap.shape:
        raise ValueError(f"measure and gap need one value per model each, got shapes {measure.shape} and {gap.shape}")
    kept = np.isfinite(measure) & np.isfinite(gap)
    return measure[kept], gap[kept], kept


def no_correlation(measure: Array, gap: Array) -> bool:
    """Say whether no correlation can be had of finite values: fewer than 3 models, or one of the two constant to rounding."""
    return len(measure) < 3 or any(np.ptp(values) <= 1e-12 * np.abs(values).max() for values in (measure, gap))


def pearson(measure: ArrayLike, gap: ArrayLike) -> float:
    """Linear correlation ``r = cov(measure, gap) / (sd(measure) sd(gap))``; Du et al. 2024, equation (7).

    In [-1, 1]; towards -1 for a measure that grows with better generalization, because the gap shrinks. Non-finite models are
    left out, see ``finite_pairs``. NaN for fewer than 3 models or a constant.

    Raises:
        ValueError: the arrays are not of one length.
    """
    x, y, _ = finite_pairs(measure, gap)
    return np.nan if no_correlation(x, y) else float(scipy.stats.pearsonr(x, y).statistic)


def kendall(measure: ArrayLike, gap: ArrayLike) -> float:
    """Rank correlation tau-b: ``(C - D) / sqrt((C + D + T_measure) (C + D + T_gap))`` over all pairs of models; Kendall 1945.

    C and D count concordant and discordant pairs, T the pairs tied in one only. In [-1, 1], same sign as ``pearson``; only the order
    is used. Equal to the tau of Jiang et al. 2020 without ties. Non-finite models are left out. NaN for fewer than 3, or a constant.

    Raises:
        ValueError: the arrays are not of one length.
    """
    x, y, _ = finite_pairs(measure, gap)
    return np.nan if no_correlation(x, y) else float(scipy.stats.kendalltau(x, y).statistic)


def spearman(measure: ArrayLike, gap: ArrayLike) -> float:
    """Linear correlation of the ranks, ties sharing their mean rank; Spearman 1904.

    In [-1, 1], same sign as ``pearson``. Non-finite models are left out. NaN for fewer than 3, or a constant.

    Raises:
        ValueError: the arrays are not of one length.
    """
    x, y, _ = finite_pairs(measure, gap)
    return np.nan if no_correlation(x, y) else float(scipy.stats.spearmanr(x, y).statistic)


def _inversions(ranks: NDArray[np.int64]) -> int:
    """Count the pairs i < j with ranks[i] > ranks[j], by merge sort: all blocks of one level at once, O(n log² n)."""
    top = int(ranks.max(initial=0)) + 1
    # Padding at the end, and never below another value, so it is in no inversion.
    blocks = np.full(1 << max(len(ranks) - 1, 0).bit_length(), top)
    blocks[: len(ranks)] = ranks
    width, found = 1, 0
    while width < len(blocks):
        pairs = blocks.reshape(-1, 2, width)
        # Blocks are set apart by an offset, so that one search serves all of them.
        offset = np.arange(len(pairs))[:, None] * (top + 1)
        left, right = (pairs[:, 0] + offset).ravel(), (pairs[:, 1] + offset).ravel()
        ends = np.repeat((np.arange(len(pairs)) + 1) * width, width)
        found += int((ends - np.searchsorted(left, right, side="right")).sum())
        blocks = np.sort(pairs.reshape(len(pairs), -1), axis=1).ravel()
        width *= 2
    return found


def _tied(groups: ArrayLike) -> int:
    """Count the pairs within groups of these sizes."""
    sizes = np.asarray(groups, dtype=np.int64)
    return int((sizes * (sizes - 1) // 2).sum())


def pairwise_accuracy(measure: ArrayLike, gap: ArrayLike, direction: int = 1) -> PairwiseAccuracy:
    """How often the measure picks the model with the smaller gap: ``C / (C + D)`` over all pairs; Du et al. 2024, section 5.2.2.

    Ties in either enter neither C nor D, so that accuracy = (1 + tau) / 2 when nothing ties. Non-finite models are left out.

    Args:
        measure: (n,) one value per model.
        gap: (n,) train minus test accuracy, fractions.
        direction: +1 when a larger measure promises a smaller gap, -1 when it promises a larger one.

    Returns:
        accuracy in [0, 1], 0.5 for chance, and the three counts; O(n log² n) time.

    Raises:
        ValueError: a direction that is not +1 or -1, or arrays that are not of one length.
    """
    if direction not in (1, -1):
        raise ValueError(f"direction {direction!r} must be +1 (larger is better) or -1 (larger is worse)")
    x, y, _ = finite_pairs(measure, gap)
    (_, x, sizes_x), (_, y, sizes_y) = (np.unique(values, return_inverse=True, return_counts=True) for values in (x, y))
    order = np.lexsort((y, x))  # within a tie of the measure by gap, so that such a pair is no inversion
    _, sizes_both = np.unique(x * (len(sizes_y) + 1) + y, return_counts=True)
    ties = _tied(sizes_x) + _tied(sizes_y) - _tied(sizes_both)
    falling = _inversions(y[order])
    rising = _tied(len(x)) - ties - falling
    concordant, discordant = (falling, rising) if direction == 1 else (rising, falling)
    untied = concordant + discordant
    return PairwiseAccuracy(concordant / untied if untied else np.nan, concordant, discordant, ties)
