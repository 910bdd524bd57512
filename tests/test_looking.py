"""The experiment on where networks look, end to end on rendered scenes."""

import pandas as pd
import pytest

from helpers.files import table_of
from tests.conftest import TINY_STUDY
from tests.project import run_study

pytestmark = pytest.mark.nightly
CLAIM = {
    "claim": "Looking at the object lowers the gap",
    "measure": "gap",
    "question": "paired_difference",
    "side": "below",
    "primary": True,
    "arm": "map_in_box 5",
    "control": "map_in_shuffled_box 5",
}
STUDY = {
    "claims": [CLAIM],
    "common": {"minimum_train_accuracy": 0.0, "jobs": 1},
    "notebooks": {
        "01_data_subset": TINY_STUDY["notebooks"]["01_data_subset"],
        "02_grid_training": {
            "architectures": ["resnet18"],
            "batch_sizes": [8],
            "learning_rates": [0.01],
            "optimizers": ["adam"],
            "weight_decays": [0.0],
            "augmentations": [False],
            "pretrained_levels": [False],
            "looking_levels": ["plain", "map_in_box 5", "map_in_shuffled_box 5"],
            "repeats": 2,
            "run_count": 0,
            "snapshots": "stop",
            "stem": "strided",
            "last_stride": 1,
            "max_epochs": 5,
            "matched_accuracy": 0.4,
        },
        "09_looking_experiment": {},
    },
}


def test_arms_are_trained_looked_at_and_judged(tmp_path):
    report = run_study(tmp_path, "arms", STUDY)
    networks = pd.read_csv(table_of(report, "looking_networks.csv"))
    assert len(networks) == 6
    overlap = networks.groupby("looking")["train_area_matched_iou"].mean()
    assert overlap["map_in_box 5"] > overlap["plain"]
    assert overlap["map_in_box 5"] > overlap["map_in_shuffled_box 5"]
    (claim,) = pd.read_csv(table_of(report, "looking_claims.csv")).to_dict("records")
    assert claim["pairs"] == 2
