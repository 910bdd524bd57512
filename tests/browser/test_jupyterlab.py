"""The notebooks in JupyterLab as a reader has them: all cells run, every control moves what is shown, and the console has no error."""

import copy
import shutil
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
PUBLISHED = "compact20"  # a study whose report is here, and neither its images nor its runs
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
        for use, named in (("open", "tiny"), ("click", "tiny"), ("clone", PUBLISHED)):  # one each: JupyterLab saves what was run
            notebook.with_name(f"{use}_{notebook.name}").write_text(text.replace(first, first.replace("demo", named)))
    shutil.copytree(browsing.PROJECT_ROOT / "reports" / PUBLISHED, folder / "reports" / PUBLISHED)
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
        tick_boxes(explorer)
        assert "cannot be shown" not in explorer.reading()
    assert notebook.faults() == []
    assert notebook.errors() == []
    notebook.close()


def test_a_click_opens_a_model_and_the_arrow_keys_go_from_image_to_image(browser, lab):
    notebook = browsing.Notebook(browser, lab("notebooks/click_04_baselines.ipynb"))
    notebook.run_all()
    browsing.until(lambda: len(notebook.explorers()) == 2, 60, "2 explorers are not shown")
    predicts, look = notebook.explorers()
    for point in range(2):
        assert predicts.changes(lambda place=point: predicts.click(predicts.points()[place]), predicts.reading)
    assert "stop reason" in predicts.reading() and "opened 2" in predicts.find(".js-plotly-plot")[0].text
    (gallery,) = look.find(".workbook-gallery")
    for key, place in (("ARROW_RIGHT", 2), ("ARROW_RIGHT", 3), ("ARROW_LEFT", 2)):
        look.press(gallery, key)
        assert browsing.until(lambda wanted=place: f"{wanted} of " in look.reading(), 60, f"image {place} is not shown")
    assert look.changes(lambda: look.click(look.find(".workbook-grid figure")[0]), look.reading)
    assert notebook.errors() == []
    notebook.close()


@pytest.mark.parametrize("stem", ["03_cam_scoring", "04_baselines"])
def test_without_images_the_published_report_is_explored_and_one_sentence_says_what_is_lacking(browser, lab, stem):
    notebook = browsing.Notebook(browser, lab(f"notebooks/clone_{stem}.ipynb"))
    notebook.run_all()
    browsing.until(notebook.explorers, 60, "no explorer is shown")
    first, *others = notebook.faults()
    assert first.startswith("NoImagesChosenError: ") and f"the study '{PUBLISHED}'" in first
    assert all(fault.startswith("did not run") for fault in others)
    assert "Traceback" not in browser.find_element("css selector", "body").text
    explorer = notebook.explorers()[0]
    choose_from_lists(explorer)
    assert explorer.changes(lambda: explorer.click(explorer.points()[0]), explorer.reading)
    assert notebook.errors() == []
    notebook.close()


def move_sliders(explorer):
    """Each handle to one end and, where that is where it was or changes nothing, elsewhere; back where everything is seen."""
    for number, handle in enumerate(explorer.sliders()):
        moved = any(explorer.changes(partial(explorer.press, handle, key), explorer.shown) for key in KEYS)
        assert moved, f"{explorer.title()}: slider {number}, {explorer.described(handle)}"
        explorer.press(handle, "HOME")


def choose_from_lists(explorer):
    """Some other item of each list, and back; of several items nothing chosen is everything, but for models."""
    for number, chosen in enumerate(explorer.lists()):
        first = [index for index, option in enumerate(chosen.options) if option.is_selected()]
        others = [index for index in range(len(chosen.options)) if index not in first[:1]][-3:]
        moved = any(explorer.changes(partial(explorer.choose, chosen, index), explorer.shown) for index in others)
        assert moved, f"{explorer.title()}: list {number}, {explorer.described(chosen._el)}"
        if chosen.is_multiple:
            chosen.deselect_all()
        else:
            explorer.choose(chosen, first[0])


def tick_boxes(explorer):
    """Tick each box, and take the tick away."""
    for box in explorer.find("input[type=checkbox]"):
        assert explorer.changes(partial(explorer.tick, box), explorer.shown), explorer.described(box)
        explorer.tick(box)
