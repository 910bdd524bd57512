"""Operator norms of circular convolutions, from their kernels' Fourier transform.

The norm is the largest singular value at any frequency. For matrices of few rows it is
found by branch and bound over squares of frequencies (``_largest``); for those of many,
by climbing from some frequencies to higher ones, with eigenvalues by ARPACK
(``_climbed``), which may miss the largest by a ten-thousandth. Branch and bound takes
five times as long there at 224 px.

Below, ``W(t)`` is the Fourier transform of a kernel at the frequency t, a matrix of
(output, input) channels, and ``^H`` the conjugate transpose.
"""

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import LinearOperator, eigsh
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
_EXACT = 64  # rows of a matrix up to which all its eigenvalues are computed
# Relative errors of eigenvalues of a matrix with more rows: of the first ones, and of
# all that follow.
_START_TOLERANCE = 0.02
_TOLERANCE = 1e-8
_NOISE = 0.1  # length of what is added to a start of length 1
# Eigenvalues are first computed at this many frequencies along an axis, times
# (kernel size - 1). With half of them, 3 of 24 random kernels missed the largest by up
# to 0.2 %, with these one by 0.01 %.
_FREQUENCIES_PER_PIXEL = 10
# Number of best frequencies from which each of the five climbs starts.
_CANDIDATES_PER_CLIMB = (16, 8, 8, 8, 8)


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
    if kernels.shape[1] <= _EXACT:
        squared_norm = _largest(kernels, grid)
    elif kernels.shape[3:] == (1, 1):
        matrices = kernels[..., 0, 0]  # W(t) is the same at all frequencies
        squared_norm = float(torch.linalg.matrix_norm(matrices, 2).max()) ** 2
    else:
        squared_norm = max(_climbed(group, grid) for group in kernels)
    return scale * math.sqrt(max(0.0, squared_norm))


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


def _climbed(kernels: Tensor, grid: Sequence[int]) -> float:
    """``_largest`` of one group with many rows, by climbing from some frequencies.

    For the eigenvector x, of length 1, of the largest eigenvalue at a frequency,
    ``x^H W(t) W(t)^H x`` is a trigonometric polynomial in t. Moving t to its peak never
    lowers the largest eigenvalue, since that is at least ``x^H W(t) W(t)^H x``.

    Args:
        kernels: (n, c, kh, kw).
        grid: frequencies along both axes.

    Returns:
        The largest eigenvalue at a frequency that has none higher beside it.
    """
    if not kernels.any():
        return 0.0
    search = _Search(kernels, grid)
    first = _first_frequencies(kernels.shape[2:], grid)
    pairs = [search.eigenpair(place, tolerance=_START_TOLERANCE) for place in first]
    exact: dict[Pair, _Eigenpair] = {}
    for count in _CANDIDATES_PER_CLIMB:
        for pair in heapq.nlargest(count, pairs, key=attrgetter("value")):
            peak = search.peak(pair.vector)
            if peak not in exact:
                exact[peak] = search.eigenpair(peak, pair.vector)
        # From the second climb on, start only from frequencies solved exactly.
        pairs = list(exact.values())
    # Go on to the neighbours of the highest frequency until none is higher.
    center = None
    highest = max(exact, key=lambda place: exact[place].value)
    while highest != center:
        center = highest
        for place in _neighbours(center, grid):
            if place not in exact:
                exact[place] = search.eigenpair(place, exact[center].vector)
        highest = max(exact, key=lambda place: exact[place].value)
    return exact[highest].value


def _first_frequencies(
    kernel_size: Sequence[int], grid: Sequence[int]
) -> Iterator[Pair]:
    """Evenly spaced frequencies, by their numbers along both axes.

    Half of the frequencies are enough, since W(-t) is the conjugate of W(t).
    """
    axes = []
    for size, pixels in zip(grid, kernel_size, strict=True):
        count = min(size, _FREQUENCIES_PER_PIXEL * (pixels - 1)) or 1
        axes.append([number * size // count for number in range(count)])
    rows, columns = axes
    half = [column for column in columns if column <= grid[1] // 2]
    return itertools.product(rows, half)


def _neighbours(place: Pair, grid: Sequence[int]) -> list[Pair]:
    """The frequencies around one, and itself."""
    row, column = place
    return [
        ((row + down) % grid[0], (column + right) % grid[1])
        for down, right in itertools.product((-1, 0, 1), repeat=2)
    ]


class _Eigenpair(NamedTuple):
    """The largest eigenvalue at a frequency, and its eigenvector."""

    value: float
    vector: NDArray[np.complex128]  # (n,)


class _Search:
    """Eigenvalues of ``W(t) W(t)^H`` at single frequencies, for many rows."""

    def __init__(self, kernels: Tensor, grid: Sequence[int]) -> None:
        """Prepare; nothing is computed yet.

        Args:
            kernels: (n, c, kh, kw).
            grid: frequencies along both axes.
        """
        self._kernels = kernels.flatten(2).numpy()  # (n, c, pixels)
        self._pixels = _pixels(kernels.shape[2:]).numpy()
        self._grid = tuple(grid)
        self._random = np.random.default_rng(0)

    def eigenpair(
        self, place: Pair, start: ArrayLike = 0.0, tolerance: float = _TOLERANCE
    ) -> _Eigenpair:
        """The largest eigenvalue at a frequency, by ARPACK.

        Args:
            place: numbers of the frequency along both axes.
            start: (n,) vector near the eigenvector; 0 where none is known.
            tolerance: relative error of the eigenvalue.
        """
        angles = self._pixels @ (2 * np.pi * np.divide(place, self._grid))
        rows, columns, _ = self._kernels.shape
        transform = np.empty((rows, columns), dtype=complex)
        transform.real = self._kernels @ np.cos(angles)
        transform.imag = self._kernels @ -np.sin(angles)
        square = LinearOperator(
            (rows, rows),
            matvec=lambda vector: transform @ (transform.conj().T @ vector),
            dtype=complex,
        )
        # The start itself may be orthogonal to the eigenvector.
        noise = _NOISE * self._random.standard_normal(rows) / math.sqrt(rows)
        start = start + noise
        if not transform.any():  # which ARPACK refuses
            return _Eigenpair(0.0, start)
        values, vectors = eigsh(square, k=1, v0=start, tol=tolerance)
        return _Eigenpair(float(values[0]), vectors[:, 0])

    def peak(self, vector: NDArray[np.complex128]) -> Pair:
        """The frequency at which ``|W(t)^H x|`` is largest, of a vector x.

        Its square is the sum over pairs of kernel pixels a and b of ``exp(i t (b - a))
        (W_a^H x)^H (W_b^H x)``. Pairs of the same difference ``b - a`` share a wave, so
        it is the Fourier transform of their sums.
        """
        images = np.tensordot(vector.conj(), self._kernels, 1).conj().T  # (pixels, c)
        products = images.conj() @ images.T  # (pixels a, pixels b)
        pixels = self._pixels.astype(int)
        differences = (pixels - pixels[:, None]) % self._grid  # (a, b, 2)
        sums = np.zeros(self._grid, dtype=complex)
        np.add.at(sums, (differences[..., 0], differences[..., 1]), products)
        heights = np.fft.ifft2(sums).real
        row, column = np.unravel_index(heights.argmax(), self._grid)
        return int(row), int(column)


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
