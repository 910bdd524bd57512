"""Labels of choices in notebook 05, and sentences on tables of them."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from helpers.report.markup import in_words
from helpers.report.style import with_interval
from helpers.statistics.tables import TOTAL

_NAMES = {
    "grad_cam": "Grad-CAM",
    "grad_cam_plus_plus": "Grad-CAM++",
    "smooth_grad_cam_plus_plus": "Smooth Grad-CAM++",
    "layer_cam": "Layer-CAM",
    "eigen_cam": "Eigen-CAM",
    "score_cam": "Score-CAM",
    "guided_grad_cam": "guided Grad-CAM",
    "deep_lift": "DeepLift",
    "grab_cut": "GrabCut",
    "spectral_residual_opencv": "spectral residual by OpenCV",
}


def way(method: str, formula: str = "") -> str:
    """A way to compute a map, or a maker of masks, for a reader.

    Example:
        >>> way("grad_cam_plus_plus", "torchcam")
        'Grad-CAM++ by torchcam'
    """
    name = _NAMES.get(method, method.replace("_", " "))
    return f"{name} by torchcam" if formula == "torchcam" else name


def lowest(table: pd.DataFrame) -> pd.DataFrame:
    """The rows at the lowest training accuracy."""
    is_lowest = table["threshold"] == table["threshold"].min()
    return table[is_lowest].reset_index(drop=True)


def ways(table: pd.DataFrame) -> list[str]:
    """Label of each row of a table of choices.

    Args:
        table: method, formula and images (of a model); architecture and annotation
            where it has them.
    """
    labels = []
    for row in table.to_dict("records"):
        words = []
        architecture = row.get("architecture", "")
        if architecture:
            words.append("all" if architecture == TOTAL else in_words(architecture))
        words.append(way(row["method"], row["formula"]))
        annotation = row.get("annotation", "boxes")
        if annotation != "boxes":
            words.append(f"masks by {way(annotation)}")
        words.append(f"{row['images']:,.0f} images")
        labels.append(", ".join(words))
    return labels


def below(table: pd.DataFrame, by: str = "") -> str:
    """How many of the intervals lie below 0, such as "3 of 4".

    Args:
        table: ci_low and ci_high.
        by: a column whose values are counted apart.
    """
    if by:
        groups = table.groupby(by, sort=False)
        return ", ".join(f"{name} {below(rows)}" for name, rows in groups)
    return f"{(table['ci_high'] < 0).sum()} of {table['ci_low'].notna().sum()}"


def choices(table: pd.DataFrame, labels: Sequence[str]) -> str:
    """Say between which choices r lies, and on which side of 0 the intervals.

    Args:
        table: pearson_r, ci_low and ci_high of each choice.
        labels: of the choices.
    """
    rows = table.assign(label=list(labels)).dropna(subset="pearson_r")
    if not len(rows):
        return "No correlation is defined: too few models."
    ends = rows.loc[[rows["pearson_r"].idxmin(), rows["pearson_r"].idxmax()]]
    phrases = [
        f"{with_interval(row.pearson_r, row.ci_low, row.ci_high)} with {row.label}"
        for row in ends[: len(rows)].itertuples()
    ]
    above = (rows["ci_low"] > 0).sum()
    return (
        f"r from {' to '.join(phrases)}; 95 % intervals below 0, where the paper "
        f"expects them: {below(rows)}, above 0: {above}."
    )


def survival(tables: Mapping[str, pd.DataFrame], baseline: float) -> str:
    """Say under how many other choices r keeps the sign of the paper's setting.

    Args:
        tables: pearson_r of the choices, by kind of choice.
        baseline: r at the paper's setting.
    """
    by_kind = {name: table["pearson_r"].dropna() for name, table in tables.items()}
    of_all = pd.concat(list(by_kind.values()))
    if not np.isfinite(baseline) or not len(of_all):
        return (
            "At the paper's setting, or at all others, the correlation is undefined, "
            "so it cannot be said to survive or not."
        )

    def same_sign(r: pd.Series) -> str:
        return f"{(np.sign(r) == np.sign(baseline)).sum()} of {len(r)}"

    kinds = ", ".join(f"{name} {same_sign(r)}" for name, r in by_kind.items())
    return (
        f"At the paper's setting r is **{baseline:.2f}**; under {same_sign(of_all)} "
        f"choices it has the same sign ({kinds}), and it runs from {of_all.min():.2f} "
        f"to {of_all.max():.2f}."
    )
