"""A study file as executions of notebooks.

Every fault is reported before anything starts. An execution lists all that makes it
run again.
"""

import importlib.util
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from helpers.files import (
    CODE_ROOT,
    MANIFEST,
    PROJECT_ROOT,
    RECORDS,
    change_stamp,
    file_digest,
    inside,
    json_digest,
    read_json,
)
from helpers.parameters import (
    Parameter,
    StudyError,
    check_type,
    declared,
    near_names,
    value_fault,
)
from helpers.relations import relation_faults
from helpers.statistics.claims import PAIRED, check_claims, check_primary, claims_digest
from helpers.study_files import parse_yaml, read_blocks
from helpers.sweep.combinations import Sweep, read_sweep, vary
from helpers.sweep.imports import PACKAGE, ProjectModules, code_of

# The notebooks in the order in which they run, and the one that made what each reads.
AFTER = {
    "01": "",
    "02": "01",
    "03": "02",
    "04": "02",
    "08": "04",
    "05": "02",
    "06": "02",
    "07": "08",
    "09": "02",
    "10": "04",
    "11": "02",
}
JUDGING = "04"  # from this notebook on the claims are read
SCORES = "tables/scores.parquet"  # of a study's report
# Makers of masks that OpenCV has.
OF_OPENCV = ("spectral_residual_opencv", "fine_grained", "grab_cut")
# Notebooks that need images, pixels or weights, which records do not hold.
_OF_IMAGES = ("01", "02", "06")
_BLOCKS = (
    "question",
    "subject",
    "claims",
    "common",
    "notebooks",
    "sweep",
    "extends",
    "run",
    "work_study",
)
# What may differ in 01 and 02 of a study that extends another one: nothing that
# decides what is trained.
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
    """One notebook with all its parameters, or a share of its work."""

    notebook: str
    parameters: dict[str, Any]
    part: str = ""
    after: tuple[str, ...] = ()  # names of executions
    # "name = value", "file digest": it runs again when one of them changes
    depends: tuple[str, ...] = ()
    # of a sweep: its folder below "sweeps", such as "03_cam_scoring/cam_threshold=0.2"
    combination: str = ""

    @property
    def name(self) -> str:
        """The notebook, the combination of a sweep, and the part of its work."""
        swept, _, values = self.combination.partition("/")
        names = [self.notebook, *([swept] if swept != self.notebook else []), values]
        name = "@".join(filter(None, names))
        return f"{name}-{self.part}" if self.part else name


@dataclass(frozen=True)
class CheckedStudy:
    """A study whose file has no fault."""

    name: str
    root: Path  # of the project
    # Whose folder of work it shares: its own name, or that of the study it extends.
    work_study: str
    claims: list[dict[str, Any]]
    executions: list[Execution]
    sweeps: tuple[Sweep, ...] = ()  # over parameters
    # Notebooks that stand as they were published, see ``from_records``.
    standing: tuple[Execution, ...] = ()

    def is_published(self, execution: Execution) -> bool:
        """Whether the executed notebook lies in the study's report."""
        return (self.reports / f"{execution.name}.ipynb").is_file()

    @cached_property
    def values(self) -> dict[str, Any]:
        """The parameters of all notebooks together, without what a sweep varies."""
        values = {}
        for item in self.executions:
            if not item.combination:
                values |= item.parameters
        return values

    @cached_property
    def work(self) -> Path:
        """Where runs, scores and caches are."""
        return inside(self._folder("work_dir", "work"), self.work_study)

    @cached_property
    def reports(self) -> Path:
        """Where notebooks, tables and figures are published."""
        return inside(self._folder("reports_dir", "reports"), self.name)

    def _folder(self, name: str, default: str) -> Path:
        """The folder that a parameter names."""
        return self.root / Path(self.values.get(name, default)).expanduser()

    def _from_root(self, path: Path) -> str:
        return os.path.relpath(path, self.root)

    def job(self, execution: Execution | None = None) -> str:
        """All that ``execute`` needs of an execution, or of the pages, as JSON."""
        job = self._job_of_pages() if execution is None else self._job_of(execution)
        job |= {"study": self.name, "work": self._from_root(self.work)}
        return json.dumps(job, sort_keys=True)

    def _job_of_pages(self) -> dict[str, Any]:
        listed = [one for one in self.executions if one.name == one.notebook]
        sweeps = [
            {
                "notebook": sweep.notebook,
                "through": sweep.through,
                "parameters": list(sweep.values),
                "values": sweep.values,
            }
            for sweep in self.sweeps
            if sweep.values
        ]
        return {
            "reports": self._from_root(self.reports),
            "parameters": {
                one.notebook: one.parameters
                for one in sorted((*self.standing, *listed), key=_order)
            },
            "findings": file_digest(self.reports / "FINDINGS.md"),
            "sweeps": sweeps,
        }

    def _job_of(self, execution: Execution) -> dict[str, Any]:
        reports = self.reports
        if execution.combination:
            reports = reports / "sweeps" / execution.combination
        return {
            "reports": self._from_root(reports),
            "name": execution.name,
            "notebook": execution.notebook,
            "part": execution.part,
            "parameters": execution.parameters,
            "claims": self.claims,
            "needs": self._of_same_combination(execution),
        }

    def _of_same_combination(self, execution: Execution) -> list[str]:
        """Earlier executions of the same combination, whose failure is also its own."""
        alike = {
            one.name
            for one in self.executions
            if execution.combination and one.combination == execution.combination
        }
        return [name for name in execution.after if name in alike]

    def failed(self) -> dict[str, str]:
        """How executions of a sweep failed when they ran last, by name."""
        names = [item.name for item in self.executions if item.combination]
        faults = {name: failure(self.work, self.name, name) for name in names}
        return {name: fault for name, fault in faults.items() if fault}

    def withdraw_failed(self) -> None:
        """Delete the record of each failed combination, so that it is tried again."""
        for name in self.failed():
            record_of(self.work, self.name, name).unlink(missing_ok=True)

    def withdraw_changed(self) -> None:
        """Delete the records of executions whose files changed; they run again."""
        for record in self.work.glob(f"done/{self.name}/*.json"):
            try:
                files = read_json(record)["made"].items()
                changed = any(
                    file_digest(self.work / file) != old for file, old in files
                )
            except (ValueError, KeyError, TypeError, AttributeError):
                changed = True
            if changed:
                record.unlink()


def _order(execution: Execution) -> int:
    """Place of an execution's notebook among all."""
    return [*AFTER, execution.notebook[:2]].index(execution.notebook[:2])


def from_records(study: CheckedStudy, *, only_varied: bool = False) -> CheckedStudy:
    """A study whose images are not here, as its published records can run it.

    Args:
        study: any.
        only_varied: whether the study's own notebooks stand as they were published, and
            the combinations of its sweeps alone run; see ``asks_only_combinations``.

    Returns:
        The study without the notebooks that need images, which stand as they were
        published; the study itself where its images are here or it has no records.
    """
    chooses = [item for item in study.executions if item.notebook[:2] == "01"]
    path = chooses[0].parameters.get("data_path", "") if chooses else ""
    published = study.reports.parent / study.work_study / RECORDS / MANIFEST
    if not path or (study.root / Path(path).expanduser()).exists():
        return study
    standing = [
        item
        for item in study.executions
        if item.notebook[:2] in _OF_IMAGES or (only_varied and not item.combination)
    ]
    names = {item.name for item in standing}
    if not published.is_file() or len(names) == len(study.executions):
        return study
    executions = []
    for item in study.executions:
        if item.name not in names:
            after = tuple(name for name in item.after if name not in names)
            executions.append(replace(item, after=after))
    wholes = tuple(
        item
        for item in standing
        if not item.part and (study.is_published(item) or not only_varied)
    )
    return replace(study, executions=executions, standing=wholes)


def asks_only_combinations(
    variations: Sequence[str], overrides: Sequence[str], study: CheckedStudy
) -> bool:
    """Whether a command asks for combinations of values of a published study alone.

    So it is where parameters are varied and no other is set, as long as no notebook of
    the study has run here.
    """
    ran_here = any(
        record_of(study.work, study.name, item.name).is_file()
        for item in study.executions
        if not item.combination
    )
    return bool(variations) and not overrides and not ran_here


def record_of(work: Path, study: str, name: str) -> Path:
    """The record of an execution by its name: of what it made, or how it failed."""
    return inside(work / "done" / study, f"{name}.json")


def failure(work: Path, study: str, name: str) -> str:
    """How an execution of a sweep failed; "" where it did not."""
    try:
        return str(read_json(record_of(work, study, name)).get("failed", ""))
    except (OSError, ValueError, AttributeError):
        return ""


def load_study(
    path: Path | str,
    overrides: Sequence[str] = (),
    root: Path = PROJECT_ROOT,
    variations: Sequence[str] = (),
) -> CheckedStudy:
    """Read and check a study file, or the one in ``params`` of a bare name.

    Args:
        path: a file, or a name without suffix.
        overrides: "name=value" for every notebook that declares the name, or
            "notebook.name=value" for one.
        root: of the project.
        variations: "notebook.name=value,value", each a sweep over a parameter.

    Raises:
        StudyError: with every fault that there is.
    """
    path = _path_of(path, root)
    content = read_blocks(path)
    claims = content.get("claims") or []
    schema, faults = _schema(content, root)
    values = {
        stem: {"study": path.stem} | content["common"] | content["notebooks"][stem]
        for stem in schema
    }
    of_options = []
    for text in overrides:
        of_options += _override(text, values, schema)
    sweep = {stem: dict(block or {}) for stem, block in content["sweep"].items()}
    of_options += vary(variations, sweep, schema)
    try:
        check_claims(claims)
    except ValueError as fault:
        faults.append(f"claims: {fault}")
    wholes, of_values = _wholes(path.stem, schema, values, claims, root)
    sweeps, of_sweeps = _sweeps(sweep, schema)
    study = CheckedStudy(
        path.stem,
        root,
        content["work_study"],
        claims,
        _executions(wholes, sweeps, root),
        tuple(sweeps),
    )
    faults += [*of_values, *of_sweeps]
    faults += [*relation_faults(study.values), *_faults_of_sweeps(study)]
    if "extends" in content:
        base = load_study(path.with_name(f"{content['extends']}.yaml"), root=root)
        faults += _beyond(base, study)
    if faults or of_options:
        raise StudyError(*(f"{path}: {fault}" for fault in faults), *of_options)
    return study


def _schema(
    content: Mapping[str, Any], root: Path
) -> tuple[dict[str, dict[str, Parameter]], list[str]]:
    """Parameters of the notebooks that a study runs, and what is wrong with its names.

    Args:
        content: of its file, see ``read_blocks``.
        root: of the project.
    """
    available = _available(root)
    listed = {
        stem: names for stem, names in available.items() if stem in content["notebooks"]
    }
    faults = [
        *_faults_of_names(content, available, listed),
        *_faults_of_run(content, listed),
    ]
    if "run" in content and not faults:
        listed = {stem: listed[stem] for stem in listed if stem in content["run"]}
    return listed, faults


def _wholes(
    study: str,
    schema: Mapping[str, Mapping[str, Parameter]],
    values: Mapping[str, Mapping[str, Any]],
    claims: Sequence[Any],
    root: Path,
) -> tuple[dict[str, Execution], list[str]]:
    """The execution of each notebook with the study's values, and faults of these."""
    modules = ProjectModules(root if (root / PACKAGE).is_dir() else CODE_ROOT)
    wholes = {}
    faults = []
    for stem, names in schema.items():
        parameters, wrong = _valid_values(names, values[stem], study)
        faults += wrong
        wholes[stem] = Execution(
            stem,
            parameters,
            after=_before(stem, list(schema)),
            depends=_depends(stem, parameters, claims, root, modules),
        )
    return wholes, faults


def _path_of(path: Path | str, root: Path) -> Path:
    """The file of a study, which may be named without folder and suffix."""
    if Path(path).suffix or len(Path(path).parts) > 1:
        return Path(path)
    return Path(os.path.relpath(root / "params" / f"{path}.yaml"))


def _available(root: Path) -> dict[str, dict[str, Parameter]]:
    """Parameters of each notebook, in the order in which they run, others last."""
    paths = sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    paths.sort(key=lambda path: [*AFTER, path.stem[:2]].index(path.stem[:2]))
    return {path.stem: declared(path) for path in paths}


def _faults_of_names(
    content: Mapping[str, Any],
    available: Mapping[str, Any],
    schema: Mapping[str, Mapping[str, Parameter]],
) -> list[str]:
    """Names in a study file that nothing declares; a study that names no notebook."""
    notebooks = content["notebooks"]
    faults = [
        *_unknown("study", content, _BLOCKS),
        *_unknown("notebooks", notebooks, available),
        *_unknown("sweep", content["sweep"], schema),
        *_unknown("common", content["common"], set().union(*schema.values())),
    ]
    for stem, names in schema.items():
        faults += _unknown(stem, notebooks[stem], names)
    faults += [
        f"{name} is {content[name]!r:.100}, and must be text"
        for name in ("question", "subject")
        if not isinstance(content.get(name, ""), str)
    ]
    if schema:
        return faults
    return [
        f"the block notebooks names none to run, of {', '.join(available)}",
        *faults,
    ]


def _faults_of_run(
    content: Mapping[str, Any], listed: Mapping[str, Any]
) -> Iterator[str]:
    """What is wrong with the list of notebooks that a study executes of another's."""
    run = content.get("run")
    if "run" not in content:
        return
    if "extends" not in content:
        yield "run lists notebooks of a study that extends another one; add extends"
    elif not isinstance(run, list) or not run:
        yield f"run is {run!r:.100}, and must be a list of notebooks to execute"
    else:
        yield from _unknown("run", dict.fromkeys(map(str, run)), listed)


def _sweeps(
    blocks: Mapping[str, Mapping[str, Any]],
    schema: Mapping[str, Mapping[str, Parameter]],
) -> tuple[list[Sweep], list[str]]:
    """What each notebook's part of the ``sweep`` block asks for, and its faults."""
    sweeps = []
    faults = []
    stems = list(schema)
    for stem, block in blocks.items():
        if stem in schema:
            later = stems[stems.index(stem) + 1 :]
            sweep, wrong = read_sweep(stem, block, schema[stem], later)
            sweeps.append(sweep)
            faults += wrong
    return sweeps, faults


def _executions(
    wholes: Mapping[str, Execution], sweeps: Sequence[Sweep], root: Path
) -> list[Execution]:
    """Each notebook behind its shares, then the combinations of each sweep."""
    shards = {sweep.notebook: sweep.shard for sweep in sweeps}
    executions = []
    for stem, whole in wholes.items():
        executions += in_shares(whole, shards.get(stem, 0))
    for sweep in sweeps:
        for folder, values in sweep.combinations().items():
            chain = _chain(wholes, sweep, folder, values, root)
            for one in chain:
                shares = sweep.shard if one.notebook == sweep.notebook else 0
                executions += in_shares(one, shares)
    return executions


def _chain(
    wholes: Mapping[str, Execution],
    sweep: Sweep,
    folder: str,
    values: Mapping[str, Any],
    root: Path,
) -> list[Execution]:
    """A combination's execution of the swept notebook and of those behind it."""
    chain: dict[str, Execution] = {}
    for stem in (sweep.notebook, *sweep.through):
        whole = wholes[stem]
        changed = {name: values[name] for name in values if name in whole.parameters}
        if whole.parameters.get("jobs") == 0:
            changed["jobs"] = 1  # combinations run side by side
        before = {name: whole.parameters[name] for name in changed}
        replaced = set(_values_read(before, root))
        depends = [line for line in whole.depends if line not in replaced]
        depends += [*_values_read(changed, root), f"combination = {folder}"]
        chain[stem] = replace(
            whole,
            parameters=whole.parameters | changed,
            combination=folder,
            after=(
                *(name for name in whole.after if name not in chain),
                *(one.name for one in chain.values()),
            ),
            depends=tuple(depends),
        )
    return list(chain.values())


def _faults_of_sweeps(study: CheckedStudy) -> Iterator[str]:
    """Values of a combination that do not go together, each fault once."""
    alone = set(relation_faults(study.values))
    for sweep in study.sweeps:
        for folder, values in sweep.combinations().items():
            for fault in relation_faults(study.values | values):
                if fault not in alone:
                    alone.add(fault)
                    yield f"sweep: {folder}: {fault}"


def _unknown(where: str, names: Iterable[str], allowed: Collection[str]) -> list[str]:
    """A sentence for each name that is not among those allowed."""
    few = f"; valid: {', '.join(sorted(allowed))}" if len(allowed) < 10 else ""
    return [
        f"{where}: unknown name {name!r}{near_names(name, allowed)}{few}"
        for name in names
        if name not in allowed
    ]


def _override(
    override: str,
    values: Mapping[str, dict[str, Any]],
    schema: Mapping[str, Mapping[str, Parameter]],
) -> list[str]:
    """Put the value of one ``--set`` into the values by notebook.

    Returns:
        What is wrong with it: one sentence, or none.
    """
    target, equals, text = override.partition("=")
    stem, _, name = target.rpartition(".")
    chosen = [key for key in schema if stem in ("", key) and name in schema[key]]
    if not chosen or not equals:
        names = [item for items in schema.values() for item in items]
        near = near_names(name, names) or near_names(stem, schema)
        return [
            f"--set {override:.200}: unknown name{near}; write name=value or "
            "notebook.name=value"
        ]
    try:
        for key in chosen:
            values[key][name] = parse_yaml(text)
    except yaml.YAMLError:
        return [f"--set {override:.200}: the value is not readable YAML"]
    return []


def _valid_values(
    names: Mapping[str, Parameter], values: Mapping[str, Any], study: str
) -> tuple[dict[str, Any], list[str]]:
    """The parameters of a notebook, and what is wrong with their values.

    For a value that is wrong the default stands in, so that the rest can be checked.
    """
    parameters = {}
    faults = []
    for name, item in names.items():
        value = values.get(name, item.default)
        fault = value_fault(item, value)
        if fault:
            faults.append(fault)
            value = item.default
        parameters[name] = check_type(item.annotation, value)
    stated = parameters.get("study", study)
    if stated != study:
        faults.append(f"study is {stated!r}, and must be {study!r}, as its file")
    return parameters, faults


def _beyond(base: CheckedStudy, study: CheckedStudy) -> Iterator[str]:
    """Values of 01 and 02 that are not those of the study which is extended."""
    theirs = {
        item.notebook: item.parameters
        for item in base.executions
        if item.notebook[:2] in ("01", "02")
    }
    for item in study.executions:
        for name, value in theirs.get(item.notebook, {}).items():
            if name not in _FREE and item.parameters[name] != value:
                yield (
                    f"{name} is {item.parameters[name]!r}, and {base.name}, whose "
                    f"images and runs it shares, has {value!r}"
                )


def in_shares(whole: Execution, count: int) -> list[Execution]:
    """Equal shares of a notebook's work, side by side, and the whole after them.

    Args:
        whole: the execution.
        count: of the shares; 0 leaves the whole alone.
    """
    shares = []
    for number in range(1, count + 1):
        part = f"{number}_of_{count}"
        shares.append(
            replace(
                whole,
                parameters=whole.parameters | {"shard": f"{number}/{count}"},
                part=part,
                depends=(*whole.depends, f"part = {part}"),
            )
        )
    after = (*whole.after, *(share.name for share in shares))
    return [*shares, replace(whole, after=after)]


def _before(stem: str, stems: Sequence[str]) -> tuple[str, ...]:
    """The notebook that makes what this one reads, or the nearest before it.

    Args:
        stem: of a notebook.
        stems: of those that the study has.
    """
    number = AFTER.get(stem[:2])
    while number and number not in {other[:2] for other in stems}:
        number = AFTER.get(number)
    return tuple(other for other in stems if other[:2] == number)


def _values_read(values: Mapping[str, Any], root: Path) -> list[str]:
    """A line for each parameter, and one for each file or folder that one names."""
    lines = [f"{name} = {value!r}" for name, value in values.items()]
    for name, value in values.items():
        if name.endswith("_path") and value:
            lines.append(f"{name} {change_stamp(root / Path(value).expanduser())}")
    return lines


def _depends(
    stem: str,
    parameters: Mapping[str, Any],
    claims: Sequence[Any],
    root: Path,
    modules: ProjectModules,
) -> tuple[str, ...]:
    """What makes a notebook run again when it changes.

    Parameters, files that they name, cells, modules that it imports, transitively, and
    from ``JUDGING`` on the claims.
    """
    cells = read_json(root / f"notebooks/{stem}.ipynb")["cells"]
    content = [[cell["source"], cell["metadata"].get("tags")] for cell in cells]
    return (
        *_values_read(parameters, root),
        f"notebooks/{stem}.ipynb {json_digest(content)}",
        *(
            f"{path.relative_to(modules.root)} {file_digest(path)[:8]}"
            for path in modules.behind(code_of(cells))
        ),
        *([f"claims {claims_digest(claims)}"] if stem[:2] >= JUDGING else []),
    )


def further_faults(study: CheckedStudy) -> list[str]:
    """What this machine and other modules know to be wrong.

    Files and measures that do not exist, and claims that cannot be answered.
    """
    faults = []
    primary = set()
    for item in study.executions:
        for name, value in item.parameters.items():
            if (
                name.endswith("_path")
                and value
                and not (study.root / Path(value).expanduser()).exists()
            ):
                faults.append(
                    f"{name} is {value!r}, and nothing is there; give its place by "
                    f"--set {name}=..."
                )
        primary.add(tuple(item.parameters.get("primary_measures", [])))
        faults += _unpublished(study, item.parameters.get("other_studies", []))
        if not study.standing:  # else masks are those of the records
            faults += _without_opencv(item.parameters.get("saliency_providers", []))
    faults += _unknown_measures(study.claims, sorted(primary))
    try:
        for names in sorted(primary):
            check_primary(names)
        check_claims(study.claims, primary=study.values.get("primary_measures"))
    except ValueError as fault:
        faults.append(str(fault))
    return list(dict.fromkeys(faults))


def _unpublished(study: CheckedStudy, others: Sequence[str]) -> Iterator[str]:
    """Other studies that are to predict this one's gaps and have no report."""
    folder = study.reports.parent
    published = [path.parent.parent.name for path in folder.glob(f"*/{SCORES}")]
    for name in others:
        if name not in (study.name, *published):
            yield (
                f"other_studies names {name!r}, of which {folder} has no "
                f"{SCORES}{near_names(name, published)}"
            )


def _without_opencv(providers: Sequence[str]) -> Iterator[str]:
    """Makers of masks that need a package which is not here."""
    wanted = [name for name in providers if name in OF_OPENCV]
    if wanted and importlib.util.find_spec("cv2") is None:
        yield (
            f"saliency_providers {', '.join(wanted)} need OpenCV: pip install "
            "'generalization-workbook[saliency]', or choose spectral_residual"
        )


def _unknown_measures(
    claims: Sequence[Mapping[str, Any]], primary: Iterable[Sequence[str]]
) -> list[str]:
    """Measures that claims or ``primary_measures`` name, and that are not there."""
    named = [
        (f"claim {claim['claim']!r}", claim["measure"])
        for claim in claims
        if claim["question"] != PAIRED
    ]
    named += [("primary_measures", name) for names in primary for name in names]
    if not named:
        return []
    from helpers.measures.registry import columns  # late: it loads torch

    measures = columns()["column"].tolist()
    return [
        f"{where}: unknown measure {name!r}{near_names(name, measures)}"
        for where, name in named
        if name not in measures
    ]
