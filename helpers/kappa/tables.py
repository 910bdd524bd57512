"""Tables of notebook 06 beside those of the paper."""

from collections.abc import Mapping, Sequence

import pandas as pd

from helpers.kappa.grid import along_axis
from helpers.kappa.statistics import (
    AXES,
    CELL_STATISTICS,
    Array,
    of_clean_images,
    of_seen_classes,
    slice_marginals,
)
from helpers.statistics.correlate import percentile_interval
from helpers.statistics.published import published_table


def marginals(levels: Sequence[Array], grid: Array, classes: int) -> pd.DataFrame:
    """Each statistic averaged over the two other axes; equation (5).

    Args:
        levels: of each axis, see ``grid.grid_of``.
        grid: (S, U, W, 1 + B, 6), the first as it is and then in draws.
        classes: number of classes of the smallest step; no intervals below 8.

    Returns:
        A row per axis and level with ``CELL_STATISTICS``, and the ends of their 95 %
        intervals in ``<statistic>_low`` and ``<statistic>_high``.
    """
    rows = []
    for number, axis in enumerate(AXES):
        means = along_axis(grid, number)  # (levels, 1 + B, 6)
        for level, values in zip(levels[number], means, strict=True):
            low, high = percentile_interval(values[1:], classes)
            row = {"axis": axis, "level": level}
            for ending, ends in {"": values[0], "_low": low, "_high": high}.items():
                row |= pd.Series(ends, CELL_STATISTICS).add_suffix(ending)
            rows.append(row)
    return pd.DataFrame(rows)


def table2(points: Mapping[str, pd.DataFrame], classes: int) -> pd.DataFrame:
    """Trade-off points beside the published ones; Huang et al. 2025, Table 2.

    Args:
        points: of each family, see ``tradeoff.trade_off_point``: first the point
            itself, then a row per draw.
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
    for family, rows in points.items():
        rows = rows.assign(weights=rows["weights"] / 1e6)
        rows = rows.rename(columns={"weights": "weights_millions"})
        low, high = percentile_interval(rows.iloc[1:], classes)
        of_family = {"family": family, "value": rows.iloc[0], "low": low, "high": high}
        families.append(pd.DataFrame(of_family).join(printed))
    return pd.concat(families).rename_axis("quantity").reset_index()


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
        cells: of ``statistics.cells_of``, with all families.

    Returns:
        A row per network, by family and size: family, model, weights_millions, the
        slices of equation (6) (see ``statistics.slice_marginals``), and the mean
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
