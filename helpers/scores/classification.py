"""Metrics of classification from logits and labels.

Accuracy, precision, recall, average precision, area under the ROC curve, calibration.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax, logsumexp
from torch import Tensor, nn

from helpers.data.images import StudyData
from helpers.measures.passes import Classifier
from helpers.networks import resnet
from helpers.scores.models import Model
from helpers.scores.store import Records, Store

_RANKED = (
    "average_precision_step",
    "average_precision_eleven_point",
    "average_precision_all_point",
)
_OF_CLASS = ("precision", "recall", "f1", *_RANKED, "auc")
TEST_IMAGES = "test_logits"  # part of the store
_BINS = 15  # of confidence, for calibration errors
_COUNTS = ("n", "classes_absent", "classes_never_predicted")


def decisions(
    logits: ArrayLike, labels: ArrayLike
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """One-vs-rest labels and scores: of each image for each class.

    Scores are log-odds of the class against all the others, ``log(p_k / (1 - p_k)) =
    z_k - log(sum over j != k of exp(z_j))``. They rank images as the softmax p_k does,
    but do not tie where p_k rounds to 1.

    Args:
        logits: (N, K), finite, K at least 2.
        labels: (N,).

    Returns:
        Whether the image is of the class, and its score; (N, K) each.

    Example:
        >>> decisions([[2.0, 0.5]], [0])
        (array([[ True, False]]), array([[ 1.5, -1.5]]))
    """
    logits = np.asarray(logits, dtype=float)
    classes = np.arange(logits.shape[1])
    others = [logsumexp(np.delete(logits, number, 1), axis=1) for number in classes]
    return np.asarray(labels)[:, None] == classes, logits - np.stack(others, axis=1)


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
        average precision and auc of the scores of ``decisions``. All are NaN without an
        image, precision where the class is never predicted, auc where every image is of
        the class.
    """
    from sklearn import metrics  # here: most notebooks do without it

    is_of_class, scores = decisions(logits, labels)
    predicted = np.argmax(logits, axis=1)
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(
        labels, predicted, labels=np.arange(len(names)), zero_division=np.nan
    )
    table = pd.DataFrame({"class": names, "n": is_of_class.sum(0)})
    table = table.assign(precision=precision, recall=recall, f1=f1)
    for number, positive in enumerate(is_of_class.T):
        if positive.any():
            ranked = average_precision(positive, scores[:, number])
            table.loc[number, [*_RANKED]] = ranked
        if positive.any() and not positive.all():
            area = metrics.roc_auc_score(positive, scores[:, number])
            table.loc[number, "auc"] = area
    table = table.reindex(columns=["class", "n", *_OF_CLASS])
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
        without precision, which macro_precision leaves out; ``calibration_errors``; and
        brier_score in [0, 2], ``mean over images of sum over k of (p_k - y_k)^2``
        (Brier 1950).
    """
    logits = np.asarray(logits, dtype=float)
    labels = np.asarray(labels)
    classes = np.arange(logits.shape[1])
    table = per_class_metrics(logits, labels, classes)
    means = {
        f"{'mean' if name in _RANKED else 'macro'}_{name}": table[name].mean()
        for name in _OF_CLASS
    }
    order = np.argsort(-logits, axis=1, kind="stable")
    rank = (order == labels[:, None]).argmax(axis=1)  # 0 where the label is predicted
    log_probabilities = log_softmax(logits, axis=1)  # (N, K)
    probabilities = np.exp(log_probabilities)
    is_label = labels[:, None] == classes
    squares = np.square(probabilities - is_label).sum(axis=1)
    has_images = table["n"] > 0
    return {
        "top1": (rank == 0).mean(),
        "top5": (rank < 5).mean() if len(classes) > 5 else np.nan,
        **means,
        "cross_entropy": -log_probabilities[is_label].mean(),
        "n": len(labels),
        "classes_absent": (~has_images).sum(),
        "classes_never_predicted": (has_images & table["precision"].isna()).sum(),
        **calibration_errors(probabilities.max(axis=1), rank == 0),
        "brier_score": squares.mean(),
    }


def calibration_errors(confidences: ArrayLike, is_right: ArrayLike) -> dict[str, float]:
    """Differences of accuracy and confidence, the probability of the predicted class.

    ``sum over bins b of n_b / N |accuracy_b - confidence_b|``, with 15 bins. Of the
    expected error they have equal widths (Guo et al. 2017), of the adaptive one equal
    numbers of images (Nixon et al. 2019).

    Args:
        confidences: (N,) in [0, 1].
        is_right: (N,) bool.

    Returns:
        expected_calibration_error and adaptive_calibration_error, in [0, 1], smaller is
        better.

    Example:
        >>> errors = calibration_errors([0.75, 0.75], [True, False])
        >>> errors["expected_calibration_error"]
        0.25
    """
    confidences = np.asarray(confidences, dtype=float)
    surplus = confidences - np.asarray(is_right)
    bins = np.ceil(confidences * _BINS).astype(int)  # open below, closed above
    of_widths = np.bincount(bins, surplus)
    in_order = surplus[np.argsort(confidences, kind="stable")]
    of_counts = [part.sum() for part in np.array_split(in_order, _BINS)]
    return {
        "expected_calibration_error": float(np.abs(of_widths).sum() / len(surplus)),
        "adaptive_calibration_error": float(np.abs(of_counts).sum() / len(surplus)),
    }


def test_logits(store: Store, models: Sequence[Model], data: StudyData) -> Records:
    """Logits of the test images by every model that can be loaded, or their records.

    Args:
        store: of the study.
        models: of the study.
        data: its images.

    Returns:
        Part ``TEST_IMAGES``: array "logits" (T, K) float32, in the order of
        ``data.test``, of a published record "predicted", (T,); and a score for each
        metric.
    """
    device = store.device

    def compute(model: Model, data: StudyData, parts: Sequence[str]) -> dict[str, Any]:
        """The part of a network; without scores where a logit is not finite."""
        logits = logits_of(model.load(device), data.test.images, device).numpy()
        record: dict[str, Any] = {"logits": logits}
        if np.isfinite(logits).all():
            record["scores"] = summary_metrics(logits, data.test.labels.numpy())
        return {TEST_IMAGES: record}

    parts = {TEST_IMAGES: {"data": data.fingerprint}}
    return store.each(models, parts, compute, needed=False)


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
    batch_size = 512 if torch.device(device).type == "cuda" else 64
    classifier = Classifier(network, normalise, device, batch_size)
    return classifier.logits(images).float().cpu()


def predicted_classes(record: Mapping[str, NDArray[Any]]) -> NDArray[np.integer]:
    """Predicted class of each image, (N,).

    Args:
        record: of ``test_logits``, or what is published of it.
    """
    return record["predicted"] if "predicted" in record else record["logits"].argmax(1)


def correct(records: Records, labels: Tensor) -> NDArray[np.float32]:
    """Correctness of every model on every test image, from its records.

    Args:
        records: of ``test_logits``.
        labels: (N,) of the test images.

    Returns:
        (models, N) of 0 and 1; NaN for a model without a record.
    """
    size = (len(records.model_ids), len(labels))
    right = np.full(size, np.nan, dtype=np.float32)
    for row, model_id in enumerate(records.model_ids):
        if record := records.record(TEST_IMAGES, model_id):
            right[row] = predicted_classes(record) == labels.numpy()
    return right


def metrics_of_models(records: Records) -> pd.DataFrame:
    """Metrics of every model on the test images.

    Args:
        records: of ``test_logits``.

    Returns:
        A row per model, its id in ``model``, see ``summary_metrics``; models whose
        logits are not finite are left out.
    """
    metrics = records.table(TEST_IMAGES).rename_axis("model").reset_index()
    counts = [name for name in _COUNTS if name in metrics]
    return metrics.astype(dict.fromkeys(counts, int))
