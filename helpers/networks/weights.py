"""Weights of networks: files are read as tensors alone, and no code in them is run."""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from helpers.files import from_root, read_header, write_tensors

State = Mapping[str, Tensor]
ENDINGS = (".safetensors", ".pt", ".pth")  # of files of weights
# Arguments of ``resnet.build`` that describe a network, but for its classes.
FORM = ("architecture", "stem", "width", "last_stride")
_TEXTS = "workbook"  # key in the header of this workbook's checkpoints: JSON of texts
_FORM_TEXT = "network"  # of these texts the one that describes the network
_HEAD = ("fc.weight", "fc.bias")


def read_state(path: Path) -> State:
    """Read the state dict of a file, without the prefix that all its names share.

    It stands at the top of the file or one level below, as in
    ``{"model": state_dict, "epoch": 3}``. DataParallel, Lightning and torch.compile put
    a prefix before all names.

    Args:
        path: of a .safetensors file, or a file of ``torch.save``.

    Raises:
        OSError: if the file cannot be opened.
        ValueError: if it is damaged, holds other objects than tensors and plain
            values, or not exactly one state dict.
    """
    try:
        if path.suffix.lower() == ".safetensors":
            content = safetensors.torch.load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
        levels = [content, *content.values()]
        (state,) = filter(_is_state_dict, levels)
        prefix = shared_prefix(state)
    except (MemoryError, OSError):
        raise
    except Exception as fault:  # damaged files raise exceptions of every kind
        kinds = re.findall(r"(?:GLOBAL|class) ([\w.]+)", str(fault))
        others = f"{', '.join(kinds) or 'other objects'} beside tensors"
        raise ValueError(
            f"{path.name} was refused: it is damaged, holds {others} and plain values, "
            "or not exactly one state dict; save model.state_dict() of one network "
            "alone"
        ) from fault
    return {name.removeprefix(prefix): value for name, value in state.items()}


def _is_state_dict(value: Any) -> bool:
    if not isinstance(value, Mapping) or not value:
        return False
    return all(isinstance(item, Tensor) for item in value.values())


def shared_prefix(names: Iterable[str]) -> str:
    """The beginning that dotted names share, up to a dot.

    Args:
        names: of tensors, at least one.

    Example:
        >>> shared_prefix(["module.fc.weight", "module.fc2.weight"])
        'module.'
    """
    beginning = os.path.commonprefix([*names])  # noqa: RUF071 - of texts, not of paths
    return beginning[: beginning.rfind(".") + 1]


def check_numbers(state: State, network: State, name: str) -> None:
    """Check that the weights of a file are numbers that a network can take.

    Args:
        state: of the file.
        network: the network's own state dict; other tensors are not checked.
        name: of the file, for the message.

    Raises:
        ValueError: if a tensor is not of a float type, or not finite.
    """
    for key, expected in network.items():
        value = state.get(key)
        if value is None or not expected.is_floating_point():
            continue
        if not value.is_floating_point() or not value.float().isfinite().all():
            raise ValueError(
                f"{name} was refused: its tensor {key} ({value.dtype}) is not of "
                "finite real numbers; save float32, of a training that did not diverge"
            )


def read_weights(source: str, architecture: str) -> State:
    """Read a state dict by torchvision's name of the weights, or by path.

    Args:
        source: a name ("IMAGENET1K_V1"), or a path in which "{architecture}" is
            replaced by the architecture.
        architecture: torchvision's name of the architecture.

    Raises:
        FileNotFoundError: if the weights are absent and cannot be downloaded.
        ValueError: see ``read_state``.
    """
    # imported here, since this import takes two seconds
    from torchvision.models import get_model_weights

    published = get_model_weights(architecture).__members__
    try:
        if source in published:
            # The first digits of a download's SHA-256 stand in its name.
            options = {"progress": False, "check_hash": True, "weights_only": True}
            return published[source].get_state_dict(**options)
        return read_state(from_root(source.replace("{architecture}", architecture)))
    except (OSError, RuntimeError, UnpicklingError) as fault:
        raise FileNotFoundError(
            f"weights for {architecture} cannot be had from {source} ({fault}). Three "
            f"ways: (1) name one of {', '.join(sorted(published))} where the network "
            "allows a download; (2) set pretrained_weights to the path of a file; (3) "
            "set it to 'made' and pretrain_data_path to images of other classes"
        ) from fault


def load_backbone(model: nn.Module, state: State) -> nn.Module:
    """Copy weights into a network, all but those of its last layer.

    The last layer keeps its initial values, also where the weights have as many
    classes: they are other classes.

    Args:
        model: a ResNet, whose last layer is ``fc``.
        state: tensors by name.

    Raises:
        ValueError: if tensors are missing, unknown or of another shape.
    """
    own = model.state_dict()
    complete = {**state, **{name: own[name] for name in _HEAD}}
    check_numbers(complete, own, "the state dict")
    try:
        model.load_state_dict(complete)
    except RuntimeError as fault:
        raise ValueError(
            "the weights do not fit the network; use weights of the same architecture, "
            f"stem and width: {fault}"
        ) from fault
    return model


def weights_digest(state: State) -> str:
    """Digest of weights that does not depend on the format of their file.

    Args:
        state: tensors by name.

    Returns:
        16 hex digits over names, shapes and bytes.
    """
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def save_float16(path: Path, state: State, facts: Mapping[str, Any]) -> None:
    """Write a state dict as safetensors in float16; equal inputs give equal bytes.

    A tensor with a value beyond the range of float16 keeps its type.

    Args:
        path: of the file.
        state: tensors by name.
        facts: noted in the header as text; those of ``FORM`` describe the network.
    """
    texts = {name: str(value) for name, value in facts.items()}
    texts[_FORM_TEXT] = json.dumps({name: facts[name] for name in FORM})
    halves = {}
    for name, value in state.items():
        half = value.half() if value.is_floating_point() else value
        halves[name] = half if half.isfinite().all() else value
    # The library writes several texts in an order that varies: so it is one.
    header = {_TEXTS: json.dumps(texts, sort_keys=True)}
    write_tensors(path, halves, header)


def header_of(path: Path) -> dict[str, str]:
    """Read the texts that ``save_float16`` wrote; empty for other files.

    Args:
        path: of a file.
    """
    return json.loads(read_header(path).get(_TEXTS, "{}"))


def form_in(path: Path) -> dict[str, Any]:
    """Read what a file's header says of its network, see ``FORM``; empty for others.

    Args:
        path: of a file.
    """
    return json.loads(header_of(path).get(_FORM_TEXT, "{}"))
