"""The layers of a network as the norms see them: kernels in the order they are applied, with batch normalisation folded in."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from helpers.measures.evidence import provides
from helpers.networks.hooks import evaluation_mode

# Functions that apply a matrix, so that one that no called nn.Linear owns is found as well (the projections of an attention).
_MATRIX_PRODUCTS = {"linear", "matmul", "__matmul__", "mm", "addmm", "multi_head_attention_forward"}
_SUMS = {"add", "add_", "__add__", "__radd__", "__iadd__"}
_NORMALISATIONS = (nn.BatchNorm2d, nn.SyncBatchNorm)


@dataclass(frozen=True)
class Layer:
    """One convolution or linear layer; what is a tensor is a float64 copy on the CPU."""

    name: str  # for messages only
    kind: str  # "conv" or "linear"
    weight: Tensor  # (c_out, c_in / groups, kh, kw) or (out, in), batch normalisation folded in
    bias: Tensor | None  # (c_out,), the same
    kernel: Tensor  # the weight as it is applied, nothing folded in
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    padding_mode: str = "zeros"
    input_size: tuple[int, int] | None = None  # height and width, None for a linear layer
    batch_norm: bool = False  # whether one was folded in
    shortcut: bool = False  # whether it is the projection of a residual block's shortcut, see ``trace_layers``


def folded(kernel: Tensor, bias: Tensor | None, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Fold a batch normalisation in evaluation mode into the layer before it: ``W gamma / s`` and ``beta + (b - mean) gamma / s``.

    Here s is ``sqrt(var + eps)`` of the running statistics; without a scale and a shift of its own gamma is 1 and beta 0.

    Args:
        kernel: (c_out, ...).
        bias: (c_out,), None for zeros.
        norm: with running statistics.

    Returns:
        The folded kernel and bias, float64 on the CPU.
    """
    mean, variance = _copy(norm.running_mean), _copy(norm.running_var)
    scale = (1 if norm.weight is None else _copy(norm.weight)) / (variance + norm.eps).sqrt()
    shift = (0 if norm.bias is None else _copy(norm.bias)) - mean * scale
    weight = _copy(kernel) * scale.view(-1, *[1] * (kernel.ndim - 1))
    return weight, shift if bias is None else shift + _copy(bias) * scale


@torch.no_grad()
def trace_layers(network: nn.Module, example: Tensor) -> list[Layer]:
    """List the convolutions and linear layers of a network in the order of their first call on an example.

    A layer is found by its type, ``nn.Conv2d`` or ``nn.Linear``, and taken with the kernel that it applies, which a parametrisation
    may have computed. Matrices that are applied without a call of a module (the projections of an attention) are linear layers as
    well. The batch normalisation that takes the very tensor that a convolution gives is folded into it; others are no layers.

    A convolution is marked as a projection of a shortcut when its kernel is 1x1, another convolution has the same input, and its
    output, normalised or not, enters a sum. Modes, gradients and hooks are left as they were.

    Args:
        network: a classifier; it is traced in evaluation mode.
        example: (1, 3, S, S) as the network expects it, on its device.

    Returns:
        The layers that the pass uses. A convolution that it does not use has no input size; it is left out, with a warning.

    Raises:
        ValueError: no layer is used.
    """
    trace = Trace(network)
    with evaluation_mode(network), trace:
        network(example)
    if not trace.found:
        raise ValueError("the network uses no nn.Conv2d and no nn.Linear, so it has no layers whose norms could be taken")
    unused = [name for name, module in network.named_modules() if isinstance(module, nn.Conv2d) and module not in trace.found]
    if unused:
        warnings.warn(f"convolutions that the network does not use are left out: {', '.join(unused)}", stacklevel=2)
    return [trace.layer(key) for key in trace.found]


@torch.no_grad()
def normalised_convolutions(network: nn.Module, example: Tensor) -> list[tuple[nn.Conv2d, nn.BatchNorm2d]]:
    """Pair each convolution with the batch normalisation that ``trace_layers`` folds into it, in the order of their first call."""
    trace = Trace(network)
    with evaluation_mode(network), trace:
        network(example)
    return [(use.module, use.norm) for use in trace.found.values() if use.norm is not None]


@dataclass
class _Use:
    name: str
    module: nn.Module | None  # None for a matrix that no module owns
    kernel: Tensor
    given: Tensor | None = None
    output: Tensor | None = None
    norm: nn.Module | None = None
    normalised: Tensor | None = None


class Trace(TorchFunctionMode):
    """What one forward pass does, while the context is open."""

    def __init__(self, network: nn.Module) -> None:
        """Prepare to watch a network."""
        super().__init__()
        self.found: dict[Any, _Use] = {}  # by module, or by the number of a matrix that no module owns
        self._names = {module: name for name, module in network.named_modules()}
        self._matrices = {id(value): (name, None) for name, value in network.named_parameters() if value.ndim == 2}
        linear = {module: name for module, name in self._names.items() if isinstance(module, nn.Linear)}
        self._matrices |= {id(module.weight): (name, module) for module, name in linear.items() if isinstance(module.weight, nn.Parameter)}
        self._outputs: dict[int, _Use] = {}  # of convolutions, by identity; _Use keeps them alive, so that none is given twice
        self._summed: list[Tensor] = []
        self._kernel: Tensor | None = None
        self._hooks: list[Any] = []

    def __enter__(self) -> "Trace":
        """Put a hook on every convolution, linear layer and batch normalisation."""
        for module in self._names:
            if isinstance(module, nn.Conv2d | nn.Linear):
                self._hooks.append(module.register_forward_hook(self._called))
            elif isinstance(module, _NORMALISATIONS):
                self._hooks.append(module.register_forward_hook(self._normalised))
        return super().__enter__()

    def __exit__(self, *fault: object) -> None:
        """Take all hooks away."""
        for hook in self._hooks:
            hook.remove()
        super().__exit__(*fault)

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Run a function of torch, and keep what it says about the layers."""
        name, tensors = getattr(function, "__name__", ""), [*args, *(kwargs or {}).values()]
        if name == "conv2d":
            self._kernel = tensors[1]
        elif name in _SUMS:
            self._summed += [value for value in tensors if isinstance(value, Tensor)]
        elif name in _MATRIX_PRODUCTS:
            for value in tensors:
                if isinstance(value, nn.Parameter) and id(value) in self._matrices:
                    label, module = self._matrices[id(value)]
                    self.found.setdefault(id(value) if module is None else module, _Use(label, module, value))
        return function(*args, **(kwargs or {}))

    def _called(self, module: nn.Module, given: tuple, output: Tensor) -> None:
        if isinstance(module, nn.Linear):
            self.found.setdefault(module, _Use(self._names[module], module, module.weight))
        elif module not in self.found:
            kernel = module.weight if self._kernel is None else self._kernel
            self.found[module] = use = _Use(self._names[module], module, kernel, given[0], output)
            self._outputs[id(output)] = use
        self._kernel = None

    def _normalised(self, module: nn.Module, given: tuple, output: Tensor) -> None:
        use = self._outputs.get(id(given[0]))
        if use is not None and use.norm is None and module.running_mean is not None:
            use.norm, use.normalised = module, output

    def layer(self, key: Any) -> Layer:
        """Write down one of the layers that were found."""
        use = self.found[key]
        module, kernel = use.module, _copy(use.kernel)
        bias = None if module is None or module.bias is None else _copy(module.bias)
        weight = kernel
        if use.given is None:
            return Layer(use.name, "linear", weight, bias, kernel)
        if use.norm is not None:
            weight, bias = folded(kernel, bias, use.norm)
        size, layout = tuple(use.given.shape[-2:]), (module.stride, module.dilation, module.groups, module.padding_mode)
        return Layer(use.name, "conv", weight, bias, kernel, *layout, size, use.norm is not None, self._is_shortcut(use))

    def _is_shortcut(self, use: _Use) -> bool:
        shared = any(other.given is use.given for other in self.found.values() if other is not use)
        ends = (use.output, use.normalised)
        added = any(value is end for value in self._summed for end in ends if end is not None)
        return tuple(use.kernel.shape[-2:]) == (1, 1) and shared and added


def _copy(values: Tensor) -> Tensor:
    return values.detach().to("cpu", torch.float64, copy=True)


def check_same_layout(layers: Sequence[Layer], others: Sequence[Layer]) -> None:
    """Make sure that two networks have the same layers in the same order.

    Raises:
        ValueError: another number of layers, or one of another kind or shape.
    """
    if len(layers) != len(others):
        raise ValueError(f"the network has {len(layers)} layers and its initial state {len(others)}; they must be one network's")
    for layer, other in zip(layers, others, strict=True):
        if layer.kind != other.kind or layer.weight.shape != other.weight.shape:
            shapes = f"{tuple(layer.weight.shape)} and at the start {tuple(other.weight.shape)}"
            raise ValueError(f"the layer {layer.name} has a {layer.kind} weight of shape {shapes}; they must be equal")


@provides
def layers(network: nn.Module, example: Tensor) -> list[Layer]:
    """Layers of the network, see ``trace_layers``."""
    return trace_layers(network, example)


@provides
def initial_layers(initial_network: nn.Module | None, example: Tensor, layers: list[Layer]) -> list[Layer]:
    """Layers of the network as it was before training, one for each of ``layers``."""
    if initial_network is None:
        raise ValueError("no initial weights were given, so there is no distance from them")
    device = next((value.device for value in initial_network.parameters()), example.device)
    initial = trace_layers(initial_network, example.to(device))
    check_same_layout(layers, initial)
    return initial
