"""The files of a source of images: a folder, or a .zip that is unpacked once.

No file outside of the source is read.
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

# Characters in names that tables, figures and other systems cannot hold; those from
# \ud800 on stand for bytes that are not UTF-8.
UNUSABLE = re.compile(r"[\\\x00-\x1f\x7f\ud800-\udfff]")
_NAMES_LEFT_OUT = (
    "names with a backslash, a control character or bytes that are not UTF-8; "
    "rename those"
)
_LINKS_LEFT_OUT = (
    "links lead to folders, out of the folder or nowhere; put there what they point "
    "to, such as by cp -rL"
)
_IMAGE = re.compile(
    r".*\.(jpe?g|jpe|jfif|png|bmp|dib|gif|tiff?|webp|p[bgnp]m|jp2|j2k)",
    re.IGNORECASE | re.DOTALL,
)
# How the names of folders of systems begin: recycle bins, thumbnails, caches.
_OF_SYSTEM = re.compile(
    r"[.@$_#~].*|system volume information|lost\+found|recycler", re.IGNORECASE
)
_UTF8_FLAG = 0x800  # of a file in a zip whose name is UTF-8


class Fault(NamedTuple):
    """Something in the data that cannot be used as it is."""

    name: str  # path of the file; "" for a fault of a class or a split
    fault: str  # its kind, such as "missing_annotation"
    detail: str  # in words
    class_id: str = ""
    split: str = ""


def to_nfc(text: str) -> str:
    """Write each accented letter as one character (Unicode's normal form NFC).

    macOS writes an accent in the name of a file as a character of its own, and other
    systems do not. In NFC the two are equal.

    Args:
        text: such as the name of a folder.

    Example:
        >>> len("e\\u0301"), len(to_nfc("e\\u0301"))
        (2, 1)
    """
    return unicodedata.normalize("NFC", text)


class Source:
    """A folder and the files below it.

    Hidden files, folders of systems, links that lead out of the folder, and files with
    unusable names are left out.

    Attributes:
        root: the folder.
        names: paths of the files below it, sorted.
        images: those of the paths that have the ending of an image.
        opened: paths of the files that were read.
        faults: what was left out, counted by its kind.
    """

    def __init__(self, root: Path, classes: Sequence[str] = ()) -> None:
        """List the files.

        Among folders of which some are named as ``classes``, only these are entered.

        Args:
            root: the folder.
            classes: names of the folders to enter; empty for all.
        """
        self.root = root
        self.names: list[str] = []
        self.opened: set[str] = set()
        self.faults: list[Fault] = []
        self._links: list[str] = []
        passed_over: list[str] = []
        wanted = {to_nfc(name) for name in classes}
        for parent, folders, files in os.walk(root, onerror=_raise):
            prefix = "" if parent == str(root) else f"{os.path.relpath(parent, root)}/"
            self._note_unusable(prefix, [*folders, *files])
            links = [name for name in folders if os.path.islink(f"{parent}/{name}")]
            self._links += [f"{prefix}{name}" for name in links if _usable(name)]
            of_system = [name for name in folders if _OF_SYSTEM.fullmatch(name)]
            passed_over += [f"{prefix}{name}" for name in of_system if _usable(name)]
            # os.walk enters the folders that remain in this list.
            folders[:] = filter(_usable, set(folders).difference(links, of_system))
            if any(to_nfc(name) in wanted for name in folders):
                folders[:] = [name for name in folders if to_nfc(name) in wanted]
            self.names += self._usable_files(parent, prefix, files)
        self.names.sort()
        self.images = [name for name in self.names if _IMAGE.fullmatch(name)]
        for kind, paths, words in (
            ("link_not_followed", self._links, _LINKS_LEFT_OUT),
            ("folder_passed_over", passed_over, "folders of systems are passed over"),
        ):
            if paths:
                self.faults.append(Fault(min(paths), kind, f"{len(paths)} {words}"))

    def _note_unusable(self, prefix: str, names: Sequence[str]) -> None:
        """Add a fault for the names in a folder that cannot be used."""
        unusable = [name for name in names if UNUSABLE.search(name)]
        if unusable:
            path = f"{prefix}{min(unusable)}"
            printable = path.encode("utf-8", "backslashreplace").decode()
            detail = f"{len(unusable)} {_NAMES_LEFT_OUT}"
            self.faults.append(Fault(printable, "name_not_usable", detail))

    def _usable_files(
        self, parent: str, prefix: str, files: Sequence[str]
    ) -> Iterator[str]:
        """Paths of the files of a folder that may be read.

        A link may be read if it leads to a file below the root; others are noted.
        """
        root = os.path.realpath(self.root)
        for name in filter(_usable, files):
            if name.startswith("."):
                continue
            path = f"{parent}/{name}"
            if os.path.islink(path):
                target = os.path.realpath(path)
                if not (target.startswith(f"{root}/") and os.path.isfile(target)):
                    self._links.append(f"{prefix}{name}")
                    continue
            yield f"{prefix}{name}"

    def read(self, name: str) -> bytes:
        """Read the bytes of a regular file of the folder.

        Args:
            name: path below the folder.

        Raises:
            ValueError: if it is not a regular file.
            OSError: if it cannot be read now.
        """
        path = inside(self.root, name)
        if not path.is_file():  # reading a pipe or a device may never end
            raise ValueError(f"{name} is not a regular file, or a link to nothing")
        self.opened.add(name)
        return path.read_bytes()


def _raise(fault: OSError) -> None:
    raise fault


def _usable(name: str) -> bool:
    return not UNUSABLE.search(name)


def stamp_of_source(path: Path, classes: Sequence[str] = ()) -> str:
    """Text that changes if a file of a source is renamed, resized or touched.

    A zip is not unpacked for it: its own size and time count.

    Args:
        path: the folder or .zip.
        classes: names of the folders to enter, see ``Source``.

    Raises:
        FileNotFoundError: if the path does not exist.
        ValueError: if it is neither a folder nor a .zip.
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
        classes: names of the folders to enter, see ``Source``.

    Raises:
        FileNotFoundError: if the path does not exist.
        ValueError: if it is neither a folder nor a .zip, or a damaged or empty .zip.
    """
    if path.is_dir():
        return Source(path, classes)
    folder = unpacked / f"{path.stem}-{_zip_state(path)}"
    if not folder.is_dir():
        _unpack(path, folder)
    return Source(folder, classes)


def _zip_state(path: Path) -> str:
    """Size and time of change of a .zip; an error for anything else."""
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; put the images there, or name the folder or .zip "
            "that holds them"
        )
    if not path.is_file() or not zipfile.is_zipfile(path):
        raise ValueError(
            f"{path} is neither a folder nor a whole .zip; download or copy it again"
        )
    return f"{path.stat().st_size}-{path.stat().st_mtime_ns}"


def _unpack(path: Path, folder: Path) -> None:
    """Unpack a zip into a folder that is complete or absent.

    ``zipfile`` writes nothing outside of the folder, and no links.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=folder.parent, prefix=".", ignore_cleanup_errors=True
    ) as partial:
        files = Path(partial) / "files"
        files.mkdir()
        try:
            with zipfile.ZipFile(path) as archive:
                _extract(archive, files)
        except Exception as fault:
            # Damaged files raise exceptions of nearly every kind; an OSError with a
            # number is a fault of the disk.
            if isinstance(fault, OSError) and fault.errno:
                raise
            raise ValueError(f"{path} cannot be unpacked: {fault}") from fault
        if not folder.is_dir():  # another process may have been first
            os.replace(files, folder)


def _extract(archive: zipfile.ZipFile, folder: Path) -> None:
    """Write the files of a zip below a folder."""
    members = archive.infolist()
    if all(member.is_dir() for member in members):
        raise ValueError("it holds no files")
    size = sum(member.file_size for member in members)
    free = shutil.disk_usage(folder).free
    if size > free:
        raise ValueError(
            f"its files take {size / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free"
        )
    for member in members:
        member.filename = _name_in_zip(member)
        archive.extract(member, folder)


def _name_in_zip(member: zipfile.ZipInfo) -> str:
    """The name of a file in a zip, with slashes and in the right encoding.

    PowerShell 5 writes backslashes. macOS writes UTF-8 without its flag, so that
    ``zipfile`` decodes the name by code page 437.
    """
    name = member.filename
    if not member.flag_bits & _UTF8_FLAG:
        with suppress(UnicodeError):  # the name is not UTF-8: code page 437 is right
            name = name.encode("cp437").decode("utf-8")
    return name.replace("\\", "/")
