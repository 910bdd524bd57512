"""Errors of held-out networks against scikit-learn's ridge."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from helpers.statistics.correlate import design
from helpers.statistics.held_out import held_out_errors, random_folds

RANDOM = np.random.default_rng(3)
KINDS = np.repeat(np.arange(5), 12)


def by_scikit_learn(known, gap, folds):
    ridge = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2, 4, 13)))
    options = {"groups": folds, "cv": LeaveOneGroupOut()}
    return 100 * np.abs(gap - cross_val_predict(ridge, known, gap, **options))


@pytest.mark.parametrize("columns", [1, 3, 20])
def test_errors_of_held_out_kinds_are_those_of_scikit_learns_ridge(columns):
    random = np.random.default_rng(columns)
    known = random.normal(size=(2, 60, columns))
    gap = (0.4 + 0.1 * known[0, :, 0] + 0.1 * random.normal(size=60)).clip(0, 1)
    known[..., 0] *= 1e9  # units do not matter
    folds = random_folds(np.arange(60) // 2, deals=3, seed=1)
    expected = [
        np.mean([by_scikit_learn(one, gap, deal) for deal in folds], axis=0)
        for one in known
    ]
    errors = held_out_errors(known, gap, folds)
    assert errors == pytest.approx(np.array(expected), rel=1e-6)


def test_a_column_that_varies_only_where_it_is_left_out_predicts_nothing():
    gap = RANDOM.uniform(0.2, 0.6, 60)
    levels = design(pd.DataFrame({"kind": KINDS}), ["kind"])
    errors = held_out_errors(levels, gap, KINDS)
    assert errors == pytest.approx(by_scikit_learn(levels, gap, KINDS), rel=1e-6)
    means = np.array([gap[kind != KINDS].mean() for kind in range(5)])
    alone = held_out_errors(np.empty((60, 0)), gap, KINDS)
    assert alone == pytest.approx(100 * np.abs(gap - means[KINDS]))


def test_a_prediction_is_no_farther_off_than_a_gap_can_be_and_of_two_folds_undefined():
    gap = RANDOM.uniform(0.2, 0.6, 60)
    norm = np.where(KINDS == 2, 1e200, gap * 1e160)[:, None]
    assert held_out_errors(norm, gap, KINDS).max() <= 200
    assert np.isnan(held_out_errors(norm, gap, KINDS // 3)).all()


def test_groups_are_dealt_whole_and_evenly():
    folds = random_folds(np.repeat(np.arange(23), 2), deals=9)
    assert (folds[:, ::2] == folds[:, 1::2]).all()
    assert len({tuple(deal) for deal in folds}) == 9
    assert {count for deal in folds for count in np.bincount(deal)} == {4, 6}
    assert set(random_folds(["a", "b", "b"], deals=2).ravel()) == {0, 1}
