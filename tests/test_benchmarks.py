"""The check of a GPU server runs through on a CPU, with nothing installed that a bare server lacks."""

import importlib
import json
import os
import subprocess
import sys

import pytest

from benchmarks import gpu, size
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


def test_no_time_leaves_every_case_out_and_names_it():
    tables, left_out = gpu.check(gpu.TINY, "cpu", 0)
    assert [row["outcome"] for row in tables["targets"].to_dict("records")] == [
        "not measured"
    ] * len(gpu.TARGETS)
    assert len(left_out) == 4 + 12 + 2 + 2


def test_a_target_says_by_how_much_it_is_missed():
    least, most = gpu.Target("a rate", least=8), gpu.Target("a cost", most=1.1)
    assert (
        least.row(8.0)["outcome"] == "met"
        and least.row(6.0)["outcome"] == "missed by 25%"
    )
    assert (
        most.row(1.1)["outcome"] == "met"
        and most.row(1.21)["outcome"] == "missed by 10%"
    )


MODULE = '''"""A module."""

import helpers.files
from helpers.data import images


def area(width: int, height: int) -> int:
    """Area of a rectangle.

    Args:
        width: in pixels.
        height: in pixels.
    """
    found, height = width, height  # two at once
    return found * height


class Box:
    """A box."""

    def _side(self, number):
        return [x for row in number for x in row]

    def side(self, number):
        """One side."""
        return number if (number := number + 1) else 0
'''


def test_sizes_by_hand(tmp_path):
    """Comments, docstrings and blank lines are no code."""
    (tmp_path / "module.py").write_text(MODULE)
    (module,) = size.modules_of(tmp_path)
    tokens, lines = size.code_tokens(module.text)
    assert lines == 10
    assert size.code_tokens("x = 1  # one\n") == (3, 1)
    assert tokens > lines
    assert sum(map(size.is_tuple_assignment, module.nodes)) == 1
    assert sum(map(size.is_nested_comprehension, module.nodes)) == 1
    assert sorted(size.bound_names(module)) == sorted(
        [
            "width",
            "height",
            "found",
            "height",
            "self",
            "number",
            "x",
            "row",
            "self",
            "number",
            "number",
        ]
    )
    functions = size.public_functions(module)
    assert [function.name for function in functions] == ["area", "side"]
    assert [size.argument_names(function) for function in functions] == [
        ["width", "height"],
        ["number"],
    ]
    assert [size.documents_arguments(function) for function in functions] == [
        True,
        False,
    ]
