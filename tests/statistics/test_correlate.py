"""Correlations and draws against scipy and loops."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from helpers.statistics import correlate as c
from helpers.statistics.permutation import permuted_rows

RANDOM = np.random.default_rng(3)
N, M, B = 24, 5, 7
X = RANDOM.normal(size=(N, M))
Y = RANDOM.normal(size=N)
GIVEN = RANDOM.normal(size=(N, 3))
WEIGHTS = RANDOM.integers(4, size=(B, N)).astype(float)
STATISTICS = {"r": c.pearson, "given": c.pearson, "tau": c.kendall, "gamma": c.gamma}
PAIRED = np.repeat(np.arange(30), 2)


def of_table(*arguments):
    return c.in_draws(*arguments)[0]


def left_over(values, given):
    columns = np.column_stack([np.ones(len(values)), given])
    return values - columns @ np.linalg.lstsq(columns, values)[0]


def test_r_is_scipys_and_given_columns_that_of_residuals():
    plain = [scipy.stats.pearsonr(column, Y).statistic for column in X.T]
    assert of_table(c.pearson, X, Y) == pytest.approx(plain, abs=1e-12)
    left = left_over(Y, GIVEN)
    partial = [scipy.stats.pearsonr(left_over(x, GIVEN), left).statistic for x in X.T]
    found = of_table(c.pearson, X, Y, GIVEN)
    assert found == pytest.approx(partial, abs=1e-12)


@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.parametrize("ties", [False, True])
def test_weights_are_repeated_rows(name, ties):
    x, y = (np.round(X), np.round(2 * Y)) if ties else (X, Y)
    given = GIVEN if name == "given" else None
    statistic = STATISTICS[name]
    drawn = c.in_draws(statistic, x, y, given, WEIGHTS)
    many = np.repeat(x[None], B, 0), np.repeat(y[None], B, 0)
    in_each_draw = c.in_draws(statistic, *many, given, WEIGHTS)
    for draw, weights in enumerate(WEIGHTS.astype(int)):
        rows = np.repeat(np.arange(N), weights)
        held = None if given is None else given[rows]
        expected = of_table(statistic, x[rows], y[rows], held)
        assert drawn[draw] == pytest.approx(expected, abs=1e-9)
        assert in_each_draw[draw] == pytest.approx(expected, abs=1e-9)


def test_undefined_correlations_are_nan_and_scale_does_not_matter():
    constant = np.full((N, 1), 0.1)
    one_model = 9 * np.eye(N)[[3]]
    for name, statistic in STATISTICS.items():
        given = GIVEN if name == "given" else None
        scaled = of_table(statistic, 1e200 * X, 1e-200 * Y, given)
        expected = of_table(statistic, X, Y, given)
        assert scaled == pytest.approx(expected, abs=1e-9)
        for x, y, weights in (
            (constant, Y, WEIGHTS),
            (X, constant[:, 0], WEIGHTS),
            (X, Y, one_model),
            (X[:2], Y[:2], None),
        ):
            held = None if given is None else given[: len(x)]
            assert np.isnan(c.in_draws(statistic, x, y, held, weights)).all()
    assert np.isnan(of_table(c.pearson, 2 * GIVEN[:, :1] + 1, Y, GIVEN)).all()
    # An intercept and three columns leave nothing.
    assert np.isnan(of_table(c.pearson, X[:5], Y[:5], GIVEN[:5])).all()
    assert np.isfinite(of_table(c.kendall, X[:3], Y[:3])).all()


def test_a_level_may_be_missing_from_a_draw():
    levels = c.design(pd.DataFrame({"a": np.arange(N) % 4}), ["a"])
    weights = np.where(np.arange(N) % 4 == 1, 0, 1.0)[None]
    kept = weights[0] > 0
    expected = of_table(c.pearson, X[kept], Y[kept], levels[kept])
    found = c.in_draws(c.pearson, X, Y, levels, weights)[0]
    assert found == pytest.approx(expected, abs=1e-9)


def test_design_has_an_indicator_of_each_level_or_one_of_two():
    rows = [(0.3, "a", 1), (0.3, "b", 2), (0.1, "c", 9)]
    models = pd.DataFrame(rows, columns=["rate", "name", "n"])
    columns = c.design(models, ["rate", "name"], ["n"])
    assert columns.tolist() == [[1, 1, 1, 0, 0], [2, 1, 0, 1, 0], [9, 0, 0, 0, 1]]
    assert c.design(models).shape == (3, 0)
    loss = c.with_log_train_loss(pd.DataFrame({"train_loss": [0.0, 1.0]}))
    assert loss["log_train_loss"].tolist() == pytest.approx([math.log(1e-12), 0])


def catalogue(seed, rho, measures=1, test_images=1000):
    """Two snapshots of 60 configurations with a shared effect and binomial noise."""
    random = np.random.default_rng(seed)
    names = np.repeat(np.arange(60), 2)

    def normal(columns):
        shared = random.normal(size=(60, columns))[names]
        own = random.normal(size=(120, columns))
        return np.sqrt(0.7) * shared + np.sqrt(0.3) * own

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
    for seed in range(300):
        x, gap, names, truth = catalogue(seed, rho)
        models = pd.DataFrame({"x": x[:, 0], "gap": gap, "cell": names})
        row = c.correlate(c.Bootstrap(models, draws=400, seed=seed), ["x"]).iloc[0]
        held += row["low"] <= truth <= row["high"]
    assert 0.91 <= held / 300 <= 0.985


@pytest.mark.parametrize("measures", [1, 20])
def test_without_effect_the_least_adjusted_p_is_below_5_percent_in_5_percent(measures):
    below = 0
    for seed in range(400):
        x, gap, names, _ = catalogue(seed, 0, measures)
        test = c.tested(x, gap, permuted_rows(names, 199, seed))
        below += test["p_adjusted"].min() < 0.05
    assert 0.02 <= below / 400 <= 0.08


def test_the_interval_of_a_strong_r_holds_the_truth_when_images_are_drawn_too():
    held, plain, images, spread = 0, 0, 50, 0.6
    for seed in range(200):
        x, gap, names, truth = catalogue(seed, -0.9)
        random = np.random.default_rng([seed, 1])
        noise = spread * np.sqrt(images) * random.normal(size=(len(x), images))
        values = x + 2 * random.normal(size=images) + noise
        truth /= np.sqrt(1 + spread**2)
        models = pd.DataFrame({"x": values.mean(1), "gap": gap, "cell": names})
        draws = c.Bootstrap(models, {"x": values}, draws=400, seed=seed)
        row = c.correlate(draws, ["x"]).iloc[0]
        held += row["low"] <= truth <= row["high"]
        shifted = draws.resampled("x")[..., None]
        drawn = c.in_draws(c.pearson, shifted, gap, weights=draws.weights)
        low, high = c.percentile_interval(drawn, 60)
        plain += low[0] <= truth <= high[0]
    assert 0.92 <= held / 200 <= 0.99
    assert plain / 200 < 0.92  # why the shift is taken out


def test_units_are_drawn_as_a_whole():
    models = pd.DataFrame({"cell": PAIRED})
    weights, other = (c.Bootstrap(models, draws=500, seed=k).weights for k in (4, 5))
    assert (weights[:, ::2] == weights[:, 1::2]).all()
    assert (weights[:, ::2].sum(1) == 30).all()
    assert weights.var() == pytest.approx(1 - 1 / 30, abs=0.05)  # multinomial
    assert (weights != other).any()


def with_images(models=12, images=40):
    """Measure and test accuracy that are means over images; a model has no measure."""
    random = np.random.default_rng(0)
    values = random.random((models, images))
    right = random.random((models, 2 * images)) < random.uniform(0.2, 0.9, (models, 1))
    table = pd.DataFrame({"iou": values.mean(1), "test_accuracy": right.mean(1)})
    table["cell"] = np.arange(models)
    table["gap"] = 0.97 - table["test_accuracy"]
    table["norm"] = random.normal(size=models)
    table.loc[3, "iou"] = np.nan
    return table, {"iou": values.astype(np.float16), "test_accuracy": right}


def test_columns_are_drawn_with_their_images_and_the_gap_by_test_accuracy():
    models, images = with_images()
    draws = c.Bootstrap(models, images, draws=30, seed=2)
    for name, stream, count in (("iou", 1, 40), ("test_accuracy", 2, 80)):
        random = np.random.default_rng([2, stream])
        chosen = random.integers(count, size=(30, count))
        values = images[name][0].astype(float)
        exact = [math.fsum(values[draw]) / count for draw in chosen]
        expected = models[name][0] + np.array(exact) - values.mean()
        assert draws.resampled(name)[:, 0] == pytest.approx(expected, abs=1e-12)
    assert np.isnan(draws.resampled("iou")[:, 3]).all()
    gap = 0.97 - draws.resampled("test_accuracy")
    assert draws.resampled("gap") == pytest.approx(gap)
    assert draws.resampled("norm").tolist() == [models["norm"].tolist()]
    part = draws.subset([2, 6])
    assert (part.resampled("gap") == draws.resampled("gap")[:, [2, 6]]).all()
    by_gap = dataclasses.replace(draws, unit="gap").resampled("iou")
    assert (by_gap[:, 1] == draws.resampled("iou")[:, 1]).all()


@pytest.mark.parametrize("statistic", [c.pearson, c.kendall, c.gamma])
def test_draws_of_images_widen_an_interval_and_do_not_shift_it(statistic):
    models, images = with_images(40)
    drawn, fixed = (c.Bootstrap(models, one, draws=400) for one in (images, {}))
    options = {"statistic": statistic}
    alone = c.correlations_in_draws(drawn, ["iou"], **options)
    plain = c.correlations_in_draws(fixed, ["iou"], **options)
    beside = c.correlations_in_draws(drawn, ["norm", "iou"], **options)
    assert alone[:, 0] == pytest.approx(beside[:, 1], rel=1e-9)
    assert alone.std() > plain.std()
    assert np.arctanh(alone).mean() == pytest.approx(np.arctanh(plain).mean())


def test_a_table_of_correlations_is_scipys_with_percentiles_of_drawn_units():
    random = np.random.default_rng(4)
    models = pd.DataFrame({"cell": PAIRED, "gap": random.normal(size=60)})
    models["kind"] = PAIRED
    models["x"] = models["gap"] + random.normal(size=60)
    models["few"] = models["x"].where(models["cell"] < 7)
    models = models.assign(never=np.nan, constant=0.1)
    draws = c.Bootstrap(models, draws=300, seed=2, unit="kind")
    table = c.correlate(draws, ["x", "few", "never", "constant"]).set_index("measure")
    counts = [[60, 30], [14, 7], [0, 0], [60, 30]]
    assert table[["n", "units"]].to_numpy().tolist() == counts
    r = scipy.stats.pearsonr(models["x"], models["gap"]).statistic
    assert table.loc["x", "r"] == pytest.approx(r)
    weights = draws.weights.astype(int)
    values = models[["x", "gap"]].to_numpy()
    drawn = [np.corrcoef(np.repeat(values, w, axis=0).T)[0, 1] for w in weights]
    ends = np.quantile(drawn, [0.025, 0.975])
    assert table.loc["x", ["low", "high"]].tolist() == pytest.approx(ends.tolist())
    smallest = np.tanh(2.8 * np.arctanh(drawn).std(ddof=1))
    assert table.loc["x", "smallest"] == pytest.approx(smallest)
    numbers = ["r", "low", "high", "smallest"]  # seven configurations are too few
    assert table.loc[["few", "never", "constant"], numbers].isna().all(axis=None)
    wider = c.correlate(dataclasses.replace(draws, level=0.99), ["x"]).iloc[0]
    assert wider["low"] < ends[0] < ends[1] < wider["high"]


def test_a_measure_whose_images_are_not_known_has_a_value_and_no_interval():
    models = pd.DataFrame(RANDOM.random((20, 2)), columns=["gap", "reliance"])
    models["cell"] = np.arange(20)
    draws = c.Bootstrap(models, draws=50, no_interval=["reliance"])
    row = c.correlate(draws.subset(models.index), ["reliance"]).iloc[0]
    assert np.isfinite(row["r"]) and row[["low", "high", "smallest"]].isna().all()


def test_a_mean_is_drawn_over_units_and_leaves_out_what_is_missing():
    values = np.random.default_rng(3).normal(size=(60, 3))
    values[:46, 1], values[:, 2] = np.nan, np.nan
    draws = c.Bootstrap(pd.DataFrame({"cell": PAIRED}), draws=2000, level=0.9)
    mean, low, high, smallest = draws.mean(values).to_numpy().T
    expected = [values[:, 0].mean(), values[46:, 1].mean(), np.nan]
    assert mean == pytest.approx(expected, nan_ok=True)
    error = values[:, 0].reshape(30, 2).mean(1).std() / np.sqrt(30)
    assert (high - low)[0] / 2 == pytest.approx(1.645 * error, rel=0.1)
    assert smallest[0] == pytest.approx(2.8 * error, rel=0.1)
    assert np.isnan([low[1:], high[1:], smallest[1:]]).all()  # of 7 units, of none


def test_intervals_are_percentiles_and_of_too_few_units_there_is_none():
    undefined = np.where(np.arange(1001) < 700, np.nan, 1.0)
    drawn = np.column_stack([np.arange(1001.0), undefined])
    low, high = c.percentile_interval(drawn, 8)
    assert (low[0], high[0]) == pytest.approx((25, 975))
    assert np.isnan([low[1], high[1]]).all()
    assert np.isnan(c.percentile_interval(drawn, 7)).all()
    assert np.isnan(c.percentile_interval(np.empty((0, 2)), 8)).all()
