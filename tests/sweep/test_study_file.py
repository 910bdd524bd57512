import subprocess
import sys

import nbformat
import pytest

from helpers.files import PROJECT_ROOT
from helpers.notebook_parameters import StudyError, check_type, declared, shard_slice
from helpers.sweep.study_file import load_study, parse_value, parts, study_path

CELL = """study: str = "x"  # name
threshold: float = 0.1  # of the map
count: int = 3  # how many
names: list[str] = ["a"]  # which
sizes: list[float] = [1.0]  # levels
flag: bool = True  # whether"""


@pytest.fixture
def project(tmp_path):
    """A folder with two notebooks; gives a function that writes a study file and loads it."""
    (tmp_path / "notebooks").mkdir()
    for stem, cell in (("01_one", CELL), ("02_two", 'study: str = "x"  # name\nother: int = 1  # else')):
        parameters = nbformat.v4.new_code_cell(cell, metadata={"tags": ["parameters"]})
        nbformat.write(nbformat.v4.new_notebook(cells=[parameters]), tmp_path / "notebooks" / f"{stem}.ipynb")

    def load(text, overrides=()):
        (tmp_path / "my_study.yaml").write_text(text)
        return load_study(tmp_path / "my_study.yaml", tmp_path / "notebooks", overrides)

    return load


def faults(project, text, overrides=()):
    with pytest.raises(StudyError) as caught:
        project(text, overrides)
    return caught.value.faults


def test_every_declared_parameter_is_given_and_the_study_is_named_by_its_file(project):
    first, second = project("common: {count: 5}\nnotebooks: {02_two: {}, 01_one: {threshold: 1e-3, sizes: [1, 2e5]}}")
    assert first.notebook.stem == "01_one"
    assert first.parameters == {"study": "my_study", "threshold": 0.001, "count": 5, "names": ["a"], "sizes": [1.0, 2e5], "flag": True}
    assert second.parameters == {"study": "my_study", "other": 1}


def test_overrides_reach_every_notebook_that_declares_the_name_or_just_one(project):
    text = "notebooks: {01_one: {}, 02_two: {}}"
    first, second = project(text, ["count=7", "01_one.names=[b, c]", "02_two.other=4"])
    assert (first.parameters["count"], first.parameters["names"], second.parameters["other"]) == (7, ["b", "c"], 4)
    assert faults(project, text, ["cuont=7"]) == [
        "--set cuont=7: unknown parameter 'cuont' (did you mean 'count'?); valid: count, flag, names, other, sizes, study, threshold"
    ]
    assert "unknown notebook '03_x'" in faults(project, text, ["03_x.count=1"])[0]
    assert "write name=value" in faults(project, text, ["count"])[0]


def test_all_faults_are_collected_and_each_names_where_what_and_what_would_be_valid(project):
    found = faults(project, "common: {cuont: 1}\nnotebooks: {01_one: {treshold: 0.2, count: many, flag: 1}, 03_three: {}}\nsweeps: {}")
    assert len(found) == 6
    text = "\n".join(found)
    assert "my_study.yaml, common: unknown parameter 'cuont' (did you mean 'count'?)" in text
    assert "my_study.yaml, 01_one: unknown parameter 'treshold' (did you mean 'threshold'?); valid: count, flag, names" in text
    assert "unknown notebook '03_three'" in text
    assert "unknown block 'sweeps'" in text
    assert "01_one: count is 'many', and must be int (how many)" in text
    assert "01_one: flag is 1, and must be bool (whether)" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("notebooks: {01_one: {count: 1, count: 2}}", "the key 'count' stands twice"),
        ("notebooks: [", "not readable YAML"),
        ("- a", "a study file is a mapping"),
        ("common: {count: 1}", "the block `notebooks` is missing or empty; it names the notebooks to run, of 01_one, 02_two"),
        ("notebooks: {01_one: 3}", "this block is 3; it must map names to values"),
        ("notebooks: {01_one: !!python/object/apply:os.getcwd []}", "not readable YAML"),
    ],
)
def test_refuses_what_is_no_study(project, text, message):
    assert any(message in fault for fault in faults(project, text))


def test_a_missing_study_lists_those_that_are_there():
    with pytest.raises(StudyError, match=r"nothing.yaml does not exist; the studies in .*params are .*demo, "):
        load_study(PROJECT_ROOT / "params/nothing.yaml", PROJECT_ROOT / "notebooks")


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        ("int", 3, 3.0),
        ("int", 3, True),
        ("float", 3, "3"),
        ("bool", False, 0),
        ("str", "a", 1),
        ("list[int]", [1], [1.5]),
        ("list[bool]", [True], [1]),
        ("Optional[int]", None, "x"),
        ("Literal['a', 'b']", "a", "c"),
        ("dict", {}, []),
    ],
)
def test_types_are_strict_but_an_int_is_a_float(annotation, good, bad):
    assert check_type(annotation, good) == good
    with pytest.raises(ValueError):
        check_type(annotation, bad)


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 0.001), ("2", 2), ("[1e5, 2]", [1e5, 2]), ("true", True), ("a/b.zip", "a/b.zip"), ("", None)]
)
def test_values_on_the_command_line_are_yaml_with_plain_exponents(text, value):
    assert parse_value(text) == value


def test_a_notebook_needs_exactly_one_cell_of_annotated_literals(tmp_path):
    path = tmp_path / "01_x.ipynb"
    for source, message in (("a = 1", "line 1 of the parameters cell is not"), ("a: int", "line 1 of the parameters cell is not")):
        nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source, metadata={"tags": ["parameters"]})]), path)
        with pytest.raises(StudyError, match=message):
            declared(path)
    nbformat.write(nbformat.v4.new_notebook(cells=[]), path)
    with pytest.raises(StudyError, match="0 cells are tagged 'parameters'; exactly one is needed"):
        declared(path)


def test_checking_a_study_loads_neither_torch_nor_papermill():
    script = (
        "import sys; from helpers.sweep.cli import main; code = main(['params/demo.yaml', '--set', 'cam_treshold=1']);"
        "print(code, sorted({'torch', 'papermill', 'pandas', 'matplotlib'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=PROJECT_ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "2 []"
    assert run.stderr.endswith("unknown parameter 'cam_treshold' (did you mean 'cam_threshold', 'thresholds' or 'cam_method'?)\n")


TYPES = {"architectures": "list[str]", "seed": "int", "pretrained_levels": "list[bool]", "rate": "float", "stem": "str", "shard": "str"}


def test_every_combination_is_a_part_and_a_list_takes_single_values():
    found, faults = parts("here", {"architectures": ["resnet18", ["resnet34", "resnet50"]], "seed": [0, 1]}, TYPES)
    assert faults == []
    assert found == {
        "resnet18-seed0": {"architectures": ["resnet18"], "seed": 0},
        "resnet18-seed1": {"architectures": ["resnet18"], "seed": 1},
        "resnet34+resnet50-seed0": {"architectures": ["resnet34", "resnet50"], "seed": 0},
        "resnet34+resnet50-seed1": {"architectures": ["resnet34", "resnet50"], "seed": 1},
    }
    assert list(parts("here", {"pretrained_levels": [True, False], "rate": [1e-5]}, TYPES)[0]) == [
        "pretrained_levelstrue-rate1e-05",
        "pretrained_levelsfalse-rate1e-05",
    ]


def test_a_number_of_shards_makes_as_many_parts():
    found, _ = parts("here", {"shard": 11}, TYPES)
    assert list(found.values()) == [{"shard": f"{number}/11"} for number in range(1, 12)]
    assert list(found) == sorted(found)
    assert next(iter(found)) == "shard01of11"


def test_names_are_plain_file_names_and_never_the_same():
    found, _ = parts("here", {"stem": ["a/b", "a:b", "..", "x" * 300, "x" * 301]}, TYPES)
    assert len(found) == 5
    assert all(len(name) < 100 and "/" not in name and not name.startswith(".") for name in found)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"architecture": ["a"]}, "here: unknown parameter 'architecture' (did you mean 'architectures'?)"),
        ({"seed": 3}, "here: seed is 3, and must be a list of the values to run"),
        ({"seed": []}, "must be a list of the values"),
        ({"seed": [1, 2, 1]}, "here: seed has a value twice: [1, 2, 1]"),
        ({"shard": 0}, "here: shard is 0, and must be a whole number of parts, at least 1"),
        ({"study": ["a", "b"]}, "here: study is one for all parts of a study; set it in the block common"),
        ({"shard": True}, "must be a whole number"),
        ({"shard": [1]}, "must be a whole number"),
        ([], "here: this block is []; it must map parameters to lists of values"),
    ],
)
def test_faults_say_what_is_wrong_and_what_would_be_valid(block, message):
    found, (fault,) = parts("here", block, TYPES | {"study": "str"})
    assert found == {}
    assert message in fault


@pytest.mark.parametrize("count", [1, 2, 3, 7, 12])
def test_shards_are_disjoint_complete_and_as_equal_as_can_be(count):
    runs = list(range(10))
    shares = [runs[shard_slice(f"{number}/{count}")] for number in range(1, count + 1)]
    assert sorted(run for share in shares for run in share) == runs
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_no_shard_is_everything_and_a_wrong_one_is_refused():
    assert [1, 2][shard_slice("")] == [1, 2]
    for wrong in ("0/2", "3/2", "1", "a/b", "1/2/3", "-1/2"):
        with pytest.raises(ValueError, match=f"the shard is '{wrong}'; write i/n with i from 1 to n"):
            shard_slice(wrong)


def test_a_bare_name_is_a_study_in_params_and_a_path_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(PROJECT_ROOT)
    assert [str(study_path(name)) for name in ("demo", "params/demo.yaml", "x/demo")] == ["params/demo.yaml", "params/demo.yaml", "x/demo"]
    with pytest.raises(StudyError, match=r"dmo.yaml does not exist \(did you mean 'demo'\?\); the studies in params are [^.]*$"):
        load_study(study_path("dmo"), PROJECT_ROOT / "notebooks")  # nothing of the project's own .yaml files


def test_what_is_wrong_for_several_notebooks_is_told_once(project):
    found = faults(project, "notebooks: {01_one: {}, 02_two: {study: a}}", ["study=[x]"])
    assert len(found) == 1
    assert found[0].endswith("my_study.yaml, 01_one, 02_two: study is ['x'], and must be str (name): Input should be a valid string")


def test_a_reader_that_has_enough_ends_the_command_without_a_traceback():
    command = f"{sys.executable} -m helpers.sweep demo --dry-run | head -1"
    done = subprocess.run(["bash", "-c", command], cwd=PROJECT_ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("01_data_subset: ")
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
