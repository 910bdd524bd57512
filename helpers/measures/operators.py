"""How much a layer can stretch its input: the spectral norm of a convolution, and two rules that stand in for it."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

Pair = int | tuple[int, int]

# Numbers in one batch of Gram matrices; larger ones leave the processor's cache and take twice as long.
_BATCH = 500_000
# By which eigenvalues may be told apart, relative: some thousand roundings of float64.
_TOLERANCE = 1e-12


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
    kernels = _interleaved(kernels, stride)
    if kernels.shape[2] < kernels.shape[1]:
        kernels = kernels.transpose(1, 2)  # another order of the product: smaller blocks with the same eigenvalues
    return math.sqrt(_largest_over_frequencies(*_autocorrelation(kernels), grid))


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

    Cells of frequencies are bounded by their centre, dropped or cut in four. With x fixed, x' G(t) x is a trigonometric polynomial
    between 0 and the largest eigenvalue M of all real t, so on the way from a t where it is v to a centre it falls no faster than
    ``M cos²(arccos(sqrt(v / M)) + r)``, where r is half the sum of lag times distance over both axes (Duffin and Schaeffer 1938).
    Some centre is within r of M itself, so ``M <= best / cos² r``, and no cell whose centre is below
    ``best cos²(2 r) / cos² r`` can hold anything above best.
    """
    largest_lag = lags.abs().amax(0)
    if not largest_lag.any():
        return float(torch.linalg.eigvalsh(even[0])[:, -1].max())
    scale = 2 * math.pi / torch.tensor(grid, dtype=torch.float64)
    rate = float((largest_lag * scale).sum()) / 4
    # Cells that are larger than this bound nothing.
    width = 2 ** max(0, math.floor(math.log2(math.pi / 8 / rate)))
    # Of t and -t, whose blocks are conjugate, one is enough.
    cells = torch.cartesian_prod(torch.arange(0, grid[0], width), torch.arange(0, grid[1] // 2 + 1, width))
    best = 0.0
    while len(cells):
        reach = rate * width if width > 1 else 0.0
        share, open_cells = math.cos(2 * reach) ** 2 / math.cos(reach) ** 2, []
        for part in cells.split(max(1, _BATCH // even[0].numel())):
            angles = (part + width // 2) * scale @ lags.double().T
            grams = torch.complex(torch.tensordot(angles.cos(), even, 1), torch.tensordot(-angles.sin(), odd, 1))
            best, possible = _raised(best, share, grams)
            open_cells.append(part[possible])
        if width == 1:
            break
        width //= 2
        quarters = torch.cartesian_prod(torch.tensor([0, width]), torch.tensor([0, width]))
        cells = (torch.cat(open_cells)[:, None] + quarters).flatten(0, 1)
    return best


def _raised(best: float, share: float, blocks: Tensor) -> tuple[float, Tensor]:
    """Raise ``best`` to the largest eigenvalue of any block, (F, groups, n, n); and mark, (F,), where there may be more than a share of it.

    ``best I - G`` has a Cholesky factor exactly when all eigenvalues of G are below best, and that is found out many times as
    quickly as the eigenvalues; these are computed for the few blocks that raise it.
    """
    best = max(best, float(blocks.diagonal(dim1=2, dim2=3).real.max()))
    possible = _above(blocks, share * best)
    left = blocks[possible]
    # By the sum of squared eigenvalues, so that the first ones raise it most.
    left = left[torch.view_as_real(left).square().sum((1, 2, 3)).argsort(descending=True)]
    while len(left):
        left = left[_above(left, best)]
        if len(left):
            best, left = max(best, float(torch.linalg.eigvalsh(left[0])[-1])), left[1:]
    return best, possible.any(1)


def _above(blocks: Tensor, bound: float) -> Tensor:
    """Mark the Hermitian matrices that have an eigenvalue above a bound."""
    identity = torch.eye(blocks.shape[-1], dtype=blocks.dtype)
    return torch.linalg.cholesky_ex(bound * (1 + _TOLERANCE) * identity - blocks).info > 0
