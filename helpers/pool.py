"""Several training runs side by side on one machine, each in a process of its own with one thread."""

import multiprocessing
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from helpers import model_set
from helpers.grid import RunConfig, run_id


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
) -> Iterator[dict[str, Any]]:
    """Train the runs that are not complete, and yield each result as it comes.

    On a CPU a run has one thread, however many there are side by side: a run's numbers never depend on ``jobs``.

    Args:
        runs: the configurations.
        work: the study's folder; runs go to ``work/runs``.
        data_arguments: what ``datasets.load_study_data`` takes; each process reads the cache.
        weights: where each architecture's pretrained weights are read from, as ``models.read_weights`` takes it.
        device: where to train.
        jobs: processes; 0 chooses.

    Raises:
        RuntimeError: a run failed for a reason other than divergence; the others are finished first, all faults are named.
    """
    todo = model_set.missing(work, runs)
    if not todo:
        return
    faults = []
    context = multiprocessing.get_context("spawn")
    count = min(jobs_for(device, jobs), len(todo))
    with ProcessPoolExecutor(count, mp_context=context, initializer=start_worker, initargs=(device,)) as executor:
        started = {executor.submit(_train, run, work, dict(data_arguments), dict(weights or {}), device): run for run in todo}
        for future in as_completed(started):
            if fault := future.exception():
                faults.append(f"{run_id(started[future])}: {type(fault).__name__}: {fault}")
            else:
                yield future.result()
    if faults:
        raise RuntimeError(f"{len(faults)} of {len(todo)} runs failed; the others are complete. " + "; ".join(faults[:3]))


def start_worker(device: str) -> None:
    """Prepare a worker: one thread on a CPU, and an end when the parent is gone, however it went."""
    if torch.device(device).type == "cpu":
        torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def _train(run: RunConfig, work: Path, data_arguments: dict[str, Any], weights: dict[str, str], device: str) -> dict[str, Any]:
    # Imported in the worker, where they are needed; the parent only hands out work.
    from helpers import datasets, models, training

    data = datasets.load_study_data(**data_arguments)
    pretrained = models.read_weights(weights[run.architecture], run.architecture) if run.pretrained else None
    return training.train_run(run, data, model_set.run_folder(work, run), pretrained=pretrained, device=device)
