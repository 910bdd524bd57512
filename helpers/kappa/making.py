"""Networks made on the spot: ResNets and EfficientNet-like ones of any size, trained on the seen classes by the rules of 02, and kept."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torchvision.models.efficientnet import EfficientNet, MBConvConfig

from helpers.data.images import StudyData, of_study
from helpers.files import digest, inside, read_tensors
from helpers.scoring.models import Model, models_of
from helpers.training import catalogue, pool, pretraining
from helpers.training.config import RunConfig
from helpers.training.run import train_run

FOLDER = "made"  # below the study's: a model set with images of its own, those of the seen classes
_NAME = re.compile(
    r"(?P<kind>resnet\d+|efficientnet-like) w(?P<width>[\d.]+)(?: d(?P<depth>[\d.]+))?"
)
# Tan and Le 2019, Table 1: expansion, kernel, stride, input and output channels, and layers of each stage. Of the strides of B0, which
# is for 224 px, the last is 1 here, so that small images keep a map of more than four places.
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
    """Family of a network to be made, such as "resnet18 w0.25" or "efficientnet-like w0.5 d0.5"; "" for any other name."""
    found = _NAME.fullmatch(name)
    return found["kind"].rstrip("0123456789") if found else ""


def recipe(name: str, data: StudyData, epochs: int, seed: int) -> RunConfig:
    """The run that makes a network, as 02 makes pretrained starts; an EfficientNet-like one has all of it but the architecture."""
    side, found = data.train.images.shape[-1], _NAME.fullmatch(name)
    # So that a ResNet's first stage sees about 32 places a side.
    fixed = {
        "stem": "small" if side <= 32 else "strided" if side <= 64 else "imagenet",
        "width": float(found["width"]),
    }
    architecture = found["kind"] if family_made(name) == "resnet" else "resnet18"
    return pretraining.recipes(
        [architecture], data.fingerprint, fixed | {"max_epochs": epochs, "seed": seed}
    )[0]


def efficientnet_like(name: str, classes: int, seed: int) -> nn.Module:
    """An untrained classifier: "w0.5 d0.5" has half of EfficientNet-B0's channels (multiples of 8) and layers per stage (rounded up)."""
    found = _NAME.fullmatch(name)
    factors = {"width_mult": float(found["width"]), "depth_mult": float(found["depth"])}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        stages = [MBConvConfig(*stage, **factors) for stage in _STAGES]
        return EfficientNet(
            stages, dropout=0.0, stochastic_depth_prob=0.0, num_classes=classes
        )


def make(
    names: Sequence[str],
    work: Path,
    data: StudyData,
    *,
    epochs: int,
    seed: int,
    device: str,
    jobs: int,
) -> Iterator[str]:
    """Train on the seen classes what is not kept yet, by the stop rules of 02, and say what is done; other names are passed over."""
    recipes = {
        name: recipe(name, data, epochs, seed) for name in filter(family_made, names)
    }
    runs = [found for name, found in recipes.items() if family_made(name) == "resnet"]
    yield from (
        result["run_id"]
        for result in pool.train_missing(runs, work / FOLDER, device=device, jobs=jobs)
    )
    others = [
        (name, found, _folder(work, name, found))
        for name, found in recipes.items()
        if family_made(name) != "resnet"
    ]
    todo = [item for item in others if not (item[2] / "result.json").is_file()]
    images = partial(of_study, work / FOLDER)
    yield from (
        item[0]
        for item, _ in pool.side_by_side(
            partial(_train, device=device),
            todo,
            shared=images,
            device=device,
            jobs=jobs,
        )
    )


def _folder(work: Path, name: str, config: RunConfig) -> Path:
    return inside(
        work / FOLDER / "networks",
        f"{name.replace(' ', '-')}-{digest([name, asdict(config)])}",
    )


def _train(item: tuple[str, RunConfig, Path], data: StudyData, *, device: str) -> None:
    name, config, folder = item
    train_run(
        config,
        data,
        folder,
        network=efficientnet_like(name, len(data.classes), config.seed),
        device=device,
    )


def made_models(
    names: Sequence[str], work: Path, data: StudyData, *, epochs: int, seed: int
) -> list[Model]:
    """The made networks with their heads, in the order of their names; ``facts`` has model, epochs, stop_reason, losses and accuracies."""
    models = []
    for name in filter(family_made, names):
        config, classes = recipe(name, data, epochs, seed), len(data.classes)
        if family_made(name) == "resnet":
            rows = catalogue.read_catalogue(work / FOLDER, [config])
            found = models_of(work / FOLDER, rows[rows["snapshot"] == "stop"], data)
        else:
            folder, initial = (
                _folder(work, name, config),
                partial(efficientnet_like, name, classes, seed),
            )
            load = partial(_load, catalogue.snapshot_path(folder, "stop"), initial)
            found = [
                Model(folder.name, load, row, initial)
                for row in catalogue.rows_of(folder)
                if row["snapshot"] == "stop"
            ]
        if not found:
            raise ValueError(
                f"{name} diverged when it was made (run {config}); leave it out, or take more images"
            )
        facts = {
            "model": name,
            "family": family_made(name),
            "architecture": name,
            "origin": f"made on {classes} classes",
        }
        models.append(replace(found[0], facts={**found[0].facts, **facts}))
    return models


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
