"""Norms of the weights: how many there are, how large, how far from their start (Jiang et al. 2020), each a row of a table."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from helpers.measures.evidence import PROVIDERS, provides
from helpers.measures.layers import Layer, folded_copy
from helpers.measures.registry import Measure, Value, enter, measure, needs
from helpers.statistics.correlations import Array

# Symbols of the formulas: norms of each layer, (d,), batch normalisation folded in and biases left out, of its weights and of their change
# from the initial ones, the margin, the number of training images, and, of every weight, its change; all others are providers' names.
SYMBOLS = {
    "f": "frobenius_norms",
    "df": "frobenius_distances",
    "s": "spectral_norms",
    "ds": "spectral_distances",
    "gamma": "margin",
}
SYMBOLS |= {
    "m": "training_images",
    "dw": "weight_changes",
    "sigma_w": "relative_sigma",
    "alpha_w": "relative_alpha",
    "size": "layer_sizes",
}

# Of a spectral norm: the layer as the map that it is, at its input size; its weight as one matrix; its kernel at the network's input size.
NORM_VARIANTS = ("operator", "reshaped", "fft")

# Layers that divide by statistics of their input, which is no sum over paths.
_DIVIDING = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.LocalResponseNorm)


def log(values: ArrayLike) -> Array:
    """Natural logarithm, NaN where a value is not above 0."""
    values = np.asarray(values, dtype=float)
    return np.log(np.where(values > 0, values, np.nan))


def log_product(norms: Array, margin: float = 1.0) -> float:
    """Logarithm of the product of squared norms over the squared margin; NaN when one is 0."""
    return float(2 * log(norms).sum() - 2 * log(margin))


def log_sum(norms: Array, margin: float = 1.0) -> float:
    """Logarithm of d times the geometric mean of the same d factors, which Jiang et al. 2020 call a sum."""
    return math.log(len(norms)) + log_product(norms, margin) / len(norms)


def ratios(numerators: Array, norms: Array) -> float:
    """Sum of squared ratios ``(a_i / s_i)²``; NaN when an s_i is 0. Of Frobenius over reshaped norms, a sum of stable ranks."""
    return float(np.square(numerators / np.where(norms > 0, norms, np.nan)).sum())


def log_bound(norms: Array, numerators: Array, margin: float) -> float:
    """Logarithm of ``prod of s_i² * sum of (a_i / s_i)² / margin²``; Jiang et al. 2020, equations (29) and (30) before scaling."""
    return float(log_product(norms, margin) + log(ratios(numerators, norms)))


def reported(value: float, images: int, logarithm: bool = False) -> float:
    """Scale a complexity as Dziugaite et al. 2020 (code) report it: ``sqrt(v / m)``, NaN below 0; or its logarithm from ``ln v``."""
    if logarithm:
        return float(0.5 * (value - math.log(images)))
    return math.sqrt(value / images) if value >= 0 else math.nan


def complexities(
    family: str, *rows: tuple[str, str, str, Callable[..., float]]
) -> None:
    """Enter complexities into the list of measures; a larger one promises a larger gap.

    Rows: name ("log...": the raw value is a logarithm), equation of Jiang et al. 2020 or name in the code of Dziugaite et al. 2020, title,
    and raw value by ``SYMBOLS``; with s or ds, one for each of ``NORM_VARIANTS``.
    """
    for name, equation, title, raw in rows:
        source = (
            f"Jiang et al. 2020, equation {equation}"
            if equation.isdigit()
            else f"Dziugaite et al. 2020 (code), {equation}"
        )
        logarithm, variants = (
            name.startswith("log"),
            NORM_VARIANTS if {"s", "ds"} & {*needs(raw)} else (),
        )
        wanted = dict.fromkeys(
            [*(SYMBOLS.get(symbol, symbol) for symbol in needs(raw)), "training_images"]
        )
        summary = f"{title}, as {'half a logarithm' if logarithm else 'a root'} per training image"
        enter(
            Measure(
                name,
                title,
                family,
                -1,
                source,
                variants,
                summary,
                tuple(wanted),
                partial(_reported, raw, variants, logarithm),
            )
        )


def _reported(
    raw: Callable[..., float], variants: Sequence[str], logarithm: bool, **known: Any
) -> Value:
    given, found = (
        {symbol: known[SYMBOLS.get(symbol, symbol)] for symbol in needs(raw)},
        {},
    )
    for variant in variants or ("",):
        own = {
            symbol: value[variant] if symbol in ("s", "ds") else value
            for symbol, value in given.items()
        }
        found[variant] = reported(
            float(raw(**own)), known["training_images"], logarithm
        )
    return found if variants else found[""]


@provides
def frobenius_norms(layers: Sequence[Layer]) -> Array:
    """Frobenius norm of each layer's weight, (d,)."""
    return np.array([float(torch.linalg.vector_norm(layer.weight)) for layer in layers])


@provides
def distances(layers: Sequence[Layer], initial_layers: Sequence[Layer]) -> list[Layer]:
    """The layers with their weights' change from the initial ones."""
    return [
        replace(layer, weight=layer.weight - start.weight)
        for layer, start in zip(layers, initial_layers, strict=True)
    ]


@provides
def moved(frobenius_distances: Array) -> Array:
    """Frobenius norms of the change, of which one is not 0, so that their sum has a logarithm."""
    if not frobenius_distances.any():
        raise ValueError(
            "the weights are those of the start: the distance is 0, and its logarithm minus infinity"
        )
    return frobenius_distances


PROVIDERS |= {
    "layer_sizes": lambda layers: np.array(
        [layer.weight.numel() for layer in layers], dtype=float
    ),  # (d,)
    "frobenius_distances": lambda distances: frobenius_norms(distances),
    "weight_changes": lambda distances: torch.cat(
        [layer.weight.flatten() for layer in distances]
    ).numpy(),  # (omega,)
}


@provides
@torch.no_grad()
def path_product(network: nn.Module, example: Tensor) -> float:
    """Sum over all paths from input to output of the product of squared weights along it; Jiang et al. 2020, equation (44).

    An image of ones through a float64 copy with every parameter squared, biases too; exact for ReLU networks, save that max-pooling takes
    the largest path of a window.
    """
    for name, module in network.named_modules():
        if isinstance(module, _DIVIDING) or (
            isinstance(module, _NormBase) and module.running_mean is None
        ):
            raise ValueError(
                f"the path norm is not defined: {name} ({type(module).__name__}) divides by statistics of its input"
            )
    ones = torch.ones(1, *example.shape[1:], dtype=torch.float64)
    squared = folded_copy(copy.deepcopy(network).cpu().double(), ones)
    for parameter in squared.parameters():
        parameter.square_()
    return float(squared(ones).sum())


complexities(
    "norms",
    ("params", "20", "parameters", lambda size: size.sum()),
    ("inverse_margin", "22", "inverse margin", lambda gamma: 1 / gamma**2),
    ("l2", "L2", "L2 norm", lambda f: np.linalg.norm(f)),
    ("l2_dist", "L2_DIST", "L2 distance from the start", lambda df: np.linalg.norm(df)),
    (
        "log_prod_of_fro_over_margin",
        "36",
        "log product of Frobenius norms over margin",
        lambda f, gamma: log_product(f, gamma),
    ),
    (
        "log_prod_of_fro",
        "37",
        "log product of Frobenius norms",
        lambda f: log_product(f),
    ),
    (
        "log_sum_of_fro_over_margin",
        "38",
        "log sum of Frobenius norms over margin",
        lambda f, gamma: log_sum(f, gamma),
    ),
    ("log_sum_of_fro", "39", "log sum of Frobenius norms", lambda f: log_sum(f)),
    ("fro_dist", "40", "Frobenius distance from the start", lambda df: (df**2).sum()),
    ("param_norm", "42", "parameter norm", lambda f: (f**2).sum()),
)


@measure("norms", -1, "Jiang et al. 2020, equation 44", variants=("root", "log"))
def path_norm(path_product: float, training_images: int) -> Mapping[str, float]:
    """Sum over paths of squared weights: ``sqrt(v / m)``, or half the logarithm of ``v / m``."""
    return {
        "root": reported(path_product, training_images),
        "log": reported(log(path_product), training_images, logarithm=True),
    }


@measure("norms", -1, "Jiang et al. 2020, equation 43", variants=("root", "log"))
def path_norm_over_margin(
    path_product: float, margin: float, training_images: int
) -> Mapping[str, float]:
    """Sum over paths of squared weights over the squared margin, scaled as ``path_norm``."""
    return path_norm(path_product / margin**2, training_images)
