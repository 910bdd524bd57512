"""Permutations of models, and p-values that follow from them.

Units that are drawn together, such as configurations, are permuted as a whole.
"""

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Rows = NDArray[np.intp]

PERMUTATIONS = 4_999
EXACT_UP_TO = 50_000  # arrangements that are all enumerated, in place of random ones
SIGNIFICANT = 0.05


def permuted_rows(
    units: ArrayLike,
    count: int,
    seed: int = 0,
    within: ArrayLike | None = None,
    exact_up_to: int = EXACT_UP_TO,
) -> Rows:
    """Rows of the models after permutations of units.

    Units of as many models change places with each other, within groups. Where there
    are few arrangements, each is listed once except the observed one.

    Args:
        units: (n,) names.
        count: number of random permutations, where there are too many for all.
        seed: of the random permutations.
        within: (n,) group of each model; None is one group.
        exact_up_to: number of arrangements up to which all are enumerated.

    Returns:
        (permutations, n) row numbers: ``gap[rows]`` is the gap under the null.

    Example:
        >>> permuted_rows(["a", "b", "c"], 4999).tolist()
        [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]]
    """
    units = np.asarray(units)
    groups = np.zeros(len(units))
    if within is not None:
        groups = pd.factorize(np.asarray(within))[0]
    blocks: dict[tuple[int, int], list[Rows]] = {}
    for unit in pd.unique(units):
        members = np.flatnonzero(units == unit)
        blocks.setdefault((groups[members[0]], len(members)), []).append(members)
    # One (units, models of each) array for each group and number of models.
    places = [np.stack(blocks[key]) for key in sorted(blocks)]
    numbers = [np.arange(len(place)) for place in places]
    if math.prod(math.factorial(len(place)) for place in places) <= exact_up_to:
        arrangements = itertools.product(*map(itertools.permutations, numbers))
        orders = [*zip(*itertools.islice(arrangements, 1, None), strict=True)]
    else:
        random = np.random.default_rng(seed)
        orders = [random.permuted(np.tile(one, (count, 1)), axis=1) for one in numbers]
    permutations = len(orders[0]) if orders else 0
    rows = np.tile(np.arange(len(units)), (permutations, 1))
    for place, order in zip(places, orders, strict=False):
        rows[:, place.ravel()] = place[np.array(order)].reshape(len(rows), -1)
    return rows


def against_chance(scores: Array) -> dict[str, Any]:
    """Compare scores with those under the null, where larger ones are more extreme.

    p is the share of all arrangements whose score is at least the observed one,
    ``(1 + count) / (1 + D)``: the 1 is the observed arrangement.

    Args:
        scores: (1 + D, M), observed ones first; a NaN below is left out.

    Returns:
        p and p_adjusted, (M,) in (0, 1], NaN where a score is undefined: adjusted for
        all measures by the single-step maxT of Westfall and Young 1993. And band, the
        least score whose p_adjusted is below 0.05, NaN of too few permutations.

    Example:
        >>> against_chance(np.array([[0.9], [0.1], [0.2], [0.95]]))["p"].tolist()
        [0.5]
    """
    observed, null = scores[0], scores[1:]
    is_defined = np.isfinite(observed)
    # A drawn copy of the observed arrangement counts, though its sums round otherwise.
    least = observed - 1e-9 * np.abs(observed)
    largest = np.fmax.reduce(null[:, is_defined], axis=1, initial=np.nan)
    largest = np.sort(largest[np.isfinite(largest)])
    # Smallest rank with (1 + draws above it) / (1 + draws) < 0.05.
    rank = int((1 - SIGNIFICANT) * (len(largest) + 1) + 1e-9)
    p = (1 + (null >= least).sum(0)) / (1 + np.isfinite(null).sum(0))
    adjusted = (1 + (largest[:, None] >= least).sum(0)) / (1 + len(largest))
    return {
        "p": np.where(is_defined, p, np.nan),
        "p_adjusted": np.where(is_defined, adjusted, np.nan),
        "band": largest[rank] if rank < len(largest) else np.nan,
    }


def holm(p: ArrayLike) -> Array:
    """P-values adjusted for the family of all, whatever their dependence; Holm 1979.

    Args:
        p: (m,); NaN does not count in the family.

    Returns:
        (m,) in [0, 1], NaN where p is.

    Example:
        >>> holm([0.01, 0.04, np.nan]).tolist()
        [0.02, 0.04, nan]
    """
    values = pd.Series(p, dtype=float).reset_index(drop=True).sort_values().dropna()
    steps = values * np.arange(len(values), 0, -1)
    return steps.cummax().clip(upper=1).reindex(range(len(p))).to_numpy()


def sign_flip_p(values: Array, groups: ArrayLike, seed: int = 0) -> Array:
    """One-sided p of each column's sum when whole groups change sign; Fisher 1935.

    Args:
        values: (n, M), NaN is left out.
        groups: (n,) names; the values of a group change sign together.
        seed: of the random choices of signs, where there are too many to try all.

    Returns:
        (M,) in (0, 1]; NaN where no value is finite.
    """
    sums = pd.DataFrame(values).groupby(np.asarray(groups)).sum().to_numpy()
    if 2 ** len(sums) <= PERMUTATIONS + 1:
        signs = np.array([*itertools.product([1, -1], repeat=len(sums))])
    else:
        random = np.random.default_rng(seed)
        signs = random.choice([-1, 1], size=(PERMUTATIONS, len(sums)))
        signs = np.vstack([np.ones(len(sums)), signs])
    p = against_chance(signs @ sums)["p"]
    return np.where(np.isfinite(values).any(0), p, np.nan)
