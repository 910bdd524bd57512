"""May a study speak, and what does it say to each claim: conditions (gates), and verdicts from intervals and adjusted p-values."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from helpers.statistics.claims import SIDES, check_claims
from helpers.statistics.permutation import holm
from helpers.statistics.primary import QUESTIONS

ANY_MEASURE = "all"
GATE_COLUMNS = ["gate", "concerns", "value", "limit", "passes"]
# Conventions, but for the central map, which is a matter of principle.
SMALLEST_MASK, LARGEST_MASK, HIGHEST_FLOOR = 0.05, 0.60, 0.40
STANDARD_ERRORS, SHARE_ABOVE = 3, 0.5
LEAST_RELIABILITY = 0.8
LEAST_SPAN = 20  # points
ABOVE_CHANCE = 0.4  # share of the way from chance to 1
LEAST_FINISHED = 0.80
ENOUGH_CONFIGURATIONS = 40

SUPPORTED, CONTRADICTED, PRACTICALLY_NONE = "supported", "contradicted", "practically none"
REPRODUCED, NOT_REPRODUCED, CANNOT_TELL = "reproduced", "not reproduced", "cannot tell"
NEGLIGIBLE = 0.2  # |r|, and points of saved error
SIGNIFICANT = 0.05


def share_above_chance(corrected: ArrayLike, errors: float = STANDARD_ERRORS) -> float:
    """Share of models whose chance-corrected measure is more than so many of its standard errors over images above 0.

    (n, images) values less their chance, NaN left out -> [0, 1] of the models with 2 images at least; NaN where none has.
    """
    table = np.asarray(corrected, dtype=float)
    known = np.isfinite(table)
    count = known.sum(1)
    table, count = table[count > 1], count[count > 1]
    if not len(table):
        return np.nan
    mean = np.nansum(table, axis=1) / count
    error = np.sqrt(np.nansum((table - mean[:, None]) ** 2, axis=1) / (count - 1) / count)
    return float((mean > errors * error).mean())


def gate_table(
    models: pd.DataFrame,
    *,
    classes: int,
    floor: float = np.nan,
    mask_areas: Mapping[str, ArrayLike] | None = None,
    corrected: Mapping[str, ArrayLike] | None = None,
    beats_central_map: Mapping[str, float] | None = None,
    reliabilities: Mapping[str, float] | None = None,
) -> pd.DataFrame:
    """Whether each condition of a study holds, and which measures it concerns; a value that is not known, NaN, does not pass.

    Args:
        models: of the primary analysis: gap, test_accuracy (fractions), cell, stop_reason.
        classes: of the data set; chance is one in so many.
        floor: mean area of the boxes, as a fraction: what a mask over the whole image scores.
        mask_areas: by measure with a fixed threshold: areas of masks as fractions of the image, any shape.
        corrected: by localization measure: (n, images) values less their own chance.
        beats_central_map: by localization measure: share of models that score more than one fixed central map does.
        reliabilities: by measure that reads images, see ``reliability``.

    Returns:
        ``GATE_COLUMNS``: gate, concerns (a measure, or "all"), value (fraction; points for gaps; a count), limit in words, passes.
    """
    if classes < 2:
        raise ValueError(f"classes is {classes}; accuracy has a chance level for 2 classes or more")
    rows = []
    for name, areas in (mask_areas or {}).items():
        area = float(np.nanmedian(areas)) if np.isfinite(np.asarray(areas, dtype=float)).any() else np.nan
        limit = f"median area of the mask from {SMALLEST_MASK:.0%} to {LARGEST_MASK:.0%} of the image"
        rows.append(("the mask can miss", name, area, limit, SMALLEST_MASK <= area <= LARGEST_MASK))
        rows.append(("boxes leave room", name, floor, f"whole image scores at most {HIGHEST_FLOOR:.2f}", floor <= HIGHEST_FLOOR))
    for name, share in (beats_central_map or {}).items():
        limit = f"at least {SHARE_ABOVE:.0%} of models score more than one fixed central map"
        rows.append(("beats a fixed central map", name, share, limit, share >= SHARE_ABOVE))
    for name, values in (corrected or {}).items():
        share, limit = share_above_chance(values), f"over {STANDARD_ERRORS} standard errors above chance in {SHARE_ABOVE:.0%} of models"
        rows.append(("the map depends on the image", name, share, limit, share >= SHARE_ABOVE))
    for name, value in (reliabilities or {}).items():
        rows.append(("models differ", name, value, f"reliability at least {LEAST_RELIABILITY}", value >= LEAST_RELIABILITY))
    span = 100 * float(models["gap"].quantile(0.9) - models["gap"].quantile(0.1))
    rows.append(("gaps differ", ANY_MEASURE, span, f"10th to 90th percentile at least {LEAST_SPAN} points", span >= LEAST_SPAN))
    least, accuracy = least_accuracy(classes), float(models["test_accuracy"].median())
    rows.append(("networks learnt", ANY_MEASURE, accuracy, f"median test accuracy at least {100 * least:.3g} %", accuracy >= least))
    finished = float((~models["stop_reason"].fillna("").str.startswith("epoch cap")).mean())
    limit = f"at least {LEAST_FINISHED:.0%} stopped by a rule"
    rows.append(("networks finished", ANY_MEASURE, finished, limit, finished >= LEAST_FINISHED))
    count = models["cell"].nunique()
    limit = f"at least {ENOUGH_CONFIGURATIONS} configurations"
    rows.append(("enough configurations", ANY_MEASURE, float(count), limit, count >= ENOUGH_CONFIGURATIONS))
    return pd.DataFrame(rows, columns=GATE_COLUMNS).astype({"passes": bool})


def least_accuracy(classes: int) -> float:
    """Test accuracy from which networks count as having learnt: ``chance + 0.4 (1 - chance)``."""
    return 1 / classes + ABOVE_CHANCE * (1 - 1 / classes)


def closed(gates: pd.DataFrame, measure: str) -> list[str]:
    """Gates that a measure, or the study, does not pass, in the table's order: what a reader is to know beside a verdict."""
    concerned = gates["concerns"].isin([ANY_MEASURE, measure])
    return list(dict.fromkeys(gates.loc[concerned & ~gates["passes"], "gate"]))


def verdict(side: int, low: float, high: float, p_adjusted: float, published: float = np.nan) -> str:
    """Verdict on a claim that a statistic is below (-1) or above (+1) 0, from its interval and its p-value for the family of claims.

    Of a published value: "reproduced" where the interval reaches it (contains it, or lies beyond) and is clear of 0 with an adjusted p
    below 0.05; "not reproduced" where the interval does not reach it; else "cannot tell". Of others: "supported" or "contradicted" where
    interval and p agree, "practically none" for an interval within ±``NEGLIGIBLE``, else "cannot tell", as with no interval.
    """
    if side not in (-1, 1):
        raise ValueError(f"side {side!r} must be -1 (below 0) or +1 (above 0)")
    if not np.isfinite([low, high]).all():
        return CANNOT_TELL
    clear = p_adjusted < SIGNIFICANT and (low > 0 or high < 0)
    if np.isfinite(published):
        if (high < published) if side > 0 else (low > published):
            return NOT_REPRODUCED
        return REPRODUCED if clear and (low > 0) == (side > 0) else CANNOT_TELL
    if clear:
        return SUPPORTED if (low > 0) == (side > 0) else CONTRADICTED
    return PRACTICALLY_NONE if low >= -NEGLIGIBLE and high <= NEGLIGIBLE else CANNOT_TELL


def judged(claims: Sequence[Mapping[str, Any]], primary: pd.DataFrame, ranking: pd.DataFrame, gates: pd.DataFrame) -> pd.DataFrame:
    """What a study says to every claim of its file, with the numbers that this stands on.

    P-values are adjusted by Holm: the primary claims are one family, the others another.

    Args:
        claims: see ``claims.check_claims``.
        primary: see ``primary.primary_table``; answers its ``QUESTIONS`` for its measures.
        ranking: see ``ranking.ranking_table``; answers all else.
        gates: see ``gate_table``.

    Returns:
        One row per claim, primary ones first: claim, primary, measure, question, side, source, published, errs_at_most, ours, low, high,
        p, p_adjusted, n, verdict, closed (gates that the measure does not pass, in words).
    """
    known = list(dict.fromkeys([*primary["measure"], *ranking["measure"]]))
    rows = []
    for claim in sorted(check_claims(claims, known), key=lambda claim: not claim.get("primary", False)):
        name, question = claim["measure"], claim["question"]
        table = primary if question in QUESTIONS and name in set(primary["measure"]) else ranking
        if question not in table:
            raise ValueError(f"the claim {claim['claim']!r} asks {question} of {name}, which the primary analysis of this study leaves out")
        row = table[table["measure"] == name].iloc[0]
        facts = {"ours": row[question], "low": row[f"{question}_low"], "high": row[f"{question}_high"], "p": row[f"{question}_p"]}
        facts |= {"error_with": row.get("error_with", np.nan), "n": int(row["n"]), "closed": ", ".join(closed(gates, name))}
        stated = {"published": np.nan, "errs_at_most": np.nan, "source": "", "primary": False} | dict(claim)
        rows.append({name: stated[name] for name in _STATED} | facts)
    found = pd.DataFrame(rows, columns=[*_STATED, "ours", "low", "high", "p", "error_with", "n", "closed"])
    found["p_adjusted"] = found.groupby(found["primary"].astype(bool))["p"].transform(holm).astype(float)
    return found.assign(verdict=[_of_claim(row) for row in found.itertuples()])


_STATED = ["claim", "primary", "measure", "question", "side", "source", "published", "errs_at_most"]


def _of_claim(row: Any) -> str:
    found = verdict(SIDES[row.side], row.low, row.high, row.p_adjusted, row.published)
    return CANNOT_TELL if found == SUPPORTED and row.error_with > row.errs_at_most else found
