"""Networks that are trained on the seen classes by the rules of notebook 02.

They have any width and start from random weights, "resnet18 w0.25", or are published
ones that are fine-tuned, "resnet18 tuned".
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm

from helpers.data.images import StudyData, images_of_study
from helpers.files import json_digest
from helpers.kappa.networks import backbone, published, to_be_tuned
from helpers.networks import resnet
from helpers.scores.models import Model
from helpers.training import catalogue, pool
from helpers.training.config import RunConfig
from helpers.training.run import train_run

# Folder of these networks in that of the study, with images of the seen classes alone.
FOLDER = "made"
_SMALL = 64  # pixels
_TUNED = " tuned"  # ends the name of a network that is fine-tuned
_TUNING_RATE = 1e-4  # learning rate of fine-tuning
# Sandler et al. 2018, Table 2: expansion, channels, layers and stride of each stage.
# The second stage has a stride of 2 there, for images of 224 px; with 1 the last map of
# 64 px has 4 x 4 pixels, as a ResNet's with the stem below.
_SMALL_STAGES = {
    "mobilenet_v2": [
        [1, 16, 1, 1],
        [6, 24, 2, 1],
        [6, 32, 3, 2],
        [6, 64, 4, 2],
        [6, 96, 3, 1],
        [6, 160, 3, 2],
        [6, 320, 1, 1],
    ]
}


def untrained(name: str, classes: int, side: int, seed: int = 0) -> nn.Module:
    """A network to be made, before its training.

    Args:
        name: a ResNet, or a network of torchvision that takes ``width_mult``, and the
            factor on its channels: "resnet18 w0.25", "mobilenet_v2 w0.5".
        classes: number of outputs.
        side: of the images, pixels.
        seed: of the weights.

    Raises:
        ValueError: for another name.
    """
    from torchvision.models import get_model  # takes two seconds

    architecture, _, width = name.partition(" w")
    try:
        factor = float(width)
        if not 0 < factor < math.inf:
            raise ValueError("its width is not above 0")
        if architecture in resnet.ARCHITECTURES:
            # The first stage has maps of about 32 x 32.
            stem = (
                "small" if side <= 32 else "strided" if side <= _SMALL else "imagenet"
            )
            return resnet.build(
                architecture, classes, stem=stem, width=factor, seed=seed
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            # Dropout would draw from no seed of the run.
            options = {"width_mult": factor, "dropout": 0.0}
            if side <= _SMALL and architecture in _SMALL_STAGES:
                options["inverted_residual_setting"] = _SMALL_STAGES[architecture]
            return get_model(architecture, num_classes=classes, **options)
    except (ValueError, TypeError) as fault:
        raise ValueError(
            f"kappa_families has {name!r}, which cannot be made ({fault}); write one "
            f"of {', '.join(resnet.ARCHITECTURES)}, or a network of torchvision that "
            "takes width_mult, and its width: 'mobilenet_v2 w0.5'"
        ) from fault


def recipe(data: StudyData, epochs: int, seed: int) -> dict[str, Any]:
    """Training of the networks, as fields of ``RunConfig``.

    Args:
        data: images of the seen classes.
        epochs: at most.
        seed: of weights and of the order of images.
    """
    return {
        "batch_size": 32,
        "learning_rate": 1e-3,
        "optimizer": "adam",
        "weight_decay": 0.0,
        "augmentation": False,
        "strong_augmentation": "crops",
        "pretrained": False,
        "data": data.fingerprint,
        "max_epochs": epochs,
        "seed": seed,
    }


def made_models(
    names: Sequence[str],
    work: Path,
    training: Mapping[str, Any],
    *,
    weights: str = "",
    device: str,
    jobs: int,
) -> list[Model]:
    """Backbones; those not there are trained as notebook 02 does it.

    All see the images at the study's size.

    Args:
        names: of networks to be made or fine-tuned.
        work: folder of the study, with images of the seen classes in ``FOLDER``.
        training: of ``recipe``; fine-tuning takes a smaller learning rate.
        weights: of networks to be fine-tuned, see ``networks.published``.
        device: "cpu" or "cuda".
        jobs: networks trained side by side; 0 takes one per core or GPU.

    Returns:
        Models in the order of their names, whose ``facts`` have family, model, epochs,
        stop_reason, losses and accuracies.

    Raises:
        FileNotFoundError: where the weights of a network are not there.
        ValueError: for a name that cannot be made.
        RuntimeError: where a network diverged.
    """
    load_images = partial(images_of_study, work / FOLDER)
    data = load_images()
    folder = work / FOLDER / "networks"
    planned = {name: _planned(name, training, data, weights) for name in names}
    trained = pool.side_by_side(
        partial(_train, planned=planned, folder=folder, device=device),
        names,
        shared=load_images,
        device=device,
        jobs=jobs,
    )
    results = dict(tqdm(trained, "made networks", total=len(names)))
    models = []
    for name, (build, run, _, facts) in planned.items():
        result = results[name]
        ended = {key: result[key] for key in ("epochs", "stop_reason")}
        facts = {**result["snapshots"][-1], **ended, **facts}
        path = catalogue.snapshot_path(folder / run, "stop")
        load = partial(backbone, build, path)
        models.append(Model(run, load, facts, partial(backbone, build)))
    return models


def _planned(
    name: str, training: Mapping[str, Any], data: StudyData, weights: str
) -> tuple[Callable[[], nn.Module], str, RunConfig, dict[str, Any]]:
    """How a network is built, the folder of its run, its training, and its facts.

    A name that cannot be built is refused.
    """
    classes = len(data.classes)
    side = data.train.images.shape[-1]
    decisive: list[Any] = [name, training]
    if name.endswith(_TUNED):
        (start,) = published([name.removesuffix(_TUNED)], weights)
        training = {**training, "learning_rate": _TUNING_RATE}
        decisive = [name, training, start.model_id.rpartition("-")[2]]
        build = partial(to_be_tuned, start, classes, training["seed"])
        how = "fine-tuned"
        family = f"{start.facts['family']}, {how}"
    else:
        build = partial(untrained, name, classes, side, training["seed"])
        how = "made"
        family = name.partition(" ")[0]
        family = "resnet" if family in resnet.ARCHITECTURES else family
    build()
    run = f"{name.replace(' ', '-')}-{json_digest(decisive)}"
    origin = f"{how} on {classes} classes"
    facts = {"model": name, "side": side, "family": family, "origin": origin}
    # The architecture of a configuration is a ResNet's; it is not used here.
    return build, run, RunConfig("resnet18", **training), facts


def _train(
    name: str,
    data: StudyData,
    *,
    planned: Mapping[str, tuple[Any, ...]],
    folder: Path,
    device: str,
) -> dict[str, Any]:
    """The result of a network's run."""
    build, run, config, _ = planned[name]
    result = train_run(config, data, folder / run, network=build(), device=device)
    if result["stop_reason"].startswith("loss"):
        raise ValueError(
            "it diverged; take more images, or leave it out of kappa_families"
        )
    return result
