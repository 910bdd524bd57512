import dataclasses
import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.measures.flatness import NoiseSample, Search
from torch import nn

from helpers.measures import evidence, flatness, sharpness
from helpers.measures.registry import MEASURES

ALPHA, SIGMA = Search(0.02, 4, False, False, True), Search(0.25, 3, False, False, True)


ASCENT = {"steps": 20, "restarts": 2, "seed": 0}


def linear(weight):
    network = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    network.weight = nn.Parameter(weight.clone())
    return network.eval()


@pytest.fixture(scope="module")
def toy():
    """A linear classifier of points with positive coordinates, all of class 1: one corner of the box is the worst for all of them."""
    points = torch.rand(400, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    return torch.tensor([[-1.0, 0.3], [2.0, 0.5]], dtype=torch.float64), NoiseSample(points, torch.ones(400, dtype=torch.int64))


@pytest.fixture
def small():
    """A small network of which nothing is special, with a frozen weight, a gradient and an unused parameter."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double().eval()
    network.unused = nn.Parameter(torch.ones(3, dtype=torch.float64))
    network[1].weight.requires_grad_(False)
    network[4].bias.grad = torch.ones(3, dtype=torch.float64)
    images = torch.randn(60, 2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return network, NoiseSample(images, network(images).argmax(1))


def state_of(network):
    parameters = [(p.detach().clone(), p.requires_grad, p.grad) for p in network.parameters()]
    return parameters, [module.training for module in network.modules()]


def assert_untouched(network, before):
    after = state_of(network)
    assert str(after) == str(before)
    assert all(torch.equal(new, old) for (new, *_), (old, *_) in zip(after[0], before[0], strict=True))


def margins(weight, sample, magnitude_aware):
    """Exact: ``(w1 - w0) x`` against the largest fall of it in a box of radius 1, which is the sum of half-widths times ``|x_j|``."""
    w, x = weight.numpy(), sample.images.numpy()
    widths = np.abs(w) + 1 if magnitude_aware else np.ones_like(w)
    return (w[1] - w[0]) @ x.T, widths.sum(0) @ np.abs(x).T


@pytest.mark.parametrize("magnitude_aware", [False, True])
def test_the_worst_of_a_linear_classifier_is_exact(toy, magnitude_aware):
    weight, sample = toy
    margin, fall = margins(weight, sample, magnitude_aware)
    network, radii = linear(weight), np.quantile(margin / fall, [0.001, 0.3, 0.6, 0.95])
    found = [sharpness.worst_accuracy(network, sample, radius, magnitude_aware=magnitude_aware, **ASCENT) for radius in radii]
    assert found == [np.mean(margin > radius * fall) for radius in radii]
    assert found[0] > found[1] > found[2] > found[3]


@pytest.mark.parametrize("magnitude_aware", [False, True])
def test_the_radius_of_a_linear_classifier_is_exact(toy, magnitude_aware):
    weight, sample = toy
    margin, fall = margins(weight, sample, magnitude_aware)
    worst = partial(sharpness.worst_accuracy, linear(weight), sample, magnitude_aware=magnitude_aware, **ASCENT)
    found = sharpness.search_radius(worst, 1.0)
    assert found.converged
    assert np.quantile(margin / fall, 0.09) <= found.magnitude <= np.quantile(margin / fall, 0.11)


def test_the_magnitude_aware_radius_is_free_of_scale_where_weights_are_large(toy):
    weight, (points, labels) = toy
    radii = []
    for factor in (1e4, 1e6):  # the points shrink as the weights grow, or the loss would saturate
        network, sample = linear(weight * factor), NoiseSample(points / factor, labels)
        worst = partial(sharpness.worst_accuracy, network, sample, magnitude_aware=True, **ASCENT)
        radii.append(sharpness.search_radius(worst, 1.0).magnitude)
        # The fall is alpha' sum (|w_j| + 1 / factor) |x_j| in the first units.
        margin, fall = (weight[1] - weight[0]).numpy() @ points.numpy().T, weight.abs().sum(0).numpy() @ points.numpy().T
        assert np.mean(margin > radii[-1] * fall) == pytest.approx(0.9, abs=0.015)
    assert radii[1] == pytest.approx(radii[0], rel=1e-3)


def test_the_plain_radius_grows_with_the_weights(toy):
    weight, sample = toy
    first, tenfold = (partial(sharpness.worst_accuracy, linear(weight * c), sample, magnitude_aware=False, **ASCENT) for c in (1, 10))
    assert [tenfold(10 * radius) for radius in (0.4, 0.9)] == [first(radius) for radius in (0.4, 0.9)]
    assert tenfold(0.9) > first(0.9)


def test_confident_images_do_not_stop_the_ascent(toy):
    weight, (points, labels) = toy
    confident = linear(weight.float() * 13), NoiseSample(points.float() + 0.5, labels)
    assert (confident[0](confident[1].images).diff() > 20).all()  # in float32 the slope of the true class' logit would be 0
    with sharpness.differentiable(confident[0]) as parameters:
        gradient = sharpness.slope(confident[0], parameters, confident[1], 400)[0][0]
    assert (gradient[0] > 0).all()
    assert (gradient[1] < 0).all()


def box_noise(network, sample, radius, magnitude_aware, draws=30):
    """Accuracies under uniform noise in the same box, drawn independently of the module."""
    generator, found = torch.Generator().manual_seed(5), []
    clean = [p.detach().clone() for p in network.parameters()]
    for _ in range(draws):
        uniform = [2 * torch.rand(p.shape, generator=generator, dtype=p.dtype) - 1 for p in clean]
        shifts = [u * radius * (1 + magnitude_aware * p.abs()) for u, p in zip(uniform, clean, strict=True)]
        named = {name: p + shift for (name, _), p, shift in zip(network.named_parameters(), clean, shifts, strict=True)}
        predicted = torch.func.functional_call(network, named, (sample.images,)).argmax(1)
        found.append(float((predicted == sample.labels).double().mean()))
    return found


@pytest.mark.parametrize("magnitude_aware", [False, True])
@pytest.mark.parametrize("radius", [0.02, 0.05, 0.1])
def test_the_worst_is_below_all_that_noise_in_the_box_finds(small, radius, magnitude_aware):
    network, sample = small
    worst = sharpness.worst_accuracy(network, sample, radius, magnitude_aware=magnitude_aware, **ASCENT)
    noisy = box_noise(network, sample, radius, magnitude_aware)
    assert worst <= min(noisy)
    assert worst < np.mean(noisy)


def test_a_box_of_no_size_is_the_clean_network(small):
    network, sample = small
    assert sharpness.worst_accuracy(network, sample, 0.0, magnitude_aware=True, **ASCENT) == flatness.accuracy(network, sample, 7) == 1


def test_every_point_of_the_ascent_is_in_the_box_and_starts_in_its_half(small):
    network, sample = small
    seen, clean = [], [p.detach().clone() for p in network.parameters()]

    def look(*_):
        seen.append([(p.detach() - old).abs() / (0.1 * (old.abs() + 1)) for p, old in zip(network.parameters(), clean, strict=True)])

    hook = network[0].register_forward_hook(look)
    sharpness.worst_accuracy(network, sample, 0.1, magnitude_aware=True, **ASCENT)
    hook.remove()
    largest = [max(float(part.max()) for part in parts) for parts in seen]
    assert len(largest) == 2 * 21  # restarts times steps and the end
    assert max(largest) <= 1 + 1e-12
    assert max(largest) > 0.99
    assert 0.3 < largest[0] <= 0.5
    assert 0.3 < largest[21] <= 0.5
    assert largest[21] != largest[0]


def test_slope_equals_the_gradient_of_the_whole_sample(small):
    network, sample = small
    with sharpness.differentiable(network) as parameters:
        gradients, accuracy = sharpness.slope(network, parameters, sample, 7)
        expected = torch.autograd.grad(nn.functional.cross_entropy(network(sample.images), sample.labels), parameters[1:])
    assert accuracy == 1
    assert gradients[0].tolist() == [0, 0, 0]  # the unused parameter, the first of its module
    for found, other in zip(gradients[1:], expected, strict=True):
        torch.testing.assert_close(found, other, rtol=1e-10, atol=1e-14)


def test_the_same_seed_gives_the_same_and_the_batch_size_does_not_matter(small):
    network, sample = small
    options = {"magnitude_aware": False, "steps": 5, "restarts": 1}
    found = [sharpness.worst_accuracy(network, sample, 0.04, seed=3, batch_size=size, **options) for size in (60, 60, 7)]
    assert len(set(found)) == 1
    assert len({sharpness.worst_accuracy(network, sample, 0.04, seed=seed, **options) for seed in range(8)}) > 1


def test_more_restarts_find_no_higher_accuracy(small):
    network, sample = small
    found = [sharpness.worst_accuracy(network, sample, 0.06, magnitude_aware=False, steps=3, restarts=n, seed=2) for n in (1, 2, 4, 8)]
    assert found == sorted(found, reverse=True)


def test_stopping_early_changes_no_decision_of_the_search(small):
    network, sample = small
    tried, calls = {True: [], False: []}, {True: 0, False: 0}

    def accuracy_at(radius, early):
        tried[early].append(radius)
        hook = network[0].register_forward_hook(lambda *_: calls.__setitem__(early, calls[early] + 1))
        enough = 1 - 0.1 - 0.01 if early else -math.inf
        value = sharpness.worst_accuracy(network, sample, radius, magnitude_aware=False, enough=enough, **ASCENT)
        hook.remove()
        return value

    found = [sharpness.search_radius(partial(accuracy_at, early=early), 1.0) for early in (True, False)]
    assert found[0] == found[1]
    assert tried[True] == tried[False]
    assert calls[True] < calls[False]


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("grad_mode", [True, False])
def test_the_network_is_left_as_it_came(small, frozen, grad_mode):
    network, sample = small
    for parameter in network[4].parameters():
        parameter.requires_grad_(not frozen)
    before = state_of(network)
    with torch.set_grad_enabled(grad_mode):
        sharpness.worst_accuracy(network, sample, 0.2, magnitude_aware=True, **ASCENT)
        assert torch.is_grad_enabled() == grad_mode
    assert_untouched(network, before)


@pytest.mark.parametrize("call", [1, 4, 42])
def test_after_an_error_in_the_forward_pass_nothing_remains(small, call):
    network, sample = small
    before, count = state_of(network), [0]

    def broken(*_):
        count[0] += 1
        if count[0] == call:
            raise RuntimeError("broken layer")

    hook = network[3].register_forward_hook(broken)
    with pytest.raises(RuntimeError, match=r"^broken layer$"):
        sharpness.worst_accuracy(network, sample, 0.2, magnitude_aware=True, **ASCENT)
    hook.remove()
    assert_untouched(network, before)


@pytest.mark.parametrize("options", [{"steps": 0, "restarts": 2}, {"steps": 20, "restarts": 0}])
def test_an_ascent_of_nothing_is_refused(small, options):
    message = f"^restarts {options['restarts']} and steps {options['steps']} must both be at least 1$"
    with pytest.raises(ValueError, match=message):
        sharpness.worst_accuracy(*small, 0.1, magnitude_aware=False, **options)


@pytest.mark.parametrize("crossing", [3e-6, 1e-4, 9e-4, 2.0**-10, 0.004, 0.3, 1.7])
def test_the_bracket_reaches_the_point_of_halving_in_fewer_passes(crossing):
    def accuracy_at(radius):
        return 1 - 0.1 * radius / crossing

    found, halved = sharpness.search_radius(accuracy_at, 1.0), flatness.search_magnitude(accuracy_at, 1.0, halvings=40)
    assert found.converged
    assert halved.converged
    # Both end where the deviation is within 0.01 of 0.1, which is within 10 % of the crossing.
    assert found.magnitude == pytest.approx(crossing, rel=0.1)
    assert halved.magnitude == pytest.approx(crossing, rel=0.1)
    assert found.passes < halved.passes or crossing > 0.01


def test_the_bracket_by_hand():
    tried = []

    def accuracy_at(radius):
        tried.append(radius)
        return float(radius < 2.0**-5)

    found = sharpness.search_radius(accuracy_at, 1.0)
    # Up by 4 until it drops at 2 ** -4, then geometric means: 2 ** -5 drops, 2 ** -5.5 does not, and so on.
    assert np.log2(tried)[:6].tolist() == pytest.approx([-10, -8, -6, -4, -5, -5.5])
    assert found.magnitude == pytest.approx(2.0**-5, rel=0.01)
    assert found == Search(tried[-1], len(tried), False, False, False)
    assert len(tried) == 12


def test_a_radius_that_is_never_or_always_too_large_is_flagged():
    never = sharpness.search_radius(lambda radius: 1.0, 1.0)
    assert never == Search(2.0, 7, True, False, False)
    with pytest.raises(ValueError, match=r"^accuracy never dropped by 0\.1 up to alpha = 2$"):
        sharpness.sharpness_flatness(never, 10)
    always = sharpness.search_radius(lambda radius: 0.0, 1.0)
    assert always == Search(2.0**-38, 15, False, True, False)
    with pytest.raises(ValueError, match=r"^accuracy changes by more than 0\.1 at every alpha' down to 4e-12$"):
        sharpness.sharpness_mag_flatness(always, 10)


def test_measures_equal_their_equations():
    generator, m = np.random.default_rng(0), 700
    arrays = [[generator.normal(size=shape) for shape in ((4, 3, 2, 2), (5, 4))] for _ in range(2)]
    layers, start = ([SimpleNamespace(weight=torch.tensor(array)) for array in half] for half in arrays)
    w, w0 = (np.concatenate([array.ravel() for array in half]) for half in arrays)
    expected = [math.sqrt((np.linalg.norm(v) ** 2 * math.log(2 * 68) / (4 * 0.02**2) + math.log(m / 0.25) + 10) / m) for v in (w - w0, w)]
    found = [sharpness.sharpness_init(layers, start, ALPHA, SIGMA, m), sharpness.sharpness_orig(layers, ALPHA, SIGMA, m)]
    assert found == pytest.approx(expected, rel=1e-12)
    assert sharpness.sharpness_flatness(ALPHA, m) == pytest.approx(50 / math.sqrt(m))
    assert sharpness.sharpness_mag_flatness(ALPHA, m) == pytest.approx(50 / math.sqrt(m))


def test_every_measure_of_a_resnet_has_a_value_or_a_reason(tiny_given):
    names = ["sharpness_init", "sharpness_orig", "sharpness_flatness", "sharpness_mag_flatness"]
    # Labels that the untrained network gives itself, so that accuracy has somewhere to fall from.
    images, normalise = tiny_given["images"], tiny_given["normalise"]
    with torch.no_grad():
        labels = tiny_given["network"](normalise(images.images)).argmax(1)
    given = tiny_given | {"images": dataclasses.replace(images, labels=labels)}
    before = [parameter.detach().clone() for parameter in given["network"].parameters()]
    settings = evidence.MeasureSettings(sharpness_steps=3, flatness_draws=3, batch_size=20)
    table = evidence.score([MEASURES[name] for name in names], given, settings).set_index("measure")
    assert list(table.index) == names
    assert (table["reason"] == "").all(), table
    assert {MEASURES[name].direction for name in names} == {-1}
    known, m = evidence.Evidence(given, settings), len(images)
    alpha, sigma = 1 / (table["value"]["sharpness_flatness"] * math.sqrt(m)), known["sigma_search"].magnitude
    w = np.concatenate([layer.weight.numpy().ravel() for layer in known["layers"]])
    raw = np.sum(w**2) * math.log(2 * len(w)) / (4 * alpha**2) + math.log(m / sigma) + 10
    assert table["value"]["sharpness_orig"] == pytest.approx(math.sqrt(raw / m))
    assert all(torch.equal(p, old) for p, old in zip(given["network"].parameters(), before, strict=True))
