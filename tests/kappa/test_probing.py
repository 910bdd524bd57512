import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import cohen_kappa_score
from sklearn.preprocessing import StandardScaler

from helpers.kappa import networks, noise, probing
from helpers.kappa.probing import class_steps, fit_probe
from helpers.networks import resnet
from helpers.scores.classification import logits_of
from helpers.scores.models import Model
from helpers.scores.store import Store
from tests.conftest import TINY_SCENES

LEVELS = [noise.Level(0.7, 0.71, 1.0), noise.Level(1.0, 1.0, 0.0)]
NOISE = noise.Degradation(0, noise.AutoEncoder().eval(), LEVELS)


def untrained(seed):
    """A ResNet without its head."""
    form = {"stem": "strided", "width": 0.125, "seed": seed}
    return networks.without_head(resnet.build("resnet18", 3, **form).eval())


def backbone(seed):
    facts = {"family": "resnet", "origin": "made", "model": f"resnet18 no. {seed}"}
    load = lambda device="cpu": untrained(seed).to(device)  # noqa: E731
    return Model(f"m{seed}@stop", load, facts, lambda: untrained(seed + 10))


MODELS = [backbone(0), backbone(1)]


def clouds(classes, each=40, features=6):
    """Overlapping Gaussian clouds, features of unlike scale and place."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(classes, features)) * 1.2
    labels = np.repeat(np.arange(classes), each)
    values = centres[labels] + random.normal(size=(len(labels), features))
    return values * 10.0 ** np.arange(features) + 7, labels


def logits(probe, features):
    weight, bias = probe
    return features @ weight.T + bias


def test_no_other_weights_have_a_lower_objective():
    features, labels = clouds(4, each=15, features=3)
    x = StandardScaler().fit_transform(features)
    is_class = np.eye(4)[labels]

    def loss(flat):
        weight = flat[:12].reshape(4, 3)
        scores = x @ weight.T + flat[12:]
        losses = np.log(np.exp(scores).sum(1)) - (scores * is_class).sum(1)
        return losses.mean() + 0.05 / 2 * (weight**2).sum()

    best = minimize(loss, np.zeros(16), method="BFGS", options={"gtol": 1e-7})
    weight, bias = fit_probe(features, labels, l2=0.05, tolerance=1e-6)
    bias = bias + weight @ features.mean(0)
    weight = weight * features.std(0)
    # The gradient is at most 1e-6 and the penalty's curvature at least 0.05.
    assert loss(np.append(weight, bias)) == pytest.approx(best.fun, abs=1e-8)
    np.testing.assert_allclose(weight.ravel(), best.x[:12], atol=1e-4)


def test_two_classes_have_two_rows_of_which_the_difference_is_scikit_learns():
    features, labels = clouds(2)
    found = fit_probe(features, labels)
    x = StandardScaler().fit_transform(features)
    reference = LogisticRegression(C=1 / (0.01 * len(labels)), tol=1e-5)
    expected = reference.fit(x, labels).predict(x)
    np.testing.assert_array_equal(logits(found, features).argmax(1), expected)
    assert found[0].shape == (2, 6)


NAMES = [f"c{number}" for number in range(100)]
DATA = SimpleNamespace(classes={"class_id": NAMES})


@pytest.mark.parametrize(("seen", "added"), [(50, 10), (10, 2), (5, 1)])
def test_the_papers_fractions_by_hand_in_any_order(seen, added):
    fractions = [0.5, 0.0, 0.167, 0.286, 0.375, 0.444]
    steps = class_steps(DATA, NAMES[: 2 * seen], seen, fractions)
    assert steps == [seen + number * added for number in range(6)]


@pytest.mark.parametrize(
    ("wanted", "fractions", "message"),
    [
        (["c0", "c1", "x"], [0.0], "1 classes have no usable images: x"),
        (NAMES[:4], [0.0, 0.334], "n / (2 + n) to three decimals, n up to 2"),
        (NAMES[:4], [0.5], "unseen_fractions is [0.5]; it needs 0"),
        (NAMES[:4], [0.0, 0.6], "unseen_fractions is [0.0, 0.6]; it needs 0"),
    ],
)
def test_steps_that_cannot_be_had_are_refused(wanted, fractions, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        class_steps(DATA, wanted, 2, fractions)


@pytest.fixture(scope="module")
def probed(data, tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("study"), lambda: data, jobs=1)
    return store, probing.probes(store, MODELS, data, NOISE, [2, 3], 0.01)


def test_probes_are_fitted_to_clean_images_and_tested_at_every_level(probed, data):
    kept = probed[1]
    table = probing.kappa_of_classes(kept, MODELS, data, LEVELS, [2, 3])
    assert len(table) == 2 * 2 * (2 + 3)
    network = MODELS[1].load()
    clean = logits_of(network, data.train.images, "cpu").numpy()
    images = noise.degrade(data.test.images, NOISE.network, 1.0)
    noisy = logits_of(network, images, "cpu").numpy()
    fitted_labels, labels = data.train.labels.numpy(), data.test.labels.numpy()
    record = kept.record("probes", "m1@stop")
    at_level = table[(table["model_id"] == "m1@stop") & (table["ssim"] == 0.7)]
    for step, (count, fraction) in enumerate(((2, 0.0), (3, 1 / 3))):
        is_fitted, is_tested = fitted_labels < count, labels < count
        probe = fit_probe(clean[is_fitted], fitted_labels[is_fitted])
        true = labels[is_tested]
        predicted = logits(probe, noisy[is_tested]).argmax(1)
        found = record["predicted"][step, 0]
        np.testing.assert_array_equal(found[is_tested], predicted)
        assert (found[~is_tested] == -1).all()
        rows = at_level[np.isclose(at_level["unseen_fraction"], fraction)]
        assert rows["class_id"].tolist() == TINY_SCENES["class_ids"][:count]
        assert rows["n"].tolist() == [6] * count
        for number, row in enumerate(rows.itertuples()):
            is_class, is_predicted = true == number, predicted == number
            kappa = cohen_kappa_score(is_class, is_predicted)
            assert row.kappa_loss == pytest.approx(1 - kappa)
            assert row.error == pytest.approx(1 - is_predicted[is_class].mean())
    is_seen = fitted_labels < 2
    weight, _ = fit_probe(clean[is_seen], fitted_labels[is_seen])
    np.testing.assert_allclose(record["weight"], weight, rtol=1e-6)
    weights = [parameter.numel() for parameter in network.parameters()]
    assert set(table["weights"]) == {sum(weights)}


def test_complexity_is_read_on_the_first_classes_in_turn(data):
    found = probing.images_of_seen(data, 2, 4, 0)
    labels = data.train.labels.numpy()
    assert sorted(labels[list(found.rows)]) == [0, 0, 1, 1]
    assert found.rows != probing.images_of_seen(data, 2, 4, 1).rows
    of_seen = np.flatnonzero(labels < 2)
    assert set(probing.images_of_seen(data, 2, 0, 0).rows) == set(of_seen)
    assert found.shared == len(of_seen)


def test_probes_are_fitted_once_per_penalty(probed, data, monkeypatch):
    store, first = probed
    stiff = probing.probes(store, MODELS[:1], data, NOISE, [2, 3], 100.0)
    weight = stiff.record("probes", "m0@stop")["weight"]
    of_first = first.record("probes", "m0@stop")["weight"]
    assert np.abs(weight).max() < np.abs(of_first).max()
    monkeypatch.delattr(probing, "degrade")
    probing.probes(store, MODELS[:1], data, NOISE, [2, 3], 100.0)


def test_a_network_with_its_probe_classifies_as_the_probe_does(probed, data):
    classifier, other = networks.with_probes(MODELS, probed[1])
    record = probed[1].record("probes", "m0@stop")
    features = logits_of(MODELS[0].load(), data.test.images, "cpu")
    expected = logits((record["weight"], record["bias"]), features.numpy())
    values = logits_of(classifier.load("cpu"), data.test.images, "cpu").numpy()
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)
    start = classifier.initial()
    assert not start[-1].weight.any() and not start[-1].bias.any()
    assert torch.equal(start[0].conv1.weight, untrained(10).conv1.weight)
    digests = {model.model_id.split("-")[1] for model in (classifier, other)}
    assert len(digests) == 2  # each probe has its own
