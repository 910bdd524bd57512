"""How often a measure gets the sign of a change in the gap wrong when one hyperparameter changes: Dziugaite et al. 2020."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from helpers.statistics.correlations import Array, finite_groups
from helpers.statistics.hyperparameters import Codes, arrays_of, joint_codes

ALL_ENVIRONMENTS = "all"


# Two cells of 30 repeats have 900 pairs; more would cost time and hardly move the mean.
REPEAT_LIMIT = 30


_PAIRS_AT_ONCE = 100_000


# The columns of the sums over an environment's pairs; one column per measure follows.
_WEIGHT, _SQUARES, _PAIRS, _WRONG = range(4)


def noise_weights(gap_difference: ArrayLike, test_images: int, shift: float = 0.0) -> Array:
    """Weigh pairs by how surely their gaps differ by more than chance; Dziugaite et al. 2020, section 4, Monte-Carlo noise.

    ``w0 = max(0, 1 - 2 exp(-n (|dG| - shift)_+^2 / 2))^2`` bounds the probability that both test accuracies, each measured on n images,
    are close enough for the sign to be right (Hoeffding); the weight is ``max(0, w0 - 1/2)``. It is above 0 where |dG| exceeds shift +
    sqrt(3.842 / n): 0.0196 for 10,000 images, 0.0620 for 1,000.

    Args:
        gap_difference: any shape, difference of two gaps as fractions.
        test_images: n, the images each test accuracy was measured on.
        shift: the difference that counts as none, a fraction; 0 takes every true difference.

    Returns:
        Of the same shape, in [0, 1/2]; NaN for NaN.

    Raises:
        ValueError: no test image, or a negative shift.
    """
    if test_images < 1:
        raise ValueError(f"test_images {test_images} must be at least 1")
    if not shift >= 0:
        raise ValueError(f"shift {shift} must be 0 or larger, as a fraction")
    beyond = np.maximum(np.abs(np.asarray(gap_difference, dtype=float)) - shift, 0)
    return np.maximum(np.maximum(1 - 2 * np.exp(-test_images * beyond**2 / 2), 0) ** 2 - 0.5, 0)


def pair_sign_error(measure_a: ArrayLike, measure_b: ArrayLike, gap_a: ArrayLike, gap_b: ArrayLike, weights: ArrayLike) -> float:
    """Weighted share of pairs whose sign is wrong: ``SE = 1/2 (1 - sgn(C_a - C_b) sgn(G_a - G_b))``; Dziugaite et al. 2020, equation (4).

    A pair that is tied in either counts 1/2. Pairs with a value that is not finite are left out.

    Args:
        measure_a: (P,) the measure C of the first model of each pair, signed such that it grows with the gap when it works.
        measure_b: (P,) of the second.
        gap_a: (P,) gap G of the first.
        gap_b: (P,) of the second.
        weights: (P,) 0 or larger, see ``noise_weights``.

    Returns:
        In [0, 1]: 0 is perfect, 0.5 chance or a constant measure, 1 reversed; NaN when all weights are 0.

    Raises:
        ValueError: the arrays are not of one length.
    """
    columns = [np.asarray(column, dtype=float) for column in (measure_a, measure_b, gap_a, gap_b, weights)]
    if any(column.ndim != 1 or column.shape != columns[0].shape for column in columns):
        raise ValueError(f"the five arrays need one value per pair each, got shapes {', '.join(str(column.shape) for column in columns)}")
    values = np.stack(columns)
    c_a, c_b, g_a, g_b, w = values[:, np.isfinite(values).all(0)]
    wrong = (1 - _signs(c_a, c_b) * _signs(g_a, g_b)) / 2
    return float((w * wrong).sum() / w.sum()) if w.sum() > 0 else np.nan


def sign_error_table(
    catalogue: pd.DataFrame,
    measures: Mapping[str, int],
    axes: Sequence[str],
    *,
    test_images: int,
    shift: float = 0.0,
    minimum_effective_sample: float = 12.0,
    pooled: bool | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Summarise the sign errors of measures over environments; Dziugaite et al. 2020, section 4 and Figure 1.

    A cell is a combination of hyperparameters, and an environment two cells that differ in exactly one of them, with all repeats of one
    crossed with all of the other. Its error is ``sum w SE / sum w``, see ``sign_error`` and ``noise_weights``; it is kept when its
    effective sample ``(sum w)^2 / sum w^2`` is large enough. That takes four repeats per cell at least. Where there are fewer, the pairs
    of all cells that differ only in this hyperparameter and between the same two levels are pooled to one environment: this averages over
    settings where the paper takes the worst, so that the two kinds are not to be compared.

    Args:
        catalogue: one row per model: gap (fraction), the axes and a column per measure. The paper takes converged models only.
        measures: column to direction, +1 when a larger value promises a smaller gap, else -1; errors count -direction * measure.
        axes: the hyperparameters, of a few levels each; floats are equal within 1e-9, relative.
        test_images: the images that each test accuracy was measured on.
        shift: see ``noise_weights``.
        minimum_effective_sample: pairs' worth of weight below which an environment is left out; the paper takes 12.
        pooled: True pools, False never does; None pools for a measure of which no environment would be kept on any axis.
        seed: of the ``REPEAT_LIMIT`` repeats that are taken of a cell with more.

    Returns:
        One row per measure and hyperparameter (last "all"): environment ("single" or "pooled"), mean, percentile_90 and maximum (the
        robust error) over the environments kept, all in [0, 1] and 0 for a perfect measure; environments kept, candidates among which
        they were, pairs with weight in those kept, n models, dropped (not finite). NaN where no environment is kept.

    Raises:
        ValueError: an absent column, another direction, a missing hyperparameter, or as in ``noise_weights``.
    """
    values, gap, levels = arrays_of(catalogue, measures, axes)
    weigh = partial(noise_weights, test_images=test_images, shift=shift)
    names, rows = list(measures), {}
    for kept, columns in finite_groups(values, gap[None]):
        axis, span, sums = _environments(values[np.ix_(kept, columns)], gap[kept], levels[kept], weigh, seed)
        pool = pooled if pooled is not None else not _large_enough(sums, minimum_effective_sample).any()
        if pool:
            axis, sums = _pool(axis, span, sums)
        keep = _large_enough(sums, minimum_effective_sample)
        counts = {"n": int(kept.sum()), "dropped": int((~kept).sum())}
        for position, column in enumerate(columns):
            error = sums[:, _WRONG + position] / np.where(keep, sums[:, _WEIGHT], np.nan)
            for number, name in enumerate([*axes, ALL_ENVIRONMENTS]):
                chosen = axis == number if name != ALL_ENVIRONMENTS else np.ones_like(keep)
                row = {"measure": names[column], "hyperparameter": name, "environment": "pooled" if pool else "single"}
                row |= _summary(error[chosen & keep]) | {"environments": int((chosen & keep).sum()), "candidates": int(chosen.sum())}
                rows[column, number] = row | {"pairs": int(sums[chosen & keep, _PAIRS].sum())} | counts
    return pd.DataFrame([rows[key] for key in sorted(rows)])


def _summary(errors: Array) -> dict[str, float]:
    errors = errors if len(errors) else np.array([np.nan])
    return {"mean": float(errors.mean()), "percentile_90": float(np.quantile(errors, 0.9)), "maximum": float(errors.max())}


def _signs(a: ArrayLike, b: ArrayLike) -> NDArray[np.int8]:
    return np.greater(a, b).astype(np.int8) - np.less(a, b)


def _large_enough(sums: Array, minimum: float) -> NDArray[np.bool_]:
    return (sums[:, _WEIGHT] > 0) & (sums[:, _WEIGHT] ** 2 >= minimum * sums[:, _SQUARES])


def _some_repeats(cells: Codes, seed: int) -> Codes:
    """Choose at most ``REPEAT_LIMIT`` models of each cell at random: their numbers, sorted by cell."""
    shuffled = np.random.default_rng(seed).permutation(len(cells))
    order = shuffled[np.argsort(cells[shuffled], kind="stable")]
    counts = np.bincount(cells)
    return order[np.arange(len(cells)) - np.repeat(np.cumsum(counts) - counts, counts) < REPEAT_LIMIT]


def _neighbours(levels: Codes) -> Iterator[tuple[int, Codes, Codes]]:
    """Pairs of cells that differ in one axis only: its number, and the numbers of the cells, lower level first; levels are (C, A)."""
    for axis in range(levels.shape[1]):
        rest = joint_codes(np.delete(levels, axis, axis=1).T, len(levels))
        order = np.lexsort((levels[:, axis], rest))
        for step in range(1, np.bincount(rest).max(initial=0)):
            alike = rest[order[:-step]] == rest[order[step:]]
            yield axis, order[:-step][alike], order[step:][alike]


def _environments(values: Array, gap: Array, levels: Codes, weigh: Callable[[Array], Array], seed: int) -> tuple[Codes, Codes, Array]:
    """Of each environment its axis (E,), its two levels as one number (E,), and the sums over its pairs (E, 3 + M)."""
    cells = joint_codes(levels.T, len(levels))
    chosen = _some_repeats(cells, seed)
    levels = levels[np.unique(cells, return_index=True)[1]]
    sizes = np.bincount(cells[chosen])
    # Ranks tell the same signs as the values, in half the memory.
    ranks, gap = rankdata(values[chosen], "dense", axis=0).astype(np.int32), gap[chosen]
    axes, spans, sums = [np.zeros(0, int)], [np.zeros(0, int)], [np.zeros((0, _WRONG + values.shape[1]))]
    for axis, first, second in _neighbours(levels):
        axes.append(np.full(len(first), axis))
        spans.append(levels[first, axis] * (levels[:, axis].max() + 1) + levels[second, axis])
        chunks = np.cumsum(sizes[first] * sizes[second]) // _PAIRS_AT_ONCE
        for part in np.split(np.arange(len(first)), np.flatnonzero(np.diff(chunks)) + 1):
            sums.append(_pair_sums(ranks, gap, _crossed(first[part], second[part], sizes), len(part), weigh))
    return np.concatenate(axes), np.concatenate(spans), np.concatenate(sums)


def _crossed(first: Codes, second: Codes, sizes: Codes) -> tuple[Codes, Codes, Codes]:
    """Cross all models of each first cell with all of its second one: the two (P,) models, sorted by cell, and the (P,) environment."""
    starts, counts = np.cumsum(sizes) - sizes, sizes[first] * sizes[second]
    environment = np.repeat(np.arange(len(first)), counts)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    row, column = np.divmod(within, sizes[second][environment])
    return starts[first][environment] + row, starts[second][environment] + column, environment


def _pair_sums(ranks: Codes, gap: Array, pairs: Sequence[Codes], environments: int, weigh: Callable[[Array], Array]) -> Array:
    """Sums over the pairs of each environment: (environments, 3 + M)."""
    left, right, environment = pairs
    weights = weigh(gap[left] - gap[right])
    used = weights > 0
    left, right, environment, weights = left[used], right[used], environment[used], weights[used]
    sums = np.zeros((environments, _WRONG + ranks.shape[1]))
    starts = np.flatnonzero(np.diff(environment, prepend=-1))
    wrong = (1 - _signs(ranks[left], ranks[right]) * _signs(gap[left], gap[right])[:, None]) * (weights / 2)[:, None]
    per_pair = np.column_stack([weights, weights**2, np.ones_like(weights), wrong])
    sums[environment[starts]] = np.add.reduceat(per_pair, starts, axis=0)
    return sums


def _pool(axis: Codes, span: Codes, sums: Array) -> tuple[Codes, Array]:
    """Add up the environments of the same axis and the same two levels."""
    together = pd.DataFrame(sums).groupby([axis, span]).sum()
    return together.index.get_level_values(0).to_numpy(dtype=np.int64), together.to_numpy()
