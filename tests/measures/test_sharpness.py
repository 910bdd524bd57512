"""The worst change of the weights: exact on a linear classifier, below all noise of the same box, and inside the box."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from helpers.measures import evidence, sharpness
from helpers.measures.passes import Sample
from helpers.measures.registry import MEASURES

NAMES = ["sharpness_init", "sharpness_orig", "sharpness_flatness", "sharpness_mag_flatness"]


def linear(weight):
    network = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    network.weight = nn.Parameter(weight.clone())
    return network.eval()


@pytest.fixture(scope="module")
def toy():
    """A linear classifier of points with positive coordinates, all of class 1: one corner of the box is the worst for all of them."""
    points = torch.rand(400, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    return torch.tensor([[-1.0, 0.3], [2.0, 0.5]], dtype=torch.float64), Sample(None, points, torch.ones(400, dtype=torch.int64))


@pytest.fixture
def small():
    """A small network of which nothing is special, with a frozen weight, a gradient and an unused parameter."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double().eval()
    network.unused = nn.Parameter(torch.ones(3, dtype=torch.float64))
    network[1].weight.requires_grad_(False)
    network[4].bias.grad = torch.ones(3, dtype=torch.float64)
    images = torch.randn(60, 2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return network, Sample(None, images, network(images).argmax(1))


@pytest.fixture
def to_the_end(monkeypatch):
    """Let every ascent take all its steps."""
    monkeypatch.setattr(sharpness, "TOLERANCE", math.inf)


def drop(network, sample, radius, aware, steps=20, seed=0, batch_size=256):
    return sharpness.ascent_drop(network, sample, steps, batch_size, seed)(aware, radius)


def margins(weight, sample, aware):
    """Exact: ``(w1 - w0) x`` against the largest fall of it in a box of radius 1, which is the sum of half-widths times ``|x_j|``."""
    w, x = weight.numpy(), sample.inputs.numpy()
    widths = np.abs(w) + 1 if aware else np.ones_like(w)
    return (w[1] - w[0]) @ x.T, widths.sum(0) @ np.abs(x).T


@pytest.mark.parametrize("aware", [False, True])
def test_the_worst_of_a_linear_classifier_is_exact_and_so_is_its_radius(toy, aware, monkeypatch):
    weight, sample = toy
    margin, fall = margins(weight, sample, aware)
    drops = sharpness.ascent_drop(linear(weight), sample, 20, 256, 0)
    found = (
        evidence.PROVIDERS["alpha"](drops, 15)
        if not aware
        else evidence.PROVIDERS["relative_alpha"](drops, 15, evidence.PROVIDERS["alpha"](drops, 15))
    )
    assert np.quantile(margin / fall, 0.09) <= found <= np.quantile(margin / fall, 0.11)
    monkeypatch.setattr(sharpness, "TOLERANCE", math.inf)
    radii = np.quantile(margin / fall, [0.001, 0.3, 0.6, 0.95])
    assert [drops(aware, radius) for radius in radii] == pytest.approx([np.mean(margin <= radius * fall) for radius in radii])


@pytest.mark.parametrize("aware", [False, True])
@pytest.mark.parametrize("radius", [0.02, 0.1])
def test_the_worst_is_below_all_that_noise_in_the_box_finds(small, radius, aware, to_the_end):
    network, sample = small
    generator, noisy = torch.Generator().manual_seed(5), []
    clean = {name: value.detach() for name, value in network.named_parameters()}
    for _ in range(30):
        uniform = {name: 2 * torch.rand(p.shape, generator=generator, dtype=p.dtype) - 1 for name, p in clean.items()}
        changed = {name: p + uniform[name] * radius * (1 + aware * p.abs()) for name, p in clean.items()}
        predicted = torch.func.functional_call(network, changed, (sample.inputs,)).argmax(1)
        noisy.append(float((predicted != sample.labels).double().mean()))
    worst = drop(network, sample, radius, aware)
    assert worst >= max(noisy)
    assert worst > np.mean(noisy)
    assert drop(network, sample, 0.0, True) == 0


def test_every_point_of_the_ascent_is_in_the_box_and_starts_in_its_half(small, to_the_end, monkeypatch):
    network, sample = small
    seen, clean = [], {name: value.detach().clone() for name, value in network.named_parameters()}

    def look(weights):
        seen.append(max(float(((weights[name].detach() - old).abs() / (0.1 * (old.abs() + 1))).max()) for name, old in clean.items()))

    call = sharpness.functional_call
    monkeypatch.setattr(sharpness, "functional_call", lambda network, weights, given: look(weights) or call(network, weights, given))
    drop(network, sample, 0.1, True)
    assert len(seen) == 20
    assert 0.99 < max(seen) <= 1 + 1e-12
    assert 0.3 < seen[0] <= 0.5


def test_the_slope_is_the_gradient_of_the_whole_sample_and_batches_do_not_matter(small, to_the_end):
    network, sample = small
    gradients, accuracy = sharpness.slope(network, dict(network.named_parameters()), sample, 7)
    network[1].weight.requires_grad_()
    used = {name: value for name, value in network.named_parameters() if name != "unused"}
    expected = torch.autograd.grad(nn.functional.cross_entropy(network(sample.inputs), sample.labels), list(used.values()))
    assert accuracy == 1
    assert gradients["unused"].tolist() == [0, 0, 0]
    for name, other in zip(used, expected, strict=True):
        torch.testing.assert_close(gradients[name], other, rtol=1e-10, atol=1e-14)
    found = [drop(network, sample, 0.04, False, steps=5, seed=3, batch_size=size) for size in (60, 60, 7)]
    assert len(set(found)) == 1
    assert len({drop(network, sample, 0.04, False, steps=5, seed=seed) for seed in range(8)}) > 1


def test_measures_equal_their_equations():
    w, m = np.random.default_rng(0).normal(size=68), 700
    norms = np.array([np.linalg.norm(w[:48]), np.linalg.norm(w[48:])])
    known = {"frobenius_norms": norms, "frobenius_distances": 2 * norms, "layer_sizes": np.array([48.0, 20.0])}
    known |= {"alpha": 0.02, "relative_alpha": 0.02, "sigma": 0.25, "training_images": m}
    expected = [c * np.linalg.norm(w) ** 2 * math.log(2 * 68) / (4 * 0.02**2) + math.log(m / 0.25) + 10 for c in (4, 1)]
    found = [MEASURES[name].function(**{need: known[need] for need in MEASURES[name].needs}) for name in NAMES]
    assert found == pytest.approx([*np.sqrt(np.array(expected) / m), 50 / math.sqrt(m), 50 / math.sqrt(m)], rel=1e-12)
