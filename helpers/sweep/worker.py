"""The process that executes notebooks one after the other, each in a kernel of its own, and the end of a whole family of processes."""

import errno
import json
import os
import queue
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from helpers import locks
from helpers.files import STAGING
from helpers.locks import MARK, started
from helpers.sweep.executions import CLOSING


def family(mark: str) -> list[int]:
    """List the living processes whose mark begins with this one, without the calling process."""
    import psutil

    found = []
    for process in psutil.process_iter():
        try:
            marked = process.environ().get(MARK, "").startswith(mark)
        except (psutil.Error, OSError):
            continue
        if marked and process.pid != os.getpid() and started(process.pid):
            found.append(process.pid)
    return found


def end_family(mark: str, patience: float = 10.0) -> None:
    """Kill every process of a family, and wait until none is left.

    A process that is being born while the list is read appears in the next list, so the list is read until it is empty. Python's
    resource trackers go last, and by themselves: they delete the semaphores of those that were killed.
    """
    if not mark:
        raise ValueError("the mark is empty; it would end every process that carries one")
    limit = time.monotonic() + patience
    while (found := family(mark)) and time.monotonic() < limit:
        late = time.monotonic() > limit - patience / 2
        for pid in found:
            if late or not _tracks(pid):
                _kill(pid)
        time.sleep(0.01)


def _tracks(pid: int) -> bool:
    import psutil

    try:
        return "multiprocessing.resource_tracker" in " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return False


def _kill(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except OSError:
        return  # it is gone


_KILLED = "BrokenProcessPool"  # what a cell ends with when one of the processes that it started was killed
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}
_ANSI = re.compile(r"\x1b\[[0-9;]*m")

# Report cells are compared and mailed: frozen-module warnings and telemetry have no place in them.
_KERNEL = {"PYTHONHASHSEED": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}


class Outcome(NamedTuple):
    """How an execution ended."""

    kind: str  # "done"; "error" of a cell; "lost" kernel, worker or machine, which is tried again; "timeout"
    seconds: float
    where: str = ""
    error: str = ""


def perform(job: dict[str, Any]) -> Outcome:
    """Execute one notebook by papermill; whatever ends it ends here as an outcome, and the partial report stays.

    Args:
        job: notebook, partial, staging (folder for what it makes), parameters, kernel environment, cores (None leaves them), whole
            (False stops before the closing part); paths are relative to the current folder.
    """
    started = time.perf_counter()
    environment = {name: value for name, value in _KERNEL.items() if name not in os.environ} | job["environment"]
    environment[STAGING] = str(Path(job["staging"]).absolute())
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    if job["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, job["cores"])
    try:
        _execute(job)
    except Exception as fault:
        return _outcome(fault, time.perf_counter() - started)
    finally:  # the next job may have another share of the machine
        for name in before:
            del os.environ[name]
        os.environ.update({name: value for name, value in before.items() if value is not None})
    return Outcome("done", time.perf_counter() - started)


def _execute(job: dict[str, Any]) -> None:
    import nbformat
    import papermill

    from helpers.sweep import following

    partial = Path(job["partial"])
    partial.parent.mkdir(parents=True, exist_ok=True)
    source: Any = job["notebook"]
    if not job["whole"]:
        source = nbformat.read(source, as_version=4)
        closing = [index for index, cell in enumerate(source.cells) if CLOSING in cell.metadata.get("tags", [])]
        source = source if closing else job["notebook"]
        if closing:
            del source.cells[closing[0] :]
    try:
        options = {"kernel_name": "python3", "progress_bar": False, "start_timeout": 120}
        followed = {"engine_name": following.ENGINE, "place": str(Path(job["place"]).absolute())} if "place" in job else {}
        papermill.execute_notebook(source, str(partial), job["parameters"], **options, **followed)
    finally:
        if not isinstance(source, str) and partial.is_file():
            # Papermill notes the notebook as it was given, here the cells themselves; the report names the file.
            report = json.loads(partial.read_text(encoding="utf-8"))
            report["metadata"]["papermill"]["input_path"] = job["notebook"]
            partial.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _outcome(fault: Exception, seconds: float) -> Outcome:
    import papermill
    from nbclient.exceptions import DeadKernelError

    if isinstance(fault, papermill.PapermillExecutionError) and fault.ename == _KILLED:
        return Outcome("lost", seconds, "a process of the notebook was killed", _ANSI.sub("", str(fault.evalue)))
    if isinstance(fault, papermill.PapermillExecutionError):
        first = next((line for line in fault.source.splitlines() if line.strip()), "")
        where = f"cell {fault.cell_index} failed ({first.strip()})"
        return Outcome("error", seconds, where, f"{fault.ename}: {_ANSI.sub('', str(fault.evalue))}")
    what = f"{type(fault).__name__}: {_ANSI.sub('', str(fault))}".strip()
    # Jupyter tells of a kernel that does not come up by a plain RuntimeError.
    if isinstance(fault, OSError) and fault.errno in _DISK:
        return Outcome("error", seconds, "its report or its kernel's files could not be written", what)
    lost = isinstance(fault, DeadKernelError) or (isinstance(fault, RuntimeError) and "ernel" in str(fault))
    return Outcome("lost" if lost else "error", seconds, "the kernel failed", what)


def main() -> None:
    """Read jobs as lines of JSON, answer each with its outcome; end with everything started here when the sweep is gone."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a kernel prints must not mix with the answers
    jobs: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    import papermill  # noqa: F401  (loaded while there is nothing to do yet)

    while True:
        channel.write(json.dumps(perform(jobs.get())) + "\n")


def _listen(jobs: "queue.Queue[dict[str, Any]]") -> None:
    for line in sys.stdin:
        jobs.put(json.loads(line))
    try:
        end_family(os.environ.get(locks.MARK, ""))
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
