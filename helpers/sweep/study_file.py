"""A study file: the values of the notebooks' parameters and how work is split, checked before anything runs."""

import argparse
import hashlib
import itertools
import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from helpers.constraints import near_names, relation_faults, shown, value_fault
from helpers.files import PROJECT_ROOT
from helpers.notebook_parameters import Parameter, StudyError, check_type, declared
from helpers.statistics.claims import check_claims

SHARD = "shard"
_OF_THE_WHOLE = ("study", "work_dir", "reports_dir")
_LONGEST, _MOST_PARTS = 80, 10_000


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
        return {}, [f"{where}: this block is {shown(block)}; it must map parameters to lists of values, or `shard` to a number"]
    faults = [fault for name, values in block.items() if (fault := _fault(where, name, values, annotations))]
    if faults:
        return {}, faults
    axes = {name: _levels(name, values, annotations[name]) for name, values in block.items()}
    if (count := math.prod(map(len, axes.values()))) > _MOST_PARTS:
        return {}, [f"{where}: {', '.join(block)} make {count:,} parts together, and there may be {_MOST_PARTS:,} at most"]
    found: dict[str, dict[str, Any]] = {}
    for combination in itertools.product(*axes.values()):
        values = dict(zip(axes, combination, strict=True))
        found[_name(values, set(found))] = values
    return found, []


def _fault(where: str, name: str, values: Any, annotations: Mapping[str, str]) -> str:
    if name not in annotations:
        return _unknown(where, "parameter", name, annotations)
    if name in _OF_THE_WHOLE:
        return f"{where}: {name} is one for all parts of a study; set it in the block common"
    if name == SHARD and not (type(values) is int and 1 <= values <= _MOST_PARTS):
        return f"{where}: shard is {shown(values)}, and must be a whole number of parts, at least 1 and at most {_MOST_PARTS:,}"
    if name != SHARD and (not isinstance(values, list) or not values):
        return f"{where}: {name} is {shown(values)}, and must be a list of the values to run"
    if name != SHARD and len({json.dumps(value, sort_keys=True, default=str) for value in values}) < len(values):
        return f"{where}: {name} has a value twice: {shown(values)}"
    return ""


def _levels(name: str, values: Any, annotation: str) -> list[Any]:
    if name == SHARD:
        return [f"{number}/{values}" for number in range(1, values + 1)]
    wraps = annotation.startswith("list")
    return [[value] if wraps and not isinstance(value, list) else value for value in values]


def _name(values: Mapping[str, Any], taken: set[str]) -> str:
    """Readable name of a part; one that is long or taken gets six digits over the values."""
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


_BLOCKS = ("claims", "common", "notebooks", "sweep")


@dataclass(frozen=True)
class Execution:
    """One notebook with all its parameters."""

    notebook: Path
    parameters: dict[str, Any]
    part: str = ""  # name of one of several executions that the `sweep` block makes; "" is the whole

    @property
    def name(self) -> str:
        """Name of the execution: the notebook, and the part of it."""
        return f"{self.notebook.stem}/{self.part}" if self.part else self.notebook.stem


_MOST_BYTES, _MOST_ALIASES = 500_000, 20  # of a study file; twenty aliases stand for 2,000 values at most


class _UniqueKeys(yaml.SafeLoader):
    """Safe YAML in which a key may stand once only, aliases are few and never within themselves, and 1e-3 is a number as in YAML 1.2."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._aliases, self._open = 0, set()

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            self._aliases += 1
            if event.anchor in self._open or self._aliases > _MOST_ALIASES:
                what = f"the alias *{event.anchor} stands within itself, or is one of more than {_MOST_ALIASES}"
                raise yaml.composer.ComposerError(None, None, what, event.start_mark)
            return super().compose_node(parent, index)
        self._open.add(event.anchor)
        node = super().compose_node(parent, index)
        self._open.discard(event.anchor)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        counts = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        twice = sorted(key for key, count in counts.items() if count > 1)
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice[0]!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


_UniqueKeys.yaml_implicit_resolvers = {key: list(value) for key, value in yaml.SafeLoader.yaml_implicit_resolvers.items()}


_UniqueKeys.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def parse_value(text: str) -> Any:
    """Read a value from the command line as YAML: 3, 1e-3, [a, b], true, plain words."""
    try:
        return yaml.load(text, _UniqueKeys)
    except (
        ValueError,
        TypeError,
        AttributeError,
        KeyError,
        RecursionError,
    ) as fault:  # PyYAML's own, of dates and depth
        raise yaml.YAMLError(f"{type(fault).__name__}: {str(fault)[:200]}") from fault


class _Dumper(yaml.SafeDumper):
    """Puts a text in quotes that ``parse_value`` would take for a number, such as a class of the name 1e3."""

    yaml_implicit_resolvers = _UniqueKeys.yaml_implicit_resolvers


def as_yaml(content: Any) -> str:
    """Plain values as YAML that ``parse_value`` reads back as they are."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=130)


def load_study(path: Path, notebooks: Path, overrides: Sequence[str] = ()) -> list[Execution]:
    """Read a study file and check every value against what the notebooks declare.

    Args:
        path: ``params/<study>.yaml`` with the blocks ``common``, ``notebooks`` and, where work is to be split, ``sweep``.
        notebooks: the folder of the notebooks.
        overrides: "name=value" for every notebook that declares the name, or "notebook.name=value" for one.

    Returns:
        The executions in the order of the notebooks' names, each with every declared parameter. The parts of a notebook come
        before its execution as a whole, which finds their work done and sums it up.

    Raises:
        StudyError: every fault there is, each naming where, what, and what would be valid.
    """
    content = _read(path)
    available = {item.stem: item for item in sorted(notebooks.glob("[0-9][0-9]_*.ipynb"))}
    blocks, faults = content.get("notebooks"), []
    if not isinstance(blocks, dict):
        faults += [f"{path}: the block `notebooks` is {shown(blocks)}; it must map notebooks to blocks of values"] if blocks else []
        blocks = {}
    faults += [_unknown(str(path), "block", key, _BLOCKS) for key in content if key not in _BLOCKS]
    faults += [_unknown(f"{path}, notebooks", "notebook", stem, available) for stem in blocks if stem not in available]
    if not blocks:
        faults.append(f"{path}: the block `notebooks` is missing or empty; it names the notebooks to run, of {', '.join(available)}")
    stems = [stem for stem in available if stem in blocks]
    schema = {stem: declared(available[stem]) for stem in stems}
    values: dict[str, dict[str, Any]] = {stem: {"study": path.stem, "headless": True} for stem in stems}
    _distribute(f"{path}, common", _block(content, "common"), values, schema, faults)
    for stem in stems:
        _assign(f"{path}, {stem}", _block(blocks, stem), values[stem], schema[stem], faults)
    for override in overrides:
        _override(override, values, schema, faults)
    faults += _claims_of(path, content)[1]
    wholes = [Execution(available[stem], _checked(path, stem, values[stem], schema[stem], faults)) for stem in stems]
    faults += _between(path, wholes, faults)
    sweep = _block(content, "sweep")
    faults += _sweep_faults(path, sweep, stems, overrides)
    executions = [item for whole in wholes for item in [*_parts(path, whole, sweep, schema[whole.notebook.stem], faults), whole]]
    if faults:
        raise StudyError(_merged(faults), executions)
    return executions


def _merged(faults: Sequence[str]) -> list[str]:
    """What is wrong for several notebooks, told once."""
    found: dict[tuple[str, str], list[str]] = {}
    for fault in faults:
        match = re.fullmatch(r"(.*?, )(\d\d_\w+)(: .*)", fault, re.DOTALL)
        stems = found.setdefault((match[1], match[3]) if match else (fault, ""), [])
        stems += [match[2]] if match and match[2] not in stems else []
    return [f"{place}{', '.join(stems)}{what}" for (place, what), stems in found.items()]


def _block(content: Mapping[str, Any], name: str) -> Any:
    return {} if content.get(name) is None else content[name]


def _between(path: Path, wholes: Sequence[Execution], before: Sequence[str]) -> list[str]:
    """List what is wrong between parameters, also between those of several notebooks: what one declares holds for all after it."""
    found: dict[str, str] = {}
    known: dict[str, Any] = {}
    for whole in wholes:
        where = f"{path}, {whole.notebook.stem}"
        wrong = {name for name in whole.parameters if any(fault.startswith(f"{where}: {name} is") for fault in before)}
        known = {name: value for name, value in (known | whole.parameters).items() if name not in wrong}
        for fault in relation_faults(known):
            found.setdefault(fault, f"{where}: {fault}")
        if whole.parameters.get("study", path.stem) != path.stem and "study" not in wrong:
            name = whole.parameters["study"]
            found["study"] = f"{where}: study is {name!r}, and must be {path.stem!r}, as the file; copy that to {name}.yaml"
    return list(found.values())


def study_claims(path: Path) -> list[dict[str, Any]]:
    """The claims of a study file, see ``claims.check_claims``; none where it has no block of them.

    Raises:
        StudyError: the file is not readable, or a claim cannot be judged.
    """
    stated, faults = _claims_of(path, _read(path))
    if faults:
        raise StudyError(faults)
    return stated


def _claims_of(path: Path, content: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    try:
        return check_claims(content.get("claims") or []), []
    except ValueError as fault:
        return [], [f"{path}, claims: {fault}"]


def _sweep_faults(path: Path, sweep: Any, stems: Sequence[str], overrides: Sequence[str]) -> list[str]:
    if not isinstance(sweep, dict):
        return [f"{path}, sweep: this block is {shown(sweep)}; it must map notebooks to parameters and their values"]
    faults = [_unknown(f"{path}, sweep", "notebook", stem, stems) for stem in sweep if stem not in stems]
    for override in overrides:
        stem, _, name = override.partition("=")[0].rpartition(".")
        swept = [key for key, block in sweep.items() if stem in ("", key) and isinstance(block, dict) and name in block]
        faults += [f"--set {override}: the sweep block gives {name} of {key} its values; change them there" for key in swept]
    return faults


def _parts(path: Path, whole: Execution, sweep: Any, schema: Mapping[str, Parameter], faults: list[str]) -> list[Execution]:
    """Make the executions of a notebook's parts; each has a folder of its own for what it reports."""
    stem = whole.notebook.stem
    if not isinstance(sweep, dict) or stem not in sweep:
        return []
    where = f"{path}, sweep, {stem}"
    found, wrong = parts(where, sweep[stem], {name: item.annotation for name, item in schema.items()})
    faults += wrong
    made = []
    for part, values in found.items():
        values = {name: _valid(where, schema[name], value, faults) for name, value in values.items()}
        faults += [f"{where}, {part}: {fault}" for fault in relation_faults(whole.parameters | values)] if not faults else []
        if "reports_dir" in schema:
            values = values | {"reports_dir": f"{whole.parameters['reports_dir']}/{path.stem}/{stem}/{part}"}
        made.append(Execution(whole.notebook, whole.parameters | values, part))
    return made


def study_path(given: str) -> Path:
    """File of a study that a command names: a path, or the bare name of one in ``params``."""
    path = Path(given)
    try:
        if path.exists() or path.suffix or len(path.parts) != 1:
            return path
    except OSError as fault:
        raise argparse.ArgumentTypeError(f"{shown(given)}: {fault.strerror}") from fault
    return Path(os.path.relpath(PROJECT_ROOT / "params" / f"{given}.yaml"))


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        folder = path.parent if path.parent.name == "params" or not Path("params").is_dir() else Path("params")
        others = sorted(item.stem for item in folder.glob("[!.]*.yaml"))
        near = near_names(path.stem, others)
        raise StudyError([f"{path} does not exist{near}; the studies in {folder} are {', '.join(others) or 'none'}"])
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise StudyError([f"{path} has {path.stat().st_size:,} bytes, and a study file {_MOST_BYTES:,} at most; is it one?"])
        content = parse_value(path.read_bytes().decode("utf-8"))
    except OSError as fault:
        raise StudyError([f"{path} cannot be read: {fault.strerror}"]) from fault
    except UnicodeDecodeError as fault:
        raise StudyError([f"{path} is no text in UTF-8 (byte {fault.start:,}); save it as UTF-8"]) from fault
    except yaml.YAMLError as fault:
        raise StudyError([f"{path}: not readable YAML: {' '.join(str(fault).split())[:500]}"]) from fault
    if not isinstance(content, dict):
        raise StudyError([f"{path}: a study file is a mapping with the blocks common and notebooks"])
    return content


_LISTED = 8  # names that are told in full


def _unknown(where: str, kind: str, name: Any, valid: Sequence[str] | Mapping[str, Any]) -> str:
    near = near_names(str(name), list(valid))
    known = f"; valid: {', '.join(sorted(valid))}" if len(valid) <= _LISTED else ""
    manual = "" if near or known else "; `papermill --help-notebook notebooks/NAME.ipynb` lists what a notebook declares"
    return f"{where}: unknown {kind} {shown(name)}{near}{known}{manual}"


def _assign(where: str, block: Any, values: dict[str, Any], schema: Mapping[str, Parameter], faults: list[str]) -> None:
    if not isinstance(block, dict):
        faults.append(f"{where}: this block is {shown(block)}; it must map names to values")
        return
    for name, value in block.items():
        if name in schema:
            values[name] = value
        else:
            faults.append(_unknown(where, "parameter", name, schema))


def _distribute(where: str, block: Any, values: dict[str, dict], schema: Mapping[str, Mapping[str, Parameter]], faults: list[str]) -> None:
    everything = {name for names in schema.values() for name in names}
    if not isinstance(block, dict):
        faults.append(f"{where}: this block is {shown(block)}; it must map names to values")
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
            faults.append(f"--set {override[:200]}: {shown(text)} is not readable YAML")
            return
        chosen = {stem: schema[stem]} if dot else schema
        _distribute(f"--set {override}", {name: value}, {key: values[key] for key in chosen}, chosen, faults)


def _checked(path: Path, stem: str, values: dict[str, Any], schema: Mapping[str, Parameter], faults: list[str]) -> dict[str, Any]:
    return {name: _valid(f"{path}, {stem}", item, values.get(name, item.default), faults) for name, item in schema.items()}


def _valid(where: str, parameter: Parameter, value: Any, faults: list[str]) -> Any:
    """A value that is right; where it is not, the default, so that the rest can be checked, and the fault is noted."""
    wrong = value_fault(parameter, value)
    if wrong:
        faults.append(f"{where}: {wrong}")
    return parameter.default if wrong else check_type(parameter.annotation, value)  # which makes 1 to 1.0 where that is meant
