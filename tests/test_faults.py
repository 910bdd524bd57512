"""What happens at night: a full disk, a folder that cannot be written, damaged files, a clock that turns back, a killed sweep."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import nbformat
import pandas as pd
import psutil
import pytest
import yaml

from helpers.data.images import load_study_data
from helpers.files import PROJECT_ROOT
from helpers.locks import LockHolder
from helpers.sweep import cli
from helpers.sweep.cli import Options
from helpers.training import catalogue, pool
from helpers.training.config import run_id
from helpers.training.run import train_run
from tests.conftest import TINY_SCENES
from tests.sweep.conftest import Imagined
from tests.training.conftest import configurations

DECLARED = """study: str = "x"  # name
part: str = ""  # which part
work_dir: str = "work"  # where work goes
reports_dir: str = "reports"  # where reports go"""
BEGIN = 'with open("begun.txt", "a") as file:\n    file.write(f"{part or \'whole\'}\\n")\n'


@pytest.fixture
def project(tmp_path):
    """A project whose one notebook does what ``source`` says; gives a function that writes its study and sweeps it."""
    for name in ("notebooks", "helpers", "params"):
        (tmp_path / "project" / name).mkdir(parents=True)
    root = tmp_path / "project"

    def write(source, *parts):
        cells = [nbformat.v4.new_code_cell(DECLARED, metadata={"tags": ["parameters"]}), nbformat.v4.new_code_cell(BEGIN + source)]
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), root / "notebooks/01_a.ipynb")
        (root / "params/s.yaml").write_text(yaml.safe_dump({"notebooks": {"01_a": {}}, "sweep": {"01_a": {"part": list(parts)}}}))
        return root

    def run(*overrides, **options):
        return cli.run_study(root / "params/s.yaml", overrides, root=root, options=Options(jobs=1, **options))

    run.root, run.write = root, write
    return run


def begun(root):
    return Counter((root / "begun.txt").read_text().split())


def sweeping(root):
    """Sweep the study in a process of its own."""
    script = f"""import sys
from pathlib import Path
from helpers.sweep import cli as sweep
if __name__ == "__main__":
    root = Path({str(root)!r})
    sys.exit(sweep.run_study(root / "params/s.yaml", root=root, options=sweep.Options(jobs=1)))"""
    (root / "tmp").mkdir(exist_ok=True)
    environment = os.environ | {"TMPDIR": str(root / "tmp")}
    return subprocess.Popen(
        [sys.executable, "-c", script], cwd=PROJECT_ROOT, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )


def at_work_in(root):
    return [process for process in psutil.process_iter(["cwd", "status"]) if process.info["cwd"] == str(root) and process.is_running()]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 16 MiB, of which what pages share takes 6; skipped where none can be mounted."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_is_told_and_what_was_complete_stays(project, small_disk, capsys):
    fill = """
import pathlib
if part == "fills":
    with open(pathlib.Path(work_dir) / "filler", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))"""
    root = project.write(fill, "before", "fills")
    places = [f"work_dir={small_disk}/work", f"reports_dir={small_disk}/reports"]
    assert project(*places, min_free=0.0) == 1
    printed = capsys.readouterr()
    assert "No space left on device" in printed.err
    assert "01_a/before: done" in printed.out
    report, record = small_disk / "reports/s/01_a/before.ipynb", small_disk / "work/s/executions/01_a/before.json"
    kept = report.read_bytes(), record.read_bytes()
    assert nbformat.read(report, as_version=4).metadata.papermill.exception is None
    assert project(*places) == 2  # the same command says before it starts what is in the way
    assert "0.00 GiB free, and 1 GiB are asked for" in capsys.readouterr().err

    (small_disk / "work/filler").unlink()
    project.write(fill.replace('"fills"', '"nothing"'), "before", "fills")
    (root / "begun.txt").unlink()
    assert project(*places, min_free=0.0) == 0
    assert begun(root) == {"before": 1, "fills": 1, "whole": 1}  # the notebook was mended, so all its parts run again
    assert (report.read_bytes(), record.read_bytes()) != kept
    assert not [path for path in small_disk.rglob("*") if ".partial" in path.name or path.suffix == ".claim"]


def test_a_read_only_reports_folder_is_told_before_anything_starts_and_again_when_it_becomes_so(project, small_disk, monkeypatch, capsys):
    root = project.write("pass", "one", "two")
    engine = Imagined(root, slots=1)
    monkeypatch.setattr(cli, "_engine", lambda *given: engine)
    monkeypatch.setattr(cli, "_write_pages", lambda *given: None)
    place = [f"reports_dir={small_disk}/reports"]

    def remount(mode):
        subprocess.run(["mount", "-o", f"remount,{mode}", str(small_disk)], check=True)

    engine.meanwhile = lambda name: name == "01_a/two" and remount("ro")
    assert project(*place, min_free=0.0) == 1
    printed = capsys.readouterr().err
    assert "01_a/two: its report could not be kept\n  OSError: [Errno 30] Read-only file system" in printed
    assert project(*place, min_free=0.0) == 2
    assert "cannot be written, and s has to go there" in capsys.readouterr().err
    remount("rw")
    engine.meanwhile = lambda name: None
    engine.started.clear()
    assert project(*place, min_free=0.0) == 0
    assert engine.started == ["01_a/two", "01_a"]


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind the superuser; the read-only file system above does")
def test_a_reports_folder_without_permission_is_told_before_anything_starts(project, capsys):
    root = project.write("pass", "one")
    (root / "reports").mkdir(mode=0o555)
    assert project() == 2
    assert "reports cannot be written, and s has to go there" in capsys.readouterr().err


def test_a_clock_that_jumps_back_changes_nothing(project, monkeypatch):
    root = project.write("pass", "one", "two")
    engine = Imagined(root)
    monkeypatch.setattr(cli, "_engine", lambda *given: engine)
    monkeypatch.setattr(cli, "_write_pages", lambda *given: None)
    clock = iter(range(2_000_000_000, 0, -86_400))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    assert project() == 0
    for number, path in enumerate(sorted(path for path in root.rglob("*") if path.is_file())):
        os.utime(path, (4e9 - number * 1e6, 4e9 - number * 1e6))  # results that seem older than what they rest on, and both in the future
    engine.started.clear()
    assert project() == 0
    assert engine.started == []
    assert len((root / "work/s/sweep.log").read_text().splitlines()) == 6


def train(work, *runs):
    """Train what is missing, here and now; give the runs that were."""
    missing = catalogue.missing(work, runs)
    for run in missing:
        train_run(run, load_study_data(**TINY_SCENES, cache_dir=work.parent / "cache"), catalogue.run_folder(work, run))
    return missing


def test_a_corrupted_result_is_named_and_costs_that_run_alone(tmp_path):
    work = tmp_path / "work"
    runs = [replace(run, max_epochs=1) for run in configurations(tmp_path / "images")[:2]]
    assert train(work, *runs) == runs
    before = catalogue.read_catalogue(work)
    damaged, good = (catalogue.run_folder(work, run) / "result.json" for run in runs)
    content = good.read_bytes(), good.stat().st_mtime_ns
    damaged.write_text(damaged.read_text()[:40])
    with pytest.raises(ValueError, match=f"{damaged} is not readable JSON .*; delete it and run again to make it anew"):
        catalogue.read_catalogue(work)
    damaged.unlink()
    assert train(work, *runs) == runs[:1]
    assert (good.read_bytes(), good.stat().st_mtime_ns) == content
    pd.testing.assert_frame_equal(catalogue.read_catalogue(work).drop(columns="seconds"), before.drop(columns="seconds"))


def test_what_an_execution_killed_after_its_last_run_left_is_cleared_away(tmp_path):
    run = replace(configurations(tmp_path / "images")[0], max_epochs=1)
    train(tmp_path / "work", run)
    claims = tmp_path / "work/runs/.claims"
    script = f"""import os
from pathlib import Path
from helpers.locks import LockHolder
assert LockHolder(Path({str(claims)!r})).__enter__().claim({run_id(run)!r})
os.kill(os.getpid(), 9)"""
    assert subprocess.run([sys.executable, "-c", script], cwd=PROJECT_ROOT).returncode == -9
    with LockHolder(claims) as living:
        living.claim("another")
        assert list(pool.train_missing([run], tmp_path / "work")) == []
        assert sorted(path.name for path in claims.rglob("*.*")) == sorted(["another.1.claim", f"{living.token}.json"])


def test_a_half_written_checkpoint_costs_its_epochs_and_the_run_ends_as_if_nothing_had_been(tmp_path):
    run = replace(configurations(tmp_path / "images")[0], max_epochs=2)
    train(tmp_path / "whole", run)
    folder = catalogue.run_folder(tmp_path / "cut", run)
    folder.mkdir(parents=True)
    snapshot = (catalogue.run_folder(tmp_path / "whole", run) / "snapshot-stop.safetensors").read_bytes()
    (folder / "checkpoint.safetensors").write_bytes(snapshot[: len(snapshot) // 2])
    train(tmp_path / "cut", run)
    assert (folder / "snapshot-stop.safetensors").read_bytes() == snapshot


WAIT = """
import pathlib, time
while part == "waits" and not pathlib.Path("go").exists():
    time.sleep(0.05)"""


def test_a_killed_sweep_leaves_no_process_and_the_next_one_goes_on(project):
    root = project.write(WAIT, "first", "waits")
    killed = sweeping(root)
    while not (root / "begun.txt").exists() or "waits" not in begun(root):
        assert killed.poll() is None
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    while at_work_in(root):  # worker and kernel notice it by themselves; a test that hangs here has found an orphan
        time.sleep(0.05)
    assert list((root / "tmp").iterdir())  # its temporary files, which the next one deletes
    (root / "go").touch()
    assert sweeping(root).wait() == 0
    assert begun(root) == {"first": 1, "waits": 2, "whole": 1}
    assert not [path for path in root.rglob("*") if ".partial" in path.name or path.suffix == ".claim"]
    assert list((root / "tmp").iterdir()) == []


def test_two_sweeps_at_once_divide_the_work_and_both_end_well(project):
    root = project.write(WAIT, "waits", "second", "third")
    started = [sweeping(root) for _ in range(2)]
    while not (root / "begun.txt").exists() or not {"second", "third"} <= set(begun(root)):
        assert all(process.poll() is None for process in started)  # one waits in its part, the other does the rest
    (root / "go").touch()
    assert [process.wait() for process in started] == [0, 0]
    assert begun(root) == {"waits": 1, "second": 1, "third": 1, "whole": 1}
    reports = sorted(str(path.relative_to(root / "reports/s")) for path in (root / "reports/s").rglob("*.ipynb"))
    assert reports == ["01_a.ipynb", "01_a/second.ipynb", "01_a/third.ipynb", "01_a/waits.ipynb"]
    makers = {line.split()[1] for line in Path(root / "work/s/sweep.log").read_text().splitlines()}
    assert len(makers) == 2
    assert not [path for path in root.rglob("*") if ".partial" in path.name or path.suffix == ".claim"]
