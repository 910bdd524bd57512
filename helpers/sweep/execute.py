"""One notebook executed by papermill, or the pages of a report.

The Snakefile calls it. An execution is published when it ends well.
"""

import ctypes
import html
import itertools
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from helpers.files import (
    COMBINATION,
    MANIFEST,
    PROJECT_ROOT,
    PUBLISHED_VALUES,
    STAGING,
    SWEEP_LISTING,
    WORK,
    complete_or_absent,
    from_root,
    inside,
    read_json,
    records_of,
    write_json,
)
from helpers.scores import records
from helpers.statistics.claims import keep_claims
from helpers.sweep.combinations import Sweep
from helpers.sweep.gpus import device_in_words, lock_card
from helpers.sweep.study import Execution, failure, file_digest, record_of

# Tag of the cell with which a notebook begins to sum up. Where several processes each
# execute a share of its work, such as 2/4 of the networks, they end before that cell.
CLOSING = "closing"
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
# As tqdm writes it: 3/12 [00:10<00:30, 3.3s/it, epoch 4, loss 0.31]
_BAR = re.compile(r"\d+/\d+ \[[^\]]*\]")
_WIDGET = "application/vnd.jupyter.widget-view+json"
_EVERY = 30.0  # seconds between two lines on where a notebook is


def die_with_parent() -> None:
    """Ask Linux to kill this process when the one that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def temporary_folder_of(place: Path) -> Path:
    """Path of the temporary folder of a place, short enough for sockets."""
    name = str(place.absolute()).encode("utf-8", "surrogateescape")
    number = blake2b(name, digest_size=6).hexdigest()
    return Path(tempfile.gettempdir()) / f"workbook-{number}"


def log(work: Path, study: str, line: str) -> None:
    """Append a line to the log of a study, which a sweep follows.

    Args:
        work: the study's folder of work.
        study: its name.
        line: what happened; an indented line break becomes " | ".
    """
    path = work / "log" / f"{study}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    entry = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n".replace("\n  ", " | ")
    # One write, so that lines of several processes do not mix.
    with path.open("ab", buffering=0) as file:
        file.write(entry.encode())


def _progress_bar(message: Mapping[str, Any]) -> str:
    """The last progress bar of tqdm in a message of a kernel; "" without one.

    Args:
        message: of Jupyter's protocol. In a notebook a bar is the state of a widget,
            elsewhere a printed text.
    """
    content = message["content"]
    text = content.get("text", "")
    if message["msg_type"].startswith("comm_"):
        state = content.get("data", {}).get("state", {})
        text = state.get("value") or text
    bars = _BAR.findall(" ".join(html.unescape(str(text)).split()))
    return bars[-1] if bars else ""


def _section(cells: Sequence[Any]) -> str:
    """The last heading in the Markdown of cells; "" where there is none."""
    for cell in reversed(cells):
        if cell.cell_type != "markdown":
            continue
        headings = [line for line in cell.source.splitlines() if line.startswith("#")]
        if headings:
            return headings[-1].lstrip("# ")
    return ""


def run_papermill(
    source: Any,
    target: Path,
    parameters: Mapping[str, Any],
    tell: Callable[[str], None],
) -> None:
    """Execute a notebook by papermill, in a kernel that ends with this process.

    Args:
        source: path of a notebook, or the notebook itself.
        target: path of the executed notebook.
        parameters: values by name.
        tell: is called each half minute with the section and its progress bar.
    """
    import papermill
    from papermill.clientwrap import PapermillNotebookClient
    from papermill.engines import NBClientEngine, papermill_engines

    class Client(PapermillNotebookClient):
        last_line = -_EVERY  # time of the last call of ``tell``

        def process_message(
            self, message: dict[str, Any], cell: Any, cell_index: int
        ) -> Any:
            if time.monotonic() - self.last_line >= _EVERY:
                bar = _progress_bar(message)
                section = _section(self.nb.cells[:cell_index])
                begins = message["msg_type"] == "execute_input"
                if bar or (section and begins):
                    self.last_line = time.monotonic()
                    tell(": ".join(filter(None, (section, bar))))
            return super().process_message(message, cell, cell_index)

    class Engine(NBClientEngine):
        @classmethod
        def execute_managed_notebook(
            cls, nb_man: Any, kernel_name: str, **options: Any
        ) -> Any:
            client = Client(
                nb_man, kernel_name=kernel_name, startup_timeout=120, timeout=None
            )
            # The argument reaches the kernel's Popen.
            return client.execute(preexec_fn=die_with_parent)

    papermill_engines.register("followed", Engine)
    papermill.execute_notebook(
        source,
        # papermill fills parameters into braces of a path
        str(target).replace("{", "{{").replace("}", "}}"),
        dict(parameters),
        engine_name="followed",
        kernel_name="python3",
        progress_bar=False,
    )


def publish(staging: Path, reports: Path, name: str) -> list[Path]:
    """Copy the files of an execution into the report.

    Each file is whole, and the executed notebook comes last. Files of the previous
    execution that this one did not write are deleted.

    Args:
        staging: folder that the execution wrote to.
        reports: folder of the report.
        name: of the notebook.

    Returns:
        The files that the execution has in the report.
    """
    import nbformat

    report = reports / f"{name}.ipynb"
    # Files of subfolders: the notebook and its results, at the top, are copied below.
    files = sorted(
        str(path.relative_to(staging))
        for path in staging.glob("*/**/*")
        if path.is_file() and path.suffix != ".partial"
    )
    before = _files_before(report)
    results = f"{name}.results.json"
    if (staging / results).is_file():
        files.append(results)
    for file in files:
        with complete_or_absent(inside(reports, file)) as temporary:
            shutil.copyfile(staging / file, temporary)
    for file in set(map(str, before)) - set(files):
        inside(reports, file).unlink(missing_ok=True)
    notebook = nbformat.read(staging / f"{name}.ipynb", as_version=4)
    for cell in notebook.cells:
        if "outputs" in cell:
            # Without a kernel progress bars would show 0 %.
            cell.outputs = [
                output
                for output in cell.outputs
                if _WIDGET not in output.get("data", {})
            ]
    notebook.metadata.pop("widgets", None)
    notebook.metadata["papermill"]["output_path"] = report.name
    notebook.metadata["workbook"] = {
        "files": files,
        "executed": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    }
    if results in files:  # for readers who have the notebook's file alone
        notebook.metadata["workbook"]["results"] = read_json(staging / results)
    with complete_or_absent(report) as temporary:
        temporary.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    return [*(reports / file for file in files), report]


def _files_before(report: Path) -> list[str]:
    """Files of the previous execution; none where its notebook is damaged."""
    try:
        return list(read_json(report)["metadata"]["workbook"]["files"])
    except (OSError, ValueError, LookupError, TypeError):
        return []


def _sentence(fault: Exception, staging: Path) -> str:
    """Message of a failed execution: the cell, its error, and the folder so far."""
    colours = r"\x1b\[[0-9;]*m"
    text = re.sub(colours, "", str(getattr(fault, "evalue", fault))).strip()[:2000]
    if not hasattr(fault, "ename"):
        return f"{type(fault).__name__}: {text}"  # such as of a kernel that was killed
    first = fault.source.strip().partition("\n")[0].strip()
    return (
        f"cell {fault.cell_index} ({first[:80]})\n"
        f"  {fault.ename}: {text}\n"
        f"  all up to there: {os.path.relpath(staging, PROJECT_ROOT)}"
    )


def source_of(notebook: str, part: bool) -> Any:
    """Source for papermill: the path of a notebook, or the cells of a share.

    Args:
        notebook: its name.
        part: whether a share is executed, which ends before the closing cells.
    """
    import nbformat

    path = f"notebooks/{notebook}.ipynb"
    if not part:
        return path  # papermill writes it into the executed notebook
    source = nbformat.read(path, as_version=4)
    source.cells = list(
        itertools.takewhile(
            lambda cell: CLOSING not in cell.metadata.get("tags", []), source.cells
        )
    )
    return source


def _environment(threads: int, visible: str) -> dict[str, str]:
    """Environment variables of a kernel that uses some of the cores, and one GPU.

    With all cores torch chooses the number of threads; values of the user stay.
    """
    variables = dict(_KERNEL)
    if threads < len(os.sched_getaffinity(0)):
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            variables[name] = os.environ.get(name, str(threads))
    if visible:
        variables["CUDA_VISIBLE_DEVICES"] = visible
    return variables


def _take_device(
    stack: ExitStack, device: str, tell: Callable[[str], None]
) -> tuple[str, str]:
    """Take the device of an execution, tried by torch, until the stack closes.

    Args:
        stack: whose closing releases the card.
        device: the notebook's parameter; "" where it has none.
        tell: is called with a sentence if all cards are in use.

    Returns:
        The value for CUDA_VISIBLE_DEVICES, "" where there is no card; and the name of
        the device, "" where the notebook has no such parameter.

    Raises:
        ValueError: if a GPU is asked for, and torch can use none.
        OSError: if the folder of locks cannot be used.
    """
    if device == "":  # a notebook without this parameter
        return "", ""
    if device == "cpu":
        return "", "the CPU"
    with ExitStack() as attempt:
        visible = lock_card(attempt, device, tell)
        name, why_none = device_in_words(device, visible)
        if why_none:
            raise ValueError(why_none)
        # "auto" falls back to "the CPU, since ..." where torch can use no card.
        uses_card = not name.startswith("the CPU")
        if uses_card:
            # Else the lock is released where the attempt ends.
            stack.enter_context(attempt.pop_all())
            return visible, name
    return "-1" if visible else "", name  # hidden from notebooks, as it cannot be used


def execute(job: Mapping[str, Any], threads: int) -> int:
    """Execute a job's notebook, publish it, and write its record last of all.

    Args:
        job: ``CheckedStudy.job`` of an execution.
        threads: cores that it may use.

    Returns:
        0, or 1 if it failed, with the reason in the log. If the notebook of a
        combination of a sweep fails, this is recorded and 0 is returned, so that the
        others run.
    """
    study = job["study"]
    name = job["name"]
    work = from_root(job["work"])
    lock = work / "lock" / study / name
    with ExitStack() as stack:
        lock.parent.mkdir(parents=True, exist_ok=True)
        try:
            stack.enter_context(FileLock(lock).acquire(timeout=10))
        except Timeout:
            line = "another process executes it; wait until that one ends, or end it"
            log(work, study, f"{name} failed: {line}")
            return 1
        try:
            visible, device = _take_device(
                stack,
                job["parameters"].get("device", ""),
                lambda line: log(work, study, f"{name} {line}"),
            )
        except (ValueError, OSError) as fault:
            log(work, study, f"{name} failed: {fault}")
            return 1
        place = f" on {device}" if device else ""
        log(work, study, f"{name} starts{place}")
        return _executed(job, work, _environment(threads, visible))


def _is_combination(name: str) -> bool:
    """Whether an execution is one of a sweep's combinations, see ``Execution.name``."""
    return "@" in name


def _executed(
    job: Mapping[str, Any], work: Path, environment: Mapping[str, str]
) -> int:
    """Execute a job whose lock and device are taken, see ``execute``."""
    study = job["study"]
    notebook = job["notebook"]
    name = job["name"]
    staging = work / "staging" / study / name
    scratch = temporary_folder_of(staging)
    began = time.monotonic()
    os.environ.update({**environment, STAGING: str(staging), WORK: str(work)})
    if _is_combination(name):
        os.environ[COMBINATION] = str(from_root(job["reports"]))
    for variable in ("TMPDIR", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        os.environ[variable] = str(scratch)
    tempfile.tempdir = str(scratch)
    try:
        for needed in job["needs"]:
            if failure(work, study, needed):
                raise RuntimeError(f"{needed} failed, and it reads the results of that")
        keep_claims(work, job["claims"])
        for folder in (staging, scratch):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        run_papermill(
            source_of(notebook, bool(job["part"])),
            staging / f"{notebook}.ipynb",
            job["parameters"],
            lambda line: log(work, study, f"  {name}: {line}"),
        )
        made = _publish_all(job, staging, work)
        write_json(record_of(work, study, name), {"made": made})
        shutil.rmtree(staging)
        log(work, study, f"{name} done in {time.monotonic() - began:.0f} s")
    except Exception as fault:
        sentence = _sentence(fault, staging)
        log(work, study, f"{name} failed: {sentence}")
        if not _is_combination(name):
            return 1
        write_json(record_of(work, study, name), {"made": {}, "failed": sentence})
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        # Values that combinations compute are published by the next whole execution.
        if not _is_combination(name):
            _publish_records(work, study)
    return 0


def _publish_records(work: Path, study: str) -> None:
    """Publish the study's records so far, also after a failed execution."""
    if not (work / MANIFEST).is_file():
        return  # notebook 01 has not chosen the images yet: there are no records
    try:
        for sentence in records.publish(work, records_of(work)).refused:
            log(work, study, f"records: {sentence}")
    except (OSError, ValueError) as fault:
        log(work, study, f"records: {fault}")


def _publish_all(job: Mapping[str, Any], staging: Path, work: Path) -> dict[str, str]:
    """Publish an execution; return the digest of each file by its path from work."""
    if job["part"]:
        return {}
    if _is_combination(job["name"]):
        for path in staging.glob("tables/*.npz"):
            path.unlink()  # maps, all of which are in the study's own report
    made = publish(staging, from_root(job["reports"]), job["notebook"])
    # The story lists what the notebook showed, and as "work_file" each file that it
    # wrote to the folder of work for other notebooks.
    story = staging / "story" / f"{job['notebook']}.json"
    items = read_json(story) if story.is_file() else []
    made += [
        inside(work, item["path"]) for item in items if item["kind"] == "work_file"
    ]
    return {os.path.relpath(path, work): file_digest(path) for path in made}


def write_pages(job: Mapping[str, Any]) -> int:
    """Write the pages of a report and their figures, and their record last of all.

    Args:
        job: ``CheckedStudy.job`` without an execution.

    Returns:
        0, or 1 if it failed, with the reason in the log, such as a hand-written
        sentence that the tables no longer support.
    """
    work = from_root(job["work"])
    try:
        _write_pages(job, work, from_root(job["reports"]))
    except (OSError, ValueError) as fault:
        traceback.print_exc()  # goes to Snakemake's own log
        log(work, job["study"], f"pages failed: {fault}")
        return 1
    return 0


def _write_pages(job: Mapping[str, Any], work: Path, reports: Path) -> None:
    os.environ["MPLBACKEND"] = "agg"  # in place of the user's
    from helpers.report import pages

    for sweep in job["sweeps"]:
        _list_combinations(sweep, job, work, reports)
    write_json(
        reports / PUBLISHED_VALUES,
        {
            "study": job["study"],
            "notebooks": [*job["parameters"]],
            "parameters": job["parameters"],
        },
    )
    pages.write(reports, job["unchanged"])
    made = [*sorted(reports.glob("*.html")), reports / PUBLISHED_VALUES]
    for sweep in job["sweeps"]:
        folder = reports / "sweeps" / sweep["notebook"]
        made += [folder / SWEEP_LISTING, folder / "index.html"]
    write_json(
        work / "done" / job["study"] / "pages.json",
        {"made": {os.path.relpath(path, work): file_digest(path) for path in made}},
    )


def _list_combinations(
    sweep: Mapping[str, Any], job: Mapping[str, Any], work: Path, reports: Path
) -> None:
    """Write the list of a sweep's combinations, with the errors of failed ones."""
    rows = []
    notebook = sweep["notebook"]
    chain = [notebook, *sweep["through"]]
    # A combination's folder is named by its values in the order of the parameters; the
    # job, which is JSON with sorted keys, has them in alphabetical order.
    swept = {name: sweep["values"][name] for name in sweep["parameters"]}
    combinations = Sweep(notebook, swept, tuple(sweep["through"])).combinations()
    for folder, values in combinations.items():
        names = {stem: Execution(stem, {}, combination=folder).name for stem in chain}
        faults = {stem: failure(work, job["study"], names[stem]) for stem in chain}
        failed = {stem: fault for stem, fault in faults.items() if fault}
        rows.append({"folder": Path(folder).name, "values": values, "failed": failed})
    content = {
        "notebooks": chain,  # the swept one, and those that are executed after it
        "parameters": sweep["parameters"],
        "combinations": rows,
    }
    write_json(reports / "sweeps" / notebook / SWEEP_LISTING, content)


if __name__ == "__main__":
    die_with_parent()
    # Notebooks do not need this grammar, which jsonschema would build in 1.5 s.
    sys.modules["rfc3987_syntax"] = None
    text, parent, *threads = sys.argv[1:]  # threads: of an execution alone
    if os.getppid() != int(parent):
        sys.exit("the process that asked for this is gone")
    os.chdir(PROJECT_ROOT)
    job_of_snakemake = json.loads(text)
    if "notebook" in job_of_snakemake:
        sys.exit(execute(job_of_snakemake, int(threads[0])))
    sys.exit(write_pages(job_of_snakemake))
