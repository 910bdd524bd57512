"""Paired differences between an arm of training and its control."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import scipy.stats
from numpy.typing import ArrayLike

from helpers.statistics.claims import PAIRED, SIDES
from helpers.statistics.correlate import design, holm, of_table, pearson, sign_flip_p
from helpers.statistics.verdicts import verdict

LEVEL = 0.95
# Overlap of maps on test images: shows whether an arm looks elsewhere than its control.
CHECK = "area_matched_iou"
NOT_CHANGED = "looking was not changed"
_FEWEST = 4  # networks for a correlation
_NUMBERS = ("pairs", "difference", "low", "high", "p", "detectable")
FEWEST_PAIRS = 3  # pairs for an interval that can show that looking changed
POWER = 0.8  # probability of telling a difference as large as ``detectable``
EQUAL_ACCURACY = 0.95  # training accuracy at which gaps are compared


@dataclass(frozen=True)
class PairedDifference:
    """Mean difference between the two members of each pair."""

    mean: float
    low: float  # of the t interval
    high: float
    p: float  # two-sided, of the sign-flip test
    pairs: int
    detectable: float  # smallest difference that so many pairs tell


def paired_difference(arm: ArrayLike, control: ArrayLike) -> PairedDifference:
    """Mean of the differences of pairs, with Student's interval and a sign-flip p.

    Without an effect each difference is as likely positive as negative. p is the share
    of all choices of signs whose sum is at least as far from 0 (Fisher 1935); random
    choices are taken where there are too many, see ``sign_flip_p``. The smallest
    difference that is told with the probability ``POWER`` is
    ``(t_0.975 + t_0.8) s / sqrt(n)``, s the standard deviation of differences.

    Args:
        arm: (n,) values, one of each pair.
        control: (n,) values of the other; pairs with a NaN are left out.

    Returns:
        Arm minus control. All NaN without a pair; no interval and no p with one.

    Example:
        >>> paired_difference([3.0, 5.0], [1.0, 1.0]).mean
        3.0
    """
    differences = np.asarray(arm, dtype=float) - np.asarray(control, dtype=float)
    differences = differences[np.isfinite(differences)]
    pairs = len(differences)
    mean = float(differences.mean()) if pairs else np.nan
    if pairs < 2:
        return PairedDifference(mean, np.nan, np.nan, np.nan, pairs, np.nan)
    error = differences.std(ddof=1) / pairs**0.5
    half_width = error * scipy.stats.t.ppf((1 + LEVEL) / 2, pairs - 1)
    detectable = half_width + error * scipy.stats.t.ppf(POWER, pairs - 1)
    columns = np.stack([differences, -differences], 1)
    one_sided = sign_flip_p(columns, range(pairs))
    p = min(1.0, 2 * float(one_sided.min()))
    low = mean - half_width
    return PairedDifference(mean, low, mean + half_width, p, pairs, detectable)


def difference_held_fixed(
    differences: ArrayLike, covariate: ArrayLike
) -> PairedDifference:
    """Mean difference of pairs if they did not differ in a covariate.

    It is the intercept of the least-squares line of the differences over those of the
    covariate, which equals an analysis of covariance with a level for each pair.

    Args:
        differences: (n,) of the outcome, arm minus control; pairs with a NaN are left
            out.
        covariate: (n,) differences of the covariate.

    Returns:
        With Student's interval and p of n - 2 degrees of freedom; all NaN for fewer
        than four pairs, or where the covariate does not differ between pairs.
    """
    values = np.column_stack([covariate, differences]).astype(float)
    values = values[np.isfinite(values).all(1)]
    pairs = len(values)
    if pairs < 4 or np.ptp(values[:, 0]) == 0:
        return PairedDifference(np.nan, np.nan, np.nan, np.nan, pairs, np.nan)
    line = scipy.stats.linregress(values[:, 0], values[:, 1])
    mean = float(line.intercept)
    error = float(line.intercept_stderr)
    student = scipy.stats.t(pairs - 2)
    half_width = error * student.ppf((1 + LEVEL) / 2)
    p = float(2 * student.sf(abs(mean) / error))
    detectable = half_width + error * student.ppf(POWER)
    low = mean - half_width
    return PairedDifference(mean, low, mean + half_width, p, pairs, detectable)


def gap_at_training_accuracy(
    snapshots: pd.DataFrame, accuracy: float = EQUAL_ACCURACY
) -> pd.Series:
    """Gap of each run where its training accuracy is a given one.

    Test accuracy is interpolated linearly between the snapshots of a run, over their
    evaluated training accuracies: what a run passes while it is trained differs from
    what its snapshot has when it is evaluated.

    Args:
        snapshots: rows with run_id, train_accuracy and test_accuracy (fractions).
        accuracy: the training accuracy.

    Returns:
        A fraction by run_id; NaN where no two snapshots lie around the accuracy.

    Example:
        >>> accuracies = {"train_accuracy": [0.9, 1.0], "test_accuracy": [0.3, 0.4]}
        >>> snapshots = pd.DataFrame({"run_id": "a"} | accuracies)
        >>> float(round(gap_at_training_accuracy(snapshots)["a"], 3))
        0.6
    """
    gaps = {}
    for run_id, rows in snapshots.groupby("run_id"):
        rows = rows.sort_values("train_accuracy")
        trained = rows["train_accuracy"].to_numpy()
        tested = rows["test_accuracy"].to_numpy()
        test_accuracy = np.interp(accuracy, trained, tested, np.nan, np.nan)
        gaps[run_id] = accuracy - float(test_accuracy)
    return pd.Series(gaps, dtype=float)


def paired_table(
    models: pd.DataFrame,
    contrasts: Sequence[tuple[str, str]],
    outcomes: Sequence[str],
    paired_by: Sequence[str],
    held_fixed: Mapping[str, tuple[str, str]] | None = None,
) -> pd.DataFrame:
    """Paired differences of several outcomes, for all pairs and by start.

    Args:
        models: one row per network, with the column "looking", which names its arm,
            "pretrained", those of ``paired_by``, and the outcomes.
        contrasts: arm and control, as "looking" names them.
        outcomes: columns.
        paired_by: columns that the two members of a pair share.
        held_fixed: further outcomes by name: a column, and the covariate that is held
            fixed, see ``difference_held_fixed``.

    Returns:
        One row per contrast, start ("all", "scratch", "pretrained") and outcome:
        arm, control, start, outcome, pairs, difference, low, high, p, detectable.

    Raises:
        ValueError: where two networks of an arm share all columns of ``paired_by``.
    """
    rows = []
    starts = {"all": [True, False], "scratch": [False], "pretrained": [True]}
    for arm, control in contrasts:
        for start, levels in starts.items():
            chosen = models[models["pretrained"].isin(levels)]
            first = _by_pair(chosen, arm, paired_by)
            second = _by_pair(chosen, control, paired_by)
            shared = first.index.intersection(second.index)
            names = {"arm": arm, "control": control, "start": start}
            for outcome in outcomes:
                difference = paired_difference(
                    first.loc[shared, outcome], second.loc[shared, outcome]
                )
                rows.append(names | {"outcome": outcome} | asdict(difference))
            for outcome, columns in (held_fixed or {}).items():
                pair_differences = [
                    first.loc[shared, column].to_numpy(float)
                    - second.loc[shared, column].to_numpy(float)
                    for column in columns
                ]
                difference = difference_held_fixed(*pair_differences)
                rows.append(names | {"outcome": outcome} | asdict(difference))
    columns = "arm control start outcome pairs mean low high p detectable"
    table = pd.DataFrame(rows, columns=columns.split())
    return table.rename(columns={"mean": "difference"})


def _by_pair(
    models: pd.DataFrame, looking: str, paired_by: Sequence[str]
) -> pd.DataFrame:
    """Networks of an arm, indexed by the columns that name their pair."""
    arm = models[models["looking"] == looking].set_index(list(paired_by))
    if arm.index.has_duplicates:
        twice = arm.index[arm.index.duplicated()][0]
        raise ValueError(
            f"several networks of {looking!r} have {', '.join(paired_by)} = {twice}; "
            "a pair is one network of each arm"
        )
    return arm


def correlations_by_arm(
    models: pd.DataFrame, measures: Sequence[str], target: str, plain: str
) -> pd.DataFrame:
    """Correlation of measures with a target, over all arms and plain training alone.

    Args:
        models: one row per network, with "looking", "pretrained", the measures and the
            target.
        measures: columns.
        target: column, such as "gap".
        plain: the level of "looking" of plain training, which no arm changed.

    Returns:
        One row per measure: networks, r and r_given_start (whether pretrained) over
        all networks; plain_networks, plain_r and plain_r_given_start over those of
        plain training. NaN for fewer than 4 networks, or equal values.
    """
    groups = {"": models, "plain_": models[models["looking"] == plain]}
    rows = []
    for measure in measures:
        row = {"measure": measure}
        for prefix, group in groups.items():
            enough = len(group) >= _FEWEST
            start = design(group, ["pretrained"])
            values = group[[measure]].to_numpy(float)
            r = of_table(pearson, values, group[target])[0]
            given_start = of_table(pearson, values, group[target], start)[0]
            row[f"{prefix}networks"] = len(group)
            row[f"{prefix}r"] = float(r) if enough else np.nan
            row[f"{prefix}r_given_start"] = float(given_start) if enough else np.nan
        rows.append(row)
    return pd.DataFrame(rows)


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
    rows = []
    on_pairs = [claim for claim in claims if claim["question"] == PAIRED]
    for claim in sorted(on_pairs, key=lambda claim: not claim.get("primary", False)):
        contrast = claim["arm"], claim["control"]
        outcome = _row_of(differences, *contrast, claim["measure"])
        check = _row_of(differences, *contrast, CHECK)
        row = {name: claim[name] for name in ("claim", "arm", "control", "measure")}
        row["primary"] = bool(claim.get("primary", False))
        row["side"] = claim["side"]
        row |= outcome[[*_NUMBERS]].to_dict()
        row["looking_changed"] = _was_changed(check)
        rows.append(row)
    columns = ["claim", "primary", "arm", "control", "measure", "side", *_NUMBERS]
    table = pd.DataFrame(rows, columns=[*columns, "looking_changed"])
    table["pairs"] = table["pairs"].astype(int)
    table["p_adjusted"] = table.groupby("primary")["p"].transform(holm).astype(float)
    verdicts = [paired_verdict(row) for row in table.to_dict("records")]
    return table.assign(verdict=verdicts)


def paired_verdict(row: Mapping[str, Any]) -> str:
    """Verdict on one row of ``paired_claims``.

    Args:
        row: with difference, low, high, p_adjusted, side and looking_changed.
    """
    if row["looking_changed"] == "no":
        return NOT_CHANGED
    side = SIDES[row["side"]]
    return verdict(row["low"], row["high"], row["p_adjusted"], side, negligible=0)


def _was_changed(check: pd.Series) -> str:
    """Text on whether an arm looks elsewhere than its control: yes, no, not known."""
    if check["pairs"] < FEWEST_PAIRS:
        return "not known"
    return "yes" if excludes_zero(check) else "no"


def excludes_zero(row: Mapping[str, Any] | pd.Series) -> bool:
    """Whether an interval lies on one side of 0; False without an interval.

    Args:
        row: with low and high.
    """
    return bool(row["low"] > 0 or row["high"] < 0)


def _row_of(
    differences: pd.DataFrame, arm: str, control: str, outcome: str
) -> pd.Series:
    """The row of a contrast over all starts; NaN and no pairs where there is none."""
    chosen = differences[
        differences["arm"].eq(arm)
        & differences["control"].eq(control)
        & differences["outcome"].eq(outcome)
        & differences["start"].eq("all")
    ]
    if len(chosen):
        return chosen.iloc[0]
    return pd.Series(dict.fromkeys(_NUMBERS, np.nan) | {"pairs": 0})
