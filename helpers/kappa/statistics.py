"""Error and Kappa of every class, and their statistics over a grid of networks.

Huang, Yu and Zhang 2025. The paper's array is a table of cells here, one row per
network and setting: model, weights (their number), ssim (1 is clean), unseen_fraction
(share of the classes that did not adapt the backbone; the linear probe has seen them),
and the six ``CELL_STATISTICS``.
"""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
import scipy.stats
from numpy.typing import ArrayLike
from scipy.sparse import csr_array

from helpers.statistics.correlate import Array, in_draws, pair_counts
from helpers.statistics.permutation import against_chance, permuted_rows
from helpers.statistics.published import published_table

AXES = ("ssim", "unseen_fraction", "weights")
CELL_STATISTICS = (
    "error_mean",
    "error_std",
    "error_10th_percentile",
    "kappa_loss_mean",
    "kappa_loss_std",
    "kappa_loss_10th_percentile",
)
# Columns that identify a cell of a network, and columns of the network.
_PLACE = [
    "family",
    "model",
    "model_id",
    "origin",
    "weights",
    "ssim",
    "unseen_fraction",
]
# Quotients, as errors are: 3 * 0.1 exceeds 3 / 10, so an error of 3 in 10 would fall
# into the bin below.
_BIN_EDGES = np.arange(11) / 10
_FLOOR = 1e-10  # added to each fraction of a histogram


def error_and_loss(
    true: ArrayLike,
    predicted: ArrayLike,
    classes: int,
    weights: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Error rate and Kappa loss of each class against the rest.

    ``g_i = 1 - n_ii / n_i.`` and 1 minus ``kappa_i = (Po - Pe) / (1 - Pe)``; Huang et
    al. 2025, equations (1) and (2).

    Args:
        true: (N,) classes, from 0 on.
        predicted: (N,) classes.
        classes: number of them, K.
        weights: (N, B) how often each image counts in each draw; by default all count
            once, and B is 1.

    Returns:
        Error in [0, 1] and loss in [0, 2], (K, B) each; a loss of 0 is perfect, 1 is
        chance. NaN for a class without images; a loss of 1 where Pe is 1, as in the
        authors' newer code.
    """
    images = np.arange(len(true))
    weights = np.ones((len(true), 1)) if weights is None else np.asarray(weights, float)
    # For all draws at once; for a single one, scikit-learn's
    # multilabel_confusion_matrix(true, predicted, sample_weight=weights[:, draw]).
    is_true, is_predicted = (
        csr_array((np.ones(len(true)), (labels, images)), (classes, len(true)))
        for labels in (true, predicted)
    )
    n = is_true @ weights
    n_predicted = is_predicted @ weights
    n_right = (is_true * is_predicted) @ weights
    total = n.sum(0)
    # The loss is (1 - Po) / (1 - Pe). Times N² both are whole numbers, so that only the
    # division rounds.
    disagreement = total * (n + n_predicted - 2 * n_right)  # N² (1 - Po)
    possible = total * (n + n_predicted) - 2 * n * n_predicted  # N² (1 - Pe)
    loss = np.divide(disagreement, possible, out=np.ones(n.shape), where=possible > 0)
    undefined = np.full(n.shape, np.nan)
    error = np.divide(n - n_right, n, out=undefined, where=n > 0)
    return error, np.where(n > 0, loss, np.nan)


def six_statistics(error: Array, loss: Array) -> Array:
    """Mean, standard deviation and 10th percentile over classes; equation (3).

    Args:
        error: (..., K) of each class.
        loss: (..., K) Kappa loss of each class.

    Returns:
        (..., 6), see ``CELL_STATISTICS``; standard deviations divide by K - 1.
    """
    values = np.stack([error, loss])  # (2, ..., K)
    percentiles = np.quantile(values, 0.1, axis=-1)
    statistics = [values.mean(-1), values.std(-1, ddof=1), percentiles]
    return np.concatenate(np.stack(statistics, axis=-1), axis=-1)


def divergence(classes: pd.DataFrame, reference: pd.DataFrame) -> float:
    """Divergence of the errors of a cell's classes from those of a reference.

    Kullback-Leibler, ``sum P log(P / Q)``, of the pairs (error, Kappa loss). A working
    definition, since Huang et al. 2025 give no formula: histograms of 10 x 10 bins on
    [0, 1]², 1e-10 added to each fraction.

    Args:
        classes: error and kappa_loss of each class.
        reference: the same of another cell.

    Returns:
        In nats, at least 0.
    """
    fractions = []
    for table in (classes, reference):
        pairs = table[["error", "kappa_loss"]].clip(0, 1).to_numpy()
        counts, _, _ = np.histogram2d(*pairs.T, bins=_BIN_EDGES)
        fractions.append((counts / len(pairs) + _FLOOR).ravel())
    return float(scipy.stats.entropy(*fractions))


def of_clean_images(cells: pd.DataFrame) -> pd.DataFrame:
    """The rows of clean images.

    Args:
        cells: with a column ssim.
    """
    return cells[cells["ssim"] == cells["ssim"].max()]


def of_seen_classes(cells: pd.DataFrame) -> pd.DataFrame:
    """The rows of the smallest step, whose classes adapted the backbone.

    Args:
        cells: with a column unseen_fraction.
    """
    return cells[cells["unseen_fraction"] == cells["unseen_fraction"].min()]


def cells_of(classes: pd.DataFrame) -> pd.DataFrame:
    """Statistics over the classes of each cell.

    Args:
        classes: a row per network, level, step and class, see
            ``probing.kappa_of_classes``.

    Returns:
        A row per cell: facts of the network, ssim and unseen_fraction,
        ``CELL_STATISTICS``, the number of classes with test images, and the divergence
        from the network's clean cell.
    """
    rows = []
    tested = classes.dropna(subset=["error", "kappa_loss"])
    for _, network in tested.groupby("model", sort=False):
        clean = of_seen_classes(of_clean_images(network))
        for place, cell in network.groupby(_PLACE):
            statistics = six_statistics(*cell[["error", "kappa_loss"]].to_numpy().T)
            row = dict(zip(_PLACE, place, strict=True))
            row |= zip(CELL_STATISTICS, statistics, strict=True)
            row["classes"] = len(cell)
            row["divergence"] = divergence(cell, clean)
            rows.append(row)
    return pd.DataFrame(rows)


def slice_marginals(cells: pd.DataFrame) -> pd.DataFrame:
    """Mean and 10th percentile of the error along two slices; equation (6).

    Args:
        cells: of ``cells_of``.

    Returns:
        A row per network: each statistic averaged over unseen fractions of clean
        images, and over SSIM of seen classes.
    """
    slices = {
        "unseen_fraction": of_clean_images(cells),
        "ssim": of_seen_classes(cells),
    }
    columns = ["error_mean", "error_10th_percentile"]
    tables = []
    for axis, rows in slices.items():
        means = rows.groupby("model", sort=False)[columns].mean()
        tables.append(means.add_suffix(f"_over_{axis}"))
    return pd.concat(tables, axis=1)


def _tau_a(x: Array, y: Array, weights: Array, given: Array) -> Array:
    """Concordant less discordant share of all pairs, (B, M)."""
    return pair_counts(x, y, weights)[0] / math.comb(x.shape[1], 2)


def sign_errors(
    complexities: pd.DataFrame, cells: pd.DataFrame, *, draws: int = 9999, seed: int = 0
) -> pd.DataFrame:
    """Sign error of each complexity measure: how often it orders two networks wrongly.

    ``SE = 1/2 mean over pairs of networks of (1 - sgn(C_a - C_b) sgn(g_a - g_b))``, g
    each of ``slice_marginals``; Huang et al. 2025, equation (7) and Table 3. The test
    is ours, as the paper names none: p is the share of pairings of complexities with
    networks whose sign error along the slice is no larger.

    Args:
        complexities: a column per measure, a row per network by its name; larger values
            promise larger errors.
        cells: of ``cells_of``, of one family.
        draws: number of pairings that are drawn above 8 networks; up to 8 all are
            tried, see ``permuted_rows``.
        seed: of the draws.

    Returns:
        A row per measure and slice, the best mean rank first: n networks; sign_error in
        [0, 1], NaN below 3 networks; p_value, and p_adjusted by maxT over the measures;
        mean_rank of the measure over the slices.
    """
    slices = slice_marginals(cells)
    values = complexities.reindex(slices.index).to_numpy(dtype=float)
    observed = np.arange(len(slices))
    pairings = np.vstack([observed, permuted_rows(observed, draws, seed)])  # (1 + D, n)
    tables = []
    for name, errors in slices.items():
        targets = errors.to_numpy()[pairings]
        concordance = in_draws(_tau_a, values, targets)
        chance = against_chance(concordance)
        of_slice = {
            "measure": complexities.columns,
            "slice": name,
            "n": np.isfinite(values).sum(0),
            "sign_error": (1 - concordance[0]) / 2,
            "p_value": chance["p"],
            "p_adjusted": chance["p_adjusted"],
        }
        tables.append(pd.DataFrame(of_slice))
    table = pd.concat(tables, ignore_index=True)
    ranks = table.groupby("slice")["sign_error"].rank()
    table["mean_rank"] = ranks.groupby(table["measure"]).transform("mean")
    return table.sort_values("mean_rank", kind="stable", ignore_index=True)


def table3(errors: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Sign errors beside the published ones; Huang et al. 2025, Table 3.

    Args:
        errors: of each family, see ``sign_errors``.

    Returns:
        Their rows with the family. Published columns are NaN for measures that the
        paper does not print.
    """
    printed = published_table("huang2025_table3")
    printed["measure"] = printed["measure"].str.lower()
    printed["slice"] = printed["statistic"] + "_over_" + printed["axis"]
    names = {"sign_error": "published", "p_value": "published_p"}
    keys = ["measure", "slice"]
    columns = printed.rename(columns=names).pivot(
        index=keys, columns="dataset", values=list(names.values())
    )
    columns.columns = columns.columns.map("_".join)
    rows = pd.concat([table.assign(family=name) for name, table in errors.items()])
    return rows.join(columns, on=keys)


def networks(cells: pd.DataFrame) -> pd.DataFrame:
    """Errors of each network along the slices of the paper; Huang et al. 2025, Fig. 5.

    Args:
        cells: of ``cells_of``, with all families.

    Returns:
        A row per network, by family and size: family, model, weights_millions, the
        slices of equation (6) (see ``slice_marginals``), and the mean
        divergence of its cells from its clean one in nats.
    """
    table = cells.groupby("model")[["family", "weights"]].first()
    table["weights_millions"] = table.pop("weights") / 1e6
    clean = of_seen_classes(of_clean_images(cells)).index
    divergences = cells.drop(clean).groupby("model")["divergence"].mean()
    table = table.join(slice_marginals(cells)).join(divergences)
    return table.reset_index().sort_values(
        ["family", "weights_millions"], kind="stable", ignore_index=True
    )
