import itertools
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.ndimage import map_coordinates

from helpers.kappa import statistics, tradeoff
from helpers.kappa.tradeoff import Bounds

SSIM = np.linspace(0.6, 1, 9).round(2)


UNSEEN = np.array([n / (50 + n) for n in range(0, 60, 10)])


WEIGHTS = np.array([5.3, 7.8, 9.2, 12, 19, 30, 43, 66]) * 1e6


LAMBDAS = (0, *np.geomspace(0.01, 10, 16))


def tidy(total, ssim=SSIM, unseen=UNSEEN, weights=WEIGHTS):
    """Cells whose six statistics sum to ``total``, (S, U, W)."""
    places = [dict(zip(statistics.AXES, place, strict=True)) for place in itertools.product(ssim, unseen, weights)]
    parts = np.arange(1, 7) / 21  # all different, so that a statistic left out would be seen
    cells = pd.DataFrame(places).assign(model=lambda table: table["weights"].map("{:g}".format))
    return cells.assign(**dict(zip(statistics.CELL_STATISTICS, np.outer(parts, np.ravel(total)), strict=True)))


def random_cells(seed):
    """The error falls with SSIM and size, rises with unseen classes, and is uneven."""
    x, u, z = np.meshgrid(SSIM, UNSEEN, np.arange(8) / 7, indexing="ij")
    return tidy(3 - 1.5 * x + 1.2 * u - 0.4 * z + np.random.default_rng(seed).normal(0, 0.1, x.shape))


@pytest.fixture(scope="module")
def surfaces():
    return [tradeoff.fit_surface(random_cells(seed)) for seed in range(3)]


def coordinates(point, weights=WEIGHTS):
    return np.array([point.ssim, 1 - point.unseen_fraction, (point.weights - weights[0]) / (weights[-1] - weights[0])])


def paraboloid(centre, steepness=(3.0, 2.0, 1.0)):
    """Cells of ``1 + sum b (v - centre)²`` with levels so close around the centre that straight lines between them do."""
    lows, highs = (0.6, 0.5, 0), (1, 1, 1)
    near = np.arange(-4, 5) * 4e-4 + 1e-4  # the centre itself is no level
    nodes = [np.unique(np.clip([low, high, *(at + near)], low, high)) for low, high, at in zip(lows, highs, centre, strict=True)]
    x, y, z = np.meshgrid(nodes[0], nodes[1][::-1], nodes[2], indexing="ij")
    total = 1 + sum(b * (v - at) ** 2 for b, v, at in zip(steepness, (x, y, z), centre, strict=True))
    return tidy(total, nodes[0], 1 - nodes[1][::-1], 1e6 * (1 + 99 * nodes[2]))


@pytest.mark.parametrize("centre", [(0.83, 0.71, 0.42), (0.6, 0.5, 0.0), (1.0, 1.0, 1.0), (0.6, 1.0, 0.3)])
def test_the_minimum_of_a_paraboloid_is_found_inside_and_in_a_corner(centre):
    point = tradeoff.trade_off_point(tradeoff.fit_surface(paraboloid(centre)), 0)
    np.testing.assert_allclose(coordinates(point, np.array([1e6, 100e6])), centre, rtol=0, atol=1e-3)
    assert point.F == point.objective == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("coefficients", [(1.0, 1.0, 1.0), (0.8, 0.25, 0.5)])
def test_lambda_draws_a_paraboloid_to_where_calculus_puts_it(coefficients):
    steepness, strength, place = np.array([3.0, 2.0, 1.0]), 0.5, np.array([0.72, 0.61, 0.44])
    # The sum of b (v - c)² and lambda a v² is least at b c / (b + lambda a); levels are dense around that place.
    centre = place * (steepness + strength * np.array(coefficients)) / steepness
    cells = paraboloid(place)
    v = np.stack([cells["ssim"], 1 - cells["unseen_fraction"], (cells["weights"] / 1e6 - 1) / 99])
    total = 1 + steepness @ (v - centre[:, None]) ** 2
    cells[list(statistics.CELL_STATISTICS)] = np.outer(total, np.full(6, 1 / 6))
    point = tradeoff.trade_off_point(tradeoff.fit_surface(cells), strength, coefficients=coefficients)
    found = coordinates(point, np.array([1e6, 100e6]))
    np.testing.assert_allclose(found, place, rtol=0, atol=1e-3)
    assert point.objective == pytest.approx(point.F + strength * np.array(coefficients) @ found**2, rel=1e-12)


@pytest.mark.parametrize("strength", [0, 0.1, 1, 5])
def test_no_point_of_a_dense_grid_is_better(surfaces, strength):
    """Against SciPy's spline interpolation of order 1 in level numbers, on 51³ points."""
    nodes = (SSIM, 1 - UNSEEN[::-1], (WEIGHTS - WEIGHTS[0]) / np.ptp(WEIGHTS))
    dense = np.stack(np.meshgrid(*(np.linspace(ends[0], ends[-1], 51) for ends in nodes), indexing="ij"), -1).reshape(-1, 3)
    for seed, surface in enumerate(surfaces):
        total = statistics.cell_array(random_cells(seed))[1].sum(-1)[:, ::-1]
        point = tradeoff.trade_off_point(surface, strength)
        tried = np.concatenate([[coordinates(point)], dense])
        places = [np.interp(tried[:, axis], along, np.arange(len(along))) for axis, along in enumerate(nodes)]
        values = map_coordinates(total, places, order=1)
        objectives = values + strength * (tried**2).sum(1)
        assert (point.F, point.objective) == pytest.approx((values[0], objectives[0]), rel=1e-10)
        assert point.objective <= objectives.min() + 1e-10


def test_without_a_penalty_the_best_cell_is_taken(surfaces):
    for seed, surface in enumerate(surfaces):
        cells = random_cells(seed)
        best = cells.loc[cells[list(statistics.CELL_STATISTICS)].sum(axis=1).idxmin()]
        point = tradeoff.trade_off_point(surface, 0)
        assert (point.ssim, point.unseen_fraction, point.weights) == pytest.approx(tuple(best[list(statistics.AXES)]), rel=1e-12)


def test_of_equal_cells_the_most_demanding_is_taken():
    point = tradeoff.trade_off_point(tradeoff.fit_surface(tidy(np.full((9, 6, 8), 2.5))), 0)
    assert (point.ssim, point.unseen_fraction, point.weights, point.F) == pytest.approx((0.6, 0.5, 5.3e6, 2.5))


def test_a_large_lambda_leads_to_the_most_demanding_corner(surfaces):
    point = tradeoff.trade_off_point(surfaces[0], 1000)
    assert (point.ssim, point.unseen_fraction, point.weights) == pytest.approx((0.6, 0.5, 5.3e6), rel=1e-12)


def test_the_point_never_lies_outside_its_bounds(surfaces):
    rng = np.random.default_rng(1)
    for surface in surfaces:
        for _ in range(12):
            low, high = np.sort(rng.uniform(0.6, 1, 2))
            bounds = Bounds(low, high, rng.uniform(0, 0.5), rng.uniform(5.3e6, 66e6))
            point = tradeoff.trade_off_point(surface, rng.choice(LAMBDAS), bounds)
            assert low <= point.ssim <= high
            assert bounds.unseen_fraction_at_least <= point.unseen_fraction <= 0.5
            assert 5.3e6 <= point.weights <= bounds.weights_at_most


@pytest.mark.parametrize(
    ("bounds", "place"),
    [
        (Bounds(ssim_at_least=0.73, ssim_at_most=0.73), {"ssim": 0.73}),
        (Bounds(unseen_fraction_at_least=0.5), {"unseen_fraction": 0.5}),
        (Bounds(unseen_fraction_at_least=1 / 6), {}),
        (Bounds(weights_at_most=5.3e6), {"weights": 5.3e6}),
        (
            Bounds(ssim_at_most=0.6, unseen_fraction_at_least=0.5, weights_at_most=5.3e6),
            {"ssim": 0.6, "unseen_fraction": 0.5, "weights": 5.3e6},
        ),
    ],
)
def test_bounds_may_leave_a_plane_or_a_point(surfaces, bounds, place):
    for strength in (0, 1):
        point = tradeoff.trade_off_point(surfaces[1], strength, bounds)
        assert {name: getattr(point, name) for name in place} == place
        assert point.unseen_fraction >= bounds.unseen_fraction_at_least


def test_tighter_bounds_are_never_better(surfaces):
    for strength in (0.1, 1):
        loose = Bounds(ssim_at_most=0.95)
        tight = replace(loose, unseen_fraction_at_least=0.21, weights_at_most=11e6)
        found = [tradeoff.trade_off_point(surfaces[2], strength, bounds).objective for bounds in (tradeoff.UNBOUNDED, loose, tight)]
        assert found == sorted(found)


def test_bounds_beyond_what_was_measured_change_nothing(surfaces):
    wide = Bounds(0, 2, -1, 1e12)
    assert tradeoff.trade_off_point(surfaces[0], 1, wide) == tradeoff.trade_off_point(surfaces[0], 1)


def test_a_surface_is_left_as_it_was(surfaces):
    first = tradeoff.trade_off_point(surfaces[0], 1)
    tradeoff.trade_off_point(surfaces[0], 0.1, Bounds(ssim_at_most=0.7))
    assert tradeoff.trade_off_point(surfaces[0], 1) == first


def test_the_penalty_never_grows_with_lambda_and_the_error_never_falls(surfaces):
    for surface in surfaces:
        for bounds, coefficients in ((tradeoff.UNBOUNDED, (1.0, 1.0, 1.0)), (Bounds(unseen_fraction_at_least=0.1), (0.285, 0.8, 0.8))):
            table = tradeoff.sensitivity(surface, LAMBDAS, bounds, coefficients)
            # What two minima found to 1e-12 allow, where lambda changes by 0.005 at least.
            assert np.diff(table["penalty"]).max() <= 1e-9
            assert np.diff(table["F"]).min() >= -1e-9
            assert table["penalty"].nunique() > 3
            np.testing.assert_allclose(table["objective"], table["F"] + table["lambda"] * table["penalty"])


def test_sensitivity_holds_the_points(surfaces):
    table = tradeoff.sensitivity(surfaces[0], [2.0, 0.1])
    assert table["lambda"].tolist() == [2.0, 0.1]
    point = tradeoff.trade_off_point(surfaces[0], 0.1)
    row = table.iloc[1]
    assert [row[name] for name in statistics.AXES] == [getattr(point, name) for name in statistics.AXES]
    assert (row["generalization_bound"], row["diversity_bound"]) == (point.generalization_bound.mean, point.diversity_bound.mean)


def test_bounds_are_read_from_fits_of_the_marginals():
    """An error and a Kappa loss that are sums of parabolas of x, u and log w: the marginal is the own term plus the others' means."""
    x, u, w = np.meshgrid(SSIM, UNSEEN, WEIGHTS, indexing="ij")
    terms = {
        "error_mean": (lambda x: (1 - x) ** 2, lambda u: u**2, lambda w: 1e-3 * (5 - np.log(w / 1e6)) ** 2),
        "kappa_loss_mean": (lambda x: -0.3 * x, lambda u: u**2, lambda w: -0.01 * np.log(w / 1e6) ** 2),
    }
    parts = {name: [term(axis) for term, axis in zip(own, (x, u, w), strict=True)] for name, own in terms.items()}
    cells = tidy(np.zeros(x.shape)).assign(**{name: sum(part).ravel() for name, part in parts.items()})
    surface = tradeoff.fit_surface(cells)
    point = tradeoff.trade_off_point(surface, 0.4, Bounds(ssim_at_most=0.93, weights_at_most=25e6))
    assert surface.degrees == (2, 2, 2)
    for name, reading in (("error_mean", point.generalization_bound), ("kappa_loss_mean", point.diversity_bound)):
        mean, place = np.mean(sum(parts[name])), [getattr(point, axis) for axis in statistics.AXES]
        expected = [mean - part.mean() + term(at) for part, term, at in zip(parts[name], terms[name], place, strict=True)]
        assert reading == pytest.approx((*expected, np.mean(expected)), abs=1e-10)


def test_a_fit_smooths_what_only_one_level_has():
    """One cell in 432 is wrong by 1: no reading moves by more than what its level's mean moves by."""
    cells = tidy(np.zeros((9, 6, 8)))
    cells.loc[200, "error_mean"] = 1.0
    surface = tradeoff.fit_surface(cells)
    place = cells.loc[200, list(statistics.AXES)]
    for axis, fit, levels in zip(statistics.AXES, surface.error_fits, surface.levels, strict=True):
        marginal = cells.groupby(axis)["error_mean"].mean()
        read = tradeoff.fitted(axis, fit, levels)
        assert np.abs(read).max() < marginal[place[axis]] < 1
        assert read.mean() == pytest.approx(marginal.mean())


def test_few_levels_lower_the_degree_so_that_no_fit_interpolates_and_one_level_is_constant():
    total = np.random.default_rng(0).uniform(1, 2, (2, 3, 1))
    surface = tradeoff.fit_surface(tidy(total, [0.7, 1.0], [0, 0.1, 0.3], [4e6]))
    assert surface.degrees == (1, 1, 0)
    assert tradeoff.fit_surface(tidy(np.ones((4, 5, 9)), SSIM[:4], UNSEEN[:5], np.arange(1, 10) * 1e6)).degrees == (2, 2, 2)
    point = tradeoff.trade_off_point(surface, 0.2)
    assert point.weights == 4e6
    assert point.generalization_bound.weights == pytest.approx(total.mean() / 21)
    penalty = point.ssim**2 + (1 - point.unseen_fraction) ** 2  # z is 0
    assert point.objective == pytest.approx(point.F + 0.2 * penalty)


@pytest.mark.parametrize("single", range(3))
def test_an_axis_of_one_level_gives_the_problem_of_the_other_two(single):
    rng = np.random.default_rng(5)
    levels = [SSIM, UNSEEN, WEIGHTS]
    levels[single] = levels[single][[2]]
    point = tradeoff.trade_off_point(tradeoff.fit_surface(tidy(rng.uniform(1, 2, [len(level) for level in levels]), *levels)), 0.3)
    assert getattr(point, statistics.AXES[single]) == pytest.approx(levels[single][0], rel=1e-15)
    for axis, level in zip(statistics.AXES, levels, strict=True):
        assert level[0] <= getattr(point, axis) <= level[-1]


def test_one_cell_is_its_own_trade_off_point():
    point = tradeoff.trade_off_point(tradeoff.fit_surface(tidy([[[2.1]]], [0.9], [0.2], [7e6])), 0.5)
    assert (point.ssim, point.unseen_fraction, point.weights, point.F) == pytest.approx((0.9, 0.2, 7e6, 2.1))
    assert point.objective == pytest.approx(2.1 + 0.5 * (0.81 + 0.64))
    assert point.diversity_bound == pytest.approx((0.4,) * 4)


def test_missing_and_undefined_cells_are_named():
    cells = tidy(np.ones((9, 6, 8)))
    cells.loc[3, "error_std"] = np.nan
    message = "2 of 432 cells are missing or undefined (ssim/unseen_fraction/weights): 0.6/0/1.2e+07, 0.6/0/6.6e+07"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        tradeoff.fit_surface(cells.drop(index=7))
    with pytest.raises(ValueError, match=r"^72 of 432 cells .*: 0.6/0.5/5.3e\+06, .*, 0.6/0.5/1.9e\+07 and 67 more$"):
        tradeoff.fit_surface(cells.assign(error_std=cells["ssim"].mask(cells["unseen_fraction"] == 0.5)))


def test_weights_without_a_logarithm_are_refused():
    with pytest.raises(ValueError, match="weights 0 must be above 0, because their logarithm is taken"):
        tradeoff.fit_surface(tidy(np.ones((1, 1, 2)), [1.0], [0.0], [0, 5]))


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (Bounds(ssim_at_most=0.5), "ssim from -inf to 0.5 holds nothing of what was measured, 0.6 to 1"),
        (Bounds(ssim_at_least=0.9, ssim_at_most=0.8), "ssim from 0.9 to 0.8 holds nothing"),
        (Bounds(unseen_fraction_at_least=0.6), "unseen_fraction from 0.6 to inf holds nothing of what was measured, 0 to 0.5"),
        (Bounds(weights_at_most=1e6), "weights from -inf to 1e+06 holds nothing of what was measured, 5.3e+06 to 6.6e+07"),
        (Bounds(ssim_at_least=np.nan), "ssim from nan to inf holds nothing"),
    ],
)
def test_bounds_that_leave_nothing_are_refused(surfaces, bounds, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        tradeoff.trade_off_point(surfaces[0], 1, bounds)


@pytest.mark.parametrize(
    ("strength", "coefficients"), [(-1, (1, 1, 1)), (np.nan, (1, 1, 1)), (np.inf, (1, 0, 1)), (1, (1, -1, 1)), (1, (1, 1))]
)
def test_a_negative_or_undefined_penalty_is_refused(surfaces, strength, coefficients):
    message = f"lambda {strength} and the coefficients {coefficients} must be numbers from 0, the latter three"
    with pytest.raises(ValueError, match=re.escape(message)):
        tradeoff.trade_off_point(surfaces[0], strength, coefficients=coefficients)
