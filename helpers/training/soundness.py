"""Whether the files of a complete run are those that it wrote: each belongs to the run by its digest, and what does not is made again.

A run that came from another machine without its weights says so in its result, ``"weights": "left out"``: then snapshots may be absent.
"""

from hashlib import blake2b
from pathlib import Path
from typing import Any

from helpers.files import content_digest, read_json

LEFT_OUT = {"weights": "left out"}  # in the result of a run whose snapshots are elsewhere
_READ_WHOLE = 32 * 2**20  # bytes; a larger snapshot is known by its size here, and by its own header when it is loaded


def digests_of_run(folder: Path) -> dict[str, str]:
    """Digests of what a run wrote beside its result: configuration, history, snapshots, by name."""
    paths = [folder / "config.json", folder / "history.parquet", *sorted(folder.glob("snapshot-*.safetensors"))]
    return {path.name: _digest(path) for path in paths}


def _digest(path: Path) -> str:
    if path.is_file() and (size := path.stat().st_size) > _READ_WHOLE:
        return blake2b(str(size).encode(), digest_size=8).hexdigest()
    return content_digest(path) if path.is_file() else ""


def fault_of_run(folder: Path) -> str:
    """What is wrong with a run that has a result: damaged, of another run, or with files that are not as it left them; "" if nothing is."""
    try:
        result = read_json(folder / "result.json")
        if result["run_id"] != folder.name:
            return f"result.json belongs to the run {result['run_id']}"
        written = {name: digest for name, digest in result.get("files", {}).items() if not _elsewhere(folder / name, result)}
        wrong = [name for name, digest in written.items() if _digest(folder / name) != digest]
    except FileNotFoundError:
        return ""
    except (ValueError, KeyError, TypeError, AttributeError):
        return "result.json is damaged"
    return f"{', '.join(wrong)}: not as the run wrote it" if wrong else ""


def fault_of_file(path: Path) -> str:
    """What is wrong with a file of a complete run, by the digest in its result; "" for one that is as the run wrote it, or of no result."""
    try:
        digest = read_json(path.parent / "result.json")["files"][path.name]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return "" if _digest(path) == digest else "not as the run wrote it"


def is_elsewhere(snapshot: Path) -> bool:
    """Whether a snapshot is not here because its run came without weights from the machine that trained it."""
    try:
        return not snapshot.is_file() and _elsewhere(snapshot, read_json(snapshot.parent / "result.json"))
    except (OSError, ValueError, AttributeError):
        return False


def _elsewhere(path: Path, result: dict[str, Any]) -> bool:
    return path.match("snapshot-*.safetensors") and LEFT_OUT.items() <= result.items() and not path.is_file()
