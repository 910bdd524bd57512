"""Pictures of JupyterLab with an explorer, for the README: ``python tests/browser/screens.py [STUDY]`` writes ``docs/screens/*.png``.

The study must have been run, so that its model set lies in ``work/<study>``; it is copied, and nothing of it changes.
"""

import io
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook
from PIL import Image

from tests.browser import browsing

sys.path.insert(0, str(browsing.PROJECT_ROOT))
from helpers.files import complete_or_absent
from helpers.sweep.study_file import load_study

FOLDER = browsing.PROJECT_ROOT / "docs/screens"
SCREENS = {"03_cam_scoring": "where-it-looks", "04_baselines": "what-predicts"}
LARGEST = 300_000  # bytes


def main(study: str = "demo") -> int:
    """Take a picture of the first explorer of each notebook that the study runs."""
    if lacking := browsing.missing():
        print(lacking, file=sys.stderr)
        return 1
    executions = load_study(browsing.PROJECT_ROOT / f"params/{study}.yaml", browsing.PROJECT_ROOT / "notebooks")
    wanted = {execution.notebook.stem: execution for execution in executions if execution.notebook.stem in SCREENS and not execution.part}
    with tempfile.TemporaryDirectory() as place:
        folder = browsing.copy_project(Path(place))
        shutil.copytree(browsing.PROJECT_ROOT / "work" / study, folder / "work" / study, ignore=shutil.ignore_patterns("claims"))
        if (browsing.PROJECT_ROOT / "data").is_dir():
            (folder / "data").symlink_to(browsing.PROJECT_ROOT / "data")
        for stem, execution in wanted.items():
            given = parameterize_notebook(load_notebook_node(str(folder / "notebooks" / f"{stem}.ipynb")), execution.parameters)
            nbformat.write(given, folder / "notebooks" / f"{stem}.ipynb")
        with browsing.jupyterlab(folder) as lab, browsing.chromium(1280, 1080) as browser:
            for stem in wanted:
                _take(browsing.Notebook(browser, lab(f"notebooks/{stem}.ipynb")), FOLDER / f"{SCREENS[stem]}.png")
    return 0


def _take(notebook: browsing.Notebook, path: Path) -> None:
    notebook.run_all()
    if faults := notebook.faults():
        raise RuntimeError(f"{path.stem}: {faults[0]}")
    browsing.until(notebook.explorers, 60, f"{path.stem}: no explorer is shown")
    explorer = notebook.explorers()[0]
    notebook.browser.execute_script("window.jupyterapp.shell.collapseLeft()")
    notebook.browser.execute_script("arguments[0].scrollIntoView({block: 'start'})", explorer.box)
    browsing.until(explorer.seen, 10, "nothing is drawn")
    screen = Image.open(io.BytesIO(notebook.browser.get_screenshot_as_png())).convert("RGB")
    buffer = io.BytesIO()
    screen.quantize(256, dither=Image.Dither.NONE).save(buffer, "png", optimize=True)
    if buffer.tell() > LARGEST:
        raise RuntimeError(f"{path.name} has {buffer.tell():,} bytes, and may have {LARGEST:,}; make the window smaller")
    with complete_or_absent(path) as temporary:
        temporary.write_bytes(buffer.getvalue())
    notebook.close()
    print(f"{path.relative_to(browsing.PROJECT_ROOT)}: {buffer.tell():,} bytes")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
