import itertools
import re

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import sklearn.linear_model
import sklearn.preprocessing

from helpers.report import measures
from helpers.statistics import hyperparameters, resampling
from helpers.statistics.agreement import pearson
from helpers.statistics.hyperparameters import granulated_kendall, partial_correlation, within_levels

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
        interval = resampling.bootstrap_interval(subset["noise"], subset["gap"], subset["cell"], "pearson", 200)
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


def catalogue_confounders(kind, repeats=4, seed=0):
    """A grid of 3 learning rates, 2 batch sizes and pretrained or not, repeated.

    The gap of "confounded" is made by the learning rate alone, which moves IoU too; in "real" the gap follows IoU, which no
    hyperparameter moves; in "reversed" IoU and gap rise together with the learning rate but oppose each other within it.
    """
    rng = np.random.default_rng(seed)
    grid = [(rate, batch, pretrained) for rate in (0.1, 0.01, 0.001) for batch in (16, 32) for pretrained in (True, False)]
    rows = pd.DataFrame([cell for cell in grid for _ in range(repeats)], columns=["learning_rate", "batch_size", "pretrained"])
    level, noise, count = np.log10(rows["learning_rate"]) + 2, rng.normal(0, 0.02, len(rows)), len(rows)
    iou, gap = {
        "confounded": (0.5 - 0.1 * level + rng.normal(0, 0.02, count), 0.3 + 0.1 * level + noise),
        "real": (values := 0.5 + rng.normal(0, 0.1, count), 0.8 - values + noise),
        "reversed": (0.5 + 0.1 * level + noise, 0.3 + 0.1 * level - noise + rng.normal(0, 0.005, count)),
    }[kind]
    names = [f"{row.learning_rate} {row.batch_size} {row.pretrained}" for row in rows.itertuples()]
    return rows.assign(iou=iou, iou_b=iou + rng.normal(0, 0.01, count), gap=gap, cell=names, run_id=np.arange(count))


AXES_confounders = ["learning_rate", "batch_size", "pretrained"]


def table_of(models, axes=AXES_confounders, **options):
    return hyperparameters.confounders(models, {"iou": 1, "iou_b": 1}, axes, resamples=300, **options)


def row(table, kind, hyperparameter="all", measure="iou"):
    chosen = (table["measure"] == measure) & (table["kind"] == kind) & (table["hyperparameter"] == hyperparameter)
    return table[chosen].iloc[0]


def test_a_gap_made_by_one_hyperparameter_alone_is_said_to_be():
    table = table_of(catalogue_confounders("confounded"))
    assert row(table, "pooled")["ci_low"] > 0.7
    assert row(table, "given all")["ci_low"] < 0 < row(table, "given all")["ci_high"]
    sentence = measures.say_confounding(table, "iou", "IoU")
    assert "the pooled correlation is that of the hyperparameters" in sentence
    assert "held fixed alone, learning_rate takes most away and leaves" in sentence
    numbers = [float(number) for number in re.findall(r"-?\d+\.\d+", sentence)]
    left, pooled = row(table, "given all")["strength"], row(table, "pooled")["strength"]
    assert numbers[0] == round(pooled, 2)
    assert numbers[3] == round(left, 2)
    assert left < 0
    assert "is left, none of it: what is left can be told from the pooled strength but not from 0" in sentence
    assert measures.say_field(table).startswith("Of 2 measures, 2 have a pooled interval clear of 0; given all")
    assert "and 2 cannot be told from 0 any more" in measures.say_field(table)


def test_a_correlation_that_no_hyperparameter_makes_survives():
    table = table_of(catalogue_confounders("real"))
    sentence = measures.say_confounding(table, "iou", "IoU")
    assert "the hyperparameters are not what makes it" in sentence
    share = row(table, "given all")["strength"] / row(table, "pooled")["strength"]
    assert (f"is left, {100 * share:.1f} % of it" if share <= 1 else "is left, all of it and more") in sentence
    assert "2 of these keep their sign beyond doubt, 0 turn round" in measures.say_field(table)


def test_a_reversal_is_called_one():
    table = table_of(catalogue_confounders("reversed"))
    assert "turns round when the hyperparameters are held fixed (Simpson's paradox)" in measures.say_confounding(table, "iou", "IoU")


def test_a_hyperparameter_that_hides_a_correlation_is_found():
    models = catalogue_confounders("real")
    level = np.log10(models["learning_rate"]) + 2
    # No part of IoU goes with the learning rate, which moves the gap by far more than IoU does.
    models["iou"] -= models.groupby("learning_rate")["iou"].transform("mean") - 0.5
    models["gap"] = 0.8 - models["iou"] + 5.0 * level
    sentence = measures.say_confounding(table_of(models), "iou", "IoU")
    assert "a correlation that the pooled models hide shows when the hyperparameters are held fixed" in sentence


def test_every_strength_is_what_it_is_called():
    models = catalogue_confounders("confounded")
    table = table_of(models, theirs={"iou": -0.8})
    assert row(table, "pooled")["strength"] == pytest.approx(-pearson(models["iou"], models["gap"]))
    assert row(table, "pooled")["published"] == 0.8
    assert np.isnan(row(table, "pooled", measure="iou_b")["published"])
    # Given one hyperparameter: residuals of the level's means, by pandas.
    residuals = models[["iou", "gap"]] - models.groupby("batch_size")[["iou", "gap"]].transform("mean")
    assert row(table, "given one", "batch_size")["strength"] == pytest.approx(-pearson(residuals["iou"], residuals["gap"]))
    within = table[(table["kind"] == "within a level") & (table["measure"] == "iou")].set_index("level")["strength"]
    part = models[models["learning_rate"] == 0.1]
    assert within["0.1"] == pytest.approx(-pearson(part["iou"], part["gap"]))
    assert len(within) == 3 + 2 + 2
    assert list(table.columns) == hyperparameters.CONFOUNDER_COLUMNS
    assert table["strength"].dropna().between(-1, 1).all()


def test_the_interval_of_a_partial_correlation_is_fishers():
    """With one hyperparameter of two levels one degree is lost: n - 2 - 1; SciPy's interval has n - 3 in the root for none."""
    models = catalogue_confounders("real")
    found = row(table_of(models), "given one", "batch_size")
    n = len(models)
    half = scipy.stats.norm.ppf(0.975) / np.sqrt(n - 1 - 3)
    expected = np.tanh(np.arctanh(found["strength"]) + np.array([-half, half]))
    # 1.96 stands for the normal's quantile.
    assert (found["ci_low"], found["ci_high"]) == pytest.approx(tuple(expected), abs=1e-4)


def test_a_measure_that_is_worse_when_larger_has_the_same_strength_as_its_negative():
    models = catalogue_confounders("real").assign(complexity=lambda table: -table["iou"])
    both = hyperparameters.confounders(models, {"iou": 1, "complexity": -1}, AXES_confounders, resamples=50)
    one, other = (both[both["measure"] == name]["strength"].to_numpy() for name in ("iou", "complexity"))
    np.testing.assert_allclose(one, other)


def test_no_varied_hyperparameter_and_too_few_models_are_said_in_words():
    table = table_of(catalogue_confounders("real"), axes=[])
    assert set(table["kind"]) == {"pooled"}
    assert "no hyperparameter has two levels, so none can be behind it" in measures.say_confounding(table, "iou", "IoU")
    few = table_of(catalogue_confounders("real", repeats=1).iloc[[0, 1, 2, 3]])
    assert row(few, "given all")["n"] == 4
    for models in (
        catalogue_confounders("real").iloc[:4],
        catalogue_confounders("real").iloc[:0],
        catalogue_confounders("real").assign(iou=0.0),
    ):
        table = table_of(models, axes=[axis for axis in AXES_confounders if models[axis].nunique() > 1])
        for text in (
            measures.say_confounding(table, "iou", "IoU"),
            measures.say_field(table),
            measures.say_granulated(table, "iou", "IoU"),
        ):
            assert text.endswith(".")
            assert "nan" not in text.lower()


def test_no_degree_of_freedom_is_said_and_one_hyperparameter_alone_still_read():
    models = catalogue_confounders("confounded", repeats=1).iloc[[0, 1, 2, 5, 6, 8]].reset_index(drop=True)
    table = table_of(models)
    assert not np.isfinite(row(table, "given all")["ci_low"])
    sentence = measures.say_confounding(table, "iou", "IoU")
    assert "no degree of freedom" in sentence or "with too few models for an interval, no claim" in sentence
    assert "nan" not in sentence


def test_granulated_kendall_is_read_with_its_lowest_hyperparameter():
    table = table_of(catalogue_confounders("real"))
    text = measures.say_granulated(table, "iou", "IoU")
    psi = table[(table["kind"] == "granulated") & (table["measure"] == "iou")].set_index("hyperparameter")["strength"]
    assert f"{psi['all']:.2f} on average" in text
    assert f"lowest for {psi.drop('all').idxmin()} with {psi.drop('all').min():.2f}" in text


def test_subsets_are_correlated_one_by_one():
    models = catalogue_confounders("real").assign(label_noise=lambda table: np.where(table["batch_size"] == 16, 0.0, 0.2))
    table = hyperparameters.subsets(models, "iou", "label_noise", 100, 0)
    assert table["level"].tolist() == ["0.0", "0.2"]
    for level, found in zip((0.0, 0.2), table.itertuples(), strict=True):
        part = models[models["label_noise"] == level]
        assert found.n == len(part) == 24
        assert found.pearson_r == pytest.approx(pearson(part["iou"], part["gap"]))
        assert found.ci_low < found.pearson_r < found.ci_high
        assert (found.mean, found.mean_gap) == pytest.approx((part["iou"].mean(), part["gap"].mean()))
    assert not len(hyperparameters.subsets(models.iloc[:0], "iou", "label_noise", 100, 0))


def test_changes_are_taken_within_pairs():
    first = catalogue_confounders("real").assign(snapshot="first")
    # Within a run a larger step of IoU goes with a larger step of the gap, whatever holds between runs.
    step = np.linspace(-0.1, 0.1, len(first))
    stop = first.assign(snapshot="stop", iou=first["iou"] + step, gap=first["gap"] + 2 * step)
    both = pd.concat([stop, first.iloc[:40]])
    found = hyperparameters.changes(both, "iou", "snapshot", ["run_id"], 100, 0).iloc[0]
    assert found["n"] == 40
    assert found["pearson_r"] == pytest.approx(1)
    assert found["mean"] == pytest.approx(np.abs(step[:40]).mean())
    assert found["mean_gap"] == pytest.approx(2 * np.abs(step[:40]).mean())
    none = hyperparameters.changes(first, "iou", "snapshot", ["run_id"], 100, 0).iloc[0]
    assert none["n"] == 0
    assert np.isnan(none["pearson_r"])


def test_a_missing_column_is_refused():
    with pytest.raises(ValueError, match=r"^the catalogue has no column depth$"):
        table_of(catalogue_confounders("real"), axes=["depth"])
