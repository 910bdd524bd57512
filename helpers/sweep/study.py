"""A study file as executions of notebooks: every fault told before anything starts, and all that makes an execution run again."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import yaml

from helpers.files import PROJECT_ROOT, digest, digest_of, inside, read_json
from helpers.parameters import (
    Parameter,
    StudyError,
    check_type,
    declared,
    near_names,
    parse_yaml,
    read_blocks,
    value_fault,
)
from helpers.statistics.claims import check_claims, check_primary, claims_digest
from helpers.sweep.relations import relation_faults

# The notebooks in the order in which they run, each with the one that made what it reads.
AFTER = {
    "01": "",
    "02": "01",
    "03": "02",
    "04": "02",
    "08": "04",
    "05": "02",
    "06": "02",
    "07": "08",
}
JUDGING = "04"  # from this notebook on the claims are read
_BLOCKS = ("claims", "common", "notebooks", "sweep", "extends", "work_study")
# What may differ in 01 and 02 of a study that extends another one: nothing that decides what is trained.
_FREE = (
    "study",
    "pictured_images",
    "minimum_train_accuracy",
    "published_checkpoints",
    "device",
    "jobs",
    "shard",
)


@dataclass(frozen=True)
class Execution:
    """One notebook with all its parameters, or the part of its work that a ``sweep`` block gives it."""

    notebook: str
    parameters: dict[str, Any]
    part: str = ""
    after: tuple[str, ...] = ()  # names of executions
    depends: tuple[
        str, ...
    ] = ()  # "name = value", "file digest": it runs again when one of them changes

    @property
    def name(self) -> str:
        """The notebook, and the part of it."""
        return f"{self.notebook}-{self.part}" if self.part else self.notebook


@dataclass(frozen=True)
class CheckedStudy:
    """A study whose file has no fault."""

    name: str
    root: Path  # of the project
    work_study: str  # whose folder of work it shares: its own name, or that of the study which it extends
    claims: list[dict[str, Any]]
    executions: list[Execution]

    @cached_property
    def values(self) -> dict[str, Any]:
        """The parameters of all notebooks together."""
        return {
            name: value
            for item in self.executions
            for name, value in item.parameters.items()
        }

    @cached_property
    def work(self) -> Path:
        """Where runs, scores and caches are."""
        return inside(
            self.root / Path(self.values.get("work_dir", "work")).expanduser(),
            self.work_study,
        )

    @cached_property
    def reports(self) -> Path:
        """Where notebooks, tables and figures are published."""
        return inside(
            self.root / Path(self.values.get("reports_dir", "reports")).expanduser(),
            self.name,
        )

    def job(self, execution: Execution | None = None) -> str:
        """All that ``execute`` is told of an execution, or of the pages, as JSON."""
        given = {
            "study": self.name,
            "work": os.path.relpath(self.work, self.root),
            "reports": os.path.relpath(self.reports, self.root),
        }
        if execution is None:
            given |= {
                "parameters": {
                    item.notebook: item.parameters
                    for item in self.executions
                    if not item.part
                }
            }
            given |= {"findings": digest_of(self.reports / "FINDINGS.md")}
        else:
            given |= {
                "notebook": execution.notebook,
                "part": execution.part,
                "parameters": execution.parameters,
                "claims": self.claims,
            }
        return json.dumps(given, sort_keys=True)

    def withdraw_changed(self) -> None:
        """Delete the record of each execution that no longer has what it made, so that it runs again."""
        for record in self.work.glob(f"done/{self.name}/*.json"):
            try:
                sound = all(
                    digest_of(self.work / file) == kept
                    for file, kept in read_json(record)["made"].items()
                )
            except (ValueError, KeyError, TypeError, AttributeError):
                sound = False
            if not sound:
                record.unlink()


def load_study(
    path: Path | str, overrides: Sequence[str] = (), root: Path = PROJECT_ROOT
) -> CheckedStudy:
    """Read and check a study file, or the one in ``params`` of a bare name; a StudyError has every fault there is.

    An override is "name=value" for every notebook that declares the name, or "notebook.name=value" for one.
    """
    bare = not Path(path).suffix and len(Path(path).parts) == 1
    path = (
        Path(os.path.relpath(root / "params" / f"{path}.yaml")) if bare else Path(path)
    )
    content = read_blocks(path)
    notebooks, sweep, claims = (
        content["notebooks"],
        content["sweep"],
        content.get("claims") or [],
    )
    paths = sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    paths.sort(
        key=lambda item: [*AFTER, item.stem[:2]].index(item.stem[:2])
    )  # others come last
    available = {item.stem: declared(item) for item in paths}
    schema = {stem: names for stem, names in available.items() if stem in notebooks}
    values = {
        stem: {"study": path.stem} | content["common"] | notebooks[stem]
        for stem in schema
    }
    blocks = [
        ("study", content, _BLOCKS),
        ("notebooks", notebooks, available),
        ("sweep", sweep, schema),
    ]
    blocks += [
        (
            "common",
            content["common"],
            {name for names in schema.values() for name in names},
        )
    ]
    blocks += [(stem, notebooks[stem], names) for stem, names in schema.items()]
    faults = (
        []
        if schema
        else [f"the block notebooks names none to run, of {', '.join(available)}"]
    )
    faults += [fault for block in blocks for fault in _unknown(*block)]
    set_faults = [
        fault for override in overrides for fault in _override(override, values, schema)
    ]
    try:
        check_claims(claims)
    except ValueError as fault:
        faults.append(f"claims: {fault}")
    base = (
        load_study(path.with_name(f"{content['extends']}.yaml"), root=root)
        if "extends" in content
        else None
    )
    executions = []
    for stem, names in schema.items():
        parameters = {
            name: _valid(item, values[stem].get(name, item.default), faults)
            for name, item in names.items()
        }
        if parameters.get("study", path.stem) != path.stem:
            faults.append(
                f"study is {parameters['study']!r}, and must be {path.stem!r}, as its file"
            )
        after, block = _before(stem, list(schema)), sweep.get(stem) or {}
        count = block.get("shard", 0)
        if block and (
            [*block] != ["shard"]
            or "shard" not in names
            or type(count) is not int
            or not 1 <= count <= 10_000
        ):
            faults.append(
                f"sweep: {stem} has {block!r:.100}; write shard: N for N equal shares of a notebook that declares shard"
            )
            count = 0
        whole = Execution(
            stem, parameters, "", after, _depends(stem, parameters, claims, root)
        )
        parts = _shares(whole, count)
        executions += [
            *parts,
            replace(whole, after=(*after, *(item.name for item in parts))),
        ]
    study = CheckedStudy(path.stem, root, content["work_study"], claims, executions)
    faults += [*relation_faults(study.values), *(_beyond(base, study) if base else [])]
    if faults or set_faults:
        raise StudyError(*(f"{path}: {fault}" for fault in faults), *set_faults)
    return study


def _unknown(where: str, block: Mapping[str, Any], known: Any) -> list[str]:
    few = f"; valid: {', '.join(sorted(known))}" if len(known) < 9 else ""
    return [
        f"{where}: unknown name {name!r}{near_names(name, known)}{few}"
        for name in block
        if name not in known
    ]


def _override(
    override: str,
    values: Mapping[str, dict[str, Any]],
    schema: Mapping[str, Mapping[str, Parameter]],
) -> list[str]:
    target, _, text = override.partition("=")
    stem, _, name = target.rpartition(".")
    chosen = [key for key in schema if stem in ("", key) and name in schema[key]]
    if not chosen or "=" not in override:
        near = near_names(
            name, [item for names in schema.values() for item in names]
        ) or near_names(stem, schema)
        return [
            f"--set {override:.200}: unknown name{near}; write name=value or notebook.name=value"
        ]
    try:
        for key in chosen:
            values[key][name] = parse_yaml(text)
    except yaml.YAMLError:
        return [f"--set {override:.200}: the value is not readable YAML"]
    return []


def _valid(item: Parameter, value: Any, faults: list[str]) -> Any:
    """A value that is right; where it is not, the fault is noted, and the default stands in, so that the rest can be checked."""
    fault = value_fault(item, value)
    faults += [fault] if fault else []
    return check_type(item.annotation, item.default if fault else value)


def _beyond(base: CheckedStudy, study: CheckedStudy) -> Iterator[str]:
    """Values of 01 and 02 that are not those of the study which is extended, whose images and runs are shared."""
    theirs = {
        item.notebook: item.parameters
        for item in base.executions
        if item.notebook[:2] in ("01", "02")
    }
    for item in study.executions:
        for name, value in theirs.get(item.notebook, {}).items():
            if name not in _FREE and item.parameters[name] != value:
                yield f"{name} is {item.parameters[name]!r}, and {base.name}, whose images and runs it shares, has {value!r}"


def _shares(whole: Execution, count: int) -> list[Execution]:
    """An execution for each of the equal shares of a notebook's work, side by side."""
    shares = {
        f"{number}_of_{count}": whole.parameters | {"shard": f"{number}/{count}"}
        for number in range(1, count + 1)
    }
    return [
        replace(
            whole, parameters=own, part=part, depends=(*whole.depends, f"part = {part}")
        )
        for part, own in shares.items()
    ]


def _before(stem: str, stems: Sequence[str]) -> tuple[str, ...]:
    """The notebook of the study that makes what this one reads, or the nearest before that one."""
    number = AFTER.get(stem[:2])
    while number and number not in {other[:2] for other in stems}:
        number = AFTER.get(number)
    return tuple(other for other in stems if other[:2] == number)


def _depends(
    stem: str, parameters: Mapping[str, Any], claims: Sequence[Any], root: Path
) -> tuple[str, ...]:
    """What makes a notebook run again when it changes: parameters, files that they name, cells, helpers that concern it, claims."""
    paths = {
        name: root / Path(value).expanduser()
        for name, value in parameters.items()
        if name.endswith("_path") and value
    }
    cells = [
        [cell["source"], cell["metadata"].get("tags")]
        for cell in read_json(root / f"notebooks/{stem}.ipynb")["cells"]
    ]
    others = {
        room
        for room in ("ablations", "kappa", "select")
        if f"helpers.{room}" not in str(cells)
    }  # folders for other notebooks
    files = [
        path
        for path in sorted((root / "helpers").rglob("*"))
        if path.suffix in (".py", ".csv")
    ]
    return (
        *(f"{name} = {value!r}" for name, value in parameters.items()),
        *(f"{name} {_stamp(path)}" for name, path in paths.items()),
        f"notebooks/{stem}.ipynb {digest(cells)}",
        *(
            f"{path.relative_to(root)} {digest_of(path)[:8]}"
            for path in files
            if path.relative_to(root).parts[1] not in {"sweep", *others}
        ),
        *([f"claims {claims_digest(claims)}"] if stem[:2] >= JUDGING else []),
    )


def _stamp(path: Path) -> str:
    """Size of a folder's files, or of a file with a digest of its end, where a .zip has the checksums of all that it holds."""
    if not path.is_file():
        return str(
            sum(
                os.path.getsize(os.path.join(folder, name))
                for folder, _, names in os.walk(path)
                for name in names
            )
        )
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2**20))
        return (
            f"{path.stat().st_size} {blake2b(file.read(), digest_size=4).hexdigest()}"
        )


def further_faults(study: CheckedStudy) -> list[str]:
    """What is known by this machine and other modules: files and measures that do not exist, claims that cannot be answered."""
    stated = study.values.get("primary_measures")
    paths = {
        name: value
        for name, value in study.values.items()
        if name.endswith("_path") and value
    }
    absent = [
        name
        for name, value in paths.items()
        if not (study.root / Path(value).expanduser()).exists()
    ]
    faults = [
        f"{name} is {paths[name]!r}, and nothing is there; give its place by --set {name}=..."
        for name in absent
    ]
    named = [(f"claim {claim['claim']!r}", claim["measure"]) for claim in study.claims]
    named += [("primary_measures", name) for name in stated or []]
    if named:
        from helpers.measures.registry import columns  # late: it loads torch

        known = columns()["column"].tolist()
        faults += [
            f"{where}: unknown measure {name!r}{near_names(name, known)}"
            for where, name in named
            if name not in known
        ]
    try:
        check_primary(stated or [])
        check_claims(study.claims, primary=stated)
    except ValueError as fault:
        faults.append(str(fault))
    return faults
