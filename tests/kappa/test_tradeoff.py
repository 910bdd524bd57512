import numpy as np
import pytest
from scipy.ndimage import map_coordinates

from helpers.kappa import tradeoff
from helpers.kappa.statistics import AXES, CELL_STATISTICS
from tests.kappa.conftest import SSIM, UNSEEN, WEIGHTS, grid_of_total, uneven_grid


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
    steep = tradeoff.trade_off_point(levels, values, 1000)
    for point in (flat, steep):
        assert [point[axis] for axis in AXES] == pytest.approx([0.6, 0.5, 5.3e6])
    assert flat["F"] == pytest.approx(2.5)


def test_bounds_are_read_from_fits_of_the_marginals():
    """Sums of parabolas of x, u and log w: a marginal is a term plus others' means."""
    axes = np.meshgrid(SSIM, UNSEEN, WEIGHTS, indexing="ij")
    terms = {
        "generalization_bound": (
            lambda x: (1 - x) ** 2,
            lambda u: u**2,
            lambda w: 1e-3 * (5 - np.log(w / 1e6)) ** 2,
        ),
        "diversity_bound": (
            lambda x: -0.3 * x,
            lambda u: u**2,
            lambda w: -0.01 * np.log(w / 1e6) ** 2,
        ),
    }
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
    low, middle, high = [
        tradeoff.bounds_at(levels, values, (ssim, 0.0, 5e6))["diversity_bound_by_ssim"]
        for ssim in (0.1, 0.2, 0.3)
    ]
    assert (abs(low - 2 * middle + high) > 1e-6) == bends


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
