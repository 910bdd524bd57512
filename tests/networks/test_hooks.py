"""What layers put out, which of them a CAM reads, and a network left as it came."""

import copy

import pytest
import torch
from torch import nn

from helpers.networks import Undefined, hooks, resnet


class Tokens(nn.Module):
    """A network that goes on with tokens, as transformers do."""

    def __init__(self):
        super().__init__()
        self.maps, self.after = nn.Conv2d(3, 4, 3, 2), nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, images):
        tokens = self.maps(images).flatten(2).transpose(1, 2)
        return self.head(self.after(tokens).mean(1))


@pytest.fixture(scope="module")
def network():
    return resnet.build("resnet18", 5, width=0.125, seed=0).eval()


def test_features_and_logits_are_those_of_the_pass(network):
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features, logits = hooks.features_and_logits(network, network.layer4, images)
        assert features.shape == (2, 64, 2, 2)
        assert torch.equal(network(images), logits)
        assert torch.equal(network.fc(features.mean((2, 3))), logits)


def test_evaluation_mode_leaves_a_network_as_it_came(network):
    trained = copy.deepcopy(network).train()
    trained.layer1.eval()
    modes = [module.training for module in trained.modules()]
    with pytest.raises(KeyError), hooks.evaluation_mode(trained):
        assert not any(module.training for module in trained.modules())
        raise KeyError
    assert [module.training for module in trained.modules()] == modes


def test_hooks_are_removed_after_an_error(network):
    images = torch.zeros(1, 3, 32, 32)
    with pytest.raises(RuntimeError):
        hooks.features_and_logits(network, network.layer4, images[:, :2])
    assert not any(module._forward_hooks for module in network.modules())


def test_the_last_maps_are_those_that_the_network_classifies(network):
    # At 32 pixels layer4 leaves one pixel.
    for side, layer in ((64, network.layer4), (32, network.layer3)):
        example = torch.zeros(1, 3, side, side)
        assert hooks.last_maps_layer(network, example) is layer
    with pytest.raises(Undefined, match=r"no layer of Tokens puts out maps"):
        hooks.last_maps_layer(Tokens(), torch.zeros(2, 3, 9, 9))
