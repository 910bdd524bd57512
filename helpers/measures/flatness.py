"""What random noise and the worst change of a network's weights cost: PAC-Bayes measures and sharpness (Jiang et al. 2020)."""

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from helpers.measures.evidence import PROVIDERS, provides
from helpers.measures.norms import Array, complexities
from helpers.measures.passes import Sample

Drop = Callable[
    [bool, float], float
]  # drop of accuracy by whether a change of the weights is magnitude-aware, and its magnitude
DROP, TOLERANCE = (
    0.1,
    0.01,
)  # of the accuracy, which defines a magnitude, and by how much it may miss that
HIGHEST = 2.0  # magnitude that is tried at most
BRACKET = 1.1  # ratio of a magnitude that costs too much to one that costs too little, at which a search ends
EPSILON = 1e-3  # standard deviation of the noise on a weight of 0, in the magnitude-aware version
_TRAVEL = 2.5  # half-widths of the box that all steps of an ascent add up to, so that it can cross the box from any start and come back


def search(
    drop_at: Callable[[float], float], first: float, tries: int, name: str
) -> float:
    """Find the magnitude at which accuracy drops by ``DROP``, within ``TOLERANCE``, or between two magnitudes within ``BRACKET``.

    Drops grow about with the square of a small magnitude, which gives each step; between two the next is where the line through their
    logarithms crosses. ValueError where all were too small, up to ``HIGHEST``, or too large.
    """
    low = high = (
        None  # logarithms of magnitude and of drop / DROP: the largest that costs too little, the smallest that costs too much
    )
    magnitude = math.log(first)
    for _ in range(tries):
        drop = drop_at(math.exp(magnitude))
        if abs(drop - DROP) < TOLERANCE:
            return math.exp(magnitude)
        point = magnitude, math.log(max(drop / DROP, 0.1))
        low, high = (point, high) if drop < DROP else (low, point)
        if low and high:
            share = low[1] / (low[1] - high[1])
            magnitude = low[0] + (high[0] - low[0]) * min(max(share, 0.25), 0.75)
            if high[0] - low[0] < math.log(BRACKET):
                break
        elif magnitude >= math.log(HIGHEST):
            break
        else:
            step = max(abs(point[1]) / 2, math.log(1.5))
            magnitude = (
                min(magnitude + step, math.log(HIGHEST)) if low else magnitude - step
            )
    if low and high:
        return math.exp(magnitude)
    if low:
        raise ValueError(
            f"accuracy never dropped by {DROP:g} up to {name} = {math.exp(low[0]):.3g}"
        )
    raise ValueError(
        f"accuracy drops by more than {DROP:g} at every {name} down to {math.exp(high[0]):.1g}"
    )


def right(logits: Tensor, labels: Tensor) -> int:
    """Count the images that are classified correctly; one with a NaN among its logits is not."""
    return int(((logits.argmax(1) == labels) & ~logits.isnan().any(1)).sum())


@torch.inference_mode()
def accuracy(
    network: nn.Module,
    sample: Sample,
    batch_size: int,
    weights: Mapping[str, Tensor] | None = None,
) -> float:
    """Fraction of a sample that a network classifies correctly, with other weights in place of its own where they are given."""
    batches = zip(
        sample.inputs.split(batch_size), sample.labels.split(batch_size), strict=True
    )
    return sum(
        right(functional_call(network, weights or {}, (inputs,)), labels)
        for inputs, labels in batches
    ) / len(sample.labels)


def accuracy_to_lose(network: nn.Module, sample: Sample, batch_size: int) -> float:
    """Accuracy on a sample; ValueError where it is too low to drop by ``DROP``."""
    if (found := accuracy(network, sample, batch_size)) < DROP:
        raise ValueError(f"the accuracy of {found:.3g} cannot drop by {DROP:g}")
    return found


@provides
def noise_drop(
    flat_network: nn.Module,
    flatness_sample: Sample,
    flatness_draws: int,
    batch_size: int,
    seed: int,
) -> Drop:
    """Mean drop of accuracy by Gaussian noise on all parameters over noisy copies, by whether it is aware of theirs and its magnitude.

    All magnitudes share their draws, alike on all devices. A drop that is certain to be outside ``DROP`` plus or minus ``TOLERANCE`` is
    that of the images seen so far.
    """
    generator, total = (
        torch.Generator().manual_seed(seed),
        flatness_draws * len(flatness_sample.labels),
    )
    weights = {name: value.detach() for name, value in flat_network.named_parameters()}
    draws = [
        {
            name: torch.randn(p.shape, generator=generator).to(p)
            for name, p in weights.items()
        }
        for _ in range(flatness_draws)
    ]
    clean = accuracy_to_lose(flat_network, flatness_sample, batch_size)
    batches = list(
        zip(
            flatness_sample.inputs.split(batch_size),
            flatness_sample.labels.split(batch_size),
            strict=True,
        )
    )

    @torch.inference_mode()
    def drop_at(magnitude_aware: bool, magnitude: float) -> float:
        hits = seen = 0
        spreads = dict.fromkeys(weights, magnitude)
        if magnitude_aware:  # sqrt(sigma'^2 w_j^2 + eps^2), Jiang et al.
            spreads = {
                name: (magnitude**2 * value.square() + EPSILON**2).sqrt()
                for name, value in weights.items()
            }
        for draw in draws:
            noisy = {
                name: value + spreads[name] * draw[name]
                for name, value in weights.items()
            }
            for inputs, labels in batches:
                hits, seen = (
                    hits
                    + right(functional_call(flat_network, noisy, (inputs,)), labels),
                    seen + len(labels),
                )
                least, most = (
                    clean - (hits + total - seen) / total,
                    clean - hits / total,
                )
                if least > DROP + TOLERANCE or most < DROP - TOLERANCE:
                    return clean - hits / seen
        return clean - hits / total

    return drop_at


def slope(
    network: nn.Module, weights: dict[str, Tensor], sample: Sample, batch_size: int
) -> tuple[dict[str, Tensor], float]:
    """Gradient of a sample's mean cross-entropy (nats) by weights, 0 for an unused one, and the accuracy."""
    weights = {name: value.detach().requires_grad_() for name, value in weights.items()}
    total, hits = [torch.zeros_like(value) for value in weights.values()], 0
    for inputs, labels in zip(
        sample.inputs.split(batch_size), sample.labels.split(batch_size), strict=True
    ):
        with torch.enable_grad():
            logits = functional_call(network, weights, (inputs,))
            # In float64 the slope of an image survives a margin of 36 in logits, in float32 only one of 17.
            loss = cross_entropy(logits.double(), labels, reduction="sum") / len(
                sample.labels
            )
        gradients = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
        total = [
            old if new is None else old + new
            for old, new in zip(total, gradients, strict=True)
        ]
        hits += right(logits, labels)
    return dict(zip(weights, total, strict=True)), hits / len(sample.labels)


@provides
def ascent_drop(
    flat_network: nn.Module,
    sharpness_sample: Sample,
    sharpness_steps: int,
    gradient_batch_size: int,
    seed: int,
) -> Drop:
    """Largest drop of accuracy that gradient ascent finds in a box around the weights, by whether it is aware of theirs and its half-width.

    The box is ``|u_j| <= alpha``, or, magnitude-aware, ``|u_j| <= alpha' (|w_j| + 1)``; Jiang et al. 2020, equations 51 to 62. As in public
    re-implementations, each step from a random start in half the box moves every weight by ``2.5 / steps`` of its half-width up the loss.
    """
    weights, generator = (
        {name: value.detach() for name, value in flat_network.named_parameters()},
        torch.Generator().manual_seed(seed),
    )
    starts = {
        name: torch.rand(value.shape, generator=generator).to(value) - 0.5
        for name, value in weights.items()
    }
    clean = accuracy_to_lose(flat_network, sharpness_sample, gradient_batch_size)

    def drop_at(magnitude_aware: bool, radius: float) -> float:
        widths = {
            name: radius
            * (value.abs() + 1 if magnitude_aware else torch.ones_like(value))
            for name, value in weights.items()
        }
        shifted, lowest = (
            {
                name: value + widths[name] * starts[name]
                for name, value in weights.items()
            },
            math.inf,
        )
        for _ in range(sharpness_steps):
            gradients, found = slope(
                flat_network, shifted, sharpness_sample, gradient_batch_size
            )
            lowest = min(lowest, found)
            if clean - lowest > DROP + TOLERANCE:
                return clean - lowest
            for (
                name,
                width,
            ) in (
                widths.items()
            ):  # a weight whose gradient is no number stays where it is
                moved = (
                    shifted[name]
                    + _TRAVEL
                    / sharpness_steps
                    * width
                    * gradients[name].nan_to_num().sign()
                )
                shifted[name] = moved.clamp(
                    weights[name] - width, weights[name] + width
                )
        return clean - min(
            lowest,
            accuracy(flat_network, sharpness_sample, gradient_batch_size, shifted),
        )

    return drop_at


# What costs a tenth of the accuracy: the standard deviation of the noise, the same on every weight or in units of each; and the half-width
# of the box by its worst point, the same on every weight or in units of ``|w_j| + 1``.
PROVIDERS |= {
    "sigma": lambda noise_drop, flatness_halvings: search(
        partial(noise_drop, False), 2.0**-7, flatness_halvings, "sigma"
    ),
    "relative_sigma": lambda noise_drop, flatness_halvings: search(
        partial(noise_drop, True), 2.0**-4, flatness_halvings, "sigma'"
    ),
    "alpha": lambda ascent_drop, flatness_halvings: search(
        partial(ascent_drop, False), 2.0**-14, flatness_halvings, "alpha"
    ),
    "relative_alpha": lambda ascent_drop, flatness_halvings, alpha: search(
        partial(ascent_drop, True), alpha, flatness_halvings, "alpha'"
    ),
}


def bound(divergence: float, sigma: float, images: int) -> float:
    """PAC-Bayes bound up to constants, ``divergence + ln(m / sigma) + 10``; Jiang et al. 2020, from equation 48 on."""
    return divergence + math.log(images / sigma) + 10


def aware_bound(norms: Array, changes: Array, sigma: float, images: int) -> float:
    """``bound`` of ``1/4 sum_j ln([eps^2 + (sigma'^2 + 1) |v|^2 / omega] / [eps^2 + sigma'^2 (w_j - w0_j)^2])``.

    Jiang et al. 2020, equations 56 and 57: v is ``w - w0`` or ``w``; the denominator has ``w - w0`` in both, as printed.
    """
    above = EPSILON**2 + (sigma**2 + 1) * (norms**2).sum() / len(changes)
    return bound(
        float(np.log(above / (EPSILON**2 + sigma**2 * changes**2)).sum()) / 4,
        sigma,
        images,
    )


def box_bound(
    norms: Array, sizes: Array, alpha: float, sigma: float, images: int
) -> float:
    """``bound`` of ``|v|^2 ln(2 omega) / (4 alpha^2)``, v given by the norms of its layers; sigma is that of the noise."""
    return bound(
        (norms**2).sum() * math.log(2 * sizes.sum()) / (4 * alpha**2), sigma, images
    )


_AWARE = "magnitude-aware PAC-Bayes"
complexities(
    "flatness",
    (
        "pacbayes_init",
        "48",
        "PAC-Bayes bound (from the start)",
        lambda df, sigma, m: bound((df**2).sum() / (4 * sigma**2), sigma, m),
    ),
    (
        "pacbayes_orig",
        "49",
        "PAC-Bayes bound (from the origin)",
        lambda f, sigma, m: bound((f**2).sum() / (4 * sigma**2), sigma, m),
    ),
    ("pacbayes_flatness", "53", "PAC-Bayes flatness", lambda sigma: 1 / sigma**2),
    (
        "pacbayes_mag_init",
        "56",
        f"{_AWARE} bound (from the start)",
        lambda df, dw, sigma_w, m: aware_bound(df, dw, sigma_w, m),
    ),
    (
        "pacbayes_mag_orig",
        "57",
        f"{_AWARE} bound (from the origin)",
        lambda f, dw, sigma_w, m: aware_bound(f, dw, sigma_w, m),
    ),
    (
        "pacbayes_mag_flatness",
        "61",
        f"{_AWARE} flatness",
        lambda sigma_w: 1 / sigma_w**2,
    ),
    (
        "sharpness_init",
        "51",
        "sharpness bound (from the start)",
        lambda df, size, alpha, sigma, m: box_bound(df, size, alpha, sigma, m),
    ),
    (
        "sharpness_orig",
        "52",
        "sharpness bound (from the origin)",
        lambda f, size, alpha, sigma, m: box_bound(f, size, alpha, sigma, m),
    ),
    ("sharpness_flatness", "54", "sharpness", lambda alpha: 1 / alpha**2),
    (
        "sharpness_mag_flatness",
        "62",
        "magnitude-aware sharpness",
        lambda alpha_w: 1 / alpha_w**2,
    ),
)
