"""A study of one's own images: ``python -m helpers.sweep --new``.

A look at a folder or zip, and a study file with values that fit it.
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
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml

from helpers.data import images, layouts, selection, sources
from helpers.data.decode import Decoded, decode_all, reaching_out
from helpers.data.layouts import Listing
from helpers.files import PROJECT_ROOT
from helpers.parameters import declared, value_fault
from helpers.scoring.scoring_set import OF_A_CLASS
from helpers.study_files import parse_yaml
from helpers.sweep.study import load_study
from helpers.training import run
from helpers.training.config import RunConfig

_SIZES = (32, 48, 64, 96, 128, 160, 192, 224)  # sides offered, pixels
_MOST_CLASSES = 20
_SAMPLE = 200  # images that are looked at
_SAMPLE_SIDE = 64  # pixels at which they are
_MOST_TEST_IMAGES = 50  # of a class
_MOST_TRAINING_IMAGES = 100
_ENOUGH = 40  # images of a class of which what rule 3 holds out leaves enough
_SHARE = 0.4  # of the time that training may take
_SHORT = 30.0  # minutes below which what costs much is left out
_PROBE = 60.0  # seconds of a probing run
_LEARNT = 0.9  # training accuracy at which it ends
_MOST_EPOCHS = 150  # of a run
_RUNS = 4  # at least, of a study
_EPOCHS = 40  # that these should have
_CLASSES = 4  # taken in any case
_IMAGES = 25  # of a class, taken in any case
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
    """What is in a folder or zip."""

    layout: str
    boxes: bool  # whether some can be used
    training: Counter[str]  # images by class, with a box where there are boxes
    test: Counter[str]
    side: int  # the median shorter side, pixels
    remarks: list[str]  # where boxes are from, what is left out


class Scale(NamedTuple):
    """How much of the images a study takes."""

    classes: list[str]
    good: list[str]  # all classes with enough images, the largest first
    training: int  # images of a class
    test: int
    fraction: float  # of the images that the fewest runs can learn from; 1 for all


# --- a look at the images ---


def look_at(path: Path, unpacked: Path, layout: str = layouts.RECOGNISED) -> Look:
    """The layout of a source, its usable images by class, and their size.

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
    sample = training[:: max(1, len(training) // _SAMPLE)]
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
    listing.faults.extend(reaching_out(readable))
    sentences = images.left_out(listing.faults)
    remarks += [f"left out: {sentence}" for sentence in sentences]
    sides = [min(image.width, image.height) for image in readable]
    side = int(statistics.median(sides))
    return Look(listing.layout, boxes, counts, test, side, remarks)


def _such_as(decoded: Sequence[Decoded]) -> str:
    """The first image that cannot be used, and why."""
    image = decoded[0]
    _, detail = image.faults[0]
    return f", such as {image.record.name}: {detail}"


def _remarks_on_boxes(listing: Listing, readable: Sequence[Decoded]) -> list[str]:
    """Where boxes are from, and how many of them can be used.

    Raises:
        ValueError: where none can be, in a layout whose images are left out without.
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
    remark = f"boxes: {unusable}{_such_as(annotated)}"
    if listing.layout in layouts.WITH_BOXES:
        raise ValueError(f"{remark}; --layout class_folders reads images without boxes")
    return [remark]


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
    """Images that runs are fitted to, of the class which rule 3 takes most from.

    Args:
        images_per_class: training images.
        classes: their number.
    """
    labels = torch.arange(classes).repeat_interleave(images_per_class)
    bare = torch.empty(len(labels), 0)
    split = images.ImageSet(bare, labels, bare, ())
    rows, _ = run.rows_of_run(SimpleNamespace(train=split), _recipe(_SIZES[0]))
    return int(np.bincount(labels.numpy()[rows], minlength=classes).min())


def least_training_images(classes: int) -> int:
    """Training images of a class from which ``OF_A_CLASS`` are fitted to.

    Rule 3 holds out a tenth of all, by chance, and scores need some of every class.
    """
    counts = range(OF_A_CLASS, _ENOUGH)
    short = [count for count in counts if fewest_fitted(count, classes) < OF_A_CLASS]
    return max(short, default=OF_A_CLASS - 1) + 1


def _test_images(count: int, tested: int) -> int:
    """Test images of a class of so many; held out of training where it has none."""
    return min(_MOST_TEST_IMAGES, tested or max(1, count // 4))


def _training_images(look: Look, class_id: str) -> int:
    """Training images that are left of a class."""
    count = look.training[class_id]
    return count if look.test else count - _test_images(count, 0)


def good_classes(look: Look) -> tuple[list[str], int]:
    """Classes with enough images, the largest first, and the images that are enough.

    Raises:
        ValueError: where there are not two.
    """
    names = sorted(look.training, key=lambda name: (-look.training[name], name))
    least = least_training_images(min(_MOST_CLASSES, max(2, len(names))))
    good = [name for name in names if _training_images(look, name) >= least]
    if len(good) < 2:
        kind = "training images with boxes" if look.boxes else "training images"
        needed = least
        while not look.test and needed - _test_images(needed, 0) < least:
            needed += 1
        raise ValueError(
            f"fewer than 2 classes have {needed} {kind}, which leave {OF_A_CLASS} of "
            "every class for scores after those that are held out; it was read as "
            f"{look.layout}: "
            + "; ".join([_counts(look), *look.remarks])
            + "; another reading: --layout NAME, of docs/images.md"
        )
    return good, least


def _counts(look: Look) -> str:
    """Classes with their numbers of images, the largest first."""
    words = [
        f"{name} ({count:,}{f' + {look.test[name]:,} test' if look.test else ''})"
        for name, count in look.training.most_common(_MOST_CLASSES)
    ]
    more = len(look.training) - _MOST_CLASSES
    return f"classes: {', '.join(words)}{f' and {more} more' if more > 0 else ''}"


# --- values of a study ---


def _recipe(size: int) -> RunConfig:
    """The run that is timed."""
    return RunConfig(
        "resnet34",
        16,
        0.01,
        "sgd",
        0.0,
        augmentation=False,
        pretrained=False,
        data="unknown",
        **_network(size),
    )


def _network(size: int) -> dict[str, Any]:
    """Stem and width for images of a side."""
    stem = "imagenet" if size >= 128 else "strided" if size >= 48 else "small"
    return {"stem": stem, "width": 0.1875}


def probe(
    subset: dict[str, Any], recipe: RunConfig, cache: Path, device: str, seconds: float
) -> tuple[list[float], float]:
    """Train a run until it has learnt or the time is over.

    Args:
        subset: values of notebook 01.
        recipe: of the run.
        cache: folder of decoded images.
        device: "cpu" or "cuda".
        seconds: that it may take; one epoch is trained in any case.

    Returns:
        Training accuracy after each epoch, and seconds per epoch.
    """
    data = images.load_study_data(**subset, cache_dir=cache)
    torch.set_num_threads(1)  # as a run has on a CPU
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
        if accuracy >= _LEARNT or time.perf_counter() - began >= seconds:
            break
    return accuracies, (time.perf_counter() - began) / len(accuracies)


def choose(
    look: Look, place: str, minutes: float, cache: Path
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Values of a study of these images for a time on this machine.

    Args:
        look: what is there.
        place: the path of the images, as the study names it.
        minutes: what the study may take.
        cache: folder of decoded images.

    Returns:
        Values by notebook, and the reasons, a sentence each.

    Raises:
        ValueError: where there are too few images.
    """
    good, least = good_classes(look)
    size = max([side for side in _SIZES if side <= look.side], default=_SIZES[0])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    side_by_side = 1 if device == "cuda" else len(os.sched_getaffinity(0))
    budget = minutes * 60 * _SHARE * side_by_side
    scale = _whole(look, good)
    subset = _subset(look, place, size, scale, least)
    recipe = _recipe(size)
    _, of_all = probe(subset, recipe, cache, device, 0.0)
    scale = _smaller(scale, budget / (_RUNS * _EPOCHS * of_all))
    subset = _subset(look, place, size, scale, least)
    classes, remarks = _check_images(subset, recipe, cache)
    scale = scale._replace(classes=classes)
    look = look._replace(remarks=[*look.remarks, *remarks])
    subset = _subset(look, place, size, scale, least)
    accuracies, seconds = probe(subset, recipe, cache, device, min(_PROBE, 6 * minutes))
    times = 2 if accuracies[-1] >= _LEARNT else 4
    epochs = min(_MOST_EPOCHS, max(12, times * len(accuracies)))
    grid = _grid(look, place, size, scale) | {"max_epochs": epochs}
    most = 32 * len(grid["pretrained_levels"])
    grid["run_count"] = min(most, max(_RUNS, int(budget / (seconds * epochs))))
    notebooks = _notebooks(look, subset, grid, minutes < _SHORT)
    floor = round((1 + 1 / len(scale.classes)) / 2, 2)
    common = {
        "minimum_train_accuracy": floor,
        "accuracy_thresholds": sorted({0.95, 0.9, 0.8, floor}, reverse=True),
    }
    reasons = [
        *_reasons_for_images(look, scale, size, minutes),
        f"max_epochs {epochs}: a probing run reached {accuracies[-1]:.0%} training "
        f"accuracy after {len(accuracies)} epochs",
        f"run_count {grid['run_count']} of {most}: a run takes "
        f"{seconds * epochs:,.0f} s at most, {side_by_side} side by side, "
        f"in {_SHARE:.0%} of {minutes:g} minutes; the other notebooks have the rest",
        f"minimum_train_accuracy {floor}: half way from chance, of "
        f"{len(scale.classes)} classes, to 1",
        *_reasons_for_leaving_out(look, grid["run_count"], minutes),
    ]
    return {"common": common, "notebooks": notebooks}, reasons


def _whole(look: Look, good: Sequence[str]) -> Scale:
    """As much of the images as a study takes at most."""
    classes = sorted(good[:_MOST_CLASSES])
    tested = min(look.test[name] for name in classes)
    fewest = min(look.training[name] for name in classes)
    test = _test_images(fewest, tested)
    left = fewest if look.test else fewest - test
    return Scale(classes, list(good), min(_MOST_TRAINING_IMAGES, left), test, 1.0)


def _smaller(scale: Scale, fraction: float) -> Scale:
    """A part of the images, by fewer classes and fewer images of each."""
    if fraction >= 1:
        return scale
    side = fraction**0.5
    count = min(len(scale.classes), max(_CLASSES, round(len(scale.classes) * side)))
    training = min(scale.training, max(_IMAGES, round(scale.training * side)))
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
    """The classes that are left once images are decoded, and a remark on others.

    Raises:
        ValueError: where scores would have too few images of a class.
    """
    data = images.load_study_data(**subset, cache_dir=cache)
    rows, _ = run.rows_of_run(data, recipe)
    labels = data.train.labels.numpy()
    counts = np.bincount(labels[rows], minlength=len(data.classes))
    classes = data.classes["class_id"].tolist()
    faults = [
        fault
        for fault in data.faults.itertuples()
        if fault.class_id in set(subset["class_ids"]) - set(classes)
    ]
    remarks = [f"left out: {sentence}" for sentence in images.left_out(faults)]
    if len(classes) < 2 or counts.min() < OF_A_CLASS:
        name = classes[int(counts.argmin())]
        raise ValueError(
            f"{len(classes)} classes are left, and of {name} {counts.min()} images "
            f"that runs are fitted to; 2 classes and {OF_A_CLASS} images of each are "
            "needed" + "".join(f"; {remark}" for remark in remarks)
        )
    return classes, remarks


def _grid(look: Look, place: str, size: int, scale: Scale) -> dict[str, Any]:
    """Values of notebook 02, but for epochs and runs."""
    spare = sorted(scale.good[_MOST_CLASSES:])[:30]
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
    """Values by notebook, without what needs boxes or more time than there is."""
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
    """What is there, and how much of it is taken."""
    fewest = min(look.training[name] for name in scale.classes)
    beside = " beside these" if look.test else ""
    taken = (
        f"images_per_class {scale.training}, test_images_per_class {scale.test}: the "
        f"smallest class has {fewest}{beside}"
    )
    if scale.fraction < 1:
        taken += (
            f"; more than {_RUNS} runs can learn from in {_SHARE:.0%} of {minutes:g} "
            "minutes"
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
    """What the study does not answer."""
    reasons = []
    if not look.boxes:
        reasons.append(
            "no boxes: where the networks look is not measured (03, 05, localization "
            "and reliance are left out)"
        )
    if minutes < _SHORT:
        reasons.append(
            f"less than {_SHORT:g} minutes: flatness, 08 and 05 are left out"
        )
    if runs < 40:
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
        minutes: what the study may take here.
        layout: how the images lie there; the one that fits where none is named.
        root: of the project.

    Returns:
        0, or 2 where it cannot be, with the reason on stderr.
    """
    target = root / "params" / f"{name}.yaml"
    full = Path(data).expanduser().resolve()
    try:
        _check_arguments(name, data, minutes, layout, root)
        place = os.path.relpath(full, root) if full.is_relative_to(root) else str(full)
        # Of the study to be, which then finds its images decoded.
        cache = root / "work" / name / "cache"
        look = look_at(full, cache / "unpacked", layout)
        values, reasons = choose(look, place, minutes, cache)
        # A name from the data is no line of the file.
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
    """Raise a ValueError for an argument that cannot be."""
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
    """Write a study file that passes the check, or none."""
    text = yaml.dump(values, sort_keys=False, width=130, allow_unicode=True)
    if parse_yaml(text) != values:
        # A class of the name 1e3 must stand in quotes, as JSON has it.
        text = json.dumps(values, indent=1) + "\n"
    comments = "".join(f"# {reason}\n" for reason in reasons)
    with target.open("x", encoding="utf-8") as file:
        file.write(comments + text)
    try:
        load_study(target, root=root)
    except ValueError:
        target.unlink()
        raise
