"""Reads a study file and plans the executions of notebooks that it asks for.

Every fault is reported before anything starts. An execution lists everything that it
depends on: it runs again when one of these changes.
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
from helpers.statistics.claims import PAIRED, check_claims, check_primary
from helpers.study_files import parse_yaml, read_blocks
from helpers.sweep import order
from helpers.sweep.combinations import Sweep, read_sweep, vary
from helpers.sweep.imports import ProjectModules, code_of

_FIRST_TO_READ_CLAIMS = 4  # number of a notebook; later ones read the claims too
SCORES = "tables/scores.parquet"  # of a study's report
# Makers of masks that need the package OpenCV.
OF_OPENCV = ("grab_cut",)
# Notebooks that need images, pixels or weights, which records do not hold.
_OF_IMAGES = ("01", "02", "06")
_BLOCKS = (
    "question",
    "subject",
    "claims",
    "rule",
    "common",
    "notebooks",
    "sweep",
    "extends",
    "run",
    "work_study",
)
# Parameters of 01 and 02 that a study may change although it extends another one, whose
# images and trained networks it uses: none of them affects these.
_WITHOUT_EFFECT_ON_TRAINING = (
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
    # Lines "name = value" and "file digest": it runs again when one of them changes.
    depends: tuple[str, ...] = ()
    # Folder below "sweeps", such as "03_cam_scoring/cam_threshold=0.2"; "" outside one.
    combination: str = ""

    @property
    def name(self) -> str:
        """The notebook, the combination of a sweep, and the share of its work.

        Such as "04_baselines@03_cam_scoring@cam_threshold=0.2", the execution of 04
        that reads what this combination of 03 made.
        """
        swept_notebook, _, values = self.combination.partition("/")
        names = [self.notebook]
        if swept_notebook != self.notebook:
            names.append(swept_notebook)
        names.append(values)
        name = "@".join(filter(None, names))
        return f"{name}-{self.part}" if self.part else name

    @property
    def is_whole(self) -> bool:
        """Whether it is neither a share of a notebook's work nor part of a sweep."""
        return not self.part and not self.combination


@dataclass(frozen=True)
class CheckedStudy:
    """A study whose file has no fault."""

    name: str
    root: Path  # of the project
    # The study in whose folder of work it works: itself, or the one that it extends.
    work_study: str
    claims: list[dict[str, Any]]
    values: dict[str, Any]  # of the parameters of all notebooks, none of a sweep
    executions: list[Execution]
    sweeps: tuple[Sweep, ...] = ()  # over parameters
    # Executions that do not run: their published results are used, ``from_records``.
    as_published: tuple[Execution, ...] = ()

    def is_published(self, execution: Execution) -> bool:
        """Whether the executed notebook lies in the study's report."""
        return (self.reports / f"{execution.name}.ipynb").is_file()

    @cached_property
    def work(self) -> Path:
        """Folder of runs, scores and caches."""
        return inside(self._folder("work_dir", "work"), self.work_study)

    @cached_property
    def reports(self) -> Path:
        """Folder in which notebooks, tables and figures are published."""
        return inside(self._folder("reports_dir", "reports"), self.name)

    def _folder(self, name: str, default: str) -> Path:
        """The folder that a parameter names."""
        return self.root / Path(self.values.get(name, default)).expanduser()

    def _from_root(self, path: Path) -> str:
        return os.path.relpath(path, self.root)

    def job(self, execution: Execution | None = None) -> str:
        """Job of an execution, or of the pages, as JSON for ``execute``."""
        job = self._job_of_pages() if execution is None else self._job_of(execution)
        job |= {"study": self.name, "work": self._from_root(self.work)}
        return json.dumps(job, sort_keys=True)

    def _job_of_pages(self) -> dict[str, Any]:
        whole = [item for item in self.executions if item.is_whole]
        sweeps = [
            {
                "notebook": sweep.notebook,
                "through": sweep.through,  # later notebooks, for each combination too
                "parameters": list(sweep.values),
                "values": sweep.values,
            }
            for sweep in self.sweeps
            if sweep.values  # a block may ask for shares of the work alone
        ]
        return {
            "reports": self._from_root(self.reports),
            "parameters": {
                item.notebook: item.parameters
                for item in sorted((*self.as_published, *whole), key=_order)
            },
            # Pages are made anew if the findings were.
            "findings": file_digest(self.reports / "FINDINGS.md"),
            "sweeps": sweeps,
            # Notebooks that do not run, whose pages stay as they are.
            "unchanged": [item.notebook for item in self.as_published],
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
            "needs": self._earlier_of_combination(execution),
        }

    def _earlier_of_combination(self, execution: Execution) -> list[str]:
        """Names of earlier executions of its combination, all of which it needs."""
        of_combination = {
            item.name
            for item in self.executions
            if execution.combination and item.combination == execution.combination
        }
        return [name for name in execution.after if name in of_combination]

    def failed(self) -> dict[str, str]:
        """Messages of the executions of a sweep that failed when they last ran."""
        names = [item.name for item in self.executions if item.combination]
        faults = {name: failure(self.work, self.name, name) for name in names}
        return {name: fault for name, fault in faults.items() if fault}

    def withdraw_failed(self) -> None:
        """Delete the record of each failed combination, so that it is tried again."""
        for name in self.failed():
            record_of(self.work, self.name, name).unlink(missing_ok=True)

    def withdraw_changed(self) -> None:
        """Delete the records of executions whose outputs were changed since.

        They run again. A record that cannot be read counts as changed.
        """
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
    return order.place(execution.notebook)


def from_records(study: CheckedStudy, *, only_varied: bool = False) -> CheckedStudy:
    """Plan a study from its published records where its images are not here.

    Args:
        study: any.
        only_varied: run the combinations of sweeps alone, and use the published results
            of all other executions; see ``asks_only_combinations``.

    Returns:
        The study without the executions that need images: their published results are
        used. The study itself if its images are here or it has no records.
    """
    chooses = [item for item in study.executions if item.notebook[:2] == "01"]
    path = chooses[0].parameters.get("data_path", "") if chooses else ""
    if not path or (study.root / Path(path).expanduser()).exists():
        return study  # it needs no images, or they are here
    not_run = [
        item
        for item in study.executions
        if item.notebook[:2] in _OF_IMAGES or (only_varied and not item.combination)
    ]
    names = {item.name for item in not_run}
    manifest = study.reports.parent / study.work_study / RECORDS / MANIFEST
    nothing_is_left = len(names) == len(study.executions)
    if not manifest.is_file() or nothing_is_left:
        return study
    executions = []
    for item in study.executions:
        if item.name not in names:
            after = tuple(name for name in item.after if name not in names)
            executions.append(replace(item, after=after))
    # With ``only_varied`` some of them may never have run.
    as_published = tuple(
        item
        for item in not_run
        if not item.part and (not only_varied or study.is_published(item))
    )
    return replace(study, executions=executions, as_published=as_published)


def asks_only_combinations(
    variations: Sequence[str], overrides: Sequence[str], study: CheckedStudy
) -> bool:
    """Whether a command asks only for combinations of values, of a published study.

    True if it varies parameters and sets no other one, and if no notebook of the study
    has run on this machine.
    """
    ran_here = any(
        record_of(study.work, study.name, item.name).is_file()
        for item in study.executions
        if not item.combination
    )
    return bool(variations) and not overrides and not ran_here


def record_of(work: Path, study: str, name: str) -> Path:
    """File that records what an execution made, or how it failed."""
    return inside(work / "done" / study, f"{name}.json")


def failure(work: Path, study: str, name: str) -> str:
    """Message of a failed execution of a sweep; "" if it did not fail."""
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
    """Read and check a study file.

    Args:
        path: of the file; a name without suffix is that of a study in ``params``.
        overrides: "name=value" for every notebook that declares the name, or
            "notebook.name=value" for one.
        root: folder of the project.
        variations: "notebook.name=value,value", each a sweep over a parameter.

    Raises:
        StudyError: with all faults of the file and of the options.
    """
    path = _path_of(path, root)
    content = read_blocks(path)
    claims = content.get("claims") or []
    schema, faults = _schema(content, root)
    values = {
        stem: {"study": path.stem} | content["common"] | content["notebooks"][stem]
        for stem in schema
    }
    option_faults = []
    for text in overrides:
        option_faults += _override(text, values, schema)
    sweep = {stem: dict(block or {}) for stem, block in content["sweep"].items()}
    option_faults += vary(variations, sweep, schema)
    try:
        check_claims(claims)
    except ValueError as fault:
        faults.append(f"claims: {fault}")
    wholes, value_faults = _whole_executions(path.stem, schema, values, claims, root)
    sweeps, sweep_faults = _sweeps(sweep, schema)
    all_values: dict[str, Any] = {}
    for whole in wholes.values():
        all_values |= whole.parameters  # of a later notebook, where they differ
    study = CheckedStudy(
        path.stem,
        root,
        content["work_study"],
        claims,
        all_values,
        _executions(wholes, sweeps, root),
        tuple(sweeps),
    )
    faults += [*value_faults, *sweep_faults]
    faults += [*relation_faults(study.values), *_faults_of_sweeps(study)]
    if "extends" in content:
        base = load_study(path.with_name(f"{content['extends']}.yaml"), root=root)
        faults += _changed_training_values(base, study)
    if faults or option_faults:
        raise StudyError(*(f"{path}: {fault}" for fault in faults), *option_faults)
    return study


def _schema(
    content: Mapping[str, Any], root: Path
) -> tuple[dict[str, dict[str, Parameter]], list[str]]:
    """Parameters of the notebooks that a study runs, and faults of names in its file.

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


def _whole_executions(
    study: str,
    schema: Mapping[str, Mapping[str, Parameter]],
    values: Mapping[str, Mapping[str, Any]],
    claims: Sequence[Any],
    root: Path,
) -> tuple[dict[str, Execution], list[str]]:
    """The execution of each notebook with the study's values, and faults of values."""
    modules = ProjectModules(root)
    wholes = {}
    faults = []
    for stem, names in schema.items():
        parameters, wrong = _valid_values(names, values[stem], study)
        faults += wrong
        wholes[stem] = Execution(
            stem,
            parameters,
            after=order.before(stem, list(schema)),
            depends=_depends(stem, parameters, claims, root, modules),
        )
    return wholes, faults


def _path_of(path: Path | str, root: Path) -> Path:
    """Path of a study file that may be named without folder and suffix."""
    if Path(path).suffix or len(Path(path).parts) > 1:
        return Path(path)
    return Path(os.path.relpath(root / "params" / f"{path}.yaml"))


def _available(root: Path) -> dict[str, dict[str, Parameter]]:
    """Parameters of each notebook, in the order in which notebooks run."""
    paths = sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    paths.sort(key=lambda path: order.place(path.stem))
    return {path.stem: declared(path) for path in paths}


def _faults_of_names(
    content: Mapping[str, Any],
    available: Mapping[str, Any],
    schema: Mapping[str, Mapping[str, Parameter]],
) -> list[str]:
    """Faults of names: those that nothing declares, and a study without a notebook."""
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
    if not isinstance(content.get("rule", {}), dict):
        faults.append(
            f"rule is {content['rule']!r:.100}, and must map names to values, as in "
            "params/drop48.yaml"
        )
    if schema:
        return faults
    return [
        f"the block notebooks names none to run, of {', '.join(available)}",
        *faults,
    ]


def _faults_of_run(
    content: Mapping[str, Any], listed: Mapping[str, Any]
) -> Iterator[str]:
    """Faults of ``run``: the notebooks of the extended study that this one executes."""
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
    """The sweep that the ``sweep`` block has for each notebook, and its faults."""
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
    """Shares of each notebook and the notebook, then the combinations of each sweep."""
    shards = {sweep.notebook: sweep.shard for sweep in sweeps}
    executions = []
    for stem, whole in wholes.items():
        executions += split_into_shares(whole, shards.get(stem, 0))
    for sweep in sweeps:
        for folder, values in sweep.combinations().items():
            chain = _chain(wholes, sweep, folder, values, root)
            for execution in chain:
                shares = sweep.shard if execution.notebook == sweep.notebook else 0
                executions += split_into_shares(execution, shares)
    return executions


def _chain(
    wholes: Mapping[str, Execution],
    sweep: Sweep,
    folder: str,
    values: Mapping[str, Any],
    root: Path,
) -> list[Execution]:
    """A combination's execution of the swept notebook and of those that read from it.

    Args:
        wholes: executions with the study's own values, by notebook.
        sweep: of one notebook.
        folder: of the combination.
        values: that the combination has in place of the study's.
        root: of the project.
    """
    chain: dict[str, Execution] = {}
    for stem in (sweep.notebook, *sweep.through):
        whole = wholes[stem]
        changed = {name: values[name] for name in values if name in whole.parameters}
        if whole.parameters.get("jobs") == 0:
            changed["jobs"] = 1  # combinations run side by side
        outside_chain = [name for name in whole.after if name not in chain]
        earlier_in_chain = [execution.name for execution in chain.values()]
        chain[stem] = replace(
            whole,
            parameters=whole.parameters | changed,
            combination=folder,
            after=(*outside_chain, *earlier_in_chain),
            depends=_dependencies_of_combination(whole, changed, folder, root),
        )
    return list(chain.values())


def _dependencies_of_combination(
    whole: Execution, changed: Mapping[str, Any], folder: str, root: Path
) -> tuple[str, ...]:
    """Dependencies of an execution with the lines of the changed values replaced."""
    before = {name: whole.parameters[name] for name in changed}
    replaced = set(_values_read(before, root))
    depends = [line for line in whole.depends if line not in replaced]
    depends += [*_values_read(changed, root), f"combination = {folder}"]
    return tuple(depends)


def _faults_of_sweeps(study: CheckedStudy) -> Iterator[str]:
    """Values of combinations that do not fit together, each fault once."""
    reported = set(relation_faults(study.values))
    for sweep in study.sweeps:
        for folder, values in sweep.combinations().items():
            for fault in relation_faults(study.values | values):
                if fault not in reported:
                    reported.add(fault)
                    yield f"sweep: {folder}: {fault}"


def _unknown(where: str, names: Iterable[str], allowed: Collection[str]) -> list[str]:
    """A sentence for each name that is not among those allowed."""
    is_short_list = len(allowed) < 10
    valid = f"; valid: {', '.join(sorted(allowed))}" if is_short_list else ""
    return [
        f"{where}: unknown name {name!r}{near_names(name, allowed)}{valid}"
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
        One sentence if it is wrong, else none.
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
    """The parameters of a notebook, and the faults of their values.

    A wrong value is replaced by the default, so that the rest can be checked.
    """
    parameters = {}
    faults = []
    for name, item in names.items():
        value = values.get(name, item.default)
        fault = value_fault(item, value)
        if fault:
            faults.append(fault)
            value = item.default
        # An integer becomes a float where the annotation says so.
        parameters[name] = check_type(item.annotation, value)
    stated = parameters.get("study", study)
    if stated != study:
        faults.append(f"study is {stated!r}, and must be {study!r}, as its file")
    return parameters, faults


def _changed_training_values(base: CheckedStudy, study: CheckedStudy) -> Iterator[str]:
    """A sentence for each value of 01 and 02 that differs from the extended study's."""
    base_values = {
        item.notebook: item.parameters
        for item in base.executions
        if item.notebook[:2] in ("01", "02")
    }
    for item in study.executions:
        for name, value in base_values.get(item.notebook, {}).items():
            if (
                name not in _WITHOUT_EFFECT_ON_TRAINING
                and item.parameters[name] != value
            ):
                yield (
                    f"{name} is {item.parameters[name]!r}, and {base.name}, whose "
                    f"images and runs it shares, has {value!r}"
                )


def split_into_shares(whole: Execution, count: int) -> list[Execution]:
    """Split a notebook's work into equal shares that run side by side.

    Args:
        whole: the execution of the notebook.
        count: number of shares; 0 does not split.

    Returns:
        The shares, and the whole, which runs after them and joins what they made.
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
    """Lines of all that a notebook depends on; it runs again when one of them changes.

    Parameters, files that they name, cells, modules that it imports, transitively, and
    the claims if it reads them.
    """
    cells = read_json(root / f"notebooks/{stem}.ipynb")["cells"]
    content = [[cell["source"], cell["metadata"].get("tags")] for cell in cells]
    lines = _values_read(parameters, root)
    lines.append(f"notebooks/{stem}.ipynb {json_digest(content)}")
    for path in modules.behind(code_of(cells)):
        lines.append(f"{path.relative_to(modules.root)} {file_digest(path)[:8]}")
    if int(stem[:2]) >= _FIRST_TO_READ_CLAIMS:
        lines.append(f"claims {json_digest(claims)}")
    return tuple(lines)


def further_faults(study: CheckedStudy) -> list[str]:
    """Faults that depend on this machine and on other modules.

    Files, reports, packages and measures that do not exist, and claims that no notebook
    can answer.
    """
    faults = []
    primary = set()
    for item in study.executions:
        faults += _absent_files(item.parameters, study.root)
        primary.add(tuple(item.parameters.get("primary_measures", [])))
        faults += _unpublished(study, item.parameters.get("other_studies", []))
        if not study.as_published:  # else masks are read from the records
            faults += _without_opencv(item.parameters.get("saliency_providers", []))
    faults += _unknown_measures(study.claims, sorted(primary))
    try:
        for names in sorted(primary):
            check_primary(names)
        check_claims(study.claims, primary=study.values.get("primary_measures"))
    except ValueError as fault:
        faults.append(str(fault))
    return list(dict.fromkeys(faults))


def _absent_files(parameters: Mapping[str, Any], root: Path) -> Iterator[str]:
    """Files and folders that parameters name and that do not exist."""
    for name, value in parameters.items():
        is_path = name.endswith("_path") and value
        if is_path and not (root / Path(value).expanduser()).exists():
            yield (
                f"{name} is {value!r}, and nothing is there; give its place by "
                f"--set {name}=..."
            )


def _unpublished(study: CheckedStudy, others: Sequence[str]) -> Iterator[str]:
    """Studies that ``other_studies`` names and that have no published scores."""
    folder = study.reports.parent
    published = [path.parent.parent.name for path in folder.glob(f"*/{SCORES}")]
    for name in others:
        if name not in (study.name, *published):
            yield (
                f"other_studies names {name!r}, of which {folder} has no "
                f"{SCORES}{near_names(name, published)}"
            )


def _without_opencv(providers: Sequence[str]) -> Iterator[str]:
    """A sentence where masks need OpenCV and it is not installed."""
    wanted = [name for name in providers if name in OF_OPENCV]
    if wanted and importlib.util.find_spec("cv2") is None:
        yield (
            f"saliency_providers {', '.join(wanted)} need OpenCV: pip install "
            "'generalization-workbook[saliency]', or choose spectral_residual"
        )


def _unknown_measures(
    claims: Sequence[Mapping[str, Any]], primary: Iterable[Sequence[str]]
) -> list[str]:
    """Measures that claims or ``primary_measures`` name and that do not exist."""
    named = [
        (f"claim {claim['claim']!r}", claim["measure"])
        for claim in claims
        # A claim on pairs of an experiment's arms names an outcome, and no measure.
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
