"""What every notebook, helper and study file keeps to; found by pattern, so that a new one is held to it the day it is added."""

import ast
import functools
import graphlib
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict

import nbformat
import papermill
import pytest

from helpers.files import PROJECT_ROOT
from helpers.parameters import check_type, declared, read_blocks
from helpers.statistics.claims import check_claims
from helpers.sweep.study import load_study

# The rooms from the ground up: a room imports only rooms before its own place. Those of one place do not know one another.
ROOMS = (
    ("",),
    ("data", "networks", "statistics"),
    ("training", "cams"),
    ("measures",),
    ("scoring",),
    ("report",),
    ("ablations", "kappa", "select"),
    ("sweep",),
)
PLACE = {room: place for place, rooms in enumerate(ROOMS) for room in rooms}
GROUND = {"files", "locks", "parameters"}
# What the launcher may know beside the ground: how pages are written, what a claim is, and which measures there are.
SWEEP_KNOWS = {"report.pages", "statistics.claims", "measures.registry"}
# Which time the steps of networks, and look at images.
BESIDE_THE_LAUNCHER = ("sweep.plan", "sweep.new")
LONGEST_MODULE, LONGEST_FUNCTION, LARGEST_ROOM, MOST_IMPORTS = 500, 70, 15, 9


def dotted(path):
    """The name below ``helpers``: "files", "measures.norms", and "measures" for a room itself."""
    parts = path.relative_to(PROJECT_ROOT / "helpers").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(name):
    first = name.split(".")[0]
    return first if first in PLACE else ""


NOTEBOOKS = sorted((PROJECT_ROOT / "notebooks").glob("*.ipynb"))
HELPERS = sorted((PROJECT_ROOT / "helpers").rglob("*.py"))
BENCHMARKS = sorted((PROJECT_ROOT / "benchmarks").glob("*.py"))
STUDIES = sorted((PROJECT_ROOT / "params").glob("*.yaml"))
notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
modules = pytest.mark.parametrize("path", HELPERS, ids=lambda path: dotted(path) or "helpers")


def code(path):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def source_of(path):
    return "\n".join(cell.source for cell in code(path))


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


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
    assert {"demo", "compact20", "filled20", "imagenet20"} <= {path.stem for path in STUDIES}


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
def test_a_notebook_imports_few_rooms_at_its_head_and_assigns_to_none(path):
    cells = [ast.parse(cell.source) for cell in code(path) if "parameters" not in cell.metadata.get("tags", [])]
    heads = [node for tree in cells for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module.startswith("helpers")]
    assert all(head in cells[0].body for head in heads), "imports stand in the first cell after the parameters"
    assert {head.module for head in heads} == {"helpers", "helpers.report"}, "a notebook takes rooms, and its report's notebook"
    rooms = {item.name for head in heads for item in head.names if head.module == "helpers"}
    assert rooms <= GROUND | set(PLACE)
    assert len(rooms) <= MOST_IMPORTS
    statements = [node for tree in cells for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    imported = {item.asname or item.name for node in statements for item in node.names}
    assigned = {node.id for tree in cells for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    assert not imported & assigned


@notebooks
def test_a_notebook_finds_in_the_rooms_what_it_asks_of_them(path):
    """Names of a room are looked up when they are used, so a misspelt one would be seen only when its cell runs."""
    tree = ast.parse(source_of(path))
    rooms = {item.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "helpers" for item in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in rooms:
            assert hasattr(__import__(f"helpers.{node.value.id}", fromlist=["_"]), node.attr), ast.unparse(node)


def test_a_room_lends_only_what_a_notebook_uses():
    used = {ast.unparse(node) for path in NOTEBOOKS for node in ast.walk(ast.parse(source_of(path))) if isinstance(node, ast.Attribute)}
    for path in HELPERS:
        for node in tree_of(path).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FACE":
                lent = {name for module, names in ast.literal_eval(node.value).items() for name in (names or [module])}
                assert {f"{dotted(path)}.{name}" for name in lent} <= used


@notebooks
def test_the_parameters_are_typed_literals_of_one_line_with_a_comment(path):
    """A list that is too long for a line has one for each of its items."""
    (cell,) = [cell for cell in code(path) if "parameters" in cell.metadata.get("tags", [])]
    for node in ast.parse(cell.source).body:
        assert node.end_lineno - node.lineno == (0 if node.end_lineno == node.lineno else len(node.value.elts) + 1), ast.unparse(node)
    assert len(cell.source.splitlines()) == sum(node.end_lineno - node.lineno + 1 for node in ast.parse(cell.source).body)
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
    loaded = {node.id for node in ast.walk(ast.parse(source_of(path))) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    assert set(declared(path)) <= loaded | {"study", "work_dir", "reports_dir"}  # by which its report is opened


@modules
def test_a_module_is_documented_and_one_subject(path):
    assert ast.get_docstring(tree_of(path))
    assert path.read_text().count("\n") <= LONGEST_MODULE
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < LONGEST_FUNCTION, node.name
    for node in tree_of(path).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), node.name


@modules
def test_a_docstring_opens_with_what_comes_out(path):
    """A docstring begins "Mean IoU of ..." or the verb of a deed ("Write ..."), never with saying or giving."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            opening = (ast.get_docstring(node) or "").partition("\n")[0]
            assert not re.match(r"(Say|Give|State|Tell|Name) (?!of )", opening), opening


@modules
def test_a_module_speaks_of_the_project_alone(path):
    assert not re.search(r"\b[Ii]ssues? [A-Z]\b|TODO|FIXME", path.read_text())


@modules
def test_nothing_is_unpickled_or_parsed_unsafely(path):
    tree = tree_of(path)
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
        imported = [name for name in set(imports(tree_of(path))) if name.startswith("helpers.")]
        assert not any(name.endswith(".*") for name in imported), own
        known = ([other for other in names if other and f"{name}.".startswith(f"helpers.{other}.")] for name in imported)
        found[own] = {max(others, key=len) for others in known if others} - {own}
    return found


def test_imports_run_one_way():
    ordered = list(graphlib.TopologicalSorter(neighbours()).static_order())  # raises on a cycle, and names it
    assert len(ordered) == len(HELPERS)


def test_evidence_within_the_measures_runs_one_way():
    """A measure asks for evidence by the name of an argument: these are edges between files as much as imports are."""
    trees = {path.stem: tree_of(path) for path in (PROJECT_ROOT / "helpers" / "measures").glob("*.py") if path.stem != "__init__"}
    entered = {
        node.name: stem
        for stem, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and any(ast.unparse(item).startswith(("measure(", "provides")) for item in node.decorator_list)
    }
    graph = {stem: {name.split(".")[1] for name in neighbours()[f"measures.{stem}"] if name.startswith("measures.")} for stem in trees}
    for stem, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name in entered:
                graph[stem] |= {entered[item.arg] for item in node.args.args + node.args.kwonlyargs if item.arg in entered} - {stem}
    assert entered
    assert list(graphlib.TopologicalSorter(graph).static_order())


def test_only_the_ground_stands_outside_of_rooms():
    assert {path.stem for path in (PROJECT_ROOT / "helpers").glob("*.py")} == GROUND | {"__init__"}
    assert {path.name for path in (PROJECT_ROOT / "helpers").iterdir() if path.is_dir() and path.name != "__pycache__"} == set(PLACE) - {""}
    rooms = defaultdict(int)
    for path in HELPERS:
        rooms[path.parent] += path.name not in ("__init__.py", "__main__.py")
    assert max(rooms.values()) <= LARGEST_ROOM, dict(rooms)


@modules
def test_a_room_knows_only_the_rooms_before_it(path):
    own = dotted(path)
    others = {other for other in neighbours()[own] if room_of(other) != room_of(own)}
    assert all(PLACE[room_of(other)] < PLACE[room_of(own)] for other in others), others
    if room_of(own) == "sweep" and own not in BESIDE_THE_LAUNCHER:
        assert {other for other in others if room_of(other)} <= SWEEP_KNOWS


def test_the_launcher_loads_no_machine_learning():
    for path in HELPERS:
        if room_of(dotted(path)) in ("", "sweep") and dotted(path) not in ("files", *BESIDE_THE_LAUNCHER):
            assert not {"torch", "torchvision", "captum"} & {name.split(".")[0] for name in imports(tree_of(path))}, path


def test_a_public_name_has_one_meaning():
    places = defaultdict(list)
    for path in HELPERS:
        for node in tree_of(path).body:
            names = [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
            if isinstance(node, ast.Assign):
                names = [item.id for target in node.targets for item in ast.walk(target) if isinstance(item, ast.Name)]
            for name in names:
                if not name.startswith("_") and name not in ("main", "FACE"):
                    places[name].append(dotted(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


# Called by no line of the project: with what calls it, or why it is there for now.
CALLED_FROM_OUTSIDE = {
    "_Yaml.construct_mapping": "yaml",
    "CheckedStudy.pages_job": "the Snakefile",
    "CheckedStudy.withdraw_changed": "the Snakefile",
    **dict.fromkeys(("LockHolder.still_holds", "MARK", "take_pack", "write_pack", "say_changed"), "nobody any more: goes with its module"),
    "Panel._ipython_display_": "IPython",
    "NoImagesChosenError._render_traceback_": "IPython",
}


def mentioned(tree):
    """How often each name is read or imported, be it plain or behind a dot."""
    found = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store))
    found.update(node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Store))
    found.update(item.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for item in node.names)
    return found


def definitions(tree):
    """Functions, constants and methods of a module, each with its own lines; what a decorator enters in a registry is called there."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((item.id, node) for target in targets for item in ast.walk(target) if isinstance(item, ast.Name))
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            entered = any(ast.unparse(item).startswith(("measure(", "provides")) for item in node.decorator_list)
            yield from () if entered else ((node.name, node),)
            methods = node.body if isinstance(node, ast.ClassDef) else ()
            yield from ((f"{node.name}.{item.name}", item) for item in methods if isinstance(item, ast.FunctionDef))


def test_nothing_is_called_by_tests_alone():
    callers = [ast.parse(source_of(path)) for path in NOTEBOOKS] + [ast.parse(path.read_text()) for path in BENCHMARKS]
    calls = sum((mentioned(tree) for tree in [*callers, *map(tree_of, HELPERS)]), Counter())
    uncalled = set()
    for path in HELPERS:
        for name, node in definitions(tree_of(path)):
            last = name.split(".")[-1]
            if not last.startswith("__") and calls[last] == mentioned(node)[last]:
                uncalled.add(name)
    assert uncalled <= set(CALLED_FROM_OUTSIDE)
    assert set(CALLED_FROM_OUTSIDE) <= uncalled


def test_tests_mirror_the_rooms():
    """A file of tests is named after what it tests; makers stand in conftest.py, and no test imports a test."""
    names = {dotted(path) for path in HELPERS}
    for path in (PROJECT_ROOT / "tests").rglob("test_*.py"):
        place = path.relative_to(PROJECT_ROOT / "tests").with_suffix("").parts
        if place[0] in PLACE:
            subject = place[1].removeprefix("test_")
            known = {f"{place[0]}.{subject}", f"{place[0]}.{subject.replace('_', '.', 1)}"}
            assert known & names or subject in ("registry", "any_network", "face", "shapes", "study"), path
        assert not [name for name in imports(ast.parse(path.read_text())) if re.search(r"(^|\.)test_\w+", name)], path


def test_where_networks_look_is_drawn_without_the_imports_that_take_seconds():
    """A reader of notebook 03 waits for its imports; torchvision alone would be a quarter of the time to the first figure."""
    path = PROJECT_ROOT / "notebooks" / "03_cam_scoring.ipynb"
    head = next(cell.source for cell in code(path) if "from helpers import" in cell.source)
    tree = ast.parse(source_of(path))
    rooms = {item.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "helpers" for item in node.names}
    asked = {
        ast.unparse(n) for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id in rooms
    }
    touch = "\n".join(sorted(asked - {"report.where_it_looks"}))  # the explorer comes after the first figure
    look = "import sys; print(sorted({'torchvision', 'torch._dynamo', 'captum', 'helpers.scoring.models'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", f"{head}\n{touch}\n{look}"], cwd=PROJECT_ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['helpers.scoring.models']"


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_study_file_passes_its_check(path):
    executions = load_study(path).executions
    assert executions
    assert all(execution.parameters["study"] == path.stem for execution in executions)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_study_claims_of_measures_that_there_are(path):
    import helpers.measures.localization  # noqa: F401  the room's modules enter their measures when it is imported
    from helpers.measures import ranked

    check_claims(
        read_blocks(path).get("claims", []), [*ranked(), "object_reliance"]
    )  # stated before the runs of kinds20, scored after them


@pytest.mark.parametrize("path", [path for path in STUDIES if read_blocks(path).get("claims")], ids=lambda path: path.stem)
def test_a_study_draws_as_often_wherever_it_shows_a_correlation_and_always_the_same(path):
    """Else r of IoU would have one interval in 03, another in 04 and a third in 05."""
    executions = [run.parameters for run in load_study(path).executions if run.notebook[:2] in ("03", "04", "05")]
    assert len({(given["bootstrap_resamples"], given["analysis_seed"]) for given in executions}) == 1


def test_the_project_holds_no_path_of_a_machine():
    for path in [*NOTEBOOKS, *HELPERS, *STUDIES, *(PROJECT_ROOT / "reports").rglob("*.ipynb"), PROJECT_ROOT / "README.md"]:
        assert not re.search(r"(/home/\w+|/root/|/work/main|/tmp/\w)", path.read_text()), path


def test_reports_and_notebooks_match():
    for report in (PROJECT_ROOT / "reports").glob("*/*.ipynb"):
        assert report.name in {path.name for path in NOTEBOOKS}, report
        assert report.stat().st_size < 2_000_000
        assert json.loads(report.read_text())["metadata"]["papermill"]["exception"] is None


REPORTS = [
    page.parent.name for page in sorted((PROJECT_ROOT / "reports").glob("*/index.html")) if page.parent.name != "demo"
]  # committed ones


@pytest.mark.parametrize("study", REPORTS)
def test_a_report_is_small_enough_for_a_repository(study):
    files = [path for path in (PROJECT_ROOT / "reports" / study).rglob("*") if path.is_file() and path.parent.name != "checkpoints"]
    assert sum(path.stat().st_size for path in files) < 6e6


def test_all_reports_together_are_small_enough_for_a_repository():
    folders = [PROJECT_ROOT / "reports" / name for name in (*REPORTS, "assets")]
    sizes = {path: path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file()}
    assert sum(sizes.values()) < 30e6
    assert sum(size for path, size in sizes.items() if path.parent.name == "checkpoints") < 12e6
