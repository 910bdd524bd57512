"""Pretrained weights: torchvision's, of a file, or of runs trained on other classes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from helpers.data.images import StudyData, choose_images, manifest_of
from helpers.files import write_tensors
from helpers.networks.weights import read_weights, weights_digest
from helpers.training import catalogue
from helpers.training.config import RunConfig

MADE = "made"  # value of pretrained_weights for weights of pretraining runs


def weights_by_name(
    pretrained_weights: str, architectures: Sequence[str], work: Path
) -> dict[str, str]:
    """Read existing weights once, so that a missing file stops a study at its start.

    Args:
        pretrained_weights: a name or a path, see ``weights.read_weights``.
        architectures: torchvision's names.
        work: the folder of work of the study, which keeps them.

    Returns:
        Their identity by architecture: a digest of their values.
    """
    identities = {}
    for name in architectures:
        state = read_weights(pretrained_weights, name)
        identities[name] = weights_digest(state)
        write_tensors(catalogue.start_path(work, identities[name]), state)
    return identities


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
    parameters = manifest_of(work)["parameters"] | changes
    data = choose_images(work / catalogue.PRETRAINING, **parameters)
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

    The identity of its weights is its id. So the ids of runs that start from them are
    the same on all machines, even if each machine pretrains anew.

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
    }
    return [RunConfig(name, data=data, **recipe) for name in architectures]


def weights_of_records(runs: Sequence[RunConfig], work: Path) -> dict[str, str]:
    """Name the weights of a study whose runs were all trained on another machine.

    No run needs the weights any more; their identity is in the study's records.

    Args:
        runs: runs of the study.
        work: its folder of work.

    Returns:
        Their identity by architecture. Empty if a pretrained run is not complete.
    """
    table = catalogue.read_catalogue(work).query("weights != ''")
    identities = dict(zip(table["architecture"], table["weights"], strict=True))
    pretrained = [
        replace(run, weights=identities.get(run.architecture, ""))
        for run in runs
        if run.pretrained
    ]
    return {} if catalogue.missing(work, pretrained) else identities
