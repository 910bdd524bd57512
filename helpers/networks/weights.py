"""Read weights by path or torchvision's name; write files that name their network."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from helpers.files import from_root, write_tensors
from helpers.networks import contents, resnet
from helpers.networks.contents import State, header_of

_KEY = "network"  # key of the text in the header that describes the network
_HEAD = ("fc.weight", "fc.bias")


class ResNetForm(NamedTuple):
    """Arguments of ``resnet.build``; the defaults build the published network."""

    architecture: str
    stem: str = "imagenet"
    width: float = 1.0
    last_stride: int = 2

    def network(self, classes: int) -> nn.Module:
        """Build the untrained network for a number of classes."""
        return resnet.build(**self._asdict(), classes=classes, seed=0)


def check_numbers(
    state: Mapping[str, Tensor], network: Mapping[str, Tensor], name: str
) -> None:
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
        ValueError: see ``contents.read``.
    """
    # imported here, since this import takes two seconds
    from torchvision.models import get_model_weights

    published = get_model_weights(architecture)
    path = from_root(source.replace("{architecture}", architecture))
    try:
        if source in published.__members__:
            url = published[source].url
            path = Path(torch.hub.get_dir(), "checkpoints", Path(url).name)
            if not path.is_file():
                # The first digits of the file's SHA-256 in its name are checked.
                options = {"progress": False, "check_hash": True, "weights_only": True}
                published[source].get_state_dict(**options)
        return contents.read(path)
    except (OSError, RuntimeError) as fault:  # RuntimeError: other digits
        raise FileNotFoundError(
            f"weights for {architecture} cannot be found: {path.name} ({source}) is "
            f"not in {path.parent}. Three ways: (1) put it there, or name one of "
            f"{', '.join(sorted(published.__members__))} where the network allows a "
            "download; (2) set pretrained_weights to the path of a file; (3) set "
            "pretrained_weights to 'made' and pretrain_data_path to images of other "
            "classes"
        ) from fault


def load_backbone(model: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
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
        words = " ".join(str(fault).split())
        raise ValueError(
            "the weights do not fit the network; use weights of the same architecture, "
            f"stem and width: {words:.300}"
        ) from fault
    return model


def weights_digest(state: Mapping[str, Tensor]) -> str:
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


def save_float16(
    path: Path,
    state: Mapping[str, Tensor],
    form: ResNetForm,
    facts: Mapping[str, object],
) -> None:
    """Write a state dict as safetensors in float16; equal inputs give equal bytes.

    A tensor with a value beyond the range of float16 keeps its type.

    Args:
        path: of the file.
        state: tensors by name.
        form: of the network, noted in the header.
        facts: further values, noted in the header as text.
    """
    texts = {name: str(value) for name, value in facts.items()}
    texts[_KEY] = json.dumps(form._asdict())
    halves = {name: _half(value.detach().cpu()) for name, value in state.items()}
    # The library writes several texts in an order that varies: so it is one, and
    # write_tensors adds no checksum as a second.
    header = {contents.TEXTS: json.dumps(texts, sort_keys=True)}
    write_tensors(path, halves, header, checked=False)


def _half(value: Tensor) -> Tensor:
    half = value.half() if value.is_floating_point() else value
    return half if bool(half.isfinite().all()) else value


def form_in(path: Path) -> ResNetForm | None:
    """Read the form of the network in a file's header; None if it has no form.

    Args:
        path: of a file.
    """
    text = header_of(path).get(_KEY)
    return ResNetForm(**json.loads(text)) if text else None
