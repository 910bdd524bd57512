"""Study files: the executions of notebooks that each asks for."""

import copy
import io
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PositiveInt,
    ValidationError,
    conlist,
)
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from helpers.files import (
    MANIFEST,
    PROJECT_ROOT,
    RECORDS,
    STUDY_FILE,
    change_stamp,
    from_root,
    inside,
    json_digest,
    read_json,
)
from helpers.parameters import (
    WITHOUT_EFFECT_ON_RESULTS,
    StudyError,
    checked,
    contradictions,
    declared,
    name_of_values,
    near_names,
    sentences,
    without_duplicates,
)
from helpers.statistics.claims import check_claims

# Notebooks by number, each with those of which it reads results.
READS = {
    "01": "",
    "02": "01",
    "03": "01 02",
    "04": "01 02",
    "05": "01 02",
    "06": "01",
    "07": "01 02 04 08",
    "08": "01 02 04",
    "09": "01 02",
    "10": "01 02 04",
    "11": "01 02",
    "12": "",
}
TRAINING = ("01", "02")  # notebooks that decide what is trained
NEED_IMAGES = ("01", "02", "06")  # which records do not hold
NEED_SCORES = {"05": "closed", "11": "test_logits"}  # which some records hold
FIRST_TO_READ_CLAIMS = "04"
_Levels = Annotated[conlist(Any, min_length=1), AfterValidator(without_duplicates)]
_Block = Annotated[dict[str, Any], BeforeValidator(lambda value: value or {})]


class StudyFile(BaseModel):
    """What stands in ``params/<study>.yaml``."""

    model_config = ConfigDict(extra="forbid")
    question: str = ""
    subject: str = ""
    claims: list[dict[str, Any]] = []
    rule: dict[str, Any] = {}  # that predicts gaps, with its numbers
    extends: str = ""
    run: list[str] = []  # notebooks to execute; without it those that have a block
    common: _Block = {}  # parameters of every notebook that declares them
    notebooks: dict[str, _Block] = {}
    sweep: dict[str, dict[str, _Levels]] = {}  # values of a notebook's parameters
    shares: dict[str, PositiveInt] = {}  # of a notebook's work
    _base: "StudyFile | None" = None  # has the values that this one lacks

    @classmethod
    def read(cls, name: str, root: Path = PROJECT_ROOT) -> "StudyFile":
        """Read a study's file, over that of the study that it extends.

        Args:
            name: of a study in ``params``, or the path of a file.
            root: folder of the project.

        Raises:
            StudyError: if it is missing, damaged or of another form.
        """
        path = path_of(name, root)
        study = cls._parsed(path)
        stems = {*study.notebooks}
        if study.extends:
            base = study._base = cls._parsed(path.with_name(f"{study.extends}.yaml"))
            named = [stem for stem in {*study.run, *stems} if stem[:2] in TRAINING]
            if base.extends or study.claims or named:
                raise StudyError(
                    f"{path}: it extends {study.extends}, whose images, runs and "
                    "claims it has, and which must extend no other; leave out claims, "
                    f"{' and '.join(TRAINING)}"
                )
            study.claims = base.claims
            stems |= {stem for stem in base.notebooks if stem[:2] not in TRAINING}
        study.run = sorted(study.run or stems)
        return study

    @classmethod
    def _parsed(cls, path: Path) -> "StudyFile":
        """What stands in one file."""
        if not path.is_file():
            studies = sorted(other.stem for other in path.parent.glob("*.yaml"))
            raise StudyError(
                f"{path} does not exist{near_names(path.stem, studies)}; the studies "
                f"there are {', '.join(studies) or 'none'}"
            )
        try:
            return cls.made(str(path), **(YAML(typ="safe", pure=True).load(path) or {}))
        except StudyError:
            raise
        except (YAMLError, TypeError, ValueError, RecursionError) as fault:
            words = " ".join(str(fault).split())[:500]
            raise StudyError(f"{path} is not a study: {words}") from None

    @classmethod
    def made(cls, place: str, **content: Any) -> "StudyFile":
        """A study of some fields.

        Args:
            place: that has them, such as a file.
            content: the fields.

        Raises:
            StudyError: if a field is of another form.
        """
        try:
            return cls(**content)
        except ValidationError as faults:
            meanings = dict.fromkeys(cls.model_fields, "see docs/studies.md")
            raise StudyError(*sentences(faults, place, meanings)) from None

    def with_changes(
        self, overrides: Iterable[str], variations: Iterable[str]
    ) -> "StudyFile":
        """This study with values of a command line over its own; see ``load``.

        Args:
            overrides: "name=value", or "notebook.name=value".
            variations: "notebook.name=value,value".

        Raises:
            StudyError: if a parameter is varied over nothing.
        """
        content = {"notebooks": {}, "sweep": copy.deepcopy(self.sweep)}
        texts = [*(("notebooks", text) for text in overrides)]
        texts += [("sweep", text) for text in variations]
        for block, text in texts:
            target, _, value = text.partition("=")
            stem, _, name = target.strip().rpartition(".")
            if block == "sweep" and not stem:
                raise StudyError(
                    f"vary: {text!r} names no notebook; write, for instance, "
                    f"03_cam_scoring.{name}={value}"
                )
            if block == "sweep" and not value.startswith("["):
                value = f"[{value}]"
            content[block].setdefault(stem, {})[name] = _plain(value)
        common = content["notebooks"].pop("", {})
        study = self.made("vary", common=common, **content)
        study._base = self
        return study

    @property
    def of_all_notebooks(self) -> dict[str, Any]:
        """The block ``common``, with that of the study that it extends."""
        return (self._base.of_all_notebooks if self._base else {}) | self.common

    def values_of(self, notebook: Path) -> dict[str, Any]:
        """What the study says of a notebook's parameters, common ones included."""
        values = self._base.values_of(notebook) if self._base else {}
        for name in declared(notebook).keys() & self.common.keys():
            values[name] = self.common[name]
        return values | self.notebooks.get(notebook.stem, {})


def _plain(text: str) -> Any:
    """A value as YAML has it; the text itself where it is none."""
    try:
        return YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError):
        return text


@dataclass(frozen=True)
class Execution:
    """One notebook with all its parameters, or a share of its work."""

    notebook: str
    parameters: dict[str, Any]
    after: tuple[str, ...] = ()  # names of executions
    share: str = ""  # such as "2/4"
    # Folder below "sweeps", such as "03_cam_scoring/cam_threshold=0.2"; "" outside one.
    combination: str = ""

    @property
    def name(self) -> str:
        """Name of the rule, and of its mark."""
        share = self.share.replace("/", "_of_")
        first = self.combination.replace("/", "@") or self.notebook
        return "@".join(filter(None, (first, share)))

    @property
    def place(self) -> str:
        """Folder of its results below that of the study's report."""
        if self.combination:
            return f"sweeps/{self.combination}/{self.notebook}"
        return self.notebook


@dataclass(frozen=True)
class Study:
    """A study whose file has no fault."""

    name: str
    work: Path  # of the study, or of the one that it extends
    reports: Path
    claims: list[dict[str, Any]]
    executions: list[Execution]

    def values(self) -> dict[str, Any]:
        """Parameters of all notebooks; a later one's value where they differ."""
        values: dict[str, Any] = {}
        for execution in self.executions:
            if not execution.combination and not execution.share:
                values |= execution.parameters
        return values


def path_of(name: str, root: Path = PROJECT_ROOT) -> Path:
    """Path of the file of a study, which may be named by its path.

    The Snakefile says in the environment from which file a study is executed, so that
    its notebooks know it by its name.
    """
    if name.endswith(".yaml"):
        return Path(name).absolute()
    executed = Path(os.environ.get(STUDY_FILE, ""))
    if executed.stem == name:
        return executed
    return inside(root / "params", f"{name}.yaml")


def work_study(name: str) -> str:
    """The study whose folder of work a study uses: itself, or the one it extends.

    A study without a file, such as one that is opened by its records alone, has its
    own.
    """
    if not path_of(name).is_file():
        return name
    return StudyFile.read(name).extends or name


def load(
    name: str,
    overrides: Sequence[str] = (),
    variations: Sequence[str] = (),
    root: Path = PROJECT_ROOT,
) -> Study:
    """Read and check a study.

    Args:
        name: of its file in ``params``, or the path of a file.
        overrides: "name=value", or "notebook.name=value" for one notebook alone.
        variations: "notebook.name=value,value", each a sweep over a parameter.
        root: folder of the project.

    Raises:
        StudyError: with all faults.
    """
    file = StudyFile.read(name, root)
    changed = file.with_changes(overrides, variations)
    name = path_of(name, root).stem
    known = {path.stem: path for path in (root / "notebooks").glob("[0-9]*.ipynb")}
    paths = {stem: known[stem] for stem in file.run if stem in known}
    faults = [
        *_unknown_names(file, paths, known),
        *_unknown_names(changed, paths, known),
    ]
    try:
        check_claims(file.claims)
    except ValueError as fault:
        faults.append(f"claims: {fault}")
    executions: list[Execution] = []
    for stem, path in paths.items():
        before = tuple(other for other in paths if other[:2] in READS[stem[:2]])
        try:
            parameters = checked(path, changed.values_of(path) | {"study": name})
            whole = Execution(stem, parameters, before)
            for item in _combinations(whole, path, changed.sweep.get(stem, {})):
                executions += in_shares(item, path, file.shares.get(stem, 0))
        except StudyError as wrong:
            faults += wrong.faults
    if not (faults or executions):
        faults = ["the block notebooks names no notebook to run"]
    if faults:
        raise StudyError(*faults)
    work, reports = (
        root / Path(executions[0].parameters[f"{place}_dir"]).expanduser()
        for place in ("work", "reports")
    )
    work = inside(work, file.extends or name)
    study = Study(name, work, inside(reports, name), file.claims, executions)
    everything = study.values()
    for item in executions:
        faults += contradictions(everything | item.parameters)
    if faults:
        raise StudyError(*faults)
    return study


def _unknown_names(
    file: StudyFile, paths: Mapping[str, Path], known: Iterable[str]
) -> Iterator[str]:
    """Faults of notebooks, and of common parameters, that there are not."""
    for stem in sorted({*file.run, *file.notebooks, *file.sweep, *file.shares}):
        if stem not in paths:
            near = near_names(stem, {*known} - {stem})
            yield f"this study runs no notebook {stem!r}{near}"
    names = {name for path in paths.values() for name in declared(path)}
    for name in file.common.keys() - names:
        yield f"no notebook has a parameter {name!r}{near_names(name, names)}"


def _combinations(
    whole: Execution, path: Path, block: Mapping[str, list]
) -> Iterator[Execution]:
    """A notebook, and the combinations of its sweep.

    Args:
        whole: with the study's own values.
        path: of the notebook.
        block: values of each swept parameter.
    """
    yield whole
    is_trained = whole.notebook[:2] in TRAINING
    swept = [] if is_trained else declared(path).keys() - {*WITHOUT_EFFECT_ON_RESULTS}
    wrong = sorted(block.keys() - swept)
    if wrong:
        raise StudyError(
            f"sweep: {whole.notebook}: {wrong[0]} cannot be swept"
            f"{near_names(wrong[0], swept)}; levels of what is trained are listed in 02"
        )
    names = [name for name in declared(path) if name in block]
    for row in itertools.product(*(block[name] for name in names)) if names else ():
        parameters = checked(
            path, whole.parameters | dict(zip(names, row, strict=True))
        )
        values = name_of_values({name: parameters[name] for name in names})
        if parameters.get("jobs") == 0:
            parameters["jobs"] = 1  # combinations run side by side
        combination = f"{whole.notebook}/{values}"
        yield replace(whole, parameters=parameters, combination=combination)


def in_shares(whole: Execution, path: Path, count: int) -> list[Execution]:
    """Equal shares of a notebook's work, and the whole, which joins what they made.

    Args:
        whole: the execution of the notebook.
        path: of the notebook.
        count: number of shares; 0 does not split.
    """
    shares = []
    for number in range(1, count + 1):
        share = f"{number}/{count}"
        parameters = checked(path, whole.parameters | {"shard": share})
        shares.append(replace(whole, parameters=parameters, share=share))
    after = (*whole.after, *(share.name for share in shares))
    return [*shares, replace(whole, after=after)]


def from_records(study: Study, only_combinations: bool = False) -> Study:
    """The part of a study that its records allow where its images are not here.

    Args:
        study: any.
        only_combinations: whether combinations of a sweep alone are asked for.

    Returns:
        The study itself where its images are here, or it has no records.
    """
    path = study.values().get("data_path", "")
    records = study.reports.with_name(study.work.name) / RECORDS
    if not path or from_root(path).exists() or not (records / MANIFEST).is_file():
        return study
    parts = {path.name.partition("-")[0] for path in records.glob("settings/*.json")}
    lacking = [number for number in NEED_SCORES if NEED_SCORES[number] not in parts]
    kept = {
        item.name: item
        for item in study.executions
        if item.notebook[:2] not in (*NEED_IMAGES, *lacking)
        and (item.combination or not only_combinations)
    }
    executions = [
        replace(item, after=tuple(name for name in item.after if name in kept))
        for item in kept.values()
    ]
    return replace(study, executions=executions)


def modules_behind(notebook: Path, root: Path = PROJECT_ROOT) -> list[str]:
    """Files of the project that decide what a notebook computes.

    Args:
        notebook: its path.
        root: folder of the project.

    Returns:
        Modules that it imports, directly or through others, and tables in folders that
        are named like such a module, relative to ``root``.
    """
    finder = ModuleFinder([str(root)])
    cells = io.StringIO("\n".join(code_of(notebook)))
    finder.load_module("__main__", cells, "", ("", "r", 1))  # 1: Python
    files = [module.__file__ for module in finder.modules.values()]
    modules = [Path(name) for name in files if name]
    tables = [table for path in modules for table in path.with_suffix("").glob("*.csv")]
    return sorted(str(path.relative_to(root)) for path in (*modules, *tables))


def code_of(notebook: Path) -> list[str]:
    """Sources of a notebook's code cells, without lines that are no Python."""
    cells = read_json(notebook)["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return [re.sub(r"^[%!].*$", "", source, flags=re.M) for source in sources]


def depends(study: Study, execution: Execution, root: Path = PROJECT_ROOT) -> str:
    """What an execution depends on beside values and modules, as a digest.

    Its cells, files and folders that parameters name, and claims where it reads them.
    """
    cells = code_of(root / f"notebooks/{execution.notebook}.ipynb")
    stamps = {
        name: change_stamp(from_root(value))
        for name, value in execution.parameters.items()
        if name.endswith("_path") and value
    }
    reads_claims = execution.notebook[:2] >= FIRST_TO_READ_CLAIMS
    return json_digest([cells, stamps, study.claims if reads_claims else []])


def as_claimed(
    notebook: str, values: Mapping[str, Any], root: Path = PROJECT_ROOT
) -> bool:
    """Whether values are those of the study whose claims are judged.

    Claims state what holds at the values of their study. A study that extends it, a
    combination of a sweep or a user may have others.

    Args:
        notebook: its name without suffix.
        values: of its parameters.
        root: folder of the project.
    """
    path = root / f"notebooks/{notebook}.ipynb"
    study = StudyFile.read(values["study"], root).extends or values["study"]
    of_study = checked(path, _committed(path, root) | _of_file(study, path, root))
    names = values.keys() - {*WITHOUT_EFFECT_ON_RESULTS, "shard"}
    return all(values[name] == of_study[name] for name in names)


def _committed(path: Path, root: Path) -> dict[str, Any]:
    """Values of a committed first cell, which are the demo's."""
    defaults = {name: item.default for name, item in declared(path).items()}
    return defaults | _of_file("demo", path, root)


def _of_file(study: str, path: Path, root: Path) -> dict[str, Any]:
    return StudyFile.read(study, root).values_of(path)


def in_force(
    notebook: str, namespace: Mapping[str, Any], root: Path = PROJECT_ROOT
) -> dict[str, Any]:
    """Values of a notebook's parameters, whoever runs it.

    What papermill injects comes first, then what a user changed in the first cell, then
    the study's file. A value counts as changed where it is not the demo's, which
    committed first cells have.

    Args:
        notebook: its name without suffix.
        namespace: ``globals()`` of the notebook.
        root: folder of the project.

    Raises:
        StudyError: if a name or a value is wrong, or the study does not exist.
    """
    path = root / f"notebooks/{notebook}.ipynb"
    study = {"study": namespace["study"]}
    checked(path, study)  # it becomes the name of a file
    committed = _committed(path, root)
    executed = namespace.get("In", [])
    of_papermill = [source for source in executed if source.startswith("# Parameters")]
    injected = {*re.findall(r"^(\w+) = ", "\n".join(of_papermill), re.M)}
    changed = {
        name: namespace[name]
        for name in {*committed, *injected}
        # Compared as texts, so that 1, 1.0 and True differ.
        if name in injected or repr(namespace[name]) != repr(committed[name])
    }
    of_file = _of_file(namespace["study"], path, root)
    values = checked(path, committed | of_file | changed | study)
    faults = list(contradictions(values))
    if faults:
        raise StudyError(*faults)
    return values
