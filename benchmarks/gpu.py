"""What a GPU gives to a study: scoring, runs side by side, training, equal losses.

Each case prints a line as it ends and is kept in ``gpu.json``, so that a check that is
cut off leaves its numbers. It needs neither Jupyter nor papermill. With ``--tiny`` it
runs on a CPU in two minutes, which says that it works and nothing of a GPU.
"""

import argparse
import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import interleaved, scoring, training
from helpers.files import device_name, versions, write_json
from helpers.networks import resnet
from helpers.training import pool, run
from helpers.training.config import PRECISIONS, RunConfig

Row = dict[str, Any]
# What a run of 64 px counts as, where runs an hour are told.
EPOCHS_OF_A_RUN = 25
IMAGES_OF_A_RUN = 4500


@dataclass(frozen=True)
class Sizes:
    """How much of everything is tried; numbers of images, and pixels of their side."""

    width: float = 1.0
    small: int = 64
    large: int = 224
    batch: int = 64
    epoch: tuple[int, int] = (6000, 2004)
    steps: int = 20  # whose losses are compared
    processes: Sequence[int] = (1, 4, 14)
    seconds: float = 8.0  # for which runs side by side are timed
    scored: int = 2048
    workers: int = 8
    rounds: int = 3


TINY = Sizes(0.125, 32, 48, 12, (24, 12), 3, (1, 2), 0.5, 16, 0, 1)
# Network, and whether its images are large.
NETWORKS = (("resnet18", False), ("resnet50", True))


def config_of(architecture: str, sizes: Sizes, **changes: Any) -> RunConfig:
    """A run of the check: Adam, augmented, from scratch, bfloat16, 8x8 maps at 64 px."""
    options = {
        "batch_size": sizes.batch,
        "learning_rate": 1e-3,
        "optimizer": "adam",
        "weight_decay": 5e-4,
        "augmentation": True,
        "pretrained": False,
        "data": "benchmark",
        "stem": "strided",
        "last_stride": 1,
        "width": sizes.width,
        "precision": "bfloat16",
    }
    return RunConfig(architecture, **(options | changes))


def scoring_speed(
    name: str, is_large: bool, batch: int, sizes: Sizes, device: str
) -> list[Row]:
    """Images/s of everything of one pass beside the bare forward pass."""
    size = sizes.large if is_large else sizes.small
    images = scoring.images_of(sizes.scored, size)
    network = resnet.build(name, scoring.CLASSES, width=sizes.width, seed=0).eval()
    network = network.to(device, memory_format=torch.channels_last)
    batches = scoring.in_batches(images, batch, device)
    folded = scoring.fused_network(network)
    given = (network, images, batch, device, "float32", folded)
    ways = {
        "bare pass": partial(scoring.bare, network, batches),
        "everything of one pass": partial(scoring.everything, *given),
    }
    timings = interleaved.rounds(ways, sizes.rounds)
    table = interleaved.compared(timings, "bare pass", len(images), "images")
    return table.to_dict("records")


def trained_images(
    config: RunConfig, size: int, seconds: float, device: str, number: int
) -> int:
    """Images that a process trains on within some seconds, after an untimed epoch."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(number)
    count = 8 * config.batch_size
    shape = (count, 3, size, size)
    pixels = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, training.CLASSES, (count,), generator=generator)
    split = run.Split(pixels.to(device), labels.to(device))
    network = training.network_of(config, device)
    stepping = network
    if device == "cuda":
        stepping = torch.compile(network, mode="reduce-overhead")
    optimizer = run.make_optimizer(network, config)
    run.train_epoch(stepping, optimizer, split, config, 1)
    done = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        run.train_epoch(stepping, optimizer, split, config, 2)
        done += count
    return done


def side_by_side(processes: int, sizes: Sizes, device: str) -> list[Row]:
    """Runs an hour of ResNet18 of quarter width with several processes on one device."""
    changes = {"batch_size": min(32, sizes.batch), "width": sizes.width / 4}
    config = config_of("resnet18", sizes, **changes)
    work = partial(trained_images, config, sizes.small, sizes.seconds, device)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as executor:
        rate = sum(executor.map(work, range(processes))) / sizes.seconds
    runs = 3600 * rate / (EPOCHS_OF_A_RUN * IMAGES_OF_A_RUN)
    return [{"processes": processes, "images/s": round(rate), "runs/hour": round(runs)}]


def chosen_jobs(name: str, is_large: bool, sizes: Sizes, device: str) -> list[Row]:
    """Networks that ``jobs: 0`` trains side by side."""
    large = {"stem": "imagenet", "last_stride": 2}
    small = {"width": sizes.width / 4}
    config = config_of(name, sizes, **(large if is_large else small))
    size = sizes.large if is_large else sizes.small
    network = run.initial_network(config, training.CLASSES)
    shape = (config.batch_size, 3, size, size)
    return [{"jobs": pool.jobs_on(device, 0, lambda: (network, shape))}]


def training_speed(name: str, is_large: bool, sizes: Sizes, device: str) -> list[Row]:
    """Images/s of the bare step, ours plain and compiled, and the usual script."""
    size = sizes.large if is_large else sizes.small
    layout = {"stem": "imagenet", "last_stride": 2} if is_large else {}
    config = config_of(name, sizes, **layout)
    given = (config, size, sizes.epoch[is_large], sizes.workers, device, ["bfloat16"])
    with training.training_ways(*given) as (ways, images):
        timings = interleaved.rounds(ways, sizes.rounds)
    limit = next(iter(ways))
    return interleaved.compared(timings, limit, images, "images").to_dict("records")


def losses_of(
    config: RunConfig, size: int, steps: int, device: str, way: str
) -> Tensor:
    """Losses of the first steps on one batch: (steps,).

    Args:
        config: of the network and its optimizer.
        size: side of the images.
        steps: number of steps.
        device: "cpu" or "cuda".
        way: "plain"; "compiled"; or "moved", where each weight is larger by 1e-7 of
            itself, which shows what rounding does.
    """
    generator = torch.Generator().manual_seed(0)
    count = config.batch_size
    shape = (count, 3, size, size)
    pixels = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, training.CLASSES, (count,), generator=generator)
    network = run.initial_network(config, training.CLASSES)
    network = network.to(device, memory_format=torch.channels_last).train()
    if way == "moved":
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.mul_(1 + 1e-7)
    optimizer = run.make_optimizer(network, config)
    stepping = network
    if way == "compiled" and device == "cuda":
        stepping = torch.compile(network, mode="reduce-overhead")
    batch = run.Split(pixels.to(device), labels.to(device))
    losses = [
        run.train_step(stepping, optimizer, batch, config)[0].clone()
        for _ in range(steps)
    ]
    return torch.stack(losses).cpu() / count


def agreement(
    name: str, optimizer: str, precision: str, sizes: Sizes, device: str
) -> list[Row]:
    """How far losses of compiled steps are from plain ones, and what rounding does.

    They are equal where the first is at most ten times the second, as another order of
    sums may make it.
    """
    config = config_of(name, sizes, optimizer=optimizer, precision=precision)
    losses = partial(losses_of, config, sizes.small, sizes.steps, device)
    plain = losses("plain")
    compiled = float((losses("compiled") - plain).abs().max())
    moved = float((losses("moved") - plain).abs().max())
    row = {"compiled": compiled, "rounding": moved, "equal": compiled <= 10 * moved}
    return [row]


def cases(sizes: Sizes, device: str) -> Iterator[tuple[str, Callable[[], list[Row]]]]:
    """Name and work of each case, in the order of what a study needs first."""
    for name, is_large in NETWORKS:
        # A batch of 1,000 images is what notebooks score of a network at 64 px.
        batch = 256 if is_large else 1024
        size = sizes.large if is_large else sizes.small
        work = partial(scoring_speed, name, is_large, batch, sizes, device)
        yield f"scoring {name} {size} px", work
    for number in sizes.processes:
        yield (
            f"{number} runs side by side",
            partial(side_by_side, number, sizes, device),
        )
    for name, is_large in NETWORKS:
        if device == "cuda":
            work = partial(chosen_jobs, name, is_large, sizes, device)
            yield f"jobs of {name}", work
        size = sizes.large if is_large else sizes.small
        work = partial(training_speed, name, is_large, sizes, device)
        yield f"training {name} {size} px", work
    for choice in itertools.product(["resnet18"], run.OPTIMIZERS, PRECISIONS):
        yield (
            f"losses of {' '.join(choice)}",
            partial(agreement, *choice, sizes, device),
        )


def check(sizes: Sizes, device: str, minutes: float, out: Path) -> dict[str, Any]:
    """Run the cases that there is time for; print and keep each as it ends.

    Args:
        sizes: how much is tried.
        device: "cpu" or "cuda".
        minutes: after which no case begins.
        out: folder of ``gpu.json``.
    """
    end = time.monotonic() + 60 * minutes
    about = {"device": device_name(torch.device(device)), "versions": versions()}
    found: dict[str, Any] = about | {"tiny": sizes is TINY, "cases": {}, "left_out": []}
    out.mkdir(parents=True, exist_ok=True)
    for name, work in cases(sizes, device):
        if time.monotonic() > end:
            found["left_out"].append(name)
        else:
            found["cases"][name] = work()
            for row in found["cases"][name]:
                print(f"{name}:", *(f"{key} {row[key]}," for key in row), flush=True)
            if device == "cuda":
                torch.cuda.empty_cache()
        write_json(out / "gpu.json", found)
    if found["left_out"]:
        print("left out for want of time:", "; ".join(found["left_out"]))
    return found


def main() -> None:
    """Check the machine, print what is found, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__)
    options = {"type": float, "default": 10, "help": "after which no case begins"}
    parser.add_argument("--minutes", **options)
    parser.add_argument("--out", type=Path, default=Path(), help="folder of gpu.json")
    parser.add_argument("--tiny", action="store_true", help="small, on any machine")
    given = parser.parse_args()
    is_gpu = torch.cuda.is_available()
    if not is_gpu and not given.tiny:
        parser.error(
            f"torch {torch.__version__} sees no GPU here; "
            "--tiny runs the whole of it on a CPU"
        )
    pool.compute_float32_exactly()
    interleaved.print_machine("torchvision", "pillow")
    sizes = TINY if given.tiny else Sizes()
    cores = len(os.sched_getaffinity(0))
    if not given.tiny:
        sizes = replace(sizes, workers=min(sizes.workers, cores))
    check(sizes, "cuda" if is_gpu else "cpu", given.minutes, given.out)


if __name__ == "__main__":
    main()
