import itertools
import re

import numpy as np
import pandas as pd
import pytest

from helpers.statistics import sign_error
from helpers.statistics.sign_error import noise_weights, sign_error_table

AXES = {"batch_size": [32, 64], "learning_rate": [0.1, 0.01, 0.001], "optimizer": ["adam", "sgd"]}


def catalogue(repeats=4, seed=0, axes=AXES):
    """Cells with effects of every axis, repeats with noise, one measure that follows the gap and one that does not."""
    rng = np.random.default_rng(seed)
    grid = pd.DataFrame(itertools.product(*axes.values()), columns=list(axes))
    table = grid.loc[np.repeat(np.arange(len(grid)), repeats)].reset_index(drop=True)
    effects = sum(0.05 * rng.normal(size=len(levels))[pd.factorize(table[name])[0]] for name, levels in axes.items())
    gap = 0.2 + effects + 0.02 * rng.normal(size=len(table))
    return table.assign(gap=gap, good=1 - gap, norm=(gap + 0.05 * rng.normal(size=len(table))).round(2), noise=rng.normal(size=len(table)))


def by_loops(table, measure, direction, axes, images, shift, minimum, pooled):
    """The definition, one pair of models at a time: errors of the environments kept per axis, and how many pairs they hold."""
    cells = dict(list(table.groupby(list(axes))))
    pairs = {}
    for (key, a), (other, b) in itertools.combinations(cells.items(), 2):
        different = [i for i in range(len(axes)) if key[i] != other[i]]
        if len(different) != 1:
            continue
        (i,) = different
        name = (axes[i], *sorted((str(key[i]), str(other[i])))) if pooled else (axes[i], key, other)
        for (_, x), (_, y) in itertools.product(a.iterrows(), b.iterrows()):
            distance = max(abs(x["gap"] - y["gap"]) - shift, 0)
            weight = max(0, max(0, 1 - 2 * np.exp(-images * distance**2 / 2)) ** 2 - 0.5)
            wrong = (1 - np.sign(x[measure] - y[measure]) * -direction * np.sign(x["gap"] - y["gap"])) / 2
            pairs.setdefault(name, []).append((weight, wrong))
    errors, used = {}, {}
    for name, listed in pairs.items():
        weight, wrong = np.array(listed).T
        if weight.sum() > 0 and weight.sum() ** 2 / (weight**2).sum() >= minimum:
            for axis in (name[0], "all"):
                errors.setdefault(axis, []).append((weight * wrong).sum() / weight.sum())
                used[axis] = used.get(axis, 0) + (weight > 0).sum()
    return errors, used


@pytest.mark.parametrize(("images", "threshold"), [(10_000, 0.0196), (1_000, 0.0620)])
def test_pairs_count_from_the_published_difference_on(images, threshold):
    assert noise_weights(threshold - 1e-4, images) == 0
    assert noise_weights(-threshold - 1e-4, images) > 0
    assert noise_weights(threshold + 0.01 - 1e-4, images, shift=0.01) == 0
    assert noise_weights(threshold + 0.01 + 1e-4, images, shift=0.01) > 0


def test_noise_weights_by_hand():
    # n d² / 2 = 2: (1 - 2 e^-2)² - 1/2; far apart it is 1/2, at no difference 0.
    expected = [(1 - 2 * np.exp(-2)) ** 2 - 0.5, 0.5, 0, np.nan]
    np.testing.assert_allclose(noise_weights([0.2, -1, 0, np.nan], 100), expected, rtol=1e-12)


def test_sign_error_by_hand():
    # Right, wrong, tied in the measure, tied in the gap: (1 * 0 + 2 * 1 + 3 * .5 + 4 * .5) / 10.
    assert sign_error.pair_sign_error([2, 1, 1, 5], [1, 2, 1, 1], [9, 9, 9, 4], [1, 1, 1, 4], [1, 2, 3, 4]) == pytest.approx(0.55)
    assert sign_error.pair_sign_error([2, np.nan], [1, 1], [9, 1], [1, 3], [1, 1]) == 0
    assert np.isnan(sign_error.pair_sign_error([1], [2], [1], [2], [0]))
    assert np.isnan(sign_error.pair_sign_error([], [], [], [], []))


@pytest.mark.parametrize(("pooled", "minimum", "shift"), [(False, 4, 0), (False, 12, 0.01), (True, 12, 0.02)])
@pytest.mark.parametrize(("measure", "direction"), [("good", 1), ("norm", -1), ("noise", 1)])
def test_table_equals_a_loop_over_all_pairs(measure, direction, pooled, minimum, shift):
    table = catalogue(5)
    settings = {"shift": shift, "minimum_effective_sample": minimum, "pooled": pooled}
    found = sign_error_table(table, {measure: direction}, list(AXES), test_images=5000, **settings).set_index("hyperparameter")
    errors, used = by_loops(table, measure, direction, list(AXES), 5000, shift, minimum, pooled)
    assert list(found.index) == [*AXES, "all"]
    assert 3 <= len(errors["all"]) <= found.loc["all", "candidates"]
    for axis in found.index:
        listed = errors.get(axis, [np.nan])
        expected = [np.mean(listed), np.quantile(listed, 0.9), np.max(listed)]
        np.testing.assert_allclose(found.loc[axis, ["mean", "percentile_90", "maximum"]].astype(float), expected, atol=1e-12)
        assert found.loc[axis, "environments"] == len(errors.get(axis, []))
        assert found.loc[axis, "pairs"] == used.get(axis, 0)


def test_perfect_is_0_reversed_is_1_and_a_constant_one_half():
    table = catalogue().assign(constant=3.0)
    table["reversed"] = -table["good"]
    found = sign_error_table(table, {"good": 1, "reversed": 1, "constant": 1}, list(AXES), test_images=10_000).set_index("measure")
    assert (found["environments"] > 0).any()
    for name, value in {"good": 0, "reversed": 1, "constant": 0.5}.items():
        defined = found.loc[name].dropna()
        assert len(defined)
        np.testing.assert_allclose(defined[["mean", "percentile_90", "maximum"]], value, rtol=0, atol=1e-12)


def test_the_other_direction_mirrors_the_mean_and_the_order_alone_counts():
    table = catalogue()
    table["stretched"] = np.exp(5 * table["noise"])
    found = sign_error_table(table, {"noise": 1, "stretched": 1}, list(AXES), test_images=10_000)
    mirrored = sign_error_table(table, {"noise": -1}, list(AXES), test_images=10_000)
    first, second = found[:4], found[4:]
    np.testing.assert_allclose(first["mean"], 1 - mirrored["mean"], atol=1e-12)
    pd.testing.assert_frame_equal(first.drop(columns="measure"), second.drop(columns="measure").reset_index(drop=True))


def test_few_repeats_are_pooled_only_when_no_environment_would_be_kept():
    for repeats, kind in ((3, "pooled"), (5, "single")):
        table = catalogue(repeats)
        found = sign_error_table(table, {"good": 1}, list(AXES), test_images=10_000)
        assert set(found["environment"]) == {kind}
        assert found["environments"].iloc[-1] > 0
    candidates = sign_error_table(table, {"good": 1}, list(AXES), test_images=10_000, pooled=True)["candidates"]
    assert list(candidates) == [1, 3, 1, 5]  # pairs of levels
    alone = sign_error_table(catalogue(3), {"good": 1}, list(AXES), test_images=10_000, pooled=False)
    assert alone["mean"].isna().all()
    assert (alone["environments"] == 0).all()
    assert list(alone["candidates"]) == [6, 12, 6, 24]


def test_cells_with_many_repeats_are_cut_by_the_seed(monkeypatch):
    table = catalogue(8)
    measures, axes = {"norm": -1}, list(AXES)
    full = sign_error_table(table, measures, axes, test_images=10_000)
    monkeypatch.setattr(sign_error, "REPEAT_LIMIT", 5)
    cut = [sign_error_table(table, measures, axes, test_images=10_000, seed=seed) for seed in (0, 0, 1)]
    pd.testing.assert_frame_equal(cut[0], cut[1])
    assert not cut[0]["mean"].equals(cut[2]["mean"])
    assert 0 < cut[0]["pairs"].iloc[-1] <= 24 * 25 < full["pairs"].iloc[-1]
    assert cut[0]["n"].iloc[0] == len(table)


def test_chunks_do_not_change_the_result(monkeypatch):
    table, measures = catalogue(), {"good": 1, "norm": -1}
    whole = sign_error_table(table, measures, list(AXES), test_images=10_000)
    monkeypatch.setattr(sign_error, "_PAIRS_AT_ONCE", 20)
    pd.testing.assert_frame_equal(whole, sign_error_table(table, measures, list(AXES), test_images=10_000))


def test_what_is_not_finite_is_left_out_and_counted():
    table = catalogue(5)
    table.loc[[3, 17], "norm"], table.loc[8, "gap"] = [np.nan, np.inf], np.nan
    found = sign_error_table(table, {"norm": -1, "noise": 1}, list(AXES), test_images=10_000)
    assert list(found["dropped"]) == [3] * 4 + [1] * 4
    alone = sign_error_table(table.drop(index=[3, 8, 17]), {"norm": -1}, list(AXES), test_images=10_000)
    pd.testing.assert_frame_equal(found[:4].drop(columns="dropped"), alone.drop(columns="dropped"))
    nothing = sign_error_table(table.assign(norm=np.nan), {"norm": -1}, list(AXES), test_images=10_000)
    assert nothing["mean"].isna().all()
    assert (nothing["n"] == 0).all()


def test_floats_that_are_close_are_one_level():
    table = catalogue()
    close = table.assign(learning_rate=table["learning_rate"] * (1 + 1e-14 * np.arange(len(table))))
    assert close["learning_rate"].nunique() > 3
    expected, found = (sign_error_table(models, {"norm": -1}, list(AXES), test_images=10_000) for models in (table, close))
    np.testing.assert_allclose(found["mean"], expected["mean"], atol=1e-12)
    assert found["candidates"].equals(expected["candidates"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: noise_weights([0.1], 0), "test_images 0 must be at least 1"),
        (lambda: noise_weights([0.1], 10, -0.1), "shift -0.1 must be 0 or larger"),
        (lambda: sign_error.pair_sign_error([1, 2], [1, 2], [1, 2], [1, 2], [1]), "got shapes (2,), (2,), (2,), (2,), (1,)"),
        (lambda: sign_error_table(catalogue(), {"best": 1}, ["depth"], test_images=10), "no column depth, best"),
        (lambda: sign_error_table(catalogue(), {"good": 2}, list(AXES), test_images=10), "directions {'good': 2} must be +1"),
        (lambda: sign_error_table(catalogue(), {"good": 1}, [], test_images=10), "there are no hyperparameters"),
        (lambda: sign_error_table(catalogue().assign(a=np.nan), {"good": 1}, ["a"], test_images=10), "'a' has 48 missing values"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
