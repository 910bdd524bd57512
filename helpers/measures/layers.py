"""Kernels of a network in the order of their calls, batch normalisation folded in."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.fusion import fuse_conv_bn_weights

from helpers.measures.evidence import provides
from helpers.networks.faults import is_of_machine
from helpers.networks.hooks import observe
from helpers.networks.resnet import SampledConvolution

# Of layers that multiply by their weight as it stands.
_PLAIN_FORWARDS = (
    nn.Conv2d.forward,
    nn.Linear.forward,
    SampledConvolution.forward,
)


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
class _Call:
    """The first call of a convolution or linear layer in a pass."""

    module: nn.Conv2d | nn.Linear
    input_size: tuple[int, int]
    output: Tensor
    norm: nn.Module | None = None  # batch normalisation of this very output

    @property
    def is_plain(self) -> bool:
        """Whether the layer multiplies by its weight as it stands."""
        return type(self.module).forward in _PLAIN_FORWARDS

    def layer(self) -> Layer:
        """The layer, with its normalisation folded in."""
        module = self.module
        if self.norm is None:
            weight = _copy(module.weight, torch.float64)
        else:
            weight, _ = folded(module.weight, module.bias, self.norm)
        if isinstance(module, nn.Linear):
            return Layer(weight)
        return Layer(
            weight, module.stride, module.dilation, module.groups, self.input_size
        )


@torch.no_grad()
def _trace(network: nn.Module, example: Tensor) -> tuple[list[_Call], Tensor]:
    """First calls of convolutions and linear layers, in their order; and the logits."""
    calls: dict[nn.Module, _Call] = {}

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            call = _Call(module, tuple(inputs[0].shape[-2:]), output)
            calls.setdefault(module, call)
        elif isinstance(module, (nn.BatchNorm2d, nn.SyncBatchNorm)):
            if module.running_mean is None:
                return
            for call in calls.values():
                if call.output is inputs[0] and call.norm is None:
                    call.norm = module

    logits = observe(network, example, note)
    return list(calls.values()), logits


def trace_layers(network: nn.Module, example: Tensor) -> list[Layer]:
    """List the convolutions and linear layers in the order of their first calls.

    A batch normalisation is folded into the convolution whose very output it takes.

    Args:
        network: in evaluation mode.
        example: (1, 3, S, S) input.

    Raises:
        ValueError: where the network has no such layer, or also has matrices that are
            not applied as the weight of one, as attention has.
    """
    calls, _ = _trace(network, example)
    if not calls:
        raise ValueError(
            "the network uses no nn.Conv2d and no nn.Linear, so it has no layers whose "
            "norms could be taken"
        )
    plain = [call.module for call in calls if call.is_plain]
    seen = {id(value) for module in plain for value in module.parameters()}
    others = [
        name
        for name, value in network.named_parameters()
        if value.ndim in (2, 4) and id(value) not in seen
    ]
    if others:
        raise ValueError(
            "norms are of networks whose only matrices are weights of nn.Conv2d and "
            f"nn.Linear; this one also has {', '.join(others[:3])}"
        )
    return [call.layer() for call in calls]


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
    calls, expected = _trace(copied, example)
    convolutions = {
        call.norm: call.module
        for call in calls
        if call.is_plain and isinstance(call.module.weight, nn.Parameter)
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
