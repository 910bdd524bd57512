"""A correlation with the gap has one interval, in whatever sentence, table or page it stands."""

import re

import numpy as np
import pandas as pd
import pytest
from helpers.statistics.resampling import correlated, drawn_with_images

from helpers.ablations import tables as ablations
from helpers.report import cams, claims, measures
from helpers.scoring import worth
from helpers.statistics import hyperparameters, tables
from helpers.statistics.claims import keep_claims

DRAWS = {"resamples": 200, "seed": 3}
CLAIM = {"claim": "IoU falls as the gap grows", "primary": True, "measure": "iou", "question": "r_gap", "side": "below"}
QUESTIONS = {"r": ["pearson_r", "ci_low", "ci_high"], "tau": ["kendall_tau", "kendall_low", "kendall_high"]}


@pytest.fixture(scope="module")
def study():
    """Twelve cells with two snapshots, two overlaps and a norm; overlaps and test accuracy are means over images."""
    random, n = np.random.default_rng(0), 24
    right = random.random((n, 90)) < random.uniform(0.3, 0.8, (n, 1))
    models = pd.DataFrame({"model_id": [f"m{row}" for row in range(n)], "cell": [f"c{row // 2}" for row in range(n)]})
    models = models.assign(architecture=np.where(np.arange(n) < 12, "resnet18", "resnet34"), learning_rate=np.arange(n) // 2 % 3 / 10)
    models = models.assign(train_accuracy=random.uniform(0.9, 1, n), train_loss=0.1, images_per_class=100, stop_reason="rules 1+2")
    models = models.assign(test_accuracy=right.mean(1), nuclear_norm=random.normal(size=n), snapshot=["first", "stop"] * 12, left_out="")
    models["gap"] = models["train_accuracy"] - models["test_accuracy"]
    values = {name: 0.6 - 0.4 * models["gap"].to_numpy()[:, None] + random.normal(0, 0.3, (n, 60)) for name in ("iou", "iou_b")}
    models = models.assign(**{name: single.mean(1) for name, single in values.items()})
    return models, values | {"test_accuracy": right.astype(np.float32)}


def numbers(text):
    return [float(found) for found in re.findall(r"-?\d+\.\d+", text)]


def of(table, columns, **where):
    (row,) = table[(table[list(where)] == pd.Series(where)).all(axis=1)][columns].to_numpy(dtype=float)
    return row


def test_every_table_and_sentence_has_the_interval_of_the_ranking(study, tmp_path):
    models, values = study
    field, _ = claims.ranking(models, ["learning_rate"], {}, values, draws=200, permutations=9, seed=3)
    table3 = tables.correlation_table(models, ["iou", "iou_b", "nuclear_norm"], (0.95, 0.9), images=values, **DRAWS)
    held = hyperparameters.confounders(models, ["nuclear_norm", "iou", "iou_b"], ["learning_rate"], images=values, **DRAWS)
    subset = hyperparameters.subsets(models.assign(label_noise=0.0), "iou", "label_noise", images=values, **DRAWS)
    for measure in ("iou", "iou_b", "nuclear_norm"):
        for kind, question in (("r", "r_gap"), ("tau", "tau_gap")):
            wanted = of(field, [question, f"{question}_low", f"{question}_high"], measure=measure)
            assert wanted[1] < wanted[0] < wanted[2]
            assert of(table3, QUESTIONS[kind], measure=measure, architecture="Total", threshold=0.9) == pytest.approx(wanted, abs=1e-6)
        wanted = of(field, ["r_gap", "r_gap_low", "r_gap_high"], measure=measure)
        assert of(held, ["r", "ci_low", "ci_high"], measure=measure, kind="pooled") == pytest.approx(wanted, abs=1e-6)
    wanted = of(field, ["r_gap", "r_gap_low", "r_gap_high"], measure="iou")
    assert of(subset, QUESTIONS["r"], column="label_noise") == pytest.approx(wanted, abs=1e-6)
    assert numbers(cams.iou_against_gap(models, 200, 3, images=values))[:1] == [round(wanted[0], 3)]
    assert numbers(cams.iou_against_gap(models, 200, 3, images=values))[1:] == pytest.approx(wanted[1:], abs=5e-4)
    said = measures.say_methods(table3.assign(published_r=np.nan), dict.fromkeys(("iou", "iou_b", "nuclear_norm"), "x"))
    assert f"x {wanted[0]:.2f} (95 % interval {wanted[1]:.2f} to {wanted[2]:.2f})" in said
    keep_claims(tmp_path, [CLAIM])
    judged, _ = claims.judged_claims(tmp_path, field, claims.study_gates(models, 4, values))
    assert of(judged, ["ours", "ci_low", "ci_high"], primary=True).tolist() == wanted.tolist()


def test_the_papers_setting_has_the_same_interval_among_the_other_choices_and_they_have_one_of_their_own(study):
    models, values = study
    fixed = {"method": "grad_cam", "formula": "correct", "part": "closed", "class_used": "predicted", "annotation": "boxes", "n": 60}
    paper = models[["model_id", "iou"]].assign(**fixed, threshold=0.1)
    other = paper.assign(threshold=0.2, iou=paper["iou"] + np.random.default_rng(1).normal(0, 0.02, len(models)))
    found = ablations.correlations(models, pd.concat([paper, other]), ["threshold"], images=values, **DRAWS)
    table3 = tables.correlation_table(models, ["iou"], (0.9,), images=values, **DRAWS)
    ends = ["pearson_r", "ci_low", "ci_high"]
    assert of(found, ends, threshold=0.1) == pytest.approx(of(table3, ends, architecture="Total"), abs=1e-6)
    # Of another threshold no values of single images are kept: its interval is over cells and test images.
    of_gap = drawn_with_images(models, [], values, 200, 3)
    (expected,) = correlated(models.assign(other=other["iou"]), ["other"], draws=200, seed=3, drawn=of_gap)[ends].to_numpy()
    assert of(found, ends, threshold=0.2) == pytest.approx(expected, abs=1e-9)


def test_the_accuracy_on_a_target_has_the_interval_of_the_ranking_too(study):
    models, values = study
    sources = {"iou": worth.TRAINING, "average_confidence": worth.UNLABELLED}
    scored = models.assign(average_confidence=models["test_accuracy"] + 0.1)
    found = worth.worth_table(scored, sources, ["learning_rate"], shift="", passes={}, images=values, **DRAWS)
    field, _ = claims.ranking(models, ["learning_rate"], {}, values, draws=200, permutations=9, seed=3)
    for question, columns in (("r_test_accuracy", QUESTIONS["r"]), ("tau_test_accuracy", QUESTIONS["tau"])):
        wanted = of(field, [question, f"{question}_low", f"{question}_high"], measure="iou")
        assert of(found, columns, measure="iou") == pytest.approx(wanted, abs=1e-6)
