import pytest
import torch
from torch import nn

from helpers.networks import hooks, resnet
from helpers.networks.fused import fused


def lived_in(network, size=32, seed=0):
    """Weights and statistics of batch norms as training leaves them: far from 1 and 0."""
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, low, high in (
                (module.weight, 0.5, 1.5),
                (module.bias, -0.3, 0.3),
                (module.running_mean, -0.5, 0.5),
                (module.running_var, 0.5, 2),
            ):
                with torch.no_grad():
                    tensor.copy_(torch.rand(tensor.shape, generator=generator) * (high - low) + low)
    return network.to(memory_format=torch.channels_last).eval()


def images(count=4, size=32, dtype=torch.float32):
    given = torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1), dtype=dtype)
    return given.contiguous(memory_format=torch.channels_last)


def norms(network):
    return sum(isinstance(module, nn.BatchNorm2d) for module in network.modules())


@pytest.mark.parametrize("architecture", resnet.ARCHITECTURES)
@pytest.mark.parametrize("stem", resnet.STEMS)
def test_logits_and_maps_are_those_of_the_network_and_no_norm_is_left(architecture, stem):
    network = lived_in(resnet.build(architecture, 5, stem=stem, width=0.125, seed=0)).double()
    state = {name: value.clone() for name, value in network.state_dict().items()}
    made, given = fused(network, images(1, dtype=torch.float64)), images(dtype=torch.float64)
    assert norms(made) == 0 < norms(network)
    found, expected = (hooks.features_and_logits(item, item.layer4, given) for item in (made, network))
    for mine, own in zip(found, expected, strict=True):
        assert (mine - own).abs().max() < 1e-11 * own.abs().max()  # rounding of some hundred layers
    assert all(torch.equal(value, network.state_dict()[name]) for name, value in state.items())
    assert made.fc.weight is not network.fc.weight  # a copy, down to what is not folded


class Twice(nn.Module):
    """Ends after a convolution that is called with two norms, or whose output goes on beside its norm."""

    def __init__(self, way):
        super().__init__()
        self.way, self.conv, self.one, self.other = way, nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, given):
        between = self.conv(given)
        if self.way == "beside":
            return (self.one(between) + between).mean((2, 3))
        if self.way == "two norms":
            return (self.one(between) + self.other(between)).mean((2, 3))
        return (self.one(between) + self.one(self.conv(given.flip(3)))).mean((2, 3))


@pytest.mark.parametrize("way", ["beside", "two norms", "called twice"])
def test_a_network_whose_convolutions_go_elsewhere_too_is_given_back(way):
    network = lived_in(Twice(way))
    assert fused(network, images(1)) is network


def test_a_convolution_that_is_called_twice_keeps_its_norm_and_others_lose_theirs():
    network = lived_in(nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3), Twice("called twice")))
    assert norms(network) - norms(fused(network, images(1))) == 1


def test_a_norm_without_statistics_or_without_a_convolution_stays():
    network = nn.Sequential(
        nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.Flatten(), nn.Linear(3600, 2)
    )
    assert fused(network.eval(), images(1)) is network


def test_a_network_that_reads_its_norm_is_given_back():
    class Reader(nn.Sequential):
        def forward(self, given):
            return super().forward(given).mean((2, 3)) * self[1].eps

    network = lived_in(Reader(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    assert fused(network, images(1)) is network
