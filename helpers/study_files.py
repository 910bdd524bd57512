"""Study files as plain data, and the values that a notebook's parameters have in a run.

YAML is read safely; a value that papermill injects or a user changes in the first cell
comes before that of the study's file.
"""

import ast
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from helpers.files import PROJECT_ROOT, STAGING
from helpers.parameters import (
    LIMITS,
    WITHOUT_EFFECT_ON_RESULTS,
    Parameter,
    StudyError,
    check_type,
    declared,
    near_names,
    value_fault,
)


class _Yaml(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, 064 is 64, and a repeated key is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = [key for key in keys if keys.count(key) > 1]
        if twice:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {twice[0]!r} is duplicated", node.start_mark
            )
        return super().construct_mapping(node, deep)


_Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    [*"-+.0123456789"],
)

_Yaml.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value))


# Largest number of values in a study file; an alias counts as the node that it repeats.
_MOST_VALUES = 100_000


def parse_yaml(text: str) -> Any:
    """Read plain values from YAML, safely.

    Raises:
        yaml.YAMLError: if it cannot be read, or if its aliases contain themselves or
            expand to more values than any study has.
    """
    try:
        loader = _Yaml(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _values_in(node, {}) > _MOST_VALUES:
            raise yaml.YAMLError(
                f"its aliases stand for more than {_MOST_VALUES:,} values"
            )
        return loader.construct_document(node)
    except (ValueError, TypeError, RecursionError) as fault:
        raise yaml.YAMLError(f"{type(fault).__name__}: {str(fault)[:200]}") from fault


def _values_in(node: yaml.Node, counts: dict[int, int]) -> int:
    """Number of values below a node; ``counts`` caches it by the id of the node."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) in counts:
        if not counts[id(node)]:
            raise yaml.YAMLError("an alias stands for itself")
        return counts[id(node)]
    counts[id(node)] = 0  # marks a node that is being counted
    items = node.value
    if isinstance(node, yaml.MappingNode):
        items = [item for pair in node.value for item in pair]
    counts[id(node)] = 1 + sum(_values_in(item, counts) for item in items)
    return counts[id(node)]


def read_blocks(path: Path) -> dict[str, Any]:
    """Read the blocks of a study file, merged over those of the study it extends.

    Returns:
        The file's content. ``common``, ``notebooks`` and ``sweep`` are always there;
        ``work_study`` is the study whose folder of work is used: itself, or the one
        that it extends.

    Raises:
        StudyError: if the file is missing, damaged or of another form.
    """
    if not path.is_file():
        studies = sorted(item.stem for item in path.parent.glob("[!.]*.yaml"))
        raise StudyError(
            f"{path} does not exist{near_names(path.stem, studies)}; the studies there "
            f"are {', '.join(studies) or 'none'}"
        )
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as fault:
        raise StudyError(
            f"{path} is not readable YAML: {' '.join(str(fault).split())[:500]}"
        ) from fault
    if not isinstance(content, dict):
        raise _no_blocks(path)
    content |= {name: content.get(name) or {} for name in ("common", "sweep")}
    content |= {"notebooks": content.get("notebooks") or {}, "work_study": path.stem}
    _check_blocks(path, content)
    notebooks = content["notebooks"]
    content["notebooks"] = {stem: notebooks[stem] or {} for stem in notebooks}
    return _merge_with_base(path, content) if "extends" in content else content


def _check_blocks(path: Path, content: Mapping[str, Any]) -> None:
    """Refuse a study file whose blocks do not map names to values."""
    blocks = [content["common"]]
    for by_notebook in (content["notebooks"], content["sweep"]):
        blocks.append(by_notebook)
        if isinstance(by_notebook, dict):
            blocks += [block or {} for block in by_notebook.values()]
    if not all(isinstance(block, dict) for block in blocks):
        raise _no_blocks(path)


def _no_blocks(path: Path) -> StudyError:
    return StudyError(
        f"{path}: a study file maps common, notebooks and sweep to blocks of names "
        "and values"
    )


def _merge_with_base(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Blocks of a study merged over those of the study that it extends."""
    name = content["extends"]
    if not LIMITS["study"].allows(str(name)) or "claims" in content:
        raise StudyError(
            f"{path}: it extends {name!r}, which must be the name of a study, and "
            "whose claims it has"
        )
    base = read_blocks(path.with_name(f"{name}.yaml"))
    if "extends" in base:
        raise StudyError(
            f"{path}: it extends {name}, which extends another one; extend "
            f"{base['extends']}"
        )
    common = content["common"]
    notebooks = content["notebooks"]
    for stem, block in base["notebooks"].items():
        # A common value of the new study also replaces the base's of single notebooks.
        inherited = {key: value for key, value in block.items() if key not in common}
        notebooks[stem] = inherited | notebooks.get(stem, {})
    merged = {
        "common": base["common"] | common,
        "notebooks": notebooks,
        "sweep": base["sweep"] | content["sweep"],
        "work_study": base["work_study"],
    }
    return base | content | merged


def resolve_parameters(
    notebook: str, values: Mapping[str, Any], root: Path = PROJECT_ROOT
) -> tuple[dict[str, Any], dict[str, str], dict[str, Any]]:
    """Values of a notebook's parameters, whether papermill or a user runs it.

    Values injected by papermill come first, then those that the user changed in the
    first cell, then the study's file. A value of the first cell counts as changed if it
    differs from the demo's, which committed first cells have.

    Args:
        notebook: its name without suffix.
        values: ``globals()`` of the notebook.
        root: folder of the project.

    Returns:
        The values by name; the origin of each ("injected", "first cell",
        "params/x.yaml" or "default"); and the study's file (``read_blocks``), with the
        values of this run that differ from the study's (``changed``) and, if it extends
        a study, the values of that one (``extended``).

    Raises:
        StudyError: if a name or a value is wrong, or the study does not exist.
    """
    names = declared(root / "notebooks" / f"{notebook}.ipynb")
    injected = _injected_names(values.get("In", []))
    _check_names(names, injected, values)
    path = root / f"params/{values['study']}.yaml"
    content = _content_of(path, "study" in injected)
    of_study = _values_of_notebook(content, notebook)
    committed = _committed_values(names, notebook, root)
    parameters = {}
    origins = {}
    for name in names:
        value = values[name]
        # Compared as texts, so that 1, 1.0 and True differ.
        is_changed = repr(value) != repr(committed[name])
        # An unchanged first cell has the demo's value, in place of the study's.
        comes_from_study = name in of_study and (
            not is_changed or repr(value) == repr(of_study[name])
        )
        if name in injected:
            origins[name] = "injected"
        elif comes_from_study:
            value = of_study[name]
            origins[name] = f"params/{path.name}"
        else:
            origins[name] = "first cell" if is_changed else "default"
        parameters[name] = value
    parameters = _typed_values(names, parameters)
    content["changed"] = _changed_values(names, parameters, of_study)
    if "extends" in content:
        base = read_blocks(path.with_name(f"{content['extends']}.yaml"))
        extended = _defaults(names) | _values_of_notebook(base, notebook)
        content["extended"] = {
            name: extended[name] for name in names if name != "study"
        }
    return parameters, origins, content


def _content_of(path: Path, is_injected: bool) -> dict[str, Any]:
    """Blocks of the study file, which may be absent when a launcher runs the notebook.

    Then the launcher injects all values, and its study file lies in another folder.
    """
    if os.environ.get(STAGING) and is_injected and not path.is_file():
        return {"common": {}, "notebooks": {}, "work_study": path.stem}
    return read_blocks(path)


def _typed_values(
    names: Mapping[str, Parameter], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Values of the annotated types; an error that lists all faults of values."""
    faults = [value_fault(item, values[name]) for name, item in names.items()]
    if any(faults):
        raise StudyError(*filter(None, faults))
    return {
        name: check_type(item.annotation, values[name]) for name, item in names.items()
    }


def _defaults(names: Mapping[str, Parameter]) -> dict[str, Any]:
    return {name: item.default for name, item in names.items()}


def _committed_values(
    names: Mapping[str, Parameter], notebook: str, root: Path
) -> dict[str, Any]:
    """Values that a notebook's first cell has as committed: those of the demo."""
    committed = _defaults(names) | {"study": "demo"}
    demo = root / "params/demo.yaml"
    if demo.is_file():
        committed |= _values_of_notebook(read_blocks(demo), notebook)
    return committed


def _check_names(
    names: Mapping[str, Parameter], injected: set[str], values: Mapping[str, Any]
) -> None:
    """Refuse injected names that the notebook lacks, and a first cell without some."""
    blocks = injected & {"claims", "common", "notebooks", "sweep", "extends"}
    if blocks:
        raise StudyError(
            f"{', '.join(sorted(blocks))}: blocks of a study file, no parameters; in "
            "place of `-f FILE` write `-p study NAME`"
        )
    unknown = sorted(injected - {*names})
    if unknown:
        raise StudyError(
            *(
                f"this notebook has no parameter {name!r}{near_names(name, names)}; "
                f"papermill --help-notebook lists those that it has"
                for name in unknown
            )
        )
    missing = [name for name in names if name not in values]
    if missing:
        raise StudyError(
            f"the first cell has no {', '.join(missing)}; put the lines of these "
            "parameters back"
        )
    # Checked here, since the name of the study becomes the name of a file.
    fault = value_fault(names["study"], values["study"])
    if fault:
        raise StudyError(fault)


def _changed_values(
    names: Mapping[str, Parameter],
    parameters: Mapping[str, Any],
    of_study: Mapping[str, Any],
) -> dict[str, Any]:
    """Values of this run that are not the study's and may change results."""
    changed = {}
    for name, item in names.items():
        stated = of_study.get(name, item.default)
        if name in WITHOUT_EFFECT_ON_RESULTS or value_fault(item, stated):
            continue  # a value that the study file has wrong cannot be compared
        stated = check_type(item.annotation, stated)
        if repr(parameters[name]) != repr(stated):
            changed[name] = parameters[name]
    return changed


def _values_of_notebook(content: Mapping[str, Any], notebook: str) -> dict[str, Any]:
    """Values that a study file has for a notebook, common ones included."""
    return content["common"] | content["notebooks"].get(notebook, {})


# A source that assigns ``study`` is the first cell, which declares the parameters.
_FIRST_CELL = re.compile(r"^study\s*(:\s*str\s*)?=\s*[\"']", re.M)


def _injected_names(cells: Sequence[str]) -> set[str]:
    """Names that papermill's cell assigned; none if the first cell ran again after it.

    Args:
        cells: sources of executed cells in order, as IPython keeps them.
    """
    for source in reversed(cells):
        if source.lstrip().startswith("# Parameters"):
            return {
                node.id
                for node in ast.walk(ast.parse(source))
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }
        if _FIRST_CELL.search(source):
            return set()
    return set()
