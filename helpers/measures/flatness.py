"""PAC-Bayes measures and sharpness: accuracy under changes of the weights.

A measure with an argument such as ``sigma`` gets what the function of this name
returns; arguments of that function, under ``@provides``, are computed first likewise.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from helpers.measures.evidence import provides
from helpers.measures.norms import complexity
from helpers.measures.passes import Sample
from helpers.networks.faults import Undefined
from helpers.statistics.correlate import Array

# (magnitude_aware, magnitude of a change of the weights) -> drop of accuracy. The
# magnitude of a magnitude-aware change is in units of each weight.
DropAt = Callable[[bool, float], float]

TARGET_DROP = 0.1  # of accuracy: a search looks for the magnitude that causes it
TOLERANCE = 0.01  # by which a drop may miss the target
HIGHEST = 2.0  # magnitude that is tried at most
# A search ends when the smallest magnitude above the target is less than this many
# times the largest below it.
BRACKET = 1.1
EPSILON = 1e-3  # standard deviation of magnitude-aware noise on a weight of 0
# Length of the whole path of an ascent in half-widths of the box: enough to cross the
# box from any start and come back.
_TRAVEL = 2.5


def search(
    drop_at: Callable[[float], float], first: float, tries: int, name: str
) -> float:
    """Find the magnitude of a change that lowers accuracy by 10 points.

    Small drops grow about as the square of the magnitude, which gives the steps until
    the target lies between two magnitudes. The next one is then where the drop crosses
    the target, if its logarithm is linear in that of the magnitude.

    Args:
        drop_at: drop of accuracy at a magnitude.
        first: magnitude that is tried first; a good guess saves tries.
        tries: magnitudes that are tried at most.
        name: of the magnitude, for messages.

    Returns:
        A magnitude whose drop is within ``TOLERANCE`` of ``TARGET_DROP``. Where none of
        those tried is, the crossing between the closest two, which was not tried
        itself; they differ by less than ``BRACKET`` unless ``tries`` ran out.

    Raises:
        Undefined: where all magnitudes were too small, up to ``HIGHEST``, or too
            large.

    Example:
        >>> round(search(lambda magnitude: 10 * magnitude**2, 0.01, 15, "sigma"), 2)
        0.1
    """
    below: _Try | None = None  # the target
    above: _Try | None = None
    log_magnitude = math.log(first)
    for _ in range(tries):
        drop = drop_at(math.exp(log_magnitude))
        if abs(drop - TARGET_DROP) < TOLERANCE:
            return math.exp(log_magnitude)
        latest = _Try(log_magnitude, _log_excess(drop))
        if drop < TARGET_DROP:
            below = latest
        else:
            above = latest
        if below and above:
            # Is tried next, or else is the result.
            log_magnitude = _crossing(below, above)
            if above.log_magnitude - below.log_magnitude < math.log(BRACKET):
                break
        elif below and log_magnitude >= math.log(HIGHEST):
            break
        else:
            log_magnitude = _further(latest)
    if not above:
        raise Undefined(
            f"accuracy never dropped by {TARGET_DROP:g} up to {name} = "
            f"{math.exp(below.log_magnitude):.3g}"
        )
    if not below:
        raise Undefined(
            f"accuracy drops by more than {TARGET_DROP:g} at every {name} down to "
            f"{math.exp(above.log_magnitude):.1g}"
        )
    return math.exp(log_magnitude)


class _Try(NamedTuple):
    """A magnitude that was tried, in natural logarithms."""

    log_magnitude: float
    log_excess: float  # see ``_log_excess``


def _log_excess(drop: float) -> float:
    """Logarithm of drop / TARGET_DROP: below 0 where the magnitude is too small.

    Drops below a tenth of the target count as a tenth, since a drop of 0 or less has no
    logarithm.
    """
    return math.log(max(drop / TARGET_DROP, 0.1))


def _further(latest: _Try) -> float:
    """The next log magnitude where all tries were too small, or all too large."""
    # The drop grows as the square of the magnitude, hence half its logarithm.
    step = max(abs(latest.log_excess) / 2, math.log(1.5))
    if latest.log_excess < 0:
        return min(latest.log_magnitude + step, math.log(HIGHEST))
    return latest.log_magnitude - step


def _crossing(below: _Try, above: _Try) -> float:
    """Log magnitude where the line through two tries meets the target.

    At least a quarter of their distance from either of them.
    """
    share = below.log_excess / (below.log_excess - above.log_excess)
    share = min(max(share, 0.25), 0.75)
    return below.log_magnitude + (above.log_magnitude - below.log_magnitude) * share


def correct_count(logits: Tensor, labels: Tensor) -> int:
    """Count the images that are classified correctly.

    Args:
        logits: (B, K); an image with a NaN among them is not correct.
        labels: (B,).
    """
    correct = (logits.argmax(1) == labels) & ~logits.isnan().any(1)
    return int(correct.sum())


def _batches(sample: Sample, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and labels of a sample, in batches."""
    inputs = sample.inputs.split(batch_size)
    labels = sample.labels.split(batch_size)
    return zip(inputs, labels, strict=True)


@torch.inference_mode()
def accuracy(
    network: nn.Module,
    sample: Sample,
    batch_size: int,
    weights: Mapping[str, Tensor] | None = None,
) -> float:
    """Accuracy of a network on a sample, with its own or other weights.

    Args:
        network: in evaluation mode.
        sample: images with labels.
        batch_size: images at a time.
        weights: in place of parameters, by their names; others stay as they are.

    Returns:
        In [0, 1].
    """
    correct = 0
    for inputs, labels in _batches(sample, batch_size):
        logits = functional_call(network, weights or {}, (inputs,))
        correct += correct_count(logits, labels)
    return correct / len(sample.labels)


def accuracy_to_lose(network: nn.Module, sample: Sample, batch_size: int) -> float:
    """Accuracy on a sample, if it is high enough to drop by ``TARGET_DROP``.

    Args:
        network: in evaluation mode, on the device.
        sample: images and labels.
        batch_size: images of a pass.

    Raises:
        Undefined: where it is lower.
    """
    clean = accuracy(network, sample, batch_size)
    if clean < TARGET_DROP:
        raise Undefined(f"the accuracy of {clean:.3g} cannot drop by {TARGET_DROP:g}")
    return clean


def _vector(network: nn.Module) -> Tensor:
    """All parameters of a network one after the other, (omega,)."""
    return torch.cat([value.detach().flatten() for value in network.parameters()])


def _named(network: nn.Module, vector: Tensor) -> dict[str, Tensor]:
    """Parameters by their names, out of a vector (omega,) of all."""
    parameters = dict(network.named_parameters())
    parts = vector.split([value.numel() for value in parameters.values()])
    return {
        name: part.view_as(value)
        for part, (name, value) in zip(parts, parameters.items(), strict=True)
    }


def _drawn(
    network: nn.Module, draw: Callable[..., Tensor], generator: torch.Generator
) -> Tensor:
    """Random numbers of a CPU's generator for all parameters, (omega,)."""
    numbers = [
        draw(value.shape, generator=generator).flatten()
        for value in network.parameters()
    ]
    return torch.cat(numbers).to(_vector(network))


@provides
def noise_drop(
    flat_network: nn.Module,
    flatness_sample: Sample,
    flatness_draws: int,
    batch_size: int,
    seed: int,
) -> DropAt:
    """Mean drop of accuracy by Gaussian noise on all parameters, over noisy copies.

    All magnitudes share their random numbers, which are the same on all devices. A pass
    stops early once its drop is certain to miss ``TARGET_DROP`` by more than
    ``TOLERANCE``; the drop is then that of the images seen so far.

    Args:
        flat_network: without batch normalisation, in evaluation mode.
        flatness_sample: images whose accuracy drops.
        flatness_draws: noisy copies.
        batch_size: images at a time.
        seed: of the noise.

    Returns:
        The drop of an accuracy in [0, 1] by magnitude: the standard deviation.

    Raises:
        Undefined: where the accuracy is too low to drop.
    """
    weights = _vector(flat_network)
    generator = torch.Generator().manual_seed(seed)
    noises = [
        _drawn(flat_network, torch.randn, generator) for _ in range(flatness_draws)
    ]
    clean = accuracy_to_lose(flat_network, flatness_sample, batch_size)
    batches = list(_batches(flatness_sample, batch_size))
    total = flatness_draws * len(flatness_sample.labels)

    @torch.inference_mode()
    def drop_at(magnitude_aware: bool, magnitude: float) -> float:
        spread: float | Tensor = magnitude
        if magnitude_aware:  # sqrt(sigma'^2 w_j^2 + eps^2), Jiang et al. 2020
            spread = (magnitude**2 * weights.square() + EPSILON**2).sqrt()
        correct = 0
        seen = 0
        for noise in noises:
            noisy = _named(flat_network, weights + spread * noise)
            for inputs, labels in batches:
                logits = functional_call(flat_network, noisy, (inputs,))
                correct += correct_count(logits, labels)
                seen += len(labels)
                smallest_drop = clean - (correct + total - seen) / total
                largest_drop = clean - correct / total
                if (
                    smallest_drop > TARGET_DROP + TOLERANCE
                    or largest_drop < TARGET_DROP - TOLERANCE
                ):
                    return clean - correct / seen
        return clean - correct / total

    return drop_at


def slope(
    network: nn.Module, weights: Tensor, sample: Sample, batch_size: int
) -> tuple[Tensor, float]:
    """Gradient of a sample's mean cross-entropy by the weights, and the accuracy.

    Args:
        network: in evaluation mode.
        weights: (omega,) in place of all parameters of the network.
        sample: images with labels.
        batch_size: images at a time.

    Returns:
        Gradient (omega,) in nats, 0 for a weight that is not used; accuracy in [0, 1].
    """
    leaf = weights.detach().requires_grad_()
    gradient = torch.zeros_like(weights)
    correct = 0
    for inputs, labels in _batches(sample, batch_size):
        with torch.enable_grad():
            logits = functional_call(network, _named(network, leaf), (inputs,))
            # The gradient of an image rounds to 0 above a margin of 36 in logits; in
            # float32 it would above 17.
            total = cross_entropy(logits.double(), labels, reduction="sum")
            loss = total / len(sample.labels)
        gradient += torch.autograd.grad(loss, leaf)[0]
        correct += correct_count(logits, labels)
    return gradient, correct / len(sample.labels)


@provides
def ascent_drop(
    flat_network: nn.Module,
    sharpness_sample: Sample,
    sharpness_steps: int,
    batch_size: int,
    seed: int,
) -> DropAt:
    """Largest drop of accuracy by gradient ascent in a box around the weights.

    The box is ``|u_j| <= alpha``, or, magnitude-aware, ``|u_j| <= alpha' (|w_j| + 1)``;
    Jiang et al. 2020, equations 51 to 62. As in public re-implementations, the ascent
    starts at random in a box half as wide, and each step moves every weight by
    ``2.5 / steps`` of its half-width, in the direction in which the loss grows.

    Args:
        flat_network: without batch normalisation, in evaluation mode.
        sharpness_sample: images whose accuracy drops.
        sharpness_steps: of the ascent.
        batch_size: images at a time.
        seed: of the start.

    Returns:
        The drop of an accuracy in [0, 1] by magnitude: the half-width.

    Raises:
        Undefined: where the accuracy is too low to drop.
    """
    weights = _vector(flat_network)
    generator = torch.Generator().manual_seed(seed)
    start = _drawn(flat_network, torch.rand, generator)
    clean = accuracy_to_lose(flat_network, sharpness_sample, batch_size)

    def drop_at(magnitude_aware: bool, radius: float) -> float:
        width = torch.full_like(weights, radius)
        if magnitude_aware:
            width = radius * (weights.abs() + 1)
        shifted = weights + width * (start - 0.5)
        lowest = math.inf
        for _ in range(sharpness_steps):
            gradient, reached = slope(
                flat_network, shifted, sharpness_sample, batch_size
            )
            lowest = min(lowest, reached)
            if clean - lowest > TARGET_DROP + TOLERANCE:
                return clean - lowest
            # A weight whose gradient is no number stays where it is.
            direction = gradient.nan_to_num().sign()
            moved = shifted + _TRAVEL / sharpness_steps * width * direction
            shifted = moved.clamp(weights - width, weights + width)
        named = _named(flat_network, shifted)
        reached = accuracy(flat_network, sharpness_sample, batch_size, named)
        return clean - min(lowest, reached)

    return drop_at


@provides
def sigma(noise_drop: DropAt, flatness_halvings: int) -> float:
    """Standard deviation of noise on every weight that lowers accuracy by 10 points.

    Args:
        noise_drop: (magnitude_aware, sigma) -> drop of accuracy.
        flatness_halvings: magnitudes tried at most.
    """
    return search(
        lambda magnitude: noise_drop(False, magnitude),
        first=2.0**-7,
        tries=flatness_halvings,
        name="sigma",
    )


@provides
def relative_sigma(noise_drop: DropAt, flatness_halvings: int) -> float:
    """Standard deviation of noise per unit of weight at 10 points less accuracy.

    Args:
        noise_drop: (magnitude_aware, sigma) -> drop of accuracy.
        flatness_halvings: magnitudes tried at most.
    """
    return search(
        lambda magnitude: noise_drop(True, magnitude),
        first=2.0**-4,
        tries=flatness_halvings,
        name="sigma'",
    )


@provides
def alpha(ascent_drop: DropAt, flatness_halvings: int) -> float:
    """Half-width of a box of weights whose worst point has 10 points less accuracy.

    Args:
        ascent_drop: (magnitude_aware, half-width) -> drop of accuracy at the worst
            point.
        flatness_halvings: magnitudes tried at most.
    """
    return search(
        lambda magnitude: ascent_drop(False, magnitude),
        first=2.0**-14,
        tries=flatness_halvings,
        name="alpha",
    )


@provides
def relative_alpha(ascent_drop: DropAt, flatness_halvings: int, alpha: float) -> float:
    """Half-width, in units of ``|w_j| + 1``, of a box as that of ``alpha``.

    Args:
        ascent_drop: (magnitude_aware, half-width) -> drop of accuracy at the worst
            point.
        flatness_halvings: magnitudes tried at most.
        alpha: half-width that is tried first, that of the other box.
    """
    return search(
        lambda magnitude: ascent_drop(True, magnitude),
        first=alpha,
        tries=flatness_halvings,
        name="alpha'",
    )


def bound(divergence: float, sigma: float, images: int) -> float:
    """PAC-Bayes bound up to constants; Jiang et al. 2020, from equation 48 on.

    ``divergence + ln(m / sigma) + 10``.

    Args:
        divergence: of the noisy weights from those before training.
        sigma: standard deviation of the noise.
        images: number m of training images.

    Example:
        >>> round(bound(2.0, 0.5, 100), 3)
        17.298
    """
    return divergence + math.log(images / sigma) + 10


def aware_bound(norms: Array, changes: Array, sigma: float, images: int) -> float:
    """Magnitude-aware PAC-Bayes bound; Jiang et al. 2020, equations 56 and 57.

    ``bound`` of ``1/4 sum_j ln([eps^2 + (sigma'^2 + 1) |v|^2 / omega] /
    [eps^2 + sigma'^2 (w_j - w0_j)^2])``. The denominator has ``w - w0`` whether v is
    ``w - w0`` or ``w``, as printed.

    Args:
        norms: (d,) Frobenius norms of v by layer.
        changes: (omega,) changes ``w - w0`` of all weights.
        sigma: standard deviation sigma' of the noise, in units of each weight.
        images: number of training images.
    """
    numerator = EPSILON**2 + (sigma**2 + 1) * (norms**2).sum() / len(changes)
    denominators = EPSILON**2 + sigma**2 * changes**2  # (omega,)
    divergence = float(np.log(numerator / denominators).sum()) / 4
    return bound(divergence, sigma, images)


def box_bound(
    norms: Array, sizes: Array, alpha: float, sigma: float, images: int
) -> float:
    """Sharpness bound; Jiang et al. 2020, equations 51 and 52.

    ``bound`` of ``|v|^2 ln(2 omega) / (4 alpha^2)``.

    Args:
        norms: (d,) Frobenius norms of v by layer.
        sizes: (d,) numbers of weights by layer; omega is their sum.
        alpha: half-width of the box.
        sigma: standard deviation of the noise.
        images: number of training images.
    """
    divergence = (norms**2).sum() * math.log(2 * sizes.sum()) / (4 * alpha**2)
    return bound(divergence, sigma, images)


complexity(
    "flatness",
    "pacbayes_init",
    "48",
    "PAC-Bayes bound (from the start)",
    "PAC-Bayes bound of the change from the initial weights.",
    lambda frobenius_distances, sigma, training_images: bound(
        (frobenius_distances**2).sum() / (4 * sigma**2), sigma, training_images
    ),
)
complexity(
    "flatness",
    "pacbayes_orig",
    "49",
    "PAC-Bayes bound (from the origin)",
    "PAC-Bayes bound of the weights.",
    lambda frobenius_norms, sigma, training_images: bound(
        (frobenius_norms**2).sum() / (4 * sigma**2), sigma, training_images
    ),
)
complexity(
    "flatness",
    "pacbayes_flatness",
    "53",
    "PAC-Bayes flatness",
    "Inverse variance of the noise that lowers accuracy by 10 points.",
    lambda sigma: 1 / sigma**2,
)
complexity(
    "flatness",
    "pacbayes_mag_init",
    "56",
    "magnitude-aware PAC-Bayes bound (from the start)",
    "Magnitude-aware PAC-Bayes bound of the change from the initial weights.",
    lambda frobenius_distances, weight_changes, relative_sigma, training_images: (
        aware_bound(
            frobenius_distances, weight_changes, relative_sigma, training_images
        )
    ),
)
complexity(
    "flatness",
    "pacbayes_mag_orig",
    "57",
    "magnitude-aware PAC-Bayes bound (from the origin)",
    "Magnitude-aware PAC-Bayes bound of the weights.",
    lambda frobenius_norms, weight_changes, relative_sigma, training_images: (
        aware_bound(frobenius_norms, weight_changes, relative_sigma, training_images)
    ),
)
complexity(
    "flatness",
    "pacbayes_mag_flatness",
    "61",
    "magnitude-aware PAC-Bayes flatness",
    "Inverse variance of noise per unit of weight at 10 points less accuracy.",
    lambda relative_sigma: 1 / relative_sigma**2,
)
complexity(
    "flatness",
    "sharpness_init",
    "51",
    "sharpness bound (from the start)",
    "Sharpness bound of the change from the initial weights.",
    lambda frobenius_distances, layer_sizes, alpha, sigma, training_images: box_bound(
        frobenius_distances, layer_sizes, alpha, sigma, training_images
    ),
)
complexity(
    "flatness",
    "sharpness_orig",
    "52",
    "sharpness bound (from the origin)",
    "Sharpness bound of the weights.",
    lambda frobenius_norms, layer_sizes, alpha, sigma, training_images: box_bound(
        frobenius_norms, layer_sizes, alpha, sigma, training_images
    ),
)
complexity(
    "flatness",
    "sharpness_flatness",
    "54",
    "sharpness",
    "Inverse square of the half-width of a box at 10 points less accuracy.",
    lambda alpha: 1 / alpha**2,
)
complexity(
    "flatness",
    "sharpness_mag_flatness",
    "62",
    "magnitude-aware sharpness",
    "Inverse square of that half-width, in units of ``|w_j| + 1``.",
    lambda relative_alpha: 1 / relative_alpha**2,
)
