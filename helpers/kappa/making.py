"""Networks of any size, trained on the seen classes by the rules of notebook 02."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torchvision.models.efficientnet import EfficientNet, MBConvConfig

from helpers.data.images import StudyData, images_of_study
from helpers.files import inside, json_digest, read_tensors
from helpers.networks import resnet
from helpers.scoring.models import Model, models_of
from helpers.training import catalogue, pool, pretraining
from helpers.training.config import RunConfig
from helpers.training.run import train_run

# Folder of these networks in that of the study, with images of the seen classes alone.
FOLDER = "made"
_NAME = re.compile(
    r"(?P<kind>resnet\d+|efficientnet-like) w(?P<width>[\d.]+)(?: d(?P<depth>[\d.]+))?"
)
# Tan and Le 2019, Table 1: expansion, kernel, stride, input and output channels, and
# layers of each stage of EfficientNet-B0. Its last stride of 2 is 1 here, so that maps
# of images smaller than B0's 224 px have more than four pixels.
_STAGES = (
    (1, 3, 1, 32, 16, 1),
    (6, 3, 2, 16, 24, 2),
    (6, 5, 2, 24, 40, 2),
    (6, 3, 2, 40, 80, 3),
    (6, 5, 1, 80, 112, 3),
    (6, 5, 1, 112, 192, 4),
    (6, 3, 1, 192, 320, 1),
)


def family_made(name: str) -> str:
    """Family of a network to be made; "" for any other name.

    Args:
        name: such as "resnet18 w0.25" or "efficientnet-like w0.5 d0.5".
    """
    match = _NAME.fullmatch(name)
    return match["kind"].rstrip("0123456789") if match else ""


def _stem(side: int) -> str:
    """First layer of a ResNet, such that the first stage has maps of about 32 x 32."""
    if side <= 32:
        return "small"
    return "strided" if side <= 64 else "imagenet"


class Recipe(NamedTuple):
    """Training of the networks."""

    epochs: int  # at most
    seed: int  # of weights and of the order of images


def run_of(name: str, data: StudyData, recipe: Recipe) -> RunConfig:
    """Configuration of a network's training, that of pretrained starts in notebook 02.

    For an EfficientNet-like network all of it but the architecture is used.

    Args:
        name: such as "resnet18 w0.25" or "efficientnet-like w0.5 d0.5".
        data: images of the seen classes.
        recipe: of its training.
    """
    match = _NAME.fullmatch(name)
    architecture = match["kind"] if family_made(name) == "resnet" else "resnet18"
    fixed = {
        "stem": _stem(data.train.images.shape[-1]),
        "width": float(match["width"]),
        "max_epochs": recipe.epochs,
        "seed": recipe.seed,
    }
    return pretraining.recipes([architecture], data.fingerprint, fixed)[0]


def efficientnet_like(name: str, classes: int, seed: int) -> nn.Module:
    """An untrained EfficientNet for small images.

    "w0.5 d0.5" has half of the channels of EfficientNet-B0, as multiples of 8, and half
    of the layers of each stage, rounded up.

    Args:
        name: such as "resnet18 w0.25" or "efficientnet-like w0.5 d0.5".
        classes: number of outputs.
        seed: of weights and order.
    """
    match = _NAME.fullmatch(name)
    factors = {"width_mult": float(match["width"]), "depth_mult": float(match["depth"])}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        stages = [MBConvConfig(*stage, **factors) for stage in _STAGES]
        return EfficientNet(
            stages, dropout=0.0, stochastic_depth_prob=0.0, num_classes=classes
        )


def untrained(name: str, classes: int, side: int) -> nn.Module:
    """A network to be made, before its training, for images of ``side`` pixels.

    Args:
        name: such as "resnet18 w0.25" or "efficientnet-like w0.5 d0.5".
        classes: number of outputs.
        side: of the images, pixels.
    """
    if family_made(name) != "resnet":
        return efficientnet_like(name, classes, seed=0)
    match = _NAME.fullmatch(name)
    return resnet.build(
        match["kind"],
        classes,
        stem=_stem(side),
        width=float(match["width"]),
        seed=0,
    )


def make(
    names: Sequence[str],
    work: Path,
    data: StudyData,
    recipe: Recipe,
    *,
    device: str,
    jobs: int,
) -> Iterator[str]:
    """Train the networks that are not there yet, by the stop rules of notebook 02.

    Args:
        names: of networks; published ones are skipped.
        work: folder of the study.
        data: images of the seen classes.
        recipe: of their training.
        device: "cpu" or "cuda".
        jobs: networks trained side by side; 0 takes one per core or GPU.

    Yields:
        The name of each network when it is trained.
    """
    runs = []  # of ResNets
    others = []  # EfficientNet-like networks, with their runs and folders
    for name in filter(family_made, names):
        config = run_of(name, data, recipe)
        if family_made(name) == "resnet":
            runs.append(config)
            continue
        folder = _folder(work, name, config)
        if not (folder / "result.json").is_file():
            others.append((name, config, folder))
    hardware = pool.Hardware(device, jobs)
    for result in pool.train_missing(runs, work / FOLDER, hardware):
        yield result["run_id"]
    training = pool.side_by_side(
        partial(_train, device=device),
        others,
        shared=partial(images_of_study, work / FOLDER),
        device=device,
        jobs=jobs,
    )
    for (name, _, _), _ in training:
        yield name


def _folder(work: Path, name: str, config: RunConfig) -> Path:
    identity = json_digest([name, asdict(config)])
    return inside(work / FOLDER / "networks", f"{name.replace(' ', '-')}-{identity}")


def _train(item: tuple[str, RunConfig, Path], data: StudyData, *, device: str) -> None:
    name, config, folder = item
    network = efficientnet_like(name, len(data.classes), config.seed)
    train_run(config, data, folder, network=network, device=device)


def made_models(
    names: Sequence[str], work: Path, data: StudyData, recipe: Recipe
) -> list[Model]:
    """The made networks with their heads, in the order of their names.

    Args:
        names: of networks; published ones are skipped.
        work: folder of the study.
        data: images of the seen classes.
        recipe: that they were trained by.

    Returns:
        Models whose ``facts`` have family, model, epochs, stop_reason, losses and
        accuracies.

    Raises:
        ValueError: where a network diverged.
    """
    models = []
    for name in filter(family_made, names):
        config = run_of(name, data, recipe)
        stopped = _models_at_stop(name, config, work, data)
        if not stopped:
            raise ValueError(
                f"{name} diverged when it was made (run {config}); leave it out, or "
                "take more images"
            )
        facts = {
            "model": name,
            "family": family_made(name),
            "architecture": name,
            "origin": f"made on {len(data.classes)} classes",
        }
        models.append(replace(stopped[0], facts=stopped[0].facts | facts))
    return models


def _models_at_stop(
    name: str, config: RunConfig, work: Path, data: StudyData
) -> list[Model]:
    """A made network at its stop; none where it diverged."""
    if family_made(name) == "resnet":
        rows = catalogue.read_catalogue(work / FOLDER, [config])
        return models_of(work / FOLDER, rows[rows["snapshot"] == "stop"], data)
    folder = _folder(work, name, config)
    initial = partial(efficientnet_like, name, len(data.classes), config.seed)
    load = partial(_load, catalogue.snapshot_path(folder, "stop"), initial)
    return [
        Model(folder.name, load, row, initial)
        for row in catalogue.rows_of(folder)
        if row["snapshot"] == "stop"
    ]


def _load(
    path: Path, initial: partial, device: torch.device | str = "cpu"
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
