"""Files and functions of helpers that a notebook passes until its first table.

``python -m benchmarks.passed 03_cam_scoring filled20`` executes the cells of a notebook
in this process up to there, from a study's records or its folder of work. It is what
someone reads who asks where a number comes from.
"""

import argparse
import json
import sys
from types import FrameType
from typing import Any

from helpers.files import PROJECT_ROOT
from helpers.report.notebook import Report

HELPERS = str(PROJECT_ROOT / "helpers")


class FirstTableError(Exception):
    """The notebook shows its first table."""


def passed_until_first_table(notebook: str, study: str) -> dict[str, set[str]]:
    """Execute a notebook until it shows a table.

    Args:
        notebook: its name without suffix.
        study: whose values the parameters take.

    Returns:
        Names of the functions that ran, by file below ``helpers``; comprehensions and
        what runs on import are not counted.
    """
    functions: dict[str, set[str]] = {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(HELPERS):
            return
        of_file = functions.setdefault(code.co_filename[len(HELPERS) + 1 :], set())
        is_new = code.co_qualname not in of_file and not code.co_name.startswith("<")
        if is_new and not is_of_import(frame):
            of_file.add(code.co_qualname)
        if code is Report.table.__code__:
            raise FirstTableError

    path = PROJECT_ROOT / f"notebooks/{notebook}.ipynb"
    names: dict[str, Any] = {"In": []}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        code = compile("".join(cell["source"]), notebook, "exec")
        sys.setprofile(note)
        try:
            exec(code, names)
        except FirstTableError:
            break
        finally:
            sys.setprofile(None)
        if "parameters" in cell["metadata"].get("tags", []):
            names["study"] = study
    return {file: names for file, names in functions.items() if names}


def is_of_import(frame: FrameType | None) -> bool:
    """Whether a function was called while a module was imported."""
    while frame is not None:
        if "importlib._bootstrap" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def main() -> None:
    """Print files with their functions, and how many there are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", help="such as 03_cam_scoring")
    parser.add_argument("study", help="such as filled20")
    options = parser.parse_args()
    functions = passed_until_first_table(options.notebook, options.study)
    for file, names in sorted(functions.items()):
        print(f"{file}: {', '.join(sorted(names))}")
    total = sum(map(len, functions.values()))
    print(f"{len(functions)} files, {total} functions")


if __name__ == "__main__":
    main()
