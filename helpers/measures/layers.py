"""Kernels of a network in the order of their calls, batch normalisation folded in."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.overrides import TorchFunctionMode

from helpers.measures.evidence import provides
from helpers.networks.faults import is_of_machine
from helpers.networks.hooks import observe

# Functions that multiply by a matrix. A weight may be used without a call of its
# nn.Linear: attention multiplies by its projections itself.
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
    """One convolution or linear layer; its weight is a float64 copy on the CPU."""

    weight: (
        Tensor  # (c_out, c_in / groups, kh, kw) or (out, in), normalisation folded in
    )
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    input_size: tuple[int, int] = (1, 1)  # height and width; (1, 1) of a linear layer


@dataclass
class _Use:
    """A weight that a pass applies, and for a convolution what follows it."""

    kernel: Tensor  # which a parametrisation may have computed
    convolution: nn.Conv2d | None = None
    input_size: tuple[int, int] = (1, 1)
    output: Tensor | None = None
    norm: nn.Module | None = None

    def layer(self) -> Layer:
        """The layer, with its normalisation folded in."""
        if self.norm is None:
            weight = _copy(self.kernel, torch.float64)
        else:
            weight, _ = folded(self.kernel, self.convolution.bias, self.norm)
        if self.convolution is None:
            return Layer(weight)
        return Layer(
            weight,
            self.convolution.stride,
            self.convolution.dilation,
            self.convolution.groups,
            self.input_size,
        )


class _Trace(TorchFunctionMode):
    """Uses of weights in one forward pass, while the context is open."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.uses: dict[Any, _Use] = {}  # by convolution, or by the id of a matrix
        self._matrices = {
            id(value) for value in network.parameters() if value.ndim == 2
        }
        # Kernel of the latest conv2d, whose module ``see_module`` gets right after it.
        self._kernel: Tensor | None = None

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        values = [*args, *kwargs.values()]
        if name == "conv2d":
            self._kernel = values[1]
        if name == "linear":  # the second argument is the weight
            self.uses.setdefault(id(values[1]), _Use(values[1]))
        if name in _MATRIX_PRODUCTS:
            for value in values:
                if id(value) in self._matrices:
                    self.uses.setdefault(id(value), _Use(value))
        return function(*args, **kwargs)

    def see_module(self, module: nn.Module, inputs: tuple, output: Any) -> None:
        """Add a convolution to the uses, or add a normalisation to its convolution."""
        if isinstance(module, nn.Conv2d):
            kernel = module.weight if self._kernel is None else self._kernel
            height, width = inputs[0].shape[-2:]
            use = _Use(kernel, module, (height, width), output)
            self.uses.setdefault(module, use)
            self._kernel = None
        elif isinstance(module, (nn.BatchNorm2d, nn.SyncBatchNorm)):
            if module.running_mean is None:
                return
            for use in self.uses.values():
                if use.output is inputs[0] and use.norm is None:
                    use.norm = module


@torch.no_grad()
def _trace_uses(network: nn.Module, example: Tensor) -> tuple[list[_Use], Tensor]:
    """Uses of weights in the order of their first calls, and the logits."""
    with _Trace(network) as trace:
        logits = observe(network, example, trace.see_module)
    return list(trace.uses.values()), logits


def trace_layers(network: nn.Module, example: Tensor) -> list[Layer]:
    """List the convolutions and linear layers in the order of their first calls.

    A matrix that is applied without a call of its module counts too. A batch
    normalisation is folded into the convolution whose very output it takes.

    Args:
        network: in evaluation mode.
        example: (1, 3, S, S) input.

    Raises:
        ValueError: where the network has none.
    """
    uses, _ = _trace_uses(network, example)
    if not uses:
        raise ValueError(
            "the network uses no nn.Conv2d and no nn.Linear, so it has no layers whose "
            "norms could be taken"
        )
    return [use.layer() for use in uses]


def _copy(values: Tensor, precision: torch.dtype) -> Tensor:
    return values.detach().to("cpu", precision, copy=True)


def folded(
    kernel: Tensor,
    bias: Tensor | None,
    norm: nn.Module,
    precision: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """Fold a batch normalisation in evaluation mode into the convolution before it.

    Args:
        kernel: (c_out, c_in / groups, kh, kw).
        bias: (c_out,).
        norm: with running statistics.
        precision: floating-point type of the computation and of the result.

    Returns:
        Kernel and bias of the one convolution that replaces both, on the CPU.
    """

    def copied(values: Tensor | None) -> Tensor | None:
        return None if values is None else _copy(values, precision)

    weight, offset = fuse_conv_bn_weights(
        copied(kernel),
        copied(bias),
        copied(norm.running_mean),
        copied(norm.running_var),
        norm.eps,
        copied(norm.weight),
        copied(norm.bias),
    )
    return weight.detach(), offset.detach()


@torch.no_grad()
def folded_copy(
    network: nn.Module,
    example: Tensor,
    precision: torch.dtype = torch.float64,
    tolerance: float = 1e-3,
) -> nn.Module:
    """Copy a network without batch normalisation, which is folded into convolutions.

    A normalisation that does not directly follow a convolution stays, as a scale and a
    shift of each channel. So does one behind a kernel that is computed from other
    parameters, as by weight normalisation.

    Args:
        network: in evaluation mode.
        example: (1, 3, S, S) input.
        precision: floating-point type of the folding.
        tolerance: largest change of a logit of the example, as a fraction of the
            largest logit.

    Raises:
        ValueError: where a logit changes by more.
    """
    copied = copy.deepcopy(network).eval()
    uses, expected = _trace_uses(copied, example)
    convolutions = {
        use.norm: use.convolution
        for use in uses
        if use.norm is not None and use.kernel is use.convolution.weight
    }
    for name, norm in list(copied.named_modules()):
        if not isinstance(norm, _NormBase) or norm.running_mean is None:
            continue
        convolution = convolutions.get(norm)
        if convolution is None:
            _keep_scale_and_shift(norm)
        else:
            _fold_into(convolution, norm, precision)
            if type(norm) is nn.BatchNorm2d:
                copied.set_submodule(name, nn.Identity())
    largest = float(expected.abs().max())
    if not torch.allclose(copied(example), expected, rtol=0, atol=tolerance * largest):
        raise ValueError(
            "batch normalisation cannot be folded into the convolutions: the network "
            "would give other logits"
        )
    return copied


def _fold_into(convolution: nn.Conv2d, norm: nn.Module, precision: torch.dtype) -> None:
    """Put a normalisation into its convolution, and make it the identity."""
    weight, bias = folded(convolution.weight, convolution.bias, norm, precision)
    convolution.weight = nn.Parameter(weight.to(convolution.weight))
    convolution.bias = nn.Parameter(bias.to(convolution.weight))
    norm.weight = None
    norm.bias = None
    _forget_statistics(norm)


def _keep_scale_and_shift(norm: nn.Module) -> None:
    """Put the statistics of a normalisation into its weight and bias."""
    ones = torch.ones(norm.num_features, 1)  # folded into ones it is scale and shift
    scale, shift = folded(ones, None, norm)
    norm.weight = nn.Parameter(scale[:, 0].to(norm.running_var))
    norm.bias = nn.Parameter(shift.to(norm.running_var))
    _forget_statistics(norm)


def _forget_statistics(norm: nn.Module) -> None:
    norm.running_mean = torch.zeros_like(norm.running_mean)
    norm.running_var = torch.ones_like(norm.running_var)
    norm.eps = 0.0


@provides
def fused_network(network: nn.Module, example: Tensor) -> nn.Module:
    """The network with batch normalisation folded in: equal logits in less time.

    Args:
        network: in evaluation mode.
        example: (1, 3, S, S) input.

    Returns:
        A ``folded_copy``; the network itself where it cannot be copied, or where it
        uses its normalisations without calling them.
    """
    try:
        return folded_copy(network, example, example.dtype, 1e-5)
    except (AttributeError, RuntimeError, TypeError, ValueError) as fault:
        if is_of_machine(fault):
            raise
        return network


@provides
def flat_network(network: nn.Module, example: Tensor) -> nn.Module:
    """The network without batch normalisation, for measures that change weights.

    Args:
        network: in evaluation mode, on the device.
        example: (1, 3, S, S) one image as input of the network.
    """
    return folded_copy(network, example)


@provides
def layers(network: nn.Module, example: Tensor) -> list[Layer]:
    """Layers of the network.

    Args:
        network: in evaluation mode.
        example: (1, 3, S, S) one image as input of the network.
    """
    return trace_layers(network, example)


@provides
def initial_layers(initial_network: nn.Module | None, example: Tensor) -> list[Layer]:
    """Layers of the network as it was before training.

    Args:
        initial_network: the network before its first step; None where not known.
        example: (1, 3, S, S) one image as input of the network.
    """
    if initial_network is None:
        raise ValueError(
            "no initial weights were given, so there is no distance from them"
        )
    parameters = initial_network.parameters()
    device = next((value.device for value in parameters), example.device)
    return trace_layers(initial_network, example.to(device))
