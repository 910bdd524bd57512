"""Outputs of a network's layers in one pass, and which layers have maps."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_STAGES = ("layer1", "layer2", "layer3", "layer4")  # of a ResNet
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
    """Turn (B, 3, S, S) uint8 images into input of a network, channels last."""
    return normalise(pixels.to(device)).contiguous(memory_format=torch.channels_last)


@contextmanager
def captured_output(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the output of each call of a layer while the context is open."""
    outputs: list[Tensor] = []

    def collect(module: nn.Module, inputs: Any, output: Tensor) -> None:
        # A copy, since an in-place layer behind this one would overwrite it.
        outputs.append(output.clone())

    with layer.register_forward_hook(collect):
        yield outputs


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put every module in evaluation mode, and back in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def observe(
    model: nn.Module, images: Tensor, seen: Callable[[nn.Module, Any, Any], None]
) -> Any:
    """Run one pass in evaluation mode and look at each module.

    Args:
        model: any network.
        images: its input.
        seen: is called with each module, its inputs and its output.

    Returns:
        The network's output.
    """
    with evaluation_mode(model), ExitStack() as hooks:
        for module in model.modules():
            hooks.enter_context(module.register_forward_hook(seen))
        return model(images)


def features_and_logits(
    model: nn.Module, layer: nn.Module, images: Tensor
) -> tuple[Tensor, Tensor]:
    """A layer's last output and the logits of one pass in evaluation mode.

    Args:
        model: a network.
        layer: one of its modules.
        images: (B, 3, S, S) input.

    Returns:
        (B, C, h, w) and (B, K).

    Raises:
        ValueError: where the layer is not called or puts out no maps.
    """
    with evaluation_mode(model), captured_output(layer) as outputs:
        logits = model(images)
    kind = type(layer).__name__
    if not outputs:
        raise ValueError(
            f"the layer {kind} is not called in the network's forward pass; choose one "
            "of its own modules"
        )
    if outputs[-1].ndim != 4:
        raise ValueError(
            f"the layer {kind} puts out shape {tuple(outputs[-1].shape)}; a CAM needs "
            "(B, C, h, w)"
        )
    return outputs[-1], logits


def stage_layers(network: nn.Module, example: Tensor) -> dict[str, nn.Module]:
    """The stages of a network, by name in the order of their calls.

    Args:
        network: in evaluation mode.
        example: (B, 3, S, S) input.

    Returns:
        The four stages of a ResNet; of another network the last layer called at each
        resolution above one pixel.
    """
    children = dict(network.named_children())
    stages = {name: children[name] for name in _STAGES if name in children}
    if stages:
        return stages
    maps, _ = _called(network, example)
    last_at_side = {side: module for module, side in maps.items()}
    names = {module: name for name, module in network.named_modules()}
    return {names[module]: module for module in maps if module in last_at_side.values()}


def last_called(
    network: nn.Module, example: Tensor
) -> tuple[nn.Module | None, nn.Linear | None]:
    """Find the last layer of maps and the last linear layer called in a pass.

    A layer of maps puts out more than one pixel and is no pooling; of nested modules
    with the same output the outermost counts. Where the network goes on with tokens,
    (B, N, C) or (B, h, w, C), the maps before them are not what it classifies.

    Args:
        network: in evaluation mode.
        example: (B, 3, S, S) input.

    Returns:
        Both, None where there is none.
    """
    maps, linear = _called(network, example)
    last_maps = list(maps)[-1] if maps else None
    last_linear = linear[-1] if linear else None
    return last_maps, last_linear


@torch.inference_mode()
def _called(
    network: nn.Module, example: Tensor
) -> tuple[dict[nn.Module, int], list[nn.Linear]]:
    """Layers of maps with their side, and linear layers, by their last calls."""
    maps: dict[nn.Module, int] = {}
    linear: list[nn.Linear] = []

    def seen(module: nn.Module, inputs: Any, output: Any) -> None:
        is_of_batch = isinstance(output, Tensor) and len(output) == len(example)
        if module is network or not is_of_batch:
            return
        if _is_map(output):
            if not isinstance(module, _POOLING):
                maps.pop(module, None)  # so that the last call counts
                maps[module] = output.shape[2]
        elif output.ndim in (3, 4) and min(output.shape[1], output.shape[2]) > 1:
            maps.clear()
        if isinstance(module, nn.Linear):
            linear.append(module)

    observe(network, example, seen)
    return maps, linear


def _is_map(output: Tensor) -> bool:
    """Whether an output is (B, C, h, h) of more than one pixel."""
    return output.ndim == 4 and output.shape[2] == output.shape[3] > 1


def last_maps_layer(network: nn.Module, example: Tensor) -> nn.Module:
    """Find the layer whose maps are pooled and classified, see ``last_called``.

    Raises:
        ValueError: where there is none.
    """
    layer, _ = last_called(network, example)
    if layer is None:
        raise ValueError(
            f"no layer of {type(network).__name__} puts out maps (B, C, h, w) of more "
            "than one pixel that it classifies, so there is no class activation map"
        )
    return layer
