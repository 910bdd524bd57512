"""The networks whose frozen features are probed.

Networks that notebook 06 trains (see ``making``), and published ones.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from numpy.typing import NDArray
from torch import nn

from helpers.files import from_root, json_digest
from helpers.networks.resnet import IMAGENET_MEAN, IMAGENET_STD
from helpers.networks.weights import ENDINGS, check_numbers, read_state, weights_digest
from helpers.parameters import near_names
from helpers.scores.models import Model
from helpers.scores.store import Records

_SIDE = 224  # pixels
# CLIP's image encoders by their published names, with the names in timm.
CLIP = {
    name: f"resnet{name[2:]}_clip"
    for name in ("RN50", "RN101", "RN50x4", "RN50x16", "RN50x64")
}


def is_made(name: str) -> bool:
    """Whether a network is trained here: "resnet18 w0.25", or "resnet18 tuned".

    Args:
        name: of a network.
    """
    return bool(re.search(r" (w\S*|tuned)$", name))


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


def published(names: Sequence[str], weights: str) -> list[Model]:
    """Published networks without their heads, whose weights lie in local files.

    Features of a CLIP network ("RN50") are its image embeddings (Radford et al. 2021);
    features of others are the input of their last layer. Images have the side that a
    network was trained with; EfficientNets take 224 px, as in Huang et al. 2025.

    Args:
        names: of architectures: of a CLIP network, or in torchvision, or else in timm;
            or of a folder of checkpoints, which is a family; the name of a file begins
            with that of its architecture, then a point or a hyphen ("resnet18-2.pth").
        weights: a path from the project's root, with {architecture} for the name.

    Returns:
        Models, whose ``facts`` have family, model, origin and side. Of networks that
        lie in no folder the family is the module that defines them.

    Raises:
        FileNotFoundError: where the weights of a network are not there.
        ValueError: for an unknown name, with the nearest ones.
    """
    models = []
    for name in names:
        folder = from_root(name)
        if not folder.is_dir():
            path = from_root(weights.replace("{architecture}", name))
            models.append(_model(name, path))
            continue
        paths = sorted(path for path in folder.iterdir() if path.suffix in ENDINGS)
        if not paths:
            raise FileNotFoundError(
                f"{folder} has no checkpoints ({', '.join(ENDINGS)}); put them "
                "there, or leave it out of kappa_families"
            )
        models += [_model(path.stem, path, folder.name) for path in paths]
    return models


def _model(name: str, path: Path, family: str = "") -> Model:
    """A published network by the architecture with which its name begins."""
    import torchvision  # here: it takes two seconds
    from torchvision.transforms import v2

    architecture = re.split(r"[.-]", name)[0]
    known = torchvision.models.list_models(module=torchvision.models)
    if architecture in known:
        build = torchvision.models.get_model_builder(architecture)
        module = build.__module__.split(".")[-1]
        side, mean, std = _SIDE, IMAGENET_MEAN, IMAGENET_STD
    else:
        import timm  # pip install "generalization-workbook[backbones]"

        in_timm = CLIP.get(architecture, architecture)
        if not timm.is_model(in_timm):
            near = near_names(architecture, [*CLIP, *known, *timm.list_models()])
            raise ValueError(
                f"{architecture!r} is no network of torchvision or timm and no folder"
                f"{near}; kappa_families takes their names and folders of checkpoints "
                "whose files begin with one; a network to be made has a width: "
                "'resnet18 w0.25'; one to be fine-tuned ends in 'tuned'"
            )
        build = partial(timm.create_model, in_timm)
        module = timm.models.model_entrypoint(in_timm).__module__.split(".")[-1]
        form = timm.get_pretrained_cfg(in_timm)
        side = _SIDE if module == "efficientnet" else form.input_size[-1]
        mean, std = form.mean, form.std
    steps = [
        v2.Resize([side, side], v2.InterpolationMode.BICUBIC),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(mean, std),
    ]
    is_clip = architecture in CLIP
    facts = {
        "family": family or ("clip" if is_clip else module),
        "model": name,
        "origin": f"file {path.name}",
        "side": side,
    }
    model_id = f"{name}-{weights_digest(read_state(path))}"
    load = partial(backbone, build, path, is_clip=is_clip)
    return Model(model_id, load, facts, normalise=v2.Compose(steps))


def to_be_tuned(model: Model, classes: int, seed: int) -> nn.Module:
    """A published network with a new head, as Huang et al. 2025 fine-tune it.

    Args:
        model: of ``published``.
        classes: number of outputs.
        seed: of the head.
    """
    network = model.load("cpu")
    side = model.facts["side"]
    with torch.inference_mode():
        features = network(torch.zeros(1, 3, side, side)).shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = nn.Linear(features, classes)
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # it would draw from no seed of the run
    return nn.Sequential(network, head)


def backbone(
    build: Callable[[], nn.Module],
    path: Path | None = None,
    device: torch.device | str = "cpu",
    *,
    is_clip: bool = False,
) -> nn.Module:
    """A network without its head, in eval mode.

    Args:
        build: the network before its training.
        path: of its weights; without one it has those before its training.
        device: where it is put.
        is_clip: whether it is an image encoder of CLIP, all of which is kept.
    """
    network = build()
    state = read_state(path) if path else network.state_dict()
    if is_clip:
        import timm

        # Files may have OpenAI's names of tensors too.
        state = timm.models.byobnet.checkpoint_filter_fn(state, network)
    else:
        head = f"{last_linear(network)}."
        state = {key: value for key, value in state.items() if not key.startswith(head)}
        without_head(network)
    network.load_state_dict(state)
    check_numbers(state, state, str(path))
    return network.to(device, memory_format=torch.channels_last).eval()


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
        digest = json_digest([weight.tolist(), bias.tolist()])
        classifier = replace(
            model,
            model_id=f"{model.model_id}-{digest}",
            load=partial(_with_head, model.load, weight, bias),
            initial=partial(_with_head, model.initial, 0 * weight, 0 * bias),
        )
        classifiers.append(classifier)
    return classifiers


def _with_head(
    load: Callable[..., nn.Module | None],
    weight: NDArray,
    bias: NDArray,
    *device: torch.device | str,
) -> nn.Module | None:
    network = load(*device)
    if network is None:
        return None
    head = nn.utils.skip_init(nn.Linear, *weight.T.shape)
    head.weight.data = torch.from_numpy(weight)
    head.bias.data = torch.from_numpy(bias)
    return nn.Sequential(network, head.to(next(network.parameters()).device)).eval()
