"""Logits on targets: one pass per model and target, the truth beside them, and measures that follow from what is kept."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import softmax

from helpers.data import shifts
from helpers.measures.evidence import MeasureSettings
from helpers.networks import resnet
from helpers.scores import classification, targets
from helpers.training.config import config_from
from helpers.training.run import images_of_run

SHIFTS = ["rotation_15"]
SETTINGS = MeasureSettings(seed=2)


@pytest.fixture(scope="module")
def records(study, store, networks):
    return targets.on_targets(store, networks, study.data, SHIFTS, SETTINGS)


def logits_on(model, images):
    with torch.no_grad():
        return model.load("cpu")(resnet.normalise_images(images)).half()


def test_the_truth_is_the_share_of_right_shifted_images(study, networks, records):
    images = shifts.shifted(study.data.test.images, "rotation_15")
    truth = targets.scores_on_targets(records, study.table, SHIFTS)
    truth = truth[truth["target"] == "rotation_15"].set_index("model_id")
    truth = truth["test_accuracy"]
    for model in networks:
        is_right = logits_on(model, images).argmax(1) == study.data.test.labels
        assert truth[model.model_id] == pytest.approx(float(is_right.double().mean()))
    diverged = study.table.query("snapshot == 'none'")["model_id"]
    assert truth[diverged].isna().all()


@pytest.mark.parametrize("shift", ["", *SHIFTS])
def test_measures_are_of_the_logits_on_the_target(study, networks, records, shift):
    images = study.data.test.images
    if shift:
        images = shifts.shifted(images, shift)
    for model in networks:
        scores = records.record(f"target-{shift or 'test'}", model.model_id)["scores"]
        value = scores.set_index(["measure", "variant"])["value"]
        p = softmax(logits_on(model, images).numpy().astype(float), 1)
        confidence = value["average_confidence", "as given"]
        assert confidence == pytest.approx(p.max(1).mean(), abs=1e-4)
        config = config_from(model.facts)
        has_holdout = config.rule3_split == "holdout"
        assert np.isfinite(value["thresholded_confidence", "as given"]) == has_holdout
        if has_holdout:
            held_out = images_of_run(study.data, config)[1]
            logits = classification.logits_of(model.load("cpu"), held_out.images, "cpu")
            share = float((logits.argmax(1) == held_out.labels).double().mean())
            assert value["holdout_accuracy", ""] == pytest.approx(share)
            estimate = share + confidence - softmax(logits.numpy(), 1).max(1).mean()
            of_difference = value["difference_of_confidences", "as given"]
            assert of_difference == pytest.approx(estimate, abs=1e-4)


def test_every_target_has_the_models_and_the_measures(study, records):
    rows = study.table.query("snapshot != 'none'")
    scores = targets.scores_on_targets(records, rows, SHIFTS)
    model_ids = scores.groupby("target", sort=False)["model_id"].apply(list)
    assert model_ids.tolist() == [rows["model_id"].tolist()] * 2
    titles = {"average_confidence": "", "matrix_norm_of_logits": "", "absent": ""}
    errors = targets.prediction_errors(scores, titles, draws=0, seed=0)
    errors = errors.pivot(index="target", columns="measure", values="error_points")
    difference = scores["average_confidence"] - scores["test_accuracy"]
    expected = 100 * difference.abs().groupby(scores["target"]).mean()
    assert list(errors) == ["average_confidence", "matrix_norm_of_logits"]
    assert errors["average_confidence"].to_dict() == pytest.approx(expected.to_dict())
    assert errors["matrix_norm_of_logits"].isna().all()  # it predicts no accuracy


def test_errors_on_both_sides_add_up_and_only_their_mean_is_the_bias():
    """0.9 for 0.7 and 0.5 for 0.6: errors of 20 and 10 points, 20 - 10 together."""
    scores = pd.DataFrame({"cell": [0, 1, 2], "target": targets.PLAIN_TARGET})
    scores["test_accuracy"] = [0.7, 0.6, 0.5]
    scores["average_confidence"] = [0.9, 0.5, np.nan]
    titles = {"average_confidence": "average confidence"}
    row = targets.prediction_errors(scores, titles, draws=0, seed=0).iloc[0]
    assert row["n"] == 2
    assert row["error_points"] == pytest.approx(15)
    assert row["bias_points"] == pytest.approx(5)


def test_accuracy_under_transforms_is_kept_and_joined_by_model(study, store, networks):
    table = targets.accuracies_under_transforms(store, networks, study.data, seed=0)
    assert table["model_id"].tolist() == [model.model_id for model in networks]
    values = table.drop(columns="model_id")
    assert values.columns.str.startswith("test accuracy under ").all()
    assert ((values >= 0) & (values <= 1)).all(axis=None)


def test_predictors_of_invariance_keep_the_sign_of_the_raw_predictor():
    truth = np.random.default_rng(0).uniform(size=40)
    table = pd.DataFrame({"cell": np.arange(40), "axis": np.arange(40) % 2})
    for transform in targets.transforms.TRANSFORMS:
        table[f"test accuracy under {transform}"] = truth
        for measure, direction in targets.PREDICTORS.values():
            column = targets.registry.MEASURES[measure].column(transform)
            table[column] = direction * truth
    found = targets.invariance_table(table, ["axis"], draws=50, seed=0)
    np.testing.assert_allclose(found["kendall"], found["direction"])
    np.testing.assert_allclose(found["information"], 100)
    assert (found["n"] == 40).all()
