"""When a run stops: the four rules of Du et al. 2024."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypedDict

from helpers.training.config import RunConfig


class Epoch(TypedDict):
    """A row of a run's history."""

    epoch: int  # 1 is the first
    train_loss: float  # mean cross-entropy of the training pass, augmented
    train_accuracy: float  # fraction, of the same pass
    monitor_accuracy: float  # fraction, on the split of rule 3, in evaluation mode
    seconds: float


def conditions_met(history: Sequence[Epoch], config: RunConfig) -> tuple[int, ...]:
    """Which of the rules 1 to 3 hold at the last epoch.

    1: training loss below ``loss_threshold`` (0.1). 2: training accuracy above
    ``accuracy_threshold`` (0.95). 3: in two epochs in a row (the paper: batches) the
    training loss fell while the error on the monitored split rose (overfitting).

    Args:
        history: the epochs so far, at least one.
        config: the run.
    """
    holds = {
        1: history[-1]["train_loss"] < config.loss_threshold,
        2: history[-1]["train_accuracy"] > config.accuracy_threshold,
        3: _overfits(history),
    }
    return tuple(rule for rule in holds if holds[rule])


def _overfits(history: Sequence[Epoch]) -> bool:
    """Rule 3, in the last three epochs."""
    steps = list(pairwise(history[-3:]))
    fell = all(after["train_loss"] < before["train_loss"] for before, after in steps)
    rose = all(
        after["monitor_accuracy"] < before["monitor_accuracy"]
        for before, after in steps
    )
    return len(steps) == 2 and fell and rose


def stop_reason(history: Sequence[Epoch], config: RunConfig) -> str:
    """Why the run stops after the last epoch, or "" if it goes on.

    Any two of the rules 1 to 3, or the epoch cap (4).

    Args:
        history: the epochs so far, at least one.
        config: the run.
    """
    rules = conditions_met(history, config)
    if len(rules) >= 2:
        return "rules " + "+".join(map(str, rules))
    return f"epoch cap {config.max_epochs}" if len(history) >= config.max_epochs else ""
