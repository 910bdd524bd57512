"""What a study costs: arithmetic on measured steps, without its images."""

import json
import re
from dataclasses import replace

import pytest
import torch

from helpers.sweep import plan
from helpers.sweep.study import load_study
from helpers.training.config import RunConfig


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
    assert (
        "12 runs of at most 16 epochs, on 100 training and 20 test images of 32 px in 6 classes (as chosen by 01)"
        in told
    )
    assert (
        "at most 2 minutes with 2 runs side by side" in told  # 12 x 16 x 1.02 s / 2
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
    assert plan.print_plan(load_study("threshold_sweep")) == 2
    assert "threshold_sweep has no plan" in capsys.readouterr().out


def test_operations_are_twice_the_multiplications_of_the_paper():
    """He et al. 2016, Table 1: ResNet18 has 1.8e9 at 224 px; torchvision: 11.7e6 weights."""
    runs = plan.planned_runs(load_study("imagenet20").values)
    of = next(item for item in runs if item.architecture == "resnet18")
    operations, weights = plan.count_operations(of, 1000, 224)
    assert operations == pytest.approx(2 * 1.8e9, rel=0.02)
    assert weights == pytest.approx(4 * 11.7e6, rel=0.01)
    frozen = replace(of, pretrained=True, frozen_stages=2)
    assert plan.count_operations(frozen, 1000, 224) == (operations, weights)


def test_the_paper_s_grid_is_planned_without_a_gpu(monkeypatch, capsys, tmp_path):
    """Du et al. 2024: 11,173 training images; 8.2e9 operations per image and 1728 runs.

    With the rate of ResNet-50 on an A100, 2,470 images/s, for all networks.
    """
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(plan, "count_operations", lambda *given: (8.2e9, 10**8))
    study = load_study("imagenet20", [f"work_dir={tmp_path}"])
    assert plan.print_plan(study, gpus=8) == 0
    printed = capsys.readouterr().out
    assert "1,728 runs of at most 150 epochs, on 11,173 training and 1,000" in printed
    evaluation = 1000 * 8.2e9 / (0.5 * 19.5e12)
    hours = 1728 * 150 * (11_173 / 2470 + evaluation) / 3600 / 8
    assert f"8 A100: training {hours / 2:.0f} hours to {hours:.0f} hours" in printed
    assert "scoring by 03 and 04 at most" in printed
    assert "disk: at most 346 GB" in printed  # two snapshots of each run


@pytest.mark.parametrize(
    ("place", "train", "classes"),
    [("data/cifar-10-batches-bin", 50_000, 10), ("data/cifar-100.zip", 50_000, 100)],
)
def test_images_of_cifar_are_as_many_as_its_authors_publish(
    tmp_path, place, train, classes
):
    study = load_study("cifar10", [f"work_dir={tmp_path}", f"data_path={place}"])
    found = plan.image_counts(study, study.values)
    assert (found.train, found.test, found.classes) == (train, 10_000, classes)


def test_processes_of_training_are_those_of_the_training_notebook(
    monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(plan, "time_step", lambda *given: (0.01, 0.001, 1))
    study = load_study(
        "demo",
        [
            f"work_dir={tmp_path}",
            "02_grid_training.jobs=3",
            "06_kappa_tradeoff.jobs=9",
        ],
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert plan.print_plan(study) == 0
    assert "with 3 runs side by side" in capsys.readouterr().out


def test_more_families_are_more_passes_and_fewer_images_fewer():
    """1,000 images: one pass for maps, three turned ones, and three with parts greyed."""
    few = {"scored_images": 1000, "families": ["localization", "prediction"]}
    assert plan.passes_of_scoring(few, 5000) == 4000
    more = few | {"families": ["localization", "prediction", "reliance"]}
    assert plan.passes_of_scoring(more, 5000) == 7000
    assert plan.passes_of_scoring(more, 100) == 700


def test_of_last_snapshots_alone_half_is_scored_and_stored():
    """3 runs of 2 epochs on 100 images; 50 of them are scored, by one pass each."""
    config = RunConfig("resnet18", 16, 0.01, "adam", 0.0, False, False, data="any")
    seconds = plan.UnitCosts(step=0.01, evaluation=0.001, scored=0.002, weights=10**6)
    parameters = {"max_epochs": 2, "scored_images": 50, "families": ["localization"]}
    arguments = plan.Images(100, 20, 5, "any"), {("resnet18", 16): seconds}
    (both,) = plan.costs([config] * 3, parameters, *arguments)
    only_last = parameters | {"snapshots": "stop"}
    (last,) = plan.costs([config] * 3, only_last, *arguments)
    training = 3 * 2 * (100 * 0.01 + 20 * 0.001) / 3600
    assert both.training_hours == last.training_hours == pytest.approx(training)
    assert both.scoring_hours == pytest.approx(3 * 2 * 50 * 0.002 / 3600)
    assert last.scoring_hours == pytest.approx(3 * 50 * 0.002 / 3600)
    assert (both.bytes_on_disk, last.bytes_on_disk) == (6e6, 3e6)


def test_a_study_of_families_is_planned_with_the_own_side_of_each_network(
    capsys, tmp_path
):
    """CLIP's RN50 has 38.3e6 weights (its image encoder), EfficientNet-B0 4.0e6 without its head."""
    pytest.importorskip("timm")
    study = load_study("cifar100_kappa", [f"work_dir={tmp_path}"])
    few = study.values["kappa_families"]
    assert {"RN50", "tf_efficientnet_b0"} <= set(few)
    few[:] = ["RN50", "tf_efficientnet_b0", "resnet18 w1"]
    assert plan.print_plan(study) == 0
    printed = capsys.readouterr().out
    assert "3 networks, on 50,000 training and 10,000 test images in 100" in printed
    rows = re.findall(r"^ *(\S.*?) +([\d.]+) +(\d+) +[\d.]+$", printed, re.M)
    assert rows == [
        ("RN50", "38.3", "224"),
        ("tf_efficientnet_b0", "4.01", "224"),
        ("resnet18 w1", "11.2", "32"),
    ]
