"""The forward pass over the training images that most measures share."""

from collections.abc import Callable
from contextlib import nullcontext
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

# Largest number of images of a pass: with more, the outputs of layers do not fit into
# a processor's cache, and a GPU gains nothing.
_MOST_IMAGES = {"cpu": 64, "cuda": 256}
# Memory of a pass on a processor, bytes; on a GPU it may take half of what is free.
_FORWARD_BYTES = 2**28
_GRADIENT_BYTES = 2**31
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
    layer, linear = hooks.last_called(network, example)
    first_inputs = classifier.input(images.images[:_CHECKED_IMAGES])
    linear_of_maps = _linear_of_maps(network, layer, first_inputs)
    logits_of_batches = []
    features = []
    maps_of_batches = []
    linear_inputs: list[Tensor] = []
    with _captured_input(linear, linear_inputs):
        for pixels in images.images.split(classifier.batch_size):
            inputs = classifier.input(pixels)
            if linear_of_maps is None:
                logits = network(inputs)
            else:
                maps, logits = hooks.features_and_logits(network, layer, inputs)
                weighted = closed_form_cam(
                    cam_method, maps, linear_of_maps.weight, logits.argmax(1)
                )
                maps_of_batches.append(normalise_maps(weighted).float())
            _check_logits(logits)
            logits_of_batches.append(logits.float())
            if _gives_logits(linear, linear_inputs, logits):
                features.append(linear_inputs[-1].float())
            linear_inputs.clear()
    # Each is transferred once, since the host waits for a GPU at every transfer.
    return Pass(
        torch.cat(logits_of_batches).cpu(),
        torch.cat(features).cpu() if features else None,
        torch.cat(maps_of_batches).cpu() if maps_of_batches else None,
    )


def _check_logits(logits: Tensor) -> None:
    if logits.ndim != 2:
        raise Undefined(
            f"the network puts out shape {tuple(logits.shape)}; a classifier puts out "
            "(B, K) logits"
        )


def _captured_input(linear: nn.Linear | None, inputs: list[Tensor]) -> Any:
    """Collect the inputs of a linear layer while the context is open."""
    if linear is None:
        return nullcontext()
    return linear.register_forward_pre_hook(lambda _, values: inputs.append(values[0]))


def _gives_logits(
    linear: nn.Linear | None, inputs: list[Tensor], logits: Tensor
) -> bool:
    """Whether a linear layer was called on features (B, D), with K outputs."""
    return (
        linear is not None
        and bool(inputs)
        and inputs[-1].ndim == 2
        and linear.out_features == logits.shape[1]
    )


def _linear_of_maps(
    network: nn.Module, layer: nn.Module | None, inputs: Tensor
) -> nn.Linear | None:
    """The linear layer of the maps' closed form, None where they have none."""
    if layer is None:
        return None
    maps, logits = hooks.features_and_logits(network, layer, inputs)
    try:
        return closed_form_classifier(network, maps, logits)
    except ValueError:
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
    predicted = forward_pass.logits.argmax(1)
    batches = []
    size = classifier.batch_size
    for pixels, classes in zip(
        images.images.split(size), predicted.split(size), strict=True
    ):
        inputs = classifier.input(pixels)
        try:
            weighted = layer_maps(
                method, classifier.network, layer, inputs, classes.to(inputs.device)
            )
        except (ValueError, RuntimeError) as fault:
            if is_of_machine(fault):
                raise
            reason = str(fault).splitlines()[0]
            raise Undefined(f"there is no class activation map: {reason}") from fault
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
@torch.inference_mode()
def output_bytes(network: nn.Module, example: Tensor) -> list[int]:
    """Bytes that each innermost layer puts out for one image.

    Args:
        network: whose layers are observed.
        example: (1, 3, S, S) input.
    """
    sizes: list[int] = []

    def note_size(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and not list(module.children()):
            sizes.append(output.nbytes)

    hooks.observe(network, example, note_size)
    return sizes


def images_that_fit(image_bytes: int, device: Any, processor_bytes: int) -> int:
    """Number of images of a pass, at least 1.

    Args:
        image_bytes: that one image takes.
        device: of the network; of a GPU half of the free memory may be used.
        processor_bytes: that a pass may take on a processor.
    """
    device = torch.device(device)
    free = processor_bytes
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0] // 2
    count = min(_MOST_IMAGES.get(device.type, 64), free // max(1, image_bytes))
    return max(1, count)


@provides
def batch_size(output_bytes: list[int], device: Any) -> int:
    """Images of a pass without gradients, which holds few outputs of layers at once.

    Four times the largest output is reserved for each image.

    Args:
        output_bytes: of each layer, for one image.
        device: "cpu" or "cuda".
    """
    return images_that_fit(4 * max(output_bytes, default=0), device, _FORWARD_BYTES)


@provides
def gradient_batch_size(output_bytes: list[int], device: Any, batch_size: int) -> int:
    """Images of a pass with gradients, which holds the outputs of all layers at once.

    Twice the sum of all outputs is reserved for each image.

    Args:
        output_bytes: of each layer, for one image.
        device: "cpu" or "cuda".
        batch_size: images of a pass without gradients.
    """
    fitting = images_that_fit(2 * sum(output_bytes), device, _GRADIENT_BYTES)
    return min(batch_size, fitting)
