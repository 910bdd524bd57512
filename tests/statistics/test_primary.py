import math

import numpy as np
import pandas as pd
import pytest

from helpers.statistics.bootstrap import Bootstrap
from helpers.statistics.claims import OF_KINDS
from helpers.statistics.correlations import design, partial_correlation, pearson
from helpers.statistics.permutation import (
    null_centre,
    null_partial_correlation,
    p_values,
)
from helpers.statistics.prediction import (
    FIT,
    Rivalry,
    held_out_errors,
    saved_errors,
    with_log_train_loss,
)
from helpers.statistics.primary import (
    ended_by_a_rule,
    kinds_table,
    primary_rows,
    primary_table,
)
from helpers.statistics.ranking import Question, answers
from helpers.statistics.verdicts import verdict_table

MEASURES = ["between", "within", "noise"]
FACTS = ["measure", "baseline", "n", "kinds", "level", "twins", "best_baseline"]


def measures_table(*args, **options):
    """The rows of the measures, without the baselines above them."""
    table = primary_table(*args, **options)
    return table[~table["baseline"]].reset_index(drop=True)


def study(seed=0, kinds=4):
    """Kinds of training of eight runs: "between" goes with the gap between kinds alone, "within" within them alone."""
    random = np.random.default_rng(seed)
    kind = np.repeat(np.arange(kinds), 8)
    n, level = len(kind), np.linspace(-1, 1, kinds)[kind]
    own, accuracy = random.normal(size=n), random.uniform(0.82, 1, n)
    gap = 0.4 + 0.1 * level + 0.02 * own + 0.3 * (accuracy - 0.9)
    table = pd.DataFrame(
        {
            "kind": [f"kind {k}" for k in kind],
            "cell": np.arange(n),
            "gap": gap,
            "train_accuracy": accuracy,
        }
    )
    table = table.assign(
        train_loss=random.uniform(0.1, 0.5, n),
        test_accuracy=accuracy - gap,
        between=level + 0.1 * random.normal(size=n),
    )
    return table.assign(
        architecture="net",
        within=own + 0.3 * random.normal(size=n),
        noise=random.normal(size=n),
    )


def test_one_model_a_run_at_its_stop_with_right_labels_above_the_papers_accuracy():
    rows = pd.DataFrame(
        {
            "snapshot": ["stop", "first", "stop", "stop", "stop", "none"],
            "label_noise": [0, 0, 0.2, 0, 0, 0],
        }
    )
    rows = rows.assign(
        train_accuracy=[0.9, 0.9, 0.9, 0.8, 0.9, np.nan],
        gap=[0.3, 0.3, 0.3, 0.3, np.nan, np.nan],
    )
    assert (
        primary_rows(rows).tolist() == [True] + [False] * 5
    )  # 0.8 is to be exceeded, not reached


def test_a_claim_may_ask_every_question_of_the_primary_table():
    models = study()
    models["pretrained"] = models["gap"] < models["gap"].median()
    bootstrap = Bootstrap(models, draws=50, seed=2)
    table = primary_table(bootstrap, MEASURES, permutations=99)
    gates = pd.DataFrame({"gate": [], "concerns": [], "passes": []}, dtype=object)
    claims = [
        {"claim": question, "measure": "within", "question": question, "side": "below"}
        for question in OF_KINDS
    ]
    verdicts = verdict_table(claims, table, pd.DataFrame({"measure": []}), gates)
    row = table.set_index("measure").loc["within"]
    for verdict, question in zip(verdicts.itertuples(), OF_KINDS, strict=True):
        assert verdict.ours == row[question]
        assert verdict.ours_low == row[f"{question}_low"] < row[f"{question}_high"]
        assert verdict.p == row[f"{question}_p"]


def test_the_three_questions_are_answered_as_they_say():
    models = with_log_train_loss(study())
    draws = Bootstrap(models, draws=300, seed=2)
    table = measures_table(draws, MEASURES, permutations=199).set_index("measure")
    x, gap = models[MEASURES].to_numpy(), models["gap"].to_numpy()
    assert table["r_gap"].tolist() == pytest.approx(
        [pearson(column, gap) for column in x.T]
    )
    given = design(models, ["kind"], FIT)
    assert table["r_gap_within_kinds"].tolist() == pytest.approx(
        partial_correlation(x, gap, given).tolist()
    )
    # Given the fit, the gap is test accuracy with its sign turned: one question, said once.
    assert table["r_gap_within_kinds"].tolist() == pytest.approx(
        (-partial_correlation(x, models["test_accuracy"], given)).tolist()
    )
    assert (
        set(table["n"]) == {32}
        and set(table["kinds"]) == {4}
        and set(table["level"]) == {0.95}
    )
    rivalry = Rivalry(design(models, (), FIT), left_out="kind")
    found = saved_errors(draws, MEASURES, rivalry).set_index("measure")
    pd.testing.assert_frame_equal(table[found.columns], found)
    for question, held, within in (
        ("r_gap", None, None),
        ("r_gap_within_kinds", given, "kind"),
    ):
        rows = draws.permutations(199, within)
        expected = answers(draws, MEASURES, Question(question, covariates=held), rows)[
            0
        ]
        assert all(
            table[name].tolist() == pytest.approx(values.tolist())
            for name, values in expected.items()
        )
    assert (
        table.loc["between", "r_gap_p"] == 1 / 200
        and table.loc["between", "r_gap_within_kinds_p"] > 0.05
    )
    assert (
        table.loc["within", "r_gap_p"] > 0.05
        and table.loc["within", "r_gap_within_kinds_p"] == 1 / 200
    )
    assert (
        table.loc["between", "saved_error_points"]
        > 3
        > table.loc["within", "saved_error_points"]
    )


def test_within_settings_nothing_is_left_of_a_measure_that_tells_which_optimizer_suits_which_start():
    """Two architectures from two starts with eight optimizers: the gap and "within" go with optimizer by start, "noise" with the rest."""
    random, own = np.random.default_rng(1), np.tile(np.arange(16), 2)
    suits, rest = random.normal(size=16)[own], random.normal(size=32)
    models = study().assign(
        pretrained=own // 8,
        optimizer=own % 8,
        architecture=np.repeat(["one", "two"], 16),
        train_accuracy=0.95,
    )
    models = models.assign(
        gap=0.4 + 0.03 * suits + 0.01 * rest,
        within=suits + 0.2 * random.normal(size=32),
        noise=rest,
    )
    row = measures_table(
        Bootstrap(models, draws=9), ["within", "noise"], permutations=199
    ).set_index("measure")
    assert (
        row.loc["within", "r_gap_within_kinds_p"] < 1 / 200
        and row.loc["within", "r_gap_within_settings_p"] > 0.05
    )
    assert (
        row.loc["noise", "r_gap_within_kinds_p"] > 0.05
        and row.loc["noise", "r_gap_within_settings_p"] == 1 / 200
    )
    given = design(
        with_log_train_loss(models).assign(setting=own), ["kind", "setting"], FIT
    )
    expected = partial_correlation(
        models[["within", "noise"]].to_numpy(), models["gap"], given
    )
    assert row["r_gap_within_settings"].tolist() == pytest.approx(expected.tolist())
    # Held fixed: 3 + 14 columns of the 4 kinds and 16 settings, which fall into two
    # parts without a common setting, and the loss. Fisher's variance of a correlation
    # given 18 columns is 1 / (32 - 18 - 3).
    assert row["r_gap_within_settings_smallest"].tolist() == pytest.approx(
        [math.tanh(2.8 / math.sqrt(11))] * 2
    )
    # Gaps change places within a kind alone.
    null = null_partial_correlation(
        models[["within", "noise"]],
        models["gap"],
        Bootstrap(models, draws=9).permutations(199, "kind"),
        given,
    )
    centre = null_centre(expected, null)
    p = p_values(np.abs(expected - centre), np.abs(null - centre))
    assert row["r_gap_within_settings_p"].tolist() == pytest.approx(p.tolist())
    alone = measures_table(
        Bootstrap(models[:16], draws=9), ["within"], permutations=9
    ).iloc[0]  # one network a setting
    assert np.isnan(alone["r_gap_within_settings"]) and np.isnan(
        alone["r_gap_within_settings_p"]
    )


def test_further_kinds_with_the_same_effects_of_settings_make_nothing_surer():
    """Eight settings shift every kind alike: copies of one kind are no new evidence, whatever their number."""
    one = study(kinds=1).assign(optimizer=[f"setting {k}" for k in range(8)])
    copies = pd.concat(
        [one.assign(kind=f"kind {k}", cell=one["cell"] + 8 * k) for k in range(4)],
        ignore_index=True,
    )
    few, many = (
        measures_table(
            Bootstrap(models, draws=200), ["within", "noise"], permutations=99
        )
        for models in (one, copies)
    )
    within = few.columns[few.columns.str.startswith("r_gap_within_kinds")]
    assert (
        few["r_gap_within_kinds_low"].notna().all()
        and 1 / math.factorial(8)
        <= few.loc[0, "r_gap_within_kinds_p"]
        < few.loc[1, "r_gap_within_kinds_p"]
    )
    pd.testing.assert_frame_equal(many[within], few[within])
    three = study().assign(optimizer=np.tile(np.arange(8), 4)).query("optimizer < 3")
    fewer = measures_table(
        Bootstrap(three, draws=200), ["within"], permutations=99
    ).iloc[0]
    assert np.isnan(fewer["r_gap_within_kinds_low"])
    assert fewer["r_gap_within_kinds_p"] * 6 in [1, 2, 3, 4, 5, 6]  # of 3! orders


def test_twins_turn_together_in_the_p_of_what_a_measure_saves():
    models = with_log_train_loss(study(kinds=8))
    number = models["kind"].str[5:].astype(int)
    models = models.assign(
        architecture=number.mod(2).map("net{}".format),
        kind=[f"net{k % 2} kind {k // 2}" for k in number],
    )
    row = measures_table(Bootstrap(models, draws=9), ["between"], permutations=9).iloc[
        0
    ]
    assert (
        row["saved_error_points"] > 3 and row["saved_error_points_p"] == 1 / 16
    )  # of four signs, where eight kinds have 256


def test_kinds_are_left_out_with_their_twins_of_another_architecture_too():
    models = with_log_train_loss(study(kinds=6))
    number = models["kind"].str[5:].astype(int)
    models = models.assign(
        architecture=number.mod(2).map("net{}".format),
        kind=[f"net{k % 2} kind {k // 2}" for k in number],
    )
    row = measures_table(Bootstrap(models, draws=9), ["between"], permutations=9).iloc[
        0
    ]
    errors = held_out_errors(
        models[[*FIT, "between"]].to_numpy(), models["gap"], number // 2
    )
    assert (row["kinds"], row["twins"], row["error_with_twins"]) == (
        6,
        3,
        pytest.approx(errors.mean()),
    )


def test_looks_widen_every_interval_to_their_level():
    draws = Bootstrap(study(), draws=400)
    once, thrice = (
        measures_table(draws, ["within"], permutations=9, looks=looks).iloc[0]
        for looks in (1, 3)
    )
    assert thrice["level"] == pytest.approx(1 - 0.05 / 3)
    for name in ("r_gap", "r_gap_within_kinds", "saved_error_points", "error_with"):
        assert (
            thrice[f"{name}_low"]
            < once[f"{name}_low"]
            < once[f"{name}_high"]
            < thrice[f"{name}_high"]
        )


def test_one_kind_two_configurations_and_measures_that_say_nothing_are_undefined_and_no_more():
    table = measures_table(
        Bootstrap(study(kinds=1), draws=50), MEASURES, permutations=19
    ).set_index("measure")
    assert table["r_gap_within_kinds"].notna().all() and table.filter(
        like="error"
    ).isna().all(axis=None)
    table = measures_table(
        Bootstrap(study().iloc[[0, 8]], draws=50), MEASURES, permutations=19
    )
    assert (
        table.drop(columns=FACTS).isna().all(axis=None)
        and table["n"].tolist() == [2] * 3
    )
    odd = study().assign(absent=np.nan, constant=0.1, again=lambda t: t["within"])
    odd["some"] = odd["within"].where(odd["kind"] < "kind 2")
    table = measures_table(
        Bootstrap(odd, draws=50),
        ["within", "again", "absent", "constant", "some"],
        permutations=19,
    ).set_index("measure")
    assert (
        table.loc[
            ["absent", "constant"],
            ["r_gap", "r_gap_p", "r_gap_within_kinds", "r_gap_low"],
        ]
        .isna()
        .all(axis=None)
    )
    pd.testing.assert_series_equal(
        table.loc["within"], table.loc["again"], check_names=False
    )
    assert table.loc["some", "n"] == 16 and np.isnan(
        table.loc["some", "saved_error_points"]
    )  # of two kinds


def test_kinds_and_the_variance_between_them():
    models = study().assign(
        stop_reason=["rules 1+2"] * 24
        + ["epoch cap 60"] * 6
        + ["loss is nan in epoch 3", None]
    )
    table = kinds_table(models)
    assert table["kind"].tolist() == [f"kind {k}" for k in range(4)] and set(
        table["models"]
    ) == {8}
    assert (
        table["ended_by_a_rule"].tolist() == [1, 1, 1, 0]
        and ended_by_a_rule(models).sum() == 24
    )
    own, gap = models[models["kind"] == "kind 1"], models["gap"]
    assert table.loc[1, ["gap", "gap_least", "gap_most"]].tolist() == [
        own["gap"].median(),
        own["gap"].min(),
        own["gap"].max(),
    ]
    assert (
        table.loc[1, ["train_accuracy", "test_accuracy"]].tolist()
        == own[["train_accuracy", "test_accuracy"]].median().tolist()
    )
    means = np.repeat(gap.to_numpy().reshape(4, 8).mean(1), 8)
    within = ((gap - means) ** 2).sum() / (32 - 4)
    assert table["variance_between_kinds"].tolist() == pytest.approx(
        [1 - within / gap.var(ddof=1)] * 4
    )
    random = np.random.default_rng(0)
    chance = [
        kinds_table(models.assign(gap=random.normal(size=32)))[
            "variance_between_kinds"
        ][0]
        for _ in range(60)
    ]
    assert abs(np.mean(chance)) < 0.03 and np.min(chance) < 0  # not (4 - 1) / (32 - 1)


def test_where_no_network_learnt_so_far_every_answer_is_undefined_under_the_same_heads():
    models = with_log_train_loss(study())
    none = measures_table(
        Bootstrap(models, draws=20).subset(np.zeros(len(models), bool)),
        MEASURES,
        permutations=19,
    )
    some = measures_table(Bootstrap(models, draws=20), MEASURES, permutations=19)
    assert sorted(none) == sorted(some) and none["n"].tolist() == [0, 0, 0]
    assert none.drop(columns=FACTS).isna().all(axis=None)


def test_the_order_in_which_kinds_stand_changes_nothing():
    """Settings of the same kinds are drawn together, also where kinds alternate."""
    models = study()
    models["optimizer"] = np.tile(["adam", "sgd"], len(models) // 2)
    models["learning_rate"] = np.tile([0.1, 0.1, 0.2, 0.2], len(models) // 4)
    models["cell"] = (
        models["kind"] + models["optimizer"] + models["learning_rate"].astype(str)
    )
    turns = models.groupby("kind").cumcount()
    alternating = models.iloc[np.argsort(turns, kind="stable")].reset_index(drop=True)
    tables = [
        primary_table(Bootstrap(one, draws=50), MEASURES, permutations=19)
        for one in (models, alternating)
    ]
    pd.testing.assert_frame_equal(*tables)
