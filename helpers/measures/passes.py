"""The forward pass over the training images that most measures share."""

from collections.abc import Callable
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
from helpers.measures.registry import provides
from helpers.networks import hooks

_CHECKED_IMAGES = 8  # on which the closed form of the maps must reproduce the logits


class Sample(NamedTuple):
    """The first n training images, in random order, on the network's device."""

    pixels: Tensor  # (n, 3, S, S) uint8
    inputs: Tensor  # (n, 3, S, S) float32, normalised, channels last
    labels: Tensor  # (n,) int64


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

    @torch.inference_mode()
    def logits(self, pixels: Tensor) -> Tensor:
        """Logits (N, K) of images, on the device, computed a batch at a time.

        Args:
            pixels: (N, 3, S, S) uint8.
        """
        batches = pixels.split(self.batch_size)
        return torch.cat([self.network(self.input(batch)) for batch in batches])

    def sample(self, images: Any, count: int) -> Sample:
        """The first images, all where there are fewer than ``count``.

        Args:
            images: N images with labels.
            count: number of images at most.
        """
        pixels = images.images[:count].to(self.device)
        labels = images.labels[:count].to(self.device)
        return Sample(pixels, self.input(pixels), labels)


@provides
def classifier(
    fused_network: nn.Module, normalise: Any, images: Any, device: Any
) -> Classifier:
    """The network with batch normalisation folded into it, and how it takes images.

    Args:
        fused_network: in evaluation mode.
        normalise: from uint8 images to input of the network.
        images: N images with labels and boxes.
        device: of the network.
    """
    size = 256
    if torch.device(device).type == "cpu":  # more would not fit into the cache
        size = max(8, 2**18 // images.images.shape[-1] ** 2)
    return Classifier(fused_network, normalise, device, size)


@provides
def example(classifier: Classifier, images: Any) -> Tensor:
    """The first image as input of the network, (1, 3, S, S).

    Args:
        classifier: the network, and how it takes images.
        images: N images with labels and boxes.
    """
    return classifier.input(images.images[:1])


class Pass(NamedTuple):
    """Results of a forward pass over N images, on the CPU, in their order."""

    logits: Tensor  # (N, K) float32
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
        Logits; normalised maps of the predicted class where they have a closed form.
    """
    network = classifier.network
    first = classifier.input(images.images[:_CHECKED_IMAGES])
    try:
        layer = hooks.last_maps_layer(network, example)
        of_first = hooks.features_and_logits(network, layer, first)
        linear = closed_form_classifier(network, *of_first)
    except ValueError:  # the maps have no closed form
        return Pass(classifier.logits(images.images).float().cpu(), None)
    batches = []
    with hooks.captured_output(layer) as activations:
        for pixels in images.images.split(classifier.batch_size):
            logits = classifier.logits(pixels).float()
            last = activations[-1]
            activations.clear()
            classes = logits.argmax(1)
            weighted = closed_form_cam(cam_method, last, linear.weight, classes)
            maps = normalise_maps(weighted).float()
            batches.append((logits, maps))
    # Each is transferred once, since the host waits for a GPU at every transfer.
    logits, maps = zip(*batches, strict=True)
    return Pass(torch.cat(logits).cpu(), torch.cat(maps).cpu())


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
        cam_method: of ``maps.CLOSED_FORM_METHODS``.

    Returns:
        (N, h, w) in [0, 1).

    Raises:
        Undefined: where the network has no such maps.
    """
    if forward_pass.maps is not None:
        return forward_pass.maps
    network = classifier.network
    layer = hooks.last_maps_layer(network, example)
    classes = forward_pass.logits.argmax(1).to(classifier.device)
    batches = []
    for start in range(0, len(classes), classifier.batch_size):
        part = slice(start, start + classifier.batch_size)
        inputs = classifier.input(images.images[part])
        weighted = layer_maps(cam_method, network, layer, inputs, classes[part])
        batches.append(normalise_maps(weighted).float())
    return torch.cat(batches)


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
    classifier: Classifier, images: Any, flatness_images: int
) -> Sample:
    """Images on which accuracy is measured under noise on the weights.

    Args:
        classifier: the network, and how it takes images.
        images: N images with labels and boxes.
        flatness_images: their number at most.
    """
    return classifier.sample(images, flatness_images)


@provides
def sharpness_sample(
    classifier: Classifier, images: Any, sharpness_images: int
) -> Sample:
    """Images on which accuracy is measured under the worst change of the weights.

    Args:
        classifier: the network, and how it takes images.
        images: N images with labels and boxes.
        sharpness_images: their number at most.
    """
    return classifier.sample(images, sharpness_images)


def in_batches(values: Tensor) -> tuple[Tensor, ...]:
    """Cut (N, ...) into parts that fill a processor's cache, or keep a GPU busy.

    Args:
        values: (N, ...) on the device where each part is worked on.
    """
    return values.split(256 if values.is_cuda else 64)


def is_right(logits: Tensor, labels: Tensor) -> Tensor:
    """Mask of the images that are classified correctly, (B,) bool.

    Args:
        logits: (B, K); an image with a NaN among them is not correct.
        labels: (B,).
    """
    return (logits.argmax(1) == labels) & ~logits.isnan().any(1)
