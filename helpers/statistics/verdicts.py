"""What a study says to each claim: five verdicts, from the gates, the interval and the adjusted p-value."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from helpers.statistics.claims import SIDES, check_claims
from helpers.statistics.gates import failed
from helpers.statistics.permutation import holm
from helpers.statistics.questions import BETWEEN_CELLS

SUPPORTED, CONTRADICTED, PRACTICALLY_NONE = "supported", "contradicted", "practically none"
CANNOT_TELL, NOT_TESTED = "cannot tell", "not tested here"
NEGLIGIBLE = 0.2  # |r|, and points of added error
SIGNIFICANT = 0.05
CLAIM_COLUMNS = [
    *("claim", "primary", "source", "published", "ours", "ci_low", "ci_high", "p_adjusted", "smallest_r", "n", "verdict", "table"),
    *("between_cells", "between_cells_low", "between_cells_high"),
]
STATED_COLUMNS = ["measure", "question", "side", "variant_of"]


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


def judged(
    claims: Sequence[Mapping[str, Any]], ranking: pd.DataFrame, gates: pd.DataFrame, alike: Sequence[Collection[str]] = ()
) -> pd.DataFrame:
    """Verdict on every claim of a study file, with the numbers it stands on.

    Claims of the same question and side on measures that are formulas of one thing are one claim with variants: the first of them, a
    primary one before others, is judged and counts in its family; the others show their numbers and have neither p nor verdict. P-values
    are adjusted by Holm: the primary claims are one family, the secondary of each table another.

    Args:
        claims: see ``claims.check_claims``; the table is "measures_ranking" where none is named.
        ranking: see ``questions.ranking_table``.
        gates: see ``gates.gate_table``.
        alike: groups of measures that are formulas of one thing.

    Returns:
        ``CLAIM_COLUMNS`` and ``STATED_COLUMNS``, each claim followed by its variants, of which variant_of is its text, else "";
        smallest_r is in the unit of ours: points for added error. between_cells, with the ends of its interval, is the correlation of
        the cells' means, for claims on r with the gap.

    Raises:
        ValueError: see ``claims.check_claims``.
    """
    claims = sorted(check_claims(claims, list(ranking["measure"])), key=lambda claim: not claim.get("primary", False))
    rows, first = [], {}
    for number, claim in enumerate(claims):
        question, primary = claim["question"], bool(claim.get("primary", False))
        row = ranking[ranking["measure"] == claim["measure"]].iloc[0]
        group = next((place for place, names in enumerate(alike) if claim["measure"] in names), claim["measure"])
        head = first.setdefault((question, claim["side"], group), number)
        head = number if primary else head
        own = {
            "claim": claim["claim"],
            "primary": primary,
            "source": claim.get("source", ""),
            "published": claim.get("published", np.nan),
            "ours": row[question],
            "ci_low": row[f"{question}_low"],
            "ci_high": row[f"{question}_high"],
            "p_adjusted": row[f"{question}_p"] if head == number else np.nan,
            "smallest_r": row[f"{question}_smallest"],
            "n": int(row["n"]),
            "table": claim.get("table", "measures_ranking"),
            "measure": claim["measure"],
            "question": question,
            "side": claim["side"],
            "variant_of": "" if head == number else claims[head]["claim"],
        }
        ends = ("", "_low", "_high")
        own |= {f"between_cells{end}": row[f"{BETWEEN_CELLS}{end}"] if question == "r_gap" else np.nan for end in ends}
        rows.append(own | {"head": head, "may_speak": not failed(gates, [claim["measure"]])})
    table = pd.DataFrame(rows, columns=[*CLAIM_COLUMNS, *STATED_COLUMNS, "head", "may_speak"])
    family = table["table"].where(~table["primary"].astype(bool), "")
    table["p_adjusted"] = table.groupby(family)["p_adjusted"].transform(holm).astype(float)
    table["verdict"] = [
        "" if row.variant_of else verdict(SIDES[row.side], row.ci_low, row.ci_high, row.p_adjusted, may_speak=row.may_speak)
        for row in table.itertuples()
    ]
    return table.sort_values("head", kind="stable", ignore_index=True)[[*CLAIM_COLUMNS, *STATED_COLUMNS]]
