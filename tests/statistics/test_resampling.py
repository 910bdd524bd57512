import re
import time

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from helpers.statistics import resampling
from helpers.statistics.resampling import difference_table


def catalogue(rng, cells=25, repeats=3):
    """Cells of repeats that share an effect; two measures that follow the gap, one that does not, one with ties."""
    effect = np.repeat(rng.uniform(0, 0.5, cells), repeats)
    rows = len(effect)
    gap = effect + 0.02 * rng.normal(size=rows)
    shared = rng.normal(size=rows)
    table = pd.DataFrame({"gap": gap, "cell": np.repeat([f"cell{number}" for number in range(cells)], repeats)})
    table["good"], table["similar"] = 1 - gap + 0.1 * shared, gap - 0.1 * shared + 0.01 * rng.normal(size=rows)
    return table.assign(noise=rng.normal(size=rows), tied=gap.round(1)).sample(frac=1, random_state=0, ignore_index=True)


MEASURES = {"good": 1, "similar": -1, "noise": 1, "tied": -1}


def oracle(statistic):
    return {"pearson": scipy.stats.pearsonr, "kendall": scipy.stats.kendalltau}[statistic]


@pytest.mark.parametrize("statistic", ["pearson", "kendall"])
def test_strengths_are_signed_correlations(statistic):
    table = catalogue(np.random.default_rng(0))
    found = difference_table(table, MEASURES, statistic=statistic, reference="noise", resamples=10)
    expected = [-direction * oracle(statistic)(table[name], table["gap"]).statistic for name, direction in MEASURES.items()]
    np.testing.assert_allclose(found["strength"], expected, rtol=1e-12)
    np.testing.assert_allclose(found["reference_strength"], expected[2], rtol=1e-12)
    np.testing.assert_allclose(found["difference"], np.array(expected) - expected[2], rtol=1e-9, atol=1e-15)
    assert (found["strength"][[0, 1, 3]] > 0.5).all()
    assert set(found["reference"]) == {"noise"}


@pytest.mark.parametrize("statistic", ["pearson", "kendall"])
def test_interval_equals_resampled_rows_on_the_same_draws(statistic):
    table = catalogue(np.random.default_rng(1), cells=12)
    found = difference_table(table, MEASURES, reference="good", statistic=statistic, resamples=60, seed=5).set_index("measure")
    # The same draws of cells, but the models are copied out and the correlation is SciPy's.
    by_cell = [rows for _, rows in table.groupby("cell", sort=False)]
    draws = np.random.default_rng(5).integers(12, size=(60, 12))
    copies = [pd.concat([by_cell[cell] for cell in draw]) for draw in draws]
    for name, direction in MEASURES.items():
        differences = [
            -direction * oracle(statistic)(rows[name], rows["gap"]).statistic + oracle(statistic)(rows["good"], rows["gap"]).statistic
            for rows in copies
        ]
        np.testing.assert_allclose(found.loc[name, ["low", "high"]].astype(float), np.quantile(differences, [0.025, 0.975]), atol=1e-9)


@pytest.mark.parametrize("statistic", ["pearson", "kendall"])
def test_interval_against_an_unrelated_draw_equals_scipys_paired_bootstrap(statistic):
    rng = np.random.default_rng(2)
    table = catalogue(rng, cells=60, repeats=1)
    found = difference_table(table, {"good": 1, "noise": 1}, reference="good", statistic=statistic, resamples=2000).set_index("measure")

    def difference(noise, good, gap):
        return oracle(statistic)(good, gap).statistic - oracle(statistic)(noise, gap).statistic

    theirs = scipy.stats.bootstrap(
        (table["noise"], table["good"], table["gap"]),
        difference,
        n_resamples=1000,
        paired=True,
        vectorized=False,
        method="percentile",
        rng=rng,
    )
    # The standard error of a 2.5 % quantile of B draws is sqrt(.025 * .975 / B) / (0.0584 / se); four times that of the difference.
    error = np.sqrt(0.025 * 0.975 * (1 / 1000 + 1 / 2000)) / 0.0584 * theirs.standard_error
    assert found.loc["noise", "low"] == pytest.approx(theirs.confidence_interval.low, abs=4 * error)
    assert found.loc["noise", "high"] == pytest.approx(theirs.confidence_interval.high, abs=4 * error)


@pytest.mark.parametrize("statistic", ["pearson", "kendall"])
def test_pairing_makes_the_interval_of_two_like_measures_narrow(statistic):
    table = catalogue(np.random.default_rng(3))
    found = difference_table(table, MEASURES, reference="good", statistic=statistic).set_index("measure")
    alone = resampling.bootstrap_interval(table["similar"], table["gap"], table["cell"], statistic, 500)
    assert found.loc["similar", "high"] - found.loc["similar", "low"] < 0.5 * (alone[1] - alone[0])
    assert found.loc["noise", "high"] < 0


@pytest.mark.parametrize("statistic", ["pearson", "kendall"])
def test_the_reference_and_its_mirror_image_differ_by_nothing(statistic):
    table = catalogue(np.random.default_rng(4)).assign(mirror=lambda rows: 7 - 2 * rows["good"])
    found = difference_table(table, {"noise": 1, "good": 1, "mirror": -1}, statistic=statistic, resamples=50).set_index("measure")
    assert set(found["reference"]) <= {"good", "mirror"}  # the strongest, which the two share
    np.testing.assert_allclose(found.loc[["good", "mirror"], ["difference", "low", "high"]], 0, rtol=0, atol=1e-12)


def test_a_reversed_measure_is_not_the_strongest():
    table = catalogue(np.random.default_rng(5)).assign(reversed=lambda rows: rows["gap"])
    found = difference_table(table, {"reversed": 1, "good": 1}, resamples=50).set_index("measure")
    assert set(found["reference"]) == {"good"}
    assert found.loc["reversed", "strength"] == pytest.approx(-1)


def test_what_is_not_finite_is_left_out_of_both_and_counted():
    table = catalogue(np.random.default_rng(6))
    table.loc[[0, 1], "noise"], table.loc[2, "good"], table.loc[3, "gap"] = [np.nan, -np.inf], np.inf, np.nan
    for statistic in resampling.STATISTICS:
        found = difference_table(table, MEASURES, reference="good", statistic=statistic, resamples=40).set_index("measure")
        assert list(found["dropped"]) == [2, 2, 4, 2]
        alone = difference_table(table.drop(index=[0, 1, 2, 3]), MEASURES, reference="good", statistic=statistic, resamples=40)
        np.testing.assert_allclose(found.loc["noise"].iloc[3:].astype(float), alone.iloc[2, 4:].astype(float), rtol=1e-9)


@pytest.mark.parametrize("statistic", ["pearson", "kendall"])
def test_undefined_strengths_and_intervals_are_nan(statistic):
    table = catalogue(np.random.default_rng(7)).assign(constant=0.1, absent=np.nan)
    found = difference_table(table, {"constant": 1, "absent": 1, "good": 1}, statistic=statistic, resamples=20).set_index("measure")
    assert set(found["reference"]) == {"good"}
    assert found.loc[["constant", "absent"], ["strength", "difference", "low", "high"]].isna().all(axis=None)
    assert found.loc["absent", "n"] == 0
    nothing = difference_table(table, {"constant": 1, "absent": 1}, statistic=statistic, resamples=20)
    assert set(nothing["reference"]) == {"constant"}
    for few in (difference_table(table[table["cell"].isin(["cell0", "cell1"])], MEASURES), difference_table(table, MEASURES, resamples=0)):
        assert few[["low", "high"]].isna().all(axis=None)
        assert few["difference"].notna().all()


def test_kendall_by_tables_equals_kendall_by_recount(monkeypatch):
    table = catalogue(np.random.default_rng(8), cells=8)
    expected = difference_table(table, MEASURES, statistic="kendall", resamples=30)
    monkeypatch.setattr(resampling, "_PAIR_TABLE_LIMIT", 10)
    pd.testing.assert_frame_equal(difference_table(table, MEASURES, statistic="kendall", resamples=30), expected, rtol=1e-9)


def test_draws_and_their_seed():
    table = catalogue(np.random.default_rng(9))
    first, again, other = (difference_table(table, MEASURES, resamples=50, seed=seed) for seed in (0, 0, 1))
    pd.testing.assert_frame_equal(first, again)
    assert not first["low"].equals(other["low"])
    wide, narrow = (difference_table(table, MEASURES, reference="good", resamples=300, level=level).iloc[2] for level in (0.95, 0.5))
    assert wide["low"] < narrow["low"] < narrow["high"] < wide["high"]


def test_2_000_models_are_compared_in_seconds():
    rng = np.random.default_rng(10)
    values = rng.normal(size=(2000, 40))
    table = pd.DataFrame(values, columns=[f"m{number}" for number in range(40)]).assign(
        gap=rng.normal(size=2000), cell=np.arange(2000) // 2
    )
    start = time.process_time()
    difference_table(table, dict.fromkeys(table.columns[:40], 1))
    assert time.process_time() - start < 20


@pytest.mark.parametrize(
    ("measures", "settings", "message"),
    [
        ({}, {}, "there are no measures to compare"),
        ({"best": 1}, {}, "no column best"),
        ({"good": 0}, {}, "directions {'good': 0} must be +1"),
        ({"good": 1}, {"reference": "noise"}, "reference 'noise' is not among the measures good"),
        ({"good": 1}, {"statistic": "spearman"}, "statistic 'spearman' is unknown; choose one of pearson, kendall"),
        ({"good": 1}, {"level": 1}, "level 1 must be between 0 and 1"),
    ],
)
def test_bad_input_is_refused(measures, settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        difference_table(catalogue(np.random.default_rng(11)), measures, **settings)
