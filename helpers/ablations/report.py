"""What notebook 05 says in words: labels of choices, and sentences whose numbers come from the table that they stand below."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from helpers.report.style import count, with_interval
from helpers.statistics.tables import TOTAL

_METHODS = {"grad_cam": "Grad-CAM", "grad_cam_plus_plus": "Grad-CAM++", "smooth_grad_cam_plus_plus": "Smooth Grad-CAM++"}
_METHODS |= {"layer_cam": "Layer-CAM", "eigen_cam": "Eigen-CAM", "score_cam": "Score-CAM", "guided_grad_cam": "guided Grad-CAM"}
_METHODS |= {"input_x_gradient": "input x gradient", "deep_lift": "DeepLift"}


def way(method: str, formula: str = "") -> str:
    """A way to compute a map, for a reader."""
    name = _METHODS.get(method, method.replace("_", " "))
    return f"{name} as torchcam computes it" if formula == "torchcam" else name


def lowest(table: pd.DataFrame) -> pd.DataFrame:
    """The rows at the lowest training accuracy."""
    return table[table["threshold"] == table["threshold"].min()].reset_index(drop=True)


def pooled(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of all architectures together, or of the only one, at the lowest training accuracy."""
    rows = lowest(table)
    return rows[rows["architecture"] == rows["architecture"].iloc[-1]].reset_index(drop=True)


def ways(table: pd.DataFrame) -> pd.Series:
    """Name of each row of table 6: architecture, way to compute a map, and on how many images a model."""
    parts = zip(table["architecture"].replace(TOTAL, "all"), table["method"], table["formula"], table["images"], strict=True)
    return pd.Series([f"{place}, {way(method, formula)}, {images:,.0f} images" for place, method, formula, images in parts])


def choices(table: pd.DataFrame, labels: Sequence[str]) -> str:
    """The lowest and highest r of a table of choices, and on which side of 0 the intervals lie."""
    rows = table.assign(label=list(labels)).dropna(subset="pearson_r")
    if not len(rows):
        return "No correlation is defined: too few models."
    low, high = rows.loc[rows["pearson_r"].idxmin()], rows.loc[rows["pearson_r"].idxmax()]
    ends = " to ".join(
        f"{with_interval(row['pearson_r'], row['ci_low'], row['ci_high'])} with {row['label']}" for row in (low, high)[: len(rows)]
    )
    below, above, told = (rows["ci_high"] < 0).sum(), (rows["ci_low"] > 0).sum(), rows["ci_low"].notna().sum()
    return f"r from {ends}. Of {count(int(told), 'interval')} {below} lie below 0, where the paper expects them, and {above} above."


def survival(tables: Mapping[str, pd.DataFrame], baseline: float) -> str:
    """Under how many other choices r keeps the sign that it has at the paper's setting, by kind of choice."""
    defined = {name: table["pearson_r"].dropna() for name, table in tables.items()}
    every = pd.concat(list(defined.values()))
    if not np.isfinite(baseline) or not len(every):
        return "At the paper's setting, or at all others, the correlation is undefined, so it cannot be said to survive or not."
    alike = {name: int((np.sign(r) == np.sign(baseline)).sum()) for name, r in defined.items()}
    each = ", ".join(f"{name} {alike[name]} of {len(r)}" for name, r in defined.items())
    return (
        f"At the paper's setting r is **{baseline:.2f}**; under {sum(alike.values())} of {count(len(every), 'choice')} it has the same "
        f"sign ({each}), and it runs from {every.min():.2f} to {every.max():.2f}."
    )
