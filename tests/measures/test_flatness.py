"""Noise on the weights and their worst change: against the normal distribution, exact on a linear classifier, and by the equations."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn

from helpers.measures import flatness, norms, passes
from helpers.measures.evidence import Evidence, MeasureSettings
from helpers.measures.passes import Sample

IMAGES = 2000


def linear(weight):
    network = nn.Linear(*weight.T.shape, bias=False, dtype=weight.dtype)
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


def drop(network, sample, magnitude, *, draws=10, aware=False, seed=0):
    return flatness.noise_drop(network, sample, draws, seed)(aware, magnitude)


@pytest.mark.parametrize("power", [1, 2, 0.5])
@pytest.mark.parametrize("wanted", [3e-6, 1e-4, 0.004, 0.3, 1.7])
def test_the_search_finds_a_drop_of_a_tenth_of_any_power_in_few_tries(wanted, power):
    tried = []

    def drop_at(magnitude):
        tried.append(magnitude)
        return min(1, flatness.TARGET_DROP * (magnitude / wanted) ** power)

    found = flatness.search(drop_at, 2.0**-10, 15)
    miss = abs(drop_at(found) - flatness.TARGET_DROP)
    ratio = max(found / wanted, wanted / found)
    assert miss < flatness.TOLERANCE or ratio < flatness.BRACKET
    assert len(tried) <= 15


def test_an_accuracy_that_never_or_always_drops_is_a_reason():
    for drop_of_all in (0.085, 0.5):
        with pytest.raises(ValueError, match=r"lowers accuracy by 0\.1$"):
            flatness.search(lambda magnitude, of=drop_of_all: of, 0.1, 15)


def test_the_search_finds_the_sigma_of_the_normal_distribution(classifier, sample):
    drops = flatness.noise_drop(classifier, sample, 10, 0)
    # The drop is within 0.01 of a tenth, and its standard error is 0.0021.
    tenth = pytest.approx(0.1, abs=0.01 + 4 * 0.0021)
    assert norm.sf(1 / (math.sqrt(2) * flatness.sigma(drops, 15))) == tenth
    tripled = flatness.noise_drop(linear(3 * classifier.weight.detach()), sample, 10, 0)
    # The logits differ by 3 (1 + sigma' n1), apart from the noise of 1e-3 on the weights that are 0.
    assert norm.sf(1 / flatness.relative_sigma(tripled, 15)) == tenth


def test_each_draw_is_another_and_serves_every_magnitude(classifier, sample):
    once, again = (flatness.noise_drop(classifier, sample, 3, 0) for _ in range(2))
    magnitudes = np.linspace(0.01, 2, 25)
    curve = [once(False, magnitude) for magnitude in magnitudes]
    assert curve[::6] == [again(False, magnitude) for magnitude in magnitudes[::6]]
    # An image that one sigma turns stays turned for every larger one, exactly, so the curve cannot fall.
    assert (np.diff(curve) >= 0).all()
    assert drop(classifier, sample, 1.0, draws=3, seed=1) != once(False, 1.0)
    one, two, three = (n * drop(classifier, sample, 1.0, draws=n) for n in (1, 2, 3))
    assert len({round(lost * IMAGES) for lost in (one, two - one, three - two)}) == 3


def test_a_weight_of_zero_has_a_thousandth_as_noise_in_units_of_each_weight():
    network = linear(torch.zeros(2, IMAGES))
    sample = Sample(None, torch.eye(IMAGES), torch.zeros(IMAGES, dtype=torch.int64))
    of_a_thousandth = drop(network, sample, 1e-3)
    assert drop(network, sample, 5.0, aware=True) == of_a_thousandth > 0.1


def test_logits_that_are_no_numbers_are_wrong():
    nan, inf = torch.nan, torch.inf
    logits = torch.tensor([[nan, nan], [2.0, 1.0], [inf, 0.0], [0.0, 1.0]])
    right = passes.is_right(logits, torch.zeros(4, dtype=torch.int64))
    assert right.tolist() == [False, True, True, False]


@pytest.mark.parametrize("aware", [False, True])
def test_the_worst_of_a_linear_classifier_and_its_radius_are_exact(aware, monkeypatch):
    # Of points with positive coordinates, all of class 1, one corner of the box of weights is the worst for all.
    x, w = 0.1 + np.random.default_rng(0).random((400, 2)), [[-1.0, 0.3], [2.0, 0.5]]
    sample = Sample(None, torch.from_numpy(x), torch.ones(400, dtype=torch.int64))
    widths = np.abs(w) + 1 if aware else np.ones_like(w)
    fall = x @ widths.sum(0)  # at most, in a box of radius 1
    margin = x @ np.diff(w, axis=0)[0]
    drops = flatness.ascent_drop(linear(torch.tensor(w).double()), sample, 20, 0)
    found = flatness.alpha(drops, 15)
    if aware:
        found = flatness.relative_alpha(drops, 15, found)
    assert np.quantile(margin / fall, 0.09) <= found <= np.quantile(margin / fall, 0.11)
    monkeypatch.setattr(flatness, "TOLERANCE", math.inf)
    radii = np.quantile(margin / fall, [0.001, 0.3, 0.6, 0.95])
    expected = [np.mean(margin <= radius * fall) for radius in radii]
    assert [drops(aware, radius) for radius in radii] == pytest.approx(expected)


def test_the_slope_is_the_gradient_of_the_whole_sample():
    torch.manual_seed(0)
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)
    network = nn.Sequential(nn.Flatten(), *layers).double().eval()
    network.unused = nn.Parameter(torch.ones(3, dtype=torch.float64))
    network[1].weight.requires_grad_(False)
    network[4].bias.grad = torch.ones(3, dtype=torch.float64)
    images = torch.from_numpy(np.random.default_rng(1).normal(size=(60, 2, 3)))
    labels = network(images).argmax(1)
    gradient, accuracy = flatness.slope(network, Sample(None, images, labels))
    loss = nn.functional.cross_entropy(network(images), labels)
    parameters = list(network.parameters())
    expected = torch.autograd.grad(loss, parameters, materialize_grads=True)
    assert accuracy == 1
    assert not expected[0].any()  # of the parameter that is not used
    flat = torch.cat([value.flatten() for value in expected])
    torch.testing.assert_close(gradient, flat, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("m", [300, 5000])
def test_measures_equal_their_equations(m):
    w, w0 = np.random.default_rng(0).normal(size=(2, 68))
    known = {"training_images": m, "sigma": 0.25, "relative_sigma": 0.25}
    known |= {"alpha": 0.02, "relative_alpha": 0.02}
    for name, v in (("weights", w), ("changes", w - w0)):
        parts = torch.from_numpy(v).split([48, 20])
        known[name] = [norms.Layer(part.view(1, -1, 1, 1)) for part in parts]
    known = Evidence(known, MeasureSettings())
    end = math.log(m / 0.25) + 10
    for name, v in (("init", w - w0), ("orig", w)):
        square = np.linalg.norm(v) ** 2
        above = 1e-3**2 + (0.25**2 + 1) * square / 68
        ratios = above / (1e-3**2 + 0.25**2 * (w - w0) ** 2)
        raw = {
            f"pacbayes_{name}": square / (4 * 0.25**2) + end,
            f"sharpness_{name}": square * math.log(2 * 68) / (4 * 0.02**2) + end,
            f"pacbayes_mag_{name}": np.log(ratios).sum() / 4 + end,
        }
        for measure, value in raw.items():
            assert known[measure] == pytest.approx(math.sqrt(value / m), rel=1e-12)
    for kind, change in (("pacbayes", 0.25), ("sharpness", 0.02)):
        for name in ("flatness", "mag_flatness"):
            assert known[f"{kind}_{name}"] == pytest.approx(1 / (change * math.sqrt(m)))
