"""One notebook executed by papermill, and published when it ends well: ``python -m helpers.sweep.execute JOB``, as the Snakefile calls it."""

import ctypes
import errno
import html
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from helpers.files import PROJECT_ROOT, STAGING, WORK, complete_or_absent, content_digest, from_root, inside, read_json, write_json
from helpers.statistics.claims import keep_claims

CLOSING = "closing"  # tag of the cell with which a notebook begins to sum up, which its parts leave out
TRIES = 3  # of a kernel that dies; an error of a cell is final
# Executed notebooks are compared and mailed. glibc would give the memory of a forward pass back after each, a fifth of scoring's time.
_KERNEL = {"PYTHONHASHSEED": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
_KERNEL |= {
    "MALLOC_MMAP_THRESHOLD_": str(2**28),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
}
_BAR = re.compile(r"\d+/\d+ \[.*\]")  # as tqdm writes it: 3/12 [00:10<00:30, 3.3s/it, epoch 4, loss 0.31]
_WIDGET = "application/vnd.jupyter.widget-view+json"
_EVERY = 2.0  # seconds between two notes of where a notebook is


def die_with_parent() -> None:
    """Be killed when the process that started this one is gone, however it went (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def visible_gpus() -> list[str]:
    """The GPUs that may be used here, as CUDA_VISIBLE_DEVICES names them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip() not in ("", "-1", "NoDevFiles")]
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=5).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [str(number) for number in range(listed.count("GPU "))]


def own_gpu(stack: ExitStack, wait: float = 1.0) -> str:
    """A GPU that no other execution on this machine has, until the stack is closed; "" where there is none. Waits for one."""
    names = visible_gpus()
    while names:
        for name in names:
            lock = FileLock(Path(tempfile.gettempdir()) / f"workbook-gpu-{re.sub(r'[^A-Za-z0-9-]', '_', name)}.lock", mode=0o666)
            try:
                stack.enter_context(lock.acquire(timeout=0))
            except Timeout:
                continue
            return name
        time.sleep(wait)
    return ""


def log(work: Path, study: str, line: str) -> None:
    """Append a line to the log of a study, which whoever started it follows; lines of several processes do not mix."""
    (work / "log").mkdir(parents=True, exist_ok=True)
    with (work / "log" / f"{study}.log").open("ab", buffering=0) as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n".encode())


def papermill_execute(source: Any, partial: Path, parameters: Mapping[str, Any], now: Path) -> None:
    """Execute a notebook by papermill, in a kernel that ends with this process, noting in a file where it is."""
    import papermill
    from jupyter_client.manager import AsyncKernelManager
    from papermill.clientwrap import PapermillNotebookClient
    from papermill.engines import NBClientEngine, papermill_engines

    class Manager(AsyncKernelManager):
        async def _async_launch_kernel(self, command: list[str], **options: Any) -> None:
            await super()._async_launch_kernel(command, **options | {"preexec_fn": die_with_parent})

    class Client(PapermillNotebookClient):
        written, heading, bar = 0.0, "", ""

        def execute_cell(self, cell: Any, cell_index: int, *given: Any, **options: Any) -> Any:
            above = [line for item in self.nb.cells[: cell_index + 1] if item.cell_type == "markdown" for line in item.source.splitlines()]
            self.heading, self.bar = next((line.lstrip("# ") for line in reversed(above) if line.startswith("#")), ""), ""
            self.note()
            return super().execute_cell(cell, cell_index, *given, **options)

        def process_message(self, message: dict[str, Any], *given: Any, **options: Any) -> Any:
            content = message["content"]
            state = content.get("data", {}).get("state", {}) if message["msg_type"] in ("comm_open", "comm_msg") else {}
            text = " ".join(html.unescape(str(state.get("value") or content.get("text", ""))).split())
            if found := _BAR.findall(text):
                self.bar = found[-1]
                self.note()
            return super().process_message(message, *given, **options)

        def note(self) -> None:
            if time.monotonic() - self.written > _EVERY:
                self.written = time.monotonic()
                write_json(now, {"heading": self.heading, "bar": self.bar, "pid": os.getpid()})

    class Engine(NBClientEngine):
        @classmethod
        def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **options: Any) -> Any:
            return Client(nb_man, kernel_name=kernel_name, kernel_manager_class=Manager, startup_timeout=120, timeout=None).execute()

    papermill_engines.register("followed", Engine)
    papermill.execute_notebook(source, str(partial), parameters, engine_name="followed", kernel_name="python3", progress_bar=False)


def without_bars(notebook: Any) -> Any:
    """An executed notebook without progress bars, which say 0 % wherever no kernel runs."""
    for cell in notebook.cells:
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if _WIDGET not in output.get("data", {})]
    notebook.metadata.pop("widgets", None)
    return notebook


def publish(staging: Path, reports: Path, name: str) -> list[Path]:
    """Copy what an execution left into the report, each file whole, the executed notebook last; what only the one before it made goes."""
    import nbformat

    notebook = without_bars(nbformat.read(staging / f"{name}.ipynb", as_version=4))
    files = sorted(str(path.relative_to(staging)) for path in staging.rglob("*") if path.is_file() and path.parent != staging)
    files = [file for file in files if not file.startswith(".") and not file.endswith(".partial")]
    before = (
        read_json(reports / f"{name}.ipynb")["metadata"].get("workbook", {}).get("files", [])
        if (reports / f"{name}.ipynb").is_file()
        else []
    )
    for file in files:
        with complete_or_absent(inside(reports, file)) as temporary:
            shutil.copyfile(staging / file, temporary)
    for file in set(map(str, before)) - set(files):
        inside(reports, file).unlink(missing_ok=True)
    notebook.metadata["workbook"] = {"files": files, "executed": time.strftime("%Y-%m-%d %H:%M", time.gmtime())}
    with complete_or_absent(reports / f"{name}.ipynb") as temporary:
        temporary.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    return [reports / file for file in [*files, f"{name}.ipynb"]]


def told(fault: Exception, staging: Path) -> str:
    """How an execution ended, in a sentence or two: where, and the error."""
    clean = re.compile(r"\x1b\[[0-9;]*m")
    if hasattr(fault, "ename"):
        first = next((line.strip() for line in fault.source.splitlines() if line.strip()), "")
        return f"cell {fault.cell_index} ({first[:80]})\n  {fault.ename}: {clean.sub('', str(fault.evalue))[:2000]}\n  all up to there: {staging}"
    return f"{type(fault).__name__}: {clean.sub('', str(fault)).strip()[:2000]}"


def execute(job: Mapping[str, Any]) -> int:
    """Execute and publish what a job names, and write its record last of all; 0, or 1 where it failed, which is in the log."""
    import nbformat
    from nbclient.exceptions import DeadKernelError

    parameters, study, notebook = job["parameters"], job["study"], job["notebook"]
    name = f"{notebook}-{job['part']}" if job["part"] else notebook
    work = inside(from_root(parameters.get("work_dir", "work")), job["work_study"])
    reports = inside(from_root(parameters.get("reports_dir", "reports")), study)
    staging, now = work / "staging" / study / name, work / "now" / study / f"{name}.json"
    record, began = work / "done" / study / f"{name}.json", time.monotonic()
    source = nbformat.read(PROJECT_ROOT / f"notebooks/{notebook}.ipynb", as_version=4)
    closing = [index for index, cell in enumerate(source.cells) if CLOSING in cell.metadata.get("tags", [])]
    if job["part"] and closing:
        del source.cells[closing[0] :]
    with ExitStack() as stack:
        (work / "locks").mkdir(parents=True, exist_ok=True)
        try:
            stack.enter_context(FileLock(work / "locks" / f"{study}-{name}.lock").acquire(timeout=10))
        except Timeout:
            log(work, study, f"{name} failed: another process executes it for {study}; wait for that one, or end it")
            return 1
        device = own_gpu(stack) if parameters.get("device", "cpu") != "cpu" else ""
        log(work, study, f"{name} starts" + (f" on GPU {device}" if device else ""))
        try:
            keep_claims(work, job["claims"])
            for number in range(TRIES):
                shutil.rmtree(staging, ignore_errors=True)
                staging.mkdir(parents=True)
                os.environ |= _KERNEL | {STAGING: str(staging), WORK: str(work), "IPYTHONDIR": str(staging / ".ipython")}
                os.environ |= {"JUPYTER_RUNTIME_DIR": str(staging / ".jupyter")} | ({"CUDA_VISIBLE_DEVICES": device} if device else {})
                try:
                    papermill_execute(source, staging / f"{name}.ipynb", parameters, now)
                    break
                except (DeadKernelError, RuntimeError) as fault:
                    if number == TRIES - 1 or getattr(fault, "ename", "") not in ("", "BrokenProcessPool"):
                        raise
                    log(work, study, f"{name}: its kernel was lost, and it is tried again")
            made = [] if job["part"] else publish(staging, reports, name)
            story = read_json(staging / "story" / f"{notebook}.json") if (staging / "story" / f"{notebook}.json").is_file() else []
            made += [inside(work, item["path"]) for item in story if item["kind"] == "work_file" and not job["part"]]
            seconds = time.monotonic() - began
            write_json(record, {"made": {os.path.relpath(path, work): content_digest(path) for path in made}, "seconds": round(seconds)})
            shutil.rmtree(staging, ignore_errors=True)
            log(work, study, f"{name} done in {seconds:.0f} s")
        except Exception as fault:
            full = isinstance(fault, OSError) and fault.errno in (errno.ENOSPC, errno.EDQUOT)
            log(work, study, f"{name} failed: " + ("the disk is full" if full else told(fault, staging)).replace("\n", " | "))
            return 1
        finally:
            now.unlink(missing_ok=True)
    return 0


def write_pages(job: Mapping[str, Any]) -> int:
    """Write the pages of a report, and the list of what it shows; the record of that last of all."""
    from helpers.report import pages

    reports, work = Path(job["reports"]), Path(job["work"])
    write_json(reports / "published.json", {name: job[name] for name in ("study", "notebooks", "parameters")})
    index = pages.write_pages(reports)
    made = [*sorted(reports.glob("*.html")), reports / "published.json"]
    write_json(work / "done" / job["study"] / "pages.json", {"made": {os.path.relpath(path, work): content_digest(path) for path in made}})
    log(work, job["study"], f"report: {os.path.relpath(index, PROJECT_ROOT)}")
    return 0


def main(job: str, parent: str) -> int:
    """Do a job, unless the process that asked for it is gone already."""
    die_with_parent()
    if os.getppid() != int(parent):
        return 1
    os.chdir(PROJECT_ROOT)
    given = json.loads(job)
    return execute(given) if "notebook" in given else write_pages(given)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
