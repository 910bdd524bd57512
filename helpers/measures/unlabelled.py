"""Accuracy on images without labels, predicted from logits on them.

Variants "calibrated" divide all logits by the temperature of the holdout first (Guo et
al. 2017), as the authors of average thresholded confidence and of optimal transport do
in their experiments.
"""

from collections.abc import Mapping
from functools import wraps
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment, minimize_scalar
from torch import Tensor
from torch.nn.functional import cross_entropy

from helpers.measures.localization import confidence
from helpers.measures.registry import Source, measure, needs, provides
from helpers.networks import Undefined

_NO_HOLDOUT = (
    'there are no logits of holdout images; train with rule3_split "holdout", or give '
    "images with labels"
)
_LOG_TEMPERATURES = (-4.0, 4.0)
_UNCERTAIN = 5.0  # nats, MaNo's threshold


def _finite(logits: Tensor | None, reason: str) -> Tensor:
    """Logits in float64; Undefined where there are none, or where one is not finite."""
    if logits is None:
        raise Undefined(reason)
    if not logits.isfinite().all():
        raise Undefined("logits of images without labels, or held out, are not finite")
    return logits.double()


@provides
def target(target_logits: Tensor | None) -> Tensor:
    """Logits of the target, the images without labels: (N, K) float64.

    Args:
        target_logits: (N, K); None where there are none.
    """
    reason = "there are no logits of target images; give a folder of them"
    return _finite(target_logits, reason)


@provides
def holdout(holdout_logits: Tensor | None) -> Tensor:
    """Logits of the holdout, labelled images that were not fitted: (H, K) float64.

    Args:
        holdout_logits: (H, K); None where there is no holdout.
    """
    return _finite(holdout_logits, _NO_HOLDOUT)


@provides
def temperature(holdout_logits: Tensor | None, holdout_labels: Tensor | None) -> float:
    """Temperature T that fits the holdout best; Guo et al. 2017.

    Minimises the cross-entropy of ``z / T``.

    Args:
        holdout_logits: (H, K).
        holdout_labels: (H,).

    Returns:
        In [exp(-4), exp(4)]; NaN without a holdout.
    """
    if holdout_logits is None:
        return np.nan
    logits = holdout(holdout_logits)

    def loss(log_temperature: float) -> float:
        return float(cross_entropy(logits / np.exp(log_temperature), holdout_labels))

    best = minimize_scalar(
        loss, bounds=_LOG_TEMPERATURES, method="bounded", options={"xatol": 1e-6}
    )
    return float(np.exp(best.x))


def confidence_threshold(scores: Tensor, accuracy: float) -> float:
    """Threshold reached by as many holdout images as are classified correctly.

    Garg et al. 2022, equation 3: the t at which the fraction of scores >= t is nearest
    to the accuracy. A deviation: the public code counts scores > t when it sets t, and
    scores >= t when it predicts.

    Args:
        scores: (H,) of the holdout.
        accuracy: of the holdout, in [0, 1].

    Returns:
        One of the scores, or infinity if no score should reach it; the larger one if
        two are equally near.

    Example:
        >>> confidence_threshold(torch.tensor([0.2, 0.5, 0.9, 0.7]), 0.5)
        0.699999988079071
    """
    above_all = scores.new_tensor([torch.inf])
    candidates = torch.cat([scores.unique(), above_all]).flip(0)
    # Number of scores that reach each candidate.
    reached = len(scores) - torch.searchsorted(scores.sort().values, candidates)
    nearest = (reached - round(accuracy * len(scores), 6)).abs().argmin()
    return float(candidates[nearest])


def _enter(function: Source, source: str, title: str = "") -> None:
    """Enter a prediction from logits of target and holdout, as given and calibrated."""

    @wraps(function)
    def by_variant(temperature: float, **values: Any) -> Mapping[str, float]:
        predictions = {"as given": float(function(**values))}
        if np.isfinite(temperature):
            logits = values.keys() & {"target", "holdout"}
            values |= {name: values[name] / temperature for name in logits}
            predictions["calibrated"] = float(function(**values))
        return predictions

    by_variant.needs = (*needs(function), "temperature")
    variants = ("as given", "calibrated")
    measure("unlabelled", 1, source, title=title, variants=variants)(by_variant)


@measure("unlabelled", 1, "accuracy on labelled images held out of training")
def holdout_accuracy(holdout: Tensor, holdout_labels: Tensor) -> float:
    """Accuracy of the labelled holdout: the prediction for a target that is like it.

    Args:
        holdout: (H, K) logits of labelled images.
        holdout_labels: (H,).
    """
    return float((holdout.argmax(1) == holdout_labels).double().mean())


def average_confidence(target: Tensor) -> Tensor:
    """Mean confidence of the target, in [1/K, 1].

    The accuracy of a network whose confidences are right.

    Args:
        target: (N, K) logits of images without labels.
    """
    return confidence(target).mean()


_enter(average_confidence, "Hendrycks and Gimpel 2017")


def difference_of_confidences(
    target: Tensor, holdout: Tensor, holdout_accuracy: float
) -> Tensor:
    """Accuracy of the holdout less the fall of mean confidence from it to the target.

    As published, not cut to [0, 1].

    Args:
        target: (N, K) logits of images without labels.
        holdout: (H, K) logits of labelled images.
        holdout_accuracy: in [0, 1].
    """
    fall = confidence(holdout).mean() - confidence(target).mean()
    return holdout_accuracy - fall


_enter(difference_of_confidences, "Guillory et al. 2021")


def _share_reaching(of_target: Tensor, of_holdout: Tensor, accuracy: float) -> Tensor:
    """Fraction of the target's scores that reach the threshold of the holdout's."""
    threshold = confidence_threshold(of_holdout, accuracy)
    return (of_target >= threshold).double().mean()


def thresholded_confidence(
    target: Tensor, holdout: Tensor, holdout_accuracy: float
) -> Tensor:
    """Fraction of the target whose confidence reaches a threshold (ATC-MC).

    As many of the holdout reach it as are right. In [0, 1].

    Args:
        target: (N, K) logits of images without labels.
        holdout: (H, K) logits of labelled images.
        holdout_accuracy: in [0, 1].
    """
    return _share_reaching(confidence(target), confidence(holdout), holdout_accuracy)


_enter(thresholded_confidence, "Garg et al. 2022", "thresholded confidence (ATC-MC)")


def thresholded_entropy(
    target: Tensor, holdout: Tensor, holdout_accuracy: float
) -> Tensor:
    """Fraction of the target whose negative entropy reaches a threshold (ATC-NE).

    As many of the holdout reach it as are right. In [0, 1].

    Args:
        target: (N, K) logits of images without labels.
        holdout: (H, K) logits of labelled images.
        holdout_accuracy: in [0, 1].
    """
    of_target, of_holdout = (
        -torch.special.entr(logits.softmax(1)).sum(1) for logits in (target, holdout)
    )
    return _share_reaching(of_target, of_holdout, holdout_accuracy)


_enter(thresholded_entropy, "Garg et al. 2022", "thresholded entropy (ATC-NE)")


def least_cost(cost: NDArray[np.float64], shares: NDArray[np.float64]) -> float:
    """Smallest mean cost of giving each image a class, with fixed shares of classes.

    Shares are rounded to whole images by largest remainders, ties to the first class.
    Each class stands in as many columns as it takes images, and every image gets one.

    Args:
        cost: (n, K) of giving an image a class.
        shares: (K,) of the images that a class takes, with the sum 1.

    Returns:
        The exact minimum.

    Example:
        >>> least_cost(np.array([[0.0, 1.0], [0.2, 0.5]]), np.array([0.5, 0.5]))
        0.25
    """
    wanted = (len(cost) * shares).round(9)  # so that 0.15 * 20 leaves no remainder
    counts = np.floor(wanted).astype(np.int64)
    largest_remainders = np.argsort(counts - wanted, kind="stable")
    counts[largest_remainders[: len(cost) - counts.sum()]] += 1
    columns = np.repeat(np.arange(len(counts)), counts)  # a place for each image
    images, places = linear_sum_assignment(cost[:, columns])
    return float(cost[images, columns[places]].mean())


@provides
def holdout_shares(holdout: Tensor, holdout_labels: Tensor) -> NDArray[np.float64]:
    """Shares of the classes among the images of the holdout, (K,).

    Args:
        holdout: (H, K) logits of labelled images.
        holdout_labels: (H,).
    """
    counts = np.bincount(holdout_labels.numpy(), minlength=holdout.shape[1])
    return counts / counts.sum()


def optimal_transport(
    target: Tensor,
    holdout_shares: NDArray[np.float64],
    transport_images: int,
    seed: int,
) -> float:
    """One less the cost of moving probabilities of the target onto classes.

    The cheapest transport onto one-hot vectors in the class shares of the holdout. Its
    cost for an image is half the L1 distance of p to class k, ``1 - p_k``. In [0, 1].

    Args:
        target: (N, K) logits of images without labels.
        holdout_shares: (K,) of the classes in the holdout.
        transport_images: largest number of target images; more are subsampled.
        seed: of the random numbers.
    """
    if len(target) > transport_images:
        order = np.random.default_rng(seed).permutation(len(target))
        target = target[order[:transport_images]]
    return 1 - least_cost(1 - target.softmax(1).numpy(), holdout_shares)


_enter(optimal_transport, "Lu et al. 2023, COT", "optimal transport (COT)")


@measure(
    "unlabelled",
    1,
    "Xie et al. 2024, equations 5 to 7",
    title="matrix norm of logits (MaNo)",
)
def matrix_norm_of_logits(target: Tensor) -> float:
    """Scaled 4-norm of the target's normalised logits, in [0, 1]; no accuracy.

    ``(sum P_ik^4 / (N K))^(1/4)``. Rows of P are the softmax where its mean
    cross-entropy to the uniform distribution exceeds 5 nats, else ``1 + z + z^2 / 2``
    less the row's smallest, over its sum; NaN where all rows are constant. A deviation:
    the public code leaves batch normalisation in training mode.

    Args:
        target: (N, K) logits of images without labels.
    """
    values = target.softmax(1)
    if float(-target.log_softmax(1).mean()) <= _UNCERTAIN:
        values = 1 + target + target**2 / 2
        values = values - values.amin(1, keepdim=True)
        sums = values.sum(1, keepdim=True)
        if not sums.any():
            return np.nan
        values = values / sums.where(sums > 0, 1)
    return float((values**4).mean() ** 0.25)


def agreement(predicted: ArrayLike) -> NDArray[np.float64]:
    """Share of images on which a network predicts as each other one does, averaged.

    ``mean over j != i of mean over x of [argmax z_i(x) = argmax z_j(x)]``. The more
    accurate of several networks agree more with the others; Jiang, Nagarajan, Baek and
    Kolter 2022, Baek et al. 2022. It fails where networks make the same mistakes.

    Args:
        predicted: (K, N) predicted class of each network for each image.

    Returns:
        (K,) in [0, 1]; NaN for a single network, and without images.

    Example:
        >>> agreement([[0, 1, 2, 2], [0, 1, 2, 0], [0, 0, 2, 0]])
        array([0.625, 0.75 , 0.625])
    """
    predicted = np.asarray(predicted)
    count, images = predicted.shape
    if count < 2 or not images:
        return np.full(count, np.nan)
    # One network at a time: a table of all pairs and images would not fit into memory.
    with_all = np.array([(predicted == one).mean() for one in predicted])
    return (with_all * count - 1) / (count - 1)
