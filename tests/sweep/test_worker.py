"""What ends a notebook becomes an outcome: what was lost is told from what is wrong, and the next job finds the process as it was."""

import errno
import os
import subprocess
import sys

import nbformat
import pytest
from nbclient.exceptions import DeadKernelError
from papermill import PapermillExecutionError

from helpers import locks
from helpers.files import PROJECT_ROOT
from helpers.sweep import worker
from helpers.sweep.worker import perform


def job(**given):
    return {
        "notebook": "a.ipynb",
        "partial": "b.ipynb",
        "staging": "c",
        "parameters": {},
        "cores": None,
        "environment": {},
        "whole": True,
    } | given


def cell_ended_with(name, value):
    return PapermillExecutionError(cell_index=3, exec_count=2, source="\n# why\nx = f()\n", ename=name, evalue=value, traceback=[])


FAULTS = [
    (cell_ended_with("ValueError", "\x1b[31mno\x1b[0m"), ("error", "cell 3 failed (# why)", "ValueError: no")),
    (cell_ended_with("BrokenProcessPool", "1 of 4 runs failed"), ("lost", "a process of the notebook was killed", "1 of 4 runs failed")),
    (DeadKernelError("Kernel died"), ("lost", "the kernel failed", "DeadKernelError: Kernel died")),
    (
        RuntimeError("Kernel didn't respond in 60 seconds"),
        ("lost", "the kernel failed", "RuntimeError: Kernel didn't respond in 60 seconds"),
    ),
    (RuntimeError("no such thing"), ("error", "the kernel failed", "RuntimeError: no such thing")),
    (
        OSError(errno.ENOSPC, "No space left on device"),
        ("error", "its report or its kernel's files could not be written", "OSError: [Errno 28] No space left on device"),
    ),
]


@pytest.mark.parametrize(("fault", "expected"), FAULTS, ids=[f"{type(fault).__name__}-{wanted[0]}" for fault, wanted in FAULTS])
def test_only_what_was_lost_is_to_be_tried_again(fault, expected, monkeypatch):
    def fail(job):
        raise fault

    monkeypatch.setattr(worker, "_execute", fail)
    outcome = perform(job())
    assert (outcome.kind, outcome.where, outcome.error) == expected
    assert outcome.seconds >= 0


def test_a_job_has_its_environment_and_the_next_one_does_not(monkeypatch):
    seen = []
    monkeypatch.setattr(worker, "_execute", lambda job: seen.append(dict(os.environ)))
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    before = dict(os.environ)
    assert perform(job(environment={"OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "1"})).kind == "done"
    assert perform(job()).kind == "done"
    assert [(item["OMP_NUM_THREADS"], item.get("CUDA_VISIBLE_DEVICES")) for item in seen] == [("2", "1"), ("4", None)]
    assert seen[0]["PYTHONHASHSEED"] == "7"  # what the user sets stays
    assert seen[0]["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert dict(os.environ) == before


def test_a_part_stops_before_the_closing_cell_and_a_notebook_without_one_runs_whole(tmp_path, monkeypatch):
    executed = []
    monkeypatch.setattr("papermill.execute_notebook", lambda source, *given, **options: executed.append(source))
    cells = [nbformat.v4.new_code_cell(text) for text in "ab"] + [nbformat.v4.new_markdown_cell("c", metadata={"tags": ["closing"]})]
    for name, kept in (("whole.ipynb", cells[:2]), ("tagged.ipynb", [*cells, nbformat.v4.new_code_cell("d")])):
        nbformat.write(nbformat.v4.new_notebook(cells=kept), tmp_path / name)
        for whole in (True, False):
            perform(job(notebook=str(tmp_path / name), partial=str(tmp_path / "out/p.ipynb"), whole=whole))
    assert executed[:3] == [str(tmp_path / "whole.ipynb")] * 2 + [str(tmp_path / "tagged.ipynb")]
    assert [cell.source for cell in executed[3].cells] == ["a", "b"]


def test_a_worker_whose_sweep_is_gone_ends_with_all_that_it_started():
    script = """import subprocess, sys
from helpers.sweep import worker
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
worker.main()"""
    mark = f"test-worker.{os.getpid()}"
    started = subprocess.Popen([sys.executable, "-c", script], cwd=PROJECT_ROOT, env=os.environ | {locks.MARK: mark}, stdin=subprocess.PIPE)
    while len(worker.family(mark)) < 2:
        assert started.poll() is None
    started.stdin.close()  # what the end of the sweep does, however it came
    assert started.wait() == 0
    assert worker.family(mark) == []
