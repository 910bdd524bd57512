"""Float32 or bfloat16 for the products of training: decided once per study, by what the device has and what a short measurement says."""

import os
import statistics
import time
import uuid
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from helpers.files import device_name, read_json, write_json
from helpers.networks.resnet import ARCHITECTURES
from helpers.training.config import PRECISIONS
from helpers.training.cuda_graph import CapturedStep, Shape, random_batch

AUTO_PRECISION = "auto"


_NAME = "precision.json"


_ROUNDS = 3  # in which float32 and bfloat16 take turns, so that a busy machine slows both


_ROUND_SECONDS = 0.3  # of steps in each


_FASTER = 0.95  # share of the time of float32, below which bfloat16 counts as faster


def has_bfloat16(device: torch.device | str) -> bool:
    """Whether a device computes bfloat16 in hardware: a GPU that says so, or a CPU with AVX512_BF16 or AMX."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    asked = [getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")]
    return device.type == "cpu" and torch.backends.mkldnn.is_available() and any(ask() for ask in asked if ask)


def step_seconds(shape: Shape) -> dict[str, float]:
    """Time a training step of a shape in float32 and in bfloat16, in turns, on random images and on one thread of a CPU.

    Returns:
        Seconds per step by precision: the median of the rounds.
    """
    threads = torch.get_num_threads()
    if torch.device(shape.device).type == "cpu":
        torch.set_num_threads(1)  # as a run has
    try:
        steps = {name: CapturedStep(replace(shape, precision=name)) for name in PRECISIONS}
        batch = random_batch(shape, torch.device(shape.device))
        found: dict[str, list[float]] = {name: [] for name in PRECISIONS}
        for _ in range(_ROUNDS):
            for name, step in steps.items():
                count, started = 0, time.perf_counter()
                while not count or time.perf_counter() - started < _ROUND_SECONDS:
                    step(*batch).tolist()  # waits for the device
                    count += 1
                found[name].append((time.perf_counter() - started) / count)
    finally:
        torch.set_num_threads(threads)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def measured_precision(shape: Shape) -> dict[str, Any]:
    """Decide for a shape on its device: bfloat16 where it is there in hardware and faster than float32, else float32.

    Returns:
        precision, device (its name), and seconds per step by precision, None where there was nothing to measure.
    """
    if not has_bfloat16(shape.device):
        return {"precision": "float32", "device": device_name(shape.device), "seconds": None}
    seconds = step_seconds(shape)
    faster = seconds["bfloat16"] < _FASTER * seconds["float32"]
    return {"precision": "bfloat16" if faster else "float32", "device": device_name(shape.device), "seconds": seconds}


def smallest_shape(
    architectures: Sequence[str], batch_sizes: Sequence[int], image_size: int, device: str, *, stem: str, width: float, last_stride: int
) -> Shape:
    """Shape of a study's smallest network at its smallest batch: what gains least by bfloat16, and is measured soonest."""
    smallest = min(architectures, key=ARCHITECTURES.index)
    form = {"stem": stem, "width": width, "last_stride": last_stride}
    options = {"optimizer": "sgd", "momentum": 0.9, "augmentation": False, "precision": "float32"}
    return Shape(smallest, 2, **form, image_size=image_size, batch_size=min(batch_sizes), **options, device=device)


def foreseen_precision(precision: str, work: Path, shape: Shape) -> dict[str, Any]:
    """Precision that a study was begun in, or else would be trained in, without keeping it.

    Returns:
        precision, and for a measured one what ``measured_precision`` gives.

    Raises:
        ValueError: the precision is unknown.
    """
    if precision not in (*PRECISIONS, AUTO_PRECISION):
        raise ValueError(f"precision {precision!r} is unknown; choose one of {', '.join((*PRECISIONS, AUTO_PRECISION))}")
    if (work / _NAME).is_file():
        return read_json(work / _NAME)
    return measured_precision(shape) if precision == AUTO_PRECISION else {"precision": precision}


def choose_precision(precision: str, work: Path, shape: Shape) -> str:
    """Turn "auto" into what a study is trained in, and keep it in ``work/precision.json``, so that every later start uses the same.

    Executions that start together keep what the first of them found. Where several machines share no disk, name the precision.

    Args:
        precision: float32, bfloat16 or auto.
        work: the study's folder.
        shape: what is measured, see ``smallest_shape``.

    Returns:
        "float32" or "bfloat16".

    Raises:
        ValueError: the precision is unknown, or the study was begun in the other one.
    """
    record, path = foreseen_precision(precision, work, shape), work / _NAME
    if not path.is_file():
        _keep_first(path, record)
    kept = read_json(path)["precision"]
    if precision not in (AUTO_PRECISION, kept):
        raise ValueError(
            f"precision {precision!r} is asked for, and {work} was begun in {kept} ({path.name}); a study mixes none: "
            f"set precision to {kept} or auto, or give the study another name"
        )
    if kept == "bfloat16" and not has_bfloat16(shape.device):
        warnings.warn(f"{device_name(shape.device)} has no bfloat16 in hardware: training in it may be slow here", stacklevel=2)
    return kept


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
