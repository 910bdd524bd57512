"""Claims that a study states before its first run.

A claim names a measure, a question and a side. Claims are written to the study's folder
of work with the number of runs that had been trained by then.
"""

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
# Questions of the primary table: r given the start, r within kinds of training, error
# saved on a held-out kind, and the same against the best baseline with a kind held out
# in all of its architectures.
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
    "gap_given_training_accuracy",
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
    """The claims of a study, and when they were written down."""

    claims: list[dict[str, Any]]
    first_seen: str  # UTC
    # Number of runs that had been started by then; 0 for claims stated in advance.
    runs: int


def check_primary(measures: Sequence[str]) -> None:
    """Refuse more measures than a primary analysis may have, or one twice.

    Args:
        measures: their columns.

    Raises:
        ValueError: for more than ``MOST_MEASURES``, or a measure named twice.
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
        primary: measures of the primary analysis, the only ones that questions of
            ``OF_KINDS`` may ask for; None skips this check.

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
    """Refuse a value of a wrong type, or one that is not among the choices."""
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
    """Refuse a question of ``OF_KINDS`` on a measure outside the primary analysis."""
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


def _versions(work: Path) -> list[KeptClaims]:
    """All versions of the claims that were written down, the oldest first."""
    path = work / _FILE
    if not path.is_file():
        return []
    try:
        # Files of earlier versions of this module hold a digest too.
        versions = [
            KeptClaims(item["claims"], item["first_seen"], item["runs"])
            for item in read_json(path)
        ]
        if not all(map(_is_whole, versions)):
            raise ValueError("a value has another type than it was written with")
        return versions
    except (ValueError, TypeError, LookupError, OSError) as fault:
        raise ValueError(
            f"{path} is damaged ({fault}); put back a copy of it, or delete it: the "
            f"claims of the study file then count as first seen today, after the runs "
            f"that are there"
        ) from fault


def _is_whole(version: KeptClaims) -> bool:
    """Whether each value of a version has the type that it was written with."""
    claims = isinstance(version.claims, list)
    claims = claims and all(isinstance(claim, dict) for claim in version.claims)
    is_time = isinstance(version.first_seen, str)
    return claims and is_time and isinstance(version.runs, int)


def keep_claims(work: Path, claims: Sequence[Mapping[str, Any]]) -> KeptClaims:
    """Write claims to a study's folder when they are new or have changed.

    They are appended to earlier versions, with the number of runs that exist.

    Args:
        work: the study's folder of work.
        claims: of its study file.

    Raises:
        ValueError: if the file of claims is damaged.
    """
    versions = _versions(work)
    if list(claims) != _latest(versions).claims:
        runs = len([path for path in (work / "runs").glob("*") if path.is_dir()])
        now = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
        versions.append(KeptClaims(list(claims), now, runs))
        write_json(work / _FILE, [version._asdict() for version in versions])
    return _latest(versions)


def claims_of_study(work: Path) -> KeptClaims:
    """The latest version of a study's claims; without claims if there are none.

    Args:
        work: folder of the study.
    """
    return _latest(_versions(work))


def _latest(versions: Sequence[KeptClaims]) -> KeptClaims:
    return versions[-1] if versions else KeptClaims([], "", 0)
