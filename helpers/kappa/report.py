"""Tables of notebook 06 beside those of the paper."""

from collections.abc import Mapping

import pandas as pd

from helpers.kappa.intervals import Spread
from helpers.kappa.statistics import (
    CELL_STATISTICS,
    of_clean_images,
    of_seen_classes,
    slice_marginals,
)
from helpers.statistics.bootstrap import percentile_interval
from helpers.statistics.published import published_table


def table2(
    points: Mapping[str, Mapping[str, float]],
    spreads: Mapping[str, Spread],
    classes: int,
) -> pd.DataFrame:
    """Trade-off points beside the published ones; Huang et al. 2025, Table 2.

    Args:
        points: of each family, see ``tradeoff.trade_off_point``.
        spreads: of each family, see ``intervals.spread``.
        classes: number of classes of the smallest step.

    Returns:
        A row per family and quantity. ``low`` and ``high`` are the ends of the 95 %
        interval, NaN below 8 classes; published columns are NaN where the paper has
        no such quantity.
    """
    table = published_table("huang2025_table2")
    names = "published_" + table["dataset"] + "_" + table["family"]
    printed = table.drop(columns=["dataset", "family"]).set_axis(names, axis=0).T
    families = []
    for family, point in points.items():
        values = pd.Series(point).drop(["objective", "penalty"])
        draws = spreads[family].points[values.index].to_numpy()
        low, high = percentile_interval(draws, classes)
        rows = pd.DataFrame({"value": values, "low": low, "high": high})
        rows.loc["weights"] /= 1e6
        rows = rows.rename(index={"weights": "weights_millions"})
        families.append(rows.assign(family=family))
    joined = pd.concat(families).join(printed).rename_axis("quantity").reset_index()
    return joined[["family", "quantity", "value", "low", "high", *names]]


def table3(errors: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Sign errors beside the published ones; Huang et al. 2025, Table 3.

    Args:
        errors: of each family, see ``statistics.sign_errors``.

    Returns:
        A row per family, measure and slice, the lowest mean rank first. Published
        columns are NaN for measures that the paper does not print.
    """
    printed = published_table("huang2025_table3")
    printed["measure"] = printed["measure"].str.lower()
    printed["slice"] = printed["statistic"] + "_over_" + printed["axis"]
    printed = printed.pivot(
        index=["measure", "slice"], columns="dataset", values=["sign_error", "p_value"]
    )
    prefixes = {"sign_error": "published_", "p_value": "published_p_"}
    printed.columns = [prefixes[value] + dataset for value, dataset in printed.columns]
    of_measure = ["n", "mean_rank", "best", "p_value", "p_adjusted", "band"]
    tables = [table.assign(family=family) for family, table in errors.items()]
    rows = pd.concat(tables, ignore_index=True).melt(
        ["family", "measure", *of_measure], var_name="slice", value_name="sign_error"
    )
    rows = rows.sort_values(["family", "mean_rank"], kind="stable")
    return rows.merge(printed.reset_index(), how="left", on=["measure", "slice"])


def sign_error_shares(table: pd.DataFrame) -> pd.DataFrame:
    """Share of measures with a sign error above 0.5, which order networks wrongly.

    The article prints such shares with its Figure 5 ("huang2025_figure5").

    Args:
        table: of ``table3``.

    Returns:
        A row per family and slice: ``measures`` with a sign error, and the share of
        these above 0.5 in [0, 1]. Families without a sign error have no row.
    """
    defined = table.dropna(subset="sign_error")
    reversed_order = defined["sign_error"] > 0.5
    groups = reversed_order.groupby([defined["family"], defined["slice"]], sort=False)
    shares = groups.agg(["size", "mean"]).reset_index()
    return shares.rename(columns={"size": "measures", "mean": "share_above_half"})


def slices_by_size(cells: pd.DataFrame) -> pd.DataFrame:
    """Slices of the error of each network, smallest first; Huang et al. 2025, Fig. 5.

    Args:
        cells: of ``statistics.cells_of``, with all families.

    Returns:
        A row per network: family, model, weights_millions, and the slices of
        equation (6), see ``statistics.slice_marginals``.
    """
    networks = cells.drop_duplicates("model").set_index("model")
    table = networks[["family"]].assign(weights_millions=networks["weights"] / 1e6)
    table = table.join(slice_marginals(cells)).reset_index()
    order = ["family", "weights_millions"]
    return table.sort_values(order, kind="stable", ignore_index=True)


def families(sizes: pd.DataFrame, shares: pd.DataFrame) -> pd.DataFrame:
    """Summary of each family by the quantities of the paper.

    Args:
        sizes: of ``statistics.averaged``.
        shares: of ``sign_error_shares``.

    Returns:
        A row per family: its networks (of different size); mean, standard deviation
        and 10th percentile of error and Kappa loss, averaged over the grid; the mean
        divergence of cells from the clean cell of their network, in nats; and the
        share of sign errors above 0.5, NaN where there are none.
    """
    table = sizes.groupby("family", sort=False)[list(CELL_STATISTICS)].mean()
    clean_cells = of_seen_classes(of_clean_images(sizes)).index
    divergence = sizes.drop(clean_cells).groupby("family")["divergence"].mean()
    above_half = shares["share_above_half"] * shares["measures"]  # number of measures
    wrong = above_half.groupby(shares["family"]).sum()
    total = shares.groupby("family")["measures"].sum()
    table.insert(0, "networks", sizes.groupby("family")["model"].nunique())
    table = table.assign(divergence=divergence, sign_errors_above_half=wrong / total)
    return table.reset_index()


def stability(sizes: pd.DataFrame) -> pd.DataFrame:
    """Divergence of each network's cells from its clean one, the smallest first.

    Args:
        sizes: of ``statistics.averaged``.

    Returns:
        A row per network: mean divergence of its other cells in nats, and its error
        on clean and on the noisiest images of seen classes.
    """
    seen = of_seen_classes(sizes)
    clean = of_clean_images(seen)
    noisiest = seen[seen["ssim"] == seen["ssim"].min()]
    networks = sizes.drop_duplicates("model")[["family", "model"]]
    table = networks.set_index("model", drop=False).assign(
        clean_error=clean.set_index("model")["error_mean"],
        noisy_error=noisiest.set_index("model")["error_mean"],
        divergence=sizes.drop(clean.index).groupby("model")["divergence"].mean(),
    )
    return table.sort_values("divergence", ignore_index=True)
