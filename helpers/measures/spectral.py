"""Spectral norms of layers and their products; Jiang et al. 2020, Du et al. 2024.

Arguments of measures are filled by their names, see ``registry.measure``. A function
under ``complexity`` gets the spectral norms of one variant at a time, one under
``measure`` those of all variants.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from helpers.measures.complexity import NORM_VARIANTS, complexity
from helpers.measures.evidence import provides
from helpers.measures.layers import Layer
from helpers.measures.norms import log_bound, log_product, log_sum, ratios
from helpers.measures.registry import measure
from helpers.networks.operator_norm import Pair, operator_norm
from helpers.statistics.correlations import Array


def norms_of_layer(layer: Layer, size: Pair) -> dict[str, float]:
    """Spectral norms of one layer's weight by variant; equal for a kernel of one pixel.

    reshaped: of one (c_out, rest) matrix (Yoshida and Miyato 2017); fft: stride and
    dilation ignored, at the network's input size, as in the code of Dziugaite et al.
    2020.

    Args:
        layer: with batch normalisation folded in.
        size: of the network's input, for fft.
    """
    weight = layer.weight
    reshaped = operator_norm(weight.flatten(1)[..., None, None], (1, 1))
    if weight.shape[2:] in ((), (1, 1)) and layer.groups == 1:
        return dict.fromkeys(NORM_VARIANTS, reshaped)
    return {
        "operator": operator_norm(
            weight, layer.input_size, layer.stride, layer.dilation, layer.groups
        ),
        "reshaped": reshaped,
        "fft": operator_norm(weight, size, groups=layer.groups),
    }


@provides
def spectral_norms(layers: Sequence[Layer], example: Tensor) -> dict[str, Array]:
    """Spectral norms of the folded weights, (d,) by variant.

    Args:
        layers: with their folded weights.
        example: (1, 3, S, S) one image as input of the network.
    """
    norms = [norms_of_layer(layer, tuple(example.shape[-2:])) for layer in layers]
    return {
        variant: np.array([of_layer[variant] for of_layer in norms], dtype=float)
        for variant in NORM_VARIANTS
    }


@provides
def spectral_distances(distances: Sequence[Layer], example: Tensor) -> dict[str, Array]:
    """Spectral norms of the weights' change, (d,) by variant.

    Args:
        distances: layers whose weights are changes from the start.
        example: (1, 3, S, S) one image as input of the network.
    """
    return spectral_norms(distances, example)


@complexity("norms", "32", "log product of spectral norms", is_logarithm=True)
def log_prod_of_spec(spectral_norms: Array) -> float:
    """Product of squared spectral norms, its logarithm.

    Args:
        spectral_norms: (d,) spectral norm of each layer's weight.
    """
    return log_product(spectral_norms)


@complexity(
    "norms", "31", "log product of spectral norms over margin", is_logarithm=True
)
def log_prod_of_spec_over_margin(spectral_norms: Array, margin: float) -> float:
    """Product of squared spectral norms over the squared margin, its logarithm.

    Args:
        spectral_norms: (d,) spectral norm of each layer's weight.
        margin: of the training images, in logits, see ``prediction.margin``.
    """
    return log_product(spectral_norms, margin)


@complexity("norms", "29", "log spectral bound from the start", is_logarithm=True)
def log_spec_init_main(spectral_norms: Array, moved: Array, margin: float) -> float:
    """Spectral bound of the change from the start, its logarithm; see ``log_bound``.

    Args:
        spectral_norms: (d,) spectral norm of each layer's weight.
        moved: (d,) Frobenius distances, not all 0.
        margin: of the training images, in logits, see ``prediction.margin``.
    """
    return log_bound(spectral_norms, moved, margin)


@complexity("norms", "30", "log spectral bound", is_logarithm=True)
def log_spec_orig_main(
    spectral_norms: Array, frobenius_norms: Array, margin: float
) -> float:
    """Spectral bound of the weights, its logarithm; see ``log_bound``.

    Args:
        spectral_norms: (d,) spectral norm of each layer's weight.
        frobenius_norms: (d,) Frobenius norm of each layer's weight.
        margin: of the training images, in logits, see ``prediction.margin``.
    """
    return log_bound(spectral_norms, frobenius_norms, margin)


@complexity("norms", "33", "Frobenius over spectral norms")
def fro_over_spec(spectral_norms: Array, frobenius_norms: Array) -> float:
    """Sum of squared Frobenius over spectral norms.

    Args:
        spectral_norms: (d,) spectral norm of each layer's weight.
        frobenius_norms: (d,) Frobenius norm of each layer's weight.
    """
    return ratios(frobenius_norms, spectral_norms)


@complexity("norms", "34", "log sum of spectral norms over margin", is_logarithm=True)
def log_sum_of_spec_over_margin(spectral_norms: Array, margin: float) -> float:
    """Sum of squared spectral norms over the squared margin, its logarithm.

    See ``norms.log_sum``.

    Args:
        spectral_norms: (d,) spectral norm of each layer's weight.
        margin: of the training images, in logits, see ``prediction.margin``.
    """
    return log_sum(spectral_norms, margin)


@complexity("norms", "35", "log sum of spectral norms", is_logarithm=True)
def log_sum_of_spec(spectral_norms: Array) -> float:
    """Sum of squared spectral norms, its logarithm; see ``norms.log_sum``.

    Args:
        spectral_norms: (d,) spectral norm of each layer's weight.
    """
    return log_sum(spectral_norms)


@complexity("norms", "41", "spectral distance from the start")
def dist_spec_init(spectral_distances: Array) -> float:
    """Sum of squared spectral norms of the change from the start.

    Args:
        spectral_distances: (d,) spectral norm of the change of each layer's weight.
    """
    return (spectral_distances**2).sum()


@measure("norms", -1, "Du et al. 2024, Appendix A1", variants=("log", "raw"))
def spectral_norm(
    spectral_norms: Mapping[str, Array], frobenius_norms: Array, margin: float
) -> Mapping[str, float]:
    """Spectral bound of the weights as Du et al. print it, and its logarithm.

    Product of squared spectral norms times the sum of squared Frobenius over spectral
    norms, over the squared margin.

    Args:
        spectral_norms: (d,) spectral norm of each layer's weight, by variant.
        frobenius_norms: (d,) Frobenius norm of each layer's weight.
        margin: of the training images, in logits, see ``prediction.margin``.
    """
    logarithm = log_bound(spectral_norms["operator"], frobenius_norms, margin)
    with np.errstate(over="ignore"):  # exp overflows to inf
        return {"log": logarithm, "raw": float(np.exp(logarithm))}
