"""Small projects for tests of sweeps, and the command that runs a study."""

import contextlib
import json
import os
import shutil
import subprocess
import sys

import nbformat
import psutil
import yaml

from helpers.files import PROJECT_ROOT

KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
PLACES = 'work_dir: str = "work"  # work\nreports_dir: str = "reports"  # reports'
SNAKEMAKE = [sys.executable, "-m", "snakemake", "--cores", "2", "--keep-going"]
SNAKEMAKE += ["--nolock", "--rerun-incomplete", "--quiet", "rules", "progress"]


def sweep(study, root=PROJECT_ROOT, changed=(), vary=(), **variables):
    """A process that runs a study by Snakemake, as `make sweep` does."""
    quoted = {"set": changed, "vary": vary}
    config = [f"{key}={json.dumps(list(quoted[key]))}" for key in quoted]
    return subprocess.Popen(
        [*SNAKEMAKE, "--config", f"study={study}", *config],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run_study(folder, name, content, *changed):
    """Run a study of the project with its folders of work and reports elsewhere."""
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(content))
    places = [f"{place}_dir={folder / place}" for place in ("work", "reports")]
    process = sweep(path, changed=[*places, *changed])
    output = process.communicate()[0]
    assert process.returncode == 0, output
    return folder / "reports" / name


class Project:
    """A copy of the project with other notebooks; its folder has a blank."""

    def __init__(self, root):
        self.root = root
        shutil.copytree(PROJECT_ROOT / "helpers", root / "helpers")
        shutil.copy(PROJECT_ROOT / "Snakefile", root)
        for name in ("notebooks", "params"):
            (root / name).mkdir()

    def notebook(self, stem, declared, *sources):
        """A notebook whose first cell declares parameters; a tuple is a tagged cell."""
        first = f'study: str = "demo"  # name\n{declared}\n{PLACES}'
        cells = []
        for item in ((first, "parameters"), *sources):
            source, *tags = item if isinstance(item, tuple) else (item,)
            cell = nbformat.v4.new_code_cell(source, metadata={"tags": tags})
            cells.append(cell)
        content = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL})
        nbformat.write(content, self.root / f"notebooks/{stem}.ipynb")

    def study(self, name="demo", **content):
        (self.root / f"params/{name}.yaml").write_text(yaml.safe_dump(content))

    def run(self, changed=(), vary=(), study="demo"):
        """Exit code and output of the command."""
        process = sweep(study, self.root, changed, vary)
        output = process.communicate(timeout=1200)[0]
        return process.returncode, output


def at_work(root):
    """The living processes that descend from sweeps of a project."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            of_project = str(root) in process.environ().get("PYTHONPATH", "")
            if of_project and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes
