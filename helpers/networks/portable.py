"""Checkpoints that travel: weights in half precision, and in the file's header the network that they belong to."""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from helpers.files import complete_or_absent
from helpers.networks import resnet

_KEY = "network"  # of the header


class Form(NamedTuple):
    """What a ResNet is built from, see ``resnet.build``; the defaults are the published networks."""

    architecture: str
    stem: str = "imagenet"
    width: float = 1.0
    last_stride: int = 2

    def network(self, classes: int) -> nn.Module:
        """Untrained network of a number of classes. Raises ValueError, see ``resnet.build``."""
        return resnet.build(self.architecture, classes, stem=self.stem, width=self.width, last_stride=self.last_stride, seed=0)


def save_half(path: Path, state: Mapping[str, Tensor], form: Form, facts: Mapping[str, object]) -> None:
    """Write a state dict as safetensors in float16; a tensor that float16 cannot hold stays as it is. What is equal gives equal bytes.

    Args:
        path: of the file, complete or absent.
        state: names to tensors.
        form: of the network, written into the header.
        facts: what else a reader wants to know of the network, into the header as text.
    """
    header = {name: str(value) for name, value in facts.items()} | {_KEY: json.dumps(form._asdict())}
    with complete_or_absent(path) as temporary:
        temporary.write_bytes(_in_order(safetensors.torch.save({name: _half(value) for name, value in state.items()}, header)))


def _in_order(content: bytes) -> bytes:
    """A safetensors file with the texts of its header in the order of their names: the library shuffles them at each writing."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header = {"__metadata__": dict(sorted(header.pop("__metadata__").items())), **header}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
    return len(text).to_bytes(8, "little") + text + content[end:]


def _half(value: Tensor) -> Tensor:
    value = value.detach().cpu().contiguous()
    half = value.half() if value.is_floating_point() else value
    return half if bool(half.isfinite().all()) else value


def header_of(path: Path) -> dict[str, str]:
    """Texts in the header of a safetensors file; none where the file has none, is of another kind, or is damaged."""
    if path.suffix.lower() != ".safetensors":
        return {}
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError):  # who reads the weights tells of it
        return {}


@lru_cache(maxsize=256)
def form_of(text: str, file: str) -> Form:
    """Form of a network as ``save_half`` writes it.

    Args:
        text: JSON.
        file: that it was read from, for the message.

    Raises:
        ValueError: it is no form of a network that can be built.
    """
    try:
        values = json.loads(text)
        form = Form(**values)
        kinds = (str, str, (int, float), int)
        if any(isinstance(value, bool) or not isinstance(value, kind) for value, kind in zip(form, kinds, strict=True)):
            raise TypeError("a value of another kind")
        with torch.device("meta"):
            form.network(2)
    except (ValueError, TypeError, RuntimeError) as fault:
        raise ValueError(f"the header of {file} names a network that cannot be built ({fault}); remove {_KEY!r} from it") from fault
    return form


def form_in(path: Path) -> Form | None:
    """Form of the network that a file's header names; None where it names none. Raises ValueError, see ``form_of``."""
    text = header_of(path).get(_KEY, "")
    return form_of(text, path.name) if text else None
