"""Train a run: from images and a configuration to weights, history and result."""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.utils._pytree import tree_map_only

from helpers.data.images import ImageSet, StudyData
from helpers.files import (
    complete_or_absent,
    device_name,
    file_digest,
    read_json,
    versions,
    write_json,
    write_table,
    write_tensors,
)
from helpers.networks import resnet, weights
from helpers.networks.hooks import captured_output
from helpers.training import looking
from helpers.training.augmentation import Draws, augment, draw
from helpers.training.catalogue import snapshot_path
from helpers.training.config import RunConfig, rows_of_run, run_id
from helpers.training.stopping import Epoch, conditions_met, stop_reason
from helpers.training.strong_augmentation import (
    NONE,
    StrongDraws,
    change_images,
    draw_strong,
    mixed_cross_entropy,
)

CHECKPOINT = "checkpoint.pt"  # of a run that trains
RESULT = "result.json"  # of a complete one
_PAUSE = 30.0  # seconds from a checkpoint to the next


class Split(NamedTuple):
    """Images of a split, on the device during a whole run."""

    pixels: Tensor  # (N, H, W, 3) uint8
    labels: Tensor  # (N,) int64

    def batch(self, images: Tensor | slice) -> Tensor:
        """Select images: (B, 3, H, W) uint8 in channels-last layout."""
        return self.pixels[images].permute(0, 3, 1, 2)


def resident(images: ImageSet, device: torch.device | str) -> Split:
    """Copy an image set to the device, where it stays during a run.

    Args:
        images: of the split.
        device: on which the network trains.
    """
    pixels = images.images.permute(0, 2, 3, 1).contiguous()
    return Split(pixels.to(device), images.labels.to(device))


def images_of_run(data: StudyData, config: RunConfig) -> tuple[ImageSet, ImageSet]:
    """Images that a run is fitted to, and the images of stopping rule 3.

    Rule 3 stops a run that overfits, see ``stopping.conditions_met``.

    Args:
        data: images of the study.
        config: the run.

    Returns:
        Both sets; labels of the first are wrong where the run has label noise.
    """
    fitted, held_out = rows_of_run(data.train.labels, config)
    train = data.train.subset(fitted)
    labels = _with_noise(train.labels, config, len(data.classes))
    watched = data.test
    if config.rule3_split == "holdout":
        watched = data.train.subset(held_out)
    return replace(train, labels=labels), watched


def _with_noise(labels: Tensor, config: RunConfig, classes: int) -> Tensor:
    """Replace a fraction of the labels by another class, uniformly at random."""
    # 2: a stream of its own, see ``looking``; all repeats of a seed have these labels.
    generator = np.random.default_rng([config.seed, 2])
    order = generator.permutation(len(labels))
    changed = order[: round(len(labels) * config.label_noise)]
    steps = torch.from_numpy(generator.integers(1, classes, len(changed)))
    noisy = labels.clone()
    noisy[changed] = (labels[changed] + steps) % classes
    return noisy


def initial_network(
    config: RunConfig, classes: int, pretrained: Mapping[str, Tensor] | None = None
) -> nn.Module:
    """Make the network before the first step, equal for equal configurations.

    Args:
        config: the run.
        classes: number of classes.
        pretrained: the weights that a pretrained run starts from.
    """
    network = resnet.build(
        config.architecture,
        classes,
        stem=config.stem,
        width=config.width,
        last_stride=config.last_stride,
        seed=_seed(config, 0),
    )
    return weights.load_backbone(network, pretrained) if config.pretrained else network


def _seed(config: RunConfig, epoch: int) -> int:
    """One seed per run and epoch, so that a resumed run has the same random numbers."""
    sequence = np.random.SeedSequence([config.seed, config.repeat, epoch])
    return int(sequence.generate_state(1)[0])


def make_optimizer(
    network: nn.Module, config: RunConfig, device: torch.device
) -> Optimizer:
    """Make the optimizer of a run; on a GPU a step is fused into one kernel.

    Args:
        network: whose weights it changes.
        config: the run, with optimizer, learning rate, weight decay and momentum.
        device: device of the network.
    """
    optimizers = {
        "adam": Adam,
        "adamw": AdamW,
        "sgd": partial(SGD, momentum=config.momentum),
    }
    return optimizers[config.optimizer](
        network.parameters(),
        lr=config.learning_rate,
        weight_decay=config.weight_decay,
        fused=device.type == "cuda",
    )


class Batch(NamedTuple):
    """The images of an epoch in shuffled order, or one mini-batch of them."""

    indices: Tensor  # (B,) int64, of the run's images
    labels: Tensor  # (B,) int64
    draws: Draws | None = None  # random numbers of the paper's augmentation
    strong_draws: StrongDraws | None = None  # those of stronger augmentation
    guide: looking.Guide | None = None  # target regions of the class activation maps


def train_step(
    network: nn.Module,
    optimizer: Optimizer,
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
        config: the run; precision and label smoothing are read.

    Returns:
        (2,) float64: cross-entropy summed over the images, without label smoothing,
        mixing of labels, or penalty; and the number of images classified correctly.
        With mixup both are those of mixed images and the label of the larger share;
        with cutmix, of the image around the patch.
    """
    labels = batch.labels
    strong = batch.strong_draws
    size = images.shape[-1]
    if batch.draws is not None:
        images = augment(images, batch.draws)
    if strong is not None:
        images = change_images(images, strong)
    precision = torch.autocast(
        labels.device.type, torch.bfloat16, enabled=config.precision == "bfloat16"
    )
    is_guided = batch.guide is not None
    hook = captured_output(network.layer4) if is_guided else nullcontext()
    with precision, hook as features:
        logits = network(resnet.normalise_images(images)).float()
    objective = loss = cross_entropy(logits, labels)
    if strong is not None or config.label_smoothing:
        smoothing = config.label_smoothing
        objective = mixed_cross_entropy(logits, labels, strong, smoothing)
    if is_guided:
        maps = looking.class_maps(features[0], network.fc.weight, labels)
        objective = objective + looking.map_penalty(
            maps, batch.guide, size, batch.draws
        )
    optimizer.zero_grad()
    objective.backward()
    optimizer.step()
    correct = (logits.detach().argmax(1) == labels).sum()
    return torch.stack([loss.detach().double() * len(labels), correct.double()])


def train_epoch(
    network: nn.Module,
    optimizer: Optimizer,
    split: Split,
    config: RunConfig,
    epoch: int,
    guide: looking.Guide | None = None,
) -> tuple[float, float]:
    """Train one epoch; its order depends on the run's seed, its repeat and the epoch.

    Args:
        network: on the device of the split.
        optimizer: of the network's weights.
        split: the N images that the run is fitted to.
        config: the run.
        epoch: 1 is the first.
        guide: of the N images, in a run of the looking experiment. Arms and controls
            with the same seed and repeat have the same order and augmentation.

    Returns:
        Mean cross-entropy and accuracy (fraction) of the images as they were trained
        on, each before its step.
    """
    device = split.labels.device
    if guide and guide.arm in looking.SWAPS:
        pixels = looking.swap_backgrounds(split.pixels, guide, config, epoch)
        split = split._replace(pixels=pixels)
        guide = None  # a swap changes pixels; it adds no penalty on maps
    epoch_batch = _images_of_epoch(split, config, epoch, guide)
    totals = torch.zeros(2, dtype=torch.float64, device=device)
    network.train()
    for module in frozen_modules(network, config.frozen_stages):
        module.eval()
    # On a GPU cuDNN times its kernels for each new shape and keeps the fastest.
    with torch.backends.cudnn.flags(
        enabled=True, benchmark=True, allow_tf32=torch.backends.cudnn.allow_tf32
    ):
        for start in range(0, len(epoch_batch.indices), config.batch_size):
            part = slice(start, start + config.batch_size)
            batch = tree_map_only(Tensor, itemgetter(part), epoch_batch)
            pixels = split.batch(batch.indices)
            totals += train_step(network, optimizer, pixels, batch, config)
    loss, accuracy = (totals / len(epoch_batch.indices)).tolist()
    return loss, accuracy


def _images_of_epoch(
    split: Split, config: RunConfig, epoch: int, guide: looking.Guide | None
) -> Batch:
    """All images of an epoch in shuffled order.

    They are ordered and augmentation is drawn once, so that a step launches few kernels
    on a GPU. A last batch of one image is left out: batch norm is undefined on it.
    """
    device = split.labels.device
    count = len(split.labels)
    generator = torch.Generator().manual_seed(_seed(config, epoch))
    order = torch.randperm(count, generator=generator)
    draws = draw(count, generator) if config.augmentation else None
    strong_draws = None
    if config.strong_augmentation != NONE:
        strong_draws = draw_strong(
            config.strong_augmentation, count, config.seed, config.repeat, epoch
        )
    if count % config.batch_size == 1:
        order = order[:-1]
    order = order.to(device)
    whole = Batch(torch.arange(count), split.labels, draws, strong_draws, guide)
    return tree_map_only(Tensor, lambda values: values.to(device)[order], whole)


def frozen_modules(network: nn.Module, stages: int) -> list[nn.Module]:
    """Stem and first stages of a ResNet, whose weights and statistics do not change.

    Args:
        network: of ``resnet.build``, compiled or not.
        stages: 0 freezes nothing; 1 to 4 freeze the stem and that many stages.
    """
    if not stages:
        return []
    names = ["conv1", "bn1", "layer1", "layer2", "layer3", "layer4"][: 2 + stages]
    return [network.get_submodule(name) for name in names]


@torch.inference_mode()
def evaluate(
    network: nn.Module, split: Split, batch_size: int = 512
) -> tuple[float, float]:
    """Mean cross-entropy and accuracy (fraction), in evaluation mode and float32.

    Args:
        network: on the device of the split.
        split: images, which are not augmented.
        batch_size: images at a time.
    """
    network.eval()
    totals = torch.zeros(2, dtype=torch.float64, device=split.labels.device)
    batches = (values.split(batch_size) for values in split)
    for pixels, labels in zip(*batches, strict=True):
        images = resnet.normalise_images(pixels.permute(0, 3, 1, 2))
        logits = network(images).float()
        loss = cross_entropy(logits, labels, reduction="sum").double()
        correct = (logits.argmax(1) == labels).sum().double()
        totals += torch.stack([loss, correct])
    loss, accuracy = (totals / len(split.labels)).tolist()
    return loss, accuracy


@dataclass
class Training:
    """A run between two epochs, from which training goes on, also after a kill.

    It needs no state of random numbers, since each epoch has its own seed.
    """

    config: RunConfig
    folder: Path  # of this run alone
    network: nn.Module
    optimizer: Optimizer
    history: list[Epoch] = field(default_factory=list)
    snapshots: list[dict[str, Any]] = field(default_factory=list)  # facts of each

    def save(self) -> None:
        """Write a checkpoint."""
        content = {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "history": self.history,
            "snapshots": self.snapshots,
        }
        on_cpu = tree_map_only(Tensor, Tensor.cpu, content)
        with complete_or_absent(self.folder / CHECKPOINT) as temporary:
            torch.save(on_cpu, temporary)

    def restore(self) -> None:
        """Load the checkpoint, if there is one."""
        path = self.folder / CHECKPOINT
        if path.is_file():
            content = torch.load(path, map_location="cpu", weights_only=True)
            self.network.load_state_dict(content["network"])
            self.optimizer.load_state_dict(content["optimizer"])
            self.history = content["history"]
            self.snapshots = content["snapshots"]

    def take_snapshots(self, names: Sequence[str], train: Split, test: Split) -> None:
        """Write snapshots, and note their losses, accuracies and gap.

        Args:
            names: of the snapshots that are due.
            train: the images that the run is fitted to.
            test: the test images.
        """
        if not names:
            return
        facts: dict[str, Any] = {"epoch": len(self.history)}
        for split, images in (("train", train), ("test", test)):
            loss, accuracy = evaluate(self.network, images)
            facts[f"{split}_loss"] = loss if math.isfinite(loss) else None
            facts[f"{split}_accuracy"] = accuracy
        facts["gap"] = facts["train_accuracy"] - facts["test_accuracy"]
        for name in names:
            path = snapshot_path(self.folder, name)
            write_tensors(path, self.network.state_dict())
            digest = file_digest(path)
            self.snapshots.append({"snapshot": name, "digest": digest, **facts})

    def write_result(self, reason: str, device: torch.device) -> dict[str, Any]:
        """Write history and result, the result last.

        Args:
            reason: why the run stopped.
            device: on which it was trained.

        Returns:
            The result as it is read again.
        """
        table = pd.DataFrame(self.history, columns=list(Epoch.__annotations__))
        write_table(self.folder / "history.parquet", table)
        is_finite = any(taken["snapshot"] == "stop" for taken in self.snapshots)
        result = {
            "run_id": run_id(self.config),
            "status": "complete" if is_finite else "diverged",
            "stop_reason": reason,
            "epochs": len(table),
            "seconds": table["seconds"].sum(),
            "snapshots": self.snapshots,
            "device": device_name(device),
            "versions": versions(),
        }
        # Sealed by a checksum, so that a damaged result is not read.
        write_json(self.folder / RESULT, result, sealed=True)
        (self.folder / CHECKPOINT).unlink(missing_ok=True)
        return read_json(self.folder / RESULT)


def train_run(
    config: RunConfig,
    data: StudyData,
    folder: Path,
    *,
    network: nn.Module | None = None,
    device: torch.device | str = "cpu",
    compiled: bool = False,
) -> dict[str, Any]:
    """Train one run until a rule stops it, and leave a complete run in its folder.

    Snapshots are taken when the first of the rules 1 to 3 holds ("first") and at the
    stop ("stop"), one if both fall on one epoch, and at a given training accuracy if
    the run has one ("matched"); see ``snapshots_due``. If the process is killed, the
    next call goes on from the last checkpoint. A run that diverges has a result too,
    without the snapshot "stop".

    Args:
        config: the run.
        data: the images that it belongs to.
        folder: of this run alone.
        network: before its first step; None builds it, for a configuration that starts
            from scratch.
        device: where the network trains.
        compiled: take the steps through ``torch.compile``, equal up to rounding.

    Returns:
        The record that ``result.json`` holds.

    Raises:
        ValueError: if the run belongs to other images, or if its looking needs boxes
            that the images do not have.
        FileNotFoundError: if the images have no pixels.
    """
    if (folder / RESULT).is_file():
        return read_json(folder / RESULT)
    _check_images(config, data)
    device = torch.device(device)
    fitted, watched = images_of_run(data, config)
    guide = looking.guide_of_run(config, fitted, device)
    if network is None:
        network = initial_network(config, len(data.classes))
    network = network.to(device, memory_format=torch.channels_last)
    for module in frozen_modules(network, config.frozen_stages):
        module.requires_grad_(False)
    training = Training(
        config, folder, network, make_optimizer(network, config, device)
    )
    write_json(folder / "config.json", asdict(config) | {"run_id": run_id(config)})
    training.restore()
    # A penalty on maps reads features, which a compiled network does not give.
    if compiled and (guide is None or guide.arm in looking.SWAPS):
        network = torch.compile(network, mode="reduce-overhead")
    splits = [resident(images, device) for images in (fitted, watched, data.test)]
    reason = _train(training, network, splits, guide)
    return training.write_result(reason, device)


def _train(
    training: Training,
    network: nn.Module,
    splits: Sequence[Split],
    guide: looking.Guide | None,
) -> str:
    """Train until the run stops, and say why: a rule, or a loss that is not finite."""
    config = training.config
    history = training.history
    train, monitor, test = splits
    next_save = 0.0
    # If the process was killed between the last checkpoint and the result, the reason
    # to stop is known already.
    reason = stop_reason(history, config)
    while not reason:
        started = time.perf_counter()
        epoch = len(history) + 1
        loss, accuracy = train_epoch(
            network, training.optimizer, train, config, epoch, guide
        )
        if not math.isfinite(loss):
            return f"loss is {loss} in epoch {epoch}"
        _, monitored = evaluate(training.network, monitor)
        row = Epoch(
            epoch=epoch,
            train_loss=loss,
            train_accuracy=accuracy,
            monitor_accuracy=monitored,
            seconds=0.0,
        )
        history.append(row)
        reason = stop_reason(history, config)
        taken = [snapshot["snapshot"] for snapshot in training.snapshots]
        due = snapshots_due(history, config, reason, taken)
        training.take_snapshots(due, train, test)
        row["seconds"] = time.perf_counter() - started
        if time.perf_counter() > next_save:
            training.save()
            next_save = time.perf_counter() + _PAUSE
    return reason


def _check_images(config: RunConfig, data: StudyData) -> None:
    """Refuse images of another study, without pixels, or too few of each class."""
    if config.data != data.fingerprint:
        raise ValueError(
            f"run {config} belongs to the data {config.data}, and was given "
            f"{data.fingerprint}"
        )
    if not data.train.has_pixels:
        raise FileNotFoundError(
            f"run {config} cannot be trained from records, which have no pixels; put "
            "the images where notebook 01 reads them (data_path)"
        )
    most = int(data.train.labels.bincount().max())
    if config.images_per_class > most:
        raise ValueError(
            f"run {config} asks for {config.images_per_class} images a class, and the "
            f"largest class has {most}; take at most as many, or 0 for all"
        )


def snapshots_due(
    history: Sequence[Epoch], config: RunConfig, reason: str, taken: Collection[str]
) -> list[str]:
    """Names of the snapshots that are taken after the last epoch of the history.

    Args:
        history: the epochs so far.
        config: the run.
        reason: why the run stops here; "" where it goes on.
        taken: the snapshots of earlier epochs.

    Returns:
        Up to two names: "matched" if the run has a ``matched_accuracy`` above 0
        and the training accuracy exceeds it for the first time; "stop" if the run
        stops, or else "first" if one of the rules 1 to 3 holds for the first time.
    """
    accuracy = history[-1]["train_accuracy"]
    due = {
        "matched": 0 < config.matched_accuracy < accuracy,
        "first": not reason and conditions_met(history, config),
        "stop": reason,
    }
    return [name for name, is_due in due.items() if is_due and name not in taken]
