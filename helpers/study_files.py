"""Study files as plain data: YAML that is read safely, and the blocks of a study."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from helpers.parameters import LIMITS, StudyError, near_names


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
        inherited = {key: value for key, value in block.items() if key not in common}
        notebooks[stem] = inherited | notebooks.get(stem, {})
    merged = {
        "common": base["common"] | common,
        "notebooks": notebooks,
        "sweep": base["sweep"] | content["sweep"],
        "work_study": base["work_study"],
    }
    return base | content | merged
