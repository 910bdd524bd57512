"""Studies side by side: what they share, what one predicts of another, and classes."""

import shutil

import pandas as pd
import pytest

from helpers.report import __main__ as command
from helpers.report import comparison
from tests.report import made


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Two studies of the same measures; the gaps of the second are larger by 0.1."""
    folder = tmp_path_factory.mktemp("reports")
    made.write_report(folder / "first")
    shutil.copytree(folder / "first", folder / "second")
    path = folder / "second/tables/catalogue.csv"
    models = pd.read_csv(path)
    models["gap"] += 0.1
    models["test_accuracy"] -= 0.1
    models.to_csv(path, index=False)
    pd.DataFrame(
        {"class": ["a"], "iou": [0.25], "train_accuracy": [0.9], "gap": [0.375]}
    ).to_csv(folder / "first/tables/classes.csv", index=False)
    return folder


def test_the_page_holds_rows_predictions_and_classes_of_both(reports):
    assert command.main(["compare", "first", "second", "--reports", str(reports)]) == 0
    page = made.Page(reports / "comparison.html")
    links = page.of("a", "href")
    assert {"first/index.html", "second/index.html"} <= set(links)
    # Notebook 10 of the second study left no table of classes.
    assert "Notebook 10 of second has not written" in page.text
    assert "37.5" in page.text  # the gap of its class, points
    index = made.Page(reports / "index.html")
    assert "comparison.html" in index.of("a", "href")


def test_rows_of_both_studies_stand_together(reports):
    rows = comparison.side_by_side(reports, ["first", "second"])
    assert rows["study"].tolist() == ["first", "second"] * (len(rows) // 2)
    primary = pd.read_csv(reports / "first/tables/primary.csv").set_index("measure")
    ours = rows[rows["study"] == "first"].set_index("measure")
    assert ours["r_gap"].dropna().to_dict() == primary["r_gap"].dropna().to_dict()


def test_a_shift_of_all_gaps_is_the_error_of_the_best_prediction(reports):
    """Hyperparameters give the gap, so what errs is the shift alone."""
    table = comparison.predictions(reports, ["first", "second"])
    row = table.query("measure == 'hyperparameters' and judged_on == 'second'")
    assert row["error_points"].item() == pytest.approx(10, abs=0.01)
    assert row["n"].item() == 36
    assert not table.duplicated(["measure", "trained_on", "judged_on"]).any()


def test_measures_agree_where_all_studies_have_one_verdict():
    rows = pd.DataFrame(
        [
            ("one", False, "a", "smaller", "smaller"),
            ("one", False, "b", "smaller", "cannot tell"),
            ("two", False, "a", "larger", "larger"),
            ("two", False, "b", "smaller", "larger"),
            ("three", False, "a", "cannot tell", "cannot tell"),
            ("three", False, "b", "cannot tell", "cannot tell"),
            ("four", True, "a", "larger", "larger"),
            ("four", True, "b", "larger", "larger"),
        ],
        columns=[
            *("title", "baseline", "study"),
            *("r_gap_verdict", "r_gap_given_start_verdict"),
        ],
    )
    assert comparison.agreement(rows) == (
        "Clearly correlated with the gap, and with the same sign in each study: one. "
        "With the pretrained start held fixed: two."
    )


def test_a_verdict_beside_other_studies_is_that_of_the_studys_own_claims(tmp_path):
    """An interval on one side of 0 is not enough: p among all claims decides."""
    for name, p in (("first", 0.2), ("second", 0.001)):
        made.write_report(tmp_path / name)
        claim = {"measure": ["iou"], "question": ["r_gap"], "p_adjusted": [p]}
        pd.DataFrame(claim).to_csv(tmp_path / name / "tables/claims.csv", index=False)
    for name in ("first", "second"):
        path = tmp_path / name / "tables/primary.csv"
        primary = pd.read_csv(path)
        is_iou = primary["measure"] == "iou"
        primary.loc[is_iou, ["r_gap", "r_gap_low", "r_gap_high"]] = [-0.5, -0.7, -0.3]
        primary.to_csv(path, index=False)
    rows = comparison.side_by_side(tmp_path, ["first", "second"])
    of_iou = rows[rows["measure"] == "iou"].set_index("study")["r_gap_verdict"]
    assert of_iou.to_dict() == {"first": "cannot tell", "second": "smaller"}


def test_one_study_alone_or_one_without_its_rows_is_refused(reports, capsys):
    assert command.main(["compare", "first", "--reports", str(reports)]) == 2
    assert "two studies at least are compared, got first" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match="execute 04 of third again"):
        comparison.side_by_side(reports, ["first", "third"])
