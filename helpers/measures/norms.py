"""Norms of the weights: how many there are, how large, how far from their start, and the path norm (Jiang et al. 2020)."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from helpers.measures.evidence import provides
from helpers.measures.registry import measure
from helpers.measures.traced_layers import Layer, check_same_layout, folded, normalised_convolutions

_Array = NDArray[np.float64]

# Layers that divide by statistics of their input, which is no sum over paths.
_DIVIDING = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.LocalResponseNorm)


def logarithm(values: ArrayLike) -> _Array:
    """Natural logarithm, NaN where a value is not above 0."""
    values = np.asarray(values, dtype=float)
    return np.log(np.where(values > 0, values, np.nan))


def reported(value: float, images: int) -> float:
    """Scale a complexity as Dziugaite et al. 2020 (code) report it: ``sqrt(value / images)``; NaN below 0.

    Args:
        value: a complexity that bounds the squared gap times the number of images.
        images: number of training images.
    """
    return math.sqrt(value / images) if value >= 0 else math.nan


def reported_log(value: float, images: int) -> float:
    """Scale the logarithm of a complexity likewise: ``(value - ln images) / 2``, the logarithm of ``reported``'s root."""
    return 0.5 * (value - math.log(images))


@provides
def frobenius_norms(layers: Sequence[Layer]) -> _Array:
    """Root of the sum of squared weights of each layer, batch normalisation folded in, biases left out: (d,)."""
    return np.array([float(torch.linalg.vector_norm(layer.weight)) for layer in layers])


@provides
def distances(layers: Sequence[Layer], initial_layers: Sequence[Layer]) -> list[Layer]:
    """Subtract the initial weights, batch normalisation folded into both; everything else is the trained layer's.

    Raises:
        ValueError: the layers do not match.
    """
    check_same_layout(layers, initial_layers)
    return [replace(layer, weight=layer.weight - start.weight) for layer, start in zip(layers, initial_layers, strict=True)]


def moved_norms(distances: Sequence[Layer]) -> _Array:
    """Frobenius norms of the differences from the start, (d,), for what takes their logarithm.

    Raises:
        ValueError: all are 0.
    """
    norms = frobenius_norms(distances)
    if not norms.any():
        raise ValueError("the weights are those of the start: the distance is 0, and its logarithm minus infinity")
    return norms


def over_margin(value: float, margin: float) -> float:
    """Take the margin from the logarithm of a complexity: ``value - 2 ln(margin)``; NaN for a margin of 0."""
    return float(value - 2 * logarithm(margin))


def log_product(norms: ArrayLike) -> float:
    """Logarithm of the product of squared norms, ``sum of 2 ln(norm)``; NaN when one is 0."""
    return float(2 * logarithm(norms).sum())


def log_mean(log_product: float, layers: int) -> float:
    """Logarithm of d times the geometric mean of d factors, from that of their product: ``ln d + log_product / d``.

    Jiang et al. 2020 call it a sum (equations 34, 35, 38, 39).
    """
    return math.log(layers) + log_product / layers


def inverse_square(margin: float) -> float:
    """``1 / margin²``; NaN for a margin of 0 or below."""
    inverse = 1 / margin if margin > 0 else math.nan
    return inverse * inverse


@torch.no_grad()
def squared_paths(network: nn.Module, shape: Sequence[int]) -> float:
    """Sum over all paths from input to output of the product of squared weights along it; Jiang et al. 2020, equation (44).

    Every parameter is squared, biases too, and an image of ones is sent through in evaluation mode; the sum of the outputs is exact
    for ReLU networks, save that max-pooling takes the largest path of a window. Batch normalisation is folded first: it stays in
    place as the scale and shift of its running statistics, and the bias of the convolution before it moves into that shift. All in
    float64 on a copy; the network is left as it is.

    Args:
        network: a classifier.
        shape: (3, S, S) of one image.

    Returns:
        At least 0 for ReLU networks; infinite where float64 ends.

    Raises:
        ValueError: a layer divides by statistics of its input, or the network does not run in float64.
    """
    for name, module in network.named_modules():
        if isinstance(module, _DIVIDING) or (isinstance(module, _NormBase) and module.running_mean is None):
            raise ValueError(f"the path norm is not defined: {name} ({type(module).__name__}) divides by statistics of its input")
    ones = torch.ones(1, *shape, dtype=torch.float64)
    try:
        squared = copy.deepcopy(network).cpu().double().eval()
        _unfold_statistics(squared, {norm: convolution for convolution, norm in normalised_convolutions(squared, ones)})
        for parameter in squared.parameters():
            parameter.square_()
        return float(squared(ones).sum())
    except RuntimeError as fault:
        raise ValueError(f"the path norm cannot be had, the network does not run in float64: {str(fault).splitlines()[0]}") from fault


def _unfold_statistics(network: nn.Module, convolutions: dict[nn.Module, nn.Conv2d]) -> None:
    """Turn running statistics into scale and shift, so that squaring these squares the folded weights."""
    for norm in [module for module in network.modules() if isinstance(module, _NormBase)]:
        bias = convolutions[norm].bias if norm in convolutions else None
        scale, shift = folded(torch.ones_like(norm.running_mean), bias, norm)
        if bias is not None:
            bias.zero_()
        norm.weight, norm.bias, norm.eps = nn.Parameter(scale), nn.Parameter(shift), 0.0
        norm.running_mean.zero_()
        norm.running_var.fill_(1)


@provides
def path_product(network: nn.Module, example: torch.Tensor) -> float:
    """Squared path norm at the size of the training images, see ``squared_paths``."""
    return squared_paths(network, example.shape[1:])


@measure("norms", -1, "Jiang et al. 2020, eq. 20", title="parameters")
def params(layers: list[Layer], training_images: int) -> float:
    """Number of weights, biases and batch normalisation left out: ``sqrt(omega / m)``."""
    return reported(sum(layer.weight.numel() for layer in layers), training_images)


@measure("norms", -1, "Jiang et al. 2020, eq. 22")
def inverse_margin(margin: float, training_images: int) -> float:
    """Inverse of the 10th percentile of the margins: ``sqrt(1 / (gamma² m))``."""
    return reported(inverse_square(margin), training_images)


@measure("norms", -1, "Dziugaite et al. 2020 (code), L2", title="L2 norm")
def l2(frobenius_norms: _Array, training_images: int) -> float:
    """Length of all weights as one vector: ``sqrt(|w| / m)``."""
    return reported(float(np.linalg.norm(frobenius_norms)), training_images)


@measure("norms", -1, "Dziugaite et al. 2020 (code), L2_DIST", title="L2 distance from the start")
def l2_dist(distances: list[Layer], training_images: int) -> float:
    """Distance of all weights from their initial values: ``sqrt(|w - w0| / m)``."""
    return reported(float(np.linalg.norm(frobenius_norms(distances))), training_images)


@measure("norms", -1, "Jiang et al. 2020, eq. 36", title="log product of Frobenius norms over margin")
def log_prod_of_fro_over_margin(frobenius_norms: _Array, margin: float, training_images: int) -> float:
    """Product of all squared Frobenius norms over the squared margin, as half a logarithm per image."""
    return reported_log(over_margin(log_product(frobenius_norms), margin), training_images)


@measure("norms", -1, "Jiang et al. 2020, eq. 37", title="log product of Frobenius norms")
def log_prod_of_fro(frobenius_norms: _Array, training_images: int) -> float:
    """Product of all squared Frobenius norms, as half a logarithm per image."""
    return reported_log(log_product(frobenius_norms), training_images)


@measure("norms", -1, "Jiang et al. 2020, eq. 38", title="log sum of Frobenius norms over margin")
def log_sum_of_fro_over_margin(frobenius_norms: _Array, margin: float, training_images: int) -> float:
    """Number of layers times the geometric mean of (36)'s factors, as half a logarithm per image."""
    return reported_log(log_mean(over_margin(log_product(frobenius_norms), margin), len(frobenius_norms)), training_images)


@measure("norms", -1, "Jiang et al. 2020, eq. 39", title="log sum of Frobenius norms")
def log_sum_of_fro(frobenius_norms: _Array, training_images: int) -> float:
    """Number of layers times the geometric mean of the squared Frobenius norms, as half a logarithm per image."""
    return reported_log(log_mean(log_product(frobenius_norms), len(frobenius_norms)), training_images)


@measure("norms", -1, "Jiang et al. 2020, eq. 40", title="Frobenius distance from the start")
def fro_dist(distances: list[Layer], training_images: int) -> float:
    """Sum of squared distances of the weights from their initial values: ``sqrt(|w - w0|² / m)``."""
    return reported(float(np.square(frobenius_norms(distances)).sum()), training_images)


@measure("norms", -1, "Jiang et al. 2020, eq. 42", title="parameter norm")
def param_norm(frobenius_norms: _Array, training_images: int) -> float:
    """Sum of all squared weights: ``sqrt(|w|² / m)``."""
    return reported(float(np.square(frobenius_norms).sum()), training_images)


@measure("norms", -1, "Jiang et al. 2020, eq. 44", variants=("root", "log"))
def path_norm(path_product: float, training_images: int) -> Mapping[str, float]:
    """Sum over paths of squared weights: ``sqrt(v / m)``, or half the logarithm of ``v / m``."""
    return _root_and_log(path_product, training_images)


@measure("norms", -1, "Jiang et al. 2020, eq. 43", variants=("root", "log"))
def path_norm_over_margin(path_product: float, margin: float, training_images: int) -> Mapping[str, float]:
    """Sum over paths of squared weights over the squared margin, scaled as ``path_norm``."""
    return _root_and_log(path_product * inverse_square(margin), training_images)


def _root_and_log(value: float, images: int) -> dict[str, float]:
    return {"root": reported(value, images), "log": reported_log(float(logarithm(value)), images)}
