"""Files of the project that a notebook runs: its imports, and what these import."""

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from helpers.files import PROJECT_ROOT, read_json
from helpers.sweep.order import notebooks_after

PACKAGE = "helpers"
_DATA = ".csv"  # of files beside a module that decide its numbers


@dataclass
class ProjectModules:
    """Modules of a project, each read once, and what they import.

    Imports are read from the source, also inside of functions; nothing is imported.
    A name that a package imports is followed to the module that defines it.

    Args:
        root: of the project, with the package ``helpers``.

    Example:
        >>> from helpers.files import PROJECT_ROOT
        >>> modules = ProjectModules(PROJECT_ROOT)
        >>> files = modules.behind(["from helpers.files import read_json"])
        >>> [path.name for path in files]
        ['__init__.py', 'files.py']
    """

    root: Path
    _imports: dict[Path, list[Path]] = field(default_factory=dict, init=False)

    def behind(self, cells: Sequence[str]) -> list[Path]:
        """Files of the project that decide what some cells compute.

        Args:
            cells: sources of code cells.

        Returns:
            Modules, and data in folders that are named like a module, sorted.
        """
        todo = list(self._imports_of_source("\n".join(map(_statements, cells))))
        modules: set[Path] = set()
        while todo:
            path = todo.pop()
            if path not in modules:
                modules.add(path)
                todo += self._imports_of_module(path)
        data = [file for path in modules for file in self._data.get(path, ())]
        return sorted([*modules, *data])

    @cached_property
    def _modules(self) -> dict[str, Path]:
        """Files of the package by dotted name; a package is its ``__init__``."""
        modules = {}
        for path in (self.root / PACKAGE).rglob("*.py"):
            place = path.parent if path.name == "__init__.py" else path.with_suffix("")
            modules[".".join(place.relative_to(self.root).parts)] = path
        return modules

    @cached_property
    def _data(self) -> dict[Path, list[Path]]:
        """Data by module, in the folder beside the module that has its name."""
        data: dict[Path, list[Path]] = {}
        for path in (self.root / PACKAGE).rglob(f"*{_DATA}"):
            for folder in path.relative_to(self.root).parents[:-1]:
                module = (self.root / folder).with_suffix(".py")
                data.setdefault(module, []).append(path)
        return data

    def _imports_of_module(self, path: Path) -> list[Path]:
        if path not in self._imports:
            source = path.read_text(encoding="utf-8")
            self._imports[path] = list(self._imports_of_source(source))
        return self._imports[path]

    def _imports_of_source(self, source: str) -> Iterator[Path]:
        """Files that a source imports, with the packages in which they lie."""
        for name in _imported(source):
            parts = name.split(".")
            for end in range(1, len(parts) + 1):
                path = self._modules.get(".".join(parts[:end]))
                if path is not None:
                    yield path
                elif end == len(parts):
                    module = self._lazy_module(parts)
                    if module:
                        yield from self._imports_of_source(f"import {module}")

    def _lazy_module(self, parts: Sequence[str]) -> str:
        """The module that a package imports when a name is first used, or ""."""
        path = self._modules.get(".".join(parts[:-1]))
        if path is None or path.name != "__init__.py":
            return ""
        return _lazy_names(path.read_text(encoding="utf-8")).get(parts[-1], "")


def code_of(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """The source of each code cell of a notebook.

    Args:
        cells: as its file has them.
    """
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def notebooks_with(path: Path, root: Path = PROJECT_ROOT) -> list[str]:
    """Notebooks that import a module, directly or through others.

    Args:
        path: of the module.
        root: of the project.
    """
    modules = ProjectModules(root)
    names = []
    for notebook in sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        if path.resolve() in modules.behind(code_of(read_json(notebook)["cells"])):
            names.append(notebook.stem)
    return names


def _statements(cell: str) -> str:
    """A cell, or those of its lines that are Python by themselves, without magics."""
    if _is_python(cell):
        return cell
    return "\n".join(filter(_is_python, map(str.strip, cell.splitlines())))


def _is_python(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


@lru_cache(maxsize=1024)
def _imported(source: str) -> tuple[str, ...]:
    """Dotted names of the project that a source imports, each once."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [item.name for item in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{item.name}" for item in node.names]
    ours = [name for name in names if name.split(".")[0] == PACKAGE]
    return tuple(dict.fromkeys(ours))


@lru_cache(maxsize=64)
def _lazy_names(source: str) -> dict[str, str]:
    """Modules by name, as the variable ``_MODULES`` of a package lists them."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_MODULES":
            return ast.literal_eval(node.value)
    return {}


def _line(word: str) -> str:
    """The notebooks that import a module, and those that are executed after them."""
    names = notebooks_with(Path(word))
    line = f"{word}: {', '.join(names) or 'no notebook'}"
    stems = [path.stem for path in PROJECT_ROOT.glob("notebooks/[0-9][0-9]_*.ipynb")]
    after = notebooks_after(names, stems)
    return f"{line}; after them: {', '.join(after)}" if after else line


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(_line(argument))
