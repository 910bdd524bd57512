import itertools

import numpy as np
import pandas as pd
import pytest
from scipy.ndimage import map_coordinates
from sklearn.metrics import cohen_kappa_score

from helpers.kappa import statistics, tradeoff
from helpers.kappa.statistics import AXES, CELL_STATISTICS
from helpers.kappa.tradeoff import grid_of, resample, statistics_in_draws
from helpers.statistics.correlate import percentile_interval
from tests.kappa.conftest import SSIM, UNSEEN, WEIGHTS, grid_of_total, uneven_grid

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


@pytest.mark.parametrize("strength", [0, 0.1, 1, 5])
@pytest.mark.parametrize("noise", [0.1, 0.5])
def test_no_point_of_a_dense_grid_is_better(strength, noise):
    """By brute force over 51³ points, with SciPy's splines of order 1."""
    axes = (SSIM, 1 - UNSEEN[::-1], (WEIGHTS - WEIGHTS[0]) / np.ptp(WEIGHTS))
    fine = [np.linspace(axis[0], axis[-1], 51) for axis in axes]
    dense = np.stack(np.meshgrid(*fine, indexing="ij"), -1).reshape(-1, 3)
    for seed in range(3):
        levels, values = uneven_grid(seed, noise)
        point = tradeoff.trade_off_point(levels, values, strength)
        size = (point["weights"] - WEIGHTS[0]) / np.ptp(WEIGHTS)
        place = [point["ssim"], 1 - point["unseen_fraction"], size]
        tried = np.concatenate([[place], dense])
        numbers = [
            np.interp(column, axis, np.arange(len(axis)))
            for column, axis in zip(tried.T, axes, strict=True)
        ]
        totals = map_coordinates(values.sum(-1)[:, ::-1], numbers, order=1)
        objectives = totals + strength * (tried**2).sum(1)
        assert point["F"] == pytest.approx(totals[0], rel=1e-10)
        assert objectives[0] <= objectives.min() + 1e-10


def test_without_a_penalty_the_best_cell_is_taken_and_of_equal_ones_the_most_demanding():
    levels, values = uneven_grid(0)
    total = values.sum(-1)
    best = np.unravel_index(total.argmin(), total.shape)
    point = tradeoff.trade_off_point(levels, values, 0)
    expected = [of_axis[place] for of_axis, place in zip(levels, best, strict=True)]
    assert [point[axis] for axis in AXES] == pytest.approx(expected, rel=1e-7)
    flat = tradeoff.trade_off_point(*grid_of_total(np.full((9, 6, 8), 2.5)), 0)
    for point in (flat, tradeoff.trade_off_point(levels, values, 1000)):
        assert [point[axis] for axis in AXES] == pytest.approx([0.6, 0.5, 5.3e6])
    assert flat["F"] == pytest.approx(2.5)


def test_bounds_are_read_from_fits_of_the_marginals():
    """Sums of parabolas of x, u and log w: a marginal is a term plus others' means."""
    axes = np.meshgrid(SSIM, UNSEEN, WEIGHTS, indexing="ij")
    size = lambda w: np.log(w / 1e6)  # noqa: E731
    first = (lambda x: (1 - x) ** 2, np.square, lambda w: 1e-3 * (5 - size(w)) ** 2)
    second = (lambda x: -0.3 * x, np.square, lambda w: -0.01 * size(w) ** 2)
    terms = {"generalization_bound": first, "diversity_bound": second}
    levels, values = grid_of_total(np.zeros(axes[0].shape))
    parts = {}
    for bound, statistic in tradeoff.BOUNDS.items():
        pairs = zip(terms[bound], axes, strict=True)
        parts[bound] = [term(axis) for term, axis in pairs]
        values[..., CELL_STATISTICS.index(statistic)] = sum(parts[bound])
    point = tradeoff.trade_off_point(levels, values, 0.4)
    for bound, of_axes in parts.items():
        mean = np.mean(sum(of_axes))
        triples = zip(of_axes, terms[bound], AXES, strict=True)
        expected = [
            mean - part.mean() + term(point[axis]) for part, term, axis in triples
        ]
        readings = [point[f"{bound}_by_{axis}"] for axis in AXES]
        assert readings == pytest.approx(expected, abs=1e-9)
        assert point[bound] == pytest.approx(np.mean(expected), abs=1e-9)


@pytest.mark.parametrize(
    ("along", "bends"),
    [([0.7, 0.8], False), ([0.1, 0.2, 0.3], False), ([0.1, 0.2, 0.3, 0.4], True)],
)
def test_few_levels_lower_the_degree_of_a_fit(along, bends):
    values = np.random.default_rng(0).uniform(size=(len(along), 1, 1, 6))
    levels = [np.array(along), np.array([0.0]), np.array([5e6])]
    bounds = [tradeoff.bounds_at(levels, values, (x, 0, 5e6)) for x in (0.1, 0.2, 0.3)]
    (bend,) = np.diff([bound["diversity_bound_by_ssim"] for bound in bounds], 2)
    assert (abs(bend) > 1e-6) == bends


@pytest.mark.parametrize("single", range(3))
def test_an_axis_of_one_level_gives_the_problem_of_the_other_two(single):
    """That of two levels of this axis of which the second is far worse."""
    levels = [SSIM, UNSEEN, WEIGHTS]
    levels[single] = levels[single][:1]
    total = np.random.default_rng(5).uniform(1, 2, [len(level) for level in levels])
    point = tradeoff.trade_off_point(*grid_of_total(total, *levels), 0.3)
    twice = [*levels]
    twice[single] = levels[single] + [0, 0.1]
    worse = np.concatenate([total, total + 50], axis=single)
    other = tradeoff.trade_off_point(*grid_of_total(worse, *twice), 0.3)
    for name in (*AXES, "F"):
        assert point[name] == pytest.approx(other[name])


def test_undefined_cells_are_refused():
    levels, values = grid_of_total(np.ones((9, 6, 8)))
    values[0, 1, 2:4, 1] = np.nan
    with pytest.raises(ValueError, match=r"^2 of 432 cells of a family are"):
        tradeoff.trade_off_point(levels, values)


def test_table_2_has_the_papers_rows_with_intervals_beside_the_published_numbers():
    point = tradeoff.trade_off_point(*uneven_grid(0))
    shifts = [0, *np.linspace(-1, 1, 401)]
    rows = pd.DataFrame([pd.Series(point) + shift for shift in shifts])
    table = tradeoff.table2({"clip": rows}, 8).set_index("quantity")
    weights = table.loc["weights_millions"]
    assert weights["value"] == pytest.approx(point["weights"] / 1e6)
    assert weights["high"] == pytest.approx((point["weights"] + 0.95) / 1e6)
    others = table.drop("weights_millions")
    np.testing.assert_allclose(others["low"], others["value"] - 0.95)
    assert table.loc["ssim", "published_cifar100_efficientnet"] == 0.937
    assert weights["published_cifar100_efficientnet"] == 22
    few = tradeoff.table2({"clip": rows}, 7)
    assert few[["low", "high"]].isna().all(axis=None) and few["value"].notna().all()
