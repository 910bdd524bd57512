"""What every notebook, helper and study file keeps to; found by pattern, so that a new one is held to it the day it is added."""

import ast
import json
import re

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

# Who may know whom, from the ground up: a module imports only from its own layer's left.
LAYERS = [
    {
        "__init__",
        "files",
        "annotations",
        "augmentation",
        "agreement",
        "published",
        "synthetic",
        "cams",
        "classification",
        "segmentation",
        "box_localization",
    },
    {"archive", "cache", "provenance", "models", "statistics", "parameters", "pages", "localization"},
    {"sources", "grid", "reports", "sweep", "conditional_information", "sign_error", "confounding", "comparison"},
    {"decoding", "stopping", "ranking"},
    {"selection", "checkpoints"},
    {"datasets"},
    {"training", "model_set", "readings", "plots", "measures.registry"},
    {"measures.evidence", "metric_plots", "measure_plots", "metric_readings", "outputs"},
    {"measures.passes", "measures.layers", "measures.operators", "measures.curves"},
    {"measures.localization", "measures.prediction", "measures.norms", "measures.response", "measures.transforms"},
    {"measures.spectral", "measures.flatness", "measures.perturbation"},
    {"measures.pacbayes"},
    {"measures.sharpness", "measures.repository_flatness"},
    {"measures"},
    {"pool", "scoring"},
    {"invariance"},
    {"pretraining", "findings", "pictures", "verdicts", "side_by_side"},
]
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


@modules
def test_imports_run_one_way(path):
    layer = {name: number for number, names in enumerate(LAYERS) for name in names}
    own = dotted(path)
    assert own in layer, f"say in LAYERS who may know {own}"
    found = set(imports(ast.parse(path.read_text())))
    for name in found:
        assert not name.endswith(".*")
        parts = name.split(".")
        if parts[0] == "helpers":
            other = max((known for known in layer if f"{name}.".startswith(f"helpers.{known}.")), key=len)
            assert layer[other] < layer[own], f"{own} must not know {other}"
        if own in WITHOUT_TORCH:
            assert parts[0] not in {"torch", "torchvision", "captum"}


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
