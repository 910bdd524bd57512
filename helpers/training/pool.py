"""Process many items side by side: processes of one thread on a CPU, or on a GPU."""

import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from joblib.externals.loky import ProcessPoolExecutor
from threadpoolctl import threadpool_limits

from helpers.data.images import StudyData, images_of_study
from helpers.networks.devices import why_refused
from helpers.networks.faults import breaks_process
from helpers.networks.weights import read_weights
from helpers.training import catalogue
from helpers.training.config import PLAIN, RunConfig
from helpers.training.run import (
    Batch,
    history_so_far,
    initial_network,
    make_optimizer,
    train_run,
    train_step,
)

_SHOW_SECONDS = 1.0  # between two calls of ``show``
_CONTEXT = 2**30  # bytes on a GPU that a process takes beside its tensors, about
_TIMED_STEPS = 5
# In a worker process: under "load" a function that returns what all items need, and
# loads it at its first call.
_SHARED: dict[str, Callable[[], Any]] = {}
_THREADS_OF_LIBRARIES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
)
# An item with its result, or with the exception that it raised.
_Outcome = tuple[Any, Any, BaseException | None]


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
        shared: loads what all items need, once in each process.
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
        threads = max(1, threads // processes)
        outcomes = _in_processes(process, items, shared, (processes, threads), show)
    faults = []
    for item, result, fault in outcomes:
        if not fault:
            yield item, result
            continue
        words = f"{item}: {type(fault).__name__}: {fault}"
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
    """Compute with a number of threads inside of a ``with`` block: torch and BLAS.

    Threads split sums, and so change their rounding. With one thread a network gets
    the same weights on machines with any number of cores.

    Args:
        number: of threads for operations on a CPU.
    """
    usual_number = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        with threadpool_limits(number, "blas"):
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
                outcome = item, process(item, loaded), None
        except Exception as fault:
            # So that tensors in the frames of the failed call are released.
            traceback.clear_frames(fault.__traceback__)
            outcome = item, None, fault
        yield outcome


def _in_processes(
    process: Callable[[Any, Any], Any],
    items: Sequence[Any],
    shared: Callable[[], Any],
    counts: tuple[int, int],
    show: Callable[[], object],
) -> Iterator[_Outcome]:
    """Process items in other processes; ``counts`` are processes and threads of each.

    If the generator is closed early, items that have not begun are dropped.
    """
    processes, threads = counts
    # Libraries read these when they are loaded; OpenBLAS would take all cores.
    limits = dict.fromkeys(_THREADS_OF_LIBRARIES, str(threads))
    executor = ProcessPoolExecutor(
        processes, initializer=_start_worker, initargs=(threads, shared), env=limits
    )
    running = {executor.submit(_with_shared, process, item): item for item in items}
    try:
        while running:
            finished, _ = wait(running, _SHOW_SECONDS, FIRST_COMPLETED)
            for future in finished:
                item = running.pop(future)
                fault = future.exception()
                if isinstance(fault, BrokenProcessPool):
                    raise RuntimeError(
                        f"a process died while {len(running) + 1} of {len(items)} "
                        "were left, usually for lack of memory: lower jobs or the "
                        "batch size and run again; what is complete is kept"
                    ) from fault
                yield item, None if fault else future.result(), fault
            show()
    finally:
        for future in running:
            future.cancel()
        executor.shutdown()


def _start_worker(threads: int, shared: Callable[[], Any]) -> None:
    """Prepare a worker process, which ends when its parent ends, even if killed."""
    compute_float32_exactly()
    torch.set_num_threads(threads)
    parent = os.getppid()

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(_SHOW_SECONDS)
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
        jobs: number of processes, see ``side_by_side``; 0 lets ``with_jobs`` choose.
        compiled: whether steps go through ``torch.compile``, see ``train_run``.
    """

    device: str = "cpu"
    jobs: int = 0
    compiled: bool = False

    def with_jobs(self, runs: Sequence[RunConfig], work: Path) -> "Hardware":
        """Choose how many of the missing runs train side by side, if ``jobs`` is 0.

        On a GPU a step of the first run is timed, with its batch and with four times
        as many images, see ``jobs_on_gpu``.

        Args:
            runs: runs of the study.
            work: its folder of work.
        """
        missing = catalogue.missing(work, runs)
        jobs = self.jobs or len(os.sched_getaffinity(0))
        device = torch.device(self.device)
        if device.type == "cuda" and not self.jobs and len(missing) > 1:
            size = images_of_study(work).train.images.shape[-1]
            seconds, memory = zip(
                *(_timed_step(missing[0], size, factor, device) for factor in (1, 4)),
                strict=True,
            )
            torch.cuda.empty_cache()
            free = torch.cuda.mem_get_info(device)[0]
            jobs = jobs_on_gpu(seconds, memory[0], free, jobs)
        return replace(self, jobs=max(1, min(jobs, len(missing))))


def jobs_on_gpu(
    seconds: tuple[float, float], memory: int, free: int, cores: int
) -> int:
    """Number of networks that one GPU trains side by side.

    Args:
        seconds: of a step, and of one with four times as many images. If the latter
            takes twice as long or longer, one network fills the card.
        memory: bytes of a network that trains.
        free: bytes that are free on the card.
        cores: of the machine, two of which are left to others.

    Example:
        >>> jobs_on_gpu((0.01, 0.012), 2**30, 70 * 2**30, 16)
        14
        >>> jobs_on_gpu((0.01, 0.04), 2**30, 70 * 2**30, 16)
        1
    """
    if seconds[1] >= 2 * seconds[0]:
        return 1
    return max(1, min(cores - 2, free // (memory + _CONTEXT)))


def _timed_step(
    run: RunConfig, size: int, factor: int, device: torch.device
) -> tuple[float, int]:
    """Seconds of a training step on random images, and bytes that it takes.

    Args:
        run: whose network and batch it has, from scratch and unguided.
        size: side of the images.
        factor: on the batch.
        device: a GPU.
    """
    plain = replace(run, pretrained=False, frozen_stages=0, looking=PLAIN)
    network = initial_network(plain, 2).to(device, memory_format=torch.channels_last)
    optimizer = make_optimizer(network, plain, device)
    count = factor * run.batch_size
    images = torch.randint(256, (count, 3, size, size), dtype=torch.uint8).to(device)
    labels = torch.zeros(count, dtype=torch.int64, device=device)
    batch = Batch(torch.arange(count, device=device), labels)
    seconds = []
    for _ in range(_TIMED_STEPS):
        torch.cuda.synchronize(device)
        started = time.perf_counter()
        train_step(network, optimizer, images, batch, plain)
        torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - started)
    return min(seconds), torch.cuda.max_memory_allocated(device)


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
