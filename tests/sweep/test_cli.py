import json
import re
from pathlib import Path

import nbformat
import pytest

from helpers.files import PROJECT_ROOT
from helpers.sweep import cli, executions


def notebook(path: Path, *cells: str) -> None:
    parameters, *rest = cells
    made = [nbformat.v4.new_markdown_cell(f"# {path.stem}\n\n**Question.** Why {path.stem}?")]
    made.append(nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]}))
    made += [nbformat.v4.new_code_cell(source) for source in rest]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=made, metadata=kernel), path)


@pytest.fixture
def project(tmp_path):
    for folder in ("notebooks", "helpers", "params"):
        (tmp_path / folder).mkdir()
    (tmp_path / "helpers/used.py").write_text("from helpers import deeper\n")
    (tmp_path / "helpers/deeper.py").write_text("VALUE = 1\n")
    (tmp_path / "helpers/unused.py").write_text("VALUE = 1\n")
    common = 'study: str = "x"  # name\nvalue: int = 1  # some number'
    count = "open('log.txt', 'a').write('{} ')"
    notebook(
        tmp_path / "notebooks/01_first.ipynb", common, count.format("first"), "if False:\n    from helpers import used", "assert value < 5"
    )
    notebook(tmp_path / "notebooks/02_second.ipynb", common.replace("value", "other"), count.format("second"))
    (tmp_path / "params/small.yaml").write_text("notebooks: {01_first: {}, 02_second: {}}")
    return tmp_path


def run(project, *overrides, **options):
    (project / "log.txt").unlink(missing_ok=True)
    code = cli.run_study(project / "params/small.yaml", overrides, root=project, **options)
    executed = (project / "log.txt").read_text().split() if (project / "log.txt").exists() else []
    return code, executed


def test_runs_resumes_and_says_why(project, capsys):
    assert run(project, dry_run=True) == (0, [])
    assert not (project / "reports").exists()
    assert run(project) == (0, ["first", "second"])
    assert {path.name for path in (project / "reports/small").iterdir()} == {
        "01_first.ipynb",
        "01_first.html",
        "02_second.ipynb",
        "02_second.html",
        "index.html",
        "published.json",
    }
    capsys.readouterr()
    assert run(project) == (0, [])
    assert capsys.readouterr().out.count("complete, nothing changed") == 2

    (project / "helpers/unused.py").write_text("VALUE = 2\n")
    assert run(project, dry_run=True) == (0, [])
    assert capsys.readouterr().out.count("complete, nothing changed") == 2
    (project / "helpers/deeper.py").write_text("VALUE = 2\n")
    assert run(project, dry_run=True) == (0, [])
    printed = capsys.readouterr().out
    assert "01_first: runs, since helpers changed: deeper" in printed
    assert "02_second: runs if the results of 01_first change" in printed
    (project / "helpers/deeper.py").write_text("VALUE = 1\n")
    run(project, "02_second.other=2", dry_run=True)
    printed = capsys.readouterr().out
    assert "01_first: complete" in printed
    assert "02_second: runs, since parameters changed: other" in printed
    assert run(project, force=["02_second"]) == (0, ["second"])
    report = json.loads((project / "reports/small/02_second.ipynb").read_text())
    assert report["metadata"]["papermill"]["parameters"] == {"study": "small", "other": 1}
    assert str(project) not in json.dumps(report["metadata"]["papermill"])


def test_a_failure_ends_non_zero_names_the_cell_and_keeps_what_was_complete(project, capsys):
    assert run(project)[0] == 0
    finished = (project / "reports/small/01_first.ipynb").read_text()
    assert run(project, "value=9") == (1, ["first"])
    printed = capsys.readouterr().err
    assert "01_first: cell" in printed
    assert "(assert value < 5)" in printed
    assert "AssertionError" in printed
    assert "partial report: reports/small/01_first.partial.ipynb" in printed
    assert "AssertionError" in (project / "reports/small/01_first.partial.ipynb").read_text()
    assert (project / "reports/small/01_first.ipynb").read_text() == finished
    # Mended, it runs again, and the partial report goes.
    assert run(project, "value=2") == (0, ["first", "second"])
    assert not list((project / "reports/small").glob("*.partial.ipynb"))


def test_faults_stop_before_anything_runs(project, capsys):
    assert run(project, "valeu=2") == (2, [])
    assert "unknown parameter 'valeu' (did you mean 'value'?)" in capsys.readouterr().err
    assert run(project, force=["03_third"]) == (2, [])
    assert "--force 03_third: this study runs 01_first, 02_second" in capsys.readouterr().err
    assert not (project / "reports").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_free": float("nan")}, "--min-free is nan, and must be at least 0 and finite"),
        ({"time_limit": float("inf")}, "--time-limit is inf, and must be"),
        ({"shard": "\u0661/\u0662"}, "--shard: the shard is"),
        ({"address": "here:1"}, "--address here:1 is of --engine ray"),
    ],
)
def test_options_that_cannot_be_are_told_before_anything_runs(project, capsys, options, message):
    assert cli.run_study(project / "params/small.yaml", root=project, options=cli.Options(**options)) == 2
    assert message in capsys.readouterr().err
    assert not (project / "log.txt").exists()


def test_a_name_that_no_disk_takes_is_no_study(capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["x" * 5000])
    assert "File name too long" in capsys.readouterr().err


def test_helpers_are_followed_through_all_forms_of_import(project):
    found = executions.imported_helpers("import helpers.used as u", project / "helpers")
    assert [path.stem for path in found] == ["deeper", "used"]
    assert [path.stem for path in executions.imported_helpers("from helpers.unused import VALUE", project / "helpers")] == ["unused"]
    assert executions.imported_helpers("import os", project / "helpers") == []


def test_a_package_of_helpers_is_followed_into_its_modules(project):
    package = project / "helpers/family"
    package.mkdir()
    (package / "__init__.py").write_text("from helpers.family import one\n")
    (package / "one.py").write_text("from helpers.deeper import VALUE\n")
    (package / "other.py").write_text("")
    found = executions.imported_helpers("from helpers import family", project / "helpers")
    assert [str(path.relative_to(project / "helpers")) for path in found] == ["deeper.py", "family/__init__.py", "family/one.py"]
    found = executions.imported_helpers("from helpers.family.other import x", project / "helpers")
    assert "family/other.py" in [str(path.relative_to(project / "helpers")) for path in found]


def test_a_damaged_record_runs_again(tmp_path):
    (tmp_path / "r.json").write_text("{")
    (tmp_path / "x.ipynb").write_text("{}")
    assert "damaged" in executions.why(
        tmp_path / "r.json", tmp_path / "x.ipynb", {"parameters": {}, "notebook": "", "helpers": {}, "upstream": []}
    )


def test_the_recipes_use_options_that_exist_and_are_under_ten_lines(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    recipes = re.findall(r"```\w*\n(.*?)```", (PROJECT_ROOT / "docs/clusters.md").read_text(), re.S)
    assert len(recipes) >= 6
    assert all(recipe.count("\n") < 10 for recipe in recipes)
    used = {
        option for recipe in recipes for call in re.findall(r"helpers\.sweep( .*)", recipe) for option in re.findall(r" (--[a-z-]+)", call)
    }
    assert {"--shard", "--engine", "--address", "--per-gpu"} <= used <= known
    studies = set(re.findall(r"helpers\.sweep params/(\w+)\.yaml", "".join(recipes)))
    assert studies <= {path.stem for path in (PROJECT_ROOT / "params").glob("*.yaml")}
