"""Verdicts on claims, and conditions under which a study is informative.

A verdict follows from an interval and an adjusted p-value. The conditions that a study
does not meet are listed beside it. Findings take the numbers of notebook 04 by name.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from helpers.statistics.claims import PAIRED, SIDES, Claim
from helpers.statistics.correlate import CONFIGURATION, LEVEL
from helpers.statistics.gap_tables import ended_by_a_rule
from helpers.statistics.permutation import holm

ANY_MEASURE = "all"
STANDARD_ERRORS = 3
# Smallest and largest value that meets a condition, and both in words. The limits are
# conventions.
MASK = "the mask can miss"
GATES = {
    MASK: (0.05, 0.60, "mask of 5 to 60 % of the image, in the median"),
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
REPRODUCED = "reproduced"
NOT_REPRODUCED = "not reproduced"
CANNOT_BE_TESTED = "cannot be tested here"
CANNOT_TELL = "cannot tell"
NEGLIGIBLE = 0.2  # |r|, and points of saved error
SIGNIFICANT = 1 - LEVEL
_STATED = [name for name in Claim.model_fields if name not in ("arm", "control")]
# Numbers behind a verdict, by the ending of the question's column.
_NUMBERS = {
    "": "ours",
    "_low": "ours_low",
    "_high": "ours_high",
    "_p": "p",
    "_smallest": "smallest",
}
_ERROR = {"error_with_low": "error_low", "error_with_high": "error_high"}


def share_above_chance(corrected: ArrayLike) -> float:
    """Share of models whose mean value is clearly above chance.

    Args:
        corrected: (n, images) values minus those by chance, NaN where undefined.

    Returns:
        Share of models with two values or more whose mean is at least
        ``STANDARD_ERRORS`` standard errors above 0; NaN where there is no such model.
    """
    values = pd.DataFrame(np.asarray(corrected, dtype=float).T)
    values = values.loc[:, values.count() > 1]
    return float((values.mean() > STANDARD_ERRORS * values.sem()).mean())


def condition_table(
    models: pd.DataFrame,
    trained: pd.DataFrame,
    *,
    classes: int,
    of_measures: Mapping[str, Mapping[str, float]],
) -> pd.DataFrame:
    """Table of the conditions of ``GATES``, and whether the study meets them.

    Args:
        models: that are analysed.
        trained: all runs, one row each, for the conditions that networks learnt and
            finished; the accuracy of one that diverged counts as chance.
        classes: number of classes.
        of_measures: the value of each measure by condition, for those that concern
            measures.

    Returns:
        gate (the condition), concerns (a measure, or "all"), value, limit, and passes,
        which is False for NaN.
    """
    chance = 1 / classes
    accuracy = trained["test_accuracy"].fillna(chance).median()
    most, least = models["gap"].quantile([0.9, 0.1])
    of_study = {
        "gaps differ": 100 * (most - least),
        "networks learnt": (accuracy - chance) / (1 - chance),
        "networks finished": ended_by_a_rule(trained).mean(),
        "enough configurations": models[CONFIGURATION].nunique(),
    }
    values = dict(of_measures)
    values |= {gate: {ANY_MEASURE: value} for gate, value in of_study.items()}
    rows = [
        (gate, name, float(value), *GATES[gate])
        for gate, by_measure in values.items()
        for name, value in by_measure.items()
    ]
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
    p: float,
    expected: int,
    negligible: float = NEGLIGIBLE,
    significant: float = SIGNIFICANT,
) -> str:
    """The verdict on the claim that a correlation or a difference has a sign.

    Args:
        low: lower end of the interval.
        high: its upper end.
        p: adjusted for the family; 0 where the interval alone decides.
        expected: -1 for a claim that it is below 0, +1 above.
        negligible: size up to which an effect is practically none.
        significant: p below which an effect is clear.

    Returns:
        ``SUPPORTED``, ``CONTRADICTED``, ``PRACTICALLY_NONE`` or ``CANNOT_TELL``.

    Example:
        >>> verdict(-0.9, -0.2, 0.001, -1), verdict(-0.9, -0.2, 0.058, -1)
        ('supported', 'cannot tell')
    """
    if p < significant and (low > 0 or high < 0):
        return SUPPORTED if (low > 0) == (expected > 0) else CONTRADICTED
    is_negligible = low >= -negligible and high <= negligible
    return PRACTICALLY_NONE if is_negligible else CANNOT_TELL


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
        claims: of ``check_claims``; those on paired differences are left out.
        primary: the primary table, whose numbers are taken before those of the
            ranking.
        ranking: see ``ranking_table``.
        gates: see ``condition_table``.
    """
    rows = []
    for claim in sorted(claims, key=lambda claim: not claim["primary"]):
        if claim["question"] != PAIRED:
            fails = ", ".join(closed(gates, claim["measure"]))
            rows.append(claim | _answer(claim, [primary, ranking]) | {"closed": fails})
    numbers = [*_NUMBERS.values(), *_ERROR.values(), "level", "n"]
    table = pd.DataFrame(rows, columns=[*_STATED, *numbers, "closed"])
    table["level"] = table["level"].astype(float).fillna(LEVEL)
    table["n"] = table["n"].fillna(0).astype(int)
    table["p_adjusted"] = table.groupby("primary")["p"].transform(holm).astype(float)
    return table.assign(verdict=[_verdict_on_claim(row) for row in table.itertuples()])


def _answer(
    claim: Mapping[str, Any], tables: Sequence[pd.DataFrame]
) -> dict[str, float]:
    """Numbers on a claim, from the first table with its question and measure."""
    question = claim["question"]
    names = {question + ending: name for ending, name in _NUMBERS.items()}
    for table in tables:
        rows = table[table["measure"] == claim["measure"]]
        if question in table and len(rows):
            return rows.rename(columns=names | _ERROR).iloc[0].drop("measure").to_dict()
    return {}


def _verdict_on_claim(row: Any) -> str:
    """Verdict on a row of ``verdict_table``."""
    side = SIDES[row.side]
    low, high = row.ours_low, row.ours_high
    word = verdict(low, high, row.p_adjusted, side, significant=1 - row.level)
    if np.isfinite(row.published):
        if MASK in row.closed:
            return CANNOT_BE_TESTED
        falls_short = high < row.published if side > 0 else low > row.published
        if falls_short:
            return NOT_REPRODUCED
        return REPRODUCED if word == SUPPORTED else CANNOT_TELL
    if row.error_low > row.errs_at_most:
        return CONTRADICTED
    # False if the end of the interval is NaN.
    errs_as_claimed = np.isnan(row.errs_at_most) or row.error_high <= row.errs_at_most
    return CANNOT_TELL if word == SUPPORTED and not errs_as_claimed else word


def key_of(predictor: str) -> str:
    """A predictor in letters, digits and underscores.

    Args:
        predictor: a column of the models.

    Example:
        >>> key_of("curve_mean (rotation)")
        'curve_mean_rotation'
    """
    return re.sub(r"\W+", "_", predictor).strip("_")


def numbers_of_primary(primary: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    """The correlations and errors of the primary table, by name.

    Args:
        primary: see ``primary.primary_table``.

    Yields:
        Name, value, low, high and, of points, the unit: for each predictor X r_X_gap,
        r_X_gap_given_start and the like, without undefined ones; and error_X, of kinds
        held out with twins.
    """
    questions = primary.filter(regex="^r_.*_p_adjusted$").columns
    for row in primary.to_dict("records"):
        key = key_of(row["measure"])
        for question in questions.str.removesuffix("_p_adjusted"):
            if np.isfinite(row[question]):
                name = question.replace("r_", f"r_{key}_", 1)
                ends = row[f"{question}_low"], row[f"{question}_high"]
                yield name, row[question], *ends
        yield f"error_{key}", row["error_with_twins"], np.nan, np.nan, "points"
