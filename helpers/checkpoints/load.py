"""Load checkpoints into networks of a named architecture; no code in a file is run."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torchvision.transforms import v2

from helpers.checkpoints.builders import (
    RESNETS,
    Builder,
    Shapes,
    builder_of,
    heads,
    inputs_of_head,
    shapes_of,
)
from helpers.networks import contents
from helpers.networks.resnet import sample_first
from helpers.networks.weights import check_numbers, form_in
from helpers.scoring.models import Model

ENDINGS = (".safetensors", ".pt", ".pth", ".ckpt", ".bin", ".tar")
AUTO = "auto"
_COUNTER = "num_batches_tracked"  # of batch normalisation; old files lack it
_CHANNELS = 3  # of an image
_ADVICE = (
    "name the architecture that it was trained with, or a function that makes the "
    "network: --architecture module:function"
)
# Heads for training alone, which torchvision's pretrained networks come without.
_AUXILIARY = {"googlenet": "aux1.", "inception_v3": "AuxLogits."}
_ENOUGH_TENSORS = 0.5  # share of a network's tensors that a prefix must have


@dataclass(frozen=True)
class Reading:
    """Options for reading files, which state them incompletely or not at all."""

    architecture: str = AUTO  # torchvision's name, timm:NAME or module:function
    part: str = ""  # name of the network in a file that holds several
    order: tuple[int, ...] = ()  # output i of the model is output order[i] of the file


class Loaded(NamedTuple):
    """A network in evaluation mode on the CPU, and what its file states about it."""

    network: nn.Module
    classes: int  # outputs
    names: tuple[str, ...]  # of classes in the order of the file; empty if not stated
    accuracy: float  # that the file states, in [0, 1]; NaN if it states none
    notes: tuple[str, ...]  # on how it was read


def find(folder: Path) -> dict[str, Path]:
    """Find the checkpoints in a folder and below.

    Hidden files are left out; the first shard stands for all. Files that cannot be read
    (a broken link, a pipe) are included, so that they are reported.

    Args:
        folder: path of the folder, or of one file.

    Returns:
        Paths by name from the folder.

    Raises:
        FileNotFoundError: if the folder does not exist.
        ValueError: if it holds no checkpoint.
    """
    if folder.is_file():
        return {folder.name: folder}
    if not folder.is_dir():
        raise FileNotFoundError(f"the folder of checkpoints {folder} does not exist")
    paths = [
        path
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in ENDINGS
        and not path.name.startswith(".")
        and not path.is_dir()
    ]
    if not paths:
        raise ValueError(
            f"no checkpoint is in {folder}: looked for files that end in "
            f"{', '.join(ENDINGS)}, in it and below"
        )
    return {
        path.relative_to(folder).as_posix(): path
        for path in paths
        if _stands_for_checkpoint(path)
    }


def _stands_for_checkpoint(path: Path) -> bool:
    """Whether a file is a checkpoint, its first shard, or any shard if some lack."""
    try:
        shards = contents.shards(path)
    except ValueError:  # a shard is missing, which is reported for each of the others
        return True
    return path == shards[0]


def as_model(path: Path, name: str, reading: Reading, normalise: v2.Compose) -> Model:
    """A checkpoint as a model for which measures can be computed.

    Its id depends on all that its values depend on: the bytes of its files, how they
    are read, and the normalisation.

    Args:
        path: of the file, or of the first of its shards.
        name: under which it is shown.
        reading: how the file is read.
        normalise: from uint8 images to the network's input.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is not a regular file, or if a shard is missing.
    """
    content = "".join(_bytes_digest(file) for file in contents.shards(path))
    decisive = f"{reading} {normalise} {content}"
    digest = hashlib.blake2b(decisive.encode(), digest_size=6).hexdigest()
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[-60:]
    return Model(
        f"{plain}-{digest}",
        partial(_network, path, reading),
        normalise=normalise,
    )


def _bytes_digest(path: Path) -> str:
    contents.check_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _network(
    path: Path, reading: Reading, device: torch.device | str = "cpu"
) -> nn.Module:
    return load_checkpoint(path, reading).network.to(device)


def load_checkpoint(path: Path, reading: Reading | str = AUTO) -> Loaded:
    """Read one checkpoint and load it into a new network of its architecture.

    Every tensor of the network must be in the file. The architecture "auto" is the one
    in the file's header, else the ResNet of torchvision that has these tensors.

    Args:
        path: of the file, or of the first of its shards.
        reading: how it is read; a text is an architecture.

    Raises:
        ValueError: if the file is not a checkpoint, holds code, is damaged, or does
            not fit.
    """
    if isinstance(reading, str):
        reading = Reading(reading)
    read = contents.read(path, reading.part)
    # The header of a checkpoint of a study describes its network.
    form = form_in(path) if reading.architecture == AUTO else None
    if form:
        name = form.architecture
        builder = form.network
    else:
        name = reading.architecture
        if name == AUTO:
            name = guess(read.state, reading.part)
        builder = builder_of(name)
        auxiliary = _AUXILIARY.get(name)
        if auxiliary and not any(auxiliary in key for key in read.state):
            builder = partial(builder, aux_logits=False)
    names = set(shapes_of(builder, 2))  # the same for any number of classes
    state, note = network_part(read.state, names, reading.part)
    state = with_usual_head(state, builder, name)
    state, further = with_head_beside(state, read.state, builder)
    note += further
    classes = class_count(builder, state, name)
    if classes < 2:
        raise ValueError(f"it has {classes} outputs, and a classifier needs at least 2")
    # Before the network is built: a file could ask for one of any size.
    _check_fit(state, shapes_of(builder, classes), f"{name} with {classes} outputs")
    network = builder(classes)
    check_numbers(state, network.state_dict(), path.name)
    state = _in_order(state, heads(builder), reading.order)
    network.load_state_dict(state, strict=False)
    notes = tuple(text.replace(path.name, "it", 1) for text in read.notes + note)
    network = sample_first(network).to(memory_format=torch.channels_last).eval()
    return Loaded(network, classes, read.classes, read.accuracy, notes)


def _check_fit(state: Mapping[str, Tensor], shapes: Shapes, network: str) -> None:
    """Refuse tensors that are missing, unknown or of another shape."""
    stem = next((name for name, shape in shapes.items() if len(shape) == 4), "")
    if stem in state and state[stem].ndim == 4:
        channels = state[stem].shape[1]
        expects_rgb = shapes[stem][1] == _CHANNELS
        if expects_rgb and channels != _CHANNELS:
            raise ValueError(_other_channels(stem, channels))
    missing = [
        name for name in shapes if name not in state and not name.endswith(_COUNTER)
    ]
    other = [
        name for name, value in state.items() if shapes.get(name) != tuple(value.shape)
    ]
    wrong = missing + other
    if wrong:
        raise ValueError(
            f"it does not fit {network}: {len(wrong)} tensors are missing, unknown or "
            f"of another shape, first {', '.join(wrong[:3])}; {_ADVICE}"
        )


def _other_channels(stem: str, channels: int) -> str:
    plural = "channel" if channels == 1 else "channels"
    return (
        f"its first layer ({stem}) takes {channels} {plural}, and images have "
        f"{_CHANNELS}; name a function that makes the network and turns images into "
        f"{channels} {plural}: --architecture module:function"
    )


def network_part(
    state: Mapping[str, Tensor], names: set[str], part: str = ""
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Select the tensors of a network from a file that also holds others.

    They are those whose names begin with one prefix, such as "model.student".

    Args:
        state: of a file, such as Lightning's with the weights of a loss.
        names: of the network's tensors.
        part: name of the network if the file holds several ("student").

    Returns:
        The tensors by the network's names, and a note if averaged weights are not used.

    Raises:
        ValueError: if several prefixes have the network and ``part`` names none.
    """
    tensors_of_prefix = _tensors_of_prefixes(state, names)
    needed = sum(not name.endswith(_COUNTER) for name in names)
    enough = _ENOUGH_TENSORS * needed
    prefixes = [
        prefix for prefix, count in tensors_of_prefix.items() if count >= enough
    ]
    note: tuple[str, ...] = ()
    if prefixes:
        prefix, note = contents.choose_network(prefixes, part, "it")
    else:  # of another architecture: the nearest, so that messages name its tensors
        prefix = max(tensors_of_prefix, key=tensors_of_prefix.__getitem__, default="")
    start = f"{prefix}." if prefix else ""
    taken = {
        name.removeprefix(start): value
        for name, value in state.items()
        if name.startswith(start)
    }
    return taken, note


def _tensors_of_prefixes(state: Iterable[str], names: set[str]) -> Counter[str]:
    """Number of a network's tensors that a file has below each prefix.

    "model.student.fc.weight" counts for "model.student" if "fc.weight" is among the
    names of the network's tensors.
    """
    tensors: Counter[str] = Counter()
    for name in state:
        words = name.split(".")
        for place in range(len(words)):
            prefix = ".".join(words[:place])
            rest = ".".join(words[place:])
            if rest in names:
                tensors[prefix] += 1
    return tensors


def with_usual_head(
    state: dict[str, Tensor], builder: Builder, name: str
) -> dict[str, Tensor]:
    """Rename the head of a state dict as its architecture names it.

    ``fc = Sequential(Dropout(), Linear())`` saves fc.1.weight for fc.weight; dropout
    has no weights and does nothing in evaluation.

    Args:
        state: tensors by name.
        builder: of the architecture.
        name: of the architecture.

    Raises:
        ValueError: if the head has several layers.
    """
    expected = [key for key, _ in heads(builder)]
    if not expected or expected[0] in state:
        return state
    head = expected[0].rpartition(".")[0]
    root = head.partition(".")[0]
    unknown = [
        key
        for key in state
        if key not in shapes_of(builder, 2) and key.partition(".")[0] == root
    ]
    layers = list(dict.fromkeys(key.rpartition(".")[0] for key in unknown))
    if len(layers) > 1:
        raise ValueError(
            f"its head has {len(layers)} layers ({', '.join(layers[:4])}), and that of "
            f"{name} has one ({head}); name the function that makes the network: "
            "--architecture module:function"
        )
    if not layers:
        return state
    renamed = {}
    for key, value in state.items():
        if key in unknown:
            key = head + key.removeprefix(layers[0])
        renamed[key] = value
    return renamed


def with_head_beside(
    state: dict[str, Tensor], file: Mapping[str, Tensor], builder: Builder
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Add the head that a file has beside the network to the network's tensors.

    ``self.backbone = resnet18()`` and ``self.head = Linear()`` save backbone.* and
    head.*. If there are several such layers, none is added.

    Args:
        state: the tensors of the network.
        file: all tensors of the file.
        builder: of the architecture.

    Returns:
        The tensors, and a note if a head was added.
    """
    if not heads(builder):
        return state, ()
    key, inputs = inputs_of_head(builder)
    taken = set(map(id, state.values()))  # by identity: names have changed
    beside = {name: value for name, value in file.items() if id(value) not in taken}
    layers = _layers_of(beside, inputs)
    has_convolutions = any(value.ndim == 4 for value in beside.values())
    if key in state or len(layers) != 1 or has_convolutions:
        return state, ()
    (layer,) = layers
    head = key.rpartition(".")[0]
    tensors = {
        f"{head}{name.removeprefix(layer)}": value
        for name, value in beside.items()
        if name.startswith(f"{layer}.")
    }
    return state | tensors, (f"its head is {layer}, beside the network",)


def _in_order(
    state: dict[str, Tensor], parts: Sequence[tuple[str, int]], order: Sequence[int]
) -> dict[str, Tensor]:
    """Reorder the outputs of a network's tensors.

    Args:
        state: tensors by name.
        parts: names of the tensors with a row per output, and that axis.
        order: output i becomes output order[i] of the file; empty for no change.
    """
    if not order:
        return state
    rows = torch.tensor(order)
    reordered = {
        key: state[key].index_select(axis, rows) for key, axis in parts if key in state
    }
    return state | reordered


def class_count(builder: Builder, state: Mapping[str, Tensor], name: str) -> int:
    """Count the outputs of a checkpoint's head, 0 for a network without one.

    Args:
        builder: of the architecture.
        state: tensors by name.
        name: of the architecture.

    Raises:
        ValueError: if the checkpoint has no head.
    """
    if not heads(builder):
        return 0
    key, axis = heads(builder)[0]
    if key not in state or state[key].ndim <= axis:
        raise ValueError(_without_head(state, builder, name))
    return int(state[key].shape[axis])


def _without_head(state: Mapping[str, Tensor], builder: Builder, name: str) -> str:
    """Say that a checkpoint has no head of an architecture, and what it has instead."""
    key, inputs = inputs_of_head(builder)
    layers = _layers_of(state, inputs)
    other = "nor another layer of as many inputs, as a network without its last layer"
    if layers:
        other = f"but other layers of as many inputs: {', '.join(layers[:4])}"
    return f"it has no head of {name} ({key}), {other}; {_ADVICE}"


def _layers_of(state: Mapping[str, Tensor], inputs: tuple[int, ...]) -> list[str]:
    """Names of the layers whose weights have a row of shape ``inputs`` per output."""
    return [
        name.removesuffix(".weight")
        for name, value in state.items()
        if name.endswith(".weight") and value.ndim > 1 and value.shape[1:] == inputs
    ]


def guess(state: Mapping[str, Tensor], part: str = "") -> str:
    """Recognise which of torchvision's ResNets a state dict is of.

    All tensors but those of the head are compared.

    Args:
        state: tensors by name.
        part: name of the network if the file holds several; else "".

    Raises:
        ValueError: if it is none of them.
    """
    # All ResNets have the tensors of the smallest one, which find a common prefix.
    smallest = shapes_of(builder_of(RESNETS[0]), 2)
    tensors, _ = network_part(state, set(_body(smallest)), part)
    body = _body({key: tuple(value.shape) for key, value in tensors.items()})
    stem = body.get("conv1.weight", ())
    for name in RESNETS:
        body_of_resnet = _body(shapes_of(builder_of(name), 2))
        if body_of_resnet == body:
            return name
        # The names of a ResNet in other shapes: another stem or width.
        if body_of_resnet.keys() == body.keys() and len(stem) == 4:
            if stem[1] != _CHANNELS:
                raise ValueError(_other_channels("conv1.weight", stem[1]))
            raise ValueError(
                f"it fits a {name} of {stem[0]} channels with a {stem[2]}x{stem[3]} "
                "stem, whose strides no weights show; name the function that makes "
                "it: --architecture module:function"
            )
    raise ValueError(
        "it is not one of torchvision's ResNets; name its --architecture: "
        "torchvision's name, timm:NAME or module:function"
    )


def _body(shapes: Shapes) -> Shapes:
    """Shapes of the stem and the stages of a ResNet, by their names in torchvision."""
    stem_or_stage = re.compile(r"(conv1|bn1|layer\d)\.")
    return {
        name: shape
        for name, shape in shapes.items()
        if stem_or_stage.match(name) and not name.endswith(_COUNTER)
    }


def normaliser(mean: Sequence[float], std: Sequence[float]) -> v2.Compose:
    """Make the function ``(x / 255 - mean) / std`` of uint8 images, per channel.

    Args:
        mean: of red, green and blue, in [0, 1].
        std: of red, green and blue, in (0, 1].

    Raises:
        ValueError: if they are not three such numbers each.
    """
    is_mean = len(mean) == 3 and all(0 <= value <= 1 for value in mean)
    is_std = len(std) == 3 and all(0 < value <= 1 for value in std)
    if not (is_mean and is_std):
        raise ValueError(
            f"mean {list(mean)} and std {list(std)} must be three numbers each in "
            "[0, 1], std above 0, as in training"
        )
    normalise = v2.Normalize(list(mean), list(std))
    return v2.Compose([v2.ToDtype(torch.float32, scale=True), normalise])
