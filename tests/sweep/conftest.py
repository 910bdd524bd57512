"""Small projects for tests of sweeps."""

import os
import shutil
import subprocess
import sys

import nbformat
import psutil
import pytest
import yaml

from helpers.files import PROJECT_ROOT

KERNEL = {
    "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}
}
PLACES = 'work_dir: str = "work"  # where work goes\nreports_dir: str = "reports"  # where reports go'


def write_notebook(path, declared, *sources):
    """A notebook whose first cell declares parameters; a source that begins with # and a blank is a heading."""
    cells = [
        nbformat.v4.new_code_cell(
            f'study: str = "demo"  # name\n{declared}\n{PLACES}',
            metadata={"tags": ["parameters"]},
        )
    ]
    cells += [
        nbformat.v4.new_markdown_cell(text)
        if text.startswith("# ")
        else nbformat.v4.new_code_cell(text)
        for text in sources
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), path)


class Project:
    """A copy of the project with other notebooks; its folder has a blank and braces."""

    def __init__(self, root, whole=False):
        self.root = root
        for name in ("helpers", "docs"):
            shutil.copytree(PROJECT_ROOT / name, root / name)
        if not whole:  # the pages' modules take longer to load than all else of a sweep
            (root / "helpers/report/pages.py").write_text(
                "def write(reports, unchanged):\n    (reports / 'index.html').touch()\n"
            )
        for name in ("Snakefile", "Makefile"):
            shutil.copy(PROJECT_ROOT / name, root)
        for name in ("notebooks", "params"):
            (root / name).mkdir()

    def notebook(self, stem, declared, *sources):
        write_notebook(self.root / f"notebooks/{stem}.ipynb", declared, *sources)

    def study(self, name="demo", **content):
        (self.root / f"params/{name}.yaml").write_text(yaml.safe_dump(content))

    def environment(self, **changed):
        return (
            os.environ
            | {"PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1"}
            | changed
        )

    def start(self, *arguments, **changed):
        command = [sys.executable, "-m", "helpers.sweep", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(
            command, cwd=self.root, env=self.environment(**changed), **pipes
        )

    def run(self, *arguments, **changed):
        """Exit code, output and errors of the command."""
        process = self.start(*(arguments or ("demo",)), **changed)
        out, err = process.communicate(timeout=300)
        return process.returncode, out, err


def at_work(root):
    """The living processes that descend from sweeps of a project, whatever became of their parents."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                str(root) in process.environ().get("PYTHONPATH", "")
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "a {project}"
    folder.mkdir()
    return Project(folder)
