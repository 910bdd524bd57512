import itertools
import re
from collections import Counter, defaultdict

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics

from helpers.statistics import information as statistics_information
from helpers.statistics.information import conditional_information_of_many, conditional_mutual_information, information_table, pgdl_score

AXES = {"batch_size": [32, 64, 128], "learning_rate": [0.1, 0.01, 0.001], "optimizer": ["adam", "sgd"], "pretrained": [False, True]}


def grid(axes=AXES):
    return pd.DataFrame(itertools.product(*axes.values()), columns=list(axes))


def entropy(shares):
    return -sum(p * np.log2(p) for p in shares if p > 0)


def by_loops_as_the_competition(measure, gap, hyperparameters):
    """Every ordered pair, self-pairs too, one at a time, with tuples for cells; then entropies from their definitions."""
    rows = list(hyperparameters.itertuples(index=False))
    scores = []
    for h, k in itertools.combinations(range(hyperparameters.shape[1]), 2):
        cells = defaultdict(Counter)
        for a, b in itertools.product(range(len(rows)), repeat=2):
            outcome = (bool(gap[a] > gap[b]), bool(measure[a] > measure[b]))
            cells[rows[a][h], rows[b][h], rows[a][k], rows[b][k]][outcome] += 1
        information, uncertainty = [], []
        for counts in cells.values():
            total = sum(counts.values())
            p_gap = [sum(n for (g, _), n in counts.items() if g == side) / total for side in (False, True)]
            p_measure = [sum(n for (_, m), n in counts.items() if m == side) / total for side in (False, True)]
            both = [n / total for n in counts.values()]
            information.append(entropy(p_gap) + entropy(p_measure) - entropy(both))
            uncertainty.append(-sum(p * np.log2(p + 1e-12) for p in p_gap))
        scores.append(np.mean(information) / np.mean(uncertainty))
    return scores


def by_scikit_learn(measure, gap, hyperparameters):
    """The default on averaged repeats: information per cell of pairs by mutual_info_score, over all sets of at most two."""
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
    record = conditional_mutual_information([1, 3, 2], [1, 2, 3], {"width": [1, 2, 3]})
    assert record.per_set[()] == pytest.approx(1 - entropy([1 / 3, 2 / 3]), abs=1e-12)
    # Once both widths are known there is one pair at most in a cell, whose outcome is certain.
    assert np.isnan(record.per_set["width",])
    assert record.score == record.per_set[()]
    assert record.empty_cells == 3
    assert record.kendall == pytest.approx(1 / 3)
    assert (record.n, record.dropped, record.cells, record.cells_used) == (3, 0, 3, 3)


@pytest.mark.parametrize("decimals", [1, 6])
def test_parity_equals_a_loop_over_all_pairs(decimals):
    hyperparameters = grid()
    measure, gap = np.random.default_rng(3).normal(size=(2, len(hyperparameters))).round(decimals)
    measure += gap
    record = conditional_mutual_information(measure, gap, hyperparameters, parity=True)
    expected = by_loops_as_the_competition(measure, gap, hyperparameters)
    assert list(record.per_set) == list(itertools.combinations(AXES, 2))
    np.testing.assert_allclose(list(record.per_set.values()), expected, rtol=0, atol=1e-12)
    assert 0.05 < record.score == min(record.per_set.values()) < 0.9
    assert record.empty_cells == 0
    assert pgdl_score(measure, gap, hyperparameters) == 100 * record.score


@pytest.mark.parametrize("decimals", [1, 6])
def test_default_equals_scikit_learns_information_with_repeats_and_holes(decimals):
    rng = np.random.default_rng(4)
    hyperparameters = grid().iloc[rng.integers(36, size=70)].reset_index(drop=True)
    assert 25 < len(hyperparameters.drop_duplicates()) < 36
    measure, gap = rng.normal(size=(2, 70)).round(decimals)
    measure += 2 * gap
    record = conditional_mutual_information(measure, gap, hyperparameters)
    expected = by_scikit_learn(measure, gap, hyperparameters)
    assert record.per_set == pytest.approx(expected, rel=0, abs=1e-9, nan_ok=True)
    assert record.score == np.nanmin(list(record.per_set.values()))
    assert record.cells == record.cells_used == len(hyperparameters.drop_duplicates())


def test_perfect_reversed_and_random_measures_score_as_known():
    hyperparameters = grid()
    rng = np.random.default_rng(0)
    gap = rng.normal(size=36)
    assert conditional_mutual_information(gap, gap, hyperparameters).score == pytest.approx(1, abs=1e-12)
    assert conditional_mutual_information(gap, gap, hyperparameters, parity=True).score == pytest.approx(1, abs=1e-9)
    assert conditional_mutual_information(-gap, gap, hyperparameters).score == pytest.approx(1, abs=1e-12)
    assert conditional_mutual_information(-gap, gap, hyperparameters).kendall == pytest.approx(-1)
    assert conditional_mutual_information(-gap, gap, hyperparameters, parity=True).score == pytest.approx(0.90, abs=0.03)
    noise = conditional_information_of_many(rng.normal(size=(36, 30)), gap, hyperparameters)
    assert 0 <= np.mean([record.score for record in noise]) < 0.05


def test_only_the_order_of_the_values_counts_and_neither_rows_nor_level_names():
    hyperparameters = grid()
    rng = np.random.default_rng(1)
    measure, gap = rng.normal(size=(2, 36))
    order = rng.permutation(36)
    renamed = hyperparameters.assign(optimizer=hyperparameters["optimizer"].map({"adam": 7, "sgd": 1})).iloc[order]
    for parity in (False, True):
        record = conditional_mutual_information(measure, gap, hyperparameters, parity=parity)
        other = conditional_mutual_information(np.exp(3 * measure[order]), gap[order] ** 3, renamed, parity=parity)
        assert record.per_set == pytest.approx(other.per_set, abs=1e-12)


def test_a_measure_that_echoes_one_hyperparameter_scores_nothing_once_that_is_known():
    hyperparameters = grid()
    gap = hyperparameters["learning_rate"].to_numpy() + 0.001 * np.random.default_rng(0).normal(size=36)
    record = conditional_mutual_information(hyperparameters["learning_rate"], gap, hyperparameters)
    assert record.per_set[()] > 0.3
    assert record.per_set["learning_rate",] == record.score == 0


def test_levels_11_and_1_with_1_are_not_the_same_cell():
    hyperparameters = grid({"a": [1, 11], "b": [1, 11], "c": [0, 1, 2]})
    measure, gap = np.random.default_rng(5).normal(size=(2, 12))
    record = conditional_mutual_information(measure, gap, hyperparameters, parity=True)
    np.testing.assert_allclose(list(record.per_set.values()), by_loops_as_the_competition(measure, gap, hyperparameters), atol=1e-12)


def test_floats_that_are_close_are_one_level_and_an_axis_of_one_level_is_left_out():
    hyperparameters = grid()
    measure, gap = np.random.default_rng(6).normal(size=(2, 36))
    close = hyperparameters.assign(learning_rate=hyperparameters["learning_rate"] * (1 + 1e-14 * np.arange(36)), width=1.0)
    assert close["learning_rate"].nunique() > 3
    for parity in (False, True):
        expected, found = (conditional_mutual_information(measure, gap, table, parity=parity) for table in (hyperparameters, close))
        assert expected == found


def test_repeats_that_are_constant_have_no_order_through_rounding():
    hyperparameters = grid().loc[np.repeat(np.arange(36), 1 + np.arange(36) % 3)]
    gap = np.random.default_rng(7).normal(size=len(hyperparameters))
    assert conditional_mutual_information(np.full(len(gap), 0.1), gap, hyperparameters).score == 0


def test_undefined_scores_are_nan():
    hyperparameters = grid()
    values = np.arange(36.0)
    assert np.isnan(conditional_mutual_information(values, np.ones(36), hyperparameters).score)
    assert np.isnan(conditional_mutual_information(values, np.full(36, np.nan), hyperparameters).score)
    assert np.isnan(conditional_mutual_information([], [], {"a": []}).score)
    assert np.isnan(conditional_mutual_information([1], [1], {"a": [1], "b": [2]}).score)
    assert np.isnan(pgdl_score([1, 2], [1, 2], {"a": [1, 2], "b": [1, 1]}))  # fewer than two hyperparameters
    assert conditional_mutual_information(values, np.ones(36), hyperparameters, parity=True).score == 0  # as the competition has it


def test_parity_with_an_empty_cell_is_nan():
    axes = {"a": [1, 2], "b": [1, 2]}
    measure = [1, 2, 3, np.nan]
    record = conditional_mutual_information(measure, [1, 3, 2, 4], grid(axes), parity=True)
    assert np.isnan(record.score)
    assert (record.n, record.dropped, record.empty_cells) == (3, 1, 16 - 9)


def test_many_equal_one_by_one_and_what_is_not_finite_is_left_out_and_counted():
    rng = np.random.default_rng(8)
    hyperparameters = pd.concat([grid(), grid()], ignore_index=True)
    measures, gap = rng.normal(size=(72, 4)), rng.normal(size=72)
    measures[5, 1], measures[[5, 9], 2], gap[70] = np.inf, np.nan, np.nan
    records = conditional_information_of_many(measures, gap, hyperparameters)
    assert [record.dropped for record in records] == [1, 2, 3, 1]
    for column, record in zip(measures.T, records, strict=True):
        kept = np.isfinite(column) & np.isfinite(gap)
        alone = conditional_mutual_information(column[kept], gap[kept], hyperparameters[kept])
        assert record == alone._replace(dropped=record.dropped)


def test_large_grids_are_sampled_with_a_seed(monkeypatch):
    gap = np.random.default_rng(9).normal(size=36)
    measure = gap + np.random.default_rng(10).normal(size=36)
    full = conditional_mutual_information(measure, gap, grid())
    monkeypatch.setattr(statistics_information, "CELL_LIMIT", 24)
    records = [conditional_mutual_information(measure, gap, grid(), seed=seed) for seed in (0, 0, 1)]
    assert records[0] == records[1] != records[2]
    assert all((record.cells, record.cells_used, record.n) == (36, 24, 36) for record in records)
    assert records[0] != full
    assert conditional_mutual_information(gap, gap, grid()).score == pytest.approx(1, abs=1e-12)


def test_table_signs_the_rank_correlation_by_direction():
    catalogue = grid().assign(gap=np.random.default_rng(11).normal(size=36))
    catalogue["good"], catalogue["norm"] = -catalogue["gap"], catalogue["gap"].where(catalogue["optimizer"] == "sgd", -catalogue["gap"])
    table = information_table(catalogue, {"good": 1, "norm": -1}, list(AXES)).set_index("measure")
    assert table.loc["good", "kendall"] == pytest.approx(1)
    assert table.loc["good", "score"] == pytest.approx(1, abs=1e-12)
    record = conditional_mutual_information(catalogue["norm"], catalogue["gap"], catalogue[list(AXES)])
    assert table.loc["norm", "kendall"] == record.kendall
    assert record.per_set[tuple(name for name in table.loc["norm", "limiting_set"].split(" + ") if name)] == record.score


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1]], [1], {"a": [1]}), "measure needs one value per model, got shape (1, 1)"),
        (([1, 2], [1], {"a": [1]}), "got shapes (2, 1) and (1,)"),
        (([1, 2], [1, 2], {"a": [1]}), "hyperparameter 'a' needs one value per model, got shape (1,) for 2 models"),
        (([1, 2], [1, 2], {"a": ["x", None]}), "hyperparameter 'a' has 1 missing values"),
    ],
)
def test_bad_arrays_are_refused(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        conditional_mutual_information(*arguments)


def test_parity_refuses_holes_and_repeats():
    for rows, message in ((range(35), "35 models in 35 of 36 cells"), ([*range(36), 0], "37 models in 36 of 36 cells")):
        with pytest.raises(ValueError, match=message):
            pgdl_score(np.ones(len(rows)), np.ones(len(rows)), grid().iloc[list(rows)])


def test_table_refuses_absent_columns_and_odd_directions():
    catalogue = grid().assign(gap=0.0, good=0.0)
    with pytest.raises(ValueError, match="no column depth, best"):
        information_table(catalogue, {"best": 1}, ["depth"])
    with pytest.raises(ValueError, match=re.escape("directions {'good': 0} must be +1")):
        information_table(catalogue, {"good": 0}, list(AXES))
