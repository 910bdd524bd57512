"""Files that are complete or absent, and what made them: versions, commit, device."""

import json
import math
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
    import numpy as np
    import pandas as pd
    from torch import Tensor

PROJECT_ROOT = Path(__file__).resolve().parents[1]
# Environment variable: the folder to which a notebook writes when a launcher runs it;
# the launcher publishes it when the notebook succeeds.
STAGING = "WORKBOOK_STAGING"
# Variable with the path of the study file of which a notebook is an execution.
STUDY_FILE = "WORKBOOK_STUDY_FILE"

CHECKSUM = "checksum"  # key in a file: the checksum of all else that it holds
RECORDS = "records"  # in the folder of a report: see ``helpers/scores/records.py``
POINTER = "records.json"  # in a study's folder of work, where records lie elsewhere
# Two files in a study's folder of work and in its records: the choice of images by
# notebook 01, and labels and boxes of these images.
MANIFEST = "data.json"
LABELS = "images.npz"


def from_root(path: str | Path) -> Path:
    """An absolute path, independent of the folder in which a kernel starts.

    Args:
        path: absolute, relative to the project's root, or below "~".
    """
    return (PROJECT_ROOT / Path(path).expanduser()).resolve()


def inside(folder: Path, name: str) -> Path:
    """Join a name that comes from data to a folder.

    Args:
        folder: any.
        name: of a file or folder in it.

    Raises:
        ValueError: where the name would leave the folder.
    """
    folder = folder.resolve()
    path = (folder / name).resolve()
    if not path.is_relative_to(folder) or path == folder:
        raise ValueError(
            f"the name {name!r} leaves the folder {folder}; use a plain file name"
        )
    return path


@contextmanager
def complete_or_absent(path: Path) -> Iterator[Path]:
    """A path beside ``path``, renamed when the block succeeds, else deleted.

    A process killed inside the block leaves at most a hidden ``.<name>.<pid>.partial``
    file, never half of ``path``.
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


def file_digest(path: Path) -> str:
    """Digest of a file, 16 hexadecimal digits; "" where there is none."""
    if not path.is_file():
        return ""
    return blake2b(path.read_bytes(), digest_size=8).hexdigest()


def change_stamp(path: Path) -> str:
    """Text that changes with names, sizes or times of what is at a path.

    Args:
        path: of a file or folder.

    Returns:
        8 hexadecimal digits.
    """
    states = []
    for file in filter(Path.is_file, (path, *sorted(path.rglob("*")))):
        state = file.stat()
        name = str(file.relative_to(path))
        states.append([name, state.st_size, state.st_mtime_ns])
    return json_digest(states)


def records_of(work: Path) -> Path:
    """Folder of the published records of a study.

    ``reports/<study>/records`` beside ``work/<study>``. Notebooks that publish to
    another ``reports_dir`` write its path to ``work/<study>/records.json``.

    Args:
        work: ``<work_dir>/<study>``.

    Returns:
        The folder, which need not exist.
    """
    pointer = work / POINTER
    if pointer.is_file():
        return from_root(read_json(pointer)["folder"])
    return work.parent.parent / "reports" / work.name / RECORDS


def folder_of_run(work: Path, run: str) -> Path:
    """The folder of a run below a study's folder of work, or its records.

    Args:
        work: of the study.
        run: its id.
    """
    return inside(work / "runs", run)


def json_digest(value: Any) -> str:
    """Digest of a JSON-like value, 8 hex digits; the order of keys does not matter.

    Args:
        value: for example the settings that a result depends on.

    Example:
        >>> json_digest({"a": 1, "b": 2}) == json_digest({"b": 2, "a": 1})
        True
    """
    return blake2b(
        json.dumps(value, sort_keys=True).encode(), digest_size=4
    ).hexdigest()


def write_tensors(
    path: Path, tensors: Mapping[str, "Tensor"], header: Mapping[str, str] | None = None
) -> None:
    """Write named tensors, wherever they are, as one safetensors file.

    Args:
        path: of the file.
        tensors: by name.
        header: texts.
    """
    from safetensors.torch import save_file

    tensors = {
        name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()
    }
    with complete_or_absent(path) as temporary:
        save_file(tensors, temporary, header)


def read_tensors(path: Path) -> dict[str, "Tensor"] | None:
    """Tensors of a file, mapped so that processes share the pages.

    Returns:
        By name; None if the file is missing or, with a warning, if it is damaged.
    """
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
    """Texts in the header of a safetensors file.

    Returns:
        By name; empty where the file has none, is not there or damaged, or is of
        another kind.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError):
        return {}


class DamagedFileError(ValueError):
    """A file that cannot be read, or holds other values than were written."""


@contextmanager
def naming_damage(path: Path) -> Iterator[None]:
    """Turn any error that a reader raises into one error that names the file.

    Readers raise errors of nearly every class where a file is damaged. An OSError with
    an error number is a fault of the disk and is raised as it is.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as fault:
        if isinstance(fault, OSError) and fault.errno:
            raise
        cause = str(fault).partition("\n")[0] or type(fault).__name__
        raise DamagedFileError(
            f"{path} is damaged ({cause}), or of another kind; put a whole copy there "
            "(an archive as .zip, without a password), or delete it and run again what "
            "made it"
        ) from fault


def read_arrays(path: Path) -> dict[str, "np.ndarray"]:
    """Arrays of an .npz, all of them read and checked.

    Raises:
        DamagedFileError: where it is damaged.
    """
    import numpy as np

    with naming_damage(path):
        # NumPy takes any other file for a pickle, and advises to allow pickles.
        if not zipfile.is_zipfile(path):
            raise ValueError("it is not an .npz")
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}


def write_table(path: Path, table: "pd.DataFrame", **options: Any) -> None:
    """Write a table as parquet with a checksum of its values; ``options`` as pandas."""
    import pyarrow

    table = table.copy(deep=False)
    # The checksum is of the values as they will be read: parquet changes some types.
    as_read = pyarrow.Table.from_pandas(table).to_pandas()
    table.attrs = {CHECKSUM: _checksum_of_table(as_read)}
    with complete_or_absent(path) as temporary:
        table.to_parquet(temporary, **options)


def read_table(path: Path) -> "pd.DataFrame":
    """Read a parquet file.

    Raises:
        DamagedFileError: where it is damaged.
        FileNotFoundError: where it is not there.
    """
    import pandas as pd

    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there")
    # Opened once: by its name pandas opens it twice, and another process may replace
    # it in between.
    with naming_damage(path), path.open("rb") as file:
        table = pd.read_parquet(file)
        stored = table.attrs.pop(CHECKSUM, "none")
        if stored != _checksum_of_table(table):
            raise ValueError(f"its checksum is {stored}, and must be of its values")
    return table


def _checksum_of_table(table: "pd.DataFrame") -> str:
    """CRC-32 of the names and values of columns, 8 hex digits."""
    from pandas.api.types import is_numeric_dtype

    crc = 0
    for name, column in table.items():
        if is_numeric_dtype(column):
            content = column.to_numpy(dtype="float64", na_value=math.nan).tobytes()
        else:  # types of text columns, and None in them, differ between pandas versions
            texts = column.astype(object).map(str).where(column.notna(), "")
            content = "\0".join(texts).encode("utf-8", "surrogatepass")
        crc = zlib.crc32(content, zlib.crc32(f"{name}\0".encode(), crc))
    return f"{crc:08x}"


def write_json(path: Path, record: Any, sealed: bool = False) -> None:
    """Write a record as JSON with sorted keys.

    Args:
        path: of the file.
        record: NaN is refused, since JSON has none (store None).
        sealed: add a checksum to a dict, so that ``read_json`` refuses a changed one.
    """
    if sealed:
        record = json.loads(json.dumps(record))  # keys become texts, as they are read
        record[CHECKSUM] = json_digest(record)
    with complete_or_absent(path) as temporary:
        temporary.write_text(
            json.dumps(record, indent=1, sort_keys=True, allow_nan=False) + "\n"
        )


def read_json(path: Path) -> Any:
    """Read a JSON file, without the checksum of a sealed one.

    Raises:
        ValueError: where it is no JSON, or was changed; it names the file.
    """
    try:
        record = json.loads(path.read_text())
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as fault:
        raise ValueError(
            f"{path} is not readable JSON ({fault}); delete it and run again to make "
            "it anew"
        ) from fault
    stored = record.pop(CHECKSUM, None) if isinstance(record, dict) else None
    if stored not in (None, json_digest(record)):
        raise ValueError(
            f"{path} was changed or is damaged: its checksum is another; put the file "
            "back, or delete its folder and run again to make it anew"
        )
    return record


def versions(
    packages: Sequence[str] = ("torch", "torchvision", "numpy"),
) -> dict[str, str]:
    """Versions of Python and of installed packages, by name."""
    return {"python": platform.python_version()} | {
        name: version(name) for name in packages
    }


def commit() -> str:
    """Short commit of the project.

    Returns:
        With "+changes" if a file outside ``reports`` differs from it (a published
        report does not make the next notebook's commit dirty); "unknown" outside git.
    """
    # git's filter strips outputs of notebooks first, so these are not changes.
    command = (
        "git describe --always --exclude='*' && "
        "{ git diff --quiet HEAD -- . ':(exclude)reports' || echo +changes; }"
    )
    options = {"cwd": PROJECT_ROOT, "capture_output": True, "text": True}
    done = subprocess.run(command, shell=True, **options)
    return "".join(done.stdout.split()) or "unknown"


def device_name(device: Any) -> str:
    """Name of the hardware behind a torch device.

    Returns:
        The GPU's model, or the processor's architecture and its threads.
    """
    import torch  # here, so that a launcher does without

    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU {platform.machine()}, {torch.get_num_threads()} thread(s)"


def table_of(reports: Path, name: str) -> Path:
    """Path of a table in the folder of the execution that wrote it.

    Args:
        reports: of a study, or of a combination of a sweep.
        name: such as "scores.parquet"; no two notebooks write the same table.

    Returns:
        A path without a file where no execution wrote it.
    """
    unwritten = inside(reports / "tables", name)
    for path in sorted(reports.glob(f"[0-9][0-9]_*/tables/{name}")):
        if path.parents[1].suffix != ".failed":
            return path
    return unwritten
