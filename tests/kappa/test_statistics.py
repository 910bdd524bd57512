import itertools

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import cohen_kappa_score

from helpers.kappa import statistics
from helpers.kappa.statistics import CELL_STATISTICS, error_and_loss
from tests.kappa.conftest import classes_of

MODELS = {"small": 1e6, "middle": 3e6, "large": 9e6, "huge": 27e6}


def images_of(confusion):
    """True and predicted class of each image of a confusion matrix."""
    pairs = [
        (t, p) for (t, p), count in np.ndenumerate(confusion) for _ in range(count)
    ]
    return np.array(pairs, dtype=int).T


def a_cell_each(value, models=MODELS, ssim=(0.6, 0.8, 1.0), unseen=(0.0, 0.2)):
    """Cells whose statistics are ``value(model, ssim, unseen, number of the statistic)``."""
    rows = [
        {"model": model, "weights": models[model], "ssim": s, "unseen_fraction": u}
        | {
            name: value(model, s, u, number)
            for number, name in enumerate(CELL_STATISTICS)
        }
        for model, s, u in itertools.product(models, ssim, unseen)
    ]
    return pd.DataFrame(rows)


def classes(errors, losses):
    return pd.DataFrame({"error": errors, "kappa_loss": losses}, dtype=float)


def test_error_and_kappa_by_hand():
    error, loss = error_and_loss(
        *images_of(np.array([[8, 2, 0], [1, 4, 0], [0, 0, 5]])), 3
    )
    np.testing.assert_allclose(error[:, 0], [0.2, 0.2, 0])
    # Class 0: Po = 17/20; Pe = (10 * 9 + 10 * 11) / 400 = 1/2; class 1: Po = 17/20, Pe = (5 * 6 + 15 * 14) / 400 = 3/5.
    np.testing.assert_allclose(loss[:, 0], [0.3, 0.375, 0], rtol=1e-15)


@pytest.mark.parametrize("seed", range(5))
def test_kappa_is_scikit_learns_one_against_rest_also_of_drawn_images(seed):
    random = np.random.default_rng(seed)
    true, predicted = random.integers(7, size=(2, 400))
    predicted = np.where(random.uniform(size=400) < 0.2 * seed, true, predicted)
    weights = random.integers(0, 3, size=(400, 4))
    weights[:, 0] = 1  # all images
    errors, losses = error_and_loss(true, predicted, 7, weights)
    np.testing.assert_array_equal(
        error_and_loss(true, predicted, 7)[1][:, 0], losses[:, 0]
    )
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
        (np.diag([3, 17, 49]), [0, 0, 0], [0, 0, 0]),  # perfect, to the last digit
        (
            [[5, 3, 0], [2, 6, 0], [4, 1, 0]],
            [0.375, 0.25, 1],
            [None, None, 1],
        ),  # never predicted is chance
        ([[0, 6], [6, 0]], [1, 1], [2, 2]),  # mixed up is the worst
        (
            [[5, 1, 2], [0, 0, 0], [1, 0, 6]],
            [0.375, np.nan, 1 / 7],
            [None, np.nan, None],
        ),  # no images
        (
            [[9, 0], [0, 0]],
            [0, np.nan],
            [1, np.nan],
        ),  # one class, always predicted: the authors' code stores 1
    ],
)
def test_limits_of_error_and_kappa(confusion, errors, losses):
    error, loss = error_and_loss(*images_of(np.array(confusion)), len(confusion))
    np.testing.assert_array_equal(error[:, 0], errors)
    known = [place for place, value in enumerate(losses) if value is not None]
    np.testing.assert_array_equal(loss[known, 0], [losses[place] for place in known])


def test_the_six_statistics_by_hand():
    found = statistics.six_statistics(
        np.array([0.1, 0.2, 0.6]), np.array([0.2, 0.4, 0.6])
    )
    # Sum of squares 0.04 + 0.01 + 0.09 over 2; the 10th percentile lies 0.2 of the way from the first to the second.
    np.testing.assert_allclose(found, [0.3, np.sqrt(0.07), 0.12, 0.4, 0.2, 0.24])


def test_divergence_equals_its_definition_by_a_plain_loop():
    rng = np.random.default_rng(1)
    cell, reference = (
        classes(rng.uniform(0, 1, 40), rng.uniform(0, 1.5, 40)) for _ in range(2)
    )
    fractions = []
    for table in (cell, reference):
        counted = np.zeros((10, 10))
        for error, loss in table.to_numpy():
            counted[min(int(error * 10), 9), min(int(loss * 10), 9)] += 1 / 40
        fractions.append((counted + 1e-10) / (1 + 100e-10))
    p, q = fractions
    assert statistics.divergence(cell, reference) == pytest.approx(
        (p * np.log(p / q)).sum(), rel=1e-10
    )


def test_divergence_is_largest_for_other_bins():
    near, far = classes([0.05] * 3, [0.05] * 3), classes([0.95] * 3, [1.9] * 3)
    assert statistics.divergence(far, near) == pytest.approx(np.log(1e10), rel=1e-6)
    for tenth in np.arange(10) / 10:  # falls into its own bin
        inside = classes([tenth + 0.05], [0])
        assert statistics.divergence(classes([tenth], [0]), inside) == 0
    assert statistics.divergence(classes([1], [1]), classes([0.95], [2])) == 0


def test_a_cell_sums_its_classes_up_and_is_compared_with_the_clean_one():
    rows = classes_of()
    is_dropped = (rows["class_id"] == "c3") & (rows["model"] == "b")
    rows.loc[is_dropped, ["error", "kappa_loss"]] = np.nan
    table = statistics.cells_of(rows)
    assert len(table) == 8
    keys = ["model", "ssim", "unseen_fraction"]
    of_cells = dict(list(rows.groupby(keys)))
    for cell in table.itertuples():
        own = of_cells[cell.model, cell.ssim, cell.unseen_fraction]
        clean = of_cells[cell.model, 1.0, 0.0]
        assert cell.error_mean == pytest.approx(own["error"].mean())
        assert cell.kappa_loss_std == pytest.approx(own["kappa_loss"].std(ddof=1))
        assert cell.divergence == pytest.approx(statistics.divergence(own, clean))
        assert cell.classes == (4 if cell.model == "a" else 3)
    clean_cells = table[(table["ssim"] == 1) & (table["unseen_fraction"] == 0)]
    assert clean_cells["divergence"].eq(0).all()


def test_networks_of_one_architecture_are_averaged():
    rows = classes_of((("a", "set", 5.0), ("b", "set", 5.0), ("c", "set", 9.0)))
    architectures = {"a": "resnet18", "b": "resnet18", "c": "resnet34"}
    rows["architecture"] = rows["model"].map(architectures)
    rows.loc[rows["model"] == "b", "error"] += 0.1
    table = statistics.cells_of(rows)
    place = ["architecture", "ssim", "unseen_fraction"]
    wanted = table.groupby(place)["error_mean"].mean()
    found = statistics.averaged(table).set_index(place)["error_mean"]
    pd.testing.assert_series_equal(found.sort_index(), wanted)


def test_marginals_and_slices_by_hand_and_a_hole_in_one():
    table = a_cell_each(
        lambda model, s, u, number: MODELS[model] * 1e-8 + s + 10 * u + 100 * number,
        ssim=(0.6, 1.0),
        unseen=(0, 0.5),
    )
    means = statistics.marginals(table).set_index(["axis", "level"])
    # Sizes add 0.01, 0.03, 0.09 and 0.27, shares 0 and 5.
    assert means.loc[("ssim", 0.6), "error_mean"] == pytest.approx(0.1 + 0.6 + 2.5)
    of_size = means.loc[("weights", 9e6), "error_std"]
    assert of_size == pytest.approx(0.09 + 0.8 + 2.5 + 100)
    slices = statistics.slice_marginals(table)
    assert slices.loc["small"].tolist() == pytest.approx([3.51, 203.51, 0.81, 200.81])
    is_large = (table["model"] == "large") & (table["ssim"] == 0.6)
    rest = table[~(is_large & (table["unseen_fraction"] == 0))]
    undefined = statistics.marginals(rest).query("error_mean.isna()")
    assert undefined["level"].tolist() == [0.6, 0.0, 9e6]


def loop(complexity, error):
    """Equation (7) by a plain loop over ordered pairs of the networks that have both."""
    known = [
        place
        for place in range(len(error))
        if np.isfinite(complexity[place]) and np.isfinite(error[place])
    ]
    signs = [
        np.sign(complexity[a] - complexity[b]) * np.sign(error[a] - error[b])
        for a, b in itertools.permutations(known, 2)
    ]
    return np.mean([1 - sign for sign in signs]) / 2 if signs else np.nan


def test_sign_errors_equal_loops_over_pairs_with_ties_and_holes():
    rng = np.random.default_rng(2)
    models = {f"m{number}": (number + 1) * 1e6 for number in range(9)}
    cells = a_cell_each(lambda *_: rng.integers(4) / 4, models)
    table = {name: rng.integers(5, size=9).astype(float) for name in "abc"} | {
        "huge": rng.permutation(9) * 1e307 - 4e307
    }
    complexities = pd.DataFrame(
        table | {"constant": np.ones(9), "none": np.nan}, list(models)
    )
    complexities.loc["m3", "a"], complexities.loc["m5", "b"] = np.nan, np.inf
    found = statistics.sign_errors(complexities.iloc[::-1], cells, draws=20)
    slices = statistics.slice_marginals(cells)
    for row in found.itertuples():
        column = complexities[row.measure].to_numpy()
        expected = loop(column, slices[row.slice].to_numpy())
        assert row.sign_error == pytest.approx(expected, nan_ok=True)
    counts = found.groupby("measure")["n"].first().to_dict()
    assert counts == {"a": 8, "b": 8, "c": 9, "huge": 9, "constant": 9, "none": 0}


@pytest.fixture
def family():
    """Five networks, the larger the lower every error."""
    models = {f"m{number}": (number + 1) * 1e6 for number in range(5)}
    return a_cell_each(
        lambda model, s, u, _: 1 - s / 3 + u - models[model] * 1e-8, models
    )


def test_the_table_ranks_measures_and_its_p_values_are_those_of_all_pairings(family):
    up = np.arange(5.0)
    table = {
        "reversed": up,
        "perfect": -up,
        "constant": 0 * up,
        "nearly": [4, 3, 2, 0, 1],
        "half": [4, 3, 0, 1, 2],
    }
    networks = [f"m{n}" for n in range(5)]
    every_slice = statistics.sign_errors(pd.DataFrame(table, networks), family)
    assert len(every_slice) == 4 * 5
    # All 120 pairings are tried: one has no error, five have at most one pair reversed.
    # The largest of all five is that of the constant, one half, or better.
    least = [
        min(
            0.5, *(loop(np.array(c, dtype=float), -up[list(p)]) for c in table.values())
        )
        for p in itertools.permutations(range(5))
    ]
    sign_errors = [0, 0.1, 0.3, 0.5, 1]
    adjusted = [np.mean(np.array(least) <= error + 1e-9) for error in sign_errors]
    for _, found in every_slice.groupby("slice"):
        assert found["measure"].tolist() == [
            "perfect",
            "nearly",
            "half",
            "constant",
            "reversed",
        ]
        assert found["mean_rank"].tolist() == [1, 2, 3, 4, 5]
        assert found["sign_error"].tolist() == pytest.approx(sign_errors)
        assert found["p_value"].tolist() == pytest.approx(
            [1 / 120, 5 / 120, 29 / 120, 1, 1]
        )
        assert found["p_adjusted"].tolist() == pytest.approx(adjusted)
