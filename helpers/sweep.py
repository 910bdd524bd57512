"""A study file to executed report notebooks: one papermill run after the other, and only those whose inputs changed."""

import argparse
import ast
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from helpers.files import PROJECT_ROOT, inside, read_json, write_json
from helpers.parameters import Execution, StudyError, code_cells, load_study

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a study from the command line; see ``--help``."""
    parser = argparse.ArgumentParser(prog="python -m helpers.sweep", description="Run the notebooks of a study and write its report.")
    parser.add_argument("study", type=Path, help="params/<study>.yaml")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="override a parameter; notebook.name=value for one"
    )
    parser.add_argument("--force", action="append", default=[], metavar="NOTEBOOK", help="run this notebook although nothing changed")
    parser.add_argument("--dry-run", action="store_true", help="say what would run and why, and run nothing")
    options = parser.parse_args(arguments)
    return run_study(options.study, options.set, force=options.force, dry_run=options.dry_run)


def run_study(
    study: Path, overrides: Sequence[str] = (), *, force: Sequence[str] = (), dry_run: bool = False, root: Path = PROJECT_ROOT
) -> int:
    """Execute the notebooks of a study whose inputs changed, in order, and write the pages of its report.

    Args:
        study: the study file.
        overrides: "name=value" or "notebook.name=value".
        force: notebooks to run in any case.
        dry_run: only print what would run.
        root: the project; notebooks, helpers, work and reports lie below it.

    Returns:
        0 when everything is complete, 1 when a notebook failed, 2 when the study file is wrong, 130 when interrupted.
    """
    try:
        executions = load_study(study, root / "notebooks", overrides)
        wrong = [name for name in force if name not in {item.notebook.stem for item in executions}]
        if wrong:
            raise StudyError([f"--force {name}: this study runs {', '.join(item.notebook.stem for item in executions)}" for name in wrong])
    except StudyError as fault:
        print(f"{len(fault.faults)} fault(s), nothing was run:\n" + "\n".join(f"  {line}" for line in fault.faults), file=sys.stderr)
        return 2
    try:
        return _run_all(executions, study.stem, set(force), dry_run, root)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where this one stopped", file=sys.stderr)
        return 130


def _run_all(executions: Iterable[Execution], study: str, force: set[str], dry_run: bool, root: Path) -> int:
    upstream: list[str] = []
    folder = None
    for execution in executions:
        name, given = execution.notebook.stem, execution.parameters
        folder = inside(root / given.get("reports_dir", "reports"), study)
        record_path = inside(root / given.get("work_dir", "work"), study) / "executions" / f"{name}.json"
        inputs = inputs_of(execution, upstream, root)
        reason = "forced" if name in force else why(record_path, folder / f"{name}.ipynb", inputs)
        upstream = [*upstream, hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()]
        print(f"{name}: {reason or 'complete, nothing changed'}", flush=True)
        if not reason or dry_run:
            continue
        started = time.perf_counter()
        if failure := _execute(execution, folder, root):
            print(failure, file=sys.stderr)
            return 1
        write_json(record_path, {"status": "complete", "inputs": inputs, "seconds": time.perf_counter() - started})
        print(f"{name}: done in {time.perf_counter() - started:.0f} s", flush=True)
    if folder is not None and not dry_run:
        from helpers import pages  # late: it loads nbconvert

        print(f"report: {os.path.relpath(pages.write_all(folder), root)}")
    return 0


def inputs_of(execution: Execution, upstream: Sequence[str], root: Path) -> dict[str, Any]:
    """Digest everything that an executed notebook depends on: parameters, its source, the helpers it imports, what ran before."""
    source = json.dumps([cell["source"] for cell in json.loads(execution.notebook.read_text())["cells"]])
    modules = imported_helpers("\n".join(cell["source"] for cell in code_cells(execution.notebook)), root / "helpers")
    return {
        "parameters": execution.parameters,
        "notebook": _digest(source.encode()),
        "helpers": {str(path.relative_to(root / "helpers").with_suffix("")): _digest(path.read_bytes()) for path in modules},
        "upstream": list(upstream),
    }


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def imported_helpers(source: str, folder: Path) -> list[Path]:
    """List the modules of ``helpers`` that a source imports, directly or through others, sorted."""
    found: set[Path] = set()
    waiting = [source]
    while waiting:
        for node in ast.walk(ast.parse(waiting.pop())):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{item.name}" for item in node.names] + [node.module]
            elif isinstance(node, ast.Import):
                names = [item.name for item in node.names]
            else:
                continue
            for path in (path for name in names if name.startswith("helpers.") for path in _files_of(name, folder)):
                if path not in found:
                    found.add(path)
                    waiting.append(path.read_text())
    return sorted(found)


def _files_of(name: str, folder: Path) -> list[Path]:
    """Files that an imported name may stand for: a module, a package, or both on the way to it."""
    parts = name.split(".")[1:]
    stems = [folder.joinpath(*parts[:length]) for length in range(1, len(parts) + 1)]
    return [path for stem in stems for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file()]


def why(record: Path, report: Path, inputs: Mapping[str, Any]) -> str:
    """Say why a notebook has to run; "" when its report is there and nothing that it depends on changed."""
    if not record.is_file() or not report.is_file():
        return "runs for the first time"
    try:
        before = read_json(record)["inputs"]
    except (ValueError, KeyError, TypeError):
        return "runs, since the record of its last execution is damaged"
    changed = [name for name, value in inputs["parameters"].items() if before["parameters"].get(name, ...) != value]
    changed += [name for name in before["parameters"] if name not in inputs["parameters"]]
    modules = sorted(
        name for name in {*before["helpers"], *inputs["helpers"]} if before["helpers"].get(name) != inputs["helpers"].get(name)
    )
    reasons = [f"parameters changed: {', '.join(changed)}"] if changed else []
    reasons += ["its source changed"] if before["notebook"] != inputs["notebook"] else []
    reasons += [f"helpers changed: {', '.join(modules)}"] if modules else []
    reasons += ["a notebook before it ran with other inputs"] if before["upstream"] != inputs["upstream"] else []
    return "runs, since " + "; ".join(reasons) if reasons else ""


def _execute(execution: Execution, folder: Path, root: Path) -> str:
    """Run one notebook by papermill; give the message of its failure, "" when it went well."""
    os.environ.setdefault("PYTHONHASHSEED", "0")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Report cells are compared and mailed: frozen-module warnings and telemetry have no place in them.
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    import papermill

    folder.mkdir(parents=True, exist_ok=True)
    partial, final = folder / f"{execution.notebook.stem}.partial.ipynb", folder / f"{execution.notebook.stem}.ipynb"
    here = Path.cwd()
    os.chdir(root)  # so that the paths in the report's metadata are relative to the project
    try:
        papermill.execute_notebook(
            str(execution.notebook.relative_to(root)),
            os.path.relpath(partial, root),
            execution.parameters,
            kernel_name="python3",
            progress_bar=False,
            start_timeout=120,
        )
        os.replace(partial, final)
    except papermill.PapermillExecutionError as fault:
        return _failure(fault, execution, partial, root)
    except Exception as fault:  # whatever ends a kernel ends here as one message; the partial report stays
        what = f"{type(fault).__name__}: {fault}"
        return f"{execution.notebook.stem}: the kernel failed: {what}\n  partial report: {os.path.relpath(partial, root)}"
    finally:
        os.chdir(here)
    return ""


def _failure(fault: Any, execution: Execution, partial: Path, root: Path) -> str:
    first = next((line for line in fault.source.splitlines() if line.strip()), "")
    return (
        f"{execution.notebook.stem}: cell {fault.cell_index} failed ({first.strip()})\n"
        f"  {fault.ename}: {_ANSI.sub('', str(fault.evalue))}\n  partial report: {os.path.relpath(partial, root)}"
    )


if __name__ == "__main__":
    sys.exit(main())
