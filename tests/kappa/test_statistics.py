import itertools

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import cohen_kappa_score

from helpers.kappa import statistics
from helpers.kappa.statistics import CELL_STATISTICS, error_and_loss


def images_of(confusion):
    """True and predicted class of each image of a confusion matrix."""
    places = np.ndindex(confusion.shape)
    return np.repeat([*places], np.ravel(confusion), axis=0).T


def cells_of(value, sizes, ssim=(0.6, 0.8, 1.0), unseen=(0.0, 0.2)):
    """Cells with statistics ``value(model, ssim, unseen, number of statistic)``."""
    places = [*itertools.product(sizes, ssim, unseen)]
    cells = pd.DataFrame(places, columns=["model", "ssim", "unseen_fraction"])
    cells["weights"] = cells["model"].map(sizes)
    for number, name in enumerate(CELL_STATISTICS):
        cells[name] = [value(*place, number) for place in places]
    return cells


def classes(errors, losses):
    return pd.DataFrame({"error": errors, "kappa_loss": losses}, dtype=float)


@pytest.mark.parametrize("seed", range(5))
def test_kappa_is_scikit_learns_one_against_rest_also_of_drawn_images(seed):
    random = np.random.default_rng(seed)
    true, predicted = random.integers(7, size=(2, 400))
    predicted = np.where(random.uniform(size=400) < 0.2 * seed, true, predicted)
    weights = random.integers(0, 3, size=(400, 4))
    weights[:, 0] = 1  # all images
    errors, losses = error_and_loss(true, predicted, 7, weights)
    once = error_and_loss(true, predicted, 7)[1]
    np.testing.assert_array_equal(once[:, 0], losses[:, 0])
    for draw, counts in enumerate(weights.T):
        images = np.repeat(np.arange(400), counts)
        t, p = true[images], predicted[images]
        kappas = [cohen_kappa_score(t == name, p == name) for name in range(7)]
        np.testing.assert_allclose(1 - losses[:, draw], kappas, rtol=0, atol=1e-14)
        expected = [np.mean(p[t == name] != name) for name in range(7)]
        np.testing.assert_allclose(errors[:, draw], expected)


@pytest.mark.parametrize(
    ("confusion", "errors", "losses"),
    [
        # Perfect, to the last digit; never predicted is chance; mixed up is the worst.
        (np.diag([3, 17, 49]), [0, 0, 0], [0, 0, 0]),
        ([[5, 3, 0], [2, 6, 0], [4, 1, 0]], [0.375, 0.25, 1], [None, None, 1]),
        ([[0, 6], [6, 0]], [1, 1], [2, 2]),
        # No images; one class, always predicted, for which the authors' code stores 1.
        ([[6, 2], [0, 0]], [0.25, np.nan], [None, np.nan]),
        ([[9, 0], [0, 0]], [0, np.nan], [1, np.nan]),
    ],
)
def test_limits_of_error_and_kappa(confusion, errors, losses):
    error, loss = error_and_loss(*images_of(np.array(confusion)), len(confusion))
    np.testing.assert_array_equal(error[:, 0], errors)
    known = [place for place, value in enumerate(losses) if value is not None]
    np.testing.assert_array_equal(loss[known, 0], [losses[place] for place in known])


def test_divergence_equals_its_definition_by_a_plain_loop():
    random = np.random.default_rng(1)
    tables, fractions = random.uniform(0, 1.2, size=(2, 40, 2)), []
    for table in tables:
        counts = np.zeros((10, 10))
        for error, loss in table:
            counts[min(int(error * 10), 9), min(int(loss * 10), 9)] += 1 / 40
        fractions.append((counts + 1e-10) / (1 + 100e-10))
    p, q = fractions
    expected = (p * np.log(p / q)).sum()
    found = statistics.divergence(*(classes(*table.T) for table in tables))
    assert found == pytest.approx(expected, rel=1e-10)


def test_divergence_is_largest_for_other_bins():
    near, far = classes([0.05] * 3, [0.05] * 3), classes([0.95] * 3, [1.9] * 3)
    assert statistics.divergence(far, near) == pytest.approx(np.log(1e10), rel=1e-6)
    for tenth in np.arange(10) / 10:  # falls into its own bin
        inside = classes([tenth + 0.05], [0])
        assert statistics.divergence(classes([tenth], [0]), inside) == 0
    assert statistics.divergence(classes([1], [1]), classes([0.95], [2])) == 0


def loop(complexity, error):
    """Equation (7) by a plain loop over ordered pairs of the networks that have both."""
    known = np.flatnonzero(np.isfinite(complexity) & np.isfinite(error))
    signs = [
        np.sign(complexity[a] - complexity[b]) * np.sign(error[a] - error[b])
        for a, b in itertools.permutations(known, 2)
    ]
    return np.mean([1 - sign for sign in signs]) / 2 if signs else np.nan


def test_sign_errors_equal_loops_over_pairs_with_ties_and_holes():
    random = np.random.default_rng(2)
    sizes = {f"m{number}": (number + 1) * 1e6 for number in range(9)}
    cells = cells_of(lambda *_: random.integers(4) / 4, sizes)
    table = {name: random.integers(5, size=9).astype(float) for name in "abc"}
    table |= {"huge": random.permutation(9) * 1e307 - 4e307}
    table |= {"constant": np.ones(9), "none": np.nan}
    complexities = pd.DataFrame(table, list(sizes))
    complexities.loc["m3", "a"], complexities.loc["m5", "b"] = np.nan, np.inf
    errors = statistics.sign_errors(complexities.iloc[::-1], cells, draws=20)
    slices = statistics.slice_marginals(cells)
    for row in errors.itertuples():
        column = complexities[row.measure].to_numpy()
        expected = loop(column, slices[row.slice].to_numpy())
        assert row.sign_error == pytest.approx(expected, nan_ok=True)
    counts = errors.groupby("measure")["n"].first().to_dict()
    assert counts == {"a": 8, "b": 8, "c": 9, "huge": 9, "constant": 9, "none": 0}


def test_the_table_ranks_measures_and_its_p_values_are_those_of_all_pairings():
    """Of five networks, the larger the lower every error."""
    sizes = {f"m{number}": (number + 1) * 1e6 for number in range(5)}
    family = cells_of(lambda model, s, u, _: 1 - s / 3 + u - sizes[model] * 1e-8, sizes)
    up = np.arange(5.0)
    # By mean rank, the last one first, so that the table is not in order.
    complexities = {
        "reversed": up,
        "perfect": -up,
        "nearly": np.array([4.0, 3, 2, 0, 1]),
        "half": np.array([4.0, 3, 0, 1, 2]),
        "constant": 0 * up,
    }
    table = statistics.sign_errors(pd.DataFrame(complexities, [*sizes]), family)
    assert len(table) == 4 * 5
    # All 120 pairings are tried: one has no error, five have at most one pair reversed.
    # The largest of all five is that of the constant, one half, or better.
    least = []
    for order in itertools.permutations(range(5)):
        errors = [loop(values, -up[list(order)]) for values in complexities.values()]
        least.append(min(0.5, *errors))
    sign_errors = [0, 0.1, 0.3, 0.5, 1]
    adjusted = [np.mean(np.array(least) <= error + 1e-9) for error in sign_errors]
    p_values = [1 / 120, 5 / 120, 29 / 120, 1, 1]
    for _, rows in table.groupby("slice"):
        names = ["perfect", "nearly", "half", "constant", "reversed"]
        assert rows["measure"].tolist() == names
        assert rows["mean_rank"].tolist() == [1, 2, 3, 4, 5]
        assert rows["sign_error"].tolist() == pytest.approx(sign_errors)
        assert rows["p_value"].tolist() == pytest.approx(p_values)
        assert rows["p_adjusted"].tolist() == pytest.approx(adjusted)
