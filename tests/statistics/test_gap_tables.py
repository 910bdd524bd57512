"""Tables on the gap of all models against plain loops."""

import itertools

import numpy as np
import pandas as pd
import pytest

from helpers.statistics import correlate as c
from helpers.statistics import gap_tables as g
from tests.statistics.test_primary import left_over, r, study

AXES = ["depth", "size"]


def by_hand(models, row):
    part = models[models["train_accuracy"] > row.threshold]
    if row.architecture != g.TOTAL:
        part = part[part["architecture"] == row.architecture]
    return part


def test_tables_3_and_4_hold_every_architecture_and_threshold():
    models = study(kinds=18, runs=5).round({"train_accuracy": 2})
    models["copy"] = -models["between"]
    models["rounded"] = models["between"].round(1)
    bootstrap = c.Bootstrap(models, draws=100)
    table = g.correlation_table(bootstrap, ["between", "noise"], (0.9, 0.85))
    assert table["architecture"].unique().tolist() == ["net0", "net1", g.TOTAL]
    for row in table.itertuples():
        part = by_hand(models, row)
        assert (row.n, row.cells) == (len(part), part["kind"].nunique())
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


def test_confounders_hold_one_all_or_a_level_of_the_hyperparameters_fixed():
    models = study().assign(depth=np.arange(32) % 3, size=np.arange(32) // 16)
    bootstrap = c.Bootstrap(models, draws=50)
    table = g.confounders(bootstrap, ["noise", "within"], AXES)
    keys = ["kind", "hyperparameter", "level"]
    found = table[table["measure"] == "within"].set_index(keys)["r"]
    x, gap = models["within"], models["gap"]

    def given(axes):
        levels = pd.get_dummies(models[axes].astype(str)).to_numpy().T
        return pytest.approx(r(left_over(x, *levels), left_over(gap, *levels)))

    assert found[g.POOLED, "all", ""] == pytest.approx(r(x, gap))
    assert found[g.GIVEN_ONE, "size", ""] == given(["size"])
    assert found[g.GIVEN_ALL, "all", ""] == given(AXES)
    is_one = models["size"] == 1
    assert found[g.WITHIN, "size", "1"] == pytest.approx(r(x[is_one], gap[is_one]))
    assert table["measure"].unique().tolist() == ["noise", "within"]


def test_reliability_is_the_median_over_random_halves():
    random = np.random.default_rng(1)
    values = random.normal(size=(9, 1)) + random.normal(size=(9, 11))
    numbers = np.tile(np.arange(11), (20, 1))
    splits = np.random.default_rng(3).permuted(numbers, axis=1)
    of_all_images = []
    for order in splits:
        half = r(values[:, order < 5].mean(1), values[:, order >= 5].mean(1))
        of_all_images.append(2 * half / (1 + half) if half > 0 else half)
    assert abs(np.median(of_all_images) - np.mean(of_all_images)) > 1e-3
    expected = pytest.approx(np.median(of_all_images))
    assert g.reliability(values, seed=3) == expected


def test_two_images_are_two_halves_by_hand():
    one, other = np.array([1.0, 2, 3, np.nan]), np.array([1.0, 3, 2, 9])  # r = 1/2
    assert g.reliability(np.column_stack([one, other])) == pytest.approx(2 * 0.5 / 1.5)
    assert g.reliability(np.column_stack([one, -other])) == pytest.approx(-0.5)
    assert np.isnan(g.reliability(np.column_stack([one, other])[:2]))
    assert np.isnan(g.reliability(np.column_stack([one, np.ones(4)])))
