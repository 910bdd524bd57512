"""PAC-Bayes measures from the noise that weights bear (Jiang et al. 2020), and as the code of Dziugaite et al. 2020 computes them."""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from helpers.measures.evidence import provides
from helpers.measures.flatness import EPSILON, NoiseSample, Search, accuracy, found_magnitude, perturbed, search_magnitude
from helpers.measures.registry import measure
from helpers.measures.traced_layers import folded, normalised_convolutions


def weight_vector(layers: Sequence[Any], initial_layers: Sequence[Any] = ()) -> Tensor:
    """(omega,) float64 of all weights of layers, no biases: w, or ``w - w0`` where initial layers are given."""
    vector = torch.cat([layer.weight.detach().double().flatten() for layer in layers])
    return vector - weight_vector(initial_layers) if initial_layers else vector


def gap_scale(raw: float, training_images: int) -> float:
    """Bring a bound or an inverse variance to the scale of a gap: ``sqrt(v / m)``; NaN for a negative v."""
    return math.sqrt(raw / training_images) if raw >= 0 else math.nan


def bound(complexity: float, sigma: float, training_images: int) -> float:
    """PAC-Bayes bound, up to constants: ``sqrt((complexity + ln(m / sigma) + 10) / m)``; Jiang et al. 2020, from equation 48 on."""
    return gap_scale(complexity + math.log(training_images / sigma) + 10, training_images)


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
    return gap_scale(1 / found_magnitude(sigma_search, "sigma") ** 2, training_images)


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
    return gap_scale(1 / found_magnitude(magnitude_aware_search, "sigma'") ** 2, training_images)


# The code's own offset of its seed, without which its draws would be others.
_SEED = 10348628753


class Sigmas(NamedTuple):
    """The two magnitudes in the code's units."""

    plain: float
    magnitude_aware: float


def unit_normalised(network: nn.Module, example: Tensor) -> nn.Module:
    """Copy a network with each batch normalisation folded into its convolution and left in place with scale 1, shift 0, mean 0, variance 1.

    Raises:
        ValueError: a convolution in front of a batch normalisation has no bias to fold into; the public code fails on it too.
    """
    flat = deepcopy(network)
    with torch.no_grad():
        for convolution, norm in normalised_convolutions(flat, example):
            if convolution.bias is None or norm.weight is None:
                raise ValueError("the public code needs a bias in every convolution and a scale in every batch normalisation")
            weight, bias = folded(convolution.weight, convolution.bias, norm)
            convolution.weight.copy_(weight)
            convolution.bias.copy_(bias)
            for tensor, value in ((norm.weight, 1.0), (norm.bias, 0.0), (norm.running_mean, 0.0), (norm.running_var, 1.0)):
                tensor.fill_(value)
    return flat


def searched(
    network: nn.Module, sample: NoiseSample, clean: float, draws: int, halvings: int, batch_size: int, seed: int, aware: bool
) -> float:
    """Find sigma as the code does; its noise has the standard deviation ``sigma^2``, or ``sigma^2 w^2 + eps^2`` if magnitude-aware.

    Raises:
        ValueError: accuracy dropped at no magnitude, or at all.
    """
    generator = torch.Generator().manual_seed(_SEED + seed)

    def accuracy_at(sigma: float) -> float:
        found = []
        for _ in range(draws):
            weights = [parameter.detach().cpu() for parameter in network.parameters()]
            spreads = [sigma**2 * w.abs() ** 2 + EPSILON**2 if aware else torch.full_like(w, sigma**2) for w in weights]
            noise = [torch.normal(torch.zeros_like(spread), spread, generator=generator) for spread in spreads]
            with perturbed(network, [n.to(sample.images.device) for n in noise]):
                found.append(accuracy(network, sample, batch_size))
        return sum(found) / len(found)

    return found_magnitude(search_magnitude(accuracy_at, clean, halvings=halvings), "sigma")


@provides
def repository_sigmas(
    network: nn.Module,
    example: Tensor,
    flatness_sample: NoiseSample,
    repository_parity: bool,
    flatness_draws: int,
    flatness_halvings: int,
    batch_size: int,
    seed: int,
) -> Sigmas:
    """Search for both magnitudes on the sample, see ``searched``.

    Raises:
        ValueError: the setting ``repository_parity`` is off, or as in ``unit_normalised`` and ``searched``.
    """
    if not repository_parity:
        raise ValueError("not computed: it repeats the flatness search with the public code's faults; set repository_parity to have it")
    flat = unit_normalised(network, example)
    clean = accuracy(flat, flatness_sample, batch_size)
    given = (flatness_sample, clean, flatness_draws, flatness_halvings, batch_size, seed)
    return Sigmas(*(searched(flat, *given, aware) for aware in (False, True)))


_NAMES = ("PACBAYES_FLATNESS", "PACBAYES_INIT", "PACBAYES_ORIG", "PACBAYES_MAG_FLATNESS", "PACBAYES_MAG_INIT", "PACBAYES_MAG_ORIG")


@measure("flatness", -1, "Dziugaite et al. 2020, public code", title="PAC-Bayes of the public code", variants=_NAMES)
def repository_pacbayes(layers: Any, initial_layers: Any, repository_sigmas: Sigmas, training_images: int) -> Mapping[str, float]:
    """The six PAC-Bayes measures under the names and with the values of the public code; only for comparison with it."""
    weights, change, (sigma, aware) = weight_vector(layers), weight_vector(layers, initial_layers), repository_sigmas
    complexities = [gaussian_complexity(vector, sigma) for vector in (change, weights)]
    aware_complexities = [magnitude_aware_complexity(vector, change, aware) for vector in (change, weights)]
    plain = [gap_scale(1 / sigma**2, training_images), *(bound(complexity, sigma, training_images) for complexity in complexities)]
    magnitude = [
        gap_scale(1 / aware**2, training_images),
        *(bound(complexity, aware, training_images) for complexity in aware_complexities),
    ]
    return dict(zip(_NAMES, plain + magnitude, strict=True))
