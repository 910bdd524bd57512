"""How far runs are while they train: the last epoch and its loss, read from their checkpoints, whoever trains them and wherever."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from helpers import checkpoints, model_set
from helpers.grid import RunConfig


def last_epoch(folder: Path) -> dict[str, Any] | None:
    """Read the last row of a run's history from its checkpoint; None before the first epoch, after the last, and where it is damaged."""
    history = checkpoints.history(folder)
    return history[-1] if history else None


def line(work: Path, runs: Iterable[RunConfig]) -> str:
    """Write one line over the runs that train now, such as "resnet18 epoch 5 of 16, loss 0.43"; "" when none has an epoch yet.

    Args:
        work: the study's folder.
        runs: those that train.
    """
    found = [(run, last_epoch(model_set.run_folder(work, run))) for run in runs]
    return "; ".join(
        f"{run.architecture} epoch {row['epoch']} of {run.max_epochs}, loss {row['train_loss']:.2f}" for run, row in found if row
    )
