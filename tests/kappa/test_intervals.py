import itertools

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import cohen_kappa_score

from helpers.kappa import statistics, tradeoff
from helpers.kappa.intervals import (
    bootstrap_grid,
    bootstrap_statistics,
    marginals_with_intervals,
    resample,
)
from helpers.statistics.correlate import percentile_interval
from tests.kappa.conftest import cells_of_total

STEPS = [4, 6]
LABELS = np.repeat(np.arange(6), 5)


@pytest.fixture(scope="module")
def predicted():
    """(2 steps, 3 levels, 30 images): the later the level, the more images are taken for another class."""
    rng, found = np.random.default_rng(0), np.full((2, 3, 30), -1, dtype=np.int16)
    for step, level in itertools.product(range(2), range(3)):
        tested = STEPS[step] > LABELS
        other = rng.integers(STEPS[step], size=30)
        found[step, level, tested] = np.where(
            rng.random(30) < 0.2 + 0.2 * level, other, LABELS
        )[tested]
    return found


def test_images_are_drawn_within_their_class_and_classes_within_their_step():
    units = resample(LABELS, STEPS, 400, seed=3)
    np.testing.assert_array_equal(pd.DataFrame(units.images).groupby(LABELS).sum(), 5)
    assert units.classes[4].shape == (400, 4) and units.classes[6].shape == (400, 6)
    assert set(units.classes[4].ravel()) == {0, 1, 2, 3}
    np.testing.assert_array_equal(units.classes[6][:, :4], units.classes[4])
    assert set(units.classes[6][:, 4:].ravel()) == {4, 5}, (
        "the share of unseen classes stays"
    )
    # Each class and each image comes as often as any other, within what 400 draws allow.
    assert np.abs(np.bincount(units.classes[6].ravel()) / 400 - 1).max() < 0.2
    assert np.abs(units.images.mean(1) - 1).max() < 0.25
    again = resample(LABELS, STEPS, 400, seed=3)
    assert np.array_equal(units.images, again.images)
    # Classes do not share their draws, or their errors would move together.
    correlations = np.corrcoef(units.images)[:5, 5:]
    assert np.abs(correlations).max() < 0.25
    without = resample(LABELS[LABELS != 2], STEPS, 100)
    assert set(without.classes[6].ravel()) == {0, 1, 3, 4, 5}, "no image, never drawn"


def test_steps_that_add_equally_many_classes_do_not_share_their_draws():
    drawn = resample(LABELS, [3, 6], 50).classes[6]
    first = np.sort(drawn[:, :3], axis=1)
    second = np.sort(drawn[:, 3:], axis=1)
    # Two independent draws of three classes out of three agree in 13 of 100 cases.
    assert (first == second - 3).all(axis=1).mean() < 0.5


def test_a_draw_is_counted_image_by_image_and_class_by_class(predicted):
    """By a loop over the drawn images and classes, with Cohen's Kappa of scikit-learn; the mean shift by the images is taken out."""
    units = resample(LABELS, STEPS, 30, seed=1)

    def loop(step, level, draw, weights):
        chosen = np.repeat(np.arange(30), weights.astype(int) * (STEPS[step] > LABELS))
        true, taken, classes = (
            LABELS[chosen],
            predicted[step, level, chosen],
            units.classes[STEPS[step]][draw],
        )
        error = np.array([(taken[true == name] != name).mean() for name in classes])
        return statistics.six_statistics(
            error,
            np.array(
                [1 - cohen_kappa_score(true == name, taken == name) for name in classes]
            ),
        )

    found = bootstrap_statistics(predicted, STEPS, units)
    for place in ((0, 1), (1, 2)):
        shaken = np.array(
            [loop(*place, draw, units.images[:, draw]) for draw in range(30)]
        )
        still = np.array([loop(*place, draw, np.ones(30)) for draw in range(30)])
        np.testing.assert_allclose(
            found[place], shaken - shaken.mean(0) + still.mean(0), atol=1e-6
        )


def test_draws_of_equally_large_networks_are_averaged_and_laid_out_by_their_levels():
    rng = np.random.default_rng(0)
    drawn = {name: rng.normal(size=(2, 3, 5, 6)) for name in "abc"}
    cells = pd.DataFrame({"model": ["a", "b", "c"], "weights": [9.0, 5.0, 9.0]})
    found = bootstrap_grid(cells, drawn, [6, 4], [1.0, 0.6, 0.8])
    assert found.shape == (3, 2, 2, 5, 6)
    for (s, level), (u, step) in itertools.product(
        enumerate((1, 2, 0)), enumerate((1, 0))
    ):
        np.testing.assert_allclose(found[s, u, 0], drawn["b"][step, level])
        np.testing.assert_allclose(
            found[s, u, 1], (drawn["a"] + drawn["c"])[step, level] / 2
        )


@pytest.fixture(scope="module")
def cells():
    """Over 5 x 3 x 4 levels: the error falls with SSIM and size, and rises with unseen classes."""
    levels = (
        np.linspace(0.6, 1, 5),
        np.array([0.0, 0.2, 0.4]),
        np.array([1e6, 2e6, 4e6, 8e6]),
    )
    s, u, w = np.meshgrid(*levels, indexing="ij")
    return cells_of_total(
        6 * (0.9 - 0.5 * s + 0.3 * u - 0.05 * np.log(w / 1e6)), *levels
    )


def test_intervals_are_the_percentiles_of_the_draws_and_few_classes_have_none(cells):
    levels, values = statistics.cell_array(cells)
    drawn = values[:, :, :, None] + np.linspace(-0.1, 0.1, 41)[:, None]
    means = statistics.marginals(cells)
    table = marginals_with_intervals(means, drawn, 20)
    np.testing.assert_allclose(table["error_mean_low"], means["error_mean"] - 0.095)
    high = means["kappa_loss_mean"] + 0.095
    np.testing.assert_allclose(table["kappa_loss_mean_high"], high)
    points = [tradeoff.trade_off_point(levels, drawn[:, :, :, n]) for n in (0, 40)]
    assert points[0]["ssim"] == pytest.approx(points[1]["ssim"]), (
        "what shifts all cells alike moves no point"
    )
    few = marginals_with_intervals(means, drawn, 7)
    assert few.filter(like="_low").isna().all(axis=None)


def test_the_interval_of_a_mean_over_classes_holds_the_truth():
    """Twenty classes of known error, drawn anew 200 times with 20 images each: the interval of the marginal covers it in 95 %."""
    rng, held, repeats = np.random.default_rng(0), 0, 200
    labels = np.repeat(np.arange(20), 20)
    for number in range(repeats):
        wrong = rng.random(400) < np.repeat(
            rng.beta(4, 6, 20), 20
        )  # the mean error of all classes is 0.4
        predicted = np.where(wrong, (labels + 1) % 20, labels).astype(np.int16)[
            None, None
        ]
        drawn = bootstrap_statistics(
            predicted, [20], resample(labels, [20], 200, seed=number)
        )[0, 0, :, 0]
        low, high = percentile_interval(drawn, 20)
        held += low <= 0.4 <= high
    assert 0.90 <= held / repeats <= 0.99
