import numpy as np
import pandas as pd
import pytest

from helpers.statistics.claims import check_claims, claims_digest
from helpers.statistics.gates import failed, gate_table, share_above_chance
from helpers.statistics.questions import added_error, known_in_advance, left_out_errors, ranking_table
from helpers.statistics.resampling import cell_weights
from helpers.statistics.verdicts import judged, verdict

AXES = ["depth", "rate", "train_size"]
CLAIM = {"claim": "IoU falls as the gap grows", "primary": True, "measure": "iou", "question": "r_gap", "side": "below", "published": -0.6}
BETWEEN = {"_between_cells": 0.4, "_between_cells_low": 0.2, "_between_cells_high": 0.6}
GIVEN_FIT = CLAIM | {"claim": "and given the fit", "question": "r_gap_given_fit"}


def study(kind, seed=0):
    """Sixty-four cells with two snapshots. IoU follows the training size alone, or the gap alone; or maps of 4 x 4 cells cover all."""
    random = np.random.default_rng(seed)
    cells = np.repeat(np.arange(64), 2)
    n, size = len(cells), cells // 16
    models = pd.DataFrame({"cell": cells, "depth": cells % 4, "rate": 0.1 * (1 + cells // 4 % 4), "train_size": size, "finished": True})
    own = random.normal(size=64)[cells] + 0.3 * random.normal(size=n)
    models["train_accuracy"] = 0.95 - 0.03 * size + 0.003 * random.normal(size=n)
    models["log_train_loss"] = np.log(1 - models["train_accuracy"]) + 0.1 * random.normal(size=n)
    of_size, of_own = (0.1, 0.05) if kind == "confounded" else (0.02, 0.09)
    test_correct = random.random((n, 2000)) < (0.55 + of_size * (size - 1.5) - of_own * own)[:, None]
    models["test_accuracy"] = test_correct.mean(1)
    models["gap"] = models["train_accuracy"] - models["test_accuracy"]
    iou = {"confounded": 0.4 + 0.05 * size + 0.03 * random.normal(size=n), "true": 0.4 - 0.03 * own + 0.02 * random.normal(size=n)}
    per_image = iou.get(kind, np.full(n, 0.53))[:, None] + 0.1 * random.normal(size=300) + 0.1 * random.normal(size=(n, 300))
    models["iou"], models["noise"] = per_image.mean(1), random.normal(size=n)
    area, chance, floor = (0.97, 0.53, 0.53) if kind == "coarse" else (0.4, 0.25, 0.3)
    images = {"iou": per_image, "test_accuracy": test_correct}
    ranking = ranking_table(models, ["iou", "noise", "train_accuracy"], AXES, images=images, draws=500, permutations=499)
    gates = gate_table(
        models,
        classes=20,
        mask_areas={"iou": np.full((n, 3), area)},
        floor=floor,
        corrected={"iou": per_image - chance},
        reliabilities={"iou": ranking.table["reliability"][0]},
    )
    return models, ranking, gates


def test_training_size_that_moves_iou_and_gap_is_no_finding_given_the_fit():
    verdicts = []
    for seed in range(5):
        _, ranking, gates = study("confounded", seed)
        table = judged([CLAIM, GIVEN_FIT, GIVEN_FIT | {"question": "r_gap_given_all"}], ranking.table, gates)
        assert table["verdict"][0] == "supported"  # the raw correlation is there
        verdicts.append(table["verdict"][1:].isin(["practically none", "cannot tell"]).tolist())
    assert (np.sum(verdicts, axis=0) >= 4).all()  # of 5 studies, at a level of 5 %


def test_iou_that_tells_the_gap_is_supported_given_the_fit_too_and_adds_to_what_is_known():
    models, ranking, gates = study("true")
    adds = GIVEN_FIT | {"claim": "IoU adds", "question": "added_error_points", "side": "above"}
    table = judged([CLAIM, GIVEN_FIT, adds, CLAIM | {"primary": False, "side": "above"}], ranking.table, gates)
    assert table["verdict"].tolist() == ["supported", "supported", "supported", "contradicted"]
    assert (table["ci_low"] <= table["ours"]).all() and (table["ours"] <= table["ci_high"]).all()
    assert table["n"].tolist() == [128] * 4
    errors = known_in_advance(models, AXES, draws=200).set_index("known")
    assert (errors["low"] < errors["error_points"]).all() and (errors["error_points"] < errors["high"]).all()
    residual = added_error(models[["iou"]].to_numpy(), np.empty((128, 0)), models["gap"].to_numpy(), models["cell"], np.ones((1, 128)))
    assert residual["without"][0] == pytest.approx(errors.loc["mean", "error_points"])


def test_maps_of_4_by_4_and_large_boxes_are_not_tested_whatever_r_says():
    _, ranking, gates = study("coarse")
    loud = ranking.table.assign(r_gap=-0.9, r_gap_low=-0.95, r_gap_high=-0.8, r_gap_p=0.0002)
    assert judged([CLAIM], loud, gates)["verdict"].tolist() == ["not tested here"]
    assert failed(gates, ["iou"]) == ["the mask can miss", "boxes leave room", "the map depends on the image", "models differ"]
    assert failed(gates, ["noise"]) == []
    assert judged([CLAIM | {"measure": "noise"}], ranking.table, gates)["verdict"][0] != "not tested here"


def test_ranking_agrees_with_its_parts_and_marks_what_is_undefined():
    models, ranking, _ = study("true")
    table = ranking.table.set_index("measure")
    assert table.loc["iou", "r_gap"] == pytest.approx(models["iou"].corr(models["gap"]))
    assert table.loc["iou", "tau_test_accuracy"] == pytest.approx(models["iou"].corr(models["test_accuracy"], method="kendall"))
    assert table.loc["iou", "images"] == 300
    assert np.isnan(table.loc["noise", ["images", "reliability"]].astype(float)).all()
    assert np.isnan(
        table.loc["train_accuracy", ["r_gap_given_fit", "r_gap_given_fit_low", "r_gap_given_fit_p_adjusted"]].astype(float)
    ).all()
    assert abs(table.loc["train_accuracy", "added_error_points"]) < 0.1
    assert (table["r_gap_p_adjusted"] >= table["r_gap_p"]).all()
    beyond = (table["tau_gap"] - table["tau_gap_null"]).abs() > ranking.bands["tau_gap"]
    assert beyond.tolist() == (table["tau_gap_p_adjusted"] < 0.05).tolist()
    few = models[models["cell"] < 7].assign(iou=lambda t: t["iou"].where(t["cell"] > 0))
    table = ranking_table(few, ["iou"], ["depth"], draws=50, permutations=19).table
    assert table[["n", "cells"]].to_numpy().tolist() == [[12, 6]]
    assert np.isnan(table[["r_gap_low", "tau_gap_high", "r_gap_smallest", "added_error_points_low"]].to_numpy()).all()
    assert list(ranking_table(few, ["iou"], ["depth"], draws=0).table.filter(like="_low")) == []


def test_means_of_cells_correlate_without_the_snapshots_of_a_run():
    random, level = np.random.default_rng(0), np.repeat(np.arange(12.0), 2)
    late = np.tile([-1.0, 1.0], 12)
    models = pd.DataFrame({"cell": level, "iou": 0.1 * level + 2 * late, "gap": 0.5 - 0.01 * level + 0.1 * late, "test_accuracy": 0.5})
    models["test_accuracy"] += 0.1 * random.normal(size=24)
    row = ranking_table(models, ["iou"], [], fit=(), draws=100, permutations=19).table.iloc[0]
    assert row["r_gap"] > 0.8
    assert row[["r_gap_between_cells", "r_gap_between_cells_low", "r_gap_between_cells_high"]].tolist() == pytest.approx([-1] * 3)
    order = np.random.default_rng(1).permutation(24)
    again = ranking_table(models.iloc[order], ["iou"], [], fit=(), draws=0).table
    assert again["r_gap_between_cells"][0] == pytest.approx(-1)


def test_ranking_refuses_images_that_are_not_those_of_the_models():
    models = study("true")[0]
    values = np.repeat(models[["iou"]].to_numpy(), 9, axis=1)
    refusals = {
        "same order of models": {"iou": values[::-1]},
        r"must be \(models, images\)": {"iou": values[:5]},
        "its column says": {"iou": np.where(np.arange(128)[:, None] == 7, np.nan, values)},
        "test_accuracy per image": {"test_accuracy": np.zeros((128, 4), dtype=bool)},
    }
    for message, images in refusals.items():
        with pytest.raises(ValueError, match=message):
            ranking_table(models, ["iou"], AXES, images=images, draws=0)
    for column in ("gap", "log_train_loss"):
        with pytest.raises(ValueError, match=f"2 models have no finite '?{column}"):
            ranking_table(models.assign(**{column: models[column].where(models["cell"] > 0)}), ["iou"], AXES, draws=0)
    with pytest.raises(ValueError, match="no column fisher_rao"):
        ranking_table(models, ["fisher_rao"], AXES)


def test_errors_are_of_cells_never_seen_and_a_measure_that_is_the_gap_takes_them_all():
    cells = np.repeat(np.arange(20), 3)
    gap = np.random.default_rng(0).normal(size=20)[cells]
    per_cell = np.equal.outer(cells, np.arange(20)).astype(float)
    mean = left_out_errors(np.empty((60, 0)), gap, cells)
    assert left_out_errors(per_cell, gap, cells) == pytest.approx(mean, rel=0.2)  # to know the cell by name helps nothing
    added = added_error(np.column_stack([gap, per_cell[:, 0]]), np.empty((60, 0)), gap, cells, cell_weights(cells, 200))
    assert added["with"][0] < 0.02 * added["without"][0]
    assert added["low"][0] > 0
    assert added["gain"].to_numpy() == pytest.approx((added["without"] - added["with"]).to_numpy())
    assert added["without"][0] == pytest.approx(mean.mean())
    assert np.isnan(left_out_errors(per_cell[:6], gap[:6], cells[:6])).all()


@pytest.mark.parametrize(
    ("side", "low", "high", "p", "expected"),
    [
        (-1, -0.6, -0.3, 0.01, "supported"),
        (1, 0.3, 0.6, 0.01, "supported"),
        (1, -0.6, -0.3, 0.01, "contradicted"),
        (-1, 0.3, 0.6, 0.01, "contradicted"),
        (-1, -0.6, -0.3, 0.05, "cannot tell"),
        (-1, -0.6, 0.1, 0.01, "cannot tell"),
        (-1, -0.2, 0.2, 0.9, "practically none"),
        (-1, -0.21, 0.1, 0.9, "cannot tell"),
        (-1, -0.15, -0.05, 0.06, "practically none"),
        (-1, np.nan, np.nan, 0.001, "cannot tell"),
        (-1, -0.6, -0.3, np.nan, "cannot tell"),
    ],
)
def test_verdicts(side, low, high, p, expected):
    assert verdict(side, low, high, p) == expected
    assert verdict(side, low, high, p, may_speak=False) == "not tested here"


def test_holm_counts_primary_claims_as_one_family_and_each_table_as_one():
    facts = {"": 0.5, "_low": 0.1, "_high": 0.9, "_smallest": 0.3} | BETWEEN
    ranking = pd.DataFrame({"measure": list("abcde"), "n": 9} | {f"r_gap{end}": value for end, value in facts.items()})
    ranking["r_gap_p"] = [0.01, 0.02, 0.01, 0.03, 0.04]
    gates = gate_table(pd.DataFrame({"gap": [0, 0.5], "test_accuracy": 0.6, "cell": 0, "finished": True}), classes=10)
    base = {"claim": "x", "question": "r_gap", "side": "above"}
    where = [{"primary": True}, {"primary": True}, {"table": "s"}, {"table": "s"}, {"table": "t"}]
    table = judged([base | {"measure": m} | w for m, w in zip("abcde", where, strict=True)], ranking, gates)
    assert table["p_adjusted"].tolist() == pytest.approx([0.02, 0.02, 0.02, 0.03, 0.04])
    assert set(table["verdict"]) == {"not tested here"}  # one cell
    open_gates = gates.assign(passes=True)
    assert set(judged([base | {"measure": "a"}], ranking, open_gates)["verdict"]) == {"supported"}
    assert len(judged([], ranking, gates)) == 0


def test_formulas_of_one_thing_are_one_claim_that_is_judged_and_adjusted_once():
    ranking = pd.DataFrame({"measure": list("abcd"), "n": 9})
    for question in ("r_gap", "r_gap_given_fit"):
        facts = {"": 0.5, "_low": 0.1, "_high": 0.9, "_smallest": 0.3, "_p": [0.01, 0.02, 0.03, 0.04]} | BETWEEN
        ranking = ranking.assign(**{f"{question}{end}": value for end, value in facts.items()})
    gates = gate_table(MODELS, classes=20)
    base = {"question": "r_gap", "side": "above"}
    stated = [
        base | {"claim": "c first in the file", "measure": "c"},
        base | {"claim": "b", "measure": "b"},
        base | {"claim": "a", "measure": "a", "primary": True},
        base | {"claim": "c given the fit", "measure": "c", "question": "r_gap_given_fit"},
        base | {"claim": "b the other way", "measure": "b", "side": "below"},
        base | {"claim": "d", "measure": "d"},
    ]
    table = judged(stated, ranking, gates, [("a", "b"), ("c", "x")]).set_index("claim")
    assert list(table.index) == ["a", "b", "c first in the file", "c given the fit", "b the other way", "d"]
    assert table["variant_of"].to_dict() == dict.fromkeys(table.index, "") | {"b": "a"}
    assert table.loc["b", "verdict"] == "" and table.loc["b", "ours"] == 0.5
    # One primary claim alone, and four secondary ones of p 0.03, 0.03, 0.02 and 0.04; the variant is in no family.
    assert table["p_adjusted"].tolist() == pytest.approx([0.01, np.nan, 0.09, 0.09, 0.08, 0.09], nan_ok=True)
    assert table["verdict"].drop("b").tolist() == ["supported", *["cannot tell"] * 4]
    assert table.index[table["between_cells"].isna()].tolist() == ["c given the fit"]
    apart = judged(stated, ranking, gates)
    assert (apart["variant_of"] == "").all()


def test_an_unknown_value_says_why_and_does_not_pass():
    table = gate_table(MODELS, classes=20, reliabilities={"iou": np.nan, "gi": 0.9}, unknown={"iou": "no mean", "gi": "unused"})
    rows = table[table["gate"] == "models differ"].set_index("concerns")
    assert rows["limit"].to_dict() == {"iou": "reliability at least 0.8; not known: no mean", "gi": "reliability at least 0.8"}
    assert rows["passes"].to_dict() == {"iou": False, "gi": True}


def test_claims_that_cannot_be_judged_are_refused_and_their_digest_is_of_what_they_say():
    for message, claims in {
        "at most 3": [CLAIM] * 4,
        "choose one of iou": [CLAIM | {"measure": "gi"}],
        "choose one of r_gap": [CLAIM | {"question": "r"}],
        "choose one of below, above": [CLAIM | {"side": "left"}],
        "claim 1 has no side": [{k: v for k, v in CLAIM.items() if k != "side"}],
    }.items():
        with pytest.raises(ValueError, match=message):
            check_claims(claims, ["iou"])
    with pytest.raises(ValueError, match="side 0"):
        verdict(0, 0, 0, 0)
    assert claims_digest([CLAIM]) == claims_digest([dict(reversed(CLAIM.items()))]) != claims_digest([CLAIM | {"side": "above"}])


MODELS = pd.DataFrame({"gap": np.linspace(0, 0.5, 80), "test_accuracy": 0.5, "cell": np.arange(80) // 2, "finished": np.arange(80) < 64})
OPEN = {
    "classes": 20,
    "mask_areas": {"iou": [0.1, 0.3, 0.7]},
    "floor": 0.3,
    "reliabilities": {"iou": 0.8},
    "corrected": {"iou": [[0.4, 0.5]]},
}


def test_gates_pass_at_their_limits():
    table = gate_table(MODELS, **OPEN)
    assert table["passes"].all()
    assert table.columns.tolist() == ["gate", "concerns", "value", "limit", "passes"]
    assert table.set_index("gate")["value"].to_dict() == pytest.approx(
        {
            "the mask can miss": 0.3,
            "boxes leave room": 0.3,
            "the map depends on the image": 1,
            "models differ": 0.8,
            "gaps differ": 40,
            "networks learnt": 0.5,
            "networks finished": 0.8,
            "enough cells": 40,
        }
    )


@pytest.mark.parametrize(
    ("gate", "models", "change"),
    [
        ("the mask can miss", {}, {"mask_areas": {"iou": [0.61]}}),
        ("the mask can miss", {}, {"mask_areas": {"iou": [0.04]}}),
        ("the mask can miss", {}, {"mask_areas": {"iou": [np.nan]}}),
        ("boxes leave room", {}, {"floor": 0.41}),
        ("boxes leave room", {}, {"floor": np.nan}),
        ("models differ", {}, {"reliabilities": {"iou": 0.79}}),
        ("models differ", {}, {"reliabilities": {"iou": np.nan}}),
        ("gaps differ", {"gap": np.linspace(0, 0.24, 80)}, {}),
        ("networks learnt", {"test_accuracy": 0.39}, {}),
        ("networks learnt", {"test_accuracy": 0.9}, {"classes": 5}),
        ("networks finished", {"finished": np.arange(80) < 63}, {}),
        ("enough cells", {"cell": np.arange(80) % 39}, {}),
    ],
)
def test_each_gate_closes_alone(gate, models, change):
    table = gate_table(MODELS.assign(**models), **(OPEN | change))
    assert failed(table, ["iou"]) == [gate]
    own = gate in ("the mask can miss", "boxes leave room", "models differ")
    assert failed(table, ["energy"]) == ([] if own else [gate])


def test_share_above_chance_counts_standard_errors():
    values = np.array([[1.0, 1, 1, 1, 2], [0, 0, 0, 0, 1], [np.nan, np.nan, np.nan, np.nan, 1]])
    assert share_above_chance(values) == 0.5  # 6 and 1 standard errors; of the third model there is one image
    assert share_above_chance(np.zeros((3, 5))) == 0
    assert np.isnan(share_above_chance(np.ones((3, 1))))
    with pytest.raises(ValueError, match="no column finished"):
        gate_table(MODELS.drop(columns="finished"), classes=20)
    with pytest.raises(ValueError, match="classes is 1"):
        gate_table(MODELS, classes=1)
