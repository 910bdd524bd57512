"""The networks whose frozen features are probed.

Models of the study, networks that notebook 06 trains (see ``making``), and published
ones.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from torchvision.transforms import v2

from helpers.data.images import StudyData, images_of_study
from helpers.files import from_root, json_digest
from helpers.kappa import making
from helpers.networks import contents
from helpers.networks.weights import check_numbers, weights_digest
from helpers.parameters import near_names
from helpers.scores.models import Model, models_of
from helpers.scores.store import Records
from helpers.training import catalogue, pretraining

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


def chosen_models(
    table: pd.DataFrame, per_architecture: int, include_pretrained: bool
) -> pd.DataFrame:
    """The models of each architecture with the lowest training losses.

    Test images play no part in this choice.

    Args:
        table: the catalogue.
        per_architecture: number of models; 0 takes all.
        include_pretrained: whether models with a pretrained start are taken.

    Returns:
        Rows of the catalogue, with a name of each in ``model``. Models that are left
        out of the analysis are taken only if there are no others.

    Raises:
        ValueError: where no model remains.
    """
    models = table[table["snapshot"] != "none"]
    if not include_pretrained:
        models = models[~models["pretrained"].astype(bool)]
    if not len(models):
        raise ValueError(
            "the model set has no model trained from scratch; set include_pretrained, "
            "or name other networks"
        )
    is_analysed = models["left_out"] == ""
    models = models[is_analysed | ~is_analysed.any()]
    order = ["architecture", "train_loss", "model_id"]
    models = models.sort_values(order, ignore_index=True)
    number = models.groupby("architecture").cumcount() + 1
    models = models.assign(model=models["architecture"] + " no. " + number.astype(str))
    return models[number <= (per_architecture or len(models))]


def check_unseen(work: Path, chosen: pd.DataFrame, unseen: Sequence[str]) -> None:
    """Refuse unseen classes that the pretrained start of a chosen model has seen.

    Args:
        work: folder of the study.
        chosen: of ``chosen_models``. A start that notebook 02 did not train is assumed
            to have seen all classes of ImageNet.
        unseen: names of classes.

    Raises:
        ValueError: that names the start and the classes.
    """
    is_pretrained = chosen["pretrained"].astype(bool)
    for weights in sorted(chosen.loc[is_pretrained, "weights"].unique()):
        is_seen = re.compile(r"n\d{8}").fullmatch  # a class of ImageNet
        if catalogue.is_complete(work / pretraining.FOLDER, weights):
            classes = images_of_study(work / pretraining.FOLDER).classes["class_id"]
            is_seen = set(classes).__contains__
        shared = list(filter(is_seen, unseen))
        if shared:
            raise ValueError(
                f"the pretrained start {weights} has seen {len(shared)} of "
                f"{len(unseen)} unseen_class_ids ({', '.join(shared[:3])}); set "
                "include_pretrained to false, or name other classes"
            )


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
    start = chosen["pretrained"].astype(bool).map({True: ", pretrained", False: ""})
    origin = f"trained on {len(data.classes)} classes" + start
    side = data.train.images.shape[-1]
    rows = chosen.assign(family=MODEL_SET, origin=origin, side=side)
    return [backbone(model) for model in models_of(work, rows, data)]


def backbone(model: Model) -> Model:
    """A classifier without its last linear layer, so that it gives features.

    Args:
        model: a classifier.
    """
    return replace(
        model,
        load=partial(_changed, model.load, without_head),
        initial=partial(_changed, model.initial, without_head),
        training_images=None,
    )


def _changed(
    make: Callable[..., nn.Module | None],
    change: Callable[[nn.Module], nn.Module],
    *device: str,
) -> nn.Module | None:
    network = make(*device)
    return None if network is None else change(network)


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
    side: int  # of its images, pixels
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
        return Architecture(build.__module__.split(".")[-1], build, _SIDE)
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
    if name in CLIP:
        family = "clip"
    published = timm.get_pretrained_cfg(in_timm)
    side = _SIDE if family == "efficientnet" else published.input_size[-1]
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
    models = []
    for name in names:
        folder = from_root(name)
        if folder.is_dir():
            files = sorted(path for path in folder.iterdir() if path.suffix in _ENDINGS)
            if not files:
                raise FileNotFoundError(
                    f"{folder} has no checkpoints ({', '.join(_ENDINGS)}); put them "
                    "there, or leave it out of kappa_families"
                )
            models += [_published(path.stem, path, folder.name) for path in files]
        else:
            path = from_root(weights.replace("{architecture}", name))
            models.append(_published(name, path, ""))
    return models


def _published(name: str, path: Path, family: str) -> Model:
    of_file = re.split(r"[.-]", name)[0]
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
        first = str(fault).splitlines()[1].strip()
        raise ValueError(
            f"{path} does not fit {name}: {first:.200}; name the architecture that it "
            "was trained with"
        ) from fault
    check_numbers(state, state, path.name)
    return network.to(device).eval()


def sizes(names: Sequence[str], classes: int, side: int) -> pd.DataFrame:
    """Size and operations of each network without its head, of no weights.

    Args:
        names: made and published ones; others are skipped.
        classes: number of classes, the outputs of made networks.
        side: of the study's images, pixels; published networks take their own.

    Returns:
        A row per network: network, million_weights, side, and billion_operations of the
        forward pass of an image (multiply and add count as two).
    """
    rows = []
    for name in names:
        if name == MODEL_SET or from_root(name).is_dir():
            continue
        with torch.device("meta"), torch.no_grad():
            if making.is_made(name):
                network = without_head(making.untrained(name, classes, side))
                pixels = side
            else:
                form = architecture(name)
                network = form.build()
                pixels = form.side
                if name not in CLIP:
                    without_head(network)
            network.eval()
            with FlopCounterMode(display=False) as counter:
                network(torch.empty(1, 3, pixels, pixels))
        weights = sum(value.numel() for value in network.parameters())
        operations = counter.get_total_flops() / 1e9
        rows.append((name, weights / 1e6, pixels, operations))
    columns = ["network", "million_weights", "side", "billion_operations"]
    return pd.DataFrame(rows, columns=columns)


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
        classifier = replace(
            model,
            model_id=f"{model.model_id}-{head}",
            load=partial(_changed, model.load, partial(_with_head, weight, bias)),
            initial=partial(
                _changed, model.initial, partial(_with_head, 0 * weight, 0 * bias)
            ),
        )
        classifiers.append(classifier)
    return classifiers


def _with_head(weight: NDArray, bias: NDArray, network: nn.Module) -> nn.Module:
    classes, features = weight.shape
    head = nn.utils.skip_init(nn.Linear, features, classes)
    tensors = {"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)}
    head.load_state_dict(tensors)
    device = next(network.parameters()).device
    return nn.Sequential(network, head.to(device)).eval()
