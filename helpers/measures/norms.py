"""Norms of the weights; Jiang et al. 2020, Dziugaite et al. 2020, Du et al. 2024.

Biases are left out, and batch normalisation is folded in. A norm ``v`` is reported as
``sqrt(v / m)`` with the number m of training images, as in the code of Dziugaite et
al.; a logarithm ``ln v`` as ``ln sqrt(v / m)``.
"""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse
from torch.nn.modules.batchnorm import _NormBase

from helpers.measures.evidence import provides
from helpers.measures.registry import measure, needs
from helpers.networks.faults import Undefined, is_of_machine
from helpers.networks.hooks import observe
from helpers.networks.resnet import SampledConvolution, sample_first
from helpers.statistics.correlate import Array

# Which linear map a spectral norm is of: the layer at the size of its own input, or its
# weight reshaped to a (c_out, rest) matrix (Yoshida and Miyato 2017).
NORM_VARIANTS = ("operator", "reshaped")


@dataclass(frozen=True)
class Layer:
    """A convolution or linear layer; its weight is in float64 on the CPU."""

    weight: Tensor  # (c_out, c_in / groups, kh, kw), of a linear layer (out, in, 1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    input_size: tuple[int, int] = (1, 1)  # height and width


def folded_copy(network: nn.Module) -> nn.Module:
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
        if is_of_machine(fault):
            raise
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
        A ``folded_copy``; the network itself where it cannot be traced.
    """
    try:
        return folded_copy(network)
    except Undefined:
        return network


@provides
def flat_network(network: nn.Module) -> nn.Module:
    """The network without batch normalisation, for measures that change weights.

    Args:
        network: in evaluation mode, on the device.
    """
    return folded_copy(network)


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
    folded = folded_copy(copy.deepcopy(network).cpu().double())
    layers: dict[nn.Module, Layer] = {}

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(module, nn.Linear):
            layers.setdefault(module, Layer(module.weight.detach()[:, :, None, None]))
        elif isinstance(module, nn.Conv2d):
            settings = module.stride, module.dilation, module.groups
            size = tuple(inputs[0].shape[-2:])
            layers.setdefault(module, Layer(module.weight.detach(), *settings, size))

    observe(folded, example.cpu().double(), note)
    of_layers = {id(module.weight) for module in layers}
    others = [
        name
        for name, value in folded.named_parameters()
        if value.ndim in (2, 4) and id(value) not in of_layers
    ]
    if others or not layers:
        raise Undefined(
            "norms are of networks whose only matrices are weights of nn.Conv2d and "
            f"nn.Linear; this one has {', '.join(others[:3]) or 'none'}"
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
    size = layer.input_size
    if height == width == 1:  # the same at all frequencies
        size = layer.stride
    sides = []
    for axis, length in enumerate((height, width)):
        dilated = (length - 1) * layer.dilation[axis] + 1
        step = layer.stride[axis]
        sides.append(math.ceil(max(size[axis], dilated) / step) * step)
    padded = kernels.new_zeros(*kernels.shape[:3], *sides)
    spread = padded[..., :: layer.dilation[0], :: layer.dilation[1]]
    spread[..., :height, :width] = kernels
    # (groups, out, in, rows, s, columns, s) -> as many more inputs as pixels a stride
    parts = padded.unflatten(4, (-1, layer.stride[1]))
    parts = parts.unflatten(3, (-1, layer.stride[0]))
    parts = parts.permute(0, 1, 2, 4, 6, 3, 5).flatten(2, 4)
    transforms = torch.fft.rfft2(parts).flatten(3)  # (groups, out, in, frequencies)
    matrices = transforms.permute(0, 3, 1, 2)
    if matrices.shape[2] > matrices.shape[3]:
        matrices = matrices.mT
    squares = torch.linalg.eigvalsh(matrices @ matrices.mH)
    return math.sqrt(max(0.0, float(squares.max())))


@dataclass(frozen=True)
class Weights:
    """Layers with their folded weights, or with the change of these from the start."""

    layers: list[Layer]

    @cached_property
    def flat(self) -> Array:
        """All weights one after the other, (omega,)."""
        return torch.cat([layer.weight.flatten() for layer in self.layers]).numpy()

    @cached_property
    def frobenius(self) -> Array:
        """Frobenius norm of each layer, (d,)."""
        return np.array([float(layer.weight.norm()) for layer in self.layers])

    @cached_property
    def spectral(self) -> Array:
        """Spectral norm of each layer for each of ``NORM_VARIANTS``, (2, d)."""
        operators = [operator_norm(layer) for layer in self.layers]
        matrices = [layer.weight.flatten(1) for layer in self.layers]
        reshaped = [float(torch.linalg.matrix_norm(one, 2)) for one in matrices]
        return np.array([operators, reshaped])


@provides
def weights(network: nn.Module, example: Tensor) -> Weights:
    """Folded weights of the network by layer.

    Args:
        network: in evaluation mode.
        example: (1, 3, S, S) one image as input of the network.
    """
    return Weights(layers_of(network, example))


@provides
def changes(
    weights: Weights, initial_network: nn.Module | None, example: Tensor
) -> Weights:
    """Change of the weights from those before the first step.

    Args:
        weights: of the network.
        initial_network: the network before its first step; None where not known.
        example: (1, 3, S, S) one image as input of the network.
    """
    if initial_network is None:
        raise Undefined(
            "no initial weights were given, so there is no distance from them"
        )
    start = layers_of(initial_network, example)
    pairs = zip(weights.layers, start, strict=True)
    return Weights([replace(now, weight=now.weight - old.weight) for now, old in pairs])


def log(values: ArrayLike) -> Array:
    """Natural logarithm, NaN where a value is not above 0.

    Args:
        values: of any shape.
    """
    values = np.asarray(values, dtype=float)
    return np.log(np.where(values > 0, values, np.nan))


def log_product(norms: Array, margin: float = 1.0) -> Array:
    """Logarithm of a product over layers: ``ln(prod of s_i^2 / margin^2)``.

    Args:
        norms: (..., d) s_i of the layers.
        margin: of the training images.

    Returns:
        (...,), NaN when a norm is 0.

    Example:
        >>> float(log_product(np.array([1.0, np.e])).round(6))
        2.0
    """
    return 2 * log(norms).sum(-1) - 2 * log(margin)


def log_sum(norms: Array, margin: float = 1.0) -> Array:
    """Logarithm of what Jiang et al. 2020 call a sum over layers.

    d times the geometric mean of the d factors of ``log_product``.

    Args:
        norms: (..., d) s_i of the layers.
        margin: of the training images.

    Returns:
        (...,), NaN when a norm is 0.
    """
    count = norms.shape[-1]
    return math.log(count) + log_product(norms, margin) / count


def ratios(numerators: Array, norms: Array) -> Array:
    """Sum of squared ratios ``(a_i / s_i)^2`` over layers.

    Of Frobenius over reshaped norms, a sum of stable ranks.

    Args:
        numerators: (d,) a_i.
        norms: (..., d) s_i.

    Returns:
        (...,), NaN when an s_i is 0.
    """
    return np.square(numerators / np.where(norms > 0, norms, np.nan)).sum(-1)


def log_bound(norms: Array, numerators: Array, margin: float) -> Array:
    """Logarithm of a spectral bound; Jiang et al. 2020, (29) and (30) before scaling.

    ``ln(prod of s_i^2 * sum of (a_i / s_i)^2 / margin^2)``.

    Args:
        norms: (..., d) s_i of the layers.
        numerators: (d,) a_i.
        margin: of the training images.

    Returns:
        (...,), NaN when a norm is 0.
    """
    return log_product(norms, margin) + log(ratios(numerators, norms))


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
        Undefined: where a layer divides by statistics of its input.
    """
    for module in network.modules():
        divides = isinstance(module, (nn.LayerNorm, nn.GroupNorm))
        if divides or (isinstance(module, _NormBase) and module.running_mean is None):
            raise Undefined(
                f"a sum over paths is not defined: {type(module).__name__} divides by "
                "statistics of its input"
            )
    squared = folded_copy(copy.deepcopy(network).cpu().double())
    for parameter in squared.parameters():
        parameter.square_()
    ones = torch.ones(1, *example.shape[1:], dtype=torch.float64)
    return float(squared(ones).sum())


def scaled_complexity(
    value: ArrayLike, images: int, is_logarithm: bool = False
) -> ArrayLike:
    """Scale a complexity as Dziugaite et al. 2020 (code) report it.

    Args:
        value: ``v``, or ``ln v``.
        images: number m of training images.
        is_logarithm: whether the value is ``ln v``.

    Returns:
        ``sqrt(v / m)``, NaN for a negative v; of a logarithm ``ln sqrt(v / m)``.

    Example:
        >>> float(scaled_complexity(400.0, 100))
        2.0
    """
    if is_logarithm:
        return 0.5 * (value - math.log(images))
    with np.errstate(invalid="ignore"):  # of a negative value
        return np.sqrt(value / images)


def complexity(
    family: str,
    row: tuple[str, str, str, str, Callable[..., Any]],
    variants: tuple[str, ...] = (),
) -> None:
    """Enter a complexity into the list of measures; larger promises a larger gap.

    Args:
        family: of ``registry.FAMILIES``.
        row: name of the measure, that of a logarithm begins with "log_"; paper and
            equation; label for figures; summary of one line; and the formula, which of
            what its arguments name gives ``v`` or ``ln v``, of which the measure is the
            ``scaled_complexity``.
        variants: names of the values where the formula gives several.
    """
    name, source, title, summary, formula = row
    names = needs(formula)

    def scaled(**values: Any) -> Any:
        value = scaled_complexity(
            formula(**{need: values[need] for need in names}),
            values["training_images"],
            name.startswith("log_"),
        )
        return dict(zip(variants, value, strict=True)) if variants else value

    scaled.__name__ = name
    scaled.__doc__ = summary
    scaled.__module__ = formula.__module__
    # What the measure asks for, see ``registry.needs``.
    scaled.needs = tuple(dict.fromkeys([*names, "training_images"]))
    measure(family, -1, source, title=title, variants=variants)(scaled)


# Formulas of folded weights, of their change from the start, and of the margin of the
# training images, in logits.

for _row in (
    (
        "params",
        "Jiang et al. 2020, equation 20",
        "parameters",
        "Number of weights.",
        lambda weights: len(weights.flat),
    ),
    (
        "inverse_margin",
        "Jiang et al. 2020, equation 22",
        "inverse margin",
        "Inverse of the squared margin.",
        lambda margin: 1 / margin**2,
    ),
    (
        "l2",
        "Dziugaite et al. 2020 (code), L2",
        "L2 norm",
        "Euclidean norm of all weights.",
        lambda weights: np.linalg.norm(weights.frobenius),
    ),
    (
        "l2_dist",
        "Dziugaite et al. 2020 (code), L2_DIST",
        "L2 distance from the start",
        "Euclidean distance of all weights from the initial ones.",
        lambda changes: np.linalg.norm(changes.frobenius),
    ),
    (
        "log_prod_of_fro_over_margin",
        "Jiang et al. 2020, equation 36",
        "log product of Frobenius norms over margin",
        "Product of squared Frobenius norms over the squared margin, its logarithm.",
        lambda weights, margin: log_product(weights.frobenius, margin),
    ),
    (
        "log_prod_of_fro",
        "Jiang et al. 2020, equation 37",
        "log product of Frobenius norms",
        "Product of squared Frobenius norms, its logarithm.",
        lambda weights: log_product(weights.frobenius),
    ),
    (
        "log_sum_of_fro_over_margin",
        "Jiang et al. 2020, equation 38",
        "log sum of Frobenius norms over margin",
        "Sum of squared Frobenius norms over the squared margin, its logarithm.",
        lambda weights, margin: log_sum(weights.frobenius, margin),
    ),
    (
        "log_sum_of_fro",
        "Jiang et al. 2020, equation 39",
        "log sum of Frobenius norms",
        "Sum of squared Frobenius norms, its logarithm; see ``log_sum``.",
        lambda weights: log_sum(weights.frobenius),
    ),
    (
        "fro_dist",
        "Jiang et al. 2020, equation 40",
        "Frobenius distance from the start",
        "Squared Euclidean distance of all weights from the initial ones.",
        lambda changes: (changes.frobenius**2).sum(),
    ),
    (
        "param_norm",
        "Jiang et al. 2020, equation 42",
        "parameter norm",
        "Squared Euclidean norm of all weights.",
        lambda weights: (weights.frobenius**2).sum(),
    ),
):
    complexity("norms", _row)


@measure("norms", -1, "Jiang et al. 2020, equation 44", variants=("root", "log"))
def path_norm(path_product: float, training_images: int) -> Mapping[str, float]:
    """Sum over paths of squared weights: ``sqrt(v / m)``, or its logarithm.

    Args:
        path_product: sum over paths of products of squared weights.
        training_images: m, the number of images that the network was fitted to.
    """
    return {
        "root": scaled_complexity(path_product, training_images),
        "log": scaled_complexity(log(path_product), training_images, is_logarithm=True),
    }


@measure("norms", -1, "Jiang et al. 2020, equation 43", variants=("root", "log"))
def path_norm_over_margin(
    path_product: float, margin: float, training_images: int
) -> Mapping[str, float]:
    """Sum over paths of squared weights over the squared margin, as ``path_norm``.

    Args:
        path_product: sum over paths of products of squared weights.
        margin: of the training images, in logits, see ``prediction.margin``.
        training_images: m, the number of images that the network was fitted to.
    """
    return path_norm(path_product / margin**2, training_images)


for _row in (
    (
        "log_prod_of_spec",
        "Jiang et al. 2020, equation 32",
        "log product of spectral norms",
        "Product of squared spectral norms, its logarithm.",
        lambda weights: log_product(weights.spectral),
    ),
    (
        "log_prod_of_spec_over_margin",
        "Jiang et al. 2020, equation 31",
        "log product of spectral norms over margin",
        "Product of squared spectral norms over the squared margin, its logarithm.",
        lambda weights, margin: log_product(weights.spectral, margin),
    ),
    (
        "log_spec_init_main",
        "Jiang et al. 2020, equation 29",
        "log spectral bound from the start",
        "Spectral bound of the change from the start, its logarithm; see "
        "``log_bound``.",
        lambda weights, changes, margin: log_bound(
            weights.spectral, changes.frobenius, margin
        ),
    ),
    (
        "log_spec_orig_main",
        "Jiang et al. 2020, equation 30",
        "log spectral bound",
        "Spectral bound of the weights, its logarithm; see ``log_bound``.",
        lambda weights, margin: log_bound(weights.spectral, weights.frobenius, margin),
    ),
    (
        "fro_over_spec",
        "Jiang et al. 2020, equation 33",
        "Frobenius over spectral norms",
        "Sum of squared Frobenius over spectral norms.",
        lambda weights: ratios(weights.frobenius, weights.spectral),
    ),
    (
        "log_sum_of_spec_over_margin",
        "Jiang et al. 2020, equation 34",
        "log sum of spectral norms over margin",
        "Sum of squared spectral norms over the squared margin, its logarithm.",
        lambda weights, margin: log_sum(weights.spectral, margin),
    ),
    (
        "log_sum_of_spec",
        "Jiang et al. 2020, equation 35",
        "log sum of spectral norms",
        "Sum of squared spectral norms, its logarithm; see ``norms.log_sum``.",
        lambda weights: log_sum(weights.spectral),
    ),
    (
        "dist_spec_init",
        "Jiang et al. 2020, equation 41",
        "spectral distance from the start",
        "Sum of squared spectral norms of the change from the start.",
        lambda changes: (changes.spectral**2).sum(-1),
    ),
):
    complexity("norms", _row, NORM_VARIANTS)


@measure("norms", -1, "Du et al. 2024, Appendix A1", variants=("log", "raw"))
def spectral_norm(weights: Weights, margin: float) -> Mapping[str, float]:
    """Spectral bound of the weights as Du et al. print it, and its logarithm.

    Product of squared spectral norms times the sum of squared Frobenius over spectral
    norms, over the squared margin.

    Args:
        weights: of the network.
        margin: of the training images, in logits, see ``prediction.margin``.
    """
    logarithm = log_bound(weights.spectral[0], weights.frobenius, margin)
    with np.errstate(over="ignore"):  # exp overflows to inf
        return {"log": logarithm, "raw": np.exp(logarithm)}
