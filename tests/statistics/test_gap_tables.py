"""Tables on the gap of all models against plain loops."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from helpers.statistics import correlate as c
from helpers.statistics import gap_tables as g
from tests.statistics.test_primary import MEASURES, left_over, r, study


def test_the_variance_between_kinds_is_free_of_chance():
    models = study().assign(
        stop_reason=["rules 1+2"] * 24 + ["epoch cap 60"] * 7 + [None]
    )
    table = g.kinds_table(models)
    assert table["models"].tolist() == [4] * 8
    assert table["ended_by_a_rule"].tolist() == [1] * 6 + [0] * 2
    gap = models["gap"]
    own = gap[models["kind"] == "net1 kind 0"]
    numbers = table.loc[1, ["gap", "gap_least", "gap_most"]].tolist()
    assert numbers == [own.median(), own.min(), own.max()]
    means = gap.groupby(models["kind"]).transform("mean")
    within = ((gap - means) ** 2).sum() / (32 - 8)
    share = 1 - within / gap.var(ddof=1)
    assert table["variance_between_kinds"].tolist() == pytest.approx([share] * 8)
    random = np.random.default_rng(0)
    chance = [
        g.kinds_table(models.assign(gap=random.normal(size=32))).iloc[0, -1]
        for _ in range(60)
    ]
    assert abs(np.mean(chance)) < 0.03 and np.min(chance) < 0


AXES = ["depth", "size"]


def ranked(draws=100, permutations=199):
    models = study().assign(depth=np.arange(32) % 3, size=np.arange(32) // 16)
    values = models["noise"].to_numpy()[:, None] + np.linspace(-1, 1, 50)
    bootstrap = c.Bootstrap(models, {"noise": values}, draws=draws, seed=1)
    table = g.ranking_table(
        bootstrap, [*MEASURES, "train_accuracy"], AXES, permutations=permutations
    )
    return models, table.set_index("measure")


def test_the_ranking_answers_five_questions():
    models, table = ranked()
    fit = [models["train_accuracy"], models["log_train_loss"]]
    levels = pd.get_dummies(models[AXES].astype(str)).to_numpy().T
    for name in MEASURES:
        x, gap, row = models[name], models["gap"], table.loc[name]
        assert row["r_gap"] == pytest.approx(r(x, gap))
        assert row["r_test_accuracy"] == pytest.approx(r(x, models["test_accuracy"]))
        assert row["tau_gap"] == pytest.approx(x.corr(gap, method="kendall"))
        given = r(left_over(x, *fit), left_over(gap, *fit))
        assert row["r_gap_given_fit"] == pytest.approx(given)
        given = r(left_over(x, *fit, *levels), left_over(gap, *fit, *levels))
        assert row["r_gap_given_all"] == pytest.approx(given)
    assert math.isnan(table.loc["train_accuracy", "r_gap_given_fit"])
    assert (table["r_gap_p_adjusted"] >= table["r_gap_p"]).all()
    beyond = (table["tau_gap"] - table["tau_gap_null"]).abs() > table["tau_gap_band"]
    assert beyond.tolist() == (table["tau_gap_p_adjusted"] < 0.05).tolist()
    assert table.loc["noise", ["n", "images"]].tolist() == [32, 50]
    assert table.loc["noise", "reliability"] == pytest.approx(1)


def by_hand(models, row):
    part = models[models["train_accuracy"] > row.threshold]
    if row.architecture != g.TOTAL:
        part = part[part["architecture"] == row.architecture]
    return part


def test_tables_3_and_4_hold_every_architecture_and_threshold():
    models = study(kinds=12, runs=5)
    models["copy"] = -models["between"]
    models["rounded"] = models["between"].round(1)
    bootstrap = c.Bootstrap(models, draws=100)
    table = g.correlation_table(bootstrap, ["between", "noise"], (0.9, 0.85))
    assert table["architecture"].unique().tolist() == ["net0", "net1", g.TOTAL]
    for row in table.itertuples():
        part = by_hand(models, row)
        assert (row.n, row.cells) == (len(part), len(part))
        x, gap = part[row.measure], part["gap"]
        assert row.pearson_r == pytest.approx(r(x, gap))
        assert row.ci_low < row.pearson_r < row.ci_high
    directions = {"between": 1, "copy": -1, "rounded": 1}
    table = g.selection_table(bootstrap, directions, (0.85,))
    for row in table.itertuples():
        part = by_hand(models, row)
        counts = {1: 0, -1: 0, 0: 0}
        values = zip(part[row.measure], part["gap"], strict=True)
        for (m, gap), (n, other) in itertools.combinations(values, 2):
            sign = -np.sign(m - n) * np.sign(gap - other) * directions[row.measure]
            counts[int(sign)] += 1
        share = counts[1] / (counts[1] + counts[-1])
        assert row.accuracy == pytest.approx(share)
        assert row.ci_low <= row.accuracy <= row.ci_high


def test_subsets_without_models_stay_as_rows_and_a_threshold_is_exceeded():
    bootstrap = c.Bootstrap(study().assign(train_accuracy=0.9), draws=9)
    table = g.correlation_table(bootstrap, ["noise"], (0.9, 0.89))
    assert table.loc[table["architecture"] == g.TOTAL, "n"].tolist() == [0, 32]
    table = g.selection_table(bootstrap, {"noise": 1}, (0.9,))
    assert len(table) == 3 and table["accuracy"].isna().all()


def test_confounders_hold_one_all_or_a_level_of_the_hyperparameters_fixed():
    models = ranked()[0]
    bootstrap = c.Bootstrap(models, draws=50)
    table = g.confounders(bootstrap, ["noise", "within"], AXES)
    of = table[table["measure"] == "within"].set_index(
        ["kind", "hyperparameter", "level"]
    )
    x, gap = models["within"], models["gap"]
    assert of.loc[(g.POOLED, "all", ""), "r"] == pytest.approx(r(x, gap))
    size = pd.get_dummies(models["size"].astype(str)).to_numpy().T
    given = r(left_over(x, *size), left_over(gap, *size))
    assert of.loc[(g.GIVEN_ONE, "size", ""), "r"] == pytest.approx(given)
    levels = pd.get_dummies(models[AXES].astype(str)).to_numpy().T
    given = r(left_over(x, *levels), left_over(gap, *levels))
    assert of.loc[(g.GIVEN_ALL, "all", ""), "r"] == pytest.approx(given)
    part = models[models["size"] == 1]
    assert of.loc[(g.WITHIN, "size", "1"), "r"] == pytest.approx(
        r(part["within"], part["gap"])
    )
    assert table["measure"].unique().tolist() == ["noise", "within"]
    assert len(g.subsets(bootstrap.subset(np.zeros(32, bool)), ["noise"], "size")) == 0
