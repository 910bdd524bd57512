"""Mixup, and summaries of response curves.

Mixup is accuracy on blended pairs of images, or of first-layer outputs. Response curves
are accuracy against the magnitude of a change; Gi and Pal summarise them.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.integrate import cumulative_trapezoid, trapezoid
from torch import Tensor, fx, nn
from torch.nn.modules.conv import _ConvNd

from helpers.networks.faults import Undefined
from helpers.statistics.correlate import Array

Pairs = tuple[Tensor, Tensor]  # (P,) indices i, and (P,) indices j
KINDS = ("intra", "inter")
_WEIGHTED = (_ConvNd, nn.Linear, nn.MultiheadAttention)
# Second number of a seed, so that each draw has its own random numbers (2:
# ``transforms``, 4: ``perturbation``).
_PARTNER_STREAM = 1
_PAIR_STREAM = 3


class Place(NamedTuple):
    """Where images are mixed: the input, or the end of the first layer."""

    values: Tensor  # (N, ...) there, of N images, on the network's device
    rest: nn.Module  # from these values to logits


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


@torch.no_grad()
def first_layer(network: nn.Module, inputs: Tensor, batch_size: int = 256) -> Place:
    """Cut a network at the end of its first layer.

    That is the last operation before the second convolution or linear layer through
    which everything later depends on the image.

    Args:
        network: in evaluation mode, traced by torch.fx.
        inputs: (N, 3, H, W).
        batch_size: images at a time.

    Raises:
        Undefined: where there is none.
    """
    name = type(network).__name__
    if not isinstance(network, fx.GraphModule):
        raise Undefined(f"torch.fx cannot trace {name}: its first layer is not known")
    nodes = list(network.graph.nodes)
    weighted = [
        number
        for number, node in enumerate(nodes)
        if node.op == "call_module"
        and isinstance(network.get_submodule(node.target), _WEIGHTED)
    ]
    if len(weighted) < 2:
        raise Undefined(
            f"{name} calls {len(weighted)} convolution or linear layers; the end of "
            "the first needs a second one"
        )
    for number in reversed(range(weighted[0], weighted[1])):
        later = set(nodes[number + 1 :])
        if not any(later & set(node.users) for node in nodes[:number]):
            head = _part(network, nodes[: number + 1])
            values = torch.cat([head(batch) for batch in inputs.split(batch_size)])
            return Place(values, _part(network, nodes[number:]))
    raise Undefined(
        f"no one operation of {name} carries all of the image between the first and "
        "the second convolution or linear layer"
    )


def _part(network: fx.GraphModule, nodes: Sequence[fx.Node]) -> fx.GraphModule:
    """Operations from the output of the first of some nodes to that of the last."""
    graph = fx.Graph()
    copies = {nodes[0]: graph.placeholder("values")}
    for node in nodes[1:]:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    if nodes[-1].op != "output":
        graph.output(copies[nodes[-1]])
    return fx.GraphModule(network, graph)


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
    place: Place, labels: Tensor, pairs: Pairs, batch_size: int, alpha: float
) -> Tensor:
    """Mask of the mixtures ``(1 - alpha) h_i + alpha h_j`` classified as image i.

    Args:
        place: where N images are mixed; h are the values there.
        labels: (N,).
        pairs: P indices i, and P indices j.
        batch_size: pairs at a time.
        alpha: share of j, in [0, 1].

    Returns:
        (P,) bool.
    """
    values = place.values
    first, second = (each.to(values.device).split(batch_size) for each in pairs)
    mixed = (
        torch.lerp(values[i], values[j], alpha)
        for i, j in zip(first, second, strict=True)
    )
    return hits(place.rest, mixed, labels.cpu()[pairs[0]])
