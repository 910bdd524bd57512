import numpy as np
import pandas as pd
import pytest

from helpers.statistics import verdicts
from helpers.statistics.claims import check_claims
from helpers.statistics.verdicts import GATES, closed, share_above_chance

CLAIM = {
    "claim": "IoU falls as the gap grows",
    "measure": "iou",
    "question": "r_gap",
    "side": "below",
}
MODELS = pd.DataFrame(
    {"gap": np.linspace(0, 0.5, 80), "test_accuracy": 0.5, "cell": np.arange(80) // 2}
)
MODELS["stop_reason"] = np.where(np.arange(80) < 64, "rules 1+2", "epoch cap 60")
AREAS, ROOM, CENTRE, ABOVE, DIFFER = list(GATES)[:5]
OPEN = {"classes": 20, AREAS: 0.3, ROOM: 0.4, CENTRE: 0.5, ABOVE: 1, DIFFER: 0.8}


def verdict_table(claims, *tables):
    return verdicts.verdict_table(check_claims(claims), *tables)


@pytest.mark.parametrize(
    ("published", "low", "high", "p", "expected"),
    [
        (np.nan, -0.6, -0.3, 0.01, "supported"),
        (np.nan, 0.3, 0.6, 0.01, "contradicted"),
        (np.nan, -0.6, -0.3, 0.051, "cannot tell"),
        (np.nan, -0.6, 0.1, 0.01, "cannot tell"),
        (np.nan, -0.2, 0.2, 0.9, "practically none"),
        (np.nan, np.nan, np.nan, 0.001, "cannot tell"),
        (-0.89, -0.48, 0.05, 0.09, "not reproduced"),  # IoU of compact20
        (-0.89, -0.92, -0.80, 0.001, "reproduced"),
        (-0.89, -0.97, -0.93, 0.001, "reproduced"),  # beyond it
        (-0.89, -0.85, -0.60, 0.001, "not reproduced"),  # weaker, whatever its p
        (-0.89, -0.92, 0.10, 0.001, "cannot tell"),
    ],
)
def test_verdicts(published, low, high, p, expected):
    for side, ends in (("below", (low, high)), ("above", (-high, -low))):  # mirrored
        claim = CLAIM | {"side": side}
        if np.isfinite(published):
            claim["published"] = published if side == "below" else -published
        low, high = ends
        found = tables(r_gap_low=low, r_gap_high=high, r_gap_p=p)
        assert verdict_table([claim], *found)["verdict"][0] == expected


def answers(question, value=0.5, low=0.1, high=0.9, p=0.01):
    of_value = {"low": low, "high": high, "p": p}
    return {question: value} | {f"{question}_{k}": v for k, v in of_value.items()}


def gates_of(models, trained, *, classes, **of_measures):
    """The table of conditions, of a measure's values among them."""
    values = {gate: {"iou": value} for gate, value in of_measures.items()}
    return verdicts.condition_table(
        models, trained, classes=classes, of_measures=values
    )


def tables(**changed):
    primary = pd.DataFrame(
        {"measure": ["iou", "mixup"], "n": 60, "level": 0.95}
        | answers("r_gap", -0.6, -0.8, -0.4)
    )
    primary = primary.assign(
        **answers("saved_error_points", 4, 2, 6),
        error_with_low=3.0,
        error_with_high=4.9,
    ).assign(**changed)
    ranking = pd.DataFrame(
        {"measure": ["iou", "norm"], "n": 150} | answers("r_gap") | answers("tau_gap")
    )
    return primary, ranking, gates_of(MODELS, MODELS, **OPEN)


def test_the_primary_analysis_answers_first_and_the_ranking_what_it_does_not():
    claims = [
        CLAIM,
        CLAIM | {"measure": "norm"},
        CLAIM | {"question": "tau_gap", "published": -0.5},
    ]
    found = verdict_table(claims, *tables())
    assert found["n"].tolist() == [60, 150, 150]
    assert found["ours"].tolist() == [-0.6, 0.5, 0.5]
    assert found["verdict"].tolist() == ["supported", "contradicted", "not reproduced"]
    wide = gates_of(MODELS, MODELS, **OPEN | {AREAS: 0.61})
    found = verdict_table(claims[2:], *tables()[:2], wide)
    assert found["verdict"].tolist() == ["cannot be tested here"]
    claims = [
        CLAIM | {"measure": "mixup", "question": "tau_gap"},
        CLAIM | {"measure": "gi", "primary": True},
    ]
    absent = verdict_table(claims, *tables())
    assert absent["measure"].tolist() == ["gi", "mixup"]
    assert (absent["n"] == 0).all() and (absent["verdict"] == "cannot tell").all()
    assert absent[["ours", "ours_low", "p", "p_adjusted"]].isna().all(axis=None)
    assert len(verdict_table([], *tables())) == 0


def test_an_error_of_so_many_points_at_most_is_part_of_the_claim():
    claim = CLAIM | {"question": "saved_error_points", "side": "above"}
    claim["errs_at_most"] = 5
    ends = {"supported": (3, 4.9), "cannot tell": (3, 5.1), "contradicted": (5.1, 7)}
    for expected, (low, high) in ends.items():
        of_error = tables(error_with_low=low, error_with_high=high)
        assert verdict_table([claim], *of_error)["verdict"].tolist() == [expected]


def test_holm_counts_primary_claims_as_one_family_and_the_others_as_another():
    primary, ranking, gates = tables()
    ranking = pd.DataFrame(
        {"measure": list("abcde"), "n": 9} | answers("tau_gap")
    ).assign(tau_gap_p=[0.02, 0.01, 0.03, 0.03, 0.04])
    base = {"claim": "x", "question": "tau_gap", "side": "above"}
    claims = [base | {"measure": name, "primary": name in "cb"} for name in "abcde"]
    found = verdict_table(claims, primary, ranking, gates)
    assert found["measure"].tolist() == list("bcade")
    assert found["p_adjusted"].tolist() == pytest.approx([0.02, 0.03, 0.06, 0.06, 0.06])
    assert found["verdict"].tolist() == ["supported", "supported", *["cannot tell"] * 3]


def test_gates_pass_at_their_limits_and_each_closes_alone():
    table = gates_of(MODELS, MODELS, **OPEN)
    assert table["passes"].all() and closed(table, "iou") == []
    assert table["value"].tolist() == pytest.approx(
        [0.3, 0.4, 0.5, 1, 0.8, 40, 0.45 / 0.95, 0.8, 40]
    )
    assert table["gate"].tolist() == list(GATES)
    # 20 points, and 0.4 of the way from chance to 1.
    exact = MODELS.assign(gap=np.linspace(0, 0.25, 80), test_accuracy=0.05 + 0.4 * 0.95)
    assert gates_of(exact, exact, **OPEN)["passes"].all()


@pytest.mark.parametrize(
    ("gate", "change"),
    [
        *((AREAS, {AREAS: area}) for area in (0.61, 0.04, np.nan)),
        *((ROOM, {ROOM: floor}) for floor in (0.41, np.nan)),
        (CENTRE, {CENTRE: 0.49}),
        (ABOVE, {ABOVE: 0.49}),
        *((DIFFER, {DIFFER: value}) for value in (0.79, np.nan)),
        ("gaps differ", {"gap": np.linspace(0, 0.249, 80)}),
        ("networks learnt", {"test_accuracy": 0.42}),
        ("networks learnt", {"test_accuracy": 0.6, "classes": 2}),
        ("networks finished", {"stop_reason": [None] * 17 + ["rules 1+3"] * 63}),
        ("enough configurations", {"cell": np.arange(80) % 39}),
    ],
)
def test_each_gate_closes_alone(gate, change):
    columns = {name: values for name, values in change.items() if name in MODELS}
    models = MODELS.assign(**columns)
    values = {name: change.get(name, value) for name, value in OPEN.items()}
    table = gates_of(models, models, **values)
    assert closed(table, "iou") == [gate]
    assert closed(table, "energy") == ([gate] if list(GATES).index(gate) > 4 else [])


def test_networks_that_were_left_out_count_among_those_that_learnt_and_finished():
    fallen = MODELS.assign(test_accuracy=0.2, stop_reason="epoch cap 60")
    diverged = MODELS.iloc[:1].assign(
        test_accuracy=np.nan, stop_reason="loss is nan in epoch 3"
    )
    table = gates_of(MODELS, pd.concat([MODELS, fallen, diverged]), **OPEN)
    assert closed(table, "iou") == ["networks learnt", "networks finished"]
    found = table.set_index("gate")["value"]
    # Of 161 the 81st is one of the fallen.
    assert found["networks learnt"] == pytest.approx(0.15 / 0.95)
    assert found["networks finished"] == pytest.approx(64 / 161)
    assert found["enough configurations"] == 40


def test_share_above_chance_counts_standard_errors():
    # 6 and 1 standard errors; of the third model there is one image.
    values = np.array([[1.0, 1, 1, 1, 2], [0, 0, 0, 0, 1], [*[np.nan] * 4, 1]])
    assert share_above_chance(values) == 0.5
    assert share_above_chance(np.zeros((3, 5))) == 0
    assert np.isnan(share_above_chance(np.ones((3, 1))))
