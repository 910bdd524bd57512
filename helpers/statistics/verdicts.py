"""What a study says to each claim, from intervals and adjusted p-values, and gates: conditions that a reader is to know beside it."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from helpers.statistics.claims import PAIRED, SIDES
from helpers.statistics.correlations import finite_mean
from helpers.statistics.draws import LEVEL
from helpers.statistics.permutation import holm
from helpers.statistics.primary import ended_by_a_rule

ANY_MEASURE = "all"
STANDARD_ERRORS = 3
GATES = {  # least, most, and the same in words: conventions, but for the central map, which is a matter of principle
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

SUPPORTED, CONTRADICTED, PRACTICALLY_NONE = (
    "supported",
    "contradicted",
    "practically none",
)
SMALLER, LARGER = "smaller", "larger"  # the gap of networks with larger values
REPRODUCED, NOT_REPRODUCED, CANNOT_TELL = "reproduced", "not reproduced", "cannot tell"
NEGLIGIBLE = 0.2  # |r|, and points of saved error
SIGNIFICANT = 1 - LEVEL
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


def share_above_chance(corrected: ArrayLike) -> float:
    """Share of models whose values less their chance, (n, images), have a mean of ``STANDARD_ERRORS`` above 0."""
    values = np.asarray(corrected, dtype=float).T
    count = np.isfinite(values).sum(0)
    values, count = values[:, count > 1], count[count > 1]
    error = np.sqrt(finite_mean((values - finite_mean(values)) ** 2) / (count - 1))
    return (
        float((finite_mean(values) > STANDARD_ERRORS * error).mean())
        if len(count)
        else np.nan
    )


def gate_table(
    models: pd.DataFrame,
    trained: pd.DataFrame,
    *,
    classes: int,
    floor: float,
    mask_areas: Mapping[str, ArrayLike],
    corrected: Mapping[str, ArrayLike] | None = None,
    beats_central_map: Mapping[str, float] | None = None,
    reliabilities: Mapping[str, float] | None = None,
) -> pd.DataFrame:
    """Whether each condition of a study holds, and which measure, or "all", it concerns; a value that is not known does not pass.

    Whether networks learnt and finished is read of all ``trained``, one row a run, the analysed ``models`` among them; one that diverged is
    at chance. ``floor`` is the mean area of the boxes. By measure: areas of masks, fractions of the image; (n, images) values less their
    chance; share of models above one fixed central map.
    """
    above_chance = (
        trained["test_accuracy"].fillna(1 / classes).median() - 1 / classes
    ) / (1 - 1 / classes)
    found = {
        "the mask can miss": {
            name: pd.Series(np.ravel(values)).median()
            for name, values in mask_areas.items()
        },
        "boxes leave room": dict.fromkeys(mask_areas, floor),
        "beats a fixed central map": beats_central_map or {},
        "the map depends on the image": {
            name: share_above_chance(values)
            for name, values in (corrected or {}).items()
        },
        "models differ": reliabilities or {},
        "gaps differ": {
            ANY_MEASURE: 100
            * (models["gap"].quantile(0.9) - models["gap"].quantile(0.1))
        },
        "networks learnt": {ANY_MEASURE: above_chance},
        "networks finished": {ANY_MEASURE: ended_by_a_rule(trained).mean()},
        "enough configurations": {ANY_MEASURE: models["cell"].nunique()},
    }
    rows = [
        (gate, name, float(value), *GATES[gate])
        for gate, values in found.items()
        for name, value in values.items()
    ]
    table = pd.DataFrame(
        rows, columns=["gate", "concerns", "value", "least", "most", "limit"]
    )
    table["passes"] = table["value"].round(9).between(table["least"], table["most"])
    return table.drop(columns=["least", "most"])


def closed(gates: pd.DataFrame, measure: str) -> list[str]:
    """Gates that a measure, or the study, does not pass, in the table's order."""
    return list(
        gates.loc[
            gates["concerns"].isin([ANY_MEASURE, measure]) & ~gates["passes"], "gate"
        ]
    )


def verdict(
    side: int,
    low: float,
    high: float,
    p: float,
    published: float,
    *,
    significant: float = SIGNIFICANT,
) -> str:
    """Verdict on a claim that a statistic is below (-1) or above (+1) 0, from its interval and its p-value for the family of claims.

    A published value is not reproduced where the interval does not reach it.
    """
    clear = p < significant and (low > 0 or high < 0)
    if np.isfinite(published):
        if (high < published) if side > 0 else (low > published):
            return NOT_REPRODUCED
        return REPRODUCED if clear and (low > 0) == (side > 0) else CANNOT_TELL
    if clear:
        return SUPPORTED if (low > 0) == (side > 0) else CONTRADICTED
    return (
        PRACTICALLY_NONE if low >= -NEGLIGIBLE and high <= NEGLIGIBLE else CANNOT_TELL
    )


def direction(low: float, high: float, p: float, significant: float) -> str:
    """Whether networks with larger values of a measure have smaller gaps.

    Args:
        low: lower end of the interval of a correlation with the gap.
        high: its upper end.
        p: of that correlation, adjusted for the number of measures.
        significant: p below which a side is named.

    Returns:
        ``SMALLER``, ``LARGER`` or ``CANNOT_TELL``.

    Example:
        >>> direction(-0.9, -0.2, 0.001, 0.05)
        'smaller'
        >>> direction(-0.9, -0.2, 0.058, 0.05)
        'cannot tell'
    """
    if p < significant and high < 0:
        return SMALLER
    if p < significant and low > 0:
        return LARGER
    return CANNOT_TELL


def word(row: pd.Series, question: str, claims: pd.DataFrame | None = None) -> str:
    """The gap of networks with larger values of a measure, wherever this is written.

    Args:
        row: of the primary table.
        question: a correlation of that table, such as "r_gap_given_start".
        claims: the judged claims of the study, see ``judged``; where one asks this of
            the measure, its p among all claims decides.

    Returns:
        ``SMALLER``, ``LARGER`` or ``CANNOT_TELL``.
    """
    p = row[f"{question}_p_adjusted"]
    if claims is not None and len(claims):
        same_measure = claims["measure"].eq(row["measure"])
        asked = claims[same_measure & claims["question"].eq(question)]
        if len(asked):
            p = asked["p_adjusted"].iloc[0]
    ends = row[f"{question}_low"], row[f"{question}_high"]
    return direction(*ends, p, 1 - row["level"])


def judged(
    claims: Sequence[Mapping[str, Any]],
    primary: pd.DataFrame,
    ranking: pd.DataFrame,
    gates: pd.DataFrame,
) -> pd.DataFrame:
    """What a study says to every claim, with the numbers that this stands on; the primary table answers before the ranking.

    Primary claims stand first and are one family of Holm's, the others another. A claim with ``errs_at_most`` is contradicted
    where the whole interval of the error lies above it.
    """
    rows = []
    of_models = [claim for claim in claims if claim["question"] != PAIRED]
    for claim in sorted(of_models, key=lambda claim: not claim.get("primary", False)):
        name, question = claim["measure"], claim["question"]
        tables = (
            table.set_index("measure")
            for table in (primary, ranking)
            if question in table
        )
        row = next(
            (table.loc[name] for table in tables if name in table.index),
            pd.Series({"n": 0}),
        )
        facts = [
            row.get(f"{question}{end}", np.nan) for end in ("", "_low", "_high", "_p")
        ]
        facts += [
            row.get("level", LEVEL),
            row.get("error_with_low", np.nan),
            row.get("error_with_high", np.nan),
            int(row["n"]),
        ]
        stated = {
            "primary": False,
            "source": "",
            "published": np.nan,
            "errs_at_most": np.nan,
        } | claim
        rows.append(
            [
                *(stated[item] for item in _STATED),
                *facts,
                ", ".join(closed(gates, name)),
            ]
        )
    found = pd.DataFrame(
        rows,
        columns=[
            *_STATED,
            "ours",
            "ours_low",
            "ours_high",
            "p",
            "level",
            "error_low",
            "error_high",
            "n",
            "closed",
        ],
    )
    found["p_adjusted"] = found.groupby("primary")["p"].transform(holm).astype(float)
    return found.assign(verdict=[_of_claim(row) for row in found.itertuples()])


def _of_claim(row: Any) -> str:
    found = verdict(
        SIDES[row.side],
        row.ours_low,
        row.ours_high,
        row.p_adjusted,
        row.published,
        significant=1 - row.level,
    )
    if row.error_low > row.errs_at_most:
        return CONTRADICTED
    unsure = np.isfinite(row.errs_at_most) and not row.error_high <= row.errs_at_most
    return CANNOT_TELL if found == SUPPORTED and unsure else found
