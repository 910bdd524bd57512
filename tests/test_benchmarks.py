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
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu",
        "--tiny",
        "--minutes",
        "20",
        "--out",
        str(tmp_path),
    ]
    changed = {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": lacking(tmp_path, WITHOUT_JUPYTER),
    }
    done = subprocess.run(
        command,
        cwd=PROJECT_ROOT,
        env=os.environ | changed,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["left_out"] == [] and found["tiny"]
    assert all(row["value"] > 0 for row in found["targets"]) and len(
        found["targets"]
    ) == len(gpu.TARGETS)
    assert {row["architecture"] for row in found["agreement"]} == set(
        gpu.TINY.architectures
    )
    assert all(
        row["compiled_apart"] == 0 for row in found["agreement"]
    )  # nothing is compiled on a CPU, which repeats to the last bit
    assert [row["processes"] for row in found["side_by_side"]] == list(
        gpu.TINY.processes
    )
    assert "### targets" in (tmp_path / "gpu.md").read_text()


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
