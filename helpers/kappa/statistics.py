"""Error and Kappa of every class, and their statistics over a grid of networks, noise and unseen classes (Huang, Yu and Zhang 2025).

The paper's tidy array is a table of cells, one row per network and setting: model, weights (their number), ssim (1 is clean),
unseen_fraction (share of the classes that did not adapt the backbone; the linear probe has seen them), and the six ``CELL_STATISTICS``.
"""

import itertools

import numpy as np
import pandas as pd
import scipy.stats
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from helpers.statistics.correlations import Array, pair_counts
from helpers.statistics.permutation import (
    adjusted_p_values,
    band,
    p_values,
    permuted_rows,
)

AXES = ("ssim", "unseen_fraction", "weights")
CELL_STATISTICS = (
    "error_mean",
    "error_std",
    "error_10th_percentile",
    "kappa_loss_mean",
    "kappa_loss_std",
    "kappa_loss_10th_percentile",
)
_PLACE = [
    "family",
    "model",
    "architecture",
    "model_id",
    "origin",
    "weights",
    "ssim",
    "ssim_reached",
    "unseen_fraction",
]
_BIN_EDGES = (
    np.arange(11) / 10
)  # the nearest float to each tenth, so that an error of 3 in 10 is not put below 0.3
_FLOOR = 1e-10
_ALL_PAIRINGS = 7  # networks, up to which every pairing is tried


def error_and_loss(
    true: ArrayLike, predicted: ArrayLike, classes: int, weights: ArrayLike = ()
) -> tuple[Array, Array]:
    """Error rate and Kappa loss of each class against the rest; Huang et al. 2025, equations (1) and (2).

    ``g_i = 1 - n_ii / n_i.``, and 1 minus ``kappa_i = (Po - Pe) / (1 - Pe)``: 0 perfect, 1 chance, at most 2; NaN without images, 1 where
    Pe = 1, as in the authors' newer code. Images are (N,), or count (N, B) times in B draws; each result is (K, B).
    """
    true, predicted, images = (
        np.asarray(true),
        np.asarray(predicted),
        np.arange(len(true)),
    )
    weights = np.asarray(weights if len(weights) else np.ones((len(true), 1)))
    of, taken = (
        csr_array(
            (np.ones_like(weights, shape=len(true)), (x, images)), (classes, len(true))
        )
        for x in (true, predicted)
    )
    right, n, named = (
        (counted @ weights).astype(float) for counted in (of * taken, of, taken)
    )
    total = n.sum(0)
    # Both sides of Kappa times N², which leaves whole numbers, so that only the division rounds.
    disagreement, possible = (
        total * (n + named - 2 * right),
        total * (n + named) - 2 * n * named,
    )  # N² (1 - Po), N² (1 - Pe)
    loss = np.divide(disagreement, possible, out=np.ones(n.shape), where=possible > 0)
    return np.divide(n - right, n, out=np.full(n.shape, np.nan), where=n > 0), np.where(
        n > 0, loss, np.nan
    )


def six_statistics(error: Array, loss: Array) -> Array:
    """The ``CELL_STATISTICS`` of equation (3) over the last axis, the classes: (..., K) each -> (..., 6). SD has ddof 1."""
    parts = [
        (values.mean(-1), values.std(-1, ddof=1), np.quantile(values, 0.1, axis=-1))
        for values in (error, loss)
    ]
    return np.stack([*parts[0], *parts[1]], axis=-1)


def divergence(classes: pd.DataFrame, reference: pd.DataFrame) -> float:
    """How far the (error, Kappa loss) pairs of a cell have moved from those of a reference: ``sum P log(P / Q)``, nats, at least 0.

    A working definition, since Huang et al. 2025 give no formula: histograms of 10 x 10 bins on [0, 1]², 1e-10 added to each fraction.
    """
    histograms = []
    for table in (classes, reference):
        pairs = table[["error", "kappa_loss"]].dropna().clip(0, 1).to_numpy()
        histograms.append(
            (
                np.histogram2d(*pairs.T, bins=[_BIN_EDGES, _BIN_EDGES])[0] / len(pairs)
                + _FLOOR
            ).ravel()
        )
    return float(scipy.stats.entropy(*histograms))


def cells_of(classes: pd.DataFrame) -> pd.DataFrame:
    """The classes of each cell summed up; dropped are those without test images, the divergence is from the network's clean cell."""
    rows = []
    for _, own in classes.groupby("model", sort=False):
        clean = own[
            (own["ssim"] == own["ssim"].max())
            & (own["unseen_fraction"] == own["unseen_fraction"].min())
        ]
        for place, cell in own.groupby(_PLACE, sort=True):
            tested = cell[["error", "kappa_loss"]].dropna().to_numpy().T
            row = dict(zip(_PLACE, place, strict=True)) | dict(
                zip(CELL_STATISTICS, six_statistics(*tested), strict=True)
            )
            count = tested.shape[1]
            rows.append(
                row
                | {
                    "classes": count,
                    "dropped": len(cell) - count,
                    "divergence": divergence(cell, clean),
                }
            )
    return pd.DataFrame(rows)


def averaged(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells of networks of one architecture, which have equally many weights, averaged, NaN where one is."""
    groups = cells.groupby(
        ["family", "architecture", "weights", "ssim", "unseen_fraction"], sort=False
    )
    means = groups[[*CELL_STATISTICS, "divergence"]].agg(
        lambda column: column.mean(skipna=False)
    )
    return (
        means.join(groups["classes"].first())
        .reset_index()
        .assign(model=lambda joined: joined["architecture"])
    )


def cell_array(cells: pd.DataFrame) -> tuple[list[Array], Array]:
    """The cells of a family on the full grid (the paper's 3DA): ascending levels of the ``AXES``, and (S, U, W, 6), NaN where none is."""
    places = cells[list(AXES)].astype(float)
    levels = [np.unique(places[axis]) for axis in AXES]
    statistics = cells[list(CELL_STATISTICS)].set_axis(pd.MultiIndex.from_frame(places))
    values = statistics.reindex(pd.MultiIndex.from_product(levels)).to_numpy(
        dtype=float
    )
    return levels, values.reshape(*map(len, levels), len(CELL_STATISTICS))


def along_axis(values: Array, axis: int) -> Array:
    """Mean over the two others of the first three axes: (S, U, W, ...) -> (levels, ...); equation (5), as its code."""
    return values.mean(axis=tuple({0, 1, 2} - {axis}))


def marginals(cells: pd.DataFrame) -> pd.DataFrame:
    """Each statistic averaged over the two other axes, by axis and level; n cells. NaN where one is missing. Equation (5)."""
    levels, values = cell_array(cells)
    tables = []
    for number, axis in enumerate(AXES):
        means = dict(zip(CELL_STATISTICS, along_axis(values, number).T, strict=True))
        n = values[..., 0].size // len(levels[number])
        tables.append(
            pd.DataFrame({"axis": axis, "level": levels[number], "n": n, **means})
        )
    return pd.concat(tables, ignore_index=True)


def slice_marginals(cells: pd.DataFrame) -> pd.DataFrame:
    """Mean and 10th percentile of the error, over unseen fractions of clean images and over SSIM of seen classes; equation (6)."""
    clean, seen = (
        cells["ssim"] == cells["ssim"].max(),
        cells["unseen_fraction"] == cells["unseen_fraction"].min(),
    )
    columns = {}
    for axis, part in (("unseen_fraction", cells[clean]), ("ssim", cells[seen])):
        for statistic in ("error_mean", "error_10th_percentile"):
            table = part.pivot(index="model", columns=axis, values=statistic).reindex(
                cells["model"].unique()
            )
            columns[f"{statistic}_over_{axis}"] = table.mean(axis=1, skipna=False)
    return pd.DataFrame(columns)


def _pairings(networks: int, draws: int, seed: int) -> NDArray[np.intp]:
    """The pairing that was observed, and others: all of them, or drawn; (1 + D, n)."""
    if networks <= _ALL_PAIRINGS:
        return np.array(
            list(itertools.permutations(range(networks))), dtype=np.intp
        ).reshape(-1, networks)
    return np.vstack(
        [np.arange(networks), permuted_rows(np.arange(networks), draws, seed)]
    )


def sign_errors(
    complexities: pd.DataFrame, cells: pd.DataFrame, *, draws: int = 9999, seed: int = 0
) -> pd.DataFrame:
    """How often each complexity measure orders two networks against their error; Huang et al. 2025, equation (7) and Table 3.

    ``SE = 1/2 mean over pairs of networks of (1 - sgn(C_a - C_b) sgn(g_a - g_b))``, g each of ``slice_marginals``; NaN below 3 networks. p,
    of a test that the paper does not name, is the share of pairings of complexities with networks (drawn, or all up to 7 networks) whose
    mean of the four is no larger; p_adjusted and band are maxT. Larger complexities promise larger errors; the three lowest ranks are best.
    """
    slices = slice_marginals(cells).dropna()
    values = complexities.reindex(slices.index).to_numpy(dtype=float)
    pairings, n = _pairings(len(slices), draws, seed), np.isfinite(values).sum(0)
    pairs = np.where(n > 2, n * (n - 1) / 2, np.nan)
    errors = {
        name: (1 - pair_counts(values, column.to_numpy()[pairings])[0] / pairs) / 2
        for name, column in slices.items()
    }
    table = pd.DataFrame(
        {"measure": complexities.columns, "n": n}
        | {name: found[0] for name, found in errors.items()}
    )
    means = -np.mean(list(errors.values()), axis=0)  # larger is more extreme
    table = table.assign(
        p_value=p_values(means[0], means[1:]),
        p_adjusted=adjusted_p_values(means[0], means[1:]),
        band=-band(means[1:]),
    )
    table["mean_rank"] = table[list(slices)].rank().mean(axis=1, skipna=False)
    table["best"] = table["mean_rank"].rank(method="min") <= 3
    return table.sort_values("mean_rank", kind="stable", ignore_index=True)
