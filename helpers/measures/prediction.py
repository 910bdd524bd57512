"""Measures of what a network says about its own training images: confidence, margins, dispersion, invariance."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.stats
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from helpers.measures.evidence import provides
from helpers.measures.passes import maps_and_logits
from helpers.measures.registry import measure
from helpers.networks.hooks import last_linear, prepared

_MOMENTS = ("mean", "standard deviation", "skewness", "kurtosis")


@provides
def probabilities(logits: Tensor) -> Tensor:
    """(N, K) float64 softmax of the training images' logits."""
    return logits.double().softmax(1)


@provides
def margins(logits: Tensor, labels: Tensor) -> NDArray[np.float64]:
    """(N,) margins of the training images: ``z_y - max over k != y of z_k``, negative for a misclassified image.

    Raises:
        ValueError: fewer than two classes.
    """
    if logits.shape[1] < 2:
        raise ValueError(f"the network has {logits.shape[1]} output; a margin needs two classes")
    scores = logits.double()
    right = scores.gather(1, labels[:, None])
    others = scores.scatter(1, labels[:, None], -torch.inf).amax(1)
    return (right[:, 0] - others).numpy()


@provides
def margin(margins: NDArray[np.float64]) -> float:
    """The margin that norms are divided by: the absolute value of the k-th smallest, k = floor(N / 10); Jiang et al. 2020.

    NaN when it is 0.

    Raises:
        ValueError: fewer than 10 images.
    """
    k = len(margins) // 10
    if not k:
        raise ValueError(f"{len(margins)} training images; the 10th percentile of the margin needs at least 10")
    return abs(float(np.partition(margins, k - 1)[k - 1])) or np.nan


@provides
def clean_accuracy(logits: Tensor, labels: Tensor) -> float:
    """Fraction of the training images that are classified correctly. Raises ValueError where logits are not finite, which tell no class."""
    if wrong := int((~logits.isfinite().all(1)).sum()):
        raise ValueError(f"{wrong} of {len(logits)} training images have logits that are not finite")
    return float((logits.argmax(1) == labels).double().mean())


@provides
@torch.inference_mode()
def rotated_probabilities(
    fused_network: nn.Module, images: Any, normalise: Any, device: Any, batch_size: int, example: Tensor, precision: str
) -> Tensor:
    """(3, N, K) float64 softmax of the training images turned by 90, 180 and 270 degrees: three passes; the turn is exact."""
    head = last_linear(fused_network, example) if precision == "bfloat16" else None
    batches = [images.images[start : start + batch_size] for start in range(0, len(images), batch_size)]
    turned = []
    for turns in (1, 2, 3):
        given = (prepared(pixels.rot90(turns, (2, 3)), normalise, device) for pixels in batches)
        turned.append(torch.cat([maps_and_logits(fused_network, head, None, pixels, precision)[1].cpu() for pixels in given]))
    return torch.stack(turned).double().softmax(2)


@measure(
    "prediction",
    1,
    "Deng et al. 2023, equation 3; Du et al. 2024, equation A2",
    title="nuclear norm",
    variants=("scaled", "raw", "as printed in Du"),
)
def nuclear_norm(probabilities: Tensor) -> Mapping[str, float]:
    """Nuclear norm of the (N, K) prediction matrix: confident and spread over the classes is large.

    scaled: ``||P||_* / sqrt(min(N, K) N)`` in (0, 1], 1 exactly for one-hot rows of balanced classes, 1/K for uniform rows;
    raw: ``||P||_*``; as printed in Du: the scaled one over N. For fixed N and K the three order models in the same way.
    """
    n, k = probabilities.shape
    raw = float(torch.linalg.svdvals(probabilities).sum())
    scaled = raw / (min(n, k) * n) ** 0.5
    return {"scaled": scaled, "raw": raw, "as printed in Du": scaled / n}


def invariance_of(clean: Tensor, turned: Tensor) -> tuple[Tensor, Tensor]:
    """Effective Invariance of each image under one transform, vector form and top-confidence form.

    Args:
        clean: (N, K) probabilities of the images.
        turned: (N, K) probabilities of the transformed images.

    Returns:
        Two (N,) tensors in [0, 1]: ``sqrt(p_t . p)`` and ``sqrt(max p_t * max p)``, 0 where the predicted class changes.
    """
    same = clean.argmax(1) == turned.argmax(1)
    vector = (clean * turned).sum(1).sqrt()
    confidence = (clean.amax(1) * turned.amax(1)).sqrt()
    return vector * same, confidence * same


@measure(
    "prediction", 1, "Deng et al. 2022; Du et al. 2024, equation A3", title="effective invariance", variants=("vector", "top confidence")
)
def effective_invariance(probabilities: Tensor, rotated_probabilities: Tensor) -> Mapping[str, float]:
    """Agreement of the prediction with that of the image turned by 90, 180 and 270 degrees, in [0, 1].

    Mean over images and turns of ``sqrt(p_t . p)`` (vector: Du et al.'s text and code) or of the root of the product of the two top
    confidences (Deng et al.); 0 for an image whose predicted class changes. The vector form is never below the other.
    """
    vector, confidence = zip(*(invariance_of(probabilities, turned) for turned in rotated_probabilities), strict=True)
    return {"vector": float(torch.stack(vector).mean()), "top confidence": float(torch.stack(confidence).mean())}


@measure(
    "prediction",
    1,
    "Jiang et al. 2019; Jiang et al. 2020, equation 22",
    title="margin (10th percentile)",
    variants=("10th percentile", "5th percentile", *_MOMENTS),
)
def output_margin(margins: NDArray[np.float64]) -> Mapping[str, float]:
    """Margin of the training images in logits: its 10th and 5th percentile (linear interpolation) and its moments.

    Skewness and (excess) kurtosis are undefined where all margins are equal.
    """
    tenth, fifth = np.percentile(margins, [10, 5])
    varies = bool(np.ptp(margins) > 1e-12 * np.abs(margins).max())
    moments = (margins.mean(), margins.std(), *((f(margins) if varies else np.nan) for f in (scipy.stats.skew, scipy.stats.kurtosis)))
    return {"10th percentile": tenth, "5th percentile": fifth} | dict(zip(_MOMENTS, moments, strict=True))


@measure("prediction", -1, "cross-entropy of the training set", title="training loss")
def training_loss(logits: Tensor, labels: Tensor) -> float:
    """Mean cross-entropy of the training images in eval mode, nats: a network that fits less promises less than it seems to."""
    return float(cross_entropy(logits.double(), labels))


@measure("prediction", 1, "accuracy on the training set", title="training accuracy")
def training_accuracy(clean_accuracy: float) -> float:
    """Fraction of the training images classified correctly, in eval mode; it is one half of the gap itself."""
    return clean_accuracy


@measure("prediction", -1, "mean Shannon entropy of the predictions", title="prediction entropy")
def prediction_entropy(probabilities: Tensor) -> float:
    """Mean entropy of the predicted distributions, nats, in [0, ln K]."""
    return float(torch.special.entr(probabilities).sum(1).mean())


@provides
def prediction_values(
    logits: Tensor, labels: Tensor, probabilities: Tensor, rotated_probabilities: Tensor
) -> dict[str, NDArray[np.generic]]:
    """Values of single images, (N,) each: float16 of which the measures are means, and bool, whether the class is right."""
    invariance = torch.stack([invariance_of(probabilities, turned)[0] for turned in rotated_probabilities]).mean(0)
    values = {
        "training_loss": cross_entropy(logits.double(), labels, reduction="none"),
        "prediction_entropy": torch.special.entr(probabilities).sum(1),
        "effective_invariance": invariance,
    }
    return {name: value.numpy().astype(np.float16) for name, value in values.items()} | {"correct": (logits.argmax(1) == labels).numpy()}
