import itertools
import re

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import cohen_kappa_score, confusion_matrix

from helpers.kappa import statistics

SSIM, UNSEEN = (0.6, 0.8, 1.0), (0.0, 0.2)


WEIGHTS = {"small": 1e6, "middle": 3e6, "large": 9e6, "huge": 27e6}


def a_cell_each(value, models=WEIGHTS, ssim=SSIM, unseen=UNSEEN):
    """The tidy array whose statistics are ``value(model, ssim, unseen, number of the statistic)``."""
    return pd.DataFrame(
        [
            {"model": model, "weights": models[model], "ssim": s, "unseen_fraction": u}
            | {name: value(model, s, u, number) for number, name in enumerate(statistics.CELL_STATISTICS)}
            for model, s, u in itertools.product(models, ssim, unseen)
        ]
    )


@pytest.fixture
def cells():
    rng = np.random.default_rng(0)
    return a_cell_each(lambda *_: rng.uniform())


def classes(errors, losses):
    return pd.DataFrame({"error": errors, "kappa_loss": losses}, dtype=float)


def test_a_confusion_by_hand():
    table = statistics.per_class([[8, 2, 0], [1, 4, 0], [0, 0, 5]])
    assert table.columns.tolist() == ["class_index", "n", "error", "kappa", "kappa_loss"]
    assert table["n"].tolist() == [10, 5, 5]
    np.testing.assert_allclose(table["error"], [0.2, 0.2, 0])
    # Class 0: Po = 17/20; Pe = (10 * 9 + 10 * 11) / 400 = 1/2; class 1: Po = 17/20, Pe = (5 * 6 + 15 * 14) / 400 = 3/5.
    np.testing.assert_allclose(table["kappa"], [0.7, 0.625, 1])
    np.testing.assert_allclose(table["kappa_loss"], [0.3, 0.375, 0], rtol=1e-15)


@pytest.mark.parametrize("seed", range(5))
def test_kappa_is_sklearns_one_against_rest(seed):
    rng = np.random.default_rng(seed)
    true, predicted = rng.integers(7, size=(2, 400))
    predicted = np.where(rng.uniform(size=400) < 0.2 * seed, true, predicted)
    table = statistics.per_class(confusion_matrix(true, predicted, labels=range(7)))
    expected = [cohen_kappa_score(true == index, predicted == index) for index in range(7)]
    np.testing.assert_allclose(table["kappa"], expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(table["kappa_loss"], 1 - np.array(expected), rtol=0, atol=1e-14)
    np.testing.assert_allclose(table["error"], [np.mean(predicted[true == index] != index) for index in range(7)])


def test_a_perfect_classifier_has_no_loss_to_the_last_digit():
    table = statistics.per_class(np.diag([3, 17, 49]))
    assert table["kappa_loss"].tolist() == [0, 0, 0] and table["kappa"].tolist() == [1, 1, 1] and table["error"].tolist() == [0, 0, 0]


def test_a_class_that_is_never_predicted_has_loss_1():
    table = statistics.per_class([[5, 3, 0], [2, 6, 0], [4, 1, 0]])
    assert (table["kappa"][2], table["kappa_loss"][2], table["error"][2]) == (0, 1, 1)


def test_two_classes_mixed_up_have_the_worst_loss():
    assert statistics.per_class([[0, 6], [6, 0]])["kappa_loss"].tolist() == [2, 2]


def test_a_class_without_test_images_is_undefined_and_counted():
    table = statistics.per_class([[5, 1, 2], [0, 0, 0], [1, 0, 6]])
    assert table.loc[1, ["error", "kappa", "kappa_loss"]].isna().all() and table["n"][1] == 0
    assert table.drop(index=1).notna().all(axis=None)
    found = statistics.cell_statistics(table)
    assert (found["classes"], found["dropped"]) == (2, 1)
    assert statistics.per_class(np.zeros((2, 2)))["kappa"].isna().all()


def test_one_class_only_is_stored_as_loss_1_as_in_the_authors_code():
    table = statistics.per_class([[9, 0], [0, 0]])
    assert (table["error"][0], table["kappa"][0], table["kappa_loss"][0]) == (0, 0, 1)
    assert table.loc[1, ["error", "kappa", "kappa_loss"]].isna().all()


def test_classes_follow_a_permutation_and_counts_a_scale():
    confusion = np.random.default_rng(3).integers(0, 30, (5, 5))
    order = [3, 0, 4, 1, 2]
    table = statistics.per_class(confusion)
    permuted = statistics.per_class(confusion[np.ix_(order, order)])
    columns = ["n", "error", "kappa", "kappa_loss"]
    np.testing.assert_array_equal(permuted[columns], table.loc[order, columns])
    scaled = statistics.per_class(confusion * 10_000)
    np.testing.assert_array_equal(scaled[columns[1:]], table[columns[1:]])


@pytest.mark.parametrize(
    ("confusion", "message"),
    [
        ([[1, 2, 3], [4, 5, 6]], "a confusion matrix has a row and a column per class, got shape (2, 3)"),
        ([1, 2], "got shape (2,)"),
        ([[0.5, 0], [0, 1]], "a confusion matrix counts images, got 0.5; allowed are whole numbers from 0"),
        ([[-1, 0], [0, 1]], "got -1.0;"),
        ([[np.nan, 0], [0, 1]], "got nan;"),
    ],
)
def test_what_is_no_confusion_matrix_is_refused(confusion, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        statistics.per_class(confusion)


def test_statistics_by_hand():
    found = statistics.cell_statistics(classes([0.1, 0.2, 0.6], [0.2, 0.4, 0.6]))
    assert tuple(found) == (*statistics.CELL_STATISTICS, "classes", "dropped")
    # Sum of squares 0.04 + 0.01 + 0.09 over 2; the 10th percentile lies 0.2 of the way from the first to the second.
    expected = [0.3, np.sqrt(0.07), 0.12, 0.4, 0.2, 0.24, 3, 0]
    np.testing.assert_allclose(list(found.values()), expected)


def test_statistics_without_enough_classes_are_undefined():
    one = statistics.cell_statistics(classes([0.1], [0.3]))
    assert (one["error_mean"], one["kappa_loss_10th_percentile"]) == (0.1, 0.3)
    assert np.isnan(one["error_std"]) and np.isnan(one["kappa_loss_std"])
    none = statistics.cell_statistics(classes([np.nan], [np.nan]))
    assert all(np.isnan(none[name]) for name in statistics.CELL_STATISTICS) and (none["classes"], none["dropped"]) == (0, 1)


def test_divergence_equals_its_definition_by_a_plain_loop():
    rng = np.random.default_rng(1)
    cell, reference = (classes(rng.uniform(0, 1, 40), rng.uniform(0, 1.5, 40)) for _ in range(2))
    fractions = []
    for table in (cell, reference):
        counted = np.zeros((10, 10))
        for error, loss in table.to_numpy():
            counted[min(int(error * 10), 9), min(int(loss * 10), 9)] += 1 / 40
        fractions.append((counted + 1e-10) / (1 + 100e-10))
    p, q = fractions
    assert statistics.kappa_error_divergence(cell, reference) == pytest.approx((p * np.log(p / q)).sum(), rel=1e-10)


def test_divergence_is_0_from_itself_and_largest_for_other_bins():
    near, far = classes([0.05] * 3, [0.05] * 3), classes([0.95] * 3, [1.9] * 3)
    assert statistics.kappa_error_divergence(near, near) == 0
    assert statistics.kappa_error_divergence(far, near) == pytest.approx(np.log(1e10), rel=1e-6)
    shuffled = classes([0.05, 0.5, 0.9], [0.1, 0.6, 0.9])
    assert statistics.kappa_error_divergence(shuffled, shuffled.iloc[::-1]) == 0


def test_an_error_of_whole_tenths_falls_into_its_own_bin():
    tenths = np.arange(11) / 10
    for index, tenth in enumerate(tenths[:10]):
        same, below = classes([tenth], [0]), classes([tenth + 0.05], [0])
        assert statistics.kappa_error_divergence(same, below) == 0, index
    assert statistics.kappa_error_divergence(classes([1], [1]), classes([0.95], [2])) == 0  # the last bin is closed


def test_divergence_without_classes_is_undefined():
    full, none = classes([0.1], [0.1]), classes([np.nan], [np.nan])
    assert np.isnan(statistics.kappa_error_divergence(full, none)) and np.isnan(statistics.kappa_error_divergence(none, full))
    both = classes([0.1, np.nan], [0.1, np.nan])
    assert statistics.kappa_error_divergence(both, full) == 0


def test_the_grid_holds_every_cell_at_its_place(cells):
    levels, values = statistics.cell_array(cells.sample(frac=1, random_state=0))
    assert [list(level) for level in levels] == [list(SSIM), list(UNSEEN), list(WEIGHTS.values())]
    assert values.shape == (3, 2, 4, 6)
    for row in cells.itertuples():
        place = tuple(list(level).index(value) for level, value in zip(levels, (row.ssim, row.unseen_fraction, row.weights), strict=True))
        np.testing.assert_array_equal(values[place], [getattr(row, name) for name in statistics.CELL_STATISTICS])


def test_a_missing_cell_is_nan_on_the_grid(cells):
    assert np.isnan(statistics.cell_array(cells.drop(index=5))[1]).sum() == 6


def test_what_fits_no_grid_is_refused(cells):
    message = "2 cells lie at {'ssim': 0.6, 'unseen_fraction': 0.0, 'weights': 1000000.0} (small, twin); average them, or keep one"
    with pytest.raises(ValueError, match=re.escape(message)):
        statistics.cell_array(pd.concat([cells, cells.iloc[[0]].assign(model="twin")]))
    with pytest.raises(ValueError, match="0 cells: there must be one at least"):
        statistics.cell_array(cells.iloc[:0])
    with pytest.raises(ValueError, match="each needs a finite ssim, unseen_fraction, weights"):
        statistics.cell_array(cells.assign(weights=np.nan))


def test_marginals_are_means_over_the_two_other_axes(cells):
    table = statistics.marginals(cells)
    assert table["axis"].tolist() == ["ssim"] * 3 + ["unseen_fraction"] * 2 + ["weights"] * 4
    assert table["n"].tolist() == [8] * 3 + [12] * 2 + [6] * 4
    for row in table.itertuples():
        chosen = cells[cells[row.axis] == row.level]
        for name in statistics.CELL_STATISTICS:
            assert getattr(row, name) == pytest.approx(chosen[name].mean())


def test_a_marginal_with_a_missing_or_undefined_cell_is_nan(cells):
    place = {"ssim": 0.6, "unseen_fraction": 0.2, "weights": 1e6}
    hole = (cells[list(place)] == pd.Series(place)).all(axis=1)
    for damaged in (cells[~hole], cells.assign(error_std=cells["error_std"].mask(hole))):
        table = statistics.marginals(damaged).set_index(["axis", "level"])["error_std"]
        assert set(table[table.isna()].index) == set(place.items())


def test_slices_by_hand():
    cells = a_cell_each(lambda model, s, u, number: WEIGHTS[model] * 1e-8 + s + 10 * u + 100 * number, ssim=(0.6, 1.0), unseen=(0, 0.5))
    table = statistics.slice_marginals(cells)
    assert table.index.tolist() == list(WEIGHTS)
    first = table.loc["small"]
    expected = {"error_mean_over_unseen_fraction": 3.51, "error_10th_percentile_over_unseen_fraction": 203.51}
    assert first.to_dict() == pytest.approx(expected | {"error_mean_over_ssim": 0.81, "error_10th_percentile_over_ssim": 200.81})


def test_a_slice_with_a_missing_cell_is_undefined_for_its_model_only(cells):
    table = statistics.slice_marginals(cells[~((cells["model"] == "large") & (cells["ssim"] == 0.8) & (cells["unseen_fraction"] == 0))])
    assert table.isna().sum().sum() == 2
    assert table.loc["large", ["error_mean_over_ssim", "error_10th_percentile_over_ssim"]].isna().all()


def test_sign_error_limits():
    gap = np.random.default_rng(0).normal(size=9)
    assert statistics.sign_error_of_complexity(gap, gap) == 0
    assert statistics.sign_error_of_complexity(-gap, gap) == 1
    assert statistics.sign_error_of_complexity(np.ones(9), gap) == 0.5
    assert statistics.sign_error_of_complexity(np.exp(5 * gap), gap) == 0
    assert statistics.sign_error_of_complexity([1e308, -1e308, 0], [3, 1, 2]) == 0


def test_sign_error_by_hand_with_a_tie():  # of 6 pairs 1 is reversed, 1 tied, 4 in order
    assert statistics.sign_error_of_complexity([1, 2, 4, 3], [1, 1, 2, 3]) == pytest.approx((1 + 0.5) / 6)


def test_sign_error_equals_the_loop_over_ordered_pairs():
    rng = np.random.default_rng(2)
    complexity, gap = rng.integers(5, size=(2, 12)).astype(float)
    pairs = itertools.permutations(range(12), 2)
    terms = [1 - np.sign(complexity[a] - complexity[b]) * np.sign(gap[a] - gap[b]) for a, b in pairs]
    assert statistics.sign_error_of_complexity(complexity, gap) == pytest.approx(np.mean(terms) / 2)


def test_eight_networks_without_ties_give_multiples_of_a_28th():
    rng = np.random.default_rng(4)
    values = [28 * statistics.sign_error_of_complexity(*rng.normal(size=(2, 8))) for _ in range(20)]
    np.testing.assert_allclose(values, np.round(values), atol=1e-9)
    assert len(set(np.round(values))) > 3


def test_models_that_are_not_finite_are_left_out():
    assert statistics.sign_error_of_complexity([1, np.nan, 2, np.inf], [1, 5, 0, 3]) == 1
    assert np.isnan(statistics.sign_error_of_complexity([1, np.nan], [1, 2]))
    with pytest.raises(ValueError, match=re.escape("complexity and marginal need one value per model each, got shapes (2,) and (3,)")):
        statistics.sign_error_of_complexity([1, 2], [1, 2, 3])


@pytest.fixture
def family():
    """Five models, the larger the lower every error."""
    models = {f"m{number}": (number + 1) * 1e6 for number in range(5)}
    return a_cell_each(lambda model, s, u, _: 1 - s / 3 + u - models[model] * 1e-8, models)


PAIRINGS = list(itertools.permutations(range(5)))


def test_the_table_ranks_measures_and_marks_the_three_best(family):
    up = np.arange(5.0)
    complexities = pd.DataFrame(
        {"reversed": up, "perfect": -up, "constant": 0 * up, "nearly": [4, 3, 2, 0, 1], "half": [4, 3, 0, 1, 2]},
        [f"m{n}" for n in range(5)],
    )
    table = statistics.slice_sign_errors(complexities.iloc[::-1], family).set_index("measure")
    assert table.index.tolist() == ["perfect", "nearly", "half", "constant", "reversed"]
    assert table["mean_rank"].tolist() == [1, 2, 3, 4, 5]
    assert table["best"].tolist() == [True, True, True, False, False]
    for column in statistics.slice_marginals(family):
        assert table[column].tolist() == pytest.approx([0, 0.1, 0.3, 0.5, 1])
    # All 120 pairings are tried: one has no error, five have at most one pair reversed.
    assert table["p_value"].tolist() == pytest.approx([1 / 120, 5 / 120, 29 / 120, 1, 1])
    # The least of all five is that of the constant, one half, or less; a pairing and its reverse count alike.
    ups = np.array([c for n, c in complexities.items() if n != "constant"])
    errors = [
        [np.mean([(a > b) == (p[j] < p[i]) for i, a in enumerate(c) for j, b in enumerate(c) if i < j]) for c in ups] for p in PAIRINGS
    ]
    least = np.minimum(0.5, np.min(errors, axis=1))
    assert table["p_adjusted"].tolist() == pytest.approx([np.mean(least <= error + 1e-9) for error in (0, 0.1, 0.3, 0.5, 1)])


def test_measures_without_values_for_some_models_are_counted(family):
    complexities = pd.DataFrame({"some": [4, np.nan, 2, np.inf, 0], "none": np.nan}, [f"m{n}" for n in range(5)])
    table = statistics.slice_sign_errors(complexities, family).set_index("measure")
    assert table["n"].to_dict() == {"some": 3, "none": 0}
    assert table.loc["some", "error_mean_over_ssim"] == 0 and table.loc["some", "p_value"] == pytest.approx(1 / 6)
    assert table.loc["none"].drop(["n", "best", "band"]).isna().all() and not table.loc["none", "best"]


def test_random_pairings_are_drawn_beyond_seven_models():
    models = {f"m{number}": (number + 1) * 1e6 for number in range(9)}
    cells = a_cell_each(lambda model, s, u, _: -models[model], models)
    complexities = pd.DataFrame({"good": -np.arange(9.0), "bad": np.arange(9.0)}, list(models))
    p = statistics.slice_sign_errors(complexities, cells, resamples=499).set_index("measure")["p_value"]
    assert p["good"] == pytest.approx(1 / 500) and p["bad"] == 1
    noise = pd.DataFrame(np.random.default_rng(0).normal(size=(9, 12)), list(models), [f"noise {n}" for n in range(12)])
    table = statistics.slice_sign_errors(complexities.join(noise), cells, resamples=499).set_index("measure")
    assert table.loc["good", "p_adjusted"] < 0.05 < table["p_adjusted"].drop("good").min()
    assert 0 < table["band"].iloc[0] < 0.3
    assert (table["p_adjusted"] >= table["p_value"]).all()


def test_a_model_without_a_complexity_is_refused(family):
    with pytest.raises(ValueError, match="no complexity is given for m3, m4; every model of the cells needs a row"):
        statistics.slice_sign_errors(pd.DataFrame({"norm": [1.0, 2, 3]}, ["m0", "m1", "m2"]), family)
