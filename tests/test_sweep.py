"""A study of small notebooks by Snakemake: what runs, what is published, what is told."""

import os
import signal
import time

import nbformat
import pytest

from helpers.execute import own_gpu
from tests.project import Project, at_work, sweep

# Notes that it ran, and writes a table of its parameter.
NOTED = """import os
from pathlib import Path
with open("ran.txt", "a") as file:
    file.write("{0} ")
folder = Path(os.environ["WORKBOOK_STAGING"])
(folder / "tables").mkdir(exist_ok=True)
(folder / "tables/{0}.csv").write_text(str({1}))"""

THIRD = ('c: float = 0.5  # c\nd: str = "x"  # d', NOTED.format("03", "(c, d)"))


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "a project"
    folder.mkdir()
    made = Project(folder)
    made.notebook("01_a", "a: int = 1  # one", NOTED.format("01", "a"))
    divides = "1 / (b - 7)"
    made.notebook("02_b", "b: int = 2  # two", NOTED.format("02", "b"), divides)
    made.notebook("03_c", *THIRD, "import helpers.files")
    made.study(notebooks={"01_a": {}, "02_b": {}, "03_c": {}})
    return made


def ran(project):
    path = project.root / "ran.txt"
    names = path.read_text().split() if path.is_file() else []
    path.unlink(missing_ok=True)
    return names


def table(project, place):
    return (project.root / "reports/demo" / place).read_text()


def test_what_changed_runs_again_and_what_failed_leaves_the_report_as_it_was(project):
    code, output = project.run()
    assert code == 0, output
    assert ran(project) == ["01", "02", "03"]
    assert table(project, "02_b/tables/02.csv") == "2"
    with (project.root / "helpers/files.py").open("a") as file:
        file.write("\n# a line\n")
    assert project.run()[0] == 0 and ran(project) == ["03"]
    # A failed notebook is told, and stands beside the report, which stays.
    code, output = project.run(["b=7"])
    assert code == 1 and ran(project) == ["02"]
    told = "02_b failed: cell 3 (1 / (b - 7)): ZeroDivisionError: division by zero"
    log = (project.root / "work/demo/log/demo.log").read_text()
    assert told in output and told in log
    assert table(project, "02_b/tables/02.csv") == "2"
    assert table(project, "02_b.failed/tables/02.csv") == "7"
    assert project.run(["b=3"])[0] == 0 and ran(project) == ["02", "03"]
    assert not (project.root / "reports/demo/02_b.failed").exists()
    # Another cell makes a notebook run again, and braces are no wildcards.
    path = project.root / "notebooks/03_c.ipynb"
    path.write_text(path.read_text().replace("import helpers.files", "pass"))
    assert project.run(["b=3", "d={d} e"])[0] == 0 and ran(project) == ["03"]
    assert table(project, "03_c/tables/03.csv") == "(0.5, '{d} e')"
    # Whose report was taken away is made anew.
    (project.root / "reports/demo/01_a").rename(project.root / "elsewhere")
    assert project.run(["b=3", "d={d} e"])[0] == 0
    assert ran(project)[0] == "01"


def test_each_combination_has_a_folder_and_one_that_fails_costs_itself(project):
    project.notebook("03_c", *THIRD, "assert c < 0.3 or d == 'x', 'too much'")
    project.study(notebooks={"03_c": {}})
    code, output = project.run(vary=["03_c.c=0.2,0.4", "03_c.d=x,y"])
    assert code == 1
    assert ran(project).count("03") == 5
    told = "03_c@c=0.4,d=y failed: cell 3 (assert c < 0.3 or d == 'x', 'too much')"
    assert told in output
    folder = project.root / "reports/demo/sweeps/03_c"
    names = {f"c={c},d={d}" for c in (0.2, 0.4) for d in "xy"}
    assert {path.name for path in folder.iterdir()} == names
    assert (folder / "c=0.4,d=x/03_c/tables/03.csv").read_text() == "(0.4, 'x')"
    failed = folder / "c=0.4,d=y/03_c.failed/03_c.ipynb"
    assert "AssertionError" in str(nbformat.read(failed, 4).cells)
    project.run(vary=["03_c.c=0.2,0.4", "03_c.d=x,y"])
    assert ran(project) == ["03"]  # the failed one is tried again


def test_wrong_names_and_values_are_told_before_anything_runs(project):
    code, output = project.run(["aa=1", "a=x"], ["3_c.c=1"])
    assert code == 1 and ran(project) == []
    assert "no notebook has a parameter 'aa' (did you mean 'a'?)" in output
    assert "a is 'x': Input should be a valid integer" in output
    assert "runs no notebook '3_c' (did you mean '03_c'?)" in output
    assert "Traceback" not in output
    _, output = project.run(vary=["c=1,2"])
    assert "'c=1,2' names no notebook; write, for instance, 03_cam" in output


def test_shares_end_before_the_cell_that_sums_up_and_the_whole_comes_after(project):
    declared = 'b: int = 2  # b\nshard: str = ""  # share'
    sums_up = ('open("ran.txt", "a").write("sum ")', "closing")
    project.notebook("02_b", declared, NOTED.format("02", "shard"), sums_up)
    project.study(notebooks={"02_b": {}}, shares={"02_b": 2})
    code, output = project.run()
    assert code == 0, output
    assert ran(project) == ["02", "02", "02", "sum"]
    report = project.root / "reports/demo"
    assert [path.name for path in report.iterdir()] == ["02_b"]
    assert table(project, "02_b/tables/02.csv") == ""


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)]
)
def test_a_killed_sweep_leaves_no_process_and_goes_on_where_it_was(project, number):
    waits = """import time
(folder / str(Path("go").exists())).touch(), Path("here").touch()
time.sleep(60 * (not Path("go").exists()))"""
    project.notebook("02_b", "b: int = 2  # two", NOTED.format("02", "b"), waits)
    process = sweep("demo", project.root)
    while not (project.root / "here").exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    process.send_signal(number)
    process.communicate()
    end = time.monotonic() + 20
    while at_work(project.root) and time.monotonic() < end:
        time.sleep(0.05)
    assert at_work(project.root) == []
    assert not (project.root / "reports/demo/02_b").exists()
    (project.root / "go").touch()
    ran(project)
    code, output = project.run()
    assert code == 0 and ran(project) == ["02", "03"], output
    names = {path.name for path in (project.root / "reports").rglob("*")}
    assert "True" in names and not names & {".02_b.partial", "False"}


def test_executions_share_a_card_by_quarters(monkeypatch):
    cards = f"a{os.getpid()},b{os.getpid()}"
    first, second = cards.split(",")
    held = []
    for quarters, card in ((4, first), (1, second), (2, second), (1, second)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", cards)
        held += own_gpu(quarters)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == card
    for holder in held:
        holder.close()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", first)
    assert own_gpu(0) == []
    assert len(own_gpu(4)) == 4  # none of the cards is left behind locked
