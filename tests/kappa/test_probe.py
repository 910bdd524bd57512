import re

import numpy as np
import pytest
import sklearn.metrics
import torch
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from helpers.kappa.probe import UNSEEN_FRACTIONS, class_steps, fit_probe, predicted_labels, probe_confusion, probe_probabilities


def clouds(classes=4, each=40, features=6, seed=0):
    """Overlapping Gaussian clouds with labels 10, 11, ..., features of unlike scale and place."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(classes, features)) * 1.2
    labels = np.repeat(np.arange(classes), each)
    values = centres[labels] + generator.normal(size=(len(labels), features))
    return values * 10.0 ** np.arange(features) + 7, labels + 10


def objective(probe, features, labels, l2):
    x = (features - probe.mean) / probe.scale
    scores = x @ probe.weight.T + probe.bias
    chosen = scores[np.arange(len(x)), np.searchsorted(probe.classes, labels)]
    return float((np.log(np.exp(scores).sum(1)) - chosen).mean() + l2 / 2 * (probe.weight**2).sum())


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("limit", [0, 10**9])
def test_no_other_weights_have_a_lower_objective(classes, limit):
    features, labels = clouds(classes, each=15, features=3)
    l2, x = 0.05, (features - features.mean(0)) / features.std(0)
    onehot = np.eye(classes)[labels - 10]

    def loss(flat):
        weight, bias = flat[: classes * 3].reshape(classes, 3), flat[classes * 3 :]
        scores = x @ weight.T + bias
        return float((np.log(np.exp(scores).sum(1)) - (scores * onehot).sum(1)).mean() + l2 / 2 * (weight**2).sum())

    best = minimize(loss, np.zeros(classes * 4), method="BFGS", options={"gtol": 1e-7})
    found = fit_probe(features, labels, l2=l2, element_limit=limit, tolerance=1e-6)
    # The gradient is at most 1e-6 and the penalty's curvature at least l2, so the objective is within 1e-10 of its minimum.
    assert objective(found, features, labels, l2) == pytest.approx(best.fun, abs=1e-8)
    np.testing.assert_allclose(found.weight, best.x[: classes * 3].reshape(classes, 3), atol=1e-4)


@pytest.mark.parametrize("classes", [2, 5])
def test_torch_and_scikit_learn_find_the_same_probabilities(classes):
    features, labels = clouds(classes, each=30, features=12)
    ours, theirs = (fit_probe(features, labels, element_limit=limit) for limit in (0, 10**9))
    assert (ours.solver, theirs.solver) == ("torch", "scikit-learn")
    assert ours.converged
    assert theirs.converged
    np.testing.assert_allclose(probe_probabilities(ours, features), probe_probabilities(theirs, features), rtol=0, atol=1e-3)


def test_more_than_the_limit_goes_to_torch_and_the_limit_itself_does_not():
    features, labels = clouds()
    assert fit_probe(features, labels, element_limit=features.size).solver == "scikit-learn"
    assert fit_probe(features, labels, element_limit=features.size - 1).solver == "torch"


@pytest.mark.parametrize("classes", [2, 3])
def test_probabilities_are_those_of_a_scikit_learn_pipeline(classes):
    features, labels = clouds(classes)
    l2 = 0.01
    c = (2 if classes == 2 else 1) / (l2 * len(labels))
    reference = make_pipeline(StandardScaler(), LogisticRegression(C=c, tol=1e-8, max_iter=5000)).fit(features, labels)
    found = fit_probe(features, labels, l2=l2, tolerance=1e-7)
    np.testing.assert_allclose(probe_probabilities(found, features), reference.predict_proba(features), atol=1e-5)
    np.testing.assert_array_equal(predicted_labels(found, features), reference.predict(features))
    assert predicted_labels(found, features).dtype == np.int64


def test_two_points_by_hand():
    # x = -1 and 1 after standardising; W = (-w, w) solves 1 / (1 + exp(2 w)) = l2 w, since the loss is ln(1 + exp(-2 w)) + l2 w^2.
    l2 = 0.1
    found = fit_probe([[3.0], [5.0]], [0, 1], l2=l2, tolerance=1e-9)
    w = found.weight[1, 0]
    assert found.weight[0, 0] == pytest.approx(-w)
    assert 1 / (1 + np.exp(2 * w)) == pytest.approx(l2 * w, abs=1e-8)
    assert probe_probabilities(found, [[4.0]])[0] == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("limit", [0, 10**9])
def test_scale_place_and_order_do_not_matter(limit):
    features, labels = clouds()
    found = probe_probabilities(fit_probe(features, labels, element_limit=limit, tolerance=1e-7), features)
    order = np.random.default_rng(1).permutation(len(labels))
    moved = features[order] * -3.0 + 100
    again = probe_probabilities(fit_probe(moved, labels[order], element_limit=limit, tolerance=1e-7), moved)
    np.testing.assert_allclose(again, found[order], atol=1e-4)


def test_a_constant_feature_gets_no_weight_also_when_float32_rounds_it():
    features, labels = clouds()
    jitter = 5 * (1 + 1e-7 * np.sign(np.random.default_rng(0).normal(size=len(labels))))
    widened = np.column_stack([features, np.zeros(len(labels)), np.full(len(labels), 0.1), jitter])
    found = fit_probe(widened, labels, tolerance=1e-7)
    assert np.abs(found.weight[:, 6:]).max() < 1e-4
    assert (found.scale[6:] == 1).all()
    expected = probe_probabilities(fit_probe(features, labels, tolerance=1e-7), features)
    np.testing.assert_allclose(probe_probabilities(found, widened), expected, atol=1e-4)


def test_a_stronger_penalty_gives_smaller_weights_and_at_the_limit_the_shares_of_the_classes():
    features, labels = clouds(3)
    sizes = [np.linalg.norm(fit_probe(features, labels, l2=l2).weight) for l2 in (1e-2, 1e-1, 1)]
    assert np.diff(sizes).max() < 0
    kept = np.r_[0:40, 40:60, 80:90]
    flat = probe_probabilities(fit_probe(features[kept], labels[kept], l2=1e6, tolerance=1e-6), features[:1])[0]
    assert flat == pytest.approx([40 / 70, 20 / 70, 10 / 70], abs=1e-3)


@pytest.mark.parametrize("limit", [0, 10**9])
def test_a_fit_that_stops_early_warns_and_says_so(limit):
    features, labels = clouds()
    with pytest.warns(ConvergenceWarning, match=r"^the probe stopped after \d+ iterations at a gradient of .*, above 1e-09; raise max_"):
        found = fit_probe(features, labels, max_iterations=2, tolerance=1e-9, element_limit=limit)
    assert not found.converged
    assert found.iterations <= 3
    assert found.gradient > 1e-9


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("limit", [0, 10**9])
def test_tensors_will_do_and_nothing_depends_on_the_seed_or_the_inference_mode(limit):
    features, labels = clouds()
    expected = fit_probe(features.astype(np.float32), labels, seed=0, element_limit=limit)
    with torch.inference_mode():
        found = fit_probe(torch.tensor(features, dtype=torch.float32), torch.tensor(labels), seed=1, element_limit=limit)
    np.testing.assert_array_equal(found.weight, expected.weight)
    assert found.converged
    assert found.gradient <= 1e-5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": [3, 3, 3]}, "the labels hold 1 class (3); a probe needs at least 2"),
        ({"labels": [0, 1]}, "got shapes (3, 2) and (2,)"),
        ({"labels": [0.0, 1.0, 1.0]}, "labels are float64; they must be integers"),
        ({"features": [1.0, 2.0, 3.0]}, "features must be (N, D) and labels (N,), N and D at least 1; got shapes (3,) and (3,)"),
        ({"features": np.zeros((0, 2)), "labels": []}, "N and D at least 1; got shapes (0, 2) and (0,)"),
        ({"features": [[0, np.nan], [np.inf, np.nan], [1, 2]]}, "2 of 3 images have features that are not finite"),
        ({"l2": 0.0}, "l2 is 0.0; it must be above 0"),
        ({"l2": np.nan}, "l2 is nan; it must be above 0"),
    ],
)
def test_fitting_refuses(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        fit_probe(**{"features": [[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]], "labels": [0, 1, 1]} | change)


def test_confusion_is_scikit_learns_in_any_order_and_with_classes_that_the_probe_does_not_know():
    features, labels = clouds(4, seed=2)
    fitted = fit_probe(features[labels != 12], labels[labels != 12])
    classes = [13, 10, 99, 12, 11]
    found = probe_confusion(fitted, features, labels, classes)
    np.testing.assert_array_equal(found, sklearn.metrics.confusion_matrix(labels, predicted_labels(fitted, features), labels=classes))
    assert found.sum() == len(labels)
    assert found[:, 3].sum() == 0  # never predicted
    assert found[2].sum() == 0  # no test images
    assert 0 < np.trace(found) < len(labels)


def test_separated_classes_are_all_found():
    features, labels = np.repeat(np.eye(3), 5, axis=0) * 10, np.repeat([4, 0, 9], 5)
    np.testing.assert_array_equal(probe_confusion(fit_probe(features, labels), features, labels, [0, 4, 9]), np.eye(3) * 5)


def test_confusion_and_prediction_refuse():
    features, labels = clouds(3)
    fitted = fit_probe(features, labels)
    with pytest.raises(ValueError, match=re.escape("classes must name every label once; missing: 12, got [10, 11]")):
        probe_confusion(fitted, features[labels < 12], labels[labels < 12], [10, 11])
    with pytest.raises(ValueError, match=re.escape("missing: 77, got [10, 11, 12]")):
        probe_confusion(fitted, features[:1], [77], [10, 11, 12])
    with pytest.raises(ValueError, match=re.escape("missing: none, got [10, 11, 12, 10]")):
        probe_confusion(fitted, features, labels, [10, 11, 12, 10])
    with pytest.raises(ValueError, match=re.escape("labels have shape (2,), features are of 120 images")):
        probe_confusion(fitted, features, labels[:2], [10, 11, 12])
    with pytest.raises(ValueError, match=re.escape("features have shape (120, 5); the probe takes (N, 6)")):
        predicted_labels(fitted, features[:, 1:])
    spoilt = features.copy()
    spoilt[3, 1] = np.inf
    with pytest.raises(ValueError, match=r"^1 of 120 images have features that are not finite$"):
        predicted_labels(fitted, spoilt)
    found = probe_probabilities(fitted, spoilt)
    assert np.isnan(found[3]).all()
    assert np.isfinite(np.delete(found, 3, 0)).all()


def test_probabilities_do_not_overflow():
    features, labels = clouds(3)
    found = probe_probabilities(fit_probe(features, labels), features * 1e6)
    np.testing.assert_allclose(found.sum(1), 1)


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
