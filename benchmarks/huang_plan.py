"""What huang100 would take on one GPU, from counted operations: ``python -m benchmarks.huang_plan > docs/huang100.md``."""

import logging

import pandas as pd
import torch
import yaml
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from helpers.files import PROJECT_ROOT
from helpers.kappa.making import family_made
from helpers.kappa.networks import _CLIP
from helpers.networks.stages import ResNet

SPEED = 20e12  # operations per second that a pass in float32 reaches: 30 % of what the maker states for an H100 or H200 (67e12)
HELD_OUT = 0.1  # share of the training images that a made network holds out for rule 3


def counted(name: str, classes: int, side: int) -> tuple[float, float, int, int]:
    """Million weights and billion operations of a backbone on one image, the image's side, and the number of features."""
    import timm

    with torch.device("meta"):
        if family_made(name):
            architecture, width = name.split(" w")
            network = ResNet(architecture, classes, "imagenet", float(width))
            network.fc = nn.Identity()
        else:
            network = (
                timm.create_model(_CLIP[name])
                if name in _CLIP
                else timm.create_model(name, num_classes=0)
            )
            side = network.pretrained_cfg["input_size"][-1] if name in _CLIP else side
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            features = network.eval()(torch.empty(1, 3, side, side)).shape[1]
    return (
        sum(value.numel() for value in network.parameters()) / 1e6,
        counter.get_total_flops() / 1e9,
        side,
        features,
    )


def main() -> None:
    """Print the page."""
    logging.disable(logging.WARNING)
    study = yaml.safe_load((PROJECT_ROOT / "params/huang100.yaml").read_text())[
        "notebooks"
    ]
    images, kappa = study["01_data_subset"], study["06_kappa_tradeoff"]
    classes, seen = len(images["class_ids"]), kappa["seen_classes"]
    train, test = (
        images["images_per_class"] * classes,
        images["test_images_per_class"] * classes,
    )
    passes = train + test * len(kappa["noise_ssim"])
    noisy = (
        kappa["flatness_halvings"]
        * 4
        * kappa["flatness_images"]
        * kappa["flatness_draws"]
    )
    steep = (
        kappa["flatness_halvings"]
        * 3
        * 4
        * kappa["sharpness_images"]
        * kappa["sharpness_steps"]
    )
    fitted = (
        3 * kappa["made_epochs"] * images["images_per_class"] * seen * (1 - HELD_OUT)
    )
    rows = []
    for name in kappa["kappa_families"]:
        millions, billions, side, features = counted(name, seen, images["image_size"])
        minutes = [
            billions * 1e9 * count / SPEED / 60
            for count in (passes, 4 * kappa["complexity_images"] + noisy + steep)
        ]
        trained = billions * 1e9 * fitted / SPEED / 60 if family_made(name) else 0
        rows.append(
            [
                name,
                millions,
                side,
                billions,
                trained,
                *minutes,
                passes * features * 4 / 1e9,
            ]
        )
    columns = [
        "network",
        "million weights",
        "side",
        "billion operations",
        "training, min",
        "features, min",
        "complexity, min",
        "GB kept",
    ]
    table = pd.DataFrame(rows, columns=columns)
    hours = (
        table[["training, min", "features, min", "complexity, min"]].sum().sum() / 60
    )
    levels, epochs = len(kappa["noise_ssim"]), kappa["made_epochs"]
    print(
        f"# What huang100 would take\n\n{len(table)} networks: {passes:,} images each, of {classes} classes, pass once ({train:,} to fit "
        f"probes, {test:,} test images at {levels} levels of noise). Made networks are trained for {epochs} epochs at most.\n\n"
        "**Nothing here was timed on a GPU.** Counted are the operations of a forward pass; a training step is taken as three, and all in "
        f"float32 at {SPEED / 1e12:.0f} tera-operations/s, 30 % of what the maker states for an H100. EfficientNets reach less, since "
        "memory bounds their depthwise convolutions. Noise, probes and intervals run beside it on the processor. This page is what "
        "`python -m benchmarks.huang_plan` prints.\n"
    )
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for row in rows:
        print(
            "| "
            + " | ".join(
                f"{value:,.3g}" if isinstance(value, float) else str(value)
                for value in row
            )
            + " |"
        )
    kept = table["GB kept"].sum()
    print(
        f"\nTogether {hours:.1f} hours of one GPU, and {kept:.0f} GB of features in `work/huang100/kept`."
    )


if __name__ == "__main__":
    main()
