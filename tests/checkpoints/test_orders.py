"""Orders of outputs: timm's, any other, and none where predictions are merely wrong."""

import numpy as np
import pytest

from helpers.checkpoints import orders

NAMES = ["Cat", "ant", "bee", "dog"]


def predictions(order, wrong=0.0, images=120, seed=0):
    """Labels, and outputs of a network that has class i at output order[i]."""
    random = np.random.default_rng(seed)
    labels = np.arange(images) % len(order)
    predicted = np.array(order)[labels]
    noisy = random.random(images) < wrong
    predicted[noisy] = random.integers(len(order), size=noisy.sum())
    return predicted, labels


def test_natural_order_is_timms():
    timm = pytest.importorskip("timm.data.readers.reader_image_folder")
    names = ["Cat", "ant", "img10", "img9", "IMG1", "2", "10", "dog"]
    by_output = sorted(names, key=timm.natural_key)
    expected = tuple(by_output.index(name) for name in names)
    assert orders.in_natural_order(names) == expected


@pytest.mark.parametrize("wrong", [0.0, 0.3])
def test_timms_order_is_recognised(wrong):
    predicted, labels = predictions((2, 0, 1, 3), wrong)
    better = orders.better_order(predicted, labels, NAMES)
    assert (better.order, better.usual) == ((2, 0, 1, 3), True)
    assert better.right == (predicted == np.array([2, 0, 1, 3])[labels]).mean()
    assert better.assumed == (predicted == labels).mean()
    assert orders.in_words(NAMES, better.order) == "ant, bee, Cat, dog"


@pytest.mark.parametrize("order", [(1, 0, 2, 3), (3, 2, 0, 1)])
def test_any_other_order_is_found_and_is_not_usual(order):
    better = orders.better_order(*predictions(order, 0.3), NAMES)
    assert (better.order, better.usual) == (order, False)


@pytest.mark.parametrize("wrong", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_wrong_predictions_are_no_other_order(wrong, seed):
    predicted, labels = predictions((0, 1, 2, 3), wrong, seed=seed)
    assert orders.better_order(predicted, labels, NAMES) is None


def test_one_image_a_class_is_judged_by_timms_order_alone():
    """The best assignment of one image a class is always right, and means nothing."""
    names = [f"class {number}" for number in range(100)]
    labels = np.arange(100)
    random = np.random.default_rng(0).permutation(100)
    assert orders.better_order(random, labels, names) is None
    sorted_names = sorted(names)
    natural = np.array(orders.in_natural_order(sorted_names))
    assert orders.better_order(natural[labels], labels, sorted_names).usual


def right_in(order, counts):
    """Labels of so many images a class, and predictions that are all right."""
    labels = np.repeat(np.arange(len(counts)), counts)
    return np.array(order)[labels], labels


def test_timms_order_counts_where_it_misses_two_in_a_hundred_at_most():
    """The order is timm's but for two classes, that swapped their outputs."""
    order = (2, 0, 3, 1)
    few = orders.better_order(*right_in(order, [490, 490, 9, 9]), NAMES)
    assert (few.order, few.usual) == (orders.in_natural_order(NAMES), True)
    more = orders.better_order(*right_in(order, [480, 480, 20, 20]), NAMES)
    assert (more.order, more.usual) == (order, False)


def test_another_order_adds_five_in_a_hundred_at_least():
    order = (0, 3, 2, 1)
    less = right_in(order, [480, 20, 480, 20])  # 40 of 1,000, far beyond chance
    assert orders.better_order(*less, NAMES) is None
    more = right_in(order, [470, 30, 470, 30])
    assert orders.better_order(*more, NAMES).order == order


def test_another_order_adds_three_standard_errors_at_least():
    """Of n images with gain 1 and others with 0 the error of the sum is sqrt(n)."""
    natural = orders.in_natural_order(NAMES)
    for count, is_clear in ((8, False), (10, True)):
        predicted, labels = right_in(natural, [count, 0, 0, 40])
        better = orders.better_order(predicted, labels, NAMES)
        assert (better is not None) == is_clear
