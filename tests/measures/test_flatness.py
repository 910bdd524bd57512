import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.measures.flatness import NoiseSample, Search
from scipy.stats import norm
from torch import nn

from helpers.measures import evidence, flatness, pacbayes
from helpers.measures.registry import MEASURES, of_families

PACBAYES = ["pacbayes_init", "pacbayes_orig", "pacbayes_flatness", "pacbayes_mag_init", "pacbayes_mag_orig", "pacbayes_mag_flatness"]


IMAGES = 2000


FOUND = Search(0.25, 3, False, False, True)


def linear(weight):
    network = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    network.weight = nn.Parameter(weight)
    return network.eval()


@pytest.fixture(scope="module")
def sample():
    """One image per weight, so that noise turns each image by itself; all of class 1."""
    return NoiseSample(torch.eye(IMAGES), torch.ones(IMAGES, dtype=torch.int64))


@pytest.fixture
def classifier():
    """Logits 0 and 1 for every image."""
    return linear(torch.stack([torch.zeros(IMAGES), torch.ones(IMAGES)]))


def scaled(classifier, factor):
    return linear(classifier.weight.detach() * factor)


def noisy(network, sample, *, draws=10, magnitude_aware=False, batch_size=700, seed=0):
    return flatness.noisy(network, sample, magnitude_aware, draws, batch_size, seed)


def state_of(network):
    return [(p.detach().clone(), p.requires_grad, p.grad) for p in network.parameters()], [m.training for m in network.modules()]


def test_the_search_halves_its_interval_by_hand():
    tried = []

    def accuracy_at(magnitude):
        tried.append(magnitude)
        return 0.95 - magnitude * 0.4  # the deviation is 0.1 at 0.25, and within 0.01 of it from 0.225 to 0.275

    assert flatness.search_magnitude(accuracy_at, 0.95) == Search(0.25, 3, False, False, True)
    assert tried == [1, 0.5, 0.25]


@pytest.mark.parametrize("clean", [0.3, 0.8])
def test_a_rise_of_the_accuracy_counts_as_a_fall(clean):
    found = flatness.search_magnitude(lambda magnitude: clean + math.copysign(magnitude / 10, 0.5 - clean), clean, tolerance=1e-9, high=3)
    assert found.magnitude == pytest.approx(1, rel=1e-4)
    assert not found.never_dropped


def test_the_search_ends_at_a_jump_without_convergence():
    found = flatness.search_magnitude(lambda magnitude: float(magnitude < 0.7), 1.0)
    assert found.magnitude == pytest.approx(0.7, abs=2 / 2**15)
    assert found[1:] == (15, False, False, False)


def test_an_accuracy_that_never_drops_is_flagged_and_refused():
    found = flatness.search_magnitude(lambda magnitude: 0.915, 1.0)  # a drop of 0.085 is not within 0.01 of 0.1
    assert found == Search(2 - 2**-14, 15, True, False, False)
    with pytest.raises(ValueError, match=r"^accuracy never dropped by 0\.1 up to sigma = 2$"):
        flatness.found_magnitude(found, "sigma")


def test_an_accuracy_that_always_drops_is_flagged_and_refused():
    found = flatness.search_magnitude(lambda magnitude: 0.5, 1.0)
    assert found == Search(2**-14, 15, False, True, False)
    with pytest.raises(ValueError, match=r"^accuracy changes by more than 0\.1 at every sigma down to 6e-05$"):
        flatness.found_magnitude(found, "sigma")


@pytest.mark.parametrize("magnitude", [0.3, 0.55, 1.4])
def test_noisy_accuracy_converges_to_the_normal_distribution(classifier, sample, magnitude):
    # The logits differ by 1 + sigma (n1 - n0); 20,000 independent images give a standard error of at most 0.0035.
    expected = norm.cdf(1 / (math.sqrt(2) * magnitude))
    error = math.sqrt(expected * (1 - expected) / (10 * IMAGES))
    assert noisy(classifier, sample)(magnitude) == pytest.approx(expected, abs=4 * error)


def test_the_search_finds_the_sigma_of_the_normal_distribution(classifier, sample):
    found = flatness.search_magnitude(noisy(classifier, sample), 1.0, tolerance=5e-4)
    # d accuracy / d sigma is 0.32 there, and the standard error of the accuracy 0.0021.
    assert found.converged
    assert found.magnitude == pytest.approx(1 / (math.sqrt(2) * norm.ppf(0.9)), abs=4 * 0.0021 / 0.32)


def test_magnitude_aware_noise_is_relative_to_each_weight(classifier, sample):
    # The logits differ by 3 (1 + sigma' n1), apart from the noise of 1e-3 on the weights that are 0.
    found = flatness.search_magnitude(noisy(scaled(classifier, 3), sample, magnitude_aware=True), 1.0, tolerance=5e-4)
    assert found.magnitude == pytest.approx(1 / norm.ppf(0.9), abs=4 * 0.0021 / 0.22)


def test_only_plain_noise_depends_on_the_scale_of_the_weights(classifier, sample):
    for factor in (10, 1000):
        larger = scaled(classifier, factor)
        aware = [noisy(network, sample, magnitude_aware=True)(0.8) for network in (classifier, larger)]
        assert aware[1] == pytest.approx(aware[0], abs=5e-4)  # the noise of 1e-3 turns hardly an image
        assert noisy(larger, sample)(0.5 * factor) == pytest.approx(noisy(classifier, sample)(0.5), abs=5e-5)
        assert noisy(larger, sample)(0.5) == 1


def test_standard_deviation_by_hand():
    weight = torch.tensor([0.0, -3.0, 0.002], dtype=torch.float64)
    found = flatness.standard_deviation(weight, 0.5, True)
    expected = [1e-3, math.hypot(1.5, 1e-3), math.sqrt(2) * 1e-3]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
    assert flatness.standard_deviation(weight, 0.5, False) == 0.5


def test_the_same_noise_serves_every_magnitude(classifier, sample):
    once, again = (noisy(classifier, sample, draws=3) for _ in range(2))
    curve = [once(magnitude) for magnitude in np.linspace(0.01, 2, 25)]
    assert curve[::6] == [again(magnitude) for magnitude in np.linspace(0.01, 2, 25)[::6]]
    # An image that one sigma turns stays turned for every larger one, exactly, so the curve cannot rise.
    assert (np.diff(curve) <= 0).all()
    assert noisy(classifier, sample, draws=3, seed=1)(1.0) != once(1.0)


def test_each_draw_is_another_and_more_of_them_begin_alike(classifier, sample):
    one, two, three = (draws * noisy(classifier, sample, draws=draws)(1.0) for draws in (1, 2, 3))
    by_draw = IMAGES * np.array([one, two - one, three - two])  # images that are right in each
    np.testing.assert_allclose(by_draw, by_draw.round(), rtol=0, atol=1e-8)
    assert len(set(by_draw.round())) == 3


def test_the_batch_size_does_not_matter(classifier, sample):
    assert len({noisy(classifier, sample, draws=2, batch_size=size)(0.8) for size in (1000, IMAGES, 5000, 333)}) == 1


def test_logits_that_are_no_numbers_are_wrong():
    logits = torch.tensor([[torch.nan, torch.nan], [2.0, 1.0], [torch.inf, 0.0], [0.0, 1.0]])
    assert flatness.right(logits, torch.zeros(4, dtype=torch.int64)) == 2


@pytest.fixture
def network():
    torch.manual_seed(0)
    modules = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    modules[0].weight.requires_grad_(False)
    modules[4].bias.grad = torch.ones(3)
    return modules.eval()


@pytest.mark.parametrize("fault", ["none", "inside", "too few", "wrong shape"])
def test_parameters_come_back_bit_by_bit(network, fault):
    before, count = state_of(network), len(list(network.parameters()))
    additions = [1e3 * torch.randn_like(parameter) for parameter in network.parameters()]  # would leave rounding if subtracted
    if fault in ("too few", "wrong shape"):
        additions = additions[:-1] + [torch.ones(99)] * (fault == "wrong shape")
    try:
        with flatness.perturbed(network, additions):
            changed = [not torch.equal(p, old) for p, (old, *_) in zip(network.parameters(), before[0], strict=True)]
            assert changed == [True] * count  # biases and the batch norm's too
            assert fault == "none", "fault inside"
    except (AssertionError, ValueError, RuntimeError) as raised:
        expected = {"inside": "fault inside", "too few": "shorter", "wrong shape": "must match"}
        assert expected[fault] in str(raised)
    assert str(state_of(network)) == str(before)
    assert all(torch.equal(p, old) for p, (old, *_) in zip(network.parameters(), before[0], strict=True))


def test_noisy_accuracy_leaves_the_network_as_it_came(network):
    before = state_of(network)
    noisy(network, NoiseSample(torch.randn(5, 3, 4, 4), torch.tensor([0, 1, 2, 0, 1])), magnitude_aware=True)(1.5)
    after = state_of(network)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(before[0], after[0], strict=True))
    assert str(after) == str(before)


def test_samples_are_the_first_images_and_nested():
    images = SimpleNamespace(images=torch.arange(20, dtype=torch.uint8).reshape(20, 1, 1, 1).expand(20, 3, 2, 2), labels=torch.arange(20))
    images = type("Images", (SimpleNamespace,), {"__len__": lambda self: 20})(**vars(images))
    few, more = (flatness.first_images(images, torch.Tensor.float, "cpu", count) for count in (8, 99))
    assert (few.labels.tolist(), more.labels.tolist()) == (list(range(8)), list(range(20)))
    assert torch.equal(few.images[:, 0, 0, 0], few.labels.float())


def test_no_images_are_refused():
    with pytest.raises(ValueError, match=r"^there are no training images to judge a noisy network by$"):
        flatness.first_images([], torch.Tensor.float, "cpu", 8)


@pytest.fixture
def weights():
    """Trained and initial weights of two layers, as records and as numpy."""
    generator = np.random.default_rng(0)
    arrays = [[generator.normal(size=shape) for shape in ((4, 3, 2, 2), (5, 4))] for _ in range(2)]
    records = [[SimpleNamespace(weight=torch.tensor(array), bias=torch.ones(99)) for array in half] for half in arrays]
    return records, [np.concatenate([array.ravel() for array in half]) for half in arrays]


@pytest.mark.parametrize("m", [1, 5000])
def test_plain_bounds_equal_their_equations(weights, m):
    (layers, start), (w, w0) = weights
    sigma = 0.25
    raw = [np.linalg.norm(v) ** 2 / (4 * sigma**2) + math.log(m / sigma) + 10 for v in (w - w0, w)]
    found = [
        pacbayes.pacbayes_init(layers, start, FOUND, m),
        pacbayes.pacbayes_orig(layers, FOUND, m),
        pacbayes.pacbayes_flatness(FOUND, m),
    ]
    assert found == pytest.approx(np.sqrt([*raw, 1 / sigma**2]) / np.sqrt(m), rel=1e-12)


def test_magnitude_aware_bounds_equal_their_equations(weights):
    (layers, start), (w, w0) = weights
    epsilon, sigma, m = 1e-3, 0.25, 300
    found = [pacbayes.pacbayes_mag_init(layers, start, FOUND, m), pacbayes.pacbayes_mag_orig(layers, start, FOUND, m)]
    for value, v in zip(found, (w - w0, w), strict=True):
        raw = math.log(m / sigma) + 10
        for j in range(len(w)):
            above = epsilon**2 + (sigma**2 + 1) * np.sum(v**2) / len(w)
            raw += math.log(above / (epsilon**2 + sigma**2 * (w[j] - w0[j]) ** 2)) / 4
        assert value == pytest.approx(math.sqrt(raw / m), rel=1e-12)
    assert pacbayes.pacbayes_mag_flatness(FOUND, m) == pytest.approx(4 / math.sqrt(m))


def test_a_network_that_did_not_move_has_only_the_constants(weights):
    (layers, _), (w, _) = weights
    m, sigma = 50, 0.25
    assert pacbayes.pacbayes_init(layers, layers, FOUND, m) == pytest.approx(math.sqrt((math.log(m / sigma) + 10) / m))
    assert pacbayes.pacbayes_mag_init(layers, layers, FOUND, m) == pytest.approx(math.sqrt((math.log(m / sigma) + 10) / m))
    assert pacbayes.pacbayes_mag_orig(layers, layers, FOUND, m) > math.sqrt(len(w) * math.log(np.mean(w**2) / 1e-6) / 4 / m)


def test_a_negative_bound_is_undefined():
    assert math.isnan(pacbayes.gap_scale(-1.0, 10))


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
    before = state_of(network)
    flat = flatness.flat_network(network, images[:1])
    torch.testing.assert_close(flat(images), network(images), rtol=1e-4, atol=1e-4)
    shapes = [tuple(parameter.shape) for parameter in flat.parameters()]
    assert shapes == [(3,), (3,), (8, 3, 3, 3), (8,), (8, 1, 3, 3), (8,), (3, 128), (3,)]
    expected = torch.nn.utils.fusion.fuse_conv_bn_eval(network[1], network[2])  # torch's own, as an independent way
    torch.testing.assert_close(flat[1].weight, expected.weight)
    torch.testing.assert_close(flat[1].bias, expected.bias)
    assert str(state_of(network)) == str(before)
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
        flatness.flat_network(TwoReaders().eval(), torch.randn(1, 3, 8, 8))


@pytest.fixture
def given(tiny_given):
    """A tiny ResNet that was fitted for some steps to tiny scenes, so that its accuracy is far from chance."""
    network, images = tiny_given["network"], tiny_given["images"]
    optimizer, pixels = torch.optim.Adam(network.train().parameters(), lr=3e-3), tiny_given["normalise"](images.images)
    for _ in range(25):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(pixels), images.labels).backward()
        optimizer.step()
    network.eval()
    return tiny_given


def test_every_measure_of_a_resnet_has_a_value_or_a_reason(given):
    measures = [MEASURES[name] for name in PACBAYES]
    settings = evidence.MeasureSettings(flatness_draws=3, batch_size=20)
    table = evidence.score(measures, given, settings)
    assert list(table["measure"]) == PACBAYES
    assert (table["reason"] == "").all(), table
    assert (table["value"] > 0).all()
    values = table.set_index("measure")["value"]
    # By the equation from what the search must have found, which is what the flatness measure says.
    m, weights = len(given["images"]), evidence.Evidence(given, settings)
    assert weights["flatness_sample"].labels.tolist() == given["images"].labels.tolist()
    sigma = 1 / (values["pacbayes_flatness"] * math.sqrt(m))
    w = np.concatenate([layer.weight.numpy().ravel() for layer in weights["layers"]])
    assert values["pacbayes_orig"] == pytest.approx(math.sqrt((np.sum(w**2) / (4 * sigma**2) + math.log(m / sigma) + 10) / m))
    assert abs(weights["sigma_search"].magnitude - sigma) < 1e-9
    assert weights["clean_accuracy"] > 0.9


def test_without_initial_weights_the_distances_are_missing_with_a_reason(given):
    names = ["pacbayes_init", "pacbayes_mag_init", "pacbayes_mag_orig"]
    settings = evidence.MeasureSettings(flatness_draws=1, flatness_halvings=1)
    table = evidence.score([MEASURES[name] for name in names], given | {"initial_network": None}, settings)
    assert table["value"].isna().all()
    assert set(table["reason"]) == {"no initial weights were given, so there is no distance from them"}


def test_all_are_of_the_family_and_promise_a_larger_gap():
    assert set(PACBAYES) <= {item.name for item in of_families(["flatness"])}
    assert {MEASURES[name].direction for name in PACBAYES} == {-1}
