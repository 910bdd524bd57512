"""Verdicts on claims, and conditions under which a study is informative.

A verdict follows from an interval and an adjusted p-value. The conditions that a study
does not meet are listed beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from helpers.statistics.claims import PAIRED, SIDES
from helpers.statistics.correlate import CONFIGURATION, LEVEL, finite_mean, holm
from helpers.statistics.gap_tables import ended_by_a_rule

ANY_MEASURE = "all"
STANDARD_ERRORS = 3
# Smallest and largest value that meets a condition, and both in words. The limits are
# conventions.
GATES = {
    "the mask can miss": (0.05, 0.60, "mask of 5 to 60 % of the image, in the median"),
    "boxes leave room": (0, 0.40, "whole image scores at most 0.40"),
    "beats a fixed central map": (0.5, inf, "50 % of models above a fixed central map"),
    "the map depends on the image": (
        0.5,
        inf,
        f"{STANDARD_ERRORS} standard errors above chance in 50 % of models",
    ),
    "models differ": (0.8, inf, "reliability at least 0.8"),
    "gaps differ": (20, inf, "10th to 90th percentile at least 20 points"),
    "networks learnt": (
        0.4,
        inf,
        "median test accuracy at least 0.4 of the way from chance to 1",
    ),
    "networks finished": (0.8, inf, "at least 80 % stopped by a rule"),
    "enough configurations": (40, inf, "at least 40 configurations"),
}

SUPPORTED = "supported"
CONTRADICTED = "contradicted"
PRACTICALLY_NONE = "practically none"
SMALLER = "smaller"  # the gap of networks with larger values
LARGER = "larger"
REPRODUCED = "reproduced"
NOT_REPRODUCED = "not reproduced"
CANNOT_TELL = "cannot tell"
NEGLIGIBLE = 0.2  # |r|, and points of saved error
SIGNIFICANT = 1 - LEVEL
# Values of the items that a claim may leave out.
_DEFAULTS = {
    "primary": False,
    "source": "",
    "published": np.nan,
    "errs_at_most": np.nan,
}
_STATED = (
    "claim",
    "primary",
    "measure",
    "question",
    "side",
    "source",
    "published",
    "errs_at_most",
)
# Columns of the numbers behind a verdict.
_NUMBERS = (
    "ours",
    "ours_low",
    "ours_high",
    "p",
    "level",
    "smallest",
    "error_low",
    "error_high",
    "n",
)


def share_above_chance(corrected: ArrayLike) -> float:
    """Share of models whose mean value is clearly above chance.

    Args:
        corrected: (n, images) values minus those by chance, NaN where undefined.

    Returns:
        Share of models with two values or more whose mean is at least
        ``STANDARD_ERRORS`` standard errors above 0; NaN where there is no such model.
    """
    values = np.asarray(corrected, dtype=float).T  # (images, n)
    count = np.isfinite(values).sum(0)
    values = values[:, count > 1]
    count = count[count > 1]
    if not len(count):
        return np.nan
    mean = finite_mean(values)
    # Of n values: the mean of squares over n - 1 is the sample variance over n.
    standard_error = np.sqrt(finite_mean((values - mean) ** 2) / (count - 1))
    return float((mean > STANDARD_ERRORS * standard_error).mean())


@dataclass(frozen=True)
class OverlapFacts:
    """Facts about the overlap of maps and boxes that conditions need.

    Attributes:
        floor: mean IoU of a mask of the whole image, which is the share of the image in
            its boxes; NaN without boxes.
        mask_areas: by measure, (n,) areas of masks, fractions of the image.
        corrected: by measure, (n, images) values minus those by chance.
        above_central_map: by measure, share of models above one fixed central map.
    """

    floor: float
    mask_areas: Mapping[str, ArrayLike] = field(default_factory=dict)
    corrected: Mapping[str, ArrayLike] = field(default_factory=dict)
    above_central_map: Mapping[str, float] = field(default_factory=dict)


def condition_table(
    models: pd.DataFrame,
    trained: pd.DataFrame,
    *,
    classes: int,
    overlaps: OverlapFacts,
    reliabilities: Mapping[str, float] | None = None,
) -> pd.DataFrame:
    """Table of the conditions of ``GATES``, and whether the study meets them.

    Args:
        models: that are analysed.
        trained: all runs, one row each, for the conditions that networks learnt and
            finished; the accuracy of one that diverged counts as chance.
        classes: number of classes.
        overlaps: of maps and boxes.
        reliabilities: by measure.

    Returns:
        gate (the condition), concerns (a measure, or "all"), value, limit, and passes,
        which is False for NaN.
    """
    chance = 1 / classes
    accuracy = trained["test_accuracy"].fillna(chance).median()
    most, least = models["gap"].quantile([0.9, 0.1])
    medians = {
        name: pd.Series(np.ravel(values)).median()
        for name, values in overlaps.mask_areas.items()
    }
    above_chance = {
        name: share_above_chance(values) for name, values in overlaps.corrected.items()
    }
    values = {
        "the mask can miss": medians,
        "boxes leave room": dict.fromkeys(overlaps.mask_areas, overlaps.floor),
        "beats a fixed central map": overlaps.above_central_map,
        "the map depends on the image": above_chance,
        "models differ": reliabilities or {},
        "gaps differ": {ANY_MEASURE: 100 * (most - least)},
        "networks learnt": {ANY_MEASURE: (accuracy - chance) / (1 - chance)},
        "networks finished": {ANY_MEASURE: ended_by_a_rule(trained).mean()},
        "enough configurations": {ANY_MEASURE: models[CONFIGURATION].nunique()},
    }
    rows = []
    for gate, by_measure in values.items():
        for name, value in by_measure.items():
            rows.append((gate, name, float(value), *GATES[gate]))
    columns = ["gate", "concerns", "value", "least", "most", "limit"]
    table = pd.DataFrame(rows, columns=columns)
    table["passes"] = table["value"].round(9).between(table["least"], table["most"])
    return table.drop(columns=["least", "most"])


def closed(gates: pd.DataFrame, measure: str) -> list[str]:
    """Conditions that a measure or the study does not meet, in the table's order.

    Args:
        gates: a row per condition: gate, concerns and passes.
        measure: its column.
    """
    concerned = gates["concerns"].isin([ANY_MEASURE, measure])
    return list(gates.loc[concerned & ~gates["passes"], "gate"])


def verdict(
    low: float,
    high: float,
    p: float = 0,
    expected: int = 0,
    negligible: float = NEGLIGIBLE,
    significant: float = SIGNIFICANT,
) -> str:
    """The verdict on a correlation or a difference, in the words of all texts.

    Args:
        low: lower end of the interval.
        high: its upper end.
        p: adjusted for the family; 0 where the interval alone decides.
        expected: -1 for a claim that it is below 0, +1 above, 0 without a claim.
        negligible: size up to which an effect is practically none.
        significant: p below which an effect is clear.

    Returns:
        ``SUPPORTED`` or ``CONTRADICTED`` of a claim, without one ``SMALLER`` (below 0)
        or ``LARGER``; ``PRACTICALLY_NONE`` or ``CANNOT_TELL``.

    Example:
        >>> verdict(-0.9, -0.2, 0.001), verdict(-0.9, -0.2, 0.058)
        ('smaller', 'cannot tell')
        >>> verdict(-0.9, -0.2, 0.001, expected=1)
        'contradicted'
    """
    if p < significant and (low > 0 or high < 0):
        sign = 1 if low > 0 else -1
        if expected:
            return SUPPORTED if sign == np.sign(expected) else CONTRADICTED
        return LARGER if sign > 0 else SMALLER
    is_negligible = low >= -negligible and high <= negligible
    return PRACTICALLY_NONE if is_negligible else CANNOT_TELL


def word(row: pd.Series, question: str, claims: pd.DataFrame | None = None) -> str:
    """Verdict on the gap of networks with larger values of a measure.

    Args:
        row: of the primary table.
        question: a correlation of that table, such as "r_gap_given_start".
        claims: the judged claims of the study, see ``verdict_table``; if one asks this
            question of the measure, the p adjusted for the claims is used.

    Returns:
        See ``verdict``.
    """
    p = row[f"{question}_p_adjusted"]
    if claims is not None and len(claims):
        same_measure = claims["measure"].eq(row["measure"])
        asked = claims[same_measure & claims["question"].eq(question)]
        if len(asked):
            p = asked["p_adjusted"].iloc[0]
    low, high = row[f"{question}_low"], row[f"{question}_high"]
    return verdict(low, high, p, significant=1 - row["level"])


def verdict_table(
    claims: Sequence[Mapping[str, Any]],
    primary: pd.DataFrame,
    ranking: pd.DataFrame,
    gates: pd.DataFrame,
) -> pd.DataFrame:
    """The verdict on every claim, with the numbers behind it.

    Primary claims stand first. P-values are adjusted by Holm over the primary claims,
    and over the others. A claim with ``errs_at_most`` is contradicted if the whole
    interval of the error lies above that value.

    Args:
        claims: as a study file states them; those on paired differences are left out.
        primary: the primary table, whose numbers are taken before those of the
            ranking.
        ranking: see ``ranking_table``.
        gates: see ``condition_table``.
    """
    of_models = [claim for claim in claims if claim["question"] != PAIRED]
    of_models.sort(key=lambda claim: not claim.get("primary", False))
    rows = []
    for claim in of_models:
        stated = _DEFAULTS | claim
        answer = _answer(claim, [primary, ranking])
        not_met = ", ".join(closed(gates, claim["measure"]))
        row = {name: stated[name] for name in _STATED} | answer
        rows.append(row | {"closed": not_met})
    table = pd.DataFrame(rows, columns=[*_STATED, *_NUMBERS, "closed"])
    table["p_adjusted"] = table.groupby("primary")["p"].transform(holm).astype(float)
    return table.assign(verdict=[_verdict_on_claim(row) for row in table.itertuples()])


def _answer(
    claim: Mapping[str, Any], tables: Sequence[pd.DataFrame]
) -> dict[str, float | int]:
    """``_NUMBERS`` on a claim, from the first table with its question and measure."""
    question = claim["question"]
    row = pd.Series({"n": 0})
    for table in tables:
        is_measure = table["measure"].eq(claim["measure"])
        if question in table and is_measure.any():
            row = table[is_measure].iloc[0]
            break
    return {
        "ours": row.get(question, np.nan),
        "ours_low": row.get(f"{question}_low", np.nan),
        "ours_high": row.get(f"{question}_high", np.nan),
        "p": row.get(f"{question}_p", np.nan),
        "level": row.get("level", LEVEL),
        "smallest": row.get(f"{question}_smallest", np.nan),
        "error_low": row.get("error_with_low", np.nan),
        "error_high": row.get("error_with_high", np.nan),
        "n": int(row["n"]),
    }


def _verdict_on_claim(row: Any) -> str:
    """Verdict on a row of ``verdict_table``."""
    side = SIDES[row.side]
    ends = row.ours_low, row.ours_high
    word_of_claim = verdict(*ends, row.p_adjusted, side, significant=1 - row.level)
    if np.isfinite(row.published):
        falls_short = ends[1] < row.published if side > 0 else ends[0] > row.published
        if falls_short:
            return NOT_REPRODUCED
        return REPRODUCED if word_of_claim == SUPPORTED else CANNOT_TELL
    if np.isfinite(row.errs_at_most):
        if row.error_low > row.errs_at_most:
            return CONTRADICTED
        errs_as_claimed = row.error_high <= row.errs_at_most  # False if the end is NaN
        if word_of_claim == SUPPORTED and not errs_as_claimed:
            return CANNOT_TELL
    return word_of_claim
