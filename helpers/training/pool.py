"""Several training runs side by side, each in a process of its own with one thread, on one machine or several with one disk."""

import math
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any

import torch

from helpers.files import read_json
from helpers.locks import LockHolder
from helpers.training import catalogue, state
from helpers.training.config import RunConfig, run_id
from helpers.training.cuda_graph import shape_of


def last_epoch(folder: Path) -> dict[str, Any] | None:
    """Read the last row of a run's history from its checkpoint; None before the first epoch, after the last, and where it is damaged."""
    history = state.history(folder)
    return history[-1] if history else None


def line(work: Path, runs: Iterable[RunConfig]) -> str:
    """Write one line over the runs that train now, such as "resnet18 epoch 5 of 16, loss 0.43"; "" when none has an epoch yet.

    Args:
        work: the study's folder.
        runs: those that train.
    """
    found = [(run, last_epoch(catalogue.run_folder(work, run))) for run in runs]
    return "; ".join(
        f"{run.architecture} epoch {row['epoch']} of {run.max_epochs}, loss {row['train_loss']:.2f}" for run, row in found if row
    )


_TICK = 1.0  # seconds between two looks at runs that others train
_CHECKPOINT_SECONDS = 30.0  # between two checkpoints on a GPU, where writing one may take longer than an epoch
_NOTES: dict[str, Any] = {}  # of a worker: where it writes which run it trains
_COMPILED = "a fault in compiled code: train it alone by jobs=1; if it dies again, set ONEDNN_MAX_CPU_ISA=AVX2 or take another torch"

_TO_TRY = {
    signal.SIGKILL: "mostly for want of memory: lower jobs or the batch size",
    signal.SIGBUS: "mostly for want of room in /dev/shm or on the disk: make room, or lower jobs",
    **dict.fromkeys((signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE), _COMPILED),
}


def choose_device(device: str) -> str:
    """Turn "auto" into "cuda" where there is a GPU and "cpu" where there is none; keep any other name.

    Raises:
        ValueError: a GPU is asked for and there is none.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {device!r} is asked for and torch {torch.__version__} sees no GPU here; set device to auto or cpu")
    return device


def jobs_for(device: str, jobs: int) -> int:
    """Choose how many runs go side by side: ``jobs`` when above 0, else one per core on a CPU and one on a GPU."""
    if jobs:
        return jobs
    return len(os.sched_getaffinity(0)) if torch.device(device).type == "cpu" else 1


def train_missing(
    runs: Sequence[RunConfig],
    work: Path,
    *,
    weights: Mapping[str, str] | None = None,
    device: str = "cpu",
    jobs: int = 0,
    until: float = math.inf,
    show: Callable[[str], object] | None = None,
) -> Iterator[dict[str, Any]]:
    """Train the runs that are not complete, and yield each result as it comes.

    A run is claimed when its training begins, so that several executions, on one machine or on several with one disk, divide the runs;
    this one waits for what the others train, and takes over what they leave undone. On a CPU a run has one thread, however many
    there are side by side: a run's numbers never depend on ``jobs``.

    Args:
        runs: the configurations.
        work: the study's folder; runs go to ``work/runs``, and each process reads the images by ``manifest.of_study``.
        weights: where each architecture's pretrained weights are read from, as ``weights.read_weights`` takes it.
        device: where to train.
        jobs: processes; 0 chooses.
        until: reading of ``time.monotonic`` after which no run begins and no epoch ends: what is not complete by then has a checkpoint, and
            yields nothing. Runs then keep their order on a GPU too, so that what is complete is as balanced as it can be.
        show: is given one line on the epochs of the runs that train, again and again, such as ``tqdm``'s ``set_postfix_str``.

    Raises:
        RuntimeError: a run failed for a reason other than divergence; the others are finished first, all faults are named. Where a
            process was killed it is a ``BrokenProcessPool``, which a sweep tries again; it names the signal, the run, and what to try.
    """
    todo, claims = catalogue.missing(work, runs), work / "runs" / ".claims"
    todo = runs_in_order(todo, device) if until == math.inf else todo
    if not todo:
        LockHolder(claims).others()  # an execution may have been killed after its last run
        return
    faults: list[str] = []
    broken: list[str] = []
    context, processes = watched()
    count = min(jobs_for(device, jobs), len(todo))
    pids = context.RawArray("q", len(todo))  # who trains each run, written by the processes
    numbers = {run_id(run): number for number, run in enumerate(todo)}
    given = (work, dict(weights or {}), device, until)
    with (
        LockHolder(claims) as owner,
        ProcessPoolExecutor(count, mp_context=context, initializer=_start_trainer, initargs=(device, pids, numbers)) as executor,
    ):
        waiting, started = deque(todo), {}
        while waiting or started:
            if time.monotonic() >= until:
                waiting.clear()
            yield from _start_free(waiting, started, count, owner, executor, given)
            for future in _ended(started):
                name = run_id(started.pop(future))
                owner.release(name)
                if isinstance(fault := future.exception(), BrokenProcessPool):
                    broken.append(name)
                elif fault:
                    faults.append(f"{name}: {type(fault).__name__}: {fault}")
                elif result := future.result():  # none where the time was up
                    yield result
            if show:
                show(line(work, started.values()))
        owner.others()  # clears away what killed executions left
    if count := len(faults) + len(broken):
        failed = BrokenProcessPool if broken else RuntimeError
        # Outside of the pool every process has ended, and has its exit code.
        told = (killed(processes, {pids[numbers[name]]: name for name in broken}) if broken else []) + faults
        raise failed(f"{count} of {len(todo)} runs failed; the others are complete. " + "; ".join((told or broken)[:3]))


def watched() -> tuple[SpawnContext, list[SpawnProcess]]:
    """A way to start processes, and the list of those that it started: a pool that is broken has forgotten its own."""
    context, processes = SpawnContext(), []

    def process(*given: Any, **named: Any) -> SpawnProcess:
        processes.append(SpawnProcess(*given, **named))
        return processes[-1]

    context.Process = process
    return context, processes


def killed(processes: Sequence[SpawnProcess], trained: Mapping[int, str]) -> list[str]:
    """How each process died that died by itself, in which run (by its number), and what to try."""
    codes = {process.pid: process.exitcode for process in processes if process.exitcode}
    # The pool ends the processes beside a dead one by SIGTERM.
    first = {pid: code for pid, code in codes.items() if code != -signal.SIGTERM} or codes
    return [(f"{trained[pid]}: its process " if pid in trained else "a process ") + _end(code) for pid, code in first.items()]


def _end(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    advice = _TO_TRY.get(-code, "")
    return f"was killed by {name}" + (f" ({advice})" if advice else "")


def runs_in_order(runs: Sequence[RunConfig], device: str) -> list[RunConfig]:
    """Put runs that share a recorded or compiled step next to each other on a GPU, so that it is made once; else keep their order."""
    if torch.device(device).type == "cpu":
        return list(runs)
    return sorted(runs, key=lambda run: str(shape_of(run, 0, 0, device)))


def _start_free(
    waiting: deque[RunConfig], started: dict[Future, RunConfig], count: int, owner: LockHolder, executor: ProcessPoolExecutor, given: tuple
) -> Iterator[dict[str, Any]]:
    """Start waiting runs that nobody trains, as many as there is room for; yield the results of those that others completed."""
    for _ in range(len(waiting)):
        if len(started) >= count:
            return
        run, work = waiting.popleft(), given[0]
        claimed = owner.claim(run_id(run))
        if catalogue.is_complete(work, run):
            if claimed:
                owner.release(run_id(run))
            yield read_json(catalogue.run_folder(work, run) / "result.json")
        elif claimed:
            started[_submit(executor, run, given)] = run
        else:
            waiting.append(run)


def _submit(executor: ProcessPoolExecutor, run: RunConfig, given: tuple) -> Future:
    try:
        return executor.submit(_train_noted, run, *given)
    except BrokenProcessPool as fault:  # a process was killed, and none can be started any more
        failed: Future = Future()
        failed.set_exception(fault)
        return failed


def _ended(started: Mapping[Future, RunConfig]) -> set[Future]:
    if not started:
        time.sleep(_TICK)  # all that is left is with others
        return set()
    return wait(started, timeout=_TICK, return_when=FIRST_COMPLETED).done


def start_worker(device: str) -> None:
    """Prepare a worker: one thread on a CPU, and an end when the parent is gone, however it went."""
    if torch.device(device).type == "cpu":
        torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def _start_trainer(device: str, pids: Any, numbers: dict[str, int]) -> None:
    start_worker(device)
    _NOTES.update(pids=pids, numbers=numbers)


def _train_noted(run: RunConfig, *given: Any) -> dict[str, Any] | None:
    _NOTES["pids"][_NOTES["numbers"][run_id(run)]] = os.getpid()
    return _train(run, *given)


def _train(run: RunConfig, work: Path, weights: dict[str, str], device: str, until: float = math.inf) -> dict[str, Any] | None:
    # Imported in the worker, where they are needed; the parent only hands out work.
    from helpers.networks.weights import read_weights
    from helpers.training.run import train_run

    data = images_in_worker(work)
    pretrained = read_weights(weights[run.architecture], run.architecture) if run.pretrained else None
    seconds = 0.0 if torch.device(device).type == "cpu" else _CHECKPOINT_SECONDS
    folder = catalogue.run_folder(work, run)
    return train_run(run, data, folder, pretrained=pretrained, device=device, checkpoint_seconds=seconds, until=until)


@lru_cache(maxsize=1)
def images_in_worker(work: Path) -> Any:
    """Images of a study, loaded once for all that a worker does: to find them in the cache, the files of the source are listed."""
    from helpers.data import manifest

    return manifest.of_study(work)
