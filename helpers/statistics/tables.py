"""Tables of how well measures tell the gap, with intervals by resampling whole hyperparameter cells."""

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from helpers.agreement import Array, PairwiseAccuracy, finite_pairs, kendall, pairwise_accuracy, pearson, undefined
from helpers.cells import draws

__all__ = [
    "PairwiseAccuracy",
    "bootstrap_interval",
    "correlation_table",
    "finite_pairs",
    "kendall",
    "pairwise_accuracy",
    "pearson",
    "selection_table",
]

THRESHOLDS = (0.95, 0.90, 0.85, 0.80)
TOTAL = "Total"
STATISTICS = ("pearson", "kendall", "pairwise_accuracy")
# Above this many models the table of all pairs is not built; resamples are counted one by one.
_PAIR_TABLE_LIMIT = 4_000


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
    if statistic not in STATISTICS:
        raise ValueError(f"statistic {statistic!r} is unknown; choose one of {', '.join(STATISTICS)}")
    if not 0 < level < 1:
        raise ValueError(f"level {level} must be between 0 and 1, both excluded")
    x, y, kept = finite_pairs(measure, gap)
    if np.shape(cells) != kept.shape:
        raise ValueError(f"cells need one name per model, got shape {np.shape(cells)} for {len(kept)} models")
    codes, names = pd.factorize(np.asarray(cells)[kept])
    if len(names) < 3 or resamples < 1 or undefined(x, y):
        return np.nan, np.nan
    order = np.argsort(codes, kind="stable")
    x, y, codes = x[order], y[order], codes[order]
    values = _resampled(x, y, codes, statistic, resamples, np.random.default_rng(seed))
    values = values[np.isfinite(values)]
    if not len(values):
        return np.nan, np.nan
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _resampled(x: Array, y: Array, codes: NDArray[np.intp], statistic: str, resamples: int, rng: np.random.Generator) -> Array:
    """Values of the statistic on resamples; models come sorted by cell."""
    cells = int(codes[-1]) + 1
    if statistic != "pearson" and len(x) > _PAIR_TABLE_LIMIT:
        return np.array([_recount(x, y, counts[0, codes], statistic) for counts in draws(cells, min(resamples, 100), 1, rng)])
    chunk = max(1, 4_000_000 // cells)
    if statistic == "pearson":
        sums = _moment_sums(x, y, codes)
        return np.concatenate([_pearson_from_sums(counts @ sums) for counts in draws(cells, resamples, chunk, rng)])
    tables = _pair_tables(x, y, codes)
    return np.concatenate([_rank_statistic(counts, tables, statistic) for counts in draws(cells, resamples, chunk, rng)])


def _moment_sums(x: Array, y: Array, codes: NDArray[np.intp]) -> Array:
    """Per cell: n and the sums of x, y, x², y², xy, of the standardised values lest the squares cancel. (cells, 6)."""
    x, y = ((scaled - scaled.mean()) / scaled.std() for scaled in (values / np.abs(values).max() for values in (x, y)))
    return np.stack([np.bincount(codes, weights) for weights in (np.ones_like(x), x, y, x * x, y * y, x * y)], axis=1)


def _pearson_from_sums(sums: Array) -> Array:
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


def _recount(x: Array, y: Array, counts: Array, statistic: str) -> float:
    copies = np.repeat(np.arange(len(x)), counts.astype(int))
    return kendall(x[copies], y[copies]) if statistic == "kendall" else pairwise_accuracy(x[copies], y[copies]).accuracy


def _subsets(catalogue: pd.DataFrame, thresholds: Collection[float]) -> Iterator[tuple[str, float, pd.DataFrame]]:
    """Models above each training accuracy, per architecture and then pooled."""
    for architecture in [*catalogue["architecture"].unique(), TOTAL]:
        models = catalogue if architecture == TOTAL else catalogue[catalogue["architecture"] == architecture]
        for threshold in thresholds:
            yield architecture, threshold, models[models["train_accuracy"] > threshold]


def correlation_table(
    catalogue: pd.DataFrame,
    measures: Collection[str],
    thresholds: Collection[float] = THRESHOLDS,
    *,
    resamples: int = 2000,
    kendall_resamples: int = 500,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Correlate measures with the gap, per architecture and pooled, among the models above each training accuracy; Du et al., Table 3.

    Args:
        catalogue: one row per model: architecture, train_accuracy and gap (fractions), cell, and a column per measure.
        measures: the columns to correlate (a mapping of names to directions will do; the sign of the raw measure is kept).
        thresholds: a model is taken when its training accuracy is above, fractions.
        resamples: of Pearson's interval; 0 leaves it NaN.
        kendall_resamples: of Kendall's, which costs more.
        level: of both intervals.
        seed: of the resampling.

    Returns:
        One row per architecture (last "Total"), threshold and measure: n models used, dropped (not finite), cells, pearson_r,
        ci_low, ci_high, kendall_tau, kendall_low, kendall_high. What is undefined is NaN; no row is left out.
    """
    rows = []
    for architecture, threshold, models in _subsets(catalogue, thresholds):
        for name in measures:
            x, y, kept = finite_pairs(models[name], models["gap"])
            cells = models["cell"].to_numpy()[kept]
            sampling = {"level": level, "seed": seed}
            rows.append(
                {
                    "architecture": architecture,
                    "threshold": threshold,
                    "measure": name,
                    "n": len(x),
                    "dropped": int((~kept).sum()),
                    "cells": len(set(cells)),
                    "pearson_r": pearson(x, y),
                    **_named(("ci_low", "ci_high"), bootstrap_interval(x, y, cells, "pearson", resamples, **sampling)),
                    "kendall_tau": kendall(x, y),
                    **_named(("kendall_low", "kendall_high"), bootstrap_interval(x, y, cells, "kendall", kendall_resamples, **sampling)),
                }
            )
    return pd.DataFrame(rows)


def selection_table(
    catalogue: pd.DataFrame,
    measures: Mapping[str, int],
    thresholds: Collection[float] = THRESHOLDS,
    *,
    resamples: int = 500,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Say how often each measure picks the better of two models, per architecture and pooled; Du et al. 2024, Table 4.

    Args:
        catalogue: as for ``correlation_table``.
        measures: column to direction, +1 when a larger value promises a smaller gap, else -1.
        thresholds: a model is taken when its training accuracy is above, fractions.
        resamples: of the interval; 500 leave its ends uncertain by a few percent of its width.
        level: of the interval.
        seed: of the resampling.

    Returns:
        One row per architecture (last "Total"), threshold and measure: n, dropped, cells, accuracy (fraction), ci_low, ci_high,
        concordant, discordant, ties. What is undefined is NaN; no row is left out.
    """
    rows = []
    for architecture, threshold, models in _subsets(catalogue, thresholds):
        for name, direction in measures.items():
            x, y, kept = finite_pairs(models[name], models["gap"])
            cells = models["cell"].to_numpy()[kept]
            pairs = pairwise_accuracy(x, y, direction)
            interval = bootstrap_interval(direction * x, y, cells, "pairwise_accuracy", resamples, level, seed)
            subset = {"architecture": architecture, "threshold": threshold, "measure": name, "n": len(x), "dropped": int((~kept).sum())}
            rows.append(subset | {"cells": len(set(cells))} | pairs._asdict() | _named(("ci_low", "ci_high"), interval))
    return pd.DataFrame(rows)


def _named(names: Sequence[str], values: Sequence[float]) -> dict[str, float]:
    return dict(zip(names, values, strict=True))
