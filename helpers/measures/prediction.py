"""Measures of what a network says about its own training images: confidence, margins, dispersion, invariance."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.stats
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from helpers.measures.evidence import PROVIDERS, provides
from helpers.measures.registry import measure
from helpers.networks.hooks import prepared
from helpers.statistics.correlations import Array

_NUCLEAR = ("scaled", "raw", "as printed in Du")
_INVARIANCE = ("vector", "top confidence")
_MARGINS = (
    "10th percentile",
    "5th percentile",
    "mean",
    "standard deviation",
    "skewness",
    "kurtosis",
)
PROVIDERS["probabilities"] = lambda logits: logits.double().softmax(1)  # (N, K) float64


@provides
def margins(logits: Tensor, labels: Tensor) -> Array:
    """(N,) margins of the training images: ``z_y - max over k != y of z_k``, negative for a misclassified image."""
    if logits.shape[1] < 2:
        raise ValueError(
            f"the network has {logits.shape[1]} output; a margin needs two classes"
        )
    scores = logits.double()
    own, others = (
        scores.gather(1, labels[:, None]),
        scores.scatter(1, labels[:, None], -torch.inf),
    )
    return (own[:, 0] - others.amax(1)).numpy()


@provides
def margin(margins: Array) -> float:
    """The margin that norms are divided by: the absolute value of the k-th smallest, k = floor(N / 10); Jiang et al. 2020. NaN for 0."""
    k = len(margins) // 10
    if not k:
        raise ValueError(
            f"{len(margins)} training images; the 10th percentile of the margin needs at least 10"
        )
    return abs(float(np.partition(margins, k - 1)[k - 1])) or np.nan


@provides
@torch.inference_mode()
def rotated_probabilities(
    fused_network: nn.Module, images: Any, normalise: Any, device: Any, batch_size: int
) -> Tensor:
    """(3, N, K) float64 softmax of the training images turned by 90, 180 and 270 degrees: three passes; the turn is exact."""
    batches, turned = images.images.split(batch_size), []
    for turns in (1, 2, 3):
        given = (
            prepared(pixels.rot90(turns, (2, 3)), normalise, device)
            for pixels in batches
        )
        turned.append(torch.cat([fused_network(pixels).cpu() for pixels in given]))
    return torch.stack(turned).double().softmax(2)


@measure(
    "prediction",
    1,
    "Deng et al. 2023, equation 3; Du et al. 2024, equation A2",
    title="nuclear norm",
    variants=_NUCLEAR,
)
def nuclear_norm(probabilities: Tensor) -> Mapping[str, float]:
    """Nuclear norm of the (N, K) prediction matrix: confident and spread over the classes is large.

    scaled: ``||P||_* / sqrt(min(N, K) N)`` in (0, 1]; raw: ``||P||_*``; as printed in Du: the scaled one over N, in the same order.
    """
    n, k = probabilities.shape
    raw = float(torch.linalg.svdvals(probabilities).sum())
    scaled = raw / (min(n, k) * n) ** 0.5
    return dict(zip(_NUCLEAR, (scaled, raw, scaled / n), strict=True))


def invariance_of(clean: Tensor, turned: Tensor) -> tuple[Tensor, Tensor]:
    """Effective Invariance of each image under one transform: ``sqrt(p_t . p)`` and ``sqrt(max p_t * max p)``.

    (N, K) probabilities -> (N,) in [0, 1], 0 where the predicted class changes; the first is never below the second.
    """
    same = clean.argmax(1) == turned.argmax(1)
    return (clean * turned).sum(1).sqrt() * same, (
        clean.amax(1) * turned.amax(1)
    ).sqrt() * same


@measure(
    "prediction",
    1,
    "Deng et al. 2022; Du et al. 2024, equation A3",
    variants=_INVARIANCE,
)
def effective_invariance(
    probabilities: Tensor, rotated_probabilities: Tensor
) -> Mapping[str, float]:
    """Agreement of the prediction with that of the image turned by 90, 180 and 270 degrees, in [0, 1]: mean over images and turns.

    Vector: Du et al.'s text and code; top confidence: Deng et al.; see ``invariance_of``.
    """
    forms = zip(
        *(invariance_of(probabilities, turned) for turned in rotated_probabilities),
        strict=True,
    )
    return {
        name: float(torch.stack(form).mean())
        for name, form in zip(_INVARIANCE, forms, strict=True)
    }


@measure(
    "prediction",
    1,
    "Jiang et al. 2019; Jiang et al. 2020, equation 22",
    title="margin (10th percentile)",
    variants=_MARGINS,
)
def output_margin(margins: Array) -> Mapping[str, float]:
    """Margin of the training images in logits: its 10th and 5th percentile (linear interpolation) and its moments."""
    varies = bool(np.ptp(margins) > 1e-12 * np.abs(margins).max())
    shape = [
        form(margins) if varies else np.nan
        for form in (scipy.stats.skew, scipy.stats.kurtosis)
    ]
    return dict(
        zip(
            _MARGINS,
            (*np.percentile(margins, [10, 5]), margins.mean(), margins.std(), *shape),
            strict=True,
        )
    )


@measure("prediction", -1, "cross-entropy of the training set")
def training_loss(logits: Tensor, labels: Tensor) -> float:
    """Mean cross-entropy of the training images in evaluation mode, nats."""
    return float(cross_entropy(logits.double(), labels))


@measure("prediction", 1, "accuracy on the training set")
def training_accuracy(logits: Tensor, labels: Tensor) -> float:
    """Fraction of the training images classified correctly, in eval mode; it is one half of the gap itself."""
    if wrong := int((~logits.isfinite().all(1)).sum()):
        raise ValueError(
            f"{wrong} of {len(logits)} training images have logits that are not finite"
        )
    return float((logits.argmax(1) == labels).double().mean())


@measure("prediction", -1, "mean Shannon entropy of the predictions")
def prediction_entropy(probabilities: Tensor) -> float:
    """Mean entropy of the predicted distributions, nats, in [0, ln K]."""
    return float(torch.special.entr(probabilities).sum(1).mean())


@provides
def prediction_values(
    logits: Tensor, labels: Tensor, probabilities: Tensor, rotated_probabilities: Tensor
) -> dict[str, NDArray[Any]]:
    """Values of single images, (N,) each: float16 of which the measures are means, and bool, whether the class is right."""
    invariance = torch.stack(
        [invariance_of(probabilities, turned)[0] for turned in rotated_probabilities]
    ).mean(0)
    values = {
        "training_loss": cross_entropy(logits.double(), labels, reduction="none"),
        "effective_invariance": invariance,
    }
    values["prediction_entropy"] = torch.special.entr(probabilities).sum(1)
    return {
        name: value.numpy().astype(np.float16) for name, value in values.items()
    } | {"correct": (logits.argmax(1) == labels).numpy()}
