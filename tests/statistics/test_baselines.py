"""Baselines, studies that predict each other, and pairs that differ in one thing."""

import numpy as np
import pandas as pd
import pytest

from helpers.statistics import baselines
from helpers.statistics.bootstrap import Bootstrap
from helpers.statistics.correlations import partial_correlation, pearson
from helpers.statistics.primary import primary_table

AXES = ["pretrained", "rate"]


def networks(seed, shift=0.0):
    """Forty networks whose gap is their start, their rate and what "looks" sees."""
    random = np.random.default_rng(seed)
    pretrained = np.repeat([True, False], 20)
    rate = np.tile([0.1, 0.2], 20)
    sees = random.normal(size=40)
    gap = 0.5 - 0.2 * pretrained + 0.2 * rate + 0.05 * sees
    table = pd.DataFrame({"pretrained": pretrained, "rate": rate, "gap": gap})
    return table.assign(
        cell=[f"cell {k}" for k in range(40)],
        kind=np.where(pretrained, "net pretrained", "net scratch")
        + pd.Series(np.tile([" a", " a", " b", " b"], 10)),
        architecture="net",
        optimizer=np.tile(["sgd", "adam"], 20),
        train_accuracy=random.uniform(0.9, 1, 40),
        train_loss=random.uniform(0.1, 0.2, 40),
        test_accuracy=1 - gap,
        looks=sees + shift,
        copies=pretrained + 0.01 * random.normal(size=40),
        noise=random.normal(size=40),
    )


def test_baselines_are_all_that_is_known_before_a_measure():
    models = networks(0)
    items = baselines.baselines_of(models, AXES)
    assert list(items) == list(baselines.TITLES)
    start = items["pretrained"][:, 0]
    assert abs(pearson(start, models["pretrained"])) == pytest.approx(1)
    shapes = {name: columns.shape[1] for name, columns in items.items()}
    assert shapes == {
        "pretrained": 1,
        "hyperparameters": 2,
        "hyperparameters_and_training": 4,
        "training": 2,
    }
    without = baselines.baselines_of(models, ["rate"])
    assert list(without) == list(baselines.RIVALS)


def test_the_best_rival_errs_least_and_is_never_the_start_alone():
    models = networks(0)
    items = baselines.baselines_of(models, AXES)
    folds = pd.factorize(models["kind"])[0][None]
    gap = models["gap"].to_numpy()
    assert baselines.best_rival(items, gap, folds) == "hyperparameters"
    same = baselines.best_rival(items, gap, np.zeros((1, 40), int))  # no folds
    assert same == "hyperparameters"
    start_alone = 0.5 - 0.2 * models["pretrained"].to_numpy()
    assert baselines.best_rival(items, start_alone, folds) in baselines.RIVALS


def test_one_study_predicts_another_as_least_squares_by_hand():
    one, two = networks(1), networks(2)
    table = baselines.across_studies(
        {"one": one, "two": two}, "two", AXES, {"looks": "Looks"}, draws=200
    ).set_index("measure")
    assert list(table.index) == [*baselines.TITLES, "looks"]
    assert set(table["trained_on"]) == {"one"} and set(table["n"]) == {40}
    columns = [
        np.column_stack([np.ones(40), models["pretrained"], models["rate"] > 0.15])
        for models in (one, two)
    ]
    slopes = np.linalg.lstsq(columns[0].astype(float), one["gap"])[0]
    error = 100 * np.abs(two["gap"] - columns[1].astype(float) @ slopes).mean()
    row = table.loc["hyperparameters"]
    assert row["error_points"] == pytest.approx(error, abs=0.05)  # a small penalty
    assert row["error_points_low"] < row["error_points"] < row["error_points_high"]
    assert (
        table.loc["training", "error_points"] > 8
    )  # of what has nothing to do with it


def test_what_hyperparameters_predict_does_not_depend_on_the_order_of_networks():
    """With three levels the penalty would, if the first level had no indicator."""
    images = np.tile([75, 125, 250, 125, 75], 8)
    gaps = {75: 0.1, 125: 0.0, 250: -0.05}
    studies = {}
    for seed, name in enumerate(("first", "second")):
        table = networks(seed).assign(images=images)
        table["gap"] += table["images"].map(gaps) + 0.05 * table["noise"]
        studies[name] = table
    errors = []
    for order in (1, -1):
        first = studies["first"].sort_values("images")[::order]
        rows = baselines.across_studies(
            {"first": first, "second": studies["second"]},
            "second",
            ["pretrained", "images"],
            {},
            draws=0,
        )
        errors.append(rows.set_index("measure").loc["hyperparameters", "error_points"])
    assert errors[0] == pytest.approx(errors[1], rel=1e-9)


def test_a_measure_on_another_scale_in_the_other_study_fails_there():
    """The scale is that of the study that is fitted to, not of both."""
    studies = {"one": networks(1), "two": networks(2, shift=20)}
    table = baselines.across_studies(studies, "two", AXES, {"looks": "Looks"}, draws=9)
    errors = table.set_index("measure")["error_points"]
    assert errors["looks"] > 5 * errors["hyperparameters"]


def test_a_measure_that_a_study_lacks_is_undefined_or_left_out():
    studies = {"one": networks(1), "two": networks(2).drop(columns="noise")}
    measures = {"noise": "Noise", "absent": "Absent"}
    table = baselines.across_studies(studies, "two", AXES, measures, draws=9)
    row = table.set_index("measure").loc["noise"]
    assert np.isnan(row["error_points"]) and "absent" not in set(table["measure"])
    alone = baselines.across_studies({"one": studies["one"]}, "one", AXES, measures)
    assert len(alone) == 0 and "error_points" in alone


def test_pairs_agree_in_all_else_and_means_stand_in_where_there_is_none():
    models = pd.DataFrame(
        {
            "kind": ["a", "a", "a", "a", "b", "b", "c"],
            "optimizer": ["sgd", "adam", "sgd", "adam", "sgd", "adam", "sgd"],
            "rate": [0.1, 0.1, 0.2, 0.2, 0.1, 0.2, 0.1],
            "gap": [0.1, 0.3, 0.2, 0.5, 0.4, 0.3, 0.9],
        }
    )
    table = baselines.matched_pairs(
        models, "optimizer", ("sgd", "adam"), ["rate"], ["gap"]
    )
    assert table["kind"].tolist() == ["a", "b"]  # c has one optimizer
    assert table["pairs"].tolist() == [2, 0]
    assert table["gap"].tolist() == pytest.approx([0.25, -0.1])


def test_the_primary_table_holds_measures_against_the_start_and_the_best_baseline():
    models = networks(3)
    draws = Bootstrap(models, draws=50)
    table = primary_table(draws, ["looks", "copies"], permutations=199)
    assert table["measure"].tolist() == [*baselines.TITLES, "looks", "copies"]
    table = table.set_index("measure")
    start = models["pretrained"].astype(float)
    assert table.loc["pretrained", "r_gap"] == pytest.approx(
        pearson(start, models["gap"])
    )
    assert table.loc["copies", "r_gap"] < -0.8
    given = partial_correlation(
        models["copies"], models["gap"], start.to_numpy()[:, None]
    )
    row = table.loc["copies"]
    assert row["r_gap_given_start"] == pytest.approx(given[0])
    assert abs(row["r_gap_given_start"]) < 0.4 and row["r_gap_given_start_p"] > 0.01
    assert table.loc["looks", "r_gap_given_start_p"] == 1 / 200
    assert table.loc["looks", "r_test_accuracy"] == pytest.approx(
        -table.loc["looks", "r_gap"]  # test accuracy is 1 - gap here
    )
    best = row["best_baseline"]
    rivals = table.loc[list(baselines.RIVALS), "error_with_twins"]
    assert best == rivals.idxmin()
    assert row["error_best_twins"] == pytest.approx(rivals.min())
    assert row["saved_from_best_points"] == pytest.approx(
        rivals.min() - row["error_with_twins"]
    )
