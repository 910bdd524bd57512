"""Claims that a study states before its first run: a measure, a question and a side.

They stand in the study file, whose history says when they were stated.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    TypeAdapter,
    ValidationError,
)

QUESTIONS = (
    "r_gap",
    "tau_gap",
    "r_test_accuracy",
    "r_gap_given_fit",
    "r_gap_given_all",
)
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


class Claim(BaseModel):
    """A claim, as a study file states it."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    claim: str
    primary: bool = False
    measure: str
    question: Literal[*QUESTIONS, *OF_KINDS, PAIRED]
    side: Literal[*SIDES]
    source: str = ""
    published: float = float("nan")
    errs_at_most: float = float("nan")
    arm: str = ""  # with its control, of a paired difference: levels of looking
    control: str = ""


def _with_arms(claim: Claim) -> Claim:
    """Refuse a paired difference without its arms, and arms in another claim."""
    is_paired = claim.question == PAIRED
    has_arms = {bool(claim.arm), bool(claim.control)} == {is_paired}
    is_outcome = claim.measure in PAIRED_OUTCOMES or not is_paired
    if not (has_arms and is_outcome):
        raise ValueError(
            f"{PAIRED}, and no other question, needs arm and control, levels of "
            "looking such as map_in_box 1 and map_in_shuffled_box 1, and one of "
            f"{', '.join(PAIRED_OUTCOMES)} as its measure"
        )
    return claim


_CLAIMS = TypeAdapter(list[Annotated[Claim, AfterValidator(_with_arms)]])


def check_claims(claims: Any) -> list[dict[str, Any]]:
    """Refuse claims that cannot be judged.

    Args:
        claims: as a study file has them.

    Returns:
        All items of each ``Claim``, NaN or "" where it does not state one.

    Raises:
        ValueError: for the first fault.
    """
    try:
        stated = _CLAIMS.validate_python(claims)
    except ValidationError as faults:
        fault = faults.errors()[0]
        number, *names = fault["loc"] or (-1,)
        raise ValueError(
            f"claim {number + 1}: {'.'.join(map(str, names))}: {fault['msg']}, not "
            f"{fault['input']!r}; a list of claims has the items "
            f"{', '.join(Claim.model_fields)} in each, of which claim, measure, "
            "question and side are needed"
        ) from None
    count = sum(claim.primary for claim in stated)
    if count > MOST_PRIMARY:
        raise ValueError(
            f"{count} claims are primary; at most {MOST_PRIMARY} can be, so mark the "
            "others primary: false"
        )
    return [claim.model_dump() for claim in stated]
