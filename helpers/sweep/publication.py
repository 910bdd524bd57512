"""What executions made, published whole when they end, with digests that show whether anybody changed it since."""

import os
import shutil
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from helpers.files import complete_or_absent, content_digest, inside, read_json, write_json

BEGUN = ".begun.json"  # ends the name of the last complete execution's record while the next one is at work, and after it did not end


def withdraw(record: Path) -> None:
    """Take the record of a complete execution away, at once, before the next one touches what it vouches for."""
    if record.is_file():
        os.replace(record, record.with_suffix(BEGUN))


def reinstate(record: Path, content: Mapping[str, Any]) -> None:
    """Write the record of a complete execution, last of all; what was withdrawn for it goes."""
    write_json(record, content)
    record.with_suffix(BEGUN).unlink(missing_ok=True)


def last_record(record: Path) -> dict[str, Any]:
    """Read the record of an execution, or the one that was withdrawn for it.

    Raises:
        OSError, ValueError: neither is there or readable.
    """
    return read_json(record if record.is_file() else record.with_suffix(BEGUN))


def readable(path: Path, kind: type = dict, items: Mapping[str, type] | None = None) -> Any:
    """What is kept as JSON in a file, a mapping or a list; an empty one where there is none that can be read, or that lacks items."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return kind()
    sound = isinstance(found, kind) and all(isinstance(found.get(name), of) for name, of in (items or {}).items())
    return found if sound else kind()


def known(record: Path) -> bool:
    """Whether an execution was ever complete, and left a readable record of it."""
    return bool(readable(record if record.is_file() else record.with_suffix(BEGUN)))


def staged_story(staging: Path, notebook: str) -> list[dict[str, Any]]:
    """Read what a notebook recorded of its report; nothing where it recorded none."""
    return [item for item in readable(staging / "story" / f"{notebook}.json", list) if isinstance(item, dict)]


def work_files(story: Iterable[Mapping[str, Any]], work: Path) -> list[Path]:
    """List the files in the study's folder of work that a notebook said it made for others."""
    return [inside(work, str(item.get("path"))) for item in story if item.get("kind") == "work_file"]


def publish(staging: Path, published: Path, report: Path, record: Path) -> list[Path]:
    """Copy what an execution left in its own folder into the report; give the files. What only the execution before it made is deleted.

    Each file is whole or absent; a kill in between leaves no record, so that all is made again.

    Args:
        staging: the execution's own folder, which goes.
        published: where its files belong.
        report: the executed notebook, from whose folder a record names files.
        record: of the execution; the one before it was withdrawn.
    """
    files = [path for path in sorted(staging.rglob("*")) if path.is_file() and not path.name.endswith(".partial")]
    made = [_place(published, str(path.relative_to(staging))) for path in files]
    for source, target in zip(files, made, strict=True):
        with complete_or_absent(target) as temporary:
            shutil.copyfile(source, temporary)
    for path in set(_published_before(record, report.parent)) - {*made, _place(report.parent, report.name)}:
        path.unlink(missing_ok=True)
    shutil.rmtree(staging, ignore_errors=True)
    return made


def _place(folder: Path, name: str) -> Path:
    """Where a file of a folder lies: a link that stands there, and not what it leads to, which may be a file of somebody else's."""
    parent, _, last = name.rpartition("/")
    if last in ("", ".", ".."):
        raise ValueError(f"{name!r} is no name of a file")
    return (inside(folder, parent) if parent else folder.resolve()) / last


def _published_before(record: Path, folder: Path) -> list[Path]:
    try:
        return [_place(folder, name) for name in last_record(record)["published"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []  # without a readable record nothing is known to be ours


def digests(paths: Iterable[Path], folder: Path) -> dict[str, str]:
    """Map files, named from a folder, to the digests of their contents."""
    return {os.path.relpath(path, folder): digest_of_file(path) for path in paths}


def digest_of_file(path: Path) -> str:
    """Digest a file's content; "" where there is none. A file that was not touched is read once."""
    try:
        state = path.stat()
        return _digest(path, state.st_size, state.st_mtime_ns, state.st_ino)
    except OSError:
        return ""


@lru_cache(maxsize=100_000)
def _digest(path: Path, size: int, changed: int, inode: int) -> str:
    if not (digest := content_digest(path)):
        raise FileNotFoundError(path)  # so that its absence is not kept
    return digest


def changed_since(content: Mapping[str, Any], record: Path, report: Path) -> list[str]:
    """List the files of a record that are no longer as the execution left them, each with what became of it."""
    found = []
    for kind, folder in (("published", report.parent), ("work", record.parent)):
        for name, digest in sorted(content[kind].items()):
            if digest_of_file(folder / name) != digest:
                found.append(f"{name.replace('../', '')} ({fate(folder / name)})")
    return found


def fate(path: Path) -> str:
    """What became of a file that is not as it was left."""
    if not path.exists():
        return "deleted"
    return "emptied" if path.is_file() and not path.stat().st_size else "changed"


def stamp(path: Path) -> str:
    """Digest of names, sizes and times of change of a file or of all files below a folder: equal where nothing was touched."""
    digest = blake2b(digest_size=8)
    for folder, folders, files in os.walk(path) if path.is_dir() else [(str(path.parent), [], [path.name])]:
        folders.sort()
        for name in sorted(files):
            try:
                state = os.stat(os.path.join(folder, name))
            except OSError:  # a link that leads nowhere, or a file that was deleted just now
                continue
            relative = os.path.relpath(os.path.join(folder, name), path)
            digest.update(f"{relative}\0{state.st_size}\0{state.st_mtime_ns}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()
