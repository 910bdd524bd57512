"""Spectra of weight matrices, as WeightWatcher has them; Martin, Peng and Mahoney 2021.

A kernel counts as the matrices (c_out, c_in) of its pixels, whose eigenvalues are
pooled. Batch normalisation is not folded in.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from helpers.measures.norms import Layer
from helpers.measures.registry import measure, provides
from helpers.networks import Undefined
from helpers.statistics.correlate import Array

_SOURCE = "Martin, Peng and Mahoney 2021"
RECORDED = "singular values of "  # before the name of a layer
_FEWEST = 10  # eigenvalues of a layer, with fewer of which it is passed over


def power_law(values: Array) -> float:
    """Exponent of a power law ``p(l) ~ l^-alpha`` above the best smallest value.

    ``alpha = 1 + n / sum of log(l / x_min)`` over the n values from x_min on; x_min is
    the value with the least Kolmogorov-Smirnov distance (Clauset, Shalizi and Newman
    2009).

    Args:
        values: (m,) above 0, at least two different ones.

    Returns:
        Above 1.
    """
    logs = np.log(np.sort(values))
    best = (np.inf, np.nan)
    for start in np.flatnonzero(logs < logs[-1]):
        tail = logs[start:] - logs[start]
        alpha = 1 + len(tail) / tail.sum()
        expected = 1 - np.exp(-(alpha - 1) * tail)
        distance = np.abs(expected - np.arange(len(tail)) / len(tail)).max()
        best = min(best, (distance, alpha))
    return best[1]


@provides
@torch.no_grad()
def singular_values(network: nn.Module) -> dict[str, Array]:
    """Singular values of each layer's weights, as they are recorded.

    For measures of networks that are gone.

    Args:
        network: any; convolutions without groups and linear layers are read.

    Returns:
        float32 by ``RECORDED`` and the layer's name: (1, kh kw, m) of a convolution and
        (1, m) of a linear layer, m the smaller number of its channels. The first axis
        tells them from values of images.
    """
    found = {}
    for name, module in network.named_modules():
        if not isinstance(module, (nn.Conv2d, nn.Linear)):
            continue
        weight = module.weight.detach().cpu().double()
        if getattr(module, "groups", 1) > 1 or not weight.isfinite().all():
            continue
        if weight.ndim == 4:
            weight = weight.flatten(2).permute(2, 0, 1)
        values = torch.linalg.svdvals(weight).float()
        found[RECORDED + name] = values.unsqueeze(0).numpy()
    return found


def inputs_from_record(record: Mapping[str, Array]) -> dict[str, Any]:
    """The input ``singular_values`` of measures, where a record has it.

    Args:
        record: of a network, see ``singular_values``.
    """
    found = {name: record[name] for name in record if name.startswith(RECORDED)}
    return {"singular_values": found} if found else {}


@provides
def power_laws(singular_values: Mapping[str, Array]) -> Array:
    """Exponent of each layer's spectrum, and its largest eigenvalue, (layers, 2).

    Args:
        singular_values: of each layer.
    """
    laws = []
    for of_layer in singular_values.values():
        values = of_layer.ravel().astype(float) ** 2
        if of_layer.ndim == 3:
            values = 0.5 * values  # WeightWatcher's scale of convolutions
        values = values[values > 1e-12 * values.max()]
        if len(values) >= _FEWEST and np.ptp(values) > 0:
            laws.append((power_law(values), values.max()))
    if not laws:
        raise Undefined(f"no layer has a spectrum of {_FEWEST} values or more")
    return np.array(laws)


@measure("norms", -1, _SOURCE, title="power law of the spectra (alpha)")
def spectral_alpha(power_laws: Array) -> float:
    """Exponent of the eigenvalues of the weights, mean over layers, above 1.

    Args:
        power_laws: (layers, 2) exponents and largest eigenvalues.
    """
    return float(power_laws[:, 0].mean())


@measure("norms", -1, _SOURCE, title="weighted alpha")
def spectral_alpha_hat(power_laws: Array) -> float:
    """Exponent times log10 of the largest eigenvalue, mean over layers.

    Args:
        power_laws: (layers, 2) exponents and largest eigenvalues.
    """
    exponents, largest = power_laws.T
    return float((exponents * np.log10(largest)).mean())


@measure("norms", -1, _SOURCE, title="log stable rank")
def stable_rank(weights: list[Layer]) -> float:
    """``ln(|W|_F^2 / |W|_2^2)`` of each weight as a matrix, mean over layers.

    Args:
        weights: by layer.
    """
    matrices = [layer.weight.flatten(1) for layer in weights]
    ratios = [
        matrix.norm() / torch.linalg.matrix_norm(matrix, 2) for matrix in matrices
    ]
    return float(2 * torch.stack(ratios).log().mean())
