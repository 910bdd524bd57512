"""What a notebook leaves: tables whole, figures the same each time, a story that is complete, names that stay text and inside."""

import json
import os
import re
import shutil
from types import SimpleNamespace
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from helpers.files import COMBINATION, PROJECT_ROOT, STAGING, WORK, write_table
from helpers.parameters import StudyError, declared
from helpers.report import figure_files, notebook
from tests.report import made


@pytest.fixture
def report(tmp_path, monkeypatch):
    """A report that a sweep would publish, and what it shows."""
    monkeypatch.setattr(notebook, "from_root", lambda path: tmp_path / path)
    monkeypatch.setenv(STAGING, str(tmp_path / "reports/my"))
    monkeypatch.delenv(WORK, raising=False)
    shown = []
    monkeypatch.setattr(
        notebook,
        "display",
        lambda *contents, **options: shown.extend(
            (content, options) for content in contents
        ),
    )
    with plt.rc_context():
        yield notebook.open_report(study="my", notebook="01_data_subset"), shown


def curve():
    figure, ax = plt.subplots()
    ax.plot([0, 1, 2], [1, 0, 3], marker="o")
    return figure


def test_a_table_is_written_whole_and_shown_in_part(report):
    opened, shown = report
    frame = pd.DataFrame(
        {"name": ["<script>x</script>", "b", "c"], "value": [0.123456, np.nan, 2.0]}
    )
    opened.table(frame, "scores", "**Three** rows.", rows=2)
    opened.save_table(frame, "scores")
    for kept in (
        pd.read_csv(opened.folder / "tables/scores.csv"),
        pd.read_parquet(opened.folder / "tables/scores.parquet"),
    ):
        pd.testing.assert_frame_equal(kept, frame)
    html = shown[0][0].data
    assert (
        "2 of 3 rows; all of them: <code>tables/scores.csv</code>" in html
        and html.count("<tr>") == 3
    )
    assert ">0.12<" in html and ">–<" in html and "<script>" not in html
    assert shown[1][0].data == "**Three** rows."


def test_a_model_has_its_short_name_once_the_catalogue_is_there(report):
    opened, shown = report
    models = made.catalogue()
    opened.work.mkdir(parents=True)
    write_table(opened.work / "catalogue.parquet", models)
    opened.table(models[["model_id", "gap"]], "gaps")
    assert "ResNet18, pretrained, augmented, adam 0.001" in shown[0][0].data
    assert models["model_id"][0] not in shown[0][0].data
    assert (
        pd.read_csv(opened.folder / "tables/gaps.csv")["model_id"].tolist()
        == models["model_id"].tolist()
    )


def test_a_figure_is_written_twice_closed_and_numbered_and_captioned_once(report):
    opened, shown = report
    for name in ("first", "iou-against-gap"):
        figure = curve()
        opened.figure(figure, name, 'r is **0.5**, "not" 0')
        assert not plt.fignum_exists(figure.number)
    path = opened.folder / "figures/01_data_subset-iou-against-gap.png"
    assert (
        path.read_bytes()[:4] == b"\x89PNG"
        and "<svg" in path.with_suffix(".svg").read_text()
    )
    assert shown[2][1]["metadata"]["image/png"]["alt"] == "Figure 1.2. IoU against gap."
    assert shown[3][0].data == '**Figure 1.2. IoU against gap.** r is **0.5**, "not" 0'
    assert [item["path"] for item in opened.story] == [
        f"figures/01_data_subset-{name}.png" for name in ("first", "iou-against-gap")
    ]


def test_the_same_figure_is_the_same_files_and_its_vector_picture_is_short_and_sound(
    report,
):
    opened, _ = report
    contents = []
    for _ in range(2):
        opened.figure(curve(), "curve", "One.")
        contents.append(
            [
                (opened.folder / f"figures/01_data_subset-curve.{end}").read_bytes()
                for end in ("png", "svg")
            ]
        )
    assert contents[0] == contents[1]
    text = contents[0][1].decode()
    paths = re.findall(r' (?:d|x|y)="([^"]*)"', text)
    assert paths and not any(re.search(r"\.\d{3}", path) for path in paths)
    assert (
        "<metadata>" not in text
        and "font-family: Arial, 'DejaVu Sans', sans-serif" in text
    )
    ElementTree.fromstring(text)


def test_photographs_have_no_vector_picture(report):
    opened, _ = report
    figure, ax = plt.subplots()
    ax.imshow(
        np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8),
        interpolation="none",
    )
    opened.figure(
        figure, "photograph", "Its vector picture would hold the same pixels."
    )
    assert [path.name for path in (opened.folder / "figures").iterdir()] == [
        "01_data_subset-photograph.png"
    ]


def execution_that_drew(report_folder, threshold):
    """A published report whose notebook drew a photograph and a curve."""
    drawing = notebook.Report(report_folder, "01_data_subset", report_folder)
    drawing.parameters = SimpleNamespace(threshold=threshold, device="cuda")
    drawing.record("parameters", values={"threshold": str(threshold), "device": "cuda"})
    drawing.figure(curve(), "curve", "It rises.")
    drawing.record("provenance", facts={"finished (UTC)": "2026-11-01 10:00"})
    return drawing


def test_a_figure_that_cannot_be_drawn_stays_as_it_was_published(report):
    opened, shown = report
    drawn = execution_that_drew(opened.published, 0.1)
    before = {path.name: path.read_bytes() for path in drawn.folder.glob("figures/*")}
    assert sorted(before) == ["01_data_subset-curve.png", "01_data_subset-curve.svg"]
    opened.folder = opened.folder.with_name("staging")
    opened.parameters = SimpleNamespace(threshold=0.1, device="cpu")
    opened.published_figure("curve", "Records have no pixels.")
    path = opened.folder / "figures"
    assert {one.name: one.read_bytes() for one in path.iterdir()} == before
    caption = (
        "It rises. *This figure is of the execution of 2026-11-01 10:00 (UTC), as "
        "published. Records have no pixels.*"
    )
    assert shown[-1][0].data == f"**Figure 1.1. Curve.** {caption}"
    assert shown[-2][0]["image/png"]
    assert opened.story[-1] == {
        "kind": "figure",
        "name": "curve",
        "path": "figures/01_data_subset-curve.png",
        "reading": caption,
        "alt": "Figure 1.1. Curve.",
        "origin": {"caption": "It rises.", "finished": "2026-11-01 10:00"},
    }
    # Published in its turn and shown once more, it keeps the date of who drew it.
    opened.record("parameters", values={"threshold": "0.1"})
    opened.record("provenance", facts={"finished (UTC)": "2026-11-02 10:00"})
    shutil.rmtree(opened.published)
    shutil.copytree(opened.folder, opened.published)
    opened.published_figure("curve", "Records have no pixels.")
    assert opened.story[-1]["reading"] == caption


def test_a_combination_of_a_sweep_keeps_its_own_published_figures(report, monkeypatch):
    opened, shown = report
    execution_that_drew(opened.published, 0.1)  # of the study's own value
    of_combination = opened.published / "sweeps/01_data_subset/threshold=0.2"
    drawn = execution_that_drew(of_combination, 0.2)
    before = {path.name: path.read_bytes() for path in drawn.folder.glob("figures/*")}
    opened.folder = opened.folder.with_name("staging")
    opened.parameters = SimpleNamespace(threshold=0.2)
    opened.published_figure("curve", "Records have no pixels.")
    assert shown[-1][0].data == "**Curve** is left out. Records have no pixels."
    monkeypatch.setenv("WORKBOOK_COMBINATION", str(of_combination))
    opened.published_figure("curve", "Records have no pixels.")
    after = opened.folder / "figures"
    assert {one.name: one.read_bytes() for one in after.iterdir()} == before


def test_a_study_that_extends_another_keeps_its_own_published_figures(report):
    opened, _ = report
    execution_that_drew(opened.published, 0.1)  # of the study that has the networks
    drawn = execution_that_drew(opened.published.with_name("extending"), 0.2)
    before = (drawn.folder / "figures/01_data_subset-curve.png").read_bytes()
    opened.folder = opened.folder.with_name("staging")
    opened.reports = drawn.folder
    opened.parameters = SimpleNamespace(threshold=0.2)
    opened.published_figure("curve", "Records have no pixels.")
    after = opened.folder / "figures/01_data_subset-curve.png"
    assert after.read_bytes() == before


@pytest.mark.parametrize("threshold", [0.2, None])
def test_a_published_figure_of_other_parameters_is_left_out(report, threshold):
    opened, shown = report
    if threshold:
        execution_that_drew(opened.published, threshold)
    opened.folder = opened.folder.with_name("staging")
    opened.parameters = SimpleNamespace(threshold=0.1)
    opened.published_figure("curve", "Records have no pixels.")
    assert not (opened.folder / "figures").exists()
    assert shown[-1][0].data == "**Curve** is left out. Records have no pixels."


def test_parameters_are_compared_as_values_whatever_the_order_of_their_keys(report):
    opened, _ = report
    blocks = "[{'optimizer': ['sgd'], 'rate': [0.1]}]"
    published = notebook.Report(opened.published, opened.notebook, opened.work)
    published.record("parameters", values={"blocks": blocks, "rule": "maximum"})
    blocks = [{"rate": [0.1], "optimizer": ["sgd"]}]
    opened.parameters = SimpleNamespace(blocks=blocks, rule="maximum")
    assert opened.repeats_published
    opened.parameters.rule = "quantile"
    assert not opened.repeats_published
    opened.parameters = SimpleNamespace(blocks=blocks * 2, rule="maximum")
    assert not opened.repeats_published


def test_what_needs_no_picture_and_a_table_without_rows_are_told(report):
    opened, shown = report
    opened.figure(None, "class-counts", "Every class has 10.")
    opened.table(pd.DataFrame({"fault": []}), "faults", "Nothing is wrong.")
    assert [item.data for item, _ in shown] == [
        "Every class has 10.",
        "Nothing is wrong.",
    ]
    assert (opened.folder / "tables/faults.csv").read_text() == "fault\n"


def test_a_named_result_is_kept_beside_the_notebook_and_found_as_a_scrap(report):
    opened, shown = report
    opened.result("r_gap", 0.5, -1.0, 1.0)
    opened.result("gap", np.float32(0.25), np.nan, None, unit="points")
    opened.result("r_gap", np.int64(2), 1, 3)  # the cell ran again
    opened.result("verdict", "cannot tell")
    opened.result("undefined", float("nan"))
    path = opened.folder / "01_data_subset.results.json"
    r_gap = {"value": 2, "low": 1, "high": 3, "unit": ""}
    assert json.loads(path.read_text()) == [
        {"name": "r_gap", **r_gap},
        {"name": "gap", "value": 0.25, "low": None, "high": None, "unit": "points"},
        {"name": "verdict", "value": "cannot tell", "low": None, "high": None}
        | {"unit": ""},
        {"name": "undefined", "value": None, "low": None, "high": None, "unit": ""},
    ]
    # The form of scrapbook 0.5, whose readers look for media type and metadata.
    scrap = {"name": "r_gap", "data": r_gap, "encoder": "json", "version": 1}
    content, options = shown[2]
    assert content == {"application/scrapbook.scrap.json+json": scrap}
    assert options["raw"] and options["metadata"] == {
        "scrapbook": {"name": "r_gap", "data": True, "display": False}
    }
    with pytest.raises(ValueError, match=r"result 'r gap' needs a name of letters"):
        opened.result("r gap", 1)
    with pytest.raises(ValueError, match=r"result r is \[1\], and must be a number"):
        opened.result("r", [1])
    opened.end()
    assert "Results by name" in shown[-2][0].data and "cannot tell" in shown[-2][0].data
    notebook.open_report(study="my", notebook="01_data_subset")
    assert not path.exists()  # of the execution before


def test_what_another_notebook_made_is_that_of_the_same_combination_or_the_newest(
    report, monkeypatch, tmp_path
):
    opened, _ = report
    folders = [tmp_path / name for name in ("old", "new", "combination")]
    for age, folder in enumerate(folders):
        folder.mkdir()
        (folder / "a.csv").touch()
        os.utime(folder / "a.csv", (100 - age, 100 - age + (folder.name == "new") * 9))
    assert opened.find("a.csv", *folders[:2]) == folders[1]
    assert opened.find("b.csv", *folders) is None
    monkeypatch.setenv(COMBINATION, str(folders[2]))
    assert opened.find("a.csv", *folders[:2]) == folders[2]
    (folders[2] / "a.csv").unlink()
    assert opened.find("a.csv", *folders[:2]) == folders[1]


def test_names_stay_inside_the_report(report, tmp_path):
    opened, _ = report
    with pytest.raises(ValueError, match="leaves the folder"):
        opened.table(pd.DataFrame(), "../../outside")
    with pytest.raises(ValueError, match="outside"):
        opened.save_table(pd.DataFrame(), "../../outside")
    with pytest.raises(ValueError, match="leaves the folder"):
        notebook.open_report(study="../outside", notebook="01_data_subset")
    opened.record_work_file(tmp_path / "work/my/catalogue.parquet")
    assert opened.story[-1] == {"kind": "work_file", "path": "catalogue.parquet"}
    with pytest.raises(ValueError, match="leaves the folder"):
        opened.record_work_file(tmp_path / "other.parquet")


def test_the_story_is_complete_up_to_where_a_notebook_fails_and_starts_anew(report):
    opened, _ = report
    opened.tell("One.")
    opened.tell("Two.")
    path = opened.folder / "story/01_data_subset.json"
    assert [item["text"] for item in json.loads(path.read_text())] == ["One.", "Two."]
    notebook.open_report(study="my", notebook="01_data_subset")
    assert json.loads(path.read_text()) == []


def test_begin_shows_what_the_notebook_declares_with_the_values_in_force_and_end_what_made_it(
    report,
):
    _, shown = report
    names = declared(PROJECT_ROOT / "notebooks/01_data_subset.ipynb")
    values = {name: item.default for name, item in names.items()} | {
        "image_size": 99,
        "unrelated": 1,
    }
    opened = notebook.Report.begin("01_data_subset", values)
    opened.end()
    parameters, facts = (
        item for item in opened.story if item["kind"] in ("parameters", "provenance")
    )
    assert set(parameters["values"]) == set(names) and parameters["values"][
        "image_size"
    ] == "99" == str(opened.parameters.image_size)
    assert not hasattr(opened.parameters, "unrelated")
    assert (
        "unrelated" not in shown[0][0].data and "1 from first cell" in shown[0][0].data
    )
    assert {"commit", "device", "torch", "finished (UTC)", "seconds"} <= set(
        facts["facts"]
    )


def test_a_combination_of_a_sweep_says_which_one_it_is(report, monkeypatch):
    names = declared(PROJECT_ROOT / "notebooks/01_data_subset.ipynb")
    values = {name: item.default for name, item in names.items()}
    folder = "reports/demo/sweeps/01_data_subset/image_size=64,seed=2"
    monkeypatch.setenv("WORKBOOK_COMBINATION", folder)
    opened = notebook.Report.begin("01_data_subset", values)
    texts = [item["text"] for item in opened.story if item["kind"] == "text"]
    assert texts == ["Of a sweep, the combination `image_size=64,seed=2`."]


def test_a_notebook_that_no_sweep_runs_leaves_the_report_alone_and_says_where_its_files_go(
    report, monkeypatch, tmp_path
):
    opened, shown = report
    opened.table(pd.DataFrame({"x": [1]}), "scores")
    monkeypatch.delenv(STAGING)
    shown.clear()
    own = notebook.open_report(study="my", notebook="01_data_subset")
    assert (
        "work/my/scratch/01_data_subset" in shown[0][0].data
        and "python -m helpers.sweep my" in shown[0][0].data
    )
    own.table(pd.DataFrame({"x": [2]}), "scores")
    assert (
        tmp_path / "work/my/scratch/01_data_subset/tables/scores.csv"
    ).read_text() == "x\n2\n"
    assert (tmp_path / "reports/my/tables/scores.csv").read_text() == "x\n1\n"


def test_a_run_with_other_values_than_the_studys_writes_beside_no_other(
    report, monkeypatch, tmp_path
):
    monkeypatch.delenv(STAGING)
    names = declared(PROJECT_ROOT / "notebooks/01_data_subset.ipynb")
    values = {name: item.default for name, item in names.items()}
    folders = [
        notebook.Report.begin("01_data_subset", values | changed).folder
        for changed in (
            {},
            {"data_seed": 1},
            {"data_seed": 2},
            {"class_ids": ["a b", "c"]},
        )
    ]
    scratch = tmp_path / "work/demo/scratch/01_data_subset"
    assert folders[:3] == [scratch, scratch / "data_seed=1", scratch / "data_seed=2"]
    assert folders[3].parent == scratch and len(set(folders)) == 4


def test_values_that_do_not_go_together_are_refused_where_a_notebook_begins():
    names = declared(PROJECT_ROOT / "notebooks/01_data_subset.ipynb")
    values = {name: item.default for name, item in names.items()}
    with pytest.raises(StudyError, match="a classifier needs at least 2 classes"):
        notebook.Report.begin("01_data_subset", values | {"class_ids": ["a"]})


def test_shares_are_disjoint_and_together_all():
    parts = [
        notebook.select_shard(list(range(10)), f"{number}/4") for number in (1, 2, 3, 4)
    ]
    assert (
        sorted(item for part in parts for item in part)
        == list(range(10))
        == notebook.select_shard(list(range(10)), "")
    )
    assert notebook.select_shard(pd.DataFrame({"a": range(5)}), "2/2")[
        "a"
    ].tolist() == [1, 3]
    with pytest.raises(ValueError, match="'5/4'"):
        notebook.select_shard([], "5/4")


NASTY = [
    "<img src=x onerror=alert(1)>",
    "[k](javascript:alert(1))",
    "![k](http://evil.example/x.png)",
    "[k]: http://evil.example",
    "https://evil.example/x",
    "`<iframe src=x>`",
    "</p><a href=javascript:alert(1)>k</a>",
    "&#60;img src=x onerror=alert(1)&#62;",
    "a|b\n\n<video src=x onerror=alert(1)>",
    "``` <svg onload=alert(1)>",
    "<!--",
]


def test_a_name_with_dollar_signs_is_no_formula_and_stops_no_figure():
    """Of classes, which are called as their folders are; labels of log scales stay."""
    figure, ax = plt.subplots()
    ax.barh(["a$_b$", "c$^{x$"], [1, 10])
    ax.set_xscale("log")
    ax.set_title("$\\x$")
    content = figure_files.as_file(figure, format="svg").decode()
    plt.close(figure)
    for name in ("a$_b$", "c$^{x$", "$\\x$"):
        assert name in content
    shown = re.sub(r"<!--.*?-->", "", content)
    assert r"\mathdefault" not in shown


def test_a_notebook_of_another_clone_is_refused(tmp_path):
    """The modules that are installed would write to the folders of their own clone."""
    for name in ("first", "second"):
        module = tmp_path / name / "helpers/report/notebook.py"
        module.parent.mkdir(parents=True)
        module.write_text("")
        (tmp_path / name / "notebooks").mkdir()
    first = tmp_path / "first"
    notebook.check_clone(first / "notebooks", root=first)
    notebook.check_clone(tmp_path, root=first)  # of no clone: a study elsewhere
    with pytest.raises(StudyError) as refused:
        notebook.check_clone(tmp_path / "second/notebooks", root=first)
    assert str(refused.value) == (
        f"this notebook runs in the clone {tmp_path / 'second'}, and its modules are "
        f"those of {first}, whose studies it would read and write; activate the "
        f"environment of {tmp_path / 'second'}, or install it there: make setup"
    )
