"""Is it the hyperparameters: on catalogues made so that the answer is known."""

import re

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from helpers import confounders, confounding_readings
from helpers.statistics import pearson


def catalogue(kind, repeats=4, seed=0):
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


AXES = ["learning_rate", "batch_size", "pretrained"]


def table_of(models, axes=AXES, **options):
    return confounders.confounders(models, {"iou": 1, "iou_b": 1}, axes, resamples=300, **options)


def row(table, kind, hyperparameter="all", measure="iou"):
    chosen = (table["measure"] == measure) & (table["kind"] == kind) & (table["hyperparameter"] == hyperparameter)
    return table[chosen].iloc[0]


def test_a_gap_made_by_one_hyperparameter_alone_is_said_to_be():
    table = table_of(catalogue("confounded"))
    assert row(table, "pooled")["ci_low"] > 0.7
    assert row(table, "given all")["ci_low"] < 0 < row(table, "given all")["ci_high"]
    sentence = confounding_readings.confounding_read(table, "iou", "IoU")
    assert "the pooled correlation is that of the hyperparameters" in sentence
    assert "held fixed alone, learning_rate takes most away and leaves" in sentence
    numbers = [float(number) for number in re.findall(r"-?\d+\.\d+", sentence)]
    left, pooled = row(table, "given all")["strength"], row(table, "pooled")["strength"]
    assert numbers[0] == round(pooled, 2)
    assert numbers[3] == round(left, 2)
    assert left < 0
    assert "is left, none of it: what is left can be told from the pooled strength but not from 0" in sentence
    assert confounding_readings.field_read(table).startswith("Of 2 measures, 2 have a pooled interval clear of 0; given all")
    assert "and 2 cannot be told from 0 any more" in confounding_readings.field_read(table)


def test_a_correlation_that_no_hyperparameter_makes_survives():
    table = table_of(catalogue("real"))
    sentence = confounding_readings.confounding_read(table, "iou", "IoU")
    assert "the hyperparameters are not what makes it" in sentence
    share = row(table, "given all")["strength"] / row(table, "pooled")["strength"]
    assert (f"is left, {100 * share:.1f} % of it" if share <= 1 else "is left, all of it and more") in sentence
    assert "2 of these keep their sign beyond doubt, 0 turn round" in confounding_readings.field_read(table)


def test_a_reversal_is_called_one():
    table = table_of(catalogue("reversed"))
    assert "turns round when the hyperparameters are held fixed (Simpson's paradox)" in confounding_readings.confounding_read(
        table, "iou", "IoU"
    )


def test_a_hyperparameter_that_hides_a_correlation_is_found():
    models = catalogue("real")
    level = np.log10(models["learning_rate"]) + 2
    # No part of IoU goes with the learning rate, which moves the gap by far more than IoU does.
    models["iou"] -= models.groupby("learning_rate")["iou"].transform("mean") - 0.5
    models["gap"] = 0.8 - models["iou"] + 5.0 * level
    sentence = confounding_readings.confounding_read(table_of(models), "iou", "IoU")
    assert "a correlation that the pooled models hide shows when the hyperparameters are held fixed" in sentence


def test_every_strength_is_what_it_is_called():
    models = catalogue("confounded")
    table = table_of(models, theirs={"iou": -0.8})
    assert row(table, "pooled")["strength"] == pytest.approx(-pearson(models["iou"], models["gap"]))
    assert row(table, "pooled")["published"] == 0.8
    assert np.isnan(row(table, "pooled", measure="iou_b")["published"])
    # Given one hyperparameter: residuals of the level's means, by pandas.
    residuals = models[["iou", "gap"]] - models.groupby("batch_size")[["iou", "gap"]].transform("mean")
    assert row(table, "given one", "batch_size")["strength"] == pytest.approx(-pearson(residuals["iou"], residuals["gap"]))
    within = table[(table["kind"] == "within a level") & (table["measure"] == "iou")].set_index("level")["strength"]
    part = models[models["learning_rate"] == 0.1]
    assert within["0.1"] == pytest.approx(-pearson(part["iou"], part["gap"]))
    assert len(within) == 3 + 2 + 2
    assert list(table.columns) == confounders.COLUMNS
    assert table["strength"].dropna().between(-1, 1).all()


def test_the_interval_of_a_partial_correlation_is_fishers():
    """With one hyperparameter of two levels one degree is lost: n - 2 - 1; SciPy's interval has n - 3 in the root for none."""
    models = catalogue("real")
    found = row(table_of(models), "given one", "batch_size")
    n = len(models)
    half = scipy.stats.norm.ppf(0.975) / np.sqrt(n - 1 - 3)
    expected = np.tanh(np.arctanh(found["strength"]) + np.array([-half, half]))
    # 1.96 stands for the normal's quantile.
    assert (found["ci_low"], found["ci_high"]) == pytest.approx(tuple(expected), abs=1e-4)


def test_a_measure_that_is_worse_when_larger_has_the_same_strength_as_its_negative():
    models = catalogue("real").assign(complexity=lambda table: -table["iou"])
    both = confounders.confounders(models, {"iou": 1, "complexity": -1}, AXES, resamples=50)
    one, other = (both[both["measure"] == name]["strength"].to_numpy() for name in ("iou", "complexity"))
    np.testing.assert_allclose(one, other)


def test_no_varied_hyperparameter_and_too_few_models_are_said_in_words():
    table = table_of(catalogue("real"), axes=[])
    assert set(table["kind"]) == {"pooled"}
    assert "no hyperparameter has two levels, so none can be behind it" in confounding_readings.confounding_read(table, "iou", "IoU")
    few = table_of(catalogue("real", repeats=1).iloc[[0, 1, 2, 3]])
    assert row(few, "given all")["n"] == 4
    for models in (catalogue("real").iloc[:4], catalogue("real").iloc[:0], catalogue("real").assign(iou=0.0)):
        table = table_of(models, axes=[axis for axis in AXES if models[axis].nunique() > 1])
        for text in (
            confounding_readings.confounding_read(table, "iou", "IoU"),
            confounding_readings.field_read(table),
            confounding_readings.granulated_read(table, "iou", "IoU"),
        ):
            assert text.endswith(".")
            assert "nan" not in text.lower()


def test_no_degree_of_freedom_is_said_and_one_hyperparameter_alone_still_read():
    models = catalogue("confounded", repeats=1).iloc[[0, 1, 2, 5, 6, 8]].reset_index(drop=True)
    table = table_of(models)
    assert not np.isfinite(row(table, "given all")["ci_low"])
    sentence = confounding_readings.confounding_read(table, "iou", "IoU")
    assert "no degree of freedom" in sentence or "with too few models for an interval, no claim" in sentence
    assert "nan" not in sentence


def test_granulated_kendall_is_read_with_its_lowest_hyperparameter():
    table = table_of(catalogue("real"))
    text = confounding_readings.granulated_read(table, "iou", "IoU")
    psi = table[(table["kind"] == "granulated") & (table["measure"] == "iou")].set_index("hyperparameter")["strength"]
    assert f"{psi['all']:.2f} on average" in text
    assert f"lowest for {psi.drop('all').idxmin()} with {psi.drop('all').min():.2f}" in text


def test_subsets_are_correlated_one_by_one():
    models = catalogue("real").assign(label_noise=lambda table: np.where(table["batch_size"] == 16, 0.0, 0.2))
    table = confounders.subsets(models, "iou", "label_noise", 100, 0)
    assert table["level"].tolist() == ["0.0", "0.2"]
    for level, found in zip((0.0, 0.2), table.itertuples(), strict=True):
        part = models[models["label_noise"] == level]
        assert found.n == len(part) == 24
        assert found.pearson_r == pytest.approx(pearson(part["iou"], part["gap"]))
        assert found.ci_low < found.pearson_r < found.ci_high
        assert (found.mean, found.mean_gap) == pytest.approx((part["iou"].mean(), part["gap"].mean()))
    assert not len(confounders.subsets(models.iloc[:0], "iou", "label_noise", 100, 0))


def test_changes_are_taken_within_pairs():
    first = catalogue("real").assign(snapshot="first")
    # Within a run a larger step of IoU goes with a larger step of the gap, whatever holds between runs.
    step = np.linspace(-0.1, 0.1, len(first))
    stop = first.assign(snapshot="stop", iou=first["iou"] + step, gap=first["gap"] + 2 * step)
    both = pd.concat([stop, first.iloc[:40]])
    found = confounders.changes(both, "iou", "snapshot", ["run_id"], 100, 0).iloc[0]
    assert found["n"] == 40
    assert found["pearson_r"] == pytest.approx(1)
    assert found["mean"] == pytest.approx(np.abs(step[:40]).mean())
    assert found["mean_gap"] == pytest.approx(2 * np.abs(step[:40]).mean())
    none = confounders.changes(first, "iou", "snapshot", ["run_id"], 100, 0).iloc[0]
    assert none["n"] == 0
    assert np.isnan(none["pearson_r"])


def test_a_missing_column_is_refused():
    with pytest.raises(ValueError, match=r"^the catalogue has no column depth$"):
        table_of(catalogue("real"), axes=["depth"])
