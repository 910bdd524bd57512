import itertools

import numpy as np
import pandas as pd
import pytest

from helpers.statistics import sign_error
from helpers.statistics.sign_error import noise_weights, sign_errors

AXES = {
    "batch_size": [32, 64],
    "learning_rate": [0.1, 0.01, 0.001],
    "optimizer": ["adam", "sgd"],
}


def catalogue(repeats=4, seed=0, axes=AXES):
    """Configurations with effects of every axis, repeats with noise, one measure that follows the gap and one that does not."""
    rng = np.random.default_rng(seed)
    grid = pd.DataFrame(itertools.product(*axes.values()), columns=list(axes))
    table = grid.loc[np.repeat(np.arange(len(grid)), repeats)].reset_index(drop=True)
    effects = sum(
        0.05 * rng.normal(size=len(levels))[pd.factorize(table[name])[0]]
        for name, levels in axes.items()
    )
    gap = 0.2 + effects + 0.02 * rng.normal(size=len(table))
    return table.assign(
        gap=gap,
        good=1 - gap,
        norm=(gap + 0.05 * rng.normal(size=len(table))).round(2),
        noise=rng.normal(size=len(table)),
    )


def errors_of(table, measures, axes=tuple(AXES), test_images=10_000):
    return sign_errors(
        table, measures, axes, table[["gap"]].to_numpy().T, test_images=test_images
    )


def by_loops(table, measure, direction, axes, images, minimum, pooled):
    """The definition, one pair of models at a time: errors of the environments kept."""
    cells = dict(list(table.groupby(list(axes))))
    pairs = {}
    for (key, a), (other, b) in itertools.combinations(cells.items(), 2):
        different = [i for i in range(len(axes)) if key[i] != other[i]]
        if len(different) != 1:
            continue
        (i,) = different
        name = (
            (axes[i], *sorted((str(key[i]), str(other[i]))))
            if pooled
            else (axes[i], key, other)
        )
        for (_, x), (_, y) in itertools.product(a.iterrows(), b.iterrows()):
            weight = max(
                0,
                max(0, 1 - 2 * np.exp(-images * (x["gap"] - y["gap"]) ** 2 / 2)) ** 2
                - 0.5,
            )
            wrong = (
                1
                - np.sign(x[measure] - y[measure])
                * -direction
                * np.sign(x["gap"] - y["gap"])
            ) / 2
            pairs.setdefault(name, []).append((weight, wrong))
    sums = [np.array(listed).T for listed in pairs.values()]
    return [
        (w * wrong).sum() / w.sum()
        for w, wrong in sums
        if w.sum() > 0 and w.sum() ** 2 / (w**2).sum() >= minimum
    ]


def test_noise_weights_by_hand_and_from_the_published_difference_on():
    for images, published in ((10_000, 0.0196), (1_000, 0.0620)):
        assert (
            noise_weights(-published + 1e-4, images)
            == 0
            < noise_weights(-published - 1e-4, images)
        )
    # n d² / 2 = 2: (1 - 2 e^-2)² - 1/2; far apart it is 1/2, at no difference 0.
    expected = [(1 - 2 * np.exp(-2)) ** 2 - 0.5, 0.5, 0, np.nan]
    np.testing.assert_allclose(
        noise_weights([0.2, -1, 0, np.nan], 100), expected, rtol=1e-12
    )


@pytest.mark.parametrize(("repeats", "minimum"), [(5, 4), (5, 12), (3, 12)])
@pytest.mark.parametrize(
    ("measure", "direction"), [("good", 1), ("norm", -1), ("noise", 1)]
)
def test_the_worst_environment_is_that_of_a_loop_over_all_pairs(
    monkeypatch, measure, direction, repeats, minimum
):
    monkeypatch.setattr(sign_error, "MINIMUM_SAMPLE", minimum)
    table = catalogue(repeats)
    found = errors_of(table, {measure: direction}, test_images=5000)
    errors = by_loops(
        table, measure, direction, list(AXES), 5000, minimum, pooled=repeats == 3
    )
    assert len(errors) == found.environments[0] >= 2 and found.pooled.tolist() == [
        repeats == 3
    ]
    assert found.robust[0, 0] == pytest.approx(max(errors), abs=1e-12)


def test_perfect_is_0_reversed_is_1_a_constant_one_half_and_the_order_alone_counts():
    table = catalogue().assign(
        constant=3.0,
        reversed=lambda t: -t["good"],
        stretched=lambda t: np.exp(5 * t["noise"]),
    )
    found = errors_of(
        table, dict.fromkeys(["good", "reversed", "constant", "noise", "stretched"], 1)
    )
    assert (found.environments > 0).all()
    np.testing.assert_allclose(found.robust[0, :3], [0, 1, 0.5], rtol=0, atol=1e-12)
    assert found.robust[0, 3] == found.robust[0, 4]


def test_many_gaps_equal_one_by_one_and_the_first_decides_what_is_pooled():
    table, measures = catalogue(3), {"good": 1, "norm": -1}
    table.loc[3, "norm"] = np.nan
    gaps = np.stack(
        [
            table["gap"],
            table["gap"] + 0.05 * np.random.default_rng(1).normal(size=len(table)),
        ]
    )
    found = sign_errors(table, measures, list(AXES), gaps, test_images=5000)
    for row, gap in zip(found.robust, gaps, strict=True):
        one = errors_of(table.assign(gap=gap), measures, test_images=5000)
        np.testing.assert_allclose(row, one.robust[0], rtol=0, atol=1e-12)
    assert found.pooled.all()


def test_what_is_not_finite_is_left_out_and_no_axis_has_no_environment():
    table = catalogue(5)
    table.loc[[3, 17], "norm"], table.loc[8, "gap"] = [np.nan, np.inf], np.nan
    found = errors_of(table, {"norm": -1, "noise": 1})
    alone = errors_of(table.drop(index=[3, 8, 17]), {"norm": -1})
    assert found.robust[0, 0] == pytest.approx(alone.robust[0, 0], abs=1e-12)
    assert np.isnan(errors_of(table.assign(norm=np.nan), {"norm": -1}).robust).all()
    found = errors_of(catalogue(), {"good": 1}, [])
    assert np.isnan(found.robust).all()
