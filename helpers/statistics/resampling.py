"""Is one measure really better than another: the difference of their strengths, with an interval from paired resampling."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from helpers.statistics.agreement import Array, finite_pairs, kendall, no_correlation, pairwise_accuracy, pearson
from helpers.statistics.design import Codes, check_columns, finite_groups


def draws(cells: int, resamples: int, chunk: int, rng: np.random.Generator) -> Iterator[Array]:
    """Draw whole cells with replacement: how often each is in each resample, (up to chunk, cells) at a time to bound memory."""
    for start in range(0, resamples, chunk):
        rows = min(chunk, resamples - start)
        drawn = rng.integers(cells, size=(rows, cells)) + np.arange(rows)[:, None] * cells
        yield np.bincount(drawn.ravel(), minlength=rows * cells).reshape(rows, cells).astype(float)


STATISTICS = ("pearson", "kendall")


# Above this many models the tables of all pairs are not built; resamples are counted one by one, and at most _RECOUNTS of them.
_PAIR_TABLE_LIMIT = 4_000


_RECOUNTS = 100


def difference_table(
    catalogue: pd.DataFrame,
    measures: Mapping[str, int],
    *,
    reference: str | None = None,
    statistic: str = "pearson",
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Compare the strength of each measure with that of a reference by paired cluster bootstrap; Efron and Tibshirani 1993, chapter 13.

    The strength is ``-direction * correlation with the gap``: positive for a measure that works. Whole cells are drawn with replacement,
    and both strengths are computed on the same draw, so that what moves both cancels in the difference. Two intervals that overlap do
    not tell that two measures are alike; an interval of the difference that holds 0 says that these models cannot tell them apart. When
    the reference is chosen as the strongest on the same models, its lead is flattered; the intervals do not correct for it.

    Args:
        catalogue: one row per model: gap (fraction), cell, and a column per measure.
        measures: column to direction, +1 when a larger value promises a smaller gap, else -1.
        reference: one of the measures; None takes the strongest on its own models, or the first where no strength is defined.
        statistic: one of ``STATISTICS``; Kendall's is tau-b.
        resamples: number of draws; for Kendall at most 100 with more than 4,000 models.
        level: coverage of the percentile interval, in (0, 1).
        seed: of the draws.

    Returns:
        One row per measure: reference, n models where both are finite, dropped, strength and reference_strength on these, difference
        (strength minus reference_strength, in [-2, 2]), low, high. The reference itself has a difference of 0. What is undefined is
        NaN; so are low and high for fewer than 3 cells.

    Raises:
        ValueError: an unknown statistic or reference, an absent column, a direction that is not +1 or -1, or a level outside (0, 1).
    """
    _check(catalogue, measures, reference, statistic, level)
    correlation = pearson if statistic == "pearson" else kendall
    names = list(measures)
    values = catalogue[names].to_numpy(dtype=float) * -np.array(list(measures.values()), dtype=float)
    gap, cells = catalogue["gap"].to_numpy(dtype=float), catalogue["cell"].to_numpy()
    if reference is None:
        strengths = np.array([correlation(column, gap) for column in values.T])
        reference = names[int(np.argmax(np.where(np.isnan(strengths), -np.inf, strengths)))]
    other = names.index(reference)
    rows = {}
    needed = np.isfinite(values[:, other]) & np.isfinite(gap)
    for kept, columns in finite_groups(values, needed):
        x, y = values[np.ix_(kept, [other, *columns])], gap[kept]
        drawn = _resampled(x, y, cells[kept], statistic, resamples, seed)
        strengths = [correlation(column, y) for column in x.T]
        for position, column in enumerate(columns, start=1):
            row = {"measure": names[column], "reference": reference, "n": int(kept.sum()), "dropped": int((~kept).sum())}
            row |= {"strength": strengths[position], "reference_strength": strengths[0]}
            low, high = _interval(drawn[:, position] - drawn[:, 0], level)
            rows[column] = row | {"difference": strengths[position] - strengths[0], "low": low, "high": high}
    return pd.DataFrame([rows[column] for column in range(len(names))])


def _check(catalogue: pd.DataFrame, measures: Mapping[str, int], reference: str | None, statistic: str, level: float) -> None:
    if not measures:
        raise ValueError("there are no measures to compare")
    check_columns(catalogue, measures, "cell")
    if reference is not None and reference not in measures:
        raise ValueError(f"reference {reference!r} is not among the measures {', '.join(measures)}")
    if statistic not in STATISTICS:
        raise ValueError(f"statistic {statistic!r} is unknown; choose one of {', '.join(STATISTICS)}")
    if not 0 < level < 1:
        raise ValueError(f"level {level} must be between 0 and 1, both excluded")


def _interval(differences: Array, level: float) -> tuple[float, float]:
    differences = differences[np.isfinite(differences)]
    if not len(differences):
        return np.nan, np.nan
    low, high = np.quantile(differences, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _resampled(values: Array, gap: Array, cells: NDArray, statistic: str, resamples: int, seed: int) -> Array:
    """Correlations of the columns with the gap on resamples of whole cells: (n, M) -> (B, M); no rows for fewer than 3 cells."""
    codes, names = pd.factorize(cells)
    if len(names) < 3 or resamples < 1:
        return np.empty((0, values.shape[1]))
    order = np.argsort(codes, kind="stable")
    values, gap, codes = values[order], gap[order], codes[order]
    rng = np.random.default_rng(seed)
    if statistic == "pearson":
        sums = _moment_sums(values, gap, codes)
        chunk = max(1, 4_000_000 // len(names))
        return np.concatenate([_pearson_from_sums(counts, sums) for counts in draws(len(names), resamples, chunk, rng)])
    if len(gap) > _PAIR_TABLE_LIMIT:
        drawn = draws(len(names), min(resamples, _RECOUNTS), 1, rng)
        return np.stack([_recount(values, gap, counts[0, codes]) for counts in drawn])
    (counts,) = draws(len(names), resamples, resamples, rng)
    return _kendall_from_tables(values, gap, codes, counts.astype(np.float32))


def _standardised(values: Array) -> Array:
    """Columns of mean 0 and variance 1, lest squares cancel or overflow; one that is constant to rounding stays near 0."""
    largest = np.abs(values).max(0)
    scaled = values / np.where(largest > 0, largest, 1)
    scaled = scaled - scaled.mean(0)
    spread = scaled.std(0)
    return scaled / np.where(spread > 1e-12, spread, 1)


def _moment_sums(values: Array, gap: Array, codes: Codes) -> tuple[Array, Array, Array, Array]:
    """Per cell: models, and the sums of x, x² and x times gap, (C, M + 1) each; the gap is the last column."""
    x = _standardised(np.column_stack([values, gap]))
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    sums = (np.add.reduceat(terms, starts, axis=0) for terms in (x, x * x, x * x[:, -1:]))
    return np.bincount(codes)[:, None].astype(float), *sums


def _pearson_from_sums(counts: Array, sums: tuple[Array, Array, Array, Array]) -> Array:
    models, x, squares, products = (counts @ part for part in sums)
    mean = x / models
    spread = squares / models - mean**2
    # Below 1e-12 of the whole set's variance a resample is constant to rounding.
    spread = np.where(spread > 1e-12, spread, np.nan)
    r = (products / models - mean * mean[:, -1:]) / np.sqrt(spread * spread[:, -1:])
    return np.clip(r[:, :-1], -1, 1)


def _kendall_from_tables(values: Array, gap: Array, codes: Codes, counts: NDArray[np.float32]) -> Array:
    """Tau-b on each resample from sums over the pairs between cells; copies of a model tie with it and add 0."""
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    gap_signs = _sign_table(gap)
    untied_gap = _quadratic(counts, np.abs(gap_signs), starts)
    different = _quadratic(counts, (1 - np.eye(len(gap), dtype=np.int8)), starts)
    found = []
    for column in values.T:
        signs = _sign_table(column)
        tied = np.count_nonzero(signs) < len(gap) * (len(gap) - 1)
        untied = _quadratic(counts, np.abs(signs), starts) if tied else different
        product = untied * untied_gap
        found.append(_quadratic(counts, signs * gap_signs, starts) / np.sqrt(np.where(product > 0, product, np.nan)))
    return np.stack(found, axis=1)


def _sign_table(values: Array) -> NDArray[np.int8]:
    return np.greater.outer(values, values).astype(np.int8) - np.less.outer(values, values)


def _quadratic(counts: NDArray[np.float32], table: NDArray[np.int8], starts: Codes) -> Array:
    """``w' T w`` for each row w of counts, with T the sums of the table over pairs of cells. (B,)."""
    by_row = np.add.reduceat(table, starts, axis=0, dtype=np.float32)
    # Single precision holds these whole numbers exactly up to 16.7 million.
    return np.einsum("bc,bc->b", counts @ np.add.reduceat(by_row, starts, axis=1), counts, dtype=np.float64)


def _recount(values: Array, gap: Array, counts: Array) -> Array:
    copies = np.repeat(np.arange(len(gap)), counts.astype(int))
    return np.array([kendall(column[copies], gap[copies]) for column in values.T])


INTERVAL_STATISTICS = ("pearson", "kendall", "pairwise_accuracy")


def bootstrap_interval(
    measure: ArrayLike,
    gap: ArrayLike,
    cells: ArrayLike,
    statistic: str,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Interval of a statistic by percentile cluster bootstrap: whole hyperparameter cells are drawn with replacement.

    The snapshots and repeats of a cell are alike, so resampling single models would count them as independent and give an interval
    that is too narrow. The percentile form (Efron and Tibshirani 1993, chapter 13) is taken and not BCa: BCa's acceleration comes from
    leaving out one unit at a time, which for unequal cells is no longer the quantity it corrects for, and it can leave the range of the
    resamples when cells are few. Resamples where the statistic is undefined (one cell drawn throughout) are left out.

    Args:
        measure: (n,) one value per model; for "pairwise_accuracy" signed such that larger promises a smaller gap.
        gap: (n,) train minus test accuracy.
        cells: (n,) name of each model's cell.
        statistic: one of ``STATISTICS``.
        resamples: number of resamples. With more than 4,000 models, rank statistics take 100 at most: each costs O(n log² n).
        level: coverage, in (0, 1).
        seed: of the resampling.

    Returns:
        (low, high); NaN twice for fewer than 3 cells with finite values, no resample or a constant.

    Raises:
        ValueError: an unknown statistic, a level outside (0, 1), or arrays that are not of one length.
    """
    if statistic not in INTERVAL_STATISTICS:
        raise ValueError(f"statistic {statistic!r} is unknown; choose one of {', '.join(INTERVAL_STATISTICS)}")
    if not 0 < level < 1:
        raise ValueError(f"level {level} must be between 0 and 1, both excluded")
    x, y, kept = finite_pairs(measure, gap)
    if np.shape(cells) != kept.shape:
        raise ValueError(f"cells need one name per model, got shape {np.shape(cells)} for {len(kept)} models")
    codes, names = pd.factorize(np.asarray(cells)[kept])
    if len(names) < 3 or resamples < 1 or no_correlation(x, y):
        return np.nan, np.nan
    order = np.argsort(codes, kind="stable")
    x, y, codes = x[order], y[order], codes[order]
    values = _pair_resampled(x, y, codes, statistic, resamples, np.random.default_rng(seed))
    values = values[np.isfinite(values)]
    if not len(values):
        return np.nan, np.nan
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _pair_resampled(x: Array, y: Array, codes: NDArray[np.intp], statistic: str, resamples: int, rng: np.random.Generator) -> Array:
    """Values of the statistic on resamples; models come sorted by cell."""
    cells = int(codes[-1]) + 1
    if statistic != "pearson" and len(x) > _PAIR_TABLE_LIMIT:
        return np.array([_pair_recount(x, y, counts[0, codes], statistic) for counts in draws(cells, min(resamples, 100), 1, rng)])
    chunk = max(1, 4_000_000 // cells)
    if statistic == "pearson":
        sums = _pair_moment_sums(x, y, codes)
        return np.concatenate([_pair_pearson(counts @ sums) for counts in draws(cells, resamples, chunk, rng)])
    tables = _pair_tables(x, y, codes)
    return np.concatenate([_rank_statistic(counts, tables, statistic) for counts in draws(cells, resamples, chunk, rng)])


def _pair_moment_sums(x: Array, y: Array, codes: NDArray[np.intp]) -> Array:
    """Per cell: n and the sums of x, y, x², y², xy, of the standardised values lest the squares cancel. (cells, 6)."""
    x, y = ((scaled - scaled.mean()) / scaled.std() for scaled in (values / np.abs(values).max() for values in (x, y)))
    return np.stack([np.bincount(codes, weights) for weights in (np.ones_like(x), x, y, x * x, y * y, x * y)], axis=1)


def _pair_pearson(sums: Array) -> Array:
    n, sx, sy, sxx, syy, sxy = sums.T
    spread_x, spread_y = sxx / n - (sx / n) ** 2, syy / n - (sy / n) ** 2
    # Below 1e-12 of the whole set's variance a resample is constant to rounding.
    defined = (spread_x > 1e-12) & (spread_y > 1e-12)
    product = np.where(defined, spread_x * spread_y, np.nan)
    return np.clip((sxy / n - sx * sy / n**2) / np.sqrt(product), -1, 1)


def _pair_tables(x: Array, y: Array, codes: NDArray[np.intp]) -> tuple[Array, Array, Array, Array]:
    """Sums over the pairs between cells: sign product, untied in x, untied in y, untied in both; each (cells, cells).

    For a resample that holds cell c w_c times, the sum over its pairs is ``w' T w``; copies of a model tie with it and add 0.
    """
    sign_x, sign_y = (np.greater.outer(values, values).astype(np.int8) - np.less.outer(values, values) for values in (x, y))
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    per_pair = (sign_x * sign_y, np.abs(sign_x), np.abs(sign_y), np.abs(sign_x * sign_y))
    by_row = (np.add.reduceat(table, starts, axis=0, dtype=float) for table in per_pair)
    return tuple(np.add.reduceat(table, starts, axis=1) for table in by_row)


def _rank_statistic(counts: Array, tables: Sequence[Array], statistic: str) -> Array:
    signed, untied_x, untied_y, untied = (((counts @ table) * counts).sum(1) for table in tables)
    if statistic == "pairwise_accuracy":
        return (1 - signed / np.where(untied > 0, untied, np.nan)) / 2
    product = untied_x * untied_y
    return signed / np.sqrt(np.where(product > 0, product, np.nan))


def _pair_recount(x: Array, y: Array, counts: Array, statistic: str) -> float:
    copies = np.repeat(np.arange(len(x)), counts.astype(int))
    return kendall(x[copies], y[copies]) if statistic == "kendall" else pairwise_accuracy(x[copies], y[copies]).accuracy
