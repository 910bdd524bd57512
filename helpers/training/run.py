"""One training run: data and configuration in; snapshots, history and result out, resumable after every epoch."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from helpers.data.images import ImageSet, StudyData
from helpers.files import complete_or_absent, device_name, read_json, versions, write_json
from helpers.networks import resnet, weights
from helpers.training import cuda_graph, soundness, state, step_choice, stopping
from helpers.training.augmentation import draw
from helpers.training.config import RunConfig, run_id


@dataclass(frozen=True)
class Split:
    """Images that stay on the device as uint8, channels last, for as long as a run takes."""

    pixels: Tensor  # (N, H, W, 3) uint8
    labels: Tensor  # (N,) int64

    def batch(self, indices: Tensor) -> Tensor:
        """Gather images as (B, 3, H, W) uint8 in channels-last layout, without a copy beyond the gather."""
        return self.pixels[indices].permute(0, 3, 1, 2)


def resident(images: ImageSet, device: torch.device | str) -> Split:
    """Move an image set to the device once."""
    return Split(images.images.permute(0, 2, 3, 1).contiguous().to(device), images.labels.to(device))


def images_of_run(data: StudyData, config: RunConfig) -> tuple[ImageSet, ImageSet]:
    """Choose the images that a run is fitted to, and those that rule 3 watches.

    The choice depends on the data and the configuration alone, so scoring finds the same images again. Fewer images per
    class are a subset of more; noisy labels are drawn uniformly from the other classes.

    Returns:
        The training images with the labels that the run is fitted to, and the monitored split.
    """
    kept, held_out = _divided(data, config)
    monitored = data.train.subset(np.sort(held_out)) if config.rule3_split == "holdout" else data.test
    chosen = data.train.subset(np.sort(kept))
    if not config.label_noise:
        return chosen, monitored
    return replace(chosen, labels=_noisy(chosen.labels, config, len(data.classes))), monitored


def fitted_rows(data: StudyData, config: RunConfig) -> NDArray[np.int64]:
    """Rows of the study's training images that a run is fitted to, (n,) increasing; see ``images_of_run``."""
    return np.sort(_divided(data, config)[0])


def _divided(data: StudyData, config: RunConfig) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows that a run is fitted to, and rows that it holds out for rule 3, in the order of the draw."""
    order = np.random.default_rng([config.seed, 1]).permutation(len(data.train))
    labels = data.train.labels.numpy()[order]
    rank_in_class = pd.Series(labels).groupby(labels).cumcount().to_numpy()
    kept = order[rank_in_class < config.images_per_class] if config.images_per_class else order
    cut = max(1, round(len(kept) * config.holdout_fraction)) if config.rule3_split == "holdout" else 0
    return kept[cut:], kept[:cut]


def _noisy(labels: Tensor, config: RunConfig, classes: int) -> Tensor:
    generator = np.random.default_rng([config.seed, 2])
    flipped = generator.permutation(len(labels))[: round(len(labels) * config.label_noise)]
    noisy = labels.clone()
    noisy[flipped] = (labels[flipped] + torch.from_numpy(generator.integers(1, classes, len(flipped)))) % classes
    return noisy


def initial_model(config: RunConfig, classes: int, pretrained: Mapping[str, Tensor] | None = None) -> nn.Module:
    """Make the network as it is before the first step; the same configuration gives the same weights.

    Raises:
        ValueError: the configuration is pretrained and no weights are given.
    """
    form = {"stem": config.stem, "width": config.width, "last_stride": config.last_stride}
    model = resnet.build(config.architecture, classes, **form, seed=_seed(config, 0))
    if not config.pretrained:
        return model
    if pretrained is None:
        raise ValueError(f"run {run_id(config)} starts from pretrained weights, and none were given; see models.read_weights")
    return weights.load_backbone(model, pretrained)


def _seed(config: RunConfig, epoch: int) -> int:
    """Derive one seed per run and epoch, so that a resumed run draws what an uninterrupted one would have drawn."""
    return int(np.random.SeedSequence([config.seed, config.repeat, epoch]).generate_state(1)[0])


def make_optimizer(model: nn.Module, config: RunConfig, device: torch.device) -> torch.optim.Optimizer:
    """Make the optimizer of a run, before its first step; in one kernel for all weights on a GPU."""
    fused = device.type == "cuda"
    if config.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=fused)
    return torch.optim.SGD(
        model.parameters(), lr=config.learning_rate, momentum=config.momentum, weight_decay=config.weight_decay, fused=fused
    )


def train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    split: Split,
    config: RunConfig,
    epoch: int,
    captured: cuda_graph.CapturedStep | None = None,
) -> tuple[float, float]:
    """Fit one epoch in a seeded order; a last batch of one image is left out, since batch-norm is undefined on it.

    With ``captured``, a step recorded for this shape of run, the steps are replayed on a copy of the run's state, which comes back at
    the end of the epoch; the results agree up to rounding.

    Returns:
        Mean loss and accuracy (fraction) of the pass itself. They are summed on the device and read once.
    """
    device = split.labels.device
    generator = torch.Generator().manual_seed(_seed(config, epoch))
    order = torch.randperm(len(split.labels), generator=generator)
    draws = draw(len(order), generator).to(device) if config.augmentation else None
    totals = torch.zeros(2, dtype=torch.float64, device=device)
    model.train()
    advance = captured or partial(cuda_graph.step, model, optimizer, precision=config.precision)
    if captured:
        captured.load(model, optimizer, config.learning_rate, config.weight_decay)
    # Put in order once, so that a step has little to launch beside itself.
    order = (order[:-1] if len(order) % config.batch_size == 1 else order).to(device)
    labels, draws = split.labels[order], draws.of(order) if draws else None
    for start in range(0, len(order), config.batch_size):
        part = slice(start, start + config.batch_size)
        totals += advance(split.batch(order[part]), labels[part], draws.of(part) if draws else None)
    if captured:
        captured.unload(model, optimizer)
    return tuple((totals / len(order)).tolist())


@torch.inference_mode()
def evaluate(model: nn.Module, split: Split, batch_size: int = 512) -> tuple[float, float]:
    """Measure mean cross-entropy and accuracy (fraction) without augmentation, in eval mode and float32."""
    model.eval()
    totals = torch.zeros(2, dtype=torch.float64, device=split.labels.device)
    for indices in torch.arange(len(split.labels), device=split.labels.device).split(batch_size):
        logits = model(resnet.normalise_images(split.batch(indices))).float()
        labels = split.labels[indices]
        totals += torch.stack([cross_entropy(logits, labels, reduction="sum").double(), (logits.argmax(1) == labels).sum().double()])
    return tuple((totals / max(1, len(split.labels))).tolist())


def train_run(
    config: RunConfig,
    data: StudyData,
    folder: Path,
    *,
    pretrained: Mapping[str, Tensor] | None = None,
    device: torch.device | str = "cpu",
    capture: bool | None = None,
    checkpoint_seconds: float = 0.0,
    until: float = math.inf,
    on_epoch: Callable[[stopping.Epoch], None] = lambda epoch: None,
) -> dict[str, Any] | None:
    """Train one run until a rule stops it, and leave a complete run in ``folder``.

    Snapshots are taken when the first of the rules 1 to 3 holds ("first") and at the stop ("stop"); where both fall on one
    epoch there is one snapshot, "stop". Killed at any moment, the next call goes on after the last checkpoint. A run that
    diverges is a result too: status "diverged", its reason, no snapshot after the fact.

    Args:
        config: the run; its ``data`` must be the fingerprint of ``data``.
        data: images of the study.
        folder: ``runs/<run_id>``; ``result.json`` is written last of all.
        pretrained: state dict to start from when ``config.pretrained``.
        device: where to train.
        capture: replay a recorded step, see ``cuda_graph``; None takes the fastest way that there is, see ``step_choice``.
        checkpoint_seconds: that go by between two checkpoints, at least; 0 writes one after every epoch.
        until: reading of ``time.monotonic``, which all processes of a machine share, after which no epoch may end.
        on_epoch: called with each new row of the history.

    Returns:
        The record that ``result.json`` holds; None where the time was up first, and the next call goes on.
    """
    if config.data != data.fingerprint:
        raise ValueError(f"run {run_id(config)} belongs to the data {config.data}, and was given {data.fingerprint}")
    if (folder / "result.json").is_file():
        return read_json(folder / "result.json")
    device = torch.device(device)
    train, monitor, test = (resident(images, device) for images in (*images_of_run(data, config), data.test))
    model = initial_model(config, len(data.classes), pretrained).to(device, memory_format=torch.channels_last)
    optimizer = make_optimizer(model, config, device)
    write_json(folder / "config.json", asdict(config) | {"run_id": run_id(config)})
    captured = _captured(config, len(data.classes), train, capture)
    history, snapshots = state.restore(folder, model, optimizer)
    # A kill may have come between the last checkpoint and the result: then there is nothing left to train.
    reason, diverged, saved = stopping.stop_reason(history, config) if history else "", False, -math.inf
    while not reason:
        if time.monotonic() + (history[-1]["seconds"] if history else 0.0) > until:
            if history:
                state.save(folder, model, optimizer, history, snapshots)
            return None
        started = time.perf_counter()
        epoch = len(history) + 1
        loss, accuracy = train_epoch(model, optimizer, train, config, epoch, captured)
        if not math.isfinite(loss):
            reason, diverged = f"loss is {loss} in epoch {epoch}", True
            break
        monitor_accuracy = evaluate(model, monitor)[1]
        row = stopping.Epoch(epoch=epoch, train_loss=loss, train_accuracy=accuracy, monitor_accuracy=monitor_accuracy, seconds=0.0)
        history.append(row)
        reason = stopping.stop_reason(history, config)
        name = "stop" if reason else "first"
        if reason or (stopping.conditions_met(history, config) and not snapshots):
            state.save_snapshot(folder, name, model)
            snapshots.append({"snapshot": name, "epoch": epoch} | _measured(model, train, test))
        row["seconds"] = time.perf_counter() - started
        if time.perf_counter() - saved >= checkpoint_seconds:
            state.save(folder, model, optimizer, history, snapshots)
            saved = time.perf_counter()
        on_epoch(row)
    return _finish(folder, config, history, snapshots, reason, diverged, device)


def _captured(config: RunConfig, classes: int, train: Split, capture: bool | None) -> cuda_graph.CapturedStep | None:
    shape = cuda_graph.shape_of(config, classes, train.pixels.shape[1], train.pixels.device)
    if capture is None:
        return step_choice.fastest_step(shape, config.max_epochs * math.ceil(len(train.labels) / config.batch_size))
    return cuda_graph.CapturedStep(shape) if capture else None


def _measured(model: nn.Module, train: Split, test: Split) -> dict[str, float]:
    train_loss, train_accuracy = evaluate(model, train)
    test_loss, test_accuracy = evaluate(model, test)
    losses = {"train_loss": train_loss, "test_loss": test_loss}
    finite = {name: value if math.isfinite(value) else None for name, value in losses.items()}
    return finite | {"train_accuracy": train_accuracy, "test_accuracy": test_accuracy, "gap": train_accuracy - test_accuracy}


def _finish(
    folder: Path,
    config: RunConfig,
    history: list[stopping.Epoch],
    snapshots: list[dict[str, Any]],
    reason: str,
    diverged: bool,
    device: torch.device,
) -> dict[str, Any]:
    with complete_or_absent(folder / "history.parquet") as temporary:
        pd.DataFrame(history, columns=list(stopping.Epoch.__annotations__)).to_parquet(temporary)
    record = {
        "run_id": run_id(config),
        "status": "diverged" if diverged else "complete",
        "stop_reason": reason,
        "epochs": len(history),
        "seconds": sum(row["seconds"] for row in history),
        "snapshots": snapshots,
        "device": device_name(device),
        "versions": versions(),
        "files": soundness.digests_of_run(folder),
    }
    write_json(folder / "result.json", record)
    state.discard(folder)
    return record
