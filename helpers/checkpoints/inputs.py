"""What a user gives: checkpoints, which become networks, and their training images."""

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from pydantic import BaseModel, Field
from torch import Tensor, nn

from helpers.data import layouts
from helpers.data.decode import decode_all
from helpers.data.images import ImageSet, image_set
from helpers.data.sources import Source
from helpers.networks.resnet import ARCHITECTURES, build, sample_first
from helpers.networks.weights import (
    ENDINGS,
    check_numbers,
    form_in,
    read_state,
    shared_prefix,
)
from helpers.parameters import TYPES, AboveZero, Fraction, Number
from helpers.scores.scoring_set import classes_in_turn

AUTO = "auto"
MOST_IMAGES = 1000  # that are scored, as in the studies
_REMEDY = (
    "name the network by --architecture: a name of torchvision or timm, or a function "
    "of yours that takes the number of classes, as module:function"
)
Channels = Sequence[float]  # red, green and blue in [0, 1]


class Inputs(BaseModel):
    """Checkpoints, images, and what a user says of them."""

    checkpoints: Path = Field(
        description="folder of .safetensors, .pt, .pth; or a file"
    )
    images: Path = Field(description="folder or .zip of training images, with classes")
    unlabelled: Path | None = Field(
        None, description="images without labels, to order networks"
    )
    architecture: str = Field(
        AUTO,
        description="a name of torchvision or timm, or module:function; auto "
        "recognises torchvision's ResNets",
    )
    classes: Sequence[str] = Field(
        (), description="in the order of the outputs, or @FILE, one a line; else sorted"
    )
    images_per_class: Number = Field(
        0, description="in training, where IMAGES holds only some of them"
    )
    image_size: TYPES["image_size"] | None = Field(
        None,
        description="of the images in training, pixels; without it the usual one with "
        "the highest training accuracy",
    )
    mean: Sequence[Fraction] = Field(
        (), description="of the normalisation, RGB, 0 to 1"
    )
    std: Sequence[AboveZero] = Field(
        (), description="of the normalisation, RGB, 0 to 1"
    )
    device: str = Field("auto", description="cpu, cuda or auto")
    reports: Path = Field(Path("reports"), description="of studies that calibrate")
    out: Path = Field(Path("own"), description="folder for verdicts.csv")


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
    state = read_state(path)
    form = form_in(path) if architecture == AUTO else {}
    names = ARCHITECTURES if architecture == AUTO else (architecture,)
    builders = [builder(name) for name in names]
    if form:
        builders = [lambda classes: build(**form, classes=classes, seed=0)]
    faults = []
    for make in builders:
        network = make(classes)
        prefix = shared_prefix(network.state_dict())
        tensors = {f"{prefix}{name}": value for name, value in state.items()}
        check_numbers(tensors, network.state_dict(), path.name)
        try:
            network.load_state_dict(tensors)
        except RuntimeError as fault:
            faults.append(" ".join(str(fault).split()))
            continue
        network.register_forward_hook(partial(_logits_alone, classes))
        return sample_first(network).to(memory_format=torch.channels_last).eval()
    nearest = min(faults, key=len)
    raise ValueError(f"{path.name} does not fit: {nearest:.300}; {_REMEDY}")


def _logits_alone(
    classes: int, network: nn.Module, images: tuple[Tensor], output: Any
) -> Tensor:
    """The logits of an output, which may be a dict with them."""
    logits = output.get("logits") if isinstance(output, Mapping) else output
    shape = getattr(logits, "shape", type(output))
    if shape != (len(images[0]), classes):
        raise ValueError(f"it puts out {shape}; logits of {classes} classes are needed")
    return logits


def builder(architecture: str) -> Callable[[int], nn.Module]:
    """The function that makes an architecture for a number of classes.

    Args:
        architecture: a name of torchvision or timm, or "module:function".

    Raises:
        ValueError: if neither library nor the module has it.
    """
    if ":" in architecture:
        try:
            return pkgutil.resolve_name(architecture)
        except (ImportError, AttributeError) as fault:
            raise ValueError(f"{architecture} is not there ({fault})") from fault
    from torchvision import models  # here and below: what takes seconds to import

    if architecture in models.list_models():
        return lambda classes: models.get_model(architecture, num_classes=classes)
    import timm

    if architecture in timm.list_models():
        return lambda classes: timm.create_model(architecture, num_classes=classes)
    raise ValueError(f"neither torchvision nor timm has {architecture!r}; {_REMEDY}")


class Preparation(NamedTuple):
    """How images become the input of a network."""

    side: int  # of the squares, pixels
    mean: Channels
    std: Channels

    def normalise(self, pixels: Tensor) -> Tensor:
        """Turn pixels into input, ``(x / 255 - mean) / std``.

        Args:
            pixels: (B, 3, S, S) uint8.
        """
        channels = pixels.new_tensor(self[1:], dtype=torch.float32)
        mean, deviation = channels[..., None, None]
        return (pixels.float() / 255 - mean) / deviation

    def __str__(self) -> str:
        """Size and normalisation in words."""
        return f"{self.side} px, mean {self.mean[0]:.3g}, std {self.std[0]:.3g}"


class Pictures:
    """Training images of a folder or .zip, the same ones at any size.

    Attributes:
        classes: ids in the order of the outputs.
        class_images: images of a class in the folder, on average.
    """

    def __init__(self, source: Source, classes: Sequence[str] = ()) -> None:
        """Choose at random equally many training images of each class.

        Args:
            source: of the images, in a layout of docs/images.md.
            classes: ids in the order of the outputs; empty for all, sorted.

        Raises:
            ValueError: if there are fewer than two classes.
        """
        names = [name.strip() for name in classes if name.strip()]
        listing = layouts.scan(source, layouts.RECOGNISED, names)
        self.classes = listing.classes
        records = listing.records.query("split == 'train'")
        labels = records["class_id"].map(self.classes.index).to_numpy(int)
        counts = np.bincount(labels, minlength=len(self.classes))
        missing = [self.classes[row] for row in np.flatnonzero(counts == 0)]
        if missing or len(counts) < 2:
            raise ValueError(
                f"{source.root} has images of {(counts > 0).sum()} of {len(counts)} "
                f"classes (missing: {', '.join(missing[:5]) or 'none'}); at least two "
                "are needed, and all that --classes names"
            )
        self.class_images = counts.mean()
        shuffled = np.random.default_rng(0).permutation(len(records))
        in_turn = shuffled[classes_in_turn(labels[shuffled])]
        self._source = source
        self._records = records.assign(label=labels).iloc[in_turn[:MOST_IMAGES]]

    @cache  # noqa: B019 - as long as the command runs
    def at(self, side: int) -> ImageSet:
        """The images as squares.

        Args:
            side: pixels.

        Raises:
            ValueError: if no image can be decoded.
        """
        return image_set(_decoded(self._source, self._records, side))


def _decoded(source: Source, records: pd.DataFrame, side: int) -> pd.DataFrame:
    """The images that can be decoded; the others become faults of the source."""
    images = decode_all(source, records, side)
    is_usable = images["pixels"].notna()
    if not is_usable.any():
        raise ValueError(f"no image of {source.root} can be decoded")
    for image in images[~is_usable].itertuples():
        source.fault(image.name, *image.problems[0])
    return images[is_usable]


@cache
def unlabelled_pixels(source: Source, side: int) -> Tensor:
    """All images of a folder or .zip as squares, (N, 3, side, side) uint8.

    Args:
        source: of the images.
        side: pixels.

    Raises:
        ValueError: if no image can be decoded.
    """
    records = [layouts.Record(name, "", "test") for name in source.images]
    table = pd.DataFrame(records, columns=layouts.Record._fields)
    return torch.from_numpy(np.stack(_decoded(source, table, side)["pixels"]))
