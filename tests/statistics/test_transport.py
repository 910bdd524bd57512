"""Transport onto classes, by hand and against linear programming."""

import numpy as np
import pytest
from scipy.optimize import linprog

from helpers.statistics.transport import least_cost, quotas

RNG = np.random.default_rng(0)


def by_linear_programming(cost, quota):
    n, k = cost.shape
    once = np.vstack([np.kron(np.eye(n), np.ones(k)), np.kron(np.ones(n), np.eye(k))])
    return linprog(cost.ravel(), A_eq=once, b_eq=np.concatenate([np.ones(n), quota]), bounds=(0, None)).fun


def test_quotas_by_hand():
    assert quotas(np.array([0.5, 0.3, 0.2]), 10).tolist() == [5, 3, 2]
    assert quotas(np.array([0.4, 0.35, 0.25]), 7).tolist() == [3, 2, 2]  # 2.8, 2.45, 1.75
    assert quotas(np.array([1, 1, 1]) / 3, 10).tolist() == [4, 3, 3]
    assert quotas(np.array([0.15, 0.85]), 20).tolist() == [3, 17]


def test_quotas_stay_within_one_of_the_share_and_sum_up():
    for seed in range(20):
        shares = np.random.default_rng(seed).dirichlet(np.full(7, 0.3))
        counts = quotas(shares, 101)
        assert counts.sum() == 101
        assert (np.abs(counts - 101 * shares) < 1).all()


def test_the_cheapest_assignment_by_hand():
    cost = np.array([[0.1, 0.9], [0.2, 0.8], [0.3, 0.7]])
    assert least_cost(cost, np.array([2, 1])) == pytest.approx(0.1 + 0.2 + 0.7)
    assert least_cost(cost, np.array([0, 3])) == pytest.approx(2.4)


@pytest.mark.parametrize("sample", [5, 40, 1000])
@pytest.mark.parametrize("kind", ["generic", "ties", "one class missing"])
def test_the_least_cost_equals_that_of_linear_programming_from_any_sample(sample, kind):
    cost = RNG.random((60, 5)) * [1, 1, 0.3, 1, 1]
    if kind == "ties":
        cost = (cost * 3).round() / 3
    quota = np.array([20, 15, 0, 5, 20] if kind == "one class missing" else [12, 12, 12, 12, 12])
    assert least_cost(cost, quota, sample=sample) == pytest.approx(by_linear_programming(cost, quota), abs=1e-9)


def test_prices_of_a_sample_give_the_same_value_as_the_whole_assignment():
    logits = RNG.normal(size=(700, 8)) * 3 + RNG.normal(size=8)
    cost = 1 - np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    quota = quotas(RNG.dirichlet(np.ones(8)), 700)
    assert least_cost(cost, quota, sample=100) == pytest.approx(least_cost(cost, quota, sample=700), abs=1e-9)


def test_costs_shares_and_quotas_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="sum to 1"):
        quotas(np.array([0.5, 0.6]), 10)
    with pytest.raises(ValueError, match=r"quotas \[1, 1\] must be one per class, at least 0, and sum to the 3 images"):
        least_cost(np.zeros((3, 2)), np.array([1, 1]))
    with pytest.raises(ValueError, match="finite"):
        least_cost(np.full((2, 2), np.nan), np.array([1, 1]))
