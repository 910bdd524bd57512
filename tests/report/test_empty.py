"""The empty case: no networks, no measures, equal gaps, tables without rows."""

import shutil
import warnings

import numpy as np
import pandas as pd
import pytest

from helpers.files import write_table
from helpers.measures import perturbation
from helpers.report import findings, pages
from helpers.report.explore import content
from helpers.scoring.measuring import SCORE_COLUMNS
from helpers.statistics import beyond, correlate, gap_tables, verdicts
from helpers.statistics.correlate import Bootstrap
from tests.conftest import tracked
from tests.report import made

AXES = ["pretrained", "learning_rate"]
MEASURES = list(made.TITLES)
MODELS = correlate.with_log_train_loss(made.measures(made.catalogue()).iloc[::3])
CASES = {
    "all gaps are equal": (MODELS.assign(gap=0.0), MEASURES),
    "no network": (MODELS.iloc[:0], MEASURES),
    "no network, no measure": (MODELS.iloc[:0], []),
    "no measure": (MODELS, []),
    "one network": (MODELS.iloc[:1], MEASURES),
    "undefined measures": (MODELS.assign(**dict.fromkeys(MEASURES, np.nan)), MEASURES),
    "constant measures": (MODELS.assign(**dict.fromkeys(MEASURES, 0.3)), MEASURES),
}


@pytest.mark.parametrize("case", CASES)
def test_no_reader_of_notebook_04_fails_or_warns(case):
    models, measures = CASES[case]
    directions = dict.fromkeys(measures, 1)
    every = Bootstrap(models, draws=5)
    rows = models[gap_tables.primary_rows(models)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stated = gap_tables.primary_table(
            Bootstrap(rows, draws=5), measures, permutations=9
        )
        kinds = gap_tables.kinds_table(rows)
        field = gap_tables.ranking_table(every, measures, AXES, permutations=9)
        gates = verdicts.condition_table(
            rows, models, classes=4, overlaps=verdicts.OverlapFacts(0.2)
        )
        for claims in ([], made.CLAIMS):
            verdicts.verdict_table(claims, stated, field, gates)
        gap_tables.known_in_advance(every, AXES)
        gap_tables.correlation_table(every, measures, [0.9, 0.8])
        gap_tables.selection_table(every, directions, [0.9, 0.8])
        beyond.conditional_table(
            every, directions, AXES, test_images=100, permutations=9
        )
        beyond.task_table(every, measures, AXES, "architecture", permutations=9)
        gap_tables.confounders(every, measures, AXES)
    stated = stated[~stated["baseline"]]
    assert len(stated) == len(field) == len(measures)
    assert len(kinds) == rows["kind"].nunique()
    if case != "no measure" and len(kinds):
        undefined = "equal" in case or "one" in case
        assert kinds["variance_between_kinds"].isna().all() == undefined
        assert stated["r_gap"].isna().all()


@pytest.mark.parametrize("rows", [0, 2])
def test_scores_without_perturbations_have_no_curves(rows):
    scores = [(f"m{row}", "iou", "", 0.1, 0.1, "") for row in range(rows)]
    curves = perturbation.curves_of(pd.DataFrame(scores, columns=SCORE_COLUMNS))
    assert list(curves) == ["model_id", "perturbation", "alpha", "accuracy", "score"]
    assert len(curves) == 0


def emptied(folder, names, *, heads):
    """Leave tables of a report with their heads alone, or with nothing at all."""
    for path in (folder / "tables").iterdir():
        if path.name in names and path.suffix == ".csv":
            table = pd.read_csv(path).iloc[:0]
            path.write_text(table.to_csv(index=False) if heads else "\n")
        elif path.name in names and path.suffix == ".parquet":
            table = pd.read_parquet(path).iloc[:0]
            write_table(path, table if heads else pd.DataFrame())


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = made.write_report(tmp_path_factory.mktemp("reports") / "made")
    pages._write_assets(folder.parent / "assets")
    return folder


def copied(report, to):
    """A copy of the report in a folder of reports of its own; its place."""
    return shutil.copytree(report.parent, to / "reports") / "made"


@pytest.mark.parametrize("heads", [True, False])
def test_a_report_whose_tables_have_no_rows_has_pages_and_findings(
    report, tmp_path, heads
):
    whole = copied(report, tmp_path)
    names = [path.name for path in (report / "tables").iterdir()]
    emptied(whole, names, heads=heads)
    assert pages.write(whole).is_file()
    assert findings.page(whole).startswith("# made: ")
    for name in names:
        one = tmp_path / name
        shutil.copytree(report / "tables", one / "tables")
        emptied(one, [name], heads=heads)
        if name.removesuffix(".csv") in findings.READ:
            assert findings.page(one)
        elif name != "scored_images.npz":
            content.of_report(one)


def test_an_index_says_that_no_network_is_above_80_percent_training_accuracy(
    report, tmp_path
):
    folder = copied(report, tmp_path)
    low = made.catalogue().assign(train_accuracy=0.7, gap=0.3)
    low.to_csv(folder / "tables/catalogue.csv", index=False)
    emptied(folder, ["primary.csv", "kinds.csv", "claims.csv"], heads=True)
    pages.write(folder)
    text = made.Page(folder / "index.html").text
    assert "None of 36 networks reached 80 % training accuracy on right labels" in text
    assert "(the highest: 70 %)" in text and "max_epochs" in text
    found = findings.of_report(folder)
    assert not found.parts and "larger values" not in found.answer


def test_a_primary_analysis_without_a_measure_says_how_to_have_one(report, tmp_path):
    shutil.copytree(report / "tables", tmp_path / "tables")
    emptied(tmp_path, ["primary.csv"], heads=True)
    assert "None of the measures" in findings.of_report(tmp_path).warning


def test_a_damaged_picture_costs_itself_and_is_named(report, tmp_path):
    folder = copied(report, tmp_path)
    other = shutil.copytree(folder, folder.with_name("other"))
    (other / "index.html").touch()  # a study is listed by its index
    for name in ("other", "primary"):
        path = folder / f"figures/04_baselines-{name}.png"
        path.write_bytes(path.read_bytes()[:200])
    pages.write(folder)
    shown = made.Page(folder / "04_baselines.html")
    assert shown.of("img", "src")[0].startswith("data:image/png;base64,")
    assert "04_baselines-other.png is damaged" in shown.text
    assert made.Page(folder / "index.html").of("img", "src") == []
    studies = made.Page(folder.parent / "index.html")
    assert studies.of("img", "src") == ["other/figures/04_baselines-primary.png"]
    assert "cannot be read" not in studies.text


def test_no_committed_report_shows_a_warning_of_python():
    for path in tracked("reports/*/*.ipynb"):
        assert "Warning: " not in path.read_text(encoding="utf-8"), path
