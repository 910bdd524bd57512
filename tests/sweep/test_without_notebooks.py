"""A study trained and scored without notebooks is what the notebooks would have made, and they make nothing of it again."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace

import matplotlib
import pandas as pd
import pytest
import yaml

from helpers.files import PROJECT_ROOT
from helpers.measures import MeasureSettings
from helpers.notebook_parameters import StudyError, code_cells
from helpers.scoring import models
from helpers.sweep import without_notebooks
from helpers.sweep.study_file import load_study
from helpers.sweep.without_notebooks import checked_parameters, main, measure_settings, next_portion
from helpers.training import pool
from helpers.training.config import RunConfig, run_id
from tests.conftest import TINY_STUDY, WITHOUT_JUPYTER, lacking

CHANGED = {
    "02_grid_training": {"architectures": ["resnet18"], "run_count": 2, "max_epochs": 1},
    "04_baselines": {"families": ["localization", "prediction", "perturbation"], "targets": []},
}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A tiny study of two runs, one of them pretrained, and the places of what it makes."""
    folder = tmp_path_factory.mktemp("without")
    notebooks = {name: TINY_STUDY["notebooks"][name] | CHANGED.get(name, {}) for name in list(TINY_STUDY["notebooks"])[:4]}
    (folder / "tiny.yaml").write_text(yaml.safe_dump({"common": TINY_STUDY["common"], "notebooks": notebooks}))
    return folder / "tiny.yaml", [f"work_dir={folder / 'work'}", f"reports_dir={folder / 'reports'}"]


@pytest.fixture(scope="module")
def trained(study):
    """What the command left, run without all that a bare server lacks, and its pack."""
    path, places = study
    command = [sys.executable, "-m", "helpers.sweep.without_notebooks", path, "--minutes", "60", "--pack", path.parent / "tiny.zip"]
    changed = {"OMP_NUM_THREADS": "1", "PYTHONPATH": lacking(path.parent, WITHOUT_JUPYTER)}
    sets = [word for place in places for word in ("--set", place)]
    done = subprocess.run([*command, *sets, "--jobs", "1"], cwd=PROJECT_ROOT, env=os.environ | changed, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return path.parent / "work" / "tiny", done.stdout


def executed(stem, study, overrides):
    """Names of a notebook after all its cells, run here one after another with the parameters of a study."""
    parameters = {item.notebook.stem: item.parameters for item in load_study(study, PROJECT_ROOT / "notebooks", overrides)}[stem]
    names = {"__name__": "__main__"}
    for cell in code_cells(PROJECT_ROOT / "notebooks" / f"{stem}.ipynb"):
        exec(compile(cell["source"], stem, "exec"), names)
        if "parameters" in cell["metadata"].get("tags", []):
            names |= parameters
            names["In"] = ["# Parameters\n" + "\n".join(f"{name} = {value!r}" for name, value in parameters.items())]
    return names


def contents(work):
    """Bytes of what is trained and scored."""
    folders = ("runs", "scores", "test_logits", "target_logits")
    files = [path for folder in folders for path in (work / folder).rglob("*") if path.is_file() and "owners" not in path.parts]
    return {str(path.relative_to(work)): path.read_bytes() for path in files}


def test_everything_that_fits_is_trained_and_scored(trained):
    work, told = trained
    assert "2 of 2 runs are complete and scored" in told
    table = pd.read_parquet(work / "catalogue.parquet")
    assert sorted(table["pretrained"]) == [False, True]
    for family in ("localization", "prediction", "perturbation"):
        (folder,) = (work / "scores").glob(f"{family}-*")
        assert {path.name for path in folder.glob("[!.]*.parquet")} == {f"{name}.parquet" for name in table["model_id"]}
    assert {path.stem for path in (work / "test_logits").glob("[!.]*")} == set(table["model_id"])
    assert json.loads((work / "data.json").read_text())["images"] == {"classes": 3, "train": 42, "test": 15}


@pytest.mark.parametrize("weights", [True, False])
def test_notebooks_take_it_up_and_train_and_score_nothing_again(weights, trained, study, tmp_path, monkeypatch, capsys):
    """On the machine itself, and on one that took the pack without weights: any training or scoring fails."""
    path, places = study
    work = trained[0]
    if not weights:
        assert main(["--take", str(path.parent / "tiny.zip"), "--into", str(tmp_path / "work")]) == 0
        assert "2 runs taken, 0 were here" in capsys.readouterr().out
        work, places = tmp_path / "work" / "tiny", [f"work_dir={tmp_path / 'work'}", f"reports_dir={tmp_path / 'reports'}"]
        assert not list(work.rglob("snapshot-*"))
    before = contents(work)
    monkeypatch.setattr(pool, "ProcessPoolExecutor", None)
    monkeypatch.setattr(models, "_scores", None)
    matplotlib.use("Agg")
    grid = executed("02_grid_training", path, places)
    assert grid["missing"] == []
    assert sorted(map(run_id, grid["runs"])) == sorted(path.name for path in (work / "runs").glob("[!.]*"))
    maps = executed("03_cam_scoring", path, places)
    assert len(maps["table"]) == 2
    assert maps["table"]["iou"].notna().all()
    assert len(maps["shown"]) == (2 if weights else 0)
    assert contents(work) == before


def test_the_same_command_again_makes_nothing_new(trained, study, monkeypatch, capsys):
    before = contents(trained[0])
    monkeypatch.setattr(pool, "ProcessPoolExecutor", None)
    monkeypatch.setattr(models, "_scores", None)
    path, places = study
    assert main([str(path), "--minutes", "60", "--jobs", "1", *(word for place in places for word in ("--set", place))]) == 0
    assert "2 of 2 runs are complete and scored" in capsys.readouterr().out
    assert contents(trained[0]) == before


def test_what_is_complete_is_scored_and_packed_although_a_run_fails(trained, study, tmp_path, monkeypatch, capsys):
    def fail(ready, portion, until):
        raise RuntimeError("1 of 1 runs failed")

    scored, score = [], without_notebooks.score_trained
    monkeypatch.setattr(without_notebooks, "_train", fail)
    monkeypatch.setattr(without_notebooks, "score_trained", lambda ready: scored.append(1) or score(ready))
    path, places = study
    command = [str(path), "--jobs", "1", "--pack", str(tmp_path / "a.zip"), "--set", "run_count=3"]
    assert main([*command, *(word for place in places for word in ("--set", place))]) == 1
    told = capsys.readouterr()
    assert "1 of 1 runs failed" in told.err
    assert "a.zip: 2 runs, 2 models" in told.out
    assert len(scored) == 2


def test_without_time_nothing_begins(study, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pool, "ProcessPoolExecutor", None)
    assert main([str(study[0]), "--minutes", "0", "--set", f"work_dir={tmp_path}", "--set", f"reports_dir={tmp_path}"]) == 0
    assert "0 of 2 runs are complete and scored" in capsys.readouterr().out
    assert not list((tmp_path / "tiny").glob("runs/*/*.json"))
    command = [str(study[0]), "--minutes", "0", "--set", f"work_dir={tmp_path}", "--set", f"reports_dir={tmp_path}"]
    assert main([*command, "--pack", str(tmp_path / "a.zip")]) == 1
    assert "there is nothing to pack" in capsys.readouterr().err


def test_what_the_launcher_refuses_is_refused(study, tmp_path, capsys):
    path, places = study
    content = yaml.safe_load(path.read_text())
    del content["notebooks"]["01_data_subset"]
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(StudyError, match="01_data_subset must be among its notebooks"):
        checked_parameters(tmp_path / "tiny.yaml", places)
    assert main([str(path), "--set", "learning_rates=[fast]", "--set", "02_grid_training.batch_size=8"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("2 fault(s), nothing was run:")
    assert "learning_rates" in told
    assert "batch_size" in told
    with pytest.raises(SystemExit):
        main([])
    with pytest.raises(SystemExit):
        main([str(path), "--take", "a.zip"])
    assert main(["--take", str(tmp_path / "absent.zip"), "--into", str(tmp_path)]) == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--minutes", "nan"], "--minutes is nan, and must be at least 0 and finite"),
        (["--minutes", "-1"], "--minutes is -1.0, and must be at least 0 and finite"),
        (["--jobs", "-1"], "--jobs is -1, and must be at least 0 and finite"),
        (["--weights"], "--weights is of --pack FILE; name both or none"),
        (["--pack", "{}"], "cannot be written; name a file, in a folder that can be written"),
        (["--pack", "{}/file/a.zip"], "cannot be written; name a file, in a folder that can be written"),
    ],
)
def test_options_that_would_fail_after_the_work_are_refused_before_it(options, told, tmp_path, capsys):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit):
        main(["no such study", *(option.format(tmp_path) for option in options)])
    assert told in capsys.readouterr().err


BASE = RunConfig("resnet18", 8, 0.01, "adam", 0.0, True, False, data="d")


def runs(*architectures):
    return [replace(BASE, architecture=name, repeat=number) for number, name in enumerate(architectures)]


def test_half_of_the_time_is_kept_while_the_cost_of_scoring_is_not_known():
    todo = runs("resnet18", "resnet18", "resnet34", "resnet34")
    assert next_portion(todo, {}, {}, 600.0, 2) == (todo[:2], 300.0)
    assert next_portion(todo[2:], {"resnet18": 10.0}, {"resnet18": 5.0}, 600.0, 1) == (todo[2:3], 300.0)


def test_a_portion_is_what_can_be_trained_and_scored_in_the_time_that_is_left():
    """Two models a run, 5 s each; a run of 20 s, two at a time: 20 s a run."""
    todo, known = runs(*["resnet18"] * 10, "resnet34"), ({"resnet18": 20.0}, {"resnet18": 5.0})
    assert next_portion(todo, *known, 100.0, 2) == (todo[:5], 50.0)
    assert next_portion(todo, *known, 99.0, 2) == (todo[:4], 40.0)
    assert next_portion(todo, *known, 1e9, 2) == (todo[:10], 100.0)  # up to the network whose cost is not known
    assert next_portion(todo, *known, 1.0, 2) == (todo[:2], 20.0)  # which is more than is left: nothing begins


def test_settings_of_measures_are_those_that_the_notebooks_declare(study):
    executions = load_study(study[0], PROJECT_ROOT / "notebooks", ["analysis_seed=3", "cam_threshold=0.2"])
    given = {item.notebook.stem: item.parameters for item in executions}
    assert measure_settings(given["03_cam_scoring"], "bfloat16") == MeasureSettings(cam_threshold=0.2, precision="bfloat16")
    found = measure_settings(given["04_baselines"], "float32")
    (cell,) = [cell["source"] for cell in code_cells(PROJECT_ROOT / "notebooks/04_baselines.ipynb") if "MeasureSettings(" in cell["source"]]
    named = {name.strip() for name in cell.replace("=", ",").split(",")}
    assert {field for field in asdict(found) if field in named} <= set(given["04_baselines"]) | {"precision", "seed"}
    expected = {name: value for name, value in given["04_baselines"].items() if name in asdict(found)}
    assert asdict(found) == asdict(MeasureSettings()) | expected | {"own_transforms": (), "precision": "float32", "seed": 3}
    assert found.flatness_images == 16
