"""One execution of a notebook by papermill, published as a whole or not at all.

The Snakefile runs this file as the script of its rules.
"""

import itertools
import os
import shutil
import socket
import sys
import threading
import time
from pathlib import Path

import nbformat
import papermill
import psutil
from papermill.exceptions import PapermillExecutionError

from helpers.files import MANIFEST, STAGING, from_root, records_of
from helpers.studies import Execution

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


def own_gpu(quarters: int) -> list[socket.socket]:
    """Show this process one GPU, of which it has some quarters for itself.

    A name of Linux's abstract sockets belongs to one process of a machine, whoever its
    user is, and is free as soon as that process ends.

    Args:
        quarters: 0 leaves the process as it is; one that has all shares with no other.

    Returns:
        What holds the quarters until it is closed.
    """
    files = sorted(Path("/dev").glob("nvidia[0-9]*"))
    here = ",".join(path.name.removeprefix("nvidia") for path in files)
    cards = [*filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", here).split(","))]
    if not (quarters and cards):
        return []
    places = itertools.product(cards, range(0, QUARTERS, quarters))
    in_turn = itertools.cycle(places)
    while True:
        card, first = next(in_turn)
        holders = [socket.socket(socket.AF_UNIX) for _ in range(quarters)]
        try:
            for quarter, holder in enumerate(holders, first):
                holder.bind(f"\0workbook-gpu-{card}-{quarter}")
        except OSError:  # somebody has it
            time.sleep(0.1)
            continue
        os.environ["CUDA_VISIBLE_DEVICES"] = card
        return holders


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
    text = " ".join(fault.evalue.split())[:2000]
    first = fault.source.strip().partition("\n")[0].strip()
    return f"cell {fault.cell_index} ({first[:80]}): {fault.ename}: {text}"


def execute(item: Execution, target: Path) -> str:
    """Execute a notebook and put all that it made into a folder of the report.

    Args:
        item: the execution; a share of a notebook's work only fills the folder of work.
        target: the folder.

    Returns:
        "", or what stopped it. Then the folder stays as it was, and all up to there is
        beside it, in ``<folder>.failed``.
    """
    staging = target.with_name(f".{item.name}.partial")
    failed = target.with_name(f"{target.name}.failed")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    os.environ |= _KERNEL | {STAGING: str(staging)}
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


def main(item: Execution, work: Path, quarters: int) -> bool:
    """Execute a notebook of a study, and publish records of what it computed.

    Args:
        item: the execution.
        work: folder of the study's work.
        quarters: of a GPU, see ``own_gpu``.

    Returns:
        Whether it failed.
    """
    reports = from_root(item.parameters["reports_dir"]) / item.parameters["study"]
    path = work / f"log/{reports.name}.log"
    began = time.monotonic()
    holders = own_gpu(quarters)
    log(path, f"{item.name} starts")
    fault = execute(item, reports / item.place)
    ended = f"failed: {fault}" if fault else f"done in {time.monotonic() - began:.0f} s"
    log(path, f"{item.name} {ended}")
    for holder in holders:
        holder.close()
    if (work / MANIFEST).is_file():  # else notebook 01 has not chosen the images yet
        from helpers.scores import records

        try:
            records.publish(work, records_of(work))  # after a failure, too
        except (OSError, ValueError) as refused:
            log(path, f"records: {refused}")
    return bool(fault)


if __name__ == "__main__":
    sweep_pid, machine = os.environ.get("WORKBOOK_SWEEP", "0 none").split()
    if machine == os.uname().nodename:
        threading.Thread(target=end_with, args=[int(sweep_pid)], daemon=True).start()
    job = snakemake  # noqa: F821
    work = Path(job.output[0]).parents[2]
    sys.exit(main(job.params.item, work, job.resources.gpu_quarters))
