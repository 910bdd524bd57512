"""Sentences that read the ordinary metrics of classification and of masks."""

import numpy as np
import pandas as pd

from helpers.classification import MICRO_AVERAGE, break_even_point
from helpers.readings import count, listed, percent


def models_classify(metrics: pd.DataFrame) -> str:
    """Say what range the models' metrics take on the test images."""
    if not len(metrics):
        return "No model has finite logits."
    parts = [
        f"{name} {percent(metrics[column].min())} to {percent(metrics[column].max())}"
        for column, name in (("top1", "top-1"), ("top5", "top-5"), ("macro_f1", "macro F1"), ("mean_average_precision_step", "mAP"))
        if metrics[column].notna().any()
    ]
    never = int((metrics["classes_never_predicted"] > 0).sum())
    return (
        f"Over {count(len(metrics), 'model')} on {count(int(metrics['n'].iloc[0]), 'test image')}: {listed(parts, 4)}. "
        f"{count(never, 'model')} never predicted some class, whose precision is undefined and in no mean."
    )


def most_confused(matrix: np.ndarray, names: list[str]) -> str:
    """Name the pair of classes that is taken for one another most often."""
    off = matrix - np.diag(np.diag(matrix))
    if not off.sum():
        return "No image is classified wrongly."
    true, called = np.unravel_index(off.argmax(), off.shape)
    share = off[true, called] / matrix[true].sum()
    return (
        f"{percent(np.trace(matrix) / matrix.sum())} of {count(int(matrix.sum()), 'image')} are on the diagonal; the most frequent "
        f"confusion takes {names[true]} for {names[called]} ({count(int(off[true, called]), 'image')}, {percent(share)} of that class)."
    )


def classes_compared(per_class: pd.DataFrame) -> str:
    """Name the classes with the best and the worst F1."""
    defined = per_class.dropna(subset="f1").sort_values("f1")
    if not len(defined):
        return "No class has a defined F1."
    worst, best = defined.iloc[0], defined.iloc[-1]
    return f"F1 runs from {worst['f1']:.2f} ({worst['class']}) to {best['f1']:.2f} ({best['class']}), median {defined['f1'].median():.2f}."


def precision_recall_read(points: pd.DataFrame, per_class: pd.DataFrame) -> str:
    """State the break-even point of all decisions together, and the three forms of average precision."""
    means = [per_class[f"average_precision_{form}"].mean() for form in ("step", "eleven_point", "all_point")]
    point = break_even_point(points[points["class"] == MICRO_AVERAGE])
    return (
        f"Precision equals recall at {percent(point)}. Mean average precision over the classes: {means[0]:.3f} (step), "
        f"{means[1]:.3f} (11-point) and {means[2]:.3f} (all-point envelope)."
    )


def roc_read(per_class: pd.DataFrame) -> str:
    """State the range of the areas under the ROC curves."""
    auc = per_class.set_index("class")["auc"].dropna()
    if not len(auc):
        return "No class has a defined ROC curve."
    return f"Area under the curve: mean {auc.mean():.3f}, from {auc.min():.3f} ({auc.idxmin()}) to {auc.max():.3f} ({auc.idxmax()})."


def masks_read(table: pd.DataFrame) -> str:
    """Say how the masks of the maps stand to the boxes, pixel by pixel and as detections, over the models."""
    names = {
        "mask_agreement": "mean IoU",
        "mask_agreement (pixel accuracy)": "pixel accuracy",
        "mask_agreement (frequency-weighted IoU)": "frequency-weighted IoU",
        "box_found": "box found (GT-known)",
        "box_average_precision": "average precision of the box",
    }
    scored = table.dropna(subset=list(names), how="all")
    if not len(scored):
        return "No model has a defined mask."
    each = [f"{label} {scored[column].median():.3f}" for column, label in names.items()]
    return f"Medians over {count(len(scored), 'model')}: {listed(each, 5)}."
