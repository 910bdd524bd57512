"""PAC-Bayes measures, made of the noise that a network's weights bear (Jiang et al. 2020)."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from helpers.measures.flatness import EPSILON, Search, found_magnitude
from helpers.measures.registry import measure


def weight_vector(layers: Sequence[Any], initial_layers: Sequence[Any] = ()) -> Tensor:
    """(omega,) float64 of all weights of layers, no biases: w, or ``w - w0`` where initial layers are given."""
    vector = torch.cat([layer.weight.detach().double().flatten() for layer in layers])
    return vector - weight_vector(initial_layers) if initial_layers else vector


def reported(raw: float, training_images: int) -> float:
    """Bring a bound or an inverse variance to the scale of a gap: ``sqrt(v / m)``; NaN for a negative v."""
    return math.sqrt(raw / training_images) if raw >= 0 else math.nan


def bound(complexity: float, sigma: float, training_images: int) -> float:
    """PAC-Bayes bound, up to constants: ``sqrt((complexity + ln(m / sigma) + 10) / m)``; Jiang et al. 2020, from equation 48 on."""
    return reported(complexity + math.log(training_images / sigma) + 10, training_images)


def gaussian_complexity(vector: Tensor, sigma: float) -> float:
    """``||v||^2 / (4 sigma^2)``; v is ``w - w0`` for a prior at the initial weights (Jiang et al. 2020, 48), ``w`` at the origin (49)."""
    return float(vector.square().sum()) / (4 * sigma**2)


def magnitude_aware_complexity(vector: Tensor, change: Tensor, sigma: float) -> float:
    """``1/4 sum_j ln([eps^2 + (sigma'^2 + 1) ||v||^2 / omega] / [eps^2 + sigma'^2 (w_j - w0_j)^2])``; Jiang et al. 2020, eqs 56 and 57.

    v is ``w - w0`` for a prior at the initial weights and ``w`` for one at the origin; the denominator has ``w - w0`` in both, as printed.
    """
    above = EPSILON**2 + (sigma**2 + 1) * vector.square().mean()
    return float((above / (EPSILON**2 + sigma**2 * change.square())).log().sum()) / 4


@measure("flatness", -1, "Jiang et al. 2020, equation 48", title="PAC-Bayes bound (from the start)")
def pacbayes_init(layers: Any, initial_layers: Any, sigma_search: Search, training_images: int) -> float:
    """Distance from the initial weights over the noise that the network bears: complexity ``||w - w0||^2 / (4 sigma^2)`` in ``bound``."""
    sigma = found_magnitude(sigma_search, "sigma")
    return bound(gaussian_complexity(weight_vector(layers, initial_layers), sigma), sigma, training_images)


@measure("flatness", -1, "Jiang et al. 2020, equation 49", title="PAC-Bayes bound (from the origin)")
def pacbayes_orig(layers: Any, sigma_search: Search, training_images: int) -> float:
    """Norm of the weights over the noise that the network bears: complexity ``||w||^2 / (4 sigma^2)`` in ``bound``."""
    sigma = found_magnitude(sigma_search, "sigma")
    return bound(gaussian_complexity(weight_vector(layers), sigma), sigma, training_images)


@measure("flatness", -1, "Jiang et al. 2020, equation 53", title="PAC-Bayes flatness")
def pacbayes_flatness(sigma_search: Search, training_images: int) -> float:
    """Inverse of the noise that the network bears: ``sqrt(1 / (sigma^2 m))``."""
    return reported(1 / found_magnitude(sigma_search, "sigma") ** 2, training_images)


@measure("flatness", -1, "Jiang et al. 2020, equation 56", title="magnitude-aware PAC-Bayes bound (from the start)")
def pacbayes_mag_init(layers: Any, initial_layers: Any, magnitude_aware_search: Search, training_images: int) -> float:
    """Distance from the initial weights over the noise, relative to each weight, that the network bears; see ``bound``."""
    change, sigma = weight_vector(layers, initial_layers), found_magnitude(magnitude_aware_search, "sigma'")
    return bound(magnitude_aware_complexity(change, change, sigma), sigma, training_images)


@measure("flatness", -1, "Jiang et al. 2020, equation 57", title="magnitude-aware PAC-Bayes bound (from the origin)")
def pacbayes_mag_orig(layers: Any, initial_layers: Any, magnitude_aware_search: Search, training_images: int) -> float:
    """Norm of the weights over the noise, relative to each weight, that the network bears; the initial weights are in it all the same."""
    change, sigma = weight_vector(layers, initial_layers), found_magnitude(magnitude_aware_search, "sigma'")
    return bound(magnitude_aware_complexity(weight_vector(layers), change, sigma), sigma, training_images)


@measure("flatness", -1, "Jiang et al. 2020, equation 61", title="magnitude-aware PAC-Bayes flatness")
def pacbayes_mag_flatness(magnitude_aware_search: Search, training_images: int) -> float:
    """Inverse of the noise, relative to each weight, that the network bears: ``sqrt(1 / (sigma'^2 m))``."""
    return reported(1 / found_magnitude(magnitude_aware_search, "sigma'") ** 2, training_images)
