"""Permutations and p-values against enumeration, refits and scipy."""

import itertools

import numpy as np
import pytest
import scipy.stats

from helpers.statistics import correlate as c
from helpers.statistics import permutation as p
from tests.statistics.test_correlate import GIVEN, RANDOM, X, Y, left_over


def test_units_change_places_as_a_whole_and_only_with_those_of_their_size():
    names = np.array(["a", "b", "a", "c", "c", "d", "b", "e", "e", "e"])
    rows = p.permuted_rows(names, 400, seed=1, exact_up_to=0)
    assert (np.sort(rows, axis=1) == np.arange(10)).all()
    assert (rows[:, [5, 7, 8, 9]] == [5, 7, 8, 9]).all()  # alone of their size
    places = ([0, 2], [1, 6], [3, 4])
    pairs = {tuple(row[place]) for row in rows for place in places}
    assert pairs == {(0, 2), (1, 6), (3, 4)}  # in their order
    orders = [tuple(row[[0, 1, 3]]) for row in rows]
    assert set(orders) == set(itertools.permutations([0, 1, 3]))
    counts = [orders.count(order) for order in set(orders)]
    assert scipy.stats.chisquare(counts).pvalue > 0.001
    assert (rows != p.permuted_rows(names, 400, 2, exact_up_to=0)).any()
    assert p.permuted_rows([], 3).shape == (0, 0)


def test_few_arrangements_are_enumerated_but_for_the_observed_one():
    """Three units of two models and two of one, in two groups."""
    names = list("aabbccde")
    groups = [0] * 6 + [1] * 2
    rows = p.permuted_rows(names, 4, within=groups)
    expected = [
        (*itertools.chain(*order), *singles)
        for order in itertools.permutations([[0, 1], [2, 3], [4, 5]])
        for singles in ([6, 7], [7, 6])
    ]
    assert len(rows) == 11 and {tuple(row) for row in rows} == set(expected[1:])
    limited = p.permuted_rows(names, 4, within=groups, exact_up_to=11)
    assert limited.shape == (4, 8)  # one arrangement too many: random ones


@pytest.mark.parametrize(
    ("statistic", "oracle"),
    [(c.pearson, scipy.stats.pearsonr), (c.kendall, scipy.stats.kendalltau)],
)
def test_p_is_the_share_of_all_permutations_ties_included(statistic, oracle):
    x = np.array([1.0, 2, 3, 4, 5, 5])  # equal values make equal r
    y = np.array([2.0, 1, 4, 3, 6, 5])
    permuted = [y[[*order]] for order in itertools.permutations(range(6))]
    values = np.array([oracle(x, other).statistic for other in permuted])
    away = np.abs(values - values.mean())
    rows = p.permuted_rows(range(6), 10)
    test = c.tested(x[:, None], y, rows, statistic=statistic)
    exact = (away >= away[0] - 1e-9).mean()
    assert test["p"][0] == pytest.approx(exact, abs=1e-12)
    assert test["null"][0] == pytest.approx(values.mean(), abs=1e-12)


def test_freedman_and_lane_is_refitting_each_permutation():
    x, y, given = X[:14, :3].copy(), Y[:14] + 3 * GIVEN[:14, 0], GIVEN[:14, :2]
    rows = p.permuted_rows(np.repeat(np.arange(7), 2), 60, seed=2, exact_up_to=0)
    rest = left_over(y, given)
    targets = [y, *(y - rest + rest[row] for row in rows)]
    left, targets = left_over(x, given), left_over(np.transpose(targets), given)
    r = np.corrcoef(targets.T, left.T)[:61, 61:]
    away = np.abs(r - r.mean(0))
    test = c.tested(x, y, rows, given=given)
    assert test["null"] == pytest.approx(r.mean(0), abs=1e-10)
    share = (away >= away[0] - 1e-9).mean(0)
    assert test["p"] == pytest.approx(share, abs=1e-12)


def test_p_is_never_0_and_the_family_is_judged_by_its_maximum():
    null = [[0.1, 0.5], [0.2, 0.1], [0.3, 0.2], [np.nan, 0.1]]
    chance = p.against_chance(np.array([[0.9, 0.2], *null]))
    assert chance["p"].tolist() == [1 / 4, 3 / 5]
    chance = p.against_chance(np.array([[0.25, 0.9], *null]))
    assert chance["p_adjusted"].tolist() == [3 / 5, 1 / 5]
    # A measure that is undefined is not in the family.
    chance = p.against_chance(np.array([[0.25, np.nan], *null]))
    assert chance["p_adjusted"] == pytest.approx([2 / 4, np.nan], nan_ok=True)


@pytest.mark.parametrize("draws", [199, 4999])
def test_beyond_the_band_the_adjusted_p_is_below_5_percent_and_at_it_not(draws):
    scores = RANDOM.random((1 + draws, 4))
    limit = p.against_chance(scores)["band"]
    for factor, is_significant in ((1 + 1e-8, True), (1 - 1e-8, False)):
        scores[0] = limit * factor
        adjusted = p.against_chance(scores)["p_adjusted"][0]
        assert (adjusted < 0.05) == is_significant
    assert np.isnan(p.against_chance(scores[:11])["band"])


def test_holm_by_hand():
    adjusted = p.holm([0.01, 0.04, np.nan, 0.03, 0.005])
    expected = [0.03, 0.06, np.nan, 0.06, 0.02]
    assert adjusted == pytest.approx(expected, nan_ok=True)
    assert p.holm([0.6, 0.7]).tolist() == [1, 1] and p.holm([]).size == 0


def test_flipped_signs_by_hand_and_against_scipy():
    # Sums of the groups 3, 2 and -1: of eight choices of signs 4 (as it is) and 6
    # reach 4.
    values = np.array([1.0, 2, 2, -1, np.nan])[:, None]
    assert p.sign_flip_p(values, list("aabcb"))[0] == 2 / 8
    assert p.sign_flip_p(-values, list("aabcb"))[0] == 7 / 8  # one side: at least -4
    none = p.sign_flip_p(np.array([[0, np.nan]] * 4), list("abcd"))
    assert none == pytest.approx([1, np.nan], nan_ok=True)
    many = np.random.default_rng(8).normal(0.3, 1, size=(40, 2))
    options = {"permutation_type": "samples", "alternative": "greater"}
    options |= {"n_resamples": 20_000, "random_state": 0, "vectorized": True}
    expected = scipy.stats.permutation_test((many,), np.mean, axis=0, **options)
    share = p.sign_flip_p(many, np.arange(40))
    assert share == pytest.approx(expected.pvalue, abs=0.015)
