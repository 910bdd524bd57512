"""How much a layer can stretch its input, and spectral norms of the layers combined (Jiang et al. 2020; Du et al. 2024)."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.linalg.lapack import dstev
from torch import Tensor

from helpers.measures.evidence import provides
from helpers.measures.norms import _Array, log_mean, log_product, logarithm, moved_norms, over_margin, reported, reported_log
from helpers.measures.registry import measure
from helpers.measures.traced_layers import Layer

Pair = int | tuple[int, int]

# Numbers in one batch of Gram matrices; larger ones leave the processor's cache.
_BATCH = 4_000_000

# By which eigenvalues may be told apart, relative: some thousand roundings of float64.
_TOLERANCE = 1e-12

# Likewise in single precision, which is twice as quick and decides which frequencies are worth double.
_ROUGH = 2e-4

# Rows up to which all eigenvalues of a matrix are found as quickly as the largest, and steps to the largest of more rows at least.
_SMALL, _STEPS = 96, 12


def operator_norm(weight: Tensor, input_size: Pair, stride: Pair = 1, dilation: Pair = 1, groups: int = 1) -> float:
    """Spectral norm of a convolution as a linear map of its whole input, with circular padding: ``max of |conv(x)| / |x|``.

    Sedghi, Gupta and Long 2019: with W_k the (c_out, c_in) matrix of tap k, the map times its transpose is block diagonal in
    frequency, with the blocks ``G(t) = sum over lags l of A_l exp(-i t l)``, where ``A_l = sum over k of W_(k+l) W_k'``. The norm is
    the root of the largest eigenvalue of all G(t), exact to 1e-12 relative. A stride s is a stride of 1 on the s² images that hold
    every s-th pixel each, which is the same as joining the s² aliases of each frequency.

    Args:
        weight: (c_out, c_in / groups, kh, kw), of either sign.
        input_size: height and width of the layer's input. It is rounded up to the kernel's size (a smaller circle would wrap the
            kernel over itself) and then to a multiple of the stride (circular padding needs one).
        stride: of the convolution.
        dilation: of the convolution; the kernel is taken with zeros between its taps.
        groups: of the convolution; the norm is that of the group with the largest.

    Returns:
        At least 0, and 0 for a weight of zeros only; NaN when a weight is not finite. For a 1x1 kernel, and wherever the stride is at
        least the kernel's size, it is ``reshaped_norm`` of the largest group at any input size.

    Raises:
        ValueError: the weight is no stack of kernels, or sizes, strides, dilations or groups do not fit it.
    """
    kernels, stride = _dilated(_stack(weight, groups), _pair("dilation", dilation)), _pair("stride", stride)
    if not kernels.isfinite().all():
        return math.nan
    if not kernels.any():
        return 0.0
    sizes = zip(_pair("input size", input_size), kernels.shape[-2:], stride, strict=True)
    grid = tuple(-(-max(size, taps) // step) for size, taps, step in sizes)
    largest = 2.0 ** math.floor(math.log2(float(kernels.abs().max())))  # a power of 2, which rounds nothing
    kernels = _interleaved(kernels / largest, stride)
    if kernels.shape[2] < kernels.shape[1]:
        kernels = kernels.transpose(1, 2)  # another order of the product: smaller blocks with the same eigenvalues
    return largest * math.sqrt(_largest_over_frequencies(*_autocorrelation(kernels), grid))


def reshaped_norm(weight: Tensor) -> float:
    """Spectral norm of a weight as one (c_out, rest) matrix R; the rule of Yoshida and Miyato 2017 for convolutions.

    At stride 1, ``|R| <= operator_norm <= sqrt(kh kw) |R|``; equal for a 1x1 kernel.

    Args:
        weight: (c_out, ...); a linear layer's (out, in) as it is.

    Returns:
        At least 0; NaN when a weight is not finite.
    """
    matrix = weight.detach().cpu().double().flatten(1)
    if not matrix.isfinite().all():
        return math.nan
    # Of the smaller product, whose largest eigenvalue is as exact as the singular value and much quicker to find.
    product = matrix @ matrix.T if len(matrix) <= matrix.shape[1] else matrix.T @ matrix
    return math.sqrt(max(0.0, float(torch.linalg.eigvalsh(product)[-1])))


def fft_norm(weight: Tensor, size: Pair, groups: int = 1) -> float:
    """Spectral norm of a kernel at a size that is given and not the layer's own, stride and dilation ignored.

    The rule of Dziugaite et al. 2020 (code), who take the size of the network's input for every layer. Equal to ``operator_norm`` for
    a layer with stride 1 and an input of that size.

    Args:
        weight: (c_out, c_in / groups, kh, kw), or (out, in) of a linear layer, for which it is ``reshaped_norm``.
        size: height and width.
        groups: of the convolution.

    Returns:
        At least 0; NaN when a weight is not finite.
    """
    return reshaped_norm(weight) if weight.ndim == 2 else operator_norm(weight, size, groups=groups)


def _pair(name: str, value: Pair) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else tuple(int(part) for part in value)
    if len(pair) != 2 or min(pair) < 1:
        raise ValueError(f"{name} {value!r} must be one or two whole numbers of at least 1")
    return pair


def _stack(weight: Tensor, groups: int) -> Tensor:
    if weight.ndim != 4:
        raise ValueError(f"the weight has shape {tuple(weight.shape)}; a convolution needs (c_out, c_in / groups, kh, kw)")
    if groups < 1 or len(weight) % groups:
        raise ValueError(f"groups {groups} must divide the {len(weight)} output channels")
    return weight.detach().cpu().double().unflatten(0, (groups, -1))


def _dilated(kernels: Tensor, dilation: tuple[int, int]) -> Tensor:
    """Put zeros between the taps: (..., kh, kw) -> (..., (kh - 1) dilation + 1, (kw - 1) dilation + 1)."""
    spread = [(taps - 1) * step + 1 for taps, step in zip(kernels.shape[-2:], dilation, strict=True)]
    wide = kernels.new_zeros(*kernels.shape[:-2], *spread)
    wide[..., :: dilation[0], :: dilation[1]] = kernels
    return wide


def _interleaved(kernels: Tensor, stride: tuple[int, int]) -> Tensor:
    """Write a kernel of stride s as one of stride 1 on s² times the channels: (g, n, c, kh, kw) -> (g, n, c s², kh / s, kw / s)."""
    missing = [-taps % step for taps, step in zip(kernels.shape[-2:], stride, strict=True)]
    full = F.pad(kernels, (0, missing[1], 0, missing[0]))
    split = full.unflatten(4, (-1, stride[1])).unflatten(3, (-1, stride[0]))  # (g, n, c, kh / s, s, kw / s, s)
    return split.permute(0, 1, 2, 4, 6, 3, 5).flatten(2, 4)


def _autocorrelation(kernels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Products of a kernel with itself, shifted: lags l (L, 2), and A_l + A_l' and A_l - A_l', (L, groups, n, n) each.

    Of each pair of lags l and -l one is kept, because ``A_-l = A_l'``. The first lag is 0, with A_0 and zeros.
    """
    height, width = kernels.shape[-2:]
    lags = [(y, x) for y in range(height) for x in range(1 - width, width) if (y, x) >= (0, 0)]
    even, odd = [], []
    for y, x in lags:
        ahead = kernels[..., y:, max(x, 0) : width + min(x, 0)].flatten(2)
        behind = kernels[..., : height - y, max(-x, 0) : width - max(x, 0)].flatten(2)
        product = ahead @ behind.mT
        even.append(product + product.mT if (y, x) > (0, 0) else product)
        odd.append(product - product.mT)
    return torch.tensor(lags), torch.stack(even), torch.stack(odd)


def _largest_over_frequencies(lags: Tensor, even: Tensor, odd: Tensor, grid: tuple[int, int]) -> float:
    """Largest eigenvalue of ``G(t) = sum over l of even_l cos(t l) - i odd_l sin(t l)`` over a grid of frequencies t.

    Rectangles of frequencies are bounded by their corners, dropped or cut in two. With x fixed, x' G(t) x is a trigonometric polynomial
    between 0 and the largest eigenvalue M of all real t, so its second derivative along an axis is at most ``lag² M / 2`` (Bernstein), and
    at the share u of a side h it exceeds what the corners interpolate by no more than ``u (1 - u) (h lag)² M / 4``. M itself is at most
    ``best / (1 - c)``, c being the sum of that over the axes at the middle of a square, where no square was dropped.
    """
    reach = lags.abs().amax(0)
    if not reach.any():
        return float(torch.linalg.eigvalsh(even[0])[:, -1].max())
    scale, sides = 2 * math.pi / torch.tensor(grid, dtype=torch.float64), torch.tensor(grid)
    bends, corners = (reach * scale).square() / 4, torch.cartesian_prod(torch.arange(2), torch.arange(2))
    # Squares that are larger than this bound nothing.
    widths = torch.full((2,), 2 ** max(0, math.floor(math.log2(math.sqrt(0.6 / float(bends.sum()))))))
    # Of t and -t, whose blocks are conjugate, one is enough.
    squares = torch.cartesian_prod(torch.arange(0, grid[0], int(widths[0])), torch.arange(0, grid[1] // 2 + 1, int(widths[1])))
    rough, largest, dropped = torch.full(grid, math.nan, dtype=torch.float64), math.inf, 0.0
    single = even.float(), odd.float()
    blocks = torch.empty(max(1, _BATCH // even[0].numel()), *even.shape[1:], dtype=torch.complex64)
    while len(squares):
        places = (squares[:, None] + widths * corners if widths.max() > 1 else squares[:, None]) % sides
        new = places.flatten(0, 1).unique(dim=0)
        new = new[rough[*new.T].isnan()]
        for part in new.split(len(blocks)):
            rough[*part.T] = _largest_eigenvalues(_grams((part * scale @ lags.double().T).float(), *single, blocks), _ROUGH)
        best = float(rough[~rough.isnan()].max())
        if widths.max() == 1:
            break
        held, excess = rough[*places.permute(2, 0, 1)] * (1 + _ROUGH), float((bends * widths**2).sum()) / 4
        largest = min(largest, max(best * (1 + _ROUGH) / (1 - excess), dropped))
        axis = int((bends * widths**2).where(widths > 1, -1).argmax())
        kept = _within(held.view(-1, 2, 2), bends * widths**2 * largest, widths.tolist(), axis) > best
        gone = held[~kept.all(1)].flatten()
        dropped = max(dropped, float(gone.max()) + excess * largest) if len(gone) else dropped
        widths[axis] //= 2
        squares = (squares[:, None] + widths * torch.eye(2, dtype=torch.int64)[axis] * torch.arange(2)[:, None])[kept]
    left = (rough.nan_to_num(0) * (1 + _ROUGH) >= best).nonzero()
    angles, exact = left[:, None] * scale @ lags.double().T, torch.empty(1, *even.shape[1:], dtype=torch.complex128)
    return max(float(_largest_eigenvalues(_grams(angle, even, odd, exact), _TOLERANCE)) for angle in angles)


def _within(corners: Tensor, bends: Tensor, widths: Sequence[int], axis: int) -> Tensor:
    """Bound what is on the grid in both halves of some rectangles, cut along an axis: values at corners (F, 2, 2), bends -> (F, 2)."""
    shares = [torch.arange(width, dtype=torch.float64) / width for width in widths]
    weights, (down, across) = [torch.stack([1 - share, share]) for share in shares], [share * (1 - share) for share in shares]
    bound = torch.einsum("fab,au,bv->fuv", corners, *weights) + bends[0] * down[:, None] + bends[1] * across
    return bound.amax(2 - axis).unflatten(1, (2, -1)).amax(2)


def _grams(angles: Tensor, even: Tensor, odd: Tensor, blocks: Tensor) -> Tensor:
    """``G(t)`` of some frequencies: angles ``t l`` (F, L) -> (F, groups, n, n), written into the first of some blocks."""
    found = blocks[: len(angles)]
    found.real.copy_(torch.tensordot(angles.cos(), even, 1))
    found.imag.copy_(torch.tensordot(-angles.sin(), odd, 1))
    return found


def _largest_eigenvalues(blocks: Tensor, tolerance: float) -> Tensor:
    """Largest eigenvalue among the groups of some frequencies, below the true one by no more than the tolerance, relative.

    (F, groups, n, n) Hermitian -> (F,) float64.
    """
    if blocks.shape[-1] <= _SMALL:
        return torch.linalg.eigvalsh(blocks)[..., -1].amax(1).double()
    return torch.tensor([max(_lanczos(group, tolerance) for group in groups) for groups in blocks.numpy()], dtype=torch.float64)


def _lanczos(block: NDArray[np.complexfloating], tolerance: float) -> float:
    """Largest eigenvalue of a Hermitian matrix, (n, n), by Lanczos' recursion from a drawn start, in the precision of the matrix.

    It ends when the residual r of the largest Ritz value, or ``r² / (distance to the second)`` (Temple), is within the tolerance, relative.
    Without orthogonalisation: what rounding adds are copies of eigenvalues that were found.
    """
    v = np.random.default_rng(0).normal(size=len(block)).astype(block.dtype)
    v, before, beta, diagonal, beside = v / np.linalg.norm(v), np.zeros_like(v), block.real.dtype.type(0), [], []
    for step in range(1, len(block) + 1):
        w = block @ v - beta * before
        diagonal.append(np.vdot(v, w).real)
        w -= diagonal[-1] * v
        beta = np.linalg.norm(w)
        if not beta or (step >= _STEPS and step % 3 == 0):
            values, vectors, _ = dstev(diagonal, beside)
            residual, allowed = beta * abs(vectors[-1, -1]), tolerance * values[-1]
            if residual <= allowed or residual**2 <= allowed * (values[-1] - values[-2]):
                return float(values[-1])
        beside.append(beta)
        v, before = w / beta, v
    return float(np.linalg.eigvalsh(block)[-1])


# The layer as the map that it is, at its own input size; its weight as one matrix; its kernel at the size of the network's input.
NORM_VARIANTS = ("operator", "reshaped", "fft")
Norms = Mapping[str, _Array]


def layer_norm(layer: Layer, variant: str, size: tuple[int, int]) -> float:
    """Spectral norm of one layer's weight, by one of ``VARIANTS``; of a linear layer they are all the same.

    Args:
        layer: see ``layers.trace_layers``.
        variant: "operator" (see ``operators.operator_norm``), "reshaped" or "fft".
        size: height and width of the network's input, for "fft".

    Raises:
        ValueError: an unknown variant.
    """
    if variant not in NORM_VARIANTS:
        raise ValueError(f"variant {variant!r} is unknown; choose one of {', '.join(NORM_VARIANTS)}")
    if layer.kind == "linear" or variant == "reshaped":
        return reshaped_norm(layer.weight)
    if variant == "fft":
        return fft_norm(layer.weight, size, layer.groups)
    return operator_norm(layer.weight, layer.input_size, layer.stride, layer.dilation, layer.groups)


def layer_norms(layers: Sequence[Layer], size: tuple[int, int]) -> dict[str, _Array]:
    """Spectral norms of all layers, (d,) by each of ``VARIANTS``, see ``layer_norm``."""
    return {variant: np.array([layer_norm(layer, variant, size) for layer in layers]) for variant in NORM_VARIANTS}


def ratio_sum(numerators: _Array, norms: _Array) -> float:
    """Sum of squared ratios ``(a_i / s_i)²``; NaN when an s_i is 0.

    With the Frobenius norms of the same weights it is a sum of stable ranks for the variant "reshaped", at least 1 each. The other
    variants keep the Frobenius norm of the kernel, as the papers do, although it is not that of the whole map.
    """
    return float(np.square(numerators / np.where(norms > 0, norms, np.nan)).sum())


def log_margin_bound(norms: _Array, numerators: _Array, margin: float) -> float:
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


def released_log_bound(layers: Sequence[Layer], margins: _Array) -> float:
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


@measure("norms", -1, "Jiang et al. 2020, eq. 32", title="log product of spectral norms", variants=NORM_VARIANTS)
def log_prod_of_spec(spectral_norms: Norms, training_images: int) -> Mapping[str, float]:
    """Product of all squared spectral norms, as half a logarithm per image."""
    return {name: reported_log(log_product(norms), training_images) for name, norms in spectral_norms.items()}


@measure("norms", -1, "Jiang et al. 2020, eq. 31", title="log product of spectral norms over margin", variants=NORM_VARIANTS)
def log_prod_of_spec_over_margin(spectral_norms: Norms, margin: float, training_images: int) -> Mapping[str, float]:
    """Product of all squared spectral norms over the squared margin, as half a logarithm per image."""
    return {name: reported_log(over_margin(log_product(norms), margin), training_images) for name, norms in spectral_norms.items()}


@measure("norms", -1, "Jiang et al. 2020, eq. 29", title="log spectral bound from the start", variants=NORM_VARIANTS)
def log_spec_init_main(spectral_norms: Norms, distances: list[Layer], margin: float, training_images: int) -> Mapping[str, float]:
    """Bound (31) times the sum of squared distances from the start over squared spectral norms, as half a logarithm per image."""
    moved = moved_norms(distances)
    return {name: reported_log(log_margin_bound(norms, moved, margin), training_images) for name, norms in spectral_norms.items()}


@measure("norms", -1, "Jiang et al. 2020, eq. 30", title="log spectral bound", variants=NORM_VARIANTS)
def log_spec_orig_main(spectral_norms: Norms, frobenius_norms: _Array, margin: float, training_images: int) -> Mapping[str, float]:
    """Bound (31) times the sum of squared Frobenius over squared spectral norms, as half a logarithm per image."""
    return {name: reported_log(log_margin_bound(norms, frobenius_norms, margin), training_images) for name, norms in spectral_norms.items()}


@measure("norms", -1, "Jiang et al. 2020, eq. 33", title="Frobenius over spectral norms", variants=NORM_VARIANTS)
def fro_over_spec(spectral_norms: Norms, frobenius_norms: _Array, training_images: int) -> Mapping[str, float]:
    """Sum of squared Frobenius over squared spectral norms, as a root per image."""
    return {name: reported(ratio_sum(frobenius_norms, norms), training_images) for name, norms in spectral_norms.items()}


@measure("norms", -1, "Jiang et al. 2020, eq. 34", title="log sum of spectral norms over margin", variants=NORM_VARIANTS)
def log_sum_of_spec_over_margin(spectral_norms: Norms, margin: float, training_images: int) -> Mapping[str, float]:
    """Number of layers times the geometric mean of (31)'s factors, as half a logarithm per image."""
    bounds = {name: log_mean(over_margin(log_product(norms), margin), len(norms)) for name, norms in spectral_norms.items()}
    return {name: reported_log(bound, training_images) for name, bound in bounds.items()}


@measure("norms", -1, "Jiang et al. 2020, eq. 35", title="log sum of spectral norms", variants=NORM_VARIANTS)
def log_sum_of_spec(spectral_norms: Norms, training_images: int) -> Mapping[str, float]:
    """Number of layers times the geometric mean of the squared spectral norms, as half a logarithm per image."""
    return {name: reported_log(log_mean(log_product(norms), len(norms)), training_images) for name, norms in spectral_norms.items()}


@measure("norms", -1, "Jiang et al. 2020, eq. 41", title="spectral distance from the start", variants=NORM_VARIANTS)
def dist_spec_init(spectral_distances: Norms, training_images: int) -> Mapping[str, float]:
    """Sum of squared spectral norms of the weights' differences from their initial values, as a root per image."""
    return {name: reported(float(np.square(norms).sum()), training_images) for name, norms in spectral_distances.items()}


@measure("norms", -1, "Du et al. 2024, Appendix A1", variants=("log", "raw", "du_code log", "du_code raw"))
def spectral_norm(
    spectral_norms: Norms, frobenius_norms: _Array, layers: list[Layer], margin: float, margins: _Array
) -> Mapping[str, float]:
    """Product of squared spectral norms times the sum of squared Frobenius over spectral norms, over the squared margin: its logarithm.

    It is not scaled by the number of images. "raw" is the number itself, and "du_code" follows ``released_log_bound``.
    """
    logs = {"": log_margin_bound(spectral_norms["operator"], frobenius_norms, margin), "du_code ": released_log_bound(layers, margins)}
    with np.errstate(over="ignore"):  # it is infinite then, and no number
        return {f"{rule}{form}": float(np.exp(log)) if form == "raw" else log for rule, log in logs.items() for form in ("log", "raw")}
