import itertools
import re

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from scipy.stats import kendalltau

from helpers.statistics import correlations, tables
from helpers.statistics.hyperparameters import granulated_kendall
from helpers.statistics.information import information_table
from helpers.statistics.sign_error import sign_error_table


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


def test_finite_pairs_says_who_was_dropped():
    measure, gap, kept = correlations.finite_pairs([1, np.nan, 3, np.inf, 5], [1, 2, np.nan, 4, 5])
    assert (measure.tolist(), gap.tolist(), kept.tolist()) == ([1, 5], [1, 5], [True, False, False, False, True])


@pytest.mark.parametrize("statistic", [correlations.finite_pairs, correlations.pair_counts])
def test_unequal_lengths_are_refused(statistic):
    with pytest.raises(ValueError, match=re.escape("measure and gap need one value per model each, got shapes (2,) and (3,)")):
        statistic([1, 2], [1, 2, 3])


def test_pairwise_accuracy_by_hand():
    # Models 0 and 3 tie in the measure, 1 and 2 in the gap; of the other pairs (0, 1) and (0, 2) are right, (1, 3) and (2, 3) wrong.
    result = correlations.pair_counts([1, 2, 3, 1], [0.3, 0.2, 0.2, 0.1])
    assert result == (0.5, 2, 2, 2)
    assert correlations.pair_counts([1, 2, 3], [0.3, 0.2, 0.1]) == (1, 3, 0, 0)
    assert correlations.pair_counts([1, 2, 3], [0.3, 0.2, 0.1], direction=-1) == (0, 0, 3, 0)


@pytest.mark.parametrize("count", [2, 3, 7, 8, 9, 64, 101])
@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_pairwise_accuracy_equals_all_pairs_with_ties(count, levels):
    rng = np.random.default_rng(count * levels)
    measure, gap = rng.integers(0, levels, (2, count)).astype(float)
    for direction in (1, -1):
        result = correlations.pair_counts(measure, gap, direction)
        assert result[1:] == brute_force(measure, gap, direction)
        assert sum(result[1:]) == count * (count - 1) // 2


def test_pairwise_accuracy_of_100_000_models_without_ties_is_kendalls():
    # At this size a table of all pairs would need 80 GB, so the count is not quadratic; the integer counts exceed 32 bits.
    measure, gap = np.random.default_rng(0).normal(size=(2, 100_000))
    gap -= measure
    result = correlations.pair_counts(measure, gap)
    assert result.accuracy == pytest.approx((1 - scipy.stats.kendalltau(measure, gap).statistic) / 2, rel=1e-12)
    assert result.concordant + result.discordant == 100_000 * 99_999 // 2
    assert result.ties == 0


@pytest.mark.parametrize(("measure", "ties"), [([], 0), ([1], 0), ([1, 1, 1], 3), ([1, np.nan], 0)])
def test_pairwise_accuracy_without_an_untied_pair_is_nan(measure, ties):
    result = correlations.pair_counts(measure, range(len(measure)))
    assert np.isnan(result.accuracy)
    assert result[1:] == (0, 0, ties)


def test_other_directions_are_refused():
    with pytest.raises(ValueError, match=re.escape("direction 0 must be +1 (larger is better) or -1 (larger is worse)")):
        correlations.pair_counts([1, 2], [1, 2], 0)


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
        assert row.accuracy == row.concordant / (row.concordant + row.discordant)
        assert row.ci_low < row.accuracy < row.ci_high
    # The same measure upside down with the other direction is the same choice.
    numbers = ["accuracy", "ci_low", "ci_high"]
    np.testing.assert_array_equal(table.loc[table["measure"] == "good", numbers], table.loc[table["measure"] == "bad", numbers])


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
    table = tables.conditional_table(catalogue_ranking, DIRECTIONS, AXES, test_images=10_000, draws=59).set_index("measure")
    granulated = granulated_kendall(catalogue_ranking, DIRECTIONS, AXES).set_index(["measure", "hyperparameter"])["psi"]
    assert table.loc["perfect", "granulated_kendall"] == pytest.approx(granulated["perfect", "all"]) == 1
    assert table.loc["noise", "granulated_kendall"] == pytest.approx(-granulated["noise", "all"])  # in the sign of the raw measure
    information = information_table(catalogue_ranking, DIRECTIONS, AXES).set_index("measure")["score"]
    pd.testing.assert_series_equal(table["conditional_information"], information, check_names=False)
    errors = sign_error_table(catalogue_ranking, DIRECTIONS, AXES, test_images=10_000).query("hyperparameter == 'all'").set_index("measure")
    pd.testing.assert_series_equal(table["sign_error"], errors["maximum"], check_names=False)
    assert table.loc[["perfect", "reversed"], "conditional_information_p_adjusted"].tolist() == [1 / 60, 1 / 60]
    assert table.loc["noise", "conditional_information_p_adjusted"] > 0.05
    assert table.loc["noise", "conditional_information"] < table["conditional_information_band"].iloc[0]
    assert np.isnan(table.loc["absent", "sign_error_p_adjusted"])
    none = tables.conditional_table(catalogue_ranking, DIRECTIONS, [], test_images=10)
    assert none.drop(columns="measure").isna().all(axis=None)


def test_measures_together_are_signed_by_their_direction(catalogue_ranking):
    table = tables.measure_correlations(catalogue_ranking, {"perfect": -1, "reversed": -1, "noise": 1, "absent": 1})
    assert table.loc["perfect", "reversed"] == pytest.approx(-1)
    assert np.diag(table)[:3].tolist() == pytest.approx([1, 1, 1])
    assert table.loc["noise", "perfect"] == pytest.approx(-kendalltau(catalogue_ranking["noise"], catalogue_ranking["perfect"]).statistic)
    assert table["absent"].isna().all()
    pd.testing.assert_frame_equal(table, table.T)


def test_tasks_are_scored_apart_and_one_with_a_single_hyperparameter_has_none(catalogue_ranking):
    table = tables.task_table(catalogue_ranking, {"perfect": -1, "noise": 1}, AXES, "architecture").set_index("measure")
    assert list(table.columns) == ["a", "b", "average", "average_p_adjusted", "average_band"]
    assert table.loc["perfect"].tolist()[:3] == pytest.approx([100, 100, 100])
    assert table.loc["perfect", "average_p_adjusted"] == 1 / (1 + tables.NULL_DRAWS)
    assert table.loc["noise", "average_p_adjusted"] > 0.05
    assert table.loc["noise", "average"] == pytest.approx(table.loc["noise", ["a", "b"]].mean())
    fewer = tables.task_table(
        catalogue_ranking[(catalogue_ranking["architecture"] == "b") | catalogue_ranking["pretrained"]],
        {"perfect": -1},
        AXES,
        "architecture",
    )
    assert np.isnan(fewer.loc[0, "a"])
    assert fewer.loc[0, "average"] == pytest.approx(100)
