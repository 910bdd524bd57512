"""A report that somebody changed is told of everywhere and mended by the next start; variants stand beside the main report."""

import json

import nbformat
import pytest
import yaml

from helpers.sweep import cli
from helpers.sweep.cli import Options
from tests.sweep.conftest import Imagined

CELL = 'study: str = "x"  # name\nthreshold: float = 0.1  # of maps\nreports_dir: str = "reports"  # where reports go'
NAMES = ["01_a", "02_b", "03_c"]


@pytest.fixture
def project(tmp_path, monkeypatch):
    for name in ("notebooks", "helpers", "params"):
        (tmp_path / name).mkdir()
    for stem in NAMES:
        cell = nbformat.v4.new_code_cell(CELL, metadata={"tags": ["parameters"]})
        nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / f"notebooks/{stem}.ipynb")
    (tmp_path / "params/s.yaml").write_text(yaml.safe_dump({"notebooks": {name: {} for name in NAMES}}))
    engine = Imagined(tmp_path)
    engine.tables = dict.fromkeys(NAMES, "x\n1\n")
    monkeypatch.setattr(cli, "_engine", lambda *given: engine)

    def run(*overrides, **options):
        engine.started.clear()
        return cli.run_study(tmp_path / "params/s.yaml", overrides, root=tmp_path, options=Options(), **options), list(engine.started)

    run.root, run.engine, run.reports = tmp_path, engine, tmp_path / "reports/s"
    run.status = lambda **given: cli.print_status(tmp_path / "params/s.yaml", root=tmp_path, **given)
    return run


def test_what_is_published_is_listed_with_digests(project, capsys):
    project()
    listed = json.loads((project.reports / "published.json").read_text())
    there = {str(path.relative_to(project.reports)) for path in project.reports.rglob("*") if path.is_file()}
    assert set(listed["files"]) == there - {"index.html", "published.json"}
    assert set(listed["files"].values()) - {""}
    assert listed["parameters"]["03_c"]["threshold"] == 0.1
    assert "03_c.csv" in (project.reports / "index.html").read_text()
    assert project.status() == 0
    assert "changed since" not in capsys.readouterr().out


@pytest.mark.parametrize(("name", "runs"), [("03_c.csv", ["03_c"]), ("02_b.ipynb", ["02_b"]), ("01_a.html", []), ("index.html", [])])
@pytest.mark.parametrize("fate", ["changed", "emptied", "deleted"])
def test_a_file_that_somebody_changed_is_told_by_status_plan_and_index_and_mended_by_the_next_start(project, capsys, name, runs, fate):
    project()
    before = {path: path.read_bytes() for path in project.reports.rglob("*") if path.is_file()}
    path = project.reports / name
    if fate == "deleted":
        path.unlink()
    else:
        path.write_text("" if fate == "emptied" else path.read_text()[:-2])
    for ask in (project.status, lambda: project(dry_run=True)[0]):
        capsys.readouterr()
        assert ask() == 0
        assert f"changed since it was published: {name} ({fate})" in capsys.readouterr().out
    if name != "index.html":
        assert f"<li>{name} ({fate})</li>" in (project.reports / "index.html").read_text()
    assert project() == (0, runs)
    assert {path: path.read_bytes() for path in project.reports.rglob("*") if path.is_file()} == before
    assert project() == (0, [])


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"state": 1}', '{"state": 1, "pages": 3}'])
def test_a_damaged_list_or_memory_of_pages_stops_nothing(project, text):
    project()
    for path in (project.reports / "published.json", project.root / "work/s/pages/main.json", project.reports / "story/03_c.json"):
        before = path.read_text()
        path.write_text(text)
        assert project()[0] == 0
        assert project.status() == 0
        assert path.read_text() == before


def test_a_report_without_its_folder_of_work_is_held_against_its_list(project, capsys):
    project()
    (project.root / "work").rename(project.root / "elsewhere")
    assert project.status() == 0
    assert "changed since" not in capsys.readouterr().out
    (project.reports / "03_c.csv").write_text("spoilt")
    assert project.status() == 0
    assert "changed since it was published: 03_c.csv (changed)" in capsys.readouterr().out


def test_a_variant_runs_what_differs_and_leaves_the_main_report_as_it_is(project, capsys):
    project()
    before = {path: path.read_bytes() for path in project.reports.rglob("*") if path.is_file() and path.name != "index.html"}
    project.engine.tables["02_b"] = "x\n2\n"
    assert project("02_b.threshold=0.2", variant="threshold-0.2") == (0, ["02_b", "03_c"])  # 03 rests on the table of 02
    assert {path: path.read_bytes() for path in before} == before
    own = project.reports / "variants/threshold-0.2"
    assert sorted(path.name for path in own.glob("*.ipynb")) == ["02_b.ipynb", "03_c.ipynb"]
    assert (own / "02_b.csv").read_text() == "x\n2\n"
    index, of_variant = (folder / "index.html" for folder in (project.reports, own))
    assert "threshold: 0.2 (main: 0.1)" in index.read_text()
    assert 'href="variants/threshold-0.2/index.html"' in index.read_text()
    assert '<a href="../../01_a.html">01_a</a>' in of_variant.read_text()
    assert project("02_b.threshold=0.2", variant="threshold-0.2") == (0, [])
    assert project() == (0, [])
    capsys.readouterr()
    assert project.status() == 0
    assert "changed since" not in capsys.readouterr().out
    (own / "02_b.csv").write_text("")
    assert project("02_b.threshold=0.2", variant="threshold-0.2") == (0, ["02_b"])


@pytest.mark.parametrize(("name", "content"), [("story/03_c.json", b"[1]"), ("03_c.ipynb", b""), ("03_c.csv", b"\xff\xfe\0")])
def test_a_variant_of_a_main_report_that_somebody_damaged_is_published_and_says_so(project, capsys, name, content):
    project()
    index = (project.reports / "index.html").read_bytes()
    (project.reports / name).write_bytes(content)
    assert project("03_c.threshold=0.2", variant="other") == (0, ["03_c"])
    told = f"the main report does not show it yet, since it was changed: {name}; run the study again without --as"
    assert told in capsys.readouterr().out
    assert (project.reports / "variants/other/index.html").is_file()
    assert (project.reports / "index.html").read_bytes() == index
    assert project() == (0, ["03_c"])
    assert "variants/other" in (project.reports / "index.html").read_text()


@pytest.mark.parametrize("name", ["../x", "a/b", ".x", "x" * 80, "-x", "main"])
def test_a_variant_has_a_plain_name(project, capsys, name):
    assert project(variant=name) == (2, [])
    assert "a variant is named by letters, digits" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"inputs": "x", "published": [1], "work": 7, "pages": [1], "state": 2, "files": {"a": 1}, "message": 3}',
        '{"inputs": {}, "published": {"../../x": "y"}, "work": {}, "seconds": "a", "attempts": "b", "files": {"/x": 7}}',
    ],
)
@pytest.mark.parametrize("name", ["02_b.json", "02_b.failed.json", "02_b.begun.json"])
def test_a_damaged_record_of_an_execution_costs_that_execution_at_most(project, capsys, name, text):
    project()
    (project.root / "work/s/executions" / name).write_text(text)
    assert project.status() == 0
    assert project() == (0, ["02_b"] if name == "02_b.json" else [])


@pytest.mark.parametrize("text", ["", "{}", "7", '["x"]', '[{"digest": "x"}]'])
def test_damaged_claims_are_named_before_anything_runs(project, capsys, text):
    (project.root / "work/s").mkdir(parents=True)
    (project.root / "work/s/claims.json").write_text(text)
    assert project() == (2, [])
    assert "claims.json" in capsys.readouterr().err
