"""How much a measure tells about the order of two gaps once their hyperparameters are known: the score of the PGDL competition."""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import entr, rel_entr

from helpers.statistics.correlations import Array, finite_groups, kendall
from helpers.statistics.hyperparameters import Codes, cell_means, joint_codes, level_codes

Hyperparameters = pd.DataFrame | Mapping[str, ArrayLike]


# Above this many cells of the grid a sample of them is taken: all ordered pairs of 3,000 are nine million.
CELL_LIMIT = 3_000


class ConditionalInformation(NamedTuple):
    """Conditional mutual information of one measure with the gap."""

    score: float  # the smallest defined value of per_set; in parity the smallest of all
    per_set: dict[tuple[str, ...], float]  # set of hyperparameters that are known -> share of the entropy that is explained
    empty_cells: int  # cells of pairs, over all sets, in which no pair of models lies
    kendall: float  # tau-b of measure and gap over the cells used; the score itself does not tell a good measure from a reversed one
    n: int  # models used
    dropped: int  # models left out because measure or gap is not finite
    cells: int  # distinct cells of the grid
    cells_used: int  # fewer than cells where a sample was taken


def conditional_mutual_information(
    measure: ArrayLike, gap: ArrayLike, hyperparameters: Hyperparameters, *, parity: bool = False, seed: int = 0
) -> ConditionalInformation:
    """Share of the uncertainty about which of two models has the larger gap that a measure removes; Jiang et al. 2020, PGDL.

    For a set S of hyperparameters the ordered pairs (a, b) of models fall into cells u by the values of S in a and in b. With
    ``V_g = 1[gap_a > gap_b]`` and ``V_mu = 1[measure_a > measure_b]`` (a tie gives 0), ``score_S = mean_u I(V_g; V_mu | u) / mean_u
    H(V_g | u)``, and the score is the smallest over the sets: a measure that only echoes some hyperparameter scores low where that is
    known. A larger score is better: 0 says nothing, 1 tells all. It has no sign, see ``kendall`` in the record. With few pairs in a cell
    chance alone explains a part, so scores compare only between measures on the same models.

    The default takes all sets of at most two hyperparameters, averages the models of one cell of the grid first, pairs no model with
    itself and skips cells without a pair, so that the grid may have holes. A set where every cell of pairs is certain has no entropy and
    is NaN; it does not enter the minimum.

    Args:
        measure: (n,) one value per model.
        gap: (n,) train minus test accuracy.
        hyperparameters: name -> (n,) values; floats are equal within 1e-9, relative. Those with one level are left out.
        parity: True computes what the scoring program of the competition does: sets of exactly two, self-pairs counted, and
            ``H = -sum p log2(p + 1e-12)``, so that a constant gap scores 0. NaN for fewer than two hyperparameters, or an empty cell.
        seed: of the sample that is taken of more than ``CELL_LIMIT`` cells.

    Returns:
        The record; scores in [0, 1] up to rounding, NaN where undefined, such as fewer than two cells or a constant gap.

    Raises:
        ValueError: arrays that are not of one length, a missing hyperparameter, or in parity a grid with holes or repeats.
    """
    measure = np.asarray(measure, dtype=float)
    if measure.ndim != 1:
        raise ValueError(f"measure needs one value per model, got shape {measure.shape}")
    return conditional_information_of_many(measure[:, None], gap, hyperparameters, parity=parity, seed=seed)[0]


def pgdl_score(measure: ArrayLike, gap: ArrayLike, hyperparameters: Hyperparameters) -> float:
    """Score of one task of the PGDL competition: 100 times ``conditional_mutual_information`` in parity, which says the rest.

    In [0, 100], larger is better; NaN where that is undefined, ValueError where that raises it.
    """
    return 100 * conditional_mutual_information(measure, gap, hyperparameters, parity=True).score


def conditional_information_of_many(
    measures: ArrayLike, gap: ArrayLike, hyperparameters: Hyperparameters, *, parity: bool = False, seed: int = 0
) -> list[ConditionalInformation]:
    """Compute ``conditional_mutual_information`` of many measures of the same models; what depends on the grid is computed once.

    Measures are (n, M), one column per measure; the other arguments and the errors are as there. Returns M records, in order.
    """
    measures, gap = np.asarray(measures, dtype=float), np.asarray(gap, dtype=float)
    if gap.ndim != 1 or measures.ndim != 2 or len(measures) != len(gap):
        raise ValueError(f"measures need a row and gap a value per model, got shapes {measures.shape} and {gap.shape}")
    levels = {name: _levels(name, values, len(gap)) for name, values in hyperparameters.items()}
    levels = {name: codes for name, codes in levels.items() if codes.max(initial=0) > 0}
    if parity:
        _require_grid(levels, len(gap))
    found: dict[int, ConditionalInformation] = {}
    for kept, columns in finite_groups(measures, gap[None]):
        records = _records(measures[:, columns], gap, levels, kept, parity, seed)
        found |= dict(zip(columns.tolist(), records, strict=True))
    return [found[column] for column in range(measures.shape[1])]


def information_table(
    catalogue: pd.DataFrame, measures: Mapping[str, int], axes: Sequence[str], *, parity: bool = False, seed: int = 0
) -> pd.DataFrame:
    """Tabulate the conditional mutual information of the measures of a catalogue.

    Args:
        catalogue: one row per model: gap, the axes and a column per measure.
        measures: column to direction, +1 when a larger value promises a smaller gap, else -1.
        axes: the hyperparameters.
        parity, seed: as for ``conditional_mutual_information``.

    Returns:
        One row per measure: score in [0, 1], limiting_set (the hyperparameters where it is smallest, joined by " + "; "" for none of
        them), kendall (-direction times tau-b, positive for a measure that works), empty_cells, n, dropped, cells, cells_used.

    Raises:
        ValueError: as there, an absent column, or a direction that is not +1 or -1.
    """
    if absent := [name for name in ("gap", *axes, *measures) if name not in catalogue]:
        raise ValueError(f"the catalogue has no column {', '.join(absent)}")
    if odd := {name: direction for name, direction in measures.items() if direction not in (1, -1)}:
        raise ValueError(f"directions {odd} must be +1 (larger is better) or -1 (larger is worse)")
    records = conditional_information_of_many(catalogue[list(measures)], catalogue["gap"], catalogue[list(axes)], parity=parity, seed=seed)
    rows = []
    for (name, direction), record in zip(measures.items(), records, strict=True):
        limiting = [" + ".join(names) for names, score in record.per_set.items() if score == record.score]
        row = {"measure": name, "score": record.score, "limiting_set": limiting[0] if limiting else None}
        counts = {field: getattr(record, field) for field in ("empty_cells", "n", "dropped", "cells", "cells_used")}
        rows.append(row | {"kendall": -direction * record.kendall} | counts)
    return pd.DataFrame(rows)


def _levels(name: str, values: ArrayLike, models: int) -> Codes:
    """Number the levels of a hyperparameter, which must have one value per model."""
    if np.shape(values) != (models,):
        raise ValueError(f"hyperparameter {name!r} needs one value per model, got shape {np.shape(values)} for {models} models")
    return level_codes(name, values)


def _require_grid(levels: Mapping[str, Codes], models: int) -> None:
    full = math.prod(int(codes.max()) + 1 for codes in levels.values())
    present = len(np.unique(joint_codes(list(levels.values()), models)))
    if not models == present == full:
        raise ValueError(
            f"the competition's score needs every cell of the grid exactly once, got {models} models in {present} of {full} cells; "
            "use parity=False, which averages repeats and allows holes"
        )


class _Condition(NamedTuple):
    """What is known about the pairs of cells when some hyperparameters are: K kinds of cells, K x K cells of pairs."""

    codes: Codes  # (C,) the kind of each cell of the grid
    possible: int  # cells of pairs of a full grid
    pairs: Array  # (K, K) pairs in each cell of pairs
    larger_gap: Array  # (K, K) of these, pairs where the first has the larger gap


def _records(
    measures: Array, gap: Array, levels: Mapping[str, Codes], kept: NDArray[np.bool_], parity: bool, seed: int
) -> list[ConditionalInformation]:
    sizes = {name: int(codes.max()) + 1 for name, codes in levels.items()}
    levels = {name: codes[kept] for name, codes in levels.items()}
    values = np.column_stack([gap, measures])[kept]
    cells = joint_codes(list(levels.values()), len(values))
    first = np.unique(cells, return_index=True)[1]
    values = values[first] if parity else cell_means(values, cells)
    used = np.arange(len(first))
    if len(first) > CELL_LIMIT:
        used = np.sort(np.random.default_rng(seed).choice(used, CELL_LIMIT, replace=False))
    counts = {"n": len(cells), "dropped": int((~kept).sum()), "cells": len(first), "cells_used": len(used)}
    gap, measures, first = values[used, 0], values[used, 1:], first[used]
    larger_gap, conditions = _larger(gap), {}
    for names in (names for size in ((2,) if parity else (0, 1, 2)) for names in combinations(levels, size)):
        codes, possible = joint_codes([levels[name][first] for name in names], len(first)), math.prod(sizes[name] for name in names) ** 2
        kinds = np.bincount(codes).astype(float)
        pairs = np.outer(kinds, kinds) - (0 if parity else np.diag(kinds))
        conditions[names] = _Condition(codes, possible, pairs, _block_sums(larger_gap, codes, pairs))
    empty = sum(condition.possible - int(np.count_nonzero(condition.pairs)) for condition in conditions.values())
    records = []
    for measure in measures.T:
        larger = _larger(measure)
        both = larger * larger_gap
        per_set = {names: _explained(condition, larger, both, parity) for names, condition in conditions.items()}
        scores = np.array(list(per_set.values()))
        score = np.nan if not len(scores) else scores.min() if parity else np.fmin.reduce(scores)
        records.append(ConditionalInformation(float(score), per_set, empty, float(kendall(measure, gap)[0]), **counts))
    return records


def _larger(values: Array) -> NDArray[np.float32]:
    """1 for the ordered pairs where the first value is larger, else 0, as for a value and itself: (C,) -> (C, C)."""
    return np.greater.outer(values, values).astype(np.float32)


def _block_sums(table: NDArray[np.float32], codes: Codes, pairs: Array) -> Array:
    """Sums of a table of pairs over each cell of pairs: (C, C) -> (K, K); zeros when no cell has two pairs, which need no sums."""
    if pairs.max(initial=0) < 2:
        return np.zeros_like(pairs)
    members = np.equal.outer(codes, np.arange(len(pairs))).astype(np.float32)
    # Single precision holds whole numbers exactly up to 16.7 million, and 3,000 cells have nine million pairs.
    return (members.T @ table @ members).astype(float)


def _explained(condition: _Condition, larger: NDArray[np.float32], both: NDArray[np.float32], parity: bool) -> float:
    """Ratio of the mean information to the mean entropy over cells of pairs."""
    # One pair alone is certain and adds to neither mean; the competition's 1e-12 is not exact about that.
    chosen = condition.pairs > (0 if parity else 1)
    if not chosen.any() or (parity and chosen.sum() < condition.possible):
        return np.nan
    by_measure, by_both = (_block_sums(table, condition.codes, condition.pairs)[chosen] for table in (larger, both))
    pairs, by_gap = condition.pairs[chosen], condition.larger_gap[chosen]
    joint = [pairs - by_gap - by_measure + by_both, by_measure - by_both, by_gap - by_both, by_both]
    outcomes = (*joint, pairs - by_gap, by_gap, pairs - by_measure, by_measure)
    # Shares are quotients of whole numbers, not sums of shares, so that a certain outcome has exactly 1 and no entropy.
    joint, gap, measure = np.split(np.stack(outcomes) / pairs, [4, 6])
    information = rel_entr(joint, np.repeat(gap, 2, axis=0) * np.tile(measure, (2, 1))).sum() / np.log(2)
    if parity:
        return float(information / -(gap * np.log2(gap + 1e-12)).sum())
    entropy = entr(gap).sum() / np.log(2)
    return float(np.clip(information / entropy, 0, 1)) if entropy > 0 else np.nan
