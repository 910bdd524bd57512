"""A published report, explored without images: its tables are enough, and what it lacks is told."""

import shutil
from types import SimpleNamespace

import pandas as pd
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from helpers.data.manifest import MANIFEST
from helpers.files import PROJECT_ROOT
from helpers.report import explore
from helpers.report.explore.published import published_models
from helpers.statistics.resampling import correlated

REPORTS = PROJECT_ROOT / "reports"


@pytest.fixture(autouse=True)
def a_reader(monkeypatch):
    monkeypatch.setenv(explore.SWITCH, "1")


def opened(tmp_path, study, reports=REPORTS):
    InteractiveShell.instance()
    with capture_output() as captured:
        panel = explore.explore_published(SimpleNamespace(work=tmp_path / study), str(reports))
    return panel, "".join(output.data.get("text/markdown", "") for output in captured.outputs)


def test_the_measures_are_those_of_the_published_scores():
    models, titles = published_models(REPORTS / "compact20/tables")
    scores = pd.read_parquet(REPORTS / "compact20/tables/scores.parquet").query("measure == 'iou' and variant == ''").set_index("model_id")
    assert models["iou"].tolist() == scores.loc[models["model_id"], "value"].tolist()
    assert titles["iou"] == "IoU"
    assert models["gap"].notna().all()


def tables_of_03(folder):
    """What notebook 03 leaves of a study whose 04 has not run."""
    folder.mkdir(parents=True)
    for name in ("catalogue.csv", "scores.csv"):
        shutil.copy(REPORTS / "compact20/tables" / name, folder)
    return folder


def test_a_study_without_notebook_04_shows_what_03_has_scored(tmp_path):
    tables = tables_of_03(tmp_path / "begun/tables")
    models, titles = published_models(tables)
    scores = pd.read_csv(tables / "scores.csv").set_index("model_id")
    assert models["iou"].tolist() == scores.loc[models["model_id"], "iou"].tolist()
    assert {"iou", "iou_b"} <= set(titles)


def test_it_opens_from_the_tables_and_says_what_it_reads(tmp_path):
    panel, said = opened(tmp_path, "compact20")
    assert "The images of the study **compact20** are not on this machine: what is shown here is read from its published tables." in said
    models, _ = published_models(REPORTS / "compact20/tables")
    name = panel.controls["measure"].value
    (expected,) = correlated(models, [name], draws=0).to_dict("records")
    assert panel.numbers["pearson_r"] == expected["pearson_r"]


def test_what_was_not_published_is_told(tmp_path):
    tables_of_03(tmp_path / "reports/begun/tables")
    panel, said = opened(tmp_path, "begun", tmp_path / "reports")
    assert not panel.fault
    assert "It holds no training curves and no images and maps." in said


def test_where_the_study_is_at_hand_or_nothing_is_published_there_is_nothing(tmp_path):
    assert opened(tmp_path, "nowhere") == (None, "")
    (tmp_path / "compact20").mkdir()
    (tmp_path / "compact20" / MANIFEST).write_text("{}")
    assert opened(tmp_path, "compact20") == (None, "")


def test_a_report_that_nobody_can_touch_shows_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv(explore.SWITCH, "0")
    assert opened(tmp_path, "compact20") == (None, "")
