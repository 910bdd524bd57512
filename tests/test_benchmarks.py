"""The check of a GPU server runs on a CPU, without what a bare server lacks."""

import importlib
import json
import os
import subprocess
import sys

import pytest

from helpers.files import PROJECT_ROOT

WITHOUT_JUPYTER = (
    *("papermill", "IPython", "ipykernel", "ipywidgets", "jupyterlab"),
    *("nbclient", "nbconvert", "nbformat", "captum", "seaborn", "plotly"),
)


@pytest.mark.nightly
def test_the_whole_check_runs_through_without_jupyter(tmp_path):
    script = f"import sys; sys.modules.update(dict.fromkeys({WITHOUT_JUPYTER}))"
    (tmp_path / "sitecustomize.py").write_text(script)
    command = [sys.executable, "-m", "benchmarks.gpu", "--tiny", "--minutes", "20"]
    changed = {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
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
    assert {"losses", "scoring"} <= {name.split()[0] for name in found["cases"]}
    assert all(name in done.stdout for name in found["cases"])


def test_every_benchmark_imports_what_there_is():
    for path in (PROJECT_ROOT / "benchmarks").glob("*.py"):
        importlib.import_module(f"benchmarks.{path.stem}")
