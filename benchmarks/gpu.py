"""Whether a GPU server does what a study of days needs, and what that costs: one command, some minutes, a line for every target.

Needs torch, torchvision, numpy, pandas, scipy, pyarrow, safetensors, tqdm, pillow, pyyaml and pydantic, and neither Jupyter nor papermill.
With ``--tiny`` everything runs through on a CPU in two minutes, which says that it works and nothing of a GPU.
"""

import argparse
import io
import itertools
import json
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from benchmarks import interleaved, scoring, training
from helpers.files import device_name, versions, write_json
from helpers.networks import resnet
from helpers.training import run
from helpers.training.config import OPTIMIZERS, PRECISIONS, RunConfig

EPOCHS_OF_A_RUN, IMAGES_OF_A_RUN = (
    25,
    4500,
)  # what a run of 64 px counts as, where runs an hour are told


@dataclass(frozen=True)
class Sizes:
    """How much of everything is tried."""

    architectures: Sequence[str] = resnet.ARCHITECTURES
    width: float = 1.0
    small: int = 64  # px
    large: int = 224  # px
    batch: int = 64
    epoch: tuple[int, int] = (6000, 2004)  # images of a timed epoch, small and large
    steps: int = 20  # whose losses are held against those of the plain step
    processes: Sequence[int] = (1, 2, 4, 8)
    seconds: float = 20.0  # that runs side by side are timed
    scored: int = 2048
    workers: int = 8
    rounds: int = 3


TINY = Sizes(
    ("resnet18", "resnet50"), 0.125, 32, 48, 12, (24, 12), 3, (1, 2), 0.5, 16, 0, 1
)


@dataclass(frozen=True)
class Target:
    """What was hoped for."""

    name: str
    least: float = float("-inf")
    most: float = float("inf")

    def row(self, value: float) -> dict[str, Any]:
        """What came of it: the value, the target, and met, missed by how much, or not measured."""
        limit, sign = (
            (self.least, "at least")
            if self.least > float("-inf")
            else (self.most, "at most")
        )
        met = self.least <= value <= self.most
        said = (
            "not measured"
            if value != value
            else "met"
            if met
            else f"missed by {abs(value / limit - 1):.0%}"
        )
        return {
            "target": self.name,
            "value": value,
            "wanted": f"{sign} {limit:g}",
            "outcome": said,
        }


TARGETS = {
    "usual_64": Target("64 px ResNet18, images/s against the usual script", least=8),
    "usual_224": Target(
        "224 px ResNet50, images/s against the usual script", least=1.5
    ),
    "rate_224": Target("224 px ResNet50, images/s", least=2500),
    "one_pass": Target("everything of one pass, time against the bare pass", most=1.10),
    "equal_losses": Target(
        "compiled steps whose losses differ from the plain ones by no more than rounding, share",
        least=1,
    ),
}


class Clock:
    """The time that is left, and what was left out for want of it."""

    def __init__(self, minutes: float) -> None:
        """Begin now."""
        self._end, self.left_out = time.monotonic() + 60 * minutes, []

    def allows(self, case: str) -> bool:
        """Whether there is time for a case; one that is left out is noted."""
        if time.monotonic() < self._end:
            return True
        self.left_out.append(case)
        return False


def config_of(architecture: str, sizes: Sizes, **changes: Any) -> RunConfig:
    """A run of the check: Adam, augmented, from scratch, 8x8 maps at 64 px."""
    options = {
        "batch_size": sizes.batch,
        "learning_rate": 1e-3,
        "optimizer": "adam",
        "weight_decay": 5e-4,
        "augmentation": True,
    }
    options |= {
        "pretrained": False,
        "data": "benchmark",
        "stem": "strided",
        "last_stride": 1,
        "width": sizes.width,
        "precision": "bfloat16",
    }
    return RunConfig(**{"architecture": architecture} | options | changes)


def losses_of(
    config: RunConfig,
    size: int,
    steps: int,
    device: str,
    compiled: bool,
    off: float = 0.0,
) -> Tensor:
    """Losses of the first steps on one batch, (steps,), plain or compiled; ``off`` is the share of itself by which each weight is moved."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(
        0,
        256,
        (config.batch_size, 3, size, size),
        generator=generator,
        dtype=torch.uint8,
    ).to(device)
    labels = torch.randint(
        0, training.CLASSES, (config.batch_size,), generator=generator
    ).to(device)
    network = (
        run.initial_network(config, training.CLASSES)
        .to(device, memory_format=torch.channels_last)
        .train()
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1 + off)
    optimizer = run.make_optimizer(network, config, torch.device(device))
    stepping = torch.compile(network, mode="reduce-overhead") if compiled else network
    batch = run.Batch(torch.arange(len(labels), device=device), labels)
    steps_taken = [
        run.train_step(stepping, optimizer, pixels, batch, config)[0].clone()
        for _ in range(steps)
    ]
    return torch.stack(steps_taken).cpu() / len(labels)


def agreement(sizes: Sizes, device: str, clock: Clock) -> pd.DataFrame:
    """Losses of the compiled step beside those of the plain one, and beside what weights moved in their last digit do.

    Returns:
        One row per architecture, optimizer and precision: compiled_apart and rounding_apart, the largest difference of a loss from the
        plain one; equal: the first is no more than ten times the second, as another order of sums may make it.
    """
    rows = []
    for name, optimizer, kind in itertools.product(
        sizes.architectures, OPTIMIZERS, PRECISIONS
    ):
        if clock.allows(f"agreement of {name}, {optimizer}, {kind}"):
            config = config_of(name, sizes, optimizer=optimizer, precision=kind)
            way = partial(losses_of, config, sizes.small, sizes.steps, device)
            plain, found, moved = (
                way(compiled=False),
                way(compiled=device == "cuda"),
                way(compiled=False, off=1e-7),
            )
            apart = [float((other - plain).abs().max()) for other in (found, moved)]
            row = {
                "architecture": name,
                "optimizer": optimizer,
                "precision": kind,
                "last_loss": float(plain[-1]),
            }
            rows.append(
                row
                | dict(zip(("compiled_apart", "rounding_apart"), apart, strict=True))
                | {"equal": apart[0] <= 10 * apart[1]}
            )
            free(device)
    return pd.DataFrame(rows)


def speeds(sizes: Sizes, device: str, clock: Clock) -> pd.DataFrame:
    """Training images/s of the bare step, ours plain and compiled, and the usual script, with the memory they took."""
    tables = []
    for name, (size, count) in itertools.product(
        sizes.architectures, zip((sizes.small, sizes.large), sizes.epoch, strict=True)
    ):
        if not clock.allows(f"training speed of {name} at {size} px"):
            continue
        config = config_of(
            name,
            sizes,
            **{"stem": "imagenet", "last_stride": 2} if size == sizes.large else {},
        )
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with training.training_ways(
            config, size, count, sizes.workers, device, ["bfloat16"]
        ) as (ways, images):
            table = interleaved.compared(
                interleaved.rounds(ways, sizes.rounds),
                next(iter(ways)),
                images,
                "images",
            )
        table.insert(0, "network", f"{name}, {size} px")
        tables.append(
            table.assign(
                peak_gib=round(torch.cuda.max_memory_allocated() / 2**30, 2)
                if device == "cuda"
                else float("nan")
            )
        )
        free(device)
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def trained_images(
    config: RunConfig, size: int, seconds: float, device: str, number: int
) -> int:
    """Images that a process trains on within some seconds, after a first epoch that is not counted."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(number)
    pixels = torch.randint(
        0,
        256,
        (8 * config.batch_size, size, size, 3),
        generator=generator,
        dtype=torch.uint8,
    )
    split = run.Split(
        pixels.to(device),
        torch.randint(0, training.CLASSES, (len(pixels),), generator=generator).to(
            device
        ),
    )
    network = training.network_of(config, device)
    stepping = (
        torch.compile(network, mode="reduce-overhead") if device == "cuda" else network
    )
    optimizer = run.make_optimizer(network, config, torch.device(device))
    run.train_epoch(stepping, optimizer, split, config, 1)
    done, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        run.train_epoch(stepping, optimizer, split, config, 2)
        done += len(pixels)
    return done


def side_by_side(sizes: Sizes, device: str, clock: Clock) -> pd.DataFrame:
    """Runs an hour of ResNet18 at the small size with several processes on one device."""
    rows, config = [], config_of("resnet18", sizes, batch_size=min(32, sizes.batch))
    for count in sizes.processes:
        if clock.allows(f"{count} runs side by side"):
            with ProcessPoolExecutor(
                count, mp_context=multiprocessing.get_context("spawn")
            ) as executor:
                work = partial(
                    trained_images, config, sizes.small, sizes.seconds, device
                )
                rate = sum(executor.map(work, range(count))) / sizes.seconds
            rows.append(
                {
                    "processes": count,
                    "images/s": rate,
                    "runs/hour": 3600 * rate / (EPOCHS_OF_A_RUN * IMAGES_OF_A_RUN),
                }
            )
    return pd.DataFrame(rows)


def scoring_speeds(sizes: Sizes, device: str, clock: Clock) -> pd.DataFrame:
    """Images/s of everything of one pass beside the bare forward pass."""
    tables = []
    for name, size in (("resnet18", sizes.small), ("resnet50", sizes.large)):
        if not clock.allows(f"scoring of {name} at {size} px"):
            continue
        images = scoring.images_of(sizes.scored, size)
        network = (
            resnet.build(name, scoring.CLASSES, width=sizes.width, seed=0)
            .eval()
            .to(device, memory_format=torch.channels_last)
        )
        batches = scoring.in_batches(images, 256, device)
        ways = {"bare pass": partial(scoring.bare, network, batches)}
        ways["everything of one pass"] = partial(
            scoring.everything, network, images, 256, device
        )
        table = interleaved.compared(
            interleaved.rounds(ways, sizes.rounds), "bare pass", len(images), "images"
        )
        table.insert(0, "network", f"{name}, {size} px")
        tables.append(table)
        free(device)
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def free(device: str) -> None:
    """Give back what the last case held."""
    if device == "cuda":
        torch.cuda.empty_cache()


def outcomes(tables: dict[str, pd.DataFrame], sizes: Sizes) -> pd.DataFrame:
    """Every target with what was measured, and by how much it was missed."""
    speed, pass_, equal = tables["training"], tables["scoring"], tables["agreement"]
    found = dict.fromkeys(TARGETS, float("nan"))
    for name, size, target in (
        ("resnet18", sizes.small, "usual_64"),
        ("resnet50", sizes.large, "usual_224"),
    ):
        rates = _rates(speed, f"{name}, {size} px")
        usual = [rate for way, rate in rates.items() if way.startswith("usual")]
        ours = [rate for way, rate in rates.items() if way.startswith("ours")]
        if usual and ours:
            found[target] = max(ours) / usual[0]
            found["rate_224"] = max(ours) if size == sizes.large else found["rate_224"]
    if len(pass_):
        found["one_pass"] = float(
            pass_.loc[pass_["way"] == "everything of one pass", "time / limit"]
            .astype(float)
            .max()
        )
    if len(equal):
        found["equal_losses"] = float(equal["equal"].mean())
    return pd.DataFrame([target.row(found[name]) for name, target in TARGETS.items()])


def _rates(table: pd.DataFrame, network: str) -> dict[str, float]:
    chosen = table[table["network"] == network] if len(table) else table
    return (
        dict(zip(chosen["way"], chosen["images/s"], strict=True)) if len(chosen) else {}
    )


def check(
    sizes: Sizes, device: str, minutes: float
) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """Everything in the order of what a study needs first; tables by name, and what there was no time for."""
    clock = Clock(minutes)
    sections = {
        "training": speeds,
        "agreement": agreement,
        "side_by_side": side_by_side,
        "scoring": scoring_speeds,
    }
    tables = {name: section(sizes, device, clock) for name, section in sections.items()}
    return {"targets": outcomes(tables, sizes)} | tables, clock.left_out


def main() -> None:
    """Check the machine, print what was found, and keep it as ``gpu.json`` and ``gpu.md``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=10, help="after which no further case is begun"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(), help="folder for gpu.json and gpu.md"
    )
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="the smallest of everything, on a CPU if need be",
    )
    given = parser.parse_args()
    if not torch.cuda.is_available() and not given.tiny:
        parser.error(
            f"torch {torch.__version__} sees no GPU here; --tiny runs the whole of it on a CPU"
        )
    sizes, device = (
        TINY if given.tiny else Sizes(),
        "cuda" if torch.cuda.is_available() else "cpu",
    )
    sizes = replace(
        sizes, workers=min(sizes.workers, torch.multiprocessing.cpu_count())
    )
    printed = io.StringIO()
    with redirect_stdout(printed):
        interleaved.print_machine("torchvision", "pillow")
    tables, left_out = check(sizes, device, given.minutes)
    with redirect_stdout(printed):
        for name, table in tables.items():
            if len(table):
                interleaved.show(name.replace("_", " "), table)
        print(
            "\nLeft out for want of time: " + ("; ".join(left_out) or "nothing") + "."
        )
    print(printed.getvalue())
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "gpu.md").write_text(printed.getvalue())
    kept = {
        name: json.loads(table.to_json(orient="records", double_precision=15))
        for name, table in tables.items()
    }
    about = {"device": device_name(torch.device(device)), "versions": versions()}
    write_json(
        given.out / "gpu.json",
        about | {"tiny": given.tiny, "left_out": left_out} | kept,
    )


if __name__ == "__main__":
    main()
