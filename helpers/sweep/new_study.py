"""A study of one's own images: looks at a folder or zip, and writes a study file with values that fit, each with its reason."""

import io
import math
import os
import statistics
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.constraints import CONSTRAINTS
from helpers.files import PROJECT_ROOT, from_root
from helpers.notebook_parameters import StudyError
from helpers.sweep.study_file import as_yaml, load_study

_SIZES = (32, 48, 64, 96, 128, 160, 192, 224)  # sides offered, pixels

_LOOKED_AT = 200  # images whose sizes are read

_MOST_CLASSES, _LEAST_IMAGES = 20, 10  # classes of a study; training images with a box that a class needs

_SHARE = 0.6  # of the time that training may take; the other notebooks take the rest


@dataclass(frozen=True)
class Found:
    """What a folder or zip holds."""

    layout: str  # a ``data_source``
    train: dict[str, int]  # by class: training images with a box
    without_box: int  # training images without one
    test: dict[str, int]  # by class: images of the source's own test split
    side: int  # median over images of the shorter side, pixels


@dataclass
class Chosen:
    """The values of a study file by notebook, and why they are what they are, line by line."""

    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)


def look_at(path: Path) -> Found:
    """Layout, classes, counts, boxes and size of the images in a folder or zip; nothing is decoded but the heads of some files.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: it is neither folder nor zip, or has no layout that is known, no class of enough images with boxes.
    """
    from helpers.data import layouts, sources

    source = sources.open_source(path, from_root("work/unpacked"))
    listing = layouts.scan(source, layouts.RECOGNISED)
    layout, records = listing.layout, listing.records
    boxed = [item for item in records if item.split == "train" and item.boxes]
    train = Counter(item.class_id for item in boxed)
    if sum(count >= _LEAST_IMAGES for count in train.values()) < 2:
        raise ValueError(
            f"{path} ({layout}) has {sum(count >= _LEAST_IMAGES for count in train.values())} classes of {_LEAST_IMAGES} training images "
            f"with boxes or more, and 2 are needed; {len(boxed):,} of {sum(item.split == 'train' for item in records):,} training images "
            "have a box (Pascal VOC .xml beside each image, or the files of Tiny ImageNet and ILSVRC)"
        )
    without = sum(item.split == "train" for item in records) - len(boxed)
    test = Counter(item.class_id for item in records if item.split == "test")
    return Found(layout, dict(train), without, dict(test), _side(source, [item.name for item in boxed]))


def _side(source: Any, names: list[str]) -> int:
    """Median of the shorter side over some images, spread over all; those that cannot be read do not count."""
    from PIL import Image

    sides = []
    for name in names[:: max(1, len(names) // _LOOKED_AT)]:
        try:
            with Image.open(io.BytesIO(source.read(name))) as image:
                sides.append(min(image.size))
        except Exception:  # readers of damaged files raise nearly every kind
            continue
    if not sides:
        raise ValueError(f"none of {len(names):,} images can be read; the first is {names[0]}")
    return int(statistics.median(sides))


def choose(found: Found, data_path: str, minutes: float) -> Chosen:
    """Values of a study of what was found, for about so many minutes on this machine, and the reason of each.

    The time of a run is measured: a few steps of the larger network, on images of the size that is chosen.
    """
    chosen = Chosen()
    good = sorted((name for name, count in found.train.items() if count >= _LEAST_IMAGES), key=lambda name: (-found.train[name], name))
    classes, spare = sorted(good[:_MOST_CLASSES]), sorted(good[_MOST_CLASSES:])
    least = min(found.train[name] for name in classes)
    size = max([side for side in _SIZES if side <= found.side], default=_SIZES[0])
    own_test = min((found.test.get(name, 0) for name in classes), default=0)
    test = min(50, own_test) if own_test else max(1, min(50, least // 4))
    images = min(100, least - (0 if own_test else test))
    chosen.reasons += [
        f"data_source {found.layout}: {sum(found.train.values()):,} training images with boxes in {len(found.train)} classes, "
        f"{found.without_box:,} without, {sum(found.test.values()):,} test images",
        f"class_ids: {len(classes)} classes of {_LEAST_IMAGES} images with boxes or more"
        + (f", the largest of {len(good)}" if spare else ", all there are"),
        f"image_size {size}: the shorter side of the files is {found.side} pixels in the median",
        f"images_per_class {images}: the smallest class has {least}" + ("" if own_test else f", of which {test} are held out for testing"),
        f"test_images_per_class {test}: {'of the test split of the source' if own_test else 'held out, as the source has no test split'}",
    ]
    chosen.values["01_data_subset"] = {
        "data_source": found.layout,
        "data_path": data_path,
        "class_ids": classes,
        "image_size": size,
        "images_per_class": images,
        "test_images_per_class": test,
    }
    chosen.values["02_grid_training"] = _grid(chosen, spare, data_path, minutes)
    chosen.values["03_cam_scoring"] = {}
    quick = {"flatness_images": 200, "flatness_draws": 4, "sharpness_images": 64, "sharpness_steps": 6, "score_left_out": False}
    chosen.values["04_baselines"] = {"perturbation_fraction": 0.2} | quick
    chosen.values["05_robustness_ablations"] = {}
    return chosen


def _grid(chosen: Chosen, spare: list[str], data_path: str, minutes: float) -> dict[str, Any]:
    """Choose the grid of hyperparameters and how many of its runs are trained, from the time that a step takes here."""
    images = chosen.values["01_data_subset"]
    size, classes = images["image_size"], len(images["class_ids"])
    grid: dict[str, Any] = {
        "architectures": ["resnet18", "resnet34"],
        "batch_sizes": [16, 32],
        "learning_rates": [0.01, 0.003],
        "optimizers": ["adam", "sgd"],
        "weight_decays": [0.0, 0.0005],
        "augmentations": [False],
        "pretrained_levels": [True, False] if len(spare) >= 2 else [False],
        "stem": "imagenet" if size >= 128 else "strided" if size >= 48 else "small",
        "width": 0.1875,
        "max_epochs": 24,
    }
    if len(spare) >= 2:
        grid |= {"pretrained_weights": "made", "pretrain_data_source": images["data_source"], "pretrain_data_path": data_path}
        grid |= {"pretrain_class_ids": spare[:30], "pretrain_images_per_class": 150, "pretrain_max_epochs": 12}
        chosen.reasons.append(f"pretrain_class_ids: {len(spare[:30])} classes that are none of the study's")
    else:
        chosen.reasons.append("pretrained_levels [false]: no classes are left over to pretrain on")
    seconds, side, where = _seconds_per_image(grid, classes, size)
    per_run = seconds * grid["max_epochs"] * images["images_per_class"] * classes
    every = math.prod(len(value) for name, value in grid.items() if isinstance(value, list) and name != "pretrain_class_ids")
    count = min(every, max(4, int(minutes * 60 * _SHARE * side / per_run)))
    grid["run_count"] = count
    chosen.reasons += [
        f"stem {grid['stem']}, width {grid['width']:g}: quick networks for images of {size} pixels",
        f"run_count {count} of a grid of {every}: a run takes at most {per_run:,.0f} s {where}, {side} side by side, and training may take "
        f"{_SHARE:.0%} of {minutes:g} minutes",
    ]
    if count * per_run / side > minutes * 60 * _SHARE:
        longer = count * per_run / side / _SHARE / 60
        chosen.reasons.append(f"even {count} runs take up to {longer:,.0f} minutes in all; fewer images_per_class or max_epochs take less")
    if count < 40:
        chosen.reasons.append(f"a study of {count} runs shows how things work and bears no claim; 60 models or more do")
    return grid


def _seconds_per_image(grid: dict[str, Any], classes: int, size: int) -> tuple[float, int, str]:
    """Measure what an image takes in a training step and an evaluation; also how many runs go side by side, and on what."""
    import torch

    from helpers.sweep import cost
    from helpers.training import config, pool

    device = "cuda" if torch.cuda.is_available() else "cpu"
    fixed = {"weight_decay": 0.0, "augmentation": False, "pretrained": False, "data": "unknown", "optimizer": "sgd", "learning_rate": 0.01}
    run = config.RunConfig(architecture=grid["architectures"][-1], batch_size=16, stem=grid["stem"], width=grid["width"], **fixed)
    threads = torch.get_num_threads()
    if device == "cpu":
        torch.set_num_threads(1)  # as a run has
    try:
        step = cost.time_step(run, classes, size, device)
    finally:
        torch.set_num_threads(threads)
    return step.train + step.evaluate, pool.jobs_for(device, 0), f"on {'one GPU' if device == 'cuda' else 'one core'}"


def write_new(name: str, data: str, minutes: float = 60.0, *, root: Path = PROJECT_ROOT) -> int:
    """Write ``params/<name>.yaml`` for a folder or zip of images, and say what was chosen and why, and what to run.

    Args:
        name: of the study.
        data: the folder or zip, relative to the current folder, or absolute.
        minutes: that the study may take on this machine.
        root: the project.

    Returns:
        0, or 2 where something is wrong; then nothing is written.
    """
    target, place = root / "params" / f"{name}.yaml", Path(data).expanduser()
    try:
        if not CONSTRAINTS["study"].allows(name):
            raise ValueError(f"--new {name!r} must be {CONSTRAINTS['study'].meaning}")
        if target.exists():
            raise ValueError(f"params/{name}.yaml exists, and is not overwritten; choose another name, or delete it")
        if not 0 < minutes < math.inf:
            raise ValueError(f"--minutes is {minutes:g}, and must be above 0")
        if not data:
            raise ValueError("--new needs --data: the folder or .zip of the images")
        found, full = look_at(place), place.resolve()
        chosen = choose(found, os.path.relpath(full, root) if full.is_relative_to(root) else str(full), minutes)
        text = "".join(f"# {line}\n" for line in chosen.reasons) + as_yaml({"notebooks": chosen.values})
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
        try:
            load_study(target, root / "notebooks")
        except StudyError:
            target.unlink()
            raise
    except (OSError, ValueError) as fault:
        print(fault, file=sys.stderr)
        return 2
    print("\n".join([f"params/{name}.yaml:", *(f"  {line}" for line in chosen.reasons)]))
    print(f"next:\n  python -m helpers.sweep {name} --plan    # what it costs here\n  python -m helpers.sweep {name}           # runs it")
    return 0
