"""All notebooks end to end on a tiny study, as a user's command runs them."""

import json
import os
import re
import shutil
import subprocess
import sys

import nbformat
import pandas as pd
import pytest
import yaml

from helpers.files import PROJECT_ROOT
from helpers.measures import registry
from helpers.sweep import cli
from tests.conftest import TINY_STUDY

pytestmark = pytest.mark.smoke


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("smoke")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY_STUDY))
    places = [f"work_dir={folder / 'work'}", f"reports_dir={folder / 'reports'}"]
    assert cli.run_study(folder / "tiny.yaml", places) == 0
    return folder, places


def test_every_notebook_leaves_its_report_without_an_error(finished):
    reports = finished[0] / "reports/tiny"
    for name in TINY_STUDY["notebooks"]:
        executed = nbformat.read(reports / f"{name}.ipynb", as_version=4)
        assert executed.metadata.papermill.exception is None
        assert (reports / f"{name}.html").stat().st_size > 10_000
    assert not list(finished[0].rglob("*.partial*"))
    index = (reports / "index.html").read_text()
    assert all(f'href="{name}.html"' in index for name in TINY_STUDY["notebooks"])


def test_the_tables_hold_what_the_contract_says(finished):
    tables = finished[0] / "reports/tiny/tables"
    catalogue = pd.read_csv(tables / "catalogue.csv")
    assert catalogue["run_id"].nunique() == 4
    assert (catalogue["gap"] - (catalogue["train_accuracy"] - catalogue["test_accuracy"])).abs().max() < 2e-8  # tables have eight digits
    table3 = pd.read_csv(tables / "table3_iou.csv")
    wanted = ["architecture", "threshold", "measure", "n", "pearson_r", "ci_low", "ci_high", "kendall_tau", "published_r"]
    assert set(wanted) <= set(table3)
    assert len(table3) == 3 * 2 * 2  # two architectures and pooled, two thresholds, two measures
    assert {"accuracy", "published_accuracy", "ties"} <= set(pd.read_csv(tables / "table4_selection.csv"))
    table1 = pd.read_csv(tables / "table1_categories.csv")
    assert table1[["train_images", "test_images"]].values.tolist() == [[14, 5]] * 3
    scores = pd.read_csv(tables / "scores.csv")
    assert set(scores["model_id"]) == set(catalogue.loc[catalogue["snapshot"] != "none", "model_id"])
    assert scores["iou"].dropna().between(0, 1).all()


def test_every_measure_of_every_model_is_in_the_tables_of_04(finished):
    tables = finished[0] / "reports/tiny/tables"
    scores = pd.read_parquet(tables / "scores.parquet")
    catalogue = pd.read_csv(tables / "catalogue.csv")
    ids = set(catalogue.loc[catalogue["snapshot"] != "none", "model_id"])
    asked = {name for name, item in registry.MEASURES.items() if item.family != "unlabelled"}  # which have tables of their own
    claims = [name for name in asked if registry.MEASURES[name].direction]
    assert scores[scores["measure"].isin(claims)].groupby("measure")["model_id"].agg(set).eq(ids).all()
    assert set(scores["measure"]) == asked
    assert (scores["value"].notna() | (scores["reason"].str.len() > 0)).all()
    table3 = pd.read_csv(tables / "table3_correlations.csv")
    assert set(table3["measure"]) == {"iou", "iou_b", "effective_invariance", "nuclear_norm", "spectral_norm (raw)"}
    assert len(table3) == 3 * 2 * 5  # two architectures and pooled, two thresholds, five methods
    ranking = pd.read_csv(tables / "measures_ranking.csv")
    # Accuracy and loss on the training images stand there as the baselines that they are.
    assert set(claims) - {"training_accuracy", "training_loss"} <= set(ranking["measure"])
    assert ranking["baseline"].any()
    whole = ["r_gap", "tau_gap", "r_test_accuracy", "r_gap_given_fit", "r_gap_given_all", "r_gap_between_cells", "added_error_points"]
    wanted = {"measure", "title", "family", "baseline", "n", "images", "reliability", "p_adjusted", "seconds"}
    assert set(ranking) == wanted | {f"{name}{end}" for name in whole for end in ("", "_low", "_high")}
    assert pd.read_csv(tables / "gates.csv").columns.tolist() == ["gate", "concerns", "value", "limit", "passes"]
    claimed = ["claim", "primary", "source", "published", "ours", "ci_low", "ci_high", "p_adjusted", "smallest_r", "n", "verdict", "table"]
    claimed += ["between_cells", "between_cells_low", "between_cells_high"]
    assert pd.read_csv(tables / "claims.csv").columns.tolist() == claimed
    curves = pd.read_csv(tables / "perturbation_curves.csv")
    assert len(curves) == 8 * 3  # perturbations, magnitudes
    scores = pd.read_parquet(tables / "scores.parquet").query(
        "measure == 'response_curve' and variant == 'horizontal translation @ 0.500000'"
    )
    (middle,) = curves.query("perturbation == 'horizontal translation' and alpha == 0.5").to_dict("records")
    assert middle["models"] == len(scores) == len(ids)
    assert middle["mean"] == pytest.approx(scores["value"].mean())
    assert len(pd.read_csv(tables / "invariance.csv")) == 4 * 3
    assert len(pd.read_csv(tables / "schiff_scores.csv")) == 14


def test_every_figure_is_read_by_a_computed_sentence(finished):
    reports = finished[0] / "reports/tiny"
    for name in TINY_STUDY["notebooks"]:
        for item in json.loads((reports / "story" / f"{name}.json").read_text()):
            if item["kind"] == "figure":
                assert item["reading"].endswith("."), item["name"]
                assert re.fullmatch(r"Figure \d\.\d+\. [A-Z0-9].*\.", item["alt"]), item["alt"]
                assert "nan" not in item["reading"].lower(), item["reading"]
                assert (reports / item["path"]).stat().st_size < 300_000


def test_no_two_notebooks_write_the_same_file(finished):
    """One would spoil what the other published."""
    stories = sorted((finished[0] / "reports/tiny/story").glob("*.json"))
    paths = [item["path"] for story in stories for item in json.loads(story.read_text()) if item.get("path")]
    assert len(paths) > 50
    assert len(set(paths)) == len(paths)


def test_the_same_command_again_runs_nothing(finished, capsys):
    folder, places = finished
    assert cli.run_study(folder / "tiny.yaml", places) == 0
    assert cli.run_study(folder / "tiny.yaml", places, look=True) == 0
    assert capsys.readouterr().out.count("complete, nothing changed") == len(TINY_STUDY["notebooks"])


def test_the_tiny_study_runs_every_notebook():
    assert {path.stem for path in (PROJECT_ROOT / "notebooks").glob("*.ipynb")} == set(TINY_STUDY["notebooks"])


def test_real_photographs_of_the_papers_classes_pass_through_at_full_size(real_data, tmp_path):
    """An untrained ResNet18 (learning rate 0) and a briefly trained one on ILSVRC photographs of the 11 classes with enough, at 224 px."""
    grid = {"architectures": ["resnet18"], "batch_sizes": [16], "learning_rates": [0.0, 0.003], "optimizers": ["adam"]}
    grid |= {
        "weight_decays": [0.0],
        "augmentations": [False],
        "pretrained_levels": [False],
        "max_epochs": 1,
        "width": 0.125,
        "run_count": 0,
        "rule3_split": "test",
    }
    common = {"data_source": "ilsvrc", "data_path": str(real_data / "ilsvrc2012-sample.zip"), "class_ids": [], "image_size": 224}
    common |= {"images_per_class": 0, "minimum_images_per_class": 10, "minimum_train_accuracy": 0.0}
    notebooks = {"01_data_subset": {}, "02_grid_training": grid | {"stem": "imagenet"}, "03_cam_scoring": {"bootstrap_resamples": 50}}
    (tmp_path / "ilsvrc.yaml").write_text(yaml.safe_dump({"common": common, "notebooks": notebooks}))
    places = [f"work_dir={tmp_path / 'work'}", f"reports_dir={tmp_path / 'reports'}"]
    assert cli.run_study(tmp_path / "ilsvrc.yaml", places) == 0
    tables = tmp_path / "reports/ilsvrc/tables"
    table1 = pd.read_csv(tables / "table1_categories.csv")
    assert (table1["train_images"].sum(), table1["test_images"].sum(), len(table1)) == (140, 50, 11)
    assert table1["published"].sum() == 6760
    scores = pd.read_csv(tables / "scores.csv")
    assert len(scores) == 2
    assert (scores["images_scored"] == 140).all()
    assert scores["iou"].between(0.05, 0.95).all()


@pytest.mark.parametrize("change", ["", "images_per_class: int = 20"])
def test_with_nothing_injected_01_chooses_the_images_of_the_demo_or_those_of_its_first_cell_and_publishes_nothing(tmp_path, change):
    for name in ("helpers", "notebooks", "params"):
        shutil.copytree(PROJECT_ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"))
    path = tmp_path / "notebooks/01_data_subset.ipynb"
    path.write_text(path.read_text().replace("images_per_class: int = 60", change or "images_per_class: int = 60"))
    command = [sys.executable, "-m", "papermill", path, tmp_path / "out.ipynb", "--cwd", path.parent]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "work/demo/data.json").read_text())
    demo = yaml.safe_load((PROJECT_ROOT / "params/demo.yaml").read_text())["notebooks"]["01_data_subset"]
    wanted = demo | ({"images_per_class": 20} if change else {})
    assert record["parameters"] == {name: value for name, value in wanted.items() if name != "pictured_images"}
    assert record["images"] == {"classes": 6, "train": 6 * wanted["images_per_class"], "test": 300}
    assert (tmp_path / "work/demo/scratch/01_data_subset/tables/table1_categories.csv").is_file()
    assert not (tmp_path / "reports").exists()
    shown = str(nbformat.read(tmp_path / "out.ipynb", as_version=4))
    assert ("1 from first cell" in shown) == bool(change)
