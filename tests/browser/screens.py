"""Pictures of JupyterLab with an explorer, for README and docs: ``python -m tests.browser.screens [STUDY [WORK]]`` writes them.

The study must have been run, so that its model set lies in ``WORK/STUDY``; it is copied, and nothing of it changes.
"""

import io
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import nbformat
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook
from PIL import Image

from helpers.files import complete_or_absent
from helpers.sweep.study import load_study
from tests.browser import browsing

FOLDER = browsing.PROJECT_ROOT / "docs/screens"
SCREENS = {"03_cam_scoring": ("where-it-looks", "Where does it look?"), "04_baselines": ("what-predicts", "What predicts the gap?")}
ORDER, THRESHOLD = "disagreement of the maps, largest first", 0.5  # of a gallery, so that its contours can be told apart
LARGEST = 300_000  # bytes


def main(study: str = "demo", work: str = "work") -> int:
    """Take a picture of an explorer of each notebook that the study runs."""
    if lacking := browsing.missing():
        print(lacking, file=sys.stderr)
        return 1
    executions = load_study(study).executions
    wanted = {execution.notebook: execution for execution in executions if execution.notebook in SCREENS and not execution.part}
    with tempfile.TemporaryDirectory() as place:
        folder = browsing.copy_project(Path(place))
        shutil.copytree(browsing.PROJECT_ROOT / work / study, folder / "work" / study, ignore=shutil.ignore_patterns("claims"))
        if (browsing.PROJECT_ROOT / "data").is_dir():
            (folder / "data").symlink_to(browsing.PROJECT_ROOT / "data")
        for stem, execution in wanted.items():
            given = parameterize_notebook(load_notebook_node(str(folder / "notebooks" / f"{stem}.ipynb")), execution.parameters)
            nbformat.write(given, folder / "notebooks" / f"{stem}.ipynb")
        with browsing.jupyterlab(folder) as lab, browsing.chromium(1280, 1080) as browser:
            for stem in wanted:
                name, title = SCREENS[stem]
                _take(browsing.Notebook(browser, lab(f"notebooks/{stem}.ipynb")), title, FOLDER / f"{name}.png")
    return 0


def _take(notebook: browsing.Notebook, title: str, path: Path) -> None:
    notebook.run_all()
    if faults := notebook.faults():
        raise RuntimeError(f"{path.stem}: {faults[0]}")
    named = browsing.until(
        lambda: [item for item in notebook.explorers() if item.title() == title], 60, f"{path.stem}: no explorer is shown"
    )
    explorer = named[0]
    notebook.browser.execute_script("window.jupyterapp.shell.collapseLeft()")
    for place in range(min(2, len(explorer.points()))):
        _act(explorer, lambda place=place: explorer.click(explorer.points()[place]), explorer.reading)
    for chosen in explorer.lists():
        if ORDER in (names := [option.text for option in chosen.options]):
            _act(explorer, lambda chosen=chosen, names=names: explorer.choose(chosen, names.index(ORDER)), explorer.shown)
            for _ in range(50):
                if f"Contours: {THRESHOLD:g} of" in explorer.reading():
                    break
                _act(explorer, lambda: explorer.press(explorer.sliders()[0], "ARROW_RIGHT"), explorer.reading)
    notebook.browser.execute_script("arguments[0].scrollIntoView({block: 'start'})", explorer.box)
    screen = Image.open(io.BytesIO(notebook.browser.get_screenshot_as_png())).convert("RGB")
    buffer = io.BytesIO()
    screen.quantize(256, dither=Image.Dither.NONE).save(buffer, "png", optimize=True)
    if buffer.tell() > LARGEST:
        raise RuntimeError(f"{path.name} has {buffer.tell():,} bytes, and may have {LARGEST:,}; make the window smaller")
    with complete_or_absent(path) as temporary:
        temporary.write_bytes(buffer.getvalue())
    notebook.close()
    print(f"{path.relative_to(browsing.PROJECT_ROOT)}: {buffer.tell():,} bytes")


def _act(explorer: browsing.Explorer, act: Callable[[], None], look: Callable[[], str]) -> None:
    if not explorer.changes(act, look):
        raise RuntimeError(f"{explorer.title()} does not answer")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
