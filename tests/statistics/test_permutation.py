import itertools

import numpy as np
import pytest
import scipy.stats

from helpers.statistics import permutation
from helpers.statistics.correlations import kendall, partial_correlation

RANDOM = np.random.default_rng(8)


def test_configurations_change_places_as_a_whole_and_only_with_those_of_their_size():
    names = np.array(["a", "b", "a", "c", "c", "d", "b", "e", "e", "e"])
    rows = permutation.permuted_rows(names, 400, seed=1, exact_up_to=0)
    assert (np.sort(rows, axis=1) == np.arange(10)).all()
    assert (
        rows[:, [5, 7, 8, 9]] == [5, 7, 8, 9]
    ).all()  # the only ones of one and of three models
    assert {
        tuple(row[places]) for row in rows for places in ([0, 2], [1, 6], [3, 4])
    } == {(0, 2), (1, 6), (3, 4)}  # in their order
    orders = [tuple(row[[0, 1, 3]]) for row in rows]
    assert set(orders) == set(itertools.permutations([0, 1, 3]))
    assert (
        scipy.stats.chisquare([orders.count(order) for order in set(orders)]).pvalue
        > 0.001
    )
    assert permutation.permuted_rows(names, 0).shape == (
        0,
        10,
    ) and permutation.permuted_rows([], 3).shape == (0, 0)
    for seed in (1, 2):
        again = permutation.permuted_rows(names, 400, seed, exact_up_to=0)
        assert (rows == again).all() == (seed == 1)


def test_configurations_stay_within_their_group():
    names, groups = np.repeat(np.arange(10), 2), np.repeat([0, 1, 1, 0, 2], 4)
    rows = permutation.permuted_rows(names, 500, seed=1, within=groups)
    assert (groups[rows] == groups).all() and (
        names[rows][:, ::2] == names[rows][:, 1::2]
    ).all()
    assert {tuple(row) for row in names[rows][:, [0, 2, 12, 14]]} == set(
        itertools.permutations([0, 1, 6, 7])
    )


def test_p_agrees_with_all_permutations_of_a_small_set():
    x, y = RANDOM.normal(size=(2, 6))
    rows = np.array(list(itertools.permutations(range(6))))
    null = np.abs(permutation.null_partial_correlation(x, y, rows))[:, 0]
    assert null == pytest.approx(
        [abs(np.corrcoef(x, y[list(row)])[0, 1]) for row in rows]
    )
    assert kendall(x, y[rows])[:, 0] == pytest.approx(
        [scipy.stats.kendalltau(x, y[list(row)]).statistic for row in rows]
    )
    exact = (null >= abs(np.corrcoef(x, y)[0, 1]) - 1e-12).mean()
    observed = np.abs(partial_correlation(x, y))
    for exact_up_to, error in ((0, 0.015), (720, 1e-12)):
        rows = permutation.permuted_rows(np.arange(6), 20_000, exact_up_to=exact_up_to)
        null = np.abs(permutation.null_partial_correlation(x, y, rows))
        p = permutation.p_values(observed, null)[0]
        assert p == pytest.approx(exact, abs=error)


def test_few_arrangements_are_enumerated_but_for_the_observed_one():
    """Three configurations of two models and two of one, in two groups."""
    names = list("aabbccde")
    groups = [0] * 6 + [1] * 2
    rows = permutation.permuted_rows(names, 4, within=groups)
    expected = []
    for order in itertools.permutations([[0, 1], [2, 3], [4, 5]]):
        for singles in ([6, 7], [7, 6]):
            expected.append((*itertools.chain(*order), *singles))
    assert len(rows) == 11 and {tuple(row) for row in rows} == set(expected[1:])
    assert rows.dtype == np.int32
    limited = permutation.permuted_rows(names, 4, within=groups, exact_up_to=11)
    assert limited.shape == (4, 8)  # one arrangement too many: random ones
    alone = permutation.permuted_rows(["a", "b", "b"], 4)  # nothing can change places
    assert alone.shape == (0, 3)
    values = np.array([0.3, 0.1, 0.2])
    null = permutation.null_partial_correlation(values, values, alone)
    assert permutation.p_values([1.0], np.abs(null)) == [1.0]


def test_the_centre_of_the_null_holds_the_observed_arrangement():
    null = np.array([[0.1, np.nan], [0.4, np.nan]])
    centre = permutation.null_centre([0.7, np.nan], null)
    assert centre == pytest.approx([0.4, np.nan], nan_ok=True)


def test_freedman_and_lane_agrees_with_refitting_every_permutation():
    x, y, given = (
        RANDOM.normal(size=(14, 3)),
        RANDOM.normal(size=14),
        RANDOM.normal(size=(14, 2)),
    )
    x[3, 1] = np.nan
    y += 3 * given[:, 0]
    rows = permutation.permuted_rows(
        np.repeat(np.arange(7), 2), 60, seed=2, exact_up_to=0
    )
    columns = np.column_stack([np.ones(14), given])
    fitted = columns @ np.linalg.lstsq(columns, y)[0]
    expected = np.stack(
        [partial_correlation(x, fitted + (y - fitted)[row], given) for row in rows]
    )
    assert permutation.null_partial_correlation(x, y, rows, given) == pytest.approx(
        expected, abs=1e-10
    )
    with pytest.raises(ValueError, match="1 models have no target"):
        permutation.null_partial_correlation(
            x, np.where(np.arange(14) == 1, np.nan, y), rows
        )


def test_p_is_never_0_and_the_family_is_judged_by_its_maximum():
    null = np.array([[0.1, 0.5], [0.2, 0.1], [0.3, 0.2], [np.nan, 0.1]])
    assert permutation.p_values([0.9, 0.2], null).tolist() == [1 / 4, 3 / 5]
    assert permutation.adjusted_p_values([0.25, 0.9], null).tolist() == [3 / 5, 1 / 5]
    assert np.isnan(permutation.adjusted_p_values([np.nan, 0.9], null)).tolist() == [
        True,
        False,
    ]
    # A measure that is undefined is not in the family, and one more measure raises the p of the others.
    assert permutation.adjusted_p_values([0.25, np.nan], null).tolist()[
        0
    ] == pytest.approx(2 / 4)


@pytest.mark.parametrize("draws", [199, 999, 4999])
def test_beyond_the_band_the_adjusted_p_is_below_5_percent_and_at_it_not(draws):
    null = RANDOM.random((draws, 4))
    above, below = (
        [permutation.band(null) * factor] * 4 for factor in (1 + 1e-8, 1 - 1e-8)
    )
    assert (
        permutation.adjusted_p_values(above, null)[0]
        < 0.05
        <= permutation.adjusted_p_values(below, null)[0]
    )
    assert np.isnan(permutation.band(null[:10]))


def test_holm_by_hand():
    assert permutation.holm([0.01, 0.04, np.nan, 0.03, 0.005]) == pytest.approx(
        [0.03, 0.06, np.nan, 0.06, 0.02], nan_ok=True
    )
    assert (
        permutation.holm([0.6, 0.7]).tolist() == [1, 1]
        and permutation.holm([]).size == 0
    )


def test_flipped_signs_by_hand_and_against_scipy():
    # Sums of the groups 3, 2 and -1: of eight choices of signs 4 (as it is), 6 and no other reach 4.
    values = np.array([1.0, 2, 2, -1, np.nan])[:, None]
    assert permutation.sign_flip_p(values, list("aabcb"))[0] == 2 / 8
    assert (
        permutation.sign_flip_p(-values, list("aabcb"))[0] == 7 / 8
    )  # one side: at least -4
    assert permutation.sign_flip_p(
        np.array([[0, np.nan]] * 4), list("abcd")
    ) == pytest.approx([1, np.nan], nan_ok=True)
    many = np.random.default_rng(8).normal(0.3, 1, size=(40, 2))
    of_seeds = [
        permutation.sign_flip_p(many, np.arange(40), flips=99, seed=seed).tolist()
        for seed in range(4)
    ]
    assert len(set(map(tuple, of_seeds))) > 1
    options = {
        "permutation_type": "samples",
        "alternative": "greater",
        "n_resamples": 20_000,
        "random_state": 0,  # else p-values near 0.4 differ by over 0.01 in one of 30 runs
    }
    expected = [
        scipy.stats.permutation_test((column,), np.mean, **options).pvalue
        for column in many.T
    ]
    assert permutation.sign_flip_p(many, np.arange(40), flips=20_000) == pytest.approx(
        expected, abs=0.01
    )
