"""Study files as plain data: YAML that is read safely, and the blocks of a study."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from helpers.parameters import LIMITS, StudyError, near_names


class _Yaml(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, 064 is 64, and a key stands once."""

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


_MOST_VALUES = 100_000  # of a study file, each alias counted by what it stands for


def parse_yaml(text: str) -> Any:
    """Plain values from YAML, read safely.

    Raises:
        yaml.YAMLError: whatever is wrong with it, such as aliases that stand for
            themselves or for more values than any study has.
    """
    try:
        count = _values_in(yaml.compose(text, _Yaml), {})
        if count > _MOST_VALUES:
            raise yaml.YAMLError(
                f"its aliases stand for more than {_MOST_VALUES:,} values"
            )
        return yaml.load(text, _Yaml)
    except (ValueError, TypeError, RecursionError) as fault:
        raise yaml.YAMLError(f"{type(fault).__name__}: {str(fault)[:200]}") from fault


def _values_in(node: yaml.Node | None, counts: dict[int, int]) -> int:
    """Number of values below a node; ``counts`` has those of nodes that are known."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) in counts:
        if not counts[id(node)]:
            raise yaml.YAMLError("an alias stands for itself")
        return counts[id(node)]
    counts[id(node)] = 0  # while what it holds is counted
    items = node.value
    if isinstance(node, yaml.MappingNode):
        items = [item for pair in node.value for item in pair]
    counts[id(node)] = 1 + sum(_values_in(item, counts) for item in items)
    return counts[id(node)]


def read_blocks(path: Path) -> dict[str, Any]:
    """The blocks of a study file above those of the study that it extends.

    Returns:
        The file's content. ``common``, ``notebooks`` and ``sweep`` are there in any
        case; ``work_study`` is the study whose folder of work is shared.

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
        content = {"common": content or path.stem}
    content |= {name: content.get(name) or {} for name in ("common", "sweep")}
    content |= {"notebooks": content.get("notebooks") or {}, "work_study": path.stem}
    _check_blocks(path, content)
    notebooks = content["notebooks"]
    content["notebooks"] = {stem: notebooks[stem] or {} for stem in notebooks}
    return _extended(path, content) if "extends" in content else content


def _check_blocks(path: Path, content: Mapping[str, Any]) -> None:
    """Refuse what does not map names to values where a study file has blocks."""
    blocks = [content["common"]]
    for of_notebooks in (content["notebooks"], content["sweep"]):
        blocks.append(of_notebooks)
        if isinstance(of_notebooks, dict):
            blocks += [block or {} for block in of_notebooks.values()]
    if not all(isinstance(block, dict) for block in blocks):
        raise StudyError(
            f"{path}: a study file maps common, notebooks and sweep to blocks of names "
            "and values"
        )


def _extended(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """The blocks of a study above those of the one that it extends."""
    name = content["extends"]
    if not LIMITS["study"].fullmatch(str(name)) or "claims" in content:
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
        theirs = {key: value for key, value in block.items() if key not in common}
        notebooks[stem] = theirs | notebooks.get(stem, {})
    merged = {
        "common": base["common"] | common,
        "notebooks": notebooks,
        "sweep": base["sweep"] | content["sweep"],
        "work_study": base["work_study"],
    }
    return base | content | merged
