"""The cluster engine: the same jobs as Ray tasks, with fractions of GPUs; needs the extra ``cluster``."""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers import worker
from helpers.worker import Outcome


def address_fault(address: str) -> str:
    """Say what is wrong with the address of a cluster; "" when nothing is. It must be explicit: no cluster is ever looked for."""
    if not address:
        return "--engine ray needs --address: local starts Ray on this machine, HOST:PORT joins the cluster whose head is there"
    if address == "auto":
        return "--address auto would join whatever cluster is found; write local, or HOST:PORT of its head"
    try:
        import ray  # noqa: F401
    except ImportError:
        return "--engine ray needs Ray: pip install '.[cluster]' on every machine"
    return ""


@dataclass
class RayEngine:
    """Jobs as Ray tasks. Ray itself retries nothing: what is lost comes back to the sweep, which counts and tries again."""

    root: Path
    address: str
    jobs: int = 0
    per_gpu: int = 1
    time_limit: float = 0.0  # seconds an execution may take; 0 is no limit
    slots: int = 0
    _running: dict[Any, tuple[str, float]] = field(default_factory=dict)
    _overdue: set[Any] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Connect."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
        import ray

        extra = {"include_dashboard": False} if self.address == "local" else {}
        ray.init(address=self.address, log_to_driver=False, configure_logging=False, **extra)
        found = ray.cluster_resources()
        self._gpu_share = 1 / self.per_gpu if found.get("GPU") else 0
        self.slots = self.jobs or max(1, int(found["GPU"] * self.per_gpu if self._gpu_share else found.get("CPU", 1)))
        # A task is never repeated by Ray, and has a process of its own, so that a GPU's memory is free afterwards.
        self._task = ray.remote(max_retries=0, max_calls=1, num_gpus=self._gpu_share, num_cpus=1)(_perform)

    def submit(self, name: str, job: dict[str, Any], width: int) -> None:
        """Hand a job to the cluster; Ray itself waits for a free place. ``width`` plays no part: Ray gives each task its share."""
        job = job | {"cores": None, "environment": {}}
        self._running[self._task.remote(job, str(self.root))] = (name, time.monotonic())

    def wait(self, seconds: float) -> list[tuple[str, Outcome]]:
        """Give what ended; a task whose worker or machine died is lost."""
        import ray

        if not self._running:
            time.sleep(seconds)
            return []
        ready, _ = ray.wait(list(self._running), num_returns=1, timeout=seconds)
        for reference, (_, started) in self._running.items():
            if self.time_limit and reference not in ready and time.monotonic() - started > self.time_limit:
                self._overdue.add(reference)
                ray.cancel(reference, force=True)
        return [self._outcome(reference) for reference in ready]

    def _outcome(self, reference: Any) -> tuple[str, Outcome]:
        import ray

        name, started = self._running.pop(reference)
        seconds = time.monotonic() - started
        try:
            return name, Outcome(*ray.get(reference))
        except ray.exceptions.RayTaskError as fault:
            return name, Outcome("error", seconds, "the worker failed", f"{type(fault.cause).__name__}: {fault.cause}")
        except ray.exceptions.RayError as fault:
            if reference in self._overdue:
                return name, Outcome("timeout", seconds, "stopped", f"it took longer than its time limit of {self.time_limit:g} s")
            return name, Outcome("lost", seconds, "worker or machine lost", type(fault).__name__)

    def close(self) -> None:
        """Cancel what still runs and leave the cluster; one that was started here ends."""
        import ray

        for reference in self._running:
            ray.cancel(reference, force=True)
        ray.shutdown()


def _perform(job: dict[str, Any], root: str) -> tuple:
    os.chdir(root)
    return tuple(worker.perform(job))
