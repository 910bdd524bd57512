"""Whether the files of a complete run are those that it wrote: each belongs to the run by its digest, and what does not is made again."""

from hashlib import blake2b
from pathlib import Path

from helpers.files import content_digest, read_json

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
        wrong = [name for name, digest in result.get("files", {}).items() if _digest(folder / name) != digest]
    except FileNotFoundError:
        return ""
    except (ValueError, KeyError, TypeError, AttributeError):
        return "result.json is damaged"
    return f"{', '.join(wrong)}: not as the run wrote it" if wrong else ""
