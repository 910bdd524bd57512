import re

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from helpers.kappa.probe import UNSEEN_FRACTIONS, class_steps, fit_probe, predicted_labels, probe_layer


def clouds(classes=4, each=40, features=6, seed=0):
    """Overlapping Gaussian clouds with labels 10, 11, ..., features of unlike scale and place."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(classes, features)) * 1.2
    labels = np.repeat(np.arange(classes), each)
    values = centres[labels] + generator.normal(size=(len(labels), features))
    return values * 10.0 ** np.arange(features) + 7, labels + 10


def solution(probe):
    """W (K, D) of standardised features and b (K,); of two classes, the pair whose rows add up to 0."""
    weight, bias = probe[-1].coef_, probe[-1].intercept_
    return (weight, bias) if len(weight) > 1 else (np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2)


def objective(probe, features, labels, l2):
    weight, bias = solution(probe)
    scores = (features - features.mean(0)) / features.std(0) @ weight.T + bias
    chosen = scores[np.arange(len(scores)), np.searchsorted(probe.classes_, labels)]
    return float((np.log(np.exp(scores).sum(1)) - chosen).mean() + l2 / 2 * (weight**2).sum())


@pytest.mark.parametrize("classes", [2, 4])
def test_no_other_weights_have_a_lower_objective(classes):
    features, labels = clouds(classes, each=15, features=3)
    l2, x = 0.05, (features - features.mean(0)) / features.std(0)
    onehot = np.eye(classes)[labels - 10]

    def loss(flat):
        weight, bias = flat[: classes * 3].reshape(classes, 3), flat[classes * 3 :]
        scores = x @ weight.T + bias
        return float((np.log(np.exp(scores).sum(1)) - (scores * onehot).sum(1)).mean() + l2 / 2 * (weight**2).sum())

    best = minimize(loss, np.zeros(classes * 4), method="BFGS", options={"gtol": 1e-7})
    found = fit_probe(features, labels, l2=l2, tolerance=1e-6)
    # The gradient is at most 1e-6 and the penalty's curvature at least l2, so the objective is within 1e-10 of its minimum.
    assert objective(found, features, labels, l2) == pytest.approx(best.fun, abs=1e-8)
    np.testing.assert_allclose(solution(found)[0], best.x[: classes * 3].reshape(classes, 3), atol=1e-4)


@pytest.mark.parametrize("classes", [2, 3])
def test_probabilities_are_those_of_a_scikit_learn_pipeline(classes):
    features, labels = clouds(classes)
    l2 = 0.01
    c = (2 if classes == 2 else 1) / (l2 * len(labels))
    reference = make_pipeline(StandardScaler(), LogisticRegression(C=c, tol=1e-8, max_iter=5000)).fit(features, labels)
    found = fit_probe(features, labels, l2=l2, tolerance=1e-7)
    np.testing.assert_allclose(found.predict_proba(features), reference.predict_proba(features), atol=1e-5)
    np.testing.assert_array_equal(found.predict(features), reference.predict(features))
    logits = probe_layer(found)(torch.tensor(features, dtype=torch.float32))
    np.testing.assert_allclose(logits.softmax(1), reference.predict_proba(features), atol=1e-4)


def test_two_points_by_hand():
    # x = -1 and 1 after standardising; W = (-w, w) solves 1 / (1 + exp(2 w)) = l2 w, since the loss is ln(1 + exp(-2 w)) + l2 w^2.
    l2 = 0.1
    found = fit_probe([[3.0], [5.0]], [0, 1], l2=l2, tolerance=1e-9)
    w = probe_layer(found).weight[1, 0].item()
    assert probe_layer(found).weight[0, 0].item() == -w
    assert 1 / (1 + np.exp(2 * w)) == pytest.approx(l2 * w, abs=1e-7)
    assert found.predict_proba([[4.0]])[0] == pytest.approx([0.5, 0.5])


def test_scale_place_and_order_do_not_matter():
    features, labels = clouds()
    found = fit_probe(features, labels, tolerance=1e-7).predict_proba(features)
    order = np.random.default_rng(1).permutation(len(labels))
    moved = features[order] * -3.0 + 100
    again = fit_probe(moved, labels[order], tolerance=1e-7).predict_proba(moved)
    np.testing.assert_allclose(again, found[order], atol=1e-4)


def test_a_constant_feature_gets_no_weight_also_when_float32_rounds_it():
    features, labels = clouds()
    jitter = 5 * (1 + 1e-7 * np.sign(np.random.default_rng(0).normal(size=len(labels))))
    widened = np.column_stack([features, np.zeros(len(labels)), np.full(len(labels), 0.1), jitter])
    found = fit_probe(widened, labels, tolerance=1e-7)
    assert np.abs(solution(found)[0][:, 6:]).max() < 1e-4
    assert (found[0].scale_[6:] == 1).all()
    expected = fit_probe(features, labels, tolerance=1e-7).predict_proba(features)
    np.testing.assert_allclose(found.predict_proba(widened), expected, atol=1e-4)


def test_a_stronger_penalty_gives_smaller_weights_and_at_the_limit_the_shares_of_the_classes():
    features, labels = clouds(3)
    sizes = [np.linalg.norm(solution(fit_probe(features, labels, l2=l2))[0]) for l2 in (1e-2, 1e-1, 1)]
    assert np.diff(sizes).max() < 0
    kept = np.r_[0:40, 40:60, 80:90]
    flat = fit_probe(features[kept], labels[kept], l2=1e6, tolerance=1e-6).predict_proba(features[:1])[0]
    assert flat == pytest.approx([40 / 70, 20 / 70, 10 / 70], abs=1e-3)


def test_a_fit_that_stops_early_warns():
    features, labels = clouds()
    with pytest.warns(ConvergenceWarning, match="failed to converge"):
        fit_probe(features, labels, max_iterations=2, tolerance=1e-9)


@pytest.mark.filterwarnings("error")
def test_tensors_will_do():
    features, labels = clouds()
    expected = fit_probe(features.astype(np.float32), labels)
    with torch.inference_mode():
        found = fit_probe(torch.tensor(features, dtype=torch.float32), torch.tensor(labels))
        layer = probe_layer(found)
    np.testing.assert_array_equal(solution(found)[0], solution(expected)[0])
    assert torch.equal(layer.weight, probe_layer(expected).weight)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": [3, 3, 3]}, "needs samples of at least 2 classes in the data"),
        ({"labels": [0, 1]}, "inconsistent numbers of samples: [3, 2]"),
        ({"labels": [0.5, 1.0, 1.0]}, "Unknown label type: continuous"),
        ({"features": [1.0, 2.0, 3.0]}, "Expected 2D array, got 1D array"),
        ({"features": np.zeros((0, 2)), "labels": []}, "Found array with 0 sample(s)"),
        ({"features": [[0, np.nan], [np.inf, np.nan], [1, 2]]}, "2 of 3 images have features that are not finite"),
        ({"l2": 0.0}, "l2 is 0.0; it must be above 0"),
        ({"l2": np.nan}, "l2 is nan; it must be above 0"),
    ],
)
def test_fitting_refuses(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        fit_probe(**{"features": [[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]], "labels": [0, 1, 1]} | change)


def test_separated_classes_are_all_found_and_a_feature_that_is_not_finite_is_refused():
    features, labels = np.repeat(np.eye(3), 5, axis=0) * 10, np.repeat([4, 0, 9], 5)
    fitted = fit_probe(features, labels)
    np.testing.assert_array_equal(predicted_labels(fitted, features), labels)
    spoilt = features.copy()
    spoilt[3, 1] = np.inf
    with pytest.raises(ValueError, match=r"^1 of 15 images have features that are not finite$"):
        predicted_labels(fitted, spoilt)


@pytest.mark.parametrize(("seen", "added"), [(50, [0, 10, 20, 30, 40, 50]), (10, [0, 2, 4, 6, 8, 10]), (5, [0, 1, 2, 3, 4, 5])])
def test_the_papers_fractions_by_hand(seen, added):
    names = [f"c{number}" for number in range(2 * seen)]
    steps = class_steps(names, seen)
    assert [len(step) - seen for step in steps] == added
    assert all(step == names[: len(step)] for step in steps)
    assert [round((len(step) - seen) / len(step), 3) for step in steps] == list(UNSEEN_FRACTIONS)


def test_steps_come_in_the_order_asked_for():
    assert class_steps(["a", "b", "c", "d"], 2, [0.5, 0, 1 / 3]) == [["a", "b", "c", "d"], ["a", "b"], ["a", "b", "c"]]
    assert class_steps(["a", "b"], 2, []) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((list("abcd"), 3, [0.0, 0.5]), "the fraction 0.5 cannot be had of 4 classes with 3 seen; possible are 0.000, 0.250"),
        ((list("abcd"), 2, [0.334]), "the fraction 0.334 cannot be had of 4 classes with 2 seen; possible are 0.000, 0.333, 0.500"),
        ((list("abcd"), 2, [-0.1]), "the fraction -0.1 cannot be had"),
        ((list("abcd"), 2, [float("nan")]), "the fraction nan cannot be had"),
        ((list("abca"), 2), "class_ids names a class twice: ['a', 'b', 'c', 'a']"),
        ((list("abcd"), 5), "seen is 5; it must be from 1 to the number of classes, 4"),
        ((list("abcd"), 0), "seen is 0; it must be from 1 to the number of classes, 4"),
    ],
)
def test_steps_refuse(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        class_steps(*arguments)
