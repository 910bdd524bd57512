"""What unlabelled images are worth: on models made by hand, whose accuracies are known functions of their measures."""

import numpy as np
import pandas as pd
import pytest

from helpers.scoring import worth
from helpers.statistics.labelling import labelling_error

NAMES = {"holdout_accuracy": worth.UNLABELLED, "iou": worth.TRAINING, "average_confidence": worth.UNLABELLED}


def models(cells=20, seed=0):
    """Two models per cell: accuracy depends on the learning rate and on something that only the average confidence shows."""
    random = np.random.default_rng(seed)
    cell = np.repeat(np.arange(cells), 2)
    hidden = random.normal(size=2 * cells)
    table = pd.DataFrame({"cell": [f"c{i}" for i in cell], "learning_rate": cell % 2 * 0.1, "train_accuracy": 0.95, "train_loss": 0.1})
    table["test_accuracy@blur_0.9"] = 0.6 + 0.1 * (cell % 2) + 0.05 * hidden
    table["average_confidence"] = table["test_accuracy@blur_0.9"] + 0.2
    table["iou"] = random.normal(size=2 * cells)
    table["holdout_accuracy"] = table["test_accuracy@blur_0.9"] + 0.01
    return table


def table(models, **more):
    given = {"shift": "blur_0.9", "passes": {"iou": 2.0}, "resamples": 200} | more
    return worth.worth_table(models, NAMES, ["learning_rate"], **given).set_index("measure")


def test_errors_gains_and_labels_of_known_models():
    made = models()
    found = table(made)
    assert {*found.index[:3]} == {"50 labelled images", "holdout_accuracy", worth.KNOWN}
    assert found["source"].tolist() == [worth.BASELINE] * 3 + [worth.TRAINING, worth.UNLABELLED]
    truth = made["test_accuracy@blur_0.9"]
    assert found.loc["50 labelled images", "error"] == pytest.approx(100 * labelling_error(50, truth))
    assert found.loc["average_confidence", "error"] == pytest.approx(20)
    assert found.loc["holdout_accuracy", "error"] == pytest.approx(1)
    assert found.loc["average_confidence", ["kendall_tau", "fitted_error"]].tolist() == pytest.approx([1, 0], abs=0.2)
    # What is hidden has a mean size of 5 points times the mean of |z|.
    assert found.loc[worth.KNOWN, "with_error"] == pytest.approx(5 * (2 / np.pi) ** 0.5, rel=0.3)
    assert found.loc["average_confidence", "with_error"] < 0.5
    assert found.loc["average_confidence", "gain_low"] > 2
    assert found.loc["iou", "gain_low"] < 0.5
    assert found.loc["average_confidence", "over_training"] == pytest.approx(
        found.loc["iou", "with_error"] - found.loc["average_confidence", "with_error"]
    )
    labels = found.loc["holdout_accuracy", "labelled_images"]
    assert 100 * labelling_error(int(labels), truth) <= 1 < 100 * labelling_error(int(labels) - 1, truth)
    assert found.loc["holdout_accuracy", "worth_more"]
    assert not found.loc["average_confidence", "worth_more"]
    assert np.isnan(found.loc["iou", "error"])


def test_few_cells_have_no_interval_and_undefined_measures_no_number():
    few = models(cells=5)
    few["average_confidence"] = np.nan
    found = table(few)
    assert found[["gain_low", "gain_high"]].isna().all(axis=None)
    assert found.loc["average_confidence", ["error", "fitted_error", "with_error", "gain", "labelled_images"]].isna().all()
    assert found.loc["average_confidence", "n"] == 0
    assert np.isfinite(found.loc["iou", "with_error"])
    assert table(models(cells=2))[["with_error", "gain"]].isna().all(axis=None)


def test_passes_by_hand():
    assert worth.passes_needed(("target_logits", "temperature"), 3000, 600, 1000) == 1
    assert worth.passes_needed(("target_logits", "holdout_logits", "holdout_labels"), 3000, 600, 1000) == pytest.approx(1.2)
    assert worth.passes_needed(("rotated_target_logits",), 3000, 600, 1000) == pytest.approx(4 / 3)
