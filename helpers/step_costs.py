"""What a training step of a network takes on the machine at hand: seconds and memory, measured on random images."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from helpers import captured_step, models, recordings, training
from helpers.grid import RunConfig

_LONG = 3.0  # seconds for one step, beyond which larger batches are taken to be as fast per image
_TIMED = 0.5  # seconds of steps per measurement
_STEPS = 20  # in a timed epoch on a GPU, where an epoch has a fixed cost of its own


class Step(NamedTuple):
    """What one network takes at one batch size."""

    train: float  # seconds per image of a training step
    evaluate: float  # seconds per image of an evaluation
    weights: int  # bytes of the network's state
    memory: int  # bytes: on a GPU all that a run took at its peak, else what float32 training keeps for the backward pass


def time_step(config: RunConfig, classes: int, size: int, device: str) -> Step:
    """Time a training step and an evaluation of one network on random images, after a warm-up; at least one step of each.

    Args:
        config: architecture, stem, width, batch size, optimizer, augmentation.
        classes: outputs of the network.
        size: side of the images, pixels.
        device: cpu (one thread, as runs have) or cuda (with the recorded step, as runs have).
    """
    place = torch.device(device)
    gpu, count = place.type == "cuda", config.batch_size * (_STEPS if place.type == "cuda" else 1)
    model = models.build(config.architecture, classes, stem=config.stem, width=config.width, seed=0)
    model = model.to(place, memory_format=torch.channels_last)
    optimizer = training.make_optimizer(model, config, place)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, size, size, 3), generator=generator, dtype=torch.uint8)
    split = training.Split(pixels.to(place), torch.randint(0, classes, (count,), generator=generator).to(place))
    kept = activation_bytes(model, split.batch(torch.arange(2, device=place))) * config.batch_size // 2
    captured = recordings.for_shape(captured_step.shape_of(config, classes, size, place)) if gpu else None
    train = _seconds(lambda: training.train_epoch(model, optimizer, split, config, 1, captured))
    if gpu:
        kept = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    evaluate = _seconds(lambda: training.evaluate(model, split))
    return Step(train / count, evaluate / count, sum(value.nbytes for value in model.state_dict().values()), kept)


def _seconds(call: Callable[[], object]) -> float:
    """Seconds of a call that waits for its device, as both passes do, which read their sums at the end."""
    started = time.perf_counter()
    call()
    first = time.perf_counter() - started
    if first > _LONG:
        return first
    count, started = 0, time.perf_counter()
    while not count or time.perf_counter() - started < _TIMED:
        call()
        count += 1
    return (time.perf_counter() - started) / count


def activation_bytes(model: nn.Module, images: Tensor) -> int:
    """Bytes that autograd keeps of a forward pass in train mode, in float32, beside the weights; each tensor counted once."""
    own = {value.untyped_storage().data_ptr() for value in [*model.parameters(), *model.buffers()]}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    model.train()
    with torch.autograd.graph.saved_tensors_hooks(pack, _same):
        model(models.normalise(images))
    return sum(size for place, size in kept.items() if place not in own)


def _same(tensor: Tensor) -> Tensor:
    return tensor


def time_steps(runs: Sequence[RunConfig], classes: int, size: int, device: str) -> dict[tuple[str, int], Step]:
    """Time every network at every batch size of a study; on a slow machine larger batches are taken from the smallest one."""
    steps: dict[tuple[str, int], Step] = {}
    for key in sorted({(run.architecture, run.batch_size) for run in runs}):
        config = next(run for run in runs if (run.architecture, run.batch_size) == key)
        slow = [(batch, step) for (name, batch), step in steps.items() if name == key[0] and step.train * batch > _LONG]
        if slow:
            batch, step = slow[0]
            steps[key] = step._replace(memory=step.memory * key[1] // batch)
        else:
            steps[key] = time_step(config, classes, size, device)
    return steps
