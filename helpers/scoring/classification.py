"""Metrics of classification from logits and labels.

Accuracy, precision, recall, average precision and area under the ROC curve.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax
from torch import Tensor, nn

from helpers.data.images import StudyData
from helpers.files import json_digest
from helpers.networks import resnet
from helpers.networks.hooks import prepared
from helpers.scoring.models import Model
from helpers.scoring.store import Records, Store

_RANKED = (
    "average_precision_step",
    "average_precision_eleven_point",
    "average_precision_all_point",
)
# Warning about models whose predictions of test images are not recorded.
AS_IF_INDEPENDENT = (
    "Which test images each network gets right is not recorded. Intervals draw them as "
    "if the networks erred independently, so they are somewhat too wide, not too "
    "narrow."
)
_COUNTS = ("n", "classes_absent", "classes_never_predicted")


def one_vs_rest_scores(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log-odds of each class against all the others.

    ``log(p_k / (1 - p_k)) = z_k - log(sum over j != k of exp(z_j))``. They rank images
    as the softmax p_k does, but do not tie where p_k rounds to 1.

    Args:
        logits: (N, K), finite, K at least 2.

    Returns:
        (N, K).

    Example:
        >>> one_vs_rest_scores(np.array([[2.0, 0.5]]))
        array([[ 1.5, -1.5]])
    """
    # Fast form of: logits[:, k] - logsumexp(np.delete(logits, k, axis=1), axis=1)
    no_class = np.full((len(logits), 1), -np.inf)
    shifted_right = np.hstack([no_class, logits[:, :-1]])
    reversed_and_shifted = np.hstack([no_class, logits[:, :0:-1]])
    # (N, K) logarithms of the sum over the classes before k, and over those after k
    before = np.logaddexp.accumulate(shifted_right, axis=1)
    after = np.logaddexp.accumulate(reversed_and_shifted, axis=1)[:, ::-1]
    return logits - np.logaddexp(before, after)


def decisions(
    logits: ArrayLike, labels: ArrayLike
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """One-vs-rest labels and scores: of each image for each class.

    Args:
        logits: (N, K).
        labels: (N,).

    Returns:
        Whether the image is of the class, and ``one_vs_rest_scores``; (N, K) each.
    """
    logits = np.asarray(logits, dtype=float)
    is_of_class = np.asarray(labels)[:, None] == np.arange(logits.shape[1])
    return is_of_class, one_vs_rest_scores(logits)


def average_precision(
    positive: ArrayLike, scores: ArrayLike
) -> tuple[float, float, float]:
    """Average the precision P over the recall R, by three rules.

    The n images with the highest scores have precision P_n and recall R_n. By step:
    ``sum over n of (R_n - R_{n-1}) P_n``. By eleven points: the mean over r = 0, 0.1,
    ..., 1 of the best P with R >= r (Pascal VOC 2007). By all points: by step, with the
    best P with R >= R_n in place of P_n (Pascal VOC 2010).

    Args:
        positive: (N,) bool, at least one of them true.
        scores: (N,).

    Returns:
        By step, by eleven points and by all points, in [0, 1].
    """
    from sklearn import metrics  # here: most notebooks do without it

    precision, recall, _ = metrics.precision_recall_curve(positive, scores)
    # The last point, R = 0 and P = 1, belongs to no threshold. Recall falls along the
    # curve, so the points up to one are those with at least its recall.
    best = np.maximum.accumulate(precision[:-1])
    # Tenths as quotients of whole numbers, as the recalls are: then 3 / 10 reaches 0.3,
    # which 3 * 0.1 exceeds.
    tenths = np.arange(11) / 10
    eleven_point = np.mean([best[recall[:-1] >= tenth].max() for tenth in tenths])
    by_step = metrics.average_precision_score(positive, scores)
    all_point = -np.diff(recall) @ best
    return float(by_step), float(eleven_point), float(all_point)


def break_even_point(positive: ArrayLike, scores: ArrayLike) -> float:
    """Recall at the threshold where it equals precision.

    There, as many images are called positive as are positive.

    Args:
        positive: (N,) bool, some true and some false.
        scores: (N,); where they tie, recall is the mean over all orders.

    Returns:
        In [0, 1].
    """
    from sklearn import metrics  # here: most notebooks do without it

    positive = np.asarray(positive, dtype=bool)
    false_rate, true_rate, _ = metrics.roc_curve(positive, scores)
    called_positive = false_rate * (~positive).sum() + true_rate * positive.sum()
    return float(np.interp(positive.sum(), called_positive, true_rate))


def per_class_metrics(
    logits: ArrayLike, labels: ArrayLike, names: Sequence[str]
) -> pd.DataFrame:
    """Score every class against all the others.

    Args:
        logits: (N, K).
        labels: (N,).
        names: of the K classes.

    Returns:
        A row per class: class, n images, and scores in [0, 1], larger is better.
        Precision, recall and F1 are of the predicted class, the first of equal logits;
        average precision and auc of ``one_vs_rest_scores``. All are NaN without an
        image, precision where the class is never predicted, auc where every image is of
        the class.
    """
    from sklearn import metrics  # here: most notebooks do without it

    is_of_class, scores = decisions(logits, labels)
    predicted = np.argmax(logits, axis=1)
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(
        labels, predicted, labels=np.arange(len(names)), zero_division=np.nan
    )
    ranked = []
    areas = []
    for positive, of_class in zip(is_of_class.T, scores.T, strict=True):
        averages = (np.nan, np.nan, np.nan)
        area = np.nan
        if positive.any():
            averages = average_precision(positive, of_class)
            if not positive.all():
                area = metrics.roc_auc_score(positive, of_class)
        ranked.append(averages)
        areas.append(area)
    table = pd.DataFrame({"class": names, "n": is_of_class.sum(0)})
    table = table.assign(precision=precision, recall=recall, f1=f1)
    table[list(_RANKED)] = ranked
    table["auc"] = areas
    table.loc[table["n"] == 0, "precision":] = np.nan
    return table


def summary_metrics(logits: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """Score the network as a whole.

    Args:
        logits: (N, K).
        labels: (N,).

    Returns:
        top1 and top5, fractions of images, NaN for K <= 5; means of
        ``per_class_metrics`` over the classes where each is defined; cross_entropy in
        nats; n images; classes_absent, the number of classes without images, which are
        in no mean; classes_never_predicted, the number of classes with images but
        without precision, which macro_precision leaves out.
    """
    from sklearn import metrics  # here: most notebooks do without it

    logits = np.asarray(logits, dtype=float)
    labels = np.asarray(labels)
    classes = np.arange(logits.shape[1])
    table = per_class_metrics(logits, labels, classes)
    summary = {"top1": float((logits.argmax(1) == labels).mean()), "top5": np.nan}
    if len(classes) > 5:
        # Classes are reversed: of equal logits scikit-learn prefers the later class,
        # argmax the earlier one.
        top5 = metrics.top_k_accuracy_score(
            classes[-1] - labels, logits[:, ::-1], k=5, labels=classes
        )
        summary["top5"] = float(top5)
    for name, value in table.drop(columns=["class", "n"]).mean().items():
        mean = "mean" if name in _RANKED else "macro"
        summary[f"{mean}_{name}"] = float(value)
    log_probabilities = log_softmax(logits, axis=1)  # (N, K)
    of_label = log_probabilities[np.arange(len(labels)), labels]  # (N,)
    summary["cross_entropy"] = float(-of_label.mean())
    has_images = table["n"] > 0
    never_predicted = has_images & table["precision"].isna()
    summary["n"] = len(labels)
    summary["classes_absent"] = int((~has_images).sum())
    summary["classes_never_predicted"] = int(never_predicted.sum())
    return summary


def test_logits(store: Store, models: Sequence[Model], data: StudyData) -> Records:
    """Logits of the test images by every model that can be loaded, or their records.

    Args:
        store: of the study.
        models: of the study.
        data: its images.

    Returns:
        Part "test_logits": array "logits" (T, K) float32, in the order of
        ``data.test``; of a published record "predicted" and "confidence", (T,) each.
    """
    return store.each(
        models,
        {"test_logits": {"data": data.fingerprint}},
        partial(_test_logits, device=store.device),
        needed=False,
    )


def _test_logits(
    model: Model, data: StudyData, parts: Sequence[str], *, device: str
) -> dict[str, dict[str, Any]]:
    logits = logits_of(model.load(device), data.test.images, device).numpy()
    record: dict[str, Any] = {"logits": logits}
    if np.isfinite(logits).all():  # published, where logits are not
        record["summary"] = pd.DataFrame(
            [summary_metrics(logits, data.test.labels.numpy())]
        )
    return {"test_logits": record}


@torch.inference_mode()
def logits_of(
    network: nn.Module,
    images: Tensor,
    device: torch.device | str,
    normalise: Callable[[Tensor], Tensor] = resnet.normalise_images,
) -> Tensor:
    """Logits of images by one pass in batches.

    Args:
        network: in eval mode, on the device.
        images: (N, 3, H, W) uint8.
        device: of the network.
        normalise: from uint8 images to the network's input.

    Returns:
        (N, K) float32 on the CPU.
    """
    # A processor's cache holds the outputs of layers for few images only.
    most = 512 if torch.device(device).type == "cuda" else 64
    logits = []
    for pixels in images.split(most):
        logits.append(network(prepared(pixels, normalise, device)).float().cpu())
    return torch.cat(logits)


def correct(records: Records, labels: Tensor) -> NDArray[np.float32]:
    """Correctness of every model on every test image, from its records.

    Args:
        records: of ``test_logits``.
        labels: (N,) of the test images.

    Returns:
        (models, N) of 0 and 1; NaN for a model without a record.
    """
    right = np.full((len(records.model_ids), len(labels)), np.nan, dtype=np.float32)
    for row, model_id in zip(right, records.model_ids, strict=True):
        record = records.record("test_logits", model_id)
        if record:
            row[:] = predicted_classes(record) == labels.numpy()
    return right


def values_of_test_images(
    records: Records, labels: Tensor, accuracies: Mapping[str, float] | None = None
) -> dict[str, NDArray[np.float32]]:
    """Values of single test images for ``Bootstrap``.

    Args:
        records: of ``test_logits``.
        labels: (T,) of the test images.
        accuracies: test accuracy by model, for models whose predictions are not
            recorded. The images that such a model classifies correctly are simulated,
            independently of other models. Intervals of correlations are then as wide as
            for independent errors, which is at least as wide as for shared ones.

    Returns:
        ``test_accuracy`` (models, T) of 0 and 1; nothing where a model has neither a
        record nor an accuracy, so that no interval draws test images.
    """
    right = correct(records, labels)
    for row, model_id in zip(right, records.model_ids, strict=True):
        accuracy = (accuracies or {}).get(model_id, np.nan)
        if np.isnan(row).any() and np.isfinite(accuracy):
            random = np.random.default_rng(int(json_digest(model_id), 16))
            row[:] = random.permutation(len(row)) < round(accuracy * len(row))
    return {"test_accuracy": right} if np.isfinite(right).all() else {}


def predicted_classes(record: Mapping[str, NDArray[Any]]) -> NDArray[np.integer]:
    """Predicted class of each image, (N,).

    Args:
        record: of ``test_logits``, or what is published of it.
    """
    return record["predicted"] if "predicted" in record else record["logits"].argmax(1)


def metrics_of_models(records: Records, labels: Tensor) -> pd.DataFrame:
    """Metrics of every model on the test images, from its logits or as published.

    Args:
        records: of ``test_logits``.
        labels: (T,) of the test images.

    Returns:
        A row per model, its id in ``model``, see ``summary_metrics``; models whose
        logits are not finite are left out.
    """
    rows = []
    for model_id, record in records.records("test_logits"):
        if "summary" in record:
            rows.append({"model": model_id} | record["summary"].iloc[0].to_dict())
        elif "logits" in record and np.isfinite(record["logits"]).all():
            metrics = summary_metrics(record["logits"], labels)
            rows.append({"model": model_id} | metrics)
    table = pd.DataFrame(rows)
    counts = [name for name in _COUNTS if name in table]
    return table.astype(dict.fromkeys(counts, int))
