import re

import pytest
import torch
import torchvision
from torch import nn

from helpers.cams import closed_form
from helpers.networks.hooks import features_and_logits
from tests.conftest import captum_grad_cam


class Pooled(nn.Module):
    """A convolution, a ReLU, global average pooling and a head."""

    def __init__(self, head=None, channels=6, classes=4):
        super().__init__()
        self.maps = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(inplace=True))
        self.head = head or nn.Linear(channels, classes)

    def forward(self, images):
        return self.head(self.maps(images).mean((2, 3)))


@pytest.fixture
def network():
    torch.manual_seed(0)
    return Pooled().double().eval()


@pytest.fixture
def images():
    return torch.randn(5, 3, 7, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def state_of(model):
    modes = [module.training for module in model.modules()]
    hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) + len(module._backward_hooks) for module in model.modules())
    parameters = [(parameter.requires_grad, parameter.grad) for parameter in model.parameters()]
    return modes, hooks, parameters, [buffer.clone().tolist() for buffer in model.buffers()]


def by_autograd(method, model, image, chosen):
    """The definitions, from the gradient of the logit with respect to the maps, for one image."""
    maps = model.maps(image[None])[0].detach().requires_grad_()
    logit = model.head(maps.mean((1, 2)))[chosen]
    g = torch.autograd.grad(logit, maps)[0]
    a = maps.detach()
    if method == "layer_cam":
        return (g.relu() * a).sum(0).relu()
    if method == "grad_cam_plus_plus":
        alpha = g**2 / (2 * g**2 + a.sum((1, 2), keepdim=True) * g**3)
        weights = (alpha * g.relu()).sum((1, 2))
    else:
        weights = g.mean((1, 2))
    return (weights[:, None, None] * a).sum(0).relu()


@pytest.mark.parametrize("method", ["grad_cam", "grad_cam_plus_plus", "layer_cam"])
@pytest.mark.parametrize("chosen", range(4))
def test_closed_form_equals_the_gradients_definition(network, images, method, chosen):
    classes = torch.full((len(images),), chosen)
    features, _ = features_and_logits(network, network.maps, images)
    # The closed form drops the gradient's factor 1 / (h w); the sum over pixels of Grad-CAM++ has cancelled it already.
    factor = {"grad_cam": 42, "grad_cam_plus_plus": 1, "layer_cam": 42}[method]
    expected = factor * torch.stack([by_autograd(method, network, image, chosen) for image in images])
    found = closed_form.closed_form_cam(method, features, network.head.weight, classes)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert found.amax((1, 2)).gt(0).any()


def test_cam_is_grad_cam(network, images):
    features, logits = features_and_logits(network, network.maps, images)
    found = [closed_form.closed_form_cam(method, features, network.head.weight, logits.argmax(1)) for method in ("cam", "grad_cam")]
    assert torch.equal(*found)


def test_weights_by_hand():
    weights, pooled = torch.tensor([[2.0, -1.0, 4.0]]), torch.tensor([[3.0, 2.0, 0.0]])
    assert closed_form.closed_form_weights("cam", weights, pooled).tolist() == [[2, -1, 4]]
    assert closed_form.closed_form_weights("layer_cam", weights, pooled).tolist() == [[2, 0, 4]]
    # 2 / (2 + 2 * 3), nothing where the weight is negative (its denominator would be 2 - 1 * 2 = 0), 4 / (2 + 0)
    assert closed_form.closed_form_weights("grad_cam_plus_plus", weights, pooled).tolist() == [[0.25, 0, 2]]


def test_map_by_hand():
    features = torch.tensor([[[[1.0, 0.0]], [[1.0, 3.0]]]])
    weight = torch.tensor([[9.0, 9.0], [2.0, -1.0]])
    assert closed_form.closed_form_cam("cam", features, weight, torch.tensor([1])).tolist() == [[[1.0, 0.0]]]


@pytest.mark.parametrize("method", closed_form.CLOSED_FORM_METHODS)
def test_the_order_of_channels_does_not_matter(network, images, method):
    features, logits = features_and_logits(network, network.maps, images)
    order = torch.tensor([3, 1, 5, 0, 4, 2])
    first = closed_form.closed_form_cam(method, features, network.head.weight, logits.argmax(1))
    second = closed_form.closed_form_cam(method, features[:, order], network.head.weight[:, order], logits.argmax(1))
    torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-13)


def test_unknown_method_is_refused():
    message = "CAM method 'score_cam' is unknown; choose one of cam, grad_cam, grad_cam_plus_plus, layer_cam"
    with pytest.raises(ValueError, match=re.escape(message)):
        closed_form.closed_form_weights("score_cam", torch.ones(1, 1), torch.ones(1, 1))


def test_normalise_by_hand_and_whatever_the_scale():
    maps = torch.tensor([[[1.0, 3.0], [2.0, 5.0]]], dtype=torch.float64)
    expected = torch.tensor([[[0.0, 0.5], [0.25, 1.0]]], dtype=torch.float64)
    torch.testing.assert_close(closed_form.normalise_maps(maps), expected, rtol=0, atol=3e-9)  # 1e-8 / 4 is added to 1
    torch.testing.assert_close(closed_form.normalise_maps(1000 * maps - 7), expected, rtol=0, atol=3e-11)
    assert closed_form.normalise_maps(maps).max() < 1


def test_normalise_takes_each_image_by_itself():
    maps = torch.rand(4, 3, 3, generator=torch.Generator().manual_seed(0))
    alone = torch.cat([closed_form.normalise_maps(one[None]) for one in maps])
    assert torch.equal(closed_form.normalise_maps(maps), alone)


@pytest.mark.parametrize("constant", [0.0, 5.0])
def test_a_constant_map_becomes_zeros(constant):
    assert closed_form.normalise_maps(torch.full((2, 3, 3), constant)).tolist() == torch.zeros(2, 3, 3).tolist()


def test_a_map_that_is_not_finite_stays_undefined():
    maps = torch.ones(2, 2, 2)
    maps[0, 0, 0], maps[1, 0, 0] = torch.nan, torch.inf
    assert closed_form.normalise_maps(maps).isnan().any((1, 2)).all()


def test_features_and_logits_are_those_of_the_forward_pass(network, images):
    features, logits = features_and_logits(network, network.maps, images)
    assert torch.equal(features, network.maps(images))
    assert torch.equal(logits, network(images))


def test_an_in_place_layer_behind_does_not_change_what_was_captured(network, images):
    features, _ = features_and_logits(network, network.maps[1], images)
    assert torch.equal(features, network.maps[1](network.maps[0](images)))
    assert features.min() < 0


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("path", ["features", "check"])
def test_the_network_is_left_as_it_came(network, images, training, path):
    network.train(training)
    network.maps[0].train(not training)
    network.head.weight.requires_grad_(False)
    network.head.bias.grad = torch.ones(4, dtype=torch.float64)
    before = state_of(network)
    if path == "features":
        features_and_logits(network, network.maps, images)
    else:
        closed_form.check_closed_form(network, network.maps, images)
    after = state_of(network)
    assert str(after) == str(before)
    assert images.grad is None
    assert not images.requires_grad


def test_after_an_error_in_the_forward_pass_nothing_remains(network, images):
    class Broken(nn.Module):
        def forward(self, features):
            raise RuntimeError("broken head")

    model = Pooled(head=Broken()).double().train()
    before = state_of(model)
    with pytest.raises(RuntimeError, match=r"^broken head$"):
        features_and_logits(model, model.maps, images)
    # Evaluation mode was on in between, so the statistics of the batch norm are untouched as well.
    assert str(state_of(model)) == str(before)


def test_a_layer_that_is_not_called_is_refused(network, images):
    with pytest.raises(ValueError, match=r"^the layer Conv2d is not called in the network's forward pass; choose one of its own modules$"):
        features_and_logits(network, nn.Conv2d(3, 3, 1), images)


def test_a_layer_without_maps_is_refused(network, images):
    with pytest.raises(ValueError, match=re.escape("the layer Linear puts out shape (5, 4); a CAM needs (B, C, h, w)")):
        features_and_logits(network, network.head, images)


def test_check_gives_the_linear_layer(network, images):
    assert closed_form.check_closed_form(network, network.maps, images) is network.head


def test_dropout_before_the_head_is_no_obstacle_in_evaluation_mode(images):
    model = Pooled(head=nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 4))).double().train()
    assert closed_form.check_closed_form(model, model.maps, images) is model.head[1]


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (nn.Sequential(nn.Unflatten(1, (6, 1, 1)), nn.Conv2d(6, 4, 1), nn.Flatten()), "the network has no nn.Linear"),
        (nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4)), "the last nn.Linear takes 9 features, but the layer puts out 6 maps"),
        (nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 4)), "the last nn.Linear of the layer's averaged maps does not give the logits"),
        (nn.Sequential(nn.Linear(6, 4), nn.Softmax(1)), "the last nn.Linear of the layer's averaged maps does not give the logits"),
    ],
)
def test_check_refuses_other_heads(images, head, message):
    model = Pooled(head=head).double()
    with pytest.raises(ValueError, match=f"^{re.escape(message)}; the closed form does not hold, take maps by the gradient$"):
        closed_form.check_closed_form(model, model.maps, images)


def test_check_refuses_maximum_pooling_and_an_earlier_layer(network, images):
    advice = "; the closed form does not hold, take maps by the gradient"
    with pytest.raises(ValueError, match=f"does not give the logits{advice}$"):
        closed_form.check_closed_form(network, network.maps[1], images)  # before the ReLU
    network.forward = lambda given: network.head(network.maps(given).amax((2, 3)))
    with pytest.raises(ValueError, match=f"does not give the logits{advice}$"):
        closed_form.check_closed_form(network, network.maps, images)


@pytest.fixture(scope="module")
def trained():
    """A ResNet-18 after a few steps on random data, so that its batch norms and its head are no longer at their start."""
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=5)
    images, labels = torch.randn(8, 3, 64, 64), torch.arange(8) % 5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model.eval(), images


def test_closed_form_equals_captum_on_a_resnet(trained):
    model, images = trained
    with torch.inference_mode():
        features, logits = features_and_logits(model, model.layer4, images)
        classifier = closed_form.check_closed_form(model, model.layer4, images)
        closed = closed_form.normalise_maps(closed_form.closed_form_cam("grad_cam", features, classifier.weight, logits.argmax(1)))
    captum = closed_form.normalise_maps(captum_grad_cam(model, model.layer4, images, logits.argmax(1)))
    assert closed.shape == (8, 2, 2)
    # At least one map has a structure, or there would be nothing to compare. Float32 rounds at 1e-7 of a sum of 512 terms.
    assert closed.amax((1, 2)).gt(0.9).any()
    torch.testing.assert_close(captum, closed, rtol=0, atol=1e-5)
