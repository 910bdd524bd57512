import numpy as np
import pandas as pd
import pytest
from scipy.stats import kendalltau, spearmanr

from helpers import ranking
from helpers.conditional_information import information_table
from helpers.confounding import granulated_kendall, partial_correlation
from helpers.sign_error import sign_error_table

AXES = ["batch_size", "learning_rate", "pretrained"]


@pytest.fixture
def catalogue():
    """Two repeats of a grid whose gap is made by all hyperparameters and some noise."""
    rng = np.random.default_rng(0)
    grid = pd.DataFrame(
        [(b, lr, p, r) for b in (16, 32, 64) for lr in (0.1, 0.01) for p in (False, True) for r in range(2)], columns=[*AXES, "repeat"]
    )
    gap = 0.3 - 0.1 * grid["pretrained"] + 0.001 * grid["batch_size"] + 0.5 * grid["learning_rate"] + 0.01 * rng.normal(size=len(grid))
    noise = rng.normal(size=len(grid))
    cell = grid[AXES].astype(str).agg("-".join, axis=1)
    values = {"perfect": gap, "reversed": -gap, "noise": noise, "constant": 1.0, "absent": np.nan}
    return grid.assign(gap=gap, cell=cell, architecture=np.where(grid["batch_size"] == 16, "a", "b"), **values)


DIRECTIONS = {"noise": 1, "constant": 1, "perfect": -1, "absent": -1, "reversed": -1}


def test_a_perfect_measure_is_first_and_a_reversed_one_last_of_those_defined(catalogue):
    table = ranking.ranking_table(catalogue, DIRECTIONS, AXES, test_images=100_000, resamples=50).set_index("measure")
    assert list(table.index) == ["perfect", "noise", "reversed", "constant", "absent"]
    assert table.loc["perfect", ["kendall", "spearman", "pearson_r", "granulated_kendall", "partial_r"]].tolist() == pytest.approx([1] * 5)
    assert table.loc["perfect", "conditional_information"] == pytest.approx(1)
    assert table.loc["perfect", "sign_error"] == 0
    assert table.loc["reversed", ["kendall", "spearman", "granulated_kendall", "partial_r"]].tolist() == pytest.approx([-1] * 4)
    assert table.loc["reversed", "sign_error"] == 1
    assert table.loc["perfect", "kendall_low"] == pytest.approx(1)
    assert table.loc[["constant", "absent"], ["kendall", "kendall_low", "pearson_r", "spearman", "partial_r"]].isna().all(axis=None)
    assert table.loc["absent", ["n", "dropped"]].tolist() == [0, 24]


def test_every_column_equals_the_statistic_computed_by_itself(catalogue):
    row = ranking.ranking_table(catalogue, {"noise": 1}, AXES, test_images=500, resamples=20).iloc[0]
    x, y = catalogue["noise"], catalogue["gap"]
    assert row["kendall"] == pytest.approx(-kendalltau(x, y).statistic)
    assert row["spearman"] == pytest.approx(-spearmanr(x, y).statistic)
    assert row["pearson_r"] == pytest.approx(np.corrcoef(x, y)[0, 1])
    psi = granulated_kendall(catalogue, {"noise": 1}, AXES).set_index("hyperparameter")["psi"]
    assert row["granulated_kendall"] == pytest.approx(psi[AXES].mean())
    assert row["partial_r"] == partial_correlation(catalogue, {"noise": 1}, AXES)["partial_r"].iloc[0]
    assert row["conditional_information"] == information_table(catalogue, {"noise": 1}, AXES)["score"].iloc[0]
    errors = sign_error_table(catalogue, {"noise": 1}, AXES, test_images=500).set_index("hyperparameter")
    assert row["sign_error"] == errors.loc["all", "maximum"]


def test_without_an_axis_the_conditional_statistics_are_undefined(catalogue):
    assert ranking.varied_axes(catalogue[catalogue["batch_size"] == 16], AXES) == ["learning_rate", "pretrained"]
    row = ranking.ranking_table(catalogue, {"noise": 1}, [], test_images=500, resamples=0).iloc[0]
    assert np.isfinite(row["kendall"])
    assert np.isnan(row["kendall_low"])
    assert np.isnan(row["partial_r"])


def test_measures_together_are_signed_by_their_direction(catalogue):
    table = ranking.measure_correlations(catalogue, {"perfect": -1, "reversed": -1, "noise": 1, "absent": 1})
    assert table.loc["perfect", "reversed"] == pytest.approx(-1)
    assert np.diag(table)[:3].tolist() == pytest.approx([1, 1, 1])
    assert table.loc["noise", "perfect"] == pytest.approx(-kendalltau(catalogue["noise"], catalogue["perfect"]).statistic)
    assert table["absent"].isna().all()
    pd.testing.assert_frame_equal(table, table.T)


def test_tasks_are_scored_apart_and_one_with_a_single_hyperparameter_has_none(catalogue):
    table = ranking.task_table(catalogue, {"perfect": -1, "noise": 1}, AXES, "architecture").set_index("measure")
    assert list(table.columns) == ["a", "b", "average"]
    assert table.loc["perfect"].tolist() == pytest.approx([100, 100, 100])
    assert table.loc["noise", "average"] == pytest.approx(table.loc["noise", ["a", "b"]].mean())
    fewer = ranking.task_table(
        catalogue[(catalogue["architecture"] == "b") | catalogue["pretrained"]], {"perfect": -1}, AXES, "architecture"
    )
    assert np.isnan(fewer.loc[0, "a"])
    assert fewer.loc[0, "average"] == pytest.approx(100)
