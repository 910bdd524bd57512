"""The page of findings: written from committed tables, checked against them, and refused where they are missing."""

import itertools

import numpy as np
import pandas as pd
import pytest

from helpers.files import PROJECT_ROOT
from helpers.report import claims, findings_page
from helpers.statistics.claims import KeptClaims
from helpers.statistics.gates import NOT_KNOWN
from helpers.statistics.questions import known_in_advance
from helpers.statistics.verdicts import CLAIM_COLUMNS, STATED_COLUMNS, judged

TABLES = sorted((PROJECT_ROOT / "reports").glob("*/tables/gates.csv"))  # of the first studies there are none
PAGES = [path.parents[1] for path in TABLES if path.parents[1].joinpath(findings_page.PAGE).is_file()]
CLAIMS = [
    {"claim": "IoU falls as the gap grows", "measure": "iou", "question": "r_gap", "side": "below", "primary": True, "published": -0.8},
    {"claim": "IoU-B falls as the gap grows", "measure": "iou_b", "question": "r_gap", "side": "below", "published": -0.7},
    {"claim": "IoU adds to what is known", "measure": "iou", "question": "added_error_points", "side": "above"},
]
KEPT = KeptClaims(CLAIMS, "abc", "2026-01-01 00:00", 0)


@pytest.fixture(scope="module")
def tables():
    """Tables of a made-up study of 48 models, as notebooks 02 and 04 leave them."""
    rng, n = np.random.default_rng(0), 48
    train, test = rng.uniform(0.85, 1, n), rng.uniform(0.3, 0.8, n)
    names = {"model_id": [f"r{k}@stop" for k in range(n)], "run_id": [f"r{k}" for k in range(n)], "cell": [f"c{k // 2}" for k in range(n)]}
    facts = {"status": "complete", "snapshot": "stop", "stop_reason": "rule 1", "seconds": 10.0, "device": "one machine"}
    catalogue = pd.DataFrame(names | facts | {"train_accuracy": train, "test_accuracy": test, "gap": train - test, "train_loss": 1 - train})
    catalogue = catalogue.assign(batch_size=np.where(np.arange(n) % 4 < 2, 16, 32), images_per_class=0, left_out="")
    models = catalogue.assign(iou=0.4 - 0.5 * catalogue["gap"] + 0.01 * rng.normal(size=n), iou_b=rng.normal(size=n))
    values = {name: models[[name]].to_numpy() + 0.1 * (np.arange(40) % 2 - 0.5) for name in ("iou", "iou_b")}
    values["iou_above_shuffled"] = values["iou"]
    gates = claims.study_gates(models.assign(whole_image_floor=0.3, mask_area=0.4), 10, values)
    table, bands = claims.ranking(models, ["batch_size"], {"iou": 1.0}, values, draws=200, permutations=99, seed=0)
    levels = pd.DataFrame({"hyperparameter": ["batch_size"], "levels": ["16, 32"], "published": ["16, 32, 64"]})
    told = judged(CLAIMS, table, gates, [("iou", "iou_b")])
    table3 = pd.DataFrame({"architecture": ["resnet18", "Total", "Total"], "threshold": [0.8, 0.8, 0.5], "measure": "iou", "n": 30})
    table3 = table3.assign(pearson_r=[-0.3, -0.31, -0.2], ci_low=-0.5, ci_high=0.1, published_r=[-0.89, -0.8159, np.nan])
    found = {"catalogue": catalogue, "gates": gates, "claims": told[CLAIM_COLUMNS], "told": told}
    known = known_in_advance(models, ["batch_size"], draws=200)
    return found | {
        "claims_stated": claims.stated(told, KEPT),
        "measures_ranking": claims.ranking_columns(table),
        "known_in_advance": known,
        "table3_iou": table3,
        "table2_hyperparameters": levels,
        "full": table,
        "bands": bands,
    }


@pytest.fixture
def reports(tmp_path, tables):
    folder = tmp_path / "made_up/tables"
    folder.mkdir(parents=True)
    for name in findings_page.MADE_BY:
        tables[name].to_csv(folder / f"{name}.csv", index=False)
    return tmp_path


def run(reports, *options):
    return findings_page.main(["made_up", "--reports", str(reports), *options])


def test_a_page_tells_gates_claims_and_what_a_measure_adds_and_passes_its_check(reports, capsys):
    (reports / "made_up/LEFT_OUT.md").write_text("Augmentation, for want of time.\n")
    assert run(reports, "--write") == 0
    text = (reports / "made_up/FINDINGS.md").read_text()
    assert "**This study may not speak**" in text  # 24 cells are not 40
    assert "| enough cells | every claim | 24 | at least 40 cells | **no** |" in text
    assert "IoU falls as the gap grows: **not tested here**" in text
    assert "    - as a variant, not judged apart: IoU-B falls as the gap grows: " in text
    assert "| variant: IoU-B falls as the gap grows | -0.7 |" in text
    assert "before the first run" in text
    assert "48 models, fewer than 150, this is a **pilot**" in text
    assert "Error of the predicted gap of cells left out, in points: mean by" in text
    assert "training accuracy (baseline)" in text
    assert "Augmentation, for want of time." in text
    assert "nan" not in text
    assert run(reports) == 0
    assert "every number" in capsys.readouterr().out


def test_a_number_or_a_table_that_was_changed_fails_and_is_shown(reports, capsys):
    run(reports, "--write")
    path = reports / "made_up/FINDINGS.md"
    path.write_text(path.read_text().replace("at least 40 cells", "at least 4 cells"))
    capsys.readouterr()
    assert run(reports) == 1
    assert "at least 4 cells" in capsys.readouterr().out
    run(reports, "--write")
    gates = pd.read_csv(reports / "made_up/tables/gates.csv")
    gates.assign(value=gates["value"] + 1).to_csv(reports / "made_up/tables/gates.csv", index=False)
    assert run(reports) == 1


@pytest.mark.parametrize(("table", "notebook"), [("gates", "04_baselines"), ("catalogue", "02_grid_training")])
def test_a_study_without_a_table_is_refused_by_name(reports, capsys, table, notebook):
    (reports / f"made_up/tables/{table}.csv").unlink()
    assert run(reports) == 2
    assert notebook in capsys.readouterr().err


def test_the_ranking_names_what_goes_with_the_gap_and_which_way(tables):
    text = claims.say_ranking(tables["full"], tables["bands"])
    assert text.startswith("Of 2 measures, alone 1 go with the gap, 1 as promised and 0 the other way (IoU); given the fit 1 go")
    assert "Largest: **IoU**, r = -0.9" in text
    turned = tables["full"].assign(direction=-tables["full"]["direction"])
    assert "0 as promised and 1 the other way (IoU)" in claims.say_ranking(turned, tables["bands"])
    assert "Too few" in claims.say_ranking(tables["full"].assign(r_gap_low=np.nan), {})


def test_a_stranger_reads_whether_the_study_may_speak_and_whether_its_claims_are_older_than_its_runs(tables):
    may = claims.say_gates(tables["gates"])
    assert may.startswith(
        "**This study may not speak**: of the gates that concern every claim these are closed: enough cells (24; at least"
    )
    assert claims.say_gates(tables["gates"].assign(passes=True)).startswith("**This study may speak**")
    facts = tables["claims_stated"]
    assert facts.columns.tolist() == ["claim", *STATED_COLUMNS, "primary", "digest", "first_seen", "runs"]
    assert claims.say_stated(facts).endswith("UTC, before the first run.")
    assert "when 3 runs were there already, so not beforehand" in claims.say_stated(facts.assign(runs=3))
    assert claims.say_stated(facts.iloc[:0]) == ""
    (row,) = tables["told"][tables["told"]["primary"].astype(bool)].itertuples()
    assert "**not tested here**; here -0.9" in claims.claim_sentence(row)
    assert "published -0.80, n = 48" in claims.claim_sentence(row)
    told = [
        claims.claim_sentence(row._replace(verdict=verdict, question=question, p_adjusted=p))
        for verdict, question, p in itertools.product(("cannot tell", "supported"), ("added_error_points", "r_gap"), (0.01, 0.2))
    ]
    assert [number for number, text in enumerate(told) if "but not that error is saved" in text] == [0]
    clear = row._replace(ci_low=0.1, ci_high=0.5, between_cells=-0.06, between_cells_low=-0.3, between_cells_high=0.2)
    assert "; means of cells -0.06 (95 % interval -0.30 to 0.20), so it need not hold between" in claims.claim_sentence(clear)
    assert "so it need not" not in claims.claim_sentence(clear._replace(between_cells_low=-0.1, between_cells_high=-0.02))
    assert "so it need not" not in claims.claim_sentence(clear._replace(ci_low=-0.1))
    assert "means of cells" not in claims.claim_sentence(clear._replace(between_cells=np.nan))


def test_beside_the_paper_stand_models_that_are_fitted_as_well_as_its(tables):
    text = findings_page.beside_the_paper(tables["table3_iou"])
    assert text.splitlines()[2:] == ["| IoU | 80% | -0.31 (-0.50 to 0.10) | 30 | -0.82 |"]
    assert findings_page.beside_the_paper(tables["table3_iou"].query("threshold == 0.5")) == ""


def test_what_is_held_fixed_stands_beside_all_models(tables, reports):
    rows = [
        ("iou", "pooled", "all", "", -0.9, np.nan, np.nan),
        ("iou", "within a level", "batch_size", "16", 0.3, 0.1, 0.5),
        ("iou", "within a level", "batch_size", "32", -0.2, -0.4, 0.0),
        ("iou", "within a level", "optimizer", "sgd", np.nan, np.nan, np.nan),
        ("iou", "given all", "all", "", 0.25, 0.1, 0.4),
        ("iou_b", "pooled", "all", "", 0.0, np.nan, np.nan),
    ]
    table = pd.DataFrame(rows, columns=["measure", "kind", "hyperparameter", "level", "r", "ci_low", "ci_high"])
    text = findings_page.held_fixed_section(table, tables["measures_ranking"], {"iou", "iou_b"})
    (line,) = text.splitlines()[2:]
    assert line.endswith("| 0.25 (0.10 to 0.40) | batch_size 32: -0.20 (-0.40 to 0.00) | batch_size 16: 0.30 (0.10 to 0.50) |")
    assert findings_page.held_fixed_section(table, tables["measures_ranking"], {"iou_b"}) == ""
    assert run(reports, "--write") == 0 and "held fixed\n" not in (reports / "made_up/FINDINGS.md").read_text()
    table.to_csv(reports / "made_up/tables/confounders.csv", index=False)
    assert run(reports, "--write") == 0 and line in (reports / "made_up/FINDINGS.md").read_text()


def test_where_labels_alone_turn_wrong_the_claimed_measures_stand_beside_what_r_promises(tables, reports):
    rows = [("gap", 22, 0.5, 0.3, 0.7, 1.0, 1.0, 1.0, 0.5, "same direction")]
    rows += [("iou", 22, 1.5, 1.2, 1.8, -0.5, -0.7, -0.3, -0.25, "opposite direction")]
    rows += [("iou_b", 22, 0.1, -0.1, 0.3, -0.4, -0.6, -0.2, -0.2, "not told"), ("train_loss", 22, 1, 1, 1, 1, 1, 1, 1, "not told")]
    names = ["measure", "n", "shift", "ci_low", "ci_high", "r", "r_low", "r_high", "promised", "kept"]
    pd.DataFrame(rows, columns=names).to_csv(reports / "made_up/tables/label_noise_shifts.csv", index=False)
    assert run(reports, "--write") == 0
    _, _, part = (reports / "made_up/FINDINGS.md").read_text().partition("## Where labels alone turn wrong\n\n")
    lines = part.splitlines()
    assert lines[2].startswith("| gap | 22 | 1.00 (1.00 to 1.00) | – | 0.50 (0.30 to 0.70) | – |")
    assert lines[3] == "| IoU | 22 | -0.50 (-0.70 to -0.30) | -0.25 | 1.50 (1.20 to 1.80) | opposite direction |"
    assert "train_loss" not in part.partition("\n## ")[0]
    assert "labels right | n |" not in part
    questions = [
        f"{name}{end}" for name in ("r_gap", "r_gap_given_fit", "r_gap_given_all", "added_error_points") for end in ("", "_low", "_high")
    ]
    again = pd.DataFrame([["iou", 20, 15, *np.arange(12) / 10]], columns=["measure", "n", "cells", *questions])
    again.to_csv(reports / "made_up/tables/label_noise_without.csv", index=False)
    assert run(reports, "--write") == 0
    line = "| IoU | 20 | 0.00 (0.10 to 0.20) | 0.30 (0.40 to 0.50) | 0.60 (0.70 to 0.80) | 0.90 (1.00 to 1.10) |"
    text = (reports / "made_up/FINDINGS.md").read_text()
    assert line in text
    assert "Among the 20 models of right labels alone: r of IoU 0.00 (0.10 to 0.20)." in text
    titles = tables["measures_ranking"].set_index("measure")["title"]
    assert findings_page.wrong_labels_section(pd.DataFrame(columns=names), titles, {"iou"}) == ""


def test_what_is_predicted_of_unknown_models_stands_with_what_holds(reports):
    names = ["judged", "calibration", "level", "models", "predicted", "inside", "share", "mean_error", "best_ranked"]
    rows = [["gap", "other", 0.8, 67, 62, 61, 61 / 62, 0.0612, 8.0], ["test accuracy", "other", 0.8, 3, 0, 0, np.nan, np.nan, np.nan]]
    pd.DataFrame(rows, columns=names).to_csv(reports / "made_up/tables/own_truth.csv", index=False)
    assert run(reports, "--write") == 0
    text = (reports / "made_up/FINDINGS.md").read_text()
    assert "| gap | other | 62 of 67 | 80% | 61 of 62 (98.4 %) | 6.1 points | 8 of 62 |" in text
    assert "| test accuracy | other | 0 of 3 | 80% | – | undefined | – |" in text


def test_moments_stand_side_by_side(tables, reports):
    rows = [("iou", "first", 20, 0.5, 0.3, 0.7), ("iou", "stop", 28, -0.2, -0.4, 0.1), ("iou_b", "stop", 28, np.nan, np.nan, np.nan)]
    table = pd.DataFrame(rows, columns=["measure", "level", "n", "pearson_r", "ci_low", "ci_high"])
    table.to_csv(reports / "made_up/tables/moments.csv", index=False)
    assert run(reports, "--write") == 0
    text = (reports / "made_up/FINDINGS.md").read_text()
    assert "| measure | snapshots 'first' (n = 20) | snapshots 'stop' (n = 28) |" in text
    assert "| IoU | 0.50 (0.30 to 0.70) | -0.20 (-0.40 to 0.10) |" in text
    assert "| IoU-B | – | – |" in text
    assert findings_page.moments_section(table[table["level"] == "stop"], pd.Series(dtype=str)) == ""


def test_the_answer_on_the_field_counts_what_is_beyond_chance(tables):
    text = claims.say_field_answer(tables["full"], tables["gates"])
    assert text.startswith("Of 2 measures 1 go with the gap beyond what chance gives the best of so many, ")
    assert text.endswith("Not all gates are passed, so this is no verdict.")
    assert claims.say_field_answer(tables["full"], tables["gates"].assign(passes=True)).endswith("each by its own interval.")
    assert "Too few" in claims.say_field_answer(tables["full"].assign(r_gap=np.nan), tables["gates"])


def test_gates_of_single_measures_say_why_a_value_is_not_known(tables):
    opened = tables["gates"].assign(passes=lambda t: t["passes"] | (t["concerns"] == "all"))
    why = f"reliability at least 0.8{NOT_KNOWN}no mean over images"
    opened.loc[opened["concerns"] == "iou_b", ["value", "passes", "limit"]] = [np.nan, False, why]
    text = claims.say_gates(opened)
    assert text.startswith("**This study may speak of some measures only**")
    assert "Nothing is judged of IoU-B, since of 12 gates 4 are closed to them: " in text
    assert "models differ (IoU-B: not known for 1 of 1)" in text


def test_repeats_say_how_much_of_a_variance_a_seed_makes():
    cells = np.repeat(np.arange(10), 2)
    models = pd.DataFrame({"cell": cells, "snapshot": "stop", "repeat": np.tile([0, 1], 10), "gap": cells / 10, "test_accuracy": 0.5})
    models = models.assign(iou=np.tile([0.1, 0.2], 10), norm=cells + 0.1 * models["repeat"])
    table = claims.repeatability(models, {"iou": "IoU", "norm": "norm", "absent": "absent"}).set_index("measure")
    assert table.loc["gap", "icc"] == 1
    assert np.isnan(table.loc["test_accuracy", "icc"])
    # The mean squares between cells are 0, those within 0.005: (0 - W) / (0 + W) = -1.
    assert table.loc["iou", "icc"] == pytest.approx(-1)
    assert table["groups"].unique().tolist() == [10]
    text = claims.say_repeatability(table.reset_index())
    assert text.startswith("Of the variance of the gap 100.0 % lies between the 10 cells with repeats")
    assert "1 of 2 measures have less than half there, least IoU (-1.00)" in text
    assert "differ in their seed alone" in claims.say_repeatability(claims.repeatability(models[models["repeat"] == 0], {}))


def test_the_columns_of_the_ranking_are_the_contract(tables):
    questions = [f"{name}{end}" for name in claims.COLUMNS_OF_QUESTIONS for end in ("", "_low", "_high")]
    questions += [f"r_gap_between_cells{end}" for end in ("", "_low", "_high")]
    last = ["p_adjusted", "added_error_points", "added_error_points_low", "added_error_points_high", "seconds"]
    wanted = ["measure", "title", "family", "baseline", "n", "images", "reliability", *questions, *last]
    assert list(tables["measures_ranking"].columns) == wanted
    assert tables["measures_ranking"].set_index("measure")["baseline"].to_dict() == {
        "iou": False,
        "iou_b": False,
        "train_accuracy": True,
        "log_train_loss": True,
        "images_per_class": True,
    }


def test_figures_draw_every_measure_by_every_question_and_its_gain(tables):
    figure = claims.ranking_figure(tables["full"], tables["bands"])
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels[-1] == "IoU (1.00)" or "baseline" in labels[-1]
    assert len(labels) == int(tables["full"]["r_gap"].notna().sum())
    assert len(claims.added_figure(tables["full"], tables["known_in_advance"]).axes[0].get_yticklabels()) == 2
    empty = claims.ranking_figure(tables["full"].assign(r_gap=np.nan), {})
    assert "No measure" in empty.axes[0].texts[0].get_text()


def mask_metrics(true: float, extra: float, missed: float) -> dict[str, float]:
    """The four metrics of masks, from the shares of pixels that are rightly, wrongly and not covered."""
    rest = 1 - true - extra - missed
    item, background = true / (true + extra + missed), rest / (rest + extra + missed)
    return {
        "mask_agreement": (item + background) / 2,
        "mask_agreement (IoU of the object)": item,
        "mask_agreement (frequency-weighted IoU)": (true + missed) * item + (extra + rest) * background,
        "mask_agreement (pixel accuracy)": true + rest,
    }


@pytest.mark.parametrize(("true", "extra", "missed"), [(0.5, 0.4, 0.02), (0.2, 0.3, 0.1), (0.02, 0.02, 0.2)])
def test_areas_of_boxes_and_masks_are_solved_from_the_metrics(true, extra, missed):
    models = pd.DataFrame([mask_metrics(true, extra, missed)])
    areas = claims.mask_areas(models).iloc[0]
    np.testing.assert_allclose(areas[["box", "mask"]].to_numpy(float), [true + missed, true + extra], rtol=1e-9)
    assert claims.mask_areas(models[["mask_agreement"]]).isna().all(axis=None)
    assert claims.mask_areas(models.assign(whole_image_floor=0.1, mask_area=0.2)).iloc[0].tolist() == [0.1, 0.2]


@pytest.mark.parametrize("folder", PAGES, ids=lambda path: path.name)
def test_a_committed_page_holds_what_its_tables_give(folder):
    assert findings_page.main([folder.name]) == 0


def test_measures_of_claims_stand_in_the_ranking_wherever_they_come(tables):
    ranking = tables["measures_ranking"]
    shown = [findings_page.ranking_section(ranking, claimed, most=0) for claimed in ((), {"iou_b"})]
    assert ["| IoU-B |" in text for text in shown] == [False, True]
    assert all("| IoU |" in text and "training accuracy (baseline)" in text for text in shown)
