"""The layers of any network as the norms see them: kernels in the order they are applied, with batch normalisation folded in."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.overrides import TorchFunctionMode

from helpers.measures.evidence import PROVIDERS, provides
from helpers.networks.faults import is_of_machine
from helpers.networks.hooks import observe

# Functions that apply a matrix, so that one that no called nn.Linear owns is found as well (the projections of an attention).
_MATRIX_PRODUCTS = {
    "linear",
    "matmul",
    "__matmul__",
    "mm",
    "addmm",
    "multi_head_attention_forward",
}


@dataclass(frozen=True)
class Layer:
    """One convolution or linear layer; what is a tensor is a float64 copy on the CPU."""

    weight: Tensor  # (c_out, c_in / groups, kh, kw) or (out, in), batch normalisation folded in
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    input_size: tuple[int, int] = (
        1,
        1,
    )  # height and width; of a linear layer one pixel


@dataclass
class _Use:
    """What a pass does with a weight, and for a convolution what follows."""

    kernel: Tensor  # which a parametrisation may have computed
    module: nn.Conv2d | None = None
    options: tuple = ()  # stride, dilation, groups, input size
    output: Tensor | None = None
    norm: nn.Module | None = None


class _Trace(TorchFunctionMode):
    """What one forward pass does, while the context is open and ``called`` sees each module."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.found: dict[Any, _Use] = {}  # by convolution, or by the number of a matrix
        self._matrices = {
            id(value) for value in network.parameters() if value.ndim == 2
        }
        self._kernel: Tensor | None = None

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> Any:
        name, tensors = (
            getattr(function, "__name__", ""),
            [*args, *(kwargs or {}).values()],
        )
        if name == "conv2d":
            self._kernel = tensors[1]
        elif name in _MATRIX_PRODUCTS:
            for place, value in enumerate(tensors):
                if id(value) in self._matrices or (name == "linear" and place == 1):
                    self.found.setdefault(id(value), _Use(value))
        return function(*args, **(kwargs or {}))

    def called(self, module: nn.Module, given: tuple, output: Any) -> None:
        if isinstance(module, nn.Conv2d):
            kernel = module.weight if self._kernel is None else self._kernel
            options = (
                module.stride,
                module.dilation,
                module.groups,
                tuple(given[0].shape[-2:]),
            )
            self.found.setdefault(module, _Use(kernel, module, options, output))
            self._kernel = None
        elif (
            isinstance(module, (nn.BatchNorm2d, nn.SyncBatchNorm))
            and module.running_mean is not None
        ):
            for use in self.found.values():
                if use.output is given[0] and use.norm is None:
                    use.norm = module


@torch.no_grad()
def _traced(network: nn.Module, example: Tensor) -> tuple[dict[Any, _Use], Tensor]:
    with _Trace(network) as trace:
        logits = observe(network, example, trace.called)
    return trace.found, logits


def trace_layers(network: nn.Module, example: Tensor) -> list[Layer]:
    """List the convolutions and linear layers of a network in the order of their first call on an example, (1, 3, S, S).

    A matrix that is applied without a call of a module is one too. The batch normalisation that takes the very tensor that a convolution
    gives is folded into it.
    """
    found, _ = _traced(network, example)
    if not found:
        raise ValueError(
            "the network uses no nn.Conv2d and no nn.Linear, so it has no layers whose norms could be taken"
        )
    layers = []
    for use in found.values():
        weight = (
            _copy(use.kernel)
            if use.norm is None
            else folded(use.kernel, use.module.bias, use.norm)[0]
        )
        layers.append(Layer(weight, *use.options))
    return layers


def _copy(values: Tensor, precision: torch.dtype = torch.float64) -> Tensor:
    return values.detach().to("cpu", precision, copy=True)


def folded(
    kernel: Tensor,
    bias: Tensor | None,
    norm: nn.Module,
    precision: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """Fold a batch normalisation in evaluation mode into the kernel and bias before it, on the CPU."""
    values = (
        kernel,
        bias,
        norm.running_mean,
        norm.running_var,
        norm.eps,
        norm.weight,
        norm.bias,
    )
    weight, offset = fuse_conv_bn_weights(
        *(
            _copy(value, precision) if isinstance(value, Tensor) else value
            for value in values
        )
    )
    return weight.detach(), offset.detach()


@torch.no_grad()
def folded_copy(
    network: nn.Module,
    example: Tensor,
    precision: torch.dtype = torch.float64,
    tolerance: float = 1e-3,
) -> nn.Module:
    """Copy a network with every batch normalisation folded into the convolution before it, or else as the scale and shift that it applies.

    A kernel that is computed from others takes nothing in. ValueError where a logit of the example differs by more than a tolerance, as a
    fraction of the largest.
    """
    made = copy.deepcopy(network).eval()
    uses, expected = _traced(made, example)
    before = {
        use.norm: use.module
        for use in uses.values()
        if use.norm is not None and use.kernel is use.module.weight
    }
    for name, norm in [
        item
        for item in made.named_modules()
        if isinstance(item[1], _NormBase) and item[1].running_mean is not None
    ]:
        if (layer := before.get(norm)) is not None:
            layer.weight, layer.bias = (
                nn.Parameter(value.to(layer.weight))
                for value in folded(layer.weight, layer.bias, norm, precision)
            )
            norm.weight = norm.bias = None
        else:
            scale, shift = folded(torch.ones(norm.num_features, 1), None, norm)
            norm.weight, norm.bias = (
                nn.Parameter(scale[:, 0].to(norm.running_var)),
                nn.Parameter(shift.to(norm.running_var)),
            )
        norm.running_mean, norm.running_var, norm.eps = (
            torch.zeros_like(norm.running_mean),
            torch.ones_like(norm.running_var),
            0.0,
        )
        if layer is not None and type(norm) is nn.BatchNorm2d:
            made.set_submodule(name, nn.Identity())
    if not torch.allclose(
        made(example), expected, rtol=0, atol=tolerance * float(expected.abs().max())
    ):
        raise ValueError(
            "batch normalisation cannot be folded into the convolutions: the network would give other logits"
        )
    return made


@provides
def fused_network(network: nn.Module, example: Tensor) -> nn.Module:
    """What images are passed through, in less time: a ``folded_copy`` with the same logits, or the network itself where there is none."""
    try:
        return folded_copy(network, example, example.dtype, 1e-5)
    except (
        AttributeError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as fault:  # it cannot be copied, or reads its norms otherwise than by calling them
        if is_of_machine(fault):
            raise
        return network


PROVIDERS |= {
    "layers": trace_layers,
    "flat_network": lambda network, example: folded_copy(network, example),
}


@provides
def initial_layers(initial_network: nn.Module | None, example: Tensor) -> list[Layer]:
    """Layers of the network as it was before training."""
    if initial_network is None:
        raise ValueError(
            "no initial weights were given, so there is no distance from them"
        )
    device = next(
        (value.device for value in initial_network.parameters()), example.device
    )
    return trace_layers(initial_network, example.to(device))
