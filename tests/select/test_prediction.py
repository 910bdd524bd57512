import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, Ridge

from helpers.select import prediction


def study(seed=0, cells=20, each=2, measures=6, noise=0.02):
    generator = np.random.default_rng(seed)
    own = generator.normal(size=(cells, measures))
    groups = np.repeat(np.arange(cells), each)
    values = own[groups] + 0.1 * generator.normal(size=(cells * each, measures))
    gap = 0.3 + 0.08 * values[:, 0] + np.repeat(noise * generator.normal(size=cells), each)
    return values, gap, groups


def test_the_fit_is_ridge_regression_on_the_strongest_measures():
    values, gap, _ = study()
    fitted = prediction.fit(values, gap)
    strength = np.abs(np.corrcoef(values.T, gap)[-1, :-1])
    assert fitted.chosen.tolist() == np.argsort(-strength)[:3].tolist()
    z = (values[:, fitted.chosen] - values[:, fitted.chosen].mean(0)) / values[:, fitted.chosen].std(0)
    theirs = Ridge(alpha=fitted.penalty * len(gap)).fit(z, gap)
    np.testing.assert_allclose(prediction.predict_gap(fitted, values), theirs.predict(z), atol=1e-12)


def test_the_penalty_has_the_least_error_of_models_left_out_by_hand():
    values, gap, _ = study(seed=3, cells=7, each=1, measures=2, noise=0.1)
    fitted = prediction.fit(values, gap)
    z = (values - values.mean(0)) / values.std(0)
    errors = []
    for penalty in prediction._PENALTIES:
        hat = z @ np.linalg.inv(z.T @ z + len(gap) * penalty * np.eye(2)) @ z.T + 1 / len(gap)
        errors.append((((gap - hat @ gap) / (1 - np.diag(hat))) ** 2).sum())
    assert fitted.penalty == prediction._PENALTIES[int(np.argmin(errors))]


def test_measures_on_any_scale_and_of_any_sign_predict_the_same():
    values, gap, _ = study()
    scales = np.array([1e6, -1e-6, 3, -1, 1, 1])
    one = prediction.predict_gap(prediction.fit(values, gap), values)
    other = prediction.predict_gap(prediction.fit(values * scales, gap), values * scales)
    np.testing.assert_allclose(one, other, atol=1e-9)


def test_without_anything_to_fit_the_mean_is_predicted():
    for values in (np.ones((5, 2)), np.empty((5, 0))):
        fitted = prediction.fit(values, [0.1, 0.2, 0.3, 0.4, 0.5])
        assert not len(fitted.chosen)
        np.testing.assert_allclose(prediction.predict_gap(fitted, values[:2]), 0.3)
    assert np.isnan(prediction.fit(np.empty((0, 2)), []).intercept)


def test_an_undefined_measure_gives_no_prediction():
    values, gap, groups = study()
    fresh = values[:2].copy()
    fresh[1, prediction.fit(values, gap).chosen[0]] = np.nan
    found = prediction.intervals(values, gap, groups, fresh)
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1]).all()


def test_the_interval_is_the_jackknife_plus_where_every_cell_has_one_model():
    values, gap, groups = study(cells=12, each=1, measures=2)
    fresh = np.array([[0.3, -0.2], [1.5, 0.4]])
    n, level = len(gap), 0.8
    upper, lower = [], []
    for i in range(n):
        fitted = prediction.fit(np.delete(values, i, 0), np.delete(gap, i))
        residual = abs(gap[i] - prediction.predict_gap(fitted, values[i : i + 1])[0])
        guess = prediction.predict_gap(fitted, fresh)
        upper.append(guess + residual)
        lower.append(guess - residual)
    place = int(np.ceil(level * (n + 1)))  # Barber et al. 2021: the ceil((1 - alpha)(n + 1))-th smallest, and its mirror image
    expected = np.column_stack([np.sort(lower, 0)[n - place], np.sort(upper, 0)[place - 1]])
    np.testing.assert_allclose(prediction.intervals(values, gap, groups, fresh, level), expected, atol=1e-12)


def test_a_cell_counts_once_however_many_copies_it_has():
    values, gap, groups = study(cells=10, each=1)
    copies = np.repeat(np.arange(10), 3)
    fresh = values[:3] + 0.1
    one, many = (prediction.intervals(values[rows], gap[rows], groups[rows], fresh) for rows in (np.arange(10), copies))
    # The fits differ a little, since their penalty counts models.
    np.testing.assert_allclose(one, many, atol=0.05)


def test_too_few_cells_for_the_level_give_an_infinite_interval_and_fewer_than_four_none():
    values, gap, groups = study(cells=5, each=1)
    assert np.isinf(prediction.intervals(values, gap, groups, values[:1], level=0.95)).all()
    assert np.isfinite(prediction.intervals(values, gap, groups, values[:1], level=0.8)).all()
    assert np.isnan(prediction.intervals(values[:3], gap[:3], groups[:3], values[:1])).all()
    with pytest.raises(ValueError, match=r"level 1 must be"):
        prediction.intervals(values, gap, groups, values, level=1)


def test_intervals_cover_as_often_as_they_promise():
    hits = []
    for seed in range(60):
        values, gap, groups = study(seed=seed, cells=21, each=2, noise=0.05)
        low, high = prediction.intervals(values[:-2], gap[:-2], groups[:-2], values[-1:], level=0.8)[0]
        hits.append(low <= gap[-1] <= high)
    # Binomial with 60 draws at 0.8: 0.65 to 0.95 is three standard deviations.
    assert 0.65 <= np.mean(hits) <= 0.95


def test_only_gaps_that_can_be_are_kept():
    found = prediction.possible(np.array([[-np.inf, np.inf], [-0.5, 0.2], [-np.inf, np.inf]]), [0.9, 0.9, np.nan])
    np.testing.assert_allclose(found, [[-0.1, 0.9], [-0.1, 0.2], [-1, 1]])
    sampled = prediction.possible(np.array([[-np.inf, np.inf]] * 2), [0.8, 0.0], images=100)
    np.testing.assert_allclose(sampled, [[-0.28, 0.88], [-1, 0.03]])


def test_the_trial_holds_whole_groups_out():
    values, gap, groups = study(noise=0.01)
    trial = prediction.coverage(values, gap, groups, groups, np.full(len(gap), 0.95))
    assert trial.groups == 20
    assert 0.6 <= trial.coverage <= 1
    assert trial.error < 0.5 * trial.mean_error
    by_hand = np.mean([abs(gap[i] - gap[groups != groups[i]].mean()) for i in range(len(gap))])
    assert trial.mean_error == pytest.approx(by_hand)
    useless = prediction.coverage(np.random.default_rng(1).normal(size=values.shape), gap, groups, groups, np.full(len(gap), 0.95))
    assert useless.error > 0.9 * useless.mean_error
    assert np.isnan(prediction.coverage(values, gap, groups, np.zeros(len(gap)), np.full(len(gap), 0.95)).coverage)


def test_probabilities_sum_to_one_and_know_a_clear_winner():
    values, gap, groups = study(noise=0.005)
    fresh = np.zeros((4, 6))
    fresh[:, 0] = [-1.8, 0.5, 0.6, 1.0]
    ranks = prediction.rank_probabilities(values, gap, groups, fresh, np.full(4, np.nan), draws=200)
    assert ranks.best.sum() == pytest.approx(1)
    assert ranks.best[0] > 0.95
    assert (ranks.low <= ranks.high).all()
    again = prediction.rank_probabilities(values, gap, groups, fresh, np.full(4, np.nan), draws=200)
    np.testing.assert_array_equal(ranks.best, again.best)


def test_equal_checkpoints_share_the_probability():
    values, gap, groups = study()
    ranks = prediction.rank_probabilities(values, gap, groups, np.zeros((4, 6)), np.full(4, np.nan), draws=400)
    # Binomial with 400 draws at a quarter: 0.07 is over three standard deviations.
    np.testing.assert_allclose(ranks.best, 0.25, atol=0.07)
    exact = prediction.rank_probabilities(values, gap, groups, np.zeros((4, 6)), np.full(4, -1.0), draws=20)
    np.testing.assert_allclose(exact.best[np.isfinite(exact.best)].sum(), 1)


def test_an_undefined_checkpoint_has_no_probability_and_takes_none():
    values, gap, groups = study()
    fresh = np.zeros((3, 6))
    fresh[1] = np.nan
    ranks = prediction.rank_probabilities(values, gap, groups, fresh, np.full(3, np.nan), draws=50)
    assert np.isnan(ranks.best[1])
    assert np.nansum(ranks.best) == pytest.approx(1)
    assert np.isnan(prediction.rank_probabilities(values[:4], gap[:4], groups[:4], fresh, np.full(3, np.nan)).best).all()


def test_least_squares_is_the_limit_of_no_penalty():
    values, gap, _ = study(noise=0.0, measures=2)
    gap = 0.3 + values @ [0.1, -0.05]
    fitted = prediction.fit(values, gap)
    assert fitted.penalty == prediction._PENALTIES[0]
    theirs = LinearRegression().fit(values, gap).predict(values)
    assert np.abs(prediction.predict_gap(fitted, values) - theirs).max() < 0.05 * np.ptp(gap)


def test_an_interval_beyond_all_possible_gaps_still_holds_the_prediction():
    train, images = [0.05], 200
    low, high = prediction.possible(np.array([[0.6, 0.8]]), train, images)[0]
    guess = prediction.possible(np.array([[0.7]]), train)[0, 0]
    assert low <= guess <= high
    assert (low, guess) == (0.05, 0.05)
    assert high == pytest.approx(0.05 + 2 * np.sqrt(0.05 * 0.95 / 200))
    low, high = prediction.possible(np.array([[-2.0, -1.5]]), [0.9], images)[0]
    assert low < high == pytest.approx(-0.1)
