"""Several training runs side by side on one machine, each in a process of its own with one thread; several machines share them."""

import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from helpers import epochs, model_set
from helpers.captured_step import shape_of
from helpers.claims import Owner
from helpers.files import read_json
from helpers.grid import RunConfig, run_id

_TICK = 1.0  # seconds between two looks at runs that others train
_CHECKPOINT_SECONDS = 30.0  # between two checkpoints on a GPU, where writing one may take longer than an epoch


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
    data_arguments: Mapping[str, Any],
    *,
    weights: Mapping[str, str] | None = None,
    device: str = "cpu",
    jobs: int = 0,
    show: Callable[[str], object] | None = None,
) -> Iterator[dict[str, Any]]:
    """Train the runs that are not complete, and yield each result as it comes.

    A run is claimed when its training begins, so that several executions, on one machine or on several with one disk, divide the runs;
    this one waits for what the others train, and takes over what they leave undone. On a CPU a run has one thread, however many
    there are side by side: a run's numbers never depend on ``jobs``.

    Args:
        runs: the configurations.
        work: the study's folder; runs go to ``work/runs``.
        data_arguments: what ``datasets.load_study_data`` takes; each process reads the cache.
        weights: where each architecture's pretrained weights are read from, as ``models.read_weights`` takes it.
        device: where to train.
        jobs: processes; 0 chooses.
        show: is given one line on the epochs of the runs that train, again and again, such as ``tqdm``'s ``set_postfix_str``.

    Raises:
        RuntimeError: a run failed for a reason other than divergence; the others are finished first, all faults are named. Where a
            process was killed it is a ``BrokenProcessPool``, which a sweep tries again.
    """
    todo, claims = in_order(model_set.missing(work, runs), device), work / "runs" / ".claims"
    if not todo:
        Owner(claims).others()  # an execution may have been killed after its last run
        return
    faults: list[str] = []
    failed: type[RuntimeError] = RuntimeError
    context = multiprocessing.get_context("spawn")
    count = min(jobs_for(device, jobs), len(todo))
    given = (work, dict(data_arguments), dict(weights or {}), device)
    with (
        Owner(claims) as owner,
        ProcessPoolExecutor(count, mp_context=context, initializer=start_worker, initargs=(device,)) as executor,
    ):
        waiting, started = deque(todo), {}
        while waiting or started:
            yield from _start_free(waiting, started, count, owner, executor, given)
            for future in _ended(started):
                run = started.pop(future)
                owner.release(run_id(run))
                if fault := future.exception():
                    faults.append(f"{run_id(run)}: {type(fault).__name__}: {fault}")
                    failed = BrokenProcessPool if isinstance(fault, BrokenProcessPool) else failed
                else:
                    yield future.result()
            if show:
                show(epochs.line(work, started.values()))
        owner.others()  # clears away what killed executions left
    if faults:
        raise failed(f"{len(faults)} of {len(todo)} runs failed; the others are complete. " + "; ".join(faults[:3]))


def in_order(runs: Sequence[RunConfig], device: str) -> list[RunConfig]:
    """Put runs that share a recorded training step next to each other on a GPU, so that it is recorded once; else keep their order."""
    if torch.device(device).type == "cpu":
        return list(runs)
    return sorted(runs, key=lambda run: str(shape_of(run, 0, 0, device)))


def _start_free(
    waiting: deque[RunConfig], started: dict[Future, RunConfig], count: int, owner: Owner, executor: ProcessPoolExecutor, given: tuple
) -> Iterator[dict[str, Any]]:
    """Start waiting runs that nobody trains, as many as there is room for; yield the results of those that others completed."""
    for _ in range(len(waiting)):
        if len(started) >= count:
            return
        run, work = waiting.popleft(), given[0]
        claimed = owner.claim(run_id(run))
        if model_set.is_complete(work, run):
            if claimed:
                owner.release(run_id(run))
            yield read_json(model_set.run_folder(work, run) / "result.json")
        elif claimed:
            started[_submit(executor, run, given)] = run
        else:
            waiting.append(run)


def _submit(executor: ProcessPoolExecutor, run: RunConfig, given: tuple) -> Future:
    try:
        return executor.submit(_train, run, *given)
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


def _train(run: RunConfig, work: Path, data_arguments: dict[str, Any], weights: dict[str, str], device: str) -> dict[str, Any]:
    # Imported in the worker, where they are needed; the parent only hands out work.
    from helpers import models, training

    data = _images(*((name, tuple(value) if isinstance(value, list) else value) for name, value in data_arguments.items()))
    pretrained = models.read_weights(weights[run.architecture], run.architecture) if run.pretrained else None
    seconds = 0.0 if torch.device(device).type == "cpu" else _CHECKPOINT_SECONDS
    return training.train_run(run, data, model_set.run_folder(work, run), pretrained=pretrained, device=device, checkpoint_seconds=seconds)


@lru_cache(maxsize=1)
def _images(*arguments: tuple[str, Any]) -> Any:
    """Load the images of a study once for all runs of a worker: to find them in the cache, the files of the source are listed."""
    from helpers import datasets

    return datasets.load_study_data(**dict(arguments))
