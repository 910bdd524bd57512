"""The flatness measures with the public code's own conventions, against its rules written out again as a plain loop."""

import copy
import math

import numpy as np
import pytest
import torch
from helpers.measures.flatness import NoiseSample
from helpers.measures.pacbayes import searched, unit_normalised
from helpers.measures.traced_layers import trace_layers
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from helpers.measures.evidence import MeasureSettings, score
from helpers.measures.registry import MEASURES


@pytest.fixture(scope="module")
def trained():
    """A small network of convolutions with biases, fitted to which quarter of an image is dark, and its sample."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 4)
    )
    labels = torch.arange(60) % 4
    images = torch.rand(60, 3, 8, 8)
    for label in range(4):
        images[labels == label, :, 4 * (label // 2) :, 4 * (label % 2) :] *= 0.6
    optimizer = torch.optim.Adam(network.parameters(), 0.02)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()
    return network.eval(), NoiseSample(images, labels)


def test_the_batch_normalisation_that_is_left_behind_has_scale_1_and_is_noisy_too(trained):
    network, sample = trained
    before = copy.deepcopy(network.state_dict())
    flat = unit_normalised(network, sample.images[:1])
    assert flat[1].weight.tolist() == [1.0] * 8
    assert len(list(flat.parameters())) == len(list(network.parameters()))
    torch.testing.assert_close(flat[0].weight, fuse_conv_bn_eval(network[0], network[1]).weight)
    with torch.no_grad():
        torch.testing.assert_close(flat(sample.images), network(sample.images), rtol=1e-4, atol=1e-4)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


@pytest.mark.parametrize("aware", [False, True])
def test_the_search_is_the_public_codes(trained, aware):
    network, sample = trained
    flat = unit_normalised(network, sample.images[:1])
    clean = float((flat(sample.images).argmax(1) == sample.labels).double().mean())
    assert clean > 0.9
    generator = torch.Generator().manual_seed(10348628753 + 5)
    low, high = 0.0, 2.0
    for _ in range(15):
        sigma = (low + high) / 2
        accuracies = []
        for _ in range(3):
            noisy, spreads = copy.deepcopy(flat), []
            for parameter in flat.parameters():
                spreads.append(sigma**2 * parameter.detach().abs() ** 2 + 1e-3**2 if aware else torch.full_like(parameter, sigma**2))
            with torch.no_grad():
                for parameter, spread in zip(noisy.parameters(), spreads, strict=True):
                    parameter.add_(torch.normal(torch.zeros_like(spread), spread, generator=generator))
                accuracies.append(float((noisy(sample.images).argmax(1) == sample.labels).double().mean()))
        deviation = abs(np.mean(accuracies) - clean)
        if abs(deviation - 0.1) < 0.01:
            break
        low, high = (low, sigma) if deviation > 0.1 else (sigma, high)
    assert searched(flat, sample, clean, 3, 15, 16, 5, aware) == sigma


def scored(network, sample, **settings):
    images = type("Images", (), {"__len__": lambda self: len(sample.labels)})()
    images.images, images.labels = (sample.images * 255).byte(), sample.labels
    given = {"network": network, "initial_network": copy.deepcopy(network), "images": images, "normalise": scale, "device": "cpu"}
    return score([MEASURES["repository_pacbayes"]], given, MeasureSettings(flatness_draws=3, **settings))


def scale(pixels):
    return pixels.float() / 255


def test_the_measures_are_its_equations(trained):
    network, sample = trained
    table = scored(network, sample, repository_parity=True).set_index("variant")
    values, m = table["value"], len(sample.labels)
    assert (table["reason"] == "").all()
    sigma = 1 / (values["PACBAYES_FLATNESS"] * math.sqrt(m))
    w = torch.cat([layer.weight.flatten() for layer in trace_layers(network, sample.images[:1])]).numpy()
    assert values["PACBAYES_ORIG"] == pytest.approx(math.sqrt((np.sum(w**2) / (4 * sigma**2) + math.log(m / sigma) + 10) / m))
    assert values["PACBAYES_INIT"] == pytest.approx(math.sqrt((math.log(m / sigma) + 10) / m))  # it did not move
    aware = 1 / (values["PACBAYES_MAG_FLATNESS"] * math.sqrt(m))
    above = 1e-6 + (aware**2 + 1) * np.mean(w**2)
    raw = len(w) * math.log(above / 1e-6) / 4 + math.log(m / aware) + 10
    assert values["PACBAYES_MAG_ORIG"] == pytest.approx(math.sqrt(raw / m))


def test_it_is_not_computed_unless_asked_for_and_needs_a_bias(trained):
    network, sample = trained
    assert scored(network, sample)["reason"].str.startswith("not computed: it repeats the flatness search").all()
    without = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4)).eval()
    assert "needs a bias in every convolution" in scored(without, sample, repository_parity=True)["reason"].iloc[0]
