"""Tables of notebook 06 beside those of the paper."""

from collections.abc import Mapping

import pandas as pd

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
    draws: Mapping[str, pd.DataFrame],
    classes: int,
) -> pd.DataFrame:
    """Trade-off points beside the published ones; Huang et al. 2025, Table 2.

    Args:
        points: of each family, see ``tradeoff.trade_off_point``.
        draws: of each family, a row per draw with the point's columns.
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
        rows = pd.DataFrame({"family": family, "value": point})
        low, high = percentile_interval(draws[family][rows.index], classes)
        families.append(rows.assign(low=low, high=high))
    joined = pd.concat(families)
    joined.loc["weights", ["value", "low", "high"]] /= 1e6
    joined = joined.rename({"weights": "weights_millions"}).join(printed)
    return joined.rename_axis("quantity").reset_index()


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
    table = cells.groupby(["family", "model"])[["weights"]].first() / 1e6
    table = table.set_axis(["weights_millions"], axis=1).reset_index("family")
    table = table.join(slice_marginals(cells)).join(_divergence(cells, "model"))
    return table.reset_index().sort_values(
        ["family", "weights_millions"], kind="stable", ignore_index=True
    )


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
    by_family = sizes.groupby("family", sort=False)
    table = by_family[list(CELL_STATISTICS)].mean()
    table.insert(0, "networks", by_family["model"].nunique())
    is_wrong = table3["sign_error"].gt(0.5).where(table3["sign_error"].notna())
    share = is_wrong.astype(float).groupby(table3["family"]).mean()
    table = table.join(_divergence(sizes, "family"))
    return table.assign(sign_errors_above_half=share).reset_index()


def _divergence(cells: pd.DataFrame, of: str) -> pd.Series:
    """Mean over the cells of each model or family that are not the clean one."""
    clean = of_seen_classes(of_clean_images(cells)).index
    return cells.drop(clean).groupby(of)["divergence"].mean()
