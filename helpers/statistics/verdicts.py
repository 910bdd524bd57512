"""What a study says to each claim: five verdicts, from the gates, the interval and the adjusted p-value."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from helpers.statistics.claims import SIDES, check_claims
from helpers.statistics.gates import failed
from helpers.statistics.permutation import holm

SUPPORTED, CONTRADICTED, PRACTICALLY_NONE = "supported", "contradicted", "practically none"
CANNOT_TELL, NOT_TESTED = "cannot tell", "not tested here"
NEGLIGIBLE = 0.2  # |r|, and points of added error
SIGNIFICANT = 0.05
CLAIM_COLUMNS = [
    "claim",
    "primary",
    "source",
    "published",
    "ours",
    "ci_low",
    "ci_high",
    "p_adjusted",
    "smallest_r",
    "n",
    "verdict",
    "table",
]


def verdict(side: int, low: float, high: float, p_adjusted: float, *, may_speak: bool = True) -> str:
    """One of the five verdicts on a claim that a statistic is below (-1) or above (+1) 0.

    "not tested here" behind a closed gate, whatever the numbers; "supported" and "contradicted" where interval and adjusted p agree;
    "practically none" for an interval within ±``NEGLIGIBLE``; else "cannot tell", as with no interval.

    Args:
        side: -1 or +1.
        low: lower end of the 95 % interval.
        high: upper end.
        p_adjusted: for the family of claims.
        may_speak: all gates that concern the claim are passed.

    Raises:
        ValueError: another side.
    """
    if side not in (-1, 1):
        raise ValueError(f"side {side!r} must be -1 (below 0) or +1 (above 0)")
    if not may_speak:
        return NOT_TESTED
    if p_adjusted < SIGNIFICANT and (low > 0 or high < 0):
        return SUPPORTED if (low > 0) == (side > 0) else CONTRADICTED
    return PRACTICALLY_NONE if low >= -NEGLIGIBLE and high <= NEGLIGIBLE else CANNOT_TELL


def judged(claims: Sequence[Mapping[str, Any]], ranking: pd.DataFrame, gates: pd.DataFrame) -> pd.DataFrame:
    """Verdict on every claim of a study file, with the numbers it stands on.

    P-values are those of the claim alone, adjusted by Holm within their family: the primary claims are one, the secondary of each table
    another.

    Args:
        claims: see ``claims.check_claims``; the table is "measures_ranking" where none is named.
        ranking: see ``questions.ranking_table``.
        gates: see ``gates.gate_table``.

    Returns:
        ``CLAIM_COLUMNS``, in the order of the claims; smallest_r is in the unit of ours: points for added error.

    Raises:
        ValueError: see ``claims.check_claims``.
    """
    check_claims(claims, list(ranking["measure"]))
    rows = []
    for claim in claims:
        question = claim["question"]
        row = ranking[ranking["measure"] == claim["measure"]].iloc[0]
        rows.append(
            {
                "claim": claim["claim"],
                "primary": bool(claim.get("primary", False)),
                "source": claim.get("source", ""),
                "published": claim.get("published", np.nan),
                "ours": row[question],
                "ci_low": row[f"{question}_low"],
                "ci_high": row[f"{question}_high"],
                "p_adjusted": row[f"{question}_p"],
                "smallest_r": row[f"{question}_smallest"],
                "n": int(row["n"]),
                "table": claim.get("table", "measures_ranking"),
            }
        )
    table = pd.DataFrame(rows, columns=[name for name in CLAIM_COLUMNS if name != "verdict"])
    family = table["table"].where(~table["primary"], "")
    table["p_adjusted"] = table.groupby(family)["p_adjusted"].transform(holm).astype(float)
    table["verdict"] = [
        verdict(SIDES[claim["side"]], row.ci_low, row.ci_high, row.p_adjusted, may_speak=not failed(gates, [claim["measure"]]))
        for claim, row in zip(claims, table.itertuples(), strict=True)
    ]
    return table[CLAIM_COLUMNS]
