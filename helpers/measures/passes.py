"""The one pass over the training images that most measures live on: logits, features and class activation maps together."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from helpers import cams
from helpers.measures.evidence import provides

_POOLING = (nn.AdaptiveAvgPool2d, nn.AvgPool2d, nn.AdaptiveMaxPool2d, nn.MaxPool2d, nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout2d)


@dataclass(frozen=True)
class Pass:
    """What one forward pass over N training images gives; everything on the CPU, in the order of the images."""

    logits: Tensor  # (N, K) float32
    features: Tensor | None  # (N, D) float32, what the last linear layer is given; None where none is called
    maps: Tensor | None  # (N, h, w) normalised maps of the predicted class; None where the closed form does not hold
    no_maps: str  # why there are none


@provides
def example(images: Any, normalise: Any, device: Any) -> Tensor:
    """Give the first training image as the network expects it: (1, 3, S, S).

    Raises:
        ValueError: there is none.
    """
    if not len(images.images):
        raise ValueError("there are no training images, so the network can be neither traced nor scored")
    return prepared(images.images[:1], normalise, device)


def prepared(pixels: Tensor, normalise: Any, device: torch.device | str) -> Tensor:
    """Turn (B, 3, S, S) uint8 images into input of a network, on its device, channels last."""
    return normalise(pixels.to(device)).contiguous(memory_format=torch.channels_last)


@torch.inference_mode()
def last_called(network: nn.Module, example: Tensor) -> tuple[nn.Module | None, nn.Linear | None]:
    """Find, in one pass, the last layer that puts out a stack of maps and is no pooling, and the linear layer that is called last.

    In a ResNet these are ``layer4`` and ``fc``. Of nested modules with the same output the outermost counts.

    Returns:
        The two, each None where there is none.
    """
    maps: list[nn.Module] = []
    linear: list[nn.Linear] = []

    def seen(module: nn.Module, given: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.ndim == 4 and not isinstance(module, _POOLING) and module is not network:
            maps.append(module)
        if isinstance(module, nn.Linear):
            linear.append(module)

    cams.observe(network, example, seen)
    return (maps or [None])[-1], (linear or [None])[-1]


def last_maps_layer(network: nn.Module, example: Tensor) -> nn.Module:
    """Find the layer whose maps are pooled and classified, see ``last_called``.

    Raises:
        ValueError: no module puts out (B, C, h, w).
    """
    layer, _ = last_called(network, example)
    if layer is None:
        raise ValueError(_no_layer(network))
    return layer


def _no_layer(network: nn.Module) -> str:
    return f"no layer of {type(network).__name__} puts out maps (B, C, h, w), so there is no class activation map"


def last_linear(network: nn.Module, example: Tensor) -> nn.Linear | None:
    """Find the linear layer that a pass calls last; None where none is called."""
    return last_called(network, example)[1]


@provides
@torch.inference_mode()
def forward_pass(network: nn.Module, images: Any, normalise: Any, device: Any, example: Tensor, cam_method: str, batch_size: int) -> Pass:
    """Run the training images through the network once, see ``Pass``.

    Raises:
        ValueError: the network's output is no (B, K) matrix of logits.
    """
    layer, linear = last_called(network, example)
    classifier, no_maps = None, "" if layer is not None else _no_layer(network)
    kept: dict[str, list[Tensor]] = {"logits": [], "features": [], "maps": []}
    given: list[Tensor] = []
    hook = linear.register_forward_pre_hook(lambda module, inputs: given.append(inputs[0])) if linear is not None else None
    try:
        for start in range(0, len(images), batch_size):
            pixels = prepared(images.images[start : start + batch_size], normalise, device)
            given.clear()
            maps, logits = (None, network(pixels)) if no_maps else cams.features_and_logits(network, layer, pixels)
            if logits.ndim != 2:
                raise ValueError(f"the network puts out shape {tuple(logits.shape)}; a classifier puts out (B, K) logits")
            if start == 0 and not no_maps:
                classifier, no_maps = _closed_form(network, maps, logits)
            kept["logits"].append(logits.float().cpu())
            if given:
                kept["features"].append(given[-1].flatten(1).float().cpu())
            if classifier:
                weighted = cams.closed_form_cam(cam_method, maps, classifier.weight, logits.argmax(1))
                kept["maps"].append(cams.normalise(weighted).float().cpu())
    finally:
        if hook is not None:
            hook.remove()
    joined = {name: torch.cat(parts) if parts else None for name, parts in kept.items()}
    return Pass(**joined, no_maps=no_maps)


def _closed_form(network: nn.Module, maps: Tensor, logits: Tensor) -> tuple[nn.Linear | None, str]:
    """Give the linear layer behind the maps of a pass, or why there is no closed form of their class activation map."""
    try:
        return cams.closed_form_classifier(network, maps, logits), ""
    except ValueError as fault:
        return None, str(fault)


@provides
def logits(forward_pass: Pass) -> Tensor:
    """(N, K) float32 logits of the training images."""
    return forward_pass.logits


@provides
def labels(images: Any) -> Tensor:
    """(N,) int64 labels of the training images, as the network was fitted to them."""
    return images.labels.cpu()


@provides
def features(forward_pass: Pass) -> Tensor:
    """(N, D) float32, what the last linear layer is given.

    Raises:
        ValueError: no linear layer is called.
    """
    if forward_pass.features is None:
        raise ValueError("no nn.Linear is called in the network's pass, so it has no features in front of one")
    return forward_pass.features


@provides
def maps(forward_pass: Pass) -> Tensor:
    """(N, h, w) normalised class activation maps of the predicted class.

    Raises:
        ValueError: the closed form does not hold for the network.
    """
    if forward_pass.maps is None:
        raise ValueError(forward_pass.no_maps)
    return forward_pass.maps


@provides
def training_images(images: Any) -> int:
    """Give the number of training images."""
    return len(images)
