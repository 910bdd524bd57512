"""Measures from unlabelled images: by the oracles of their definitions and against second computations in plain NumPy."""

import itertools
import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from scipy.special import logsumexp, softmax
from sklearn.metrics import log_loss
from torch import nn

from helpers.measures import evidence, unlabelled
from helpers.measures.registry import MEASURES, measures_of_families


def draw(n, k, seed=0, scale=2.0, hint=2.0):
    """Logits that lean towards their labels, and the labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(k, (n,), generator=generator)
    logits = scale * torch.randn(n, k, generator=generator)
    logits[torch.arange(n), labels] += hint
    return logits, labels


LOGITS, LABELS = draw(400, 6)
HOLDOUT = LOGITS.double()
TARGET = draw(500, 6, seed=1, scale=1.5, hint=1.0)[0].double()
P, Q = softmax(HOLDOUT.numpy(), 1), softmax(TARGET.numpy(), 1)
RIGHT = (P.argmax(1) == LABELS.numpy()).mean()


def test_average_confidence_is_the_mean_maximum_and_1_for_one_hot_rows():
    assert unlabelled.average_confidence(TARGET) == pytest.approx(Q.max(1).mean())
    found = unlabelled.difference_of_confidences(TARGET, HOLDOUT, RIGHT)
    expected = RIGHT - (P.max(1).mean() - Q.max(1).mean())
    assert found == pytest.approx(expected, abs=1e-12)
    assert unlabelled.average_confidence(200 * torch.eye(3)) == 1
    assert unlabelled.average_confidence(torch.zeros(4, 5)) == pytest.approx(1 / 5)


@pytest.mark.parametrize(
    "name",
    ["difference_of_confidences", "thresholded_confidence", "thresholded_entropy"],
)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_on_the_holdout_itself_predictions_give_its_accuracy(name, temperature):
    predict = MEASURES[name].function
    logits = {"target": HOLDOUT, "holdout": HOLDOUT, "temperature": temperature}
    found = predict(**logits, holdout_accuracy=RIGHT)
    assert found["calibrated"] == pytest.approx(RIGHT, abs=1e-12)


def test_thresholds_by_hand():
    scores = torch.tensor([0.1, 0.2, 0.2, 0.2, 0.9], dtype=torch.float64)
    # Of 0.4: one is nearer to two than four.
    for accuracy, expected in ((0.0, np.inf), (0.8, 0.2), (0.4, 0.9), (0.6, 0.2)):
        assert unlabelled.confidence_threshold(scores, accuracy) == expected
    # One and three are as near to two: the one that promises less.
    tied = torch.tensor([0.2, 0.2, 0.9], dtype=torch.float64)
    assert unlabelled.confidence_threshold(tied, 2 / 3) == 0.9


def test_optimal_transport_equals_linear_programming():
    shares = np.bincount(LABELS[:60].numpy(), minlength=6)
    # Half the L1 distance to each corner.
    cost = np.abs(Q[:60, None, :] - np.eye(6)[None]).sum(2) / 2
    once = np.vstack([np.kron(np.eye(60), np.ones(6)), np.kron(np.ones(60), np.eye(6))])
    sums = np.concatenate([np.ones(60), shares])
    error = linprog(cost.ravel(), A_eq=once, b_eq=sums, bounds=(0, None)).fun / 60
    shares = unlabelled.holdout_shares(LOGITS[:60], LABELS[:60])
    found = unlabelled.optimal_transport(TARGET[:60], shares, 6000, 0)
    assert found == pytest.approx(1 - error, abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_least_cost_is_that_of_every_assignment_by_largest_remainders(seed):
    rng = np.random.default_rng(seed)
    cost, counts = rng.random((6, 3)), (1, 2, 3)
    every = set(itertools.permutations(np.repeat(np.arange(3), counts).tolist()))
    expected = min(cost[np.arange(6), list(order)].mean() for order in every)
    # The second are 1.26, 1.86 and 2.88 images.
    for shares in (np.array(counts) / 6, np.array([0.21, 0.31, 0.48])):
        found = unlabelled.least_cost(cost, shares)
        assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("scale", [0.5, 2.0, 30.0])
def test_mano_on_both_sides_of_its_threshold(scale):
    z = scale * TARGET.numpy()
    phi = (logsumexp(z, 1) - z.mean(1)).mean()
    assert (phi > 5) == (scale == 30)
    rows = softmax(z, 1)
    if phi <= 5:
        rows = 1 + z + z**2 / 2
        rows -= rows.min(1, keepdims=True)
        rows /= rows.sum(1, keepdims=True)
    expected = np.linalg.norm(rows.ravel(), 4) / rows.size**0.25
    found = unlabelled.matrix_norm_of_logits(scale * TARGET)
    assert found == pytest.approx(expected, rel=1e-12)


def test_mano_where_a_row_or_all_rows_are_constant():
    # v = (1, 1) and (2.5, 1): rows (0, 0) and (1, 0).
    found = unlabelled.matrix_norm_of_logits(torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    assert found == pytest.approx((1 / 4) ** 0.25)
    assert np.isnan(unlabelled.matrix_norm_of_logits(torch.zeros(3, 4)))


def test_the_temperature_minimises_the_holdouts_loss_and_undoes_a_scaling():
    found = unlabelled.temperature(LOGITS, LABELS)
    grid, logits = np.exp(np.linspace(-1, 3, 101)), HOLDOUT.numpy()
    losses = [log_loss(LABELS, softmax(logits / t, 1)) for t in grid]
    assert grid[np.argmin(losses)] == pytest.approx(found, rel=0.05)
    assert log_loss(LABELS, softmax(logits / found, 1)) <= min(losses)
    of_scaled = unlabelled.temperature(5 * LOGITS, LABELS)
    assert of_scaled == pytest.approx(5 * found, rel=1e-4)
    assert np.isnan(unlabelled.temperature(None, None))


def scored(target=TARGET, holdout=LOGITS, labels=LABELS):
    given = {"network": nn.Identity(), "target_logits": target}
    given |= {"holdout_logits": holdout, "holdout_labels": labels}
    measures = measures_of_families(["unlabelled"])
    table, _ = evidence.score(measures, given, evidence.MeasureSettings())
    rows = table.itertuples()
    return table.set_axis([MEASURES[row.measure].column(row.variant) for row in rows])


def test_calibrated_variants_are_of_divided_logits_whatever_the_order_of_images():
    found, t = scored()["value"], unlabelled.temperature(LOGITS, LABELS)
    divided = scored(TARGET / t, LOGITS.double() / t)["value"]
    calibrated = [name for name in found.index if name.endswith("(calibrated)")]
    assert len(calibrated) >= 5
    for name in calibrated:
        expected = divided[name.removesuffix(" (calibrated)")]
        assert found[name] == pytest.approx(expected, abs=1e-9)
    mixed = torch.randperm(500, generator=torch.Generator().manual_seed(0))
    turned = torch.arange(399, -1, -1)
    again = scored(TARGET[mixed], LOGITS[turned], LABELS[turned])["value"]
    assert again.tolist() == pytest.approx(found.tolist(), abs=1e-6)
    assert found["holdout_accuracy"] == RIGHT


NO_HOLDOUT = {"holdout": None, "labels": None}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"target": None}, "there are no logits of target images; give a folder"),
        (NO_HOLDOUT, "there are no logits of holdout images"),
        ({"target": torch.full((3, 6), torch.nan)}, "logits of images without lab"),
    ],
)
def test_what_cannot_be_is_a_reason(change, reason):
    table = scored(**change)
    for name in ("difference_of_confidences", "optimal_transport"):
        assert table.loc[name, "reason"].startswith(reason)
    without = scored(**NO_HOLDOUT)
    needs_none = ["average_confidence", "matrix_norm_of_logits"]
    assert np.isfinite(without.loc[needs_none, "value"]).all()
    assert np.isnan(without.loc["average_confidence (calibrated)", "value"])


def test_agreement_is_that_of_all_pairs_and_undefined_without_others_or_images():
    predicted = np.random.default_rng(0).integers(0, 3, (4, 30))
    expected = [
        np.mean([np.mean(one == other) for j, other in enumerate(predicted) if j != i])
        for i, one in enumerate(predicted)
    ]
    np.testing.assert_allclose(unlabelled.agreement(predicted), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for undefined in (predicted[:1], predicted[:, :0]):
            assert np.isnan(unlabelled.agreement(undefined)).all()
