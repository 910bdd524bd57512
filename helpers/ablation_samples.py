"""The overlap score by gradients, noise, other layers and other image sizes, on a few images of a model."""

import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import cams, layer_cams, localization, models
from helpers.ablation_scores import (
    BOXES,
    CLOSED_FORMS,
    CORRECT,
    LAYER_METHODS,
    NO_CLASS,
    PREDICTED,
    TORCHCAM,
    Settings,
    Stage,
    closed_form_maps,
    last_stage,
    summary,
    swept,
)
from helpers.datasets import ImageSet
from helpers.threshold_sweep import Annotation, annotated

# (B, 3, S, S) normalised images, (B,) classes, a seed -> (B, h, w) maps.
Maps = Callable[[Tensor, Tensor, int], Tensor]
Job = tuple[dict[str, str | int], Maps]


def sampled_images(images: ImageSet, settings: Settings) -> ImageSet:
    """Choose the images: the same of every model that was fitted to the same, in their order."""
    order = np.random.default_rng(settings.seed).permutation(len(images))
    return images.subset(np.sort(order[: settings.images or None]))


def sampled_scores(network: nn.Module, images: ImageSet, settings: Settings, device: torch.device | str) -> pd.DataFrame:
    """Score the methods that need gradients or noise at the last stage, Grad-CAM and Layer-CAM at every layer, and other image sizes.

    Args:
        network: on ``device``; modes, hooks and gradients are left as they came.
        images: its training images.
        settings: see there.
        device: where the network is.

    Returns:
        ``ablation_scores.COLUMNS``. At the last stage, nearest names the method and formula in closed form whose maps are nearest to
        these, and difference the largest difference of a pixel of the normalised maps: near 0 the two methods coincide for this network.
    """
    images = sampled_images(images, settings)
    stage = last_stage(network, images, device)
    size = images.images.shape[-1]
    batches = list(_batches(network, stage, images, settings, device))
    right = torch.cat([(predicted == labels).cpu() for _, _, predicted, labels, _ in batches])
    tables = []
    for keys, maps_of in _jobs(network, stage, settings, size):
        started, overlaps, differences = time.perf_counter(), [], []
        for number, (pixels, boxes, predicted, _, closed) in enumerate(batches):
            maps = cams.normalise(maps_of(pixels, predicted, settings.seed + number))
            overlaps.append(swept(maps, boxes, settings))
            if maps.shape == closed[CLOSED_FORMS[0]].shape:
                differences.append([float((maps - other).abs().amax()) for other in closed.values()])
        table = summary(torch.cat(overlaps, 2), right, settings, time.perf_counter() - started, **keys)
        if differences and keys["layer"] == stage.name and keys["image_size"] == size:
            largest = np.nan_to_num(np.max(differences, axis=0), nan=np.inf)
            method, formula = CLOSED_FORMS[int(largest.argmin())]
            table = table.assign(nearest=f"{method} ({formula})", difference=float(largest.min()))
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def _batches(
    network: nn.Module, stage: Stage, images: ImageSet, settings: Settings, device: torch.device | str
) -> Iterator[tuple[Tensor, Annotation, Tensor, Tensor, dict[tuple[str, str], Tensor]]]:
    """Give pixels as floats in [0, 255], the boxes, predicted classes, labels, and the maps in closed form."""
    for start in range(0, len(images), settings.batch_size):
        batch = slice(start, start + settings.batch_size)
        pixels = images.images[batch].to(device).float()
        with torch.inference_mode():
            features, logits = cams.features_and_logits(network, stage.layer, _prepared(pixels))
            predicted = logits.argmax(1)
            closed = {key: closed_form_maps(*key, features, stage.classifier.weight, predicted) for key in CLOSED_FORMS}
        boxes = annotated(localization.box_masks(images.boxes[batch].to(device), images.images.shape[-1]))
        yield pixels, boxes, predicted, images.labels[batch].to(device), closed


def _prepared(pixels: Tensor) -> Tensor:
    return models.normalise(pixels).contiguous(memory_format=torch.channels_last)


def _jobs(network: nn.Module, stage: Stage, settings: Settings, size: int) -> Iterator[Job]:
    """List what is to be computed, with the keys of its rows."""
    options = {"noise_samples": settings.noise_samples, "noise_std": settings.noise_std, "channels": settings.channels}
    keys = {"formula": CORRECT, "layer": stage.name, "class_used": PREDICTED, "annotation": BOXES, "image_size": size}
    for method in settings.methods:
        used = NO_CLASS if method == "eigen_cam" else PREDICTED
        yield keys | {"method": method, "class_used": used}, partial(_by_gradient, network, stage.layer, method, options)
        if method in layer_cams.TORCHCAM_METHODS:
            compatible = options | {"torchcam_compat": True}
            yield keys | {"method": method, "formula": TORCHCAM}, partial(_by_gradient, network, stage.layer, method, compatible)
    layers = {name: layer_cams.named_layer(network, name) for name in settings.layers} or layer_cams.stage_layers(network, size)
    for name, layer in layers.items():
        for method in LAYER_METHODS:
            yield keys | {"method": method, "layer": name}, partial(_by_gradient, network, layer, method, options)
    for side in dict.fromkeys(max(8, round(scale * size)) for scale in settings.scales):
        if side != size:
            yield keys | {"method": "grad_cam", "image_size": side}, partial(_at_size, network, stage, side)


def _by_gradient(
    network: nn.Module, layer: nn.Module, method: str, options: dict[str, int | float | bool], pixels: Tensor, classes: Tensor, seed: int
) -> Tensor:
    return layer_cams.layer_maps(method, network, layer, _prepared(pixels), classes, seed=seed, **options)


@torch.inference_mode()
def _at_size(network: nn.Module, stage: Stage, side: int, pixels: Tensor, classes: Tensor, seed: int) -> Tensor:
    """Compute Grad-CAM of images of another size, for the class that is predicted at that size."""
    resized = F.interpolate(pixels, size=(side, side), mode="bilinear", antialias=True, align_corners=False)
    features, logits = cams.features_and_logits(network, stage.layer, _prepared(resized))
    return cams.closed_form_cam("grad_cam", features, stage.classifier.weight, logits.argmax(1))
