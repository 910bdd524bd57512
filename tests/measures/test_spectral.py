"""Layers of a network, and spectral norms of convolutions: against the matrix written tap by tap, by hand, and on networks of other makes."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from helpers.measures.norms import (
    Layer,
    fused_network,
    layers_of,
    operator_norm,
)
from helpers.networks import hooks, resnet


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


@pytest.mark.parametrize(
    ("shape", "size", "stride", "dilation", "groups"),
    [
        ((4, 3, 3, 3), (8, 8), (1, 1), (1, 1), 1),
        ((2, 5, 3, 3), (8, 8), (1, 1), (1, 1), 1),
        ((4, 3, 3, 3), (8, 8), (2, 2), (1, 1), 1),
        ((3, 4, 3, 2), (8, 6), (2, 1), (1, 1), 1),
        ((3, 2, 5, 5), (8, 8), (4, 4), (1, 1), 1),
        ((4, 2, 3, 3), (8, 8), (2, 2), (2, 2), 1),
        ((4, 3, 3, 3), (8, 8), (1, 1), (1, 1), 2),
        ((6, 1, 3, 3), (8, 8), (2, 2), (1, 1), 6),
    ],
)
def test_operator_norm_is_that_of_the_explicit_matrix(
    shape, size, stride, dilation, groups
):
    weight = random_kernel(*shape)
    expected = np.linalg.norm(
        operator_matrix(weight.numpy(), size, stride, dilation, groups), 2
    )
    layer = Layer(weight, stride, dilation, groups, size)
    assert operator_norm(layer) == pytest.approx(expected, rel=1e-10)


def test_by_hand():
    ones = torch.ones(1, 1, 3, 3, dtype=torch.float64)
    assert operator_norm(Layer(ones, input_size=(6, 6))) == pytest.approx(9)
    difference = torch.tensor([[[[1.0, -1.0]]]], dtype=torch.float64)
    assert operator_norm(Layer(difference, input_size=(1, 4))) == pytest.approx(2)
    for value, expected in ((0.0, 0.0), (math.nan, math.nan), (math.inf, math.nan)):
        layer = Layer(torch.full((2, 2, 3, 3), value), input_size=(8, 8))
        assert operator_norm(layer) == pytest.approx(expected, nan_ok=True)


def test_the_size_is_rounded_up_to_the_stride_and_to_the_kernel():
    weight = random_kernel(3, 2, 3, 3)
    for size, rounded in (((7, 5), (8, 6)), ((1, 2), (4, 4))):
        layer = Layer(weight, (2, 2), input_size=size)
        expected = operator_norm(Layer(weight, (2, 2), input_size=rounded))
        assert operator_norm(layer) == pytest.approx(expected, rel=1e-12)


def settle(network):
    """Give every batch normalisation statistics, scale and shift that change something."""
    generator = torch.Generator().manual_seed(1)
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_(generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
            if module.affine:
                nn.init.normal_(module.weight, generator=generator)
                nn.init.normal_(module.bias, generator=generator)
    return network.eval()


def chain(*modules):
    """Convolutions, then global pooling and a linear layer."""
    return settle(
        nn.Sequential(*modules, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    )


def layers(network, size=16):
    return layers_of(network, torch.zeros(1, 3, size, size))


def test_layers_come_as_they_are_called_with_what_they_were_given():
    second = nn.Conv2d(6, 4, 3, dilation=2, groups=2, padding_mode="circular")
    network = chain(nn.Conv2d(3, 6, (3, 5), (2, 1), padding=(1, 2)), nn.ReLU(), second)
    first, second, last = layers(network)
    assert (first.stride, first.input_size) == ((2, 1), (16, 16))
    assert (second.dilation, second.groups, second.input_size) == ((2, 2), 2, (8, 16))
    assert last.input_size == (1, 1)
    for layer, module in zip(
        (first, second, last), (network[0], network[2], network[5]), strict=True
    ):
        assert torch.equal(layer.weight.flatten(), module.weight.double().flatten())


def test_a_layer_that_is_called_twice_is_listed_once():
    shared = nn.Conv2d(4, 4, 3, padding=1)
    listed = layers(chain(nn.Conv2d(3, 4, 1), shared, nn.MaxPool2d(2), shared))
    assert [layer.weight.shape[2:] for layer in listed] == [(1, 1), (3, 3), (1, 1)]
    assert listed[1].input_size == (16, 16)


def test_only_a_normalisation_of_the_very_output_is_folded():
    network = chain(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4))
    assert torch.equal(layers(network)[0].weight, network[0].weight.double())


class Attention(nn.Module):
    """A convolution, attention over its pixels, and a matrix of its own."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 4, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.matrix = nn.Parameter(torch.ones(4, 7))

    def forward(self, images):
        tokens = self.stem(images).flatten(2).mT
        return self.attention(tokens, tokens, tokens)[0].mean(1) @ self.matrix


def test_networks_with_matrices_beside_the_weights_of_layers_have_no_norms():
    with pytest.raises(ValueError, match="only matrices are weights"):
        layers(Attention())


class Undecided(nn.Module):
    """What it does depends on its input, which torch.fx cannot trace."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, images):
        means = images.mean((2, 3))
        return self.layer(means if means.sum() > 0 else -means)


def test_a_network_that_cannot_be_traced_has_no_norms_and_images_pass_through_it():
    network = Undecided().eval()
    assert fused_network(network) is network
    with pytest.raises(ValueError, match=r"^torch\.fx cannot trace Undecided, so that"):
        layers(network)


@pytest.mark.parametrize("architecture", resnet.ARCHITECTURES)
def test_logits_and_maps_of_the_fused_network_are_those_of_the_network(architecture):
    """No normalisation is left, and strided 1x1 convolutions stay sampled."""
    network = settle(
        resnet.build(architecture, 5, stem="strided", width=0.125, seed=0)
    ).double()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    images = images.double()
    fused = fused_network(network)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fused.modules())
    kinds = [
        [type(module) is resnet.SampledConvolution for module in one.modules()]
        for one in (fused, network)
    ]
    assert sum(kinds[0]) == sum(kinds[1])
    # Of basic blocks the first downsampling has few channels.
    assert sum(kinds[1]) == (1 if architecture in ("resnet18", "resnet34") else 0)
    layer = hooks.last_maps_layer(fused, images[:1])
    results = hooks.features_and_logits(fused, layer, images)
    expected = hooks.features_and_logits(network, network.layer4, images)
    for ours, own in zip(results, expected, strict=True):
        # Rounding of some hundred layers.
        assert (ours - own).abs().max() < 1e-11 * own.abs().max()
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])
