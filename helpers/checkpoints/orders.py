"""Check the order of a network's outputs by its predictions on training images."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

# Another order must make more images right, by this number of standard errors, and by
# this share of the images.
_LEAST_STANDARD_ERRORS = 3.0
_LEAST_GAIN = 0.05
# A usual order is preferred to the best one if at most this share of images less is
# right.
_USUAL_MARGIN = 0.02
_MOST_NAMES = 30  # of classes in a message


class Order(NamedTuple):
    """An order of outputs that fits the labels better than the one assumed."""

    order: tuple[int, ...]  # class i is output order[i]
    right: float  # share of images classified correctly in this order, in [0, 1]
    assumed: float  # the same share in the order assumed
    usual: bool  # whether it is natural order, in which timm numbers classes


def in_natural_order(names: Sequence[str]) -> tuple[int, ...]:
    """Give the output of each class in a network whose outputs are in natural order.

    Natural order sorts numbers in names by value, and ignores capitals. timm uses it
    (``timm.utils.natural_key``), whereas torchvision sorts by code points.

    Args:
        names: of the classes, in the order assumed.

    Example:
        >>> in_natural_order(["Cat", "ant", "bee"])
        (2, 0, 1)
    """
    in_order = sorted(range(len(names)), key=lambda label: _natural_key(names[label]))
    return tuple(in_order.index(label) for label in range(len(names)))


def _natural_key(name: str) -> list[tuple[bool, int, str]]:
    """Key of natural order: numbers before words, numbers by value."""
    key = []
    for word in re.split(r"(\d+)", name.lower()):
        is_number = word.isdecimal()
        key.append((not is_number, int(word) if is_number else 0, word))
    return key


def better_order(
    predicted: ArrayLike, labels: ArrayLike, names: Sequence[str]
) -> Order | None:
    """Find an order of outputs that clearly fits the labels better than that assumed.

    Two are tried: timm's natural order, and the assignment of outputs to classes with
    which most images are classified correctly (Kuhn 1955). The gain of the latter is
    estimated by cross-validation on two halves of the images, as the best assignment
    fits the images from which it was computed by chance too.

    Args:
        predicted: (N,) number of the output with the largest logit.
        labels: (N,) number of the class in the order assumed.
        names: of the K classes, in the order assumed.

    Returns:
        The order; None if the order assumed fits as well, within error.

    Example:
        >>> better_order([1, 0] * 40, [0, 1] * 40, ["a", "b"])
        Order(order=(1, 0), right=1.0, assumed=0.0, usual=False)
    """
    predicted = np.asarray(predicted)
    labels = np.asarray(labels)
    assumed = np.arange(len(names))
    natural = np.array(in_natural_order(names))
    best = _best_assignment(predicted, labels, len(names))
    halves = pd.Series(labels).groupby(labels).cumcount().to_numpy() % 2
    gains = np.zeros(len(labels))
    for half in (0, 1):
        inside = halves == half
        order = _best_assignment(predicted[~inside], labels[~inside], len(names))
        gains[inside] = _gains(predicted, labels, order)[inside]
    least_accuracy = accuracy(predicted, labels, best) - _USUAL_MARGIN
    is_usual = accuracy(predicted, labels, natural) >= least_accuracy
    order = best
    if is_usual:
        order = natural
        gains = _gains(predicted, labels, natural)
    if not _is_clear(gains):
        return None
    return Order(
        order=tuple(int(output) for output in order),
        right=accuracy(predicted, labels, order),
        assumed=accuracy(predicted, labels, assumed),
        usual=is_usual,
    )


def _gains(predicted: NDArray, labels: NDArray, order: NDArray) -> NDArray[np.float64]:
    """Gain by another order for each image, (N,): 1 newly right, -1 newly wrong."""
    is_right = predicted == order[labels]
    return is_right.astype(float) - (predicted == labels)


def _is_clear(gains: NDArray[np.float64]) -> bool:
    """Whether the mean gain is large enough, and cannot be due to chance."""
    if not len(gains):
        return False
    standard_error = np.sqrt((gains**2).sum()) / len(gains)
    least_gain = max(_LEAST_GAIN, _LEAST_STANDARD_ERRORS * standard_error)
    return bool(gains.mean() >= least_gain)


def accuracy(predicted: ArrayLike, labels: ArrayLike, order: ArrayLike) -> float:
    """Share of images classified correctly if class i is output order[i].

    Args:
        predicted: (N,) number of the output with the largest logit.
        labels: (N,) number of the class.
        order: (K,) output of each class.
    """
    expected = np.asarray(order)[np.asarray(labels)]
    return float((np.asarray(predicted) == expected).mean())


def in_words(names: Sequence[str], order: Sequence[int]) -> str:
    """List the names of classes in the order of the outputs.

    Args:
        names: names of the classes.
        order: output of each class.
    """
    by_output = [names[label] for label in np.argsort(order)]
    more = len(by_output) - _MOST_NAMES
    first_names = ", ".join(by_output[:_MOST_NAMES])
    return f"{first_names} and {more} more" if more > 0 else first_names


def _best_assignment(
    predicted: NDArray[np.int64], labels: NDArray[np.int64], classes: int
) -> NDArray[np.int64]:
    """Assign an output to each class so that most images are classified correctly.

    If several assignments are equally good, outputs stay with the class of their own
    number.
    """
    counts = np.zeros((classes, classes))  # (classes, outputs)
    np.add.at(counts, (labels, predicted), 1)
    prefers_itself = 1e-6 * np.eye(classes)
    _, outputs = linear_sum_assignment(counts + prefers_itself, maximize=True)
    return outputs
