"""How well a network classifies, from its kept logits and the labels: confusion, precision, recall, average precision, ROC."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, log_softmax
from sklearn import metrics
from torch import Tensor, nn

from helpers.data.images import StudyData
from helpers.networks import resnet
from helpers.networks.hooks import prepared
from helpers.scoring.models import Model
from helpers.scoring.store import Kept, Store

MICRO_AVERAGE = "micro average"
POINTS_PER_CURVE = 200
_SCORES = ("precision", "recall", "f1", "average_precision_step", "average_precision_eleven_point", "average_precision_all_point", "auc")


class AveragePrecision(NamedTuple):
    """Area under one precision-recall curve, by three rules."""

    step: float
    eleven_point: float
    all_point: float


def _array(values: ArrayLike | Tensor) -> NDArray[np.float64]:
    return values.detach().cpu().double().numpy() if isinstance(values, Tensor) else np.asarray(values, dtype=float)


def _checked(logits: ArrayLike | Tensor, labels: ArrayLike | Tensor) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """(N, K) float64 logits and (N,) int64 labels; ValueError says what is wrong with them."""
    logits, labels = _array(logits), _array(labels)
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or not len(labels) or logits.shape[1] < 2:
        raise ValueError(f"logits must be (N, K) and labels (N,), with N >= 1 and K >= 2, got shapes {logits.shape} and {labels.shape}")
    if not np.isfinite(logits).all():
        raise ValueError(f"{(~np.isfinite(logits)).sum()} of {logits.size} logits are not finite; leave such a model out")
    wrong = labels[~np.isin(labels, np.arange(logits.shape[1]))]
    if len(wrong):
        raise ValueError(f"label {wrong[0]:g} must be a whole number from 0 to {logits.shape[1] - 1}")
    return logits, labels.astype(np.int64)


def _checked_names(names: Sequence[str], classes: int) -> list[str]:
    if len(names) != classes or len(set(names)) != classes:
        raise ValueError(f"{classes} classes need as many different names, got {len(names)}, of which {len(set(names))} differ")
    return list(names)


def one_vs_rest_scores(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log-odds of each class against all the others: ``log(p_k / (1 - p_k)) = z_k - log(sum over j != k of exp(z_j))``.

    They rank images as the softmax p_k does, but stay apart where p_k rounds to 1: a network that fits its training images gives
    many such, and they would count as ties. (N, K) finite logits with K >= 2 -> (N, K) of either sign; larger speaks for the class.
    """
    nothing = np.full((len(logits), 1), -np.inf)
    before = np.logaddexp.accumulate(np.hstack([nothing, logits[:, :-1]]), axis=1)
    after = np.logaddexp.accumulate(np.hstack([nothing, logits[:, :0:-1]]), axis=1)[:, ::-1]
    return logits - np.logaddexp(before, after)


def average_precision(positive: ArrayLike, scores: ArrayLike) -> AveragePrecision:
    """Average the precision P over the recall R, as images are called positive from the highest score down.

    - step: ``sum over n of (R_n - R_{n-1}) P_n``, scikit-learn's;
    - eleven_point: mean over r = 0, 0.1, ..., 1 of the best P among R >= r; Pascal VOC 2007, with "at least", not "above";
    - all_point: ``sum over n of (R_n - R_{n-1}) max over R >= R_n of P``, the envelope; Pascal VOC 2010 and later.

    All in [0, 1], larger is better; all_point is at least step; NaN without a positive image. Images of equal score are one step. The
    point R = 0, P = 1 that scikit-learn appends to the curve is no threshold's, and does not lift the envelope here.
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


def confusion(logits: ArrayLike | Tensor, labels: ArrayLike | Tensor) -> NDArray[np.int64]:
    """Count images by true class (row) and predicted class (column): (K, K). The first of equal logits is predicted."""
    logits, labels = _checked(logits, labels)
    return metrics.confusion_matrix(labels, logits.argmax(1), labels=np.arange(logits.shape[1]))


def per_class_metrics(logits: ArrayLike | Tensor, labels: ArrayLike | Tensor, names: Sequence[str]) -> pd.DataFrame:
    """Score every class against all the others: a row per class, class, n images, and scores in [0, 1], larger is better.

    ``precision = TP / (TP + FP)``, ``recall = TP / (TP + FN)``, ``F1 = 2 TP / (2 TP + FP + FN)`` of the predicted class;
    ``average_precision`` and the area under the ROC curve (auc, 0.5 is chance) of the ranking by ``one_vs_rest_scores``. A class without
    an image (n = 0) is NaN throughout; precision is NaN where the class is never predicted, auc where every image is of the class.

    Raises:
        ValueError: logits that are not finite or not (N, K), labels out of 0 ... K - 1, or names that are not K different ones.
    """
    logits, labels = _checked(logits, labels)
    names = _checked_names(names, logits.shape[1])
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


def summary_metrics(logits: ArrayLike | Tensor, labels: ArrayLike | Tensor) -> dict[str, float]:
    """Score the network as a whole: fractions of images, and means of ``per_class_metrics`` over the classes where each is defined.

    top1 and top5 are the fraction of images whose label is the first or among the first five classes (equal logits: the earlier class
    first; top5 is NaN for K <= 5, where it would be 1 whatever the network); cross_entropy in nats. classes_absent have no image and are
    in no mean; classes_never_predicted have images but no precision: a high macro_precision beside many of them is no merit.
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


def _decisions(logits: ArrayLike | Tensor, labels: ArrayLike | Tensor, names: Sequence[str]) -> list[tuple[str, NDArray, NDArray]]:
    """Name, truth and score of each class that has images, last of all (image, class) decisions pooled."""
    logits, labels = _checked(logits, labels)
    scores, true = one_vs_rest_scores(logits), labels[:, None] == np.arange(logits.shape[1])
    single = [(name, true[:, k], scores[:, k]) for k, name in enumerate(_checked_names(names, logits.shape[1])) if true[:, k].any()]
    return [*single, (MICRO_AVERAGE, true.ravel(), scores.ravel())]


def _thinned(x: NDArray, y: NDArray, kept: Sequence[int] = ()) -> NDArray[np.intp]:
    """Choose the points to draw, evenly along the curve: the first, the last, those in ``kept``, POINTS_PER_CURVE at most."""
    if len(x) <= POINTS_PER_CURVE:
        return np.arange(len(x))
    along = np.concatenate([[0], np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y)))])
    even = np.searchsorted(along, np.linspace(0, along[-1], POINTS_PER_CURVE - 1 - len(kept)))
    return np.unique([*even, *kept, len(x) - 1])


def precision_recall_points(logits: ArrayLike | Tensor, labels: ArrayLike | Tensor, names: Sequence[str]) -> pd.DataFrame:
    """List the points of each class's precision-recall curve and of the micro average, which pools all (image, class) decisions.

    Recall falling along each curve: class, n (positives), threshold (of the softmax; towards the ends it rounds to 0 or 1, where the order
    is still exact), called (decisions positive at it), recall, precision. At most 200 points per curve, with both ends and the points about
    break-even; none for a class without images, and not the point R = 0, P = 1, which no threshold gives.
    """
    curves = []
    for name, true, scores in _decisions(logits, labels, names):
        precision, recall, thresholds = metrics.precision_recall_curve(true, scores)
        called = len(scores) - np.searchsorted(np.sort(scores), thresholds)
        about = np.clip(np.searchsorted(-called, -true.sum()) + np.array([-1, 0]), 0, len(called) - 1)
        columns = {"threshold": expit(thresholds), "called": called, "recall": recall[:-1], "precision": precision[:-1]}
        curve = pd.DataFrame({"class": name, "n": true.sum(), **columns})
        curves.append(curve.iloc[_thinned(recall[:-1], precision[:-1], about)])
    return pd.concat(curves, ignore_index=True)


def roc_points(logits: ArrayLike | Tensor, labels: ArrayLike | Tensor, names: Sequence[str]) -> pd.DataFrame:
    """List the points of each class's ROC curve and of the micro average, which pools all (image, class) decisions.

    From (0, 0) to (1, 1): class, n (positives), threshold (of the softmax), false_positive_rate = FP / (FP + TN), true_positive_rate =
    TP / (TP + FN). At most 200 points per curve; none for a class that no or every image is of.
    """
    curves = []
    for name, true, scores in _decisions(logits, labels, names):
        if not true.all():
            false_rate, true_rate, thresholds = metrics.roc_curve(true, scores)
            columns = {"threshold": expit(thresholds), "false_positive_rate": false_rate, "true_positive_rate": true_rate}
            curves.append(pd.DataFrame({"class": name, "n": true.sum(), **columns}).iloc[_thinned(false_rate, true_rate)])
    return pd.concat(curves, ignore_index=True)


def break_even_point(curve: pd.DataFrame) -> float:
    """Find where precision equals recall: ``TP / called = TP / n``, so where as many decisions are positive as there are positives.

    Of one class of ``precision_recall_points``; in [0, 1], larger is better, NaN for a curve without points. Between two points (equal
    scores) recall is taken as linear in the number called, its mean over all orders of the tied.
    """
    if not len(curve):
        return np.nan
    points = curve.sort_values("called")
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
    # A processor is faster while the maps of a batch stay in its cache.
    batches = images.split(512 if torch.device(device).type == "cuda" else 64)
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
