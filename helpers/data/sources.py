"""The files of a source of images: a folder, or a .zip that is unpacked once.

Nothing is read but what lies in it.
"""

import os
import re
import shutil
import tempfile
import unicodedata
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from helpers.files import inside

# In names: what tables, figures and other systems cannot hold.
_UNUSABLE = re.compile(r"[\\\x00-\x1f\x7f\ud800-\udfff]")
_LEFT_OUT = (
    "names with a backslash, a control character or bytes that are no UTF-8; "
    "rename those"
)
_LINKS = (
    "links lead to folders, out of the folder or nowhere; put there what they point "
    "to, such as by cp -rL"
)
_IMAGE = re.compile(
    r".*\.(jpe?g|jpe|jfif|png|bmp|dib|gif|tiff?|webp|p[bgnp]m|jp2|j2k)",
    re.IGNORECASE | re.DOTALL,
)
# Folders that may hold lists of images, and lie beside those of classes.
LIST_FOLDERS = {"imagesets", "list", "lists", "meta", "metadata", "split", "splits"}
_UTF8_FLAG = 0x800  # of a name in a zip


class Fault(NamedTuple):
    """Something in the data that could not be used as it is."""

    name: str
    fault: str
    detail: str
    class_id: str = ""
    split: str = ""


def composed(text: str) -> str:
    """A text with each accented letter as one character, whatever system wrote it.

    Args:
        text: such as the name of a folder, which macOS decomposes.

    Example:
        >>> len("e\\u0301"), len(composed("e\\u0301"))
        (2, 1)
    """
    return unicodedata.normalize("NFC", text)


class Source:
    """A folder and the files below it.

    What is hidden, is a link that leads elsewhere, or has an unusable name is left out.

    Attributes:
        root: the folder.
        names: paths of the files below it, sorted.
        images: those that end as images do.
        opened: names of the files that were read.
        faults: what was left out.
    """

    def __init__(self, root: Path, classes: Sequence[str] = ()) -> None:
        """List the files. Where folders are named as some classes, only those.

        Folders of lists, such as ``meta``, are looked into in any case.

        Args:
            root: folder.
            classes: names of folders; none takes all.
        """
        self.root = root
        self.names: list[str] = []
        self.opened: set[str] = set()
        self.faults: list[Fault] = []
        self._links: list[str] = []
        wanted = {composed(name) for name in classes}
        for place, folders, files in os.walk(root, onerror=_raise):
            top = "" if place == str(root) else f"{os.path.relpath(place, root)}/"
            self._leave_out(top, [*folders, *files])
            linked = {name for name in folders if os.path.islink(f"{place}/{name}")}
            self._links += [f"{top}{name}" for name in linked if _usable(name)]
            named = any(composed(name) in wanted for name in folders)
            folders[:] = [
                name
                for name in folders
                if _usable(name)
                and name not in linked
                and (
                    composed(name) in wanted
                    or not named
                    or name.lower() in LIST_FOLDERS
                )
            ]
            self.names += self._files(place, top, files)
        self.names.sort()
        self._spellings = {name.lower(): name for name in reversed(self.names)}
        self.images = [name for name in self.names if _IMAGE.fullmatch(name)]
        if self._links:
            detail = f"{len(self._links)} {_LINKS}"
            self.faults.append(Fault(min(self._links), "link_not_followed", detail))

    def _leave_out(self, top: str, names: Sequence[str]) -> None:
        """Note the names of a folder that no table can hold."""
        unusable = [name for name in names if _UNUSABLE.search(name)]
        if unusable:
            name = f"{top}{min(unusable)}".encode("utf-8", "backslashreplace").decode()
            detail = f"{len(unusable)} {_LEFT_OUT}"
            self.faults.append(Fault(name, "name_not_usable", detail))

    def _files(self, place: str, top: str, files: Sequence[str]) -> Iterator[str]:
        """Files of a folder that may be read; a link only where it stays inside."""
        root = os.path.realpath(self.root)
        for name in filter(_usable, files):
            path = f"{place}/{name}"
            if os.path.islink(path):
                target = os.path.realpath(path)
                if not (target.startswith(f"{root}/") and os.path.isfile(target)):
                    self._links.append(f"{top}{name}")
                    continue
            yield f"{top}{name}"

    def spelt(self, path: str) -> str:
        """The name of a file as it lies there, such as ``a.TXT`` for ``a.txt``.

        Args:
            path: of a file, in letters of any case.

        Returns:
            "" where there is no such file.
        """
        return self._spellings.get(path.lower(), "")

    def read(self, name: str) -> bytes:
        """Bytes of a regular file of the folder.

        Args:
            name: path below the folder.

        Raises:
            ValueError: where it is none.
            OSError: where it cannot be read now.
        """
        place = inside(self.root, name)
        if not place.is_file():  # no pipe and no device, which may have no end
            raise ValueError(f"{name} is no regular file, or a link to nothing")
        self.opened.add(name)
        return place.read_bytes()


def _raise(fault: OSError) -> None:
    raise fault


def _usable(name: str) -> bool:
    hidden = name.startswith(".") or name == "__MACOSX"
    return not hidden and not _UNUSABLE.search(name)


def stamp_of_source(path: Path, classes: Sequence[str] = ()) -> str:
    """Text that changes where a file of a source is renamed, resized or touched.

    A zip is not unpacked for it.

    Args:
        path: the folder or .zip.
        classes: names of folders that alone are looked into, where there are such.

    Raises:
        FileNotFoundError: where nothing is there.
        ValueError: for what is neither.
    """
    if not path.is_dir():
        return _zip_state(path)
    digest = blake2b(digest_size=8)
    for name in Source(path, classes).names:
        state = (path / name).stat()
        digest.update(f"{name}\0{state.st_size}\0{state.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def open_source(path: Path, unpacked: Path, classes: Sequence[str] = ()) -> Source:
    """List the files of a folder, or of a .zip, which is unpacked the first time.

    Args:
        path: the folder or .zip.
        unpacked: the folder below which a .zip is unpacked.
        classes: names of folders that alone are looked into, where there are such.

    Raises:
        FileNotFoundError: where nothing is there.
        ValueError: for what is neither, or a damaged or empty zip.
    """
    if path.is_dir():
        return Source(path, classes)
    place = unpacked / f"{path.stem}-{_zip_state(path)}"
    if not place.is_dir():
        _unpack(path, place)
    return Source(place, classes)


def _zip_state(path: Path) -> str:
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; put the images there, or name the folder or .zip "
            "that holds them"
        )
    if path.is_file() and not path.stat().st_size:
        raise ValueError(f"{path} is an empty file; download or copy it again")
    if path.is_file() and not zipfile.is_zipfile(path) and _begins_as_zip(path):
        raise ValueError(
            f"{path} is a damaged .zip, whose list of files at its end is missing; "
            "download or copy it again"
        )
    if not path.is_file() or not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is neither a folder nor a .zip")
    return f"{path.stat().st_size}-{path.stat().st_mtime_ns}"


def _begins_as_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _unpack(path: Path, place: Path) -> None:
    """Unpack a zip into a folder that is complete or absent.

    ``zipfile`` lets no name leave it, and writes no links.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=place.parent, prefix=".", ignore_cleanup_errors=True
    ) as partial:
        files = Path(partial) / "files"
        files.mkdir()
        try:
            with zipfile.ZipFile(path) as archive:
                _extract(archive, files)
        except Exception as fault:
            # Unpackers raise nearly every kind for damaged files; one with a number is
            # of the disk.
            if isinstance(fault, OSError) and fault.errno:
                raise
            raise ValueError(f"{path} cannot be unpacked: {fault}") from fault
        if not place.is_dir():  # another process may have been first
            os.replace(files, place)


def _extract(archive: zipfile.ZipFile, folder: Path) -> None:
    """Write the files of a zip below a folder, by the names that were meant."""
    members = archive.infolist()
    if not any(not member.is_dir() for member in members):
        raise ValueError("it holds no files")
    size = sum(member.file_size for member in members)
    free = shutil.disk_usage(folder).free
    if size > free:
        raise ValueError(
            f"its files take {size / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free"
        )
    for member in members:
        member.filename = _meant(member)
        archive.extract(member, folder)


def _meant(member: zipfile.ZipInfo) -> str:
    """The name of a file in a zip.

    PowerShell 5 writes backslashes, and macOS UTF-8 without saying so.
    """
    name = member.filename
    if not member.flag_bits & _UTF8_FLAG:
        with suppress(UnicodeError):  # it is what it seems
            name = name.encode("cp437").decode("utf-8")
    return name.replace("\\", "/")
