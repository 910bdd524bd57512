"""Mixup, and summaries of response curves.

Mixup is accuracy on blended pairs of images, or of first-layer outputs. Response curves
are accuracy against the magnitude of a change; Gi and Pal summarise them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.integrate import cumulative_trapezoid
from scipy.interpolate import BSpline, make_interp_spline
from torch import Tensor, fx, nn
from torch.nn.modules.conv import _ConvNd

from helpers.measures.passes import hits, in_batches

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


def _area_up_to(curve: pd.Series) -> BSpline:
    """Area under a response curve up to an alpha, linear between its points."""
    areas = cumulative_trapezoid(curve, curve.index, initial=0)
    return make_interp_spline(curve.index, areas, k=1, check_finite=False)


def gi_of_curve(curve: pd.Series) -> float:
    """Deficit of a response curve, after Gini; Schiff et al. 2021, Algorithm 2.

    ``Gi = 2 * integral of (alpha - t(alpha))``, with t the area under the curve up to
    alpha.

    Args:
        curve: (n,) accuracies in [0, 1], by alpha from 0 to 1.

    Returns:
        In [0, 1], small is better: ``1 - a`` for a constant a. NaN when an accuracy is.

    Example:
        >>> gi_of_curve(pd.Series([0.75, 0.75, 0.75], [0, 0.5, 1]))
        0.25
    """
    return 1 - 2 * float(_area_up_to(curve).integrate(0, 1))


def pal_of_curve(curve: pd.Series) -> float:
    """Ratio of areas of a response curve, after Palma; a WORKING DEFINITION.

    Algorithm 4 of Schiff et al. 2021 was not at hand. ``Pal = integral of t over
    [0.4, 1] / integral of t over [0, 0.1]``, with t as in ``gi_of_curve``, linear
    between points. A factor on all accuracies does not change it.

    Args:
        curve: (n,) accuracies in [0, 1], by alpha from 0 to 1.

    Returns:
        At least 0, large is better; NaN for 0 / 0.
    """
    area = _area_up_to(curve)
    lower = area.integrate(0, 0.1)
    return float(area.integrate(0.4, 1) / lower) if lower > 0 else np.nan


def mixup_partners(labels: Tensor, kind: str, seed: int) -> Pairs:
    """Draw a partner for every image that can have one, uniformly.

    Args:
        labels: (N,), on the CPU.
        kind: "intra", a partner of the same class, or "inter", of another.
        seed: of the draw.

    Returns:
        Images i, ascending, and their partners j != i.
    """
    classes = labels.numpy()
    generator = np.random.default_rng((seed, _PARTNER_STREAM))
    partners = np.full(len(classes), -1)
    for label in np.unique(classes):
        is_member = classes == label
        members = np.flatnonzero(is_member)
        others = np.flatnonzero(is_member == (kind == "intra"))
        choices = len(others) - (kind == "intra")
        if choices:
            places = generator.integers(choices, size=len(members))
            if kind == "intra":
                places += places >= np.arange(len(members))  # step over oneself
            partners[members] = others[places]
    images = np.flatnonzero(partners >= 0)
    return torch.from_numpy(images), torch.from_numpy(partners[images])


def class_pairs(labels: Tensor, limit: int, seed: int) -> Pairs:
    """List unordered pairs of images of one class.

    Args:
        labels: (N,), on the CPU.
        limit: largest number of pairs of a class; if there are more, as many are drawn
            at random.
        seed: of the draw.

    Returns:
        Images i, and images j < i of the same class.
    """
    generator = np.random.default_rng((seed, _PAIR_STREAM))
    pairs = []
    for label in labels.unique():
        members = (labels == label).nonzero()[:, 0]
        of_class = members[torch.tril_indices(len(members), len(members), -1)]
        count = of_class.shape[1]
        if count > limit:
            of_class = of_class[:, generator.choice(count, limit, replace=False)]
        pairs.append(of_class)
    return torch.cat(pairs, 1).unbind()


@torch.no_grad()
def first_layer(network: nn.Module, inputs: Tensor) -> Place | None:
    """Cut a network at the end of its first layer.

    That is the last operation before the second convolution or linear layer through
    which everything later depends on the image.

    Args:
        network: in evaluation mode, traced by torch.fx.
        inputs: (N, 3, H, W).

    Returns:
        None where there is no such operation, or torch.fx cannot trace the network.
    """
    if not isinstance(network, fx.GraphModule):
        return None
    nodes = list(network.graph.nodes)
    weighted = [
        number
        for number, node in enumerate(nodes)
        if node.op == "call_module"
        and isinstance(network.get_submodule(node.target), _WEIGHTED)
    ]
    if len(weighted) < 2:
        return None
    for last in reversed(range(*weighted[:2])):
        later = set(nodes[last + 1 :])
        if not any(later & set(node.users) for node in nodes[:last]):
            head = _part(network, nodes[: last + 1])
            values = [head(batch) for batch in in_batches(inputs)]
            return Place(torch.cat(values), _part(network, nodes[last:]))
    return None


def _part(network: fx.GraphModule, nodes: Sequence[fx.Node]) -> fx.GraphModule:
    """Operations from the output of the first of some nodes to that of the last."""
    graph = fx.Graph()
    copies = {nodes[0]: graph.placeholder("values")}
    for node in nodes[1:]:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    if nodes[-1].op != "output":
        graph.output(copies[nodes[-1]])
    return fx.GraphModule(network, graph)


def mixed_hits(
    place: Place, labels: Tensor, pairs: Pairs, alpha: float
) -> NDArray[np.bool_]:
    """Mask of the mixtures ``(1 - alpha) h_i + alpha h_j`` classified as image i.

    Args:
        place: where N images are mixed; h are the values there.
        labels: (N,), on the CPU.
        pairs: P indices i, and P indices j.
        alpha: share of j, in [0, 1].

    Returns:
        (P,).
    """
    values = place.values
    first, second = (in_batches(each.to(values.device)) for each in pairs)
    mixed = (
        torch.lerp(values[i], values[j], alpha)
        for i, j in zip(first, second, strict=True)
    )
    return hits(place.rest, mixed, labels[pairs[0]])
