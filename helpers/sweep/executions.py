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
from helpers.sweep import publication
from helpers.sweep.study_file import Execution

CLOSING = "closing"  # tag of the first cell of a notebook's closing part, which only the execution of the whole runs


@dataclass(frozen=True)
class Places:
    """Where the files of a study lie."""

    root: Path
    study: str
    variant: str = ""  # name of a variant of the study, which shares its work and has a report of its own; "" is the main report

    def reports(self, execution: Execution) -> Path:
        """The folder of the report."""
        given = Path(execution.parameters.get("reports_dir", "reports"))
        if execution.part and "reports_dir" in execution.parameters:
            given = given.parents[2]  # a part has a folder of its own below it
        folder = _folder(self.root, str(given), self.study)
        return inside(folder, f"variants/{self.variant}") if self.variant else folder

    def work(self, execution: Execution) -> Path:
        """The study's folder of work."""
        return _folder(self.root, execution.parameters.get("work_dir", "work"), self.study)

    def report(self, execution: Execution) -> Path:
        """The executed notebook."""
        return self.reports(execution) / f"{execution.name}.ipynb"

    def partial(self, execution: Execution) -> Path:
        """The notebook while it is executed, and for good when it fails."""
        return self.report(execution).with_suffix(".partial.ipynb")

    def published(self, execution: Execution) -> Path:
        """The folder of its tables and figures; a part has one of its own."""
        return self.report(execution).with_suffix("") if execution.part else self.reports(execution)

    def staging(self, execution: Execution) -> Path:
        """The folder in which the notebook leaves tables and figures until it ends well."""
        return self.work(execution) / "staging" / "@".join([self.variant, *execution.name.split("/")]).lstrip("@")

    def record(self, execution: Execution) -> Path:
        """The record of a complete execution."""
        folder = self.work(execution) / (f"variants/{self.variant}" if self.variant else "")
        return folder / "executions" / f"{execution.name}.json"

    def failure(self, execution: Execution) -> Path:
        """The record of a failed execution, which is deleted when it succeeds."""
        return self.record(execution).with_suffix(".failed.json")


@lru_cache
def _folder(root: Path, given: str, study: str) -> Path:
    return inside(root / Path(given).expanduser(), study)


@dataclass
class Sources:
    """Digests of notebooks and helpers, each read once; what is edited later belongs to the next command."""

    root: Path
    _found: dict[Path, dict[str, Any]] = field(default_factory=dict)
    _stamps: dict[Path, tuple[Path, str]] = field(default_factory=dict)  # by path: the notebook that reads it first, and its state

    def inputs_of(self, execution: Execution, upstream: Mapping[str, str]) -> dict[str, Any]:
        """Digest everything that an execution depends on: parameters, files that they name, notebook, helpers, results before it."""
        if execution.notebook not in self._found:
            self._found[execution.notebook] = self._digests(execution.notebook)
        known = {"parameters": execution.parameters, "files": self._files(execution)}
        return known | self._found[execution.notebook] | {"upstream": dict(upstream)}

    def _files(self, execution: Execution) -> dict[str, str]:
        """State of the files that parameters name; what an earlier notebook reads enters by what that one found in it."""
        found = {}
        for name, value in execution.parameters.items():
            if name.endswith("_path") and isinstance(value, str) and value and _is_there(self.root, value):
                path = self.root / Path(value).expanduser()
                if path not in self._stamps:
                    self._stamps[path] = (execution.notebook, publication.stamp(path))
                if self._stamps[path][0] == execution.notebook:
                    found[name] = self._stamps[path][1]
        return found

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


def results_of(story: Iterable[Mapping[str, Any]], made: Mapping[str, Mapping[str, str]], inputs: Mapping[str, Any]) -> str:
    """Digest what an execution found: the tables that it reported and the files it made for others.

    One that made none is known by its inputs. Times do not enter, so a notebook whose code changed and whose tables did not makes
    nothing after it run again.

    Args:
        story: what the notebook recorded of its report.
        made: the digests of its record, by "published" and "work".
        inputs: see ``Sources``.
    """
    tables = [str(item.get("path")) for item in story if item.get("kind") == "table"]
    found = {path: digest for path, digest in made["published"].items() if any(path.endswith(name) for name in tables)}
    found |= {path.replace("../", ""): digest for path, digest in made["work"].items()}
    return digest_of(found) if found else digest_of(inputs)


def recorded_results(record: Path, inputs: Mapping[str, Any]) -> str:
    """Read the digest of what a complete execution found, or the last one where it has not ended again."""
    return publication.last_record(record).get("results") or digest_of(inputs)


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
    """Why a notebook has to run; "" when nothing that it depends on changed, and all that it made is as it left it."""
    if not record.is_file():
        interrupted = record.with_suffix(publication.BEGUN).is_file()
        return "runs, since its last execution did not end" if interrupted else "runs for the first time"
    try:
        before = read_json(record)
        reasons = _changes(before["inputs"], inputs)
        changed = [] if reasons else publication.changed_since(before, record, report)
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        return "runs, since the record of its last execution is damaged"
    if changed:
        reasons = [f"what it made was changed: {', '.join(changed[:_NAMED])}{', ...' if len(changed) > _NAMED else ''}"]
    return "runs, since " + "; ".join(reasons) if reasons else ""


_NAMED = 5  # changed files that a reason names


def reason_to_run(execution: Execution, places: Places, inputs: Mapping[str, Any]) -> str:
    """Why an execution has to run, see ``why``; in a variant "" too when the main report holds just this execution."""
    reason = why(places.record(execution), places.report(execution), inputs)
    return "" if reason and valid_record(execution, places, inputs) else reason


def valid_record(execution: Execution, places: Places, inputs: Mapping[str, Any]) -> Path | None:
    """Find the record of a complete execution with these inputs: of the report, or in a variant of the main report."""
    for found in dict.fromkeys([places, Places(places.root, places.study)]):
        if not why(found.record(execution), found.report(execution), inputs):
            return found.record(execution)
    return None


def _changes(before: Mapping[str, Any], inputs: Mapping[str, Any]) -> list[str]:
    labels = {
        "parameters": "parameters changed",
        "files": "files changed of",
        "helpers": "helpers changed",
        "upstream": "results changed of",
    }
    reasons = []
    for key, label in labels.items():
        old = before[key] if isinstance(before[key], dict) else {}  # records of before results were digested hold a list
        changed = sorted(name for name in {*old, *inputs[key]} if old.get(name, ...) != inputs[key].get(name, ...))
        reasons += [f"{label}{'' if label.endswith(' of') else ':'} {', '.join(changed)}"] if changed else []
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
    found = [*_missing_files(executions, places.root), *(fault for execution in executions for fault in _of_execution(execution, gpus))]
    folders = {folder for execution in executions for folder in (places.work(execution), places.reports(execution))}
    return list(dict.fromkeys([*found, *_of_folders(sorted(folders), least_free)]))


# Where published images are had.
_HAD = {
    "tiny_imagenet": "get it from http://cs231n.stanford.edu/tiny-imagenet-200.zip, or ",
    "ilsvrc": "get it from https://www.kaggle.com/c/imagenet-object-localization-challenge/data, or ",
}


def _missing_files(executions: Sequence[Execution], root: Path) -> Iterable[str]:
    """Each place at which nothing is, once, with all parameters that name it."""
    found: dict[str, dict[str, str]] = {}
    for parameters in (execution.parameters for execution in executions):
        for name, value in parameters.items():
            if name.endswith("_path") and isinstance(value, str) and value and not _is_there(root, value):
                found.setdefault(value, {}).setdefault(name, _HAD.get(parameters.get(name.replace("_path", "_source"), ""), ""))
    for value, names in found.items():
        had = next(filter(None, names.values()), "")
        yield (
            f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} {value!r}, and nothing is there; "
            f"{had}give its place by {' '.join(f'--set {name}=...' for name in names)}"
        )


def _is_there(root: Path, value: str) -> bool:
    try:
        return (root / Path(value).expanduser()).exists()
    except (OSError, RuntimeError, ValueError):  # a name that is too long, or the home of a user that is not
        return False


def _of_execution(execution: Execution, gpus: Sequence[str] | None) -> Iterable[str]:
    for name, value in execution.parameters.items():
        if name == "device" and isinstance(value, str) and value.startswith("cuda") and gpus is not None and not gpus:
            yield f"{execution.notebook.stem}: device is {value!r}, and this machine shows no GPU; set device to auto or cpu"


def _of_folders(folders: Sequence[Path], least_free: float) -> Iterable[str]:
    for folder in folders:
        try:
            there = next(path for path in (folder, *folder.parents) if path.exists())
        except OSError as fault:  # a name that no disk takes
            yield f"{folder} cannot be made: {fault.strerror}; set work_dir and reports_dir"
            continue
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            yield f"{there} cannot be written, and {folder.name} has to go there; change its permissions, or set work_dir and reports_dir"
        elif (free := shutil.disk_usage(there).free / GIB) < least_free:
            yield f"{there} has {free:.2f} GiB free, and {least_free:g} GiB are asked for; make room, or lower --min-free"
