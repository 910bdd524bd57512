"""What a network is, read off the network itself: a ResNet by depth, channels and strides, any other by its class and size."""

import re
from typing import NamedTuple

from torch import nn

_BLOCK = re.compile(r"layer\d+\.\d+$")


class Described(NamedTuple):
    """A network in words."""

    words: str
    residual: bool  # a ResNet, of any depth, width and stem


def described(network: nn.Module) -> Described:
    """A ResNet has stages of blocks ("layer1.0") of two or three convolutions and a shortcut; with stem and head these make its depth."""
    modules = dict(network.named_modules())
    convolutions = {name: module for name, module in modules.items() if isinstance(module, nn.Conv2d)}
    blocks = {name: _of_block(name, convolutions) for name in modules if _BLOCK.search(name)}
    if not blocks or not all(len(inner) in (2, 3) for inner in blocks.values()):
        weights = sum(parameter.numel() for parameter in network.parameters())
        return Described(f"{type(network).__name__} of {weights / 1e6:.3g} million weights", False)
    first, stage = next(iter(convolutions.values())), list(blocks)[-1].rpartition(".")[0]
    stride = max(module.stride[0] for name, inner in blocks.items() if name.startswith(f"{stage}.") for module in inner)
    pooled = ", max-pool" if any(isinstance(module, nn.MaxPool2d) for module in modules.values()) else ""
    stem = f"a {'x'.join(map(str, first.kernel_size))} stem of stride {first.stride[0]}{pooled}"
    depth = sum(map(len, blocks.values())) + 2
    return Described(f"ResNet{depth}, {first.out_channels} channels after {stem}, last stage of stride {stride}", True)


def _of_block(block: str, convolutions: dict[str, nn.Conv2d]) -> list[nn.Conv2d]:
    """Convolutions of a block, that of its shortcut left out."""
    return [module for name, module in convolutions.items() if name.startswith(f"{block}.") and not re.search("downsample|shortcut", name)]
