"""Class activation maps: against the papers' sums by autograd, Captum, torchcam's rule, and with the network left as it came."""

import copy
import itertools

import numpy as np
import pytest
import torch
from torch import nn

from helpers.cams import maps
from helpers.cams.localize import upsample
from helpers.networks import resnet
from helpers.networks.hooks import features_and_logits
from tests.conftest import captum_grad_cam

BY_GRADIENT = ["grad_cam", "grad_cam_plus_plus", "layer_cam"]


class Toy(nn.Module):
    """Shows the image itself as its maps, and weighs every pixel of every channel: the gradient of logit c is ``weight[c]``."""

    def __init__(self, weight, power=1):
        super().__init__()
        self.maps, self.aside, self.power = nn.Identity(), nn.Identity(), power
        self.weight = nn.Parameter(torch.as_tensor(weight, dtype=torch.float64))

    def forward(self, images):
        self.aside(images)
        powers = self.maps(images) ** self.power
        return torch.einsum("kchw,bchw->bk", self.weight, powers) / self.power


@pytest.fixture(scope="module")
def trained():
    """A narrow ResNet-18 after a few steps, so that batch norms and head have left their start, in double precision."""
    model = resnet.build("resnet18", 5, stem="small", width=0.125, seed=0)
    images = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), torch.arange(6) % 5).backward()
        optimizer.step()
    return model.double().eval(), images.double(), torch.tensor([0, 1, 2, 3, 4, 0])


def state_of(model):
    modules = [
        (module.training, [*module._forward_hooks], [*module._backward_hooks])
        for module in model.modules()
    ]
    parameters = [(id(each), each.requires_grad) for each in model.parameters()]
    has_gradient = [each.grad is not None for each in model.parameters()]
    values = {name: value.tolist() for name, value in model.state_dict().items()}
    return modules, parameters, has_gradient, values


def activations_and_gradient(model, layer, image, chosen):
    """One image, by a plain hook and the graph of the whole network."""
    outputs = []
    hook = layer.register_forward_hook(
        lambda module, given, output: outputs.append(output)
    )
    logit = model(image[None])[0, chosen]
    hook.remove()
    return outputs[-1][0].detach(), torch.autograd.grad(logit, outputs[-1])[0][0]


def by_definition(method, model, layer, images, classes):
    """The sums of the papers, image by image and channel by channel; Grad-CAM's by Captum."""
    if method == "grad_cam":
        return captum_grad_cam(model, layer, images, classes)
    found = []
    for image, chosen in zip(images, classes, strict=True):
        a, g = activations_and_gradient(model, layer, image, chosen)
        heat = torch.zeros(a.shape[1:], dtype=a.dtype)
        for a_k, g_k in zip(a, g, strict=True):
            weight = g_k.clamp(min=0)
            if method == "grad_cam_plus_plus":
                g_k = weight[weight > 0]
                weight = (g_k**3 / (2 * g_k**2 + a_k.sum() * g_k**3)).sum()
            heat += weight * a_k
        found.append(heat.clamp(min=0))
    return torch.stack(found)


STAGES = [*itertools.product(BY_GRADIENT, ["layer1", "layer3", "layer4"])]


@pytest.mark.parametrize(("method", "stage"), [*STAGES, ("grad_cam", "layer2.0.bn1")])
def test_maps_equal_the_definitions(trained, method, stage):
    model, images, classes = trained
    layer = model.get_submodule(stage)
    expected = by_definition(method, model, layer, images, classes)
    assert expected.amax() > 0
    found = maps.layer_maps(method, model, layer, images, classes)
    error = 1e-8 * float(expected.max())
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=error)


# The closed form leaves out the gradient's factor 1 / (h w), which Grad-CAM++ has not.
@pytest.mark.parametrize(
    ("method", "compat", "factor"),
    [
        ("grad_cam", False, 16),
        ("layer_cam", False, 16),
        ("grad_cam_plus_plus", False, 1),
        ("grad_cam_plus_plus", True, 1),
    ],
)
def test_the_closed_form_is_that_of_the_gradient(trained, method, compat, factor):
    model, images, classes = trained
    features, logits = features_and_logits(model, model.layer4, images)
    weight = maps.closed_form_classifier(model, features, logits).weight
    options = maps.MapOptions(torchcam_compat=compat)
    given = method, model, model.layer4, images, classes, options
    expected = factor * maps.layer_maps(*given)
    found = maps.closed_form_cam(method, features, weight, classes, compat)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


def test_normalise_by_hand_whatever_the_scale_and_each_image_by_itself():
    raw = torch.tensor([[[1.0, 3.0], [2.0, 5.0]], [[0, 0], [0, 1]]]).double()
    expected = torch.tensor([[[0.0, 0.5], [0.25, 1.0]], [[0, 0], [0, 1]]]).double()
    # 1e-8 is added to the range.
    for values, error in ((raw, 1.1e-8), (1000 * raw - 7, 3e-11)):
        found = maps.normalise_maps(values)
        torch.testing.assert_close(found, expected, rtol=0, atol=error)
    assert maps.normalise_maps(raw).max() < 1
    assert maps.normalise_maps(torch.full((2, 3, 3), 5.0)).eq(0).all()
    raw[0, 0, 0], raw[1, 0, 0] = torch.nan, torch.inf
    assert maps.normalise_maps(raw).isnan().any((1, 2)).all()


@pytest.mark.parametrize(("bits", "top"), [(8, 255), (16, 65535)])
def test_integers_keep_a_map_to_half_a_step_with_its_maximum(bits, top):
    random = torch.Generator().manual_seed(0)
    raw = maps.normalise_maps(torch.rand(50, 7, 8, generator=random))
    raw[3], raw[4, 2, 2], raw[5, 0, 0] = 0, torch.nan, torch.inf
    kept = maps.to_integers(raw, bits)
    assert kept.dtype == {8: np.uint8, 16: np.uint16}[bits]
    back = maps.from_integers(kept)
    defined = raw.isfinite().all((1, 2))
    below = defined[:, None, None] & (raw < 1 - 1 / top)
    assert (back - raw)[below].abs().max() <= 0.5 / top + 1e-6
    assert torch.equal(back.isnan().all((1, 2)), ~defined)
    assert kept[:4].min((1, 2)).tolist() == [0] * 4
    assert kept[:4].max((1, 2)).tolist() == [top] * 3 + [0]
    # The places of the maximum are those before rounding.
    near = 1 - 0.1 / top
    raw = torch.tensor([[[near, 1.0], [0.0, near]], [[1.0, 1.0], [near, 0.0]]])
    first, second = maps.to_integers(raw, bits).tolist()
    assert first == [[top - 1, top], [0, top - 1]]
    assert second == [[top, top], [top - 1, 0]]


@pytest.mark.parametrize(
    "head",
    [
        nn.Flatten(),
        nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 4)),
        nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 4)),
        nn.Sequential(nn.Linear(6, 4), nn.Softmax(1)),
    ],
)
def test_where_the_closed_form_does_not_hold_it_is_refused(head):
    features = torch.randn(5, 6, 7, 6, generator=torch.Generator().manual_seed(1))
    with pytest.raises(ValueError, match=r"averaged maps does not give the logits"):
        maps.closed_form_classifier(head, features, head(features.mean((2, 3))))


def test_smooth_converges_to_the_expected_powers_of_the_gradient():
    # z = sum w x^2 / 2, so g = w (x + e): E g^2 = w^2 (x^2 + s^2), E g^3 = w^3 (x^3 + 3 x s^2).
    x, w, s = torch.tensor([[[1.0, 2.0]], [[1.0, 0.5]], [[0.5, 0.5]]]).double()
    model, chosen = Toy(w[None, None], power=2), torch.tensor([0])
    squares, cubes = w**2 * (x**2 + s**2), w**3 * (x**3 + 3 * x * s**2)
    expected = (squares / (2 * squares + x.sum() * cubes) * (w * x)).sum() * x
    errors = []
    for n in (1, 2, 3, 4, 2000):
        options = maps.MapOptions(noise_std=0.5, noise_samples=n, seed=n)
        given = model, model.maps, x[None, None], chosen, options
        (heat,) = maps.layer_maps("smooth_grad_cam_plus_plus", *given)
        errors.append(float((heat - expected).abs().max() / expected.max()))
    # The relative standard error of a mean of cubes is about 1.5 / sqrt(2000) = 3 %, and half of it reaches alpha.
    assert errors[-1] < 0.03
    assert max(errors[:-1]) > 0.06


def torchcam_rule(method, model, layer, images, classes, seed):
    """What torchcam computes, image by image, from the gradients of its noisy passes."""
    torch.manual_seed(seed)
    noise = [torch.distributions.Normal(0, 0.3).sample(images.shape) for _ in range(4)]
    heat = []
    for number, (image, chosen) in enumerate(zip(images, classes, strict=True)):
        a, g = activations_and_gradient(model, layer, image, chosen)
        alpha = g**2
        if method == "smooth_grad_cam_plus_plus":
            passes = [
                activations_and_gradient(model, layer, image + sample[number], chosen)
                for sample in noise
            ]
            squares = sum(slope**2 for _, slope in passes) / 4
            cubes = sum(slope**3 for _, slope in passes) / 4
            total = (cubes * a).sum((1, 2), keepdim=True)
            alpha = squares / (2 * squares + total + 1e-8)
            a, g = passes[-1]
        heat.append(((alpha * g.relu()).sum((1, 2), keepdim=True) * a).sum(0).relu())
    return torch.stack(heat)


@pytest.mark.parametrize("method", ["grad_cam_plus_plus", "smooth_grad_cam_plus_plus"])
def test_the_compatible_maps_follow_torchcams_rule(trained, method):
    model, images, classes = trained
    with torch.random.fork_rng():
        expected = torchcam_rule(method, model, model.layer3, images, classes, seed=7)
    options = maps.MapOptions(torchcam_compat=True, seed=7)
    found = maps.layer_maps(method, model, model.layer3, images, classes, options)
    error = 1e-12 * float(expected.max())
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=error)
    options = maps.MapOptions(seed=7)
    correct = maps.layer_maps(method, model, model.layer3, images, classes, options)
    difference = maps.normalise_maps(found) - maps.normalise_maps(correct)
    assert difference.abs().max() > 0.01


def test_eigen_cam_is_the_first_singular_vector_with_its_sign(trained):
    model, images, classes = trained
    found = maps.layer_maps("eigen_cam", model, model.layer3, images, classes)
    features, _ = features_and_logits(model, model.layer3, images)
    for heat, a in zip(found, features.detach(), strict=True):
        pixels = a.flatten(1).T.numpy()
        # Of maps that are not negative the first vector has no two signs.
        expected = np.abs(pixels @ np.linalg.svd(pixels)[2][0])
        np.testing.assert_allclose(heat.flatten(), expected, atol=1e-10)
    toy = Toy(torch.ones(1, 2, 1, 3))
    place = torch.tensor([3.0, 0.0, -4.0], dtype=torch.float64)
    factors = torch.tensor([[1, 2], [-1, 0.5], [torch.nan, 1]], dtype=torch.float64)
    image = (factors[:, :, None] * place).unsqueeze(2)
    classes = torch.zeros(3, dtype=torch.int64)
    found = maps.layer_maps("eigen_cam", toy, toy.maps, image, classes)
    # Rank one: the map is place times the length of (1, 2), or of (-1, 1/2) with its sign turned. An undefined image stays apart.
    assert found[0, 0].tolist() == pytest.approx([3 * 5**0.5, 0, 0])
    assert found[1, 0].tolist() == pytest.approx([0, 0, 4 * 1.25**0.5])
    assert found[2].isnan().all()


@pytest.mark.parametrize("channels", [1, 3, 999])
@torch.no_grad()
def test_score_cam_asks_the_strongest_channels(trained, channels):
    model, images, classes = trained
    options = maps.MapOptions(channels=channels)
    found = maps.layer_maps("score_cam", model, model.layer3, images, classes, options)
    for number, image in enumerate(images[:2]):
        features, _ = features_and_logits(model, model.layer3, image[None])
        in_order = (features[0] ** 2).sum((1, 2)).argsort(descending=True)
        strongest = features[0][in_order[:channels]]
        scores = []
        for channel in strongest:
            mask = upsample(channel[None], 32)[0]
            mask = (mask - mask.min()) / (mask.max() - mask.min() + 1e-8)
            scores.append(model((image * mask)[None])[0, classes[number]])
        weights = torch.stack(scores).softmax(0)[:, None, None]
        expected = (weights * strongest).sum(0).relu()
        torch.testing.assert_close(found[number], expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("method", maps.GRADIENT_METHODS)
@pytest.mark.parametrize("training", [True, False])
def test_the_network_is_left_as_it_came_in_any_mode(trained, method, training):
    original, images, classes = trained
    expected = maps.layer_maps(method, original, original.layer3, images, classes)
    model = copy.deepcopy(original).train(training)
    model.bn1.train(not training)
    model.requires_grad_(False)
    model.fc.weight.requires_grad_(True).grad = torch.ones_like(model.fc.weight)
    before = state_of(model)
    with torch.inference_mode():
        given = model, model.layer3, images.clone(), classes.clone()
        found = maps.layer_maps(method, *given)
    assert state_of(model) == before
    assert model.fc.weight.grad.eq(1).all()
    assert not found.requires_grad
    assert found.min() >= 0
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("method", BY_GRADIENT)
def test_nothing_for_the_class_gives_zeros_and_nan_stays(method):
    model = Toy(-torch.ones(1, 2, 2, 2))
    images = torch.ones(2, 2, 2, 2, dtype=torch.float64)
    images[1, 0, 0, 0] = torch.nan
    classes = torch.zeros(2, dtype=torch.int64)
    found = maps.layer_maps(method, model, model.maps, images, classes)
    assert found[0].eq(0).all()
    assert found[1].isnan().any()


def test_a_layer_that_the_logits_do_not_depend_on_is_refused():
    model = Toy(torch.ones(1, 2, 2, 2))
    before = state_of(model)
    images = torch.ones(1, 2, 2, 2, dtype=torch.float64)
    classes = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="do not depend on the last output of the lay"):
        maps.layer_maps("grad_cam", model, model.aside, images, classes)
    assert state_of(model) == before
