"""Paired differences between an arm of training and its control."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import scipy.stats
from numpy.typing import ArrayLike

from helpers.statistics.claims import PAIRED, SIDES
from helpers.statistics.correlate import LEVEL
from helpers.statistics.permutation import holm, sign_flip_p
from helpers.statistics.verdicts import verdict

# Overlap of maps on test images: shows whether an arm looks elsewhere than its control.
CHECK = "area_matched_iou"
NOT_CHANGED = "looking was not changed"
_NUMBERS = ["pairs", "difference", "low", "high", "p", "detectable"]
FEWEST_PAIRS = 3  # pairs for an interval that can show that looking changed
POWER = 0.8  # probability of telling a difference as large as ``detectable``
EQUAL_ACCURACY = 0.95  # training accuracy at which gaps are compared
PAIRED_BY = ["pretrained", "repeat"]
# Outcomes that are a column less what a second one, held fixed, explains.
HELD_FIXED = {"gap_given_training_accuracy": ["gap", "train_accuracy"]}
_STARTS = {"all": [True, False], "scratch": [False], "pretrained": [True]}


def paired_difference(
    differences: ArrayLike, covariate: ArrayLike | None = None
) -> dict[str, Any]:
    """Mean of the differences of pairs, with Student's interval and a p-value.

    With a covariate it is the mean that pairs would have if they did not differ in it:
    the intercept of the least-squares line of the differences over those of the
    covariate, which equals an analysis of covariance with a level for each pair; p is
    Student's. Without a covariate each difference is as likely positive as negative if
    there is no effect: p is the share of all choices of signs whose sum is at least as
    far from 0 (Fisher 1935); random choices are taken where there are too many, see
    ``sign_flip_p``. The smallest difference that is told with the probability ``POWER``
    is ``(t_0.975 + t_0.8) SE``, SE the standard error.

    Args:
        differences: (n,) arm minus control of each pair; pairs with a NaN are left out.
        covariate: (n,) differences of the covariate.

    Returns:
        pairs, difference (the mean), low, high, p (two-sided) and detectable. All NaN
        without a pair, and where all pairs differ alike in the covariate; no interval
        and no p without a degree of freedom.

    Example:
        >>> round(paired_difference([2.0, 4.0])["difference"], 6)
        3.0
    """
    ones = np.ones(len(differences))
    held = 0 * ones if covariate is None else covariate
    table = np.column_stack([differences, ones, held]).astype(float)
    table = table[np.isfinite(table).all(1)]
    y, columns = table[:, 0], table[:, 1:]
    inverse = np.linalg.pinv(columns)
    known = inverse @ columns  # the identity where the mean is told from the slope
    is_told = np.isclose(known[0, 0], 1)
    freedom = len(y) - round(known.trace())
    left = y - columns @ (inverse @ y)
    mean = error = np.nan
    if is_told:
        mean = float((inverse @ y)[0])
    if is_told and freedom > 0:
        error = np.linalg.norm(left) * np.linalg.norm(inverse[0]) / np.sqrt(freedom)
    student = scipy.stats.t(freedom)
    if covariate is None:
        flipped = sign_flip_p(np.stack([y, -y], 1), range(len(y))).min()
        p = min(1.0, 2 * flipped) if freedom > 0 else np.nan
    else:
        p = 2 * student.sf(abs(mean) / error)
    half_width = error * student.ppf((1 + LEVEL) / 2)
    return {
        "pairs": len(y),
        "difference": mean,
        "low": mean - half_width,
        "high": mean + half_width,
        "p": p,
        "detectable": half_width + error * student.ppf(POWER),
    }


def gap_at_training_accuracy(snapshots: pd.DataFrame) -> pd.Series:
    """Gap of each run where its training accuracy is ``EQUAL_ACCURACY``.

    Test accuracy is interpolated linearly between the snapshots of a run, over their
    evaluated training accuracies: what a run passes while it is trained differs from
    what its snapshot has when it is evaluated.

    Args:
        snapshots: rows with run_id, train_accuracy and test_accuracy (fractions).

    Returns:
        A fraction by run_id; NaN where no two snapshots lie around the accuracy.

    Example:
        >>> accuracies = {"train_accuracy": [0.9, 1.0], "test_accuracy": [0.3, 0.4]}
        >>> snapshots = pd.DataFrame({"run_id": "a"} | accuracies)
        >>> float(round(gap_at_training_accuracy(snapshots)["a"], 3))
        0.6
    """
    runs = snapshots.sort_values("train_accuracy").groupby("run_id")
    gaps = {}
    accuracy = EQUAL_ACCURACY
    for run_id, rows in runs[["train_accuracy", "test_accuracy"]]:
        test_accuracy = np.interp(accuracy, *rows.to_numpy(float).T, np.nan, np.nan)
        gaps[run_id] = accuracy - test_accuracy
    return pd.Series(gaps, dtype=float)


def paired_table(
    models: pd.DataFrame,
    contrasts: Sequence[tuple[str, str]],
    outcomes: Sequence[str],
) -> pd.DataFrame:
    """Paired differences of several outcomes, for all pairs and by start.

    The networks of a pair share ``PAIRED_BY``.

    Args:
        models: one row per network, with the column "looking", which names its arm,
            those of ``PAIRED_BY``, and the outcomes.
        contrasts: arm and control, as "looking" names them.
        outcomes: columns, or keys of ``HELD_FIXED``.

    Returns:
        One row per contrast, start ("all", "scratch", "pretrained") and outcome:
        arm, control, start, outcome, pairs, difference, low, high, p, detectable.

    Raises:
        ValueError: where arms are paired, and two networks of one share all columns of
            ``PAIRED_BY``.
    """
    if contrasts and models.duplicated(["looking", *PAIRED_BY]).any():
        raise ValueError(
            f"several networks of an arm have the same {' and '.join(PAIRED_BY)}; a "
            "pair is one network of each arm"
        )
    values = models.set_index(PAIRED_BY).select_dtypes("number")
    rows = []
    for (arm, control), (start, levels) in product(contrasts, _STARTS.items()):
        is_arm = models["looking"].eq(arm).to_numpy()
        is_control = models["looking"].eq(control) & models["pretrained"].isin(levels)
        changes = values[is_arm] - values[is_control.to_numpy()]  # NaN without a pair
        names = {"arm": arm, "control": control, "start": start}
        for outcome in outcomes:
            columns = HELD_FIXED.get(outcome, [outcome])
            answer = paired_difference(*(changes[name] for name in columns))
            rows.append(names | {"outcome": outcome} | answer)
    return pd.DataFrame(rows, columns=["arm", "control", "start", "outcome", *_NUMBERS])


def paired_claims(
    claims: Sequence[Mapping[str, Any]], differences: pd.DataFrame
) -> pd.DataFrame:
    """Verdicts on claims that training a network to look somewhere changes an outcome.

    A claim compares an arm with its control, over all starts. Where the two do not
    differ in where they look on test images, the verdict is ``NOT_CHANGED``.

    Args:
        claims: those of a study; others than on paired differences are left out.
        differences: of ``paired_table``, with the outcome "area_matched_iou".

    Returns:
        One row per claim, primary ones first: claim, primary, arm, control, measure,
        side, pairs, difference, low, high, p, detectable, p_adjusted (Holm's, over
        primary claims, and over the others), looking_changed ("yes", "no", or "not
        known" with fewer than three pairs), verdict.
    """
    stated = pd.DataFrame(
        [claim for claim in claims if claim["question"] == PAIRED],
        columns=["claim", "primary", "arm", "control", "measure", "side"],
    ).sort_values("primary", ascending=False, kind="stable", ignore_index=True)
    of_all = differences[differences["start"] == "all"]
    of_all = of_all.set_index(["arm", "control", "outcome"])[_NUMBERS]
    keys = ["arm", "control", "measure"]
    check = stated.assign(measure=CHECK).join(of_all, on=keys)
    table = stated.join(of_all, on=keys)
    table["pairs"] = table["pairs"].fillna(0).astype(int)
    changed = np.where(excludes_zero(check), "yes", "no")
    is_known = check["pairs"] >= FEWEST_PAIRS
    table["looking_changed"] = np.where(is_known, changed, "not known")
    table["p_adjusted"] = table.groupby("primary")["p"].transform(holm).astype(float)
    verdicts = [
        verdict(row.low, row.high, row.p_adjusted, SIDES[row.side], negligible=0)
        for row in table.itertuples()
    ]
    not_changed = table["looking_changed"] == "no"
    return table.assign(verdict=np.where(not_changed, NOT_CHANGED, verdicts))


def excludes_zero(rows: Any) -> Any:
    """Whether intervals lie on one side of 0; False without an interval.

    Args:
        rows: one row or a table, with low and high.
    """
    return (rows["low"] > 0) | (rows["high"] < 0)
