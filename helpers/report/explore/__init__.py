"""Explorers for JupyterLab: move a control and see picture and numbers move; absent from reports, which nobody can touch.

Each function gives something to be shown as the last line of a cell: a ``Panel`` in JupyterLab, and one line of text where a notebook
is executed without a reader. Every number comes from the functions that make the reports.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from IPython.display import Markdown
from numpy.typing import ArrayLike

from helpers import files
from helpers.data.manifest import MANIFEST
from helpers.files import from_root
from helpers.report.notebook import Report
from helpers.training.config import RunConfig

if TYPE_CHECKING:  # a notebook that nobody can touch does not wait for widgets
    from helpers.report.explore.panel import Panel
    from helpers.scoring.looks import Looks

SWITCH = "WORKBOOK_EXPLORE"  # environment variable: 1 shows explorers whatever runs the notebook, 0 never does


def interactive() -> bool:
    """Whether somebody can touch what is shown: the kernel belongs to a notebook that is open in Jupyter.

    Jupyter's server names the notebook in JPY_SESSION_NAME when it starts a kernel; papermill and nbconvert do not, and a sweep marks
    every kernel of its own, so that one started inside JupyterLab is not taken for a reader. ``SWITCH`` overrides both.

    Raises:
        ValueError: the switch is neither 0 nor 1.
    """
    asked = os.environ.get(SWITCH, "")
    if asked not in ("", "0", "1"):
        raise ValueError(f"{SWITCH} is {asked!r}; it must be 1 (show explorers), 0 (never), or not set")
    return asked == "1" if asked else bool(os.environ.get("JPY_SESSION_NAME")) and not os.environ.get(files.STAGING)


def where_it_looks(models: pd.DataFrame, looks: "Looks") -> "Panel | Markdown":
    """Explorer of images and of where models look on them: sorted and filtered, one of them large, up to four models beside each other.

    Args:
        models: rows of the catalogue; those that ``looks`` holds are offered, in its order.
        looks: see ``scoring.open_looks``.

    Raises:
        ValueError: no model is offered.
    """
    if not interactive():
        return _absent("Where does it look?")
    from helpers.report.explore.look import look_explorer

    return look_explorer(models, looks)


def what_predicts(
    models: pd.DataFrame,
    titles: Mapping[str, str],
    axes: Sequence[str],
    looks: "Looks | None" = None,
    histories: pd.DataFrame | None = None,
    *,
    images: Mapping[str, ArrayLike] | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> "Panel | Markdown":
    """Explorer of any measure against any target, by hyperparameters; a click on a point opens the model, up to four at once.

    Args:
        models: gap, train_accuracy, cell, model_id, the axes and the measures.
        titles: name of each measure's column to its title; columns that ``models`` has not are left out.
        axes: hyperparameters to colour and to filter by, see ``tables.varied_axes``.
        looks: of the study, for confusions and the gallery; without it there are none.
        histories: of the runs, see ``catalogue.histories``; without it there are no training curves.
        images: values of single images of the models, see ``resampling.drawn_with_images``; without them cells alone are drawn.
        resamples: of hyperparameter cells, and of images, behind each interval.
        seed: of the resampling.

    Raises:
        ValueError: no measure or no model to show.
    """
    if not interactive():
        return _absent("What predicts the gap?")
    from helpers.report.explore import gap

    look = where_it_looks(models, looks) if looks is not None else None
    return gap.gap_explorer(models, titles, axes, looks, histories, look, images=images, resamples=resamples, seed=seed)


def explore_published(report: Report, reports_dir: str) -> "Panel | Markdown | None":
    """Explorer of a published report, for a reader without the study's images and runs; None where these are at hand, or in a report.

    Args:
        report: of the notebook, whose ``work`` is the folder of the study.
        reports_dir: that holds the published reports.
    """
    folder = from_root(reports_dir) / report.work.name
    if not interactive() or (report.work / MANIFEST).is_file() or not (folder / "tables/catalogue.csv").is_file():
        return None
    from helpers.report.explore.published import published_explorer

    return published_explorer(folder)


def sweep_monitor(work: Path, runs: Sequence[RunConfig] | None = None) -> "Panel | Markdown":
    """Show the runs of a study as they train, from the files on disk: done, running, diverged, waiting, and the time left.

    Args:
        work: the study's folder.
        runs: all runs that there will be, so that those not begun are counted; only what is on disk when None.
    """
    if not interactive():
        return _absent("How far is the training?")
    from helpers.report.explore import training

    return training.training_explorer(work, runs)


def _absent(question: str) -> Markdown:
    return Markdown(f"*{question}* can be explored by hand: `make lab` opens this notebook in JupyterLab, where this cell shows controls.")
