"""Process many items side by side: processes of one thread on a CPU, or on a GPU."""

import ctypes
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from filelock import FileLock
from joblib import Parallel, delayed, parallel_config
from threadpoolctl import threadpool_limits
from torch import nn
from tqdm.auto import tqdm

from helpers.data.images import StudyData, images_of_study
from helpers.files import folder_of_run
from helpers.networks.weights import read_state
from helpers.training.catalogue import missing, start_path
from helpers.training.config import RunConfig
from helpers.training.run import initial_network, train_run

_CONTEXT = 2**30  # bytes on a GPU that a process takes beside its tensors, about
_IDLE = 60  # seconds for which idle processes wait for a further call
_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>
_SHARED: dict[str, Any] = {}  # what the items of a call share, by call
_Process = Callable[[Any, Any], Any]  # of an item and what all items need
_Example = tuple[nn.Module, tuple[int, ...]]  # a network and the shape of its batch


def choose_device(device: str) -> str:
    """Choose the device to compute on, and check that it can be used.

    Args:
        device: "auto", "cpu", "cuda", or a GPU such as "cuda:1".

    Returns:
        For "auto", "cuda" if there is a GPU, else "cpu"; otherwise the device itself.

    Raises:
        ValueError: if the device cannot be used.
    """
    compute_float32_exactly()
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as fault:  # the latter: torch without CUDA
        raise ValueError(
            f"device {device!r} cannot be used here ({fault}); set device to auto or "
            "cpu"
        ) from fault
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
    process: _Process,
    items: Sequence[Any],
    *,
    shared: Callable[[], Any],
    device: str = "cpu",
    jobs: int = 0,
) -> Iterator[tuple[Any, Any]]:
    """Process items in several processes at once.

    Args:
        process: is called with an item and the result of ``shared``. It is sent to
            other processes by value, so it may be a function of a notebook cell.
        items: to be processed.
        shared: loads what all items need, once in each process.
        device: "cpu" or a GPU. On a CPU an item has one thread, so that results do not
            depend on ``jobs``: threads split sums, and so change their rounding.
        jobs: number of processes; 0 takes one per core on a CPU and one on a GPU, see
            ``jobs_on`` for more. With 1 everything is done in this process.

    Yields:
        Each item with its result, in the order in which they are done.

    Raises:
        RuntimeError: if items failed; it names three of them, after all others are
            done. At once if a process died.
    """
    is_cpu = torch.device(device).type == "cpu"
    cores = len(os.sched_getaffinity(0)) if is_cpu else 1
    processes = max(1, min(jobs or cores, len(items)))
    threads = 1 if is_cpu else None  # None: as many as cores allow
    # Libraries that a process loads later have as few threads, too.
    start = {"inner_max_num_threads": threads, "initializer": _start_worker}
    with parallel_config("loky", idle_worker_timeout=_IDLE, **start):
        parallel = Parallel(processes, return_as="generator_unordered")
    # The same processes serve later calls, for which they load anew.
    load = partial(_loaded, uuid4().hex, shared)
    attempt = partial(_attempt, process, threads, load)
    attempts = parallel(delayed(attempt)(item) for item in items)
    faults = []
    for item, result, fault in attempts:
        if fault:
            faults.append(f"{item}: {fault}")
        else:
            yield item, result
    _SHARED.clear()
    if faults:
        raise RuntimeError(
            f"{len(faults)} of {len(items)} failed; the others are complete. "
            + "; ".join(faults[:3])
        )


def _attempt(
    process: _Process, threads: int | None, load: Callable[[], Any], item: Any
) -> tuple[Any, Any, str]:
    """An item, its result, and "" or why there is none."""
    try:
        with threadpool_limits(threads):
            return item, process(item, load()), ""
    except Exception as fault:
        return item, None, f"{type(fault).__name__}: {fault}"
    finally:
        torch.cuda.empty_cache()  # for other processes; it does nothing on a CPU


def _loaded(call: str, shared: Callable[[], Any]) -> Any:
    """What the items of a call share, loaded once in each process."""
    if call not in _SHARED:
        _SHARED.clear()
        _SHARED[call] = shared()
    return _SHARED[call]


def _start_worker() -> None:
    """Prepare a worker process, which Linux ends with its parent, even if killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    compute_float32_exactly()


def jobs_on(device: str, jobs: int, example: Callable[[], _Example]) -> int:
    """Number of networks that are computed side by side.

    On a GPU with ``jobs`` 0 a pass forth and back is timed, of a batch and of one with
    four times as many images. If the latter takes twice as long or does not fit, one
    network fills the card. If not, it takes as many as memory allows and cores less
    two.

    Args:
        device: "cpu" or a GPU.
        jobs: as asked for; 0 leaves the choice.
        example: makes one of the networks, and the shape of its batch, (B, 3, S, S).
    """
    cores = len(os.sched_getaffinity(0))
    if jobs or torch.device(device).type == "cpu":
        return jobs or cores
    network, shape = example()
    network = network.to(device)
    images = torch.zeros(shape, device=device)
    try:
        seconds = _seconds_of_pass(network, images)
        if _seconds_of_pass(network, images.repeat(4, 1, 1, 1)) >= 2 * seconds:
            return 1
    except torch.OutOfMemoryError:
        return 1
    memory = torch.cuda.max_memory_allocated(device) + _CONTEXT
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(cores - 2, free // memory))


def _seconds_of_pass(network: nn.Module, images: torch.Tensor) -> float:
    """Seconds of a pass forth and back on a GPU, the mean of five."""
    from torch.utils.benchmark import Timer  # which warns where there is no GPU

    variables = {"network": network, "images": images}
    timer = Timer("network(images).sum().backward()", globals=variables)
    return timer.timeit(5).mean


def train_missing(
    runs: Sequence[RunConfig],
    work: Path,
    *,
    device: str = "cpu",
    jobs: int = 0,
    compiled: bool = False,
) -> Iterator[dict[str, Any]]:
    """Train the runs of a study that are not complete, and show a progress bar.

    A run is locked while it trains: another execution that comes to it, on this machine
    or on one that shares the disk, waits for its result. To train runs on several
    machines give each a shard of them.

    Args:
        runs: runs of the study.
        work: its folder of work.
        device: "cpu" or a GPU.
        jobs: runs side by side, see ``jobs_on``.
        compiled: whether steps go through ``torch.compile``, see ``train_run``.

    Yields:
        The result of each run, in the order in which they are done.

    Raises:
        RuntimeError: if runs failed, see ``side_by_side``.
    """
    todo = missing(work, runs)
    if not todo:
        return
    images = partial(images_of_study, work)
    jobs = jobs_on(device, jobs, partial(_example, todo[0], images))
    train = partial(_train, work=work, device=device, compiled=compiled)
    results = side_by_side(train, todo, shared=images, device=device, jobs=jobs)
    words = f"runs, at most {jobs} at a time on {device}"
    for _, result in tqdm(results, words, total=len(todo)):
        yield result


def _example(run: RunConfig, images: Callable[[], StudyData]) -> _Example:
    """A network like that of the first run, and the shape of its batch."""
    scratch = replace(run, pretrained=False, frozen_stages=0)
    _, *shape = images().train.images.shape
    return initial_network(scratch, 2), (run.batch_size, *shape)


def _train(
    run: RunConfig, data: StudyData, *, work: Path, device: str, compiled: bool
) -> dict[str, Any]:
    """Train one run and return its result."""
    folder = folder_of_run(work, str(run))
    folder.mkdir(parents=True, exist_ok=True)
    start = read_state(start_path(work, run.weights)) if run.pretrained else None
    network = initial_network(run, len(data.classes), start)
    with FileLock(folder / ".lock"):
        return train_run(
            run, data, folder, network=network, device=device, compiled=compiled
        )
