"""Checkpoints of one's own, read without running any code in them, and put into networks made by name."""

import hashlib
import importlib
import inspect
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import torch
import torchvision
from torch import Tensor, nn
from torchvision.transforms import v2

from helpers.networks.resnet import sample_first
from helpers.networks.weights import check_numbers, form_in, read_state
from helpers.scoring.models import Model

ENDINGS = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")
AUTO = "auto"
# What a guess tries: the names and shapes of a state dict tell these apart.
RESNETS = (
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "wide_resnet50_2",
    "wide_resnet101_2",
    "resnext50_32x4d",
)
_BLOCK = re.compile(r"((?:.+\.)?layer\d+\.\d+)\.")
Builder = Callable[[int], nn.Module]  # number of classes -> untrained network
Shapes = Mapping[str, tuple[int, ...]]  # of tensors, by their names


class Loaded(NamedTuple):
    """A network in evaluation mode on the CPU."""

    network: nn.Module
    classes: int  # outputs
    notes: tuple[str, ...]  # on how it was read


def find(folder: Path) -> dict[str, Path]:
    """Checkpoints of a folder and below, or one file, by name; hidden files are left out."""
    if not folder.exists():
        raise FileNotFoundError(f"the folder of checkpoints {folder} does not exist")
    if folder.is_file():
        return {folder.name: folder}
    paths = [
        path
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in ENDINGS and not path.name.startswith(".")
    ]
    if not paths:
        raise ValueError(
            f"no checkpoint is in {folder}: looked for files that end in {', '.join(ENDINGS)}, in it and below"
        )
    return {path.relative_to(folder).as_posix(): path for path in paths}


def model(path: Path, name: str, architecture: str, normalise: v2.Compose) -> Model:
    """A checkpoint as a model that measures can be computed of; its id names all that decides its values. ``facts``: checkpoint, bytes."""
    with path.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    digest = hashlib.blake2b(
        f"{architecture} {normalise} {content}".encode(), digest_size=6
    ).hexdigest()
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[-60:]
    facts = {"checkpoint": name, "bytes": content}
    return Model(
        f"{plain}-{digest}",
        partial(_network, path, architecture),
        facts=facts,
        normalise=normalise,
    )


def load_checkpoint(path: Path, architecture: str = AUTO) -> Loaded:
    """Read one checkpoint and put it into a new network of its architecture; every tensor of the network must find its own.

    The architecture is as in ``builder_of``; "auto" takes the network that the file's header names, else tells torchvision's ResNets apart
    by their tensors. ValueError where the file is no checkpoint, would need code to be run, is damaged, or does not fit.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = read_state(path)
    notes = tuple(
        str(warning.message).replace(path.name, "it", 1)
        for warning in caught
        if issubclass(warning.category, UserWarning)
    )
    form = form_in(path) if architecture == AUTO else None
    name = (
        form.architecture
        if form
        else guess(state)
        if architecture == AUTO
        else architecture
    )
    builder = form.network if form else builder_of(name)
    state = _of_network(state, set(_shapes(builder, 2)))
    classes = class_count(builder, state, name)
    if classes < 2:
        raise ValueError(f"it has {classes} outputs, and a classifier needs at least 2")
    shapes = _shapes(
        builder, classes
    )  # before anything is built, which a file could ask to be of any size
    absent = [
        key
        for key in shapes
        if key not in state and not key.endswith("num_batches_tracked")
    ]
    if wrong := absent + [
        key for key, value in state.items() if shapes.get(key) != tuple(value.shape)
    ]:
        told = f"{len(wrong)} tensors are missing, unknown or of another shape, first {', '.join(wrong[:3])}"
        raise ValueError(
            f"it does not fit {name} with {classes} outputs: {told}; name the architecture that it was trained with"
        )
    network = builder(classes)
    check_numbers(state, network.state_dict(), path.name)
    network.load_state_dict(state, strict=False)
    return Loaded(
        sample_first(network).to(memory_format=torch.channels_last).eval(),
        classes,
        notes,
    )


def _network(
    path: Path, architecture: str, device: torch.device | str = "cpu"
) -> nn.Module:
    return load_checkpoint(path, architecture).network.to(device)


def _of_network(state: Mapping[str, Tensor], names: set[str]) -> dict[str, Tensor]:
    """The part of a state dict that is of the network, where a training program keeps it beside others, as Lightning does."""
    prefixes = ["", *dict.fromkeys(name.partition(".")[0] + "." for name in state)]
    best = max(
        prefixes,
        key=lambda prefix: sum(
            name.startswith(prefix) and name.removeprefix(prefix) in names
            for name in state
        ),
    )
    return {
        name.removeprefix(best): value
        for name, value in state.items()
        if name.startswith(best)
    }


@lru_cache
def builder_of(architecture: str) -> Builder:
    """What makes an untrained network of torchvision's name, "timm:NAME", or "module:function", whose module is run; else ValueError."""
    kind, colon, name = architecture.partition(":")
    if colon:
        return _of_timm(name) if kind == "timm" else _of_user(kind, name)
    if architecture not in torchvision.models.list_models(module=torchvision.models):
        told = f"name one of torchvision's classifiers (such as {', '.join(RESNETS[:3])}), timm:NAME, or module:function"
        raise ValueError(f"architecture {architecture!r} is unknown; {told}")
    return lambda classes: torchvision.models.get_model(
        architecture, weights=None, num_classes=classes
    )


def _of_timm(name: str) -> Builder:
    try:
        import timm
    except ImportError as fault:
        raise ValueError(
            f"architecture 'timm:{name}' needs timm, which is not installed: pip install timm"
        ) from fault
    if not timm.is_model(name):
        raise ValueError(
            f"timm {timm.__version__} has no architecture {name!r}; it has {', '.join(timm.list_models(f'{name[:6]}*')[:5])}"
        )
    return lambda classes: timm.create_model(
        name, pretrained=False, num_classes=classes
    )


def _of_user(module: str, name: str) -> Builder:
    """By a function of one's own, which takes the number of classes, or nothing."""
    try:
        function = getattr(importlib.import_module(module), name)
        asked = inspect.signature(function).parameters.values()
    except Exception as fault:  # the module is run, and may fail in any way
        told = f"{type(fault).__name__}: {fault}"
        raise ValueError(
            f"architecture '{module}:{name}' cannot be imported ({told}); put the module where python finds it"
        ) from fault
    takes = any(
        item.default is item.empty
        and item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)
        for item in asked
    )

    def build(classes: int) -> nn.Module:
        with torch.device(
            "cpu"
        ):  # a function of one's own may read its weights' values
            network = function(classes) if takes else function()
        if not isinstance(network, nn.Module):
            raise ValueError(
                f"architecture '{module}:{name}' gives {type(network).__name__}, and must give a torch.nn.Module"
            )
        return network

    return build


@lru_cache(maxsize=256)
def _shapes(builder: Builder, classes: int) -> Shapes:
    """Names and shapes of a network's tensors."""
    with torch.device("meta"):
        return {
            name: tuple(value.shape)
            for name, value in builder(classes).state_dict().items()
        }


def class_count(builder: Builder, state: Mapping[str, Tensor], name: str) -> int:
    """Outputs of a checkpoint's head, else ValueError; of a network of a fixed number of classes those of its last linear layer."""
    two, three = _shapes(builder, 2), _shapes(builder, 3)
    heads = [
        (key, axis)
        for key, shape in two.items()
        for axis in range(len(shape))
        if shape[axis] != three[key][axis]
    ]
    if not heads:
        linear = [
            module for module in builder(2).modules() if isinstance(module, nn.Linear)
        ]
        return linear[-1].out_features if linear else 0
    key, axis = heads[0]  # what differs in networks of 2 and of 3 classes
    if key not in state or state[key].ndim <= axis:
        raise ValueError(
            f"it has no head of {name}: {key} is not in it; name the architecture that it was trained with"
        )
    return int(state[key].shape[axis])


def guess(state: Mapping[str, Tensor]) -> str:
    """Which of torchvision's ResNets a state dict is of, by names and shapes of all but the head; ValueError where it is of none."""
    for name in RESNETS:
        shapes = _shapes(builder_of(name), 2)
        found = _body(
            {
                key: tuple(value.shape)
                for key, value in _of_network(state, set(shapes)).items()
            }
        )
        if (shapes := _body(shapes)) == found:
            return name
        if shapes.keys() == found.keys() and len(first := found["conv1.weight"]) == 4:
            told = f"it fits a {name} of {first[0]} channels with a {first[2]}x{first[3]} stem, whose strides no weights tell"
            raise ValueError(
                f"{told}; name the function that makes it: --architecture module:function"
            )
    raise ValueError(
        "it is none of torchvision's ResNets; name its --architecture: torchvision's name, timm:NAME or module:function"
    )


def _body(shapes: Shapes) -> Shapes:
    """Stem and stages of a ResNet, by their names in torchvision."""
    parts = re.compile(r"(conv1|bn1|layer\d)\.")
    return {
        name: shape
        for name, shape in shapes.items()
        if parts.match(name) and not name.endswith("num_batches_tracked")
    }


def described(network: nn.Module) -> tuple[str, bool]:
    """A network in words, and whether it is a ResNet, whose blocks ("layer1.0") have two or three convolutions beside a shortcut."""
    convolutions = {
        name: module
        for name, module in network.named_modules()
        if isinstance(module, nn.Conv2d)
    }
    blocks: dict[str, list[nn.Conv2d]] = {}
    for name, module in convolutions.items():
        if (block := _BLOCK.match(name)) and not re.search("downsample|shortcut", name):
            blocks.setdefault(block[1], []).append(module)
    if not blocks or not all(len(inner) in (2, 3) for inner in blocks.values()):
        weights = sum(parameter.numel() for parameter in network.parameters())
        return f"{type(network).__name__} of {weights / 1e6:.3g} million weights", False
    first, last = next(iter(convolutions.values())), list(blocks)[-1].rpartition(".")[0]
    stride = max(
        module.stride[0]
        for name, inner in blocks.items()
        if name.startswith(f"{last}.")
        for module in inner
    )
    pooled = (
        ", max-pool"
        if any(isinstance(module, nn.MaxPool2d) for module in network.modules())
        else ""
    )
    stem = f"a {'x'.join(map(str, first.kernel_size))} stem of stride {first.stride[0]}{pooled}"
    depth = sum(map(len, blocks.values())) + 2
    return (
        f"ResNet{depth}, {first.out_channels} channels after {stem}, last stage of stride {stride}",
        True,
    )


def normaliser(mean: Sequence[float], std: Sequence[float]) -> v2.Compose:
    """``(x / 255 - mean) / std`` of uint8 images, for each channel; ValueError where that cannot be."""
    fits = [0 <= value <= 1 for value in mean] + [0 < value <= 1 for value in std]
    if len(mean) != 3 or len(std) != 3 or not all(fits):
        raise ValueError(
            f"mean {list(mean)} and std {list(std)} must be three numbers each in [0, 1], std above 0, as in training"
        )
    return v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)])
