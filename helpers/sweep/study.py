"""A study file as executions of notebooks: every fault told before anything starts, and all that makes an execution run again."""

import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import yaml

from helpers.files import PROJECT_ROOT, content_digest, inside, read_json
from helpers.parameters import StudyError, check_type, declared, near_names, parse_yaml, read_study, value_fault
from helpers.statistics.claims import check_claims, claims_digest, kept_claims
from helpers.sweep.relations import relation_faults

AFTER = {"02": "01", "03": "02", "04": "02", "05": "02", "06": "02", "07": "04"}  # what a notebook reads was made by this one
_JUDGING = "04"  # from this notebook on the claims are read
_FREE = {
    "study",
    "pictured_images",
    "minimum_train_accuracy",
    "published_checkpoints",
    "device",
    "jobs",
}  # of 01 and 02, in a study that extends
_HAD = {
    "tiny_imagenet": "get it from http://cs231n.stanford.edu/tiny-imagenet-200.zip, or ",
    "ilsvrc": "get it from https://www.kaggle.com/c/imagenet-object-localization-challenge/data, or ",
}


@dataclass(frozen=True)
class Execution:
    """One notebook with all its parameters, or the part of its work that a ``sweep`` block gives it."""

    notebook: str
    parameters: dict[str, Any]
    part: str = ""
    after: tuple[str, ...] = ()  # names of executions
    depends: tuple[str, ...] = ()  # "name = value" and "file digest": it runs again when one of them changes

    @property
    def name(self) -> str:
        """The notebook, and the part of it."""
        return f"{self.notebook}-{self.part}" if self.part else self.notebook


@dataclass(frozen=True)
class Study:
    """A study whose file has no fault."""

    name: str
    root: Path  # of the project
    work_study: str
    claims: list[dict[str, Any]]
    executions: list[Execution]

    def _folder(self, parameter: str, name: str) -> Path:
        given = self.executions[0].parameters.get(parameter, parameter.removesuffix("_dir"))
        return inside(self.root / Path(given).expanduser(), name)

    @cached_property
    def work(self) -> Path:
        """Where runs, scores and caches are; that of the study which it extends."""
        return self._folder("work_dir", self.work_study)

    @cached_property
    def reports(self) -> Path:
        """Where notebooks, tables and figures are published."""
        return self._folder("reports_dir", self.name)

    def record(self, name: str) -> Path:
        """The file that is there while an execution is complete: what it made, by digest. Its name relative to ``work`` is its target."""
        return self.work / "done" / self.name / f"{name}.json"

    def job(self, execution: Execution) -> str:
        """All that ``execute`` is told, as JSON; equal for equal work, wherever the project lies."""
        given = {"study": self.name, "work_study": self.work_study, "notebook": execution.notebook, "part": execution.part}
        return json.dumps(given | {"parameters": execution.parameters, "claims": self.claims}, sort_keys=True)

    def pages_job(self) -> str:
        """All that ``execute`` is told of the pages."""
        wholes = {item.notebook: item.parameters for item in self.executions if not item.part}
        told = content_digest(self.reports / "FINDINGS.md")
        places = {"work": str(self.work), "reports": str(self.reports)}
        return json.dumps({"study": self.name, "notebooks": [*wholes], "parameters": wholes, "findings": told} | places, sort_keys=True)

    def withdraw_changed(self) -> dict[str, list[str]]:
        """Delete the record of each execution that no longer has what it made: these files by execution."""
        found = {}
        for name in [item.name for item in self.executions] + ["pages"]:
            try:
                made = read_json(self.record(name))["made"]
                found[name] = [file for file, digest in made.items() if content_digest(self.work / file) != digest]
            except FileNotFoundError:
                continue
            except (ValueError, KeyError, TypeError, AttributeError):
                found[name] = [f"{name}.json"]
            if found[name]:
                self.record(name).unlink(missing_ok=True)
        return {name: files for name, files in found.items() if files}


def load_study(path: Path | str, overrides: Sequence[str] = (), root: Path = PROJECT_ROOT) -> Study:
    """Read and check a study file.

    Args:
        path: the file, or the bare name of one in ``params``.
        overrides: "name=value" for every notebook that declares the name, or "notebook.name=value" for one.
        root: the project.

    Raises:
        StudyError: every fault there is, each with the nearest names or what is allowed.
    """
    given, path = path, Path(path)
    path = path if path.suffix or len(path.parts) > 1 else Path(os.path.relpath(root / "params" / f"{given}.yaml"))
    content, faults = read_study(path), []
    notebooks = {item.stem: declared(item) for item in sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb"))}
    stems = [stem for stem in notebooks if stem in (content.get("notebooks") or {})]
    faults += _unknown(f"{path}", content, ("claims", "common", "notebooks", "sweep", "extends", "work_study"))
    faults += _unknown(f"{path}, notebooks", content.get("notebooks") or {}, notebooks)
    if not stems:
        raise StudyError(*faults, f"{path}: the block notebooks names none to run, of {', '.join(notebooks)}")
    schema = {stem: notebooks[stem] for stem in stems}
    every = {name for names in schema.values() for name in names}
    faults += _unknown(f"{path}, common", content.get("common") or {}, every)
    values = {stem: {"study": path.stem} | (content.get("common") or {}) | (content["notebooks"][stem] or {}) for stem in stems}
    for stem in stems:
        faults += _unknown(f"{path}, {stem}", content["notebooks"][stem] or {}, schema[stem])
    for override in overrides:
        faults += _override(override, values, schema)
    checked, found = {}, {}
    for stem, names in schema.items():
        checked[stem] = {name: values[stem].get(name, item.default) for name, item in names.items()}
        for name, item in names.items():
            if fault := value_fault(item, checked[stem][name]):
                found.setdefault(fault, []).append(stem)
                checked[stem][name] = item.default
            checked[stem][name] = check_type(item.annotation, checked[stem][name])
        if checked[stem].get("study", path.stem) != path.stem:
            found.setdefault(f"study is {checked[stem]['study']!r}, and must be {path.stem!r}, as its file", []).append(stem)
    faults += [f"{path}, {', '.join(where)}: {fault}" for fault, where in found.items()]
    faults += _between(path, checked) + _claim_faults(path, content) + _extension_faults(path, content, checked, root)
    executions = [item for stem in stems for item in _executions(path, stem, checked, content, schema[stem], faults, root)]
    if faults:
        raise StudyError(*faults)
    return Study(path.stem, root, content["work_study"], content.get("claims") or [], executions)


def _unknown(where: str, block: Mapping[str, Any], known: Any) -> list[str]:
    few = f"; valid: {', '.join(sorted(known))}" if len(known) < 9 else ""
    return [f"{where}: unknown name {name!r}{near_names(name, list(known))}{few}" for name in block if name not in known]


def _override(override: str, values: dict[str, dict[str, Any]], schema: Mapping[str, Mapping[str, Any]]) -> list[str]:
    target, _, text = override.partition("=")
    stem, _, name = target.rpartition(".")
    chosen = [key for key in schema if stem in ("", key) and name in schema[key]]
    if not chosen:
        names = {name for key in schema if stem in ("", key) for name in schema[key]} or set(schema)
        return [
            f"--set {override:.200}: unknown name{near_names(name if stem in ('', *schema) else stem, list(names))}; write name=value or notebook.name=value"
        ]
    try:
        for key in chosen:
            values[key][name] = parse_yaml(text)
    except yaml.YAMLError:
        return [f"--set {override:.200}: the value is not readable YAML"]
    return []


def _between(path: Path, checked: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Faults between parameters; what a notebook declares holds for all after it."""
    known, found = {}, {}
    for stem, values in checked.items():
        known |= values
        for fault in relation_faults(known):
            found.setdefault(fault, f"{path}, {stem}: {fault}")
    return list(found.values())


def _claim_faults(path: Path, content: Mapping[str, Any]) -> list[str]:
    try:
        check_claims(content.get("claims") or [])
    except ValueError as fault:
        return [f"{path}, claims: {fault}"]
    return []


def measure_faults(study: Study) -> list[str]:
    """Claims on measures that do not exist; claims that were kept before are known to be right, so that nothing heavy is loaded."""
    if kept_claims(study.work).digest == claims_digest(study.claims):
        return []
    from helpers.measures.registry import columns  # late: it loads torch

    known = columns()["column"].tolist()
    return [
        f"claim {claim['claim']!r}: unknown measure {claim['measure']!r}{near_names(claim['measure'], known)}"
        for claim in study.claims
        if claim["measure"] not in known
    ]


def _extension_faults(path: Path, content: Mapping[str, Any], checked: Mapping[str, Mapping[str, Any]], root: Path) -> list[str]:
    """A study that extends another has its images and its runs."""
    if "extends" not in content:
        return []
    base = {item.notebook: item.parameters for item in load_study(path.with_name(f"{content['extends']}.yaml"), root=root).executions}
    return [
        f"{path}, {stem}: {name} is {value!r}, and {content['extends']}, whose images and runs it shares, has {base[stem].get(name)!r}"
        for stem, values in checked.items()
        for name, value in values.items()
        if stem[:2] in ("01", "02") and name not in _FREE and value != base.get(stem, values).get(name)
    ]


def _executions(
    path: Path, stem: str, checked: Mapping[str, Any], content: Mapping[str, Any], names: Any, faults: list[str], root: Path
) -> list[Execution]:
    """A notebook's parts side by side, then the whole, which finds their work done and sums it up."""
    levels = (content.get("sweep") or {}).get(stem) or {}
    where, axes = f"{path}, sweep, {stem}", {}
    faults += _unknown(where, levels, names)
    for name, given in levels.items():
        count = given if name == "shard" and type(given) is int and 0 < given <= 10_000 else 0
        axes[name] = [f"{number}/{count}" for number in range(1, count + 1)] if count else given
        wraps = isinstance(given, list) and name in names and names[name].annotation.startswith("list")
        axes[name] = (
            [[value] if wraps and not isinstance(value, list) else value for value in axes[name]] if isinstance(axes[name], list) else []
        )
        if not axes[name] or name in ("study", "work_dir", "reports_dir"):
            faults.append(f"{where}: {name} is {given!r}; write a list of values to run side by side, or shard: N for N equal shares")
        elif name in names:
            faults += [f"{where}: {fault}" for value in axes[name] if (fault := value_fault(names[name], value))]
    before = _before(stem, list(checked))
    after = tuple(item for other in before for item in [other])
    depends = _depends(stem, checked[stem], content, root)
    parts = []
    for combination in itertools.product(*axes.values()) if axes else ():
        own = dict(zip(axes, combination, strict=True))
        word = "-".join(re.sub(r"[^A-Za-z0-9_.+]+", "_", f"{name}{value}").strip("_") for name, value in own.items())[:80]
        parts.append(Execution(stem, checked[stem] | own, f"{len(parts) + 1}-{word}", after, (*depends, f"part = {own}")))
    return [*parts, Execution(stem, checked[stem], "", (*after, *(item.name for item in parts)), depends)]


def _before(stem: str, stems: Sequence[str]) -> list[str]:
    """The notebook of the study that makes what this one reads, or the nearest before that one."""
    number = AFTER.get(stem[:2], "")
    while number and not (found := [other for other in stems if other[:2] == number]):
        number = AFTER.get(number, "")
    return found if number else []


def _depends(stem: str, parameters: Mapping[str, Any], content: Mapping[str, Any], root: Path) -> tuple[str, ...]:
    """All that makes a notebook run again beside what was made before it: its values, its source, the helpers, files, claims."""
    own = [f"{name} = {value!r}" for name, value in parameters.items()]
    own += [f"{name} {_stamp(root / Path(value).expanduser())}" for name, value in parameters.items() if name.endswith("_path") and value]
    source = [["".join(cell["source"]), cell["metadata"].get("tags")] for cell in read_json(root / f"notebooks/{stem}.ipynb")["cells"]]
    text = json.dumps(source)
    rooms = {"sweep", *(room for room in ("ablations", "kappa", "select") if room not in text)}  # each for one notebook alone
    files = [path for path in sorted((root / "helpers").rglob("*")) if path.suffix in (".py", ".csv")]
    helpers = [path for path in files if path.relative_to(root / "helpers").parts[0] not in rooms]
    own += [f"notebooks/{stem}.ipynb {_digest(text)}", *(f"{path.relative_to(root)} {content_digest(path)[:8]}" for path in helpers)]
    return (*own, *([f"claims {claims_digest(content.get('claims') or [])}"] if stem[:2] >= _JUDGING else []))


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=4).hexdigest()


def _stamp(path: Path) -> str:
    """Digest of the names and sizes of a file or a folder, and of the end of a file, where a .zip has the checksums of all it holds."""
    if path.is_file():
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 2**20))
            return f"{path.stat().st_size} {blake2b(file.read(), digest_size=4).hexdigest()}"
    names = sorted(
        f"{os.path.relpath(folder, path)}/{name} {os.path.getsize(os.path.join(folder, name))}"
        for folder, _, files in os.walk(path)
        for name in files
    )
    return _digest("\n".join(names))


def machine_faults(study: Study, least_free: float = 1.0) -> Iterator[str]:
    """What stands in the way on this machine: files that parameters name, folders that cannot be written, a full disk (GiB)."""
    named: dict[str, dict[str, str]] = {}
    for parameters in (item.parameters for item in study.executions):
        for name, value in parameters.items():
            if name.endswith("_path") and value and not (study.root / Path(value).expanduser()).exists():
                named.setdefault(value, {})[name] = _HAD.get(str(parameters.get(name.replace("_path", "_source"))), "")
    for value, names in named.items():
        sets = " ".join(f"--set {name}=..." for name in names)
        yield f"{' and '.join(names)} is {value!r}, and nothing is there; {next(filter(None, names.values()), '')}give its place by {sets}"
    for folder in (study.work, study.reports):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK) or os.statvfs(there).f_flag & os.ST_RDONLY:
            yield f"{there} cannot be written, and {folder.name} has to go there; change its permissions, or set work_dir and reports_dir"
        elif (free := shutil.disk_usage(there).free / 2**30) < least_free:
            yield f"{there} has {free:.2f} GiB free, and {least_free:g} GiB are needed; make room, or set work_dir and reports_dir"
