import itertools

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from sklearn.decomposition import PCA

from helpers.statistics import tables
from helpers.statistics.bootstrap import Bootstrap
from helpers.statistics.hyperparameters import granulated_kendall
from helpers.statistics.information import conditional_information
from helpers.statistics.published import published_table
from helpers.statistics.sign_error import sign_errors


def catalogue(seed, repeats=2, cells=30):
    """Two architectures, configurations of repeats that share an effect, one measure that follows the gap and one that does not."""
    rng, rows = np.random.default_rng(seed), cells * repeats
    gap = np.repeat(rng.uniform(0, 0.5, cells), repeats) + 0.01 * rng.normal(size=rows)
    table = pd.DataFrame(
        {
            "architecture": np.repeat(["resnet34", "resnet18"], rows // 2),
            "train_accuracy": rng.uniform(0.7, 1, rows),
        }
    )
    return table.assign(
        gap=gap,
        cell=np.arange(rows) // repeats,
        good=1 - gap + 0.02 * rng.normal(size=rows),
        noise=rng.normal(size=rows),
    )


def subset(models, row):
    kept = models[models["train_accuracy"] > row.threshold]
    return (
        kept
        if row.architecture == "Total"
        else kept[kept["architecture"] == row.architecture]
    )


def test_correlation_table_holds_every_subset_and_equals_scipy():
    models = catalogue(0)
    models.loc[[0, 59], "good"] = np.nan
    table = tables.correlation_table(
        Bootstrap(models, draws=200), ["good", "noise"], (0.9, 0.75)
    )
    assert table["architecture"].unique().tolist() == ["resnet34", "resnet18", "Total"]
    assert len(table) == 3 * 2 * 2 and not table.isna().any(axis=None)
    for row in table.itertuples():
        part = subset(models, row)
        kept = part[part[row.measure].notna()]
        assert (row.n, row.dropped, row.cells) == (
            len(kept),
            len(part) - len(kept),
            kept["cell"].nunique(),
        )
        assert row.pearson_r == pytest.approx(
            scipy.stats.pearsonr(kept[row.measure], kept["gap"]).statistic, rel=1e-12
        )
        assert row.kendall_tau == pytest.approx(
            scipy.stats.kendalltau(kept[row.measure], kept["gap"]).statistic, rel=1e-12
        )
        assert (
            row.ci_low < row.pearson_r < row.ci_high
            and row.kendall_low < row.kendall_tau < row.kendall_high
        )


def test_a_threshold_is_exceeded_and_subsets_without_models_stay_as_nan_rows():
    draws = Bootstrap(catalogue(0).assign(train_accuracy=0.9), draws=9)
    table = tables.correlation_table(draws, ["good"], (0.9, 0.89))
    assert table.loc[table["architecture"] == "Total", "n"].tolist() == [0, 60]
    for table in (
        tables.correlation_table(draws, ["good"], (0.9,)),
        tables.selection_table(draws, {"good": 1}, (0.9,)),
    ):
        assert len(table) == 3 and table.filter(
            regex="pearson_r|ci_|kendall|accuracy"
        ).isna().all(axis=None)
    # The total is left out where it is that of one architecture.
    assert tables.correlation_table(draws.subset(np.arange(30)), ["good"], (0.9,))[
        "architecture"
    ].tolist() == ["resnet34"]
    assert (
        tables.correlation_table(
            draws.subset(np.full(60, False)), ["good"], (0.9, 0.8)
        )["architecture"].tolist()
        == ["Total"] * 2
    )


def test_selection_table_equals_all_pairs():
    models = catalogue(1).assign(
        bad=lambda t: -t["good"], rounded=lambda t: t["good"].round(1)
    )
    table = tables.selection_table(
        Bootstrap(models, draws=100), {"good": 1, "bad": -1, "rounded": 1}, (0.8,)
    )
    for row in table.itertuples():
        kept, counts = subset(models, row), {1: 0, -1: 0, 0: 0}
        values = kept["rounded" if row.measure == "rounded" else "good"]
        for (m, g), (n, h) in itertools.combinations(
            zip(values, kept["gap"], strict=True), 2
        ):
            counts[-int(np.sign(m - n) * np.sign(g - h))] += 1
        assert (row.concordant, row.discordant, row.ties) == (
            counts[1],
            counts[-1],
            counts[0],
        )
        assert row.accuracy == pytest.approx(
            row.concordant / (row.concordant + row.discordant), rel=1e-12
        )
        assert row.ci_low <= row.accuracy <= row.ci_high
    # The same measure upside down with the other direction is the same choice.
    numbers = ["accuracy", "ci_low", "ci_high"]
    np.testing.assert_allclose(
        *(table.loc[table["measure"] == name, numbers] for name in ("good", "bad")),
        rtol=1e-12,
    )


AXES = ["batch_size", "learning_rate", "pretrained"]
DIRECTIONS = {"noise": 1, "constant": 1, "perfect": -1, "absent": -1, "reversed": -1}


@pytest.fixture
def grid():
    """Two repeats of a grid whose gap is made by all hyperparameters and some noise."""
    rng = np.random.default_rng(0)
    models = pd.DataFrame(
        itertools.product((16, 32, 64), (0.1, 0.01), (False, True), range(2)),
        columns=[*AXES, "repeat"],
    )
    gap = (
        0.3
        - 0.1 * models["pretrained"]
        + 0.001 * models["batch_size"]
        + 0.5 * models["learning_rate"]
        + 0.01 * rng.normal(size=24)
    )
    values = {
        "perfect": gap,
        "reversed": -gap,
        "noise": rng.normal(size=24),
        "constant": 1.0,
        "absent": np.nan,
    }
    return models.assign(
        gap=gap,
        cell=np.arange(24) // 2,
        architecture=np.where(models["batch_size"] == 16, "a", "b"),
        **values,
    )


def test_statistics_with_hyperparameters_fixed_stand_beside_what_chance_gives(grid):
    table, reason = tables.conditional_table(
        Bootstrap(grid), DIRECTIONS, AXES, test_images=10_000, permutations=59
    )
    table = table.set_index("measure")
    granulated = granulated_kendall(grid, list(DIRECTIONS), AXES).set_index(
        ["measure", "hyperparameter"]
    )["psi"]
    assert table["granulated_kendall"].tolist() == pytest.approx(
        [granulated[name, "all"] for name in DIRECTIONS], nan_ok=True
    )
    np.testing.assert_array_equal(
        table["conditional_information"],
        conditional_information(
            grid, list(DIRECTIONS), AXES, grid[["gap"]].to_numpy().T
        )[0],
    )
    np.testing.assert_array_equal(
        table["sign_error"],
        sign_errors(
            grid, DIRECTIONS, AXES, grid[["gap"]].to_numpy().T, test_images=10_000
        ).robust[0],
    )
    assert table.loc[
        ["perfect", "reversed"], "conditional_information_p_adjusted"
    ].tolist() == [1 / 60, 1 / 60]
    noise = table.loc["noise"].filter(like="conditional")
    assert (
        noise["conditional_information_p_adjusted"] > 0.05
        and noise["conditional_information"] < noise["conditional_information_band"]
    )
    # Low errors are the extreme ones: the reversed measure is as wrong as can be, and no finding.
    assert table["sign_error"][["perfect", "reversed"]].tolist() == [0, 1]
    assert table["sign_error_p_adjusted"][
        ["perfect", "reversed", "absent"]
    ].tolist() == pytest.approx([1 / 60, 1, np.nan], nan_ok=True)
    assert 0 < table.loc["perfect", "sign_error_band"] < 0.6
    assert (reason, set(table["permutations"])) == ("", {59})


def test_a_sign_error_that_is_undefined_is_left_out_with_one_reason(grid):
    none, reason = tables.conditional_table(
        Bootstrap(grid), DIRECTIONS, [], test_images=10, permutations=9
    )
    assert none.loc[0].filter(regex="granulated|sign_error").isna().all() and reason
    few, reason = tables.conditional_table(
        Bootstrap(grid), DIRECTIONS, AXES, test_images=10, permutations=9
    )
    assert not [name for name in few if name.startswith("sign_error")]
    assert "(12 by weight)" in reason and "10 test images" in reason


def test_tasks_are_scored_apart_and_one_with_a_single_hyperparameter_has_none(grid):
    table = tables.task_table(
        Bootstrap(grid),
        ["perfect", "noise", "absent"],
        AXES,
        "architecture",
        permutations=99,
    ).set_index("measure")
    assert list(table.columns) == [
        "a",
        "b",
        "average",
        "average_p_adjusted",
        "average_band",
    ]
    assert table.loc["perfect"].tolist()[:4] == pytest.approx([100, 100, 100, 1 / 100])
    assert table.loc["noise", "average_p_adjusted"] > 0.05
    assert table.loc["noise", "average"] == pytest.approx(
        table.loc["noise", ["a", "b"]].mean()
    )
    assert table.loc["absent", ["a", "b", "average", "average_p_adjusted"]].isna().all()
    one_axis = grid[(grid["architecture"] == "b") | grid["pretrained"]]
    fewer = tables.task_table(
        Bootstrap(one_axis), ["perfect"], AXES, "architecture", permutations=9
    )
    assert np.isnan(fewer.loc[0, "a"]) and fewer.loc[0, "average"] == pytest.approx(100)
    assert (
        tables.task_table(
            Bootstrap(grid), ["perfect"], [], "architecture", permutations=9
        )["average"]
        .isna()
        .all()
    )


def test_chance_of_one_task_says_nothing_of_another(grid, monkeypatch):
    """Gaps of two tasks that are alike are not permuted alike."""
    permutations = []
    whole = tables.conditional_information

    def noted(models, measures, axes, gaps):
        order = np.argsort(gaps[0])
        permutations.append(order[np.searchsorted(gaps[0][order], gaps[1:])])
        return whole(models, measures, axes, gaps)

    monkeypatch.setattr(tables, "conditional_information", noted)
    one = grid[grid["architecture"] == "a"]
    twin = one.assign(architecture="b", cell=one["cell"].astype(str) + " again")
    both = Bootstrap(pd.concat([one, twin], ignore_index=True))
    tables.task_table(both, ["noise"], AXES, "architecture", permutations=5)
    first, second = permutations
    assert first.shape == second.shape
    assert not (first == second).all(1).any()


def test_the_first_component_of_gi_and_mixup_is_that_of_scikit_learn():
    random = np.random.default_rng(2)
    gi = random.normal(size=30)
    mixup = -gi + random.normal(size=30)
    gi[4], mixup[9] = np.nan, np.inf
    kept = np.isfinite(gi) & np.isfinite(mixup)
    component = PCA(1).fit_transform(
        scipy.stats.zscore(np.column_stack([gi, mixup])[kept])
    )[:, 0]
    found = tables.pca_gi_mixup(gi, mixup)
    assert (
        found[kept]
        == pytest.approx(component * np.sign(np.corrcoef(gi[kept], component)[0, 1]))
        and np.isnan(found[~kept]).all()
    )
    assert all(
        np.isnan(tables.pca_gi_mixup([1, 2, 1], y)).all()
        for y in ([1, 1, 1], [0, 1, 2], [1, 2, np.nan])
    )


def test_the_papers_values_stand_beside_ours():
    ours = pd.DataFrame(
        {
            "architecture": ["resnet18", "resnet18", "other"],
            "threshold": 0.95,
            "measure": ["iou", "noise", "iou"],
        }
    )
    table = tables.beside_published(
        ours.assign(pearson_r=-0.5), published_table("du2024_table3")
    )
    assert table["published_r"].tolist() == pytest.approx(
        [-0.9144, np.nan, np.nan], nan_ok=True
    )
    assert table["difference"][0] == pytest.approx(0.4144)
    table = tables.beside_published(
        ours.assign(accuracy=0.8), published_table("du2024_table4")
    )
    assert table["difference"].tolist() == pytest.approx(
        [0.8 - 0.761, np.nan, np.nan], nan_ok=True
    )
