"""Study files: the executions of notebooks that each asks for."""

import ast
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
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
)
from helpers.statistics.claims import check_claims

# Notebooks by number, in the order in which they run, each with the notebook whose
# results it reads.
READS = {
    "01": "",
    "02": "01",
    "03": "02",
    "04": "02",
    "08": "04",
    "05": "02",
    "06": "01",
    "07": "08",
    "09": "02",
    "10": "04",
    "11": "02",
    "12": "",
}
TRAINING = ("01", "02")  # notebooks that decide what is trained
NEED_IMAGES = ("01", "02", "06")  # which records do not hold
NEED_SCORES = {"05": "closed", "11": "test_logits"}  # which some records hold
FIRST_TO_READ_CLAIMS = "04"
_Block = Annotated[dict[str, Any], BeforeValidator(lambda value: value or {})]


class StudyFile(BaseModel):
    """What stands in ``params/<study>.yaml``."""

    model_config = ConfigDict(extra="forbid")
    question: str = ""
    subject: str = ""
    claims: list[dict[str, Any]] = []
    rule: dict[str, Any] = {}  # that predicts gaps, with its numbers
    extends: str = ""
    run: list[str] = []  # of the extended study, the notebooks to execute
    common: _Block = {}  # parameters of every notebook that declares them
    notebooks: Annotated[dict[str, _Block], BeforeValidator(lambda value: value or {})]
    sweep: dict[str, _Block] = {}

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
        if not study.extends:
            return study
        base = cls._parsed(path.with_name(f"{study.extends}.yaml"))
        if base.extends or study.claims:
            raise StudyError(
                f"{path}: it extends {study.extends}, whose claims it has, and which "
                "must extend no other"
            )
        stems = (*study.run, *study.notebooks)
        training = [stem for stem in stems if stem[:2] in TRAINING]
        if training:
            raise StudyError(
                f"{path}: it extends {study.extends}, whose images and runs it has; "
                f"leave out {', '.join(training)}"
            )
        return base.with_changes(study)

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
            content = YAML(typ="safe", pure=True).load(path)
            return cls(**({"notebooks": {}} | content))
        except ValidationError as faults:
            meanings = dict.fromkeys(cls.model_fields, "see docs/studies.md")
            raise StudyError(*sentences(faults, str(path), meanings)) from None
        except (YAMLError, TypeError, ValueError, RecursionError) as fault:
            words = " ".join(str(fault).split())[:500]
            raise StudyError(f"{path} is not a study: {words}") from None

    def with_changes(self, other: "StudyFile") -> "StudyFile":
        """This study with the values of one that extends it."""
        notebooks = {
            stem: {name: block[name] for name in block if name not in other.common}
            for stem, block in self.notebooks.items()
        }
        for stem, block in other.notebooks.items():
            notebooks[stem] = notebooks.get(stem, {}) | block
        merged = {
            "claims": self.claims,
            "common": self.common | other.common,
            "notebooks": notebooks,
            "sweep": self.sweep | other.sweep,
        }
        return other.model_copy(update=merged)

    def values_of(self, notebook: Path) -> dict[str, Any]:
        """What the file says of a notebook's parameters, common ones included."""
        names = declared(notebook)
        common = {name: self.common[name] for name in self.common if name in names}
        return common | self.notebooks.get(notebook.stem, {})


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
        parts = [self.notebook, self.combination.replace("/", "@")]
        parts.append(self.share.replace("/", "_of_"))
        return "@".join(filter(None, parts))

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
    name = path_of(name, root).stem
    paths = _notebooks_of(file, root)
    values = {stem: file.values_of(path) for stem, path in paths.items()}
    sweep = {stem: dict(block) for stem, block in file.sweep.items()}
    lists = [re.sub(r"=(?!\[)(.*)", r"=[\1]", text, flags=re.S) for text in variations]
    faults = [*_unknown_names(file, root)]
    faults += [*_put(overrides, paths, values), *_put(lists, paths, sweep)]
    try:
        check_claims(file.claims)
    except ValueError as fault:
        faults.append(f"claims: {fault}")
    executions = []
    for stem, path in paths.items():
        try:
            parameters = checked(path, values[stem] | {"study": name})
            whole = Execution(stem, parameters, _before(stem, paths))
            executions += _with_sweep(whole, path, sweep.get(stem, {}))
        except StudyError as wrong:
            faults += wrong.faults
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
        changed = item.parameters if item.combination else {}
        faults += contradictions(everything | changed)
    if faults:
        raise StudyError(*faults)
    return study


def _notebooks_of(file: StudyFile, root: Path) -> dict[str, Path]:
    """Paths of the notebooks that a study executes, by their names."""
    paths = {path.stem: path for path in (root / "notebooks").glob("[0-9]*.ipynb")}
    for stem in (*file.notebooks, *file.run, *file.sweep):
        if stem not in paths:
            near = near_names(stem, paths)
            raise StudyError(f"there is no notebook {stem!r}{near}")
    stems = file.run or file.notebooks
    if file.extends:
        stems = [stem for stem in stems if stem[:2] not in TRAINING]
    if not stems:
        raise StudyError("the block notebooks names no notebook to run")
    return {stem: paths[stem] for stem in sorted(stems)}


def _unknown_names(file: StudyFile, root: Path) -> Iterator[str]:
    """Faults of common parameters that no notebook declares."""
    paths = [root / f"notebooks/{stem}.ipynb" for stem in file.notebooks]
    names = set().union(*map(declared, paths))
    for name in file.common.keys() - names:
        yield f"common: no notebook has a parameter {name!r}{near_names(name, names)}"


def _put(
    texts: Iterable[str], paths: Mapping[str, Path], values: dict[str, dict[str, Any]]
) -> Iterator[str]:
    """Put "name=value" or "notebook.name=value" into values; yield faults."""
    for text in texts:
        target, _, value = text.partition("=")
        stem, _, name = target.strip().rpartition(".")
        chosen = [key for key in paths if stem in ("", key)]
        names = {item for key in chosen for item in declared(paths[key])}
        if name not in names:
            near = near_names(name, names) or near_names(stem, paths)
            yield f"{text:.200}: unknown name{near}; write notebook.name=value"
        for key in chosen:
            if name in declared(paths[key]):
                values.setdefault(key, {})[name] = _plain(value)


def _plain(text: str) -> Any:
    """A value as YAML has it; the text itself where it is none."""
    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError:
        return text


def _before(stem: str, paths: Mapping[str, Path]) -> tuple[str, ...]:
    """The notebook of the study whose results this one reads."""
    by_number = {other[:2]: other for other in paths}
    number = READS.get(stem[:2], "")
    while number and number not in by_number:
        number = READS[number]
    return (by_number[number],) if number else ()


def _with_sweep(
    whole: Execution, path: Path, block: Mapping[str, Any]
) -> Iterator[Execution]:
    """A notebook, and the combinations of its sweep, each with its shares before it.

    Args:
        whole: with the study's own values.
        path: of the notebook.
        block: values of each swept parameter, and possibly the number of shares.
    """
    _check_swept(whole.notebook, path, block)
    shares = block.get("shard", 0)
    yield from in_shares(whole, shares)
    names = [name for name in declared(path) if name in block and name != "shard"]
    for row in itertools.product(*(block[name] for name in names)):
        if not names:
            return
        swept = dict(zip(names, row, strict=True))
        parameters = checked(path, whole.parameters | swept)
        values = name_of_values({name: parameters[name] for name in names})
        if parameters.get("jobs") == 0:
            parameters["jobs"] = 1  # combinations run side by side
        combination = f"{whole.notebook}/{values}"
        changed = replace(whole, parameters=parameters, combination=combination)
        yield from in_shares(changed, shares)


def _check_swept(stem: str, path: Path, block: Mapping[str, Any]) -> None:
    """Refuse a sweep over what is trained or changes no result, and what is no list."""
    names = declared(path).keys() - {*WITHOUT_EFFECT_ON_RESULTS}
    faults = []
    for name, values in block.items():
        is_list = isinstance(values, list) and values
        if name not in names:
            faults.append(f"{name} cannot be swept{near_names(name, names)}")
        elif name == "shard":
            if type(values) is not int:
                faults.append(f"shard is {values!r}, and must be a number of shares")
        elif stem[:2] in TRAINING:
            faults.append(f"{name} decides what is trained: list levels in the study")
        elif not is_list or len({*map(repr, values)}) < len(values):
            faults.append(f"{name} is {values!r:.100}, and must be a list of values")
    if faults:
        raise StudyError(*(f"sweep: {stem}: {fault}" for fault in faults))


def in_shares(whole: Execution, count: int) -> Iterator[Execution]:
    """Equal shares of a notebook's work, and the whole, which joins what they made.

    Args:
        whole: the execution of the notebook.
        count: number of shares; 0 does not split.
    """
    shares = [
        replace(whole, parameters=whole.parameters | {"shard": share}, share=share)
        for share in (f"{number}/{count}" for number in range(1, count + 1))
    ]
    yield from shares
    yield replace(whole, after=(*whole.after, *(share.name for share in shares)))


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
    left_out = list(NEED_IMAGES)
    for notebook, part in NEED_SCORES.items():
        if not any((records / "settings").glob(f"{part}-*.json")):
            left_out.append(notebook)
    kept = [
        item
        for item in study.executions
        if item.notebook[:2] not in left_out
        and (item.combination or not only_combinations)
    ]
    names = [item.name for item in kept]
    executions = [
        replace(item, after=tuple(name for name in item.after if name in names))
        for item in kept
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
    todo = set(_imported("\n".join(code_of(notebook)), root))
    modules: set[Path] = set()
    while todo:
        path = todo.pop()
        modules.add(path)
        todo |= _imported(path.read_text(encoding="utf-8"), root) - modules
    folders = [path.with_suffix("") for path in modules]
    tables = [table for folder in folders for table in folder.glob("*.csv")]
    return sorted(str(path.relative_to(root)) for path in (*modules, *tables))


@cache
def _imported(source: str, root: Path) -> frozenset[Path]:
    """Files of the project that a source imports, with the packages around them."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [item.name for item in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{item.name}" for item in node.names]
    files = set()
    for name in names:
        folder = root
        for part in name.split(".") if name.startswith("helpers.") else []:
            folder /= part
            files |= {folder.with_suffix(".py"), folder / "__init__.py"}
    return frozenset(path for path in files if path.is_file())


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
    names = declared(path)
    injected = _injected(namespace.get("In", []))
    if injected >= names.keys():  # a sweep, which has read the study's file
        return checked(path, {name: namespace[name] for name in injected})
    study = {"study": namespace["study"]}
    checked(path, study)  # it becomes the name of a file
    committed = {name: item.default for name, item in names.items()}
    committed |= StudyFile.read("demo", root).values_of(path)
    changed = {
        name: namespace[name]
        for name in {*names, *injected}
        # Compared as texts, so that 1, 1.0 and True differ.
        if name in injected or repr(namespace[name]) != repr(committed[name])
    }
    of_file = StudyFile.read(namespace["study"], root).values_of(path)
    values = checked(path, committed | of_file | changed | study)
    faults = list(contradictions(values))
    if faults:
        raise StudyError(*faults)
    return values


# A source that assigns ``study`` is the first cell, which declares the parameters.
_FIRST_CELL = re.compile(r"^study\s*(:\s*str\s*)?=\s*[\"']", re.M)


def _injected(cells: Sequence[str]) -> set[str]:
    """Names that papermill's cell assigned; none if the first cell ran again after it.

    Args:
        cells: sources of executed cells in order, as IPython keeps them.
    """
    for source in reversed(cells):
        if source.lstrip().startswith("# Parameters"):
            return {*re.findall(r"^(\w+) = ", source, re.M)}
        if _FIRST_CELL.search(source):
            return set()
    return set()
