"""Mixup, and summaries of response curves.

Mixup is accuracy on blended pairs of images, or of first-layer outputs. Response curves
are accuracy against the magnitude of a change; Gi and Pal summarise them.
"""

from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.integrate import cumulative_trapezoid
from scipy.interpolate import BSpline, make_interp_spline
from torch import Tensor, fx, nn
from torch.nn.modules.conv import _ConvNd

from helpers.measures.passes import Sample, in_batches, is_right

Pairs = tuple[Tensor, Tensor]  # (P,) indices i, and (P,) indices j
KINDS = ("intra", "inter")
# Second number of a seed, so that each draw has its own random numbers (2:
# ``transforms``, 4: ``perturbation``).
_PARTNER_STREAM = 1
_PAIR_STREAM = 3


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


def first_layer(network: nn.Module) -> nn.Module | None:
    """Find the end of a network's first layer.

    That is the last module before the second convolution or linear layer through whose
    output everything later depends on the image.

    Args:
        network: traced by torch.fx.

    Returns:
        None where there is no such module, or torch.fx cannot trace the network.
    """
    if not isinstance(network, fx.GraphModule):
        return None
    modules = dict(network.named_modules())
    nodes = list(network.graph.nodes)
    called = [modules.get(str(node.target)) for node in nodes]
    weighted = [
        number
        for number, module in enumerate(called)
        if isinstance(module, (_ConvNd, nn.Linear, nn.MultiheadAttention))
    ]
    if len(weighted) < 2:
        return None
    for last in reversed(range(*weighted[:2])):
        later = set(nodes[last + 1 :])
        if not any(later & set(node.users) for node in nodes[:last]):
            return called[last]
    return None


@torch.inference_mode()
def mixed_hits(
    network: nn.Module, place: nn.Module, sample: Sample, pairs: Pairs, alpha: float
) -> NDArray[np.bool_]:
    """Mask of the mixtures ``(1 - alpha) h_i + alpha h_j`` classified as image i.

    Args:
        network: in evaluation mode.
        place: one of its modules; h are the outputs of its first call.
        sample: N images with labels.
        pairs: P indices i, and P indices j.
        alpha: share of j, in [0, 1].

    Returns:
        (P,).
    """

    def mix(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        hook.remove()
        return torch.lerp(*output.chunk(2), alpha)

    logits = []
    first, second = (in_batches(each.to(sample.labels.device)) for each in pairs)
    for i, j in zip(first, second, strict=True):
        hook = place.register_forward_hook(mix)
        logits.append(network(sample.inputs[torch.cat([i, j])]))
    labels = sample.labels[torch.cat(first)]
    return is_right(torch.cat(logits), labels).cpu().numpy()
