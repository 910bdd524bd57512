"""Files that are either complete or absent and known by their digests, and where a number comes from: versions, commit, device.

Every write of the workbook goes to a temporary name and is renamed. What is kept to be read again has a seal beside it.
"""

import json
import os
import platform
import subprocess
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b, file_digest
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # so that a launcher can do without torch
    from torch import Tensor

PROJECT_ROOT = Path(__file__).resolve().parent.parent
# Environment variable: the folder in which a kernel of the launcher leaves what the launcher publishes when the notebook ends well.
STAGING = "WORKBOOK_STAGING"
WORK = "WORKBOOK_WORK"  # environment variable: the folder of work of the study that such a kernel belongs to


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
    except IsADirectoryError as fault:
        raise IsADirectoryError(fault.errno, "a folder lies where a file belongs; move it away", str(path)) from fault
    finally:
        temporary.unlink(missing_ok=True)


def content_digest(path: Path) -> str:
    """Digest of a file's bytes, 16 hex digits; "" where there is none."""
    try:
        with path.open("rb") as file:
            return file_digest(file, lambda: blake2b(digest_size=8)).hexdigest()
    except FileNotFoundError:
        return ""


@contextmanager
def sealed(path: Path) -> Iterator[Path]:
    """A temporary path as of ``complete_or_absent``, with a seal left beside the file that ``is_sound`` holds it against.

    The seal is a hidden file with the digest and the name that it belongs to. It is taken away before the file is replaced, so that a
    process killed between the two leaves a file without a seal and never a wrong one.
    """
    with complete_or_absent(path) as temporary:
        yield temporary
        digest = content_digest(temporary)
        _seal(path).unlink(missing_ok=True)
    with complete_or_absent(_seal(path)) as temporary:
        temporary.write_text(f"{digest} {path.parent.name}/{path.name}\n")


def _seal(path: Path) -> Path:
    return path.with_name(f".{path.name}.seal")


def is_known(path: Path) -> bool:
    """Whether a file is there, or was and left its seal."""
    return path.is_file() or _seal(path).is_file()


def is_sound(path: Path) -> bool:
    """Whether a file is there and is what was written under its name; one without a seal is taken as it is where it can be read.

    One that was altered, cut, deleted by hand, or belongs to another name is told in a warning and removed, so that it is made again.
    """
    # Twice, because another process may have replaced the file between the look at its seal and that at itself.
    if _altered(path) and (fault := _altered(path)):
        return give_up(path, fault)
    return path.is_file()


def give_up(path: Path, fault: str) -> bool:
    """False, after a warning of what is wrong with a file and its removal, so that it is made again."""
    warnings.warn(f"{path}: {fault}; it is made again", stacklevel=3)
    remove(path)
    return False


def remove(path: Path) -> None:
    """Delete a file with its seal, where they are."""
    _seal(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def _altered(path: Path) -> str:
    try:
        digest, _, name = _seal(path).read_text().strip().partition(" ")
    except FileNotFoundError:
        return _unreadable(path)
    except ValueError:
        return "its seal is damaged"
    if name != f"{path.parent.name}/{path.name}":
        return f"it belongs to {name}" if name else "its seal is damaged"
    found = content_digest(path)
    return "" if found == digest else "not as it was written" if found else "it was deleted"


def _unreadable(path: Path) -> str:
    """Why a file without a seal cannot be read, by its ending; "" where it can, or is not there."""
    try:
        if path.suffix == ".parquet":
            from pyarrow.parquet import ParquetFile

            with ParquetFile(path) as file:
                file.read().to_pandas()  # whose own part of the header may be damaged too
        elif path.suffix == ".npz":
            import numpy as np

            with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
                for name in kept.files:
                    kept[name]
        elif path.suffix == ".json":
            read_json(path)
        elif path.suffix == ".safetensors":
            from safetensors import safe_open

            with safe_open(path, framework="np"):
                pass
    except FileNotFoundError:
        return ""
    except Exception as fault:  # readers of damaged files raise nearly every kind; one with a number is of the disk
        if isinstance(fault, OSError) and fault.errno:
            raise
        return f"cannot be read ({(str(fault).splitlines() or [type(fault).__name__])[0]})"
    return ""


def write_tensors(path: Path, tensors: Mapping[str, "Tensor"]) -> None:
    """Write named tensors, wherever they are, as one sealed safetensors file."""
    from safetensors.torch import save_file

    with sealed(path) as temporary:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, temporary)


def read_tensors(path: Path) -> dict[str, "Tensor"] | None:
    """Tensors of a file, mapped so that processes share the pages; None where it is not there, or not what was written (``is_sound``)."""
    from safetensors.torch import load_file

    return load_file(path) if is_sound(path) else None


def write_json(path: Path, record: Any, *, seal: bool = False) -> None:
    """Write a record as JSON with sorted keys, sealed where asked; NaN is refused, since JSON has none (store None)."""
    with (sealed if seal else complete_or_absent)(path) as temporary:
        temporary.write_text(json.dumps(record, indent=1, sort_keys=True, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        ValueError: the file is not JSON; the message names it and says that deleting it makes it again.
    """
    try:
        return json.loads(path.read_text())
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as fault:
        raise ValueError(f"{path} is not readable JSON ({fault}); delete it and run again to make it anew") from fault


_PACKAGES = ("torch", "torchvision", "captum", "numpy", "scipy", "pandas", "seaborn", "papermill", "ipywidgets", "jupyterlab")


def versions(packages: tuple[str, ...] = ("torch", "torchvision", "numpy")) -> dict[str, str]:
    """Map "python" and each package to its version, "absent" where it is not installed."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def all_versions() -> dict[str, str]:
    """Versions of every package that a report rests on."""
    return versions(_PACKAGES)


def commit() -> str:
    """Short commit of the project, with "+changes" when the tree differs from it, "unknown" outside git."""
    try:
        revision = _git("rev-parse", "--short", "HEAD")
        return revision + ("+changes" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    run = subprocess.run(("git", *arguments), cwd=PROJECT_ROOT, capture_output=True, text=True, check=True)
    return run.stdout.strip()


def device_name(device: object) -> str:
    """Name of a torch device as a reader knows it: the GPU's model, or the processor's architecture and its threads."""
    import torch  # here, so that a launcher can ask for the commit without loading torch

    if torch.device(str(device)).type == "cuda":
        return torch.cuda.get_device_name(torch.device(str(device)))
    return f"CPU {platform.machine()}, {torch.get_num_threads()} thread(s)"
