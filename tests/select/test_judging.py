import numpy as np
import pandas as pd
import pytest
import scipy.stats

from helpers.select import judging, report
from helpers.select.case import FACTS
from helpers.select.prediction import predictor, weighed, wilson
from tests.select.conftest import models_table


def facts(**columns):
    count = len(next(iter(columns.values())))
    names = [f"{name}.pt" for name in "abcdef"[:count]]
    plain = {"network": "n", "residual": True, "outputs": 4, "notes": "", "fault": ""}
    plain |= {"doubt": "", "noted_accuracy": np.nan, "known_accuracy": np.nan}
    return pd.DataFrame(
        {"checkpoint": names, "model_id": names, "bytes": names} | plain | columns
    )[FACTS]


def found_of(mixup, train_accuracy=0.9):
    models = models_table(noise=0.02)
    table = pd.DataFrame(
        {"train_accuracy": train_accuracy, "log_train_loss": -2.0, "mixup": mixup}
    )
    return judging.Scored(
        table.assign(model_id=[f"{name}.pt" for name in "abcdef"[: len(table)]]),
        predictor(models, ["mixup"]),
        table,
    )


def test_checkpoints_are_ranked_by_predicted_test_accuracy_not_by_gap():
    found = found_of([0.5, 0.6, 0.7], [0.99, 0.8, 0.75])
    table = judging.verdicts(facts(fault=["", "", ""]), found)
    gap = dict(zip("abc", found.predictor.predicted(found.table), strict=True))
    assert gap["c"] < gap["a"]
    assert table["checkpoint"].iloc[0] == "a.pt"
    assert table["rank"].tolist() == [1, 2, 3]
    np.testing.assert_allclose(
        table["accuracy"] + table["gap"], table["train_accuracy"]
    )
    np.testing.assert_allclose(
        table["accuracy_high"] - table["accuracy_low"], 2 * found.predictor.half
    )
    np.testing.assert_allclose(
        table["gap_high"], table["train_accuracy"] - table["accuracy_low"]
    )
    behind = (table["accuracy"] - table["accuracy"].iloc[0]) / (
        np.sqrt(2) * found.predictor.error
    )
    np.testing.assert_allclose(table["better_than_first"], scipy.stats.norm.cdf(behind))
    assert table["better_than_first"].is_monotonic_decreasing


def test_equal_checkpoints_share_a_rank_and_an_answer():
    table = judging.verdicts(facts(fault=["", "", ""]), found_of([0.6, 0.6, 0.2]))
    assert table["rank"].tolist() == [1, 1, 3]
    assert "b.pt is as good within error" in report.answer(table)


def test_labelled_images_are_weighed_in_and_counted():
    given, found, right = (
        facts(fault=["", ""]),
        found_of([0.6, 0.6]),
        {"a.pt": 48, "b.pt": 54},
    )  # near what is predicted
    table = judging.verdicts(given, found, right, 100).set_index("checkpoint")
    said = found.table["train_accuracy"] - found.predictor.predicted(found.table)
    mean, deviation = weighed(
        said, found.predictor.error, found.predictor.common, [48, 54], 100
    )
    np.testing.assert_allclose(table.loc[["a.pt", "b.pt"], "accuracy"], mean)
    np.testing.assert_allclose(
        table["accuracy_high"] - table["accuracy"],
        1.2815516 * deviation[::-1],
        rtol=1e-6,
    )
    assert table.loc["a.pt", "labelled_right"] == 0.48
    assert tuple(table.loc["a.pt", ["counted_low", "counted_high"]]) == wilson(48, 100)
    assert (
        report.remarks(table.reset_index(), given, 100)[1]
        == "a.pt: accuracy on your 100 labelled images: 48.0 % (38 to 58)."
    )


@pytest.mark.parametrize("residual", [True, False])
def test_networks_like_no_study_s_are_judged_by_their_labelled_images_above_all(
    residual,
):
    found = found_of([0.6, 0.7])
    said = 0.9 - found.predictor.predicted(found.table)
    right = np.round(
        400 * (said + 1.5 * found.predictor.error)
    )  # a miss that the study's errors allow
    table = judging.verdicts(
        facts(residual=[residual, residual]),
        found,
        dict(zip(["a.pt", "b.pt"], right, strict=True)),
        400,
    )
    assert table["verdict"].tolist() == ["predicted" if residual else "counted"] * 2
    by = found.predictor
    trusted, plain = (
        weighed(said, by.error, by.common, right, 400, trusted=level)[0]
        for level in (0.95, 0.0)
    )
    np.testing.assert_allclose(
        table.sort_values("checkpoint")["accuracy"], trusted if residual else plain
    )
    assert (abs(plain - right / 400) < abs(trusted - right / 400)).all()


def test_no_accuracy_is_predicted_below_chance_or_above_one():
    assert (
        judging.verdicts(facts(fault=[""]), found_of([-1.0], 0.4))["accuracy"].item()
        == 0.25
    )
    found = found_of([1.4, 1.6], 0.99)
    assert (
        judging.verdicts(facts(fault=["", ""]), found, {"a.pt": 40, "b.pt": 40}, 40)[
            "accuracy"
        ].max()
        <= 1
    )


def test_another_kind_of_network_is_not_judged_without_labelled_images():
    given = facts(residual=[False, False])
    table = judging.verdicts(
        given, found_of([0.6, 3.0])
    )  # one beyond the study's models
    assert table["verdict"].eq("not judged").all()
    assert (
        table[["rank", "accuracy", "gap", "accuracy_low", "gap_high"]]
        .isna()
        .all(axis=None)
    )
    assert len(report.remarks(table, given, 0)) == 1


def test_what_cannot_be_judged_says_why_once_and_enters_no_rank():
    found = found_of([0.6, np.nan, 0.5, 0.5], [0.9, 0.9, 0.26, 0.26])
    given = facts(fault=["", "", "", "", "it is text"])
    table = judging.verdicts(given, found).set_index("checkpoint")
    assert table["verdict"].to_dict() == {
        "a.pt": "predicted",
        **dict.fromkeys(("b.pt", "c.pt", "d.pt"), "not judged"),
        "e.pt": "not read",
    }
    assert table["rank"].isna().all()
    said = report.remarks(table.reset_index(), given, 0)
    assert len(said) == 3
    assert any(
        text.startswith(
            "c.pt, d.pt are not judged: its training accuracy of 26% is near chance (25%"
        )
        for text in said
    )
    assert "e.pt is not read: it is text." in said
    assert report.answer(table.reset_index()).startswith("a.pt: ")


def test_without_any_checkpoint_that_can_be_read_nothing_is_said():
    table = judging.verdicts(facts(fault=["it is text", "it is empty"]), None)
    assert table["verdict"].tolist() == ["not read"] * 2
    assert report.answer(table) == "None of 2 checkpoints is judged."


def test_values_beyond_the_study_are_named():
    table = judging.verdicts(facts(fault=[""]), found_of([3.0]))
    assert "mixup" in table["note"].item()
