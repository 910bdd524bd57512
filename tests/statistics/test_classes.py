import numpy as np
import pytest

from helpers.statistics.gap_tables import class_table


def test_the_table_of_classes_by_hand():
    values = {
        "iou": np.array([[0.2, 0.4, np.nan, 0.6], [0.4, 0.8, np.nan, 0.8]]),
        "train_accuracy": np.array([[1.0, 1.0, 0.0, 1.0], [1.0, 0.0, 1.0, 1.0]]),
    }
    # The second network's test predictions are not recorded.
    correct = np.array([[0.0, 1.0, 0.0], [np.nan] * 3])
    table = class_table(["a", "b", "c"], [0, 0, 1, 2], values, [0, 0, 1], correct)
    table = table.set_index("class")
    assert table.index.tolist() == ["a", "b", "c"]
    assert table.loc["a", "iou"] == pytest.approx((0.2 + 0.4 + 0.4 + 0.8) / 4)
    assert table.loc["a", "train_accuracy"] == 3 / 4
    assert table.loc["a", ["test_accuracy", "gap"]].tolist() == [0.5, 1.0 - 0.5]
    assert np.isnan(table.loc["b", "iou"]) and table.loc["b", "gap"] == 0.0 - 0.0
    assert table["test_images"].tolist() == [2, 1, 0]
    assert np.isnan(table.loc["c", ["test_accuracy", "gap"]].astype(float)).all()
    assert table["networks_tested"].eq(1).all()


def test_without_test_predictions_the_gap_of_classes_is_undefined():
    values = {"train_accuracy": np.ones((1, 2))}
    table = class_table(["a", "b"], [0, 1], values, [0, 1], np.full((1, 2), np.nan))
    assert table["train_accuracy"].eq(1).all() and table["gap"].isna().all()
