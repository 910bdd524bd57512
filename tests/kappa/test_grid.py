import itertools

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import cohen_kappa_score

from helpers.kappa import statistics, tables
from helpers.kappa.grid import grid_of, resample, statistics_in_draws
from helpers.statistics.correlate import percentile_interval
from tests.kappa.conftest import grid_of_total

STEPS = [4, 6]
LABELS = np.repeat(np.arange(6), 5)


@pytest.fixture(scope="module")
def predicted():
    """(2 steps, 3 levels, 30 images): the later the level, the more are wrong."""
    random = np.random.default_rng(0)
    values = np.full((2, 3, 30), -1, dtype=np.int16)
    for step, level in itertools.product(range(2), range(3)):
        other = random.integers(STEPS[step], size=30)
        is_other = random.random(30) < 0.2 + 0.2 * level
        is_tested = STEPS[step] > LABELS
        values[step, level, is_tested] = np.where(is_other, other, LABELS)[is_tested]
    return values


def test_images_are_drawn_within_their_class_and_classes_within_their_step():
    draws = resample(LABELS, STEPS, 400, seed=3)
    np.testing.assert_array_equal(pd.DataFrame(draws.images).groupby(LABELS).sum(), 5)
    assert draws.classes[4].shape == (400, 4) and draws.classes[6].shape == (400, 6)
    assert set(draws.classes[4].ravel()) == {0, 1, 2, 3}
    # The share of unseen classes stays.
    np.testing.assert_array_equal(draws.classes[6][:, :4], draws.classes[4])
    assert set(draws.classes[6][:, 4:].ravel()) == {4, 5}
    # Each class and each image comes as often as any other, within what 400 draws allow.
    assert np.abs(np.bincount(draws.classes[6].ravel()) / 400 - 1).max() < 0.2
    assert np.abs(draws.images.mean(1) - 1).max() < 0.25
    again = resample(LABELS, STEPS, 400, seed=3)
    assert np.array_equal(draws.images, again.images)
    # Classes do not share their draws, or their errors would move together.
    assert np.abs(np.corrcoef(draws.images)[:5, 5:]).max() < 0.25
    without = resample(LABELS[LABELS != 2], STEPS, 100)
    assert set(without.classes[6].ravel()) == {0, 1, 3, 4, 5}  # no image, never drawn


def test_a_draw_is_counted_image_by_image_and_class_by_class(predicted):
    """By a loop over drawn images and classes; images' mean shift is taken out."""
    draws = resample(LABELS, STEPS, 30, seed=1)

    def loop(step, level, classes, weights):
        counts = weights.astype(int) * (STEPS[step] > LABELS)
        images = np.repeat(np.arange(30), counts)
        true, taken = LABELS[images], predicted[step, level, images]
        errors = [(taken[true == name] != name).mean() for name in classes]
        kappas = [cohen_kappa_score(true == name, taken == name) for name in classes]
        return statistics.six_statistics(np.array(errors), 1 - np.array(kappas))

    values = statistics_in_draws(predicted, STEPS, draws)
    assert values.shape == (2, 3, 31, 6)
    once = np.ones(30)
    for step, level in ((0, 1), (1, 2)):
        classes = draws.classes[STEPS[step]]
        both = zip(classes, draws.images.T, strict=True)
        shaken = np.array([loop(step, level, *drawn) for drawn in both])
        still = np.array([loop(step, level, drawn, once) for drawn in classes])
        expected = shaken - shaken.mean(0) + still.mean(0)
        np.testing.assert_allclose(values[step, level, 1:], expected, atol=1e-12)
        observed = loop(step, level, range(STEPS[step]), once)
        np.testing.assert_allclose(values[step, level, 0], observed)


def test_draws_of_equally_large_networks_are_averaged_and_laid_out_by_their_levels():
    random = np.random.default_rng(0)
    drawn = {name: random.normal(size=(2, 3, 5, 6)) for name in "abc"}
    sizes = {"a": 9.0, "b": 5.0, "c": 9.0}
    places = itertools.product("abc", [0.0, 0.5], [0.6, 0.8, 1.0])
    cells = pd.DataFrame(places, columns=["model", "unseen_fraction", "ssim"])
    levels, grid = grid_of(cells.assign(weights=cells["model"].map(sizes)), drawn)
    assert [of_axis.tolist() for of_axis in levels] == [[0.6, 0.8, 1], [0, 0.5], [5, 9]]
    assert grid.shape == (3, 2, 2, 5, 6)
    for level, step in itertools.product(range(3), range(2)):
        np.testing.assert_allclose(grid[level, step, 0], drawn["b"][step, level])
        mean = (drawn["a"] + drawn["c"])[step, level] / 2
        np.testing.assert_allclose(grid[level, step, 1], mean)


def test_marginals_by_hand_with_percentiles_of_the_draws_if_classes_are_enough():
    sizes = np.array([1e6, 3e6, 9e6, 27e6])
    s, u, w = np.meshgrid([0.6, 1.0], [0, 0.5], sizes, indexing="ij")
    levels, values = grid_of_total(w * 1e-8 + s + 10 * u, s[:, 0, 0], u[0, :, 0], sizes)
    draws = np.concatenate([[0], np.linspace(-0.1, 0.1, 41)])[:, None]
    table = tables.marginals(levels, values[:, :, :, None] + draws, 8)
    rows = table.set_index(["axis", "level"])
    # Sizes add 0.01, 0.03, 0.09 and 0.27, shares 0 and 5; the first part is 1 of 21.
    noisy = rows.loc[("ssim", 0.6)]
    assert noisy["error_mean"] == pytest.approx((0.1 + 0.6 + 2.5) / 21)
    large = rows.loc[("weights", 9e6)]
    assert large["error_std"] == pytest.approx(2 * (0.09 + 0.8 + 2.5) / 21)
    np.testing.assert_allclose(table["error_mean_low"], table["error_mean"] - 0.095)
    high = table["kappa_loss_mean"] + 0.095
    np.testing.assert_allclose(table["kappa_loss_mean_high"], high)
    few = tables.marginals(levels, values[:, :, :, None] + draws, 7)
    assert few.filter(like="_low").isna().all(axis=None)


def test_the_interval_of_a_mean_over_classes_holds_the_truth():
    """20 classes of known error, drawn anew 200 times with 20 images each."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 20)
    held = 0
    for number in range(200):
        errors = np.repeat(random.beta(4, 6, 20), 20)  # their mean is 0.4
        is_wrong = random.random(400) < errors
        predicted = np.where(is_wrong, (labels + 1) % 20, labels).astype(np.int16)
        draws = resample(labels, [20], 200, seed=number)
        values = statistics_in_draws(predicted[None, None], [20], draws)[0, 0, 1:, 0]
        low, high = percentile_interval(values[:, None], 20)
        held += int(low[0] <= 0.4 <= high[0])
    assert 0.90 <= held / 200 <= 0.99
