"""Stage after stage, failures, retries, shards and two sweeps at once: with an engine that executes nothing, so that all is instant."""

import errno
import json

import nbformat
import pytest
import yaml

from helpers import files
from helpers.locks import LockHolder
from helpers.sweep import cli, publication
from helpers.sweep.cli import Options
from helpers.sweep.engines import LocalEngine
from helpers.sweep.worker import Outcome
from helpers.tally import Tally, duration
from tests.sweep.conftest import Imagined

CELL = 'study: str = "x"  # name\nseed: int = 0  # of all\nshard: str = ""  # part\nreports_dir: str = "reports"  # where reports go'


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Three notebooks, the second in three parts; gives a function that sweeps and says what was executed."""
    for name in ("notebooks", "helpers", "params"):
        (tmp_path / name).mkdir()
    for stem in ("01_a", "02_b", "03_c"):
        cell = nbformat.v4.new_code_cell(CELL, metadata={"tags": ["parameters"]})
        nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / f"notebooks/{stem}.ipynb")
    text = {"notebooks": {"01_a": {}, "02_b": {}, "03_c": {}}, "sweep": {"02_b": {"seed": [1, 2, 3]}}}
    (tmp_path / "params/s.yaml").write_text(yaml.safe_dump(text))
    engine = Imagined(tmp_path)
    monkeypatch.setattr(cli, "_engine", lambda *given: engine)
    monkeypatch.setattr(cli, "_write_pages", lambda *given: None)

    def run(*overrides, **options):
        engine.started.clear()
        plain = {key: options.pop(key) for key in ("force", "dry_run") if key in options}
        code = cli.run_study(tmp_path / "params/s.yaml", overrides, root=tmp_path, options=Options(**options), **plain)
        return code, list(engine.started)

    run.root, run.engine = tmp_path, engine
    return run


EVERYTHING = ["01_a", "02_b/seed1", "02_b/seed2", "02_b/seed3", "02_b", "03_c"]


def test_the_parts_come_before_the_whole_and_the_whole_before_what_needs_it(project):
    assert project() == (0, EVERYTHING)
    assert project() == (0, [])
    reports = project.root / "reports/s"
    assert sorted(str(path.relative_to(reports)) for path in reports.rglob("*.ipynb")) == [
        "01_a.ipynb",
        "02_b.ipynb",
        "02_b/seed1.ipynb",
        "02_b/seed2.ipynb",
        "02_b/seed3.ipynb",
        "03_c.ipynb",
    ]
    assert not list(project.root.rglob("*.claim"))
    log = (project.root / "work/s/sweep.log").read_text().splitlines()
    assert len(log) == 12  # a start and an end each
    assert " done 02_b/seed2 in 1.0 s" in log[5] + log[6] + log[7]


def test_a_dry_run_names_every_execution_and_runs_none(project, capsys):
    assert project(dry_run=True) == (0, [])
    assert capsys.readouterr().out.splitlines() == [f"{name}: runs for the first time" for name in EVERYTHING]
    assert not (project.root / "work").exists()


def test_only_what_changed_or_is_missing_runs_again(project, capsys):
    project()
    (project.root / "reports/s/02_b/seed2.ipynb").unlink()
    assert project() == (0, ["02_b/seed2"])
    (project.root / "work/s/executions/02_b/seed3.json").write_text("{")
    capsys.readouterr()
    assert project() == (0, ["02_b/seed3"])
    printed = capsys.readouterr().out
    assert "02_b/seed3: runs, since the record of its last execution is damaged" in printed
    assert "02_b, parts: 2 of 3 complete, nothing changed" in printed
    assert project(force=["02_b"]) == (0, EVERYTHING[1:5])


def test_what_comes_after_runs_again_only_when_the_tables_before_it_changed(project, capsys):
    project.engine.tables = {"01_a": "x\n1\n", "02_b": "y\n1\n"}
    project()
    project.engine.tables["02_b"] = "y\n2\n"
    assert project("02_b.shard=1/2") == (0, [*EVERYTHING[1:5], "03_c"])
    assert "03_c: runs, since results changed of 02_b" in capsys.readouterr().out
    assert project("02_b.shard=2/2") == (0, EVERYTHING[1:5])  # another input, the same table


def test_a_failed_part_holds_back_what_needs_it_and_nothing_else(project, capsys):
    project.engine.ends = {"02_b/seed1": [Outcome("error", 1.0, "cell 3 failed (x = 1)", "ValueError: no")]}
    assert project() == (1, EVERYTHING[:4])
    printed = capsys.readouterr().err
    assert "02_b/seed1: cell 3 failed (x = 1)\n  ValueError: no\n  partial report: reports/s/02_b/seed1.partial.ipynb" in printed
    assert (project.root / "reports/s/02_b/seed1.partial.ipynb").is_file()
    assert not (project.root / "reports/s/02_b/seed1.ipynb").exists()
    assert project() == (0, ["02_b/seed1", "02_b", "03_c"])
    assert not list(project.root.rglob("*.failed.json"))


def test_it_stops_at_the_first_failure_or_the_nth_where_asked(project):
    wrong = Outcome("error", 1.0, "cell 3", "no")
    project.engine.slots = 1
    project.engine.ends = {name: [wrong] * 9 for name in EVERYTHING[1:4]}
    assert project(max_failures=1) == (1, EVERYTHING[:2])
    assert project(max_failures=2) == (1, EVERYTHING[1:3])
    assert project() == (1, EVERYTHING[1:4])


def test_what_was_lost_is_tried_again_and_what_is_wrong_is_not(project, capsys):
    lost = Outcome("lost", 1.0, "the worker ended", "by signal 9")
    project.engine.ends = {"01_a": [lost, lost]}
    assert project() == (0, ["01_a", "01_a", *EVERYTHING])
    assert "01_a: the worker ended (by signal 9); it is tried again" in capsys.readouterr().out
    assert json.loads((project.root / "work/s/executions/01_a.json").read_text())["attempts"] == 3
    project.engine.ends = {"03_c": [lost] * 3}
    assert project(force=["03_c"]) == (1, ["03_c"] * 3)
    project.engine.ends = {"03_c": [Outcome("timeout", 1.0, "stopped", "too long")]}
    assert project(force=["03_c"]) == (1, ["03_c"])
    project.engine.ends = {"03_c": [lost]}
    assert project(force=["03_c"], retries=0) == (1, ["03_c"])


def test_shards_divide_the_parts_and_the_last_one_closes(project, capsys, monkeypatch):
    assert project(shard="1/2") == (0, ["01_a", "02_b/seed1", "02_b/seed3"])
    assert "1 execution(s) are left to the other shards" in capsys.readouterr().out
    assert project(shard="2/2") == (0, ["02_b/seed2", "02_b", "03_c"])
    assert project(shard="1/2") == (0, [])
    assert project(shard="3/2")[0] == 2
    assert "the shard is '3/2'; write i/n" in capsys.readouterr().err


def test_two_sweeps_divide_what_is_to_do_and_nothing_runs_twice(project):
    """The second begins in the middle of the first one's first part, and both see each other's claims."""
    second = Imagined(project.root, slots=1)
    with LockHolder(project.root / "work/s/claims") as other:

        def begin(name):
            if name == "02_b/seed1":
                assert other.claim("02_b/seed2")

        def complete(seconds):
            if other.claim("02_b/seed2") and not second.started and "02_b/seed3" in project.engine.started:
                finish_elsewhere()
            return waiting(seconds)

        def finish_elsewhere():
            second.started.append("02_b/seed2")
            for kind in ("reports/s/02_b/{}.ipynb", "work/s/executions/02_b/{}.json"):
                text = (project.root / kind.format("seed1")).read_text().replace("seed1", "seed2").replace('"seed": 1', '"seed": 2')
                (project.root / kind.format("seed2")).write_text(text)
            other.release("02_b/seed2")

        waiting, project.engine.meanwhile, project.engine.wait = project.engine.wait, begin, complete
        project.engine.slots = 1
        assert project() == (0, ["01_a", "02_b/seed1", "02_b/seed3", "02_b", "03_c"])
    assert second.started == ["02_b/seed2"]


def test_a_claim_that_was_taken_over_is_not_recorded_by_who_lost_it(project, monkeypatch):
    held = iter([False])
    real = LockHolder.still_holds
    monkeypatch.setattr(LockHolder, "still_holds", lambda self, name: next(held, True) and real(self, name))
    assert project() == (0, ["01_a", *EVERYTHING])


def test_a_params_file_edited_meanwhile_is_said_and_the_next_sweep_runs_the_edit(project, capsys):
    path = project.root / "params/s.yaml"
    edited = path.read_text().replace("- 3", "- 4")
    project.engine.meanwhile = lambda name: path.write_text(edited)
    assert project() == (0, EVERYTHING)
    assert "s.yaml was edited meanwhile; this ran as it stood at the start" in capsys.readouterr().out
    assert project() == (0, ["02_b/seed4", "02_b", "03_c"])


def test_a_params_file_deleted_meanwhile_is_said_and_what_was_complete_stays(project, capsys):
    path = project.root / "params/s.yaml"
    project.engine.meanwhile = lambda name: path.unlink(missing_ok=True)
    assert project() == (0, EVERYTHING)
    assert "s.yaml was edited meanwhile" in capsys.readouterr().out
    assert project() == (2, [])
    assert len(list((project.root / "reports/s").rglob("*.ipynb"))) == len(EVERYTHING)


def test_a_notebook_edited_meanwhile_runs_again_at_the_next_command(project, capsys):
    path = project.root / "notebooks/03_c.ipynb"
    edited = path.read_text().replace("# of all", "# of everything")
    project.engine.meanwhile = lambda name: name == "03_c" and path.write_text(edited)
    assert project() == (0, EVERYTHING)
    assert project() == (0, ["03_c"])
    assert "03_c: runs, since its source changed" in capsys.readouterr().out


def test_a_full_disk_simulated_at_the_write_is_told_and_loses_nothing_that_was_complete(project, monkeypatch, capsys):
    writing, full = files.write_json, []

    def write(path, record):
        if full and path.name.startswith("seed2"):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        writing(path, record)

    monkeypatch.setattr(publication, "write_json", write)
    full.append(True)
    assert project() == (1, EVERYTHING[:4])
    printed = capsys.readouterr().err
    assert "02_b/seed2: its report could not be kept" in printed
    assert "No space left on device" in printed
    full.clear()
    assert project() == (0, ["02_b/seed2", "02_b", "03_c"])

    def refuse(self, name):
        raise OSError(errno.ENOSPC, "No space left on device", "claims")

    monkeypatch.setattr(LockHolder, "claim", refuse)
    assert project(force=["03_c"]) == (1, [])
    assert "the sweep stopped: [Errno 28] No space left on device: 'claims'; what was complete is kept" in capsys.readouterr().err


def test_ctrl_c_ends_the_engine_and_gives_back_the_claims(project, capsys):
    def interrupt(name):
        raise KeyboardInterrupt

    project.engine.meanwhile = interrupt
    assert project() == (130, ["01_a"])
    assert project.engine.closed
    assert not list(project.root.rglob("*.claim"))
    assert "the same command goes on where this one stopped" in capsys.readouterr().err


def test_the_status_is_told_from_the_disk(project, capsys):
    project.engine.ends = {"02_b/seed1": [Outcome("lost", 1.0, "gone", ""), Outcome("error", 1.0, "cell 3", "ValueError: no")]}
    project()
    capsys.readouterr()
    with LockHolder(project.root / "work/s/claims") as other:
        other.claim("02_b")
        assert cli.print_status(project.root / "params/s.yaml", root=project.root) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["done", "running", "failed", "retried", "waiting", "time", "left"]
    assert lines[1].split() == ["01_a", "1", "0", "0", "0", "0", "0", "s"]
    assert lines[2].split() == ["02_b,", "parts", "2", "0", "1", "1", "0", "0", "s"]
    assert lines[3].split() == ["02_b", "0", "1", "0", "0", "0", "?"]
    assert any(line.startswith("failed: 02_b/seed1: cell 3") for line in lines)
    assert any(line.startswith("running: 02_b on ") for line in lines)
    assert cli.print_status(project.root / "params/nothing.yaml", root=project.root) == 2


def test_the_local_engine_is_the_default_and_takes_the_options(tmp_path):
    made = cli._engine(Options(jobs=3, time_limit=2), tmp_path, tmp_path, "t", [])
    assert isinstance(made, LocalEngine)
    assert (made.slots, made.time_limit) == (3, 120)


def test_time_left_comes_from_measured_durations():
    tally = Tally(total=10, done=2, running=2, seconds=[10.0, 30.0])
    assert tally.waiting == 6
    assert tally.seconds_left(2) == pytest.approx(20 * 7 / 2)
    assert tally.seconds_left(100) == pytest.approx(20 * 7 / 8)
    assert Tally(total=3).seconds_left(1) is None
    assert Tally(total=3, done=3).seconds_left(1) == 0
    spans = [(None, "?"), (4, "4 s"), (119, "119 s"), (720, "12 min"), (12_000, "3 h 20 min")]
    assert [duration(seconds) for seconds, _ in spans] == [text for _, text in spans]


@pytest.fixture
def catalogued(project):
    """The first notebook reports a table, and makes a file that the others read; both say which seed it ran with."""
    work = project.root / "work/s/catalogue.parquet"
    project.engine.work_files = {"01_a": ["catalogue.parquet"]}

    def meanwhile(name):
        if name == "01_a":
            work.parent.mkdir(parents=True, exist_ok=True)
            work.write_text(f"seed {project.engine.jobs['01_a']['parameters']['seed']}")

    project.engine.meanwhile, project.engine.tables = meanwhile, dict.fromkeys(EVERYTHING, "x\n1\n")
    assert project() == (0, EVERYTHING)
    project.catalogue = work
    return project


def test_another_value_interrupted_after_the_catalogue_is_rewritten_is_not_called_complete(catalogued, capsys):
    rewrite = catalogued.engine.meanwhile

    def interrupt(name):
        rewrite(name)
        raise KeyboardInterrupt

    catalogued.engine.meanwhile = interrupt
    assert catalogued("01_a.seed=9") == (130, ["01_a"])
    assert catalogued.catalogue.read_text() == "seed 9"
    catalogued.engine.meanwhile = rewrite
    capsys.readouterr()
    assert catalogued(dry_run=True) == (0, [])
    printed = capsys.readouterr().out
    assert "01_a: runs, since its last execution did not end" in printed
    assert "03_c: runs if the results of 01_a change" in printed
    assert catalogued() == (0, ["01_a"])  # which finds what it found before, so that the others stay
    assert catalogued.catalogue.read_text() == "seed 0"
    assert catalogued() == (0, [])
    assert not list(catalogued.root.rglob("*.begun.json"))


def test_a_notebook_that_failed_with_another_value_spoils_no_report_and_is_not_called_complete(catalogued):
    published = {path: path.read_bytes() for path in (catalogued.root / "reports").rglob("*.csv")}
    catalogued.engine.tables["03_c"] = "x\n2\n"
    catalogued.engine.ends = {"03_c": [Outcome("error", 1.0, "cell 9", "no")]}
    assert catalogued("03_c.seed=9") == (1, ["03_c"])
    assert {path: path.read_bytes() for path in (catalogued.root / "reports").rglob("*.csv")} == published
    assert catalogued() == (0, ["03_c"])
    assert not list(catalogued.root.rglob("staging/*"))


@pytest.mark.parametrize("ended", [True, False])
def test_what_was_made_while_another_command_ran_what_it_rests_on_is_not_called_complete(catalogued, capsys, ended):
    """A second command with another value runs 01 while the first is at 03, and ends with it or is still at it."""
    mine = catalogued.engine

    def second(name):
        if name == "03_c":
            mine.meanwhile = rewrite
            record = catalogued.root / "work/s/executions/01_a.json"
            kept = json.loads(record.read_text())
            publication.withdraw(record)
            catalogued.catalogue.write_text("seed 9")
            if ended:
                publication.reinstate(record, kept | {"results": "others"})
        else:
            rewrite(name)

    rewrite, mine.meanwhile = mine.meanwhile, second
    assert catalogued(force=["03_c"]) == (1, ["03_c"])
    told = capsys.readouterr().err
    assert "03_c: what it rests on was changed meanwhile" in told
    assert "another command runs 01_a of this study with other values; run this one again when that is done" in told
    assert catalogued() == (0, ["01_a", "03_c"])
    assert catalogued.catalogue.read_text() == "seed 0"


def test_a_catalogue_that_somebody_else_rewrote_is_made_again(catalogued, capsys):
    catalogued.catalogue.write_text("of two models")
    assert catalogued() == (0, ["01_a"])
    assert "01_a: runs, since what it made was changed: catalogue.parquet (changed)" in capsys.readouterr().out


def test_what_others_read_changes_what_comes_after(catalogued):
    assert catalogued("01_a.seed=9") == (0, EVERYTHING)


@pytest.mark.parametrize(
    ("spoil", "fate"),
    [
        (lambda path: path.write_text("x\n"), "changed"),
        (lambda path: path.write_text(""), "emptied"),
        (lambda path: path.unlink(), "deleted"),
    ],
)
def test_a_report_file_that_was_spoilt_is_mended_by_the_next_start(catalogued, capsys, spoil, fate):
    table = catalogued.root / "reports/s/03_c.csv"
    spoil(table)
    assert catalogued() == (0, ["03_c"])
    assert f"03_c: runs, since what it made was changed: 03_c.csv ({fate})" in capsys.readouterr().out
    assert table.read_text() == "x\n1\n"
    part = catalogued.root / "reports/s/02_b/seed2"
    (part / "02_b-seed2.csv").write_text("")
    (part.parent / "seed3.ipynb").write_text("")
    assert catalogued() == (0, ["02_b/seed2", "02_b/seed3"])
    assert catalogued() == (0, [])


def test_what_an_execution_no_longer_makes_goes_and_what_others_put_there_stays(catalogued):
    reports = catalogued.root / "reports/s"
    (reports / "FINDINGS.md").write_text("ours")
    catalogued.engine.tables.pop("03_c")
    assert catalogued(force=["03_c"]) == (0, ["03_c"])
    assert not (reports / "03_c.csv").exists()
    assert (reports / "01_a.csv").is_file()
    assert (reports / "FINDINGS.md").read_text() == "ours"


@pytest.mark.parametrize("target", ["03_c.csv", "01_a.csv", "nowhere", "/etc/hostname"])
def test_a_link_in_place_of_a_report_file_is_replaced_and_not_what_it_leads_to(catalogued, target):
    reports = catalogued.root / "reports/s"
    before = {path: path.read_bytes() for path in reports.rglob("*") if path.is_file() and path.suffix != ".html"}
    for name in ("01_a.csv", "01_a.ipynb"):
        (reports / name).unlink()
        (reports / name).symlink_to(target if name.endswith("csv") else "01_a.ipynb")
    assert catalogued()[0] == 0
    assert {path: path.read_bytes() for path in reports.rglob("*") if path.is_file() and path.suffix != ".html"} == before
    assert not any((reports / name).is_symlink() for name in ("01_a.csv", "01_a.ipynb"))
    assert catalogued() == (0, [])


def test_a_story_that_names_a_file_outside_of_the_work_folder_is_refused(catalogued, capsys):
    catalogued.engine.work_files["03_c"] = ["../../secret"]
    assert catalogued(force=["03_c"]) == (1, ["03_c"])
    assert "leaves the folder" in capsys.readouterr().err
