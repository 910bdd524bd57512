"""Norms of the weights: size, distance from the start, paths; Jiang et al. 2020.

Biases are left out, and batch normalisation is folded in.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from helpers.measures.complexity import complexity, scaled_complexity
from helpers.measures.evidence import provides
from helpers.measures.layers import Layer, folded_copy
from helpers.measures.registry import measure
from helpers.statistics.correlations import Array

# Layers that divide by statistics of their input, which is no sum over paths.
_DIVIDING = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.LocalResponseNorm)


def log(values: ArrayLike) -> Array:
    """Natural logarithm, NaN where a value is not above 0.

    Args:
        values: of any shape.
    """
    values = np.asarray(values, dtype=float)
    return np.log(np.where(values > 0, values, np.nan))


def log_product(norms: Array, margin: float = 1.0) -> float:
    """Logarithm of a product over layers: ``ln(prod of s_i^2 / margin^2)``.

    Args:
        norms: (d,) s_i of the layers.
        margin: of the training images.

    Returns:
        NaN when a norm is 0.

    Example:
        >>> round(log_product(np.array([1.0, np.e])), 6)
        2.0
    """
    return float(2 * log(norms).sum() - 2 * log(margin))


def log_sum(norms: Array, margin: float = 1.0) -> float:
    """Logarithm of what Jiang et al. 2020 call a sum over layers.

    d times the geometric mean of the d factors of ``log_product``.

    Args:
        norms: (d,) s_i of the layers.
        margin: of the training images.

    Returns:
        NaN when a norm is 0.
    """
    return math.log(len(norms)) + log_product(norms, margin) / len(norms)


def ratios(numerators: Array, norms: Array) -> float:
    """Sum of squared ratios ``(a_i / s_i)^2`` over layers.

    Of Frobenius over reshaped norms, a sum of stable ranks.

    Args:
        numerators: (d,) a_i.
        norms: (d,) s_i.

    Returns:
        NaN when an s_i is 0.
    """
    return float(np.square(numerators / np.where(norms > 0, norms, np.nan)).sum())


def log_bound(norms: Array, numerators: Array, margin: float) -> float:
    """Logarithm of a spectral bound; Jiang et al. 2020, (29) and (30) before scaling.

    ``ln(prod of s_i^2 * sum of (a_i / s_i)^2 / margin^2)``.

    Args:
        norms: (d,) s_i of the layers.
        numerators: (d,) a_i.
        margin: of the training images.
    """
    return float(log_product(norms, margin) + log(ratios(numerators, norms)))


@provides
def layer_sizes(layers: Sequence[Layer]) -> Array:
    """Number of weights of each layer, (d,).

    Args:
        layers: with their folded weights.
    """
    return np.array([layer.weight.numel() for layer in layers], dtype=float)


@provides
def frobenius_norms(layers: Sequence[Layer]) -> Array:
    """Frobenius norm of each layer's weight, (d,).

    Args:
        layers: with their folded weights.
    """
    return np.array([float(torch.linalg.vector_norm(layer.weight)) for layer in layers])


@provides
def distances(layers: Sequence[Layer], initial_layers: Sequence[Layer]) -> list[Layer]:
    """The layers with their weights' change from the initial ones.

    Args:
        layers: with their folded weights.
        initial_layers: the same layers before the first step.
    """
    return [
        replace(layer, weight=layer.weight - start.weight)
        for layer, start in zip(layers, initial_layers, strict=True)
    ]


@provides
def frobenius_distances(distances: Sequence[Layer]) -> Array:
    """Frobenius norm of the change of each layer's weight, (d,).

    Args:
        distances: layers whose weights are changes from the start.
    """
    return frobenius_norms(distances)


@provides
def weight_changes(distances: Sequence[Layer]) -> Array:
    """Change of every single weight from the start, (omega,).

    Args:
        distances: layers whose weights are changes from the start.
    """
    return torch.cat([layer.weight.flatten() for layer in distances]).numpy()


@provides
def moved(frobenius_distances: Array) -> Array:
    """Frobenius distances whose sum has a logarithm; ValueError where all are 0.

    Args:
        frobenius_distances: (d,) Frobenius norm of the change of each layer's weight.
    """
    if not frobenius_distances.any():
        raise ValueError(
            "the weights are those of the start: the distance is 0, and its logarithm "
            "minus infinity"
        )
    return frobenius_distances


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
        ValueError: where a layer divides by statistics of its input.
    """
    for name, module in network.named_modules():
        divides = isinstance(module, _NormBase) and module.running_mean is None
        if divides or isinstance(module, _DIVIDING):
            raise ValueError(
                f"the path norm is not defined: {name} ({type(module).__name__}) "
                "divides by statistics of its input"
            )
    ones = torch.ones(1, *example.shape[1:], dtype=torch.float64)
    squared = folded_copy(copy.deepcopy(network).cpu().double(), ones)
    for parameter in squared.parameters():
        parameter.square_()
    return float(squared(ones).sum())


@complexity("norms", "20", "parameters")
def params(layer_sizes: Array) -> float:
    """Number of weights.

    Args:
        layer_sizes: (d,) number of weights of each layer.
    """
    return layer_sizes.sum()


@complexity("norms", "22", "inverse margin")
def inverse_margin(margin: float) -> float:
    """Inverse of the squared margin.

    Args:
        margin: of the training images, in logits, see ``prediction.margin``.
    """
    return 1 / margin**2


@complexity("norms", "L2", "L2 norm")
def l2(frobenius_norms: Array) -> float:
    """Euclidean norm of all weights.

    Args:
        frobenius_norms: (d,) Frobenius norm of each layer's weight.
    """
    return np.linalg.norm(frobenius_norms)


@complexity("norms", "L2_DIST", "L2 distance from the start")
def l2_dist(frobenius_distances: Array) -> float:
    """Euclidean distance of all weights from the initial ones.

    Args:
        frobenius_distances: (d,) Frobenius norm of the change of each layer's weight.
    """
    return np.linalg.norm(frobenius_distances)


@complexity(
    "norms", "36", "log product of Frobenius norms over margin", is_logarithm=True
)
def log_prod_of_fro_over_margin(frobenius_norms: Array, margin: float) -> float:
    """Product of squared Frobenius norms over the squared margin, its logarithm.

    Args:
        frobenius_norms: (d,) Frobenius norm of each layer's weight.
        margin: of the training images, in logits, see ``prediction.margin``.
    """
    return log_product(frobenius_norms, margin)


@complexity("norms", "37", "log product of Frobenius norms", is_logarithm=True)
def log_prod_of_fro(frobenius_norms: Array) -> float:
    """Product of squared Frobenius norms, its logarithm.

    Args:
        frobenius_norms: (d,) Frobenius norm of each layer's weight.
    """
    return log_product(frobenius_norms)


@complexity("norms", "38", "log sum of Frobenius norms over margin", is_logarithm=True)
def log_sum_of_fro_over_margin(frobenius_norms: Array, margin: float) -> float:
    """Sum of squared Frobenius norms over the squared margin, its logarithm.

    See ``log_sum``.

    Args:
        frobenius_norms: (d,) Frobenius norm of each layer's weight.
        margin: of the training images, in logits, see ``prediction.margin``.
    """
    return log_sum(frobenius_norms, margin)


@complexity("norms", "39", "log sum of Frobenius norms", is_logarithm=True)
def log_sum_of_fro(frobenius_norms: Array) -> float:
    """Sum of squared Frobenius norms, its logarithm; see ``log_sum``.

    Args:
        frobenius_norms: (d,) Frobenius norm of each layer's weight.
    """
    return log_sum(frobenius_norms)


@complexity("norms", "40", "Frobenius distance from the start")
def fro_dist(frobenius_distances: Array) -> float:
    """Squared Euclidean distance of all weights from the initial ones.

    Args:
        frobenius_distances: (d,) Frobenius norm of the change of each layer's weight.
    """
    return (frobenius_distances**2).sum()


@complexity("norms", "42", "parameter norm")
def param_norm(frobenius_norms: Array) -> float:
    """Squared Euclidean norm of all weights.

    Args:
        frobenius_norms: (d,) Frobenius norm of each layer's weight.
    """
    return (frobenius_norms**2).sum()


@measure("norms", -1, "Jiang et al. 2020, equation 44", variants=("root", "log"))
def path_norm(path_product: float, training_images: int) -> Mapping[str, float]:
    """Sum over paths of squared weights: ``sqrt(v / m)``, or its logarithm.

    Args:
        path_product: sum over paths of products of squared weights.
        training_images: m, the number of images that the network was fitted to.
    """
    logarithm = float(log(path_product))
    return {
        "root": scaled_complexity(path_product, training_images),
        "log": scaled_complexity(logarithm, training_images, is_logarithm=True),
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
