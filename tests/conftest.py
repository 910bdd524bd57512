"""Small sources of images on disk, in the published layouts, as a folder or as a zip of it."""

import copy
import io
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

# Of networks that tests train: what holds must hold of any.
SEED = int(os.environ.get("WORKBOOK_TEST_SEED", "0"))
# Arguments of ``load_study_data`` for rendered scenes on which a run takes a second.
TINY_SCENES = {
    "data_source": "synthetic",
    "class_ids": ["synthetic_disc", "synthetic_cross", "synthetic_bars"],
    "image_size": 16,
    "images_per_class": 12,
    "test_images_per_class": 6,
}
# Settings of measures: as little of everything as still goes through all of it.
SMALL = {
    "perturbation_fraction": 0.4,
    "perturbation_points": 2,
    "flatness_images": 12,
    "flatness_draws": 1,
    "flatness_halvings": 2,
    "sharpness_images": 12,
    "sharpness_steps": 1,
}
PERTURBATIONS = {
    "permutations": 19,
    "perturbation_fraction": 1.0,
    "perturbation_points": 3,
}
# A study that all notebooks run in minutes.
TINY_STUDY = {
    "common": {
        "jobs": 1,  # each further process loads torch anew
        "minimum_train_accuracy": 0.0,
        "accuracy_thresholds": [0.5, 0.0],
        "bootstrap_resamples": 30,
        "flatness_images": 16,
        "flatness_halvings": 2,
        "sharpness_images": 8,
        "sharpness_steps": 1,
    },
    "notebooks": {
        "01_data_subset": {
            "class_ids": ["synthetic_disc", "synthetic_cross", "synthetic_bars"],
            "image_size": 16,
            "images_per_class": 14,
            "test_images_per_class": 5,
        },
        "02_grid_training": {
            "run_count": 4,
            "batch_sizes": [8],
            "stem": "strided",
            "last_stride": 1,  # maps of four cells
            "augmentations": [False],
            "max_epochs": 15,  # most networks pass 80 % training accuracy after five
            "pretrain_class_ids": ["synthetic_ring", "synthetic_star"],
            "pretrain_images_per_class": 8,
            "pretrain_max_epochs": 1,
        },
        "03_cam_scoring": {"jobs": 2},
        "04_baselines": PERTURBATIONS,
        "10_all_measures": PERTURBATIONS,
        "11_classification": {},
        "08_unlabelled_images": {},
        "09_looking_experiment": {},
        "07_your_checkpoints": {},
        "05_robustness_ablations": {
            "thresholds": [0.05, 0.3],
            "ablation_images": 6,
            "noise_samples": 2,
            "score_cam_channels": 3,
            "random_networks": 3,
            "random_images": 12,
            "attribution_steps": 2,
        },
        "06_kappa_tradeoff": {
            "kappa_families": ["resnet18 w0.0625", "mobilenet_v2 w0.1"],
            "made_epochs": 1,
            "unseen_class_ids": ["synthetic_triangle", "synthetic_hourglass"],
            "unseen_fractions": [0.0, 0.4],
            "noise_ssim": [0.7, 0.85, 1.0],
            "lambdas": [0.5, 1.0],
            "complexity_images": 20,
            "permutations": 20,
        },
    },
}
PROJECT = Path(__file__).resolve().parents[1]


def tracked(pattern: str) -> list[Path]:
    """Files of the repository that match a pattern of git, such as ``params/*.yaml``.

    Use of the workbook adds others, such as ``reports/demo`` and ``params/birds.yaml``,
    which no test reads. Without git it is all files but those of ``reports/demo``;
    without ``reports`` there are none of those.
    """
    command = ["git", "ls-files", "-z", "--", f":(glob){pattern}"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    paths = {PROJECT / name for name in done.stdout.split("\0")}
    if done.returncode:
        paths = {path for path in PROJECT.glob(pattern) if "demo" not in path.parts}
    return sorted(path for path in paths if path.is_file())


def committed(path: Path) -> str:
    """Text of a file as git has it, whatever a user has saved since."""
    name = path.relative_to(PROJECT).as_posix()
    command = ["git", "show", f":{name}"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    return path.read_text(encoding="utf-8") if done.returncode else done.stdout


def captum_grad_cam(model, layer, images, classes):
    """Grad-CAM by Captum, an oracle: (B, h, w) maps, at least 0, not normalised."""
    from captum.attr import LayerGradCam

    maps = LayerGradCam(model, layer).attribute(images, target=classes)
    return maps.detach().squeeze(1).relu()


def jpeg(seed, size=(20, 16), mode="RGB", kind="JPEG", **options) -> bytes:
    """A random picture as the bytes of a file; ``size`` is width and height."""
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def voc(*boxes: tuple, size: tuple[int, int] = (20, 16), name: str = "a") -> bytes:
    """A Pascal VOC annotation."""
    text = "<size><width>{}</width><height>{}</height></size>".format(*size)
    sides = "<xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax>"
    for box in boxes:
        corners = sides.format(*box)
        text += f"<object><name>{name}</name><bndbox>{corners}</bndbox></object>"
    return f"<annotation>{text}</annotation>".encode()


def tiny_imagenet(classes=("n01", "n02"), train=6, val=3) -> dict[str, bytes]:
    """Tiny ImageNet's files by name."""
    words = [f"{wnid}\tname of {wnid}, synonym" for wnid in classes]
    files = {"words.txt": "\n".join(words).encode()}
    annotations = []
    for number, wnid in enumerate(classes):
        lines = []
        for image in range(train):
            name = f"{wnid}_{image}.JPEG"
            files[f"train/{wnid}/images/{name}"] = jpeg(1000 * number + image, (16, 16))
            lines.append(f"{name}\t{image}\t1\t12\t13")
        files[f"train/{wnid}/{wnid}_boxes.txt"] = "\n".join(lines).encode()
        for image in range(val):
            name = f"val_{number}_{image}.JPEG"
            files[f"val/images/{name}"] = jpeg(5000 + 1000 * number + image, (16, 16))
            annotations.append(f"{name}\t{wnid}\t0\t0\t8\t8")
    return files | {"val/val_annotations.txt": "\n".join(annotations).encode()}


def ilsvrc(classes=("n01", "n02"), train=4, val=2) -> dict[str, bytes]:
    """ILSVRC CLS-LOC as Kaggle ships it."""
    names = "\n".join(f"{wnid} name of {wnid}, synonym" for wnid in classes)
    files = {"LOC_synset_mapping.txt": names.encode()}
    for number, wnid in enumerate(classes):
        places = [f"train/{wnid}/{wnid}_{image}" for image in range(train)]
        places += [f"val/ILSVRC2012_val_{number}{image}" for image in range(val)]
        boxes = voc((2, 2, 12, 10), (4, 4, 20, 16), name=wnid)
        for image, place in enumerate(places):
            files[f"ILSVRC/Data/CLS-LOC/{place}.JPEG"] = jpeg(10_000 * number + image)
            files[f"ILSVRC/Annotations/CLS-LOC/{place}.xml"] = boxes
    return files


def voc_folder(classes=("cat", "dog"), count=8) -> dict[str, bytes]:
    """A folder per class, an XML beside each image."""
    files = {}
    for number, name in enumerate(classes):
        for image in range(count):
            files[f"{name}/{image}.jpg"] = jpeg(100 * number + image)
            files[f"{name}/{image}.xml"] = voc((1, 1, 10, 10), name=name)
    return files


LAYOUTS = {"tiny_imagenet": tiny_imagenet, "ilsvrc": ilsvrc, "voc": voc_folder}


@pytest.fixture(scope="module")
def tiny_module_given(tmp_path_factory):
    """What measures are given: a tiny untrained ResNet18, another start, 36 scenes."""
    from helpers.data.images import load_study_data
    from helpers.networks import resnet

    options = {"stem": "strided", "width": 0.125}
    networks = [resnet.build("resnet18", 3, seed=seed, **options) for seed in (0, 1)]
    cache = tmp_path_factory.mktemp("cache")
    return {
        "network": networks[0].eval(),
        "initial_network": networks[1].eval(),
        "images": load_study_data(**TINY_SCENES, cache_dir=cache).train,
        "normalise": resnet.normalise_images,
        "device": "cpu",
    }


@pytest.fixture
def tiny_given(tiny_module_given):
    """A copy of it for one test, which may train the network."""
    names = ("network", "initial_network")
    return tiny_module_given | {
        name: copy.deepcopy(tiny_module_given[name]) for name in names
    }


def pytest_collection_modifyitems(items):
    """Start with the notebooks end to end, beside which all others run."""
    items.sort(key=lambda item: "smoke" not in item.keywords)
