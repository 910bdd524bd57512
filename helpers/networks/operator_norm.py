"""Operator norms of circular convolutions, from their kernels' Fourier transform.

Below, ``W(t)`` is the Fourier transform of a kernel at the frequency t, a matrix of
(output, input) channels, and ``^H`` the conjugate transpose.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

Pair = tuple[int, int]
_CORNERS = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
_BATCH = 2**22  # complex numbers in the transforms of one batch
# Largest relative error of eigenvalues in single precision. They decide at which
# frequencies the eigenvalues in double precision are computed.
_ROUGH = 1e-4
# Largest share of the maximum by which a square of frequencies may exceed its corners:
# with larger squares hardly any could be dropped.
_LARGEST_EXCESS = 0.35
_EXACT = 64  # rows of a matrix up to which all its eigenvalues are computed
# Relative errors of the eigenvalues of a matrix with more rows: of the first ones, of
# those at peaks, and of the neighbours of the highest.
_START_TOLERANCE = 0.02
_PEAK_TOLERANCE = 0.001
_NEIGHBOUR_TOLERANCE = _ROUGH / 2
# First frequencies along an axis: all where there are few, else so many for each pixel
# of the kernel after the first.
_ALL_FREQUENCIES_UP_TO = 16
_FREQUENCIES_PER_PIXEL = 7
_CANDIDATES_PER_CLIMB = (16, 8, 8, 8, 8)  # highest eigenvalues, climb after climb
_LANCZOS_STEPS = 64  # at most
_LANCZOS_BATCH = 128  # frequencies iterated at a time
_RECHECKED = 8  # highest frequencies, at most, that are computed again in double


def operator_norm(
    weight: Tensor,
    input_size: Pair,
    stride: Pair = (1, 1),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> float:
    """Spectral norm of a convolution as a linear map: ``max of |conv(x)| / |x|``.

    With circular padding; Sedghi, Gupta and Long 2019: the largest singular value of
    the kernel's Fourier transform ``W(t)`` at any frequency t of the input. A stride s
    is a stride of 1 on the s^2 images that hold every s-th pixel each. Of several
    groups the largest counts.

    Args:
        weight: (c_out, c_in / groups, kh, kw).
        input_size: rounded up to the kernel's and to a multiple of the stride.
        stride: along both axes.
        dilation: along both axes.
        groups: of channels.

    Returns:
        NaN when a weight is not finite.

    Example:
        >>> operator_norm(torch.full((1, 1, 1, 1), 3.0), (4, 4))
        3.0
    """
    return operator_norms(weight, [input_size], stride, dilation, groups)[0]


def operator_norms(
    weight: Tensor,
    input_sizes: Sequence[Pair],
    stride: Pair = (1, 1),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> list[float]:
    """``operator_norm`` at several input sizes, which share computations.

    Args:
        weight: (c_out, c_in / groups, kh, kw).
        input_sizes: see ``operator_norm``.
        stride: along both axes.
        dilation: along both axes.
        groups: of channels.

    Returns:
        A norm per size.
    """
    kernels = weight.detach().cpu().double().unflatten(0, (groups, -1))
    scale = float(kernels.abs().max())
    if not math.isfinite(scale):
        return [math.nan] * len(input_sizes)
    # The scale is taken out so that squares fit into single precision.
    kernels = _without_stride(kernels / (scale or 1), stride, dilation)
    if kernels.shape[1] > kernels.shape[2]:
        kernels = kernels.transpose(1, 2)  # so that W(t) W(t)^H is small
    grids = [_grid(weight.shape[2:], size, stride, dilation) for size in input_sizes]
    if kernels.shape[1] <= _EXACT:
        squares = [_largest(kernels, grid) for grid in grids]
    elif kernels.shape[3:] == (1, 1):
        matrices = kernels[..., 0, 0]
        eigenvalues = torch.linalg.eigvalsh(matrices @ matrices.mT)
        squares = [float(eigenvalues.max())] * len(grids)
    else:
        # (groups, grids) -> (grids,)
        squares = np.max([_by_iteration(group, grids) for group in kernels], axis=0)
    return [scale * math.sqrt(max(0.0, square)) for square in squares]


def _grid(
    kernel_size: Sequence[int], input_size: Pair, stride: Pair, dilation: Pair
) -> list[int]:
    """Frequencies along both axes of a convolution without its stride.

    Args:
        kernel_size: height and width, before dilation.
        input_size: rounded up to the kernel's and to a multiple of the stride.
        stride: along both axes.
        dilation: along both axes.
    """
    grid = []
    for axis in (0, 1):
        reach = (kernel_size[axis] - 1) * dilation[axis] + 1
        size = max(input_size[axis], reach)
        grid.append(-(-size // stride[axis]) if reach > stride[axis] else 1)
    return grid


def _without_stride(kernels: Tensor, stride: Pair, dilation: Pair) -> Tensor:
    """Kernels of a convolution of stride 1 that does the same on split images.

    Args:
        kernels: (g, n, c, kh, kw).
        stride: s along both axes.
        dilation: along both axes.

    Returns:
        (g, n, c s s, kh / s, kw / s), of the dilated kernels, rounded up.
    """
    height = (kernels.shape[3] - 1) * dilation[0] + 1
    width = (kernels.shape[4] - 1) * dilation[1] + 1
    rows = -(-height // stride[0]) * stride[0]
    columns = -(-width // stride[1]) * stride[1]
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
        if side > 1:
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

    Blocks of t and -t are conjugate, so half the frequencies are enough.

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


def _by_iteration(kernels: Tensor, grids: Sequence[Sequence[int]]) -> list[float]:
    """``_largest`` of one group with many rows, over several grids.

    Eigenvalues are computed by Lanczos iterations, first roughly and at frequencies far
    apart. For the fixed eigenvector x of a high one, ``x^H W(t) W(t)^H x`` is a
    trigonometric polynomial in t: at its peak the largest eigenvalue is at least as
    high, and the next iteration starts there from x. A grid whose frequencies all
    belong to the finest grid shares the eigenvalues of that one.

    Args:
        kernels: (n, c, kh, kw).
        grids: frequencies along both axes, of each grid.

    Returns:
        The largest eigenvalue of each grid, in double precision, at a frequency that
        has none higher beside it.
    """
    if not kernels.any():
        return [0.0] * len(grids)
    finest = max(grids, key=math.prod)
    shared = _LanczosSearch(kernels, finest)
    by_grid: dict[tuple[int, ...], float] = {}
    for grid in sorted({tuple(grid) for grid in grids}, key=math.prod):
        is_part = all(size % part == 0 for size, part in zip(finest, grid, strict=True))
        search = shared if is_part else _LanczosSearch(kernels, grid)
        search.restrict_to(grid)
        by_grid[grid] = _climbed(search)
    return [by_grid[tuple(grid)] for grid in grids]


def _climbed(search: "_LanczosSearch") -> float:
    """The highest eigenvalue that climbing leads to."""
    search.start()
    best = -math.inf
    for candidates in _CANDIDATES_PER_CLIMB:
        if search.highest_single() < best * (1 + _ROUGH):
            break
        best = search.highest_single()
        search.climb(candidates)
    best = -math.inf
    while search.highest_single() > best:
        best = search.highest_single()
        search.refine_neighbours()
    return search.highest_double()


class _LanczosSearch:
    """Largest eigenvalues of ``W(t) W(t)^H`` by frequency, and their eigenvectors."""

    def __init__(self, kernels: Tensor, grid: Sequence[int]) -> None:
        """Prepare; nothing is computed yet.

        Args:
            kernels: (n, c, kh, kw).
            grid: frequencies along both axes.
        """
        self._values = torch.full(tuple(grid), -torch.inf)  # where none is computed
        self._tolerances = torch.full(tuple(grid), torch.inf)
        self._vectors: dict[tuple[int, ...], Tensor] = {}
        self._rows = kernels.shape[0]
        # (pixels of the kernel x n, c): W(t) is the sum of its blocks, each times a
        # wave.
        matrix = kernels.permute(2, 3, 0, 1).flatten(0, 2).contiguous()
        self._matrices = {torch.complex64: matrix.float(), torch.complex128: matrix}
        self._kernel_size = kernels.shape[2:]
        self._pixels = _pixels(self._kernel_size)
        self._grid = torch.tensor(grid)
        self._unit = 2 * math.pi / self._grid.double()
        self._random = torch.Generator().manual_seed(0)
        self.restrict_to(grid)

    def restrict_to(self, grid: Sequence[int]) -> None:
        """Search among the frequencies of a coarser grid only.

        Args:
            grid: frequencies along both axes, divisors of those of this one.
        """
        self._step = self._grid // torch.tensor(grid)

    def start(self) -> None:
        """Compute rough eigenvalues at evenly spaced frequencies.

        Blocks of t and -t are conjugate, so half the frequencies are enough.
        """
        axes = []
        for size, pixels in zip(
            self._restricted_values.shape, self._kernel_size, strict=True
        ):
            count = max(_ALL_FREQUENCIES_UP_TO, _FREQUENCIES_PER_PIXEL * (pixels - 1))
            count = min(size, count) if pixels > 1 else 1
            axes.append(torch.arange(count) * size // count)
        rows, columns = axes
        half = columns[columns <= self._restricted_values.shape[1] // 2]
        places = torch.cartesian_prod(rows, half) * self._step
        self._compute(places, self._noise(len(places)), _START_TOLERANCE)

    def climb(self, candidates: int) -> None:
        """Go on at the peaks to which the vectors of the highest eigenvalues lead.

        Args:
            candidates: highest eigenvalues to go on from.
        """
        places = self._highest_places(candidates)
        vectors = self._vectors_of(places)
        self._compute(self._peaks(vectors), vectors, _PEAK_TOLERANCE)

    def refine_neighbours(self) -> None:
        """Compute the eigenvalues of the highest frequency and of its 8 neighbours."""
        top = self._highest_places(1)
        steps = torch.cartesian_prod(torch.arange(-1, 2), torch.arange(-1, 2))
        steps = steps * self._step
        start = self._vectors_of(top).expand(len(steps), -1)
        self._compute((top + steps) % self._grid, start, _NEIGHBOUR_TOLERANCE)

    @property
    def _restricted_values(self) -> Tensor:
        """Eigenvalues of the grid that the search is restricted to."""
        return self._values[:: self._step[0], :: self._step[1]]

    def highest_single(self) -> float:
        """The largest eigenvalue so far, in single precision."""
        return float(self._restricted_values.max())

    def highest_double(self) -> float:
        """The largest eigenvalue, in double precision, of the frequencies near it."""
        places = self._highest_places(_RECHECKED)
        rows, columns = places.T
        smallest = self.highest_single() * (1 - 5 * _ROUGH)
        is_close = self._values[rows, columns] >= smallest
        start = self._vectors_of(places[is_close]).to(torch.complex128)
        values, _ = self._lanczos(places[is_close], start, 1e-9)
        return float(values.max())

    def _compute(self, places: Tensor, start: Tensor, tolerance: float) -> None:
        """Compute the eigenvalues that are missing or less exact.

        Args:
            places: (P, 2) integers, the frequency's number along each axis, the most
                promising first; of one that appears twice the first start is taken.
            start: (P, n) vectors to begin with.
            tolerance: relative error at most, as far as the iteration shows it.
        """
        first_row: dict[tuple[int, ...], int] = {}
        for row, place in enumerate(places.tolist()):
            first_row.setdefault(tuple(place), row)
        distinct = torch.tensor(list(first_row.values()))
        rows, columns = places[distinct].T
        distinct = distinct[self._tolerances[rows, columns] > tolerance]
        for batch in distinct.split(_LANCZOS_BATCH):
            noise = 0.1 * self._noise(len(batch)).to(start.dtype)
            values, vectors = self._lanczos(
                places[batch], start[batch] + noise, tolerance
            )
            rows, columns = places[batch].T
            self._tolerances[rows, columns] = tolerance
            # A Lanczos value is a lower bound, so the higher of two is the better one.
            is_higher = values > self._values[rows, columns]
            higher = places[batch][is_higher]
            rows, columns = higher.T
            self._values[rows, columns] = values[is_higher].float()
            for place, vector in zip(higher.tolist(), vectors[is_higher], strict=True):
                self._vectors[tuple(place)] = vector

    def _noise(self, count: int) -> Tensor:
        """Random vectors (count, n) of about length 1."""
        size = (count, self._rows)
        noise = torch.randn(size, dtype=torch.complex64, generator=self._random)
        return noise / math.sqrt(self._rows)

    def _highest_places(self, count: int) -> Tensor:
        """Frequencies of the highest eigenvalues: (count, 2) or fewer."""
        values = self._restricted_values
        count = min(count, int(values.isfinite().sum()))
        return self._places(values.flatten().topk(count).indices)

    def _places(self, numbers: Tensor) -> Tensor:
        """Frequencies by number in the restricted grid, (P,) -> (P, 2)."""
        columns = self._restricted_values.shape[1]
        return torch.stack([numbers // columns, numbers % columns], 1) * self._step

    def _vectors_of(self, places: Tensor) -> Tensor:
        """Vectors (P, n) of frequencies (P, 2)."""
        return torch.stack([self._vectors[tuple(place)] for place in places.tolist()])

    def _peaks(self, vectors: Tensor) -> Tensor:
        """Frequencies (P, 2) at which ``|W(t)^H x|`` is largest, of vectors (P, n).

        Its square is the sum over pairs of kernel pixels a and b of ``exp(i t (b - a))
        (W_a^H x)^H (W_b^H x)``. Pairs of the same difference ``b - a`` share a wave, so
        it is the Fourier transform of their sums.
        """
        matrix = self._matrices[torch.complex64].unflatten(0, (-1, self._rows))
        images = torch.einsum("pn,tnc->ptc", vectors, matrix.to(torch.complex64))
        products = images.conj() @ images.mT  # (P, a, b)
        pixels = self._pixels.long()
        differences = (pixels - pixels[:, None]) % self._grid  # (a, b, 2)
        rows, columns = differences.unbind(2)
        numbers = (rows * self._values.shape[1] + columns).flatten()
        sums = images.new_zeros(len(vectors), self._values.numel())
        sums.index_add_(1, numbers, products.flatten(1))
        heights = torch.fft.ifft2(sums.unflatten(1, self._values.shape)).real
        heights = heights[:, :: self._step[0], :: self._step[1]]
        return self._places(heights.flatten(1).argmax(1))

    def _lanczos(
        self, places: Tensor, start: Tensor, tolerance: float
    ) -> tuple[Tensor, Tensor]:
        """Largest Ritz values and their vectors.

        Args:
            places: (P, 2) frequencies.
            start: (P, n) vectors to begin with.
            tolerance: relative growth of a value in four steps at which it ends.

        Returns:
            (P,) and (P, n).
        """
        angles = places * self._unit @ self._pixels.T
        waves = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
        waves = waves[..., None]
        count = min(_LANCZOS_STEPS, self._rows)
        basis = start.new_zeros(len(start), count + 1, self._rows)
        projected = start.new_zeros(len(start), count, count)
        basis[:, 0] = start / torch.linalg.vector_norm(start, dim=1, keepdim=True)
        rounding = 100 * torch.finfo(start.dtype).eps
        values = torch.full((len(start),), -torch.inf, dtype=torch.float64)
        vectors = start
        for step in range(count):
            image = self._product(basis[:, step], waves)
            size = torch.linalg.vector_norm(image, dim=1)
            so_far = basis[:, : step + 1]
            image, overlaps = _orthogonal(image, so_far)
            projected[:, : step + 1, step] = overlaps
            image, _ = _orthogonal(image, so_far)  # once more for what rounding leaves
            length = torch.linalg.vector_norm(image, dim=1)
            # Once the basis spans all eigenvectors of the start, only rounding is left.
            length[length < rounding * size] = 0
            divisor = torch.where(length > 0, length, torch.inf)
            basis[:, step + 1] = image / divisor[:, None]
            if step % 4 == 3 or step + 1 == count:
                block = projected[:, : step + 1, : step + 1]
                # Only the upper triangle is filled: the block is Hermitian.
                ritz_values, combinations = torch.linalg.eigh(block, UPLO="U")
                before = values
                values = ritz_values[:, -1].double()
                vectors = torch.bmm(so_far.mT, combinations[..., -1:])[..., 0]
                if (values - before < tolerance * values).all():
                    break
        return values, vectors

    def _product(self, vectors: Tensor, waves: Tensor) -> Tensor:
        """``W(t) W(t)^H x`` of vectors (P, n), by two products of real matrices."""
        spread = (waves * vectors[:, None]).flatten(1)  # (P, pixels n)
        matrix = self._matrices[vectors.dtype]
        middle = torch.cat([spread.real, spread.imag]) @ matrix
        real, imaginary = (middle @ matrix.T).unflatten(1, (-1, self._rows)).chunk(2)
        return (torch.complex(real, imaginary) * waves.conj()).sum(1)


def _orthogonal(vectors: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """Remainder and coefficients: (P, n) and basis (P, k, n) -> (P, n) and (P, k)."""
    overlaps = torch.bmm(basis.conj(), vectors[..., None])
    return vectors - torch.bmm(basis.mT, overlaps)[..., 0], overlaps[..., 0]


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
