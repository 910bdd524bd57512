"""How accuracy falls as images, or what the first layer makes of them, are perturbed more and more (Schiff et al. 2021)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import cumulative_trapezoid, trapezoid
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from helpers.networks.hooks import captured_output, evaluation_mode

_Array = NDArray[np.float64]
Pairs = tuple[Tensor, Tensor]
KINDS = ("intra", "inter")
_WEIGHTED = (_ConvNd, nn.Linear, nn.MultiheadAttention)


class Curve(NamedTuple):
    """Accuracy as a function of the perturbation's magnitude."""

    alphas: _Array  # (P,) magnitudes, rescaled to [0, 1]
    accuracies: _Array  # (P,) fractions


class FirstLayer(NamedTuple):
    """The end of a network's first layer, and what it puts out."""

    module: nn.Module
    activations: Tensor  # (N, ...) for N images, on the network's device


def accuracy_curve(accuracy_at: Callable[[float], float], low: float, high: float, points: int) -> Curve:
    """Evaluate accuracy, a fraction, at evenly spaced magnitudes from low to high; Schiff et al. 2021, Algorithm 1.

    Raises:
        ValueError: fewer than 2 points, or an empty range.
    """
    if points < 2:
        raise ValueError(f"a response curve of {points} points has no area; it needs at least 2")
    if not low < high:
        raise ValueError(f"the smallest magnitude {low} must be below the largest, {high}")
    return Curve(np.linspace(0, 1, points), np.array([accuracy_at(magnitude) for magnitude in np.linspace(low, high, points)], float))


def _rescaled(alphas: ArrayLike, accuracies: ArrayLike) -> Curve:
    x, a = np.asarray(alphas, dtype=float), np.asarray(accuracies, dtype=float)
    if x.ndim != 1 or x.shape != a.shape or len(x) < 2:
        raise ValueError(f"a curve needs one magnitude and one accuracy per point, at least 2 points; got shapes {x.shape} and {a.shape}")
    if not (np.diff(x) > 0).all():
        raise ValueError(f"magnitudes must increase from point to point, got {x.tolist()}")
    return Curve((x - x[0]) / (x[-1] - x[0]), a)


def gi_of_curve(alphas: ArrayLike, accuracies: ArrayLike) -> float:
    """Deficit of a response curve, after Gini: ``Gi = 2 * integral of (alpha - t(alpha))``; Schiff et al. 2021, Algorithm 2.

    ``t(alpha)`` is the area under the curve up to alpha (trapezoids); a network that no magnitude harms has t = alpha. The (P,) increasing
    magnitudes are rescaled to [0, 1] first. What is lost at small ones stays in t and weighs more. In [0, 1] for (P,) accuracies that are
    fractions, small is better: ``1 - a`` for a constant a, 1/3 for a straight line from 1 to 0 with many points. NaN when an accuracy is.

    Raises:
        ValueError: not one accuracy per magnitude, fewer than 2 points, or magnitudes that do not increase.
    """
    x, a = _rescaled(alphas, accuracies)
    return float(2 * trapezoid(x - cumulative_trapezoid(a, x, initial=0), x))


def pal_of_curve(alphas: ArrayLike, accuracies: ArrayLike, top: float = 0.6, bottom: float = 0.1) -> float:
    """Ratio of areas, after Palma; a WORKING DEFINITION, because Algorithm 4 of Schiff et al. 2021 was not at hand.

    ``Pal = integral of t over [1 - top, 1] / integral of t over [0, bottom]``, t as in ``gi_score``, linear between points. Large is
    better. A factor on all accuracies does not change it, so it is blind to how well the network is trained.

    Args:
        alphas: (P,) increasing magnitudes.
        accuracies: (P,) fractions.
        top: share of the magnitudes in the numerator, in (0, 1].
        bottom: share in the denominator, in (0, 1].

    Returns:
        At least 0; by default 84 for a constant above 0, 54.62 for a line from 1 to 0 with many points; NaN for 0 / 0 or a NaN accuracy.

    Raises:
        ValueError: a share outside (0, 1], or a curve that ``gi_score`` would refuse.
    """
    for name, share in (("top", top), ("bottom", bottom)):
        if not 0 < share <= 1:
            raise ValueError(f"{name} {share} must be above 0 and at most 1")
    x, a = _rescaled(alphas, accuracies)
    t = cumulative_trapezoid(a, x, initial=0)
    lower = _area(x, t, 0, bottom)
    return _area(x, t, 1 - top, 1) / lower if lower > 0 else np.nan


def _area(x: _Array, t: _Array, start: float, stop: float) -> float:
    cut = np.concatenate([[start], x[(x > start) & (x < stop)], [stop]])
    return float(trapezoid(np.interp(cut, x, t), cut))


def mixup_partners(labels: Tensor, kind: str, seed: int) -> Pairs:
    """Draw a partner j != i for every image i, uniformly, once for all magnitudes of a curve.

    Args:
        labels: (N,) int64.
        kind: "intra" for a partner of the same class, "inter" for one of another class.
        seed: of the draw.

    Returns:
        (N,) int64 indices j, and (N,) bool, which are usable: an image alone in its class ("intra"), or without another class ("inter"),
        has no partner, and its own index stands there. Both on the CPU.

    Raises:
        ValueError: an unknown kind.
    """
    if kind not in KINDS:
        raise ValueError(f"kind of mixup {kind!r} is unknown; choose one of {', '.join(KINDS)}")
    values, generator = labels.cpu().numpy(), np.random.default_rng((seed, 1))
    indices, usable = np.arange(len(values)), np.zeros(len(values), dtype=bool)
    for label in np.unique(values):
        own = np.flatnonzero(values == label)
        pool = own if kind == "intra" else np.flatnonzero(values != label)
        if others := len(pool) - (kind == "intra"):
            drawn = generator.integers(others, size=len(own))
            if kind == "intra":
                drawn += drawn >= np.arange(len(own))  # step over oneself
            indices[own], usable[own] = pool[drawn], True
    return torch.from_numpy(indices), torch.from_numpy(usable)


@contextmanager
def replaced_output(layer: nn.Module, replacement: Tensor) -> Iterator[None]:
    """Let a layer put out something else the first time it is called in the context; the hook is removed whatever happens inside."""
    waiting = [replacement]
    hook = layer.register_forward_hook(lambda module, given, output: waiting.pop() if waiting else None)
    try:
        yield
    finally:
        hook.remove()


def _calls(network: nn.Module, example: Tensor) -> list[nn.Module]:
    """Modules without parts as a pass calls them, and attention, which uses its parts' weights without a call."""
    called: list[nn.Module] = []
    parts = [module for module in network.modules() if isinstance(module, nn.MultiheadAttention) or not any(module.children())]
    hooks = [module.register_forward_pre_hook(lambda module, given: called.append(module)) for module in parts]
    try:
        network(example)
    finally:
        for hook in hooks:
            hook.remove()
    return called


@torch.no_grad()
def first_layer_end(network: nn.Module, example: Tensor) -> nn.Module:
    """Find the end of a network's first layer by a trace: the last module called before the second convolution or linear layer.

    A ResNet's is its stem's max-pool, an EfficientNet's the SiLU, CLIP's the first ReLU. All that is known of the image must pass through
    it, which is tested by the logits (constant ones prove nothing); where the last is on a branch beside a shortcut, an earlier is taken.

    Args:
        network: a classifier.
        example: (B, 3, H, W) a few images as the network expects them, not all zero.

    Returns:
        A module of the network; its first call in a pass is meant.

    Raises:
        ValueError: fewer than two convolution or linear layers are called, or no module between them carries everything.
    """
    name = type(network).__name__
    with evaluation_mode(network):
        calls = _calls(network, example)
        weighted = [position for position, module in enumerate(calls) if isinstance(module, _WEIGHTED)]
        if len(weighted) < 2:
            raise ValueError(f"{name} calls {len(weighted)} convolution or linear layers; the end of the first needs a second one")
        for position in reversed(range(*weighted[:2])):
            module = calls[position]
            if calls.index(module) == position and _carries_everything(network, module, example):
                return module
    raise ValueError(f"no one module of {name} carries all of the image between the first and the second convolution or linear layer")


def _carries_everything(network: nn.Module, module: nn.Module, example: Tensor) -> bool:
    """Put a module's output in place of its output for other images: do the logits become the first ones?"""
    with captured_output(module) as outputs:
        logits = network(example)
    if not isinstance(outputs[0], Tensor) or outputs[0].shape[:1] != example.shape[:1]:
        return False
    others = network(-example)
    with replaced_output(module, outputs[0]):
        replayed = network(-example)
    # Only rounding differs where nothing went around the module.
    spread, size = (float(values.nan_to_num(0, 0, 0).abs().max()) for values in (logits - others, logits))
    return torch.allclose(replayed, logits, rtol=0, atol=0.01 * spread + 1e-6 * size, equal_nan=True)


@torch.no_grad()
def first_layer(network: nn.Module, inputs: Tensor, batch_size: int = 256) -> FirstLayer:
    """Compute what the first layer puts out for all (N, 3, H, W) inputs, by one pass. All of it stays on the network's device.

    Raises:
        ValueError: see ``first_layer_end``.
    """
    module, parts = first_layer_end(network, inputs[:2]), []
    for batch in inputs.split(batch_size):
        with evaluation_mode(network), captured_output(module) as outputs:
            network(batch)
        parts.append(outputs[0])
    return FirstLayer(module, torch.cat(parts))


@torch.no_grad()
def mixed_hits(
    network: nn.Module, inputs: Tensor, labels: Tensor, pairs: Pairs, alpha: float, layer: FirstLayer | None, batch_size: int = 256
) -> Tensor:
    """Classify ``(1 - alpha) h_i + alpha h_j``, where h are inputs or what the first layer makes of them: is it the class of i?

    Args:
        network: a classifier.
        inputs: (N, 3, H, W) as the network expects them, on its device.
        labels: (N,) int64, there too.
        pairs: (P,) indices i, and (P,) indices j.
        alpha: share of j, in [0, 1].
        layer: what is mixed, see ``first_layer``; the inputs when None.
        batch_size: mixtures per pass.

    Returns:
        (P,) bool on the CPU.
    """
    values, hits = inputs if layer is None else layer.activations, [torch.zeros(0, dtype=torch.bool)]
    for start in range(0, len(pairs[0]), batch_size):
        first, second = (index[start : start + batch_size].to(inputs.device) for index in pairs)
        mixed = torch.lerp(values[first], values[second], alpha)
        with evaluation_mode(network), nullcontext() if layer is None else replaced_output(layer.module, mixed):
            logits = network(mixed if layer is None else inputs[first])
        hits.append((logits.argmax(1) == labels[first]).cpu())
    return torch.cat(hits)


def mixed_accuracy(
    network: nn.Module, inputs: Tensor, labels: Tensor, partners: Pairs, alpha: float, layer: FirstLayer | None, batch_size: int = 256
) -> float:
    """Accuracy on images mixed with their ``mixup_partners``, in [0, 1], see ``mixed_hits``; NaN when no image has one."""
    rows = partners[1].nonzero()[:, 0]
    return float(mixed_hits(network, inputs, labels, (rows, partners[0][rows]), alpha, layer, batch_size).double().mean())
