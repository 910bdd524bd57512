"""Confidence, margins, dispersion and invariance of predictions on training images."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.module import register_module_forward_hook

from helpers.data.images import ImageSet
from helpers.measures.passes import Classifier
from helpers.measures.registry import Value, measure, provides
from helpers.networks import Undefined, hooks
from helpers.statistics.correlate import Array

_HIDDEN_IMAGES = 500  # at most, for margins of hidden layers; a random sample


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

    Raises:
        Undefined: for a network with fewer outputs than labels, or with one.
    """
    largest = int(labels.max())
    if logits.shape[1] <= max(1, largest):
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
    """
    return margins_of(label_logits, labels).numpy()


@provides
def margin(margins: Array) -> float:
    """The margin that norms are divided by; Jiang et al. 2020.

    Args:
        margins: (N,).

    Returns:
        The absolute value of the k-th smallest, k = floor(N / 10), at least 1; NaN for
        0.
    """
    k = max(1, len(margins) // 10)
    return abs(float(np.sort(margins)[k - 1])) or np.nan


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
    variants=("scaled",),
)
def nuclear_norm(probabilities: Tensor) -> float:
    """Nuclear norm of the (N, K) prediction matrix, large for confident and spread.

    ``||P||_* / sqrt(min(N, K) N)`` in (0, 1]. Du et al. print it over N.

    Args:
        probabilities: (N, K) softmax of the logits.
    """
    n, k = probabilities.shape
    norm = torch.linalg.matrix_norm(probabilities, "nuc")
    return float(norm / (min(n, k) * n) ** 0.5)


@measure(
    "prediction",
    1,
    "Deng et al. 2022; Du et al. 2024, equation A3",
    variants=("vector", "top confidence"),
)
def effective_invariance(probabilities: Tensor, rotated_probabilities: Tensor) -> Value:
    """Agreement of the prediction with that of the turned image, in [0, 1].

    Of each image, mean over turns by 90, 180 and 270 degrees, 0 where the predicted
    class changes. Vector: ``sqrt(p_t . p)`` of Du et al. (text and code); top
    confidence: ``sqrt(max p_t * max p)`` of Deng et al., never above the first.

    Args:
        probabilities: (N, K) p, softmax of the logits.
        rotated_probabilities: (3, N, K) p_t of images turned by 90, 180 and 270
            degrees.
    """
    same_class = probabilities.argmax(1) == rotated_probabilities.argmax(2)
    dot_products = (probabilities * rotated_probabilities).sum(2)
    confidences = probabilities.amax(1) * rotated_probabilities.amax(2)
    return {
        name: (squares.sqrt() * same_class).mean(0).numpy()
        for name, squares in (("vector", dot_products), ("top confidence", confidences))
    }


@measure(
    "prediction",
    1,
    "Jiang et al. 2019; Jiang et al. 2020, equation 22",
    title="margin (10th percentile)",
    variants=("10th percentile",),
)
def output_margin(margins: Array) -> float:
    """Margin of the training images in logits: 10th percentile, interpolated.

    Args:
        margins: (N,) logit of the label less the largest other logit.
    """
    return np.percentile(margins, 10)


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


@provides
def layer_margins(
    network: nn.Module, classifier: Classifier, images: ImageSet, margins: Array
) -> Array:
    """Distances from the decision boundary at the input and behind each stage.

    ``(z_y - z_j) / |grad (z_y - z_j)|_2``, a linear approximation, j the class of the
    largest other logit; divided by the root of the total variation of the layer's
    output, ``mean |x - mean x|^2``, so that no scale of a layer counts.

    Args:
        network: a ResNet in evaluation mode.
        classifier: how it takes images.
        images: the N training images; the first that are classified correctly are
            taken, as in the paper.
        margins: (N,) logit of the label less the largest other logit.

    Returns:
        (5, n) above 0, of the input and the four stages.

    Raises:
        Undefined: where the network has no stages, or no image is classified correctly.
    """
    rows = np.flatnonzero(margins > 0)[:_HIDDEN_IMAGES]
    if not len(rows):
        raise Undefined("no training image is classified correctly")
    stages = {*hooks.stage_layers(network).values()}
    outputs: list[Tensor] = []  # of a batch, by layer

    def note(module: nn.Module, inputs: Any, output: Tensor) -> None:
        if module in stages:
            outputs.append(output)

    distances = []
    means = [0.0] * 5
    squares = torch.zeros(5, dtype=torch.float64, device=classifier.device)
    for batch in torch.from_numpy(rows).split(classifier.batch_size):
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            register_module_forward_hook(note),
        ):
            # A copy, since a tensor of inference mode cannot enter a graph.
            inputs = classifier.input(images.images[batch]).detach().clone()
            outputs[:] = [inputs.requires_grad_()]
            labels = images.labels[batch].to(inputs.device)
            differences = margins_of(network(inputs), labels)
            gradients = torch.autograd.grad(differences.sum(), outputs)
        norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients])
        distances.append(differences.detach() / norms)
        for layer, output in enumerate(outputs):
            values = output.detach().double()
            means[layer] = means[layer] + values.sum(0) / len(rows)
            squares[layer] += values.square().sum() / len(rows)
    squared_means = torch.stack([mean.square().sum() for mean in means])
    scales = (squares - squared_means).sqrt()
    return (torch.cat(distances, 1) / scales[:, None]).cpu().numpy()


@measure(
    "prediction",
    1,
    "Jiang et al. 2019, section 3",
    title="margin of hidden layers",
    variants=("mean of layers",),
)
def hidden_margin(layer_margins: Array) -> float:
    """Log of the median margin at the input and behind each stage of a ResNet.

    The mean over layers, which is the log of a product of margins, as in the paper.

    Args:
        layer_margins: (5, n) above 0.
    """
    return np.log(np.median(layer_margins, axis=1)).mean()
