"""Claims are checked before a run is spent."""

import math

import pytest

from helpers.statistics.claims import OF_KINDS, PAIRED, check_claims

CLAIM = {
    "claim": "IoU falls as the gap grows",
    "measure": "iou",
    "question": "r_gap",
    "side": "below",
    "primary": True,
}
ARMS = {"arm": "map_in_box 1", "control": "map_in_shuffled_box 1"}


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ("iou", "a list of claims"),
        ([{"claim": "x"}], "claim 1: measure: .*, not .*question and side are needed"),
        ([CLAIM, CLAIM | {"sides": 1}], "claim 2: sides: .*, not 1; "),
        ([CLAIM | {"question": "tau"}], "question: .*'r_gap', 'tau_gap'.*, not 'tau'"),
        ([CLAIM | {"side": "left"}], "side: .*'below' or 'above', not 'left'"),
        ([CLAIM | {"published": math.nan}], "published: .* finite number"),
        ([CLAIM] * 4, "4 claims are primary; at most 3"),
        ([CLAIM | ARMS], "needs arm and control"),
        ([CLAIM | {"question": PAIRED}], "needs arm and control"),
        ([CLAIM | ARMS | {"question": PAIRED}], "gap, .* as its measure"),
    ],
)
def test_claims_that_cannot_be_judged_are_refused(claims, words):
    with pytest.raises(ValueError, match=words):
        check_claims(claims)


def test_a_claim_has_all_its_items():
    claims = [CLAIM | {"primary": False, "question": name} for name in OF_KINDS]
    claims.append(CLAIM | ARMS | {"question": PAIRED, "measure": "gap"})
    for claim, stated in zip(check_claims(claims), claims, strict=True):
        assert claim | stated == claim and claim["source"] == ""
        assert math.isnan(claim["published"]) and math.isnan(claim["errs_at_most"])
    assert check_claims([CLAIM | {"published": -1}])[0]["published"] == -1
