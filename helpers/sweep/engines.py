"""Where notebooks are executed: worker processes on this machine, or tasks of a Ray cluster (extra ``cluster``)."""

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from helpers import locks
from helpers.files import PROJECT_ROOT, inside
from helpers.sweep.worker import Outcome, end_family, perform

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# glibc would give the blocks of a forward pass back to the system after each and fetch them anew: a fifth of the processor time of scoring.
_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**28), "MALLOC_TRIM_THRESHOLD_": str(2**30)}


class Engine(Protocol):
    """What a sweep needs of whatever executes its jobs."""

    slots: int

    def submit(self, name: str, job: dict[str, Any], width: int) -> None:
        """Start a job; there must be a free slot."""

    def wait(self, seconds: float) -> list[tuple[str, Outcome]]:
        """What ended; waits for it at most so long."""

    def close(self) -> None:
        """End everything that still runs, without a trace."""


def visible_gpus() -> list[str]:
    """List the GPUs of this machine that may be used, as CUDA_VISIBLE_DEVICES names them; none where there are none."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip() not in ("", "-1", "NoDevFiles")]
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=2)
    except (OSError, subprocess.TimeoutExpired):
        return ["0"] if Path("/dev/kfd").exists() else []  # a GPU of another maker, or a driver that does not answer
    return [str(number) for number in range(sum(line.startswith("GPU ") for line in listed.stdout.splitlines()))]


def scratch(token: str) -> Path:
    """The folder of this machine for the temporary files of a sweep's notebooks, such as the connection files of kernels.

    What is killed leaves such files behind, and they go with the folder. It is not on the study's disk: that may be far away, and its
    name too long for a socket.
    """
    return inside(Path(tempfile.gettempdir()), f"workbook-{token}")


def cores() -> list[int]:
    """List the cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def slots_for(jobs: int, gpus: list[str], per_gpu: int) -> int:
    """Choose how many executions go side by side: ``jobs`` when above 0, else the places on GPUs, else one per two cores."""
    return jobs or (len(gpus) * per_gpu if gpus else max(1, len(cores()) // 2))


@dataclass
class _Worker:
    process: subprocess.Popen
    mark: str
    job: str = ""
    limit: float = 0.0  # when the job has to be over, by the monotonic clock; 0 is never
    started: float = 0.0
    overdue: bool = False


@dataclass
class LocalEngine:
    """Workers on this machine; each is started when it is first needed, and anew after it was lost."""

    root: Path
    log: Path  # what workers and kernels print
    token: str
    slots: int
    gpus: list[str]
    time_limit: float = 0.0  # seconds an execution may take; 0 is no limit
    _workers: dict[int, _Worker] = field(default_factory=dict)
    _replies: "queue.Queue[tuple[_Worker, str]]" = field(default_factory=queue.Queue)
    _count: int = 0

    def submit(self, name: str, job: dict[str, Any], width: int) -> None:
        """Start a job in a free slot.

        Args:
            name: of the execution.
            job: see ``worker.perform``; cores and environment are added here.
            width: executions that may go side by side in this stage; it alone decides the share of the cores, so that numbers
                do not depend on how much of a stage was done before.
        """
        slot = next(number for number in range(self.slots) if number not in self._workers or not self._workers[number].job)
        if slot not in self._workers:
            self._workers[slot] = self._start(slot)
        worker = self._workers[slot]
        width = max(1, min(width, self.slots))
        mine = cores()[slot % width :: width] or [cores()[slot % len(cores())]]
        environment = {} if width == 1 else {key: str(len(mine)) for key in _THREADS if key not in os.environ}
        if self.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpus[slot % len(self.gpus)]
        worker.job, worker.started = name, time.monotonic()
        worker.limit = worker.started + self.time_limit if self.time_limit else 0.0
        try:
            worker.process.stdin.write(json.dumps(job | {"cores": mine, "environment": environment}) + "\n")
            worker.process.stdin.flush()
        except OSError:
            return  # it died while idle: its end is read as a reply

    def _start(self, slot: int) -> _Worker:
        self._count += 1
        mark = f"{self.token}.{slot}.{self._count}."  # ends with a dot, so that no mark begins another
        environment = _MEMORY | os.environ | {locks.MARK: mark}
        scratch(self.token).mkdir(mode=0o700, exist_ok=True)
        environment["TMPDIR"] = str(scratch(self.token))
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", f"import os; from helpers.sweep import worker; os.chdir({str(self.root)!r}); worker.main()"],
                cwd=PROJECT_ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C reaches the sweep alone, which ends its workers itself
            )
        worker = _Worker(process, mark)
        threading.Thread(target=self._listen, args=(worker,), daemon=True).start()
        return worker

    def _listen(self, worker: _Worker) -> None:
        for line in worker.process.stdout:
            self._replies.put((worker, line))
        self._replies.put((worker, ""))

    def wait(self, seconds: float) -> list[tuple[str, Outcome]]:
        """What ended; a job whose worker is gone counts as lost, one over its time limit as such."""
        try:
            reply = self._replies.get(timeout=seconds)
        except queue.Empty:
            reply = None
        now = time.monotonic()
        for worker in self._workers.values():
            if worker.job and worker.limit and now > worker.limit and not worker.overdue:
                worker.overdue = True
                end_family(worker.mark)  # its end comes as a reply
        return [self._outcome(*reply)] if reply is not None and reply[0].job else self._forget_idle(reply)

    def _outcome(self, worker: _Worker, line: str) -> tuple[str, Outcome]:
        name, worker.job = worker.job, ""
        seconds = time.monotonic() - worker.started
        if worker.overdue:
            outcome = Outcome("timeout", seconds, "stopped", f"it took longer than its time limit of {self.time_limit:g} s")
        elif line:
            outcome = Outcome(*json.loads(line))
        else:
            code = worker.process.wait()
            outcome = Outcome("lost", seconds, "the worker ended", f"by signal {-code}" if code < 0 else f"with exit code {code}")
        if outcome.kind in ("lost", "timeout"):
            self._end(worker)  # and with it whatever the kernel had started
        return name, outcome

    def _forget_idle(self, reply: tuple[_Worker, str] | None) -> list[tuple[str, Outcome]]:
        if reply is not None and not reply[1]:
            self._end(reply[0])
        return []

    def _end(self, worker: _Worker) -> None:
        end_family(worker.mark)
        worker.process.stdin.close()
        worker.process.wait()
        self._workers = {slot: item for slot, item in self._workers.items() if item is not worker}

    def close(self) -> None:
        """End all workers, their kernels, and what those had started."""
        if self._count:
            end_family(f"{self.token}.")
        for worker in list(self._workers.values()):
            self._end(worker)
        shutil.rmtree(scratch(self.token), ignore_errors=True)


def address_fault(address: str) -> str:
    """What is wrong with the address of a cluster; "" when nothing is. It must be explicit: no cluster is ever looked for."""
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
    token: str = ""  # of the sweep, by which what it leaves behind is known
    slots: int = 0
    _running: dict[Any, tuple[str, float]] = field(default_factory=dict)
    _overdue: set[Any] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Connect. Raises ConnectionError where Ray does not come up or no cluster answers."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
        import ray

        extra = {"include_dashboard": False} if self.address == "local" else {}
        try:
            ray.init(address=self.address, log_to_driver=False, configure_logging=False, **extra)
        except Exception as fault:  # Ray raises nearly every kind
            ray.shutdown()
            first = (str(fault).strip().splitlines() or [""])[0]
            raise ConnectionError(f"Ray does not come up at --address {self.address} ({type(fault).__name__}: {first})") from fault
        found = ray.cluster_resources()
        self._gpu_share = 1 / self.per_gpu if found.get("GPU") else 0
        self.slots = self.jobs or max(1, int(found["GPU"] * self.per_gpu if self._gpu_share else found.get("CPU", 1)))
        # A task is never repeated by Ray, and has a process of its own, so that a GPU's memory is free afterwards.
        self._task = ray.remote(max_retries=0, max_calls=1, num_gpus=self._gpu_share, num_cpus=1)(_perform)

    def submit(self, name: str, job: dict[str, Any], width: int) -> None:
        """Hand a job to the cluster; Ray itself waits for a free place. ``width`` plays no part: Ray gives each task its share."""
        job = job | {"cores": None, "environment": {}}
        self._running[self._task.remote(job, str(self.root), self.token)] = (name, time.monotonic())

    def wait(self, seconds: float) -> list[tuple[str, Outcome]]:
        """What ended; a task whose worker or machine died is lost."""
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
        if self.token:
            end_family(f"{self.token}.")  # of this machine; what is elsewhere ends with its worker
            shutil.rmtree(scratch(self.token), ignore_errors=True)


def _perform(job: dict[str, Any], root: str, token: str) -> tuple:
    """Execute a notebook in a process of Ray that ends with it, and take its temporary files away."""
    os.chdir(root)
    place = scratch(token) / str(os.getpid())
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ |= {"TMPDIR": str(place), locks.MARK: f"{token}.ray"}
    before, tempfile.tempdir = tempfile.tempdir, str(place)
    try:
        return tuple(perform(job))
    finally:
        tempfile.tempdir = before
        shutil.rmtree(place, ignore_errors=True)
        with suppress(OSError):  # other tasks of this machine may have theirs there
            place.parent.rmdir()
