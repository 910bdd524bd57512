"""Spectral norms of convolutions: against the matrix written tap by tap, dense transforms, power iteration, and by hand."""

import numpy as np
import pytest
import torch

from helpers.measures import spectral
from helpers.measures.layers import Layer
from helpers.networks import operator_norm as numerics
from helpers.networks.operator_norm import operator_norm


def random_kernel(*shape, seed=0):
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def operator_matrix(weight, size, stride=(1, 1), dilation=(1, 1), groups=1):
    """The convolution as the matrix that it is, written tap by tap: (c_out rows columns, c_in h w), circular."""
    out, per_group, height, width = weight.shape
    rows, columns = size[0] // stride[0], size[1] // stride[1]
    matrix = np.zeros((out, rows, columns, per_group * groups, *size))
    for o, i, a, b in np.ndindex(out, per_group, height, width):
        channel = o // (out // groups) * per_group + i
        for y, x in np.ndindex(rows, columns):
            source = (
                (y * stride[0] + a * dilation[0]) % size[0],
                (x * stride[1] + b * dilation[1]) % size[1],
            )
            matrix[o, y, x, channel, *source] += weight[o, i, a, b]
    return matrix.reshape(out * rows * columns, -1)


def largest_by_frequency(weight, size):
    """Sedghi et al.'s algorithm as they print it: singular values of the transform at every frequency."""
    transform = np.fft.fft2(weight.permute(2, 3, 0, 1).numpy(), size, axes=(0, 1))
    return np.linalg.svd(transform, compute_uv=False).max()


def reshaped(weight):
    return spectral.norms_of_layer(Layer(weight, input_size=(9, 9)), (9, 9))["reshaped"]


def fft(weight, size):
    layer = Layer(weight, stride=(2, 2), input_size=(9, 9))
    return spectral.norms_of_layer(layer, size)["fft"]


@pytest.mark.parametrize(
    ("shape", "size", "stride", "dilation", "groups"),
    [
        ((4, 3, 3, 3), (8, 8), (1, 1), (1, 1), 1),
        ((2, 5, 3, 3), (8, 8), (1, 1), (1, 1), 1),
        ((4, 3, 3, 3), (8, 8), (2, 2), (1, 1), 1),
        ((9, 1, 3, 3), (8, 8), (2, 2), (1, 1), 1),
        ((3, 4, 3, 2), (8, 6), (2, 1), (1, 1), 1),
        ((3, 2, 2, 3), (6, 9), (1, 3), (1, 1), 1),
        ((3, 2, 5, 5), (8, 8), (4, 4), (1, 1), 1),
        ((4, 3, 3, 3), (8, 8), (1, 1), (2, 1), 1),
        ((4, 2, 3, 3), (8, 8), (2, 2), (2, 2), 1),
        ((4, 3, 3, 3), (8, 8), (1, 1), (1, 1), 2),
        ((6, 1, 3, 3), (8, 8), (2, 2), (1, 1), 6),
        ((2, 3, 8, 8), (8, 8), (1, 1), (1, 1), 1),
        ((3, 2, 1, 5), (1, 8), (1, 2), (1, 1), 1),
    ],
)
def test_operator_norm_is_that_of_the_explicit_matrix(
    shape, size, stride, dilation, groups
):
    weight = random_kernel(*shape)
    expected = np.linalg.norm(
        operator_matrix(weight.numpy(), size, stride, dilation, groups), 2
    )
    assert operator_norm(weight, size, stride, dilation, groups) == pytest.approx(
        expected, rel=1e-10
    )


def test_by_hand():
    difference = torch.tensor([[[[1.0, -1.0]]]])
    # x_j - x_(j+1) is largest for alternating signs, which need an even circle; on 3 pixels it is 2 sin(pi / 3).
    assert operator_norm(difference, (1, 8)) == pytest.approx(2, rel=1e-12)
    assert operator_norm(difference, (1, 3)) == pytest.approx(np.sqrt(3), rel=1e-12)
    assert reshaped(difference) == pytest.approx(np.sqrt(2), rel=1e-12)
    shift = torch.zeros(1, 1, 3, 3)
    shift[..., 2, 0] = -5.0
    assert operator_norm(shift, (7, 7)) == pytest.approx(5, rel=1e-12)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("taps", "size"), [((3, 3), (90, 64)), ((5, 2), (64, 41)), ((7, 7), (97, 96))]
)
def test_no_frequency_is_dropped_that_holds_the_largest(taps, size, seed):
    weight = random_kernel(3, 4, *taps, seed=seed)
    if seed % 2:  # nearly constant over frequencies, where bounds are closest
        weight *= 1e-3
        weight[:, :, 1, 1] += torch.eye(3, 4)
    assert fft(weight, size) == pytest.approx(
        largest_by_frequency(weight, size), rel=1e-11
    )


@pytest.mark.parametrize("size", [(5, 4), (24, 18)])
@pytest.mark.parametrize(
    "kind", ["random", "nearly constant", "one direction", "one peak among equals"]
)
def test_matrices_of_many_rows_are_iterated_to_a_millionth(monkeypatch, kind, size):
    """Above a number of rows, here 8, no matrix is taken apart."""
    monkeypatch.setattr(numerics, "_EXACT", 8)
    weight = random_kernel(12, 15, 3, 3) * (1e-6 if kind == "nearly constant" else 1)
    if kind == "nearly constant":
        weight[:, :, 1, 1] += torch.eye(12, 15)
    if kind == "one direction":
        weight = random_kernel(12, 1, 1, 1) * random_kernel(1, 15, 3, 3, seed=1)
    if kind == "one peak among equals":
        weight = torch.zeros(12, 15, 3, 3, dtype=torch.float64)
        weight[:, :, 0, 0] = torch.eye(12, 15)
        weight[7, 7] = torch.ones(3, 3) / 9 * 1.001
    expected = largest_by_frequency(weight, size)
    assert fft(weight, size) == pytest.approx(expected, rel=1e-6)
    assert fft(torch.zeros_like(weight), size) == 0


@pytest.mark.parametrize("seed", range(3))
def test_iterated_norms_of_many_frequencies_are_those_of_all_squares(monkeypatch, seed):
    weight = random_kernel(24, 32, 3, 3, seed=seed)
    weight *= torch.rand(3, 3, generator=torch.Generator().manual_seed(seed))
    every_square = fft(weight, (224, 224))
    monkeypatch.setattr(numerics, "_EXACT", 8)
    assert fft(weight, (224, 224)) == pytest.approx(every_square, rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_climbing_finds_the_largest_where_frequencies_lie_close_together(
    monkeypatch, seed
):
    """Random kernels of many channels are nearly as large at many frequencies."""
    weight = random_kernel(128, 128, 3, 3, seed=seed)
    climbed = operator_norm(weight, (32, 32), (2, 2))
    monkeypatch.setattr(numerics, "_EXACT", 128)
    exact = operator_norm(weight, (32, 32), (2, 2))
    assert climbed == pytest.approx(exact, rel=2e-4)


@pytest.mark.parametrize("input_size", [(14, 7), (12, 12), (56, 56)])
def test_a_layer_of_many_rows_has_the_norms_of_all_frequencies(monkeypatch, input_size):
    layer = Layer(random_kernel(12, 16, 3, 3), input_size=input_size)
    norms = spectral.spectral_norms([layer], torch.zeros(1, 3, 56, 56))
    monkeypatch.setattr(numerics, "_EXACT", 8)
    together = spectral.spectral_norms([layer], torch.zeros(1, 3, 56, 56))
    for variant in ("operator", "fft"):
        assert together[variant] == pytest.approx(norms[variant], rel=1e-6)


def test_a_transform_may_be_zero_at_a_frequency():
    """x_j - x_(j+1) of many channels is 0 for equal pixels, 2 for alternating ones."""
    weight = torch.zeros(70, 80, 1, 2)
    weight[range(70), range(70)] = torch.tensor([[1.0, -1.0]])
    assert operator_norm(weight, (1, 8)) == pytest.approx(2, rel=1e-12)


def test_matrices_of_many_rows_in_groups_of_one_pixel(monkeypatch):
    monkeypatch.setattr(numerics, "_EXACT", 2)
    weight = random_kernel(8, 5, 1, 1)
    halves = [np.linalg.norm(half[..., 0, 0], 2) for half in weight.split(4)]
    norm = operator_norm(weight, (9, 9), groups=2)
    assert norm == pytest.approx(max(halves), rel=1e-12)


def test_a_kernel_of_one_pixel_has_one_norm():
    layers = [Layer(random_kernel(4, 3, 1, 1), (2, 2), input_size=(9, 9))]
    layers.append(Layer(random_kernel(4, 3, 1, 1, seed=1), groups=2, input_size=(9, 9)))
    norms = spectral.spectral_norms(layers, torch.zeros(1, 3, 8, 8))
    for row, layer in enumerate(layers):
        weight = layer.weight.reshape(
            *layer.weight.shape[:2], *layer.weight.shape[2:] or (1, 1)
        )
        as_matrix = weight.flatten(1)[..., None, None]
        expected = {
            "operator": operator_norm(
                weight, layer.input_size, layer.stride, groups=layer.groups
            ),
            "reshaped": operator_norm(as_matrix, (1, 1)),
            "fft": operator_norm(weight, (8, 8), groups=layer.groups),
        }
        for variant, values in norms.items():
            assert values[row] == pytest.approx(expected[variant], rel=1e-12)
    assert norms["reshaped"][1] > norms["operator"][1]


def test_fft_norm_ignores_the_stride_and_a_linear_layer_the_size():
    weight, matrix = random_kernel(4, 3, 3, 3), random_kernel(4, 7)
    assert fft(weight, (8, 8)) == operator_norm(weight, (8, 8))
    assert fft(weight, (8, 8)) > 1.05 * operator_norm(weight, (8, 8), (2, 2))
    assert fft(matrix, (8, 8)) == reshaped(matrix)
    assert reshaped(matrix) == pytest.approx(
        np.linalg.norm(matrix.numpy(), 2), rel=1e-12
    )


def test_the_size_is_rounded_up_to_the_stride_and_to_the_kernel():
    weight = random_kernel(3, 2, 3, 3, seed=3)
    assert operator_norm(weight, (7, 7), (2, 2)) == operator_norm(
        weight, (8, 8), (2, 2)
    )
    assert operator_norm(weight, (2, 8), dilation=(2, 2)) == operator_norm(
        weight, (5, 8), dilation=(2, 2)
    )
    assert operator_norm(weight, (8, 8), (2, 2)) != operator_norm(
        weight, (10, 10), (2, 2)
    )


def test_a_block_that_fails_in_single_precision_is_taken_in_double(monkeypatch):
    expected, eigvalsh = (
        operator_norm(weight := torch.eye(6)[:, :4, None, None] + 0.1, (8, 8)),
        torch.linalg.eigvalsh,
    )

    def fails(matrices):
        if matrices.dtype == torch.complex64:
            raise torch.linalg.LinAlgError("not converged")
        return eigvalsh(matrices)

    monkeypatch.setattr(torch.linalg, "eigvalsh", fails)
    assert operator_norm(weight, (8, 8)) == pytest.approx(expected, rel=1e-12)


def test_zeros_give_zero_and_what_is_not_finite_is_undefined():
    weight = torch.zeros(3, 2, 3, 3)
    assert (
        operator_norm(weight, (8, 8), (2, 2))
        == reshaped(weight)
        == fft(weight, (8, 8))
        == 0
    )
    weight[0, 0, 1, 1] = torch.inf
    assert np.isnan(
        [operator_norm(weight, (8, 8)), reshaped(weight), fft(weight, (8, 8))]
    ).all()
