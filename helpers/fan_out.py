"""The ``sweep`` block of a study file: one notebook split into several executions over values of its parameters."""

import difflib
import hashlib
import itertools
import json
import re
from collections.abc import Mapping
from typing import Any

SHARD = "shard"
_LONGEST = 80


def parts(where: str, block: Any, annotations: Mapping[str, str]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Split one notebook: every combination of the listed values is one execution.

    ``shard: n`` gives n executions with the parameter ``shard`` from "1/n" to "n/n". A parameter that is itself a list takes single
    values too: ``architectures: [resnet18, resnet34]`` makes two executions with one architecture each.

    Args:
        where: what the faults name as their place.
        block: names to lists of values.
        annotations: the types that the notebook declares.

    Returns:
        Name of each part to its values, in order, and the faults, each with what would be valid.
    """
    if not isinstance(block, dict) or not block:
        return {}, [f"{where}: this block is {block!r}; it must map parameters to lists of values, or `shard` to a number"]
    faults = [fault for name, values in block.items() if (fault := _fault(where, name, values, annotations))]
    if faults:
        return {}, faults
    axes = {name: _levels(name, values, annotations[name]) for name, values in block.items()}
    found: dict[str, dict[str, Any]] = {}
    for combination in itertools.product(*axes.values()):
        values = dict(zip(axes, combination, strict=True))
        found[_name(values, set(found))] = values
    return found, []


def _fault(where: str, name: str, values: Any, annotations: Mapping[str, str]) -> str:
    if name not in annotations:
        near = difflib.get_close_matches(str(name), list(annotations), n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        return f"{where}: unknown parameter {name!r}{hint}; a sweep varies what the notebook declares: {', '.join(sorted(annotations))}"
    if name == SHARD and not (type(values) is int and values >= 1):
        return f"{where}: shard is {values!r}, and must be a whole number of parts, at least 1"
    if name != SHARD and (not isinstance(values, list) or not values):
        return f"{where}: {name} is {values!r}, and must be a list of the values to run"
    if name != SHARD and len({json.dumps(value, sort_keys=True, default=str) for value in values}) < len(values):
        return f"{where}: {name} has a value twice: {values}"
    return ""


def _levels(name: str, values: Any, annotation: str) -> list[Any]:
    if name == SHARD:
        return [f"{number}/{values}" for number in range(1, values + 1)]
    wraps = annotation.startswith("list")
    return [[value] if wraps and not isinstance(value, list) else value for value in values]


def _name(values: Mapping[str, Any], taken: set[str]) -> str:
    """Name a part readably; a name that is long or taken gets six digits over the values."""
    readable = "-".join(_word(name, value) for name, value in values.items())
    if len(readable) <= _LONGEST and readable not in taken:
        return readable
    digest = hashlib.blake2b(json.dumps(values, sort_keys=True, default=str).encode(), digest_size=3).hexdigest()
    return f"{readable[:_LONGEST]}-{digest}"


def _word(name: str, value: Any) -> str:
    if name == SHARD:
        number, count = value.split("/")
        return f"shard{number.zfill(len(count))}of{count}"
    items = value if isinstance(value, list) else [value]
    text = "+".join(item if isinstance(item, str) else f"{name}{json.dumps(item, default=str)}" for item in items)
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", text).strip(".") or name
