import numpy as np
import pytest
import scipy.stats
from sklearn.linear_model import LinearRegression

from helpers.select import prediction
from tests.select.conftest import models_table

BOTH = ("other", "mixup")


def test_what_makes_the_gap_is_chosen_and_what_does_not_is_not():
    assert prediction.choose(models_table(), BOTH) == ("mixup",)
    assert prediction.choose(models_table(), ("other",)) == ()


def test_a_line_without_noise_is_found_as_least_squares_finds_it():
    models = models_table(noise=0)
    found = prediction.predictor(models, BOTH)
    columns = models[["train_accuracy", "log_train_loss", "mixup"]]
    line = LinearRegression().fit(columns, models["gap"]).predict(columns)
    np.testing.assert_allclose(found.predicted(models), line, atol=0.01)
    assert found.half < 0.03


def test_the_interval_is_the_quantile_of_errors_with_whole_kinds_left_out():
    models = models_table(kinds=4, cells=4)
    found = prediction.predictor(models, ())
    errors = []
    for kind in models["kind"].unique():
        inside = models["kind"] == kind
        rest = prediction.predictor(models[~inside], ())
        errors.append(
            np.abs(
                rest.regression.predict(
                    models.loc[inside, list(prediction.FIT)].to_numpy()
                )
                - models.loc[inside, "gap"]
            )
        )
    n = models["cell"].nunique()
    place = int(
        np.ceil(prediction.LEVEL * (n + 1))
    )  # kinds of one size: the quantile of a split conformal interval
    assert found.half == pytest.approx(np.sort(np.concatenate(errors))[place - 1])
    assert found.error == pytest.approx(found.half / scipy.stats.norm.ppf(0.9))


def test_kinds_count_once_however_many_models_they_have():
    errors = (
        models_table()
        .head(3)
        .assign(group=[0, 0, 1], truth=[0.0, 0.0, 0.0], predicted=[0.1, 0.1, 0.3])
    )
    assert prediction._half_width(errors, 1000, 0.45) == pytest.approx(0.1)
    assert prediction._half_width(errors, 1000, 0.6) == pytest.approx(0.3)


def test_undefined_values_predict_nothing_and_far_ones_no_more_than_one_range_beyond():
    models = models_table()
    found = prediction.predictor(models, BOTH)
    own = models.head(3).copy()
    low, high = found.ranges.loc["mixup"]
    own["mixup"] = [np.nan, high + (high - low), high + 100]
    said = found.predicted(own.assign(train_accuracy=0.9, log_train_loss=-2.0))
    assert np.isnan(said[0])
    assert said[1] == said[2]
    assert found.beyond(own.assign(train_accuracy=0.9, log_train_loss=-2.0)) == [
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
    np.testing.assert_allclose(mine["predicted"], rest.predicted(mine))
    np.testing.assert_allclose(mine["high"] - mine["low"], 2 * rest.half)
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
    assert told["covered_low"] < 2 / 3 < told["covered_high"]


def test_wilson_by_its_formula():
    z, n, p = scipy.stats.norm.ppf(0.975), 80, 19 / 80
    centre, half = p + z**2 / (2 * n), z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    assert prediction.wilson(19, 80) == pytest.approx(
        ((centre - half) / (1 + z**2 / n), (centre + half) / (1 + z**2 / n))
    )
    assert np.isnan(prediction.wilson(0, 0)).all()


def test_a_count_and_a_prediction_are_weighed_by_their_variances():
    share = 46 / 102  # of 100 images and two more, one of them right
    variances = np.array([0.05**2, share * (1 - share) / 100])
    mean, deviation = prediction.weighed([0.5], 0.05, 0.3, [45], 100)
    assert mean[0] == pytest.approx(
        (0.5 / variances[0] + 0.45 / variances[1]) / (1 / variances).sum()
    )
    assert deviation[0] == pytest.approx((1 / variances).sum() ** -0.5)
    assert prediction.weighed([0.5], 1e-9, 0.3, [45], 100)[0] == pytest.approx(0.5)
    assert np.isfinite(prediction.weighed([0.5, 0.5], 0.05, 0.3, [0, 100], 100)).all()


def test_what_predictions_miss_in_common_is_learnt_from_all_counts():
    """Against the mean of a normal law drawn by chance: errors and counts together, those kept that are near the counts seen."""
    said, right, error, common = np.array([0.5, 0.6]), np.array([46, 54]), 0.06, 0.7
    draws = np.random.default_rng(0)
    truth = said + error * (
        np.sqrt(common) * draws.normal(size=(4_000_000, 1))
        + np.sqrt(1 - common) * draws.normal(size=(4_000_000, 2))
    )
    share = (right + 1) / 102
    weight = scipy.stats.norm.pdf(
        right / 100, truth, np.sqrt(share * (1 - share) / 100)
    ).prod(1)
    centre = np.average(truth, axis=0, weights=weight)
    mean, deviation = prediction.weighed(said, error, common, right, 100)
    np.testing.assert_allclose(mean, centre, atol=2e-4)
    np.testing.assert_allclose(
        deviation,
        np.sqrt(np.average((truth - centre) ** 2, axis=0, weights=weight)),
        atol=2e-4,
    )
    assert (
        mean < prediction.weighed(said, error, 0.0, right, 100)[0]
    ).all()  # both counts are low: each is a witness for the other


def test_predictions_that_labelled_images_refuse_count_for_less():
    said, right, error = np.array([0.5, 0.6]), np.array([320, 320]), 0.05
    mean, _ = prediction.weighed(said, error, 0.5, right, 400)
    share = 321 / 402
    shown = np.sqrt(
        np.mean((0.8 - said) ** 2) - share * (1 - share) / 400
    )  # what they err by, less what counting errs by
    np.testing.assert_allclose(
        mean, prediction.weighed(said, shown, 0.5, right, 400)[0]
    )


def test_errors_of_one_kind_are_in_common_by_their_means():
    models = models_table().head(4)
    left_out = models.assign(
        group=[0, 0, 1, 1], truth=[0.3, 0.1, -0.1, -0.3], predicted=0.0
    )
    found = prediction.predictor(models_table(), ())._replace(left_out=left_out)
    assert found.common == pytest.approx(0.2**2 / (0.2**2 + 0.1**2))
