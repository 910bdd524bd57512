"""Work on many items in several processes: one thread each on a CPU, or on a GPU."""

import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from filelock import FileLock, Timeout
from joblib import wrap_non_picklable_objects

from helpers.data.images import StudyData, images_of_study
from helpers.networks.devices import why_refused
from helpers.networks.faults import breaks_process
from helpers.networks.weights import read_weights
from helpers.training import catalogue
from helpers.training.config import RunConfig
from helpers.training.run import history_so_far, initial_network, train_run

_TICK = 1.0  # seconds between two calls of ``show``
# Of a worker: the function that loads, once, what all its items need.
_SHARED: dict[str, Callable[[], Any]] = {}


def choose_device(device: str) -> str:
    """Choose the device that everything is computed on.

    Args:
        device: "auto", "cpu", "cuda", or a GPU such as "cuda:1".

    Returns:
        For "auto" "cuda" where there is a GPU and "cpu" where there is none, else the
        device itself.

    Raises:
        ValueError: for a GPU that is not there.
    """
    compute_float32_exactly()
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    reason = why_refused(device)
    if reason:
        raise ValueError(reason)
    return device


def compute_float32_exactly() -> None:
    """Let a GPU compute float32 in float32, in this process from now on.

    By default cuDNN rounds the inputs of convolutions to ten bits (TF32). Then two
    forms of one network, such as the one with batch norm folded into convolutions,
    differ by more than rounding, and measures that compare them are refused for some
    networks and not for others.
    """
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


class _Outcome(NamedTuple):
    """An item with its result, or the fault that it ended with."""

    item: Any
    result: Any = None
    fault: BaseException | None = None


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
    on_cpu = torch.device(device).type == "cpu"
    cores = len(os.sched_getaffinity(0)) if on_cpu else 1
    processes = min(jobs or cores, len(items))
    threads = torch.get_num_threads()
    if processes <= 1:
        outcomes = _in_this_process(one, items, shared, 1 if on_cpu else threads)
    else:
        threads = 1 if on_cpu else max(1, threads // processes)
        start = partial(_start_worker, threads, shared)
        outcomes = _in_processes(one, items, processes, start, show)
    faults = []
    for outcome in outcomes:
        if outcome.fault is None:
            yield outcome.item, outcome.result
        elif breaks_process(outcome.fault):
            outcomes.close()
            raise RuntimeError(_end_of_gpu(outcome)) from outcome.fault
        else:
            faults.append(_named(outcome))
    if faults:
        raise RuntimeError(
            f"{len(faults)} of {len(items)} failed; the others are complete. "
            + "; ".join(faults[:3])
        )


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Let torch compute with a number of threads inside of a ``with`` block.

    Gradients are sums, and threads split sums: trained by one thread, a network has
    the same weights whatever the number of cores.

    Args:
        number: of threads of operations on a CPU.
    """
    usual_number = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(usual_number)


def _in_this_process(
    one: Callable[[Any, Any], Any],
    items: Sequence[Any],
    shared: Callable[[], Any],
    threads: int,
) -> Iterator[_Outcome]:
    """Work on one item after the other, each with a number of threads."""
    loaded = shared() if items else None
    for item in items:
        try:
            with torch_threads(threads):
                outcome = _Outcome(item, one(item, loaded))
        except Exception as fault:
            # So that no tensors of what failed stay in memory.
            traceback.clear_frames(fault.__traceback__)
            outcome = _Outcome(item, fault=fault)
        yield outcome


def _in_processes(
    one: Callable[[Any, Any], Any],
    items: Sequence[Any],
    processes: int,
    start: Callable[[], None],
    show: Callable[[], object],
) -> Iterator[_Outcome]:
    """Work on items in other processes; closed early, what has not begun is dropped."""
    by_value = wrap_non_picklable_objects(one, keep_wrapper=False)
    executor = ProcessPoolExecutor(
        processes, mp_context=multiprocessing.get_context("spawn"), initializer=start
    )
    with executor:
        running: dict[Future, Any] = {
            executor.submit(_with_shared, by_value, item): item for item in items
        }
        try:
            while running:
                done = wait(running, timeout=_TICK, return_when=FIRST_COMPLETED).done
                for future in done:
                    item = running.pop(future)
                    fault = future.exception()
                    if isinstance(fault, BrokenProcessPool):
                        raise RuntimeError(
                            f"a process died while {len(running) + 1} of {len(items)} "
                            "were left, usually for lack of memory: lower jobs or the "
                            "batch size and run again; what is complete is kept"
                        ) from fault
                    if fault is None:
                        yield _Outcome(item, future.result())
                    else:
                        yield _Outcome(item, fault=fault)
                show()
        finally:
            executor.shutdown(wait=False, cancel_futures=True)


def _named(outcome: _Outcome) -> str:
    """Name an item with the kind and the message of its fault."""
    return f"{outcome.item}: {type(outcome.fault).__name__}: {outcome.fault}"


def _end_of_gpu(outcome: _Outcome) -> str:
    """Say that nothing more can be computed in a process whose GPU failed."""
    return (
        f"{_named(outcome)}\nAfter this error CUDA computes nothing more in this "
        "process, so the rest was not tried: look at the GPU (nvidia-smi) and run "
        "again; what is complete is kept"
    )


def _start_worker(threads: int, shared: Callable[[], Any]) -> None:
    """Prepare a process, which ends when its parent is gone, however it went."""
    compute_float32_exactly()
    torch.set_num_threads(threads)
    parent = multiprocessing.parent_process()

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    _SHARED["load"] = cache(shared)


def _with_shared(one: Callable[[Any, Any], Any], item: Any) -> Any:
    return one(item, _SHARED["load"]())


@dataclass(frozen=True)
class Hardware:
    """By what runs are trained.

    Attributes:
        device: "cpu" or a GPU.
        jobs: processes, see ``side_by_side``.
        compiled: see ``train_run``.
    """

    device: str = "cpu"
    jobs: int = 0
    compiled: bool = False


def train_missing(
    runs: Sequence[RunConfig],
    work: Path,
    hardware: Hardware,
    *,
    weights: Mapping[str, str] | None = None,
    show: Callable[[str], object] = lambda line: None,
) -> Iterator[dict[str, Any]]:
    """Train the runs of a study that are not complete.

    Several executions, on one machine or on several with one disk, may train one list:
    a run is locked while it trains, and those that others train come last, when they
    are complete or were left undone.

    Args:
        runs: of the study.
        work: its folder of work.
        hardware: by which they are trained.
        weights: sources of pretrained weights by architecture, see ``read_weights``.
        show: is called with a line on the runs that train now.

    Yields:
        The result of each run as it comes.

    Raises:
        RuntimeError: where runs failed, see ``side_by_side``.
    """
    train = partial(_train, work=work, weights=dict(weights or {}), hardware=hardware)
    missing = catalogue.missing(work, runs)
    trained_by_others = []

    def results(wait: float, todo: Sequence[RunConfig]) -> Iterator[tuple[Any, Any]]:
        return side_by_side(
            partial(train, wait=wait),
            todo,
            shared=partial(images_of_study, work),
            device=hardware.device,
            jobs=hardware.jobs,
            show=lambda: show(_line(work, runs)),
        )

    for run, result in results(0, missing):
        if result is None:
            trained_by_others.append(run)
        else:
            yield result
    for _, result in results(-1, trained_by_others):
        yield result


def _train(
    run: RunConfig,
    data: StudyData,
    *,
    wait: float,
    work: Path,
    weights: Mapping[str, str],
    hardware: Hardware,
) -> dict[str, Any] | None:
    """Result of one run, None where another process trains it.

    Args:
        run: to be trained.
        data: images of the study.
        wait: seconds to wait for another process; below 0 as long as it takes.
        work: folder of work of the study.
        weights: sources of pretrained weights by architecture.
        hardware: by which it is trained.
    """
    folder = catalogue.run_folder(work, run)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=wait):
            pretrained = None
            if run.pretrained:
                pretrained = read_weights(weights[run.architecture], run.architecture)
            return train_run(
                run,
                data,
                folder,
                network=initial_network(run, len(data.classes), pretrained),
                device=hardware.device,
                compiled=hardware.compiled,
            )
    except Timeout:
        return None


def _line(work: Path, runs: Sequence[RunConfig]) -> str:
    """One line on the runs that train now; "" where none has an epoch yet.

    Such as "resnet18 epoch 5 of 16, loss 0.43".
    """
    words = []
    for run in runs:
        history = history_so_far(catalogue.run_folder(work, run))
        if history:
            words.append(
                f"{run.architecture} epoch {len(history)} of {run.max_epochs}, "
                f"loss {history[-1]['train_loss']:.2f}"
            )
    return "; ".join(words)
