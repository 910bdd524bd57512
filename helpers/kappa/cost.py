"""Cost of a study of notebook 06, from counted operations of its networks."""

import logging
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch.utils.flop_counter import FlopCounterMode

from helpers.kappa.making import family_made, untrained
from helpers.kappa.networks import CLIP, MODEL_SET, without_head

# Operations per second of a float32 pass on one GPU: 30 % of the 67e12 that NVIDIA
# states for an H100.
GPU_SPEED = 20e12
_TIMED = "resnet18 w0.25"  # the network whose passes are timed on a processor
# Searches for the magnitude of a change of the weights: plain, and magnitude-aware.
# Each is made with noise and with ascent, see ``measures.flatness``.
_SEARCHES = 2


class Backbone(NamedTuple):
    """Size of a network without its head."""

    weights: int
    operations: float  # of the forward pass of one image; multiply and add count as two
    side: int  # of the images that it takes, pixels
    features: int


def backbone(name: str, classes: int, side: int) -> Backbone:
    """Count a network without allocating its weights.

    Args:
        name: published ("RN50") or made ("resnet18 w0.25"), as notebook 06 takes it.
        classes: number of classes, the outputs of made networks.
        side: of the study's images, pixels; CLIP's networks take images of their own.
    """
    with torch.device("meta"):
        if family_made(name):
            network = without_head(untrained(name, classes, side)).eval()
        else:
            import timm

            logging.getLogger("timm").setLevel(logging.ERROR)
            head = {} if name in CLIP else {"num_classes": 0}
            network = timm.create_model(CLIP.get(name, name), **head).eval()
            if name in CLIP:
                side = network.pretrained_cfg["input_size"][-1]
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            features = network(torch.empty(1, 3, side, side)).shape[1]
    weights = sum(value.numel() for value in network.parameters())
    return Backbone(weights, float(counter.get_total_flops()), side, features)


def costs(
    parameters: Mapping[str, Any], train: int, test: int, classes: int, speed: float
) -> pd.DataFrame:
    """Minutes and disk of each network of a study of notebook 06.

    Args:
        parameters: of notebooks 01 and 06.
        train: number of training images of all classes.
        test: number of test images of all classes.
        classes: number of classes.
        speed: operations per second.

    Returns:
        A row per network. A training step counts as three forward passes; searches of
        flatness and sharpness are taken to need all their magnitudes.
    """
    passes = train + test * len(parameters["noise_ssim"])
    seen = parameters["seen_classes"] or classes
    halvings = parameters["flatness_halvings"]
    # Forward passes of one magnitude; a step of the ascent counts as three.
    with_noise = parameters["flatness_images"] * parameters["flatness_draws"]
    of_ascent = 3 * parameters["sharpness_images"] * parameters["sharpness_steps"]
    complexity = 4 * parameters["complexity_images"]  # upright and turned three times
    complexity += _SEARCHES * halvings * (with_noise + of_ascent)
    training = 3 * parameters["made_epochs"] * 0.9 * train * seen / classes
    rows = []
    for name in parameters["kappa_families"]:
        if name == MODEL_SET:
            continue
        size = backbone(name, seen, parameters["image_size"])
        minutes = size.operations / speed / 60
        passes_of_training = training if family_made(name) else 0
        rows.append(
            {
                "network": name,
                "million weights": size.weights / 1e6,
                "side": size.side,
                "billion operations": size.operations / 1e9,
                "training, min": minutes * passes_of_training,
                "features, min": minutes * passes,
                "complexity, min": minutes * complexity,
                "GB kept": 4 * passes * size.features / 1e9,
            }
        )
    return pd.DataFrame(rows)


def speed_here(side: int) -> float:
    """Operations per second of a small network on one core of this machine.

    Args:
        side: of the images, pixels.
    """
    network = untrained(_TIMED, 10, side).eval()
    size = backbone(_TIMED, 10, side)
    images = torch.rand(32, 3, side, side)
    with torch.no_grad():
        network(images)
        began = time.process_time()
        network(images)
        seconds = time.process_time() - began
    return len(images) * size.operations / seconds
