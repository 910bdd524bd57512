"""What a notebook's parameters are where it is opened by hand: its first cell, and the file of the study that the cell names."""

import ast
import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from helpers.constraints import check_values, value_fault
from helpers.files import PROJECT_ROOT
from helpers.notebook_parameters import Parameter, StudyError, check_type, declared
from helpers.sweep.study_file import parse_value

DEFAULTS = "demo"  # the study whose values the first cells have as committed

_INJECTED = "# Parameters"  # how the cell begins that papermill puts after the first one
_FIRST = re.compile(r"\s*study\b[^=\n]*=")


class InForce(NamedTuple):
    """The parameters of a notebook as they are to be, and where each is from."""

    values: dict[str, Any]
    origins: dict[str, str]  # "injected", "first cell", a study file such as "params/compact20.yaml", or "default"


def parameters_in_force(notebook: str, values: Mapping[str, Any], root: Path = PROJECT_ROOT) -> InForce:
    """Parameters of a notebook: what papermill injected; else what was changed in the first cell; else what the study's file says.

    A value counts as changed where it is not that of ``params/demo.yaml``, which holds the values of the first cells as committed; so of
    another study the value that happens to be the demo's can be had by its file alone. Nothing is changed but by the caller.

    Args:
        notebook: name without suffix.
        values: ``globals()`` of the notebook after its first cell, and after the injected one where there is one.
        root: the project.

    Raises:
        FileNotFoundError: the first cell names a study that has no file; the message names those that have.
        StudyError: a value in a file is of a wrong type, or a value is none that the parameter may have; all of these in one list.
    """
    names = declared(root / "notebooks" / f"{notebook}.ipynb")
    if lost := [name for name in names if name not in values]:
        raise StudyError([f"the first cell has no {', '.join(lost)}; put the lines of these parameters back"])
    injected, study = _injected(values), values["study"]
    if fault := value_fault(names["study"], study):  # before it becomes the name of a file
        raise StudyError([fault])
    place = root / "params" / f"{study}.yaml"
    if not place.is_file() and "study" not in injected:
        known = sorted(path.stem for path in place.parent.glob("*.yaml"))
        near = difflib.get_close_matches(str(study), known, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        fault = FileNotFoundError(
            f"study is {study!r}, and there is no params/{study}.yaml{hint}; the studies are {', '.join(known)}. "
            f"Copy one of their files to params/{study}.yaml and change the values there"
        )
        fault._render_traceback_ = lambda: [str(fault)]  # a notebook shows the message alone
        raise fault
    committed = _given(root / "params" / f"{DEFAULTS}.yaml", notebook, names) | {"study": DEFAULTS}
    theirs = _given(place, notebook, names)
    found, origins = {}, {}
    for name, item in names.items():
        found[name], origins[name] = values[name], "default"
        if name in injected:
            origins[name] = "injected"
        elif _differs(values[name], committed.get(name, item.default)):
            origins[name] = f"params/{study}.yaml" if name in theirs and not _differs(theirs[name], values[name]) else "first cell"
        elif name in theirs:
            found[name], origins[name] = theirs[name], f"params/{study}.yaml"
    check_values(names, found)
    return InForce(found, origins)


def _differs(value: Any, other: Any) -> bool:
    """Whether two values are unequal; an array, which is no value of a parameter and compares item by item, differs from all."""
    try:
        return bool(value != other)
    except ValueError:
        return True


def _injected(values: Mapping[str, Any]) -> set[str]:
    """Names that an injected cell assigned since the first cell ran, by what IPython keeps of executed cells."""
    for source in reversed(values.get("In", [])):
        if source.lstrip().startswith(_INJECTED):
            return {item.id for item in ast.walk(ast.parse(source)) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)}
        if _FIRST.match(source):
            return set()
    return set()


def _given(path: Path, notebook: str, names: Mapping[str, Parameter]) -> dict[str, Any]:
    """Values that a study file gives to a notebook, in the types that it declares; none where there is no file."""
    if not path.is_file():
        return {}
    try:
        content = parse_value(path.read_text(encoding="utf-8"))
        blocks = {**(content.get("common") or {}), **((content.get("notebooks") or {}).get(notebook) or {})}
        return {name: check_type(names[name].annotation, value) for name, value in blocks.items() if name in names}
    except (yaml.YAMLError, ValueError, AttributeError, TypeError) as fault:
        command = f"python -m helpers.sweep params/{path.name} --dry-run"
        raise StudyError([f"{path.name} cannot be used ({' '.join(str(fault).split())}); `{command}` lists all that is wrong"]) from fault
