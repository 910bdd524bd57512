import numpy as np
import pandas as pd
import pytest
import scipy.stats
from sklearn.linear_model import LinearRegression

from helpers.checkpoints import prediction
from tests.checkpoints.conftest import models_table

BOTH = ("other", "mixup")


def test_all_measures_predict_beside_the_fit():
    regression = prediction.predictor(models_table(), BOTH).regression
    assert tuple(regression.ranges.index) == (*prediction.FIT, *BOTH)
    weights = dict(
        zip(regression.ranges.index, regression.pipeline[-1].coef_, strict=True)
    )
    assert abs(weights["mixup"]) > 10 * abs(weights["other"])


def test_a_line_without_noise_is_found_as_least_squares_finds_it():
    models = models_table(noise=0)
    found = prediction.predictor(models, BOTH)
    columns = models[["train_accuracy", "log_train_loss", "other", "mixup"]]
    line = LinearRegression().fit(columns, models["gap"]).predict(columns)
    np.testing.assert_allclose(found.regression.predicted(models), line, atol=0.01)
    assert (found.half_width(models) < 0.03).all()


def test_the_interval_is_the_quantile_of_errors_with_whole_kinds_left_out():
    """Four kinds of one size: one further group counted as a miss takes the largest."""
    models = models_table(kinds=4, cells=4)
    found = prediction.predictor(models, ())
    errors = []
    for kind in models["kind"].unique():
        inside = models["kind"] == kind
        rest = prediction.predictor(models[~inside], ())
        missed = np.abs(
            rest.regression.predicted(models[inside]) - models.loc[inside, "gap"]
        )
        errors.append(missed / np.sqrt(1 + rest.regression.leverage(models[inside])))
    assert found.regression.groups == 4
    assert found.half_width_at_0 == pytest.approx(np.concatenate(errors).max())
    np.testing.assert_allclose(
        found.half_width(models),
        found.half_width_at_0 * np.sqrt(1 + found.regression.leverage(models)),
    )
    squares = np.mean(np.concatenate(errors) ** 2)
    np.testing.assert_allclose(
        found.error_sd(models) ** 2, squares * (1 + found.regression.leverage(models))
    )


def test_kinds_count_once_however_many_models_they_have():
    errors = pd.DataFrame(
        {
            "study": "one",
            "group": [0, 0, 1],
            "truth": 0.0,
            "predicted": [0.1, 0.1, 0.6],
            "leverage": [0.0, 0.0, 3.0],
        }
    )
    assert prediction._half_width_at_0(errors, 1000, 0.45) == pytest.approx(0.1)
    assert prediction._half_width_at_0(errors, 1000, 0.6) == pytest.approx(0.3)


def test_studies_weigh_the_same_however_many_kinds_they_have():
    """Weights of 1/6 for three kinds of one study, 1/2 for the other's kind."""
    errors = pd.DataFrame(
        {
            "study": ["many", "many", "many", "few"],
            "group": [0, 1, 2, 0],
            "truth": 0.0,
            "predicted": [0.1, 0.2, 0.3, 0.6],
            "leverage": 0.0,
        }
    )
    assert prediction._half_width_at_0(errors, 1000, 0.32) == pytest.approx(0.2)
    assert prediction._half_width_at_0(errors, 1000, 0.48) == pytest.approx(0.3)
    assert prediction._half_width_at_0(errors, 1000, 0.52) == pytest.approx(0.6)
    mean_square = (0.1**2 + 0.2**2 + 0.3**2) / 6 + 0.6**2 / 2
    assert prediction._error_sd_at_0(errors) == pytest.approx(np.sqrt(mean_square))


def test_leverage_is_that_of_least_squares_on_as_many_groups():
    """By hand, without a penalty: 1/G and the squared distance over that of G groups."""
    models = models_table(kinds=4, cells=4)
    found = prediction.predictor(models, ())
    columns = models[list(prediction.FIT)].to_numpy()
    design = np.column_stack([np.ones(len(columns)), columns])
    own = np.column_stack([np.ones(2), [[0.9, -2.0], [0.2, 1.0]]])
    covariance = np.linalg.inv(design.T @ design * 4 / len(columns))
    expected = np.einsum("mi,ij,mj->m", own, covariance, own)
    new = pd.DataFrame(own[:, 1:], columns=list(prediction.FIT))
    standardised = found.regression.pipeline[0].transform(columns)
    regression = found.regression._replace(
        precision=np.linalg.inv(np.cov(standardised.T, bias=True) * 4),
        ranges=found.ranges.assign(low=-9.0, high=9.0),
    )
    np.testing.assert_allclose(regression.leverage(new), expected)
    assert regression.leverage(new)[1] > regression.leverage(new)[0]


def test_images_of_a_class_are_known_where_every_model_says_them():
    models = models_table()
    assert prediction.fitted_columns(models) == prediction.FIT
    numbers = np.log(np.linspace(50, 500, len(models)))
    with_numbers = models.assign(log_class_images=numbers)
    assert prediction.fitted_columns(with_numbers)[-1] == "log_class_images"
    gap = models["gap"] - 0.1 * numbers
    found = prediction.predictor(with_numbers.assign(gap=gap), BOTH)
    line = np.polyfit(found.regression.predicted(with_numbers), gap, 1)
    assert line[0] == pytest.approx(1, abs=0.1)
    with_numbers.loc[0, "log_class_images"] = np.nan
    assert prediction.fitted_columns(with_numbers) == prediction.FIT


def test_undefined_values_predict_nothing_and_far_ones_no_more_than_one_range_beyond():
    models = models_table()
    found = prediction.predictor(models, BOTH)
    own = models.head(3).copy()
    low, high = found.ranges.loc["mixup"]
    own["mixup"] = [np.nan, high + (high - low), high + 100]
    said = found.regression.predicted(
        own.assign(train_accuracy=0.9, log_train_loss=-2.0, other=0.0)
    )
    assert np.isnan(said[0])
    assert said[1] == said[2]
    assert found.regression.out_of_range_columns(
        own.assign(train_accuracy=0.9, log_train_loss=-2.0)
    ) == [
        [],
        ["mixup"],
        ["mixup"],
    ]


def test_too_few_configurations_are_refused():
    with pytest.raises(ValueError, match="has 4 configurations"):
        prediction.predictor(models_table(kinds=1), BOTH)


def test_coverage_tries_each_kind_by_what_the_others_teach():
    models = models_table()
    tried = prediction.coverage(models, BOTH)
    assert len(tried) == len(models)
    kind = models["kind"].iloc[0]
    rest = prediction.predictor(models[models["kind"] != kind], BOTH)
    mine = tried[tried["kind"] == kind]
    np.testing.assert_allclose(mine["predicted"], rest.regression.predicted(mine))
    np.testing.assert_allclose(mine["high"] - mine["low"], 2 * rest.half_width(mine))
    assert not len(prediction.coverage(models[models["kind"] == kind], BOTH))


def test_a_summary_counts_by_hand():
    tried = (
        models_table()
        .head(3)
        .assign(truth=[0.1, 0.2, 0.3], predicted=[0.1, 0.3, 0.5], low=0.0, high=0.25)
    )
    told = prediction.summary(tried)
    assert (told["models"], told["inside"]) == (3, 2)
    assert told["error_points"] == pytest.approx(10)
    assert told["width_points"] == pytest.approx(25)
    assert told["covered"] == pytest.approx(2 / 3)
    interval = prediction.wilson(2, 3)
    assert (told["covered_low"], told["covered_high"]) == interval
    # Repeats of the three configurations make nothing surer.
    twice = prediction.summary(pd.concat([tried, tried]))
    assert (twice["models"], twice["inside"]) == (6, 4)
    assert (twice["covered_low"], twice["covered_high"]) == interval


def test_wilson_by_its_formula():
    z, n, p = scipy.stats.norm.ppf(0.975), 80, 19 / 80
    centre, half = p + z**2 / (2 * n), z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    assert prediction.wilson(19, 80) == pytest.approx(
        ((centre - half) / (1 + z**2 / n), (centre + half) / (1 + z**2 / n))
    )
    assert np.isnan(prediction.wilson(0, 0)).all()


def flags(*right, images=100):
    """Whether networks are right on images; those of all start with the first."""
    return np.arange(images) < np.array(right)[:, None]


def test_a_count_and_a_prediction_are_weighed_by_their_variances():
    share = 46 / 102  # of 100 images and two more, one of them right
    variances = np.array([0.05**2, share * (1 - share) / 100])
    mean, covariance = prediction.combine_with_labels([0.5], [0.05], 0.3, flags(45))
    assert mean[0] == pytest.approx(
        (0.5 / variances[0] + 0.45 / variances[1]) / (1 / variances).sum()
    )
    assert covariance.item() == pytest.approx(1 / (1 / variances).sum())
    certain = prediction.combine_with_labels([0.5], [1e-9], 0.3, flags(45))[0]
    assert certain == pytest.approx(0.5)
    assert np.isfinite(
        prediction.combine_with_labels([0.5, 0.5], [0.05, 0.05], 0.3, flags(0, 100))[0]
    ).all()


def test_shares_err_together_where_the_same_images_are_hard():
    """Against many draws of the labelled images that two networks share."""
    random = np.random.default_rng(0)
    hard = random.random(100_000)
    right = np.stack([hard < 0.5, (hard + 0.2 * random.normal(size=100_000)) < 0.6])
    draws = random.integers(100_000, size=(20_000, 50))
    seen = np.cov([flags[draws].mean(1) for flags in right])
    np.testing.assert_allclose(
        prediction.counting_covariance(right) * 100_000 / 50, seen, rtol=0.05
    )
    assert seen[0, 1] > 0.5 * seen[0, 0]


def test_what_predictions_miss_in_common_is_learnt_from_all_counts():
    """Against the mean of a normal law drawn by chance, those kept near the counts."""
    said = np.array([0.5, 0.6])
    error = np.array([0.06, 0.03])
    common = 0.7
    right = np.stack([np.arange(100) < 46, np.arange(100) % 50 < 27])
    draws = np.random.default_rng(0)
    truth = said + error * (
        np.sqrt(common) * draws.normal(size=(500_000, 1))
        + np.sqrt(1 - common) * draws.normal(size=(500_000, 2))
    )
    counting = prediction.counting_covariance(right)
    weight = scipy.stats.multivariate_normal.pdf(right.mean(1) - truth, cov=counting)
    centre = np.average(truth, axis=0, weights=weight)
    mean, covariance = prediction.combine_with_labels(said, error, common, right)
    np.testing.assert_allclose(mean, centre, atol=5e-4)
    np.testing.assert_allclose(
        np.diag(covariance),
        np.average((truth - centre) ** 2, axis=0, weights=weight),
        rtol=0.02,
    )


def test_networks_that_are_right_on_the_same_images_are_one_witness():
    alone = prediction.combine_with_labels([0.5], [0.06], 0.7, flags(40))[0]
    twice = prediction.combine_with_labels(
        [0.5, 0.5], [0.06, 0.06], 1.0, flags(40, 40)
    )[0]
    np.testing.assert_allclose(twice, alone[0], atol=1e-6)


def test_predictions_that_labelled_images_refuse_count_for_less():
    said, error, right = [0.5, 0.6], [0.05, 0.05], flags(320, 320, images=400)
    mean, _ = prediction.combine_with_labels(said, error, 0.5, right)
    counting = prediction.counting_covariance(right)
    shown = np.sqrt(np.mean((0.8 - np.array(said)) ** 2 - np.diag(counting)))
    np.testing.assert_allclose(
        mean,
        prediction.combine_with_labels(said, [shown, shown], 0.5, right, 1 - 1e-12)[0],
    )


def test_what_all_models_of_a_study_miss_is_in_common():
    """Two studies whose gaps differ by 0.2 for all models, and nothing else."""
    models = models_table(noise=0)
    assert prediction.predictor(models, BOTH).common == 0
    shifted = models.assign(gap=models["gap"] + 0.2, study="two")
    both = pd.concat([models.assign(study="one"), shifted], ignore_index=True)
    assert prediction.predictor(both, BOTH).common > 0.99
    same = pd.concat([models.assign(study=name) for name in ("one", "two")])
    noisy = same.reset_index(drop=True)
    noisy["gap"] += 0.05 * np.random.default_rng(0).normal(size=len(noisy))
    assert prediction.predictor(noisy, BOTH).common < 0.2


def test_a_value_is_beyond_a_study_from_a_tenth_of_its_range():
    models = models_table()
    by = prediction.predictor(models, BOTH)
    low, high = by.ranges.loc["mixup"]
    inside = models.head(4).copy()
    margins = [-0.11, -0.09, 0.09, 0.11]
    ends = [low, low, high, high]
    inside["mixup"] = np.array(ends) + np.array(margins) * (high - low)
    assert by.regression.out_of_range_columns(inside) == [["mixup"], [], [], ["mixup"]]
