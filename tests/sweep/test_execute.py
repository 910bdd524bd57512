"""One execution: what it publishes, which GPU it has, how it fails, what its kernel dies with."""

import json
import subprocess
import sys
from types import SimpleNamespace

import nbformat
import pytest

from helpers.sweep import execute
from tests.sweep.conftest import KERNEL


def staged(folder, name, files, outputs=()):
    """What an execution leaves: the executed notebook and other files."""
    folder.mkdir()
    for file, text in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    cell = nbformat.v4.new_code_cell("1", outputs=list(outputs))
    metadata = KERNEL | {
        "papermill": {"output_path": str(folder)},
        "widgets": {"state": 1},
    }
    nbformat.write(
        nbformat.v4.new_notebook(cells=[cell], metadata=metadata),
        folder / f"{name}.ipynb",
    )
    return folder


@pytest.mark.parametrize("before", ["", "<<<<<<< HEAD", '{"cells": []}', "[1]"])
def test_a_damaged_notebook_of_before_is_replaced(tmp_path, before):
    report = tmp_path / "reports/01_a.ipynb"
    report.parent.mkdir()
    report.write_text(before)
    execute.publish(
        staged(tmp_path / "first", "01_a", {"tables/a.csv": "1"}), report.parent, "01_a"
    )
    executed = nbformat.read(report, as_version=4)
    assert executed.metadata.workbook.files == ["tables/a.csv"]


def test_what_is_published_is_what_the_execution_left_and_what_the_one_before_left_alone_goes(
    tmp_path,
):
    reports = tmp_path / "reports"
    bar = nbformat.v4.new_output(
        "display_data", {"application/vnd.jupyter.widget-view+json": {"model_id": "x"}}
    )
    kept = nbformat.v4.new_output("stream", text="kept")
    files = {
        "tables/a.csv": "1",
        "figures/b.png": "2",
        "tables/.x.csv.9.partial": "half",
        "01_a.results.json": '[{"name": "r"}]',
    }
    made = execute.publish(
        staged(tmp_path / "first", "01_a", files, [bar, kept]), reports, "01_a"
    )
    assert [str(path.relative_to(reports)) for path in made] == [
        "figures/b.png",
        "tables/a.csv",
        "01_a.results.json",
        "01_a.ipynb",
    ]
    executed = nbformat.read(reports / "01_a.ipynb", as_version=4)
    assert [output["output_type"] for output in executed.cells[0].outputs] == [
        "stream"
    ] and "widgets" not in executed.metadata
    assert executed.metadata.papermill.output_path == "01_a.ipynb"
    assert executed.metadata.workbook.results == [{"name": "r"}]
    (reports / "tables/mine.csv").write_text("of somebody else")
    execute.publish(
        staged(tmp_path / "second", "01_a", {"tables/c.csv": "3"}), reports, "01_a"
    )
    left = sorted(
        str(path.relative_to(reports)) for path in reports.rglob("*") if path.is_file()
    )
    assert left == ["01_a.ipynb", "tables/c.csv", "tables/mine.csv"]


@pytest.mark.parametrize(
    "name", ["../../victim", "/etc/victim", "tables/../../victim", ""]
)
def test_a_name_out_of_a_report_deletes_nothing_beside_it(tmp_path, name):
    (tmp_path / "victim").write_text("stays")
    (tmp_path / "reports/demo").mkdir(parents=True)
    forged = {
        "cells": [],
        "metadata": {"workbook": {"files": [name]}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (tmp_path / "reports/demo/01_a.ipynb").write_text(json.dumps(forged))
    with pytest.raises(ValueError, match="leaves the folder"):
        execute.publish(
            staged(tmp_path / "staging", "01_a", {}), tmp_path / "reports/demo", "01_a"
        )
    assert (tmp_path / "victim").read_text() == "stays"


def test_a_job_whose_asker_is_gone_is_not_done():
    done = subprocess.run(
        [sys.executable, "-m", "helpers.sweep.execute", "{}", "1"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "is gone" in done.stderr


def test_pages_that_fail_say_why_in_the_log_that_a_sweep_prints(tmp_path, monkeypatch):
    from helpers.report import pages

    def refuse(folder, unchanged):
        raise ValueError("params/a.md.j2: the tables no longer support this sentence")

    monkeypatch.setattr(pages, "write", refuse)
    places = {"work": str(tmp_path / "work"), "reports": str(tmp_path / "reports")}
    job = {"study": "a", "sweeps": [], "parameters": {}, "unchanged": []} | places
    assert execute.write_pages(job) == 1
    assert not (tmp_path / "work/done/a/pages.json").exists()
    line = (tmp_path / "work/log/a.log").read_text().strip()
    assert line[20:] == (
        "pages failed: params/a.md.j2: the tables no longer support this sentence"
    )


def test_progress_bars_are_read_as_tqdm_writes_them():
    """Printed, and as the state of a widget, in which signs of HTML are escaped."""
    drawn = "runs:  25%|██▌       | 3/12 [00:10<00:30,  3.3s/it, epoch 4, loss 0.31]"
    bar = "3/12 [00:10<00:30, 3.3s/it, epoch 4, loss 0.31]"
    printed = {"msg_type": "stream", "content": {"text": f"{drawn}\n{drawn}"}}
    state = {"value": drawn.replace("<", "&lt;")}
    widget = {"msg_type": "comm_msg", "content": {"data": {"state": state}}}
    other = {"msg_type": "stream", "content": {"text": "12/13 of all [see below"}}
    bars = [execute._progress_bar(message) for message in (printed, widget, other)]
    assert bars == [bar, bar, ""]


def test_the_section_of_a_cell_is_the_last_heading_above_it():
    kinds = ["markdown", "code", "markdown", "markdown"]
    texts = ["# Title\n\ntext", "# a comment", "## Scores", "no heading"]
    cells = [
        SimpleNamespace(cell_type=kind, source=text)
        for kind, text in zip(kinds, texts, strict=True)
    ]
    sections = [execute._section(cells[:count]) for count in range(5)]
    assert sections == ["", "Title", "Title", "Scores", "Scores"]
