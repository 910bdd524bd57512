"""Norms of the weights; Jiang et al. 2020, Dziugaite et al. 2020, Du et al. 2024.

Biases are left out, and batch normalisation is folded in. A norm ``v`` is reported as
``sqrt(v / m)`` with the number m of training images, as in the code of Dziugaite et
al.; a logarithm ``ln v`` as ``ln sqrt(v / m)``.
"""

import copy
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.module import register_module_forward_hook

from helpers.measures.registry import Value, measure, provides
from helpers.networks import Undefined
from helpers.networks.resnet import SampledConvolution, sample_first
from helpers.statistics.correlate import Array


class Layer(NamedTuple):
    """A convolution or linear layer; its weight is in float64 on the CPU."""

    weight: Tensor  # (c_out, c_in / groups, kh, kw), of a linear layer (out, in, 1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    input_size: tuple[int, int] = (1, 1)  # height and width


@provides
def folded_network(network: nn.Module) -> nn.Module:
    """Copy a network with batch normalisation folded into convolutions, by torch.fx.

    A normalisation that does not directly follow a convolution stays.

    Args:
        network: any; its copy is in evaluation mode.

    Raises:
        Undefined: where torch.fx cannot trace the network.
    """
    copied = copy.deepcopy(network).eval()
    for module in copied.modules():
        if type(module) is SampledConvolution:
            module.__class__ = nn.Conv2d  # torch.fx folds into plain convolutions only
    try:
        folded = fuse(copied, inplace=True)
    except Exception as fault:  # whatever a network does with what is no tensor
        raise Undefined(
            f"torch.fx cannot trace {type(network).__name__}, so that batch "
            f"normalisation cannot be folded in ({type(fault).__name__})"
        ) from fault
    # A class of this copy alone, which messages name.
    type(folded).__name__ = type(network).__name__
    return sample_first(folded)


@provides
def fused_network(network: nn.Module) -> nn.Module:
    """The network with batch normalisation folded in: equal logits in less time.

    Args:
        network: in evaluation mode.

    Returns:
        A ``folded_network``; the network itself where it cannot be traced.
    """
    try:
        return folded_network(network)
    except Undefined:
        return network


@torch.no_grad()
def layers_of(network: nn.Module, example: Tensor) -> list[Layer]:
    """List the convolutions and linear layers in the order of their first calls.

    Args:
        network: any.
        example: (1, 3, S, S) input.

    Raises:
        Undefined: where the network has no such layer, or also has matrices that are
            not applied as the weight of one, as attention has.
    """
    folded = folded_network(copy.deepcopy(network).cpu().double())
    layers: dict[nn.Module, Layer] = {}

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(module, nn.Linear):
            layers.setdefault(module, Layer(module.weight.detach()[:, :, None, None]))
        elif isinstance(module, nn.Conv2d):
            settings = module.stride, module.dilation, module.groups
            size = tuple(inputs[0].shape[-2:])
            layers.setdefault(module, Layer(module.weight.detach(), *settings, size))

    with register_module_forward_hook(note):
        folded(example.cpu().double())
    matrices = [value for value in folded.parameters() if value.ndim in (2, 4)]
    if not layers or len(matrices) != len(layers):
        raise Undefined(
            "norms are of networks whose only matrices are weights of nn.Conv2d and "
            "nn.Linear"
        )
    return list(layers.values())


def operator_norm(layer: Layer) -> float:
    """Spectral norm of a convolution as a linear map: ``max of |conv(x)| / |x|``.

    With circular padding; Sedghi, Gupta and Long 2019: the largest singular value of
    the kernel's Fourier transform at any frequency of the input, whose size is rounded
    up to that of the kernel and to a multiple of the stride. A convolution of stride s
    is one of stride 1 on the s^2 images that each hold every s-th pixel. Of several
    groups the largest norm counts.

    Args:
        layer: with its folded weight.

    Returns:
        The norm, at least 0; NaN if a weight is not finite.

    Example:
        >>> operator_norm(Layer(torch.full((1, 1, 1, 1), 3.0)))
        3.0
    """
    kernels = layer.weight.unflatten(0, (layer.groups, -1))
    if not kernels.isfinite().all():
        return math.nan
    height, width = kernels.shape[3:]
    # A kernel of one pixel is the same at all frequencies.
    size = (1, 1) if height == width == 1 else layer.input_size
    reach = (np.array([height, width]) - 1) * layer.dilation + 1
    steps = -(-np.maximum(size, reach) // layer.stride)  # rounded up
    padded = kernels.new_zeros(*kernels.shape[:3], *(steps * layer.stride).tolist())
    spread = padded[..., :: layer.dilation[0], :: layer.dilation[1]]
    spread[..., :height, :width] = kernels
    # (groups, out, in, rows, s, columns, s), as many more inputs as pixels a stride
    parts = padded.unflatten(4, (-1, layer.stride[1]))
    parts = parts.unflatten(3, (-1, layer.stride[0]))
    transforms = torch.fft.rfft2(parts, dim=(3, 5))
    matrices = transforms.permute(0, 3, 5, 1, 2, 4, 6).flatten(4)
    if matrices.shape[3] > matrices.shape[4]:
        matrices = matrices.mT
    squares = torch.linalg.eigvalsh(matrices @ matrices.mH)
    return math.sqrt(max(0.0, float(squares.max())))


@provides
def weights(network: nn.Module, example: Tensor) -> list[Layer]:
    """Folded weights of the network by layer.

    Args:
        network: in evaluation mode.
        example: (1, 3, S, S) one image as input of the network.
    """
    return layers_of(network, example)


@provides
def changes(
    weights: list[Layer], initial_network: nn.Module | None, example: Tensor
) -> list[Layer]:
    """Change of the weights from those before the first step, by layer.

    Args:
        weights: of the network.
        initial_network: the network before its first step; None where not known.
        example: (1, 3, S, S) one image as input of the network.
    """
    if initial_network is None:
        raise Undefined(
            "no initial weights were given, so there is no distance from them"
        )
    pairs = zip(weights, layers_of(initial_network, example), strict=True)
    return [now._replace(weight=now.weight - old.weight) for now, old in pairs]


@provides
def flat_weights(weights: list[Layer]) -> Array:
    """All weights one after the other, (omega,).

    Args:
        weights: by layer.
    """
    return torch.cat([layer.weight.flatten() for layer in weights]).numpy()


@provides
def flat_changes(changes: list[Layer]) -> Array:
    """Changes of all weights one after the other, (omega,).

    Args:
        changes: from the start, by layer.
    """
    return flat_weights(changes)


@provides
def frobenius_norms(weights: list[Layer]) -> Array:
    """Frobenius norm of each layer, (d,).

    Args:
        weights: by layer.
    """
    return np.array([float(layer.weight.norm()) for layer in weights])


@provides
def spectral_norms(weights: list[Layer]) -> Array:
    """``operator_norm`` of each layer, (d,).

    Args:
        weights: by layer.
    """
    return np.array([operator_norm(layer) for layer in weights])


def inverse_square(value: float) -> float:
    """``1 / value^2``.

    Args:
        value: not 0.
    """
    return 1 / value**2


def sum_of_squares(values: Array) -> float:
    """Sum of squares of weights, or of norms.

    Args:
        values: (n,).
    """
    return np.square(values).sum()


def log_product(norms: Array, margin: float = 1.0) -> float:
    """Logarithm of a product over layers: ``ln(prod of s_i^2 / margin^2)``.

    Args:
        norms: (d,) s_i of the layers.
        margin: of the training images.

    Returns:
        Not finite when a norm is 0.

    Example:
        >>> float(log_product(np.array([1.0, np.e])).round(6))
        2.0
    """
    return 2 * (np.log(norms).sum() - np.log(margin))


def log_sum(norms: Array, margin: float = 1.0) -> float:
    """Logarithm of what Jiang et al. 2020 call a sum over layers.

    d times the geometric mean of the d factors of ``log_product``.

    Args:
        norms: (d,) s_i of the layers.
        margin: of the training images.

    Returns:
        Not finite when a norm is 0.
    """
    return np.log(len(norms)) + log_product(norms, margin) / len(norms)


def ratios(layers: list[Layer], norms: Array) -> float:
    """Sum over layers of squared Frobenius norms over squared spectral norms.

    Args:
        layers: of the weights, or of their changes.
        norms: (d,) spectral norms of the weights.

    Returns:
        Not finite when a norm is 0.
    """
    return sum_of_squares(frobenius_norms(layers) / norms)


def log_bound(layers: list[Layer], norms: Array, margin: float) -> float:
    """Logarithm of a spectral bound; Jiang et al. 2020, (29) and (30) before scaling.

    ``ln(prod of s_i^2 * sum of (a_i / s_i)^2 / margin^2)``.

    Args:
        layers: of which a_i are Frobenius norms: the weights, or their changes.
        norms: (d,) spectral norms s_i of the weights.
        margin: of the training images.

    Returns:
        Not finite when a norm is 0.
    """
    return log_product(norms, margin) + np.log(ratios(layers, norms))


@provides
@torch.no_grad()
def path_product(network: nn.Module, example: Tensor) -> float:
    """Sum over paths of the product of squared weights; Jiang et al. 2020, (44).

    It is the sum of outputs for an image of ones, in a float64 copy in which every
    parameter is squared, biases too. Exact for ReLU networks, save that max-pooling
    takes the largest path of a window.

    Args:
        network: in evaluation mode.
        example: (1, 3, S, S) input.

    Raises:
        Undefined: where a normalisation is left that cannot be folded in.
    """
    squared = folded_network(copy.deepcopy(network).cpu().double())
    for module in squared.modules():
        if isinstance(module, (_NormBase, nn.LayerNorm, nn.GroupNorm)):
            raise Undefined(
                f"a sum over paths is not defined: {type(module).__name__} is left "
                "after batch normalisation is folded in"
            )
    for parameter in squared.parameters():
        parameter.square_()
    ones = torch.ones(1, *example.shape[1:], dtype=torch.float64)
    return float(squared(ones).sum())


def complexity(
    family: str, row: tuple[Any, ...], variants: tuple[str, ...] = ()
) -> None:
    """Enter a complexity into the list of measures; larger promises a larger gap.

    It is reported as ``sqrt(v / m)``, a logarithm as ``ln sqrt(v / m)``, as in the code
    of Dziugaite et al. 2020; m is the number of training images.

    Args:
        family: of ``registry.FAMILIES``.
        row: name of the measure, that of a logarithm begins with "log_"; paper and
            equation; label for figures and summary; the formula that gives ``v`` or
            ``ln v``; and the names of what the formula takes, in order.
        variants: name under which the value is recorded, where it has one.
    """
    name, source, title, formula, *names = row

    def scaled(**values: Any) -> float:
        value = formula(*(values[need] for need in names))
        images = values["training_images"]
        if name.startswith("log_"):
            return 0.5 * (value - math.log(images))
        return np.sqrt(value / images)

    scaled.__name__ = name
    scaled.__doc__ = title
    scaled.__module__ = f"helpers.measures.{family}"
    # What the measure asks for, see ``registry.needs``.
    scaled.needs = (*names, "training_images")
    measure(family, -1, source, title=title, variants=variants)(scaled)


# Formulas of folded weights, of their change from the start, and of the margin of the
# training images, in logits. In each row: formula, and what it takes.

for _row in (
    ("params", "Jiang et al. 2020, equation 20", "parameters", len, "flat_weights"),
    (
        "inverse_margin",
        "Jiang et al. 2020, equation 22",
        "inverse margin",
        inverse_square,
        "margin",
    ),
    (
        "l2",
        "Dziugaite et al. 2020 (code), L2",
        "L2 norm",
        np.linalg.norm,
        "flat_weights",
    ),
    (
        "l2_dist",
        "Dziugaite et al. 2020 (code), L2_DIST",
        "L2 distance from the start",
        np.linalg.norm,
        "flat_changes",
    ),
    (
        "log_prod_of_fro_over_margin",
        "Jiang et al. 2020, equation 36",
        "log product of Frobenius norms over margin",
        log_product,
        "frobenius_norms",
        "margin",
    ),
    (
        "log_prod_of_fro",
        "Jiang et al. 2020, equation 37",
        "log product of Frobenius norms",
        log_product,
        "frobenius_norms",
    ),
    (
        "log_sum_of_fro_over_margin",
        "Jiang et al. 2020, equation 38",
        "log sum of Frobenius norms over margin",
        log_sum,
        "frobenius_norms",
        "margin",
    ),
    (
        "log_sum_of_fro",
        "Jiang et al. 2020, equation 39",
        "log sum of Frobenius norms",
        log_sum,
        "frobenius_norms",
    ),
    (
        "fro_dist",
        "Jiang et al. 2020, equation 40",
        "Frobenius distance from the start",
        sum_of_squares,
        "flat_changes",
    ),
    (
        "param_norm",
        "Jiang et al. 2020, equation 42",
        "parameter norm",
        sum_of_squares,
        "flat_weights",
    ),
):
    complexity("norms", _row)

for _row in (
    ("path_norm", "Jiang et al. 2020, equation 44", "path norm", float, "path_product"),
    (
        "path_norm_over_margin",
        "Jiang et al. 2020, equation 43",
        "path norm over margin",
        lambda product, margin: product / margin**2,
        "path_product",
        "margin",
    ),
):
    complexity("norms", _row, ("root",))

for _row in (
    (
        "log_prod_of_spec",
        "Jiang et al. 2020, equation 32",
        "log product of spectral norms",
        log_product,
        "spectral_norms",
    ),
    (
        "log_prod_of_spec_over_margin",
        "Jiang et al. 2020, equation 31",
        "log product of spectral norms over margin",
        log_product,
        "spectral_norms",
        "margin",
    ),
    (
        "log_spec_init_main",
        "Jiang et al. 2020, equation 29",
        "log spectral bound from the start",
        log_bound,
        "changes",
        "spectral_norms",
        "margin",
    ),
    (
        "log_spec_orig_main",
        "Jiang et al. 2020, equation 30",
        "log spectral bound",
        log_bound,
        "weights",
        "spectral_norms",
        "margin",
    ),
    (
        "fro_over_spec",
        "Jiang et al. 2020, equation 33",
        "Frobenius over spectral norms",
        ratios,
        "weights",
        "spectral_norms",
    ),
    (
        "log_sum_of_spec_over_margin",
        "Jiang et al. 2020, equation 34",
        "log sum of spectral norms over margin",
        log_sum,
        "spectral_norms",
        "margin",
    ),
    (
        "log_sum_of_spec",
        "Jiang et al. 2020, equation 35",
        "log sum of spectral norms",
        log_sum,
        "spectral_norms",
    ),
    (
        "dist_spec_init",
        "Jiang et al. 2020, equation 41",
        "spectral distance from the start",
        lambda changes: sum_of_squares(spectral_norms(changes)),
        "changes",
    ),
):
    complexity("norms", _row, ("operator",))


@measure("norms", -1, "Du et al. 2024, Appendix A1", variants=("log", "raw"))
def spectral_norm(weights: list[Layer], spectral_norms: Array, margin: float) -> Value:
    """Spectral bound of the weights as Du et al. print it, and its logarithm.

    Product of squared spectral norms times the sum of squared Frobenius over spectral
    norms, over the squared margin.

    Args:
        weights: by layer.
        spectral_norms: (d,) of the layers.
        margin: of the training images, in logits, see ``prediction.margin``.
    """
    logarithm = log_bound(weights, spectral_norms, margin)
    return {"log": logarithm, "raw": np.exp(logarithm)}
