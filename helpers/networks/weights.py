"""Weights read safely, by torchvision's name or from a file: nothing is unpickled but plain tensors."""

import hashlib
import pickle
import re
import struct
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import URLError

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from helpers.files import from_root


def read_weights(source: str, architecture: str) -> dict[str, Tensor]:
    """Read a state dict by torchvision's name or by path; nothing is unpickled but plain tensors.

    Args:
        source: a name of torchvision's weights enum ("IMAGENET1K_V1"), or the path of a ``.safetensors``, ``.pt`` or
            ``.pth`` file, relative to the project's root; "{architecture}" in it is filled in.
        architecture: one of ``ARCHITECTURES``.

    Raises:
        FileNotFoundError: the weights are neither in the cache nor to be downloaded, or the path does not exist.
        ValueError: the file holds something else than a state dict of tensors.
    """
    import torchvision  # here: its import takes two seconds, and a network from scratch or from a snapshot does without

    enum = torchvision.models.get_model_weights(architecture)
    if source in enum.__members__:
        return _read_named(enum[source], source, architecture)
    path = from_root(source.replace("{architecture}", architecture))
    if not path.is_file():
        raise FileNotFoundError(_missing(architecture, f"the file {path} (from {source!r})", path.parent, sorted(enum.__members__)))
    try:
        state = (
            safetensors.torch.load_file(path) if path.suffix == ".safetensors" else torch.load(path, map_location="cpu", weights_only=True)
        )
    except (pickle.UnpicklingError, SafetensorError, RuntimeError, EOFError) as fault:
        raise ValueError(
            f"{path} is no plain state dict ({type(fault).__name__}); save it as safetensors, it is not unpickled here"
        ) from fault
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"{path} holds no flat state dict of tensors; save model.state_dict() as safetensors")
    return dict(state)


_REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_numbers(state: Mapping[str, Tensor], own: Mapping[str, Tensor], name: str) -> None:
    """Make sure that weights are numbers that a network can take as they are: none is cast or made dense, all are finite.

    Raises:
        ValueError: the file ``name`` holds others.
    """
    known = [(key, state[key]) for key, value in own.items() if key in state and value.is_floating_point()]
    if cast := [
        f"{key} ({value.dtype})" for key, value in known if value.dtype not in _REAL or value.layout != torch.strided or value.is_meta
    ]:
        raise ValueError(f"{name} was refused: {len(cast)} tensors are no real weights, first {cast[0]}; save the weights as float32")
    if broken := [key for key, value in known if not value.float().isfinite().all()]:
        raise ValueError(f"{name} was refused: {len(broken)} tensors are not finite, first {broken[0]}; its training diverged")
    if below := [key for key, value in known if key.endswith("running_var") and (value < 0).any()]:
        raise ValueError(f"{name} was refused: {len(below)} running variances are below 0, first {below[0]}; the file was altered")


def _read_named(weights: Any, name: str, architecture: str) -> dict[str, Tensor]:
    try:
        return weights.get_state_dict(progress=False, check_hash=False, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as fault:
        raise ValueError(
            f"the cached file of {name} for {architecture} is no plain state dict ({type(fault).__name__}); delete it"
        ) from fault
    except (URLError, OSError) as fault:
        folder = Path(torch.hub.get_dir()) / "checkpoints"
        wanted = f"{Path(weights.url).name} ({name} of {architecture})"
        raise FileNotFoundError(_missing(architecture, wanted, folder, [name])) from fault


def _missing(architecture: str, wanted: str, folder: Path, names: list[str]) -> str:
    return (
        f"weights for {architecture} cannot be had: {wanted} is not in {folder}. Three ways: (1) put the file there, or name one of "
        f"{', '.join(names)} where the network allows a download; (2) set pretrained_weights to the path of a .safetensors or .pth file; "
        "(3) set pretrained_weights to 'made' and pretrain_data_path to images of other classes, to pretrain on the spot"
    )


def load_backbone(model: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """Copy weights into a network; a final layer made for other classes is left at its initial values.

    Raises:
        ValueError: any other tensor is missing, unknown or of another shape.
    """
    own = model.state_dict()
    head = {name for name in ("fc.weight", "fc.bias") if name in own and name in state and own[name].shape != state[name].shape}
    usable = {name: value for name, value in state.items() if name not in head}
    wrong = sorted(
        {name for name in usable if name not in own or usable[name].shape != own[name].shape}
        | {name for name in own if name not in usable and name not in head and not name.endswith("num_batches_tracked")}
    )
    if wrong:
        raise ValueError(
            f"the weights do not fit the network: {len(wrong)} tensors differ, first {', '.join(wrong[:3])}; "
            "use weights of the same architecture, stem and width"
        )
    check_numbers(usable, own, "the state dict")
    model.load_state_dict(usable, strict=False)
    return model


def weights_digest(state: Mapping[str, Tensor]) -> str:
    """Digest of weights by what they are: 16 hex digits over names, shapes and bytes, wherever the file lies."""
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


# Where training programs keep the state dict inside a file, and what wrappers put before each name.
_NESTED = ("state_dict", "model_state_dict", "model", "net", "network", "weights")
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.")
State = dict[str, Tensor]

# What a damaged file can make the readers raise.
_DAMAGED = (SafetensorError, RuntimeError, EOFError, OSError, ValueError, KeyError, IndexError, AttributeError, TypeError, struct.error)


def read_state(path: Path) -> State:
    """Read the state dict of a file, unwrapped: float32 tensors by the names that the bare network has.

    A dict inside the file under "state_dict", "model" and the like is taken; ``module.`` (DataParallel), ``_orig_mod.`` (torch.compile) and
    such before every name are removed. What is no safetensors is read with ``weights_only``, which builds tensors and plain values and runs
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
        with warnings.catch_warnings():  # torch warns of what is refused here in any case
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as fault:
        kind = re.search(r"GLOBAL ([\w.]+)", str(fault))
        raise ValueError(
            f"{path.name} was refused: it holds more than tensors and plain values{f' ({kind[1]})' if kind else ''}, and reading that "
            "would run code from the file. If you trust it, load it yourself and save model.state_dict() with safetensors.torch.save_file"
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
