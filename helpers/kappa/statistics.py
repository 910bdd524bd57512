"""Error and Kappa of every class, their statistics over a grid of models, noise and unseen classes (Huang, Yu and Zhang 2025).

The tidy array of the paper is a table ``cells``, one row per model and setting: model, weights (their number), ssim (mean structural
similarity of the test images to the clean ones, 1 is clean), unseen_fraction (classes the backbone was not adapted to; the linear probe
has seen them, so this is "backbone-unseen" and no zero-shot claim), and the six ``STATISTICS`` over the classes.
"""

import itertools

import numpy as np
import pandas as pd
import scipy.stats
from numpy.typing import ArrayLike, NDArray

from helpers.statistics.permutation import adjusted_p_values, band, p_values

_Array = NDArray[np.float64]
AXES = ("ssim", "unseen_fraction", "weights")
CELL_STATISTICS = ("error_mean", "error_std", "error_10th_percentile", "kappa_loss_mean", "kappa_loss_std", "kappa_loss_10th_percentile")
_BIN_EDGES = np.arange(11) / 10  # the nearest float to each tenth, so that an error of 3 in 10 is not put below 0.3
_FLOOR = 1e-10


def _counts(confusion: ArrayLike) -> NDArray[np.int64]:
    given = np.asarray(confusion, dtype=float)
    if given.ndim != 2 or given.shape[0] != given.shape[1]:
        raise ValueError(f"a confusion matrix has a row and a column per class, got shape {given.shape}")
    wrong = ~np.isfinite(given) | (given < 0) | (given != np.floor(given))
    if wrong.any():
        raise ValueError(f"a confusion matrix counts images, got {given[wrong][0]}; allowed are whole numbers from 0")
    return given.astype(np.int64)


def per_class(confusion: ArrayLike) -> pd.DataFrame:
    """Error rate and Cohen's Kappa of each class against the rest; Huang et al. 2025, equations (1) and (2).

    ``g_i = 1 - n_ii / n_i.`` and ``kappa_i = (Po - Pe) / (1 - Pe)`` with ``Po = p_ii + p_{not i, not i}`` and
    ``Pe = p_i. p_.i + (1 - p_i.)(1 - p_.i)``. Both sides are multiplied by N², which leaves whole numbers, so only the division rounds.

    Args:
        confusion: (K, K) counts of images, rows the true class, columns the predicted one.

    Returns:
        One row per class: class_index, n test images, error in [0, 1], kappa in [-1, 1] (1 perfect, 0 chance, also for a class that is
        never predicted), kappa_loss = 1 - kappa in [0, 2]; lower error and loss are better. A class without test images is NaN.
        Where Pe = 1 (one class, always predicted) 0/0 is taken as kappa 0, stored as a loss of 1, as in the authors' newer code.

    Raises:
        ValueError: not square, or an entry that is no count.
    """
    counts = _counts(confusion)
    true = counts.sum(1)
    error, loss = error_and_loss(np.diag(counts), true, counts.sum(0))
    return pd.DataFrame({"class_index": np.arange(len(counts)), "n": true, "error": error, "kappa": 1 - loss, "kappa_loss": loss})


def error_and_loss(right: _Array, true: _Array, predicted: _Array) -> tuple[_Array, _Array]:
    """Error and Kappa loss of each class, (K, ...) each, from how many images are right, of the class, and taken for it: (K, ...).

    The first axis is the classes; what follows is any number of confusion matrices. See ``per_class``.
    """
    total = true.sum(0)
    disagreement = total * (true + predicted - 2 * right)  # N² (1 - Po)
    possible = total * (true + predicted) - 2 * true * predicted  # N² (1 - Pe)
    loss = np.divide(disagreement, possible, out=np.ones(true.shape), where=possible > 0)
    error = np.divide(true - right, true, out=np.full(true.shape, np.nan), where=true > 0)
    return error, np.where(true > 0, loss, np.nan)


def cell_statistics(per_class: pd.DataFrame) -> dict[str, float]:
    """Sum the classes of a cell up: mean, standard deviation (ddof 1) and 10th percentile of error and Kappa loss.

    Huang et al. 2025, M, SD and 10P of equation (3); their code takes ddof 1 for the error and 0 for Kappa, here it is 1 for both.
    The percentile is interpolated linearly between the classes. All six are lower for a better model.

    Args:
        per_class: the table of ``per_class``.

    Returns:
        The six ``STATISTICS``, then classes used and dropped (no test images). NaN without a class, the two deviations with one.
    """
    tested = per_class.dropna(subset=["error", "kappa_loss"])
    found = six_statistics(*tested[["error", "kappa_loss"]].to_numpy(dtype=float).T)
    return dict(zip(CELL_STATISTICS, found.tolist(), strict=True)) | {"classes": len(tested), "dropped": len(per_class) - len(tested)}


def six_statistics(error: _Array, loss: _Array) -> _Array:
    """The six ``CELL_STATISTICS`` over the last axis, the classes: (..., K) each -> (..., 6), see ``cell_statistics``."""
    count = error.shape[-1]
    found = np.full((*error.shape[:-1], len(CELL_STATISTICS)), np.nan)
    for place, values in ((0, error), (3, loss)):
        if count:
            found[..., place] = values.mean(-1)
            found[..., place + 2] = np.quantile(values, 0.1, axis=-1)
        if count > 1:
            found[..., place + 1] = values.std(-1, ddof=1)
    return found


def _histogram(per_class: pd.DataFrame) -> _Array:
    pairs = per_class[["error", "kappa_loss"]].dropna().clip(0, 1).to_numpy()
    counts, _, _ = np.histogram2d(pairs[:, 0], pairs[:, 1], bins=[_BIN_EDGES, _BIN_EDGES])
    return (counts / max(len(pairs), 1) + _FLOOR).ravel()


def kappa_error_divergence(cell: pd.DataFrame, reference: pd.DataFrame) -> float:
    """How far the (error, Kappa loss) pairs of a cell have moved from those of a reference: ``sum P log(P / Q)``, nats.

    Huang et al. 2025 report a Kullback-Leibler divergence without a formula; this is a working definition: histograms of 10 x 10 bins
    on [0, 1]² (a loss above 1 is put at 1), 1e-10 added to each fraction, normalised; reference is the clean cell of the same model.

    Args:
        cell: the table of ``per_class``; P is its histogram.
        reference: likewise, for Q.

    Returns:
        In [0, 23.1], lower is more stable, 0 for equal histograms. A class in a bin that the reference leaves empty adds about
        23 / K, so that mostly the share of such classes is told. NaN when one of the two has no class with test images.
    """
    if any(table[["error", "kappa_loss"]].dropna().empty for table in (cell, reference)):
        return np.nan
    return float(scipy.stats.entropy(_histogram(cell), _histogram(reference)))


def cell_array(cells: pd.DataFrame) -> tuple[list[_Array], _Array]:
    """Lay the cells out on the full grid of their levels (the paper's 3DA); levels are equal only when their numbers are.

    Returns:
        The ascending levels of the three ``AXES``, and (S, U, W, 6) the statistics in the order of ``STATISTICS``, NaN where no cell is.

    Raises:
        ValueError: no cells, a level that is not finite, or two cells at one place (models with the same number of weights).
    """
    places = cells[list(AXES)].astype(float)
    if not len(places) or not np.isfinite(places.to_numpy()).all():
        raise ValueError(f"{len(places)} cells: there must be one at least, and each needs a finite {', '.join(AXES)}")
    if places.duplicated().any():
        twice = (places == places[places.duplicated()].iloc[0]).all(axis=1)
        place, models = places[twice].iloc[0].to_dict(), ", ".join(map(str, cells.loc[twice, "model"]))
        raise ValueError(f"{twice.sum()} cells lie at {place} ({models}); average them, or keep one")
    levels = [np.unique(places[axis]) for axis in AXES]
    statistics = cells[list(CELL_STATISTICS)].set_axis(pd.MultiIndex.from_frame(places))
    values = statistics.reindex(pd.MultiIndex.from_product(levels)).to_numpy(dtype=float)
    return levels, values.reshape(*map(len, levels), len(CELL_STATISTICS))


def marginals(cells: pd.DataFrame) -> pd.DataFrame:
    """Average each statistic over the two other axes, for every level of an axis; Huang et al. 2025, equation (5).

    The equation prints a sum; the mean, which the authors' code takes, can be compared between axes.

    Returns:
        One row per axis and level: axis (one of ``AXES``), level, n cells averaged, and the six statistics. NaN where a cell is missing
        or undefined, because a mean over fewer settings than at the next level could not be compared with it.

    Raises:
        ValueError: see ``cell_array``.
    """
    levels, values = cell_array(cells)
    tables = []
    for number, axis in enumerate(AXES):
        settings = np.moveaxis(values, number, 0).reshape(len(levels[number]), -1, len(CELL_STATISTICS))
        means = dict(zip(CELL_STATISTICS, settings.mean(axis=1).T, strict=True))
        tables.append(pd.DataFrame({"axis": axis, "level": levels[number], "n": settings.shape[1], **means}))
    return pd.concat(tables, ignore_index=True)


def slice_marginals(cells: pd.DataFrame) -> pd.DataFrame:
    """Average the mean and the 10th percentile of each model's error along two slices; Huang et al. 2025, equation (6).

    One slice runs over the unseen fractions at the largest SSIM (1 in the paper), the other over SSIM at the smallest unseen fraction (0).

    Returns:
        Index model; error_mean_over_unseen_fraction, error_10th_percentile_over_unseen_fraction, error_mean_over_ssim and
        error_10th_percentile_over_ssim, in [0, 1]. NaN where a cell of the slice is missing or undefined.
    """
    clean, seen = cells["ssim"] == cells["ssim"].max(), cells["unseen_fraction"] == cells["unseen_fraction"].min()
    columns = {}
    for axis, part in (("unseen_fraction", cells[clean]), ("ssim", cells[seen])):
        for statistic in ("error_mean", "error_10th_percentile"):
            table = part.pivot(index="model", columns=axis, values=statistic).reindex(cells["model"].unique())
            columns[f"{statistic}_over_{axis}"] = table.mean(axis=1, skipna=False)
    return pd.DataFrame(columns)


def _order(values: _Array) -> _Array:
    """Sign of each difference, by comparison so that large values do not overflow: (..., n) -> (..., n, n)."""
    rows, columns = values[..., :, None], values[..., None, :]
    return (rows > columns).astype(float) - (rows < columns)


def sign_error_of_complexity(complexity: ArrayLike, marginal: ArrayLike) -> float:
    """How often a complexity measure orders two models against their error; Huang et al. 2025, equation (7).

    ``SE = 1/2 mean over pairs of models of (1 - sgn(C_a - C_b) sgn(g_a - g_b))``; a pair tied in either adds 1/2.

    Args:
        complexity: (n,) one value per model; a larger one promises a larger error.
        marginal: (n,) error of the same models, such as a column of ``slice_marginals``.

    Returns:
        In [0, 1]: 0 every pair in order, 0.5 chance or a constant, 1 every pair reversed. Models that are not finite in both are left
        out; NaN for fewer than two.

    Raises:
        ValueError: the arrays are not flat or not of one length.
    """
    x, y = np.asarray(complexity, dtype=float), np.asarray(marginal, dtype=float)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"complexity and marginal need one value per model each, got shapes {x.shape} and {y.shape}")
    kept = np.isfinite(x) & np.isfinite(y)
    n = int(kept.sum())
    if n < 2:
        return np.nan
    return float((1 - (_order(x[kept]) * _order(y[kept])).sum() / (n * (n - 1))) / 2)


_ALL_PAIRINGS = 7  # models, up to which every pairing is tried


def _pairings(models: int, resamples: int, seed: int) -> NDArray[np.intp]:
    """Places of the models after each pairing but the one that was observed: all of them, or drawn: (D, n)."""
    if models <= _ALL_PAIRINGS:
        return np.array(list(itertools.permutations(range(models))), dtype=np.intp).reshape(-1, models)[1:]
    return np.random.default_rng(seed).permuted(np.tile(np.arange(models), (resamples, 1)), axis=1)


def _mean_errors(complexities: _Array, truth: _Array, pairings: NDArray[np.intp]) -> _Array:
    """Mean sign-error of each measure (n, M) under each pairing of its models with the order of the errors (n, n): (D, M)."""
    orders = np.nan_to_num(_order(np.where(np.isfinite(complexities), complexities, np.nan).T))
    count = np.isfinite(complexities).sum(0)
    agreeing = np.array([np.tensordot(orders, truth[np.ix_(row, row)], 2) for row in pairings]).reshape(len(pairings), -1)
    return (1 - agreeing / np.where(count > 1, count * (count - 1), np.nan)) / 2


def slice_sign_errors(complexities: pd.DataFrame, cells: pd.DataFrame, *, resamples: int = 9999, seed: int = 0) -> pd.DataFrame:
    """Sign-error of every measure against the slices, with ranks and p-values; Huang et al. 2025, Table 3.

    The paper does not name the test behind its p-values. Here p is the share of pairings of complexities with models, drawn at random
    (all of them up to 7 models), whose mean of the four sign-errors is no larger; p_adjusted is that for all measures together, which share
    every pairing, by the least of them (maxT; Westfall and Young 1993).

    Args:
        complexities: index model, a column per measure; a larger value promises a larger error. A model undefined here or in a slice
            is left out for this measure.
        cells: the tidy array of one family.
        resamples: pairings drawn.
        seed: of the draws.

    Returns:
        One row per measure: measure, n models, the four sign-errors named as in ``slice_marginals``, p_value, p_adjusted, band (the least
        mean of the four that chance gives any of these measures lies above it in 95 %; NaN where so few pairings cannot tell), mean_rank
        over the four (1 lowest, ties averaged), best (among the three lowest mean ranks; a tie for the third adds more), by mean_rank.

    Raises:
        ValueError: a model of the cells has no row in complexities.
    """
    slices = slice_marginals(cells)
    absent = slices.index.difference(complexities.index)
    if len(absent):
        raise ValueError(f"no complexity is given for {', '.join(map(str, absent))}; every model of the cells needs a row")
    slices = slices.dropna()
    values = complexities.loc[slices.index].replace([np.inf, -np.inf], np.nan)
    rows = []
    for measure, column in values.items():
        errors = {name: sign_error_of_complexity(column, slices[name]) for name in slices}
        rows.append({"measure": measure, "n": int(column.notna().sum()), **errors})
    truth = np.mean([_order(slices[name].to_numpy()) for name in slices], axis=0)
    pairings = np.vstack([np.arange(len(values), dtype=np.intp), _pairings(len(values), resamples, seed)])
    found = -_mean_errors(values.to_numpy(dtype=float), truth, pairings)  # larger is more extreme
    observed, null = found[0], found[1:]
    table = pd.DataFrame(rows).assign(p_value=p_values(observed, null), p_adjusted=adjusted_p_values(observed, null), band=-band(null))
    table["mean_rank"] = table[list(slices)].rank().mean(axis=1, skipna=False)
    table["best"] = table["mean_rank"].rank(method="min") <= 3
    return table.sort_values("mean_rank", kind="stable", ignore_index=True)
