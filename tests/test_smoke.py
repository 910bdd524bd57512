"""All notebooks end to end on a tiny study, as a user's command runs them."""

import json

import nbformat
import pandas as pd
import pytest
import yaml

from helpers import measures, sweep
from helpers.files import PROJECT_ROOT

TINY = {
    "common": {
        "class_ids": ["synthetic_disc", "synthetic_cross", "synthetic_bars"],
        "image_size": 16,
        "images_per_class": 10,
        "test_images_per_class": 5,
        "minimum_train_accuracy": 0.0,
    },
    "notebooks": {
        "01_data_subset": {},
        "02_grid_training": {
            "run_count": 4,
            "batch_sizes": [8],
            "stem": "strided",
            "max_epochs": 3,
            "pretrain_class_ids": ["synthetic_ring", "synthetic_star"],
            "pretrain_images_per_class": 8,
            "pretrain_max_epochs": 1,
        },
        "03_cam_scoring": {"bootstrap_resamples": 50, "accuracy_thresholds": [0.5, 0.0]},
        "04_baselines": {
            "perturbation_fraction": 1.0,
            "perturbation_points": 3,
            "flatness_images": 16,
            "flatness_draws": 1,
            "flatness_halvings": 2,
            "sharpness_images": 8,
            "sharpness_steps": 1,
            "bootstrap_resamples": 30,
            "accuracy_thresholds": [0.5, 0.0],
        },
        "05_robustness_ablations": {
            "thresholds": [0.05, 0.3],
            "ablation_images": 6,
            "noise_samples": 2,
            "score_cam_channels": 3,
            "random_networks": 3,
            "random_images": 12,
            "sample_sizes": [4, 10],
            "sample_draws": 10,
            "bootstrap_resamples": 30,
            "accuracy_thresholds": [0.5, 0.0],
        },
        "06_kappa_tradeoff": {
            "models_per_architecture": 1,
            "include_pretrained": True,
            "unseen_class_ids": ["synthetic_triangle", "synthetic_hourglass"],
            "unseen_fractions": [0.0, 0.4],
            "noise_ssim": [0.7, 0.85, 1.0],
            "lambdas": [0.5, 1.0],
            "complexity_images": 20,
            "permutations": 20,
        },
        "07_your_checkpoints": {"images_used": 20, "bootstrap_resamples": 20, "cells_left_out": 1, "extra_passes": False},
    },
}

pytestmark = pytest.mark.smoke


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("smoke")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    places = [f"work_dir={folder / 'work'}", f"reports_dir={folder / 'reports'}"]
    assert sweep.run_study(folder / "tiny.yaml", places) == 0
    return folder, places


def test_every_notebook_leaves_its_report_without_an_error(finished):
    reports = finished[0] / "reports/tiny"
    for name in TINY["notebooks"]:
        executed = nbformat.read(reports / f"{name}.ipynb", as_version=4)
        assert executed.metadata.papermill.exception is None
        assert (reports / f"{name}.html").stat().st_size > 10_000
    assert not list(finished[0].rglob("*.partial*"))
    index = (reports / "index.html").read_text()
    assert all(f'href="{name}.html"' in index for name in TINY["notebooks"])


def test_the_tables_hold_what_the_contract_says(finished):
    tables = finished[0] / "reports/tiny/tables"
    catalogue = pd.read_csv(tables / "catalogue.csv")
    assert catalogue["run_id"].nunique() == 4
    assert (catalogue["gap"] - (catalogue["train_accuracy"] - catalogue["test_accuracy"])).abs().max() < 1e-12
    table3 = pd.read_csv(tables / "table3_iou.csv")
    wanted = ["architecture", "threshold", "measure", "n", "pearson_r", "ci_low", "ci_high", "kendall_tau", "published_r"]
    assert set(wanted) <= set(table3)
    assert len(table3) == 3 * 2 * 2  # two architectures and pooled, two thresholds, two measures
    assert {"accuracy", "published_accuracy", "ties"} <= set(pd.read_csv(tables / "table4_selection.csv"))
    table1 = pd.read_csv(tables / "table1_categories.csv")
    assert table1[["train_images", "test_images"]].values.tolist() == [[10, 5]] * 3
    scores = pd.read_csv(tables / "scores.csv")
    assert set(scores["model_id"]) == set(catalogue.loc[catalogue["snapshot"] != "none", "model_id"])
    assert scores["iou"].dropna().between(0, 1).all()


def test_every_measure_of_every_model_is_in_the_tables_of_04(finished):
    tables = finished[0] / "reports/tiny/tables"
    scores = pd.read_parquet(tables / "scores.parquet")
    catalogue = pd.read_csv(tables / "catalogue.csv")
    ids = set(catalogue.loc[catalogue["snapshot"] != "none", "model_id"])
    claims = [name for name, item in measures.MEASURES.items() if item.direction]
    assert scores[scores["measure"].isin(claims)].groupby("measure")["model_id"].agg(set).eq(ids).all()
    assert set(scores["measure"]) == set(measures.MEASURES)
    assert (scores["value"].notna() | (scores["reason"].str.len() > 0)).all()
    table3 = pd.read_csv(tables / "table3_correlations.csv")
    assert set(table3["measure"]) == {"iou", "iou_b", "effective_invariance", "nuclear_norm", "spectral_norm"}
    assert len(table3) == 3 * 2 * 5  # two architectures and pooled, two thresholds, five methods
    ranking = pd.read_csv(tables / "measures_ranking.csv")
    assert set(claims) <= set(ranking["measure"])
    assert {"kendall", "kendall_low", "granulated_kendall", "conditional_information", "sign_error", "partial_r", "seconds"} <= set(ranking)
    curves = pd.read_csv(tables / "perturbation_curves.csv")
    assert len(curves) == len(ids) * 8 * 3  # eight perturbations, three magnitudes
    assert len(pd.read_csv(tables / "invariance.csv")) == 4 * 3
    assert len(pd.read_csv(tables / "schiff_scores.csv")) == 14


def test_every_figure_is_read_by_a_computed_sentence(finished):
    reports = finished[0] / "reports/tiny"
    for name in TINY["notebooks"]:
        for item in json.loads((reports / "story" / f"{name}.json").read_text()):
            if item["kind"] == "figure":
                assert item["reading"].endswith("."), item["name"]
                assert item["alt"] == item["reading"].replace("**", "").replace("`", "")
                assert "nan" not in item["reading"].lower(), item["reading"]
                assert (reports / item["path"]).stat().st_size < 300_000


def test_the_same_command_again_runs_nothing(finished, capsys):
    folder, places = finished
    assert sweep.run_study(folder / "tiny.yaml", places) == 0
    assert capsys.readouterr().out.count("complete, nothing changed") == len(TINY["notebooks"])


def test_the_tiny_study_runs_every_notebook():
    assert {path.stem for path in (PROJECT_ROOT / "notebooks").glob("*.ipynb")} == set(TINY["notebooks"])


def test_real_photographs_of_the_papers_classes_pass_through_at_full_size(real_data, tmp_path):
    """An untrained ResNet18 (learning rate 0) and a briefly trained one on 199 ILSVRC photographs at 224 px."""
    grid = {"architectures": ["resnet18"], "batch_sizes": [16], "learning_rates": [0.0, 0.003], "optimizers": ["adam"]}
    grid |= {
        "weight_decays": [0.0],
        "augmentations": [False],
        "pretrained_levels": [False],
        "max_epochs": 1,
        "width": 0.125,
        "run_count": 0,
    }
    common = {"data_source": "ilsvrc", "data_path": str(real_data / "ilsvrc2012-sample.zip"), "class_ids": [], "image_size": 224}
    common |= {"images_per_class": 0, "minimum_images_per_class": 1, "minimum_train_accuracy": 0.0}
    notebooks = {"01_data_subset": {}, "02_grid_training": grid | {"stem": "imagenet"}, "03_cam_scoring": {"bootstrap_resamples": 50}}
    (tmp_path / "ilsvrc.yaml").write_text(yaml.safe_dump({"common": common, "notebooks": notebooks}))
    places = [f"work_dir={tmp_path / 'work'}", f"reports_dir={tmp_path / 'reports'}"]
    assert sweep.run_study(tmp_path / "ilsvrc.yaml", places) == 0
    tables = tmp_path / "reports/ilsvrc/tables"
    table1 = pd.read_csv(tables / "table1_categories.csv")
    assert (table1["train_images"].sum(), table1["test_images"].sum(), len(table1)) == (199, 100, 20)
    assert table1["published"].sum() == 11_173
    scores = pd.read_csv(tables / "scores.csv")
    assert len(scores) == 2
    assert (scores["images_scored"] == 199).all()
    assert scores["iou"].between(0.05, 0.95).all()
