"""Runs and other work side by side."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest
import threadpoolctl
import torch
from psutil import STATUS_ZOMBIE as ZOMBIE

from helpers.files import PROJECT_ROOT, read_tensors
from helpers.networks import resnet
from helpers.networks.weights import FORM
from helpers.training import catalogue, pool
from tests.training.conftest import configurations

SCRIPT = """
import sys
from pathlib import Path
from helpers.training import pool
from tests.training.conftest import configurations
work = Path(sys.argv[1])
for result in pool.train_missing(configurations(work), work, jobs=2):
    print(result["run_id"], flush=True)
"""


def start(script, work):
    return subprocess.Popen(
        [sys.executable, "-c", script, work],
        cwd=PROJECT_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def square(number, shared):
    """With the threads of libraries, and whether float32 is rounded on a GPU."""
    if number < 0:
        raise ValueError("below 0")
    libraries = threadpoolctl.threadpool_info()
    threads = {library["num_threads"] for library in libraries}
    rounded = torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32
    return number**2 + shared, {torch.get_num_threads()} | threads, rounded


@pytest.mark.parametrize("jobs", [1, 2])
def test_items_have_one_thread_each_and_faults_are_named_at_the_end(jobs, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    pool.choose_device("cpu")
    done = {}
    message = r"1 of 3 failed; the others are complete. -1: ValueError: below 0"
    with threadpoolctl.threadpool_limits(3), pytest.raises(RuntimeError, match=message):
        done.update(pool.side_by_side(square, [1, -1, 3], shared=int, jobs=jobs))
    assert done == {1: (1, {1}, False), 3: (9, {1}, False)}


def die(number, shared):
    os.kill(os.getpid(), signal.SIGKILL)


def test_each_call_loads_anew_what_its_items_share():
    for number in (5, 7):
        results = pool.side_by_side(square, [1, 2], shared=lambda n=number: n, jobs=2)
        assert {result for _, (result, *_) in results} == {1 + number, 4 + number}


def test_runs_start_from_the_weights_of_a_file_but_for_their_head(tmp_path):
    run = configurations(tmp_path)[0]
    form = {name: getattr(run, name) for name in FORM}
    published = resnet.build(**form, classes=5, seed=9).state_dict()
    torch.save(published, tmp_path / "resnet18.pt")
    source = f"{tmp_path}/{{architecture}}.pt"
    (weights,) = catalogue.weights_by_name(source, ["resnet18"], tmp_path).values()
    frozen = {"pretrained": True, "frozen_stages": 4, "max_epochs": 1}
    run = replace(run, weights=weights, **frozen)
    (result,) = pool.train_missing([run], tmp_path, jobs=1)
    path = catalogue.weights_path(tmp_path, result | {"snapshot": "stop"})
    trained = read_tensors(path)
    assert trained["fc.weight"].shape == (3, 64)
    assert torch.equal(
        trained["layer4.1.conv2.weight"], published["layer4.1.conv2.weight"]
    )


NAPS = """
import os, time
from helpers.training import pool
def nap(item, shared):
    print(os.getpid(), flush=True)
    time.sleep(600)
list(pool.side_by_side(nap, [1, 2], shared=int, jobs=2))
"""


def test_processes_end_when_the_one_that_started_them_is_killed(tmp_path):
    parent = start(NAPS, tmp_path)
    children = [int(parent.stdout.readline()) for _ in range(2)]
    parent.kill()
    parent.wait()
    # Their ends of the pipe close with them.
    assert parent.stdout.read() == b""
    for child in children:
        assert not psutil.pid_exists(child) or psutil.Process(child).status() == ZOMBIE


@pytest.mark.parametrize(
    ("larger", "jobs", "memory", "expected"),
    [
        (0.015, 0, 80, 3),  # cores less two
        (0.015, 0, 5, 2),  # memory
        (0.015, 0, 1, 1),
        (0.02, 0, 80, 1),  # one network fills the card
        (None, 0, 80, 1),  # its larger batch does not fit
        (0.015, 7, 80, 7),  # as asked for
    ],
)
def test_networks_side_by_side_on_a_gpu(monkeypatch, larger, jobs, memory, expected):
    gib = 2**30

    def seconds_of_pass(network, images):
        if len(images) > 4 and not larger:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return larger if len(images) > 4 else 0.01

    monkeypatch.setattr(pool, "_seconds_of_pass", seconds_of_pass)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(5))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: gib)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (memory * gib, 0))
    given = jobs, lambda: (torch.nn.Identity(), (4, 3, 8, 8))
    assert pool.jobs_on("meta", *given) == expected  # a device without values
    assert pool.jobs_on("cpu", *given) == (jobs or 5)


def test_a_process_that_dies_stops_all():
    with pytest.raises(RuntimeError, match="unexpectedly terminated"):
        list(pool.side_by_side(die, [1, 2, 3], shared=int, jobs=2))


@pytest.mark.nightly
def test_two_executions_of_one_list_at_once_both_end_with_all_complete(tmp_path):
    both = [start(SCRIPT, tmp_path) for _ in range(2)]
    said = "".join(process.communicate()[0].decode() for process in both).split()
    assert [process.returncode for process in both] == [0, 0]
    complete = {path.parent.name for path in tmp_path.glob("runs/*/result.json")}
    assert set(said) == complete and len(complete) == 4


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pool.choose_device("auto") == "cpu"
    with pytest.raises(ValueError, match="device 'cuda' cannot be used"):
        pool.choose_device("cuda")
