"""Metrics by hand, by plain loops, and beside scikit-learn and torchmetrics."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import softmax
from sklearn import metrics

from helpers.scores import classification
from helpers.scores.models import Model
from helpers.scores.store import Store

SUMMARY = ["top1", "top5", "macro_precision", "macro_recall", "macro_f1"]
FORMS = [f"average_precision_{form}" for form in ("step", "eleven_point", "all_point")]

# Four images of two classes; the last is called class 0 and is of class 1.
LOGITS, LABELS = [[2.0, 0.0], [1.0, 0.0], [0.0, 1.0], [3.0, 0.0]], [0, 0, 1, 1]


@pytest.fixture
def scene():
    """Two hundred images of seven classes, better than chance; no two logits are equal."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 7, 200)
    return rng.normal(size=(200, 7)) + 1.2 * np.eye(7)[labels], labels


def by_loop(positive, scores):
    """The three forms for distinct scores, image by image from the top."""
    order = np.argsort(-scores)
    hits, points = 0, []
    for called, image in enumerate(order, 1):
        hits += positive[image]
        points.append((hits / called, hits / positive.sum()))
    at_hits = [points[rank] for rank, image in enumerate(order) if positive[image]]
    tenths = np.arange(11) / 10 - 1e-10
    best = [
        [max(p for p, r in points if r >= recall) for recall in recalls]
        for recalls in (tenths, [recall for _, recall in at_hits])
    ]
    return np.mean([p for p, _ in at_hits]), *map(np.mean, best)


# P at hits, and the best from there on; 3/10 is reached by the third of ten hits.
@pytest.mark.parametrize(
    ("positive", "scores", "expected"),
    [
        (
            [0, 1, 1, 0, 1],
            [5, 4, 3, 2, 1],
            ((1 / 2 + 2 / 3 + 3 / 5) / 3, (7 * 2 / 3 + 4 * 3 / 5) / 11, 29 / 45),
        ),
        ([1, 1, 1, 0, *[1] * 7], -np.arange(11), (None, (4 + 70 / 11) / 11, None)),
        (np.arange(6) < 2, -np.arange(6), (1, 1, 1)),
        (np.arange(6) < 2, np.arange(6), ((1 / 5 + 1 / 3) / 2, 1 / 3, 1 / 3)),
        (np.arange(6) < 2, np.zeros(6), (1 / 3, 1 / 3, 1 / 3)),
    ],
)
def test_average_precision_by_hand(positive, scores, expected):
    values = classification.average_precision(positive, scores)
    for value, by_hand in zip(values, expected, strict=True):
        assert by_hand is None or value == pytest.approx(by_hand)


@pytest.mark.parametrize("positives", [1, 3, 10, 40])
def test_average_precision_equals_a_plain_loop(positives):
    rng = np.random.default_rng(positives)
    positive = rng.permutation(np.arange(80) < positives)
    scores = rng.normal(size=80) + positive
    values = classification.average_precision(positive, scores)
    assert values == pytest.approx(by_loop(positive, scores), rel=1e-12)


def test_per_class_by_hand():
    table = classification.per_class_metrics(LOGITS, LABELS, ["cat", "dog"])
    expected = {
        "n": [2, 2],
        "precision": [2 / 3, 1],
        "recall": [1, 0.5],
        "f1": [0.8, 2 / 3],
        FORMS[0]: [(1 / 2 + 2 / 3) / 2, (1 + 2 / 4) / 2],
        FORMS[1]: [2 / 3, (6 * 1 + 5 / 2) / 11],
        FORMS[2]: [2 / 3, (1 + 1 / 2) / 2],
        "auc": [0.5, 0.5],
    }
    expected = pd.DataFrame(expected, ["cat", "dog"])
    table = table.set_index("class")
    pd.testing.assert_frame_equal(table, expected, rtol=1e-12, check_names=False)


def test_summary_equals_scikit_learn_on_softmax(scene):
    logits, labels = scene
    p, predicted = softmax(logits, axis=1), logits.argmax(1)
    summary = classification.summary_metrics(logits, labels)
    macro = metrics.precision_recall_fscore_support(labels, predicted, average="macro")
    forms = np.mean([by_loop(labels == k, p[:, k]) for k in range(7)], axis=0)
    expected = {
        "top1": metrics.accuracy_score(labels, predicted),
        "top5": metrics.top_k_accuracy_score(labels, p, k=5),
        **dict(zip(SUMMARY[2:], macro[:3], strict=True)),
        "macro_auc": metrics.roc_auc_score(labels, p, multi_class="ovr"),
        "cross_entropy": metrics.log_loss(labels, p),
        **{f"mean_{form}": value for form, value in zip(FORMS, forms, strict=True)},
        "n": 200,
        "classes_absent": 0,
        "classes_never_predicted": 0,
    }
    assert {name: summary[name] for name in expected} == pytest.approx(expected)


def test_a_perfect_network_scores_1_and_a_constant_one_as_chance():
    labels = np.arange(12) % 6
    perfect = classification.summary_metrics(40 * np.eye(6)[labels], labels)
    names = [*SUMMARY, "macro_auc", *(f"mean_{form}" for form in FORMS)]
    assert {perfect[name] for name in names} == {1}
    constant = classification.summary_metrics(np.zeros((12, 6)), labels)
    # The first of equal classes is predicted; the first five hold it.
    expected = {
        "top1": 1 / 6,
        "top5": 5 / 6,
        "macro_auc": 0.5,
        "cross_entropy": np.log(6),
        "macro_precision": 1 / 6,  # of the one class that is predicted
        "classes_never_predicted": 5,
    }
    assert {name: constant[name] for name in expected} == pytest.approx(expected)
    tied = classification.summary_metrics(np.zeros((10, 9)), [0] * 9 + [8])
    assert (tied["top1"], tied["top5"]) == (0.9, 0.9)


def test_an_absent_class_is_nan_and_counted_and_in_no_mean(scene):
    logits, labels = scene[0], np.where(scene[1] == 2, 3, scene[1])
    predicted = logits.argmax(1)
    assert (predicted == 2).any()  # a precision of 0 would be of a class without images
    table = classification.per_class_metrics(logits, labels, list("abcdefg"))
    assert table.loc[2].isna().tolist() == [False, False, *[True] * 7]
    assert table.drop(2).notna().all(axis=None)
    summary = classification.summary_metrics(logits, labels)
    assert (summary["classes_absent"], summary["classes_never_predicted"]) == (1, 0)
    present = [0, 1, 3, 4, 5, 6]
    recall = metrics.recall_score(labels, predicted, labels=present, average="macro")
    assert summary["macro_recall"] == pytest.approx(recall)


def test_models_whose_logits_are_not_finite_have_no_metrics(tmp_path, tiny_given):
    images = tiny_given["images"]
    data = SimpleNamespace(train=images, test=images, fingerprint="made")
    inputs = 3 * images.images.shape[-1] ** 2
    networks = {
        name: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(inputs, 3))
        for name in ("first", "second", "broken")
    }
    torch.nn.init.constant_(networks["broken"][1].bias, np.nan)
    models = [
        Model(name, lambda device, one=one: one) for name, one in networks.items()
    ]
    models.append(replace(models[0], model_id="absent", at_hand=False))
    store = Store(tmp_path, lambda: data, jobs=1)
    records = classification.test_logits(store, models, data)
    assert "1 of 4 models" in records.left_out
    table = classification.metrics_of_models(records)
    assert table["model"].tolist() == ["first", "second"]
    right = classification.correct(records, images.labels)
    assert right[:2].mean(1).tolist() == pytest.approx(table["top1"].tolist())
    assert np.isnan(right[3]).all()


def test_calibration_errors_are_those_of_torchmetrics_and_by_hand(scene):
    from torchmetrics.functional.classification import multiclass_calibration_error

    logits, labels = scene
    p = softmax(logits, axis=1)
    tensors = torch.tensor(p), torch.tensor(labels)
    expected = multiclass_calibration_error(*tensors, logits.shape[1], n_bins=15)
    found = classification.summary_metrics(logits, labels)
    assert found["expected_calibration_error"] == pytest.approx(float(expected))
    brier = np.square(p - np.eye(7)[labels]).sum(1).mean()
    assert found["brier_score"] == pytest.approx(brier)
    # Of 30 images 15 bins hold two each: 0.9 less half right is 0.4 in every one.
    errors = classification.calibration_errors([0.9] * 30, [True, False] * 15)
    assert errors["adaptive_calibration_error"] == pytest.approx(0.4)
    ends = classification.calibration_errors([1.0, 0.2, 0.15], [True, False, True])
    assert ends["expected_calibration_error"] == pytest.approx(0.65 / 3)


def test_break_even_by_hand_at_ties_and_by_counting(scene):
    positive, scores = classification.decisions(LOGITS, LABELS)
    break_even = classification.break_even_point
    assert break_even(positive[:, 0], scores[:, 0]) == 0.5
    # Pooled, it is the accuracy here; at ties the share of the class.
    assert break_even(positive.ravel(), scores.ravel()) == 0.75
    assert break_even(np.arange(8) < 2, np.zeros(8)) == pytest.approx(2 / 8)
    positives, scores = classification.decisions(*scene)
    for positive, score in zip(positives.T, scores.T, strict=True):
        called = positive[np.argsort(-score)][: positive.sum()]
        assert break_even(positive, score) == pytest.approx(called.mean())
