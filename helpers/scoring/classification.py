"""How well a network classifies, from its kept logits and the labels: confusion, precision, recall, average precision, ROC."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax
from sklearn import metrics
from torch import Tensor, nn

from helpers.data.images import StudyData
from helpers.networks import resnet
from helpers.networks.hooks import prepared
from helpers.scoring.models import Model
from helpers.scoring.store import Kept, Store

MICRO_AVERAGE = "micro average"
_SCORES = ("precision", "recall", "f1", "average_precision_step", "average_precision_eleven_point", "average_precision_all_point", "auc")


class AveragePrecision(NamedTuple):
    """Area under one precision-recall curve, by three rules."""

    step: float
    eleven_point: float
    all_point: float


def _checked(logits: ArrayLike, labels: ArrayLike, names: Sequence[str] | None = None) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """(N, K) float64 logits and (N,) int64 labels; ValueError says what is wrong with them, or that there are not K different names."""
    logits, labels = np.asarray(logits, dtype=float), np.asarray(labels, dtype=float)
    if not np.isfinite(logits).all():
        raise ValueError(f"{(~np.isfinite(logits)).sum()} of {logits.size} logits are not finite; leave such a model out")
    wrong = labels[~np.isin(labels, np.arange(logits.shape[1]))]
    if len(wrong):
        raise ValueError(f"label {wrong[0]:g} must be a whole number from 0 to {logits.shape[1] - 1}")
    if names is not None and not len(names) == len(set(names)) == logits.shape[1]:
        raise ValueError(f"{logits.shape[1]} classes need as many different names, got {len(names)}, of which {len(set(names))} differ")
    return logits, labels.astype(np.int64)


def one_vs_rest_scores(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log-odds of each class against all the others: ``log(p_k / (1 - p_k)) = z_k - log(sum over j != k of exp(z_j))``.

    They rank images as the softmax p_k does, but do not tie where p_k rounds to 1. (N, K) finite logits with K >= 2 -> (N, K).
    """
    nothing = np.full((len(logits), 1), -np.inf)
    before = np.logaddexp.accumulate(np.hstack([nothing, logits[:, :-1]]), axis=1)
    after = np.logaddexp.accumulate(np.hstack([nothing, logits[:, :0:-1]]), axis=1)[:, ::-1]
    return logits - np.logaddexp(before, after)


def average_precision(positive: ArrayLike, scores: ArrayLike) -> AveragePrecision:
    """Average the precision P over the recall R, as images are called positive from the highest score down; NaN without a positive one.

    step is scikit-learn's ``sum over n of (R_n - R_{n-1}) P_n``; eleven_point the mean over r = 0, 0.1, ..., 1 of the best P among R >= r
    (Pascal VOC 2007); all_point has the best P among R >= R_n in the place of P_n (Pascal VOC 2010). The point R = 0, P = 1 that
    scikit-learn appends to the curve is no threshold's, and is left out.
    """
    positive = np.asarray(positive, dtype=bool)
    if not positive.any():
        return AveragePrecision(np.nan, np.nan, np.nan)
    precision, recall, _ = metrics.precision_recall_curve(positive, scores)
    best = np.maximum.accumulate(precision[:-1])  # recall falls along the curve, so these are the points of at least this recall
    # Tenths as quotients of whole numbers, as the recalls are: then 3 / 10 reaches 0.3, which 3 * 0.1 exceeds.
    eleven_point = np.mean([best[recall[:-1] >= tenth].max() for tenth in np.arange(11) / 10])
    all_point = -np.diff(recall) @ best
    return AveragePrecision(float(metrics.average_precision_score(positive, scores)), float(eleven_point), float(all_point))


def confusion(logits: ArrayLike, labels: ArrayLike) -> NDArray[np.int64]:
    """Count images by true class (row) and predicted class (column): (K, K). The first of equal logits is predicted."""
    logits, labels = _checked(logits, labels)
    return metrics.confusion_matrix(labels, logits.argmax(1), labels=np.arange(logits.shape[1]))


def per_class_metrics(logits: ArrayLike, labels: ArrayLike, names: Sequence[str]) -> pd.DataFrame:
    """Score every class against all the others: a row per class, class, n images, and scores in [0, 1], larger is better.

    Precision, recall and F1 are of the predicted class, average precision and the area under the ROC curve (auc) of the ranking by
    ``one_vs_rest_scores``. A class without an image (n = 0) is NaN throughout; precision is NaN where the class is never predicted, auc
    where every image is of the class.
    """
    logits, labels = _checked(logits, labels, names)
    scores, classes = one_vs_rest_scores(logits), np.arange(len(names))
    counted = metrics.precision_recall_fscore_support(labels, logits.argmax(1), labels=classes, zero_division=np.nan)
    rows = []
    for k in classes:
        positive = labels == k
        auc = metrics.roc_auc_score(positive, scores[:, k]) if 0 < positive.sum() < len(labels) else np.nan
        rows.append([names[k], positive.sum(), *(values[k] for values in counted[:3]), *average_precision(positive, scores[:, k]), auc])
    table = pd.DataFrame(rows, columns=["class", "n", *_SCORES])
    table.loc[table["n"] == 0, list(_SCORES)] = np.nan
    return table


def summary_metrics(logits: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """Score the network as a whole: fractions of images, and means of ``per_class_metrics`` over the classes where each is defined.

    Of equal logits the earlier class comes first; top5 is NaN for K <= 5; cross_entropy in nats. classes_absent have no image and are in no
    mean; classes_never_predicted have images but no precision: a high macro_precision beside many of them is no merit.
    """
    logits, labels = _checked(logits, labels)
    classes = np.arange(logits.shape[1])
    table = per_class_metrics(logits, labels, [str(k) for k in classes])
    means = table[list(_SCORES)].mean()
    # Turned over, because scikit-learn puts the later of equal classes first, where argmax takes the earlier.
    top5 = metrics.top_k_accuracy_score(classes[-1] - labels, logits[:, ::-1], k=5, labels=classes) if len(classes) > 5 else np.nan
    return {
        "top1": float((logits.argmax(1) == labels).mean()),
        "top5": float(top5),
        **{f"macro_{name}": float(means[name]) for name in ("precision", "recall", "f1")},
        **{f"mean_{name}": float(means[name]) for name in _SCORES if name.startswith("average_precision")},
        "macro_auc": float(means["auc"]),
        "cross_entropy": float(-log_softmax(logits, axis=1)[np.arange(len(labels)), labels].mean()),
        "n": len(labels),
        "classes_absent": int((table["n"] == 0).sum()),
        "classes_never_predicted": int(((table["n"] > 0) & table["precision"].isna()).sum()),
    }


def _decisions(logits: ArrayLike, labels: ArrayLike, names: Sequence[str]) -> list[tuple[str, NDArray, NDArray]]:
    """Name, truth and score of each class that has images, last of all (image, class) decisions pooled."""
    logits, labels = _checked(logits, labels, names)
    scores, true = one_vs_rest_scores(logits), labels[:, None] == np.arange(logits.shape[1])
    single = [(name, true[:, k], scores[:, k]) for k, name in enumerate(names) if true[:, k].any()]
    return [*single, (MICRO_AVERAGE, true.ravel(), scores.ravel())]


def precision_recall_points(logits: ArrayLike, labels: ArrayLike, names: Sequence[str]) -> pd.DataFrame:
    """Points of each class's precision-recall curve and of the micro average, which pools all (image, class) decisions.

    Recall falling along each curve: class, n (positives), called (decisions positive at the point), recall, precision; points between
    which recall does not change are left out, and so is R = 0, P = 1, which no threshold gives. None for a class without images.
    """
    curves = []
    for name, true, scores in _decisions(logits, labels, names):
        precision, recall, thresholds = metrics.precision_recall_curve(true, scores, drop_intermediate=True)
        called = len(scores) - np.searchsorted(np.sort(scores), thresholds)
        columns = {"called": called, "recall": recall[:-1], "precision": precision[:-1]}
        curves.append(pd.DataFrame({"class": name, "n": true.sum(), **columns}))
    return pd.concat(curves, ignore_index=True)


def roc_points(logits: ArrayLike, labels: ArrayLike, names: Sequence[str]) -> pd.DataFrame:
    """Corners of each class's ROC curve and of the micro average; none for a class that no or every image is of."""
    curves = []
    for name, true, scores in _decisions(logits, labels, names):
        if not true.all():
            false_rate, true_rate, _ = metrics.roc_curve(true, scores)
            curves.append(pd.DataFrame({"class": name, "false_positive_rate": false_rate, "true_positive_rate": true_rate}))
    return pd.concat(curves, ignore_index=True)


def break_even_point(curve: pd.DataFrame) -> float:
    """Where precision equals recall on a curve of ``precision_recall_points``: where as many are called as there are positives."""
    points = curve.sort_values("called")
    # Between two points, at tied scores, recall is its mean over all orders of the tied.
    return float(np.interp(points["n"].iloc[0], [0, *points["called"]], [0, *points["recall"]]))


def test_logits(store: Store, models: Sequence[Model], data: StudyData) -> Kept:
    """Logits of the test images by every model: part "test_logits", array "logits" (T, K) float32, in the order of ``data.test``."""
    return store.each(models, {"test_logits": {"data": data.fingerprint}}, partial(_test_logits, device=store.device))


def _test_logits(model: Model, data: StudyData, parts: Sequence[str], *, device: str) -> dict[str, dict[str, NDArray[np.float32]]]:
    return {"test_logits": {"logits": logits_of(model.load(device), data.test.images, device).numpy()}}


@torch.inference_mode()
def logits_of(
    network: nn.Module, images: Tensor, device: torch.device | str, normalise: Callable[[Tensor], Tensor] = resnet.normalise_images
) -> Tensor:
    """Logits of images by one pass in batches: uint8 (N, 3, H, W) -> (N, K) float32 on the CPU."""
    batches = images.split(512 if torch.device(device).type == "cuda" else 64)  # a processor's cache holds the maps of few
    return torch.cat([network(prepared(pixels, normalise, device)).float().cpu() for pixels in batches])


def correct(kept: Kept, labels: Tensor, part: str = "test_logits") -> NDArray[np.float32]:
    """Whether every model is right on every image, by its kept logits: (models, images) of 0 and 1, NaN for a model without."""
    nothing = np.full(len(labels), np.nan)
    records = (kept.record(part, model_id) for model_id in kept.model_ids)
    right = [record["logits"].argmax(1) == labels.numpy() if record else nothing for record in records]
    return np.array(right, dtype=np.float32).reshape(-1, len(labels))


def metrics_of_models(kept: Kept, labels: Tensor) -> pd.DataFrame:
    """Metrics of every model on the test images, a row each, its id in ``model``; models whose logits are not finite are left out."""
    said = {model_id: record["logits"] for model_id, record in kept.records("test_logits")}
    return pd.DataFrame([{"model": name, **summary_metrics(logits, labels)} for name, logits in said.items() if np.isfinite(logits).all()])
