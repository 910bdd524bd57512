"""When a run of Du et al. 2024 stops: their four rules, read from the history of epochs."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypedDict

from helpers.training.config import RunConfig


class Epoch(TypedDict):
    """One row of a run's history; what the training pass itself gives, and the accuracy that rule 3 watches."""

    epoch: int  # 1 is the first
    train_loss: float  # mean cross-entropy over the epoch's training pass, under its augmentation
    train_accuracy: float  # fraction, of the same pass
    monitor_accuracy: float  # fraction, on the split of rule 3, in eval mode
    seconds: float


def conditions_met(history: Sequence[Epoch], config: RunConfig) -> tuple[int, ...]:
    """Which of the rules 1 to 3 hold at the last epoch.

    1: training loss below ``loss_threshold`` (0.1). 2: training accuracy above ``accuracy_threshold`` (0.95).
    3: in two epochs in a row (the paper: batches) the training loss fell while the error on the monitored split rose (overfitting).
    """
    checks = list(pairwise(history[-3:]))
    fell = all(after["train_loss"] < before["train_loss"] for before, after in checks)
    rose = all(
        after["monitor_accuracy"] < before["monitor_accuracy"]
        for before, after in checks
    )
    low, fitted = (
        history[-1]["train_loss"] < config.loss_threshold,
        history[-1]["train_accuracy"] > config.accuracy_threshold,
    )
    return tuple(
        rule
        for rule, holds in (
            (1, low),
            (2, fitted),
            (3, len(checks) == 2 and fell and rose),
        )
        if holds
    )


def stop_reason(history: Sequence[Epoch], config: RunConfig) -> str:
    """Why the run stops after the last epoch, or "" if it goes on: any two of the rules 1 to 3, or the epoch cap (4)."""
    met = conditions_met(history, config)
    if len(met) >= 2:
        return "rules " + "+".join(map(str, met))
    return f"epoch cap {config.max_epochs}" if len(history) >= config.max_epochs else ""
