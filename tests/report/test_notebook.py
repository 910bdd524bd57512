"""What a notebook leaves: tables whole, figures, named results; names stay text, and inside."""

import json
from types import SimpleNamespace

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from helpers.files import PROJECT_ROOT, STAGING, read_table, write_table
from helpers.parameters import StudyError, declared
from helpers.report import notebook
from helpers.report.notebook import Report
from tests.report import made


@pytest.fixture
def report(tmp_path, monkeypatch):
    """A report that a sweep would publish, and what it shows."""
    shown = []
    monkeypatch.setattr(notebook, "display", shown.append)
    folder, work = tmp_path / "reports/my/01_data_subset", tmp_path / "work/my"
    with plt.rc_context():
        yield Report("01_data_subset", folder, work, folder.parent), shown


def curve():
    figure, ax = plt.subplots()
    ax.plot([0, 1, 2], [1, 0, 3], marker="o")
    return figure


def test_a_table_is_written_whole_and_shown_in_part(report):
    opened, shown = report
    models = made.catalogue()
    write_table(opened.work / "catalogue.parquet", models)
    frame = models[["model_id", "gap"]].assign(name="<script>x</script>")
    opened.table(frame, "scores", "**Many** rows.", rows=2)
    opened.save_table(frame, "scores")
    written = pd.read_csv(opened.folder / "tables/scores.csv")
    pd.testing.assert_frame_equal(written, frame)
    written = read_table(opened.folder / "tables/scores.parquet")
    pd.testing.assert_frame_equal(written, frame)
    html = shown[0].data
    assert "2 of 36 rows; all of them: <code>tables/scores.csv</code>" in html
    assert html.count("<tr>") == 2
    assert "<script>" not in html and models["model_id"][0] not in html
    assert shown[1].data == "**Many** rows."


def test_a_figure_is_written_closed_numbered_and_captioned_and_no_name_is_live(report):
    opened, shown = report
    for name in ("first", "iou-against-gap"):
        figure = curve()
        opened.figure(figure, name, "r is **0.5** of <b>x</b>")
        assert not plt.fignum_exists(figure.number)
    assert Image.open(opened.folder / "figures/first.png").format == "PNG"
    title = "Figure 1.2. IoU against gap."
    assert shown[2].alt == title
    assert shown[3].data.startswith(f"**{title}** r is **0.5** of ")
    assert "<b>" not in shown[3].data


@pytest.mark.parametrize("published", [0.1, 0.2])
def test_a_published_figure_is_shown_where_parameters_are_the_same(report, published):
    opened, shown = report
    opened.parameters = SimpleNamespace(threshold=0.1, device="cpu")
    assert not opened.repeats_published
    theirs = {"parameters": {"threshold": published, "device": "cuda"}}
    content = nbformat.v4.new_notebook(metadata={"papermill": theirs})
    (opened.folder / "figures").mkdir(parents=True)
    nbformat.write(content, opened.folder / "01_data_subset.ipynb")
    curve().savefig(opened.folder / "figures/curve.png")
    opened.folder = opened.folder.with_name(".01_data_subset.partial")
    for name in ("curve", "other"):
        opened.figure(None, name, "A line.", "No pixels.")
    curve_told, other_told = (item.data for item in shown[-2:])
    is_same = published == 0.1
    assert opened.repeats_published == is_same
    assert (opened.folder / "figures/curve.png").is_file() == is_same
    assert ("Figure 1.1." in curve_told, "As published" in curve_told) == (is_same,) * 2
    assert "left out" in other_told


def test_a_named_result_is_kept_beside_the_notebook(report):
    opened, shown = report
    opened.result("r_gap", 0.5, -1.0, 1.0)
    opened.result("gap", np.float32(0.25), np.nan, None, unit="points")
    opened.result("r_gap", np.int64(2), 1, 3)  # the cell ran again
    opened.result("undefined", float("nan"))
    opened.tell("It does.", answer=True)
    results = json.loads((opened.folder / "results.json").read_text())
    keys = ("name", "value", "low", "high", "unit")
    assert [[item[key] for key in keys] for item in results] == [
        ["r_gap", 2, 1, 3, ""],
        ["gap", 0.25, None, None, "points"],
        ["undefined", None, None, None, ""],
        ["answer", "It does.", None, None, ""],
    ]
    with pytest.raises(ValueError, match=r"result 'r gap' needs a name of letters"):
        opened.result("r gap", 1)
    opened.end()
    assert "Results by name" in shown[-2].data and "torch" in shown[-1].data


def test_a_table_of_another_notebook_is_that_of_the_same_combination_first(report):
    opened, _ = report
    whole = opened.reports / "04_baselines/tables/scores.csv"
    combination = opened.reports / "sweeps/03/a=1/04_baselines/tables/scores.csv"
    for path in (whole, combination):
        path.parent.mkdir(parents=True)
        path.touch()
    assert opened.table_of("scores.csv") == whole
    opened.folder = opened.reports / "sweeps/03/a=1/.08_unlabelled_images.partial"
    assert opened.table_of("scores.csv") == combination
    combination.unlink()
    assert opened.table_of("scores.csv") == whole
    assert not opened.table_of("none.csv").exists()


def begun(monkeypatch, folder, **changed):
    """A report of notebook 01 that begins with its defaults and some changes."""
    monkeypatch.setattr(notebook, "display", lambda item: None)
    names = declared(PROJECT_ROOT / "notebooks/01_data_subset.ipynb")
    places = {place: str(folder / place[:-4]) for place in ("work_dir", "reports_dir")}
    values = {name: item.default for name, item in names.items()} | places | changed
    with plt.rc_context():
        return Report.begin("01_data_subset", values)


def test_a_notebook_by_hand_writes_to_scratch(monkeypatch, tmp_path):
    monkeypatch.delenv(STAGING, raising=False)
    scratch = tmp_path / "work/demo/scratch/01_data_subset"
    scratch.mkdir(parents=True)
    (scratch / "results.json").touch()  # of the execution before
    opened = begun(monkeypatch, tmp_path, image_size=48)
    assert opened.folder == scratch and opened.work == tmp_path / "work/demo"
    assert opened.parameters.image_size == 48
    assert not (scratch / "results.json").exists()
    extending = begun(monkeypatch, tmp_path, study="threshold_sweep")
    assert extending.work.name == "kinds20"
    assert extending.reports.name == "threshold_sweep"
    monkeypatch.setenv(STAGING, str(tmp_path / "staging"))
    assert begun(monkeypatch, tmp_path).folder == tmp_path / "staging"
    with pytest.raises(StudyError, match="image_size is 8"):
        begun(monkeypatch, tmp_path, image_size=8)


@pytest.mark.parametrize("count", [1, 3, 4])
def test_shares_are_equal_disjoint_and_together_all(count):
    numbers = range(1, count + 1)
    shares = [notebook.select_shard([*range(10)], f"{one}/{count}") for one in numbers]
    assert sorted(item for share in shares for item in share) == [*range(10)]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
