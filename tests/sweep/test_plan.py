"""What a study costs: arithmetic on measured steps, without its images."""

import json

import pytest
import torch

from helpers.sweep import plan
from helpers.sweep.study import load_study


def test_the_runs_are_those_that_the_notebook_would_list():
    runs = plan.planned_runs(load_study("compact20").values)
    assert len(runs) == len(set(runs)) == 88
    assert {(run.architecture, run.stem, run.width) for run in runs[:16]} == {
        ("resnet18", "strided", 0.25)
    }
    assert sum(run.label_noise > 0 for run in runs) == 16


def test_hours_are_images_times_seconds(monkeypatch, capsys, tmp_path):
    """100 training images in steps of 0.01 s, 20 test images of 0.001 s: 1.02 s an epoch; 12 runs of 16 epochs."""
    monkeypatch.setattr(plan, "time_step", lambda *given: (0.01, 0.001, 10**6))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    study = load_study(
        "demo",
        [
            f"work_dir={tmp_path}",
            "jobs=2",
            "architectures=[resnet18]",
            "batch_sizes=[16]",
        ],
    )
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo/data.json").write_text(
        json.dumps({"images": {"train": 100, "test": 20, "classes": 6}})
    )
    assert plan.print_plan(study) == 0
    told = capsys.readouterr().out
    hours = 12 * 16 * 1.02 / 3600
    assert (
        "12 runs of at most 16 epochs, on 100 training and 20 test images of 32 px in 6 classes (as chosen by 01)"
        in told
    )
    assert (
        f"at most {hours / 2:.2g} hours with 2 runs side by side" in told
        and "disk: at most 0.024 GB" in told
    )
    assert f"{1.02:.1f}" in told


@pytest.mark.parametrize("name", ["compact20", "kinds20"])
def test_a_clone_without_the_images_is_planned_from_what_the_file_states(
    monkeypatch, capsys, tmp_path, name
):
    monkeypatch.setattr(plan, "time_step", lambda *given: (0.01, 0.001, 1))
    assert (
        plan.print_plan(
            load_study(name, [f"work_dir={tmp_path}", "data_path=nowhere.zip"])
        )
        == 0
    )
    assert (
        "5,000 training and 1,000 test images of 64 px in 20 classes (assumed from the study's file"
        in capsys.readouterr().out
    )


def test_a_step_is_timed_on_the_network_itself_and_a_study_without_a_grid_is_refused(
    capsys,
):
    run = plan.planned_runs(load_study("demo").values)[0]
    threads = torch.get_num_threads()
    train, evaluate, weights = plan.time_step(run, 6, 16, "cpu")
    torch.set_num_threads(threads)
    assert train > evaluate > 0 and weights > 10**5
    assert plan.print_plan(load_study("kappa_tiny100")) == 2
    assert "kappa_tiny100 has no plan" in capsys.readouterr().out
