"""The state of a run between two epochs, in one safetensors file: weights, optimizer, history; written whole or not at all."""

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from helpers.files import complete_or_absent, is_sound, remove, sealed
from helpers.training.stopping import Epoch

_NAME = "checkpoint.safetensors"


def snapshot_path(folder: Path, snapshot: str) -> Path:
    """File of a run's snapshot ("first" or "stop")."""
    return folder / f"snapshot-{snapshot}.safetensors"


def save_snapshot(folder: Path, snapshot: str, model: nn.Module) -> None:
    """Write a network's weights and buffers, contiguous and on the CPU."""
    with complete_or_absent(snapshot_path(folder, snapshot)) as temporary:
        safetensors.torch.save_file(_plain(model.state_dict()), temporary)


def _plain(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}


def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, history: list[Epoch], snapshots: list[dict[str, Any]]) -> None:
    """Write everything that the next epoch needs. Random numbers need no state: each epoch has a seed of its own."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for index, slots in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in slots.items() if isinstance(value, torch.Tensor)}
    metadata = {"history": json.dumps(history), "snapshots": json.dumps(snapshots)}
    with sealed(folder / _NAME) as temporary:
        safetensors.torch.save_file(_plain(tensors), temporary, metadata=metadata)


def restore(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[list[Epoch], list[dict[str, Any]]]:
    """Put a checkpoint into the network and the optimizer; where there is none, or it is damaged, start from the beginning.

    Returns:
        The history and the snapshots so far.
    """
    for left_by_a_kill in folder.glob(".*.partial"):
        left_by_a_kill.unlink()
    path = folder / _NAME
    if not is_sound(path):
        return [], []
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
        tensors = safetensors.torch.load_file(path)
    except (SafetensorError, OSError):
        return [], []
    model.load_state_dict({name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")})
    slots: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            _, index, name = key.split(".")
            slots.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": slots, "param_groups": optimizer.state_dict()["param_groups"]})
    return json.loads(metadata["history"]), json.loads(metadata["snapshots"])


def history(folder: Path) -> list[Epoch]:
    """Read the epochs of a run that trains, whoever trains it; none before the first, after the last, and where the file is damaged."""
    try:
        with safe_open(folder / _NAME, framework="pt") as file:
            return json.loads((file.metadata() or {}).get("history", "[]"))
    except (SafetensorError, OSError, ValueError):
        return []


def discard(folder: Path) -> None:
    """Delete the checkpoint of a run that is complete."""
    remove(folder / _NAME)
