import math

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from helpers.statistics.bootstrap import (
    SCORING_IMAGES,
    TEST_IMAGES,
    Bootstrap,
    configuration_weights,
    percentile_interval,
    resampled_mean,
    smallest_detectable,
    statistic_in_draws,
)
from helpers.statistics.correlations import gamma, kendall, partial_correlation
from helpers.statistics.permutation import (
    adjusted_p_values,
    null_partial_correlation,
    permuted_rows,
)

CONFIGURATIONS = np.repeat(np.arange(30), 2)


def catalogue(seed, rho, measures=1, configurations=60, test_images=1000):
    """Two snapshots of each configuration with a shared effect; test accuracy has binomial noise. Measures, gap, configurations, true r."""
    random = np.random.default_rng(seed)
    names = np.repeat(np.arange(configurations), 2)

    def normal(columns):
        shared = random.normal(size=(configurations, columns))[names]
        return np.sqrt(0.7) * shared + np.sqrt(0.3) * random.normal(
            size=(2 * configurations, columns)
        )

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
        x, gap, names, truth = catalogue(seed, rho)
        found = Bootstrap(
            pd.DataFrame({"x": x[:, 0], "gap": gap, "cell": names}),
            draws=400,
            seed=seed,
        ).estimate(["x"])
        held += found.low[0] <= truth <= found.high[0]
    assert 0.92 <= held / 400 <= 0.98


@pytest.mark.parametrize("measures", [1, 20])
def test_with_no_effect_the_least_adjusted_p_is_below_5_percent_in_5_percent_of_catalogues(
    measures,
):
    below = 0
    for seed in range(400):
        x, gap, names, _ = catalogue(seed, 0, measures)
        null = np.abs(null_partial_correlation(x, gap, permuted_rows(names, 199, seed)))
        below += (
            adjusted_p_values(np.abs(partial_correlation(x, gap)), null).min() < 0.05
        )
    assert 0.02 <= below / 400 <= 0.08


def test_the_interval_of_a_strong_r_holds_the_truth_when_images_are_drawn_too():
    held, plain, images, spread = 0, 0, 50, 0.6
    for seed in range(200):
        x, gap, names, truth = catalogue(seed, -0.9)
        random = np.random.default_rng([seed, 1])
        values = (
            x
            + 2 * random.normal(size=images)
            + spread * np.sqrt(images) * random.normal(size=(len(x), images))
        )
        truth /= np.sqrt(1 + spread**2)
        draws = Bootstrap(
            pd.DataFrame({"x": values.mean(1), "gap": gap, "cell": names}),
            {"x": values},
            draws=400,
            seed=seed,
        )
        found = draws.estimate(["x"])
        held += found.low[0] <= truth <= found.high[0]
        low, high = percentile_interval(
            partial_correlation(
                draws.resampled("x")[..., None], gap, None, draws.weights
            ),
            60,
        )
        plain += low[0] <= truth <= high[0]
    assert 0.92 <= held / 200 <= 0.99
    assert plain / 200 < 0.92  # why the shift is taken out


def test_configurations_are_drawn_as_a_whole_and_the_same_for_every_statistic():
    weights = configuration_weights(CONFIGURATIONS, 500, seed=4)
    assert (weights[:, ::2] == weights[:, 1::2]).all() and (
        weights[:, ::2].sum(1) == 30
    ).all()
    assert weights.var() == pytest.approx(1 - 1 / 30, abs=0.05)  # multinomial
    assert (
        weights
        == configuration_weights(np.char.mod("cell %d", CONFIGURATIONS), 500, seed=4)
    ).all()
    assert (weights != configuration_weights(CONFIGURATIONS, 500, seed=5)).any()


def test_means_of_drawn_images_are_exact_so_that_threads_do_not_change_them():
    values = np.random.default_rng(0).random((5, 1000)).astype(np.float16)
    drawn = resampled_mean(values, 20, seed=1)
    random = np.random.default_rng([1, SCORING_IMAGES])
    images = random.integers(1000, size=(20, 1000))
    exact = [
        [math.fsum(row[chosen].astype(float)) for row in values] for chosen in images
    ]
    np.testing.assert_array_equal(drawn, np.array(exact) / 1000)


def test_image_draws_are_shared_by_measures_and_independent_between_training_and_test_images():
    values = np.random.default_rng(0).random((3, 40)).astype(np.float16)
    drawn = resampled_mean(np.vstack([values, values[:1]]), 300, seed=1)
    assert (drawn[:, 0] == drawn[:, 3]).all()
    assert drawn.mean(0)[:3] == pytest.approx(values.astype(float).mean(1), abs=0.01)
    assert drawn[:, 0].std() == pytest.approx(
        values[0].astype(float).std() / np.sqrt(40), rel=0.15
    )
    assert (
        abs(
            np.corrcoef(resampled_mean(values, 300, 1, TEST_IMAGES)[:, 0], drawn[:, 0])[
                0, 1
            ]
        )
        < 0.2
    )
    missing = values.astype(float)
    missing[0, 5], missing[1] = np.nan, np.nan
    means = resampled_mean(missing, 300, seed=1)
    assert (
        np.isfinite(means[:, 0]).all()
        and np.isnan(means[:, 1]).all()
        and means[:, 2] == pytest.approx(drawn[:, 2])
    )


def test_intervals_are_percentiles_and_under_8_configurations_there_is_none():
    drawn = np.column_stack(
        [np.arange(1001.0), np.where(np.arange(1001) < 700, np.nan, 1.0)]
    )
    low, high = percentile_interval(drawn, 8)
    assert (low[0], high[0]) == pytest.approx((25, 975))
    assert percentile_interval(drawn, 8, level=0.9)[0][0] == pytest.approx(50)
    assert np.isnan(
        [low[1], high[1], *np.ravel(percentile_interval(drawn, np.array([7, 9])))]
    ).all()
    assert np.isnan(percentile_interval(np.empty((0, 2)), 8)).all()


def test_differences_are_paired_and_the_smallest_r_that_could_be_told_follows_fishers_standard_error():
    models = pd.DataFrame(
        np.random.default_rng(1).normal(size=(2, 400)).T, columns=["x", "gap"]
    ).assign(cell=np.arange(400))
    drawn = (
        Bootstrap(models.assign(again=models["x"]), draws=50)
        .estimate(["x", "again", "gap"], statistic=kendall)
        .draws
    )
    assert (drawn[:, 0] == drawn[:, 1]).all() and (drawn[:, 2] > drawn[:, 0]).all()
    assert smallest_detectable(Bootstrap(models, draws=1000).estimate(["x"]))[
        0
    ] == pytest.approx(np.tanh(2.8 / np.sqrt(397)), rel=0.1)
    assert np.isnan(
        smallest_detectable(Bootstrap(models[:7], draws=100).estimate(["x"]))
    )


def with_images(models=12, images=40):
    """Models of a configuration each with a measure and a test accuracy that are means over images, one model without the measure."""
    random = np.random.default_rng(0)
    values = random.random((models, images))
    right = random.random((models, 2 * images)) < random.uniform(0.2, 0.9, (models, 1))
    table = pd.DataFrame(
        {
            "iou": values.mean(1),
            "test_accuracy": right.mean(1),
            "cell": np.arange(models),
        }
    )
    table = table.assign(
        gap=0.97 - table["test_accuracy"], weights=random.normal(size=models)
    )
    table.loc[3, "iou"] = np.nan
    return table, {
        "iou": values.astype(np.float16),
        "test_accuracy": right,
        "unused": values,
    }


def test_measures_test_accuracy_and_gap_are_drawn_with_their_images_and_nothing_else():
    models, images = with_images()
    draws, kept = Bootstrap(models, images, draws=30, seed=2), np.arange(12) != 3
    assert (
        draws.resampled("weights") is None
        and Bootstrap(models, draws=30).resampled("gap") is None
    )
    assert draws.resampled("test_accuracy") == pytest.approx(
        resampled_mean(images["test_accuracy"], 30, 2, TEST_IMAGES), abs=1e-6
    )
    assert draws.resampled("gap") == pytest.approx(
        0.97 - draws.resampled("test_accuracy")
    )
    assert np.isnan(draws.resampled("iou")[:, 3]).all()
    assert draws.resampled("iou")[:, kept] == pytest.approx(
        resampled_mean(images["iou"][kept], 30, 2), abs=1e-3
    )
    shifted = models.rename(columns={"test_accuracy": "test_accuracy@blur"})
    blurred = Bootstrap(
        shifted, {"test_accuracy@blur": images["test_accuracy"]}, draws=30, seed=2
    )
    assert (
        blurred.resampled("test_accuracy@blur") == draws.resampled("test_accuracy")
    ).all() and blurred.resampled("gap") is None
    some, anew = (
        draws.subset(kept),
        Bootstrap(
            models[kept],
            {name: values[kept] for name, values in images.items()},
            draws=30,
            seed=2,
        ),
    )
    for name in ("iou", "gap"):
        assert some.resampled(name) == pytest.approx(anew.resampled(name), abs=1e-6)
        assert (
            some.subset([2, 5]).resampled(name) == draws.resampled(name)[:, [2, 6]]
        ).all()


def test_values_of_images_that_are_not_those_of_the_models_are_refused():
    models, images = with_images()
    holes = np.where(np.arange(12)[:, None] == 7, np.nan, images["iou"])
    for values in (images["iou"][:5], images["iou"][::-1], holes):
        with pytest.raises(
            ValueError, match=r"iou per image, of shape .* order of 12 models"
        ):
            Bootstrap(models, {"iou": values}, draws=5).estimate(["iou"])


@pytest.mark.parametrize("statistic", [partial_correlation, kendall, gamma])
def test_a_measure_has_the_same_interval_whatever_stands_beside_it_and_a_wider_one_with_images(
    statistic,
):
    models, images = with_images(40)
    drawn, fixed = (Bootstrap(models, values, draws=400) for values in (images, None))
    alone, plain = (
        drawn.estimate(["iou"], statistic=statistic),
        fixed.estimate(["iou"], statistic=statistic),
    )
    beside = drawn.estimate(["weights", "iou", "test_accuracy"], statistic=statistic)
    assert all(
        one[..., 0] == pytest.approx(other[..., 1], rel=1e-9)
        for one, other in zip(alone, beside, strict=True)
    )
    assert alone.draws.std() > plain.draws.std()
    assert np.arctanh(alone.draws).mean() == pytest.approx(
        np.arctanh(plain.draws).mean()
    )  # the shift is taken out


def test_draws_of_1_tell_no_shift():
    """A draw of few models has a tau of exactly 1, whose Fisher's value is no number to take a mean of."""
    fixed, moved = (
        np.array([1.0, 0.5, 0.5, 0.5])[:, None],
        np.array([0.8, 0.4, 0.4, 0.4])[:, None],
    )
    found = statistic_in_draws(
        lambda x, y, weights: fixed if y.ndim == 1 else moved,
        np.empty((9, 1)),
        np.empty(9),
        None,
        {},
        np.empty((4, 9)),
    )
    assert found[1:, 0] == pytest.approx(0.5)
    assert 0.8 < found[0, 0] < 0.9


def test_correlations_are_scipys_with_the_interval_of_the_configurations_that_a_measure_has():
    random = np.random.default_rng(4)
    models = pd.DataFrame(
        {"cell": CONFIGURATIONS, "gap": random.normal(size=60)}
    ).assign(x=lambda table: table["gap"] + random.normal(size=60))
    models = models.assign(
        few=models["x"].where(models["cell"] < 7), never=np.nan, constant=0.1
    )
    table = (
        Bootstrap(models, draws=300, seed=2)
        .correlations(["x", "few", "never", "constant"])
        .set_index("measure")
    )
    assert table[["n", "dropped", "cells"]].to_numpy().tolist() == [
        [60, 0, 30],
        [14, 46, 7],
        [0, 60, 0],
        [60, 0, 30],
    ]
    assert table.loc["x", "pearson_r"] == pytest.approx(
        scipy.stats.pearsonr(models["x"], models["gap"]).statistic
    )
    assert table.loc["few", "kendall_tau"] == pytest.approx(
        scipy.stats.kendalltau(models["x"][:14], models["gap"][:14]).statistic
    )
    weights = configuration_weights(CONFIGURATIONS, 300, 2).astype(int)
    drawn = [
        scipy.stats.pearsonr(*np.repeat(models[["x", "gap"]].to_numpy(), w, axis=0).T)[
            0
        ]
        for w in weights
    ]
    assert table.loc["x", ["ci_low", "ci_high"]].tolist() == pytest.approx(
        np.quantile(drawn, [0.025, 0.975]).tolist()
    )
    assert (
        table.loc["x", "kendall_low"]
        < table.loc["x", "kendall_tau"]
        < table.loc["x", "kendall_high"]
    )
    assert (
        table.loc[["few", "never", "constant"], ["ci_low", "ci_high", "kendall_low"]]
        .isna()
        .all(axis=None)
    )
    single = Bootstrap(models, draws=0).correlations(["x"], tau=False)
    assert single["kendall_tau"].iloc[0] == table.loc["x", "kendall_tau"]
    assert single[["ci_low", "ci_high", "kendall_low"]].isna().all(axis=None)


def test_a_mean_is_drawn_over_configurations_and_leaves_out_what_is_missing():
    values = np.random.default_rng(3).normal(size=(60, 3))
    values[:46, 1], values[:, 2] = np.nan, np.nan
    mean, low, high = Bootstrap(
        pd.DataFrame({"cell": CONFIGURATIONS}), draws=2000
    ).mean(values, level=0.9)
    assert mean == pytest.approx(
        [values[:, 0].mean(), values[46:, 1].mean(), np.nan], nan_ok=True
    )
    error = values[:, 0].reshape(30, 2).mean(1).std() / np.sqrt(30)
    assert (high - low)[0] / 2 == pytest.approx(1.645 * error, rel=0.1)
    assert np.isnan([low[1:], high[1:]]).all()  # of 7 configurations, and of none


def test_a_measure_whose_images_are_not_known_has_a_value_and_no_interval():
    random = np.random.default_rng(0)
    models = pd.DataFrame(random.random((20, 3)), columns=["gap", "iou", "reliance"])
    models["cell"] = np.arange(20)
    known = Bootstrap(models, draws=200)
    drawn = Bootstrap(models, draws=200, no_interval=["reliance"])
    for draws in (
        drawn,
        drawn.assign(),
        drawn.subset(models.index),
        drawn.resampling("cell"),
    ):
        ours = draws.correlations(["iou", "reliance"]).set_index("measure")
        theirs = known.correlations(["iou", "reliance"]).set_index("measure")
        pd.testing.assert_series_equal(ours.loc["iou"], theirs.loc["iou"])
        ends = ["ci_low", "ci_high", "kendall_low", "kendall_high"]
        assert ours.loc["reliance", ends].isna().all()
        assert theirs.loc["reliance", ends].notna().all()
        assert ours.loc["reliance", "pearson_r"] == theirs.loc["reliance", "pearson_r"]
    assert np.isnan(smallest_detectable(drawn.estimate(["reliance"]))).all()


def test_derived_bootstraps_and_permutations_follow_the_seed():
    models = pd.DataFrame({"cell": np.arange(12), "gap": np.linspace(0, 1, 12)})
    drawn = Bootstrap(models, draws=20, seed=3)
    expected = configuration_weights(models["cell"], 20, 3)
    np.testing.assert_array_equal(drawn.weights, expected)
    for derived in (drawn.subset(np.arange(12)), drawn.assign(more=0.0)):
        assert derived.seed == 3
        np.testing.assert_array_equal(derived.weights, expected)
    rows = drawn.permutations(30)
    np.testing.assert_array_equal(rows, permuted_rows(models["cell"], 30, 3))
    assert not np.array_equal(rows, permuted_rows(models["cell"], 30, 0))
