"""How long one waits: for --help, for the check of a study, for imports, for the images, and for the first figure of a notebook."""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import interleaved
from helpers.files import PROJECT_ROOT
from helpers.studies import load as load_study

CHECK = "from helpers.studies import load; load({!r})"
LOAD = (
    "import json, sys; from pathlib import Path; from helpers.data import images; given = json.loads(sys.argv[1]); \
images.load_study_data(**given | {'cache_dir': Path(given['cache_dir'])})"
)
IMAGES, FIGURE = "01_data_subset", "03_cam_scoring"
DATA = (
    "data_source",
    "data_path",
    "class_ids",
    "image_size",
    "images_per_class",
    "test_images_per_class",
    "data_seed",
)
DATA += ("minimum_images_per_class",)


def python(*arguments: str) -> None:
    """Run Python to its end, quietly."""
    subprocess.run(
        [sys.executable, *arguments],
        cwd=PROJECT_ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def parameters_of(study: Path, stem: str) -> dict[str, Any]:
    """Read what a study gives to a notebook."""
    return next(
        item.parameters
        for item in load_study(str(study)).executions
        if item.name == stem
    )


def imports_of(stem: str) -> str:
    """The cell of a notebook that imports, which follows its parameters."""
    cells = json.loads((PROJECT_ROOT / "notebooks" / f"{stem}.ipynb").read_text())[
        "cells"
    ]
    return next(
        text for cell in cells if "\nfrom helpers" in (text := "".join(cell["source"]))
    )


def load(arguments: dict[str, Any], cold: bool) -> None:
    """Load the images of a study in a fresh process: from their source, or from the cache in the folder that is given."""
    if cold:
        with tempfile.TemporaryDirectory() as folder:
            python("-c", LOAD, json.dumps(arguments | {"cache_dir": folder}))
    else:
        python("-c", LOAD, json.dumps(arguments))


def first_figure(study: Path, work: Path) -> None:
    """Run a notebook cell by cell from the start of its kernel to its first figure, on a copy of a study whose models are there."""
    import nbclient
    import nbformat

    notebook = nbformat.read(
        PROJECT_ROOT / "notebooks" / f"{FIGURE}.ipynb", as_version=4
    )
    with tempfile.TemporaryDirectory() as folder:
        given = parameters_of(study, FIGURE) | {
            "work_dir": str(work),
            "reports_dir": folder,
        }
        tagged = next(
            cell
            for cell in notebook.cells
            if "parameters" in cell.metadata.get("tags", [])
        )
        tagged.source = "\n".join(
            f"{name} = {value!r}" for name, value in given.items()
        )
        # The kernel is killed, because its end is not part of what is timed.
        options = {
            "resources": {"metadata": {"path": str(PROJECT_ROOT)}},
            "shutdown_kernel": "immediate",
        }
        client = nbclient.NotebookClient(notebook, timeout=600, **options)
        with client.setup_kernel():
            for number, cell in enumerate(notebook.cells):
                client.execute_cell(cell, number)
                if any(
                    "image/png" in output.get("data", {})
                    for output in cell.get("outputs", [])
                ):
                    return
    raise RuntimeError(f"{FIGURE} drew no figure")


def ways_of(study: Path, warm: Path) -> dict[str, Callable[[], None]]:
    """Everything that is timed, by name."""
    data = parameters_of(study, IMAGES)
    arguments = {name: data[name] for name in DATA} | {"cache_dir": str(warm)}
    load(arguments, cold=False)  # fills the cache
    return {
        "python -c pass (the limit)": partial(python, "-c", "pass"),
        "check of the study's parameters": partial(
            python, "-c", CHECK.format(str(study))
        ),
        "import torch": partial(python, "-c", "import torch"),
        "import helpers.training.run": partial(
            python, "-c", "import helpers.training.run"
        ),
        "import of what 03 imports": partial(python, "-c", imports_of(FIGURE)),
        "images, cold: decoded or rendered": partial(load, arguments, True),
        "images, warm: from the cache": partial(load, arguments, False),
    }


def main() -> None:
    """Time everything in turn; the notebook only where the study's models are there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, default=Path("params/demo.yaml"))
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    interleaved.print_machine("nbclient", "papermill")
    with tempfile.TemporaryDirectory() as warm:
        ways = ways_of(given.study, Path(warm))
        work = (
            PROJECT_ROOT
            / parameters_of(given.study, FIGURE)["work_dir"]
            / given.study.stem
        )
        if (work / "catalogue.parquet").is_file():
            shutil.copytree(work, Path(warm) / "work" / given.study.stem)
            ways[f"{FIGURE}: kernel start to first figure"] = partial(
                first_figure, given.study, Path(warm) / "work"
            )
        else:
            print(
                f"- {work} holds no models, so the first figure of {FIGURE} is left out; run the study first"
            )
        timings = interleaved.rounds(ways, given.rounds)
    grouped = timings.groupby("way", sort=False)[["wall", "cpu"]]
    table = (
        grouped.median()
        .round(2)
        .join(grouped.min().round(2).add_suffix(" (lowest)"))
        .reset_index()
    )
    interleaved.show(f"Seconds, {given.study.stem}, {given.rounds} rounds", table)


if __name__ == "__main__":
    main()
