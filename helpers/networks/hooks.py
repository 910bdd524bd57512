"""Read the outputs of a network's layers, and find the layers that put out maps."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from helpers.networks import Undefined

_RESNET_STAGES = ("layer1", "layer2", "layer3", "layer4")
# Layers that are not taken as the last layer of maps, though they put out maps.
_POOLING = (
    nn.AdaptiveAvgPool2d,
    nn.AvgPool2d,
    nn.AdaptiveMaxPool2d,
    nn.MaxPool2d,
    nn.Flatten,
    nn.Identity,
    nn.Dropout,
    nn.Dropout2d,
)


def prepared(pixels: Tensor, normalise: Any, device: torch.device | str) -> Tensor:
    """Turn (B, 3, S, S) uint8 images into the input of a network, channels last.

    Args:
        pixels: (B, 3, S, S) uint8, the images.
        normalise: function of the pixels, which the network was trained with.
        device: device of the network.
    """
    return normalise(pixels.to(device)).contiguous(memory_format=torch.channels_last)


@contextmanager
def captured_output(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the output of each call of a layer while the context is open."""
    outputs: list[Tensor] = []

    def collect(module: nn.Module, inputs: Any, output: Tensor) -> None:
        # A copy, since a later in-place layer would overwrite the output.
        outputs.append(output.clone())

    with layer.register_forward_hook(collect):
        yield outputs


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put every module in evaluation mode, and at the end back in its earlier mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def features_and_logits(
    model: nn.Module, layer: nn.Module, images: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute a layer's maps and the logits in one pass.

    Args:
        model: a network in evaluation mode.
        layer: one of its modules; of several calls the last counts.
        images: (B, 3, S, S) input.

    Returns:
        The maps (B, C, h, w) and the logits (B, K).
    """
    with captured_output(layer) as outputs:
        logits = model(images)
    return outputs[-1], logits


def stage_layers(network: nn.Module) -> dict[str, nn.Module]:
    """The four stages of a ResNet by name, in the order of their calls.

    Args:
        network: of ``resnet.build``.

    Raises:
        Undefined: for another network.
    """
    if not all(hasattr(network, name) for name in _RESNET_STAGES):
        raise Undefined(f"{type(network).__name__} has not the four stages of a ResNet")
    return {name: network.get_submodule(name) for name in _RESNET_STAGES}


@torch.inference_mode()
def last_maps_layer(network: nn.Module, example: Tensor) -> nn.Module:
    """Find the layer whose maps a network pools and classifies: the last one called.

    A layer of maps puts out more than one pixel and does not pool. Of nested modules
    with the same output the outermost counts, which ends last. If the network turns
    maps into tokens, (B, N, C) or (B, h, w, C), it does not classify these maps, and
    only layers of maps after the tokens count.

    Args:
        network: in evaluation mode.
        example: (B, 3, S, S) input.

    Raises:
        Undefined: if there is none.
    """
    layers: list[nn.Module] = []

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        # Layers that work on windows of the images put out a row per window.
        is_tensor = isinstance(output, Tensor) and output.ndim in (3, 4)
        if module is network or not is_tensor or len(output) != len(example):
            return
        if output.ndim == 4 and output.shape[2] == output.shape[3] > 1:
            if not isinstance(module, _POOLING):
                layers.append(module)
        # Axes 1 and 2 are N and C, or h and w; pooled maps have one of length 1.
        elif min(output.shape[1:3]) > 1:
            layers.clear()  # the network does not classify these maps

    with register_module_forward_hook(note):
        network(example)
    if not layers:
        raise Undefined(
            f"no layer of {type(network).__name__} puts out maps (B, C, h, w) of more "
            "than one pixel that it classifies, so there is no class activation map"
        )
    return layers[-1]
