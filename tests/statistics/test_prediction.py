import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from helpers.statistics.bootstrap import CONFIGURATION, Bootstrap
from helpers.statistics.correlations import design
from helpers.statistics.permutation import sign_flip_p
from helpers.statistics.prediction import (
    FIT,
    Rivalry,
    folds_of,
    held_out_errors,
    known_in_advance,
    random_folds,
    saved_errors,
    with_log_train_loss,
)

KINDS = np.repeat(np.arange(5), 12)


def models(seed=0):
    """Five kinds of training of six configurations with two repeats; the gap follows the fit, "adds", its kind and noise."""
    random = np.random.default_rng(seed)
    accuracy, adds, noise = (
        random.uniform(0.8, 1, 60),
        random.normal(size=60),
        random.normal(size=60),
    )
    gap = (
        0.3
        + 0.5 * (accuracy - 0.9)
        + 0.05 * adds
        + 0.02 * random.normal(size=5)[KINDS]
        + 0.01 * random.normal(size=60)
    )
    table = pd.DataFrame(
        {
            "kind": KINDS,
            "cell": np.arange(60) // 2,
            "rate": np.arange(60) % 3,
            "gap": gap,
            "adds": adds,
            "noise": noise,
        }
    )
    return with_log_train_loss(
        table.assign(
            train_accuracy=accuracy, train_loss=np.exp(-random.uniform(0, 3, 60))
        )
    )


def by_scikit_learn(known, gap, folds):
    ridge = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2, 4, 13)))
    return 100 * np.abs(
        gap - cross_val_predict(ridge, known, gap, groups=folds, cv=LeaveOneGroupOut())
    )


def test_errors_are_those_of_scikit_learns_ridge_for_one_and_many_columns_and_deals():
    table = models()
    known, gap = design(table, ["rate"], FIT), table["gap"].to_numpy()
    known[:, 0] *= 1e9  # units do not matter
    assert held_out_errors(known, gap, KINDS) == pytest.approx(
        by_scikit_learn(known, gap, KINDS), rel=1e-9
    )
    many = np.stack(
        [np.column_stack([known, table[name]]) for name in ("adds", "noise")]
    )
    folds = random_folds(table["cell"], 4, seed=1)
    expected = [
        np.mean([by_scikit_learn(columns, gap, dealt) for dealt in folds], axis=0)
        for columns in many
    ]
    assert held_out_errors(many, gap, folds) == pytest.approx(
        np.array(expected), rel=1e-9
    )


def test_a_column_that_varies_only_where_it_is_left_out_predicts_nothing():
    """Left out, a kind has levels that no other has: their columns are constant among the models fitted to, at 0 or at 1."""
    table = models()
    known = np.column_stack([design(table, ["kind"]), KINDS != 2, table["adds"]])
    assert held_out_errors(known, table["gap"], KINDS) == pytest.approx(
        by_scikit_learn(known, table["gap"], KINDS), rel=1e-6
    )


def test_no_column_predicts_the_mean_of_the_others_and_the_gap_itself_errs_by_nothing():
    gap = models()["gap"].to_numpy()
    means = np.array([gap[kind != KINDS].mean() for kind in range(5)])
    assert held_out_errors(np.empty((60, 0)), gap, KINDS) == pytest.approx(
        100 * np.abs(gap - means[KINDS])
    )
    assert (
        held_out_errors(np.column_stack([gap, np.full(60, 7.0)]), gap, KINDS).max()
        < 0.1
    )  # beside a constant


def test_a_prediction_is_no_farther_off_than_a_gap_can_be_and_of_two_folds_undefined():
    table = models().assign(
        norm=lambda t: np.where(t["kind"] == 2, 1e200, t["gap"] * 1e160)
    )
    errors = held_out_errors(table[["norm"]].to_numpy(), table["gap"], KINDS)
    assert np.isfinite(errors).all() and errors.max() <= 200
    assert np.isnan(
        held_out_errors(np.ones((4, 60, 1)), table["gap"], KINDS // 3)
    ).all()  # two folds


def test_kinds_are_left_out_once_each_and_configurations_dealt_whole_and_evenly_thirty_times():
    draws = Bootstrap(models(), draws=0)
    assert (folds_of(draws, "kind") == KINDS).all() and folds_of(
        draws, "kind"
    ).shape == (1, 60)
    dealt = folds_of(draws, "cell")
    assert (
        len({tuple(part) for part in dealt}) == 30
        and (dealt[:, ::2] == dealt[:, 1::2]).all()
    )
    assert {
        count for part in random_folds(np.arange(23), 9) for count in np.bincount(part)
    } == {2, 3}
    assert (dealt != folds_of(Bootstrap(models(), draws=0, seed=4), "cell")).any()
    assert set(random_folds(["a", "b", "b"], 2).ravel()) == {0, 1}


@pytest.mark.parametrize("left_out", ["kind", "cell"])
def test_saved_errors_are_paired_differences_whose_p_flips_what_was_left_out(left_out):
    table = models().assign(
        some=lambda t: t["adds"].where(t["cell"] > 2), never=np.nan, constant=3.0
    )
    draws = Bootstrap(table, draws=300, seed=5)
    known, gap, folds = (
        design(table, (), FIT),
        table["gap"].to_numpy(),
        folds_of(draws, left_out),
    )
    names = ["adds", "some", "noise", "never", "constant"]
    rivalry = Rivalry(known, left_out=left_out)
    found = saved_errors(draws, names, rivalry, level=0.9).set_index("measure")
    for name, kept in (
        ("adds", np.full(60, True)),
        ("some", table["some"].notna().to_numpy()),
        ("noise", np.full(60, True)),  # whose p depends on the choices of signs
    ):
        before = held_out_errors(known[kept], gap[kept], folds[:, kept])
        beside = held_out_errors(
            np.column_stack([known, table[name]])[kept], gap[kept], folds[:, kept]
        )
        row = found.loc[name]
        assert row[
            ["error_without", "error_with", "saved_error_points"]
        ].tolist() == pytest.approx(
            [before.mean(), beside.mean(), (before - beside).mean()]
        )
        saved = np.full((60, 1), np.nan)
        saved[kept, 0] = before - beside
        assert (
            row["saved_error_points_p"]
            == sign_flip_p(saved, table[left_out], seed=5)[0]
        )
        assert row[
            ["saved_error_points_low", "saved_error_points_high"]
        ].tolist() == pytest.approx([*np.ravel(draws.mean(saved, 0.9)[1:])])
        assert row["error_worst"] == pytest.approx(
            pd.Series(beside).groupby(table.loc[kept, left_out].to_numpy()).mean().max()
        )
    assert found.loc["adds", "saved_error_points_low"] > 0
    assert found.loc["never"].isna().all()
    assert found.loc["constant", "saved_error_points"] == pytest.approx(0, abs=1e-9)


def test_what_is_known_in_advance_is_weighed_by_the_same_errors():
    draws = Bootstrap(models(), draws=200)
    found = known_in_advance(draws, ["rate"]).set_index("known")
    folds = folds_of(draws, CONFIGURATION)
    mean = held_out_errors(np.empty((60, 0)), draws.models["gap"], folds)
    fit = held_out_errors(design(draws.models, (), FIT), draws.models["gap"], folds)
    axes, both = (
        held_out_errors(
            design(draws.models, ["rate"], linear, all_levels=True),
            draws.models["gap"],
            folds,
        )
        for linear in ((), FIT)
    )
    assert found["error_points"].tolist() == pytest.approx(
        [mean.mean(), fit.mean(), axes.mean(), both.mean()]
    )
    assert list(found.index) == [
        "mean",
        "fit",
        "hyperparameters",
        "hyperparameters and fit",
    ]
    assert (found["low"] < found["error_points"]).all() and (
        found["error_points"] < found["high"]
    ).all()
    assert found[["n", "cells"]].drop_duplicates().to_numpy().tolist() == [[60, 30]]
    assert with_log_train_loss(pd.DataFrame({"train_loss": [0.0, 1.0]}))[
        "log_train_loss"
    ].tolist() == pytest.approx([np.log(1e-12), 0])


def test_columns_that_predict_nothing_are_shrunk_as_far_as_the_largest_penalty():
    """Where the best penalty is far above 1: twenty columns of noise."""
    random = np.random.default_rng(0)
    noise, gap = random.normal(size=(60, 20)), random.normal(0.4, 0.1, 60).clip(0, 1)
    errors = held_out_errors(noise, gap, KINDS)
    assert errors == pytest.approx(by_scikit_learn(noise, gap, KINDS))
