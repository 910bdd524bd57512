"""What is said and drawn of wrong labels: by the table's numbers, and in words where there are none."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from helpers.ablations import wrong_labels
from helpers.statistics.hyperparameters import SHIFT_COLUMNS

NAN = float("nan")
TITLES = {"follows": "Follows", "other": "Other", "loose": "Loose", "flat": "Flat"}


@pytest.fixture
def moved():
    """The gap moves by half a standard deviation; one measure with it, one the other way, one loosely, and one is undefined."""
    rows = [
        ("gap", 0.06, 0.5, 0.3, 0.7, 1.0, 1.0, 1.0),
        ("train_accuracy", -0.04, -0.3, -0.5, -0.1, 0.8, 0.7, 0.9),
        ("follows", -0.2, -0.4, -0.6, -0.2, -0.8, -0.9, -0.7),
        ("other", 0.1, 1.5, 1.2, 1.8, -0.5, -0.7, -0.3),
        ("loose", 0.1, 0.2, -0.1, 0.5, 0.6, 0.4, 0.8),
        ("flat", 0.0, NAN, NAN, NAN, NAN, NAN, NAN),
    ]
    known = [name for name in SHIFT_COLUMNS if name not in ("column", "level", "n", "cells")]
    return pd.DataFrame(rows, columns=known).assign(column="label_noise", level="0.2", n=22, cells=16)[SHIFT_COLUMNS]


def test_no_label_noise_is_said_and_noise_is_read_by_level():
    levels = pd.DataFrame({"level": ["0.0", "0.2"], "n": 20, "pearson_r": [-0.8, 0.1], "ci_low": [-0.9, -0.4], "ci_high": [-0.5, 0.5]})
    assert "no models trained on noisy labels" in wrong_labels.say_label_noise(levels.iloc[:1])
    assert "no models trained on noisy labels" in wrong_labels.say_label_noise(levels.iloc[:0])
    text = wrong_labels.say_label_noise(levels)
    assert "0.0 % noise: -0.80" in text
    assert "20.0 % noise: 0.10" in text


def test_a_measure_keeps_or_reverses_the_promise_of_its_r(moved):
    found = wrong_labels.with_promises(moved).set_index("measure")
    assert found["promised"].tolist()[:5] == pytest.approx([0.5, 0.4, -0.4, -0.25, 0.3])
    assert found["kept"].tolist()[2:] == ["same direction", "opposite direction", "not told", "not told"]


def test_a_gap_that_does_not_move_promises_nothing(moved):
    moved.loc[0, ["ci_low", "shift"]] = [-0.1, 0.3]
    assert set(wrong_labels.with_promises(moved)["kept"]) == {"not told"}


def test_a_gap_that_shrinks_turns_the_promises(moved):
    moved.loc[0, ["shift", "ci_low", "ci_high"]] = [-0.5, -0.7, -0.3]
    found = wrong_labels.with_promises(moved).set_index("measure")
    assert found.loc[["follows", "other"], "kept"].tolist() == ["opposite direction", "same direction"]


def test_pairs_and_promises_are_told_by_their_numbers(moved):
    promised = wrong_labels.with_promises(moved)
    assert wrong_labels.say_pairs(promised) == (
        "In 22 pairs of models from 16 cells that differ in labels alone, 20.0 % of them wrong moves "
        "the gap by +6.0 points, training accuracy by -4.0 points."
    )
    text = wrong_labels.say_promises(promised, TITLES, ["other", "flat"])
    assert "Of 4 measures 1 move in the direction that their r" in text
    assert "promises, 1 in the opposite one" in text
    assert text.endswith("right labels: Other +1.50 (95 % interval 1.20 to 1.80; promised -0.25).")


def test_the_gap_on_right_labels_is_told_where_it_was_scored(moved):
    models = pd.DataFrame({"test_accuracy": [0.5, 0.6], "training_accuracy": [0.7, np.nan]})
    assert wrong_labels.with_gap_on_right_labels(models)["gap_right_labels"].tolist() == pytest.approx([0.2, np.nan], nan_ok=True)
    assert wrong_labels.with_gap_on_right_labels(models[["test_accuracy"]])["gap_right_labels"].isna().all()
    right = moved.iloc[:1].assign(measure="gap_right_labels", change=-0.034)
    text = wrong_labels.say_pairs(wrong_labels.with_promises(pd.concat([moved, right], ignore_index=True)))
    assert "Held against the right labels, as the measures are, the gap moves by -3.4 points:" in text


def test_few_cells_are_said(moved):
    few = moved.assign(ci_low=NAN, ci_high=NAN, cells=5)
    assert wrong_labels.say_pairs(wrong_labels.with_promises(few)).endswith("Under 8 cells there is no interval.")


@pytest.mark.parametrize("change", [{"n": 0, "shift": NAN, "change": NAN}, {"empty": True}])
def test_without_pairs_it_is_said_that_nothing_is_tested(moved, change):
    none = wrong_labels.with_promises(moved.iloc[:0] if "empty" in change else moved.assign(**change))
    for text in (wrong_labels.say_pairs(none), wrong_labels.say_promises(none, TITLES, ["other"])):
        assert "no models trained on noisy labels" in text
    assert wrong_labels.shifts_figure(none, TITLES, []).axes[0].texts


def test_the_figure_has_the_strongest_promises_and_those_that_are_named(moved):
    figure = wrong_labels.shifts_figure(wrong_labels.with_promises(moved), TITLES, ["other"], most=1)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["Other", "Follows"]
    whole = wrong_labels.shifts_figure(wrong_labels.with_promises(moved), TITLES, [])
    drawn = {line.get_label(): line.get_xdata().tolist() for line in whole.axes[0].lines[1:]}
    assert drawn["promised"] == pytest.approx([0.3, -0.25, -0.4])
    assert drawn["same direction (1)"] == [-0.4]
    assert np.isfinite(drawn["opposite direction (1)"]).all()
    plt.close("all")


@pytest.fixture
def field():
    """48 models; among those of right labels "sees" is noise, and it goes with the gap by the wrong labels alone."""
    rng, n = np.random.default_rng(0), 48
    noise = np.where(np.arange(n) < 32, 0.0, 0.2)
    gap = 0.3 + 0.1 * rng.normal(size=n) + noise
    facts = {"cell": [f"c{k // 2}" for k in range(n)], "rate": np.arange(n) // 2 % 2, "label_noise": noise, "gap": gap}
    facts |= {
        "train_accuracy": 0.9 + 0.01 * rng.normal(size=n),
        "train_loss": 0.3 + 0.01 * rng.random(n),
        "sees": rng.normal(size=n) + 20 * noise,
    }
    return pd.DataFrame(facts | {"test_accuracy": 0.9 - gap, "follows": gap + 0.01 * rng.normal(size=n)})


def test_without_wrong_labels_the_others_are_asked_alone(field):
    found = wrong_labels.without_wrong_labels(field, ["follows", "sees", "absent"], ["rate", "label_noise"], {}, 300).set_index("measure")
    right = field[field["label_noise"] == 0]
    assert found["n"].tolist() == [32, 32]
    assert found["cells"].tolist() == [16, 16]
    assert found["r_gap"].tolist() == pytest.approx([right["follows"].corr(right["gap"]), right["sees"].corr(right["gap"])])
    assert field["sees"].corr(field["gap"]) > 0.4
    assert found.loc["sees", "r_gap_low"] < 0 < found.loc["sees", "r_gap_high"]
    assert found.loc["follows", "added_error_points_low"] > 0
    text = wrong_labels.say_without(found.reset_index(), {"follows": "Follows", "sees": "Sees"})
    assert text.startswith("Among the 32 models of right labels alone, beside what 04 has of all: Follows r 0.9")


def test_where_all_labels_are_right_nothing_is_asked_again(field):
    none = wrong_labels.without_wrong_labels(field.assign(label_noise=0.0), ["follows"], ["rate"], {}, 300)
    assert len(none) == 0
    assert "no models trained on noisy labels" in wrong_labels.say_without(none, {})
