"""The networks whose frozen features are probed.

Models of the study, networks that notebook 06 trains (see ``making``), and published
ones.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn
from torchvision.transforms import v2

from helpers.data.images import StudyData
from helpers.files import from_root, json_digest
from helpers.networks import contents
from helpers.networks.weights import check_numbers, weights_digest
from helpers.parameters import near_names
from helpers.scores.models import Model, models_of
from helpers.scores.store import Records

MODEL_SET = "model set"
_ENDINGS = (".safetensors", ".pt", ".pth")
_SIDE = 224  # pixels
_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)
# CLIP's image encoders by their published names, with the names in timm.
CLIP = {
    name: f"resnet{name[2:]}_clip"
    for name in ("RN50", "RN101", "RN50x4", "RN50x16", "RN50x64")
}


def chosen_models(table: pd.DataFrame, per_architecture: int) -> pd.DataFrame:
    """The models of each architecture, trained from scratch, with the lowest losses.

    Test images play no part in this choice. Models with a pretrained start may have
    seen the unseen classes, and are not taken.

    Args:
        table: the catalogue.
        per_architecture: number of models; 0 takes all.

    Returns:
        Rows of the catalogue, with a name of each in ``model``.

    Raises:
        ValueError: where no model remains.
    """
    models = table[table["left_out"].eq("") & ~table["pretrained"].astype(bool)]
    if not len(models):
        raise ValueError(
            "the model set has no model trained from scratch that learnt enough "
            "(minimum_train_accuracy); name other networks in kappa_families"
        )
    models = models.sort_values(["architecture", "train_loss", "model_id"])
    number = models.groupby("architecture").cumcount() + 1
    models = models.assign(model=models["architecture"] + " no. " + number.astype(str))
    return models[number <= (per_architecture or len(models))]


def model_set(
    work: Path, chosen: pd.DataFrame, data: StudyData, seen: int
) -> list[Model]:
    """Backbones of models of the study.

    Args:
        work: folder of the study.
        chosen: of ``chosen_models``.
        data: the study's images.
        seen: number of seen classes.

    Raises:
        ValueError: where the models were trained on other classes.
    """
    if len(chosen) and seen != len(data.classes):
        raise ValueError(
            f"the model set was trained on all {len(data.classes)} classes, not on "
            f"{seen}; set seen_classes to 0"
        )
    origin = f"trained on {len(data.classes)} classes"
    side = data.train.images.shape[-1]
    rows = chosen.assign(family=MODEL_SET, origin=origin, side=side)
    return [backbone(model) for model in models_of(work, rows, data)]


def backbone(model: Model) -> Model:
    """A classifier without its last linear layer, so that it gives features.

    Args:
        model: a classifier.
    """
    return _changed(model, without_head, without_head)


def _changed(
    model: Model,
    trained: Callable[[nn.Module], nn.Module],
    initial: Callable[[nn.Module], nn.Module],
) -> Model:
    """A model whose network is changed after it is loaded, and before its training."""

    def load(device: torch.device | str = "cpu") -> nn.Module:
        return trained(model.load(device))

    def start() -> nn.Module | None:
        network = model.initial()
        return None if network is None else initial(network)

    return replace(model, load=load, initial=start, training_images=None)


def last_linear(network: nn.Module) -> str:
    """Name of the last linear layer of a network, its head.

    Args:
        network: a classifier.

    Raises:
        ValueError: where it has none.
    """
    layers = network.named_modules()
    linear = [name for name, layer in layers if isinstance(layer, nn.Linear)]
    if not linear:
        raise ValueError(
            f"{type(network).__name__} has no linear layer, whose input would be its "
            "features; leave it out of kappa_families"
        )
    return linear[-1]


def without_head(network: nn.Module) -> nn.Module:
    """Put the identity in place of the last linear layer of a network.

    Args:
        network: a classifier, which is changed.
    """
    network.set_submodule(last_linear(network), nn.Identity())
    return network


class Architecture(NamedTuple):
    """A published architecture: how it is built, and which images it takes."""

    family: str
    build: Callable[[], nn.Module]
    side: int = _SIDE  # of its images, pixels
    mean: Sequence[float] = _IMAGENET_MEAN  # of pixels in [0, 1], RGB
    std: Sequence[float] = _IMAGENET_STD


def architecture(name: str) -> Architecture:
    """A published architecture by its name.

    Args:
        name: of a CLIP network ("RN50"), or in torchvision, or else in timm.

    Returns:
        Its family is the module that defines it. Images have the side that it was
        trained with; EfficientNets take 224 px, as in Huang et al. 2025.

    Raises:
        ValueError: for an unknown name, with the nearest ones.
    """
    import timm  # pip install "generalization-workbook[backbones]"
    import torchvision

    of_torchvision = torchvision.models.list_models(module=torchvision.models)
    if name in of_torchvision:
        build = torchvision.models.get_model_builder(name)
        return Architecture(build.__module__.split(".")[-1], build)
    in_timm = CLIP.get(name, name)
    if not timm.is_model(in_timm):
        names = [MODEL_SET, *CLIP, *of_torchvision, *timm.list_models()]
        raise ValueError(
            f"{name!r} is no network of torchvision or timm and no folder"
            f"{near_names(name, names)}; kappa_families takes their names and folders "
            "of checkpoints whose files begin with one; a network to be made has a "
            "width: 'resnet18 w0.25'"
        )
    build = partial(timm.create_model, in_timm)
    family = timm.models.model_entrypoint(in_timm).__module__.split(".")[-1]
    published = timm.get_pretrained_cfg(in_timm)
    side = _SIDE if family == "efficientnet" else published.input_size[-1]
    family = "clip" if name in CLIP else family
    return Architecture(family, build, side, published.mean, published.std)


def published(names: Sequence[str], weights: str) -> list[Model]:
    """Backbones read from local files.

    Features of a CLIP network ("RN50") are its image embeddings (Radford et al. 2021);
    features of others are the input of their last layer.

    Args:
        names: of architectures, see ``architecture``; or of a folder of checkpoints,
            which is a family; the name of a file begins with that of its architecture,
            then a point or a hyphen ("resnet18-2.pth").
        weights: a path from the project's root, with {architecture} for the name.

    Raises:
        FileNotFoundError: where the weights of a network are not there.
        ValueError: for an unknown name.
    """
    return [_published(*file) for file in _files(names, weights)]


def sides(names: Sequence[str], side: int) -> dict[str, int]:
    """The side in pixels at which each network sees the images.

    Args:
        names: see ``published``; or other networks, which have the study's side.
        side: of the study's images.

    Raises:
        FileNotFoundError: for a folder without checkpoints.
        ValueError: for an unknown name.
    """
    of_networks = {}
    for name in names:
        if name == MODEL_SET or " w" in name:
            of_networks[name] = side
            continue
        for network, _, _ in _files([name], ""):
            of_networks[network] = architecture(_architecture_of(network)).side
    return of_networks


def _architecture_of(name: str) -> str:
    """The architecture that the name of a file begins with."""
    return re.split(r"[.-]", name)[0]


def _files(names: Sequence[str], weights: str) -> Iterator[tuple[str, Path, str]]:
    """Name, path and family of each checkpoint; "" for its architecture's family."""
    for name in names:
        folder = from_root(name)
        if not folder.is_dir():
            yield name, from_root(weights.replace("{architecture}", name)), ""
            continue
        paths = sorted(path for path in folder.iterdir() if path.suffix in _ENDINGS)
        if not paths:
            raise FileNotFoundError(
                f"{folder} has no checkpoints ({', '.join(_ENDINGS)}); put them "
                "there, or leave it out of kappa_families"
            )
        for path in paths:
            yield path.stem, path, folder.name


def _published(name: str, path: Path, family: str) -> Model:
    of_file = _architecture_of(name)
    form = architecture(of_file)
    if not path.is_file():
        raise FileNotFoundError(
            f"the weights of {name} are not in {path}; put them there, or change "
            "kappa_weights or kappa_families"
        )
    steps = [
        v2.Resize([form.side, form.side], v2.InterpolationMode.BICUBIC),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(form.mean, form.std),
    ]
    facts = {
        "family": family or form.family,
        "model": name,
        "architecture": of_file,
        "origin": f"file {path.name}",
        "side": form.side,
    }
    model_id = f"{name}-{weights_digest(contents.read(path))}"
    load = partial(_load_published, of_file, path)
    return Model(model_id, load, facts, normalise=v2.Compose(steps))


def _load_published(
    name: str, path: Path, device: torch.device | str = "cpu"
) -> nn.Module:
    network = architecture(name).build()
    state = contents.read(path)
    if name in CLIP:
        import timm

        # Files may have OpenAI's names of tensors too.
        state = timm.models.byobnet.checkpoint_filter_fn(state, network)
    else:
        head = f"{last_linear(network)}."
        state = {key: value for key, value in state.items() if not key.startswith(head)}
        without_head(network)
    try:
        network.load_state_dict(state)
    except RuntimeError as fault:
        raise ValueError(f"{path} does not fit {name}: {fault!s:.200}") from fault
    check_numbers(state, state, path.name)
    return network.to(device).eval()


def with_probes(models: Sequence[Model], probes: Records) -> list[Model]:
    """Backbones with their probes of the seen classes as heads.

    Args:
        models: backbones.
        probes: of ``probing.probes``.

    Returns:
        Classifiers. Before training their heads are zeros, where fits of probes start.
    """
    classifiers = []
    for model in models:
        record = probes.record("probes", model.model_id)
        weight = record["weight"]
        bias = record["bias"]
        head = json_digest([weight.tolist(), bias.tolist()])
        fitted = partial(_with_head, weight, bias)
        zero = partial(_with_head, 0 * weight, 0 * bias)
        classifier = _changed(model, fitted, zero)
        classifiers.append(replace(classifier, model_id=f"{model.model_id}-{head}"))
    return classifiers


def _with_head(weight: NDArray, bias: NDArray, network: nn.Module) -> nn.Module:
    head = nn.utils.skip_init(nn.Linear, *weight.T.shape)
    tensors = {"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)}
    head.load_state_dict(tensors)
    device = next(network.parameters()).device
    return nn.Sequential(network, head.to(device)).eval()
