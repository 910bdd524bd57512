"""A study of one's own images: a look at a folder or zip, and a study file with values that fit: ``python -m helpers.sweep --new``."""

import json
import math
import os
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import torch
import yaml

from helpers.data import images, layouts, selection, sources
from helpers.data.decode import decode_all
from helpers.files import PROJECT_ROOT
from helpers.parameters import declared, parse_yaml, value_fault
from helpers.sweep.study import load_study
from helpers.training import run
from helpers.training.config import RunConfig

_SIZES = (32, 48, 64, 96, 128, 160, 192, 224)  # sides offered, pixels
_MOST_CLASSES, _LEAST_IMAGES = (
    20,
    10,
)  # classes of a study; training images that a class needs
_SHARE, _SHORT = (
    0.4,
    30.0,
)  # of the time that training may take; minutes below which what costs much is left out
_PROBE, _LEARNT, _MOST_EPOCHS = (
    60.0,
    0.9,
    150,
)  # seconds of a probing run; training accuracy at which it ends; epochs of a run
_RUNS, _EPOCHS, _CLASSES, _IMAGES = (
    4,
    40,
    4,
    25,
)  # least runs of a study, and epochs that they should have; what is taken in any case
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
}
_GRID |= {
    "optimizers": ["adam", "sgd"],
    "weight_decays": [0.0, 0.0005],
    "augmentations": [False],
}


class Found(NamedTuple):
    """What is in a folder or zip: images by class, and the median shorter side."""

    layout: str
    boxes: bool
    train: Counter
    test: Counter
    side: int
    left_out: list[str]  # sentences on what is not read


def look_at(path: Path, unpacked: Path, layout: str = layouts.RECOGNISED) -> Found:
    """The layout of a source, its usable images by class, and their size (ValueError where there are no two classes)."""
    source = sources.open_source(path, unpacked)
    listing = layouts.scan(source, layout)
    boxes = any(item.boxes for item in listing.records)
    usable = [
        item
        for item in listing.records
        if item.split == "train" and (item.boxes or not boxes)
    ]
    train = Counter(item.class_id for item in usable)
    if sum(count >= _LEAST_IMAGES for count in train.values()) < 2:
        kind = "training images with boxes" if boxes else "training images"
        raise ValueError(
            f"{path} has no 2 classes of {_LEAST_IMAGES} {kind}; it was read as {listing.layout}"
        )
    some = decode_all(source, usable[:: max(1, len(usable) // 200)], _SIZES[0])
    if not (
        sides := [
            min(image.width, image.height) for image in some if image.pixels is not None
        ]
    ):
        raise ValueError(
            f"none of {len(usable):,} images can be read; the first is {usable[0].name}"
        )
    test = Counter(item.class_id for item in listing.records if item.split == "test")
    for class_id in [name for name in train if test and not test[name]]:
        detail = f"its {train.pop(class_id)} training images are left out too"
        listing.faults.append(
            sources.Fault("", selection.NO_TEST_IMAGES, detail, class_id, "test")
        )
    left_out = images.left_out(listing.faults)
    side = int(statistics.median(sides))
    return Found(listing.layout, boxes, train, test, side, left_out)


def probe(
    subset: dict[str, Any], recipe: RunConfig, cache: Path, device: str, seconds: float
) -> tuple[list[float], float]:
    """Training accuracy after each epoch of a run on the images, ended when it has learnt or the time is over, and seconds per epoch."""
    data = images.load_study_data(**subset, cache_dir=cache)
    torch.set_num_threads(1)  # as a run has on a CPU
    network = run.initial_network(recipe, len(data.classes)).to(
        device, memory_format=torch.channels_last
    )
    optimizer, split = (
        run.make_optimizer(network, recipe, torch.device(device)),
        run.resident(data.train, device),
    )
    accuracies, began = [], time.perf_counter()
    while not accuracies or (
        accuracies[-1] < _LEARNT
        and time.perf_counter() - began < seconds
        and len(accuracies) < _MOST_EPOCHS
    ):
        accuracies.append(
            run.train_epoch(network, optimizer, split, recipe, len(accuracies) + 1)[1]
        )
    return accuracies, (time.perf_counter() - began) / len(accuracies)


def choose(
    found: Found, place: str, minutes: float, cache: Path
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Values of a study of these images, by notebook, for about so many minutes on this machine, and the reasons."""
    good = sorted(
        (name for name, count in found.train.items() if count >= _LEAST_IMAGES),
        key=lambda name: (-found.train[name], name),
    )
    classes, spare = sorted(good[:_MOST_CLASSES]), sorted(good[_MOST_CLASSES:])[:30]
    least, own = (
        min(found.train[name] for name in classes),
        min(found.test[name] for name in classes),
    )
    held = min(50, own) if own else max(1, min(50, least // 4))
    size, count = (
        max([side for side in _SIZES if side <= found.side], default=_SIZES[0]),
        min(100, least - (0 if own else held)),
    )
    subset = {
        "data_source": found.layout,
        "data_path": place,
        "class_ids": classes,
        "image_size": size,
    }
    subset |= {"images_per_class": count, "test_images_per_class": held}
    network = {
        "stem": "imagenet" if size >= 128 else "strided" if size >= 48 else "small",
        "width": 0.1875,
    }
    device = "cuda" if torch.cuda.is_available() else "cpu"
    recipe = RunConfig(
        "resnet34",
        16,
        0.01,
        "sgd",
        0.0,
        augmentation=False,
        pretrained=False,
        data="unknown",
        **network,
    )
    side = 1 if device == "cuda" else len(os.sched_getaffinity(0))
    budget = minutes * 60 * _SHARE * side
    _, of_all = probe(subset, recipe, cache, device, 0.0)
    fits = budget / (
        _RUNS * _EPOCHS * of_all
    )  # part of the images that the least runs can learn from
    if fits < 1:
        classes = sorted(
            good[: min(len(classes), max(_CLASSES, round(len(classes) * fits**0.5)))]
        )
        count = min(count, max(_IMAGES, round(count * fits**0.5)))
        subset |= {"class_ids": classes, "images_per_class": count}
    accuracies, seconds = probe(subset, recipe, cache, device, min(_PROBE, 6 * minutes))
    epochs = min(
        _MOST_EPOCHS,
        max(
            12,
            2 * len(accuracies) if accuracies[-1] >= _LEARNT else 4 * len(accuracies),
        ),
    )
    levels = [True, False] if len(spare) >= 2 else [False]
    runs = min(32 * len(levels), max(_RUNS, int(budget / (seconds * epochs))))
    grid = (
        _GRID
        | network
        | {"pretrained_levels": levels, "max_epochs": epochs, "run_count": runs}
    )
    if len(levels) > 1:
        grid |= {"pretrain_data_source": found.layout, "pretrain_data_path": place}
        grid |= {"pretrain_class_ids": spare, "pretrain_images_per_class": 150}
    short, floor = minutes < _SHORT, round((1 + 1 / len(classes)) / 2, 2)
    families = (
        ["localization", "reliance"] * found.boxes
        + ["prediction", "norms"]
        + ["flatness"] * (not short)
        + ["perturbation"]
    )
    measures = (
        {"families": families}
        | _QUICK
        | ({} if found.boxes else {"primary_measures": _WITHOUT_BOXES})
    )
    notebooks = {"01_data_subset": subset, "02_grid_training": grid} | (
        {"03_cam_scoring": {}} if found.boxes else {}
    )
    notebooks |= {"04_baselines": measures} | (
        {} if short else {"08_unlabelled_images": {}}
    )
    notebooks |= {"05_robustness_ablations": {}} if found.boxes and not short else {}
    reasons = [
        f"{found.layout}: {found.train.total():,} training images{' with boxes' if found.boxes else ''} in {len(found.train)} classes, "
        f"{found.test.total():,} test images",
        *(f"left out: {sentence}" for sentence in found.left_out),
        f"class_ids: {len(classes)} of {len(good)} classes with {_LEAST_IMAGES} such images; image_size {size}: the median is {found.side}",
        f"images_per_class {count}, test_images_per_class {held}: the smallest class has {least}{' beside these' if own else ''}"
        + f"; more than {_RUNS} runs can learn from in {_SHARE:.0%} of {minutes:g} minutes"
        * (fits < 1),
        f"max_epochs {epochs}: a probing run reached {accuracies[-1]:.0%} training accuracy after {len(accuracies)} epochs",
        f"run_count {runs} of {32 * len(levels)}: a run takes {seconds * epochs:,.0f} s at most, {side} side by side, "
        f"in {_SHARE:.0%} of {minutes:g} minutes; the other notebooks have the rest",
        f"minimum_train_accuracy {floor}: half way from chance, of {len(classes)} classes, to 1",
    ]
    if not found.boxes:
        reasons.append(
            "no boxes: nothing is said of where the networks look (03, 05, localization and reliance are left out)"
        )
    reasons += (
        [f"less than {_SHORT:g} minutes: flatness, 08 and 05 are left out"]
        if short
        else []
    )
    reasons += (
        [
            f"a study of {runs} runs shows how things work and bears no claim; 60 models or more do"
        ]
        if runs < 40
        else []
    )
    common = {
        "minimum_train_accuracy": floor,
        "accuracy_thresholds": sorted({0.95, 0.9, 0.8, floor}, reverse=True),
    }
    return {"common": common, "notebooks": notebooks}, reasons


def write_new(
    name: str,
    data: str,
    minutes: float = 60.0,
    *,
    layout: str = layouts.RECOGNISED,
    root: Path = PROJECT_ROOT,
) -> int:
    """Write ``params/<name>.yaml`` for the images at ``data``, and say what was chosen and why; 2 where it cannot be."""
    target, full = root / "params" / f"{name}.yaml", Path(data).expanduser().resolve()
    try:
        if fault := value_fault(
            declared(root / "notebooks/01_data_subset.ipynb")["study"], name
        ):
            raise ValueError(fault)
        names = [layouts.RECOGNISED, *layouts.LAYOUTS]
        if layout not in names:
            raise ValueError(f"--layout {layout}: must be one of {', '.join(names)}")
        if target.exists() or not data or not 0 < minutes < math.inf:
            raise ValueError(
                f"params/{name}.yaml exists"
                if target.exists()
                else "--new needs --data PATH, and --minutes above 0"
            )
        place = os.path.relpath(full, root) if full.is_relative_to(root) else str(full)
        cache = (
            root / "work" / name / "cache"
        )  # of the study to be, which then finds its images decoded
        values, reasons = choose(
            look_at(full, cache / "unpacked", layout), place, minutes, cache
        )
        text = yaml.dump(values, sort_keys=False, width=130)
        if (
            parse_yaml(text) != values
        ):  # a class of the name 1e3 must stand in quotes, as JSON has it
            text = json.dumps(values, indent=1) + "\n"
        with target.open("x", encoding="utf-8") as file:
            file.write("".join(f"# {line}\n" for line in reasons) + text)
        load_study(target, root=root)
    except (OSError, ValueError) as fault:
        print(fault, file=sys.stderr)
        return 2
    print("\n".join([f"params/{name}.yaml:", *(f"  {line}" for line in reasons)]))
    command = f"python -m helpers.sweep {quote(name)}"
    print(
        f"next:\n  {command} --plan    # what it costs here\n  {command}           # runs it"
    )
    return 0
