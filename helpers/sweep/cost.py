"""What a study costs before it is started: steps of every network are timed on the machine at hand, the rest is arithmetic."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from helpers.constraints import AXIS_PARAMETERS
from helpers.data import layouts, synthetic
from helpers.data.sources import open_source
from helpers.files import PROJECT_ROOT, device_name, from_root, read_json
from helpers.networks import resnet
from helpers.scoring.precision import pass_seconds, scoring_record
from helpers.statistics.published import published_table
from helpers.sweep.study_file import load_study
from helpers.training import config, cuda_graph, pool, step_choice
from helpers.training import run as training_run
from helpers.training.config import RunConfig
from helpers.training.precision import foreseen_precision, smallest_shape, step_seconds, training_record
from helpers.training.run import Split, make_optimizer, train_epoch

_LONG = 3.0  # seconds for one step, beyond which larger batches are taken to be as fast per image
_TIMED = 0.5  # seconds of steps per measurement
_STEPS = 20  # in a timed epoch on a GPU, where an epoch has a fixed cost of its own


class Step(NamedTuple):
    """What one network takes at one batch size."""

    train: float  # seconds per image of a training step
    evaluate: float  # seconds per image of an evaluation
    weights: int  # bytes of the network's state
    memory: int  # bytes: on a GPU all that a run took at its peak, else what float32 training keeps for the backward pass


def time_step(config: RunConfig, classes: int, size: int, device: str) -> Step:
    """Time a training step and an evaluation of one network on random images, after a warm-up; at least one step of each.

    Args:
        config: architecture, stem, width, batch size, optimizer, augmentation.
        classes: outputs of the network.
        size: side of the images, pixels.
        device: cpu (one thread, as runs have) or cuda (with the step that runs take there).
    """
    place = torch.device(device)
    gpu, count = place.type == "cuda", config.batch_size * (_STEPS if place.type == "cuda" else 1)
    model = resnet.build(config.architecture, classes, stem=config.stem, width=config.width, last_stride=config.last_stride, seed=0)
    model = model.to(place, memory_format=torch.channels_last)
    optimizer = make_optimizer(model, config, place)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, size, size, 3), generator=generator, dtype=torch.uint8)
    split = Split(pixels.to(place), torch.randint(0, classes, (count,), generator=generator).to(place))
    kept = activation_bytes(model, split.batch(torch.arange(2, device=place))) * config.batch_size // 2
    captured = step_choice.fastest_step(cuda_graph.shape_of(config, classes, size, place), config.max_epochs * _STEPS)
    train = _seconds(lambda: train_epoch(model, optimizer, split, config, 1, captured))
    if gpu:
        kept = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    evaluate = _seconds(lambda: training_run.evaluate(model, split))
    return Step(train / count, evaluate / count, sum(value.nbytes for value in model.state_dict().values()), kept)


def _seconds(call: Callable[[], object]) -> float:
    """Seconds of a call that waits for its device, as both passes do, which read their sums at the end."""
    started = time.perf_counter()
    call()
    first = time.perf_counter() - started
    if first > _LONG:
        return first
    count, started = 0, time.perf_counter()
    while not count or time.perf_counter() - started < _TIMED:
        call()
        count += 1
    return (time.perf_counter() - started) / count


def activation_bytes(model: nn.Module, images: Tensor) -> int:
    """Bytes that autograd keeps of a forward pass in train mode, in float32, beside the weights; each tensor counted once."""
    own = {value.untyped_storage().data_ptr() for value in [*model.parameters(), *model.buffers()]}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    model.train()
    with torch.autograd.graph.saved_tensors_hooks(pack, _same):
        model(resnet.normalise_images(images))
    return sum(size for place, size in kept.items() if place not in own)


def _same(tensor: Tensor) -> Tensor:
    return tensor


def time_steps(runs: Sequence[RunConfig], classes: int, size: int, device: str) -> dict[tuple[str, int], Step]:
    """Time every network at every batch size of a study; on a slow machine larger batches are taken from the smallest one."""
    steps: dict[tuple[str, int], Step] = {}
    for key in sorted({(run.architecture, run.batch_size) for run in runs}):
        config = next(run for run in runs if (run.architecture, run.batch_size) == key)
        slow = [(batch, step) for (name, batch), step in steps.items() if name == key[0] and step.train * batch > _LONG]
        if slow:
            batch, step = slow[0]
            steps[key] = step._replace(memory=step.memory * key[1] // batch)
        else:
            steps[key] = time_step(config, classes, size, device)
    return steps


IMAGES, NOTEBOOK = "01_data_subset", "02_grid_training"
_SCORE = ("03_cam_scoring", "04_baselines")
_ILSVRC_IMAGES = 500  # training images with boxes in an ILSVRC class whose number is not known: about the mean of Du et al., Table 1
_COPIES = {"adam": 4, "sgd": 3}  # numbers that training keeps for each weight: itself, its gradient, and those of the optimizer


class Counts(NamedTuple):
    """How many images a study has."""

    train: int
    test: int
    classes: int
    source: str  # where the numbers come from


def planned_runs(parameters: Mapping[str, Any], precision: str = "float32") -> list[RunConfig]:
    """List the runs of a study as its training notebook does in a precision, without looking at its images."""
    names = ("stem", "width", "last_stride", "momentum", "rule3_split", "seed", "max_epochs", "loss_threshold", "accuracy_threshold")
    fixed = {name: parameters[name] for name in names} | {"data": "unknown", "precision": precision}
    order = {name: parameters[name] for name in ("blocks", "repeats", "seed")}
    every = config.runs_of_study({axis: parameters[name] for axis, name in AXIS_PARAMETERS.items()}, fixed, **order)
    return every[: parameters["run_count"] or None]


def planned_precision(parameters: Mapping[str, Any], work: Path, device: str) -> str:
    """Precision in which a study would be trained on a device: "float32" or "bfloat16"; nothing is kept."""
    form = {name: parameters[name] for name in ("stem", "width", "last_stride")}
    shape = smallest_shape(parameters["architectures"], parameters["batch_sizes"], parameters["image_size"], device, **form)
    return foreseen_precision(parameters["precision"], training_record(work), device, partial(step_seconds, shape))["precision"]


class Scoring(NamedTuple):
    """What it takes to score the models of a study once."""

    precision: str
    images: int  # that each model is scored on
    seconds: dict[str, float]  # per image, by architecture


def planned_scoring(asked: Mapping[str, Any], parameters: Mapping[str, Any], train: int, work: Path, device: str) -> Scoring:
    """Time the pass of scoring through every network of a study on a device, in the precision that it would have; nothing is kept.

    Args:
        asked: parameters of a notebook that scores.
        parameters: of those that choose the images and train.
        train: training images.
        work: the study's folder.
        device: cpu or cuda.
    """
    form = {name: parameters[name] for name in ("stem", "width", "last_stride")}
    ordered = sorted(parameters["architectures"], key=resnet.ARCHITECTURES.index)
    found = {name: pass_seconds(smallest_shape([name], [1], parameters["image_size"], device, **form)) for name in ordered}
    record = scoring_record(work)
    precision = foreseen_precision(asked["scoring_precision"], record, device, partial(found.__getitem__, ordered[0]))["precision"]
    return Scoring(precision, min(asked["scored_images"] or train, train), {name: seconds[precision] for name, seconds in found.items()})


def image_counts(parameters: Mapping[str, Any]) -> Counts:
    """Count the images that a study would use, from the list of its files; nothing is decoded.

    Where the files are not there, the published numbers of images are taken, and ``source`` says so.
    """
    wanted, most, held = parameters["class_ids"], parameters["images_per_class"], parameters["test_images_per_class"]
    if parameters["data_source"] == "synthetic":
        classes = len(wanted) or len(synthetic.CLASS_NAMES)
        return Counts(classes * (most or 60), classes * held, classes, "rendered")
    try:
        source = open_source(from_root(parameters["data_path"]), from_root("work/unpacked"))
        records = layouts.scan(source, parameters["data_source"], wanted).records
    except (OSError, ValueError):
        known = published_table("du2024_table1").set_index("wnid")["n"].to_dict()
        numbers = pd.Series({name: known.get(name, _ILSVRC_IMAGES) for name in wanted})
        note = "assumed: the files are not there, so the published numbers of images with boxes stand for them"
        return Counts(int(numbers.clip(upper=most or None).sum()), held * len(wanted), len(wanted), note)
    boxed = any(record.boxes for record in records)
    used = [(record.class_id, record.split) for record in records if record.boxes or not boxed]
    table = pd.DataFrame(used, columns=["class_id", "split"])
    numbers = table.value_counts().unstack("split", fill_value=0)
    validation = numbers["test"] if "test" in numbers else 0 * numbers["train"]
    if not held:
        train = numbers["train"].clip(upper=most or None)
        test = validation + numbers["train"] - train
    else:
        test = validation.clip(upper=held) if "test" in numbers else (numbers["train"] // 2).clip(upper=held)
        train = (numbers["train"] if "test" in numbers else numbers["train"] - test).clip(upper=most or None)
    return Counts(int(train.sum()), int(test.sum()), len(numbers), "listed, faults not yet taken out")


def hours_table(runs: Sequence[RunConfig], steps: Mapping[tuple[str, int], Step], counts: Counts) -> pd.DataFrame:
    """Hours of training by architecture and batch size, one run after another, if every run went to its last epoch.

    Returns:
        architecture, batch_size, images_per_second, seconds_per_epoch (of a run on all images), runs, hours.
    """
    rows = []
    for (architecture, batch), step in steps.items():
        chosen = [run for run in runs if (run.architecture, run.batch_size) == (architecture, batch)]
        sizes = [min(counts.train, run.images_per_class * counts.classes or counts.train) for run in chosen]
        seconds = [images * step.train + counts.test * step.evaluate for images in sizes]
        # At a snapshot, of which there may be two, both splits are evaluated.
        snapshots = [2 * (images + counts.test) * step.evaluate for images in sizes]
        total = sum(run.max_epochs * epoch + once for run, epoch, once in zip(chosen, seconds, snapshots, strict=True))
        rows.append((architecture, batch, 1 / step.train, max(seconds), len(chosen), total / 3600))
    return pd.DataFrame(rows, columns=["architecture", "batch_size", "images_per_second", "seconds_per_epoch", "runs", "hours"])


def print_plan(study: Path, overrides: Sequence[str] = (), *, root: Path = PROJECT_ROOT) -> int:
    """Time a few steps of every network of a study on this machine, and print what the whole study would take.

    Args:
        study: the study file.
        overrides: "name=value" or "notebook.name=value".
        root: the project, with its notebooks.

    Returns:
        0, or 2 where the study trains no grid.

    Raises:
        StudyError: the study file is wrong.
    """
    executions = {item.name: item.parameters for item in load_study(study, root / "notebooks", overrides)}
    if absent := [name for name in (IMAGES, NOTEBOOK) if name not in executions]:
        print(f"{study}: {' and '.join(absent)} must be among its notebooks to plan it: one chooses the images, the other trains a grid")
        return 2
    parameters = executions[IMAGES] | executions[NOTEBOOK]
    device = "cuda" if torch.cuda.is_available() and parameters["device"] != "cpu" else "cpu"
    work = from_root(parameters["work_dir"]) / study.stem
    runs, counts = planned_runs(parameters, planned_precision(parameters, work, device)), image_counts(parameters)
    threads = torch.get_num_threads()
    if device == "cpu":
        torch.set_num_threads(1)  # as a run has
    try:
        steps = time_steps(runs, counts.classes, parameters["image_size"], device)
        asked = next((executions[name] for name in _SCORE if name in executions), None)
        scoring = planned_scoring(asked, parameters, counts.train, work, device) if asked else None
        print("\n".join(lines(study.stem, parameters, runs, counts, steps, device, finished_epochs(work), scoring)))
    finally:
        torch.set_num_threads(threads)
    return 0


def finished_epochs(work: Path) -> list[int]:
    """Epochs of the runs of a study that are complete."""
    return [read_json(path)["epochs"] for path in sorted((work / "runs").glob("*/result.json"))]


def lines(
    name: str,
    parameters: Mapping[str, Any],
    runs: Sequence[RunConfig],
    counts: Counts,
    steps: Mapping[tuple[str, int], Step],
    device: str,
    finished: Sequence[int],
    scoring: Scoring | None = None,
) -> list[str]:
    """Write the plan of a study, line by line."""
    table, cap = hours_table(runs, steps, counts), parameters["max_epochs"]
    total, side = table["hours"].sum(), pool.jobs_for(device, parameters["jobs"]) if device == "cpu" else 1
    images = f"{counts.train:,} training and {counts.test:,} test images of {parameters['image_size']} px in {counts.classes} classes"
    told = [f"{name}: {len(runs):,} runs of at most {cap} epochs, on {images} ({counts.source})"]
    asked = ", though the study asks for a GPU, and torch sees none here" if device == "cpu" and "cuda" in parameters["device"] else ""
    told += [f"timed on {device_name(device)} in {runs[0].precision}{asked}"]
    told += ["", *table.round({"images_per_second": 1, "seconds_per_epoch": 1, "hours": 2}).to_string(index=False).splitlines(), ""]
    together = f"with {side} runs side by side" if device == "cpu" else "on one GPU, which runs that share it are not taken to speed up"
    told += [f"training: at most {_span(total / side)} {together}; one epoch of all runs takes {_span(total / side / cap)}"]
    if finished:
        mean = sum(finished) / len(finished)
        after = _span(total / side * mean / cap)
        told += [f"  the {len(finished)} runs that are complete took {mean:.0f} epochs on average: then {after}"]
    if scoring:
        hours = 2 * scoring.images * sum(scoring.seconds[run.architecture] for run in runs) / 3600
        told += [
            f"scoring: at most {_span(hours)} in {scoring.precision} for one pass over {scoring.images:,} images by the one or two "
            "models of every run, in one process"
        ]
    told += _space(parameters, runs, counts, steps, device, side)
    return told + _levers(table, total / side, parameters, len(runs))


def _span(hours: float) -> str:
    """Write a time in the unit that a reader plans in."""
    if hours < 1:
        return f"{hours * 60:.1f} min"
    return f"{hours:,.1f} h" if hours < 48 else f"{hours:,.0f} h ({hours / 24:,.1f} days)"


def _space(
    parameters: Mapping[str, Any],
    runs: Sequence[RunConfig],
    counts: Counts,
    steps: Mapping[tuple[str, int], Step],
    device: str,
    side: int,
) -> list[str]:
    """What the study needs on disk and in memory."""
    of_run = {run: steps[run.architecture, run.batch_size] for run in runs}
    snapshots = sum(step.weights for step in of_run.values())
    pixels = (counts.train + counts.test) * 3 * parameters["image_size"] ** 2
    unfinished = side * max(step.weights * (_COPIES[run.optimizer] - 1) for run, step in of_run.items())
    told = [
        f"disk: {_size(snapshots)} to {_size(2 * snapshots)} of snapshots (one or two a run), "
        f"{_size(unfinished)} of checkpoints while runs train, {_size(pixels)} of decoded images"
    ]
    needs = {key: pixels + step.memory + (0 if device == "cuda" else step.weights * 4) for key, step in steps.items()}
    (architecture, batch), most = max(needs.items(), key=_second)
    how = "measured" if device == "cuda" else "estimated for float32 from what the backward pass keeps; bfloat16 needs a little over half"
    return [*told, f"GPU memory: {_size(most)} for a run of {architecture} at batch {batch}, the largest, images included ({how})"]


def _second(pair: tuple[Any, int]) -> int:
    return pair[1]


def _size(number: float) -> str:
    return f"{number / 1e9:,.1f} GB" if number >= 1e8 else f"{number / 1e6:,.1f} MB"


def _levers(table: pd.DataFrame, hours: float, parameters: Mapping[str, Any], runs: int) -> list[str]:
    """What would change the hours, the strongest first."""
    shares = (table.groupby("architecture")["hours"].sum() / table["hours"].sum()).sort_values(ascending=False)
    told = ["what would change it:"]
    if len(shares) > 1:
        told += [f"  without {name} (architectures): {share:.0%} less" for name, share in shares.items()]
    few, size = max(1, runs // 4), parameters["image_size"]
    return [
        *told,
        f"  run_count {few}, a balanced quarter of the runs: at most {_span(hours * few / runs)}",
        f"  max_epochs {max(1, parameters['max_epochs'] // 2)}: at most half; most runs stop earlier by rules 1 to 3",
        f"  image_size {size // 2}: about a quarter of the arithmetic",
        "  machines that share the disk, or --shard: the hours are divided by their number",
        "not counted: pretraining on the spot, and the other notebooks, whose cost is some ten such passes a model",
    ]
