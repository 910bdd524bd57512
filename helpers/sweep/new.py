"""A study of one's own images: a look at a folder or zip, and a study file with values that fit: ``python -m helpers.sweep --new``."""

import io
import json
import math
import os
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import yaml
from PIL import Image

from helpers.data import layouts, sources
from helpers.files import PROJECT_ROOT
from helpers.parameters import declared, parse_yaml, value_fault
from helpers.sweep import plan
from helpers.sweep.study import load_study
from helpers.training.config import RunConfig

_SIZES = (32, 48, 64, 96, 128, 160, 192, 224)  # sides offered, pixels
_MOST_CLASSES, _LEAST_IMAGES = 20, 10  # classes of a study; training images with a box that a class needs
_SHARE, _EPOCHS = 0.6, 24  # of the time that training may take; at most, a run


def look_at(path: Path) -> tuple[str, Counter, Counter, int]:
    """Layout, training images with boxes and test images by class, and the median shorter side, of a folder or zip (ValueError)."""
    source, found = sources.open_source(path, PROJECT_ROOT / "work/unpacked"), {}
    for name in (layouts.RECOGNISED, *layouts.WITH_BOXES):
        try:
            records = layouts.scan(source, name).records
        except ValueError:
            continue
        found[name] = [item for item in records if item.split == "train" and item.boxes], records
    layout = max(found, key=lambda name: len(found[name][0]), default="")
    boxed, records = found.get(layout, ([], []))
    train = Counter(item.class_id for item in boxed)
    if sum(count >= _LEAST_IMAGES for count in train.values()) < 2:
        shapes = "; ".join(shape for _, shape in layouts.LAYOUTS.values())
        raise ValueError(f"{path} has no 2 classes of {_LEAST_IMAGES} training images with boxes; looked for {shapes}")
    sides = []
    for item in boxed[:: max(1, len(boxed) // 200)]:
        try:
            with Image.open(io.BytesIO(source.read(item.name))) as image:
                sides.append(min(image.size))
        except Exception:  # readers of damaged files raise nearly every kind
            continue
    if not sides:
        raise ValueError(f"none of {len(boxed):,} images can be read; the first is {boxed[0].name}")
    return layout, train, Counter(item.class_id for item in records if item.split == "test"), int(statistics.median(sides))


def choose(found: tuple[str, Counter, Counter, int], place: str, minutes: float) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Values of a study of these images, by notebook, for about so many minutes on this machine, and the reasons."""
    layout, train, test, median = found
    good = sorted((name for name in train if train[name] >= _LEAST_IMAGES), key=lambda name: (-train[name], name))
    classes, spare = sorted(good[:_MOST_CLASSES]), sorted(good[_MOST_CLASSES:])[:30]
    least, own = min(train[name] for name in classes), min(test[name] for name in classes)
    held = min(50, own) if own else max(1, min(50, least // 4))
    size, images = max([side for side in _SIZES if side <= median], default=_SIZES[0]), min(100, least - (0 if own else held))
    stem = "imagenet" if size >= 128 else "strided" if size >= 48 else "small"
    device, fixed = "cuda" if torch.cuda.is_available() else "cpu", {"weight_decay": 0.0, "augmentation": False, "data": "unknown"}
    network = RunConfig("resnet34", 16, 0.01, "sgd", pretrained=False, stem=stem, width=0.1875, **fixed)
    step, evaluation, _ = plan.time_step(network, len(classes), size, device)
    per_run, side = (step + evaluation) * _EPOCHS * images * len(classes), 1 if device == "cuda" else len(os.sched_getaffinity(0))
    levels = [True, False] if len(spare) >= 2 else [False]
    count = min(32 * len(levels), max(4, int(minutes * 60 * _SHARE * side / per_run)))
    subset = {"data_source": layout, "data_path": place, "class_ids": classes, "image_size": size}
    grid = {
        "architectures": ["resnet18", "resnet34"],
        "batch_sizes": [16, 32],
        "learning_rates": [0.01, 0.003],
        "optimizers": ["adam", "sgd"],
    }
    grid |= {"weight_decays": [0.0, 0.0005], "augmentations": [False], "pretrained_levels": levels, "max_epochs": _EPOCHS}
    grid |= {"stem": stem, "width": 0.1875, "run_count": count}
    others = {"pretrain_data_source": layout, "pretrain_data_path": place, "pretrain_class_ids": spare, "pretrain_images_per_class": 150}
    quick = {"flatness_images": 200, "flatness_draws": 4, "sharpness_images": 64, "sharpness_steps": 6, "perturbation_fraction": 0.2}
    reasons = [
        f"{layout}: {train.total():,} training images with boxes in {len(train)} classes, {test.total():,} test images",
        f"class_ids: {len(classes)} of {len(good)} classes with {_LEAST_IMAGES} such images; image_size {size}: the median is {median}",
        f"images_per_class {images}, test_images_per_class {held}: the smallest class has {least}{' beside these' if own else ''}",
        f"run_count {count} of {32 * len(levels)}: a run takes {per_run:,.0f} s at most, {side} side by side, in {_SHARE:.0%} of the time",
        *([f"a study of {count} runs shows how things work and bears no claim; 60 models or more do"] if count < 40 else []),
    ]
    values = {"01_data_subset": subset | {"images_per_class": images, "test_images_per_class": held}}
    values["02_grid_training"] = grid | (others if len(levels) > 1 else {})
    return values | {"03_cam_scoring": {}, "04_baselines": quick, "05_robustness_ablations": {}}, reasons


def write_new(name: str, data: str, minutes: float = 60.0, *, root: Path = PROJECT_ROOT) -> int:
    """Write ``params/<name>.yaml`` for the images at ``data``, and say what was chosen and why; 2 where it cannot be."""
    target, full = root / "params" / f"{name}.yaml", Path(data).expanduser().resolve()
    try:
        if fault := value_fault(declared(root / "notebooks/01_data_subset.ipynb")["study"], name):
            raise ValueError(fault)
        if target.exists() or not data or not 0 < minutes < math.inf:
            raise ValueError(f"params/{name}.yaml exists" if target.exists() else "--new needs --data PATH, and --minutes above 0")
        values, reasons = choose(look_at(full), os.path.relpath(full, root) if full.is_relative_to(root) else str(full), minutes)
        text = yaml.dump({"notebooks": values}, sort_keys=False, width=130)
        if parse_yaml(text) != {"notebooks": values}:  # a class of the name 1e3 must stand in quotes, as JSON has it
            text = json.dumps({"notebooks": values}, indent=1) + "\n"
        with target.open("x", encoding="utf-8") as file:
            file.write("".join(f"# {line}\n" for line in reasons) + text)
        load_study(target, root=root)
    except (OSError, ValueError) as fault:
        print(fault, file=sys.stderr)
        return 2
    print("\n".join([f"params/{name}.yaml:", *(f"  {line}" for line in reasons)]))
    print(f"next:\n  python -m helpers.sweep {name} --plan    # what it costs here\n  python -m helpers.sweep {name}           # runs it")
    return 0
