"""The overlap score of one network under every choice that could have been made otherwise: method, class, layer, threshold, size."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.cams import attribution, overlap
from helpers.cams.maps import GRADIENT_METHODS, TORCHCAM_METHODS, closed_form_cam, closed_form_classifier, layer_maps, normalise_maps
from helpers.cams.overlap import CountedBoxes, annotated
from helpers.data.images import ImageSet
from helpers.networks import hooks, resnet

CORRECT, TORCHCAM = "correct", "torchcam"  # formulas
PREDICTED, TRUE, NO_CLASS = "predicted", "true", "none"  # classes that a map explains
BOXES = "boxes"  # what it is compared with: annotated boxes, or masks by the name of their provider
ALL_IMAGES, RIGHT, WRONG = "all", "correct", "wrong"  # images: all, those classified as labelled, the others

# What one forward pass gives in closed form; the first is the paper's. "cam" is the same as "grad_cam" here.
CLOSED_FORMS = (("grad_cam", CORRECT), ("grad_cam_plus_plus", CORRECT), ("grad_cam_plus_plus", TORCHCAM), ("layer_cam", CORRECT))
LAYER_METHODS = ("grad_cam", "layer_cam")  # at every layer
SAMPLED_METHODS = tuple(method for method in GRADIENT_METHODS if method not in LAYER_METHODS)  # at the last stage
KEYS = ["method", "formula", "layer", "class_used", "annotation", "image_size", "threshold", "subset"]
OVERLAP_COLUMNS = [*KEYS, "n", "iou", "iou_b", "nearest", "difference", "seconds"]


@dataclass(frozen=True)
class AblationSettings:
    """Everything that decides the scores beside the network, its images and the machine's masks."""

    thresholds: tuple[float, ...]  # of the map, in (0, 1); the paper's is added
    threshold: float = 0.1  # the paper's, at which single images are kept
    images: int = 48  # the first images, for what needs gradients, noise or other image sizes; 0 takes all
    methods: tuple[str, ...] = SAMPLED_METHODS  # at the last stage, beside Grad-CAM and Layer-CAM
    layers: tuple[str, ...] = ()  # by name, see layer_cams.named_layer; none takes the last layer of every stage
    noise_samples: int = 4  # of Smooth Grad-CAM++
    noise_std: float = 0.3  # of Smooth Grad-CAM++, in units of the network's input
    channels: int = 16  # of Score-CAM
    scales: tuple[float, ...] = (0.5, 2.0)  # image sizes, as multiples of the study's
    attributions: tuple[str, ...] = attribution.ATTRIBUTIONS  # by Captum
    steps: int = 16  # of integrated gradients
    seed: int = 0  # of the noise
    batch_size: int = 256  # images per pass; of what is drawn, the noise alone depends on it

    def __post_init__(self) -> None:
        """Put the paper's threshold among the sorted thresholds; refuse unknown methods and scales that are not positive."""
        object.__setattr__(self, "thresholds", tuple(sorted({*self.thresholds, self.threshold})))
        if unknown := sorted(set(self.methods) - set(SAMPLED_METHODS)):
            raise ValueError(f"methods {', '.join(unknown)} cannot be chosen; choose of {', '.join(SAMPLED_METHODS)}")
        if unknown := sorted(set(self.attributions) - set(attribution.ATTRIBUTIONS)):
            raise ValueError(f"attributions {', '.join(unknown)} are unknown; choose of {', '.join(attribution.ATTRIBUTIONS)}")
        if not all(0 < scale < np.inf for scale in self.scales):
            raise ValueError(f"scales {self.scales} must be positive multiples of the image size")


class Stage(NamedTuple):
    """The last stage of a network, where maps have a closed form."""

    name: str
    layer: nn.Module
    classifier: nn.Linear


@torch.inference_mode()
def last_stage(network: nn.Module, images: ImageSet, device: torch.device | str) -> Stage:
    """Find the layer whose maps are averaged and classified, see ``passes.last_maps_layer`` and ``maps.closed_form_classifier``.

    Raises:
        ValueError: there is none, or the closed form does not hold, as where the maps that are averaged are one pixel; what to change.
    """
    example = hooks.prepared(images.images[:1], resnet.normalise_images, device)
    layer = hooks.last_maps_layer(network, example)
    name = next(name for name, module in network.named_modules() if module is layer)
    try:
        return Stage(name, layer, closed_form_classifier(network, *hooks.features_and_logits(network, layer, example)))
    except ValueError as fault:
        side = images.images.shape[-1]
        told = f"the maps of {name}, the last of more than one pixel for images of {side} pixels, are not what the network averages"
        raise ValueError(
            f"{told}, so there is nothing to ablate: {fault}. Leave this notebook out of the study, or give it last maps of more than one "
            "pixel: a larger image_size (01), a stem that halves less or last_stride 1 (02)"
        ) from fault


def closed_form_maps(method: str, formula: str, features: Tensor, classifier_weight: Tensor, classes: Tensor) -> Tensor:
    """Compute normalised maps without a backward pass, see ``maps.closed_form_cam``: (B, h, w) in [0, 1).

    Grad-CAM++ as torchcam 0.4.0 computes it loses a division: alpha is g^2, so that a channel's weight, summed over its h w pixels, is
    ``h w (relu(W_ck) / (h w))^3``. The factor is kept because it decides how much the 1e-8 of the normalisation weighs.

    Raises:
        ValueError: an unknown method, or the formula of torchcam for another than Grad-CAM++.
    """
    if (method, formula) not in CLOSED_FORMS:
        known = ", ".join(f"{name} ({kind})" for name, kind in CLOSED_FORMS)
        raise ValueError(f"there is no closed form of {method!r} by the formula {formula!r}; choose one of {known}")
    if formula == CORRECT:
        return normalise_maps(closed_form_cam(method, features, classifier_weight, classes))
    pixels = features.shape[2] * features.shape[3]
    weights = pixels * (classifier_weight[classes].relu() / pixels) ** 3
    return normalise_maps(torch.einsum("bk,bkhw->bhw", weights, features).relu())


def swept(maps: Tensor, annotation: CountedBoxes, settings: AblationSettings) -> Tensor:
    """Compute IoU and IoU-B at every threshold on the CPU: (2, T, B); NaN where the mask is empty, so that the image is dropped."""
    found = torch.stack(overlap.overlaps(maps, annotation, settings.thresholds))
    return found.masked_fill(annotation.pixels() == 0, torch.nan).cpu()


def summary(overlaps: Tensor, right: Tensor, settings: AblationSettings, seconds: float, **keys: str | int) -> pd.DataFrame:
    """Average overlaps (2, T, N) over all images, those classified right (N,), and the others; undefined ones are in no mean nor in n.

    Returns:
        ``COLUMNS``, one row per threshold and subset; NaN for a subset without a defined image.
    """
    rows = []
    for subset, chosen in ((ALL_IMAGES, torch.ones_like(right)), (RIGHT, right), (WRONG, ~right)):
        values = overlaps[:, :, chosen].double()
        defined = values.isfinite().sum(2)
        means = (values.nan_to_num(0).sum(2) / defined).tolist()
        for threshold, n, iou, iou_b in zip(settings.thresholds, defined[0].tolist(), *means, strict=True):
            rows.append(keys | {"threshold": threshold, "subset": subset, "n": n, "iou": iou, "iou_b": iou_b, "seconds": seconds})
    table = pd.DataFrame(rows)
    return table.assign(**{"nearest": "", "difference": np.nan} | {name: table[name] for name in table})[OVERLAP_COLUMNS]


class Scores(NamedTuple):
    """What one pass over all images of a model gives."""

    table: pd.DataFrame  # COLUMNS
    single: pd.DataFrame  # one row per image: name, iou, iou_b, right, for the paper's method and threshold


@torch.inference_mode()
def closed_form_scores(
    network: nn.Module, images: ImageSet, masks: Mapping[str, Tensor], settings: AblationSettings, device: torch.device | str
) -> Scores:
    """Score everything that one forward pass over all images of a model gives: methods, classes and thresholds at once.

    Args:
        network: on ``device``; its mode and hooks are left as they came.
        images: its training images, with the labels that it was fitted to ("true").
        masks: (N, S, S) bool of the same images by the name of what made them. An image with an empty mask is dropped there.
        settings: see there.
        device: where the network is.
    """
    stage, parts, seconds, right = last_stage(network, images, device), {}, {}, []
    for start in range(0, len(images), settings.batch_size):
        batch = slice(start, start + settings.batch_size)
        started = time.perf_counter()
        features, logits = hooks.features_and_logits(
            network, stage.layer, hooks.prepared(images.images[batch], resnet.normalise_images, device)
        )
        labels, predicted = images.labels[batch].to(device), logits.argmax(1)
        annotations = {BOXES: annotated(overlap.box_masks(images.boxes[batch].to(device), images.images.shape[-1]))}
        annotations |= {provider: annotated(made[batch].to(device)) for provider, made in masks.items()}
        right.append((predicted == labels).cpu())
        forward = time.perf_counter() - started
        for key in CLOSED_FORMS:
            started = time.perf_counter()
            for name, overlaps in _closed_form(key, features, stage.classifier.weight, predicted, labels, annotations, settings):
                parts.setdefault((*key, *name), []).append(overlaps)
            seconds[key] = seconds.get(key, 0.0) + forward + time.perf_counter() - started
    joined, chosen = {key: torch.cat(values, 2) for key, values in parts.items()}, torch.cat(right)
    fixed = {"layer": stage.name, "image_size": images.images.shape[-1]}
    tables = [
        summary(values, chosen, settings, seconds[method, formula], method=method, formula=formula, class_used=used, annotation=to, **fixed)
        for (method, formula, used, to), values in joined.items()
    ]
    return Scores(pd.concat(tables, ignore_index=True), _single(joined, chosen, images.names, settings))


def _closed_form(
    key: tuple[str, str],
    features: Tensor,
    weight: Tensor,
    predicted: Tensor,
    labels: Tensor,
    annotations: dict[str, CountedBoxes],
    settings: AblationSettings,
) -> Iterator[tuple[tuple[str, str], Tensor]]:
    maps = closed_form_maps(*key, features, weight, predicted)
    looked = swept(maps, annotations[BOXES], settings)
    yield (PREDICTED, BOXES), looked
    for provider in [name for name in annotations if name != BOXES] if key == CLOSED_FORMS[0] else ():
        yield (PREDICTED, provider), swept(maps, annotations[provider], settings)
    wrong = (predicted != labels).nonzero().squeeze(1)  # elsewhere the two maps are the same
    of_label = closed_form_maps(*key, features[wrong], weight, labels[wrong])
    yield (TRUE, BOXES), looked.index_copy(2, wrong.cpu(), swept(of_label, annotations[BOXES].of(wrong), settings))


def _single(joined: dict[tuple[str, ...], Tensor], right: Tensor, names: tuple[str, ...], settings: AblationSettings) -> pd.DataFrame:
    at = settings.thresholds.index(settings.threshold)
    iou, iou_b = joined[(*CLOSED_FORMS[0], PREDICTED, BOXES)][:, at].double().numpy()
    return pd.DataFrame({"name": names, "iou": iou, "iou_b": iou_b, "right": right.numpy()})


# (B, 3, S, S) normalised images, (B,) classes, a seed -> (B, h, w) maps.
Maps = Callable[[Tensor, Tensor, int], Tensor]
Job = tuple[dict[str, str | int], Maps]


def sampled_images(images: ImageSet, settings: AblationSettings) -> ImageSet:
    """Take the first of the images, which are the same of every model and in an order that was drawn."""
    return images.subset(range(min(len(images), settings.images or len(images))))


def sampled_scores(network: nn.Module, images: ImageSet, settings: AblationSettings, device: torch.device | str) -> pd.DataFrame:
    """Score the methods that need gradients or noise at the last stage, Grad-CAM and Layer-CAM at every layer, and other image sizes.

    Args:
        network: on ``device``; modes, hooks and gradients are left as they came.
        images: its training images.
        settings: see there.
        device: where the network is.

    Returns:
        ``compute.OVERLAP_COLUMNS``. At the last stage, nearest names the method and formula in closed form whose maps are nearest to
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
            maps = normalise_maps(maps_of(pixels, predicted, settings.seed + number))
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
    network: nn.Module, stage: Stage, images: ImageSet, settings: AblationSettings, device: torch.device | str
) -> Iterator[tuple[Tensor, CountedBoxes, Tensor, Tensor, dict[tuple[str, str], Tensor]]]:
    """Pixels as floats in [0, 255], the boxes, predicted classes, labels, and the maps in closed form."""
    for start in range(0, len(images), settings.batch_size):
        batch = slice(start, start + settings.batch_size)
        pixels = images.images[batch].to(device).float()
        with torch.inference_mode():
            features, logits = hooks.features_and_logits(network, stage.layer, _prepared(pixels))
            predicted = logits.argmax(1)
            closed = {key: closed_form_maps(*key, features, stage.classifier.weight, predicted) for key in CLOSED_FORMS}
        boxes = annotated(overlap.box_masks(images.boxes[batch].to(device), images.images.shape[-1]))
        yield pixels, boxes, predicted, images.labels[batch].to(device), closed


def _prepared(pixels: Tensor) -> Tensor:
    return resnet.normalise_images(pixels).contiguous(memory_format=torch.channels_last)


def _jobs(network: nn.Module, stage: Stage, settings: AblationSettings, size: int) -> Iterator[Job]:
    """List what is to be computed, with the keys of its rows."""
    options = {"noise_samples": settings.noise_samples, "noise_std": settings.noise_std, "channels": settings.channels}
    keys = {"formula": CORRECT, "layer": stage.name, "class_used": PREDICTED, "annotation": BOXES, "image_size": size}
    for method in settings.methods:
        used = NO_CLASS if method == "eigen_cam" else PREDICTED
        yield keys | {"method": method, "class_used": used}, partial(_by_gradient, network, stage.layer, method, options)
        if method in TORCHCAM_METHODS:
            compatible = options | {"torchcam_compat": True}
            yield keys | {"method": method, "formula": TORCHCAM}, partial(_by_gradient, network, stage.layer, method, compatible)
    layers = {name: hooks.named_layer(network, name) for name in settings.layers} or hooks.stage_layers(network, size)
    for name, layer in layers.items():
        for method in LAYER_METHODS:
            yield keys | {"method": method, "layer": name}, partial(_by_gradient, network, layer, method, options)
    for side in dict.fromkeys(max(8, round(scale * size)) for scale in settings.scales):
        if side != size:
            yield keys | {"method": "grad_cam", "image_size": side}, partial(_at_size, network, stage, side)


def _by_gradient(
    network: nn.Module, layer: nn.Module, method: str, options: dict[str, int | float | bool], pixels: Tensor, classes: Tensor, seed: int
) -> Tensor:
    return layer_maps(method, network, layer, _prepared(pixels), classes, seed=seed, **options)


@torch.inference_mode()
def _at_size(network: nn.Module, stage: Stage, side: int, pixels: Tensor, classes: Tensor, seed: int) -> Tensor:
    """Compute Grad-CAM of images of another size, for the class that is predicted at that size."""
    resized = F.interpolate(pixels, size=(side, side), mode="bilinear", antialias=True, align_corners=False)
    features, logits = hooks.features_and_logits(network, stage.layer, _prepared(resized))
    return closed_form_cam("grad_cam", features, stage.classifier.weight, logits.argmax(1))
