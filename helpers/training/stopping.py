"""The four rules of Du et al. 2024 that stop a training run."""

from collections.abc import Sequence
from typing import TypedDict

import pandas as pd

from helpers.training.config import RunConfig


class Epoch(TypedDict):
    """A row of a run's history."""

    epoch: int  # 1 is the first
    train_loss: float  # mean cross-entropy of the training pass, augmented
    train_accuracy: float  # fraction, of the same pass
    monitor_accuracy: float  # fraction, on the split of rule 3, in evaluation mode
    seconds: float


def conditions_met(history: Sequence[Epoch], config: RunConfig) -> tuple[int, ...]:
    """List which of the rules 1 to 3 hold at the last epoch.

    1: the training loss is below ``loss_threshold`` (0.1). 2: the training accuracy is
    above ``accuracy_threshold`` (0.95). 3: in the last two epochs (in the paper:
    batches) the training loss fell while the error on the monitored split rose, which
    is overfitting.

    Args:
        history: the epochs so far, at least one.
        config: the run, with its thresholds.
    """
    holds = {
        1: history[-1]["train_loss"] < config.loss_threshold,
        2: history[-1]["train_accuracy"] > config.accuracy_threshold,
        3: _overfits(history),
    }
    return tuple(rule for rule in holds if holds[rule])


def _overfits(history: Sequence[Epoch]) -> bool:
    """Whether rule 3 holds: in both last steps the loss and the accuracy fall."""
    last = pd.DataFrame(history[-3:])[["train_loss", "monitor_accuracy"]]
    changes = last.diff()[1:]
    return len(changes) == 2 and bool((changes < 0).all(axis=None))


def stop_reason(history: Sequence[Epoch], config: RunConfig) -> str:
    """Say why a run stops after the last epoch; "" if it goes on.

    It stops if two of the rules 1 to 3 hold, or at the largest number of epochs
    (rule 4).

    Args:
        history: the epochs so far.
        config: the run, with its thresholds.
    """
    if not history:
        return ""
    rules = conditions_met(history, config)
    if len(rules) >= 2:
        return "rules " + "+".join(map(str, rules))
    if len(history) >= config.max_epochs:
        return f"epoch cap {config.max_epochs}"
    return ""
