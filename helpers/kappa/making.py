"""Networks made on the spot: ResNets and EfficientNet-like ones of any size, trained on a study's seen classes and kept."""

import math
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from hashlib import blake2b
from itertools import repeat
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchvision.models.efficientnet import EfficientNet, MBConvConfig

from helpers.constraints import MADE_NETWORKS
from helpers.data.images import ImageSet
from helpers.files import give_up, is_sound, read_json, write_json, write_tensors
from helpers.networks import resnet
from helpers.training import pool, state
from helpers.training.config import PRECISIONS
from helpers.training.cuda_graph import autocast
from helpers.training.precision import AUTO_PRECISION, seconds_in_turns, settled_precision
from helpers.training.run import Split, evaluate

_NAME = re.compile(r"(?P<kind>resnet\d+|efficientnet-like) w(?P<width>[\d.]+)(?: d(?P<depth>[\d.]+))?")

# Tan and Le 2019, Table 1: expansion, kernel, stride, input and output channels, and layers of each stage. Of the strides of B0, which
# is for 224 px, the last is 1 here, so that small images keep a map of more than four cells.
_STAGES = (
    (1, 3, 1, 32, 16, 1),
    (6, 3, 2, 16, 24, 2),
    (6, 5, 2, 24, 40, 2),
    (6, 3, 2, 40, 80, 3),
    (6, 5, 1, 80, 112, 3),
    (6, 5, 1, 112, 192, 4),
    (6, 3, 1, 192, 320, 1),
)
_RATE, _DECAY, _BATCH, _SMOOTHING = 4e-3, 0.05, 64, 0.1
_WARM_UP = 0.2  # share of the steps in which the rate rises
_RECORD = "record.json"
_SHIFT = 8  # of the image's side: the largest shift is this part of it


WEIGHTS = "weights.safetensors"  # of a made network, with its head


class Recipe(NamedTuple):
    """All that decides a made network beside the images."""

    model: str  # its name, see ``constraints.MADE_NETWORKS``
    classes: int
    epochs: int  # passes over the images
    seed: int  # of the first weights, the order and the augmentation
    precision: str  # of the products: "float32" or "bfloat16"


def family_made(name: str) -> str:
    """Family of a network to be made, "resnet" or "efficientnet-like"; "" for a name that is none of ``constraints.MADE_NETWORKS``."""
    return "" if not re.fullmatch(MADE_NETWORKS, name) else "resnet" if name.startswith("resnet") else "efficientnet-like"


def made_names(names: Sequence[str]) -> list[str]:
    """Those of some networks that are made on the spot, see ``constraints.MADE_NETWORKS``."""
    return [name for name in names if family_made(name)]


def untrained(name: str, classes: int, side: int, seed: int) -> nn.Module:
    """Classifier of a name of ``constraints.MADE_NETWORKS`` before its training; the same arguments give the same weights.

    Args:
        name: the architecture with its factors: "resnet18 w0.25" has a quarter of the published channels, "efficientnet-like w0.5 d0.5"
            half of EfficientNet-B0's channels and half of its layers per stage (rounded up; channels in multiples of 8).
        classes: number of outputs.
        side: of the images, pixels; a ResNet's first layers are chosen so that its first stage sees about 32 cells a side.
        seed: of the weights.

    Raises:
        ValueError: a width below 1/16.
    """
    kind, width, depth = _NAME.fullmatch(name).groups()
    if kind != "efficientnet-like":
        stem = "small" if side <= 32 else "strided" if side <= 64 else "imagenet"
        return resnet.build(kind, classes, stem=stem, width=float(width), seed=seed)
    stages = [MBConvConfig(*stage, width_mult=float(width), depth_mult=float(depth)) for stage in _STAGES]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return EfficientNet(stages, dropout=0.0, stochastic_depth_prob=0.0, num_classes=classes)


def augmented(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror half of the images, and shift each by up to an eighth of its side, the edge reflected: uint8 to uint8, (B, 3, S, S)."""
    count, side = len(images), images.shape[-1]
    most = side // _SHIFT
    mirrored = torch.rand(count, generator=generator) < 0.5
    shifts = torch.randint(-most, most + 1, (2, count, 1), generator=generator)
    places = torch.arange(side) + shifts  # rows and columns, (2, B, S)
    places = (side - 1) - ((side - 1) - places.abs()).abs()  # reflected at both edges
    columns = torch.where(mirrored[:, None], places[1].flip(1), places[1])
    rows, columns = places[0].to(images.device), columns.to(images.device)
    at = torch.arange(count, device=images.device)[:, None, None]
    return images.permute(0, 2, 3, 1)[at, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def make_missing(
    names: Sequence[str],
    images: ImageSet,
    tested: ImageSet,
    folder: Path,
    *,
    epochs: int,
    seed: int,
    precision: str = AUTO_PRECISION,
    device: str = "cpu",
    jobs: int = 0,
) -> Iterator[dict[str, Any]]:
    """Train the networks that are not kept yet, each in a process of its own with one thread, and yield all of them as they are there.

    A killed training goes on after its last epoch; a network depends on its recipe and the images alone, never on ``jobs``.

    Args:
        names: see ``constraints.MADE_NETWORKS``; others are passed over.
        images: training images of the seen classes, labels from 0 without a gap.
        tested: test images of the same classes, which decide nothing.
        folder: where the networks are kept, one folder each.
        epochs: passes over the images, at least 1.
        seed: of weights, order and augmentation.
        precision: "float32", "bfloat16", or "auto", which measures for each network what is faster on the device, once.
        device: where they are trained.
        jobs: processes; 0 is one per core of a CPU, and one on a GPU.

    Yields:
        The fields of ``Recipe``, train_loss and train_accuracy without augmentation, test_accuracy, seconds, and kept_as, its folder in
        ``folder``.

    Raises:
        ValueError: epochs below 1, a width that is too small, or a loss that is no longer finite.
    """
    if epochs < 1:
        raise ValueError(f"made_epochs is {epochs}; training on the spot needs at least 1")
    arrays = [part.numpy() for given in (images, tested) for part in (given.images, given.labels)]
    digest, classes = blake2b(b"".join(part.tobytes() for part in arrays[:2]), digest_size=8).hexdigest(), int(images.labels.max()) + 1
    todo = []
    for name in made_names(names):
        slug, side = name.replace(" ", "-"), images.images.shape[-1]
        seconds = partial(_seconds, name, classes, side, device)
        settled = settled_precision(precision, folder / slug / "precision.json", device, seconds, f"delete {folder / slug}")
        recipe = Recipe(name, classes, epochs, seed, settled)
        what = f"{recipe} {digest} {_RATE} {_DECAY} {_BATCH} {_SMOOTHING} {_WARM_UP} {_SHIFT}"
        todo.append((recipe, folder / f"{slug}-{blake2b(what.encode(), digest_size=4).hexdigest()}"))
    count = min(pool.jobs_for(device, jobs), sum(not _kept(*each) for each in todo))
    if count < 2:
        yield from (_made_here(*each, *arrays, device) for each in todo)
        return
    with ProcessPoolExecutor(count, SpawnContext(), initializer=_start, initargs=(device, arrays)) as executor:
        yield from executor.map(_made, *zip(*todo, strict=True), repeat(device))


_GIVEN: list[NDArray] = []  # of a worker: images and labels to fit and to test


def _start(device: str, arrays: list[NDArray]) -> None:
    pool.start_worker(device)
    _GIVEN[:] = arrays


def _made(recipe: Recipe, place: Path, device: str) -> dict[str, Any]:
    return train(recipe, *_splits(*_GIVEN, device), place)


def _made_here(recipe: Recipe, place: Path, *given: Any) -> dict[str, Any]:
    """Train in this process, with one thread on a CPU all the same."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return train(recipe, *_splits(*given), place)
    finally:
        torch.set_num_threads(threads)


def _splits(images: NDArray, labels: NDArray, tested: NDArray, true: NDArray, device: str) -> list[Split]:
    pairs = ((torch.from_numpy(given), torch.from_numpy(classes)) for given, classes in ((images, labels), (tested, true)))
    return [Split(pixels.permute(0, 2, 3, 1).contiguous().to(device), classes.to(device)) for pixels, classes in pairs]


def _kept(recipe: Recipe, place: Path) -> dict[str, Any]:
    """The record of a network, empty where it or its weights are not there, not as they were written, or of another network."""
    if not (is_sound(place / _RECORD) and is_sound(place / WEIGHTS)):
        return {}
    found, own = read_json(place / _RECORD), recipe._asdict() | {"kept_as": place.name}
    if isinstance(found, dict) and own.items() <= found.items():
        return found
    give_up(place / _RECORD, f"it is no record of {recipe.model}")
    return {}


def _seconds(name: str, classes: int, side: int, device: str) -> dict[str, float]:
    """Seconds of a training step on random images, by precision."""
    steps = {}
    for products in PRECISIONS:
        model = untrained(name, classes, side, 0).to(device, memory_format=torch.channels_last).train()
        images = torch.randint(256, (_BATCH, 3, side, side), dtype=torch.uint8, device=device)
        given = images, torch.zeros(_BATCH, dtype=torch.int64, device=device)
        steps[products] = partial(_step, model, torch.optim.AdamW(model.parameters(), lr=1e-9), *given, products)
    return seconds_in_turns(steps, device)


def train(recipe: Recipe, split: Split, tested: Split, folder: Path) -> dict[str, Any]:
    """Train a network from its start, or from where a killed training left it, and keep it in ``folder``.

    AdamW at a rate that rises to 4e-3 within the first fifth of the steps and falls to 0 by a cosine, decay 0.05, batches of 64, labels
    smoothed by 0.1, images as ``augmented``. After each epoch the state is written; random numbers depend on seed and epoch alone.

    Args:
        recipe: the network.
        split: the images to fit, on their device.
        tested: the images to test, likewise.
        folder: of this network; the record is written last of all.

    Returns:
        The record, see ``make_missing``.

    Raises:
        ValueError: the loss is no longer finite.
    """
    if kept := _kept(recipe, folder):
        return kept
    model = untrained(recipe.model, recipe.classes, split.pixels.shape[1], recipe.seed)
    model = model.to(split.labels.device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=_DECAY)
    history, _ = state.restore(folder, model, optimizer)
    while len(history) < recipe.epochs:
        started = time.perf_counter()
        loss = _epoch(model, optimizer, split, recipe, len(history))
        if not loss < float("inf"):
            raise ValueError(f"{recipe.model} diverged when it was made (loss {loss}); leave it out, or take more images")
        history.append({"epoch": len(history) + 1, "train_loss": loss, "seconds": time.perf_counter() - started})
        state.save(folder, model, optimizer, history, [])
    write_tensors(folder / WEIGHTS, model.state_dict())
    loss, right = evaluate(model, split)
    found = {"train_loss": loss, "train_accuracy": right, "test_accuracy": evaluate(model, tested)[1]}
    record = recipe._asdict() | found | {"seconds": sum(row["seconds"] for row in history), "kept_as": folder.name}
    write_json(folder / _RECORD, record, seal=True)
    state.discard(folder)
    return read_json(folder / _RECORD)  # in the order in which it is read later


def _epoch(model: nn.Module, optimizer: torch.optim.Optimizer, split: Split, recipe: Recipe, epoch: int) -> float:
    """One pass; the mean loss of its steps. A last batch of one image is left out, since batch normalisation is undefined on it."""
    generator = torch.Generator().manual_seed(2**20 * recipe.seed + epoch)
    batches = [chosen for chosen in torch.randperm(len(split.labels), generator=generator).split(_BATCH) if len(chosen) > 1]
    total, done, steps = 0.0, epoch * len(batches), recipe.epochs * len(batches)
    model.train()
    for number, chosen in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = _rate((done + number + 0.5) / steps)
        chosen = chosen.to(split.labels.device)
        images = augmented(split.batch(chosen), generator)
        total += _step(model, optimizer, images, split.labels[chosen], recipe.precision)
    return total / len(batches)


def _rate(share: float) -> float:
    """Learning rate after a share of the steps, in (0, 1)."""
    if share < _WARM_UP:
        return _RATE * share / _WARM_UP
    return _RATE * (1 + math.cos(math.pi * (share - _WARM_UP) / (1 - _WARM_UP))) / 2


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor, products: str) -> float:
    pixels = resnet.normalise_images(images).contiguous(memory_format=torch.channels_last)
    with autocast(labels.device, products):
        logits = model(pixels)
    loss = cross_entropy(logits.float(), labels, label_smoothing=_SMOOTHING)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return float(loss.detach())
