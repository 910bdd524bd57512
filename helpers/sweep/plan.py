"""What a study costs, from a few timed steps of each of its networks on random images: ``python -m helpers.sweep STUDY --plan``."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from torch.utils.benchmark import Timer

from helpers.files import device_name, read_json
from helpers.sweep.relations import AXIS_PARAMETERS
from helpers.sweep.study import CheckedStudy
from helpers.training import config, run
from helpers.training.config import RunConfig


def planned_runs(parameters: Mapping[str, Any]) -> list[RunConfig]:
    """The runs of a study as its training notebook lists them, without a look at its images."""
    fixed = {
        name: parameters[name] for name in config.HYPERPARAMETERS if name in parameters
    } | {"data": "unknown"}
    order = {name: parameters[name] for name in ("blocks", "repeats", "seed")}
    every = config.runs_of_study(
        {axis: parameters[name] for axis, name in AXIS_PARAMETERS.items()},
        fixed,
        **order,
    )
    return every[: parameters["run_count"] or None]


def time_step(
    of: RunConfig, classes: int, size: int, device: str
) -> tuple[float, float, int]:
    """Seconds per image of a training step and of an evaluation of random images of ``size`` pixels, and bytes of weights."""
    torch.set_num_threads(1)  # as a run has on a CPU
    network = run.initial_network(replace(of, pretrained=False), classes).to(
        device, memory_format=torch.channels_last
    )
    pixels = torch.randint(
        0, 256, (of.batch_size, size, size, 3), dtype=torch.uint8, device=device
    )
    split = run.Split(
        pixels, torch.randint(0, classes, (of.batch_size,), device=device)
    )
    given = {
        "run": run,
        "network": network,
        "split": split,
        "of": of,
        "optimizer": run.make_optimizer(network, of, torch.device(device)),
    }
    calls = (
        "run.train_epoch(network, optimizer, split, of, 1)",
        "run.evaluate(network, split)",
    )
    train, evaluate = (
        Timer(call, globals=given).blocked_autorange(min_run_time=0.5).median
        / of.batch_size
        for call in calls
    )
    return train, evaluate, sum(value.nbytes for value in network.state_dict().values())


def image_counts(
    study: CheckedStudy, parameters: Mapping[str, Any]
) -> tuple[int, int, int, str]:
    """Training images, test images, classes: those that 01 chose, or what the study's file says where it has not run yet."""
    if (study.work / "data.json").is_file():
        found = read_json(study.work / "data.json")["images"]
        return found["train"], found["test"], found["classes"], "as chosen by 01"
    classes = len(parameters["class_ids"]) or 20
    train, test = (
        parameters["images_per_class"] or 500,
        parameters["test_images_per_class"] or 50,
    )
    return (
        classes * train,
        classes * test,
        classes,
        "assumed from the study's file: 0 is taken for 500 and 50 a class, [] for 20 classes",
    )


def print_plan(study: CheckedStudy) -> int:
    """Print runs, hours and disk of a study on this machine; 2 where it trains no grid."""
    parameters = study.values
    if not {"image_size", "architectures"} <= parameters.keys():
        print(
            f"{study.name} has no plan: 01_data_subset and 02_grid_training must be among its notebooks"
        )
        return 2
    device = (
        "cuda" if torch.cuda.is_available() and parameters["device"] != "cpu" else "cpu"
    )
    runs, (train, test, classes, source) = (
        planned_runs(parameters),
        image_counts(study, parameters),
    )
    rows, disk = [], 0
    for architecture, batch in sorted(
        {(item.architecture, item.batch_size) for item in runs}
    ):
        chosen = [
            item
            for item in runs
            if (item.architecture, item.batch_size) == (architecture, batch)
        ]
        step, evaluation, weights = time_step(
            chosen[0], classes, parameters["image_size"], device
        )
        epochs = [
            min(train, item.images_per_class * classes or train) * step
            + test * evaluation
            for item in chosen
        ]
        rows.append(
            (
                architecture,
                batch,
                1 / step,
                max(epochs),
                len(chosen),
                sum(epochs) * parameters["max_epochs"] / 3600,
            )
        )
        disk += 2 * weights * len(chosen)
    table = pd.DataFrame(
        rows,
        columns=[
            "architecture",
            "batch_size",
            "images_per_second",
            "seconds_per_epoch",
            "runs",
            "hours",
        ],
    )
    side = parameters["jobs"] or (
        1 if device == "cuda" else len(os.sched_getaffinity(0))
    )
    print(
        f"{study.name}: {len(runs):,} runs of at most {parameters['max_epochs']} epochs, on {train:,} training and {test:,} test images of "
        f"{parameters['image_size']} px in {classes} classes ({source}); timed on {device_name(device)}\n"
        f"{table.round({'images_per_second': 1, 'seconds_per_epoch': 1, 'hours': 2}).to_string(index=False)}\n"
        f"training: at most {table['hours'].sum() / side:.2g} hours with {side} runs side by side; rules 1 to 3 stop most runs earlier\n"
        f"disk: at most {disk / 1e9:.2g} GB of snapshots; not counted: pretraining on the spot, and the other notebooks"
    )
    return 0
