"""What would make a sweep fail later, found before anything starts: missing data, no GPU, no room, folders that cannot be written."""

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from helpers.executions import Places
from helpers.parameters import Execution

GIB = 2**30


def faults_of(executions: Sequence[Execution], places: Places, gpus: Sequence[str] | None, least_free: float) -> list[str]:
    """List what stands in the way of a study, each fault once.

    A parameter whose name ends with ``_path`` names a file or folder that must be there; ``device`` may ask for a GPU.

    Args:
        executions: what is to run.
        places: the study's folders.
        gpus: this machine's GPUs; None where other machines do the work.
        least_free: GiB that must be free below work and reports.
    """
    found = [fault for execution in executions for fault in _of_execution(execution, places.root, gpus)]
    folders = {folder for execution in executions for folder in (places.work(execution), places.reports(execution))}
    return list(dict.fromkeys([*found, *_of_folders(sorted(folders), least_free)]))


def _of_execution(execution: Execution, root: Path, gpus: Sequence[str] | None) -> Iterable[str]:
    for name, value in execution.parameters.items():
        if name.endswith("_path") and isinstance(value, str) and value and not (root / Path(value).expanduser()).exists():
            yield f"{execution.notebook.stem}: {name} is {value!r}, and nothing is there; give its place by --set {name}=..."
        if name == "device" and isinstance(value, str) and value.startswith("cuda") and gpus is not None and not gpus:
            yield f"{execution.notebook.stem}: device is {value!r}, and this machine shows no GPU; set device to auto or cpu"


def _of_folders(folders: Sequence[Path], least_free: float) -> Iterable[str]:
    for folder in folders:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            yield f"{there} cannot be written, and {folder.name} has to go there; change its permissions, or set work_dir and reports_dir"
        elif (free := shutil.disk_usage(there).free / GIB) < least_free:
            yield f"{there} has {free:.2f} GiB free, and {least_free:g} GiB are asked for; make room, or lower --min-free"
