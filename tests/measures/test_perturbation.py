"""Measures of perturbed images on a network: against the network taken apart, loops over pairs, and scikit-learn."""

import copy
import itertools
from collections import OrderedDict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import davies_bouldin_score
from torch import nn

from helpers.measures import perturbation, transforms
from helpers.measures.evidence import Evidence, MeasureSettings, score
from helpers.measures.passes import Classifier, Sample
from helpers.measures.registry import measures_of_families

SETTINGS = MeasureSettings(perturbation_fraction=0.5, perturbation_points=5)
FAMILY = [
    item
    for item in measures_of_families(["perturbation"])
    if item.direction and not item.name.startswith("drop")
]


@pytest.fixture(scope="module")
def given(tiny_module_given):
    # The head is drawn anew, wide enough that all classes are predicted.
    network = copy.deepcopy(tiny_module_given["network"])
    generator = torch.Generator().manual_seed(5)
    nn.init.normal_(network.fc.weight, std=3, generator=generator)
    # An image of each class, and again.
    in_turn = tiny_module_given["images"].subset(np.arange(36).reshape(3, 12).T.ravel())
    return tiny_module_given | {"images": in_turn, "network": network}


@pytest.fixture(scope="module")
def evidence(given):
    return Evidence(given, SETTINGS)


@pytest.mark.parametrize(
    ("labels", "fraction", "count"),
    [
        ([0, 1, 2] * 10, 0.01, 6),
        ([0, 1, 2] * 10, 0.5, 15),
        ([0, 1, 2] * 10, 1, 30),
        # A class of one image stands in it once.
        ([0, 1, 0, 0, 0, 0, 0, 1, 0, 2], 0.1, 10),
        ([0, 1, 0, 0, 1, 0], 0.1, 5),
    ],
)
def test_the_sample_has_two_images_of_every_class(labels, fraction, count):
    pixels = torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1)
    images = SimpleNamespace(images=pixels, labels=torch.tensor(labels))
    classifier = Classifier(None, torch.Tensor.float, "cpu", 8)
    sample = perturbation.perturbed_sample(classifier, images, fraction)
    assert sample.labels.tolist() == labels[:count]
    assert torch.equal(sample.pixels, pixels[:count])


def test_every_measure_has_a_value_on_a_resnet_whatever_the_batches(given):
    table, _ = score(FAMILY, given, SETTINGS)
    assert np.isfinite(table["value"]).all()
    assert (table["reason"] == "").all()
    classifier = replace(Evidence(given, SETTINGS)["classifier"], batch_size=7)
    again, _ = score(FAMILY, given | {"classifier": classifier}, SETTINGS)
    pd.testing.assert_frame_equal(table, again, rtol=1e-5)
    other, _ = score(FAMILY, given, replace(SETTINGS, seed=1))
    assert (other["value"] != table["value"]).any()


def test_a_curve_by_hand(given, evidence):
    network, sample = given["network"], evidence["perturbed_sample"]
    _, indices = transforms.mixup_partners(sample.labels, "inter", SETTINGS.seed)
    accuracies = []
    with torch.no_grad():
        stem = network.bn1(network.conv1(sample.inputs)).relu()
        for alpha in (0, 0.125, 0.25, 0.375, 0.5):
            maps = (1 - alpha) * stem + alpha * stem[indices]
            for name in ("layer1", "layer2", "layer3", "layer4"):
                maps = network.get_submodule(name)(maps)
            hits = network.fc(maps.mean((2, 3))).argmax(1) == sample.labels
            accuracies.append(float(hits.double().mean()))
    assert evidence["response_curves"]["inter first layer"].tolist() == accuracies


def test_pairs_are_averaged_over_classes(given, evidence):
    network, sample = given["network"], evidence["perturbed_sample"]
    hits = []  # all classes have as many pairs
    for label in range(3):
        inputs = sample.inputs[sample.labels == label]
        for first, second in itertools.combinations(inputs, 2):
            with torch.no_grad():
                logits = network((first + second)[None] / 2)
            hits.append(int(logits.argmax()) == label)
    assert evidence["mixup_accuracy"]["input"] == pytest.approx(np.mean(hits))
    sample = Sample(None, None, torch.tensor([0, 0, 0, 1, 1]))
    mixed = {"input": lambda pairs, share: sample.labels[pairs[0]].numpy() == 0}
    assert perturbation.mixup_accuracy(sample, mixed, 0) == {"input": 0.5}


def test_the_index_is_a_mean_over_draws_of_pooled_maps():
    labels = torch.arange(400) % 4
    pixels = np.random.default_rng(0).integers(0, 200, (400, 3, 5, 4))
    pixels = torch.from_numpy(pixels + labels.view(-1, 1, 1, 1).numpy()).byte()
    # Maps of the first layer are the images as they are.
    network = nn.Sequential(OrderedDict(maxpool=nn.Identity(), mean=nn.Flatten()))
    classifier = Classifier(network, torch.Tensor.float, "cpu", 64)
    pooled, generator = pixels[:, :, :4].amax((2, 3)), np.random.default_rng((0, 4))
    draws = [generator.permutation(400)[:120] for _ in range(10)]
    expected = np.mean([davies_bouldin_score(pooled[d], labels[d]) for d in draws])

    def index(seed):
        sample = Sample(pixels, None, labels)
        return perturbation.davies_bouldin_index(classifier, sample, seed)["initial"]

    assert index(0) == pytest.approx(expected, rel=1e-6)
    assert index(1) != pytest.approx(expected, rel=1e-6)


def gi_by_loops(alphas, accuracies):
    """Algorithm 2 as printed, with its divisor and without rescaling."""
    t = area = 0.0
    for i, step in enumerate(np.diff(alphas)):
        before = alphas[i] - t
        t += step * (accuracies[i] + accuracies[i + 1]) / 2
        area += step * (before + alphas[i + 1] - t) / 2
    return area / (0.5 * alphas[-1] ** 2)


def test_gi_is_algorithm_2_and_pal_the_ratio_of_areas_on_uneven_magnitudes():
    rng = np.random.default_rng(1)
    alphas, accuracies = np.sort(np.r_[0, rng.random(8), 1]), rng.random(10)
    curves = pd.DataFrame({"one": accuracies, "half": 0.5 * accuracies}, alphas)
    gi = perturbation.gi_score(curves)["one"]
    assert gi == pytest.approx(gi_by_loops(alphas, accuracies), rel=1e-12)
    t = np.r_[0, np.cumsum(np.diff(alphas) * (accuracies[1:] + accuracies[:-1]) / 2)]
    fine = np.linspace(0, 1, 2_000_001)
    values = np.interp(fine, alphas, t)
    expected = values[fine >= 0.4].sum() / values[fine <= 0.1].sum()
    found = perturbation.pal_score(curves)
    assert found == pytest.approx({"one": expected, "half": expected}, rel=1e-4)


@np.errstate(invalid="ignore")
def test_scores_of_curves_by_hand():
    names = ["intra input", "intra first layer", "inter input"]
    curves = pd.DataFrame([[0.5, 1, 0]] * 3, (0, 0.5, 1), names)
    assert [*perturbation.gi_score(curves).values()] == pytest.approx([0.5, 0, 1])
    assert [*perturbation.curve_mean(curves).values()] == [0.5, 1, 0]
    pal = perturbation.pal_score(curves)
    assert [*pal.values()] == pytest.approx([84, 84, np.nan], nan_ok=True)
    assert perturbation.pal_product(pal) == pytest.approx(84 * 84)
    assert perturbation.pal_sum(pal | {"inter input": 2}) == pytest.approx(86)
    assert perturbation.dbi_times_mixup({"initial": 2.0}, {"input": 0.75}) == 0.5


def test_without_a_first_layer_the_rest_is_there(given):
    network = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 3))
    table = score(FAMILY, given | {"network": network.eval()}, SETTINGS)[0]
    table = table.set_index(["measure", "variant"])
    lacking = {("mixup_accuracy", "first layer"), ("davies_bouldin_index", "initial")}
    lacking |= {("pal_product", ""), ("dbi_times_mixup", "")}
    curves = ("gi_score", "pal_score", "curve_mean")
    places = [name for name in perturbation.PERTURBATIONS if "first" in name]
    lacking |= {*itertools.product(curves, places)}
    without = table[table["value"].isna()]
    assert set(without.index) == lacking
    assert (without["reason"] != "").all()


def test_the_pair_of_equal_mixup_is_that_of_all_pairs_in_a_bin():
    drawn = np.random.default_rng(0).random((60, 2))
    models = pd.DataFrame(drawn, columns=["mixup_accuracy", "gi_score"])
    models["mixup_accuracy"] = models["mixup_accuracy"].round(2)
    models.loc[0] = [0.5, np.nan]
    pair = perturbation.pair_of_equal_mixup(models)
    pairs = itertools.combinations(models.dropna().to_numpy().tolist(), 2)
    best = max(abs(gi - other) for (m, gi), (n, other) in pairs if m == n)
    assert pair["gi_score"].is_monotonic_increasing and len(pair) == 2
    assert pair["mixup_accuracy"].nunique() == 1
    assert np.ptp(pair["gi_score"]) == best > 0
    assert not len(perturbation.pair_of_equal_mixup(models.iloc[:2]))


LABELS = torch.tensor([0, 1, 2, 3] * 5)  # chance is 0.25
SHIFTED = {"horizontal translation": 0.75, "vertical translation": 0.5, "rotation": 0.0}


@pytest.mark.parametrize("accuracy", [0.49, float("nan")])
def test_drops_by_hand_and_below_twice_chance(accuracy):
    known = {"train_accuracy": accuracy, "labels": LABELS}
    known |= {"accuracy_under_augmentation": SHIFTED, "mixup_accuracy": {"input": 0.5}}
    drops = measures_of_families(["drop", "drop_mixup"])
    scores, _ = score(drops, known, SETTINGS)
    assert len(scores) == 2 and scores["value"].isna().all()
    assert scores["reason"].str.contains("is below twice chance, 0\\.50").all()
    assert perturbation.learnt_accuracy(0.5, LABELS) == 0.5
    assert perturbation.learnt_accuracy(0.75, LABELS.clip(0, 1)) == 0.75
    assert perturbation.drop(0.875, SHIFTED) == 0.25
    assert perturbation.drop_mixup(0.875, {"input": 0.5}) == 0.375


def test_small_shifts_move_by_at_most_twelve_percent_of_the_side(given, evidence):
    shifts = transforms.translations(0.12)
    assert {(each.low, each.high) for each in shifts.values()} == {(-0.12, 0.12)}
    inputs = evidence["classifier"], evidence["perturbed_sample"]
    shifted = transforms.accuracies_at_random_magnitudes(*inputs, shifts, 3)
    found = perturbation.drop_small_shift(1.0, *inputs, 3)
    assert found == pytest.approx(1 - np.mean([*shifted.values()]))
