import itertools

import numpy as np
import pytest
import scipy.stats

from helpers.statistics.correlations import kendall, partial_correlation
from helpers.statistics.permutation import (
    adjusted_p_values,
    band,
    from_centre,
    holm,
    null_kendall,
    null_partial_correlation,
    p_values,
    permuted_rows,
)

RANDOM = np.random.default_rng(8)


def test_cells_change_places_as_a_whole_and_only_with_cells_of_their_size():
    cells = np.array(["a", "b", "a", "c", "c", "d", "b", "e", "e", "e"])
    rows = permuted_rows(cells, 400, seed=1)
    assert (np.sort(rows, axis=1) == np.arange(10)).all()
    assert (rows[:, [5, 7, 8, 9]] == [5, 7, 8, 9]).all()  # the only cells of one and of three models
    pairs = {tuple(row[places]) for row in rows for places in ([0, 2], [1, 6], [3, 4])}
    assert pairs == {(0, 2), (1, 6), (3, 4)}  # in their order
    orders = [tuple(row[[0, 1, 3]]) for row in rows]
    assert set(orders) == set(itertools.permutations([0, 1, 3]))
    assert scipy.stats.chisquare([orders.count(order) for order in set(orders)]).pvalue > 0.001
    assert permuted_rows(cells, 0).shape == (0, 10)


def test_p_agrees_with_all_permutations_of_a_small_set():
    x, y = RANDOM.normal(size=(2, 6))
    rows = np.array(list(itertools.permutations(range(6))))
    null = np.abs(null_partial_correlation(x, y, rows))[:, 0]
    assert null == pytest.approx([abs(np.corrcoef(x, y[list(row)])[0, 1]) for row in rows])
    tau = null_kendall(x, y, rows)[:, 0]
    assert tau == pytest.approx([scipy.stats.kendalltau(x, y[list(row)]).statistic for row in rows])
    exact = (null >= abs(np.corrcoef(x, y)[0, 1]) - 1e-12).mean()
    drawn = np.abs(null_partial_correlation(x, y, permuted_rows(np.arange(6), 20_000)))
    assert p_values(np.abs(partial_correlation(x, y)), drawn)[0] == pytest.approx(exact, abs=0.015)


def test_distances_are_from_the_mean_of_the_null():
    null = np.array([[0.1, np.nan, np.nan], [0.3, 0.2, np.nan], [0.2, -0.4, np.nan]])
    size, away, centre = from_centre([0.5, -0.2, 0.1], null)
    assert centre == pytest.approx([0.2, -0.1, np.nan], nan_ok=True)
    assert size == pytest.approx([0.3, 0.1, np.nan], nan_ok=True)
    assert away[:, :2].ravel() == pytest.approx([0.1, np.nan, 0.1, 0.3, 0, 0.3], nan_ok=True)


def test_a_drift_within_runs_is_no_finding_and_hides_none():
    random, cells, late = np.random.default_rng(4), np.repeat(np.arange(30), 2), np.tile([-1.0, 1.0], 30)
    found, hidden, told = [], [], []
    for seed in range(200):
        gap, other = random.normal(size=(2, 30))[:, cells] + 0.2 * random.normal(size=(2, 60))
        x = np.column_stack([other + 2 * late, gap + 1.5 * random.normal(size=30)[cells]])
        null = null_partial_correlation(x, gap + late, permuted_rows(cells, 199, seed))
        observed = partial_correlation(x, gap + late)
        size, away, _ = from_centre(observed, null)
        found.append(p_values(size, away)[0] < 0.05)
        told.append(adjusted_p_values(size, away)[1] < 0.05)
        hidden.append(adjusted_p_values(np.abs(observed), np.abs(null))[1] < 0.05)
    assert 2 <= sum(found) <= 21  # of 200 at 5 %: binomial, outside with a chance below 0.2 %
    assert sum(told) > 2 * sum(hidden)


def test_freedman_and_lane_agrees_with_refitting_every_permutation():
    x, y, given = RANDOM.normal(size=(14, 3)), RANDOM.normal(size=14), RANDOM.normal(size=(14, 2))
    x[3, 1] = np.nan
    y += 3 * given[:, 0]
    rows = permuted_rows(np.repeat(np.arange(7), 2), 60, seed=2)
    columns = np.column_stack([np.ones(14), given])
    fitted = columns @ np.linalg.lstsq(columns, y)[0]
    expected = np.stack([partial_correlation(x, fitted + (y - fitted)[row], given) for row in rows])
    assert null_partial_correlation(x, y, rows, given) == pytest.approx(expected, abs=1e-10)
    identity = np.arange(14)[None]
    assert null_partial_correlation(x, y, identity, given)[0] == pytest.approx(partial_correlation(x, y, given), abs=1e-10)
    assert null_kendall(x, y, identity)[0] == pytest.approx(kendall(x, y))
    with pytest.raises(ValueError, match="1 models have no target"):
        null_partial_correlation(x, np.where(identity[0] == 1, np.nan, y), rows)


def test_p_is_never_0_and_the_family_is_judged_by_its_maximum():
    null = np.array([[0.1, 0.5], [0.2, 0.1], [0.3, 0.2], [np.nan, 0.1]])
    assert p_values([0.9, 0.2], null).tolist() == [1 / 4, 3 / 5]
    assert adjusted_p_values([0.25, 0.9], null).tolist() == [3 / 5, 1 / 5]
    assert np.isnan(adjusted_p_values([np.nan, 0.9], null)).tolist() == [True, False]
    # A measure that is undefined is not in the family, and one more measure raises the p of the others.
    assert adjusted_p_values([0.25, np.nan], null).tolist()[0] == pytest.approx(2 / 4)


@pytest.mark.parametrize("draws", [199, 999, 4999])
def test_beyond_the_band_the_adjusted_p_is_below_5_percent_and_at_it_not(draws):
    null = RANDOM.random((draws, 4))
    edge = band(null)
    above = np.nextafter(edge * (1 + 1e-8), 2)
    assert adjusted_p_values([above] * 4, null)[0] < 0.05 <= adjusted_p_values([edge * (1 - 1e-8)] * 4, null)[0]
    assert np.isnan(band(null[:10]))


def test_holm_by_hand():
    assert holm([0.01, 0.04, np.nan, 0.03, 0.005]) == pytest.approx([0.03, 0.06, np.nan, 0.06, 0.02], nan_ok=True)
    assert holm([0.6, 0.7]).tolist() == [1, 1]
    assert holm([]).size == 0
