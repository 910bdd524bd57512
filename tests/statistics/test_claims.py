"""Claims: checked before a run is spent, kept with the runs that were there when they were first seen."""

import datetime
import json

import pytest

from helpers.statistics.claims import (
    OF_KINDS,
    check_claims,
    check_primary,
    claims_of_study,
    keep_claims,
)

CLAIM = {
    "claim": "IoU falls as the gap grows",
    "measure": "iou",
    "question": "r_gap",
    "side": "below",
    "primary": True,
}


def test_claims_keep_the_time_and_the_runs_of_when_they_were_first_seen(tmp_path):
    assert claims_of_study(tmp_path) == ([], "", 0)
    assert keep_claims(tmp_path, []) == ([], "", 0)
    assert not (tmp_path / "claims.json").exists()
    first = keep_claims(tmp_path, [CLAIM])
    assert (first.claims, first.runs) == ([CLAIM], 0)
    (tmp_path / "runs/one").mkdir(parents=True)
    assert keep_claims(tmp_path, [CLAIM]) == first == claims_of_study(tmp_path)
    changed = keep_claims(tmp_path, [CLAIM | {"side": "above"}])
    assert (changed.claims[0]["side"], changed.runs) == ("above", 1)
    written = json.loads((tmp_path / "claims.json").read_text())
    assert [version["runs"] for version in written] == [0, 1]
    of_earlier = [version | {"digest": "0123456789ab"} for version in written]
    (tmp_path / "claims.json").write_text(json.dumps(of_earlier))
    assert claims_of_study(tmp_path) == changed
    assert keep_claims(tmp_path, []).claims == []  # taken back, and seen to be


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ("iou", "write a list of mappings"),
        (
            [{"claim": "x"}],
            "has claim; every claim needs claim, measure, question, side",
        ),
        ([CLAIM | {"sides": 1}], "sides; every claim needs .*, and may have primary"),
        ([CLAIM | {"question": "tau"}], "choose one of r_gap"),
        ([CLAIM | {"primary": "yes"}], "choose one of True, False"),
        ([CLAIM | {"published": "-0.8"}], "must be a number"),
        ([CLAIM | {"published": float("nan")}], "must be a number"),
        ([CLAIM | {"measure": 5}], "measure 5, which must be text"),
        (
            [CLAIM | {"source": datetime.date(2024, 1, 1)}],
            "which must be text; put it in quotes",
        ),
        ([CLAIM] * 4, "4 claims are primary; at most 3"),
    ],
)
def test_claims_that_cannot_be_judged_are_refused(claims, words):
    with pytest.raises(ValueError, match=words):
        check_claims(claims)


def test_claims_within_kinds_are_of_measures_of_the_primary_analysis():
    secondary = CLAIM | {"primary": False}
    of_kinds = [secondary | {"question": question} for question in OF_KINDS]
    assert check_claims([CLAIM, *of_kinds], ["iou"]) == [CLAIM, *of_kinds]
    assert check_claims([CLAIM] * 2, primary=["iou_b"]) == [CLAIM] * 2
    for claim in of_kinds:
        with pytest.raises(
            ValueError,
            match=f"asks {claim['question']} of iou, which is not in primary_measures",
        ):
            check_claims([CLAIM, claim], primary=["iou_b"])


def test_a_primary_analysis_has_eight_measures_at_most():
    check_primary(list("abcdefgh"))
    for measures, words in (
        (list("abcdefghi"), "9 measures, 9 of them different; name at most 8"),
        (["a", "a"], "2 measures, 1 of them"),
    ):
        with pytest.raises(ValueError, match=words):
            check_primary(measures)


@pytest.mark.parametrize(
    "damage",
    ["{", "[1]", '[{"claims": []}]', '[{"claims": 1, "first_seen": "", "runs": 2}]'],
)
def test_damaged_claims_are_named_with_what_to_do(tmp_path, damage):
    keep_claims(tmp_path, [CLAIM])
    (tmp_path / "claims.json").write_text(damage)
    for read in (claims_of_study, lambda work: keep_claims(work, [CLAIM])):
        with pytest.raises(
            ValueError, match=r"claims\.json is damaged .* put back a copy"
        ):
            read(tmp_path)
    (tmp_path / "claims.json").unlink()  # as the message says
    assert keep_claims(tmp_path, [CLAIM]).claims == [CLAIM]
