import re

import numpy as np
import pytest
import torch
from torch import nn

from helpers.measures import spectral


def random_kernel(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def operator_matrix(weight, size, stride=(1, 1), dilation=(1, 1), groups=1):
    """The convolution as the matrix that it is, written tap by tap: (c_out rows columns, c_in h w), circular."""
    out, per_group, height, width = weight.shape
    rows, columns = size[0] // stride[0], size[1] // stride[1]
    matrix = np.zeros((out, rows, columns, per_group * groups, *size))
    for o, i, a, b in np.ndindex(out, per_group, height, width):
        channel = o // (out // groups) * per_group + i
        for y, x in np.ndindex(rows, columns):
            source = (y * stride[0] + a * dilation[0]) % size[0], (x * stride[1] + b * dilation[1]) % size[1]
            matrix[o, y, x, channel, *source] += weight[o, i, a, b]
    return matrix.reshape(out * rows * columns, -1)


def largest_by_frequency(weight, size):
    """Sedghi et al.'s algorithm as they print it: singular values of the transform at every frequency."""
    transform = np.fft.fft2(weight.permute(2, 3, 0, 1).numpy(), size, axes=(0, 1))
    return np.linalg.svd(transform, compute_uv=False).max()


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
def test_operator_norm_is_that_of_the_explicit_matrix(shape, size, stride, dilation, groups):
    weight = random_kernel(*shape)
    expected = np.linalg.norm(operator_matrix(weight.numpy(), size, stride, dilation, groups), 2)
    assert spectral.operator_norm(weight, size, stride, dilation, groups) == pytest.approx(expected, rel=1e-10)


def test_by_hand():
    difference = torch.tensor([[[[1.0, -1.0]]]])
    # x_j - x_(j+1) is largest for alternating signs, which need an even circle; on 3 pixels it is 2 sin(pi / 3).
    assert spectral.operator_norm(difference, (1, 8)) == pytest.approx(2, rel=1e-12)
    assert spectral.operator_norm(difference, (1, 3)) == pytest.approx(np.sqrt(3), rel=1e-12)
    assert spectral.reshaped_norm(difference) == pytest.approx(np.sqrt(2), rel=1e-12)
    shift = torch.zeros(1, 1, 3, 3)
    shift[..., 2, 0] = -5.0
    assert spectral.operator_norm(shift, 7) == pytest.approx(5, rel=1e-12)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("taps", "size"), [((3, 3), (90, 64)), ((5, 2), (64, 41)), ((7, 7), (97, 96))])
def test_no_frequency_is_dropped_that_holds_the_largest(taps, size, seed):
    weight = random_kernel(3, 4, *taps, seed=seed)
    if seed % 2:  # nearly constant over frequencies, where bounds are closest
        weight *= 1e-3
        weight[:, :, 1, 1] += torch.eye(3, 4)
    assert spectral.fft_norm(weight, size) == pytest.approx(largest_by_frequency(weight, size), rel=1e-11)


@pytest.mark.parametrize("kind", ["random", "nearly constant", "one direction", "one peak among equals"])
def test_matrices_of_many_rows_have_the_largest_singular_value_of_any_frequency(kind):
    """More rows than all eigenvalues are computed for: Lanczos' recursion, to which close and equal eigenvalues are the hard ones."""
    weight = random_kernel(100, 120, 3, 3) * (1e-6 if kind == "nearly constant" else 1)
    if kind == "nearly constant":
        weight[:, :, 1, 1] += torch.eye(100, 120)
    if kind == "one direction":
        weight = random_kernel(100, 1, 1, 1) * random_kernel(1, 120, 3, 3, seed=1)
    if kind == "one peak among equals":
        weight = torch.zeros(100, 120, 3, 3, dtype=torch.float64)
        weight[:, :, 0, 0] = torch.eye(100, 120)
        weight[7, 7] = torch.ones(3, 3) / 9 * 1.001
    assert spectral.fft_norm(weight, (24, 18)) == pytest.approx(largest_by_frequency(weight, (24, 18)), rel=1e-10)


@pytest.mark.parametrize(("u", "v"), [(0, 0), (17, 5), (50, 31), (33, 48), (95, 1)])
def test_a_single_peak_is_found_wherever_it_is(u, v):
    taps = torch.arange(7, dtype=torch.float64)
    angle = 2 * np.pi * (u * taps[:, None] + v * taps) / 96
    weight = angle.cos()[None, None]
    assert spectral.fft_norm(weight, 96) == pytest.approx(largest_by_frequency(weight, (96, 96)), rel=1e-12)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_a_kernel_of_one_pixel_is_a_matrix(stride):
    weight = random_kernel(6, 4, 1, 1)
    expected = np.linalg.svd(weight.flatten(1).numpy(), compute_uv=False)[0]
    found = [spectral.operator_norm(weight, 9, stride), spectral.reshaped_norm(weight), spectral.fft_norm(weight, 9)]
    assert found == pytest.approx([expected] * 3, rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_the_norm_lies_between_the_matrix_and_three_times_the_matrix(seed):
    weight = random_kernel(5, 4, 3, 3, seed=seed)
    reshaped, operator = spectral.reshaped_norm(weight), spectral.operator_norm(weight, 12)
    assert reshaped < operator < 3 * reshaped
    constant = torch.ones(1, 1, 3, 3)
    assert spectral.operator_norm(constant, 12) == pytest.approx(3 * spectral.reshaped_norm(constant), rel=1e-12)


def test_patches_that_do_not_overlap_are_a_matrix():
    weight = random_kernel(5, 3, 4, 4)
    assert spectral.operator_norm(weight, 12, 4) == pytest.approx(spectral.reshaped_norm(weight), rel=1e-12)
    assert spectral.operator_norm(weight, 12, 6) == pytest.approx(spectral.reshaped_norm(weight), rel=1e-12)


def test_fft_norm_ignores_the_stride_and_a_linear_layer_the_size():
    weight, matrix = random_kernel(4, 3, 3, 3), random_kernel(4, 7)
    assert spectral.fft_norm(weight, 8) == spectral.operator_norm(weight, 8, 1)
    assert spectral.fft_norm(weight, 8) > 1.05 * spectral.operator_norm(weight, 8, 2)
    assert spectral.fft_norm(matrix, 8) == spectral.reshaped_norm(matrix)
    assert spectral.reshaped_norm(matrix) == pytest.approx(np.linalg.norm(matrix.numpy(), 2), rel=1e-12)


def test_the_size_is_rounded_up_to_the_stride_and_to_the_kernel():
    weight = random_kernel(3, 2, 3, 3, seed=3)
    assert spectral.operator_norm(weight, 7, 2) == spectral.operator_norm(weight, 8, 2)
    assert spectral.operator_norm(weight, (2, 8), 1, 2) == spectral.operator_norm(weight, (5, 8), 1, 2)
    assert spectral.operator_norm(weight, 8, 2) != spectral.operator_norm(weight, 10, 2)


@pytest.mark.parametrize("scale", [1e-90, -3.0, 1e90])
def test_the_norm_grows_with_the_weight(scale):
    weight = random_kernel(3, 4, 3, 3)
    for norm in (spectral.operator_norm(weight * scale, (9, 8), (1, 2)), spectral.reshaped_norm(weight * scale)):
        assert norm > 0
    expected = abs(scale) * spectral.operator_norm(weight, (9, 8), (1, 2))
    assert spectral.operator_norm(weight * scale, (9, 8), (1, 2)) == pytest.approx(expected, rel=1e-11)


def test_the_order_of_channels_does_not_matter():
    weight = random_kernel(5, 4, 3, 3)
    mixed = weight[torch.tensor([3, 1, 4, 0, 2])][:, torch.tensor([2, 0, 3, 1])]
    assert spectral.operator_norm(mixed, 8, 2) == pytest.approx(spectral.operator_norm(weight, 8, 2), rel=1e-11)


def test_no_input_is_stretched_more_and_the_transpose_map_is_the_same():
    weight = random_kernel(4, 3, 3, 3)
    norm = spectral.operator_norm(weight, 10)
    images = random_kernel(50, 3, 10, 10, seed=1)
    layer = nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular", bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(weight)
        for _ in range(300):  # power iteration on the layer itself, from below
            images = torch.nn.functional.normalize(images.flatten(1)).view_as(images)
            stretched = layer(images).flatten(1).norm(dim=1)
            wide = torch.nn.functional.pad(layer(images), (1, 1, 1, 1), mode="circular")
            images = torch.nn.functional.conv2d(wide, weight.flip(2, 3).transpose(0, 1))
    assert stretched.max() <= norm * (1 + 1e-12)
    assert stretched.max() == pytest.approx(norm, rel=1e-4)


def test_zeros_give_zero_and_what_is_not_finite_is_undefined():
    weight = torch.zeros(3, 2, 3, 3)
    assert spectral.operator_norm(weight, 8, 2) == spectral.reshaped_norm(weight) == spectral.fft_norm(weight, 8) == 0
    weight[0, 0, 1, 1] = torch.inf
    assert np.isnan([spectral.operator_norm(weight, 8), spectral.reshaped_norm(weight), spectral.fft_norm(weight, 8)]).all()


@pytest.mark.parametrize(
    ("shape", "arguments", "message"),
    [
        ((4, 3), {"input_size": 8}, "the weight has shape (4, 3); a convolution needs (c_out, c_in / groups, kh, kw)"),
        ((4, 3, 3, 3), {"input_size": 8, "groups": 3}, "groups 3 must divide the 4 output channels"),
        ((4, 3, 3, 3), {"input_size": 0}, "input size 0 must be one or two whole numbers of at least 1"),
        ((4, 3, 3, 3), {"input_size": 8, "stride": (2, 0)}, "stride (2, 0) must be one or two whole numbers of at least 1"),
        ((4, 3, 3, 3), {"input_size": 8, "dilation": (1, 1, 1)}, "dilation (1, 1, 1) must be one or two whole numbers of at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(shape, arguments, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        spectral.operator_norm(torch.ones(shape), **arguments)


@pytest.mark.parametrize(("channels", "taps", "size"), [(12, 3, 64), (7, 5, 33), (5, 7, 48)])
def test_cells_that_are_dropped_hold_no_larger_value(channels, taps, size):
    for seed in range(4):
        weight = torch.randn(channels, channels, taps, taps, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        every = torch.linalg.svdvals(torch.fft.fft2(weight, (size, size)).permute(2, 3, 0, 1))
        assert spectral.operator_norm(weight, size) == pytest.approx(float(every.max()), rel=1e-11)


def test_weights_of_any_scale_have_their_norm():
    weight = torch.randn(6, 6, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    norm = spectral.operator_norm(weight, 32)
    for power in (-500, -70, 70, 500):
        assert spectral.operator_norm(weight * 2.0**power, 32) == norm * 2.0**power
