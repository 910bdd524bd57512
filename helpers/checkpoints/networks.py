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
_COUNTER = "num_batches_tracked"  # of batch normalisation; not used in evaluation mode


def find(place: Path) -> dict[str, Path]:
    """List the checkpoints of a folder, or one file, by their names.

    Args:
        place: the folder or file.

    Raises:
        FileNotFoundError: if there is none.
    """
    if place.is_file():
        return {place.name: place}
    files = {
        path.relative_to(place).as_posix(): path
        for path in sorted(place.rglob("*"))
        if path.suffix.lower() in ENDINGS and path.is_file()
    }
    if not files:
        raise FileNotFoundError(
            f"{place} has no file that ends in {', '.join(ENDINGS)}; give a folder of "
            "checkpoints"
        )
    return files


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
    if form:
        candidates = [form.network]
    elif architecture == AUTO:
        candidates = [builder(name) for name in ARCHITECTURES]
    else:
        candidates = [builder(architecture)]
    misfits = {}
    for build in candidates:
        network = build(classes)
        tensors, misfit = _matched(state, network)
        if not misfit:
            check_numbers(tensors, network.state_dict(), path.name)
            network.load_state_dict(tensors, strict=False)
            network = Logits(sample_first(network))
            return network.to(memory_format=torch.channels_last).eval()
        misfits[len(misfit)] = misfit
    nearest = misfits[min(misfits)]
    raise ValueError(f"{path.name} does not fit: {'; '.join(nearest[:4])}; {_REMEDY}")


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


def _matched(
    state: Mapping[str, Tensor], network: nn.Module
) -> tuple[dict[str, Tensor], list[str]]:
    """Tensors by the network's names, and sentences on all that does not fit."""
    wanted = network.state_dict()
    prefix = contents.shared_prefix(wanted)
    tensors = {f"{prefix}{name}": value for name, value in state.items()}
    misfit = [
        f"{name} has the shape {tuple(tensors[name].shape)}, and the network's has "
        f"{tuple(value.shape)}"
        for name, value in wanted.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    # Unknown and missing names in turn: fc.1.weight stands beside fc.weight.
    unknown = [f"{name} is unknown" for name in tensors if name not in wanted]
    missing = [
        f"{name} is missing"
        for name in wanted
        if name not in tensors and not name.endswith(_COUNTER)
    ]
    for pair in zip(unknown, missing, strict=False):
        misfit += pair
    shorter = min(len(unknown), len(missing))
    return tensors, misfit + unknown[shorter:] + missing[shorter:]


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
