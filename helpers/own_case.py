"""The case that checkpoints are judged in: a user's folders, or, to try it out, models of a study left out of its calibration."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from helpers import calibration, model_set, own_checkpoints, own_images, scoring
from helpers.calibration import Calibration
from helpers.datasets import StudyData
from helpers.files import from_root
from helpers.own_checkpoints import Candidate, Loaded
from helpers.own_images import OwnImages


class Case(NamedTuple):
    """What is judged, on which images, by which study."""

    candidates: list[Candidate]
    images: OwnImages
    study: Calibration
    truth: pd.Series | None  # true gap by checkpoint; None where it is not known


def of_user(
    study: Calibration,
    checkpoints_path: str,
    images_path: str,
    *,
    architecture: str = "auto",
    boxes_path: str = "",
    class_names: Sequence[str] = (),
    image_size: int = 0,
    images: int = 200,
    seed: int = 0,
) -> Case:
    """Find a user's checkpoints and load the images; paths are relative to the project's root.

    Args:
        study: the calibration.
        checkpoints_path: see ``own_checkpoints.find``.
        images_path: see ``own_images.load``, as for the rest.
        architecture: see ``own_checkpoints.find``.
        boxes_path: "" for none of its own.
        class_names: in the order of the outputs; empty takes the sorted folders.
        image_size: 0 takes that of the files.
        images: to take at most.
        seed: of the choice of images.

    Raises:
        ValueError: there is no path of images, or something in a folder cannot be used.
        FileNotFoundError: nothing is at a path.
    """
    if not images_path:
        raise ValueError("checkpoints_path is set and images_path is empty; set it to the folder or .zip of the training images")
    path, boxes = from_root(images_path), from_root(boxes_path) if boxes_path else None
    size = image_size or own_images.natural_size(path)
    loaded = own_images.load(path, image_size=size, most=images, boxes=boxes, class_names=class_names, seed=seed)
    return Case(own_checkpoints.find(from_root(checkpoints_path), architecture), loaded, study, None)


def of_study(study: Calibration, work: Path, catalogue: pd.DataFrame, data: StudyData, *, cells: int, images: int, seed: int = 0) -> Case:
    """Leave cells of a study out of its calibration, and take their models as if they were a user's.

    Args:
        study: the calibration, of the same study.
        work: the study's folder, with its runs.
        catalogue: of the study, with ``left_out``.
        data: of the study.
        cells: hyperparameter cells to leave out, by chance; never more than half.
        images: to score on at most, of those that all these models were fitted to.
        seed: of the choice of cells and images.

    Raises:
        ValueError: the study has fewer than 2 cells in its calibration.
    """
    known = sorted(set(study.models["cell"]) & set(catalogue["cell"]))
    if len(known) < 2:
        raise ValueError(
            f"the study {study.study!r} has {len(known)} cells with scores; leaving some out needs 2: run 02 to 04 with more runs"
        )
    generator = np.random.default_rng(seed)
    chosen = generator.choice(known, size=min(max(1, cells), len(known) // 2), replace=False)
    models = catalogue[catalogue["cell"].isin(chosen) & catalogue["model_id"].isin(study.models["model_id"])]
    candidates = [Candidate(row["model_id"], partial(_model, work, row, len(data.classes))) for _, row in models.iterrows()]
    shared = scoring.common_images(models, data, images, seed)
    names = tuple(data.classes["class_id"])
    sides = (data.train.images.shape[-1],) * len(shared)
    faults = pd.DataFrame(columns=["class_id", "split", "name", "fault", "detail"])
    annotated = torch.ones(len(shared), dtype=torch.bool)
    given = (shared.images, shared.boxes, shared.names, names, shared.labels, "", annotated, len(data.train), sides, faults)
    truth = models.set_index("model_id")["gap"]
    return Case(candidates, OwnImages(*given), calibration.without(study, list(chosen)), truth)


def _model(work: Path, row: pd.Series, classes: int) -> Loaded:
    try:
        return Loaded(model_set.load_model(work, row, classes), row["architecture"], classes)
    except FileNotFoundError as fault:
        raise ValueError(str(fault)) from fault
