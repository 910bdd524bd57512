"""Networks of any width, trained on the seen classes by the rules of notebook 02."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from tqdm.auto import tqdm

from helpers.data.images import StudyData, images_of_study
from helpers.files import inside, json_digest, read_tensors
from helpers.networks import resnet
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


class Recipe(NamedTuple):
    """Training of the networks."""

    epochs: int  # at most
    seed: int  # of weights and of the order of images


def is_made(name: str) -> bool:
    """Whether a name is of a network to be made: with a width, "resnet18 w0.25".

    Args:
        name: of a network.
    """
    return " w" in name


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
            return resnet.build(
                architecture, classes, stem=_stem(side), width=factor, seed=seed
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


def _stem(side: int) -> str:
    """First layer of a ResNet, such that the first stage has maps of about 32 x 32."""
    if side <= 32:
        return "small"
    return "strided" if side <= _SMALL else "imagenet"


def settings(data: StudyData, recipe: Recipe) -> dict[str, Any]:
    """Settings of the training, fields of ``RunConfig``.

    Args:
        data: images of the seen classes.
        recipe: of the training.
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
        "max_epochs": recipe.epochs,
        "seed": recipe.seed,
    }


def made_models(
    names: Sequence[str],
    work: Path,
    data: StudyData,
    recipe: Recipe,
    *,
    device: str,
    jobs: int,
) -> list[Model]:
    """Networks with their heads; those not there are trained as notebook 02 does it.

    Args:
        names: of networks to be made.
        work: folder of the study.
        data: images of the seen classes.
        recipe: of their training.
        device: "cpu" or "cuda".
        jobs: networks trained side by side; 0 takes one per core or GPU.

    Returns:
        Models in the order of their names, whose ``facts`` have family, model, epochs,
        stop_reason, losses and accuracies.

    Raises:
        ValueError: for a name that cannot be made, and where a network diverged.
    """
    for name in names:
        _initial(name, data, recipe)  # refuses a name before the first is trained
    training = pool.side_by_side(
        partial(_train, work=work, recipe=recipe, device=device),
        names,
        shared=partial(images_of_study, work / FOLDER),
        device=device,
        jobs=jobs,
    )
    results = dict(tqdm(training, "made networks", total=len(names)))
    models = []
    for name in names:
        result = results[name]
        if result["status"] == "diverged":
            raise ValueError(
                f"{name} diverged when it was made; leave it out of kappa_families, or "
                "take more images"
            )
        family = name.partition(" ")[0]
        facts = {
            **result["snapshots"][-1],
            "epochs": result["epochs"],
            "stop_reason": result["stop_reason"],
            "model": name,
            "family": "resnet" if family in resnet.ARCHITECTURES else family,
            "architecture": name,
            "origin": f"made on {len(data.classes)} classes",
            "side": data.train.images.shape[-1],
        }
        folder = _folder(work, name, data, recipe)
        initial = partial(_initial, name, data, recipe)
        path = catalogue.snapshot_path(folder, "stop")
        load = partial(_load, path, initial)
        models.append(Model(folder.name, load, facts, initial))
    return models


def _folder(work: Path, name: str, data: StudyData, recipe: Recipe) -> Path:
    digest = json_digest([name, settings(data, recipe)])
    return inside(work / FOLDER / "networks", f"{name.replace(' ', '-')}-{digest}")


def _train(
    name: str, data: StudyData, *, work: Path, recipe: Recipe, device: str
) -> dict[str, Any]:
    # The architecture of a configuration is a ResNet's; it is not used here.
    config = RunConfig("resnet18", **settings(data, recipe))
    folder = _folder(work, name, data, recipe)
    network = _initial(name, data, recipe)
    return train_run(config, data, folder, network=network, device=device)


def _initial(name: str, data: StudyData, recipe: Recipe) -> nn.Module:
    side = data.train.images.shape[-1]
    return untrained(name, len(data.classes), side, recipe.seed)


def _load(
    path: Path, initial: Callable[[], nn.Module], device: torch.device | str = "cpu"
) -> nn.Module:
    tensors = read_tensors(path)
    if tensors is None:
        raise ValueError(
            f"{path} is missing or damaged; delete the folder {path.parent} and run "
            "06_kappa_tradeoff again to make it anew"
        )
    network = initial()
    network.load_state_dict(tensors)
    return network.to(device, memory_format=torch.channels_last).eval()
