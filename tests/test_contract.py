"""What every notebook, helper and study file keeps to; found by pattern, so that a new one is held to it the day it is added."""

import ast
import functools
import graphlib
import json
import re
import subprocess
import sys

import nbformat
import papermill
import pytest

from helpers.files import PROJECT_ROOT
from helpers.parameters import check_type, declared, load_study


def dotted(path):
    """The name below ``helpers``: "grid", "measures.norms", and "measures" for a package itself."""
    parts = path.relative_to(PROJECT_ROOT / "helpers").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


NOTEBOOKS = sorted((PROJECT_ROOT / "notebooks").glob("*.ipynb"))
HELPERS = sorted((PROJECT_ROOT / "helpers").rglob("*.py"))
STUDIES = sorted((PROJECT_ROOT / "params").glob("*.yaml"))
notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
modules = pytest.mark.parametrize("path", HELPERS, ids=lambda path: dotted(path))

# Who must not know whom, by the first words of a name below ``helpers``: figures and sentences take tables, measures take a network, and
# neither knows where a study lies on disk.
STUDY_ON_DISK = ("model_set", "scoring", "pool", "reports", "sweep", "ablations", "random_networks")
MUST_NOT_KNOW = {
    "measures": (*STUDY_ON_DISK, "readings", "plots", "grid"),
    "plots": STUDY_ON_DISK,
    "measure_plots": STUDY_ON_DISK,
    "metric_plots": STUDY_ON_DISK,
    "ablation_plots": STUDY_ON_DISK,
    "kappa_plots": STUDY_ON_DISK,
    "readings": STUDY_ON_DISK,
    "agreement": ("statistics", *STUDY_ON_DISK),
    "statistics": STUDY_ON_DISK,
}
# The launcher knows notebooks and parameters, and not one word of machine learning.
WITHOUT_TORCH = {"sweep", "parameters", "pages", "files"}


def code(path):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (item.name for item in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{item.name}" for item in node.names)


def test_notebooks_helpers_and_studies_are_found():
    assert [path.stem for path in NOTEBOOKS] == sorted(path.stem for path in NOTEBOOKS if re.match(r"\d\d_[a-z_]+$", path.stem))
    assert len(NOTEBOOKS) >= 3
    assert len(HELPERS) >= 10
    assert {"demo", "tiny20", "tiny20_cpu", "imagenet20"} <= {path.stem for path in STUDIES}


@notebooks
def test_a_notebook_opens_with_its_question_and_carries_no_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    first = notebook.cells[0]
    assert first.cell_type == "markdown"
    assert first.source.startswith(f"# {path.stem[:2]} ")
    for word in ("**Question.**", "**Inputs.**", "**Outputs.**", "**Runtime.**"):
        assert word in first.source
    assert notebook.metadata.kernelspec.name == "python3"
    for cell in code(path):
        assert not cell.outputs, "outputs belong in reports/"
        assert cell.execution_count is None


@notebooks
def test_a_notebook_tells_a_story_and_holds_no_logic(path):
    for cell in code(path):
        assert len(cell.source.splitlines()) <= 15 or "parameters" in cell.metadata.get("tags", []), cell.source
        for node in ast.walk(ast.parse(cell.source)):
            assert not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef | ast.Lambda), "logic belongs in helpers/"
        assert not re.search(r"""["'](/|[A-Za-z]:\\)[\w]""", cell.source), "no absolute paths"


@notebooks
def test_the_parameters_are_typed_literals_of_one_line_with_a_comment(path):
    (cell,) = [cell for cell in code(path) if "parameters" in cell.metadata.get("tags", [])]
    assert len(cell.source.splitlines()) == len(ast.parse(cell.source).body)
    for name, parameter in declared(path).items():
        assert name == name.lower()
        assert len(parameter.comment) > 5, name
        assert check_type(parameter.annotation, parameter.default) == parameter.default


@notebooks
def test_papermill_reads_the_same_parameters(path):
    theirs = papermill.inspect_notebook(str(path))
    ours = declared(path)
    assert list(theirs) == list(ours)
    for name, parameter in ours.items():
        assert ast.literal_eval(theirs[name]["default"]) == parameter.default
        assert theirs[name]["help"] == parameter.comment


@notebooks
def test_a_notebook_uses_every_parameter_it_declares(path):
    loaded = {
        node.id
        for cell in code(path)
        for node in ast.walk(ast.parse(cell.source))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    assert set(declared(path)) <= loaded


@modules
def test_a_module_is_documented_and_read_in_one_sitting(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    assert path.read_text().count("\n") <= 250
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), node.name


@modules
def test_nothing_is_unpickled_or_parsed_unsafely(path):
    text = path.read_text()
    tree = ast.parse(text)
    assert not {"dill", "joblib", "cloudpickle", "xml.etree.ElementTree.parse", "xml.etree.ElementTree.fromstring"} & set(imports(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called = ast.unparse(node.func)
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            assert called not in {
                "pickle.load",
                "pickle.loads",
                "pandas.read_pickle",
                "pd.read_pickle",
                "yaml.unsafe_load",
                "yaml.full_load",
            }
            if called == "torch.load":
                assert given.get("weights_only") == "True"
            if called == "np.load":
                assert given.get("allow_pickle") == "False"


@functools.cache
def neighbours():
    """Every module and those of the project that it imports, also inside of its functions."""
    names = {dotted(path): path for path in HELPERS}
    found = {}
    for own, path in names.items():
        imported = [name for name in set(imports(ast.parse(path.read_text()))) if name.startswith("helpers.")]
        assert not any(name.endswith(".*") for name in imported), own
        known = ([other for other in names if f"{name}.".startswith(f"helpers.{other}.")] for name in imported)
        found[own] = {max(others, key=len) for others in known if others} - {own}
    return found


def test_imports_run_one_way():
    ordered = list(graphlib.TopologicalSorter(neighbours()).static_order())  # raises on a cycle, and names it
    assert len(ordered) == len(HELPERS)


@modules
def test_a_module_does_not_know_what_it_must_not(path):
    own = dotted(path)
    forbidden = MUST_NOT_KNOW.get(own.split(".")[0], ())
    assert not {other for other in neighbours()[own] if other.split(".")[0] in forbidden}
    if own in WITHOUT_TORCH:
        assert not {"torch", "torchvision", "captum"} & {name.split(".")[0] for name in imports(ast.parse(path.read_text()))}


def test_where_networks_look_is_drawn_without_the_imports_that_take_seconds():
    """A reader of notebook 03 waits for its imports; torchvision alone would be a quarter of the time to the first figure."""
    notebook = nbformat.read(PROJECT_ROOT / "notebooks" / "03_cam_scoring.ipynb", as_version=4)
    cell = next(cell for cell in notebook.cells if cell.source.startswith("import time"))
    look = "import sys; print(sorted({'torchvision', 'torch._dynamo', 'captum', 'scoring'} & {*sys.modules, *globals()}))"
    done = subprocess.run([sys.executable, "-c", f"{cell.source}\n{look}"], cwd=PROJECT_ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['scoring']"


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_study_file_passes_its_check(path):
    executions = load_study(path, PROJECT_ROOT / "notebooks")
    assert executions
    assert all(execution.parameters["study"] == path.stem for execution in executions)


def test_the_project_holds_no_path_of_a_machine():
    for path in [*NOTEBOOKS, *HELPERS, *STUDIES, *(PROJECT_ROOT / "reports").rglob("*.ipynb"), PROJECT_ROOT / "README.md"]:
        assert not re.search(r"(/home/\w+|/root/|/work/main|/tmp/\w)", path.read_text()), path


def test_reports_and_notebooks_match():
    for report in (PROJECT_ROOT / "reports").glob("*/*.ipynb"):
        assert report.name in {path.name for path in NOTEBOOKS}, report
        assert report.stat().st_size < 2_000_000
        assert json.loads(report.read_text())["metadata"]["papermill"]["exception"] is None
