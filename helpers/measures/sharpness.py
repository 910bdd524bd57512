"""How much the worst small change of a network's weights costs: gradient ascent in a box, and the measures made of its size."""

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from helpers.measures.evidence import PROVIDERS, provides
from helpers.measures.noise import DROP, TOLERANCE, Drop, accuracy, accuracy_to_lose, bound, right, search
from helpers.measures.norms import Array, complexities
from helpers.measures.passes import Sample

# Steps add up to 2.5 times the box's half-width, so that ascent can cross it from any start and come back.
_TRAVEL = 2.5


def slope(network: nn.Module, weights: dict[str, Tensor], sample: Sample, batch_size: int) -> tuple[dict[str, Tensor], float]:
    """Gradient of a sample's mean cross-entropy (nats) by weights in place of the network's, 0 for an unused one, and the accuracy."""
    weights = {name: value.detach().requires_grad_() for name, value in weights.items()}
    total, hits = [torch.zeros_like(value) for value in weights.values()], 0
    for inputs, labels in zip(sample.inputs.split(batch_size), sample.labels.split(batch_size), strict=True):
        with torch.enable_grad():
            logits = functional_call(network, weights, (inputs,))
            # In float64 the slope of an image survives a margin of 36 in logits, in float32 only one of 17.
            loss = cross_entropy(logits.double(), labels, reduction="sum") / len(sample.labels)
        gradients = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
        total = [old if new is None else old + new for old, new in zip(total, gradients, strict=True)]
        hits += right(logits, labels)
    return dict(zip(weights, total, strict=True)), hits / len(sample.labels)


@provides
def ascent_drop(flat_network: nn.Module, sharpness_sample: Sample, sharpness_steps: int, gradient_batch_size: int, seed: int) -> Drop:
    """Largest drop of accuracy that gradient ascent finds in a box around the weights, by whether it is aware of theirs and its half-width.

    The box is ``|u_j| <= alpha``, or, magnitude-aware, ``|u_j| <= alpha' (|w_j| + 1)``; Jiang et al. 2020, equations 51 to 62. As in public
    re-implementations, each step from a random start in half the box moves every weight by ``2.5 / steps`` of its half-width up the loss,
    and no further than the edge. The lowest accuracy on the way counts, the end included; one too low for the search is enough.
    """
    weights, generator = {name: value.detach() for name, value in flat_network.named_parameters()}, torch.Generator().manual_seed(seed)
    starts = {name: torch.rand(value.shape, generator=generator).to(value) - 0.5 for name, value in weights.items()}
    clean = accuracy_to_lose(flat_network, sharpness_sample, gradient_batch_size)

    def drop_at(magnitude_aware: bool, radius: float) -> float:
        widths = {name: radius * (value.abs() + 1 if magnitude_aware else torch.ones_like(value)) for name, value in weights.items()}
        shifted, lowest = {name: value + widths[name] * starts[name] for name, value in weights.items()}, math.inf
        for _ in range(sharpness_steps):
            gradients, found = slope(flat_network, shifted, sharpness_sample, gradient_batch_size)
            lowest = min(lowest, found)
            if clean - lowest > DROP + TOLERANCE:
                return clean - lowest
            for name, width in widths.items():  # a weight whose gradient is no number stays where it is
                moved = shifted[name] + _TRAVEL / sharpness_steps * width * gradients[name].nan_to_num().sign()
                shifted[name] = moved.clamp(weights[name] - width, weights[name] + width)
        return clean - min(lowest, accuracy(flat_network, sharpness_sample, gradient_batch_size, shifted))

    return drop_at


# Half-width of the box whose worst point costs a tenth of the accuracy: the same on every weight, or in units of ``|w_j| + 1``.
PROVIDERS |= {
    "alpha": lambda ascent_drop, flatness_halvings: search(partial(ascent_drop, False), 2.0**-14, flatness_halvings, "alpha"),
    "relative_alpha": lambda ascent_drop, flatness_halvings, alpha: search(partial(ascent_drop, True), alpha, flatness_halvings, "alpha'"),
}


def box_bound(norms: Array, sizes: Array, alpha: float, sigma: float, images: int) -> float:
    """``noise.bound`` of ``|v|^2 ln(2 omega) / (4 alpha^2)``, v given by the norms of its layers; sigma is that of the noise."""
    return bound((norms**2).sum() * math.log(2 * sizes.sum()) / (4 * alpha**2), sigma, images)


complexities(
    "flatness",
    ("sharpness_init", "51", "sharpness bound (from the start)", lambda df, size, alpha, sigma, m: box_bound(df, size, alpha, sigma, m)),
    ("sharpness_orig", "52", "sharpness bound (from the origin)", lambda f, size, alpha, sigma, m: box_bound(f, size, alpha, sigma, m)),
    ("sharpness_flatness", "54", "sharpness", lambda alpha: 1 / alpha**2),
    ("sharpness_mag_flatness", "62", "magnitude-aware sharpness", lambda alpha_w: 1 / alpha_w**2),
)
