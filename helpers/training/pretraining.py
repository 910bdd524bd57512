"""Pretrained starts: torchvision's, of files, or of a pretraining on other classes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from helpers.data.images import StudyData, choose_images, image_parameters
from helpers.files import write_tensors
from helpers.networks.weights import read_weights, weights_digest
from helpers.training import catalogue
from helpers.training.config import RunConfig, run_id

MADE = "made"
FOLDER = "pretraining"  # below the study's, a model set with images of its own


class Weights(NamedTuple):
    """Pretrained weights of one architecture."""

    source: str  # what ``weights.read_weights`` reads; "" where they are not here
    identity: str  # of the weights wherever they lie: a part of the ids of runs


def weights_by_name(
    pretrained_weights: str, architectures: Sequence[str]
) -> dict[str, Weights]:
    """Weights that are there, read once, so that a missing file stops the study early.

    Args:
        pretrained_weights: a name or a path, see ``weights.read_weights``.
        architectures: torchvision's names.

    Returns:
        By architecture.
    """
    weights = {}
    for name in architectures:
        identity = weights_digest(read_weights(pretrained_weights, name))
        weights[name] = Weights(pretrained_weights, identity)
    return weights


def choose_pretraining_images(
    work: Path, study_classes: Sequence[str], **changes: Any
) -> StudyData:
    """Choose images to pretrain on, as those of the study but for some changes.

    Args:
        work: the folder of work of the study.
        study_classes: of the study.
        changes: of the parameters of notebook 01.

    Raises:
        ValueError: where a class is one of the study's, which would leak into the gap.
    """
    parameters = image_parameters(work) | changes
    data = choose_images(work / FOLDER, **parameters)
    shared = sorted(set(study_classes) & set(data.classes["class_id"]))
    if shared:
        raise ValueError(
            f"pretraining and study share the classes {', '.join(shared[:5])}; set "
            "pretrain_class_ids to other classes"
        )
    return data


def recipes(
    architectures: Sequence[str], data: str, fixed: Mapping[str, Any]
) -> list[RunConfig]:
    """One pretraining run per architecture.

    Args:
        architectures: torchvision's names.
        data: fingerprint of the images.
        fixed: hyperparameters that the study fixes.
    """
    recipe = {
        "batch_size": 64,
        "learning_rate": 1e-3,
        "optimizer": "adam",
        "weight_decay": 5e-4,
        "augmentation": True,
        "pretrained": False,
        **fixed,
        "data": data,
    }
    return [RunConfig(**(recipe | {"architecture": name})) for name in architectures]


def weights_of_runs(runs: Sequence[RunConfig], work: Path) -> dict[str, Weights]:
    """Weights that pretraining runs left.

    Their identity is the recipe, so that several machines fill one model set.

    Args:
        runs: below ``work/pretraining``.
        work: the folder of work of the study.

    Returns:
        By architecture.

    Raises:
        RuntimeError: where a run left none.
    """
    weights = {}
    for run in runs:
        path = catalogue.snapshot_path(catalogue.run_folder(work / FOLDER, run), "stop")
        if not path.is_file():
            raise RuntimeError(
                f"pretraining {run} left no weights (diverged?); lower its learning "
                "rate or check its images"
            )
        weights[run.architecture] = Weights(str(path), run_id(run))
    return weights


def weights_of_records(runs: Sequence[RunConfig], work: Path) -> dict[str, Weights]:
    """Weights made elsewhere that no run needs any more, as its records name them.

    Args:
        runs: of the study.
        work: its folder of work.

    Returns:
        By architecture, without source; none where a start was made here, or where a
        run that starts from one is not complete.
    """
    if (work / FOLDER / "runs").is_dir():
        return {}
    table = catalogue.read_catalogue(work)
    table = table[table["weights"] != ""]
    starts = {row.architecture: Weights("", row.weights) for row in table.itertuples()}
    started = []
    for run in runs:
        if run.pretrained and run.architecture not in starts:
            return {}
        if run.pretrained:
            started.append(replace(run, weights=starts[run.architecture].identity))
    return {} if catalogue.missing(work, started) else starts


def save_starts(weights: Mapping[str, Weights], work: Path) -> None:
    """Copy the weights that runs start from into the study, once.

    Some measures need the distance from the start.

    Args:
        weights: by architecture; those without source are left out.
        work: the folder of work of the study.
    """
    for architecture, start in weights.items():
        path = catalogue.start_path(work, start.identity)
        if start.source and not path.is_file():
            write_tensors(path, read_weights(start.source, architecture))
