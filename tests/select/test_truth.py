"""Predictions held against the truth, counted by hand."""

import numpy as np
import pandas as pd
import pytest

from helpers.select import truth

NAN = float("nan")
RANKING = pd.DataFrame(
    {
        "checkpoint": ["a", "b", "c", "d"],
        "predicted_gap": [0.1, 0.2, 0.3, NAN],
        "gap_low": [0.0, 0.1, 0.25, NAN],
        "gap_high": [0.2, 0.3, 0.35, NAN],
    }
)
GAPS = pd.Series({"a": 0.15, "b": 0.05, "c": 0.35, "d": 0.01})
TARGET = pd.DataFrame({"checkpoint": ["c", "a"], "predicted_accuracy": [0.8, 0.6], "accuracy_low": [0.7, 0.5], "accuracy_high": [0.9, 0.7]})
FACTS = {"calibration": "other", "level": 0.8}


def test_gaps_and_accuracies_are_counted():
    table = truth.truth_table(RANKING, GAPS, **FACTS, target=TARGET, target_truth=pd.Series({"a": 0.9, "c": 0.85}))
    assert table.columns.tolist() == truth.TRUTH_COLUMNS
    gap, accuracy = (row for _, row in table.iterrows())
    assert gap[["models", "predicted", "inside", "best_ranked"]].tolist() == [4, 3, 2, 2]
    assert gap["share"] == pytest.approx(2 / 3)
    assert gap["mean_error"] == pytest.approx((0.05 + 0.15 + 0.05) / 3)
    assert accuracy[["models", "predicted", "inside", "best_ranked"]].tolist() == [2, 2, 1, 2]
    assert accuracy["mean_error"] == pytest.approx((0.05 + 0.3) / 2)
    text = truth.say_truth(table)
    assert "2 of 3 true gaps (66.7 %) lie in their 80% interval (1 more get no number), off by 8.3 points on average" in text
    assert "the smallest was ranked 2 of 3; 1 of 2 accuracies on the target (50.0 %)" in text
    assert "`other`" in text


def test_the_ends_of_an_interval_lie_in_it():
    table = truth.truth_table(RANKING, GAPS.replace(0.05, 0.1), **FACTS)
    assert table["inside"].tolist() == [3]


def test_where_nothing_is_predicted_it_is_said():
    none = RANKING.assign(predicted_gap=NAN)
    table = truth.truth_table(none, GAPS, **FACTS)
    assert table["inside"].tolist() == [0]
    assert np.isnan(table[["share", "mean_error", "best_ranked"]].to_numpy(dtype=float)).all()
    assert "none of 4 models has a predicted and a true gap" in truth.say_truth(table)
