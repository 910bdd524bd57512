"""The networks whose frozen features are probed: models of the study's own set, networks made on the spot, and published ones."""

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

from helpers.data.images import StudyData, of_study
from helpers.files import digest, from_root
from helpers.kappa.making import family_made
from helpers.networks.weights import load_backbone, read_state, weights_digest
from helpers.scoring.models import Model, models_of
from helpers.scoring.store import Kept
from helpers.training import catalogue, pretraining

MODEL_SET = "model set"
# CLIP's image encoders, as timm calls them.
CLIP = {
    name: f"resnet{name[2:]}_clip"
    for name in ("RN50", "RN101", "RN50x4", "RN50x16", "RN50x64")
}


def chosen_models(
    table: pd.DataFrame, per_architecture: int, include_pretrained: bool
) -> pd.DataFrame:
    """The models of each architecture with the lowest training losses, so that no test image has a say; 0 takes all."""
    allowed = table[
        (table["snapshot"] != "none")
        & (include_pretrained | ~table["pretrained"].astype(bool))
    ]
    if not len(allowed):
        raise ValueError(
            "the model set has no model trained from scratch; set include_pretrained, or name other networks"
        )
    kept = (
        allowed[allowed["left_out"] == ""]
        if (allowed["left_out"] == "").any()
        else allowed
    )
    kept = kept.sort_values(
        ["architecture", "train_loss", "model_id"], ignore_index=True
    )
    number = kept.groupby("architecture").cumcount() + 1
    named = kept.assign(model=kept["architecture"] + " no. " + number.astype(str))
    return named[number <= per_architecture] if per_architecture else named


def check_unseen(work: Path, chosen: pd.DataFrame, unseen: Sequence[str]) -> None:
    """Refuse unseen classes that the start of a chosen model has seen; one that 02 did not make is taken to know all of ImageNet."""
    for weights in sorted(
        set(chosen.loc[chosen["pretrained"].astype(bool), "weights"])
    ):
        known = {name for name in unseen if re.fullmatch(r"n\d{8}", name)}
        if catalogue.is_complete(work / pretraining.FOLDER, weights):
            known = set(of_study(work / pretraining.FOLDER).classes["class_id"])
        if shared := [name for name in unseen if name in known]:
            seen = f"{len(shared)} of {len(unseen)} unseen_class_ids ({', '.join(shared[:3])})"
            raise ValueError(
                f"the pretrained start {weights} has seen {seen}; set include_pretrained to false, or name other classes"
            )


def model_set(
    work: Path, chosen: pd.DataFrame, data: StudyData, seen: int
) -> list[Model]:
    """Backbones of rows of the catalogue, see ``chosen_models``."""
    if len(chosen) and seen != len(data.classes):
        raise ValueError(
            f"the model set was trained on all {len(data.classes)} classes, not on {seen}; set seen_classes to 0"
        )
    origin = f"trained on {len(data.classes)} classes"
    more = chosen.assign(
        family=MODEL_SET,
        origin=origin
        + chosen["pretrained"].astype(bool).map({True: ", pretrained", False: ""}),
    )
    return [backbone(model) for model in models_of(work, more, data)]


def backbone(model: Model) -> Model:
    """A classifier without its last linear layer: its features are what went into that."""
    load, initial = (
        partial(_without_head, make) for make in (model.load, model.initial)
    )
    return replace(model, load=load, initial=initial, training_images=None)


def without_head(network: nn.Module) -> nn.Module:
    """Put the identity in place of the last linear layer of a network."""
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
    """Backbones read from local files by timm's definitions; other names are passed over.

    Features of a CLIP network ("RN50") are its image embeddings (Radford et al. 2021), at the side of its attention pool; of others what
    goes into their last layer. ``weights`` is a path from the project's root, with {architecture} for the name.
    """
    models = []
    for name in (name for name in names if name != MODEL_SET and not family_made(name)):
        import timm  # pip install "generalization-workbook[backbones]"

        path, given = (
            from_root(weights.replace("{architecture}", name)),
            timm.get_pretrained_cfg(CLIP.get(name, name)),
        )
        if not path.is_file():
            raise FileNotFoundError(
                f"the weights of {name} are not in {path}; put them there, or change kappa_weights or kappa_families"
            )
        resized = (
            [v2.Resize(list(given.input_size[1:]), v2.InterpolationMode.BICUBIC)]
            if name in CLIP
            else []
        )
        normalise = v2.Compose(
            [
                *resized,
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(given.mean, given.std),
            ]
        )
        family = "clip" if name in CLIP else re.sub(r"^tf_|_?b?\d+$", "", name)
        facts = {
            "family": family,
            "model": name,
            "architecture": name,
            "origin": f"file {path.name}",
        }
        model_id = f"{name}-{weights_digest(read_state(path))}"
        models.append(
            Model(
                model_id,
                partial(_load_published, name, path),
                facts,
                normalise=normalise,
            )
        )
    return models


def _load_published(
    name: str, path: Path, device: torch.device | str = "cpu"
) -> nn.Module:
    import timm

    state = read_state(path)
    if name in CLIP:
        network = timm.create_model(CLIP[name])
        state = timm.models.byobnet.checkpoint_filter_fn(
            state, network
        )  # files as OpenAI names their tensors, too
    else:
        network = timm.create_model(name, num_classes=0)
        state = {
            key: value
            for key, value in state.items()
            if not key.startswith(f"{network.pretrained_cfg['classifier']}.")
        }
    return load_backbone(network, state).to(device).eval()


def with_probes(models: Sequence[Model], probes: Kept) -> list[Model]:
    """Backbones with their probes of the seen classes as heads (``probing.probes``); their starts have heads of zeros, as probes have."""
    found = []
    for model in models:
        weight, bias = map(
            probes.record("probes", model.model_id).get, ("weight", "bias")
        )
        load, initial = (
            partial(_with_head, model.load, weight, bias),
            partial(_with_head, model.initial, 0 * weight, 0 * bias),
        )
        model_id = f"{model.model_id}-{digest([weight.tolist(), bias.tolist()])}"
        found.append(replace(model, model_id=model_id, load=load, initial=initial))
    return found


def _with_head(
    make: Callable[..., nn.Module | None], weight: NDArray, bias: NDArray, *device: str
) -> nn.Module | None:
    if (network := make(*device)) is None:
        return None
    head = nn.utils.skip_init(nn.Linear, *weight.T.shape)
    head.load_state_dict(
        {"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)}
    )
    return nn.Sequential(network, head.to(*device)).eval()
