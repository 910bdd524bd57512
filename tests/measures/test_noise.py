"""Noise on the weights: against the normal distribution, the bounds' equations, and the network that is left as it came."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn

from helpers.measures import evidence, noise
from helpers.measures.layers import folded_copy
from helpers.measures.passes import Sample
from helpers.measures.registry import MEASURES

IMAGES = 2000


def linear(weight):
    network = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    network.weight = nn.Parameter(weight)
    return network.eval()


@pytest.fixture(scope="module")
def sample():
    """One image per weight, so that noise turns each image by itself; all of class 1."""
    return Sample(None, torch.eye(IMAGES), torch.ones(IMAGES, dtype=torch.int64))


@pytest.fixture
def classifier():
    """Logits 0 and 1 for every image."""
    return linear(torch.stack([torch.zeros(IMAGES), torch.ones(IMAGES)]))


def drop(network, sample, magnitude, *, draws=10, aware=False, batch_size=700, seed=0):
    return noise.noise_drop(network, sample, draws, batch_size, seed)(aware, magnitude)


@pytest.fixture
def whole(monkeypatch):
    """Let every drop be that of all images."""
    monkeypatch.setattr(noise, "TOLERANCE", math.inf)


@pytest.mark.parametrize("power", [1, 2, 0.5])
@pytest.mark.parametrize("wanted", [3e-6, 1e-4, 0.004, 0.3, 1.7])
def test_the_search_finds_where_the_drop_is_a_tenth_of_any_power_in_few_tries(wanted, power):
    tried = []

    def drop_at(magnitude):
        tried.append(magnitude)
        return min(1, noise.DROP * (magnitude / wanted) ** power)

    found = noise.search(drop_at, 2.0**-10, 15, "sigma")
    assert abs(drop_at(found) - noise.DROP) < noise.TOLERANCE or max(found / wanted, wanted / found) < noise.BRACKET
    assert len(tried) <= 15


def test_an_accuracy_that_never_or_always_drops_is_a_reason():
    with pytest.raises(ValueError, match=r"^accuracy never dropped by 0\.1 up to sigma = 2$"):
        noise.search(lambda magnitude: 0.085, 0.1, 15, "sigma")
    with pytest.raises(ValueError, match=r"^accuracy drops by more than 0\.1 at every sigma down to "):
        noise.search(lambda magnitude: 0.5, 0.1, 15, "sigma")
    with pytest.raises(ValueError, match=r"^the accuracy of 0 cannot drop by 0\.1$"):
        noise.accuracy_to_lose(nn.Identity(), Sample(None, torch.eye(3), torch.tensor([1, 2, 0])), 2)


def test_the_search_finds_the_sigma_of_the_normal_distribution(classifier, sample):
    drops = noise.noise_drop(classifier, sample, 10, 700, 0)
    # The drop is within 0.01 of a tenth, and its standard error is 0.0021.
    assert norm.sf(1 / (math.sqrt(2) * evidence.PROVIDERS["sigma"](drops, 15))) == pytest.approx(0.1, abs=0.01 + 4 * 0.0021)
    tripled = noise.noise_drop(linear(3 * classifier.weight.detach()), sample, 10, 700, 0)
    # The logits differ by 3 (1 + sigma' n1), apart from the noise of 1e-3 on the weights that are 0.
    assert norm.sf(1 / evidence.PROVIDERS["relative_sigma"](tripled, 15)) == pytest.approx(0.1, abs=0.01 + 4 * 0.0021)


def test_stopping_as_soon_as_the_drop_is_certain_to_lie_outside_changes_no_decision(classifier, sample, monkeypatch):
    seen = []
    hook = classifier.register_forward_pre_hook(lambda module, given: seen.append(len(given[0])))
    early, passes = [drop(classifier, sample, magnitude, draws=3) for magnitude in (0.1, 0.55, 1.5)], sum(seen)
    found = evidence.PROVIDERS["sigma"](noise.noise_drop(classifier, sample, 3, 100, 0), 15)
    monkeypatch.setattr(noise, "TOLERANCE", 10.0)
    seen.clear()
    late = [drop(classifier, sample, magnitude, draws=3) for magnitude in (0.1, 0.55, 1.5)]
    hook.remove()
    assert passes < sum(seen)
    assert early[1] == late[1]
    assert [value > 0.1 for value in early] == [value > 0.1 for value in late]
    drops = noise.noise_drop(classifier, sample, 3, 100, 0)
    monkeypatch.setattr(noise, "TOLERANCE", 0.01)
    assert abs(drops(False, found) - 0.1) < 0.01


def test_the_same_noise_serves_every_magnitude_and_each_draw_is_another(classifier, sample, whole):
    once, again = (noise.noise_drop(classifier, sample, 3, 700, 0) for _ in range(2))
    curve = [once(False, magnitude) for magnitude in np.linspace(0.01, 2, 25)]
    assert curve[::6] == [again(False, magnitude) for magnitude in np.linspace(0.01, 2, 25)[::6]]
    # An image that one sigma turns stays turned for every larger one, exactly, so the curve cannot fall.
    assert (np.diff(curve) >= 0).all()
    assert drop(classifier, sample, 1.0, draws=3, seed=1) != once(False, 1.0)
    assert len({drop(classifier, sample, 0.8, draws=2, batch_size=size) for size in (1000, IMAGES, 333)}) == 1
    one, two, three = (IMAGES * draws * drop(classifier, sample, 1.0, draws=draws) for draws in (1, 2, 3))
    by_draw = np.array([one, two - one, three - two])  # images that are lost in each
    np.testing.assert_allclose(by_draw, by_draw.round(), rtol=0, atol=1e-6)
    assert len(set(by_draw.round())) == 3


def test_logits_that_are_no_numbers_are_wrong():
    logits = torch.tensor([[torch.nan, torch.nan], [2.0, 1.0], [torch.inf, 0.0], [0.0, 1.0]])
    assert noise.right(logits, torch.zeros(4, dtype=torch.int64)) == 2


def normed_network():
    """A convolution with a bias and without, a depthwise one, batch norms away from their start, one of which no convolution feeds."""
    torch.manual_seed(0)
    layers = [nn.BatchNorm2d(3), nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3, groups=8)]
    network = nn.Sequential(*layers, nn.BatchNorm2d(8, affine=False), nn.ReLU(), nn.Flatten(), nn.Linear(128, 3))
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -1, 1)
            nn.init.uniform_(module.running_var, 0.2, 3)
            if module.affine:
                nn.init.uniform_(module.weight, -2, 2)
                nn.init.uniform_(module.bias, -1, 1)
    return network.eval()


def test_the_flat_network_is_the_same_function_of_other_parameters():
    network, images = normed_network(), torch.randn(6, 3, 8, 8)
    before = str(network.state_dict())
    flat = folded_copy(network, images[:1])
    torch.testing.assert_close(flat(images), network(images), rtol=1e-4, atol=1e-4)
    shapes = [tuple(parameter.shape) for parameter in flat.parameters()]
    assert shapes == [(3,), (3,), (8, 3, 3, 3), (8,), (8, 1, 3, 3), (8,), (3, 128), (3,)]
    expected = torch.nn.utils.fusion.fuse_conv_bn_eval(network[1], network[2])  # torch's own, as an independent way
    torch.testing.assert_close(flat[1].weight, expected.weight)
    torch.testing.assert_close(flat[1].bias, expected.bias)
    drops = noise.noise_drop(flat, Sample(None, images, network(images).argmax(1)), 2, 4, 0)
    drops(True, 1.5)
    torch.testing.assert_close(flat(images), network(images), rtol=1e-4, atol=1e-4)
    assert str(network.state_dict()) == before
    assert not {id(p) for p in flat.parameters()} & {id(p) for p in network.parameters()}


def test_folding_that_would_change_the_network_is_refused():
    class TwoReaders(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
            nn.init.constant_(self.norm.weight, 3.0)

        def forward(self, images):
            maps = self.conv(images)
            return (maps + self.norm(maps)).mean((2, 3))

    message = "^batch normalisation cannot be folded into the convolutions: the network would give other logits$"
    with pytest.raises(ValueError, match=message):
        folded_copy(TwoReaders().eval(), torch.randn(1, 3, 8, 8))


def value_of(name, **known):
    item = MEASURES[name]
    return item.function(**{need: known[need] for need in item.needs})


@pytest.mark.parametrize("m", [300, 5000])
def test_bounds_equal_their_equations(m):
    generator = np.random.default_rng(0)
    w, w0 = (np.concatenate([generator.normal(size=48), generator.normal(size=20)]) for _ in range(2))
    known = {"training_images": m, "sigma": 0.25, "relative_sigma": 0.25, "weight_changes": w - w0}
    for name, v in (("frobenius_norms", w), ("frobenius_distances", w - w0)):
        known[name] = np.array([np.linalg.norm(v[:48]), np.linalg.norm(v[48:])])
    for name, v in (("init", w - w0), ("orig", w)):
        raw = np.linalg.norm(v) ** 2 / (4 * 0.25**2) + math.log(m / 0.25) + 10
        assert value_of(f"pacbayes_{name}", **known) == pytest.approx(math.sqrt(raw / m), rel=1e-12)
        raw = math.log(m / 0.25) + 10
        for j in range(len(w)):
            above = 1e-3**2 + (0.25**2 + 1) * np.sum(v**2) / len(w)
            raw += math.log(above / (1e-3**2 + 0.25**2 * (w[j] - w0[j]) ** 2)) / 4
        assert value_of(f"pacbayes_mag_{name}", **known) == pytest.approx(math.sqrt(raw / m), rel=1e-12)
    assert value_of("pacbayes_flatness", **known) == value_of("pacbayes_mag_flatness", **known) == pytest.approx(4 / math.sqrt(m))
