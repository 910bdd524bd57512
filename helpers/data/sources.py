"""The files of a source of images: a folder, or a .zip that is unpacked once.

No file outside of the source is read.
"""

import os
import re
import tempfile
import unicodedata
import zipfile
from collections import defaultdict
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from helpers.files import change_stamp, inside, naming_damage

# Characters in names that tables, figures and other systems cannot hold; those from
# \ud800 on stand for bytes that are not UTF-8.
UNUSABLE = re.compile(r"[\\\x00-\x1f\x7f\ud800-\udfff]")
_IMAGE = re.compile(
    r".*\.(jpe?g|jpe|jfif|png|bmp|dib|gif|tiff?|webp|p[bgnp]m|jp2|j2k)",
    re.IGNORECASE | re.DOTALL,
)
# Words that make a folder a split; "seg_train", "test2017" and "trainA" have one.
_SPLIT = re.compile(
    r"(?<![A-Za-z])(?i:(train|training|trainval|val|valid|validation|test|testing))"
    r"(?![a-z]|[A-Z]{2})"
)
# Hidden files, and folders of systems: recycle bins, thumbnails, caches.
_PASSED_OVER = re.compile(
    r"(?<![^/])(\.|([@$_#~][^/]*|system volume information|lost\+found|recycler|"
    r"thumbs|thumbnails)/)",
    re.IGNORECASE,
)
# Kinds of what is left out, and what to do.
_LEFT_OUT = {
    "name_not_usable": "names with a backslash, a control character or bytes that are "
    "not UTF-8; rename those",
    "link_not_followed": "links lead to folders, out of the folder or nowhere; put "
    "there what they point to, such as by cp -rL",
    "passed_over": "hidden files and folders of systems",
}


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


def split_of(path: str) -> str:
    """Find the split that a path names: "train", "test" (also for val), or "".

    Args:
        path: of a folder or file.

    Example:
        >>> split_of("seg_train/valley"), split_of("images/val2017"), split_of("dev")
        ('train', 'test', '')
    """
    words = [word.lower() for word in _SPLIT.findall(path)]
    if not words:
        return ""
    return "train" if words[-1].startswith("train") else "test"


class Source:
    """A folder and the files below it.

    Hidden files, folders of systems, links that lead out of the folder, and files with
    unusable names are left out.

    Attributes:
        root: the folder.
        names: paths of the files below it, sorted.
        images: those of the paths that have the ending of an image.
        faults: what was left out, each with the columns of ``StudyData.faults``.
    """

    def __init__(self, root: Path, classes: Sequence[str] = ()) -> None:
        """List the files.

        Among folders of which some are named as ``classes``, only these and splits are
        entered.

        Args:
            root: the folder.
            classes: names of the folders to enter; empty for all.
        """
        self.root = root
        self.faults: list[dict[str, str]] = []
        wanted = {*map(to_nfc, classes)}
        paths = defaultdict(list)  # by the kind of their fault, "" without one
        for parent, folders, files in os.walk(root, onerror=_raise):
            prefix = f"{parent}/".removeprefix(f"{root}/")
            for name in files:
                paths[self._kind(prefix + name)].append(prefix + name)
            kinds = {name: self._kind(f"{prefix}{name}/") for name in folders}
            for name, kind in kinds.items():
                if kind:
                    paths[kind].append(prefix + name)
            entered = [name for name in folders if not kinds[name]]
            if wanted.intersection(map(to_nfc, entered)):
                entered = [
                    name for name in entered if to_nfc(name) in wanted or split_of(name)
                ]
            folders[:] = entered  # those that os.walk enters
        self.names = sorted(paths.pop("", []))
        self.images = [name for name in self.names if _IMAGE.fullmatch(name)]
        for kind, left_out in paths.items():
            first = min(left_out).encode("utf-8", "backslashreplace").decode()
            self.fault(first, kind, f"{len(left_out)} {_LEFT_OUT[kind]}")

    def _kind(self, name: str) -> str:
        """Kind of the fault of a file, or of a folder/; "" where it can be used."""
        if UNUSABLE.search(name):
            return "name_not_usable"
        if _PASSED_OVER.search(name):
            return "passed_over"
        path = self.root / name
        if path.is_symlink():
            target = Path(os.path.realpath(path))
            if not (target.is_file() and target.is_relative_to(self.root.resolve())):
                return "link_not_followed"
        return ""

    def fault(self, name: str, fault: str, detail: str) -> None:
        """Note something that cannot be used as it is.

        Args:
            name: path of the file; "" for a fault of a class.
            fault: its kind, such as "missing_image".
            detail: in words.
        """
        self.faults.append({"name": name, "fault": fault, "detail": detail})

    @property
    def stamp(self) -> str:
        """Text that changes if a file is renamed, resized or touched."""
        digest = blake2b(digest_size=8)
        for name in self.names:
            state = (self.root / name).stat()
            digest.update(f"{name}\0{state.st_size}\0{state.st_mtime_ns}\0".encode())
        return digest.hexdigest()

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
        return path.read_bytes()


def _raise(fault: OSError) -> None:
    raise fault


def open_source(path: Path, unpacked: Path, classes: Sequence[str] = ()) -> Source:
    """List the files of a folder, or of a .zip, which is unpacked the first time.

    Args:
        path: the folder or .zip.
        unpacked: the folder below which a .zip is unpacked.
        classes: names of the folders to enter, see ``Source``.

    Raises:
        FileNotFoundError: if neither a folder nor a file is there.
        DamagedFileError: if it is no .zip, or half of one.
    """
    if path.is_dir():
        return Source(path, classes)
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is no folder and no .zip; put the images there, or name the "
            "folder or .zip that holds them"
        )
    folder = unpacked / f"{path.stem}-{change_stamp(path)}"
    if not folder.is_dir():
        unpacked.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=unpacked, prefix=".") as partial:
            files = Path(partial) / "files"
            files.mkdir()
            # ``zipfile`` writes nothing outside of the folder, and no links. macOS
            # writes names in UTF-8 without saying so; other encodings are refused.
            utf8 = {"metadata_encoding": "utf-8"}
            with naming_damage(path), zipfile.ZipFile(path, **utf8) as archive:
                archive.extractall(files)
            if not folder.is_dir():  # another process may have been first
                files.rename(folder)
    return Source(folder, classes)
