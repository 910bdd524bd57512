"""The tables of notebook 06 beside those of the paper (Huang, Yu and Zhang 2025, Tables 1 to 3)."""

from collections.abc import Mapping

import pandas as pd

from helpers.kappa.intervals import Spread, readings
from helpers.kappa.statistics import AXES
from helpers.kappa.tradeoff import TradeoffPoint
from helpers.statistics.published import published_table
from helpers.statistics.resampling import percentile_interval

_MEASURES_OF_THE_PAPER = {"INVERSE_MARGIN": "inverse_margin", "LOG_SUM_OF_FRO": "log_sum_of_fro", "PARAM_NORM": "param_norm"}


def beside_table1(cells: pd.DataFrame) -> pd.DataFrame:
    """List the networks with their size, published sizes beside them (Huang et al. 2025, Table 1)."""
    first = cells.drop_duplicates("model")[["family", "model", "model_id", "origin", "weights"]]
    own = first.assign(weights_millions=first["weights"] / 1e6).drop(columns="weights")
    theirs = published_table("huang2025_table1").rename(columns={"weights_millions": "published_weights_millions"})
    return own.merge(theirs, how="left", on=["family", "model"])


def beside_table2(points: Mapping[str, TradeoffPoint], spreads: Mapping[str, Spread], classes: int) -> pd.DataFrame:
    """Put the trade-off points of the families, with intervals, beside the published ones (Huang et al. 2025, Table 2).

    Args:
        points: by family.
        spreads: of the same families.
        classes: that were drawn for the intervals.

    Returns:
        One row per family and quantity, as the paper's rows: both bounds (mean of the three readings, then the reading from the marginal
        along each axis), ssim, unseen_fraction, weights_millions and F; value, low and high (95 % over classes and test images),
        and a column per dataset and family of the paper.
    """
    theirs = published_table("huang2025_table2")
    names = "published_" + theirs["dataset"] + "_" + theirs["family"]
    printed = theirs.drop(columns=["dataset", "family"]).set_axis(names, axis=0).T
    rows = []
    for family, point in points.items():
        values = pd.Series(readings(point) | {axis: getattr(point, axis) for axis in AXES} | {"F": point.F})
        drawn = spreads[family].points
        ends = percentile_interval(drawn[values.index].to_numpy(), classes)
        table = pd.DataFrame({"value": values, "low": ends[0], "high": ends[1]})
        table.loc["weights"] /= 1e6
        rows.append(table.rename(index={"weights": "weights_millions"}).assign(family=family))
    joined = pd.concat(rows).join(printed).rename_axis("quantity").reset_index()
    return joined[["family", "quantity", "value", "low", "high", *names]]


def beside_table3(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Put the sign errors of each family, one row per slice and statistic, beside the published ones (Huang et al. 2025, Table 3).

    Returns:
        family, measure, n, mean_rank, best, p_value, p_adjusted and band as of ``statistics.slice_sign_errors``, slice, sign_error, and
        of each dataset of the paper the sign error (of three measures) and the p-value that it prints for the slice's axis.
    """
    keys = ["family", "measure", "n", "mean_rank", "best", "p_value", "p_adjusted", "band"]
    parts = [table.assign(family=name) for name, table in tables.items()]
    joined = pd.concat(parts, ignore_index=True).melt(keys, var_name="slice", value_name="sign_error")
    ordered = joined.sort_values(["family", "mean_rank"], kind="stable")
    return ordered.merge(published_sign_errors(), how="left", on=["measure", "slice"])


def published_sign_errors() -> pd.DataFrame:
    """The printed sign errors and p-values by measure and slice: published_imagenet, published_cifar100, published_p_imagenet, ..."""
    theirs = published_table("huang2025_table3").assign(measure=lambda table: table["measure"].map(_MEASURES_OF_THE_PAPER))
    theirs["slice"] = theirs["statistic"] + "_over_" + theirs["axis"]
    wide = theirs.pivot(index=["measure", "slice"], columns="dataset", values=["sign_error", "p_value"])
    wide.columns = [f"published_{'p_' if value == 'p_value' else ''}{dataset}" for value, dataset in wide.columns]
    return wide.reset_index()
