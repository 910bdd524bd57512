"""Predictions that a few labelled images move: against known intervals and simulation."""

import numpy as np
import pytest
import scipy.stats

from helpers.select.moved import moved_elsewhere, moved_together, residual_spread


def test_the_residual_spread_is_the_pooled_standard_deviation():
    residuals, kinds = [0.1, 0.3, -0.2, -0.2, 0.1, 7.0], list("aabbbc")
    squares = 2 * 0.1**2 + 2 * 0.1**2 + 0.2**2
    assert residual_spread(residuals, kinds) == pytest.approx(np.sqrt(squares / 3))
    assert np.isnan(residual_spread([1.0, 2.0], ["a", "b"]))


def test_one_checkpoint_has_the_interval_of_agresti_and_coull_whatever_was_predicted():
    z = scipy.stats.norm.ppf(0.9)
    for hits in (0, 13, 50):
        moved = moved_together([0.9], [[1] * hits + [0] * (50 - hits)], spread=0.05)
        centre = (hits + z**2 / 2) / (50 + z**2)
        half = z * np.sqrt(centre * (1 - centre) / (50 + z**2))
        assert moved.accuracy == pytest.approx(hits / 50)
        assert (moved.low[0], moved.high[0]) == pytest.approx((max(centre - half, 0), min(centre + half, 1)))
        assert moved.low[0] < moved.high[0]


def test_a_common_error_of_level_is_taken_out_and_the_order_kept():
    right = np.random.default_rng(0).random((4, 60)) < 0.6
    predicted = np.array([0.30, 0.35, 0.32, 0.40])
    moved = moved_together(predicted, right)
    assert moved.accuracy == pytest.approx(predicted + right.mean() - predicted.mean())
    elsewhere = moved_together(predicted + 0.1, right)
    for first, second in zip(moved[:3], elsewhere[:3], strict=True):
        assert first == pytest.approx(second)
    assert elsewhere.shift == pytest.approx(moved.shift - 0.1)
    assert moved.shift_low < moved.shift < moved.shift_high


def test_wider_by_spread_and_narrower_by_images():
    right = np.random.default_rng(1).random((5, 50)) < 0.7
    narrow, wide = (moved_together([0.5] * 5, right, spread=spread) for spread in (0.0, 0.2))
    many = moved_together([0.5] * 5, np.tile(right, 20), spread=0.0)
    assert (wide.high - wide.low > narrow.high - narrow.low).all()
    assert many.shift_high - many.shift_low < (narrow.shift_high - narrow.shift_low) / 4
    assert wide.spread == 0.2


def simulated(checkpoints, spread, generator, images=50, seen=0.0):
    """Coverage and width of one folder whose predictions are 15 points too high, and whose checkpoints miss the same hard images."""
    level = generator.uniform(0.3, 0.6)
    truth = np.clip(level + generator.normal(0, 0.08, checkpoints), 0.05, 0.95)
    predicted = truth + 0.15 + generator.normal(0, spread, checkpoints)
    common, own = generator.normal(size=images), generator.normal(size=(checkpoints, images))
    right = np.sqrt(0.5) * (common + own) < scipy.stats.norm.ppf(truth)[:, None]
    moved = moved_together(predicted, right, spread=seen)
    return ((moved.low <= truth) & (truth <= moved.high)).mean(), (moved.high - moved.low).mean()


@pytest.mark.parametrize(
    ("checkpoints", "spread", "seen"), [(1, 0.05, 0.05), (3, 0.03, 0.03), (6, 0.03, 0.03), (6, 0.1, 0.03), (12, 0.05, 0.0)]
)
def test_intervals_hold_the_truth_about_as_often_as_they_say(checkpoints, spread, seen):
    generator = np.random.default_rng(7)
    covered = np.mean([simulated(checkpoints, spread, generator, seen=seen)[0] for _ in range(1500)])
    assert 0.75 <= covered <= 0.9


@pytest.mark.parametrize(
    ("predicted", "right", "options", "match"),
    [
        ([0.5], [[True], [False]], {}, r"predicted has shape \(1,\) and right \(2, 1\)"),
        ([0.5], np.zeros((1, 0)), {}, "both at least 1"),
        ([np.nan], [[True]], {}, "predictions must be finite"),
        ([0.5], [[0.5]], {}, "true and false alone"),
        ([0.5], [[True]], {"level": 1.0}, "level 1.0"),
        ([0.5], [[True]], {"spread": np.nan}, "spread nan"),
    ],
)
def test_what_cannot_be_is_refused(predicted, right, options, match):
    with pytest.raises(ValueError, match=match):
        moved_together(predicted, right, **options)


def test_the_residual_spread_about_a_level_of_labelled_ones_is_by_hand_a_root_mean_square():
    residuals, kinds = [0.1, 0.3, 0.5, -0.2, 0.0], ["a", "a", "a", "b", "b"]
    labelled = [True, True, False, True, False]
    assert residual_spread(residuals, kinds, labelled) == pytest.approx(np.sqrt((0.3**2 + 0.2**2) / 2))
    assert np.isnan(residual_spread([0.1, 0.2], ["a", "b"], [True, False]))


def test_predictions_elsewhere_move_by_the_shift_of_the_labelled_and_are_less_sure():
    predicted, right = np.array([0.6, 0.7, 0.8]), np.arange(40) < np.array([[20], [24], [28]])
    moved = moved_together(predicted, right)
    assert moved.shift == pytest.approx(-0.1)
    there, low, high = moved_elsewhere(predicted - 0.3, moved, spread=0.05)
    np.testing.assert_allclose(there, predicted - 0.4)
    z = 1.2815515655446004  # of 80 %
    half = np.hypot((moved.shift_high - moved.shift_low) / 2, z * max(0.05, moved.spread))
    np.testing.assert_allclose((high - low) / 2, half)
    assert (low < there).all()
    assert (there < high).all()
    assert moved_elsewhere([0.02], moved, spread=0.0)[0] == 0


def test_intervals_elsewhere_cover_as_often_as_they_aim_to():
    random, hits = np.random.default_rng(0), []
    for _ in range(400):
        own, there = random.normal(-0.1, 0.04, 6), random.normal(0, 0.05, 6)  # errors on the labelled images, and what is added elsewhere
        predicted = random.uniform(0.6, 0.8, 6)
        right = random.random((6, 50)) < (predicted + own)[:, None]
        moved = moved_together(predicted, right)
        _, low, high = moved_elsewhere(predicted - 0.2, moved, spread=np.hypot(0.04, 0.05))
        hits.append(((low <= predicted - 0.2 + own + there) & (predicted - 0.2 + own + there <= high)).mean())
    # The standard error of 400 rounds is below 0.015.
    assert 0.76 <= np.mean(hits) <= 0.92
