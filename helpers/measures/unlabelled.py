"""Measures from images without labels of what a network will meet: predicted accuracies, and scores that promise one.

Variants "calibrated" divide all logits by the temperature of the holdout first (Guo et al. 2017), as the authors of average thresholded
confidence and of optimal transport do in their experiments.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment, minimize_scalar
from scipy.special import softmax
from torch import Tensor
from torch.nn.functional import cross_entropy

from helpers.measures.evidence import provides
from helpers.measures.registry import measure, measures

AS_GIVEN = ("as given", "calibrated")
_NO_HOLDOUT = 'there are no logits of holdout images; train with rule3_split "holdout", or give images with labels'
_WIDEST = 4.0  # |log temperature| at most
_UNCERTAIN = 5.0  # nats, MaNo's threshold


class Holdout(NamedTuple):
    """Labelled images that the network was not fitted to; the target are the images without labels."""

    logits: Tensor  # (H, K) float64
    labels: Tensor  # (H,) int64
    accuracy: float


def _checked(logits: Tensor, images: str) -> Tensor:
    if wrong := int((~logits.isfinite()).sum()):
        raise ValueError(
            f"{wrong} of {logits.numel()} logits of {images} images are not finite; leave such a model out"
        )
    return logits.double()


@provides
def target(target_logits: Tensor | None) -> Tensor:
    """(N, K) float64 logits of the target."""
    if target_logits is None:
        raise ValueError("there are no logits of target images; give a folder of them")
    return _checked(target_logits, "target")


@provides
def holdout(holdout_logits: Tensor | None, holdout_labels: Tensor | None) -> Holdout:
    """What is known of the holdout."""
    if holdout_logits is None:
        raise ValueError(_NO_HOLDOUT)
    logits = _checked(holdout_logits, "holdout")
    return Holdout(
        logits,
        holdout_labels.long(),
        float((logits.argmax(1) == holdout_labels).double().mean()),
    )


@provides
def temperature(holdout_logits: Tensor | None, holdout_labels: Tensor | None) -> float:
    """Temperature T that makes the holdout's cross-entropy of ``z / T`` smallest (Guo et al. 2017), in [exp(-4), exp(4)]; NaN without."""
    if holdout_logits is None:
        return np.nan
    known = holdout(holdout_logits, holdout_labels)
    bounds = {
        "bounds": (-_WIDEST, _WIDEST),
        "method": "bounded",
        "options": {"xatol": 1e-6},
    }
    return float(
        np.exp(
            minimize_scalar(
                lambda log: float(
                    cross_entropy(known.logits / np.exp(log), known.labels)
                ),
                **bounds,
            ).x
        )
    )


def confidence(logits: Tensor) -> Tensor:
    """Largest probability of each image, in [1/K, 1]."""
    return logits.softmax(1).amax(1)


def negative_entropy(logits: Tensor) -> Tensor:
    """``sum_k p_k log p_k`` of each image, nats, in [-ln K, 0]."""
    return -torch.special.entr(logits.softmax(1)).sum(1)


def confidence_threshold(scores: Tensor, accuracy: float) -> float:
    """Threshold t at which the fraction of the holdout's scores of at least t is nearest to its accuracy; Garg et al. 2022, equation 3.

    One of the scores, or infinity where none is to reach it; of two as near, the larger. A deviation: the public code counts scores above t
    while it looks for it and of at least t while it predicts.
    """
    values, counts = scores.unique(return_counts=True)
    candidates = torch.cat([values, values.new_tensor([torch.inf])]).flip(0)
    reached = torch.cat([counts.new_zeros(1), counts.flip(0).cumsum(0)])
    return float(
        candidates[(reached - round(accuracy * len(scores), 6)).abs().argmin()]
    )


def _variants(
    predicted: Callable[[float], float | Tensor], temperature: float
) -> Mapping[str, float]:
    return {
        name: float(predicted(t)) if np.isfinite(t) else _NO_HOLDOUT
        for name, t in zip(AS_GIVEN, (1.0, temperature), strict=True)
    }


_PLAIN = "Accuracy of the labelled holdout: the plain baseline, the prediction for a target that is like it"
_HELD_OUT = "accuracy on labelled images held out of training"
measures(
    "unlabelled",
    1,
    ("holdout_accuracy", "", _HELD_OUT, _PLAIN, lambda holdout: holdout.accuracy),
)


@measure("unlabelled", 1, "Hendrycks and Gimpel 2017", variants=AS_GIVEN)
def average_confidence(target: Tensor, temperature: float) -> Mapping[str, float]:
    """Mean confidence of the target: the accuracy of a network whose confidences are right; in [1/K, 1]."""
    return _variants(lambda t: confidence(target / t).mean(), temperature)


@measure("unlabelled", 1, "Guillory et al. 2021", variants=AS_GIVEN)
def difference_of_confidences(
    target: Tensor, holdout: Holdout, temperature: float
) -> Mapping[str, float]:
    """Accuracy of the holdout less what the mean confidence falls from holdout to target; as published, not cut to [0, 1]."""
    return _variants(
        lambda t: (
            holdout.accuracy
            - confidence(holdout.logits / t).mean()
            + confidence(target / t).mean()
        ),
        temperature,
    )


def _reaching(
    score: Callable[[Tensor], Tensor],
    target: Tensor,
    holdout: Holdout,
    temperature: float,
) -> Mapping[str, float]:
    limit = lambda t: confidence_threshold(score(holdout.logits / t), holdout.accuracy)  # noqa: E731
    return _variants(
        lambda t: (score(target / t) >= limit(t)).double().mean(), temperature
    )


for _name, _short, _score in (
    ("confidence", "ATC-MC", confidence),
    ("negative entropy", "ATC-NE", negative_entropy),
):
    _row = (
        f"thresholded_{_name.split()[-1]}",
        f"thresholded {_name.split()[-1]} ({_short})",
        "Garg et al. 2022",
    )
    _summary = f"Fraction of the target whose {_name} reaches the threshold that as many of the holdout reach as are right ({_short})"
    measures(
        "unlabelled",
        1,
        (*_row, _summary, partial(_reaching, _score)),
        variants=AS_GIVEN,
    )


def least_cost(cost: NDArray[np.float64], shares: NDArray[np.float64]) -> float:
    """Smallest mean cost (n, K) of giving each of n images one of K classes, which take shares of them in whole images; exact.

    Shares are rounded by largest remainders, ties to the first class. Prices of the classes change no optimum and spare time.
    """
    wanted = (len(cost) * shares).round(
        9
    )  # so that 0.15 * 20 counts as 3 and leaves no remainder
    counts = np.floor(wanted).astype(np.int64)
    counts[np.argsort(counts - wanted, kind="stable")[: len(cost) - counts.sum()]] += 1
    cost, counts = cost[:, counts > 0], counts[counts > 0]
    prices = np.zeros(len(counts))
    for _ in range(50):
        prices += 0.02 * np.log(
            counts / softmax((prices - cost) / 0.02, axis=1).sum(0).clip(1e-300)
        )
    columns = np.repeat(np.arange(len(counts)), counts)
    images, chosen = linear_sum_assignment((cost - prices)[:, columns])
    return float(cost[images, columns[chosen]].mean())


@measure(
    "unlabelled",
    1,
    "Lu et al. 2023, COT",
    title="optimal transport (COT)",
    variants=AS_GIVEN,
)
def optimal_transport(
    target: Tensor,
    holdout: Holdout,
    temperature: float,
    transport_images: int,
    seed: int,
) -> Mapping[str, float]:
    """One less the mean cost of the cheapest transport of the target's probabilities onto one-hot classes in the holdout's shares.

    Half the L1 distance of p to class k is 1 - p_k. In [0, 1].
    """
    chosen = (
        np.random.default_rng(seed).permutation(len(target))[:transport_images]
        if len(target) > transport_images
        else slice(None)
    )
    shares, drawn = (
        np.bincount(holdout.labels.numpy(), minlength=target.shape[1])
        / len(holdout.labels),
        target[chosen],
    )
    return _variants(
        lambda t: 1 - least_cost(1 - (drawn / t).softmax(1).numpy(), shares),
        temperature,
    )


@measure(
    "unlabelled",
    1,
    "Xie et al. 2024, equations 5 to 7",
    title="matrix norm of logits (MaNo)",
)
def matrix_norm_of_logits(target: Tensor) -> float:
    """Scaled 4-norm of the target's normalised logits, in [0, 1]; a score, no accuracy: ``(sum P_ik^4 / (N K))^(1/4)``.

    Rows of P are the softmax where its mean cross-entropy to the uniform distribution exceeds 5 nats, else ``1 + z + z^2 / 2`` less the
    row's smallest, over its sum; NaN where all rows are constant. A deviation: the public code leaves batch normalisation in training mode.
    """
    if float(-target.log_softmax(1).mean()) > _UNCERTAIN:
        return float((target.softmax(1) ** 4).mean() ** 0.25)
    values = 1 + target + target**2 / 2
    values = values - values.amin(1, keepdim=True)
    sums = values.sum(1, keepdim=True)
    return (
        float(((values / torch.where(sums == 0, 1, sums)) ** 4).mean() ** 0.25)
        if sums.any()
        else np.nan
    )
