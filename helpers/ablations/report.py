"""What notebook 05 says in words: labels of choices, and sentences whose numbers come from the table that they stand below."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from helpers.report.markup import in_words
from helpers.report.style import with_interval
from helpers.statistics.tables import TOTAL

_NAMES = {
    "smooth_grad_cam_plus_plus": "Smooth Grad-CAM++",
    "guided_grad_cam": "guided Grad-CAM",
    "deep_lift": "DeepLift",
}
_NAMES |= {
    f"{name}_cam": f"{name.capitalize()}-CAM"
    for name in ("grad", "layer", "eigen", "score")
} | {"grab_cut": "GrabCut"}
_NAMES |= {
    "grad_cam_plus_plus": "Grad-CAM++",
    "spectral_residual_opencv": "spectral residual by OpenCV",
}


def way(method: str, formula: str = "") -> str:
    """A way to compute a map, or a maker of masks, for a reader."""
    return _NAMES.get(method, method.replace("_", " ")) + (
        " by torchcam" if formula == "torchcam" else ""
    )


def lowest(table: pd.DataFrame) -> pd.DataFrame:
    """The rows at the lowest training accuracy."""
    return table[table["threshold"] == table["threshold"].min()].reset_index(drop=True)


def ways(table: pd.DataFrame) -> list[str]:
    """Name of each row: architecture and masks where it has them, way to compute a map, and on how many images a model."""
    places = (
        table.get("architecture", pd.Series("", table.index))
        .replace(TOTAL, "all")
        .map(in_words)
    )
    masks = table.get("annotation", pd.Series("boxes", table.index)).map(
        lambda name: "" if name == "boxes" else f"masks by {way(name)}"
    )
    parts = zip(
        places,
        map(way, table["method"], table["formula"]),
        masks,
        table["images"].map("{:,.0f} images".format),
        strict=True,
    )
    return [", ".join(filter(None, part)) for part in parts]


def below(table: pd.DataFrame, by: str = "") -> str:
    """How many of the intervals lie below 0, "3 of 4"; ``by`` names a column whose values are counted apart."""
    if by:
        return ", ".join(
            f"{name} {below(rows)}" for name, rows in table.groupby(by, sort=False)
        )
    return f"{(table['ci_high'] < 0).sum()} of {table['ci_low'].notna().sum()}"


def choices(table: pd.DataFrame, labels: Sequence[str]) -> str:
    """The lowest and highest r of a table of choices, and on which side of 0 the intervals lie."""
    rows = table.assign(label=list(labels)).dropna(subset="pearson_r")
    if not len(rows):
        return "No correlation is defined: too few models."
    ends = rows.loc[[rows["pearson_r"].idxmin(), rows["pearson_r"].idxmax()]][
        : len(rows)
    ]
    each = [
        f"{with_interval(row.pearson_r, row.ci_low, row.ci_high)} with {row.label}"
        for row in ends.itertuples()
    ]
    above = (rows["ci_low"] > 0).sum()
    return f"r from {' to '.join(each)}; 95 % intervals below 0, where the paper expects them: {below(rows)}, above 0: {above}."


def survival(tables: Mapping[str, pd.DataFrame], baseline: float) -> str:
    """Under how many other choices r keeps the sign that it has at the paper's setting, by kind of choice."""
    defined = {name: table["pearson_r"].dropna() for name, table in tables.items()}
    every = pd.concat(list(defined.values()))
    if not np.isfinite(baseline) or not len(every):
        return "At the paper's setting, or at all others, the correlation is undefined, so it cannot be said to survive or not."
    each = ", ".join(
        f"{name} {(np.sign(r) == np.sign(baseline)).sum()} of {len(r)}"
        for name, r in defined.items()
    )
    alike = f"{(np.sign(every) == np.sign(baseline)).sum()} of {len(every)} choices it has the same sign ({each})"
    return f"At the paper's setting r is **{baseline:.2f}**; under {alike}, and it runs from {every.min():.2f} to {every.max():.2f}."
