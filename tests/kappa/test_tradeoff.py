import numpy as np
import pytest
from scipy.ndimage import map_coordinates

from helpers.kappa import statistics, tradeoff
from tests.kappa.conftest import SSIM, UNSEEN, WEIGHTS, cells_of_total, uneven_cells


@pytest.fixture(scope="module")
def grids():
    return [statistics.cell_array(uneven_cells(seed)) for seed in range(3)]


def coordinates(point):
    return np.array(
        [
            point["ssim"],
            1 - point["unseen_fraction"],
            (point["weights"] - WEIGHTS[0]) / np.ptp(WEIGHTS),
        ]
    )


@pytest.mark.parametrize("strength", [0, 0.1, 1, 5])
@pytest.mark.parametrize("noise", [0.1, 0.5])
def test_no_point_of_a_dense_grid_is_better(strength, noise):
    """By brute force over 51³ points, with SciPy's spline interpolation of order 1 in level numbers."""
    nodes = (SSIM, 1 - UNSEEN[::-1], (WEIGHTS - WEIGHTS[0]) / np.ptp(WEIGHTS))
    dense = np.stack(
        np.meshgrid(
            *(np.linspace(ends[0], ends[-1], 51) for ends in nodes), indexing="ij"
        ),
        -1,
    ).reshape(-1, 3)
    for seed in range(3):
        levels, values = statistics.cell_array(uneven_cells(seed, noise))
        point = tradeoff.trade_off_point(levels, values, strength)
        tried = np.concatenate([[coordinates(point)], dense])
        places = [
            np.interp(tried[:, axis], along, np.arange(len(along)))
            for axis, along in enumerate(nodes)
        ]
        found = map_coordinates(values.sum(-1)[:, ::-1], places, order=1)
        objectives = found + strength * (tried**2).sum(1)
        assert point["F"] == pytest.approx(found[0], rel=1e-10)
        assert objectives[0] <= objectives.min() + 1e-10


def test_without_a_penalty_the_best_cell_is_taken_and_of_equal_ones_the_most_demanding(
    grids,
):
    for seed, grid in enumerate(grids):
        cells = uneven_cells(seed)
        best = cells.loc[cells[list(statistics.CELL_STATISTICS)].sum(axis=1).idxmin()]
        point = tradeoff.trade_off_point(*grid, 0)
        assert [point[axis] for axis in statistics.AXES] == pytest.approx(
            best[list(statistics.AXES)].tolist(), rel=1e-7
        )
    corner = {"ssim": 0.6, "unseen_fraction": 0.5, "weights": 5.3e6}
    flat = tradeoff.trade_off_point(
        *statistics.cell_array(cells_of_total(np.full((9, 6, 8), 2.5))), 0
    )
    steep = tradeoff.trade_off_point(*grids[0], 1000)
    for point in (flat, steep):
        assert {axis: point[axis] for axis in corner} == pytest.approx(corner)
    assert flat["F"] == pytest.approx(2.5)


def test_bounds_are_read_from_fits_of_the_marginals():
    """An error and a Kappa loss that are sums of parabolas of x, u and log w: the marginal is the own term plus the others' means."""
    x, u, w = np.meshgrid(SSIM, UNSEEN, WEIGHTS, indexing="ij")
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
    parts = {
        name: [term(axis) for term, axis in zip(own, (x, u, w), strict=True)]
        for name, own in terms.items()
    }
    cells = cells_of_total(np.zeros(x.shape))
    cells = cells.assign(
        **{
            statistic: sum(parts[bound]).ravel()
            for bound, statistic in tradeoff.BOUNDS.items()
        }
    )
    point = tradeoff.trade_off_point(*statistics.cell_array(cells), 0.4)
    for bound, own in terms.items():
        mean = np.mean(sum(parts[bound]))
        expected = [
            mean - part.mean() + term(point[axis])
            for part, term, axis in zip(parts[bound], own, statistics.AXES, strict=True)
        ]
        assert [
            point[f"{bound}_by_{axis}"] for axis in statistics.AXES
        ] == pytest.approx(expected, abs=1e-9)
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
    """That of two levels of this axis of which the second is far worse; of one size the penalty is that of the others."""
    levels = [SSIM, UNSEEN, WEIGHTS]
    levels[single] = levels[single][:1]
    total = np.random.default_rng(5).uniform(1, 2, [len(level) for level in levels])
    point = tradeoff.trade_off_point(
        *statistics.cell_array(cells_of_total(total, *levels)), 0.3
    )
    twice = [*levels]
    twice[single] = levels[single] + [0, 0.1]
    worse = np.concatenate([total, total + 50], axis=single)
    other = tradeoff.trade_off_point(
        *statistics.cell_array(cells_of_total(worse, *twice)), 0.3
    )
    assert {name: point[name] for name in statistics.AXES} == pytest.approx(
        {name: other[name] for name in statistics.AXES}
    )
    assert point["F"] == pytest.approx(other["F"])


def test_missing_and_undefined_cells_are_refused():
    cells = cells_of_total(np.ones((9, 6, 8)))
    cells.loc[3, "error_std"] = np.nan
    message = "^2 of 432 cells of a family are missing or undefined"
    with pytest.raises(ValueError, match=message):
        tradeoff.trade_off_point(*statistics.cell_array(cells.drop(index=7)))


def test_a_point_between_levels_is_found_to_the_last_digit():
    """F falls linearly with SSIM: ``-a x + x²`` is lowest at a / 2, far from all levels."""
    total = np.broadcast_to(10 - 2**0.5 * SSIM[:, None, None], (9, 1, 1))
    cells = cells_of_total(total, SSIM, UNSEEN[:1], WEIGHTS[:1])
    point = tradeoff.trade_off_point(*statistics.cell_array(cells))
    assert point["ssim"] == pytest.approx(0.5**0.5, abs=1e-7)
