"""The check of a GPU server runs through on a CPU, with nothing installed that a bare server lacks."""

import importlib
import json
import os
import subprocess
import sys

import pytest

from benchmarks import gpu
from helpers.files import PROJECT_ROOT
from tests.conftest import WITHOUT_JUPYTER, lacking


@pytest.mark.nightly
def test_the_whole_check_runs_through_without_jupyter(tmp_path):
    command = [sys.executable, "-m", "benchmarks.gpu", "--tiny", "--minutes", "20"]
    changed = {"PYTHONPATH": lacking(tmp_path, WITHOUT_JUPYTER), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--out", str(tmp_path)],
        cwd=PROJECT_ROOT,
        env=os.environ | changed,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["left_out"] == [] and found["tiny"]
    cases = found["cases"]
    # Nothing is compiled on a CPU, which repeats to the last bit.
    losses = [rows[0] for name, rows in cases.items() if name.startswith("losses")]
    assert losses and all(row["compiled"] == 0 for row in losses)
    passes = [rows for name, rows in cases.items() if name.startswith("scoring")]
    assert all(row["images/s"] > 0 for rows in passes for row in rows)
    together = [name for name in cases if name.endswith("side by side")]
    assert len(together) == len(gpu.TINY.processes)
    assert all(name in done.stdout for name in cases)


@pytest.mark.parametrize(
    "path",
    sorted((PROJECT_ROOT / "benchmarks").glob("*.py")),
    ids=lambda path: path.stem,
)
def test_every_benchmark_imports_what_there_is(path):
    importlib.import_module(f"benchmarks.{path.stem}")


def test_without_a_gpu_the_check_says_what_runs_here(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu"])
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        gpu.main()
    assert "sees no GPU" in capsys.readouterr().err
