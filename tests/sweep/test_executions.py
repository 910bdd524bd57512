"""All that would fail later is one list, before anything starts."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml

from helpers.files import PROJECT_ROOT
from helpers.sweep import cli, engines, executions
from helpers.sweep.cli import Options
from helpers.sweep.executions import Places
from helpers.sweep.study_file import Execution

CELL = """study: str = "x"  # name
data_path: str = ""  # folder
device: str = "auto"  # where, one of auto, cpu or cuda
count: int = 1  # how many"""


def execution(**parameters):
    return Execution(Path("notebooks/01_a.ipynb"), parameters)


@pytest.fixture
def places(tmp_path):
    return Places(tmp_path, "s")


def test_data_that_is_not_there_is_named_and_data_that_is_there_is_not(places, tmp_path):
    (tmp_path / "images.zip").touch()
    good = [execution(data_path="images.zip"), execution(data_path=""), execution(data_path=str(tmp_path)), execution(pathology="x")]
    assert executions.faults_of(good, places, [], 0) == []
    (fault,) = executions.faults_of([execution(data_path="data/images")] * 3, places, [], 0)
    assert fault == "data_path is 'data/images', and nothing is there; give its place by --set data_path=..."


def test_a_missing_archive_is_one_fault_that_says_where_it_is_had(places):
    given = {"data_source": "tiny_imagenet", "data_path": "t.zip"}
    wanted = [execution(**given), execution(pretrain_data_path="t.zip", pretrain_data_source="tiny_imagenet"), execution(**given)]
    (fault,) = executions.faults_of(wanted, places, [], 0)
    assert fault.startswith(
        "data_path and pretrain_data_path are 't.zip', and nothing is there; get it from http://cs231n.stanford.edu/tiny-"
    )
    assert fault.endswith("or give its place by --set data_path=... --set pretrain_data_path=...")
    assert len(executions.faults_of([*wanted, execution(data_path="~nobody-here/x" + "y" * 300)], places, [], 0)) == 2


def test_a_gpu_is_demanded_only_of_the_machine_that_does_the_work(places):
    wanted = [execution(device="cuda:1")]
    assert executions.faults_of(wanted, places, ["0"], 0) == []
    assert executions.faults_of(wanted, places, None, 0) == []
    assert "device is 'cuda:1', and this machine shows no GPU" in executions.faults_of(wanted, places, [], 0)[0]
    assert executions.faults_of([execution(device="auto")], places, [], 0) == []


def test_too_little_room_and_folders_that_cannot_be_written_are_named(places, tmp_path, monkeypatch):
    faults = executions.faults_of([execution()], places, [], 1e9)
    assert len(faults) == 1  # work and reports lie on one disk
    assert "GiB free, and 1e+09 GiB are asked for; make room, or lower --min-free" in faults[0]
    (tmp_path / "reports").write_text("a file")
    assert "reports cannot be written, and s has to go there" in executions.faults_of([execution()], places, [], 0)[0]
    (tmp_path / "reports").unlink()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "work")
    (tmp_path / "work").mkdir()
    assert "work cannot be written" in executions.faults_of([execution()], places, [], 0)[0]


def test_all_faults_of_all_kinds_are_told_together_and_nothing_runs(tmp_path, capsys, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    cell = nbformat.v4.new_code_cell(CELL, metadata={"tags": ["parameters"]})
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "notebooks/01_a.ipynb")
    study = tmp_path / "s.yaml"

    def faults(content, overrides=(), **options):
        study.write_text(yaml.safe_dump(content))
        assert cli.run_study(study, overrides, root=tmp_path, options=Options(**options)) == 2
        return capsys.readouterr().err

    wrong = {"notebooks": {"01_a": {"count": "x", "device": "gpu"}}, "sweep": {"01_a": {"cuont": [1]}, "02_b": {}}}
    printed = faults(wrong, ["count"], jobs=-1, per_gpu=0, shard="5/4", engine="ray")
    for line in (
        "01_a: device is 'gpu', and must be auto, cpu, cuda, or one GPU such as cuda:1",
        "01_a: count is 'x', and must be int (how many)",
        "sweep, 01_a: unknown parameter 'cuont' (did you mean 'count'?)",
        "sweep: unknown notebook '02_b'; valid: 01_a",
        "--set count: write name=value",
        "--shard: the shard is '5/4'",
        "--jobs is -1, and must be at least 0",
        "--per-gpu is 0, and must be at least 1",
        "--engine ray needs --address",
    ):
        assert line in printed
    assert printed.startswith("9 fault(s), nothing was run:")
    wrong = {"notebooks": {"01_a": {"cuont": 1, "data_path": "nowhere", "device": "cuda"}}}
    monkeypatch.setattr(engines, "visible_gpus", list)
    printed = faults(wrong, ["count=x"], min_free=1e9)
    for line in (
        "01_a: unknown parameter 'cuont' (did you mean 'count'?)",
        "01_a: count is 'x', and must be int",
        "data_path is 'nowhere', and nothing is there",
        "device is 'cuda', and this machine shows no GPU",
        "GiB free, and 1e+09 GiB are asked for",
    ):
        assert line in printed
    assert printed.startswith("5 fault(s), nothing was run:")
    swept = {"notebooks": {"01_a": {"data_path": "no", "device": "cuda"}}, "sweep": {"01_a": {"count": [1, "2", "2.5"]}}}
    printed = faults(swept, ["count=3"])
    assert "--set count=3: the sweep block gives count of 01_a its values; change them there" in printed
    assert "sweep, 01_a: count is '2', and must be int" in printed
    assert not (tmp_path / "work").exists()


def test_the_check_of_a_large_sweep_loads_nothing_heavy(tmp_path):
    content = {
        "common": {"data_source": "voc_folder", "class_ids": []},
        "notebooks": {"01_data_subset": {}, "02_grid_training": {"pretrained_levels": [False]}},
        "sweep": {"02_grid_training": {"seed": list(range(2000))}},
    }
    (tmp_path / "large.yaml").write_text(yaml.safe_dump(content))
    script = (
        "import sys; from helpers.sweep.cli import main;"
        f"code = main([{str(tmp_path / 'large.yaml')!r}, '--dry-run', '--set', 'data_path=nowhere', '--set', 'work_dir={tmp_path}/w']);"
        "print(code, sorted({'torch', 'papermill', 'pandas', 'matplotlib', 'nbconvert', 'ray'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=PROJECT_ROOT, capture_output=True, text=True, check=True)
    lines = run.stdout.splitlines()
    assert lines[-1] == "2 []"
    assert lines.count("02_grid_training/seed1999: runs for the first time") == 1
    assert "data_path is 'nowhere', and nothing is there" in run.stderr


def test_a_folder_of_a_name_that_no_disk_takes_is_told(places):
    (fault,) = executions.faults_of([execution(work_dir="x" * 300)], places, [], 0)
    assert fault.endswith("cannot be made: File name too long; set work_dir and reports_dir")


def test_a_folder_below_the_home_is_that_of_the_notebooks(places, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert places.work(execution(work_dir="~/mine")) == tmp_path / "home/mine/s"


@pytest.mark.parametrize("place", ["x" * 300, "~nobody-here/x"])
def test_a_place_that_can_never_be_is_told_in_a_dry_run_and_a_status_too(tmp_path, capsys, place):
    for name in ("notebooks", "helpers"):
        (tmp_path / name).mkdir()
    cell = nbformat.v4.new_code_cell(CELL, metadata={"tags": ["parameters"]})
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "notebooks/01_a.ipynb")
    (tmp_path / "s.yaml").write_text("notebooks: {01_a: {}}")
    assert cli.run_study(tmp_path / "s.yaml", [f"data_path={place}"], root=tmp_path, dry_run=True) == 2
    assert "and nothing is there; give its place by --set data_path=..." in capsys.readouterr().err
    assert cli.print_status(tmp_path / "s.yaml", [f"data_path={place}"], root=tmp_path) == 0
