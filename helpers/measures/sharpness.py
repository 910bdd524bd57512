"""How much the worst small change of a network's weights costs: gradient ascent in a box, and the measures made of its size."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from helpers.measures import flatness, pacbayes
from helpers.measures.evidence import provides
from helpers.measures.flatness import DEVIATION, NoiseSample, Search
from helpers.measures.registry import measure

RESTARTS = 2  # ascents from different starts; the worst counts
FIRST = 2.0**-10  # radius that is tried first; those of trained networks are a few factors of 4 away
HIGHEST = 2.0  # radius that is tried at most
TOLERANCE = 0.01  # of the deviation of accuracy, as for the noise

# Steps add up to 2.5 times the box's half-width, so that ascent can cross it from any start and come back.
_TRAVEL = 2.5


@provides
def sharpness_sample(images: Any, normalise: Any, device: Any, sharpness_images: int) -> NoiseSample:
    """Choose the training images that the worst networks are judged by, see ``flatness.first_images``."""
    return flatness.first_images(images, normalise, device, sharpness_images)


@contextmanager
def differentiable(network: nn.Module) -> Iterator[list[nn.Parameter]]:
    """Let gradients reach all parameters, frozen ones too, while the context is open; afterwards they are as they were.

    Yields:
        The parameters, in the order of ``network.parameters()``.
    """
    parameters = list(network.parameters())
    flags = [parameter.requires_grad for parameter in parameters]
    try:
        with torch.enable_grad():
            yield [parameter.requires_grad_() for parameter in parameters]
    finally:
        for parameter, flag in zip(parameters, flags, strict=True):
            parameter.requires_grad_(flag)


def half_widths(parameters: Sequence[Tensor], radius: float, magnitude_aware: bool) -> list[Tensor]:
    """Half-widths of the box around each weight: alpha, or ``alpha' (|w_j| + 1)`` in the magnitude-aware version."""
    scales = [parameter.detach().abs() + 1 if magnitude_aware else torch.ones_like(parameter) for parameter in parameters]
    return [radius * scale for scale in scales]


def slope(network: nn.Module, parameters: Sequence[Tensor], sample: NoiseSample, batch_size: int) -> tuple[list[Tensor], float]:
    """Differentiate the mean cross-entropy of a sample, nats; ``.grad`` stays as it is.

    Returns:
        One gradient per parameter, 0 for one that the network does not use, and the accuracy, a fraction.
    """
    total, correct = [torch.zeros_like(parameter) for parameter in parameters], 0
    for images, labels in zip(sample.images.split(batch_size), sample.labels.split(batch_size), strict=True):
        logits = network(images)
        # In float64 the slope of an image survives a margin of 36 in logits, in float32 only one of 17.
        loss = cross_entropy(logits.double(), labels, reduction="sum") / len(sample.labels)
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        total = [old if new is None else old + new for old, new in zip(total, gradients, strict=True)]
        correct += flatness.right(logits, labels)
    return total, correct / len(sample.labels)


def ascent(
    network: nn.Module,
    sample: NoiseSample,
    widths: Sequence[Tensor],
    generator: torch.Generator,
    *,
    steps: int,
    enough: float,
    batch_size: int,
) -> float:
    """Climb the loss by signed gradients from a random start in half the box: the lowest accuracy on the way, the end included.

    Each step moves every weight by ``2.5 / steps`` of its half-width up the loss, and no further than the edge of the box.

    Args:
        network: in evaluation mode; its parameters are the middle of the box.
        sample: what it is judged by.
        widths: half-width of the box for each parameter.
        generator: of the start, on the CPU.
        steps: of the ascent, one forward and backward pass over the sample each.
        enough: stop as soon as accuracy is below this.
        batch_size: images per pass.
    """
    shifts = [width * (torch.rand(width.shape, generator=generator).to(width) - 0.5) for width in widths]
    lowest = math.inf
    for _ in range(steps):
        with flatness.perturbed(network, shifts), differentiable(network) as parameters:
            gradients, reached = slope(network, parameters, sample, batch_size)
        lowest = min(lowest, reached)
        if lowest < enough:
            return lowest
        # A weight whose gradient is no number stays where it is.
        moves = [_TRAVEL / steps * width * gradient.nan_to_num().sign() for width, gradient in zip(widths, gradients, strict=True)]
        shifts = [(shift + move).clamp(-width, width) for shift, move, width in zip(shifts, moves, widths, strict=True)]
    with flatness.perturbed(network, shifts):
        return min(lowest, flatness.accuracy(network, sample, batch_size))


def worst_accuracy(
    network: nn.Module,
    sample: NoiseSample,
    radius: float,
    *,
    magnitude_aware: bool,
    steps: int,
    restarts: int = RESTARTS,
    seed: int = 0,
    enough: float = -math.inf,
    batch_size: int = 256,
) -> float:
    """Lowest accuracy that gradient ascent finds in a box around the weights: ``|u_j| <= alpha`` or ``|u_j| <= alpha' (|w_j| + 1)``.

    Source: Jiang et al. 2020, equations 51 to 62, with the ascent of public re-implementations, see ``ascent``. It is an upper bound of
    the true worst. In units of the box the starts are the same for every radius. Weights, gradients and ``requires_grad`` are left as
    they were.

    Args:
        network: in evaluation mode.
        sample: what it is judged by.
        radius: alpha or alpha', at least 0.
        magnitude_aware: which of them.
        steps: of each ascent.
        restarts: ascents.
        seed: of the starts.
        enough: stop as soon as accuracy is below this; what is returned is then below it, but not the lowest.
        batch_size: images per pass.

    Returns:
        A fraction in [0, 1].

    Raises:
        ValueError: no ascent or no step is allowed.
    """
    if restarts < 1 or steps < 1:
        raise ValueError(f"restarts {restarts} and steps {steps} must both be at least 1")
    widths = half_widths(list(network.parameters()), radius, magnitude_aware)
    generator, lowest = torch.Generator().manual_seed(seed), math.inf
    for _ in range(restarts):
        if lowest >= enough:
            lowest = min(lowest, ascent(network, sample, widths, generator, steps=steps, enough=enough, batch_size=batch_size))
    return lowest


def search_radius(
    accuracy_at: Callable[[float], float], clean_accuracy: float, *, first: float = FIRST, highest: float = HIGHEST, tries: int = 15
) -> Search:
    """Find the radius at which accuracy deviates by 0.1, within 0.01, in few tries.

    Where the deviation grows with the radius, this meets the same crossing as halving [0, 2] (``flatness.search_magnitude``), which
    spends some 8 passes on coming down to the radii of trained networks. Here the radius goes up or down by factors of 4 until the
    crossing is bracketed, then to the bracket's geometric mean. A bracket within 1 % ends the search too, as where accuracy jumps.

    Args:
        accuracy_at: radius to accuracy, a fraction.
        clean_accuracy: at radius 0, on the same images.
        first: radius tried first.
        highest: largest radius.
        tries: radii at most, at least 1.
    """
    low, high, radius, passes = 0.0, math.inf, first, 0
    while passes < tries and low < highest and high > 1.01 * low:
        radius, passes = _next_radius(low, high, first, highest), passes + 1
        excess = abs(accuracy_at(radius) - clean_accuracy) - DEVIATION
        if abs(excess) < TOLERANCE:
            return Search(radius, passes, False, False, True)
        low, high = (low, radius) if excess > 0 else (radius, high)
    return Search(radius, passes, high == math.inf, low == 0, False)


def _next_radius(low: float, high: float, first: float, highest: float) -> float:
    """Radius to try when the crossing is known to lie above low (0: nothing known) and below high (infinite: nothing known)."""
    if high == math.inf:
        return min(4 * low, highest) if low else first
    return math.sqrt(low * high) if low else high / 4


def _search(network: nn.Module, sample: NoiseSample, magnitude_aware: bool, steps: int, tries: int, batch_size: int, seed: int) -> Search:
    clean = flatness.accuracy(network, sample, batch_size)
    options = {"magnitude_aware": magnitude_aware, "steps": steps, "seed": seed, "batch_size": batch_size}
    # Below this the deviation is too large whatever the ascent would find in addition, so that the search decides in the same way.
    enough = clean - DEVIATION - TOLERANCE
    return search_radius(partial(worst_accuracy, network, sample, enough=enough, **options), clean, tries=tries)


@provides
def radius_search(
    flat_network: nn.Module,
    sharpness_sample: NoiseSample,
    sharpness_steps: int,
    flatness_halvings: int,
    gradient_batch_size: int,
    seed: int,
) -> Search:
    """Search for the half-width alpha of the box, the same on every weight, whose worst point changes accuracy by 0.1."""
    return _search(flat_network, sharpness_sample, False, sharpness_steps, flatness_halvings, gradient_batch_size, seed)


@provides
def magnitude_aware_radius_search(
    flat_network: nn.Module,
    sharpness_sample: NoiseSample,
    sharpness_steps: int,
    flatness_halvings: int,
    gradient_batch_size: int,
    seed: int,
) -> Search:
    """Search for the half-width alpha' of the box, in units of ``|w_j| + 1``, whose worst point changes accuracy by 0.1."""
    return _search(flat_network, sharpness_sample, True, sharpness_steps, flatness_halvings, gradient_batch_size, seed)


def _bound(vector: Tensor, radius_search: Search, sigma_search: Search, training_images: int) -> float:
    """Sharpness bound: complexity ``||v||^2 ln(2 omega) / (4 alpha^2)`` in ``pacbayes.bound``, whose sigma is the noise's."""
    alpha, sigma = flatness.found_magnitude(radius_search, "alpha"), flatness.found_magnitude(sigma_search, "sigma")
    complexity = float(vector.square().sum()) * math.log(2 * len(vector)) / (4 * alpha**2)
    return pacbayes.bound(complexity, sigma, training_images)


@measure("flatness", -1, "Jiang et al. 2020, equation 51", title="sharpness bound (from the start)")
def sharpness_init(layers: Any, initial_layers: Any, radius_search: Search, sigma_search: Search, training_images: int) -> float:
    """Distance from the initial weights over the worst change that the network bears; see ``_bound``."""
    return _bound(pacbayes.weight_vector(layers, initial_layers), radius_search, sigma_search, training_images)


@measure("flatness", -1, "Jiang et al. 2020, equation 52", title="sharpness bound (from the origin)")
def sharpness_orig(layers: Any, radius_search: Search, sigma_search: Search, training_images: int) -> float:
    """Norm of the weights over the worst change that the network bears; see ``_bound``."""
    return _bound(pacbayes.weight_vector(layers), radius_search, sigma_search, training_images)


@measure("flatness", -1, "Jiang et al. 2020, equation 54", title="sharpness")
def sharpness_flatness(radius_search: Search, training_images: int) -> float:
    """Inverse of the worst change that the network bears: ``sqrt(1 / (alpha^2 m))``."""
    return pacbayes.gap_scale(1 / flatness.found_magnitude(radius_search, "alpha") ** 2, training_images)


@measure("flatness", -1, "Jiang et al. 2020, equation 62", title="magnitude-aware sharpness")
def sharpness_mag_flatness(magnitude_aware_radius_search: Search, training_images: int) -> float:
    """Inverse of the worst change, in units of ``|w_j| + 1``, that the network bears: ``sqrt(1 / (alpha'^2 m))``."""
    return pacbayes.gap_scale(1 / flatness.found_magnitude(magnitude_aware_radius_search, "alpha'") ** 2, training_images)
