"""One execution of a notebook: where its report lies, what it depends on, why it runs again, what would make it fail."""

import ast
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from helpers.files import inside, read_json
from helpers.notebook_parameters import code_cells
from helpers.sweep.study_file import Execution

CLOSING = "closing"  # tag of the first cell of a notebook's closing part, which only the execution of the whole runs


@dataclass(frozen=True)
class Places:
    """Where the files of a study lie."""

    root: Path
    study: str

    def reports(self, execution: Execution) -> Path:
        """Give the study's folder of reports."""
        given = Path(execution.parameters.get("reports_dir", "reports"))
        if execution.part and "reports_dir" in execution.parameters:
            given = given.parents[2]  # a part has a folder of its own below it
        return _folder(self.root, str(given), self.study)

    def work(self, execution: Execution) -> Path:
        """Give the study's folder of work."""
        return _folder(self.root, execution.parameters.get("work_dir", "work"), self.study)

    def report(self, execution: Execution) -> Path:
        """Give the executed notebook."""
        return self.reports(execution) / f"{execution.name}.ipynb"

    def partial(self, execution: Execution) -> Path:
        """Give the notebook while it is executed, and for good when it fails."""
        return self.report(execution).with_suffix(".partial.ipynb")

    def record(self, execution: Execution) -> Path:
        """Give the record of a complete execution."""
        return self.work(execution) / "executions" / f"{execution.name}.json"

    def failure(self, execution: Execution) -> Path:
        """Give the record of a failed execution, which is deleted when it succeeds."""
        return self.record(execution).with_suffix(".failed.json")


@lru_cache
def _folder(root: Path, given: str, study: str) -> Path:
    return inside(root / given, study)


@dataclass
class Sources:
    """Digests of notebooks and helpers, each read once; what is edited later belongs to the next command."""

    root: Path
    _found: dict[Path, dict[str, Any]] = field(default_factory=dict)

    def inputs_of(self, execution: Execution, upstream: Mapping[str, str]) -> dict[str, Any]:
        """Digest everything that an execution depends on: parameters, the notebook, the helpers it imports, results before it."""
        if execution.notebook not in self._found:
            self._found[execution.notebook] = self._digests(execution.notebook)
        return {"parameters": execution.parameters, **self._found[execution.notebook], "upstream": dict(upstream)}

    def _digests(self, notebook: Path) -> dict[str, Any]:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        folder = self.root / "helpers"
        modules = imported_helpers("\n".join(cell["source"] for cell in code_cells(notebook)), folder)
        # Where the closing part begins decides what a part of the notebook executes; it stands in the tags.
        source = [[cell["source"], CLOSING in cell["metadata"].get("tags", [])] for cell in cells]
        return {
            "notebook": digest_of(source),
            "helpers": {str(path.relative_to(folder).with_suffix("")): _digest(path.read_bytes()) for path in modules},
        }


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()


def digest_of(record: Any) -> str:
    """Digest a record of plain values, whatever the order of its keys."""
    return _digest(json.dumps(record, sort_keys=True).encode())


def results_of(execution: Execution, places: Places, inputs: Mapping[str, Any]) -> str:
    """Digest what an execution found: the tables that it reported. One that reported none is known by its inputs.

    Times do not enter, so a notebook whose code changed and whose tables did not makes nothing after it run again.
    """
    given = Path(execution.parameters.get("reports_dir", "reports"))
    folder = inside(places.root / given, places.study)
    try:
        story = read_json(folder / "story" / f"{execution.notebook.stem}.json")
        tables = {item["name"]: _digest(inside(folder, item["path"]).read_bytes()) for item in story if item["kind"] == "table"}
    except (OSError, ValueError, KeyError, TypeError):
        tables = {}
    return digest_of(tables) if tables else digest_of(inputs)


def recorded_results(record: Path, inputs: Mapping[str, Any]) -> str:
    """Read the digest of what a complete execution found."""
    return read_json(record).get("results") or digest_of(inputs)


@lru_cache(maxsize=512)
def _names_in(source: str) -> tuple[str, ...]:
    """List the modules of ``helpers`` that a source may name in its imports."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{item.name}" for item in node.names] + [node.module]
        elif isinstance(node, ast.Import):
            names += [item.name for item in node.names]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names.append(f"helpers.{node.value.id}.{node.attr}")  # a name that a room lends, if there is a room of that name
    return tuple(name for name in dict.fromkeys(names) if name.startswith("helpers."))


def imported_helpers(source: str, folder: Path) -> list[Path]:
    """List the modules of ``helpers`` that a source imports, directly or through others, sorted."""
    found: set[Path] = set()
    waiting = [source]
    while waiting:
        for path in (path for name in _names_in(waiting.pop()) for path in _files_of(name, folder)):
            if path not in found:
                found.add(path)
                waiting.append(path.read_text(encoding="utf-8"))
    return sorted(found)


def _files_of(name: str, folder: Path) -> list[Path]:
    """Files that a name may stand for: a module, a package, or both on the way to it, and the module from which a room lends the name."""
    parts = name.split(".")[1:]
    stems = [folder.joinpath(*parts[:length]) for length in range(1, len(parts) + 1)]
    room = folder / parts[0] / "__init__.py"
    if len(parts) > 1 and room.is_file() and (lent := _lent(room.read_text(encoding="utf-8")).get(parts[1])):
        stems.append(folder / parts[0] / lent)
    return [path for stem in stems for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file()]


@lru_cache(maxsize=64)
def _lent(room: str) -> dict[str, str]:
    """Read which module each name of a room's ``FACE`` comes from, out of the source of the room's ``__init__``."""
    for node in ast.parse(room).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FACE":
            return {name: module for module, names in ast.literal_eval(node.value).items() for name in names}
    return {}


def why(record: Path, report: Path, inputs: Mapping[str, Any]) -> str:
    """Say why a notebook has to run; "" when its report is there and nothing that it depends on changed."""
    if not record.is_file() or not report.is_file():
        return "runs for the first time"
    try:
        before = read_json(record)["inputs"]
        reasons = _changes(before, inputs)
    except (ValueError, KeyError, TypeError, AttributeError):
        return "runs, since the record of its last execution is damaged"
    return "runs, since " + "; ".join(reasons) if reasons else ""


def _changes(before: Mapping[str, Any], inputs: Mapping[str, Any]) -> list[str]:
    labels = {"parameters": "parameters changed", "helpers": "helpers changed", "upstream": "results changed of"}
    reasons = []
    for key, label in labels.items():
        old = before[key] if isinstance(before[key], dict) else {}  # records of before results were digested hold a list
        changed = sorted(name for name in {*old, *inputs[key]} if old.get(name, ...) != inputs[key].get(name, ...))
        reasons += [f"{label}{':' if key != 'upstream' else ''} {', '.join(changed)}"] if changed else []
    return reasons + (["its source changed"] if before["notebook"] != inputs["notebook"] else [])


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
