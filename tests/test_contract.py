"""What every notebook, helper and study file keeps to, found by pattern."""

import ast
import importlib
import json
import re
import subprocess
import sys
from collections import Counter

import nbformat
import pytest

from helpers.files import PROJECT_ROOT
from helpers.measures import registry
from helpers.parameters import AXIS_PARAMETERS, declared
from helpers.statistics.claims import PAIRED, check_claims
from helpers.studies import StudyFile, load
from tests.conftest import committed, tracked

DEFINITIONS = ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef
NOTEBOOKS = sorted((PROJECT_ROOT / "notebooks").glob("*.ipynb"))
HELPERS = sorted((PROJECT_ROOT / "helpers").rglob("*.py"))
STUDIES = tracked("params/*.yaml")
REPORTS = tracked("reports/*/*/*.ipynb")
READ = {path: nbformat.read(path, as_version=4).cells for path in NOTEBOOKS}
CELLS = {
    path: [cell for cell in READ[path] if cell.cell_type == "code"] for path in READ
}
SOURCES = {path: "\n".join(cell.source for cell in CELLS[path]) for path in CELLS}
MODULES = [path.relative_to(PROJECT_ROOT).with_suffix("").parts for path in HELPERS]
TREES = {
    ".".join(parts): ast.parse(path.read_text())
    for parts, path in zip(MODULES, HELPERS, strict=True)
}
# Parameters that ``Study.of`` reads, and those that 02 reads by their axes.
BY_STUDY = {"minimum_train_accuracy", "device", "jobs", *AXIS_PARAMETERS.values()}


def nodes(tree, kind):
    return [node for node in ast.walk(tree) if isinstance(node, kind)]


def imports(tree):
    """Names that are imported, by the names that they have here."""
    return {
        item.asname or item.name: f"{getattr(node, 'module', '') or ''}.{item.name}"
        for node in nodes(tree, ast.Import | ast.ImportFrom)
        for item in node.names
    }


def test_notebooks_are_committed_without_outputs():
    for path in NOTEBOOKS:
        for cell in json.loads(committed(path))["cells"]:
            assert not cell.get("outputs"), f"{path}: outputs belong in reports/"
            assert cell.get("execution_count") is None, path


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_defines_nothing_and_finds_what_it_asks_of_helpers(path):
    """A name that a module does not have would be seen only when its cell runs."""
    tree = ast.parse(SOURCES[path])
    assert nodes(tree, DEFINITIONS) == []
    modules = imports(tree)
    for node in nodes(tree, ast.Attribute):
        module = modules.get(getattr(node.value, "id", ""), "")
        if module in TREES:
            has_it = hasattr(importlib.import_module(module), node.attr)
            assert has_it, ast.unparse(node)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_reads_the_parameters_that_it_declares_as_they_are_in_force(path):
    """Opened by hand, the study's file may have other values than the first cell."""
    names = {*declared(path)}
    attributes = nodes(ast.parse(SOURCES[path]), ast.Attribute)
    read = {node.attr for node in attributes if ast.unparse(node.value) == "parameters"}
    assert read <= names
    assert names - {"study", "work_dir", "reports_dir"} <= read | BY_STUDY
    assigned = set()
    for cell in CELLS[path]:
        if "parameters" in cell.metadata.get("tags", []):
            continue
        for statement in ast.parse(cell.source).body:
            of_statement = nodes(statement, ast.Name)
            stored = {one.id for one in of_statement if isinstance(one.ctx, ast.Store)}
            loaded = {one.id for one in of_statement if isinstance(one.ctx, ast.Load)}
            assert not loaded & names - assigned - stored, ast.unparse(statement)
            assigned |= stored


REFUSED = {
    *("pickle.load", "pickle.loads", "pandas.read_pickle", "pd.read_pickle"),
    *("yaml.unsafe_load", "yaml.full_load"),
}
SAFE = {"torch.load": "weights_only=True", "np.load": "allow_pickle=False"}
# Functions are handed to other processes by value; files are not read so.
JOBLIB = {"joblib.Parallel", "joblib.delayed", "joblib.parallel_config"}


@pytest.mark.parametrize("name", TREES)
def test_nothing_is_unpickled_or_parsed_unsafely(name):
    names = {*imports(TREES[name]).values()}
    picklers = ("dill", "joblib", "cloudpickle", ".dill", ".joblib", ".cloudpickle")
    assert {one for one in names if one.startswith(picklers)} <= JOBLIB
    assert not [one for one in names if one.startswith("xml.etree.ElementTree.")]
    for call in nodes(TREES[name], ast.Call):
        called = ast.unparse(call.func)
        assert called not in REFUSED
        assert SAFE.get(called, "") in ast.unparse(call)


# Called by no line of the project: with what calls it.
CALLED_FROM_OUTSIDE = {
    "score_network": "the lines of Python in README",
    "depends": "the Snakefile",
    "from_records": "the Snakefile",
    "forward": "torch",
    "main": "the command line",
}
# What a decorator enters in a list (measures and what they need) is called there.
ENTERED = ("measure(", "provides")


def mentioned(tree):
    """How often each name is read or imported, be it plain or behind a dot."""
    names = Counter(item for item in imports(tree))
    for node in nodes(tree, ast.Name | ast.Attribute):
        if not isinstance(node.ctx, ast.Store):
            names[node.id if isinstance(node, ast.Name) else node.attr] += 1
    return names


def test_nothing_is_called_by_tests_alone():
    trees = [ast.parse(source) for source in SOURCES.values()]
    benchmarks = (PROJECT_ROOT / "benchmarks").glob("*.py")
    trees += [ast.parse(path.read_text()) for path in benchmarks]
    calls = sum(map(mentioned, [*trees, *TREES.values()]), Counter())
    uncalled = {
        node.name
        for tree in TREES.values()
        for node in nodes(tree, ast.FunctionDef | ast.ClassDef)
        if not node.name.startswith(("__", "_render", "_ipython", "_repr"))
        and not any(ast.unparse(one).startswith(ENTERED) for one in node.decorator_list)
        and calls[node.name] == mentioned(node)[node.name]
    }
    assert uncalled <= set(CALLED_FROM_OUTSIDE)


def test_where_networks_look_is_drawn_without_the_imports_that_take_seconds():
    """torchvision alone would be a quarter of the time to notebook 03's first figure."""
    cells = CELLS[PROJECT_ROOT / "notebooks/03_cam_scoring.ipynb"]
    head = next(cell.source for cell in cells if "from helpers" in cell.source)
    slow = "{'torchvision', 'torch._dynamo', 'captum'}"
    script = f"{head}\nimport sys; print(sorted({slow} & {{*sys.modules}}))"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_study_file_passes_its_check(path):
    executions = load(path.stem).executions
    assert executions
    assert {item.parameters["study"] for item in executions} == {path.stem}
    of_models = {
        claim["measure"].split(" (")[0]  # without a variant, as (rotation)
        for claim in check_claims(StudyFile.read(path.stem).claims)
        if claim["question"] != PAIRED  # asked of arms, in notebook 09
    }
    assert of_models <= {*registry.ranked()}
    # Else r of IoU would have one interval in 03, another in 04 and a third in 05.
    draws = {
        (item.parameters["bootstrap_resamples"], item.parameters["analysis_seed"])
        for item in executions
        if item.notebook[:2] in ("03", "04", "05")
    }
    assert len(draws) <= 1


def test_the_project_holds_no_path_of_a_machine():
    readme = PROJECT_ROOT / "README.md"
    for path in [*NOTEBOOKS, *HELPERS, *STUDIES, *REPORTS, readme]:
        place = re.search(r"(/home/\w+|/root/|/work/main|/tmp/\w)", path.read_text())
        assert not place, path


def test_published_notebooks_ended_without_an_error_or_a_warning():
    for report in REPORTS:
        text = report.read_text()
        assert json.loads(text)["metadata"]["papermill"]["exception"] is None, report
        assert "Warning: " not in text, report
