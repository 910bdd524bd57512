"""What a network's layers put out, seen in one pass, and which layers there are to look at."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

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
    """Turn (B, 3, S, S) uint8 images into input of a network, on its device, channels last."""
    return normalise(pixels.to(device)).contiguous(memory_format=torch.channels_last)


@contextmanager
def captured_output(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Collect what each call of a layer puts out while the context is open; the hook is removed whatever happens inside."""
    outputs: list[Tensor] = []
    # Copied, because an in-place layer behind this one would overwrite what was captured.
    with layer.register_forward_hook(
        lambda module, given, output: outputs.append(output.clone())
    ):
        yield outputs


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put every module in evaluation mode, and each back in the mode it was in, whatever happens inside."""
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
    """Run one pass in evaluation mode, call ``seen`` with each module, its input and output, and give the network's output back."""
    with evaluation_mode(model), ExitStack() as hooks:
        for module in model.modules():
            hooks.enter_context(module.register_forward_hook(seen))
        return model(images)


def features_and_logits(
    model: nn.Module, layer: nn.Module, images: Tensor
) -> tuple[Tensor, Tensor]:
    """A layer's last output (B, C, h, w), else ValueError, and logits (B, K), of one pass in evaluation mode."""
    with evaluation_mode(model), captured_output(layer) as outputs:
        logits = model(images)
    if not outputs:
        raise ValueError(
            f"the layer {type(layer).__name__} is not called in the network's forward pass; choose one of its own modules"
        )
    if outputs[-1].ndim != 4:
        raise ValueError(
            f"the layer {type(layer).__name__} puts out shape {tuple(outputs[-1].shape)}; a CAM needs (B, C, h, w)"
        )
    return outputs[-1], logits


def stage_layers(network: nn.Module, example: Tensor) -> dict[str, nn.Module]:
    """The four stages of a ResNet; of another network the last layer called at each resolution above one pixel, in the order of calls."""
    if of_resnet := [
        (name, layer)
        for name, layer in network.named_children()
        if name in ("layer1", "layer2", "layer3", "layer4")
    ]:
        return dict(of_resnet)
    maps, _ = _called(network, example)
    names, last = (
        {module: name for name, module in network.named_modules()},
        {side: module for module, side in maps.items()},
    )
    return {names[module]: module for module in maps if module in last.values()}


def last_called(
    network: nn.Module, example: Tensor
) -> tuple[nn.Module | None, nn.Linear | None]:
    """Find, in one pass, the last layer that puts out maps of more than one pixel and is no pooling, and the last linear layer called.

    Of nested modules with the same output the outermost counts. Where the network goes on with tokens, (B, N, C) or (B, h, w, C), the maps
    before them are not what it classifies. Each is None where there is none.
    """
    maps, linear = _called(network, example)
    return ([*maps] or [None])[-1], (linear or [None])[-1]


@torch.inference_mode()
def _called(
    network: nn.Module, example: Tensor
) -> tuple[dict[nn.Module, int], list[nn.Linear]]:
    """The layers of maps with their side, and the linear layers, in the order of their last calls."""
    maps: dict[nn.Module, int] = {}
    linear: list[nn.Linear] = []

    def seen(module: nn.Module, given: Any, output: Any) -> None:
        if (
            module is network
            or not isinstance(output, Tensor)
            or len(output) != len(example)
        ):
            return
        if output.ndim == 4 and output.shape[2] == output.shape[3] > 1:
            if not isinstance(module, _POOLING):
                maps.pop(module, None)
                maps[module] = output.shape[2]
        elif output.ndim in (3, 4) and min(output.shape[1], output.shape[2]) > 1:
            maps.clear()
        if isinstance(module, nn.Linear):
            linear.append(module)

    observe(network, example, seen)
    return maps, linear


def last_maps_layer(network: nn.Module, example: Tensor) -> nn.Module:
    """Find the layer whose maps are pooled and classified, see ``last_called``. Raises ValueError where there is none."""
    layer, _ = last_called(network, example)
    if layer is None:
        told = f"no layer of {type(network).__name__} puts out maps (B, C, h, w) of more than one pixel that it classifies"
        raise ValueError(f"{told}, so there is no class activation map")
    return layer
