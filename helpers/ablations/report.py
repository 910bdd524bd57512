"""Labels of choices in notebook 05, and counts of their intervals."""

import pandas as pd

from helpers.report.markup import in_words
from helpers.statistics.gap_tables import TOTAL

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
}


def method_title(method: str, formula: str = "") -> str:
    """Name of a CAM method or a provider of masks, as reports write it.

    Args:
        method: of CAM, or provider of masks.
        formula: of the method; "" where there is only one.

    Example:
        >>> method_title("grad_cam_plus_plus", "torchcam")
        'Grad-CAM++ by torchcam'
    """
    name = _NAMES.get(method, method.replace("_", " "))
    return f"{name} by torchcam" if formula == "torchcam" else name


def at_lowest_threshold(table: pd.DataFrame) -> pd.DataFrame:
    """The rows at the lowest training accuracy.

    Args:
        table: with a column threshold.
    """
    is_lowest = table["threshold"] == table["threshold"].min()
    return table[is_lowest].reset_index(drop=True)


def row_titles(table: pd.DataFrame) -> list[str]:
    """Label of each row of a table of choices.

    Args:
        table: with columns method, formula and images (number per model), and possibly
            architecture and annotation.
    """
    labels = []
    for row in table.to_dict("records"):
        words = []
        architecture = row.get("architecture", "")
        if architecture:
            words.append("all" if architecture == TOTAL else in_words(architecture))
        words.append(method_title(row["method"], row["formula"]))
        annotation = row.get("annotation", "boxes")
        if annotation != "boxes":
            words.append(f"masks by {method_title(annotation)}")
        words.append(f"{row['images']:,.0f} images")
        labels.append(", ".join(words))
    return labels


def number_below_zero(table: pd.DataFrame) -> str:
    """Number of intervals below 0, such as "3 of 4".

    Args:
        table: with columns ci_low and ci_high.
    """
    return f"{(table['ci_high'] < 0).sum()} of {table['ci_low'].notna().sum()}"
