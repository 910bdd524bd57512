"""Which files of the project a notebook runs: what it imports, and what that imports."""

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

PACKAGE = "helpers"
_DATA = (".csv",)  # of files beside a module that decide its numbers


def files_behind(cells: Sequence[str], root: Path) -> list[Path]:
    """Files of the project that decide what some cells compute.

    Imports are read from the source, those inside of functions too; nothing is
    imported. A name of a package is followed to the module that the package has it
    from.

    Args:
        cells: sources of code cells.
        root: of the project.

    Returns:
        Modules, and data in folders that are called as a module, sorted.
    """
    todo = list(_modules("\n".join(map(_statements, cells)), root))
    modules: set[Path] = set()
    while todo:
        path = todo.pop()
        if path not in modules:
            modules.add(path)
            text = path.read_text(encoding="utf-8")
            # A package's names are followed where they are asked for.
            todo += _modules(text, root)
    data = [file for path in modules for file in _data_of(path)]
    return sorted([*modules, *data])


def _statements(cell: str) -> str:
    """A cell, or those lines of it that are Python by themselves: no magics."""
    if _is_python(cell):
        return cell
    return "\n".join(filter(_is_python, map(str.strip, cell.splitlines())))


def _is_python(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _data_of(module: Path) -> list[Path]:
    """Data in the folder beside a module that has its name."""
    folder = module.with_suffix("")
    return [path for path in folder.rglob("*") if path.suffix in _DATA]


def _modules(source: str, root: Path) -> Iterator[Path]:
    """Files that a source imports, with the packages in which they lie."""
    for name in _imported(source):
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            path = _file_of(parts[:end], root)
            if path is not None:
                yield path
            elif end == len(parts) and (lazy := _lazily(parts, root)):
                yield from _modules(f"import {lazy}", root)


def _file_of(parts: Sequence[str], root: Path) -> Path | None:
    place = root.joinpath(*parts)
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if path.is_file():
            return path
    return None


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


def _lazily(parts: Sequence[str], root: Path) -> str:
    """The module from which a package takes a name when it is asked for, or ""."""
    package = root.joinpath(*parts[:-1], "__init__.py")
    if not package.is_file():
        return ""
    return _lazy_names(package.read_text(encoding="utf-8")).get(parts[-1], "")


@lru_cache(maxsize=64)
def _lazy_names(source: str) -> dict[str, str]:
    """What a package's ``_MODULES`` says: a module by name."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_MODULES":
            return ast.literal_eval(node.value)
    return {}
