"""The notebooks in JupyterLab as a reader has them: all cells run, and every control of an explorer moves what is shown."""

import copy
import subprocess
import sys
from functools import partial

import pytest
import yaml

from tests.browser import browsing
from tests.conftest import TINY_STUDY

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(browsing.missing()), reason=browsing.missing())]
NOTEBOOKS = [stem for stem in sorted(TINY_STUDY["notebooks"]) if stem[:2] != "01"]  # 07 reads what 04 scores
EXPLORED = {"02": 1, "03": 1, "04": 2, "06": 1}  # explorers in each notebook
KEYS = ("END", "HOME", "ARROW_RIGHT", "ARROW_LEFT", "PAGE_UP")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project with a tiny model set, and its notebooks with that study named in the first cell, as a reader does."""
    folder = browsing.copy_project(tmp_path_factory.mktemp("project"))
    study = copy.deepcopy(TINY_STUDY)
    study["notebooks"]["01_data_subset"] |= {"image_size": 32}  # maps of the last stage have several pixels
    study["notebooks"]["02_grid_training"] |= {"stem": "small", "max_epochs": 2}
    given, path = study["notebooks"], folder / "params/tiny.yaml"
    study["notebooks"] = {name: given[name] for name in ("01_data_subset", "02_grid_training")}
    path.write_text(yaml.safe_dump(study))
    command = [sys.executable, "-m", "helpers.sweep", "params/tiny.yaml"]
    done = subprocess.run(command, cwd=folder, env=browsing.environment(folder), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    path.write_text(yaml.safe_dump(study | {"notebooks": given}))  # the others take their values from it, and nothing is published
    for notebook in sorted((folder / "notebooks").glob("*.ipynb")):
        text, first = notebook.read_text(), 'study: str = \\"demo\\"'
        assert text.count(first) == 1
        notebook.with_name(f"open_{notebook.name}").write_text(text.replace(first, first.replace("demo", "tiny")))
    return folder


@pytest.fixture(scope="module")
def lab(project):
    with browsing.jupyterlab(project) as address:
        yield address


@pytest.fixture
def browser():
    with browsing.chromium() as opened:
        yield opened


@pytest.mark.parametrize("stem", NOTEBOOKS)
def test_all_cells_run_and_every_control_moves_what_is_shown(browser, lab, stem):
    notebook = browsing.Notebook(browser, lab(f"notebooks/open_{stem}.ipynb"))
    notebook.run_all()
    assert notebook.faults() == []
    expected = EXPLORED.get(stem[:2], 0)
    assert browsing.until(lambda: len(notebook.explorers()) >= expected, 60, f"{expected} explorers are not shown")
    for explorer in notebook.explorers():
        move_sliders(explorer)
        choose_from_lists(explorer)
        assert "cannot be shown" not in explorer.reading()
    assert notebook.faults() == []
    notebook.close()


def move_sliders(explorer):
    """Each handle to one end and, where that is where it was or changes nothing, elsewhere; back where everything is seen."""
    for number, handle in enumerate(explorer.sliders()):
        moved = any(explorer.changes(partial(explorer.press, handle, key), explorer.seen) for key in KEYS)
        assert moved, f"{explorer.title()}: slider {number}, {explorer.described(handle)}"
        explorer.press(handle, "HOME")


def choose_from_lists(explorer):
    """Some other item of each list, and back; picture or reading follow."""
    for number, chosen in enumerate(explorer.lists()):
        first = int(chosen.first_selected_option.get_attribute("index"))
        others = [index for index in range(len(chosen.options)) if index != first][-3:]
        moved = any(explorer.changes(partial(explorer.choose, chosen, index), explorer.shown) for index in others)
        assert moved, f"{explorer.title()}: list {number}"
        explorer.choose(chosen, first)
