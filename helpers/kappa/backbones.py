"""Families of networks whose frozen features are probed: CLIP's ResNets, EfficientNets, ResNets and the workbook's own models."""

import copy
import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
import torchvision
from torch import Tensor, nn
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2.functional import resize

from helpers.files import from_root
from helpers.networks import resnet
from helpers.networks.hooks import evaluation_mode
from helpers.networks.weights import load_backbone, read_weights, weights_digest

# Every family from small to large, by the names of open_clip and torchvision.
NETWORK_FAMILIES = {
    "clip": ("RN50", "RN101", "RN50x4", "RN50x16", "RN50x64"),
    "efficientnet": tuple(f"efficientnet_b{number}" for number in range(8)),
    "resnet": resnet.ARCHITECTURES,
}

WORKBOOK = "workbook"
RANDOM = "random"
_CLIP_STRIDE = 32  # pixels per cell of the map that the attention pool sees
_CLIP_HEAD_WIDTH = 64
_CLIP_POSITIONS = "attnpool.positional_embedding"
_Channels = tuple[float, ...]


@dataclass(frozen=True)
class Backbone:
    """A network without its head, and what its images must look like."""

    name: str
    family: str  # a key of ``FAMILIES``, or "workbook"
    network: nn.Module  # (B, 3, S, S) normalised floats -> (B, D) features
    millions: float  # weights of ``network`` as counted, in millions; the head is gone, so it is not among them
    mean: tuple[float, ...]  # per channel, of pixels in [0, 1]
    std: tuple[float, ...]
    image_size: int | None  # side that images are resized to; None takes them as they come
    origin: str  # "random", "named <name of the library's weights>" or "file <name of the file>"
    identity: str  # 16 hex digits over names, shapes and bytes of the weights, see ``weights.weights_digest``


def family_of(name: str) -> str:
    """The family that a network belongs to; ValueError when none has it."""
    for family, members in NETWORK_FAMILIES.items():
        if name in members:
            return family
    raise ValueError(f"network {name!r} is unknown; choose one of {', '.join(sum(NETWORK_FAMILIES.values(), ()))}")


def backbone(name: str, *, weights: str, seed: int, image_size: int | None = None) -> Backbone:
    """Make a network without its head, frozen, with random weights or with weights that the library or a file holds.

    The head is the network's last ``nn.Linear``: what goes into it is the feature. CLIP's visual networks have none; there the feature
    is the output of the attention pool, the image's embedding, as in the linear probes of Radford et al. 2021.

    CLIP's attention pool has one position per cell of 32 pixels. With random weights it is made for ``image_size``, rounded up to a
    multiple of 32 (the published size when None); trained weights fix the size, whatever ``image_size`` says.

    Args:
        name: a member of ``FAMILIES``.
        weights: "random"; or a name of the library's weights (torchvision: "IMAGENET1K_V1"; open_clip: "openai"), taken from its cache
            or downloaded; or the path of a ``.safetensors``, ``.pt`` or ``.pth`` state dict relative to the project's root, where
            "{architecture}" is filled in; of a whole CLIP model the text half is left out.
        seed: of random weights.
        image_size: side of the images that the network is to see, pixels; None takes them as they come.

    Raises:
        ImportError: a network of CLIP is asked for and open_clip is not installed.
        FileNotFoundError: the weights are neither in the cache nor to be downloaded, or the path does not exist.
        ValueError: an unknown name, an image_size below 8, or weights that do not fit.
    """
    family = family_of(name)
    if image_size is not None and image_size < 8:
        raise ValueError(f"image_size is {image_size}; it must be at least 8, or None to take images as they come")
    if family == "clip":
        return _clip(name, weights, seed, image_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = torchvision.models.get_model(name, weights=None)
    network, head = without_head(network)
    if weights != RANDOM:
        state = read_weights(weights, name)
        load_backbone(network, {key: value for key, value in state.items() if not key.startswith(f"{head}.")})
    return _finish(name, family, network, *_torchvision_statistics(name), image_size, _origin(name, weights))


def own_backbone(name: str, network: nn.Module, *, origin: str, image_size: int | None = None) -> Backbone:
    """Make a backbone of a network that is already built and trained, such as one of the workbook's model set; it is copied.

    Args:
        name: it stands under this in tables.
        network: a classifier whose logits come out of its last ``nn.Linear``; its images are normalised as by ``resnet.normalise_images``.
        origin: where its weights come from, as in ``Backbone``.
        image_size: side that images are resized to, None to take them as they come.

    Raises:
        ValueError: the network has no ``nn.Linear``.
    """
    return _finish(name, WORKBOOK, without_head(network)[0], *_torchvision_statistics("resnet18"), image_size, origin)


def without_head(network: nn.Module) -> tuple[nn.Module, str]:
    """Copy a classifier, with ``nn.Identity`` in the place of its last ``nn.Linear``, so that it puts out what went into it.

    Returns:
        The copy, and the name of the layer that was replaced. Features are what the logits are made of when no layer comes after it.

    Raises:
        ValueError: the network has no ``nn.Linear``.
    """
    names = [name for name, module in network.named_modules() if isinstance(module, nn.Linear) and name]
    if not names:
        raise ValueError(f"the network {type(network).__name__} has no nn.Linear inside, so no head to remove")
    copied = copy.deepcopy(network)
    copied.set_submodule(names[-1], nn.Identity())
    return copied, names[-1]


def backbone_features(given: Backbone, images: Tensor, device: torch.device | str, batch_size: int) -> Tensor:
    """Compute the features of images, in evaluation mode; the network's modes, device and gradients are left as they were.

    Images of another size than ``image_size`` are resized, bicubic and antialiased as CLIP's own; then ``(x / 255 - mean) / std``.

    Args:
        given: the network.
        images: (N, 3, S, S) uint8 RGB.
        device: where the network runs, ``batch_size`` images at a time.
        batch_size: at least 1.

    Returns:
        (N, D) float32, on the CPU; not finite where the network overflows.

    Raises:
        ValueError: the images are no uint8 RGB images or none, the batch size is below 1, or the network puts out no (B, D) features.
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3 or not len(images):
        raise ValueError(f"images must be (N, 3, S, S) uint8 with N at least 1, got {tuple(images.shape)} {images.dtype}")
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; it must be at least 1")
    home = next(given.network.parameters()).device
    try:
        with evaluation_mode(given.network), torch.inference_mode():
            network = given.network.to(device)
            batches = [network(backbone_input(batch.to(device), given)).float().cpu() for batch in images.split(batch_size)]
    finally:
        given.network.to(home)
    if batches[0].ndim != 2:
        raise ValueError(f"{given.name} puts out shape {tuple(batches[0].shape)}; features must be (B, D)")
    # Joined outside the inference mode, so that the result is an ordinary tensor.
    return torch.cat(batches)


def backbone_input(images: Tensor, given: Backbone) -> Tensor:
    """Turn (B, 3, S, S) uint8 images into what a network expects: resized to its ``image_size``, ``(x / 255 - mean) / std``."""
    side = given.image_size
    if side is not None and images.shape[-2:] != (side, side):
        images = resize(images, [side, side], InterpolationMode.BICUBIC, antialias=True)
    mean, std = (torch.tensor(values, device=images.device).view(1, 3, 1, 1) for values in (given.mean, given.std))
    return (images / 255 - mean) / std


def _torchvision_statistics(name: str) -> tuple[_Channels, _Channels]:
    preset = torchvision.models.get_model_weights(name).DEFAULT.transforms()
    return tuple(preset.mean), tuple(preset.std)


def _origin(name: str, weights: str) -> str:
    """Where weights come from; of a path only the file's name, since folders differ between machines."""
    if weights == RANDOM:
        return RANDOM
    path = _path(weights, name)
    return f"file {path.name}" if path.is_file() else f"named {weights}"


def _path(weights: str, name: str) -> Path:
    return from_root(weights.replace("{architecture}", name))


def _finish(name: str, family: str, network: nn.Module, mean: _Channels, std: _Channels, size: int | None, origin: str) -> Backbone:
    network.eval().requires_grad_(False)
    millions = sum(parameter.numel() for parameter in network.parameters()) / 1e6
    return Backbone(name, family, network, millions, mean, std, size, origin, weights_digest(network.state_dict()))


def _open_clip() -> ModuleType:
    try:
        return importlib.import_module("open_clip")
    except ImportError as fault:
        raise ImportError('the networks of CLIP need open_clip; install it by pip install "generalization-workbook[clip]"') from fault


def _clip(name: str, weights: str, seed: int, image_size: int | None) -> Backbone:
    """Build the visual half of a CLIP model alone; the text half would double the memory for nothing."""
    library = _open_clip()
    layout = library.get_model_config(name)
    side = layout["vision_cfg"]["image_size"] if image_size is None else math.ceil(image_size / _CLIP_STRIDE) * _CLIP_STRIDE
    # All of open_clip's weights of these networks take OpenAI's statistics.
    mean, std = library.OPENAI_DATASET_MEAN, library.OPENAI_DATASET_STD
    state = None if weights == RANDOM else _clip_state(library, name, weights)
    if state is not None:
        side = _trained_size(state, name)
    width = layout["vision_cfg"]["width"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = library.modified_resnet.ModifiedResNet(
            layout["vision_cfg"]["layers"], layout["embed_dim"], heads=width * 32 // _CLIP_HEAD_WIDTH, image_size=side, width=width
        )
    if state is not None:
        load_backbone(network, state)
    return _finish(name, "clip", network, tuple(mean), tuple(std), side, _origin(name, weights))


def _clip_state(library: ModuleType, name: str, weights: str) -> dict[str, Tensor]:
    """Read the visual half of a CLIP state dict, by open_clip's tag or by path."""
    tags = library.list_pretrained_tags_by_model(name)
    path = _clip_file(library, name, weights) if weights in tags else _path(weights, name)
    if not Path(path).is_file():
        raise FileNotFoundError(f"weights for {name} cannot be had: {path} (from {weights!r}) is no file; or name one of {', '.join(tags)}")
    # The architecture is needed for torchvision's names alone, and this is a path.
    state = read_weights(str(path), "resnet50")
    visual = {key.removeprefix("visual."): value for key, value in state.items() if key.startswith("visual.")}
    return visual or state


def _clip_file(library: ModuleType, name: str, tag: str) -> str:
    """Path of open_clip's weights in its cache, which are downloaded where the network allows it."""
    source = library.get_pretrained_cfg(name, tag)
    try:
        return library.download_pretrained(source)
    except (OSError, RuntimeError) as fault:
        folder = importlib.import_module("huggingface_hub.constants").HF_HUB_CACHE
        raise FileNotFoundError(
            f"weights for {name} cannot be had: open_clip_model.safetensors of {source['hf_hub'].strip('/')} ({tag!r}) is not in "
            f"{folder} and cannot be downloaded; put it there, give the path of a .safetensors file, or take weights 'random'"
        ) from fault


def _trained_size(state: Mapping[str, Tensor], name: str) -> int:
    """Read the size of the images off the attention pool's positions: one per cell, and one for their mean."""
    if _CLIP_POSITIONS not in state:
        raise ValueError(f"{name}: the weights do not fit the network: they hold no {_CLIP_POSITIONS}")
    return math.isqrt(len(state[_CLIP_POSITIONS]) - 1) * _CLIP_STRIDE
