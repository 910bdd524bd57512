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
from helpers.statistics.correlate import percentile_interval
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
        Their rows with the family. Published columns are NaN for measures that the
        paper does not print.
    """
    printed = published_table("huang2025_table3")
    printed["measure"] = printed["measure"].str.lower()
    printed["slice"] = printed["statistic"] + "_over_" + printed["axis"]
    keys = ["measure", "slice"]
    rows = pd.concat([table.assign(family=name) for name, table in errors.items()])
    for dataset, of_dataset in printed.groupby("dataset"):
        columns = {
            "sign_error": f"published_{dataset}",
            "p_value": f"published_p_{dataset}",
        }
        published = of_dataset.rename(columns=columns)
        rows = rows.merge(published[[*keys, *columns.values()]], how="left", on=keys)
    return rows


def networks(cells: pd.DataFrame) -> pd.DataFrame:
    """Errors of each network along the slices of the paper; Huang et al. 2025, Fig. 5.

    Args:
        cells: of ``statistics.cells_of``, with all families.

    Returns:
        A row per network, by family and size: family, model, weights_millions, the
        slices of equation (6) (see ``statistics.slice_marginals``), and the mean
        divergence of its cells from its clean one in nats.
    """
    clean = of_seen_classes(of_clean_images(cells)).index
    table = cells.drop_duplicates("model").set_index("model")[["family"]]
    weights = cells.groupby("model")["weights"].first() / 1e6
    table = table.assign(weights_millions=weights).join(slice_marginals(cells))
    table["divergence"] = cells.drop(clean).groupby("model")["divergence"].mean()
    order = ["family", "weights_millions"]
    return table.reset_index().sort_values(order, kind="stable", ignore_index=True)


def families(sizes: pd.DataFrame, table3: pd.DataFrame) -> pd.DataFrame:
    """Summary of each family by the quantities of the paper.

    Args:
        sizes: of ``statistics.averaged``.
        table3: of ``table3``.

    Returns:
        A row per family: its networks (of different size); mean, standard deviation
        and 10th percentile of error and Kappa loss, averaged over the grid; the mean
        divergence of cells from the clean cell of their network, in nats; and the
        share of sign errors above 0.5, NaN where there are none. The article prints
        such shares with its Figure 5.
    """
    table = sizes.groupby("family", sort=False)[list(CELL_STATISTICS)].mean()
    clean = of_seen_classes(of_clean_images(sizes)).index
    defined = table3.dropna(subset="sign_error")
    is_wrong = defined["sign_error"] > 0.5
    table.insert(0, "networks", sizes.groupby("family")["model"].nunique())
    table["divergence"] = sizes.drop(clean).groupby("family")["divergence"].mean()
    table["sign_errors_above_half"] = is_wrong.groupby(defined["family"]).mean()
    return table.reset_index()
