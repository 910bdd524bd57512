"""Read the weights of a checkpoint as tensors alone: no code in its file is run."""

import json
import re
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from helpers.files import read_header

State = dict[str, Tensor]
TEXTS = "workbook"  # key in the header of this workbook's checkpoints: JSON of texts


def read(path: Path) -> State:
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
        state = _only_state_dict(_content(path))
    except (MemoryError, OSError):
        raise
    except Exception as fault:  # damaged files raise exceptions of every kind
        kind = re.search(r"(?:GLOBAL|class) ([\w.]+)", str(fault))
        words = (
            f"it holds {kind[1]}, and reading that could run code"
            if kind
            else str(fault)
        )
        raise ValueError(
            f"{path.name} was refused: {words:.200}; save model.state_dict() of one "
            "network alone"
        ) from fault
    prefix = shared_prefix(state)
    return {name.removeprefix(prefix): value for name, value in state.items()}


def shared_prefix(names: Collection[str]) -> str:
    """The beginning that dotted names share, up to a dot.

    Args:
        names: of tensors, at least one.

    Example:
        >>> shared_prefix(["module.fc.weight", "module.fc2.weight"])
        'module.'
    """
    first, last = min(names), max(names)  # what these share, all share
    prefix = ""
    for word in first.split(".")[:-1]:
        if not last.startswith(f"{prefix}{word}."):
            break
        prefix += f"{word}."
    return prefix


def _content(path: Path) -> Any:
    if path.suffix.lower() == ".safetensors":
        return safetensors.torch.load_file(path)
    with path.open("rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of what is refused
        return torch.load(file, map_location="cpu", weights_only=True)


def _only_state_dict(content: Any) -> State:
    """The one dict of tensors in a file, at its top or one level below."""
    levels = {"the top": content}
    if isinstance(content, Mapping):
        levels |= content
    states = {key: value for key, value in levels.items() if _is_state_dict(value)}
    if len(states) != 1:
        there = ", ".join(map(str, states)) or "none"
        raise ValueError(f"it holds {len(states)} state dicts ({there})")
    (state,) = states.values()
    return {key: value for key, value in state.items() if isinstance(value, Tensor)}


def _is_state_dict(value: Any) -> bool:
    """Whether more than half of a dict's values are tensors: some programs add some."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        return False
    tensors = [item for item in value.values() if isinstance(item, Tensor)]
    return len(tensors) > len(value) / 2


def header_of(path: Path) -> dict[str, str]:
    """Read the texts that ``weights.save_float16`` wrote; empty for other files.

    Args:
        path: of a file.
    """
    return json.loads(read_header(path).get(TEXTS, "{}"))
