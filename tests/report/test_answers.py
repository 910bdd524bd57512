"""The answer of a study: its numbers are those of its tables, its words follow intervals, verdicts and conditions."""

import re

import numpy as np
import pandas as pd
import pytest

from helpers.report import answers, findings
from helpers.statistics import baselines
from helpers.statistics.verdicts import (
    CANNOT_TELL,
    NOT_REPRODUCED,
    REPRODUCED,
    gate_table,
)
from tests.report import made

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@pytest.fixture(scope="module")
def given():
    return made.tables()


def of(given, **changed):
    return answers.answer(given | changed)


def changed(table, measure, **values):
    return table.assign(
        **{
            name: table[name].mask(table["measure"] == measure, value)
            for name, value in values.items()
        }
    )


def known_numbers(given):
    """Every number of the tables as a reader may see it: with two decimals, in points, in percent, as a count."""
    values = np.concatenate(
        [
            table.select_dtypes("number").to_numpy(dtype=float).ravel()
            for table in given.values()
        ]
    )
    values = np.concatenate([values, 1 - values])
    shown = {
        form(value)
        for value in values[np.isfinite(values)]
        for form in ("{:.2f}".format, "{:.1f}".format, "{:.0f}".format)
    }
    return shown | {f"{100 * value:.0f}" for value in values[np.isfinite(values)]}


def test_every_number_of_the_answer_is_one_of_the_tables(given):
    told = of(given)
    text = " ".join(
        [*told.sentences, *told.rows[answers.HEADS[1:]].to_numpy().ravel()]
    ).replace("ResNet18", "")
    allowed = known_numbers(given) | {"-0.89", "-0.82", str(len(given["primary"]))}
    assert set(NUMBER.findall(text)) <= allowed
    assert len(NUMBER.findall(text)) > 15


def test_a_sentence_has_one_number_at_most_and_there_are_three(given):
    told = of(given)
    assert told.warning == "" and len(told.sentences) == 3 and len(told.rows) == 4
    for sentence in re.split(
        r"(?<=[.;]) ", " ".join([*told.sentences, answers.CAUSAL])
    ):
        assert len(NUMBER.findall(sentence)) <= 1, sentence


@pytest.mark.parametrize("found", [REPRODUCED, NOT_REPRODUCED, CANNOT_TELL])
def test_the_verdict_is_that_of_the_claim(given, found):
    claims = changed(given["claims"], "iou", verdict=found)
    told = of(given, claims=claims)
    assert told.rows["answer"][0].startswith(f"**{found.capitalize()}.**")
    words = {
        REPRODUCED: "result is reproduced",
        NOT_REPRODUCED: "is not reproduced",
        CANNOT_TELL: "cannot be told",
    }
    assert words[found] in told.sentences[0]


def test_without_a_claim_on_iou_it_is_held_against_the_papers_resnet18(given):
    other = given["claims"][given["claims"]["measure"] != "iou"]
    assert of(given, claims=other).rows["answer"][0].startswith("**Not reproduced.**")
    near = changed(
        given["primary"],
        "iou",
        r_gap=-0.88,
        r_gap_low=-0.95,
        r_gap_high=-0.8,
        r_gap_p=0.001,
    )
    assert (
        of(given, claims=other, primary=near)
        .rows["answer"][0]
        .startswith("**Reproduced.**")
    )


def test_no_measure_is_credited_with_what_the_start_explains(given):
    """The start says as much as the pointing game, and little is left beside it."""
    start = {"r_gap": -0.9, "r_gap_low": -0.95, "r_gap_high": -0.8}
    primary = changed(given["primary"], "pretrained", **start)
    looking = {"r_gap": -0.88, "r_gap_p_adjusted": 0.001, "r_gap_given_start": -0.2}
    primary = changed(primary, "pointing_game", **looking)
    for p, low, high, words in (
        (0.5, -0.5, 0.1, "cannot be told (r = -0.20)"),
        (0.01, -0.5, -0.1, "the correlation remains (r = -0.20)"),
        (0.2, -0.5, -0.1, "cannot be told (r = -0.20)"),  # an interval is not enough
        (0.01, 0.1, 0.5, "it turns round (r = -0.20)"),
    ):
        given_start = {
            "r_gap_given_start_p_adjusted": p,
            "r_gap_given_start_low": low,
            "r_gap_given_start_high": high,
        }
        told = of(given, primary=changed(primary, "pointing_game", **given_start))
        assert "started pretrained says as much (r = -0.90)" in told.sentences[1]
        assert words in told.sentences[1]
        assert "pretrained alone: r = -0.90 (-0.95 to -0.80)" in told.rows["number"][1]
    more = changed(primary, "pretrained", r_gap=-0.95)
    assert "says more (r = -0.95)" in of(given, primary=more).sentences[1]
    less = changed(primary, "pretrained", r_gap=-0.5)
    assert "says less (r = -0.50)" in of(given, primary=less).sentences[1]
    unclear = changed(primary, "pointing_game", r_gap_p_adjusted=0.2)
    assert "do not clearly point more" in of(given, primary=unclear).sentences[1]


def test_a_verdict_within_kinds_is_that_of_its_claim_wherever_it_stands(given):
    """An interval beside 0 says nothing where the claim's adjusted p does not."""
    claims = given["claims"]
    for verdict in ("supported", "cannot tell"):
        changed_claims = changed(claims, "pointing_game", verdict=verdict)
        trust = of(given, claims=changed_claims).rows[answers.HEADS[3]][1]
        r = given["primary"].set_index("measure")["r_gap_within_kinds"]
        assert f"has r = {r['pointing_game']:.2f}: {verdict}." in trust


def test_a_test_without_power_is_called_so(given):
    weak = changed(given["primary"], "pointing_game", r_gap_within_kinds_least_p=1 / 6)
    trust = of(given, primary=weak).rows[answers.HEADS[3]][1]
    assert "That test has no power" in trust and "p cannot be below 0.17" in trust
    settings = {
        "r_gap_within_settings": -0.3,
        "r_gap_within_settings_p": 0.06,
        "r_gap_within_settings_smallest": 0.71,
    }
    unclear = changed(given["primary"], "pointing_game", **settings)
    trust = of(given, primary=unclear).rows[answers.HEADS[3]][1]
    assert "r = -0.30 (p = 0.06); this test could only tell an r beyond ±0.71" in trust
    clear = changed(unclear, "pointing_game", r_gap_within_settings_p=0.01)
    assert "could only tell" not in of(given, primary=clear).rows[answers.HEADS[3]][1]


def test_few_settings_and_networks_without_a_value_are_counted(given):
    few = given["catalogue"].assign(
        learning_rate=0.1,
        optimizer=np.tile(["adam", "sgd"], 18),
        left_out=["short of 80%"] * 2 + [""] * 34,
    )
    told = of(given, catalogue=few)
    assert "Only 2 combinations of optimizer" in told.rows[answers.HEADS[3]][1]
    assert "; 2 that learnt less left out." in told.rows[answers.HEADS[3]][0]
    assert "Values are missing" not in told.rows[answers.HEADS[3]][0]
    fewer = changed(given["primary"], "iou", n=35)
    trust = of(given, primary=fewer).rows[answers.HEADS[3]][0]
    assert "Values are missing: IoU in 1 of 36 networks" in trust


def test_a_measure_is_held_against_the_best_baseline(given):
    """In the made study the gap is that of its kind, which hyperparameters tell."""
    name = {"best_baseline": "hyperparameters", "error_best_twins": 3.0}
    better = {
        "error_with_twins": 1.0,
        "saved_from_best_points": 2.0,
        "saved_from_best_points_low": 0.5,
        "saved_from_best_points_high": 3.5,
        "saved_from_best_points_p_adjusted": 0.01,
    }
    primary = given["primary"].assign(error_with_twins=9.0)
    primary = changed(primary, "mixup_accuracy", **name, **better)
    for change, words in (
        ({}, "mixup accuracy predicts it better"),
        ({"saved_from_best_points_p_adjusted": 0.06}, "no measure clearly predicts it"),
        ({"saved_from_best_points_low": -0.1}, "no measure clearly predicts it better"),
        ({"saved_from_best_points": -0.1}, "predicts it better"),
    ):
        told = of(given, primary=changed(primary, "mixup_accuracy", **change))
        assert words in told.sentences[2]
        assert "hyperparameters alone have a mean error of 3.0" in told.sentences[2]
    one_less = changed(primary, "mixup_accuracy", n=35)  # of other networks
    assert "mixup accuracy" not in of(given, primary=one_less).sentences[2]
    numbers = of(given, primary=primary).rows["number"][2]
    assert all(title in numbers for title in baselines.TITLES.values())


def test_another_study_stands_before_kinds_that_were_held_out(given):
    def row(measure, error, low, high):
        return {
            "measure": measure,
            "title": baselines.TITLES.get(measure, measure),
            "baseline": measure in baselines.TITLES,
            "trained_on": "other",
            "n": 36,
            "error_points": error,
            "error_points_low": low,
            "error_points_high": high,
        }

    rows = [row("hyperparameters", 4.0, 3.0, 5.0), row("training", 9.0, 8.0, 10.0)]
    for high, words in ((3.5, "No measure clearly"), (2.9, "pointing predicts it")):
        across = pd.DataFrame([*rows, row("pointing", 2.5, 2.0, high)])
        told = of(given, across=across)
        assert len(told.sentences) == 4 and len(told.rows) == 5
        assert "Trained on the networks of other" in told.sentences[2]
        assert "error of 2.5 points; knowing how" in told.sentences[2]
        assert "(hyperparameters alone) gives 4.0" in told.sentences[2]
        assert told.rows["answer"][2].startswith(f"**{words}")


def test_pairs_say_in_how_many_kinds_overlap_and_gap_part(given):
    pairs = pd.DataFrame(
        {
            "kind": ["a", "b", "c"],
            "pairs": [2, 2, 1],
            "gap": [0.02, -0.05, 0.01],
            "area_matched_iou": [-0.01, 0.02, 0.01],
        }
    )
    row = of(given, pairs=pairs).rows.iloc[-2]
    assert row["answer"].startswith("In 2 of 3 kinds of training")
    assert "larger by 1.0 to 2.0 points in 2 kinds" in row["number"]
    assert "5 pairs" in row[answers.HEADS[3]]


def test_every_condition_that_does_not_hold_has_a_sentence():
    """Of whatever conditions there are: a new one needs words."""
    models = pd.DataFrame(
        {
            "gap": [0.1, 0.1],
            "test_accuracy": 0.1,
            "cell": "a",
            "stop_reason": "epoch cap 3",
        }
    )
    given = {
        "corrected": {"iou": [[0.0, 0.0]] * 2},
        "beats_central_map": {"iou": 0.25},
        "reliabilities": {"iou": 0.5},
    }
    table = gate_table(
        models, models, classes=4, floor=0.7, mask_areas={"iou": [0.9]}, **given
    )
    assert not table["passes"].any()
    for row in table.itertuples():
        told = answers.reasons(
            {"gates": table[table["gate"] == row.gate]}, row.concerns
        )
        assert row.gate not in told and len(NUMBER.findall(told)) == 1, told
    assert "higher than 75 % of the networks" in answers.reasons(
        {"gates": table[table["gate"].str.startswith("beats")]}, "iou"
    )
    unknown = table.assign(value=np.nan)
    assert "networks learnt: not known." in answers.reasons({"gates": unknown}, "all")
    assert (
        answers.reasons({}, "all")
        == answers.reasons({"gates": table.assign(passes=True)}, "all")
        == ""
    )


def test_too_few_networks_that_learnt_are_told_with_the_remedy_and_nothing_else():
    models = made.catalogue().head(10).assign(max_epochs=30)
    failed = models.assign(
        left_out=["train accuracy not above 50%"] * 7 + [""] * 3,
        train_accuracy=[0.27, *[0.4] * 5, 0.5, *[0.9] * 3],
    )
    told = answers.answer({"catalogue": failed, "primary": pd.DataFrame()})
    assert told.warning.startswith(
        "7 of 10 networks did not learn enough (training accuracy 27 % to 50 %)"
    )
    assert "60 epochs" in told.warning and not told.sentences and not len(told.rows)
    enough = failed.assign(left_out=["train accuracy not above 50%"] * 6 + [""] * 4)
    assert answers.not_learnt(enough) == ""
    first = pd.concat(
        [
            models.assign(snapshot="first", left_out="train accuracy not above 50%"),
            models,
        ]
    )
    assert answers.not_learnt(first) == "", "what counts is where a run ended"
    diverged = models.assign(
        snapshot="none", train_accuracy=np.nan, left_out="diverged before a snapshot"
    )
    assert answers.not_learnt(diverged).startswith(
        "10 of 10 networks did not learn enough, so"
    )


def test_a_study_that_is_too_small_or_claims_nothing_gives_numbers_and_no_verdict(
    given,
):
    small = given["primary"].assign(
        **{
            name: np.nan
            for name in given["primary"]
            if name.endswith(("_low", "_high"))
        }
    )
    for warned, words in (
        (of(given, primary=small), "too small"),
        (of(given, claims=pd.DataFrame()), "Nothing was claimed"),
    ):
        assert words in warned.warning and warned.sentences == ()
        assert (
            warned.rows["answer"][0].startswith("**No verdict.**")
            and "r = " in warned.rows["number"][0]
        )


def test_what_is_absent_is_said(given):
    assert (
        "no primary analysis"
        in answers.answer({"catalogue": given["catalogue"]}).warning
    )
    assert answers.answer({}).warning == ""
    is_kept = given["primary"]["baseline"] | given["primary"]["measure"].eq(
        "mixup_accuracy"
    )
    told = of(given, primary=given["primary"][is_kept])
    assert (
        "could not be asked" in told.sentences[0]
        and told.rows["answer"][0] == "Not asked."
    )
    assert len(told.sentences) == 2 and told.rows["answer"][1].startswith("Not asked")
    nothing = given["primary"].assign(error_with_twins=np.nan, error_best_twins=np.nan)
    assert of(given, primary=nothing).rows["answer"][2].startswith("Cannot tell")
    earlier = given["primary"].drop(columns="baseline")
    assert "of an earlier version" in of(given, primary=earlier).warning
    assert "98.3 % intervals, for 3 analyses." in findings.meant(
        {"primary": given["primary"].assign(level=1 - 0.05 / 3)}
    )
