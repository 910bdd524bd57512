"""Load a checkpoint into a network, which puts out logits of the classes."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from helpers.networks import contents
from helpers.networks.resnet import ARCHITECTURES, sample_first
from helpers.networks.weights import check_numbers, form_in

AUTO = "auto"
ENDINGS = (".safetensors", ".pt", ".pth")
_REMEDY = (
    "name the network by --architecture: a name of torchvision or timm, or a function "
    "of yours that takes the number of classes, as module:function"
)


def find(place: Path) -> dict[str, Path]:
    """List the checkpoints of a folder, or one file, by their names.

    Args:
        place: the folder or file.

    Raises:
        FileNotFoundError: if there is none.
    """
    if place.is_file():
        return {place.name: place}
    paths = [
        path for path in sorted(place.rglob("*")) if path.suffix.lower() in ENDINGS
    ]
    if not paths:
        raise FileNotFoundError(
            f"{place} has no file that ends in {', '.join(ENDINGS)}; give a folder of "
            "checkpoints"
        )
    return {path.relative_to(place).as_posix(): path for path in paths}


def load(path: Path, architecture: str, classes: int) -> nn.Module:
    """Read a checkpoint into a new network, in evaluation mode.

    "auto" is the network that the header of a checkpoint of this workbook describes,
    else the ResNet of torchvision that all tensors fit.

    Args:
        path: of the checkpoint.
        architecture: a name of torchvision or timm, "module:function", or "auto".
        classes: number of outputs.

    Raises:
        ValueError: if the file cannot be read as tensors alone, if tensors are missing,
            unknown, of another shape or not finite, or if the name is unknown.
    """
    state = contents.read(path)
    form = form_in(path) if architecture == AUTO else None
    names = ARCHITECTURES if architecture == AUTO else (architecture,)
    faults = []
    for build in [form.network] if form else map(builder, names):
        network = build(classes)
        prefix = contents.shared_prefix(network.state_dict())
        tensors = {f"{prefix}{name}": value for name, value in state.items()}
        check_numbers(tensors, network.state_dict(), path.name)
        try:
            network.load_state_dict(tensors)
        except RuntimeError as fault:
            faults.append(" ".join(str(fault).split()))
            continue
        network = Logits(sample_first(network))
        return network.to(memory_format=torch.channels_last).eval()
    nearest = min(faults, key=len)
    raise ValueError(f"{path.name} does not fit: {nearest:.300}; {_REMEDY}")


def builder(architecture: str) -> Callable[[int], nn.Module]:
    """The function that makes an architecture for a number of classes.

    Args:
        architecture: a name of torchvision or timm, or "module:function".

    Raises:
        ValueError: if neither library nor the module has it.
    """
    import timm
    from torchvision import models

    module, _, function = architecture.partition(":")
    if function:
        try:
            return getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError) as fault:
            raise ValueError(f"{architecture} is not there ({fault})") from fault
    if architecture in models.list_models():
        return lambda classes: models.get_model(architecture, num_classes=classes)
    if architecture in timm.list_models():
        return lambda classes: timm.create_model(architecture, num_classes=classes)
    raise ValueError(f"neither torchvision nor timm has {architecture!r}; {_REMEDY}")


class Logits(nn.Module):
    """A network reduced to its logits where its output is a dict that has them."""

    def __init__(self, network: nn.Module) -> None:
        """Take the network."""
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K).

        Args:
            images: (B, 3, S, S) input.
        """
        output = self.network(images)
        return output["logits"] if isinstance(output, Mapping) else output
