from dataclasses import replace

import pytest

from helpers.training.config import RunConfig
from helpers.training.run import conditions_met, stop_reason

CONFIG = RunConfig(
    "resnet18", 16, 0.1, "sgd", 0.0, False, False, data="d", max_epochs=5
)


def history(*rows):
    names = ("train_loss", "train_accuracy", "monitor_accuracy")
    return [dict(zip(names, row, strict=True)) for row in rows]


OVERFITTING = ((3, 0.1, 0.6), (2, 0.2, 0.5), (1, 0.3, 0.4))


@pytest.mark.parametrize(
    ("rows", "rules"),
    [
        ([(0.1, 0.5, 0.5)], ()),
        ([(0.0999, 0.5, 0.5)], (1,)),
        ([(1, 0.95, 0.5)], ()),
        ([(1, 0.951, 0.5)], (2,)),
        (OVERFITTING, (3,)),
        (OVERFITTING[:2], ()),
        ([*OVERFITTING[:2], (1, 0.3, 0.5)], ()),  # the error stood still
        ([OVERFITTING[0], (3, 0.2, 0.5), OVERFITTING[2]], ()),  # the loss stood still
        ([*OVERFITTING, (0.5, 0.4, 0.45)], ()),  # only the last two steps count
    ],
)
def test_rules_are_strict_and_the_third_needs_two_steps_of_overfitting(rows, rules):
    assert conditions_met(history(*rows), CONFIG) == rules


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([(0.05, 0.5, 0.5)], ""),
        ([(0.05, 0.99, 0.5)], "rules 1+2"),
        ([*OVERFITTING[:2], (0.01, 0.3, 0.4)], "rules 1+3"),
        ([*OVERFITTING[:2], (0.01, 0.97, 0.4)], "rules 1+2+3"),
        ([(1, 0.1, 0.1)] * 4, ""),
        ([(1, 0.1, 0.1)] * 5, "epoch cap 5"),
        ([(0.01, 0.99, 0.1)] * 5, "rules 1+2"),
    ],
)
def test_any_two_rules_stop_a_run_and_else_the_epoch_cap(rows, reason):
    assert stop_reason(history(*rows), CONFIG) == reason


@pytest.mark.parametrize(
    ("loss", "accuracy", "rules"),
    [(0.31, 0.79, (1, 2)), (0.3, 0.8, ()), (0.31, 0.81, (1,)), (0.29, 0.79, (2,))],
)
def test_thresholds_are_those_of_the_run(loss, accuracy, rules):
    config = replace(CONFIG, loss_threshold=loss, accuracy_threshold=accuracy)
    assert conditions_met(history((0.3, 0.8, 0.5)), config) == rules
