"""Confidence, margins, dispersion and invariance of predictions on training images."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.stats
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from helpers.measures.passes import Classifier
from helpers.measures.registry import measure, provides
from helpers.networks.faults import Undefined
from helpers.statistics.correlate import Array


@provides
def probabilities(logits: Tensor) -> Tensor:
    """Softmax of the logits, (N, K) float64.

    Args:
        logits: (N, K) of the training images.
    """
    if not logits.isfinite().all():
        raise Undefined("logits are not finite")
    return logits.double().softmax(1)


@provides
def label_logits(logits: Tensor, labels: Tensor) -> Tensor:
    """Logits of a network that has an output for each label, (N, K) float64.

    Args:
        logits: (N, K).
        labels: (N,).
    """
    largest = int(labels.max())
    if logits.shape[1] <= largest:
        raise Undefined(
            f"the network has {logits.shape[1]} outputs, and labels go up to {largest}"
        )
    return logits.double()


def margins_of(logits: Tensor, labels: Tensor) -> Tensor:
    """``z_y - max over k != y of z_k`` of each image, (N,).

    Args:
        logits: (N, K) z, K at least 2.
        labels: (N,) y.
    """
    true_class = labels[:, None]
    of_label = logits.gather(1, true_class)[:, 0]
    of_others = logits.scatter(1, true_class, -torch.inf).amax(1)
    return of_label - of_others


@provides
def margins(label_logits: Tensor, labels: Tensor) -> Array:
    """Margins of the training images, see ``margins_of``.

    Args:
        label_logits: (N, K).
        labels: (N,).

    Returns:
        (N,) float64, negative for a misclassified image.

    Raises:
        Undefined: for a network with one output.
    """
    if label_logits.shape[1] < 2:
        raise Undefined("the network has one output, and a margin needs two classes")
    return margins_of(label_logits, labels).numpy()


@provides
def margin(margins: Array) -> float:
    """The margin that norms are divided by; Jiang et al. 2020.

    Args:
        margins: (N,).

    Returns:
        The absolute value of the k-th smallest, k = floor(N / 10); NaN for 0.

    Raises:
        Undefined: for fewer than 10 images.
    """
    k = len(margins) // 10
    if not k:
        raise Undefined(
            f"{len(margins)} training images; the 10th percentile of the margin needs "
            "at least 10"
        )
    return abs(float(np.partition(margins, k - 1)[k - 1])) or np.nan


@provides
def rotated_probabilities(classifier: Classifier, images: Any) -> Tensor:
    """Softmax of the training images turned by 90, 180 and 270 degrees.

    Args:
        classifier: the network, and how it takes images.
        images: N training images; the turn is exact.

    Returns:
        (3, N, K) float64.
    """
    turned = (images.images.rot90(turns, (2, 3)) for turns in (1, 2, 3))
    logits = torch.stack([classifier.logits(pixels) for pixels in turned])
    return logits.cpu().double().softmax(2)


@measure(
    "prediction",
    1,
    "Deng et al. 2023, equation 3; Du et al. 2024, equation A2",
    title="nuclear norm",
    variants=("scaled", "raw", "as printed in Du"),
)
def nuclear_norm(probabilities: Tensor) -> Mapping[str, float]:
    """Nuclear norm of the (N, K) prediction matrix, large for confident and spread.

    scaled: ``||P||_* / sqrt(min(N, K) N)`` in (0, 1]; raw: ``||P||_*``; as printed in
    Du: the scaled one over N, in the same order.

    Args:
        probabilities: (N, K) softmax of the logits.
    """
    n, k = probabilities.shape
    raw = float(torch.linalg.svdvals(probabilities).sum())
    scaled = raw / (min(n, k) * n) ** 0.5
    return {"scaled": scaled, "raw": raw, "as printed in Du": scaled / n}


def invariance_of(clean: Tensor, turned: Tensor) -> tuple[Tensor, Tensor]:
    """Effective Invariance of each image under one transform; Deng et al. 2022.

    Args:
        clean: (N, K) probabilities p.
        turned: (..., N, K) probabilities p_t of the transformed images.

    Returns:
        ``sqrt(p_t . p)`` and ``sqrt(max p_t * max p)``, (..., N) in [0, 1], 0 where the
        predicted class changes; the first is never below the second.
    """
    same_class = clean.argmax(-1) == turned.argmax(-1)
    vector = (clean * turned).sum(-1).sqrt()
    top_confidence = (clean.amax(-1) * turned.amax(-1)).sqrt()
    return vector * same_class, top_confidence * same_class


@measure(
    "prediction",
    1,
    "Deng et al. 2022; Du et al. 2024, equation A3",
    variants=("vector", "top confidence"),
)
def effective_invariance(
    probabilities: Tensor, rotated_probabilities: Tensor
) -> Mapping[str, Array]:
    """Agreement of the prediction with that of the turned image, in [0, 1].

    Of each image, mean over turns by 90, 180 and 270 degrees. Vector: Du et al.
    (text and code); top confidence: Deng et al.; see ``invariance_of``.

    Args:
        probabilities: (N, K) softmax of the logits.
        rotated_probabilities: (3, N, K) of images turned by 90, 180 and 270 degrees.
    """
    vector, top_confidence = invariance_of(probabilities, rotated_probabilities)
    return {
        "vector": vector.mean(0).numpy(),
        "top confidence": top_confidence.mean(0).numpy(),
    }


@measure(
    "prediction",
    1,
    "Jiang et al. 2019; Jiang et al. 2020, equation 22",
    title="margin (10th percentile)",
    variants=(
        "10th percentile",
        "5th percentile",
        "mean",
        "standard deviation",
        "skewness",
        "kurtosis",
    ),
)
def output_margin(margins: Array) -> Mapping[str, float]:
    """Margin of the training images in logits: percentiles and moments.

    Percentiles by linear interpolation; skewness and kurtosis are NaN where all margins
    are equal.

    Args:
        margins: (N,) logit of the label less the largest other logit.
    """
    varies = bool(np.ptp(margins) > 1e-12 * np.abs(margins).max())
    tenth, fifth = np.percentile(margins, [10, 5])
    return {
        "10th percentile": tenth,
        "5th percentile": fifth,
        "mean": margins.mean(),
        "standard deviation": margins.std(),
        "skewness": scipy.stats.skew(margins) if varies else np.nan,
        "kurtosis": scipy.stats.kurtosis(margins) if varies else np.nan,
    }


@measure("prediction", -1, "cross-entropy of the training set")
def training_loss(label_logits: Tensor, labels: Tensor) -> Array:
    """Cross-entropy of the training images in evaluation mode, nats.

    Args:
        label_logits: (N, K) of the training images.
        labels: (N,) of the images.
    """
    return cross_entropy(label_logits, labels, reduction="none").numpy()


@measure("prediction", 1, "accuracy on the training set")
def training_accuracy(probabilities: Tensor, labels: Tensor) -> float:
    """Fraction of the training images classified correctly: one half of the gap.

    In evaluation mode, in [0, 1].

    Args:
        probabilities: (N, K) softmax of the logits.
        labels: (N,) of the images.
    """
    return float((probabilities.argmax(1) == labels).double().mean())


@measure("prediction", -1, "mean Shannon entropy of the predictions")
def prediction_entropy(probabilities: Tensor) -> Array:
    """Entropy of the predicted distributions, nats, in [0, ln K].

    Args:
        probabilities: (N, K) softmax of the logits.
    """
    return torch.special.entr(probabilities).sum(1).numpy()
