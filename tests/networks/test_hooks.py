"""What layers put out, which layers there are to look at, and a network that is left as it came."""

import pytest
import torch
from torch import nn

from helpers.networks import hooks, resnet


class Tokens(nn.Module):
    """A network that goes on with tokens where asked, as transformers do, and classifies its maps otherwise."""

    def __init__(self, tokens):
        super().__init__()
        self.maps, self.after, self.head = (
            nn.Conv2d(3, 4, 3, 2),
            nn.Linear(4, 4) if tokens else nn.Identity(),
            nn.Linear(4, 2),
        )

    def forward(self, images):
        maps = self.maps(images)
        return self.head(
            self.after(maps.flatten(2).transpose(1, 2)).mean(1)
            if isinstance(self.after, nn.Linear)
            else maps.mean((2, 3))
        )


@pytest.fixture(scope="module")
def network():
    return resnet.build("resnet18", 5, width=0.125, seed=0)


def test_features_and_logits_are_those_of_the_pass_and_the_network_is_left_as_it_came(
    network,
):
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    network.train()
    network.layer1.eval()
    modes = [module.training for module in network.modules()]
    with torch.no_grad():
        features, logits = hooks.features_and_logits(network, network.layer4, images)
    assert [module.training for module in network.modules()] == modes
    assert not any(module._forward_hooks for module in network.modules())
    assert features.shape == (2, 64, 2, 2)
    with torch.no_grad():
        assert torch.equal(network.eval()(images), logits)
        assert torch.equal(network.fc(features.mean((2, 3))), logits)


def test_what_is_no_stack_of_maps_is_refused_and_hooks_are_removed(network):
    images = torch.zeros(1, 3, 32, 32)
    with pytest.raises(
        ValueError, match=r"Conv2d is not called in the network's forward pass"
    ):
        hooks.features_and_logits(network, nn.Conv2d(3, 3, 1), images)
    with pytest.raises(
        ValueError, match=r"Linear puts out shape \(1, 5\); a CAM needs"
    ):
        hooks.features_and_logits(network, network.fc, images)
    with pytest.raises(RuntimeError):
        hooks.observe(network, images[:, :2], lambda *given: None)
    assert not any(module._forward_hooks for module in network.modules())


def test_the_last_maps_and_the_last_linear_layer_are_those_that_classify(network):
    for side, layer in (
        (64, network.layer4),
        (32, network.layer3),
    ):  # at 32 pixels layer4 leaves one
        assert hooks.last_called(network, torch.zeros(1, 3, side, side)) == (
            layer,
            network.fc,
        )
    plain, tokens = Tokens(False), Tokens(True)
    example = torch.zeros(2, 3, 9, 9)
    assert hooks.last_called(plain, example) == (plain.maps, plain.head)
    assert hooks.last_called(tokens, example) == (None, tokens.head)
    with pytest.raises(
        ValueError,
        match=r"no layer of Tokens puts out maps .* so there is no class activation map",
    ):
        hooks.last_maps_layer(tokens, example)
