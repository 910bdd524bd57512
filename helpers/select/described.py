"""What a network is, read off the network itself: a ResNet by depth, channels and strides, any other by its layers."""

import re
from collections import Counter
from typing import NamedTuple

from torch import nn

from helpers.report.style import count

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_BLOCK = re.compile(r"layer(\d+)\.\d+$")


class Described(NamedTuple):
    """A network in words."""

    words: str
    residual: bool  # a ResNet, of any depth, width and stem


def described(network: nn.Module) -> Described:
    """A ResNet is told by its stages of blocks with shortcuts ("layer1.0"); its depth counts the convolutions of blocks, stem and head."""
    modules = dict(network.named_modules())
    convolutions = {name: module for name, module in modules.items() if isinstance(module, nn.Conv2d)}
    blocks = [name for name in modules if _BLOCK.search(name)]
    of_block = {block: [name for name in convolutions if name.startswith(f"{block}.") and not _shortcut(name, block)] for block in blocks}
    if not blocks or not convolutions or not all(len(names) in (2, 3) for names in of_block.values()):
        return Described(_by_layers(network), False)
    first = next(iter(convolutions.values()))
    depth = sum(map(len, of_block.values())) + 2
    last = _BLOCK.search(blocks[-1])[1]
    strides = [max(convolutions[name].stride[0] for name in of_block[block]) for block in blocks if _BLOCK.search(block)[1] == last]
    pooled = ", max-pool" if any(isinstance(module, nn.MaxPool2d) for module in modules.values()) else ""
    kernel = "x".join(map(str, first.kernel_size))
    words = f"ResNet{depth}, {first.out_channels} channels after a {kernel} stem of stride {first.stride[0]}{pooled}"
    return Described(f"{words}, last stage of stride {strides[0]}", True)


def _shortcut(name: str, block: str) -> bool:
    return any(part in name.removeprefix(f"{block}.") for part in ("downsample", "shortcut"))


def _by_layers(network: nn.Module) -> str:
    kinds = Counter()
    for module in network.modules():
        kinds["convolution"] += isinstance(module, _CONVOLUTIONS)
        kinds["attention layer"] += "Attention" in type(module).__name__
        kinds["linear layer"] += isinstance(module, nn.Linear)
    layers = ", ".join(count(number, kind) for kind, number in kinds.items() if number)
    weights = sum(parameter.numel() for parameter in network.parameters())
    return f"{type(network).__name__} of {layers or 'no convolution and no linear layer'}, {weights / 1e6:.1f} million weights"
