"""Search for the files of a source by the names that tables and annotations use."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import PurePosixPath

from helpers.data.sources import to_nfc

_WORD = re.compile(r"[^/_. -]+")  # of a path
# How paths begin that do not start in the source: "/home/...", "../..." or "C:/...".
_OUTSIDE_PATH = re.compile(r"/|\.\./|\w:/")


class Places:
    """Paths of files, which are found by the name of the file, with or without ending.

    Capital and small letters count as equal, as they do on the systems on which many
    tables were written.
    """

    def __init__(
        self, paths: Iterable[str], masks: Collection[str] = frozenset()
    ) -> None:
        """Collect some paths.

        Args:
            paths: of the files.
            masks: those of the paths that are masks of images; they are found only if
                no other file has the name.
        """
        self._masks = masks
        # By name, with and without ending, in small letters.
        self._paths: dict[str, list[str]] = defaultdict(list)
        for path in paths:
            for key in {name.lower() for name in _name_and_stem(path)}:
                self._paths[key].append(path)

    def nearest(self, path: str, name: str) -> str:
        """Find the file with a name whose path is most similar to another path.

        Args:
            path: of another file, such as the annotation of the file.
            name: of the file, with or without its ending.

        Returns:
            The path of the file; "" if there is none, or several are equally similar.
        """
        name = to_nfc(name)
        paths = self._paths.get(name.lower(), [])
        return _most_similar(path, self._preferred(paths, name))

    def _preferred(self, paths: Sequence[str], name: str) -> Sequence[str]:
        """Files that are not masks, if any; of these, files in the case of a name."""
        images = [path for path in paths if path not in self._masks] or paths
        return [path for path in images if name in _name_and_stem(path)] or images

    def named(self, table: str, name: str) -> str:
        """Find the file that a table names by its path or the end of its path.

        Args:
            table: path of the table.
            name: name or path of the file, as the table has it.

        Returns:
            The path of the file in the source; "" if there is none, or several are
            equally similar to the path of the table.
        """
        path = PurePosixPath(to_nfc(name).replace("\\", "/"))
        # Folders of another machine are dropped one by one: "C:/data/cats/1.jpg",
        # "data/cats/1.jpg", "cats/1.jpg", "1.jpg".
        starts = len(path.parts) if _OUTSIDE_PATH.match(str(path)) else 1
        for start in range(starts):
            end = f"/{'/'.join(path.parts[start:])}".lower()
            candidates = [
                candidate
                for candidate in self._paths.get(path.name.lower(), [])
                if _has_end(to_nfc(f"/{candidate}").lower(), end)
            ]
            if candidates:
                return _most_similar(table, self._preferred(candidates, path.name))
        return ""


def _name_and_stem(path: str) -> tuple[str, str]:
    """Name of a file, with its ending and without."""
    name = to_nfc(path.rpartition("/")[2])
    return name, name.rpartition(".")[0] or name


def _has_end(path: str, end: str) -> bool:
    """Whether a path, or the path without the ending of its file, ends with a text."""
    return path.endswith(end) or path.rpartition(".")[0].endswith(end)


def _most_similar(path: str, candidates: Sequence[str]) -> str:
    """The candidate that has most words of a path, and of these in the fewest folders.

    Returns:
        "" if there is no candidate, or if several score highest.
    """
    words = set(_WORD.findall(path))
    scores = {}
    for candidate in candidates:
        shared_words = len(words.intersection(_WORD.findall(candidate)))
        scores[candidate] = (shared_words, -candidate.count("/"))
    highest = max(scores.values(), default=None)
    best = [candidate for candidate in candidates if scores[candidate] == highest]
    return best[0] if len(best) == 1 else ""
