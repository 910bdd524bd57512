"""How accuracy falls as images, or what the first layer makes of them, are mixed more and more (Schiff et al. 2021)."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.integrate import cumulative_trapezoid, trapezoid
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from helpers.measures.passes import Sample
from helpers.networks.hooks import captured_output, observe
from helpers.statistics.correlations import Array

Pairs = tuple[Tensor, Tensor]  # (P,) indices i, and (P,) indices j
KINDS = ("intra", "inter")
_WEIGHTED = (_ConvNd, nn.Linear, nn.MultiheadAttention)


class FirstLayer(NamedTuple):
    """The end of a network's first layer, and what it puts out."""

    module: nn.Module  # whose first call in a pass is meant
    activations: Tensor  # (N, ...) for N images, on the network's device


def _areas(alphas: ArrayLike, accuracies: ArrayLike) -> tuple[Array, Array]:
    """Magnitudes rescaled to [0, 1], and the area under a curve up to each of them, by trapezoids."""
    x = np.asarray(alphas, dtype=float)
    x = (x - x[0]) / (x[-1] - x[0])
    return x, cumulative_trapezoid(accuracies, x, initial=0)


def gi_of_curve(alphas: ArrayLike, accuracies: ArrayLike) -> float:
    """Deficit of a response curve, after Gini: ``Gi = 2 * integral of (alpha - t(alpha))``; Schiff et al. 2021, Algorithm 2.

    t is the area under the curve up to alpha. In [0, 1], small is better: ``1 - a`` for a constant; NaN when an accuracy is.
    """
    x, t = _areas(alphas, accuracies)
    return float(2 * trapezoid(x - t, x))


def pal_of_curve(
    alphas: ArrayLike, accuracies: ArrayLike, top: float = 0.6, bottom: float = 0.1
) -> float:
    """Ratio of areas, after Palma; a WORKING DEFINITION, because Algorithm 4 of Schiff et al. 2021 was not at hand.

    ``Pal = integral of t over [1 - top, 1] / integral of t over [0, bottom]``, t as in ``gi_of_curve``, linear between points. Large is
    better; a factor on all accuracies does not change it; NaN for 0 / 0.
    """
    x, t = _areas(alphas, accuracies)
    parts = [
        np.concatenate([[start], x[(x > start) & (x < stop)], [stop]])
        for start, stop in ((0, bottom), (1 - top, 1))
    ]
    lower, upper = (float(trapezoid(np.interp(part, x, t), part)) for part in parts)
    return upper / lower if lower > 0 else np.nan


def mixup_partners(labels: Tensor, kind: str, seed: int) -> Pairs:
    """Draw a partner j != i for every image i that can have one, uniformly, of its class ("intra") or of another ("inter")."""
    values, generator, found = (
        labels.cpu().numpy(),
        np.random.default_rng((seed, 1)),
        np.full(len(labels), -1),
    )
    for label in np.unique(values):
        own = np.flatnonzero(values == label)
        pool = own if kind == "intra" else np.flatnonzero(values != label)
        if others := len(pool) - (kind == "intra"):
            drawn = generator.integers(others, size=len(own))
            found[own] = pool[
                drawn + (drawn >= np.arange(len(own)) if kind == "intra" else 0)
            ]  # step over oneself
    return torch.from_numpy(np.flatnonzero(found >= 0)), torch.from_numpy(
        found[found >= 0]
    )


def class_pairs(labels: Tensor, limit: int, seed: int) -> Pairs:
    """List the unordered pairs i > j of one class: all, or ``limit`` different ones drawn at random where a class has more."""
    values, generator, pairs = (
        labels.cpu().numpy(),
        np.random.default_rng((seed, 3)),
        [],
    )
    for label in np.unique(values):
        every = np.flatnonzero(values == label)[
            np.stack(np.tril_indices((values == label).sum(), -1))
        ]
        pairs.append(
            every[:, generator.choice(every.shape[1], limit, replace=False)]
            if every.shape[1] > limit
            else every
        )
    return tuple(torch.from_numpy(np.concatenate(pairs, axis=1)))


def replaced_output(layer: nn.Module, waiting: list[Tensor]) -> AbstractContextManager:
    """Let calls of a layer put out what is waiting, until nothing is, while the context is open."""
    return layer.register_forward_hook(
        lambda module, given, output: waiting.pop() if waiting else None
    )


@torch.no_grad()
def first_layer_end(network: nn.Module, example: Tensor) -> nn.Module:
    """Find the end of a network's first layer by a trace: the last module called before the second convolution or linear layer.

    All that is known of the image must pass through it, which is tested by the logits of a few images, not all zero; else an earlier is
    taken. ValueError where there is none.
    """
    name, calls = type(network).__name__, []

    def seen(module: nn.Module, given: Any, output: Any) -> None:
        if isinstance(module, nn.MultiheadAttention) or not any(
            module.children()
        ):  # attention uses its parts without a call
            calls.append(module)

    observe(network, example, seen)
    weighted = [
        position
        for position, module in enumerate(calls)
        if isinstance(module, _WEIGHTED)
    ]
    if len(weighted) < 2:
        raise ValueError(
            f"{name} calls {len(weighted)} convolution or linear layers; the end of the first needs a second one"
        )
    for position in reversed(range(*weighted[:2])):
        module = calls[position]
        if calls.index(module) == position and _carries_everything(
            network, module, example
        ):
            return module
    raise ValueError(
        f"no one module of {name} carries all of the image between the first and the second convolution or linear layer"
    )


def _carries_everything(network: nn.Module, module: nn.Module, example: Tensor) -> bool:
    """Put a module's output in place of its output for other images: do the logits become the first ones?"""
    with captured_output(module) as outputs:
        logits = network(example)
    if not isinstance(outputs[0], Tensor) or outputs[0].shape[:1] != example.shape[:1]:
        return False
    others = network(-example)
    with replaced_output(module, outputs[:1]):
        replayed = network(-example)
    # Only rounding differs where nothing went around the module.
    spread, size = (
        float(values.nan_to_num(0, 0, 0).abs().max())
        for values in (logits - others, logits)
    )
    return torch.allclose(
        replayed, logits, rtol=0, atol=0.01 * spread + 1e-6 * size, equal_nan=True
    )


@torch.no_grad()
def first_layer(
    network: nn.Module, inputs: Tensor, batch_size: int = 256
) -> FirstLayer:
    """What the first layer puts out for all (N, 3, H, W) inputs; ValueError where no module is its end."""
    module, parts = first_layer_end(network, inputs[:2]), []
    for batch in inputs.split(batch_size):
        with captured_output(module) as outputs:
            network(batch)
        parts.append(outputs[0])
    return FirstLayer(module, torch.cat(parts))


@torch.no_grad()
def hits(network: nn.Module, batches: Iterable[Tensor], labels: Tensor) -> Tensor:
    """Whether a network in evaluation mode classifies each image of some batches as its label, (N,) bool on the CPU."""
    predicted = [network(batch).argmax(1).cpu() for batch in batches]
    return torch.cat([torch.zeros(0, dtype=torch.int64), *predicted]) == labels.cpu()


def mixed_hits(
    network: nn.Module,
    sample: Sample,
    pairs: Pairs,
    layer: FirstLayer | None,
    batch_size: int,
    alpha: float,
) -> Tensor:
    """Classify ``(1 - alpha) h_i + alpha h_j``: is it the class of i? h are inputs, or what the first layer makes of them; (P,) bool."""
    waiting: list[Tensor] = []

    def batches() -> Iterator[Tensor]:
        for first, second in zip(
            *(index.to(sample.inputs.device).split(batch_size) for index in pairs),
            strict=True,
        ):
            values = sample.inputs if layer is None else layer.activations
            mixed = torch.lerp(values[first], values[second], alpha)
            waiting[:] = [mixed]
            yield mixed if layer is None else sample.inputs[first]

    with nullcontext() if layer is None else replaced_output(layer.module, waiting):
        return hits(network, batches(), sample.labels.cpu()[pairs[0]])
