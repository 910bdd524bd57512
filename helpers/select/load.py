"""A user's checkpoints, found in a folder, read without running any code in them, and put into networks made by name."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import torch
import torchvision
from torch import Tensor, nn

from helpers.networks.resnet import sample_first
from helpers.networks.weights import Form, check_numbers, form_in, read_state

# What a guess tries: the names and shapes of a state dict tell these apart.
RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet50_2", "wide_resnet101_2", "resnext50_32x4d")
StateMapping = Mapping[str, Tensor]
Builder = Callable[[int], nn.Module]  # number of classes -> untrained network


@lru_cache
def builder_of(architecture: str) -> Builder:
    """Find what makes an untrained network of a number of classes.

    Args:
        architecture: torchvision's name of a classifier ("resnet18"), "timm:NAME", or "module:function" of the user, whose function takes
            the number of classes, or nothing. A user's module is imported from where Python looks for modules: it is run, as it is named.

    Raises:
        ValueError: it is none of these, or timm is not installed.
    """
    kind, colon, name = architecture.partition(":")
    if not colon:
        if architecture not in classifiers():
            raise ValueError(
                f"architecture {architecture!r} is unknown; name one of torchvision's classifiers (such as {', '.join(RESNETS[:3])}), "
                "timm:NAME, or module:function"
            )
        return partial(_torchvision, architecture)
    return _timm(name) if kind == "timm" else _users(kind, name)


@lru_cache
def classifiers() -> tuple[str, ...]:
    """List the names of torchvision's image classifiers."""
    return tuple(torchvision.models.list_models(module=torchvision.models))


def _torchvision(name: str, classes: int) -> nn.Module:
    extra = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
    return torchvision.models.get_model(name, weights=None, num_classes=classes, **extra)


def _timm(name: str) -> Builder:
    try:
        import timm
    except ImportError as fault:
        raise ValueError(f"architecture 'timm:{name}' needs timm, which is not installed: pip install timm") from fault
    if not timm.is_model(name):
        raise ValueError(f"timm {timm.__version__} has no architecture {name!r}; it has {', '.join(timm.list_models(f'{name[:6]}*')[:5])}")
    return partial(_timm_model, name)


def _timm_model(name: str, classes: int) -> nn.Module:
    import timm

    return timm.create_model(name, pretrained=False, num_classes=classes)


def _users(module: str, name: str) -> Builder:
    try:
        function = getattr(importlib.import_module(module), name)
        asked = inspect.signature(function).parameters.values()
    except Exception as fault:  # the module is run, and may fail in any way
        told = f"{type(fault).__name__}: {fault}"
        raise ValueError(f"architecture '{module}:{name}' cannot be imported ({told}); put the module where python finds it") from fault
    takes = any(item.default is item.empty and item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD) for item in asked)
    return partial(_made, f"{module}:{name}", function, takes)


def _made(architecture: str, function: Callable[..., nn.Module], takes: bool, classes: int) -> nn.Module:
    try:
        network = function(classes) if takes else function()
    except Exception as fault:  # likewise
        raise ValueError(
            f"architecture {architecture!r} makes no network of {classes} classes ({type(fault).__name__}: {fault})"
        ) from fault
    if not isinstance(network, nn.Module):
        raise ValueError(f"architecture {architecture!r} gives {type(network).__name__}, and must give a torch.nn.Module")
    return network


@lru_cache(maxsize=256)
def _shapes(builder: Builder, classes: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a network's tensors, without drawing weights where that can be helped."""
    named = (
        builder.func in (_torchvision, _timm_model) if isinstance(builder, partial) else getattr(builder, "__func__", None) is Form.network
    )
    if named:
        with torch.device("meta"):
            return {name: tuple(value.shape) for name, value in builder(classes).state_dict().items()}
    return {name: tuple(value.shape) for name, value in builder(classes).state_dict().items()}


def class_count(builder: Builder, state: StateMapping, name: str) -> int:
    """Read from the head how many outputs a checkpoint has: where the shapes of a network of 2 and of 3 classes differ.

    Raises:
        ValueError: the checkpoint has no such tensor.
    """
    two, three = _shapes(builder, 2), _shapes(builder, 3)
    differ = [(key, axis) for key, shape in two.items() for axis in range(len(shape)) if shape[axis] != three[key][axis]]
    if not differ:  # the user's function has one number of classes
        with torch.no_grad():
            heads = [module for module in builder(2).modules() if isinstance(module, nn.Linear)]
        return heads[-1].out_features if heads else 0
    key, axis = next(((key, axis) for key, axis in differ if key in state and state[key].ndim > axis), (None, 0))
    if key is None:
        raise ValueError(
            f"the checkpoint has no head of {name}: {differ[0][0]} is not in it; name the architecture that it was trained with"
        )
    return int(state[key].shape[axis])


def guess(state: StateMapping, file: str) -> str:
    """Which of torchvision's ResNets a state dict belongs to, by names and shapes of all but the head.

    Raises:
        ValueError: none of them.
    """
    found = _bodies({name: tuple(value.shape) for name, value in state.items()})
    for name in RESNETS:
        if _bodies(_shapes(builder_of(name), 2)) == found:
            return name
    raise ValueError(f"{file} is none of {', '.join(RESNETS)}; name its architecture: torchvision's name, timm:NAME or module:function")


def _bodies(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, shape in shapes.items() if not name.startswith("fc.") and not name.endswith("num_batches_tracked")}


ENDINGS = (".safetensors", ".pt", ".pth", ".ckpt")
AUTO = "auto"


_NOT_THERE = "passed over: no regular file, or a link to nothing"


class Candidate(NamedTuple):
    """A network to be judged, not loaded yet."""

    name: str  # shown as text: the path below the folder
    load: Callable[[], "Loaded"]  # raises ValueError, in one line, when it cannot be had
    passed_over: str = ""  # why it is no checkpoint


class Loaded(NamedTuple):
    """A network in evaluation mode on the CPU."""

    network: nn.Module
    form: Form  # of the published network, where the file names none
    classes: int  # outputs


def find(folder: Path, architecture: str = AUTO) -> list[Candidate]:
    """List the files in a folder and below, sorted by path, so that each can be told of; nothing is read yet.

    Args:
        folder: of checkpoints, which end in ``ENDINGS``; other files, and hidden ones, are candidates that are passed over. Other hidden
            files are left out. A single file is a folder of one.
        architecture: see ``load.builder_of``; "auto" takes the network that the file's header names, as the checkpoints of a report do, and
            else tells torchvision's ResNets apart by their tensors.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: no checkpoint is in it, or the architecture is unknown.
    """
    if not folder.exists():
        raise FileNotFoundError(f"the folder of checkpoints {folder} does not exist")
    if architecture != AUTO:
        _shapes(builder_of(architecture), 2)
    paths = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    top = folder.parent if folder.is_file() else folder
    found = [Candidate(_text(path.relative_to(top)), partial(load_checkpoint, path, architecture), _no_checkpoint(path)) for path in paths]
    if all(candidate.passed_over for candidate in found):
        raise ValueError(f"no checkpoint is in {folder}: looked for files that end in {', '.join(ENDINGS)}, in it and below")
    hidden = [path.name.startswith(".") and path.suffix.lower() not in ENDINGS for path in paths]
    return [candidate for candidate, left_out in zip(found, hidden, strict=True) if not left_out]


def _no_checkpoint(path: Path) -> str:
    """Why a file is passed over; "" for a checkpoint."""
    if not path.is_file():
        return "passed over: a link to a folder, which is not followed; name it itself" if path.is_dir() else _NOT_THERE
    if path.suffix.lower() not in ENDINGS:
        return f"passed over: a checkpoint ends in {', '.join(ENDINGS)}"
    return "passed over: a hidden file" if path.name.startswith(".") else ""


def _text(path: Path) -> str:
    """Write a path as text that any file can hold: bytes that are no UTF-8 as escapes, and so every backslash doubled."""
    return path.as_posix().replace("\\", "\\\\").encode("utf-8", "backslashreplace").decode("utf-8")


def load_checkpoint(path: Path, architecture: str = AUTO) -> Loaded:
    """Read one checkpoint and put it into a new network of its architecture; every tensor must find its place.

    Raises:
        ValueError: the file would need code to be run, is damaged, or does not fit; the message says which tensors differ.
    """
    state = read_state(path)
    form = form_in(path) if architecture == AUTO else None
    name = form.architecture if form else architecture if architecture != AUTO else guess(state, path.name)
    builder = form.network if form else builder_of(name)
    classes = class_count(builder, state, name)
    if classes < 2:
        raise ValueError(
            f"{path.name} has {classes} outputs, and a classifier needs at least 2; name the architecture that it was trained with"
        )
    shapes = _shapes(builder, classes)  # before anything is built, which a file could ask to be of any size
    absent = [key for key in shapes if key not in state and not key.endswith("num_batches_tracked")]
    wrong = absent + [key for key, value in state.items() if shapes.get(key) != tuple(value.shape)]
    if wrong:
        raise ValueError(
            f"{path.name} does not fit {name} with {classes} outputs: {len(wrong)} tensors are missing, unknown or of another shape, "
            f"first {', '.join(wrong[:3])}; name the architecture that it was trained with"
        )
    network = builder(classes)
    check_numbers(state, network.state_dict(), path.name)
    network.load_state_dict(state, strict=False)
    return Loaded(sample_first(network).to(memory_format=torch.channels_last).eval(), form or Form(name), classes)
