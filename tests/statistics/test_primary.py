"""The primary analysis against plain loops, on made networks."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from helpers.statistics import correlate as c
from helpers.statistics import primary as g
from helpers.statistics.permutation import holm
from tests.test_primary_numbers import predict


def r(x, y):
    return float(np.corrcoef(np.asarray(x, float), np.asarray(y, float))[0, 1])


def left_over(values, *given):
    columns = np.column_stack([np.ones(len(values)), *given]).astype(float)
    values = np.asarray(values, float)
    return values - columns @ np.linalg.lstsq(columns, values)[0]


def study(seed=0, kinds=8, runs=4):
    """Kinds of training whose gap follows "between" over kinds, "within" in them."""
    random = np.random.default_rng(seed)
    kind = np.repeat(np.arange(kinds), runs)
    n = len(kind)
    level = np.linspace(-1, 1, kinds)[kind]
    own = random.normal(size=n)
    accuracy = random.uniform(0.82, 1, n)
    gap = 0.4 + 0.1 * level + 0.02 * own + 0.3 * (accuracy - 0.9)
    table = pd.DataFrame(
        {
            "kind": [f"net{k % 2} kind {k // 2}" for k in kind],
            "architecture": [f"net{k % 2}" for k in kind],
            "pretrained": kind % 4 < 2,
            "cell": np.arange(n),
            "gap": gap,
            "train_accuracy": accuracy,
            "test_accuracy": accuracy - gap,
            "train_loss": random.uniform(0.1, 0.5, n),
            "drop": gap + 0.1 * random.normal(size=n),
            "between": level + 0.1 * random.normal(size=n),
            "within": own + 0.3 * random.normal(size=n),
            "noise": random.normal(size=n),
        }
    )
    return c.with_log_train_loss(table)


MEASURES = ["between", "within", "noise"]


def primary(models, measures=MEASURES, draws=60, permutations=199, **options):
    bootstrap = c.Bootstrap(models, draws=draws, seed=2)
    table = g.primary_table(bootstrap, measures, permutations=permutations, **options)
    return table.set_index("measure")


def test_one_model_a_run_at_its_stop_with_right_labels_and_a_finite_loss():
    rows = pd.DataFrame({"snapshot": ["stop", "first", *["stop"] * 4]})
    rows["label_noise"] = [0, 0, 0.2, 0, 0, 0]
    rows["train_accuracy"] = [0.9, 0.9, 0.9, 0.8, 0.9, 0.9]  # 0.8 is to be exceeded
    rows["gap"] = [0.3, 0.3, 0.3, 0.3, np.nan, 0.3]
    rows["train_loss"] = [0.1, 0.1, 0.1, 0.1, 0.1, np.inf]
    assert g.primary_rows(rows).tolist() == [True] + [False] * 5


def test_where_kinds_repeat_p_is_that_of_their_means_in_all_orders(monkeypatch):
    monkeypatch.setattr(c, "FEWEST", 6)
    models = study(kinds=6)
    table = primary(models, draws=200, permutations=9)  # 6! orders are enumerated
    means = models.groupby("kind", sort=True)[[*MEASURES, "gap", "pretrained"]].mean()
    assert table["units"].tolist() == [6] * len(table)
    p = {}
    for name in MEASURES:
        orders = itertools.permutations(range(6))
        null = np.array([r(means[name], means["gap"].iloc[[*o]]) for o in orders])
        away = np.abs(null - null.mean())
        p[name] = (away >= away[0] - 1e-9).mean()
        assert table.loc[name, "r_gap_p"] == pytest.approx(p[name], abs=1e-9)
    found = table.loc[MEASURES, "r_gap_p_adjusted"]
    assert found.tolist() == pytest.approx(holm(list(p.values())))
    by_kind = models.sort_values("kind", kind="stable")
    weights = c.Bootstrap(by_kind, draws=200, seed=2).weights.astype(int)
    ordered = by_kind[["noise", "gap"]].to_numpy()
    drawn = [np.corrcoef(np.repeat(ordered, w, axis=0).T)[0, 1] for w in weights]
    ends = np.nanquantile(drawn, [0.025, 0.975])
    found = table.loc["noise", ["r_gap_low", "r_gap_high"]].to_numpy(float)
    assert found == pytest.approx(ends, abs=1e-9)


def test_seven_kinds_have_no_interval_and_seven_networks_no_r():
    table = primary(study(kinds=7))
    assert np.isfinite(table.loc["between", "r_gap"])
    assert math.isnan(table.loc["between", "r_gap_low"])
    few = primary(study(kinds=8, runs=1).iloc[:7])
    assert few.filter(regex="^r_").isna().all(axis=None)


def test_further_kinds_with_the_same_effects_of_settings_make_nothing_surer():
    """Copies of a kind are no new evidence within kinds, whatever their number."""
    one = study(kinds=1, runs=8).assign(optimizer=[f"rule {k}" for k in range(8)])
    copies = [one.assign(kind=f"kind {k}", cell=one["cell"] + 8 * k) for k in range(4)]
    few, many = (
        primary(models, draws=200, permutations=99)
        for models in (one, pd.concat(copies, ignore_index=True))
    )
    columns = [name for name in few if name.startswith("r_gap_within_kinds")]
    assert few.loc["within", "r_gap_within_kinds_low"] < 1
    both = (table.loc[MEASURES, columns] for table in (many, few))
    pd.testing.assert_frame_equal(*both)


def test_errors_of_held_out_kinds_are_those_of_a_ridge_by_refits():
    random = np.random.default_rng(3)
    kinds = np.repeat(np.arange(5), 8)
    known = random.normal(size=(40, 3))
    gap = (0.4 + 0.1 * known[:, 0] + 0.1 * random.normal(size=40)).clip(0, 1)
    known[:, 0] *= 1e9  # units do not matter
    known[:, 2] = kinds == 2  # varies only where it is left out
    known[5, 1] = np.nan
    errors = g.held_out_errors(known, gap, kinds)
    has_all = np.arange(40) != 5
    for kind in range(5):
        out, rest = has_all & (kinds == kind), has_all & (kinds != kind)
        new = predict(known[rest], gap[rest], known[out])
        expected = 100 * np.abs(new - gap[out])
        assert errors[out] == pytest.approx(expected, rel=1e-6)
    assert math.isnan(errors[5])
    # No farther off than a gap can be, and of two groups undefined.
    norm = np.where(kinds == 2, 1e200, gap * 1e160)[:, None]
    assert g.held_out_errors(norm, gap, kinds).max() <= 200
    assert np.isnan(g.held_out_errors(norm, gap, kinds // 3)).all()


def test_looks_widen_every_interval_to_their_level():
    once, thrice = (primary(study(), looks=looks).loc["within"] for looks in (1, 3))
    assert thrice["level"] == pytest.approx(1 - 0.05 / 3)
    for name in ("r_gap", "saved_error_points", "error_with"):
        assert thrice[f"{name}_low"] < once[f"{name}_low"]
        assert thrice[f"{name}_high"] > once[f"{name}_high"]


def test_the_order_in_which_networks_stand_changes_nothing():
    models = study().assign(optimizer=np.tile(["adam", "sgd"], 16))
    turns = models.groupby("kind").cumcount()
    alternating = models.iloc[np.argsort(turns, kind="stable")].reset_index(drop=True)
    pd.testing.assert_frame_equal(primary(models), primary(alternating))


def test_a_measure_that_networks_lack_is_compared_on_the_others():
    models = study()
    lacking = models["within"] > 1
    of_all = primary(models.assign(within=models["within"].mask(lacking)))
    of_others = primary(models[~lacking].reset_index(drop=True))
    for question in ("saved_error_points", "error_best_twins"):
        expected = of_others.loc["within", question]
        assert of_all.loc["within", question] == pytest.approx(expected, abs=1e-9)


def test_what_the_best_baseline_leaves_is_of_held_out_twins():
    models = study()
    table = primary(models)
    row = table.loc["within"]
    twins = models["kind"].str.partition(" ")[2]
    fit = c.design(models, (), [*c.FIT, "within"])
    errors = g.held_out_errors(fit, models["gap"].to_numpy(), twins)
    of_best = table.loc[row["best_baseline"], "error_with_twins"]
    assert row["error_best_twins"] == pytest.approx(of_best)
    assert row["saved_from_best_points"] == pytest.approx(of_best - errors.mean())
    p = table.loc[MEASURES].filter(like="saved_from_best_points_p")
    np.testing.assert_allclose(p.iloc[:, 1], holm(p.iloc[:, 0]))
