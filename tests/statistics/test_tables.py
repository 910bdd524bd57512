import itertools

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from scipy.stats import kendalltau

from helpers.statistics import tables
from helpers.statistics.hyperparameters import granulated_kendall
from helpers.statistics.information import conditional_information
from helpers.statistics.sign_error import sign_errors


def brute_force(measure, gap, direction):
    counts = {1: 0, -1: 0, 0: 0}
    for (m, g), (n, h) in itertools.combinations(zip(measure, gap, strict=True), 2):
        counts[int(np.sign(m - n) * np.sign(g - h)) * -direction] += 1
    return counts[1], counts[-1], counts[0]


def catalogue(rng, repeats=2, cells=30):
    """Two architectures, cells of several repeats that share an effect, one measure that follows the gap and one that does not."""
    rows = cells * repeats
    gap = np.repeat(rng.uniform(0, 0.5, cells), repeats) + 0.01 * rng.normal(size=rows)
    return pd.DataFrame(
        {
            "architecture": np.repeat(["resnet34", "resnet18"], rows // 2),
            "train_accuracy": rng.uniform(0.7, 1, rows),
            "gap": gap,
            "cell": np.repeat([f"cell{number}" for number in range(cells)], repeats),
            "good": 1 - gap + 0.02 * rng.normal(size=rows),
            "noise": rng.normal(size=rows),
        }
    )


def test_correlation_table_holds_every_subset_and_equals_scipy():
    models = catalogue(np.random.default_rng(0))
    models.loc[[0, 59], "good"] = np.nan
    table = tables.correlation_table(models, {"good": 1, "noise": -1}, (0.9, 0.75), resamples=200, kendall_resamples=100)
    assert table["architecture"].unique().tolist() == ["resnet34", "resnet18", "Total"]
    assert len(table) == 3 * 2 * 2
    assert not table.isna().any(axis=None)
    for row in table.itertuples():
        kept = models[(models["train_accuracy"] > row.threshold) & models[row.measure].notna()]
        kept = kept if row.architecture == "Total" else kept[kept["architecture"] == row.architecture]
        assert (row.n, row.cells) == (len(kept), kept["cell"].nunique())
        assert row.pearson_r == pytest.approx(scipy.stats.pearsonr(kept[row.measure], kept["gap"]).statistic, rel=1e-12)
        assert row.kendall_tau == pytest.approx(scipy.stats.kendalltau(kept[row.measure], kept["gap"]).statistic, rel=1e-12)
        assert row.ci_low < row.pearson_r < row.ci_high
        assert row.kendall_low < row.kendall_tau < row.kendall_high
    dropped = table[(table["architecture"] == "Total") & (table["threshold"] == 0.75)].set_index("measure")["dropped"]
    assert dropped.to_dict() == {"good": int((models.loc[[0, 59], "train_accuracy"] > 0.75).sum()), "noise": 0}
    assert dropped["good"] > 0


def test_a_threshold_is_exceeded_not_reached():
    models = catalogue(np.random.default_rng(0)).assign(train_accuracy=0.9)
    table = tables.correlation_table(models, ["good"], (0.9, 0.89), resamples=0, kendall_resamples=0)
    assert table.loc[table["architecture"] == "Total", "n"].tolist() == [0, 60]


def test_subsets_without_models_stay_as_nan_rows():
    models = catalogue(np.random.default_rng(0)).assign(train_accuracy=0.5)
    for table in (tables.correlation_table(models, ["good"]), tables.selection_table(models, {"good": 1})):
        assert len(table) == 3 * 4
        assert (table["n"] == 0).all()
        values = table.columns.intersection(["pearson_r", "ci_low", "ci_high", "kendall_tau", "kendall_low", "kendall_high", "accuracy"])
        assert len(values) >= 3
        assert table[values].isna().all(axis=None)


def test_tables_of_no_models_have_the_pooled_rows():
    models = catalogue(np.random.default_rng(0)).iloc[:0]
    assert tables.correlation_table(models, ["good"])["architecture"].tolist() == ["Total"] * 4


def test_selection_table_equals_all_pairs():
    models = catalogue(np.random.default_rng(1))
    table = tables.selection_table(models.assign(bad=-models["good"]), {"good": 1, "bad": -1}, (0.8,), resamples=100)
    for row in table.itertuples():
        kept = models[models["train_accuracy"] > 0.8]
        kept = kept if row.architecture == "Total" else kept[kept["architecture"] == row.architecture]
        assert (row.concordant, row.discordant, row.ties) == brute_force(kept["good"], kept["gap"], 1)
        assert row.accuracy == pytest.approx(row.concordant / (row.concordant + row.discordant), rel=1e-12)
        assert row.ci_low < row.accuracy < row.ci_high
    # The same measure upside down with the other direction is the same choice.
    numbers = ["accuracy", "ci_low", "ci_high"]
    np.testing.assert_allclose(*(table.loc[table["measure"] == name, numbers] for name in ("good", "bad")), rtol=1e-12)


AXES = ["batch_size", "learning_rate", "pretrained"]


@pytest.fixture
def catalogue_ranking():
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


def test_statistics_with_hyperparameters_fixed_stand_beside_what_chance_gives(catalogue_ranking):
    table, reason = tables.conditional_table(catalogue_ranking, DIRECTIONS, AXES, test_images=10_000, draws=59)
    table = table.set_index("measure")
    granulated = granulated_kendall(catalogue_ranking, DIRECTIONS, AXES).set_index(["measure", "hyperparameter"])["psi"]
    assert table.loc["perfect", "granulated_kendall"] == pytest.approx(granulated["perfect", "all"]) == 1
    assert table.loc["noise", "granulated_kendall"] == pytest.approx(-granulated["noise", "all"])  # in the sign of the raw measure
    np.testing.assert_array_equal(table["conditional_information"], conditional_information(catalogue_ranking, list(DIRECTIONS), AXES))
    errors = sign_errors(catalogue_ranking, DIRECTIONS, AXES, test_images=10_000)
    np.testing.assert_array_equal(table["sign_error"], errors.robust[0])
    assert table.loc[["perfect", "reversed"], "conditional_information_p_adjusted"].tolist() == [1 / 60, 1 / 60]
    assert table.loc["noise", "conditional_information_p_adjusted"] > 0.05
    assert table.loc["noise", "conditional_information"] < table["conditional_information_band"].iloc[0]
    # Low errors are the extreme ones: the reversed measure is as wrong as can be, and no finding.
    assert table["sign_error"][["perfect", "reversed"]].tolist() == [0, 1]
    assert table["sign_error_p_adjusted"][["perfect", "reversed"]].tolist() == [1 / 60, 1]
    assert 0 < table.loc["perfect", "sign_error_band"] < 0.6
    assert np.isnan(table.loc["absent", "sign_error_p_adjusted"])
    assert (reason, set(table["permutations"])) == ("", {59})


def test_a_sign_error_that_is_undefined_is_left_out_with_one_reason(catalogue_ranking):
    none, reason = tables.conditional_table(catalogue_ranking, DIRECTIONS, [], test_images=10)
    assert list(none.columns) == ["measure"]
    assert reason == "no hyperparameter has two levels, so nothing can be held fixed"
    few, reason = tables.conditional_table(catalogue_ranking, DIRECTIONS, AXES, test_images=10, draws=9)
    assert not [name for name in few if name.startswith("sign_error")]
    # 12 cells of two repeats: 12 + 6 + 6 pairs of cells differ in one hyperparameter alone, each of 2 x 2 models.
    assert reason.startswith("96 pairs of models differ in one hyperparameter alone, 0 of them by more than the 62.0 points")


def test_large_grids_have_fewer_permutations(catalogue_ranking, monkeypatch):
    monkeypatch.setattr(tables, "_PAIRS_IN_ALL", 12**2 * 7)
    table, _ = tables.conditional_table(catalogue_ranking, {"noise": 1}, AXES, test_images=10_000)
    assert table["permutations"].tolist() == [7]


def test_chance_gives_the_best_of_many_random_measures_a_low_p_in_one_study_of_twenty(catalogue_ranking):
    """Adjusted p-values of both statistics over 40 studies whose 20 measures say nothing."""
    small = {"conditional_information": 0, "sign_error": 0}
    names = [f"random {number}" for number in range(20)]
    for seed in range(40):
        noise = pd.DataFrame(np.random.default_rng(seed).normal(size=(24, 20)), columns=names)
        table, _ = tables.conditional_table(
            catalogue_ranking.join(noise), dict.fromkeys(names, 1), AXES, test_images=10_000, draws=99, seed=seed
        )
        for name in small:
            small[name] += table[f"{name}_p_adjusted"].min() <= 0.05
    # Binomial(40, 0.05): more than 6 have a chance of 0.3 %.
    assert max(small.values()) <= 6


def test_measures_together_are_signed_by_their_direction(catalogue_ranking):
    table = tables.measure_correlations(catalogue_ranking, {"perfect": -1, "reversed": -1, "noise": 1, "absent": 1})
    assert table.loc["perfect", "reversed"] == pytest.approx(-1)
    assert np.diag(table)[:3].tolist() == pytest.approx([1, 1, 1])
    assert table.loc["noise", "perfect"] == pytest.approx(-kendalltau(catalogue_ranking["noise"], catalogue_ranking["perfect"]).statistic)
    assert table["absent"].isna().all()
    pd.testing.assert_frame_equal(table, table.T)


def test_tasks_are_scored_apart_and_one_with_a_single_hyperparameter_has_none(catalogue_ranking):
    names = ["perfect", "noise", "absent"]
    table = tables.task_table(catalogue_ranking, names, AXES, "architecture", draws=99).set_index("measure")
    assert list(table.columns) == ["a", "b", "average", "average_p_adjusted", "average_band"]
    assert table.loc["perfect"].tolist()[:3] == pytest.approx([100, 100, 100])
    assert table.loc["perfect", "average_p_adjusted"] == 1 / 100
    assert table.loc["noise", "average_p_adjusted"] > 0.05
    assert table.loc["noise", "average"] == pytest.approx(table.loc["noise", ["a", "b"]].mean())
    assert table.loc["absent", ["a", "b", "average", "average_p_adjusted"]].isna().all()
    one_axis = catalogue_ranking[(catalogue_ranking["architecture"] == "b") | catalogue_ranking["pretrained"]]
    fewer = tables.task_table(one_axis, ["perfect"], AXES, "architecture", draws=9)
    assert np.isnan(fewer.loc[0, "a"])
    assert fewer.loc[0, "average"] == pytest.approx(100)
    assert tables.task_table(catalogue_ranking, ["perfect"], [], "architecture", draws=9)["average"].isna().all()
