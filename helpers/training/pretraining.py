"""Where pretrained starts come from: torchvision's names, files, or a pretraining made on the spot on other classes."""

from collections.abc import Mapping, Sequence
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

    source: str  # what ``weights.read_weights`` reads
    identity: str  # what they are, wherever they lie: it enters the ids of the runs that start from them


def found(pretrained_weights: str, architectures: Sequence[str]) -> dict[str, Weights]:
    """The weights that a name or a path stands for, read once, so that a missing file stops the study before it trains."""
    return {
        name: Weights(
            pretrained_weights, weights_digest(read_weights(pretrained_weights, name))
        )
        for name in architectures
    }


def choose_pretraining_images(
    work: Path, study_classes: Sequence[str], **changes: Any
) -> StudyData:
    """Images to pretrain on, chosen as the study's in all but ``changes``; its classes are refused, since they would leak into the gap."""
    data = choose_images(work / FOLDER, **image_parameters(work) | changes)
    if shared := sorted(set(study_classes) & set(data.classes["class_id"])):
        raise ValueError(
            f"pretraining and study share the classes {', '.join(shared[:5])}; set pretrain_class_ids to other classes"
        )
    return data


def recipes(
    architectures: Sequence[str], data: str, fixed: Mapping[str, Any]
) -> list[RunConfig]:
    """One pretraining run per architecture, on images of the fingerprint ``data``; ``fixed`` is what the study fixes."""
    recipe = {
        "batch_size": 64,
        "learning_rate": 1e-3,
        "optimizer": "adam",
        "weight_decay": 5e-4,
        "augmentation": True,
        "pretrained": False,
    }
    return [
        RunConfig(**{**recipe, **fixed, "architecture": name, "data": data})
        for name in architectures
    ]


def made(runs: Sequence[RunConfig], work: Path) -> dict[str, Weights]:
    """The weights that runs below ``work/pretraining`` left. Their identity is the recipe, so that several machines fill one model set."""
    weights = {}
    for run in runs:
        path = catalogue.snapshot_path(catalogue.run_folder(work / FOLDER, run), "stop")
        if not path.is_file():
            raise RuntimeError(
                f"pretraining {run} left no weights (diverged?); lower its learning rate or check its images"
            )
        weights[run.architecture] = Weights(str(path), run_id(run))
    return weights


def keep_starts(weights: Mapping[str, Weights], work: Path) -> None:
    """Copy the weights that runs start from into the study, once: some measures need the distance from the start."""
    for architecture, start in weights.items():
        path = catalogue.start_path(work, start.identity)
        if not path.is_file():
            write_tensors(path, read_weights(start.source, architecture))
