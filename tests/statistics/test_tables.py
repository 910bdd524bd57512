import itertools
import re

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from scipy.stats import kendalltau, spearmanr

from helpers.statistics import agreement, resampling, tables
from helpers.statistics.hyperparameters import granulated_kendall, partial_correlation
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


def test_correlations_by_hand():
    measure, gap = [1, 2, 3, 4], [8, 6, 7, 1]
    # Deviations -1.5 -.5 .5 1.5 and 2.5 .5 1.5 -4.5: products add to -10, squares to 5 and 29.
    assert agreement.pearson(measure, gap) == pytest.approx(-10 / np.sqrt(5 * 29))
    assert agreement.kendall(measure, gap) == pytest.approx(-4 / 6)  # 5 of 6 pairs disagree


def test_kendall_by_hand_with_ties():
    # 5 of 6 pairs are untied in the measure, 5 in the gap; 4 agree, none disagrees.
    assert agreement.kendall([1, 1, 2, 3], [1, 2, 3, 3]) == pytest.approx(4 / 5)


def test_correlations_do_not_depend_on_scale_order_or_which_models_are_missing():
    rng = np.random.default_rng(0)
    measure, gap = rng.normal(size=(2, 40))
    order = rng.permutation(42)
    longer = np.append(measure, [np.nan, np.inf]), np.append(gap, [1.0, 2.0])
    for statistic in (agreement.pearson, agreement.kendall):
        expected = statistic(measure, gap)
        assert statistic(1e-9 * measure + 3e-9, 1e200 * gap) == pytest.approx(expected, rel=1e-9)
        assert statistic(-measure, gap) == pytest.approx(-expected, rel=1e-12)
        assert statistic(longer[0][order], longer[1][order]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("statistic", [agreement.pearson, agreement.kendall])
@pytest.mark.parametrize(
    ("measure", "gap"),
    [
        ([], []),
        ([1, 2], [1, 2]),
        ([1, 2, np.nan, np.inf], [1, 2, 3, 4]),
        ([0.1] * 5, range(5)),
        (range(5), [0.3] * 5),
        ([0] * 3, range(3)),
        ([1, 1 + 1e-15, 1 - 1e-15], range(3)),
    ],
)
def test_what_is_undefined_is_nan(statistic, measure, gap):
    assert np.isnan(statistic(measure, gap))
    assert np.isnan(resampling.bootstrap_interval(measure, gap, range(len(measure)), statistic.__name__)).all()


def test_finite_pairs_says_who_was_dropped():
    measure, gap, kept = agreement.finite_pairs([1, np.nan, 3, np.inf, 5], [1, 2, np.nan, 4, 5])
    assert (measure.tolist(), gap.tolist(), kept.tolist()) == ([1, 5], [1, 5], [True, False, False, False, True])


@pytest.mark.parametrize("statistic", [agreement.pearson, agreement.kendall, agreement.pairwise_accuracy])
def test_unequal_lengths_are_refused(statistic):
    with pytest.raises(ValueError, match=re.escape("measure and gap need one value per model each, got shapes (2,) and (3,)")):
        statistic([1, 2], [1, 2, 3])


def test_pairwise_accuracy_by_hand():
    # Models 0 and 3 tie in the measure, 1 and 2 in the gap; of the other pairs (0, 1) and (0, 2) are right, (1, 3) and (2, 3) wrong.
    result = agreement.pairwise_accuracy([1, 2, 3, 1], [0.3, 0.2, 0.2, 0.1])
    assert result == (0.5, 2, 2, 2)
    assert agreement.pairwise_accuracy([1, 2, 3], [0.3, 0.2, 0.1]) == (1, 3, 0, 0)
    assert agreement.pairwise_accuracy([1, 2, 3], [0.3, 0.2, 0.1], direction=-1) == (0, 0, 3, 0)


@pytest.mark.parametrize("count", [2, 3, 7, 8, 9, 64, 101])
@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_pairwise_accuracy_equals_all_pairs_with_ties(count, levels):
    rng = np.random.default_rng(count * levels)
    measure, gap = rng.integers(0, levels, (2, count)).astype(float)
    for direction in (1, -1):
        result = agreement.pairwise_accuracy(measure, gap, direction)
        assert result[1:] == brute_force(measure, gap, direction)
        assert sum(result[1:]) == count * (count - 1) // 2


def test_pairwise_accuracy_of_100_000_models_without_ties_is_kendalls():
    # At this size a table of all pairs would need 80 GB, so the count is not quadratic; the integer counts exceed 32 bits.
    measure, gap = np.random.default_rng(0).normal(size=(2, 100_000))
    gap -= measure
    result = agreement.pairwise_accuracy(measure, gap)
    assert result.accuracy == pytest.approx((1 - scipy.stats.kendalltau(measure, gap).statistic) / 2, rel=1e-12)
    assert result.concordant + result.discordant == 100_000 * 99_999 // 2
    assert result.ties == 0


@pytest.mark.parametrize(("measure", "ties"), [([], 0), ([1], 0), ([1, 1, 1], 3), ([1, np.nan], 0)])
def test_pairwise_accuracy_without_an_untied_pair_is_nan(measure, ties):
    result = agreement.pairwise_accuracy(measure, range(len(measure)))
    assert np.isnan(result.accuracy)
    assert result[1:] == (0, 0, ties)


def test_other_directions_are_refused():
    with pytest.raises(ValueError, match=re.escape("direction 0 must be +1 (larger is better) or -1 (larger is worse)")):
        agreement.pairwise_accuracy([1, 2], [1, 2], 0)


def reference(name):
    def value(measure, gap):
        if name == "pairwise_accuracy":
            right, wrong, _ = brute_force(measure, gap, 1)
            return right / (right + wrong)
        return getattr(scipy.stats, {"pearson": "pearsonr", "kendall": "kendalltau"}[name])(measure, gap).statistic

    return value


@pytest.mark.parametrize(("name", "resamples"), [("pearson", 4000), ("kendall", 4000), ("pairwise_accuracy", 400)])
def test_interval_equals_scipys_when_every_model_is_its_own_cell(name, resamples):
    rng = np.random.default_rng(1)
    measure = rng.normal(size=40).round(1)
    gap = (measure + rng.normal(size=40)).round(1)
    found = resampling.bootstrap_interval(measure, gap, np.arange(40), name, resamples)
    theirs = scipy.stats.bootstrap(
        (measure, gap), reference(name), n_resamples=resamples, paired=True, vectorized=False, method="percentile", rng=rng
    )
    # A 2.5 % quantile of B draws has the standard error sqrt(.025 * .975 / B) / density, with the density of a normal distribution of
    # this standard error at its quantile, 0.0584 / se. Two such estimates are compared, and four standard errors allowed.
    error = np.sqrt(0.025 * 0.975 / resamples) / 0.0584 * theirs.standard_error * np.sqrt(2)
    np.testing.assert_allclose(found, theirs.confidence_interval, rtol=0, atol=4 * error)
    width = found[1] - found[0]
    assert 4 * error < width / 4  # or the comparison would say little


@pytest.mark.parametrize("name", resampling.INTERVAL_STATISTICS)
def test_resamples_of_cells_equal_a_plain_loop(name):
    rng = np.random.default_rng(5)
    cells = rng.integers(0, 8, 60)
    measure = rng.normal(size=60).round(1)
    gap = (measure + rng.normal(size=60)).round(1)
    codes, names = pd.factorize(cells)
    draws = np.random.default_rng(0).integers(len(names), size=(30, len(names)))
    copies = [np.concatenate([np.flatnonzero(codes == cell) for cell in draw]) for draw in draws]
    expected = np.quantile([reference(name)(measure[rows], gap[rows]) for rows in copies], [0.1, 0.9])
    found = resampling.bootstrap_interval(measure, gap, cells, name, resamples=30, level=0.8, seed=0)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("name", ["kendall", "pairwise_accuracy"])
def test_counting_one_by_one_gives_the_same_resamples_as_the_table_of_pairs(name, monkeypatch):
    rng = np.random.default_rng(2)
    measure, gap = rng.integers(0, 9, (2, 50))
    cells = rng.integers(0, 12, 50)
    # One row of draws at a time takes the same numbers from the generator as all rows at once.
    by_table = resampling.bootstrap_interval(measure, gap, cells, name, resamples=100)
    monkeypatch.setattr(resampling, "_PAIR_TABLE_LIMIT", 10)
    assert resampling.bootstrap_interval(measure, gap, cells, name, resamples=5000) == pytest.approx(by_table, rel=1e-9)


def test_copies_of_models_in_one_cell_do_not_narrow_the_interval():
    measure, gap = np.random.default_rng(0).normal(size=(2, 20))
    once = resampling.bootstrap_interval(measure, gap, np.arange(20), "pearson")
    copied = [np.repeat(values, 5) for values in (measure, gap, np.arange(20))]
    assert resampling.bootstrap_interval(*copied, "pearson") == pytest.approx(once, rel=1e-9)
    alone = resampling.bootstrap_interval(*copied[:2], np.arange(100), "pearson")
    assert np.ptp(alone) < 0.7 * np.ptp(once)  # near 1 / sqrt(5) when repeats pass for independent


@pytest.mark.parametrize("name", resampling.INTERVAL_STATISTICS)
def test_interval_covers_the_statistic_follows_the_sign_and_is_repeatable(name):
    rng = np.random.default_rng(3)
    measure, gap = rng.normal(size=(2, 60))
    gap = gap - measure
    cells = np.arange(60) // 2
    low, high = resampling.bootstrap_interval(measure, gap, cells, name)
    value = agreement.pairwise_accuracy(measure, gap).accuracy if name == "pairwise_accuracy" else getattr(tables, name)(measure, gap)
    assert low < value < high
    assert resampling.bootstrap_interval(measure, gap, cells.astype(str), name) == (low, high)
    assert resampling.bootstrap_interval(1e200 * measure, 1e-200 * gap, cells, name) == pytest.approx((low, high), rel=1e-9)
    other = resampling.bootstrap_interval(-measure, gap, cells, name)
    mirrored = (1 - high, 1 - low) if name == "pairwise_accuracy" else (-high, -low)
    assert other == pytest.approx(mirrored, rel=1e-9)


def test_interval_needs_three_cells_and_a_resample():
    measure, gap = np.random.default_rng(0).normal(size=(2, 9))
    assert np.isnan(resampling.bootstrap_interval(measure, gap, [0, 1] * 4 + [0], "pearson")).all()
    assert np.isnan(resampling.bootstrap_interval(measure, gap, range(9), "pearson", resamples=0)).all()
    assert np.isfinite(resampling.bootstrap_interval(measure, gap, [0, 1, 2] * 3, "pearson")).all()


@pytest.mark.parametrize("name", resampling.INTERVAL_STATISTICS)
def test_resamples_without_a_value_are_left_out(name):
    # Of 3 models, 3 of 27 resamples hold one model only; among the others only the pairs {0, 1}, {0, 2}, {1, 2} and all three occur.
    measure, gap = np.array([1.0, 2.0, 4.0]) / 3, np.array([0.1, 0.4, 0.3])
    draws = np.random.default_rng(0).integers(3, size=(500, 3))
    defined = [list(draw) for draw in draws if len(set(draw)) > 1]
    assert 0 < len(defined) < 500
    expected = np.quantile([reference(name)(measure[rows], gap[rows]) for rows in defined], [0.3, 0.7])
    found = resampling.bootstrap_interval(measure, gap, range(3), name, resamples=500, level=0.4)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"statistic": "spearman"}, "statistic 'spearman' is unknown; choose one of pearson, kendall, pairwise_accuracy"),
        ({"level": 95}, "level 95 must be between 0 and 1, both excluded"),
        ({"cells": [1, 2]}, "cells need one name per model, got shape (2,) for 3 models"),
    ],
)
def test_interval_refuses(change, message):
    arguments = {"measure": [1, 2, 3], "gap": [3, 1, 2], "cells": [1, 2, 3], "statistic": "pearson"} | change
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        resampling.bootstrap_interval(**arguments)


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


def test_a_perfect_measure_is_first_and_a_reversed_one_last_of_those_defined(catalogue_ranking):
    table = tables.ranking_table(catalogue_ranking, DIRECTIONS, AXES, test_images=100_000, resamples=50).set_index("measure")
    assert list(table.index) == ["perfect", "noise", "reversed", "constant", "absent"]
    assert table.loc["perfect", ["kendall", "spearman", "pearson_r", "granulated_kendall", "partial_r"]].tolist() == pytest.approx([1] * 5)
    assert table.loc["perfect", "conditional_information"] == pytest.approx(1)
    assert table.loc["perfect", "sign_error"] == 0
    assert table.loc["reversed", ["kendall", "spearman", "granulated_kendall", "partial_r"]].tolist() == pytest.approx([-1] * 4)
    assert table.loc["reversed", "sign_error"] == 1
    assert table.loc["perfect", "kendall_low"] == pytest.approx(1)
    assert table.loc[["constant", "absent"], ["kendall", "kendall_low", "pearson_r", "spearman", "partial_r"]].isna().all(axis=None)
    assert table.loc["absent", ["n", "dropped"]].tolist() == [0, 24]


def test_every_column_equals_the_statistic_computed_by_itself(catalogue_ranking):
    row = tables.ranking_table(catalogue_ranking, {"noise": 1}, AXES, test_images=500, resamples=20).iloc[0]
    x, y = catalogue_ranking["noise"], catalogue_ranking["gap"]
    assert row["kendall"] == pytest.approx(-kendalltau(x, y).statistic)
    assert row["spearman"] == pytest.approx(-spearmanr(x, y).statistic)
    assert row["pearson_r"] == pytest.approx(np.corrcoef(x, y)[0, 1])
    psi = granulated_kendall(catalogue_ranking, {"noise": 1}, AXES).set_index("hyperparameter")["psi"]
    assert row["granulated_kendall"] == pytest.approx(psi[AXES].mean())
    assert row["partial_r"] == partial_correlation(catalogue_ranking, {"noise": 1}, AXES)["partial_r"].iloc[0]
    assert row["conditional_information"] == information_table(catalogue_ranking, {"noise": 1}, AXES)["score"].iloc[0]
    errors = sign_error_table(catalogue_ranking, {"noise": 1}, AXES, test_images=500).set_index("hyperparameter")
    assert row["sign_error"] == errors.loc["all", "maximum"]


def test_without_an_axis_the_conditional_statistics_are_undefined(catalogue_ranking):
    assert tables.varied_axes(catalogue_ranking[catalogue_ranking["batch_size"] == 16], AXES) == ["learning_rate", "pretrained"]
    row = tables.ranking_table(catalogue_ranking, {"noise": 1}, [], test_images=500, resamples=0).iloc[0]
    assert np.isfinite(row["kendall"])
    assert np.isnan(row["kendall_low"])
    assert np.isnan(row["partial_r"])


def test_measures_together_are_signed_by_their_direction(catalogue_ranking):
    table = tables.measure_correlations(catalogue_ranking, {"perfect": -1, "reversed": -1, "noise": 1, "absent": 1})
    assert table.loc["perfect", "reversed"] == pytest.approx(-1)
    assert np.diag(table)[:3].tolist() == pytest.approx([1, 1, 1])
    assert table.loc["noise", "perfect"] == pytest.approx(-kendalltau(catalogue_ranking["noise"], catalogue_ranking["perfect"]).statistic)
    assert table["absent"].isna().all()
    pd.testing.assert_frame_equal(table, table.T)


def test_tasks_are_scored_apart_and_one_with_a_single_hyperparameter_has_none(catalogue_ranking):
    table = tables.task_table(catalogue_ranking, {"perfect": -1, "noise": 1}, AXES, "architecture").set_index("measure")
    assert list(table.columns) == ["a", "b", "average"]
    assert table.loc["perfect"].tolist() == pytest.approx([100, 100, 100])
    assert table.loc["noise", "average"] == pytest.approx(table.loc["noise", ["a", "b"]].mean())
    fewer = tables.task_table(
        catalogue_ranking[(catalogue_ranking["architecture"] == "b") | catalogue_ranking["pretrained"]],
        {"perfect": -1},
        AXES,
        "architecture",
    )
    assert np.isnan(fewer.loc[0, "a"])
    assert fewer.loc[0, "average"] == pytest.approx(100)
