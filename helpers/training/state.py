"""The state of a run between two epochs, in one safetensors file: weights, optimizer, history; written whole or not at all."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from helpers.files import write_tensors
from helpers.training.stopping import Epoch

CHECKPOINT = "checkpoint.safetensors"


def snapshot_path(folder: Path, snapshot: str) -> Path:
    """File of a run's snapshot ("first" or "stop")."""
    return folder / f"snapshot-{snapshot}.safetensors"


def save(folder: Path, network: nn.Module, optimizer: torch.optim.Optimizer, history: list[Epoch], snapshots: list[dict]) -> None:
    """Write everything that the next epoch needs, whole or not at all. Random numbers need no state: each epoch has a seed of its own."""
    tensors = {f"model.{name}": tensor for name, tensor in network.state_dict().items()}
    for index, slots in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in slots.items() if isinstance(value, Tensor)}
    write_tensors(folder / CHECKPOINT, tensors, {"history": json.dumps(history), "snapshots": json.dumps(snapshots)})


def restore(folder: Path, network: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[list[Epoch], list[dict[str, Any]]]:
    """Put a checkpoint into network and optimizer; history and snapshots so far. Where it is absent or damaged, start anew."""
    try:
        with safe_open(folder / CHECKPOINT, framework="pt") as file:
            said, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError):
        return [], []
    network.load_state_dict({name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")})
    slots: dict[int, dict[str, Tensor]] = defaultdict(dict)
    for _, index, name in (key.split(".") for key in tensors if key.startswith("optimizer.")):
        slots[int(index)][name] = tensors[f"optimizer.{index}.{name}"]
    optimizer.load_state_dict({"state": slots, "param_groups": optimizer.state_dict()["param_groups"]})
    return json.loads(said["history"]), json.loads(said["snapshots"])


def history_so_far(folder: Path) -> list[Epoch]:
    """Epochs of a run that trains, whoever trains it; none before the first, after the last, and where the file is damaged."""
    try:
        with safe_open(folder / CHECKPOINT, framework="pt") as file:
            return json.loads((file.metadata() or {}).get("history", "[]"))
    except (SafetensorError, OSError, ValueError):
        return []
