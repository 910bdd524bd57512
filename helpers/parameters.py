"""The parameters of the notebooks: declared in their tagged cells, set by a study file, checked before anything runs."""

import ast
import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

TAG = "parameters"


class StudyError(ValueError):
    """All that is wrong with a study file, one fault a line."""

    def __init__(self, faults: Sequence[str]) -> None:
        """Join the faults to one message."""
        self.faults = list(faults)
        super().__init__("\n".join(self.faults))


@dataclass(frozen=True)
class Parameter:
    """One line of a notebook's tagged cell."""

    name: str
    annotation: str
    default: Any
    comment: str


@dataclass(frozen=True)
class Execution:
    """One notebook with all its parameters."""

    notebook: Path
    parameters: dict[str, Any]


def code_cells(notebook: Path) -> list[dict[str, Any]]:
    """Read a notebook's code cells as plain JSON, with ``source`` as one string."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell | {"source": "".join(cell["source"])} for cell in cells if cell["cell_type"] == "code"]


def declared(notebook: Path) -> dict[str, Parameter]:
    """Read the parameters that a notebook declares: ``name: type = literal  # what it is``.

    Raises:
        StudyError: there is not exactly one tagged cell, or a line of it is no annotated literal.
    """
    tagged = [cell["source"] for cell in code_cells(notebook) if TAG in cell["metadata"].get("tags", [])]
    if len(tagged) != 1:
        raise StudyError([f"{notebook}: {len(tagged)} cells are tagged {TAG!r}; exactly one is needed"])
    lines = tagged[0].splitlines()
    found = {}
    for node in ast.parse(tagged[0]).body:
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None):
            raise StudyError([f"{notebook}: line {node.lineno} of the parameters cell is not `name: type = literal`"])
        comment = lines[node.end_lineno - 1][node.end_col_offset :].strip().lstrip("# ")
        name = node.target.id
        found[name] = Parameter(name, ast.unparse(node.annotation), ast.literal_eval(node.value), comment)
    return found


class _UniqueKeys(yaml.SafeLoader):
    """Safe YAML in which a key may stand once only, and 1e-3 is a number as in YAML 1.2."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [key.value for key, _ in node.value]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice[0]!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


_UniqueKeys.yaml_implicit_resolvers = {key: list(value) for key, value in yaml.SafeLoader.yaml_implicit_resolvers.items()}
_UniqueKeys.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def parse_value(text: str) -> Any:
    """Read a value from the command line as YAML: 3, 1e-3, [a, b], true, plain words."""
    return yaml.load(text, _UniqueKeys)


def load_study(path: Path, notebooks: Path, overrides: Sequence[str] = ()) -> list[Execution]:
    """Read a study file and check every value against what the notebooks declare.

    Args:
        path: ``params/<study>.yaml`` with the blocks ``common`` and ``notebooks``.
        notebooks: the folder of the notebooks.
        overrides: "name=value" for every notebook that declares the name, or "notebook.name=value" for one.

    Returns:
        The executions in the order of the notebooks' names, each with every declared parameter.

    Raises:
        StudyError: every fault there is, each naming where, what, and what would be valid.
    """
    content = _read(path)
    available = {item.stem: item for item in sorted(notebooks.glob("[0-9][0-9]_*.ipynb"))}
    blocks, faults = content.get("notebooks") or {}, []
    faults += [_unknown(str(path), "block", key, ("common", "notebooks")) for key in content if key not in ("common", "notebooks")]
    faults += [_unknown(f"{path}, notebooks", "notebook", stem, available) for stem in blocks if stem not in available]
    if not blocks:
        faults.append(f"{path}: the block `notebooks` is missing or empty; it names the notebooks to run, of {', '.join(available)}")
    stems = [stem for stem in available if stem in blocks]
    schema = {stem: declared(available[stem]) for stem in stems}
    values: dict[str, dict[str, Any]] = {stem: {"study": path.stem, "headless": True} for stem in stems}
    _distribute(f"{path}, common", content.get("common") or {}, values, schema, faults)
    for stem in stems:
        _assign(f"{path}, {stem}", blocks[stem] or {}, values[stem], schema[stem], faults)
    for override in overrides:
        _override(override, values, schema, faults)
    executions = [Execution(available[stem], _checked(path, stem, values[stem], schema[stem], faults)) for stem in stems]
    if faults:
        raise StudyError(faults)
    return executions


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        others = sorted(str(item) for item in path.parent.glob("*.yaml"))
        raise StudyError([f"{path} does not exist; the studies are {', '.join(others) or 'none'}"])
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeys)
    except yaml.YAMLError as fault:
        raise StudyError([f"{path}: not readable YAML: {' '.join(str(fault).split())}"]) from fault
    if not isinstance(content, dict):
        raise StudyError([f"{path}: a study file is a mapping with the blocks common and notebooks"])
    return content


def _unknown(where: str, kind: str, name: str, valid: Sequence[str] | Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(str(name), [str(item) for item in valid], n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"{where}: unknown {kind} {name!r}{hint}; valid: {', '.join(sorted(valid))}"


def _assign(where: str, block: Any, values: dict[str, Any], schema: Mapping[str, Parameter], faults: list[str]) -> None:
    if not isinstance(block, dict):
        faults.append(f"{where}: this block is {block!r}; it must map names to values")
        return
    for name, value in block.items():
        if name in schema:
            values[name] = value
        else:
            faults.append(_unknown(where, "parameter", name, schema))


def _distribute(where: str, block: Any, values: dict[str, dict], schema: Mapping[str, Mapping[str, Parameter]], faults: list[str]) -> None:
    everything = {name for names in schema.values() for name in names}
    if not isinstance(block, dict):
        faults.append(f"{where}: this block is {block!r}; it must map names to values")
        return
    for name, value in block.items():
        if name not in everything:
            faults.append(_unknown(where, "parameter", name, sorted(everything)))
        for stem, names in schema.items():
            if name in names:
                values[stem][name] = value


def _override(override: str, values: dict[str, dict], schema: Mapping[str, Mapping[str, Parameter]], faults: list[str]) -> None:
    target, equals, text = override.partition("=")
    stem, dot, name = target.rpartition(".")
    if not equals or not name:
        faults.append(f"--set {override}: write name=value or notebook.name=value")
    elif dot and stem not in schema:
        faults.append(_unknown(f"--set {override}", "notebook", stem, schema))
    else:
        try:
            value = parse_value(text)
        except yaml.YAMLError:
            faults.append(f"--set {override}: {text!r} is not readable YAML")
            return
        chosen = {stem: schema[stem]} if dot else schema
        _distribute(f"--set {override}", {name: value}, {key: values[key] for key in chosen}, chosen, faults)


def _checked(path: Path, stem: str, values: dict[str, Any], schema: Mapping[str, Parameter], faults: list[str]) -> dict[str, Any]:
    checked = {}
    for name, parameter in schema.items():
        value = values.get(name, parameter.default)
        try:
            checked[name] = check_type(parameter.annotation, value)
        except ValueError as fault:
            faults.append(f"{path}, {stem}: {name} is {value!r}, and must be {parameter.annotation} ({parameter.comment}): {fault}")
    return checked


def check_type(annotation: str, value: Any) -> Any:
    """Check a value against an annotation as written in a notebook; an int will do for a float, nothing else is converted.

    Raises:
        ValueError: the value is of another type; the first reason is given.
    """
    from typing import Literal, Optional  # the names that an annotation may use besides the built-in types

    from pydantic import ConfigDict, TypeAdapter, ValidationError

    names = {kind.__name__: kind for kind in (int, float, str, bool, list, dict)} | {"Literal": Literal, "Optional": Optional}
    kind = eval(annotation, {"__builtins__": {}}, names)  # the annotation comes from a notebook of this project, not from data
    try:
        return TypeAdapter(kind, config=ConfigDict(strict=True)).validate_python(value)
    except ValidationError as fault:
        first = fault.errors()[0]
        place = "".join(f"[{item}]" for item in first["loc"])
        raise ValueError(f"{place} {first['msg']}".strip()) from fault
