"""Measures from unlabelled images: by the oracles of their definitions and against second computations in plain NumPy."""

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from scipy.special import logsumexp, softmax
from sklearn.metrics import log_loss

from helpers.measures import prediction, unlabelled

T1 = 1.0


def draw(n, k, seed=0, scale=2.0, hint=2.0):
    """Logits that lean towards their labels, and the labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(k, (n,), generator=generator)
    logits = scale * torch.randn(n, k, generator=generator)
    logits[torch.arange(n), labels] += hint
    return logits, labels


def certain(classes, k):
    return 200.0 * torch.eye(k)[torch.as_tensor(classes)]


HOLDOUT, LABELS = draw(400, 6)
TARGET = draw(500, 6, seed=1, scale=1.5, hint=1.0)[0]
P, Q = softmax(HOLDOUT.double().numpy(), 1), softmax(TARGET.double().numpy(), 1)
RIGHT = (P.argmax(1) == LABELS.numpy()).mean()


def test_average_confidence_is_the_mean_maximum_and_1_for_one_hot_rows():
    assert unlabelled.average_confidence(TARGET, T1)["as given"] == pytest.approx(Q.max(1).mean(), abs=1e-12)
    assert unlabelled.average_confidence(certain([0, 2, 1], 3), T1)["as given"] == 1
    assert unlabelled.average_confidence(torch.zeros(4, 5), T1)["as given"] == pytest.approx(1 / 5)


def test_difference_of_confidences_by_a_second_computation():
    found = unlabelled.difference_of_confidences(TARGET, HOLDOUT, LABELS, T1)
    assert found["as given"] == pytest.approx(RIGHT - (P.max(1).mean() - Q.max(1).mean()), abs=1e-12)


@pytest.mark.parametrize("function", [unlabelled.thresholded_confidence, unlabelled.thresholded_entropy])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_on_the_holdout_itself_the_thresholds_give_its_accuracy(function, temperature):
    assert unlabelled.difference_of_confidences(HOLDOUT, HOLDOUT, LABELS, temperature)["calibrated"] == pytest.approx(RIGHT, abs=1e-12)
    assert function(HOLDOUT, HOLDOUT, LABELS, temperature)["calibrated"] == pytest.approx(RIGHT, abs=1e-12)


def as_the_public_code_balances(scores, right):
    """The score at which the wrong above it and the right up to it are nearest in number; scores that differ."""
    order = np.argsort(scores)
    ordered = right[order]
    wrong_above = (~right).sum() - np.cumsum(~ordered)
    return scores[order][np.abs(wrong_above - np.cumsum(ordered)).argmin()]


@pytest.mark.parametrize("name", ["confidence", "entropy"])
def test_the_thresholds_are_those_of_the_public_code_but_for_its_one_image(name):
    s, u = (P.max(1), Q.max(1)) if name == "confidence" else ((P * np.log(P)).sum(1), (Q * np.log(Q)).sum(1))
    theirs = as_the_public_code_balances(s, P.argmax(1) == LABELS.numpy())
    ours = s[s > theirs].min()  # theirs has as many above it as are right, and counts itself as well when it predicts
    found = getattr(unlabelled, f"thresholded_{name}")(TARGET, HOLDOUT, LABELS, T1)["as given"]
    assert found == pytest.approx((u >= ours).mean(), abs=1e-12)
    assert (s >= ours).mean() == pytest.approx(RIGHT)
    assert (s >= theirs).sum() == (s >= ours).sum() + 1


def test_thresholds_by_hand():
    scores = torch.tensor([0.1, 0.2, 0.2, 0.2, 0.9], dtype=torch.float64)
    assert unlabelled.confidence_threshold(scores, 1.0) == 0.1
    assert unlabelled.confidence_threshold(scores, 0.0) == np.inf
    assert unlabelled.confidence_threshold(scores, 0.2) == 0.9
    assert unlabelled.confidence_threshold(scores, 0.8) == 0.2
    assert unlabelled.confidence_threshold(scores, 0.4) == 0.9  # one is nearer to two than four
    assert unlabelled.confidence_threshold(scores, 0.6) == 0.2
    tied = torch.tensor([0.2, 0.2, 0.9], dtype=torch.float64)
    assert unlabelled.confidence_threshold(tied, 2 / 3) == 0.9  # one and three are as near to two: the one that promises less


def test_a_network_right_everywhere_on_the_holdout_takes_the_smallest_score_as_threshold():
    right = HOLDOUT.argmax(1)
    found = unlabelled.thresholded_confidence(TARGET, HOLDOUT, right, T1)["as given"]
    assert found == (Q.max(1) >= P.max(1).min()).mean()
    assert unlabelled.thresholded_confidence(TARGET, HOLDOUT, (right + 1) % 6, T1)["as given"] == 0


def test_agreement_counts_equal_predictions_and_refuses_the_run_itself():
    other, third = draw(500, 6, seed=2)[0], draw(500, 6, seed=3)[0]
    same = (Q.argmax(1) == other.numpy().argmax(1)).mean()
    assert unlabelled.agreement_of_repeats(TARGET, [other]) == pytest.approx(same, abs=1e-12)
    both = (same + (Q.argmax(1) == third.numpy().argmax(1)).mean()) / 2
    assert unlabelled.agreement_of_repeats(TARGET, [other, third]) == pytest.approx(both, abs=1e-12)
    assert unlabelled.agreement_of_repeats(TARGET, [TARGET * 2]) == 1
    with pytest.raises(ValueError, match="a run with another seed"):
        unlabelled.agreement_of_repeats(TARGET, [TARGET.clone()])
    for none in (None, []):
        with pytest.raises(ValueError, match="no repeat"):
            unlabelled.agreement_of_repeats(TARGET, none)
    with pytest.raises(ValueError, match="give the same images"):
        unlabelled.agreement_of_repeats(TARGET, [other[:-1]])


def test_optimal_transport_equals_linear_programming():
    target, holdout, labels = TARGET[:60], HOLDOUT[:60], LABELS[:60]
    shares = np.bincount(labels.numpy(), minlength=6)
    cost = np.abs(Q[:60, None, :] - np.eye(6)[None]).sum(2) / 2  # half the L1 distance to each corner
    once = np.vstack([np.kron(np.eye(60), np.ones(6)), np.kron(np.ones(60), np.eye(6))])
    error = linprog(cost.ravel(), A_eq=once, b_eq=np.concatenate([np.ones(60), shares]), bounds=(0, None)).fun / 60
    assert unlabelled.optimal_transport(target, holdout, labels, T1)["as given"] == pytest.approx(1 - error, abs=1e-9)


def test_optimal_transport_of_certain_and_of_uniform_rows():
    labels = torch.arange(4).repeat(5)
    holdout = certain(labels, 4)
    assert unlabelled.optimal_transport(certain(labels.flip(0), 4), holdout, labels, T1)["as given"] == 1
    assert unlabelled.optimal_transport(torch.zeros(20, 4), holdout, labels, T1)["as given"] == pytest.approx(1 / 4)
    one_class = unlabelled.optimal_transport(certain([0] * 20, 4), holdout, labels, T1)["as given"]
    assert one_class == pytest.approx(1 / 4)  # three quarters must move, at the full cost of 1


def test_optimal_transport_promises_no_more_than_the_confidence_and_a_cap_takes_images():
    values = unlabelled.optimal_transport(TARGET, HOLDOUT, LABELS, T1)
    assert values["as given"] <= unlabelled.average_confidence(TARGET, T1)["as given"]
    capped = unlabelled.optimal_transport(TARGET, HOLDOUT, LABELS, T1, transport_images=100, seed=3)["as given"]
    chosen = torch.as_tensor(np.random.default_rng(3).permutation(500)[:100])
    assert capped == pytest.approx(unlabelled.optimal_transport(TARGET[chosen], HOLDOUT, LABELS, T1)["as given"], abs=1e-12)
    with pytest.raises(ValueError, match="transport_images is 0"):
        unlabelled.optimal_transport(TARGET, HOLDOUT, LABELS, T1, transport_images=0)


def mano_by_hand(z):
    phi = np.mean([-(row - logsumexp(row)).mean() for row in z])
    rows = softmax(z, 1) if phi > 5 else np.array([(v - v.min()) / (v - v.min()).sum() for v in 1 + z + z**2 / 2])
    return np.linalg.norm(rows.ravel(), 4) / rows.size**0.25, phi


@pytest.mark.parametrize("scale", [0.5, 2.0, 30.0])
def test_mano_on_both_sides_of_its_threshold(scale):
    logits = scale * TARGET.double()
    expected, phi = mano_by_hand(logits.numpy())
    assert (phi > 5) == (scale == 30)
    assert unlabelled.matrix_norm_of_logits(logits) == pytest.approx(expected, rel=1e-12)


def test_mano_of_certain_and_of_equal_rows():
    assert unlabelled.matrix_norm_of_logits(certain([0, 1, 2], 4)) == pytest.approx((1 / 4) ** 0.25)  # one of 4 entries is 1
    assert np.isnan(unlabelled.matrix_norm_of_logits(torch.zeros(3, 4)))
    half = torch.tensor([[0.0, 0.0], [1.0, 0.0]])  # v = (1, 1) and (2.5, 1): rows (0, 0) and (1, 0)
    assert unlabelled.matrix_norm_of_logits(half) == pytest.approx((1 / 4) ** 0.25)


def test_nuclear_norm_and_invariance_of_the_target_are_those_of_their_formulas():
    found = unlabelled.target_nuclear_norm(TARGET)
    assert found["raw"] == pytest.approx(np.linalg.svd(Q, compute_uv=False).sum())
    assert found["scaled"] == pytest.approx(found["raw"] / np.sqrt(6 * 500))
    turned = [draw(500, 6, seed=seed)[0] for seed in (4, 5, 6)]
    r = [softmax(each.double().numpy(), 1) for each in turned]
    top = np.mean([np.sqrt(Q.max(1) * each.max(1)) * (Q.argmax(1) == each.argmax(1)) for each in r])
    vector = np.mean([np.sqrt((Q * each).sum(1)) * (Q.argmax(1) == each.argmax(1)) for each in r])
    values = unlabelled.target_effective_invariance(torch.stack([TARGET, *turned]))
    assert values == pytest.approx({"top confidence": top, "vector": vector}, rel=1e-9)
    same = prediction.effective_invariance(torch.as_tensor(Q), torch.as_tensor(np.stack(r)))
    assert values == pytest.approx(dict(same), rel=1e-9)
    assert unlabelled.target_effective_invariance(certain([0, 1], 3).repeat(2, 1, 1))["vector"] == 1
    with pytest.raises(ValueError, match=r"shape \(500, 6\); they must be \(1 \+ turns, N, K\)"):
        unlabelled.target_effective_invariance(TARGET)


def test_entropy_and_energy():
    assert unlabelled.target_entropy(TARGET) == pytest.approx(-(Q * np.log(Q)).sum(1).mean())
    assert unlabelled.target_entropy(torch.zeros(2, 5)) == pytest.approx(np.log(5))
    assert unlabelled.target_entropy(certain([0, 1], 3)) == pytest.approx(0, abs=1e-12)
    assert unlabelled.target_energy(TARGET) == pytest.approx(logsumexp(TARGET.double().numpy(), 1).mean())
    assert unlabelled.target_energy(TARGET + 3) == pytest.approx(unlabelled.target_energy(TARGET) + 3, abs=1e-5)


def test_the_temperature_minimises_the_holdouts_loss_and_undoes_a_scaling():
    found = unlabelled.temperature(HOLDOUT, LABELS)
    grid = np.exp(np.linspace(-1, 3, 4001))
    losses = [log_loss(LABELS, softmax(HOLDOUT.double().numpy() / t, 1)) for t in grid[::40]]
    assert grid[::40][np.argmin(losses)] == pytest.approx(found, rel=0.05)
    best = log_loss(LABELS, softmax(HOLDOUT.double().numpy() / found, 1))
    assert best <= min(losses)
    assert unlabelled.temperature(5 * HOLDOUT, LABELS) == pytest.approx(5 * found, rel=1e-4)
    assert np.isnan(unlabelled.temperature(None, None))


def test_calibrated_variants_are_those_of_divided_logits():
    t = 2.5
    given = (TARGET, HOLDOUT, LABELS)
    for function in (
        unlabelled.difference_of_confidences,
        unlabelled.thresholded_confidence,
        unlabelled.thresholded_entropy,
        unlabelled.optimal_transport,
    ):
        divided = function(TARGET.double() / t, HOLDOUT.double() / t, LABELS, T1)["as given"]
        assert function(*given, t)["calibrated"] == pytest.approx(divided, abs=1e-9)
        assert np.isnan(function(*given, np.nan)["calibrated"])
        assert np.isfinite(function(*given, np.nan)["as given"])


@pytest.mark.parametrize("name", [*unlabelled.PREDICTED_ACCURACIES[:5], "optimal_transport", "target_entropy", "matrix_norm_of_logits"])
def test_no_value_depends_on_the_order_of_images(name):
    function = getattr(unlabelled, name)
    known = {"target_logits": TARGET, "holdout_logits": HOLDOUT, "holdout_labels": LABELS, "temperature": 2.0}
    mixed, shuffled = torch.randperm(500, generator=torch.Generator().manual_seed(0)), torch.arange(399, -1, -1)
    other = known | {"target_logits": TARGET[mixed], "holdout_logits": HOLDOUT[shuffled], "holdout_labels": LABELS[shuffled]}
    names = [need for need in function.__code__.co_varnames[: function.__code__.co_argcount] if need in known]
    first, second = (function(**{need: values[need] for need in names}) for values in (known, other))
    assert first == pytest.approx(second, abs=1e-9)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"target_logits": None}, "no logits of target images"),
        ({"holdout_logits": None}, "no logits of holdout images"),
        ({"target_logits": TARGET[:, :5]}, "5 outputs for target images and 6"),
        ({"target_logits": TARGET[:0]}, r"shape \(0, 6\)"),
        ({"target_logits": torch.full((3, 6), torch.nan)}, "18 of 18 logits of target images are not finite"),
        ({"holdout_labels": LABELS[:-1]}, "400 holdout images need one label each"),
        ({"holdout_labels": None}, "400 holdout images need one label each"),
        ({"holdout_labels": LABELS + 1}, "whole numbers from 0 to 5"),
    ],
)
def test_what_cannot_be_is_refused(change, match):
    given = {"target_logits": TARGET, "holdout_logits": HOLDOUT, "holdout_labels": LABELS, "temperature": T1} | change
    for function in (unlabelled.difference_of_confidences, unlabelled.thresholded_entropy, unlabelled.optimal_transport):
        with pytest.raises(ValueError, match=match):
            function(**given)


def test_the_baseline_is_the_holdouts_accuracy():
    assert unlabelled.holdout_accuracy(HOLDOUT, LABELS) == RIGHT
    with pytest.raises(ValueError, match="no logits of holdout images"):
        unlabelled.holdout_accuracy(None, LABELS)
