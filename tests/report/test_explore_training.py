"""The sweep monitor: where the runs stand is told from what lies on disk, whoever trains them."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from helpers.files import write_json
from helpers.locks import LockHolder
from helpers.report import explore
from helpers.report.explore import training
from helpers.training import catalogue
from helpers.training.config import RunConfig, run_id
from helpers.training.state import save

BASE = RunConfig("resnet18", 8, 0.01, "adam", 0.0, False, False, data="d", max_epochs=9)


RUNS = [replace(BASE, repeat=number) for number in range(7)]


DONE, DONE2, DIVERGED, RUNNING, INTERRUPTED, BEGUN, WAITING = RUNS


@pytest.fixture(autouse=True)
def a_reader(monkeypatch):
    monkeypatch.setenv(explore.SWITCH, "1")


def begin(work, run, losses=()):
    folder = catalogue.run_folder(work, run)
    write_json(folder / "config.json", asdict(run) | {"run_id": run_id(run)})
    if losses:
        network = torch.nn.Linear(2, 2)
        history = [
            {"epoch": number, "train_loss": loss, "train_accuracy": 0.1 * number, "monitor_accuracy": 0.1, "seconds": 2.5}
            for number, loss in enumerate(losses, 1)
        ]
        save(folder, network, torch.optim.SGD(network.parameters()), history, [])
    return folder


def end(work, run, seconds, status="complete", reason="rules 1+2"):
    snapshots = [{"snapshot": "stop", "epoch": 4, "train_loss": 0.05, "train_accuracy": 0.97}] if status == "complete" else []
    record = {"run_id": run_id(run), "status": status, "stop_reason": reason, "epochs": 4, "seconds": seconds, "snapshots": snapshots}
    write_json(begin(work, run) / "result.json", record)


@pytest.fixture
def work(tmp_path):
    end(tmp_path, DONE, 8.0)
    end(tmp_path, DONE2, 12.0)
    end(tmp_path, DIVERGED, 1.0, "diverged", "loss is nan in epoch 2")
    begin(tmp_path, RUNNING, [1.5, 0.75])
    begin(tmp_path, INTERRUPTED, [1.2])
    begin(tmp_path, BEGUN)
    with LockHolder(tmp_path / "runs" / ".claims") as owner:
        assert owner.claim(run_id(RUNNING))
        yield tmp_path


def look(work, runs=RUNS):
    return training.states(work / "runs", LockHolder(work / "runs" / ".claims"), [run_id(run) for run in runs]).set_index("run_id")


def test_every_run_stands_where_its_files_say(work):
    table = look(work)
    expected = ["done", "done", "diverged", "running", "interrupted", "interrupted", "waiting"]
    assert [table.loc[run_id(run), "state"] for run in RUNS] == expected
    assert table["state"].tolist() == sorted(expected, key=training.STATES.index)


def test_epoch_loss_and_time_are_of_the_last_complete_epoch(work):
    running, begun, waiting = (look(work).loc[run_id(run)] for run in (RUNNING, BEGUN, WAITING))
    assert (running["epoch"], running["epochs_at_most"], running["train_loss"], running["train_accuracy"]) == (2, 9, 0.75, 0.2)
    assert running["seconds"] == 5.0
    assert (begun["epoch"], waiting["epoch"]) == (0, 0)
    assert np.isnan([begun["train_loss"], waiting["train_loss"], waiting["epochs_at_most"]]).all()


def test_a_run_tells_its_machine_or_why_it_ended(work):
    table = look(work)
    assert table.loc[run_id(DIVERGED), "where"] == "loss is nan in epoch 2"
    assert table.loc[run_id(RUNNING), "where"]
    assert "|" not in table.loc[run_id(RUNNING), "where"]


def test_the_time_left_is_that_of_the_sweep_by_hand(work):
    panel = explore.sweep_monitor(work, RUNS)
    counts = {"done": 2, "diverged": 1, "running": 1, "interrupted": 2, "waiting": 1}
    # Ten seconds a run; three to begin and half of one to finish, one at a time.
    assert panel.numbers == counts | {"runs": 7, "time_left": training.duration(35.0)}
    assert "7 runs: 2 done, 1 diverged, 1 running, 2 interrupted, 1 waiting; time left: about 35 s." in panel.reading.value


def test_without_a_list_the_runs_on_disk_are_counted(work):
    panel = explore.sweep_monitor(work)
    assert (panel.numbers["runs"], panel.numbers["waiting"]) == (6, 0)


def test_it_looks_again_at_each_tick(work):
    panel = explore.sweep_monitor(work, RUNS)
    before = panel.views[0].figure
    end(work, INTERRUPTED, 10.0)
    begin(work, RUNNING, [1.5, 0.75, 0.4])
    assert panel.numbers["done"] == 2
    panel.controls["tick"].value += 1
    assert (panel.numbers["done"], panel.numbers["interrupted"]) == (3, 1)
    assert "3 of at most 9" in panel.reading.value
    assert panel.views[0].figure != before


def test_a_list_holds_the_runs_of_one_state(work):
    panel = explore.sweep_monitor(work, RUNS)
    for state, runs in {"diverged": [DIVERGED], "waiting": [WAITING], "done": [DONE, DONE2]}.items():
        panel.controls["state"].value = state
        assert [run for run in RUNS if run_id(run) in panel.reading.value] == runs


def test_a_run_whose_trainer_has_vanished_is_interrupted(work):
    gone = LockHolder(work / "runs" / ".claims")
    gone._identity |= {"pid": 2**22 + 1, "started": "1"}  # beyond the numbers that Linux gives
    assert gone.claim(run_id(BEGUN))
    assert look(work).loc[run_id(BEGUN), "state"] == "interrupted"


def test_looking_leaves_no_file(work):
    before = sorted(work.rglob("*"))
    explore.sweep_monitor(work, RUNS).update()
    assert sorted(work.rglob("*")) == before


def test_a_checkpoint_that_is_being_replaced_counts_as_none(work):
    folder = catalogue.run_folder(work, RUNNING)
    for content in (b"", b"\xff" * 40):
        (folder / "checkpoint.safetensors").write_bytes(content)
        row = look(work).loc[run_id(RUNNING)]
        assert (row["state"], row["epoch"]) == ("running", 0)


def test_before_the_first_run_there_is_nothing_and_no_time_is_guessed(tmp_path):
    panel = explore.sweep_monitor(tmp_path)
    assert not panel.fault
    assert (panel.numbers["runs"], panel.numbers["time_left"]) == (0, "0 s")
    assert explore.sweep_monitor(tmp_path, RUNS).numbers["time_left"] == "?"


def test_a_damaged_record_is_named(work):
    path = catalogue.run_folder(work, DONE) / "result.json"
    path.write_text("{")
    panel = explore.sweep_monitor(work, RUNS)
    assert "is not readable JSON" in panel.fault
    assert "delete it" in panel.reading.value
