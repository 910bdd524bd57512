"""Numbers of findings: those of the tables, verdicts by one rule, and sentences that are refused once they no longer hold."""

import numpy as np
import pandas as pd
import pytest

from helpers.report import findings
from helpers.report.conclusions import no_verdicts, not_learnt, nothing_concluded
from helpers.report.numbers import Numbers, StaleSentence, holding
from helpers.statistics.verdicts import OverlapFacts, condition_table
from tests.report import made


@pytest.fixture(scope="module")
def tables():
    scores = made.measures(made.catalogue()).melt(
        "model_id", list(made.TITLES), "measure"
    )
    images = pd.DataFrame({"test_images": [1000]})
    return made.tables() | {"scores": scores.assign(variant=""), "images": images}


def of(tables, **changes):
    return Numbers(tables | changes, made.Path("none"))


def changed(table, measure, **values):
    rows = table["measure"] == measure
    return table.assign(
        **{name: table[name].mask(rows, value) for name, value in values.items()}
    )


@pytest.mark.parametrize(
    ("p", "low", "high", "gap"),
    [
        (0.01, -0.5, -0.1, "smaller"),
        (0.01, 0.1, 0.5, "larger"),
        (0.01, -0.5, 0.1, "cannot tell"),
        (0.2, -0.5, -0.1, "cannot tell"),  # an interval is not enough
    ],
)
def test_a_verdict_needs_an_interval_on_one_side_and_a_small_p(
    tables, p, low, high, gap
):
    names = ("p_adjusted", "low", "high")
    values = {
        f"r_gap_given_start_{name}": value
        for name, value in zip(names, (p, low, high), strict=True)
    }
    primary = changed(tables["primary"], "pointing_game", **values)
    numbers = of(tables, primary=primary)
    assert numbers.verdict("pointing_game", "r_gap_given_start") == gap
    titles = numbers.titles(gap, "r_gap_given_start")
    assert "pointing game" in titles


def test_the_p_of_a_claim_decides_where_one_asks_the_same(tables):
    question = "r_gap_within_kinds"
    sides = {f"{question}_low": -0.9, f"{question}_high": -0.5}
    primary = changed(tables["primary"], "pointing_game", **sides)
    primary = changed(primary, "pointing_game", **{f"{question}_p_adjusted": 0.001})
    for p, gap in ((0.058, "cannot tell"), (0.01, "smaller")):
        claims = changed(tables["claims"], "pointing_game", p_adjusted=p)
        numbers = of(tables, primary=primary, claims=claims)
        assert numbers.verdict("pointing_game", question) == gap


def test_an_improvement_needs_its_interval_and_its_p(tables):
    saved = "saved_from_best_points"
    for p, low, improves in (
        (0.01, 0.5, True),
        (0.06, 0.5, False),
        (0.01, -0.1, False),
    ):
        values = {f"{saved}_p_adjusted": p, f"{saved}_low": low}
        primary = changed(tables["primary"], "mixup_accuracy", **values)
        assert of(tables, primary=primary).improves("mixup_accuracy") is improves


def test_the_best_measure_has_a_value_in_every_network(tables):
    primary = changed(tables["primary"], "mixup_accuracy", error_with_twins=0.1)
    assert of(tables, primary=primary).best == "mixup_accuracy"
    fewer = changed(primary, "mixup_accuracy", n=35)
    assert of(tables, primary=fewer).best != "mixup_accuracy"


def test_an_error_across_studies_is_that_of_the_study_it_was_fitted_on(tmp_path):
    rows = [("iou", "kinds20", 12.34), ("iou", "filled20", 5.61)]
    rows.append(("training", "kinds20", 3.0))
    across = pd.DataFrame(rows, columns=["measure", "trained_on", "error_points"])
    numbers = Numbers({"across": across}, tmp_path)
    assert numbers.across_error("iou", "filled20") == "5.6"
    assert numbers.across_error("training") == "3.0"
    with pytest.raises(KeyError, match=r"has 2 errors of 'iou'.*filled20, kinds20"):
        numbers.across_error("iou")
    with pytest.raises(KeyError, match="has 0 errors"):
        numbers.across_error("iou", "filled2")


def test_r_among_networks_of_one_start_is_that_of_these_networks(tables):
    numbers = of(tables)
    models = made.measures(made.catalogue())
    for start, pretrained in (("pretrained", True), ("scratch", False)):
        rows = models[models["pretrained"] == pretrained]
        expected = np.corrcoef(rows["pointing_game"], rows["gap"])[0, 1]
        row = numbers.by_start.set_index("measure").loc["pointing_game"]
        assert row[start] == pytest.approx(expected)
        assert row[f"{start}_low"] <= expected <= row[f"{start}_high"]
        assert row[f"{start}_n"] == len(rows)
    alike = tables["catalogue"].assign(pretrained=True)
    assert not len(of(tables, catalogue=alike).by_start)


def test_what_is_held_fixed_is_taken_off_as_the_mean_of_its_networks(tables):
    numbers = of(tables)
    models = made.measures(made.catalogue())
    rows = numbers.held_fixed.set_index("measure")
    for step, fixed in (
        ("start", ["pretrained"]),
        ("augmentation", ["pretrained", "augmentation"]),
    ):
        groups = models.groupby(fixed)
        left = [
            models[name] - groups[name].transform("mean")
            for name in ("pointing_game", "gap")
        ]
        expected = np.corrcoef(*left)[0, 1]
        row = rows.loc["pointing_game"]
        assert row[step] == pytest.approx(expected)
        assert row[f"{step}_low"] <= expected <= row[f"{step}_high"]
    assert "images" not in rows  # no networks differ in their number of images
    alike = tables["catalogue"].assign(pretrained=True, augmentation=True)
    assert not len(of(tables, catalogue=alike).held_fixed)


def test_the_best_network_is_told_apart_by_intervals_that_do_not_overlap(tables):
    catalogue = (
        tables["catalogue"]
        .head(3)
        .assign(test_accuracy=[0.50, 0.60, 0.58], gap=[0.4, 0.3, 0.3])
    )
    best = of(tables, catalogue=catalogue).winner
    # Wilson's interval of 600 of 1,000 by hand, with z = 1.96.
    middle = (0.6 + 1.96**2 / 2000) / (1 + 1.96**2 / 1000)
    half = 1.96 * (0.24 / 1000 + 1.96**2 / 4e6) ** 0.5 / (1 + 1.96**2 / 1000)
    assert best["low"] == f"{100 * (middle - half):.2g} %"
    assert best["high"] == f"{100 * (middle + half):.2g} %"
    assert (best["accuracy"], best["gap"]) == ("60 %", "30.0")
    assert (best["others"], best["alike"]) == (2, 1)  # 58 % overlaps, 50 % does not
    pointing = made.measures(made.catalogue()).set_index("model_id")["pointing_game"]
    chance = 100 * pointing[catalogue["model_id"].iloc[1]]
    assert best["chance"] == pytest.approx(chance)
    assert of({}).winner == {}


def test_a_difference_is_that_of_all_pairs_of_an_arm_and_its_control(tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/looking_differences.csv").write_text(
        "arm,control,start,outcome,pairs,difference,low,high,p\n"
        "in,other,all,gap,8,-0.5,-2,1,0.5\n"
        "in,other,scratch,gap,4,1,0,2,0.2\n"
        "in,other,all,test_accuracy,8,3,2,4,0.1\n"
    )
    row = Numbers({}, tmp_path).difference("in", "other", "gap")
    assert row[["pairs", "difference", "low", "high"]].tolist() == [8, -0.5, -2, 1]
    with pytest.raises(KeyError):
        Numbers({}, tmp_path).difference("in", "other", "overlap")
    with pytest.raises(KeyError, match="looking_differences"):
        Numbers({}, tmp_path / "tables").difference("in", "other", "gap")


def test_errors_along_an_axis_are_in_percent_by_level(tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/marginals.csv").write_text(
        "axis,level,error_mean\nssim,0.7,0.5\nssim,1,0.25\nweights,9,0.75\n"
    )
    (tmp_path / "tables/table2_tradeoff.csv").write_text(
        "quantity,value,low,high\nssim,0.7,0.6,0.8\n"
    )
    numbers = Numbers({}, tmp_path)
    assert numbers.error_along("ssim").to_dict() == {0.7: 50, 1.0: 25}
    assert numbers.trade_off.loc["ssim", "high"] == 0.8
    with pytest.raises(KeyError, match="marginals"):
        Numbers({}, tmp_path / "tables").error_along("ssim")


def test_the_claim_on_a_difference_is_that_of_its_arms_and_outcome(tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/looking_claims.csv").write_text(
        "claim,arm,control,measure,p_adjusted,verdict\n"
        "Gap,in,other,gap,0.02,supported\n"
        "Accuracy,in,other,test_accuracy,0.3,cannot tell\n"
    )
    claim = Numbers({}, tmp_path).claim_of_arms("in", "other", "gap")
    assert (claim["claim"], claim["p_adjusted"]) == ("Gap", 0.02)
    assert claim["verdict"] == "supported"
    with pytest.raises(KeyError):
        Numbers({}, tmp_path).claim_of_arms("in", "plain", "gap")
    with pytest.raises(KeyError, match="looking_claims"):
        Numbers({}, tmp_path / "tables").claim_of_arms("in", "other", "gap")


def test_a_sentence_whose_condition_fails_is_named():
    holds = holding("made")
    assert holds(True, lambda: "A  fact.\n") == "A fact.\n"
    with pytest.raises(StaleSentence, match=r"params/made.md.j2: .*: A fact\."):
        holds(False, lambda: "A fact.")


@pytest.mark.parametrize("study", ["kinds20", "filled20"])
def test_a_turned_correlation_stops_the_findings_of_a_study(study, monkeypatch):
    report = findings.PROJECT_ROOT / "reports" / study
    tables = findings.read(report)
    turned = {"r_gap": 0.9, "r_gap_low": 0.8, "r_gap_high": 0.95}
    primary = changed(tables["primary"], "area_matched_iou", **turned)
    monkeypatch.setattr(findings, "read", lambda _: tables | {"primary": primary})
    with pytest.raises(StaleSentence, match="etworks with smaller gaps"):
        findings.of_report(report)


def test_a_value_of_a_condition_is_that_of_its_measure():
    models = pd.DataFrame(
        {"gap": [0.1, 0.1], "test_accuracy": 0.1, "cell": "a", "stop_reason": "cap"}
    )
    gates = condition_table(
        models, models, classes=4, overlaps=OverlapFacts(0.7, {"iou": [0.9]})
    )
    assert of({"gates": gates}).condition("the mask can miss", "iou") == 0.9
    with pytest.raises(KeyError, match="no 'other' of 'iou'"):
        of({"gates": gates}).condition("other", "iou")


def test_too_few_networks_that_learnt_are_named_with_the_remedy_and_nothing_else():
    models = made.catalogue().head(10).assign(max_epochs=30)
    failed = models.assign(
        left_out=["train accuracy not above 50%"] * 7 + [""] * 3,
        train_accuracy=[0.27, *[0.4] * 5, 0.5, *[0.9] * 3],
    )
    text = nothing_concluded({"catalogue": failed, "primary": pd.DataFrame()})
    assert text.startswith(
        "7 of 10 networks did not learn enough (training accuracy 27 % to 50 %)"
    )
    assert "60 epochs" in text
    enough = failed.assign(left_out=["train accuracy not above 50%"] * 6 + [""] * 4)
    assert not_learnt(enough) == ""
    first = models.assign(snapshot="first", left_out="train accuracy not above 50%")
    both = pd.concat([first, models])
    assert not_learnt(both) == "", "what counts is where a run ended"
    diverged = models.assign(
        snapshot="none", train_accuracy=np.nan, left_out="diverged before a snapshot"
    )
    text = not_learnt(diverged)
    assert text.startswith("10 of 10 networks did not learn enough, so")


def test_a_study_that_is_too_small_or_claims_nothing_says_so(tables):
    ends = [name for name in tables["primary"] if name.endswith(("_low", "_high"))]
    small = tables["primary"].assign(**dict.fromkeys(ends, np.nan))
    assert "too small" in no_verdicts(tables | {"primary": small})
    assert "Nothing was claimed" in no_verdicts(tables | {"claims": pd.DataFrame()})
    assert no_verdicts(tables) == nothing_concluded(tables) == ""
    catalogue = {"catalogue": tables["catalogue"]}
    assert "no primary analysis" in nothing_concluded(catalogue)
    assert nothing_concluded({}) == ""


def test_attributions_are_those_that_are_no_class_activation_maps(tables, tmp_path):
    methods = ["Grad-CAM", "saliency", "guided Grad-CAM", "occlusion"]
    (tmp_path / "tables").mkdir()
    pd.DataFrame({"method": methods, "ci_high": [-0.1, 0.2, -0.3, -0.4]}).to_csv(
        tmp_path / "tables/attributions.csv"
    )
    rows = Numbers(tables, tmp_path).attributions
    assert rows["method"].tolist() == ["saliency", "occlusion"]
    assert (rows["ci_high"] < 0).sum() == 1
