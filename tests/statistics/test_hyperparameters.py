import itertools
import re

import numpy as np
import pandas as pd
import pytest

from helpers.report import measures
from helpers.statistics import hyperparameters
from helpers.statistics.correlations import pearson
from helpers.statistics.hyperparameters import granulated_kendall

AXES = {"batch_size": [32, 64, 128], "learning_rate": [0.1, 0.01, 0.001], "optimizer": ["adam", "sgd"], "pretrained": [False, True]}


def catalogue(rng, repeats=2, axes=AXES):
    grid = pd.DataFrame(itertools.product(*axes.values()), columns=list(axes))
    table = grid.loc[np.repeat(np.arange(len(grid)), repeats)].reset_index(names="cell")
    effects = sum(0.05 * rng.normal(size=len(levels))[pd.factorize(table[name])[0]] for name, levels in axes.items())
    gap = 0.2 + effects + 0.02 * rng.normal(size=len(table))
    noise = rng.normal(size=len(table))
    return table.assign(gap=gap, good=1 - gap + 0.02 * noise, norm=(gap + 0.05 * noise[::-1]).round(2), noise=noise)


def tau_a(x, y):
    pairs = list(itertools.permutations(range(len(x)), 2))
    return sum(np.sign(x[a] - x[b]) * np.sign(y[a] - y[b]) for a, b in pairs) / len(pairs)


def by_groups(table, measure, direction, axes):
    """psi of each axis and its number of settings, by pandas' groups."""
    cells = (
        table[np.isfinite(table[measure]) & np.isfinite(table["gap"])].groupby(list(axes), as_index=False)[[measure, "gap"]].mean().round(9)
    )
    for axis in axes:
        others = [name for name in axes if name != axis]
        groups = [group for _, group in (cells.groupby(others) if others else [(0, cells)]) if len(group) > 1]
        taus = [tau_a((-direction * group[measure]).to_numpy(), group["gap"].to_numpy()) for group in groups]
        yield (np.mean(taus) if taus else np.nan), len(taus)


def test_granulated_kendall_by_hand():
    table = pd.DataFrame({"a": [1, 2, 3, 1, 2, 3], "b": [0, 0, 0, 1, 1, 1], "gap": [1, 2, 3, 1, 2, 3], "m": [1, 3, 2, 5, 5, 6]})
    found = granulated_kendall(table, {"m": -1}, ["a", "b"])
    # a: with b = 0 two pairs of three agree and one does not, with b = 1 two agree and one is tied. b: no gap differs.
    assert list(found["psi"]) == pytest.approx([(1 / 3 + 2 / 3) / 2, 0, 0.25])
    assert list(found["groups"]) == [2, 3, 5]
    assert list(found["hyperparameter"]) == ["a", "b", "all"]


@pytest.mark.parametrize("keep", [1, 0.5])
def test_granulated_kendall_equals_pandas_groups(keep):
    rng = np.random.default_rng(0)
    table = catalogue(rng).sample(frac=keep, random_state=1)
    table.loc[table.index[:3], "norm"], table.loc[table.index[7], "gap"] = [np.nan, np.inf, -np.inf], np.nan
    measures = {"good": 1, "norm": -1, "noise": 1}
    found = granulated_kendall(table, measures, list(AXES))
    for name, direction in measures.items():
        psi, groups = zip(*by_groups(table, name, direction, list(AXES)), strict=True)
        rows = found[found["measure"] == name]
        np.testing.assert_allclose(rows["psi"], [*psi, np.mean(psi)], rtol=0, atol=1e-12)
        assert list(rows["groups"]) == [*groups, sum(groups)]
        assert set(rows["dropped"]) == {4 if name == "norm" else 1}
        assert set(rows["n"] + rows["dropped"]) == {len(table)}


def test_granulated_kendall_of_perfect_and_reversed_measures():
    table = catalogue(np.random.default_rng(1))
    table["perfect"], table["reversed"] = np.exp(-9 * table["gap"].groupby(table["cell"]).transform("mean")), table["gap"]
    found = granulated_kendall(table, {"perfect": 1, "reversed": 1}, list(AXES))
    np.testing.assert_allclose(found["psi"], [1] * 5 + [-1] * 5, rtol=0, atol=1e-12)


def test_an_axis_without_two_levels_in_any_setting_is_nan_and_not_in_psi():
    table = pd.DataFrame({"a": [1, 2, 3], "b": ["x", "x", "x"], "gap": [0.1, 0.2, 0.3], "m": [3, 2, 1], "broken": np.nan})
    found = granulated_kendall(table, {"m": 1, "broken": 1}, ["a", "b"])
    np.testing.assert_array_equal(found["psi"], [1, np.nan, 1, np.nan, np.nan, np.nan])
    assert list(found["groups"]) == [1, 0, 1, 0, 0, 0]


def test_a_constant_measure_has_no_order_through_the_rounding_of_means():
    table = catalogue(np.random.default_rng(2), repeats=1 + np.arange(36) % 3).assign(constant=0.1)
    assert (granulated_kendall(table, {"constant": 1}, list(AXES))["psi"] == 0).all()


def test_floats_that_are_close_are_one_level():
    table = catalogue(np.random.default_rng(11))
    close = table.assign(learning_rate=table["learning_rate"] * (1 + 1e-14 * np.arange(len(table))))
    assert close["learning_rate"].nunique() > 3
    expected, found = (granulated_kendall(models, {"noise": 1}, list(AXES)) for models in (table, close))
    pd.testing.assert_frame_equal(found, expected, rtol=1e-9)
    pooled = hyperparameters.confounders(close, ["noise"], ["learning_rate"], resamples=0)
    assert (pooled["kind"] == "within a level").sum() == 3


@pytest.mark.parametrize("function", [granulated_kendall])
@pytest.mark.parametrize(
    ("measures", "axes", "message"),
    [
        ({"best": 1}, ["depth"], "no column depth, best"),
        ({"noise": 2}, ["optimizer"], "directions {'noise': 2} must be +1"),
        ({"noise": 1}, [], "there are no hyperparameters"),
        ({"noise": 1}, ["unknown"], "hyperparameter 'unknown' has 72 missing values"),
    ],
)
def test_bad_input_is_refused(function, measures, axes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        function(catalogue(np.random.default_rng(12)).assign(unknown=None), measures, axes)


def catalogue_confounders(kind, repeats=4, seed=0):
    """A grid of 3 learning rates, 2 batch sizes and pretrained or not, repeated.

    The gap of "confounded" is made by the learning rate alone, which moves IoU too; in "real" the gap follows IoU, which no
    hyperparameter moves; in "reversed" IoU and gap rise together with the learning rate but oppose each other within it.
    """
    rng = np.random.default_rng(seed)
    grid = [(rate, batch, pretrained) for rate in (0.1, 0.01, 0.001) for batch in (16, 32) for pretrained in (True, False)]
    rows = pd.DataFrame([cell for cell in grid for _ in range(repeats)], columns=["learning_rate", "batch_size", "pretrained"])
    level, noise, count = np.log10(rows["learning_rate"]) + 2, rng.normal(0, 0.02, len(rows)), len(rows)
    iou, gap = {
        "confounded": (0.5 - 0.1 * level + rng.normal(0, 0.02, count), 0.3 + 0.1 * level + noise),
        "real": (values := 0.5 + rng.normal(0, 0.1, count), 0.8 - values + noise),
        "reversed": (0.5 + 0.1 * level + noise, 0.3 + 0.1 * level - noise + rng.normal(0, 0.005, count)),
    }[kind]
    names = [f"{row.learning_rate} {row.batch_size} {row.pretrained}" for row in rows.itertuples()]
    return rows.assign(iou=iou, iou_b=iou + rng.normal(0, 0.01, count), gap=gap, cell=names, run_id=np.arange(count))


AXES_confounders = ["learning_rate", "batch_size", "pretrained"]


def table_of(models, axes=AXES_confounders, **options):
    return hyperparameters.confounders(models, {"iou": 1, "iou_b": 1}, axes, resamples=300, **options)


def row(table, kind, hyperparameter="all", measure="iou"):
    chosen = (table["measure"] == measure) & (table["kind"] == kind) & (table["hyperparameter"] == hyperparameter)
    return table[chosen].iloc[0]


def test_a_gap_made_by_one_hyperparameter_alone_is_said_to_be():
    table = table_of(catalogue_confounders("confounded"))
    assert row(table, "pooled")["ci_high"] < -0.7
    assert row(table, "given all")["ci_low"] < 0 < row(table, "given all")["ci_high"]
    sentence = measures.say_confounding(table, "iou", "IoU")
    assert "the pooled correlation is that of the hyperparameters" in sentence
    singles = table[(table["measure"] == "iou") & (table["kind"] == "given one")]["r"]
    assert f"with one of them held fixed, r is {singles.min():.2f} to {singles.max():.2f}" in sentence
    numbers = [float(number) for number in re.findall(r"-?\d+\.\d+", sentence)]
    left, pooled = row(table, "given all")["r"], row(table, "pooled")["r"]
    assert numbers[0] == round(pooled, 2)
    assert numbers[3] == round(left, 2)
    assert left > 0
    assert "is left, none of it: what is left can be told from the pooled r but not from 0" in sentence
    assert measures.say_field(table).startswith("Of 2 measures, 2 have a pooled interval clear of 0; given all")
    assert "and 2 cannot be told from 0 any more" in measures.say_field(table)


def test_a_correlation_that_no_hyperparameter_makes_survives():
    table = table_of(catalogue_confounders("real"))
    sentence = measures.say_confounding(table, "iou", "IoU")
    assert "the hyperparameters are not what makes it" in sentence
    share = row(table, "given all")["r"] / row(table, "pooled")["r"]
    assert (f"is left, {100 * share:.1f} % of it" if share <= 1 else "is left, all of it and more") in sentence
    assert "2 of these keep their sign beyond doubt, 0 turn round" in measures.say_field(table)


def test_a_reversal_is_called_one():
    table = table_of(catalogue_confounders("reversed"))
    assert "turns round when the hyperparameters are held fixed (Simpson's paradox)" in measures.say_confounding(table, "iou", "IoU")


def test_a_hyperparameter_that_hides_a_correlation_is_found():
    models = catalogue_confounders("real")
    level = np.log10(models["learning_rate"]) + 2
    # No part of IoU goes with the learning rate, which moves the gap by far more than IoU does.
    models["iou"] -= models.groupby("learning_rate")["iou"].transform("mean") - 0.5
    models["gap"] = 0.8 - models["iou"] + 5.0 * level
    sentence = measures.say_confounding(table_of(models), "iou", "IoU")
    assert "a correlation that the pooled models hide shows when the hyperparameters are held fixed" in sentence


def test_every_r_is_what_it_is_called():
    models = catalogue_confounders("confounded")
    table = table_of(models, theirs={"iou": -0.8})
    assert row(table, "pooled")["r"] == pytest.approx(pearson(models["iou"], models["gap"]))
    assert row(table, "pooled")["published"] == -0.8
    assert np.isnan(row(table, "pooled", measure="iou_b")["published"])
    # Given one hyperparameter: residuals of the level's means, by pandas.
    residuals = models[["iou", "gap"]] - models.groupby("batch_size")[["iou", "gap"]].transform("mean")
    assert row(table, "given one", "batch_size")["r"] == pytest.approx(pearson(residuals["iou"], residuals["gap"]))
    within = table[(table["kind"] == "within a level") & (table["measure"] == "iou")].set_index("level")["r"]
    part = models[models["learning_rate"] == 0.1]
    assert within["0.1"] == pytest.approx(pearson(part["iou"], part["gap"]))
    assert len(within) == 3 + 2 + 2
    assert list(table.columns) == hyperparameters.CONFOUNDER_COLUMNS
    assert table["r"].dropna().between(-1, 1).all()


def test_no_varied_hyperparameter_and_too_few_models_are_said_in_words():
    table = table_of(catalogue_confounders("real"), axes=[])
    assert set(table["kind"]) == {"pooled"}
    assert "no hyperparameter has two levels, so none can be behind it" in measures.say_confounding(table, "iou", "IoU")
    few = table_of(catalogue_confounders("real", repeats=1).iloc[[0, 1, 2, 3]])
    assert row(few, "given all")["n"] == 4
    for models in (
        catalogue_confounders("real").iloc[:4],
        catalogue_confounders("real").iloc[:0],
        catalogue_confounders("real").assign(iou=0.0),
    ):
        table = table_of(models, axes=[axis for axis in AXES_confounders if models[axis].nunique() > 1])
        for text in (
            measures.say_confounding(table, "iou", "IoU"),
            measures.say_field(table),
            measures.say_granulated(table, "iou", "IoU"),
        ):
            assert text.endswith(".")
            assert "nan" not in text.lower()


def test_no_degree_of_freedom_is_said_and_one_hyperparameter_alone_still_read():
    models = catalogue_confounders("confounded", repeats=1).iloc[[0, 1, 2, 5, 6, 8]].reset_index(drop=True)
    table = table_of(models)
    assert not np.isfinite(row(table, "given all")["ci_low"])
    sentence = measures.say_confounding(table, "iou", "IoU")
    assert "no degree of freedom" in sentence or "with too few models for an interval, no claim" in sentence
    assert "nan" not in sentence


def test_granulated_kendall_is_read_with_its_range_over_hyperparameters():
    table = table_of(catalogue_confounders("real"))
    text = measures.say_granulated(table, "iou", "IoU")
    psi = table[(table["kind"] == "granulated") & (table["measure"] == "iou")].set_index("hyperparameter")["r"]
    assert f"{psi['all']:.2f} on average" in text
    single = psi.drop("all").dropna()
    assert f"{single.min():.2f} to {single.max():.2f} over {len(single)} hyperparameters" in text


def test_subsets_are_correlated_one_by_one():
    models = catalogue_confounders("real").assign(label_noise=lambda table: np.where(table["batch_size"] == 16, 0.0, 0.2))
    table = hyperparameters.subsets(models, "iou", "label_noise", 100, 0)
    assert table["level"].tolist() == ["0.0", "0.2"]
    for level, found in zip((0.0, 0.2), table.itertuples(), strict=True):
        part = models[models["label_noise"] == level]
        assert found.n == len(part) == 24
        assert found.pearson_r == pytest.approx(pearson(part["iou"], part["gap"]))
        assert found.cells == 6  # too few for an interval
        assert np.isnan([found.ci_low, found.ci_high]).all()
        assert (found.mean, found.mean_gap) == pytest.approx((part["iou"].mean(), part["gap"].mean()))
    assert not len(hyperparameters.subsets(models.iloc[:0], "iou", "label_noise", 100, 0))


def test_changes_are_taken_within_pairs():
    first = catalogue_confounders("real").assign(snapshot="first")
    # Within a run a larger step of IoU goes with a larger step of the gap, whatever holds between runs.
    step = np.linspace(-0.1, 0.1, len(first))
    stop = first.assign(snapshot="stop", iou=first["iou"] + step, gap=first["gap"] + 2 * step)
    both = pd.concat([stop, first.iloc[:40]])
    found = hyperparameters.changes(both, "iou", "snapshot", ["run_id"], 100, 0).iloc[0]
    assert found["n"] == 40
    assert found["pearson_r"] == pytest.approx(1)
    assert found["mean"] == pytest.approx(np.abs(step[:40]).mean())
    assert found["mean_gap"] == pytest.approx(2 * np.abs(step[:40]).mean())
    none = hyperparameters.changes(first, "iou", "snapshot", ["run_id"], 100, 0).iloc[0]
    assert none["n"] == 0
    assert np.isnan(none["pearson_r"])


def test_a_missing_column_is_refused():
    with pytest.raises(ValueError, match=r"^the catalogue has no column depth$"):
        table_of(catalogue_confounders("real"), axes=["depth"])


def paired_by_noise(cells=12, seed=0):
    """Two snapshots of each cell with right and with wrong labels: "follows" is the gap, "other" goes with it between cells alone."""
    rng = np.random.default_rng(seed)
    grid = pd.DataFrame(itertools.product(range(cells), ["first", "stop"], [0.0, 0.2]), columns=["rate", "snapshot", "label_noise"])
    base = rng.normal(size=cells)[grid["rate"]] + (grid["snapshot"] == "stop")
    noise = grid["label_noise"] > 0
    gap = base + 0.5 * noise
    models = grid.assign(cell=grid["rate"].astype(str) + noise.astype(str), gap=gap, follows=-2 * gap, other=base - 0.7 * noise)
    return models.assign(constant=1.0).sample(frac=1, random_state=seed)


def test_shifts_are_means_over_pairs_in_standard_deviations():
    models = paired_by_noise()
    measures = ["gap", "follows", "other", "constant"]
    found = hyperparameters.shifts(models, measures, "label_noise", ["rate", "snapshot"], 200).set_index("measure")
    spread = models.loc[models["label_noise"] == 0, "gap"].std()
    assert (found["n"] == 24).all()
    assert (found["cells"] == 12).all()
    assert found["change"].tolist() == pytest.approx([0.5, -1, -0.7, 0])
    assert found["shift"].tolist()[:3] == pytest.approx([0.5 / spread, -0.5 / spread, -0.7 / spread])
    assert found["r"].tolist()[:3] == pytest.approx([1, -1, 1])
    # All pairs differ by the same amount, so each draw of cells gives it again.
    assert found["ci_low"].tolist()[:3] == pytest.approx(found["shift"].tolist()[:3])
    assert np.isnan(found.loc["constant", ["shift", "ci_low", "r"]].astype(float)).all()


def test_the_interval_of_a_shift_draws_whole_cells():
    models = paired_by_noise(cells=40)
    step = np.random.default_rng(1).normal(size=40)[models["rate"]]
    models["uneven"] = models["other"] + np.where(models["label_noise"] > 0, step, 0)
    row = hyperparameters.shifts(models, ["uneven"], "label_noise", ["rate", "snapshot"], 2000).iloc[0]
    spread = models.loc[models["label_noise"] == 0, "uneven"].std()
    # Both snapshots of a cell have its step: 40 independent numbers, not 80.
    half = 1.96 * np.random.default_rng(1).normal(size=40).std() / np.sqrt(40) / spread
    assert (row["ci_high"] - row["ci_low"]) / 2 == pytest.approx(half, rel=0.1)


def test_models_without_a_partner_are_left_out_and_few_cells_have_no_interval():
    models = paired_by_noise(cells=7)
    alone = models[(models["label_noise"] == 0) | (models["snapshot"] == "stop")]
    row = hyperparameters.shifts(alone, ["other"], "label_noise", ["rate", "snapshot"], 100).iloc[0]
    assert row["n"] == 7
    assert row["change"] == pytest.approx(-0.7)
    assert np.isnan(row["ci_low"])
    assert len(hyperparameters.shifts(models[models["label_noise"] == 0], ["gap"], "label_noise", ["rate", "snapshot"])) == 0
    twice = pd.concat([models, models.iloc[:1]])
    with pytest.raises(pd.errors.MergeError):
        hyperparameters.shifts(twice, ["gap"], "label_noise", ["rate", "snapshot"])


def test_images_widen_the_interval_of_a_shift_and_not_the_shift():
    models = paired_by_noise(cells=10).reset_index(drop=True)
    rng = np.random.default_rng(2)
    noise = rng.normal(size=(len(models), 400))
    images = {"other": models["other"].to_numpy()[:, None] + 4 * (noise - noise.mean(1, keepdims=True))}
    asked = ["other", "follows"]
    plain, drawn = (hyperparameters.shifts(models, asked, "label_noise", ["rate", "snapshot"], 2000, images=i) for i in (None, images))
    assert drawn["shift"].tolist() == pytest.approx(plain["shift"].tolist())
    pd.testing.assert_series_equal(drawn.loc[1], plain.loc[1])
    # 20 pairs of two means over 400 images each, of standard deviation 4, in standard deviations between models; the 10 cells are drawn
    # too, and the squares of their weights have a mean of 2 - 1/10.
    error = np.sqrt(1.9 * 2 / 20) * 4 / np.sqrt(400) / models.loc[models["label_noise"] == 0, "other"].std()
    assert (drawn.loc[0, "ci_high"] - drawn.loc[0, "ci_low"]) / 2 == pytest.approx(1.96 * error, rel=0.15)
