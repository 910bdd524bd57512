"""One training run: data and configuration in; snapshots, history and result out, resumable."""

import json
import math
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from helpers.data.images import ImageSet, StudyData
from helpers.files import (
    device_name,
    digest_of,
    read_header,
    read_json,
    read_tensors,
    versions,
    write_json,
    write_table,
    write_tensors,
)
from helpers.networks import resnet, weights
from helpers.networks.batches import fitting_batch, halving_batches
from helpers.networks.devices import fastest_convolutions
from helpers.networks.hooks import captured_output
from helpers.training import looking
from helpers.training.augmentation import Draws, augment, draw
from helpers.training.catalogue import snapshot_path
from helpers.training.config import RunConfig, run_id
from helpers.training.stopping import Epoch, conditions_met, stop_reason
from helpers.training.strong_augmentation import (
    NONE,
    StrongDraws,
    change_images,
    draw_strong,
    mixed_cross_entropy,
)

CHECKPOINT = "checkpoint.safetensors"  # of a run that trains
_CHECKPOINT_SECONDS = {
    "cpu": 0.0,
    "cuda": 30.0,
}  # between two checkpoints; on a GPU writing one may take longer than an epoch


def pause_after_checkpoint(device: str, writing: float) -> float:
    """Seconds from a checkpoint to the next.

    On a GPU many runs may write to one disk, so that at most a twentieth of a run's
    time goes into it, however slow that is.

    Args:
        device: "cpu" or "cuda".
        writing: seconds that the checkpoint took.

    Example:
        >>> pause_after_checkpoint("cuda", 6.0)
        120.0
    """
    least = _CHECKPOINT_SECONDS[device]
    return max(least, 20 * writing) if device == "cuda" else least


@dataclass(frozen=True)
class Split:
    """Images that stay on the device for as long as a run takes."""

    pixels: Tensor  # (N, H, W, 3) uint8
    labels: Tensor  # (N,) int64

    def batch(self, indices: Tensor) -> Tensor:
        """Images as (B, 3, H, W) uint8 in channels-last layout, without a copy beyond the gather."""
        return self.pixels[indices].permute(0, 3, 1, 2)


def resident(images: ImageSet, device: torch.device | str) -> Split:
    """Move an image set to the device once."""
    return Split(
        images.images.permute(0, 2, 3, 1).contiguous().to(device),
        images.labels.to(device),
    )


def images_of_run(data: StudyData, config: RunConfig) -> tuple[ImageSet, ImageSet]:
    """Images that a run is fitted to, with the labels that it is given (noisy ones uniform among other classes), and those of rule 3."""
    fitted, held_out = rows_of_run(data, config)
    monitored = (
        data.train.subset(held_out) if config.rule3_split == "holdout" else data.test
    )
    chosen = data.train.subset(fitted)
    return replace(
        chosen, labels=_noisy(chosen.labels, config, len(data.classes))
    ), monitored


def rows_of_run(
    data: StudyData, config: RunConfig
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of training images that a run is fitted to, and that it holds out for rule 3; of fewer per class a subset of those of more."""
    order = np.random.default_rng([config.seed, 1]).permutation(len(data.train))
    labels = data.train.labels.numpy()[order]
    rank_in_class = pd.Series(labels).groupby(labels).cumcount().to_numpy()
    kept = (
        order[rank_in_class < config.images_per_class]
        if config.images_per_class
        else order
    )
    cut = (
        max(1, round(len(kept) * config.holdout_fraction))
        if config.rule3_split == "holdout"
        else 0
    )
    return np.sort(kept[cut:]), np.sort(kept[:cut])


def _noisy(labels: Tensor, config: RunConfig, classes: int) -> Tensor:
    generator = np.random.default_rng([config.seed, 2])
    flipped = generator.permutation(len(labels))[
        : round(len(labels) * config.label_noise)
    ]
    noisy = labels.clone()
    noisy[flipped] = (
        labels[flipped] + torch.from_numpy(generator.integers(1, classes, len(flipped)))
    ) % classes
    return noisy


def initial_network(
    config: RunConfig, classes: int, pretrained: Mapping[str, Tensor] | None = None
) -> nn.Module:
    """The network as it is before the first step; the same configuration gives the same weights."""
    form = {
        "stem": config.stem,
        "width": config.width,
        "last_stride": config.last_stride,
    }
    network = resnet.build(config.architecture, classes, **form, seed=_seed(config, 0))
    return weights.load_backbone(network, pretrained) if config.pretrained else network


def _seed(config: RunConfig, epoch: int) -> int:
    """One seed per run and epoch, so that a resumed run draws what an uninterrupted one would have drawn."""
    return int(
        np.random.SeedSequence([config.seed, config.repeat, epoch]).generate_state(1)[0]
    )


def make_optimizer(
    network: nn.Module, config: RunConfig, device: torch.device
) -> torch.optim.Optimizer:
    """The optimizer of a run before its first step; one kernel for all weights on a GPU."""
    given = {
        "lr": config.learning_rate,
        "weight_decay": config.weight_decay,
        "fused": device.type == "cuda",
    }
    if config.optimizer == "adam":
        return torch.optim.Adam(network.parameters(), **given)
    return torch.optim.SGD(network.parameters(), momentum=config.momentum, **given)


@dataclass(frozen=True)
class Batch:
    """Images with all that a step needs of them; an epoch's in order, or a part."""

    indices: Tensor  # (B,) int64, of the run's images
    labels: Tensor  # (B,) int64
    draws: Draws | None = None  # of the paper's augmentation
    strong_draws: StrongDraws | None = None  # of what goes beyond it
    guide: looking.Guide | None = None  # where the maps are to lie

    def of(self, part: slice) -> "Batch":
        """A part of the images."""
        return Batch(
            self.indices[part],
            self.labels[part],
            self.draws.of(part) if self.draws else None,
            self.strong_draws.of(part) if self.strong_draws else None,
            self.guide.of(part) if self.guide else None,
        )


def train_step(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: Tensor,
    batch: Batch,
    config: RunConfig,
) -> Tensor:
    """Take one step of the optimizer, without waiting for the device.

    Args:
        network: in train mode; with a guide a ResNet that is not compiled.
        optimizer: of the network's weights.
        images: (B, 3, S, S) uint8.
        batch: what the step needs of the B images.
        config: the run, of which precision and label smoothing are taken.

    Returns:
        (2,) float64: cross-entropy summed over the images, of the labels as they are
        and without a penalty, and the number that are classified correctly. Where
        images are mixed, both are of mixed images and the label of the larger share.
    """
    size = images.shape[-1]
    labels = batch.labels
    if batch.draws is not None:
        images = augment(images, batch.draws)
    if batch.strong_draws is not None:
        images = change_images(images, batch.strong_draws)
    images = resnet.normalise_images(images)
    autocast = torch.autocast(
        labels.device.type,
        dtype=torch.bfloat16,
        enabled=config.precision == "bfloat16",
    )
    if batch.guide is None:
        with autocast:
            logits = network(images).float()
        penalty = 0.0
    else:
        with autocast, captured_output(network.layer4) as features:
            logits = network(images).float()
        maps = looking.class_maps(features[0], network.fc.weight, labels)
        penalty = looking.map_penalty(maps, batch.guide, size, batch.draws)
    loss = cross_entropy(logits, labels)
    learnt = loss
    if batch.strong_draws is not None or config.label_smoothing:
        learnt = mixed_cross_entropy(
            logits, labels, batch.strong_draws, config.label_smoothing
        )
    optimizer.zero_grad()
    (learnt + penalty).backward()
    optimizer.step()
    correct = (logits.detach().argmax(1) == labels).sum()
    return torch.stack([loss.detach().double() * len(labels), correct.double()])


def train_epoch(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    split: Split,
    config: RunConfig,
    epoch: int,
    guide: looking.Guide | None = None,
) -> tuple[float, float]:
    """Fit one epoch in an order drawn from the run's seed, its repeat and the epoch.

    Args:
        network: on the device of the split.
        optimizer: of the network's weights.
        split: the N images that the run is fitted to.
        config: the run.
        epoch: 1 is the first.
        guide: of the N images, in a run that is told where to look. Arms and controls
            of one seed and repeat have one order and one augmentation.

    Returns:
        Mean cross-entropy and accuracy (fraction) of the pass itself, read from the
        device once.
    """
    device = split.labels.device
    if guide and guide.arm in looking.SWAPS:
        pixels = looking.swap_backgrounds(split.pixels, guide, config, epoch)
        split = replace(split, pixels=pixels)
        guide = None
    images = _images_of_epoch(split, config, epoch, guide)
    totals = torch.zeros(2, dtype=torch.float64, device=device)
    network.train()
    for module in frozen_modules(network, config.frozen_stages):
        module.eval()
    with fastest_convolutions(device):
        for start in range(0, len(images.indices), config.batch_size):
            batch = images.of(slice(start, start + config.batch_size))
            pixels = split.batch(batch.indices)
            totals += train_step(network, optimizer, pixels, batch, config)
    return tuple((totals / len(images.indices)).tolist())


def _images_of_epoch(
    split: Split, config: RunConfig, epoch: int, guide: looking.Guide | None
) -> Batch:
    """All images of an epoch, put in order once, so that a step has little to launch.

    Batch norm is undefined on a last batch of one image, which is left out.
    """
    device = split.labels.device
    count = len(split.labels)
    generator = torch.Generator().manual_seed(_seed(config, epoch))
    order = torch.randperm(count, generator=generator)
    draws = draw(count, generator).to(device) if config.augmentation else None
    strong_draws = None
    if config.strong_augmentation != NONE:
        strong_draws = draw_strong(
            config.strong_augmentation, count, config.seed, config.repeat, epoch
        ).to(device)
    if count % config.batch_size == 1:
        order = order[:-1]
    order = order.to(device)
    return Batch(
        order,
        split.labels[order],
        draws.of(order) if draws else None,
        strong_draws.of(order) if strong_draws else None,
        guide.of(order) if guide else None,
    )


def frozen_modules(network: nn.Module, stages: int) -> list[nn.Module]:
    """Stem and first stages of a ResNet, which keep weights and statistics.

    Args:
        network: of ``resnet.build``; a compiled one gives its modules as well.
        stages: 0 freezes nothing, 1 to 4 the stem and as many stages.
    """
    if not stages:
        return []
    names = ["conv1", "bn1", *(f"layer{number}" for number in range(1, stages + 1))]
    return [network.get_submodule(name) for name in names]


def evaluate(
    network: nn.Module, split: Split, batch_size: int = 512
) -> tuple[float, float]:
    """Mean cross-entropy and accuracy (fraction) without augmentation, in eval mode and float32.

    Where the memory of a GPU runs out, with half of ``batch_size``, or a quarter.
    """
    return halving_batches(
        lambda: _evaluate(network, split, fitting_batch(batch_size)), "evaluation"
    )


@torch.inference_mode()
def _evaluate(network: nn.Module, split: Split, batch_size: int) -> tuple[float, float]:
    network.eval()
    totals = torch.zeros(2, dtype=torch.float64, device=split.labels.device)
    for indices in torch.arange(len(split.labels), device=split.labels.device).split(
        batch_size
    ):
        logits = network(resnet.normalise_images(split.batch(indices))).float()
        labels = split.labels[indices]
        totals += torch.stack(
            [
                cross_entropy(logits, labels, reduction="sum").double(),
                (logits.argmax(1) == labels).sum().double(),
            ]
        )
    return tuple((totals / max(1, len(split.labels))).tolist())


def save(
    folder: Path,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    history: list[Epoch],
    snapshots: list[dict],
) -> None:
    """Write everything that the next epoch needs, whole or not at all. Random numbers need no state: each epoch has a seed of its own."""
    tensors = {f"model.{name}": tensor for name, tensor in network.state_dict().items()}
    for index, slots in optimizer.state_dict()["state"].items():
        tensors |= {
            f"optimizer.{index}.{name}": value
            for name, value in slots.items()
            if isinstance(value, Tensor)
        }
    write_tensors(
        folder / CHECKPOINT,
        tensors,
        {"history": json.dumps(history), "snapshots": json.dumps(snapshots)},
    )


def restore(
    folder: Path, network: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[list[Epoch], list[dict[str, Any]]]:
    """Put a checkpoint into network and optimizer; history and snapshots so far. Where it is absent or damaged, start anew."""
    if (tensors := read_tensors(folder / CHECKPOINT)) is None:
        return [], []
    said = read_header(folder / CHECKPOINT)
    network.load_state_dict(
        {
            name.removeprefix("model."): value
            for name, value in tensors.items()
            if name.startswith("model.")
        }
    )
    slots: dict[int, dict[str, Tensor]] = defaultdict(dict)
    for _, index, name in (
        key.split(".") for key in tensors if key.startswith("optimizer.")
    ):
        slots[int(index)][name] = tensors[f"optimizer.{index}.{name}"]
    parameters = [
        weight for group in optimizer.param_groups for weight in group["params"]
    ]
    for index, state in slots.items():
        for name, value in state.items():
            state[name] = laid_out_as(parameters[index], value)
    optimizer.load_state_dict(
        {"state": slots, "param_groups": optimizer.state_dict()["param_groups"]}
    )
    return json.loads(said["history"]), json.loads(said["snapshots"])


def laid_out_as(weight: Tensor, state: Tensor) -> Tensor:
    """Lay out a state of the optimizer in memory as the weight that it belongs to.

    Files hold tensors row by row, and weights are channels-last. A fused optimizer
    reads both by one index: on a GPU it refuses other strides, on a CPU it pairs the
    wrong elements.

    Args:
        weight: a parameter of the network, of any strides.
        state: of the weight's shape, or a scalar such as the number of steps.

    Returns:
        The state, in the strides of the weight where the two have one shape.
    """
    if state.shape != weight.shape:
        return state
    return torch.empty_like(weight, dtype=state.dtype, device=state.device).copy_(state)


def history_so_far(folder: Path) -> list[Epoch]:
    """Epochs of a run that is still training, also in another process; empty before the first, after the last, and for a damaged file."""
    try:
        return json.loads(read_header(folder / CHECKPOINT).get("history", "[]"))
    except json.JSONDecodeError:
        return []


def train_run(
    config: RunConfig,
    data: StudyData,
    folder: Path,
    *,
    pretrained: Mapping[str, Tensor] | None = None,
    network: nn.Module | None = None,
    device: torch.device | str = "cpu",
    compiled: bool = False,
) -> dict[str, Any]:
    """Train one run until a rule stops it, and leave a complete run in ``folder``.

    Snapshots are taken when the first of the rules 1 to 3 holds ("first") and at the
    stop ("stop"); one, "stop", where both fall on one epoch; and "matched" where the
    run asks for one (``snapshots_due``). Killed at any moment, the next call goes on
    after the last checkpoint. A run that diverges is a result too, without a snapshot
    of the stop.

    Args:
        config: the run.
        data: the images that it belongs to.
        folder: of this run alone.
        pretrained: the weights that a pretrained run starts from.
        network: stands in place of that of the configuration.
        device: where the network trains.
        compiled: take the steps through ``torch.compile``, equal up to rounding.

    Returns:
        The record that ``result.json`` holds.

    Raises:
        ValueError: where the run belongs to other images, or is told to look into
            boxes that the images do not have.
    """
    if config.data != data.fingerprint:
        raise ValueError(
            f"run {config} belongs to the data {config.data}, and was given {data.fingerprint}"
        )
    if (folder / "result.json").is_file():
        return read_json(folder / "result.json")
    if not data.train.has_pixels:
        raise FileNotFoundError(
            f"run {config} cannot be trained from records, which have no pixels; put the "
            "images where notebook 01 reads them (data_path)"
        )
    device = torch.device(device)
    fitted, watched = images_of_run(data, config)
    guide = looking.guide_of_run(config, fitted, device)
    train = resident(fitted, device)
    monitor = resident(watched, device)
    test = resident(data.test, device)
    network = network or initial_network(config, len(data.classes), pretrained)
    network = network.to(device, memory_format=torch.channels_last)
    for module in frozen_modules(network, config.frozen_stages):
        module.requires_grad_(False)
    optimizer = make_optimizer(network, config, device)
    write_json(folder / "config.json", asdict(config) | {"run_id": run_id(config)})
    history, snapshots = restore(folder, network, optimizer)
    # A penalty on maps reads the features, which a compiled network does not give.
    compiled = compiled and not (guide and guide.arm in looking.PENALTIES)
    stepping = torch.compile(network, mode="reduce-overhead") if compiled else network
    # A kill may have come between the last checkpoint and the result: then there is nothing left to train.
    reason, diverged, saved = (
        stop_reason(history, config) if history else "",
        False,
        -math.inf,
    )
    pause = 0.0
    while not reason:
        started = time.perf_counter()
        epoch = len(history) + 1
        loss, accuracy = train_epoch(stepping, optimizer, train, config, epoch, guide)
        if not math.isfinite(loss):
            reason, diverged = f"loss is {loss} in epoch {epoch}", True
            break
        monitored = evaluate(network, monitor)[1]
        history.append(
            Epoch(
                epoch=epoch,
                train_loss=loss,
                train_accuracy=accuracy,
                monitor_accuracy=monitored,
                seconds=0.0,
            )
        )
        reason = stop_reason(history, config)
        taken = [row["snapshot"] for row in snapshots]
        due = snapshots_due(history, config, reason, taken)
        measured = _measured(network, train, test) if due else {}
        for name in due:
            path = snapshot_path(folder, name)
            write_tensors(path, network.state_dict())
            snapshot = {"snapshot": name, "epoch": epoch, "digest": digest_of(path)}
            snapshots.append(snapshot | measured)
        history[-1]["seconds"] = time.perf_counter() - started
        began = time.perf_counter()
        if began - saved >= pause:
            save(folder, network, optimizer, history, snapshots)
            saved = time.perf_counter()
            pause = pause_after_checkpoint(device.type, saved - began)
    epochs = pd.DataFrame(history, columns=list(Epoch.__annotations__))
    write_table(folder / "history.parquet", epochs)
    result = {
        "run_id": run_id(config),
        "status": "diverged" if diverged else "complete",
        "stop_reason": reason,
        "epochs": len(history),
    }
    result |= {
        "seconds": sum(row["seconds"] for row in history),
        "snapshots": snapshots,
    }
    write_json(
        folder / "result.json",
        result | {"device": device_name(device), "versions": versions()},
        sealed=True,
    )
    (folder / CHECKPOINT).unlink(missing_ok=True)
    return read_json(folder / "result.json")


def snapshots_due(
    history: list[Epoch], config: RunConfig, reason: str, taken: Collection[str]
) -> list[str]:
    """Which snapshots are taken after the last epoch.

    Args:
        history: the epochs so far.
        config: the run.
        reason: why the run stops here; "" where it goes on.
        taken: the snapshots of earlier epochs.

    Returns:
        "stop" at the stop, or "first" where one of the rules 1 to 3 holds for the first
        time; before them "matched" where the training accuracy of the pass exceeds
        ``matched_accuracy`` for the first time, in a run that asks for it.
    """
    due = []
    accuracy = history[-1]["train_accuracy"]
    if 0 < config.matched_accuracy < accuracy and "matched" not in taken:
        due.append("matched")
    if reason:
        due.append("stop")
    elif conditions_met(history, config) and "first" not in taken:
        due.append("first")
    return due


def _measured(network: nn.Module, train: Split, test: Split) -> dict[str, float | None]:
    (train_loss, train_accuracy), (test_loss, test_accuracy) = (
        evaluate(network, train),
        evaluate(network, test),
    )
    losses = {"train_loss": train_loss, "test_loss": test_loss}
    finite = {
        name: value if math.isfinite(value) else None for name, value in losses.items()
    }
    return finite | {
        "train_accuracy": train_accuracy,
        "test_accuracy": test_accuracy,
        "gap": train_accuracy - test_accuracy,
    }
