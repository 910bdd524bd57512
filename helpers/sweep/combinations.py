"""Sweeps over parameters: every combination of the listed values is executed."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from helpers.parameters import (
    WITHOUT_EFFECT_ON_RESULTS,
    Parameter,
    check_type,
    name_of_values,
    near_names,
    value_fault,
)
from helpers.study_files import parse_yaml

# Notebooks that decide which images there are and which networks are trained.
TRAINING = ("01", "02")
MOST = 1000  # combinations of one notebook
_SHARES = "write shard: N for N equal shares of a notebook that declares shard"


@dataclass(frozen=True)
class Sweep:
    """Values of one notebook's parameters whose combinations are executed."""

    notebook: str
    values: dict[str, list[Any]]  # of each swept parameter, in the notebook's order
    through: tuple[str, ...] = ()  # notebooks that are executed for each combination
    shard: int = 0  # equal shares of the notebook's work

    def combinations(self) -> dict[str, dict[str, Any]]:
        """Values of each combination, by its folder below ``sweeps``.

        Example:
            >>> Sweep("03_a", {"x": [1, 2]}).combinations()
            {'03_a/x=1': {'x': 1}, '03_a/x=2': {'x': 2}}
        """
        if not self.values:
            return {}
        rows = itertools.product(*self.values.values())
        each = [dict(zip(self.values, row, strict=True)) for row in rows]
        return {f"{self.notebook}/{name_of_values(values)}": values for values in each}


def read_sweep(
    notebook: str,
    block: Mapping[str, Any],
    names: Mapping[str, Parameter],
    later: Sequence[str],
) -> tuple[Sweep, list[str]]:
    """A notebook's part of a ``sweep`` block, and its faults.

    Args:
        notebook: name of the notebook.
        block: its part of the block, such as ``{"cam_threshold": [0.1, 0.2]}``.
        names: the parameters that the notebook declares.
        later: the study's notebooks that run after it.

    Returns:
        The sweep without faulty values, and the faults, one sentence each.
    """
    faults = [
        f"sweep: {notebook}: unknown name {name!r}{near_names(name, names)}"
        for name in block
        if name not in names and name not in ("shard", "through")
    ]
    shard = block.get("shard", 0)
    if "shard" in block and not _is_count(shard, names):
        faults.append(f"sweep: {notebook} has shard: {shard!r:.100}; {_SHARES}")
        shard = 0
    through, wrong = _through(notebook, block, later)
    faults += wrong
    values: dict[str, list[Any]] = {}
    for name, item in names.items():
        if name not in block or name == "shard":
            continue
        wrong = _faults_of_values(notebook, item, block[name])
        faults += wrong
        if not wrong:
            annotation = item.annotation
            values[name] = [check_type(annotation, value) for value in block[name]]
    sweep = Sweep(notebook, values, through, shard)
    count = 1
    for items in values.values():
        count *= len(items)
    if count > MOST:
        faults.append(
            f"sweep: {notebook} has {count:,} combinations, and {MOST:,} are possible"
        )
        sweep = Sweep(notebook, {}, (), shard)
    if through and not values:
        faults.append(f"sweep: {notebook}: through needs a parameter with its values")
    return sweep, faults


def _is_count(shard: Any, names: Mapping[str, Parameter]) -> bool:
    return "shard" in names and type(shard) is int and 1 <= shard <= 10_000


def _through(
    notebook: str, block: Mapping[str, Any], later: Sequence[str]
) -> tuple[tuple[str, ...], list[str]]:
    """The notebooks that are executed for each combination, in their order."""
    stated = block.get("through") or []
    is_list = isinstance(stated, list)
    if not is_list or not all(isinstance(name, str) for name in stated):
        sentence = f"through is {stated!r:.100}, and must be a list of notebooks"
        return (), [f"sweep: {notebook}: {sentence}"]
    faults = [
        f"sweep: {notebook}: through has {name!r}, which is not a notebook of the "
        f"study that runs after it{near_names(name, later)}"
        for name in stated
        if name not in later
    ]
    return tuple(name for name in later if name in stated), faults


def _faults_of_values(notebook: str, item: Parameter, values: Any) -> list[str]:
    """Faults of the values that a sweep lists for one parameter."""
    where = f"sweep: {notebook}: {item.name}"
    if notebook[:2] in TRAINING:
        return [f"{where} {_as_trained(item)}"]
    if item.name in WITHOUT_EFFECT_ON_RESULTS:
        return [f"{where} cannot be swept: it moves no result"]
    if not isinstance(values, list) or not values:
        return [
            f"{where} is {values!r:.100}, and must be a list of values, such as "
            f"{item.name}: [{item.default!r:.60}]"
        ]
    faults = list(filter(None, (value_fault(item, value) for value in values)))
    if not faults:
        typed = {repr(check_type(item.annotation, value)) for value in values}
        if len(typed) < len(values):
            faults = [f"{item.name} is {values!r:.100}, and contains duplicates"]
    return [f"sweep: {notebook}: {fault}" for fault in faults]


def _as_trained(item: Parameter) -> str:
    """Words on why a parameter of 01 or 02 cannot be swept, and what to do."""
    why = "decides what is trained, so each value would need other models"
    if item.annotation.startswith("list"):
        return f"{why}: write all levels into its own list below notebooks"
    return f"{why}: write a study file for each value"


def vary(
    texts: Sequence[str],
    blocks: dict[str, dict[str, Any]],
    schema: Mapping[str, Mapping[str, Parameter]],
) -> list[str]:
    """Put the values of ``--vary notebook.name=value,value`` into a sweep block.

    Args:
        texts: the argument of each ``--vary``.
        blocks: the sweep block, by notebook; it is changed.
        schema: the parameters of each notebook of the study.

    Returns:
        Faults, one sentence each.
    """
    faults = []
    for text in texts:
        target, equals, values = text.partition("=")
        notebook, _, name = target.strip().rpartition(".")
        form = "write notebook.name=value,value"
        if not equals or notebook not in schema:
            near = near_names(notebook or name, schema)
            faults.append(f"--vary {text:.200}: no such notebook{near}; {form}")
            continue
        if name not in schema[notebook] and name != "through":
            near = near_names(name, schema[notebook])
            faults.append(f"--vary {text:.200}: unknown name{near}; {form}")
            continue
        try:
            listed = parse_yaml(f"[{values}]")
        except yaml.YAMLError:
            faults.append(
                f"--vary {text:.200}: the values are not readable YAML; "
                "put texts with other signs into quotes"
            )
            continue
        declared = schema[notebook].get(name)
        of_lists = declared is not None and declared.annotation.startswith("list")
        if not of_lists and len(listed) == 1 and isinstance(listed[0], list):
            listed = listed[0]  # written with its brackets
        blocks.setdefault(notebook, {})[name] = listed
    return faults
