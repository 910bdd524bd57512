"""The forward pass over the training images that most measures share."""

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from helpers.cams.maps import (
    closed_form_cam,
    closed_form_classifier,
    layer_maps,
    normalise_maps,
)
from helpers.measures.evidence import provides
from helpers.networks import hooks
from helpers.networks.faults import Undefined, is_of_machine

_CHECKED_IMAGES = 8  # on which the closed form of the maps must reproduce the logits


class Sample(NamedTuple):
    """The first n training images, in random order, on the network's device."""

    pixels: Tensor  # (n, 3, S, S) uint8
    inputs: Tensor  # (n, 3, S, S) float32, normalised, channels last
    labels: Tensor  # (n,) int64


def sample_of(images: Any, normalise: Any, device: Any, count: int) -> Sample:
    """The first images, all where there are fewer than ``count``.

    Args:
        images: N images with labels and boxes.
        normalise: from uint8 images to input of the network.
        device: "cpu" or "cuda".
        count: number of images at most.
    """
    pixels = images.images[:count].to(device)
    inputs = hooks.prepared(pixels, normalise, device)
    return Sample(pixels, inputs, images.labels[:count].to(device))


@dataclass(frozen=True)
class Classifier:
    """A network with what its images need on their way through it."""

    network: nn.Module  # in evaluation mode, batch normalisation folded into it
    normalise: Callable[[Tensor], Tensor]  # turns uint8 images into its input
    device: torch.device | str
    batch_size: int  # images at a time

    def input(self, pixels: Tensor) -> Tensor:
        """Images as the network expects them.

        Args:
            pixels: (B, 3, S, S) uint8.
        """
        return hooks.prepared(pixels, self.normalise, self.device)

    def logits(self, pixels: Tensor) -> Tensor:
        """Logits (B, K) of images, on the device.

        Args:
            pixels: (B, 3, S, S) uint8.
        """
        return self.network(self.input(pixels))


@provides
def classifier(
    fused_network: nn.Module, normalise: Any, device: Any, batch_size: int
) -> Classifier:
    """The network with batch normalisation folded into it, and how it takes images.

    Args:
        fused_network: in evaluation mode.
        normalise: from uint8 images to input of the network.
        device: of the network.
        batch_size: images at a time.
    """
    return Classifier(fused_network, normalise, device, batch_size)


@dataclass(frozen=True)
class Pass:
    """Results of a forward pass over N images, on the CPU, in their order."""

    logits: Tensor  # (N, K) float32
    features: Tensor | None  # (N, D) float32, input of a linear layer giving the logits
    maps: Tensor | None  # (N, h, w), of the predicted class; None without closed form


@provides
@torch.inference_mode()
def forward_pass(
    classifier: Classifier, images: Any, example: Tensor, cam_method: str
) -> Pass:
    """Run the training images through the network once.

    Args:
        classifier: the network, and how it takes images.
        images: the N training images.
        example: (1, 3, S, S) input.
        cam_method: of ``maps.CLOSED_FORM_METHODS``.

    Returns:
        Logits; features where a linear layer gives the logits; normalised maps of the
        predicted class where they have a closed form.

    Raises:
        Undefined: where the network is no classifier.
    """
    network = classifier.network
    layer, last_linear = hooks.last_called(network, example)
    first_inputs = classifier.input(images.images[:_CHECKED_IMAGES])
    linear = _linear_of_maps(network, layer, first_inputs)
    batches = []
    maps = []
    linear_inputs: list[Tensor] = []
    with ExitStack() as opened:
        if last_linear is not None:
            hook = last_linear.register_forward_pre_hook(
                lambda module, values: linear_inputs.append(values[0].float())
            )
            opened.enter_context(hook)
        if linear is not None:
            activations = opened.enter_context(hooks.captured_output(layer))
        for pixels in images.images.split(classifier.batch_size):
            batches.append(classifier.logits(pixels).float())
            if linear is not None:
                weighted = closed_form_cam(
                    cam_method, activations[-1], linear.weight, batches[-1].argmax(1)
                )
                maps.append(normalise_maps(weighted).float())
                activations.clear()
    logits = torch.cat(batches)
    if logits.ndim != 2:
        raise Undefined(
            f"the network puts out shape {tuple(logits.shape)}; a classifier puts out "
            "(B, K) logits"
        )
    # Each is transferred once, since the host waits for a GPU at every transfer.
    return Pass(
        logits.cpu(),
        _features(last_linear, linear_inputs, logits),
        torch.cat(maps).cpu() if maps else None,
    )


def _features(
    linear: nn.Linear | None, inputs: list[Tensor], logits: Tensor
) -> Tensor | None:
    """Inputs (N, D) of the last linear layer, if it gives the logits (N, K)."""
    if linear is None or linear.out_features != logits.shape[1]:
        return None
    features = torch.cat(inputs).cpu()
    return features if features.ndim == 2 and len(features) == len(logits) else None


def _linear_of_maps(
    network: nn.Module, layer: nn.Module | None, inputs: Tensor
) -> nn.Linear | None:
    """The linear layer of the maps' closed form, None where they have none."""
    if layer is None:
        return None
    maps, logits = hooks.features_and_logits(network, layer, inputs)
    with suppress(ValueError):
        return closed_form_classifier(network, maps, logits)
    return None


@provides
def maps(
    forward_pass: Pass,
    classifier: Classifier,
    images: Any,
    example: Tensor,
    cam_method: str,
) -> Tensor:
    """Normalised class activation maps of the predicted class.

    Args:
        forward_pass: its maps are taken where they have a closed form.
        classifier: its network is differentiated where they have none.
        images: the N training images.
        example: (1, 3, S, S) input.
        cam_method: of ``maps.GRADIENT_METHODS``, or "cam".

    Returns:
        (N, h, w) in [0, 1).

    Raises:
        Undefined: where the network has no such maps.
    """
    if forward_pass.maps is not None:
        return forward_pass.maps
    layer = hooks.last_maps_layer(classifier.network, example)
    method = "grad_cam" if cam_method == "cam" else cam_method
    size = classifier.batch_size
    classes = forward_pass.logits.argmax(1).split(size)
    batches = []
    for pixels, predicted in zip(images.images.split(size), classes, strict=True):
        inputs = classifier.input(pixels)
        predicted = predicted.to(inputs.device)
        weighted = layer_maps(method, classifier.network, layer, inputs, predicted)
        batches.append(normalise_maps(weighted).float())
    return torch.cat(batches)


@provides
def example(network: nn.Module, images: Any, normalise: Any, device: Any) -> Tensor:
    """The first image as input of the network, (1, 3, S, S).

    Args:
        network: in evaluation mode.
        images: N images with labels and boxes.
        normalise: from uint8 images to input of the network.
        device: "cpu" or "cuda".

    Raises:
        Undefined: where the network cannot be run on it.
    """
    inputs = sample_of(images, normalise, device, 1).inputs
    try:
        with torch.inference_mode():
            network(inputs)
    except Exception as fault:  # whatever a network raises
        if is_of_machine(fault):
            raise
        words = (str(fault).splitlines() or [""])[0][:200]
        raise Undefined(
            f"the network fails on these images ({type(fault).__name__}: {words})"
        ) from fault
    return inputs


@provides
def logits(forward_pass: Pass) -> Tensor:
    """Logits of the training images, (N, K) float32.

    Args:
        forward_pass: of the training images.
    """
    return forward_pass.logits


@provides
def labels(images: Any) -> Tensor:
    """Labels of the data set, (N,) int64, also for a run trained on noisy ones.

    Args:
        images: N images with labels and boxes.
    """
    return images.labels.cpu()


@provides
def training_images(images: Any) -> int:
    """Number of images that a network was trained on, where no other is given.

    Args:
        images: N images with labels and boxes.
    """
    return len(images)


@provides
def flatness_sample(
    images: Any, normalise: Any, device: Any, flatness_images: int
) -> Sample:
    """Images on which accuracy is measured under noise on the weights.

    Args:
        images: N images with labels and boxes.
        normalise: from uint8 images to input of the network.
        device: "cpu" or "cuda".
        flatness_images: their number at most.
    """
    return sample_of(images, normalise, device, flatness_images)


@provides
def sharpness_sample(
    images: Any, normalise: Any, device: Any, sharpness_images: int
) -> Sample:
    """Images on which accuracy is measured under the worst change of the weights.

    Args:
        images: N images with labels and boxes.
        normalise: from uint8 images to input of the network.
        device: "cpu" or "cuda".
        sharpness_images: their number at most.
    """
    return sample_of(images, normalise, device, sharpness_images)


@provides
def perturbed_sample(
    images: Any, normalise: Any, device: Any, response_sample: int
) -> Sample:
    """Images that are mixed and transformed.

    Args:
        images: N images with labels and boxes.
        normalise: from uint8 images to input of the network.
        device: "cpu" or "cuda".
        response_sample: their number at most.
    """
    return sample_of(images, normalise, device, response_sample)


@provides
def batch_size(device: Any) -> int:
    """Images of a pass: more gain nothing, and fill a processor's cache.

    Args:
        device: "cpu" or "cuda".
    """
    return 256 if torch.device(device).type == "cuda" else 64
