"""Spectral norms of the layers, combined over the network (Jiang et al. 2020; Du et al. 2024)."""

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from helpers.measures.evidence import provides
from helpers.measures.layers import Layer
from helpers.measures.norms import Array, frobenius_norms, log_mean, log_product, logarithm, over_margin, reported, reported_log
from helpers.measures.operators import fft_norm, operator_norm, reshaped_norm
from helpers.measures.registry import measure

# The layer as the map that it is, at its own input size; its weight as one matrix; its kernel at the size of the network's input.
VARIANTS = ("operator", "reshaped", "fft")
Norms = Mapping[str, Array]


def layer_norm(layer: Layer, variant: str, size: tuple[int, int]) -> float:
    """Spectral norm of one layer's weight, by one of ``VARIANTS``; of a linear layer they are all the same.

    Args:
        layer: see ``layers.trace_layers``.
        variant: "operator" (see ``operators.operator_norm``), "reshaped" or "fft".
        size: height and width of the network's input, for "fft".

    Raises:
        ValueError: an unknown variant.
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant {variant!r} is unknown; choose one of {', '.join(VARIANTS)}")
    if layer.kind == "linear" or variant == "reshaped":
        return reshaped_norm(layer.weight)
    if variant == "fft":
        return fft_norm(layer.weight, size, layer.groups)
    return operator_norm(layer.weight, layer.input_size, layer.stride, layer.dilation, layer.groups)


def layer_norms(layers: Sequence[Layer], size: tuple[int, int]) -> dict[str, Array]:
    """Spectral norms of all layers, (d,) by each of ``VARIANTS``, see ``layer_norm``."""
    return {variant: np.array([layer_norm(layer, variant, size) for layer in layers]) for variant in VARIANTS}


def ratio_sum(numerators: Array, norms: Array) -> float:
    """Sum of squared ratios ``(a_i / s_i)²``; NaN when an s_i is 0.

    With the Frobenius norms of the same weights it is a sum of stable ranks for the variant "reshaped", at least 1 each. The other
    variants keep the Frobenius norm of the kernel, as the papers do, although it is not that of the whole map.
    """
    return float(np.square(numerators / np.where(norms > 0, norms, np.nan)).sum())


def log_margin_bound(norms: Array, numerators: Array, margin: float) -> float:
    """Logarithm of ``prod of s_i² * sum of (a_i / s_i)² / margin²``; Jiang et al. 2020, equations (29) and (30) before scaling."""
    return over_margin(log_product(norms), margin) + float(logarithm(ratio_sum(numerators, norms)))


def stage_sizes(layers: Sequence[Layer]) -> list[tuple[int, int] | None]:
    """Size of the input of each convolution's residual stage, None for linear layers.

    A strided projection on a shortcut opens a stage: it says which size becomes which. A convolution that takes the smaller one is in
    that stage, and one that belongs to no stage has its own input's size.
    """
    convolutions = [layer for layer in layers if layer.kind == "conv"]
    opened = {
        tuple(-(-size // step) for size, step in zip(layer.input_size, layer.stride, strict=True)): layer.input_size
        for layer in convolutions
        if layer.shortcut and layer.stride != (1, 1)
    }
    return [opened.get(layer.input_size, layer.input_size) if layer.stride == (1, 1) else layer.input_size for layer in layers]


def released_log_bound(layers: Sequence[Layer], margins: Array) -> float:
    """Logarithm of the spectral norm measure by the rules of Du et al. 2024's code, where these differ from the paper.

    Projections on shortcuts are left out, batch normalisation is not folded, each kernel is transformed at the input size of its
    stage with the stride ignored, and the margin is the 5th percentile with linear interpolation.

    Args:
        layers: see ``layers.trace_layers``.
        margins: (N,) logit of the label minus the largest other.
    """
    chosen = [(layer, size) for layer, size in zip(layers, stage_sizes(layers), strict=True) if not layer.shortcut]
    norms = np.array([fft_norm(layer.kernel, size or 1, layer.groups) for layer, size in chosen])
    numerators = np.array([float(layer.kernel.norm()) for layer, _ in chosen])
    return log_margin_bound(norms, numerators, abs(float(np.percentile(margins, 5))))


@provides
def spectral_norms(layers: list[Layer], example: Tensor) -> Norms:
    """Spectral norms of the folded weights by variant."""
    return layer_norms(layers, tuple(example.shape[-2:]))


@provides
def spectral_distances(distances: list[Layer], example: Tensor) -> Norms:
    """Spectral norms of the folded weights' differences from their initial values, by variant."""
    return layer_norms(distances, tuple(example.shape[-2:]))


@measure("norms", -1, "Jiang et al. 2020, eq. 32", title="log product of spectral norms", variants=VARIANTS)
def log_prod_of_spec(spectral_norms: Norms, training_images: int) -> Mapping[str, float]:
    """Product of all squared spectral norms, as half a logarithm per image."""
    return {name: reported_log(log_product(norms), training_images) for name, norms in spectral_norms.items()}


@measure("norms", -1, "Jiang et al. 2020, eq. 31", title="log product of spectral norms over margin", variants=VARIANTS)
def log_prod_of_spec_over_margin(spectral_norms: Norms, margin: float, training_images: int) -> Mapping[str, float]:
    """Product of all squared spectral norms over the squared margin, as half a logarithm per image."""
    return {name: reported_log(over_margin(log_product(norms), margin), training_images) for name, norms in spectral_norms.items()}


@measure("norms", -1, "Jiang et al. 2020, eq. 29", title="log spectral bound from the start", variants=VARIANTS)
def log_spec_init_main(spectral_norms: Norms, distances: list[Layer], margin: float, training_images: int) -> Mapping[str, float]:
    """Bound (31) times the sum of squared distances from the start over squared spectral norms, as half a logarithm per image."""
    moved = frobenius_norms(distances)
    return {name: reported_log(log_margin_bound(norms, moved, margin), training_images) for name, norms in spectral_norms.items()}


@measure("norms", -1, "Jiang et al. 2020, eq. 30", title="log spectral bound", variants=VARIANTS)
def log_spec_orig_main(spectral_norms: Norms, frobenius_norms: Array, margin: float, training_images: int) -> Mapping[str, float]:
    """Bound (31) times the sum of squared Frobenius over squared spectral norms, as half a logarithm per image."""
    return {name: reported_log(log_margin_bound(norms, frobenius_norms, margin), training_images) for name, norms in spectral_norms.items()}


@measure("norms", -1, "Jiang et al. 2020, eq. 33", title="Frobenius over spectral norms", variants=VARIANTS)
def fro_over_spec(spectral_norms: Norms, frobenius_norms: Array, training_images: int) -> Mapping[str, float]:
    """Sum of squared Frobenius over squared spectral norms, as a root per image."""
    return {name: reported(ratio_sum(frobenius_norms, norms), training_images) for name, norms in spectral_norms.items()}


@measure("norms", -1, "Jiang et al. 2020, eq. 34", title="log sum of spectral norms over margin", variants=VARIANTS)
def log_sum_of_spec_over_margin(spectral_norms: Norms, margin: float, training_images: int) -> Mapping[str, float]:
    """Number of layers times the geometric mean of (31)'s factors, as half a logarithm per image."""
    bounds = {name: log_mean(over_margin(log_product(norms), margin), len(norms)) for name, norms in spectral_norms.items()}
    return {name: reported_log(bound, training_images) for name, bound in bounds.items()}


@measure("norms", -1, "Jiang et al. 2020, eq. 35", title="log sum of spectral norms", variants=VARIANTS)
def log_sum_of_spec(spectral_norms: Norms, training_images: int) -> Mapping[str, float]:
    """Number of layers times the geometric mean of the squared spectral norms, as half a logarithm per image."""
    return {name: reported_log(log_mean(log_product(norms), len(norms)), training_images) for name, norms in spectral_norms.items()}


@measure("norms", -1, "Jiang et al. 2020, eq. 41", title="spectral distance from the start", variants=VARIANTS)
def dist_spec_init(spectral_distances: Norms, training_images: int) -> Mapping[str, float]:
    """Sum of squared spectral norms of the weights' differences from their initial values, as a root per image."""
    return {name: reported(float(np.square(norms).sum()), training_images) for name, norms in spectral_distances.items()}


@measure("norms", -1, "Du et al. 2024, Appendix A1", variants=("log", "raw", "du_code log", "du_code raw"))
def spectral_norm(spectral_norms: Norms, frobenius_norms: Array, layers: list[Layer], margin: float, margins: Array) -> Mapping[str, float]:
    """Product of squared spectral norms times the sum of squared Frobenius over spectral norms, over the squared margin: its logarithm.

    It is not scaled by the number of images. "raw" is the number itself, and "du_code" follows ``released_log_bound``.
    """
    logs = {"": log_margin_bound(spectral_norms["operator"], frobenius_norms, margin), "du_code ": released_log_bound(layers, margins)}
    with np.errstate(over="ignore"):  # it is infinite then, and no number
        return {f"{rule}{form}": float(np.exp(log)) if form == "raw" else log for rule, log in logs.items() for form in ("log", "raw")}
