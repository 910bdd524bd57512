"""Networks of any width, trained on the seen classes by the rules of notebook 02."""

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
from helpers.kappa.networks import without_head
from helpers.networks import contents, resnet
from helpers.scores.models import Model
from helpers.training import catalogue, pool
from helpers.training.config import RunConfig
from helpers.training.run import train_run

# Folder of these networks in that of the study, with images of the seen classes alone.
FOLDER = "made"
_SMALL = 64  # pixels
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
    data: StudyData,
    training: Mapping[str, Any],
    *,
    device: str,
    jobs: int,
) -> list[Model]:
    """Backbones of any width; those not there are trained as notebook 02 does it.

    Args:
        names: of networks to be made.
        work: folder of the study.
        data: images of the seen classes.
        training: of ``recipe``.
        device: "cpu" or "cuda".
        jobs: networks trained side by side; 0 takes one per core or GPU.

    Returns:
        Models in the order of their names, whose ``facts`` have family, model, epochs,
        stop_reason, losses and accuracies.

    Raises:
        ValueError: for a name that cannot be made.
        RuntimeError: where a network diverged.
    """
    # The architecture of a configuration is a ResNet's; it is not used here.
    config = RunConfig("resnet18", **training)
    side = data.train.images.shape[-1]
    of_networks = {}
    for name in names:
        build = partial(untrained, name, len(data.classes), side, config.seed)
        build()  # refuses a name before the first network is trained
        digest = json_digest([name, training])
        folder = work / FOLDER / "networks" / f"{name.replace(' ', '-')}-{digest}"
        of_networks[name] = build, folder
    trained = pool.side_by_side(
        partial(_train, of_networks=of_networks, config=config, device=device),
        names,
        shared=partial(images_of_study, work / FOLDER),
        device=device,
        jobs=jobs,
    )
    results = dict(tqdm(trained, "made networks", total=len(names)))
    models = []
    for name, (build, folder) in of_networks.items():
        family = name.partition(" ")[0]
        facts = {
            **results[name]["snapshots"][-1],
            "epochs": results[name]["epochs"],
            "stop_reason": results[name]["stop_reason"],
            "model": name,
            "family": "resnet" if family in resnet.ARCHITECTURES else family,
            "origin": f"made on {len(data.classes)} classes",
            "side": side,
        }
        load, start = (partial(_backbone, build, of) for of in (folder, None))
        models.append(Model(folder.name, load, facts, start))
    return models


def _train(
    name: str,
    data: StudyData,
    *,
    of_networks: Mapping[str, tuple[Callable[[], nn.Module], Path]],
    config: RunConfig,
    device: str,
) -> dict[str, Any]:
    """The result of a network's run."""
    build, folder = of_networks[name]
    result = train_run(config, data, folder, network=build(), device=device)
    if result["status"] == "diverged":
        raise ValueError(
            "it diverged; take more images, or leave it out of kappa_families"
        )
    return result


def _backbone(
    build: Callable[[], nn.Module],
    folder: Path | None,
    device: torch.device | str = "cpu",
) -> nn.Module:
    """A network without its head, after its training; without a folder before it."""
    network = build()
    if folder:
        network.load_state_dict(contents.read(catalogue.snapshot_path(folder, "stop")))
    network = network.to(device, memory_format=torch.channels_last)
    return without_head(network).eval()
