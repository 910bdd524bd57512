import itertools

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from helpers.statistics.correlations import (
    design,
    gamma,
    kendall,
    pair_counts,
    partial_correlation,
)

RANDOM = np.random.default_rng(3)
N, M, B = 24, 5, 7
X, Y, GIVEN = (
    RANDOM.normal(size=(N, M)),
    RANDOM.normal(size=N),
    RANDOM.normal(size=(N, 3)),
)
WEIGHTS = RANDOM.integers(4, size=(B, N)).astype(float)
STATISTICS = {
    "r": partial_correlation,
    "given": lambda x, y, weights=None, given=GIVEN: partial_correlation(
        x, y, given, weights
    ),
    "tau": kendall,
    "gamma": gamma,
}


def test_pearson_and_partial_correlation_agree_with_scipy_and_with_residuals_and_with_the_inverse_covariance():
    assert partial_correlation(X, Y) == pytest.approx(
        [scipy.stats.pearsonr(column, Y).statistic for column in X.T], abs=1e-12
    )
    found, columns = (
        partial_correlation(X, Y, GIVEN),
        np.column_stack([np.ones(N), GIVEN]),
    )
    left = [
        values - columns @ np.linalg.lstsq(columns, values)[0] for values in (Y, *X.T)
    ]
    assert found == pytest.approx(
        [scipy.stats.pearsonr(left[0], values).statistic for values in left[1:]],
        abs=1e-12,
    )
    inverse = np.linalg.inv(np.cov(np.column_stack([X[:, 0], Y, GIVEN]).T))
    assert found[0] == pytest.approx(
        -inverse[0, 1] / np.sqrt(inverse[0, 0] * inverse[1, 1]), abs=1e-12
    )


@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.parametrize("ties", [False, True])
def test_weights_are_repeated_rows(name, ties):
    x, y = (np.round(X), np.round(2 * Y)) if ties else (X, Y)
    drawn = STATISTICS[name](x, y, weights=WEIGHTS)
    in_every_draw = STATISTICS[name](
        np.repeat(x[None], B, 0), np.repeat(y[None], B, 0), weights=WEIGHTS
    )
    for draw, weights in enumerate(WEIGHTS.astype(int)):
        rows = np.repeat(np.arange(N), weights)
        more = {"given": GIVEN[rows]} if name == "given" else {}
        expected = STATISTICS[name](x[rows], y[rows], **more)
        assert drawn[draw] == pytest.approx(expected, abs=1e-9)
        assert in_every_draw[draw] == pytest.approx(expected, abs=1e-9)


def test_tau_and_gamma_agree_with_counting_by_hand():
    x, y = np.round(X[:, 0]), np.round(Y)
    signs = [
        (np.sign(x[i] - x[j]), np.sign(y[i] - y[j]))
        for i, j in itertools.combinations(range(N), 2)
    ]
    signed, unequal = sum(a * b for a, b in signs), sum(a * b != 0 for a, b in signs)
    differ = [sum(pair[side] != 0 for pair in signs) for side in (0, 1)]
    assert pair_counts(x, y)[:, 0].tolist() == [signed, *differ, unequal]
    assert gamma(x, y)[0] == pytest.approx(signed / unequal)
    assert kendall(x, y)[0] == pytest.approx(scipy.stats.kendalltau(x, y).statistic)


@pytest.mark.parametrize("name", STATISTICS)
def test_missing_values_leave_models_out_for_that_measure_alone(name):
    x, y = X.copy(), Y.copy()
    x[2, 1], x[5:9, 3], x[7, 2], y[0] = np.nan, np.nan, np.inf, np.nan
    for column in range(M):
        kept = np.isfinite(x[:, column]) & np.isfinite(y)
        more = {"given": GIVEN[kept]} if name == "given" else {}
        alone = STATISTICS[name](
            x[kept, column], y[kept], weights=WEIGHTS[:, kept], **more
        )[:, 0]
        assert STATISTICS[name](x, y, weights=WEIGHTS)[:, column] == pytest.approx(
            alone, abs=1e-9
        )
        every = STATISTICS[name](np.repeat(x[None], B, 0), y, weights=WEIGHTS)
        assert every[:, column] == pytest.approx(alone, abs=1e-9)
    if name in ("tau", "gamma"):  # a target that one draw lacks is left out of all
        some, rest = np.repeat(Y[None], B, 0), np.delete(np.arange(N), 4)
        some[2, 4] = np.nan
        assert STATISTICS[name](X, some, weights=WEIGHTS) == pytest.approx(
            STATISTICS[name](X[rest], Y[rest], weights=WEIGHTS[:, rest])
        )


def test_what_is_given_can_be_added_to_both_without_a_change_and_a_level_may_be_missing_from_a_draw():
    moved = partial_correlation(
        X + 1e3 * GIVEN[:, :1], Y - 5e3 * GIVEN[:, 1], GIVEN, WEIGHTS
    )
    assert moved == pytest.approx(partial_correlation(X, Y, GIVEN, WEIGHTS), abs=1e-8)
    levels = design(pd.DataFrame({"a": np.arange(N) % 4}), ["a"])
    weights = np.where(np.arange(N) % 4 == 1, 0, 1.0)[None]
    kept = weights[0] > 0
    expected = partial_correlation(X[kept], Y[kept], levels[kept])
    assert partial_correlation(X, Y, levels, weights)[0] == pytest.approx(
        expected, abs=1e-9
    )


def test_scale_does_not_matter_and_the_undefined_is_nan():
    constant, one_model = np.full((N, 1), 0.1), 9 * np.eye(N)[[3]]
    for name, statistic in STATISTICS.items():
        assert statistic(1e200 * X, 1e-200 * Y) == pytest.approx(
            statistic(X, Y), abs=1e-9
        ), name
        assert (
            np.isnan(statistic(constant, Y)).all()
            and np.isnan(statistic(constant, Y, weights=WEIGHTS)).all()
        )
        assert (
            np.isnan(statistic(X, constant[:, 0], weights=WEIGHTS)).all()
            and np.isnan(statistic(X, Y, weights=one_model)).all()
        )
    assert np.isnan(partial_correlation(GIVEN[:, 0] * 2 + 1, Y, GIVEN)).all()
    assert np.isnan(partial_correlation(X[:4], Y[:4], GIVEN[:4])).all()
    assert np.isfinite(partial_correlation(X[:6], Y[:6], GIVEN[:6])).all()
    assert partial_correlation(X[:3], X[:3, 0])[0] == pytest.approx(1)


def test_design_has_an_indicator_of_each_level_but_the_first():
    models = pd.DataFrame(
        {
            "rate": [0.3, 0.3, 0.1, 0.1],
            "name": list("abca"),
            "accuracy": [1.0, 2.0, 3.0, 6.0],
        }
    )
    columns = design(models, ["rate", "name"], ["accuracy"])
    assert columns[:, :3].tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 1], [0, 0, 0]]
    assert (columns[:, 3].mean(), columns[:, 3].std()) == pytest.approx((0, 1))
    assert design(models).shape == (4, 0)


def test_without_a_degree_of_freedom_there_is_no_correlation():
    """Two points lie on a line, and so do three once a line is taken out."""
    x, y, z = np.array([[1.0, 2, 4, 3], [3.0, 5, 1, 9], [2.0, 7, 1, 8]])
    assert np.isnan(partial_correlation(x[:2], y[:2])).all()
    assert np.isfinite(partial_correlation(x[:3], y[:3])).all()
    assert np.isnan(partial_correlation(x[:3], y[:3], z[:3, None])).all()
    assert np.isfinite(partial_correlation(x, y, z[:, None])).all()
