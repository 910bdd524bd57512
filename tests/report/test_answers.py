"""The answer of a study: its numbers are those of its tables, its words follow intervals, verdicts and conditions."""

import re

import numpy as np
import pandas as pd
import pytest

from helpers.report import answers, findings
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
        REPRODUCED: "holds here",
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


def test_what_is_left_among_networks_trained_alike_follows_its_interval(given):
    assert (
        of(given).sentences[1].endswith("among networks trained alike it still does.")
    )
    primary = changed(
        given["primary"],
        "pointing_game",
        r_gap_within_kinds_low=-0.5,
        r_gap_within_kinds_high=0.1,
    )
    told = of(given, primary=primary)
    assert (
        "nothing clear is left" in told.sentences[1]
        and "**Cannot tell**: pointing game" in told.rows["answer"][1]
    )
    primary = changed(given["primary"], "pointing_game", r_gap_low=-0.2, r_gap_high=0.1)
    assert "does not clearly correlate" in of(given, primary=primary).sentences[1]


def test_what_optimizer_and_rate_may_explain_is_told_where_networks_share_them(given):
    unclear = changed(
        given["primary"],
        "pointing_game",
        r_gap_within_settings=-0.3,
        r_gap_within_settings_p=0.06,
    )
    told = of(given, primary=unclear)
    assert told.sentences[1].endswith(
        "it still does, but not clearly with start, optimizer and rate the same."
    )
    assert told.rows["how far to trust it"][1].endswith(
        "held fixed for each start, the first has r = -0.30 (p = 0.06)."
    )
    for r, ends in ((-0.3, "it still does."), (0.3, "rate the same.")):
        clear = changed(
            unclear,
            "pointing_game",
            r_gap_within_settings=r,
            r_gap_within_settings_p=0.04,
        )
        assert of(given, primary=clear).sentences[1].endswith(ends)


def test_few_settings_tell_nothing_within_kinds_and_networks_left_out_are_counted(
    given,
):
    assert (
        of(given)
        .rows[answers.HEADS[3]][1]
        .endswith("12 combinations, which shift all kinds alike.")
    )
    few = given["catalogue"].assign(
        learning_rate=0.1,
        optimizer=np.tile(["adam", "sgd"], 18),
        left_out=["short of 80%"] * 2 + [""] * 34,
    )
    told, ends = (
        of(given, catalogue=few),
        (
            "; 2 that learnt less left out.",
            "2 combinations, which shift all kinds alike: 8 are needed.",
        ),
    )
    assert (
        told.sentences[1].endswith("this cannot be told.")
        and "**Yes**" not in told.rows["answer"][1]
    )
    assert all(
        text.endswith(end)
        for text, end in zip(told.rows[answers.HEADS[3]], ends, strict=False)
    )


def test_the_best_predictor_is_named_only_where_what_it_saves_is_clear(given):
    assert "mixup accuracy" in of(given).sentences[2]
    assert (
        "mixup accuracy"
        not in of(
            given, primary=changed(given["primary"], "mixup_accuracy", n=35)
        ).sentences[2]
    )  # of other networks
    known = [
        of(given, primary=given["primary"].assign(error_known=error)).sentences[2]
        for error in (0, 99)
    ]
    assert [
        "no better than by hyperparameters and fit" in sentence for sentence in known
    ] == [True, False]
    unclear = given["primary"].assign(saved_error_points_low=-1.0)
    told = of(given, primary=unclear)
    fit = f"{given['primary']['error_without'].iloc[0]:.1f}"
    assert (
        told.sentences[2].startswith("No measure clearly adds")
        and f"to {fit} points" in told.sentences[2]
    )


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
    told = of(given, primary=given["primary"].query("measure == 'mixup_accuracy'"))
    assert (
        "could not be asked" in told.sentences[0]
        and told.rows["answer"][0] == "Not asked."
    )
    assert len(told.sentences) == 2 and told.rows["answer"][1].startswith("Not asked")
    nothing = given["primary"].assign(error_with=np.nan, error_without=np.nan)
    assert of(given, primary=nothing).rows["answer"][2].startswith("Cannot be told")
    assert "98.3 % intervals, for 3 analyses." in findings.meant(
        {"primary": given["primary"].assign(level=1 - 0.05 / 3)}
    )
