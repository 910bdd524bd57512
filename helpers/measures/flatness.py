"""How much noise a network's weights bear: the noise, and the search for the magnitude that costs a tenth of the accuracy."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from helpers.measures import traced_layers
from helpers.measures.evidence import provides
from helpers.networks.hooks import evaluation_mode, prepared

DEVIATION = 0.1  # of the accuracy, which defines the magnitude
EPSILON = 1e-3  # standard deviation of the noise on a weight of 0, in the magnitude-aware version; Jiang et al. 2020


class NoiseSample(NamedTuple):
    """Images as the network expects them, with their labels, on its device."""

    images: Tensor  # (n, 3, S, S) float32, channels last
    labels: Tensor  # (n,) int64


class Search(NamedTuple):
    """The magnitude at which accuracy deviates by the wanted amount, and how it was found."""

    magnitude: float  # the last one tried
    passes: int  # magnitudes tried
    never_dropped: bool  # all of them were too small
    always_dropped: bool  # all of them were too large
    converged: bool  # the deviation is within the tolerance; where none of the three holds, accuracy jumps at the magnitude


def first_images(images: Any, normalise: Any, device: Any, at_most: int) -> NoiseSample:
    """Take the first of the images, whose order was drawn (see ``common_set``), or all if there are no more; ValueError without any."""
    if not len(images):
        raise ValueError("there are no training images to judge a noisy network by")
    return NoiseSample(prepared(images.images[:at_most], normalise, device), images.labels[:at_most].to(device))


@provides
def flatness_sample(images: Any, normalise: Any, device: Any, flatness_images: int) -> NoiseSample:
    """Choose the training images that noisy networks are judged by, see ``first_images``."""
    return first_images(images, normalise, device, flatness_images)


@provides
def flat_network(network: nn.Module, example: Tensor) -> nn.Module:
    """Copy a network with its batch normalisations folded into convolutions, and each an identity; ValueError if that changes it."""
    flat = deepcopy(network)
    with torch.no_grad(), evaluation_mode(flat), traced_layers.Trace(flat) as trace:
        expected = flat(example)
    for layer, norm in [(use.module, use.norm) for use in trace.found.values() if use.norm is not None]:
        if isinstance(layer.weight, nn.Parameter):  # one that is computed from others cannot be replaced; its norm stays
            weight, bias = traced_layers.folded(layer.weight, layer.bias, norm)
            layer.weight, layer.bias = nn.Parameter(weight.to(layer.weight)), nn.Parameter(bias.to(layer.weight))
            norm.weight, norm.bias = None, None  # an identity, and not taken out, since some also apply an activation
            norm.running_mean, norm.running_var = torch.zeros_like(norm.running_mean), torch.full_like(norm.running_var, 1 - norm.eps)
    with torch.no_grad(), evaluation_mode(flat):
        if not torch.allclose(flat(example), expected, rtol=0, atol=1e-3 * float(expected.abs().max())):
            raise ValueError("batch normalisation cannot be folded into the convolutions: the network would give other logits")
    return flat


@contextmanager
def perturbed(network: nn.Module, additions: Sequence[Tensor]) -> Iterator[nn.Module]:
    """Add one tensor to each of ``network.parameters()``, in order, while the context is open; they come back bit by bit in any case."""
    clean = [(parameter, parameter.detach().clone()) for parameter in network.parameters()]  # subtracting would leave rounding errors
    try:
        with torch.no_grad():
            for (parameter, _), addition in zip(clean, additions, strict=True):
                parameter.add_(addition)
        yield network
    finally:
        with torch.no_grad():
            for parameter, value in clean:
                parameter.copy_(value)


def right(logits: Tensor, labels: Tensor) -> int:
    """Count the images that are classified correctly; one with a NaN among its logits, from too large noise, is not."""
    return int(((logits.argmax(1) == labels) & ~logits.isnan().any(1)).sum())


@torch.inference_mode()
def accuracy(network: nn.Module, sample: NoiseSample, batch_size: int) -> float:
    """Fraction of a sample that a network classifies correctly, in the mode that it is in."""
    batches = zip(sample.images.split(batch_size), sample.labels.split(batch_size), strict=True)
    return sum(right(network(images), labels) for images, labels in batches) / len(sample.labels)


def standard_deviation(weight: Tensor, magnitude: float, magnitude_aware: bool) -> Tensor | float:
    """Spread of the noise on each weight, whose variance is ``sigma^2`` or, magnitude-aware, ``sigma'^2 w_j^2 + eps^2``; Jiang et al."""
    return (magnitude**2 * weight.detach().square() + EPSILON**2).sqrt() if magnitude_aware else magnitude


def noisy(
    network: nn.Module, sample: NoiseSample, magnitude_aware: bool, draws: int, batch_size: int, seed: int
) -> Callable[[float], float]:
    """Mean accuracy of copies of a network with Gaussian noise on all parameters, as a function of the noise's magnitude.

    All magnitudes share their draws (common random numbers), so that accuracy follows the magnitude without a jitter. The draws are kept,
    ``draws`` times the memory of the network: drawing takes longer than a pass on a GPU. They are made on the CPU: alike on all devices.
    """
    generator = torch.Generator().manual_seed(seed)
    normals = [[torch.randn(p.shape, generator=generator).to(p) for p in network.parameters()] for _ in range(draws)]

    def accuracy_at(magnitude: float) -> float:
        found, spreads = [], [standard_deviation(parameter, magnitude, magnitude_aware) for parameter in network.parameters()]
        for draw in normals:
            with perturbed(network, [spread * normal for spread, normal in zip(spreads, draw, strict=True)]):
                found.append(accuracy(network, sample, batch_size))
        return math.fsum(found) / len(found)

    return accuracy_at


def search_magnitude(
    accuracy_at: Callable[[float], float],
    clean_accuracy: float,
    *,
    deviation: float = DEVIATION,
    tolerance: float = 0.01,
    low: float = 0.0,
    high: float = 2.0,
    halvings: int = 15,
) -> Search:
    """Halve [low, high] until ``| |accuracy(sigma) - clean accuracy| - deviation | < tolerance``, or ``halvings`` magnitudes were tried.

    As in Dziugaite et al.'s public code: sigma is the middle; a larger deviation makes it the upper end, else the lower. Both accuracies
    are fractions, on the same images; best without a jitter. When no halving is allowed, nothing is found.
    """
    lowest, highest, magnitude = low, high, high
    for passes in range(1, halvings + 1):
        magnitude = (low + high) / 2
        excess = abs(accuracy_at(magnitude) - clean_accuracy) - deviation
        if abs(excess) < tolerance:
            return Search(magnitude, passes, False, False, True)
        low, high = (low, magnitude) if excess > 0 else (magnitude, high)
    return Search(magnitude, halvings, high == highest, low == lowest, False)


def found_magnitude(search: Search, name: str) -> float:
    """Magnitude that a search found; ValueError when all magnitudes tried were too small, or all too large."""
    if search.never_dropped:
        raise ValueError(f"accuracy never dropped by {DEVIATION:g} up to {name} = {search.magnitude:.3g}")
    if search.always_dropped:
        raise ValueError(f"accuracy changes by more than {DEVIATION:g} at every {name} down to {search.magnitude:.1g}")
    return search.magnitude


def _search(
    network: nn.Module, sample: NoiseSample, magnitude_aware: bool, draws: int, halvings: int, batch_size: int, seed: int
) -> Search:
    accuracy_at = noisy(network, sample, magnitude_aware, draws, batch_size, seed)
    return search_magnitude(accuracy_at, accuracy(network, sample, batch_size), halvings=halvings)


@provides
def sigma_search(
    flat_network: nn.Module, flatness_sample: NoiseSample, flatness_draws: int, flatness_halvings: int, batch_size: int, seed: int
) -> Search:
    """Search for the standard deviation sigma of the noise, the same on every weight, that changes accuracy by 0.1."""
    return _search(flat_network, flatness_sample, False, flatness_draws, flatness_halvings, batch_size, seed)


@provides
def magnitude_aware_search(
    flat_network: nn.Module, flatness_sample: NoiseSample, flatness_draws: int, flatness_halvings: int, batch_size: int, seed: int
) -> Search:
    """Search for the standard deviation sigma' of the noise, in units of each weight, that changes accuracy by 0.1."""
    return _search(flat_network, flatness_sample, True, flatness_draws, flatness_halvings, batch_size, seed)
