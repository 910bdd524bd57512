"""Process many items side by side: processes of one thread on a CPU, or on a GPU."""

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

_SHOW_SECONDS = 1.0  # between two calls of ``show``
# In a worker process: under "load" a function that returns what all items need, and
# loads it at its first call.
_SHARED: dict[str, Callable[[], Any]] = {}


def choose_device(device: str) -> str:
    """Choose the device to compute on, and check that it can be used.

    Args:
        device: "auto", "cpu", "cuda", or a GPU such as "cuda:1".

    Returns:
        For "auto", "cuda" if there is a GPU, else "cpu"; otherwise the device itself.

    Raises:
        ValueError: if the GPU cannot be used.
    """
    compute_float32_exactly()
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    reason = why_refused(device)
    if reason:
        raise ValueError(reason)
    return device


def compute_float32_exactly() -> None:
    """Turn TF32 off in this process: a GPU then computes float32 in full precision.

    By default cuDNN rounds the inputs of convolutions to ten bits (TF32). Two equal
    forms of a network, such as with batch norm and with batch norm folded into
    convolutions, would then differ by more than the rounding of float32. Some measures
    compare the two forms and refuse networks in which they differ.
    """
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


class _Outcome(NamedTuple):
    """An item with its result, or with the exception that it raised."""

    item: Any
    result: Any = None
    fault: BaseException | None = None


def side_by_side(
    process: Callable[[Any, Any], Any],
    items: Sequence[Any],
    *,
    shared: Callable[[], Any],
    device: str = "cpu",
    jobs: int = 0,
    show: Callable[[], object] = lambda: None,
) -> Iterator[tuple[Any, Any]]:
    """Process items in several processes at once.

    Args:
        process: is called with an item and the result of ``shared``. It is sent to
            other processes by value, so it may be a function of a notebook cell.
        items: to be processed.
        shared: loads what all items need, once in each process; a function of a module,
            or a partial of one.
        device: "cpu" or a GPU. On a CPU an item has one thread, so that results do not
            depend on ``jobs``.
        jobs: number of processes; 0 takes one per core on a CPU and one on a GPU. With
            1 everything is done in this process.
        show: is called about once a second, to show progress.

    Yields:
        Each item with its result, in the order in which they are done.

    Raises:
        RuntimeError: if items failed; it names three of them, after all others are
            done. At once if a GPU failed such that CUDA cannot go on in its process.
    """
    is_cpu = torch.device(device).type == "cpu"
    cores = len(os.sched_getaffinity(0)) if is_cpu else 1
    processes = min(jobs or cores, len(items))
    threads = 1 if is_cpu else torch.get_num_threads()
    if processes <= 1:
        outcomes = _in_this_process(process, items, shared, threads)
    else:
        start = partial(_start_worker, max(1, threads // processes), shared)
        outcomes = _in_processes(process, items, processes, start, show)
    faults = []
    for outcome in outcomes:
        fault = outcome.fault
        if fault is None:
            yield outcome.item, outcome.result
            continue
        words = f"{outcome.item}: {type(fault).__name__}: {fault}"
        if breaks_process(fault):
            outcomes.close()
            raise RuntimeError(
                f"{words}\nAfter this error CUDA computes nothing more in this "
                "process, so the rest was not tried: look at the GPU (nvidia-smi) and "
                "run again; what is complete is kept"
            ) from fault
        faults.append(words)
    if faults:
        raise RuntimeError(
            f"{len(faults)} of {len(items)} failed; the others are complete. "
            + "; ".join(faults[:3])
        )


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Let torch compute with a number of threads inside of a ``with`` block.

    Threads split sums, and so change their rounding. With one thread a network gets
    the same weights on machines with any number of cores.

    Args:
        number: of threads for operations on a CPU.
    """
    usual_number = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(usual_number)


def _in_this_process(
    process: Callable[[Any, Any], Any],
    items: Sequence[Any],
    shared: Callable[[], Any],
    threads: int,
) -> Iterator[_Outcome]:
    """Process one item after the other in this process."""
    loaded = shared() if items else None
    for item in items:
        try:
            with torch_threads(threads):
                outcome = _Outcome(item, process(item, loaded))
        except Exception as fault:
            # So that tensors in the frames of the failed call are released.
            traceback.clear_frames(fault.__traceback__)
            outcome = _Outcome(item, fault=fault)
        yield outcome


def _in_processes(
    process: Callable[[Any, Any], Any],
    items: Sequence[Any],
    processes: int,
    start: Callable[[], None],
    show: Callable[[], object],
) -> Iterator[_Outcome]:
    """Process items in other processes.

    If the generator is closed early, items that have not begun are dropped.
    """
    by_value = wrap_non_picklable_objects(process, keep_wrapper=False)
    executor = ProcessPoolExecutor(
        processes, mp_context=multiprocessing.get_context("spawn"), initializer=start
    )
    with executor:
        running: dict[Future, Any] = {
            executor.submit(_with_shared, by_value, item): item for item in items
        }
        try:
            while running:
                finished, _ = wait(
                    running, timeout=_SHOW_SECONDS, return_when=FIRST_COMPLETED
                )
                for future in finished:
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


def _start_worker(threads: int, shared: Callable[[], Any]) -> None:
    """Prepare a worker process, which ends when its parent ends, even if killed."""
    compute_float32_exactly()
    torch.set_num_threads(threads)
    parent = multiprocessing.parent_process()

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    _SHARED["load"] = cache(shared)


def _with_shared(process: Callable[[Any, Any], Any], item: Any) -> Any:
    """Process an item in a worker process, with what all items need."""
    return process(item, _SHARED["load"]())


@dataclass(frozen=True)
class Hardware:
    """The hardware that trains runs.

    Attributes:
        device: "cpu" or a GPU.
        jobs: number of processes, see ``side_by_side``.
        compiled: whether steps go through ``torch.compile``, see ``train_run``.
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

    Several executions may train the same list at once, on one machine or on several
    that share a disk. A run is locked while it trains. Runs that another execution
    trains come last: this one waits for their results, and trains them itself if the
    other ended without a result.

    Args:
        runs: runs of the study.
        work: its folder of work.
        hardware: device and processes that train them.
        weights: sources of pretrained weights by architecture, see ``read_weights``.
        show: is called with a line on the runs that are training.

    Yields:
        The result of each run, in the order in which they are done.

    Raises:
        RuntimeError: if runs failed, see ``side_by_side``.
    """
    train = partial(_train, work=work, weights=dict(weights or {}), hardware=hardware)
    missing = catalogue.missing(work, runs)
    trained_by_others = []

    def results(
        incomplete: Sequence[RunConfig], wait: float
    ) -> Iterator[tuple[Any, Any]]:
        return side_by_side(
            partial(train, wait=wait),
            incomplete,
            shared=partial(images_of_study, work),
            device=hardware.device,
            jobs=hardware.jobs,
            show=lambda: show(_progress_line(work, runs)),
        )

    for run, result in results(missing, wait=0):
        if result is None:
            trained_by_others.append(run)
        else:
            yield result
    for _, result in results(trained_by_others, wait=-1):  # as long as it takes
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
    """Train one run and return its result; None if another process trains it.

    Args:
        run: to be trained.
        data: images of the study.
        wait: seconds to wait for another process; -1 waits as long as it takes.
        work: folder of work of the study.
        weights: sources of pretrained weights by architecture.
        hardware: device that trains it.
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


def _progress_line(work: Path, runs: Sequence[RunConfig]) -> str:
    """Describe the runs that are training: "resnet18 epoch 5 of 16, loss 0.43".

    "" if none has completed an epoch.
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
