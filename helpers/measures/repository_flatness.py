"""The flatness measures as the public code of Dziugaite et al. 2020 computes them, to compare with values that were made by it.

It differs from the theory in three points: a variance is passed where the sampler expects a standard deviation; the noise also moves the
scale and shift that a folded batch normalisation leaves behind (1 and 0); and every magnitude draws anew, so accuracy jitters.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from helpers.measures.evidence import provides
from helpers.measures.flatness import EPSILON, Sample, accuracy, found_magnitude, perturbed, search_magnitude
from helpers.measures.layers import folded, normalised_convolutions
from helpers.measures.pacbayes import bound, gaussian_complexity, magnitude_aware_complexity, reported, weight_vector
from helpers.measures.registry import measure

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


def searched(network: nn.Module, sample: Sample, clean: float, draws: int, halvings: int, batch_size: int, seed: int, aware: bool) -> float:
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
    flatness_sample: Sample,
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
    plain = [reported(1 / sigma**2, training_images), *(bound(complexity, sigma, training_images) for complexity in complexities)]
    magnitude = [reported(1 / aware**2, training_images), *(bound(complexity, aware, training_images) for complexity in aware_complexities)]
    return dict(zip(_NAMES, plain + magnitude, strict=True))
