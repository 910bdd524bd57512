"""Files that are either complete or absent: every write of the workbook goes to a temporary name and is renamed."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROJECT_ROOT = Path(__file__).resolve().parent.parent


def from_root(path: str | Path) -> Path:
    """Resolve a path against the project's root, so that it means the same wherever a kernel starts."""
    return (PROJECT_ROOT / Path(path).expanduser()).resolve()


def inside(folder: Path, name: str) -> Path:
    """Join a name that comes from data to a folder, refusing one that would leave it.

    Raises:
        ValueError: the joined path lies outside ``folder``.
    """
    folder = folder.resolve()
    path = (folder / name).resolve()
    if not path.is_relative_to(folder) or path == folder:
        raise ValueError(f"the name {name!r} leaves the folder {folder}; use a plain file name")
    return path


@contextmanager
def complete_or_absent(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``; rename it when the block succeeds, delete it when it fails.

    A process killed inside the block leaves at most a hidden ``.<name>.<pid>.partial`` file, never half of ``path``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield temporary
        with open(temporary, "rb+") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, record: Any) -> None:
    """Write a record as JSON with sorted keys; NaN is refused, since JSON has none (store None)."""
    with complete_or_absent(path) as temporary:
        temporary.write_text(json.dumps(record, indent=1, sort_keys=True, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        ValueError: the file is not JSON; the message names it and says that deleting it makes it again.
    """
    try:
        return json.loads(path.read_text())
    except (UnicodeDecodeError, json.JSONDecodeError) as fault:
        raise ValueError(f"{path} is not readable JSON ({fault}); delete it and run again to make it anew") from fault
