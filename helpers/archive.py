"""A folder, or a ``.zip`` of it read in place: one way to list and to read files, which never leaves it."""

import zipfile
from collections import defaultdict
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path, PurePosixPath

from helpers.files import inside


class Folder:
    """Files below a directory."""

    def __init__(self, path: Path) -> None:
        """Take the directory; nothing is listed yet."""
        self.path = path

    def folders(self, name: str) -> list[str]:
        """List the names of the folders directly below a folder, sorted; none if it is not there."""
        return self._names(name, directories=True)

    def files(self, name: str) -> list[str]:
        """List the names of the files directly below a folder, sorted; none if it is not there."""
        return self._names(name, directories=False)

    def _names(self, name: str, directories: bool) -> list[str]:
        place = self._place(name)
        return sorted(item.name for item in place.iterdir() if item.is_dir() == directories) if place.is_dir() else []

    def _place(self, name: str) -> Path:
        return inside(self.path, name) if name.strip("./") else self.path

    def exists(self, name: str) -> bool:
        """Say whether a file is there."""
        return self._place(name).is_file()

    def read(self, name: str) -> bytes:
        """Read a file whole. Raises OSError when it cannot be read, ValueError when the name leaves the folder."""
        return self._place(name).read_bytes()

    def stamp(self, names: Iterable[str]) -> str:
        """Name the state of some files by size and time of change: equal stamps mean that nothing was touched."""
        digest = blake2b(digest_size=8)
        for name in sorted(names):
            state = self._place(name).stat()
            digest.update(f"{name}\0{state.st_size}\0{state.st_mtime_ns}\0".encode())
        return digest.hexdigest()


class Zip:
    """Files in a zip archive. Reading is safe from several threads: ``zipfile`` locks its one handle."""

    def __init__(self, path: Path) -> None:
        """Read the archive's directory. Raises zipfile.BadZipFile when it is none."""
        self.path = path
        self._archive = zipfile.ZipFile(path)
        self._files: dict[str, set[str]] = defaultdict(set)
        self._folders: dict[str, set[str]] = defaultdict(set)
        for name in self._archive.namelist():
            parts = PurePosixPath(name).parts
            # An absolute name or one with ".." is not part of the folder that the archive holds.
            if not parts or name.startswith("/") or ".." in parts:
                continue
            for depth in range(1, len(parts)):
                self._folders["/".join(parts[: depth - 1])].add(parts[depth - 1])
            (self._folders if name.endswith("/") else self._files)["/".join(parts[:-1])].add(parts[-1])

    def folders(self, name: str) -> list[str]:
        """List the names of the folders directly below a folder, sorted; none if it is not there."""
        return sorted(self._folders.get(name.strip("/"), ()))

    def files(self, name: str) -> list[str]:
        """List the names of the files directly below a folder, sorted; none if it is not there."""
        return sorted(self._files.get(name.strip("/"), ()))

    def exists(self, name: str) -> bool:
        """Say whether a file is there."""
        folder, _, file = name.rpartition("/")
        return file in self._files.get(folder, ())

    def read(self, name: str) -> bytes:
        """Read a file whole. Raises OSError when it is missing or damaged inside the archive."""
        try:
            return self._archive.read(name)
        except (KeyError, zipfile.BadZipFile, EOFError, ValueError, RuntimeError) as fault:
            raise OSError(f"{name} cannot be read from {self.path.name}: {fault}") from fault

    def stamp(self, names: Iterable[str]) -> str:
        """Name the state of the archive by its size and time of change; ``names`` makes no difference."""
        state = self.path.stat()
        return f"{state.st_size}-{state.st_mtime_ns}"


def open_archive(path: Path) -> Folder | Zip:
    """Open a folder or a zip.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: it is neither.
    """
    if path.is_dir():
        return Folder(path)
    if not path.exists():
        raise FileNotFoundError(
            f"data_path {path} does not exist; put the images there, or set data_path to the folder or .zip that holds them"
        )
    if not zipfile.is_zipfile(path):
        raise ValueError(f"data_path {path} is neither a folder nor a .zip; set data_path to one of these")
    return Zip(path)
