"""What is judged: a user's checkpoints on the user's images, or models of a study as if they were a user's."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from helpers.data.images import ImageSet, StudyData
from helpers.files import from_root
from helpers.scoring import look
from helpers.select import load
from helpers.select.calibration import Calibration, differences, without
from helpers.select.images import OwnImages, box_source, load_images, load_labelled, load_target, natural_size
from helpers.select.load import Candidate, Loaded
from helpers.training.catalogue import Model, load_model, models_of


class Case(NamedTuple):
    """What is judged, on which images, by which study."""

    candidates: list[Candidate]
    images: OwnImages
    study: Calibration
    truth: pd.Series | None  # true gap by checkpoint; None where it is not known
    target: OwnImages | None = None  # images without labels of where the networks will work
    labelled: OwnImages | None = None  # held-out images with labels
    targets: Calibration | None = None  # the study on its targets, see ``read_targets``
    target_truth: pd.Series | None = None  # true accuracy on the target by checkpoint

    @property
    def met(self) -> dict[str, OwnImages | None]:
        """Images beside those of the training, by what they are."""
        return {"target": self.target, "labelled": self.labelled}


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
    target_path: str = "",
    labelled_path: str = "",
    targets: Calibration | None = None,
    seed: int = 0,
) -> Case:
    """Find a user's checkpoints and load the images; paths are relative to the project's root.

    Args:
        study: the calibration.
        checkpoints_path: see ``load.find``.
        images_path: see ``images.load_images``, as for the rest.
        architecture: see ``load.find``.
        boxes_path: "" for none of its own.
        class_names: in the order of the outputs; empty takes the sorted folders.
        image_size: 0 takes that of the files.
        images: to take at most.
        target_path: see ``images.load_target``; "" for none.
        labelled_path: see ``images.load_labelled``; "" for none.
        targets: the study on its targets; a target needs it.
        seed: of the choice of images.

    Raises:
        ValueError: there is no path of images, or something in a folder cannot be used.
        FileNotFoundError: nothing is at a path.
    """
    if not images_path:
        raise ValueError("checkpoints_path is set and images_path is empty; set it to the folder or .zip of the training images")
    path, boxes = from_root(images_path), from_root(boxes_path) if boxes_path else None
    size = image_size or natural_size(path)
    loaded = load_images(path, image_size=size, most=images, boxes=boxes, class_names=class_names, seed=seed)
    given = {"training": loaded, "training_path": path, "seed": seed}
    if target_path and targets is None:
        raise ValueError(f"the study {study.study!r} has no target_scores.csv, so it tells nothing of a target; run its notebook 04 again")
    target = load_target(from_root(target_path), **given) if target_path else None
    labelled = load_labelled(from_root(labelled_path), **given) if labelled_path else None
    candidates = load.find(from_root(checkpoints_path), architecture)
    return Case(candidates, loaded, study, None, target=target, labelled=labelled, targets=targets)


def case_of_study(
    study: Calibration,
    work: Path,
    catalogue: pd.DataFrame,
    data: StudyData,
    *,
    cells: int,
    images: int,
    targets: Calibration | None = None,
    seed: int = 0,
) -> Case:
    """Leave cells of a study out of its calibration, and take their models as if they were a user's.

    Args:
        study: the calibration, of the same study.
        work: the study's folder, with its runs.
        catalogue: of the study, with ``left_out``.
        data: of the study.
        cells: hyperparameter cells to leave out, by chance; never more than half.
        images: to score on at most, of those that all these models were fitted to.
        targets: the study on its targets; the test images then are the target.
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
    targets = without(targets, list(chosen)) if targets is not None else None
    return case_of_models(without(study, list(chosen)), work, models, data, images=images, targets=targets, seed=seed)


def case_of_models(
    study: Calibration,
    work: Path,
    models: pd.DataFrame,
    data: StudyData,
    *,
    images: int,
    targets: Calibration | None = None,
    seed: int = 0,
) -> Case:
    """Take models that a study does not know, of another study or left out of it, as if they were a user's; the truth is known of them.

    Args:
        study: the calibration.
        work: the folder with their runs.
        models: rows of a catalogue, those to be judged; with ``left_out``, only what is not left out.
        data: that they were trained on.
        images: to score on at most, of those that all these models were fitted to.
        targets: the calibration on its targets; the test images of ``data`` then are the target.
        seed: of the choice of images.

    Raises:
        ValueError: there is no model, or the calibration knows some.
    """
    models = models[models["left_out"].eq("")] if "left_out" in models else models
    if not len(models):
        raise ValueError(f"no model of {work} enters an analysis, so none can be judged; lower minimum_train_accuracy or train more runs")
    if known := sorted(set(models["model_id"]) & set(study.models["model_id"])):
        raise ValueError(
            f"{len(known)} of {len(models)} models of {work} calibrate {study.study!r} themselves, first {known[0]}, so it cannot judge "
            "them; name another study, or none to leave cells out"
        )
    candidates = [Candidate(model.model_id, partial(_model, work, model, len(data.classes))) for model in models_of(models)]
    shared = look.common_images(models, data, images, seed)
    own = _as_own(shared, tuple(data.classes["class_id"]), shared.labels, len(data.train))
    truth = models.set_index("model_id")
    if targets is None:
        return Case(candidates, own, study, truth["gap"])
    met = {"target": _as_own(data.test, (), None, len(data.test)), "targets": targets}
    return Case(candidates, own, study, truth["gap"], **met, target_truth=truth["test_accuracy"])


def _as_own(images: ImageSet, names: tuple[str, ...], labels: Tensor | None, found: int) -> OwnImages:
    """Images of a study as if they were a user's; without labels where these are None."""
    sides, annotated = (images.images.shape[-1],) * len(images), torch.ones(len(images), dtype=torch.bool)
    faults = pd.DataFrame(columns=["class_id", "split", "name", "fault", "detail"])
    why = "" if labels is not None else "images of a target have no labels"
    return OwnImages(images.images, images.boxes, images.names, names, labels, why, annotated, found, sides, faults)


def _model(work: Path, model: Model, classes: int) -> Loaded:
    try:
        return Loaded(load_model(work, model, classes), model.form, classes)
    except FileNotFoundError as fault:
        raise ValueError(str(fault)) from fault


def differences_of(case: Case, facts: pd.DataFrame) -> pd.DataFrame:
    """``differences`` of a case, from what is known of its checkpoints (``scores.FACTS``) and images."""
    good, images = facts[facts["fault"] == ""], case.images
    given = {"architectures": good["architecture"].tolist(), "outputs": good["outputs"].tolist(), "boxes": box_source(images)}
    given |= {"image_size": images.images.shape[-1], "images": len(images), "labelled": images.known_labels is not None}
    return differences(case.study, **given, widths=good["width"].tolist(), stems=good["stem"].tolist())
