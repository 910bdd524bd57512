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

from helpers.measures.registry import measure, needs, provides
from helpers.networks.faults import Undefined
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
    # (groups, out, in, rows, columns, s, s), as many more inputs as pixels a stride
    parts = padded
    for axis, step in enumerate(layer.stride, 3):
        parts = parts.unfold(axis, step, step)
    transforms = torch.fft.rfft2(parts, dim=(3, 4))
    matrices = transforms.permute(0, 3, 4, 1, 2, 5, 6).flatten(4)
    if matrices.shape[3] > matrices.shape[4]:
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


def log_product(norms: Array, margin: float = 1.0) -> Array:
    """Logarithm of a product over layers: ``ln(prod of s_i^2 / margin^2)``.

    Args:
        norms: (..., d) s_i of the layers.
        margin: of the training images.

    Returns:
        (...,), not finite when a norm is 0.

    Example:
        >>> float(log_product(np.array([1.0, np.e])).round(6))
        2.0
    """
    return 2 * (np.log(norms).sum(-1) - np.log(margin))


def log_sum(norms: Array, margin: float = 1.0) -> Array:
    """Logarithm of what Jiang et al. 2020 call a sum over layers.

    d times the geometric mean of the d factors of ``log_product``.

    Args:
        norms: (..., d) s_i of the layers.
        margin: of the training images.

    Returns:
        (...,), not finite when a norm is 0.
    """
    count = norms.shape[-1]
    return np.log(count) + log_product(norms, margin) / count


def ratios(numerators: Array, norms: Array) -> Array:
    """Sum of squared ratios ``(a_i / s_i)^2`` over layers.

    Of Frobenius over reshaped norms, a sum of stable ranks.

    Args:
        numerators: (d,) a_i.
        norms: (..., d) s_i.

    Returns:
        (...,), not finite when an s_i is 0.
    """
    return np.square(numerators / norms).sum(-1)


def log_bound(norms: Array, numerators: Array, margin: float) -> Array:
    """Logarithm of a spectral bound; Jiang et al. 2020, (29) and (30) before scaling.

    ``ln(prod of s_i^2 * sum of (a_i / s_i)^2 / margin^2)``.

    Args:
        norms: (..., d) s_i of the layers.
        numerators: (d,) a_i.
        margin: of the training images.

    Returns:
        (...,), not finite when a norm is 0.
    """
    return log_product(norms, margin) + np.log(ratios(numerators, norms))


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
    return np.sqrt(value / images)


def complexity(
    family: str,
    row: tuple[str, str, str, Callable[..., Any]],
    variants: tuple[str, ...] = (),
) -> None:
    """Enter a complexity into the list of measures; larger promises a larger gap.

    Args:
        family: of ``registry.FAMILIES``.
        row: name of the measure, that of a logarithm begins with "log_"; paper and
            equation; label for figures and summary; and the formula, which of what its
            arguments name gives ``v`` or ``ln v``, of which the measure is the
            ``scaled_complexity``.
        variants: names of the values where the formula gives several.
    """
    name, source, title, formula = row
    names = needs(formula)

    def scaled(**values: Any) -> Any:
        raw = formula(**{need: values[need] for need in names})
        images = values["training_images"]
        value = scaled_complexity(raw, images, name.startswith("log_"))
        return dict(zip(variants, value, strict=True)) if variants else value

    scaled.__name__ = name
    scaled.__doc__ = title
    scaled.__module__ = formula.__module__
    # What the measure asks for, see ``registry.needs``.
    scaled.needs = (*names, "training_images")
    measure(family, -1, source, title=title, variants=variants)(scaled)


# Formulas of folded weights, of their change from the start, and of the margin of the
# training images, in logits.

for _row in (
    (
        "params",
        "Jiang et al. 2020, equation 20",
        "parameters",
        lambda weights: len(weights.flat),
    ),
    (
        "inverse_margin",
        "Jiang et al. 2020, equation 22",
        "inverse margin",
        lambda margin: 1 / margin**2,
    ),
    (
        "l2",
        "Dziugaite et al. 2020 (code), L2",
        "L2 norm",
        lambda weights: np.linalg.norm(weights.frobenius),
    ),
    (
        "l2_dist",
        "Dziugaite et al. 2020 (code), L2_DIST",
        "L2 distance from the start",
        lambda changes: np.linalg.norm(changes.frobenius),
    ),
    (
        "log_prod_of_fro_over_margin",
        "Jiang et al. 2020, equation 36",
        "log product of Frobenius norms over margin",
        lambda weights, margin: log_product(weights.frobenius, margin),
    ),
    (
        "log_prod_of_fro",
        "Jiang et al. 2020, equation 37",
        "log product of Frobenius norms",
        lambda weights: log_product(weights.frobenius),
    ),
    (
        "log_sum_of_fro_over_margin",
        "Jiang et al. 2020, equation 38",
        "log sum of Frobenius norms over margin",
        lambda weights, margin: log_sum(weights.frobenius, margin),
    ),
    (
        "log_sum_of_fro",
        "Jiang et al. 2020, equation 39",
        "log sum of Frobenius norms",
        lambda weights: log_sum(weights.frobenius),
    ),
    (
        "fro_dist",
        "Jiang et al. 2020, equation 40",
        "Frobenius distance from the start",
        lambda changes: (changes.frobenius**2).sum(),
    ),
    (
        "param_norm",
        "Jiang et al. 2020, equation 42",
        "parameter norm",
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
        "log": scaled_complexity(
            np.log(path_product), training_images, is_logarithm=True
        ),
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
        lambda weights: log_product(weights.spectral),
    ),
    (
        "log_prod_of_spec_over_margin",
        "Jiang et al. 2020, equation 31",
        "log product of spectral norms over margin",
        lambda weights, margin: log_product(weights.spectral, margin),
    ),
    (
        "log_spec_init_main",
        "Jiang et al. 2020, equation 29",
        "log spectral bound from the start",
        lambda weights, changes, margin: log_bound(
            weights.spectral, changes.frobenius, margin
        ),
    ),
    (
        "log_spec_orig_main",
        "Jiang et al. 2020, equation 30",
        "log spectral bound",
        lambda weights, margin: log_bound(weights.spectral, weights.frobenius, margin),
    ),
    (
        "fro_over_spec",
        "Jiang et al. 2020, equation 33",
        "Frobenius over spectral norms",
        lambda weights: ratios(weights.frobenius, weights.spectral),
    ),
    (
        "log_sum_of_spec_over_margin",
        "Jiang et al. 2020, equation 34",
        "log sum of spectral norms over margin",
        lambda weights, margin: log_sum(weights.spectral, margin),
    ),
    (
        "log_sum_of_spec",
        "Jiang et al. 2020, equation 35",
        "log sum of spectral norms",
        lambda weights: log_sum(weights.spectral),
    ),
    (
        "dist_spec_init",
        "Jiang et al. 2020, equation 41",
        "spectral distance from the start",
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
    return {"log": logarithm, "raw": np.exp(logarithm)}
