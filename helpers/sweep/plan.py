"""Cost of a study: ``python -m helpers.sweep STUDY --plan``.

Steps are timed where the study's device is here. Where it asks for a GPU and there is
none, operations are counted and divided by published rates, which takes seconds.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode

from helpers.files import device_name, read_json
from helpers.relations import AXIS_PARAMETERS
from helpers.statistics.published import published_table
from helpers.sweep.study import CheckedStudy
from helpers.training import config, run
from helpers.training.config import RunConfig

# Operations per second of a training step, by card and precision. An A100 trains
# ResNet-50 at 224 px at 938 images/s in TF32 and 2,470 in mixed precision (NVIDIA
# DeepLearningExamples, PyTorch ResNet50 v1.5, one GPU of a DGX A100 80GB); a step
# counts as three forward passes of 8.2e9 operations. An H100, which that table lacks,
# is assumed to be 1.2 times as fast.
_STEP = 3 * 8.2e9  # operations per image
_RATES = {
    "A100": {"float32": 938 * _STEP, "bfloat16": 2470 * _STEP},
    "H100": {"float32": 1.2 * 938 * _STEP, "bfloat16": 1.2 * 2470 * _STEP},
}
# Operations per second of scoring, in float32 without TF32: half of NVIDIA's numbers.
_EXACT = {"A100": 0.5 * 19.5e12, "H100": 0.5 * 67e12}
# Classes of published data sets, with training and test images per class.
_SIZES = {"cifar-10": (10, 5000, 1000), "cifar-100": (100, 500, 100)}


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


def time_step(
    example: RunConfig, classes: int, size: int, device: str
) -> tuple[float, float, int]:
    """Time a network on random images.

    Args:
        example: the run whose network, batch size and optimizer are taken.
        classes: number of outputs.
        size: side of the images, pixels.
        device: "cpu" or "cuda".

    Returns:
        Seconds per image of a training step, those of an evaluation, and bytes of
        weights.
    """
    torch.set_num_threads(1)  # as a run has on a CPU
    network = run.initial_network(_from_scratch(example), classes).to(
        device, memory_format=torch.channels_last
    )
    pixels = torch.randint(
        0, 256, (example.batch_size, size, size, 3), dtype=torch.uint8, device=device
    )
    split = run.Split(
        pixels, torch.randint(0, classes, (example.batch_size,), device=device)
    )
    optimizer = run.make_optimizer(network, example, torch.device(device))
    train = _seconds(lambda: run.train_epoch(network, optimizer, split, example, 1))
    evaluate = _seconds(lambda: run.evaluate(network, split))
    weights = sum(value.nbytes for value in network.state_dict().values())
    return train / example.batch_size, evaluate / example.batch_size, weights


def _from_scratch(example: RunConfig) -> RunConfig:
    """The run without pretrained weights, which may be absent, and frozen stages."""
    return replace(example, pretrained=False, frozen_stages=0)


def _seconds(call: Callable[[], Any]) -> float:
    """Median seconds of a call, as torch's benchmark times it."""
    timer = Timer("call()", globals={"call": call})
    return timer.blocked_autorange(min_run_time=0.5).median


def count_operations(example: RunConfig, classes: int, size: int) -> tuple[float, int]:
    """Operations of a forward pass of one image, and bytes of weights.

    A multiplication and an addition are two. Nothing is computed.

    Args:
        example: the run whose network is taken.
        classes: number of outputs.
        size: side of the image, pixels.
    """
    network = run.initial_network(_from_scratch(example), classes)
    network = network.to("meta")
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        network.eval()(torch.empty(1, 3, size, size, device="meta"))
    weights = sum(value.nbytes for value in network.state_dict().values())
    return float(counter.get_total_flops()), weights


class UnitCosts(NamedTuple):
    """Seconds per image for an architecture and batch size, and bytes of weights."""

    step: float  # of training
    evaluation: float
    scored: float  # a pass while a model is scored
    weights: int


@dataclass(frozen=True)
class Images:
    """Numbers of a study's images, and the source of these numbers."""

    train: int
    test: int
    classes: int
    source: str


def image_counts(study: CheckedStudy, parameters: Mapping[str, Any]) -> Images:
    """Images that 01 chose; before it has run, numbers by the study's file."""
    path = study.work / "data.json"
    if path.is_file():
        counts = read_json(path)["images"]
        return Images(
            counts["train"], counts["test"], counts["classes"], "as chosen by 01"
        )
    per_class = parameters["images_per_class"]
    tested = parameters["test_images_per_class"]
    ids = parameters["class_ids"]
    place = str(parameters.get("data_path", ""))
    if parameters.get("data_source") == "cifar":
        classes, train, test = _SIZES["cifar-100" if "100" in place else "cifar-10"]
        classes = len(ids) or classes
        source = "as its authors publish it"
        return Images(
            classes * (per_class or train), classes * (tested or test), classes, source
        )
    boxed = published_table("du2024_table1").set_index("wnid")["n"]
    if (
        parameters.get("data_source") == "ilsvrc"
        and ids
        and set(ids) <= set(boxed.index)
    ):
        counts = boxed[ids].clip(upper=per_class or None)
        source = "those with a box, Du et al. 2024, Table 1"
        return Images(int(counts.sum()), len(ids) * (tested or 50), len(ids), source)
    classes = len(ids) or 20
    return Images(
        classes * (per_class or 500),
        classes * (tested or 50),
        classes,
        "assumed from the study's file: 500 training and 50 test images a class where "
        "it says 0, 20 classes where it lists none",
    )


def passes_of_scoring(parameters: Mapping[str, Any], train: int) -> float:
    """Images that pass forward through one model while 03 and 04 score it, roughly.

    A backward pass counts as two forward ones. Searches of flatness and sharpness are
    assumed to try all their magnitudes, so this is an upper limit; other notebooks are
    not counted.
    """
    scored = min(parameters.get("scored_images", 0) or train, train)
    families = parameters.get("families", ["localization"])
    total = 1.0 * scored  # logits and maps, from one pass
    if "prediction" in families:
        total += 3 * scored  # turned by 90, 180 and 270 degrees
    if "reliance" in families:
        total += 3 * scored  # three ways to grey boxes
    if "perturbation" in families:
        share = parameters["perturbation_fraction"] * scored
        kinds = 9  # transforms and blends that have a curve
        total += kinds * parameters["perturbation_points"] * share
    if "flatness" in families:
        halvings = parameters["flatness_halvings"]
        with_noise = min(parameters["flatness_images"], scored)
        with_noise *= parameters["flatness_draws"]
        ascents = min(parameters["sharpness_images"], scored)
        ascents *= 3 * parameters["sharpness_steps"]
        total += 2 * halvings * (with_noise + ascents)  # plain, and magnitude-aware
    return total


@dataclass(frozen=True)
class Cost:
    """Cost of the runs of one architecture and batch size on one device."""

    architecture: str
    batch_size: int
    runs: int
    images_per_second: float
    seconds_per_epoch: float
    training_hours: float  # at the cap of epochs
    scoring_hours: float
    bytes_on_disk: float


def duration(hours: float) -> str:
    """A time in words, with two digits or more.

    Example:
        >>> duration(0.0053), duration(0.5), duration(4.12), duration(1234.5)
        ('20 seconds', '30 minutes', '4.1 hours', '1,234 hours')
    """
    if hours < 1 / 40:
        return f"{math.ceil(3600 * hours)} seconds"
    if hours < 2:
        return f"{60 * hours:.0f} minutes"
    return f"{hours:.1f} hours" if hours < 10 else f"{hours:,.0f} hours"


def gigabytes(number: float) -> str:
    """Space on a disk in words, with two digits or more.

    Example:
        >>> gigabytes(0.0241), gigabytes(348.2)
        ('0.024 GB', '348 GB')
    """
    return f"{number:.2g} GB" if number < 10 else f"{number:,.0f} GB"


def costs(
    runs: Sequence[RunConfig],
    parameters: Mapping[str, Any],
    images: Images,
    unit_costs: Mapping[tuple[str, int], UnitCosts],
) -> list[Cost]:
    """Hours of a study from seconds per image.

    Args:
        runs: all runs of the study.
        parameters: of the study's notebooks.
        images: of the study.
        unit_costs: of each architecture and batch size.

    Returns:
        A row for each architecture and batch size.
    """
    snapshots = 1 if parameters.get("snapshots") == "stop" else 2
    passes = passes_of_scoring(parameters, images.train)
    rows = []
    for (architecture, batch), of_group in unit_costs.items():
        chosen = [
            item
            for item in runs
            if (item.architecture, item.batch_size) == (architecture, batch)
        ]
        seconds_per_epoch = [
            _images_fitted(item, images) * of_group.step
            + images.test * of_group.evaluation
            for item in chosen
        ]
        rows.append(
            Cost(
                architecture,
                batch,
                len(chosen),
                1 / of_group.step,
                max(seconds_per_epoch),
                sum(seconds_per_epoch) * parameters["max_epochs"] / 3600,
                len(chosen) * snapshots * passes * of_group.scored / 3600,
                snapshots * of_group.weights * len(chosen),
            )
        )
    return rows


def _images_fitted(run_config: RunConfig, images: Images) -> int:
    """Number of training images of a run."""
    of_all_classes = run_config.images_per_class * images.classes
    return min(images.train, of_all_classes or images.train)  # 0 takes all


def print_plan(study: CheckedStudy, gpus: int = 1) -> int:
    """Print runs, hours and disk of a study; 2 where it trains no networks.

    Args:
        study: of which notebook 01 and 02 or 06 are a part.
        gpus: number of GPUs that share the work.
    """
    parameters = study.values
    # With images (01) and no grid (02): its networks are the families of notebook 06.
    if "image_size" in parameters and "architectures" not in parameters:
        return _print_families(study)
    if not {"image_size", "architectures"} <= parameters.keys():
        print(
            f"{study.name} has no plan: 01_data_subset and 02_grid_training or "
            "06_kappa_tradeoff must be among its notebooks"
        )
        return 2
    # Notebooks may differ in what many have, such as jobs; here that of 02 counts.
    training = next(
        item.parameters for item in study.executions if item.notebook[:2] == "02"
    )
    parameters = parameters | training
    runs = planned_runs(parameters)
    images = image_counts(study, parameters)
    print(
        f"{study.name}: {len(runs):,} runs of at most {parameters['max_epochs']} "
        f"epochs, on {images.train:,} training and {images.test:,} test images of "
        f"{parameters['image_size']} px in {images.classes} classes ({images.source})"
    )
    on_gpu = str(parameters["device"]).startswith("cuda")
    if on_gpu and not torch.cuda.is_available():
        rows = _print_counted(runs, parameters, images, gpus)
    else:
        rows = _print_timed(runs, parameters, images, gpus)
    disk = sum(row.bytes_on_disk for row in rows)
    print(
        f"disk: at most {gigabytes(disk / 1e9)} of snapshots; not counted: pretraining "
        "on the spot, and what notebooks 05 to 08 compute"
    )
    return 0


def _print_families(study: CheckedStudy) -> int:
    """Print size and operations of the networks of notebook 06."""
    from helpers.kappa.networks import sizes

    parameters = study.values
    images = image_counts(study, parameters)
    seen = parameters["seen_classes"] or images.classes
    table = sizes(parameters["kappa_families"], seen, parameters["image_size"])
    passes = images.train + images.test * len(parameters["noise_ssim"])
    print(
        f"{study.name}: {len(table)} networks, on {images.train:,} training and "
        f"{images.test:,} test images in {images.classes} classes ({images.source})\n"
        f"{table.to_string(index=False, float_format='{:.3g}'.format)}\n"
        f"each passes {passes:,} images once, at its own side (pixels)"
    )
    return 0


def _groups(runs: Sequence[RunConfig]) -> dict[tuple[str, int], RunConfig]:
    """The first run of each architecture and batch size."""
    # Reversed, so that the first run of each is kept.
    return {(item.architecture, item.batch_size): item for item in reversed(runs)}


def _print_timed(
    runs: Sequence[RunConfig],
    parameters: Mapping[str, Any],
    images: Images,
    gpus: int,
) -> list[Cost]:
    """Print hours from timed steps on this machine."""
    use_gpu = torch.cuda.is_available() and parameters["device"] != "cpu"
    device = "cuda" if use_gpu else "cpu"
    unit_costs = {}
    for group, example in sorted(_groups(runs).items()):
        timed = time_step(example, images.classes, parameters["image_size"], device)
        step, evaluation, weights = timed
        unit_costs[group] = UnitCosts(
            step,
            evaluation,
            scored=evaluation,  # a scored pass costs as much
            weights=weights,
        )
    rows = costs(runs, parameters, images, unit_costs)
    default_jobs = 1 if use_gpu else len(os.sched_getaffinity(0))
    side_by_side = (parameters["jobs"] or default_jobs) * (gpus if use_gpu else 1)
    total = sum(row.training_hours for row in rows) / side_by_side
    scoring = sum(row.scoring_hours for row in rows) / side_by_side
    table = pd.DataFrame(rows).drop(columns="bytes_on_disk")
    digits = {"images_per_second": 1, "seconds_per_epoch": 1}
    table["training"] = table.pop("training_hours").map(duration)
    table["scoring"] = table.pop("scoring_hours").map(duration)
    print(
        f"timed on {device_name(device)}\n"
        f"{table.round(digits).to_string(index=False)}\n"
        f"training: at most {duration(total)} with {side_by_side} runs side by side; "
        "rules 1 to 3 stop most runs earlier\n"
        f"scoring by 03 and 04: at most {duration(scoring)}"
    )
    return rows


def _print_counted(
    runs: Sequence[RunConfig],
    parameters: Mapping[str, Any],
    images: Images,
    gpus: int,
) -> list[Cost]:
    """Print a range of hours from a count of operations and published rates."""
    groups = _groups(runs)
    examples = {example.architecture: example for example in groups.values()}
    of_architecture = {
        name: count_operations(example, images.classes, parameters["image_size"])
        for name, example in examples.items()
    }
    counted = {group: of_architecture[group[0]] for group in sorted(groups)}
    lines = []
    for card, rates in _RATES.items():
        rate = rates[parameters["precision"]]
        exact_rate = _EXACT[card]
        unit_costs = {
            group: UnitCosts(
                step=3 * operations / rate,
                evaluation=operations / exact_rate,
                scored=operations / exact_rate,
                weights=weights,
            )
            for group, (operations, weights) in counted.items()
        }
        rows = costs(runs, parameters, images, unit_costs)
        cap = sum(row.training_hours for row in rows) / gpus
        scoring = sum(row.scoring_hours for row in rows) / gpus
        lines.append(
            f"{gpus} {card}: training {duration(cap / 2)} to {duration(cap)}, where "
            "runs stop halfway on average or none before the cap; scoring by 03 and 04 "
            f"at most {duration(scoring)}"
        )
    print(
        "no GPU is here, so operations were counted and divided by published rates of "
        "ResNet-50 at 224 px; small networks and batches reach less of them\n"
        + "\n".join(lines)
        + "\non the machine with the GPUs this plan times steps instead"
    )
    return rows
