"""Pretrained weights: torchvision's, of a file, or of runs trained on other classes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from helpers.data.images import StudyData, choose_images, image_parameters
from helpers.files import write_tensors
from helpers.networks.weights import read_weights, weights_digest
from helpers.training import catalogue
from helpers.training.config import RunConfig, run_id

MADE = "made"  # value of pretrained_weights for weights of pretraining runs
FOLDER = "pretraining"  # in the folder of work: pretraining runs and their images


class Weights(NamedTuple):
    """Pretrained weights of one architecture."""

    source: str  # name or path for ``weights.read_weights``; "" if they are not here
    identity: str  # the same on all machines; it decides the ids of runs


def weights_by_name(
    pretrained_weights: str, architectures: Sequence[str]
) -> dict[str, Weights]:
    """Read existing weights once, so that a missing file stops a study at its start.

    Args:
        pretrained_weights: a name or a path, see ``weights.read_weights``.
        architectures: torchvision's names.

    Returns:
        Weights by architecture; their identity is a digest of their values.
    """
    return {
        name: Weights(
            pretrained_weights, weights_digest(read_weights(pretrained_weights, name))
        )
        for name in architectures
    }


def choose_pretraining_images(
    work: Path, study_classes: Sequence[str], **changes: Any
) -> StudyData:
    """Choose the images of pretraining by the study's parameters with some changes.

    Args:
        work: the folder of work of the study.
        study_classes: ids of the classes of the study.
        changes: parameters of notebook 01 with other values than in the study.

    Raises:
        ValueError: if a class is one of the study's: test images could then have been
            learnt in pretraining.
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
    """Configure one pretraining run per architecture.

    Args:
        architectures: torchvision's names.
        data: fingerprint of the images.
        fixed: values of hyperparameters that the study does not vary.
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
    """Find the weights of complete pretraining runs.

    Their identity is the id of the pretraining run. So the ids of runs that start from
    them are the same on all machines, even if each machine pretrains anew.

    Args:
        runs: in the folder ``pretraining`` of the study.
        work: the folder of work of the study.

    Returns:
        Weights by architecture.

    Raises:
        RuntimeError: if a run has no weights.
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
    """Name the weights of a study whose runs were all trained on another machine.

    No run needs the weights any more; their identity is in the study's records.

    Args:
        runs: runs of the study.
        work: its folder of work.

    Returns:
        Weights without source by architecture. Empty if this machine pretrained, or if
        a pretrained run is not complete.
    """
    table = catalogue.read_catalogue(work).query("weights != ''")
    identities = dict(zip(table["architecture"], table["weights"], strict=True))
    pretrained = [
        replace(run, weights=identities.get(run.architecture, ""))
        for run in runs
        if run.pretrained
    ]
    if (work / FOLDER / "runs").is_dir() or catalogue.missing(work, pretrained):
        return {}
    return {name: Weights("", identity) for name, identity in identities.items()}


def save_starts(weights: Mapping[str, Weights], work: Path) -> None:
    """Copy pretrained weights into the study, unless it has them.

    Some measures need the distance of a network from its start.

    Args:
        weights: by architecture; those without source are skipped.
        work: the folder of work of the study.
    """
    for architecture, start in weights.items():
        path = catalogue.start_path(work, start.identity)
        if start.source and not path.is_file():
            write_tensors(path, read_weights(start.source, architecture))
