"""Attributions: against autograd and plain loops, by what they must add up to, and with the network left as it came."""

import itertools

import pytest
import torch
from torch import nn

from helpers.cams import attribution
from helpers.cams.localize import upsample
from helpers.cams.maps import closed_form_cam
from helpers.networks import hooks, resnet


@pytest.fixture(scope="module")
def network():
    """A ResNet whose batch norms are not those of the start; in-place ReLUs that are called twice."""
    options = {"stem": "strided", "width": 0.125, "last_stride": 1}
    model = resnet.build("resnet18", 4, seed=1, **options).eval()
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3, generator=generator)
            module.running_var.uniform_(0.5, 1.5, generator=generator)
    return model


@pytest.fixture(scope="module")
def images():
    return torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def own(network):
    return attribution.with_separate_relus(network)


CLASSES = torch.tensor([0, 3, 1])


def gradient(network, images):
    inputs = images.clone().requires_grad_()
    chosen = network(inputs).gather(1, CLASSES[:, None]).sum()
    return torch.autograd.grad(chosen, inputs)[0]


def test_the_copy_has_the_logits_of_the_network_and_each_relu_once(network, images):
    own, calls = attribution.with_separate_relus(network), []
    relus = [module for module in own.modules() if isinstance(module, nn.ReLU)]
    for module in relus:
        module.register_forward_hook(lambda module, *_: calls.append(module))
    torch.testing.assert_close(own(images), network(images), rtol=0, atol=1e-6)
    assert len(calls) == len(set(calls)) == 17
    assert not any(module.inplace for module in calls)


def test_gradients_are_those_of_autograd(network, own, images):
    expected = gradient(network, images)
    found = attribution.attribution_maps("saliency", own, images, CLASSES)
    torch.testing.assert_close(found, expected.abs().amax(1))
    found = attribution.attribution_maps("input_x_gradient", own, images, CLASSES)
    torch.testing.assert_close(found, (images * expected).sum(1).relu())


def test_integrated_gradients_approach_the_sum_over_the_way(network, own, images):
    shares = (torch.arange(200) + 0.5) / 200
    way = sum(gradient(network, images * share) for share in shares) / 200
    given = own, images, CLASSES, 200
    found = attribution.attribution_maps("integrated_gradients", *given)
    expected = (images * way).sum(1).relu()
    assert (found - expected).abs().max() < 0.02 * expected.max()


def test_occlusion_is_what_the_logit_loses_under_each_window(network, own, images):
    expected, seen = torch.zeros(3, 16, 16), torch.zeros(16, 16)
    with torch.no_grad():
        before = network(images).gather(1, CLASSES[:, None])
        for y, x in itertools.product(range(0, 13, 2), repeat=2):
            hidden = images.clone()
            hidden[:, :, y : y + 4, x : x + 4] = 0
            lost = before - network(hidden).gather(1, CLASSES[:, None])
            expected[:, y : y + 4, x : x + 4] += lost[:, :, None]
            seen[y : y + 4, x : x + 4] += 1
    found = attribution.attribution_maps("occlusion", own, images, CLASSES)
    expected = 3 * (expected / seen).relu()  # alike in the three channels
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_guided_grad_cam_is_zero_where_grad_cam_is(network, own, images):
    features, _ = hooks.features_and_logits(network, network.layer4, images)
    cam = closed_form_cam("grad_cam", features, network.fc.weight, CLASSES)
    found = attribution.attribution_maps("guided_grad_cam", own, images, CLASSES)
    large = upsample(cam, 16)
    assert (large == 0).any()
    assert found[large == 0].eq(0).all()
    assert found.max() > 0


@pytest.mark.parametrize("method", attribution.ATTRIBUTIONS)
@pytest.mark.parametrize("inference", [False, True])
def test_maps_are_finite_and_the_network_stays(method, inference, network, images):
    network.layer2.train()
    before = [(module, module.training) for module in network.modules()]
    state = {name: value.clone() for name, value in network.state_dict().items()}
    with torch.inference_mode(inference):
        own = attribution.with_separate_relus(network)
        found = attribution.attribution_maps(method, own, images, CLASSES, steps=5)
    assert found.shape == (3, 16, 16)
    assert 0 <= found.min() < found.max() < torch.inf
    assert [(module, module.training) for module in network.modules()] == before
    torch.testing.assert_close(network.state_dict(), state, rtol=0, atol=0)
    for module in (*network.modules(), *own.modules()):
        assert not (module._forward_hooks or module._backward_hooks)
    network.eval()
