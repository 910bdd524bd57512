import numpy as np
import pandas as pd
import pytest

from helpers.statistics.bootstrap import Bootstrap
from helpers.statistics.correlations import design, partial_correlation
from helpers.statistics.permutation import null_partial_correlation
from helpers.statistics.prediction import (
    FIT,
    Rivalry,
    saved_errors,
    with_log_train_loss,
)
from helpers.statistics.ranking import Question, answers, ranking_table
from helpers.statistics.reliability import reliability

AXES = ["depth", "size"]


def study():
    """Forty-eight configurations with two snapshots, whose IoU follows what is their own, and test accuracy that, and the training size."""
    random = np.random.default_rng(0)
    cells = np.repeat(np.arange(48), 2)
    size, own = (
        cells // 16,
        random.normal(size=48)[cells] + 0.3 * random.normal(size=96),
    )
    models = pd.DataFrame(
        {
            "cell": cells,
            "depth": cells % 4,
            "size": size,
            "train_accuracy": 0.95 - 0.03 * size,
        }
    )
    models["train_accuracy"] += 0.003 * random.normal(size=96)
    models["train_loss"] = (1 - models["train_accuracy"]) * np.exp(
        0.1 * random.normal(size=96)
    )
    right = random.random((96, 2000)) < (0.53 + 0.02 * size - 0.09 * own)[:, None]
    values = (0.4 - 0.03 * own)[:, None] + 0.1 * random.normal(size=(96, 200))
    models = models.assign(
        test_accuracy=right.mean(1), iou=values.mean(1), noise=random.normal(size=96)
    )
    return models.assign(gap=models["train_accuracy"] - models["test_accuracy"]), {
        "iou": values,
        "test_accuracy": right,
    }


def test_every_question_is_answered_with_its_own_target_and_what_it_holds_fixed():
    models, images = study()
    draws = Bootstrap(models, images, draws=200, seed=1)
    table, bands = ranking_table(
        draws, ["iou", "noise", "train_accuracy"], AXES, permutations=199
    )
    table = table.set_index("measure")
    fitted, x = with_log_train_loss(models), models[["iou", "noise"]].to_numpy()
    for question, held in {
        "r_gap": ((), ()),
        "r_gap_given_fit": ((), FIT),
        "r_gap_given_all": (AXES, FIT),
    }.items():
        expected = partial_correlation(x, models["gap"], design(fitted, *held))
        assert table.loc[["iou", "noise"], question].tolist() == pytest.approx(
            expected.tolist()
        )
    assert table.loc["iou", "r_test_accuracy"] == pytest.approx(
        models["iou"].corr(models["test_accuracy"])
    )
    assert table.loc["iou", "tau_gap"] == pytest.approx(
        models["iou"].corr(models["gap"], method="kendall")
    )
    assert table.loc["iou", ["n", "cells", "images"]].tolist() == [96, 48, 200]
    assert table.loc["iou", "reliability"] == reliability(draws.images["iou"], seed=1)
    assert np.isnan(table.loc["noise", ["images", "reliability"]].astype(float)).all()
    assert np.isnan(
        table.loc[
            "train_accuracy",
            ["r_gap_given_fit", "r_gap_given_fit_low", "r_gap_given_fit_p_adjusted"],
        ].astype(float)
    ).all()
    assert (table["r_gap_p_adjusted"] >= table["r_gap_p"]).all()
    beyond = (table["tau_gap"] - table["tau_gap_null"]).abs() > bands["tau_gap"]
    assert beyond.tolist() == (table["tau_gap_p_adjusted"] < 0.05).tolist()
    rivalry = Rivalry(design(fitted, AXES, FIT))
    saved = saved_errors(draws, list(table.index), rivalry)
    for end in ("", "_low", "_high", "_p"):
        assert (
            table[f"added_error_points{end}"].tolist()
            == saved[f"saved_error_points{end}"].tolist()
        )
    assert (
        table.loc["iou", "added_error_points_low"]
        > 0
        > table.loc["noise", "added_error_points_low"]
    )


def test_few_configurations_have_no_interval_and_no_draws_leave_the_values():
    models = study()[0]
    few = models[models["cell"] < 7].assign(
        iou=lambda table: table["iou"].where(table["cell"] > 0)
    )
    row = ranking_table(Bootstrap(few, draws=50), ["iou"], ["depth"], permutations=19)[
        0
    ].iloc[0]
    assert row[["n", "cells"]].tolist() == [12, 6]
    assert (
        row[["r_gap_low", "tau_gap_high", "r_gap_smallest", "added_error_points_low"]]
        .isna()
        .all()
    )
    plain, drawn = (
        ranking_table(Bootstrap(models, draws=draws), ["iou"], AXES, permutations=9)[
            0
        ].iloc[0]
        for draws in (0, 20)
    )
    assert (
        plain["r_gap"] == drawn["r_gap"]
        and np.isnan(plain["r_gap_low"])
        and np.isfinite(drawn["r_gap_low"])
    )
    with pytest.raises(ValueError, match="2 models have no target"):
        ranking_table(
            Bootstrap(
                models.assign(gap=models["gap"].where(models["cell"] > 0)), draws=5
            ),
            ["iou"],
            AXES,
        )


def test_p_is_of_the_distance_from_where_a_drift_within_runs_alone_puts_r():
    models = study()[0].assign(
        drift=lambda t: np.arange(96) % 2 + 0.1 * t["noise"],
        gap=lambda t: t["gap"] + 0.2 * (np.arange(96) % 2),
    )
    draws = Bootstrap(models, draws=0)
    rows = draws.permutations(199)
    found, away = (
        answers(draws, ["drift"], Question("r_gap"), rows)[0],
        null_partial_correlation(models["drift"], models["gap"], rows)[:, 0],
    )
    away = np.append(away, found["r_gap"])  # the observed arrangement is one of them
    assert found["r_gap"][0] > 0.5 and found["r_gap_null"][0] == pytest.approx(
        away.mean()
    )
    beyond = np.abs(away - away.mean()) >= np.abs(found["r_gap"][0] - away.mean())
    assert found["r_gap_p"][0] == found["r_gap_p_adjusted"][0] == beyond.sum() / 200
    assert found["r_gap_p"][0] != (np.abs(away) >= found["r_gap"][0]).sum() / 200
