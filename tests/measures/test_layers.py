"""The layers of a network as norms see them: by hand, against torch's own folding, and on networks of other makes."""

import pytest
import torch
from torch import nn

from helpers.measures.layers import folded, folded_copy, fused_network, trace_layers
from helpers.networks import hooks, resnet


def settle(network):
    """Give every batch normalisation statistics, scale and shift that change something."""
    generator = torch.Generator().manual_seed(1)
    for module in network.modules():
        if (
            isinstance(module, nn.modules.batchnorm._BatchNorm)
            and module.running_mean is not None
        ):
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


def trace(network, size=16):
    return trace_layers(network, torch.zeros(1, 3, size, size))


def state_of(network):
    hooks = [
        len(module._forward_hooks) + len(module._forward_pre_hooks)
        for module in network.modules()
    ]
    modes = [module.training for module in network.modules()]
    return str(
        [
            hooks,
            modes,
            [value.tolist() for value in network.state_dict().values()],
            [p.grad for p in network.parameters()],
        ]
    )


def test_layers_come_as_they_are_called_with_what_they_were_given():
    second = nn.Conv2d(6, 4, 3, dilation=2, groups=2, padding_mode="circular")
    network = chain(nn.Conv2d(3, 6, (3, 5), (2, 1), padding=(1, 2)), nn.ReLU(), second)
    first, second, last = trace(network)
    assert (first.stride, first.input_size) == ((2, 1), (16, 16))
    assert (second.dilation, second.groups, second.input_size) == ((2, 2), 2, (8, 16))
    assert last.input_size == (1, 1)
    assert [tuple(layer.weight.shape) for layer in (first, second, last)] == [
        (6, 3, 3, 5),
        (4, 3, 3, 3),
        (2, 4),
    ]
    for layer, module in zip(
        (first, second, last), (network[0], network[2], network[5]), strict=True
    ):
        assert torch.equal(layer.weight, module.weight.double())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_the_folded_layer_is_the_convolution_and_its_normalisation(bias, affine):
    network = chain(
        nn.Conv2d(3, 6, 1),
        nn.Conv2d(6, 4, 3, bias=bias, groups=2),
        nn.BatchNorm2d(4, affine=affine),
    ).double()
    images = torch.randn(
        2, 6, 9, 9, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )
    weight, offset = folded(network[1].weight, network[1].bias, network[2])
    with torch.no_grad():
        expected = network[2](network[1](images))
    torch.testing.assert_close(
        nn.functional.conv2d(images, weight, offset, groups=2),
        expected,
        rtol=0,
        atol=1e-12,
    )
    assert torch.equal(
        trace_layers(network, torch.zeros(1, 3, 9, 9, dtype=torch.float64))[1].weight,
        weight,
    )


@pytest.mark.parametrize(
    "between",
    [
        [nn.ReLU(), nn.BatchNorm2d(4)],
        [nn.MaxPool2d(2), nn.BatchNorm2d(4)],
        [nn.BatchNorm2d(4, track_running_stats=False)],
        [nn.GroupNorm(2, 4)],
    ],
)
def test_only_a_normalisation_of_the_very_output_is_folded(between):
    network = chain(nn.Conv2d(3, 4, 3), *between)
    layer = trace(network)[0]
    assert torch.equal(layer.weight, network[0].weight.double())


def test_a_layer_that_is_called_twice_is_listed_once():
    shared = nn.Conv2d(4, 4, 3, padding=1)
    layers = trace(chain(nn.Conv2d(3, 4, 1), shared, nn.MaxPool2d(2), shared))
    assert [layer.weight.shape[2:] for layer in layers] == [(1, 1), (3, 3), ()]
    assert layers[1].input_size == (16, 16)


class Standardised(nn.Conv2d):
    """A convolution by another kernel than its weight."""

    def forward(self, maps):
        centred = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return nn.functional.conv2d(
            maps, centred / centred.std((1, 2, 3), keepdim=True), self.bias
        )


def test_a_normalisation_behind_a_computed_kernel_stays_as_scale_and_shift():
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    normed = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3))
    for convolution in (Standardised(3, 4, 3), normed):
        network = chain(convolution, nn.BatchNorm2d(4))
        torch.testing.assert_close(
            folded_copy(network, images)(images), network(images), rtol=1e-4, atol=1e-4
        )
    weight, _ = folded(normed.weight, normed.bias, network[1])
    assert torch.equal(trace(network)[0].weight, weight)


class Attention(nn.Module):
    """A convolution, attention over its pixels, a projection that torch applies without calling it, and a matrix of its own."""

    def __init__(self):
        super().__init__()
        self.unused_linear = nn.Linear(5, 5)
        self.stem = nn.Conv2d(3, 4, 4, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.matrix = nn.Parameter(torch.ones(4, 7))
        self.position = nn.Parameter(torch.zeros(16, 4))

    def forward(self, images):
        tokens = self.stem(images).flatten(2).mT + self.position
        return (
            self.attention(tokens, tokens, tokens, need_weights=False)[0].mean(1)
            @ self.matrix
        )


@pytest.mark.parametrize(
    ("network", "names"),
    [
        (Attention(), "matrix, position, unused_linear.weight"),
        (chain(Standardised(3, 4, 3)), "0.weight"),
    ],
)
def test_networks_with_matrices_beside_the_weights_of_layers_have_no_norms(
    network, names
):
    message = (
        "norms are of networks whose only matrices are weights of nn.Conv2d and "
        f"nn.Linear; this one also has {names}"
    )
    with pytest.raises(ValueError, match=f"^{message}$"):
        trace(network)


def test_the_folded_copy_is_the_same_function_of_other_parameters():
    """A convolution with a bias and without, a depthwise one, and normalisations that no convolution feeds or that also do more."""

    class Activated(nn.BatchNorm2d):
        def forward(self, maps):
            return super().forward(maps).relu()

    layers = [
        nn.BatchNorm2d(3),
        nn.Conv2d(3, 8, 3, bias=False),
        Activated(8),
        nn.Conv2d(8, 8, 3, groups=8),
    ]
    network = settle(
        nn.Sequential(
            *layers,
            nn.BatchNorm2d(8, affine=False),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(128, 3),
        )
    )
    images, before = (
        torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0)),
        state_of(network),
    )
    flat = folded_copy(network, images[:1])
    torch.testing.assert_close(flat(images), network(images), rtol=1e-4, atol=1e-4)
    shapes = [tuple(parameter.shape) for parameter in flat.parameters()]
    assert shapes == [
        (3,),
        (3,),
        (8, 3, 3, 3),
        (8,),
        (8, 1, 3, 3),
        (8,),
        (3, 128),
        (3,),
    ]
    assert isinstance(flat[4], nn.Identity)
    assert state_of(network) == before
    assert not {id(p) for p in flat.parameters()} & {
        id(p) for p in network.parameters()
    }


@pytest.mark.parametrize("architecture", resnet.ARCHITECTURES)
def test_logits_and_maps_of_the_fused_network_are_those_of_the_network_and_no_normalisation_is_left(
    architecture,
):
    network = settle(
        resnet.build(architecture, 5, stem="strided", width=0.125, seed=0)
    ).double()
    images = torch.randn(
        4, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    made = fused_network(network, images[:1])
    assert not any(isinstance(module, nn.BatchNorm2d) for module in made.modules())
    found, expected = (
        hooks.features_and_logits(item, item.layer4, images) for item in (made, network)
    )
    for mine, own in zip(found, expected, strict=True):
        assert (
            mine - own
        ).abs().max() < 1e-11 * own.abs().max()  # rounding of some hundred layers


class Twice(nn.Module):
    """Ends after a convolution whose output two norms take, or its norm and the rest of the network."""

    def __init__(self, both):
        super().__init__()
        self.both, self.conv, self.one, self.other = (
            both,
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.BatchNorm2d(4),
        )

    def forward(self, images):
        maps = self.conv(images)
        return (self.one(maps) + (self.other(maps) if self.both else maps)).mean((2, 3))


class Reader(nn.Sequential):
    """Ends after a norm whose setting it reads."""

    def forward(self, images):
        return super().forward(images).mean((2, 3)) * self[1].eps


@pytest.mark.parametrize(
    "network",
    [Twice(True), Twice(False), Reader(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))],
)
def test_folding_that_would_change_the_network_is_refused_and_images_pass_through_the_network_itself(
    network,
):
    example = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert fused_network(settle(network), example) is network
    if isinstance(network, Twice):
        message = "^batch normalisation cannot be folded into the convolutions: the network would give other logits$"
        with pytest.raises(ValueError, match=message):
            folded_copy(network, example)
