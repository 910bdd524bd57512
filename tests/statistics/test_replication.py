"""The claims of the paper: verdicts by hand, and made-up studies in which a claim holds, fails, or cannot be told."""

import numpy as np
import pandas as pd
import pytest

from helpers.statistics import replication
from helpers.statistics.replication import FAILS, HOLDS, UNKNOWN, Sampling, judged

SAMPLING = Sampling(0.8, 200, 0)


@pytest.mark.parametrize(
    ("low", "high", "bound", "side", "wanted"),
    [
        (-0.9, -0.1, 0, -1, HOLDS),
        (-0.9, 0.0, 0, -1, UNKNOWN),
        (0.1, 0.9, 0, -1, FAILS),
        (0.55, 0.9, 0.5, 1, HOLDS),
        (0.1, 0.4, 0.5, 1, FAILS),
        (0.4, 0.6, 0.5, 1, UNKNOWN),
        (-0.2, 0.3, 0, 0, HOLDS),
        (-0.2, 0.8, 0, 0, UNKNOWN),
        (0.1, 0.3, 0, 0, FAILS),
        (np.nan, np.nan, 0, -1, UNKNOWN),
        (-0.5, np.nan, 0, 0, UNKNOWN),
    ],
)
def test_a_verdict_is_where_the_whole_interval_lies(low, high, bound, side, wanted):
    assert judged(low, high, bound, side) == wanted


def models(slope: float, n: int = 40, seed: int = 0) -> pd.DataFrame:
    """A catalogue in which IoU moves with the gap by ``slope``, and the nuclear norm is noise."""
    rng = np.random.default_rng(seed)
    gap = rng.uniform(0, 0.5, n)
    return pd.DataFrame(
        {
            "model_id": [f"m{number}" for number in range(n)],
            "cell": [f"c{number // 2}" for number in range(n)],
            "architecture": np.where(np.arange(n) % 4 < 2, "resnet18", "resnet34"),
            "learning_rate": np.where(np.arange(n) % 8 < 4, 0.1, 0.01),
            "train_accuracy": np.where(np.arange(n) % 10 == 0, 0.5, 0.9),
            "gap": gap,
            "iou": slope * gap + rng.normal(0, 0.01, n),
            "iou_b": slope * gap + rng.normal(0, 0.01, n),
            "nuclear_norm": rng.normal(0, 1, n),
        }
    )


@pytest.mark.parametrize(("slope", "wanted"), [(-1, HOLDS), (1, FAILS)])
def test_the_first_claim_follows_the_sign_of_the_correlation(slope, wanted):
    claims = replication.claims(models(slope), {"iou": 1, "iou_b": 1, "nuclear_norm": 1}, {}, ["learning_rate"], SAMPLING)
    assert claims.columns.tolist() == replication.CLAIM_COLUMNS
    pooled = claims.iloc[0]
    assert pooled["verdict"] == wanted
    assert pooled["n"] == 36  # models at or below the training accuracy do not count
    assert pooled["published"] == -0.8159
    assert np.sign(pooled["ours"]) == slope
    selection = claims[claims["source"] == "Table 4"].iloc[0]
    assert selection["verdict"] == wanted
    assert selection["published"] == pytest.approx(0.7413, abs=0.02)
    given = claims[claims["source"] == "not in the paper"].iloc[0]
    assert given["verdict"] == (HOLDS if slope < 0 else FAILS)


def test_a_rival_without_signal_is_beaten_and_an_absent_one_is_left_out():
    directions = {"iou": 1, "iou_b": 1, "nuclear_norm": 1}
    rows = replication.of_rivals(models(-1), directions, SAMPLING)
    assert [row["verdict"] for row in rows] == [HOLDS]
    assert rows[0]["published"] == pytest.approx(-0.8159 + 0.3898)
    assert replication.of_rivals(models(-1).drop(columns="nuclear_norm"), directions, SAMPLING) == []


def test_noise_cannot_be_told():
    table = models(0)
    table["iou"] = np.random.default_rng(3).normal(0, 1, len(table))
    claims = replication.claims(table, {"iou": 1, "iou_b": 1, "nuclear_norm": 1}, {}, ["learning_rate"], SAMPLING)
    assert claims.iloc[0]["verdict"] == UNKNOWN


def test_ablations_are_read_where_there_are_tables():
    row = {"architecture": "resnet18", "threshold": 0.8, "n": 20, "pearson_r": -0.5, "ci_low": -0.8, "ci_high": -0.2, "published_r": -0.8}
    methods = pd.DataFrame(
        [
            row | {"method": "grad_cam_plus_plus", "formula": "correct", "images": 48, "pearson_r": 0.1},
            row | {"method": "grad_cam_plus_plus", "formula": "correct", "images": 900},
            row | {"method": "eigen_cam", "formula": "correct", "images": 48, "published_r": np.nan},
            row | {"method": "grad_cam_plus_plus", "formula": "correct", "images": 900, "threshold": 0.9},
        ]
    )
    untrained = pd.DataFrame([row | {"architecture": "Total", "ci_low": -0.1, "ci_high": 0.1, "pearson_r": 0.0}])
    noise = pd.DataFrame([{"level": 0.0} | row, {"level": 0.1} | row | {"ci_high": 0.3}])
    tables = {"table6_cam_methods": methods, "table5_validity": untrained, "ablation_label_noise": noise}
    found = replication.of_ablations(tables, 0.8)
    assert [(item["source"], item["verdict"], item["ours"]) for item in found] == [
        ("Table 5", HOLDS, 0.0),
        ("Table 6", HOLDS, -0.5),
        ("text", UNKNOWN, -0.5),
    ]
    assert "10%" in found[-1]["claim"]
    assert replication.of_ablations({}, 0.8) == []
