"""A notebook opened by hand: its first cell is the demo study, names another one, and what stands in it by hand wins."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml

from helpers.files import PROJECT_ROOT
from helpers.notebook_parameters import StudyError, declared
from helpers.sweep.first_cell import DEFAULTS, parameters_in_force
from helpers.sweep.study_file import load_study

NOTEBOOKS = {path.stem: path for path in sorted((PROJECT_ROOT / "notebooks").glob("*.ipynb"))}
STUDIES = {path.stem: path for path in sorted((PROJECT_ROOT / "params").glob("*.yaml"))}
CELL = """study: str = "demo"  # name of the study
images: int = 60  # images
rate: float = 0.5  # a rate
names: list[str] = ["a"]  # some names
place: str = "work"  # a folder
"""


@pytest.fixture
def project(tmp_path):
    """A project with one notebook, the study of its defaults, and another one."""
    for name in ("notebooks", "params"):
        (tmp_path / name).mkdir()
    cell = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": CELL}
    (tmp_path / "notebooks/01_a.ipynb").write_text(json.dumps({"cells": [cell]}))
    demo = {"common": {"place": "work"}, "notebooks": {"01_a": {"images": 60, "rate": 0.5, "names": ["a"]}}}
    (tmp_path / "params/demo.yaml").write_text(yaml.safe_dump(demo))
    other = {"common": {"place": "disk", "unknown": 1}, "notebooks": {"01_a": {"images": 100, "rate": 1}, "02_b": {"names": ["z"]}}}
    (tmp_path / "params/other.yaml").write_text(yaml.safe_dump(other))
    return tmp_path


def in_force(project, *cells, **changed):
    """What is in force after the first cell with changes ran, and further cells."""
    given = {"study": "demo", "images": 60, "rate": 0.5, "names": ["a"], "place": "work"} | changed
    for cell in cells:
        exec(cell, given)
    return parameters_in_force("01_a", given | {"In": ["", CELL, *cells, "globals().update(...)"]}, project)


def test_as_committed_it_is_the_demo(project):
    found = in_force(project)
    assert found.values == {"study": "demo", "images": 60, "rate": 0.5, "names": ["a"], "place": "work"}
    assert found.origins == {"study": "default", **dict.fromkeys(("images", "rate", "names", "place"), "params/demo.yaml")}


def test_another_study_brings_its_values_and_what_was_changed_by_hand_wins(project):
    found = in_force(project, study="other", images=7)
    assert found.values == {"study": "other", "images": 7, "rate": 1.0, "names": ["a"], "place": "disk"}
    theirs = "params/other.yaml"
    assert found.origins == {"study": "first cell", "images": "first cell", "rate": theirs, "names": "default", "place": theirs}
    assert isinstance(found.values["rate"], float)


def test_the_same_cell_again_changes_nothing(project):
    found = in_force(project, study="other", images=7)
    again = parameters_in_force("01_a", found.values, project)
    assert again == found


def test_a_change_wins_also_when_the_notebook_was_saved_with_it(project):
    path = project / "notebooks/01_a.ipynb"
    path.write_text(path.read_text().replace("= 60", "= 7").replace('= \\"demo\\"', '= \\"other\\"'))
    assert {name: item.default for name, item in declared(path).items()}["images"] == 7
    found = in_force(project, study="other", images=7)
    assert (found.values["images"], found.values["place"]) == (7, "disk")
    assert found.origins["images"] == "first cell"


def test_what_papermill_injects_wins_over_all_and_needs_no_file_of_the_study(project):
    found = in_force(project, '# Parameters\nstudy = "other"\nimages = 60\n')
    assert (found.values["images"], found.origins["images"]) == (60, "injected")  # although the study has 100, and 60 is the demo's
    assert (found.values["rate"], found.origins["study"]) == (1.0, "injected")
    found = in_force(project, '# Parameters\nstudy = "mine"\nrate = 2.0\n')
    assert found.values == {"study": "mine", "images": 60, "rate": 2.0, "names": ["a"], "place": "work"}
    assert found.origins["images"] == "default"


def test_an_injected_cell_counts_until_the_first_cell_runs_again(project):
    found = in_force(project, "# Parameters\nimages = 60\n", CELL, 'study = "other"')
    assert found.values["images"] == 100


def test_a_study_without_a_file_is_refused_with_those_that_have_one(project):
    with pytest.raises(
        FileNotFoundError, match=r"there is no params/othr.yaml \(did you mean 'other'\?\); .* demo, other\. Copy"
    ) as refused:
        in_force(project, study="othr")
    assert refused.value._render_traceback_() == [str(refused.value)]  # which is all that IPython then shows


@pytest.mark.parametrize("content", ["[", "- 1", "common: [1]", "notebooks: {01_a: {images: many}}", "notebooks: {01_a: 3}"])
def test_a_file_that_cannot_be_used_is_named_with_what_lists_its_faults(project, content):
    (project / "params/other.yaml").write_text(content)
    with pytest.raises(StudyError, match=r"other.yaml cannot be used .*`python -m helpers.sweep params/other.yaml --dry-run` lists"):
        in_force(project, study="other")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"study": "../params/demo"}, "study is '../params/demo', and must be a name of letters"),
        ({"study": "a" * 5000}, "and must be a name of letters"),
        ({"study": ["demo"]}, r"study is \['demo'\], and must be str"),
        ({"names": np.array(["a", "b"])}, r"names is array\(.*\), and must be list\[str\]"),
        ({"names": pd.Series(["a", "b"])}, r"(?s)names is .*, and must be list\[str\]"),
    ],
)
def test_a_value_that_is_none_of_a_parameter_is_told_whatever_it_is(project, changed, told):
    with pytest.raises(StudyError, match=told):
        in_force(project, **changed)


def test_a_line_that_was_taken_out_of_the_first_cell_is_named(project):
    with pytest.raises(StudyError, match="the first cell has no images, rate; put the lines of these parameters back"):
        parameters_in_force("01_a", {"study": "demo", "names": ["a"], "place": "work"}, project)


def test_without_the_file_of_the_demo_defaults_are_those_of_the_notebook(project):
    (project / "params/demo.yaml").unlink()
    assert in_force(project, study="other").values["images"] == 100
    with pytest.raises(FileNotFoundError):
        in_force(project)


@pytest.mark.parametrize("stem", NOTEBOOKS)
def test_the_defaults_of_every_notebook_are_the_demo_study(stem):
    given = yaml.safe_load(STUDIES[DEFAULTS].read_text())
    names = declared(NOTEBOOKS[stem])
    values = {name: value for name, value in given["common"].items() if name in names} | given["notebooks"].get(stem, {})
    assert {name: item.default for name, item in names.items() if name in values} == values
    assert names["study"].default == DEFAULTS
    if stem in given["notebooks"]:  # all of them, so that a change by hand is known from a default
        assert set(values) == set(names) - {"study"}, "params/demo.yaml holds every parameter of its notebooks"


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_named_in_the_first_cell_has_the_values_that_the_launcher_gives(study):
    for execution in load_study(STUDIES[study], PROJECT_ROOT / "notebooks"):
        if not execution.part:
            values = {name: item.default for name, item in declared(execution.notebook).items()} | {"study": study}
            assert parameters_in_force(execution.notebook.stem, values).values == execution.parameters


def test_every_notebook_asks_for_what_is_in_force_before_it_opens_its_report():
    for stem, path in NOTEBOOKS.items():
        cells = ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        asked = f'in_force = sweep.parameters_in_force("{stem}", globals())\nglobals().update(in_force.values)\nstory = report.open_report('
        assert sum(asked in cell for cell in cells) == 1, stem


def test_what_the_first_cell_may_not_have_is_told_at_the_head_of_the_notebook_all_at_once():
    values = {name: item.default for name, item in declared(NOTEBOOKS["03_cam_scoring"]).items()}
    with pytest.raises(StudyError) as caught:
        parameters_in_force("03_cam_scoring", values | {"cam_method": "gradcam", "cam_threshold": 7})
    assert [fault.split()[0] for fault in caught.value.faults] == ["cam_method", "cam_threshold"]
