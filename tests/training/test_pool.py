"""Runs and other work side by side; that a killed set is resumed to the same bits is shown by ``make faults``."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
import threadpoolctl
import torch
from psutil import STATUS_ZOMBIE as ZOMBIE

from helpers.files import PROJECT_ROOT
from helpers.training import catalogue, pool
from helpers.training import run as training
from helpers.training.config import RunConfig
from helpers.training.stopping import Epoch

RUN = RunConfig("resnet18", 8, 0.01, "adam", 0.0, True, False, data="d", max_epochs=16)
SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from helpers.training import pool
from tests.training.conftest import configurations
if __name__ == "__main__":
    work = Path(sys.argv[1])
    for result in pool.train_missing(configurations(work), work, pool.Hardware(jobs=2)):
        print(result["run_id"], flush=True)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(root=str(PROJECT_ROOT)))
    return path


def start(script, work):
    return subprocess.Popen(
        [sys.executable, script, work],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def square(number, shared):
    if number < 0:
        raise ValueError("below 0")
    return number**2 + shared, torch.get_num_threads()


def die(number, shared):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("jobs", [1, 2])
def test_items_are_worked_on_side_by_side_on_one_thread_each_and_faults_are_named_at_the_end(
    jobs,
):
    found = dict(pool.side_by_side(square, [1, 2, 3], shared=int, jobs=jobs))
    assert found == {1: (1, 1), 2: (4, 1), 3: (9, 1)}
    done = []
    with pytest.raises(
        RuntimeError,
        match=r"1 of 3 failed; the others are complete. -1: ValueError: below 0",
    ):
        done.extend(pool.side_by_side(square, [1, -1, 3], shared=int, jobs=jobs))
    assert sorted(item for item, _ in done) == [1, 3]


NAPS = """
import os
import sys
import time
sys.path.insert(0, {root!r})
from helpers.training import pool
def nap(item, shared):
    print(os.getpid(), flush=True)
    time.sleep(600)
if __name__ == "__main__":
    list(pool.side_by_side(nap, [1, 2], shared=int, jobs=2))
"""


def test_processes_end_when_the_one_that_started_them_is_killed(tmp_path):
    (tmp_path / "naps.py").write_text(NAPS.format(root=str(PROJECT_ROOT)))
    parent = start(tmp_path / "naps.py", tmp_path)
    children = [int(parent.stdout.readline()) for _ in range(2)]
    parent.kill()
    parent.wait()
    # Their ends of the pipe close with them.
    assert parent.stdout.read() == b""
    for child in children:
        assert not psutil.pid_exists(child) or psutil.Process(child).status() == ZOMBIE


def threads_of_blas(item, shared):
    return {library["num_threads"] for library in threadpoolctl.threadpool_info()}


@pytest.mark.parametrize("jobs", [1, 2])
def test_linear_algebra_has_one_thread_in_each_process(jobs, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with threadpoolctl.threadpool_limits(3):
        results = pool.side_by_side(threads_of_blas, [1, 2], shared=int, jobs=jobs)
        numbers = [numbers for _, numbers in results]
    assert all(1 in each for each in numbers)
    assert jobs == 1 or numbers == [{1}, {1}]


@pytest.mark.parametrize(
    ("seconds", "jobs", "expected"),
    [
        ((0.01, 0.015), 0, 3),  # cores less two
        ((0.01, 0.02), 0, 1),  # one network fills the card
        ((0.01, 0.015), 7, 7),  # as asked for
    ],
)
def test_a_gpu_trains_as_many_runs_as_a_timed_step_cores_and_memory_allow(
    tmp_path, monkeypatch, seconds, jobs, expected
):
    def timed_step(run, size, factor, device):
        return seconds[factor > 1], 2**30

    data = SimpleNamespace(train=SimpleNamespace(images=torch.zeros(1, 3, 8, 8)))
    monkeypatch.setattr(pool, "_timed_step", timed_step)
    monkeypatch.setattr(pool, "images_of_study", lambda work: data)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(5))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80 * 2**30, 0))
    runs = [replace(RUN, repeat=number) for number in range(9)]
    chosen = pool.Hardware("cuda", jobs).with_jobs(runs, tmp_path)
    assert (chosen.device, chosen.jobs) == ("cuda", expected)
    assert pool.Hardware("cpu", jobs).with_jobs(runs, tmp_path).jobs == (jobs or 5)
    assert pool.jobs_on_gpu((1.0, 1.5), 2**30, 5 * 2**30, 16) == 2  # memory
    assert pool.jobs_on_gpu((1.0, 1.5), 2**30, 2**30, 16) == 1


def fail_of_gpu(number, shared):
    if number:
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_nothing_more_is_tried_in_a_process_whose_gpu_failed(jobs):
    items = [0, 7, *range(100, 120)]
    done = []
    with pytest.raises(RuntimeError, match=r"(?s)ECC.*CUDA computes nothing more"):
        done.extend(pool.side_by_side(fail_of_gpu, items, shared=int, jobs=jobs))
    assert [item for item, _ in done] in ([0], [])


def precision_and_threads(item, shared):
    flags = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    return flags, torch.get_num_threads()


@pytest.mark.parametrize(("jobs", "threads"), [(1, 6), (2, 3)])
def test_float32_is_computed_in_float32_and_processes_on_a_gpu_share_the_threads(
    jobs, threads, monkeypatch
):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    pool.choose_device("cpu")
    results = dict(
        pool.side_by_side(
            precision_and_threads, [1, 2], shared=int, device="cuda", jobs=jobs
        )
    )
    expected = (False, False), threads
    assert results == {1: expected, 2: expected}


def test_a_process_that_dies_is_said_with_what_to_try():
    with pytest.raises(
        RuntimeError,
        match=r"a process died .* lower jobs or the batch size and run again; what is complete is kept",
    ):
        list(pool.side_by_side(die, [1, 2, 3], shared=int, jobs=2))


@pytest.mark.nightly
def test_two_executions_of_one_list_at_once_both_end_with_all_complete(
    script, tmp_path
):
    both = [start(script, tmp_path) for _ in range(2)]
    said = "".join(process.communicate()[0].decode() for process in both).split()
    assert [process.returncode for process in both] == [0, 0]
    assert (
        set(said) == {path.parent.name for path in tmp_path.glob("runs/*/result.json")}
        and len(set(said)) == 4
    )


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pool.choose_device("auto") == "cpu"
    with pytest.raises(
        ValueError, match=r"device 'cuda' is asked for .* set device to auto or cpu"
    ):
        pool.choose_device("cuda")


def test_the_line_names_each_run_with_its_last_epoch_and_loss(tmp_path):
    runs = [replace(RUN, repeat=number) for number in range(3)]
    rows = [
        Epoch(
            epoch=i,
            train_loss=loss,
            train_accuracy=0.5,
            monitor_accuracy=0.5,
            seconds=1.0,
        )
        for i, loss in enumerate([2.0, 0.434], 1)
    ]
    network = torch.nn.Linear(2, 2)
    for run, epochs in zip(runs, (rows, rows[:1], []), strict=True):
        training.save(
            catalogue.run_folder(tmp_path, run),
            network,
            torch.optim.SGD(network.parameters(), lr=0.1),
            epochs,
            [],
        )
    assert (
        pool._progress_line(tmp_path, runs)
        == "resnet18 epoch 2 of 16, loss 0.43; resnet18 epoch 1 of 16, loss 2.00"
    )
    for path in tmp_path.glob("runs/*/checkpoint.safetensors"):
        path.write_bytes(path.read_bytes()[:200])  # half-written
    assert pool._progress_line(tmp_path, runs) == ""
