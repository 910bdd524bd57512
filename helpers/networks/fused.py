"""A copy of a network for passes without gradients: each batch norm folded into the convolution before it."""

import copy
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.nn.utils.parametrize import is_parametrized

from helpers.networks.hooks import evaluation_mode, observe

_EXACT = 1e-5  # of the largest logit, by which a copy may differ


@torch.no_grad()
def fused(network: nn.Module, example: Tensor) -> nn.Module:
    """Copy of a network in evaluation mode without the batch norms that directly follow a convolution: the same logits, in less time.

    Modules keep their names; an identity stands for each folded norm. The network itself, left as it is, comes back where nothing can be
    folded, or where the copy's logits of the example, (1, 3, S, S), differ by more than 1e-5 of the largest.
    """
    pairs, expected = _convolutions_and_norms(network, example)
    if not pairs:
        return network
    try:
        made = _folded(network, pairs)
        with evaluation_mode(made):
            found = made(example)
    except (AttributeError, RuntimeError, TypeError):  # it cannot be copied, or reads its norms otherwise than by calling them
        return network
    near = torch.allclose(found, expected, rtol=0, atol=_EXACT * float(expected.abs().max()), equal_nan=True)
    return made if near else network


def _convolutions_and_norms(network: nn.Module, example: Tensor) -> tuple[list[tuple[nn.Conv2d, nn.BatchNorm2d]], Any]:
    """Convolutions with the batch norm that each is followed by, found in one pass, and the output beside them."""
    calls: Counter[nn.Module] = Counter()
    outputs: dict[int, tuple[nn.Conv2d, Tensor]] = {}  # the tensors are kept, so that no other takes the place of one
    pairs: list[tuple[nn.Conv2d, nn.BatchNorm2d]] = []

    def seen(module: nn.Module, given: Any, output: Any) -> None:
        calls[module] += 1
        if isinstance(module, nn.Conv2d) and not is_parametrized(module):
            outputs[id(output)] = module, output
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None and id(given[0]) in outputs:
            pairs.append((outputs[id(given[0])][0], module))

    logits = observe(network, example, seen)
    return [pair for pair in pairs if all(calls[module] == 1 for module in pair)], logits


def _folded(network: nn.Module, pairs: list[tuple[nn.Conv2d, nn.BatchNorm2d]]) -> nn.Module:
    """A copy in which an identity stands for each norm; weights that are folded are never copied as they were."""
    folded = {
        convolution: fuse_conv_bn_weights(
            convolution.weight, convolution.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
        )
        for convolution, norm in pairs
    }
    copies: dict[int, Any] = {id(norm): nn.Identity() for _, norm in pairs}
    copies |= {id(convolution.weight): weight for convolution, (weight, _) in folded.items()}
    made = copy.deepcopy(network, copies).eval()
    for convolution, (_, bias) in folded.items():
        copies[id(convolution)].bias = bias
    return made
