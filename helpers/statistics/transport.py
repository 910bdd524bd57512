"""Cheapest assignment of many images to a few classes that each take a fixed number of them: exact optimal transport onto K points."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from helpers.statistics.correlations import Array

_Counts = NDArray[np.int64]
_ROUNDING = 1e-12  # of a sum of a few costs; a path that is cheaper by less is no better


def quotas(shares: Array, total: int) -> _Counts:
    """Whole numbers (K,) nearest to ``total * shares`` that sum to ``total``, by largest remainders (Hamilton); ties to the first class.

    Raises:
        ValueError: shares that are negative or do not sum to 1.
    """
    shares = np.asarray(shares, dtype=float)
    if not (shares >= 0).all() or abs(shares.sum() - 1) > 1e-9:
        raise ValueError(f"class shares are {shares.tolist()}; they must be at least 0 and sum to 1")
    # Rounded, so that 0.15 * 20 counts as 3 and leaves no remainder.
    wanted = (total * shares).round(9)
    counts = np.floor(wanted).astype(np.int64)
    counts[np.argsort(counts - wanted, kind="stable")[: total - counts.sum()]] += 1
    return counts


def least_cost(cost: Array, quota: _Counts, *, sample: int = 300, seed: int = 0) -> float:
    """Smallest total cost of giving each of n images one of K classes, class k taken ``quota[k]`` times; exact.

    Up to ``sample`` images it is a linear assignment on columns repeated by quota, whose time grows with the cube of n. Beyond, the
    assignment of a sample prices the classes; every image takes the class that is cheapest after its price, and what is too many in one
    class moves to another along shortest paths (Ahuja, Magnanti and Orlin 1993, section 9.7), each of which keeps the optimum.

    Args:
        cost: (n, K) finite.
        quota: (K,) whole numbers of at least 0 that sum to n.
        sample: images for the prices; the value does not depend on it.
        seed: of the sample.

    Raises:
        ValueError: costs that are not finite, or quotas that do not sum to n.
    """
    cost, quota = np.asarray(cost, dtype=float), np.asarray(quota)
    if cost.ndim != 2 or not np.isfinite(cost).all():
        raise ValueError(f"cost has shape {cost.shape}; it must be (images, classes) and finite")
    if quota.shape != cost.shape[1:] or (quota < 0).any() or quota.sum() != len(cost):
        raise ValueError(f"quotas {quota.tolist()} must be one per class, at least 0, and sum to the {len(cost)} images")
    cost, quota = cost[:, quota > 0], quota[quota > 0]
    if len(cost) <= sample:
        return float(cost[np.arange(len(cost)), _assigned(cost, quota)].sum())
    part = cost[np.random.default_rng(seed).permutation(len(cost))[:sample]]
    prices = _distances(_moves(part, _assigned(part, quotas(quota / quota.sum(), sample)))[0], np.zeros(len(quota)))[0]
    classes = (cost - prices).argmin(1)
    _meet(cost, classes, quota)
    return float(cost[np.arange(len(cost)), classes].sum())


def _assigned(cost: Array, quota: _Counts) -> _Counts:
    """Class of each image in an optimal assignment, (n,)."""
    columns = np.repeat(np.arange(len(quota)), quota)
    rows, chosen = linear_sum_assignment(cost[:, columns])
    return columns[chosen[np.argsort(rows)]]


def _moves(cost: Array, classes: _Counts) -> tuple[Array, _Counts]:
    """Least cost (K, K) of moving one image from class a to b, infinite where a has none, and the image that moves."""
    k = cost.shape[1]
    price, image = np.full((k, k), np.inf), np.zeros((k, k), dtype=np.int64)
    for a in range(k):
        price[a], image[a] = _moves_from(a, cost, classes)
    return price, image


def _moves_from(a: int, cost: Array, classes: _Counts) -> tuple[Array, _Counts]:
    members = np.flatnonzero(classes == a)
    if not len(members):
        return np.full(cost.shape[1], np.inf), np.zeros(cost.shape[1], dtype=np.int64)
    extra = cost[members] - cost[members, a, None]
    first = extra.argmin(0)
    return extra[first, np.arange(cost.shape[1])], members[first]


def _distances(price: Array, start: Array) -> tuple[Array, _Counts]:
    """Shortest distances from ``start`` (K,), infinite where no path begins, and the class before each on its path (Bellman and Ford)."""
    distance, before = start.copy(), np.full(len(start), -1)
    for _ in range(len(start)):
        through = distance[:, None] + price
        nearest = through.argmin(0)
        found = through[nearest, np.arange(len(start))]
        better = found < distance - _ROUNDING
        if not better.any():
            break
        distance[better], before[better] = found[better], nearest[better]
    return distance, before


def _meet(cost: Array, classes: _Counts, quota: _Counts) -> None:
    """Move images, one shortest path at a time, until every class has its quota; ``classes`` is optimal for its own counts throughout."""
    surplus = np.bincount(classes, minlength=len(quota)) - quota
    price, image = _moves(cost, classes)
    while surplus.any():
        distance, before = _distances(price, np.where(surplus > 0, 0.0, np.inf))
        end = int(np.where(surplus < 0, distance, np.inf).argmin())
        path = [end]
        while before[path[-1]] >= 0:
            path.append(int(before[path[-1]]))
        steps = [(int(image[a, b]), b) for b, a in pairwise(path)]
        for moved, b in steps:
            classes[moved] = b
        surplus[path[-1]] -= 1
        surplus[end] += 1
        for a in path:
            price[a], image[a] = _moves_from(a, cost, classes)
