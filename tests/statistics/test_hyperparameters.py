import itertools
import re

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import sklearn.linear_model
import sklearn.preprocessing

from helpers import statistics
from helpers.confounding import granulated_kendall, partial_correlation, within_levels

AXES = {"batch_size": [32, 64, 128], "learning_rate": [0.1, 0.01, 0.001], "optimizer": ["adam", "sgd"], "pretrained": [False, True]}


def catalogue(rng, repeats=2, axes=AXES):
    grid = pd.DataFrame(itertools.product(*axes.values()), columns=list(axes))
    table = grid.loc[np.repeat(np.arange(len(grid)), repeats)].reset_index(names="cell")
    effects = sum(0.05 * rng.normal(size=len(levels))[pd.factorize(table[name])[0]] for name, levels in axes.items())
    gap = 0.2 + effects + 0.02 * rng.normal(size=len(table))
    noise = rng.normal(size=len(table))
    return table.assign(gap=gap, good=1 - gap + 0.02 * noise, norm=(gap + 0.05 * noise[::-1]).round(2), noise=noise)


def tau_a(x, y):
    pairs = list(itertools.permutations(range(len(x)), 2))
    return sum(np.sign(x[a] - x[b]) * np.sign(y[a] - y[b]) for a, b in pairs) / len(pairs)


def by_groups(table, measure, direction, axes):
    """psi of each axis and its number of settings, by pandas' groups."""
    cells = (
        table[np.isfinite(table[measure]) & np.isfinite(table["gap"])].groupby(list(axes), as_index=False)[[measure, "gap"]].mean().round(9)
    )
    for axis in axes:
        others = [name for name in axes if name != axis]
        groups = [group for _, group in (cells.groupby(others) if others else [(0, cells)]) if len(group) > 1]
        taus = [tau_a((-direction * group[measure]).to_numpy(), group["gap"].to_numpy()) for group in groups]
        yield (np.mean(taus) if taus else np.nan), len(taus)


def test_granulated_kendall_by_hand():
    table = pd.DataFrame({"a": [1, 2, 3, 1, 2, 3], "b": [0, 0, 0, 1, 1, 1], "gap": [1, 2, 3, 1, 2, 3], "m": [1, 3, 2, 5, 5, 6]})
    found = granulated_kendall(table, {"m": -1}, ["a", "b"])
    # a: with b = 0 two pairs of three agree and one does not, with b = 1 two agree and one is tied. b: no gap differs.
    assert list(found["psi"]) == pytest.approx([(1 / 3 + 2 / 3) / 2, 0, 0.25])
    assert list(found["groups"]) == [2, 3, 5]
    assert list(found["hyperparameter"]) == ["a", "b", "all"]


@pytest.mark.parametrize("keep", [1, 0.5])
def test_granulated_kendall_equals_pandas_groups(keep):
    rng = np.random.default_rng(0)
    table = catalogue(rng).sample(frac=keep, random_state=1)
    table.loc[table.index[:3], "norm"], table.loc[table.index[7], "gap"] = [np.nan, np.inf, -np.inf], np.nan
    measures = {"good": 1, "norm": -1, "noise": 1}
    found = granulated_kendall(table, measures, list(AXES))
    for name, direction in measures.items():
        psi, groups = zip(*by_groups(table, name, direction, list(AXES)), strict=True)
        rows = found[found["measure"] == name]
        np.testing.assert_allclose(rows["psi"], [*psi, np.mean(psi)], rtol=0, atol=1e-12)
        assert list(rows["groups"]) == [*groups, sum(groups)]
        assert set(rows["dropped"]) == {4 if name == "norm" else 1}
        assert set(rows["n"] + rows["dropped"]) == {len(table)}


def test_granulated_kendall_of_perfect_and_reversed_measures():
    table = catalogue(np.random.default_rng(1))
    table["perfect"], table["reversed"] = np.exp(-9 * table["gap"].groupby(table["cell"]).transform("mean")), table["gap"]
    found = granulated_kendall(table, {"perfect": 1, "reversed": 1}, list(AXES))
    np.testing.assert_allclose(found["psi"], [1] * 5 + [-1] * 5, rtol=0, atol=1e-12)


def test_an_axis_without_two_levels_in_any_setting_is_nan_and_not_in_psi():
    table = pd.DataFrame({"a": [1, 2, 3], "b": ["x", "x", "x"], "gap": [0.1, 0.2, 0.3], "m": [3, 2, 1], "broken": np.nan})
    found = granulated_kendall(table, {"m": 1, "broken": 1}, ["a", "b"])
    np.testing.assert_array_equal(found["psi"], [1, np.nan, 1, np.nan, np.nan, np.nan])
    assert list(found["groups"]) == [1, 0, 1, 0, 0, 0]


def test_a_constant_measure_has_no_order_through_the_rounding_of_means():
    table = catalogue(np.random.default_rng(2), repeats=1 + np.arange(36) % 3).assign(constant=0.1)
    assert (granulated_kendall(table, {"constant": 1}, list(AXES))["psi"] == 0).all()


def test_partial_correlation_equals_scikit_learns_residuals():
    table = catalogue(np.random.default_rng(3))
    table.loc[[1, 5], "norm"] = np.nan
    measures = {"good": 1, "norm": -1, "noise": 1}
    found = partial_correlation(table, measures, list(AXES)).set_index("measure")
    for name, direction in measures.items():
        kept = table.dropna(subset=name)
        indicators = sklearn.preprocessing.OneHotEncoder(drop="first", sparse_output=False).fit_transform(kept[list(AXES)])
        targets = kept[[name, "gap"]].to_numpy()
        x, y = (targets - sklearn.linear_model.LinearRegression().fit(indicators, targets).predict(indicators)).T
        expected = scipy.stats.pearsonr(-direction * x, y)
        assert found.loc[name, "partial_r"] == pytest.approx(expected.statistic, abs=1e-10)
        assert found.loc[name, "degrees_of_freedom"] == len(kept) - 2 - 6
        # Pearson's p-value for n models has n - 2 degrees of freedom, and each indicator takes one more.
        t = expected.statistic * np.sqrt((len(kept) - 8) / (1 - expected.statistic**2))
        assert found.loc[name, "p_value"] == pytest.approx(2 * scipy.stats.t.cdf(-abs(t), len(kept) - 8), rel=1e-6)
        assert (found.loc[name, "n"], found.loc[name, "dropped"]) == (len(kept), len(table) - len(kept))


def test_partial_correlation_equals_the_formula_for_one_two_level_axis():
    rng = np.random.default_rng(4)
    table = pd.DataFrame({"a": rng.integers(2, size=50), "gap": rng.normal(size=50), "m": rng.normal(size=50)})
    r = table.corr().to_numpy()
    expected = (r[1, 2] - r[0, 1] * r[0, 2]) / np.sqrt((1 - r[0, 1] ** 2) * (1 - r[0, 2] ** 2))
    found = partial_correlation(table, {"m": -1}, ["a"])
    assert found["partial_r"].item() == pytest.approx(expected, abs=1e-12)
    assert found["degrees_of_freedom"].item() == 47


def test_partial_correlation_ignores_effects_of_hyperparameters_and_scale():
    table = catalogue(np.random.default_rng(5))
    table["shifted"] = 1e150 * (table["noise"] + 40 * table["optimizer"].eq("sgd") - 7 * table["learning_rate"])
    plain, shifted = partial_correlation(table, {"noise": 1, "shifted": 1}, list(AXES))["partial_r"]
    assert shifted == pytest.approx(plain, abs=1e-9)


def test_partial_correlation_does_not_count_an_axis_twice():
    table = catalogue(np.random.default_rng(6))
    table["stem"] = table["optimizer"].map({"adam": "small", "sgd": "large"})
    twice, once = (partial_correlation(table, {"noise": 1}, axes) for axes in ([*AXES, "stem"], list(AXES)))
    pd.testing.assert_frame_equal(twice, once, rtol=1e-9)


def test_a_perfect_measure_has_partial_correlation_one():
    table = catalogue(np.random.default_rng(7)).assign(perfect=lambda rows: 1 - rows["gap"])
    found = partial_correlation(table, {"perfect": 1}, list(AXES))
    assert found["partial_r"].item() == pytest.approx(1, abs=1e-12)
    assert found["p_value"].item() < 1e-100


def test_partial_correlation_without_residual_or_freedom_is_nan():
    table = catalogue(np.random.default_rng(8)).assign(
        constant=0.1, effect=lambda rows: rows["learning_rate"] + rows["optimizer"].eq("sgd")
    )
    found = partial_correlation(table, {"constant": 1, "effect": 1}, list(AXES))
    assert found[["partial_r", "p_value"]].isna().all(axis=None)
    few = partial_correlation(table.iloc[::11], {"noise": 1}, list(AXES))
    assert few["degrees_of_freedom"].item() < 1
    assert np.isnan(few["partial_r"].item())
    alone = partial_correlation(table.assign(number=np.arange(len(table)) + 0.5), {"noise": 1}, ["number"])
    assert np.isnan(alone["partial_r"].item())
    assert np.isnan(partial_correlation(table.assign(noise=np.nan), {"noise": 1}, list(AXES))["p_value"].item())


def test_within_levels_equals_correlations_of_subsets():
    table = catalogue(np.random.default_rng(9), repeats=3)
    table.loc[4, "noise"] = np.nan
    found = within_levels(table, "noise", ["optimizer", "learning_rate"], resamples=200)
    assert list(found["hyperparameter"]) == ["optimizer"] * 2 + ["learning_rate"] * 3 + ["all"]
    for row in found.itertuples():
        subset = table if row.hyperparameter == "all" else table[table[row.hyperparameter] == row.level]
        assert row.pearson_r == pytest.approx(subset["noise"].corr(subset["gap"]))
        interval = statistics.bootstrap_interval(subset["noise"], subset["gap"], subset["cell"], "pearson", 200)
        assert (row.ci_low, row.ci_high) == pytest.approx(interval)
        assert (row.n, row.dropped, row.cells) == (subset["noise"].count(), subset["noise"].isna().sum(), subset["cell"].nunique())


def test_within_levels_shows_a_correlation_that_the_hyperparameter_makes():
    rng = np.random.default_rng(10)
    sgd = np.repeat([False, True], 60)
    noise = rng.normal(size=120)
    table = pd.DataFrame(
        {"optimizer": np.where(sgd, "sgd", "adam"), "gap": sgd + 0.1 * noise, "m": 2.0 * sgd - 0.1 * noise, "cell": range(120)}
    )
    adam, plain_sgd, pooled = within_levels(table, "m", ["optimizer"], resamples=100)["pearson_r"]
    assert pooled > 0.9
    assert adam == pytest.approx(-1)
    assert plain_sgd == pytest.approx(-1)
    turned = within_levels(table, "m", ["optimizer"], direction=1, resamples=100)
    np.testing.assert_allclose(turned["pearson_r"], [1, 1, -pooled])


def test_floats_that_are_close_are_one_level():
    table = catalogue(np.random.default_rng(11))
    close = table.assign(learning_rate=table["learning_rate"] * (1 + 1e-14 * np.arange(len(table))))
    assert close["learning_rate"].nunique() > 3
    for function in (granulated_kendall, partial_correlation):
        expected, found = (function(models, {"noise": 1}, list(AXES)) for models in (table, close))
        pd.testing.assert_frame_equal(found, expected, rtol=1e-9)
    assert len(within_levels(close, "noise", ["learning_rate"], resamples=3)) == 4


@pytest.mark.parametrize("function", [granulated_kendall, partial_correlation])
@pytest.mark.parametrize(
    ("measures", "axes", "message"),
    [
        ({"best": 1}, ["depth"], "no column depth, best"),
        ({"noise": 2}, ["optimizer"], "directions {'noise': 2} must be +1"),
        ({"noise": 1}, [], "there are no hyperparameters"),
        ({"noise": 1}, ["unknown"], "hyperparameter 'unknown' has 72 missing values"),
    ],
)
def test_bad_input_is_refused(function, measures, axes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        function(catalogue(np.random.default_rng(12)).assign(unknown=None), measures, axes)


def test_within_levels_needs_cells():
    with pytest.raises(ValueError, match="no column cell"):
        within_levels(catalogue(np.random.default_rng(12)).drop(columns="cell"), "noise", ["optimizer"])
