"""Where the files lie that tables and other files name."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import PurePosixPath

from helpers.data.sources import composed

_WORD = re.compile(r"[^/_. -]+")  # of a path
_ELSEWHERE = re.compile(r"/|\.\./|\w:/")  # how paths of another machine begin


class Places:
    """Paths by the name of their file, with its ending and without.

    Names are alike whatever their case, as they are for the systems that wrote them.
    """

    def __init__(
        self, paths: Iterable[str], masks: Collection[str] = frozenset()
    ) -> None:
        """Collect some paths.

        Args:
            paths: of files.
            masks: those that are meant only where no other file has the name.
        """
        self._masks = masks
        self._paths: dict[str, list[str]] = defaultdict(list)
        for path in paths:
            for key in {name.lower() for name in _name_and_stem(path)}:
                self._paths[key].append(path)

    def nearest(self, path: str, name: str) -> str:
        """The file of a name, or a stem, that lies most like a path; "" for none.

        Args:
            path: of another file, such as a table.
            name: of the file, with or without its ending.
        """
        name = composed(name)
        return _nearest(path, self._preferred(self._called(name), name))

    def _called(self, name: str) -> list[str]:
        """Files of a name, or a stem, in letters of any case."""
        return self._paths.get(name.lower(), [])

    def _preferred(self, paths: Sequence[str], name: str) -> Sequence[str]:
        """No masks where others are there; of those the ones in the same letters."""
        images = [path for path in paths if path not in self._masks] or paths
        return [path for path in images if name in _name_and_stem(path)] or images

    def named(self, table: str, name: str) -> str:
        """Where the file lies that a table names, of the paths that end so; or "".

        Args:
            table: path of the table.
            name: of a file, as the table has it.
        """
        path = PurePosixPath(composed(name).replace("\\", "/"))
        # Of a path of another machine what comes first is not known here.
        starts = len(path.parts) if _ELSEWHERE.match(f"{path}") else 1
        for start in range(starts):
            end = f"/{'/'.join(path.parts[start:])}".lower()
            places = [
                place
                for place in self._called(path.name)
                if _ends_so(composed(f"/{place}").lower(), end)
            ]
            if places:
                return _nearest(table, self._preferred(places, path.name))
        return ""


def _name_and_stem(path: str) -> tuple[str, str]:
    """Name of a file with its ending and without."""
    name = composed(path.rpartition("/")[2])
    return name, name.rpartition(".")[0] or name


def _ends_so(path: str, end: str) -> bool:
    """Whether a path ends so, or would without the ending of its file."""
    return path.endswith(end) or path.rpartition(".")[0].endswith(end)


def _nearest(path: str, places: Sequence[str]) -> str:
    """The one place that shares most words with a path, in the fewest folders.

    "" where there is none, or several are as near.
    """
    words = set(_WORD.findall(path))
    scores = {
        place: (len(words.intersection(_WORD.findall(place))), -place.count("/"))
        for place in places
    }
    most = max(scores.values(), default=None)
    best = [place for place in places if scores[place] == most]
    return best[0] if len(best) == 1 else ""
