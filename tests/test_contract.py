"""What every notebook, helper and study file keeps to; found by pattern, so that a new one is held to it the day it is added."""

import ast
import importlib
import json
import re
import subprocess
import sys
from collections import Counter

import nbformat

from helpers.files import PROJECT_ROOT
from helpers.measures import registry
from helpers.parameters import declared
from helpers.statistics.claims import PAIRED, check_claims
from helpers.studies import StudyFile, load
from tests.conftest import committed, tracked

PICKLERS = ("dill", "joblib", "cloudpickle")
DEFINITIONS = ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef
NOTEBOOKS = sorted((PROJECT_ROOT / "notebooks").glob("*.ipynb"))
HELPERS = sorted((PROJECT_ROOT / "helpers").rglob("*.py"))
STUDIES = tracked("params/*.yaml")
REPORTS = sorted({path.parents[1] for path in tracked("reports/*/*/*.ipynb")})
CELLS = {path: nbformat.read(path, as_version=4).cells for path in NOTEBOOKS}


# Parameters that ``Study.of`` reads.
BY_STUDY = {"minimum_train_accuracy", "device", "jobs"}


def dotted(path):
    """The name below ``helpers``: "files", "measures.norms", and "measures" for a room itself."""
    parts = path.relative_to(PROJECT_ROOT / "helpers").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES = {dotted(path): ast.parse(path.read_text()) for path in HELPERS}


def code(path):
    return [cell for cell in CELLS[path] if cell.cell_type == "code"]


def tagged(cell):
    return "parameters" in cell.metadata.get("tags", [])


def source_of(path):
    return "\n".join(cell.source for cell in code(path))


def imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (item.name for item in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{item.name}" for item in node.names)


def test_notebooks_are_committed_without_outputs():
    for path in NOTEBOOKS:
        for cell in json.loads(committed(path))["cells"]:
            assert not cell.get("outputs"), f"{path}: outputs belong in reports/"
            assert cell.get("execution_count") is None, path


def test_notebooks_define_no_function():
    for path in NOTEBOOKS:
        nodes = ast.walk(ast.parse(source_of(path)))
        assert not [node for node in nodes if isinstance(node, DEFINITIONS)], path


def test_notebooks_find_what_they_ask_of_helpers():
    """A name that a module does not have would be seen only when its cell runs."""
    for path in NOTEBOOKS:
        tree = ast.parse(source_of(path))
        heads = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module.startswith("helpers")
        ]
        modules = {
            item.asname or item.name: f"{head.module}.{item.name}"
            for head in heads
            for item in head.names
        }
        for node in ast.walk(tree):
            module = (
                modules.get(node.value.id, "")
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
                else ""
            )
            if module and module.removeprefix("helpers.") in TREES:
                assert hasattr(importlib.import_module(module), node.attr), (
                    f"{path.stem}: {ast.unparse(node)}"
                )


def test_a_notebook_reads_the_parameters_that_it_declares():
    for path in NOTEBOOKS:
        names = set(declared(path))
        read = {
            node.attr
            for node in ast.walk(ast.parse(source_of(path)))
            if isinstance(node, ast.Attribute)
            and ast.unparse(node.value) == "parameters"
        }
        assert read <= names, path.stem
        assert names - {"study", "work_dir", "reports_dir"} <= read | BY_STUDY, path


def test_cells_read_parameters_in_force_and_not_those_of_the_first_cell():
    """Opened by hand, the study's file may have other values than the first cell."""
    for path in NOTEBOOKS:
        names, assigned = set(declared(path)), set()
        for cell in code(path):
            if tagged(cell):
                continue
            for statement in ast.parse(cell.source).body:
                nodes = [
                    node for node in ast.walk(statement) if isinstance(node, ast.Name)
                ]
                of_here = {node.id for node in nodes if isinstance(node.ctx, ast.Store)}
                read = {node.id for node in nodes if isinstance(node.ctx, ast.Load)}
                wrong = read & names - assigned - of_here
                assert not wrong, f"{path.stem}: {ast.unparse(statement)[:80]}"
                assigned |= {
                    node.id
                    for target in getattr(statement, "targets", [])
                    for node in ast.walk(target)
                    if isinstance(node, ast.Name)
                }


def test_nothing_is_unpickled_or_parsed_unsafely():
    refused = {
        "pickle.load",
        "pickle.loads",
        "pandas.read_pickle",
        "pd.read_pickle",
        "yaml.unsafe_load",
        "yaml.full_load",
    }
    for name, tree in TREES.items():
        names = set(imports(tree))
        # Functions are handed to other processes by value; files are not read so.
        picklers = {name for name in names if name.startswith(PICKLERS)}
        assert picklers <= {
            "joblib.Parallel",
            "joblib.delayed",
            "joblib.parallel_config",
            "joblib.externals.loky.get_reusable_executor",
        }, name
        assert (
            not {
                "xml.etree.ElementTree.parse",
                "xml.etree.ElementTree.fromstring",
            }
            & names
        )
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                called = ast.unparse(node.func)
                given = {
                    keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords
                }
                assert called not in refused, name
                assert called != "torch.load" or given.get("weights_only") == "True", (
                    name
                )
                assert called != "np.load" or given.get("allow_pickle") == "False", name


# Called by no line of the project: with what calls it.
CALLED_FROM_OUTSIDE = {
    "score_network": "the lines of Python in README",
    **dict.fromkeys(("depends", "from_records"), "the Snakefile"),
    "forward": "torch",
}


def mentioned(tree):
    """How often each name is read or imported, be it plain or behind a dot."""
    found = Counter(
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store)
    )
    found.update(
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Store)
    )
    found.update(
        item.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for item in node.names
    )
    return found


def test_nothing_is_called_by_tests_alone():
    """What a decorator enters in a list (measures and what they need) is called there."""
    callers = [ast.parse(source_of(path)) for path in NOTEBOOKS]
    callers += [
        ast.parse(path.read_text())
        for path in (PROJECT_ROOT / "benchmarks").glob("*.py")
    ]
    calls, uncalled = (
        sum((mentioned(tree) for tree in [*callers, *TREES.values()]), Counter()),
        set(),
    )
    for template in [
        *(PROJECT_ROOT / "params").glob("*.j2"),
        *(PROJECT_ROOT / "helpers/report/templates").glob("*.md.j2"),
    ]:
        calls.update(re.findall(r"\bn\.(\w+)", template.read_text(encoding="utf-8")))
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(
                node, ast.FunctionDef | ast.ClassDef
            ) and not node.name.startswith(("__", "_render", "_ipython", "_repr")):
                entered = any(
                    ast.unparse(item).startswith(
                        ("measure(", "complexity(", "provides")
                    )
                    for item in node.decorator_list
                )
                if not entered and calls[node.name] == mentioned(node)[node.name]:
                    uncalled.add(node.name)
    assert uncalled - {"main"} <= set(CALLED_FROM_OUTSIDE)


def test_where_networks_look_is_drawn_without_the_imports_that_take_seconds():
    """A reader of notebook 03 waits for its imports; torchvision alone would be a quarter of the time to the first figure."""
    head = next(
        cell.source
        for cell in code(PROJECT_ROOT / "notebooks/03_cam_scoring.ipynb")
        if "from helpers" in cell.source
    )
    look = "import sys; print(sorted({'torchvision', 'torch._dynamo', 'captum'} & {*sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", f"{head}\n{look}"],
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_study_files_pass_their_check():
    for path in STUDIES:
        executions = load(path.stem).executions
        assert executions
        assert all(
            execution.parameters["study"] == path.stem for execution in executions
        )
        if claims := StudyFile.read(path.stem).claims:
            of_models = {
                claim["measure"].split(" (")[0]  # without a variant, as (rotation)
                for claim in check_claims(claims)
                if claim["question"] != PAIRED  # asked of arms, in notebook 09
            }
            assert of_models <= set(registry.ranked())
            # Else r of IoU would have one interval in 03, another in 04 and a third in 05.
            drawn = [
                run.parameters
                for run in executions
                if run.notebook[:2] in ("03", "04", "05")
            ]
            assert (
                len(
                    {
                        (given["bootstrap_resamples"], given["analysis_seed"])
                        for given in drawn
                    }
                )
                <= 1
            ), path


def test_the_project_holds_no_path_of_a_machine():
    for path in [
        *NOTEBOOKS,
        *HELPERS,
        *STUDIES,
        *(path for folder in REPORTS for path in folder.glob("*/*.ipynb")),
        PROJECT_ROOT / "README.md",
    ]:
        assert not re.search(
            r"(/home/\w+|/root/|/work/main|/tmp/\w)", path.read_text()
        ), path


def test_published_notebooks_ended_without_an_error():
    for report in tracked("reports/*/*/*.ipynb"):
        metadata = json.loads(report.read_text())["metadata"]
        assert metadata["papermill"]["exception"] is None, report
