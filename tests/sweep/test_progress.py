"""The table is drawn in place in a terminal and nowhere else; the log has one line per event; both stop nothing."""

import io
import json
import subprocess
import time
from pathlib import Path

import pytest

from helpers.files import PROJECT_ROOT
from helpers.sweep import progress
from helpers.sweep.executions import Places
from helpers.sweep.progress import Display
from helpers.sweep.study_file import Execution
from helpers.tally import Tally


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_in_a_terminal_the_table_is_drawn_where_it_stood_and_lines_stay_above_it():
    display = Display(Terminal())
    display.draw(["one", "two"])
    display.say("a is done")
    display.draw(["three", "four"])
    display.draw(["five", "six"])
    assert display.stream.getvalue().count("\x1b[2A\x1b[J") == 2
    assert display.stream.getvalue().endswith("\x1b[2A\x1b[Jfive\nsix\n")
    display.draw([])
    assert display.stream.getvalue().endswith("five\nsix\n\x1b[2A\x1b[J\n")


def test_elsewhere_there_are_lines_and_no_table():
    display = Display(io.StringIO())
    display.draw(["one", "two"])
    display.say("a is done")
    assert display.stream.getvalue() == "a is done\n"


def test_the_table_has_a_line_per_stage_with_all_counts_and_the_time_left():
    tallies = {"02_b, parts": Tally(10, done=2, running=2, failed=1, retried=3, seconds=[50.0, 70.0]), "02_b": Tally(1)}
    head, parts, whole = progress.progress_table(tallies, slots=2)
    assert head.split() == ["done", "running", "failed", "retried", "waiting", "time", "left"]
    assert parts.split() == ["02_b,", "parts", "2", "2", "1", "3", "5", "3", "min"]  # 60 s times 6 over 2
    assert whole.split() == ["02_b", "0", "0", "0", "0", "1", "?"]
    assert len({len(line) for line in (head, parts, whole)}) == 1


def test_parts_come_before_their_whole_in_the_order_of_the_notebooks():
    made = [
        Execution(Path("01_a.ipynb"), {}),
        *(Execution(Path("02_b.ipynb"), {}, part) for part in "xy"),
        Execution(Path("02_b.ipynb"), {}),
    ]
    names = {stage: [item.name for item in members] for stage, members in progress.stages(made).items()}
    assert names == {"01_a": ["01_a"], "02_b, parts": ["02_b/x", "02_b/y"], "02_b": ["02_b"]}


def test_an_event_is_one_line_of_the_log_whatever_stands_in_it(tmp_path):
    log = tmp_path / "work/sweep.log"
    progress.log_event(log, "starts", "02_b/x", "attempt 1")
    progress.log_event(log, "failed", "02_b/x", "cell 3\n  ValueError: a\nb")
    first, second = log.read_text().splitlines()
    assert first.split(" ", 2)[2] == "starts 02_b/x attempt 1"
    assert second.split(" ", 2)[2] == "failed 02_b/x cell 3 ValueError: a b"
    assert first.split()[0].endswith("Z")


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path):
    (tmp_path / "work").write_text("a file in the folder's place")
    progress.log_event(tmp_path / "work/sweep.log", "starts", "x")
    assert (tmp_path / "work").read_text() == "a file in the folder's place"


def test_the_status_takes_a_damaged_record_for_none_and_tells_what_runs_where(tmp_path):
    places = Places(tmp_path, "s")
    made = [Execution(Path("02_b.ipynb"), {"reports_dir": f"reports/s/02_b/{part}"}, part) for part in ("x", "y", "z")]
    for item, text in zip(made, ["{", json.dumps({"seconds": 4.0, "attempts": 2}), None], strict=True):
        for path, content in ((places.report(item), "{}"), (places.record(item), text)):
            if content is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content)
    held = {"02_b/z": {"machine": "night-server|boot", "pid": 7}}
    tallies, lines = progress.from_disk(made, places, held.get)
    assert tallies == {"02_b, parts": Tally(3, done=1, running=1, retried=1, seconds=[4.0])}
    assert tallies["02_b, parts"].waiting == 1
    assert lines == ["running: 02_b/z on night-server, process 7", "  02_b/z: starts"]


def test_the_status_does_not_call_complete_what_has_to_run_again(tmp_path):
    places, made = Places(tmp_path, "s"), Execution(Path("02_b.ipynb"), {})
    for path in (places.report(made), places.record(made)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"seconds": 4.0, "attempts": 1}))
    assert progress.from_disk([made], places, {}.get)[0]["02_b"].done == 1
    tallies, lines = progress.from_disk([made], places, {}.get, {"02_b": "runs, since parameters changed: seed"})
    assert (tallies["02_b"].done, tallies["02_b"].waiting) == (0, 1)
    assert lines == ["waiting: 02_b: runs, since parameters changed: seed"]


def place(done, total, label="runs", now="epoch 4, loss 0.31"):
    bar = {"label": label, "done": done, "total": total, "seconds": 20.0, "now": now}
    return {"began": time.time() - 600, "cell": 9, "cells": 40, "line": "for result in runs:", "bar": bar}


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        (place(20, 100), "cell 9 of 40 (for result in runs:), runs 20 of 100 (epoch 4, loss 0.31), 80 s left"),
        (place(9, 100), "runs 9 of 100 (epoch 4, loss 0.31), time left known after the first tenth"),
        (place(0, 2), "runs 0 of 2 (epoch 4, loss 0.31), time left known after the first tenth"),
        (place(2, 2, "", ""), "(for result in runs:), steps 2 of 2"),
        (place(1, 2) | {"bar": None}, "cell 9 of 40 (for result in runs:)"),
        ({"began": "x"}, "02_b: starts"),
        ([], "02_b: starts"),
    ],
)
def test_what_runs_is_told_with_cell_steps_what_runs_now_and_the_time_left_of_measured_steps(tmp_path, kept, told):
    places, made = Places(tmp_path, "s"), Execution(Path("02_b.ipynb"), {})
    progress.place_file(places, made).parent.mkdir(parents=True)
    progress.place_file(places, made).write_text(json.dumps(kept))
    assert progress.where_it_is(places, made).startswith("02_b: ")
    assert progress.where_it_is(places, made).endswith(told)


def test_what_runs_is_drawn_in_a_terminal_at_every_look_and_elsewhere_when_it_is_time():
    display = Display(Terminal())
    display.draw(["table"], ["a: cell 1 of 2"])
    assert display.stream.getvalue().startswith("table\na: cell 1 of 2\n")
    assert display.stream.getvalue().endswith(" since the start\n")
    for every, shown in ((0.0, "a: cell 1 of 2\n" * 2), (1e9, "")):
        display = Display(io.StringIO(), every)
        for _ in range(2):
            display.draw(["table"], ["a: cell 1 of 2"])
        display.draw(["table"])
        assert display.stream.getvalue() == shown


@pytest.mark.parametrize("target", ["status", "sweep"])
def test_make_hands_study_and_options_to_the_sweep(target):
    printed = subprocess.run(
        ["make", "-n", target, "STUDY=compact20", "SET=--set data_path=x"], cwd=PROJECT_ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "-m helpers.sweep params/compact20.yaml --set data_path=x" in printed
    assert ("--status" in printed) == (target == "status")
