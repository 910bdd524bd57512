import itertools

import numpy as np
import pandas as pd
import pytest

from helpers.statistics.bootstrap import Bootstrap
from helpers.statistics.correlations import pearson
from helpers.statistics.hyperparameters import (
    confounders,
    granulated_kendall,
    subsets,
    varied_axes,
)

AXES = {
    "batch_size": [32, 64, 128],
    "learning_rate": [0.1, 0.01, 0.001],
    "optimizer": ["adam", "sgd"],
    "pretrained": [False, True],
}


def catalogue(rng, repeats=2, axes=AXES):
    grid = pd.DataFrame(itertools.product(*axes.values()), columns=list(axes))
    table = grid.loc[np.repeat(np.arange(len(grid)), repeats)].reset_index(names="cell")
    effects = sum(
        0.05 * rng.normal(size=len(levels))[pd.factorize(table[name])[0]]
        for name, levels in axes.items()
    )
    gap = 0.2 + effects + 0.02 * rng.normal(size=len(table))
    noise = rng.normal(size=len(table))
    return table.assign(gap=gap, norm=(gap + 0.05 * noise[::-1]).round(2), noise=noise)


def by_groups(table, measure, axes):
    """psi of each axis, by pandas' groups."""
    kept = table[np.isfinite(table[measure]) & np.isfinite(table["gap"])]
    means = kept.groupby(list(axes), as_index=False)[[measure, "gap"]].mean().round(9)
    for axis in axes:
        groups = [
            group
            for _, group in means.groupby([name for name in axes if name != axis])
            if len(group) > 1
        ]
        pairs = [
            itertools.combinations(zip(group[measure], group["gap"], strict=True), 2)
            for group in groups
        ]
        yield np.mean(
            [
                np.mean([np.sign(a - b) * np.sign(g - h) for (a, g), (b, h) in group])
                for group in pairs
            ]
        )


def test_granulated_kendall_by_hand():
    table = pd.DataFrame(
        {
            "a": [1, 2, 3, 1, 2, 3],
            "b": [0, 0, 0, 1, 1, 1],
            "gap": [1, 2, 3, 1, 2, 3],
            "m": [1, 3, 2, 5, 5, 6],
        }
    )
    found = granulated_kendall(table, ["m"], ["a", "b"])
    # a: with b = 0 two pairs of three agree and one does not, with b = 1 two agree and one is tied. b: no gap differs.
    assert list(found["psi"]) == pytest.approx([(1 / 3 + 2 / 3) / 2, 0, 0.25])
    assert list(found["hyperparameter"]) == ["a", "b", "all"]
    assert list(
        granulated_kendall(table.assign(m=-table["m"]), ["m"], ["a", "b"])["psi"]
    ) == pytest.approx([-0.5, 0, -0.25])


def test_granulated_kendall_equals_pandas_groups_where_the_grid_has_holes():
    table = catalogue(np.random.default_rng(0)).sample(frac=0.5, random_state=1)
    table.loc[table.index[:3], "norm"], table.loc[table.index[7], "gap"] = (
        [np.nan, np.inf, -np.inf],
        np.nan,
    )
    found = granulated_kendall(table, ["norm", "noise"], list(AXES)).set_index(
        "measure"
    )
    for name in ("norm", "noise"):
        psi = list(by_groups(table, name, list(AXES)))
        np.testing.assert_allclose(
            found.loc[name, "psi"], [*psi, np.mean(psi)], rtol=0, atol=1e-12
        )
    assert found["n"].unique().tolist() == [len(table) - 4, len(table) - 1]


def test_an_axis_without_two_levels_in_any_setting_is_nan_and_not_in_psi():
    table = pd.DataFrame(
        {
            "a": [1, 2, 3],
            "b": ["x", "x", "x"],
            "gap": [0.3, 0.2, 0.1],
            "m": [3, 2, 1],
            "broken": np.nan,
        }
    )
    found = granulated_kendall(table, ["m", "broken"], ["a", "b"])
    np.testing.assert_array_equal(found["psi"], [1, np.nan, 1, np.nan, np.nan, np.nan])
    assert varied_axes(table, ["a", "b"]) == ["a"]
    assert np.isnan(granulated_kendall(table, ["m"], [])["psi"]).tolist() == [True]


def test_a_constant_has_no_order_through_the_rounding_of_means():
    table = catalogue(np.random.default_rng(2), repeats=1 + np.arange(36) % 3).assign(
        constant=0.1
    )
    assert (granulated_kendall(table, ["constant"], list(AXES))["psi"] == 0).all()


def confounded():
    """The gap is made by the learning rate alone, which moves IoU too."""
    table, rng = catalogue(np.random.default_rng(0)), np.random.default_rng(1)
    level, (noise, other, small) = (
        np.log10(table["learning_rate"]) + 2,
        0.02 * rng.normal(size=(3, len(table))),
    )
    iou, gap = other - level / 10, level / 10 + noise
    return table.assign(
        iou=iou, iou_b=iou + small / 2, gap=gap, run_id=np.arange(len(table))
    )


def row(table, kind, hyperparameter="all", measure="iou"):
    chosen = (
        (table["measure"] == measure)
        & (table["kind"] == kind)
        & (table["hyperparameter"] == hyperparameter)
    )
    return table[chosen].iloc[0]


def test_every_r_is_what_it_is_called():
    models = confounded()
    table = confounders(
        Bootstrap(models, draws=100),
        ["iou", "iou_b"],
        list(AXES),
        published={"iou": -0.8},
    )
    assert (
        row(table, "pooled")["r"]
        == pytest.approx(pearson(models["iou"], models["gap"]))
        and row(table, "pooled")["ci_high"] < -0.7
    )
    assert row(table, "given all")["ci_low"] < 0 < row(table, "given all")["ci_high"]
    assert row(table, "pooled")["published"] == -0.8 and np.isnan(
        row(table, "pooled", measure="iou_b")["published"]
    )
    residuals = models[["iou", "gap"]] - models.groupby("batch_size")[
        ["iou", "gap"]
    ].transform("mean")
    assert row(table, "given one", "batch_size")["r"] == pytest.approx(
        pearson(residuals["iou"], residuals["gap"])
    )
    within = table[
        (table["kind"] == "within a level") & (table["measure"] == "iou")
    ].set_index("level")["r"]
    part = models[models["learning_rate"] == 0.1]
    assert (
        within["0.1"] == pytest.approx(pearson(part["iou"], part["gap"]))
        and len(within) == 3 + 3 + 2 + 2
    )
    granulated = granulated_kendall(models, ["iou"], list(AXES))["psi"].iloc[-1]
    assert row(table, "granulated")["r"] == granulated and np.isnan(
        row(table, "granulated")["ci_low"]
    )
    assert set(confounders(Bootstrap(models, draws=0), ["iou"], [])["kind"]) == {
        "pooled"
    }


def test_subsets_are_correlated_one_by_one():
    models = confounded().assign(
        label_noise=lambda table: np.where(table["cell"] < 7, 0.0, 0.2),
        snapshot="first",
    )
    table = subsets(Bootstrap(models, draws=100), ["iou"], "label_noise")
    for level, cells, found in zip(
        (0.0, 0.2), (7, 29), table.itertuples(), strict=True
    ):
        part = models[models["label_noise"] == level]
        assert (found.level, found.n, found.cells) == (str(level), len(part), cells)
        assert found.pearson_r == pytest.approx(
            pearson(part["iou"], part["gap"])
        ) and np.isnan(found.ci_low) == (cells < 8)
        assert (found.mean, found.mean_gap) == pytest.approx(
            (part["iou"].mean(), part["gap"].mean())
        )
    assert not len(subsets(Bootstrap(models[:0], draws=9), ["iou"], "label_noise"))
