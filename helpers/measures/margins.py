"""Margins of hidden layers; Jiang et al. 2019, section 3."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import numpy as np
import torch
from torch import Tensor, nn

from helpers.data.images import ImageSet
from helpers.measures.passes import Classifier
from helpers.measures.prediction import margins_of
from helpers.measures.registry import measure, provides
from helpers.networks import hooks
from helpers.networks.faults import Undefined
from helpers.statistics.correlate import Array

_IMAGES = 500  # of the training images at most, a random sample
_LAYERS = ("input", "stage 1", "stage 2", "stage 3", "stage 4")


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
        (5, n) above 0, of ``_LAYERS``.

    Raises:
        Undefined: where the network has no stages, or no image is classified correctly.
    """
    rows = np.flatnonzero(margins > 0)[:_IMAGES]
    if not len(rows):
        raise Undefined("no training image is classified correctly")
    stages = [*hooks.stage_layers(network).values()]
    distances = []
    means = [0.0] * len(_LAYERS)
    squares = [0.0] * len(_LAYERS)
    taken = images.subset(rows)
    size = classifier.batch_size
    for pixels, labels in zip(
        taken.images.split(size), taken.labels.split(size), strict=True
    ):
        inputs = classifier.input(pixels)
        differences, outputs, gradients = _differentiated(
            network, stages, inputs, labels.to(inputs.device)
        )
        norms = [gradient.flatten(1).norm(dim=1) for gradient in gradients]
        distances.append(differences / torch.stack(norms))
        for layer, output in enumerate(outputs):
            values = output.detach().double()
            means[layer] = means[layer] + values.sum(0) / len(rows)
            squares[layer] = squares[layer] + values.square().sum() / len(rows)
    variations = [
        square - mean.square().sum()
        for square, mean in zip(squares, means, strict=True)
    ]
    scales = torch.stack(variations).sqrt()[:, None]
    return (torch.cat(distances, dim=1) / scales).cpu().numpy()


def _differentiated(
    network: nn.Module, layers: Sequence[nn.Module], inputs: Tensor, labels: Tensor
) -> tuple[Tensor, list[Tensor], Sequence[Tensor]]:
    """Margins (B,), the input and the output of each layer, and gradients of both."""
    outputs: list[Tensor] = []
    with torch.inference_mode(False), torch.enable_grad(), ExitStack() as hooked:
        # A copy, since a tensor of inference mode cannot enter a graph.
        outputs.append(inputs.detach().clone().requires_grad_())
        for layer in layers:
            hook = layer.register_forward_hook(
                lambda module, given, output: outputs.append(output)
            )
            hooked.enter_context(hook)
        differences = margins_of(network(outputs[0]), labels)
        gradients = torch.autograd.grad(differences.sum(), outputs)
    return differences.detach(), outputs, gradients


@measure(
    "prediction",
    1,
    "Jiang et al. 2019, section 3",
    title="margin of hidden layers",
    variants=("mean of layers", *_LAYERS),
)
def hidden_margin(layer_margins: Array) -> Mapping[str, float]:
    """Log of the median margin at the input and behind each stage of a ResNet.

    The mean over layers is the log of a product of margins, as in the paper.

    Args:
        layer_margins: (5, n) above 0.
    """
    medians = np.log(np.median(layer_margins, axis=1))
    of_layers = dict(zip(_LAYERS, medians, strict=True))
    return {"mean of layers": medians.mean(), **of_layers}
