"""Work on many things side by side: one thread each on a CPU, shares of all on a GPU."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from joblib import wrap_non_picklable_objects

from helpers.data.images import StudyData, of_study
from helpers.networks.devices import why_refused
from helpers.networks.faults import breaks_process
from helpers.networks.weights import read_weights
from helpers.training import catalogue
from helpers.training.config import RunConfig
from helpers.training.run import history_so_far, train_run

_TICK = 1.0  # seconds between two looks at what trains
_SHARED: dict[
    str, Callable[[], Any]
] = {}  # of a worker: what loads, once, what all its items need


def choose_device(device: str) -> str:
    """Turn "auto" into "cuda" where there is a GPU and "cpu" where there is none; refuse a GPU that is not there."""
    compute_float32_exactly()
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if fault := why_refused(device):
        raise ValueError(fault)
    return device


def compute_float32_exactly() -> None:
    """Let a GPU compute what is called float32 in float32, in this process from now on.

    By default cuDNN rounds the inputs of convolutions to ten bits (TF32). Then two
    forms of one network, such as the one with batch norm folded into convolutions,
    differ by more than rounding, and measures that compare them are refused for some
    networks and not for others.
    """
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


def side_by_side(
    one: Callable[[Any, Any], Any],
    items: Sequence[Any],
    *,
    shared: Callable[[], Any],
    device: str = "cpu",
    jobs: int = 0,
    show: Callable[[], object] = lambda: None,
) -> Iterator[tuple[Any, Any]]:
    """Work on items in several processes at once.

    Args:
        one: is called with an item and what ``shared`` gives. Other processes get it
            by value: it may be, or hold, a function of a notebook cell.
        items: to be worked on.
        shared: loads what all items need, once in each process; a function of a module
            or a partial of one.
        device: "cpu", where every item has one thread, so that no number depends on
            ``jobs``, or a GPU.
        jobs: number of processes; 0 takes one per core on a CPU and one on a GPU, and 1
            does everything in this process.
        show: is called between two looks at what is done.

    Yields:
        Each item with its result, in the order in which they are done.

    Raises:
        RuntimeError: names three of the items that failed, when all others are done.
            Where a GPU fails so that CUDA computes nothing more in its process, at
            once.
    """
    on_cpu, faults = torch.device(device).type == "cpu", []
    count = min(jobs or (len(os.sched_getaffinity(0)) if on_cpu else 1), len(items))
    if count <= 1:
        loaded, threads = shared() if items else None, torch.get_num_threads()
        for item in items:
            torch.set_num_threads(1 if on_cpu else threads)
            try:
                result = one(item, loaded)
            except Exception as fault:
                if breaks_process(fault):
                    raise RuntimeError(_end_of_gpu(item, fault)) from fault
                faults.append(fault_of(item, fault))
                continue
            finally:
                torch.set_num_threads(threads)
            yield item, result
        raise_faults(faults, len(items))
        return
    context = multiprocessing.get_context("spawn")
    by_value = wrap_non_picklable_objects(one, keep_wrapper=False)
    with ProcessPoolExecutor(
        count,
        mp_context=context,
        initializer=_start_worker,
        initargs=(1 if on_cpu else max(1, torch.get_num_threads() // count), shared),
    ) as executor:
        running: dict[Future, Any] = {
            executor.submit(_with_shared, by_value, item): item for item in items
        }
        while running:
            done = wait(running, timeout=_TICK, return_when=FIRST_COMPLETED).done
            for future in done:
                item, fault = running.pop(future), future.exception()
                if isinstance(fault, BrokenProcessPool):
                    told = f"a process died while {len(running) + 1} of {len(items)} were left, mostly for want of memory"
                    raise RuntimeError(
                        f"{told}: lower jobs or the batch size and run again; what is complete is kept"
                    ) from fault
                if fault and breaks_process(fault):
                    executor.shutdown(cancel_futures=True)
                    raise RuntimeError(_end_of_gpu(item, fault)) from fault
                if fault:
                    faults.append(fault_of(item, fault))
                else:
                    yield item, future.result()
            show()
    raise_faults(faults, len(items))


def fault_of(item: Any, fault: BaseException) -> str:
    """Name an item with the kind and the message of its fault."""
    return f"{item}: {type(fault).__name__}: {fault}"


def _end_of_gpu(item: Any, fault: BaseException) -> str:
    """Say that nothing more can be computed in a process whose GPU failed."""
    return (
        f"{fault_of(item, fault)}\nAfter this error CUDA computes nothing more in this "
        f"process, so the rest was not tried: look at the GPU (nvidia-smi) and run again; "
        f"what is complete is kept"
    )


def raise_faults(faults: Sequence[str], count: int) -> None:
    """Raise a RuntimeError that names three of the items that failed, if any did."""
    if faults:
        raise RuntimeError(
            f"{len(faults)} of {count} failed; the others are complete. "
            + "; ".join(faults[:3])
        )


def _start_worker(threads: int, shared: Callable[[], Any]) -> None:
    """Prepare a process: its number of threads, and an end when its parent is gone, however it went."""
    compute_float32_exactly()
    torch.set_num_threads(threads)
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    _SHARED["load"] = cache(shared)


def _with_shared(one: Callable[[Any, Any], Any], item: Any) -> Any:
    return one(item, _SHARED["load"]())


def train_missing(
    runs: Sequence[RunConfig],
    work: Path,
    *,
    weights: Mapping[str, str] | None = None,
    device: str = "cpu",
    jobs: int = 0,
    compiled: bool = False,
    show: Callable[[str], object] = lambda line: None,
) -> Iterator[dict[str, Any]]:
    """Train the runs that are not complete below ``work/runs``, and yield the result of each as it comes.

    Several executions, on one machine or on several with one disk, may train one list: a run is locked while it trains, and what others
    hold comes last, when it is complete or was left undone. ``weights``: what ``read_weights`` reads, by architecture.
    """
    todo = catalogue.missing(work, runs)
    one = partial(
        _train, work=work, weights=dict(weights or {}), device=device, compiled=compiled
    )
    options = {
        "shared": partial(of_study, work),
        "device": device,
        "jobs": jobs,
        "show": lambda: show(_line(work, runs)),
    }
    held = []
    for run, result in side_by_side(partial(one, wait=0), todo, **options):
        if result is None:
            held.append(run)
        else:
            yield result
    yield from (
        result for _, result in side_by_side(partial(one, wait=-1), held, **options)
    )


def _train(
    run: RunConfig,
    data: StudyData,
    *,
    wait: float,
    work: Path,
    weights: Mapping[str, str],
    device: str,
    compiled: bool,
) -> dict[str, Any] | None:
    """Result of one run; None where another process has it for longer than we ``wait`` (seconds; below 0 as long as it takes)."""
    folder = catalogue.run_folder(work, run)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=wait):
            pretrained = (
                read_weights(weights[run.architecture], run.architecture)
                if run.pretrained
                else None
            )
            return train_run(
                run,
                data,
                folder,
                pretrained=pretrained,
                device=device,
                compiled=compiled,
            )
    except Timeout:
        return None


def _line(work: Path, runs: Sequence[RunConfig]) -> str:
    """One line over the runs that train now, such as "resnet18 epoch 5 of 16, loss 0.43"; "" when none has an epoch yet."""
    found = [(run, history_so_far(catalogue.run_folder(work, run))) for run in runs]
    line = "{0.architecture} epoch {1} of {0.max_epochs}, loss {2:.2f}"
    return "; ".join(
        line.format(run, len(rows), rows[-1]["train_loss"])
        for run, rows in found
        if rows
    )
