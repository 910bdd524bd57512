"""Mixup, and summaries of response curves.

Mixup is accuracy on blended pairs of images, or of first-layer outputs. Response curves
are accuracy against the magnitude of a change; Gi and Pal summarise them.
"""

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
from helpers.networks.faults import Undefined
from helpers.networks.hooks import captured_output, observe
from helpers.statistics.correlate import Array

Pairs = tuple[Tensor, Tensor]  # (P,) indices i, and (P,) indices j
KINDS = ("intra", "inter")
_WEIGHTED = (_ConvNd, nn.Linear, nn.MultiheadAttention)
# Second number of a seed, so that each draw has its own random numbers (2:
# ``transforms``, 4: ``perturbation``).
_PARTNER_STREAM = 1
_PAIR_STREAM = 3


class FirstLayer(NamedTuple):
    """The end of a network's first layer, and its outputs."""

    module: nn.Module  # whose first call in a pass is meant
    activations: Tensor  # (N, ...) for N images, on the network's device


def _areas(alphas: ArrayLike, accuracies: ArrayLike) -> tuple[Array, Array]:
    """Magnitudes rescaled to [0, 1], and the area under a curve up to each of them."""
    x = np.asarray(alphas, dtype=float)
    x = (x - x[0]) / (x[-1] - x[0])
    return x, cumulative_trapezoid(accuracies, x, initial=0)


def gi_of_curve(alphas: ArrayLike, accuracies: ArrayLike) -> float:
    """Deficit of a response curve, after Gini; Schiff et al. 2021, Algorithm 2.

    ``Gi = 2 * integral of (alpha - t(alpha))``, with t the area under the curve up to
    alpha.

    Args:
        alphas: (n,) magnitudes, ascending.
        accuracies: (n,) in [0, 1].

    Returns:
        In [0, 1], small is better: ``1 - a`` for a constant a. NaN when an accuracy is.

    Example:
        >>> gi_of_curve([0, 0.5, 1], [0.75, 0.75, 0.75])
        0.25
    """
    x, areas = _areas(alphas, accuracies)
    return float(2 * trapezoid(x - areas, x))


def pal_of_curve(
    alphas: ArrayLike, accuracies: ArrayLike, top: float = 0.6, bottom: float = 0.1
) -> float:
    """Ratio of areas of a response curve, after Palma; a WORKING DEFINITION.

    Algorithm 4 of Schiff et al. 2021 was not at hand. ``Pal = integral of t over
    [1 - top, 1] / integral of t over [0, bottom]``, with t as in ``gi_of_curve``,
    linear between points. A factor on all accuracies does not change it.

    Args:
        alphas: (n,) magnitudes, ascending.
        accuracies: (n,) in [0, 1].
        top: share of the largest magnitudes.
        bottom: share of the smallest magnitudes.

    Returns:
        At least 0, large is better; NaN for 0 / 0.
    """
    x, areas = _areas(alphas, accuracies)

    def integral(start: float, stop: float) -> float:
        points = [start, *x[(x > start) & (x < stop)], stop]
        return float(trapezoid(np.interp(points, x, areas), points))

    lower = integral(0, bottom)
    upper = integral(1 - top, 1)
    return upper / lower if lower > 0 else np.nan


def mixup_partners(labels: Tensor, kind: str, seed: int) -> Pairs:
    """Draw a partner for every image that can have one, uniformly.

    Args:
        labels: (N,).
        kind: "intra", a partner of the same class, or "inter", of another.
        seed: of the draw.

    Returns:
        Images i, ascending, and their partners j != i.
    """
    classes = labels.cpu().numpy()
    generator = np.random.default_rng((seed, _PARTNER_STREAM))
    partners = np.full(len(classes), -1)
    for label in np.unique(classes):
        members = np.flatnonzero(classes == label)
        if kind == "inter":
            others = np.flatnonzero(classes != label)
            if len(others):
                partners[members] = others[
                    generator.integers(len(others), size=len(members))
                ]
        elif len(members) > 1:
            places = generator.integers(len(members) - 1, size=len(members))
            places += places >= np.arange(len(members))  # step over oneself
            partners[members] = members[places]
    images = np.flatnonzero(partners >= 0)
    return torch.from_numpy(images), torch.from_numpy(partners[images])


def class_pairs(labels: Tensor, limit: int, seed: int) -> Pairs:
    """List unordered pairs of images of one class.

    Args:
        labels: (N,).
        limit: largest number of pairs of a class; if there are more, as many are drawn
            at random.
        seed: of the draw.

    Returns:
        Images i, and images j < i of the same class.
    """
    classes = labels.cpu().numpy()
    generator = np.random.default_rng((seed, _PAIR_STREAM))
    pairs = []
    for label in np.unique(classes):
        members = np.flatnonzero(classes == label)
        below_diagonal = np.stack(np.tril_indices(len(members), -1))
        of_class = members[below_diagonal]  # (2, pairs)
        count = of_class.shape[1]
        if count > limit:
            of_class = of_class[:, generator.choice(count, limit, replace=False)]
        pairs.append(of_class)
    first, second = np.concatenate(pairs, axis=1)
    return torch.from_numpy(first), torch.from_numpy(second)


def replaced_output(layer: nn.Module, outputs: list[Tensor]) -> AbstractContextManager:
    """Replace the outputs of a layer's next calls while the context is open.

    Args:
        layer: whose outputs are replaced.
        outputs: of the next calls, taken from the end of the list; once it is empty,
            the layer's own output stays.
    """
    return layer.register_forward_hook(
        lambda module, inputs, output: outputs.pop() if outputs else None
    )


@torch.no_grad()
def first_layer_end(network: nn.Module, example: Tensor) -> nn.Module:
    """Find the end of a network's first layer.

    Of the modules called before the second convolution or linear layer, the last one
    whose output alone decides the logits (tested on a few images).

    Args:
        network: in evaluation mode.
        example: (B, 3, S, S) input, not all zero.

    Raises:
        Undefined: where there is none.
    """
    name = type(network).__name__
    calls: list[nn.Module] = []

    def note_call(module: nn.Module, inputs: Any, output: Any) -> None:
        # Attention uses its layers without a call of them.
        is_innermost = not any(module.children())
        if is_innermost or isinstance(module, nn.MultiheadAttention):
            calls.append(module)

    observe(network, example, note_call)
    weighted = [
        position
        for position, module in enumerate(calls)
        if isinstance(module, _WEIGHTED)
    ]
    if len(weighted) < 2:
        raise Undefined(
            f"{name} calls {len(weighted)} convolution or linear layers; the end of "
            "the first needs a second one"
        )
    for position in reversed(range(weighted[0], weighted[1])):
        module = calls[position]
        is_first_call = calls.index(module) == position
        if is_first_call and _carries_everything(network, module, example):
            return module
    raise Undefined(
        f"no one module of {name} carries all of the image between the first and the "
        "second convolution or linear layer"
    )


def _carries_everything(network: nn.Module, module: nn.Module, example: Tensor) -> bool:
    """Whether the output of a module alone decides the logits.

    If so, other images get the logits of the example when the module's output for them
    is replaced by that for the example.
    """
    with captured_output(module) as outputs:
        logits = network(example)
    if not isinstance(outputs[0], Tensor) or outputs[0].shape[:1] != example.shape[:1]:
        return False
    others = network(-example)
    with replaced_output(module, outputs[:1]):
        replayed = network(-example)
    # If nothing bypasses the module, the logits differ by rounding alone. Else a part
    # of the difference to the other images remains; 1 % of it is tolerated.
    tolerance = 0.01 * _largest(logits - others) + 1e-6 * _largest(logits)
    return torch.allclose(replayed, logits, rtol=0, atol=tolerance, equal_nan=True)


def _largest(values: Tensor) -> float:
    return float(values.nan_to_num(0, 0, 0).abs().max())


@torch.no_grad()
def first_layer(
    network: nn.Module, inputs: Tensor, batch_size: int = 256
) -> FirstLayer:
    """Find the first layer, and compute its outputs.

    Args:
        network: in evaluation mode.
        inputs: (N, 3, H, W).
        batch_size: images at a time.

    Raises:
        Undefined: where no module is its end.
    """
    module = first_layer_end(network, inputs[:2])
    activations = []
    for batch in inputs.split(batch_size):
        with captured_output(module) as outputs:
            network(batch)
        activations.append(outputs[0])
    return FirstLayer(module, torch.cat(activations))


@torch.no_grad()
def hits(network: nn.Module, batches: Iterable[Tensor], labels: Tensor) -> Tensor:
    """Mask of the images that a network classifies correctly.

    Args:
        network: in evaluation mode.
        batches: of inputs, N together.
        labels: (N,).

    Returns:
        (N,) bool on the CPU.
    """
    predicted = [network(batch).argmax(1) for batch in batches]
    if not predicted:
        return torch.zeros(0, dtype=torch.bool)
    return torch.cat(predicted).cpu() == labels.cpu()


def mixed_hits(
    network: nn.Module,
    sample: Sample,
    pairs: Pairs,
    layer: FirstLayer | None,
    batch_size: int,
    alpha: float,
) -> Tensor:
    """Mask of the mixtures ``(1 - alpha) h_i + alpha h_j`` classified as image i.

    Args:
        network: in evaluation mode.
        sample: images.
        pairs: P indices i, and P indices j.
        layer: whose outputs h are mixed; None mixes inputs.
        batch_size: pairs at a time.
        alpha: share of j, in [0, 1].

    Returns:
        (P,) bool.
    """
    values = sample.inputs if layer is None else layer.activations
    first = pairs[0].to(values.device).split(batch_size)
    second = pairs[1].to(values.device).split(batch_size)
    outputs: list[Tensor] = []  # of the first layer, in the next pass

    def batches() -> Iterator[Tensor]:
        for i, j in zip(first, second, strict=True):
            mixed = torch.lerp(values[i], values[j], alpha)
            if layer is None:
                yield mixed
            else:
                # The hook replaces the first layer's output by the mixture; the input
                # only sets the pass going.
                outputs[:] = [mixed]
                yield sample.inputs[i]

    labels = sample.labels.cpu()[pairs[0]]
    replacing = (
        nullcontext() if layer is None else replaced_output(layer.module, outputs)
    )
    with replacing:
        return hits(network, batches(), labels)
