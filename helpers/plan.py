"""What a study costs here: ``python -m helpers.plan STUDY`` times steps of its runs."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.utils.benchmark import Timer

from helpers.networks import hooks, resnet
from helpers.parameters import AXIS_PARAMETERS, StudyError
from helpers.studies import load
from helpers.training import config, run
from helpers.training.config import RunConfig

_SECONDS = 2.0  # that one network is timed for, at least


def planned_runs(parameters: Mapping[str, Any]) -> list[RunConfig]:
    """The runs of a study as its training notebook lists them.

    Args:
        parameters: of the study's notebooks; images are not read.
    """
    fixed = {
        name: parameters[name] for name in config.HYPERPARAMETERS if name in parameters
    }
    runs = config.runs_of_study(
        {axis: parameters[name] for axis, name in AXIS_PARAMETERS.items()},
        fixed | {"data": "unknown"},
        blocks=parameters["blocks"],
        repeats=parameters["repeats"],
        seed=parameters["seed"],
    )
    return runs[: parameters["run_count"] or None]


def seconds_of_image(example: RunConfig, classes: int, side: int, device: str) -> float:
    """Seconds for a training step, for each image of its batch.

    Args:
        example: the run whose network and batch size are taken.
        classes: number of outputs.
        side: of the images, pixels.
        device: "cpu", of which one core is taken, or "cuda".
    """
    scratch = replace(example, pretrained=False, frozen_stages=0, weights="")
    network = run.initial_network(scratch, classes).to(device).train()
    shape = (example.batch_size, 3, side, side)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8)
    labels = torch.zeros(example.batch_size, dtype=torch.int64, device=device)

    def step() -> None:
        batch = hooks.prepared(pixels, resnet.normalise_images, device)
        torch.nn.functional.cross_entropy(network(batch), labels).backward()

    timer = Timer("step()", globals={"step": step})  # of one thread; waits for a GPU
    return timer.blocked_autorange(min_run_time=_SECONDS).median / example.batch_size


def main(name: str) -> None:
    """Print what a study costs, on one core or GPU.

    The runs of notebook 02, and hours of their training at most.
    """
    parameters = load(name).values()
    if "architectures" not in parameters:
        print(f"{name} trains no network")
        return
    runs = planned_runs(parameters)
    classes = len(parameters["class_ids"]) or 100
    device = "cuda" if torch.cuda.is_available() else "cpu"
    speeds: dict[tuple[str, int], float] = {}
    hours = 0.0
    for item in runs:
        key = (item.architecture, item.batch_size)
        if key not in speeds:
            side = parameters["image_size"]
            speeds[key] = seconds_of_image(item, classes, side, device)
        images = classes * (item.images_per_class or parameters["images_per_class"])
        hours += speeds[key] * images * parameters["max_epochs"] / 3600
    for (architecture, batch), seconds in sorted(speeds.items()):
        print(f"{architecture}, batches of {batch}: {1 / seconds:,.0f} images/s")
    print(
        f"{name}: {len(runs):,} runs of at most {parameters['max_epochs']} epochs: at "
        f"most {hours:.1f} hours of one {'GPU' if device == 'cuda' else 'core'}; where "
        "images_per_class is 0, all images of a class are not counted"
    )


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except StudyError as fault:
        sys.exit(str(fault))
