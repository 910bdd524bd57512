import numpy as np
import pandas as pd
import pytest
import scipy.stats

from helpers.statistics.correlations import gamma, kendall, partial_correlation
from helpers.statistics.permutation import adjusted_p_values, null_partial_correlation, permuted_rows
from helpers.statistics.resampling import (
    TEST_IMAGES,
    cell_weights,
    correlated,
    drawn_with_images,
    estimate,
    in_draws,
    of_models,
    percentile_interval,
    resampled_mean,
    smallest_detectable,
)

CELLS = np.repeat(np.arange(30), 2)


def catalogue(seed, rho, measures=1, cells=60, test_images=1000):
    """Two snapshots of each cell with a shared effect; test accuracy has binomial noise. Returns measures, gap, cells and the true r."""
    random = np.random.default_rng(seed)
    names = np.repeat(np.arange(cells), 2)

    def normal(columns):
        return np.sqrt(0.7) * random.normal(size=(cells, columns))[names] + np.sqrt(0.3) * random.normal(size=(2 * cells, columns))

    shared = normal(1)
    x = 0.8 * shared + 0.6 * normal(measures) if measures > 1 else shared
    latent = rho * shared[:, 0] + np.sqrt(1 - rho**2) * normal(1)[:, 0]
    accuracy = np.clip(0.6 - 0.08 * latent, 0, 1)
    gap = 1 - random.binomial(test_images, accuracy) / test_images
    noise = (0.6 * 0.4 - 0.08**2) / test_images
    return x, gap, names, rho * 0.08 / np.sqrt(0.08**2 + noise)


@pytest.mark.parametrize("rho", [0, -0.5, -0.8])
def test_the_interval_holds_the_truth_in_95_percent_of_catalogues(rho):
    held = 0
    for seed in range(400):
        x, gap, cells, truth = catalogue(seed, rho)
        models = pd.DataFrame({"x": x[:, 0], "gap": gap, "cell": cells})
        found = estimate(partial_correlation, models, ["x"], draws=400, seed=seed)
        held += found.low[0] <= truth <= found.high[0]
    assert 0.92 <= held / 400 <= 0.98


@pytest.mark.parametrize("measures", [1, 20])
def test_with_no_effect_the_least_adjusted_p_is_below_5_percent_in_5_percent_of_catalogues(measures):
    below = 0
    for seed in range(400):
        x, gap, cells, _ = catalogue(seed, 0, measures)
        null = np.abs(null_partial_correlation(x, gap, permuted_rows(cells, 199, seed)))
        below += adjusted_p_values(np.abs(partial_correlation(x, gap)), null).min() < 0.05
    assert 0.02 <= below / 400 <= 0.08


@pytest.mark.parametrize("rho", [0, -0.9])
def test_the_interval_holds_the_truth_when_images_are_drawn_too(rho):
    held, plain, images, spread = 0, 0, 50, 0.6
    for seed in range(200):
        x, gap, cells, truth = catalogue(seed, rho)
        random = np.random.default_rng([seed, 1])
        per_image = x + 2 * random.normal(size=images) + spread * np.sqrt(images) * random.normal(size=(len(x), images))
        truth /= np.sqrt(1 + spread**2)
        weights, redrawn = cell_weights(cells, 400, seed), resampled_mean(per_image, 400, seed)
        drawn = in_draws(partial_correlation, per_image.mean(1)[:, None], gap, weights, {0: redrawn})
        low, high = percentile_interval(drawn, 60)
        held += low[0] <= truth <= high[0]
        low, high = percentile_interval(partial_correlation(redrawn[..., None], gap, None, weights), 60)
        plain += low[0] <= truth <= high[0]
    assert 0.92 <= held / 200 <= 0.99
    assert rho == 0 or plain / 200 < 0.92  # why the shift is taken out


def test_cells_are_drawn_as_a_whole_and_the_same_for_every_statistic():
    weights = cell_weights(CELLS, 500, seed=4)
    assert (weights[:, ::2] == weights[:, 1::2]).all()
    assert (weights[:, ::2].sum(1) == 30).all()
    assert weights.var() == pytest.approx(1 - 1 / 30, abs=0.05)  # multinomial
    assert (weights == cell_weights(np.array(list("abcdefghijklmnopqrstuvwxyz0123"))[CELLS], 500, seed=4)).all()
    assert (weights != cell_weights(CELLS, 500, seed=5)).any()


def test_image_draws_are_shared_by_measures_and_independent_between_training_and_test_images():
    values = np.random.default_rng(0).random((3, 40)).astype(np.float16)
    drawn = resampled_mean(np.vstack([values, values[:1]]), 300, seed=1)
    assert drawn.shape == (300, 4)
    assert (drawn[:, 0] == drawn[:, 3]).all()
    assert drawn[:, :3] == pytest.approx(resampled_mean(values, 300, seed=1))
    assert drawn.mean(0)[:3] == pytest.approx(values.astype(float).mean(1), abs=0.01)
    assert drawn[:, 0].std() == pytest.approx(values[0].astype(float).std() / np.sqrt(40), rel=0.15)
    other = resampled_mean(values, 300, seed=1, images=TEST_IMAGES)
    assert abs(np.corrcoef(other[:, 0], drawn[:, 0])[0, 1]) < 0.2
    missing = values.astype(float)
    missing[0, 5], missing[1] = np.nan, np.nan
    means = resampled_mean(missing, 300, seed=1)
    assert np.isfinite(means[:, 0]).all()
    assert np.isnan(means[:, 1]).all()
    assert means[:, 2] == pytest.approx(drawn[:, 2])


def test_intervals_are_percentiles_and_under_8_cells_there_is_none():
    drawn = np.column_stack([np.arange(1001.0), np.where(np.arange(1001) < 700, np.nan, 1.0)])
    low, high = percentile_interval(drawn, 8)
    assert (low[0], high[0]) == pytest.approx((25, 975))
    assert np.isnan([low[1], high[1]]).all()
    assert np.isnan(percentile_interval(drawn, 7)).all()
    assert np.isnan(percentile_interval(drawn, np.array([7, 9]))[0]).tolist() == [True, True]
    assert np.isnan(smallest_detectable(drawn, 7)).all()
    assert np.isnan(percentile_interval(np.empty((0, 2)), 8)).all()


def test_a_paired_difference_of_a_measure_with_itself_is_0_and_of_a_better_one_is_above():
    x, gap, cells, _ = catalogue(0, -0.8, measures=2)
    models = pd.DataFrame({"better": gap, "x": x[:, 0], "again": x[:, 0], "gap": gap, "cell": cells})
    found = estimate(kendall, models, ["better", "x", "again"], draws=300)
    low, high = percentile_interval(found.drawn - found.drawn[:, 1:2], found.cells)
    assert low[0] > 0
    assert (low[1:] == 0).all() and (high[1:] == 0).all()


def test_the_smallest_r_that_could_be_told_follows_fishers_standard_error():
    random = np.random.default_rng(1)
    models = pd.DataFrame(random.normal(size=(2, 400)).T, columns=["x", "gap"]).assign(cell=np.arange(400))
    found = estimate(partial_correlation, models, ["x"], draws=1000)
    assert smallest_detectable(found.drawn, 400)[0] == pytest.approx(np.tanh(2.8 / np.sqrt(397)), rel=0.1)
    points = random.normal(size=2000)
    assert smallest_detectable(points, 50, correlation=False) == pytest.approx(2.8 * points.std(ddof=1))


def with_images(models=12, images=40):
    """Models of a cell each with a measure and a test accuracy that are means over images, one model without the measure."""
    random = np.random.default_rng(0)
    values = random.random((models, images))
    right = random.random((models, 2 * images)) < random.uniform(0.2, 0.9, (models, 1))
    table = pd.DataFrame({"iou": values.mean(1), "test_accuracy": right.mean(1), "cell": np.arange(models)})
    table = table.assign(gap=0.97 - table["test_accuracy"], weights=random.normal(size=models))
    table.loc[3, "iou"] = np.nan
    return table, {"iou": values.astype(np.float16), "test_accuracy": right, "unused": values}


def test_measures_test_accuracy_and_gap_are_drawn_with_their_images_and_nothing_else():
    models, images = with_images()
    drawn = drawn_with_images(models, ["iou", "weights"], images, 30, seed=2)
    assert set(drawn) == {"iou", "test_accuracy", "gap"}
    assert drawn["test_accuracy"] == pytest.approx(resampled_mean(images["test_accuracy"], 30, 2, TEST_IMAGES), abs=1e-6)
    assert drawn["gap"] == pytest.approx(0.97 - drawn["test_accuracy"])
    kept = np.arange(12) != 3
    assert np.isnan(drawn["iou"][:, 3]).all()
    assert drawn["iou"][:, kept] == pytest.approx(resampled_mean(images["iou"][kept], 30, 2), abs=1e-3)
    shifted = models.rename(columns={"test_accuracy": "test_accuracy@blur"})
    blurred = drawn_with_images(shifted, ["test_accuracy@blur"], {"test_accuracy@blur": images["test_accuracy"]}, 30, seed=2)
    assert (blurred["test_accuracy@blur"] == drawn["test_accuracy"]).all() and list(blurred) == ["test_accuracy@blur"]
    some = drawn_with_images(models[kept], ["iou"], {name: values[kept] for name, values in images.items()}, 30, seed=2)
    for name, values in of_models(drawn, kept).items():
        assert some[name] == pytest.approx(values, abs=1e-6)
    assert drawn_with_images(models, ["iou"], None) == of_models(None, kept) == {}


@pytest.mark.parametrize("statistic", [partial_correlation, kendall, gamma])
def test_a_measure_has_the_same_interval_whatever_stands_beside_it_and_a_wider_one_with_images(statistic):
    models, images = with_images(40)
    drawn = drawn_with_images(models, ["iou"], images, 400)
    alone, plain = (estimate(statistic, models, ["iou"], draws=400, drawn=own) for own in (drawn, None))
    beside = estimate(statistic, models, ["weights", "iou", "test_accuracy"], draws=400, drawn=drawn)
    for one, other in zip(alone, beside, strict=True):
        assert one[..., 0] == pytest.approx(other[..., 1], rel=1e-9)
    assert alone.drawn.std() > plain.drawn.std()
    assert np.arctanh(alone.drawn).mean() == pytest.approx(np.arctanh(plain.drawn).mean())  # the shift is taken out


def test_draws_of_1_tell_no_shift():
    """A draw of few models has a tau of exactly 1, whose Fisher's value is no number to take a mean of."""
    fixed = np.array([1.0, 0.5, 0.5, 0.5])[:, None]
    moved = np.array([0.8, 0.4, 0.4, 0.4])[:, None]
    found = in_draws(lambda x, y, weights: fixed if y.ndim == 1 else moved, np.empty((9, 1)), np.empty(9), None, None, np.empty((4, 9)))
    assert found[1:, 0] == pytest.approx(0.5)
    assert 0.8 < found[0, 0] < 0.9


def test_correlated_is_scipys_value_with_the_interval_of_the_cells_that_a_measure_has():
    random = np.random.default_rng(4)
    models = pd.DataFrame({"cell": CELLS, "gap": random.normal(size=60)}).assign(x=lambda table: table["gap"] + random.normal(size=60))
    models = models.assign(few=models["x"].where(models["cell"] < 7), never=np.nan)
    table = correlated(models, ["x", "few", "never"], draws=300, tau_draws=200, seed=2).set_index("measure")
    assert table[["n", "dropped", "cells"]].to_numpy().tolist() == [[60, 0, 30], [14, 46, 7], [0, 60, 0]]
    assert table.loc["x", "pearson_r"] == pytest.approx(scipy.stats.pearsonr(models["x"], models["gap"]).statistic)
    assert table.loc["few", "kendall_tau"] == pytest.approx(scipy.stats.kendalltau(models["x"][:14], models["gap"][:14]).statistic)
    drawn = [
        scipy.stats.pearsonr(*np.repeat(models[["x", "gap"]].to_numpy(), w.astype(int), axis=0).T)[0] for w in cell_weights(CELLS, 300, 2)
    ]
    assert table.loc["x", ["ci_low", "ci_high"]].tolist() == pytest.approx(np.quantile(drawn, [0.025, 0.975]).tolist())
    assert table.loc["x", "kendall_low"] < table.loc["x", "kendall_tau"] < table.loc["x", "kendall_high"]
    assert table.loc[["few", "never"], ["ci_low", "ci_high", "kendall_low"]].isna().all(axis=None)
    assert correlated(models, ["x"], draws=0)[["ci_low", "ci_high"]].isna().all(axis=None)
    given = models["few"].fillna(0).to_numpy()[:, None]
    assert correlated(models, ["x"], given=given, draws=0)["pearson_r"][0] == pytest.approx(
        partial_correlation(models["x"], models["gap"], given)[0]
    )
