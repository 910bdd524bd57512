"""Operator norms of circular convolutions, from their kernels' Fourier transform.

The norm is the largest singular value at any frequency, found by branch and bound over
squares of frequencies (``_largest``).

Below, ``W(t)`` is the Fourier transform of a kernel at the frequency t, a matrix of
(output, input) channels, and ``^H`` the conjugate transpose.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Pair = tuple[int, int]
_CORNERS = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
_BATCH = 2**22  # complex numbers in the transforms of one batch
# Largest relative error of eigenvalues in single precision. They decide at which
# frequencies the eigenvalues in double precision are computed.
_ROUGH = 1e-4
# First squares of frequencies are as large as keeps ``_excess`` below this; larger ones
# could hardly ever be dropped.
_LARGEST_EXCESS = 0.35


def operator_norm(
    weight: Tensor,
    input_size: Pair,
    stride: Pair = (1, 1),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> float:
    """Spectral norm of a convolution as a linear map: ``max of |conv(x)| / |x|``.

    With circular padding; Sedghi, Gupta and Long 2019: the largest singular value of
    the kernel's Fourier transform ``W(t)`` at any frequency t of the input. A
    convolution of stride s is one of stride 1 on the s^2 images that each hold every
    s-th pixel. Of several groups the largest norm counts.

    Args:
        weight: (c_out, c_in / groups, kh, kw).
        input_size: height and width of the input, rounded up to the size of the kernel
            and to a multiple of the stride.
        stride: along both axes.
        dilation: along both axes.
        groups: number of groups of channels.

    Returns:
        The norm, at least 0; NaN if a weight is not finite.

    Example:
        >>> operator_norm(torch.full((1, 1, 1, 1), 3.0), (4, 4))
        3.0
    """
    kernels = weight.detach().cpu().double().unflatten(0, (groups, -1))
    scale = float(kernels.abs().max())
    if not math.isfinite(scale):
        return math.nan
    # Scaled to a largest weight of 1, so that squared norms fit into single precision.
    kernels = _without_stride(kernels / (scale or 1), stride, dilation)
    if kernels.shape[1] > kernels.shape[2]:
        kernels = kernels.transpose(1, 2)  # so that W(t) W(t)^H is small
    grid = _grid(weight.shape[2:], input_size, stride, dilation)
    if kernels.shape[3:] == (1, 1):
        matrices = kernels[..., 0, 0]  # W(t) is the same at all frequencies
        return scale * float(torch.linalg.matrix_norm(matrices, 2).max())
    return scale * math.sqrt(_largest(kernels, grid))


def _grid(
    kernel_size: Sequence[int], input_size: Pair, stride: Pair, dilation: Pair
) -> list[int]:
    """Number of frequencies along both axes of the input, after the stride is removed.

    It is 1 along an axis on which the kernel is not longer than the stride: there the
    kernel without stride has one pixel, and W(t) is the same at all frequencies.

    Args:
        kernel_size: height and width, before dilation.
        input_size: height and width of the input, see ``operator_norm``.
        stride: along both axes.
        dilation: along both axes.
    """
    grid = []
    for axis in (0, 1):
        dilated_size = (kernel_size[axis] - 1) * dilation[axis] + 1
        size = max(input_size[axis], dilated_size)
        has_one_pixel = dilated_size <= stride[axis]
        grid.append(1 if has_one_pixel else math.ceil(size / stride[axis]))
    return grid


def _without_stride(kernels: Tensor, stride: Pair, dilation: Pair) -> Tensor:
    """Kernels of a convolution of stride 1 that does the same on split images.

    Args:
        kernels: (g, n, c, kh, kw).
        stride: s along both axes.
        dilation: along both axes.

    Returns:
        (g, n, c s s, ceil(kh' / s), ceil(kw' / s)), with kh', kw' the dilated sizes.
    """
    height = (kernels.shape[3] - 1) * dilation[0] + 1
    width = (kernels.shape[4] - 1) * dilation[1] + 1
    rows = math.ceil(height / stride[0]) * stride[0]
    columns = math.ceil(width / stride[1]) * stride[1]
    dilated = kernels.new_zeros(*kernels.shape[:3], rows, columns)
    dilated[..., : height : dilation[0], : width : dilation[1]] = kernels
    # (g, n, c, kh / s, s, kw / s, s)
    split = dilated.unflatten(4, (-1, stride[1])).unflatten(3, (-1, stride[0]))
    return split.permute(0, 1, 2, 4, 6, 3, 5).flatten(2, 4)


def _largest(kernels: Tensor, grid: Sequence[int]) -> float:
    """Largest eigenvalue of ``W(t) W(t)^H`` over a grid of frequencies and over groups.

    By branch and bound: squares of frequencies that cannot hold the largest, see
    ``_excess``, are dropped, the others cut in four. Of 224 x 224 frequencies a
    twentieth is computed.

    Args:
        kernels: (g, n, c, kh, kw).
        grid: frequencies along both axes.
    """
    kernel_size = kernels.shape[3:]
    sizes = torch.tensor(grid)
    unit = 2 * math.pi / sizes.double()
    squares, side = _first_squares(kernel_size, grid)
    values = torch.full(tuple(grid), torch.nan)  # NaN where none is computed
    upper_bound = math.inf
    batch_size = max(1, _BATCH // kernels[..., 0, 0].numel())
    while True:
        corners = squares[:, None]  # (squares, corners, 2)
        if side > 1:  # a square of side 1 is a single frequency
            corners = corners + side * _CORNERS
        corners = corners % sizes
        places = corners.flatten(0, 1).unique(dim=0)  # (places, 2)
        rows, columns = places.T
        places = places[values[rows, columns].isnan()]
        for batch in places.split(batch_size):
            rows, columns = batch.T
            values[rows, columns] = _eigenvalues(kernels, batch * unit, torch.complex64)
        highest = float(values[~values.isnan()].max())
        keep_above = highest * (1 - _ROUGH)
        if side == 1:
            break
        excess = _excess(kernel_size, grid, side)
        # The maximum M <= highest + excess * M, solved for M.
        upper_bound = min(upper_bound, highest * (1 + _ROUGH) / (1 - excess))
        rows, columns = corners.unbind(2)  # each (squares, corners)
        highest_corners = values[rows, columns].amax(1)
        squares = squares[highest_corners + excess * upper_bound > keep_above]
        side //= 2
        squares = (squares[:, None] + side * _CORNERS).flatten(0, 1)
    candidates = (values.nan_to_num(-1) >= keep_above).nonzero()
    return float(_eigenvalues(kernels, candidates * unit, torch.complex128).max())


def _excess(kernel_size: Sequence[int], grid: Sequence[int], side: int) -> float:
    """Largest excess of a square over its corners, as a share of the maximum.

    For a fixed x, ``x^H W(t) W(t)^H x`` is a trigonometric polynomial between 0 and the
    largest eigenvalue M of all real t, of degree ``kernel size - 1``. So inside a
    square of side h it exceeds what the corners interpolate by at most ``sum over axes
    of (h degree)^2 M / 16`` (Bernstein).

    Args:
        kernel_size: height and width.
        grid: frequencies along both axes.
        side: of the square, in frequencies of the grid.
    """
    unit = 2 * math.pi / torch.tensor(grid, dtype=torch.float64)
    degrees = torch.tensor(kernel_size) - 1
    return float((side * unit * degrees).square().sum()) / 16


def _first_squares(
    kernel_size: Sequence[int], grid: Sequence[int]
) -> tuple[Tensor, int]:
    """Squares of frequencies to begin with.

    Half of the frequencies are enough, since W(-t) is the conjugate of W(t).

    Args:
        kernel_size: height and width.
        grid: frequencies along both axes.

    Returns:
        Upper left corners of the squares, (squares, 2); and their side, a power of 2.
    """
    excess = _excess(kernel_size, grid, side=1)  # it grows with the square of the side
    longest = math.sqrt(_LARGEST_EXCESS / excess) if excess else math.inf
    halvings = max(0, math.floor(math.log2(min(max(grid), longest))))
    side = 2**halvings
    rows = torch.arange(0, grid[0], side)
    columns = torch.arange(0, grid[1] // 2 + 1, side)
    return torch.cartesian_prod(rows, columns), side


def _pixels(kernel_size: Sequence[int]) -> Tensor:
    """Row and column of each pixel of a kernel, (pixels, 2) float64."""
    axes = [torch.arange(size, dtype=torch.float64) for size in kernel_size]
    return torch.cartesian_prod(*axes).view(-1, 2)


def _eigenvalues(
    kernels: Tensor, frequencies: Tensor, precision: torch.dtype
) -> Tensor:
    """Largest eigenvalue of ``W(t) W(t)^H`` at each frequency, over groups.

    Args:
        kernels: (g, n, c, kh, kw).
        frequencies: (F, 2) in radians.
        precision: complex64 or complex128.

    Returns:
        (F,) at least 0.
    """
    angles = frequencies @ _pixels(kernels.shape[3:]).T
    waves = torch.polar(torch.ones_like(angles), -angles).to(precision)
    transform = torch.einsum("ft,gnct->fgnc", waves, kernels.flatten(3).to(precision))
    try:
        eigenvalues = torch.linalg.eigvalsh(transform @ transform.mH)
    except torch.linalg.LinAlgError:
        # LAPACK gives up on some blocks with dead channels, in single precision.
        if precision == torch.complex128:
            raise
        return _eigenvalues(kernels, frequencies, torch.complex128).float()
    return eigenvalues[..., -1].amax(1).clamp(min=0)
