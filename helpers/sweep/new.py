"""A study of a user's own images: ``python -m helpers.sweep --new``.

It looks at a folder or zip and writes a study file with values that fit it.
"""

import json
import math
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml

from helpers.data import images, layouts, selection, sources
from helpers.data.decode import Decoded, check_boxes, decode_all
from helpers.data.layouts import Listing
from helpers.files import PROJECT_ROOT
from helpers.parameters import declared, value_fault
from helpers.scores.scoring_set import FEWEST_PER_CLASS
from helpers.study_files import parse_yaml
from helpers.sweep.study import load_study
from helpers.training import run
from helpers.training.config import RunConfig, rows_of_run

_SIZES = (32, 48, 64, 96, 128, 160, 192, 224)  # sides offered, pixels
_MOST_CLASSES = 20
_SAMPLE_IMAGES = 200  # images that are decoded to check them
_SAMPLE_SIDE = 64  # pixels to which these are scaled
_MOST_TEST_IMAGES = 50  # of a class
_MOST_TRAINING_IMAGES = 100  # of a class
# With this many images of a class, enough of them are always left to train on after
# some are held out, see ``fewest_fitted``.
_ALWAYS_ENOUGH_IMAGES = 40
_TIME_FOR_TRAINING = 0.4  # share of the study's time
_SHORT_STUDY_MINUTES = 30.0  # a study with less time leaves out costly notebooks
_PROBE_SECONDS = 60.0  # longest time of a probing run
_LEARNT_ACCURACY = 0.9  # training accuracy at which a probing run ends
_MOST_EPOCHS = 150  # of a run
_FEWEST_RUNS = 4  # of a study
# So many images are taken that ``_FEWEST_RUNS`` runs have time for this many epochs.
_FEWEST_EPOCHS = 40
_FEWEST_CLASSES = 4  # of a study
_FEWEST_IMAGES_OF_CLASS = 25  # of a study
_EPOCHS_PER_PROBE_EPOCH = 2  # epochs of a run for each that the probing run needed
_EPOCHS_PER_PROBE_EPOCH_IF_SLOW = 4  # if it did not reach its training accuracy
_LEAST_MAX_EPOCHS = 12
_WITHOUT_BOXES = [
    "effective_invariance",
    "mixup_accuracy",
    "fro_over_spec",
    "curve_mean (rotation)",
]  # primary measures
_QUICK = {
    "flatness_images": 200,
    "flatness_draws": 4,
    "sharpness_images": 64,
    "sharpness_steps": 6,
    "perturbation_fraction": 0.2,
}
_GRID = {
    "architectures": ["resnet18", "resnet34"],
    "batch_sizes": [16, 32],
    "learning_rates": [0.01, 0.003],
    "optimizers": ["adam", "sgd"],
    "weight_decays": [0.0, 0.0005],
    "augmentations": [False],
}


class Look(NamedTuple):
    """Content of a folder or zip of images."""

    layout: str
    boxes: bool  # whether some images have a usable box
    training: Counter[str]  # images by class, with a box where there are boxes
    test: Counter[str]
    side: int  # the median shorter side, pixels
    remarks: list[str]  # where boxes are from, what is left out


class Scale(NamedTuple):
    """Classes and numbers of images that a study takes."""

    classes: list[str]
    good: list[str]  # all classes with enough images, the largest first
    training: int  # images of a class
    test: int
    fraction: float  # of the images that fit into the time of the fewest runs


# --- a look at the images ---


def look_at(path: Path, unpacked: Path, layout: str = layouts.RECOGNISED) -> Look:
    """Find the layout of a source, its usable images by class, and their size.

    Args:
        path: the folder or .zip.
        unpacked: folder below which a .zip is unpacked.
        layout: a name of ``layouts.LAYOUTS``, or the one that fits.

    Raises:
        ValueError: where no image can be read, or no box of a layout with boxes.
    """
    source = sources.open_source(path, unpacked)
    listing = layouts.scan(source, layout)
    training = [item for item in listing.records if item.split == "train"]
    sample = training[:: max(1, len(training) // _SAMPLE_IMAGES)]
    decoded = decode_all(source, sample, _SAMPLE_SIDE)
    readable = [image for image in decoded if image.pixels is not None]
    if not readable:
        raise ValueError(f"no image of {len(sample)} can be read{_such_as(decoded)}")
    remarks = _remarks_on_boxes(listing, readable)
    boxes = any(image.boxes for image in readable)
    unreadable = [image for image in decoded if image.pixels is None]
    if unreadable:
        remarks.append(
            f"left out: {len(unreadable)} of {len(sample)} images that were looked at "
            f"cannot be read{_such_as(unreadable)}"
        )
    counts = Counter(item.class_id for item in training if item.boxes or not boxes)
    test = Counter(item.class_id for item in listing.records if item.split == "test")
    _leave_out_untested(counts, test, listing)
    check_boxes(readable)
    sentences = images.sentences_of_faults(listing.faults)
    remarks += [f"left out: {sentence}" for sentence in sentences]
    sides = [min(image.width, image.height) for image in readable]
    side = int(statistics.median(sides))
    return Look(listing.layout, boxes, counts, test, side, remarks)


def _such_as(decoded: Sequence[Decoded]) -> str:
    """Words that name the first image and its fault."""
    image = decoded[0]
    _, detail = image.faults[0]
    return f", such as {image.record.name}: {detail}"


def _remarks_on_boxes(listing: Listing, readable: Sequence[Decoded]) -> list[str]:
    """Say where boxes are from, and how many images have a usable one.

    Raises:
        ValueError: if none has, in a layout that leaves out images without a box.
    """
    annotated = [image for image in readable if image.record.boxes]
    if not annotated:
        return []
    usable = [image for image in annotated if image.boxes]
    if usable:
        return [
            f"boxes: from {listing.boxes_from}; of {len(readable)} images that were "
            f"looked at {len(usable)} have a usable one"
        ]
    unusable = f"none of {len(annotated)} that were looked at can be used"
    return [f"boxes: {unusable}{_such_as(annotated)}"]


def _leave_out_untested(
    training: Counter[str], test: Counter[str], listing: Listing
) -> None:
    """Leave out classes without test images where others have some."""
    for class_id in [name for name in training if test and not test[name]]:
        detail = f"its {training.pop(class_id)} training images are left out too"
        fault = sources.Fault("", selection.NO_TEST_IMAGES, detail, class_id, "test")
        listing.faults.append(fault)


# --- how many images a class needs ---


def fewest_fitted(images_per_class: int, classes: int) -> int:
    """Number of images that runs are fitted to, of the class with the fewest.

    A run holds out a tenth of all training images at random, more of some classes, for
    stopping rule 3; see ``config.rows_of_run``.

    Args:
        images_per_class: training images of each class.
        classes: number of classes.
    """
    labels = torch.arange(classes).repeat_interleave(images_per_class)
    rows, _ = rows_of_run(labels, _recipe(_SIZES[0]))
    return int(np.bincount(labels.numpy()[rows], minlength=classes).min())


def least_training_images(classes: int) -> int:
    """Fewest training images per class with which a study can be scored.

    Runs must be fitted to ``FEWEST_PER_CLASS`` images of every class, see
    ``fewest_fitted``.

    Args:
        classes: number of classes.
    """
    # One image more can leave fewer in a class, since other images are then held out.
    # So this looks for the largest number that is too small, not the first that is not.
    counts = range(FEWEST_PER_CLASS, _ALWAYS_ENOUGH_IMAGES)
    short = [
        count for count in counts if fewest_fitted(count, classes) < FEWEST_PER_CLASS
    ]
    return max(short, default=FEWEST_PER_CLASS - 1) + 1


def _test_images(training: int, test: int) -> int:
    """Test images per class: at most 50.

    Without a test split they are a quarter of the training images.
    """
    return min(_MOST_TEST_IMAGES, test or max(1, training // 4))


def _training_images(look: Look, class_id: str) -> int:
    """Training images of a class without those that become test images."""
    count = look.training[class_id]
    return count if look.test else count - _test_images(count, 0)


def good_classes(look: Look) -> tuple[list[str], int]:
    """Classes with enough training images, and how many are enough.

    Returns:
        Classes, the largest first; and the least number of training images.

    Raises:
        ValueError: if fewer than two classes have enough.
    """
    names = sorted(look.training, key=lambda name: (-look.training[name], name))
    least = least_training_images(min(_MOST_CLASSES, max(2, len(names))))
    good = [name for name in names if _training_images(look, name) >= least]
    if len(good) < 2:
        kind = "training images with boxes" if look.boxes else "training images"
        # so many that enough are left when test images are taken from them
        needed = least
        while not look.test and needed - _test_images(needed, 0) < least:
            needed += 1
        raise ValueError(
            f"fewer than 2 classes have {needed} {kind}, which leave "
            f"{FEWEST_PER_CLASS} of every class for scores after those that are held "
            f"out; it was read as {look.layout}: "
            + "; ".join([_counts(look), *look.remarks])
            + "; another reading: --layout NAME, of docs/images.md"
        )
    return good, least


def _counts(look: Look) -> str:
    """Classes with their numbers of images, the largest first."""
    words = []
    for name, count in look.training.most_common(_MOST_CLASSES):
        test = f" + {look.test[name]:,} test" if look.test else ""
        words.append(f"{name} ({count:,}{test})")
    text = f"classes: {', '.join(words)}"
    more = len(look.training) - _MOST_CLASSES
    return f"{text} and {more} more" if more > 0 else text


# --- values of a study ---


def _recipe(size: int) -> RunConfig:
    """Configuration of the run that is timed."""
    return RunConfig(
        architecture="resnet34",
        batch_size=16,
        learning_rate=0.01,
        optimizer="sgd",
        weight_decay=0.0,
        augmentation=False,
        pretrained=False,
        data="unknown",
        **_network(size),
    )


def _network(size: int) -> dict[str, Any]:
    """Stem and width of networks for images of a side in pixels."""
    if size >= 128:
        stem = "imagenet"
    elif size >= 48:
        stem = "strided"
    else:
        stem = "small"
    return {"stem": stem, "width": 0.1875}


def probe(
    subset: dict[str, Any], recipe: RunConfig, cache: Path, device: str, seconds: float
) -> tuple[list[float], float]:
    """Train a run until it has learnt, or until the time is over.

    Args:
        subset: values of notebook 01.
        recipe: of the run.
        cache: folder of decoded images.
        device: "cpu" or "cuda".
        seconds: time that it may take; it trains at least one epoch.

    Returns:
        Training accuracy after each epoch, and seconds per epoch.
    """
    data = images.load_study_data(**subset, cache_dir=cache)
    torch.set_num_threads(1)  # as runs have on a CPU
    network = run.initial_network(recipe, len(data.classes)).to(
        device, memory_format=torch.channels_last
    )
    optimizer = run.make_optimizer(network, recipe, torch.device(device))
    split = run.resident(data.train, device)
    began = time.perf_counter()
    accuracies: list[float] = []
    for epoch in range(1, _MOST_EPOCHS + 1):
        _, accuracy = run.train_epoch(network, optimizer, split, recipe, epoch)
        accuracies.append(accuracy)
        if accuracy >= _LEARNT_ACCURACY or time.perf_counter() - began >= seconds:
            break
    return accuracies, (time.perf_counter() - began) / len(accuracies)


class _Plan(NamedTuple):
    """Runs and epochs for which this machine has time."""

    minutes: float  # of the whole study
    side_by_side: int  # runs at a time
    accuracies: list[float]  # of the probing run, after each epoch
    seconds_per_run: float  # at most
    epochs: int  # of a run, at most
    runs: int
    most_runs: int  # different configurations


def choose_values(
    look: Look, place: str, minutes: float, cache: Path
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Choose the values of a study of these images, for a time on this machine.

    Args:
        look: what the folder or zip holds.
        place: path of the images, as the study file has it.
        minutes: time for the study.
        cache: folder of decoded images.

    Returns:
        Values by notebook, and the reasons for them, a sentence each.

    Raises:
        ValueError: if there are too few images.
    """
    good, least = good_classes(look)
    size = max([side for side in _SIZES if side <= look.side], default=_SIZES[0])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    side_by_side = 1 if device == "cuda" else len(os.sched_getaffinity(0))
    budget = minutes * 60 * _TIME_FOR_TRAINING * side_by_side  # seconds of runs
    recipe = _recipe(size)
    # as many images as the fewest runs can learn from in that time
    scale = _largest_scale(look, good)
    subset = _subset(look, place, size, scale, least)
    _, seconds_per_epoch = probe(subset, recipe, cache, device, 0.0)  # one epoch
    needed = _FEWEST_RUNS * _FEWEST_EPOCHS * seconds_per_epoch
    scale = _reduced_scale(scale, budget / needed)
    # without the classes that turn out too small when their images are decoded
    subset = _subset(look, place, size, scale, least)
    classes, remarks = _check_images(subset, recipe, cache)
    scale = scale._replace(classes=classes)
    look = look._replace(remarks=[*look.remarks, *remarks])
    subset = _subset(look, place, size, scale, least)
    # as many epochs as they need, and as many runs as there is time for
    longest = min(_PROBE_SECONDS, 6 * minutes)
    accuracies, seconds_per_epoch = probe(subset, recipe, cache, device, longest)
    epochs = _epochs(accuracies)
    grid = _grid(look, place, size, scale) | {"max_epochs": epochs}
    most_runs = _configurations(grid)
    affordable = int(budget / (seconds_per_epoch * epochs))
    grid["run_count"] = min(most_runs, max(_FEWEST_RUNS, affordable))
    plan = _Plan(
        minutes,
        side_by_side,
        accuracies,
        seconds_per_run=seconds_per_epoch * epochs,
        epochs=epochs,
        runs=grid["run_count"],
        most_runs=most_runs,
    )
    # half way from chance to 1
    floor = round((1 + 1 / len(scale.classes)) / 2, 2)
    values = {
        "common": {
            "minimum_train_accuracy": floor,
            "accuracy_thresholds": sorted({0.95, 0.9, 0.8, floor}, reverse=True),
        },
        "notebooks": _notebooks(look, subset, grid, minutes < _SHORT_STUDY_MINUTES),
    }
    reasons = [
        *_reasons_for_images(look, scale, size, minutes),
        *_reasons_for_runs(plan),
        f"minimum_train_accuracy {floor}: half way from chance, of "
        f"{len(scale.classes)} classes, to 1",
        *_reasons_for_leaving_out(look, plan.runs, minutes),
    ]
    return values, reasons


def _epochs(accuracies: Sequence[float]) -> int:
    """Most epochs of a run, from the training accuracies of the probing run."""
    factor = _EPOCHS_PER_PROBE_EPOCH
    if accuracies[-1] < _LEARNT_ACCURACY:
        factor = _EPOCHS_PER_PROBE_EPOCH_IF_SLOW
    return min(_MOST_EPOCHS, max(_LEAST_MAX_EPOCHS, factor * len(accuracies)))


def _configurations(grid: dict[str, Any]) -> int:
    """Number of configurations in the full factorial of a grid."""
    axes = (*_GRID, "pretrained_levels")
    return math.prod(len(grid[axis]) for axis in axes)


def _reasons_for_runs(plan: _Plan) -> list[str]:
    """Sentences on the length and number of runs."""
    return [
        f"max_epochs {plan.epochs}: a probing run reached {plan.accuracies[-1]:.0%} "
        f"training accuracy after {len(plan.accuracies)} epochs",
        f"run_count {plan.runs} of {plan.most_runs}: a run takes "
        f"{plan.seconds_per_run:,.0f} s at most, {plan.side_by_side} side by side, "
        f"in {_TIME_FOR_TRAINING:.0%} of {plan.minutes:g} minutes; the other notebooks "
        "have the rest",
    ]


def _largest_scale(look: Look, good: Sequence[str]) -> Scale:
    """The largest number of images that a study takes."""
    classes = sorted(good[:_MOST_CLASSES])
    fewest_test = min(look.test[name] for name in classes)
    fewest_training = min(look.training[name] for name in classes)
    test = _test_images(fewest_training, fewest_test)
    left = fewest_training if look.test else fewest_training - test
    return Scale(
        classes=classes,
        good=list(good),
        training=min(_MOST_TRAINING_IMAGES, left),
        test=test,
        fraction=1.0,
    )


def _reduced_scale(scale: Scale, fraction: float) -> Scale:
    """A fraction of the images, by fewer classes and fewer images of each."""
    if fraction >= 1:
        return scale
    share_of_each = fraction**0.5  # of the classes, and of the images of a class
    count = max(_FEWEST_CLASSES, round(len(scale.classes) * share_of_each))
    count = min(len(scale.classes), count)
    training = max(_FEWEST_IMAGES_OF_CLASS, round(scale.training * share_of_each))
    training = min(scale.training, training)
    classes = sorted(scale.good[:count])
    return scale._replace(classes=classes, training=training, fraction=fraction)


def _subset(
    look: Look, place: str, size: int, scale: Scale, least: int
) -> dict[str, Any]:
    """Values of notebook 01."""
    return {
        "data_source": look.layout,
        "data_path": place,
        "class_ids": scale.classes,
        "image_size": size,
        "images_per_class": scale.training,
        "test_images_per_class": scale.test,
        "minimum_images_per_class": least,
    }


def _check_images(
    subset: dict[str, Any], recipe: RunConfig, cache: Path
) -> tuple[list[str], list[str]]:
    """Classes that remain once images are decoded, and remarks on the other ones.

    Raises:
        ValueError: if a class has too few images for scores, or one class remains.
    """
    data = images.load_study_data(**subset, cache_dir=cache)
    rows, _ = rows_of_run(data.train.labels, recipe)
    labels = data.train.labels.numpy()
    counts = np.bincount(labels[rows], minlength=len(data.classes))
    classes = data.classes["class_id"].tolist()
    faults = [
        fault
        for fault in data.faults.itertuples()
        if fault.class_id in set(subset["class_ids"]) - set(classes)
    ]
    remarks = [
        f"left out: {sentence}" for sentence in images.sentences_of_faults(faults)
    ]
    if len(classes) < 2 or counts.min() < FEWEST_PER_CLASS:
        name = classes[int(counts.argmin())]
        raise ValueError(
            f"{len(classes)} classes are left, and of {name} {counts.min()} images "
            f"that runs are fitted to; 2 classes and {FEWEST_PER_CLASS} images of each "
            "are needed" + "".join(f"; {remark}" for remark in remarks)
        )
    return classes, remarks


def _grid(look: Look, place: str, size: int, scale: Scale) -> dict[str, Any]:
    """Values of notebook 02 without the numbers of epochs and of runs."""
    spare = sorted(scale.good[_MOST_CLASSES:])[:30]  # classes to pretrain on
    grid = _GRID | _network(size) | {"pretrained_levels": [False]}
    if len(spare) < 2:
        return grid
    return grid | {
        "pretrained_levels": [True, False],
        "pretrain_data_source": look.layout,
        "pretrain_data_path": place,
        "pretrain_class_ids": spare,
        "pretrain_images_per_class": 150,
    }


def _notebooks(
    look: Look, subset: dict[str, Any], grid: dict[str, Any], short: bool
) -> dict[str, dict[str, Any]]:
    """Values by notebook; those that need boxes or more time are left out."""
    families = ["prediction", "norms", "perturbation"]
    if look.boxes:
        families = ["localization", "reliance", *families]
    if not short:
        families.insert(-1, "flatness")
    measures = {"families": families} | _QUICK
    if not look.boxes:
        measures["primary_measures"] = _WITHOUT_BOXES
    notebooks = {"01_data_subset": subset, "02_grid_training": grid}
    if look.boxes:
        notebooks["03_cam_scoring"] = {}
    notebooks["04_baselines"] = measures
    notebooks["10_all_measures"] = deepcopy(measures)
    notebooks["11_classification"] = {}
    if not short:
        notebooks["08_unlabelled_images"] = {}
    if look.boxes and not short:
        notebooks["05_robustness_ablations"] = {}
    return notebooks


def _reasons_for_images(
    look: Look, scale: Scale, size: int, minutes: float
) -> list[str]:
    """Sentences on the content of the folder or zip, and on the images taken."""
    fewest = min(look.training[name] for name in scale.classes)
    beside = " beside these" if look.test else ""
    taken = (
        f"images_per_class {scale.training}, test_images_per_class {scale.test}: the "
        f"smallest class has {fewest}{beside}"
    )
    if scale.fraction < 1:
        taken += (
            f"; more than {_FEWEST_RUNS} runs can learn from in "
            f"{_TIME_FOR_TRAINING:.0%} of {minutes:g} minutes"
        )
    return [
        f"{look.layout}: {look.training.total():,} training images"
        f"{' with boxes' if look.boxes else ''} in {len(look.training)} classes, "
        f"{look.test.total():,} test images",
        _counts(look),
        *look.remarks,
        f"class_ids: {len(scale.classes)} of {len(scale.good)} classes with enough "
        f"images; image_size {size}: the median is {look.side}",
        taken,
    ]


def _reasons_for_leaving_out(look: Look, runs: int, minutes: float) -> list[str]:
    """Sentences on questions that the study cannot answer."""
    reasons = []
    if not look.boxes:
        reasons.append(
            "no boxes: where the networks look is not measured (03, 05, localization "
            "and reliance are left out)"
        )
    if minutes < _SHORT_STUDY_MINUTES:
        reasons.append(
            f"less than {_SHORT_STUDY_MINUTES:g} minutes: flatness, 08 and 05 are left "
            "out"
        )
    if runs < 40:  # a run gives one model or more
        reasons.append(
            f"a study of {runs} runs shows how things work but supports no claim; 60 "
            "models or more do"
        )
    return reasons


def write_new(
    name: str,
    data: str,
    minutes: float = 60.0,
    *,
    layout: str = layouts.RECOGNISED,
    root: Path = PROJECT_ROOT,
) -> int:
    """Write ``params/<name>.yaml`` for some images, and print what was chosen and why.

    Args:
        name: of the study.
        data: path of a folder or .zip of images.
        minutes: time for the study on this machine.
        layout: a name of ``layouts.LAYOUTS``; else the one that fits is found.
        root: folder of the project.

    Returns:
        0; or 2 with the reason on stderr if no study can be written.
    """
    target = root / "params" / f"{name}.yaml"
    full = Path(data).expanduser().resolve()
    try:
        _check_arguments(name, data, minutes, layout, root)
        place = os.path.relpath(full, root) if full.is_relative_to(root) else str(full)
        # In the new study's folder of work, so that it finds its images decoded.
        cache = root / "work" / name / "cache"
        look = look_at(full, cache / "unpacked", layout)
        values, reasons = choose_values(look, place, minutes, cache)
        # Names from the data may have line breaks, which would end a comment.
        reasons = [" ".join(reason.split()) for reason in reasons]
        _write(target, values, reasons, root)
    except (OSError, ValueError) as fault:
        print(fault, file=sys.stderr)
        return 2
    command = f"python -m helpers.sweep {quote(name)}"
    print(f"params/{name}.yaml:")
    for reason in reasons:
        print(f"  {reason}")
    print("next:")
    print(f"  {command} --plan    # what it costs here")
    print(f"  {command}           # runs it")
    return 0


def _check_arguments(
    name: str, data: str, minutes: float, layout: str, root: Path
) -> None:
    """Refuse arguments that are not valid, and a study that exists."""
    fault = value_fault(
        declared(root / "notebooks/01_data_subset.ipynb")["study"], name
    )
    if fault:
        raise ValueError(fault)
    if (root / "params" / f"{name}.yaml").exists():
        raise ValueError(f"params/{name}.yaml exists")
    if not data or not 0 < minutes < math.inf:
        raise ValueError("--new needs --data PATH, and --minutes above 0")
    names = [layouts.RECOGNISED, *layouts.LAYOUTS]
    if layout not in names:
        raise ValueError(f"--layout {layout}: must be one of {', '.join(names)}")


def _write(
    target: Path, values: dict[str, Any], reasons: Sequence[str], root: Path
) -> None:
    """Write a study file, and delete it if it does not pass the check."""
    text = yaml.dump(values, sort_keys=False, width=130, allow_unicode=True)
    if parse_yaml(text) != values:
        # A class named 1e3 would be read as a number; JSON has all texts in quotes.
        text = json.dumps(values, indent=1) + "\n"
    comments = "".join(f"# {reason}\n" for reason in reasons)
    with target.open("x", encoding="utf-8") as file:
        file.write(comments + text)
    try:
        load_study(target, root=root)
    except ValueError:
        target.unlink()
        raise
