"""How well a network classifies, from its kept logits and the labels: confusion, precision, recall, average precision, ROC."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax
from sklearn import metrics
from torch import Tensor, nn

from helpers.data.images import StudyData
from helpers.files import digest
from helpers.networks import resnet
from helpers.networks.batches import fitting_batch
from helpers.networks.hooks import prepared
from helpers.scoring.models import Model
from helpers.scoring.store import Kept, Store

_RANKED = (
    "average_precision_step",
    "average_precision_eleven_point",
    "average_precision_all_point",
)
# What is said of models whose predictions of test images are not recorded.
AS_IF_INDEPENDENT = (
    "Which test images each network gets right is not recorded. Intervals draw them as if "
    "the networks erred independently, so they are somewhat too wide, not too narrow."
)
_COUNTS = ("n", "classes_absent", "classes_never_predicted")


def one_vs_rest_scores(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log-odds of each class against all the others: ``log(p_k / (1 - p_k)) = z_k - log(sum over j != k of exp(z_j))``.

    They rank images as the softmax p_k does, but do not tie where p_k rounds to 1. (N, K) finite logits with K >= 2 -> (N, K).
    """
    nothing = np.full((len(logits), 1), -np.inf)
    before = np.logaddexp.accumulate(np.hstack([nothing, logits[:, :-1]]), axis=1)
    after = np.logaddexp.accumulate(np.hstack([nothing, logits[:, :0:-1]]), axis=1)[
        :, ::-1
    ]
    return logits - np.logaddexp(before, after)


def decisions(
    logits: ArrayLike, labels: ArrayLike
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Whether each image is of each class, and how surely it is said to be: (N, K) logits, (N,) labels -> (N, K) each."""
    logits = np.asarray(logits, dtype=float)
    return np.asarray(labels)[:, None] == np.arange(
        logits.shape[1]
    ), one_vs_rest_scores(logits)


def average_precision(
    positive: ArrayLike, scores: ArrayLike
) -> tuple[float, float, float]:
    """Average the precision P over the recall R, as images are called positive from the highest score down; by three rules.

    By step: ``sum over n of (R_n - R_{n-1}) P_n``. By eleven points: the mean over r = 0, 0.1, ..., 1 of the best P among R >= r (Pascal
    VOC 2007). By all points: the best P among R >= R_n for P_n (Pascal VOC 2010).
    """
    precision, recall, _ = metrics.precision_recall_curve(
        positive, scores
    )  # its last point, R = 0 and P = 1, is no threshold's
    best = np.maximum.accumulate(
        precision[:-1]
    )  # recall falls along the curve, so these are the points of at least this recall
    # Tenths as quotients of whole numbers, as the recalls are: then 3 / 10 reaches 0.3, which 3 * 0.1 exceeds.
    eleven_point = np.mean(
        [best[recall[:-1] >= tenth].max() for tenth in np.arange(11) / 10]
    )
    return (
        float(metrics.average_precision_score(positive, scores)),
        float(eleven_point),
        float(-np.diff(recall) @ best),
    )


def break_even_point(positive: ArrayLike, scores: ArrayLike) -> float:
    """Where precision equals recall: where as many are called positive as there are; at tied scores recall is its mean over all orders."""
    positive = np.asarray(positive, dtype=bool)
    false_rate, true_rate, _ = metrics.roc_curve(positive, scores)
    return float(
        np.interp(
            positive.sum(),
            false_rate * (~positive).sum() + true_rate * positive.sum(),
            true_rate,
        )
    )


def per_class_metrics(
    logits: ArrayLike, labels: ArrayLike, names: Sequence[str]
) -> pd.DataFrame:
    """Score every class against all the others: a row per class, class, n images, and scores in [0, 1], larger is better.

    Precision, recall and F1 are of the predicted class, the first of equal logits; average precision and auc of ``one_vs_rest_scores``. NaN
    throughout without an image; precision where the class is never predicted, auc where every image is of it.
    """
    true, scores = decisions(logits, labels)
    counted = metrics.precision_recall_fscore_support(
        labels,
        np.argmax(logits, axis=1),
        labels=np.arange(len(names)),
        zero_division=np.nan,
    )
    table = pd.DataFrame(
        {"class": names, "n": true.sum(0)}
        | dict(zip(("precision", "recall", "f1"), counted[:3], strict=True))
    )
    ranked = [
        average_precision(*both) if both[0].any() else [np.nan] * 3
        for both in zip(true.T, scores.T, strict=True)
    ]
    areas = [
        metrics.roc_auc_score(*both) if 0 < both[0].mean() < 1 else np.nan
        for both in zip(true.T, scores.T, strict=True)
    ]
    table = table.join(pd.DataFrame(ranked, columns=_RANKED)).assign(auc=areas)
    table.loc[table["n"] == 0, "precision":] = np.nan
    return table


def summary_metrics(logits: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """Score the network as a whole: fractions of images, and means of ``per_class_metrics`` over the classes where each is defined.

    top5 is NaN for K <= 5; cross_entropy in nats. classes_absent have no image and are in no mean; classes_never_predicted have images but
    no precision: a high macro_precision beside many of them is no merit.
    """
    logits, labels = np.asarray(logits, dtype=float), np.asarray(labels)
    classes = np.arange(logits.shape[1])
    table = per_class_metrics(logits, labels, classes)
    # Turned over, because scikit-learn puts the later of equal classes first, where argmax takes the earlier.
    top5 = (
        metrics.top_k_accuracy_score(
            classes[-1] - labels, logits[:, ::-1], k=5, labels=classes
        )
        if len(classes) > 5
        else np.nan
    )
    means = table.drop(columns=["class", "n"]).mean()
    kinds = {name: "mean" if name in _RANKED else "macro" for name in means.index}
    return {
        "top1": float((logits.argmax(1) == labels).mean()),
        "top5": float(top5),
        **{f"{kinds[name]}_{name}": float(value) for name, value in means.items()},
        "cross_entropy": float(
            -log_softmax(logits, axis=1)[np.arange(len(labels)), labels].mean()
        ),
        "n": len(labels),
        "classes_absent": int((table["n"] == 0).sum()),
        "classes_never_predicted": int(
            ((table["n"] > 0) & table["precision"].isna()).sum()
        ),
    }


def test_logits(store: Store, models: Sequence[Model], data: StudyData) -> Kept:
    """Logits of the test images by every model that can be loaded, or their records.

    Args:
        store: of the study.
        models: of the study.
        data: its images.

    Returns:
        Part "test_logits": array "logits" (T, K) float32, in the order of ``data.test``;
        of a published record "predicted" and "confidence", (T,) each.
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
    """Logits of images by one pass in batches: uint8 (N, 3, H, W) -> (N, K) float32 on the CPU."""
    # A processor's cache holds the maps of few images.
    most = 512 if torch.device(device).type == "cuda" else 64
    batches = images.split(fitting_batch(most))
    return torch.cat(
        [
            network(prepared(pixels, normalise, device)).float().cpu()
            for pixels in batches
        ]
    )


def correct(
    kept: Kept, labels: Tensor, part: str = "test_logits"
) -> NDArray[np.float32]:
    """Whether every model is right on every image, by its kept logits or predictions.

    Args:
        kept: records with ``logits`` (N, K), or with ``predicted`` (N,) where they were
            published.
        labels: (N,).
        part: of the store.

    Returns:
        (models, N) of 0 and 1; NaN for a model without a record.
    """
    right = np.full((len(kept.model_ids), len(labels)), np.nan, dtype=np.float32)
    for row, model_id in zip(right, kept.model_ids, strict=True):
        record = kept.record(part, model_id)
        if record:
            row[:] = predicted_classes(record) == labels.numpy()
    return right


def of_test_images(
    kept: Kept, labels: Tensor, accuracies: Mapping[str, float] | None = None
) -> dict[str, NDArray[np.float32]]:
    """Values of single test images for ``Draws``.

    Args:
        kept: of ``test_logits``.
        labels: (T,) of the test images.
        accuracies: test accuracy by model, for models whose predictions are not
            recorded. Which images these are right on is drawn for each by itself, so
            that an interval of a correlation is as wide as for independent images, and
            at least as wide as for the same ones.

    Returns:
        ``test_accuracy`` (models, T) of 0 and 1; nothing where a model has neither a
        record nor an accuracy, so that no interval draws test images.
    """
    right = correct(kept, labels)
    for row, model_id in zip(right, kept.model_ids, strict=True):
        accuracy = (accuracies or {}).get(model_id, np.nan)
        if np.isnan(row).any() and np.isfinite(accuracy):
            random = np.random.default_rng(int(digest(model_id), 16))
            row[:] = random.permutation(len(row)) < round(accuracy * len(row))
    return {"test_accuracy": right} if np.isfinite(right).all() else {}


def predicted_classes(record: Mapping[str, NDArray[Any]]) -> NDArray[np.integer]:
    """Predicted class of each image, (N,), of a record of logits or of what is published."""
    return record["predicted"] if "predicted" in record else record["logits"].argmax(1)


def metrics_of_models(kept: Kept, labels: Tensor) -> pd.DataFrame:
    """Metrics of every model on the test images, from its logits or as published.

    Args:
        kept: of ``test_logits``.
        labels: (T,) of the test images.

    Returns:
        A row per model, its id in ``model``, see ``summary_metrics``; models whose logits
        are not finite are left out.
    """
    rows = []
    for model_id, record in kept.records("test_logits"):
        if "summary" in record:
            rows.append({"model": model_id} | record["summary"].iloc[0].to_dict())
        elif "logits" in record and np.isfinite(record["logits"]).all():
            metrics = summary_metrics(record["logits"], labels)
            rows.append({"model": model_id} | metrics)
    table = pd.DataFrame(rows)
    counts = [name for name in _COUNTS if name in table]
    return table.astype(dict.fromkeys(counts, int))
