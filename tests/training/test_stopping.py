from dataclasses import replace

from helpers.training.config import RunConfig
from helpers.training.stopping import Epoch, conditions_met, stop_reason

CONFIG = RunConfig(
    "resnet18", 16, 0.1, "sgd", 0.0, False, False, data="d", max_epochs=5
)


def history(*rows):
    return [
        Epoch(
            epoch=n,
            train_loss=loss,
            train_accuracy=accuracy,
            monitor_accuracy=monitor,
            seconds=0.0,
        )
        for n, (loss, accuracy, monitor) in enumerate(rows, 1)
    ]


def test_rule_1_is_a_loss_strictly_below_a_tenth():
    assert conditions_met(history((0.1, 0.5, 0.5)), CONFIG) == ()
    assert conditions_met(history((0.0999, 0.5, 0.5)), CONFIG) == (1,)


def test_rule_2_is_an_accuracy_strictly_above_95_percent():
    assert conditions_met(history((1, 0.95, 0.5)), CONFIG) == ()
    assert conditions_met(history((1, 0.951, 0.5)), CONFIG) == (2,)


def test_rule_3_needs_two_consecutive_falls_of_the_loss_with_two_rises_of_the_error():
    overfitting = history((3, 0.1, 0.6), (2, 0.2, 0.5), (1, 0.3, 0.4))
    assert conditions_met(overfitting, CONFIG) == (3,)
    assert conditions_met(overfitting[:2], CONFIG) == ()
    assert (
        conditions_met(history((3, 0.1, 0.6), (2, 0.2, 0.5), (1, 0.3, 0.5)), CONFIG)
        == ()
    )  # the error stood still
    assert (
        conditions_met(history((3, 0.1, 0.6), (3, 0.2, 0.5), (1, 0.3, 0.4)), CONFIG)
        == ()
    )  # the loss stood still
    assert (
        conditions_met([*overfitting, *history((0.5, 0.4, 0.45))], CONFIG) == ()
    )  # only the last two checks count


def test_any_two_rules_stop_and_one_does_not():
    assert stop_reason(history((0.05, 0.5, 0.5)), CONFIG) == ""
    assert stop_reason(history((0.05, 0.99, 0.5)), CONFIG) == "rules 1+2"
    assert (
        stop_reason(history((3, 0.1, 0.6), (2, 0.2, 0.5), (0.01, 0.3, 0.4)), CONFIG)
        == "rules 1+3"
    )
    assert (
        stop_reason(history((3, 0.1, 0.6), (2, 0.2, 0.5), (0.01, 0.97, 0.4)), CONFIG)
        == "rules 1+2+3"
    )


def test_the_epoch_cap_is_rule_4_and_a_rule_named_before_it_wins():
    assert stop_reason(history(*[(1, 0.1, 0.1)] * 4), CONFIG) == ""
    assert stop_reason(history(*[(1, 0.1, 0.1)] * 5), CONFIG) == "epoch cap 5"
    assert stop_reason(history(*[(0.01, 0.99, 0.1)] * 5), CONFIG) == "rules 1+2"


def test_thresholds_are_those_of_the_run():
    epoch = Epoch(
        epoch=1, train_loss=0.3, train_accuracy=0.8, monitor_accuracy=0.5, seconds=1.0
    )
    base = RunConfig("resnet18", 8, 0.01, "adam", 0.0, False, False, data="d")
    for loss, accuracy, rules in (
        (0.31, 0.79, (1, 2)),
        (0.3, 0.8, ()),
        (0.31, 0.81, (1,)),
        (0.29, 0.79, (2,)),
    ):
        config = replace(base, loss_threshold=loss, accuracy_threshold=accuracy)
        assert conditions_met([epoch], config) == rules
