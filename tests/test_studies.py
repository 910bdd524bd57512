"""Shipped studies end to end at toy scale: as they stand, but for images and sizes."""

import numpy as np
import pandas as pd
import pytest
import yaml

from helpers.files import PROJECT_ROOT, table_of
from tests.conftest import TINY_STUDY
from tests.project import run_study

pytestmark = pytest.mark.nightly

# Settings that cost time and change nothing of what is run.
QUICK = {
    "device": "cpu",
    "jobs": 1,
    "minimum_train_accuracy": 0.0,
    "bootstrap_resamples": 30,
    "permutations": 19,
    "flatness_images": 12,
    "flatness_draws": 1,
    "flatness_halvings": 2,
    "sharpness_images": 6,
    "sharpness_steps": 1,
    "perturbation_points": 3,
}


def shrunk(name, notebooks):
    """A shipped study with these notebooks alone, and with other values in them."""
    study = yaml.safe_load((PROJECT_ROOT / f"params/{name}.yaml").read_text())
    study["common"] |= QUICK
    for notebook, values in notebooks.items():
        shipped = study["notebooks"].get(notebook, {}) | values
        quick = {name: QUICK[name] for name in QUICK.keys() & shipped.keys()}
        notebooks[notebook] = shipped | quick
    return study | {"notebooks": notebooks}


def write_cifar(folder, training, test):
    """CIFAR-10's binary files: coarse patterns of colour, one a class, in noise."""
    generator = np.random.default_rng(0)
    patterns = generator.integers(40, 216, (10, 3, 4, 4))
    patterns = np.kron(patterns, np.ones((8, 8), int))
    folder.mkdir()
    for name, count in (("data_batch_1", training), ("test_batch", test)):
        labels = np.arange(10 * count) % 10
        noise = generator.integers(-40, 41, (len(labels), 3, 32, 32))
        pixels = np.clip(patterns[labels] + noise, 0, 255).reshape(len(labels), -1)
        rows = np.concatenate([labels[:, None], pixels], axis=1).astype(np.uint8)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    names = "airplane automobile bird cat deer dog frog horse ship truck"
    (folder / "batches.meta.txt").write_text("\n".join(names.split()))


def test_cifar10_has_response_curves_of_networks_from_scratch(tmp_path):
    """Schiff et al. 2021: no boxes, no pretrained starts, curves and their scores."""
    write_cifar(tmp_path / "cifar-10-batches-bin", training=30, test=10)
    notebooks = {
        "01_data_subset": {"data_path": str(tmp_path / "cifar-10-batches-bin")},
        "02_grid_training": {
            "architectures": ["resnet18"],
            "batch_sizes": [16],
            "learning_rates": [0.01],
            "training_sizes": [0, 20],
            "width": 0.125,
            "max_epochs": 3,
            "precision": "float32",
            "compile": False,
        },
        "04_baselines": {"perturbation_fraction": 1.0},
        "10_all_measures": {"perturbation_fraction": 1.0},
        "08_unlabelled_images": {},
    }
    report = run_study(tmp_path, "cifar10", shrunk("cifar10", notebooks))
    catalogue = pd.read_csv(table_of(report, "catalogue.csv"))
    assert not catalogue["pretrained"].any()
    models = set(catalogue.loc[catalogue["snapshot"] != "none", "model_id"])
    assert len(models) == 8
    scores = pd.read_parquet(table_of(report, "scores.parquet"))
    assert not scores["measure"].eq("iou").any()
    values = scores[scores["measure"] == "gi_score"]
    assert set(values["model_id"]) == models and values["value"].notna().all()
    curves = pd.read_csv(table_of(report, "perturbation_curves.csv"))
    assert curves.groupby("perturbation").size().eq(3).all()


def test_arms_of_the_looking_experiment_are_trained_looked_at_and_judged(tmp_path):
    strong = ["plain", "map_in_box 5", "map_in_shuffled_box 5"]
    notebooks = {
        "01_data_subset": TINY_STUDY["notebooks"]["01_data_subset"],
        "02_grid_training": {
            "learning_rates": [0.01],
            "batch_sizes": [8],
            "pretrained_levels": [False],
            "looking_levels": strong,
            "blocks": [{"repeat": [0]}, {"repeat": [1]}],
            "max_epochs": 5,
            "matched_accuracy": 0.4,
        },
        "09_looking_experiment": {},
    }
    study = shrunk("looking20", notebooks)
    study["notebooks"]["01_data_subset"] |= {"data_source": "synthetic"}
    study["common"] = {"jobs": 1, "minimum_train_accuracy": 0.0}
    claim, *_ = study["claims"]
    study["claims"] = [claim | {"arm": strong[1], "control": strong[2]}]
    report = run_study(tmp_path, "arms", study)
    networks = pd.read_csv(table_of(report, "looking_networks.csv"))
    assert len(networks) == 6
    overlap = networks.groupby("looking")["train_area_matched_iou"].mean()
    assert overlap["map_in_box 5"] > overlap["plain"]
    assert overlap["map_in_box 5"] > overlap["map_in_shuffled_box 5"]
    (judged,) = pd.read_csv(table_of(report, "looking_claims.csv")).to_dict("records")
    assert judged["pairs"] == 2


def test_a_study_of_too_few_images_is_refused_before_it_trains(tmp_path):
    notebooks = {"01_data_subset": {"images_per_class": 6}, "02_grid_training": {}}
    told = "all runs of this study together are fitted to"
    with pytest.raises(AssertionError, match=told):
        run_study(tmp_path, "few", {"notebooks": notebooks})
    assert not list((tmp_path / "work").rglob("result.json"))
