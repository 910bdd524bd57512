"""The networks whose frozen features are probed.

Networks that notebook 06 trains (see ``making``), and published ones.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from numpy.typing import NDArray
from torch import nn
from torchvision.transforms import v2

from helpers.files import from_root, json_digest
from helpers.networks.weights import check_numbers, read_state, weights_digest
from helpers.parameters import near_names
from helpers.scores.models import Model
from helpers.scores.store import Records

_ENDINGS = (".safetensors", ".pt", ".pth")
_SIDE = 224  # pixels
_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)
# CLIP's image encoders by their published names, with the names in timm.
CLIP = {
    name: f"resnet{name[2:]}_clip"
    for name in ("RN50", "RN101", "RN50x4", "RN50x16", "RN50x64")
}


class Checkpoint(NamedTuple):
    """A published network: its file, how it is built, and which images it takes."""

    name: str
    path: Path  # of its weights
    architecture: str  # the beginning of its name
    family: str
    build: Callable[[], nn.Module]
    side: int = _SIDE  # of its images, pixels
    mean: Sequence[float] = _IMAGENET_MEAN  # of pixels in [0, 1], RGB
    std: Sequence[float] = _IMAGENET_STD


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


def checkpoints(names: Sequence[str], weights: str) -> Iterator[Checkpoint]:
    """Networks whose weights lie in local files.

    Args:
        names: of architectures: of a CLIP network ("RN50"), or in torchvision, or else
            in timm; or of a folder of checkpoints, which is a family; the name of a
            file begins with that of its architecture, then a point or a hyphen
            ("resnet18-2.pth").
        weights: a path from the project's root, with {architecture} for the name.

    Yields:
        Of other networks the family is the module that defines them. Images have the
        side that a network was trained with; EfficientNets take 224 px, as in Huang et
        al. 2025.

    Raises:
        FileNotFoundError: for a folder without checkpoints.
        ValueError: for an unknown name, with the nearest ones.
    """
    for name in names:
        folder = from_root(name)
        paths = [from_root(weights.replace("{architecture}", name))]
        is_family = folder.is_dir()
        if is_family:
            paths = sorted(path for path in folder.iterdir() if path.suffix in _ENDINGS)
        if not paths:
            raise FileNotFoundError(
                f"{folder} has no checkpoints ({', '.join(_ENDINGS)}); put them "
                "there, or leave it out of kappa_families"
            )
        for path in paths:
            of_file = path.stem if is_family else name
            network = _of_architecture(of_file, path)
            yield network._replace(family=folder.name) if is_family else network


def _of_architecture(name: str, path: Path) -> Checkpoint:
    """A published network by the architecture with which its name begins."""
    import torchvision

    architecture = re.split(r"[.-]", name)[0]
    known = torchvision.models.list_models(module=torchvision.models)
    if architecture in known:
        build = torchvision.models.get_model_builder(architecture)
        family = build.__module__.split(".")[-1]
        return Checkpoint(name, path, architecture, family, build)
    import timm  # pip install "generalization-workbook[backbones]"

    in_timm = CLIP.get(architecture, architecture)
    if not timm.is_model(in_timm):
        names = dict.fromkeys([*CLIP, *known, *timm.list_models()])
        near = near_names(architecture, names)
        raise ValueError(
            f"{architecture!r} is no network of torchvision or timm and no folder{near}"
            "; kappa_families takes their names and folders of checkpoints whose files "
            "begin with one; a network to be made has a width: 'resnet18 w0.25'; "
            "one to be fine-tuned ends in 'tuned': 'resnet18 tuned'"
        )
    build = partial(timm.create_model, in_timm)
    family = timm.models.model_entrypoint(in_timm).__module__.split(".")[-1]
    as_trained = timm.get_pretrained_cfg(in_timm)
    side = _SIDE if family == "efficientnet" else as_trained.input_size[-1]
    family = "clip" if architecture in CLIP else family
    form = family, build, side, as_trained.mean, as_trained.std
    return Checkpoint(name, path, architecture, *form)


def published(names: Sequence[str], weights: str) -> list[Model]:
    """Published networks without their heads.

    Features of a CLIP network ("RN50") are its image embeddings (Radford et al. 2021);
    features of others are the input of their last layer.

    Args:
        names: see ``checkpoints``.
        weights: see ``checkpoints``.

    Raises:
        FileNotFoundError: where the weights of a network are not there.
        ValueError: for an unknown name.
    """
    models = []
    for network in checkpoints(names, weights):
        steps = [
            v2.Resize([network.side, network.side], v2.InterpolationMode.BICUBIC),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(network.mean, network.std),
        ]
        facts = {
            "family": network.family,
            "model": network.name,
            "origin": f"file {network.path.name}",
            "side": network.side,
        }
        model_id = f"{network.name}-{weights_digest(read_state(network.path))}"
        load = partial(_load, network)
        models.append(Model(model_id, load, facts, normalise=v2.Compose(steps)))
    return models


def to_be_tuned(file: Checkpoint, classes: int, seed: int) -> nn.Module:
    """A published network with a new head, as Huang et al. 2025 fine-tune it.

    Args:
        file: of ``checkpoints``.
        classes: number of outputs.
        seed: of the head.
    """
    network = _load(file)
    as_published = file.build()
    head = last_linear(as_published)
    features = as_published.get_submodule(head).in_features
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network.set_submodule(head, nn.Linear(features, classes))
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # it would draw from no seed of the run
    return network


def _load(file: Checkpoint, device: torch.device | str = "cpu") -> nn.Module:
    """A published network without its head."""
    network = file.build()
    state = read_state(file.path)
    if file.architecture in CLIP:
        import timm

        # Files may have OpenAI's names of tensors too.
        state = timm.models.byobnet.checkpoint_filter_fn(state, network)
    else:
        head = f"{last_linear(network)}."
        state = {key: value for key, value in state.items() if not key.startswith(head)}
        without_head(network)
    network.load_state_dict(state)
    check_numbers(state, state, file.path.name)
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
