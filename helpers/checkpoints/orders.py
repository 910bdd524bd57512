"""The order of a network's outputs, checked by its predictions on training images."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

_CLEAR = 3.0  # standard errors by which another order must fit better
_WORTH = 0.05  # share of the images that it must add
_NEAR = 0.02  # share of the images that a usual order may miss of the best one
_MOST_NAMES = 30


class Order(NamedTuple):
    """An order of outputs that fits the labels better than the one assumed."""

    order: tuple[int, ...]  # class i is the output order[i]
    right: float  # share of the images that are right in this order, in [0, 1]
    assumed: float  # share that is right in the order assumed
    usual: bool  # a program numbers classes in this order


def in_natural_order(names: Sequence[str]) -> tuple[int, ...]:
    """The output of each class where a program numbers classes in natural order.

    Numbers by their value, capital letters as small ones: so does timm
    (``timm.utils.natural_key``), whereas torchvision sorts by code points.

    Args:
        names: of the classes, in their order.

    Example:
        >>> in_natural_order(["Cat", "ant", "bee"])
        (2, 0, 1)
    """
    ranks = sorted(range(len(names)), key=lambda place: _natural(names[place]))
    return tuple(ranks.index(place) for place in range(len(names)))


def _natural(name: str) -> list[tuple[bool, int, str]]:
    words = re.split(r"(\d+)", name.lower())
    return [
        (not word.isdecimal(), int(word) if word.isdecimal() else 0, word)
        for word in words
    ]


def better_order(
    predicted: ArrayLike, labels: ArrayLike, names: Sequence[str]
) -> Order | None:
    """The order of outputs that fits the labels, where the one assumed does not.

    Tried are timm's order, and the assignment of outputs to classes with most images
    right (Kuhn 1955). That is found on one half of the images and judged on the other,
    so that chance adds nothing.

    Args:
        predicted: (N,) number of the output with the largest logit.
        labels: (N,) number of the class in the order assumed.
        names: of the K classes.

    Returns:
        None where the order assumed fits as well, within error.

    Example:
        >>> better_order([1, 0] * 40, [0, 1] * 40, ["a", "b"])
        Order(order=(1, 0), right=1.0, assumed=0.0, usual=False)
    """
    predicted = np.asarray(predicted)
    labels = np.asarray(labels)
    assumed = np.arange(len(names))
    natural = np.array(in_natural_order(names))
    best = _best(predicted, labels, len(names))
    halves = _halves(labels)
    gains = np.zeros(len(labels))
    for half in (0, 1):
        inside = halves == half
        order = _best(predicted[~inside], labels[~inside], len(names))
        gains[inside] = _gains(predicted, labels, order)[inside]
    enough = accuracy(predicted, labels, best) - _NEAR
    usual = accuracy(predicted, labels, natural) >= enough
    order = natural if usual else best
    if not _clear(_gains(predicted, labels, natural) if usual else gains):
        return None
    return Order(
        tuple(int(output) for output in order),
        accuracy(predicted, labels, order),
        accuracy(predicted, labels, assumed),
        usual,
    )


def _gains(predicted: NDArray, labels: NDArray, order: NDArray) -> NDArray[np.float64]:
    """What another order adds: 1, 0 or -1 for each image, (N,)."""
    right = predicted == order[labels]
    return right.astype(float) - (predicted == labels)


def _clear(gains: NDArray[np.float64]) -> bool:
    """Whether the mean gain is beyond chance and worth a word."""
    error = np.sqrt((gains**2).sum()) / max(len(gains), 1)
    return bool(len(gains) and gains.mean() >= max(_WORTH, _CLEAR * error))


def accuracy(predicted: ArrayLike, labels: ArrayLike, order: ArrayLike) -> float:
    """Share of the images that are right where class i is the output order[i].

    Args:
        predicted: (N,) number of the largest output.
        labels: (N,) classes.
        order: output of each class.
    """
    expected = np.asarray(order)[np.asarray(labels)]
    return float((np.asarray(predicted) == expected).mean())


def in_words(names: Sequence[str], order: Sequence[int]) -> str:
    """The names of classes in the order of the outputs.

    Args:
        names: of the classes.
        order: output of each class.
    """
    by_output = [names[place] for place in np.argsort(order)]
    more = len(by_output) - _MOST_NAMES
    shown = ", ".join(by_output[:_MOST_NAMES])
    return f"{shown} and {more} more" if more > 0 else shown


def _halves(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """0 and 1 in turn among the images of each class, (N,)."""
    halves = np.zeros(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        halves[rows] = np.arange(len(rows)) % 2
    return halves


def _best(
    predicted: NDArray[np.int64], labels: NDArray[np.int64], classes: int
) -> NDArray[np.int64]:
    """The output of each class with most images right; of equal ones its own."""
    counts = np.zeros((classes, classes))  # (classes, outputs)
    np.add.at(counts, (labels, predicted), 1)
    _, outputs = linear_sum_assignment(counts + 1e-6 * np.eye(classes), maximize=True)
    return outputs
