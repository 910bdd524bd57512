"""Training as we do it beside the script that most people would write, both beside the bare training step on images that lie ready.

The usual script: ImageFolder, DataLoader with workers, JPEG decoding, transforms image by image. Each is timed in both precisions:
the limit of a precision is the bare step in it.
"""

import argparse
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from benchmarks import interleaved
from helpers.data import synthetic
from helpers.networks import resnet
from helpers.training import run
from helpers.training.config import PRECISIONS, RunConfig

CLASSES = 12
PHOTOGRAPH = (
    500,
    375,
)  # pixels of a typical ILSVRC photograph, which has to be made smaller; Tiny ImageNet's lie there at 64


class PermuteChannels(nn.Module):
    """Shuffle the colours of an image with probability one half, as our augmentation does."""

    def forward(self, image: Tensor) -> Tensor:
        """Take and give (3, S, S)."""
        return image[torch.randperm(3)] if torch.rand(()) < 0.5 else image


def write_images(folder: Path, count: int, size: int) -> None:
    """Write rendered scenes as JPEG files, a folder per class."""
    scenes = synthetic.scenes("train", -(-count // CLASSES), size, 0)
    pairs = zip(scenes["pixels"], scenes["class_id"], strict=True)
    for number, (image, name) in enumerate(pairs):
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
        (picture if size <= 64 else picture.resize(PHOTOGRAPH)).save(
            place / f"{number}.jpg", quality=90
        )


def usual_loader(folder: Path, size: int, batch: int, workers: int) -> DataLoader:
    """Make the loader of the usual script, with the same augmentation as ours."""
    steps = [
        transforms.Resize((size, size)),
        transforms.RandomHorizontalFlip(),
        transforms.RandomVerticalFlip(),
    ]
    steps += [
        transforms.ColorJitter(brightness=0.125, contrast=0.5),
        transforms.ToTensor(),
        PermuteChannels(),
    ]
    steps += [transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
    gpu = torch.cuda.is_available()
    return DataLoader(
        ImageFolder(str(folder), transforms.Compose(steps)),
        batch,
        shuffle=True,
        num_workers=workers,
        pin_memory=gpu,
    )


def network_of(config: RunConfig, device: str) -> nn.Module:
    """Make the network, channels last."""
    network = resnet.build(
        config.architecture,
        CLASSES,
        stem=config.stem,
        width=config.width,
        last_stride=config.last_stride,
        seed=0,
    )
    return network.to(device, memory_format=torch.channels_last).train()


def usual_epoch(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader,
    device: str,
    precision: str,
) -> None:
    """One epoch of the usual script; the loss is read at every step, as its progress bar does."""
    for images, labels in loader:
        images, labels = (
            images.to(device, non_blocking=True),
            labels.to(device, non_blocking=True),
        )
        with torch.autocast(
            device, dtype=torch.bfloat16, enabled=precision == "bfloat16"
        ):
            loss = cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()


def bare_epoch(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: list[tuple[Tensor, Tensor]],
    device: str,
    precision: str,
) -> None:
    """The limit: the plain training step on normalised images that lie on the device."""
    for images, labels in batches:
        with torch.autocast(
            device, dtype=torch.bfloat16, enabled=precision == "bfloat16"
        ):
            loss = cross_entropy(network(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


@contextmanager
def training_ways(
    config: RunConfig,
    size: int,
    count: int,
    workers: int,
    device: str,
    precisions: Sequence[str] = PRECISIONS,
) -> Iterator[tuple[dict[str, Callable[[], object]], int]]:
    """Ways to train an epoch, by name, and the images in it; the first, the bare step, is the limit."""
    place = torch.device(device)
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder), count, size)
        loader = usual_loader(Path(folder), size, config.batch_size, workers)
        scenes = synthetic.scenes("train", -(-count // CLASSES), size, 0)
        pixels = torch.from_numpy(np.stack(scenes["pixels"]))
        labels = torch.arange(CLASSES).repeat_interleave(len(pixels) // CLASSES)
        split = run.Split(
            pixels.to(place, memory_format=torch.channels_last), labels.to(place)
        )
        starts = torch.arange(len(labels), device=place).split(config.batch_size)
        ready = [
            (resnet.normalise_images(split.pixels[chosen]), split.labels[chosen])
            for chosen in starts
        ]
        made = {
            name: network_of(config, device)
            for name in ("limit", "plain", "compiled", "usual")
        }
        given = {
            name: (network, run.make_optimizer(network, config))
            for name, network in made.items()
        }
        ways: dict[str, Callable[[], object]] = {}
        for precision in precisions:
            chosen = replace(config, precision=precision)
            ways[f"bare training step, {precision}"] = partial(
                bare_epoch, *given["limit"], ready, device, precision
            )
            ways[f"ours, {precision}"] = partial(
                run.train_epoch, *given["plain"], split, chosen, 1
            )
            if place.type == "cuda":
                network = torch.compile(made["compiled"], mode="reduce-overhead")
                ways[f"ours, compiled, {precision}"] = partial(
                    run.train_epoch, network, given["compiled"][1], split, chosen, 1
                )
            ways[f"usual script, {workers} workers, {precision}"] = partial(
                usual_epoch, *given["usual"], loader, device, precision
            )
        yield ways, len(labels)


def compare(
    config: RunConfig,
    size: int,
    count: int,
    workers: int,
    repetitions: int,
    device: str,
) -> None:
    """Print the table of one image size."""
    with training_ways(config, size, count, workers, device) as (ways, images):
        table = interleaved.compared(
            interleaved.rounds(ways, repetitions), next(iter(ways)), images, "images"
        )
    table.insert(2, "epochs/min", (60 * table["images/s"] / images).round(2))
    interleaved.show(
        f"Training {config.architecture}, {size} px, batch {config.batch_size}, epochs of {images} images",
        table,
    )


def small_runs(
    config: RunConfig, size: int, count: int, threads: int, number: int
) -> int:
    """One epoch of a small network, in a worker."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(number)
    pixels = torch.randint(
        0, 256, (count, 3, size, size), generator=generator, dtype=torch.uint8
    )
    split = run.Split(pixels, torch.randint(0, CLASSES, (count,), generator=generator))
    network = network_of(config, "cpu")
    run.train_epoch(
        network,
        run.make_optimizer(network, config),
        split,
        config,
        1,
    )
    return os.getpid()


@contextmanager
def workers_of(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Start processes that stay, so that their start is not timed."""
    with ProcessPoolExecutor(
        processes, mp_context=multiprocessing.get_context("spawn")
    ) as executor:
        yield executor


def side_by_side(
    config: RunConfig, size: int, count: int, runs: int, repetitions: int
) -> None:
    """Print whether several small runs are faster side by side, one thread each, than one after another with all threads."""
    cores = len(os.sched_getaffinity(0))
    with workers_of(1) as alone, workers_of(cores) as together:
        ways = {
            f"one after another, {cores} thread(s)": partial(
                all_runs, alone, config, size, count, cores, runs
            ),
            f"{cores} processes, one thread each": partial(
                all_runs, together, config, size, count, 1, runs
            ),
        }
        table = interleaved.compared(
            interleaved.rounds(ways, repetitions),
            next(iter(ways)),
            count * runs,
            "images",
        )
    interleaved.show(
        f"{runs} small runs ({config.architecture}, width {config.width}, {size} px)",
        table.drop(columns="CPU / limit"),
    )


def all_runs(
    executor: ProcessPoolExecutor,
    config: RunConfig,
    size: int,
    count: int,
    threads: int,
    runs: int,
) -> None:
    """Hand out runs and wait for them."""
    list(executor.map(partial(small_runs, config, size, count, threads), range(runs)))


def main() -> None:
    """Time both image sizes, then small runs side by side."""
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--architecture", default="resnet18", choices=resnet.ARCHITECTURES
    )
    parser.add_argument("--sizes", nargs="*", type=int, default=[64, 224])
    parser.add_argument(
        "--images",
        nargs="*",
        type=int,
        default=[6000, 2004] if gpu else [192, 36],
        help="images per epoch, one for each size",
    )
    parser.add_argument(
        "--batch",
        nargs="*",
        type=int,
        default=[64, 64] if gpu else [64, 12],
        help="one for each size",
    )
    parser.add_argument(
        "--workers", type=int, default=min(8, len(os.sched_getaffinity(0)))
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--runs", type=int, default=4, help="small runs; 0 leaves them out"
    )
    given = parser.parse_args()
    interleaved.print_machine("pillow")
    config = RunConfig(
        given.architecture, 64, 1e-3, "adam", 0.0, True, False, data="benchmark"
    )
    for size, count, batch in zip(given.sizes, given.images, given.batch, strict=True):
        options = RunConfig(**{**vars(config), "batch_size": batch})
        compare(
            options, size, count, given.workers, given.rounds, "cuda" if gpu else "cpu"
        )
    if given.runs:
        small = RunConfig(
            **{
                **vars(config),
                "architecture": "resnet18",
                "stem": "strided",
                "width": 0.1875,
                "batch_size": 32,
            }
        )
        side_by_side(small, 64, 256, given.runs, given.rounds)


if __name__ == "__main__":
    main()
