"""What a study states before its first run.

Measures of its primary analysis, and claims, which are kept with the number of runs
that there were when they were first seen.
"""

import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from helpers.files import read_json, write_json

QUESTIONS = (
    "r_gap",
    "tau_gap",
    "r_test_accuracy",
    "r_gap_given_fit",
    "r_gap_given_all",
)
ADDED = "added_error_points"
# Of a run at its stop, in the primary table: given the start, within kinds of training,
# and with a kind left out; the last against the best baseline, in all architectures.
OF_KINDS = (
    "r_gap_given_start",
    "r_gap_within_kinds",
    "saved_error_points",
    "saved_from_best_points",
)
PAIRED = "paired_difference"  # of an arm and its control, in notebook 09
# What a claim on a paired difference may be about, in columns of notebook 09.
PAIRED_OUTCOMES = (
    "gap",
    "gap_at_equal_training_accuracy",
    "test_accuracy",
    "accuracy_swapped",
    "area_matched_iou",
    "gap_beyond_slope",
)
SIDES = {"below": -1, "above": 1}
MOST_PRIMARY = 3  # claims
MOST_MEASURES = 8  # of a primary analysis
_NEEDED = ("claim", "measure", "question", "side")
_OPTIONAL = ("primary", "source", "published", "errs_at_most", "arm", "control")
_TEXTS = ("claim", "measure", "source", "arm", "control")
_NUMBERS = ("published", "errs_at_most")
_CHOICES = {
    "question": (*QUESTIONS, ADDED, *OF_KINDS, PAIRED),
    "side": tuple(SIDES),
    "primary": (True, False),
}
_FILE = "claims.json"


class KeptClaims(NamedTuple):
    """The claims of a study as they stand, and since when."""

    claims: list[dict[str, Any]]
    digest: str  # see ``claims_digest``; "" where nothing was claimed
    first_seen: str  # UTC
    # Trained by then, whole or in part; 0 for claims that are older than the first run.
    runs: int


def check_primary(measures: Sequence[str]) -> None:
    """Refuse more measures than a primary analysis may have, or one twice.

    Args:
        measures: their columns.

    Raises:
        ValueError: with the number of measures.
    """
    different = len(set(measures))
    if len(measures) > MOST_MEASURES or different < len(measures):
        raise ValueError(
            f"the primary analysis has {len(measures)} measures, {different} of them "
            f"different; name at most {MOST_MEASURES} different ones in "
            "primary_measures"
        )


def check_claims(
    claims: Any, primary: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Refuse claims that cannot be judged.

    Args:
        claims: as a study file has them.
        primary: measures of the primary analysis, outside of which ``OF_KINDS`` cannot
            be asked; None where they are not known.

    Returns:
        The claims, as they are.

    Raises:
        ValueError: for the first fault.
    """
    is_list = isinstance(claims, Sequence) and not isinstance(claims, str)
    if not is_list or not all(isinstance(claim, Mapping) for claim in claims):
        raise ValueError(
            f"the claims are {claims!r}; write a list of mappings, each with "
            f"{', '.join(_NEEDED)}"
        )
    for number, claim in enumerate(claims, 1):
        _check_names(number, claim)
        where = f"claim {number} ({claim['claim']})"
        for name, value in claim.items():
            _check_value(where, name, value)
        _check_paired(where, claim)
        if primary is not None:
            _check_measure(where, claim, primary)
    count = sum(bool(claim.get("primary")) for claim in claims)
    if count > MOST_PRIMARY:
        raise ValueError(
            f"{count} claims are primary; at most {MOST_PRIMARY} can be, so mark the "
            "others primary: false"
        )
    return [dict(claim) for claim in claims]


def _check_names(number: int, claim: Mapping[str, Any]) -> None:
    if set(_NEEDED) <= set(claim) <= {*_NEEDED, *_OPTIONAL}:
        return
    raise ValueError(
        f"claim {number} has {', '.join(map(str, claim))}; every claim needs "
        f"{', '.join(_NEEDED)}, and may have {', '.join(_OPTIONAL)}"
    )


def _check_value(where: str, name: str, value: Any) -> None:
    """Refuse a value of another type than its name has, or none of its choices."""
    if name in _TEXTS and not isinstance(value, str):
        raise ValueError(
            f"{where} has {name} {value!r}, which must be text; put it in quotes"
        )
    if name in _NUMBERS and not _is_finite_number(value):
        raise ValueError(f"{where} has {name} {value!r}, which must be a number")
    if name in _CHOICES and value not in _CHOICES[name]:
        choices = ", ".join(map(str, _CHOICES[name]))
        raise ValueError(f"{where} has {name} {value!r}; choose one of {choices}")


def _is_finite_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _check_measure(
    where: str, claim: Mapping[str, Any], primary: Sequence[str]
) -> None:
    """Refuse a question of kinds that asks a measure outside the primary analysis."""
    if claim["question"] in OF_KINDS and claim["measure"] not in primary:
        raise ValueError(
            f"{where} asks {claim['question']} of {claim['measure']}, which is not in "
            f"primary_measures ({', '.join(primary)}); add it there, or ask another "
            "question"
        )


def _check_paired(where: str, claim: Mapping[str, Any]) -> None:
    """Refuse a paired difference without its arms, and arms in another claim."""
    arms = [name for name in ("arm", "control") if claim.get(name)]
    if claim["question"] != PAIRED:
        if arms:
            raise ValueError(
                f"{where} has {' and '.join(arms)}, which belong to the question "
                f"{PAIRED}"
            )
        return
    if len(arms) < 2:
        raise ValueError(
            f"{where} asks {PAIRED} and needs arm and control, levels of looking such "
            "as map_in_box 1 and map_in_shuffled_box 1"
        )
    if claim["measure"] not in PAIRED_OUTCOMES:
        raise ValueError(
            f"{where} asks {PAIRED} of {claim['measure']!r}; choose one of "
            f"{', '.join(PAIRED_OUTCOMES)}"
        )


def claims_digest(claims: Sequence[Mapping[str, Any]]) -> str:
    """First 12 hexadecimal digits of the SHA-256 of the claims.

    Args:
        claims: of a study file.

    Returns:
        The same whatever the order of a claim's items; "" for no claims.
    """
    if not claims:
        return ""
    text = json.dumps(list(claims), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _seen(work: Path) -> list[KeptClaims]:
    """Every version of the claims with when it was first seen."""
    path = work / _FILE
    if not path.is_file():
        return []
    try:
        versions = [KeptClaims(**item) for item in read_json(path)]
        if not all(map(_is_whole, versions)):
            raise ValueError("a value has another type than it was written with")
        return versions
    except (ValueError, TypeError, OSError) as fault:
        raise ValueError(
            f"{path} is damaged ({fault}); put back a copy of it, or delete it: the "
            f"claims of the study file then count as first seen today, after the runs "
            f"that are there"
        ) from fault


def _is_whole(version: KeptClaims) -> bool:
    """Whether each value of a version has the type that it was written with."""
    texts = isinstance(version.digest, str) and isinstance(version.first_seen, str)
    claims = isinstance(version.claims, list)
    claims = claims and all(isinstance(claim, dict) for claim in version.claims)
    return texts and claims and isinstance(version.runs, int)


def keep_claims(work: Path, claims: Sequence[Mapping[str, Any]]) -> KeptClaims:
    """Note claims in a study's folder the first time they are seen.

    They stand below older ones, with the number of runs that are there already.

    Args:
        work: the study's folder of work.
        claims: of its study file.

    Raises:
        ValueError: if what was noted is damaged.
    """
    versions = _seen(work)
    digest = claims_digest(claims)
    before = versions[-1].digest if versions else ""
    if digest != before:
        runs = len([path for path in (work / "runs").glob("*") if path.is_dir()])
        now = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
        versions.append(KeptClaims(list(claims), digest, now, runs))
        write_json(work / _FILE, [version._asdict() for version in versions])
    return _latest(versions)


def kept_claims(work: Path) -> KeptClaims:
    """The claims of a study as they were last noted; none where nothing was claimed.

    Args:
        work: folder of the study.
    """
    return _latest(_seen(work))


def _latest(versions: Sequence[KeptClaims]) -> KeptClaims:
    return versions[-1] if versions else KeptClaims([], "", "", 0)
