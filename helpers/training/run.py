"""Train a run: from images and a configuration to weights, history and result.

The four rules that stop it are those of Du et al. 2024.
"""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
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
from helpers.training.augmentation import Draws, augment, draw, mixed_cross_entropy
from helpers.training.catalogue import snapshot_path
from helpers.training.config import RunConfig, rows_of_run

CHECKPOINT = "checkpoint.pt"  # of a run that trains
_PAUSE = 30.0  # seconds from a checkpoint to the next
RESULT = "result.json"  # of a complete one
OPTIMIZERS = {"adam": Adam, "adamw": AdamW, "sgd": SGD}
_LAST = torch.channels_last
# Columns of a run's history: the epoch, of which 1 is the first; mean cross-entropy and
# accuracy (fraction) of the training pass, augmented; accuracy on the split of rule 3,
# in evaluation mode; and time.
_EPOCH = ("epoch", "train_loss", "train_accuracy", "monitor_accuracy", "seconds")
History = Sequence[Mapping[str, float]]  # a row an epoch


class Split(NamedTuple):
    """Images of a split, on the device during a whole run, or a mini-batch of them."""

    pixels: Tensor  # (N, 3, S, S) uint8, channels last in memory
    labels: Tensor  # (N,) int64
    draws: Draws = Draws()  # random numbers of the augmentation
    guide: looking.Guide | None = None  # target regions of the class activation maps


def resident(images: ImageSet, device: torch.device | str) -> Split:
    """Copy an image set to the device, where it stays during a run.

    Args:
        images: of the split.
        device: on which the network trains.
    """
    pixels = images.images.to(device, memory_format=_LAST)
    return Split(pixels, images.labels.to(device))


def images_of_run(data: StudyData, config: RunConfig) -> tuple[ImageSet, ImageSet]:
    """Images that a run is fitted to, and the images of stopping rule 3.

    Rule 3 stops a run that overfits, see ``conditions_met``.

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
    noisy[changed] += steps
    return noisy % classes


def initial_network(
    config: RunConfig, classes: int, pretrained: weights.State | None = None
) -> nn.Module:
    """Make the network before the first step, equal for equal configurations.

    Args:
        config: the run.
        classes: number of classes.
        pretrained: the weights that a pretrained run starts from.
    """
    form = {name: getattr(config, name) for name in weights.FORM}
    network = resnet.build(**form, classes=classes, seed=_seed(config, 0))
    return weights.load_backbone(network, pretrained) if config.pretrained else network


def _seed(config: RunConfig, epoch: int) -> int:
    """One seed per run and epoch, so that a resumed run has the same random numbers."""
    sequence = np.random.SeedSequence([config.seed, config.repeat, epoch])
    return int(sequence.generate_state(1)[0])


def make_optimizer(network: nn.Module, config: RunConfig) -> Optimizer:
    """Make the optimizer of a run; on a GPU a step is fused into one kernel.

    Args:
        network: whose weights it changes, on the device where it trains.
        config: the run, with optimizer, learning rate, weight decay and momentum.
    """
    parameters = list(network.parameters())
    options = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    if config.optimizer == "sgd":
        options["momentum"] = config.momentum
    is_fused = parameters[0].is_cuda
    return OPTIMIZERS[config.optimizer](parameters, **options, fused=is_fused)


def train_step(
    network: nn.Module, optimizer: Optimizer, batch: Split, config: RunConfig
) -> Tensor:
    """Take one step of the optimizer, without waiting for the device.

    Args:
        network: in train mode; with a guide a ResNet that is not compiled.
        optimizer: of the network's weights.
        batch: B images.
        config: the run; precision and label smoothing are read.

    Returns:
        (2,) float64: cross-entropy summed over the images, without label smoothing,
        mixing of labels, or penalty; and the number of images classified correctly.
        With mixup both are those of mixed images and the label of the larger share;
        with cutmix, of the image around the patch.
    """
    pixels, labels, draws, guide = batch
    is_rounded = config.precision == "bfloat16"
    precision = torch.autocast(labels.device.type, torch.bfloat16, enabled=is_rounded)
    hook = captured_output(network.layer4) if guide else nullcontext()
    with precision, hook as features:
        augmented = resnet.normalise_images(augment(pixels, draws))
        logits = network(augmented).float()
    smoothing = config.label_smoothing
    objective = mixed_cross_entropy(logits, labels, draws.weights, smoothing)
    if guide:
        maps = looking.class_maps(features[0], network.fc.weight, labels)
        objective = objective + looking.map_penalty(
            maps, guide, pixels.shape[-1], draws
        )
    optimizer.zero_grad()
    objective.backward()
    optimizer.step()
    return _loss_and_correct(logits.detach(), labels)


def _loss_and_correct(logits: Tensor, labels: Tensor) -> Tensor:
    """Summed cross-entropy and number of correct images, (2,) float64."""
    loss = cross_entropy(logits.double(), labels, reduction="sum")
    return torch.stack([loss, (logits.argmax(1) == labels).sum()])


def train_epoch(
    network: nn.Module,
    optimizer: Optimizer,
    split: Split,
    config: RunConfig,
    epoch: int,
) -> tuple[float, float]:
    """Train one epoch; its order depends on the run's seed, its repeat and the epoch.

    Args:
        network: on the device of the split.
        optimizer: of the network's weights.
        split: the N images that the run is fitted to. Arms of the looking experiment
            and controls with the same seed and repeat have the same order and
            augmentation.
        config: the run.
        epoch: 1 is the first.

    Returns:
        Mean cross-entropy and accuracy (fraction) of the images as they were trained
        on, each before its step.
    """
    count = len(split.labels)
    generator = torch.Generator().manual_seed(_seed(config, epoch))
    order = torch.randperm(count, generator=generator)
    if count % config.batch_size == 1:
        order = order[:-1]  # batch norm is undefined on a last batch of one image
    draws = draw(count, config, epoch, generator)
    # All are copied at once, since the host waits for a GPU at every copy.
    device = split.labels.device
    order, draws = tree_map_only(Tensor, lambda each: each.to(device), (order, draws))
    images = split._replace(draws=draws)
    network.train()
    for module in frozen_modules(network, config.frozen_stages):
        module.eval()
    totals = []
    # On a GPU cuDNN times its kernels for each new shape and keeps the fastest.
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False):
        for indices in order.split(config.batch_size):
            batch = tree_map_only(Tensor, itemgetter(indices), images)
            totals.append(train_step(network, optimizer, batch, config))
    loss, accuracy = (torch.stack(totals).sum(0) / len(order)).tolist()
    return loss, accuracy


def frozen_modules(network: nn.Module, stages: int) -> list[nn.Module]:
    """Stem and first stages of a ResNet, whose weights and statistics do not change.

    Args:
        network: of ``resnet.build``, compiled or not.
        stages: 0 freezes nothing; 1 to 4 freeze the stem and that many stages.
    """
    names = ["conv1", "bn1", "layer1", "layer2", "layer3", "layer4"]
    return [network.get_submodule(name) for name in names[: stages and stages + 2]]


@torch.inference_mode()
def evaluate(network: nn.Module, split: Split) -> tuple[float, float]:
    """Mean cross-entropy and accuracy (fraction), in evaluation mode and float32.

    Args:
        network: on the device of the split.
        split: images, which are not augmented.
    """
    network.eval()
    logits = [
        network(resnet.normalise_images(pixels)) for pixels in split.pixels.split(512)
    ]
    totals = _loss_and_correct(torch.cat(logits), split.labels)
    loss, accuracy = (totals / len(split.labels)).tolist()
    return loss, accuracy


def conditions_met(history: History, config: RunConfig) -> tuple[int, ...]:
    """List which of the rules 1 to 3 hold at the last epoch.

    1: the training loss is below ``loss_threshold`` (0.1). 2: the training accuracy is
    above ``accuracy_threshold`` (0.95). 3: in the last two epochs (in the paper:
    batches) the training loss fell while the error on the monitored split rose, which
    is overfitting.

    Args:
        history: the epochs so far, at least one.
        config: the run, with its thresholds.
    """
    last = pd.DataFrame(history[-3:])
    changes = last[["train_loss", "monitor_accuracy"]].diff()[1:]
    holds = {
        1: history[-1]["train_loss"] < config.loss_threshold,
        2: history[-1]["train_accuracy"] > config.accuracy_threshold,
        3: len(changes) == 2 and (changes < 0).all(axis=None),
    }
    return tuple(rule for rule in holds if holds[rule])


def stop_reason(history: History, config: RunConfig) -> str:
    """Say why a run stops after the last epoch; "" if it goes on.

    It stops if two of the rules 1 to 3 hold, or at the largest number of epochs
    (rule 4).

    Args:
        history: the epochs so far.
        config: the run, with its thresholds.
    """
    rules = conditions_met(history, config) if history else ()
    if len(rules) >= 2:
        return "rules " + "+".join(map(str, rules))
    is_last = len(history) >= config.max_epochs
    return f"epoch cap {config.max_epochs}" if is_last else ""


class Training(NamedTuple):
    """A run between two epochs, from which training goes on, also after a kill.

    It needs no state of random numbers, since each epoch has its own seed.
    """

    config: RunConfig
    folder: Path  # of this run alone
    network: nn.Module
    optimizer: Optimizer
    history: list[dict[str, float]]  # see ``History``
    snapshots: list[dict[str, Any]]  # facts of each

    def save(self) -> None:
        """Write a checkpoint."""
        states = self.network.state_dict(), self.optimizer.state_dict()
        states = tree_map_only(Tensor, Tensor.cpu, states)
        with complete_or_absent(self.folder / CHECKPOINT) as temporary:
            torch.save([*states, self.history, self.snapshots], temporary)

    def restore(self) -> None:
        """Load the checkpoint, if there is one."""
        path = self.folder / CHECKPOINT
        if path.is_file():
            content = torch.load(path, map_location="cpu", weights_only=True)
            self.network.load_state_dict(content[0])
            self.optimizer.load_state_dict(content[1])
            self.history[:] = content[2]
            self.snapshots[:] = content[3]

    def take_snapshot(self, name: str, splits: Mapping[str, Split]) -> None:
        """Write a snapshot, and note its losses, accuracies and gap.

        Args:
            name: of the snapshot.
            splits: "train", the images that the run is fitted to, and "test".
        """
        facts: dict[str, Any] = {"snapshot": name, "epoch": len(self.history)}
        for split, images in splits.items():
            loss, accuracy = evaluate(self.network, images)
            facts[f"{split}_loss"] = loss if math.isfinite(loss) else None
            facts[f"{split}_accuracy"] = accuracy
        facts["gap"] = facts["train_accuracy"] - facts["test_accuracy"]
        path = snapshot_path(self.folder, name)
        write_tensors(path, self.network.state_dict())
        self.snapshots.append(facts | {"digest": file_digest(path)})

    def write_result(self, reason: str) -> dict[str, Any]:
        """Write history and result, the result last, and return the result.

        Args:
            reason: why the run stopped.
        """
        table = pd.DataFrame(self.history, columns=_EPOCH)
        write_table(self.folder / "history.parquet", table)
        result = {
            "run_id": str(self.config),
            "stop_reason": reason,
            "epochs": len(table),
            "seconds": table["seconds"].sum(),
            "snapshots": self.snapshots,
            "device": device_name(next(self.network.parameters()).device),
            "versions": versions(),
        }
        # Sealed by a checksum, so that a damaged result is not read.
        write_json(self.folder / RESULT, result, sealed=True)
        (self.folder / CHECKPOINT).unlink(missing_ok=True)
        return result


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
    next call goes on from the last epoch. A run that diverges has a result too, without
    the snapshot "stop".

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
    fitted, watched = images_of_run(data, config)
    guide = looking.guide_of_run(config, fitted, device)
    if network is None:
        network = initial_network(config, len(data.classes))
    network = network.to(device, memory_format=_LAST)
    for module in frozen_modules(network, config.frozen_stages):
        module.requires_grad_(False)
    optimizer = make_optimizer(network, config)
    training = Training(config, folder, network, optimizer, [], [])
    write_json(folder / "config.json", asdict(config))
    training.restore()
    train, watching, test = (
        resident(images, device) for images in (fitted, watched, data.test)
    )
    train = train._replace(guide=guide)
    # A penalty on maps reads features, which a compiled network does not give.
    if compiled and not guide:
        network = torch.compile(network, mode="reduce-overhead")
    reason = _train(training, network, {"train": train, "test": test}, watching)
    return training.write_result(reason)


def _train(
    training: Training, network: nn.Module, splits: Mapping[str, Split], watched: Split
) -> str:
    """Train until the run stops, and say why: a rule, or a loss that is not finite."""
    config, _, _, optimizer, history, snapshots = training
    next_save = 0.0
    # If the process was killed between the last checkpoint and the result, the reason
    # to stop is known already.
    reason = stop_reason(history, config)
    while not reason:
        started = time.perf_counter()
        epoch = len(history) + 1
        loss, accuracy = train_epoch(network, optimizer, splits["train"], config, epoch)
        if not math.isfinite(loss):
            return f"loss is {loss} in epoch {epoch}"
        _, monitored = evaluate(training.network, watched)
        row = {"epoch": epoch, "train_loss": loss, "train_accuracy": accuracy}
        history.append(row | {"monitor_accuracy": monitored})
        reason = stop_reason(history, config)
        taken = [snapshot["snapshot"] for snapshot in snapshots]
        for name in snapshots_due(history, config, reason, taken):
            training.take_snapshot(name, splits)
        history[-1]["seconds"] = time.perf_counter() - started
        if time.perf_counter() > next_save:
            training.save()
            next_save = time.perf_counter() + _PAUSE
    return reason


def _check_images(config: RunConfig, data: StudyData) -> None:
    """Refuse images of another study, without pixels, or too few of each class."""
    if config.data != data.fingerprint:
        raise ValueError(
            f"run {config} belongs to the images {config.data}, not {data.fingerprint}"
        )
    if not data.train.has_pixels:
        raise FileNotFoundError(
            f"run {config} cannot be trained from records, which have no pixels; put "
            "the images where notebook 01 reads them (data_path)"
        )
    most = int(data.train.labels.bincount().max())
    if config.images_per_class > most:
        raise ValueError(
            f"run {config} asks for more images a class than the largest class has, "
            f"{most}; take at most as many, or 0 for all"
        )


def snapshots_due(
    history: History, config: RunConfig, reason: str, taken: Collection[str]
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
