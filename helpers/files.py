"""Files that are either complete or absent, and where a number comes from: versions, commit, device."""

import json
import os
import platform
import subprocess
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # so that a launcher can do without torch
    from torch import Tensor

PROJECT_ROOT = Path(__file__).resolve().parent.parent
# Environment variable: the folder in which a kernel of the launcher leaves what the launcher publishes when the notebook ends well.
STAGING = "WORKBOOK_STAGING"
# Environment variable: where a combination of a sweep publishes.
COMBINATION = "WORKBOOK_COMBINATION"
SWEEP_LISTING = "sweep.json"  # of a sweep's combinations, beside their folders
WORK = "WORKBOOK_WORK"  # environment variable: the folder of work of the study that such a kernel belongs to

# What reading a damaged .npz or .parquet raises.
DAMAGES = (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error)
RECORDS = "records"  # in the folder of a report: see ``helpers/scoring/records.py``
POINTER = "records.json"  # in a study's folder of work, where records lie elsewhere
# In a study's folder of work and in its records: which images notebook 01 chose, and all
# that is known of them but their pixels.
MANIFEST = "data.json"
LABELS = "images.npz"


def from_root(path: str | Path) -> Path:
    """Resolve a path against the project's root, so that it means the same wherever a kernel starts."""
    return (PROJECT_ROOT / Path(path).expanduser()).resolve()


def inside(folder: Path, name: str) -> Path:
    """Join a name that comes from data to a folder; one that would leave it is a ValueError."""
    folder = folder.resolve()
    path = (folder / name).resolve()
    if not path.is_relative_to(folder) or path == folder:
        raise ValueError(
            f"the name {name!r} leaves the folder {folder}; use a plain file name"
        )
    return path


@contextmanager
def complete_or_absent(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path``, renamed when the block succeeds and deleted when it fails.

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


def digest_of(path: Path) -> str:
    """Digest of a file, 16 hexadecimal digits; "" where there is none."""
    if not path.is_file():
        return ""
    return blake2b(path.read_bytes(), digest_size=8).hexdigest()


_WHOLE = 2**26  # bytes of a file up to which all of it decides its stamp


def stamp_of(path: Path) -> str:
    """Text that changes when what lies at a path does.

    A folder: names, sizes and times of all files below it. A .zip: names, sizes and
    checksums of all that it holds. Another file: its contents, of a large one the size,
    time, beginning and end.

    Args:
        path: a file or folder; "" comes back where nothing is there.
    """
    digest = blake2b(digest_size=8)
    if path.is_dir():
        for folder, folders, names in os.walk(path):
            folders.sort()
            for name in sorted(names):
                file = os.path.join(folder, name)
                state = _state(file)
                name = os.path.relpath(file, path)
                digest.update(f"{name}\0{state}\0".encode(errors="surrogateescape"))
        return digest.hexdigest()
    if not path.is_file():
        return ""
    if zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                for item in archive.infolist():
                    state = f"{item.filename}\0{item.file_size}\0{item.CRC}\0"
                    digest.update(state.encode("utf-8", "surrogateescape"))
                return digest.hexdigest()
        except (zipfile.BadZipFile, ValueError, NotImplementedError):
            pass  # a damaged one is a file as others
    size = path.stat().st_size
    with path.open("rb") as file:
        if size > _WHOLE:
            digest.update(f"{size} {path.stat().st_mtime_ns}".encode())
            digest.update(file.read(2**20))
            file.seek(size - 2**20)
        digest.update(file.read())
    return digest.hexdigest()


def _state(file: str) -> str:
    """Size and time of a file; of a link what it points to, or the link itself."""
    try:
        state = os.stat(file)
    except OSError:
        state = os.lstat(file)
    return f"{state.st_size} {state.st_mtime_ns}"


def records_of(work: Path) -> Path:
    """Folder of the published records of a study, by its folder of work.

    ``reports/<study>/records`` beside ``work/<study>``, or where ``work/<study>/records.json``
    says, which notebooks write whose ``reports_dir`` is another place.

    Args:
        work: ``<work_dir>/<study>``.

    Returns:
        The folder, which need not exist.
    """
    pointer = work / POINTER
    if pointer.is_file():
        return from_root(read_json(pointer)["folder"])
    return work.parent.parent / "reports" / work.name / RECORDS


def digest(value: Any) -> str:
    """Digest of a JSON-like value, such as the settings that decide some numbers: 8 hex digits, whatever the order of keys."""
    return blake2b(
        json.dumps(value, sort_keys=True).encode(), digest_size=4
    ).hexdigest()


def write_tensors(
    path: Path, tensors: Mapping[str, "Tensor"], header: Mapping[str, str] | None = None
) -> None:
    """Write named tensors, wherever they are, as one safetensors file."""
    from safetensors.torch import save_file

    with complete_or_absent(path) as temporary:
        save_file(
            {
                name: tensor.detach().cpu().contiguous()
                for name, tensor in tensors.items()
            },
            temporary,
            dict(header or {}) or None,
        )


def read_tensors(path: Path) -> dict[str, "Tensor"] | None:
    """Tensors of a file, mapped so that processes share the pages; None where it is not there or damaged, which is said."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except FileNotFoundError:
        return None
    except SafetensorError as fault:
        warnings.warn(f"{path} is damaged ({fault}); it is made again", stacklevel=2)
        return None


def read_header(path: Path) -> dict[str, str]:
    """Texts in the header of a safetensors file; none where it has none, is not there or damaged, or is of another kind."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError):
        return {}


def write_json(path: Path, record: Any) -> None:
    """Write a record as JSON with sorted keys; NaN is refused, since JSON has none (store None)."""
    with complete_or_absent(path) as temporary:
        temporary.write_text(
            json.dumps(record, indent=1, sort_keys=True, allow_nan=False) + "\n"
        )


def read_json(path: Path) -> Any:
    """Read a JSON file; a ValueError names one that is none."""
    try:
        return json.loads(path.read_text())
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as fault:
        raise ValueError(
            f"{path} is not readable JSON ({fault}); delete it and run again to make it anew"
        ) from fault


def versions(
    packages: Sequence[str] = ("torch", "torchvision", "numpy"),
) -> dict[str, str]:
    """Map "python" and each installed package to its version."""
    return {"python": platform.python_version()} | {
        name: version(name) for name in packages
    }


def commit() -> str:
    """Short commit of the project, with "+changes" when the tree differs from it, "unknown" outside git."""
    where = {"cwd": PROJECT_ROOT, "capture_output": True, "text": True}
    try:
        name = subprocess.run(
            ["git", "describe", "--always", "--exclude=*"], check=True, **where
        ).stdout.strip()
        # Contents are compared as filters leave them: outputs of a notebook are no change.
        differs = subprocess.run(["git", "diff", "--quiet", "HEAD"], **where).returncode
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{name}+changes" if differs else name


def device_name(device: Any) -> str:
    """Name of a torch device as a reader knows it: the GPU's model, or the processor's architecture and its threads."""
    import torch  # here, so that a launcher can ask for the commit without loading torch

    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU {platform.machine()}, {torch.get_num_threads()} thread(s)"
