import itertools

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import sklearn.metrics

from helpers.statistics.information import conditional_information, information_by_set

AXES = {
    "batch_size": [32, 64, 128],
    "learning_rate": [0.1, 0.01, 0.001],
    "optimizer": ["adam", "sgd"],
    "pretrained": [False, True],
}


def grid(axes=AXES):
    return pd.DataFrame(itertools.product(*axes.values()), columns=list(axes))


def score(measure, gap, hyperparameters):
    """The score of one measure, as a float."""
    models = hyperparameters.assign(measure=np.asarray(measure))
    gaps = np.asarray(gap, dtype=float)[None]
    axes = list(hyperparameters)
    return conditional_information(models, ["measure"], axes, gaps).item()


def by_set(measure, gap, hyperparameters):
    """The share of every set, for a grid without repeats."""
    levels = {name: pd.factorize(values)[0] for name, values in hyperparameters.items()}
    found = information_by_set(
        np.asarray(measure, dtype=float)[:, None],
        np.asarray(gap, dtype=float)[:, None],
        levels,
    )
    return {names: float(values[0, 0]) for names, values in found.items()}


def by_scikit_learn(measure, gap, hyperparameters):
    """On averaged repeats: information per cell of pairs by mutual_info_score, over all sets of at most two."""
    names = list(hyperparameters)
    # Rounded, because means that are equal differ by rounding otherwise.
    table = (
        hyperparameters.assign(measure=measure, gap=gap)
        .groupby(names, as_index=False)
        .mean()
        .round({"measure": 9, "gap": 9})
    )
    first, second = np.nonzero(~np.eye(len(table), dtype=bool))
    pairs = pd.DataFrame(
        {
            f"{name} {side}": table[name].to_numpy()[rows]
            for name in names
            for side, rows in (("a", first), ("b", second))
        }
    )
    for name in ("gap", "measure"):
        pairs[name + " larger"] = (
            table[name].to_numpy()[first] > table[name].to_numpy()[second]
        )
    scores = {}
    for chosen in (
        chosen for size in range(3) for chosen in itertools.combinations(names, size)
    ):
        by = [f"{name} {side}" for name in chosen for side in "ab"]
        cells = [cell for _, cell in pairs.groupby(by)] if by else [pairs]
        score = sklearn.metrics.mutual_info_score
        told, all_of_it = (
            np.mean(
                [score(cell["gap larger"], cell[f"{name} larger"]) for cell in cells]
            )
            for name in ("measure", "gap")
        )
        scores[chosen] = told / all_of_it if all_of_it > 1e-12 else np.nan
    return scores


def test_by_hand_with_one_swap():
    # Of the six ordered pairs 2 are larger in both, 1 only in the gap, 1 only in the measure: I = 1 - H(1/3), and H = 1.
    found = by_set([1, 3, 2], [1, 2, 3], pd.DataFrame({"width": [1, 2, 3]}))
    assert found[()] == pytest.approx(
        1 - scipy.stats.entropy([1 / 3, 2 / 3], base=2), abs=1e-12
    )
    assert np.isnan(
        found["width",]
    )  # one pair at most in a cell, whose outcome is certain
    assert score([1, 3, 2], [1, 2, 3], pd.DataFrame({"width": [1, 2, 3]})) == found[()]


@pytest.mark.parametrize("decimals", [1, 6])
def test_it_equals_scikit_learns_information_with_repeats_and_holes(decimals):
    rng = np.random.default_rng(4)
    hyperparameters = grid().iloc[rng.integers(36, size=70)].reset_index(drop=True)
    assert 25 < len(hyperparameters.drop_duplicates()) < 36
    measure, gap = rng.normal(size=(2, 70)).round(decimals)
    measure += 2 * gap
    expected = by_scikit_learn(measure, gap, hyperparameters)
    assert score(measure, gap, hyperparameters) == pytest.approx(
        np.nanmin(list(expected.values())), rel=0, abs=1e-9
    )
    whole = grid()
    measure, gap = rng.normal(size=(2, 36)).round(decimals)
    assert by_set(measure, gap, whole) == pytest.approx(
        by_scikit_learn(measure, gap, whole), rel=0, abs=1e-9, nan_ok=True
    )


def test_perfect_reversed_and_random_measures_score_as_known():
    rng = np.random.default_rng(0)
    gap = rng.normal(size=36)
    assert (score(gap, gap, grid()), score(-gap, gap, grid())) == pytest.approx(
        (1, 1), abs=1e-12
    )
    names = [f"noise {number}" for number in range(30)]
    noise = pd.DataFrame(rng.normal(size=(36, 30)), columns=names)
    assert (
        0
        <= conditional_information(
            grid().join(noise), names, list(AXES), np.asarray(gap, dtype=float)[None]
        ).mean()
        < 0.05
    )


def test_only_the_order_counts_and_neither_rows_nor_level_names_and_an_echo_of_one_hyperparameter_is_nothing():
    measure, gap = np.random.default_rng(1).normal(size=(2, 36))
    order = np.random.default_rng(2).permutation(36)
    renamed = (
        grid()
        .assign(optimizer=grid()["optimizer"].map({"adam": 7, "sgd": 1}))
        .iloc[order]
        .reset_index(drop=True)
    )
    assert by_set(
        np.exp(3 * measure[order]), gap[order] ** 3, renamed
    ) == pytest.approx(by_set(measure, gap, grid()), abs=1e-12)
    gap = grid()["learning_rate"].to_numpy() + 0.001 * np.random.default_rng(0).normal(
        size=36
    )
    found = by_set(grid()["learning_rate"], gap, grid())
    assert found[()] > 0.3
    assert found["learning_rate",] == score(grid()["learning_rate"], gap, grid()) == 0


def test_constant_repeats_have_no_order():
    repeated = (
        grid()
        .loc[np.repeat(np.arange(36), 1 + np.arange(36) % 3)]
        .reset_index(drop=True)
    )
    assert (
        score(
            np.full(len(repeated), 0.1),
            np.random.default_rng(7).normal(size=len(repeated)),
            repeated,
        )
        == 0
    )


def test_undefined_scores_are_nan():
    assert all(
        np.isnan(score(np.arange(36.0), np.full(36, gap), grid()))
        for gap in (1.0, np.nan)
    )
    assert np.isnan(
        [
            score([], [], pd.DataFrame({"a": []})),
            score([1], [1], pd.DataFrame({"a": [1], "b": [2]})),
        ]
    ).all()


def test_many_measures_and_many_gaps_equal_one_by_one_and_what_is_not_finite_is_left_out():
    rng = np.random.default_rng(8)
    models = pd.concat([grid(), grid()], ignore_index=True).assign(gap=0.0)
    names = list("wxyz")
    models[names] = rng.normal(size=(72, 4))
    models.loc[5, "x"], models.loc[[5, 9], "y"] = np.inf, np.nan
    gaps = rng.normal(size=(3, 72))
    gaps[:, 70] = np.nan
    found = conditional_information(models, names, list(AXES), gaps)
    for (draw, gap), (column, name) in itertools.product(
        enumerate(gaps), enumerate(names)
    ):
        kept = np.isfinite(models[name]) & np.isfinite(gap)
        own = models[kept].reset_index(drop=True)
        assert found[draw, column] == pytest.approx(
            score(own[name], gap[kept], own[list(AXES)]), abs=1e-12
        )


def test_a_measure_in_the_order_of_the_gaps_knows_it_and_equal_gaps_have_no_order():
    gap = np.random.default_rng(0).normal(size=len(grid()))
    assert score(gap**3, gap, grid()) == 1
    assert np.isnan(score(gap**3, np.full(len(gap), 0.5), grid()))
