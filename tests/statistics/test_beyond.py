"""Statistics that hold hyperparameters fixed: against pandas, scikit-learn and loops."""

import itertools

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import sklearn.metrics
from sklearn.decomposition import PCA

from helpers.statistics import beyond as b
from helpers.statistics.correlate import Bootstrap

AXES = {
    "batch_size": [32, 64, 128],
    "learning_rate": [0.1, 0.01, 0.001],
    "optimizer": ["adam", "sgd"],
    "pretrained": [False, True],
}
FEW_AXES = {name: AXES[name][:2] for name in [*AXES][:3]}


def grid(axes=AXES):
    return pd.DataFrame(itertools.product(*axes.values()), columns=list(axes))


def catalogue(repeats=2, seed=0, axes=AXES):
    """Configurations with effects of every axis, and repeats with noise."""
    random = np.random.default_rng(seed)
    table = grid(axes)
    table = table.loc[np.repeat(table.index, repeats)].reset_index(names="cell")
    effects = sum(
        0.05 * random.normal(size=len(levels))[pd.factorize(table[name])[0]]
        for name, levels in axes.items()
    )
    gap = 0.2 + effects + 0.02 * random.normal(size=len(table))
    noise = random.normal(size=len(table))
    norm = (gap + 0.05 * noise[::-1]).round(2)
    return table.assign(gap=gap, good=1 - gap, norm=norm, noise=noise, constant=0.1)


def psi_by_groups(table, measure, axes):
    kept = table[np.isfinite(table[measure]) & np.isfinite(table["gap"])]
    means = kept.groupby(list(axes), as_index=False)[[measure, "gap"]].mean().round(9)
    for axis in axes:
        others = [name for name in axes if name != axis]
        taus = []
        for _, group in means.groupby(others):
            pairs = itertools.combinations(group[[measure, "gap"]].to_numpy(), 2)
            signs = [np.sign(a - c) * np.sign(g - h) for (a, g), (c, h) in pairs]
            taus += [np.mean(signs)] if signs else []
        yield np.mean(taus)


def test_granulated_kendall_is_that_of_pandas_groups_where_the_grid_has_holes():
    table = catalogue().sample(frac=0.5, random_state=1)
    table.loc[table.index[:3], "norm"] = [np.nan, np.inf, -np.inf]
    table.loc[table.index[7], "gap"] = np.nan
    found = b.granulated_kendall(table, ["norm", "noise"], list(AXES))
    for name, value in zip(["norm", "noise"], found, strict=True):
        psi = [*psi_by_groups(table, name, list(AXES))]
        assert value == pytest.approx(np.mean(psi), abs=1e-12)


def test_a_constant_has_no_order_through_the_rounding_of_means():
    table = catalogue(repeats=1 + np.arange(36) % 3)
    assert (b.granulated_kendall(table, ["constant"], list(AXES)) == 0).all()
    gaps = table[["gap"]].to_numpy().T
    information = b.conditional_information(table, ["constant"], list(AXES), gaps)
    assert information.item() == 0


def information(measure, gap, hyperparameters):
    models = hyperparameters.assign(measure=np.asarray(measure))
    gaps = np.asarray(gap, dtype=float)[None]
    axes = list(hyperparameters)
    return b.conditional_information(models, ["measure"], axes, gaps).item()


def by_scikit_learn(measure, gap, hyperparameters):
    """Information per cell of pairs by mutual_info_score, least of all sets."""
    names = list(hyperparameters)
    table = hyperparameters.assign(measure=measure, gap=gap)
    # Rounded, because means that are equal differ by rounding otherwise.
    table = table.groupby(names, as_index=False).mean().round({"measure": 9, "gap": 9})
    first, second = np.nonzero(~np.eye(len(table), dtype=bool))
    pairs = {}
    for name in names:
        values = table[name].to_numpy()
        pairs |= {f"{name} a": values[first], f"{name} b": values[second]}
    for name in ("gap", "measure"):
        values = table[name].to_numpy()
        pairs[f"{name} larger"] = values[first] > values[second]
    pairs = pd.DataFrame(pairs)
    score = sklearn.metrics.mutual_info_score
    shares = []
    for size in range(3):
        for chosen in itertools.combinations(names, size):
            by = [f"{name} {side}" for name in chosen for side in "ab"]
            cells = [cell for _, cell in pairs.groupby(by)] if by else [pairs]
            larger = [(cell["gap larger"], cell["measure larger"]) for cell in cells]
            whole = np.mean([score(gap, gap) for gap, _ in larger])
            told = np.mean([score(gap, measure) for gap, measure in larger])
            shares.append(told / whole if whole > 1e-12 else np.nan)
    return np.nanmin(shares)


@pytest.mark.parametrize("decimals", [1, 6])
def test_information_is_that_of_scikit_learn_with_repeats_and_holes(decimals):
    random = np.random.default_rng(4)
    models = grid().iloc[random.integers(36, size=70)].reset_index(drop=True)
    measure, gap = random.normal(size=(2, 70)).round(decimals)
    measure += 2 * gap
    expected = by_scikit_learn(measure, gap, models)
    assert information(measure, gap, models) == pytest.approx(expected, abs=1e-9)


def test_perfect_and_reversed_measures_know_all_and_an_echo_nothing():
    random = np.random.default_rng(0)
    gap = random.normal(size=36)
    for measure in (gap**3, -gap):
        assert information(measure, gap, grid()) == pytest.approx(1, abs=1e-12)
    assert 0 <= information(random.normal(size=36), gap, grid()) < 0.1
    rate = grid()["learning_rate"].to_numpy()
    assert information(rate, rate + 0.001 * gap, grid()) == 0
    assert np.isnan(information(gap, np.full(36, 0.5), grid()))
    assert np.isnan(information([1], [1], pd.DataFrame({"a": [1], "b": [2]})))


def test_many_measures_and_gaps_are_scored_as_one_by_one():
    random = np.random.default_rng(8)
    models = pd.concat([grid(), grid()], ignore_index=True)
    models[["x", "y"]] = random.normal(size=(72, 2))
    models.loc[5, "x"] = np.inf
    gaps = random.normal(size=(3, 72))
    gaps[:, 70] = np.nan
    found = b.conditional_information(models, ["x", "y"], list(AXES), gaps)
    for row, gap in zip(found, gaps, strict=True):
        for value, name in zip(row, ["x", "y"], strict=True):
            kept = np.isfinite(models[name]) & np.isfinite(gap)
            own = models[kept].reset_index(drop=True)
            expected = information(own[name], gap[kept], own[list(AXES)])
            assert value == pytest.approx(expected, abs=1e-12)


def sign_errors(table, measures, axes=tuple(FEW_AXES), test_images=10_000):
    gaps = table[["gap"]].to_numpy().T
    return b.sign_errors(table, measures, axes, gaps, test_images=test_images)


def by_loops(table, measure, direction, images, pooled):
    """The definition, one pair of models at a time: errors of environments that count."""
    axes = list(FEW_AXES)
    cells = dict(list(table.groupby(axes)))
    pairs = {}
    for (key, one), (other, two) in itertools.combinations(cells.items(), 2):
        different = [i for i in range(len(axes)) if key[i] != other[i]]
        if len(different) != 1:
            continue
        i = different[0]
        name = (i, *sorted((key[i], other[i]))) if pooled else (i, key, other)
        for x, y in itertools.product(one.to_dict("records"), two.to_dict("records")):
            change = x["gap"] - y["gap"]
            certainty = max(0, 1 - 2 * np.exp(-images * change**2 / 2))
            weight = max(0, certainty**2 - 0.5)
            sign = -direction * np.sign(x[measure] - y[measure]) * np.sign(change)
            pairs.setdefault(name, []).append((weight, (1 - sign) / 2))
    errors = []
    for listed in pairs.values():
        w, wrong = np.array(listed).T
        if w.sum() > 0 and w.sum() ** 2 / (w**2).sum() >= b.MINIMUM_SAMPLE:
            errors.append((w * wrong).sum() / w.sum())
    return errors


@pytest.mark.parametrize(("repeats", "minimum"), [(5, 4), (5, 12), (3, 12)])
@pytest.mark.parametrize(("measure", "direction"), [("good", 1), ("norm", -1)])
def test_worst_environment_by_loops(monkeypatch, measure, direction, repeats, minimum):
    monkeypatch.setattr(b, "MINIMUM_SAMPLE", minimum)
    table = catalogue(repeats, axes=FEW_AXES)
    worst, is_pooled = sign_errors(table, {measure: direction}, test_images=5000)
    pooled = repeats == 3
    errors = by_loops(table, measure, direction, 5000, pooled)
    assert is_pooled.tolist() == [pooled] and len(errors) > 1
    assert worst[0, 0] == pytest.approx(max(errors), abs=1e-12)


def test_perfect_is_0_reversed_is_1_and_a_constant_one_half():
    table = catalogue(4, axes=FEW_AXES).assign(reversed=lambda t: -t["good"])
    table.loc[[3, 17], "norm"] = [np.nan, np.inf]
    worst, _ = sign_errors(table, {"good": 1, "reversed": 1, "constant": 1, "norm": -1})
    assert worst[0, :3].tolist() == [0, 1, 0.5]
    alone, _ = sign_errors(table.drop(index=[3, 17]), {"norm": -1})
    assert worst[0, 3] == pytest.approx(alone[0, 0], abs=1e-12)
    assert np.isnan(sign_errors(table, {"good": 1}, [])[0]).all()


DIRECTIONS = {"noise": 1, "constant": 1, "perfect": -1, "absent": -1, "good": -1}


@pytest.fixture
def models():
    table = catalogue(2).assign(perfect=lambda t: t["gap"], absent=np.nan)
    return table.assign(architecture=np.where(table["batch_size"] == 32, "a", "b"))


def test_statistics_stand_beside_what_chance_gives(models):
    given = Bootstrap(models), DIRECTIONS, list(AXES)
    table = b.conditional_table(*given, test_images=10_000, permutations=59)
    table = table.set_index("measure")
    assert table.loc["perfect", "granulated_kendall"] == 1
    score = table["conditional_information"]
    p = table["conditional_information_p_adjusted"]
    assert p[["perfect", "good"]].tolist() == [1 / 60, 1 / 60] and p["noise"] > 0.05
    assert score["noise"] < score["good"] <= 1
    # Low errors are the extreme ones: the reversed measure is as wrong as can be.
    assert table["sign_error"][["perfect", "good"]].tolist() == [0, 1]
    adjusted = table["sign_error_p_adjusted"][["perfect", "good", "absent"]].tolist()
    assert adjusted == pytest.approx([1 / 60, 1, np.nan], nan_ok=True)
    few = b.conditional_table(*given, test_images=10, permutations=9)
    assert few["sign_error"].isna().all()


def test_tasks_are_scored_apart_with_permutations_of_their_own(models):
    names = ["perfect", "noise", "absent"]
    options = {"axes": list(AXES), "task": "architecture", "seed": 0}
    table = b.task_table(models, names, permutations=99, **options)
    table = table.set_index("measure")
    assert table.loc["perfect"].tolist()[:4] == pytest.approx([100, 100, 100, 0.01])
    of_tasks = table.loc["noise", ["a", "b"]].mean()
    assert table.loc["noise", "average"] == pytest.approx(of_tasks)
    assert table.loc["absent", ["a", "average", "average_p_adjusted"]].isna().all()
    p = []
    for tasks in ("a", "ab"):
        same = pd.concat([models.assign(architecture=task) for task in tasks])
        table = b.task_table(same, ["noise"], permutations=99, **options)
        p += [*table["average_p_adjusted"]]
    assert p[0] != p[1]
    one_axis = models.query(
        "learning_rate > 0.05 and "
        "(architecture == 'b' or (pretrained and optimizer == 'sgd'))"
    )
    fewer = b.task_table(one_axis, ["perfect"], permutations=9, **options)
    assert np.isnan(fewer.loc[0, "a"]) and fewer.loc[0, "average"] == pytest.approx(100)


def test_the_first_component_of_gi_and_mixup_is_that_of_scikit_learn():
    random = np.random.default_rng(2)
    gi = random.normal(size=30)
    mixup = -gi + random.normal(size=30)
    gi[4], mixup[9] = np.nan, np.inf
    kept = np.isfinite(gi) & np.isfinite(mixup)
    scores = scipy.stats.zscore(np.column_stack([gi, mixup])[kept])
    component = PCA(1).fit_transform(scores)[:, 0]
    component *= np.sign(np.corrcoef(gi[kept], component)[0, 1])
    found = b.pca_gi_mixup(gi, mixup)
    assert found[kept] == pytest.approx(component) and np.isnan(found[~kept]).all()
    assert np.isnan(b.pca_gi_mixup([1, 2, 1], [1, 1, 1])).all()
