"""Measures from images without labels of what a network will meet: predicted accuracies, and scores that promise one.

Target: the images without labels. Holdout: images with labels that the network was not fitted to. Variants "calibrated" divide all logits
by the temperature of the holdout first (Guo et al. 2017), as the authors of average thresholded confidence and of optimal transport do in
their experiments.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from helpers.measures.evidence import provides
from helpers.measures.prediction import invariance_of, nuclear_norm
from helpers.measures.registry import measure
from helpers.statistics.transport import least_cost, quotas

AS_GIVEN = ("as given", "calibrated")
_WIDEST = 4.0  # |log temperature| at most
_WITHOUT = {"holdout": 'there are no logits of holdout images; train with rule3_split "holdout", or give images with labels'}
_UNCERTAIN = 5.0  # nats, MaNo's threshold


def _checked(logits: Tensor | None, images: str) -> Tensor:
    if logits is None:
        raise ValueError(_WITHOUT.get(images, f"there are no logits of {images} images; give a folder of them"))
    if logits.ndim != 2 or not len(logits) or logits.shape[1] < 2:
        raise ValueError(f"logits of {images} images have shape {tuple(logits.shape)}; they must be (N, K) with N >= 1 and K >= 2")
    if not logits.isfinite().all():
        wrong = int((~logits.isfinite()).sum())
        raise ValueError(f"{wrong} of {logits.numel()} logits of {images} images are not finite; leave such a model out")
    return logits.double()


def _labelled(logits: Tensor | None, labels: Tensor | None) -> tuple[Tensor, Tensor]:
    logits = _checked(logits, "holdout")
    shape = None if labels is None else tuple(labels.shape)
    if shape != (len(logits),):
        raise ValueError(f"holdout labels have shape {shape}; {len(logits)} holdout images need one label each")
    low, high = int(labels.min()), int(labels.max())
    if not 0 <= low <= high < logits.shape[1]:
        last = logits.shape[1] - 1
        raise ValueError(f"holdout labels run from {low} to {high}; the network's outputs ask for whole numbers from 0 to {last}")
    return logits, labels.long()


def _both(target: Tensor | None, holdout: Tensor | None, labels: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    target, (holdout, labels) = _checked(target, "target"), _labelled(holdout, labels)
    if target.shape[1] != holdout.shape[1]:
        raise ValueError(f"the network has {target.shape[1]} outputs for target images and {holdout.shape[1]} for holdout images")
    return target, holdout, labels


def confidence(logits: Tensor) -> Tensor:
    """Largest probability of each image: (N, K) logits -> (N,) in [1/K, 1]."""
    return logits.softmax(1).amax(1)


def negative_entropy(logits: Tensor) -> Tensor:
    """``sum_k p_k log p_k`` of each image, nats: (N, K) logits -> (N,) in [-ln K, 0]."""
    return -torch.special.entr(logits.softmax(1)).sum(1)


@provides
def temperature(holdout_logits: Tensor | None, holdout_labels: Tensor | None) -> float:
    """Temperature T that makes the holdout's cross-entropy of ``z / T`` smallest, in [exp(-4), exp(4)]; Guo et al. 2017.

    Above 1 for an overconfident network; NaN without a holdout. No predicted class depends on it. The cross-entropy is convex in 1/T.

    Raises:
        ValueError: logits or labels that are none.
    """
    if holdout_logits is None or holdout_labels is None:
        return np.nan
    logits, labels = _labelled(holdout_logits, holdout_labels)
    loss = minimize_scalar(
        lambda log: float(cross_entropy(logits / np.exp(log), labels)),
        bounds=(-_WIDEST, _WIDEST),
        method="bounded",
        options={"xatol": 1e-6},
    )
    return float(np.exp(loss.x))


def _variants(predicted: Callable[[float], float], temperature: float) -> Mapping[str, float]:
    """Predict with logits as given and with calibrated ones."""
    return {"as given": predicted(1.0), "calibrated": predicted(temperature) if np.isfinite(temperature) else np.nan}


def _fraction_right(logits: Tensor, labels: Tensor) -> float:
    """Fraction of images whose largest logit is their label's."""
    return float((logits.argmax(1) == labels).double().mean())


@measure("unlabelled", 1, "accuracy on labelled images held out of training", title="holdout accuracy")
def holdout_accuracy(holdout_logits: Tensor, holdout_labels: Tensor) -> float:
    """Accuracy of the labelled holdout: the plain baseline, the prediction for a target that is like it."""
    return _fraction_right(*_labelled(holdout_logits, holdout_labels))


@measure("unlabelled", 1, "Hendrycks and Gimpel 2017", title="average confidence", variants=AS_GIVEN)
def average_confidence(target_logits: Tensor, temperature: float) -> Mapping[str, float]:
    """Mean confidence of the target: the accuracy of a network whose confidences are right; in [1/K, 1]."""
    target = _checked(target_logits, "target")
    return _variants(lambda t: float(confidence(target / t).mean()), temperature)


@measure("unlabelled", 1, "Guillory et al. 2021", title="difference of confidences", variants=AS_GIVEN)
def difference_of_confidences(
    target_logits: Tensor, holdout_logits: Tensor, holdout_labels: Tensor, temperature: float
) -> Mapping[str, float]:
    """Accuracy of the holdout less what the mean confidence falls from holdout to target.

    An accuracy, but as published it is not cut to [0, 1].
    """
    target, holdout, labels = _both(target_logits, holdout_logits, holdout_labels)
    right = _fraction_right(holdout, labels)
    return _variants(lambda t: right - float(confidence(holdout / t).mean() - confidence(target / t).mean()), temperature)


def confidence_threshold(scores: Tensor, accuracy: float) -> float:
    """Threshold t at which the fraction of scores of at least t is nearest to the accuracy; Garg et al. 2022, equation 3.

    One of the scores, or infinity where no score is to reach it; of two that are as near, the larger, which promises less. The public
    code counts scores above t while it looks for it and of at least t while it predicts, one image more.

    Args:
        scores: (N,) of the holdout, N >= 1.
        accuracy: of the holdout, in [0, 1].
    """
    values, counts = scores.unique(return_counts=True)
    candidates = torch.cat([values, values.new_tensor([torch.inf])]).flip(0)
    reached = torch.cat([counts.new_zeros(1), counts.flip(0).cumsum(0)])
    return float(candidates[(reached - round(accuracy * len(scores), 6)).abs().argmin()])


def _thresholded(
    score: Callable[[Tensor], Tensor], target_logits: Tensor, holdout_logits: Tensor, holdout_labels: Tensor, temperature: float
) -> Mapping[str, float]:
    target, holdout, labels = _both(target_logits, holdout_logits, holdout_labels)
    right = _fraction_right(holdout, labels)
    return _variants(lambda t: float((score(target / t) >= confidence_threshold(score(holdout / t), right)).double().mean()), temperature)


@measure("unlabelled", 1, "Garg et al. 2022", title="thresholded confidence (ATC-MC)", variants=AS_GIVEN)
def thresholded_confidence(
    target_logits: Tensor, holdout_logits: Tensor, holdout_labels: Tensor, temperature: float
) -> Mapping[str, float]:
    """Fraction of the target whose confidence reaches the threshold that as many of the holdout reach as are right (ATC-MC)."""
    return _thresholded(confidence, target_logits, holdout_logits, holdout_labels, temperature)


@measure("unlabelled", 1, "Garg et al. 2022", title="thresholded entropy (ATC-NE)", variants=AS_GIVEN)
def thresholded_entropy(target_logits: Tensor, holdout_logits: Tensor, holdout_labels: Tensor, temperature: float) -> Mapping[str, float]:
    """Fraction of the target whose negative entropy reaches the threshold that as many of the holdout reach as are right (ATC-NE)."""
    return _thresholded(negative_entropy, target_logits, holdout_logits, holdout_labels, temperature)


@measure("unlabelled", 1, "Jiang et al. 2022", title="agreement of repeats (GDE)")
def agreement_of_repeats(target_logits: Tensor, repeat_target_logits: Sequence[Tensor]) -> float:
    """Fraction of the target on which the network and a repeat, the same cell with another seed, predict the same class; mean over repeats.

    Args:
        target_logits: (N, K).
        repeat_target_logits: those of each repeat, (N, K), same images in the same order.

    Raises:
        ValueError: no repeat, other images, or the run itself, which would agree with itself whatever its accuracy.
    """
    target = _checked(target_logits, "target")
    if repeat_target_logits is None or not len(repeat_target_logits):
        raise ValueError("the model has no repeat (same cell, other seed), so there is nothing to agree with")
    fractions = []
    for repeat in repeat_target_logits:
        other = _checked(repeat, "target")
        if other.shape != target.shape:
            raise ValueError(f"a repeat's logits have shape {tuple(other.shape)}, the model's {tuple(target.shape)}; give the same images")
        if torch.equal(other, target):
            raise ValueError("a repeat has the model's own logits; give a run with another seed, since a run always agrees with itself")
        fractions.append(_fraction_right(target, other.argmax(1)))
    return float(np.mean(fractions))


@measure("unlabelled", 1, "Lu et al. 2023, COT", title="optimal transport (COT)", variants=AS_GIVEN)
def optimal_transport(
    target_logits: Tensor, holdout_logits: Tensor, holdout_labels: Tensor, temperature: float, transport_images: int = 10_000, seed: int = 0
) -> Mapping[str, float]:
    """One less the mean cost of the cheapest transport of the target's probabilities onto one-hot classes in the holdout's shares.

    Half the L1 distance of p to class k is 1 - p_k. The shares are rounded to whole images by largest remainders; the optimum is exact.
    In [0, 1].

    Args:
        target_logits: (N, K).
        holdout_logits: (H, K).
        holdout_labels: (H,).
        temperature: see ``temperature``.
        transport_images: target images at most, drawn without replacement. Shares of a sample stray from the holdout's, which costs even
            a perfect network: a cap below the number of images lowers the value.
        seed: of the draw.
    """
    target, _, labels = _both(target_logits, holdout_logits, holdout_labels)
    if transport_images < 1:
        raise ValueError(f"transport_images is {transport_images}; it must be at least 1")
    if len(target) > transport_images:
        target = target[torch.as_tensor(np.random.default_rng(seed).permutation(len(target))[:transport_images])]
    shares = one_hot(labels, target.shape[1]).double().mean(0).numpy()
    quota = quotas(shares, len(target))
    return _variants(lambda t: 1 - least_cost(1 - (target / t).softmax(1).numpy(), quota, seed=seed) / len(target), temperature)


@measure("unlabelled", 1, "Xie et al. 2024, equations 5 to 7", title="matrix norm of logits (MaNo)")
def matrix_norm_of_logits(target_logits: Tensor) -> float:
    """Scaled 4-norm of the target's normalised logits, in [0, 1]; a score, no accuracy: ``(sum P_ik^4 / (N K))^(1/4)``.

    Rows of P are the softmax where its mean cross-entropy to the uniform distribution exceeds 5 nats, else ``1 + z + z^2 / 2`` less the
    row's smallest, over its sum. A row whose entries are all equal then has no sum to be divided by: it counts as zeros, as in the public
    code; NaN where all rows are so. The public code leaves batch normalisation in training mode; logits here are of evaluation mode.
    """
    logits = _checked(target_logits, "target")
    if float(-logits.log_softmax(1).mean()) > _UNCERTAIN:
        rows = logits.softmax(1)
    else:
        values = 1 + logits + logits**2 / 2
        values = values - values.amin(1, keepdim=True)
        sums = values.sum(1, keepdim=True)
        if not sums.any():
            return np.nan
        rows = values / torch.where(sums == 0, 1, sums)
    return float((rows**4).mean() ** 0.25)


@measure("unlabelled", 1, "Deng et al. 2023, equation 3", title="nuclear norm of the target", variants=("scaled", "raw"))
def target_nuclear_norm(target_logits: Tensor) -> Mapping[str, float]:
    """Nuclear norm of the target's (N, K) probabilities: confident and spread over the classes is large; see ``nuclear_norm``."""
    values = nuclear_norm(_checked(target_logits, "target").softmax(1))
    return {name: values[name] for name in ("scaled", "raw")}


@measure("unlabelled", 1, "Deng et al. 2022", title="effective invariance of the target", variants=("top confidence", "vector"))
def target_effective_invariance(rotated_target_logits: Tensor) -> Mapping[str, float]:
    """Agreement of the target's predictions with those of the images turned, in [0, 1]; see ``effective_invariance``.

    Every turn is a pass of its own, so it is taken over a prefix of the target's images in one order of all models (1,000 of a study's).

    Args:
        rotated_target_logits: (1 + turns, N, K) of the images as they are, then turned by 90, 180 and 270 degrees.

    Raises:
        ValueError: no logits of turned images.
    """
    shape = None if rotated_target_logits is None else tuple(rotated_target_logits.shape)
    if shape is None or len(shape) != 3 or shape[0] < 2:
        raise ValueError(f"logits of turned target images have shape {shape}; they must be (1 + turns, N, K)")
    clean, *turned = [_checked(logits, "turned target").softmax(1) for logits in rotated_target_logits]
    vector, top = zip(*(invariance_of(clean, each) for each in turned), strict=True)
    return {"top confidence": float(torch.stack(top).mean()), "vector": float(torch.stack(vector).mean())}


@measure("unlabelled", -1, "mean Shannon entropy of the target's predictions", title="entropy of the target")
def target_entropy(target_logits: Tensor) -> float:
    """Mean entropy of the target's predicted distributions, nats, in [0, ln K]."""
    return float(-negative_entropy(_checked(target_logits, "target")).mean())


@measure("unlabelled", 1, "mean free energy with its sign turned; Liu et al. 2020", title="energy of the target")
def target_energy(target_logits: Tensor) -> float:
    """Mean ``log sum_k exp z_k`` of the target, nats; it grows with a constant added to all logits, which no probability does."""
    return float(_checked(target_logits, "target").logsumexp(1).mean())


# Measures that predict an accuracy, for columns (variant as given) beside the truth; all others are scores.
PREDICTED_ACCURACIES = (
    "holdout_accuracy",
    "average_confidence",
    "difference_of_confidences",
    "thresholded_confidence",
    "thresholded_entropy",
    "agreement_of_repeats",
    "optimal_transport",
)


@provides
def values_on_target(
    target_logits: Tensor,
    holdout_logits: Tensor | None,
    holdout_labels: Tensor | None,
    temperature: float,
    repeat_target_logits: Sequence[Tensor] | None,
) -> dict[str, NDArray[np.float32]]:
    """Values of single target images, (N,) by column, of which measures above are the means; those that cannot be had are left out.

    Optimal transport, the norms and effective invariance, which has images of its own, are no such means.
    """
    target = _checked(target_logits, "target")
    values = {"target_entropy": -negative_entropy(target), "target_energy": target.logsumexp(1)}
    if repeat_target_logits:
        values["agreement_of_repeats"] = torch.stack([target.argmax(1) == each.argmax(1) for each in repeat_target_logits]).double().mean(0)
    for ending, t in (("", 1.0), (" (calibrated)", temperature)):
        if not np.isfinite(t):
            continue
        values[f"average_confidence{ending}"] = confidence(target / t)
        if holdout_logits is not None:
            holdout, labels = _labelled(holdout_logits, holdout_labels)
            right = _fraction_right(holdout, labels)
            values[f"difference_of_confidences{ending}"] = right - confidence(holdout / t).mean() + confidence(target / t)
            for name, score in (("thresholded_confidence", confidence), ("thresholded_entropy", negative_entropy)):
                values[f"{name}{ending}"] = score(target / t) >= confidence_threshold(score(holdout / t), right)
    return {name: found.float().numpy() for name, found in values.items()}
