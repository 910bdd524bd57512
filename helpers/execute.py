"""One execution of a notebook by papermill, published as a whole or not at all.

The rules of the Snakefile run it: ``python -m helpers.execute demo 03_cam_scoring``.
"""

import argparse
import itertools
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import nbformat
import papermill
import psutil
from filelock import FileLock, Timeout
from papermill.exceptions import PapermillExecutionError

from helpers.files import MANIFEST, STAGING, STUDY_FILE, records_of
from helpers.parameters import StudyError, near_names
from helpers.studies import Execution, Study, load, path_of

# Tag of the cell with which a notebook begins to sum up. Where several processes each
# execute a share of its work, such as 2/4 of the networks, they end before that cell.
CLOSING = "closing"
QUARTERS = 4  # of a card; an execution of small networks takes one
_KERNEL = {
    "PYTHONHASHSEED": "0",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    # Else ipykernel's debugger warns of frozen modules in each notebook.
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    # Else glibc returns the memory of each forward pass to the system, which takes a
    # fifth of the time of scoring.
    "MALLOC_MMAP_THRESHOLD_": "268435456",
    "MALLOC_TRIM_THRESHOLD_": "1073741824",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
}
_WIDGET = "application/vnd.jupyter.widget-view+json"


@contextmanager
def own_gpu(quarters: int) -> Iterator[None]:
    """Show this process one GPU, of which it has some quarters for itself.

    Args:
        quarters: 0 leaves the process as it is; one that has all shares with no other.
    """
    files = sorted(Path("/dev").glob("nvidia[0-9]*"))
    here = ",".join(path.name.removeprefix("nvidia") for path in files)
    cards = [*filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", here).split(","))]
    if not (quarters and cards):
        yield
        return
    groups = [
        range(QUARTERS)[start:][:quarters] for start in range(0, QUARTERS, quarters)
    ]
    places = itertools.product(cards, groups)
    locks = Path(tempfile.gettempdir(), "workbook-gpus")
    locks.mkdir(mode=0o1777, exist_ok=True)
    for card, group in itertools.cycle(places):
        with ExitStack() as stack:
            try:
                for quarter in group:
                    lock = FileLock(locks / f"{card}-{quarter}", mode=0o666)
                    stack.enter_context(lock.acquire(timeout=0.2))
            except Timeout:
                continue
            os.environ["CUDA_VISIBLE_DEVICES"] = card
            yield
            return


def without_widgets(path: Path) -> None:
    """Take out of an executed notebook what shows nothing without a kernel."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        outputs[:] = [item for item in outputs if _WIDGET not in item.get("data", {})]
    notebook.metadata.pop("widgets", None)
    notebook.metadata.papermill["output_path"] = path.name
    nbformat.write(notebook, path)


def sentence(fault: Exception) -> str:
    """What stopped a notebook, in one line."""
    if not isinstance(fault, PapermillExecutionError):
        return f"{type(fault).__name__}: {fault}"  # such as of a kernel that was killed
    colours = r"\x1b\[[0-9;]*m"
    text = " ".join(re.sub(colours, "", fault.evalue).split())[:2000]
    first = fault.source.strip().partition("\n")[0].strip()
    return f"cell {fault.cell_index} ({first[:80]}): {fault.ename}: {text}"


def execute(study: Study, item: Execution) -> str:
    """Execute a notebook and put all that it made into a folder of the report.

    Args:
        study: whose report it is.
        item: the execution; a share of a notebook's work only fills the folder of work.

    Returns:
        "", or what stopped it. Then the folder stays as it was, and all up to there is
        beside it, in ``<folder>.failed``.
    """
    target = study.reports / item.place
    staging = target.with_name(f".{item.name}.partial")
    failed = target.with_name(f"{target.name}.failed")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    os.environ[STAGING] = str(staging)
    executed = staging / f"{item.notebook}.ipynb"
    notebook = nbformat.read(f"notebooks/{executed.name}", as_version=4)
    if item.share:
        notebook.cells = [*itertools.takewhile(_is_before_closing, notebook.cells)]
    fault = ""
    try:
        papermill.execute_notebook(
            notebook,
            # papermill fills parameters into braces of a path
            str(executed).replace("{", "{{").replace("}", "}}"),
            item.parameters,
            kernel_name="python3",
            progress_bar=False,
            # Else each kernel warns that what it says to this process is not encrypted.
            extra_arguments=["--log-level=ERROR"],
        )
    except Exception as stopped:
        fault = sentence(stopped)
    if executed.is_file():
        without_widgets(executed)
    place = failed if fault else target
    for folder in (failed, staging if item.share and not fault else place):
        shutil.rmtree(folder, ignore_errors=True)
    if staging.is_dir():
        staging.rename(place)
    return fault


def _is_before_closing(cell: nbformat.NotebookNode) -> bool:
    return CLOSING not in cell.metadata.get("tags", [])


def end_with(pid: int) -> None:
    """End this process, and with it its kernel, as soon as another one is gone."""
    sweep = psutil.Process(pid)
    while sweep.is_running() and sweep.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.5)
    os._exit(1)


def log(path: Path, line: str) -> None:
    """Print a line, and append it to a log with the time."""
    print(line, flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        print(time.strftime("%Y-%m-%d %H:%M:%S"), line, file=file)


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute a notebook of a study, and publish records of what it computed.

    Args:
        arguments: of the command line.

    Returns:
        0, or 1 where it failed.
    """
    parser = argparse.ArgumentParser(description="Execute one notebook of a study.")
    parser.add_argument("study", help="name of its file in params, or a path")
    parser.add_argument("name", help="of the execution, such as 03_cam_scoring")
    parser.add_argument("quarters", type=int, nargs="?", default=0, help="of a GPU")
    for option in ("--set", "--vary"):
        parser.add_argument(option, action="append", default=[], metavar="NAME=VALUE")
    given = parser.parse_args(arguments)
    try:
        study = load(given.study, given.set, given.vary)
    except StudyError as faults:
        sys.exit(f"nothing was run:\n{faults}")
    executions = {item.name: item for item in study.executions}
    if given.name not in executions:
        near = near_names(given.name, executions)
        sys.exit(f"{study.name} has no {given.name!r}{near}: {', '.join(executions)}")
    path = study.work / f"log/{study.name}.log"
    os.environ |= _KERNEL | {STUDY_FILE: str(path_of(given.study))}
    began = time.monotonic()
    with own_gpu(given.quarters):
        log(path, f"{given.name} starts")
        fault = execute(study, executions[given.name])
    ended = f"failed: {fault}" if fault else f"done in {time.monotonic() - began:.0f} s"
    log(path, f"{given.name} {ended}")
    for line in publish_records(study.work):  # after a failure, too
        log(path, f"records: {line}")
    return int(bool(fault))


def publish_records(work: Path) -> list[str]:
    """Publish what is complete in a study's folder of work; return what is refused."""
    from helpers.scores import records

    if not (work / MANIFEST).is_file():
        return []  # notebook 01 has not chosen the images yet
    try:
        records.publish(work, records_of(work))
    except (OSError, ValueError) as fault:
        return [str(fault)]
    return []


if __name__ == "__main__":
    if "WORKBOOK_SWEEP" in os.environ:
        sweep_pid = (int(os.environ["WORKBOOK_SWEEP"]),)
        threading.Thread(target=end_with, args=sweep_pid, daemon=True).start()
    sys.exit(main())
