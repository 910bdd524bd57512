"""The networks: ResNets, with a stem for small images and a width for quick studies, and their weights, torchvision's among them."""

import hashlib
import pickle
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.error import URLError

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from helpers import resnet
from helpers.files import from_root

ARCHITECTURES, STEMS = tuple(resnet.STAGES), tuple(resnet.STEMS)
CAM_LAYER = "layer4"
_LEAST_WIDTH = 0.0625

# The statistics that torchvision's weights expect, in units of a pixel in [0, 255], RGB.
_MEAN = torch.tensor([0.485, 0.456, 0.406]).mul(255).view(1, 3, 1, 1)
_STD = torch.tensor([0.229, 0.224, 0.225]).mul(255).view(1, 3, 1, 1)


def build(architecture: str, classes: int, *, stem: str = "imagenet", width: float = 1.0, seed: int) -> resnet.ResNet:
    """Make an untrained network; the same arguments give the same weights.

    With width 1 and the ImageNet stem it is torchvision's model: same keys, same weights, same outputs.

    Args:
        architecture: one of ``ARCHITECTURES``.
        classes: number of outputs.
        stem: "imagenet" (7x7 stride 2, max-pool), "small" (3x3 stride 1, no max-pool: He et al.'s CIFAR stem),
            or "strided" (3x3 stride 2, no max-pool: a quarter of "small"'s work).
        width: factor on the number of channels of every layer, at least 0.0625.
        seed: of the initial weights.

    Raises:
        ValueError: an unknown architecture or stem, or a width below 0.0625.
    """
    if architecture not in ARCHITECTURES:
        raise ValueError(f"architecture {architecture!r} is unknown; choose one of {', '.join(ARCHITECTURES)}")
    if stem not in STEMS:
        raise ValueError(f"stem {stem!r} is unknown; choose one of {', '.join(STEMS)}")
    # A choice, not a need of the convolutions: one channel can be trained too, and hardly anything of an image passes through it.
    if not width >= _LEAST_WIDTH:
        raise ValueError(f"width {width} must be at least {_LEAST_WIDTH}, which is 4 channels after the stem (1 is the published width)")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return resnet.ResNet(architecture, classes, stem, width)


def normalise(images: Tensor) -> Tensor:
    """Turn uint8 pixels into what the networks expect: (x / 255 - mean) / std with ImageNet's statistics.

    Args:
        images: (B, 3, H, W) RGB in [0, 255], uint8 or already float (after augmentation).
    """
    mean, std = _statistics(images.device)
    return (images.float() - mean) / std


@lru_cache
def _statistics(device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation on a device: copied once, because a copy at every step would make the host wait for a GPU."""
    with torch.inference_mode(False):
        return _MEAN.to(device), _STD.to(device)


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
    model.load_state_dict(usable, strict=False)
    return model


def weights_digest(state: Mapping[str, Tensor]) -> str:
    """Name weights by what they are: 16 hex digits over names, shapes and bytes, wherever the file lies."""
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
