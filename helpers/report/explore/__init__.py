"""Explorers for JupyterLab: move a control and see picture and numbers move; absent from reports, which nobody can touch.

Each function gives something to be shown as the last line of a cell: a ``Panel`` in JupyterLab, and one line of text where a notebook
is executed without a reader. Every number comes from the functions that make the reports.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import torch
from IPython.display import Markdown

from helpers import locks
from helpers.data.dataset import StudyData
from helpers.report.explore.panel import Panel
from helpers.training.config import RunConfig

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
    return asked == "1" if asked else bool(os.environ.get("JPY_SESSION_NAME")) and not os.environ.get(locks.MARK)


def where_it_looks(
    work: Path,
    models: pd.DataFrame,
    data: StudyData,
    *,
    method: str = "grad_cam",
    threshold: float = 0.1,
    device: torch.device | str = "cpu",
) -> Panel | Markdown:
    """Show where two models look on an image: image, box, map, mask, rectangle and IoU, by CAM method, layer, class and threshold.

    Args:
        work: the study's folder.
        models: rows of the catalogue; those with a gap are offered, sorted by it. Where there is a column iou, it is shown too.
        data: the study's images; the training images are offered, because they have boxes.
        method: that is chosen first, one of ``gradient.GRADIENT_METHODS``; "cam" stands for Grad-CAM, its equal at the last stage.
        threshold: of the map, that is chosen first, in (0, 1).
        device: where to compute.

    Raises:
        ValueError: no model has a gap, or an unknown method or a threshold outside (0, 1).
    """
    if not interactive():
        return _absent("Where does it look?")
    from helpers.report.explore.look import look_explorer

    return look_explorer(work, models, data, method=method, threshold=threshold, device=device)


def what_predicts(
    models: pd.DataFrame,
    titles: Mapping[str, str],
    axes: Sequence[str],
    look: Panel | Markdown | None = None,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> Panel | Markdown:
    """Show a measure against the gap, coloured and filtered by hyperparameters, with fit, correlations and their intervals.

    Args:
        models: gap, train_accuracy, cell, model_id, the axes and the measures.
        titles: name of each measure's column to its title; columns that ``models`` has not are left out.
        axes: hyperparameters to colour and to filter by, see ``tables.varied_axes``.
        look: an explorer of ``where_it_looks``, which is shown below and opens the model that is picked here.
        resamples: of hyperparameter cells behind each interval.
        seed: of the resampling.

    Raises:
        ValueError: no measure or no model to show.
    """
    if not interactive():
        return _absent("What predicts the gap?")
    from helpers.report.explore import gap

    return gap.gap_explorer(models, titles, axes, look if isinstance(look, Panel) else None, resamples=resamples, seed=seed)


def sweep_monitor(work: Path, runs: Sequence[RunConfig] | None = None) -> Panel | Markdown:
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
