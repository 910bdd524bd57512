"""Response curves and mixtures: Schiff's algorithms in loops, by quadrature, and a ResNet taken apart."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
import torchvision
from scipy.integrate import quad
from torch import nn

from helpers.measures import response
from helpers.measures.norms import fused_network
from helpers.measures.passes import Sample
from helpers.networks.resnet import build


@pytest.fixture(scope="module")
def inputs():
    return torch.randn(12, 3, 32, 32, generator=torch.Generator().manual_seed(2))


LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 0, 0, 1, 1, 2])


def gi_by_loops(alphas, accuracies):
    """Algorithm 2 as printed, with its divisor and without rescaling."""
    t, n = [0.0], len(alphas)
    for i in range(n - 1):
        t.append(
            t[i] + (alphas[i + 1] - alphas[i]) * (accuracies[i] + accuracies[i + 1]) / 2
        )
    d = [a - b for a, b in zip(alphas, t, strict=True)]
    area = sum(
        (alphas[i + 1] - alphas[i]) * (d[i] + d[i + 1]) / 2 for i in range(n - 1)
    )
    return area / (0.5 * alphas[-1] ** 2)


def test_gi_is_algorithm_2_on_uneven_magnitudes():
    rng = np.random.default_rng(0)
    alphas, accuracies = np.concatenate([[0], rng.random(9).cumsum()]), rng.random(10)
    alphas /= alphas[-1]
    assert response.gi_of_curve(pd.Series(accuracies, alphas)) == pytest.approx(
        gi_by_loops(alphas, accuracies), rel=1e-12
    )


def test_pal_is_the_ratio_of_areas_by_quadrature():
    rng = np.random.default_rng(1)
    alphas, accuracies = np.sort(np.r_[0, rng.random(8), 1]), rng.random(10)
    t = np.r_[0, np.cumsum(np.diff(alphas) * (accuracies[1:] + accuracies[:-1]) / 2)]

    def area(start, stop):
        return quad(
            np.interp,
            start,
            stop,
            args=(alphas, t),
            points=alphas[(alphas > start) & (alphas < stop)],
            limit=200,
        )[0]

    curve = pd.Series(accuracies, alphas)
    expected = area(0.4, 1) / area(0, 0.1)
    assert response.pal_of_curve(curve) == pytest.approx(expected, rel=1e-7)
    assert response.pal_of_curve(0.5 * curve) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("score", [response.gi_of_curve, response.pal_of_curve])
def test_a_curve_with_an_undefined_accuracy_has_no_score(score):
    assert np.isnan(score(pd.Series([1, np.nan, 1], [0, 0.5, 1])))


@pytest.mark.parametrize("kind", response.KINDS)
def test_partners_are_drawn_evenly_from_the_right_class(kind):
    counts = np.zeros((12, 12))
    for seed in range(600):
        first, partners = response.mixup_partners(LABELS, kind, seed)
        assert first.tolist() == list(range(12))
        counts[np.arange(12), partners] += 1
    same = (LABELS[:, None] == LABELS).numpy()
    allowed = same & ~np.eye(12, dtype=bool) if kind == "intra" else ~same
    assert not counts[~allowed].any()
    share = 1 / allowed.sum(1, keepdims=True) * np.ones((12, 12))
    error = np.sqrt(share * (1 - share) / 600)
    assert (np.abs(counts / 600 - share)[allowed] <= 4.5 * error[allowed]).all()
    first, second = (response.mixup_partners(LABELS, kind, 7)[1] for _ in range(2))
    assert torch.equal(first, second)


def test_pairs_are_all_of_a_class_or_as_many_different_ones():
    labels = torch.tensor([3, 1, 3, 3, 1, 7, 3])
    pairs = torch.stack(response.class_pairs(labels, 6, 0), 1).tolist()
    every = itertools.combinations(range(7), 2)
    expected = {
        frozenset(pair) for pair in every if labels[[*pair]].unique().numel() < 2
    }
    assert {frozenset(pair) for pair in pairs} == expected
    labels = torch.tensor([0, 1] * 50)
    pairs = torch.stack(response.class_pairs(labels, 30, 0), 1)
    assert (labels[pairs[:, 0]] == labels[pairs[:, 1]]).all()
    assert len({frozenset(pair) for pair in pairs.tolist()}) == len(pairs) == 60
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert not torch.equal(pairs[:, 0], response.class_pairs(labels, 30, 1)[0])


class Residual(nn.Module):
    """A convolution, then a block whose norm is on a branch: the convolution alone carries everything."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.inner, self.head = nn.Conv2d(8, 8, 1), nn.Linear(8, 3)

    def forward(self, images):
        stem = self.stem(images)
        return self.head((stem + self.inner(self.norm(stem))).mean((2, 3)))


class Shared(nn.Module):
    """One ReLU after both convolutions, of which the first call is the end of the first layer."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
        self.act, self.head = nn.ReLU(inplace=True), nn.Linear(8, 3)

    def forward(self, images):
        return self.head(self.act(self.two(self.act(self.one(images)))).mean((2, 3)))


def vision_transformer():
    torch.manual_seed(0)
    network = torchvision.models.VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=3)
    nn.init.normal_(
        network.heads.head.weight
    )  # torchvision starts at zero, where no output depends on the image
    return network


@pytest.mark.parametrize(
    ("make", "end"),
    [
        (lambda: torchvision.models.resnet18(num_classes=3), "maxpool"),
        (lambda: build("resnet50", 3, stem="strided", width=0.125, seed=0), "maxpool"),
        (lambda: torchvision.models.efficientnet_b0(num_classes=3), "features.0.2"),
        (vision_transformer, "encoder.dropout"),
        (Residual, "stem"),
        (Shared, "act"),
    ],
)
def test_the_end_of_the_first_layer_is_found(make, end):
    network = make().eval()
    fused = fused_network(network)
    assert response.first_layer(fused) is fused.get_submodule(end)


def test_a_network_without_a_second_layer_has_no_end_of_the_first():
    network = fused_network(nn.Sequential(nn.Flatten(), nn.Linear(3072, 3)).eval())
    assert response.first_layer(network) is None


def halves_of_resnet(network):
    def rest(maps):
        maps = network.layer4(network.layer3(network.layer2(network.layer1(maps))))
        return network.fc(network.avgpool(maps).flatten(1))

    return nn.Sequential(network.conv1, network.bn1, network.relu), rest


def halves_of_shared(network):
    def rest(maps):
        return network.head(network.act(network.two(maps)).mean((2, 3)))

    return nn.Sequential(network.one, network.act), rest


@torch.no_grad()
@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("halves", [halves_of_resnet, halves_of_shared])
def test_mixing_at_the_first_layer_is_stem_mixture_rest(halves, inputs, alpha):
    network = build("resnet18", 3, stem="strided", width=0.125, seed=0).eval()
    if halves is halves_of_shared:
        torch.manual_seed(0)
        network = Shared().eval()
    fused = fused_network(network)
    stem, rest = halves(network)
    first = torch.tensor([0, 3, 3, 11, 5, 8, 1] * 12)  # of more than one batch
    second = torch.tensor([1, 2, 4, 0, 0, 9, 6] * 12)
    maps = stem(inputs)
    predicted = rest((1 - alpha) * maps[first] + alpha * maps[second]).argmax(1)
    # Against every labelling, so that the predictions themselves are compared.
    for guess in range(3):
        sample = Sample(None, inputs, torch.full((12,), guess))
        place = response.first_layer(fused)
        correct = response.mixed_hits(fused, place, sample, (first, second), alpha)
        assert correct.tolist() == (predicted == guess).tolist()
