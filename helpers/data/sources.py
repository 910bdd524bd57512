"""The files of a source of images: a folder, or a .zip that is unpacked once; nothing is read but what lies in it."""

import os
import re
import tempfile
import zipfile
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from helpers.files import inside

_UNUSABLE = re.compile(
    r"[\\\x00-\x1f\x7f\ud800-\udfff]"
)  # in names: what tables, figures and other systems cannot hold
_LEFT_OUT = "links to folders, or names with a backslash, a control character or bytes that are no UTF-8; copy these there, rename those"
_IMAGE = re.compile(
    r".*\.(jpe?g|png|bmp|gif|tiff?|webp|ppm)", re.IGNORECASE | re.DOTALL
)


class Fault(NamedTuple):
    """Something in the data that could not be used as it is."""

    name: str
    fault: str
    detail: str
    class_id: str = ""
    split: str = ""


class Source:
    """A folder and the files below it; what is hidden, lies behind links to folders, or has an unusable name is left out."""

    def __init__(self, root: Path, classes: Sequence[str] = ()) -> None:
        """List the files. Where folders are named as some classes, only these are looked into."""
        self.root, self.names, self.faults = root, [], []
        for place, inner, files in os.walk(root, onerror=_raise):
            folder = "" if place == str(root) else f"{os.path.relpath(place, root)}/"
            links = [name for name in inner if os.path.islink(f"{place}/{name}")]
            if left_out := [
                *links,
                *(name for name in inner + files if _UNUSABLE.search(name)),
            ]:
                name = f"{folder}{min(left_out)}".encode(
                    "utf-8", "backslashreplace"
                ).decode()  # as tables can hold it
                self.faults.append(
                    Fault(name, "name_not_usable", f"{len(left_out)} {_LEFT_OUT}")
                )
            of_classes = not set(classes).isdisjoint(inner)
            inner[:] = [
                name
                for name in inner
                if _kept(name) and (name in classes or not of_classes)
            ]
            self.names += [f"{folder}{name}" for name in files if _kept(name)]
        self.names.sort()
        self.known = set(self.names)
        self.images = [name for name in self.names if _IMAGE.fullmatch(name)]

    def read(self, name: str) -> bytes:
        """Bytes of a regular file of the folder. Raises ValueError where it is none, and OSError where it cannot be read now."""
        place = inside(self.root, name)
        if not place.is_file():  # no pipe and no device, which may have no end
            raise ValueError(f"{name} is no regular file, or a link to nothing")
        return place.read_bytes()


def _raise(fault: OSError) -> None:
    raise fault


def _kept(name: str) -> bool:
    return (
        not name.startswith(".") and name != "__MACOSX" and not _UNUSABLE.search(name)
    )


def stamp_of_source(path: Path, classes: Sequence[str] = ()) -> str:
    """Text that stays the same while no file of a source is renamed, resized or touched; a zip is not unpacked for it."""
    if not path.is_dir():
        return _zip_state(path)
    digest = blake2b(digest_size=8)
    for name in Source(path, classes).names:
        state = (
            (path / name).stat() if (path / name).exists() else (path / name).lstat()
        )  # of a link to nothing its own
        digest.update(f"{name}\0{state.st_size}\0{state.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def open_source(path: Path, unpacked: Path, classes: Sequence[str] = ()) -> Source:
    """List the files of a folder, or of a .zip, which is unpacked into a folder below ``unpacked`` the first time.

    Raises FileNotFoundError where nothing is there, and ValueError for what is neither, or a damaged zip.
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
            f"{path} does not exist; put the images there, or name the folder or .zip that holds them"
        )
    if not path.is_file() or not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is neither a folder nor a .zip")
    return f"{path.stat().st_size}-{path.stat().st_mtime_ns}"


def _unpack(path: Path, place: Path) -> None:
    """Unpack a zip into a folder that is complete or absent; ``zipfile`` lets no name leave it, and writes no links."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=place.parent, prefix=".", ignore_cleanup_errors=True
    ) as partial:
        try:
            with zipfile.ZipFile(path) as archive:
                archive.extractall(f"{partial}/files")
        except Exception as fault:  # unpackers raise nearly every kind for damaged files; one with a number is of the disk
            if isinstance(fault, OSError) and fault.errno:
                raise
            raise ValueError(f"{path} cannot be unpacked: {fault}") from fault
        if not place.is_dir():  # another process may have been first
            os.replace(f"{partial}/files", place)
