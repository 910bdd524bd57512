import itertools
import re

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics

from helpers.statistics import information as statistics_information
from helpers.statistics.information import conditional_information, information_by_set

AXES = {"batch_size": [32, 64, 128], "learning_rate": [0.1, 0.01, 0.001], "optimizer": ["adam", "sgd"], "pretrained": [False, True]}


def grid(axes=AXES):
    return pd.DataFrame(itertools.product(*axes.values()), columns=list(axes))


def entropy(shares):
    return -sum(p * np.log2(p) for p in shares if p > 0)


def score(measure, gap, hyperparameters, **options):
    """The score of one measure, as a float."""
    models = hyperparameters.assign(measure=np.asarray(measure), gap=np.asarray(gap))
    return float(conditional_information(models, ["measure"], list(hyperparameters), **options)[0])


def by_set(measure, gap, hyperparameters):
    """The share of every set, for a grid without repeats."""
    levels = {name: pd.factorize(values)[0] for name, values in hyperparameters.items()}
    found = information_by_set(np.asarray(measure, dtype=float)[:, None], np.asarray(gap, dtype=float)[:, None], levels)
    return {names: float(values[0, 0]) for names, values in found.items()}


def by_scikit_learn(measure, gap, hyperparameters):
    """On averaged repeats: information per cell of pairs by mutual_info_score, over all sets of at most two."""
    names = list(hyperparameters)
    # Rounded, because means that are equal differ by rounding otherwise.
    table = hyperparameters.assign(measure=measure, gap=gap).groupby(names, as_index=False).mean().round({"measure": 9, "gap": 9})
    first, second = np.nonzero(~np.eye(len(table), dtype=bool))
    pairs = pd.DataFrame({f"{name} {side}": table[name].to_numpy()[rows] for name in names for side, rows in (("a", first), ("b", second))})
    for name in ("gap", "measure"):
        pairs[name + " larger"] = table[name].to_numpy()[first] > table[name].to_numpy()[second]
    scores = {}
    for chosen in (chosen for size in range(3) for chosen in itertools.combinations(names, size)):
        by = [f"{name} {side}" for name in chosen for side in "ab"]
        cells = [cell for _, cell in pairs.groupby(by)] if by else [pairs]
        mean = [
            np.mean([sklearn.metrics.mutual_info_score(cell["gap larger"], cell[other]) for cell in cells])
            for other in ("measure larger", "gap larger")
        ]
        scores[chosen] = mean[0] / mean[1] if mean[1] > 1e-12 else np.nan
    return scores


def test_by_hand_with_one_swap():
    # Of the six ordered pairs 2 are larger in both, 1 only in the gap, 1 only in the measure: I = 1 - H(1/3), and H = 1.
    found = by_set([1, 3, 2], [1, 2, 3], pd.DataFrame({"width": [1, 2, 3]}))
    assert found[()] == pytest.approx(1 - entropy([1 / 3, 2 / 3]), abs=1e-12)
    # Once both widths are known there is one pair at most in a cell, whose outcome is certain.
    assert np.isnan(found["width",])
    assert score([1, 3, 2], [1, 2, 3], pd.DataFrame({"width": [1, 2, 3]})) == found[()]


@pytest.mark.parametrize("decimals", [1, 6])
def test_it_equals_scikit_learns_information_with_repeats_and_holes(decimals):
    rng = np.random.default_rng(4)
    hyperparameters = grid().iloc[rng.integers(36, size=70)].reset_index(drop=True)
    assert 25 < len(hyperparameters.drop_duplicates()) < 36
    measure, gap = rng.normal(size=(2, 70)).round(decimals)
    measure += 2 * gap
    expected = by_scikit_learn(measure, gap, hyperparameters)
    assert score(measure, gap, hyperparameters) == pytest.approx(np.nanmin(list(expected.values())), rel=0, abs=1e-9)
    whole = grid()
    measure, gap = rng.normal(size=(2, 36)).round(decimals)
    assert by_set(measure, gap, whole) == pytest.approx(by_scikit_learn(measure, gap, whole), rel=0, abs=1e-9, nan_ok=True)


def test_perfect_reversed_and_random_measures_score_as_known():
    rng = np.random.default_rng(0)
    gap = rng.normal(size=36)
    assert score(gap, gap, grid()) == pytest.approx(1, abs=1e-12)
    assert score(-gap, gap, grid()) == pytest.approx(1, abs=1e-12)
    names = [f"noise {number}" for number in range(30)]
    noise = pd.DataFrame(rng.normal(size=(36, 30)), columns=names)
    assert 0 <= conditional_information(grid().assign(gap=gap).join(noise), names, list(AXES)).mean() < 0.05


def test_only_the_order_of_the_values_counts_and_neither_rows_nor_level_names():
    measure, gap = np.random.default_rng(1).normal(size=(2, 36))
    order = np.random.default_rng(2).permutation(36)
    renamed = grid().assign(optimizer=grid()["optimizer"].map({"adam": 7, "sgd": 1})).iloc[order].reset_index(drop=True)
    assert by_set(np.exp(3 * measure[order]), gap[order] ** 3, renamed) == pytest.approx(by_set(measure, gap, grid()), abs=1e-12)


def test_a_measure_that_echoes_one_hyperparameter_scores_nothing_once_that_is_known():
    gap = grid()["learning_rate"].to_numpy() + 0.001 * np.random.default_rng(0).normal(size=36)
    found = by_set(grid()["learning_rate"], gap, grid())
    assert found[()] > 0.3
    assert found["learning_rate",] == score(grid()["learning_rate"], gap, grid()) == 0


def test_floats_that_are_close_are_one_level_and_an_axis_of_one_level_is_left_out():
    measure, gap = np.random.default_rng(6).normal(size=(2, 36))
    close = grid().assign(learning_rate=grid()["learning_rate"] * (1 + 1e-14 * np.arange(36)), width=1.0)
    assert close["learning_rate"].nunique() > 3
    assert score(measure, gap, close) == score(measure, gap, grid())


def test_repeats_that_are_constant_have_no_order_through_rounding():
    hyperparameters = grid().loc[np.repeat(np.arange(36), 1 + np.arange(36) % 3)].reset_index(drop=True)
    gap = np.random.default_rng(7).normal(size=len(hyperparameters))
    assert score(np.full(len(gap), 0.1), gap, hyperparameters) == 0


def test_undefined_scores_are_nan():
    values = np.arange(36.0)
    for gap in (np.ones(36), np.full(36, np.nan)):
        assert np.isnan(score(values, gap, grid()))
    assert np.isnan(score([], [], pd.DataFrame({"a": []})))
    assert np.isnan(score([1], [1], pd.DataFrame({"a": [1], "b": [2]})))


def test_many_measures_and_many_gaps_equal_one_by_one_and_what_is_not_finite_is_left_out():
    rng = np.random.default_rng(8)
    models = pd.concat([grid(), grid()], ignore_index=True).assign(gap=0.0)
    names = list("wxyz")
    models[names] = rng.normal(size=(72, 4))
    models.loc[5, "x"], models.loc[[5, 9], "y"] = np.inf, np.nan
    gaps = rng.normal(size=(3, 72))
    gaps[:, 70] = np.nan
    found = conditional_information(models, names, list(AXES), gaps)
    for row, gap in zip(found, gaps, strict=True):
        for value, name in zip(row, names, strict=True):
            kept = np.isfinite(models[name]) & np.isfinite(gap)
            own = models[kept].reset_index(drop=True)
            assert value == pytest.approx(score(own[name], gap[kept], own[list(AXES)]), abs=1e-12)


def test_draws_do_not_depend_on_the_chunks_they_are_counted_in(monkeypatch):
    rng = np.random.default_rng(9)
    models, gaps = grid().assign(gap=0.0, m=rng.normal(size=36)), rng.normal(size=(7, 36))
    whole = conditional_information(models, ["m"], list(AXES), gaps)
    monkeypatch.setattr(statistics_information, "_PAIRS_AT_ONCE", 1)
    np.testing.assert_array_equal(conditional_information(models, ["m"], list(AXES), gaps), whole)


def test_large_grids_are_sampled_with_a_seed(monkeypatch):
    gap = np.random.default_rng(9).normal(size=36)
    measure = gap + np.random.default_rng(10).normal(size=36)
    full = score(measure, gap, grid())
    monkeypatch.setattr(statistics_information, "CELL_LIMIT", 24)
    first, again, other = (score(measure, gap, grid(), seed=seed) for seed in (0, 0, 1))
    assert first == again != other
    assert first != full
    assert score(gap, gap, grid()) == pytest.approx(1, abs=1e-12)


def test_absent_columns_and_missing_hyperparameters_are_refused():
    models = grid().assign(gap=0.0, good=0.0)
    with pytest.raises(ValueError, match="no column depth, best"):
        conditional_information(models, ["best"], ["depth"])
    with pytest.raises(ValueError, match=re.escape("hyperparameter 'a' has 36 missing values")):
        conditional_information(models.assign(a=None), ["good"], ["a"])
