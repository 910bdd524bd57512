import itertools

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from helpers.statistics import pairs
from helpers.statistics.claims import check_claims
from helpers.statistics.pairs import gap_at_training_accuracy, paired_difference


def test_interval_and_p_are_those_of_scipy():
    arm, control = np.random.default_rng(0).normal([[0], [0.5]], 1, size=(2, 9))
    answer = paired_difference(arm - control)
    interval = scipy.stats.ttest_rel(arm, control).confidence_interval(0.95)
    assert [answer["low"], answer["high"]] == pytest.approx([*interval])
    flipped = scipy.stats.permutation_test(
        (arm, control),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=np.inf,
    )
    assert answer["p"] == pytest.approx(flipped.pvalue)
    assert answer["difference"] == pytest.approx((arm - control).mean())
    with_gap = paired_difference([*(control - arm), np.nan])
    assert (with_gap["p"], with_gap["pairs"]) == (answer["p"], 9)


@pytest.mark.parametrize(("values", "count"), [([], 0), ([1.0], 1), ([np.nan], 0)])
def test_too_few_pairs_have_no_interval(values, count):
    answer = paired_difference(values)
    assert answer["pairs"] == count
    assert np.isnan([answer[name] for name in ("low", "high", "p")]).all()
    assert np.isnan(answer["difference"]) == (count == 0)


def networks(effect=-2.0, moved=0.05):
    """Pairs of an arm and its control, of which the arm looks more into the box."""
    random = np.random.default_rng(0)
    keys = itertools.product([False, True], range(6), ["shuffled 1", "in 1"])
    models = pd.DataFrame(keys, columns=["pretrained", "repeat", "looking"])
    is_arm = models["looking"] == "in 1"
    models["gap"] = 50 - 10 * models["pretrained"] + models["repeat"] + effect * is_arm
    models["area_matched_iou"] = (moved + random.normal(0, 0.001, 24)) * is_arm
    return models.sample(frac=1, random_state=0)


def table_of(models):
    outcomes = ["gap", "area_matched_iou"]
    return pairs.paired_table(models, [("in 1", "shuffled 1")], outcomes)


CLAIM = {
    "claim": "the gap is lower",
    "measure": "gap",
    "question": "paired_difference",
    "side": "below",
    "primary": True,
    "arm": "in 1",
    "control": "shuffled 1",
}


def judged(claims, table):
    return pairs.paired_claims(check_claims(claims), table)


def test_pairs_are_found_whatever_the_order_of_rows_and_starts_stand_apart():
    models = networks()
    table = table_of(models).set_index(["start", "outcome"])
    assert table.loc[("all", "gap"), "pairs"] == 12
    assert table.loc[("scratch", "gap"), "pairs"] == 6
    # Seeds and starts differ by points; their differences are all near the effect.
    np.testing.assert_allclose(table.xs("gap", level=1)["difference"], -2, atol=1e-6)
    alone = (models["looking"] == "in 1") & (models["repeat"] == 0)
    table = table_of(models[~alone]).set_index(["start", "outcome"])
    assert table.loc[("all", "gap"), "pairs"] == 10


def test_two_networks_of_one_arm_and_seed_are_refused():
    models = networks()
    with pytest.raises(ValueError, match="several networks of an arm"):
        table_of(pd.concat([models, models]))


@pytest.mark.parametrize(
    ("change", "side", "verdict"),
    [
        ({}, "below", "supported"),
        ({}, "above", "contradicted"),
        ({"effect": 0.0}, "below", "cannot tell"),
        ({"moved": 0.0}, "below", "looking was not changed"),
    ],
)
def test_verdicts(change, side, verdict):
    models = networks(**change)
    models["gap"] += np.random.default_rng(1).normal(0, 0.2, len(models))
    found = judged([CLAIM | {"side": side}], table_of(models))
    assert found["verdict"].tolist() == [verdict]


@pytest.mark.parametrize(
    ("repeats", "known"), [(0, False), (1, False), (2, False), (3, True)]
)
def test_with_two_pairs_nobody_knows_whether_looking_changed(repeats, known):
    models = networks()
    few = models[models["pretrained"] & (models["repeat"] < repeats)]
    row = judged([CLAIM], table_of(few)).iloc[0]
    assert row["pairs"] == repeats
    assert row["looking_changed"] == ("yes" if known else "not known")
    assert row["verdict"] == "cannot tell"


def test_primary_claims_are_a_family_of_their_own():
    table = table_of(networks())
    further = CLAIM | {"primary": False}
    other = {"claim": "", "measure": "iou", "question": "r_gap", "side": "below"}
    found = judged([further, CLAIM, CLAIM, other], table)
    assert found["primary"].tolist() == [True, True, False]
    p = found["p"].iloc[0]
    assert found["p_adjusted"].tolist() == pytest.approx([2 * p, 2 * p, p])
    assert judged([], table)["verdict"].tolist() == []


def test_the_detectable_difference_is_told_in_four_of_five_experiments():
    """Twelve pairs, differences of SD 1, simulated 20,000 times."""
    noise = np.random.default_rng(3).normal(size=(20_000, 12))
    ends = scipy.stats.t.ppf(0.975, 11) * noise.std(1, ddof=1) / 12**0.5
    one = paired_difference(noise[0] / noise[0].std(ddof=1))
    told = noise.mean(1) + one["detectable"] > ends
    assert told.mean() == pytest.approx(0.8, abs=0.02)


def test_a_covariate_held_fixed_is_an_analysis_of_covariance_with_a_level_a_pair():
    generator = np.random.default_rng(5)
    accuracy = generator.uniform(90, 100, size=(9, 2))
    effect = np.array([0.0, -2.0])
    noise = generator.normal(0, 0.3, size=(9, 2))
    gap = 50 + np.arange(9)[:, None] + 0.6 * accuracy + effect + noise
    result = paired_difference(gap[:, 1] - gap[:, 0], np.diff(accuracy)[:, 0])
    pair = np.eye(9).repeat(2, 0)
    columns = np.column_stack([np.tile([0.0, 1.0], 9), accuracy.ravel(), pair])
    solution = np.linalg.lstsq(columns, gap.ravel(), rcond=None)
    variance = solution[1][0] / (18 - 11)
    error = np.sqrt(variance * np.linalg.inv(columns.T @ columns)[0, 0])
    half = scipy.stats.t.ppf(0.975, 7) * error
    mean = solution[0][0]
    p = 2 * scipy.stats.t.sf(abs(mean) / error, 7)
    expected = [mean, mean - half, mean + half, p]
    names = ["difference", "low", "high", "p"]
    assert [result[name] for name in names] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("differences", "covariate"),
    [([1.0, 2.0], [1.0, 0.0]), ([1.0, 2.0, 3.0, 4.0], [1.0] * 4)],
)
def test_without_enough_pairs_or_spread_nothing_is_held_fixed(differences, covariate):
    result = paired_difference(differences, covariate)
    assert np.isnan([result["low"], result["p"]]).all()


def test_gaps_at_one_training_accuracy_lie_on_the_line_between_snapshots():
    snapshots = {
        "run_id": ["below", *["between"] * 3, "above"],
        "train_accuracy": [0.80, 0.90, 1.00, 0.50, 0.97],
        "test_accuracy": [0.30, 0.30, 0.40, 0.90, 0.20],
    }
    gaps = gap_at_training_accuracy(pd.DataFrame(snapshots))
    assert gaps["between"] == pytest.approx(0.95 - 0.35)
    assert gaps[["below", "above"]].isna().all()
