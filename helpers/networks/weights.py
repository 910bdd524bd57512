"""Weights read safely, from a file or by torchvision's name, and checkpoints whose header names the network that they belong to."""

import hashlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from helpers.files import from_root, read_header, write_tensors
from helpers.networks import contents, resnet
from helpers.networks.contents import State

_TEXTS = "workbook"  # of the header: all texts of ours as one
_KEY = "network"  # the text among them that names the network
_REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Form(NamedTuple):
    """What a ResNet is built from, see ``resnet.build``; the defaults are the published networks."""

    architecture: str
    stem: str = "imagenet"
    width: float = 1.0
    last_stride: int = 2

    def network(self, classes: int) -> nn.Module:
        """Untrained network of a number of classes."""
        return resnet.build(
            self.architecture,
            classes,
            stem=self.stem,
            width=self.width,
            last_stride=self.last_stride,
            seed=0,
        )


def read_state(path: Path) -> State:
    """Read the state dict of a file by the names that the bare network has.

    No code that the file may hold is run, see ``contents.read``. What stands beside
    the state dict and is left, such as averaged weights (EMA), is a warning.

    Raises:
        ValueError: for a file that is no checkpoint, is damaged, holds other
            objects, or holds several networks.
    """
    read = contents.read(path)
    for note in read.notes:
        warnings.warn(note, stacklevel=2)
    return read.state


def check_numbers(
    state: Mapping[str, Tensor], own: Mapping[str, Tensor], name: str
) -> None:
    """Raise ValueError where the weights of a file are no numbers that a network can take: real of 16 bits or more, dense, all finite."""
    known = {
        key: state[key]
        for key, value in own.items()
        if key in state and value.is_floating_point()
    }
    faults = {
        "no real weights; save float32": lambda value: (
            value.is_meta or value.dtype not in _REAL or value.layout != torch.strided
        ),
        "not finite; its training diverged": lambda value: (
            not value.float().isfinite().all()
        ),
    }
    for told, wrong in faults.items():
        if found := [key for key, value in known.items() if wrong(value)]:
            raise ValueError(
                f"{name} was refused: {len(found)} tensors, first {found[0]} ({known[found[0]].dtype}), are {told}"
            )


def read_weights(source: str, architecture: str) -> State:
    """Read a state dict by a name of torchvision's weights ("IMAGENET1K_V1"), or by path, in which "{architecture}" is filled in.

    Raises FileNotFoundError where the weights are neither there nor to be downloaded, and ValueError, see ``read_state``.
    """
    from torchvision.models import (
        get_model_weights,
    )  # here: its import takes two seconds

    published = get_model_weights(architecture)
    names, fault = sorted(published.__members__), None
    path = from_root(source.replace("{architecture}", architecture))
    if source in names:
        url = published[source].url
        path = Path(torch.hub.get_dir()) / "checkpoints" / Path(url).name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.is_file() or torch.hub.download_url_to_file(
                url, str(path), progress=False
            )
        except OSError as offline:
            fault = offline
    if not path.is_file():
        raise FileNotFoundError(
            f"weights for {architecture} cannot be had: {path.name} ({source}) is not in {path.parent}. Three ways: (1) put it there, "
            f"or name one of {', '.join(names)} where the network allows a download; (2) set pretrained_weights to the path of a file; "
            "(3) set pretrained_weights to 'made' and pretrain_data_path to images of other classes"
        ) from fault
    return read_state(path)


def load_backbone(model: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """Copy weights into a network, which must fit but for a final layer of other classes: that one keeps its initial values."""
    own = model.state_dict()
    head = {
        name
        for name in ("fc.weight", "fc.bias")
        if name in own and name in state and own[name].shape != state[name].shape
    }
    usable = {name: value for name, value in state.items() if name not in head}
    needed = {
        name
        for name in own
        if name not in head and not name.endswith("num_batches_tracked")
    }
    wrong = sorted(
        {
            name
            for name in usable
            if name not in own or usable[name].shape != own[name].shape
        }
        | needed - set(usable)
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


def save_half(
    path: Path, state: Mapping[str, Tensor], form: Form, facts: Mapping[str, object]
) -> None:
    """Write a state dict as safetensors in float16, with form and facts as texts in its header; what is equal gives equal bytes.

    A tensor that float16 cannot hold stays as it is.
    """
    texts = {name: str(value) for name, value in facts.items()} | {
        _KEY: json.dumps(form._asdict())
    }
    header = {
        _TEXTS: json.dumps(texts, sort_keys=True)
    }  # as one, since the library writes several in any order
    write_tensors(path, {name: _half(value) for name, value in state.items()}, header)


def _half(value: Tensor) -> Tensor:
    half = value.half() if value.is_floating_point() else value
    return half if bool(half.isfinite().all()) else value


def header_of(path: Path) -> dict[str, str]:
    """Texts that ``save_half`` left in a file, none in another file; a damaged file is refused where its weights are read."""
    return dict(json.loads(read_header(path).get(_TEXTS, "{}")))


def form_in(path: Path) -> Form | None:
    """Form of the network that a file's header names; None where it names none. Raises ValueError for one that cannot be built."""
    if not (text := header_of(path).get(_KEY, "")):
        return None
    try:
        form = Form(**json.loads(text))
        with torch.device("meta"):
            form.network(2)
    except (KeyError, ValueError, TypeError, RuntimeError, OverflowError) as fault:
        raise ValueError(
            f"the header of {path.name} names a network that cannot be built ({fault}); remove {_KEY!r} from it"
        ) from fault
    return form
