"""The networks whose frozen features are probed.

Models of the study, networks that notebook 06 trains (see ``making``), and published
ones.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn
from torchvision.transforms import v2

from helpers.data.images import StudyData, images_of_study
from helpers.files import from_root, json_digest
from helpers.kappa.making import family_made
from helpers.networks.weights import load_backbone, read_state, weights_digest
from helpers.scoring.models import Model, models_of
from helpers.scoring.store import Records
from helpers.training import catalogue, pretraining

MODEL_SET = "model set"
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
    if is_analysed.any():
        models = models[is_analysed]
    order = ["architecture", "train_loss", "model_id"]
    models = models.sort_values(order, ignore_index=True)
    number = models.groupby("architecture").cumcount() + 1
    models = models.assign(model=models["architecture"] + " no. " + number.astype(str))
    return models[number <= per_architecture] if per_architecture else models


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
        if catalogue.is_complete(work / pretraining.FOLDER, weights):
            classes = images_of_study(work / pretraining.FOLDER).classes["class_id"]
            shared = [name for name in unseen if name in set(classes)]
        else:
            shared = [name for name in unseen if re.fullmatch(r"n\d{8}", name)]
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
    rows = chosen.assign(family=MODEL_SET, origin=origin)
    return [backbone(model) for model in models_of(work, rows, data)]


def backbone(model: Model) -> Model:
    """A classifier without its last linear layer, so that it gives features.

    Args:
        model: a classifier.
    """
    return replace(
        model,
        load=partial(_without_head, model.load),
        initial=partial(_without_head, model.initial),
        training_images=None,
    )


def without_head(network: nn.Module) -> nn.Module:
    """Put the identity in place of the last linear layer of a network.

    Args:
        network: a classifier, which is changed.
    """
    layers = network.named_modules()
    linear = [name for name, layer in layers if isinstance(layer, nn.Linear)]
    network.set_submodule(linear[-1], nn.Identity())
    return network


def _without_head(
    make: Callable[..., nn.Module | None], *device: str
) -> nn.Module | None:
    network = make(*device)
    return None if network is None else without_head(network)


def published(names: Sequence[str], weights: str) -> list[Model]:
    """Backbones read from local files by timm's definitions.

    Features of a CLIP network ("RN50") are its image embeddings (Radford et al. 2021),
    of images of its own size; features of others are the input of their last layer.

    Args:
        names: of networks; those that are not published are skipped.
        weights: a path from the project's root, with {architecture} for the name.

    Raises:
        FileNotFoundError: where the weights of a network are not there.
    """
    return [
        _published(name, from_root(weights.replace("{architecture}", name)))
        for name in names
        if name != MODEL_SET and not family_made(name)
    ]


def _published(name: str, path: Path) -> Model:
    import timm  # pip install "generalization-workbook[backbones]"

    if not path.is_file():
        raise FileNotFoundError(
            f"the weights of {name} are not in {path}; put them there, or change "
            "kappa_weights or kappa_families"
        )
    pretrained = timm.get_pretrained_cfg(CLIP.get(name, name))
    steps = [
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(pretrained.mean, pretrained.std),
    ]
    family = re.sub(r"^tf_|_?b?\d+$", "", name)
    if name in CLIP:
        side = list(pretrained.input_size[1:])
        steps.insert(0, v2.Resize(side, v2.InterpolationMode.BICUBIC))
        family = "clip"
    facts = {
        "family": family,
        "model": name,
        "architecture": name,
        "origin": f"file {path.name}",
    }
    model_id = f"{name}-{weights_digest(read_state(path))}"
    load = partial(_load_published, name, path)
    return Model(model_id, load, facts, normalise=v2.Compose(steps))


def _load_published(
    name: str, path: Path, device: torch.device | str = "cpu"
) -> nn.Module:
    import timm

    state = read_state(path)
    if name in CLIP:
        network = timm.create_model(CLIP[name])
        # Files may have OpenAI's names of tensors too.
        state = timm.models.byobnet.checkpoint_filter_fn(state, network)
    else:
        network = timm.create_model(name, num_classes=0)
        head = f"{network.pretrained_cfg['classifier']}."
        state = {key: value for key, value in state.items() if not key.startswith(head)}
    return load_backbone(network, state).to(device).eval()


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
            load=partial(_with_head, model.load, weight, bias),
            initial=partial(_with_head, model.initial, 0 * weight, 0 * bias),
        )
        classifiers.append(classifier)
    return classifiers


def _with_head(
    make: Callable[..., nn.Module | None], weight: NDArray, bias: NDArray, *device: str
) -> nn.Module | None:
    network = make(*device)
    if network is None:
        return None
    classes, features = weight.shape
    head = nn.utils.skip_init(nn.Linear, features, classes)
    tensors = {"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)}
    head.load_state_dict(tensors)
    return nn.Sequential(network, head.to(*device)).eval()
