"""Runs side by side, killed at any moment and resumed: the finished set equals an uninterrupted one's."""

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from helpers.data import manifest
from helpers.files import PROJECT_ROOT
from helpers.training import catalogue, pool, state
from helpers.training.config import RunConfig, run_id
from helpers.training.run import initial_model, make_optimizer
from helpers.training.stopping import Epoch
from tests.training.conftest import configurations

SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from helpers.training import pool
from tests.training.conftest import configurations
if __name__ == "__main__":
    work = Path(sys.argv[1])
    for result in pool.train_missing(configurations(work), work, jobs=2):
        print(result["run_id"], flush=True)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(root=str(PROJECT_ROOT)))
    return path


def start(script, work):
    return subprocess.Popen([sys.executable, script, work], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)


def alive(session):
    """Processes of the session that are not yet reaped zombies."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(status.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to see which processes are left")
def test_killed_at_several_instants_and_resumed_the_set_is_that_of_an_uninterrupted_run(script, tmp_path):
    assert start(script, tmp_path / "whole").wait() == 0
    # Instants in the life of a run: before any checkpoint, amid the epochs, with some runs complete.
    wait_for = ["**/config.json", "**/checkpoint.safetensors", "**/result.json"]
    for pattern in wait_for:
        process = start(script, tmp_path / "killed")
        before = len(list((tmp_path / "killed").glob(pattern)))
        while process.poll() is None and len(list((tmp_path / "killed").glob(pattern))) <= before:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        for _ in range(500):  # the workers notice the end of their parent by themselves
            if not alive(process.pid):
                break
            time.sleep(0.02)
        assert alive(process.pid) == []
    assert start(script, tmp_path / "killed").wait() == 0
    tables = [catalogue.read_catalogue(tmp_path / name).drop(columns="seconds") for name in ("whole", "killed")]
    assert len(tables[0]) >= 4
    assert tables[0].equals(tables[1])
    for model in tables[0].itertuples():
        paths = [tmp_path / name / "runs" / model.run_id / f"snapshot-{model.snapshot}.safetensors" for name in ("whole", "killed")]
        first, second = map(safetensors.torch.load_file, paths)
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_worker_loads_the_images_once_for_all_its_runs(tmp_path, monkeypatch):
    loaded, load = [], manifest.of_study
    runs = configurations(tmp_path)[:2]
    monkeypatch.setattr(manifest, "of_study", lambda work: loaded.append(work) or load(work))
    pool.images_in_worker.cache_clear()
    results = [pool._train(run, tmp_path, {}, "cpu") for run in runs]
    assert [result["status"] for result in results] == ["complete", "complete"]
    assert loaded == [tmp_path]


def test_what_is_complete_is_not_trained_again(tmp_path):
    runs = [replace(run, max_epochs=1) for run in configurations(tmp_path)[:2]]
    assert {result["run_id"] for result in pool.train_missing(runs, tmp_path, jobs=1)} == set(map(run_id, runs))
    assert list(pool.train_missing(runs, tmp_path, jobs=1)) == []


def test_one_failing_run_does_not_stop_the_others_and_is_named(tmp_path):
    good = replace(configurations(tmp_path)[0], max_epochs=1)
    bad = replace(good, data="other")
    with pytest.raises(
        RuntimeError, match=rf"1 of 2 runs failed; the others are complete. {run_id(bad)}: ValueError: .*belongs to the data"
    ):
        list(pool.train_missing([bad, good], tmp_path, jobs=1))
    assert catalogue.is_complete(tmp_path, good)


DEADLY = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from helpers.training import pool, run as run_module
from helpers.training.config import run_id
from tests.training.conftest import configurations
train = run_module.train_run
def deadly(run, *given, **named):
    if run.repeat == 1:
        {end}
    return train(run, *given, **named)
run_module.train_run = deadly  # in the workers too: they read this file again
if __name__ == "__main__":
    work = Path(sys.argv[1])
    runs = configurations(work)
    print(run_id(runs[1]))
    try:
        list(pool.train_missing(runs, work, jobs=2))
    except RuntimeError as fault:
        print(type(fault).__name__, fault)
"""


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", r"was killed by SIGSEGV \(a fault in compiled code: .*jobs=1.*ONEDNN_MAX_CPU_ISA=AVX2"),
        ("os.kill(os.getpid(), signal.SIGKILL)", r"was killed by SIGKILL \(mostly for want of memory: lower jobs"),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 1)", r"was killed by signal 35$"),
        ("os._exit(3)", r"ended with exit code 3$"),
    ],
)
def test_a_process_that_dies_is_told_with_its_signal_its_run_and_what_to_try(end, told, tmp_path):
    (tmp_path / "train.py").write_text(DEADLY.format(root=str(PROJECT_ROOT), end=end))
    ended = subprocess.run([sys.executable, tmp_path / "train.py", tmp_path], capture_output=True, text=True, check=True)
    name, message = ended.stdout.splitlines()
    assert re.match(rf"BrokenProcessPool [34] of 4 runs failed; the others are complete\. {name}: its process {told}", message), message


def test_runs_of_one_shape_follow_each_other_on_a_gpu_and_keep_their_order_on_a_cpu():
    base = RunConfig("resnet18", 8, 0.01, "adam", 0.0, True, False, data="any")
    axes = itertools.product((8, 16), ("adam", "sgd"), (0.01, 0.001), ("resnet18", "resnet50"))
    runs = [replace(base, batch_size=size, optimizer=name, learning_rate=rate, architecture=network) for size, name, rate, network in axes]
    assert pool.runs_in_order(runs, "cpu") == runs
    ordered = pool.runs_in_order(runs, "cuda")
    assert sorted(map(run_id, ordered)) == sorted(map(run_id, runs))
    shapes = [(run.architecture, run.batch_size, run.optimizer) for run in ordered]
    assert len(list(itertools.groupby(shapes))) == len(set(shapes)) == 8


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pool.choose_device("auto") == "cpu"
    with pytest.raises(ValueError, match=r"device 'cuda' is asked for .* set device to auto or cpu"):
        pool.choose_device("cuda")
    assert pool.jobs_for("cpu", 3) == 3
    assert pool.jobs_for("cpu", 0) == len(os.sched_getaffinity(0))


RUN = RunConfig("resnet18", 8, 0.01, "adam", 0.0, True, False, data="d", max_epochs=16)


def checkpoint(work, run, *losses):
    model = torch.nn.Linear(2, 2)
    rows = [
        Epoch(epoch=number, train_loss=loss, train_accuracy=0.5, monitor_accuracy=0.5, seconds=1.0) for number, loss in enumerate(losses, 1)
    ]
    folder = catalogue.run_folder(work, run)
    folder.mkdir(parents=True, exist_ok=True)
    state.save(folder, model, torch.optim.SGD(model.parameters(), lr=0.1), rows, [])
    return folder / "checkpoint.safetensors"


def test_the_line_names_each_run_with_its_last_epoch_and_loss(tmp_path):
    other = replace(RUN, architecture="resnet34", max_epochs=9)
    checkpoint(tmp_path, RUN, 2.0, 0.434)
    checkpoint(tmp_path, other, 1.5)
    assert pool.line(tmp_path, [RUN, other]) == "resnet18 epoch 2 of 16, loss 0.43; resnet34 epoch 1 of 9, loss 1.50"
    assert pool.line(tmp_path, []) == ""


@pytest.mark.parametrize("cut", [0, 4, 200])
def test_a_run_without_an_epoch_and_a_half_written_checkpoint_are_passed_over(tmp_path, cut):
    path = checkpoint(tmp_path, RUN, 2.0)
    path.write_bytes(path.read_bytes()[:cut])
    assert pool.last_epoch(path.parent) is None
    path.unlink()
    assert pool.last_epoch(path.parent) is None
    checkpoint(tmp_path, RUN)
    assert pool.line(tmp_path, [RUN]) == ""


def test_whoever_waits_for_training_is_shown_its_epochs_and_none_at_the_end(tmp_path):
    run = replace(configurations(tmp_path)[0], max_epochs=2)
    shown = []
    list(pool.train_missing([run], tmp_path, jobs=1, show=shown.append))
    assert shown[-1] == ""
    assert all(re.fullmatch(r"(resnet18 epoch [12] of 2, loss \d+\.\d\d)?", line) for line in shown)


def test_no_run_begins_when_the_time_is_up_and_the_next_call_trains_them(tmp_path):
    runs = [replace(run, max_epochs=1) for run in configurations(tmp_path)[:2]]
    assert list(pool.train_missing(runs, tmp_path, jobs=1, until=time.monotonic())) == []
    assert not list(tmp_path.glob("runs/*/config.json"))
    assert len(list(pool.train_missing(runs, tmp_path, jobs=1, until=time.monotonic() + 3600))) == 2


def test_a_run_whose_time_is_up_yields_nothing_and_frees_its_claim(tmp_path):
    """The first epoch is an hour long by what its checkpoint says."""
    (run,) = [replace(run, max_epochs=3) for run in configurations(tmp_path)[:1]]
    model = initial_model(run, 3)
    folder = catalogue.run_folder(tmp_path, run)
    folder.mkdir(parents=True)
    row = Epoch(epoch=1, train_loss=2.0, train_accuracy=0.5, monitor_accuracy=0.5, seconds=3600.0)
    state.save(folder, model, make_optimizer(model, run, torch.device("cpu")), [row], [])
    assert list(pool.train_missing([run], tmp_path, jobs=1, until=time.monotonic() + 1800)) == []
    assert pool.last_epoch(folder) == row
    (result,) = pool.train_missing([run], tmp_path, jobs=1)
    assert result["epochs"] == 3


def test_runs_that_a_time_cuts_short_keep_their_balanced_order_on_a_gpu(tmp_path, monkeypatch):
    """A context that starts no process: what is asked for, in order."""
    base = configurations(tmp_path)[0]
    runs = [replace(base, optimizer=name, repeat=number) for number in range(2) for name in ("sgd", "adam")]
    asked = []

    class Nobody:
        def __init__(self, *given, **named):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *fault):
            pass

        def submit(self, function, run, *given):
            asked.append(run)
            done = Future()
            done.set_result({"run_id": run_id(run)})
            return done

    monkeypatch.setattr(pool, "ProcessPoolExecutor", Nobody)
    assert len(list(pool.train_missing(runs, tmp_path, device="cuda", until=time.monotonic() + 3600))) == 4
    assert asked == runs
    asked.clear()
    assert len(list(pool.train_missing(runs, tmp_path, device="cuda"))) == 4
    assert asked == pool.runs_in_order(runs, "cuda") != runs
