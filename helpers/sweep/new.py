"""A study of one's own images: a look at a folder or zip, and a study file with values that fit: ``python -m helpers.sweep --new``."""

import io
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

from helpers.data import layouts
from helpers.files import PROJECT_ROOT
from helpers.parameters import _Yaml, declared, value_fault
from helpers.sweep import plan
from helpers.sweep.study import load_study
from helpers.training.config import RunConfig

_SIZES = (32, 48, 64, 96, 128, 160, 192, 224)  # sides offered, pixels
_MOST_CLASSES, _LEAST_IMAGES = 20, 10  # classes of a study; training images with a box that a class needs
_SHARE = 0.6  # of the time that training may take


class _Dumper(yaml.SafeDumper):
    """Puts a text in quotes that would be read as a number, such as a class of the name 1e3."""

    yaml_implicit_resolvers = _Yaml.yaml_implicit_resolvers


def look_at(path: Path) -> dict[str, Any]:
    """Layout, training images with boxes and test images by class, and median shorter side of the images in a folder or zip (ValueError)."""
    archive, found = layouts.open_archive(path), {}
    for name, layout in layouts.LAYOUTS.items():
        try:
            found[name] = layouts.with_names_in_utf8(layout.scan(archive, layouts.find_root(archive, name), ())).records
        except ValueError:
            continue
    name = max(found, key=lambda key: sum(bool(item.annotation and item.annotation.boxes) for item in found[key]), default="")
    boxed = [item for item in found.get(name, []) if item.split == "train" and item.annotation and item.annotation.boxes]
    train = Counter(item.class_id for item in boxed)
    if sum(count >= _LEAST_IMAGES for count in train.values()) < 2:
        shapes = "; ".join(item.shape for item in layouts.LAYOUTS.values())
        raise ValueError(f"{path} has no 2 classes of {_LEAST_IMAGES} training images with boxes; looked for {shapes}")
    sides = []
    for item in boxed[:: max(1, len(boxed) // 200)]:
        try:
            with Image.open(io.BytesIO(archive.read(item.name))) as image:
                sides.append(min(image.size))
        except Exception:  # readers of damaged files raise nearly every kind
            continue
    if not sides:
        raise ValueError(f"none of {len(boxed):,} images can be read; the first is {boxed[0].name}")
    test = Counter(item.class_id for item in found[name] if item.split == "test")
    return {"layout": name, "train": train, "test": test, "side": int(statistics.median(sides))}


def choose(found: dict[str, Any], data_path: str, minutes: float) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Values of a study of these images for about so many minutes on this machine, by notebook, and the reasons."""
    train, test = found["train"], found["test"]
    good = sorted((name for name in train if train[name] >= _LEAST_IMAGES), key=lambda name: (-train[name], name))
    classes, spare = sorted(good[:_MOST_CLASSES]), sorted(good[_MOST_CLASSES:])
    least, own = min(train[name] for name in classes), min(test.get(name, 0) for name in classes)
    held = min(50, own) if own else max(1, min(50, least // 4))
    size, images = max([side for side in _SIZES if side <= found["side"]], default=_SIZES[0]), min(100, least - (0 if own else held))
    subset = {"data_source": found["layout"], "data_path": data_path, "class_ids": classes, "image_size": size}
    subset |= {"images_per_class": images, "test_images_per_class": held}
    stem = "imagenet" if size >= 128 else "strided" if size >= 48 else "small"
    grid: dict[str, Any] = {"architectures": ["resnet18", "resnet34"], "batch_sizes": [16, 32], "learning_rates": [0.01, 0.003]}
    grid |= {"optimizers": ["adam", "sgd"], "weight_decays": [0.0, 0.0005], "augmentations": [False], "stem": stem, "width": 0.1875}
    grid |= {"pretrained_levels": [True, False] if len(spare) >= 2 else [False], "max_epochs": 24}
    if len(spare) >= 2:
        grid |= {"pretrain_data_source": found["layout"], "pretrain_data_path": data_path, "pretrain_class_ids": spare[:30]}
        grid |= {"pretrain_images_per_class": 150, "pretrain_max_epochs": 12}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    fixed = {"weight_decay": 0.0, "augmentation": False, "pretrained": False, "data": "unknown", "optimizer": "sgd", "learning_rate": 0.01}
    step = plan.time_step(RunConfig(architecture="resnet34", batch_size=16, stem=stem, width=0.1875, **fixed), len(classes), size, device)
    per_run = (step.train + step.evaluate) * 24 * images * len(classes)
    side, every = (1 if device == "cuda" else len(os.sched_getaffinity(0))), 32 * len(grid["pretrained_levels"])
    grid["run_count"] = min(every, max(4, int(minutes * 60 * _SHARE * side / per_run)))
    reasons = [
        f"data_source {found['layout']}: {sum(train.values()):,} training images with boxes in {len(train)} classes, {sum(test.values()):,} test images",
        f"class_ids: {len(classes)} classes of {_LEAST_IMAGES} images with boxes or more, of {len(good)}; image_size {size}: the median side is {found['side']}",
        f"images_per_class {images}, test_images_per_class {held}: the smallest class has {least}, {'beside' if own else 'with'} those for testing",
        f"run_count {grid['run_count']} of a grid of {every}: a run takes at most {per_run:,.0f} s here, {side} side by side, in {_SHARE:.0%} of {minutes:g} minutes",
    ]
    if grid["run_count"] < 40:
        reasons.append(f"a study of {grid['run_count']} runs shows how things work and bears no claim; 60 models or more do")
    quick = {"flatness_images": 200, "flatness_draws": 4, "sharpness_images": 64, "sharpness_steps": 6, "perturbation_fraction": 0.2}
    return {
        "01_data_subset": subset,
        "02_grid_training": grid,
        "03_cam_scoring": {},
        "04_baselines": quick,
        "05_robustness_ablations": {},
    }, reasons


def write_new(name: str, data: str, minutes: float = 60.0, *, root: Path = PROJECT_ROOT) -> int:
    """Write ``params/<name>.yaml`` for the images at ``data``, and say what was chosen and why; 2, and nothing is written, where it cannot."""
    target, full = root / "params" / f"{name}.yaml", Path(data).expanduser().resolve()
    try:
        if fault := value_fault(declared(root / "notebooks/01_data_subset.ipynb")["study"], name):
            raise ValueError(fault)
        if target.exists() or not data or not 0 < minutes < math.inf:
            raise ValueError(f"params/{name}.yaml exists" if target.exists() else "--new needs --data PATH, and --minutes above 0")
        values, reasons = choose(look_at(full), os.path.relpath(full, root) if full.is_relative_to(root) else str(full), minutes)
        text = yaml.dump({"notebooks": values}, Dumper=_Dumper, sort_keys=False, width=130)
        with target.open("x", encoding="utf-8") as file:
            file.write("".join(f"# {line}\n" for line in reasons) + text)
        load_study(target, root=root)
    except (OSError, ValueError) as fault:
        print(fault, file=sys.stderr)
        return 2
    print("\n".join([f"params/{name}.yaml:", *(f"  {line}" for line in reasons)]))
    print(f"next:\n  python -m helpers.sweep {name} --plan    # what it costs here\n  python -m helpers.sweep {name}           # runs it")
    return 0
