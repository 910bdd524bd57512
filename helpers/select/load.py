"""A user's checkpoints: found in a folder, read without running any code in them, and put into a network named by the user."""

import pickle
import struct
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from helpers.own_architectures import builder_of, class_count, guess
from helpers.resnet import sample_first

ENDINGS = (".safetensors", ".pt", ".pth")
AUTO = "auto"
# Where training programs keep the state dict inside a file, and what wrappers put before each name.
_NESTED = ("state_dict", "model_state_dict", "model", "net", "network", "weights")
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.")
State = dict[str, Tensor]
# What a damaged file can make the readers raise.
_DAMAGED = (SafetensorError, RuntimeError, EOFError, OSError, ValueError, KeyError, IndexError, AttributeError, TypeError, struct.error)


class Candidate(NamedTuple):
    """A network to be judged, not loaded yet."""

    name: str  # shown as text: the path below the folder
    load: Callable[[], "Loaded"]  # raises ValueError, in one line, when it cannot be had


class Loaded(NamedTuple):
    """A network in evaluation mode on the CPU."""

    network: nn.Module
    architecture: str
    classes: int  # outputs


def find(folder: Path, architecture: str = AUTO) -> list[Candidate]:
    """List the checkpoints in a folder and below, sorted by path; nothing is read yet.

    Args:
        folder: searched for ``ENDINGS``; hidden files are passed over. A single file is a folder of one.
        architecture: see ``own_architectures.builder_of``; "auto" tells torchvision's ResNets apart by their tensors.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: no checkpoint is in it, or the architecture is unknown.
    """
    if not folder.exists():
        raise FileNotFoundError(f"the folder of checkpoints {folder} does not exist")
    if architecture != AUTO:
        builder_of(architecture)
    paths = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.is_file())
    top = folder.parent if folder.is_file() else folder
    kept = [path for path in paths if path.suffix.lower() in ENDINGS and not path.name.startswith(".")]
    if not kept:
        raise ValueError(f"no checkpoint is in {folder}: looked for files that end in {', '.join(ENDINGS)}, in it and below")
    return [Candidate(path.relative_to(top).as_posix(), partial(load, path, architecture)) for path in kept]


def load(path: Path, architecture: str = AUTO) -> Loaded:
    """Read one checkpoint and put it into a new network of its architecture; every tensor must find its place.

    Raises:
        ValueError: the file would need code to be run, is damaged, or does not fit; the message says which tensors differ.
    """
    state = read_state(path)
    name = architecture if architecture != AUTO else guess(state, path.name)
    builder = builder_of(name)
    classes = class_count(builder, state, name)
    network = builder(classes)
    own = network.state_dict()
    absent = [key for key in own if key not in state and not key.endswith("num_batches_tracked")]
    wrong = absent + [key for key, value in state.items() if key not in own or own[key].shape != value.shape]
    if wrong:
        raise ValueError(
            f"{path.name} does not fit {name} with {classes} outputs: {len(wrong)} tensors are missing, unknown or of another shape, "
            f"first {', '.join(wrong[:3])}; name the architecture that it was trained with"
        )
    network.load_state_dict(state, strict=False)
    return Loaded(sample_first(network).to(memory_format=torch.channels_last).eval(), name, classes)


def read_state(path: Path) -> State:
    """Read the state dict of a file, unwrapped: float32 tensors by the names that the bare network has.

    A dict inside the file under "state_dict", "model" and the like is taken; ``module.`` (DataParallel), ``_orig_mod.`` (torch.compile) and
    such before every name are removed. ``.pt`` and ``.pth`` are read with ``weights_only``, which builds tensors and plain values and runs
    nothing else.

    Raises:
        ValueError: no state dict is there, the file is damaged, or holds objects that only running its code would make.
    """
    content = safe_content(path)
    if not isinstance(content, Mapping):
        raise ValueError(f"{path.name} holds a {type(content).__name__} and no state dict; save model.state_dict()")
    if not _tensors(content):
        nested = [content[key] for key in _NESTED if isinstance(content.get(key), Mapping) and _tensors(content[key])]
        if not nested:
            raise ValueError(
                f"{path.name} holds no state dict of tensors, neither itself nor under {', '.join(_NESTED)}; it has "
                f"{', '.join(map(str, list(content)[:5])) or 'nothing'}"
            )
        content = nested[0]
    return {name: value.float() if value.is_floating_point() else value for name, value in without_prefix(dict(content)).items()}


def safe_content(path: Path) -> object:
    """Read what a file holds, running no code that it may hold. Raises ValueError, see ``read_state``."""
    try:
        if path.suffix.lower() == ".safetensors":
            return safetensors.torch.load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as fault:
        raise ValueError(
            f"{path.name} was refused: it holds more than tensors and plain values, and reading that would run code from the file. Where "
            "you trust it, load it yourself and save model.state_dict() with safetensors.torch.save_file"
        ) from fault
    except _DAMAGED as fault:
        lines = str(fault).splitlines() or [""]
        raise ValueError(f"{path.name} cannot be read as plain tensors ({type(fault).__name__}: {lines[0][:160]})") from fault


def _tensors(content: Mapping) -> bool:
    return bool(content) and all(isinstance(key, str) and isinstance(value, Tensor) for key, value in content.items())


def without_prefix(state: State) -> State:
    """Remove what wrappers put before every name, as often as it is there."""
    while prefix := next((prefix for prefix in _PREFIXES if all(name.startswith(prefix) for name in state)), ""):
        state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state
