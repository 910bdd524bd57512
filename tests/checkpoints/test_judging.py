import functools

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from helpers.checkpoints import judging, report
from helpers.checkpoints.case import FACTS
from helpers.checkpoints.prediction import combine_with_labels, predictor, wilson
from tests.checkpoints.conftest import models_table


def facts(**columns):
    count = len(next(iter(columns.values())))
    names = [f"{name}.pt" for name in "abcdef"[:count]]
    plain = {"network": "n", "residual": True, "outputs": 4, "notes": "", "fault": ""}
    plain |= {"doubt": "", "noted_accuracy": np.nan, "known_accuracy": np.nan}
    plain |= {"class_images": np.nan, "weights": ""}
    return pd.DataFrame({"checkpoint": names, "model_id": names} | plain | columns)[
        FACTS
    ]


def flags(right, images=100):
    """Whether each of some labelled images is classified correctly."""
    return np.arange(images) < right


@functools.cache
def calibrated():
    return predictor(models_table(noise=0.02), ["mixup"])


def found_of(mixup, train_accuracy=0.9):
    table = pd.DataFrame(
        {"train_accuracy": train_accuracy, "log_train_loss": -2.0, "mixup": mixup}
    )
    return judging.Scored(
        table.assign(model_id=[f"{name}.pt" for name in "abcdef"[: len(table)]]),
        calibrated(),
        table,
    )


def test_checkpoints_are_ranked_by_predicted_test_accuracy_not_by_gap():
    found = found_of([0.5, 0.6, 0.7], [0.99, 0.8, 0.75])
    table = judging.verdicts(facts(fault=["", "", ""]), found)
    gap = dict(
        zip("abc", found.predictor.regression.predicted(found.table), strict=True)
    )
    assert gap["c"] < gap["a"]
    assert table["checkpoint"].iloc[0] == "a.pt"
    assert table["rank"].tolist() == [1, 2, 3]
    np.testing.assert_allclose(
        table["accuracy"] + table["gap"], table["train_accuracy"]
    )
    by_name = table.sort_values("checkpoint")
    np.testing.assert_allclose(
        by_name["accuracy_high"] - by_name["accuracy_low"],
        2 * found.predictor.half_width(found.table),
    )
    np.testing.assert_allclose(
        table["gap_high"], table["train_accuracy"] - table["accuracy_low"]
    )
    error = pd.Series(found.predictor.error_sd(found.table), list("abc"))
    error = error[[name[0] for name in table["checkpoint"]]].to_numpy()
    behind = (table["accuracy"] - table["accuracy"].iloc[0]) / np.hypot(error, error[0])
    np.testing.assert_allclose(
        table["better_than_first"], scipy.stats.norm.cdf(behind), rtol=1e-6
    )


def test_equal_checkpoints_share_a_rank_and_an_answer():
    table = judging.verdicts(facts(fault=["", "", ""]), found_of([0.6, 0.6, 0.2]))
    assert table["rank"].tolist() == [1, 1, 3]
    assert report.answer(table).startswith("Not told apart: a.pt, b.pt, whose")


def test_labelled_images_are_weighed_in_and_counted():
    given = facts(fault=["", ""])
    found = found_of([0.6, 0.6])
    right = {"a.pt": flags(48), "b.pt": flags(54)}  # near what is predicted
    table = judging.verdicts(given, found, right).set_index("checkpoint")
    said = found.table["train_accuracy"] - found.predictor.regression.predicted(
        found.table
    )
    by = found.predictor
    mean, covariance = combine_with_labels(
        said, by.error_sd(found.table), by.common, np.stack(list(right.values()))
    )
    deviation = np.sqrt(np.diag(covariance))
    table = table.loc[["a.pt", "b.pt"]]
    np.testing.assert_allclose(table.loc[["a.pt", "b.pt"], "accuracy"], mean)
    np.testing.assert_allclose(
        table["accuracy_high"] - table["accuracy"],
        by.half_width_at_0 / by.error_sd_at_0 * deviation,
    )
    # Both err together on the same images, so they are told apart more easily.
    assert covariance[0, 1] > 0
    contrast = np.array([1, -1])
    spread = np.sqrt(contrast @ covariance @ contrast)
    is_better = scipy.stats.norm.cdf(-abs(mean[0] - mean[1]) / spread)
    assert table["better_than_first"].min() == pytest.approx(is_better)
    assert table.loc["a.pt", "labelled_right"] == 0.48
    assert tuple(table.loc["a.pt", ["counted_low", "counted_high"]]) == wilson(48, 100)
    assert (
        report.remarks(table.reset_index(), given, 100)[0]
        == "a.pt: accuracy on your 100 labelled images: 48.0 % (95 % interval: 38 to 58)."
    )


def test_networks_like_no_study_s_are_judged_by_their_labelled_images_alone():
    found = found_of([0.6, 0.7, 0.7])
    right = {"a.pt": flags(200, 400), "b.pt": flags(240, 400), "c.pt": flags(220, 400)}
    table = judging.verdicts(facts(residual=[False, False, True]), found, right)
    table = table.set_index("checkpoint").sort_index()
    assert table["verdict"].tolist() == ["counted", "counted", "predicted"]
    assert table["accuracy"].tolist()[:2] == [0.5, 0.6]
    half = scipy.stats.norm.ppf(0.9) * np.sqrt(0.25 / 400)  # of 80 %
    assert table.loc["a.pt", "accuracy_high"] - 0.5 == pytest.approx(half, rel=1e-3)
    alone, _ = combine_with_labels(
        0.9 - found.predictor.regression.predicted(found.table)[2:],
        found.predictor.error_sd(found.table)[2:],
        0.0,
        right["c.pt"][None],
    )
    assert table.loc["c.pt", "accuracy"] == pytest.approx(alone[0])


def test_a_counted_accuracy_below_chance_stands_as_it_was_counted():
    """Of 4 classes chance is 0.25; 60 images, of which 7 and 8 are right."""
    right = {"a.pt": flags(7, 60), "b.pt": flags(8, 60)}
    given = facts(residual=[False, False])
    table = judging.verdicts(given, found_of([0.6, 0.6]), right)
    assert table["verdict"].tolist() == ["counted", "counted"]
    np.testing.assert_array_equal(table["accuracy"], table["labelled_right"])
    np.testing.assert_array_equal(table["accuracy"], [8 / 60, 7 / 60])
    middle = (table["accuracy_low"] + table["accuracy_high"]) / 2
    np.testing.assert_allclose(middle, table["accuracy"])
    assert not table["note"].str.contains("chance").any()
    assert report.answer(table).endswith(
        "The highest accuracy is 13 % (8 to 19) counted on your labelled images, "
        "for b.pt."
    )
    alone = judging.verdicts(given[:1], found_of([0.6]), {"a.pt": flags(7, 60)})
    assert report.answer(alone) == (
        "a.pt: 12 % (6 to 17) counted on your labelled images."
    )


def test_without_a_count_a_network_like_no_study_s_is_not_judged():
    """Its pass over the labelled images failed, that of the other did not."""
    found = found_of([0.6, 0.6])
    given = facts(residual=[False, False])
    table = judging.verdicts(given, found, {"b.pt": flags(30)}).set_index("checkpoint")
    assert table["verdict"].to_dict() == {"a.pt": "not judged", "b.pt": "counted"}
    assert np.isnan(table.loc["a.pt", "accuracy"])
    assert table.loc["a.pt", "note"].endswith(
        "; its accuracy on the labelled images is undefined"
    )


def test_networks_beyond_the_studies_are_judged_by_labelled_images_alone():
    """By one value far outside, and by another number of classes."""
    found = found_of([0.6, 3.0])
    table = judging.verdicts(facts(fault=["", ""]), found).set_index("checkpoint")
    assert table["verdict"].to_dict() == {"a.pt": "predicted", "b.pt": "not judged"}
    assert table.loc["b.pt", "note"].startswith(
        "beyond what the studies cover (mixup 3.00, there 0."
    )
    assert "--labelled" in table.loc["b.pt", "note"]
    counted = judging.verdicts(
        facts(fault=["", ""]), found, {"a.pt": flags(48), "b.pt": flags(54)}
    ).set_index("checkpoint")
    assert counted.loc["b.pt", "verdict"] == "counted"
    assert abs(counted.loc["b.pt", "accuracy"] - 0.54) < 0.02
    for classes, verdict in ((4, "predicted"), (8, "predicted"), (10, "not judged")):
        table = judging.verdicts(
            facts(fault=["", ""]), found_of([0.6, 0.7])._replace(classes=(classes,))
        )
        assert table["verdict"].eq(verdict).all()
    assert "(4 classes; there 10)" in table["note"].iloc[0]


def test_what_a_study_knows_of_its_checkpoints_is_printed():
    known = facts(known_accuracy=[0.5, 0.6])
    table = judging.verdicts(known, found_of([0.5, 0.6]))
    (sentence,) = report.remarks(table, known, 0)
    assert sentence.startswith(
        "Known from the study's test images: the best is b.pt with 60.0 %"
    )
    assert "known (%)" in report.printed(table)
    assert "known (%)" not in report.printed(
        judging.verdicts(facts(fault=["", ""]), found_of([0.5, 0.6]))
    )


def test_files_of_the_same_weights_are_said_to_be_equal():
    given = facts(weights=["1", "1", "1", "2"])
    table = judging.verdicts(given, found_of([0.6, 0.6, 0.6, 0.6]))
    assert report.remarks(table, given, 0) == [
        "a.pt and b.pt and c.pt hold the same weights.",
    ]


def test_a_best_is_named_where_no_interval_reaches_the_first():
    table = judging.verdicts(facts(fault=["", ""]), found_of([0.9, 0.2]))
    assert report.answer(table).startswith("a.pt is expected to do best: ")


def test_no_accuracy_is_predicted_below_chance_or_above_one():
    found = found_of([0.25], 0.75)
    table = judging.verdicts(facts(outputs=[2]), found)
    assert table["accuracy"].item() == 0.5
    predicted = 0.75 - found.predictor.regression.predicted(found.table).item()
    note = (
        f"its predicted accuracy of {100 * predicted:.0f} % is raised to chance (50 %)"
    )
    assert note in table["note"].item()
    # Labelled images, of which 10 of 100 are right, do not take it below either.
    table = judging.verdicts(facts(outputs=[2]), found, {"a.pt": flags(10)})
    assert table["accuracy"].item() == 0.5
    assert "raised to chance (50 %)" in table["note"].item()
    high = judging.verdicts(facts(fault=[""]), found_of([0.6]))
    assert "chance" not in high["note"].item()
    found = found_of([1.4, 1.6], 0.99)
    assert (
        judging.verdicts(
            facts(fault=["", ""]), found, {"a.pt": flags(40, 40), "b.pt": flags(40, 40)}
        )["accuracy"].max()
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


def test_values_outside_of_the_studies_range_are_named():
    found = found_of([0.6], 0.64)
    assert (
        found.predictor.regression.leverage(found.table)
        < found.predictor.largest_leverage
    )
    table = judging.verdicts(facts(fault=[""]), found)
    assert table["verdict"].item() == "predicted"
    note = "; outside the studies' range: training accuracy 64 %, there 7"
    assert note in table["note"].item()


def test_a_tenth_of_the_way_from_chance_to_one_has_learnt():
    """Of 4 classes 0.25 + 0.1 * 0.75 = 0.325."""
    found = found_of([0.6, 0.6], [0.32, 0.33])
    table = judging.verdicts(facts(fault=["", ""]), found)
    notes = table.set_index("checkpoint")["note"]
    assert "near chance" in notes["a.pt"]
    assert "near chance" not in notes["b.pt"]


@pytest.mark.parametrize(
    ("classes", "is_covered"),
    [
        ((), True),
        ((2,), True),
        ((1.9,), False),
        ((8,), True),
        ((8.1,), False),
        ((1, 9), True),
        ((10, 20), False),
    ],
)
def test_studies_of_half_or_twice_as_many_classes_cover_a_network(classes, is_covered):
    """The networks have four classes."""
    found = found_of([0.6, 0.7])._replace(classes=classes)
    table = judging.verdicts(facts(fault=["", ""]), found)
    assert table["verdict"].eq("predicted").all() == is_covered
