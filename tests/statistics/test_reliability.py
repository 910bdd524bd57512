import numpy as np
import pytest

from helpers.statistics.gap_tables import reliability


def test_reliability_is_the_share_of_the_variance_that_is_not_noise():
    random = np.random.default_rng(0)
    truth = random.normal(size=(2000, 1))
    # The mean's noise has variance 1.
    values = truth + 10 * random.normal(size=(2000, 100)) + random.normal(size=100)
    assert reliability(values) == pytest.approx(0.5, abs=0.04)
    assert reliability(np.repeat(truth, 6, axis=1)) == pytest.approx(1)


def test_reliability_is_the_median_over_random_halves():
    random = np.random.default_rng(1)
    values = random.normal(size=(9, 1)) + random.normal(size=(9, 11))
    numbers = np.tile(np.arange(11), (20, 1))
    splits = np.random.default_rng(3).permuted(numbers, axis=1)
    of_all_images = []
    for order in splits:
        one = values[:, order < 5].mean(1)
        other = values[:, order >= 5].mean(1)
        r = np.corrcoef(one, other)[0, 1]
        of_all_images.append(2 * r / (1 + r) if r > 0 else r)
    assert abs(np.median(of_all_images) - np.mean(of_all_images)) > 1e-3
    expected = pytest.approx(np.median(of_all_images))
    assert reliability(values, seed=3) == expected


def test_two_images_are_two_halves_by_hand():
    one, other = np.array([1.0, 2, 3, np.nan]), np.array([1.0, 3, 2, 9])  # r = 1/2
    assert reliability(np.column_stack([one, other])) == pytest.approx(2 * 0.5 / 1.5)
    assert reliability(np.column_stack([one, -other])) == pytest.approx(-0.5)
    assert np.isnan(reliability(np.column_stack([one, other])[:2]))
    assert np.isnan(reliability(np.column_stack([one, np.ones(4)])))
