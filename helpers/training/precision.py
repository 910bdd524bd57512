"""Float32 or bfloat16 for products: decided once per study, by what the device has and what a short measurement says."""

import os
import statistics
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from helpers.files import device_name, read_json, write_json
from helpers.networks.resnet import ARCHITECTURES
from helpers.training.config import PRECISIONS
from helpers.training.cuda_graph import CapturedStep, Shape, random_batch

AUTO_PRECISION = "auto"
_ROUNDS = 3  # in which float32 and bfloat16 take turns, so that a busy machine slows both
_ROUND_SECONDS = 0.3  # of calls in each
_FASTER = 0.95  # share of the time of float32, below which bfloat16 counts as faster


def has_bfloat16(device: torch.device | str) -> bool:
    """Whether a device computes bfloat16 in hardware: a GPU that says so, or a CPU with AVX512_BF16 or AMX."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    asked = [getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")]
    return device.type == "cpu" and torch.backends.mkldnn.is_available() and any(ask() for ask in asked if ask)


def seconds_in_turns(calls: Mapping[str, Callable[[], object]], device: torch.device | str) -> dict[str, float]:
    """Median seconds of each call over rounds in which all take turns, after a first call that is not counted.

    On a CPU: of the processor, which other work on the machine disturbs least, and on one thread, as runs and scoring have.

    Args:
        calls: by name; each waits for its device.
        device: where they compute.
    """
    cpu, threads = torch.device(device).type == "cpu", torch.get_num_threads()
    clock = time.process_time if cpu else time.perf_counter
    if cpu:
        torch.set_num_threads(1)
    try:
        found: dict[str, list[float]] = {name: [] for name in calls}
        for number in range(_ROUNDS + 1):
            for name, call in calls.items():
                count, started = 0, clock()
                while not count or (number and clock() - started < _ROUND_SECONDS):
                    call()
                    count += 1
                found[name].append((clock() - started) / count)
    finally:
        torch.set_num_threads(threads)
    return {name: statistics.median(seconds[1:]) for name, seconds in found.items()}


def step_seconds(shape: Shape) -> dict[str, float]:
    """Seconds of a training step of a shape on random images, by precision, see ``seconds_in_turns``."""
    batch = random_batch(shape, torch.device(shape.device))
    steps = {name: CapturedStep(replace(shape, precision=name)) for name in PRECISIONS}
    return seconds_in_turns({name: partial(_waited, step, batch) for name, step in steps.items()}, shape.device)


def _waited(step: CapturedStep, batch: tuple[Any, ...]) -> None:
    step(*batch).tolist()  # waits for the device


def measured_precision(device: torch.device | str, seconds: Callable[[], Mapping[str, float]]) -> dict[str, Any]:
    """What suits a device: bfloat16 where it is there in hardware and faster than float32, else float32.

    Args:
        device: of the study.
        seconds: measures both precisions on it, see ``step_seconds``.

    Returns:
        precision, device (its name), and seconds by precision, None where there was nothing to measure.
    """
    if not has_bfloat16(device):
        return {"precision": "float32", "device": device_name(device), "seconds": None}
    found = seconds()
    faster = found["bfloat16"] < _FASTER * found["float32"]
    return {"precision": "bfloat16" if faster else "float32", "device": device_name(device), "seconds": dict(found)}


def smallest_shape(
    architectures: Sequence[str], batch_sizes: Sequence[int], image_size: int, device: str, *, stem: str, width: float, last_stride: int
) -> Shape:
    """Shape of a study's smallest network at its smallest batch: what gains least by bfloat16, and is measured soonest."""
    smallest = min(architectures, key=ARCHITECTURES.index)
    form = {"stem": stem, "width": width, "last_stride": last_stride}
    options = {"optimizer": "sgd", "momentum": 0.9, "augmentation": False, "precision": "float32"}
    return Shape(smallest, 2, **form, image_size=image_size, batch_size=min(batch_sizes), **options, device=device)


def foreseen_precision(
    precision: str, record: Path, device: torch.device | str, seconds: Callable[[], Mapping[str, float]]
) -> dict[str, Any]:
    """What a study was begun in, or else would be computed in, without keeping it.

    Args:
        precision: float32, bfloat16 or auto.
        record: where ``settled_precision`` keeps it.
        device: of the study.
        seconds: see ``measured_precision``.

    Returns:
        precision, and for a measured one what ``measured_precision`` gives.

    Raises:
        ValueError: the precision is unknown.
    """
    if precision not in (*PRECISIONS, AUTO_PRECISION):
        raise ValueError(f"{record.stem} {precision!r} is unknown; choose one of {', '.join((*PRECISIONS, AUTO_PRECISION))}")
    if record.is_file():
        kept = read_json(record)
        if not isinstance(kept, dict) or kept.get("precision") not in PRECISIONS:
            raise ValueError(f"{record} names none of {', '.join(PRECISIONS)}; delete it and run again to make it anew")
        return kept
    return measured_precision(device, seconds) if precision == AUTO_PRECISION else {"precision": precision}


def settled_precision(
    precision: str, record: Path, device: torch.device | str, seconds: Callable[[], Mapping[str, float]], way_out: str
) -> str:
    """Turn "auto" into what a study is computed in, and keep it in a record, so that every later start uses the same.

    Executions that start together keep what the first of them found. Where several machines share no disk, name the precision.

    Args:
        precision: float32, bfloat16 or auto.
        record: a file of the study, named after the notebooks' parameter.
        device: of the study.
        seconds: see ``measured_precision``.
        way_out: what to do for another precision.

    Returns:
        "float32" or "bfloat16".

    Raises:
        ValueError: the precision is unknown, or the study was begun in the other one.
    """
    found = foreseen_precision(precision, record, device, seconds)
    if not record.is_file():
        _keep_first(record, found)
    kept, name = read_json(record)["precision"], record.stem
    if precision not in (AUTO_PRECISION, kept):
        raise ValueError(
            f"{name} {precision!r} is asked for, and {record.parent} was begun in {kept} ({record.name}); a study mixes none: "
            f"set {name} to {kept} or auto, or {way_out}"
        )
    if kept == "bfloat16" and not has_bfloat16(device):
        warnings.warn(f"{device_name(device)} has no bfloat16 in hardware: {name} bfloat16 may be slow here", stacklevel=3)
    return kept


def training_record(work: Path) -> Path:
    """File of a study in which the precision of its training is kept."""
    return work / "precision.json"


def choose_precision(precision: str, work: Path, shape: Shape) -> str:
    """Turn "auto" into what a study is trained in, see ``settled_precision``; a shape is measured, see ``smallest_shape``."""
    return settled_precision(precision, training_record(work), shape.device, partial(step_seconds, shape), "give the study another name")


def _keep_first(path: Path, record: dict[str, Any]) -> None:
    """Write a record unless another process wrote its own meanwhile."""
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    write_json(draft, record)
    try:
        os.link(draft, path)
    except FileExistsError:
        return
    except OSError:  # a file system without hard links
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
