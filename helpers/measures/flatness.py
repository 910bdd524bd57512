"""PAC-Bayes measures and sharpness: accuracy under changes of the weights.

A measure with an argument such as ``sigma`` gets what the function of this name
returns; arguments of that function, under ``@provides``, are computed first likewise.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import vector_to_parameters

from helpers.measures.norms import complexity, inverse_square, sum_of_squares
from helpers.measures.passes import Sample, in_batches, is_right
from helpers.measures.registry import provides
from helpers.networks import Undefined
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
_STEP = 3.0  # factor between magnitudes until they lie on both sides of the target
EPSILON = 1e-3  # standard deviation of magnitude-aware noise on a weight of 0
# Length of the whole path of an ascent in half-widths of the box: enough to cross the
# box from any start and come back.
_TRAVEL = 2.5


def search(drop_at: Callable[[float], float], first: float, tries: int) -> float:
    """Find the magnitude of a change that lowers accuracy by 10 points.

    By bisection of its logarithm, once one magnitude is too small and another too
    large.

    Args:
        drop_at: drop of accuracy at a magnitude.
        first: magnitude that is tried first; a good guess saves tries.
        tries: magnitudes that are tried at most.

    Returns:
        A magnitude whose drop is within ``TOLERANCE`` of ``TARGET_DROP``. Where none of
        those tried is, the middle of the closest two, which differ by less than
        ``BRACKET`` unless ``tries`` ran out.

    Raises:
        Undefined: where all magnitudes were too small, up to ``HIGHEST``, or too
            large, as where the accuracy is too low to drop.

    Example:
        >>> round(search(lambda magnitude: 10 * magnitude**2, 0.01, 15), 2)
        0.1
    """
    below, above = 0.0, math.inf  # the target
    magnitude = first
    for _ in range(tries):
        drop = drop_at(magnitude)
        if abs(drop - TARGET_DROP) < TOLERANCE:
            return magnitude
        if drop < TARGET_DROP:
            below = magnitude
        else:
            above = magnitude
        if above < below * BRACKET or below >= HIGHEST:
            break
        if above == math.inf:
            magnitude = min(below * _STEP, HIGHEST)
        else:
            magnitude = math.sqrt(below * above) or above / _STEP
    if not below or above == math.inf:
        raise Undefined(
            f"no change of the weights of a size up to {HIGHEST:g} was found that "
            f"lowers accuracy by {TARGET_DROP:g}"
        )
    return math.sqrt(below * above)


@torch.inference_mode()
def accuracy(network: nn.Module, sample: Sample) -> float:
    """Accuracy of a network on a sample, in [0, 1].

    Args:
        network: in evaluation mode.
        sample: images with labels.
    """
    logits = [network(inputs) for inputs in in_batches(sample.inputs)]
    return float(is_right(torch.cat(logits), sample.labels).double().mean())


def _vector(tensors: Iterable[Tensor]) -> Tensor:
    """Values of some tensors one after the other, whatever their memory format."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


@provides
def noise_drop(
    folded_network: nn.Module, flatness_sample: Sample, flatness_draws: int, seed: int
) -> DropAt:
    """Mean drop of accuracy by Gaussian noise on all parameters, over noisy copies.

    All magnitudes share their random numbers, which are the same on all devices.

    Args:
        folded_network: without batch normalisation, in evaluation mode.
        flatness_sample: images whose accuracy drops.
        flatness_draws: noisy copies.
        seed: of the noise.

    Returns:
        The drop of an accuracy in [0, 1] by magnitude: the standard deviation.
    """
    clean = accuracy(folded_network, flatness_sample)
    weights = _vector(folded_network.parameters())
    generator = torch.Generator().manual_seed(seed)
    noises = []
    for _ in range(flatness_draws):
        numbers = [
            torch.randn(value.shape, generator=generator)
            for value in folded_network.parameters()
        ]
        noises.append(_vector(numbers).to(weights))

    def drop_at(magnitude_aware: bool, magnitude: float) -> float:
        spread: float | Tensor = magnitude
        if magnitude_aware:  # sqrt(sigma'^2 w_j^2 + eps^2), Jiang et al. 2020
            spread = (magnitude**2 * weights.square() + EPSILON**2).sqrt()
        total = 0.0
        for noise in noises:
            vector_to_parameters(weights + spread * noise, folded_network.parameters())
            total += accuracy(folded_network, flatness_sample)
        vector_to_parameters(weights, folded_network.parameters())
        return clean - total / len(noises)

    return drop_at


def slope(network: nn.Module, sample: Sample) -> tuple[Tensor, float]:
    """Gradient of a sample's mean cross-entropy by the weights, and the accuracy.

    Args:
        network: in evaluation mode; its parameters are made to need gradients.
        sample: images with labels.

    Returns:
        Gradient (omega,) in nats, 0 for a weight that is not used; accuracy in [0, 1].
    """
    parameters = list(network.requires_grad_().parameters())
    gradient = torch.zeros_like(_vector(parameters))
    correct = []
    batches = in_batches(sample.inputs), in_batches(sample.labels)
    for inputs, labels in zip(*batches, strict=True):
        with torch.enable_grad():
            logits = network(inputs)
            # The gradient of an image rounds to 0 above a margin of 36 in logits; in
            # float32 it would above 17.
            total = cross_entropy(logits.double(), labels, reduction="sum")
            loss = total / len(sample.labels)
        of_batch = torch.autograd.grad(loss, parameters, materialize_grads=True)
        gradient += _vector(of_batch)
        correct.append(is_right(logits, labels))
    return gradient, float(torch.cat(correct).double().mean())


@provides
def ascent_drop(
    folded_network: nn.Module, sharpness_sample: Sample, sharpness_steps: int, seed: int
) -> DropAt:
    """Largest drop of accuracy by gradient ascent in a box around the weights.

    The box is ``|u_j| <= alpha``, or, magnitude-aware, ``|u_j| <= alpha' (|w_j| + 1)``;
    Jiang et al. 2020, equations 51 to 62. As in public re-implementations, the ascent
    starts at random in a box half as wide, and each step moves every weight by
    ``2.5 / steps`` of its half-width, in the direction in which the loss grows. It
    ends once the drop is larger than ``TARGET_DROP`` by ``TOLERANCE``.

    Args:
        folded_network: without batch normalisation, in evaluation mode.
        sharpness_sample: images whose accuracy drops.
        sharpness_steps: of the ascent.
        seed: of the start.

    Returns:
        The drop of an accuracy in [0, 1] by magnitude: the half-width.
    """
    clean = accuracy(folded_network, sharpness_sample)
    weights = _vector(folded_network.parameters())
    generator = torch.Generator().manual_seed(seed)
    numbers = [
        torch.rand(value.shape, generator=generator)
        for value in folded_network.parameters()
    ]
    start = _vector(numbers).to(weights)

    def drop_at(magnitude_aware: bool, radius: float) -> float:
        width = torch.full_like(weights, radius)
        if magnitude_aware:
            width = radius * (weights.abs() + 1)
        shifted = weights + width * (start - 0.5)
        lowest = math.inf
        for _ in range(sharpness_steps + 1):
            vector_to_parameters(shifted, folded_network.parameters())
            gradient, reached = slope(folded_network, sharpness_sample)
            lowest = min(lowest, reached)
            if clean - lowest > TARGET_DROP + TOLERANCE:
                break
            # A weight whose gradient is no number stays where it is.
            direction = gradient.nan_to_num().sign()
            moved = shifted + _TRAVEL / sharpness_steps * width * direction
            shifted = moved.clamp(weights - width, weights + width)
        vector_to_parameters(weights, folded_network.parameters())
        return clean - lowest

    return drop_at


@provides
def sigma(noise_drop: DropAt, flatness_halvings: int) -> float:
    """Standard deviation of noise on every weight that lowers accuracy by 10 points.

    Args:
        noise_drop: (magnitude_aware, sigma) -> drop of accuracy.
        flatness_halvings: magnitudes tried at most.
    """
    return search(partial(noise_drop, False), 2.0**-7, flatness_halvings)


@provides
def relative_sigma(noise_drop: DropAt, flatness_halvings: int) -> float:
    """Standard deviation of noise per unit of weight at 10 points less accuracy.

    Args:
        noise_drop: (magnitude_aware, sigma) -> drop of accuracy.
        flatness_halvings: magnitudes tried at most.
    """
    return search(partial(noise_drop, True), 2.0**-4, flatness_halvings)


@provides
def alpha(ascent_drop: DropAt, flatness_halvings: int) -> float:
    """Half-width of a box of weights whose worst point has 10 points less accuracy.

    Args:
        ascent_drop: (magnitude_aware, half-width) -> drop of accuracy at the worst
            point.
        flatness_halvings: magnitudes tried at most.
    """
    return search(partial(ascent_drop, False), 2.0**-14, flatness_halvings)


@provides
def relative_alpha(ascent_drop: DropAt, flatness_halvings: int, alpha: float) -> float:
    """Half-width, in units of ``|w_j| + 1``, of a box as that of ``alpha``.

    Args:
        ascent_drop: (magnitude_aware, half-width) -> drop of accuracy at the worst
            point.
        flatness_halvings: magnitudes tried at most.
        alpha: half-width that is tried first, that of the other box.
    """
    return search(partial(ascent_drop, True), alpha, flatness_halvings)


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


def gaussian_bound(weights: Array, sigma: float, training_images: int) -> float:
    """PAC-Bayes bound; Jiang et al. 2020, equations 48 and 49.

    ``bound`` of ``|v|^2 / (4 sigma^2)``.

    Args:
        weights: (omega,), or their changes from the start.
        sigma: standard deviation of the noise.
        training_images: their number.
    """
    divergence = sum_of_squares(weights) / (4 * sigma**2)
    return bound(divergence, sigma, training_images)


def aware_bound(
    weights: Array, changes: Array, relative_sigma: float, training_images: int
) -> float:
    """Magnitude-aware PAC-Bayes bound; Jiang et al. 2020, equations 56 and 57.

    ``bound`` of ``1/4 sum_j ln([eps^2 + (sigma'^2 + 1) |v|^2 / omega] /
    [eps^2 + sigma'^2 (w_j - w0_j)^2])``. The denominator has ``w - w0`` whether v is
    ``w - w0`` or ``w``, as printed.

    Args:
        weights: (omega,) v, or their changes from the start.
        changes: (omega,) ``w - w0`` of all weights.
        relative_sigma: standard deviation sigma' of the noise, per unit of weight.
        training_images: their number.
    """
    squares = relative_sigma**2 * changes**2  # (omega,)
    mean_square = np.square(weights).mean()
    above = EPSILON**2 + (relative_sigma**2 + 1) * mean_square
    divergence = np.log(above / (EPSILON**2 + squares)).sum() / 4
    return bound(divergence, relative_sigma, training_images)


def box_bound(
    weights: Array, alpha: float, sigma: float, training_images: int
) -> float:
    """Sharpness bound; Jiang et al. 2020, equations 51 and 52.

    ``bound`` of ``|v|^2 ln(2 omega) / (4 alpha^2)``.

    Args:
        weights: (omega,), or their changes from the start.
        alpha: half-width of the box.
        sigma: standard deviation of the noise.
        training_images: their number.
    """
    squares = sum_of_squares(weights)
    divergence = squares * math.log(2 * len(weights)) / (4 * alpha**2)
    return bound(divergence, sigma, training_images)


for _row in (
    (
        "pacbayes_init",
        "Jiang et al. 2020, equation 48",
        "PAC-Bayes bound (from the start)",
        gaussian_bound,
        "flat_changes",
        "sigma",
        "training_images",
    ),
    (
        "pacbayes_orig",
        "Jiang et al. 2020, equation 49",
        "PAC-Bayes bound (from the origin)",
        gaussian_bound,
        "flat_weights",
        "sigma",
        "training_images",
    ),
    (
        "pacbayes_flatness",
        "Jiang et al. 2020, equation 53",
        "PAC-Bayes flatness",
        inverse_square,
        "sigma",
    ),
    (
        "pacbayes_mag_init",
        "Jiang et al. 2020, equation 56",
        "magnitude-aware PAC-Bayes bound (from the start)",
        aware_bound,
        "flat_changes",
        "flat_changes",
        "relative_sigma",
        "training_images",
    ),
    (
        "pacbayes_mag_orig",
        "Jiang et al. 2020, equation 57",
        "magnitude-aware PAC-Bayes bound (from the origin)",
        aware_bound,
        "flat_weights",
        "flat_changes",
        "relative_sigma",
        "training_images",
    ),
    (
        "pacbayes_mag_flatness",
        "Jiang et al. 2020, equation 61",
        "magnitude-aware PAC-Bayes flatness",
        inverse_square,
        "relative_sigma",
    ),
    (
        "sharpness_init",
        "Jiang et al. 2020, equation 51",
        "sharpness bound (from the start)",
        box_bound,
        "flat_changes",
        "alpha",
        "sigma",
        "training_images",
    ),
    (
        "sharpness_orig",
        "Jiang et al. 2020, equation 52",
        "sharpness bound (from the origin)",
        box_bound,
        "flat_weights",
        "alpha",
        "sigma",
        "training_images",
    ),
    (
        "sharpness_flatness",
        "Jiang et al. 2020, equation 54",
        "sharpness",
        inverse_square,
        "alpha",
    ),
    (
        "sharpness_mag_flatness",
        "Jiang et al. 2020, equation 62",
        "magnitude-aware sharpness",
        inverse_square,
        "relative_alpha",
    ),
):
    complexity("flatness", _row)
