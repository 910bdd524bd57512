"""Several ways to do the same work, timed in turn, round by round: what disturbs the machine disturbs them all, and ratios stay."""

import importlib.metadata
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from helpers import files


class Spent(NamedTuple):
    """What a call took."""

    wall: float  # seconds
    cpu: float  # seconds of this process and of the children that it waited for, over all cores


def spent(call: Callable[[], Any]) -> Spent:
    """Time a call; a GPU's work counts until it is done."""
    synchronise()
    cpu, wall = _cpu_seconds(), time.perf_counter()
    call()
    synchronise()
    return Spent(time.perf_counter() - wall, _cpu_seconds() - cpu)


def synchronise() -> None:
    """Wait for the GPU, where torch is in use and sees one."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.synchronize()


def _cpu_seconds() -> float:
    used = [
        resource.getrusage(who)
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def rounds(
    ways: Mapping[str, Callable[[], Any]], count: int, warm_up: int = 1
) -> pd.DataFrame:
    """Time every way once per round, each round beginning with another.

    Returns:
        One row per round and way: round, way, wall, cpu, seconds. The rounds of the warm-up are left out.
    """
    names, rows = list(ways), []
    for number in range(-warm_up, count):
        for place in range(len(names)):
            name = names[(number + place) % len(names)]
            took = spent(ways[name])
            if number >= 0:
                rows.append(
                    {"round": number, "way": name, "wall": took.wall, "cpu": took.cpu}
                )
    return pd.DataFrame(rows)


def compared(
    timings: pd.DataFrame, limit: str, items: Mapping[str, float] | float, unit: str
) -> pd.DataFrame:
    """Put every way beside the one that cannot be beaten: medians over the rounds, and ratios taken within each round.

    Args:
        timings: see ``rounds``.
        limit: the way that the ratios refer to.
        items: how many things a call works through, the same for all or by way.
        unit: what these things are.

    Returns:
        way, <unit>/s, ratio of wall times (median, lowest and highest round), ratio of CPU times, rounds.
    """
    count = (
        items
        if isinstance(items, Mapping)
        else dict.fromkeys(timings["way"].unique(), items)
    )
    per_item = {kind: _per_item(timings, kind, count) for kind in ("wall", "cpu")}
    rows = []
    for way in timings["way"].unique():
        ratios = {kind: table[way] / table[limit] for kind, table in per_item.items()}
        wall = ratios["wall"]
        rows.append(
            {
                "way": way,
                f"{unit}/s": float(f"{1 / per_item['wall'][way].median():.3g}"),
                "time / limit": f"{wall.median():.2f}",
                "lowest to highest": f"{wall.min():.2f} to {wall.max():.2f}",
                "CPU / limit": f"{ratios['cpu'].median():.2f}",
                "rounds": len(wall),
            }
        )
    return pd.DataFrame(rows)


def _per_item(
    timings: pd.DataFrame, kind: str, count: Mapping[str, float]
) -> pd.DataFrame:
    return timings.pivot(index="round", columns="way", values=kind).apply(
        lambda column: column / count[column.name]
    )


def exponent(sizes: list[float], values: list[float]) -> float:
    """Slope of the values against the sizes, both on a logarithmic scale."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def show(title: str, table: pd.DataFrame) -> None:
    """Print a table as Markdown, ready to be put among the results."""
    lines = [
        list(map(str, table.columns)),
        ["---"] * len(table.columns),
        *(list(map(str, row)) for row in table.itertuples(index=False)),
    ]
    print(
        f"\n### {title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines),
        flush=True,
    )


def print_machine(*packages: str) -> None:
    """Print what a result depends on: machine, threads, versions, command, commit."""
    wanted = ("torch", "torchvision", "numpy", "pandas", *packages)
    there = {item.name for item in importlib.metadata.distributions()}
    versions = files.versions([name for name in wanted if name in there])
    python = versions.pop("python")
    print(
        f"- machine: {processor()}, {len(os.sched_getaffinity(0))} cores to use, {platform.system()}, {accelerator()}"
    )
    print(
        f"- threads: OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}; load when it began: {os.getloadavg()[0]:.1f}"
    )
    print(
        f"- versions: Python {python}, "
        + ", ".join(f"{name} {number}" for name, number in versions.items())
    )
    print(
        f"- command: python -m {sys.modules['__main__'].__spec__.name} {' '.join(sys.argv[1:])}".rstrip()
    )
    print(f"- commit: {files.commit()}", flush=True)


def processor() -> str:
    """Name the processor as the system does."""
    try:
        with open("/proc/cpuinfo") as file:
            return next(
                line.split(":")[1].strip()
                for line in file
                if line.startswith("model name")
            )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def accelerator() -> str:
    """Name the GPU that torch sees."""
    torch = sys.modules.get("torch")
    return (
        torch.cuda.get_device_name()
        if torch is not None and torch.cuda.is_available()
        else "no GPU"
    )
