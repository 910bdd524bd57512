"""Tables of notebook 06 beside those of the paper, and its sentences that need more than a number."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from helpers.kappa.intervals import Spread
from helpers.kappa.statistics import AXES
from helpers.report.style import percent
from helpers.statistics.draws import percentile_interval
from helpers.statistics.published import published_table


def table2(
    points: Mapping[str, Mapping[str, float]],
    spreads: Mapping[str, Spread],
    classes: int,
) -> pd.DataFrame:
    """The trade-off points of the families, beside the published ones (Huang et al. 2025, Table 2); low and high end 95 % intervals."""
    theirs = published_table("huang2025_table2")
    names = "published_" + theirs["dataset"] + "_" + theirs["family"]
    printed = theirs.drop(columns=["dataset", "family"]).set_axis(names, axis=0).T
    rows = []
    for family, point in points.items():
        values = pd.Series(point).drop(["objective", "penalty"])
        ends = percentile_interval(
            spreads[family].points[values.index].to_numpy(), classes
        )
        table = pd.DataFrame({"value": values, "low": ends[0], "high": ends[1]})
        table.loc["weights"] /= 1e6
        rows.append(
            table.rename(index={"weights": "weights_millions"}).assign(family=family)
        )
    joined = pd.concat(rows).join(printed).rename_axis("quantity").reset_index()
    return joined[["family", "quantity", "value", "low", "high", *names]]


def table3(errors: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The sign errors of each family, a row per measure and slice, beside the published ones (Huang et al. 2025, Table 3)."""
    theirs = published_table("huang2025_table3").assign(
        measure=lambda table: table["measure"].str.lower()
    )
    theirs["slice"] = theirs["statistic"] + "_over_" + theirs["axis"]
    printed = theirs.pivot(
        index=["measure", "slice"], columns="dataset", values=["sign_error", "p_value"]
    )
    printed.columns = [
        f"published_{'p_' if value == 'p_value' else ''}{dataset}"
        for value, dataset in printed.columns
    ]
    keys = [
        "family",
        "measure",
        "n",
        "mean_rank",
        "best",
        "p_value",
        "p_adjusted",
        "band",
    ]
    joined = pd.concat(
        [table.assign(family=name) for name, table in errors.items()], ignore_index=True
    )
    ordered = joined.melt(keys, var_name="slice", value_name="sign_error").sort_values(
        ["family", "mean_rank"], kind="stable"
    )
    return ordered.merge(printed.reset_index(), how="left", on=["measure", "slice"])


def stability(sizes: pd.DataFrame) -> pd.DataFrame:
    """How far each network moves from its clean cell (mean divergence of the others), least first, beside its errors on seen classes."""
    seen = sizes[sizes["unseen_fraction"] == sizes["unseen_fraction"].min()]
    ends = {"clean_error": seen["ssim"].max(), "noisy_error": seen["ssim"].min()}
    errors = {
        name: seen[seen["ssim"] == level].set_index("model")["error_mean"]
        for name, level in ends.items()
    }
    moved = (
        sizes.drop(index=seen.index[seen["ssim"] == ends["clean_error"]])
        .groupby("model")["divergence"]
        .mean()
    )
    table = sizes.drop_duplicates("model")[["family", "model"]].set_index(
        "model", drop=False
    )
    return table.assign(**errors, divergence=moved).sort_values(
        "divergence", ignore_index=True
    )


def say_stability(table: pd.DataFrame) -> str:
    """Which network moves least from its clean cell, and whether it had least to lose; see ``stability``."""
    known = table.dropna()
    if len(known) < 2:
        return "Of one network alone nothing can be said to be more stable."
    each = [
        f"{row.model} ({row.divergence:.2f} nats; it errs in {percent(row.clean_error)} of clean images)"
        for row in known.itertuples()
    ]
    ends = f"Least moves {each[0]}, most {each[-1]}."
    if len(known) < 4:
        return f"{ends} {len(known)} networks allow no correlation."
    tau = known["divergence"].corr(known["clean_error"], method="kendall")
    return f"{ends} Kendall's tau with the clean error over {len(known)} networks: {tau:.2f}; below 0 the steady have less to lose."


def say_point(rows: pd.DataFrame, marginals: pd.DataFrame, strength: float) -> str:
    """Where a family balances, at which bounds, and where this is the edge of what was measured: from ``table2`` and its marginals."""
    table = rows.set_index("quantity")
    drawn = np.isfinite(table[["low", "high"]]).all(axis=1)
    between = (
        " ("
        + table["low"].map("{:.3g}".format)
        + " to "
        + table["high"].map("{:.3g}".format)
        + ")"
    ).where(drawn, "")
    at = table["value"].map("{:.3g}".format) + between
    place = table.loc[["ssim", "unseen_fraction", "weights_millions"], "value"] * [
        1,
        1,
        1e6,
    ]
    ends = marginals.groupby("axis")["level"].agg(["min", "max"]).loc[list(AXES)]
    near = np.isclose(ends.T, place, rtol=1e-6).any(axis=0) & (
        ends["min"] < ends["max"]
    )
    clean, names = (
        np.isclose(place["ssim"], 1),
        ("SSIM", "the share of added classes", "weights"),
    )
    edge = [
        name
        for axis, name in zip(AXES, names, strict=True)
        if near[axis] and not (clean and axis == "ssim")
    ]
    none = (
        "the trade-off point is on clean images: no noise is affordable here. It"
        if clean
        else "the balance"
    )
    return (
        f"**{rows['family'].iloc[0]}**: at lambda {strength:g} {none} lies at SSIM {at['ssim']}, a share of added classes of "
        f"{at['unseen_fraction']} and {at['weights_millions']} million weights, with a mean error of {at['generalization_bound']} and a "
        f"mean Kappa loss of {at['diversity_bound']}."
    ) + (
        f" That is the edge of what was measured in {' and '.join(edge)}."
        if edge
        else ""
    )
